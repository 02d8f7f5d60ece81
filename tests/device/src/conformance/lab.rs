//! Building a case: a program over an embedding of random rows, and the bytes of its weights.

use std::collections::HashMap;
use std::ops::Range;

use tokenmill_ir::sampling::splitmix;
use tokenmill_ir::{
    Batch, CacheId, CacheKind, CacheSpec, KvFormat, Limits, Op, Program, RowPart, RowSlices, Rows,
    SourceError, View, WeightId, WeightSource, WeightSpec, WeightUse,
};
use tokenmill_quant::{FormatId, exl3};

use super::pager::{self, IDS};
use super::{Case, Tolerance};

/// Tensors held in memory.
#[derive(Debug, Clone, Default)]
pub struct Material {
    tensors: HashMap<String, (usize, Vec<u8>)>,
}

impl Material {
    /// Adds a tensor of rows of `row_bytes`.
    pub fn insert(&mut self, name: &str, row_bytes: usize, bytes: Vec<u8>) {
        self.tensors.insert(name.to_owned(), (row_bytes, bytes));
    }
}

impl WeightSource for Material {
    fn read_rows(&self, tensor: &str, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        let error = |reason: &str| SourceError { tensor: tensor.into(), reason: reason.into() };
        let found = self.rows(tensor, rows).ok_or_else(|| error("no such rows"))?;
        if found.len() != out.len() {
            return Err(error("room for another number of bytes"));
        }
        out.copy_from_slice(found);
        Ok(())
    }

    fn rows(&self, tensor: &str, rows: Range<u64>) -> Option<&[u8]> {
        let (row_bytes, bytes) = self.tensors.get(tensor)?;
        bytes.get(rows.start as usize * row_bytes..rows.end as usize * row_bytes)
    }
}

/// The scales of formats that have no f16s in one piece.
fn set_other_scales(format: FormatId, block: &mut [u8], scale: f32) {
    let floats: &[f32] = match format {
        FormatId::IQ1_M => {
            // The top nibbles of four numbers are an f16; 2⁻⁶ of a weight is one of its bits.
            let exponent = (15.0 + (scale / 8.0).log2()).round() as u8;
            for (i, nibble) in [0, 0, exponent << 2 & 15, exponent >> 2].into_iter().enumerate() {
                block[49 + 2 * i] = block[49 + 2 * i] & 15 | nibble << 4;
            }
            return;
        }
        // e4m3: powers of two.
        FormatId::NVFP4 => {
            block[..4].fill((((scale / 2.0).log2().round() + 7.0) as u8) << 3);
            return;
        }
        FormatId::U2_32 | FormatId::U2_64 | FormatId::U2_128 => &[1.0, -1.5],
        FormatId::U3_32 | FormatId::U3_64 | FormatId::U3_128 => &[1.0 / 2.3, -1.5],
        FormatId::U4_32 | FormatId::U4_64 | FormatId::U4_128 => &[1.0 / 5.0, -1.5],
        FormatId::U8_32 | FormatId::U8_64 | FormatId::U8_128 => &[1.0 / 75.0, -1.7],
        FormatId::FP4_F32 => &[1.0 / 5.0, 1.0 / 6.0],
        FormatId::E4M3_32 => &[1.0 / 120.0],
        FormatId::NF4_64 | FormatId::FP4_64 => &[2.0],
        // mxfp4: a power of two.
        _ => {
            block[0] = (127.0 + (scale / 2.0).log2()).round() as u8;
            return;
        }
    };
    for (i, x) in floats.iter().enumerate() {
        block[4 * i..][..4].copy_from_slice(&(x * scale).to_le_bytes());
    }
}

/// A case being built.
#[derive(Debug)]
pub(super) struct Lab {
    pub program: Program,
    material: Material,
    state: u64,
}

impl Lab {
    pub fn new(seed: u64) -> Self {
        Self { program: Program::default(), material: Material::default(), state: splitmix(seed) }
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = splitmix(self.state);
        self.state
    }

    /// A number with mean 0 and variance 1, most of them small: the sum of four uniform ones.
    pub fn number(&mut self) -> f32 {
        let bits = self.bits();
        let sum: u64 = (0..4).map(|i| (bits >> (16 * i)) & 0xffff).sum();
        (sum as f32 / 65535.0 - 2.0) * 1.732
    }

