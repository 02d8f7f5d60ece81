//! How an answer is sampled: by what the request says, else by what the model's packager says, else
//! as people expect of a small local model. Every command and every dialect asks here.

use tokenmill_ir::sampling::{Chain, Dry, Mirostat, Order, Rules, Stage};
use tokenmill_ir::{SamplingParams, SamplingValues, TokenId};
use tokenmill_text::{Encoder, Special, TokenizerError};

/// Temperature where nobody says one. These three are what other local programs have: at 1 without
/// truncation small models soon write nonsense, at 0 they repeat themselves.
pub const TEMPERATURE: f32 = 0.8;
/// `top_p` where nobody says one.
pub const TOP_P: f32 = 0.95;
/// `min_p` where nobody says one.
pub const MIN_P: f32 = 0.05;
/// Most tokens of an answer where nobody says a number, as far as the context holds them.
pub const ANSWER_TOKENS: u32 = 4096;
/// Texts that end a run of DRY where nobody names any: its author's.
pub const BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// How to sample, with nothing left open.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// How tokens are chosen.
    pub params: SamplingParams,
    /// Texts that end an answer.
    pub stop: Vec<String>,
    /// Most tokens of an answer, as the request has it.
    pub max_tokens: Option<u32>,
    /// Most tokens of an answer where the request says nothing.
    pub default_tokens: u32,
    /// The rest, but for what is said in texts.
    rules: Rules,
    breakers: Vec<String>,
    bad_words: Vec<String>,
}

impl Sampling {
    /// What holds for a request. `fresh_seed` is used where nobody names one.
    pub fn new(asked: SamplingValues, packager: &SamplingValues, fresh_seed: u64) -> Self {
        let max_tokens = asked.max_tokens;
        let said = asked.or(packager.clone());
        let off = SamplingParams::default();
        let chain = chain(&said);
        let tempers = chain
            .is_none_or(|c| c.mirostat.is_some() || c.order.stages().contains(&Stage::Temperature));
        let temperature = if tempers { said.temperature.unwrap_or(TEMPERATURE) } else { 1.0 };
        Self {
            params: SamplingParams {
                temperature,
                top_k: said.top_k.unwrap_or(off.top_k),
                top_p: said.top_p.unwrap_or(TOP_P),
                min_p: said.min_p.unwrap_or(MIN_P),
                repetition_penalty: said.repeat_penalty.unwrap_or(off.repetition_penalty),
                presence_penalty: said.presence_penalty.unwrap_or(off.presence_penalty),
                frequency_penalty: said.frequency_penalty.unwrap_or(off.frequency_penalty),
                penalty_last_n: said.repeat_last_n.unwrap_or(off.penalty_last_n),
                penalises_prompt: said.penalise_prompt.unwrap_or(off.penalises_prompt),
                chain,
                seed: said.seed.unwrap_or(fresh_seed),
                ..off
            },
            rules: Rules {
                dry: dry(&said),
                min_tokens: said.min_tokens.unwrap_or(0),
                ..Rules::default()
            },
            breakers: said
                .dry_sequence_breakers
                .unwrap_or_else(|| BREAKERS.map(str::to_owned).to_vec()),
            bad_words: said.bad_words.unwrap_or_default(),
            stop: said.stop.unwrap_or_default(),
            max_tokens,
            default_tokens: said.max_tokens.unwrap_or(ANSWER_TOKENS),
        }
    }

    /// What the text before forbids and makes unlikely. A breaker is its last token behind a letter
    /// (as the author of DRY has it), a word that may not come is banned with and without a blank
    /// before it.
    ///
    /// # Errors
    /// Those of the tokenizer.
    pub fn rules(&self, encoder: &Encoder<'_>) -> Result<Rules, TokenizerError> {
        let mut rules = self.rules.clone();
        let encode = |text: &str| encoder.encode(text, Special::Plain);
        if let Some(dry) = &mut rules.dry {
            for text in &self.breakers {
                dry.breakers.extend(encode(&format!("a{text}"))?.last());
            }
            dry.breakers.sort_unstable();
            dry.breakers.dedup();
        }
        for word in &self.bad_words {
            for form in [word.clone(), format!(" {}", word.trim_start())] {
                let tokens: Vec<TokenId> = encode(&form)?;
                if !tokens.is_empty() && !rules.bad_words.contains(&tokens) {
                    rules.bad_words.push(tokens);
                }
            }
        }
        Ok(rules)
    }

