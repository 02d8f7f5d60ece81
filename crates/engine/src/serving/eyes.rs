//! From pictures to a prompt: what the model's processor makes of them, and what stands for them.

use serde_json::{Value, json};
use thiserror::Error;
use tokenmill_ir::TokenId;
use tokenmill_media::{MediaError, Picture, Processor, Tower, grid};
use tokenmill_models::vision::VisionSpec;
use tokenmill_sched::Inputs;

use crate::handle::Engine;
use crate::pictures::{Encode, PictureError, Sketch, Tile};
use crate::sight::Sight;
use crate::vision::Glance;

/// How a model sees pictures.
#[derive(Debug, Clone)]
pub struct Eyes {
    sight: Sight,
    processor: Processor,
}

/// Why pictures cannot be put into a prompt.
#[derive(Debug, Error)]
pub enum EyesError {
    /// The processor does not take one of them.
    #[error("{error}")]
    Picture {
        /// Which.
        index: usize,
        /// Why not.
        error: MediaError,
    },
    /// They become more rows than the context has.
    #[error(
        "the prompt has {tokens} tokens or more, its images among them; the context has {context}"
    )]
    Context {
        /// Of the prompt and its first images, with which it is too long.
        tokens: usize,
        /// Most of prompt and answer together.
        context: u32,
    },
    /// Its encoder, or what its template writes.
    #[error(transparent)]
    Prompt(#[from] PictureError),
}

impl Eyes {
    /// Of a model whose files say how it sees.
    ///
    /// # Errors
    /// A processor that is not built, or whose description makes no sense.
    pub fn new(sight: Sight) -> Result<Self, MediaError> {
        let VisionSpec { patch, merge, .. } = &sight.vision;
        let tower = Tower { patch: patch.size, merge: *merge };
        let read = sight.preprocessor.as_deref().map(serde_json::from_str);
        let config = match read {
            Some(Ok(config)) => sized(config, &sight.vision),
            Some(Err(error)) => {
                let what =
                    format!("described in preprocessor_config.json, which is no JSON ({error})");
                return Err(MediaError::Unsupported { what, known: "objects of JSON".to_owned() });
            }
            None => usual(&sight.vision),
        };
        let processor = Processor::read(&config, tower)?;
        // (Rows of another width would be read as other patches.)
        let widths = [
            ("patch_size", processor.patch, patch.size),
            ("temporal_patch_size", processor.frames, patch.frames),
        ];
        if let Some((key, value, _)) = widths.into_iter().find(|(_, own, read)| own != read) {
            let reason = "the model's encoder reads patches of another size";
            return Err(MediaError::Config { key, value: value.to_string(), reason });
        }
        Ok(Self { processor, sight })
    }

