//! Typed reading of hyper-parameters in both spellings: one table of keys, one reader.

use tokenmill_ir::{Act, Checkpoint, Container, MetaError, MetaValue, PoolKind};

use crate::classes::Class;
use crate::error::ModelError;
use crate::limits;
use crate::neutral;
use crate::params::{Params, TEXT, is_map, shown, source};

/// A hyper-parameter's names: in config.json (first present wins) and in GGUF (after the
/// architecture's prefix).
#[derive(Debug, Clone, Copy)]
pub struct Key {
    hf: &'static [&'static str],
    gguf: &'static str,
}

impl Key {
    /// Whether config.json calls it so.
    pub(crate) fn is_in_config(self, name: &str) -> bool {
        self.hf.contains(&name)
    }

    /// What files usually call it.
    pub(crate) fn usual(self, container: Container) -> &'static str {
        match container {
            Container::Gguf => self.gguf,
            Container::Hf => self.hf[0],
        }
    }
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
    /// Rotated columns.
    ROPE_DIMS = ["rotary_dim"], "rope.dimension_count";
}

/// A checkpoint's hyper-parameters.
#[derive(Debug, Clone)]
pub struct Hyper<'a> {
    checkpoint: &'a Checkpoint,
    params: Params,
    class: Option<Class>,
    arch: String,
    prefix: String,
}

impl<'a> Hyper<'a> {
    /// A reader; for multimodal Hugging Face configs the text part.
    ///
    /// # Errors
    /// [`ModelError::Meta`] where the file names no architecture, [`ModelError::Unsupported`] where
    /// it gives one key two values.
    pub fn new(checkpoint: &'a Checkpoint) -> Result<Self, ModelError> {
        let mut prefix = String::new();
        let (arch, class) = match checkpoint.container {
            Container::Gguf => {
                let arch = checkpoint.meta.str("general.architecture")?;
                prefix = format!("{arch}.");
                (arch, None)
            }
            Container::Hf => {
                if let Some(other) = checkpoint.meta.get(TEXT).filter(|v| !is_map(v)) {
                    let (key, found) = (TEXT.to_owned(), other.told());
                    return Err(MetaError::Type { key, expected: "a map", found }.into());
                }
                let own = source(checkpoint).opt_str("model_type")?;
                let kind = own.map_or_else(|| checkpoint.meta.str("model_type"), Ok)?;
                // As transformers takes a Mistral that lists its layers' kinds.
                let listed = source(checkpoint).get("layer_types").is_some();
                let kind = if kind == "mistral" && listed { "ministral" } else { kind };
                (kind, Class::of(kind))
            }
        };
        let params = Params::of(checkpoint, class.as_ref())?;
        let arch = class.as_ref().map_or(arch, |c| c.name).to_owned();
        Ok(Self { checkpoint, params, class, arch, prefix })
    }

