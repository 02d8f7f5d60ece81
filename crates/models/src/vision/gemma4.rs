//! Gemma 4: patches between -1 and 1, two learned positions a patch (of its column and of its row),
//! rotations by columns in the first half of a head and by rows in the second; the mean of nine
//! neighbours, shifted and scaled, becomes a row. Tokens of an image see each other in layers with a
//! window only.

use tokenmill_ir::{Mask, RopePairing};

use super::keys::Keys;
use super::{
    Gather, Learned, NormAt, Patch, Projector, Script, Stretch, Tower, VisionSpec, attention, tower,
};
use crate::error::ModelError;
use crate::hyper::{Hyper, WINDOW, act};
use crate::spec::{Attention, Axes, Ffn, Norm, QkNorm, RopeScaling, RopeSpec};

pub const TOWER: Tower = Tower { name: "gemma4", spellings: &["gemma4"], spec };

fn spec(k: &Keys<'_>) -> Result<VisionSpec, ModelError> {
    let hidden = k.u32("hidden_size")?;
    let norm = Norm::rms(k.params().f32("rms_norm_eps")?);
    let (heads, kv_heads) = (k.u32("num_attention_heads")?, k.u32("num_key_value_heads")?);
    let head_dim = k.u32("head_dim")?;
    if !head_dim.is_multiple_of(4) || kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        let found = format!("{head_dim} columns of {heads} heads, {kv_heads} of keys");
        return Err(ModelError::unsupported("head_dim", found));
    }
    let rope = RopeSpec {
        dims: head_dim,
        theta: k.theta()?,
        pairing: RopePairing::Half,
        scaling: RopeScaling::None,
        axes: Axes::Apart,
    };
    let layers = |_| Attention {
        kv_heads,
        head_dim,
        scale: 1.0,
        qk_norm: QkNorm::Head(norm),
        v_norm: Some(norm),
        ..attention(hidden, heads, Some(rope.clone()), Mask::None)
    };
    let flag = |key: &str| k.params().opt_bool(key).map(|f| f == Some(true));
    if flag("use_clipped_linears")? {
        return Err(ModelError::unsupported("use_clipped_linears", true));
    }
    let name = k.params().opt_str("hidden_activation")?.unwrap_or_default();
    let ffn = Ffn::gated(k.u32("intermediate_size")?, act("hidden_activation", name)?);
    let mut spec = tower((hidden, k.u32("num_hidden_layers")?), norm, layers, &ffn);
    spec.branches_mut().for_each(|b| b.norm_out = Some(norm));
    // (How many tokens a text may have; biases are what the file has.)
    for key in ["max_position_embeddings", "attention_bias"] {
        k.params().note(key);
    }
    let merge = k.u32("pooling_kernel_size")?;
    if !(1..=16).contains(&merge) {
        return Err(ModelError::unsupported("pooling_kernel_size", merge));
    }
    let side = k.u32("position_embedding_size")?;
    let text = Hyper::new(k.checkpoint())?;
    let blocks = text.meta().opt_str("use_bidirectional_attention")? == Some("vision");
    let patch = Patch { channels: 3, frames: 1, size: k.u32("patch_size")?, pixels: true };
    Ok(VisionSpec {
        positions: Some(Learned { side, stretch: Stretch::Sides, behind_norm: false }),
        merge,
        blocks,
        full_causal: blocks,
        // (Transformers ends what a token sees of its image at the window.)
        most_rows: text.opt_u32(WINDOW)?.filter(|_| blocks),
        image_token: k.outer(&["image_token_id"])?,
        ..VisionSpec::plain(
            TOWER.name,
            (spec, patch),
            (
                Projector {
                    gather: Gather::Mean,
                    scale: (hidden as f32).sqrt(),
                    standard: flag("standardize")?,
                    norm: Some((norm, NormAt::MergedUnit)),
                    ..Projector::PLAIN
                },
                k.text_hidden()?,
            ),
            Script::Between("<|image|>", ["<|image>", "<image|>"]),
        )
    })
}
