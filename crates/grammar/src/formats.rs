//! The formats of strings that are enforced.

/// What a `format` asks for.
pub(crate) enum Format {
    /// The whole string matches this regular expression, in ECMAScript's syntax.
    Pattern(&'static str),
    /// Says nothing about strings.
    Silent,
}

/// Formats of numbers and of the transport, which OpenAPI's schemas are full of: the first are
/// not about strings, the others have no rule that a text could break.
const SILENT: &[&str] =
    &["int32", "int64", "float", "double", "byte", "binary", "password", "unknown"];

macro_rules! day {
    () => {
        concat!(
            r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])",
            r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))",
            r"|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])",
            r"|(?:[02468][048]|[13579][26])00)-02-29)"
        )
    };
}

// No leap seconds: they are valid only at times of which an offset must be reckoned with.
macro_rules! time {
    () => {
        concat!(
            r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?",
            r"(?:Z|[+\-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
        )
    };
}

macro_rules! octet {
    () => {
        r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
    };
}

// A label that is no punycode: no hyphens third and fourth.
macro_rules! label {
    () => {
        concat!(
            r"(?:[A-Za-z0-9]{1,2}|[A-Za-z0-9][A-Za-z0-9\-][A-Za-z0-9](?:[A-Za-z0-9\-]{0,30}",
            r"[A-Za-z0-9])?)"
        )
    };
}

macro_rules! host {
    () => {
        concat!(label!(), r"(?:\.", label!(), r"){0,5}")
    };
}

const DATE: &str = concat!("^", day!(), "$");
const TIME: &str = concat!("^", time!(), "$");
const DATE_TIME: &str = concat!("^", day!(), "T", time!(), "$");
const DURATION: &str = concat!(
    r"^P(?:[0-9]{1,9}W|(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?",
    r"|[0-9]{1,9}M(?:[0-9]{1,9}D)?|[0-9]{1,9}D)(?:T(?:[0-9]{1,9}H(?:[0-9]{1,9}M",
    r"(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))?|T(?:[0-9]{1,9}H",
    r"(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))$"
);
const EMAIL: &str =
    concat!(r"^[A-Za-z0-9_+\-]{1,20}(?:\.[A-Za-z0-9_+\-]{1,20}){0,2}@", host!(), "$");
const HOSTNAME: &str = concat!("^", host!(), "$");
const IPV4: &str = concat!("^", octet!(), r"(?:\.", octet!(), "){3}$");
const IPV6: &str = concat!(
    r"^(?:(?:[0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}|::(?:[0-9A-Fa-f]{1,4}:){0,6}[0-9A-Fa-f]{1,4}",
    r"|[0-9A-Fa-f]{1,4}::(?:[0-9A-Fa-f]{1,4}:){0,5}[0-9A-Fa-f]{1,4}",
    r"|(?:[0-9A-Fa-f]{1,4}:){1}[0-9A-Fa-f]{1,4}::(?:[0-9A-Fa-f]{1,4}:){0,4}[0-9A-Fa-f]{1,4}",
    r"|(?:[0-9A-Fa-f]{1,4}:){2}[0-9A-Fa-f]{1,4}::(?:[0-9A-Fa-f]{1,4}:){0,3}[0-9A-Fa-f]{1,4}",
    r"|(?:[0-9A-Fa-f]{1,4}:){3}[0-9A-Fa-f]{1,4}::(?:[0-9A-Fa-f]{1,4}:){0,2}[0-9A-Fa-f]{1,4}",
    r"|(?:[0-9A-Fa-f]{1,4}:){0,6}[0-9A-Fa-f]{1,4}::|::)$"
);
const UUID: &str = r"^[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$";
const URI: &str = concat!(
    r"^[A-Za-z][A-Za-z0-9+\-.]*:(?://",
    host!(),
    r"(?::[0-9]{1,4})?(?:/(?:[A-Za-z0-9\-._~!$&'()*+,;=:@]|%[0-9A-Fa-f]{2})*)*",
    r"|[A-Za-z0-9\-._~](?:[A-Za-z0-9\-._~!$&'()*+,;=:@/]|%[0-9A-Fa-f]{2})*)",
    r"(?:\?(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?]|%[0-9A-Fa-f]{2})*)?",
    r"(?:#(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?]|%[0-9A-Fa-f]{2})*)?$"
);

/// Format by format: each is a part of what its RFC allows, so that every validator agrees.
const FORMATS: &[(&str, &str)] = &[
    ("date", DATE),
    ("time", TIME),
    ("date-time", DATE_TIME),
    ("duration", DURATION),
    ("email", EMAIL),
    ("hostname", HOSTNAME),
    ("ipv4", IPV4),
    ("ipv6", IPV6),
    ("uuid", UUID),
    ("uri", URI),
];

/// What a format asks for, none where it is not enforced.
pub(crate) fn format(name: &str) -> Option<Format> {
    if SILENT.contains(&name) {
        return Some(Format::Silent);
    }
    FORMATS.iter().find(|row| row.0 == name).map(|row| Format::Pattern(row.1))
}

/// The names enforced, for a message.
pub(crate) fn names() -> String {
    FORMATS.iter().map(|row| row.0).collect::<Vec<_>>().join(", ")
}
