//! The vocabulary of layers: plain data that says what a model computes, without names of tensors,
//! memory or devices. Variety lives in enum variants, not in flags.

use tokenmill_ir::{
    Act, GateAct, GateOrder, GroupRule, KeyHead, Mask, NormKind, PoolKind, PositionScale,
    RopePairing, RouteScore, Unary,
};

/// A model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    /// Row of [`ARCHS`](crate::ARCHS).
    pub arch: &'static str,
    /// Vocabulary size.
    pub vocab: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Longest sequence the model was made for, tokens.
    pub context: u32,
    /// Input.
    pub embed: Embed,
    /// Layers, in order.
    pub layers: Vec<Layer>,
    /// More streams beside the residual one.
    pub streams: Option<Streams>,
    /// After the last layer.
    pub final_norm: Option<Norm>,
    /// Output.
    pub output: Output,
    /// Layers the file has behind the last that only draft tokens; they are not computed.
    pub draft_layers: u32,
    /// Rows of an image that take tokens' places, in widths of the stream: 0 where only tokens come;
    /// the first width is the embedding, each other one is added behind one of the first layers.
    pub media: u32,
}

/// Input of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Embed {
    /// Multiplies the table's rows.
    pub scale: f32,
    /// Learned positions (and token types) are added; the table's row of position 0.
    pub positions: Option<u32>,
    /// After the sum.
    pub norm: Option<Norm>,
    /// Columns of the tables, where a projection makes them the stream's.
    pub width: Option<u32>,
    /// Beside it: an input for every layer.
    pub per_layer: Option<PerLayer>,
}

impl Embed {
    /// The table's rows as they are.
    pub const PLAIN: Embed =
        Embed { scale: 1.0, positions: None, norm: None, width: None, per_layer: None };
}

/// Inputs of the layers (Gemma 4): a second table's row and a projection of the embedding, in
/// `width` columns a layer; `(norm(projection) + row) / √2`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PerLayer {
    /// Columns a layer.
    pub width: u32,
    /// Of the projection, a layer at a time.
    pub norm: Norm,
    /// Multiplies the second table's rows.
    pub scale: f32,
    /// Multiplies the projection.
    pub projection_scale: f32,
}

/// Output of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Output {
    /// Logits over the vocabulary. The head's matrix is the embedding where the file has none.
    Logits {
        /// Multiplies the logits.
        scale: f32,
        /// `c·tanh(l/c)`.
        softcap: Option<f32>,
    },
    /// The hidden row of each token.
    Hidden,
    /// One vector a sequence.
    Pooled {
        /// How.
        kind: PoolKind,
        /// Divided by its length.
        normalise: bool,
    },
    /// One vector a sequence: a product of its last row, of length 1 (CLIP's and SigLIP's texts).
    Projected {
        /// Columns of the vector.
        cols: u32,
        /// What becomes of the text before.
        frame: Frame,
    },
    /// One number a sequence: `out(norm(act(dense·pooled)))`, or `out(pooled)`.
    Score {
        /// How rows are pooled.
        kind: PoolKind,
        /// After the dense part, where there is one.
        act: Option<Unary>,
        /// Before the last product.
        norm: Option<Norm>,
    },
}

/// What becomes of a text's tokens, so that its last row is the one that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// It ends behind the first token with that id, which it must have.
    Until(u32),
    /// It ends behind the first token with the highest id that it has.
    UntilHighest,
    /// It is filled up to the context with padding that all tokens see; that id, if the tokenizer names
    /// none.
    Filled(u32),
}

/// A normalisation; its weight (and bias) are the file's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    /// Root-mean-square or layer.
    pub kind: NormKind,
    /// Added under the root.
    pub eps: f32,
    /// Added to the weight.
    pub offset: f32,
}

impl Norm {
    /// Root-mean-square norm.
    pub fn rms(eps: f32) -> Self {
        Self { kind: NormKind::Rms, eps, offset: 0.0 }
    }

    /// Layer norm.
    pub fn layer(eps: f32) -> Self {
        Self { kind: NormKind::Layer, eps, offset: 0.0 }
    }
}

/// Streams that a layer predicts from one another, of which it computes the first and corrects the
/// others by what came out (AltUp, arXiv 2301.13310); and a low-rank path beside each mixer
/// (LAuReL, arXiv 2411.07501). Layers then have a mixer, a feed-forward part and an input.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Streams {
    /// Streams in all.
    pub count: u32,
    /// Before the router and behind the low-rank path.
    pub norm: Norm,
    /// Inner width of the low-rank path.
    pub rank: u32,
    /// Whether the first stream is multiplied by a vector before the layer's input is taken in.
    pub scaled: bool,
}

