//! How model files spell their tensors: one table of roles, every spelling of each. The first
//! spelling present in the file wins, so most architectures need no names of their own.

use tokenmill_ir::{Checkpoint, Container, TensorInfo};

use crate::error::ModelError;

/// What a tensor is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // each is a row of NAMES, whose spellings are its documentation
pub enum Role {
    Embed,
    EmbedPositions,
    EmbedTypes,
    EmbedNorm,
    RopeFactors,
    FinalNorm,
    Head,
    MixerNorm,
    MixerPostNorm,
    FfnNorm,
    FfnPostNorm,
    Q,
    K,
    V,
    Qkv,
    O,
    QNorm,
    KNorm,
    Sinks,
    QLoraDown,
    QLoraNorm,
    QLoraUp,
    KvLoraDown,
    KvLoraNorm,
    KvLoraUp,
    DeltaIn,
    DeltaBetaAlpha,
    DeltaConv,
    DeltaDtBias,
    DeltaALog,
    DeltaNorm,
    DeltaOut,
    MambaIn,
    MambaConv,
    MambaDtBias,
    MambaALog,
    MambaSkip,
    MambaNorm,
    MambaOut,
    ConvIn,
    ConvTaps,
    ConvOut,
    Gate,
    Up,
    GateUp,
    Down,
    Router,
    RouterChoiceBias,
    ExpertGate,
    ExpertUp,
    ExpertDown,
    ExpertsGate,
    ExpertsUp,
    ExpertsGateUp,
    ExpertsDown,
    SharedGate,
    SharedUp,
    SharedDown,
    SharedRouter,
}

/// Role, spellings in Hugging Face files (any of [`HF_PREFIXES`] before them), spellings in GGUF.
/// `{l}` is the layer, `{e}` the expert. Names are stems: `.weight` and `.bias` follow unless the
/// tensor is named by the stem itself.
type Row = (Role, &'static [&'static str], &'static [&'static str]);

/// What may stand before a Hugging Face name.
pub const HF_PREFIXES: &[&str] =
    &["model.", "", "language_model.model.", "model.language_model.", "bert.", "transformer."];

