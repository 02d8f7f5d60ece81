//! Configurations of one key more or less than usual: the right layers, or refused by name.

use tokenmill_ir::{
    Act, Checkpoint, Container, Extent, GateAct, Mask, Meta, MetaValue, TensorInfo,
};
use tokenmill_quant::FormatId;

use super::spec_of;
use crate::classes::literal;
use crate::error::ModelError;
use crate::spec::*;

/// A map of lines `key = value`, dots being steps into maps.
fn meta(text: &str) -> Meta {
    let mut map = Meta::new();
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty()) {
        let (key, value) = line.split_once(" = ").expect("key = value");
        put(&mut map, key, literal(value));
    }
    map
}

fn put(map: &mut Meta, key: &str, value: MetaValue) {
    let Some((head, rest)) = key.split_once('/') else {
        map.insert(key.to_owned(), value);
        return;
    };
    let mut inner = match map.get(head) {
        Some(MetaValue::Map(inner)) => (**inner).clone(),
        _ => Meta::new(),
    };
    put(&mut inner, rest, value);
    map.insert(head.to_owned(), MetaValue::Map(Box::new(inner)));
}

fn checkpoint(container: Container, meta: Meta, names: &[&str]) -> Checkpoint {
    let tensor = |name: &&str| TensorInfo {
        name: (*name).to_owned(),
        format: FormatId::F32,
        shape: vec![100, 64],
        extent: Extent { file: 0, offset: 0, len: 0 },
        order: None,
    };
    // A file of four layers has at least as many tensors.
    let others = ["layer.0", "layer.1", "layer.2", "layer.3"];
    let all = names.iter().chain(&others).map(tensor).collect();
    Checkpoint::new(container, meta, all).expect("names")
}

/// The spec of a config.json of that family with four layers, 64 columns and these lines.
fn hf(family: &str, lines: &str) -> Result<ModelSpec, ModelError> {
    let usual = "num_hidden_layers = 4\nhidden_size = 64\nnum_attention_heads = 4\n\
        num_key_value_heads = 2\n";
    // Latents have keys for every head.
    let keys = if family.starts_with("deepseek") { "num_key_value_heads = 4\n" } else { "" };
    let text = format!("model_type = \"{family}\"\n{usual}{keys}{lines}");
    let mut names =
        vec!["model.embed_tokens.weight", "model.layers.0.post_attention_layernorm.weight"];
    // Families whose flag for biases is usually set.
    if ["gpt_oss", "gpt_neox", "starcoder2", "qwen2_moe"].contains(&family) {
        let of = ["model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.q_proj.bias"];
        names.extend(of);
    }
    spec_of(&checkpoint(Container::Hf, meta(&text), &names))
}

/// The spec of a GGUF file of that architecture with these lines, which have no prefix.
fn gguf(arch: &str, lines: &str) -> Result<ModelSpec, ModelError> {
    let usual = "block_count = 4\nembedding_length = 64\nattention.head_count = 4\n\
        feed_forward_length = 96\ncontext_length = 512\n\
        attention.layer_norm_rms_epsilon = 1e-6\n";
    let mut map = Meta::new();
    map.insert("general.architecture".into(), MetaValue::Str(arch.into()));
    for (key, value) in meta(&format!("{usual}{lines}")).iter() {
        map.insert(format!("{arch}.{key}"), value.clone());
    }
    spec_of(&checkpoint(Container::Gguf, map, &["token_embd.weight"]))
}

fn attentions(mut spec: ModelSpec) -> Vec<Attention> {
    spec.attention_mut().map(|(_, a)| a.clone()).collect()
}

/// The window of each layer; 0 where there is none.
fn windows(spec: ModelSpec) -> Vec<u32> {
    let window = |a: &Attention| match a.mask {
        Mask::Window(w) | Mask::Chunk(w) => w,
        _ => 0,
    };
    attentions(spec).iter().map(window).collect()
}

const MIXED: &str = "layer_types = [\"full_attention\", \"sliding_attention\", \
    \"sliding_attention\", \"full_attention\"]\n";

