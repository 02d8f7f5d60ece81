//! How large the numbers of a model file may be: one list. A number is checked when it is read, by
//! the name its file has for it ([`Whole`], and [`ranges`](crate::ranges) for those that are not
//! counted); the sizes of a spec and their products before anything is made of them ([`Checked`]). Whatever has passed multiplies within 32 bits where
//! lowering does so.

use tokenmill_ir::{Mask, MetaError, MetaValue};

use crate::error::ModelError;
use crate::hyper::{self, Key};
use crate::spec::*;

/// Layers.
pub const LAYERS: u32 = 1 << 12;
/// Heads, of attention and of recurrences.
pub const HEADS: u32 = 1 << 14;
/// Columns of a head, rotated or not, and of a recurrence's state.
pub const HEAD_COLUMNS: u32 = 1 << 12;
/// Columns of the model.
pub const COLUMNS: u32 = 1 << 18;
/// Inner columns of a feed-forward part.
pub const WIDTH: u32 = 1 << 20;
/// Experts.
pub const EXPERTS: u32 = 1 << 13;
/// Tokens of the vocabulary.
pub const VOCAB: u32 = 1 << 24;
/// Tokens of the context.
pub const CONTEXT: u32 = 1 << 30;
/// Columns of what is compressed: queries, keys and values, the path beside a mixer.
pub const RANK: u32 = 1 << 16;
/// Taps of a convolution.
pub const TAPS: u32 = 1 << 10;
/// Streams beside each other.
pub const STREAMS: u32 = 1 << 4;
/// Numbers that a layer keeps of a sequence, whatever its length.
pub const STATE: u64 = 1 << 28;
/// Columns of all layers' inputs together.
pub const INPUTS: u64 = 1 << 28;
/// Weights of all layers: each has a description in memory.
pub const WEIGHTS: u64 = 1 << 20;
/// Anything else that is counted: tokens of a window, ids, layers between layers of a kind.
pub const COUNT: u32 = i32::MAX as u32;

/// Names of whole numbers (in GGUF behind the architecture's prefix), the least and the most.
type Row = (&'static [&'static str], u32, u32);

const WHOLE: &[Row] = &[
    (
        &["num_hidden_layers", "n_layer", "num_layers", "n_layers", "block_count", "depth"],
        1,
        LAYERS,
    ),
    (
        &[
            "hidden_size",
            "n_embd",
            "d_model",
            "dim",
            "embedding_length",
            "embedding_size",
            "mamba_d_ssm",
            "embed_dim",
            "out_hidden_size",
        ],
        1,
        COLUMNS,
    ),
    (&["ssm.inner_size"], 1, COLUMNS),
    (&["num_attention_heads", "n_head", "n_heads", "attention.head_count"], 1, HEADS),
    // (0 in lists: a layer without attention.)
    (&["attention.head_count_kv"], 0, HEADS),
    (
        &[
            "num_key_value_heads",
            "num_kv_heads",
            "num_global_key_value_heads",
            "num_heads",
            "mamba_n_heads",
            "n_groups",
            "mamba_n_groups",
            "linear_num_key_heads",
            "linear_num_value_heads",
            "ssm.group_count",
            "ssm.time_step_rank",
        ],
        1,
        HEADS,
    ),
    (
        &[
            "head_dim",
            "global_head_dim",
            "qk_rope_head_dim",
            "qk_nope_head_dim",
            "v_head_dim",
            "linear_key_head_dim",
            "linear_value_head_dim",
            "mamba_d_head",
            "mamba_d_state",
            "state_size",
            "attention.key_length",
            "attention.key_length_mla",
            "attention.key_length_swa",
            "attention.value_length",
            "attention.value_length_mla",
            "rope.dimension_count",
            "rope.dimension_count_swa",
            "ssm.state_size",
        ],
        1,
        HEAD_COLUMNS,
    ),
    // (0: a layer or a kind of layer without such a part.)
    (
        &[
            "intermediate_size",
            "ffn_dim",
            "n_inner",
            "hidden_dim",
            "moe_intermediate_size",
            "shared_expert_intermediate_size",
            "shared_intermediate_size",
            "intermediate_size_mlp",
            "block_ff_dim",
            "hidden_size_per_layer_input",
            "feed_forward_length",
            "expert_feed_forward_length",
            "expert_shared_feed_forward_length",
            "embedding_length_per_layer_input",
        ],
        0,
        WIDTH,
    ),
    (
        &[
            "num_local_experts",
            "num_experts",
            "n_routed_experts",
            "num_experts_per_tok",
            "experts_per_token",
            "top_k_experts",
            "n_shared_experts",
            "n_group",
            "topk_group",
            "expert_count",
            "expert_used_count",
            "expert_shared_count",
            "expert_group_count",
            "expert_group_used_count",
        ],
        0,
        EXPERTS,
    ),
    (&["vocab_size"], 1, VOCAB),
    (&["max_position_embeddings", "n_positions", "context_length"], 1, CONTEXT),
    (
        &[
            "q_lora_rank",
            "kv_lora_rank",
            "laurel_rank",
            "attention.q_lora_rank",
            "attention.kv_lora_rank",
        ],
        1,
        RANK,
    ),
    (
        &[
            "conv_kernel",
            "mamba_d_conv",
            "linear_conv_kernel_dim",
            "conv_L_cache",
            "ssm.conv_kernel",
            "shortconv.l_cache",
        ],
        1,
        TAPS,
    ),
    (&["altup_num_inputs", "altup.num_inputs"], 1, STREAMS),
    (&["mamba_expand", "expand"], 1, 1 << 10),
    (&["floor_scale", "local_attention", "attention_chunk_size"], 1, COUNT),
    // Of encoders of images.
    (&["patch_size"], 1, 1 << 8),
    (
        &[
            "in_channels",
            "num_channels",
            "temporal_patch_size",
            "spatial_merge_size",
            "merge_kernel_size",
            "pooling_kernel_size",
        ],
        1,
        1 << 4,
    ),
    (&["pos_emb_height", "pos_emb_width"], 1, 1 << 12),
    (&["position_embedding_size"], 1, 1 << 20),
    (&["projector_input_dim", "projector_output_dim"], 1, COLUMNS),
    (&["image_size", "window_size"], 1, 1 << 14),
    (&["num_position_embeddings"], 1, 1 << 24),
];

