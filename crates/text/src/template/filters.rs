//! Jinja's filters and tests.

use super::call::{Given, optional_int, optional_text, size, text};
use super::json::tojson;
use super::lexer::is_blank;
use super::methods::{self, cased, join, lines, percent, replace, stripped};
use super::render::{Rendering, attribute, item};
use super::syntax::Math;
use super::text::{Text, Writer};
use super::value::{
    Kind, LOOK, Meter, Result, Value, contains, equal, failed, joined, math, order, place_of, sort,
};

/// Applies a filter by name.
pub(super) fn apply(
    rendering: &mut Rendering<'_>,
    name: &str,
    value: Value,
    given: Given,
) -> Result<Value> {
    match name {
        "map" => mapped(rendering, &value, given),
        "select" | "reject" | "selectattr" | "rejectattr" => {
            selected(name, &value, given, &rendering.meter)
        }
        "upper" | "lower" | "title" | "capitalize" | "trim" | "replace" | "indent" | "center"
        | "format" | "truncate" | "wordcount" | "string" | "safe" | "escape" | "e" => {
            of_text(name, &value, given, &rendering.meter)
        }
        "abs" | "int" | "float" | "round" => {
            rendering.meter.spend(LOOK + text_cost(&value))?;
            number(name, &value, given)
        }
        _ => of_list(name, value, given, &rendering.meter),
    }
}

fn of_text(name: &str, value: &Value, given: Given, meter: &Meter) -> Result<Value> {
    if name == "format" {
        let format = text("format", Some(value.clone()))?;
        let values = Value::list(given.positional.into(), Kind::Tuple)?;
        return percent(&format, &values, meter);
    }
    let source = value.print(meter)?;
    meter.spend(LOOK + 2 * source.cost())?;
    Ok(Value::Str(match name {
        "trim" => {
            let [chars] = given.bind(name, ["chars"])?;
            stripped(&source, optional_text(name, chars)?.as_ref(), (true, true), meter)?
        }
        "replace" => {
            let [old, new, count] = given.bind(name, ["old", "new", "count"])?;
            let count = optional_int(name, count)?.filter(|n| *n >= 0).map_or(usize::MAX, size);
            replace(&source, &text(name, old)?, &text(name, new)?, count, meter)?
        }
        "indent" => indent(&source, given, meter)?,
        "center" => {
            let [width] = given.bind(name, ["width"])?;
            let given =
                Given { positional: [width.unwrap_or(Value::Int(80))].into(), named: vec![] };
            return methods::call(&Value::Str(source), "center", given, meter);
        }
        "truncate" => truncate(&source, given)?,
        "wordcount" => {
            given.none(name)?;
            let in_word = |c: char| c.is_alphanumeric() || c == '_';
            let words = source.as_str().split(|c| !in_word(c)).filter(|word| !word.is_empty());
            return Ok(Value::Int(words.count() as i128));
        }
        "title" => {
            given.none(name)?;
            meter.spend(source.growth())?;
            titled(&source)
        }
        "string" | "safe" => given.none(name).map(|()| source)?,
        "escape" | "e" => {
            given.none(name)?;
            let grows = |c: &u8| matches!(c, b'&' | b'<' | b'>' | b'\'' | b'"');
            meter.spend(20 * source.as_str().bytes().filter(grows).count())?;
            source.map_runs(|run| {
                let run = run.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
                run.replace('\'', "&#39;").replace('"', "&#34;")
            })
        }
        _ => {
            given.none(name)?;
            cased(&source, name, meter)?
        }
    }))
}

