//! 16 lanes with AVX2: two 256-bit registers.

use std::arch::asm;
use std::arch::x86_64::*;

use tokenmill_quant::float::{BF16_LEAST, E4M3_UNIT};

use super::Vector;
use crate::isa::Isa;
use crate::math::QUICK_LEAST;

/// AVX2, FMA and F16C; `VNNI` also has the 256-bit VNNI instructions.
pub(crate) struct Avx2<const VNNI: bool>;

/// Does the same to both halves of a vector.
macro_rules! both {
    ($v:ident => $body:expr) => {
        [
            {
                let $v = $v[0];
                $body
            },
            {
                let $v = $v[1];
                $body
            },
        ]
    };
}

/// Puts together the two halves, numbered by a constant.
macro_rules! halves_of {
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
        halves_of!(i => {
            let [a, b] = [pairs(8 * i), pairs(8 * i + 2)];
            meet(_mm256_shuffle_ps::<0x88>(a, b), _mm256_shuffle_ps::<0xdd>(a, b))
        })
    }
}

// SAFETY (every block below): the contract of `Vector`: the instruction set is available and
// the pointers cover what is read or written.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const VNNI: bool> Vector for Avx2<VNNI> {
    type Int = [__m256i; 2];
    type Float = [__m256; 2];
    type Same = __m256i;

    const ISA: Isa = if VNNI { Isa::AvxVnni } else { Isa::Avx2 };
    const E4M3_UNIT: f32 = E4M3_UNIT;

    #[inline(always)]
    unsafe fn same(bits: i32) -> __m256i {
        unsafe { _mm256_set1_epi32(bits) }
    }
    #[inline(always)]
    unsafe fn same_at(from: *const i32) -> __m256i {
        unsafe { _mm256_set1_epi32(from.read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn int(same: __m256i) -> [__m256i; 2] {
        [same, same]
    }
    #[inline(always)]
    unsafe fn float(same: __m256i) -> [__m256; 2] {
        unsafe { [_mm256_castsi256_ps(same), _mm256_castsi256_ps(same)] }
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> [__m256i; 2] {
        unsafe { halves_of!(i => _mm256_loadu_si256(from.add(32 * i).cast())) }
    }
    #[inline(always)]
    unsafe fn store(v: [__m256i; 2], to: *mut u8) {
        unsafe {
            _mm256_storeu_si256(to.cast(), v[0]);
            _mm256_storeu_si256(to.add(32).cast(), v[1]);
        }
    }
    #[inline(always)]
    unsafe fn left<const BITS: u32>(v: [__m256i; 2]) -> [__m256i; 2] {
        unsafe { both!(v => _mm256_sll_epi16(v, _mm_cvtsi32_si128(BITS as i32))) }
    }
    #[inline(always)]
    unsafe fn right<const BITS: u32>(v: [__m256i; 2]) -> [__m256i; 2] {
        unsafe { both!(v => _mm256_srl_epi16(v, _mm_cvtsi32_si128(BITS as i32))) }
    }
    #[inline(always)]
    unsafe fn left_by(v: [__m256i; 2], bits: u32) -> [__m256i; 2] {
        unsafe { both!(v => _mm256_sll_epi16(v, _mm_cvtsi32_si128(bits as i32))) }
    }
    #[inline(always)]
    unsafe fn right_by(v: [__m256i; 2], bits: u32) -> [__m256i; 2] {
        unsafe { both!(v => _mm256_srl_epi16(v, _mm_cvtsi32_si128(bits as i32))) }
    }
    #[inline(always)]
    unsafe fn right32<const BITS: i32>(v: [__m256i; 2]) -> [__m256i; 2] {
        unsafe { both!(v => _mm256_srli_epi32::<BITS>(v)) }
    }
    #[inline(always)]
    unsafe fn words_at<const EACH: usize>(
        table: &[u32],
        bytes: *const u8,
        which: [__m256i; 2],
    ) -> [__m256i; 2] {
        unsafe {
            // Loads one by one: the instruction for it takes twice as long on AMD's processors, as do indices that
            // come out of a register.
            let at = |row: usize| table.as_ptr().add(EACH * usize::from(*bytes.add(row)));
            match EACH {
                1 => halves_of!(i => {
                    let word = |row: usize| *at(8 * i + row) as i32;
                    let (low, high) = ([word(0), word(1), word(2), word(3)], [word(4), word(5), word(6), word(7)]);
                    _mm256_setr_epi32(low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3])
                }),
                2 => halves_of!(i => {
                    let pair = |row: usize| at(8 * i + row).cast::<i64>().read_unaligned();
                    let a = _mm256_castsi256_ps(_mm256_setr_epi64x(pair(0), pair(1), pair(4), pair(5)));
                    let b = _mm256_castsi256_ps(_mm256_setr_epi64x(pair(2), pair(3), pair(6), pair(7)));
                    let (first, second) = (_mm256_shuffle_ps::<0x88>(a, b), _mm256_shuffle_ps::<0xdd>(a, b));
                    let second_of = _mm256_castsi256_ps(_mm256_slli_epi32::<31>(which[i]));
                    _mm256_castps_si256(_mm256_blendv_ps(first, second, second_of))
                }),
                _ => halves_of!(i => {
                    let four = |row: usize| _mm_loadu_si128(at(8 * i + row).cast());
                    let rows = |r: usize| _mm256_castsi256_ps(_mm256_set_m128i(four(r + 4), four(r)));
                    // Words 0, 1 and words 2, 3 of each row, those with an odd number chosen by the lower bit.
                    let lower = _mm256_castsi256_ps(_mm256_slli_epi32::<31>(which[i]));
                    let upper = _mm256_castsi256_ps(_mm256_slli_epi32::<30>(which[i]));
                    let (a, b, c, d) = (rows(0), rows(1), rows(2), rows(3));
                    let (ab, cd) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
                    let (first, second) = (_mm256_shuffle_ps::<0x44>(ab, cd), _mm256_shuffle_ps::<0xee>(ab, cd));
                    let low = _mm256_blendv_ps(first, second, lower);
                    let (ab, cd) = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
                    let (first, second) = (_mm256_shuffle_ps::<0x44>(ab, cd), _mm256_shuffle_ps::<0xee>(ab, cd));
                    let high = _mm256_blendv_ps(first, second, lower);
                    _mm256_castps_si256(_mm256_blendv_ps(low, high, upper))
                }),
            }
        }
    }
    #[inline(always)]
    unsafe fn words_of<const BITS: u32>(
        table: &[u32; 4096],
        bytes: *const u8,
        halves: *const u8,
        run: usize,
    ) -> [__m256i; 2] {
        unsafe {
            let word = |row: usize| {
                let half = u32::from(halves.cast::<u16>().add(row).read_unaligned());
                let upper = half >> (BITS * run as u32);
                let upper = if BITS == 4 { upper & 15 } else { upper & 7 | half >> 12 & 8 };
                *table.get_unchecked(usize::from(*bytes.add(row)) | (upper as usize) << 8) as i32
            };
            halves_of!(i => {
                let w = |row: usize| word(8 * i + row);
                _mm256_setr_epi32(w(0), w(1), w(2), w(3), w(4), w(5), w(6), w(7))
            })
        }
    }
    #[inline(always)]
    unsafe fn even_signs(v: [__m256i; 2]) -> [__m256i; 2] {
        unsafe {
            both!(v => {
                let v = _mm256_and_si256(v, _mm256_set1_epi32(0x0fff_ffff));
                let odd = _mm256_xor_si256(v, _mm256_srli_epi32::<16>(v));
                let odd = _mm256_xor_si256(odd, _mm256_srli_epi32::<8>(odd));
                let odd = _mm256_xor_si256(odd, _mm256_slli_epi32::<4>(odd));
                let top = _mm256_set1_epi32(0xf000_0000_u32 as i32);
                _mm256_or_si256(v, _mm256_and_si256(_mm256_slli_epi32::<24>(odd), top))
            })
        }
    }
    #[inline(always)]
    unsafe fn mask(v: [__m256i; 2], mask: i8) -> [__m256i; 2] {
        unsafe { both!(v => _mm256_and_si256(v, _mm256_set1_epi8(mask))) }
    }
    #[inline(always)]
    unsafe fn with_bits(v: [__m256i; 2], bits: [__m256i; 2], mask: i8) -> [__m256i; 2] {
        unsafe {
            let bits = both!(bits => _mm256_and_si256(bits, _mm256_set1_epi8(mask)));
            halves_of!(i => _mm256_or_si256(v[i], bits[i]))
        }
    }
    #[inline(always)]
    unsafe fn look_up(v: [__m256i; 2], table: &[u8; 16]) -> [__m256i; 2] {
        unsafe {
            let table = self::table(table);
            both!(v => _mm256_shuffle_epi8(table, v))
        }
    }
    #[inline(always)]
    unsafe fn dot_bytes(sum: [__m256i; 2], codes: [__m256i; 2], bytes: __m256i) -> [__m256i; 2] {
        unsafe {
            assert!(VNNI, "tiles of its own");
            halves_of!(i => dot_vnni(sum[i], codes[i], bytes))
        }
    }
    #[inline(always)]
    unsafe fn byte_sums(v: [__m256i; 2]) -> [__m256i; 2] {
        unsafe { both!(v => _mm256_maddubs_epi16(v, _mm256_set1_epi8(1))) }
    }
    #[inline(always)]
    unsafe fn short_halves(v: [__m256i; 2]) -> [__m256i; 2] {
        unsafe {
            // Powers of two by the two bits below the sign and three that do not count; the high byte names none.
            let powers = _mm256_set1_epi32(0x0201_0804);
            both!(v => {
                let bits = _mm256_and_si256(_mm256_srli_epi16::<10>(v), _mm256_set1_epi16(3));
                let power = _mm256_shuffle_epi8(powers, _mm256_or_si256(bits, _mm256_set1_epi16(i16::MIN)));
                let size = _mm256_and_si256(v, _mm256_set1_epi16(0x3ff));
                let size = _mm256_xor_si256(size, _mm256_set1_epi16(0x760));
                let sign = _mm256_or_si256(v, _mm256_set1_epi16(1));
                _mm256_sign_epi16(_mm256_mullo_epi16(size, power), sign)
            })
        }
    }
    #[inline(always)]
    unsafe fn not_below(a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        unsafe { halves_of!(i => _mm256_cmpeq_epi16(_mm256_max_epu16(a[i], b[i]), a[i])) }
    }
    #[inline(always)]
    unsafe fn taken_apart(v: [__m256i; 2]) -> [[__m256i; 2]; 3] {
        unsafe {
            let v = both!(v => _mm256_xor_si256(v, _mm256_set1_epi8(-128)));
            let magnitudes = both!(v => _mm256_abs_epi8(v));
            let signs = both!(v => _mm256_cmpgt_epi8(_mm256_setzero_si256(), v));
            let sums = halves_of!(i => _mm256_maddubs_epi16(magnitudes[i], signs[i]));
            [magnitudes, signs, sums]
        }
    }
    #[inline(always)]
    unsafe fn times_low(v: [__m256i; 2], same: __m256i) -> [__m256i; 2] {
        unsafe { both!(v => _mm256_mullo_epi16(v, same)) }
    }
    #[inline(always)]
    unsafe fn times_high(v: [__m256i; 2], same: __m256i) -> [__m256i; 2] {
        unsafe { both!(v => _mm256_mulhi_epu16(v, same)) }
    }
    #[inline(always)]
    unsafe fn plus16(a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        unsafe { halves_of!(i => _mm256_add_epi16(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn plus32(a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        unsafe { halves_of!(i => _mm256_add_epi32(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn middle(a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        [a[1], b[0]]
    }
    #[inline(always)]
    unsafe fn rotate_high(v: [__m256i; 2]) -> [__m256i; 2] {
        unsafe {
            let from = _mm256_setr_epi32(7, 0, 1, 2, 3, 4, 5, 6);
            [v[0], _mm256_permutevar8x32_epi32(v[1], from)]
        }
    }
    #[inline(always)]
    unsafe fn as_float(v: [__m256i; 2]) -> [__m256; 2] {
        unsafe { both!(v => _mm256_castsi256_ps(v)) }
    }
    #[inline(always)]
    unsafe fn byte<const J: u32>(v: [__m256i; 2]) -> [__m256; 2] {
        unsafe {
            both!(v => {
                let shifted = _mm256_srl_epi32(v, _mm_cvtsi32_si128(8 * J as i32));
                _mm256_cvtepi32_ps(_mm256_and_si256(shifted, _mm256_set1_epi32(255)))
            })
        }
    }
    #[inline(always)]
    unsafe fn e4m3(v: [__m256i; 2], j: u32) -> [__m256; 2] {
        unsafe {
            // The upper half of an f32: sign, then 4 bits of exponent and 3 of significand where the
            // lowest are; those of a subnormal are subnormal. Two columns at once.
            both!(v => {
                let top = if j % 2 == 1 { v } else { _mm256_slli_epi16::<8>(v) };
                let bits = _mm256_set1_epi16(0x87f0_u16 as i16);
                let pair = _mm256_and_si256(_mm256_srai_epi16::<4>(top), bits);
                _mm256_castsi256_ps(match j {
                    0 | 1 => _mm256_slli_epi32::<16>(pair),
                    _ => _mm256_and_si256(pair, _mm256_set1_epi32(-65536)),
                })
            })
        }
    }
    #[inline(always)]
    unsafe fn entries(v: [__m256i; 2], from: u32, table: &[f32; 16]) -> [__m256; 2] {
        unsafe {
            let [low, high] = Self::floats(table.as_ptr());
            both!(v => {
                let index = _mm256_srl_epi32(v, _mm_cvtsi32_si128(from as i32));
                let upper = _mm256_sll_epi32(v, _mm_cvtsi32_si128(28 - from as i32));
                let from_low = _mm256_permutevar8x32_ps(low, index);
                let from_high = _mm256_permutevar8x32_ps(high, index);
                _mm256_blendv_ps(from_low, from_high, _mm256_castsi256_ps(upper))
            })
        }
    }
    #[inline(always)]
    unsafe fn unsigned(from: *const u8) -> [__m256; 2] {
        unsafe {
            halves_of!(i => {
                let bytes = _mm_loadl_epi64(from.add(8 * i).cast());
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes))
            })
        }
    }
    #[inline(always)]
    unsafe fn lanes(from: *const u8) -> [__m256i; 2] {
        unsafe { halves_of!(i => _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.add(8 * i).cast()))) }
    }
    #[inline(always)]
    unsafe fn halves(from: *const u8) -> [__m256i; 2] {
        unsafe { halves_of!(i => _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(16 * i).cast()))) }
    }
    #[inline(always)]
    unsafe fn fours(from: *const u8) -> [__m256i; 2] {
        unsafe {
            let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()));
            [_mm256_and_si256(bytes, _mm256_set1_epi32(15)), _mm256_srli_epi32::<4>(bytes)]
        }
    }
    #[inline(always)]
    unsafe fn signed(from: *const u8) -> [__m256; 2] {
        unsafe {
            halves_of!(i => {
                let bytes = _mm_loadl_epi64(from.add(8 * i).cast());
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))
            })
        }
    }
    #[inline(always)]
    unsafe fn powers(from: *const u8) -> [__m256; 2] {
        unsafe {
            halves_of!(i => {
                let e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.add(8 * i).cast()));
                let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, _mm256_set1_epi32(1)));
                let small = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), e);
                let is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
                _mm256_castsi256_ps(_mm256_blendv_epi8(normal, small, is_small))
            })
        }
    }
    #[inline(always)]
    unsafe fn f16s(from: *const u8) -> [__m256; 2] {
        unsafe { halves_of!(i => _mm256_cvtph_ps(_mm_loadu_si128(from.add(16 * i).cast()))) }
    }
    #[inline(always)]
    unsafe fn floats(from: *const f32) -> [__m256; 2] {
        unsafe { halves_of!(i => _mm256_loadu_ps(from.add(8 * i))) }
    }
    #[inline(always)]
    unsafe fn store_floats(v: [__m256; 2], to: *mut f32) {
        unsafe {
            _mm256_storeu_ps(to, v[0]);
            _mm256_storeu_ps(to.add(8), v[1]);
        }
    }
    #[inline(always)]
    unsafe fn first_floats(from: *const f32, rows: usize) -> [__m256; 2] {
        unsafe {
            if rows == 16 {
                return Self::floats(from);
            }
            let mut all = [0.0; 16];
            std::ptr::copy_nonoverlapping(from, all.as_mut_ptr(), rows);
            Self::floats(all.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store_first(v: [__m256; 2], to: *mut f32, rows: usize) {
        unsafe {
            if rows == 16 {
                return Self::store_floats(v, to);
            }
            let mut all = [0.0; 16];
            Self::store_floats(v, all.as_mut_ptr());
            std::ptr::copy_nonoverlapping(all.as_ptr(), to, rows);
        }
    }
    #[inline(always)]
    unsafe fn bf16_pair(from: *const u8) -> [[__m256; 2]; 2] {
        unsafe {
            let pair = Self::load(from);
            let low = both!(pair => _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pair)));
            let mask = _mm256_set1_epi32(-65536);
            [both!(pair => _mm256_castsi256_ps(_mm256_and_si256(pair, mask))), low]
        }
    }
    #[inline(always)]
    unsafe fn to_bf16(v: [__m256; 2]) -> [__m256; 2] {
        unsafe {
            both!(v => {
                let bits = _mm256_castps_si256(v);
                let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
                let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
                let number = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_ORD_Q>(v, v));
                let rounded = _mm256_add_epi32(bits, _mm256_and_si256(half, number));
                let rounded = _mm256_and_si256(rounded, _mm256_set1_epi32(-65536));
                let size = _mm256_and_si256(rounded, _mm256_set1_epi32(i32::MAX));
                let below = _mm256_set1_epi32((i32::from(BF16_LEAST) << 16) - 1);
                _mm256_castsi256_ps(_mm256_and_si256(rounded, _mm256_cmpgt_epi32(size, below)))
            })
        }
    }
    #[inline(always)]
    unsafe fn mul(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        unsafe { halves_of!(i => _mm256_mul_ps(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn add(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        unsafe { halves_of!(i => _mm256_add_ps(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn sub(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        unsafe { halves_of!(i => _mm256_sub_ps(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn fma(a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        unsafe { halves_of!(i => _mm256_fmadd_ps(a[i], b[i], c[i])) }
    }
    #[inline(always)]
    unsafe fn fma_same(a: [__m256; 2], same: __m256i, c: [__m256; 2]) -> [__m256; 2] {
        unsafe { halves_of!(i => _mm256_fmadd_ps(a[i], _mm256_castsi256_ps(same), c[i])) }
    }

    // Of attention.

    #[inline(always)]
    unsafe fn splat(x: f32) -> [__m256; 2] {
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    unsafe fn max(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        unsafe { halves_of!(i => _mm256_max_ps(a[i], b[i])) }
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
            halves_of!(i => {
                let n = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted[i]));
                let first = _mm256_castsi256_ps(_mm256_add_epi32(n, bias));
                _mm256_mul_ps(_mm256_mul_ps(y[i], first), rest)
            })
        }
    }
    #[inline(always)]
    unsafe fn bf16s(from: *const u16) -> [__m256; 2] {
        unsafe {
            halves_of!(i => {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(8 * i).cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            })
        }
    }
    #[inline(always)]
    unsafe fn bf16s_apart(from: *const u16) -> [__m256; 2] {
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
            halves_of!(i => {
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
            halves_of!(i => {
                let up = _mm256_add_epi32(_mm256_castps_si256(p[i]), half);
                _mm256_castsi256_ps(_mm256_and_si256(up, high))
            })
        }
    }
    #[inline(always)]
    unsafe fn nibbles(from: *const u8) -> [[__m256; 2]; 2] {
        unsafe {
            let bytes =
                halves_of!(i => _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.add(8 * i).cast())));
            let number = |q: __m256i| {
                let q = _mm256_sub_epi32(_mm256_add_epi32(q, q), _mm256_set1_epi32(15));
                _mm256_cvtepi32_ps(q)
            };
            [
                halves_of!(i => number(_mm256_and_si256(bytes[i], _mm256_set1_epi32(15)))),
                halves_of!(i => number(_mm256_srli_epi32::<4>(bytes[i]))),
            ]
        }
    }
    #[inline(always)]
    unsafe fn bytes(from: *const i8) -> [__m256i; 2] {
        unsafe { halves_of!(i => _mm256_cvtepi8_epi16(_mm_loadu_si128(from.add(16 * i).cast()))) }
    }
    #[inline(always)]
    unsafe fn pairs(high: *const u16, low: *const u16) -> [__m256i; 2] {
        unsafe {
            halves_of!(i => {
                let [high, low] = [high, low]
                    .map(|from| _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(8 * i).cast())));
                _mm256_or_si256(_mm256_slli_epi32::<16>(high), low)
            })
        }
    }
    #[inline(always)]
    unsafe fn byte_pairs(high: *const i8, low: *const i8) -> [__m256i; 2] {
        unsafe {
            let (high, low) = (_mm_loadu_si128(high.cast()), _mm_loadu_si128(low.cast()));
            [
                _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(low, high)),
                _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(low, high)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn transpose(from: *const u8, stride: usize, to: *mut u8) {
        unsafe { transpose(from, stride, to) }
    }
    // The intrinsic of VNNI is often compiled to the product and the sum.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn dot_shorts(mut sum: [__m256i; 2], a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        if !VNNI {
            return halves_of!(i => _mm256_add_epi32(sum[i], _mm256_madd_epi16(a[i], b[i])));
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
        unsafe { halves_of!(i => _mm256_cvtepi32_ps(v[i])) }
    }
    #[inline(always)]
    unsafe fn store_codes([low, high]: [[__m256; 2]; 2], to: *mut i16) {
        unsafe {
            let codes = halves_of!(i => {
                let high = _mm256_slli_epi32::<16>(_mm256_castps_si256(high[i]));
                _mm256_blend_epi16::<0xaa>(_mm256_castps_si256(low[i]), high)
            });
            Self::store(codes, to.cast());
        }
    }
}

/// [`Vector::transpose`]: four squares of eight rows and words.
///
/// # Safety
/// As [`Vector`].
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn transpose(from: *const u8, stride: usize, to: *mut u8) {
    for (rows, words) in [(0, 0), (0, 8), (8, 0), (8, 8)] {
        // SAFETY: eight words of eight rows, and of eight vectors, by contract.
        unsafe {
            let row = |r: usize| _mm256_loadu_ps(from.add((rows + r) * stride + words * 4).cast());
            // Pairs of rows, then four of them, in each half; then both halves.
            let two = |r: usize| {
                let (a, b) = (row(r), row(r + 1));
                let low = _mm256_castps_pd(_mm256_unpacklo_ps(a, b));
                (low, _mm256_castps_pd(_mm256_unpackhi_ps(a, b)))
            };
            let four = |r: usize| {
                let ((a, c), (b, d)) = (two(r), two(r + 2));
                [
                    _mm256_castpd_ps(_mm256_unpacklo_pd(a, b)),
                    _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)),
                    _mm256_castpd_ps(_mm256_unpacklo_pd(c, d)),
                    _mm256_castpd_ps(_mm256_unpackhi_pd(c, d)),
                ]
            };
            let (low, high) = (four(0), four(4));
            for (i, (low, high)) in low.into_iter().zip(high).enumerate() {
                let at = to.add((words + i) * 64 + rows * 4).cast::<f32>();
                _mm256_storeu_ps(at, _mm256_permute2f128_ps::<0x20>(low, high));
                _mm256_storeu_ps(at.add(4 * 16), _mm256_permute2f128_ps::<0x31>(low, high));
            }
        }
    }
}

/// `vpdpbusd` on 256 bits.
#[inline]
#[target_feature(enable = "avx2,avxvnni")]
fn dot_vnni(sum: __m256i, codes: __m256i, bytes: __m256i) -> __m256i {
    _mm256_dpbusd_avx_epi32(sum, codes, bytes)
}

/// Sixteen entries to look up in each half.
#[inline]
#[target_feature(enable = "avx2")]
fn table(entries: &[u8; 16]) -> __m256i {
    // SAFETY: 16 bytes are read.
    let entries = unsafe { _mm_loadu_si128(entries.as_ptr().cast()) };
    _mm256_broadcastsi128_si256(entries)
}
