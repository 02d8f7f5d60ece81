//! LLaVA 1.5: a CLIP tower with a token of its own before the patches, taken before its last layer;
//! every patch becomes a row.

use tokenmill_ir::Mask;

use super::keys::Keys;
use super::{
    Gather, Learned, Patch, Projector, Script, Stretch, Tower, VisionSpec, attention, tower,
};
use crate::error::ModelError;
use crate::hyper::act;
use crate::spec::{Axes, Norm};

pub const TOWER: Tower = Tower { name: "llava", spellings: &["llava"], spec };

fn spec(k: &Keys<'_>) -> Result<VisionSpec, ModelError> {
    k.is("clip_vision_model")?;
    let (hidden, heads) = k.widths("hidden_size", "num_attention_heads", false)?;
    let norm = Norm::layer(k.params().f32("layer_norm_eps")?);
    let layers = |_| attention(hidden, heads, None, Mask::None);
    let ffn = k.plain(k.u32("intermediate_size")?)?;
    let all = k.u32("num_hidden_layers")?;
    let taken = k.feature_layer(all, -2)?;
    let mut spec = tower((hidden, taken), norm, layers, &ffn);
    spec.embed.norm = Some(norm);
    let size = k.u32("patch_size")?;
    let side = k.u32("image_size")? / size;
    // (Of a head of the tower that is no part of this model.)
    k.params().note("projection_dim");
    k.outer_is("vision_feature_select_strategy", "default")?;
    let out = k.text_hidden()?;
    let name = k.outer_str("projector_hidden_act")?.unwrap_or("gelu");
    let inner = Some((out, act("projector_hidden_act", name)?));
    Ok(VisionSpec {
        arch: TOWER.name,
        tower: spec,
        patch: Patch { channels: k.u32("num_channels")?, frames: 1, size },
        positions: Some(Learned { side, stretch: Stretch::None }),
        class_token: true,
        skipped: all - taken,
        merge: 1,
        window: None,
        side: Some(side),
        projector: Projector { gather: Gather::Concat, norm: None, merging: false, inner },
        deepstack: None,
        out,
        axes: Axes::One,
        blocks: false,
        image_token: k.outer(&["image_token_id", "image_token_index"])?,
        script: Script::Plain("<image>"),
    })
}
