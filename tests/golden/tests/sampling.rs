//! Drawing tokens against transformers' own processors: 20 000 draws of each of some hundred
//! settings have the recorded probabilities (sampling.py), by a chi-square test that a right sampler
//! fails once in a million such lists.

use serde::Deserialize;
use tokenmill_golden_tests::Sample;
use tokenmill_ir::sampling::{
    Chain, Dry, Mirostat, Order, Rules, SampleRow, SampleScratch, Stage, sample, splitmix,
};
use tokenmill_ir::{SamplingParams, TokenId};

const DRAWS: u32 = 20_000;
/// Of a chain, where all is asked; a fifth of them else.
const CHAIN_DRAWS: u32 = 100_000;
/// Of the row whose vocabulary has thousands of tokens.
const LONG_DRAWS: u32 = 4_000;
/// Normal quantile of 3e-9, one of 330 parts of 1e-6.
const QUANTILE: f64 = 5.8;
/// Cells with fewer expected draws are counted together.
const LEAST: f64 = 8.0;

#[derive(Deserialize)]
struct Recorded {
    history: Vec<TokenId>,
    prompt: usize,
    /// The text before, where rules read it.
    runs: Vec<TokenId>,
    /// A token that ends answers.
    end: TokenId,
    rows: std::collections::BTreeMap<String, Logits>,
    settings: Vec<Setting>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Logits {
    /// None is −∞.
    Given(Vec<Option<f32>>),
    Hashed {
        seed: u64,
        count: u64,
        spread: f64,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Setting {
    row: String,
    temperature: Option<f32>,
    top_k: Option<u32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition: Option<f32>,
    presence: Option<f32>,
    frequency: Option<f32>,
    #[serde(default)]
    bias: Vec<(TokenId, f32)>,
    allowed: Option<Vec<TokenId>>,
    order: Option<Vec<String>>,
    top_n_sigma: Option<f32>,
    typical_p: Option<f32>,
    /// Probability, threshold.
    xtc: Option<(f32, f32)>,
    /// Range, exponent.
    dynatemp: Option<(f32, f32)>,
    /// Bits.
    mirostat: Option<f32>,
    /// Multiplier, base, allowed length, last n (0: all), breakers.
    dry: Option<(f32, f32, u32, u32, Vec<TokenId>)>,
    #[serde(default)]
    bad_words: Vec<Vec<TokenId>>,
    #[serde(default)]
    min_tokens: u32,
    /// Probabilities of tokens, or of all tokens of equal remainder.
    cells: Vec<f64>,
    /// Which tokens can be drawn, a bit each; else those whose cell is not 0.
    drawn: Option<String>,
}

impl Logits {
    fn values(&self) -> Vec<f32> {
        match self {
            Logits::Given(values) => {
                values.iter().map(|x| x.unwrap_or(f32::NEG_INFINITY)).collect()
            }
            Logits::Hashed { seed, count, spread } => (0..*count)
                .map(|i| {
                    let x = (splitmix(seed.wrapping_add(i)) >> 44) as f64 / f64::from(1 << 20);
                    (((x - 0.5) * spread * 256.0).round_ties_even() / 256.0) as f32
                })
                .collect(),
        }
    }
}

impl Setting {
    fn params(&self, seed: u64) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature.unwrap_or(1.0),
            top_k: self.top_k.unwrap_or(0),
            top_p: self.top_p.unwrap_or(1.0),
            min_p: self.min_p.unwrap_or(0.0),
            repetition_penalty: self.repetition.unwrap_or(1.0),
            presence_penalty: self.presence.unwrap_or(0.0),
            frequency_penalty: self.frequency.unwrap_or(0.0),
            chain: self.chain(),
            seed,
            ..SamplingParams::default()
        }
    }

    fn chain(&self) -> Option<Chain> {
        let stage = |name: &String| {
            Stage::NAMES.iter().find(|known| known.0 == name).expect("a known sampler").1
        };
        let stages: Vec<Stage> = self.order.as_ref()?.iter().map(stage).collect();
        let off = Chain::default();
        let (xtc_probability, xtc_threshold) = self.xtc.unwrap_or((0.0, off.xtc_threshold));
        let (dynatemp_range, dynatemp_exponent) = self.dynatemp.unwrap_or((0.0, 1.0));
        Some(Chain {
            order: Order::new(&stages).expect("each once"),
            top_n_sigma: self.top_n_sigma.unwrap_or(0.0),
            typical_p: self.typical_p.unwrap_or(1.0),
            xtc_probability,
            xtc_threshold,
            dynatemp_range,
            dynatemp_exponent,
            mirostat: self.mirostat.map(|mu| Mirostat { mu, ..Mirostat::new(1.0, 0.1) }),
        })
    }

    /// What rules add, of the text with runs.
    fn rules(&self, recorded: &Recorded) -> Vec<(TokenId, f32)> {
        let dry = self.dry.clone().map(|(multiplier, base, allowed_length, last_n, breakers)| {
            let last_n = if last_n == 0 { u32::MAX } else { last_n };
            Dry { multiplier, base, allowed_length, last_n, breakers }
        });
        let (bad_words, ends) = (self.bad_words.clone(), vec![recorded.end]);
        let rules = Rules { dry, bad_words, min_tokens: self.min_tokens, ends };
        let mut added = Vec::new();
        rules.add(&recorded.runs, recorded.prompt, &mut added);
        added
    }

    fn can_draw(&self, token: TokenId) -> bool {
        let Some(bits) = &self.drawn else { return self.cells[token as usize] > 0.0 };
        let digit = bits.bytes().rev().nth(token as usize / 4).unwrap_or(b'0');
        let digit = (digit as char).to_digit(16).expect("a hexadecimal digit");
        digit >> (token % 4) & 1 == 1
    }

    /// Draws by cell; the first token that has no probability, if one was drawn.
    fn draw(&self, recorded: &Recorded, logits: &[f32], seed: u64) -> (Vec<f64>, Option<TokenId>) {
        let mut mask = Vec::new();
        if let Some(allowed) = &self.allowed {
            mask.resize(logits.len().div_ceil(32), 0u32);
            allowed.iter().for_each(|t| mask[*t as usize / 32] |= 1 << (t % 32));
        }
        let mut scratch = SampleScratch::new(logits.len());
        let mut counts = vec![0.0; self.cells.len()];
        let mut buffer = logits.to_vec();
        let rules = self.rules(recorded);
        let draws = match (&self.drawn, &self.order) {
            (Some(_), _) => LONG_DRAWS,
            (None, Some(_)) if Sample::from_env().is_whole() => CHAIN_DRAWS,
            (None, Some(_)) => CHAIN_DRAWS / 5,
            (None, None) => DRAWS,
        };
        for index in 0..draws {
            let params = SamplingParams { index, ..self.params(seed) };
            let row = SampleRow {
                params: &params,
                history: &recorded.history,
                prompt: recorded.prompt,
                bias: &self.bias,
                rules: &rules,
                mask: &mask,
            };
            buffer.copy_from_slice(logits);
            let found = sample(&mut buffer, &row, &mut scratch, &mut Vec::new());
            assert!(found.valid, "{self:?}");
            if !self.can_draw(found.token) {
                return (counts, Some(found.token));
            }
            counts[found.token as usize % self.cells.len()] += 1.0;
        }
        (counts, None)
    }
}

/// Pearson's sum and its degrees of freedom, small cells together.
fn chi_square(counts: &[f64], cells: &[f64]) -> (f64, f64) {
    let draws: f64 = counts.iter().sum();
    let (mut sum, mut free) = (0.0, -1.0);
    let mut add = |count: f64, expected: f64| {
        sum += (count - expected).powi(2) / expected;
        free += 1.0;
    };
    let (mut few, mut of_few) = (0.0, 0.0);
    for (&count, p) in counts.iter().zip(cells) {
        match p * draws >= LEAST {
            true => add(count, p * draws),
            false => (few, of_few) = (few + count, of_few + p * draws),
        }
    }
    // (below that, a single count weighs too much)
    if of_few >= 1.0 {
        add(few, of_few);
    }
    (sum, free)
}

/// What the sum stays below: Wilson and Hilferty's approximation, which is on the safe side for few
/// degrees of freedom.
fn bound(free: f64) -> f64 {
    let k = 2.0 / (9.0 * free);
    free * (1.0 - k + QUANTILE * k.sqrt()).powi(3)
}

#[test]
fn tokens_are_drawn_with_the_probabilities_of_transformers() {
    let recorded: Recorded =
        serde_json::from_str(include_str!("../sampling.json")).expect("sampling.json");
    assert!(recorded.settings.len() >= 300, "{} settings", recorded.settings.len());
    let check = |(seed, setting): (u64, &Setting)| {
        let logits = recorded.rows[&setting.row].values();
        let (counts, stray) = setting.draw(&recorded, &logits, seed);
        if let Some(token) = stray {
            return Some(format!("token {token} was drawn, which has no probability: {setting:?}"));
        }
        let (sum, free) = chi_square(&counts, &setting.cells);
        let limit = bound(free);
        (free > 0.0 && sum > limit)
            .then(|| format!("chi-square {sum:.0} above {limit:.0}: {counts:?} {setting:?}"))
    };
    let check = &check;
    let half = |first: usize| {
        let all = (1u64..).zip(&recorded.settings);
        move || all.skip(first).step_by(2).filter_map(check).collect::<Vec<String>>()
    };
    let wrong = std::thread::scope(|scope| {
        let halves = [0, 1].map(|first| scope.spawn(half(first)));
        halves.map(|half| half.join().expect("no panic")).concat()
    });
    let shown = wrong.iter().take(5).map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} settings are drawn wrongly, first:\n{shown}", wrong.len());
}
