//! Why a constraint is refused, in words for the client who sent it.

use serde_json::Value;

/// Longest piece of a client's value in a message, characters.
const SHOWN: usize = 100;

/// Why a constraint is refused: the request is at fault, before any token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A keyword of a schema is malformed or not enforced.
    #[error("`{keyword}` at {}: {why}; it is {value}", shown_pointer(.pointer))]
    Keyword {
        /// The keyword.
        keyword: String,
        /// JSON pointer of the schema that has it.
        pointer: String,
        /// Its value, cut.
        value: String,
        /// What is wrong.
        why: String,
    },
    /// A schema that no value satisfies.
    #[error("nothing satisfies the schema at {}: {why} ({keywords})", shown_pointer(.pointer))]
    Unsatisfiable {
        /// JSON pointer of the schema.
        pointer: String,
        /// The keywords at fault.
        keywords: String,
        /// How they contradict each other.
        why: String,
    },
    /// A limit is passed.
    #[error("{what}: {found}, at most {limit}")]
    Bound {
        /// What is counted.
        what: &'static str,
        /// What the constraint has, or the count at which reading stopped.
        found: usize,
        /// What it may have.
        limit: usize,
    },
    /// The compiled constraint passes a limit of fuel, states or items.
    #[error("the constraint is too complex: {why}")]
    Complex {
        /// Which limit, as the compiler says it.
        why: String,
    },
    /// A regular expression, grammar, choice or structural tag that cannot be read.
    #[error("{kind}: {why}")]
    Syntax {
        /// `regex`, `lark`, `grammar`, `choice` or `structural tag`.
        kind: &'static str,
        /// What is wrong.
        why: String,
    },
}

impl Refused {
    /// The refusal of a keyword's value.
    pub(crate) fn keyword(keyword: &str, at: &str, value: &Value, why: impl Into<String>) -> Self {
        let (keyword, pointer) = (cut(keyword), at.to_owned());
        Refused::Keyword { keyword, pointer, value: shown(value), why: why.into() }
    }

    pub(crate) fn syntax(kind: &'static str, why: impl AsRef<str>) -> Self {
        Refused::Syntax { kind, why: cut_to(why.as_ref(), 3 * SHOWN) }
    }
}

fn shown_pointer(pointer: &str) -> &str {
    if pointer.is_empty() { "the root" } else { pointer }
}

/// Refuses what passes a limit.
pub(crate) fn within(what: &'static str, found: usize, limit: usize) -> Result<(), Refused> {
    if found > limit { Err(Refused::Bound { what, found, limit }) } else { Ok(()) }
}

/// What llguidance says, without the trace of a panic.
pub(crate) fn first_words(text: &str) -> String {
    cut_to(text.split("\n<backtrace>").next().unwrap_or(text), 3 * SHOWN)
}

/// A text, cut.
pub(crate) fn cut(text: &str) -> String {
    cut_to(text, SHOWN)
}

fn cut_to(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// A value as compact JSON, cut. Descends no deeper than it shows, so no value is too deep.
pub(crate) fn shown(value: &Value) -> String {
    let mut text = String::new();
    show(value, &mut text);
    cut(&text)
}

fn show(value: &Value, text: &mut String) {
    if text.len() > 4 * SHOWN {
        return;
    }
    match value {
        Value::Array(items) => {
            text.push('[');
            for (i, item) in items.iter().take(SHOWN).enumerate() {
                text.push_str(if i > 0 { "," } else { "" });
                show(item, text);
            }
            text.push(']');
        }
        Value::Object(map) => {
            text.push('{');
            for (i, (name, item)) in map.iter().take(SHOWN).enumerate() {
                text.push_str(if i > 0 { "," } else { "" });
                text.push_str(&Value::from(cut(name)).to_string());
                text.push(':');
                show(item, text);
            }
            text.push('}');
        }
        Value::String(s) => text.push_str(&Value::from(cut(s)).to_string()),
        plain => text.push_str(&plain.to_string()),
    }
}
