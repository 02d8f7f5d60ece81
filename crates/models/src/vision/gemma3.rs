//! Gemma 3: a SigLIP tower over images of one size; the mean of some neighbours, normalised, becomes
//! a row, and all tokens of an image see each other.

use super::keys::Keys;
use super::{Gather, Learned, NormAt, Projector, Script, Stretch, Tower, VisionSpec};
use crate::error::ModelError;
use crate::spec::Norm;

pub const TOWER: Tower = Tower { name: "gemma3", spellings: &["gemma3"], spec };

/// Patches along each side of what becomes one row, at most.
const MOST_MERGED: u32 = 64;

fn spec(k: &Keys<'_>) -> Result<VisionSpec, ModelError> {
    let (mut spec, norm, patch, side) = k.square(k.u32("num_hidden_layers")?)?;
    spec.final_norm = Some(norm);
    // (A head of the tower is no part of this model.)
    k.params().note("vision_use_head");
    let rows = k.outer(&["mm_tokens_per_image"])?.unwrap_or(256);
    let along = rows.isqrt();
    let square = along > 0 && along * along == rows && side > 0 && side.is_multiple_of(along);
    if !square || side / along > MOST_MERGED {
        let found = format!("{rows} for {side} × {side} patches");
        return Err(ModelError::unsupported("mm_tokens_per_image", found));
    }
    let after = Norm { offset: 1.0, ..Norm::rms(norm.eps) };
    let norm = Some((after, NormAt::Merged));
    let projector = Projector { gather: Gather::Mean, norm, ..Projector::PLAIN };
    Ok(VisionSpec {
        positions: Some(Learned { side, stretch: Stretch::None, behind_norm: false }),
        merge: side / along,
        side: Some(side),
        blocks: true,
        image_token: k.outer(&["image_token_id", "image_token_index"])?,
        ..VisionSpec::plain(
            TOWER.name,
            (spec, patch),
            (projector, k.text_hidden()?),
            Script::Framed,
        )
    })
}
