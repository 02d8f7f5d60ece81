//! Models that see: an encoder makes rows of numbers of an image's patches, and these stand where the
//! language model's tokens stand. Here is what each encoder is, as data ([`VisionSpec`]), read from
//! `vision_config` of a folder or from an `mmproj` file; where the patches of an image of any size go ([`place`]); and what
//! changes in the language model ([`VisionSpec::see`]). Pure.

mod canvas;
mod clip;
mod gemma3;
mod gemma4;
mod glm4v;
mod idefics3;
mod internvl;
mod keys;
mod kimi_k25;
mod llama4;
mod llava;
mod mistral3;
mod mmproj;
pub mod names;
mod place;
mod prompt;
mod qwen2_5_vl;
mod qwen2_vl;
mod qwen3_vl;
mod script;

use tokenmill_ir::{Act, Checkpoint, Mask};

use crate::error::ModelError;
use crate::spec::*;
pub use canvas::Tap;
use keys::Keys;
pub use mmproj::{is_mmproj, vision_of_mmproj};
pub use place::{Grid, Place, arranged};
pub use prompt::{Part, Positions};
pub use script::{Piece, Script, Tile};

/// An encoder of images and what it changes in its language model.
#[derive(Debug, Clone, PartialEq)]
pub struct VisionSpec {
    /// Row of [`TOWERS`].
    pub arch: &'static str,
    /// Its layers, over patches. It has no vocabulary, and its context is no bound.
    pub tower: ModelSpec,
    /// What of an image is one token.
    pub patch: Patch,
    /// Learned positions, added to the patches' rows.
    pub positions: Option<Learned>,
    /// A token of its own, learned, that comes before the patches; no row is taken of it.
    pub class_token: ClassToken,
    /// The row and column of the first patch, where rotations count from another than 0.
    pub origin: u32,
    /// Layers the file has behind the last that counts.
    pub skipped: u32,
    /// Patches along each side of what becomes one row.
    pub merge: u32,
    /// Rows along each side of a window, where some layers see no further ([`Mask::Block`]).
    pub window: Option<u32>,
    /// Patches along each side of an image, where every image has the same.
    pub side: Option<u32>,
    /// Rows of an image, at most: as many as the language model's windows have tokens.
    pub most_rows: Option<u32>,
    /// From patches to rows.
    pub projector: Projector,
    /// More columns of each row, from within the tower.
    pub deepstack: Option<Deepstack>,
    /// An image becomes one row, of length 1, that is compared with those of texts.
    pub summary: Option<Summary>,
    /// Columns of a row for the language model: its width, or that of its vectors.
    pub out: u32,
    /// Which of a token's positions turns each pair, in the language model.
    pub axes: Axes,
    /// Whether the language model's tokens of an image see all of it.
    pub blocks: bool,
    /// Whether its layers without a window are causal there too.
    pub full_causal: bool,
    /// The token whose place each row takes, where the file names it.
    pub image_token: Option<u32>,
    /// What stands in a prompt for an image.
    pub script: Script,
}

/// A patch: `channels × frames × size × size` numbers, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patch {
    /// Numbers of a pixel.
    pub channels: u32,
    /// Images behind each other; one that stands still comes so often.
    pub frames: u32,
    /// Pixels along a side.
    pub size: u32,
    /// Whether its numbers are from 0 to 1 and made ones from -1 to 1, those of a pixel lying side by side
    /// in the matrix (Gemma 4).
    pub pixels: bool,
}

impl Patch {
    /// Numbers of a patch.
    pub fn cols(&self) -> u32 {
        self.channels * self.frames * self.size * self.size
    }
}

/// A table of positions, `side × side` of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Learned {
    /// Along each side.
    pub side: u32,
    /// How they are taken for a grid of another size.
    pub stretch: Stretch,
    /// Whether they are added behind the norm of the patches' rows.
    pub behind_norm: bool,
}

