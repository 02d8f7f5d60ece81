//! CLIP and SigLIP: towers of images beside one of texts, whose vectors are compared. CLIP takes its learned
//! token's row, SigLIP what a learned query sees of all patches.

use super::keys::Keys;
use super::{ClassToken, Learned, Projector, Script, Stretch, Summary, Tower, VisionSpec};
use crate::arch::clip;
use crate::error::ModelError;
use crate::spec::Ffn;

pub const TOWER: Tower = Tower { name: "clip", spellings: &["clip"], spec: plain };
pub const SIGLIP: Tower = Tower { name: "siglip", spellings: &["siglip"], spec: siglip };

fn plain(k: &Keys<'_>) -> Result<VisionSpec, ModelError> {
    k.is("clip_vision_model")?;
    clip::one_config(k.checkpoint(), "vision_config", "clip.vision")?;
    let (mut spec, norm, patch, side) = k.square(k.u32("num_hidden_layers")?)?;
    (spec.embed.norm, spec.final_norm) = (Some(norm), Some(norm));
    // (Of a tower without one of texts.)
    k.params().note("projection_dim");
    let out = k.outer(&["projection_dim"])?.unwrap_or(clip::PROJECTED);
    Ok(VisionSpec {
        class_token: ClassToken::First,
        summary: Some(Summary::ClassToken),
        ..embedding(TOWER.name, (spec, patch), out, side)
    })
}

fn siglip(k: &Keys<'_>) -> Result<VisionSpec, ModelError> {
    const HEAD: &str = "vision_use_head";
    k.is("siglip_vision_model")?;
    if k.params().opt_bool(HEAD)? == Some(false) {
        return Err(ModelError::unsupported(HEAD, "false in a model that embeds images"));
    }
    let (mut spec, norm, patch, side) = k.square(k.u32("num_hidden_layers")?)?;
    spec.final_norm = Some(norm);
    let heads = k.u32("num_attention_heads")?;
    let Ffn::Plain { width, act } = k.plain(k.u32("intermediate_size")?)? else {
        return Err(ModelError::unsupported("hidden_act", "quick_gelu behind a pool"));
    };
    let out = spec.hidden;
    Ok(VisionSpec {
        summary: Some(Summary::Attention { heads, norm, width, act }),
        ..embedding(SIGLIP.name, (spec, patch), out, side)
    })
}

/// A tower over images of one size; nothing stands for an image in a text.
fn embedding(
    name: &'static str,
    (spec, patch): (crate::ModelSpec, super::Patch),
    out: u32,
    side: u32,
) -> VisionSpec {
    VisionSpec {
        positions: Some(Learned { side, stretch: Stretch::None, behind_norm: false }),
        side: Some(side),
        ..VisionSpec::plain(name, (spec, patch), (Projector::PLAIN, out), Script::Plain(""))
    }
}
