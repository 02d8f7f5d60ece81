//! Typed reading of hyper-parameters in both spellings: one table of keys, one reader.

use tokenmill_ir::{Checkpoint, Container, Meta, MetaError, MetaValue, PoolKind};

use crate::error::ModelError;
use crate::spec::RopeScaling;

/// A hyper-parameter's names: in config.json (first present wins) and in GGUF (after the
/// architecture's prefix).
#[derive(Debug, Clone, Copy)]
pub struct Key {
    hf: &'static [&'static str],
    gguf: &'static str,
}

macro_rules! keys {
    ($($(#[$doc:meta])* $name:ident = [$($hf:literal),*], $gguf:literal;)*) => {
        $($(#[$doc])* pub const $name: Key = Key { hf: &[$($hf),*], gguf: $gguf };)*
    };
}

keys! {
    /// Width of the residual stream.
    HIDDEN = ["hidden_size", "n_embd", "d_model", "dim"], "embedding_length";
    /// Layers.
    LAYERS = ["num_hidden_layers", "n_layer", "num_layers", "n_layers"], "block_count";
    /// Longest sequence.
    CONTEXT = ["max_position_embeddings", "n_positions"], "context_length";
    /// Query heads.
    HEADS = ["num_attention_heads", "n_head", "num_heads", "n_heads"], "attention.head_count";
    /// Key/value heads.
    KV_HEADS = ["num_key_value_heads", "num_kv_heads"], "attention.head_count_kv";
    /// Columns of a head.
    HEAD_DIM = ["head_dim"], "attention.key_length";
    /// Inner width of the feed-forward part.
    FFN = ["intermediate_size", "ffn_dim", "n_inner", "hidden_dim"], "feed_forward_length";
    /// Epsilon of root-mean-square norms.
    RMS_EPS = ["rms_norm_eps", "norm_eps", "layer_norm_epsilon", "block_norm_eps"],
        "attention.layer_norm_rms_epsilon";
    /// Epsilon of layer norms.
    LAYER_EPS = ["layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon"],
        "attention.layer_norm_epsilon";
    /// Sliding window.
    WINDOW = ["sliding_window"], "attention.sliding_window";
    /// Attention scale.
    ATTENTION_SCALE = ["attention_multiplier"], "attention.scale";
    /// Multiplies embeddings.
    EMBED_SCALE = ["embedding_multiplier"], "embedding_scale";
    /// Multiplies branches.
    RESIDUAL_SCALE = ["residual_multiplier"], "residual_scale";
    /// Divides or multiplies logits, by architecture.
    LOGIT_SCALE = ["logits_scaling", "logit_scale"], "logit_scale";
    /// Cap of attention scores.
    ATTENTION_SOFTCAP = ["attn_logit_softcapping"], "attn_logit_softcapping";
    /// Cap of logits.
    FINAL_SOFTCAP = ["final_logit_softcapping"], "final_logit_softcapping";
    /// Experts in all.
    EXPERTS = ["num_local_experts", "num_experts", "n_routed_experts"], "expert_count";
    /// Experts a token uses.
    EXPERTS_USED = ["num_experts_per_tok", "experts_per_token", "top_k_experts"],
        "expert_used_count";
    /// Inner width of an expert.
    EXPERT_FFN = ["moe_intermediate_size", "intermediate_size"], "expert_feed_forward_length";
    /// Inner width of the shared expert.
    SHARED_FFN = ["shared_expert_intermediate_size", "shared_intermediate_size"],
        "expert_shared_feed_forward_length";
    /// Rotary base.
    THETA = ["rope_theta", "rotary_emb_base"], "rope.freq_base";
    /// Rotated columns.
    ROPE_DIMS = ["rotary_dim"], "rope.dimension_count";
}

/// A checkpoint's hyper-parameters.
#[derive(Debug, Clone)]
pub struct Hyper<'a> {
    checkpoint: &'a Checkpoint,
    meta: &'a Meta,
    prefix: String,
}

impl<'a> Hyper<'a> {
    /// A reader; for multimodal Hugging Face configs the text part.
    pub fn new(checkpoint: &'a Checkpoint) -> Self {
        let mut meta = &checkpoint.meta;
        let mut prefix = String::new();
        match checkpoint.container {
            Container::Gguf => {
                let arch = meta.str("general.architecture").unwrap_or_default();
                prefix = format!("{arch}.");
            }
            Container::Hf => {
                if let Some(MetaValue::Map(text)) = meta.get("text_config") {
                    meta = text;
                }
            }
        }
        Self { checkpoint, meta, prefix }
    }

    /// The architecture's name as the file spells it.
    pub fn arch_name(&self) -> Result<&'a str, MetaError> {
        match self.checkpoint.container {
            Container::Gguf => self.meta.str("general.architecture"),
            Container::Hf => self.meta.str("model_type"),
        }
    }

    /// Whether the checkpoint is GGUF.
    pub fn is_gguf(&self) -> bool {
        self.checkpoint.container == Container::Gguf
    }

    /// The checkpoint.
    pub fn checkpoint(&self) -> &'a Checkpoint {
        self.checkpoint
    }

    /// The metadata of the language model, for keys only one architecture has.
    pub fn meta(&self) -> &'a Meta {
        self.meta
    }

    /// Whether the file is one that scores sequences with one number (a reranker).
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] for classifiers with several labels.
    pub fn is_classifier(&self) -> Result<bool, ModelError> {
        let names = self.checkpoint.meta.opt_list("architectures")?.unwrap_or_default();
        let classifies =
            |v: &MetaValue| v.as_str().is_some_and(|n| n.ends_with("ForSequenceClassification"));
        if !names.iter().any(classifies) {
            return Ok(false);
        }
        let labels = match self.checkpoint.meta.get("id2label") {
            Some(MetaValue::Map(labels)) => labels.iter().count(),
            _ => self.meta.opt_u32("num_labels")?.unwrap_or(2) as usize,
        };
        match labels {
            1 => Ok(true),
            n => {
                let what = "num_labels (classifiers of one label, rerankers, are supported)";
                Err(ModelError::unsupported(what, n))
            }
        }
    }

    /// How the rows of a sequence become one vector, where the files say so.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] for other ways than the mean, the first and the last row.
    pub fn pooling(&self) -> Result<Option<PoolKind>, ModelError> {
        if self.is_gguf() {
            let key = format!("{}pooling_type", self.prefix);
            return match self.meta.opt_u32(&key)? {
                None | Some(0) => Ok(None),
                Some(1) => Ok(Some(PoolKind::Mean)),
                Some(2) => Ok(Some(PoolKind::First)),
                Some(3) => Ok(Some(PoolKind::Last)),
                Some(other) => Err(ModelError::unsupported(&key, other)),
            };
        }
        let Some(MetaValue::Map(modes)) = self.checkpoint.meta.get("pooling") else {
            return Ok(None);
        };
        let mut found = None;
        for (key, value) in modes.iter() {
            let Some(mode) = key.strip_prefix("pooling_mode_") else { continue };
            if *value != MetaValue::Bool(true) {
                continue;
            }
            let kind = match mode {
                "mean_tokens" => PoolKind::Mean,
                "cls_token" => PoolKind::First,
                "lasttoken" => PoolKind::Last,
                _ => return Err(ModelError::unsupported("pooling", key)),
            };
            if found.replace(kind).is_some() {
                return Err(ModelError::unsupported("pooling", "several modes at once"));
            }
        }
        Ok(found)
    }

    /// A key of one architecture: `hf` in config.json or `gguf` after the prefix.
    pub fn own(&self, hf: &'static str, gguf: &str) -> String {
        if self.is_gguf() { format!("{}{gguf}", self.prefix) } else { hf.to_owned() }
    }

    /// The spelling of a key that this file uses.
    pub fn name(&self, key: Key) -> String {
        match self.checkpoint.container {
            Container::Gguf => format!("{}{}", self.prefix, key.gguf),
            Container::Hf => {
                let first = key.hf.iter().find(|k| self.meta.get(k).is_some());
                (*first.unwrap_or(&key.hf[0])).to_owned()
            }
        }
    }

    /// A required integer.
    pub fn u32(&self, key: Key) -> Result<u32, MetaError> {
        self.meta.u32(&self.name(key))
    }

    /// An integer, if present.
    pub fn opt_u32(&self, key: Key) -> Result<Option<u32>, MetaError> {
        self.meta.opt_u32(&self.name(key))
    }

    /// An integer that may be one number or a list with one a layer.
    pub fn layer_u32(&self, key: Key, layer: usize) -> Result<Option<u32>, MetaError> {
        let name = self.name(key);
        match self.meta.get(&name) {
            Some(MetaValue::List(items)) => {
                let value = items.get(layer).and_then(MetaValue::as_u32);
                let found = format!("a list of {}", items.len());
                let expected = "an integer for every layer";
                value.map(Some).ok_or(MetaError::Type { key: name, expected, found })
            }
            _ => self.meta.opt_u32(&name),
        }
    }

    /// A list of exactly N numbers of config.json, or the default.
    pub fn numbers<const N: usize>(
        &self,
        key: &str,
        default: [f32; N],
    ) -> Result<[f32; N], ModelError> {
        let Some(list) = self.meta.opt_list(key)? else { return Ok(default) };
        let numbers: Vec<f32> =
            list.iter().filter_map(MetaValue::as_f64).map(|x| x as f32).collect();
        <[f32; N]>::try_from(numbers)
            .map_err(|v| ModelError::unsupported(key, format!("a list of {} numbers", v.len())))
    }

    /// Inner width of an expert: its own key, or the usual one.
    pub fn expert_width(&self) -> Result<u32, MetaError> {
        self.opt_u32(EXPERT_FFN)?.map_or_else(|| self.u32(FFN), Ok)
    }

    /// A required number.
    pub fn f32(&self, key: Key) -> Result<f32, MetaError> {
        self.meta.f32(&self.name(key))
    }

    /// A number, if present.
    pub fn opt_f32(&self, key: Key) -> Result<Option<f32>, MetaError> {
        self.meta.opt_f32(&self.name(key))
    }

    /// Layers of the model itself; those behind them only draft tokens.
    pub fn layers(&self) -> Result<u32, MetaError> {
        let all = self.u32(LAYERS)?;
        Ok(if self.is_gguf() { all.saturating_sub(self.draft_layers()?) } else { all })
    }

    /// Layers behind the last that only draft tokens for speculation.
    pub fn draft_layers(&self) -> Result<u32, MetaError> {
        let key = self.own("num_nextn_predict_layers", "nextn_predict_layers");
        Ok(self.meta.opt_u32(&key)?.unwrap_or(0))
    }

    /// Whether each layer attends to everything, not to a window or a state: as the file lists it,
    /// else every `every`-th (or the file's own number), the last of each run or the `first`.
    pub fn full_layers(&self, every: u32, first: bool) -> Result<Vec<bool>, ModelError> {
        let layers = self.layers()? as usize;
        let lists = [
            self.own("layer_types", "attention.sliding_window_pattern"),
            self.own("", "attention.recurrent_layers"),
        ];
        let list = lists.iter().find_map(|key| match self.meta.get(key) {
            Some(MetaValue::List(list)) => Some(list),
            _ => None,
        });
        let mut every = every;
        for key in [
            self.own("sliding_window_pattern", "attention.sliding_window_pattern"),
            self.own("global_attn_every_n_layers", ""),
            self.own("full_attention_interval", "full_attention_interval"),
        ] {
            every = self.meta.get(&key).and_then(MetaValue::as_u32).unwrap_or(every);
        }
        let every = every.max(1) as usize;
        let full = |i: usize| match list.and_then(|l| l.get(i)) {
            Some(MetaValue::Bool(other)) => !other,
            Some(kind) => kind.as_str() == Some("full_attention"),
            None => (i + usize::from(!first)).is_multiple_of(every),
        };
        Ok((0..layers).map(full).collect())
    }

    /// Vocabulary size: rows of the embedding, which is what counts.
    pub fn vocab(&self) -> Result<u32, ModelError> {
        let tensor = crate::names::find(self.checkpoint, crate::names::Role::Embed, 0)?;
        u32::try_from(tensor.rows()).map_err(|_| ModelError::Shape {
            tensor: tensor.name.clone(),
            expected: "at most 2^32 rows".into(),
            found: tensor.rows().to_string(),
        })
    }

    /// Columns of a head: stated, or hidden over heads.
    pub fn head_dim(&self) -> Result<u32, MetaError> {
        match self.opt_u32(HEAD_DIM)? {
            Some(d) => Ok(d),
            None => Ok(self.u32(HIDDEN)? / self.u32(HEADS)?.max(1)),
        }
    }

    /// The activation named in config.json, or the architecture's own in GGUF.
    pub fn activation(&self, own: tokenmill_ir::Act) -> Result<tokenmill_ir::Act, ModelError> {
        let mut named = None;
        for key in ["hidden_activation", "hidden_act", "activation_function", "activation"] {
            named = named.or(self.meta.opt_str(key)?);
        }
        named.map_or(Ok(own), |name| Self::activation_of("hidden_act", name))
    }

    /// The activation that `key` calls `name`.
    pub fn activation_of(key: &str, name: &str) -> Result<tokenmill_ir::Act, ModelError> {
        use tokenmill_ir::Act;
        Ok(match name {
            "silu" | "swish" => Act::Silu,
            "gelu" => Act::Gelu,
            "gelu_pytorch_tanh" | "gelu_new" => Act::GeluTanh,
            "relu" => Act::Relu,
            "relu2" => Act::ReluSquared,
            other => return Err(ModelError::unsupported(key, other)),
        })
    }

    /// A number of the rotary embedding, wherever this generation of configs keeps it.
    pub fn rope_number(&self, key: &str) -> Result<Option<f64>, MetaError> {
        for at in ["rope_parameters.", "rope_scaling.", ""] {
            if let Some(number) = self.meta.opt_f64(&format!("{at}{key}"))? {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    /// Rotary base; `kind` selects the entry of configs that keep one per layer type.
    pub fn theta(&self, kind: &str) -> Result<f64, ModelError> {
        let nested = [
            format!("rope_parameters.{kind}.rope_theta"),
            "rope_parameters.rope_theta".to_owned(),
            self.name(THETA),
        ];
        for key in &nested {
            if let Some(theta) = self.meta.opt_f64(key)? {
                return Ok(theta);
            }
        }
        Ok(10_000.0)
    }

    /// How rotary embeddings are stretched.
    pub fn rope_scaling(&self, kind: &str) -> Result<RopeScaling, ModelError> {
        if self.is_gguf() { self.gguf_rope_scaling() } else { self.hf_rope_scaling(kind) }
    }

    fn gguf_rope_scaling(&self) -> Result<RopeScaling, ModelError> {
        let key = |k: &str| format!("{}rope.scaling.{k}", self.prefix);
        if self.checkpoint.tensor("rope_freqs.weight").is_some() {
            return Ok(RopeScaling::Tensor { magnitude: 1.0 });
        }
        if self.checkpoint.tensor("rope_factors_short.weight").is_some() {
            let magnitude = self.meta.opt_f32(&key("attn_factor"))?.unwrap_or(1.0);
            return Ok(RopeScaling::Tensor { magnitude });
        }
        let factor = self.meta.opt_f64(&key("factor"))?.unwrap_or(1.0);
        match self.meta.opt_str(&key("type"))? {
            None | Some("none") => Ok(RopeScaling::None),
            Some("linear") => Ok(RopeScaling::Linear { factor }),
            Some("yarn") => {
                let original = self.meta.opt_f64(&key("original_context_length"))?;
                Ok(RopeScaling::Yarn {
                    factor,
                    beta_fast: self.meta.opt_f64(&key("yarn_beta_fast"))?.unwrap_or(32.0),
                    beta_slow: self.meta.opt_f64(&key("yarn_beta_slow"))?.unwrap_or(1.0),
                    original: original.unwrap_or(f64::from(self.u32(CONTEXT)?)),
                    magnitude: (0.1 * factor.ln() + 1.0) as f32,
                    truncate: true,
                })
            }
            Some(other) => Err(ModelError::unsupported(&key("type"), other)),
        }
    }

    fn hf_rope_scaling(&self, kind: &str) -> Result<RopeScaling, ModelError> {
        let maps = [
            format!("rope_parameters.{kind}"),
            "rope_parameters".to_owned(),
            "rope_scaling".to_owned(),
        ];
        let found = maps.iter().find_map(|k| match self.meta.get(k) {
            Some(MetaValue::Map(m)) => Some((k.as_str(), m)),
            _ => None,
        });
        let Some((at, map)) = found else { return Ok(RopeScaling::None) };
        let name = match map.opt_str("rope_type")? {
            Some(n) => n,
            None => map.opt_str("type")?.unwrap_or("default"),
        };
        let number = |key: &str| {
            map.opt_f64(key)?
                .ok_or_else(|| MetaError::Missing { key: format!("{at}.{key}") })
                .map_err(ModelError::from)
        };
        match name {
            "default" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor: number("factor")? }),
            "llama3" => Ok(RopeScaling::Llama3 {
                factor: number("factor")?,
                low: number("low_freq_factor")?,
                high: number("high_freq_factor")?,
                original: number("original_max_position_embeddings")?,
            }),
            "yarn" => self.yarn(map, number("factor")?),
            "longrope" => self.longrope(map),
            other => Err(ModelError::unsupported(&format!("{at}.rope_type"), other)),
        }
    }

    fn yarn(&self, map: &Meta, factor: f64) -> Result<RopeScaling, ModelError> {
        let magnitude = match map.opt_f64("attention_factor")? {
            Some(a) => a,
            None => match (map.opt_f64("mscale")?, map.opt_f64("mscale_all_dim")?) {
                (Some(m), Some(all)) if m != 0.0 && all != 0.0 => {
                    yarn_magnitude(factor, m) / yarn_magnitude(factor, all)
                }
                _ => yarn_magnitude(factor, 1.0),
            },
        };
        let original = match map.opt_f64("original_max_position_embeddings")? {
            Some(o) => o,
            None => f64::from(self.u32(CONTEXT)?),
        };
        Ok(RopeScaling::Yarn {
            factor,
            beta_fast: map.opt_f64("beta_fast")?.unwrap_or(32.0),
            beta_slow: map.opt_f64("beta_slow")?.unwrap_or(1.0),
            original,
            magnitude: magnitude as f32,
            truncate: map.opt_bool("truncate")?.unwrap_or(true),
        })
    }

    fn longrope(&self, map: &Meta) -> Result<RopeScaling, ModelError> {
        let context = f64::from(self.u32(CONTEXT)?);
        let original = match map.opt_f64("original_max_position_embeddings")? {
            Some(o) => o,
            None => self.meta.opt_f64("original_max_position_embeddings")?.unwrap_or(context),
        };
        // Short factors hold up to the original context; sequences beyond it would need the long
        // ones for every position, so the context limit is the original one.
        let list = map.opt_list("short_factor")?.unwrap_or_default();
        let factors = list.iter().filter_map(MetaValue::as_f64).collect();
        let ratio = map.opt_f64("factor")?.unwrap_or(context / original);
        let magnitude = match map.opt_f64("attention_factor")? {
            Some(a) => a,
            None if ratio <= 1.0 => 1.0,
            None => (1.0 + ratio.ln() / original.ln()).sqrt(),
        };
        Ok(RopeScaling::Factors { factors, magnitude: magnitude as f32 })
    }
}

/// YaRN's `0.1 · mscale · ln(factor) + 1`.
pub fn yarn_magnitude(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}
