//! Rows in the place of tokens: how they reach a batch, what is shared of them, and that tokens which
//! see each other are computed together.

use std::sync::Arc;

use tokenmill_ir::{Batch, FIRST_MEDIA, GroupKind, Limits, SamplingParams, TokenId, TokenSource};
use tokenmill_ir::{Sampled, StepOutput};
use tokenmill_sched::{
    Config, Embeddings, Inputs, NewSequence, Numbers, Refused, Scheduler, SeqId, Step, StepCost,
    Want,
};

const SIZE: u32 = 4;
const PLACE: TokenId = 99;

fn config(groups: &[GroupKind]) -> Config {
    Config {
        groups: groups.to_vec(),
        block_tokens: SIZE,
        limits: Limits {
            step_tokens: 16,
            sequences: 4,
            outputs: 8,
            context: 80,
            group_blocks: vec![60; groups.len()],
            top_logprobs: 0,
        },
        whole_sequences: false,
        vocab: 100,
        hidden: 1,
        cost: StepCost::new(1e-3, 1e-4, 0.0),
        step_s: 1.0,
        checkpoint_slots: 2,
        longest_block: 12,
    }
}

/// An image of so many rows of two numbers.
fn image(content: u64, rows: u32) -> Arc<Embeddings> {
    let data = (0..2 * rows).map(|i| (content * 100) as f32 + i as f32).collect();
    Arc::new(Embeddings::new(2, data, content.into()))
}

fn words(seed: u32, len: u32) -> Vec<TokenId> {
    (0..len).map(|i| (i * 7 + seed * 13) % 99).collect()
}

fn sequence((tokens, inputs): (Vec<TokenId>, Inputs), want: Want) -> NewSequence {
    let (inputs, max_len) = (Some(Arc::new(inputs)), tokens.len() as u32 + 1);
    let (key, salt, account, priority) = (0, 1, 0, 0);
    NewSequence { key, tokens, inputs, max_len, want, salt, account, priority }
}

/// Texts with images between them, whose rows see each other where `blocks`.
fn prompt(images: &[Arc<Embeddings>], blocks: bool) -> (Vec<TokenId>, Inputs) {
    let mut text = words(1, 6);
    images.iter().for_each(|_| text.extend([PLACE, 5, 6]));
    let (tokens, mut inputs) = Inputs::place(&text, PLACE, images).unwrap();
    if blocks {
        let block = |m: &tokenmill_sched::Media| [m.at, m.at + m.rows.len() as u32];
        inputs.blocks = inputs.media.iter().map(block).collect();
    }
    inputs.check(&tokens, 2).unwrap();
    (tokens, inputs)
}

/// Computes all; the batches.
fn run(sched: &mut Scheduler) -> Vec<Batch> {
    let (mut step, mut progress, mut batches) = (Step::default(), Vec::new(), Vec::new());
    for _ in 0..200 {
        sched.plan(&mut step);
        if step.is_empty() {
            assert!(sched.is_idle(), "somebody waits for ever");
            return batches;
        }
        let mut batch = Batch::default();
        sched.fill(&step, &mut batch, &mut |_, _, _| false);
        batches.push(batch);
        let mut out = StepOutput::default();
        let sampled = Sampled { token: 3, valid: true, ..Sampled::default() };
        out.sampled.resize(step.outputs as usize, sampled);
        out.rows.resize(step.outputs as usize, 0.5);
        sched.commit(&step, &out, &mut progress);
        sched.check();
    }
    panic!("no end");
}

fn submit(sched: &mut Scheduler, prompt: (Vec<TokenId>, Inputs)) -> SeqId {
    sched.submit(sequence(prompt, Want::tokens(SamplingParams::default()))).unwrap()
}

fn computed(batches: &[Batch]) -> usize {
    batches.iter().map(|b| b.tokens.len()).sum()
}

#[test]
fn rows_stand_where_their_ids_do_at_their_positions() {
    let mut sched = Scheduler::new(config(&[GroupKind::Full]));
    let (tokens, mut inputs) = prompt(&[image(1, 9), image(2, 3)], false);
    // The first image takes the positions 6 to 8 of the first axis.
    inputs.positions = (0..6).map(|i| [i; 3]).collect();
    inputs.positions.extend((0..9).map(|i| [6, 6 + i / 3, 6 + i % 3]));
    inputs.next = 9;
    submit(&mut sched, (tokens.clone(), inputs));
    let batches = run(&mut sched);
    assert!(batches.len() > 1, "in parts");
    let (mut at, mut seen) = (0, Vec::new());
    for batch in &batches {
        assert_eq!(batch.grid.len(), batch.tokens.len());
        for (row, token) in batch.tokens.iter().enumerate() {
            match *token {
                TokenSource::Embedding(row) => {
                    seen.extend_from_slice(&batch.embeddings[2 * row as usize..][..2]);
                    assert!(tokens[at] >= FIRST_MEDIA);
                }
                other => assert_eq!(other, TokenSource::Id(tokens[at])),
            }
            let expected = match at as u32 {
                i @ 0..6 => [i; 3],
                i @ 6..15 => [6, 6 + (i - 6) / 3, 6 + (i - 6) % 3],
                i => [9 + i - 15; 3],
            };
            assert_eq!(batch.axes(row), expected, "token {at}");
            at += 1;
        }
    }
    assert_eq!(at, tokens.len());
    let expected = [image(1, 9), image(2, 3)].map(|rows| rows.data.clone()).concat();
    assert_eq!(seen, expected);
}

