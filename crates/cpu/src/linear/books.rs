//! Entries of code books of magnitudes and of values, taken apart: 16 rows at a time.

use super::kind::{Kind, OfKind};
use crate::panel::PanelLayout;
use crate::panel::books::Book;
use crate::simd::Vector;
use tokenmill_quant::FormatId;
use tokenmill_quant::fields::code_book;

/// Words of a code book of eight columns an entry: bits 0, 1 of byte j are the index of column j into the magnitudes,
/// bits 2, 3 that of column 4 + j. Those that differ in the bits above eight of their index lie side by side.
const fn eights<const N: usize>(book: &[u16]) -> [u32; N] {
    let mut words = [0; N];
    let mut i = 0;
    while i < 8 * N {
        let (entry, c) = (i / 8, i % 8);
        let at = entry % 256 * (N / 256) + entry / 256;
        words[at] |= (book[entry] as u32 >> (2 * c) & 3) << (8 * (c % 4) + 2 * (c / 4));
        i += 1;
    }
    words
}

/// Words of a code book of four columns an entry, in the same order: a byte for each column.
const fn fours<const N: usize>(book: &[u16]) -> [u32; N] {
    let mut words = [0; N];
    let mut i = 0;
    while i < 4 * N {
        let (entry, c) = (i / 4, i % 4);
        let at = entry % 256 * (N / 256) + entry / 256;
        words[at] |= (book[entry] as u32 >> (3 * c) & 7) << (8 * c);
        i += 1;
    }
    words
}

static IQ2_XXS: [u32; 256] = eights(code_book(FormatId::IQ2_XXS));
static IQ2_XS: [u32; 512] = eights(code_book(FormatId::IQ2_XS));
static IQ2_S: [u32; 1024] = eights(code_book(FormatId::IQ2_S));
static IQ3_XXS: [u32; 256] = fours(code_book(FormatId::IQ3_XXS));
static IQ3_S: [u32; 512] = fours(code_book(FormatId::IQ3_S));

/// Words of a code book of eight values an entry: a nibble for each column, the low ones of columns 0–3; once as it is, and
/// once with the bits of a negative δ.
const fn values_of(book: &[u16]) -> [u32; 4096] {
    let mut words = [0; 4096];
    let mut i = 0;
    while i < 8 * 2048 {
        let (entry, c) = (i / 8, i % 8);
        words[entry] |= (book[entry] as u32 >> (2 * c) & 3) << (8 * (c % 4) + 4 * (c / 4));
        words[2048 + entry] = words[entry] | 0x8888_8888;
        i += 1;
    }
    words
}

static IQ1: [u32; 4096] = values_of(code_book(FormatId::IQ1_S));

/// The words of a kind's entries: as many as its indices may say.
fn words(kind: Kind) -> &'static [u32] {
    match kind {
        Kind::Iq2Xxs => &IQ2_XXS,
        Kind::Iq2Xs => &IQ2_XS,
        Kind::Iq2S => &IQ2_S,
        Kind::Iq3Xxs => &IQ3_XXS,
        _ => &IQ3_S,
    }
}

/// The book of a kind that has one; any for others, for which this code is compiled and never run.
const fn book(kind: Kind) -> Book {
    match kind.layout() {
        Some(layout) if layout.is_book() => Book::of(layout),
        _ => Book::of(PanelLayout::Iq2Xxs),
    }
}

/// The signs of a block, as `panel::books` has them, all 32.
///
/// # Safety
/// `codes` are those of a block of kind `K`, which has a code book.
#[inline(always)]
pub(super) unsafe fn signs<V: Vector, K: OfKind>(codes: *const u8) -> V::Int {
    // SAFETY: the block is inside the panel.
    unsafe {
        let word = V::load(codes.add(const { book(K::KIND).signs_at() }));
        if const { book(K::KIND).even } { V::even_signs(word) } else { word }
    }
}

/// Indices of the magnitudes of columns 8·STEP .. +4 and +4 .. +8 of a block, as bytes.
///
/// # Safety
/// As [`signs`].
#[inline(always)]
pub(super) unsafe fn magnitudes<V: Vector, K: OfKind, const STEP: usize>(
    codes: *const u8,
) -> [V::Int; 2] {
    // SAFETY: the block is inside the panel, and every index in the book.
    unsafe {
        if const { book(K::KIND).runs == 4 } {
            let entries = entries::<V, K>(codes, STEP);
            return [V::mask(entries, 3), V::mask(V::right::<2>(entries), 3)];
        }
        [entries::<V, K>(codes, 2 * STEP), entries::<V, K>(codes, 2 * STEP + 1)]
    }
}

