//! Weights: matrices assembled from rows of stored tensors, and the way a device pulls their bytes.

use std::ops::Range;
use std::sync::Arc;

use thiserror::Error;
use tokenmill_quant::FormatId;

/// Index into [`Program::weights`](crate::Program::weights).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// What a weight is used for; a device chooses its memory layout from this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightUse {
    /// A vector of f32 read element by element (norms, biases, decay rates). `rows` is 1.
    Vector,
    /// As `Vector`, but stored as −eᵃ and read as a (decay rates in GGUF files).
    LogVector,
    /// Rows are looked up and decoded one at a time (an untied embedding); may stay in the file.
    Rows,
    /// The right side of a matrix product.
    Matmul,
    /// Both of the above from one copy (a tied embedding and head).
    RowsAndMatmul,
    /// The matrix of one expert: like `Matmul`, but touched only when routed to.
    Expert,
}

/// Rows `start + i * stride .. + count` for `i` in `0..repeat`: a plain range when `repeat` is 1.
///
/// Strides pick one kind of row out of an interleaved tensor (gate and up of fused projections,
/// query and gate of gated attention).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowSlices {
    /// First row.
    pub start: u64,
    /// Rows in each slice.
    pub count: u64,
    /// Distance between slice starts.
    pub stride: u64,
    /// Number of slices.
    pub repeat: u64,
}

impl RowSlices {
    /// Rows `start..start + count`.
    pub fn range(start: u64, count: u64) -> Self {
        Self { start, count, stride: count, repeat: 1 }
    }

    /// Rows in all slices.
    pub fn len(&self) -> u64 {
        self.count * self.repeat
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tensor row behind row `i` of the concatenated slices.
    pub fn row(&self, i: u64) -> u64 {
        self.start + i / self.count * self.stride + i % self.count
    }
}

/// The column of a matrix that each stored column is: a permutation.
pub type ColumnOrder = Arc<[u32]>;

/// A run of rows of a weight, all stored in one format in one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowPart {
    /// How the rows are stored.
    pub format: FormatId,
    /// Tensor name in the checkpoint.
    pub tensor: String,
    /// Which rows of that tensor (its outer axes flattened).
    pub rows: RowSlices,
    /// Set when the stored matrix must be read transposed: each of the `rows.repeat` slices is a
    /// block `[rows.count, of]` in the file, of whose columns `count` are taken and give as many
    /// rows of `rows.count` columns here.
    pub transposed: Option<Columns>,
    /// Where the stored columns lie in another order.
    pub order: Option<ColumnOrder>,
}

impl RowPart {
    /// Rows of the weight that come from this part.
    pub fn weight_rows(&self) -> u64 {
        self.transposed.map_or(self.rows.len(), |c| self.rows.repeat.saturating_mul(c.count))
    }

    /// The format that its rows have once they are read, and the order of their columns: what all who lay out or count
    /// weights go by. It is that of the file, but where blocks, or columns in another order, are read transposed: numbers
    /// that share a scale come to lie in different rows there, so they are decoded, and are f32 in their own order.
    pub fn read_as(&self) -> (FormatId, Option<&ColumnOrder>) {
        let plain = self.format.info().block_weights == 1 && self.order.is_none();
        match self.transposed {
            Some(_) if !plain => (FormatId::F32, None),
            _ => (self.format, self.order.as_ref()),
        }
    }
}

/// Columns of a stored matrix: `start`, `start + step`, ….
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns {
    /// The first.
    pub start: u64,
    /// How many.
    pub count: u64,
    /// From one to the next.
    pub step: u64,
    /// Columns of the stored matrix.
    pub of: u64,
}

impl Columns {
    /// All of `of` columns.
    pub fn all(of: u64) -> Self {
        Self { start: 0, count: of, step: 1, of }
    }
}

/// One weight: `rows × cols`, its rows taken from one or more stored tensors.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightSpec {
    /// A readable name for `inspect` and errors, such as `layers.3.attn.qkv`.
    pub name: String,
    /// What it is used for.
    pub role: WeightUse,
    /// Output features (rows). 1 for a vector.
    pub rows: u32,
    /// Input features (columns, contiguous).
    pub cols: u32,
    /// Where the rows come from, top to bottom; `Σ` [`RowPart::weight_rows`] is `rows`.
    pub parts: Vec<RowPart>,
    /// Added to the product, one number a row, in the order of the rows. Here `RowPart::rows`
    /// counts *elements* of the tensor flattened, not rows. Empty: no bias.
    pub bias: Vec<RowPart>,
    /// Runs of rows and the factor of each: `out = scale · (x · wᵀ + bias)`. Empty: 1 everywhere.
    pub scales: Vec<(u32, f32)>,
}

impl WeightSpec {
    /// Bytes of all parts in the formats they are read as, biases included.
    pub fn stored_bytes(&self) -> u64 {
        let of = |p: &RowPart, cols: u64| {
            p.read_as().0.row_bytes(cols).unwrap_or(0).saturating_mul(p.weight_rows())
        };
        let matrix: u64 = self.parts.iter().map(|p| of(p, self.cols.into())).sum();
        matrix + self.bias.iter().map(|p| of(p, p.rows.len()) / p.rows.len().max(1)).sum::<u64>()
    }
}

/// Why bytes of a weight could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("tensor '{tensor}': {reason}")]
pub struct SourceError {
    /// Tensor name.
    pub tensor: String,
    /// What went wrong, with the numbers.
    pub reason: String,
}

/// Gives a device the stored bytes of weights; called from the device's own threads.
pub trait WeightSource: Sync {
    /// Copies stored rows `rows` (tensor rows, outer axes flattened) of `tensor` to `out`, whose
    /// length is `rows.len() * row_bytes`.
    fn read_rows(&self, tensor: &str, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError>;

    /// The same rows without a copy, where the source is mapped memory.
    fn rows(&self, tensor: &str, rows: Range<u64>) -> Option<&[u8]>;
}
