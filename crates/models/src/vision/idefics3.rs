//! Idefics3 and SmolVLM: a SigLIP tower over tiles of one size; neighbours side by side become a row.

use super::keys::Keys;
use super::{Learned, Projector, Script, Stretch, Tower, VisionSpec};
use crate::error::ModelError;

pub const TOWER: Tower = Tower { name: "idefics3", spellings: &["idefics3", "smolvlm"], spec };

fn spec(k: &Keys<'_>) -> Result<VisionSpec, ModelError> {
    let (mut spec, norm, patch, side) = k.square(k.u32("num_hidden_layers")?)?;
    spec.final_norm = Some(norm);
    let merge = k.outer(&["scale_factor"])?.unwrap_or(2);
    if !(1..=16).contains(&merge) || side == 0 || !side.is_multiple_of(merge) {
        let found = format!("{merge} for {side} × {side} patches");
        return Err(ModelError::unsupported("scale_factor", found));
    }
    Ok(VisionSpec {
        positions: Some(Learned { side, stretch: Stretch::None, behind_norm: false }),
        merge,
        side: Some(side),
        image_token: k.outer(&["image_token_id"])?,
        ..VisionSpec::plain(
            TOWER.name,
            (spec, patch),
            (Projector::PLAIN, k.text_hidden()?),
            Script::Tiled,
        )
    })
}
