//! An answer that either calls tools or holds what is asked of its text.

use tokenmill_grammar::Constraint;

use super::behind::document;
use super::parts::Writer;
use super::{Ask, MOST_HELD, analysis, call_messages, calls, thought};
use crate::format::{Bare, Form};
use crate::{Format, Tool};

impl Format {
    /// Calls, one at least, or else one JSON document; reasoning before both stays free. To be
    /// compiled as what [`Format::hold`] gives, and read by a parser whose calls come first
    /// ([`crate::Parser::calls_first`]): a mark in the document is a part of it. `None` where
    /// calls of the row begin as a document may, it has none, or what is asked is no document.
    pub fn hold_either(&self, answer: &Constraint, ask: &Ask<'_>) -> Option<Constraint> {
        let answer = document(answer)?;
        let tools: Vec<Tool> =
            ask.tools.iter().filter(|tool| self.can_call(tool)).cloned().collect();
        if tools.is_empty() || tools.len() > MOST_HELD {
            return None;
        }
        let ask = Ask { tools: &tools, ..*ask };
        let mut lark = Writer::new(&ask);
        let start = match &self.form {
            Form::Harmony => {
                call_messages(&mut lark);
                let before = analysis(&mut lark, false);
                let last = lark.mark("<|channel|>final<|message|>");
                format!("{before} (call | {last} answer)")
            }
            Form::Marked(marked) => {
                let begins = |bare| matches!(bare, Bare::Start(_) | Bare::List(_));
                if marked.sections.iter().any(|section| begins(section.bare)) {
                    return None;
                }
                let thought = thought(&mut lark, marked);
                let calls = calls(&mut lark, marked)?;
                format!("{thought} gap ({calls} | answer)")
            }
        };
        lark.rule("answer", &answer);
        lark.rule("start", &start);
        lark.written()
    }
}