    /// Most tokens of an answer for which the context has `left`. A number that the request names
    /// is not cut to that; any other is, and is at least 1.
    pub fn tokens(&self, left: u32) -> u32 {
        self.max_tokens.unwrap_or_else(|| self.default_tokens.min(left).max(1))
    }

    /// One line for people; `context` bounds answers that nobody else does.
    pub fn line(&self, context: Option<u32>) -> String {
        let p = &self.params;
        let off = SamplingParams::default();
        let mut line = match p.temperature {
            0.0 => "always the likeliest token".to_owned(),
            t => format!("temperature {t}"),
        };
        let shown = [
            ("top_k", f64::from(p.top_k), f64::from(off.top_k)),
            ("top_p", f64::from(p.top_p), f64::from(off.top_p)),
            ("min_p", f64::from(p.min_p), f64::from(off.min_p)),
        ];
        for (name, value, off) in shown.into_iter().filter(|_| p.temperature > 0.0) {
            if value != off {
                line += &format!(", {name} {}", value as f32);
            }
        }
        for (name, value, off) in [
            ("repetition_penalty", p.repetition_penalty, off.repetition_penalty),
            ("presence_penalty", p.presence_penalty, off.presence_penalty),
            ("frequency_penalty", p.frequency_penalty, off.frequency_penalty),
        ] {
            if value != off {
                line += &format!(", {name} {value}");
            }
        }
        if let Some(chain) = &p.chain {
            line += &match chain.mirostat {
                Some(m) => format!(", mirostat 2 (tau {}, eta {})", m.tau, m.eta),
                None => format!(", samplers {}", chain.order),
            };
        }
        if let Some(dry) = &self.rules.dry {
            line += &format!(", dry_multiplier {}", dry.multiplier);
        }
        let most = self.default_tokens.min(context.unwrap_or(u32::MAX));
        line + &format!(", at most {most} tokens")
    }
}

/// Samplers beyond the usual, where any is on or the order is another.
fn chain(said: &SamplingValues) -> Option<Chain> {
    let off = Chain::default();
    let xtc = said.xtc_probability.unwrap_or(off.xtc_probability);
    let range = said.dynatemp_range.unwrap_or(off.dynatemp_range);
    let mirostat = || {
        let (tau, eta) = (said.mirostat_tau.unwrap_or(5.0), said.mirostat_eta.unwrap_or(0.1));
        Mirostat::new(tau, eta)
    };
    // (What belongs to a sampler that is off changes nothing.)
    let of = |is_on: bool, value: Option<f32>, off: f32| value.filter(|_| is_on).unwrap_or(off);
    let chain = Chain {
        order: said.samplers.unwrap_or(off.order),
        top_n_sigma: said.top_n_sigma.unwrap_or(off.top_n_sigma).max(0.0),
        typical_p: said.typical_p.unwrap_or(off.typical_p),
        xtc_probability: xtc,
        xtc_threshold: of(xtc > 0.0, said.xtc_threshold, off.xtc_threshold),
        dynatemp_range: range,
        dynatemp_exponent: of(range > 0.0, said.dynatemp_exponent, off.dynatemp_exponent),
        mirostat: (said.mirostat == Some(2)).then(mirostat),
    };
    (chain != off).then_some(chain)
}

/// The penalty on repeated runs, without breakers; its author's values where nothing else is said.
fn dry(said: &SamplingValues) -> Option<Dry> {
    let multiplier = said.dry_multiplier.filter(|m| *m > 0.0)?;
    Some(Dry {
        multiplier,
        base: said.dry_base.unwrap_or(1.75),
        allowed_length: said.dry_allowed_length.unwrap_or(2),
        last_n: said.dry_penalty_last_n.unwrap_or(u32::MAX),
        breakers: Vec::new(),
    })
}

