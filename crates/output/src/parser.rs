//! Reads an answer as it comes.

use std::sync::Arc;

use crate::{Format, Piece, Tool};

/// Reads one answer.
#[derive(Debug)]
pub struct Parser {}

impl Parser {
    /// For an answer of a model of that row, to a request that offers these tools, behind a prompt
    /// that has begun the reasoning or has not.
    pub fn new(_format: &'static Format, _tools: Arc<[Tool]>, _reasoning_begun: bool) -> Self {
        Self {}
    }

    /// Takes more of the answer, special tokens among it as their texts. Text is held back only
    /// while it may be the beginning of a marker.
    pub fn push(&mut self, text: &str, out: &mut Vec<Piece>) {
        if !text.is_empty() {
            out.push(Piece::Text(text.to_owned()));
        }
    }

    /// The answer has ended; `cut` if by a limit, so that a call may not be whole.
    pub fn finish(&mut self, _cut: bool, _out: &mut Vec<Piece>) {}
}