/// A learned token among the patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassToken {
    /// There is none.
    None,
    /// Its position is the table's first.
    First,
    /// Its position is the table's last.
    Last,
}

impl ClassToken {
    /// Whether there is one.
    pub fn is_there(self) -> bool {
        self != ClassToken::None
    }
}

/// What a table of positions is for a grid of another size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stretch {
    /// There is none.
    None,
    /// Between the four nearest, its corners the grid's (Qwen3-VL).
    Bilinear,
    /// The sum of one for the column and one for the row, from two tables of `side` behind each other
    /// (Gemma 4).
    Sides,
    /// By cubics through the sixteen nearest, its edges the grid's (GLM-4.1V).
    Bicubic,
}

impl Learned {
    /// Places in the table.
    pub fn places(&self) -> u32 {
        match self.stretch {
            Stretch::Sides => 2 * self.side,
            _ => self.side * self.side,
        }
    }

    /// Rows of the table that are summed for one patch.
    pub fn taps(&self) -> u32 {
        match self.stretch {
            Stretch::None => 1,
            Stretch::Sides => 2,
            Stretch::Bilinear => 4,
            Stretch::Bicubic => 16,
        }
    }
}

/// From the rows of patches that become one to a row of the language model: `down(act(up·x))`, or
/// `down·x`, of the rows side by side or their mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Projector {
    /// How the rows become one.
    pub gather: Gather,
    /// What the rows of patches are multiplied by first.
    pub scale: f32,
    /// Whether a vector is taken from them then, and another multiplied in.
    pub standard: bool,
    /// Where there is a norm.
    pub norm: Option<(Norm, NormAt)>,
    /// The width of a product that makes the rows side by side one, their numbers standing column by
    /// column in its matrix.
    pub merging: Option<u32>,
    /// A product of that width, a norm and an activation behind it (GLM-4.1V).
    pub between: Option<(Norm, Act)>,
    /// Inner width and activation.
    pub inner: Option<(u32, Act)>,
    /// Whether there is a gate: `down(act(gate·x) · up·x)`.
    pub gated: bool,
    /// Width and activation of another product behind the inner one (Llama 4).
    pub second: Option<(u32, Act)>,
}

impl Projector {
    /// One product.
    pub const PLAIN: Self = Self {
        gather: Gather::Concat,
        scale: 1.0,
        standard: false,
        norm: None,
        merging: None,
        between: None,
        inner: None,
        gated: false,
        second: None,
    };
}

/// How the rows of patches become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gather {
    /// Side by side.
    Concat,
    /// Their mean.
    Mean,
}

/// Where a projector has its norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormAt {
    /// On each patch.
    Patch,
    /// On what they became.
    Merged,
    /// On what they became, without weights.
    MergedUnit,
}

/// Rows taken behind some layers of the tower, each for one of the language model's first layers.
#[derive(Debug, Clone, PartialEq)]
pub struct Deepstack {
    /// Layers of the tower.
    pub layers: Vec<u32>,
    /// What makes rows of what they leave; each has weights of its own.
    pub projector: Projector,
}

/// Which row an image becomes, where it becomes one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Summary {
    /// That of the learned token, projected (CLIP).
    ClassToken,
    /// What a learned query sees of all patches, and a feed-forward part behind it (SigLIP).
    Attention {
        /// Heads.
        heads: u32,
        /// Of the feed-forward part.
        norm: Norm,
        /// Its inner width.
        width: u32,
        /// Its activation.
        act: Act,
    },
}

/// An encoder of images.
#[derive(Debug, Clone, Copy)]
pub struct Tower {
    /// Its name: the folder of its golden test.
    pub name: &'static str,
    /// `model_type` of config.json.
    pub spellings: &'static [&'static str],
    /// What it is.
    spec: fn(&Keys<'_>) -> Result<VisionSpec, ModelError>,
}

