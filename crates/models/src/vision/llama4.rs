//! Llama 4: a tower over tiles of one size with a learned token behind the patches, rotations by columns
//! and rows beside learned positions; four neighbours side by side become a row by three products.

use tokenmill_ir::{Act, Mask, RopePairing};

use super::keys::Keys;
use super::{
    ClassToken, Learned, Patch, Projector, Script, Stretch, Tower, VisionSpec, attention, tower,
};
use crate::error::ModelError;
use crate::spec::{Axes, Ffn, Norm, RopeScaling, RopeSpec};

pub const TOWER: Tower = Tower { name: "llama4", spellings: &["llama4"], spec };

/// Of norms, in the family's code.
const EPS: f32 = 1e-5;

fn spec(k: &Keys<'_>) -> Result<VisionSpec, ModelError> {
    let (hidden, heads) = k.widths("hidden_size", "num_attention_heads", true)?;
    let norm = Norm::layer(EPS);
    let rope = RopeSpec {
        dims: hidden / heads,
        theta: k.theta()?,
        pairing: RopePairing::Interleaved,
        scaling: RopeScaling::None,
        axes: Axes::Columns,
    };
    let layers = |_| attention(hidden, heads, Some(rope.clone()), Mask::None);
    for (key, only) in [("hidden_act", "gelu"), ("vision_feature_select_strategy", "default")] {
        if let Some(other) = k.params().opt_str(key)?.filter(|found| *found != only) {
            return Err(ModelError::unsupported(key, other));
        }
    }
    // (Of the classes and the tensors, not read by the family's code.)
    for key in ["norm_eps", "multi_modal_projector_bias"] {
        k.params().note(key);
    }
    const COLUMNS: [&str; 2] = ["vision_output_dim", "projector_output_dim"];
    let [whole, projected] = [k.u32(COLUMNS[0])?, k.u32(COLUMNS[1])?];
    if whole != projected {
        let found = format!("{whole} beside {} {projected}", COLUMNS[1]);
        return Err(ModelError::unsupported(COLUMNS[0], found));
    }
    let ffn = Ffn::Plain { width: k.u32("intermediate_size")?, act: Act::Gelu };
    let mut spec = tower((hidden, k.u32("num_hidden_layers")?), norm, layers, &ffn);
    spec.embed.norm = Some(norm);
    spec.final_norm = Some(norm);
    let size = k.side("patch_size")?;
    let side = k.side("image_size")? / size;
    let merge = k.merge(k.params().opt_f64("pixel_shuffle_ratio")?, "pixel_shuffle_ratio", side)?;
    let inner = Some((k.u32("projector_input_dim")?, Act::Gelu));
    let second = Some((k.u32("projector_output_dim")?, Act::Gelu));
    Ok(VisionSpec {
        positions: Some(Learned { side, stretch: Stretch::None, behind_norm: false }),
        class_token: ClassToken::Last,
        origin: 1,
        merge,
        side: Some(side),
        image_token: k.outer(&["image_token_index", "image_token_id"])?,
        ..VisionSpec::plain(
            TOWER.name,
            (spec, Patch { channels: k.u32("num_channels")?, frames: 1, size, pixels: false }),
            (Projector { inner, second, ..Projector::PLAIN }, k.text_hidden()?),
            Script::Separated,
        )
    })
}
