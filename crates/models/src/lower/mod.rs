//! From a [`ModelSpec`] and the index of tensors to a [`Program`]: the only place that knows how a
//! layer computes.

mod cover;
mod ffn;
mod inputs;
mod mixers;
mod streams;
mod vision;
mod weights;

use std::collections::HashSet;

use tokenmill_ir::{
    CacheId, CacheKind, CacheSpec, Checkpoint, Expr, KvFormat, NormKind, Op, PoolKind, Program,
    RopeId, Rows, Unary, View, WeightId, op,
};

use crate::error::{ModelError, shortened};
use crate::hyper::Key;
use crate::limits::Checked;
use crate::names::{self, Role, find_opt, is_ignorable};
use crate::rope::rope;
use crate::spec::{Body, Branch, Join, Layer, ModelSpec, Norm, Output, RopeScaling, RopeSpec};

/// Added to the mean square of a vector that is made one of length 1: what has none stays zero.
const LEAST_SQUARE: f32 = 1e-24;

/// A lowered model.
#[derive(Debug, Clone, PartialEq)]
pub struct Lowered {
    /// The program; it has passed [`Program::check`].
    pub program: Program,
    /// Tensors of the file that the program does not use, ignorable ones left out.
    pub unused: Vec<String>,
}

/// Turns a spec into a program over the checkpoint's tensors. `kv` is the storage format of keys
/// and values.
pub fn lower(
    spec: &ModelSpec,
    checkpoint: &Checkpoint,
    kv: KvFormat,
) -> Result<Lowered, ModelError> {
    let usual = |key: Key| key.usual(checkpoint.container).to_owned();
    let checked = Checked::of(spec, checkpoint.tensors.len(), &usual)?;
    let mut low = Lower::new(checkpoint, checked.get(), kv, &names::TEXT);
    low.model()?;
    low.program.check()?;
    cover::check(&low.program, checkpoint, &low.partial)?;
    let names = checkpoint.tensors.iter().map(|t| &t.name);
    let unused =
        names.filter(|n| !low.used.contains(*n) && !is_ignorable(n) && !low.drafts(n)).cloned();
    let unused: Vec<String> = unused.collect();
    Ok(Lowered { program: low.program, unused })
}

pub use vision::{lower_vision, newline_of};

/// State of one lowering.
struct Lower<'a> {
    checkpoint: &'a Checkpoint,
    /// How the file spells the tensors of this part.
    names: &'static names::Table,
    spec: &'a ModelSpec,
    kv: KvFormat,
    program: Program,
    /// Names of tensors referred to.
    used: HashSet<String>,
    /// Names of tensors of which a program need not take everything.
    partial: HashSet<String>,
    /// Current layer.
    layer: usize,
    /// Kinds of cache groups so far, in order of appearance.
    groups: Vec<tokenmill_ir::GroupKind>,
    /// The key/value cache of each attention layer so far, for layers that share it.
    kv_caches: Vec<(usize, CacheId)>,
    /// Inputs of all layers side by side. [tokens, layers × width]
    layer_inputs: Option<View>,
}

/// The residual stream: a buffer and outputs not yet added to it. The next norm adds them.
struct Stream {
    base: View,
    pending: Vec<View>,
}

impl<'a> Lower<'a> {
    fn new(
        checkpoint: &'a Checkpoint,
        spec: &'a ModelSpec,
        kv: KvFormat,
        names: &'static names::Table,
    ) -> Self {
        Self {
            checkpoint,
            names,
            spec,
            kv,
            program: Program::default(),
            used: HashSet::new(),
            layer: 0,
            groups: Vec::new(),
            kv_caches: Vec::new(),
            layer_inputs: None,
            partial: HashSet::new(),
        }
    }
}

