//! The int8 encoding with AVX-512, sixteen blocks at once: what a block has one of (its greatest magnitude, its scale, the
//! sums of its codes, the words that kernels start from) is a lane of a register. By count these are 19 vector operations
//! a block; one block alone takes 40, and waits for its own greatest magnitude.
//!
//! All functions have the features themselves: closures of one that is only inlined into such are compiled without.

use std::arch::x86_64::*;
use std::slice::from_ref;

use crate::panel::BLOCK_COLS;

use super::avx2;
use super::{BIAS, HUGE, Line, SCALE, SILENT, TINY};
use crate::math::tree;
use crate::memory::{prefetch, prefetch_to_write};

/// Blocks that are computed at once.
const GROUP: usize = 16;

/// A row as bytes with scales: [`super::bytes_of_row`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) fn bytes_of_row(x: &[f32], outlier: f32, out: &mut [Line]) {
    let blocks = x.len().div_ceil(BLOCK_COLS);
    let (first, rest) = out.split_at_mut(blocks);
    let (bits, second) = rest.split_at_mut(super::residual_lines(blocks) - blocks);
    let (whole, rest) = x.as_chunks();
    let mut last = [0.0; BLOCK_COLS];
    last[..rest.len()].copy_from_slice(rest);
    let last = if rest.is_empty() { &[] } else { from_ref(&last) };
    let groups = || whole.chunks(GROUP).chain(last.chunks(GROUP));

    let (mut magnitudes, mut at) = (_mm512_setzero_ps(), 0);
    for x in groups() {
        let end = at + x.len();
        let (lines, second) = (&mut first[at..end], &mut second[at..end]);
        let greatest = greatest_of(x, &mut magnitudes, lines, second);
        let tops = first_lines(x, greatest, lines);
        second.fill(SILENT);
        // They wait here until it is known which blocks are outliers.
        store(tops, &mut second[0]);
        at = end;
    }
    let limit = outlier * (tree(lanes_of(magnitudes)) / x.len() as f32);
    bits.fill(Line::ZERO);
    at = 0;
    for x in groups() {
        let tops = _mm512_castsi512_ps(load(&second[at]));
        let mut outlier = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(tops, _mm512_set1_ps(limit));
        second[at] = SILENT;
        while outlier != 0 {
            let i = outlier.trailing_zeros() as usize;
            outlier &= outlier - 1;
            let b = at + i;
            bits[b / 512].0[b / 32 % 16] |= 1 << (b % 32);
            residual_line(&x[i], &first[b], &mut second[b]);
        }
        at += x.len();
    }
}

/// The greatest magnitude of each of up to 16 blocks, as bits, so that a NaN is the largest of all. All magnitudes are
/// added to `magnitudes`. Asks memory for the next blocks and their lines: a step's are in no near cache.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn greatest_of(
    x: &[[f32; BLOCK_COLS]],
    magnitudes: &mut __m512,
    lines: &[Line],
    second: &[Line],
) -> __m512i {
    let mut greatest = [_mm512_setzero_si512(); GROUP];
    for (i, (x, greatest)) in x.iter().zip(&mut greatest).enumerate() {
        prefetch(x.as_ptr().wrapping_add(GROUP * BLOCK_COLS), BLOCK_COLS);
        prefetch_to_write(lines.as_ptr().wrapping_add(i + GROUP));
        prefetch_to_write(second.as_ptr().wrapping_add(i + GROUP));
        let positive = _mm512_set1_epi32(0x7fff_ffff);
        let [a, b] = halves(x);
        let a = _mm512_and_si512(_mm512_castps_si512(a), positive);
        let b = _mm512_and_si512(_mm512_castps_si512(b), positive);
        *magnitudes = _mm512_add_ps(*magnitudes, _mm512_castsi512_ps(a));
        *magnitudes = _mm512_add_ps(*magnitudes, _mm512_castsi512_ps(b));
        *greatest = _mm512_max_epi32(a, b);
    }
    greatest_lanes(&greatest)
}