/// Words of the entries of run `run`.
#[inline(always)]
unsafe fn entries<V: Vector, K: OfKind>(codes: *const u8, run: usize) -> V::Int {
    // SAFETY: as the caller.
    unsafe {
        let (bytes, signs_at) = (codes.add(16 * run), const { book(K::KIND).signs_at() });
        let words = words(K::KIND);
        let upper = match const { (book(K::KIND).upper, book(K::KIND).even) } {
            (0, _) => return V::words_at::<1>(words, bytes, V::int(V::same(0))),
            (_, true) => V::right32::<28>(V::load(codes.add(signs_at))),
            (_, false) => V::lanes(codes.add(signs_at + 64)),
        };
        let upper = V::right_by(upper, run as u32 * const { book(K::KIND).upper });
        match const { book(K::KIND).upper } {
            1 => V::words_at::<2>(words, bytes, upper),
            _ => V::words_at::<4>(words, bytes, upper),
        }
    }
}

/// Magnitudes and signs of columns 8·STEP .. +8 as values raised by 128.
///
/// # Safety
/// As [`signs`], of which `signs` are.
#[inline(always)]
pub(super) unsafe fn values<V: Vector, K: OfKind, const STEP: usize>(
    codes: *const u8,
    signs: V::Int,
) -> [V::Int; 2] {
    // SAFETY: passed on.
    unsafe {
        let [low, high] = magnitudes::<V, K, STEP>(codes);
        // Bits STEP and STEP + 4 become bit 3 of an index into the table.
        let [a, b] = match STEP {
            0 => [V::left::<3>(signs), V::right::<1>(signs)],
            1 => [V::left::<2>(signs), V::right::<2>(signs)],
            2 => [V::left::<1>(signs), V::right::<3>(signs)],
            _ => [signs, V::right::<4>(signs)],
        };
        let table = const { K::KIND.table() };
        let low = V::look_up(V::with_bits(low, a, 8), table);
        [low, V::look_up(V::with_bits(high, b, 8), table)]
    }
}

/// Scale of half `HALF` of block `b` of a group.
///
/// # Safety
/// `scales` are those of a group of kind `K`, which has a code book.
#[inline(always)]
pub(super) unsafe fn scale<V: Vector, K: OfKind, const HALF: usize>(
    scales: *const u8,
    b: usize,
) -> V::Float {
    let of_kind = const { book(K::KIND) };
    let sizes = const { K::KIND.sizes() };
    // SAFETY: the group is inside the panel.
    unsafe {
        let four = match const { book(K::KIND).scales } {
            0 => V::right32::<28>(V::load(
                scales.add(sizes.scales + b * sizes.codes + of_kind.signs_at()),
            )),
            scales_of => V::fours(scales.add(of_kind.scales_at(b) + 8 * (HALF % scales_of))),
        };
        let unit = V::mul(V::f16s(scales), V::splat(of_kind.unit));
        V::mul(unit, V::fma(V::to_float(four), V::splat(2.0), V::splat(1.0)))
    }
}

/// Entries of a code book of values: columns 8·STEP .. +8, raised by the zero point of the kind.
///
/// # Safety
/// `codes` are those of a block of kind `K`, [`Kind::Iq1S`] or [`Kind::Iq1M`].
#[inline(always)]
pub(super) unsafe fn entries_of_values<V: Vector, K: OfKind, const STEP: usize>(
    codes: *const u8,
) -> [V::Int; 2] {
    // SAFETY: the block is inside the panel, and every index in the book.
    unsafe {
        let (bytes, halves) = (codes.add(16 * STEP), codes.add(64));
        let words = match K::KIND {
            Kind::Iq1S => V::words_of::<3>(&IQ1, bytes, halves, STEP),
            _ => V::words_of::<4>(&IQ1, bytes, halves, STEP),
        };
        let table = const { K::KIND.table() };
        let [low, high] = [V::mask(words, 15), V::mask(V::right::<4>(words), 15)];
        [V::look_up(low, table), V::look_up(high, table)]
    }
}

/// Scale of half `HALF` of block `b` of a group.
///
/// # Safety
/// `scales` are those of a group of kind `K`, [`Kind::Iq1S`] or [`Kind::Iq1M`].
#[inline(always)]
pub(super) unsafe fn scale_of_values<V: Vector, K: OfKind, const HALF: usize>(
    scales: *const u8,
    b: usize,
) -> V::Float {
    let sizes = const { K::KIND.sizes() };
    // SAFETY: the group is inside the panel.
    unsafe {
        let three = match K::KIND {
            Kind::Iq1S => {
                let halves = V::halves(scales.add(sizes.scales + b * sizes.codes + 64));
                V::mask(V::right32::<12>(halves), 7)
            }
            _ => {
                // Four scales of three bits in twelve.
                let of_two = scales.add(32 + 24 * (b / 2));
                let twelve = V::plus32(V::lanes(of_two), V::left::<8>(V::fours(of_two.add(16))));
                V::right::<13>(V::left_by(twelve, 13 - (6 * (b as u32 % 2) + 3 * HALF as u32)))
            }
        };
        let unit = V::mul(V::f16s(scales), V::splat(0.125));
        V::mul(unit, V::fma(V::to_float(three), V::splat(2.0), V::splat(1.0)))
    }
}
