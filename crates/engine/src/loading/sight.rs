//! What makes a model one that sees: its encoder, from the files of the model or from an `mmproj` file
//! beside them, and its language model lowered to take the encoder's rows.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tokenmill_backend::{Device, DeviceError, stored};
use tokenmill_files::{OpenModel, Sidecars};
use tokenmill_ir::{Container, Limits, Meta, MetaValue, Program};
use tokenmill_kvlog::KeyParts;
use tokenmill_models::vision::{Grid, VisionSpec, vision_of, vision_of_mmproj};
use tokenmill_models::{ModelError, ModelSpec, lower, lower_vision, newline_of};

use super::encoder::Encoder;
use super::identity::add_samples;
use super::load::{LoadFailure, LoadOptions};
use super::plan::Needs;
use crate::ledger::Memory;

/// Patches that an encoder takes of one image, the most that memory has room for.
const PATCHES: [u32; 3] = [16_384, 8192, 4096];
/// What buffers of an encoder may take of a model's memory.
const BUFFERS_PART: u64 = 8;
/// Most bytes of rows that are kept.
const KEPT_BYTES: u64 = 256 << 20;
/// What they may take of a model's memory.
const KEPT_PART: u64 = 16;
/// Images in a step.
const IMAGES: u32 = 16;

/// How a model sees: what of an image its encoder reads.
#[derive(Debug, Clone)]
pub struct Sight {
    /// The encoder, and what stands for an image in a prompt.
    pub vision: VisionSpec,
    /// What `preprocessor_config.json` or `processor_config.json` says of its processor, where there is one.
    pub preprocessor: Option<String>,
    /// The learned row behind lines of an image's rows, where the model has one.
    pub newline: Vec<f32>,
    /// The encoder's file, where it is not in the model's.
    pub mmproj: Option<PathBuf>,
}

/// A model and its encoder, lowered.
pub(super) struct Seeing {
    /// The language model.
    pub spec: ModelSpec,
    /// The same.
    pub program: Program,
    pub sight: Sight,
    encoder: Program,
    /// The encoder's, where it has files of its own.
    files: Option<OpenModel>,
    limits: Limits,
    memory: Memory,
    kept_bytes: u64,
    longest_block: u32,
}

impl Seeing {
    /// Of a model that was read, where it has an encoder and the device can compute both; what it lacks
    /// is told to who watches, and the model reads text.
    pub fn of(
        (path, files, spec): (&Path, &OpenModel, &ModelSpec),
        device: &dyn Device,
        options: &LoadOptions,
    ) -> Option<Seeing> {
        if !options.images {
            return None;
        }
        let found = lowered((path, files, spec), device, options);
        found.unwrap_or_else(|error| {
            tracing::warn!(%error, path = %path.display(), "the model sees no images");
            None
        })
    }

    /// What it takes of memory beside the language model.
    pub fn memory(&self) -> Memory {
        self.memory
    }

    /// Takes its part of other memory.
    ///
    /// # Errors
    /// What the device says.
    pub fn within(
        &mut self,
        device: &dyn Device,
        options: &LoadOptions,
    ) -> Result<(), LoadFailure> {
        let vision = &self.sight.vision;
        (self.limits, self.memory) = bounds(vision, &self.encoder, device, options)?;
        self.kept_bytes = kept_bytes(options);
        self.longest_block = longest_block(vision, &self.limits)?;
        Ok(())
    }

    /// What is left for the language model, whose steps must have room for a longest image.
    pub fn options(&self, options: &LoadOptions) -> LoadOptions {
        let beside = self.longest_block.saturating_add(options.sequences);
        let least = if self.longest_block > 0 { beside } else { 0 };
        LoadOptions {
            step_tokens: options.step_tokens.max(least),
            memory_bytes: options.memory_bytes.saturating_sub(self.memory.sum()),
            ..options.clone()
        }
    }

    /// Bytes of the encoder in its files.
    pub fn file_bytes(&self) -> u64 {
        self.encoder.weight_bytes()
    }

    /// The encoder, its weights uploaded.
    ///
    /// # Errors
    /// What the device or the files say.
    pub fn upload(
        &self,
        (path, files): (&Path, &OpenModel),
        device: &dyn Device,
        options: &LoadOptions,
    ) -> Result<Encoder, LoadFailure> {
        let path = self.sight.mmproj.as_deref().unwrap_or(path).to_owned();
        let files = self.files.as_ref().unwrap_or(files);
        let watch = &mut |_| ControlFlow::Continue(());
        let weights = device.upload(&self.encoder, files, options.mode, watch)?;
        Ok(Encoder {
            path,
            program: self.encoder.clone(),
            weights,
            limits: self.limits.clone(),
            longest_block: self.longest_block,
            identity: self.identity()?,
            kept_bytes: self.kept_bytes,
        })
    }

