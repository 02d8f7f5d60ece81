//! Everything a device can be asked to compute. The list is closed: a new mathematical idea in a
//! model is a variant here, its meaning in the doc comment, its plain loops in the reference device
//! and its cases in the conformance suite.
//!
//! Operands are [`View`]s: a column range of a buffer, read row by row. A buffer is written by one
//! op only; whether two buffers share memory is the device's choice. All numbers are f32 in
//! meaning; how they are encoded for a product is the device's choice too.

use crate::view::{BufferId, CacheId, RopeId, View};
use crate::weight::WeightId;

pub use crate::rope::{PositionScale, Rope, RopePairing};

/// Root-mean-square or mean-and-variance normalisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x²) + eps)`.
    Rms,
    /// `(x − mean(x)) / sqrt(var(x) + eps)`.
    Layer,
}

/// When the gate of a gated norm acts: `silu(gate)` multiplies the input or the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateOrder {
    /// `norm(x · silu(gate))`.
    BeforeNorm,
    /// `norm(x) · silu(gate)`.
    AfterNorm,
}

/// Which key head a value head of the delta rule has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyHead {
    /// `h / (v_heads / k_heads)`: Hugging Face.
    Grouped,
    /// `h mod k_heads`: GGUF of Qwen3.5.
    Tiled,
}

impl KeyHead {
    /// The key head of value head `h`.
    pub fn of(self, h: usize, k_heads: usize, v_heads: usize) -> usize {
        match self {
            Self::Grouped => h / (v_heads / k_heads),
            Self::Tiled => h % k_heads,
        }
    }
}

/// Normalisation of each query or key head before rotation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadNorm {
    /// Root-mean-square or layer.
    pub kind: NormKind,
    /// `[head_dim]`, or `[heads × head_dim]` where every head has its own.
    pub weight: WeightId,
    /// Added to the weight (1 for Gemma).
    pub offset: f32,
    /// Added under the root.
    pub eps: f32,
}

/// Functions of one number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Act {
    /// `x · σ(x)`.
    Silu,
    /// `x/2 · (1 + erf(x/√2))`.
    Gelu,
    /// `x/2 · (1 + tanh(√(2/π)(x + 0.044715x³)))`.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)²`.
    ReluSquared,
}

/// How a gate and a linear branch combine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GateAct {
    /// `act(gate) · up`.
    Plain(Act),
    /// gpt-oss: `g = min(gate, limit)`, `u = clamp(up, ±limit)`, `(u + 1) · g · σ(alpha · g)`.
    Clamped {
        /// Slope inside the sigmoid.
        alpha: f32,
        /// Clamp.
        limit: f32,
    },
}

/// Functions of one number in an [`Expr`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Unary {
    /// An activation.
    Act(Act),
    /// `1 / (1 + e^−x)`.
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
}

/// An elementwise expression over at most four operands. An operand with one column is broadcast.
#[derive(Debug, Clone, PartialEq)]
pub enum Expr {
    /// Operand number i.
    Arg(u8),
    /// A constant.
    Const(f32),
    /// Sum, computed left then right.
    Add(Box<Expr>, Box<Expr>),
    /// Product.
    Mul(Box<Expr>, Box<Expr>),
    /// Function of one number.
    Unary(Unary, Box<Expr>),
}

impl Expr {
    /// `Arg(a) + Arg(b)`.
    pub fn add(a: u8, b: u8) -> Self {
        Expr::Add(Box::new(Expr::Arg(a)), Box::new(Expr::Arg(b)))
    }

    /// `Arg(a) · Arg(b)`.
    pub fn mul(a: u8, b: u8) -> Self {
        Expr::Mul(Box::new(Expr::Arg(a)), Box::new(Expr::Arg(b)))
    }

    /// `self · c`.
    pub fn scaled(self, c: f32) -> Self {
        Expr::Mul(Box::new(self), Box::new(Expr::Const(c)))
    }

    /// `f(self)`.
    pub fn apply(self, f: Unary) -> Self {
        Expr::Unary(f, Box::new(self))
    }
}

