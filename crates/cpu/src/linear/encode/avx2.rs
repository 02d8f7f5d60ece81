//! The int8 encoding of a block with AVX2, and what the wider instruction sets share with it: codes, sums and
//! what kernels need of them in registers.

use std::arch::x86_64::*;

use crate::panel::BLOCK_COLS;

use super::{BIAS, Blocks, HUGE, Line, SILENT, TINY};

/// Blocks with AVX2 and FMA.
struct Narrow;

/// A row as bytes with scales: [`super::bytes_of_row`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn bytes_of_row(x: &[f32], outlier: f32, out: &mut [Line]) {
    super::bytes_of_row::<Narrow>(x, outlier, out);
}

impl Blocks for Narrow {
    #[inline(always)]
    fn encode(x: &[f32; BLOCK_COLS], limit: f32, line: &mut Line, residual: &mut Line) -> bool {
        // SAFETY: called by `bytes_of_row` only, which has the features.
        unsafe { block(x, limit, line, residual) }
    }
}

/// [`super::encode_block`].
///
/// # Safety
/// The features of [`bytes_of_row`] are there.
#[inline(always)]
unsafe fn block(x: &[f32; BLOCK_COLS], limit: f32, line: &mut Line, residual: &mut Line) -> bool {
    // SAFETY: 32 numbers are read, registers and two lines written.
    unsafe {
        let at = x.as_ptr();
        let x = [
            _mm256_loadu_ps(at),
            _mm256_loadu_ps(at.add(8)),
            _mm256_loadu_ps(at.add(16)),
            _mm256_loadu_ps(at.add(24)),
        ];
        let amax = greatest_bits(x);
        if !(TINY.to_bits()..HUGE.to_bits()).contains(&amax) {
            let mut plain = [0.0; BLOCK_COLS];
            for (to, x) in plain.as_chunks_mut::<8>().0.iter_mut().zip(x) {
                _mm256_storeu_ps(to.as_mut_ptr(), x);
            }
            return super::encode_block(&plain, limit, line, residual);
        }
        let amax = f32::from_bits(amax);
        let scale = super::clear_low_bits(amax / 127.0);
        let codes = codes_of(x, scale);
        store_codes(scale, codes, line);
        let outlier = amax > limit;
        if outlier {
            let minus = _mm256_set1_ps(-scale);
            let left = [
                _mm256_fmadd_ps(_mm256_cvtepi32_ps(codes[0]), minus, x[0]),
                _mm256_fmadd_ps(_mm256_cvtepi32_ps(codes[1]), minus, x[1]),
                _mm256_fmadd_ps(_mm256_cvtepi32_ps(codes[2]), minus, x[2]),
                _mm256_fmadd_ps(_mm256_cvtepi32_ps(codes[3]), minus, x[3]),
            ];
            let scale = super::clear_low_bits(scale / 254.0);
            store_codes(scale, codes_of(left, scale), residual);
        } else {
            *residual = SILENT;
        }
        outlier
    }
}

/// The greatest magnitude, as integers, so that a NaN is the largest of all.
#[inline(always)]
unsafe fn greatest_bits(x: [__m256; 4]) -> u32 {
    // SAFETY: registers only.
    unsafe {
        let magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fff_ffff));
        let bits = [
            _mm256_castps_si256(_mm256_and_ps(x[0], magnitude)),
            _mm256_castps_si256(_mm256_and_ps(x[1], magnitude)),
            _mm256_castps_si256(_mm256_and_ps(x[2], magnitude)),
            _mm256_castps_si256(_mm256_and_ps(x[3], magnitude)),
        ];
        let top = _mm256_max_epi32(
            _mm256_max_epi32(bits[0], bits[1]),
            _mm256_max_epi32(bits[2], bits[3]),
        );
        let top = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256::<1>(top));
        let top = _mm_max_epi32(top, _mm_shuffle_epi32::<0b01_00_11_10>(top));
        let top = _mm_max_epi32(top, _mm_shuffle_epi32::<0b10_11_00_01>(top));
        _mm_cvtsi128_si32(top) as u32
    }
}

/// Numbers times the inverse of the scale, rounded.
#[inline(always)]
unsafe fn codes_of(x: [__m256; 4], scale: f32) -> [__m256i; 4] {
    // SAFETY: registers only.
    unsafe {
        let inverse = _mm256_set1_ps(1.0 / scale);
        [
            _mm256_cvtps_epi32(_mm256_mul_ps(x[0], inverse)),
            _mm256_cvtps_epi32(_mm256_mul_ps(x[1], inverse)),
            _mm256_cvtps_epi32(_mm256_mul_ps(x[2], inverse)),
            _mm256_cvtps_epi32(_mm256_mul_ps(x[3], inverse)),
        ]
    }
}

/// Stores a line: [`super::line_of`].
#[inline(always)]
unsafe fn store_codes(scale: f32, codes: [__m256i; 4], line: &mut Line) {
    // SAFETY: registers, and the line's 64 bytes.
    unsafe {
        // Packing works within halves of a register: words come out as 0 2 4 6 1 3 5 7.
        let low = _mm256_packs_epi32(codes[0], codes[1]);
        let high = _mm256_packs_epi32(codes[2], codes[3]);
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        let bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
        let twos = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
        store(scale, bytes, _mm256_madd_epi16(twos, _mm256_set1_epi16(1)), line);
    }
}

/// Stores a line of 32 codes, of which `fours` are the sums of each four.
///
/// # Safety
/// AVX2 is available.
#[inline(always)]
pub(super) unsafe fn store(scale: f32, bytes: __m256i, fours: __m256i, line: &mut Line) {
    // SAFETY: registers, and the line's 64 bytes.
    unsafe {
        // Σa of columns 0–15 in each word of the lower half, of 16–31 in the upper.
        let twos = _mm256_add_epi32(fours, _mm256_shuffle_epi32::<0b10_11_00_01>(fours));
        let halves = _mm256_add_epi32(twos, _mm256_shuffle_epi32::<0b01_00_11_10>(twos));
        let swapped = _mm256_permute4x64_epi64::<0b01_00_11_10>(halves);
        let all = _mm256_add_epi32(halves, swapped);
        // Words 8–15: 1 and −1.5·2²³, to be scaled; Σa, to be scaled, and three times; Σa of each half.
        let sums = _mm256_blend_epi32::<0b1000_0000>(all, halves);
        let sums = _mm256_blend_epi32::<0b0100_0000>(sums, swapped);
        let sums = _mm256_blend_epi32::<0b0000_0011>(
            sums,
            _mm256_setr_epi32(1, -12_582_912, 0, 0, 0, 0, 0, 0),
        );
        let scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sums), _mm256_set1_ps(scale));
        let zeros = _mm256_setr_epi32(0, 0, 0, 3, 4, 7, 5, 5);
        let starts = _mm256_sub_epi32(_mm256_set1_epi32(BIAS), _mm256_sllv_epi32(sums, zeros));
        let words = _mm256_blend_epi32::<0b0000_0111>(starts, _mm256_castps_si256(scaled));
        let to = line.0.as_mut_ptr().cast::<__m256i>();
        _mm256_store_si256(to, bytes);
        _mm256_store_si256(to.add(1), words);
    }
}
