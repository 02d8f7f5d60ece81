//! A run as figures.

use std::collections::HashSet;

use crate::client::LoadError;
use crate::drive::{Kind, Record, Run};

/// A distribution of durations, seconds. All zero where there are none.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Spread {
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90 of 100 are shorter.
    pub p90: f64,
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
        Spread { mean, p50: at(0.5), p90: at(0.9), p95: at(0.95), p99: at(0.99), max }
    }
}

/// A run as figures.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Requests sent.
    pub requests: usize,
    /// What failed and how often, the most frequent first.
    pub errors: Vec<(String, usize)>,
    /// The same by what sort of failure it was.
    pub kinds_of_errors: Vec<(String, usize)>,
    /// Requests of each kind that were sent.
    pub kinds: Vec<(Kind, usize)>,
    /// Sessions that began.
    pub sessions: usize,
    /// Sessions of which no request failed.
    pub finished: usize,
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
    /// Normalised latency: [`Summary::latency`] of a request ÷ tokens of its answer.
    pub normalised: Spread,
    /// 1 ÷ the normalised latency that nine of ten requests keep to, tokens a second. A request
    /// that failed is endlessly slow: where more than a tenth did this is 0.
    pub p90_tok_s: f64,
    /// The main requests of all sessions by turn.
    pub turns: Vec<TurnFigures>,
}

/// The main requests of all sessions at one turn.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnFigures {
    /// From 0.
    pub turn: usize,
    /// Whole answers.
    pub answers: usize,
    /// Time to first token.
    pub ttft: Spread,
    /// The part of the prompts' tokens that was cached; none if the server does not say.
    pub cached: Option<f64>,
}

