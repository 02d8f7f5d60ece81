//! The definition of sampling: a pure function of logits, parameters, history and a counter, so that
//! a token does not depend on batching, preemption, threads or device.
//!
//! Order: logit bias, repetition penalty, presence and frequency penalties, what the text before
//! forbids ([`Rules`]), allowed-token mask, then either the greatest logit (temperature 0; ties to
//! the lower id) or temperature, top-k, top-p, min-p (or a [`Chain`] of more) and one draw. Reported
//! log-probabilities are those of the model's own logits, before any of this.

mod chain;
mod rules;

pub use chain::{Chain, Mirostat, Order, Stage};
pub use rules::{Dry, Rules};

use crate::TokenId;
use crate::math::{VOCAB_CHUNK, exp, log_sum_exp, sum_by};

/// How to choose a token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingParams {
    /// 0: greedy. Otherwise logits are divided by it.
    pub temperature: f32,
    /// Only the `top_k` best take part; 0: all.
    pub top_k: u32,
    /// Only the smallest set of best tokens with at least this probability; 1: all.
    pub top_p: f32,
    /// Only tokens with at least `min_p` times the best probability; 0: all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen before; 1: off.
    pub repetition_penalty: f32,
    /// Subtracted once from tokens generated before.
    pub presence_penalty: f32,
    /// Subtracted for each time a token was generated before.
    pub frequency_penalty: f32,
    /// How many of the last tokens these three look at; `u32::MAX`: all. (A row's history has no
    /// others.)
    pub penalty_last_n: u32,
    /// To presence and frequency penalties the prompt's tokens are generated ones too.
    pub penalises_prompt: bool,
    /// Samplers beyond these, and their order; `None`: the usual order.
    pub chain: Option<Chain>,
    /// Seed of the counter generator.
    pub seed: u64,
    /// Which of the request's parallel answers this is.
    pub choice: u32,
    /// Index of the token being sampled within the answer.
    pub index: u32,
    /// Whether log-probabilities are wanted: `Some(n)` with n alternatives.
    pub logprobs: Option<u32>,
}

impl SamplingParams {
    /// Whether the choice of a token looks at those before it.
    pub fn penalises(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_last_n: u32::MAX,
            penalises_prompt: false,
            chain: None,
            seed: 0,
            choice: 0,
            index: 0,
            logprobs: None,
        }
    }
}

/// What was chosen for a row.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sampled {
    /// The token (for `Score` rows the target).
    pub token: TokenId,
    /// ln p(token) under the model's own logits; 0 when not requested.
    pub logprob: f32,
    /// Slice of [`StepOutput::top`](crate::StepOutput::top): start and length.
    pub top: (u32, u32),
    /// Where a [`Mirostat`] chose it, −log₂ of its probability among the tokens that could come; else 0.
    pub surprise: f32,
    /// False when the row held a NaN or nothing finite: the request fails, nobody else does.
    pub valid: bool,
}

/// Everything besides the logits that decides a token.
#[derive(Debug, Clone, Copy)]
pub struct SampleRow<'a> {
    /// Parameters.
    pub params: &'a SamplingParams,
    /// Prompt and generated tokens.
    pub history: &'a [TokenId],
    /// How many of `history` are the prompt.
    pub prompt: usize,
    /// Added to logits.
    pub bias: &'a [(TokenId, f32)],
    /// Added to logits after the penalties, by [`Rules`].
    pub rules: &'a [(TokenId, f32)],
    /// Allowed tokens, one bit each; empty: all.
    pub mask: &'a [u32],
}

/// Tokens that can be drawn, with their logits.
type Candidates = Vec<(f32, TokenId)>;

/// Reused memory of [`sample`]; sized by the vocabulary once.
#[derive(Debug, Clone, Default)]
pub struct SampleScratch {
    counts: Vec<u32>,
    candidates: Candidates,
    raw: Vec<f32>,
}

impl SampleScratch {
    /// Bytes of one for a vocabulary of that size.
    pub fn bytes(vocab: usize) -> usize {
        vocab * (size_of::<u32>() + size_of::<(f32, TokenId)>() + size_of::<f32>())
    }

