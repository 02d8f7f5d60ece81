//! How files spell the tensors of encoders of images, and of what leads from these to the language
//! model.

use tokenmill_ir::Checkpoint;

use crate::names::{Role, Row, Table};

/// The spellings.
const TABLE: Table = Table { rows: NAMES, prefixes: PREFIXES };

/// The same for files in which the two products of the feed-forward part have each other's names, as
/// llama.cpp's converter of LLaVA and older ones of others write them.
const SWAPPED: Table = Table { rows: &swapped(), prefixes: PREFIXES };

const fn swapped() -> [Row; NAMES.len()] {
    let mut rows = [NAMES[0]; NAMES.len()];
    let mut i = 0;
    while i < rows.len() {
        rows[i] = match NAMES[i] {
            (Role::Up, folder, _) => (Role::Up, folder, &["v.blk.{l}.ffn_down"]),
            (Role::Down, folder, _) => (Role::Down, folder, &["v.blk.{l}.ffn_up"]),
            other => other,
        };
        i += 1;
    }
    rows
}

/// The spellings of a file whose tower has rows of `hidden` numbers: what is called the second product
/// takes these, so it is the first.
pub fn table_of(checkpoint: &Checkpoint, hidden: u32) -> &'static Table {
    let takes_rows = |name: &str| checkpoint.tensor(name).map(|t| t.cols() == u64::from(hidden));
    let takes = ["v.blk.0.ffn_up.weight", "v.blk.0.ffn_down.weight"].map(takes_rows);
    if takes == [Some(false), Some(true)] { &SWAPPED } else { &TABLE }
}

/// What may stand before the Hugging Face name of a tensor of an encoder of images.
const PREFIXES: &[&str] = &[
    "visual.",
    "model.visual.",
    "vision_tower.vision_model.",
    "model.vision_tower.vision_model.",
    "model.vision_tower.",
    "vision_tower.",
    "model.mm_projector.",
    "mm_projector.",
    "model.embed_vision.",
    "embed_vision.",
    "model.vision_model.",
    "vision_model.",
    "multi_modal_projector.",
    "model.multi_modal_projector.",
    "model.connector.",
    // (CLIP's projection.)
    "visual_",
];