impl Summary {
    /// Of what clients saw.
    pub fn of(run: &Run) -> Summary {
        let failed = || run.records.iter().filter_map(|r| r.outcome.as_ref().err());
        let broken: HashSet<usize> =
            run.records.iter().filter(|r| r.outcome.is_err()).map(|r| r.session).collect();
        let of_kind = |kind| run.records.iter().filter(|r| r.kind == kind).count();
        let kinds = Kind::ALL.into_iter().map(|kind| (kind, of_kind(kind)));
        let good = || run.records.iter().filter_map(|r| Some((r, r.outcome.as_ref().ok()?)));
        let spread = |value: fn(&Record, &[f64], u64) -> Option<f64>| {
            let values = good().filter_map(|(r, o)| value(r, &o.events_s, o.completion_tokens));
            Spread::of(&mut values.collect::<Vec<_>>())
        };
        let cached = good().filter_map(|(_, o)| o.cached_tokens);
        Summary {
            requests: run.records.len(),
            errors: counted(failed().map(ToString::to_string)),
            kinds_of_errors: counted(failed().map(LoadError::kind)),
            kinds: kinds.filter(|k| k.1 > 0).collect(),
            sessions: run.sessions,
            finished: run.sessions - broken.len(),
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
            normalised: Spread::of(&mut normalised(run)),
            p90_tok_s: p90_tok_s(run),
            turns: turns(run),
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

/// What came up and how often, the most frequent first.
fn counted(texts: impl Iterator<Item = String>) -> Vec<(String, usize)> {
    let mut counts: Vec<(String, usize)> = Vec::new();
    for text in texts {
        match counts.iter_mut().find(|c| c.0 == text) {
            Some(seen) => seen.1 += 1,
            None => counts.push((text, 1)),
        }
    }
    counts.sort_by_key(|c| std::cmp::Reverse(c.1));
    counts
}

/// Seconds a token of each whole answer, from sending to its end; an answer of none counts as one.
pub fn normalised(run: &Run) -> Vec<f64> {
    let good = run.records.iter().filter_map(|r| Some((r, r.outcome.as_ref().ok()?)));
    good.map(|(r, o)| (r.end_s - r.start_s) / o.completion_tokens.max(1) as f64).collect()
}

/// The nearest rank: the value is a request's own, and a failed one is never averaged away.
fn p90_tok_s(run: &Run) -> f64 {
    let mut all = normalised(run);
    all.resize(run.records.len(), f64::INFINITY);
    all.sort_unstable_by(f64::total_cmp);
    let rank = (0.9 * all.len() as f64).ceil() as usize;
    all.get(rank.saturating_sub(1)).map_or(0.0, |seconds| 1.0 / seconds)
}

fn turns(run: &Run) -> Vec<TurnFigures> {
    let main = || run.records.iter().filter(|r| r.kind == Kind::Main);
    let turns = main().map(|r| r.turn + 1).max().unwrap_or(0);
    let figures = |turn| {
        let good = || {
            main().filter(|r| r.turn == turn).filter_map(|r| Some((r, r.outcome.as_ref().ok()?)))
        };
        let ttft = good().filter_map(|(r, o)| Some(o.events_s.first()? - r.start_s));
        let told = good().filter_map(|(_, o)| Some((o.cached_tokens?, o.prompt_tokens?)));
        let (cached, of) = told.fold((0, 0), |sum, (c, p)| (sum.0 + c, sum.1 + p));
        TurnFigures {
            turn,
            answers: good().count(),
            ttft: Spread::of(&mut ttft.collect::<Vec<_>>()),
            cached: (of > 0).then(|| cached as f64 / of as f64),
        }
    };
    (0..turns).map(figures).collect()
}

/// All gaps between neighbouring pieces of text of an answer, seconds.
pub fn gaps(run: &Run) -> Vec<f64> {
    let answers = run.records.iter().filter_map(|r| r.outcome.as_ref().ok());
    answers.flat_map(|o| o.events_s.windows(2).map(|pair| pair[1] - pair[0])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::Outcome;

    #[test]
    fn percentiles_interpolate() {
        let mut values: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        let spread = Spread::of(&mut values);
        assert_eq!(
            spread,
            Spread { mean: 50.0, p50: 50.0, p90: 90.0, p95: 95.0, p99: 99.0, max: 100.0 }
        );
        assert_eq!(Spread::of(&mut [4.0, 2.0]).p50, 3.0);
        assert_eq!(Spread::of(&mut []), Spread::default());
    }

    fn record(start_s: f64, outcome: Result<Outcome, LoadError>) -> Record {
        let (kind, end_s) = (Kind::Main, start_s + 2.0);
        Record { session: 0, turn: 0, kind, start_s, end_s, max_tokens: 4, outcome }
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
        let run = Run { model: "m".into(), wall_s: 4.0, sessions: 2, records };
        let s = Summary::of(&run);
        assert_eq!((s.requests, s.short, s.prompt_tokens, s.completion_tokens), (5, 1, 20, 6));
        assert_eq!(s.cached_tokens, Some(3));
        assert_eq!(s.errors[0], ("status 429: full".into(), 2));
        assert_eq!(s.errors[1].1, 1);
        assert_eq!((s.ttft.max, s.ttft.p50), (0.5, 0.375));
        assert_eq!((s.tpot.max, s.itl.max, s.itl.p50), (0.5, 1.0, 0.75));
        assert_eq!((s.output_tok_s(), s.input_tok_s()), (1.5, 5.0));
        assert_eq!((s.sessions, s.finished, &s.kinds[..]), (2, 1, &[(Kind::Main, 5)][..]));
        assert_eq!(s.kinds_of_errors, [("status 429".into(), 2), ("stream".into(), 1)]);
        assert_eq!((s.normalised.p50, s.normalised.max), (0.75, 1.0));
        assert_eq!(s.p90_tok_s, 0.0, "three of five failed");
    }

    #[test]
    fn nine_of_ten_requests_keep_to_the_speed() {
        let answer = |tokens| Outcome {
            events_s: vec![0.5],
            prompt_tokens: Some(10),
            cached_tokens: Some(tokens),
            completion_tokens: tokens,
        };
        // Two seconds for 1 to 9 tokens; the tenth request says nothing or fails.
        let mut records: Vec<Record> = (1..10).map(|n| record(0.0, Ok(answer(n)))).collect();
        for last in [Ok(answer(0)), Err(LoadError::NoModel)] {
            records.push(record(0.0, last));
            let run = Run { model: "m".into(), wall_s: 4.0, sessions: 1, records: records.clone() };
            assert_eq!(Summary::of(&run).p90_tok_s, 0.5, "the slowest but one: 2 s for a token");
            records.pop();
        }
    }

    #[test]
    fn turns_are_of_main_requests() {
        let told = |turn, kind, first: f64, cached| Record {
            turn,
            kind,
            ..record(
                0.0,
                Ok(Outcome {
                    events_s: vec![first],
                    prompt_tokens: Some(100),
                    cached_tokens: cached,
                    completion_tokens: 1,
                }),
            )
        };
        let records = vec![
            told(0, Kind::Main, 0.5, Some(0)),
            told(0, Kind::Title, 9.0, Some(100)),
            told(1, Kind::Main, 0.2, Some(60)),
            told(1, Kind::Main, 0.4, Some(80)),
            told(2, Kind::Main, 0.1, None),
            told(5, Kind::SubAgent, 0.1, Some(3)),
        ];
        let run = Run { model: "m".into(), wall_s: 4.0, sessions: 1, records };
        let turns = Summary::of(&run).turns;
        let figures: Vec<_> = turns.iter().map(|t| (t.answers, t.ttft.max, t.cached)).collect();
        assert_eq!(figures, [(1, 0.5, Some(0.0)), (2, 0.4, Some(0.7)), (1, 0.1, None)]);
    }
}
