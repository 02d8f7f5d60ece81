//! Blocks of indices into code books of magnitudes (iq2 and iq3) and of values (iq1), in as many bits as files have.
//!
//! ```text
//! group = [d f16 × 16][scales u4: one or two of each block, unless in the signs][block 0] … [block 7]
//! block = indices: byte [run][row], four runs of eight columns or eight of four
//!         signs: word [row]; bit r + 4e of byte j = column 8r + 4e + j
//!         iq2_s, iq3_s: byte [row] of upper bits of the indices, two or one a run, lowest run lowest
//! ```
//!
//! Where files keep 7 signs of eight columns (xxs, xs), so does the word: its upper four bits, the last columns of
//! the runs, are the scale, or the ninth bits of the indices of iq2_xs.
//!
//! ```text
//! iq1_s: block = indices: byte [run][row], four runs of eight columns
//!                half [row]; bits 3r .. of it are the upper bits of the index of run r, bits 12–14 the scale u3,
//!                bit 15 whether δ is negative
//! iq1_m: group = [d f16 × 16][four scales u3 of each two blocks: byte [row], lowest first; upper bits u4][block 0] …
//!        block = the same, but that a half has four bits for each run: upper bits, whether δ is negative
//! ```

use super::layout::{PanelLayout, PanelSpec, table, written_out_iq1};
use super::planes::{put_codes, put_float, put_pair};
use super::{BLOCK_COLS, PANEL_ROWS};
use tokenmill_quant::FormatId;
use tokenmill_quant::fields::{Indexed, code_book};
use tokenmill_quant::float::f16_to_f32;

/// How the blocks of a layout go.
#[derive(Clone, Copy)]
pub struct Book {
    /// Runs of a block: four of eight columns, or eight of four.
    pub runs: usize,
    /// Upper bits of an index: none to two.
    pub upper: u32,
    /// Whether runs of eight columns have seven signs.
    pub even: bool,
    /// What scales are multiples of, over d.
    pub unit: f32,
    /// Scales u4 of a block beside the blocks: none to two.
    pub scales: usize,
}

impl Book {
    /// Of a layout of code books.
    ///
    /// # Panics
    /// If the layout has none.
    pub const fn of(layout: PanelLayout) -> Book {
        let (runs, upper, even, unit, scales) = match layout {
            PanelLayout::Iq2Xxs => (4, 0, true, 0.125, 0),
            PanelLayout::Iq2Xs => (4, 1, true, 0.125, 2),
            PanelLayout::Iq2S => (4, 2, false, 0.125, 2),
            PanelLayout::Iq3Xxs => (8, 0, true, 0.25, 0),
            PanelLayout::Iq3S => (8, 1, false, 1.0, 1),
            _ => panic!("no code book"),
        };
        Book { runs, upper, even, unit, scales }
    }

    /// Where the scale words or bytes of block `b` are in a group.
    pub const fn scales_at(self, b: usize) -> usize {
        32 + 8 * self.scales * b
    }

    /// Where the signs are in a block.
    pub const fn signs_at(self) -> usize {
        self.runs * PANEL_ROWS
    }
}

/// Bit of a sign word that column `c` has.
const fn sign_bit(c: usize) -> usize {
    8 * (c % 4) + c / 8 + 4 * (c / 4 % 2)
}

/// Rows of indices into a code book, into one panel: as they are, or written out.
pub(super) fn repack(spec: &PanelSpec, row_bytes: usize, src: &[u8], dst: &mut [u8]) {
    let (format, layout) = (spec.format(), spec.layout());
    let Some(group) = layout.group() else { return };
    let bytes = format.info().block_bytes;
    for (i, to) in dst.chunks_exact_mut(group.bytes()).enumerate().take(row_bytes / bytes) {
        let (head, blocks) = to.split_at_mut(group.scale_bytes);
        for (row, src) in src.chunks_exact(row_bytes).enumerate() {
            let stored = &src[i * bytes..][..bytes];
            for (b, block) in blocks.chunks_exact_mut(group.low_bytes).enumerate() {
                let indexed = Indexed::read(format, stored, b);
                match layout {
                    PanelLayout::SuperTable | PanelLayout::SuperTable16 => {
                        write_out(spec, (b, row), &indexed, head, block);
                    }
                    _ if layout.is_value_book() => {
                        put_values(layout, (b, row), &indexed, head, block)
                    }
                    _ => put(Book::of(layout), (b, row), &indexed, head, block),
                }
            }
        }
    }
}

