//! Mamba-2 (arXiv 2405.21060): one selective scan a layer, no feed-forward part.

use tokenmill_ir::{GateOrder, MetaValue};

use super::Arch;
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::*;

pub const ARCH: Arch = Arch { name: "mamba2", spellings: &["mamba2"], spec };

/// How a family names the sizes of its scans in config.json.
pub struct Keys {
    pub heads: &'static str,
    pub head_dim: &'static str,
    pub groups: &'static str,
    pub state: &'static str,
    pub kernel: &'static str,
}

const KEYS: Keys = Keys {
    heads: "num_heads",
    head_dim: "head_dim",
    groups: "n_groups",
    state: "state_size",
    kernel: "conv_kernel",
};

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let eps = h.f32(RMS_EPS)?;
    let mamba = mixer(h, &KEYS, eps)?;
    let norm = Norm::rms(eps);
    let branch = Branch::pre(norm, Body::Mix(vec![Mixer::Mamba(mamba)]));
    let layer = Layer { branches: vec![branch], join: Join::Sequential, scaled: false };
    Ok(ModelSpec {
        arch: ARCH.name,
        vocab: h.vocab()?,
        hidden: h.u32(HIDDEN)?,
        // A state has no positions; the limit is only that of counters.
        context: h.opt_u32(CONTEXT)?.unwrap_or(1 << 20),
        embed: Embed::PLAIN,
        layers: vec![layer; h.layers()? as usize],
        final_norm: Some(norm),
        output: Output::Logits { scale: 1.0, softcap: None },
        streams: None,
        draft_layers: 0,
        media: 0,
    })
}

/// Columns of a head of a recurrence in GGUF, which has those of all of them.
pub fn columns(h: &Hyper<'_>, heads: u32) -> Result<u32, ModelError> {
    let key = h.own("", "ssm.inner_size");
    match (h.meta().u32(&key)?, heads) {
        (all, heads) if heads > 0 && all % heads == 0 => Ok(all / heads),
        (all, heads) => Err(ModelError::unsupported(&key, format!("{all} for {heads} heads"))),
    }
}

/// Columns of all heads of a scan.
fn inner(h: &Hyper<'_>) -> Result<u32, ModelError> {
    let m = h.meta();
    let expand = m.opt_u32("mamba_expand")?.or(m.opt_u32("expand")?).unwrap_or(2);
    let usual = expand.saturating_mul(h.u32(HIDDEN)?);
    Ok(m.opt_u32("mamba_d_ssm")?.unwrap_or(usual))
}

/// The scan with a gated norm of its output, over each group.
pub fn mixer(h: &Hyper<'_>, keys: &Keys, eps: f32) -> Result<Mamba, ModelError> {
    let m = h.meta();
    h.silu()?;
    let limit = h.numbers("time_step_limit", [0.0, f32::INFINITY])?;
    let read = |hf, gguf| m.u32(&h.own(hf, gguf));
    let heads = read(keys.heads, "ssm.time_step_rank")?;
    let head_dim = match h.is_gguf() {
        true => columns(h, heads)?,
        false => match m.get(keys.head_dim).and_then(MetaValue::as_str) {
            // "auto", by the inner width.
            Some(_) => inner(h)? / heads.max(1),
            None => m.u32(keys.head_dim)?,
        },
    };
    let all = heads.saturating_mul(head_dim);
    if !h.is_gguf() && inner(h)? != all {
        let found = format!("{head_dim} for {heads} heads in {} columns", inner(h)?);
        return Err(ModelError::unsupported(keys.head_dim, found));
    }
    let groups = read(keys.groups, "ssm.group_count")?;
    if groups == 0 || heads % groups != 0 {
        return Err(ModelError::unsupported(keys.groups, format!("{groups} for {heads} heads")));
    }
    Ok(Mamba {
        heads,
        head_dim,
        groups,
        state_dim: read(keys.state, "ssm.state_size")?,
        kernel: read(keys.kernel, "ssm.conv_kernel")?,
        dt_limit: limit.into(),
        norm: Some((Norm::rms(eps), GateOrder::BeforeNorm)),
        in_scale: 1.0,
        out_scale: 1.0,
        part_scales: [1.0; 5],
    })
}
