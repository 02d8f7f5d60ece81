//! Granite MoE: Granite with routed experts, gates and ups in one tensor.

use tokenmill_ir::{Act, GateAct, RouteScore};

use super::{Arch, granite, qwen3_moe};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::{Experts, Ffn, GateUp, ModelSpec, SharedExpert, Weigh};

pub const ARCH: Arch =
    Arch { name: "granitemoe", spellings: &["granitemoe", "granitemoeshared"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = granite::spec(h)?;
    let ffn = Ffn::Experts(experts(h)?);
    model.ffn_mut().for_each(|(_, f)| *f = ffn.clone());
    Ok(model)
}

/// The best logits are taken, then their softmax; a shared expert where the file says so.
pub fn experts(h: &Hyper<'_>) -> Result<Experts, ModelError> {
    let shared = h.opt_u32(SHARED_FFN)?.filter(|w| *w > 0);
    Ok(Experts {
        count: h.u32(EXPERTS)?,
        top: h.u32(EXPERTS_USED)?,
        width: h.expert_width()?,
        act: GateAct::Plain(h.activation(Act::Silu)?),
        score: qwen3_moe::scoring(h, RouteScore::SoftmaxOfTop)?,
        groups: None,
        normalise: false,
        scale: 1.0,
        weigh: Weigh::Output,
        fused: GateUp::Halves,
        shared: shared.map(|width| SharedExpert { width, gated: false }),
    })
}
