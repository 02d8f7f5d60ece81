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
    EmbedProjection,
    LayerTable,
    LayerProjection,
    LayerProjectionNorm,
    LayerInputGate,
    LayerInputOut,
    LayerInputNorm,
    LayerScale,
    StreamIn,
    StreamsIn,
    StreamOut,
    StreamsOut,
    StreamRouter,
    StreamRouterNorm,
    StreamPredict,
    StreamCorrect,
    StreamScale,
    LowRankDown,
    LowRankUp,
    LowRankNorm,
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
    QkvByHead,
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
    KvLoraKeys,
    KvLoraValues,
    DeltaIn,
    DeltaBetaAlpha,
    DeltaQkv,
    DeltaZ,
    DeltaBeta,
    DeltaAlpha,
    DeltaConv,
    DeltaDtBias,
    DeltaALog,
    DecayRates,
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
    RouterNorm,
    ExpertGains,
    ExpertsNorm,
    ExpertsPostNorm,
    DensePostNorm,
    ExpertGate,
    ExpertUp,
    ExpertDown,
    ExpertsGate,
    ExpertsUp,
    ExpertsGateUp,
    ExpertsDown,
    SharedGate,
    SharedUp,
    SharedGateUp,
    SharedDown,
    SharedRouter,
    ScoreDense,
    ScoreNorm,
    ScoreOut,
    TextProjection,
    Patch,
    SecondPatch,
    PatchPositions,
    MixerGain,
    FfnGain,
    ClassToken,
    Merging,
    StandardShift,
    StandardScale,
    Between,
    BetweenNorm,
    MergeNorm,
    MergeGate,
    MergeUp,
    MergeSecond,
    MergeDown,
    PoolQuery,
    PoolQkv,
    PoolOut,
    PoolNorm,
    PoolUp,
    PoolDown,
    DeepNorm,
    DeepUp,
    DeepDown,
}

/// Role, spellings in Hugging Face files (any of the table's prefixes before them), spellings in GGUF.
/// `{l}` is the layer, `{e}` the expert. Names are stems: `.weight` and `.bias` follow unless the
/// tensor is named by the stem itself.
pub type Row = (Role, &'static [&'static str], &'static [&'static str]);

/// The spellings of one part of a model.
#[derive(Debug)]
pub struct Table {
    /// One a role.
    pub(crate) rows: &'static [Row],
    /// What may stand before a Hugging Face name.
    pub(crate) prefixes: &'static [&'static str],
}

/// The language model's.
pub const TEXT: Table = Table { rows: NAMES, prefixes: HF_PREFIXES };

/// What may stand before a Hugging Face name.
pub const HF_PREFIXES: &[&str] = &[
    "model.",
    "",
    "language_model.model.",
    "language_model.",
    "model.language_model.",
    "model.text_model.",
    "bert.",
    "transformer.",
    "backbone.",
    "gpt_neox.",
    "roberta.",
    "distilbert.",
    "electra.",
    "nomic_bert.",
    "text_model.",
];

