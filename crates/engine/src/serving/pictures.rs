//! Images in prompts: what stands for each, its rows among the text, and where its tokens are.

use std::sync::Arc;

use thiserror::Error;
use tokenmill_ir::sampling::splitmix;
use tokenmill_ir::{FIRST_MEDIA, TokenId};
use tokenmill_models::ModelError;
use tokenmill_models::spec::Axes;
use tokenmill_models::vision::{self, Grid, Part, Piece, Positions};
use tokenmill_sched::{Embeddings, Inputs, Media};

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

/// An image, as a processor cuts it.
#[derive(Debug, Clone, PartialEq)]
pub struct Tiles {
    /// Height and width of the image, pixels.
    pub size: [u32; 2],
    /// Its tiles, in order.
    pub tiles: Vec<Tile>,
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
        images: Vec<Tiles>,
        encode: Encode<'_>,
        account: u64,
    ) -> Result<(Vec<TokenId>, Inputs), PictureError> {
        let written = self.written(encode)?;
        let places = rendered.iter().filter(|token| **token == written).count();
        if places != images.len() {
            return Err(PictureError::Count { written: places, given: images.len() });
        }
        let (mut shapes, mut patches) = (Vec::new(), Vec::new());
        for Tiles { size, tiles } in images {
            let of = tiles.iter().map(|tile| (tile.grid, tile.part));
            shapes.push((self.shapes(of)?, size));
            for tile in tiles {
                patches.push(self.patches(&tile)?);
            }
        }
        let rows = engine.see(patches, account)?;
        let (mut rows, mut shapes) = (rows.into_iter(), shapes.into_iter());
        let mut prompt = Draft::default();
        for &token in rendered {
            match shapes.as_slice().first().filter(|_| token == written) {
                Some((tiles, size)) => {
                    let rows: Vec<_> = rows.by_ref().take(tiles.len()).collect();
                    self.image(&mut prompt, (tiles, *size), &rows, encode)?;
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

    /// How many rows an image becomes that has these tiles (grid, place among the parts), and that size.
    ///
    /// # Errors
    /// [`PictureError::Shape`].
    pub(crate) fn rows(
        &self,
        tiles: impl Iterator<Item = ([u32; 2], Option<[u32; 2]>)>,
        size: [u32; 2],
    ) -> Result<usize, PictureError> {
        let pieces = self.vision.script.pieces(&self.shapes(tiles)?, size);
        Ok(pieces.iter().map(|piece| piece.rows() as usize).sum())
    }

    fn shapes(
        &self,
        tiles: impl Iterator<Item = ([u32; 2], Option<[u32; 2]>)>,
    ) -> Result<Vec<vision::Tile>, PictureError> {
        let shape = |([rows, cols], part)| {
            Ok(vision::Tile { rows: self.vision.merged(Grid { rows, cols })?, part })
        };
        tiles.map(shape).collect()
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
        (tiles, size): (&[vision::Tile], [u32; 2]),
        rows: &[Arc<Embeddings>],
        encode: Encode<'_>,
    ) -> Result<(), PictureError> {
        let mut woven = Woven { newline: &self.newline, tiles: rows, pieces: Vec::new() };
        for piece in self.vision.script.pieces(tiles, size) {
            match piece {
                Piece::Text(text) => {
                    woven.put(prompt);
                    prompt.text(&encode(&text).map_err(PictureError::Text)?);
                }
                Piece::Rows { tile, count, .. } if count as usize == rows[tile].len() => {
                    woven.put(prompt);
                    prompt.rows(Arc::clone(&rows[tile]));
                    prompt.parts.push(Part::Image(tiles[tile].rows));
                }
                other => woven.pieces.push(other),
            }
        }
        woven.put(prompt);
        Ok(())
    }
}

/// Rows put together of those of tiles.
struct Woven<'a> {
    newline: &'a [f32],
    tiles: &'a [Arc<Embeddings>],
    /// Those that follow each other.
    pieces: Vec<Piece>,
}

impl Woven<'_> {
    /// Puts them into a prompt.
    fn put(&mut self, prompt: &mut Draft) {
        let (pieces, Some(one)) = (std::mem::take(&mut self.pieces), self.tiles.first()) else {
            return;
        };
        if pieces.is_empty() {
            return;
        }
        let tiles: Vec<&[f32]> = self.tiles.iter().map(|tile| &*tile.data).collect();
        let (mut data, mut ids) = (Vec::new(), Vec::new());
        let newline = Embeddings::new(one.cols, self.newline.to_vec(), hash(self.newline));
        for piece in &pieces {
            piece.add(&tiles, self.newline, one.cols as usize, &mut data);
            match piece {
                Piece::Text(_) => {}
                Piece::Rows { tile, first, count } => {
                    ids.extend_from_slice(
                        &self.tiles[*tile].ids[*first as usize..][..*count as usize],
                    );
                }
                Piece::Newline => ids.extend_from_slice(&newline.ids),
                Piece::Mixed(taps) => ids.push(taps.iter().fold(FIRST_MEDIA, |id, tap| {
                    let own = self.tiles[tap.tile].ids[tap.row as usize];
                    let mixed = splitmix(u64::from(own) << 32 | u64::from(tap.weight.to_bits()));
                    FIRST_MEDIA | (splitmix(mixed ^ u64::from(id)) >> 33) as TokenId
                })),
            }
        }
        prompt.parts.push(Part::Text(ids.len() as u32));
        prompt.rows(Arc::new(Embeddings { cols: one.cols, data, ids }));
    }
}

/// A hash of numbers.
fn hash(numbers: &[f32]) -> u128 {
    let mut hash = blake3::Hasher::new();
    for number in numbers {
        hash.update(&number.to_le_bytes());
    }
    let mut key = [0; 16];
    hash.finalize_xof().fill(&mut key);
    u128::from_le_bytes(key)
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
