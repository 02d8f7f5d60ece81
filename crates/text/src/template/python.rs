//! What templates written for Python's Jinja expect beside the engine's own: `tojson` as the
//! model hubs define it, and string methods the engine's Python layer lacks.

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Error, ErrorKind, Output, State, Value};

use super::limits::{Budget, REVERSED};

/// Deepest nesting `tojson` writes.
const MAX_DEPTH: usize = 128;

/// How `tojson` writes.
struct Style {
    /// Text between two items.
    item: String,
    /// Text between a key and its value.
    key: String,
    /// Text of one level of indentation; `None` writes one line.
    indent: Option<String>,
    ascii: bool,
    sorted: bool,
}

/// `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`: Python's
/// `json.dumps`, without escaping HTML.
pub(super) fn tojson(
    value: &Value,
    indent: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get::<Option<Value>>("indent")?,
    };
    let indent = match indent.filter(|v| !v.is_none() && !v.is_undefined()) {
        Some(text) if text.as_str().is_some() => Some(text.to_string()),
        Some(width) => Some(" ".repeat(usize::try_from(width)?.min(64))),
        None => None,
    };
    let (mut item, mut key) = (", ".to_owned(), ": ".to_owned());
    if indent.is_some() {
        item.truncate(1);
    }
    let separators = options.get::<Option<Value>>("separators")?;
    if let Some(pair) = separators.filter(|v| !v.is_none()) {
        item = pair.get_item_by_index(0)?.to_string();
        key = pair.get_item_by_index(1)?.to_string();
    }
    let style = Style {
        item,
        key,
        indent,
        ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sorted: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    let mut out = String::new();
    write_json(value, &style, 0, &mut out)?;
    Ok(Value::from(out))
}

fn write_json(value: &Value, style: &Style, depth: usize, out: &mut String) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson: nested too deep"));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => write_string(value.as_str().unwrap_or_default(), style.ascii, out),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            write_items(&items, '[', ']', style, depth, out, |item, out| {
                write_json(item, style, depth + 1, out)
            })?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sorted {
                keys.sort();
            }
            write_items(&keys, '{', '}', style, depth, out, |name, out| {
                write_string(&key_text(name), style.ascii, out);
                out.push_str(&style.key);
                write_json(&value.get_item(name)?, style, depth + 1, out)
            })?;
        }
        kind => {
            let message = format!("tojson: {kind} is not JSON");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
    }
    Ok(())
}

fn write_items(
    items: &[Value],
    open: char,
    close: char,
    style: &Style,
    depth: usize,
    out: &mut String,
    mut write: impl FnMut(&Value, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    let new_line = |depth: usize, out: &mut String| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    };
    out.push(open);
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(&style.item);
        }
        new_line(depth + 1, out);
        write(item, out)?;
    }
    if !items.is_empty() {
        new_line(depth, out);
    }
    out.push(close);
    Ok(())
}

/// Keys are strings in JSON: Python spells the other kinds the JSON way.
fn key_text(key: &Value) -> String {
    match key.kind() {
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_owned(),
        ValueKind::Number => number(key),
        _ => key.to_string(),
    }
}

/// Prints a value of a template, for the engine.
pub(super) fn print(out: &mut Output, value: &Value, budget: &Budget) -> Result<(), Error> {
    let printed: String;
    let text = match value.as_str() {
        Some(text) => text,
        None => {
            printed = str_of(value)?;
            &printed
        }
    };
    budget.charge(text.len())?;
    let written = out.write_str(text);
    written.map_err(|_| Error::new(ErrorKind::WriteFailure, "the output is full"))
}

/// The filter `indent(width=4, first=false, blank=false)`; the engine's own drops line ends.
pub(super) fn indent(
    text: &str,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    options: Kwargs,
) -> Result<String, Error> {
    let width = width.or(options.get::<Option<Value>>("width")?);
    let first = first.or(options.get("first")?).unwrap_or(false);
    let blank = blank.or(options.get("blank")?).unwrap_or(false);
    options.assert_all_used()?;
    let width = match width {
        None => " ".repeat(4),
        Some(text) if text.as_str().is_some() => text.to_string(),
        Some(count) => " ".repeat(usize::try_from(count)?.min(4096)),
    };
    let mut out = String::with_capacity(text.len() + width.len());
    for (index, line) in lines(text).into_iter().enumerate() {
        out.push_str(if index > 0 { "\n" } else { "" });
        let indented = if index == 0 { first } else { blank || !line.is_empty() };
        out.push_str(if indented { &width } else { "" });
        out.push_str(line);
    }
    Ok(out)
}

