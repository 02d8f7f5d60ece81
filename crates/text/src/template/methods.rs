//! Methods of Python's strings, maps and lists. They look at the characters as they were sent and
//! hand the origin of each on.

use super::call::{Given, optional_int, optional_text, size, text};
use super::lexer::is_blank;
use super::text::{Text, Writer};
use super::value::{Kind, LOOK, Meter, Result, STEP, Value, equal, failed, place_of};

/// Methods of a map, which attributes of that name mean whatever its keys are.
pub(super) const OF_MAPS: &[&str] = &["get", "items", "keys", "values", "copy"];
const OF_LISTS: &[&str] = &["count", "index", "copy"];
/// Methods of a string, in groups that take the same arguments.
const PLAIN: &[&str] = &["upper", "lower", "title", "capitalize", "casefold", "swapcase"];
const STRIPS: &[&str] = &["strip", "lstrip", "rstrip"];
const SPLITS: &[&str] = &["split", "rsplit"];
const PARTITIONS: &[&str] = &["partition", "rpartition"];
const AFFIXES: &[&str] = &["removeprefix", "removesuffix"];
const ENDS: &[&str] = &["startswith", "endswith"];
const SEARCHES: &[&str] = &["find", "rfind", "index", "rindex", "count"];
const FILLS: &[&str] = &["center", "ljust", "rjust", "zfill"];
const CLASSES: &[&str] = &[
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "islower",
    "isnumeric",
    "isspace",
    "isupper",
];
const OTHERS: &[&str] = &["replace", "splitlines", "join", "format"];

/// Whether a value has a method of this name.
pub(super) fn has(value: &Value, name: &str) -> bool {
    match value {
        Value::Str(_) => {
            let groups = [PLAIN, STRIPS, SPLITS, PARTITIONS, AFFIXES, ENDS, SEARCHES, FILLS];
            groups.iter().chain(&[CLASSES, OTHERS]).any(|group| group.contains(&name))
        }
        Value::Map(_) => OF_MAPS.contains(&name),
        Value::List(_) => OF_LISTS.contains(&name),
        _ => false,
    }
}

/// Calls a method that the value has.
pub(super) fn call(value: &Value, name: &str, given: Given, meter: &Meter) -> Result<Value> {
    match value {
        Value::Str(text) => {
            meter.spend(LOOK + 2 * text.cost())?;
            of_text(text, name, given, meter)
        }
        Value::Map(map) => {
            meter.spend(LOOK * (1 + map.entries.len()))?;
            let pair = |(key, value): &(Value, Value)| {
                Value::list(vec![key.clone(), value.clone()], Kind::Tuple)
            };
            match name {
                "get" => {
                    let [key, default] = given.bind("get", ["key", "default"])?;
                    let Some(key) = key else { return failed("get lacks an argument") };
                    Ok(map.get(&key, meter)?.cloned().or(default).unwrap_or(Value::None))
                }
                "copy" => given.none(name).map(|()| value.clone()),
                _ => {
                    given.none(name)?;
                    let entries = map.entries.iter();
                    let list: Result<Vec<Value>> = match name {
                        "items" => {
                            meter.spend(2 * LOOK * map.entries.len())?;
                            entries.map(pair).collect()
                        }
                        "keys" => Ok(entries.map(|(key, _)| key.clone()).collect()),
                        _ => Ok(entries.map(|(_, value)| value.clone()).collect()),
                    };
                    Value::list(list?, Kind::List)
                }
            }
        }
        Value::List(list) => {
            meter.spend(LOOK)?;
            if name == "copy" {
                return given.none(name).map(|()| value.clone());
            }
            let [wanted] = given.bind(name, ["value"])?;
            let Some(wanted) = wanted else { return failed(format!("{name} lacks an argument")) };
            if name == "count" {
                let mut count = 0;
                for item in &list.items {
                    count += i128::from(equal(item, &wanted, meter)?);
                }
                return Ok(Value::Int(count));
            }
            match place_of(&wanted, &list.items, meter)? {
                Some(at) => Ok(Value::Int(at as i128)),
                None => failed("index: the value is not in the list"),
            }
        }
        other => failed(format!("{} has no method {name:?}", other.kind())),
    }
}

