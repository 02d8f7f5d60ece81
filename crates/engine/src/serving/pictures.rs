//! Images in prompts: what stands for each, its rows among the text, and where its tokens are.

use std::sync::Arc;

use thiserror::Error;
use tokenmill_ir::TokenId;
use tokenmill_models::ModelError;
use tokenmill_models::spec::Axes;
use tokenmill_models::vision::{self, Grid, Part, Piece, Positions};
use tokenmill_sched::{Embeddings, Inputs, Media};
use tokenmill_text::IMAGE;

use crate::handle::{Engine, RowsError};
use crate::sight::Sight;
use crate::vision::Patches;

/// A tile of an image, or all of it, as a processor cuts it.
#[derive(Debug, Clone, PartialEq)]
pub struct Tile {
    /// Rows and columns of patches.
    pub grid: [u32; 2],
    /// Row and column among the tiles; none: it is the whole image.
    pub part: Option<[u32; 2]>,
    /// Patch after patch, those of a square that becomes one row together.
    pub patches: Vec<f32>,
}

/// Why images cannot be put into a prompt.
#[derive(Debug, Error)]
pub enum PictureError {
    /// A tile of a shape that the encoder does not take.
    #[error(transparent)]
    Shape(#[from] ModelError),
    /// The template writes more or fewer of them.
    #[error("the chat template writes {written} images, the messages have {given}")]
    Count {
        /// Written.
        written: usize,
        /// Given.
        given: usize,
    },
    /// What stands for an image is no token of the vocabulary.
    #[error("{text:?} is no token of the model")]
    NoToken {
        /// What should be one.
        text: String,
    },
    /// Its text cannot be made tokens.
    #[error("{0}")]
    Text(String),
    /// The encoder.
    #[error(transparent)]
    Rows(#[from] RowsError),
}

/// Makes text tokens, special ones among them.
pub type Encode<'a> = &'a dyn Fn(&str) -> Result<Vec<TokenId>, String>;

impl Sight {
    /// A rendered prompt with its images: their rows are computed, or were kept, and stand where the
    /// template wrote that they come. Waits for the encoder.
    ///
    /// # Errors
    /// [`PictureError`].
    pub fn prompt(
        &self,
        engine: &Engine,
        rendered: &[TokenId],
        images: Vec<Vec<Tile>>,
        encode: Encode<'_>,
        account: u64,
    ) -> Result<(Vec<TokenId>, Inputs), PictureError> {
        let written = match rendered.contains(&IMAGE) {
            true => IMAGE,
            false => self.written(encode)?,
        };
        let places = rendered.iter().filter(|token| **token == written).count();
        if places != images.len() {
            return Err(PictureError::Count { written: places, given: images.len() });
        }
        let (mut shapes, mut patches) = (Vec::new(), Vec::new());
        for tiles in images {
            shapes.push(self.shapes(&tiles)?);
            for tile in tiles {
                patches.push(self.patches(&tile)?);
            }
        }
        let rows = engine.see(patches, account)?;
        let (mut rows, mut shapes) = (rows.into_iter(), shapes.into_iter());
        let mut prompt = Draft::default();
        for &token in rendered {
            match shapes.as_slice().first().filter(|_| token == written) {
                Some(tiles) => {
                    let rows: Vec<_> = rows.by_ref().take(tiles.len()).collect();
                    self.image(&mut prompt, tiles, &rows, encode)?;
                    shapes.next();
                }
                None => prompt.text(&[token]),
            }
        }
        Ok(prompt.done(self.vision.blocks, self.vision.axes != Axes::One))
    }

    /// The token that a template writes where an image comes.
    fn written(&self, encode: Encode<'_>) -> Result<TokenId, PictureError> {
        let text = self.vision.script.written();
        match encode(text).map_err(PictureError::Text)?[..] {
            [token] => Ok(token),
            _ => Err(PictureError::NoToken { text: text.to_owned() }),
        }
    }

    fn shapes(&self, tiles: &[Tile]) -> Result<Vec<vision::Tile>, PictureError> {
        let shape = |tile: &Tile| {
            let [rows, cols] = tile.grid;
            Ok(vision::Tile { rows: self.vision.merged(Grid { rows, cols })?, part: tile.part })
        };
        tiles.iter().map(shape).collect()
    }

    fn patches(&self, tile: &Tile) -> Result<Patches, PictureError> {
        let [rows, cols] = tile.grid;
        let place = self.vision.place(Grid { rows, cols })?;
        let data = place.inputs(&tile.patches);
        let vision::Place { positions, blocks, outputs, merged: order, .. } = place;
        Ok(Patches { cols: self.vision.input_cols(), data, positions, blocks, outputs, order })
    }

    /// What stands for an image.
    fn image(
        &self,
        prompt: &mut Draft,
        tiles: &[vision::Tile],
        rows: &[Arc<Embeddings>],
        encode: Encode<'_>,
    ) -> Result<(), PictureError> {
        let mut taken = vec![0; tiles.len()];
        for piece in self.vision.script.pieces(tiles) {
            match piece {
                Piece::Text(text) => prompt.text(&encode(&text).map_err(PictureError::Text)?),
                Piece::Rows { tile, count } => {
                    let (from, count) = (taken[tile], count as usize);
                    taken[tile] += count;
                    let whole = count == rows[tile].len();
                    prompt.rows(match whole {
                        true => Arc::clone(&rows[tile]),
                        false => Arc::new(rows[tile].part(from..from + count)),
                    });
                    prompt.parts.push(match whole {
                        true => Part::Image(tiles[tile].rows),
                        false => Part::Text(count as u32),
                    });
                }
            }
        }
        Ok(())
    }
}

/// A prompt being put together.
#[derive(Default)]
struct Draft {
    tokens: Vec<TokenId>,
    media: Vec<Media>,
    parts: Vec<Part>,
}

impl Draft {
    fn text(&mut self, tokens: &[TokenId]) {
        self.tokens.extend_from_slice(tokens);
        match self.parts.last_mut() {
            Some(Part::Text(len)) => *len += tokens.len() as u32,
            _ => self.parts.push(Part::Text(tokens.len() as u32)),
        }
    }

    fn rows(&mut self, rows: Arc<Embeddings>) {
        let at = self.tokens.len() as u32;
        self.tokens.extend_from_slice(&rows.ids);
        self.media.push(Media { at, rows });
    }

    fn done(self, blocks: bool, several: bool) -> (Vec<TokenId>, Inputs) {
        let Self { tokens, media, parts } = self;
        let block = |m: &Media| [m.at, m.at + m.rows.len() as u32];
        let blocks = if blocks { media.iter().map(block).collect() } else { Vec::new() };
        let mut inputs = Inputs { media, blocks, ..Inputs::default() };
        if several {
            Positions { axes: inputs.positions, next: inputs.next } = Positions::of(&parts);
        }
        (tokens, inputs)
    }
}