/// The lines of a text by Python's line ends; a last one that is empty counts.
fn lines(text: &str) -> Vec<&str> {
    let is_end = |c: char| matches!(c, '\n'..='\r' | '\u{1C}'..='\u{1E}' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some((at, end)) = rest.char_indices().find(|(_, c)| is_end(*c)) {
        lines.push(rest.get(..at).unwrap_or_default());
        rest = rest.get(at + end.len_utf8()..).unwrap_or_default();
        rest = if end == '\r' { rest.strip_prefix('\n').unwrap_or(rest) } else { rest };
    }
    lines.push(rest);
    lines
}

/// The `string` filter.
pub(super) fn string(value: &Value) -> Result<Value, Error> {
    match value.as_str() {
        Some(_) => Ok(value.clone()),
        None => Ok(Value::from(str_of(value)?)),
    }
}

/// What Python's `str` gives.
fn str_of(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    match value.kind() {
        ValueKind::Invalid => {
            return Err(Error::new(ErrorKind::InvalidOperation, value.to_string()));
        }
        ValueKind::Number if !value.is_integer() => out = float(value),
        ValueKind::Seq | ValueKind::Map => write_repr(value, 0, &mut out)?,
        _ => out = value.to_string(),
    }
    Ok(out)
}

/// What Python's `repr` gives.
fn write_repr(value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(ErrorKind::InvalidOperation, "nested too deep to print"));
    }
    match value.kind() {
        ValueKind::Number if !value.is_integer() => out.push_str(&float(value)),
        ValueKind::Seq => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            let mut count = 0;
            for item in value.try_iter()? {
                out.push_str(if count > 0 { ", " } else { "" });
                write_repr(&item, depth + 1, out)?;
                count += 1;
            }
            out.push_str(if value.is_tuple() && count == 1 { "," } else { "" });
            out.push(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(&key, depth + 1, out)?;
                out.push_str(": ");
                write_repr(&value.get_item(&key)?, depth + 1, out)?;
            }
            out.push('}');
        }
        // The engine's debug form of strings and of the simple values is Python's.
        _ => out.push_str(&format!("{value:?}")),
    }
    Ok(())
}

/// A float as Python prints it.
fn float(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(float) if float.is_nan() => "nan".to_owned(),
        Ok(float) if float.is_infinite() => if float > 0.0 { "inf" } else { "-inf" }.to_owned(),
        _ => number(value),
    }
}

/// The test `iterable`: the engine also iterates over none, Python does not.
pub(super) fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// The test `sequence`: in Python everything with a length and items.
pub(super) fn is_sequence(value: &Value) -> bool {
    let kinds = [ValueKind::Seq, ValueKind::Map, ValueKind::String, ValueKind::Undefined];
    kinds.contains(&value.kind())
}

/// A number as Python prints it: floats in their shortest form, with an exponent below 1e-4 and
/// from 1e16 on.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let Ok(float) = f64::try_from(value.clone()) else { return value.to_string() };
    if float.is_nan() {
        return "NaN".to_owned();
    }
    if float.is_infinite() {
        return if float > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let magnitude = float.abs();
    if float == 0.0 || (1e-4..1e16).contains(&magnitude) {
        return format!("{float:?}");
    }
    let text = format!("{float:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}

fn write_string(text: &str, ascii: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{C}' => out.push_str("\\f"),
            c if c < ' ' || (ascii && c > '~') => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Methods of Python's `str` beyond those of the engine's compatibility layer.
pub(super) fn methods(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if method == REVERSED {
        let () = from_args(args)?;
        return reversed(value);
    }
    let Some(text) = value.as_str() else {
        return minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args);
    };
    match method {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "partition" => {
            let (mark,): (&str,) = from_args(args)?;
            let (left, right) = text.split_once(mark).unwrap_or((text, ""));
            let found = if left.len() < text.len() { mark } else { "" };
            Ok(strings([left, found, right]))
        }
        "rpartition" => {
            let (mark,): (&str,) = from_args(args)?;
            let (left, right) = text.rsplit_once(mark).unwrap_or(("", text));
            let found = if right.len() < text.len() { mark } else { "" };
            Ok(strings([left, found, right]))
        }
        "rsplit" => {
            let (mark, most): (&str, Option<usize>) = from_args(args)?;
            let most = most.map_or(usize::MAX, |most| most.saturating_add(1));
            let mut parts: Vec<&str> = text.rsplitn(most, mark).collect();
            parts.reverse();
            Ok(strings(parts))
        }
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args),
    }
}

/// `value[::-1]`.
fn reversed(value: &Value) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        return Ok(Value::from(text.chars().rev().collect::<String>()));
    }
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        let message = format!("a value of the kind {} cannot be reversed", value.kind());
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    let mut items: Vec<Value> = value.try_iter()?.collect();
    items.reverse();
    Ok(Value::from(items))
}

fn strings<'t>(texts: impl IntoIterator<Item = &'t str>) -> Value {
    Value::from(texts.into_iter().map(Value::from).collect::<Vec<Value>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_print_as_python_does() {
        let cases = [
            (Value::from(1), "1"),
            (Value::from(1.0), "1.0"),
            (Value::from(0.1), "0.1"),
            (Value::from(1e-5), "1e-05"),
            (Value::from(1.5e300), "1.5e+300"),
            (Value::from(1e16), "1e+16"),
            (Value::from(123456789012345.6), "123456789012345.6"),
            (Value::from(-0.0), "-0.0"),
        ];
        for (value, expect) in cases {
            assert_eq!(number(&value), expect);
        }
    }
}