/// Which keys a query sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mask {
    /// Keys at or before the query.
    Causal,
    /// The last `n` keys at or before the query, itself included.
    Window(u32),
    /// Keys at or before the query in its own run of `n` positions; runs begin at multiples of
    /// `n`. Needs a cache of at least the last `n` tokens.
    Chunk(u32),
    /// All keys of the sequence, before and after.
    None,
    /// Keys at most `n` tokens before or after the query.
    Around(u32),
    /// The keys of the query's own block ([`Batch::blocks`](crate::Batch::blocks)); itself, where it
    /// is in none.
    Block,
}

/// Where keys and values come from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum AttendSource {
    /// The cache (already holding this step's tokens).
    Cache(CacheId),
    /// Buffers of this step: models that keep nothing; a span is the whole sequence.
    Fresh {
        /// Keys. [tokens, kv_heads × k_dim]
        k: View,
        /// Values. [tokens, kv_heads × v_dim]
        v: View,
    },
}

/// Keys and values to store beside the rotation of queries.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Store {
    /// Keys. [tokens, kv_heads × head_dim]
    pub k: View,
    /// Values. [tokens, kv_heads × v_dim]
    pub v: View,
    /// Key/value heads.
    pub kv_heads: u32,
    /// Normalisation of key heads.
    pub k_norm: Option<HeadNorm>,
    /// Where to.
    pub cache: CacheId,
}

/// How router logits become scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteScore {
    /// Softmax over all experts, then the best are taken.
    Softmax,
    /// The best logits are taken, then softmax over those.
    SoftmaxOfTop,
    /// Sigmoid of each logit.
    Sigmoid,
}

/// Group-limited routing: experts fall into `groups` equal groups; only the `keep` groups with the
/// greatest sum of their `best` best (biased) scores take part (two: DeepSeek-V3, arXiv 2412.19437;
/// one: DeepSeek-V2, arXiv 2405.04434).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupRule {
    /// Number of groups.
    pub groups: u32,
    /// Groups kept.
    pub keep: u32,
    /// Experts that speak for their group, one or two.
    pub best: u32,
}

/// How tokens choose experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RouteRule {
    /// Experts in all.
    pub experts: u32,
    /// Experts a token uses.
    pub top: u32,
    /// Logits to scores.
    pub score: RouteScore,
    /// Added to the scores for the choice only, not for the weights. [experts]
    pub choice_bias: Option<WeightId>,
    /// Group-limited choice.
    pub groups: Option<GroupRule>,
    /// Whether the chosen weights are divided by their sum (+ 1e-20).
    pub normalise: bool,
    /// Multiplies the weights.
    pub scale: f32,
    /// Multiplies the weight of each expert last. [experts]
    pub gains: Option<WeightId>,
}

/// How a pooled model makes one vector of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolKind {
    /// Mean over tokens.
    Mean,
    /// First token.
    First,
    /// Last token.
    Last,
}

/// `sum = x + adds…` (left to right); `out = norm(sum) · (weight + offset) (+ bias)`, over
/// `groups` equal column groups each normalised alone.
#[derive(Debug, Clone, PartialEq)]
pub struct Norm {
    /// Input. [rows, cols]
    pub x: View,
    /// Added to the input, in order.
    pub adds: Vec<View>,
    /// Where the sum goes, when it is needed later.
    pub sum: Option<BufferId>,
    /// Kind.
    pub kind: NormKind,
    /// [cols] or [cols / groups]; absent: 1.
    pub weight: Option<WeightId>,
    /// Added to the weight.
    pub offset: f32,
    /// [cols]
    pub bias: Option<WeightId>,
    /// Column groups.
    pub groups: u32,
    /// `silu(gate)` factor.
    pub gate: Option<(View, GateOrder)>,
    /// Added under the root.
    pub eps: f32,
    /// Where the divisor goes, when it is needed later; with one group only. [rows, 1]
    pub root: Option<BufferId>,
    /// Result. [rows, cols]
    pub out: BufferId,
}

/// Head norms and rotation of queries; norms, rotation and storing of keys and values.
/// out [tokens, heads × head_dim]
#[derive(Debug, Clone, PartialEq)]
pub struct RotateStore {
    /// Queries. [tokens, heads × head_dim]
    pub q: View,
    /// Query heads.
    pub heads: u32,
    /// Columns of a query (and key) head.
    pub head_dim: u32,
    /// Normalisation of query heads.
    pub q_norm: Option<HeadNorm>,
    /// Rotation; absent for layers without positions.
    pub rope: Option<RopeId>,
    /// Scale of the rotated queries by their position.
    pub position_scale: Option<PositionScale>,
    /// Keys and values.
    pub store: Option<Store>,
    /// Rotated queries.
    pub out: BufferId,
}