/// Encodes up to 16 blocks into lines, one each. Returns the greatest magnitudes, 0 of those that are encoded as zero or
/// NaN.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn first_lines(x: &[[f32; BLOCK_COLS]], greatest: __m512i, lines: &mut [Line]) -> __m512i {
    let (tiny, huge) = (TINY.to_bits() as i32, HUGE.to_bits() as i32);
    let plain = _mm512_cmpge_epi32_mask(greatest, _mm512_set1_epi32(tiny))
        & _mm512_cmplt_epi32_mask(greatest, _mm512_set1_epi32(huge));
    let scale = _mm512_div_ps(_mm512_castsi512_ps(greatest), _mm512_set1_ps(127.0));
    // As `super::clear_low_bits`.
    let scale = _mm512_and_si512(_mm512_castps_si512(scale), _mm512_set1_epi32(!3));
    let scale = _mm512_castsi512_ps(scale);
    let inverse = lanes_of(_mm512_div_ps(_mm512_set1_ps(1.0), scale));

    let mut fours = [_mm512_setzero_si512(); GROUP / 2];
    for (i, fours) in fours.iter_mut().enumerate().take(x.len().div_ceil(2)) {
        // Two blocks a register; where there is no second, the first twice.
        let (a, b) = (2 * i, (2 * i + 1).min(x.len() - 1));
        let bytes = bytes_of([&x[a], &x[b]], [inverse[a], inverse[b]]);
        store_half(_mm512_castsi512_si256(bytes), &mut lines[a], 0);
        if b > a {
            store_half(_mm512_extracti64x4_epi64::<1>(bytes), &mut lines[b], 0);
        }
        *fours = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), bytes);
    }
    store_words(words(scale, sums_of(&fours)), lines);
    let mut other = !plain & (0xffff >> (GROUP - x.len()));
    while other != 0 {
        let b = other.trailing_zeros() as usize;
        other &= other - 1;
        let mut second = SILENT;
        super::encode_block(&x[b], f32::INFINITY, &mut lines[b], &mut second);
    }
    _mm512_maskz_mov_epi32(plain, greatest)
}

/// What a block's line leaves as a line of its own.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn residual_line(x: &[f32; BLOCK_COLS], line: &Line, second: &mut Line) {
    let scale = f32::from_bits(line.0[SCALE]);
    let minus = _mm512_set1_ps(-scale);
    let x = halves(x);
    let codes = codes_of(x, 1.0 / scale);
    let left = [
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(codes[0]), minus, x[0]),
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(codes[1]), minus, x[1]),
    ];
    let scale = super::clear_low_bits(scale / 254.0);
    let [low, high] = codes_of(left, 1.0 / scale);
    let (low, high) = (_mm512_cvtepi32_epi8(low), _mm512_cvtepi32_epi8(high));
    let bytes = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high);
    let fours = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), bytes);
    // SAFETY: AVX2 is there.
    unsafe { avx2::store(scale, bytes, fours, second) }
}

/// Numbers times the inverse of the scale, rounded.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn codes_of(x: [__m512; 2], inverse: f32) -> [__m512i; 2] {
    let inverse = _mm512_set1_ps(inverse);
    [
        _mm512_cvtps_epi32(_mm512_mul_ps(x[0], inverse)),
        _mm512_cvtps_epi32(_mm512_mul_ps(x[1], inverse)),
    ]
}

/// The codes of two blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn bytes_of(x: [&[f32; BLOCK_COLS]; 2], inverse: [f32; 2]) -> __m512i {
    let (a, b) = (codes_of(halves(x[0]), inverse[0]), codes_of(halves(x[1]), inverse[1]));
    // Packing works within quarters: quarter i gets word i of each half of each block.
    let (a, b) = (_mm512_packs_epi32(a[0], a[1]), _mm512_packs_epi32(b[0], b[1]));
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_permutexvar_epi32(order, _mm512_packs_epi16(a, b))
}

/// The greatest lane of each register.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn greatest_lanes(rows: &[__m512i; GROUP]) -> __m512i {
    // Quarters of rows, until a register has one quarter of four rows: in quarter i of row i, i + 4, …
    let halves = |row: usize| {
        let [a, b] = [rows[row], rows[row + 4]];
        _mm512_max_epi32(_mm512_shuffle_i32x4::<0x44>(a, b), _mm512_shuffle_i32x4::<0xee>(a, b))
    };
    let quarters = |row: usize| {
        let [a, b] = [halves(row), halves(row + 8)];
        _mm512_max_epi32(_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b))
    };
    // Then pairs and single numbers inside quarters.
    let pairs = |row: usize| {
        let [a, b] = [quarters(row), quarters(row + 1)];
        let (a, b) = (_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
        _mm512_castsi512_ps(_mm512_max_epi32(a, b))
    };
    let [a, b] = [pairs(0), pairs(2)];
    let (even, odd) = (_mm512_shuffle_ps::<0x88>(a, b), _mm512_shuffle_ps::<0xdd>(a, b));
    _mm512_max_epi32(_mm512_castps_si512(even), _mm512_castps_si512(odd))
}

