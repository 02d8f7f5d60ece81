//! Samplers beyond temperature, top-k, top-p and min-p, and any order of them all, over a list of
//! candidates.
//!
//! Sources: typical: Meister and others 2022, "Locally Typical Sampling" (as transformers has it);
//! top-nσ: Tang and others 2024; XTC: its author's formula (text-generation-webui, pull request
//! 6335); dynamic temperature and Mirostat 2 (Basu and others 2021, algorithm 2): as llama.cpp, whose
//! parameters they are, has them.

use crate::TokenId;
use crate::math::{exp, ln};

use super::{
    Candidates, SamplingParams, best_first, best_first_by, better, pick, splitmix, uniform,
};

/// A step of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Logits at most so many standard deviations below the best.
    TopNSigma,
    /// Logits divided by the temperature, which may depend on their entropy.
    Temperature,
    /// The k best.
    TopK,
    /// The smallest set of the best with so much probability.
    TopP,
    /// Those with so much of the best one's probability.
    MinP,
    /// The smallest set of those nearest to the entropy with so much probability.
    TypicalP,
    /// Now and then, all likely ones but the least likely of them are left out.
    Xtc,
}

impl Stage {
    /// All, by the names llama.cpp's server has.
    pub const NAMES: [(&'static str, Stage); 7] = [
        ("top_n_sigma", Stage::TopNSigma),
        ("temperature", Stage::Temperature),
        ("top_k", Stage::TopK),
        ("top_p", Stage::TopP),
        ("min_p", Stage::MinP),
        ("typ_p", Stage::TypicalP),
        ("xtc", Stage::Xtc),
    ];
}

/// Stages in their order, each once at most.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Order {
    stages: [Stage; Stage::NAMES.len()],
    len: u8,
}

impl Order {
    /// Ours, which is transformers': the temperature first.
    pub const USUAL: Self = Self {
        stages: [
            Stage::TopNSigma,
            Stage::Temperature,
            Stage::TopK,
            Stage::TopP,
            Stage::MinP,
            Stage::TypicalP,
            Stage::Xtc,
        ],
        len: 7,
    };

    /// llama.cpp's: the temperature last.
    pub const TEMPERATURE_LAST: Self = Self {
        stages: [
            Stage::TopNSigma,
            Stage::TopK,
            Stage::TypicalP,
            Stage::TopP,
            Stage::MinP,
            Stage::Xtc,
            Stage::Temperature,
        ],
        len: 7,
    };

    /// These; `None` where one comes twice.
    pub fn new(list: &[Stage]) -> Option<Self> {
        let mut order = Self { stages: [Stage::TopK; Stage::NAMES.len()], len: 0 };
        for &stage in list {
            if order.stages().contains(&stage) {
                return None;
            }
            order.stages[usize::from(order.len)] = stage;
            order.len += 1;
        }
        Some(order)
    }

    /// In order.
    pub fn stages(&self) -> &[Stage] {
        &self.stages[..usize::from(self.len)]
    }
}

impl std::fmt::Debug for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.stages().fmt(f)
    }
}

impl std::fmt::Display for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = |stage| Stage::NAMES.iter().find(|n| n.1 == stage).map_or("", |n| n.0);
        let names: Vec<&str> = self.stages().iter().map(|stage| name(*stage)).collect();
        f.write_str(&names.join(";"))
    }
}

/// Samplers in an order of their own. `top_k`, `top_p`, `min_p` and `temperature` are those of
/// [`SamplingParams`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chain {
    /// Which, in which order.
    pub order: Order,
    /// Standard deviations below the best logit; 0: off.
    pub top_n_sigma: f32,
    /// Probability of the typical set; 1: off.
    pub typical_p: f32,
    /// How often likely tokens are left out; 0: never.
    pub xtc_probability: f32,
    /// From which probability on a token is likely; over 0.5: off.
    pub xtc_threshold: f32,
    /// The temperature goes up and down by so much with the entropy; 0: off.
    pub dynatemp_range: f32,
    /// Power of the entropy's part of its greatest value.
    pub dynatemp_exponent: f32,
    /// Takes the place of every stage but the temperature.
    pub mirostat: Option<Mirostat>,
}