/// The table.
pub const NAMES: &[Row] = &[
    (
        Role::Embed,
        &[
            "embed_tokens",
            "embeddings.word_embeddings",
            "wte",
            "embeddings",
            "embed_in",
            "embeddings.tok_embeddings",
            "embeddings.token_embedding",
        ],
        &["token_embd"],
    ),
    (
        Role::EmbedPositions,
        &["embeddings.position_embeddings", "wpe", "embeddings.position_embedding"],
        &["position_embd"],
    ),
    (Role::EmbedTypes, &["embeddings.token_type_embeddings"], &["token_types"]),
    (Role::EmbedNorm, &["embeddings.LayerNorm", "embeddings.norm", "emb_ln"], &["token_embd_norm"]),
    (Role::EmbedProjection, &["embeddings_project"], &[]),
    (Role::LayerTable, &["embed_tokens_per_layer"], &["per_layer_token_embd"]),
    (Role::LayerProjection, &["per_layer_model_projection"], &["per_layer_model_proj"]),
    (Role::LayerProjectionNorm, &["per_layer_projection_norm"], &["per_layer_proj_norm"]),
    (Role::LayerInputGate, &["layers.{l}.per_layer_input_gate"], &["blk.{l}.inp_gate"]),
    (Role::LayerInputOut, &["layers.{l}.per_layer_projection"], &["blk.{l}.proj"]),
    (Role::LayerInputNorm, &["layers.{l}.post_per_layer_input_norm"], &["blk.{l}.post_norm"]),
    (Role::LayerScale, &["layers.{l}.layer_scalar"], &["blk.{l}.layer_output_scale"]),
    (Role::StreamIn, &["altup_projections.{e}"], &[]),
    (Role::StreamsIn, &[], &["altup_proj"]),
    (Role::StreamOut, &["altup_unembed_projections.{e}"], &[]),
    (Role::StreamsOut, &[], &["altup_unembd_proj"]),
    (Role::StreamRouter, &["layers.{l}.altup.modality_router"], &["blk.{l}.altup_router"]),
    (Role::StreamRouterNorm, &["layers.{l}.altup.router_norm"], &["blk.{l}.altup_router_norm"]),
    (Role::StreamPredict, &["layers.{l}.altup.prediction_coefs"], &["blk.{l}.altup_predict_coef"]),
    (Role::StreamCorrect, &["layers.{l}.altup.correction_coefs"], &["blk.{l}.altup_correct_coef"]),
    (
        Role::StreamScale,
        &["layers.{l}.altup.correct_output_scale"],
        &["blk.{l}.altup_correct_scale"],
    ),
    (Role::LowRankDown, &["layers.{l}.laurel.linear_left"], &["blk.{l}.laurel_l"]),
    (Role::LowRankUp, &["layers.{l}.laurel.linear_right"], &["blk.{l}.laurel_r"]),
    (Role::LowRankNorm, &["layers.{l}.laurel.post_laurel_norm"], &["blk.{l}.laurel_post_norm"]),
    (Role::RopeFactors, &[], &["rope_freqs", "rope_factors_short"]),
    (
        Role::FinalNorm,
        &[
            "norm",
            "final_layernorm",
            "embedding_norm",
            "ln_f",
            "final_layer_norm",
            "norm_f",
            "final_norm",
        ],
        &["output_norm", "token_embd_norm"],
    ),
    (Role::Head, &["lm_head", "embed_out"], &["output"]),
    (
        Role::MixerNorm,
        &[
            "layers.{l}.input_layernorm",
            "layers.{l}.operator_norm",
            "h.{l}.ln_1",
            "layers.{l}.norm",
            "layers.{l}.attn_norm",
            "encoder.layers.{l}.layer_norm1",
        ],
        &["blk.{l}.attn_norm"],
    ),
    (
        Role::MixerPostNorm,
        &[
            "layers.{l}.post_self_attn_layernorm",
            "layers.{l}.post_attention_layernorm",
            "encoder.layer.{l}.attention.output.LayerNorm",
            "transformer.layer.{l}.sa_layer_norm",
            "encoder.layers.{l}.norm1",
        ],
        &["blk.{l}.post_attention_norm", "blk.{l}.attn_output_norm"],
    ),
    (
        Role::FfnNorm,
        &[
            "layers.{l}.pre_feedforward_layernorm",
            "layers.{l}.pre_ff_layernorm",
            "layers.{l}.ffn_norm",
            "layers.{l}.post_attention_layernorm",
            "h.{l}.ln_2",
            "layers.{l}.mlp_norm",
            "encoder.layers.{l}.layer_norm2",
        ],
        &["blk.{l}.ffn_norm", "blk.{l}.post_attention_norm"],
    ),
    (
        Role::FfnPostNorm,
        &[
            "layers.{l}.post_feedforward_layernorm",
            "encoder.layer.{l}.output.LayerNorm",
            "transformer.layer.{l}.output_layer_norm",
            "layers.{l}.post_mlp_layernorm",
            "encoder.layers.{l}.norm2",
        ],
        &["blk.{l}.post_ffw_norm", "blk.{l}.layer_output_norm"],
    ),
    (
        Role::Q,
        &[
            "layers.{l}.self_attn.q_proj",
            "encoder.layer.{l}.attention.self.query",
            "transformer.layer.{l}.attention.q_lin",
            "encoder.layers.{l}.self_attn.q_proj",
        ],
        &["blk.{l}.attn_q"],
    ),
    (
        Role::K,
        &[
            "layers.{l}.self_attn.k_proj",
            "encoder.layer.{l}.attention.self.key",
            "transformer.layer.{l}.attention.k_lin",
            "encoder.layers.{l}.self_attn.k_proj",
        ],
        &["blk.{l}.attn_k"],
    ),
    (
        Role::V,
        &[
            "layers.{l}.self_attn.v_proj",
            "encoder.layer.{l}.attention.self.value",
            "transformer.layer.{l}.attention.v_lin",
            "encoder.layers.{l}.self_attn.v_proj",
        ],
        &["blk.{l}.attn_v"],
    ),
    (
        Role::Qkv,
        &[
            "layers.{l}.self_attn.qkv_proj",
            "h.{l}.attn.c_attn",
            "layers.{l}.attn.Wqkv",
            "encoder.layers.{l}.attn.Wqkv",
        ],
        &["blk.{l}.attn_qkv"],
    ),
    (
        Role::O,
        &[
            "layers.{l}.self_attn.o_proj",
            "layers.{l}.self_attn.out_proj",
            "encoder.layer.{l}.attention.output.dense",
            "transformer.layer.{l}.attention.out_lin",
            "layers.{l}.self_attn.dense",
            "layers.{l}.attention.dense",
            "h.{l}.attn.c_proj",
            "layers.{l}.attn.Wo",
            "encoder.layers.{l}.attn.out_proj",
            "encoder.layers.{l}.self_attn.out_proj",
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
    (Role::QkvByHead, &["layers.{l}.attention.query_key_value"], &[]),
    (Role::Sinks, &["layers.{l}.self_attn.sinks"], &["blk.{l}.attn_sinks"]),
    (Role::QLoraDown, &["layers.{l}.self_attn.q_a_proj"], &["blk.{l}.attn_q_a"]),
    (Role::QLoraNorm, &["layers.{l}.self_attn.q_a_layernorm"], &["blk.{l}.attn_q_a_norm"]),
    (Role::QLoraUp, &["layers.{l}.self_attn.q_b_proj"], &["blk.{l}.attn_q_b"]),
    (Role::KvLoraDown, &["layers.{l}.self_attn.kv_a_proj_with_mqa"], &["blk.{l}.attn_kv_a_mqa"]),
    (Role::KvLoraNorm, &["layers.{l}.self_attn.kv_a_layernorm"], &["blk.{l}.attn_kv_a_norm"]),
    (Role::KvLoraUp, &["layers.{l}.self_attn.kv_b_proj"], &["blk.{l}.attn_kv_b"]),
    (Role::KvLoraKeys, &[], &["blk.{l}.attn_k_b"]),
    (Role::KvLoraValues, &[], &["blk.{l}.attn_v_b"]),
    (Role::DeltaIn, &["layers.{l}.linear_attn.in_proj_qkvz"], &["blk.{l}.ssm_in"]),
    (Role::DeltaBetaAlpha, &["layers.{l}.linear_attn.in_proj_ba"], &["blk.{l}.ssm_ba"]),
    (Role::DeltaQkv, &["layers.{l}.linear_attn.in_proj_qkv"], &["blk.{l}.attn_qkv"]),
    (Role::DeltaZ, &["layers.{l}.linear_attn.in_proj_z"], &["blk.{l}.attn_gate"]),
    (Role::DeltaBeta, &["layers.{l}.linear_attn.in_proj_b"], &["blk.{l}.ssm_beta"]),
    (Role::DeltaAlpha, &["layers.{l}.linear_attn.in_proj_a"], &["blk.{l}.ssm_alpha"]),
    (Role::DeltaConv, &["layers.{l}.linear_attn.conv1d"], &["blk.{l}.ssm_conv1d"]),
    (Role::DeltaDtBias, &["layers.{l}.linear_attn.dt_bias"], &["blk.{l}.ssm_dt.bias"]),
    (Role::DeltaALog, &["layers.{l}.linear_attn.A_log"], &[]),
    (Role::DecayRates, &[], &["blk.{l}.ssm_a"]),
    (Role::DeltaNorm, &["layers.{l}.linear_attn.norm"], &["blk.{l}.ssm_norm"]),
    (Role::DeltaOut, &["layers.{l}.linear_attn.out_proj"], &["blk.{l}.ssm_out"]),
    (Role::MambaIn, &["layers.{l}.mamba.in_proj", "layers.{l}.mixer.in_proj"], &["blk.{l}.ssm_in"]),
    (
        Role::MambaConv,
        &["layers.{l}.mamba.conv1d", "layers.{l}.mixer.conv1d"],
        &["blk.{l}.ssm_conv1d"],
    ),
    (
        Role::MambaDtBias,
        &["layers.{l}.mamba.dt_bias", "layers.{l}.mixer.dt_bias"],
        &["blk.{l}.ssm_dt.bias"],
    ),
    (Role::MambaALog, &["layers.{l}.mamba.A_log", "layers.{l}.mixer.A_log"], &[]),
    (Role::MambaSkip, &["layers.{l}.mamba.D", "layers.{l}.mixer.D"], &["blk.{l}.ssm_d"]),
    (Role::MambaNorm, &["layers.{l}.mamba.norm", "layers.{l}.mixer.norm"], &["blk.{l}.ssm_norm"]),
    (
        Role::MambaOut,
        &["layers.{l}.mamba.out_proj", "layers.{l}.mixer.out_proj"],
        &["blk.{l}.ssm_out"],
    ),
    (Role::ConvIn, &["layers.{l}.conv.in_proj"], &["blk.{l}.shortconv.in_proj"]),
    (Role::ConvTaps, &["layers.{l}.conv.conv"], &["blk.{l}.shortconv.conv"]),
    (Role::ConvOut, &["layers.{l}.conv.out_proj"], &["blk.{l}.shortconv.out_proj"]),
    (
        Role::Gate,
        &[
            "layers.{l}.mlp.gate_proj",
            "layers.{l}.feed_forward.gate_proj",
            "layers.{l}.feed_forward.w1",
            "encoder.layers.{l}.mlp.fc12",
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
            "transformer.layer.{l}.ffn.lin1",
            "layers.{l}.mlp.c_fc",
            "layers.{l}.mlp.fc1",
            "layers.{l}.mlp.dense_h_to_4h",
            "h.{l}.mlp.c_fc",
            "encoder.layers.{l}.mlp.fc11",
            "encoder.layers.{l}.mlp.fc1",
        ],
        &["blk.{l}.ffn_up"],
    ),
    (
        Role::GateUp,
        &["layers.{l}.mlp.gate_up_proj", "layers.{l}.shared_mlp.input_linear", "layers.{l}.mlp.Wi"],
        &["blk.{l}.ffn_up"],
    ),
    (
        Role::Down,
        &[
            "layers.{l}.mlp.down_proj",
            "layers.{l}.feed_forward.down_proj",
            "layers.{l}.feed_forward.w2",
            "encoder.layer.{l}.output.dense",
            "transformer.layer.{l}.ffn.lin2",
            "layers.{l}.mlp.c_proj",
            "layers.{l}.mlp.fc2",
            "layers.{l}.mlp.dense_4h_to_h",
            "h.{l}.mlp.c_proj",
            "layers.{l}.shared_mlp.output_linear",
            "encoder.layers.{l}.mlp.fc2",
            "layers.{l}.mlp.Wo",
        ],
        &["blk.{l}.ffn_down"],
    ),
    (
        Role::Router,
        &[
            "layers.{l}.mlp.gate",
            "layers.{l}.mlp.router",
            "layers.{l}.block_sparse_moe.gate",
            "layers.{l}.block_sparse_moe.router.layer",
            "layers.{l}.feed_forward.router",
            "layers.{l}.router.proj",
        ],
        &["blk.{l}.ffn_gate_inp"],
    ),
    (
        Role::RouterChoiceBias,
        &[
            "layers.{l}.mlp.gate.e_score_correction_bias",
            "layers.{l}.block_sparse_moe.e_score_correction_bias",
        ],
        &["blk.{l}.exp_probs_b.bias"],
    ),
    (Role::RouterNorm, &["layers.{l}.router.scale"], &["blk.{l}.ffn_gate_inp.scale"]),
    (Role::ExpertGains, &["layers.{l}.router.per_expert_scale"], &["blk.{l}.ffn_down_exps.scale"]),
    (Role::ExpertsNorm, &["layers.{l}.pre_feedforward_layernorm_2"], &["blk.{l}.pre_ffw_norm_2"]),
    (
        Role::ExpertsPostNorm,
        &["layers.{l}.post_feedforward_layernorm_2"],
        &["blk.{l}.post_ffw_norm_2"],
    ),
    (
        Role::DensePostNorm,
        &["layers.{l}.post_feedforward_layernorm_1"],
        &["blk.{l}.post_ffw_norm_1"],
    ),
    (
        Role::ExpertGate,
        &[
            "layers.{l}.mlp.experts.{e}.gate_proj",
            "layers.{l}.block_sparse_moe.experts.{e}.w1",
            "layers.{l}.feed_forward.experts.{e}.gate_proj",
        ],
        &[],
    ),
    (
        Role::ExpertUp,
        &[
            "layers.{l}.mlp.experts.{e}.up_proj",
            "layers.{l}.block_sparse_moe.experts.{e}.w3",
            "layers.{l}.feed_forward.experts.{e}.up_proj",
        ],
        &[],
    ),
    (
        Role::ExpertDown,
        &[
            "layers.{l}.mlp.experts.{e}.down_proj",
            "layers.{l}.block_sparse_moe.experts.{e}.w2",
            "layers.{l}.feed_forward.experts.{e}.down_proj",
        ],
        &[],
    ),
    (Role::ExpertsGate, &[], &["blk.{l}.ffn_gate_exps"]),
    (Role::ExpertsUp, &[], &["blk.{l}.ffn_up_exps"]),
    (
        Role::ExpertsGateUp,
        &[
            "layers.{l}.mlp.experts.gate_up_proj",
            "layers.{l}.block_sparse_moe.input_linear",
            "layers.{l}.feed_forward.experts.gate_up_proj",
            "layers.{l}.experts.gate_up_proj",
        ],
        &["blk.{l}.ffn_gate_up_exps"],
    ),
    (
        Role::ExpertsDown,
        &[
            "layers.{l}.mlp.experts.down_proj",
            "layers.{l}.block_sparse_moe.output_linear",
            "layers.{l}.feed_forward.experts.down_proj",
            "layers.{l}.experts.down_proj",
        ],
        &["blk.{l}.ffn_down_exps"],
    ),
    (
        Role::SharedGate,
        &[
            "layers.{l}.mlp.shared_experts.gate_proj",
            "layers.{l}.mlp.shared_expert.gate_proj",
            "layers.{l}.feed_forward.shared_expert.gate_proj",
        ],
        &["blk.{l}.ffn_gate_shexp"],
    ),
    (
        Role::SharedUp,
        &[
            "layers.{l}.mlp.shared_experts.up_proj",
            "layers.{l}.mlp.shared_expert.up_proj",
            "layers.{l}.feed_forward.shared_expert.up_proj",
        ],
        &["blk.{l}.ffn_up_shexp"],
    ),
    (
        Role::SharedDown,
        &[
            "layers.{l}.mlp.shared_experts.down_proj",
            "layers.{l}.mlp.shared_expert.down_proj",
            "layers.{l}.shared_mlp.output_linear",
            "layers.{l}.feed_forward.shared_expert.down_proj",
        ],
        &["blk.{l}.ffn_down_shexp"],
    ),
    (Role::SharedGateUp, &["layers.{l}.shared_mlp.input_linear"], &[]),
    (Role::ScoreDense, &["classifier.dense", "head.dense", "pre_classifier", "pooler.dense"], &[]),
    (Role::ScoreNorm, &["head.norm"], &[]),
    (Role::ScoreOut, &["classifier.out_proj", "classifier", "score"], &[]),
    (Role::TextProjection, &["text_projection", "head"], &[]),
    (Role::SharedRouter, &["layers.{l}.mlp.shared_expert_gate"], &["blk.{l}.ffn_gate_inp_shexp"]),
];

/// Ends of names of matrices stored `[columns, rows]`, in the files of GPT-2.
const TRANSPOSED: &[&str] =
    &[".attn.c_attn.weight", ".attn.c_proj.weight", ".mlp.c_fc.weight", ".mlp.c_proj.weight"];

/// Whether a tensor is stored `[columns, rows]`.
pub fn is_transposed(name: &str) -> bool {
    let stem = name.strip_prefix("transformer.").unwrap_or(name);
    name.ends_with("multi_modal_projector.mm_input_projection_weight") // Gemma 3's
        || name == "mm.input_projection.weight"
        || stem.starts_with("h.") && TRANSPOSED.iter().any(|end| stem.ends_with(end))
}

/// Tensors of an encoder of images and of what leads from it to the language model.
pub fn is_of_images(name: &str) -> bool {
    const PARTS: &[&str] = &[
        "visual.",
        "vision_tower",
        "vision_model",
        "embed_vision",
        "multi_modal_projector",
        "mm_projector",
        "visual_projection",
    ];
    PARTS.iter().any(|part| name.contains(part))
        || name.starts_with("model.connector.")
        || NEWLINE.contains(&name)
}

/// The learned row behind the lines of an image.
pub const NEWLINE: &[&str] = &["image_newline", "model.image_newline"];

/// Tensors a file may carry that no program needs.
pub fn is_ignorable(name: &str) -> bool {
    name.ends_with("rotary_emb.inv_freq")
        || name.ends_with("position_ids")
        || name.contains("pooler.")
        || name == "rope_factors_long.weight" // contexts end where the short ones do
        || name.starts_with("mtp.")
        || ["logit_scale", "logit_bias"].contains(&name) // of comparisons
        || is_of_images(name)
        || ["audio_tower", "embed_audio"].iter().any(|part| name.contains(part))
}

/// The tensor of a role (`.weight` or bare) of the language model, if the file has it.
pub fn find_opt(
    checkpoint: &Checkpoint,
    role: Role,
    layer: usize,
    expert: u32,
) -> Option<&TensorInfo> {
    TEXT.find_opt(checkpoint, role, layer, expert)
}

/// The tensor of a role, or an error that says which names were looked for.
pub fn find(checkpoint: &Checkpoint, role: Role, layer: usize) -> Result<&TensorInfo, ModelError> {
    find_opt(checkpoint, role, layer, 0).ok_or_else(|| missing(checkpoint, role, layer, 0))
}

/// The error for a role of the language model that is absent.
pub fn missing(checkpoint: &Checkpoint, role: Role, layer: usize, expert: u32) -> ModelError {
    TEXT.missing(checkpoint, role, layer, expert)
}

impl Table {
    /// The tensor of a role (`.weight` or bare), if the file has it.
    pub fn find_opt<'c>(
        &self,
        checkpoint: &'c Checkpoint,
        role: Role,
        layer: usize,
        expert: u32,
    ) -> Option<&'c TensorInfo> {
        let mut found = None;
        self.for_each_spelling(checkpoint.container, role, layer, expert, |stem| {
            let named = |n: &str| checkpoint.tensor(n);
            found = named(&format!("{stem}.weight")).or_else(|| named(stem));
            found.is_some()
        });
        found
    }

    /// The error for a role that is absent; it names the first few of some sixty spellings.
    pub fn missing(
        &self,
        checkpoint: &Checkpoint,
        role: Role,
        layer: usize,
        expert: u32,
    ) -> ModelError {
        let mut tried = Vec::new();
        self.for_each_spelling(checkpoint.container, role, layer, expert, |stem| {
            tried.push(format!("{stem}.weight"));
            false
        });
        let mut tried = tried.into_iter();
        let name = tried.next().unwrap_or_else(|| format!("{role:?}"));
        let others = tried.by_ref().take(3).collect::<Vec<_>>().join(", ");
        let others = match (others.as_str(), tried.count()) {
            ("", _) => String::new(),
            (_, 0) => format!(" (also looked for: {others})"),
            (_, more) => format!(" (also looked for: {others} and {more} more)"),
        };
        ModelError::MissingTensor { name, others }
    }

    fn for_each_spelling(
        &self,
        container: Container,
        role: Role,
        layer: usize,
        expert: u32,
        mut accept: impl FnMut(&str) -> bool,
    ) {
        let Some(row) = self.rows.iter().find(|r| r.0 == role) else { return };
        let fill =
            |s: &str| s.replace("{l}", &layer.to_string()).replace("{e}", &expert.to_string());
        match container {
            Container::Gguf => {
                let _ = row.2.iter().any(|s| accept(&fill(s)));
            }
            Container::Hf => {
                let _ = row.1.iter().any(|s| {
                    let stem = fill(s);
                    self.prefixes.iter().any(|p| accept(&format!("{p}{stem}")))
                });
            }
        }
    }
}

