//! Encoders in files of their own (`mmproj-*.gguf`), as llama.cpp's converter writes them: keys behind
//! `clip.vision.`, tensors `v.*` and `mm.*`. What such a file does not say stands in the language
//! model's.

use tokenmill_ir::{Act, Checkpoint, Container, Mask, MetaError, MetaValue, RopePairing};

use super::internvl;
use super::keys::by_halves;
use super::qwen2_vl::merger;
use super::{
    ClassToken, Deepstack, Gather, Learned, NormAt, Patch, Projector, Script, Stretch, VisionSpec,
    attention, tower,
};
use crate::error::ModelError;
use crate::hyper::{HIDDEN, Hyper, RMS_EPS};
use crate::neutral;
use crate::params::Params;
use crate::spec::{Attention, Axes, Ffn, Norm, QkNorm, RopeSpec};

/// Before the keys.
const PREFIX: &str = "clip.vision.";

/// Whether a GGUF file holds an encoder and no language model.
pub fn is_mmproj(checkpoint: &Checkpoint) -> bool {
    let arch = checkpoint.meta.opt_str("general.architecture").ok().flatten();
    checkpoint.container == Container::Gguf && arch == Some("clip")
}

/// The encoder of an `mmproj` file beside its language model.
///
/// # Errors
/// [`ModelError::Unsupported`] for projectors that are not known, and for keys and values that are
/// not.
pub fn vision_of_mmproj(mmproj: &Checkpoint, text: &Checkpoint) -> Result<VisionSpec, ModelError> {
    let f = File::of(mmproj, text)?;
    let kind = match mmproj.meta.opt_str("clip.vision.projector_type")? {
        Some(kind) => kind,
        None => mmproj.meta.str("clip.projector_type")?,
    };
    let found = match kind {
        "qwen2vl_merger" => f.qwen(Kind::Two)?,
        "qwen2.5vl_merger" => f.qwen(Kind::TwoAndAHalf)?,
        "qwen3vl_merger" => f.qwen(Kind::Three)?,
        "gemma3" => f.siglip(Script::Framed)?,
        "idefics3" => f.siglip(Script::Tiled)?,
        "internvl" => f.internvl()?,
        "mlp" => f.llava()?,
        "pixtral" => f.pixtral()?,
        other => return Err(ModelError::unsupported("clip.projector_type", other)),
    };
    for key in ["projector_type", "projection_dim"] {
        f.params.note(&f.key(key));
    }
    f.params.note("general.type");
    neutral::check(&f.params, None, PREFIX)?;
    Ok(found)
}

/// Of Qwen's towers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Two,
    TwoAndAHalf,
    Three,
}

struct File<'a> {
    mmproj: &'a Checkpoint,
    text: Hyper<'a>,
    params: Params,
}

impl<'a> File<'a> {
    fn of(mmproj: &'a Checkpoint, text: &'a Checkpoint) -> Result<Self, ModelError> {
        let params = Params::of_map(&mmproj.meta, Container::Gguf, PREFIX.to_owned(), None)?;
        Ok(Self { mmproj, text: Hyper::new(text)?, params })
    }

    fn key(&self, key: &str) -> String {
        format!("{PREFIX}{key}")
    }

    fn u32(&self, key: &str) -> Result<u32, MetaError> {
        self.params.u32(&self.key(key))
    }

    /// Width, layers and heads.
    fn widths(&self, by: u32) -> Result<(u32, u32, u32), ModelError> {
        let (hidden, heads) = (self.u32("embedding_length")?, self.u32("attention.head_count")?);
        match u64::from(hidden).is_multiple_of(u64::from(by) * u64::from(heads)) {
            true => Ok((hidden, self.u32("block_count")?, heads)),
            false => {
                let found = format!("{heads} of {hidden} columns");
                Err(ModelError::unsupported("clip.vision.attention.head_count", found))
            }
        }
    }

    fn eps(&self) -> Result<f32, MetaError> {
        self.params.f32(&self.key("attention.layer_norm_epsilon"))
    }