    /// A rendered prompt with pictures of these widths and heights, before they are seen: no pixel is
    /// needed to know how long it is.
    ///
    /// # Errors
    /// [`EyesError`], but none of the encoder. A prompt longer than `context` is not put together.
    pub fn sketch(
        &self,
        rendered: &[TokenId],
        sizes: &[[u32; 2]],
        (encode, context): (Encode<'_>, u32),
    ) -> Result<Sketch, EyesError> {
        let alone = sizes.len() == 1;
        let (mut tokens, mut images) = (rendered.len(), Vec::with_capacity(sizes.len()));
        for (index, &[width, height]) in sizes.iter().enumerate() {
            let layout = self.processor.layout(width, height, alone);
            let layout = layout.map_err(|error| EyesError::Picture { index, error })?;
            let shapes = layout.tiles.iter().map(|tile| (tile.grid, tile.part)).collect();
            let outline = (layout.size, shapes);
            tokens = tokens.saturating_add(self.sight.rows(&outline)?);
            if tokens > context as usize {
                return Err(EyesError::Context { tokens, context });
            }
            images.push(outline);
        }
        Ok(self.sight.sketch(rendered, &images, encode)?)
    }

    /// What stands around a picture where no template writes it.
    pub fn around(&self) -> [&'static str; 2] {
        self.sight.vision.script.around()
    }

    /// Patches that a picture becomes.
    pub fn patches(&self, [width, height]: [u32; 2], alone: bool) -> u32 {
        let patches = self.processor.layout(width, height, alone).map_or(0, |l| l.patches());
        u32::try_from(patches).unwrap_or(u32::MAX)
    }

    /// Bytes of the patches of a picture, as many as are in memory until it was looked at.
    pub fn patch_bytes(&self, size: [u32; 2], alone: bool) -> u64 {
        u64::from(self.patches(size, alone)) * u64::from(self.sight.vision.input_cols()) * 4
    }

    /// The tiles of a picture, for [`Engine::look`]; `alone`: it is the only one of its prompt.
    ///
    /// # Errors
    /// [`EyesError`]; `index` says which picture it is.
    pub fn glances(
        &self,
        engine: &Engine,
        (index, picture): (usize, Picture),
        alone: bool,
    ) -> Result<Vec<Glance>, EyesError> {
        let found = self.processor.patches(picture, alone);
        let found = found.map_err(|error| EyesError::Picture { index, error })?;
        let mut numbers = found.data.as_slice();
        let glance = |tile: &tokenmill_media::Tile| {
            let (own, others) = numbers.split_at(tile.patches() * found.columns);
            numbers = others;
            let tile = Tile { grid: tile.grid, part: tile.part, patches: own.to_vec() };
            let glance = engine.glance(self.sight.patches(&tile)?);
            Ok(glance.map_err(|refusal| PictureError::Rows(refusal.into()))?)
        };
        found.layout.tiles.iter().map(glance).collect()
    }

    /// A rendered prompt with its pictures, which stand where the template wrote that they come: their
    /// rows are computed, those of one picture after the other, or were kept. Waits for the encoder.
    ///
    /// # Errors
    /// [`EyesError`].
    pub fn prompt(
        &self,
        engine: &Engine,
        rendered: &[TokenId],
        pictures: &[Picture],
        (encode, account): (Encode<'_>, u64),
    ) -> Result<(Vec<TokenId>, Inputs), EyesError> {
        let sizes: Vec<_> = pictures.iter().map(|p| [p.width(), p.height()]).collect();
        let sketch = self.sketch(rendered, &sizes, (encode, engine.longest()))?;
        let mut rows = Vec::new();
        for (index, picture) in pictures.iter().enumerate() {
            let glances = self.glances(engine, (index, picture.clone()), pictures.len() == 1)?;
            rows.extend(engine.see_all(&glances, account).map_err(PictureError::from)?);
        }
        Ok(sketch.filled(&rows)?)
    }
}

/// A description, with the encoder's own size where it names none.
fn sized(mut config: Value, vision: &VisionSpec) -> Value {
    let named = |key: &str| config.get(key).is_some_and(|value| !value.is_null());
    let sizes = ["size", "crop_size", "max_image_size", "image_grid_pinpoints"];
    if vision.side.is_some() && config.is_object() && !sizes.into_iter().any(named) {
        let usual = usual(vision);
        for key in sizes {
            if let Some(size) = usual.get(key) {
                config[key] = size.clone();
            }
        }
    }
    config
}

/// What the processor of an encoder's family is where no file describes it, as beside `mmproj` files.
fn usual(vision: &VisionSpec) -> Value {
    let side = vision.side.unwrap_or(24) * vision.patch.size;
    let square = json!({ "height": side, "width": side });
    let half = json!([0.5, 0.5, 0.5]);
    match vision.arch {
        "qwen2_vl" | "qwen2_5_vl" => json!({ "image_processor_type": "Qwen2VLImageProcessor" }),
        "gemma4" => json!({ "image_processor_type": "Gemma4ImageProcessor" }),
        "kimi_vl" => json!({
            "image_processor_type": "KimiVLImageProcessor", "pad_input": true,
            "image_mean": half, "image_std": half,
        }),
        "kimi_k25" => json!({ "image_processor_type": "Kimi_K25ImageProcessor" }),
        "glm4v" => json!({ "image_processor_type": "Glm4vImageProcessor" }),
        "qwen3_vl" => json!({
            "image_processor_type": "Qwen2VLImageProcessor", "image_mean": half, "image_std": half,
            "min_pixels": 65_536, "max_pixels": 16_777_216,
        }),
        "gemma3" => json!({ "image_processor_type": "Gemma3ImageProcessor", "size": square }),
        "idefics3" => json!({
            "image_processor_type": "Idefics3ImageProcessor",
            "size": { "longest_edge": 4 * side }, "max_image_size": { "longest_edge": side },
        }),
        "llava" => json!({
            "image_processor_type": "CLIPImageProcessor",
            "size": { "shortest_edge": side }, "crop_size": square,
        }),
        "llava_next" => {
            let canvases = [[1, 2], [2, 1], [2, 2], [3, 1], [1, 3]].map(|c| c.map(|n| n * side));
            json!({
                "image_processor_type": "LlavaNextImageProcessor", "size": square, "crop_size": square,
                "image_grid_pinpoints": canvases,
            })
        }
        "llava_onevision" => json!({
            "image_processor_type": "LlavaOnevisionImageProcessor", "size": square,
            "image_grid_pinpoints": grid(side),
        }),
        "internvl" => json!({
            "image_processor_type": "GotOcr2ImageProcessor", "processor_class": "InternVLProcessor",
            "size": square, "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225],
        }),
        "clip" => json!({
            "image_processor_type": "CLIPImageProcessor",
            "size": { "shortest_edge": side }, "crop_size": square,
        }),
        "siglip" => json!({ "image_processor_type": "SiglipImageProcessor", "size": square }),
        "llama4" => json!({ "image_processor_type": "Llama4ImageProcessor", "size": square }),
        "mistral3" => json!({
            "image_processor_type": "PixtralImageProcessor", "size": { "longest_edge": 1540 },
        }),
        other => json!({ "image_processor_type": format!("of {other}") }),
    }
}