/// A whole number of a file, within the limits of its name.
#[derive(Debug, Clone, Copy)]
pub struct Whole(u32);

impl Whole {
    /// The number `value` of `key`, which is called `short` in the list.
    ///
    /// # Errors
    /// [`MetaError::Range`] for what is no number, or none within its limits.
    pub fn of(key: &str, short: &str, value: &MetaValue) -> Result<Self, MetaError> {
        let row = WHOLE.iter().find(|(names, ..)| names.contains(&short));
        let (least, most) = row.map_or((0, COUNT), |(_, least, most)| (*least, *most));
        match value.as_u32().filter(|n| (least..=most).contains(n)) {
            Some(n) => Ok(Self(n)),
            None => Err(out_of_range(key, least, most, value.told())),
        }
    }

    /// Whether a name has limits of its own.
    pub fn has(short: &str) -> bool {
        WHOLE.iter().any(|(names, ..)| names.contains(&short))
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }
}

fn out_of_range(key: &str, least: u32, most: u32, found: String) -> MetaError {
    MetaError::Range { key: key.to_owned(), least, most, found }
}

/// A spec whose sizes and products have been checked.
pub struct Checked<'a>(&'a ModelSpec);

impl<'a> Checked<'a> {
    /// Checks a spec for a file of that many tensors; `name` says how the file spells a key.
    ///
    /// # Errors
    /// [`ModelError`] with the key and the numbers.
    pub fn of(
        spec: &'a ModelSpec,
        tensors: usize,
        name: &dyn Fn(Key) -> String,
    ) -> Result<Self, ModelError> {
        Check { spec, name }.all(tensors)?;
        Ok(Self(spec))
    }

    /// The spec.
    pub fn get(&self) -> &'a ModelSpec {
        self.0
    }
}

struct Check<'a> {
    spec: &'a ModelSpec,
    name: &'a dyn Fn(Key) -> String,
}

/// Radians a position; of the longest text they stay below 2⁴⁰, where sines are still finite.
const MOST_FREQUENCY: f32 = 1e3;
/// Rows of weights that a layer has beside experts, about.
const WEIGHTS_A_LAYER: u64 = 32;

