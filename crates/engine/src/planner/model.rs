//! A model as data: what its files and its program say.

use serde::{Deserialize, Serialize};
use tokenmill_ir::GroupKind;

use super::factors::{self, Arithmetic, Class, Factor, Instructions, SMALL_BYTES};
use super::memory;

/// What a model can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ability {
    /// It goes on with a text.
    Text,
    /// It has a chat template.
    Chat,
    /// Its template has a place for tools.
    Tools,
    /// It gives vectors.
    Embed,
    /// It ranks documents.
    Rerank,
}

/// A model. Bytes unless a name says otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// As commands take it.
    pub name: String,
    /// Whether its files are here; else `name` is what `pull` takes.
    #[serde(default = "yes")]
    pub here: bool,
    /// Its files.
    pub files: u64,
    /// Its weights in memory, in the device's layout.
    pub weights: u64,
    /// Weights that every step reads once, experts excepted.
    pub reads: u64,
    /// Its experts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<Experts>,
    /// What sequences keep, in every format that may be chosen, the best first.
    pub kv: Vec<Kv>,
    /// Buffers of the largest step.
    pub buffers: u64,
    /// The context that these are for: none longer is planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffers_for: Option<u32>,
    /// Operations of a token, without output and attention.
    pub token_ops: f64,
    /// Operations of a row of logits.
    pub output_ops: f64,
    /// Operations of a token for each key that it attends to, all layers.
    pub key_ops: f64,
    /// The arithmetic of most of its products.
    pub arithmetic: Arithmetic,
    /// Vocabulary, tokens; 0: it gives no logits.
    pub vocab: u32,
    /// The same text where two models have the same vocabulary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<String>,
    /// Longest sequence, tokens.
    pub context: u32,
    /// Tokens of a cache block.
    #[serde(default = "block_tokens")]
    pub block_tokens: u32,
    /// Tokens of a step.
    #[serde(default = "step_tokens")]
    pub step_tokens: u32,
    /// What it can do.
    pub abilities: Vec<Ability>,
    /// Shares of the ceilings that were timed on the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timed: Option<Factor>,
}

fn yes() -> bool {
    true
}

fn block_tokens() -> u32 {
    32
}

fn step_tokens() -> u32 {
    512
}

/// Experts of all layers together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experts {
    /// In a layer.
    pub count: u32,
    /// That a token uses.
    pub used: u32,
    /// All of them.
    pub bytes: u64,
}

/// What sequences keep in one storage format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kv {
    /// Its name on the command line.
    pub format: String,
    /// Of a token, layers that keep every token.
    #[serde(default)]
    pub token: u64,
    /// Layers that keep a window: its tokens, and bytes of one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<(u32, u64)>,
    /// A state, which has no length.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub state: u64,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl Kv {
    /// Bytes that a token behind `context` others reads.
    pub fn read(&self, context: u64) -> f64 {
        let full = (self.token * context) as f64;
        let window = |&(tokens, bytes): &(u32, u64)| (bytes * context.min(tokens.into())) as f64;
        full + self.windows.iter().map(window).sum::<f64>()
    }
}

impl Model {
    /// Whether it can do that.
    pub fn can(&self, ability: Ability) -> bool {
        self.abilities.contains(&ability)
    }

    /// Bytes of the caches of that many sequences of that length.
    pub fn cache(&self, kv: &Kv, context: u32, sequences: u32) -> u64 {
        let (block, step) = (self.block_tokens, self.step_tokens);
        let of = |kind, bytes: u64| {
            u64::from(memory::blocks(kind, context, sequences, block, step)).saturating_mul(bytes)
        };
        let tokens = |kind, each: u64| match each {
            0 => 0,
            _ => of(kind, each * u64::from(block)),
        };
        let windows = kv.windows.iter().map(|&(t, b)| tokens(GroupKind::Window { tokens: t }, b));
        let state = if kv.state == 0 { 0 } else { of(GroupKind::State, kv.state) };
        windows.fold(tokens(GroupKind::Full, kv.token), u64::saturating_add).saturating_add(state)
    }

    /// What it takes beside caches.
    pub fn fixed(&self) -> u64 {
        self.weights + self.buffers + memory::process_bytes(self.vocab)
    }

    /// Weights that a step of that many tokens reads: of experts those that are expected when every token
    /// picks some at random.
    pub fn weight_reads(&self, tokens: f64) -> f64 {
        let experts = self.experts.map_or(0.0, |e| {
            let share = f64::from(e.used) / f64::from(e.count.max(1));
            e.bytes as f64 * (1.0 - (1.0 - share).powf(tokens))
        });
        self.reads as f64 + experts
    }

    /// How its steps behave.
    pub fn class(&self) -> Class {
        match () {
            () if self.experts.is_some() => Class::Experts,
            () if self.arithmetic != Arithmetic::Int8 => Class::Floats,
            () if self.weight_reads(1.0) <= SMALL_BYTES => Class::Small,
            () => Class::Dense,
        }
    }

    /// Shares of the ceilings: timed, else usual.
    pub fn factor(&self, instructions: Instructions) -> Factor {
        self.timed.clone().unwrap_or_else(|| factors::usual(instructions, self.class()))
    }
}