const NAMES: &[Row] = &[
    (
        Role::Patch,
        &[
            "patch_embed.proj",
            "embeddings.patch_embedding",
            "patch_conv",
            "embeddings.patch_embeddings.projection",
            "patch_embedding.linear",
            "patch_embedder.input_proj",
        ],
        &["v.patch_embd"],
    ),
    // (The kernel of a second frame, in GGUF.)
    (Role::SecondPatch, &[], &["v.patch_embd.weight.1"]),
    (
        Role::ClassToken,
        &["embeddings.class_embedding", "embeddings.cls_token", "class_embedding"],
        &["v.class_embd"],
    ),
    (
        Role::EmbedNorm,
        &["pre_layrnorm", "ln_pre", "post_conv_layernorm", "layernorm_pre"],
        &["v.pre_ln"],
    ),
    (
        Role::PatchPositions,
        &[
            "pos_embed",
            "embeddings.position_embedding",
            "embeddings.position_embeddings",
            "positional_embedding_vlm",
            "patch_embedder.position_embedding_table",
            "patch_embed.pos_emb.position_embeddings",
            "patch_embed.pos_emb",
        ],
        &["v.position_embd"],
    ),
    (
        Role::MixerNorm,
        &[
            "blocks.{l}.norm1",
            "encoder.layers.{l}.layer_norm1",
            "transformer.layers.{l}.attention_norm",
            "encoder.layer.{l}.layernorm_before",
            "model.layers.{l}.input_layernorm",
            "encoder.layers.{l}.input_layernorm",
            "layers.{l}.norm1",
            "encoder.blocks.{l}.norm0",
        ],
        &["v.blk.{l}.ln1"],
    ),
    (
        Role::FfnNorm,
        &[
            "blocks.{l}.norm2",
            "encoder.layers.{l}.layer_norm2",
            "transformer.layers.{l}.ffn_norm",
            "encoder.layer.{l}.layernorm_after",
            "model.layers.{l}.post_attention_layernorm",
            "encoder.layers.{l}.pre_feedforward_layernorm",
            "layers.{l}.norm2",
            "encoder.blocks.{l}.norm1",
        ],
        &["v.blk.{l}.ln2"],
    ),
    (Role::Qkv, &["blocks.{l}.attn.qkv", "encoder.blocks.{l}.wqkv"], &["v.blk.{l}.attn_qkv"]),
    (
        Role::Q,
        &[
            "encoder.layers.{l}.self_attn.q_proj",
            "transformer.layers.{l}.attention.q_proj",
            "encoder.layer.{l}.attention.q_proj",
            "model.layers.{l}.self_attn.q_proj",
            "encoder.layers.{l}.self_attn.q_proj.linear",
            "layers.{l}.attn.q_proj",
        ],
        &["v.blk.{l}.attn_q"],
    ),
    (
        Role::K,
        &[
            "encoder.layers.{l}.self_attn.k_proj",
            "transformer.layers.{l}.attention.k_proj",
            "encoder.layer.{l}.attention.k_proj",
            "model.layers.{l}.self_attn.k_proj",
            "encoder.layers.{l}.self_attn.k_proj.linear",
            "layers.{l}.attn.k_proj",
        ],
        &["v.blk.{l}.attn_k"],
    ),
    (
        Role::V,
        &[
            "encoder.layers.{l}.self_attn.v_proj",
            "transformer.layers.{l}.attention.v_proj",
            "encoder.layer.{l}.attention.v_proj",
            "model.layers.{l}.self_attn.v_proj",
            "encoder.layers.{l}.self_attn.v_proj.linear",
            "layers.{l}.attn.v_proj",
        ],
        &["v.blk.{l}.attn_v"],
    ),
    (
        Role::O,
        &[
            "blocks.{l}.attn.proj",
            "encoder.layers.{l}.self_attn.out_proj",
            "transformer.layers.{l}.attention.o_proj",
            "encoder.layer.{l}.attention.projection_layer",
            "model.layers.{l}.self_attn.o_proj",
            "encoder.layers.{l}.self_attn.o_proj.linear",
            "layers.{l}.attn.proj",
            "encoder.blocks.{l}.wo",
        ],
        &["v.blk.{l}.attn_out"],
    ),
    (
        Role::QNorm,
        &["encoder.layer.{l}.attention.q_norm", "encoder.layers.{l}.self_attn.q_norm"],
        &["v.blk.{l}.attn_q_norm"],
    ),
    (
        Role::KNorm,
        &["encoder.layer.{l}.attention.k_norm", "encoder.layers.{l}.self_attn.k_norm"],
        &["v.blk.{l}.attn_k_norm"],
    ),
    (Role::MixerPostNorm, &["encoder.layers.{l}.post_attention_layernorm"], &[]),
    (Role::FfnPostNorm, &["encoder.layers.{l}.post_feedforward_layernorm"], &[]),
    (Role::StandardShift, &["std_bias"], &[]),
    (Role::StandardScale, &["std_scale"], &[]),
    (Role::MixerGain, &["encoder.layer.{l}.lambda_1"], &["v.blk.{l}.ls1"]),
    (Role::FfnGain, &["encoder.layer.{l}.lambda_2"], &["v.blk.{l}.ls2"]),
    (
        Role::Gate,
        &[
            "blocks.{l}.mlp.gate_proj",
            "transformer.layers.{l}.feed_forward.gate_proj",
            "encoder.layers.{l}.mlp.gate_proj.linear",
        ],
        &["v.blk.{l}.ffn_gate"],
    ),
    (
        Role::Up,
        &[
            "blocks.{l}.mlp.fc1",
            "blocks.{l}.mlp.up_proj",
            "blocks.{l}.mlp.linear_fc1",
            "encoder.layers.{l}.mlp.fc1",
            "transformer.layers.{l}.feed_forward.up_proj",
            "encoder.layer.{l}.mlp.fc1",
            "model.layers.{l}.mlp.fc1",
            "encoder.layers.{l}.mlp.up_proj.linear",
            "layers.{l}.mlp.fc1",
            "encoder.blocks.{l}.mlp.fc0",
        ],
        &["v.blk.{l}.ffn_up"],
    ),
    (
        Role::Down,
        &[
            "blocks.{l}.mlp.fc2",
            "blocks.{l}.mlp.down_proj",
            "blocks.{l}.mlp.linear_fc2",
            "encoder.layers.{l}.mlp.fc2",
            "transformer.layers.{l}.feed_forward.down_proj",
            "encoder.layer.{l}.mlp.fc2",
            "model.layers.{l}.mlp.fc2",
            "encoder.layers.{l}.mlp.down_proj.linear",
            "layers.{l}.mlp.fc2",
            "encoder.blocks.{l}.mlp.fc1",
        ],
        &["v.blk.{l}.ffn_down"],
    ),
    (
        Role::FinalNorm,
        &[
            "post_layernorm",
            "layernorm",
            "layernorm_post",
            "final_layernorm",
            "encoder.final_layernorm",
        ],
        &["v.post_ln"],
    ),
    (
        Role::MergeNorm,
        &["merger.ln_q", "merger.norm", "mm_soft_emb_norm", "norm", "layer_norm", "pre_norm"],
        &["mm.soft_emb_norm", "mm.model.mlp.0", "mm.input_norm", "v.post_ln"],
    ),
    (Role::Merging, &["patch_merger.merging_layer", "downsample"], &["mm.patch_merger"]),
    (Role::Between, &["merger.proj"], &[]),
    (Role::BetweenNorm, &["merger.post_projection_norm"], &[]),
    (Role::MergeGate, &["merger.gate_proj"], &[]),
    (
        Role::MergeUp,
        &[
            "merger.mlp.0",
            "merger.linear_fc1",
            "merger.up_proj",
            "vision_adapter.mlp.fc1",
            "in_proj",
            "proj.0",
            "linear_1",
        ],
        &["mm.0", "mm.model.mlp.1", "mm.1"],
    ),
    (Role::MergeSecond, &["vision_adapter.mlp.fc2"], &[]),
    (
        Role::MergeDown,
        &[
            "merger.mlp.2",
            "merger.linear_fc2",
            "merger.down_proj",
            "mm_input_projection_weight",
            "linear_2",
            "modality_projection.proj",
            "projection",
            "linear_1",
            "out_proj",
            "proj.2",
            "embedding_projection",
        ],
        &["mm.2", "mm.model.mlp.3", "mm.input_projection", "mm.model.fc"],
    ),
    (Role::PoolQuery, &["head.probe"], &[]),
    (Role::PoolQkv, &["head.attention.in_proj_weight"], &[]),
    (Role::PoolOut, &["head.attention.out_proj"], &[]),
    (Role::PoolNorm, &["head.layernorm"], &[]),
    (Role::PoolUp, &["head.mlp.fc1"], &[]),
    (Role::PoolDown, &["head.mlp.fc2"], &[]),
    (Role::DeepNorm, &["deepstack_merger_list.{l}.norm"], &["v.deepstack.{l}.norm"]),
    (Role::DeepUp, &["deepstack_merger_list.{l}.linear_fc1"], &["v.deepstack.{l}.fc1"]),
    (Role::DeepDown, &["deepstack_merger_list.{l}.linear_fc2"], &["v.deepstack.{l}.fc2"]),
];
