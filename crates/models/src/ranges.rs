//! How large the numbers of a model file may be that are not counted: one list. Being finite is not
//! enough: a base of 1e-45 or a factor of 1e30 makes a model that answers NaN, so each has bounds
//! far around what models have, and within them products stay finite in 32 bits.

use tokenmill_ir::{MetaError, MetaValue};

use crate::limits::{CONTEXT, HEAD_COLUMNS};

/// Names of numbers (in GGUF behind the architecture's prefix), the least and the most.
type Row = (&'static [&'static str], f64, f64);

const TABLE: &[Row] = &[
    // Added under a root: with nothing there a row of zeros is divided by zero.
    (
        &[
            "rms_norm_eps",
            "norm_eps",
            "layer_norm_eps",
            "layer_norm_epsilon",
            "norm_epsilon",
            "block_norm_eps",
            "attention.layer_norm_epsilon",
            "attention.layer_norm_rms_epsilon",
        ],
        1e-30,
        1.0,
    ),
    (&["attn_logit_softcapping", "final_logit_softcapping"], 1e-3, 1e6),
    // Bases of rotations: below 1 frequencies would grow from pair to pair.
    (
        &[
            "rope_theta",
            "local_rope_theta",
            "global_rope_theta",
            "rope_local_base_freq",
            "rotary_emb_base",
            "rope.freq_base",
            "rope.freq_base_swa",
            "rope.freq_base_local",
            "rope.local.freq_base",
            "rope.global.freq_base",
        ],
        1.0,
        1e15,
    ),
    // How rotations are stretched. (GGUF: 0 is none.)
    (&["factor", "short_factor", "long_factor"], 1e-3, 1e6),
    (&["rope.scaling.factor", "rope.scale_linear"], 0.0, 1e6),
    (&["low_freq_factor", "high_freq_factor"], 1e-3, 1e6),
    (&["beta_fast", "beta_slow"], 0.0, 1e6),
    (&["rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"], 1e-3, 1e6),
    (&["attention_factor", "rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"], 1e-3, 1e3),
    (&["mscale", "mscale_all_dim", "rope.scaling.yarn_log_multiplier"], 0.0, 1e3),
    (
        &[
            "original_max_position_embeddings",
            "rope.scaling.original_context_length",
            "rope.scaling.orig_ctx_len",
        ],
        1.0,
        CONTEXT as f64,
    ),
    (&["attention.temperature_length"], 0.0, CONTEXT as f64),
    (&["partial_rotary_factor", "rotary_pct"], 0.0, 1.0),
    (&["rotary_dim"], 0.0, HEAD_COLUMNS as f64),
    // Divided by, or their root is.
    (&["query_pre_attn_scalar", "logits_scaling"], 1e-6, 1e9),
    (&["swiglu_limit"], 0.0, 1e9),
    (&["time_step_limit"], 0.0, 1e6),
    // (Parts of normally distributed numbers; 1 would be beyond all deviations.)
    (&["activation_sparsity_pattern"], 0.0, 0.999_999),
    // (Deviations from the mean: those of layers without any lie below all numbers.)
    (&["activation_sparsity_scale"], f64::NEG_INFINITY, 10.0),
];

/// Any other: factors and their like.
const OTHER: f64 = 1e6;

/// A number of a file, within the bounds of its name: that of `key`, which is called `short` here.
///
/// # Errors
/// [`MetaError::Bounds`].
pub fn real(key: &str, short: &str, value: &MetaValue) -> Result<f64, MetaError> {
    let (least, most) = bounds(short);
    value.as_f64().filter(|x| (least..=most).contains(x)).ok_or_else(|| MetaError::Bounds {
        key: key.to_owned(),
        bounds: [least, most].map(|x| MetaValue::Float(x).told()).join(" to "),
        found: value.told(),
    })
}

/// The least and the most that a number of that name may be.
pub fn bounds(short: &str) -> (f64, f64) {
    let row = TABLE.iter().find(|(names, ..)| names.contains(&short));
    row.map_or((-OTHER, OTHER), |(_, least, most)| (*least, *most))
}

/// Whether a name has bounds of its own.
pub fn has(short: &str) -> bool {
    TABLE.iter().any(|(names, ..)| names.contains(&short))
}

/// Names that have bounds.
#[cfg(test)]
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().flat_map(|row| row.0).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classes::Class;

    #[test]
    fn numbers_that_give_nothing_finite_are_refused_by_name() {
        for (name, value, expect) in [
            ("rope_theta", 1e-45, "expected a number from 1 to 1e15, found 1e-45"),
            ("rope_theta", 0.5, "expected a number from 1 to 1e15, found 0.5"),
            ("rope.freq_base_swa", -1e4, "from 1 to 1e15, found -10000"),
            ("rms_norm_eps", 0.0, "from 1e-30 to 1, found 0"),
            ("rms_norm_eps", 2.0, "from 1e-30 to 1, found 2"),
            ("attention_factor", 1e30, "from 0.001 to 1000, found 1e30"),
            ("rope.scaling.attn_factor", 0.0, "from 0.001 to 1000, found 0"),
            ("rope.scaling.factor", -1.0, "from 0 to 1e6, found -1"),
            ("query_pre_attn_scalar", -4.0, "from 1e-6 to 1e9, found -4"),
            ("partial_rotary_factor", 1.5, "from 0 to 1, found 1.5"),
            ("rotary_dim", 5000.0, "from 0 to 4096, found 5000"),
            ("embedding_multiplier", 1e30, "from -1e6 to 1e6, found 1e30"),
            ("embedding_multiplier", f64::NAN, "from -1e6 to 1e6, found NaN"),
            ("activation_sparsity_pattern", 1.0, "from 0 to 0.999999, found 1"),
        ] {
            let told = real("k", name, &MetaValue::Float(value)).unwrap_err().to_string();
            assert!(told.starts_with("key 'k': ") && told.contains(expect), "{name}: {told}");
        }
        let text = real("k", "factor", &MetaValue::Str("4".into())).unwrap_err().to_string();
        assert!(text.ends_with("found the text \"4\""), "{text}");
        for (name, value) in [("rope_theta", 45_845_902_361.0), ("rms_norm_eps", 1e-12)] {
            assert_eq!(real("k", name, &MetaValue::Float(value)), Ok(value));
        }
        assert_eq!(real("k", "x", &MetaValue::Int(-4)), Ok(-4.0));
    }

    #[test]
    fn defaults_of_classes_are_within_bounds() {
        for arch in crate::ARCHS {
            for class in arch.spellings.iter().filter_map(|s| Class::of(s)) {
                for (key, value) in class.fields.iter() {
                    if has(key) && value.as_f64().is_some() {
                        real(key, key, value).unwrap_or_else(|e| panic!("{}: {e}", class.name));
                    }
                }
            }
        }
    }
}
