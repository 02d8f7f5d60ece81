//! What an answer holds behind its reasoning, which stays free.

use tokenmill_grammar::Constraint;

use super::parts::{Writer, quoted};
use super::{Ask, analysis};
use crate::Format;
use crate::format::Form;

impl Format {
    /// The constraint with reasoning before it, of a model that reasons or whose prompt has begun
    /// to; `None` where one grammar cannot say both (regular expressions and grammars of clients),
    /// the row has no marks of reasoning, or the grammar is too long. `ask` offers no tools.
    pub fn behind_reasoning(&self, what: &Constraint, ask: &Ask<'_>) -> Option<Constraint> {
        let answer = match what {
            Constraint::Choice(texts) => {
                texts.iter().map(|text| quoted(text)).collect::<Vec<_>>().join(" | ")
            }
            what => document(what)?,
        };
        let mut lark = Writer::new(ask);
        let before = match &self.form {
            Form::Harmony => {
                // (Commentary is text, which stands in no document.)
                let before = analysis(&mut lark, false);
                format!("{before} {}", lark.mark("<|channel|>final<|message|>"))
            }
            Form::Marked(marked) => {
                let (opens, closes) = marked.think;
                let open = lark.mark(opens.first()?);
                let closed = lark.until("THOUGHT", closes);
                match ask.reasoning_begun {
                    true => format!("{closed} gap"),
                    false => format!("(gap {open} {closed} gap)?"),
                }
            }
        };
        lark.rule("answer", &answer);
        lark.rule("start", &format!("{before} answer"));
        lark.written()
    }
}

/// A JSON document as the body of a rule.
pub(super) fn document(what: &Constraint) -> Option<String> {
    match what {
        Constraint::JsonSchema(schema) => Some(format!("%json {schema}")),
        Constraint::JsonObject => Some("%json {\"type\": \"object\"}".to_owned()),
        _ => None,
    }
}
