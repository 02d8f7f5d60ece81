//! The int8 encoding of a block with AVX-512: codes, sums and what kernels need of them in registers.

use std::arch::x86_64::*;

use tokenmill_quant::panel::BLOCK_COLS;

use super::encode::{self, Blocks, HUGE, Line, SILENT, TINY};
use super::encode256;

/// Blocks with AVX-512 F, BW, DQ, VL and VNNI.
struct Wide;

/// A row as bytes with scales: [`encode::bytes_of_row`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) fn bytes_of_row(x: &[f32], loud: f32, out: &mut [Line]) {
    encode::bytes_of_row::<Wide>(x, loud, out);
}

impl Blocks for Wide {
    #[inline(always)]
    fn encode(x: &[f32; BLOCK_COLS], limit: f32, line: &mut Line, second: &mut Line) -> bool {
        // SAFETY: called by `bytes_of_row` only, which has the features.
        unsafe { block(x, limit, line, second) }
    }
}

/// [`encode::encode_block`].
///
/// # Safety
/// The features of [`bytes_of_row`] are there.
#[inline(always)]
unsafe fn block(x: &[f32; BLOCK_COLS], limit: f32, line: &mut Line, second: &mut Line) -> bool {
    // SAFETY: 32 numbers are read, registers and two lines written.
    unsafe {
        let x = [_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x.as_ptr().add(16))];
        // As integers, so that a NaN is the largest of all.
        let magnitude = _mm512_set1_epi32(0x7fff_ffff);
        let [a, b] = [
            _mm512_and_si512(_mm512_castps_si512(x[0]), magnitude),
            _mm512_and_si512(_mm512_castps_si512(x[1]), magnitude),
        ];
        let amax = _mm512_reduce_max_epu32(_mm512_max_epu32(a, b));
        if !(TINY.to_bits()..HUGE.to_bits()).contains(&amax) {
            let mut plain = [0.0; BLOCK_COLS];
            _mm512_storeu_ps(plain.as_mut_ptr(), x[0]);
            _mm512_storeu_ps(plain.as_mut_ptr().add(16), x[1]);
            return encode::encode_block(&plain, limit, line, second);
        }
        let amax = f32::from_bits(amax);
        let scale = encode::clear_low_bits(amax / 127.0);
        let codes = codes_of(x, scale);
        store_codes(scale, codes, line);
        let loud = amax > limit;
        if loud {
            let minus = _mm512_set1_ps(-scale);
            let left = [
                _mm512_fmadd_ps(_mm512_cvtepi32_ps(codes[0]), minus, x[0]),
                _mm512_fmadd_ps(_mm512_cvtepi32_ps(codes[1]), minus, x[1]),
            ];
            let scale = encode::clear_low_bits(scale / 254.0);
            store_codes(scale, codes_of(left, scale), second);
        } else {
            *second = SILENT;
        }
        loud
    }
}

/// Numbers times the inverse of the scale, rounded.
#[inline(always)]
unsafe fn codes_of(x: [__m512; 2], scale: f32) -> [__m512i; 2] {
    // SAFETY: registers only.
    unsafe {
        let inverse = _mm512_set1_ps(1.0 / scale);
        [
            _mm512_cvtps_epi32(_mm512_mul_ps(x[0], inverse)),
            _mm512_cvtps_epi32(_mm512_mul_ps(x[1], inverse)),
        ]
    }
}

/// Stores a line: [`encode::line_of`].
#[inline(always)]
unsafe fn store_codes(scale: f32, codes: [__m512i; 2], line: &mut Line) {
    // SAFETY: registers, and the line's 64 bytes.
    unsafe {
        let [low, high] = [_mm512_cvtepi32_epi8(codes[0]), _mm512_cvtepi32_epi8(codes[1])];
        let bytes = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high);
        let fours = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), bytes);
        encode256::store(scale, bytes, fours, line);
    }
}
