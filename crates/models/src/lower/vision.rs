//! Encoders of images: from a [`VisionSpec`] to a [`Program`] whose tokens are patches and whose
//! outputs are the rows that stand where the language model's tokens stand.

use tokenmill_ir::{
    Act, AttendSource, Checkpoint, Container, Expr, GateAct, KvFormat, Mask, Op, RowSlices, Rows,
    TensorInfo, Unary, View, WeightId, WeightSpec, WeightUse, op,
};

use super::{Lower, Lowered, Stream, cover, slice};
use crate::error::ModelError;
use crate::hyper::Key;
use crate::limits::Checked;
use crate::names::{NEWLINE, Role, is_of_images};
use crate::spec::Norm;
use crate::vision::{Gather, Learned, NormAt, Projector, Summary, VisionSpec, names};

/// Turns an encoder into a program over the checkpoint's tensors. Unused are tensors of images only;
/// what is the language model's is [`lower`](super::lower())'s.
///
/// # Errors
/// [`ModelError`] for tensors that are absent or of other shapes.
pub fn lower_vision(vision: &VisionSpec, checkpoint: &Checkpoint) -> Result<Lowered, ModelError> {
    let usual = |key: Key| key.usual(checkpoint.container).to_owned();
    let checked = Checked::of(&vision.tower, checkpoint.tensors.len(), &usual)?;
    let table = names::table_of(checkpoint, vision.tower.hidden);
    let mut low = Lower::new(checkpoint, checked.get(), KvFormat::F32, table);
    low.vision(vision)?;
    // (A folder that says it has layers behind the last that counts has them.)
    if vision.skipped > 0 && checkpoint.container == Container::Hf {
        low.layer = vision.tower.layers.len() + vision.skipped as usize - 1;
        low.tensor(Role::MixerNorm)?;
    }
    low.used.extend(newline_tensor(vision, checkpoint)?.map(|t| t.name.clone()));
    low.program.check()?;
    cover::check(&low.program, checkpoint, &low.partial)?;
    let names = checkpoint.tensors.iter().map(|t| &t.name);
    // (A GGUF file of an encoder may have one of sound beside.)
    let own = |name: &str| match checkpoint.container {
        // (Pixtral's row of a token is the language model's too.)
        Container::Gguf => !["a.", "mm.a.", "v.token_embd."].iter().any(|p| name.starts_with(p)),
        Container::Hf => is_of_images(name),
    };
    let unused = names.filter(|n| own(n) && !low.used.contains(*n) && !vision.skips(n));
    let unused = unused.cloned().collect();
    Ok(Lowered { program: low.program, unused })
}

/// The learned row that stands behind lines of an encoder's rows, which no program reads: it is put
/// between them.
///
/// # Errors
/// [`ModelError`] where it is absent or of another width.
pub fn newline_of(
    vision: &VisionSpec,
    checkpoint: &Checkpoint,
) -> Result<Option<WeightSpec>, ModelError> {
    let Some(tensor) = newline_tensor(vision, checkpoint)? else { return Ok(None) };
    let mut low = Lower::new(
        checkpoint,
        &vision.tower,
        KvFormat::F32,
        names::table_of(checkpoint, vision.tower.hidden),
    );
    let id = low.vector_of(tensor, vision.out)?;
    Ok(Some(low.program.weights.swap_remove(id.0 as usize)))
}

fn newline_tensor<'a>(
    vision: &VisionSpec,
    checkpoint: &'a Checkpoint,
) -> Result<Option<&'a TensorInfo>, ModelError> {
    if !vision.newline() {
        return Ok(None);
    }
    let found = NEWLINE.iter().find_map(|name| checkpoint.tensor(name));
    found.map(Some).ok_or_else(|| ModelError::unsupported("image_newline", "none"))
}

/// The tensors of a projector.
struct Roles {
    norm: Role,
    gate: Role,
    up: Role,
    down: Role,
}

const MERGER: Roles = Roles {
    norm: Role::MergeNorm,
    gate: Role::MergeGate,
    up: Role::MergeUp,
    down: Role::MergeDown,
};
const DEEP: Roles =
    Roles { norm: Role::DeepNorm, up: Role::DeepUp, down: Role::DeepDown, ..MERGER };

