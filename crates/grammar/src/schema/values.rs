//! Values that stand in a schema: `enum`, `const`, numbers and counts.

use serde_json::{Number, Value};

/// Integers beyond this are not all numbers that a double holds.
pub(super) const EXACT: f64 = 9_007_199_254_740_992.0;

/// A value as the matcher can hold an answer to it: an integer without a point. Else why not.
pub(super) fn literal(value: &Value) -> Result<Value, String> {
    match value {
        Value::Number(n) => number(n).map(Value::Number),
        Value::String(s) => text(s).map(|()| value.clone()),
        Value::Array(items) => {
            items.iter().map(literal).collect::<Result<_, _>>().map(Value::Array)
        }
        Value::Object(map) => {
            let pair = |(name, item): (&String, &Value)| {
                text(name)?;
                Ok((name.clone(), literal(item)?))
            };
            map.iter().map(pair).collect::<Result<_, _>>().map(Value::Object)
        }
        plain => Ok(plain.clone()),
    }
}

/// Whether a string can be written without `\u`.
pub(super) fn text(text: &str) -> Result<(), String> {
    let bare = |c: char| c < ' ' && !matches!(c, '\x08' | '\t' | '\n' | '\x0c' | '\r');
    match text.chars().find(|c| bare(*c)) {
        Some(c) => Err(format!("a string with the control character {:#04x}", c as u32)),
        None => Ok(()),
    }
}

/// A number that is exact as a double and of few digits.
pub(super) fn number(n: &Number) -> Result<Number, String> {
    let value = n.as_f64().filter(|v| v.is_finite()).ok_or("a number out of range")?;
    if value.abs() > EXACT {
        return Err("a number over 2^53, which is not exact".to_owned());
    }
    if value.fract() == 0.0 {
        return Ok(Number::from(value as i64));
    }
    if value.abs() < 1e-9 || format!("{value}").len() > 24 {
        return Err("a number of more than 20 digits".to_owned());
    }
    Number::from_f64(value).ok_or_else(|| "a number out of range".to_owned())
}

/// A count: no sign, no fraction.
pub(super) fn count(value: &Value) -> Option<usize> {
    let value = value.as_f64().filter(|v| v.fract() == 0.0 && *v >= 0.0 && *v <= EXACT)?;
    Some(value as usize)
}

/// Greatest digits of a `multipleOf`: the compiler has a state for each remainder.
const REMAINDERS: u64 = 1000;

/// `multipleOf` as digits and decimals, where it has few of them.
pub(super) fn decimal(value: &Value) -> Option<(u64, u32)> {
    let value = value.as_f64().filter(|v| *v > 0.0 && *v < 1e9)?;
    let text = format!("{value}");
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    if fraction.len() > 6 {
        return None;
    }
    let digits = format!("{whole}{fraction}").parse::<u64>().ok().filter(|d| *d <= REMAINDERS)?;
    // llguidance finds the digits by multiplying a double by ten until nothing is left behind
    // the point: taken only where that finds the same ones.
    let (mut scaled, mut decimals) = (value, 0);
    while scaled.fract() != 0.0 && decimals < 20 {
        scaled *= 10.0;
        decimals += 1;
    }
    let is_same = decimals as usize == fraction.len() && scaled == digits as f64;
    is_same.then_some((digits, decimals))
}
