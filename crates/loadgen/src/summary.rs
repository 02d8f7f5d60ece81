//! A run as figures.

use crate::drive::{Record, Run};

/// A distribution of durations, seconds. All zero where there are none.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Spread {
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 95 of 100 are shorter.
    pub p95: f64,
    /// 99 of 100 are shorter.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

impl Spread {
    /// Of these values, in any order. Between two values a percentile is interpolated.
    pub fn of(values: &mut [f64]) -> Spread {
        values.sort_unstable_by(f64::total_cmp);
        let Some(&max) = values.last() else { return Spread::default() };
        let at = |part: f64| {
            let place = part * (values.len() - 1) as f64;
            let (low, high) = (values[place as usize], values[place.ceil() as usize]);
            low + (high - low) * place.fract()
        };
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        Spread { mean, p50: at(0.5), p95: at(0.95), p99: at(0.99), max }
    }
}

/// A run as figures.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Requests sent.
    pub requests: usize,
    /// What failed and how often, the most frequent first.
    pub errors: Vec<(String, usize)>,
    /// Whole answers with fewer tokens than asked for.
    pub short: usize,
    /// From the first request to the end of the last answer, seconds.
    pub wall_s: f64,
    /// Tokens of the prompts of whole answers, by the server's count; 0 if it gave none.
    pub prompt_tokens: u64,
    /// Those of them that were cached; none if the server does not say.
    pub cached_tokens: Option<u64>,
    /// Tokens of whole answers.
    pub completion_tokens: u64,
    /// Time to first token: from sending to the first piece of text.
    pub ttft: Spread,
    /// Time per output token after the first, mean of an answer.
    pub tpot: Spread,
    /// Gaps between pieces of text.
    pub itl: Spread,
    /// From sending to the end of the answer.
    pub latency: Spread,
}

impl Summary {
    /// Of what clients saw.
    pub fn of(run: &Run) -> Summary {
        let mut errors: Vec<(String, usize)> = Vec::new();
        for error in run.records.iter().filter_map(|r| r.outcome.as_ref().err()) {
            let text = error.to_string();
            match errors.iter_mut().find(|e| e.0 == text) {
                Some(seen) => seen.1 += 1,
                None => errors.push((text, 1)),
            }
        }
        errors.sort_by_key(|e| std::cmp::Reverse(e.1));
        let good = || run.records.iter().filter_map(|r| Some((r, r.outcome.as_ref().ok()?)));
        let spread = |value: fn(&Record, &[f64], u64) -> Option<f64>| {
            let values = good().filter_map(|(r, o)| value(r, &o.events_s, o.completion_tokens));
            Spread::of(&mut values.collect::<Vec<_>>())
        };
        let cached = good().filter_map(|(_, o)| o.cached_tokens);
        Summary {
            requests: run.records.len(),
            errors,
            short: good().filter(|(r, o)| o.completion_tokens < u64::from(r.max_tokens)).count(),
            wall_s: run.wall_s,
            prompt_tokens: good().filter_map(|(_, o)| o.prompt_tokens).sum(),
            cached_tokens: cached.fold(None, |sum, n| Some(sum.unwrap_or(0) + n)),
            completion_tokens: good().map(|(_, o)| o.completion_tokens).sum(),
            ttft: spread(|r, events, _| Some(events.first()? - r.start_s)),
            tpot: spread(|_, events, tokens| {
                let (first, last) = (events.first()?, events.last()?);
                (tokens > 1).then(|| (last - first) / (tokens - 1) as f64)
            }),
            itl: Spread::of(&mut gaps(run)),
            latency: spread(|r, _, _| Some(r.end_s - r.start_s)),
        }
    }

    /// Tokens of answers a second.
    pub fn output_tok_s(&self) -> f64 {
        self.completion_tokens as f64 / self.wall_s
    }

    /// Tokens of prompts a second.
    pub fn input_tok_s(&self) -> f64 {
        self.prompt_tokens as f64 / self.wall_s
    }

    /// The distributions by name.
    pub fn spreads(&self) -> [(&'static str, Spread); 4] {
        let Self { ttft, tpot, itl, latency, .. } = *self;
        [("TTFT", ttft), ("TPOT", tpot), ("ITL", itl), ("latency", latency)]
    }
}

/// All gaps between neighbouring pieces of text of an answer, seconds.
pub fn gaps(run: &Run) -> Vec<f64> {
    let answers = run.records.iter().filter_map(|r| r.outcome.as_ref().ok());
    answers.flat_map(|o| o.events_s.windows(2).map(|pair| pair[1] - pair[0])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::LoadError;
    use crate::drive::Outcome;

    #[test]
    fn percentiles_interpolate() {
        let mut values: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        let spread = Spread::of(&mut values);
        assert_eq!(spread, Spread { mean: 50.0, p50: 50.0, p95: 95.0, p99: 99.0, max: 100.0 });
        assert_eq!(Spread::of(&mut [4.0, 2.0]).p50, 3.0);
        assert_eq!(Spread::of(&mut []), Spread::default());
    }

    fn record(start_s: f64, outcome: Result<Outcome, LoadError>) -> Record {
        Record { session: 0, turn: 0, start_s, end_s: start_s + 2.0, max_tokens: 4, outcome }
    }

    #[test]
    fn a_run_is_counted() {
        let answer = |events_s: &[f64], cached| Outcome {
            events_s: events_s.to_vec(),
            prompt_tokens: Some(10),
            cached_tokens: cached,
            completion_tokens: 1 + events_s.len() as u64,
        };
        let refused = || Err(LoadError::Status { status: 429, message: "full".into() });
        let records = vec![
            // Two tokens came in one piece: the time per token counts tokens, gaps count pieces.
            record(0.0, Ok(answer(&[0.5, 1.0, 2.0], Some(3)))),
            record(1.0, Ok(answer(&[1.25], None))),
            record(1.0, refused()),
            record(1.5, Err(LoadError::Stream("x".into()))),
            record(1.5, refused()),
        ];
        let run = Run { model: "m".into(), wall_s: 4.0, records };
        let s = Summary::of(&run);
        assert_eq!((s.requests, s.short, s.prompt_tokens, s.completion_tokens), (5, 1, 20, 6));
        assert_eq!(s.cached_tokens, Some(3));
        assert_eq!(s.errors[0], ("status 429: full".into(), 2));
        assert_eq!(s.errors[1].1, 1);
        assert_eq!((s.ttft.max, s.ttft.p50), (0.5, 0.375));
        assert_eq!((s.tpot.max, s.itl.max, s.itl.p50), (0.5, 1.0, 0.75));
        assert_eq!((s.output_tok_s(), s.input_tok_s()), (1.5, 5.0));
    }
}
