//! What the engine's own limits leave open: templates that nest expressions or values so deep
//! that walking them overflows the stack, and values that double until memory is full.
//!
//! Sources are checked tag by tag before they are compiled, and every assignment is wrapped in a
//! filter that looks at the value.

use std::sync::atomic::{AtomicU64, Ordering};

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::TemplateError;

/// Most characters in one tag, without blanks and string literals. The engine's parser keeps
/// chains of operators as trees as deep as the chain is long. Published templates stay below 250.
const MAX_TAG_CHARS: usize = 2048;
/// Most `elif` branches in a template: they nest too.
const MAX_ELIFS: usize = 256;
/// Deepest nesting of an assigned value.
const MAX_DEPTH: usize = 256;
/// Longest string that may be assigned, in bytes.
const MAX_STRING_BYTES: usize = 8 << 20;
/// What one rendering may spend: 1 for a byte written, [`LOOK`] for a value looked at.
const MAX_SPENT: u64 = 64 << 20;
/// Price of looking at a value.
const LOOK: usize = 8;

/// A list or string from its end to its beginning, in Python.
const REVERSED_SLICE: &str = "[::-1]";
/// Name of the method in its place.
pub(super) const REVERSED: &str = "__reversed";
/// Name of the filter around assigned values.
pub(super) const FILTER: &str = "__bounded";

/// Name of the filter around what loops go through.
pub(super) const EACH: &str = "__each";

/// The source as it is compiled: assignments bounded, loops as strict as Python's, `{% generation %}` (which marks, for
/// training, what the assistant wrote) a scope of its own, as it is in the hubs' library.
pub(super) fn prepare(source: &str) -> Result<String, TemplateError> {
    let mut out = String::with_capacity(source.len() + source.len() / 8);
    let mut elifs = 0;
    let mut rest = source;
    while let Some((text, tag, after)) = next_tag(rest) {
        out.push_str(text);
        rest = after;
        if weight(tag) > MAX_TAG_CHARS {
            let shown: String = tag.chars().take(40).collect();
            let reason = format!("a tag has more than {MAX_TAG_CHARS} characters: {shown}");
            return Err(TemplateError::Syntax { reason });
        }
        let tag = &reversed_by_method(tag);
        match name(tag) {
            Some("generation") => out.push_str(&tag.replacen("generation", "with", 1)),
            Some("endgeneration") => out.push_str(&tag.replacen("endgeneration", "endwith", 1)),
            Some("set") => out.push_str(&bounded_set(tag).unwrap_or_else(|| tag.clone())),
            Some("for") => out.push_str(&strict_for(tag).unwrap_or_else(|| tag.clone())),
            Some("raw") => {
                out.push_str(tag.as_str());
                let end = end_of_raw(rest);
                out.push_str(rest.get(..end).unwrap_or_default());
                rest = rest.get(end..).unwrap_or_default();
            }
            Some("elif") => {
                elifs += 1;
                out.push_str(tag);
            }
            _ => out.push_str(tag),
        }
    }
    if elifs > MAX_ELIFS {
        let reason = format!("more than {MAX_ELIFS} elif branches");
        return Err(TemplateError::Syntax { reason });
    }
    out.push_str(rest);
    Ok(out)
}

/// The tag with `x[::-1]` as a method of `x`: the engine's own slice fails on empty lists.
fn reversed_by_method(tag: &str) -> String {
    let mut out = String::with_capacity(tag.len());
    let mut done = 0;
    let comment = tag.starts_with("{#");
    for (at, _) in code_chars(tag).filter(|(_, c)| *c == '[' && !comment) {
        if tag.get(at..).is_some_and(|rest| rest.starts_with(REVERSED_SLICE)) {
            out.push_str(tag.get(done..at).unwrap_or_default());
            out.push_str(&format!(".{REVERSED}()"));
            done = at + REVERSED_SLICE.len();
        }
    }
    out.push_str(tag.get(done..).unwrap_or_default());
    out
}

/// The text before the next tag, the tag with its delimiters, and what follows it. A tag that does
/// not end reaches to the end.
fn next_tag(source: &str) -> Option<(&str, &str, &str)> {
    let starts = source.match_indices('{').map(|(at, _)| at);
    let opens = |at: &usize| matches!(source.as_bytes().get(at + 1), Some(b'%' | b'{' | b'#'));
    let start = { starts }.find(opens)?;
    let (text, tag) = source.split_at(start);
    let len = match tag.as_bytes().get(1) {
        Some(b'#') => tag.find("#}").map(|at| at + 2),
        Some(b'%') => tag_len(tag, "%}"),
        _ => tag_len(tag, "}}"),
    };
    let (tag, after) = tag.split_at(len.unwrap_or(tag.len()));
    Some((text, tag, after))
}

