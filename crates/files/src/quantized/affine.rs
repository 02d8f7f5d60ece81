//! Integer codes with a scale and a zero point (or a minimum) for each group of columns.
//!
//! w = s·q + m with m = −s·z, or a minimum that is stored. The product of a code and a 16-bit
//! scale is exact in f32, and so is s·z: the only rounding is the last, as in the formula of each
//! family. Where a group's columns are not neighbours (act-order) they are read group by group, and
//! the matrix says so. Where groups are no whole number of blocks, or where scales are f32 and zero
//! points vary, the matrix is f32.

use std::ops::Range;

use tokenmill_ir::{ColumnOrder, TensorInfo};
use tokenmill_quant::FormatId;

use super::module::{bytes, float, word};
use crate::error::LoadError;
use crate::mmap::MappedFile;

/// How fields of a few bits lie in words; `(i, j)` is field j of stream i.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Stream i is row i.
    Across,
    /// Stream i runs down column i.
    Down,
    /// Row j, eight 4-bit columns to a word, in AWQ's order.
    Awq,
    /// Signed bytes, raised by 128; stream i is row i.
    Bytes,
}

/// Small integers packed in a tensor.
#[derive(Debug)]
pub(super) struct Packed {
    pub tensor: TensorInfo,
    pub bits: u32,
    pub order: Order,
}

/// What is taken off the codes.
#[derive(Debug)]
pub(super) enum Zeros {
    Constant(u32),
    /// Streams of groups (rows for AWQ), and what is added to each, modulo the codes' range.
    Packed {
        fields: Packed,
        plus: u32,
    },
    /// Minima that are stored, shaped as the scales.
    Minima(TensorInfo),
}

/// A matrix `[rows, cols]`.
#[derive(Debug)]
pub(super) struct Matrix {
    pub cols: u64,
    /// Columns that share a scale.
    pub group: u64,
    pub codes: Packed,
    /// `[rows, groups]`, or `[groups, rows]`.
    pub scales: TensorInfo,
    pub scales_by_row: bool,
    /// What scales are divided by.
    pub scale_over: f32,
    pub zeros: Zeros,
    /// The group of each column, where it is not column / group.
    pub groups: Option<Vec<u32>>,
}

/// A matrix and the format its rows are put together in.
#[derive(Debug)]
pub(crate) struct Affine {
    matrix: Matrix,
    pub format: FormatId,
    /// The column that each column of the rows read is, where groups are not in order.
    pub order: Option<ColumnOrder>,
}

impl Affine {
    pub(super) fn new(matrix: Matrix) -> Affine {
        let order = matrix.by_groups();
        let format = matrix.format(order.is_some());
        let order = order.filter(|_| format != FormatId::F32);
        Affine { matrix, format, order }
    }

    /// Writes `rows` to `out`.
    pub fn read(
        &self,
        files: &[MappedFile],
        rows: Range<u64>,
        out: &mut [u8],
    ) -> Result<(), LoadError> {
        let m = &self.matrix;
        let view = View {
            matrix: m,
            order: self.order.as_deref(),
            codes: bytes(files, &m.codes.tensor)?,
            scales: bytes(files, &m.scales)?,
            zeros: match &m.zeros {
                Zeros::Constant(_) => &[],
                Zeros::Packed { fields, .. } => bytes(files, &fields.tensor)?,
                Zeros::Minima(tensor) => bytes(files, tensor)?,
            },
        };
        let info = self.format.info();
        let row_bytes = m.cols as usize / info.block_weights * info.block_bytes;
        for (n, out) in rows.zip(out.chunks_exact_mut(row_bytes)) {
            for (b, block) in out.chunks_exact_mut(info.block_bytes).enumerate() {
                view.put_block(self.format, n as usize, b * info.block_weights, block);
            }
        }
        Ok(())
    }
}

impl Matrix {
    /// The columns, those of each group together and in order, where groups are not; `None` too where
    /// they are not equally large.
    fn by_groups(&self) -> Option<ColumnOrder> {
        let groups = self.groups.as_ref()?;
        let mut order: Vec<u32> = (0..self.cols as u32).collect();
        order.sort_by_key(|&k| groups[k as usize]);
        let at = |j: usize| u64::from(groups[order[j] as usize]);
        let whole = (0..order.len()).all(|j| at(j) == j as u64 / self.group);
        whole.then(|| order.into())
    }

    /// The tightest format that holds the matrix, whose columns may be put in order.
    fn format(&self, ordered: bool) -> FormatId {
        let whole = |n: u64| self.cols.is_multiple_of(n) && self.group.is_multiple_of(n);
        let exact = self.scales.format != FormatId::F32
            || matches!(self.zeros, Zeros::Minima(_))
            || matches!(self.zeros, Zeros::Constant(z) if z.is_power_of_two());
        let block = [128, 64, 32].into_iter().find(|&n| whole(n));
        match (block, self.codes.bits) {
            _ if self.groups.is_some() && !ordered || !exact => FormatId::F32,
            (Some(128), ..=2) => FormatId::U2_128,
            (Some(64), ..=2) => FormatId::U2_64,
            (Some(32), ..=2) => FormatId::U2_32,
            (Some(128), 3) => FormatId::U3_128,
            (Some(64), 3) => FormatId::U3_64,
            (Some(32), 3) => FormatId::U3_32,
            (Some(128), 4) => FormatId::U4_128,
            (Some(64), 4) => FormatId::U4_64,
            (Some(32), 4) => FormatId::U4_32,
            (Some(128), _) => FormatId::U8_128,
            (Some(64), _) => FormatId::U8_64,
            (Some(32), _) => FormatId::U8_32,
            _ => FormatId::F32,
        }
    }
}

