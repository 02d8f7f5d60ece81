//! Several streams beside each other, and the low-rank path of their layers (Gemma 3n).

use tokenmill_ir::{
    Columns, Expr, NormKind, Op, RowPart, RowSlices, Rows, Unary, View, WeightId, WeightSpec,
    WeightUse, op,
};

use super::{Lower, Stream, slice};
use crate::error::ModelError;
use crate::names::Role;
use crate::spec::{Join, Layer, Norm, Streams};

/// What tells how a layer's streams depend on one another.
struct Router {
    norm: Norm,
    norm_weight: WeightId,
    matrix: WeightId,
}

impl Lower<'_> {
    /// From the embedding, through all layers, to the one row for the last norm.
    pub(super) fn streams(&mut self, s: &Streams, first: View) -> Result<View, ModelError> {
        let mut all = vec![first];
        let size = self.sized(first, NormKind::Rms).1;
        for i in 1..s.count {
            let y = self.square((Role::StreamIn, Role::StreamsIn), i - 1, first)?;
            all.push(self.resized(y, size));
        }
        for (i, layer) in self.spec.layers.iter().enumerate() {
            self.layer = i;
            all = self.streams_layer(s, layer, &all)?;
        }
        let size = self.sized(all[0], NormKind::Rms).1;
        let mut sum = all[0];
        for i in 1..s.count {
            let y = self.square((Role::StreamOut, Role::StreamsOut), i - 1, all[i as usize])?;
            let y = self.resized(y, size);
            sum = self.map(Expr::add(0, 1), vec![sum, y]);
        }
        Ok(self.scaled(sum, 1.0 / s.count as f32))
    }

    /// `x` with another root of its mean square.
    fn resized(&mut self, x: View, size: View) -> View {
        let unit = self.sized(x, NormKind::Rms).0;
        self.map(Expr::mul(0, 1), vec![unit, size])
    }

    /// `x` times the matrix `at` of a list that is stored apart or as one tensor.
    fn square(
        &mut self,
        (apart, together): (Role, Role),
        at: u32,
        x: View,
    ) -> Result<View, ModelError> {
        let hidden = self.spec.hidden;
        let (t, rows) = match self.tensor_opt(together) {
            Some(t) => {
                let hidden = u64::from(hidden);
                (t, Some(RowSlices::range(u64::from(at) * hidden, hidden)))
            }
            None => (self.expert_tensor(apart, at)?, None),
        };
        let part = self.part(t, rows, hidden)?;
        self.expect_rows(t, part.rows.len(), hidden)?;
        let weight = self.weight_of(format!("{apart:?}.{at}"), hidden, hidden, part);
        Ok(self.linear(x, weight))
    }

    fn weight_of(&mut self, name: String, rows: u32, cols: u32, part: RowPart) -> WeightId {
        let (role, parts) = (WeightUse::Matmul, vec![part]);
        let (bias, scales) = (Vec::new(), Vec::new());
        self.program.weight(WeightSpec { name, role, rows, cols, parts, bias, scales })
    }

    fn streams_layer(
        &mut self,
        s: &Streams,
        layer: &Layer,
        old: &[View],
    ) -> Result<Vec<View>, ModelError> {
        let (Join::Sequential, [mixer, ffn, input]) = (layer.join, layer.branches.as_slice())
        else {
            let found = format!("{:?} layers of {} branches", layer.join, layer.branches.len());
            return Err(ModelError::unsupported("several streams", found));
        };
        let (hidden, count) = (self.spec.hidden, s.count);
        let router = Router {
            norm: s.norm,
            norm_weight: self.vector(Role::StreamRouterNorm, hidden)?,
            matrix: self.matrix(Role::StreamRouter, count, hidden)?,
        };
        self.scale_rows(router.matrix, &[(count, 1.0 / hidden as f32)]);
        let predicted = self.predicted(&router, old)?;

        let mut stream = Stream { base: predicted[0], pending: Vec::new() };
        let x = self.branch_input(mixer, &mut stream)?;
        self.branch_output(mixer, x, &mut stream)?;
        let low = self.low_rank(s, x)?;
        stream.pending.extend([x, low]);
        self.flush(&mut stream);
        stream.base = self.scaled(stream.base, std::f32::consts::FRAC_1_SQRT_2);
        let x = self.branch_input(ffn, &mut stream)?;
        self.branch_output(ffn, x, &mut stream)?;
        self.flush(&mut stream);

        let mut corrected = self.corrected(&router, &predicted, stream.base)?;
        let mut first = corrected[0];
        if s.scaled {
            first = self.scaled_by_vector(first, Role::StreamScale)?;
        }
        let mut stream = Stream { base: first, pending: Vec::new() };
        self.branch_output(input, first, &mut stream)?;
        for more in stream.pending {
            for other in &mut corrected[1..] {
                *other = self.map(Expr::add(0, 1), vec![*other, more]);
            }
        }
        Ok(corrected)
    }

    /// `norm(up·down·x)`.
    fn low_rank(&mut self, s: &Streams, x: View) -> Result<View, ModelError> {
        let hidden = self.spec.hidden;
        let down = self.matrix(Role::LowRankDown, s.rank, hidden)?;
        let y = self.linear(x, down);
        let up = self.matrix(Role::LowRankUp, hidden, s.rank)?;
        let y = self.linear(y, up);
        self.norm(y, s.norm, Role::LowRankNorm)
    }

    /// `weight · tanh(router · norm(x) / hidden)`, a number a row of the role's tensor.
    fn coefficients(
        &mut self,
        router: &Router,
        x: View,
        (role, rows): (Role, u32),
    ) -> Result<View, ModelError> {
        let normed = self.program.buffer(Rows::Tokens, x.cols);
        self.program.ops.push(Op::Norm(op::Norm {
            x,
            adds: Vec::new(),
            sum: None,
            kind: router.norm.kind,
            weight: Some(router.norm_weight),
            offset: router.norm.offset,
            bias: None,
            groups: 1,
            gate: None,
            eps: router.norm.eps,
            root: None,
            out: normed.buffer,
        }));
        let y = self.linear(normed, router.matrix);
        let y = self.map(Expr::Arg(0).apply(Unary::Tanh), vec![y]);
        let weight = self.matrix(role, rows, y.cols)?;
        Ok(self.linear(y, weight))
    }

    /// `p_j = h_j + Σ_i c[j][i] · h_i`.
    fn predicted(&mut self, router: &Router, old: &[View]) -> Result<Vec<View>, ModelError> {
        let count = old.len() as u32;
        let c = self.coefficients(router, old[0], (Role::StreamPredict, count * count))?;
        let product = Expr::Mul(Box::new(Expr::Arg(1)), Box::new(Expr::Arg(2)));
        let expr = Expr::Add(Box::new(Expr::Arg(0)), Box::new(product));
        let mut all = Vec::with_capacity(old.len());
        for (j, &stream) in (0..count).zip(old) {
            let mut sum = stream;
            for (i, &other) in (0..count).zip(old) {
                let c = slice(c, count * j + i, 1);
                sum = self.map(expr.clone(), vec![sum, other, c]);
            }
            all.push(sum);
        }
        Ok(all)
    }

    /// `p_j + (c_j + 1) · (computed − p_0)`.
    fn corrected(
        &mut self,
        router: &Router,
        predicted: &[View],
        computed: View,
    ) -> Result<Vec<View>, ModelError> {
        let count = predicted.len() as u32;
        let c = self.coefficients(router, computed, (Role::StreamCorrect, count))?;
        let less = Expr::Add(Box::new(Expr::Arg(0)), Box::new(Expr::Arg(1).scaled(-1.0)));
        let news = self.map(less, vec![computed, predicted[0]]);
        let more = Expr::Add(Box::new(Expr::Arg(2)), Box::new(Expr::Const(1.0)));
        let more = Expr::Mul(Box::new(Expr::Arg(1)), Box::new(more));
        let expr = Expr::Add(Box::new(Expr::Arg(0)), Box::new(more));
        let one =
            |(j, &stream): (u32, &View)| self.map(expr.clone(), vec![stream, news, slice(c, j, 1)]);
        Ok((0..count).zip(predicted).map(one).collect())
    }

    /// `x` times a vector of the file: a product of a 1 × 1 matrix for every column.
    pub(super) fn scaled_by_vector(&mut self, x: View, role: Role) -> Result<View, ModelError> {
        let t = self.tensor(role)?;
        let mut part = self.part(t, Some(RowSlices::range(0, 1)), x.cols)?;
        part.transposed = Some(Columns::all(x.cols.into()));
        let weight = self.weight_of(t.name.clone(), x.cols, 1, part);
        Ok(self.head_linear(x, x.cols, weight))
    }
}
