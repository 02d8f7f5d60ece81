//! DeepSeek-V3 (arXiv 2412.19437): multi-head latent attention, group-limited sigmoid routing, shared
//! expert, first layers dense.

use tokenmill_ir::{Act, GateAct, GroupRule, RopePairing, RouteScore};

use super::{Arch, llama};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::*;

pub const ARCH: Arch = Arch { name: "deepseek_v3", spellings: &["deepseek_v3"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let m = h.meta();
    let mut model = llama::spec_with(h, RopePairing::Interleaved)?;
    let (nope, rope_dim) = (m.u32("qk_nope_head_dim")?, m.u32("qk_rope_head_dim")?);
    let scaling = h.rope_scaling("")?;
    let mut scale = 1.0 / ((nope + rope_dim) as f32).sqrt();
    if let (RopeScaling::Yarn { factor, .. }, Some(all)) =
        (&scaling, h.rope_number("mscale_all_dim")?)
    {
        let magnitude = yarn_magnitude(*factor, all) as f32;
        scale *= magnitude * magnitude;
    }
    let latent = Latent {
        heads: h.u32(HEADS)?,
        q_lora: m.opt_u32("q_lora_rank")?,
        kv_lora: m.u32("kv_lora_rank")?,
        nope,
        rope_dim,
        v_dim: m.u32("v_head_dim")?,
        scale,
        norm: Norm::rms(1e-6),
        rope: RopeSpec {
            dims: rope_dim,
            theta: h.theta("")?,
            pairing: RopePairing::Interleaved,
            scaling,
        },
    };
    for branch in model.branches_mut() {
        if let Body::Mix(mixers) = &mut branch.body {
            *mixers = vec![Mixer::Latent(latent.clone())];
        }
    }
    let width = h.u32(EXPERT_FFN)?;
    let shared = m.opt_u32("n_shared_experts")?.filter(|n| *n > 0);
    let experts = Experts {
        count: h.u32(EXPERTS)?,
        top: h.u32(EXPERTS_USED)?,
        width,
        act: GateAct::Plain(Act::Silu),
        score: RouteScore::Sigmoid,
        groups: Some(GroupRule { groups: m.u32("n_group")?, keep: m.u32("topk_group")? }),
        normalise: m.opt_bool("norm_topk_prob")?.unwrap_or(true),
        scale: m.opt_f32("routed_scaling_factor")?.unwrap_or(1.0),
        shared: shared.map(|n| SharedExpert { width: width * n, gated: false }),
    };
    let dense = m.opt_u32("first_k_dense_replace")?.unwrap_or(0) as usize;
    for (_, ffn) in model.ffn_mut().filter(|(i, _)| *i >= dense) {
        *ffn = Ffn::Experts(experts.clone());
    }
    Ok(model)
}
