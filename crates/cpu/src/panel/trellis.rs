//! Panels of EXL3 of 1 to 8 bits, by bands of 128 rows.
//!
//! ```text
//! band  = [suh f16 × cols][svh f16 × 128][code book][zeros up to a multiple of 512 bytes][panel 0] … [panel 7]
//! panel = blocks of 32 columns
//! ```
//!
//! The symbols of a row in columns 2q, 2q + 1, 2q + 8, 2q + 9 are a group, highest bits first; so are those of the columns
//! 16 further on. A vector q has, for each of 16 rows, 16 bits of both these groups. A block is
//!
//! ```text
//! 4 bits and more: the low 16 bits of the groups, vectors 0 to 3
//! then, unless that is all, what is above them, of 8 bits vectors 0 to 3 again, else in each word
//! of 4 bits: that of q at bit 4q; of 8 bits: two vectors, that of q at bit 8·(q % 2) of vector q / 2;
//! of 12 bits: three vectors q, and bits 4i to 4i + 3 of that of q = 3 in the upper four bits of vector i
//! ```
//!
//! The ring of a tile goes by groups: rows n and n + 8 of vector q in transform, then q + 1, then row n + 1. A state reaches
//! into the groups before its own, [`before`].
//!
//! A row is not a row of the matrix but of the values between the transforms.

use super::{BLOCK_COLS, PANEL_ROWS};
use tokenmill_quant::exl3::{
    Codebook, FACTOR_BYTES, HEADER_BYTES, TILE, WIDTH, block_bytes, halves, tile_bytes, transform,
};

/// Panels of a band.
pub const PANELS: usize = WIDTH / PANEL_ROWS;
/// Symbols of a group.
const GROUP: usize = 4;

/// Bytes of a block of 32 columns of one panel.
pub const fn block(bits: usize) -> usize {
    64 * bits
}

/// Bits of a group that do not lie in words of their own.
pub const fn rest_bits(bits: usize) -> usize {
    if bits < 4 { GROUP * bits } else { GROUP * bits - 16 }
}

/// Bytes of the factors of a band, with its code book.
const fn header_bytes(cols: usize) -> usize {
    (2 * cols + 2 * WIDTH + 1).next_multiple_of(64 * PANELS)
}

/// Bytes of a panel with its share of the factors.
pub(super) const fn panel_bytes(bits: usize, cols: usize) -> usize {
    header_bytes(cols) / PANELS + cols / BLOCK_COLS * block(bits)
}

/// A band taken apart.
pub struct Band<'a> {
    /// Factors of the columns: f16, little-endian.
    pub suh: &'a [u8],
    /// Factors of the rows.
    pub svh: [f32; WIDTH],
    /// What states stand for.
    pub codebook: Codebook,
    /// The panels, one after the other.
    pub panels: &'a [u8],
}

impl Band<'_> {
    /// Takes apart the bytes of eight panels of `cols` columns.
    pub fn new(cols: usize, bytes: &[u8]) -> Band<'_> {
        let (header, panels) = bytes.split_at(header_bytes(cols));
        let (suh, rest) = header.split_at(2 * cols);
        let codebook = Codebook::of(rest[2 * WIDTH]);
        Band { suh, svh: halves(rest), codebook, panels }
    }
}

/// The column, within 32, of symbol j of group `half` of vector q.
pub const fn column(q: usize, half: usize, j: usize) -> usize {
    2 * q + [0, 1, 8, 9][j] + TILE * half
}

/// Vector and row of the group that the ring has before that of vector q, row n.
const fn before((q, n): (usize, usize)) -> (usize, usize) {
    match (n / 8, q) {
        (1, _) => (q, n - 8),
        (_, 0) => (3, 8 + (n + 7) % 8),
        _ => (q - 1, n + 8),
    }
}

/// Stored bands into panels.
pub(super) fn repack(bits: usize, cols: usize, src: &[u8], dst: &mut [u8]) {
    let (stored, bytes) = (cols / WIDTH * block_bytes(bits), PANELS * panel_bytes(bits, cols));
    assert!(src.len() / stored == dst.len() / bytes && src.len().is_multiple_of(stored), "bands");
    for (src, dst) in src.chunks_exact(stored).zip(dst.chunks_exact_mut(bytes)) {
        let (header, panels) = dst.split_at_mut(header_bytes(cols));
        header.fill(0);
        for (k, stored) in src.chunks_exact(block_bytes(bits)).enumerate() {
            let (from, tiles) = stored.split_at(HEADER_BYTES);
            header[2 * WIDTH * k..][..2 * WIDTH].copy_from_slice(&from[..2 * WIDTH]);
            let of_rows = &from[2 * WIDTH..FACTOR_BYTES + 1];
            header[2 * cols..][..of_rows.len()].copy_from_slice(of_rows);
            for (n, tiles) in tiles.chunks_exact(WIDTH / TILE * tile_bytes(bits)).enumerate() {
                let first = (n * cols + k * WIDTH) / BLOCK_COLS;
                for (b, pair) in tiles.chunks_exact(2 * tile_bytes(bits)).enumerate() {
                    put_block(bits, pair, &mut panels[(first + b) * block(bits)..][..block(bits)]);
                }
            }
        }
    }
}

