//! Kimi K2.5: MoonViT, a tower over images of any size with a table of positions stretched over the grid by
//! cubics and rotations by columns and rows in turns; four neighbours, normalised, become a row.

use tokenmill_ir::{Act, Mask, RopePairing};

use super::keys::Keys;
use super::{
    Learned, NormAt, Patch, Projector, Script, Stretch, Tower, VisionSpec, attention, tower,
};
use crate::error::ModelError;
use crate::spec::{Axes, Norm, RopeScaling, RopeSpec};

pub const TOWER: Tower = Tower { name: "kimi_k25", spellings: &["kimi_k25"], spec };

/// Of norms, in the family's code.
const EPS: f32 = 1e-5;

fn spec(k: &Keys<'_>) -> Result<VisionSpec, ModelError> {
    let (hidden, heads) = k.widths("hidden_size", "num_attention_heads", true)?;
    // (Files of its makers have queries, keys and values in one, and pairs of neighbours.)
    let fused = k.checkpoint().tensors.iter().any(|t| t.name.ends_with(".wqkv.weight"));
    let rope = RopeSpec {
        dims: hidden / heads,
        theta: k.theta()?,
        pairing: if fused { RopePairing::Interleaved } else { RopePairing::Half },
        scaling: RopeScaling::None,
        axes: Axes::Turns,
    };
    let layers = |_| attention(hidden, heads, Some(rope.clone()), Mask::None);
    let norm = Norm::layer(EPS);
    let ffn = k.plain(k.u32("intermediate_size")?)?;
    let mut spec = tower((hidden, k.u32("num_hidden_layers")?), norm, layers, &ffn);
    spec.final_norm = Some(norm);
    let (side, width) = (k.u32("pos_emb_height")?, k.u32("pos_emb_width")?);
    if side == 0 || side != width {
        return Err(ModelError::unsupported("pos_emb_height", format!("{side} beside {width}")));
    }
    // (Of films.)
    k.params().note("pos_emb_time");
    let merge = k.side("merge_kernel_size")?;
    if !(1..=16).contains(&merge) {
        return Err(ModelError::unsupported("merge_kernel_size", merge));
    }
    let eps = k.outer_f64("projection_layer_norm_eps")?.map_or(EPS, |eps| eps as f32);
    let patch = Patch { channels: 3, frames: 1, size: k.u32("patch_size")?, pixels: false };
    Ok(VisionSpec {
        positions: Some(Learned { side, stretch: Stretch::Bicubic, behind_norm: false }),
        merge,
        image_token: k.outer(&["image_token_id", "media_placeholder_token_id"])?,
        ..VisionSpec::plain(
            TOWER.name,
            (spec, patch),
            (
                Projector {
                    norm: Some((Norm::layer(eps), NormAt::Patch)),
                    inner: Some((hidden * merge * merge, Act::Gelu)),
                    ..Projector::PLAIN
                },
                k.text_hidden()?,
            ),
            Script::Plain("<|media_pad|>"),
        )
    })
}
