//! Weights of a program from tensors of a file, shapes checked.

use tokenmill_ir::{Columns, RowPart, RowSlices, TensorInfo, WeightId, WeightSpec, WeightUse};

use super::Lower;
use crate::error::ModelError;
use crate::names::{self, Role};
use crate::spec::{Experts, GateUp};

impl<'a> Lower<'a> {
    /// The tensor of a role in the current layer.
    pub(super) fn tensor(&mut self, role: Role) -> Result<&'a TensorInfo, ModelError> {
        let t = self.names.find_opt(self.checkpoint, role, self.layer, 0);
        let t = t.ok_or_else(|| self.names.missing(self.checkpoint, role, self.layer, 0))?;
        self.used.insert(t.name.clone());
        Ok(t)
    }

    /// The tensor of a role, if the file has it.
    pub(super) fn tensor_opt(&mut self, role: Role) -> Option<&'a TensorInfo> {
        let t = self.names.find_opt(self.checkpoint, role, self.layer, 0)?;
        self.used.insert(t.name.clone());
        Some(t)
    }

    /// A vector weight of exactly `cols` numbers.
    pub(super) fn vector(&mut self, role: Role, cols: u32) -> Result<WeightId, ModelError> {
        let t = self.tensor(role)?;
        self.vector_of(t, cols)
    }

    /// Logarithms of decay rates: as they are, or stored negated and exponentiated (`log`).
    pub(super) fn decay(
        &mut self,
        role: Role,
        log: Role,
        cols: u32,
    ) -> Result<WeightId, ModelError> {
        if self.tensor_opt(log).is_none() {
            return self.vector(role, cols);
        }
        let id = self.vector(log, cols)?;
        self.program.weights[id.0 as usize].role = WeightUse::LogVector;
        Ok(id)
    }

    /// A vector that exists once for all layers and may be asked for again.
    pub(super) fn shared_vector(&mut self, role: Role, cols: u32) -> Result<WeightId, ModelError> {
        let t = self.tensor(role)?;
        let known = self.program.weights.iter().position(|w| w.name == t.name);
        match known {
            Some(i) => Ok(WeightId(i as u32)),
            None => self.vector_of(t, cols),
        }
    }

    /// A vector weight of either length; returns it with the length found.
    pub(super) fn vector_any(
        &mut self,
        role: Role,
        lengths: [u32; 2],
    ) -> Result<WeightId, ModelError> {
        let t = self.tensor(role)?;
        let len = elements(t);
        let cols = lengths.into_iter().find(|&l| u64::from(l) == len).unwrap_or(lengths[0]);
        self.vector_of(t, cols)
    }

    /// The bias that belongs to a role's tensor, as a vector.
    pub(super) fn bias_vector(
        &mut self,
        role: Role,
        cols: u32,
    ) -> Result<Option<WeightId>, ModelError> {
        let t = self.tensor(role)?;
        match names::bias_of(self.checkpoint, t) {
            None => Ok(None),
            Some(b) => {
                self.used.insert(b.name.clone());
                self.vector_of(b, cols).map(Some)
            }
        }
    }

    pub(super) fn vector_of(&mut self, t: &TensorInfo, cols: u32) -> Result<WeightId, ModelError> {
        if elements(t) != u64::from(cols) {
            return Err(shape_error(t, format!("[{cols}]")));
        }
        let rows = RowSlices::range(0, t.rows().max(1));
        let part = part_of(t, rows, None);
        Ok(self.program.weight(WeightSpec {
            name: t.name.clone(),
            role: WeightUse::Vector,
            rows: 1,
            cols,
            parts: vec![part],
            bias: Vec::new(),
            scales: Vec::new(),
        }))
    }

    /// A depthwise kernel `[channels, 1, taps]` as a matrix `[channels, taps]`.
    pub(super) fn taps(
        &mut self,
        role: Role,
        channels: u32,
        taps: u32,
    ) -> Result<WeightId, ModelError> {
        let t = self.tensor(role)?;
        let part = self.part(t, None, taps)?;
        self.expect_rows(t, part.rows.len(), channels)?;
        Ok(self.program.weight(WeightSpec {
            name: t.name.clone(),
            role: WeightUse::Rows,
            rows: channels,
            cols: taps,
            parts: vec![part],
            bias: Vec::new(),
            scales: Vec::new(),
        }))
    }

    /// The embedding table; `tied` when it is the head too.
    pub(super) fn embedding(&mut self, tied: bool, cols: u32) -> Result<WeightId, ModelError> {
        let vocab = self.spec.vocab;
        let role = if tied { WeightUse::RowsAndMatmul } else { WeightUse::Rows };
        self.matrix_as(Role::Embed, vocab, cols, role)
    }

    /// A table of rows whose number the file decides, without the `first` ones.
    pub(super) fn table(
        &mut self,
        role: Role,
        first: u32,
        cols: u32,
    ) -> Result<WeightId, ModelError> {
        let t = self.tensor(role)?;
        self.partial.insert(t.name.clone());
        let first = u64::from(first);
        let part =
            self.part(t, Some(RowSlices::range(first, t.rows().saturating_sub(first))), cols)?;
        Ok(self.program.weight(WeightSpec {
            name: t.name.clone(),
            role: WeightUse::Rows,
            rows: u32::try_from(part.rows.len()).unwrap_or(u32::MAX),
            cols,
            parts: vec![part],
            bias: Vec::new(),
            scales: Vec::new(),
        }))
    }

    /// A table of rows of another width than the stream's, one a token. Tokens behind its end have
    /// its first row (those of images and sound in Gemma 3n).
    pub(super) fn table_of(&mut self, role: Role, cols: u32) -> Result<WeightId, ModelError> {
        let t = self.tensor(role)?;
        let vocab = self.spec.vocab;
        self.partial.insert(t.name.clone());
        let own = t.rows().min(vocab.into());
        let all = self.part(t, Some(RowSlices::range(0, own)), cols)?;
        let missing = u64::from(vocab) - own;
        let first = RowSlices { start: 0, count: 1, stride: 0, repeat: missing };
        let rest = (missing > 0).then(|| RowPart { rows: first, ..all.clone() });
        Ok(self.program.weight(WeightSpec {
            name: t.name.clone(),
            role: WeightUse::Rows,
            rows: vocab,
            cols,
            parts: std::iter::once(all).chain(rest).collect(),
            bias: Vec::new(),
            scales: Vec::new(),
        }))
    }

    /// The output matrix: its own, or the embedding.
    pub(super) fn head(&mut self) -> Result<WeightId, ModelError> {
        let (vocab, hidden) = (self.spec.vocab, self.spec.hidden);
        if names::find_opt(self.checkpoint, Role::Head, 0, 0).is_some() {
            return self.matrix(Role::Head, vocab, hidden);
        }
        Ok(WeightId(0)) // the embedding is the first weight of every program
    }

    /// A matrix with its bias, if the file has one.
    pub(super) fn matrix(
        &mut self,
        role: Role,
        rows: u32,
        cols: u32,
    ) -> Result<WeightId, ModelError> {
        self.matrix_as(role, rows, cols, WeightUse::Matmul)
    }

    /// A matrix used in some way, with its bias, if the file has one.
    pub(super) fn matrix_as(
        &mut self,
        role: Role,
        rows: u32,
        cols: u32,
        used_as: WeightUse,
    ) -> Result<WeightId, ModelError> {
        let t = self.tensor(role)?;
        let part = self.part(t, None, cols)?;
        self.expect_rows(t, part.weight_rows(), rows)?;
        let bias = self.bias_part(t, None, rows)?.into_iter().collect();
        Ok(self.program.weight(WeightSpec {
            name: t.name.clone(),
            role: used_as,
            rows,
            cols,
            parts: vec![part],
            bias,
            scales: Vec::new(),
        }))
    }

    /// Multiplies rows of a weight: runs of `(rows, factor)`. Nothing is stored when all are 1.
    pub(super) fn scale_rows(&mut self, weight: WeightId, runs: &[(u32, f32)]) {
        if runs.iter().any(|r| r.1 != 1.0) {
            self.program.weights[weight.0 as usize].scales = runs.to_vec();
        }
    }

    /// Several slices of tensors as one matrix. Biases are taken when every tensor has one.
    pub(super) fn stacked(
        &mut self,
        name: &str,
        cols: u32,
        slices: &[(Role, Option<RowSlices>)],
    ) -> Result<WeightId, ModelError> {
        let (mut parts, mut bias) = (Vec::new(), Vec::new());
        let mut rows = 0u64;
        for &(role, wanted) in slices {
            let t = self.tensor(role)?;
            let part = self.part(t, wanted, cols)?;
            let count = part.weight_rows();
            rows += count;
            bias.extend(self.bias_part(t, wanted, count as u32)?);
            parts.push(part);
        }
        if !bias.is_empty() && bias.len() != parts.len() {
            return Err(ModelError::Shape {
                tensor: name.to_owned(),
                expected: format!("{} biases or none", parts.len()),
                found: format!("{} biases", bias.len()),
            });
        }
        let name = format!("layers.{}.{name}", self.layer);
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        Ok(self.program.weight(WeightSpec {
            name,
            role: WeightUse::Matmul,
            rows,
            cols,
            parts,
            bias,
            scales: Vec::new(),
        }))
    }

    /// The matrices of one expert kind; the first of `count` consecutive weights is returned.
    pub(super) fn expert_matrices(
        &mut self,
        kind: &ExpertKind,
        e: &Experts,
        rows: u32,
        cols: u32,
    ) -> Result<WeightId, ModelError> {
        let (count, layout) = (e.count, e.fused);
        let turned = matches!(layout, GateUp::Turned | GateUp::TurnedAlternate);
        let first = WeightId(self.program.weights.len() as u32);
        let stacked = self.tensor_opt(kind.stacked);
        let fused = match kind.fused {
            Some((role, _)) if stacked.is_none() => self.tensor_opt(role),
            _ => None,
        };
        for e in 0..count {
            let (t, wanted) = match (stacked, fused, kind.fused) {
                (Some(t), _, _) => {
                    let start = u64::from(e) * u64::from(rows);
                    (t, Some(RowSlices::range(start, rows.into())))
                }
                (None, Some(t), Some((_, odd))) => {
                    let (both, rows) = (2 * u64::from(e) * u64::from(rows), u64::from(rows));
                    let wanted = match layout {
                        GateUp::Alternate | GateUp::TurnedAlternate => {
                            RowSlices { start: both + odd, count: 1, stride: 2, repeat: rows }
                        }
                        _ => RowSlices::range(both + odd * rows, rows),
                    };
                    (t, Some(wanted))
                }
                _ => (self.expert_tensor(kind.single, e)?, None),
            };
            if let (Some(wanted), true) = (wanted, turned) {
                let of = u64::from(rows) * if stacked.is_some() { 1 } else { 2 };
                let part = turned_expert(t, e, cols, (wanted, of))?;
                let bias = self.bias_among(t, wanted, u64::from(count) * of)?;
                self.expert(kind, e, (rows, cols), part, bias);
                continue;
            }
            let part = self.part(t, wanted, cols)?;
            self.expect_rows(t, part.rows.len(), rows)?;
            let bias = self.bias_part(t, wanted, rows)?;
            self.expert(kind, e, (rows, cols), part, bias);
        }
        Ok(first)
    }

    /// Adds the matrix of one expert.
    fn expert(
        &mut self,
        kind: &ExpertKind,
        expert: u32,
        (rows, cols): (u32, u32),
        part: RowPart,
        bias: Option<RowPart>,
    ) {
        self.program.weight(WeightSpec {
            name: format!("layers.{}.experts.{expert}.{}", self.layer, kind.name),
            role: WeightUse::Expert,
            rows,
            cols,
            parts: vec![part],
            bias: bias.into_iter().collect(),
            scales: Vec::new(),
        });
    }

    pub(super) fn expert_tensor(
        &mut self,
        role: Role,
        expert: u32,
    ) -> Result<&'a TensorInfo, ModelError> {
        let t = names::find_opt(self.checkpoint, role, self.layer, expert)
            .ok_or_else(|| names::missing(self.checkpoint, role, self.layer, expert))?;
        self.used.insert(t.name.clone());
        Ok(t)
    }

    /// Rows of a tensor whose columns must be `cols`.
    pub(super) fn part(
        &mut self,
        t: &TensorInfo,
        wanted: Option<RowSlices>,
        cols: u32,
    ) -> Result<RowPart, ModelError> {
        if names::is_transposed(&t.name) {
            return transposed(t, wanted, cols);
        }
        if t.cols() != u64::from(cols) || t.format.row_bytes(t.cols()).is_none() {
            return Err(shape_error(t, format!("[…, {cols}]")));
        }
        let rows = wanted.unwrap_or(RowSlices::range(0, t.rows()));
        if rows.is_empty() {
            return Err(shape_error(t, format!("[0, {cols}]")));
        }
        let last = rows.row(rows.len() - 1);
        if last >= t.rows() {
            return Err(shape_error(t, format!("[more than {last}, {cols}]")));
        }
        Ok(part_of(t, rows, None))
    }

    fn bias_part(
        &mut self,
        t: &TensorInfo,
        wanted: Option<RowSlices>,
        rows: u32,
    ) -> Result<Option<RowPart>, ModelError> {
        let rows = wanted.unwrap_or(RowSlices::range(0, rows.into()));
        let expected = if names::is_transposed(&t.name) { t.cols() } else { t.rows() };
        self.bias_among(t, rows, expected)
    }

    /// Some of the `expected` biases of a tensor.
    fn bias_among(
        &mut self,
        t: &TensorInfo,
        rows: RowSlices,
        expected: u64,
    ) -> Result<Option<RowPart>, ModelError> {
        let Some(b) = names::bias_of(self.checkpoint, t) else { return Ok(None) };
        self.used.insert(b.name.clone());
        if elements(b) != expected {
            return Err(shape_error(b, format!("{expected} numbers")));
        }
        Ok(Some(part_of(b, rows, None)))
    }

    pub(super) fn expect_rows(
        &self,
        t: &TensorInfo,
        found: u64,
        expected: u32,
    ) -> Result<(), ModelError> {
        if found == u64::from(expected) {
            return Ok(());
        }
        Err(shape_error(t, format!("[{expected}, {}]", t.cols())))
    }
}

