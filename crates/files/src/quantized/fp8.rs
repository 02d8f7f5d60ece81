//! FP8: `.weight` e4m3 or e5m2 `[rows, cols]` and its scales: `.weight_scale_inv` for blocks (which
//! multiplies, despite its name), `.weight_scale` for the tensor, each row, or blocks.
//!
//! w = scale·value. e5m2, and blocks that are no multiple of 32 columns, are read as f32. NaNs of
//! e4m3, and scales from 256 on where its codes are kept, are refused.

use std::ops::Range;

use tokenmill_ir::TensorInfo;
use tokenmill_quant::FormatId;
use tokenmill_quant::float::{e4m3_to_f32, e5m2_to_f32, e8m0_to_f32};

use super::Assembled;
use super::module::{Assembly, Module, bytes, float};
use crate::error::LoadError;
use crate::mmap::MappedFile;

/// Formats that scales may have; bytes are e8m0.
const SCALES: [FormatId; 4] = [FormatId::F32, FormatId::BF16, FormatId::F16, FormatId::U8];

/// A matrix of FP8.
#[derive(Debug)]
pub(crate) struct Fp8 {
    codes: TensorInfo,
    scales: TensorInfo,
    /// Rows and columns under one scale.
    block: [u64; 2],
    pub format: FormatId,
}

/// `block`: rows and columns under one scale of `.weight_scale_inv`.
pub(super) fn assemble(block: Option<[u64; 2]>, to: &mut Assembly<'_>) -> Result<(), LoadError> {
    to.drop_activation_scales();
    for (mark, block) in [("weight_scale_inv", block), ("weight_scale", None)] {
        for module in to.take(mark, &["weight", mark]) {
            push(&module, module.piece("weight")?.clone(), mark, block, to)?;
        }
    }
    Ok(())
}

/// Adds a module of e4m3 or e5m2 codes with the scales `.scale`, whose shape says how much is
/// under one unless `block` does.
pub(super) fn push(
    module: &Module<'_>,
    codes: TensorInfo,
    scale: &'static str,
    block: Option<[u64; 2]>,
    to: &mut Assembly<'_>,
) -> Result<(), LoadError> {
    let fp8 = matches!(codes.format, FormatId::F8_E4M3 | FormatId::F8_E5M2);
    let &[rows @ 1..=0xffff_ffff, cols @ 1..=0xffff_ffff] = codes.shape.as_slice() else {
        return Err(module.wrong(".weight of two axes", format!("{:?}", codes.shape)));
    };
    if !fp8 {
        return Err(module.wrong(".weight: f8_e4m3 or f8_e5m2", codes.format));
    }
    let scales = module.piece(scale)?.clone();
    let (down, across) = match scales.shape.as_slice() {
        [] | [1] => (1, 1),
        &[n] if n == rows => (rows, 1),
        &[down, across] => (down, across),
        _ => (0, 0),
    };
    if down == 0 || across == 0 || down > rows || across > cols || !SCALES.contains(&scales.format)
    {
        let found = format!("{} {:?} for [{rows}, {cols}]", scales.format, scales.shape);
        return Err(module.wrong(&format!(".{scale}: scales of rows or blocks"), found));
    }
    let block = block.unwrap_or([block_size(rows, down), block_size(cols, across)]);
    if [rows.div_ceil(block[0]), cols.div_ceil(block[1])] != [down, across] {
        let expected = format!("a scale for each block {block:?} of [{rows}, {cols}]");
        return Err(module.wrong(&expected, format!("{:?}", scales.shape)));
    }
    let e4m3 = codes.format == FormatId::F8_E4M3;
    let whole = cols.is_multiple_of(32) && (across == 1 || block[1].is_multiple_of(32));
    let format = if e4m3 && whole { FormatId::E4M3_32 } else { FormatId::F32 };
    to.push(module, format, [rows, cols], Assembled::Fp8(Fp8 { codes, scales, block, format }))
}

/// The size of `count` blocks that cover `n`: 128, or any other power of two, or an even share.
fn block_size(n: u64, count: u64) -> u64 {
    let fits = |&size: &u64| n.div_ceil(size) == count;
    let sizes = (5..=16).map(|bits| 1 << bits);
    std::iter::once(128).chain(sizes).find(fits).unwrap_or(n.div_ceil(count))
}

impl Fp8 {
    /// Writes `rows` to `out`.
    pub fn read(
        &self,
        files: &[MappedFile],
        rows: Range<u64>,
        out: &mut [u8],
    ) -> Result<(), LoadError> {
        let (codes, scales) = (bytes(files, &self.codes)?, bytes(files, &self.scales)?);
        let (cols, across) = (self.codes.cols() as usize, self.scales_across());
        let info = self.format.info();
        let row_bytes = cols / info.block_weights * info.block_bytes;
        for (n, out) in rows.zip(out.chunks_exact_mut(row_bytes)) {
            let row = &codes[n as usize * cols..][..cols];
            let down = (n / self.block[0]) as usize * across;
            let blocks = row.chunks_exact(info.block_weights);
            let scale = |first: usize| {
                let at = down + first / self.block[1] as usize;
                match self.scales.format {
                    FormatId::U8 => e8m0_to_f32(scales[at]),
                    format => float(format, scales, at),
                }
            };
            for (b, (codes, block)) in
                blocks.zip(out.chunks_exact_mut(info.block_bytes)).enumerate()
            {
                self.put_block(codes, scale(b * info.block_weights), block)?;
            }
        }
        Ok(())
    }

    fn put_block(&self, codes: &[u8], scale: f32, block: &mut [u8]) -> Result<(), LoadError> {
        let e4m3 = self.codes.format == FormatId::F8_E4M3;
        let refused =
            |reason: String| Err(LoadError::Rows { tensor: self.codes.name.clone(), reason });
        if e4m3 && codes.iter().any(|code| code & 0x7f == 0x7f) {
            return refused("holds a NaN".to_owned());
        }
        if self.format == FormatId::F32 {
            let value = if e4m3 { e4m3_to_f32(codes[0]) } else { e5m2_to_f32(codes[0]) };
            block.copy_from_slice(&(value * scale).to_le_bytes());
        } else if scale.abs() < 256.0 {
            // Kernels multiply it by 2¹²⁰ (`float::E4M3_UNIT`).
            block[..4].copy_from_slice(&scale.to_le_bytes());
            block[4..].copy_from_slice(codes);
        } else {
            return refused(format!("has a scale of {scale}: weights beyond 448·256"));
        }
        Ok(())
    }

    fn scales_across(&self) -> usize {
        if self.scales.shape.len() == 2 { self.scales.cols() as usize } else { 1 }
    }
}
