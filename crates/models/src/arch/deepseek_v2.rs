//! DeepSeek-V2 and V2-Lite: V3's latent attention, softmax routing.

use tokenmill_ir::{GroupRule, RouteScore};

use super::{Arch, deepseek_v3};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::{Ffn, ModelSpec};

pub const ARCH: Arch = Arch { name: "deepseek_v2", spellings: &["deepseek_v2"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = deepseek_v3::spec(h)?;
    // A group's score is its best expert's, not the sum of the best two as in V3.
    let best = match h.meta().opt_str("topk_method")?.unwrap_or("greedy") {
        "greedy" => None,
        "group_limited_greedy" => Some(1),
        other => return Err(ModelError::unsupported("topk_method", other)),
    };
    if let (Some(_), None) = (best, h.meta().opt_u32("n_group")?) {
        return Err(ModelError::unsupported("topk_method", "group_limited_greedy without n_group"));
    }
    if h.meta().opt_bool("norm_topk_prob")?.unwrap_or(false) {
        // transformers passes it over, the models' own code takes no scaling factor then.
        return Err(ModelError::unsupported("norm_topk_prob", true));
    }
    for (_, ffn) in model.ffn_mut() {
        if let Ffn::Experts(e) = ffn {
            e.score = RouteScore::Softmax;
            e.groups = e.groups.zip(best).map(|(groups, best)| GroupRule { best, ..groups });
        }
    }
    Ok(model)
}
