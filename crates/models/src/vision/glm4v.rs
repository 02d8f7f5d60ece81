//! GLM-4.1V and GLM-4.5V: rotations by rows and columns, and a table of positions stretched over the grid
//! by cubics, added behind a first norm; a convolution makes four neighbours one, then a product with
//! a norm and a gated part follow. Three positions a token in the language model, in sections.

use tokenmill_ir::{Act, Mask};

use super::keys::Keys;
use super::{Learned, Projector, Script, Stretch, Tower, VisionSpec, attention, tower};
use crate::error::ModelError;
use crate::hyper::act;
use crate::spec::{Ffn, Norm};

pub const TOWER: Tower = Tower { name: "glm4v", spellings: &["glm4v", "glm4v_moe"], spec };

/// Of a norm whose configuration has none.
const PROJECTOR_EPS: f32 = 1e-5;

fn spec(k: &Keys<'_>) -> Result<VisionSpec, ModelError> {
    let (hidden, heads) = k.widths("hidden_size", "num_heads", true)?;
    let norm = Norm::rms(k.params().f32("rms_norm_eps")?);
    let rope = k.by_halves(hidden / heads)?;
    let layers = |_| attention(hidden, heads, Some(rope.clone()), Mask::None);
    let act = act("hidden_act", k.params().opt_str("hidden_act")?.unwrap_or_default())?;
    // (The layers' inner width is that of what comes out, the projector's is called theirs.)
    let out = k.u32("out_hidden_size")?;
    let mut spec = tower((hidden, k.u32("depth")?), norm, layers, &Ffn::gated(out, act));
    spec.embed.norm = Some(norm);
    spec.final_norm = Some(norm);
    // (Biases are what the file has.)
    k.params().note("attention_bias");
    let (merge, patch) = (k.u32("spatial_merge_size")?, k.patch()?);
    let side = k.u32("image_size")? / patch.size;
    if side == 0 {
        return Err(ModelError::unsupported("image_size", "less than a patch"));
    }
    Ok(VisionSpec {
        positions: Some(Learned { side, stretch: Stretch::Bicubic, behind_norm: true }),
        merge,
        axes: k.axes(None)?,
        image_token: k.outer(&["image_token_id"])?,
        ..VisionSpec::plain(
            TOWER.name,
            (spec, patch),
            (
                Projector {
                    merging: Some(out),
                    between: Some((Norm::layer(PROJECTOR_EPS), Act::Gelu)),
                    inner: Some((k.u32("intermediate_size")?, act)),
                    gated: true,
                    ..Projector::PLAIN
                },
                out,
            ),
            Script::Plain("<|image|>"),
        )
    })
}
