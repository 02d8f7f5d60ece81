//! What is asked: conversations made from a seed, of common words, without a tokenizer.
//!
//! A common word with its space is one token in most vocabularies; how many tokens a prompt really
//! had comes from the server's usage figures.

use std::fmt;
use std::str::FromStr;

use crate::random::{Random, Words};

/// How long something is, in words or tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Lengths {
    /// Always this.
    Fixed(u32),
    /// Every length of a range is as likely.
    Uniform(u32, u32),
    /// The logarithm is normal: a median, and the standard deviation of the logarithm.
    LogNormal(f64, f64),
}

impl Lengths {
    pub(crate) fn draw(self, random: &mut Random) -> u32 {
        match self {
            Lengths::Fixed(n) => n,
            Lengths::Uniform(least, most) => {
                let range = u64::from(most.saturating_sub(least)) + 1;
                least + (random.next() % range) as u32
            }
            Lengths::LogNormal(median, sigma) => {
                // Ten medians at most: one draw must not outgrow every context.
                (median * (sigma * random.normal()).exp()).clamp(1.0, 10.0 * median) as u32
            }
        }
        .max(1)
    }
}

impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lengths::Fixed(n) => write!(f, "{n}"),
            Lengths::Uniform(least, most) => write!(f, "{least}..{most}"),
            Lengths::LogNormal(median, sigma) => write!(f, "lognormal:{median}:{sigma}"),
        }
    }
}

impl FromStr for Lengths {
    type Err = String;

    /// `256`, `64..512` or `lognormal:256:0.8`.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("'{text}' is no length: try 256, 64..512 or lognormal:256:0.8");
        let count = |t: &str| t.parse::<u32>().ok().filter(|n| (1..=10_000_000).contains(n));
        if let Some((least, most)) = text.split_once("..") {
            let (least, most) = count(least).zip(count(most)).ok_or_else(bad)?;
            return if least <= most { Ok(Lengths::Uniform(least, most)) } else { Err(bad()) };
        }
        let Some(rest) = text.strip_prefix("lognormal:") else {
            return count(text).map(Lengths::Fixed).ok_or_else(bad);
        };
        let (median, sigma) = rest.split_once(':').ok_or_else(bad)?;
        let sigma = sigma.parse::<f64>().ok().filter(|s| (0.0..=5.0).contains(s));
        let (median, sigma) = count(median).zip(sigma).ok_or_else(bad)?;
        Ok(Lengths::LogNormal(f64::from(median), sigma))
    }
}

/// What is asked of a server.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// The same seed makes the same workload.
    pub seed: u64,
    /// Conversations.
    pub sessions: usize,
    /// Requests of each, every one with the ones before and their answers in its prompt.
    pub turns: u32,
    /// Words of each new message.
    pub prompt: Lengths,
    /// Tokens asked for.
    pub output: Lengths,
    /// Words that stand before the first message, shared within a group.
    pub prefix_words: u32,
    /// Groups; sessions take them in turn.
    pub prefix_groups: usize,
}

/// One conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    /// What all sessions of its group begin with; may be empty.
    pub prefix: String,
    /// Its requests in order.
    pub turns: Vec<Turn>,
}

/// One request.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// The new message.
    pub message: String,
    /// Tokens asked for.
    pub max_tokens: u32,
}

impl Workload {
    /// All conversations.
    pub fn sessions(&self) -> Vec<Session> {
        let words = Words::new();
        let groups = self.prefix_groups.max(1);
        let mut random = Random::new(self.seed, 0);
        let prefixes: Vec<String> =
            (0..groups).map(|_| words.text(self.prefix_words, &mut random)).collect();
        let session = |i: usize| {
            // Each has its own numbers: one more session changes no other.
            let mut random = Random::new(self.seed, 1 + i as u64);
            let turns = (0..self.turns.max(1)).map(|_| {
                let length = self.prompt.draw(&mut random);
                let max_tokens = self.output.draw(&mut random);
                Turn { message: words.text(length, &mut random), max_tokens }
            });
            Session { prefix: prefixes[i % groups].clone(), turns: turns.collect() }
        };
        (0..self.sessions).map(session).collect()
    }
}

/// Seconds at which so many sessions arrive when `rate` of them come a second, independently.
pub(crate) fn arrivals(seed: u64, sessions: usize, rate: f64) -> Vec<f64> {
    let mut random = Random::new(seed, u64::MAX);
    let mut now = 0.0;
    let arrival = |_| {
        now += -random.unit().ln() / rate;
        now
    };
    (0..sessions).map(arrival).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload() -> Workload {
        Workload {
            seed: 7,
            sessions: 200,
            turns: 2,
            prompt: Lengths::Uniform(3, 9),
            output: Lengths::Fixed(5),
            prefix_words: 4,
            prefix_groups: 3,
        }
    }

    #[test]
    fn a_seed_is_a_workload() {
        let sessions = workload().sessions();
        assert_eq!(sessions, workload().sessions());
        assert_ne!(sessions, Workload { seed: 8, ..workload() }.sessions());
        let fewer = Workload { sessions: 10, ..workload() }.sessions();
        assert_eq!(sessions[..10], fewer[..], "sessions do not depend on how many there are");
    }

    #[test]
    fn shapes_are_as_asked() {
        let sessions = workload().sessions();
        let words = |text: &str| text.split_whitespace().count();
        for (i, session) in sessions.iter().enumerate() {
            assert_eq!(session.prefix, sessions[i % 3].prefix);
            assert_eq!((words(&session.prefix), session.turns.len()), (4, 2));
            assert!(session.turns.iter().all(|t| (3..=9).contains(&words(&t.message))));
            assert!(session.turns.iter().all(|t| t.max_tokens == 5));
        }
        assert_ne!(sessions[0].prefix, sessions[1].prefix);
        let lengths: Vec<usize> = sessions.iter().map(|s| words(&s.turns[0].message)).collect();
        assert!((3..=9).all(|n| lengths.contains(&n)), "every length comes up: {lengths:?}");
    }

    #[test]
    fn draws_follow_their_distribution() {
        let mut random = Random::new(1, 1);
        let mut draws: Vec<u32> =
            (0..4001).map(|_| Lengths::LogNormal(200.0, 0.5).draw(&mut random)).collect();
        draws.sort_unstable();
        let (low, median, high) = (draws[640], draws[2000], draws[3360]);
        // One standard deviation to either side is a factor of e^0.5 = 1.65.
        assert!((190..=210).contains(&median), "{median}");
        assert!((112..=131).contains(&low) && (310..=350).contains(&high), "{low} {high}");
        let arrivals = arrivals(7, 4000, 50.0);
        assert!(arrivals.is_sorted());
        let last = arrivals[3999];
        assert!((72.0..88.0).contains(&last), "4000 arrivals at 50 a second: {last}");
    }

    #[test]
    fn lengths_are_read() {
        let cases = [
            ("256", Some(Lengths::Fixed(256))),
            ("64..512", Some(Lengths::Uniform(64, 512))),
            ("lognormal:256:0.8", Some(Lengths::LogNormal(256.0, 0.8))),
            ("9..3", None),
            ("0", None),
            ("lognormal:256", None),
            ("lognormal:256:nan", None),
            ("", None),
        ];
        for (text, expect) in cases {
            assert_eq!(text.parse().ok(), expect, "{text}");
            assert!(expect.is_none_or(|lengths| lengths.to_string() == text), "{text}");
        }
    }
}
