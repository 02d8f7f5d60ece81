//! Keeps control tokens that users write from becoming tokens.
//!
//! A control token spelled out in a user's string gets a guard character after its first
//! character. The template moves strings around; wherever the string ends up, the token's text is
//! broken and does not match. Encoding takes the guards out again. A string that *ends* like the
//! beginning of a control token is broken too, so that two strings cannot make one together.

use aho_corasick::AhoCorasick;
use minijinja::Value;
use serde_json::Value as Json;

use super::TemplateError;

/// Deepest nesting of a value handed to a template.
const MAX_DEPTH: usize = 128;

/// Characters Unicode keeps out of text for good ("noncharacters").
const GUARDS: std::ops::RangeInclusive<char> = '\u{FDD0}'..='\u{FDEF}';

/// Breaks control tokens in strings.
pub(super) struct Guard {
    /// Sorted texts of the control tokens.
    control: Vec<String>,
    finder: Option<AhoCorasick>,
}

impl Guard {
    /// `None` if the tokens are too many to search for.
    pub(super) fn new(control: &[String]) -> Option<Guard> {
        let mut control: Vec<String> = control.iter().filter(|t| !t.is_empty()).cloned().collect();
        control.sort_unstable();
        control.dedup();
        let finder = match control.is_empty() {
            true => None,
            false => Some(AhoCorasick::new(&control).ok()?),
        };
        Some(Guard { control, finder })
    }

    /// The value with every string guarded, keys too.
    pub(super) fn value(&self, value: &Json, guard: char) -> Result<Value, TemplateError> {
        self.nested(value, guard, MAX_DEPTH)
    }

    fn nested(&self, value: &Json, guard: char, depth: usize) -> Result<Value, TemplateError> {
        let Some(depth) = depth.checked_sub(1) else { return Err(TemplateError::TooDeep) };
        Ok(match value {
            Json::String(text) => Value::from(self.text(text, guard)),
            Json::Array(items) => {
                let items = items.iter().map(|item| self.nested(item, guard, depth));
                Value::from(items.collect::<Result<Vec<_>, _>>()?)
            }
            Json::Object(map) => {
                let pair = |(key, item): (&String, &Json)| {
                    Ok((self.text(key, guard), self.nested(item, guard, depth)?))
                };
                Value::from_pairs(map.iter().map(pair).collect::<Result<Vec<_>, TemplateError>>()?)
            }
            Json::Null => Value::from(()),
            Json::Bool(flag) => Value::from(*flag),
            Json::Number(number) => number
                .as_i64()
                .map(Value::from)
                .or_else(|| number.as_u64().map(Value::from))
                .or_else(|| number.as_f64().map(Value::from))
                .unwrap_or_default(),
        })
    }

    fn text(&self, text: &str, guard: char) -> String {
        let mut breaks: Vec<usize> = Vec::new();
        for found in self.finder.iter().flat_map(|finder| finder.find_overlapping_iter(text)) {
            breaks.push(found.start());
        }
        breaks.extend(self.token_begun_at_end(text));
        breaks.extend(self.token_begun_at_end(text.trim_end()));
        if breaks.is_empty() {
            return text.to_owned();
        }
        breaks.sort_unstable();
        breaks.dedup();
        let mut out = String::with_capacity(text.len() + 3 * breaks.len());
        let mut done = 0;
        for at in breaks {
            let first = text.get(at..).and_then(|rest| rest.chars().next());
            let end = at + first.map_or(0, char::len_utf8);
            out.push_str(text.get(done..end).unwrap_or_default());
            out.push(guard);
            done = end;
        }
        out.push_str(text.get(done..).unwrap_or_default());
        out
    }

    /// Where the end of `text` is the beginning of a control token.
    fn token_begun_at_end(&self, text: &str) -> Vec<usize> {
        let longest = self.control.iter().map(String::len).max().unwrap_or(0);
        let from = text.len().saturating_sub(longest);
        let begins = |tail: &str| {
            let next = self.control.partition_point(|token| token.as_str() < tail);
            self.control.get(next).is_some_and(|token| token.starts_with(tail))
        };
        let ends = text.char_indices().rev().map(|(at, _)| at).take_while(|&at| at >= from);
        ends.filter(|&at| text.get(at..).is_some_and(begins)).collect()
    }
}

/// Two characters that occur in none of the values: one to guard with, one to mark a place with.
pub(super) fn free_characters<'v>(
    values: impl Iterator<Item = &'v Json> + Clone,
) -> Result<(char, char), TemplateError> {
    let mut unused = GUARDS.filter(|c| values.clone().all(|value| !contains(value, *c)));
    unused.next().zip(unused.next()).ok_or(TemplateError::NoGuardLeft)
}

/// Whether a character occurs in any string of the value. The depth is bounded by the caller's
/// parser; the guard refuses what is deeper than it renders.
fn contains(value: &Json, wanted: char) -> bool {
    let mut todo = vec![value];
    while let Some(value) = todo.pop() {
        match value {
            Json::String(text) if text.contains(wanted) => return true,
            Json::Array(items) => todo.extend(items),
            Json::Object(map) => {
                if map.keys().any(|key| key.contains(wanted)) {
                    return true;
                }
                todo.extend(map.values());
            }
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn breaks_tokens_and_beginnings() {
        let control = ["<|im_end|>", "<s>", "ab|", "b|c"].map(str::to_owned);
        let guard = Guard::new(&control).expect("few tokens");
        let cases = [
            ("plain", "plain"),
            ("x<s>y", "x<!s>y"),
            ("a <|im_", "a <!|im_"),
            ("a <|im_ \n", "a <!|im_ \n"),
            ("<", "<!"),
            ("ab|c", "a!b!|c"),
            ("<s><s>", "<!s><!s>"),
            ("a < b", "a < b!"),
        ];
        for (text, expect) in cases {
            assert_eq!(guard.text(text, '!'), expect, "{text:?}");
        }
    }

    #[test]
    fn refuses_what_nests_too_deep() {
        let mut deep = Json::Null;
        for _ in 0..200 {
            deep = Json::Array(vec![deep]);
        }
        let guard = Guard::new(&[]).expect("no tokens");
        assert!(matches!(guard.value(&deep, '!'), Err(TemplateError::TooDeep)));
    }

    #[test]
    fn chooses_free_characters() {
        let free = |text: String| free_characters([&Json::from(text)].into_iter());
        assert_eq!(free("a\u{FDD0}b\u{FDD2}".to_owned()), Ok(('\u{FDD1}', '\u{FDD3}')));
        assert_eq!(free(GUARDS.skip(1).collect()), Err(TemplateError::NoGuardLeft));
    }
}