/// The bias that belongs to a tensor: `x.weight` has `x.bias`, a bare `x` has `x_bias`, `x_weight` too.
pub fn bias_of<'a>(checkpoint: &'a Checkpoint, tensor: &TensorInfo) -> Option<&'a TensorInfo> {
    match tensor.name.strip_suffix(".weight") {
        Some(stem) => checkpoint.tensor(&format!("{stem}.bias")),
        None => {
            let stem = tensor.name.strip_suffix("_weight").unwrap_or(&tensor.name);
            checkpoint.tensor(&format!("{stem}_bias"))
        }
    }
}

#[cfg(test)]
mod tests {
    use tokenmill_ir::{Extent, Meta};
    use tokenmill_quant::FormatId;

    use super::*;

    fn checkpoint(container: Container, names: &[&str]) -> Checkpoint {
        let tensor = |name: &&str| TensorInfo {
            name: (*name).to_owned(),
            format: FormatId::F32,
            shape: vec![1, 1],
            extent: Extent { file: 0, offset: 0, len: 4 },
            order: None,
        };
        Checkpoint::new(container, Meta::new(), names.iter().map(tensor).collect()).unwrap()
    }

    #[test]
    fn names_of_models_inside_others_are_found() {
        for prefix in ["", "model.", "model.language_model.", "model.text_model."] {
            let name = format!("{prefix}layers.3.mlp.up_proj.weight");
            let file = checkpoint(Container::Hf, &[&name]);
            assert_eq!(find(&file, Role::Up, 3).unwrap().name, name);
        }
    }

    #[test]
    fn a_missing_tensor_is_told_in_one_line() {
        for (container, role, expect) in [
            (
                Container::Hf,
                Role::Q,
                "missing tensor 'model.layers.0.self_attn.q_proj.weight' (also looked for: \
                 layers.0.self_attn.q_proj.weight, \
                 language_model.model.layers.0.self_attn.q_proj.weight, \
                 language_model.layers.0.self_attn.q_proj.weight and 56 more)",
            ),
            (
                Container::Gguf,
                Role::FfnNorm,
                "missing tensor 'blk.0.ffn_norm.weight' (also looked for: \
                 blk.0.post_attention_norm.weight)",
            ),
            (Container::Gguf, Role::Q, "missing tensor 'blk.0.attn_q.weight'"),
        ] {
            let error = find(&checkpoint(container, &[]), role, 0).unwrap_err();
            assert_eq!(error.to_string(), expect);
        }
    }
}