    /// What rows depend on beside the patches. (What is in the model's own files is told apart wherever
    /// rows outlive a load.)
    fn identity(&self) -> Result<String, LoadFailure> {
        let mut parts = KeyParts::default();
        parts.add(self.encoder.dump().as_bytes());
        if let Some(own) = &self.files {
            add_samples(&mut parts, own)?;
        }
        Ok(format!("{:?}", parts.key()))
    }
}

fn lowered(
    (path, files, spec): (&Path, &OpenModel, &ModelSpec),
    device: &dyn Device,
    options: &LoadOptions,
) -> Result<Option<Seeing>, LoadFailure> {
    let mmproj = match files.checkpoint.container {
        Container::Hf => None,
        Container::Gguf => match beside(path) {
            None => return Ok(None),
            mmproj => mmproj,
        },
    };
    let own = mmproj.as_deref().map(tokenmill_files::open).transpose()?;
    let vision = match &own {
        Some(own) => Some(vision_of_mmproj(&own.checkpoint, &files.checkpoint)?),
        None => vision_of(&files.checkpoint)?,
    };
    let Some(vision) = vision else { return Ok(None) };
    let mut text = spec.clone();
    vision.see(&mut text)?;
    let program = lower(&text, &files.checkpoint, options.kv)?.program;
    match Needs::of(&text, &program, device, options) {
        // (A shorter context may fit.)
        Ok(_) | Err(DeviceError::OutOfMemory { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let checkpoint = own.as_ref().map_or(&files.checkpoint, |own| &own.checkpoint);
    let encoder = lower_vision(&vision, checkpoint)?;
    if let Some(first) = encoder.unused.first() {
        let (count, first) = (encoder.unused.len(), first.chars().take(200).collect());
        return Err(ModelError::UnusedTensors { count, first }.into());
    }
    let newline = match newline_of(&vision, checkpoint)? {
        Some(spec) => {
            stored::vector(&spec, own.as_ref().unwrap_or(files)).map_err(DeviceError::from)?
        }
        None => Vec::new(),
    };
    let (limits, memory) = bounds(&vision, &encoder.program, device, options)?;
    let preprocessor = match &own {
        Some(own) => preprocessor_of(&own.checkpoint.meta),
        None => described(&files.sidecars),
    };
    let longest_block = longest_block(&vision, &limits)?;
    let (sight, encoder) = (Sight { vision, preprocessor, newline, mmproj }, encoder.program);
    let (spec, files) = (text, own);
    Ok(Some(Seeing {
        spec,
        program,
        sight,
        encoder,
        files,
        limits,
        memory,
        kept_bytes: kept_bytes(options),
        longest_block,
    }))
}

/// The description of a folder's image processor: the part of `processor_config.json` that is one comes
/// first, as in transformers.
fn described(sidecars: &Sidecars) -> Option<String> {
    let read = |path: &Option<PathBuf>| std::fs::read_to_string(path.as_ref()?).ok();
    let nested = || {
        let whole: Value = serde_json::from_str(&read(&sidecars.processor_config)?).ok()?;
        let mut own = whole.get("image_processor")?.as_object()?.clone();
        // (Whose it is says how it is called.)
        let owner = whole.get("processor_class").cloned().unwrap_or_default();
        own.entry("processor_class").or_insert(owner);
        Some(Value::Object(own).to_string())
    };
    nested().or_else(|| read(&sidecars.preprocessor_config))
}

/// Rows of an image that see each other in the language model, at most.
fn longest_block(vision: &VisionSpec, limits: &Limits) -> Result<u32, ModelError> {
    Ok(match (vision.blocks, vision.side) {
        (true, Some(side)) => {
            let rows = vision.merged(Grid { rows: side, cols: side })?;
            rows.rows * rows.cols
        }
        (true, None) => limits.outputs,
        (false, _) => 0,
    })
}

/// The one `mmproj` file in the folder of a GGUF file.
fn beside(path: &Path) -> Option<PathBuf> {
    let folder = if path.is_dir() { path } else { path.parent()? };
    let names = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let is_one = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("mmproj") && name.ends_with(".gguf")
    };
    let mut found = names.filter(is_one);
    found.next().filter(|_| found.next().is_none())
}

/// What `preprocessor_config.json` would say, by the keys of an `mmproj` file.
fn preprocessor_of(meta: &Meta) -> Option<String> {
    let text = |key: &str| meta.opt_str(key).ok().flatten();
    let kind = text("clip.vision.projector_type").or_else(|| text("clip.projector_type"));
    let kind = kind?;
    // (What Qwen3-VL's own files say; that it is the newer one, a class does not tell.)
    let areas = (kind == "qwen3vl_merger").then_some([65_536, 16_777_216]);
    let class = match kind {
        "qwen2vl_merger" | "qwen2.5vl_merger" | "qwen3vl_merger" => "Qwen2VLImageProcessor",
        "gemma3" => "Gemma3ImageProcessor",
        "idefics3" => "Idefics3ImageProcessor",
        "internvl" => "GotOcr2ImageProcessor",
        "mlp" if text("clip.vision.mm_patch_merge_type") == Some("spatial_unpad") => {
            "LlavaNextImageProcessor"
        }
        "mlp" => "CLIPImageProcessor",
        "pixtral" => "PixtralImageProcessor",
        _ => return None,
    };
    let list = |key: &str| -> Option<Vec<f64>> {
        let values = meta.opt_list(key).ok().flatten()?;
        values.iter().map(MetaValue::as_f64).collect()
    };
    let side = meta.opt_u32("clip.vision.image_size").ok().flatten();
    let square = [
        "Gemma3ImageProcessor",
        "GotOcr2ImageProcessor",
        "CLIPImageProcessor",
        "LlavaNextImageProcessor",
    ];
    let square = square.contains(&class).then_some(side).flatten();
    let square = square.map(|n| json!({ "height": n, "width": n }));
    let whole = |key: &str| meta.opt_u32(key).ok().flatten();
    let size = match class {
        "CLIPImageProcessor" => side.map(|n| json!({ "shortest_edge": n })),
        "PixtralImageProcessor" => side.map(|n| json!({ "longest_edge": n })),
        // (Newer converters say to what the longer side is made; it was four tiles.)
        "Idefics3ImageProcessor" => whole("clip.vision.preproc_image_size")
            .or(side.map(|n| 4 * n))
            .map(|n| json!({ "longest_edge": n })),
        _ => square.clone(),
    };
    // (Heights and widths behind each other.)
    let pinpoints = meta.opt_list("clip.vision.image_grid_pinpoints").ok().flatten();
    let sides: Option<Vec<u32>> =
        pinpoints.and_then(|all| all.iter().map(MetaValue::as_u32).collect());
    let canvases: Option<Vec<Vec<u32>>> =
        sides.map(|all| all.chunks_exact(2).map(<[u32]>::to_vec).collect());
    let owner = (class == "GotOcr2ImageProcessor").then_some("InternVLProcessor");
    let written = json!({
        "image_processor_type": class,
        "processor_class": owner,
        "min_patches": whole("clip.vision.preproc_min_tiles"),
        "max_patches": whole("clip.vision.preproc_max_tiles"),
        "image_mean": list("clip.vision.image_mean"),
        "image_std": list("clip.vision.image_std"),
        "patch_size": meta.opt_u32("clip.vision.patch_size").ok().flatten(),
        "min_pixels": areas.map(|[least, _]| least),
        "max_pixels": areas.map(|[_, most]| most),
        // (Kernels over two frames are two tensors: a patch comes once.)
        "temporal_patch_size": 1,
        "size": size,
        "image_grid_pinpoints": canvases,
        "crop_size": square.filter(|_| ["CLIPImageProcessor", "LlavaNextImageProcessor"].contains(&class)),
        "max_image_size": side.filter(|_| class == "Idefics3ImageProcessor")
            .map(|n| json!({ "longest_edge": n })),
    });
    Some(written.to_string())
}

/// What rows made lately may take of a model's memory.
fn kept_bytes(options: &LoadOptions) -> u64 {
    KEPT_BYTES.min(options.memory_bytes / KEPT_PART)
}

/// The largest steps of an encoder that its part of memory has room for, and what it takes then.
fn bounds(
    vision: &VisionSpec,
    encoder: &Program,
    device: &dyn Device,
    options: &LoadOptions,
) -> Result<(Limits, Memory), LoadFailure> {
    let class = u32::from(vision.class_token.is_there());
    let of_side = vision.side.map(|side| IMAGES * (side * side + class));
    let run = vision.merge * vision.merge;
    let limits = |tokens: u32| Limits {
        step_tokens: tokens,
        sequences: IMAGES,
        outputs: tokens.div_ceil(run),
        context: tokens,
        group_blocks: Vec::new(),
        top_logprobs: 0,
    };
    let mut least = None;
    for patches in PATCHES {
        let one = vision.side.map_or(0, |side| side * side + class);
        let limits = limits(patches.min(of_side.unwrap_or(patches)).max(one));
        let footprint = device.footprint(encoder, &limits, options.mode)?;
        let fits = footprint.buffer_bytes <= options.memory_bytes / BUFFERS_PART;
        let memory = Memory {
            weight_bytes: footprint.weight_bytes,
            buffer_bytes: footprint.buffer_bytes + kept_bytes(options),
            ..Memory::default()
        };
        least = Some((limits, memory));
        if fits {
            break;
        }
    }
    least.ok_or_else(|| ModelError::unsupported("an encoder", "without patches").into())
}