/// Keeps the surprise of the text near a target (version 2).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mirostat {
    /// The target, bits a token.
    pub tau: f32,
    /// Learning rate.
    pub eta: f32,
    /// Tokens of more surprise do not take part, bits: 2 τ at first, then [`Mirostat::told`].
    pub mu: f32,
}

impl Mirostat {
    /// At the start of an answer.
    pub fn new(tau: f32, eta: f32) -> Self {
        Self { tau, eta, mu: 2.0 * tau }
    }

    /// After a token of that surprise, bits.
    pub fn told(self, surprise: f32) -> Self {
        Self { mu: self.mu - self.eta * (surprise - self.tau), ..self }
    }
}

impl Default for Chain {
    /// Everything off, in the usual order.
    fn default() -> Self {
        Self {
            order: Order::USUAL,
            top_n_sigma: 0.0,
            typical_p: 1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            mirostat: None,
        }
    }
}

/// Of the seed, for the draws of XTC: other numbers than those that choose the token.
const XTC: u64 = 0x7874_635f_6472_6177;

/// Draws from finite logits, none of them NaN: the token, and its surprise (bits) among those it
/// was drawn from.
pub(super) fn draw(
    logits: &[f32],
    params: &SamplingParams,
    chain: &Chain,
    candidates: &mut Candidates,
) -> Option<(TokenId, f32)> {
    candidates.clear();
    let all = logits.iter().zip(0u32..).map(|(&x, i)| (x, i));
    candidates.extend(all.filter(|(x, _)| x.is_finite()));
    match chain.mirostat {
        Some(mirostat) => {
            temper(candidates, params.temperature, chain);
            surprising(candidates, mirostat.mu);
        }
        None => {
            for &stage in chain.order.stages() {
                apply(stage, params, chain, candidates);
            }
        }
    }
    let best = best(candidates)?;
    let total: f64 = candidates.iter().map(|&(x, _)| f64::from(exp(x - best))).sum();
    let u = uniform(params.seed, params.choice, params.index);
    let token = pick(candidates.iter().map(|&(x, i)| (exp(x - best), i)), u * total)?;
    let (x, _) = candidates.iter().find(|c| c.1 == token)?;
    Some((token, bits(total, best - x) as f32))
}

/// −log₂ of a probability e^(−below) / total.
fn bits(total: f64, below: f32) -> f64 {
    (ln(total) + f64::from(below)) / std::f64::consts::LN_2
}

fn apply(stage: Stage, params: &SamplingParams, chain: &Chain, candidates: &mut Candidates) {
    match stage {
        Stage::TopNSigma if chain.top_n_sigma > 0.0 => sigma(candidates, chain.top_n_sigma),
        Stage::Temperature => temper(candidates, params.temperature, chain),
        Stage::TopK if params.top_k > 0 && (params.top_k as usize) < candidates.len() => {
            best_first(candidates, params.top_k as usize);
            candidates.truncate(params.top_k as usize);
        }
        Stage::TopP if params.top_p < 1.0 => smallest_set(candidates, params.top_p, better),
        Stage::MinP if params.min_p > 0.0 => {
            let Some(best) = best(candidates) else { return };
            candidates.retain(|&(x, _)| exp(x - best) >= params.min_p);
        }
        Stage::TypicalP if chain.typical_p < 1.0 => typical(candidates, chain.typical_p),
        Stage::Xtc if chain.xtc_probability > 0.0 && chain.xtc_threshold <= 0.5 => {
            let seed = splitmix(params.seed ^ XTC);
            if uniform(seed, params.choice, params.index) < f64::from(chain.xtc_probability) {
                leave_out_likely(candidates, chain.xtc_threshold);
            }
        }
        _ => {}
    }
}

fn best(candidates: &Candidates) -> Option<f32> {
    candidates.iter().map(|c| c.0).reduce(f32::max)
}

/// Σ e^(x − best), which is at least 1.
fn weight(candidates: &Candidates, best: f32) -> f64 {
    candidates.iter().map(|&(x, _)| f64::from(exp(x - best))).sum()
}

