//! Numbers on the command line: each with its range, which the error message tells.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::time::Duration;

use tokenmill_engine::KeepAlive;

/// Most tokens that any length may be: far beyond every model, and no sum of two overflows.
pub const MOST_TOKENS: u64 = 1 << 24;
/// Most sequences at once: each has a row in a step.
pub const MOST_SEQUENCES: u64 = 1024;
/// Below this a number of bytes without a unit was meant otherwise.
const FEWEST_BYTES: f64 = (1u64 << 20) as f64;

fn range_of(range: &RangeInclusive<impl Display>) -> String {
    format!("the range is {} to {}", range.start(), range.end())
}

fn in_range<T: TryFrom<u64>>(number: u64, range: &RangeInclusive<u64>) -> Result<T, String> {
    let inside = Some(number).filter(|n| range.contains(n));
    inside.and_then(|n| T::try_from(n).ok()).ok_or_else(|| range_of(range))
}

/// A whole number.
pub fn whole<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| match text.parse::<i128>() {
        Ok(number) => in_range(u64::try_from(number).map_err(|_| range_of(&range))?, &range),
        Err(_) => Err(format!("not a whole number; {}", range_of(&range))),
    }
}

/// A number of tokens, with an optional k (1024).
pub fn tokens(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<u32, String> + Clone {
    move |text| {
        let (digits, factor) = match text.strip_suffix(['k', 'K']) {
            Some(digits) => (digits, 1024),
            None => (text, 1),
        };
        let number = digits.parse::<i128>().map_err(|_| {
            format!("not a number of tokens, such as 512 or 8k; {}", range_of(&range))
        })?;
        let number = u64::try_from(number).ok().and_then(|n| n.checked_mul(factor));
        in_range(number.ok_or_else(|| range_of(&range))?, &range)
    }
}

/// A number with a fraction.
pub fn real(range: RangeInclusive<f32>) -> impl Fn(&str) -> Result<f32, String> + Clone {
    move |text| {
        let number = text.parse::<f32>();
        let number = number.map_err(|_| format!("not a number; {}", range_of(&range)))?;
        if range.contains(&number) { Ok(number) } else { Err(range_of(&range)) }
    }
}

/// A number with a fraction, and not zero.
pub fn positive(most: f32) -> impl Fn(&str) -> Result<f32, String> + Clone {
    move |text| {
        let range = format!("more than 0, at most {most}");
        let number = text.parse::<f32>().map_err(|_| format!("not a number; {range}"))?;
        if number > 0.0 && number <= most { Ok(number) } else { Err(range) }
    }
}

/// A time in seconds, up to a day.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let range = 0.0..=86_400.0;
    let seconds = text.parse::<f64>().ok().filter(|s| range.contains(s));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("seconds; {}", range_of(&range)))
}

/// How long a model stays: a duration, or a number of seconds; negative: for ever.
pub fn keep_alive(text: &str) -> Result<KeepAlive, String> {
    KeepAlive::parse(text).ok_or_else(|| "a time such as 5m, 300 or -1 (for ever)".to_owned())
}

/// How long something is kept: a whole number of seconds, minutes, hours or days, up to ten years.
pub fn time_to_live(text: &str) -> Result<Duration, String> {
    let units = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)];
    let seconds = units.iter().find_map(|(unit, seconds)| {
        text.strip_suffix(*unit)?.parse::<u64>().ok()?.checked_mul(*seconds)
    });
    let found = seconds.filter(|seconds| (1..=3650 * 86_400).contains(seconds));
    found.map(Duration::from_secs).ok_or_else(|| "a time such as 12h or 30d".to_owned())
}

/// A number of bytes with a unit, K, M, G or T (powers of 1024), or many bytes without one.
pub fn bytes(text: &str) -> Result<u64, String> {
    let units = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];
    let has_unit = text.ends_with(|c: char| c.is_ascii_alphabetic());
    let upper = text.trim_end_matches(['B', 'b']).trim_end_matches('i').to_uppercase();
    let unit = units.iter().find(|(u, _)| upper.ends_with(*u));
    let digits = unit.map_or(upper.as_str(), |(u, _)| upper.trim_end_matches(*u)).trim_end();
    let number: f64 = digits.parse().map_err(|_| "not a size, try 8G".to_owned())?;
    let number = number * (1u64 << unit.map_or(0, |u| u.1)) as f64;
    if !(1.0..1e15).contains(&number) {
        return Err("the range is 1B to 900T, try 8G".to_owned());
    }
    if !has_unit && number < FEWEST_BYTES {
        return Err(format!("that is {text} bytes: did you mean {text}G?"));
    }
    Ok(number as u64)
}

/// A number of gibibytes that is some.
pub fn gibibytes(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number of GiB, try 10".to_owned())?;
    if (0.001..=1e6).contains(&number) {
        return Ok(number);
    }
    Err("the range is 0.001 to 1000000, try 10".to_owned())
}

/// A positive rate.
pub fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().ok().filter(|r| *r >= 1e-6 && *r <= 1e6);
    rate.ok_or_else(|| "a rate between 0.000001 and 1000000 a second".to_owned())
}