/// A layer: branches off the residual stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    /// Usually a mixer and a feed-forward part.
    pub branches: Vec<Branch>,
    /// How they join the stream.
    pub join: Join,
    /// Whether the stream is multiplied by a number of the file afterwards.
    pub scaled: bool,
}

/// How branches join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Join {
    /// Each branch reads the stream that the one before it left.
    Sequential,
    /// All read the same stream, normalised by their own norm or, without one, by the first
    /// branch's; their outputs are added together.
    Parallel,
}

/// `h ← norm_sum(h + scale · norm_out(body(norm_in(h))))`, absent norms being the identity.
#[derive(Debug, Clone, PartialEq)]
pub struct Branch {
    /// Before the body.
    pub norm_in: Option<Norm>,
    /// What is computed.
    pub body: Body,
    /// After the body, before the sum.
    pub norm_out: Option<Norm>,
    /// After the sum (BERT).
    pub norm_sum: Option<Norm>,
    /// Multiplies the branch.
    pub scale: f32,
}

impl Branch {
    /// The common pre-norm branch.
    pub fn pre(norm: Norm, body: Body) -> Self {
        Self { norm_in: Some(norm), body, norm_out: None, norm_sum: None, scale: 1.0 }
    }
}

/// What a branch computes.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// Token mixers side by side; their outputs are added.
    Mix(Vec<Mixer>),
    /// Feed-forward.
    Ffn(Ffn),
    /// `project(act(gate·x) · input)` with the layer's own input.
    LayerInput(Act),
}

/// What mixes tokens.
#[derive(Debug, Clone, PartialEq)]
pub enum Mixer {
    /// Attention over keys and values.
    Attention(Attention),
    /// Multi-head latent attention, absorbed.
    Latent(Latent),
    /// Gated delta rule.
    DeltaNet(DeltaNet),
    /// Mamba-2.
    Mamba(Mamba),
    /// Gated short convolution.
    ShortConv(ShortConv),
}

/// Normalisation of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum QkNorm {
    /// None.
    None,
    /// Each head alone.
    Head(Norm),
    /// All heads as one row.
    Whole(Norm),
    /// Each head alone, without weights.
    Unit(Norm),
}

/// Attention.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// Query heads.
    pub heads: u32,
    /// Key/value heads.
    pub kv_heads: u32,
    /// Columns of a head.
    pub head_dim: u32,
    /// Multiplies q·k.
    pub scale: f32,
    /// Rotation; absent for layers without positions.
    pub rope: Option<RopeSpec>,
    /// Scale of queries by their position.
    pub position_scale: Option<PositionScale>,
    /// Normalisation of queries and keys.
    pub qk_norm: QkNorm,
    /// Normalisation of values, each head alone, without weights.
    pub v_norm: Option<Norm>,
    /// Where keys and values come from.
    pub kv: KvSource,
    /// Which keys are seen.
    pub mask: Mask,
    /// Score cap.
    pub softcap: Option<f32>,
    /// Whether heads have sink logits.
    pub sinks: bool,
    /// Whether the query projection carries a gate a head: `out · σ(gate)`.
    pub gated: bool,
    /// Multiplies the input, the keys and the output (Falcon-H1).
    pub multipliers: Multipliers,
    /// Whether tokens of an image also see those behind them in it.
    pub blocks: bool,
}

/// Where the keys and values of a layer come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvSource {
    /// Their own projections.
    Own,
    /// One projection for both.
    KeysAreValues,
    /// The cache of an earlier layer.
    Layer(usize),
}

/// Scalar factors around attention; 1 where a model has none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Multipliers {
    /// On the input.
    pub input: f32,
    /// On keys.
    pub key: f32,
    /// On the output.
    pub output: f32,
}

impl Multipliers {
    /// No factors.
    pub const ONE: Self = Self { input: 1.0, key: 1.0, output: 1.0 };
}

/// Rotary embedding before its frequencies are computed.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeSpec {
    /// Rotated columns of a head (the first ones).
    pub dims: u32,
    /// Base.
    pub theta: f64,
    /// Pairing of columns.
    pub pairing: RopePairing,
    /// Stretching to longer contexts.
    pub scaling: RopeScaling,
    /// Which of a token's positions turns each pair.
    pub axes: Axes,
}

