//! The vector kernels with AVX-512 and its VNNI.

use std::arch::x86_64::*;

use tokenmill_quant::float::BF16_LEAST;

use super::bytes::{self, ByteTile};
use super::floats::{self, FloatTile};
use super::residuals::Group;
use super::turned::{self, TrellisTile};
use super::vector::{Ahead, Vector};
use super::{kind, wide};
use crate::isa::Isa;

/// AVX-512 F, BW, DQ, VL and VNNI; with `PAIRS` also BF16, for the bf16 chain.
pub(super) struct Avx512<const PAIRS: bool = false>;

/// The first `rows` of 16 lanes.
#[inline(always)]
fn first(rows: usize) -> u16 {
    (0xffff_u32 >> (16 - rows)) as u16
}

// SAFETY (every block below): the contract of `Vector`: the instruction set is available and
// the pointers cover what is read or written.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const PAIRS: bool> Vector for Avx512<PAIRS> {
    type Int = __m512i;
    type Float = __m512;
    type Same = __m512i;

    const ISA: Isa = Isa::Avx512;
    // 16 integer and float sums of the 32 registers; with 24 the compiler spills.
    const BYTE_TILE: (usize, usize) = (2, 4);
    const TWO_STREAMS: usize = 4;
    // Measured on Zen 4 (bench/NOTES.md).
    const AHEAD: [Ahead; 2] = [
        Ahead { near: 512, far: 2048, scales: true },
        Ahead { near: 1024, far: 4096, scales: true },
    ];
    const FLOATS_AHEAD: Ahead = Ahead { near: 256, far: 1024, scales: false };
    const WIDE_TOKENS: usize = wide::TOKENS;
    const PAIRS: bool = PAIRS;
    const FLOAT_TILE: (usize, usize) = (4, 6);
    const CODED_TOKENS: usize = 6;
    const E4M3_UNIT: f32 = 1.0;
    const EXPAND_FROM: usize = 5;
    const EXPANDS: kind::Expands = kind::Expands::Bytes;

    #[inline(always)]
    unsafe fn same(bits: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(bits) }
    }
    #[inline(always)]
    unsafe fn same_at(from: *const i32) -> __m512i {
        unsafe { _mm512_set1_epi32(*from) }
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
    unsafe fn dot(sum: __m512i, codes: __m512i, bytes: __m512i) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(sum, codes, bytes) }
    }
    #[inline(always)]
    unsafe fn taken_apart(_: __m512i) -> [__m512i; 3] {
        unreachable!("AVX-512 takes bytes as they are")
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
    unsafe fn halves(from: *const u8) -> __m512 {
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
    unsafe fn dot_pairs(sum: __m512, weights: __m512i, same: __m512i) -> __m512 {
        unsafe { _mm512_dpbf16_ps(sum, bf16_lanes(weights), bf16_lanes(same)) }
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

    unsafe fn byte_tile<const KIND: u8>(tokens: usize, t: &ByteTile) {
        unsafe {
            match tokens {
                _ if KIND >= kind::WIDE => wide::tile::<KIND>(tokens, t),
                1 => byte_tile::<KIND, 1>(t),
                2 => byte_tile::<KIND, 2>(t),
                3 => byte_tile::<KIND, 3>(t),
                4 => byte_tile::<KIND, 4>(t),
                _ => unreachable!("a tile is at most 4 tokens"),
            }
        }
    }
    unsafe fn residual_lines<const KIND: u8>(t: &ByteTile, groups: &[Group]) {
        unsafe { wide::residual_lines::<KIND>(t, groups) }
    }
    unsafe fn trellis_tile(tokens: usize, t: &TrellisTile) {
        unsafe {
            match tokens {
                1 => trellis_tile::<1>(t),
                2 => trellis_tile::<2>(t),
                3 => trellis_tile::<3>(t),
                4 => trellis_tile::<4>(t),
                _ => unreachable!("a tile is at most 4 tokens"),
            }
        }
    }
    unsafe fn widen<const KIND: u8>(panel: *const u8, blocks: usize, to: *mut u8) {
        unsafe { widen::<KIND>(panel, blocks, to) }
    }
    unsafe fn float_tile<const KIND: u8>(panels: usize, tokens: usize, t: &FloatTile) {
        macro_rules! tiles {
            ($tile:ident $(, $kind:ident)?) => {
                match (panels, tokens) {
                    (1, 1) => $tile::<$($kind,)? 1, 1>(t),
                    (1, 2) => $tile::<$($kind,)? 1, 2>(t),
                    (1, 3) => $tile::<$($kind,)? 1, 3>(t),
                    (1, 4) => $tile::<$($kind,)? 1, 4>(t),
                    (1, 5) => $tile::<$($kind,)? 1, 5>(t),
                    (1, 6) => $tile::<$($kind,)? 1, 6>(t),
                    (4, 1) => $tile::<$($kind,)? 4, 1>(t),
                    (4, 2) => $tile::<$($kind,)? 4, 2>(t),
                    (4, 3) => $tile::<$($kind,)? 4, 3>(t),
                    (4, 4) => $tile::<$($kind,)? 4, 4>(t),
                    (4, 5) => $tile::<$($kind,)? 4, 5>(t),
                    (4, 6) => $tile::<$($kind,)? 4, 6>(t),
                    _ => unreachable!("a tile is 1 or 4 panels and at most 6 tokens"),
                }
            };
        }
        unsafe {
            match const { KIND == kind::PAIRS } {
                true => tiles!(pair_tile),
                false => tiles!(float_tile, KIND),
            }
        }
    }
    unsafe fn expand_pairs(from: *const u8, pairs: usize, to: *mut f32) {
        unsafe { expand_pairs(from, pairs, to) }
    }
    unsafe fn expand<const KIND: u8, const ROUND: bool>(
        panel: *const u8,
        first: usize,
        blocks: usize,
        to: *mut f32,
    ) {
        unsafe { expand::<KIND, ROUND>(panel, first, blocks, to) }
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

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
unsafe fn byte_tile<const KIND: u8, const C: usize>(t: &ByteTile) {
    // SAFETY: the features are enabled; the rest is the caller's.
    unsafe { bytes::tile::<Avx512, KIND, 2, C>(t) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
unsafe fn trellis_tile<const C: usize>(t: &TrellisTile) {
    // SAFETY: as above.
    unsafe { turned::tile::<Avx512, C>(t) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
unsafe fn widen<const KIND: u8>(panel: *const u8, blocks: usize, to: *mut u8) {
    // SAFETY: as above.
    unsafe { bytes::widen::<Avx512, KIND>(panel, blocks, to) }
}

/// 32 bf16s.
#[inline(always)]
fn bf16_lanes(v: __m512i) -> __m512bh {
    // SAFETY: the same bits in another type.
    unsafe { std::mem::transmute(v) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")]
unsafe fn pair_tile<const W: usize, const C: usize>(t: &FloatTile) {
    // SAFETY: as above.
    unsafe { floats::tile::<Avx512<true>, { kind::PAIRS }, W, C>(t) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
unsafe fn float_tile<const KIND: u8, const W: usize, const C: usize>(t: &FloatTile) {
    // SAFETY: as above.
    unsafe { floats::tile::<Avx512, KIND, W, C>(t) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
unsafe fn expand<const KIND: u8, const ROUND: bool>(
    panel: *const u8,
    first: usize,
    blocks: usize,
    to: *mut f32,
) {
    // SAFETY: as above.
    unsafe { floats::expand::<Avx512, KIND, ROUND>(panel, first, blocks, to) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
unsafe fn expand_pairs(from: *const u8, pairs: usize, to: *mut f32) {
    // SAFETY: as above.
    unsafe { floats::expand_pairs::<Avx512>(from, pairs, to) }
}