/// All encoders.
pub const TOWERS: &[Tower] = &[
    qwen2_vl::TOWER,
    qwen2_5_vl::TOWER,
    gemma3::TOWER,
    qwen3_vl::TOWER,
    idefics3::TOWER,
    llava::TOWER,
    llava::NEXT,
    llava::ONEVISION,
    internvl::TOWER,
    glm4v::TOWER,
    llama4::TOWER,
    gemma4::TOWER,
    kimi_k25::TOWER,
    mistral3::TOWER,
    kimi_k25::VL,
    clip::TOWER,
    clip::SIGLIP,
];

/// The encoder of a checkpoint, if it has one.
///
/// # Errors
/// [`ModelError::Unsupported`] for encoders that are not known, and for keys and values of
/// `vision_config` that are not.
pub fn vision_of(checkpoint: &Checkpoint) -> Result<Option<VisionSpec>, ModelError> {
    let Some(config) = keys::config(checkpoint)? else { return Ok(None) };
    let kind = checkpoint.meta.str("model_type")?;
    let tower = TOWERS.iter().find(|t| t.spellings.contains(&kind));
    let Some(tower) = tower else {
        return Err(ModelError::unsupported("vision_config", format!("of '{kind}'")));
    };
    let keys = Keys::of(checkpoint, config, kind)?;
    let found = (tower.spec)(&keys).map_err(|e| keys.placed(e))?;
    keys.check_all_read().map_err(|e| keys.placed(e))?;
    Ok(Some(found))
}

impl VisionSpec {
    /// One with nothing beside its tower and projector, each of whose patches becomes a row, after which
    /// text goes on as after text; families change what they have more.
    fn plain(
        arch: &'static str,
        (tower, patch): (ModelSpec, Patch),
        (projector, out): (Projector, u32),
        script: Script,
    ) -> Self {
        Self {
            arch,
            tower,
            patch,
            positions: None,
            class_token: ClassToken::None,
            origin: 0,
            skipped: 0,
            merge: 1,
            window: None,
            side: None,
            most_rows: None,
            projector,
            deepstack: None,
            summary: None,
            out,
            axes: Axes::One,
            blocks: false,
            full_causal: false,
            image_token: None,
            script,
        }
    }

    /// Columns of a token of the tower: a patch, then rows of the table of positions and weights.
    pub fn input_cols(&self) -> u32 {
        self.patch.cols() + 2 * self.taps() + 2 * u32::from(self.class_token.is_there())
    }

    /// Whether a learned row stands behind lines of rows.
    pub fn newline(&self) -> bool {
        matches!(self.script, Script::Canvas(_))
    }

    /// Rows of the table of positions that are summed for one token.
    pub(crate) fn taps(&self) -> u32 {
        self.positions.map_or(0, |p| p.taps())
    }

    /// Columns of a row: the embedding, then what is added behind the language model's first layers.
    pub fn row_cols(&self) -> u32 {
        self.out * self.media()
    }

    /// The row's widths of the language model.
    fn media(&self) -> u32 {
        1 + self.deepstack.as_ref().map_or(0, |d| d.layers.len() as u32)
    }

    /// Whether a tensor is of a layer behind the last that counts, of the norm behind all of these, or
    /// says only how positions are counted.
    pub(crate) fn skips(&self, name: &str) -> bool {
        let layers = self.tower.layers.len();
        let behind = layers..layers + self.skipped as usize;
        let mut numbers = name.split('.').filter_map(|part| part.parse::<usize>().ok());
        name.ends_with("position_ids")
            || self.tower.final_norm.is_none() && name.contains("post_layernorm")
            || numbers.next().is_some_and(|layer| behind.contains(&layer))
    }

    /// What takes rows behind a layer, and its number among these.
    pub(crate) fn deep_behind(&self, layer: usize) -> Option<(&Projector, usize)> {
        let deep = self.deepstack.as_ref()?;
        let at = deep.layers.iter().position(|l| *l as usize == layer)?;
        Some((&deep.projector, at))
    }

