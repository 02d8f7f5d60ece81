//! InternVL: a tower over tiles of one size with a token of its own before the patches, whose branches are
//! multiplied column by column; four neighbours side by side, normalised, become a row.

use tokenmill_ir::Mask;

use super::keys::Keys;
use super::{
    ClassToken, Learned, NormAt, Patch, Projector, Script, Stretch, Tower, VisionSpec, attention,
    tower,
};
use crate::error::ModelError;
use crate::hyper::act;
use crate::spec::{Norm, QkNorm};

pub const TOWER: Tower = Tower { name: "internvl", spellings: &["internvl"], spec };

/// Of norms whose configuration has none, in the family's code.
pub(super) const QK_EPS: f32 = 1e-6;
pub(super) const PROJECTOR_EPS: f32 = 1e-5;
/// How it writes an image.
pub(super) const SCRIPT: Script = Script::Between("<IMG_CONTEXT>", ["<img>", "</img>"]);

fn spec(k: &Keys<'_>) -> Result<VisionSpec, ModelError> {
    let (hidden, heads) = k.widths("hidden_size", "num_attention_heads", false)?;
    let eps = k.params().f32("layer_norm_eps")?;
    let biased = k.has_tensor("layer.0.layernorm_before.bias");
    let norm = match k.params().opt_str("norm_type")?.unwrap_or_default() {
        "layer_norm" => Norm::layer(eps),
        "rms_norm" if biased => {
            return Err(ModelError::unsupported("norm_type", "rms_norm beside biases of norms"));
        }
        "rms_norm" => Norm::rms(eps),
        other => return Err(ModelError::unsupported("norm_type", other)),
    };
    let flag = |key: &str| k.params().opt_bool(key).map(|f| f == Some(true));
    let qk_norm = flag("use_qk_norm")?;
    let layers = |_| {
        let mut a = attention(hidden, heads, None, Mask::None);
        if qk_norm {
            a.qk_norm = QkNorm::Whole(Norm::rms(QK_EPS));
        }
        a
    };
    let ffn = k.plain(k.u32("intermediate_size")?)?;
    let all = k.u32("num_hidden_layers")?;
    let taken = k.feature_layer(all, -1)?;
    let mut spec = tower((hidden, taken), norm, layers, &ffn);
    let mean = flag("use_mean_pooling")?;
    spec.final_norm = (taken == all && !mean).then_some(Norm::layer(eps));
    if flag("attention_bias")? != k.has_tensor("layer.0.attention.q_proj.bias") {
        return Err(ModelError::unsupported("attention_bias", "not what the file has"));
    }
    if flag("use_mask_token")? {
        return Err(ModelError::unsupported("use_mask_token", true));
    }
    if taken < all && !mean {
        let found = format!("{taken} of {all} layers before a norm");
        return Err(ModelError::unsupported("vision_feature_layer", found));
    }
    // (Factors of columns are what the file has.)
    k.params().note("layer_scale_init_value");
    k.outer_is("vision_feature_select_strategy", "default")?;
    let size = k.side("patch_size")?;
    let side = k.side("image_size")? / size;
    let ratio = k.outer_f64("downsample_ratio")?;
    let merge = k.merge(ratio, "downsample_ratio", side)?;
    let learned = Learned { side, stretch: Stretch::None, behind_norm: false };
    let out = k.text_hidden()?;
    let name = k.outer_str("projector_hidden_act")?.unwrap_or("gelu");
    let inner = Some((out, act("projector_hidden_act", name)?));
    let norm = Some((Norm::layer(PROJECTOR_EPS), NormAt::Merged));
    Ok(VisionSpec {
        positions: flag("use_absolute_position_embeddings")?.then_some(learned),
        class_token: ClassToken::First,
        skipped: all - taken,
        merge,
        side: Some(side),
        image_token: k.outer(&["image_token_id"])?,
        ..VisionSpec::plain(
            TOWER.name,
            (spec, Patch { channels: k.u32("num_channels")?, frames: 1, size, pixels: false }),
            (Projector { norm, inner, ..Projector::PLAIN }, out),
            SCRIPT,
        )
    })
}
