//! What templates compute with, as Python would: values, their truth, order and printed forms.

use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::rc::Rc;

use serde_json::Value as Json;

use super::TemplateError;
use super::syntax::Math;
use super::text::{Text, Writer};

/// Deepest nesting of a value.
const MAX_DEPTH: usize = 128;
/// What a rendering may spend: 1 for a byte copied or looked at, [`STEP`] for a step, [`LOOK`] for
/// a value copied. About a quarter of a second and less memory than this.
pub(super) const ALLOWANCE: u64 = 48 << 20;
/// How often each byte and value of the request may be looked at beyond that.
const PER_INPUT: u64 = 32;
/// Price of an expression or statement.
pub(super) const STEP: usize = 16;
/// Price of a value copied: no less than its size.
pub(super) const LOOK: usize = 64;

pub(super) type Result<T> = std::result::Result<T, TemplateError>;

/// An error of the template on these messages.
pub(super) fn failed<T>(reason: impl Into<String>) -> Result<T> {
    Err(TemplateError::Render { reason: reason.into() })
}

/// What one rendering has left to spend. Everything whose work grows with its input asks first.
#[derive(Debug)]
pub(super) struct Meter {
    left: Cell<u64>,
}

impl Meter {
    /// For a request whose values weigh this much.
    pub(super) fn new(allowance: u64, weight: usize) -> Meter {
        let more = PER_INPUT.saturating_mul(weight as u64);
        Meter { left: Cell::new(allowance.saturating_add(more)) }
    }

    pub(super) fn spend(&self, amount: usize) -> Result<()> {
        match self.left.get().checked_sub(amount as u64) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => Err(TemplateError::OutOfFuel),
        }
    }
}