/// Two tiles side by side into a block.
fn put_block(bits: usize, pair: &[u8], to: &mut [u8]) {
    to.fill(0);
    for (half, tile) in pair.chunks_exact(tile_bytes(bits)).enumerate() {
        for q in 0..4 {
            for row in 0..PANEL_ROWS {
                let mut put = |vector: usize, word: u32| {
                    let at = &mut to[64 * vector + 4 * row + 2 * half..][..2];
                    let all = u32::from(u16::from_le_bytes([at[0], at[1]])) | word;
                    at.copy_from_slice(&(all as u16).to_le_bytes());
                };
                let group = stored_group(bits, tile, 8 * (row % 8) + 2 * q + row / 8);
                let (words, rest) = if bits < 4 { (0, group) } else { (4, group >> 16) };
                if bits >= 4 {
                    put(q, group & 0xffff);
                }
                match (rest_bits(bits), q) {
                    (4, _) => put(words, rest << (4 * q)),
                    (8, _) => put(words + q / 2, rest << (8 * (q % 2))),
                    (12, 3) => (0..3).for_each(|i| put(words + i, (rest >> (4 * i) & 15) << 12)),
                    (12 | 16, _) => put(words + q, rest),
                    _ => {}
                }
            }
        }
    }
}

/// Group `at` of a stored tile's ring.
fn stored_group(bits: usize, tile: &[u8], at: usize) -> u32 {
    let (first, count) = (GROUP * bits * at, GROUP * bits);
    let words = tile.as_chunks::<2>().0;
    (first..first + count).fold(0, |group, i| {
        let word = u16::from_le_bytes(words[(i / 16) ^ 1]);
        group << 1 | u32::from(word >> (15 - i % 16) & 1)
    })
}

/// The group of vector q of a row in a block.
fn group(bits: usize, block: &[u8], (q, row): (usize, usize), half: usize) -> u32 {
    let word = |vector: usize| {
        let at = 64 * vector + 4 * row + 2 * half;
        u32::from(u16::from_le_bytes([block[at], block[at + 1]]))
    };
    let words = if bits < 4 { 0 } else { 4 };
    let rest = match (rest_bits(bits), q) {
        (0, _) => 0,
        (4, _) => word(words) >> (4 * q) & 15,
        (8, _) => word(words + q / 2) >> (8 * (q % 2)) & 255,
        (12, 3) => (0..3).fold(0, |rest, i| rest | word(words + i) >> 12 << (4 * i)),
        (12, _) => word(words + q) & 0xfff,
        _ => word(words + q),
    };
    if bits < 4 { rest } else { rest << 16 | word(q) }
}

/// The codes of one row of a block, in column order.
pub fn codes(bits: usize, codebook: Codebook, block: &[u8], row: usize) -> [i16; BLOCK_COLS] {
    let mut codes = [0; BLOCK_COLS];
    for q in 0..4 {
        for half in 0..2 {
            // As many groups as 16 bits reach into.
            let mut at = [(q, row); 5];
            for i in 1..5 {
                at[i] = before(at[i - 1]);
            }
            let window = at.iter().rev().fold(0_u64, |window, &at| {
                window << (GROUP * bits) | u64::from(group(bits, block, at, half))
            });
            for j in 0..GROUP {
                codes[column(q, half, j)] = codebook.code((window >> ((3 - j) * bits)) as u16);
            }
        }
    }
    codes
}

/// Row `row` (of the whole matrix) of its band as weights.
pub(super) fn row(bits: usize, cols: usize, band: &[u8], row: usize, out: &mut [f32]) {
    let band = Band::new(cols, band);
    let suh: Vec<f32> = band.suh.chunks_exact(2 * WIDTH).flat_map(halves).collect();
    let (scale, min) = band.codebook.scale_min();
    let mut values = Box::new([[0.0; WIDTH]; WIDTH]);
    for (k, (out, suh)) in
        out.as_chunks_mut::<WIDTH>().0.iter_mut().zip(suh.as_chunks::<WIDTH>().0).enumerate()
    {
        for (n, values) in values.iter_mut().enumerate() {
            for (b, values) in values.as_chunks_mut::<BLOCK_COLS>().0.iter_mut().enumerate() {
                let at = (n / PANEL_ROWS * cols + k * WIDTH) / BLOCK_COLS + b;
                let from = &band.panels[at * block(bits)..][..block(bits)];
                let codes = codes(bits, band.codebook, from, n % PANEL_ROWS);
                *values = codes.map(|code| f32::from(code).mul_add(scale, min));
            }
        }
        transform(&mut values, suh, &band.svh);
        *out = values[row % WIDTH];
    }
}
