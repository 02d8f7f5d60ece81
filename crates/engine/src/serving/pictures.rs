//! Images in prompts: what stands for each, its rows among the text, and where its tokens are.

use std::ops::Range;
use std::sync::Arc;

use thiserror::Error;
use tokenmill_ir::{FIRST_MEDIA, TokenId};
use tokenmill_models::ModelError;
use tokenmill_models::spec::Axes;
use tokenmill_models::vision::{self, Grid, Part, Piece, Positions};
use tokenmill_sched::{Embeddings, Inputs, Media};

use crate::handle::{Engine, RowsError};
use crate::request::RequestError;
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

/// Rows and columns of patches of a tile, and its place among the tiles.
pub type Shape = ([u32; 2], Option<[u32; 2]>);

/// Makes text tokens, special ones among them.
pub type Encode<'a> = &'a dyn Fn(&str) -> Result<Vec<TokenId>, String>;

/// A prompt before its images were seen: what stands for them and how many rows each becomes is known
/// from their sizes alone.
#[derive(Debug, Clone, Default)]
pub struct Sketch {
    /// Ids of no content stand where rows will.
    tokens: Vec<TokenId>,
    slots: Vec<Slot>,
    /// Rows of each tile, of all images in order.
    tiles: Vec<usize>,
    /// All but the rows.
    inputs: Inputs,
}

/// Where rows of a tile will stand.
#[derive(Debug, Clone)]
struct Slot {
    at: u32,
    tile: usize,
    rows: Range<usize>,
}

impl Sketch {
    /// Its tokens, as many as there will be.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// The prompt with its rows, those of all tiles in order.
    ///
    /// # Errors
    /// Other rows than were to come: a bug.
    pub fn filled(self, rows: &[Arc<Embeddings>]) -> Result<(Vec<TokenId>, Inputs), PictureError> {
        let Self { mut tokens, slots, tiles, mut inputs } = self;
        if !rows.iter().map(|rows| rows.len()).eq(tiles.iter().copied()) {
            let reason = "an image has other rows than its size told".to_owned();
            return Err(RowsError::from(RequestError::Internal(reason)).into());
        }
        for Slot { at, tile, rows: part } in slots {
            let rows = match part.len() == rows[tile].len() {
                true => Arc::clone(&rows[tile]),
                false => Arc::new(rows[tile].part(part)),
            };
            tokens[at as usize..][..rows.len()].copy_from_slice(&rows.ids);
            inputs.media.push(Media { at, rows });
        }
        Ok((tokens, inputs))
    }
}

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
        let shape = |tile: &Tile| (tile.grid, tile.part);
        let shapes: Vec<Vec<Shape>> =
            images.iter().map(|tiles| tiles.iter().map(shape).collect()).collect();
        let sketch = self.sketch(rendered, &shapes, encode)?;
        let patches = images.into_iter().flatten().map(|tile| self.patches(&tile));
        let rows = engine.see(patches.collect::<Result<_, _>>()?, account)?;
        sketch.filled(&rows)
    }

    /// A rendered prompt with images of these tiles, before they are seen.
    ///
    /// # Errors
    /// [`PictureError`], but none of the encoder.
    pub fn sketch(
        &self,
        rendered: &[TokenId],
        images: &[Vec<Shape>],
        encode: Encode<'_>,
    ) -> Result<Sketch, PictureError> {
        let written = self.written(encode)?;
        let places = rendered.iter().filter(|token| **token == written).count();
        if places != images.len() {
            return Err(PictureError::Count { written: places, given: images.len() });
        }
        let mut images = images.iter();
        let mut draft = Draft::default();
        for &token in rendered {
            match if token == written { images.next() } else { None } {
                Some(tiles) => self.image(&mut draft, &self.shapes(tiles)?, encode)?,
                None => draft.text(&[token]),
            }
        }
        Ok(draft.done(self.vision.blocks, self.vision.axes != Axes::One))
    }

    /// The token that a template writes where an image comes.
    fn written(&self, encode: Encode<'_>) -> Result<TokenId, PictureError> {
        let text = self.vision.script.written();
        match encode(text).map_err(PictureError::Text)?[..] {
            [token] => Ok(token),
            _ => Err(PictureError::NoToken { text: text.to_owned() }),
        }
    }

    fn shapes(&self, tiles: &[Shape]) -> Result<Vec<vision::Tile>, PictureError> {
        let shape = |&([rows, cols], part): &Shape| {
            Ok(vision::Tile { rows: self.vision.merged(Grid { rows, cols })?, part })
        };
        tiles.iter().map(shape).collect()
    }

    /// What the encoder reads of a tile.
    ///
    /// # Errors
    /// [`PictureError::Shape`].
    pub(crate) fn patches(&self, tile: &Tile) -> Result<Patches, PictureError> {
        let [rows, cols] = tile.grid;
        let place = self.vision.place(Grid { rows, cols })?;
        let data = place.inputs(&tile.patches);
        let vision::Place { positions, blocks, outputs, merged, .. } = place;
        // (Where rows come as they stand, nobody need move them.)
        let order = if merged.iter().copied().eq(0..) { Vec::new() } else { merged };
        Ok(Patches { cols: self.vision.input_cols(), data, positions, blocks, outputs, order })
    }

    /// What stands for an image.
    fn image(
        &self,
        draft: &mut Draft,
        tiles: &[vision::Tile],
        encode: Encode<'_>,
    ) -> Result<(), PictureError> {
        let of = |tile: &vision::Tile| (tile.rows.rows * tile.rows.cols) as usize;
        let (mut taken, first) = (vec![0; tiles.len()], draft.sketch.tiles.len());
        draft.sketch.tiles.extend(tiles.iter().map(of));
        for piece in self.vision.script.pieces(tiles) {
            match piece {
                Piece::Text(text) => draft.text(&encode(&text).map_err(PictureError::Text)?),
                Piece::Rows { tile, count } => {
                    let (from, count) = (taken[tile], count as usize);
                    taken[tile] += count;
                    draft.rows(first + tile, from..from + count);
                    draft.parts.push(match count == of(&tiles[tile]) {
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
    sketch: Sketch,
    parts: Vec<Part>,
}

impl Draft {
    fn text(&mut self, tokens: &[TokenId]) {
        self.sketch.tokens.extend_from_slice(tokens);
        match self.parts.last_mut() {
            Some(Part::Text(len)) => *len += tokens.len() as u32,
            _ => self.parts.push(Part::Text(tokens.len() as u32)),
        }
    }

    fn rows(&mut self, tile: usize, rows: Range<usize>) {
        let Sketch { tokens, slots, .. } = &mut self.sketch;
        let at = tokens.len() as u32;
        tokens.resize(tokens.len() + rows.len(), FIRST_MEDIA);
        slots.push(Slot { at, tile, rows });
    }

    fn done(self, blocks: bool, several: bool) -> Sketch {
        let Self { mut sketch, parts } = self;
        let Sketch { inputs, slots, .. } = &mut sketch;
        if blocks {
            let block = |slot: &Slot| [slot.at, slot.at + slot.rows.len() as u32];
            inputs.blocks = slots.iter().map(block).collect();
        }
        if several {
            Positions { axes: inputs.positions, next: inputs.next } = Positions::of(&parts);
        }
        sketch
    }
}