impl Lower<'_> {
    fn vision(&mut self, v: &VisionSpec) -> Result<(), ModelError> {
        let spec = self.spec;
        self.program.input_cols = v.input_cols();
        let mut stream = Stream { base: self.patches(v)?, pending: Vec::new() };
        let mut more = Vec::new();
        for (i, layer) in spec.layers.iter().enumerate() {
            self.layer = i;
            self.lower_layer(layer, &mut stream)?;
            if let Some((projector, at)) = v.deep_behind(i) {
                self.flush(&mut stream);
                // (GGUF calls them by the layer, folders by their number.)
                self.layer = if self.checkpoint.container == Container::Gguf { i } else { at };
                more.push(self.project(v, projector, &DEEP, stream.base)?);
            }
        }
        let x = self.final_norm(&mut stream, Rows::Tokens)?;
        let hidden = match &v.summary {
            None => self.project(v, &v.projector, &MERGER, x)?,
            Some(Summary::ClassToken) => {
                let row = self.project(v, &v.projector, &MERGER, x)?;
                self.unit_length(row)
            }
            Some(Summary::Attention { heads, norm, width, act }) => {
                let row = self.attended(*heads, x)?;
                let row = self.fed(row, *norm, (*width, *act))?;
                self.unit_length(row)
            }
        };
        self.program.whole_sequences = true;
        self.program.hidden = hidden.cols * (1 + more.len() as u32);
        self.program.ops.push(Op::Sample { logits: None, hidden, more });
        Ok(())
    }

    /// The patches' numbers as rows of the stream, with what is learned of their places.
    fn patches(&mut self, v: &VisionSpec) -> Result<View, ModelError> {
        let (hidden, pixels) = (self.spec.hidden, v.patch.cols());
        let mut x = self.input(0, pixels);
        let weight = self.matrix(Role::Patch, hidden, pixels)?;
        if v.patch.pixels {
            let two = Expr::Arg(0).scaled(2.0);
            x = self.map(Expr::Add(Box::new(two), Box::new(Expr::Const(-1.0))), vec![x]);
            self.by_pixels(v, weight);
        }
        let mut stream = Stream { base: self.linear(x, weight), pending: Vec::new() };
        if self.tensor_opt(Role::SecondPatch).is_some() {
            let weight = self.matrix(Role::SecondPatch, hidden, pixels)?;
            stream.pending.push(self.linear(x, weight));
        }
        let learned = v.positions.map(|learned| self.positions(v, &learned)).transpose()?;
        let behind = v.positions.is_some_and(|learned| learned.behind_norm);
        stream.pending.extend(learned.filter(|_| !behind));
        if v.class_token.is_there() {
            let tap = self.input(pixels + 2 * v.taps(), 2);
            stream.pending.push(self.gathered(Role::ClassToken, 1, tap)?);
            // It is no patch, so it has none of the bias that every patch has.
            if let Some(bias) = self.bias_vector(Role::Patch, hidden)? {
                self.program.weights[bias.0 as usize].role = WeightUse::Rows;
                let out = self.program.buffer(Rows::Tokens, hidden);
                self.program.ops.push(Op::Gather { x: tap, table: bias, out: out.buffer });
                stream.pending.push(self.scaled(out, -1.0));
            }
        }
        if let Some(norm) = self.spec.embed.norm {
            stream.base = self.norm_stream(&mut stream, norm, Role::EmbedNorm, Rows::Tokens)?;
        }
        stream.pending.extend(learned.filter(|_| behind));
        self.flush(&mut stream);
        Ok(stream.base)
    }

    /// What a learned query sees of all tokens, at the output rows.
    fn attended(&mut self, heads: u32, x: View) -> Result<View, ModelError> {
        let hidden = self.spec.hidden;
        // (Every token asks the same; it is read where there is an output.)
        let query = self.only_row(Role::PoolQuery, x)?;
        let rows = |first: u32, count: u32| {
            let rows = RowSlices::range(u64::from(first) * u64::from(hidden), count.into());
            (Role::PoolQkv, Some(rows))
        };
        let q = self.stacked("pool.q", hidden, &[rows(0, hidden)])?;
        let kv = self.stacked("pool.kv", hidden, &[rows(1, hidden), rows(2, hidden)])?;
        let (q, kv) = (self.linear(query, q), self.linear(x, kv));
        let out = self.program.buffer(Rows::Tokens, hidden);
        let v_dim = hidden / heads;
        self.program.ops.push(Op::Attend(op::Attend {
            q,
            heads,
            source: AttendSource::Fresh { k: slice(kv, 0, hidden), v: slice(kv, hidden, hidden) },
            kv_heads: heads,
            v_dim,
            scale: 1.0 / (v_dim as f32).sqrt(),
            mask: Mask::None,
            softcap: None,
            sinks: None,
            blocks: false,
            out: out.buffer,
        }));
        let taken = self.take_runs(out, 1);
        let weight = self.matrix(Role::PoolOut, hidden, hidden)?;
        Ok(self.linear_rows(taken, weight, Rows::Outputs))
    }

    /// `x + down(act(up·norm(x)))` of output rows.
    fn fed(&mut self, x: View, norm: Norm, (width, act): (u32, Act)) -> Result<View, ModelError> {
        let rows = Rows::Outputs;
        let mut stream = Stream { base: x, pending: Vec::new() };
        let y = self.norm_stream(&mut stream, norm, Role::PoolNorm, rows)?;
        let up = self.matrix(Role::PoolUp, width, y.cols)?;
        let y = self.linear_rows(y, up, rows);
        let y = self.activated(y, act);
        let down = self.matrix(Role::PoolDown, x.cols, width)?;
        stream.pending.push(self.linear_rows(y, down, rows));
        self.flush_rows(&mut stream, rows);
        Ok(stream.base)
    }

    /// A table of one row, for every token.
    fn only_row(&mut self, role: Role, x: View) -> Result<View, ModelError> {
        let one = Expr::Add(Box::new(Expr::Arg(0).scaled(0.0)), Box::new(Expr::Const(1.0)));
        let taps = self.map(one, vec![slice(x, 0, 2)]);
        self.gathered(role, 1, taps)
    }

    /// A matrix whose columns have the numbers of a pixel side by side.
    fn by_pixels(&mut self, v: &VisionSpec, weight: WeightId) {
        let (channels, pixels) = (v.patch.channels, v.patch.size * v.patch.size);
        let order = (0..pixels).flat_map(|p| (0..channels).map(move |c| c * pixels + p));
        let order: Vec<u32> = order.collect();
        for part in &mut self.program.weights[weight.0 as usize].parts {
            part.order = Some(order.clone().into());
        }
    }

    /// Rows multiplied by a number; a vector taken from them, and another multiplied in.
    fn standardised(&mut self, p: &Projector, x: View) -> Result<View, ModelError> {
        if !p.standard {
            return Ok(self.scaled(x, p.scale));
        }
        let shift = self.only_row(Role::StandardShift, x)?;
        let less = Expr::Arg(1).scaled(-1.0);
        let expr = Expr::Add(Box::new(Expr::Arg(0).scaled(p.scale)), Box::new(less));
        let shifted = self.map(expr, vec![x, shift]);
        self.scaled_by_vector(shifted, Role::StandardScale)
    }

    /// What is learned of the patches' places.
    fn positions(&mut self, v: &VisionSpec, learned: &Learned) -> Result<View, ModelError> {
        let rows = learned.places() + u32::from(v.class_token.is_there());
        let taps = self.input(v.patch.cols(), 2 * learned.taps());
        self.gathered(Role::PatchPositions, rows, taps)
    }

    /// Rows of a table, weighed.
    fn gathered(&mut self, role: Role, rows: u32, taps: View) -> Result<View, ModelError> {
        let hidden = self.spec.hidden;
        let table = self.matrix_as(role, rows, hidden, WeightUse::Rows)?;
        let out = self.program.buffer(Rows::Tokens, hidden);
        self.program.ops.push(Op::Gather { x: taps, table, out: out.buffer });
        Ok(out)
    }

    /// Rows of the language model's width from those of patches that become one.
    fn project(
        &mut self,
        v: &VisionSpec,
        p: &Projector,
        roles: &Roles,
        x: View,
    ) -> Result<View, ModelError> {
        let rows = Rows::Outputs;
        let mut x = self.standardised(p, x)?;
        if let Some((norm, NormAt::Patch)) = p.norm {
            x = self.norm(x, norm, roles.norm)?;
        }
        let mut y = self.take_runs(x, v.merge * v.merge);
        if p.gather == Gather::Mean {
            y = self.mean_of_runs(y, x.cols);
        }
        if let Some((norm, NormAt::Merged)) = p.norm {
            let mut stream = Stream { base: y, pending: Vec::new() };
            y = self.norm_stream(&mut stream, norm, roles.norm, rows)?;
        }
        if let Some((norm, NormAt::MergedUnit)) = p.norm {
            y = self.unit_norm(y, norm, 1, rows);
        }
        if let Some(width) = p.merging {
            let merging = self.merging(width, x.cols, v.merge * v.merge)?;
            y = self.linear_rows(y, merging, rows);
        }
        if let Some((norm, act)) = p.between {
            let weight = self.matrix(Role::Between, y.cols, y.cols)?;
            let base = self.linear_rows(y, weight, rows);
            let mut stream = Stream { base, pending: Vec::new() };
            y = self.norm_stream(&mut stream, norm, Role::BetweenNorm, rows)?;
            y = self.activated(y, act);
        }
        match p.inner {
            None => {}
            Some((width, act)) if p.gated => {
                let gate = self.matrix(roles.gate, width, y.cols)?;
                let up = self.matrix(roles.up, width, y.cols)?;
                let out = self.program.buffer(rows, width);
                let (act, id) = (GateAct::Plain(act), out.buffer);
                self.program.ops.push(Op::GatedLinear { x: y, gate, up, act, out: id });
                y = out;
            }
            Some((width, act)) => {
                let up = self.matrix(roles.up, width, y.cols)?;
                y = self.linear_rows(y, up, rows);
                y = self.activated(y, act);
            }
        }
        if let Some((width, act)) = p.second {
            let weight = self.matrix(Role::MergeSecond, width, y.cols)?;
            y = self.linear_rows(y, weight, rows);
            y = self.activated(y, act);
        }
        let down = self.matrix(roles.down, v.out, y.cols)?;
        Ok(self.linear_rows(y, down, rows))
    }

    fn activated(&mut self, x: View, act: Act) -> View {
        self.map_rows(Expr::Arg(0).apply(Unary::Act(act)), vec![x], Rows::Outputs)
    }

    /// The product that makes `run` rows of `cols` one; its columns stand column by column, not row by
    /// row.
    fn merging(&mut self, width: u32, cols: u32, run: u32) -> Result<WeightId, ModelError> {
        let weight = self.matrix(Role::Merging, width, run * cols)?;
        let order = (0..cols).flat_map(|col| (0..run).map(move |row| row * cols + col));
        let order: Vec<u32> = order.collect();
        for part in &mut self.program.weights[weight.0 as usize].parts {
            part.order = Some(order.clone().into());
        }
        Ok(weight)
    }

    /// The mean of rows that lie side by side, `cols` columns each, summed in their order.
    fn mean_of_runs(&mut self, x: View, cols: u32) -> View {
        let count = x.cols / cols;
        let part = |i: u32| slice(x, i * cols, cols);
        let mut sum = part(0);
        let mut next = 1;
        while next < count {
            let parts: Vec<View> = (next..count.min(next + 3)).map(part).collect();
            next += parts.len() as u32;
            let add = |sum: Expr, i: u8| Expr::Add(Box::new(sum), Box::new(Expr::Arg(i)));
            let mut expr = (1..=parts.len() as u8).fold(Expr::Arg(0), add);
            if next == count {
                expr = expr.scaled(1.0 / count as f32);
            }
            sum = self.map_rows(expr, std::iter::once(sum).chain(parts).collect(), Rows::Outputs);
        }
        sum
    }
}
