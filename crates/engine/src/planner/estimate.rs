//! How long a step takes: its work over what the machine can do, in the shares that are usual or were timed.

use serde::Serialize;

use super::factors::{Arithmetic, Factor};
use super::machine::{Ceilings, Machine};
use super::model::{Kv, Model};
use crate::plan::Scene;

/// Tokens of a step at which the share of operations is that of whole prompts, and most at which it is that of
/// streams.
const WIDE: f64 = 256.0;
const NARROW: f64 = 32.0;

/// What a step moves and computes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Work {
    /// Weight bytes.
    pub weights: f64,
    /// Bytes of keys and values.
    pub cache: f64,
    /// Operations.
    pub ops: f64,
}

/// Work of a step.
pub fn work(model: &Model, kv: &Kv, scene: Scene) -> Work {
    let (n, t) = (f64::from(scene.sequences), f64::from(scene.tokens));
    // Keys that the tokens attend to, in the middle of the step.
    let before = u64::from(scene.context) + u64::from(scene.tokens / 2) + 1;
    let keys = scene.load().key_reads as f64;
    let outputs = if model.vocab == 0 { 0.0 } else { n };
    Work {
        weights: model.weight_reads(n * t),
        cache: n * t * kv.read(before),
        ops: n * t * model.token_ops + outputs * model.output_ops + keys * model.key_ops,
    }
}

/// A model on a machine.
#[derive(Debug, Clone)]
pub struct Pace<'a> {
    model: &'a Model,
    kv: &'a Kv,
    ceilings: Ceilings,
    factor: Factor,
}

impl<'a> Pace<'a> {
    /// Its ceilings and shares.
    pub fn new(machine: &Machine, model: &'a Model, kv: &'a Kv) -> Self {
        let factor = model.factor(machine.instructions);
        Self { model, kv, ceilings: machine.ceilings(), factor }
    }

    /// Seconds of a step, and whether reads bound it.
    pub fn step(&self, scene: Scene) -> (f64, bool) {
        let Work { weights, cache, ops } = work(self.model, self.kv, scene);
        let tokens = f64::from(scene.sequences * scene.tokens);
        // (Keys and values of a prompt are read for many tokens at once.)
        let shared = f64::from(scene.tokens.clamp(1, 64));
        let reads = weights / (self.ceilings.read * self.factor.reads)
            + cache / shared / (self.ceilings.read * self.factor.cache);
        let computes = ops / (self.rate() * self.share(tokens));
        (reads.max(computes), reads > computes)
    }

    fn rate(&self) -> f64 {
        self.ceilings.ops[self.model.arithmetic as usize]
    }

    /// Share of operations of a step of that many tokens, between those of streams and of prompts.
    fn share(&self, tokens: f64) -> f64 {
        let at = ((tokens / NARROW).ln() / (WIDE / NARROW).ln()).clamp(0.0, 1.0);
        self.factor.batch + (self.factor.prompt - self.factor.batch) * at
    }

    /// Seconds that a whole prompt takes, in full steps.
    pub fn prompt(&self, tokens: u32) -> f64 {
        let step = self.model.step_tokens.max(1);
        let starts = (0..tokens).step_by(step as usize);
        let part = |from| Scene { sequences: 1, tokens: step.min(tokens - from), context: from };
        starts.map(|from| self.step(part(from)).0).sum()
    }
}

/// How fast.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Speed {
    /// Prompt tokens a second, of a usual prompt.
    pub prompt_tok_s: f64,
    /// Tokens a second of each stream, all of them running; absent where nothing is generated.
    pub decode_tok_s: Option<f64>,
    /// The same of all streams together.
    pub all_tok_s: Option<f64>,
    /// Streams that run at once.
    pub streams: u32,
    /// Seconds to the first token of a usual prompt, alone (of a text: until it is done).
    pub first_s: f64,
    /// Usual prompt, tokens.
    pub prompt: u32,
    /// Tokens that a stream has behind it as it decodes.
    pub depth: u32,
    /// What bounds a step of the streams: `reads` or `operations`.
    pub bound: &'static str,
    /// Where the shares of the ceilings are from.
    pub source: String,
}

