//! Qwen2-VL: patches of two frames, rows and columns as rotations, layer norms; four neighbours side
//! by side become a row. Three positions a token in the language model, in sections.

use tokenmill_ir::{Act, Mask};

use super::keys::Keys;
use super::{NormAt, Projector, Script, Tower, VisionSpec, attention, tower};
use crate::error::ModelError;
use crate::spec::Norm;

pub const TOWER: Tower = Tower { name: "qwen2_vl", spellings: &["qwen2_vl"], spec };

/// In the family's code.
pub const EPS: f32 = 1e-6;

fn spec(k: &Keys<'_>) -> Result<VisionSpec, ModelError> {
    let (hidden, heads) = k.widths("embed_dim", "num_heads", true)?;
    let ratio = k.params().f32("mlp_ratio")?;
    let rope = k.by_halves(hidden / heads)?;
    let layers = |_| attention(hidden, heads, Some(rope.clone()), Mask::None);
    let ffn = k.plain((hidden as f32 * ratio) as u32)?;
    let norm = Norm::layer(EPS);
    let merge = k.u32("spatial_merge_size")?;
    Ok(VisionSpec {
        merge,
        axes: k.axes(None)?,
        image_token: k.outer(&["image_token_id"])?,
        ..VisionSpec::plain(
            TOWER.name,
            (tower((hidden, k.u32("depth")?), norm, layers, &ffn), k.patch()?),
            (merger(hidden, merge, norm, NormAt::Patch), k.u32("hidden_size")?),
            Script::Plain("<|image_pad|>"),
        )
    })
}

/// The family's projector.
pub fn merger(hidden: u32, merge: u32, norm: Norm, at: NormAt) -> Projector {
    let wide = hidden * merge * merge;
    let inner = Some((wide, Act::Gelu));
    Projector { norm: Some((norm, at)), inner, ..Projector::PLAIN }
}
