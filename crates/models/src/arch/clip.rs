//! The texts of CLIP and SigLIP: learned positions, norms before each part, the last row projected to a
//! vector that is compared with those of images. CLIP's tokens see those before them, SigLIP's all.

use tokenmill_ir::{Checkpoint, Mask, Meta, MetaValue};

use super::Arch;
use crate::classes::Class;
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::*;

pub const ARCH: Arch = Arch { name: "clip", spellings: &["clip_text_model"], spec: clip };
pub const SIGLIP: Arch = Arch { name: "siglip", spellings: &["siglip_text_model"], spec: siglip };

/// Columns of a vector where the file of both towers does not say.
pub const PROJECTED: u32 = 512;
/// The token that ends a text in files older than its key: the last of the vocabulary.
const OLD_END: u32 = 2;

fn clip(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    const KEY: &str = "projection_dim";
    const END: &str = "eos_token_id";
    one_config(h.checkpoint(), "text_config", "clip_text_model")?;
    let meta = &h.checkpoint().meta;
    let cols = match meta.get("text_config") {
        Some(_) => {
            h.meta().note(KEY); // (of a tower of texts alone)
            meta.opt_u32(KEY)?.unwrap_or(PROJECTED)
        }
        None => h.meta().u32(KEY)?,
    };
    let frame = match h.meta().opt_u32(END)? {
        Some(OLD_END) => Frame::UntilHighest,
        Some(end) => Frame::Until(end),
        None => return Err(ModelError::unsupported(END, "null")),
    };
    tower(h, Mask::Causal, Output::Projected { cols, frame })
}

fn siglip(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let cols = match h.meta().opt_u32("projection_size")? {
        Some(cols) => cols,
        None => h.u32(HIDDEN)?,
    };
    let frame = Frame::Filled(h.meta().opt_u32("pad_token_id")?.unwrap_or(1));
    tower(h, Mask::None, Output::Projected { cols, frame })
}

fn tower(h: &Hyper<'_>, mask: Mask, output: Output) -> Result<ModelSpec, ModelError> {
    const ACT: &str = "hidden_act";
    if h.pooling()?.is_some() {
        return Err(ModelError::unsupported("pooling", "of vectors that are compared with images"));
    }
    let norm = Norm::layer(h.f32(LAYER_EPS)?);
    let (hidden, heads, width) = (h.u32(HIDDEN)?, h.u32(HEADS)?, h.u32(FFN)?);
    let head_dim = h.head_dim()?;
    if heads * head_dim != hidden {
        let found = format!("{heads} heads of {} = {hidden}", h.name(HIDDEN));
        return Err(ModelError::unsupported(&h.name(HEADS), found));
    }
    let attention = Attention {
        heads,
        kv_heads: heads,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        rope: None,
        position_scale: None,
        qk_norm: QkNorm::None,
        v_norm: None,
        kv: KvSource::Own,
        mask,
        softcap: None,
        sinks: false,
        gated: false,
        multipliers: Multipliers::ONE,
        blocks: false,
    };
    let ffn = match h.meta().opt_str(ACT)?.unwrap_or_default() {
        "quick_gelu" => Ffn::Swish { width, beta: 1.702 },
        name => Ffn::Plain { width, act: act(ACT, name)? },
    };
    let layer = Layer {
        branches: vec![
            Branch::pre(norm, Body::Mix(vec![Mixer::Attention(attention)])),
            Branch::pre(norm, Body::Ffn(ffn)),
        ],
        join: Join::Sequential,
        scaled: false,
    };
    Ok(ModelSpec {
        arch: ARCH.name,
        vocab: h.vocab()?,
        hidden,
        context: h.u32(CONTEXT)?,
        embed: Embed { positions: Some(0), ..Embed::PLAIN },
        layers: vec![layer; h.layers()? as usize],
        final_norm: Some(norm),
        output,
        streams: None,
        draft_layers: 0,
        media: 0,
    })
}

/// Older files say a tower's configuration twice, and what `KEY_dict` says (or its class, where it says
/// nothing) counts in transformers: here both must be the same.
///
/// # Errors
/// [`ModelError::Unsupported`] with the key in which they differ.
pub fn one_config(checkpoint: &Checkpoint, key: &str, class: &str) -> Result<(), ModelError> {
    let twice = format!("{key}_dict");
    let own = match checkpoint.meta.get(&twice) {
        None | Some(MetaValue::Null) => return Ok(()),
        Some(MetaValue::Map(own)) => own,
        Some(other) => return Err(ModelError::unsupported(&twice, other.told())),
    };
    let none = Meta::new();
    let other: &Meta = match checkpoint.meta.get(key) {
        Some(MetaValue::Map(other)) => other,
        _ => &none,
    };
    let Some(class) = Class::of(class) else { return Ok(()) };
    for (field, usual) in class.fields.iter() {
        let [own, other] = [&**own, other].map(|map| map.get(field).unwrap_or(usual));
        if own.shown() != other.shown() && !field.ends_with("_token_id") {
            let found = format!("{} beside {}", own.shown(), other.shown());
            return Err(ModelError::unsupported(&format!("{twice}.{field}"), found));
        }
    }
    Ok(())
}