/// `norm(latent)` and the rotated shared key go to a latent cache (DeepSeek MLA).
#[derive(Debug, Clone, PartialEq)]
pub struct StoreLatent {
    /// [tokens, latent]
    pub latent: View,
    /// Root-mean-square weight of the latent. [latent]
    pub norm: WeightId,
    /// Added under the root.
    pub eps: f32,
    /// [tokens, rope]
    pub key: View,
    /// Rotation of the key.
    pub rope: RopeId,
    /// Where to.
    pub cache: CacheId,
}

/// `out[h] = Σ softmax(scale · q[h]·k / cap…) v`. `softcap c`: scores become `c·tanh(s/c)`.
/// A sink adds `e^sink[h]` to the denominator. out [tokens, heads × v_dim]
#[derive(Debug, Clone, PartialEq)]
pub struct Attend {
    /// Queries. [tokens, heads × k_dim]
    pub q: View,
    /// Query heads.
    pub heads: u32,
    /// Keys and values.
    pub source: AttendSource,
    /// Key/value heads; heads / kv_heads queries share one.
    pub kv_heads: u32,
    /// Columns of a value head.
    pub v_dim: u32,
    /// Multiplies q·k.
    pub scale: f32,
    /// Which keys are seen.
    pub mask: Mask,
    /// Whether those of the query's own block ([`Batch::blocks`](crate::Batch::blocks)) are seen as
    /// well, before and after it (Gemma 3, arXiv 2503.19786).
    pub blocks: bool,
    /// Score cap.
    pub softcap: Option<f32>,
    /// One logit a head. [heads]
    pub sinks: Option<WeightId>,
    /// Result.
    pub out: BufferId,
}

impl Attend {
    /// Whether it looks at the blocks of a batch.
    pub fn sees_blocks(&self) -> bool {
        self.blocks || self.mask == Mask::Block
    }
}

/// Causal attention over a latent cache, absorbed form: score = scale · (q_latent[h]·c +
/// q_rope[h]·k), value = c. out [tokens, heads × latent]
#[derive(Debug, Clone, PartialEq)]
pub struct AttendLatent {
    /// [tokens, heads × latent]
    pub q_latent: View,
    /// [tokens, heads × rope]
    pub q_rope: View,
    /// Heads.
    pub heads: u32,
    /// Latent cache.
    pub cache: CacheId,
    /// Multiplies scores.
    pub scale: f32,
    /// Result.
    pub out: BufferId,
}

/// Depthwise causal convolution over time: `out[t][c] = act(bias[c] + Σ_j w[c][j] ·
/// x[t − (kernel−1) + j][c])`; the tail of `x` is kept in `state`. [kernel − 1, channels]
#[derive(Debug, Clone, PartialEq)]
pub struct Conv {
    /// [tokens, channels]
    pub x: View,
    /// [channels, kernel]
    pub weight: WeightId,
    /// Taps.
    pub kernel: u32,
    /// [channels]
    pub bias: Option<WeightId>,
    /// Applied last.
    pub act: Option<Act>,
    /// State cache of `(kernel − 1) × channels`.
    pub state: CacheId,
    /// Result.
    pub out: BufferId,
}

/// Gated delta rule (arXiv 2412.06464), per value head h with its key head ([`KeyHead`]):
/// q, k normalised to length 1 (eps 1e-6 under the root), q · 1/√k_dim; `β = σ(b)`,
/// `g = −e^a_log · softplus(a + dt_bias)`; `S ← e^g S; S ← S + k (β (v − Sᵀk))ᵀ; out = Sᵀ q`.
/// out [tokens, v_heads × v_dim]
#[derive(Debug, Clone, PartialEq)]
pub struct DeltaRule {
    /// [tokens, k_heads × k_dim]
    pub q: View,
    /// [tokens, k_heads × k_dim]
    pub k: View,
    /// [tokens, v_heads × v_dim]
    pub v: View,
    /// [tokens, v_heads]
    pub a: View,
    /// [tokens, v_heads]
    pub b: View,
    /// [v_heads]
    pub a_log: WeightId,
    /// [v_heads]
    pub dt_bias: WeightId,
    /// Key heads.
    pub k_heads: u32,
    /// Value heads.
    pub v_heads: u32,
    /// Which key head a value head has.
    pub key_head: KeyHead,
    /// State cache of `v_heads × k_dim × v_dim`.
    pub state: CacheId,
    /// Result.
    pub out: BufferId,
}