/// A matrix and the bytes of its pieces.
struct View<'a> {
    matrix: &'a Matrix,
    order: Option<&'a [u32]>,
    codes: &'a [u8],
    scales: &'a [u8],
    zeros: &'a [u8],
}

impl View<'_> {
    /// The block of row `n` from column `first` on.
    fn put_block(&self, format: FormatId, n: usize, first: usize, block: &mut [u8]) {
        let code = |j: usize| {
            let k = self.order.map_or(j, |order| order[j] as usize);
            self.matrix.codes.get(self.codes, n, k) as u8
        };
        if format == FormatId::F32 {
            block.copy_from_slice(&self.value(n, first).to_le_bytes());
            return;
        }
        let (s, m) = self.scale_and_min(n, first / self.matrix.group as usize);
        block[..4].copy_from_slice(&s.to_le_bytes());
        block[4..8].copy_from_slice(&m.to_le_bytes());
        // Fields of so many bits of the codes from bit `low` on, the first column in the lowest.
        let fields = |bytes: &mut [u8], low: u32, bits: usize| {
            for (i, byte) in bytes.iter_mut().enumerate() {
                let columns = (0..8 / bits).rev().map(|c| code(first + 8 / bits * i + c));
                *byte = columns.fold(0, |byte, code| {
                    (u16::from(byte) << bits) as u8 | code >> low & (0xff >> (8 - bits))
                });
            }
        };
        let codes = &mut block[8..];
        match self.matrix.codes.bits {
            ..=2 => fields(codes, 0, 2),
            3 => {
                let (low, high) = codes.split_at_mut(codes.len() / 3 * 2);
                fields(low, 0, 2);
                fields(high, 2, 1);
            }
            4 => fields(codes, 0, 4),
            _ => fields(codes, 0, 8),
        }
    }

    /// One weight, rounded once.
    fn value(&self, n: usize, k: usize) -> f32 {
        let group = match &self.matrix.groups {
            Some(groups) => groups[k] as usize,
            None => k / self.matrix.group as usize,
        };
        let code = self.matrix.codes.get(self.codes, n, k) as f32;
        match self.zero(n, group) {
            Some(zero) => (code - zero as f32) * self.scale_and_min(n, group).0,
            None => {
                let (s, m) = self.scale_and_min(n, group);
                code.mul_add(s, m)
            }
        }
    }

    fn scale_and_min(&self, n: usize, group: usize) -> (f32, f32) {
        let m = self.matrix;
        let at = match m.scales_by_row {
            true => n * m.scales.cols() as usize + group,
            false => group * m.scales.cols() as usize + n,
        };
        let s = float(m.scales.format, self.scales, at) / m.scale_over;
        match (&m.zeros, self.zero(n, group)) {
            (Zeros::Minima(tensor), _) => (s, float(tensor.format, self.zeros, at)),
            (_, zero) => (s, -(s * zero.unwrap_or(0) as f32)),
        }
    }

    /// The zero point; `None` where minima are stored.
    fn zero(&self, n: usize, group: usize) -> Option<u32> {
        match &self.matrix.zeros {
            Zeros::Constant(zero) => Some(*zero),
            Zeros::Packed { fields, plus } => {
                let field = match fields.order {
                    Order::Awq | Order::Bytes => fields.get(self.zeros, n, group),
                    Order::Across | Order::Down => fields.get(self.zeros, group, n),
                };
                Some((field + plus) & (u32::MAX >> (32 - fields.bits)))
            }
            Zeros::Minima(_) => None,
        }
    }
}

impl Packed {
    fn get(&self, bytes: &[u8], i: usize, j: usize) -> u32 {
        /// Nibble of a word that holds column c of eight.
        const AWQ: [u32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
        let stride = self.tensor.cols() as usize;
        let (bit, mask) = (j * self.bits as usize, u32::MAX >> (32 - self.bits));
        let at = |w: usize| if self.order == Order::Down { w * stride + i } else { i * stride + w };
        match self.order {
            Order::Bytes => u32::from(bytes[i * stride + j] ^ 0x80),
            Order::Awq => word(bytes, j * stride + i / 8) >> (4 * AWQ[i % 8]) & 15,
            Order::Across | Order::Down => {
                let mut field = word(bytes, at(bit / 32)) >> (bit % 32);
                if bit % 32 + self.bits as usize > 32 {
                    field |= word(bytes, at(bit / 32 + 1)) << (32 - bit % 32);
                }
                field & mask
            }
        }
    }
}
