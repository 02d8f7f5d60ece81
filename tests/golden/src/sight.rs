//! Recorded models that see (`vision/sight.py`): their images' patches, and prompts in which rows
//! stand in the place of tokens.

use std::ops::Range;

use serde::Deserialize;
use tokenmill_backend::{Device, DeviceError, stored};
use tokenmill_files::OpenModel;
use tokenmill_ir::{Batch, Mode, Program, TokenSource};
use tokenmill_models::vision::{Grid, Part, Patch, Piece, Positions, Tile, VisionSpec, arranged};
use tokenmill_models::{ModelError, newline_of};
use tokenmill_quant::FormatId;

use crate::model::Golden;
use crate::run::Runner;
use crate::tensors::{Tensor, fill};

#[derive(Deserialize)]
struct Recorded {
    images: Vec<[u32; 2]>,
    image_token: u32,
    /// Of images that are cut: rows and columns of tiles behind the whole, height and width.
    canvases: Option<Vec<[u32; 4]>>,
}

/// An image of a recording.
#[derive(Debug, Clone)]
pub struct Image {
    /// Height and width, where they matter.
    pub size: [u32; 2],
    /// Its tiles, in patches.
    pub tiles: Vec<Tile>,
    /// Number of the first tile among those of all images.
    pub first: usize,
}

impl Image {
    /// What stands for it in a prompt.
    ///
    /// # Errors
    /// Those of [`VisionSpec::merged`].
    pub fn pieces(&self, vision: &VisionSpec) -> Result<Vec<Piece>, ModelError> {
        let shape = |tile: &Tile| Ok(Tile { rows: vision.merged(tile.rows)?, part: tile.part });
        let shapes: Result<Vec<Tile>, ModelError> = self.tiles.iter().map(shape).collect();
        Ok(vision.script.pieces(&shapes?, self.size))
    }
}

/// A recording of a model that sees.
pub struct Sight {
    /// Its prompt and what comes next.
    pub golden: Golden,
    /// Its images.
    pub images: Vec<Image>,
    /// The token whose place their rows take.
    pub image_token: u32,
}

impl Sight {
    /// Reads a recording by its name in [`Golden::all_seeing`].
    pub fn read(name: &str) -> Self {
        let golden = Golden::read(name);
        let text = golden.text("golden.json").expect("golden.json");
        let recorded: Recorded = serde_json::from_str(&text).expect("images in golden.json");
        let canvases = recorded.canvases.unwrap_or_default();
        let (mut images, mut first) = (Vec::new(), 0);
        for (i, &[rows, cols]) in recorded.images.iter().enumerate() {
            let [down, across, height, width] = canvases.get(i).copied().unwrap_or_default();
            let tile = |part| Tile { rows: Grid { rows, cols }, part };
            let parts = (0..down).flat_map(|r| (0..across).map(move |c| tile(Some([r, c]))));
            let tiles: Vec<Tile> = std::iter::once(tile(None)).chain(parts).collect();
            images.push(Image { size: [height, width], tiles, first });
            first += images[i].tiles.len();
        }
        Self { golden, images, image_token: recorded.image_token }
    }

    /// The numbers of a tile's patches, all frames alike; tiles of all images are counted.
    pub fn patches(&self, tile: usize, Grid { rows, cols }: Grid, patch: Patch) -> Vec<f32> {
        let family = self.golden.arch.trim_start_matches("vision/");
        let pixels = u64::from(patch.size * patch.size);
        let shape = vec![u64::from(rows * cols * patch.channels), pixels];
        let name = format!("patches:{family}:{tile}");
        let tensor = Tensor { name, shape, dtype: "F32".to_owned(), scale: 3.0, offset: 0.0 };
        let mut bytes = Vec::new();
        fill(&tensor, "", FormatId::F32, &mut bytes).expect("filled");
        let channels = bytes.chunks_exact(4 * pixels as usize);
        let bytes: Vec<u8> = channels.flat_map(|c| c.repeat(patch.frames as usize)).collect();
        bytes.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect()
    }

    /// Rows of all images, one tile a step.
    pub fn encode(
        &self,
        vision: &VisionSpec,
        program: &Program,
        device: &dyn Device,
        model: &OpenModel,
    ) -> Result<Vec<f32>, DeviceError> {
        let tiles = self.images.iter().flat_map(|image| &image.tiles);
        let most = tiles.map(|t| t.rows.rows * t.rows.cols + 1).max().unwrap_or(1);
        let mut run = Runner::new(device, Mode::F32, program, model, most)?;
        let newline = newline_of(vision, &model.checkpoint).expect("a row behind lines");
        let newline = newline.map(|spec| stored::vector(&spec, model)).transpose()?;
        let newline = newline.unwrap_or_default();
        let mut rows = Vec::new();
        for image in &self.images {
            let mut tiles = Vec::new();
            for (tile, number) in image.tiles.iter().zip(image.first..) {
                tiles.push(self.tile(vision, &mut run, tile.rows, number)?);
            }
            let tiles: Vec<&[f32]> = tiles.iter().map(Vec::as_slice).collect();
            let cols = vision.row_cols() as usize;
            for piece in image.pieces(vision).expect("tiles that the tower takes") {
                piece.add(&tiles, &newline, cols, &mut rows);
            }
        }
        Ok(rows)
    }

