//! The vectors of attention with AVX-512 and its VNNI.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use super::scalar::QUICK_LEAST;
use super::sums::{Bytes, Numbers, Pairs, Shorts, Sums};
use super::vector::{ScoreTile, ValueTile, Vector, by_shape};
use super::{AttendJob, Item, Kind, Scratch, blocked};

/// What 4-bit codes stand for, without their scale.
const NIBBLES: [f32; 16] =
    [-15., -13., -11., -9., -7., -5., -3., -1., 1., 3., 5., 7., 9., 11., 13., 15.];

/// 32 numbers of 16 bits, where a register has them.
#[repr(align(64))]
struct Order([u16; 32]);

/// Numbers of the lower half of a register, and those of the upper half before them in each pair.
static PAIRED: Order = {
    let mut order = [0; 32];
    let mut i = 0;
    while i < 32 {
        order[i] = (i / 2 + i % 2 * 16) as u16;
        i += 1;
    }
    Order(order)
};

/// The high halves of 16 words, each pair of them turned round.
static HIGH_HALVES: Order = {
    let mut order = [0; 32];
    let mut i = 0;
    while i < 16 {
        order[i] = 2 * (i as u16 ^ 1) + 1;
        i += 1;
    }
    Order(order)
};

/// AVX-512 F, BW, DQ, VL and VNNI, and BF16 for sums of pairs.
pub(super) struct Avx512;

/// Lane r: the 16 numbers of row r of 16, eight meeting eight, then four four, two two, one one.
///
/// # Safety
/// As [`Vector`].
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn fold_rows(rows: *const f32, meet: impl Fn(__m512, __m512) -> __m512) -> __m512 {
    // SAFETY: by contract.
    unsafe {
        // Quarters of rows, until a register has one quarter of four rows: in quarter i of row i, i + 4, …
        let halves = |row: usize| {
            let [a, b] = [row, row + 4].map(|row| _mm512_loadu_ps(rows.add(row * 16)));
            meet(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b))
        };
        let quarters = |row: usize| {
            let [a, b] = [halves(row), halves(row + 8)];
            meet(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b))
        };
        // Then pairs and single numbers inside quarters.
        let pairs = |row: usize| {
            let [a, b] =
                [quarters(row), quarters(row + 1)].map(|quarters| _mm512_castps_pd(quarters));
            meet(
                _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)),
            )
        };
        let [a, b] = [pairs(0), pairs(2)];
        meet(_mm512_shuffle_ps::<0x88>(a, b), _mm512_shuffle_ps::<0xdd>(a, b))
    }
}

