//! How long a model stays in memory after its last answer.

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KeepAlive {
    /// So many seconds.
    Seconds(f64),
    /// Until others need its memory.
    Forever,
}

/// Units of a duration as Go writes them, seconds.
const UNITS: [(&str, f64); 8] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("μs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
];

impl KeepAlive {
    /// That many seconds; a negative number: for ever. `None` for what is no number.
    pub fn seconds(seconds: f64) -> Option<Self> {
        match seconds {
            s if s < 0.0 => Some(Self::Forever),
            s if s.is_finite() => Some(Self::Seconds(s)),
            _ => None,
        }
    }

    /// A duration such as `5m`, `1h30m`, `300s` and `-1m`, or a number of seconds: what Ollama's
    /// clients send. `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        if let Ok(seconds) = text.parse::<i64>() {
            return Self::seconds(seconds as f64);
        }
        let (sign, mut rest) = match text.strip_prefix('-') {
            Some(rest) => (-1.0, rest),
            None => (1.0, text.strip_prefix('+').unwrap_or(text)),
        };
        if rest.is_empty() {
            return None;
        }
        let mut seconds = 0.0;
        while !rest.is_empty() {
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
            let number: f64 = rest[..end].parse().ok()?;
            let unit = rest[end..].split(|c: char| c.is_ascii_digit() || c == '.').next()?;
            let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit)?;
            seconds += number * scale;
            rest = &rest[end + unit.len()..];
        }
        Self::seconds(sign * seconds)
    }

    /// When a model goes whose last answer ended then.
    pub(super) fn from(self, then_s: f64) -> f64 {
        match self {
            Self::Seconds(seconds) => then_s + seconds,
            Self::Forever => f64::INFINITY,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_as_clients_write_them() {
        for (text, expect) in [
            ("5m", Some(KeepAlive::Seconds(300.0))),
            ("300", Some(KeepAlive::Seconds(300.0))),
            ("300s", Some(KeepAlive::Seconds(300.0))),
            ("1h30m", Some(KeepAlive::Seconds(5400.0))),
            ("1.5h", Some(KeepAlive::Seconds(5400.0))),
            ("250ms", Some(KeepAlive::Seconds(0.25))),
            ("0", Some(KeepAlive::Seconds(0.0))),
            ("0s", Some(KeepAlive::Seconds(0.0))),
            ("-1", Some(KeepAlive::Forever)),
            ("-1m", Some(KeepAlive::Forever)),
            ("+2s", Some(KeepAlive::Seconds(2.0))),
            ("", None),
            ("-", None),
            ("5 parsecs", None),
            ("5", Some(KeepAlive::Seconds(5.0))),
            ("5.5", None),
            ("m", None),
            ("1..5s", None),
            ("5m3", None),
            ("inf", None),
            ("é", None),
        ] {
            assert_eq!(KeepAlive::parse(text), expect, "{text:?}");
        }
        assert_eq!(KeepAlive::seconds(f64::NAN), None);
        assert_eq!(KeepAlive::seconds(-0.5), Some(KeepAlive::Forever));
    }
}
