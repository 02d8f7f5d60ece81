//! How often a request is made again, and after what pause: as the server says, where it says so.

use crate::env::Limits;
use crate::http::NetError;
use crate::progress::in_words;
use reqwest::header::HeaderMap;
use std::time::{Duration, SystemTime};

/// Doublings of a pause, at most.
const DOUBLINGS: u32 = 6;
/// How much longer the pause is where a server has too many requests and does not say for how long.
const BUSY: u32 = 16;

/// Another try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Again {
    /// Why the last one failed.
    pub why: String,
    /// How long to wait before.
    pub pause: Duration,
    /// The server asked for the pause, so it holds for all requests to it.
    pub is_told: bool,
}

/// The patience left for one request.
pub(crate) struct Patience<'a> {
    limits: &'a Limits,
    /// The server was reached before; if not, a network that is not there ends it at once.
    reached: bool,
    /// Failures since something came, those with a pause that was told not among them.
    failures: u32,
    /// Pauses that were told since then, and their sum.
    told: u32,
    waited: Duration,
}

impl<'a> Patience<'a> {
    /// Of a first request.
    pub(crate) fn new(limits: &'a Limits) -> Self {
        Self { limits, reached: false, failures: 0, told: 0, waited: Duration::ZERO }
    }

    /// Of a further request to a server that has answered.
    pub(crate) fn of_known_server(limits: &'a Limits) -> Self {
        Self { reached: true, ..Self::new(limits) }
    }

    /// Something came: from here on all counts anew.
    pub(crate) fn renew(&mut self) {
        *self = Self::of_known_server(self.limits);
    }

    /// What to do after a failure; the failure itself where another try is of no use.
    pub(crate) fn after(&mut self, error: NetError) -> Result<Again, NetError> {
        let doubled = |n: u32| self.limits.pause.saturating_mul(1 << n.min(DOUBLINGS));
        let has_tries = self.failures + 1 < self.limits.attempts;
        let (why, pause) = match &error {
            NetError::Busy { status, told: Some(told) } => {
                let pause = (*told).max(doubled(self.told));
                if self.waited.saturating_add(pause) > self.limits.wait {
                    return Err(error);
                }
                self.told += 1;
                self.waited += pause;
                let why = format!("the server answered {status} and says when to come back");
                return Ok(Again { why, pause, is_told: true });
            }
            NetError::Busy { status, told: None } if has_tries => {
                let pause = doubled(self.failures).saturating_mul(BUSY);
                (format!("the server answered {status}"), pause)
            }
            NetError::Passing(why) if has_tries => (why.clone(), doubled(self.failures)),
            NetError::Unreachable(why) if has_tries && self.reached => {
                (why.clone(), doubled(self.failures))
            }
            _ => return Err(error),
        };
        self.failures += 1;
        Ok(Again { why, pause, is_told: false })
    }
}

/// The wait that an answer asks for: `Retry-After` in seconds or as a date, else the time left of
/// the `RateLimit` field (draft-ietf-httpapi-ratelimit-headers; the hub sends it).
pub(crate) fn told_wait(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).map(str::trim);
    let date = |text: &str| httpdate::parse_http_date(text).ok();
    if let Some(after) = text("retry-after") {
        if let Ok(seconds) = after.parse() {
            return Some(Duration::from_secs(seconds));
        }
        if let Some(then) = date(after) {
            // By the server's clock, where it tells it; dates are whole seconds.
            let now = text("date").and_then(date).unwrap_or(now);
            let left = then.duration_since(now).unwrap_or_default();
            return Some(left.saturating_add(Duration::from_secs(1)));
        }
    }
    let left = text("ratelimit")?.split(';').find_map(|part| part.trim().strip_prefix("t="))?;
    left.parse().ok().map(Duration::from_secs)
}