#[test]
fn windows_are_those_of_the_configuration() {
    for (family, lines, expect) in [
        ("mixtral", "sliding_window = 9", [9, 9, 9, 9]),
        ("mixtral", "", [0; 4]),
        ("mistral", "sliding_window = null", [0; 4]),
        ("mistral", "", [4096; 4]),
        ("ministral", &format!("{MIXED}sliding_window = 9"), [0, 9, 9, 0]),
        ("mistral", &format!("{MIXED}sliding_window = 9"), [0, 9, 9, 0]),
        ("qwen2", "sliding_window = 9", [0; 4]),
        ("qwen2", "use_sliding_window = true\nmax_window_layers = 3", [0, 0, 0, 4096]),
        ("qwen2", &format!("{MIXED}use_sliding_window = true\nsliding_window = 9"), [0, 9, 9, 0]),
        ("qwen3", &format!("{MIXED}use_sliding_window = true\nsliding_window = 9"), [0, 9, 9, 0]),
        ("qwen3_moe", "use_sliding_window = true\nsliding_window = 9", [9; 4]),
        ("qwen2_moe", "use_sliding_window = true\nsliding_window = 9", [9, 0, 9, 0]),
        ("gemma2", "sliding_window = 9", [9, 0, 9, 0]),
        ("gemma2", &format!("{MIXED}sliding_window = 9"), [0, 9, 9, 0]),
        ("gpt_oss", &format!("{MIXED}sliding_window = 9"), [0, 9, 9, 0]),
        ("smollm3", "sliding_window = 9\nuse_sliding_window = true", [0, 0, 0, 9]),
        ("smollm3", &format!("{MIXED}sliding_window = 9"), [0, 9, 9, 0]),
        ("cohere2", &format!("{MIXED}sliding_window = 9"), [0, 9, 9, 0]),
        ("gemma3_text", "sliding_window = 9\nsliding_window_pattern = 2", [9, 0, 9, 0]),
        ("llama4_text", "attention_chunk_size = null", [0; 4]),
        ("llama4_text", "attention_chunk_size = 9", [9, 9, 9, 0]),
        ("starcoder2", "sliding_window = 9", [9; 4]),
    ] {
        let spec = hf(family, lines).unwrap_or_else(|e| panic!("{family} {lines}: {e}"));
        assert_eq!(windows(spec), expect, "{family} {lines}");
    }
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    for (family, lines, key) in [
        ("qwen2", &*format!("{MIXED}sliding_window = 9"), "layer_types"),
        ("qwen2", "layer_types = [\"full_attention\"]", "layer_types"),
        ("ministral", "layer_types = [\"x\", \"x\", \"x\", \"x\"]", "layer_types"),
        ("gemma3_text", "use_bidirectional_attention = true", "use_bidirectional_attention"),
        ("gemma3_text", "attn_logit_softcapping = 5.0", "attn_logit_softcapping"),
        ("gemma", "use_bidirectional_attention = true", "use_bidirectional_attention"),
        ("deepseek_v2", "num_experts_per_tok = 3\nnorm_topk_prob = true", "norm_topk_prob"),
        ("deepseek_v2", "num_experts_per_tok = 3\ntopk_method = \"noaux_tc\"", "topk_method"),
        ("deepseek_v2", "num_experts_per_tok = 3\nscoring_func = \"sigmoid\"", "scoring_func"),
        ("deepseek_v3", "scoring_func = \"softmax\"", "scoring_func"),
        ("deepseek_v3", "moe_layer_freq = 2", "moe_layer_freq"),
        ("llama", "hidden_act = \"quick_gelu\"", "hidden_act"),
        ("llama", "partial_rotary_factor = 0.5", "partial_rotary_factor"),
        ("llama", "alibi = true", "alibi"),
        ("llama", "num_hidden_layers = 2000000000", "num_hidden_layers"),
        ("llama", "rope_scaling/rope_type = \"unheard-of\"", "rope_type"),
        ("llama", "rope_scaling/factor = 8.0", "factor"),
        (
            "llama",
            "rope_scaling/type = \"linear\"\nrope_scaling/factor = 2.0\n\
            rope_scaling/low_freq_factor = 3.0",
            "low_freq_factor",
        ),
        ("llama", "rope_parameters/full_attention/rope_theta = 5.0", "full_attention"),
        ("llama", "num_key_value_heads = 3", "num_key_value_heads"),
        ("phi3", "partial_rotary_factor = 0.7", "partial_rotary_factor"),
        ("gpt_neox", "rope_theta = 500.0", "rope_theta"),
        ("llama", "vocab_size = 5", "vocab_size"),
        ("qwen2", "is_causal = false", "is_causal"),
        ("gemma3_text", "rope_parameters/rope_theta = 500.0", "rope_parameters.rope_theta"),
        ("olmo3", "rope_theta = 10000.0", "rope_theta"),
        ("olmoe", "clip_qkv = 5.0", "clip_qkv"),
        ("llama", "attention_bias = true", "attention_bias"),
        ("starcoder2", "use_bias = false", "use_bias"),
        ("llama", "rope_theta = null", "rope_theta"),
        ("qwen2", "rms_norm_eps = null", "rms_norm_eps"),
        ("mamba2", "expand = 3", "head_dim"),
        ("cohere", "use_qk_norm = true", "use_qk_norm"),
        ("gpt2", "add_cross_attention = true", "add_cross_attention"),
        ("bert", "is_decoder = true", "is_decoder"),
        ("bert", "position_embedding_type = \"relative_key\"", "position_embedding_type"),
        ("nomic_bert", "rotary_emb_interleaved = true", "rotary_emb_interleaved"),
        ("nomic_bert", "n_embd = 128", "n_embd"),
        ("qwen3_next", "hidden_act = \"gelu\"", "hidden_act"),
        ("stablelm", "use_parallel_residual = true", "use_parallel_residual"),
        ("exaone4", "sliding_window_pattern = \"LLG\"", "sliding_window_pattern"),
    ] {
        match hf(family, lines) {
            Err(e) => assert!(e.to_string().contains(key), "{family} {lines}: {e}"),
            Ok(_) => panic!("{family} {lines}: taken"),
        }
    }
}

