//! Inputs of layers beside the stream, and factors of it that the file holds (Gemma 4).

use tokenmill_ir::{Act, Expr, Op, RowSlices, Rows, Unary, View, WeightSpec, WeightUse, op};

use super::{Lower, slice};
use crate::error::ModelError;
use crate::names::Role;
use crate::spec::PerLayer;

impl Lower<'_> {
    /// The inputs of all layers side by side.
    pub(super) fn per_layer(&mut self, p: &PerLayer, x: View) -> Result<View, ModelError> {
        let cols = p.width * self.spec.layers.len() as u32;
        let table = self.table_of(Role::LayerTable, cols)?;
        let rows = self.program.buffer(Rows::Tokens, cols);
        let (scale, out) = (p.scale, rows.buffer);
        self.program.ops.push(Op::Embed { table, scale, positions: None, token_types: None, out });
        let weight = self.matrix(Role::LayerProjection, cols, self.spec.hidden)?;
        self.scale_rows(weight, &[(cols, p.projection_scale)]);
        let projected = self.linear(x, weight);
        let weight = self.vector(Role::LayerProjectionNorm, p.width)?;
        let normed = self.program.buffer(Rows::Tokens, cols);
        self.program.ops.push(Op::Norm(op::Norm {
            x: projected,
            adds: Vec::new(),
            sum: None,
            kind: p.norm.kind,
            weight: Some(weight),
            offset: p.norm.offset,
            bias: None,
            groups: self.spec.layers.len() as u32,
            gate: None,
            eps: p.norm.eps,
            root: None,
            out: normed.buffer,
        }));
        let half = std::f32::consts::FRAC_1_SQRT_2;
        Ok(self.map(Expr::add(0, 1).scaled(half), vec![normed, rows]))
    }

    /// The part of a layer that takes its own input in.
    pub(super) fn layer_input(&mut self, act: Act, x: View) -> Result<View, ModelError> {
        let Some(all) = self.layer_inputs else {
            return Err(ModelError::unsupported("inputs of layers", "none"));
        };
        let width = all.cols / self.spec.layers.len() as u32;
        let own = slice(all, width * self.layer as u32, width);
        let gate = self.matrix(Role::LayerInputGate, width, self.spec.hidden)?;
        let gate = self.linear(x, gate);
        let act = Expr::Arg(0).apply(Unary::Act(act));
        let y = self.map(Expr::Mul(Box::new(act), Box::new(Expr::Arg(1))), vec![gate, own]);
        let out = self.matrix(Role::LayerInputOut, self.spec.hidden, width)?;
        Ok(self.linear(y, out))
    }

    /// `x` times the one number of a tensor: a product of a 1 × 1 matrix for every column.
    pub(super) fn scaled_by_tensor(&mut self, x: View, role: Role) -> Result<View, ModelError> {
        let t = self.tensor(role)?;
        let mut part = self.part(t, Some(RowSlices::range(0, 1)), 1)?;
        part.rows = RowSlices { start: 0, count: 1, stride: 0, repeat: x.cols.into() };
        let weight = self.program.weight(WeightSpec {
            name: t.name.clone(),
            role: WeightUse::Matmul,
            rows: x.cols,
            cols: 1,
            parts: vec![part],
            bias: Vec::new(),
            scales: Vec::new(),
        });
        Ok(self.head_linear(x, x.cols, weight))
    }
}
