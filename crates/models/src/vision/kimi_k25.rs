//! Kimi K2.5 and Kimi-VL: MoonViT, a tower over images of any size with a table of positions stretched over the grid by
//! cubics and rotations by columns and rows in turns; four neighbours, normalised, become a row.

use tokenmill_ir::{Act, Mask, RopePairing};

use super::keys::Keys;
use super::{
    Learned, NormAt, Patch, Projector, Script, Stretch, Tower, VisionSpec, attention, tower,
};
use crate::error::ModelError;
use crate::spec::{Axes, Ffn, Norm, RopeScaling, RopeSpec};

pub const TOWER: Tower = Tower { name: "kimi_k25", spellings: &["kimi_k25"], spec: k25 };
pub const VL: Tower = Tower { name: "kimi_vl", spellings: &["kimi_vl"], spec: vl };

/// Of norms, in the family's code.
const EPS: f32 = 1e-5;

fn k25(k: &Keys<'_>) -> Result<VisionSpec, ModelError> {
    let eps = k.outer_f64("projection_layer_norm_eps")?.map_or(EPS, |eps| eps as f32);
    // (Of films.)
    k.params().note("pos_emb_time");
    let ffn = k.plain(k.u32("intermediate_size")?)?;
    const COLUMNS: &str = "projection_hidden_size";
    let columns = k.outer(&[COLUMNS])?.unwrap_or(1152);
    if columns != k.u32("hidden_size")? {
        return Err(ModelError::unsupported(COLUMNS, format!("{columns}, not the tower's width")));
    }
    let spec = moonvit(k, (ffn, eps), ["pos_emb_height", "pos_emb_width"])?;
    Ok(VisionSpec { arch: TOWER.name, ..spec })
}

/// Kimi-VL, whose own code has the activation and the epsilon.
fn vl(k: &Keys<'_>) -> Result<VisionSpec, ModelError> {
    k.is("moonvit")?;
    let ffn = Ffn::Plain { width: k.u32("intermediate_size")?, act: Act::GeluTanh };
    let spec = moonvit(k, (ffn, EPS), ["init_pos_emb_height", "init_pos_emb_width"])?;
    Ok(VisionSpec { arch: VL.name, ..spec })
}

/// The tower, and a projector with norms of that epsilon; `table`: keys of the sides of its table of
/// positions.
fn moonvit(
    k: &Keys<'_>,
    (ffn, eps): (Ffn, f32),
    table: [&'static str; 2],
) -> Result<VisionSpec, ModelError> {
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
    let mut spec = tower((hidden, k.u32("num_hidden_layers")?), norm, layers, &ffn);
    spec.final_norm = Some(norm);
    let [side, width] = [k.u32(table[0])?, k.u32(table[1])?];
    if side == 0 || side != width {
        let found = format!("{side} beside {} {width}", table[1]);
        return Err(ModelError::unsupported(table[0], found));
    }
    let merge = k.side("merge_kernel_size")?;
    if !(1..=16).contains(&merge) {
        return Err(ModelError::unsupported("merge_kernel_size", merge));
    }
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