impl Check<'_> {
    fn all(&self, tensors: usize) -> Result<(), ModelError> {
        let spec = self.spec;
        let layers = u32::try_from(spec.layers.len()).unwrap_or(u32::MAX);
        within(&(self.name)(hyper::LAYERS), layers, 1, LAYERS)?;
        layers_have_tensors((self.name)(hyper::LAYERS), layers, tensors)?;
        within(&(self.name)(hyper::HIDDEN), spec.hidden, 1, COLUMNS)?;
        within(&(self.name)(hyper::CONTEXT), spec.context, 1, CONTEXT)?;
        within("rows of the embedding", spec.vocab, 1, VOCAB)?;
        within("columns of the embedding", spec.embed.width.unwrap_or(1), 1, COLUMNS)?;
        finite("the scale of the embedding", spec.embed.scale)?;
        if let Output::Logits { scale, softcap } = spec.output {
            finite("the scale of the logits", scale)?;
            finite("the cap of the logits", softcap.unwrap_or(0.0))?;
        }
        if let Output::Projected { cols, .. } = spec.output {
            within("columns of a text's vector", cols, 1, COLUMNS)?;
        }
        if let Some(inputs) = spec.embed.per_layer {
            within("columns of a layer's input", inputs.width, 1, WIDTH)?;
            product("columns of all layers' inputs", &[inputs.width, layers], INPUTS)?;
        }
        if let Some(streams) = &spec.streams {
            within("streams", streams.count, 1, STREAMS)?;
            within("columns of the low-rank path", streams.rank, 1, RANK)?;
        }
        let mut weights = 0;
        for (i, layer) in spec.layers.iter().enumerate() {
            weights += WEIGHTS_A_LAYER;
            for branch in &layer.branches {
                finite("the scale of a branch", branch.scale)?;
                match &branch.body {
                    Body::Mix(mixers) => mixers.iter().try_for_each(|m| self.mixer(i, m))?,
                    Body::Ffn(ffn) => weights += self.ffn(ffn)?,
                    Body::LayerInput(_) => {}
                }
            }
        }
        match weights <= WEIGHTS {
            true => Ok(()),
            false => {
                let found = format!("{weights} in {layers} layers, at most {WEIGHTS}");
                Err(ModelError::unsupported("matrices of experts", found))
            }
        }
    }

    fn mixer(&self, layer: usize, mixer: &Mixer) -> Result<(), ModelError> {
        match mixer {
            Mixer::Attention(a) => self.attention(layer, a),
            Mixer::Latent(l) => {
                within(&(self.name)(hyper::HEADS), l.heads, 1, HEADS)?;
                within("columns of compressed queries", l.q_lora.unwrap_or(1), 1, RANK)?;
                within("columns of compressed keys", l.kv_lora, 1, RANK)?;
                within("unrotated columns of a head", l.nope, 1, HEAD_COLUMNS)?;
                within("columns of a value head", l.v_dim, 1, HEAD_COLUMNS)?;
                within("rotated columns of a head", l.rope_dim, 2, HEAD_COLUMNS)?;
                finite("the scale of attention", l.scale)?;
                self.rotation(&l.rope, l.rope_dim)
            }
            Mixer::DeltaNet(d) => {
                for (what, heads) in [("key heads", d.k_heads), ("value heads", d.v_heads)] {
                    within(what, heads, 1, HEADS)?;
                }
                for (what, columns) in [("key", d.k_dim), ("value", d.v_dim)] {
                    within(&format!("columns of a {what} head"), columns, 1, HEAD_COLUMNS)?;
                }
                groups("key heads", d.k_heads, d.v_heads)?;
                product("numbers of a state", &[d.v_heads, d.k_dim, d.v_dim], STATE)?;
                taps(d.kernel, 2 * d.k_heads * d.k_dim + d.v_heads * d.v_dim)
            }
            Mixer::Mamba(m) => {
                within("heads of a scan", m.heads, 1, HEADS)?;
                within("columns of a scan's head", m.head_dim, 1, HEAD_COLUMNS)?;
                within("groups of a scan", m.groups, 1, HEADS)?;
                within("columns of a scan's state", m.state_dim, 1, HEAD_COLUMNS)?;
                groups("groups of a scan", m.groups, m.heads)?;
                product("numbers of a state", &[m.heads, m.head_dim, m.state_dim], STATE)?;
                for scale in m.part_scales.iter().chain([&m.in_scale, &m.out_scale]) {
                    finite("a multiplier of a scan", *scale)?;
                }
                taps(m.kernel, m.heads * m.head_dim + 2 * m.groups * m.state_dim)
            }
            Mixer::ShortConv(c) => taps(c.kernel, self.spec.hidden),
        }
    }

    fn attention(&self, layer: usize, a: &Attention) -> Result<(), ModelError> {
        let (heads, keys) = ((self.name)(hyper::HEADS), (self.name)(hyper::KV_HEADS));
        within(&heads, a.heads, 1, HEADS)?;
        within(&keys, a.kv_heads, 1, HEADS)?;
        within(&(self.name)(hyper::HEAD_DIM), a.head_dim, 1, HEAD_COLUMNS)?;
        if !a.heads.is_multiple_of(a.kv_heads) {
            let found = format!("{} for {} heads in layer {layer}", a.kv_heads, a.heads);
            return Err(ModelError::unsupported(&keys, found));
        }
        if let Mask::Window(n) | Mask::Chunk(n) = a.mask {
            within(&(self.name)(hyper::WINDOW), n, 1, COUNT)?;
        }
        if let Some(position_scale) = a.position_scale {
            within(
                "tokens between two steps of the scale of queries",
                position_scale.every,
                1,
                COUNT,
            )?;
            finite("the scale of queries", position_scale.beta)?;
        }
        if let KvSource::Layer(from) = a.kv
            && from >= layer
        {
            let found = format!("those of layer {from} in layer {layer}");
            return Err(ModelError::unsupported("shared keys", found));
        }
        finite("the scale of attention", a.scale)?;
        finite("the cap of attention", a.softcap.unwrap_or(0.0))?;
        let Multipliers { input, key, output } = a.multipliers;
        for scale in [input, key, output] {
            finite("a multiplier of attention", scale)?;
        }
        a.rope.as_ref().map_or(Ok(()), |rope| self.rotation(rope, a.head_dim))
    }

    fn rotation(&self, rope: &RopeSpec, columns: u32) -> Result<(), ModelError> {
        if rope.dims == 0 || !rope.dims.is_multiple_of(2) || rope.dims > columns {
            let found = format!("{} of {columns} columns of a head", rope.dims);
            return Err(ModelError::unsupported("rotated columns", found));
        }
        let made = crate::rope::rope(rope, None);
        let odd = |f: &f32| !(f.is_finite() && f.abs() <= MOST_FREQUENCY);
        if let Some(pair) = made.inv_freq.iter().position(odd) {
            let found = format!("{} of pair {pair}, base {}", made.inv_freq[pair], rope.theta);
            return Err(ModelError::unsupported("the frequency of a rotation", found));
        }
        match (1e-3..=1e3).contains(&made.magnitude) {
            true => Ok(()),
            false => Err(ModelError::unsupported("the factor of a rotation", made.magnitude)),
        }
    }

    /// Checks a feed-forward part; returns the matrices of its experts.
    fn ffn(&self, ffn: &Ffn) -> Result<u64, ModelError> {
        let width = |n| within(&(self.name)(hyper::FFN), n, 1, WIDTH);
        match ffn {
            Ffn::Gated { width: n, gate_scale, out_scale, cutoff, .. } => {
                for scale in [*gate_scale, *out_scale, cutoff.unwrap_or(0.0)] {
                    finite("a multiplier of a feed-forward part", scale)?;
                }
                width(*n).map(|()| 0)
            }
            Ffn::Plain { width: n, .. } => width(*n).map(|()| 0),
            Ffn::Swish { width: n, beta } => {
                finite("the steepness of an activation", *beta)?;
                width(*n).map(|()| 0)
            }
            Ffn::Experts(e) => self.experts(e),
            Ffn::Beside { width: n, experts, .. } => {
                width(*n)?;
                self.experts(experts)
            }
        }
    }

    fn experts(&self, e: &Experts) -> Result<u64, ModelError> {
        within(&(self.name)(hyper::EXPERTS), e.count, 1, EXPERTS)?;
        within(&(self.name)(hyper::EXPERT_FFN), e.width, 1, WIDTH)?;
        let shared = e.shared.map_or(1, |s| s.width);
        within(&(self.name)(hyper::SHARED_FFN), shared, 1, WIDTH)?;
        finite("the scale of experts", e.scale)?;
        if e.top == 0 || e.top > e.count {
            let all = (self.name)(hyper::EXPERTS);
            let found = format!("{} of {} experts ({all})", e.top, e.count);
            return Err(ModelError::unsupported(&(self.name)(hyper::EXPERTS_USED), found));
        }
        if let Some(g) = e.groups
            && (g.groups == 0
                || !e.count.is_multiple_of(g.groups)
                || g.keep == 0
                || g.keep > g.groups)
        {
            let found = format!("{} of {} groups of {} experts", g.keep, g.groups, e.count);
            return Err(ModelError::unsupported("groups of experts", found));
        }
        Ok(3 * u64::from(e.count))
    }
}

