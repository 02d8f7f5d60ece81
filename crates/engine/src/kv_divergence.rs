//! What 4-bit keys and values cost this model: the KL divergence of a short built-in text, beside
//! the same weights with bf16 keys and values; and which wider format would cost less.

use tokenmill_backend::{DeviceError, Executable};
use tokenmill_ir::math::log_sum_exp;
use tokenmill_ir::{CacheKind, KvFormat, Limits, OutputKind, Program, TokenId};
use tokenmill_text::Special;

use crate::direct::{Direct, Feed};
use crate::load::LoadedModel;

/// Mean KL divergence above which a cache format is not used unasked: about what 4-bit weights cost
/// small models, so that the cache is no longer the lesser error.
pub const KL_LIMIT: f64 = 0.05;

/// Tokens of the text that are looked at, at most.
const PROBE_TOKENS: usize = 160;
/// Tokens of a step: each has a row of logits.
const STEP: usize = 32;

/// Plain sentences with names, numbers, code and a repetition, so that old keys matter.
const PROBE: &str = "The harbour master of Lindholm kept three ledgers. In the first he wrote the \
    names of ships: Aurora, Bellwether, Constance. In the second he wrote what they carried: 412 \
    barrels of tar, 90 crates of glass, 17 horses. The third he never showed to anyone.\n\
    fn total(items: &[u32]) -> u32 { items.iter().sum() }\n\
    When the Constance came back in March, the clerk asked what she had carried. The harbour \
    master opened the second ledger and read: 412 barrels of tar, 90 crates of glass, 17 horses. \
    Then he closed it, and looked for a long time at the third.";

/// What a cache format costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// Mean KL divergence of the predictions from those with bf16 keys and values, nats a token.
    pub kl: f64,
    /// Where that is too much: the narrowest wider format that is not, and its divergence.
    pub instead: Option<(KvFormat, f64)>,
}

impl Cost {
    /// Whether it is more than [`KL_LIMIT`], or no number.
    pub fn is_too_much(&self) -> bool {
        !within(self.kl)
    }
}

/// Whether a divergence is within [`KL_LIMIT`]; one that is no number is not.
fn within(kl: f64) -> bool {
    kl <= KL_LIMIT
}

/// What the model's cache format costs; `None` where there is nothing to compare (a wider format, no
/// tokenizer, no logits).
///
/// # Errors
/// What the device says.
pub fn cache_cost(model: &LoadedModel) -> Result<Option<Cost>, DeviceError> {
    let keeps = |format| model.program.caches.iter().any(|c| c.format == format);
    let wider: &[KvFormat] = match () {
        () if keeps(KvFormat::Int4) => &[KvFormat::K8V4, KvFormat::Int8],
        () if keeps(KvFormat::K8V4) => &[KvFormat::Int8],
        () => return Ok(None),
    };
    let Some(vocabulary) = model.vocabulary.as_ref() else { return Ok(None) };
    if model.program.vocab == 0 || model.program.whole_sequences {
        return Ok(None);
    }
    let encoded = vocabulary.tokenizer.encode_prompt(PROBE, Special::Plain);
    let Ok(mut ids) = encoded else { return Ok(None) };
    ids.truncate(PROBE_TOKENS.min(model.limits.context as usize));
    let program = model.program.clone();
    let expected = rows(model, &with_format(&program, KvFormat::Bf16), &ids)?;
    let divergence_of = |program: &Program| -> Result<f64, DeviceError> {
        let found = rows(model, program, &ids)?;
        let vocab = program.vocab as usize;
        let pairs = expected.chunks_exact(vocab).zip(found.chunks_exact(vocab));
        let sum: f64 = pairs.map(|(p, q)| divergence(p, q)).sum();
        Ok(sum / ids.len().max(1) as f64)
    };
    let mut cost = Cost { kl: divergence_of(&program)?, instead: None };
    if cost.is_too_much() {
        for &format in wider {
            let kl = divergence_of(&with_format(&program, format))?;
            if within(kl) {
                cost.instead = Some((format, kl));
                break;
            }
        }
    }
    Ok(Some(cost))
}

/// The program with its caches in another format.
fn with_format(program: &Program, format: KvFormat) -> Program {
    let mut other = program.clone();
    for cache in &mut other.caches {
        let latents = matches!(cache.kind, CacheKind::Latent { .. });
        cache.format = if latents { format.of_latents() } else { format };
    }
    other
}

/// Logits after every token. [tokens, vocab]
fn rows(model: &LoadedModel, p: &Program, ids: &[TokenId]) -> Result<Vec<f32>, DeviceError> {
    let block_tokens = model.device.caps().block_tokens;
    let blocks = (ids.len() as u32).div_ceil(block_tokens) + 9; // states take some slots
    let limits = Limits {
        step_tokens: STEP as u32,
        sequences: 1,
        outputs: STEP as u32,
        context: blocks * block_tokens,
        group_blocks: vec![blocks; model.limits.group_blocks.len()],
        top_logprobs: 0,
    };
    let executable: Box<dyn Executable> = model.device.compile(p, &model.weights, &limits)?;
    let mut direct = Direct::new(executable, p, &limits, block_tokens, 1);
    let mut all = Vec::with_capacity(ids.len() * p.vocab as usize);
    for tokens in ids.chunks(STEP) {
        let outputs: Vec<_> = (0..tokens.len() as u32).map(|i| (i, OutputKind::Logits)).collect();
        let out = direct.step(&[Feed { sequence: 0, tokens, outputs: &outputs }])?;
        all.extend_from_slice(&out.rows);
    }
    Ok(all)
}

/// KL divergence of softmax(`q`) from softmax(`p`), nats; infinite where either is no number.
fn divergence(p: &[f32], q: &[f32]) -> f64 {
    let (Some(of_p), Some(of_q)) = (log_sum_exp(p), log_sum_exp(q)) else { return f64::INFINITY };
    let log = |x: f32, (max, rest): (f32, f64)| f64::from(x) - f64::from(max) - rest;
    let term = |(&p, &q): (&f32, &f32)| {
        let (p, q) = (log(p, of_p), log(q, of_q));
        p.exp() * (p - q)
    };
    p.iter().zip(q).map(term).sum()
}

#[cfg(test)]
mod tests {
    use super::{Cost, KL_LIMIT, divergence};

    #[test]
    fn divergence_is_that_of_two_coins() {
        let coin = |p: f64| [(p.ln() + 3.0) as f32, ((1.0 - p).ln() + 3.0) as f32];
        let (p, q) = (0.3_f64, 0.6_f64);
        let exact = p * (p / q).ln() + (1.0 - p) * ((1.0 - p) / (1.0 - q)).ln();
        assert!((divergence(&coin(p), &coin(q)) - exact).abs() < 1e-6);
        assert_eq!(divergence(&coin(p), &coin(p)), 0.0);
    }

    #[test]
    fn what_is_no_number_is_too_much() {
        let cost = |kl| Cost { kl, instead: None };
        let costs = [KL_LIMIT, 0.0, KL_LIMIT * 1.01, f64::NAN, f64::INFINITY].map(cost);
        assert_eq!(costs.map(|c| c.is_too_much()), [false, false, true, true, true]);
    }
}