/// Length of a tag whose closing delimiter is the first outside string literals. Braces of maps
/// are counted, so that the two of `{'a': {}}` close no tag.
fn tag_len(tag: &str, close: &str) -> Option<usize> {
    let mut braces = 0usize;
    for (at, c) in code_chars(tag).skip(2) {
        match c {
            '{' => braces += 1,
            _ if braces == 0 && tag.get(at..).is_some_and(|rest| rest.starts_with(close)) => {
                return Some(at + close.len());
            }
            '}' => braces = braces.saturating_sub(1),
            _ => {}
        }
    }
    None
}

/// The characters outside string literals, with their places.
fn code_chars(code: &str) -> impl Iterator<Item = (usize, char)> {
    let mut quote = None;
    let mut escaped = false;
    code.char_indices().filter(move |(_, c)| match quote {
        Some(open) => {
            if !escaped && *c == open {
                quote = None;
            }
            escaped = !escaped && *c == '\\';
            false
        }
        None => {
            escaped = false;
            if matches!(c, '\'' | '"') {
                quote = Some(*c);
            }
            quote.is_none()
        }
    })
}

fn weight(tag: &str) -> usize {
    match tag.starts_with("{#") {
        true => 0,
        false => code_chars(tag).filter(|(_, c)| !c.is_whitespace()).count(),
    }
}

