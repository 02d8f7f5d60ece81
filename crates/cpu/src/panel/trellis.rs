//! Panels of EXL3 of 4 bits with the code book mul1, by bands of 128 rows.
//!
//! ```text
//! band  = [suh f16 × cols][svh f16 × 128][zeros up to 512 bytes][panel 0] … [panel 7]
//! panel = blocks of 32 columns: 4 × 64 bytes, vector q [row][2] 16-bit words
//! word 0 of row n: the four symbols whose columns are 2q, 2q + 1, 2q + 8, 2q + 9, highest first
//! word 1: the same of columns 16 further on
//! ```
//!
//! The ring of a tile goes by 16-bit words: rows n and n + 8 of vector q in transform, then q + 1, then
//! row n + 1. A state reaches into the word before its own, so a vector and that of the words
//! before it, [`before`], give the states of four columns by shifts.
//!
//! A row is not a row of the matrix but of the values between the transforms.

use super::{BLOCK_COLS, PANEL_ROWS};
use tokenmill_quant::exl3::{
    BLOCK_BYTES, FACTOR_BYTES, MUL1_MIN, MUL1_SCALE, TILE, WIDTH, halves, mul1_sum, tile_bytes,
    transform,
};

/// Panels of a band.
const PANELS: usize = WIDTH / PANEL_ROWS;
/// Bytes of a block of 32 columns of one panel.
pub const BLOCK: usize = 256;

/// Bytes of the factors of a band.
const fn header_bytes(cols: usize) -> usize {
    (2 * cols + 2 * WIDTH).next_multiple_of(64 * PANELS)
}

/// Bytes of a panel with its share of the factors.
pub(super) const fn panel_bytes(cols: usize) -> usize {
    header_bytes(cols) / PANELS + cols / BLOCK_COLS * BLOCK
}

/// A band taken apart.
pub struct Band<'a> {
    /// Factors of the columns: f16, little-endian.
    pub suh: &'a [u8],
    /// Factors of the rows.
    pub svh: [f32; WIDTH],
    /// The panels, one after the other.
    pub panels: &'a [u8],
}

impl Band<'_> {
    /// Takes apart the bytes of eight panels of `cols` columns.
    pub fn new(cols: usize, bytes: &[u8]) -> Band<'_> {
        let (header, panels) = bytes.split_at(header_bytes(cols));
        let (suh, svh) = header.split_at(2 * cols);
        Band { suh, svh: halves(svh), panels }
    }
}

/// The column, within 32, of symbol j of word `half` of vector q.
pub const fn column(q: usize, half: usize, j: usize) -> usize {
    2 * q + [0, 1, 8, 9][j] + TILE * half
}

/// Vector and row of the word that the ring has before that of vector q, row n.
pub const fn before(q: usize, n: usize) -> (usize, usize) {
    match (n / 8, q) {
        (1, _) => (q, n - 8),
        (_, 0) => (3, 8 + (n + 7) % 8),
        _ => (q - 1, n + 8),
    }
}

/// Stored bands into panels.
pub(super) fn repack(cols: usize, src: &[u8], dst: &mut [u8]) {
    let (stored, bytes) = (cols / WIDTH * BLOCK_BYTES, PANELS * panel_bytes(cols));
    assert!(src.len() / stored == dst.len() / bytes && src.len().is_multiple_of(stored), "bands");
    for (src, dst) in src.chunks_exact(stored).zip(dst.chunks_exact_mut(bytes)) {
        let (header, panels) = dst.split_at_mut(header_bytes(cols));
        header.fill(0);
        for (k, block) in src.chunks_exact(BLOCK_BYTES).enumerate() {
            let (factors, tiles) = block.split_at(FACTOR_BYTES);
            header[2 * WIDTH * k..][..2 * WIDTH].copy_from_slice(&factors[..2 * WIDTH]);
            header[2 * cols..][..2 * WIDTH].copy_from_slice(&factors[2 * WIDTH..]);
            for (n, tiles) in tiles.chunks_exact(WIDTH / TILE * tile_bytes(4)).enumerate() {
                let first = (n * cols + k * WIDTH) / BLOCK_COLS;
                for (b, pair) in tiles.chunks_exact(2 * tile_bytes(4)).enumerate() {
                    put_block(pair, &mut panels[(first + b) * BLOCK..][..BLOCK]);
                }
            }
        }
    }
}

/// Two tiles side by side into a block.
fn put_block(pair: &[u8], block: &mut [u8]) {
    for q in 0..4 {
        for row in 0..PANEL_ROWS {
            for half in 0..2 {
                let word = (8 * (row % 8) + 2 * q + row / 8) ^ 1;
                let from = &pair[half * tile_bytes(4) + 2 * word..][..2];
                block[64 * q + 4 * row + 2 * half..][..2].copy_from_slice(from);
            }
        }
    }
}

/// The byte sums of one row of a block, in column order.
pub fn codes(block: &[u8], row: usize) -> [u16; BLOCK_COLS] {
    let word = |(q, row): (usize, usize), half: usize| {
        let at = 64 * q + 4 * row + 2 * half;
        u32::from(u16::from_le_bytes([block[at], block[at + 1]]))
    };
    let mut codes = [0; BLOCK_COLS];
    for q in 0..4 {
        for half in 0..2 {
            let window = word(before(q, row), half) << 16 | word((q, row), half);
            for j in 0..4 {
                codes[column(q, half, j)] = mul1_sum((window >> (12 - 4 * j)) as u16);
            }
        }
    }
    codes
}

/// Row `row` (of the whole matrix) of its band as weights.
pub(super) fn row(cols: usize, band: &[u8], row: usize, out: &mut [f32]) {
    let band = Band::new(cols, band);
    let suh: Vec<f32> = band.suh.chunks_exact(2 * WIDTH).flat_map(halves).collect();
    let mut values = Box::new([[0.0; WIDTH]; WIDTH]);
    for (k, (out, suh)) in
        out.as_chunks_mut::<WIDTH>().0.iter_mut().zip(suh.as_chunks::<WIDTH>().0).enumerate()
    {
        for (n, values) in values.iter_mut().enumerate() {
            for (b, values) in values.as_chunks_mut::<BLOCK_COLS>().0.iter_mut().enumerate() {
                let at = (n / PANEL_ROWS * cols + k * WIDTH) / BLOCK_COLS + b;
                let codes = codes(&band.panels[at * BLOCK..][..BLOCK], n % PANEL_ROWS);
                *values = codes.map(|code| f32::from(code).mul_add(MUL1_SCALE, MUL1_MIN));
            }
        }
        transform(&mut values, suh, &band.svh);
        *out = values[row % WIDTH];
    }
}
