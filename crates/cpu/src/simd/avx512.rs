//! 16 lanes with AVX-512 and its VNNI: one register.

use std::arch::asm;
use std::arch::x86_64::*;

use tokenmill_quant::float::BF16_LEAST;

use super::Vector;
use crate::isa::Isa;
use crate::math::QUICK_LEAST;

/// AVX-512 F, BW, DQ, VL and VNNI; with `PAIRS` also BF16, for the bf16 chain. (Attention has sums of pairs where its keys
/// are kept so.)
pub(crate) struct Avx512<const PAIRS: bool = false>;

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

/// The high halves of 16 words, each pair of them swapped.
static HIGH_HALVES: Order = {
    let mut order = [0; 32];
    let mut i = 0;
    while i < 16 {
        order[i] = 2 * (i as u16 ^ 1) + 1;
        i += 1;
    }
    Order(order)
};

/// The first `rows` of 16 lanes.
#[inline(always)]
fn first(rows: usize) -> u16 {
    (0xffff_u32 >> (16 - rows)) as u16
}

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
impl<const PAIRS: bool> Vector for Avx512<PAIRS> {
    type Int = __m512i;
    type Float = __m512;
    type Same = __m512i;

    const ISA: Isa = Isa::Avx512;
    const E4M3_UNIT: f32 = 1.0;

