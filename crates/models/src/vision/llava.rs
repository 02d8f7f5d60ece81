//! LLaVA 1.5: a CLIP tower with a token of its own before the patches, taken before its last layer;
//! every patch becomes a row.

use super::keys::Keys;
use super::{Gather, Learned, Projector, Script, Stretch, Tower, VisionSpec};
use crate::error::ModelError;
use crate::hyper::act;

pub const TOWER: Tower = Tower { name: "llava", spellings: &["llava"], spec };

fn spec(k: &Keys<'_>) -> Result<VisionSpec, ModelError> {
    k.is("clip_vision_model")?;
    let all = k.u32("num_hidden_layers")?;
    let taken = k.feature_layer(all, -2)?;
    let (mut spec, norm, patch, side) = k.square(taken)?;
    spec.embed.norm = Some(norm);
    // (Of a head of the tower that is no part of this model.)
    k.params().note("projection_dim");
    k.outer_is("vision_feature_select_strategy", "default")?;
    let out = k.text_hidden()?;
    let name = k.outer_str("projector_hidden_act")?.unwrap_or("gelu");
    let inner = Some((out, act("projector_hidden_act", name)?));
    Ok(VisionSpec {
        positions: Some(Learned { side, stretch: Stretch::None }),
        class_token: true,
        skipped: all - taken,
        side: Some(side),
        image_token: k.outer(&["image_token_id", "image_token_index"])?,
        ..VisionSpec::plain(
            TOWER.name,
            (spec, patch),
            (Projector { gather: Gather::Concat, norm: None, merging: false, inner }, out),
            Script::Plain("<image>"),
        )
    })
}