/// How the matrices of experts may be stored.
pub(super) struct ExpertKind {
    /// For names.
    pub name: &'static str,
    /// One tensor an expert.
    pub single: Role,
    /// All experts in one tensor.
    pub stacked: Role,
    /// All experts in one tensor, beside another kind; 0 or 1: which.
    pub fused: Option<(Role, u64)>,
}

/// All of a matrix stored `[columns, rows]`.
fn transposed(t: &TensorInfo, wanted: Option<RowSlices>, cols: u32) -> Result<RowPart, ModelError> {
    let whole = wanted.is_none_or(|w| w == RowSlices::range(0, t.cols()));
    if t.rows() != u64::from(cols) || !whole || t.format.info().block_weights != 1 {
        return Err(shape_error(t, format!("[{cols}, …], plain numbers")));
    }
    let rows = RowSlices::range(0, t.rows());
    Ok(part_of(t, rows, Some(Columns::all(t.cols()))))
}

/// The matrix of an expert stored `[expert, columns, rows]`; `wanted` are its rows among the `of` of
/// each expert.
fn turned_expert(
    t: &TensorInfo,
    expert: u32,
    cols: u32,
    (wanted, of): (RowSlices, u64),
) -> Result<RowPart, ModelError> {
    let step = if wanted.count == 1 { wanted.stride } else { 1 };
    let start = wanted.start - u64::from(expert) * of;
    let columns = Columns { start, count: wanted.len(), step, of };
    let rows = RowSlices::range(u64::from(expert) * u64::from(cols), cols.into());
    let there = rows.start + rows.count <= t.rows() && t.cols() == columns.of;
    if !there || t.format.info().block_weights != 1 {
        let expected = format!("[more than {expert}, {cols}, {}], plain numbers", columns.of);
        return Err(shape_error(t, expected));
    }
    Ok(part_of(t, rows, Some(columns)))
}

fn part_of(t: &TensorInfo, rows: RowSlices, transposed: Option<Columns>) -> RowPart {
    let (tensor, order) = (t.name.clone(), t.order.clone());
    RowPart { format: t.format, tensor, rows, transposed, order }
}

fn elements(t: &TensorInfo) -> u64 {
    t.shape.iter().product()
}

fn shape_error(t: &TensorInfo, expected: String) -> ModelError {
    ModelError::Shape { tensor: t.name.clone(), expected, found: format!("{:?}", t.shape) }
}