fn of_text(source: &Text, name: &str, given: Given, meter: &Meter) -> Result<Value> {
    if PLAIN.contains(&name) {
        given.none(name)?;
        return cased(source, name, meter).map(Value::Str);
    }
    if STRIPS.contains(&name) {
        let [chars] = given.bind(name, ["chars"])?;
        let chars = optional_text(name, chars)?;
        let sides = (name != "rstrip", name != "lstrip");
        return stripped(source, chars.as_ref(), sides, meter).map(Value::Str);
    }
    if SPLITS.contains(&name) {
        let [mark, most] = given.bind(name, ["sep", "maxsplit"])?;
        let most = optional_int(name, most)?.filter(|most| *most >= 0).map_or(usize::MAX, size);
        let mark = optional_text(name, mark)?;
        return split(source, mark.as_ref(), most, name == "rsplit", meter);
    }
    if CLASSES.contains(&name) {
        given.none(name)?;
        return Ok(Value::Bool(is_of_class(source.as_str(), name)));
    }
    if SEARCHES.contains(&name) {
        return search(source, name, given);
    }
    if ENDS.contains(&name) {
        return ends(source, name, given, meter);
    }
    if FILLS.contains(&name) {
        return fill(source, name, given, meter);
    }
    if PARTITIONS.contains(&name) {
        return partition(source, name, given);
    }
    let whole = source.as_str();
    match name {
        "removeprefix" | "removesuffix" => {
            let [affix] = given.bind(name, ["affix"])?;
            let affix = text(name, affix)?;
            let rest = match name {
                "removeprefix" => whole.strip_prefix(affix.as_str()),
                _ => whole.strip_suffix(affix.as_str()),
            };
            Ok(Value::Str(rest.map_or_else(|| source.clone(), |rest| source.part(rest))))
        }
        "replace" => {
            let [old, new, count] = given.bind(name, ["old", "new", "count"])?;
            let count = optional_int(name, count)?.filter(|n| *n >= 0).map_or(usize::MAX, size);
            replace(source, &text(name, old)?, &text(name, new)?, count, meter).map(Value::Str)
        }
        "splitlines" => {
            let [keep] = given.bind(name, ["keepends"])?;
            let keep = keep.is_some_and(|keep| keep.is_true());
            meter.spend(LOOK * whole.matches(is_line_end).count())?;
            Value::list(lines(source, keep).into_iter().map(Value::Str).collect(), Kind::List)
        }
        "join" => {
            let [items] = given.bind(name, ["items"])?;
            let items = items.unwrap_or(Value::None).items(meter)?;
            let texts: Result<Vec<Text>> =
                items.into_iter().map(|item| text(name, Some(item))).collect();
            join(&texts?, source, meter).map(Value::Str)
        }
        _ => format(source, given, meter),
    }
}

/// The text before a separator, the separator, and the text after it.
fn partition(source: &Text, name: &str, given: Given) -> Result<Value> {
    let whole = source.as_str();
    let [mark] = given.bind(name, ["sep"])?;
    let mark = text(name, mark)?;
    let first = name == "partition";
    let at = match first {
        _ if mark.len() == 0 => return failed(format!("{name}: an empty separator")),
        true => whole.find(mark.as_str()),
        false => whole.rfind(mark.as_str()),
    };
    let (left, right) = match at {
        Some(at) => (at, at + mark.len()),
        None if first => (whole.len(), whole.len()),
        None => (0, 0),
    };
    let parts = [0..left, left..right, right..whole.len()];
    let parts = parts.map(|range| Value::Str(source.slice(range)));
    Value::list(parts.into(), Kind::Tuple)
}

/// Items with a text between them.
pub(super) fn join(items: &[Text], between: &Text, meter: &Meter) -> Result<Text> {
    let mut out = Writer::default();
    for (at, item) in items.iter().enumerate() {
        meter.spend(LOOK + between.cost() + item.cost())?;
        if at > 0 {
            out.push_text(between);
        }
        out.push_text(item);
    }
    Ok(out.finish())
}

