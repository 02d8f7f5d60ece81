//! Gemma 3: a SigLIP tower over images of one size; the mean of some neighbours, normalised, becomes
//! a row, and all tokens of an image see each other.

use tokenmill_ir::Mask;

use super::keys::Keys;
use super::{
    Gather, Learned, NormAt, Patch, Projector, Script, Stretch, Tower, VisionSpec, attention, tower,
};
use crate::error::ModelError;
use crate::spec::{Axes, Norm};

pub const TOWER: Tower = Tower { name: "gemma3", spellings: &["gemma3"], spec };

/// Patches along each side of what becomes one row, at most.
const MOST_MERGED: u32 = 64;

fn spec(k: &Keys<'_>) -> Result<VisionSpec, ModelError> {
    let (hidden, heads) = k.widths("hidden_size", "num_attention_heads", false)?;
    let eps = k.params().f32("layer_norm_eps")?;
    let norm = Norm::layer(eps);
    let layers = |_| attention(hidden, heads, None, Mask::None);
    let ffn = k.plain(k.u32("intermediate_size")?)?;
    let mut spec = tower((hidden, k.u32("num_hidden_layers")?), norm, layers, &ffn);
    spec.final_norm = Some(norm);
    let size = k.u32("patch_size")?;
    let side = k.u32("image_size")? / size;
    // (A head of the tower is no part of this model.)
    k.params().note("vision_use_head");
    let rows = k.outer(&["mm_tokens_per_image"])?.unwrap_or(256);
    let along = rows.isqrt();
    let square = along > 0 && along * along == rows && side > 0 && side.is_multiple_of(along);
    if !square || side / along > MOST_MERGED {
        let found = format!("{rows} for {side} × {side} patches");
        return Err(ModelError::unsupported("mm_tokens_per_image", found));
    }
    let after = Norm { offset: 1.0, ..Norm::rms(eps) };
    Ok(VisionSpec {
        arch: TOWER.name,
        tower: spec,
        patch: Patch { channels: k.u32("num_channels")?, frames: 1, size },
        positions: Some(Learned { side, stretch: Stretch::None }),
        class_token: false,
        skipped: 0,
        merge: side / along,
        window: None,
        side: Some(side),
        projector: Projector {
            gather: Gather::Mean,
            norm: Some((after, NormAt::Merged)),
            merging: false,
            inner: None,
        },
        deepstack: None,
        out: k.text_hidden()?,
        axes: Axes::One,
        blocks: true,
        image_token: k.outer(&["image_token_id", "image_token_index"])?,
        script: Script::Framed,
    })
}
