//! Every key of a GGUF file behind its architecture's name, changed, taken out, or put where it is
//! absent: another model, a refusal, or a key of which this test says why it may be passed over.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokenmill_backend::reference::ReferenceDevice;
use tokenmill_files::OpenModel;
use tokenmill_golden_tests::{Change, Golden, Runner, Sweep, Variant, differs, with};
use tokenmill_ir::{Checkpoint, KvFormat, Meta, MetaValue, Mode, Program};
use tokenmill_models::{ModelError, ModelSpec, lower, spec_of};

/// Keys without the architecture's name, and why their value changes nothing.
const NEUTRAL: &[(&str, &str)] = &[
    ("vocab_size", "the rows of the embedding say it"),
    ("attention.value_length", "the rows of the value projection say it"),
    ("attention.value_length_swa", "the rows of the value projection say it"),
    ("rope.scaling.finetuned", "whether training knew the stretching"),
    ("rope.dimension_sections", "for text all sections have one position"),
    ("tensor_data_layout", "of the first files"),
    ("n_deepstack_layers", "images"),
    ("rope.scaling.yarn_log_multiplier", "counts with YaRN only, where the twins have it"),
    ("classifier.output_labels", "names"),
];

/// Keys that files of llama.cpp's converter have beside those of the twins, with a value that would
/// change numbers.
fn elsewhere() -> Vec<(&'static str, MetaValue)> {
    let number = MetaValue::Float;
    let text = |s: &str| MetaValue::Str(s.to_owned());
    vec![
        ("logit_scale", number(0.7)),
        ("attn_logit_softcapping", number(3.0)),
        ("router_logit_softcapping", number(3.0)),
        ("final_logit_softcapping", number(3.0)),
        ("residual_scale", number(0.7)),
        ("embedding_scale", number(1.7)),
        ("use_parallel_residual", MetaValue::Bool(true)),
        ("expert_weights_scale", number(1.7)),
        ("expert_group_count", MetaValue::Int(2)),
        ("expert_group_used_count", MetaValue::Int(1)),
        ("expert_group_scale", number(0.5)),
        ("expert_gating_func", MetaValue::Int(2)),
        ("leading_dense_block_count", MetaValue::Int(1)),
        ("moe_every_n_layers", MetaValue::Int(2)),
        ("interleave_moe_layer_step", MetaValue::Int(2)),
        ("full_attention_interval", MetaValue::Int(2)),
        ("swin_norm", MetaValue::Bool(true)),
        ("hidden_activation", text("relu")),
        ("swiglu_clamp_exp", number(0.5)),
        ("swiglu_clamp_shexp", number(0.5)),
        ("attention.max_alibi_bias", number(8.0)),
        ("attention.clamp_kqv", number(0.7)),
        ("attention.causal", MetaValue::Bool(false)),
        ("attention.sliding_window", MetaValue::Int(9)),
        ("attention.sliding_window_pattern", MetaValue::Int(2)),
        ("attention.scale", number(0.3)),
        ("attention.output_scale", number(0.3)),
        ("attention.temperature_length", MetaValue::Int(9)),
        ("attention.temperature_scale", number(0.3)),
        ("attention.shared_kv_layers", MetaValue::Int(1)),
        ("attention.indexer.top_k", MetaValue::Int(3)),
        ("rope.scaling.type", text("dynamic")),
        ("rope.scaling.factor", number(4.0)),
        ("rope.scale_linear", number(4.0)),
        ("rope.scaling.alpha", number(4.0)),
        ("rope.scaling.attn_factor", number(1.3)),
        ("rope.scaling.yarn_log_multiplier", number(0.3)),
        ("rope.scaling.yarn_ext_factor", number(0.3)),
        ("rope.scaling.yarn_attn_factor", number(0.3)),
        ("rope.dimension_count", MetaValue::Int(4)),
        ("rope.freq_base", number(700.0)),
        ("rope.freq_base_swa", number(700.0)),
        ("ssm.dt_b_c_rms", MetaValue::Bool(true)),
        ("pooling_type", MetaValue::Int(3)),
        ("a_key_of_next_year", MetaValue::Int(3)),
    ]
}