/// Which of a token's three positions (in text: three times the same) turns each pair of columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Axes {
    /// The first all of them.
    One,
    /// Runs of so many pairs for each axis (Qwen2-VL).
    Sections(Vec<u32>),
    /// Every third pair for the second and the third axis, as many as each has; the others, and those
    /// behind, for the first (Qwen3-VL).
    Interleaved(Vec<u32>),
    /// In an encoder: the first half by rows, the second by columns, each with the frequencies of a
    /// head of half the width.
    Halves,
    /// In an encoder: as by halves, the first by columns, the second by rows (Llama 4).
    Columns,
    /// In an encoder: the first half of a head by columns, the second by rows, each with pairs of its own
    /// (Gemma 4).
    Apart,
    /// In an encoder: every other pair by columns, those between by rows, two of one frequency after each
    /// other (Kimi).
    Turns,
    /// In an encoder: the first half by rows, with every other frequency of a whole head, the second
    /// by columns, with those between (Pixtral).
    Alternate,
}

/// Ways to stretch rotary embeddings.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// None.
    None,
    /// Positions divided by a factor.
    Linear {
        /// Factor.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided, high kept, smooth between.
    Llama3 {
        /// Factor.
        factor: f64,
        /// Wavelength bound of low frequencies, as a part of the original context.
        low: f64,
        /// Wavelength bound of high frequencies.
        high: f64,
        /// Original context, tokens.
        original: f64,
    },
    /// YaRN (arXiv 2309.00071).
    Yarn {
        /// Factor.
        factor: f64,
        /// Rotations above which a frequency is kept.
        beta_fast: f64,
        /// Rotations below which it is interpolated.
        beta_slow: f64,
        /// Original context, tokens.
        original: f64,
        /// Multiplies sine and cosine.
        magnitude: f32,
        /// Whether the bounds are rounded to whole columns.
        truncate: bool,
    },
    /// Divisors for each frequency, and a magnitude (LongRoPE, arXiv 2402.13753).
    Factors {
        /// One a pair.
        factors: Vec<f64>,
        /// Multiplies sine and cosine.
        magnitude: f32,
    },
    /// Only the first `part` of the pairs turn, at the frequencies they have in a whole head.
    Proportional {
        /// Part of the pairs.
        part: f64,
    },
    /// Divisors in a tensor of the file.
    Tensor {
        /// Multiplies sine and cosine.
        magnitude: f32,
    },
}

/// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434).
#[derive(Debug, Clone, PartialEq)]
pub struct Latent {
    /// Heads.
    pub heads: u32,
    /// Width of the compressed query; absent: a direct projection.
    pub q_lora: Option<u32>,
    /// Width of the compressed key/value.
    pub kv_lora: u32,
    /// Unrotated columns of a query head.
    pub nope: u32,
    /// Rotated columns of a query head.
    pub rope_dim: u32,
    /// Columns of a value head.
    pub v_dim: u32,
    /// Multiplies scores.
    pub scale: f32,
    /// Norm of the compressed query and key/value.
    pub norm: Norm,
    /// Rotation.
    pub rope: RopeSpec,
}

/// Gated delta net (Qwen3-Next).
#[derive(Debug, Clone, PartialEq)]
pub struct DeltaNet {
    /// Key heads.
    pub k_heads: u32,
    /// Value heads.
    pub v_heads: u32,
    /// Columns of a key head.
    pub k_dim: u32,
    /// Columns of a value head.
    pub v_dim: u32,
    /// Which key head a value head has.
    pub key_head: KeyHead,
    /// Taps of the convolution.
    pub kernel: u32,
    /// Norm of the output, a head at a time.
    pub norm: Norm,
}

/// Mamba-2 (arXiv 2405.21060).
#[derive(Debug, Clone, PartialEq)]
pub struct Mamba {
    /// Heads.
    pub heads: u32,
    /// Columns of a head.
    pub head_dim: u32,
    /// Groups sharing b and c.
    pub groups: u32,
    /// Columns of b and c.
    pub state_dim: u32,
    /// Taps of the convolution.
    pub kernel: u32,
    /// Bounds of the step size.
    pub dt_limit: (f32, f32),
    /// Norm of the output (over each group), with the order of its gate; absent: gate only.
    pub norm: Option<(Norm, GateOrder)>,
    /// Multiplies the input.
    pub in_scale: f32,
    /// Multiplies the output.
    pub out_scale: f32,
    /// Multiply z, x, b, c and dt after the input projection.
    pub part_scales: [f32; 5],
}

/// Gated short convolution (LFM2): `out(c · conv(b · x))`.
#[derive(Debug, Clone, PartialEq)]
pub struct ShortConv {
    /// Taps.
    pub kernel: u32,
}