#[derive(Debug, Clone)]
pub(super) enum Value {
    Undefined,
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Text),
    List(Rc<List>),
    Map(Rc<Map>),
    Namespace(Rc<RefCell<Vec<(String, Value)>>>),
    Loop(Rc<Loop>),
    /// One of the rendering's macros.
    Macro(usize),
    Global(Global),
    /// A method that is not called yet.
    Method(Rc<(Value, String)>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Global {
    Range,
    Dict,
    Namespace,
    Raise,
    Now,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    List,
    Tuple,
    /// What a Python generator gives: true, without length or places.
    Lazy,
}

#[derive(Debug)]
pub(super) struct List {
    pub(super) items: Vec<Value>,
    pub(super) kind: Kind,
    depth: usize,
}

#[derive(Debug)]
pub(super) struct Map {
    pub(super) entries: Vec<(Value, Value)>,
    depth: usize,
}

/// The variable `loop`.
#[derive(Debug)]
pub(super) struct Loop {
    pub(super) items: Rc<Vec<Value>>,
    pub(super) index: usize,
    pub(super) depth: usize,
    /// Of a recursive loop: which.
    pub(super) recursive: Option<usize>,
    pub(super) changed: Rc<RefCell<Option<Vec<Value>>>>,
}

impl Map {
    /// The value of a key; `None` if it has none.
    pub(super) fn get(&self, key: &Value, meter: &Meter) -> Result<Option<&Value>> {
        for (name, value) in &self.entries {
            if equal(name, key, meter)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    pub(super) fn get_str(&self, key: &str, meter: &Meter) -> Result<Option<&Value>> {
        for (name, value) in &self.entries {
            meter.spend(1)?;
            if let Value::Str(name) = name
                && same_text(name.as_str(), key, meter)?
            {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }
}

impl Value {
    pub(super) fn list(items: Vec<Value>, kind: Kind) -> Result<Value> {
        let depth = 1 + deepest(items.iter())?;
        Ok(Value::List(Rc::new(List { items, kind, depth })))
    }

    /// A later value of a key takes the place of an earlier one.
    pub(super) fn map(entries: Vec<(Value, Value)>, meter: &Meter) -> Result<Value> {
        let mut unique: Vec<(Value, Value)> = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            meter.spend(LOOK)?;
            if matches!(key, Value::List(_) | Value::Map(_) | Value::Namespace(_)) {
                return failed(format!("{} cannot be a key", key.kind()));
            }
            let mut known = None;
            for (at, (name, _)) in unique.iter().enumerate() {
                if equal(name, &key, meter)? {
                    known = Some(at);
                    break;
                }
            }
            match known.and_then(|at| unique.get_mut(at)) {
                Some((_, slot)) => *slot = value,
                None => unique.push((key, value)),
            }
        }
        Value::unique_map(unique)
    }

    fn unique_map(entries: Vec<(Value, Value)>) -> Result<Value> {
        let depth = 1 + deepest(entries.iter().flat_map(|(key, value)| [key, value]))?;
        Ok(Value::Map(Rc::new(Map { entries, depth })))
    }

    /// A value somebody else made, with all its texts.
    pub(super) fn from_json(json: &Json) -> Result<Value> {
        Value::nested(json, MAX_DEPTH)
    }

    fn nested(json: &Json, depth: usize) -> Result<Value> {
        let Some(depth) = depth.checked_sub(1) else { return Err(TemplateError::TooDeep) };
        Ok(match json {
            Json::Null => Value::None,
            Json::Bool(value) => Value::Bool(*value),
            Json::Number(number) => match (number.as_i128(), number.as_f64()) {
                (Some(value), _) => Value::Int(value),
                (None, Some(value)) => Value::Float(value),
                (None, None) => Value::None,
            },
            Json::String(text) => Value::Str(Text::foreign(text.as_str())),
            Json::Array(items) => {
                let items = items.iter().map(|item| Value::nested(item, depth));
                Value::list(items.collect::<Result<_>>()?, Kind::List)?
            }
            Json::Object(entries) => {
                let entry = |(key, value): (&String, &Json)| {
                    Ok((Value::Str(Text::foreign(key.as_str())), Value::nested(value, depth)?))
                };
                Value::unique_map(entries.iter().map(entry).collect::<Result<_>>()?)?
            }
        })
    }

    pub(super) fn is_true(&self) -> bool {
        match self {
            Value::Undefined | Value::None => false,
            Value::Bool(value) => *value,
            Value::Int(value) => *value != 0,
            Value::Float(value) => *value != 0.0,
            Value::Str(text) => text.len() > 0,
            Value::List(list) => list.kind == Kind::Lazy || !list.items.is_empty(),
            Value::Map(map) => !map.entries.is_empty(),
            _ => true,
        }
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        match self {
            Value::Str(text) => Some(text.as_str()),
            _ => None,
        }
    }

    /// Numbers without a fraction; Python counts truth values among them.
    pub(super) fn as_int(&self) -> Option<i128> {
        match self {
            Value::Bool(value) => Some(i128::from(*value)),
            Value::Int(value) => Some(*value),
            _ => None,
        }
    }

    pub(super) fn as_float(&self) -> Option<f64> {
        match self {
            Value::Float(value) => Some(*value),
            other => other.as_int().map(|value| value as f64),
        }
    }

    /// Name of the kind, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::Undefined => "an undefined value",
            Value::None => "none",
            Value::Bool(_) => "a truth value",
            Value::Int(_) | Value::Float(_) => "a number",
            Value::Str(_) => "a string",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
            Value::Namespace(_) => "a namespace",
            Value::Loop(_) => "the loop",
            Value::Macro(_) | Value::Global(_) | Value::Method(_) => "a function",
        }
    }

    /// What a loop goes through.
    pub(super) fn items(&self, meter: &Meter) -> Result<Vec<Value>> {
        Ok(match self {
            Value::Undefined => Vec::new(),
            Value::List(list) => {
                meter.spend(LOOK * list.items.len())?;
                list.items.clone()
            }
            Value::Map(map) => {
                meter.spend(LOOK * map.entries.len())?;
                map.entries.iter().map(|(key, _)| key.clone()).collect()
            }
            Value::Str(text) => {
                meter.spend(2 * LOOK * text.len())?;
                let ends = |(at, c): (usize, char)| Value::Str(text.slice(at..at + c.len_utf8()));
                text.as_str().char_indices().map(ends).collect()
            }
            other => return failed(format!("{} is not iterable", other.kind())),
        })
    }

    pub(super) fn length(&self) -> Result<usize> {
        match self {
            Value::Undefined => Ok(0),
            Value::Str(text) => Ok(text.as_str().chars().count()),
            Value::List(list) if list.kind != Kind::Lazy => Ok(list.items.len()),
            Value::Map(map) => Ok(map.entries.len()),
            other => failed(format!("{} has no length", other.kind())),
        }
    }

    /// What Python's `str` gives.
    pub(super) fn print(&self, meter: &Meter) -> Result<Text> {
        match self {
            Value::Str(text) => Ok(text.clone()),
            Value::Undefined => Ok(Text::own("")),
            other => {
                let mut out = Writer::default();
                other.write_repr(&mut out, meter)?;
                Ok(out.finish())
            }
        }
    }

    /// What Python's `repr` gives. Numbers are the template's own: it asked for them.
    pub(super) fn write_repr(&self, out: &mut Writer, meter: &Meter) -> Result<()> {
        meter.spend(LOOK)?;
        match self {
            Value::Undefined => out.push("Undefined", true),
            Value::None => out.push("None", true),
            Value::Bool(value) => out.push(if *value { "True" } else { "False" }, true),
            Value::Int(value) => out.push(&value.to_string(), true),
            Value::Float(value) => out.push(&float(*value), true),
            Value::Str(text) => {
                let grown = text.as_str().chars().filter(|c| !is_printable(*c)).count();
                meter.spend(4 * text.cost() + 24 * grown)?;
                write_quoted(text, out);
            }
            Value::List(list) => {
                let (open, close) = match list.kind {
                    Kind::Tuple => ("(", ")"),
                    Kind::List => ("[", "]"),
                    Kind::Lazy => {
                        return failed("a generator cannot be printed; use the filter list");
                    }
                };
                out.push(open, false);
                for (at, item) in list.items.iter().enumerate() {
                    out.push(if at > 0 { ", " } else { "" }, false);
                    item.write_repr(out, meter)?;
                }
                let alone = list.kind == Kind::Tuple && list.items.len() == 1;
                out.push(if alone { "," } else { "" }, false);
                out.push(close, false);
            }
            Value::Map(map) => {
                out.push("{", false);
                for (at, (key, value)) in map.entries.iter().enumerate() {
                    out.push(if at > 0 { ", " } else { "" }, false);
                    key.write_repr(out, meter)?;
                    out.push(": ", false);
                    value.write_repr(out, meter)?;
                }
                out.push("}", false);
            }
            other => return failed(format!("{} cannot be printed", other.kind())),
        }
        Ok(())
    }
}

/// The deepest of values that are put into one.
fn deepest<'v>(values: impl Iterator<Item = &'v Value>) -> Result<usize> {
    let mut deepest = 0;
    for value in values {
        deepest = deepest.max(match value {
            Value::List(list) => list.depth,
            Value::Map(map) => map.depth,
            // A namespace can change: in a value it could come to hold that value.
            Value::Namespace(_) => return failed("a namespace cannot be part of a value"),
            Value::Method(method) => match &method.0 {
                Value::List(list) => list.depth,
                Value::Map(map) => map.depth,
                _ => 0,
            },
            Value::Loop(_) => return failed("the loop cannot be part of a value"),
            _ => 0,
        });
    }
    // A value goes into Value::nested's limit plus what templates wrap around it.
    if deepest > 2 * MAX_DEPTH { Err(TemplateError::OutOfFuel) } else { Ok(deepest) }
}

/// Whether two texts are the same; those of one length are looked at.
fn same_text(a: &str, b: &str, meter: &Meter) -> Result<bool> {
    if a.len() != b.len() {
        return Ok(false);
    }
    meter.spend(a.len())?;
    Ok(a == b)
}

/// Python's `==`. Pays for every value it comes to: shared lists can hold more than memory does.
pub(super) fn equal(a: &Value, b: &Value, meter: &Meter) -> Result<bool> {
    meter.spend(1)?;
    Ok(match (a, b) {
        (Value::Undefined, Value::Undefined) | (Value::None, Value::None) => true,
        (Value::Str(a), Value::Str(b)) => same_text(a.as_str(), b.as_str(), meter)?,
        (Value::List(a), Value::List(b)) => {
            meter.spend(STEP)?;
            a.kind == b.kind && all_equal(&a.items, &b.items, meter)?
        }
        (Value::Map(a), Value::Map(b)) => {
            meter.spend(STEP)?;
            if a.entries.len() != b.entries.len() {
                return Ok(false);
            }
            for (key, value) in &a.entries {
                let Some(other) = b.get(key, meter)? else { return Ok(false) };
                if !equal(value, other, meter)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Namespace(a), Value::Namespace(b)) => Rc::ptr_eq(a, b),
        (Value::Macro(a), Value::Macro(b)) => a == b,
        (Value::Global(a), Value::Global(b)) => a == b,
        _ => match (a.as_int(), b.as_int()) {
            (Some(a), Some(b)) => a == b,
            _ => a.as_float().zip(b.as_float()).is_some_and(|(a, b)| a == b),
        },
    })
}

/// Whether two lists hold the same, place by place.
pub(super) fn all_equal(a: &[Value], b: &[Value], meter: &Meter) -> Result<bool> {
    if a.len() != b.len() {
        return Ok(false);
    }
    for (a, b) in a.iter().zip(b) {
        if !equal(a, b, meter)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The place of the first item that equals a value.
pub(super) fn place_of(wanted: &Value, items: &[Value], meter: &Meter) -> Result<Option<usize>> {
    for (at, item) in items.iter().enumerate() {
        if equal(item, wanted, meter)? {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// Python's `<` and its like. Pays as [`equal`] does.
pub(super) fn order(a: &Value, b: &Value, meter: &Meter) -> Result<Ordering> {
    meter.spend(1)?;
    let none =
        || TemplateError::Render { reason: format!("{} and {} have no order", a.kind(), b.kind()) };
    match (a, b) {
        (Value::Str(a), Value::Str(b)) => {
            meter.spend(a.len().min(b.len()))?;
            Ok(a.as_str().cmp(b.as_str()))
        }
        (Value::List(a), Value::List(b)) if a.kind == b.kind => {
            meter.spend(STEP)?;
            for (a, b) in a.items.iter().zip(&b.items) {
                if !equal(a, b, meter)? {
                    return order(a, b, meter);
                }
            }
            Ok(a.items.len().cmp(&b.items.len()))
        }
        _ => match (a.as_int(), b.as_int()) {
            (Some(a), Some(b)) => Ok(a.cmp(&b)),
            _ => {
                let pair = a.as_float().zip(b.as_float());
                pair.and_then(|(a, b)| a.partial_cmp(&b)).ok_or_else(none)
            }
        },
    }
}

/// Sorted by a key, equal ones staying in order. The library's sort takes no comparison that can
/// fail, and may panic where one is not an order.
pub(super) fn sort<T>(
    mut left: Vec<T>,
    key: &impl Fn(&T) -> &Value,
    meter: &Meter,
) -> Result<Vec<T>> {
    meter.spend(LOOK * left.len())?;
    if left.len() < 2 {
        return Ok(left);
    }
    let right = sort(left.split_off(left.len() / 2), key, meter)?;
    let left = sort(left, key, meter)?;
    let mut sorted = Vec::with_capacity(left.len() + right.len());
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        let first = if order(key(b), key(a), meter)?.is_lt() { &mut right } else { &mut left };
        sorted.extend(first.next());
    }
    sorted.extend(left);
    sorted.extend(right);
    Ok(sorted)
}

/// Python's `a in b`.
pub(super) fn contains(whole: &Value, part: &Value, meter: &Meter) -> Result<bool> {
    meter.spend(LOOK)?;
    match (whole, part) {
        (Value::Undefined, _) => Ok(false),
        (Value::Str(whole), Value::Str(part)) => {
            meter.spend(whole.len())?;
            Ok(whole.as_str().contains(part.as_str()))
        }
        (Value::Str(_), other) => failed(format!("{} cannot be part of a string", other.kind())),
        (Value::Map(map), key) => Ok(map.get(key, meter)?.is_some()),
        (Value::List(list), part) => Ok(place_of(part, &list.items, meter)?.is_some()),
        (other, _) => failed(format!("{} cannot be searched", other.kind())),
    }
}

/// `a + b` and its like.
pub(super) fn math(a: &Value, op: Math, b: &Value, meter: &Meter) -> Result<Value> {
    match (op, a, b) {
        (Math::Add, Value::Str(a), Value::Str(b)) => joined(&[a, b], meter),
        (Math::Add, Value::List(a), Value::List(b)) if a.kind == b.kind && a.kind != Kind::Lazy => {
            meter.spend(LOOK * (a.items.len() + b.items.len()))?;
            Value::list(a.items.iter().chain(&b.items).cloned().collect(), a.kind)
        }
        (Math::Mul, Value::Str(text), times) | (Math::Mul, times, Value::Str(text))
            if times.as_int().is_some() =>
        {
            let times =
                times.as_int().map_or(0, |n| usize::try_from(n.max(0)).unwrap_or(usize::MAX));
            meter.spend(text.cost().max(1).saturating_mul(times))?;
            let mut out = Writer::default();
            (0..times).for_each(|_| out.push_text(text));
            Ok(Value::Str(out.finish()))
        }
        (Math::Mul, Value::List(list), times) | (Math::Mul, times, Value::List(list))
            if times.as_int().is_some() =>
        {
            let times =
                times.as_int().map_or(0, |n| usize::try_from(n.max(0)).unwrap_or(usize::MAX));
            meter.spend(LOOK.saturating_mul(list.items.len()).max(1).saturating_mul(times))?;
            let items = std::iter::repeat_n(&list.items, times).flatten().cloned().collect();
            Value::list(items, list.kind)
        }
        (Math::Rem, Value::Str(format), values) => super::methods::percent(format, values, meter),
        _ => match (a.as_int(), b.as_int(), a.as_float(), b.as_float()) {
            (Some(a), Some(b), ..) if op != Math::Div => integers(a, op, b),
            (.., Some(a), Some(b)) => floats(a, op, b),
            _ => failed(format!("{} and {} cannot be computed with", a.kind(), b.kind())),
        },
    }
}

/// Texts one behind the other.
pub(super) fn joined(texts: &[&Text], meter: &Meter) -> Result<Value> {
    let mut out = Writer::default();
    for text in texts {
        meter.spend(text.cost())?;
        out.push_text(text);
    }
    Ok(Value::Str(out.finish()))
}

fn integers(a: i128, op: Math, b: i128) -> Result<Value> {
    let found = match op {
        Math::Add => a.checked_add(b),
        Math::Sub => a.checked_sub(b),
        Math::Mul => a.checked_mul(b),
        Math::FloorDiv => {
            let floor = a.checked_rem(b).is_some_and(|rest| rest != 0 && (rest < 0) != (b < 0));
            a.checked_div(b).map(|quotient| quotient - i128::from(floor))
        }
        Math::Rem => a.checked_rem(b).map(|r| if r != 0 && (r < 0) != (b < 0) { r + b } else { r }),
        Math::Pow if b < 0 => return floats(a as f64, op, b as f64),
        Math::Pow | Math::Div => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
    };
    match found {
        Some(value) => Ok(Value::Int(value)),
        None => failed("a division by zero, or a number too large"),
    }
}

fn floats(a: f64, op: Math, b: f64) -> Result<Value> {
    if b == 0.0 && matches!(op, Math::Div | Math::FloorDiv | Math::Rem) {
        return failed("a division by zero");
    }
    Ok(Value::Float(match op {
        Math::Add => a + b,
        Math::Sub => a - b,
        Math::Mul => a * b,
        Math::Div => a / b,
        Math::FloorDiv => (a / b).floor(),
        Math::Rem => a - b * (a / b).floor(),
        Math::Pow => a.powf(b),
    }))
}

/// A float as Python prints it: the shortest form, with an exponent below 1e-4 and from 1e16 on.
pub(super) fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    if value == 0.0 || (1e-4..1e16).contains(&value.abs()) {
        return format!("{value:?}");
    }
    let text = format!("{value:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}

/// A string as Python's `repr` quotes it.
fn write_quoted(text: &Text, out: &mut Writer) {
    let whole = text.as_str();
    let quote = if whole.contains('\'') && !whole.contains('"') { '"' } else { '\'' };
    let mut utf8 = [0; 4];
    out.push(quote.encode_utf8(&mut utf8), false);
    for (run, own) in text.runs() {
        let mut escaped = String::with_capacity(run.len());
        for c in run.chars() {
            match c {
                '\n' => escaped.push_str("\\n"),
                '\r' => escaped.push_str("\\r"),
                '\t' => escaped.push_str("\\t"),
                '\\' => escaped.push_str("\\\\"),
                c if c == quote => escaped.extend(['\\', c]),
                c if is_printable(c) => escaped.push(c),
                c if (c as u32) < 0x100 => escaped.push_str(&format!("\\x{:02x}", c as u32)),
                c if (c as u32) < 0x10000 => escaped.push_str(&format!("\\u{:04x}", c as u32)),
                c => escaped.push_str(&format!("\\U{:08x}", c as u32)),
            }
        }
        out.push(&escaped, own);
    }
    out.push(quote.encode_utf8(&mut utf8), false);
}

/// Python's `isprintable` for the characters that matter: control, format and private ones and
/// separators other than the space are not.
fn is_printable(c: char) -> bool {
    let hidden = matches!(c,
        '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}' | '\u{e000}'..='\u{f8ff}' | '\u{fdd0}'..='\u{fdef}'
        | '\u{fffe}' | '\u{ffff}' | '\u{e0000}'..='\u{10ffff}');
    !c.is_control() && !hidden && (c == ' ' || !c.is_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_python_does() {
        let cases = [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e-5, "1e-05"),
            (1.5e300, "1.5e+300"),
            (1e16, "1e+16"),
            (123456789012345.6, "123456789012345.6"),
            (-0.0, "-0.0"),
            (f64::INFINITY, "inf"),
        ];
        for (value, expect) in cases {
            assert_eq!(float(value), expect);
        }
    }

    #[test]
    fn integers_divide_as_python_does() {
        let cases = [(7, 2, 3, 1), (-7, 2, -4, 1), (7, -2, -4, -1), (-7, -2, 3, -1), (6, 3, 2, 0)];
        for (a, b, quotient, rest) in cases {
            let found = [Math::FloorDiv, Math::Rem].map(|op| integers(a, op, b).expect("divides"));
            assert_eq!(found.map(|v| v.as_int()), [Some(quotient), Some(rest)], "{a} {b}");
        }
        assert!(integers(1, Math::Rem, 0).is_err() && integers(i128::MAX, Math::Add, 1).is_err());
    }

    #[test]
    fn values_nest_to_a_limit() {
        let deep =
            |levels: usize| (0..levels).fold(Json::Null, |inside, _| Json::Array(vec![inside]));
        assert!(Value::from_json(&deep(100)).is_ok());
        assert!(matches!(Value::from_json(&deep(200)), Err(TemplateError::TooDeep)));
        let wrap = |value: Value| Value::list(vec![value], Kind::List);
        let wrapped = (0..400).try_fold(Value::None, |value, _| wrap(value));
        assert!(matches!(wrapped, Err(TemplateError::OutOfFuel)));
    }
}
