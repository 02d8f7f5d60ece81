//! The vectors of attention with AVX-512 and its VNNI.

use std::arch::x86_64::*;
use std::ops::Range;

use super::vector::{ScoreTile, ValueTile, Vector};
use super::{AttendJob, Item, Kind, Scratch, blocked};

/// What 4-bit codes stand for, without their scale.
const NIBBLES: [f32; 16] =
    [-15., -13., -11., -9., -7., -5., -3., -1., 1., 3., 5., 7., 9., 11., 13., 15.];

/// AVX-512 F, BW, DQ, VL and VNNI.
pub(super) struct Avx512;

// SAFETY (every block below): the contract of `Vector`: the instruction set is available and
// the pointers cover what is read or written.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Vector for Avx512 {
    type Float = __m512;
    type Int = __m512i;

    // 24 sums of the 32 registers.
    const ROWS: usize = 6;

    #[inline(always)]
    fn vectors(_: usize) -> usize {
        4
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(v: __m512, to: *mut f32) {
        unsafe { _mm512_storeu_ps(to, v) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn greatest(v: __m512) -> f32 {
        unsafe { _mm512_reduce_max_ps(v) }
    }
    #[inline(always)]
    unsafe fn greater_bits(a: __m512, b: __m512) -> __m512 {
        unsafe {
            let magnitude = _mm512_set1_epi32(0x7fff_ffff);
            let a = _mm512_and_si512(_mm512_castps_si512(a), magnitude);
            let b = _mm512_and_si512(_mm512_castps_si512(b), magnitude);
            _mm512_castsi512_ps(_mm512_max_epi32(a, b))
        }
    }
    #[inline(always)]
    unsafe fn greatest_bits(v: __m512) -> f32 {
        unsafe {
            let v = _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fff_ffff));
            f32::from_bits(_mm512_reduce_max_epi32(v) as u32)
        }
    }
    #[inline(always)]
    unsafe fn times_power(y: __m512, shifted: __m512) -> __m512 {
        unsafe { _mm512_scalef_ps(y, _mm512_sub_ps(shifted, _mm512_set1_ps(12_582_912.0))) }
    }
    #[inline(always)]
    unsafe fn fetch(at: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
    #[inline(always)]
    unsafe fn halves(from: *const u16) -> __m512 {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn short_floats(from: *const u16) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn nibbles(from: *const u8) -> [__m512; 2] {
        unsafe {
            // The permutation looks at the low four bits of an index only.
            let codes = _mm512_loadu_ps(const { &NIBBLES }.as_ptr());
            let low = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()));
            let high = _mm512_srli_epi32::<4>(low);
            [_mm512_permutexvar_ps(low, codes), _mm512_permutexvar_ps(high, codes)]
        }
    }
    #[inline(always)]
    unsafe fn bytes(from: *const i8) -> __m512i {
        unsafe { _mm512_cvtepi8_epi16(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn store_int(v: __m512i, to: *mut i16) {
        unsafe { _mm512_storeu_si512(to.cast(), v) }
    }
    #[inline(always)]
    unsafe fn zero() -> __m512i {
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn load_int(from: *const i16) -> __m512i {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn splat_pair(from: *const i16) -> __m512i {
        unsafe { _mm512_set1_epi32(from.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn dot(sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_dpwssd_epi32(sum, a, b) }
    }
    #[inline(always)]
    unsafe fn to_float(v: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(v) }
    }
    #[inline(always)]
    unsafe fn store_codes(v: __m512, to: *mut i16) {
        unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(v))) }
    }

    #[inline(always)]
    unsafe fn scores<const INT8: bool, const STORED: bool>(
        vectors: usize,
        rows: usize,
        t: &ScoreTile,
    ) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
        unsafe fn run<const INT8: bool, const STORED: bool, const N: usize, const R: usize>(
            t: &ScoreTile,
        ) {
            unsafe { blocked::scores::<Avx512, INT8, STORED, N, R>(t) }
        }
        unsafe { super::vector::by_shape!(vectors, rows, run, t, [1 2 3 4], [1 2 3 4 5 6]) }
    }
    #[inline(always)]
    unsafe fn values<const INT8: bool, const STORED: bool>(
        vectors: usize,
        rows: usize,
        t: &ValueTile,
    ) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
        unsafe fn run<const INT8: bool, const STORED: bool, const N: usize, const R: usize>(
            t: &ValueTile,
        ) {
            unsafe { blocked::values::<Avx512, INT8, STORED, N, R>(t) }
        }
        unsafe { super::vector::by_shape!(vectors, rows, run, t, [1 2 3 4], [1 2 3 4 5 6]) }
    }
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn load_queries(job: &AttendJob<'_>, item: &Item, scratch: &mut Scratch) {
        blocked::load_queries(job, item, scratch);
    }
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn split(job: &AttendJob<'_>, item: &Item, range: Range<usize>, scratch: &mut Scratch) {
        unsafe {
            match job.kind() {
                Kind::Numbers => blocked::split::<Avx512, false, false>(job, item, range, scratch),
                Kind::KeyCodes => blocked::split::<Avx512, true, false>(job, item, range, scratch),
                Kind::Codes => blocked::split::<Avx512, true, true>(job, item, range, scratch),
            }
        }
    }
}