/// Jinja's own title case: words begin after blanks and opening brackets, not after apostrophes.
fn titled(source: &Text) -> Text {
    let mut out = Writer::default();
    let mut starts = true;
    for (run, own) in source.runs() {
        let mut changed = String::with_capacity(run.len());
        for c in run.chars() {
            match starts {
                true => changed.extend(c.to_uppercase()),
                false => changed.extend(c.to_lowercase()),
            }
            starts = is_blank(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
        }
        out.push(&changed, own);
    }
    out.finish()
}

fn indent(source: &Text, given: Given, meter: &Meter) -> Result<Text> {
    let [width, first, blank] = given.bind("indent", ["width", "first", "blank"])?;
    let width = match width {
        None => Text::own("    "),
        Some(Value::Str(text)) => text,
        other => {
            let width = optional_int("indent", other)?.map_or(0, size);
            meter.spend(width)?;
            Text::own(" ".repeat(width))
        }
    };
    let is_on = |flag: Option<Value>| flag.is_some_and(|flag| flag.is_true());
    let (first, blank) = (is_on(first), is_on(blank));
    let ends_line = Text::own("\n");
    meter.spend(LOOK * source.as_str().matches(methods::is_line_end).count())?;
    let mut all = lines(source, false);
    if all.is_empty() || ends_line_before(source.as_str()) {
        all.push(Text::own(""));
    }
    let mut out = Writer::default();
    for (at, line) in all.iter().enumerate() {
        meter.spend(LOOK + width.cost() + line.cost())?;
        if at > 0 {
            out.push_text(&ends_line);
        }
        let indents = if at == 0 { first } else { blank || line.len() > 0 };
        if indents {
            out.push_text(&width);
        }
        out.push_text(line);
    }
    Ok(out.finish())
}

/// Whether a line break behind the text would start another line.
fn ends_line_before(whole: &str) -> bool {
    whole.ends_with(methods::is_line_end) && !whole.ends_with('\r')
}

fn truncate(source: &Text, given: Given) -> Result<Text> {
    let names = ["length", "killwords", "end", "leeway"];
    let [length, kill, end, leeway] = given.bind("truncate", names)?;
    let length = optional_int("truncate", length)?.map_or(255, size);
    let leeway = optional_int("truncate", leeway)?.map_or(5, size);
    let end = optional_text("truncate", end)?.unwrap_or_else(|| Text::own("..."));
    let whole = source.as_str();
    if whole.chars().count() <= length.saturating_add(leeway) {
        return Ok(source.clone());
    }
    let Some(keep) = length.checked_sub(end.as_str().chars().count()) else {
        return failed("truncate: the end is longer than the length");
    };
    let cut = whole.char_indices().nth(keep).map_or(whole.len(), |(at, _)| at);
    let kept = whole.get(..cut).unwrap_or_default();
    let cut = match kill.is_some_and(|kill| kill.is_true()) {
        true => cut,
        false => kept.rfind(' ').unwrap_or(cut),
    };
    let mut out = Writer::default();
    out.push_text(&source.slice(0..cut));
    out.push_text(&end);
    Ok(out.finish())
}

fn number(name: &str, value: &Value, given: Given) -> Result<Value> {
    match name {
        "abs" => {
            given.none(name)?;
            match (value.as_int(), value.as_float()) {
                (Some(value), _) => Ok(Value::Int(value.saturating_abs())),
                (None, Some(value)) => Ok(Value::Float(value.abs())),
                _ => failed(format!("abs of {}", value.kind())),
            }
        }
        "int" => {
            let [default, base] = given.bind(name, ["default", "base"])?;
            let base = optional_int(name, base)?.unwrap_or(10);
            let Some(base) = u32::try_from(base).ok().filter(|base| (2..=36).contains(base)) else {
                return failed("int: a base of 2 to 36");
            };
            let read = |text: &str| {
                let text = text.trim();
                let whole = i128::from_str_radix(text, base).ok();
                let fraction = || text.parse::<f64>().ok().filter(|x| x.is_finite());
                whole.or_else(|| fraction().map(|x| x as i128))
            };
            let found = match value {
                Value::Str(text) => read(text.as_str()),
                Value::Float(value) => value.is_finite().then_some(*value as i128),
                other => other.as_int(),
            };
            Ok(found.map(Value::Int).or(default).unwrap_or(Value::Int(0)))
        }
        "float" => {
            let [default] = given.bind(name, ["default"])?;
            let found = match value {
                Value::Str(text) => text.as_str().trim().parse().ok(),
                other => other.as_float(),
            };
            Ok(found.map(Value::Float).or(default).unwrap_or(Value::Float(0.0)))
        }
        _ => {
            let [places, method] = given.bind("round", ["precision", "method"])?;
            let places = optional_int("round", places)?.unwrap_or(0).clamp(-300, 300) as i32;
            let Some(float) = value.as_float() else {
                return failed(format!("round of {}", value.kind()));
            };
            let method = method.as_ref().and_then(Value::as_str).unwrap_or("common");
            if method == "common" && places >= 0 {
                // Python rounds the decimal form, halves to even, as printing does.
                let printed = || format!("{float:.*}", places as usize).parse();
                return Ok(match value.as_int() {
                    Some(value) => Value::Int(value),
                    None => Value::Float(printed().unwrap_or(float)),
                });
            }
            let scale = 10f64.powi(places);
            let scaled = float * scale;
            let rounded = match method {
                "common" => scaled.round_ties_even(),
                "ceil" => scaled.ceil(),
                "floor" => scaled.floor(),
                other => return failed(format!("round: no method {other:?}")),
            };
            if method == "common" && value.as_int().is_some() {
                return Ok(Value::Int((rounded / scale) as i128));
            }
            Ok(Value::Float(rounded / scale))
        }
    }
}

fn of_list(name: &str, value: Value, given: Given, meter: &Meter) -> Result<Value> {
    match name {
        "tojson" => tojson(&value, given, meter),
        "default" | "d" => {
            let [default, falsy] = given.bind(name, ["default_value", "boolean"])?;
            let falsy = falsy.is_some_and(|falsy| falsy.is_true());
            let missing = matches!(value, Value::Undefined) || falsy && !value.is_true();
            Ok(if missing { default.unwrap_or_else(|| Value::Str(Text::own(""))) } else { value })
        }
        "length" | "count" => {
            given.none(name)?;
            if let Value::Str(text) = &value {
                meter.spend(text.len())?;
            }
            Ok(Value::Int(value.length()? as i128))
        }
        "first" | "last" => {
            given.none(name)?;
            if name == "last" && matches!(&value, Value::List(list) if list.kind == Kind::Lazy) {
                return failed("a generator has no last item; use the filter list");
            }
            let items = value.items(meter)?;
            let found = if name == "first" { items.first() } else { items.last() };
            Ok(found.cloned().unwrap_or(Value::Undefined))
        }
        "list" => given.none(name).and_then(|()| Value::list(value.items(meter)?, Kind::List)),
        "items" => {
            given.none(name)?;
            match &value {
                Value::Undefined => Value::list(Vec::new(), Kind::Lazy),
                Value::Map(_) => {
                    let items = methods::call(&value, "items", Given::default(), meter)?;
                    Value::list(items.items(meter)?, Kind::Lazy)
                }
                other => failed(format!("items of {}", other.kind())),
            }
        }
        "attr" => attr(&value, given, meter),
        "join" => {
            let [between, by] = given.bind("join", ["d", "attribute"])?;
            let between = optional_text("join", between)?.unwrap_or_else(|| Text::own(""));
            let items = value.items(meter)?.into_iter();
            let texts = items.map(|item| by_path(&item, by.as_ref(), meter)?.print(meter));
            join(&texts.collect::<Result<Vec<Text>>>()?, &between, meter).map(Value::Str)
        }
        "reverse" => given.none(name).and_then(|()| reversed(&value, meter)),
        "sum" => {
            let [by, start] = given.bind("sum", ["attribute", "start"])?;
            let mut total = start.unwrap_or(Value::Int(0));
            for item in value.items(meter)? {
                total = math(&total, Math::Add, &by_path(&item, by.as_ref(), meter)?, meter)?;
            }
            Ok(total)
        }
        "batch" | "slice" => cut(name, &value, given, meter),
        "sort" | "unique" | "min" | "max" | "groupby" | "dictsort" => {
            ordered(name, &value, given, meter)
        }
        _ => failed(format!("there is no filter {name:?}")),
    }
}

/// The filter `attr`.
fn attr(value: &Value, given: Given, meter: &Meter) -> Result<Value> {
    let [name] = given.bind("attr", ["name"])?;
    let name = text("attr", name)?;
    // Unlike a dot, this filter does not look at the keys of a map.
    match value {
        Value::Map(_) if !methods::has(value, name.as_str()) => Ok(Value::Undefined),
        other => attribute(other, name.as_str(), meter),
    }
}

/// The filter `reverse`.
fn reversed(value: &Value, meter: &Meter) -> Result<Value> {
    let mut items = value.items(meter)?;
    items.reverse();
    match value {
        Value::Str(_) => {
            let texts: Result<Vec<Text>> = items.iter().map(|c| c.print(meter)).collect();
            joined(&texts?.iter().collect::<Vec<_>>(), meter)
        }
        _ => Value::list(items, Kind::Lazy),
    }
}

/// An attribute of an item by a dotted path, or the item.
fn by_path(value: &Value, path: Option<&Value>, meter: &Meter) -> Result<Value> {
    let path = match path {
        None | Some(Value::None) => return Ok(value.clone()),
        Some(Value::Str(text)) => text.as_str(),
        Some(index) => return item(value, index, meter),
    };
    let mut value = value.clone();
    for name in path.split('.') {
        meter.spend(LOOK + name.len())?;
        let index = match name.parse::<i128>() {
            Ok(index) => Value::Int(index),
            Err(_) => Value::Str(Text::own(name)),
        };
        value = item(&value, &index, meter)?;
    }
    Ok(value)
}

fn cut(name: &str, value: &Value, given: Given, meter: &Meter) -> Result<Value> {
    let [count, fill] = given.bind(name, ["count", "fill_with"])?;
    let count = optional_int(name, count)?.map_or(0, size);
    let items = value.items(meter)?;
    if count == 0 {
        return failed(format!("{name} takes a number above 0"));
    }
    meter.spend(LOOK.saturating_mul(if fill.is_some() || name == "slice" { count } else { 1 }))?;
    let mut parts: Vec<Vec<Value>> = Vec::new();
    if name == "batch" {
        meter.spend(2 * LOOK * (items.len() / count))?;
        parts.extend(items.chunks(count).map(<[Value]>::to_vec));
        if let (Some(fill), Some(last)) = (fill, parts.last_mut()) {
            last.resize(count, fill);
        }
    } else {
        let (each, more) = (items.len() / count, items.len() % count);
        let mut rest = items.into_iter();
        for part in 0..count {
            let mut items: Vec<Value> =
                rest.by_ref().take(each + usize::from(part < more)).collect();
            if let Some(fill) = fill.as_ref().filter(|_| part >= more) {
                items.push(fill.clone());
            }
            parts.push(items);
        }
    }
    let parts = parts.into_iter().map(|part| Value::list(part, Kind::List));
    Value::list(parts.collect::<Result<_>>()?, Kind::Lazy)
}

/// Price of a copy of a text; other values are shared.
fn text_cost(value: &Value) -> usize {
    match value {
        Value::Str(text) => text.cost(),
        _ => 0,
    }
}

/// The value to order by: letters without their case, unless told.
fn sort_key(value: Value, exact: bool, meter: &Meter) -> Result<Value> {
    match value {
        Value::Str(text) if !exact => cased(&text, "lower", meter).map(Value::Str),
        other => Ok(other),
    }
}

fn ordered(name: &str, value: &Value, given: Given, meter: &Meter) -> Result<Value> {
    let is_on = |flag: Option<Value>| flag.is_some_and(|flag| flag.is_true());
    let (by, exact, backwards) = match name {
        "sort" => {
            let names = ["reverse", "case_sensitive", "attribute"];
            let [backwards, exact, by] = given.bind(name, names)?;
            (by, is_on(exact), is_on(backwards))
        }
        "groupby" => {
            let [by, default, exact] =
                given.bind(name, ["attribute", "default", "case_sensitive"])?;
            if default.is_some() {
                return failed("groupby: a default is not supported");
            }
            // Jinja's default is to group without case since 3.1.
            (by, is_on(exact), false)
        }
        "dictsort" => {
            let [exact, by, backwards] = given.bind(name, ["case_sensitive", "by", "reverse"])?;
            let index = match by.as_ref().and_then(Value::as_str) {
                None | Some("key") => 0,
                Some(_) => 1,
            };
            (Some(Value::Int(index)), is_on(exact), is_on(backwards))
        }
        _ => {
            let [exact, by] = given.bind(name, ["case_sensitive", "attribute"])?;
            (by, is_on(exact), false)
        }
    };
    let items = match name {
        "dictsort" => methods::call(value, "items", Given::default(), meter)?.items(meter)?,
        _ => value.items(meter)?,
    };
    let mut keyed = Vec::with_capacity(items.len());
    for item in items {
        let key = by_path(&item, by.as_ref(), meter)?;
        meter.spend(LOOK + text_cost(&key))?;
        keyed.push((sort_key(key, exact, meter)?, item));
    }
    arranged(name, keyed, backwards, meter)
}

/// Items with the keys they are ordered by.
fn arranged(
    name: &str,
    mut keyed: Vec<(Value, Value)>,
    backwards: bool,
    meter: &Meter,
) -> Result<Value> {
    match name {
        "unique" => {
            let (mut kept, mut items) = (Vec::new(), Vec::new());
            for (key, item) in keyed {
                if place_of(&key, &kept, meter)?.is_none() {
                    kept.push(key);
                    items.push(item);
                }
            }
            Value::list(items, Kind::Lazy)
        }
        "min" | "max" => {
            let mut best: Option<(Value, Value)> = None;
            for (key, item) in keyed {
                let wanted = if name == "min" {
                    std::cmp::Ordering::Less
                } else {
                    std::cmp::Ordering::Greater
                };
                let better = match &best {
                    Some((known, _)) => order(&key, known, meter)? == wanted,
                    None => true,
                };
                if better {
                    best = Some((key, item));
                }
            }
            Ok(best.map_or(Value::Undefined, |(_, item)| item))
        }
        "groupby" => {
            keyed = sort(keyed, &|(key, _)| key, meter)?;
            let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
            for (key, item) in keyed {
                match groups.last_mut() {
                    Some((known, items)) if equal(known, &key, meter)? => items.push(item),
                    _ => groups.push((key, vec![item])),
                }
            }
            let pair = |(key, items): (Value, Vec<Value>)| {
                Value::list(vec![key, Value::list(items, Kind::List)?], Kind::Tuple)
            };
            Value::list(groups.into_iter().map(pair).collect::<Result<_>>()?, Kind::List)
        }
        _ => {
            if backwards {
                // Equal ones stay in order, as in Python.
                keyed.reverse();
            }
            keyed = sort(keyed, &|(key, _)| key, meter)?;
            if backwards {
                keyed.reverse();
            }
            Value::list(keyed.into_iter().map(|(_, item)| item).collect(), Kind::List)
        }
    }
}

fn mapped(rendering: &mut Rendering<'_>, value: &Value, mut given: Given) -> Result<Value> {
    let items = value.items(&rendering.meter)?;
    let mut out = Vec::with_capacity(items.len());
    if given.positional.is_empty() {
        let [by, default] = given.bind("map", ["attribute", "default"])?;
        if by.is_none() {
            return failed("map takes a filter or an attribute");
        }
        for item in items {
            out.push(match by_path(&item, by.as_ref(), &rendering.meter)? {
                Value::Undefined => default.clone().unwrap_or(Value::Undefined),
                found => found,
            });
        }
        return Value::list(out, Kind::Lazy);
    }
    let name = text("map", given.positional.pop_front())?;
    for item in items {
        rendering.meter.spend(LOOK * (1 + given.positional.len() + given.named.len()))?;
        let given = Given { positional: given.positional.clone(), named: given.named.clone() };
        out.push(apply(rendering, name.as_str(), item, given)?);
    }
    Value::list(out, Kind::Lazy)
}

fn selected(name: &str, value: &Value, mut given: Given, meter: &Meter) -> Result<Value> {
    let by = match name.ends_with("attr") {
        true => match given.positional.pop_front() {
            None => return failed(format!("{name} lacks an argument")),
            some => some,
        },
        false => None,
    };
    let wanted = name.starts_with("select");
    let check = given.positional.pop_front().map(|check| text(name, Some(check))).transpose()?;
    let mut out = Vec::new();
    for item in value.items(meter)? {
        let found = by_path(&item, by.as_ref(), meter)?;
        let holds = match &check {
            Some(check) => {
                meter.spend(LOOK * (1 + given.positional.len()))?;
                let positional = given.positional.clone();
                test(check.as_str(), &found, Given { positional, named: Vec::new() }, meter)?
            }
            None => found.is_true(),
        };
        if holds == wanted {
            out.push(item);
        }
    }
    Value::list(out, Kind::Lazy)
}

/// Applies a test by name.
pub(super) fn test(name: &str, value: &Value, given: Given, meter: &Meter) -> Result<bool> {
    let compares = matches!(
        name,
        "eq" | "equalto"
            | "=="
            | "ne"
            | "!="
            | "lt"
            | "lessthan"
            | "<"
            | "le"
            | "<="
            | "gt"
            | "greaterthan"
            | ">"
            | "ge"
            | ">="
            | "in"
            | "sameas"
            | "divisibleby"
    );
    if compares {
        let [other] = given.bind(name, ["other"])?;
        let Some(other) = other else { return failed(format!("{name} lacks an argument")) };
        return compare(name, value, &other, meter);
    }
    given.none(name)?;
    let whole = value.as_int();
    let is_bool = matches!(value, Value::Bool(_));
    Ok(match name {
        "defined" => !matches!(value, Value::Undefined),
        "undefined" => matches!(value, Value::Undefined),
        "none" => matches!(value, Value::None),
        "boolean" => is_bool,
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => value.as_float().is_some(),
        "string" => matches!(value, Value::Str(_)),
        "mapping" => matches!(value, Value::Map(_)),
        "iterable" => {
            matches!(value, Value::Undefined | Value::Str(_) | Value::List(_) | Value::Map(_))
        }
        // In Python everything with a length and items.
        "sequence" => match value {
            Value::List(list) => list.kind != Kind::Lazy,
            other => matches!(other, Value::Undefined | Value::Str(_) | Value::Map(_)),
        },
        "callable" => matches!(value, Value::Macro(_) | Value::Global(_) | Value::Method(_)),
        "odd" | "even" => match whole {
            Some(whole) => (whole % 2 != 0) == (name == "odd"),
            None => return failed(format!("{name}: {} is no whole number", value.kind())),
        },
        "lower" | "upper" => {
            let printed = value.print(meter)?;
            let wanted = Given::default();
            methods::call(&Value::Str(printed), &format!("is{name}"), wanted, meter)?.is_true()
        }
        "escaped" => false,
        "filter" | "test" => return failed(format!("the test {name:?} is not supported")),
        _ => return failed(format!("there is no test {name:?}")),
    })
}

fn compare(name: &str, value: &Value, other: &Value, meter: &Meter) -> Result<bool> {
    Ok(match name {
        "eq" | "equalto" | "==" => equal(value, other, meter)?,
        "ne" | "!=" => !equal(value, other, meter)?,
        "lt" | "lessthan" | "<" => order(value, other, meter)?.is_lt(),
        "le" | "<=" => order(value, other, meter)?.is_le(),
        "gt" | "greaterthan" | ">" => order(value, other, meter)?.is_gt(),
        "ge" | ">=" => order(value, other, meter)?.is_ge(),
        "in" => contains(other, value, meter)?,
        // Whether both are one object: what has no identity here is so if it is equal.
        "sameas" => {
            std::mem::discriminant(value) == std::mem::discriminant(other)
                && equal(value, other, meter)?
        }
        _ => math(value, Math::Rem, other, meter)?.as_int() == Some(0),
    })
}