/// When to come back, for people.
pub(crate) fn come_back(wait: Duration, now: SystemTime) -> String {
    // Dates beyond the year 9999 cannot be written.
    let latest = Duration::from_secs(366 * 86_400);
    match now.checked_add(wait).filter(|_| wait < latest) {
        Some(then) => format!("in {}, at {}", in_words(wait), httpdate::fmt_http_date(then)),
        None => "in more than a year".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reqwest::header::{HeaderName, HeaderValue};

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| {
            (name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn waits_in_every_form() {
        let now = httpdate::parse_http_date("Fri, 27 Nov 2026 15:00:00 GMT").unwrap();
        type Case = (&'static [(&'static str, &'static str)], Option<u64>);
        let table: [Case; 12] = [
            (&[], None),
            (&[("retry-after", "20")], Some(20)),
            (&[("retry-after", " 0 ")], Some(0)),
            (&[("retry-after", "Fri, 27 Nov 2026 15:01:00 GMT")], Some(61)),
            (&[("retry-after", "Friday, 27-Nov-26 15:01:00 GMT")], Some(61)),
            (&[("retry-after", "Fri Nov 27 15:01:00 2026")], Some(61)),
            (&[("retry-after", "Fri, 27 Nov 2026 14:00:00 GMT")], Some(1)),
            (
                &[
                    ("date", "Fri, 27 Nov 2026 13:00:00 GMT"),
                    ("retry-after", "Fri, 27 Nov 2026 13:00:30 GMT"),
                ],
                Some(31),
            ),
            (&[("retry-after", "soon")], None),
            (&[("retry-after", "-5")], None),
            (&[("ratelimit", "\"api\";r=0;t=243")], Some(243)),
            (&[("retry-after", "7"), ("ratelimit", "\"api\";r=0;t=243")], Some(7)),
        ];
        for (pairs, seconds) in table {
            let expect = seconds.map(Duration::from_secs);
            assert_eq!(told_wait(&headers(pairs), now), expect, "{pairs:?}");
        }
        let back = come_back(Duration::from_secs(1200), now);
        assert_eq!(back, "in 20 min, at Fri, 27 Nov 2026 15:20:00 GMT");
        assert_eq!(come_back(Duration::MAX, now), "in more than a year");
    }

    #[test]
    fn patience_ends() {
        let limits = Limits {
            attempts: 3,
            pause: Duration::from_millis(100),
            wait: Duration::from_secs(60),
            ..Limits::default()
        };
        let passing = || NetError::Passing("x".into());
        let busy =
            |told: Option<u64>| NetError::Busy { status: 429, told: told.map(Duration::from_secs) };
        let pauses = |error: &dyn Fn() -> NetError, patience: &mut Patience<'_>| {
            std::iter::from_fn(|| Some(patience.after(error()).ok()?.pause.as_millis()))
                .take(50)
                .collect::<Vec<_>>()
        };
        let new = || Patience::new(&limits);
        assert_eq!(pauses(&passing, &mut new()), [100, 200]);
        assert_eq!(pauses(&|| busy(None), &mut new()), [1600, 3200]);
        assert_eq!(pauses(&|| busy(Some(20)), &mut new()), [20_000; 3], "60 s in all");
        assert_eq!(pauses(&|| busy(Some(61)), &mut new()), [0; 0], "beyond the limit");
        let soon = pauses(&|| busy(Some(0)), &mut new());
        assert_eq!(soon[..4], [100, 200, 400, 800], "never in a busy loop");
        assert!(soon.iter().sum::<u128>() <= 60_000);
        let unreachable = || NetError::Unreachable("no network".into());
        assert_eq!(pauses(&unreachable, &mut new()), [0; 0]);
        assert_eq!(pauses(&unreachable, &mut Patience::of_known_server(&limits)), [100, 200]);
        assert_eq!(pauses(&|| NetError::Status(404), &mut new()), [0; 0]);
        let mut patience = new();
        assert_eq!(pauses(&passing, &mut patience), [100, 200]);
        patience.renew();
        assert_eq!(pauses(&passing, &mut patience), [100, 200]);
    }
}