    /// The feed-forward part by the file's flags.
    fn ffn(&self, gated: bool) -> Result<Ffn, ModelError> {
        let width = self.u32("feed_forward_length")?;
        let flag = |key: &str| self.mmproj.meta.opt_bool(key).map(|f| f.unwrap_or(false));
        let act = match (flag("clip.use_gelu")?, flag("clip.use_silu")?) {
            (true, false) => Act::GeluTanh,
            (false, true) => Act::Silu,
            (false, false) if !gated => return Ok(Ffn::Swish { width, beta: 1.702 }),
            both => {
                return Err(ModelError::unsupported(
                    "clip.use_gelu, use_silu",
                    format!("{both:?}"),
                ));
            }
        };
        Ok(if gated { Ffn::gated(width, act) } else { Ffn::Plain { width, act } })
    }

    /// The numbers of a patch. Kernels over two frames are two tensors here, and an image comes once.
    fn patch(&self) -> Result<Patch, ModelError> {
        Ok(Patch { channels: 3, frames: 1, size: self.u32("patch_size")?, pixels: false })
    }

    /// Which axis turns each pair of the language model.
    fn axes(&self, kind: Kind) -> Result<Axes, ModelError> {
        let key = self.text.own("", "rope.dimension_sections");
        let list = self.text.meta().opt_list(&key)?.unwrap_or_default();
        let sections: Vec<u32> =
            list.iter().take(3).map(|n| n.as_u32().unwrap_or(u32::MAX)).collect();
        if sections.len() < 3 {
            return Err(MetaError::Missing { key }.into());
        }
        Ok(match kind {
            Kind::Three => Axes::Interleaved(sections),
            _ => Axes::Sections(sections),
        })
    }

    fn qwen(&self, kind: Kind) -> Result<VisionSpec, ModelError> {
        let (hidden, depth, heads) = self.widths(4)?;
        let (eps, patch) = (self.eps()?, self.patch()?);
        let norm = if kind == Kind::TwoAndAHalf { Norm::rms(eps) } else { Norm::layer(eps) };
        let merge = self.params.opt_u32(&self.key("spatial_merge_size"))?.unwrap_or(2);
        // (Of the sizes that images are made of.)
        self.params.note(&self.key("image_size"));
        let full = self.full_layers(kind)?;
        let rope = by_halves(hidden / heads);
        let layers = |i| {
            let mask =
                if full.is_some_and(|n| (i + 1) % n != 0) { Mask::Block } else { Mask::None };
            attention(hidden, heads, Some(rope.clone()), mask)
        };
        let ffn = self.ffn(kind == Kind::TwoAndAHalf)?;
        let window = self.params.opt_u32(&self.key("window_size"))?.unwrap_or(112);
        let side = self.params.opt_u32(&self.key("image_size"))?.unwrap_or(0) / patch.size;
        if kind == Kind::Three && side == 0 {
            return Err(ModelError::unsupported("clip.vision.image_size", "less than a patch"));
        }
        let learned = Learned { side, stretch: Stretch::Bilinear, behind_norm: false };
        let after = merger(hidden, merge, norm, NormAt::Merged);
        let deep = |layers| Deepstack { layers, projector: after };
        Ok(VisionSpec {
            positions: (kind == Kind::Three).then_some(learned),
            merge,
            window: full.map(|_| (window / merge / patch.size).max(1)),
            deepstack: self.deep_layers()?.map(deep),
            axes: self.axes(kind)?,
            ..VisionSpec::plain(
                "mmproj",
                (tower((hidden, depth), norm, layers, &ffn), patch),
                (merger(hidden, merge, norm, NormAt::Patch), self.text.u32(HIDDEN)?),
                Script::Plain("<|image_pad|>"),
            )
        })
    }

    /// Every so many layers see all of an image, where the others see windows.
    fn full_layers(&self, kind: Kind) -> Result<Option<u32>, ModelError> {
        if kind != Kind::TwoAndAHalf {
            return Ok(None);
        }
        match self.params.opt_u32(&self.key("n_wa_pattern"))? {
            None | Some(0) => Ok(None),
            every => Ok(every),
        }
    }

    /// Layers whose rows go to the language model's first ones.
    fn deep_layers(&self) -> Result<Option<Vec<u32>>, ModelError> {
        let list = self.params.opt_list(&self.key("is_deepstack_layers"))?.unwrap_or_default();
        let is =
            |(i, flag): (usize, &MetaValue)| (*flag == MetaValue::Bool(true)).then_some(i as u32);
        let layers: Vec<u32> = list.iter().enumerate().filter_map(is).collect();
        Ok(Some(layers).filter(|l| !l.is_empty()))
    }

