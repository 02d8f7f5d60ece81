//! DeepSeek-V2 and V2-Lite: V3's latent attention, softmax routing.

use tokenmill_ir::RouteScore;

use super::{Arch, deepseek_v3};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::{Ffn, ModelSpec};

pub const ARCH: Arch = Arch { name: "deepseek_v2", spellings: &["deepseek_v2"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = deepseek_v3::spec(h)?;
    let method = h.meta().opt_str("topk_method")?.unwrap_or("greedy");
    let grouped = h.meta().opt_u32("n_group")?.unwrap_or(1) > 1;
    // The group's score is its best expert's there, V3's is the sum of the best two.
    if method != "greedy" && grouped {
        return Err(ModelError::unsupported("topk_method", method));
    }
    for (_, ffn) in model.ffn_mut() {
        if let Ffn::Experts(e) = ffn {
            (e.score, e.groups) = (RouteScore::Softmax, None);
        }
    }
    Ok(model)
}