/// The table.
pub const NAMES: &[Row] = &[
    (Role::Embed, &["embed_tokens", "embeddings.word_embeddings", "wte"], &["token_embd"]),
    (Role::EmbedPositions, &["embeddings.position_embeddings"], &["position_embd"]),
    (Role::EmbedTypes, &["embeddings.token_type_embeddings"], &["token_types"]),
    (Role::EmbedNorm, &["embeddings.LayerNorm"], &["token_embd_norm"]),
    (Role::RopeFactors, &[], &["rope_freqs"]),
    (Role::FinalNorm, &["norm", "final_layernorm", "embedding_norm"], &["output_norm"]),
    (Role::Head, &["lm_head"], &["output"]),
    (
        Role::MixerNorm,
        &["layers.{l}.input_layernorm", "layers.{l}.operator_norm"],
        &["blk.{l}.attn_norm"],
    ),
    (
        Role::MixerPostNorm,
        &["layers.{l}.post_attention_layernorm", "encoder.layer.{l}.attention.output.LayerNorm"],
        &["blk.{l}.post_attention_norm", "blk.{l}.attn_output_norm"],
    ),
    (
        Role::FfnNorm,
        &[
            "layers.{l}.pre_feedforward_layernorm",
            "layers.{l}.pre_ff_layernorm",
            "layers.{l}.ffn_norm",
            "layers.{l}.post_attention_layernorm",
        ],
        &["blk.{l}.ffn_norm", "blk.{l}.post_attention_norm"],
    ),
    (
        Role::FfnPostNorm,
        &["layers.{l}.post_feedforward_layernorm", "encoder.layer.{l}.output.LayerNorm"],
        &["blk.{l}.post_ffw_norm", "blk.{l}.layer_output_norm"],
    ),
    (
        Role::Q,
        &["layers.{l}.self_attn.q_proj", "encoder.layer.{l}.attention.self.query"],
        &["blk.{l}.attn_q"],
    ),
    (
        Role::K,
        &["layers.{l}.self_attn.k_proj", "encoder.layer.{l}.attention.self.key"],
        &["blk.{l}.attn_k"],
    ),
    (
        Role::V,
        &["layers.{l}.self_attn.v_proj", "encoder.layer.{l}.attention.self.value"],
        &["blk.{l}.attn_v"],
    ),
    (Role::Qkv, &["layers.{l}.self_attn.qkv_proj"], &["blk.{l}.attn_qkv"]),
    (
        Role::O,
        &[
            "layers.{l}.self_attn.o_proj",
            "layers.{l}.self_attn.out_proj",
            "encoder.layer.{l}.attention.output.dense",
        ],
        &["blk.{l}.attn_output"],
    ),
    (
        Role::QNorm,
        &["layers.{l}.self_attn.q_norm", "layers.{l}.self_attn.q_layernorm"],
        &["blk.{l}.attn_q_norm"],
    ),
    (
        Role::KNorm,
        &["layers.{l}.self_attn.k_norm", "layers.{l}.self_attn.k_layernorm"],
        &["blk.{l}.attn_k_norm"],
    ),
    (Role::Sinks, &["layers.{l}.self_attn.sinks"], &["blk.{l}.attn_sinks"]),
    (Role::QLoraDown, &["layers.{l}.self_attn.q_a_proj"], &["blk.{l}.attn_q_a"]),
    (Role::QLoraNorm, &["layers.{l}.self_attn.q_a_layernorm"], &["blk.{l}.attn_q_a_norm"]),
    (Role::QLoraUp, &["layers.{l}.self_attn.q_b_proj"], &["blk.{l}.attn_q_b"]),
    (Role::KvLoraDown, &["layers.{l}.self_attn.kv_a_proj_with_mqa"], &["blk.{l}.attn_kv_a_mqa"]),
    (Role::KvLoraNorm, &["layers.{l}.self_attn.kv_a_layernorm"], &["blk.{l}.attn_kv_a_norm"]),
    (Role::KvLoraUp, &["layers.{l}.self_attn.kv_b_proj"], &["blk.{l}.attn_kv_b"]),
    (Role::DeltaIn, &["layers.{l}.linear_attn.in_proj_qkvz"], &["blk.{l}.ssm_in"]),
    (Role::DeltaBetaAlpha, &["layers.{l}.linear_attn.in_proj_ba"], &["blk.{l}.ssm_ba"]),
    (Role::DeltaConv, &["layers.{l}.linear_attn.conv1d"], &["blk.{l}.ssm_conv1d"]),
    (Role::DeltaDtBias, &["layers.{l}.linear_attn.dt_bias"], &["blk.{l}.ssm_dt.bias"]),
    (Role::DeltaALog, &["layers.{l}.linear_attn.A_log"], &["blk.{l}.ssm_a"]),
    (Role::DeltaNorm, &["layers.{l}.linear_attn.norm"], &["blk.{l}.ssm_norm"]),
    (Role::DeltaOut, &["layers.{l}.linear_attn.out_proj"], &["blk.{l}.ssm_out"]),
    (Role::MambaIn, &["layers.{l}.mamba.in_proj"], &["blk.{l}.ssm_in"]),
    (Role::MambaConv, &["layers.{l}.mamba.conv1d"], &["blk.{l}.ssm_conv1d"]),
    (Role::MambaDtBias, &["layers.{l}.mamba.dt_bias"], &["blk.{l}.ssm_dt.bias"]),
    (Role::MambaALog, &["layers.{l}.mamba.A_log"], &["blk.{l}.ssm_a"]),
    (Role::MambaSkip, &["layers.{l}.mamba.D"], &["blk.{l}.ssm_d"]),
    (Role::MambaNorm, &["layers.{l}.mamba.norm"], &["blk.{l}.ssm_norm"]),
    (Role::MambaOut, &["layers.{l}.mamba.out_proj"], &["blk.{l}.ssm_out"]),
    (Role::ConvIn, &["layers.{l}.conv.in_proj"], &["blk.{l}.shortconv.in_proj"]),
    (Role::ConvTaps, &["layers.{l}.conv.conv"], &["blk.{l}.shortconv.conv"]),
    (Role::ConvOut, &["layers.{l}.conv.out_proj"], &["blk.{l}.shortconv.out_proj"]),
    (
        Role::Gate,
        &[
            "layers.{l}.mlp.gate_proj",
            "layers.{l}.feed_forward.gate_proj",
            "layers.{l}.feed_forward.w1",
        ],
        &["blk.{l}.ffn_gate"],
    ),
    (
        Role::Up,
        &[
            "layers.{l}.mlp.up_proj",
            "layers.{l}.feed_forward.up_proj",
            "layers.{l}.feed_forward.w3",
            "encoder.layer.{l}.intermediate.dense",
        ],
        &["blk.{l}.ffn_up"],
    ),
    (Role::GateUp, &["layers.{l}.mlp.gate_up_proj"], &[]),
    (
        Role::Down,
        &[
            "layers.{l}.mlp.down_proj",
            "layers.{l}.feed_forward.down_proj",
            "layers.{l}.feed_forward.w2",
            "encoder.layer.{l}.output.dense",
        ],
        &["blk.{l}.ffn_down"],
    ),
    (
        Role::Router,
        &["layers.{l}.mlp.gate", "layers.{l}.mlp.router", "layers.{l}.block_sparse_moe.gate"],
        &["blk.{l}.ffn_gate_inp"],
    ),
    (
        Role::RouterChoiceBias,
        &["layers.{l}.mlp.gate.e_score_correction_bias"],
        &["blk.{l}.exp_probs_b.bias"],
    ),
    (
        Role::ExpertGate,
        &["layers.{l}.mlp.experts.{e}.gate_proj", "layers.{l}.block_sparse_moe.experts.{e}.w1"],
        &[],
    ),
    (
        Role::ExpertUp,
        &["layers.{l}.mlp.experts.{e}.up_proj", "layers.{l}.block_sparse_moe.experts.{e}.w3"],
        &[],
    ),
    (
        Role::ExpertDown,
        &["layers.{l}.mlp.experts.{e}.down_proj", "layers.{l}.block_sparse_moe.experts.{e}.w2"],
        &[],
    ),
    (Role::ExpertsGate, &[], &["blk.{l}.ffn_gate_exps"]),
    (Role::ExpertsUp, &[], &["blk.{l}.ffn_up_exps"]),
    (Role::ExpertsGateUp, &["layers.{l}.mlp.experts.gate_up_proj"], &[]),
    (Role::ExpertsDown, &["layers.{l}.mlp.experts.down_proj"], &["blk.{l}.ffn_down_exps"]),
    (
        Role::SharedGate,
        &["layers.{l}.mlp.shared_experts.gate_proj", "layers.{l}.mlp.shared_expert.gate_proj"],
        &["blk.{l}.ffn_gate_shexp"],
    ),
    (
        Role::SharedUp,
        &["layers.{l}.mlp.shared_experts.up_proj", "layers.{l}.mlp.shared_expert.up_proj"],
        &["blk.{l}.ffn_up_shexp"],
    ),
    (
        Role::SharedDown,
        &["layers.{l}.mlp.shared_experts.down_proj", "layers.{l}.mlp.shared_expert.down_proj"],
        &["blk.{l}.ffn_down_shexp"],
    ),
    (Role::SharedRouter, &["layers.{l}.mlp.shared_expert_gate"], &["blk.{l}.ffn_gate_inp_shexp"]),
];