/// Stores a row of block `b` of a group: magnitudes and signs.
fn put(book: Book, (b, row): (usize, usize), indexed: &Indexed, head: &mut [u8], block: &mut [u8]) {
    head[2 * row..][..2].copy_from_slice(&indexed.d.to_le_bytes());
    for s in 0..book.scales {
        let at = book.scales_at(b) + 8 * s + row % 8;
        head[at] |= indexed.scales[s] << (row / 8 * 4);
    }
    let indices = &indexed.indices[..book.runs];
    let upper = indices.iter().enumerate();
    let upper =
        upper.fold(0, |bits, (r, index)| bits | u32::from(index >> 8) << (r as u32 * book.upper));
    let signs = (0..BLOCK_COLS).fold(0, |word, c| word | (indexed.signs >> c & 1) << sign_bit(c));
    let rest = if book.scales == 0 { u32::from(indexed.scales[0]) } else { upper };
    let word = if book.even { signs & 0x0fff_ffff | rest << 28 } else { signs };
    for (r, index) in indices.iter().enumerate() {
        block[16 * r + row] = *index as u8;
    }
    block[book.signs_at() + 4 * row..][..4].copy_from_slice(&word.to_le_bytes());
    if !book.even {
        block[book.signs_at() + 64 + row] = upper as u8;
    }
}

/// Values (raised by 128) and scales of a row of block `b` of a group.
pub(super) fn lane(
    spec: &PanelSpec,
    group: &[u8],
    b: usize,
    row: usize,
) -> ([u8; BLOCK_COLS], [f32; 2]) {
    let book = Book::of(spec.layout());
    let sizes = spec.layout().group().expect("a layout of code books");
    let block = &group[sizes.scale_bytes + b * sizes.low_bytes..][..sizes.low_bytes];
    let at = book.signs_at() + 4 * row;
    let word = u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let upper = if book.even { word >> 28 } else { u32::from(block[book.signs_at() + 64 + row]) };
    let signs = (0..BLOCK_COLS).fold(0, |signs: u32, c| {
        // Of eight columns' signs a file may keep seven, whose number the last makes even.
        let kept = signs >> (c / 8 * 8);
        let sign = if book.even && c % 8 == 7 { kept.count_ones() } else { word >> sign_bit(c) };
        signs | (sign & 1) << c
    });
    let cols = BLOCK_COLS / book.runs;
    let bits = if cols == 8 { 2 } else { 3 };
    let values = std::array::from_fn(|c| {
        let r = c / cols;
        let upper = upper >> (r as u32 * book.upper) & ((1 << book.upper) - 1);
        let index = usize::from(block[16 * r + row]) | (upper as usize) << 8;
        let magnitude = code_book(spec.format())[index] >> (bits * (c % cols)) & ((1 << bits) - 1);
        table(spec.format())[usize::from(magnitude) | (signs as usize >> c & 1) << 3]
    });
    let unit = f16_to_f32(u16::from_le_bytes([group[2 * row], group[2 * row + 1]])) * book.unit;
    let scale = |s: usize| match book.scales {
        0 => word >> 28,
        _ => {
            let at = book.scales_at(b) + 8 * (s % book.scales) + row % 8;
            u32::from(group[at] >> (row / 8 * 4) & 15)
        }
    };
    (values, [0, 1].map(|s| unit * (2 * scale(s) + 1) as f32))
}