    #[inline(always)]
    unsafe fn same(bits: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(bits) }
    }
    #[inline(always)]
    unsafe fn same_at(from: *const i32) -> __m512i {
        unsafe { _mm512_set1_epi32(from.read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn int(same: __m512i) -> __m512i {
        same
    }
    #[inline(always)]
    unsafe fn float(same: __m512i) -> __m512 {
        unsafe { _mm512_castsi512_ps(same) }
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store(v: __m512i, to: *mut u8) {
        unsafe { _mm512_storeu_si512(to.cast(), v) }
    }
    #[inline(always)]
    unsafe fn left<const BITS: u32>(v: __m512i) -> __m512i {
        unsafe { _mm512_slli_epi16::<BITS>(v) }
    }
    #[inline(always)]
    unsafe fn right<const BITS: u32>(v: __m512i) -> __m512i {
        unsafe { _mm512_srli_epi16::<BITS>(v) }
    }
    #[inline(always)]
    unsafe fn left_by(v: __m512i, bits: u32) -> __m512i {
        unsafe { _mm512_sll_epi16(v, _mm_cvtsi32_si128(bits as i32)) }
    }
    #[inline(always)]
    unsafe fn right_by(v: __m512i, bits: u32) -> __m512i {
        unsafe { _mm512_srl_epi16(v, _mm_cvtsi32_si128(bits as i32)) }
    }
    #[inline(always)]
    unsafe fn right32<const BITS: i32>(v: __m512i) -> __m512i {
        unsafe { _mm512_srl_epi32(v, _mm_cvtsi32_si128(BITS)) }
    }
    #[inline(always)]
    unsafe fn words_at<const EACH: usize>(
        table: &[u32],
        bytes: *const u8,
        which: __m512i,
    ) -> __m512i {
        unsafe {
            let each = _mm_cvtsi32_si128(EACH.trailing_zeros() as i32);
            let mut index = _mm512_sll_epi32(Self::lanes(bytes), each);
            if EACH > 1 {
                let which = _mm512_and_si512(which, _mm512_set1_epi32(EACH as i32 - 1));
                index = _mm512_or_si512(index, which);
            }
            _mm512_i32gather_epi32::<4>(index, table.as_ptr().cast())
        }
    }
    #[inline(always)]
    unsafe fn words_of<const BITS: u32>(
        table: &[u32; 4096],
        bytes: *const u8,
        halves: *const u8,
        run: usize,
    ) -> __m512i {
        unsafe {
            let halves = Self::halves(halves);
            let upper = _mm512_srl_epi32(halves, _mm_cvtsi32_si128((BITS * run as u32) as i32));
            let upper = match BITS {
                4 => _mm512_and_si512(upper, _mm512_set1_epi32(15)),
                _ => {
                    let second = _mm512_srli_epi32::<12>(halves);
                    let second = _mm512_and_si512(second, _mm512_set1_epi32(8));
                    _mm512_or_si512(_mm512_and_si512(upper, _mm512_set1_epi32(7)), second)
                }
            };
            let index = _mm512_or_si512(Self::lanes(bytes), _mm512_slli_epi32::<8>(upper));
            _mm512_i32gather_epi32::<4>(index, table.as_ptr().cast())
        }
    }
    #[inline(always)]
    unsafe fn even_signs(v: __m512i) -> __m512i {
        unsafe {
            let v = _mm512_and_si512(v, _mm512_set1_epi32(0x0fff_ffff));
            let odd = _mm512_xor_si512(v, _mm512_srli_epi32::<16>(v));
            let odd = _mm512_xor_si512(odd, _mm512_srli_epi32::<8>(odd));
            let odd = _mm512_xor_si512(odd, _mm512_slli_epi32::<4>(odd));
            let top = _mm512_set1_epi32(0xf000_0000_u32 as i32);
            _mm512_or_si512(v, _mm512_and_si512(_mm512_slli_epi32::<24>(odd), top))
        }
    }
    #[inline(always)]
    unsafe fn mask(v: __m512i, mask: i8) -> __m512i {
        unsafe { _mm512_and_si512(v, _mm512_set1_epi8(mask)) }
    }
    #[inline(always)]
    unsafe fn with_bits(v: __m512i, bits: __m512i, mask: i8) -> __m512i {
        // 0xf8 is a | (b & c).
        unsafe { _mm512_ternarylogic_epi32::<0xf8>(v, bits, _mm512_set1_epi8(mask)) }
    }
    #[inline(always)]
    unsafe fn look_up(v: __m512i, table: &[u8; 16]) -> __m512i {
        unsafe {
            let table = _mm_loadu_si128(table.as_ptr().cast());
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), v)
        }
    }
    #[inline(always)]
    unsafe fn dot_bytes(sum: __m512i, codes: __m512i, bytes: __m512i) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(sum, codes, bytes) }
    }
    #[inline(always)]
    unsafe fn taken_apart(_: __m512i) -> [__m512i; 3] {
        unreachable!("AVX-512 takes bytes as they are")
    }
    #[inline(always)]
    unsafe fn byte_sums(v: __m512i) -> __m512i {
        unsafe { _mm512_maddubs_epi16(v, _mm512_set1_epi8(1)) }
    }
    #[inline(always)]
    unsafe fn short_halves(v: __m512i) -> __m512i {
        unsafe {
            let bits =
                _mm512_and_si512(_mm512_srl_epi16(v, _mm_cvtsi32_si128(10)), _mm512_set1_epi16(3));
            let power = _mm512_xor_si512(bits, _mm512_set1_epi16(2));
            let (size, flipped) = (_mm512_set1_epi16(0x3ff), _mm512_set1_epi16(0x760));
            let size = _mm512_xor_si512(_mm512_and_si512(v, size), flipped);
            let size = _mm512_sllv_epi16(size, power);
            _mm512_mask_sub_epi16(size, _mm512_movepi16_mask(v), _mm512_setzero_si512(), size)
        }
    }
    #[inline(always)]
    unsafe fn not_below(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_movm_epi16(_mm512_cmpge_epu16_mask(a, b)) }
    }
    #[inline(always)]
    unsafe fn times_low(v: __m512i, same: __m512i) -> __m512i {
        unsafe { _mm512_mullo_epi16(v, same) }
    }
    #[inline(always)]
    unsafe fn times_high(v: __m512i, same: __m512i) -> __m512i {
        unsafe { _mm512_mulhi_epu16(v, same) }
    }
    #[inline(always)]
    unsafe fn plus16(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi16(a, b) }
    }
    #[inline(always)]
    unsafe fn plus32(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn middle(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_shuffle_i64x2::<0x4e>(a, b) }
    }
    #[inline(always)]
    unsafe fn rotate_high(v: __m512i) -> __m512i {
        unsafe {
            let from = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 15, 8, 9, 10, 11, 12, 13, 14);
            _mm512_permutexvar_epi32(from, v)
        }
    }
    #[inline(always)]
    unsafe fn as_float(v: __m512i) -> __m512 {
        unsafe { _mm512_castsi512_ps(v) }
    }
    #[inline(always)]
    unsafe fn byte<const J: u32>(v: __m512i) -> __m512 {
        unsafe {
            let shifted = _mm512_srl_epi32(v, _mm_cvtsi32_si128(8 * J as i32));
            _mm512_cvtepi32_ps(_mm512_and_si512(shifted, _mm512_set1_epi32(255)))
        }
    }
    #[inline(always)]
    unsafe fn e4m3(v: __m512i, j: u32) -> __m512 {
        unsafe { e4m3(v, j) }
    }
    #[inline(always)]
    unsafe fn entries(v: __m512i, from: u32, table: &[f32; 16]) -> __m512 {
        unsafe {
            let index = _mm512_srl_epi32(v, _mm_cvtsi32_si128(from as i32));
            _mm512_permutexvar_ps(index, _mm512_loadu_ps(table.as_ptr()))
        }
    }
    #[inline(always)]
    unsafe fn unsigned(from: *const u8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn lanes(from: *const u8) -> __m512i {
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn halves(from: *const u8) -> __m512i {
        unsafe { _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn fours(from: *const u8) -> __m512i {
        unsafe {
            // Both halves of eight bytes have the same bytes.
            let bytes = _mm512_cvtepu8_epi32(_mm_set1_epi64x(from.cast::<i64>().read_unaligned()));
            let high = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4);
            _mm512_and_si512(_mm512_srlv_epi32(bytes, high), _mm512_set1_epi32(15))
        }
    }
    #[inline(always)]
    unsafe fn signed(from: *const u8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn powers(from: *const u8) -> __m512 {
        unsafe {
            let e = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()));
            let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(e, _mm512_set1_epi32(1)));
            let small = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), e);
            let is_small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
            _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_small, small))
        }
    }
    #[inline(always)]
    unsafe fn f16s(from: *const u8) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn floats(from: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store_floats(v: __m512, to: *mut f32) {
        unsafe { _mm512_storeu_ps(to, v) }
    }
    #[inline(always)]
    unsafe fn first_floats(from: *const f32, rows: usize) -> __m512 {
        unsafe { _mm512_maskz_loadu_ps(first(rows), from) }
    }
    #[inline(always)]
    unsafe fn store_first(v: __m512, to: *mut f32, rows: usize) {
        unsafe { _mm512_mask_storeu_ps(to, first(rows), v) }
    }
    #[inline(always)]
    unsafe fn bf16_pair(from: *const u8) -> [__m512; 2] {
        unsafe {
            let pair = _mm512_loadu_si512(from.cast());
            let high = _mm512_and_si512(pair, _mm512_set1_epi32(-65536));
            [_mm512_castsi512_ps(high), _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pair))]
        }
    }
    #[inline(always)]
    unsafe fn to_bf16(v: __m512) -> __m512 {
        unsafe {
            let bits = _mm512_castps_si512(v);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
            let number = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(v, v);
            let rounded = _mm512_mask_add_epi32(bits, number, bits, half);
            let rounded = _mm512_and_si512(rounded, _mm512_set1_epi32(-65536));
            let size = _mm512_and_si512(rounded, _mm512_set1_epi32(i32::MAX));
            let least = _mm512_set1_epi32(i32::from(BF16_LEAST) << 16);
            let counts = _mm512_cmpge_epi32_mask(size, least);
            _mm512_castsi512_ps(_mm512_maskz_mov_epi32(counts, rounded))
        }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
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
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn fma_same(a: __m512, same: __m512i, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, _mm512_castsi512_ps(same), c) }
    }

    // Of attention.

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
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
    unsafe fn bf16s(from: *const u16) -> __m512 {
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
    unsafe fn bf16s_apart(from: *const u16) -> __m512 {
        unsafe { Self::bf16s(from) }
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
    unsafe fn byte_pairs(high: *const i8, low: *const i8) -> __m512i {
        unsafe {
            let (high, low) = (_mm_loadu_si128(high.cast()), _mm_loadu_si128(low.cast()));
            let pairs =
                _mm256_set_m128i(_mm_unpackhi_epi8(low, high), _mm_unpacklo_epi8(low, high));
            _mm512_cvtepi8_epi16(pairs)
        }
    }
    #[inline(always)]
    unsafe fn transpose(from: *const u8, stride: usize, to: *mut u8) {
        unsafe { super::avx2::transpose(from, stride, to) }
    }
    #[inline(always)]
    unsafe fn swap_halves(v: __m512i) -> __m512i {
        unsafe { _mm512_rol_epi32::<16>(v) }
    }
    // The intrinsic is often compiled to a product and a sum, at half the rate.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    unsafe fn dot_shorts(mut sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
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
}

/// Byte `j` of every lane, an e4m3 float, as a float. Subnormals, m/8·2⁻⁶, are made as
/// (1 + m/8)·2⁻⁶ − 2⁻⁶.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
fn e4m3(v: __m512i, j: u32) -> __m512 {
    let top = _mm512_sll_epi32(v, _mm_cvtsi32_si128(24 - 8 * j as i32));
    let sign = _mm512_and_si512(top, _mm512_set1_epi32(i32::MIN));
    let magnitude = _mm512_and_si512(top, _mm512_set1_epi32(0x7f00_0000));
    let bits = _mm512_srli_epi32::<4>(magnitude);
    let plus = |e: i32| _mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_set1_epi32(e << 23)));
    let small = _mm512_cmplt_epi32_mask(bits, _mm512_set1_epi32(1 << 23));
    let unit = _mm512_set1_ps(1.0 / 64.0);
    let value = _mm512_mask_sub_ps(plus(120), small, plus(121), unit);
    _mm512_castsi512_ps(_mm512_or_si512(sign, _mm512_castps_si512(value)))
}