    /// Memory for a vocabulary of that size.
    pub fn new(vocab: usize) -> Self {
        Self {
            counts: vec![0; vocab],
            candidates: Vec::with_capacity(vocab),
            raw: Vec::with_capacity(vocab),
        }
    }
}

/// A uniform number in [0, 1), a function of its three arguments only: two rounds of the splitmix64
/// finaliser (Steele, Lea, Flood 2014) over the packed counter.
pub fn uniform(seed: u64, choice: u32, index: u32) -> f64 {
    let counter = (u64::from(choice) << 32) | u64::from(index);
    let bits = splitmix(splitmix(seed) ^ splitmix(counter.wrapping_add(0x5851_f42d_4c95_7f2d)));
    (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// The splitmix64 generator's output function for state `x`.
pub fn splitmix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Chooses a token. `logits` [vocab] are changed in place; `top` receives the alternatives.
pub fn sample(
    logits: &mut [f32],
    row: &SampleRow<'_>,
    scratch: &mut SampleScratch,
    top: &mut Vec<(TokenId, f32)>,
) -> Sampled {
    let params = row.params;
    let start = top.len() as u32;
    // Where one token alone may come, it comes: nothing is asked of its row but log-probabilities.
    if let Some(token) = only(row.mask).filter(|_| params.logprobs.is_none()) {
        let valid = (token as usize) < logits.len();
        return Sampled { token, top: (start, 0), valid, ..Sampled::default() };
    }
    let mut norm = None;
    if let Some(n) = params.logprobs {
        let Some(found) = log_sum_exp(logits) else { return Sampled::default() };
        norm = Some(found);
        push_top(logits, found, n as usize, scratch, top);
        scratch.raw.clear();
        scratch.raw.extend_from_slice(logits);
    }
    adjust(logits, row, &mut scratch.counts);
    let chosen = choose(logits, params, &mut scratch.candidates);
    let Some((token, surprise)) = chosen else { return Sampled::default() };
    let logprob =
        norm.map_or(0.0, |(max, lse)| (f64::from(scratch.raw[token as usize] - max) - lse) as f32);
    Sampled { token, logprob, top: (start, top.len() as u32 - start), surprise, valid: true }
}

/// A token by adjusted logits, and its surprise where that is asked.
fn choose(
    logits: &mut [f32],
    params: &SamplingParams,
    candidates: &mut Candidates,
) -> Option<(TokenId, f32)> {
    let best = argmax(logits)?;
    match &params.chain {
        _ if params.temperature == 0.0 => Some((best, 0.0)),
        Some(chain) => {
            let (token, surprise) = chain::draw(logits, params, chain, candidates)?;
            Some((token, if chain.mirostat.is_some() { surprise } else { 0.0 }))
        }
        None => Some((draw(logits, best, params, candidates)?, 0.0)),
    }
}

/// The one token of a mask, where it has no other.
fn only(mask: &[u32]) -> Option<TokenId> {
    let at = mask.iter().position(|word| *word != 0)?;
    let others = mask[at + 1..].iter().any(|word| *word != 0);
    let one = mask[at].is_power_of_two() && !others;
    one.then(|| 32 * at as TokenId + mask[at].trailing_zeros())
}

/// Log-probability of `target` and the `n` best, without sampling.
pub fn score(
    logits: &[f32],
    target: TokenId,
    n: usize,
    scratch: &mut SampleScratch,
    top: &mut Vec<(TokenId, f32)>,
) -> Sampled {
    let start = top.len() as u32;
    let (Some(norm), Some(&x)) = (log_sum_exp(logits), logits.get(target as usize)) else {
        return Sampled::default();
    };
    push_top(logits, norm, n, scratch, top);
    Sampled {
        token: target,
        logprob: (f64::from(x - norm.0) - norm.1) as f32,
        top: (start, top.len() as u32 - start),
        surprise: 0.0,
        valid: true,
    }
}

/// The greatest logit's index, ties to the lower; `None` when one is NaN or none is finite.
pub fn argmax(logits: &[f32]) -> Option<TokenId> {
    let mut best = f32::NEG_INFINITY;
    let mut at = None;
    for (i, &x) in logits.iter().enumerate() {
        if x.is_nan() {
            return None;
        }
        if x > best {
            best = x;
            at = Some(i as TokenId);
        }
    }
    if best == f32::INFINITY { None } else { at }
}

/// Descending logit, ascending id: a total order over finite logits.
fn better(a: &(f32, TokenId), b: &(f32, TokenId)) -> std::cmp::Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// Moves the `n` best candidates to the front, sorted.
fn best_first(candidates: &mut [(f32, TokenId)], n: usize) {
    best_first_by(candidates, n, &better);
}

/// Moves the `n` first by an order to the front, sorted.
fn best_first_by(
    candidates: &mut [(f32, TokenId)],
    n: usize,
    order: &impl Fn(&(f32, TokenId), &(f32, TokenId)) -> std::cmp::Ordering,
) {
    let n = n.min(candidates.len());
    if n == 0 {
        return;
    }
    if n < candidates.len() {
        candidates.select_nth_unstable_by(n - 1, order);
    }
    candidates[..n].sort_unstable_by(order);
}

fn push_top(
    logits: &[f32],
    (max, lse): (f32, f64),
    n: usize,
    scratch: &mut SampleScratch,
    top: &mut Vec<(TokenId, f32)>,
) {
    if n == 0 {
        return;
    }
    let candidates = &mut scratch.candidates;
    candidates.clear();
    candidates.extend(logits.iter().zip(0u32..).map(|(&x, i)| (x, i)));
    best_first(candidates, n);
    let with_logprob = |&(x, i): &(f32, TokenId)| (i, (f64::from(x - max) - lse) as f32);
    top.extend(candidates.iter().take(n).map(with_logprob));
}

fn add(logits: &mut [f32], list: &[(TokenId, f32)]) {
    for &(token, add) in list {
        if let Some(x) = logits.get_mut(token as usize) {
            *x += add;
        }
    }
}

/// Bias, penalties, rules and mask.
fn adjust(logits: &mut [f32], row: &SampleRow<'_>, counts: &mut [u32]) {
    let p = row.params;
    add(logits, row.bias);
    let penalised = p.repetition_penalty != 1.0;
    if p.penalises() {
        // Count generated tokens in the low 31 bits; the top bit marks "seen anywhere".
        const SEEN: u32 = 1 << 31;
        for (i, &token) in row.history.iter().enumerate() {
            if let Some(c) = counts.get_mut(token as usize) {
                *c |= SEEN;
                *c += u32::from(i >= row.prompt);
            }
        }
        for &token in row.history {
            let (Some(c), Some(x)) =
                (counts.get_mut(token as usize), logits.get_mut(token as usize))
            else {
                continue;
            };
            if *c & SEEN == 0 {
                continue; // already handled
            }
            let times = *c & !SEEN;
            *c = 0;
            if penalised {
                *x = if *x > 0.0 { *x / p.repetition_penalty } else { *x * p.repetition_penalty };
            }
            if times > 0 {
                *x -= p.presence_penalty + p.frequency_penalty * times as f32;
            }
        }
    }
    add(logits, row.rules);
    if !row.mask.is_empty() {
        for (i, x) in logits.iter_mut().enumerate() {
            let word = row.mask.get(i / 32).copied().unwrap_or(0);
            if word >> (i % 32) & 1 == 0 {
                *x = f32::NEG_INFINITY;
            }
        }
    }
}

/// Draws a token from adjusted logits, of which the greatest is that of `best`.
fn draw(
    logits: &mut [f32],
    best: TokenId,
    params: &SamplingParams,
    candidates: &mut Candidates,
) -> Option<TokenId> {
    let best = logits[best as usize];
    for x in logits.iter_mut() {
        *x = (*x - best) / params.temperature;
    }
    let u = uniform(params.seed, params.choice, params.index);
    if params.top_k == 0 && params.top_p >= 1.0 {
        draw_by_id(logits, params.min_p, u)
    } else {
        draw_sorted(logits, params, candidates, u)
    }
}

/// Inverse-CDF draw in id order; probabilities below `min_p` of the best are left out.
fn draw_by_id(logits: &mut [f32], min_p: f32, u: f64) -> Option<TokenId> {
    for x in logits.iter_mut() {
        let p = exp(*x);
        *x = if p < min_p { 0.0 } else { p };
    }
    let mut total = 0.0f64;
    for chunk in logits.chunks(VOCAB_CHUNK) {
        total += f64::from(sum_by(chunk, |p| p));
    }
    pick(logits.iter().zip(0u32..).map(|(&p, i)| (p, i)), u * total)
}

/// Draw from the best `top_k` / `top_p` / `min_p` tokens, best first.
fn draw_sorted(
    logits: &[f32],
    params: &SamplingParams,
    candidates: &mut Candidates,
    u: f64,
) -> Option<TokenId> {
    candidates.clear();
    candidates.extend(logits.iter().zip(0u32..).map(|(&x, i)| (x, i)));
    let all = candidates.len();
    let limit = if params.top_k == 0 { all } else { (params.top_k as usize).min(all) };
    // With top-k the probabilities are those within the top k; else of the whole vocabulary.
    let mut total = 0.0f64;
    let mut sorted = if params.top_k == 0 { 256.min(limit) } else { limit };
    if params.top_k == 0 {
        for chunk in logits.chunks(VOCAB_CHUNK) {
            total += f64::from(sum_by(chunk, exp));
        }
    }
    best_first(candidates, sorted);
    if params.top_k != 0 {
        total = candidates[..limit].iter().map(|c| f64::from(exp(c.0))).sum();
    }
    let wanted = f64::from(params.top_p) * total;
    let (mut mass, mut count) = (0.0f64, 0);
    while count < limit {
        if count == sorted {
            sorted = (sorted * 8).min(limit);
            best_first(&mut candidates[count..], sorted - count);
        }
        let p = exp(candidates[count].0);
        if count > 0 && p < params.min_p {
            break;
        }
        mass += f64::from(p);
        count += 1;
        if mass >= wanted {
            break;
        }
    }
    pick(candidates[..count].iter().map(|&(x, i)| (exp(x), i)), u * mass)
}

/// The first item at which the running sum passes `target`; the last one with weight if rounding
/// leaves the sum below it.
fn pick(items: impl Iterator<Item = (f32, TokenId)>, target: f64) -> Option<TokenId> {
    let (mut sum, mut last) = (0.0f64, None);
    for (p, id) in items {
        if p > 0.0 {
            sum += f64::from(p);
            last = Some(id);
            if sum > target {
                break;
            }
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(logits: &[f32], params: SamplingParams, history: &[TokenId], prompt: usize) -> Sampled {
        let mut logits = logits.to_vec();
        let mut scratch = SampleScratch::new(logits.len());
        let row = SampleRow { params: &params, history, prompt, bias: &[], rules: &[], mask: &[] };
        sample(&mut logits, &row, &mut scratch, &mut Vec::new())
    }

    fn histogram(logits: &[f32], params: SamplingParams, draws: u32) -> Vec<f64> {
        let mut counts = vec![0.0; logits.len()];
        for index in 0..draws {
            let s = run(logits, SamplingParams { index, ..params }, &[], 0);
            counts[s.token as usize] += 1.0 / f64::from(draws);
        }
        counts
    }

    #[test]
    fn greedy_takes_the_lower_id_on_ties_and_refuses_nan() {
        let p = SamplingParams::default();
        assert_eq!(run(&[1.0, 3.0, 3.0], p, &[], 0).token, 1);
        assert!(!run(&[1.0, f32::NAN], p, &[], 0).valid);
        assert!(!run(&[f32::INFINITY, 0.0], p, &[], 0).valid);
        assert!(!run(&[f32::NEG_INFINITY; 2], p, &[], 0).valid);
    }

    #[test]
    fn draws_follow_the_distribution_and_its_filters() {
        let logits: Vec<f32> = [0.5f32, 0.3, 0.15, 0.05].iter().map(|p| p.ln()).collect();
        let hot = SamplingParams { temperature: 1.0, seed: 7, ..Default::default() };
        let cases = [
            (hot, [0.5, 0.3, 0.15, 0.05]),
            (SamplingParams { top_k: 2, ..hot }, [0.625, 0.375, 0.0, 0.0]),
            (SamplingParams { top_p: 0.75, ..hot }, [0.625, 0.375, 0.0, 0.0]),
            (SamplingParams { top_p: 0.5, ..hot }, [1.0, 0.0, 0.0, 0.0]),
            (SamplingParams { min_p: 0.25, ..hot }, [0.526, 0.316, 0.158, 0.0]),
        ];
        for (params, expect) in cases {
            let got = histogram(&logits, params, 20_000);
            for (g, e) in got.iter().zip(expect) {
                assert!((g - e).abs() < 0.015, "{params:?}: {got:?}");
            }
        }
    }

    #[test]
    fn top_p_beyond_the_first_sorted_run_is_exact() {
        let logits = vec![0.0f32; 3000];
        let p = SamplingParams { temperature: 1.0, top_p: 0.9, ..Default::default() };
        let seen: std::collections::HashSet<_> = (0..20_000)
            .map(|i| run(&logits, SamplingParams { index: i, ..p }, &[], 0).token)
            .collect();
        assert!(seen.iter().all(|&t| t < 2701), "only the first 90 % in id order on ties");
        assert!(seen.len() > 2500);
    }

    #[test]
    fn penalties_look_at_the_right_tokens() {
        let base = SamplingParams::default();
        let logits = [2.0, 1.9, 1.0];
        // Token 0 occurs in the prompt only: presence and frequency ignore it.
        let p = SamplingParams { presence_penalty: 1.0, ..base };
        assert_eq!(run(&logits, p, &[0], 1).token, 0);
        assert_eq!(run(&logits, p, &[0], 0).token, 1);
        let p = SamplingParams { repetition_penalty: 1.5, ..base };
        assert_eq!(run(&logits, p, &[0], 1).token, 1);
        let p = SamplingParams { frequency_penalty: 0.06, ..base };
        assert_eq!(run(&logits, p, &[0], 0).token, 0);
        assert_eq!(run(&logits, p, &[0, 0], 0).token, 1);
        let p = SamplingParams { repetition_penalty: 1.5, ..base };
        assert_eq!(run(&[-1.0, -1.2], p, &[0], 1).token, 1, "negative logits are multiplied");
    }

    #[test]
    fn masks_biases_and_logprobs() {
        let params = SamplingParams { logprobs: Some(2), ..Default::default() };
        let mut scratch = SampleScratch::new(3);
        let mut top = Vec::new();
        let row = SampleRow {
            params: &params,
            history: &[],
            prompt: 0,
            bias: &[(2, 9.0)],
            rules: &[],
            mask: &[0b110],
        };
        let s = sample(&mut [2.0, 1.0, 0.0], &row, &mut scratch, &mut top);
        assert_eq!((s.token, s.valid), (2, true));
        assert_eq!(top.iter().map(|t| t.0).collect::<Vec<_>>(), [0, 1]);
        let z = 2f64.exp() + 1f64.exp() + 1.0;
        assert!((f64::from(s.logprob) + z.ln()).abs() < 1e-6, "raw logits, not the adjusted");
        let scored = score(&[2.0, 1.0, 0.0], 1, 1, &mut scratch, &mut top);
        assert!((f64::from(scored.logprob) - (1.0 - z.ln())).abs() < 1e-6);
        assert_eq!(scored.top, (2, 1));
    }

    #[test]
    fn the_counter_is_uniform_and_depends_on_every_part() {
        let n = 20_000;
        let mean: f64 = (0..n).map(|i| uniform(1, 0, i)).sum::<f64>() / f64::from(n);
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
        assert_ne!(uniform(1, 0, 0), uniform(2, 0, 0));
        assert_ne!(uniform(1, 0, 0), uniform(1, 1, 0));
        assert_ne!(uniform(1, 0, 1), uniform(1, 1, 0));
    }
}