/// Keys that count in other families, or with other keys, and why they are idle in these.
const IDLE: &[(&str, &[&str], &str)] = &[
    ("attention.head_count_kv", &["deepseek_r1", "deepseek_v2"], "latents are one head"),
    ("attention.key_length", &["deepseek_r1", "deepseek_v2"], "its own key for latents counts"),
    (
        "attention.sliding_window",
        &["llama4_dense", "modernbert", "smollm3"],
        "llama.cpp gives these no window; an odd one reaches as far as the even one before",
    ),
    (
        "attention.sliding_window_pattern",
        &["qwen3_5", "qwen3_5_moe", "qwen3_next_80b"],
        "no windows",
    ),
    ("classifier.pooling_type", &["modernbert"], "no head"),
    ("context_length", &["phi3"], "the context ends where the short factors do"),
    ("expert_gating_func", &["llama4_dense"], "no experts"),
    ("expert_group_used_count", &["deepseek_v2", "glm4_moe"], "one group"),
    ("expert_used_count", &["granite4_dense"], "no experts"),
    (
        "feed_forward_length",
        &["gpt_oss", "granite4_dense", "minimax_m2", "qwen2_moe", "qwen3_30b", "qwen3_next_80b"],
        "every layer has experts, or a shared width of its own",
    ),
    (
        "full_attention_interval",
        &[
            "exaone4",
            "gemma3n",
            "gemma4",
            "gemma4_moe",
            "gemma4_small",
            "modernbert",
            "olmo3",
            "qwen3_5",
            "qwen3_5_moe",
            "qwen3_next_80b",
        ],
        "a list says it of every layer",
    ),
    ("hidden_activation", &["gpt_oss", "lfm2"], "llama.cpp reads it of encoders only"),
    ("rope.dimension_count", &["gpt2"], "no rotation"),
    ("rope.freq_base", &["gpt2", "granite4_dense", "granitemoehybrid"], "no rotation"),
    (
        "rope.scale_linear",
        &[
            "cohere",
            "cohere2",
            "deepseek_r1",
            "deepseek_v2",
            "gemma3",
            "gpt2",
            "gpt_oss",
            "granite4_dense",
            "granitemoehybrid",
            "modernbert",
            "nemotron",
            "olmo3",
        ],
        "an old name: the new one stands beside it, or the type is none",
    ),
    (
        "rope.scaling.attn_factor",
        &["deepseek_r1", "deepseek_v2", "gemma4", "gemma4_moe", "gemma4_small"],
        "not read: no converter writes it for these",
    ),
    (
        "rope.scaling.factor",
        &[
            "cohere",
            "cohere2",
            "gpt2",
            "granite4_dense",
            "granitemoehybrid",
            "modernbert",
            "nemotron",
        ],
        "the type is none, or there is no rotation",
    ),
    (
        "rope.scaling.type",
        &["exaone4", "gemma4", "gemma4_moe", "gemma4_small", "llama", "phi3"],
        "the frequencies stand in a tensor",
    ),
];

/// Another value of the same kind.
fn other(value: &MetaValue) -> Vec<MetaValue> {
    match value {
        MetaValue::Bool(b) => vec![MetaValue::Bool(!b)],
        MetaValue::Int(i) => vec![MetaValue::Int(i + 1), MetaValue::Int(i * 2)],
        MetaValue::Uint(u) => vec![MetaValue::Uint(u / 2)],
        MetaValue::Float(f) => vec![MetaValue::Float(f * 1.5 + 0.25)],
        MetaValue::Str(_) => vec![MetaValue::Str("unheard-of".to_owned())],
        MetaValue::List(items) => match items.iter().position(|x| *x != items[0]) {
            Some(_) => vec![MetaValue::List(items.iter().rev().cloned().collect())],
            None => vec![MetaValue::List(items.iter().flat_map(other).take(items.len()).collect())],
        },
        MetaValue::Map(_) | MetaValue::Null => Vec::new(),
    }
}