/// A model has a tensor for each layer at least.
///
/// # Errors
/// [`ModelError::Unsupported`] with both numbers.
pub fn layers_have_tensors(key: String, layers: u32, tensors: usize) -> Result<(), ModelError> {
    match layers as usize <= tensors {
        true => Ok(()),
        false => {
            let found = format!("{layers} layers in a file of {tensors} tensors");
            Err(ModelError::unsupported(&key, found))
        }
    }
}

fn within(key: &str, found: u32, least: u32, most: u32) -> Result<(), ModelError> {
    match (least..=most).contains(&found) {
        true => Ok(()),
        false => Err(out_of_range(key, least, most, found.to_string()).into()),
    }
}

fn finite(what: &str, number: f32) -> Result<(), ModelError> {
    if number.is_finite() { Ok(()) } else { Err(ModelError::unsupported(what, number)) }
}

fn groups(what: &str, groups: u32, heads: u32) -> Result<(), ModelError> {
    match heads % groups {
        0 => Ok(()),
        _ => Err(ModelError::unsupported(what, format!("{groups} for {heads} heads"))),
    }
}

/// Taps of a convolution over `channels`, of which all but one are kept.
fn taps(kernel: u32, channels: u32) -> Result<(), ModelError> {
    within("taps of a convolution", kernel, 1, TAPS)?;
    product("numbers kept of a convolution", &[kernel - 1, channels], STATE)
}