const YARN: &str = "rope_scaling/rope_type = \"yarn\"\nrope_scaling/factor = 4.0\n";

#[test]
fn the_key_that_is_wrong_is_the_one_that_is_told() {
    for (family, lines, told) in [
        ("llama", "rope_theta = 1e-45", "'rope_theta': expected a number from 1 to 1e15"),
        ("llama", "rope_scaling/rope_theta = 0.1", "'rope_scaling.rope_theta': expected a number"),
        ("gemma3_text", "rope_local_base_freq = 1e-45", "'rope_local_base_freq': expected a n"),
        ("llama", "rope_scaling = 3", "'rope_scaling': expected a map, found 3"),
        ("llama", "rope_scaling = [1, 2]", "'rope_scaling': expected a map, found a list of 2"),
        ("gemma3_text", "rope_parameters = \"x\"", "'rope_parameters': expected a map, found the"),
        ("llama", "text_config = 5", "'text_config': expected a map, found 5"),
        (
            "llama",
            &*format!("{YARN}rope_scaling/attention_factor = 1e30"),
            "'rope_scaling.attention_factor': expected a number from 0.001 to 1000, found 1e30",
        ),
        ("llama", &*format!("{YARN}rope_theta = 1"), "the frequency of a rotation = NaN of pair"),
        ("granite", "logits_scaling = 0", "'logits_scaling': expected a number from"),
        ("granite", "embedding_multiplier = 1e30", "'embedding_multiplier': expected a number"),
        ("gemma2", "query_pre_attn_scalar = -4", "'query_pre_attn_scalar': expected a number"),
        ("llama", "rms_norm_eps = 0", "'rms_norm_eps': expected a number from 1e-30 to 1"),
        ("llama", "head_dim = 3", "head_dim = 3 of 3 columns"),
        ("llama", "hidden_size = 12", "hidden_size = 3 of 3 columns"),
        ("qwen3_moe", "num_local_experts = 9000", "'num_local_experts': expected a whole number"),
        ("qwen3_moe", "num_experts = 9000", "'num_experts': expected a whole number"),
        ("mixtral", "num_local_experts = 0", "'num_local_experts': expected a whole number"),
        ("mixtral", "num_local_experts = 1", "2 of 1 experts (num_local_experts)"),
        ("llama", "hidden_act = \"\"", "hidden_act = \"\" is not supported"),
        ("llama", "hidden_act = \"a\u{1}b\"", "hidden_act = \"a\\u{1}b\" is not supported"),
    ] {
        let error = hf(family, lines).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(told), "{family} {lines}: {error}");
    }
    for (arch, lines, told) in [
        ("llama", "attention.value_length = -1", "'llama.attention.value_length': expected a who"),
        ("llama", "rope.scaling.factor = -1", "'llama.rope.scaling.factor': expected a number"),
        (
            "llama",
            "rope.scaling.type = \"none\"\nrope.scaling.factor = -1",
            "'llama.rope.scaling.factor': expected a number from 0 to 1e6, found -1",
        ),
        ("llama", "rope.scaling.attn_factor = 1e30", "'llama.rope.scaling.attn_factor': expected"),
        ("llama", "rope.freq_base = 1e-4", "'llama.rope.freq_base': expected a number from 1 to"),
        ("llama", "rope.dimension_count = 5", "llama.rope.dimension_count = 5 of 16 columns"),
        (
            "gemma3",
            "attention.sliding_window = 9\nrope.freq_base_swa = 1e-45",
            "rope.freq_base_swa",
        ),
    ] {
        let error = gguf(arch, lines).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(told), "{arch} {lines}: {error}");
    }
}