/// The same of values.
fn put_values(
    layout: PanelLayout,
    (b, row): (usize, usize),
    &Indexed { d, indices, signs, scales }: &Indexed,
    head: &mut [u8],
    block: &mut [u8],
) {
    head[2 * row..][..2].copy_from_slice(&d.to_le_bytes());
    let minus = |r: usize| (signs >> (8 * r)) as u16 & 1;
    let half = if layout == PanelLayout::Iq1S {
        let bits = u16::from(scales[0]) << 12 | minus(0) << 15;
        (0..4).fold(bits, |half, r| half | (indices[r] >> 8) << (3 * r))
    } else {
        let twelve = u16::from(scales[0] | scales[1] << 3) << (6 * (b % 2));
        let at = 32 + 24 * (b / 2);
        head[at + row] |= twelve as u8;
        head[at + 16 + row % 8] |= ((twelve >> 8) as u8) << (row / 8 * 4);
        (0..4).fold(0, |half, r| half | (indices[r] >> 8 | minus(r) << 3) << (4 * r))
    };
    (0..4).for_each(|r| block[16 * r + row] = indices[r] as u8);
    block[64 + 2 * row..][..2].copy_from_slice(&half.to_le_bytes());
}

/// Values (raised by the zero point) and scales of a row of block `b` of a group of values.
pub(super) fn lane_of_values(
    spec: &PanelSpec,
    group: &[u8],
    b: usize,
    row: usize,
) -> ([u8; BLOCK_COLS], [f32; 2]) {
    let sizes = spec.layout().group().expect("a layout of code books");
    let block = &group[sizes.scale_bytes + b * sizes.low_bytes..][..sizes.low_bytes];
    let half_at = |bytes: &[u8], at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let half = half_at(block, 64 + 2 * row);
    let small = spec.layout() == PanelLayout::Iq1S;
    let values = std::array::from_fn(|c| {
        let r = c / 8;
        let (upper, minus) = match small {
            true => (half >> (3 * r) & 7, half >> 15),
            false => (half >> (4 * r) & 7, half >> (4 * r + 3) & 1),
        };
        let entry =
            code_book(spec.format())[usize::from(block[16 * r + row]) | usize::from(upper) << 8];
        table(spec.format())[usize::from(entry >> (2 * (c % 8)) & 3 | minus << 3)]
    });
    let unit = f16_to_f32(half_at(group, 2 * row)) * 0.125;
    let scale = |s: usize| match small {
        true => half >> 12 & 7,
        false => {
            let at = 32 + 24 * (b / 2);
            let upper = group[at + 16 + row % 8] >> (row / 8 * 4) & 15;
            (u16::from(group[at + row]) | u16::from(upper) << 8) >> (6 * (b % 2) + 3 * s) & 7
        }
    };
    (values, [0, 1].map(|s| unit * f32::from(2 * scale(s) + 1)))
}

/// The same written out.
fn write_out(
    spec: &PanelSpec,
    (b, row): (usize, usize),
    indexed: &Indexed,
    head: &mut [u8],
    block: &mut [u8],
) {
    let (format, layout) = (spec.format(), spec.layout());
    let (Some(group), Some(own)) = (layout.group(), PanelLayout::of(format)) else { return };
    let unit = if own.is_book() { Book::of(own).unit } else { 0.125 };
    let codes = written_out_codes(format, own, indexed);
    let words = codes.as_chunks::<4>().0;
    put_codes(group, row, &std::array::from_fn(|g| u32::from_le_bytes(words[g])), block);
    put_float(head, 0, row, f16_to_f32(indexed.d) * unit);
    let scales = indexed.scales.map(|scale| 2 * scale + 1);
    match layout {
        PanelLayout::SuperTable => head[64 + 16 * b + row] = scales[0],
        _ => put_pair(head, 64 + 32 * b, row, &scales),
    }
}

/// Codes of 32 columns of a code book that is written out.
fn written_out_codes(format: FormatId, own: PanelLayout, of: &Indexed) -> [u8; BLOCK_COLS] {
    let (cols, bits) = match own {
        PanelLayout::Iq3Xxs | PanelLayout::Iq3S => (4, 3),
        _ => (8, 2),
    };
    std::array::from_fn(|c| {
        let entry = code_book(format)[usize::from(of.indices[c / cols])];
        let entry = (entry >> (bits * (c % cols))) as u8 & ((1 << bits) - 1);
        let minus = of.signs >> c & 1 == 1;
        if own.is_value_book() {
            written_out_iq1(entry, minus)
        } else {
            entry | u8::from(minus) << 3
        }
    })
}
