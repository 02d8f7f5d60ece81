//! Reads an answer as it comes, character by character: what is given out depends on the text
//! alone, not on where it was cut.

use std::sync::Arc;

use crate::body::Offer;
use crate::format::Form;
use crate::harmony::Messages;
use crate::marked::Answer;
use crate::{Format, Piece, Tool};

/// Reads one answer. A clone goes its own way from here.
#[derive(Debug, Clone)]
pub struct Parser {
    form: Reading,
}

#[derive(Debug, Clone)]
enum Reading {
    Marked(Box<Answer>),
    Messages(Box<Messages>),
}

impl Parser {
    /// For an answer of a model of that row, to a request that offers these tools, behind a prompt
    /// that has begun the reasoning or has not.
    pub fn new(format: &'static Format, tools: Arc<[Tool]>, reasoning_begun: bool) -> Self {
        let offer = Offer::new(tools);
        let form = match &format.form {
            Form::Marked(marked) => {
                Reading::Marked(Box::new(Answer::new(marked, offer, reasoning_begun)))
            }
            Form::Harmony => Reading::Messages(Box::new(Messages::new(offer, reasoning_begun))),
        };
        Self { form }
    }

    /// Calls inside reasoning stay reasoning. Else one in reasoning that is never closed is a
    /// call, which no grammar held: its arguments may be against a strict schema, and it may be
    /// one more than was asked for.
    #[must_use]
    pub fn keep_reasoning(mut self) -> Self {
        match &mut self.form {
            Reading::Marked(answer) => answer.keep_reasoning(),
            Reading::Messages(messages) => messages.reasons_apart = true,
        }
        self
    }

    /// Calls come before any text: what follows is text, whatever marks stand in it.
    #[must_use]
    pub fn calls_first(mut self) -> Self {
        match &mut self.form {
            Reading::Marked(answer) => answer.calls_first(),
            Reading::Messages(messages) => messages.calls_first = true,
        }
        self
    }

    /// Whether what comes next is reasoning, unless a mark comes. A call that has begun in reasoning
    /// is none.
    pub fn reasons(&self) -> bool {
        match &self.form {
            Reading::Marked(answer) => answer.reasons(),
            Reading::Messages(messages) => messages.reasons(),
        }
    }

    /// Takes more of the answer, special tokens among it as their texts. Text is held back only
    /// while it may be the beginning of a marker. A call without [`Piece::CallEnd`] is none: it
    /// was cut, or turned out to be text, which then follows whole.
    pub fn push(&mut self, text: &str, out: &mut Vec<Piece>) {
        match &mut self.form {
            Reading::Marked(answer) => answer.push(text, out),
            Reading::Messages(messages) => messages.push(text, out),
        }
    }

    /// The answer has ended; `cut` if by a limit, so that a call may not be whole.
    pub fn finish(&mut self, cut: bool, out: &mut Vec<Piece>) {
        match &mut self.form {
            Reading::Marked(answer) => answer.finish(cut, out),
            Reading::Messages(messages) => messages.finish(cut, out),
        }
    }
}