/// Changes of case; the end of a word is told from its own run.
pub(super) fn cased(source: &Text, name: &str, meter: &Meter) -> Result<Text> {
    meter.spend(source.growth())?;
    let swap = |c: char| match c.is_uppercase() {
        true => c.to_lowercase().collect::<String>(),
        false => c.to_uppercase().collect(),
    };
    Ok(match name {
        "upper" => source.map_runs(str::to_uppercase),
        "lower" | "casefold" => source.map_runs(str::to_lowercase),
        "swapcase" => source.map_runs(|run| run.chars().map(swap).collect()),
        _ => {
            let mut out = Writer::default();
            let (mut starts, mut before) = (true, None);
            let mut after = source.as_str().chars().skip(1);
            for (run, own) in source.runs() {
                let mut changed = String::with_capacity(run.len());
                for c in run.chars() {
                    let next = after.next();
                    let ends_word = |c: Option<char>| c.is_none_or(|c| !c.is_alphabetic());
                    match (starts, c) {
                        (true, _) => changed.extend(c.to_uppercase()),
                        // Sigma has a form for the end of a word.
                        (false, '\u{3a3}') if ends_word(next) && !ends_word(before) => {
                            changed.push('\u{3c2}');
                        }
                        (false, _) => changed.extend(c.to_lowercase()),
                    }
                    starts = name == "title" && !c.is_alphabetic();
                    before = Some(c);
                }
                out.push(&changed, own);
            }
            out.finish()
        }
    })
}

/// Without blanks, or any of `chars`, on its sides.
pub(super) fn stripped(
    source: &Text,
    chars: Option<&Text>,
    (left, right): (bool, bool),
    meter: &Meter,
) -> Result<Text> {
    if let Some(chars) = chars {
        meter.spend(source.len().saturating_mul(chars.len()))?;
    }
    let drops = |c: char| match chars {
        Some(chars) => chars.as_str().contains(c),
        None => is_blank(c),
    };
    let mut rest = source.as_str();
    if left {
        rest = rest.trim_start_matches(drops);
    }
    if right {
        rest = rest.trim_end_matches(drops);
    }
    Ok(source.part(rest))
}

fn split(
    source: &Text,
    mark: Option<&Text>,
    most: usize,
    from_right: bool,
    meter: &Meter,
) -> Result<Value> {
    let whole = source.as_str();
    let parts: Vec<&str> = match mark {
        Some(mark) if mark.len() == 0 => return failed("split: an empty separator"),
        Some(mark) => {
            meter.spend(LOOK.saturating_mul(whole.matches(mark.as_str()).take(most).count()))?;
            let most = most.saturating_add(1);
            match from_right {
                false => whole.splitn(most, mark.as_str()).collect(),
                true => {
                    let mut parts: Vec<&str> = whole.rsplitn(most, mark.as_str()).collect();
                    parts.reverse();
                    parts
                }
            }
        }
        None => {
            meter.spend(LOOK.saturating_mul(whole.matches(is_blank).take(most).count()))?;
            words(whole, most, from_right)
        }
    };
    meter.spend(LOOK * parts.len())?;
    let parts = parts.into_iter().map(|part| Value::Str(source.part(part)));
    Value::list(parts.collect(), Kind::List)
}

/// Split at runs of blanks, at most so often.
fn words(whole: &str, most: usize, from_right: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest;
    if !from_right {
        rest = whole.trim_start_matches(is_blank);
        while parts.len() < most {
            let Some(at) = rest.find(is_blank) else { break };
            parts.push(rest.get(..at).unwrap_or_default());
            rest = rest.get(at..).unwrap_or_default().trim_start_matches(is_blank);
        }
    } else {
        rest = whole.trim_end_matches(is_blank);
        while parts.len() < most {
            let Some((at, c)) = rest.char_indices().rev().find(|(_, c)| is_blank(*c)) else {
                break;
            };
            parts.push(rest.get(at + c.len_utf8()..).unwrap_or_default());
            rest = rest.get(..at).unwrap_or_default().trim_end_matches(is_blank);
        }
    }
    // What is left over keeps its blanks on the far side only where the count ended the search.
    let last = if parts.len() < most { rest.trim_matches(is_blank) } else { rest };
    if !last.is_empty() {
        parts.push(last);
    }
    if from_right {
        parts.reverse();
    }
    parts
}

