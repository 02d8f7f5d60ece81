//! The vectors of attention with AVX2: 16 lanes are two 256-bit registers.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use super::scalar::QUICK_LEAST;
use super::sums::{Bytes, Numbers, Shorts, Sums};
use super::vector::{ScoreTile, ValueTile, Vector, by_shape};
use super::{AttendJob, Item, Kind, Scratch, blocked};

/// AVX2 and FMA, and VNNI on 256 bits.
pub(super) struct Avx2<const VNNI: bool>;

/// Does the same to both halves.
macro_rules! both {
    ($i:ident => $body:expr) => {
        [
            {
                let $i = 0;
                $body
            },
            {
                let $i = 1;
                $body
            },
        ]
    };
}

/// Lane r: the 16 numbers of row r of 16, eight meeting eight, then four four, two two, one one.
///
/// # Safety
/// As [`Vector`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn fold_rows(rows: *const f32, meet: impl Fn(__m256, __m256) -> __m256) -> [__m256; 2] {
    // SAFETY: by contract.
    unsafe {
        // Halves of a row; halves of two of them, i and i + 4; then pairs and single numbers inside halves.
        let whole = |row: usize| {
            let row = rows.add(row * 16);
            meet(_mm256_loadu_ps(row), _mm256_loadu_ps(row.add(8)))
        };
        let halves = |row: usize| {
            let [a, b] = [whole(row), whole(row + 4)];
            meet(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b))
        };
        let pairs = |row: usize| {
            let [a, b] = [halves(row), halves(row + 1)].map(|half| _mm256_castps_pd(half));
            meet(
                _mm256_castpd_ps(_mm256_unpacklo_pd(a, b)),
                _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)),
            )
        };
        both!(i => {
            let [a, b] = [pairs(8 * i), pairs(8 * i + 2)];
            meet(_mm256_shuffle_ps::<0x88>(a, b), _mm256_shuffle_ps::<0xdd>(a, b))
        })
    }
}

