//! DeepSeek-V3 and R1 (arXiv 2412.19437), Kimi K2: multi-head latent attention, group-limited
//! sigmoid routing, shared expert, first layers dense.

use tokenmill_ir::{Act, GateAct, GroupRule, RopePairing, RouteScore};

use super::{Arch, llama, qwen3_moe};
use crate::error::ModelError;
use crate::hyper::*;
use crate::rotary::yarn_magnitude;
use crate::spec::*;

pub const ARCH: Arch =
    Arch { name: "deepseek_v3", spellings: &["deepseek_v3", "kimi_k2", "deepseek2"], spec };

pub fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let m = h.meta();
    let interleaved = m.opt_bool("rope_interleave")?.unwrap_or(true);
    let pairing = if interleaved { RopePairing::Interleaved } else { RopePairing::Half };
    let heads = h.u32(HEADS)?;
    let keys = h.opt_u32(KV_HEADS)?.filter(|_| !h.is_gguf()).unwrap_or(heads);
    if keys != heads {
        // Every head has keys of its own out of the latent.
        return Err(ModelError::unsupported("num_key_value_heads", format!("{keys} of {heads}")));
    }
    let mut model = llama::spec_with(h, pairing)?;
    let own = |hf, gguf| h.own(hf, gguf);
    let rope_dim = m.u32(&own("qk_rope_head_dim", "rope.dimension_count"))?;
    let nope = match h.is_gguf() {
        false => m.u32("qk_nope_head_dim")?,
        true => {
            // Older files have the whole width of a head under the usual key.
            let whole = m.opt_u32(&own("", "attention.key_length_mla"))?;
            whole.map_or_else(|| h.u32(HEAD_DIM), Ok)?.saturating_sub(rope_dim)
        }
    };
    let v_dim = match m.opt_u32(&own("v_head_dim", "attention.value_length_mla"))? {
        Some(width) => width,
        None => m.u32(&own("v_head_dim", "attention.value_length"))?,
    };
    let (scaling, magnitude) = stretch(h)?;
    let scale = magnitude * magnitude / ((nope + rope_dim) as f32).sqrt();
    let latent = Latent {
        heads: h.u32(HEADS)?,
        q_lora: m.opt_u32(&own("q_lora_rank", "attention.q_lora_rank"))?,
        kv_lora: m.u32(&own("kv_lora_rank", "attention.kv_lora_rank"))?,
        nope,
        rope_dim,
        v_dim,
        scale,
        norm: Norm::rms(1e-6),
        rope: RopeSpec { dims: rope_dim, theta: h.theta("")?, pairing, scaling, axes: Axes::One },
    };
    for branch in model.branches_mut() {
        if let Body::Mix(mixers) = &mut branch.body {
            *mixers = vec![Mixer::Latent(latent.clone())];
        }
    }
    experts(h, &mut model)?;
    Ok(model)
}

/// The stretching of the rotation, and a factor of queries and keys that goes with it.
fn stretch(h: &Hyper<'_>) -> Result<(RopeScaling, f32), ModelError> {
    let mut scaling = h.rope_scaling("")?;
    let RopeScaling::Yarn { factor, magnitude, .. } = &mut scaling else {
        return Ok((scaling, 1.0));
    };
    let all = match h.is_gguf() {
        false => h.rope_number("mscale_all_dim")?,
        true => {
            // Such files keep a tenth of it, and know no other factor of sine and cosine.
            *magnitude = 1.0;
            h.meta().opt_f64(&h.own("", "rope.scaling.yarn_log_multiplier"))?.map(|x| x * 10.0)
        }
    };
    let of_scores = all.map_or(1.0, |all| yarn_magnitude(*factor, all) as f32);
    Ok((scaling, of_scores))
}

/// Makes the layers after the first dense ones layers of experts.
pub fn experts(h: &Hyper<'_>, model: &mut ModelSpec) -> Result<(), ModelError> {
    let m = h.meta();
    let width = h.expert_width()?;
    let shared = m.opt_u32(&h.own("n_shared_experts", "expert_shared_count"))?.filter(|n| *n > 0);
    let (count, keep) = (
        m.opt_u32(&h.own("n_group", "expert_group_count"))?,
        m.opt_u32(&h.own("topk_group", "expert_group_used_count"))?,
    );
    let needed = h.class().is_some_and(|c| c.name != "deepseek_v2");
    for (key, value) in [("n_group", count), ("topk_group", keep)] {
        if needed && value.is_none() {
            return Err(ModelError::unsupported(key, "null"));
        }
    }
    let groups = count.zip(keep).map(|(groups, keep)| GroupRule { groups, keep, best: 2 });
    let (all, top) = (h.u32(EXPERTS)?, h.u32(EXPERTS_USED)?);
    // (Where less are kept than a token uses, which others it uses is chance.)
    let fits = |g: &GroupRule| {
        let best = if needed && g.groups > 1 { 2 } else { 1 };
        !needed && g.groups < 2
            || g.groups != 0
                && all / g.groups >= best
                && all % g.groups == 0
                && (1..=g.groups).contains(&g.keep)
                && u64::from(all / g.groups) * u64::from(g.keep) >= u64::from(top)
    };
    if let Some(g) = groups.filter(|g| !fits(g)) {
        let (groups, keep) = (g.groups, g.keep);
        let found = format!("{groups} of {all}, topk_group = {keep}, num_experts_per_tok = {top}");
        return Err(ModelError::unsupported(&h.own("n_group", "expert_group_count"), found));
    }
    let normalise = m.opt_bool(&h.own("norm_topk_prob", "expert_weights_norm"))?;
    // Files of DeepSeek-V2 from before V3 do not say it; nor do the first ones of GLM-4.7-Flash,
    // known by their vocabulary, which are meant otherwise (as llama.cpp has it).
    let early = h.is_gguf() && h.arch_name() == "deepseek2" && h.vocab()? != 154_880;
    let usual = if early { RouteScore::Softmax } else { RouteScore::Sigmoid };
    let score = qwen3_moe::scoring(h, usual)?;
    let experts = Experts {
        count: all,
        top,
        width,
        act: GateAct::Plain(h.activation(Act::Silu)?),
        score,
        groups: groups.filter(|g| g.groups > 1),
        normalise: normalise.unwrap_or(!h.is_gguf()),
        scale: m.opt_f32(&h.own("routed_scaling_factor", "expert_weights_scale"))?.unwrap_or(1.0),
        weigh: Weigh::Output,
        fused: GateUp::Halves,
        shared: shared.map(|n| SharedExpert { width: width.saturating_mul(n), gated: false }),
    };
    let dense = m
        .opt_u32(&h.own("first_k_dense_replace", "leading_dense_block_count"))?
        .unwrap_or(0) as usize;
    for (_, ffn) in model.ffn_mut().filter(|(i, _)| *i >= dense) {
        *ffn = Ffn::Experts(experts.clone());
    }
    Ok(())
}