/// The sums of columns 0–15 of each block, and of columns 16–31, from those of each four columns of two blocks a register.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn sums_of(fours: &[__m512i; GROUP / 2]) -> [__m512i; 2] {
    // A quarter is half a block: its four numbers are added, of four registers at once.
    let twos = |i: usize| {
        let [a, b] = [fours[i], fours[i + 1]];
        _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b))
    };
    let ones = |i: usize| {
        let [a, b] = [twos(i), twos(i + 2)];
        _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b))
    };
    let [a, b] = [ones(0), ones(4)];
    // Quarters 0 and 1 have the halves of even blocks, 2 and 3 of odd ones.
    let (low, high) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
    let order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    [_mm512_permutexvar_epi32(order, low), _mm512_permutexvar_epi32(order, high)]
}

/// Words 8–15 of each block's line: [`super::line_of`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn words(scale: __m512, [low, high]: [__m512i; 2]) -> [__m512i; 8] {
    let bias = _mm512_set1_epi32(BIAS);
    let minus = _mm512_set1_ps(-f32::from_bits(BIAS as u32));
    let sum = _mm512_add_epi32(low, high);
    [
        _mm512_castps_si512(scale),
        _mm512_castps_si512(_mm512_mul_ps(scale, minus)),
        _mm512_castps_si512(_mm512_mul_ps(scale, _mm512_cvtepi32_ps(sum))),
        _mm512_sub_epi32(bias, _mm512_slli_epi32::<3>(sum)),
        _mm512_sub_epi32(bias, _mm512_slli_epi32::<4>(sum)),
        _mm512_sub_epi32(bias, _mm512_slli_epi32::<7>(sum)),
        _mm512_sub_epi32(bias, _mm512_slli_epi32::<5>(low)),
        _mm512_sub_epi32(bias, _mm512_slli_epi32::<5>(high)),
    ]
}

/// Stores words 8–15 of up to 16 lines.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn store_words(words: [__m512i; 8], lines: &mut [Line]) {
    // Four words of a block a quarter: of [i] quarter q is of block 4q + i.
    let fours = |i: usize| {
        let [a, b, c, d] = [words[i], words[i + 1], words[i + 2], words[i + 3]];
        let (low, high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let (low2, high2) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        [
            _mm512_unpacklo_epi64(low, low2),
            _mm512_unpackhi_epi64(low, low2),
            _mm512_unpacklo_epi64(high, high2),
            _mm512_unpackhi_epi64(high, high2),
        ]
    };
    let [front, back] = [fours(0), fours(4)];
    let first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    let last = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    for i in 0..4 {
        for (block, order) in [(i, first), (i + 8, last)] {
            let both = _mm512_permutex2var_epi64(front[i], order, back[i]);
            if let Some(line) = lines.get_mut(block) {
                store_half(_mm512_castsi512_si256(both), line, SCALE);
            }
            if let Some(line) = lines.get_mut(block + 4) {
                store_half(_mm512_extracti64x4_epi64::<1>(both), line, SCALE);
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn halves(x: &[f32; BLOCK_COLS]) -> [__m512; 2] {
    // SAFETY: 32 numbers.
    unsafe { [_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x.as_ptr().add(16))] }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn lanes_of(x: __m512) -> [f32; 16] {
    let mut lanes = [0.0; 16];
    // SAFETY: 16 numbers.
    unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), x) };
    lanes
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn load(line: &Line) -> __m512i {
    // SAFETY: 64 bytes, aligned.
    unsafe { _mm512_load_si512(line.0.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn store(words: __m512i, line: &mut Line) {
    // SAFETY: 64 bytes, aligned.
    unsafe { _mm512_store_si512(line.0.as_mut_ptr().cast(), words) }
}

/// Stores half a line: words from `at` on, 0 or 8.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn store_half(words: __m256i, line: &mut Line, at: usize) {
    // SAFETY: 32 bytes, aligned.
    unsafe { _mm256_store_si256(line.0[at..at + 8].as_mut_ptr().cast(), words) }
}