// SAFETY (every block below): the contract of `Vector`: the instruction set is available and
// the pointers cover what is read or written.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Vector for Avx512 {
    type Float = __m512;
    type Int = __m512i;

    // 24 sums of the 32 registers.
    const ROWS: usize = 6;
    const FULL: (usize, usize) = (0, 0);

    #[inline(always)]
    fn vectors(rows: usize, stored: bool) -> usize {
        match (stored, rows) {
            // Three sums wait for each other, six do not.
            (true, 3) => 2,
            (true, _) => 1,
            (false, _) => 4,
        }
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
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn greatest_of(rows: *const f32) -> __m512 {
        unsafe { fold_rows(rows, |a, b| _mm512_max_ps(a, b)) }
    }
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn sum_of(rows: *const f32) -> __m512 {
        unsafe { fold_rows(rows, |a, b| _mm512_add_ps(a, b)) }
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
    unsafe fn pairs(high: *const u16, low: *const u16) -> __m512i {
        unsafe {
            let (high, low) = (_mm256_loadu_si256(high.cast()), _mm256_loadu_si256(low.cast()));
            let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
            _mm512_permutexvar_epi16(_mm512_load_si512(PAIRED.0.as_ptr().cast()), both)
        }
    }
    #[inline(always)]
    unsafe fn add_pairs(sum: __m512, a: __m512i, b: __m512i) -> __m512 {
        unsafe {
            let pairs = |v| std::mem::transmute::<__m512i, __m512bh>(v);
            _mm512_dpbf16_ps(sum, pairs(a), pairs(b))
        }
    }
    #[inline(always)]
    unsafe fn halves_apart(from: *const u16) -> __m512 {
        unsafe { Self::halves(from) }
    }
    #[inline(always)]
    unsafe fn in_order(v: __m512) -> __m512 {
        v
    }
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn quick_power(y: __m512, shifted: __m512, x: __m512) -> __m512 {
        unsafe {
            let counts = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, _mm512_set1_ps(QUICK_LEAST));
            let n = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted));
            let mut power = y;
            // The intrinsic is compiled to a sum and a move under the mask.
            asm!(
                "vpaddd {y}{{{counts}}}{{z}}, {y}, {n}",
                y = inout(zmm_reg) power,
                counts = in(kreg) counts,
                n = in(zmm_reg) n,
                options(pure, nomem, nostack, preserves_flags)
            );
            power
        }
    }
    #[inline(always)]
    unsafe fn short(p: __m512) -> __m512 {
        unsafe {
            let up = _mm512_add_epi32(_mm512_castps_si512(p), _mm512_set1_epi32(0x8000));
            _mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32(0xffff_0000_u32 as i32)))
        }
    }
    #[inline(always)]
    unsafe fn store_pairs(p: __m512, to: *mut i16) {
        unsafe {
            let order = _mm512_load_si512(HIGH_HALVES.0.as_ptr().cast());
            let pairs = _mm512_permutexvar_epi16(order, _mm512_castps_si512(p));
            _mm256_storeu_si256(to.cast(), _mm512_castsi512_si256(pairs));
        }
    }
    #[inline(always)]
    unsafe fn and(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(a, b) }
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
    // The intrinsic is often compiled to a product and a sum, at half the rate.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    unsafe fn dot(mut sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
        unsafe {
            asm!(
                "vpdpwssd {sum}, {a}, {b}",
                sum = inout(zmm_reg) sum,
                a = in(zmm_reg) a,
                b = in(zmm_reg) b,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        sum
    }
    #[inline(always)]
    unsafe fn to_float(v: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(v) }
    }
    #[inline(always)]
    unsafe fn store_codes(codes: [__m512; 2], to: *mut i16) {
        unsafe {
            let [low, high] = codes.map(|v| _mm512_castps_si512(v));
            let high = _mm512_slli_epi32::<16>(high);
            _mm512_storeu_si512(to.cast(), _mm512_mask_blend_epi16(0xaaaa_aaaa, low, high));
        }
    }

    #[inline(always)]
    unsafe fn scores<S: Sums<Self>, const STORED: bool>(
        vectors: usize,
        rows: usize,
        t: &ScoreTile,
    ) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
        unsafe fn run<V: Vector, S: Sums<V>, const STORED: bool, const N: usize, const R: usize>(
            t: &ScoreTile,
        ) {
            unsafe { blocked::scores::<V, S, STORED, N, R>(t) }
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,fma")]
        unsafe fn pairs<
            V: Vector,
            S: Sums<V>,
            const STORED: bool,
            const N: usize,
            const R: usize,
        >(
            t: &ScoreTile,
        ) {
            unsafe { blocked::scores::<V, S, STORED, N, R>(t) }
        }
        unsafe {
            if S::TWO_ROWS {
                by_shape!(vectors, rows, pairs, t, [1 2 3 4], [1 2 3 4 5 6]);
            } else {
                by_shape!(vectors, rows, run, t, [1 2 3 4], [1 2 3 4 5 6]);
            }
        }
    }
    #[inline(always)]
    unsafe fn values<S: Sums<Self>, const STORED: bool>(
        vectors: usize,
        rows: usize,
        t: &ValueTile,
    ) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
        unsafe fn run<V: Vector, S: Sums<V>, const STORED: bool, const N: usize, const R: usize>(
            t: &ValueTile,
        ) {
            unsafe { blocked::values::<V, S, STORED, N, R>(t) }
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,fma")]
        unsafe fn pairs<
            V: Vector,
            S: Sums<V>,
            const STORED: bool,
            const N: usize,
            const R: usize,
        >(
            t: &ValueTile,
        ) {
            unsafe { blocked::values::<V, S, STORED, N, R>(t) }
        }
        unsafe {
            if S::TWO_ROWS {
                by_shape!(vectors, rows, pairs, t, [1 2 3 4], [1 2 3 4 5 6]);
            } else {
                by_shape!(vectors, rows, run, t, [1 2 3 4], [1 2 3 4 5 6]);
            }
        }
    }
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn load_queries(job: &AttendJob<'_>, item: &Item, keys: Kind, scratch: &mut Scratch) {
        blocked::load_queries(job, item, keys, scratch);
    }
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn split(
        job: &AttendJob<'_>,
        item: &Item,
        range: Range<usize>,
        kinds: (Kind, Kind),
        scratch: &mut Scratch,
    ) {
        use Kind::{Bytes as B, Numbers as N, Pairs as P, Shorts as S};
        unsafe {
            match kinds {
                (N, N) => blocked::split::<Self, Numbers, Numbers>(job, item, range, scratch),
                (B, N) => blocked::split::<Self, Bytes, Numbers>(job, item, range, scratch),
                (B, B) => blocked::split::<Self, Bytes, Bytes>(job, item, range, scratch),
                (S, S) => blocked::split::<Self, Shorts, Shorts>(job, item, range, scratch),
                (P, P) => blocked::split::<Self, Pairs, Pairs>(job, item, range, scratch),
                _ => unreachable!("kinds of sums with this instruction set"),
            }
        }
    }
}