// SAFETY (every block below): the contract of `Vector`: the instruction set is available and
// the pointers cover what is read or written.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const VNNI: bool> Vector for Avx2<VNNI> {
    type Float = [__m256; 2];
    type Int = [__m256i; 2];

    // 12 sums of the 16 registers, a key and a splat. Two vectors take four registers for keys, and
    // with three rows one sum goes through memory: its chain takes 12 cycles a step and not 6. Few
    // rows have too few chains otherwise.
    const ROWS: usize = 6;
    const FULL: (usize, usize) = (2, 3);

    #[inline(always)]
    fn vectors(rows: usize, stored: bool) -> usize {
        if rows <= 2 || rows == 3 && stored { 2 } else { 1 }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> [__m256; 2] {
        unsafe { both!(i => _mm256_loadu_ps(from.add(8 * i))) }
    }
    #[inline(always)]
    unsafe fn store(v: [__m256; 2], to: *mut f32) {
        unsafe {
            _mm256_storeu_ps(to, v[0]);
            _mm256_storeu_ps(to.add(8), v[1]);
        }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> [__m256; 2] {
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    unsafe fn add(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        unsafe { both!(i => _mm256_add_ps(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn sub(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        unsafe { both!(i => _mm256_sub_ps(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn mul(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        unsafe { both!(i => _mm256_mul_ps(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn fma(a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        unsafe { both!(i => _mm256_fmadd_ps(a[i], b[i], c[i])) }
    }
    #[inline(always)]
    unsafe fn max(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        unsafe { both!(i => _mm256_max_ps(a[i], b[i])) }
    }
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn greatest_of(rows: *const f32) -> [__m256; 2] {
        unsafe { fold_rows(rows, |a, b| _mm256_max_ps(a, b)) }
    }
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn sum_of(rows: *const f32) -> [__m256; 2] {
        unsafe { fold_rows(rows, |a, b| _mm256_add_ps(a, b)) }
    }
    #[inline(always)]
    unsafe fn times_power(y: [__m256; 2], shifted: [__m256; 2]) -> [__m256; 2] {
        unsafe {
            // In two factors, so that n may be −151; only the last product can round. n is in the lowest
            // bits of `shifted`, the others are shifted out.
            let bias = _mm256_set1_epi32((127 + 64) << 23);
            let rest = _mm256_castsi256_ps(_mm256_set1_epi32((127 - 64) << 23));
            both!(i => {
                let n = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted[i]));
                let first = _mm256_castsi256_ps(_mm256_add_epi32(n, bias));
                _mm256_mul_ps(_mm256_mul_ps(y[i], first), rest)
            })
        }
    }
    #[inline(always)]
    unsafe fn fetch(at: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
    #[inline(always)]
    unsafe fn halves(from: *const u16) -> [__m256; 2] {
        unsafe {
            both!(i => {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(8 * i).cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            })
        }
    }
    #[inline(always)]
    unsafe fn halves_apart(from: *const u16) -> [__m256; 2] {
        unsafe {
            // Those in the low halves of words, and those in the high halves.
            let pairs = _mm256_loadu_si256(from.cast());
            let high = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            let low = _mm256_slli_epi32::<16>(pairs);
            [_mm256_castsi256_ps(low), _mm256_castsi256_ps(_mm256_and_si256(pairs, high))]
        }
    }
    #[inline(always)]
    unsafe fn in_order([low, high]: [__m256; 2]) -> [__m256; 2] {
        unsafe {
            let first = _mm256_unpacklo_ps(low, high);
            let last = _mm256_unpackhi_ps(low, high);
            [
                _mm256_permute2f128_ps::<0x20>(first, last),
                _mm256_permute2f128_ps::<0x31>(first, last),
            ]
        }
    }
    #[inline(always)]
    unsafe fn quick_power(y: [__m256; 2], shifted: [__m256; 2], x: [__m256; 2]) -> [__m256; 2] {
        unsafe {
            both!(i => {
                let counts = _mm256_cmp_ps::<_CMP_NLT_UQ>(x[i], _mm256_set1_ps(QUICK_LEAST));
                let n = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted[i]));
                let power = _mm256_add_epi32(_mm256_castps_si256(y[i]), n);
                _mm256_and_ps(_mm256_castsi256_ps(power), counts)
            })
        }
    }
    #[inline(always)]
    unsafe fn short(p: [__m256; 2]) -> [__m256; 2] {
        unsafe {
            let (half, high) =
                (_mm256_set1_epi32(0x8000), _mm256_set1_epi32(0xffff_0000_u32 as i32));
            both!(i => {
                let up = _mm256_add_epi32(_mm256_castps_si256(p[i]), half);
                _mm256_castsi256_ps(_mm256_and_si256(up, high))
            })
        }
    }
    #[inline(always)]
    unsafe fn short_floats(from: *const u16) -> [__m256; 2] {
        unsafe { both!(i => _mm256_cvtph_ps(_mm_loadu_si128(from.add(8 * i).cast()))) }
    }
    #[inline(always)]
    unsafe fn nibbles(from: *const u8) -> [[__m256; 2]; 2] {
        unsafe {
            let bytes = both!(i => _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.add(8 * i).cast())));
            let number = |q: __m256i| {
                let q = _mm256_sub_epi32(_mm256_add_epi32(q, q), _mm256_set1_epi32(15));
                _mm256_cvtepi32_ps(q)
            };
            [
                both!(i => number(_mm256_and_si256(bytes[i], _mm256_set1_epi32(15)))),
                both!(i => number(_mm256_srli_epi32::<4>(bytes[i]))),
            ]
        }
    }
    #[inline(always)]
    unsafe fn bytes(from: *const i8) -> [__m256i; 2] {
        unsafe { both!(i => _mm256_cvtepi8_epi16(_mm_loadu_si128(from.add(16 * i).cast()))) }
    }
    #[inline(always)]
    unsafe fn store_int(v: [__m256i; 2], to: *mut i16) {
        unsafe {
            _mm256_storeu_si256(to.cast(), v[0]);
            _mm256_storeu_si256(to.add(16).cast(), v[1]);
        }
    }
    #[inline(always)]
    unsafe fn zero() -> [__m256i; 2] {
        unsafe { [_mm256_setzero_si256(); 2] }
    }
    #[inline(always)]
    unsafe fn load_int(from: *const i16) -> [__m256i; 2] {
        unsafe { both!(i => _mm256_loadu_si256(from.add(16 * i).cast())) }
    }
    #[inline(always)]
    unsafe fn splat_pair(from: *const i16) -> [__m256i; 2] {
        unsafe { [_mm256_set1_epi32(from.cast::<i32>().read_unaligned()); 2] }
    }
    // The intrinsic of VNNI is often compiled to the product and the sum.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn dot(mut sum: [__m256i; 2], a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        if !VNNI {
            return both!(i => _mm256_add_epi32(sum[i], _mm256_madd_epi16(a[i], b[i])));
        }
        for i in 0..2 {
            unsafe {
                asm!(
                    "{{vex}} vpdpwssd {sum}, {a}, {b}",
                    sum = inout(ymm_reg) sum[i],
                    a = in(ymm_reg) a[i],
                    b = in(ymm_reg) b[i],
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
        }
        sum
    }
    #[inline(always)]
    unsafe fn to_float(v: [__m256i; 2]) -> [__m256; 2] {
        unsafe { both!(i => _mm256_cvtepi32_ps(v[i])) }
    }
    #[inline(always)]
    unsafe fn store_codes([low, high]: [[__m256; 2]; 2], to: *mut i16) {
        unsafe {
            let codes = both!(i => {
                let high = _mm256_slli_epi32::<16>(_mm256_castps_si256(high[i]));
                _mm256_blend_epi16::<0xaa>(_mm256_castps_si256(low[i]), high)
            });
            Self::store_int(codes, to);
        }
    }

    // Without the features of its caller, so that kernels stay apart from it: its constants would take
    // registers. (With features `inline(never)` says nothing to rustc 1.95.)
    #[inline(never)]
    unsafe fn scores<S: Sums<Self>, const STORED: bool>(
        vectors: usize,
        rows: usize,
        t: &ScoreTile,
    ) {
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn run<V: Vector, S: Sums<V>, const STORED: bool, const N: usize, const R: usize>(
            t: &ScoreTile,
        ) {
            unsafe { blocked::scores::<V, S, STORED, N, R>(t) }
        }
        unsafe { by_shape!(vectors, rows, run, t, [1 2], [1 2 3 4 5 6]) }
    }
    // As `scores`.
    #[inline(never)]
    unsafe fn values<S: Sums<Self>, const STORED: bool>(
        vectors: usize,
        rows: usize,
        t: &ValueTile,
    ) {
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn run<V: Vector, S: Sums<V>, const STORED: bool, const N: usize, const R: usize>(
            t: &ValueTile,
        ) {
            unsafe { blocked::values::<V, S, STORED, N, R>(t) }
        }
        unsafe { by_shape!(vectors, rows, run, t, [1 2], [1 2 3 4 5 6]) }
    }
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load_queries(job: &AttendJob<'_>, item: &Item, keys: Kind, scratch: &mut Scratch) {
        blocked::load_queries(job, item, keys, scratch);
    }
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn split(
        job: &AttendJob<'_>,
        item: &Item,
        range: Range<usize>,
        kinds: (Kind, Kind),
        scratch: &mut Scratch,
    ) {
        use Kind::{Bytes as B, Numbers as N, Shorts as S};
        unsafe {
            match kinds {
                (N, N) => blocked::split::<Self, Numbers, Numbers>(job, item, range, scratch),
                (B, N) => blocked::split::<Self, Bytes, Numbers>(job, item, range, scratch),
                (B, B) => blocked::split::<Self, Bytes, Bytes>(job, item, range, scratch),
                (S, S) => blocked::split::<Self, Shorts, Shorts>(job, item, range, scratch),
                _ => unreachable!("kinds of sums with this instruction set"),
            }
        }
    }
}