    /// Random weights in a format, with a variance of about `scale²`. Bytes of `rows × cols`.
    fn stored(&mut self, format: FormatId, rows: u32, cols: u32, scale: f32) -> Vec<u8> {
        let info = format.info();
        let blocks = rows as usize * cols as usize / info.block_weights;
        let mut bytes = vec![0u8; blocks * info.block_bytes];
        if let Some(encode) = info.encode {
            let weights: Vec<f32> =
                (0..blocks * info.block_weights).map(|_| self.number() * scale).collect();
            encode(&weights, &mut bytes);
            return bytes;
        }
        bytes.iter_mut().for_each(|b| *b = (self.bits() >> 8) as u8);
        if format.band_rows() > 1 {
            let codebook = exl3::bits_of(format).unwrap_or(0) as u8 % 3;
            let blocks = bytes.chunks_exact_mut(info.block_bytes * format.band_rows());
            blocks.for_each(|block| self.set_factors(block, scale, codebook));
            return bytes;
        }
        for block in bytes.chunks_exact_mut(info.block_bytes) {
            self.set_scales(format, block, scale);
        }
        bytes
    }

    /// Gives a block of EXL3 factors of columns, of one magnitude, factors of rows that are 1, and a code book.
    fn set_factors(&mut self, block: &mut [u8], scale: f32, codebook: u8) {
        let (factors, rest) = block.split_at_mut(exl3::FACTOR_BYTES);
        let encode = FormatId::F16.info().encode;
        for (i, factor) in factors.chunks_exact_mut(2).enumerate() {
            let sign = if self.bits() >> 8 & 1 == 1 { -1.0 } else { 1.0 };
            let value = if i < exl3::WIDTH { sign * scale } else { 1.0 };
            encode.iter().for_each(|f| f(&[value], factor));
        }
        rest[0] = codebook;
    }

    /// Gives a block of random bytes scales that keep its weights near `scale`.
    fn set_scales(&mut self, format: FormatId, block: &mut [u8], scale: f32) {
        let jitter = 0.75 + (self.bits() % 64) as f32 / 128.0;
        let mut put = |at: usize, x: f32| {
            let encode = FormatId::F16.info().encode;
            encode.iter().for_each(|f| f(&[x * jitter], &mut block[at..at + 2]));
        };
        let f16s: &[(usize, f32)] = match format {
            // Weights are about 32 · d · q; minima pull them to zero.
            FormatId::Q4_K => &[(0, 1.0 / 150.0), (2, 1.0 / 20.0)],
            FormatId::Q5_K => &[(0, 1.0 / 300.0), (2, 1.0 / 20.0)],
            FormatId::Q6_K => &[(208, 1.0 / 1300.0)],
            FormatId::Q2_K => &[(80, 1.0 / 8.0), (82, 1.0 / 6.0)],
            FormatId::Q3_K => &[(108, 1.0 / 40.0)],
            FormatId::IQ1_S => &[(0, 1.0 / 8.0)],
            FormatId::IQ2_XXS | FormatId::IQ2_XS | FormatId::IQ2_S => &[(0, 1.0 / 60.0)],
            FormatId::IQ3_XXS => &[(0, 1.0 / 150.0)],
            FormatId::IQ3_S => &[(0, 1.0 / 150.0)],
            FormatId::IQ4_XS => &[(0, 1.0 / 1200.0)],
            FormatId::IQ4_NL => &[(0, 1.0 / 70.0)],
            FormatId::TQ1_0 => &[(52, 1.2)],
            FormatId::TQ2_0 => &[(64, 1.0)],
            _ => return set_other_scales(format, block, scale * jitter),
        };
        f16s.iter().for_each(|&(at, x)| put(at, x * scale));
    }

    /// Adds a tensor of random weights and a part that is all of it.
    pub fn part(&mut self, format: FormatId, rows: u32, cols: u32) -> RowPart {
        let scale = 1.0 / (cols as f32).sqrt();
        let bytes = self.stored(format, rows, cols, scale);
        let tensor = format!("t{}", self.material.tensors.len());
        self.material.insert(&tensor, bytes.len() / rows as usize, bytes);
        let rows = RowSlices::range(0, rows.into());
        RowPart { format, tensor, rows, transposed: None, order: None }
    }

    /// Adds a weight made of those parts.
    pub fn of_parts(&mut self, role: WeightUse, cols: u32, parts: Vec<RowPart>) -> WeightId {
        let rows = parts.iter().map(RowPart::weight_rows).sum::<u64>() as u32;
        let name = format!("w{}", self.program.weights.len());
        let (bias, scales) = (Vec::new(), Vec::new());
        self.program.weight(WeightSpec { name, role, rows, cols, parts, bias, scales })
    }

    /// A random matrix.
    pub fn matrix(&mut self, format: FormatId, rows: u32, cols: u32) -> WeightId {
        let part = self.part(format, rows, cols);
        self.of_parts(WeightUse::Matmul, cols, vec![part])
    }

