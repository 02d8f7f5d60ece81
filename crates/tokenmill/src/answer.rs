//! What comes of a question: pieces while it is answered, and the whole.

use serde_json::Value;
use tokenmill_engine::{StopReason, Usage};

/// A part of an answer as it comes.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    /// What is said.
    Text(String),
    /// What the model thinks before it says it.
    Reasoning(String),
    /// A tool that is called now.
    Call {
        /// Its name.
        name: String,
        /// What it is called with.
        arguments: Value,
    },
    /// What the call that came last among those without one has found.
    Found {
        /// The tool's name.
        name: String,
        /// What the model is told.
        text: String,
    },
}

impl Piece {
    /// What is said; empty for all else.
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Reasoning(_) | Self::Call { .. } | Self::Found { .. } => "",
        }
    }
}

/// A tool that was called.
#[derive(Debug, Clone, PartialEq)]
pub struct Called {
    /// Its name.
    pub name: String,
    /// What it was called with.
    pub arguments: Value,
    /// What the model was told.
    pub found: String,
}

/// A whole answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// What was said at last, behind all calls of tools.
    pub text: String,
    /// What the model thought before it.
    pub reasoning: String,
    /// Tools that were called, in order.
    pub called: Vec<Called>,
    /// Why it ended.
    pub reason: StopReason,
    /// Tokens, of all rounds together.
    pub usage: Usage,
}

/// Tokens of two rounds.
pub(crate) fn sum(one: Usage, other: Usage) -> Usage {
    Usage {
        prompt_tokens: one.prompt_tokens + other.prompt_tokens,
        cached_tokens: one.cached_tokens + other.cached_tokens,
        disk_tokens: one.disk_tokens + other.disk_tokens,
        leased_tokens: one.leased_tokens + other.leased_tokens,
        completion_tokens: one.completion_tokens + other.completion_tokens,
        reasoning_tokens: one.reasoning_tokens + other.reasoning_tokens,
        accepted_drafts: one.accepted_drafts + other.accepted_drafts,
        rejected_drafts: one.rejected_drafts + other.rejected_drafts,
    }
}
