//! Keys that nobody reads and that may be passed over: which, with which values, and why. A key
//! that is neither read nor here is refused, as a tensor that nobody uses is.
//!
//! The rule for config.json: what the family's configuration class in transformers knows
//! ([`Class`]) is read, or neutral, or at the class's own default; all else is refused by name.
//! A key that the class does not know is passed over there and here (`inspect` lists such keys),
//! unless [`OTHERS`] has it: those change numbers in the models' own code. For GGUF everything
//! behind the architecture's prefix must be read or neutral.

use tokenmill_ir::MetaValue;

use crate::classes::Class;
use crate::error::ModelError;
use crate::limits::Whole;
use crate::params::{Params, shown};
use crate::ranges;

/// A key (`*` before or behind it: any that ends or begins so), values it may have (none: any).
type Row = (&'static str, &'static [&'static str], &'static str);

/// Of config.json, known to the class.
const NEUTRAL: &[Row] = &[
    ("*dropout*", &[], "used in training only"),
    ("*_pdrop", &[], "used in training only"),
    ("*_token_id", &[], "which tokens begin, end and fill is no matter of the layers"),
    ("initializer_*", &[], "how training begins"),
    ("rescale_prenorm_residual", &[], "how training begins"),
    ("time_step_min", &[], "how training begins"),
    ("time_step_max", &[], "how training begins"),
    ("time_step_floor", &[], "how training begins"),
    ("time_step_rank", &[], "of Mamba 1; not read by Mamba-2"),
    ("router_*", &[], "losses and noise of training"),
    ("altup_coef_clip", &[], "used in training only"),
    ("output_*", &[], "what a caller gets beside the logits"),
    ("use_cache", &[], "a cache does not change results"),
    ("num_logits_to_keep", &[], "which rows a caller gets"),
    ("*chunk_size", &[], "recurrences are computed in parts of that size"),
    ("chunk_size_feed_forward", &[], "tokens are computed in parts of that size"),
    ("pretraining_tp", &[], "products were split in training; the sums are the same"),
    ("residual_in_fp32", &[], "precision of an implementation"),
    ("reorder_and_upcast_attn", &[], "precision and order of an implementation"),
    ("deterministic_flash_attn", &[], "choice of an implementation"),
    ("vocab_size*", &[], "the rows of the embedding count"),
    ("num_mtp_layers", &[], "layers that only draft are not computed"),
    ("summary_*", &[], "of a head that is not computed"),
    ("sparse_pred*", &[], "of a head that is not computed"),
    ("decoder_bias", &[], "of a head that is not computed"),
    ("classifier_*", &[], "of a head; read where it is computed"),
    ("type_vocab_size", &[], "the rows of the table count"),
    ("layers_block_type", &[], "says what every layer of the family is"),
    ("original_max_position_embeddings", &[], "read where a rotation is stretched"),
    ("is_decoder", &[], "read where it counts"),
];

/// Of config.json, not known to the class: families (none: all), key, values, why others matter.
const OTHERS: &[(&[&str], Row)] = &[
    (&[], ("moe_layer_freq", &["1", "null"], "which layers have experts")),
    (&["deepseek_v2"], ("scoring_func", &["softmax", "null"], "how experts are scored")),
    (
        &["deepseek_v3", "glm4_moe", "minimax_m2"],
        ("scoring_func", &["sigmoid", "null"], "how experts are scored"),
    ),
    (&[], ("topk_method", &["noaux_tc", "null"], "how experts are chosen")),
    (&["minimax_m2"], ("use_qk_norm", &["true", "null"], "norms of queries and keys")),
    (&["minimax_m2"], ("qk_norm_type", &["per_layer", "null"], "norms of queries and keys")),
    (&["minimax_m2"], ("use_routing_bias", &["true", "null"], "a bias on the choice")),
    (&["minimax_m2"], ("shared_intermediate_size", &["0", "null"], "a shared expert")),
    (&["cohere2"], ("use_qk_norm", &["false", "null"], "norms of queries and keys")),
    (&["cohere2"], ("use_parallel_block", &["true", "null"], "how parts join")),
    (&["cohere2"], ("use_gated_activation", &["true", "null"], "the feed-forward part")),
    (&["cohere2"], ("rotary_pct", &["1", "null"], "the rotated part of a head")),
    (&["lfm2"], ("block_use_swiglu", &["true", "null"], "the feed-forward part")),
    (&["lfm2"], ("use_pos_enc", &["true", "null"], "whether there are positions")),
    (&["starcoder2"], ("norm_type", &["layer_norm", "null"], "which norm")),
    (&["starcoder2"], ("mlp_type", &["default", "null"], "the feed-forward part")),
    (&["granitemoehybrid"], ("normalization_function", &["rmsnorm", "null"], "which norm")),
    (&["mamba2"], ("rms_norm", &["true", "null"], "whether there is a norm")),
    (
        &["bert", "xlm-roberta", "roberta", "camembert", "electra"],
        ("position_embedding_type", &["absolute", "null"], "what positions are"),
    ),
    (&["nomic_bert"], ("causal", &["false", "null"], "which tokens are seen")),
    (&["nomic_bert"], ("prenorm", &["false", "null"], "where norms stand")),
    (&["nomic_bert"], ("activation_function", &["swiglu", "null"], "the feed-forward part")),
    (&["nomic_bert"], ("rotary_emb_fraction", &["1", "null"], "the rotated part of a head")),
    (&["nomic_bert"], ("rotary_emb_interleaved", &["false", "null"], "which columns pair")),
    (&["nomic_bert"], ("rotary_emb_scale_base", &["null"], "how the rotation fades")),
    (&["nomic_bert"], ("rotary_scaling_factor", &["1", "null"], "how the rotation grows")),
    (&["qwen3_5_text", "qwen3_5_moe_text"], ("attn_output_gate", &["true", "null"], "a gate")),
    (&[], ("use_logn_attn", &["false", "null"], "queries grow with the length")),
    (&[], ("use_dynamic_ntk", &["false", "null"], "the rotation grows with the length")),
    (&[], ("alibi", &["false", "null"], "positions as biases of scores")),
    (&[], ("clip_qkv", &["null"], "bounds of queries, keys and values")),
];

/// Of GGUF, behind the architecture's prefix or `general.`.
const GGUF: &[Row] = &[
    ("general.type", &["model"], "adapters and projectors are no models"),
    ("general.*", &[], "where a model comes from and how it is stored"),
    ("vocab_size", &[], "the rows of the embedding count"),
    ("tensor_data_layout", &[], "of the first files; names say how rows lie"),
    ("attention.value_length*", &[], "the value projection's rows count, keys are as wide"),
    ("attention.key_length_swa", &[], "read where kinds of layers differ"),
    ("rope.dimension_count_swa", &[], "read where kinds of layers differ"),
    ("rope.dimension_sections", &[], "for text all sections have one position"),
    ("rope.scaling.finetuned", &[], "whether training knew the stretching"),
    ("rope.scaling.yarn_beta_*", &[], "read where YaRN stretches"),
    ("rope.scaling.yarn_ext_factor", &["-1", "0"], "no YaRN"),
    ("rope.scaling.yarn_attn_factor", &["1"], "no YaRN"),
    ("rope.scaling.yarn_log_multiplier", &["0"], "no YaRN"),
    ("rope.scaling.original_context_length", &[], "read where a rotation is stretched"),
    ("rope.scaling.orig_ctx_len", &[], "an old name, beside the new one"),
    ("expert_count", &["0"], "no experts"),
    ("expert_used_count", &["0"], "no experts"),
    ("expert_shared_count", &["0"], "no shared expert"),
    ("expert_shared_feed_forward_length", &["0"], "no shared expert"),
    ("nextn_predict_layers", &[], "layers that only draft are not computed"),
    ("interleave_moe_layer_step", &["0", "1"], "every layer has the same parts"),
    ("n_deepstack_layers", &[], "inputs of images"),
    ("deepstack_*", &[], "inputs of images"),
    ("classifier.*", &[], "of a head; read where it is computed"),
    ("pooling_type", &[], "read for every model"),
    ("vision.*", &[], "of images"),
    ("mm.*", &[], "of images"),
    ("clip.*", &[], "of images"),
    ("image_token_*", &[], "of images"),
    ("image_mean", &[], "how images are prepared"),
    ("image_std", &[], "how images are prepared"),
    ("image_min_pixels", &[], "how images are prepared"),
    ("image_max_pixels", &[], "how images are prepared"),
    ("preproc_*", &[], "how images are prepared"),
    ("spatial_merge_size", &[], "of images"),
    ("audio.*", &[], "of sound"),
    // Of ollama's converter.
    ("attention.head_dim", &[], "beside attention.key_length, which counts"),
    ("head_dim", &[], "beside attention.key_length, which counts"),
    ("max_position_embeddings", &[], "beside context_length, which counts"),
    ("normalize_embeddings", &["true"], "they are"),
    ("rope.mrope_*", &[], "for text all sections have one position"),
    ("altup.correct_scale", &["true"], "as in the family's models"),
    ("altup.lr_multiplier", &[], "used in training only"),
    ("feed_forward_length", &["0"], "no feed-forward part"),
    ("attention.head_count*", &["0"], "no attention"),
    ("attention.max_alibi_bias", &["0"], "no such biases"),
    ("attention.clamp_kqv", &["0"], "no bounds"),
    ("attention.sliding_window", &["0"], "no windows"),
    ("ssm.dt_b_c_rms", &["false"], "no such norms"),
];

/// Refuses what the file says and nobody has read.
///
/// # Errors
/// [`ModelError::Unsupported`] with the key and its value.
pub fn check(params: &Params, class: Option<&Class>, prefix: &str) -> Result<(), ModelError> {
    let gguf = !prefix.is_empty();
    for (key, value) in params.unread() {
        let short = key.strip_prefix(prefix).filter(|_| gguf).unwrap_or(key);
        let rows = if gguf { GGUF } else { NEUTRAL };
        let default = class.and_then(|c| c.fields.iter().find(|(k, _)| *k == key));
        let usual = default.is_some_and(|(_, usual)| same(usual, value));
        if !usual && !rows.iter().any(|row| allows(row, short, value)) && class.is_some() | gguf {
            return Err(ModelError::unsupported(params.spelled(key), shown(value)));
        }
        // What may have any value is still a number where its name stands for one.
        if rows.iter().any(|row| matches(row.0, short) && row.1.is_empty()) {
            match value {
                MetaValue::List(list) => list.iter().try_for_each(|v| number(params, key, v))?,
                value => number(params, key, value)?,
            }
        }
    }
    let Some(class) = class else { return Ok(()) };
    for (key, value) in params.foreign().iter() {
        let mut rows = OTHERS.iter().filter(|(families, row)| {
            (families.is_empty() || families.contains(&class.name)) && matches(row.0, key)
        });
        if rows.any(|(_, row)| !allows(row, key, value)) {
            return Err(ModelError::unsupported(key, shown(value)));
        }
    }
    Ok(())
}

/// Refuses what is no number within the limits of its name, if it has any.
fn number(params: &Params, key: &str, value: &MetaValue) -> Result<(), ModelError> {
    let short = params.short(key);
    if Whole::has(short) {
        params.whole(key, value)?;
    } else if ranges::has(short) {
        params.real(key, value)?;
    }
    Ok(())
}

/// Keys of the file that were passed over because nobody knows them.
pub fn unknown(params: &Params) -> impl Iterator<Item = &str> {
    const EVERYWHERE: &[&str] = &[
        "architectures",
        "model_type",
        "torch_dtype",
        "dtype",
        "transformers_version",
        "quantization*",
        "id2label",
        "label2id",
        "problem_type",
        "pooling",
        "return_dict",
        "is_encoder_decoder",
        "auto_map",
        "_*",
    ];
    let known = |key: &str| {
        NEUTRAL.iter().any(|row| matches(row.0, key)) || EVERYWHERE.iter().any(|k| matches(k, key))
    };
    params.foreign().iter().map(|(key, _)| key).filter(move |key| !known(key))
}

fn allows((pattern, values, _): &Row, key: &str, value: &MetaValue) -> bool {
    matches(pattern, key) && (values.is_empty() || values.contains(&shown(value).as_str()))
}

fn matches(pattern: &str, key: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(rest), Some(_)) => key.contains(rest.trim_end_matches('*')),
        (Some(end), None) => key.ends_with(end),
        (None, Some(start)) => key.starts_with(start),
        (None, None) => key == pattern,
    }
}

/// Whether a value is a default; false is what is not there.
fn same(usual: &MetaValue, value: &MetaValue) -> bool {
    match (usual, value) {
        (MetaValue::Null, MetaValue::Bool(false)) | (MetaValue::Bool(false), MetaValue::Null) => {
            true
        }
        _ => shown(usual) == shown(value),
    }
}