/// The first word of a block tag.
fn name(tag: &str) -> Option<&str> {
    let inside = tag.strip_prefix("{%")?.trim_start_matches(['-', '+']).trim_start();
    inside.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

fn end_of_raw(source: &str) -> usize {
    let ends = source.match_indices("{%").map(|(at, _)| at);
    let is_end = |at: &usize| source.get(*at..).and_then(name) == Some("endraw");
    { ends }.find(is_end).unwrap_or(source.len())
}

/// `{% set x = y %}` with the filter around `y`; `None` for the block form.
fn bounded_set(tag: &str) -> Option<String> {
    let mut depth = 0usize;
    let equals = code_chars(tag).skip(2).find(|(_, c)| {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && *c == '='
    })?;
    let (target, value) = (tag.get(..equals.0)?, tag.get(equals.0 + 1..)?.strip_suffix("%}")?);
    let (value, end) = match value.strip_suffix('-') {
        Some(value) => (value, "-%}"),
        None => (value.strip_suffix('+').unwrap_or(value), "%}"),
    };
    Some(format!("{target}= ({value})|{FILTER} {end}"))
}

/// `{% for x in y if z %}` with the filter around `y`.
fn strict_for(tag: &str) -> Option<String> {
    let (from, _) = word(tag, "in", 2)?;
    let rest = [word(tag, "if", from), word(tag, "recursive", from)];
    let close = tag.strip_suffix("%}")?.trim_end_matches(['-', '+']).len();
    let end = rest.into_iter().flatten().map(|(_, start)| start).min().unwrap_or(close);
    let (head, value, tail) = (tag.get(..from)?, tag.get(from..end)?, tag.get(end..)?);
    Some(format!("{head} ({value})|{EACH} {tail}"))
}

/// Where a word outside literals and brackets ends, and where it starts, from a place on.
fn word(tag: &str, wanted: &str, from: usize) -> Option<(usize, usize)> {
    let mut depth = 0usize;
    let part_of_name = |c: char| c.is_alphanumeric() || c == '_';
    code_chars(tag).skip_while(|(at, _)| *at < 2).find_map(|(at, c)| {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        let after = tag.get(at..)?.strip_prefix(wanted)?;
        let before = tag.get(..at)?;
        let stands_alone =
            !before.ends_with(part_of_name) && !after.starts_with(part_of_name) && depth == 0;
        (stands_alone && at >= from).then_some((at + wanted.len(), at))
    })
}

/// What one rendering has spent.
#[derive(Default)]
pub(super) struct Budget {
    spent: AtomicU64,
}

impl Budget {
    /// Counts what is spent.
    pub(super) fn charge(&self, amount: usize) -> Result<(), Error> {
        let amount = amount as u64;
        match self.spent.fetch_add(amount, Ordering::Relaxed).saturating_add(amount) {
            spent if spent > MAX_SPENT => Err(ErrorKind::OutOfFuel.into()),
            _ => Ok(()),
        }
    }

    /// The filter: an error for a value too long or nested too deep. Lazy sequences become lists,
    /// lest they nest unseen.
    pub(super) fn bounded(&self, value: Value) -> Result<Value, Error> {
        let value = match value.kind() {
            ValueKind::Iterable => {
                let mut items = Vec::new();
                for item in value.try_iter()? {
                    self.charge(LOOK)?;
                    items.push(item);
                }
                Value::from(items)
            }
            _ => value,
        };
        self.inspect(&value, MAX_DEPTH)?;
        Ok(value)
    }

    /// The filter of loops: an error for none, which Python does not iterate over; strings and
    /// sequences of unknown length become lists, so that the last item is known.
    pub(super) fn each(&self, value: Value) -> Result<Value, Error> {
        if value.is_none() {
            let message = "none is not iterable";
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
        let is_open = value.kind() == ValueKind::Iterable && value.len().is_none();
        if let Some(text) = value.as_str() {
            self.charge(LOOK * text.len())?;
            return Ok(Value::from(text.chars().map(String::from).collect::<Vec<String>>()));
        }
        if is_open { self.bounded(value) } else { Ok(value) }
    }

    fn inspect(&self, value: &Value, depth: usize) -> Result<(), Error> {
        self.charge(LOOK)?;
        let Some(depth) = depth.checked_sub(1) else { return Err(ErrorKind::OutOfFuel.into()) };
        match value.kind() {
            ValueKind::String if value.as_str().is_some_and(|s| s.len() > MAX_STRING_BYTES) => {
                Err(ErrorKind::OutOfFuel.into())
            }
            ValueKind::Seq | ValueKind::Iterable => {
                value.try_iter()?.try_for_each(|item| self.inspect(&item, depth))
            }
            ValueKind::Map => value.try_iter()?.try_for_each(|key| {
                self.inspect(&key, depth)?;
                self.inspect(&value.get_item(&key)?, depth)
            }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_prepared() {
        let cases = [
            ("a {{ b }} c", "a {{ b }} c"),
            ("{% set x = 1 %}", "{% set x = ( 1 )|__bounded %}"),
            (
                "{%- set n.x = '=%}' ~ \"}}\" -%}y",
                "{%- set n.x = ( '=%}' ~ \"}}\" )|__bounded -%}y",
            ),
            ("{% set a, b = f(c=1) %}", "{% set a, b = ( f(c=1) )|__bounded %}"),
            ("{% set x | f(a=1) %}y{% endset %}", "{% set x | f(a=1) %}y{% endset %}"),
            ("{% set x %}y{% endset %}", "{% set x %}y{% endset %}"),
            ("{% raw %}{% set x = 1 %}{% endraw %}", "{% raw %}{% set x = 1 %}{% endraw %}"),
            ("{# {% set x = 1 %} #}z", "{# {% set x = 1 %} #}z"),
            ("{%- for a, b in x.items() -%}", "{%- for a, b in ( x.items() )|__each -%}"),
            (
                "{% for x in y[1 if 'in' in z else 2] if x in w recursive %}",
                "{% for x in ( y[1 if 'in' in z else 2] )|__each if x in w recursive %}",
            ),
            ("{% for inner in ifs %}", "{% for inner in ( ifs )|__each %}"),
            ("{% generation %}a{%- endgeneration -%}", "{% with %}a{%- endwith -%}"),
            ("{{ a.b[::-1][0] ~ '[::-1]' }}", "{{ a.b.__reversed()[0] ~ '[::-1]' }}"),
            (
                "{{ {'a': {}} }}{% set x = {'b': {}} %}",
                "{{ {'a': {}} }}{% set x = ( {'b': {}} )|__bounded %}",
            ),
            (
                "{{ 'it\\'s }}' }}{% set settle = 1%}",
                "{{ 'it\\'s }}' }}{% set settle = ( 1)|__bounded %}",
            ),
            ("{{ open", "{{ open"),
            ("{% settle x = 1 %}", "{% settle x = 1 %}"),
        ];
        for (source, expect) in cases {
            assert_eq!(prepare(source).as_deref(), Ok(expect));
        }
    }

    #[test]
    fn deep_sources_are_refused() {
        for source in [
            format!("{{{{ a{} }}}}", "~a".repeat(2000)),
            format!("{{% if {}1 %}}{{% endif %}}", "not ".repeat(2000)),
            format!("{{% if 1 %}}{}{{% endif %}}", "{% elif 1 %}".repeat(2000)),
        ] {
            assert!(matches!(prepare(&source), Err(TemplateError::Syntax { .. })));
        }
        assert!(prepare(&format!("{{{{ '{}' }}}}", "x".repeat(9000))).is_ok());
    }
}