#[test]
fn keys_that_change_nothing_are_passed_over() {
    let harmless = "torch_dtype = \"bfloat16\"\ntransformers_version = \"4.50.0\"\n\
        use_cache = false\npretraining_tp = 2\ninitializer_range = 0.5\n\
        attention_dropout = 0.1\npad_token_id = 3\n_name_or_path = \"a/name\"\n\
        unsloth_version = \"2025.1\"\nauto_map/AutoModel = \"x\"\nfoo_bar = 3\n\
        rope_scaling = null\nid2label/0 = \"a\"";
    for family in ["llama", "qwen2", "gemma2", "mixtral", "phi3", "granite", "deepseek_v3"] {
        hf(family, harmless).unwrap_or_else(|e| panic!("{family}: {e}"));
    }
    hf("gpt_neox", "is_decoder = true").expect("it is one anyway");
}

#[test]
fn silence_means_the_defaults_of_the_class() {
    let gemma3 = attentions(hf("gemma3_text", "").expect("sparse"));
    let thetas: Vec<f64> = gemma3.iter().flat_map(|a| &a.rope).map(|r| r.theta).collect();
    assert_eq!(thetas, [1e4; 4]);
    assert_eq!((gemma3[0].heads, gemma3[0].head_dim, gemma3[0].scale), (4, 256, 1.0 / 16.0));
    let neox = attentions(hf("gpt_neox", "").expect("sparse"));
    assert_eq!(neox[0].rope.as_ref().map(|r| r.dims), Some(4));
    let cohere = attentions(hf("cohere", "").expect("sparse"));
    assert_eq!(cohere[0].rope.as_ref().map(|r| r.theta), Some(500_000.0));
    let oss = attentions(hf("gpt_oss", "").expect("sparse"));
    let stretch = oss[0].rope.as_ref().map(|r| r.scaling.clone());
    assert!(matches!(stretch, Some(RopeScaling::Yarn { truncate: false, factor: 32.0, .. })));
}

#[test]
fn bases_are_found_wherever_they_stand() {
    let theta = |family: &str, lines: &str| -> f64 {
        let all = attentions(hf(family, lines).unwrap_or_else(|e| panic!("{family} {lines}: {e}")));
        all[3].rope.as_ref().map_or(0.0, |r| r.theta)
    };
    for (family, lines, expect) in [
        ("llama", "rope_scaling/rope_theta = 5e4", 5e4),
        ("llama", "rope_parameters/rope_theta = 5e4\nrope_theta = 3.0", 5e4),
        ("llama", "rope_theta = 3e3", 3e3),
        ("gpt_neox", "rotary_emb_base = 700", 700.0),
        ("gemma3_text", "sliding_window_pattern = 4\nrope_theta = 5e4", 5e4),
        ("gemma3_text", "sliding_window_pattern = 5\nrope_local_base_freq = 5e3", 5e3),
    ] {
        assert_eq!(theta(family, lines), expect, "{family} {lines}");
    }
}