/// Selective scan of Mamba-2 (arXiv 2405.21060), per head h with group h / (heads/groups):
/// `d = clamp(softplus(dt + dt_bias), dt_limit)`, `S ← e^(−e^a_log · d) S + d · x bᵀ`,
/// `out = S c + skip[h] · x`. out [tokens, heads × head_dim]
#[derive(Debug, Clone, PartialEq)]
pub struct Scan {
    /// [tokens, heads × head_dim]
    pub x: View,
    /// [tokens, groups × state_dim]
    pub b: View,
    /// [tokens, groups × state_dim]
    pub c: View,
    /// [tokens, heads]
    pub dt: View,
    /// [heads]
    pub a_log: WeightId,
    /// [heads]
    pub skip: WeightId,
    /// [heads]
    pub dt_bias: WeightId,
    /// Heads.
    pub heads: u32,
    /// Groups sharing b and c.
    pub groups: u32,
    /// Bounds of the step size.
    pub dt_limit: (f32, f32),
    /// State cache of `heads × head_dim × state_dim`.
    pub state: CacheId,
    /// Result.
    pub out: BufferId,
}

/// `out = Σ_slot w[slot] · down[e](act(gate[e](x), up[e](x)))`, summed in slot order. Expert e
/// uses weights `gate.0 + e`, `up.0 + e`, `down.0 + e`. out [tokens, hidden]
#[derive(Debug, Clone, PartialEq)]
pub struct Experts {
    /// [tokens, hidden]
    pub x: View,
    /// Output of `Route`.
    pub route: View,
    /// First gate matrix. [ffn, hidden]
    pub gate: WeightId,
    /// First up matrix. [ffn, hidden]
    pub up: WeightId,
    /// First down matrix. [hidden, ffn]
    pub down: WeightId,
    /// Experts in all.
    pub experts: u32,
    /// Combination.
    pub act: GateAct,
    /// Result.
    pub out: BufferId,
}

