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
    "model.vision_model.",
    "multi_modal_projector.",
    "model.multi_modal_projector.",
    "model.connector.",
];

const NAMES: &[Row] = &[
    (
        Role::Patch,
        &["patch_embed.proj", "embeddings.patch_embedding", "patch_conv"],
        &["v.patch_embd"],
    ),
    // (The kernel of a second frame, in GGUF.)
    (Role::SecondPatch, &[], &["v.patch_embd.weight.1"]),
    (Role::ClassToken, &["embeddings.class_embedding"], &["v.class_embd"]),
    (Role::EmbedNorm, &["pre_layrnorm", "ln_pre"], &["v.pre_ln"]),
    (Role::PatchPositions, &["pos_embed", "embeddings.position_embedding"], &["v.position_embd"]),
    (
        Role::MixerNorm,
        &[
            "blocks.{l}.norm1",
            "encoder.layers.{l}.layer_norm1",
            "transformer.layers.{l}.attention_norm",
        ],
        &["v.blk.{l}.ln1"],
    ),
    (
        Role::FfnNorm,
        &["blocks.{l}.norm2", "encoder.layers.{l}.layer_norm2", "transformer.layers.{l}.ffn_norm"],
        &["v.blk.{l}.ln2"],
    ),
    (Role::Qkv, &["blocks.{l}.attn.qkv"], &["v.blk.{l}.attn_qkv"]),
    (
        Role::Q,
        &["encoder.layers.{l}.self_attn.q_proj", "transformer.layers.{l}.attention.q_proj"],
        &["v.blk.{l}.attn_q"],
    ),
    (
        Role::K,
        &["encoder.layers.{l}.self_attn.k_proj", "transformer.layers.{l}.attention.k_proj"],
        &["v.blk.{l}.attn_k"],
    ),
    (
        Role::V,
        &["encoder.layers.{l}.self_attn.v_proj", "transformer.layers.{l}.attention.v_proj"],
        &["v.blk.{l}.attn_v"],
    ),
    (
        Role::O,
        &[
            "blocks.{l}.attn.proj",
            "encoder.layers.{l}.self_attn.out_proj",
            "transformer.layers.{l}.attention.o_proj",
        ],
        &["v.blk.{l}.attn_out"],
    ),
    (
        Role::Gate,
        &["blocks.{l}.mlp.gate_proj", "transformer.layers.{l}.feed_forward.gate_proj"],
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
        ],
        &["v.blk.{l}.ffn_down"],
    ),
    (Role::FinalNorm, &["post_layernorm"], &["v.post_ln"]),
    (
        Role::MergeNorm,
        &["merger.ln_q", "merger.norm", "mm_soft_emb_norm", "norm"],
        &["mm.soft_emb_norm", "v.post_ln"],
    ),
    (Role::Merging, &["patch_merger.merging_layer"], &["mm.patch_merger"]),
    (Role::MergeUp, &["merger.mlp.0", "merger.linear_fc1", "linear_1"], &["mm.0"]),
    (
        Role::MergeDown,
        &[
            "merger.mlp.2",
            "merger.linear_fc2",
            "mm_input_projection_weight",
            "linear_2",
            "modality_projection.proj",
        ],
        &["mm.2", "mm.input_projection", "mm.model.fc"],
    ),
    (Role::DeepNorm, &["deepstack_merger_list.{l}.norm"], &["v.deepstack.{l}.norm"]),
    (Role::DeepUp, &["deepstack_merger_list.{l}.linear_fc1"], &["v.deepstack.{l}.fc1"]),
    (Role::DeepDown, &["deepstack_merger_list.{l}.linear_fc2"], &["v.deepstack.{l}.fc2"]),
];
