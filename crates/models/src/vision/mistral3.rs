//! Mistral 3: Pixtral's tower (root-mean-square norms, gated parts, rows and columns as rotations of
//! alternate frequencies) over images of any size; four neighbours become a row.

use tokenmill_ir::{Mask, RopePairing};

use super::keys::Keys;
use super::{NormAt, Patch, Projector, Script, Tower, VisionSpec, attention, tower};
use crate::error::ModelError;
use crate::hyper::{Hyper, RMS_EPS, act};
use crate::spec::{Axes, Ffn, Norm, RopeScaling, RopeSpec};

pub const TOWER: Tower = Tower { name: "mistral3", spellings: &["mistral3"], spec };

fn spec(k: &Keys<'_>) -> Result<VisionSpec, ModelError> {
    k.is("pixtral")?;
    let (hidden, heads) = k.widths("hidden_size", "num_attention_heads", true)?;
    let head_dim = hidden / heads;
    if let Some(other) = k.params().opt_u32("head_dim")?.filter(|d| *d != head_dim) {
        return Err(ModelError::unsupported("head_dim", other));
    }
    let norm = Norm::rms(1e-5);
    let rope = RopeSpec {
        dims: head_dim,
        theta: k.theta()?,
        pairing: RopePairing::Half,
        scaling: RopeScaling::None,
        axes: Axes::Alternate,
    };
    let layers = |_| attention(hidden, heads, Some(rope.clone()), Mask::None);
    let name = k.params().opt_str("hidden_act")?.unwrap_or_default();
    let ffn = Ffn::gated(k.u32("intermediate_size")?, act("hidden_act", name)?);
    let mut spec = tower((hidden, k.u32("num_hidden_layers")?), norm, layers, &ffn);
    spec.embed.norm = Some(norm);
    let size = k.u32("patch_size")?;
    // (How large an image may be; its processor says it too.)
    k.params().note("image_size");
    if k.feature_layer(spec.layers.len() as u32, -1)? as usize != spec.layers.len() {
        return Err(ModelError::unsupported("vision_feature_layer", "not the last"));
    }
    let merge = k.outer(&["spatial_merge_size"])?.unwrap_or(2);
    if !(1..=16).contains(&merge) {
        return Err(ModelError::unsupported("spatial_merge_size", merge));
    }
    let out = k.text_hidden()?;
    let eps = Hyper::new(k.checkpoint())?.f32(RMS_EPS)?;
    let name = k.outer_str("projector_hidden_act")?.unwrap_or("gelu");
    let inner = Some((out, act("projector_hidden_act", name)?));
    Ok(VisionSpec {
        merge,
        image_token: k.outer(&["image_token_id", "image_token_index"])?,
        ..VisionSpec::plain(
            TOWER.name,
            (spec, Patch { channels: k.u32("num_channels")?, frames: 1, size, pixels: false }),
            (
                Projector {
                    norm: Some((Norm::rms(eps), NormAt::Patch)),
                    merging: Some(hidden),
                    inner,
                    ..Projector::PLAIN
                },
                out,
            ),
            Script::Lines,
        )
    })
}