fn product(what: &str, factors: &[u32], most: u64) -> Result<(), ModelError> {
    let found = factors.iter().fold(1u64, |n, f| n.saturating_mul(u64::from(*f)));
    match found <= most {
        true => Ok(()),
        false => Err(ModelError::unsupported(what, format!("{found} (at most {most})"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classes::{Class, literal};

    #[test]
    fn every_number_has_limits() {
        let table = [
            ("num_hidden_layers", "0", "key 'k': expected a whole number from 1 to 4096, found 0"),
            ("block_count", "2147483648", "from 1 to 4096, found 2147483648"),
            ("hidden_size", "-1", "from 1 to 262144, found -1"),
            ("hidden_size", "2.5", "from 1 to 262144, found 2.5"),
            ("hidden_size", "NaN", "from 1 to 262144, found NaN"),
            ("hidden_size", "\"32\"", "from 1 to 262144, found the text \"32\""),
            ("hidden_size", "[1, 2]", "from 1 to 262144, found a list of 2"),
            ("pad_token_id", "4294967295", "from 0 to 2147483647, found 4294967295"),
            ("head_dim", "4097", "from 1 to 4096, found 4097"),
        ];
        for (name, value, expect) in table {
            let value = if value == "NaN" { MetaValue::Float(f64::NAN) } else { literal(value) };
            let told = Whole::of("k", name, &value).unwrap_err().to_string();
            assert!(told.ends_with(expect), "{name}: {told}");
        }
        assert_eq!(Whole::of("k", "head_dim", &MetaValue::Float(64.0)).unwrap().get(), 64);
    }

    #[test]
    fn no_name_has_two_rows() {
        let mut all: Vec<&str> = WHOLE.iter().flat_map(|row| row.0).copied().collect();
        all.extend(crate::ranges::names());
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn defaults_of_classes_are_within_limits() {
        for arch in crate::ARCHS {
            for class in arch.spellings.iter().filter_map(|s| Class::of(s)) {
                for (key, value) in class.fields.iter() {
                    if WHOLE.iter().any(|row| row.0.contains(&key)) && value.as_f64().is_some() {
                        Whole::of(key, key, value)
                            .unwrap_or_else(|e| panic!("{}: {e}", class.name));
                    }
                }
            }
        }
    }
}