#[test]
fn contexts_end_where_short_factors_do() {
    let factors = "rope_scaling/type = \"longrope\"\nrope_scaling/short_factor = \
        [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]\n\
        rope_scaling/long_factor = [2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]\n";
    let lines = format!("{factors}original_max_position_embeddings = 64\n");
    assert_eq!(hf("llama", &lines).expect("known").context, 64);
    let inside = format!("{factors}rope_scaling/original_max_position_embeddings = 64\n");
    assert_eq!(hf("llama", &inside).expect("known").context, 64);
    let short = inside.replace("1.6, 1.7", "1.6");
    assert!(hf("llama", &short).is_err(), "factors for too few pairs");
}

#[test]
fn activations_are_those_named() {
    for family in ["llama", "gemma2", "qwen3_moe", "mixtral", "deepseek_v3", "granitemoe", "olmo2"]
    {
        let key = if family == "gemma2" { "hidden_activation" } else { "hidden_act" };
        let mut spec = hf(family, &format!("{key} = \"relu2\"")).expect("known");
        for (_, ffn) in spec.ffn_mut() {
            let act = match ffn {
                Ffn::Gated { act, .. } => *act,
                Ffn::Experts(e) => e.act,
                other => panic!("{family}: {other:?}"),
            };
            assert_eq!(act, GateAct::Plain(Act::ReluSquared), "{family}");
        }
    }
}

#[test]
fn deepseek_v2_keeps_groups_by_their_best_expert() {
    let lines = "topk_method = \"group_limited_greedy\"\nn_group = 4\ntopk_group = 2\n\
        num_experts_per_tok = 3\nq_lora_rank = null";
    let mut spec = hf("deepseek_v2", lines).expect("known");
    let groups = spec.ffn_mut().find_map(|(_, f)| match f {
        Ffn::Experts(e) => e.groups,
        _ => None,
    });
    assert_eq!(groups.map(|g| (g.groups, g.keep, g.best)), Some((4, 2, 1)));
}

#[test]
fn gguf_keys_are_read_or_refused() {
    for (arch, lines, key) in [
        ("llama", "foo.bar = 3", "foo.bar"),
        ("llama", "attention.sliding_window = 9", "attention.sliding_window"),
        ("llama", "rope.scaling.attn_factor = 1.2", "attn_factor"),
        ("llama", "rope.scaling.type = \"longrope\"", "rope.scaling.type"),
        ("llama", "attention.causal = false", "attention.causal"),
        ("llama", "attn_logit_softcapping = 9.0", "attn_logit_softcapping"),
        ("llama", "rope.dimension_count = 32", "rope.dimension_count"),
        (
            "qwen3moe",
            "expert_count = 8\nexpert_used_count = 2\nexpert_gating_func = 9",
            "expert_gating_func",
        ),
    ] {
        match gguf(arch, lines) {
            Err(e) => assert!(e.to_string().contains(key), "{arch} {lines}: {e}"),
            Ok(_) => panic!("{arch} {lines}: taken"),
        }
    }
    let scaling = |lines: &str| {
        let all = attentions(gguf("llama", lines).unwrap_or_else(|e| panic!("{lines}: {e}")));
        all[0].rope.as_ref().map(|r| r.scaling.clone())
    };
    assert_eq!(scaling("rope.scaling.factor = 4.0"), Some(RopeScaling::Linear { factor: 4.0 }));
    let yarn = "rope.scaling.type = \"yarn\"\nrope.scaling.factor = 4.0\n";
    let magnitude = |more: &str| match scaling(&format!("{yarn}{more}")) {
        Some(RopeScaling::Yarn { magnitude, .. }) => magnitude,
        other => panic!("{other:?}"),
    };
    let usual = 1.0 + 0.1 * 4f32.ln();
    assert_eq!(magnitude(""), usual);
    assert_eq!(magnitude("rope.scaling.yarn_log_multiplier = 1.0"), 1.0);
    assert_eq!(magnitude("rope.scaling.attn_factor = 0.5"), 0.5 * usual);
}

#[test]
fn a_null_flag_is_false() {
    let normalised = |value: &str| {
        let lines = format!("norm_topk_prob = {value}\nfirst_k_dense_replace = 0\n");
        let mut spec = hf("deepseek_v3", &lines).unwrap_or_else(|e| panic!("{value}: {e}"));
        let found = spec.ffn_mut().find_map(|(_, f)| match f {
            Ffn::Experts(e) => Some(e.normalise),
            _ => None,
        });
        found.expect("experts")
    };
    assert_eq!(["true", "false", "null"].map(normalised), [true, false, false]);
}
