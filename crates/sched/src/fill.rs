//! A planned step as the flat arrays a device reads.

use std::borrow::Cow;

use tokenmill_ir::{
    Batch, GroupKind, MAX_GROUPS, OutputKind, OutputRow, SamplingParams, Span, TokenId, TokenSource,
};

use crate::media::level;
use crate::scheduler::Scheduler;
use crate::sequence::{Numbers, Sequence, Want};
use crate::step::{Grant, Step};

/// Which tokens may come next in a sequence: appends a mask of `ceil(vocab / 32)` words for the
/// token after those known, and one after each of its drafts; false, and nothing, where any may.
/// Of the sequence it gets the caller's key.
pub type Masks<'a> = &'a mut dyn FnMut(u64, &[TokenId], &mut Vec<u32>) -> bool;

impl Scheduler {
    /// Writes the step just planned into `batch`, which is emptied first.
    pub fn fill(&self, step: &Step, batch: &mut Batch, masks: Masks<'_>) {
        batch.clear();
        for grant in &step.grants {
            let Some(seq) = self.get(grant.seq) else { continue };
            let first = batch.tokens.len() as u32;
            let (from, to) = (grant.context, grant.context + grant.tokens);
            match &seq.inputs {
                Some(inputs) => inputs.fill(&seq.tokens, (from, to), batch),
                None => {
                    let tokens = &seq.tokens[from as usize..to as usize];
                    batch.tokens.extend(tokens.iter().map(|&t| TokenSource::Id(t)));
                    batch.positions.extend(from..to);
                }
            }
            if let Want::Numbers(Numbers::Pair { second }) = seq.want {
                batch.types.resize(first as usize, 0);
                batch.types.extend((from..to).map(|at| u32::from(at >= second)));
            }
            let tables = self.fill_tables(seq, to, batch);
            batch.spans.push(Span { first, len: grant.tokens, context: from, tables });
            let before = batch.outputs.len();
            fill_outputs(seq, grant, first, batch);
            if matches!(seq.want, Want::Tokens { .. }) && grant.outputs > 0 {
                let words = self.config.vocab.div_ceil(32) as usize;
                let at = (batch.masks.len() / words.max(1)) as u32;
                let drafts = &seq.tokens[seq.known as usize..to as usize];
                if masks(seq.key, drafts, &mut batch.masks) {
                    let rows = &mut batch.outputs[before..];
                    assert_eq!(batch.masks.len(), (at as usize + rows.len()) * words, "masks");
                    rows.iter_mut().zip(at..).for_each(|(row, at)| set_mask(row, at));
                }
            }
        }
        if !batch.types.is_empty() {
            batch.types.resize(batch.tokens.len(), 0);
        }
        level(batch, false, false);
    }

    fn fill_tables(&self, seq: &Sequence, end: u32, batch: &mut Batch) -> [u32; MAX_GROUPS] {
        let mut tables = [0; MAX_GROUPS];
        for (g, kind) in self.config.groups.iter().enumerate() {
            tables[g] = batch.tables.len() as u32;
            let entries = match kind {
                GroupKind::State => 2,
                _ => end.div_ceil(self.config.block_tokens) as usize,
            };
            batch.tables.extend_from_slice(&seq.tables[g][..entries]);
        }
        tables
    }
}

fn fill_outputs(seq: &Sequence, grant: &Grant, first: u32, batch: &mut Batch) {
    let end = grant.context + grant.tokens;
    let rows = end - grant.outputs..end;
    let row_of = |position: u32| first + position - grant.context;
    match &seq.want {
        Want::Tokens { .. } => fill_choices(seq, rows, row_of, batch),
        Want::Numbers(Numbers::Scores { top }) => {
            for position in rows {
                let target = seq.tokens[position as usize + 1];
                let kind = OutputKind::Score { target, top: *top };
                batch.outputs.push(OutputRow { row: row_of(position), kind });
            }
        }
        Want::Numbers(Numbers::Logits { .. }) => {
            let row = |position| OutputRow { row: row_of(position), kind: OutputKind::Logits };
            batch.outputs.extend(rows.map(row));
        }
        Want::Numbers(Numbers::Listed) => {
            let row = |&position| OutputRow { row: row_of(position), kind: OutputKind::Hidden };
            batch.outputs.extend(seq.listed(grant.context, end).iter().map(row));
        }
        Want::Numbers(Numbers::Hidden | Numbers::Pair { .. }) => {
            let row = |position| OutputRow { row: row_of(position), kind: OutputKind::Hidden };
            batch.outputs.extend(rows.map(row));
        }
    }
}

/// Output rows that choose the tokens after those positions; drafts count as generated.
fn fill_choices(
    seq: &Sequence,
    rows: std::ops::Range<u32>,
    row_of: impl Fn(u32) -> u32,
    batch: &mut Batch,
) {
    let Want::Tokens { sampling, bias, rules } = &seq.want else { return };
    if rows.is_empty() {
        return;
    }
    let (history, given) = (batch.history.len() as u32, seq.prompt - seq.rows);
    let looked_at = sampling.penalises() || !rules.is_empty();
    let text = if looked_at { seq.text(rows.end) } else { Cow::default() };
    if sampling.penalises() {
        batch.history.extend_from_slice(&text);
    }
    let biases = (batch.bias.len() as u32, bias.len() as u32);
    batch.bias.extend_from_slice(bias);
    for position in rows {
        let known = position + 1 - seq.rows;
        let seen = if sampling.penalises() { known.min(sampling.penalty_last_n) } else { 0 };
        let unseen = if sampling.penalises() { known - seen } else { 0 };
        let prompt = if sampling.penalises_prompt { 0 } else { given };
        let at = batch.bias.len();
        if !rules.is_empty() {
            rules.add(&text[..known as usize], given as usize, &mut batch.bias);
        }
        let kind = OutputKind::Sample {
            params: SamplingParams { index: known - given, ..*sampling },
            history: (history + unseen, seen),
            prompt: prompt.saturating_sub(unseen).min(seen),
            bias: biases,
            rules: (at as u32, (batch.bias.len() - at) as u32),
            mask: u32::MAX,
        };
        batch.outputs.push(OutputRow { row: row_of(position), kind });
    }
}

fn set_mask(row: &mut OutputRow, at: u32) {
    if let OutputKind::Sample { mask, .. } = &mut row.kind {
        *mask = at;
    }
}