/// One operation. Rows are tokens unless the shape says otherwise.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// `out = scale · table[token] (+ positions[p]) (+ token_types[t])`. out [tokens, hidden]. Of a row
    /// that stands in a token's place, its first columns are taken, without the scale.
    Embed {
        /// [vocab, hidden]
        table: WeightId,
        /// Multiplies the table's row.
        scale: f32,
        /// Learned positions. [context, hidden]
        positions: Option<WeightId>,
        /// Token types; those beyond the table are its last. [types, hidden]
        token_types: Option<WeightId>,
        /// Result.
        out: BufferId,
    },
    /// Columns `start ..` of the rows that stand in the place of tokens; zeros for tokens.
    /// out [tokens, cols]
    Input {
        /// First column.
        start: u32,
        /// Result.
        out: BufferId,
    },
    /// `out = Σ_i w[i] · table[id[i]]`, in the order of i; x holds n ids (as numbers; those beyond the
    /// table are its last), then n weights. A learned position is one row, one between positions four
    /// or sixteen. x [tokens, 2 × n], out [tokens, cols]
    Gather {
        /// Ids, then weights.
        x: View,
        /// [rows, cols]
        table: WeightId,
        /// Result.
        out: BufferId,
    },
    /// [`Norm`].
    Norm(Norm),
    /// `out = x · weightᵀ + bias`. x [rows, in], out [rows, out]
    Linear {
        /// Input.
        x: View,
        /// [out, in]
        weight: WeightId,
        /// Result.
        out: BufferId,
    },
    /// `out = act(x · gateᵀ, x · upᵀ)`. out [rows, ffn]
    GatedLinear {
        /// Input.
        x: View,
        /// [ffn, in]
        gate: WeightId,
        /// [ffn, in]
        up: WeightId,
        /// Combination.
        act: GateAct,
        /// Result.
        out: BufferId,
    },
    /// One small product a head: `out[h] = x[h] · weight[h]ᵀ`; weight [heads × out_dim, in_dim].
    /// x [rows, heads × in_dim], out [rows, heads × out_dim]
    HeadLinear {
        /// Input.
        x: View,
        /// Heads.
        heads: u32,
        /// Stacked matrices.
        weight: WeightId,
        /// Result.
        out: BufferId,
    },
    /// [`RotateStore`].
    RotateStore(RotateStore),
    /// [`StoreLatent`].
    StoreLatent(StoreLatent),
    /// [`Attend`].
    Attend(Attend),
    /// [`AttendLatent`].
    AttendLatent(AttendLatent),
    /// [`Conv`].
    Conv(Conv),
    /// [`DeltaRule`].
    DeltaRule(DeltaRule),
    /// [`Scan`].
    Scan(Scan),
    /// Chooses experts. out [tokens, 2 × top]: chosen ids (as numbers), then their weights, in
    /// descending order of choice; ties go to the lower id.
    Route {
        /// [tokens, hidden]
        x: View,
        /// [experts, hidden], its bias included
        router: WeightId,
        /// How.
        rule: RouteRule,
        /// Result.
        out: BufferId,
    },
    /// [`Experts`].
    Experts(Experts),
    /// Elementwise: `out = expr(args…)`.
    Map {
        /// What.
        expr: Expr,
        /// Operands; one column is broadcast.
        args: Vec<View>,
        /// Result.
        out: BufferId,
    },
    /// The rows of this step that have an output, each with the `run − 1` rows after it, side by side.
    /// x [tokens, cols], out [outputs, run × cols]
    TakeRows {
        /// Input.
        x: View,
        /// Rows of a run, at least one; those of a run are of one span.
        run: u32,
        /// Result.
        out: BufferId,
    },
    /// One vector a span, given at output rows. x [tokens, cols], out [outputs, cols]
    Pool {
        /// Input.
        x: View,
        /// How.
        kind: PoolKind,
        /// Divide by its length.
        normalise: bool,
        /// Result.
        out: BufferId,
    },
    /// `logits = scale · x · weightᵀ + bias`, capped by `c·tanh(l/c)`. out [outputs, vocab]
    Head {
        /// [outputs, hidden]
        x: View,
        /// [vocab, hidden]
        weight: WeightId,
        /// Multiplies the logits.
        scale: f32,
        /// Cap.
        softcap: Option<f32>,
        /// Result.
        out: BufferId,
    },
    /// Serves the batch's output rows from logits (and `hidden` for rows that want it).
    Sample {
        /// [outputs, vocab]; absent in pooled models
        logits: Option<View>,
        /// [outputs, hidden]
        hidden: View,
        /// What is given behind the columns of `hidden` to rows that want it.
        more: Vec<View>,
    },
}

/// One operand of an op, as [`Op::operands`] lists them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Operand {
    /// Columns read.
    Read(View),
    /// Buffer written.
    Write(BufferId),
    /// Weight read.
    Weight(WeightId),
    /// Cache read or written.
    Cache(CacheId),
}