fn built(checkpoint: &Checkpoint) -> Result<(ModelSpec, Program), ModelError> {
    let spec = spec_of(checkpoint)?;
    let lowered = lower(&spec, checkpoint, KvFormat::F32)?;
    match lowered.unused.first() {
        Some(first) => Err(ModelError::UnusedTensors { count: 1, first: first.clone() }),
        None => Ok((spec, lowered.program)),
    }
}

/// Changes of one file: what is changed, and the metadata.
fn changes(meta: &Meta, arch: &str) -> Vec<(String, String, Meta)> {
    let mut all = Vec::new();
    for (key, value) in meta.iter() {
        let Some(short) = key.strip_prefix(arch).and_then(|k| k.strip_prefix('.')) else {
            continue;
        };
        for value in other(value).iter().filter(|v| *v != value) {
            all.push((format!("{short} = {value:?}"), short, with(meta, key, Some(value))));
        }
        all.push((format!("{short} taken out"), short, with(meta, key, None)));
    }
    let absent = elsewhere();
    for (short, value) in &absent {
        let key = format!("{arch}.{short}");
        if meta.get(&key).is_none() {
            all.push((format!("{short} = {value:?} put"), short, with(meta, &key, Some(value))));
        }
    }
    all.into_iter().map(|(what, short, meta)| (what, short.to_owned(), meta)).collect()
}

#[test]
fn every_key_of_a_gguf_file_counts() {
    let only = std::env::var("GOLDEN").ok();
    let mut ignored = Vec::new();
    for name in Golden::all().into_iter().filter(|n| only.as_ref().is_none_or(|o| o == n)) {
        let golden = Golden::read(&name);
        if !golden.has(Variant::Gguf) {
            continue;
        }
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let model = golden.open(Variant::Gguf, scratch.path());
        let base = match built(&model.checkpoint) {
            Ok(base) => base,
            Err(error) => {
                ignored.push(format!("{name} as it is: {error}"));
                continue;
            }
        };
        let arch = model.checkpoint.meta.str("general.architecture").expect("a name").to_owned();
        for (what, short, meta) in changes(&model.checkpoint.meta, &arch) {
            let mut changed = model.checkpoint.clone();
            changed.meta = meta;
            let found = catch_unwind(AssertUnwindSafe(|| built(&changed)));
            let Ok(found) = found else {
                ignored.push(format!("{name}: {what}: panic"));
                continue;
            };
            // (Where a key is taken out, its default may be what the file had.)
            let same = !what.ends_with("taken out") && found.is_ok_and(|found| found == base);
            let neutral = |(key, _): &(&str, &str)| *key == short;
            let idle = IDLE
                .iter()
                .any(|(key, families, _)| *key == short && families.contains(&name.as_str()));
            if same && !NEUTRAL.iter().any(neutral) && !idle {
                ignored.push(format!("{name}: {what}"));
            }
        }
    }
    assert!(ignored.is_empty(), "{} without effect\n{}", ignored.len(), ignored.join("\n"));
}