    /// InternVL's tower. (Norms, biases and factors of columns are what the file has.)
    fn internvl(&self) -> Result<VisionSpec, ModelError> {
        let (hidden, depth, heads) = self.widths(1)?;
        let (eps, patch) = (self.eps()?, self.patch()?);
        let has = |name: &str| self.mmproj.tensor(name).is_some();
        let layer = has("v.blk.0.ln1.bias");
        let norm = if layer { Norm::layer(eps) } else { Norm::rms(eps) };
        let qk_norm = match has("v.blk.0.attn_q_norm.weight") {
            true => QkNorm::Whole(Norm::rms(internvl::QK_EPS)),
            false => QkNorm::None,
        };
        // (What transformers computes for it; llama.cpp has the approximation by tanh.)
        let ffn = match self.ffn(false)? {
            Ffn::Plain { width, act: Act::GeluTanh } => Ffn::Plain { width, act: Act::Gelu },
            other => other,
        };
        let layers = |_| Attention { qk_norm, ..attention(hidden, heads, None, Mask::None) };
        let mut spec = tower((hidden, depth), norm, layers, &ffn);
        spec.final_norm = has("v.post_ln.weight").then_some(Norm::layer(eps));
        let side = self.u32("image_size")? / patch.size;
        let merge = self.u32("projector.scale_factor")?;
        if !(1..=16).contains(&merge) || side == 0 || !side.is_multiple_of(merge) {
            let found = format!("{merge} for {side} × {side} patches");
            return Err(ModelError::unsupported("clip.vision.projector.scale_factor", found));
        }
        let out = self.text.u32(HIDDEN)?;
        let norm = Some((Norm::layer(internvl::PROJECTOR_EPS), NormAt::Merged));
        let inner = Some((out, Act::Gelu));
        Ok(VisionSpec {
            positions: Some(Learned { side, stretch: Stretch::None, behind_norm: false }),
            class_token: ClassToken::First,
            merge,
            side: Some(side),
            ..VisionSpec::plain(
                "mmproj",
                (spec, patch),
                (Projector { norm, inner, ..Projector::PLAIN }, out),
                internvl::SCRIPT,
            )
        })
    }

    /// Towers of images of one size.
    fn siglip(&self, script: Script) -> Result<VisionSpec, ModelError> {
        let (hidden, depth, heads) = self.widths(1)?;
        let (eps, patch) = (self.eps()?, self.patch()?);
        let norm = Norm::layer(eps);
        let ffn = self.ffn(false)?;
        let mut spec =
            tower((hidden, depth), norm, |_| attention(hidden, heads, None, Mask::None), &ffn);
        spec.final_norm = Some(norm);
        let side = self.u32("image_size")? / patch.size;
        let usual = 4;
        let merge = self.params.opt_u32(&self.key("projector.scale_factor"))?.unwrap_or(usual);
        if !(1..=16).contains(&merge) || side == 0 || !side.is_multiple_of(merge) {
            let found = format!("{merge} for {side} × {side} patches");
            return Err(ModelError::unsupported("clip.vision.projector.scale_factor", found));
        }
        let (gather, norm) = match script {
            Script::Framed => (Gather::Mean, Some((Norm::rms(eps), NormAt::Merged))),
            _ => (Gather::Concat, None),
        };
        Ok(VisionSpec {
            positions: Some(Learned { side, stretch: Stretch::None, behind_norm: false }),
            merge,
            side: Some(side),
            blocks: script == Script::Framed,
            ..VisionSpec::plain(
                "mmproj",
                (spec, patch),
                (Projector { gather, norm, ..Projector::PLAIN }, self.text.u32(HIDDEN)?),
                script,
            )
        })
    }

