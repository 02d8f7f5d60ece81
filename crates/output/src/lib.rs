//! What models write, told apart as it comes: text, reasoning, and calls of tools. Each family of
//! models has a row, its [`Format`].

mod body;
mod format;
mod harmony;
mod hold;
mod json;
mod marked;
mod out;
mod parser;
mod template;

pub use format::{FORMATS, Format};
pub use hold::{Ask, Calls, MOST_HELD, enforceable};
pub use parser::Parser;

use serde_json::Value;
use tokenmill_grammar::Constraint;

/// A tool that a request offers.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// The JSON Schema of its arguments; an empty object where it takes none.
    pub parameters: Value,
    /// What its text holds, a grammar in Lark or a regular expression, where it is called with one:
    /// then that is its only parameter, [`INPUT`].
    pub input: Option<Constraint>,
}

/// The parameter of a tool that is called with a text.
pub const INPUT: &str = "input";

/// A part of an answer, in order. Joined, the pieces are the same wherever the text was cut.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    /// What the client's user reads.
    Text(String),
    /// What the model thinks before.
    Reasoning(String),
    /// A call begins.
    CallStart {
        /// The tool's name.
        name: String,
    },
    /// More of the arguments of the call that began last: a text of JSON.
    CallArguments(String),
    /// That call is whole.
    CallEnd,
}

impl Piece {
    /// Its text: the name of a call that begins.
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Reasoning(text) | Self::CallArguments(text) => text,
            Self::CallStart { name } => name,
            Self::CallEnd => "",
        }
    }

    /// Goes on with the next piece where that is more of the same; else gives it back.
    pub fn join(&mut self, next: Self) -> Option<Self> {
        match (self, next) {
            (Self::Text(text), Self::Text(more))
            | (Self::Reasoning(text), Self::Reasoning(more))
            | (Self::CallArguments(text), Self::CallArguments(more)) => {
                text.push_str(&more);
                None
            }
            (_, next) => Some(next),
        }
    }
}
