//! `score`: log-probabilities of given text or token ids, one JSON line a position.

use std::io::Write;

use serde_json::json;
use tokenmill_engine::direct::{Direct, Feed};
use tokenmill_engine::load::LoadedModel;
use tokenmill_ir::{OutputKind, TokenId};
use tokenmill_text::Special;

use crate::args::Score;
use crate::failure::Failure;
use crate::failure::longer;
use crate::{input, model};

/// Runs the command.
pub fn score(args: &Score) -> Result<(), Failure> {
    let mut loaded = model::open_scored(&args.model, &args.machine)?;
    model::check_cache(&args.model, &args.machine, &mut loaded)?;
    let ids = ids(args, &loaded)?;
    check_ids(&ids, &loaded)?;
    let lines = score_ids(&mut loaded, &ids, args.top)?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for (pos, line) in lines.iter().enumerate() {
        let written = match args.json {
            true => {
                let top: Vec<_> = line.top.iter().map(|(id, p)| json!([id, p])).collect();
                let (id, logprob) = (ids[pos], line.logprob);
                writeln!(out, "{}", json!({"pos": pos, "id": id, "logprob": logprob, "top": top}))
            }
            false => {
                let logprob = line.logprob.map_or("-".to_owned(), |p| format!("{p:.5}"));
                let top: String = line.top.iter().map(|(id, p)| format!("  {id} {p:.5}")).collect();
                writeln!(out, "{pos:6} {:8} {logprob:>10}{top}", ids[pos])
            }
        };
        written.map_err(Failure::output)?;
    }
    out.flush().map_err(Failure::output)
}

/// One position.
pub struct Line {
    /// ln p(token | tokens before it); `None` for the first.
    pub logprob: Option<f32>,
    /// The best candidates for this position.
    pub top: Vec<(TokenId, f32)>,
}

fn ids(args: &Score, loaded: &LoadedModel) -> Result<Vec<TokenId>, Failure> {
    let Some(file) = &args.file else {
        if args.ids.is_empty() {
            return Err(Failure::new("nothing to score", "neither --ids nor --file was given")
                .fix(format!("tokenmill score {} --ids 1,2,3", args.model)));
        }
        return Ok(args.ids.clone());
    };
    encode(loaded, &input::file(file)?)
}

/// A text as the model's tokens.
pub fn encode(loaded: &LoadedModel, text: &str) -> Result<Vec<TokenId>, Failure> {
    let Some(vocabulary) = &loaded.vocabulary else {
        return Err(Failure::new("the model has no tokenizer", "its files hold weights only")
            .fix("tokenmill score MODEL --ids 1,2,3"));
    };
    let encoded = vocabulary.tokenizer.encode_prompt(text, Special::Plain);
    encoded.map_err(|e| Failure::new("cannot read the text", e))
}

fn check_ids(ids: &[TokenId], loaded: &LoadedModel) -> Result<(), Failure> {
    let vocab = loaded.program.vocab;
    if vocab == 0 {
        return Err(Failure::new("cannot score", "this model gives embeddings, not logits"));
    }
    if let Some(bad) = ids.iter().find(|id| **id >= vocab) {
        let detail = format!("token {bad}: token ids go from 0 to {}", vocab - 1);
        return Err(Failure::new("cannot score", detail));
    }
    if ids.len() < 2 {
        return Err(too_short("nothing to score", ids.len()));
    }
    let (n, limit) = (u32::try_from(ids.len()).unwrap_or(u32::MAX), loaded.limits.context);
    if n > limit {
        let fix = longer("shorten it", n, limit, loaded.fit.most_context);
        let detail = format!("{n} tokens, the context is {limit}");
        return Err(Failure::new("cannot score", detail).fix(fix));
    }
    Ok(())
}

/// A text whose tokens predict none.
pub fn too_short(what: &str, tokens: usize) -> Failure {
    let detail = match tokens {
        0 => "the text is empty",
        _ => "the text is one token, and the first has no log-probability",
    };
    Failure::new(what, detail).fix("a text of two tokens or more")
}

/// Scores a sequence in steps of as many tokens as there may be outputs.
pub fn score_ids(
    loaded: &mut LoadedModel,
    ids: &[TokenId],
    top: u32,
) -> Result<Vec<Line>, Failure> {
    let failed = |e| Failure::new("the device failed", e);
    let block_tokens = loaded.device.caps().block_tokens;
    let executable = loaded.compile().map_err(failed)?;
    let mut direct = Direct::new(executable, &loaded.program, &loaded.limits, block_tokens, 1);
    let mut lines = vec![Line { logprob: None, top: Vec::new() }];
    let step = loaded.limits.outputs.min(loaded.limits.step_tokens) as usize;
    for (chunk, tokens) in ids.chunks(step).enumerate() {
        let kind = |i: usize| {
            let target = ids.get(chunk * step + i + 1).copied();
            target.map(|target| (i as u32, OutputKind::Score { target, top }))
        };
        let outputs: Vec<_> = (0..tokens.len()).filter_map(kind).collect();
        let feed = Feed { sequence: 0, tokens, outputs: &outputs };
        let out = direct.step(&[feed]).map_err(failed)?;
        for s in &out.sampled {
            if !s.valid {
                let at = lines.len();
                return Err(Failure::new("cannot score", format!("not a number at {at}")));
            }
            let (start, len) = (s.top.0 as usize, s.top.1 as usize);
            let top = out.top.get(start..start + len).unwrap_or_default().to_vec();
            lines.push(Line { logprob: Some(s.logprob), top });
        }
    }
    Ok(lines)
}
