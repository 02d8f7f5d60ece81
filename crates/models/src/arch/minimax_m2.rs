//! MiniMax M2: norms over all queries and keys, part of each head rotated, sigmoid routing with a
//! bias on the choice.

use tokenmill_ir::{RopePairing, RouteScore};

use super::{Arch, llama, qwen3_moe};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::{Experts, Ffn, ModelSpec, Norm, QkNorm};

pub const ARCH: Arch = Arch { name: "minimax_m2", spellings: &["minimax_m2", "minimax-m2"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = llama::spec_with(h, RopePairing::Half)?;
    let norm = Norm::rms(h.f32(RMS_EPS)?);
    model.attention_mut().for_each(|(_, a)| a.qk_norm = QkNorm::Whole(norm));
    let score = qwen3_moe::scoring(h, RouteScore::Sigmoid)?;
    let experts = Experts { score, normalise: true, ..qwen3_moe::softmax_experts(h)? };
    model.ffn_mut().for_each(|(_, f)| *f = Ffn::Experts(experts.clone()));
    Ok(model)
}
