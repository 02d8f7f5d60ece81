//! Images in prompts: what stands for each, its rows among the text, and where its tokens are.

use std::sync::Arc;

use thiserror::Error;
use tokenmill_ir::sampling::splitmix;
use tokenmill_ir::{FIRST_MEDIA, TokenId};
use tokenmill_models::ModelError;
use tokenmill_models::spec::Axes;
use tokenmill_models::vision::{self, Grid, Part, Piece, Positions};
use tokenmill_sched::{Embeddings, Inputs, Media};
use tokenmill_text::IMAGE;

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

/// Rows and columns of patches of a tile, and its place among the tiles.
pub type Shape = ([u32; 2], Option<[u32; 2]>);

/// An image before it is cut: its height and width in pixels, and what its tiles will be.
pub type Outline = ([u32; 2], Vec<Shape>);

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
    /// The learned row behind lines, where the model has one.
    newline: Vec<f32>,
    /// All but the rows.
    inputs: Inputs,
}

/// Where rows will stand, without text in between.
#[derive(Debug, Clone)]
struct Slot {
    at: u32,
    /// The first tile of its image among those of all.
    first: usize,
    /// What they are put together of, tiles counted within the image.
    pieces: Vec<Piece>,
}

impl Slot {
    fn rows(&self) -> u32 {
        self.pieces.iter().map(Piece::rows).sum()
    }

    /// Its rows, of those of its image's tiles.
    fn filled(&self, tiles: &[Arc<Embeddings>], newline: &[f32]) -> Arc<Embeddings> {
        let tiles = &tiles[self.first..];
        match self.pieces[..] {
            [Piece::Rows { tile, first: 0, count }] if count as usize == tiles[tile].len() => {
                Arc::clone(&tiles[tile])
            }
            _ => Arc::new(woven(&self.pieces, tiles, newline)),
        }
    }
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
        let Self { mut tokens, slots, tiles, newline, mut inputs } = self;
        if !rows.iter().map(|rows| rows.len()).eq(tiles.iter().copied()) {
            let reason = "an image has other rows than its size told".to_owned();
            return Err(RowsError::from(RequestError::Internal(reason)).into());
        }
        for slot in slots {
            let rows = slot.filled(rows, &newline);
            tokens[slot.at as usize..][..rows.len()].copy_from_slice(&rows.ids);
            inputs.media.push(Media { at: slot.at, rows });
        }
        Ok((tokens, inputs))
    }
}

/// Rows put together of those of tiles, and what they depend on.
fn woven(pieces: &[Piece], tiles: &[Arc<Embeddings>], newline: &[f32]) -> Embeddings {
    let cols = tiles.first().map_or(1, |tile| tile.cols);
    let numbers: Vec<&[f32]> = tiles.iter().map(|tile| &*tile.data).collect();
    let (mut data, mut ids) = (Vec::new(), Vec::new());
    let line = Embeddings::new(cols, newline.to_vec(), hash(newline));
    for piece in pieces {
        piece.add(&numbers, newline, cols as usize, &mut data);
        match piece {
            Piece::Text(_) => {}
            Piece::Rows { tile, first, count } => {
                ids.extend_from_slice(&tiles[*tile].ids[*first as usize..][..*count as usize]);
            }
            Piece::Newline => ids.extend_from_slice(&line.ids),
            Piece::Mixed(taps) => ids.push(taps.iter().fold(FIRST_MEDIA, |id, tap| {
                let own = tiles[tap.tile].ids[tap.row as usize];
                let mixed = splitmix(u64::from(own) << 32 | u64::from(tap.weight.to_bits()));
                FIRST_MEDIA | (splitmix(mixed ^ u64::from(id)) >> 33) as TokenId
            })),
        }
    }
    Embeddings { cols, data, ids }
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
        let shape = |tile: &Tile| (tile.grid, tile.part);
        let outline = |image: &Tiles| (image.size, image.tiles.iter().map(shape).collect());
        let outlines: Vec<Outline> = images.iter().map(outline).collect();
        let sketch = self.sketch(rendered, &outlines, encode)?;
        let tiles = images.into_iter().flat_map(|image| image.tiles);
        let patches = tiles.map(|tile| self.patches(&tile));
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
        images: &[Outline],
        encode: Encode<'_>,
    ) -> Result<Sketch, PictureError> {
        let written = match rendered.contains(&IMAGE) {
            true => IMAGE,
            false => self.written(encode)?,
        };
        let places = rendered.iter().filter(|token| **token == written).count();
        if places != images.len() {
            return Err(PictureError::Count { written: places, given: images.len() });
        }
        let mut images = images.iter();
        let mut draft = Draft::default();
        for &token in rendered {
            match if token == written { images.next() } else { None } {
                Some(outline) => self.image(&mut draft, outline, encode)?,
                None => draft.text(&[token]),
            }
        }
        draft.sketch.newline.clone_from(&self.newline);
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

    /// How many rows an image becomes.
    ///
    /// # Errors
    /// [`PictureError::Shape`].
    pub(crate) fn rows(&self, (size, tiles): &Outline) -> Result<usize, PictureError> {
        let pieces = self.vision.script.pieces(&self.shapes(tiles)?, *size);
        Ok(pieces.iter().map(|piece| piece.rows() as usize).sum())
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
    pub fn patches(&self, tile: &Tile) -> Result<Patches, PictureError> {
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
        (size, tiles): &Outline,
        encode: Encode<'_>,
    ) -> Result<(), PictureError> {
        let tiles = self.shapes(tiles)?;
        let of = |tile: &vision::Tile| tile.rows.rows * tile.rows.cols;
        let first = draft.sketch.tiles.len();
        draft.sketch.tiles.extend(tiles.iter().map(|tile| of(tile) as usize));
        let mut loose = Vec::new();
        for piece in self.vision.script.pieces(&tiles, *size) {
            match piece {
                Piece::Text(text) => {
                    draft.rows(first, std::mem::take(&mut loose), None);
                    draft.text(&encode(&text).map_err(PictureError::Text)?);
                }
                Piece::Rows { tile, count, .. } if count == of(&tiles[tile]) => {
                    draft.rows(first, std::mem::take(&mut loose), None);
                    draft.rows(first, vec![piece], Some(tiles[tile].rows));
                }
                other => loose.push(other),
            }
        }
        draft.rows(first, loose, None);
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

    /// Rows of an image whose first tile is that one; `grid`: they are all of a tile.
    fn rows(&mut self, first: usize, pieces: Vec<Piece>, grid: Option<Grid>) {
        let Sketch { tokens, slots, .. } = &mut self.sketch;
        let slot = Slot { at: tokens.len() as u32, first, pieces };
        let count = slot.rows();
        if count == 0 {
            return;
        }
        tokens.resize(tokens.len() + count as usize, FIRST_MEDIA);
        self.parts.push(grid.map_or(Part::Text(count), Part::Image));
        slots.push(slot);
    }

    fn done(self, blocks: bool, several: bool) -> Sketch {
        let Self { mut sketch, parts } = self;
        let Sketch { inputs, slots, .. } = &mut sketch;
        if blocks {
            let block = |slot: &Slot| [slot.at, slot.at + slot.rows()];
            inputs.blocks = slots.iter().map(block).collect();
        }
        if several {
            Positions { axes: inputs.positions, next: inputs.next } = Positions::of(&parts);
        }
        sketch
    }
}
