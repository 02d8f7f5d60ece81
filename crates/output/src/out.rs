//! Pieces on their way out, joined where they are of a kind.

use crate::Piece;

/// What is given out.
#[derive(Debug, Clone, Default)]
pub(crate) struct Out {
    pieces: Vec<Piece>,
}

impl Out {
    pub fn text(&mut self, text: &str) {
        match self.pieces.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Text(before)) => before.push_str(text),
            _ => self.pieces.push(Piece::Text(text.to_owned())),
        }
    }

    pub fn reasoning(&mut self, text: &str) {
        match self.pieces.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Reasoning(before)) => before.push_str(text),
            _ => self.pieces.push(Piece::Reasoning(text.to_owned())),
        }
    }

    pub fn piece(&mut self, piece: Piece) {
        match (self.pieces.last_mut(), piece) {
            (Some(Piece::CallArguments(before)), Piece::CallArguments(more)) => {
                before.push_str(&more);
            }
            (_, piece) => self.pieces.push(piece),
        }
    }

    pub fn take(&mut self, into: &mut Vec<Piece>) {
        into.append(&mut self.pieces);
    }
}