    /// Makes the language model one that takes this encoder's rows.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] where the two do not fit.
    pub fn see(&self, text: &mut ModelSpec) -> Result<(), ModelError> {
        if self.summary.is_some() {
            return match text.output {
                Output::Projected { cols, .. } if cols == self.out => Ok(()),
                _ => {
                    let found = format!("vectors of {} columns for images alone", self.out);
                    Err(ModelError::unsupported("vision_config", found))
                }
            };
        }
        if self.out != text.hidden {
            let found = format!("{} columns for {}", self.out, text.hidden);
            return Err(ModelError::unsupported("the projector of vision_config", found));
        }
        if self.media() as usize > text.layers.len() + 1 {
            let found = format!("{} of {} layers", self.media() - 1, text.layers.len());
            return Err(ModelError::unsupported("deepstack_visual_indexes", found));
        }
        if text.embed.per_layer.is_some() {
            let found = "beside images";
            return Err(ModelError::unsupported("hidden_size_per_layer_input", found));
        }
        let latent = |b: &mut Branch| match &b.body {
            Body::Mix(mixers) => mixers.iter().any(|m| matches!(m, Mixer::Latent(_))),
            Body::Ffn(_) | Body::LayerInput(_) => false,
        };
        if self.blocks && text.branches_mut().any(latent) {
            let found = "over latents, beside images that see all of themselves";
            return Err(ModelError::unsupported("attention", found));
        }
        text.media = self.media();
        let rows = self.side.map_or(0, |side| (side / self.merge.max(1)).pow(2));
        for (_, a) in text.attention_mut() {
            a.blocks = self.blocks && !(self.full_causal && a.mask == Mask::Causal);
            // (Transformers ends what a token sees of its image behind it at the window.)
            if let Mask::Window(n) = a.mask
                && self.blocks
                && n < rows
            {
                let found = format!("{n} beside images of {rows} tokens");
                return Err(ModelError::unsupported("sliding_window", found));
            }
            let Some(rope) = &mut a.rope else { continue };
            if let Axes::Sections(sections) | Axes::Interleaved(sections) = &self.axes {
                let all = sections.iter().fold(0u32, |sum, n| sum.saturating_add(*n));
                if all != rope.dims / 2 || sections.len() != 3 {
                    let found = format!("{sections:?} of {} pairs", rope.dims / 2);
                    return Err(ModelError::unsupported("mrope_section", found));
                }
            }
            rope.axes = self.axes.clone();
        }
        Ok(())
    }
}

/// A tower of layers alike: norm, attention, norm, feed-forward.
fn tower(
    (hidden, count): (u32, u32),
    norm: Norm,
    attention: impl Fn(u32) -> Attention,
    ffn: &Ffn,
) -> ModelSpec {
    let layer = |i| Layer {
        branches: vec![
            Branch::pre(norm, Body::Mix(vec![Mixer::Attention(attention(i))])),
            Branch::pre(norm, Body::Ffn(ffn.clone())),
        ],
        join: Join::Sequential,
        scaled: false,
    };
    ModelSpec {
        arch: "vision",
        vocab: 1,
        hidden,
        context: crate::limits::CONTEXT,
        embed: Embed::PLAIN,
        layers: (0..count).map(layer).collect(),
        streams: None,
        final_norm: None,
        output: Output::Hidden,
        draft_layers: 0,
        media: 0,
    }
}

/// Attention of every patch to every other, or to those of its window.
fn attention(hidden: u32, heads: u32, rope: Option<RopeSpec>, mask: Mask) -> Attention {
    let head_dim = hidden / heads.max(1);
    Attention {
        heads,
        kv_heads: heads,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        rope,
        position_scale: None,
        qk_norm: QkNorm::None,
        v_norm: None,
        kv: KvSource::Own,
        mask,
        softcap: None,
        sinks: false,
        gated: false,
        multipliers: Multipliers::ONE,
        blocks: false,
    }
}