/// An address of this machine, or a name of one.
pub fn host(text: &str) -> Result<IpAddr, String> {
    let plain = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = plain.parse() {
        return Ok(address);
    }
    if plain.eq_ignore_ascii_case("localhost") {
        return Ok(Ipv4Addr::LOCALHOST.into());
    }
    if plain.contains(':') {
        return Err("an address without a port, such as 127.0.0.1; --port is apart".to_owned());
    }
    let found = (plain, 0).to_socket_addrs();
    let mut found: Vec<IpAddr> =
        found.map_err(|e| format!("no address of that name: {e}"))?.map(|a| a.ip()).collect();
    found.sort_by_key(IpAddr::is_ipv6);
    found.first().copied().ok_or_else(|| "no address of that name".to_owned())
}

/// An address to listen on, as ZeroMQ has it: `*` is any of this machine's.
pub fn tcp(text: &str) -> Result<SocketAddr, String> {
    let wrong = || "an address such as tcp://127.0.0.1:5557".to_owned();
    let (name, port) =
        text.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':')).ok_or_else(wrong)?;
    let port = port.parse().map_err(|_| wrong())?;
    let any = Ok(Ipv4Addr::UNSPECIFIED.into());
    Ok(SocketAddr::new(if name == "*" { any } else { host(name) }?, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers() {
        let slots = whole::<u32>(1..=1024);
        assert_eq!((slots("1"), slots("1024")), (Ok(1), Ok(1024)));
        for text in ["0", "1025", "-1", "99999999999999999999", "1.5", "x", "", "8k"] {
            let error = slots(text).unwrap_err();
            assert!(error.ends_with("the range is 1 to 1024"), "{text}: {error}");
        }
        let seed = whole::<u64>(0..=u64::MAX);
        assert_eq!(seed("18446744073709551615"), Ok(u64::MAX));
    }

    #[test]
    fn addresses_as_zeromq_has_them() {
        for (text, expect) in [
            ("tcp://127.0.0.1:5557", Some("127.0.0.1:5557")),
            ("tcp://*:5557", Some("0.0.0.0:5557")),
            ("tcp://[::1]:1", Some("[::1]:1")),
            ("127.0.0.1:5557", None),
            ("tcp://127.0.0.1", None),
            ("tcp://127.0.0.1:70000", None),
            ("ipc:///tmp/x", None),
        ] {
            let expect = expect.map(|address| address.parse().unwrap());
            assert_eq!(tcp(text).ok(), expect, "{text}");
        }
    }

    #[test]
    fn numbers_of_tokens() {
        let count = tokens(1..=MOST_TOKENS);
        assert_eq!((count("32k"), count("7"), count("1K")), (Ok(32_768), Ok(7), Ok(1024)));
        for text in ["x", "9999999k", "0", "0k", "-1", "k", "18014398509481985k", "1e3"] {
            let error = count(text).unwrap_err();
            assert!(error.ends_with("the range is 1 to 16777216"), "{text}: {error}");
        }
    }

    #[test]
    fn times_to_live() {
        let seconds = |text: &str| time_to_live(text).map(|time| time.as_secs()).ok();
        let cases = [("30d", 2_592_000), ("12h", 43_200), ("90m", 5400), ("1s", 1)];
        for (text, expect) in cases {
            assert_eq!(seconds(text), Some(expect), "{text}");
        }
        for text in ["", "d", "0d", "30", "-1d", "1.5h", "3651d", "99999999999999999999d"] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }

    #[test]
    fn fractions() {
        let (temp, part) = (real(0.0..=100.0), positive(1.0));
        assert_eq!((temp("0"), temp("0.7"), part("1")), (Ok(0.0), Ok(0.7), Ok(1.0)));
        for text in ["-1", "101", "NaN", "inf", "x", ""] {
            assert!(temp(text).unwrap_err().ends_with("the range is 0 to 100"), "{text}");
        }
        for text in ["0", "2", "-0.5", "NaN"] {
            assert_eq!(part(text).unwrap_err(), "more than 0, at most 1", "{text}");
        }
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        for text in ["-1", "1e9", "NaN", "soon"] {
            assert_eq!(seconds(text).unwrap_err(), "seconds; the range is 0 to 86400", "{text}");
        }
    }

    #[test]
    fn sizes() {
        for (text, expect) in [
            ("8G", 8 << 30),
            ("8g", 8 << 30),
            ("1.5GiB", 3 << 29),
            ("100B", 100),
            ("512M", 512 << 20),
            ("8589934592", 8 << 30),
            ("8 GB", 8 << 30),
        ] {
            assert_eq!(bytes(text), Ok(expect), "{text}");
        }
        assert_eq!(bytes("8").unwrap_err(), "that is 8 bytes: did you mean 8G?");
        for text in ["-1", "-8G", "G", "0", "0G", "1e30G", "NaNG", "infG", "8X", ""] {
            assert!(bytes(text).unwrap_err().contains("try 8G"), "{text}");
        }
        for text in ["0", "-1", "x", "inf"] {
            assert!(gibibytes(text).is_err() && rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn hosts() {
        for (text, expect) in [
            ("localhost", "127.0.0.1"),
            ("LOCALHOST", "127.0.0.1"),
            ("127.0.0.1", "127.0.0.1"),
            ("0.0.0.0", "0.0.0.0"),
            ("::1", "::1"),
            ("[::1]", "::1"),
        ] {
            assert_eq!(host(text).map(|ip| ip.to_string()), Ok(expect.to_owned()), "{text}");
        }
        assert!(host("127.0.0.1:80").unwrap_err().contains("--port"));
        assert!(host("").is_err() && host("no such host").is_err());
    }
}
