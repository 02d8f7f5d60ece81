//! Encoders of images: from a [`VisionSpec`] to a [`Program`] whose tokens are patches and whose
//! outputs are the rows that stand where the language model's tokens stand.

use tokenmill_ir::{
    Checkpoint, Container, Expr, KvFormat, Op, Rows, Unary, View, WeightId, WeightUse,
};

use super::{Lower, Lowered, Stream, cover, slice};
use crate::error::ModelError;
use crate::hyper::Key;
use crate::limits::Checked;
use crate::names::{Role, is_of_images};
use crate::vision::{Gather, NormAt, Projector, VisionSpec, names};

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
    low.program.check()?;
    cover::check(&low.program, checkpoint, &low.partial)?;
    let names = checkpoint.tensors.iter().map(|t| &t.name);
    // (A GGUF file of an encoder may have one of sound beside.)
    let own = |name: &str| match checkpoint.container {
        Container::Gguf => !name.starts_with("a.") && !name.starts_with("mm.a."),
        Container::Hf => is_of_images(name),
    };
    let unused = names.filter(|n| own(n) && !low.used.contains(*n) && !vision.skips(n));
    let unused = unused.cloned().collect();
    Ok(Lowered { program: low.program, unused })
}

/// The tensors of a projector.
struct Roles {
    norm: Role,
    up: Role,
    down: Role,
}

const MERGER: Roles = Roles { norm: Role::MergeNorm, up: Role::MergeUp, down: Role::MergeDown };
const DEEP: Roles = Roles { norm: Role::DeepNorm, up: Role::DeepUp, down: Role::DeepDown };

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
        let hidden = self.project(v, &v.projector, &MERGER, x)?;
        self.program.whole_sequences = true;
        self.program.hidden = hidden.cols * (1 + more.len() as u32);
        self.program.ops.push(Op::Sample { logits: None, hidden, more });
        Ok(())
    }

    /// The patches' numbers as rows of the stream, with what is learned of their places.
    fn patches(&mut self, v: &VisionSpec) -> Result<View, ModelError> {
        let (hidden, pixels) = (self.spec.hidden, v.patch.cols());
        let x = self.input(0, pixels);
        let weight = self.matrix(Role::Patch, hidden, pixels)?;
        let mut stream = Stream { base: self.linear(x, weight), pending: Vec::new() };
        if self.tensor_opt(Role::SecondPatch).is_some() {
            let weight = self.matrix(Role::SecondPatch, hidden, pixels)?;
            stream.pending.push(self.linear(x, weight));
        }
        if let Some(learned) = v.positions {
            let rows = learned.side * learned.side + u32::from(v.class_token);
            let taps = self.input(pixels, 2 * learned.taps());
            stream.pending.push(self.gathered(Role::PatchPositions, rows, taps)?);
        }
        if v.class_token {
            let tap = self.input(pixels + 2 * v.taps(), 2);
            stream.pending.push(self.gathered(Role::ClassToken, 1, tap)?);
        }
        match self.spec.embed.norm {
            Some(norm) => self.norm_stream(&mut stream, norm, Role::EmbedNorm, Rows::Tokens),
            None => {
                self.flush(&mut stream);
                Ok(stream.base)
            }
        }
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
        let mut x = x;
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
        if p.merging {
            let merging = self.merging(x.cols, v.merge * v.merge)?;
            y = self.linear_rows(y, merging, rows);
        }
        if let Some((width, act)) = p.inner {
            let up = self.matrix(roles.up, width, y.cols)?;
            y = self.linear_rows(y, up, rows);
            y = self.map_rows(Expr::Arg(0).apply(Unary::Act(act)), vec![y], rows);
        }
        let down = self.matrix(roles.down, v.out, y.cols)?;
        Ok(self.linear_rows(y, down, rows))
    }

    /// The product that makes `run` rows one; its columns stand column by column, not row by row.
    fn merging(&mut self, cols: u32, run: u32) -> Result<WeightId, ModelError> {
        let weight = self.matrix(Role::Merging, cols, run * cols)?;
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
