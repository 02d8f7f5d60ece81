//! NVFP4: codes u8 `[rows, cols/2]` (e2m1, the even column in the low nibble), scales e4m3
//! `[rows, cols/16]`, and one f32 for all that multiplies them or divides them.

use std::ops::Range;

use tokenmill_ir::TensorInfo;
use tokenmill_quant::FormatId;
use tokenmill_quant::float::e4m3_to_f32;

use super::Assembled;
use super::module::{Assembly, Module, bytes};
use crate::error::LoadError;
use crate::mmap::MappedFile;

/// The number above all scales.
#[derive(Debug, Clone, Copy)]
pub(super) enum Global {
    Times(f32),
    Over(f32),
}

/// A matrix of NVFP4.
#[derive(Debug)]
pub(crate) struct Fp4 {
    codes: TensorInfo,
    scales: TensorInfo,
    global: Global,
    cols: u64,
}

/// Adds a module with codes `.codes` and scales `.scales`.
pub(super) fn push(
    module: &Module<'_>,
    [codes, scales]: [&str; 2],
    global: Global,
    to: &mut Assembly<'_>,
) -> Result<(), LoadError> {
    // MLX packs eight codes to a word.
    let (rows, units) = module.matrix(codes, &[FormatId::U8, FormatId::I32])?;
    let codes = module.piece(codes)?.clone();
    let cols = units * if codes.format == FormatId::U8 { 2 } else { 8 };
    module.matrix(scales, &[FormatId::F8_E4M3, FormatId::U8])?;
    module.expect(scales, &[rows, cols / 16])?;
    let scales = module.piece(scales)?.clone();
    let fp4 = Fp4 { codes, scales, global, cols };
    to.push(module, FormatId::FP4_F32, [rows, cols], Assembled::Fp4(fp4))
}

impl Fp4 {
    /// Writes `rows` to `out`.
    pub fn read(
        &self,
        files: &[MappedFile],
        rows: Range<u64>,
        out: &mut [u8],
    ) -> Result<(), LoadError> {
        let (codes, scales) = (bytes(files, &self.codes)?, bytes(files, &self.scales)?);
        let blocks = self.cols as usize / 32;
        for (n, out) in rows.zip(out.chunks_exact_mut(blocks * 24)) {
            for (b, block) in out.as_chunks_mut::<24>().0.iter_mut().enumerate() {
                let at = n as usize * blocks + b;
                for (half, &scale) in scales[2 * at..2 * at + 2].iter().enumerate() {
                    if scale & 0x7f == 0x7f {
                        let (tensor, reason) = (self.scales.name.clone(), "holds a NaN".into());
                        return Err(LoadError::Rows { tensor, reason });
                    }
                    let scale = match self.global {
                        Global::Times(global) => e4m3_to_f32(scale) * global,
                        Global::Over(global) => e4m3_to_f32(scale) / global,
                    };
                    block[4 * half..][..4].copy_from_slice(&(0.5 * scale).to_le_bytes());
                }
                block[8..].copy_from_slice(&codes[16 * at..16 * at + 16]);
            }
        }
        Ok(())
    }
}
