//! How an answer is sampled: by what the request says, else by what the model's packager says, else
//! as people expect of a small local model. Every command and every dialect asks here.

use tokenmill_ir::{SamplingParams, SamplingValues};

/// Temperature where nobody says one. These three are what other local programs have: at 1 without
/// truncation small models soon write nonsense, at 0 they repeat themselves.
pub const TEMPERATURE: f32 = 0.8;
/// `top_p` where nobody says one.
pub const TOP_P: f32 = 0.95;
/// `min_p` where nobody says one.
pub const MIN_P: f32 = 0.05;
/// Most tokens of an answer where nobody says a number, as far as the context holds them.
pub const ANSWER_TOKENS: u32 = 4096;

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
}

impl Sampling {
    /// What holds for a request. `fresh_seed` is used where nobody names one.
    pub fn new(asked: SamplingValues, packager: &SamplingValues, fresh_seed: u64) -> Self {
        let max_tokens = asked.max_tokens;
        let said = asked.or(packager.clone());
        let off = SamplingParams::default();
        Self {
            params: SamplingParams {
                temperature: said.temperature.unwrap_or(TEMPERATURE),
                top_k: said.top_k.unwrap_or(off.top_k),
                top_p: said.top_p.unwrap_or(TOP_P),
                min_p: said.min_p.unwrap_or(MIN_P),
                repetition_penalty: said.repeat_penalty.unwrap_or(off.repetition_penalty),
                presence_penalty: said.presence_penalty.unwrap_or(off.presence_penalty),
                frequency_penalty: said.frequency_penalty.unwrap_or(off.frequency_penalty),
                seed: said.seed.unwrap_or(fresh_seed),
                ..off
            },
            stop: said.stop.unwrap_or_default(),
            max_tokens,
            default_tokens: said.max_tokens.unwrap_or(ANSWER_TOKENS),
        }
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
        let most = self.default_tokens.min(context.unwrap_or(u32::MAX));
        line + &format!(", at most {most} tokens")
    }
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