impl Lower<'_> {
    /// Whether a tensor belongs to a layer that only drafts.
    fn drafts(&self, name: &str) -> bool {
        let layers = self.spec.layers.len();
        let parts = name.split('.').filter_map(|p| p.parse::<usize>().ok());
        let draft = layers..layers + self.spec.draft_layers as usize;
        parts.take(1).any(|l| draft.contains(&l))
    }

    fn model(&mut self) -> Result<(), ModelError> {
        let spec = self.spec;
        self.program.hidden = spec.hidden;
        self.program.input_cols = spec.media * spec.hidden;
        let mut stream = self.embed()?;
        if let Some(streams) = &spec.streams {
            stream.base = self.streams(streams, stream.base)?;
            return self.output(stream);
        }
        for (i, layer) in spec.layers.iter().enumerate() {
            self.layer = i;
            self.lower_layer(layer, &mut stream)?;
            let added = i as u32 + 1;
            if added < spec.media {
                let more = self.input(added * spec.hidden, spec.hidden);
                stream.pending.push(more);
            }
        }
        self.output(stream)
    }

    fn embed(&mut self) -> Result<Stream, ModelError> {
        let spec = self.spec;
        let tied = matches!(spec.output, Output::Logits { .. })
            && find_opt(self.checkpoint, Role::Head, 0, 0).is_none();
        let width = spec.embed.width.unwrap_or(spec.hidden);
        let table = self.embedding(tied, width)?;
        let (mut positions, mut token_types) = (None, None);
        if let Some(first) = spec.embed.positions {
            positions = Some(self.table(Role::EmbedPositions, first, width)?);
        }
        if find_opt(self.checkpoint, Role::EmbedTypes, 0, 0).is_some() {
            token_types = Some(self.table(Role::EmbedTypes, 0, width)?);
        }
        let out = self.program.buffer(Rows::Tokens, width);
        let (scale, out_id) = (spec.embed.scale, out.buffer);
        self.program.ops.push(Op::Embed { table, scale, positions, token_types, out: out_id });
        let mut stream = Stream { base: out, pending: Vec::new() };
        if let Some(norm) = spec.embed.norm {
            stream.base = self.norm(out, norm, Role::EmbedNorm)?;
        }
        if spec.embed.width.is_some() {
            let projection = self.matrix(Role::EmbedProjection, spec.hidden, width)?;
            stream.base = self.linear(stream.base, projection);
        }
        if let Some(per_layer) = spec.embed.per_layer {
            self.layer_inputs = Some(self.per_layer(&per_layer, stream.base)?);
        }
        Ok(stream)
    }

    fn lower_layer(&mut self, layer: &Layer, stream: &mut Stream) -> Result<(), ModelError> {
        match layer.join {
            Join::Sequential => {
                for branch in &layer.branches {
                    let x = self.branch_input(branch, stream)?;
                    self.branch_output(branch, x, stream)?;
                }
            }
            Join::Parallel => {
                let Some(first) = layer.branches.first() else { return Ok(()) };
                let shared = self.branch_input(first, stream)?;
                let mut inputs = vec![shared];
                for branch in &layer.branches[1..] {
                    inputs.push(match branch.norm_in {
                        Some(_) => self.branch_input(branch, stream)?,
                        None => shared,
                    });
                }
                for (branch, x) in layer.branches.iter().zip(inputs) {
                    self.branch_output(branch, x, stream)?;
                }
            }
        }
        if layer.scaled {
            self.flush(stream);
            stream.base = self.scaled_by_tensor(stream.base, Role::LayerScale)?;
        }
        Ok(())
    }

    /// The normalised stream; pending outputs are added on the way.
    fn branch_input(&mut self, branch: &Branch, stream: &mut Stream) -> Result<View, ModelError> {
        let role = match branch.body {
            Body::Mix(_) => Role::MixerNorm,
            Body::Ffn(_) => Role::FfnNorm,
            Body::LayerInput(_) => Role::LayerInputNorm,
        };
        match branch.norm_in {
            Some(norm) => self.norm_stream(stream, norm, role, Rows::Tokens),
            None => {
                self.flush(stream);
                Ok(stream.base)
            }
        }
    }

    fn branch_output(
        &mut self,
        branch: &Branch,
        x: View,
        stream: &mut Stream,
    ) -> Result<(), ModelError> {
        let (mut y, post, gain) = match &branch.body {
            Body::Mix(mixers) => {
                let mut outs = Vec::with_capacity(mixers.len());
                for mixer in mixers {
                    outs.push(self.mixer(mixer, x)?);
                }
                (self.total(&outs), Role::MixerPostNorm, Some(Role::MixerGain))
            }
            Body::Ffn(ffn) => {
                (self.ffn(ffn, x, stream.base)?, Role::FfnPostNorm, Some(Role::FfnGain))
            }
            Body::LayerInput(act) => (self.layer_input(*act, x)?, Role::LayerInputNorm, None),
        };
        // (Where the file has a factor for each column.)
        if let Some(role) = gain
            && self.tensor_opt(role).is_some()
        {
            y = self.scaled_by_vector(y, role)?;
        }
        if let Some(norm) = branch.norm_out {
            y = self.norm(y, norm, post)?;
        }
        stream.pending.push(self.scaled(y, branch.scale));
        if let Some(norm) = branch.norm_sum {
            stream.base = self.norm_stream(stream, norm, post, Rows::Tokens)?;
            stream.pending.clear();
        }
        Ok(())
    }

    fn output(&mut self, mut stream: Stream) -> Result<(), ModelError> {
        let spec = self.spec;
        let hidden = match spec.output {
            Output::Pooled { kind, normalise } => {
                let x = self.final_norm(&mut stream, Rows::Tokens)?;
                self.pool(x, kind, normalise)
            }
            Output::Projected { cols, .. } => {
                let x = self.final_norm(&mut stream, Rows::Tokens)?;
                let last = self.pool(x, PoolKind::Last, false);
                let weight = self.matrix(Role::TextProjection, cols, spec.hidden)?;
                let y = self.linear_rows(last, weight, Rows::Outputs);
                self.unit_length(y)
            }
            Output::Score { kind, act, norm } => {
                let x = self.final_norm(&mut stream, Rows::Tokens)?;
                self.score(x, kind, act, norm)?
            }
            _ => {
                // Only rows with an output go through the last norm and the head.
                stream.base = self.take_rows(stream.base);
                for i in 0..stream.pending.len() {
                    stream.pending[i] = self.take_rows(stream.pending[i]);
                }
                self.final_norm(&mut stream, Rows::Outputs)?
            }
        };
        let mut logits = None;
        if let Output::Logits { scale, softcap } = spec.output {
            let weight = self.head()?;
            let out = self.program.buffer(Rows::Outputs, spec.vocab);
            self.program.ops.push(Op::Head { x: hidden, weight, scale, softcap, out: out.buffer });
            self.program.vocab = spec.vocab;
            logits = Some(out);
        }
        if self.program.caches.is_empty() {
            self.program.whole_sequences = true;
        }
        if logits.is_none() {
            self.tensor_opt(Role::Head); // a file may hold one for other uses
        }
        if spec.output == Output::Hidden
            && let Some(other) = self.tensor_opt(Role::TextProjection)
        {
            self.used.extend(names::bias_of(self.checkpoint, other).map(|t| t.name.clone()));
        }
        self.program.hidden = hidden.cols;
        self.program.ops.push(Op::Sample { logits, hidden, more: Vec::new() });
        Ok(())
    }

    fn pool(&mut self, x: View, kind: PoolKind, normalise: bool) -> View {
        let out = self.program.buffer(Rows::Outputs, x.cols);
        self.program.ops.push(Op::Pool { x, kind, normalise, out: out.buffer });
        self.program.whole_sequences = true;
        out
    }

    /// Output rows divided by their length.
    fn unit_length(&mut self, x: View) -> View {
        // (The root of the mean square is the length divided by that of a row of ones.)
        let unit = self.unit_norm(x, Norm::rms(LEAST_SQUARE), 1, Rows::Outputs);
        let one = 1.0 / (x.cols as f32).sqrt();
        self.map_rows(Expr::Arg(0).scaled(one), vec![unit], Rows::Outputs)
    }

    /// One number for each pooled row.
    fn score(
        &mut self,
        x: View,
        kind: PoolKind,
        act: Option<Unary>,
        norm: Option<Norm>,
    ) -> Result<View, ModelError> {
        let (hidden, rows) = (self.spec.hidden, Rows::Outputs);
        let mut y = self.pool(x, kind, false);
        if let Some(act) = act {
            let dense = self.matrix(Role::ScoreDense, hidden, hidden)?;
            y = self.linear_rows(y, dense, rows);
            y = self.map_rows(Expr::Arg(0).apply(act), vec![y], rows);
        }
        if let Some(norm) = norm {
            let mut stream = Stream { base: y, pending: Vec::new() };
            y = self.norm_stream(&mut stream, norm, Role::ScoreNorm, rows)?;
        }
        let out = self.matrix(Role::ScoreOut, 1, hidden)?;
        Ok(self.linear_rows(y, out, rows))
    }

    fn final_norm(&mut self, stream: &mut Stream, rows: Rows) -> Result<View, ModelError> {
        match self.spec.final_norm {
            Some(norm) => self.norm_stream(stream, norm, Role::FinalNorm, rows),
            None => {
                self.flush_rows(stream, rows);
                Ok(stream.base)
            }
        }
    }

    fn take_rows(&mut self, x: View) -> View {
        self.take_runs(x, 1)
    }

    /// At each output row, it and those behind it, `run` in all, side by side.
    fn take_runs(&mut self, x: View, run: u32) -> View {
        let out = self.program.buffer(Rows::Outputs, run * x.cols);
        self.program.ops.push(Op::TakeRows { x, run, out: out.buffer });
        out
    }

    /// Columns of the rows that stand where tokens stand.
    fn input(&mut self, start: u32, cols: u32) -> View {
        let out = self.program.buffer(Rows::Tokens, cols);
        self.program.ops.push(Op::Input { start, out: out.buffer });
        out
    }

    /// Adds pending outputs to the base.
    fn flush(&mut self, stream: &mut Stream) {
        self.flush_rows(stream, Rows::Tokens);
    }

    fn flush_rows(&mut self, stream: &mut Stream, rows: Rows) {
        for add in std::mem::take(&mut stream.pending) {
            stream.base = self.map_rows(Expr::add(0, 1), vec![stream.base, add], rows);
        }
    }

    /// `norm(base + pending)`; the sum becomes the base.
    fn norm_stream(
        &mut self,
        stream: &mut Stream,
        norm: Norm,
        role: Role,
        rows: Rows,
    ) -> Result<View, ModelError> {
        let x = stream.base;
        let adds = std::mem::take(&mut stream.pending);
        let sum = (!adds.is_empty()).then(|| self.program.buffer(rows, x.cols));
        if let Some(sum) = sum {
            stream.base = sum;
        }
        let out = self.program.buffer(rows, x.cols);
        let (weight, bias) = self.norm_weights(role, x.cols)?;
        self.program.ops.push(Op::Norm(op::Norm {
            x,
            adds,
            sum: sum.map(|s| s.buffer),
            kind: norm.kind,
            weight,
            offset: norm.offset,
            bias,
            groups: 1,
            gate: None,
            eps: norm.eps,
            root: None,
            out: out.buffer,
        }));
        Ok(out)
    }

    /// Plain `norm(x)`.
    fn norm(&mut self, x: View, norm: Norm, role: Role) -> Result<View, ModelError> {
        let mut stream = Stream { base: x, pending: Vec::new() };
        self.norm_stream(&mut stream, norm, role, Rows::Tokens)
    }

    fn norm_weights(
        &mut self,
        role: Role,
        cols: u32,
    ) -> Result<(Option<WeightId>, Option<WeightId>), ModelError> {
        let weight = self.vector(role, cols)?;
        Ok((Some(weight), self.bias_vector(role, cols)?))
    }

    /// Sum of several outputs, left to right.
    fn total(&mut self, outs: &[View]) -> View {
        let mut sum = outs[0];
        for &next in &outs[1..] {
            sum = self.map(Expr::add(0, 1), vec![sum, next]);
        }
        sum
    }

    /// `c · x`; nothing is emitted for 1.
    fn scaled(&mut self, x: View, c: f32) -> View {
        if c == 1.0 { x } else { self.map(Expr::Arg(0).scaled(c), vec![x]) }
    }

    fn map(&mut self, expr: Expr, args: Vec<View>) -> View {
        self.map_rows(expr, args, Rows::Tokens)
    }

    fn map_rows(&mut self, expr: Expr, args: Vec<View>, rows: Rows) -> View {
        let cols = args.iter().map(|v| v.cols).max().unwrap_or(1);
        let out = self.program.buffer(rows, cols);
        self.program.ops.push(Op::Map { expr, args, out: out.buffer });
        out
    }

    fn linear(&mut self, x: View, weight: WeightId) -> View {
        self.linear_rows(x, weight, Rows::Tokens)
    }

    fn linear_rows(&mut self, x: View, weight: WeightId, rows: Rows) -> View {
        let cols = self.program.weights[weight.0 as usize].rows;
        let out = self.program.buffer(rows, cols);
        self.program.ops.push(Op::Linear { x, weight, out: out.buffer });
        out
    }

    fn rope_id(&mut self, spec: &RopeSpec) -> Result<RopeId, ModelError> {
        let factors = match spec.scaling {
            RopeScaling::Tensor { .. } => {
                Some(self.shared_vector(Role::RopeFactors, spec.dims / 2)?)
            }
            _ => None,
        };
        let rope = rope(spec, factors);
        if rope.inv_freq.iter().any(|f| !f.is_finite()) || !rope.magnitude.is_finite() {
            let found = format!("{} ({:?}), not finite", spec.theta, spec.scaling);
            return Err(ModelError::unsupported("base of the rotation", shortened(found)));
        }
        let known = self.program.ropes.iter().position(|r| *r == rope);
        let index = known.unwrap_or_else(|| {
            self.program.ropes.push(rope);
            self.program.ropes.len() - 1
        });
        Ok(RopeId(index as u32))
    }

    /// Adds a cache; caches of equal kind (and equal window) share a group.
    fn cache(&mut self, kind: CacheKind) -> CacheId {
        let format = match kind {
            CacheKind::Latent { .. } => self.kv.of_latents(),
            _ => self.kv,
        };
        let mut cache = CacheSpec { kind, format, group: 0 };
        let group = cache.group_kind();
        let at = self.groups.iter().position(|g| *g == group).unwrap_or_else(|| {
            self.groups.push(group);
            self.groups.len() - 1
        });
        cache.group = at as u32;
        self.program.caches.push(cache);
        CacheId(self.program.caches.len() as u32 - 1)
    }

    fn is_rms(norm: Norm) -> bool {
        norm.kind == NormKind::Rms
    }
}

/// Columns `start .. start + cols` of a view.
fn slice(v: View, start: u32, cols: u32) -> View {
    View { buffer: v.buffer, start: v.start + start, cols }
}
