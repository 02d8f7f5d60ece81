//! The kinds of models, and how their recordings are made wide.

use serde_json::{Value, json};

/// A kind: a recording, and what its configuration becomes.
pub struct Kind {
    /// Folder of tests/golden.
    pub golden: &'static str,
    /// Numbers of the configuration; a list is written as JSON.
    pub wide: &'static [(&'static str, &'static str)],
}

/// What most kinds have in common: rows of 2048 columns, heads of 64.
const COMMON: &[(&str, &str)] = &[
    ("hidden_size", "2048"),
    ("intermediate_size", "5632"),
    ("num_attention_heads", "32"),
    ("num_key_value_heads", "8"),
    ("head_dim", "64"),
    ("max_position_embeddings", "16384"),
];

/// Every kind of which something is computed in a way of its own; the first is what others are held to.
pub const KINDS: &[Kind] = &[
    Kind { golden: "llama", wide: &[("rope_scaling", "null")] },
    Kind { golden: "qwen3", wide: &[] },
    Kind { golden: "gemma2", wide: &[("query_pre_attn_scalar", "64"), ("sliding_window", "1024")] },
    Kind {
        golden: "gemma3",
        wide: &[
            ("query_pre_attn_scalar", "64"),
            ("sliding_window", "512"),
            ("hidden_size", "1152"),
            ("intermediate_size", "4608"),
            ("num_attention_heads", "4"),
            ("num_key_value_heads", "1"),
            ("head_dim", "256"),
        ],
    },
    Kind { golden: "olmo2", wide: &[] },
    Kind { golden: "qwen3_moe", wide: &[("moe_intermediate_size", "768")] },
    Kind { golden: "glm4_moe", wide: &[("moe_intermediate_size", "768")] },
    Kind {
        golden: "deepseek_v3",
        wide: &[
            ("num_attention_heads", "16"),
            ("num_key_value_heads", "16"),
            ("q_lora_rank", "1024"),
            ("kv_lora_rank", "512"),
            ("qk_nope_head_dim", "128"),
            ("qk_rope_head_dim", "64"),
            ("v_head_dim", "128"),
            ("moe_intermediate_size", "768"),
        ],
    },
    Kind {
        golden: "lfm2",
        wide: &[
            ("block_dim", "2048"),
            ("block_ff_dim", "8448"),
            ("conv_dim", "2048"),
            ("conv_dim_out", "2048"),
            ("num_heads", "32"),
        ],
    },
    Kind {
        golden: "falcon_h1",
        wide: &[
            ("mamba_d_ssm", "2048"),
            ("mamba_n_heads", "32"),
            ("mamba_d_head", "64"),
            ("mamba_d_state", "128"),
            ("mamba_n_groups", "1"),
        ],
    },
    Kind {
        golden: "mamba2",
        wide: &[("num_heads", "64"), ("state_size", "128"), ("n_groups", "1")],
    },
    Kind {
        golden: "qwen3_5",
        wide: &[
            ("head_dim", "256"),
            ("num_attention_heads", "8"),
            ("num_key_value_heads", "2"),
            ("linear_key_head_dim", "128"),
            ("linear_value_head_dim", "128"),
            ("linear_num_key_heads", "16"),
            ("linear_num_value_heads", "16"),
            ("rope_parameters.mrope_section", "[11, 11, 10]"),
        ],
    },
];

impl Kind {
    /// Its configuration, from the recording's.
    pub fn widen(&self, config: &mut Value) -> Result<(), String> {
        for (key, text) in COMMON.iter().chain(self.wide) {
            let value: Value = serde_json::from_str(text).map_err(|e| format!("{key}: {e}"))?;
            let own = self.wide.iter().any(|(own, _)| own == key);
            let mut at = &mut *config;
            let mut path = key.split('.').peekable();
            while let Some(part) = path.next() {
                let map = at.as_object_mut().ok_or_else(|| format!("{key}: no map"))?;
                if path.peek().is_none() {
                    // What a family does not know of stays away.
                    if own || map.contains_key(part) {
                        map.insert(part.to_owned(), value);
                    }
                    break;
                }
                at = map.entry(part).or_insert_with(|| json!({}));
            }
        }
        Ok(())
    }
}
