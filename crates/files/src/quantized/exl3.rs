//! EXL3: `.trellis` i16 `[cols/16, rows/16, 16·bits]`, `.suh` and `.svh` f16, factors of columns and
//! rows (in older files `.su` and `.sv`, their signs, a bit each), and the scalars `.mcg` or `.mul1`
//! where the code book is not the first. Bits and code book may differ from module to module.
//!
//! They become `exl3_1` to `exl3_8`, which are read by bands of 128 rows: transforms mix the rows of a block of
//! 128 × 128.

use std::ops::Range;

use tokenmill_ir::TensorInfo;
use tokenmill_quant::FormatId;
use tokenmill_quant::exl3::{
    Codebook, FACTOR_BYTES, HEADER_BYTES, MCG, MUL1, TILE, WIDTH, block_bytes, of_bits, tile_bytes,
};
use tokenmill_quant::float::f32_to_f16;

use super::Assembled;
use super::module::{Assembly, Module, bytes, float, word};
use crate::error::LoadError;
use crate::mmap::MappedFile;

/// A matrix of EXL3.
#[derive(Debug)]
pub(crate) struct Exl3 {
    trellis: TensorInfo,
    /// Factors of columns, and of rows.
    factors: [TensorInfo; 2],
    shape: [u64; 2],
    bits: usize,
    codebook: Codebook,
}

pub(super) fn assemble(to: &mut Assembly<'_>) -> Result<(), LoadError> {
    for module in to.take("trellis", &["trellis", "suh", "svh", "su", "sv", "mcg", "mul1"]) {
        let trellis = module.piece("trellis")?.clone();
        let width = WIDTH as u64;
        let (rows, cols, bits) = match trellis.shape.as_slice() {
            &[k @ 1..=0xff_ffff, n @ 1..=0xff_ffff, words @ 16..=128]
                if (16 * k).is_multiple_of(width)
                    && (16 * n).is_multiple_of(width)
                    && words.is_multiple_of(16)
                    && trellis.format == FormatId::I16 =>
            {
                (16 * n, 16 * k, words as usize / 16)
            }
            _ => {
                let found = format!("{} {:?}", trellis.format, trellis.shape);
                let expected = ".trellis: i16 [8·n, 8·m, 16·bits] of 1 to 8 bits";
                return Err(module.wrong(expected, found));
            }
        };
        let codebook = match (module.opt("mcg"), module.opt("mul1")) {
            (Some(_), Some(_)) => return Err(module.wrong("one code book", ".mcg and .mul1")),
            (Some(t), _) => factor(&module, to, t, MCG).map(|()| Codebook::Mcg)?,
            (_, Some(t)) => factor(&module, to, t, MUL1).map(|()| Codebook::Mul1)?,
            _ => Codebook::ThreeInst,
        };
        let factors = [factors(&module, "suh", "su", cols)?, factors(&module, "svh", "sv", rows)?];
        let exl3 = Exl3 { trellis, factors, shape: [rows, cols], bits, codebook };
        to.push(&module, of_bits(bits), [rows, cols], Assembled::Exl3(exl3))?;
    }
    Ok(())
}

/// Checks the scalar that names a code book.
fn factor(
    module: &Module<'_>,
    to: &Assembly<'_>,
    scalar: &TensorInfo,
    expected: u32,
) -> Result<(), LoadError> {
    let bytes = bytes(to.files, scalar)?;
    let found = match bytes.len() {
        4 => word(bytes, 0),
        _ => return Err(module.wrong("one word that names the code book", bytes.len())),
    };
    match found == expected {
        true => Ok(()),
        false => Err(module.wrong(&format!("code book {expected:#x}"), format!("{found:#x}"))),
    }
}

/// The factors of `count` rows or columns: numbers, or packed signs.
fn factors(
    module: &Module<'_>,
    plain: &str,
    signs: &str,
    count: u64,
) -> Result<TensorInfo, LoadError> {
    let (end, format, len) = match module.opt(plain) {
        Some(_) => (plain, FormatId::F16, count),
        None => (signs, FormatId::I16, count / 16),
    };
    module.expect(end, &[len])?;
    let piece = module.piece(end)?;
    match piece.format == format {
        true => Ok(piece.clone()),
        false => Err(module.wrong(&format!(".{end}: {format}"), piece.format)),
    }
}

/// Factors `first .. first + 128`.
fn factors_at(tensor: &TensorInfo, bytes: &[u8], first: usize) -> [f32; WIDTH] {
    std::array::from_fn(|i| {
        let at = first + i;
        match tensor.format {
            FormatId::I16 if bytes[at / 8] >> (at % 8) & 1 == 1 => -1.0,
            FormatId::I16 => 1.0,
            format => float(format, bytes, at),
        }
    })
}

impl Exl3 {
    /// Writes `rows`, which are whole bands, to `out`.
    pub fn read(
        &self,
        files: &[MappedFile],
        rows: Range<u64>,
        out: &mut [u8],
    ) -> Result<(), LoadError> {
        if !rows.start.is_multiple_of(WIDTH as u64) || !rows.end.is_multiple_of(WIDTH as u64) {
            let reason = format!("rows {rows:?} cut bands of {WIDTH}");
            return Err(LoadError::Rows { tensor: self.trellis.name.clone(), reason });
        }
        let trellis = bytes(files, &self.trellis)?;
        let [suh, svh] = [bytes(files, &self.factors[0])?, bytes(files, &self.factors[1])?];
        let [all_rows, cols] = self.shape.map(|n| n as usize);
        let size = tile_bytes(self.bits);
        let put = |to: &mut [u8], factors: [f32; WIDTH]| {
            let halves = factors.iter().flat_map(|&f| f32_to_f16(f).to_le_bytes());
            to.iter_mut().zip(halves).for_each(|(to, byte)| *to = byte);
        };
        let per_band = cols / WIDTH;
        for (i, block) in out.chunks_exact_mut(block_bytes(self.bits)).enumerate() {
            let (band, k) = (rows.start as usize / WIDTH + i / per_band, i % per_band);
            let (header, tiles) = block.split_at_mut(HEADER_BYTES);
            let (factors, codebook) = header.split_at_mut(FACTOR_BYTES);
            codebook.fill(0);
            codebook[0] = self.codebook as u8;
            let (for_cols, for_rows) = factors.split_at_mut(FACTOR_BYTES / 2);
            put(for_cols, factors_at(&self.factors[0], suh, k * WIDTH));
            put(for_rows, factors_at(&self.factors[1], svh, band * WIDTH));
            for (t, tile) in tiles.chunks_exact_mut(size).enumerate() {
                let (row, col) = (band * (WIDTH / TILE) + t / 8, k * (WIDTH / TILE) + t % 8);
                tile.copy_from_slice(&trellis[(col * (all_rows / TILE) + row) * size..][..size]);
            }
        }
        Ok(())
    }
}
