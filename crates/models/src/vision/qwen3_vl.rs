//! Qwen3-VL: rotations and a table of positions stretched over the grid; rows from within the tower
//! for the language model's first layers, whose three positions turn pairs by turns. Qwen3.5 has the
//! tower without these rows.

use tokenmill_ir::Mask;

use super::keys::Keys;
use super::qwen2_vl::{EPS, merger};
use super::{Deepstack, Learned, NormAt, Script, Stretch, Tower, VisionSpec, attention, tower};
use crate::error::ModelError;
use crate::spec::Norm;

pub const TOWER: Tower = Tower {
    name: "qwen3_vl",
    spellings: &["qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"],
    spec,
};

fn spec(k: &Keys<'_>) -> Result<VisionSpec, ModelError> {
    let (hidden, heads) = k.widths("hidden_size", "num_heads", true)?;
    let depth = k.u32("depth")?;
    let rope = k.by_halves(hidden / heads)?;
    let layers = |_| attention(hidden, heads, Some(rope.clone()), Mask::None);
    let ffn = k.plain(k.u32("intermediate_size")?)?;
    let norm = Norm::layer(EPS);
    let merge = k.u32("spatial_merge_size")?;
    let positions = k.u32("num_position_embeddings")?;
    let side = positions.isqrt();
    if side == 0 || side * side != positions {
        return Err(ModelError::unsupported("num_position_embeddings", positions));
    }
    let layers_taken = k.layers_of("deepstack_visual_indexes", depth)?;
    let deep =
        |layers| Deepstack { layers, projector: merger(hidden, merge, norm, NormAt::Merged) };
    Ok(VisionSpec {
        positions: Some(Learned { side, stretch: Stretch::Bilinear, behind_norm: false }),
        merge,
        deepstack: Some(layers_taken).filter(|l| !l.is_empty()).map(deep),
        axes: k.axes(Some([24, 20, 20]))?,
        image_token: k.outer(&["image_token_id"])?,
        ..VisionSpec::plain(
            TOWER.name,
            (tower((hidden, depth), norm, layers, &ffn), k.patch()?),
            (merger(hidden, merge, norm, NormAt::Patch), k.u32("out_hidden_size")?),
            Script::Plain("<|image_pad|>"),
        )
    })
}
