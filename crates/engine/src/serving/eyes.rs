//! From pictures to a prompt: what the model's processor makes of them, and what stands for them.

use serde_json::{Value, json};
use thiserror::Error;
use tokenmill_ir::TokenId;
use tokenmill_media::{MediaError, Picture, Processor, Tower};
use tokenmill_models::vision::VisionSpec;
use tokenmill_sched::Inputs;

use crate::handle::Engine;
use crate::pictures::{Encode, PictureError, Tile, Tiles};
use crate::sight::Sight;

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
        Ok(Self { processor: Processor::read(&config, tower)?, sight })
    }

    /// A rendered prompt with its pictures, which stand where the template wrote that they come. Asks for
    /// the pixels of one picture after the other, so that no more than one is there, computes their rows, or finds
    /// them kept; waits for the encoder.
    ///
    /// # Errors
    /// [`EyesError`].
    pub fn prompt(
        &self,
        engine: &Engine,
        rendered: &[TokenId],
        (count, picture): (usize, &dyn Fn(usize) -> Result<Picture, MediaError>),
        (encode, account): (Encode<'_>, u64),
    ) -> Result<(Vec<TokenId>, Inputs), EyesError> {
        let (alone, context) = (count == 1, engine.longest());
        let (mut tokens, mut images) = (rendered.len(), Vec::with_capacity(count));
        for index in 0..count {
            let not_seen = |error| EyesError::Picture { index, error };
            let picture = picture(index).map_err(not_seen)?;
            let layout = self.processor.layout(picture.width(), picture.height(), alone);
            let layout = layout.map_err(not_seen)?;
            let shapes = layout.tiles.iter().map(|tile| (tile.grid, tile.part));
            tokens = tokens.saturating_add(self.sight.rows(shapes, layout.size)?);
            if tokens > context as usize {
                return Err(EyesError::Context { tokens, context });
            }
            images.push(self.seen(picture, alone).map_err(not_seen)?);
        }
        Ok(self.sight.prompt(engine, rendered, images, encode, account)?)
    }

    /// A picture as its encoder takes it.
    fn seen(&self, picture: Picture, alone: bool) -> Result<Tiles, MediaError> {
        let found = self.processor.patches(picture, alone)?;
        let mut numbers = found.data.into_iter();
        let tile = |tile: &tokenmill_media::Tile| Tile {
            grid: tile.grid,
            part: tile.part,
            patches: numbers.by_ref().take(tile.patches() * found.columns).collect(),
        };
        Ok(Tiles { size: found.layout.size, tiles: found.layout.tiles.iter().map(tile).collect() })
    }
}

/// A description, with the encoder's own size where it names none.
fn sized(mut config: Value, vision: &VisionSpec) -> Value {
    let named = |key: &str| config.get(key).is_some_and(|value| !value.is_null());
    let sizes = ["size", "crop_size", "max_image_size"];
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
            json!({ "image_processor_type": "LlavaNextImageProcessor", "size": square })
        }
        "llava_onevision" => json!({
            "image_processor_type": "LlavaOnevisionImageProcessor", "size": square,
        }),
        "internvl" => json!({
            "image_processor_type": "GotOcr2ImageProcessor", "processor_class": "InternVLProcessor",
            "size": square, "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225],
        }),
        "llama4" => json!({ "image_processor_type": "Llama4ImageProcessor", "size": square }),
        "mistral3" => json!({
            "image_processor_type": "PixtralImageProcessor", "size": { "longest_edge": 1540 },
        }),
        other => json!({ "image_processor_type": format!("of {other}") }),
    }
}