/// Every `old` replaced, at most so often.
pub(super) fn replace(
    source: &Text,
    old: &Text,
    new: &Text,
    count: usize,
    meter: &Meter,
) -> Result<Text> {
    let whole = source.as_str();
    let mut out = Writer::default();
    let mut done = 0;
    // An empty text matches between all characters, as in Python.
    for (at, found) in whole.match_indices(old.as_str()).take(count) {
        // The pieces before and behind may each begin a run.
        meter.spend(new.cost() + 3 * STEP)?;
        out.push_part(source, done..at);
        out.push_text(new);
        done = at + found.len();
    }
    out.push_part(source, done..whole.len());
    meter.spend(out.len())?;
    Ok(out.finish())
}

pub(super) fn is_line_end(c: char) -> bool {
    matches!(c, '\n'..='\r' | '\u{1C}'..='\u{1E}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// The lines of a text by Python's line ends.
pub(super) fn lines(source: &Text, keep_ends: bool) -> Vec<Text> {
    let whole = source.as_str();
    let mut lines = Vec::new();
    let mut start = 0;
    let mut chars = whole.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if !is_line_end(c) {
            continue;
        }
        let mut end = at + c.len_utf8();
        if c == '\r' && chars.next_if(|(_, next)| *next == '\n').is_some() {
            end += 1;
        }
        lines.push(source.slice(start..if keep_ends { end } else { at }));
        start = end;
    }
    if start < whole.len() {
        lines.push(source.slice(start..whole.len()));
    }
    lines
}

/// The byte range of Python's `[start:end]`, counted in characters.
pub(super) fn window(
    whole: &str,
    start: Option<i128>,
    end: Option<i128>,
) -> std::ops::Range<usize> {
    if start.is_none() && end.is_none() {
        return 0..whole.len();
    }
    let count = whole.chars().count() as i128;
    let place = |at: i128| (if at < 0 { at + count } else { at }).clamp(0, count) as usize;
    let offset = |chars: usize| whole.char_indices().nth(chars).map_or(whole.len(), |(at, _)| at);
    let from = offset(place(start.unwrap_or(0)));
    from..offset(place(end.unwrap_or(count))).max(from)
}

fn search(source: &Text, name: &str, given: Given) -> Result<Value> {
    let [wanted, start, end] = given.bind(name, ["sub", "start", "end"])?;
    let wanted = text(name, wanted)?;
    let range = window(source.as_str(), optional_int(name, start)?, optional_int(name, end)?);
    let inside = source.as_str().get(range.clone()).unwrap_or_default();
    if name == "count" {
        return Ok(Value::Int(inside.matches(wanted.as_str()).count() as i128));
    }
    let found = match name.starts_with('r') {
        true => inside.rfind(wanted.as_str()),
        false => inside.find(wanted.as_str()),
    };
    let before = found.and_then(|at| source.as_str().get(..range.start + at));
    match before {
        Some(before) => Ok(Value::Int(before.chars().count() as i128)),
        None if name.ends_with("index") => failed(format!("{name}: the text is not found")),
        None => Ok(Value::Int(-1)),
    }
}

fn ends(source: &Text, name: &str, given: Given, meter: &Meter) -> Result<Value> {
    let [affixes, start, end] = given.bind(name, ["affix", "start", "end"])?;
    let range = window(source.as_str(), optional_int(name, start)?, optional_int(name, end)?);
    let inside = source.as_str().get(range).unwrap_or_default();
    let affixes = match affixes {
        Some(Value::List(list)) if list.kind == Kind::Tuple => {
            meter.spend(LOOK * list.items.len())?;
            list.items.clone()
        }
        other => vec![other.unwrap_or(Value::None)],
    };
    for affix in affixes {
        let affix = text(name, Some(affix))?;
        meter.spend(LOOK + affix.len())?;
        let found = match name {
            "startswith" => inside.starts_with(affix.as_str()),
            _ => inside.ends_with(affix.as_str()),
        };
        if found {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

fn fill(source: &Text, name: &str, given: Given, meter: &Meter) -> Result<Value> {
    let [width, with] = given.bind(name, ["width", "fillchar"])?;
    let width = optional_int(name, width)?.map_or(0, size);
    let with = optional_text(name, with)?;
    let zeros = Text::own("0");
    let blank = Text::own(" ");
    let with = if name == "zfill" { &zeros } else { with.as_ref().unwrap_or(&blank) };
    if with.as_str().chars().count() != 1 {
        return failed(format!("{name} fills with one character"));
    }
    let length = source.as_str().chars().count();
    let missing = width.saturating_sub(length);
    meter.spend(missing.saturating_mul(with.cost()))?;
    let left = match name {
        "ljust" => 0,
        "center" => missing / 2 + (missing & width & 1),
        _ => missing,
    };
    let sign = name == "zfill" && source.as_str().starts_with(['+', '-']);
    let mut out = Writer::default();
    out.push_text(&source.slice(0..usize::from(sign)));
    (0..left).for_each(|_| out.push_text(with));
    out.push_text(&source.slice(usize::from(sign)..source.len()));
    (left..missing).for_each(|_| out.push_text(with));
    Ok(Value::Str(out.finish()))
}

fn is_of_class(whole: &str, name: &str) -> bool {
    let cased = |upper: bool| {
        let wrong = |c: char| if upper { c.is_lowercase() } else { c.is_uppercase() };
        let right = |c: char| if upper { c.is_uppercase() } else { c.is_lowercase() };
        whole.chars().any(right) && !whole.chars().any(wrong)
    };
    match name {
        "isascii" => whole.is_ascii(),
        "islower" => cased(false),
        "isupper" => cased(true),
        _ if whole.is_empty() => false,
        "isalpha" => whole.chars().all(char::is_alphabetic),
        "isalnum" => whole.chars().all(char::is_alphanumeric),
        "isspace" => whole.chars().all(is_blank),
        "isnumeric" => whole.chars().all(char::is_numeric),
        _ => whole.chars().all(|c| c.is_ascii_digit() || c.is_numeric() && !c.is_ascii()),
    }
}

/// `'{} {name}'.format(…)` without format specifications.
fn format(source: &Text, given: Given, meter: &Meter) -> Result<Value> {
    meter.spend(LOOK + source.cost())?;
    let whole = source.as_str();
    let mut out = Writer::default();
    let (mut next, mut done) = (0, 0);
    while let Some(at) = whole.get(done..).and_then(|rest| rest.find(['{', '}'])) {
        let at = done + at;
        out.push_text(&source.slice(done..at));
        let rest = whole.get(at..).unwrap_or_default();
        if rest.starts_with("{{") || rest.starts_with("}}") {
            out.push_text(&source.slice(at..at + 1));
            done = at + 2;
            continue;
        }
        let field = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        let Some((field, _)) = field else { return failed("format: a brace alone") };
        let value = match field.parse::<usize>() {
            Ok(place) => given.positional.get(place),
            Err(_) if field.is_empty() => {
                next += 1;
                given.positional.get(next - 1)
            }
            Err(_) => given.named.iter().find(|(name, _)| name == field).map(|(_, value)| value),
        };
        let Some(value) = value else { return failed(format!("format: nothing for {{{field}}}")) };
        let printed = value.print(meter)?;
        meter.spend(LOOK + printed.cost())?;
        out.push_text(&printed);
        done = at + field.len() + 2;
    }
    out.push_text(&source.slice(done..whole.len()));
    Ok(Value::Str(out.finish()))
}

/// Python's `format % values`: `%s`, `%r`, `%d`, `%i`, `%f`, `%x` with flags, width and precision.
pub(super) fn percent(format: &Text, values: &Value, meter: &Meter) -> Result<Value> {
    meter.spend(LOOK + format.cost())?;
    let mut given = match values {
        Value::List(list) if list.kind == Kind::Tuple => list.items.clone(),
        other => vec![other.clone()],
    }
    .into_iter();
    let whole = format.as_str();
    let mut out = Writer::default();
    let mut done = 0;
    while let Some(at) = whole.get(done..).and_then(|rest| rest.find('%')) {
        let at = done + at;
        out.push_text(&format.slice(done..at));
        let spec = whole.get(at + 1..).unwrap_or_default();
        let len = spec.find(|c: char| c.is_ascii_alphabetic() || c == '%');
        let Some(len) = len else { return failed("format: an incomplete %") };
        let (flags, kind) = (spec.get(..len).unwrap_or_default(), spec.get(len..len + 1));
        done = at + len + 2;
        if kind == Some("%") {
            out.push("%", true);
            continue;
        }
        let Some(value) = given.next() else { return failed("format: too few values") };
        let text = converted(&value, flags, kind.unwrap_or_default(), meter)?;
        meter.spend(LOOK + text.cost())?;
        out.push_text(&text);
    }
    out.push_text(&format.slice(done..whole.len()));
    if given.next().is_some() && !matches!(values, Value::Map(_)) {
        return failed("format: too many values");
    }
    Ok(Value::Str(out.finish()))
}

fn converted(value: &Value, flags: &str, kind: &str, meter: &Meter) -> Result<Text> {
    let digits = flags.trim_start_matches(['-', '0', '+', ' ', '#']);
    let marks = flags.get(..flags.len() - digits.len()).unwrap_or_default();
    let (width, precision) = match digits.split_once('.') {
        Some((width, precision)) => (width, Some(precision)),
        None => (digits, None),
    };
    let number = |text: &str| match text {
        "" => Some(0),
        text => text.parse::<usize>().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit())),
    };
    let (Some(width), Some(precision)) =
        (number(width), precision.map_or(Some(None), |p| number(p).map(Some)))
    else {
        return failed(format!("format: %{flags}{kind}"));
    };
    meter.spend(width.saturating_add(precision.unwrap_or(0)))?;
    let wrong = || failed(format!("format: %{kind} of {}", value.kind()));
    let signed = |text: String| match marks.contains('+') && !text.starts_with('-') {
        true => Text::own(format!("+{text}")),
        false => Text::own(text),
    };
    let text = match kind {
        "s" | "r" => {
            let printed = match kind {
                "s" => value.print(meter)?,
                _ => {
                    let mut out = Writer::default();
                    value.write_repr(&mut out, meter)?;
                    out.finish()
                }
            };
            let cut = precision.and_then(|most| printed.as_str().char_indices().nth(most));
            cut.map_or_else(|| printed.clone(), |(at, _)| printed.slice(0..at))
        }
        "d" | "i" | "u" => match (value.as_int(), value.as_float()) {
            (Some(value), _) => signed(value.to_string()),
            (None, Some(value)) if value.is_finite() => signed((value.trunc() as i128).to_string()),
            _ => return wrong(),
        },
        "x" => match value.as_int() {
            Some(value) => signed(format!("{value:x}")),
            None => return wrong(),
        },
        "f" => match value.as_float() {
            Some(value) => signed(format!("{value:.*}", precision.unwrap_or(6).min(1100))),
            None => return wrong(),
        },
        _ => return failed(format!("format: %{kind} is not supported")),
    };
    meter.spend(2 * text.cost())?;
    let missing = width.saturating_sub(text.as_str().chars().count());
    let mut out = Writer::default();
    let zeros = marks.contains('0') && !marks.contains('-') && !matches!(kind, "s" | "r");
    let sign = usize::from(zeros && text.as_str().starts_with(['-', '+']));
    out.push_text(&text.slice(0..sign));
    if !marks.contains('-') {
        out.push(&if zeros { "0" } else { " " }.repeat(missing), true);
    }
    out.push_text(&text.slice(sign..text.len()));
    if marks.contains('-') {
        out.push(&" ".repeat(missing), true);
    }
    Ok(out.finish())
}
