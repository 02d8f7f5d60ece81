//! Qwen2.5-VL: Qwen2-VL's tower with root-mean-square norms, gated parts, and windows in all layers
//! but a few.

use tokenmill_ir::Mask;

use super::keys::Keys;
use super::qwen2_vl::{EPS, merger};
use super::{NormAt, Script, Tower, VisionSpec, attention, tower};
use crate::error::ModelError;
use crate::hyper::act;
use crate::spec::{Ffn, Norm};

pub const TOWER: Tower = Tower { name: "qwen2_5_vl", spellings: &["qwen2_5_vl"], spec };

fn spec(k: &Keys<'_>) -> Result<VisionSpec, ModelError> {
    let (hidden, heads) = k.widths("hidden_size", "num_heads", true)?;
    let depth = k.u32("depth")?;
    let full = k.layers_of("fullatt_block_indexes", depth)?;
    let rope = k.by_halves(hidden / heads)?;
    let layers = |i| {
        let mask = if full.contains(&i) { Mask::None } else { Mask::Block };
        attention(hidden, heads, Some(rope.clone()), mask)
    };
    let name = k.params().opt_str("hidden_act")?.unwrap_or_default();
    let ffn = Ffn::gated(k.u32("intermediate_size")?, act("hidden_act", name)?);
    let norm = Norm::rms(EPS);
    let (merge, patch) = (k.u32("spatial_merge_size")?, k.patch()?);
    // Of films only: how often a second has a position.
    k.params().note("tokens_per_second");
    let window = k.u32("window_size")? / merge / patch.size;
    if window == 0 {
        return Err(ModelError::unsupported("window_size", "less than a row"));
    }
    Ok(VisionSpec {
        merge,
        window: Some(window),
        axes: k.axes(None)?,
        image_token: k.outer(&["image_token_id"])?,
        ..VisionSpec::plain(
            TOWER.name,
            (tower((hidden, depth), norm, layers, &ffn), patch),
            (merger(hidden, merge, norm, NormAt::Patch), k.u32("out_hidden_size")?),
            Script::Plain("<|image_pad|>"),
        )
    })
}