/// Tensors a file may carry that no program needs.
pub fn is_ignorable(name: &str) -> bool {
    name.ends_with("rotary_emb.inv_freq")
        || name.ends_with("position_ids")
        || name.contains("pooler.")
        || name.starts_with("mtp.")
        || name.contains("vision_tower")
        || name.contains("multi_modal_projector")
}

/// The tensor of a role (`.weight` or bare), if the file has it.
pub fn find_opt(
    checkpoint: &Checkpoint,
    role: Role,
    layer: usize,
    expert: u32,
) -> Option<&TensorInfo> {
    let mut found = None;
    for_each_spelling(checkpoint.container, role, layer, expert, |stem| {
        let named = |n: &str| checkpoint.tensor(n);
        found = named(&format!("{stem}.weight")).or_else(|| named(stem));
        found.is_some()
    });
    found
}

/// The tensor of a role, or an error that names every spelling tried.
pub fn find(checkpoint: &Checkpoint, role: Role, layer: usize) -> Result<&TensorInfo, ModelError> {
    find_opt(checkpoint, role, layer, 0).ok_or_else(|| missing(checkpoint, role, layer, 0))
}

/// The error for a role that is absent.
pub fn missing(checkpoint: &Checkpoint, role: Role, layer: usize, expert: u32) -> ModelError {
    let mut tried = Vec::new();
    for_each_spelling(checkpoint.container, role, layer, expert, |stem| {
        tried.push(format!("{stem}.weight"));
        false
    });
    let name = tried.first().cloned().unwrap_or_else(|| format!("{role:?}"));
    ModelError::MissingTensor { name, others: tried.get(1..).unwrap_or_default().join(", ") }
}

/// The bias that belongs to a tensor: `x.weight` has `x.bias`, a bare `x` has `x_bias`.
pub fn bias_of<'a>(checkpoint: &'a Checkpoint, tensor: &TensorInfo) -> Option<&'a TensorInfo> {
    match tensor.name.strip_suffix(".weight") {
        Some(stem) => checkpoint.tensor(&format!("{stem}.bias")),
        None => checkpoint.tensor(&format!("{}_bias", tensor.name)),
    }
}

fn for_each_spelling(
    container: Container,
    role: Role,
    layer: usize,
    expert: u32,
    mut accept: impl FnMut(&str) -> bool,
) {
    let Some(row) = NAMES.iter().find(|r| r.0 == role) else { return };
    let fill = |s: &str| s.replace("{l}", &layer.to_string()).replace("{e}", &expert.to_string());
    match container {
        Container::Gguf => {
            let _ = row.2.iter().any(|s| accept(&fill(s)));
        }
        Container::Hf => {
            let _ = row.1.iter().any(|s| {
                let stem = fill(s);
                HF_PREFIXES.iter().any(|p| accept(&format!("{p}{stem}")))
            });
        }
    }
}