impl Op {
    /// The variant's name.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "Embed",
            Op::Input { .. } => "Input",
            Op::Gather { .. } => "Gather",
            Op::Norm(_) => "Norm",
            Op::Linear { .. } => "Linear",
            Op::GatedLinear { .. } => "GatedLinear",
            Op::HeadLinear { .. } => "HeadLinear",
            Op::RotateStore(_) => "RotateStore",
            Op::StoreLatent(_) => "StoreLatent",
            Op::Attend(_) => "Attend",
            Op::AttendLatent(_) => "AttendLatent",
            Op::Conv(_) => "Conv",
            Op::DeltaRule(_) => "DeltaRule",
            Op::Scan(_) => "Scan",
            Op::Route { .. } => "Route",
            Op::Experts(_) => "Experts",
            Op::Map { .. } => "Map",
            Op::TakeRows { .. } => "TakeRows",
            Op::Pool { .. } => "Pool",
            Op::Head { .. } => "Head",
            Op::Sample { .. } => "Sample",
        }
    }

    /// Every operand, in the order they are declared. The one place that walks the variants;
    /// checking, dumping, memory planning and tracing read it.
    pub fn operands(&self) -> Vec<Operand> {
        use Operand::{Cache as C, Read as R, Weight as W, Write as O};
        let mut list = Vec::with_capacity(8);
        match self {
            Op::Embed { table, positions, token_types, out, .. } => {
                list.push(W(*table));
                list.extend(positions.iter().chain(token_types).map(|w| W(*w)));
                list.push(O(*out));
            }
            Op::Norm(Norm { x, adds, sum, weight, bias, gate, root, out, .. }) => {
                list.push(R(*x));
                list.extend(adds.iter().map(|v| R(*v)));
                list.extend(weight.iter().chain(bias).map(|w| W(*w)));
                list.extend(gate.iter().map(|(v, _)| R(*v)));
                list.extend(sum.iter().chain(root).map(|b| O(*b)));
                list.push(O(*out));
            }
            Op::Input { out, .. } => list.push(O(*out)),
            Op::Linear { x, weight, out }
            | Op::Gather { x, table: weight, out }
            | Op::Head { x, weight, out, .. }
            | Op::HeadLinear { x, weight, out, .. }
            | Op::Route { x, router: weight, out, .. } => {
                list.extend([R(*x), W(*weight), O(*out)]);
                if let Op::Route { rule, .. } = self {
                    list.extend(rule.choice_bias.iter().chain(&rule.gains).map(|w| W(*w)));
                }
            }
            Op::GatedLinear { x, gate, up, out, .. } => {
                list.extend([R(*x), W(*gate), W(*up), O(*out)]);
            }
            Op::RotateStore(RotateStore { q, q_norm, store, out, .. }) => {
                list.push(R(*q));
                list.extend(q_norm.iter().map(|n| W(n.weight)));
                if let Some(s) = store {
                    list.extend([R(s.k), R(s.v)]);
                    list.extend(s.k_norm.iter().map(|n| W(n.weight)));
                    list.push(C(s.cache));
                }
                list.push(O(*out));
            }
            Op::StoreLatent(StoreLatent { latent, norm, key, cache, .. }) => {
                list.extend([R(*latent), W(*norm), R(*key), C(*cache)]);
            }
            Op::Attend(Attend { q, source, sinks, out, .. }) => {
                list.push(R(*q));
                match source {
                    AttendSource::Cache(c) => list.push(C(*c)),
                    AttendSource::Fresh { k, v } => list.extend([R(*k), R(*v)]),
                }
                list.extend(sinks.map(W));
                list.push(O(*out));
            }
            Op::AttendLatent(AttendLatent { q_latent, q_rope, cache, out, .. }) => {
                list.extend([R(*q_latent), R(*q_rope), C(*cache), O(*out)]);
            }
            Op::Conv(Conv { x, weight, bias, state, out, .. }) => {
                list.extend([R(*x), W(*weight)]);
                list.extend(bias.map(W));
                list.extend([C(*state), O(*out)]);
            }
            Op::DeltaRule(DeltaRule { q, k, v, a, b, a_log, dt_bias, state, out, .. }) => {
                list.extend([q, k, v, a, b].map(|v| R(*v)));
                list.extend([W(*a_log), W(*dt_bias), C(*state), O(*out)]);
            }
            Op::Scan(Scan { x, b, c, dt, a_log, skip, dt_bias, state, out, .. }) => {
                list.extend([x, b, c, dt].map(|v| R(*v)));
                list.extend([W(*a_log), W(*skip), W(*dt_bias), C(*state), O(*out)]);
            }
            Op::Experts(Experts { x, route, gate, up, down, experts, out, .. }) => {
                list.extend([R(*x), R(*route)]);
                for first in [gate, up, down] {
                    list.extend((0..*experts).map(|e| W(WeightId(first.0 + e))));
                }
                list.push(O(*out));
            }
            Op::Map { args, out, .. } => {
                list.extend(args.iter().map(|v| R(*v)));
                list.push(O(*out));
            }
            Op::TakeRows { x, out, .. } | Op::Pool { x, out, .. } => {
                list.extend([R(*x), O(*out)]);
            }
            Op::Sample { logits, hidden, more } => {
                list.extend(logits.map(R));
                list.push(R(*hidden));
                list.extend(more.iter().map(|v| R(*v)));
            }
        }
        list
    }
}