/// Keys of config.json that the converter writes as they are, and where.
const COPIED: &[(&str, &str)] = &[
    ("rope_theta", "rope.freq_base"),
    ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    ("norm_eps", "attention.layer_norm_rms_epsilon"),
    ("layer_norm_eps", "attention.layer_norm_epsilon"),
    ("layer_norm_epsilon", "attention.layer_norm_epsilon"),
    ("norm_epsilon", "attention.layer_norm_epsilon"),
    ("sliding_window", "attention.sliding_window"),
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("final_logit_softcapping", "final_logit_softcapping"),
    ("num_experts_per_tok", "expert_used_count"),
    ("routed_scaling_factor", "expert_weights_scale"),
    ("norm_topk_prob", "expert_weights_norm"),
    ("n_group", "expert_group_count"),
    ("topk_group", "expert_group_used_count"),
    ("attention_multiplier", "attention.scale"),
    ("residual_multiplier", "residual_scale"),
    ("embedding_multiplier", "embedding_scale"),
    ("logits_scaling", "logit_scale"),
    ("logit_scale", "logit_scale"),
    ("rope_scaling.factor", "rope.scaling.factor"),
    ("use_parallel_residual", "use_parallel_residual"),
];

/// The value of one changed key that the converter copies, with its key there.
fn copied(change: &Change) -> Option<(&'static str, MetaValue)> {
    let mut put = change.put.iter();
    let ((key, value), None) = (put.next()?, put.next()) else { return None };
    let (_, gguf) = COPIED.iter().find(|(hf, _)| hf == key)?;
    let value = match value {
        serde_json::Value::Bool(b) => MetaValue::Bool(*b),
        value => match value.as_i64() {
            Some(whole) => MetaValue::Int(whole),
            None => MetaValue::Float(value.as_f64()?),
        },
    };
    (change.drop.is_empty() && change.is.is_array()).then_some((*gguf, value))
}

/// Where a file with that metadata computes other numbers than recorded; nothing where it is
/// refused.
fn wrong(
    model: &OpenModel,
    meta: Meta,
    golden: &Golden,
    expected: &[(usize, usize, f32)],
) -> Option<String> {
    let mut checkpoint = model.checkpoint.clone();
    checkpoint.meta = meta;
    let (_, program) = built(&checkpoint).ok()?;
    let len = golden.ids.len();
    let device = ReferenceDevice::new(16);
    let run = Runner::new(&device, Mode::F32, &program, model, len as u32 + 1);
    let found = run.and_then(|mut run| run.feed(&golden.ids, len));
    let Ok(found) = found else { return Some("the device fails".to_owned()) };
    let cols = found.len() / len;
    let (r, c, x) = *expected.iter().find(|&&(r, c, x)| differs(found[r * cols + c], x))?;
    Some(format!("at {r}, {c}: {x} in transformers, {} here", found[r * cols + c]))
}

#[test]
fn a_changed_key_of_a_gguf_file_means_what_it_means_in_a_configuration() {
    let only = std::env::var("GOLDEN").ok();
    let (mut silent, mut tried) = (Vec::new(), 0);
    for name in Golden::all().into_iter().filter(|n| only.as_ref().is_none_or(|o| o == n)) {
        let golden = Golden::read(&name);
        let Some(sweep) = Sweep::read(&golden) else { continue };
        if !golden.has(Variant::Gguf) || golden.greedy.is_empty() {
            continue;
        }
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let model = golden.open(Variant::Gguf, scratch.path());
        let meta = &model.checkpoint.meta;
        let arch = meta.str("general.architecture").expect("a name");
        for change in &sweep.config {
            let Some((short, value)) = copied(change) else { continue };
            let key = format!("{arch}.{short}");
            // Stretched frequencies stand in a tensor, theta with them.
            let baked =
                short == "rope.freq_base" && model.checkpoint.tensor("rope_freqs.weight").is_some();
            if meta.get(&key).is_none() || baked {
                continue;
            }
            tried += 1;
            let changed = with(meta, &key, Some(&value));
            if let Some(how) = wrong(&model, changed, &golden, &change.places(&sweep.at)) {
                silent.push(format!("{name}: {key} = {value:?}: {how}"));
            }
        }
    }
    println!("{tried} changes tried");
    assert!(silent.is_empty(), "{} wrong in silence\n{}", silent.len(), silent.join("\n"));
}
