//! LLaVA: a CLIP tower with a token of its own before the patches, taken before its last layer (1.5), and
//! tiles of a canvas beside the whole image (1.6); or a SigLIP tower, and canvases made smaller
//! (OneVision). Every patch becomes a row.

use super::keys::Keys;
use super::{ClassToken, Learned, Projector, Script, Stretch, Tower, VisionSpec};
use crate::error::ModelError;
use crate::hyper::act;
use crate::spec::Norm;

pub const TOWER: Tower = Tower { name: "llava", spellings: &["llava"], spec: plain };
pub const NEXT: Tower = Tower { name: "llava_next", spellings: &["llava_next"], spec: next };
pub const ONEVISION: Tower =
    Tower { name: "llava_onevision", spellings: &["llava_onevision"], spec: onevision };

/// In a config.json that says nothing: tiles of a canvas that OneVision has room for.
const CANVAS: &str = "anyres_max_9";

fn plain(k: &Keys<'_>) -> Result<VisionSpec, ModelError> {
    Ok(VisionSpec { arch: TOWER.name, ..clip(k, Script::Plain("<image>"))? })
}

fn next(k: &Keys<'_>) -> Result<VisionSpec, ModelError> {
    Ok(VisionSpec { arch: NEXT.name, ..clip(k, Script::Canvas(None))? })
}

fn clip(k: &Keys<'_>, script: Script) -> Result<VisionSpec, ModelError> {
    k.is("clip_vision_model")?;
    let all = k.u32("num_hidden_layers")?;
    let mut spec = llava(k, all, k.feature_layer(all, -2)?, script)?;
    spec.tower.embed.norm = Some(Norm::layer(k.params().f32("layer_norm_eps")?));
    spec.class_token = ClassToken::First;
    // (Of a head of the tower that is no part of this model.)
    k.params().note("projection_dim");
    k.outer_is("vision_feature_select_strategy", "default")?;
    Ok(spec)
}

fn onevision(k: &Keys<'_>) -> Result<VisionSpec, ModelError> {
    const ASPECT: &str = "vision_aspect_ratio";
    k.is("siglip_vision_model")?;
    k.params().note("vision_use_head");
    k.outer_is("vision_feature_select_strategy", "full")?;
    let canvas = k.outer_str(ASPECT)?.unwrap_or(CANVAS);
    let most = canvas.strip_prefix("anyres_max_").and_then(|n| n.parse().ok());
    let Some(most) = most.filter(|n: &u32| (1..=128).contains(n)) else {
        return Err(ModelError::unsupported(ASPECT, canvas));
    };
    let all = k.u32("num_hidden_layers")?;
    let spec = llava(k, all, k.feature_layer(all, -1)?, Script::Canvas(Some(most)))?;
    Ok(VisionSpec { arch: ONEVISION.name, ..spec })
}

/// A tower of which `taken` of all layers count, and two products behind it.
fn llava(k: &Keys<'_>, all: u32, taken: u32, script: Script) -> Result<VisionSpec, ModelError> {
    let (spec, _, patch, side) = k.square(taken)?;
    k.projector_bias()?;
    let out = k.text_hidden()?;
    let name = k.outer_str("projector_hidden_act")?.unwrap_or("gelu");
    let inner = Some((out, act("projector_hidden_act", name)?));
    Ok(VisionSpec {
        positions: Some(Learned { side, stretch: Stretch::None, behind_norm: false }),
        skipped: all - taken,
        side: Some(side),
        image_token: k.outer(&["image_token_id", "image_token_index"])?,
        ..VisionSpec::plain(
            TOWER.name,
            (spec, patch),
            (Projector { inner, ..Projector::PLAIN }, out),
            script,
        )
    })
}
