//! Idefics3 and SmolVLM: a SigLIP tower over tiles of one size; neighbours side by side become a row.

use tokenmill_ir::Mask;

use super::keys::Keys;
use super::{
    Gather, Learned, Patch, Projector, Script, Stretch, Tower, VisionSpec, attention, tower,
};
use crate::error::ModelError;
use crate::spec::{Axes, Norm};

pub const TOWER: Tower = Tower { name: "idefics3", spellings: &["idefics3", "smolvlm"], spec };

fn spec(k: &Keys<'_>) -> Result<VisionSpec, ModelError> {
    let (hidden, heads) = k.widths("hidden_size", "num_attention_heads", false)?;
    let norm = Norm::layer(k.params().f32("layer_norm_eps")?);
    let layers = |_| attention(hidden, heads, None, Mask::None);
    let ffn = k.plain(k.u32("intermediate_size")?)?;
    let mut spec = tower((hidden, k.u32("num_hidden_layers")?), norm, layers, &ffn);
    spec.final_norm = Some(norm);
    let size = k.u32("patch_size")?;
    let side = k.u32("image_size")? / size;
    let merge = k.outer(&["scale_factor"])?.unwrap_or(2);
    if !(1..=16).contains(&merge) || side == 0 || !side.is_multiple_of(merge) {
        let found = format!("{merge} for {side} × {side} patches");
        return Err(ModelError::unsupported("scale_factor", found));
    }
    Ok(VisionSpec {
        arch: TOWER.name,
        tower: spec,
        patch: Patch { channels: k.u32("num_channels")?, frames: 1, size },
        positions: Some(Learned { side, stretch: Stretch::None }),
        class_token: false,
        skipped: 0,
        merge,
        window: None,
        side: Some(side),
        projector: Projector { gather: Gather::Concat, norm: None, merging: false, inner: None },
        deepstack: None,
        out: k.text_hidden()?,
        axes: Axes::One,
        blocks: false,
        image_token: k.outer(&["image_token_id"])?,
        script: Script::Tiled,
    })
}