    /// A matrix of one random row again and again.
    pub fn alike(&mut self, rows: u32, cols: u32) -> WeightId {
        let row: Vec<u8> = (0..cols).flat_map(|_| self.number().to_le_bytes()).collect();
        let tensor = format!("t{}", self.material.tensors.len());
        self.material.insert(&tensor, row.len(), row.repeat(rows as usize));
        let rows = RowSlices::range(0, rows.into());
        let part = RowPart { format: FormatId::F32, tensor, rows, transposed: None, order: None };
        self.of_parts(WeightUse::Matmul, cols, vec![part])
    }

    /// A random table.
    pub fn table(&mut self, format: FormatId, rows: u32, cols: u32) -> WeightId {
        let part = self.part(format, rows, cols);
        self.of_parts(WeightUse::Rows, cols, vec![part])
    }

    /// A vector of numbers `center ± spread`.
    pub fn vector(&mut self, cols: u32, center: f32, spread: f32) -> WeightId {
        let values: Vec<f32> = (0..cols).map(|_| center + spread * self.number()).collect();
        let part = self.elements(&values);
        self.of_parts(WeightUse::Vector, cols, vec![part])
    }

    /// Adds a tensor of one axis.
    fn elements(&mut self, values: &[f32]) -> RowPart {
        let tensor = format!("t{}", self.material.tensors.len());
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.material.insert(&tensor, bytes.len(), bytes);
        let rows = RowSlices::range(0, 1);
        RowPart { format: FormatId::F32, tensor, rows, transposed: None, order: None }
    }

    /// Gives a matrix a random bias.
    pub fn add_bias(&mut self, weight: WeightId) {
        let rows = self.program.weights[weight.0 as usize].rows;
        let values: Vec<f32> = (0..rows).map(|_| self.number()).collect();
        let part = RowPart { rows: RowSlices::range(0, rows.into()), ..self.elements(&values) };
        self.program.weights[weight.0 as usize].bias = vec![part];
    }

    /// Random buffers of these widths, side by side in the rows of one embedding.
    pub fn inputs(&mut self, widths: &[u32]) -> Vec<View> {
        let all = widths.iter().sum();
        let values: Vec<u8> = (0..IDS * all).flat_map(|_| self.number().to_le_bytes()).collect();
        let tensor = format!("t{}", self.material.tensors.len());
        self.material.insert(&tensor, all as usize * 4, values);
        let rows = RowSlices::range(0, IDS.into());
        let part = RowPart { format: FormatId::F32, tensor, rows, transposed: None, order: None };
        let table = self.of_parts(WeightUse::Rows, all, vec![part]);
        let out = self.program.buffer(Rows::Tokens, all);
        let id = out.buffer;
        let (positions, token_types) = (None, None);
        self.program.ops.push(Op::Embed { table, scale: 1.0, positions, token_types, out: id });
        let mut start = 0;
        let view = |&cols: &u32| {
            start += cols;
            View { buffer: id, start: start - cols, cols }
        };
        widths.iter().map(view).collect()
    }

    /// Adds a buffer of one row a token.
    pub fn out(&mut self, cols: u32) -> View {
        self.program.buffer(Rows::Tokens, cols)
    }

    pub fn push(&mut self, op: Op) {
        self.program.ops.push(op);
    }

    pub fn cache(&mut self, kind: CacheKind, format: KvFormat) -> CacheId {
        let mut cache = CacheSpec { kind, format, group: 0 };
        let groups = self.program.groups();
        let known = groups.iter().position(|g| *g == cache.group_kind());
        cache.group = known.unwrap_or(groups.len()) as u32;
        self.program.caches.push(cache);
        CacheId(self.program.caches.len() as u32 - 1)
    }

    /// Ends a program whose result has a row a token.
    pub fn finish(self, name: String, x: View, tolerance: Tolerance, block: u32) -> Case {
        self.finish_with(name, x, tolerance, block, pager::steps)
    }

    /// As [`Self::finish`], over steps made by `steps`.
    pub fn finish_with(
        mut self,
        name: String,
        x: View,
        tolerance: Tolerance,
        block: u32,
        steps: impl Fn(&Program, &Limits, u32) -> Vec<Batch>,
    ) -> Case {
        let hidden = self.program.buffer(Rows::Outputs, x.cols);
        self.push(Op::TakeRows { x, run: 1, out: hidden.buffer });
        self.program.hidden = x.cols;
        self.push(Op::Sample { logits: None, hidden, more: Vec::new() });
        self.case(name, tolerance, block, steps)
    }

    /// The case of a finished program.
    pub fn case(
        self,
        name: String,
        tolerance: Tolerance,
        block: u32,
        steps: impl Fn(&Program, &Limits, u32) -> Vec<Batch>,
    ) -> Case {
        let limits = pager::limits(&self.program, block);
        let steps = steps(&self.program, &limits, block);
        Case { name, program: self.program, material: self.material, limits, steps, tolerance }
    }
}