    /// Pixtral's tower, rows of queries and keys in pairs that lie beside each other. (What leads to the
    /// language model is what the file has.)
    fn pixtral(&self) -> Result<VisionSpec, ModelError> {
        let (hidden, depth, heads) = self.widths(4)?;
        let (norm, patch) = (Norm::rms(self.eps()?), self.patch()?);
        let theta = self.mmproj.meta.opt_f64("clip.rope.freq_base")?.unwrap_or(10_000.0);
        let rope = RopeSpec {
            theta,
            pairing: RopePairing::Interleaved,
            axes: Axes::Alternate,
            ..by_halves(hidden / heads)
        };
        let layers = |_| attention(hidden, heads, Some(rope.clone()), Mask::None);
        let mut spec = tower((hidden, depth), norm, layers, &self.ffn(true)?);
        spec.embed.norm = Some(norm);
        // (Of the sizes that images are made of.)
        self.params.note(&self.key("image_size"));
        let merge = self.params.opt_u32(&self.key("spatial_merge_size"))?.unwrap_or(1);
        if !(1..=16).contains(&merge) {
            return Err(ModelError::unsupported("clip.vision.spatial_merge_size", merge));
        }
        let has = |name: &str| self.mmproj.tensor(name).is_some();
        let eps = self.text.opt_f32(RMS_EPS)?.unwrap_or(norm.eps);
        let before = has("mm.input_norm.weight").then_some((Norm::rms(eps), NormAt::Patch));
        let out = self.text.u32(HIDDEN)?;
        let inner = self.mmproj.tensor("mm.1.weight").and_then(|t| u32::try_from(t.rows()).ok());
        let projector = Projector {
            norm: before,
            merging: has("mm.patch_merger.weight").then_some(hidden),
            inner: Some((inner.unwrap_or(out), Act::Gelu)),
            ..Projector::PLAIN
        };
        let plain = VisionSpec::plain("mmproj", (spec, patch), (projector, out), Script::Lines);
        Ok(VisionSpec { merge, ..plain })
    }

    /// Whether an image is cut into tiles of a canvas (LLaVA 1.6), not seen as a whole only.
    fn canvas(&self) -> Result<bool, ModelError> {
        const TYPE: &str = "mm_patch_merge_type";
        // (How images are prepared.)
        for key in ["grid_pinpoints", "crop_resolution", "aspect_ratio", "split_resolution"] {
            self.params.note(&self.key(&format!("image_{key}")));
        }
        match self.params.opt_str(&self.key(TYPE))? {
            None | Some("flat") => Ok(false),
            Some("spatial_unpad") => Ok(true),
            Some(other) => Err(ModelError::unsupported("clip.vision.mm_patch_merge_type", other)),
        }
    }

    /// LLaVA: every patch becomes a row. What a tower may have or not, the tensors say.
    fn llava(&self) -> Result<VisionSpec, ModelError> {
        let (hidden, all, heads) = self.widths(1)?;
        let (norm, patch, ffn) = (Norm::layer(self.eps()?), self.patch()?, self.ffn(false)?);
        let taken = self.feature_layer(all)?;
        let layers = |_| attention(hidden, heads, None, Mask::None);
        let mut spec = tower((hidden, taken), norm, layers, &ffn);
        let has = |name: &str| self.mmproj.tensor(name).is_some();
        spec.embed.norm = has("v.pre_ln.weight").then_some(norm);
        spec.final_norm = has("v.post_ln.weight").then_some(norm);
        let side = self.u32("image_size")? / patch.size;
        if side == 0 {
            return Err(ModelError::unsupported("clip.vision.image_size", "less than a patch"));
        }
        let out = self.text.u32(HIDDEN)?;
        let inner = self.mmproj.tensor("mm.0.weight").and_then(|t| u32::try_from(t.rows()).ok());
        // (The model's own; llama.cpp takes the tanh form for it.)
        let inner = Some((inner.unwrap_or(out), Act::Gelu));
        let projector = Projector { inner, ..Projector::PLAIN };
        let script = match self.canvas()? {
            true => Script::Canvas(None),
            false => Script::Plain("<image>"),
        };
        Ok(VisionSpec {
            positions: Some(Learned { side, stretch: Stretch::None, behind_norm: false }),
            class_token: match has("v.class_embd") {
                true => ClassToken::First,
                false => ClassToken::None,
            },
            skipped: all - taken,
            side: Some(side),
            ..VisionSpec::plain("mmproj", (spec, patch), (projector, out), script)
        })
    }

    /// How many layers are computed. (Converters write no more layers than count; newer ones say so.)
    fn feature_layer(&self, all: u32) -> Result<u32, ModelError> {
        const KEY: &str = "feature_layer";
        match self.params.opt_list(&self.key(KEY))?.unwrap_or_default() {
            [] => Ok(all),
            [one] => {
                let taken = self.params.whole(&self.key(KEY), one)?;
                let fits = Some(taken).filter(|n| (1..=all).contains(n));
                fits.ok_or_else(|| ModelError::unsupported("clip.vision.feature_layer", taken))
            }
            several => {
                let found = format!("{} layers beside each other", several.len());
                Err(ModelError::unsupported("clip.vision.feature_layer", found))
            }
        }
    }
}
