//! Recorded models that see (`vision/sight.py`): their images' patches, and prompts in which rows
//! stand in the place of tokens.

use std::ops::Range;

use serde::Deserialize;
use tokenmill_backend::{Device, DeviceError};
use tokenmill_ir::{Batch, Mode, Program, TokenSource, WeightSource};
use tokenmill_models::ModelError;
use tokenmill_models::vision::{Grid, Part, Patch, Positions, VisionSpec, arranged};
use tokenmill_quant::FormatId;

use crate::model::Golden;
use crate::run::Runner;
use crate::tensors::{Tensor, fill};

#[derive(Deserialize)]
struct Recorded {
    images: Vec<[u32; 2]>,
    image_token: u32,
}

/// A recording of a model that sees.
pub struct Sight {
    /// Its prompt and what comes next.
    pub golden: Golden,
    /// Its images.
    pub images: Vec<Grid>,
    /// The token whose place their rows take.
    pub image_token: u32,
}

impl Sight {
    /// Reads a recording by its name in [`Golden::all_seeing`].
    pub fn read(name: &str) -> Self {
        let golden = Golden::read(name);
        let text = golden.text("golden.json").expect("golden.json");
        let recorded: Recorded = serde_json::from_str(&text).expect("images in golden.json");
        let images = recorded.images.iter().map(|&[rows, cols]| Grid { rows, cols }).collect();
        Self { golden, images, image_token: recorded.image_token }
    }

    /// The numbers of an image's patches, all frames alike.
    pub fn patches(&self, image: usize, patch: Patch) -> Vec<f32> {
        let family = self.golden.arch.trim_start_matches("vision/");
        let Grid { rows, cols } = self.images[image];
        let pixels = u64::from(patch.size * patch.size);
        let shape = vec![u64::from(rows * cols * patch.channels), pixels];
        let name = format!("patches:{family}:{image}");
        let tensor = Tensor { name, shape, dtype: "F32".to_owned(), scale: 3.0, offset: 0.0 };
        let mut bytes = Vec::new();
        fill(&tensor, "", FormatId::F32, &mut bytes).expect("filled");
        let channels = bytes.chunks_exact(4 * pixels as usize);
        let bytes: Vec<u8> = channels.flat_map(|c| c.repeat(patch.frames as usize)).collect();
        bytes.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect()
    }

    /// Rows of all images, one image a step.
    pub fn encode(
        &self,
        vision: &VisionSpec,
        program: &Program,
        device: &dyn Device,
        source: &dyn WeightSource,
    ) -> Result<Vec<f32>, DeviceError> {
        let most = self.images.iter().map(|g| g.rows * g.cols + 1).max().unwrap_or(1);
        let mut run = Runner::new(device, Mode::F32, program, source, most)?;
        let mut rows = Vec::new();
        for (image, grid) in self.images.iter().enumerate() {
            let place = vision.place(*grid).expect("a grid that the tower takes");
            let inputs = place.inputs(&self.patches(image, vision.patch));
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
            rows.extend(arranged(found, &place.merged));
        }
        Ok(rows)
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
            let grid = vision.merged(*images.next().expect("an image for every place"))?;
            let len = (grid.rows * grid.cols) as usize;
            parts.push(Part::Image(grid));
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