    /// The architecture's name as the file spells it, or its configuration class.
    pub fn arch_name(&self) -> &str {
        &self.arch
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
    pub fn meta(&self) -> &Params {
        &self.params
    }

    /// The configuration class of the family, for config.json.
    pub fn class(&self) -> Option<&Class> {
        self.class.as_ref()
    }

    /// Keys of config.json that the family's configuration class does not know: what they ask is
    /// passed over, as transformers does.
    pub fn passed_over(&self) -> Vec<&str> {
        neutral::unknown(&self.params).collect()
    }

    /// Refuses keys of the file that nobody has read although they could matter.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] with the first of them.
    pub fn check_all_read(&self) -> Result<(), ModelError> {
        neutral::check(&self.params, self.class.as_ref(), &self.prefix)
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
            _ => self.checkpoint.meta.opt_u32("num_labels")?.unwrap_or(2) as usize,
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
            return match self.params.opt_u32(&key)? {
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

    /// The spelling of a key that this file uses, for messages.
    pub fn name(&self, key: Key) -> String {
        self.params.spelled(&self.field(key)).to_owned()
    }

    /// The name under which a key's value is kept.
    pub fn field(&self, key: Key) -> String {
        match self.checkpoint.container {
            Container::Gguf => format!("{}{}", self.prefix, key.gguf),
            Container::Hf => {
                let known = |k: &&&str| match &self.class {
                    Some(class) => class.knows(k),
                    None => self.params.has(k),
                };
                (*key.hf.iter().find(known).unwrap_or(&key.hf[0])).to_owned()
            }
        }
    }

    /// A required integer.
    pub fn u32(&self, key: Key) -> Result<u32, MetaError> {
        self.params.u32(&self.field(key))
    }

    /// An integer, if present.
    pub fn opt_u32(&self, key: Key) -> Result<Option<u32>, MetaError> {
        self.params.opt_u32(&self.field(key))
    }

    /// An integer that may be one number or a list with one a layer.
    pub fn layer_u32(&self, key: Key, layer: usize) -> Result<Option<u32>, MetaError> {
        let name = self.field(key);
        match self.params.get(&name) {
            Some(MetaValue::List(items)) => {
                let Some(value) = items.get(layer) else {
                    let found = format!("a list of {}", items.len());
                    let expected = "a whole number for every layer";
                    return Err(MetaError::Type { key: self.name(key), expected, found });
                };
                self.params.whole(&name, value).map(Some)
            }
            _ => self.params.opt_u32(&name),
        }
    }

    /// A list of exactly N numbers of config.json, or the default.
    pub fn numbers<const N: usize>(
        &self,
        key: &str,
        default: [f32; N],
    ) -> Result<[f32; N], ModelError> {
        let Some(list) = self.params.opt_list(key)? else { return Ok(default) };
        let Ok(values) = <&[MetaValue; N]>::try_from(list) else {
            return Err(ModelError::unsupported(key, format!("a list of {}", list.len())));
        };
        let mut numbers = default;
        for (number, value) in numbers.iter_mut().zip(values) {
            // Only what has no bound by default may have none.
            let unbound = value.as_f64().is_some_and(|x| f64::from(*number) == x);
            if !unbound {
                *number = self.params.real(key, value)? as f32;
            }
        }
        Ok(numbers)
    }

    /// Inner width of an expert: its own key, or the usual one.
    pub fn expert_width(&self) -> Result<u32, MetaError> {
        self.opt_u32(EXPERT_FFN)?.map_or_else(|| self.u32(FFN), Ok)
    }

    /// A required number.
    pub fn f32(&self, key: Key) -> Result<f32, MetaError> {
        self.params.f32(&self.field(key))
    }

    /// A number, if present.
    pub fn opt_f32(&self, key: Key) -> Result<Option<f32>, MetaError> {
        self.params.opt_f32(&self.field(key))
    }

    /// Layers of the model itself; those behind them only draft tokens.
    ///
    /// # Errors
    /// [`ModelError`] for more than the file has tensors: nothing is made for each before that.
    pub fn layers(&self) -> Result<u32, ModelError> {
        let all = self.u32(LAYERS)?;
        limits::layers_have_tensors(self.name(LAYERS), all, self.checkpoint.tensors.len())?;
        match self.draft_layers()? {
            drafts if !self.is_gguf() || drafts == 0 => Ok(all),
            drafts if drafts < all => Ok(all - drafts),
            drafts => {
                let found = format!("{drafts} of {all} layers");
                Err(ModelError::unsupported(&self.own("", "nextn_predict_layers"), found))
            }
        }
    }

    /// Layers behind the last that only draft tokens for speculation.
    pub fn draft_layers(&self) -> Result<u32, MetaError> {
        let mut key = self.own("num_nextn_predict_layers", "nextn_predict_layers");
        if let Some(class) = &self.class {
            key = class.field(&key).to_owned();
        }
        // (A class's default says nothing of this file.)
        let count = self.params.opt_u32(&key)?.filter(|_| self.params.is_written(&key));
        Ok(count.unwrap_or(0))
    }

    /// The kind of each layer: as `layer_types` lists them, else the `usual` one. Only these kinds
    /// are possible.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] for other kinds and lists of another length.
    pub fn kinds(
        &self,
        possible: &[&'static str],
        usual: impl Fn(usize) -> &'static str,
    ) -> Result<Vec<&'static str>, ModelError> {
        let layers = self.layers()? as usize;
        let Some(list) = self.params.opt_list(&self.own("layer_types", ""))? else {
            return Ok((0..layers).map(usual).collect());
        };
        if list.len() != layers {
            let found = format!("a list of {} for {layers} layers", list.len());
            return Err(ModelError::unsupported("layer_types", found));
        }
        let kind = |value: &MetaValue| {
            let name = match value.as_str() {
                Some("attention") => "full_attention",
                Some("mamba") => "linear_attention",
                other => other.unwrap_or_default(),
            };
            let found = possible.iter().find(|p| **p == name).copied();
            found.ok_or_else(|| ModelError::unsupported("layer_types", shown(value)))
        };
        list.iter().map(kind).collect()
    }

    /// Whether each layer attends to everything, not to a window or a state (`other`): as the file
    /// lists it, else every `every`-th (or the file's own number), the last of each run or the
    /// `first`.
    pub fn full_layers(
        &self,
        other: &'static str,
        every: u32,
        first: bool,
    ) -> Result<Vec<bool>, ModelError> {
        let mut every = every;
        for key in [
            self.own("sliding_window_pattern", "attention.sliding_window_pattern"),
            self.own("global_attn_every_n_layers", ""),
            self.own("full_attention_interval", "full_attention_interval"),
        ] {
            every = match self.params.get(&key) {
                Some(MetaValue::Str(name)) if !self.params.has("layer_types") => {
                    return Err(ModelError::unsupported(
                        &key,
                        format!("{name} without layer_types"),
                    ));
                }
                // (A list says it of each layer.)
                None | Some(MetaValue::Str(_) | MetaValue::List(_)) => every,
                Some(value) => self.params.whole(&key, value)?,
            };
        }
        let every = every.max(1) as usize;
        let usual = |i: usize| (i + usize::from(!first)).is_multiple_of(every);
        if !self.is_gguf() {
            let kinds = self.kinds(&["full_attention", other], |i| match usual(i) {
                true => "full_attention",
                false => other,
            })?;
            return Ok(kinds.into_iter().map(|k| k == "full_attention").collect());
        }
        let lists = ["attention.sliding_window_pattern", "attention.recurrent_layers"];
        let list = lists.iter().find_map(|key| match self.params.get(&self.own("", key)) {
            Some(MetaValue::List(list)) => Some(list),
            _ => None,
        });
        let full = |i: usize| match list.and_then(|l| l.get(i)) {
            Some(MetaValue::Bool(other)) => !other,
            _ => usual(i),
        };
        Ok((0..self.layers()? as usize).map(full).collect())
    }

    /// The sliding window, if the model has one.
    pub fn window(&self) -> Result<Option<u32>, ModelError> {
        match self.opt_u32(WINDOW)? {
            Some(0) if self.is_gguf() => Ok(None),
            Some(0) => Err(ModelError::unsupported("sliding_window", 0)),
            window => Ok(window),
        }
    }

    /// Vocabulary size: rows of the embedding, which is what counts; a number that the file has
    /// beside must be the same.
    ///
    /// # Errors
    /// [`ModelError`] for others, and for more rows than a vocabulary may have.
    pub fn vocab(&self) -> Result<u32, ModelError> {
        let tensor = crate::names::find(self.checkpoint, crate::names::Role::Embed, 0)?;
        let rows = tensor.rows();
        let key = self.own("vocab_size", "vocab_size");
        let said = self.params.opt_u32(&key)?.filter(|_| self.params.is_written(&key));
        if let Some(said) = said.filter(|n| u64::from(*n) != rows) {
            let found = format!("{said} beside {rows} rows of '{}'", tensor.name);
            return Err(ModelError::unsupported(&key, found));
        }
        let fits = |n: &u32| (1..=limits::VOCAB).contains(n);
        u32::try_from(rows).ok().filter(fits).ok_or_else(|| ModelError::Shape {
            tensor: tensor.name.clone(),
            expected: format!("1 to {} rows", limits::VOCAB),
            found: rows.to_string(),
        })
    }

    /// The key that says how wide a head is.
    pub fn head_key(&self) -> String {
        match (self.params.has("qk_rope_head_dim"), self.params.has(&self.field(HEAD_DIM))) {
            (true, _) if !self.is_gguf() => "qk_rope_head_dim".to_owned(),
            (_, true) => self.name(HEAD_DIM),
            _ => self.name(HIDDEN),
        }
    }

    /// Columns of a head: stated, or hidden over heads.
    pub fn head_dim(&self) -> Result<u32, ModelError> {
        // Where keys are latent, a head of the configuration is what is rotated of it.
        let rotated = self.params.opt_u32("qk_rope_head_dim")?.filter(|_| !self.is_gguf());
        match (rotated, self.opt_u32(HEAD_DIM)?) {
            (Some(d), Some(other)) if d != other => {
                let found = format!("{other} beside qk_rope_head_dim = {d}");
                Err(ModelError::unsupported("head_dim", found))
            }
            (Some(d), _) | (None, Some(d)) => Ok(d),
            (None, None) => {
                let (columns, heads) = (self.u32(HIDDEN)?, self.u32(HEADS)?);
                if heads > columns {
                    let found = format!("{heads} heads of {} = {columns}", self.name(HIDDEN));
                    return Err(ModelError::unsupported(&self.name(HEADS), found));
                }
                Ok(columns / heads)
            }
        }
    }

    /// The activation named in config.json, or the architecture's own in GGUF.
    pub fn activation(&self, own: Act) -> Result<Act, ModelError> {
        let mut named = None;
        for key in ["hidden_activation", "hidden_act", "activation_function", "activation"] {
            let key = self.own(key, key);
            named = named.or(self.params.opt_str(&key)?.map(|name| (key, name.to_owned())));
        }
        named.map_or(Ok(own), |(key, name)| act(&key, &name))
    }

    /// Where recurrences, whose activation is fixed, take the one that is named.
    pub fn silu(&self) -> Result<(), ModelError> {
        match self.activation(Act::Silu)? {
            Act::Silu => Ok(()),
            _ => {
                let name = self.params.opt_str("hidden_act")?.unwrap_or_default();
                Err(ModelError::unsupported("hidden_act", format!("{name} in a recurrence")))
            }
        }
    }
}

/// An activation by the name it has in transformers.
pub fn act(key: &str, name: &str) -> Result<Act, ModelError> {
    Ok(match name {
        "silu" | "swish" => Act::Silu,
        "gelu" | "gelu_python" => Act::Gelu,
        "gelu_pytorch_tanh" | "gelu_python_tanh" | "gelu_new" | "gelu_fast" | "gelu_accurate" => {
            Act::GeluTanh
        }
        "relu" => Act::Relu,
        "relu2" => Act::ReluSquared,
        other => return Err(ModelError::unsupported(key, other)),
    })
}