#[test]
fn tokens_that_see_each_other_are_computed_together() {
    let window = GroupKind::Window { tokens: 6 };
    for groups in [&[GroupKind::Full][..], &[window], &[GroupKind::Full, window]] {
        let mut sched = Scheduler::new(config(groups));
        submit(&mut sched, (words(9, 12), Inputs::default()));
        submit(&mut sched, prompt(&[image(1, 12), image(2, 7), image(3, 11)], true));
        let batches = run(&mut sched);
        let mut whole = 0;
        for batch in &batches {
            for span in &batch.spans {
                let rows = span.first as usize..(span.first + span.len) as usize;
                for &[begin, end] in batch.blocks.get(rows).unwrap_or_default() {
                    assert!(end == 0 || span.context <= begin && end <= span.context + span.len);
                    whole += usize::from(end > 0);
                }
            }
        }
        assert_eq!(whole, 12 + 7 + 11, "{groups:?}");
    }
}

#[test]
fn the_same_image_is_found_and_another_is_not() {
    for blocks in [false, true] {
        let mut sched = Scheduler::new(config(&[GroupKind::Full]));
        let mut tokens = |images: &[Arc<Embeddings>]| {
            submit(&mut sched, prompt(images, blocks));
            computed(&run(&mut sched))
        };
        let all = tokens(&[image(1, 11)]);
        assert_eq!(all, 6 + 11 + 2);
        // Blocks of the cache that end inside an image are of no use where it is computed whole.
        let hit = if blocks { 4 } else { 16 };
        assert_eq!(tokens(&[image(1, 11)]), all - hit);
        // The text before it is the same, and no row of it.
        assert_eq!(tokens(&[image(2, 11)]), all - 4);
        assert_eq!(tokens(&[image(1, 11), image(3, 5)]), all + 7 - hit);
        // A block of the cache ends with the second image.
        assert_eq!(tokens(&[image(1, 11), image(3, 5)]), all + 7 - 24);
    }
}

#[test]
fn penalties_see_words_only() {
    let mut sched = Scheduler::new(config(&[GroupKind::Full]));
    let sampling = SamplingParams { repetition_penalty: 1.2, ..SamplingParams::default() };
    let prompt = prompt(&[image(1, 5)], false);
    let text: Vec<TokenId> = prompt.0.iter().copied().filter(|t| *t < FIRST_MEDIA).collect();
    sched.submit(sequence(prompt, Want::tokens(sampling))).unwrap();
    let batches = run(&mut sched);
    assert_eq!(batches.last().unwrap().history, text);
}

#[test]
fn listed_rows_come_from_models_of_whole_sequences() {
    let listed = || Want::Numbers(Numbers::Listed);
    let rows = image(1, 12);
    let patches = |outputs: &[u32]| {
        let (tokens, inputs) = Inputs::place(&[PLACE], PLACE, &[Arc::clone(&rows)]).unwrap();
        (tokens, Inputs { outputs: outputs.to_vec(), ..inputs })
    };
    let asked = |outputs: &[u32]| sequence(patches(outputs), listed());
    let mut keeps = Scheduler::new(config(&[GroupKind::Full]));
    assert_eq!(keeps.submit(asked(&[0])), Err(Refused::KeepsCache));
    let mut whole = Scheduler::new(Config { whole_sequences: true, ..config(&[]) });
    whole.submit(asked(&[1, 4, 8, 9])).unwrap();
    let batches = run(&mut whole);
    let outputs: Vec<u32> = batches[0].outputs.iter().map(|o| o.row).collect();
    assert_eq!((batches.len(), &outputs[..]), (1, &[1, 4, 8, 9][..]));
    let many = [0, 1, 2, 3, 4, 5, 6, 7, 8];
    assert_eq!(whole.submit(asked(&many)), Err(Refused::ManyRows { rows: 9, limit: 8 }));
    assert_eq!(whole.submit(asked(&[])), Err(Refused::Empty));
    for wrong in [&[3, 2][..], &[4, 4], &[12]] {
        let (tokens, inputs) = patches(wrong);
        assert!(inputs.check(&tokens, 2).is_err(), "{wrong:?}");
    }
}

#[test]
fn what_no_step_holds_is_refused() {
    let mut sched = Scheduler::new(config(&[GroupKind::Full]));
    let long = sequence(prompt(&[image(1, 13)], true), Want::tokens(SamplingParams::default()));
    assert_eq!(sched.submit(long), Err(Refused::LongBlock { len: 13, limit: 12 }));
    let (tokens, inputs) = prompt(&[image(1, 5), image(2, 5)], true);
    assert!(inputs.check(&tokens, 3).is_err(), "other columns");
    assert!(inputs.check(&tokens[1..], 2).is_err(), "elsewhere");
    let blocks = vec![[3, 7], [6, 9]];
    assert!(Inputs { blocks, ..inputs }.check(&tokens, 2).is_err(), "blocks that meet");
    assert_eq!(Inputs::place(&[PLACE, 1], PLACE, &[]), Err((1, 0)));
}