    /// Rows of a tile.
    fn tile(
        &self,
        vision: &VisionSpec,
        run: &mut Runner,
        grid: Grid,
        number: usize,
    ) -> Result<Vec<f32>, DeviceError> {
        let place = vision.place(grid).expect("a grid that the tower takes");
        let inputs = place.inputs(&self.patches(number, grid, vision.patch));
        let found = run.encode(place.order.len(), &place.outputs, |batch| {
            let tokens = 0..batch.tokens.len() as u32;
            batch.tokens = tokens.map(TokenSource::Embedding).collect();
            batch.positions = place.positions.iter().map(|p| p[0]).collect();
            batch.grid = place.positions.iter().map(|p| [p[1], p[2]]).collect();
            let block = |&[begin, end]: &[u32; 2]| {
                std::iter::repeat_n([begin, end], (end - begin) as usize)
            };
            batch.blocks = place.blocks.iter().flat_map(block).collect();
            batch.embeddings = inputs;
        })?;
        Ok(arranged(found, &place.merged))
    }

    /// The prompt with `rows` in the places of its images' tokens.
    ///
    /// # Errors
    /// Those of [`VisionSpec::merged`].
    pub fn prompt(&self, vision: &VisionSpec, rows: Vec<f32>) -> Result<Seen<'_>, ModelError> {
        let ids = &self.golden.ids;
        let mut images = self.images.iter();
        let (mut parts, mut blocks, mut media) = (Vec::new(), Vec::new(), Vec::new());
        while blocks.len() < ids.len() {
            let at = blocks.len();
            if ids[at] != self.image_token {
                parts.push(Part::Text(1));
                blocks.push([0, 0]);
                media.push(None);
                continue;
            }
            let image = images.next().expect("an image for every place");
            let len: usize = image.pieces(vision)?.iter().map(|p| p.rows() as usize).sum();
            parts.push(match &image.tiles[..] {
                [tile] if !vision.newline() => Part::Image(vision.merged(tile.rows)?),
                _ => Part::Text(len as u32),
            });
            blocks.resize(at + len, [at as u32, (at + len) as u32]);
            let first = media.iter().flatten().count();
            media.extend((first..first + len).map(Some));
        }
        let plain = vision.axes == tokenmill_models::spec::Axes::One;
        let mut positions = Positions::of(&parts);
        if plain {
            positions = Positions::of(&[Part::Text(ids.len() as u32)]);
        }
        if !vision.blocks {
            blocks.clear();
        }
        Ok(Seen { ids, cols: vision.row_cols() as usize, rows, positions, blocks, media })
    }
}

/// A prompt in which rows stand in the place of tokens.
pub struct Seen<'a> {
    ids: &'a [u32],
    cols: usize,
    rows: Vec<f32>,
    positions: Positions,
    /// Empty where tokens of an image do not see each other.
    blocks: Vec<[u32; 2]>,
    /// Which row each token is.
    media: Vec<Option<usize>>,
}

impl Seen<'_> {
    /// Logits of all tokens, `chunk` a step, or as many more as an image takes that must be seen whole.
    pub fn prefill(&self, run: &mut Runner, chunk: usize) -> Result<Vec<f32>, DeviceError> {
        let (mut logits, mut start) = (Vec::new(), 0);
        while start < self.ids.len() {
            let mut end = self.ids.len().min(start + chunk);
            end = end.max(self.blocks.get(end - 1).map_or(0, |block| block[1] as usize));
            let part = start..end;
            logits.extend(run.feed_as(&self.ids[part.clone()], |batch| self.fill(&part, batch))?);
            start = end;
        }
        Ok(logits)
    }

    fn fill(&self, part: &Range<usize>, batch: &mut Batch) {
        let axes = &self.positions.axes[part.clone()];
        batch.positions = axes.iter().map(|p| p[0]).collect();
        batch.grid = axes.iter().map(|p| [p[1], p[2]]).collect();
        if !self.blocks.is_empty() {
            batch.blocks = self.blocks[part.clone()].to_vec();
        }
        for (token, media) in batch.tokens.iter_mut().zip(&self.media[part.clone()]) {
            let Some(row) = *media else { continue };
            *token = TokenSource::Embedding((batch.embeddings.len() / self.cols) as u32);
            batch.embeddings.extend_from_slice(&self.rows[row * self.cols..][..self.cols]);
        }
    }

    /// `n` greedy tokens behind the prompt, whose last row of logits is `last`.
    pub fn greedy(&self, run: &mut Runner, last: &[f32], n: u32) -> Result<Vec<u32>, DeviceError> {
        let (mut tokens, mut logits) = (Vec::new(), last.to_vec());
        for i in 0..n {
            let best = tokenmill_ir::sampling::argmax(&logits).expect("finite logits");
            tokens.push(best);
            let position = self.positions.next + i;
            logits = run.feed_as(&[best], |batch| batch.positions = vec![position])?;
        }
        Ok(tokens)
    }
}