/// Reads an order of samplers by llama.cpp's names: who is not named is off. Penalties and DRY come
/// before all others here.
///
/// # Errors
/// In words: unknown names, and orders that are not to be had.
pub fn order(names: &[&str], values: &mut SamplingValues) -> Result<(), String> {
    let mut stages = Vec::new();
    let (mut penalties, mut dry) = (false, false);
    for &name in names {
        let first = match name {
            "penalties" => &mut penalties,
            "dry" => &mut dry,
            name => {
                let name = match name {
                    "typical_p" | "typical" => "typ_p",
                    "temp" => "temperature",
                    name => name,
                };
                let found = Stage::NAMES.iter().find(|known| known.0 == name);
                let Some(&(_, stage)) = found else {
                    let known = Stage::NAMES.map(|known| known.0).join(", ");
                    return Err(format!(
                        "no sampler is called {name:?}; known are penalties, dry, {known}"
                    ));
                };
                stages.push(stage);
                continue;
            }
        };
        if !stages.is_empty() {
            return Err(format!("{name} comes before all samplers that choose among tokens"));
        }
        *first = true;
    }
    let order = Order::new(&stages).ok_or("a sampler is named twice")?;
    values.samplers = Some(order);
    if !penalties {
        values.repeat_penalty = Some(1.0);
        (values.presence_penalty, values.frequency_penalty) = (Some(0.0), Some(0.0));
    }
    if !dry {
        values.dry_multiplier = Some(0.0);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// temperature, top_k, top_p, min_p
    fn values(t: Option<f32>, k: Option<u32>, p: Option<f32>, m: Option<f32>) -> SamplingValues {
        SamplingValues { temperature: t, top_k: k, top_p: p, min_p: m, ..SamplingValues::default() }
    }

    #[test]
    fn the_request_then_the_packager_then_what_people_expect() {
        let none = SamplingValues::default();
        let packager = values(Some(0.6), Some(20), Some(0.9), None);
        let greedy = values(Some(0.0), None, None, None);
        let cases = [
            (&none, &none, (0.8, 0, 0.95, 0.05)),
            (&none, &packager, (0.6, 20, 0.9, 0.05)),
            (&greedy, &packager, (0.0, 20, 0.9, 0.05)),
            (&greedy, &none, (0.0, 0, 0.95, 0.05)),
            (&none, &greedy, (0.0, 0, 0.95, 0.05)),
            (&values(Some(1.0), Some(0), Some(1.0), Some(0.0)), &packager, (1.0, 0, 1.0, 0.0)),
        ];
        for (asked, packager, expect) in cases {
            let p = Sampling::new(asked.clone(), packager, 7).params;
            let found = (p.temperature, p.top_k, p.top_p, p.min_p);
            assert_eq!(found, expect, "{asked:?} {packager:?}");
            assert_eq!((p.seed, p.repetition_penalty), (7, 1.0));
        }
        let seed = |seed| SamplingValues { seed, ..SamplingValues::default() };
        let chosen = |a, b| Sampling::new(seed(a), &seed(b), 7).params.seed;
        assert_eq!((chosen(Some(1), Some(2)), chosen(None, Some(2))), (1, 2));
    }

    #[test]
    fn answers_have_a_limit() {
        let limits = |max_tokens| SamplingValues { max_tokens, ..SamplingValues::default() };
        let none = limits(None);
        // Request, packager, tokens left of the context; most of the answer.
        let cases = [
            (&none, &none, 100, 100),
            (&none, &none, 0, 1),
            (&none, &none, 100_000, 4096),
            (&none, &limits(Some(512)), 100_000, 512),
            (&none, &limits(Some(8192)), 100_000, 8192),
            (&none, &limits(Some(512)), 100, 100),
            (&limits(Some(200)), &limits(Some(5)), 100, 200),
        ];
        for (asked, packager, left, expect) in cases {
            let found = Sampling::new(asked.clone(), packager, 0).tokens(left);
            assert_eq!(found, expect, "{asked:?} {packager:?} {left}");
        }
    }

    #[test]
    fn a_line_says_what_holds() {
        let line = |packager: &SamplingValues| {
            Sampling::new(SamplingValues::default(), packager, 0).line(None)
        };
        assert_eq!(
            line(&SamplingValues::default()),
            "temperature 0.8, top_p 0.95, min_p 0.05, at most 4096 tokens"
        );
        let mut greedy = values(Some(0.0), None, None, None);
        greedy.repeat_penalty = Some(1.1);
        greedy.max_tokens = Some(9);
        let expect = "always the likeliest token, repetition_penalty 1.1, at most 9 tokens";
        assert_eq!(line(&greedy), expect);
    }
}