/// Entropy, nats, of candidates that weigh `total`.
fn entropy(candidates: &Candidates, best: f32, total: f64) -> f64 {
    let term = |&(x, _): &(f32, TokenId)| f64::from(exp(x - best)) * f64::from(best - x);
    ln(total) + candidates.iter().map(term).sum::<f64>() / total
}

fn sigma(candidates: &mut Candidates, n: f32) {
    let Some(best) = best(candidates) else { return };
    let count = candidates.len() as f64;
    let mean = candidates.iter().map(|c| f64::from(c.0)).sum::<f64>() / count;
    let spread = candidates.iter().map(|c| (f64::from(c.0) - mean).powi(2)).sum::<f64>() / count;
    let least = f64::from(best) - f64::from(n) * spread.sqrt();
    candidates.retain(|&(x, _)| f64::from(x) >= least);
}

fn temper(candidates: &mut Candidates, temperature: f32, chain: &Chain) {
    let Some(best) = best(candidates) else { return };
    let mut temperature = temperature;
    if chain.dynatemp_range > 0.0 && candidates.len() > 1 {
        let (low, high) =
            ((temperature - chain.dynatemp_range).max(0.0), temperature + chain.dynatemp_range);
        let greatest = ln(candidates.len() as f64);
        let part = entropy(candidates, best, weight(candidates, best)) / greatest;
        let power = match part > 0.0 {
            true => exp((f64::from(chain.dynatemp_exponent) * ln(part)) as f32),
            false => 0.0,
        };
        temperature = low + (high - low) * power;
    }
    if temperature > 0.0 {
        candidates.iter_mut().for_each(|c| c.0 = (c.0 - best) / temperature);
    } else {
        candidates.sort_unstable_by(better);
        candidates.truncate(1);
    }
}

/// The first by `order` that weigh `part` of all together.
fn smallest_set(
    candidates: &mut Candidates,
    part: f32,
    order: impl Fn(&(f32, TokenId), &(f32, TokenId)) -> std::cmp::Ordering,
) {
    let Some(best) = best(candidates) else { return };
    let wanted = f64::from(part) * weight(candidates, best);
    let (mut mass, mut count, mut sorted) = (0.0f64, 0, 0);
    while count < candidates.len() {
        if count == sorted {
            sorted = (sorted * 8).max(256).min(candidates.len());
            best_first_by(&mut candidates[count..], sorted - count, &order);
        }
        mass += f64::from(exp(candidates[count].0 - best));
        count += 1;
        if mass >= wanted {
            break;
        }
    }
    candidates.truncate(count);
}

/// −ln p is nearest to the entropy where the logit is nearest to one number.
fn typical(candidates: &mut Candidates, part: f32) {
    let Some(best) = best(candidates) else { return };
    let total = weight(candidates, best);
    let centre = f64::from(best) + ln(total) - entropy(candidates, best, total);
    let far = |x: f32| (f64::from(x) - centre).abs();
    smallest_set(candidates, part, |a, b| far(a.0).total_cmp(&far(b.0)).then(a.1.cmp(&b.1)));
}

fn leave_out_likely(candidates: &mut Candidates, threshold: f32) {
    let Some(best) = best(candidates) else { return };
    let least = f64::from(threshold) * weight(candidates, best);
    let is_likely = |c: &(f32, TokenId)| f64::from(exp(c.0 - best)) >= least;
    let Some(kept) = candidates.iter().filter(|c| is_likely(c)).max_by(|a, b| better(a, b)) else {
        return;
    };
    let kept = kept.1;
    candidates.retain(|c| c.1 == kept || !is_likely(c));
}

/// Those of at most `mu` bits of surprise, and the best in any case.
fn surprising(candidates: &mut Candidates, mu: f32) {
    let Some(best) = best(candidates) else { return };
    let total = weight(candidates, best);
    let first = candidates.iter().copied().min_by(better);
    candidates.retain(|c| bits(total, best - c.0) <= f64::from(mu) || Some(*c) == first);
}