/// The speed of that many streams with usual prompts and answers within `context`.
pub fn speed(pace: &Pace<'_>, usual: (u32, u32), context: u32, streams: u32) -> Speed {
    let prompt = usual.0.min(context.saturating_sub(1)).max(1);
    let depth = prompt.saturating_add(usual.1 / 2).min(context.saturating_sub(1)).max(1);
    let first_s = pace.prompt(prompt);
    let (step_s, by_reads) =
        pace.step(Scene { sequences: streams.max(1), tokens: 1, context: depth });
    let decodes = pace.model.vocab > 0;
    Speed {
        prompt_tok_s: f64::from(prompt) / first_s,
        decode_tok_s: decodes.then_some(1.0 / step_s),
        all_tok_s: decodes.then_some(f64::from(streams.max(1)) / step_s),
        streams,
        first_s,
        prompt,
        depth,
        bound: if by_reads { "reads" } else { "operations" },
        source: pace.factor.source.clone(),
    }
}

/// Shares of the ceilings from steps that were timed: prompts, one stream at a short and at a long context, several
/// streams. What was not timed stays usual.
pub fn timed(machine: &Machine, model: &Model, kv: &Kv, times: &[(Scene, f64)]) -> Factor {
    let plain = Model { timed: None, ..model.clone() };
    let mut factor = plain.factor(machine.instructions);
    let ceilings = machine.ceilings();
    let rate = ceilings.ops[model.arithmetic as usize];
    let shallow = |scene: &Scene| scene.tokens == 1 && scene.context < 1024;
    for (scene, seconds) in times.iter().filter(|(s, _)| s.tokens > 1) {
        factor.prompt = work(model, kv, *scene).ops / (rate * seconds);
    }
    for (scene, seconds) in times.iter().filter(|(s, _)| s.sequences == 1 && shallow(s)) {
        let Work { weights, cache, .. } = work(model, kv, *scene);
        factor.reads = (weights + cache) / (ceilings.read * seconds);
        factor.cache = factor.reads;
        // One stream is bound by its reads.
        factor.batch = factor.batch.max(work(model, kv, *scene).ops / (rate * seconds));
    }
    for (scene, seconds) in times.iter().filter(|(s, _)| s.sequences > 1) {
        let reads_s = work(model, kv, *scene).weights / (ceilings.read * factor.reads);
        if *seconds > reads_s {
            factor.batch = work(model, kv, *scene).ops / (rate * seconds);
        }
    }
    for (scene, seconds) in times.iter().filter(|(s, _)| s.tokens == 1 && s.context >= 1024) {
        let Work { weights, cache, .. } = work(model, kv, *scene);
        let rest = seconds - weights / (ceilings.read * factor.reads);
        // (Less than a twentieth of a step is noise.)
        if rest > seconds / 20.0 {
            factor.cache = cache / (ceilings.read * rest);
        }
    }
    factor.source = "timed on this machine now".to_owned();
    factor
}

/// The name of a model's arithmetic, for words about ceilings.
pub fn arithmetic(model: &Model) -> &'static str {
    Arithmetic::name(model.arithmetic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timed_steps_are_predicted() {
        let machine = r#"{"name": "a", "cores": 2, "instructions": "avx2", "memory": "16G"}"#;
        let machine: Machine = serde_json::from_str(machine).unwrap();
        for model in super::super::known().iter().filter(|m| m.vocab > 0) {
            let kv = &model.kv[0];
            let scene = |sequences, tokens, context| Scene { sequences, tokens, context };
            let scenes = [scene(1, 512, 0), scene(1, 1, 127), scene(8, 1, 127), scene(1, 1, 8000)];
            // A machine a third as fast as the usual shares say, and slower still at long contexts.
            let usual = Pace::new(&machine, model, kv);
            let time = |s: Scene| 3.0 * usual.step(s).0 * if s.context > 1024 { 1.2 } else { 1.0 };
            let times: Vec<(Scene, f64)> = scenes.iter().map(|&s| (s, time(s))).collect();
            let timed = Some(timed(&machine, model, kv, &times));
            let model = Model { timed, ..model.clone() };
            let pace = Pace::new(&machine, &model, kv);
            for (scene, seconds) in times {
                let found = pace.step(scene).0;
                let ratio = found / seconds;
                assert!((0.9..1.12).contains(&ratio), "{} {scene:?}: {ratio}", model.name);
            }
        }
    }
}