/// Feed-forward part.
#[derive(Debug, Clone, PartialEq)]
pub enum Ffn {
    /// `down(act(gate·x, up·x))`.
    Gated {
        /// Inner width.
        width: u32,
        /// Combination.
        act: GateAct,
        /// Multiplies the gate before its activation.
        gate_scale: f32,
        /// Multiplies the output.
        out_scale: f32,
        /// The gate is taken above its mean plus so many standard deviations only:
        /// `relu(g − mean − cutoff · deviation)`.
        cutoff: Option<f32>,
    },
    /// A gated part and experts side by side, each behind norms of its own:
    /// `norm(gated(x)) + norm(experts(norm(h)))`, `h` being the stream that `x` is the norm of. The
    /// router reads another norm of `h`, divided by `√hidden` (Gemma 4).
    Beside {
        /// Inner width of the gated part.
        width: u32,
        /// Its activation.
        act: Act,
        /// All norms.
        norm: Norm,
        /// Experts.
        experts: Experts,
    },
    /// `down(act(up·x))`.
    Plain {
        /// Inner width.
        width: u32,
        /// Activation.
        act: Act,
    },
    /// `down(u · σ(beta · u))` of `u = up·x`: a quick stand-in for GELU where beta is 1.702 (CLIP).
    Swish {
        /// Inner width.
        width: u32,
        /// Steepness.
        beta: f32,
    },
    /// Routed experts.
    Experts(Experts),
}

impl Ffn {
    /// The common gated part.
    pub fn gated(width: u32, act: Act) -> Self {
        let act = GateAct::Plain(act);
        Ffn::Gated { width, act, gate_scale: 1.0, out_scale: 1.0, cutoff: None }
    }
}

/// Routed experts.
#[derive(Debug, Clone, PartialEq)]
pub struct Experts {
    /// Experts in all.
    pub count: u32,
    /// Experts a token uses.
    pub top: u32,
    /// Inner width of an expert.
    pub width: u32,
    /// Combination.
    pub act: GateAct,
    /// Logits to scores.
    pub score: RouteScore,
    /// Group-limited choice.
    pub groups: Option<GroupRule>,
    /// Whether chosen weights are divided by their sum.
    pub normalise: bool,
    /// Multiplies the weights.
    pub scale: f32,
    /// What the weights multiply.
    pub weigh: Weigh,
    /// Rows of a tensor that holds gates and ups.
    pub fused: GateUp,
    /// An expert every token uses.
    pub shared: Option<SharedExpert>,
}

/// What the weight of a chosen expert multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weigh {
    /// Its output.
    Output,
    /// Its input; where a token uses one expert only.
    Input,
}

/// How rows of gate and up lie in a tensor that holds both, expert by expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateUp {
    /// Gate, up, gate, up, …
    Alternate,
    /// All of gate, then all of up.
    Halves,
    /// As columns: all of gate, then all of up. Down matrices are stored so too.
    Turned,
    /// As columns: gate, up, gate, up, …. Down matrices are stored as columns too.
    TurnedAlternate,
}

/// An expert every token uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedExpert {
    /// Inner width.
    pub width: u32,
    /// Whether its output is multiplied by `σ(gate·x)`.
    pub gated: bool,
}

impl ModelSpec {
    /// Every attention mixer, for architectures that adjust another's layers.
    pub fn attention_mut(&mut self) -> impl Iterator<Item = (usize, &mut Attention)> {
        let layers = self.layers.iter_mut().enumerate();
        layers.flat_map(|(i, l)| {
            l.branches.iter_mut().flat_map(move |b| {
                let mixers = match &mut b.body {
                    Body::Mix(m) => m.iter_mut(),
                    Body::Ffn(_) | Body::LayerInput(_) => [].iter_mut(),
                };
                mixers.filter_map(move |m| match m {
                    Mixer::Attention(a) => Some((i, a)),
                    _ => None,
                })
            })
        })
    }

    /// Every feed-forward part.
    pub fn ffn_mut(&mut self) -> impl Iterator<Item = (usize, &mut Ffn)> {
        let layers = self.layers.iter_mut().enumerate();
        layers.flat_map(|(i, l)| {
            l.branches.iter_mut().filter_map(move |b| match &mut b.body {
                Body::Ffn(f) => Some((i, f)),
                Body::Mix(_) | Body::LayerInput(_) => None,
            })
        })
    }

    /// Makes every gated feed-forward part a plain one of the same width.
    pub fn plain_ffn(&mut self, act: Act) {
        for (_, ffn) in self.ffn_mut() {
            if let Ffn::Gated { width, .. } = *ffn {
                *ffn = Ffn::Plain { width, act };
            }
        }
    }

    /// Every branch.
    pub fn branches_mut(&mut self) -> impl Iterator<Item = &mut Branch> {
        self.layers.iter_mut().flat_map(|l| l.branches.iter_mut())
    }
}
