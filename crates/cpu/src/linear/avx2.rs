//! The vector kernels with AVX2: a panel's 16 rows are two 256-bit registers.
//!
//! The int8 chain has tiles of its own, in `pairs` without VNNI and on expanded panels in `nibbles`.

use std::arch::x86_64::*;

use tokenmill_quant::float::{BF16_LEAST, E4M3_UNIT};

use super::bytes::{self, ByteTile, PREFETCH};
use super::floats::{self, FloatTile};
use super::kind::{self, Expands};
use super::nibbles;
use super::pairs;
use super::residuals::Group;
use super::turned::{self, TrellisTile};
use super::vector::{Ahead, Vector};
use crate::isa::Isa;

/// AVX2, FMA and F16C; `VNNI` also has the 256-bit VNNI instructions.
pub(super) struct Avx2<const VNNI: bool>;

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

// SAFETY (every block below): the contract of `Vector`: the instruction set is available and
// the pointers cover what is read or written.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const VNNI: bool> Vector for Avx2<VNNI> {
    type Int = [__m256i; 2];
    type Float = [__m256; 2];
    type Same = __m256i;

    const ISA: Isa = if VNNI { Isa::AvxVnni } else { Isa::Avx2 };
    // 12 integer and float sums of the 16 registers; without VNNI 8 of 16 bits, the others wait in
    // the cache.
    const BYTE_TILE: (usize, usize) = (1, if VNNI { 3 } else { 4 });
    const TWO_STREAMS: usize = if VNNI { 0 } else { 1 };
    const AHEAD: [Ahead; 2] = [Ahead { near: PREFETCH, far: 0, scales: false }; 2];
    const FLOATS_AHEAD: Ahead = Ahead { near: 2048, far: 0, scales: false };
    const WIDE_TOKENS: usize = nibbles::TOKENS;
    // 12 sums too: of two panels only up to 2 tokens are added up at once.
    const PAIRS: bool = false;
    const FLOAT_TILE: (usize, usize) = (2, 6);
    const CODED_TOKENS: usize = 5;
    const E4M3_UNIT: f32 = E4M3_UNIT;
    const EXPAND_FROM: usize = 12;
    const EXPANDS: Expands = if VNNI { Expands::Bytes } else { Expands::Signs };

    #[inline(always)]
    unsafe fn same(bits: i32) -> __m256i {
        unsafe { _mm256_set1_epi32(bits) }
    }
    #[inline(always)]
    unsafe fn same_at(from: *const i32) -> __m256i {
        unsafe { _mm256_set1_epi32(*from) }
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
    unsafe fn dot(sum: [__m256i; 2], codes: [__m256i; 2], bytes: __m256i) -> [__m256i; 2] {
        unsafe {
            assert!(VNNI, "tiles of its own");
            halves_of!(i => dot_vnni(sum[i], codes[i], bytes))
        }
    }
    #[inline(always)]
    unsafe fn byte_sums(low: [__m256i; 2], high: [__m256i; 2]) -> [[__m256i; 2]; 2] {
        unsafe {
            if VNNI {
                return [low, high];
            }
            let one = _mm256_set1_epi8(1);
            let low = both!(low => _mm256_maddubs_epi16(low, one));
            let high = both!(high => _mm256_maddubs_epi16(high, one));
            // All four at once, for any number of tokens.
            [halves_of!(i => _mm256_add_epi16(low[i], high[i])); 2]
        }
    }
    #[inline(always)]
    unsafe fn dot_byte_sums(
        sum: [__m256i; 2],
        of: [[__m256i; 2]; 2],
        bytes: __m256i,
    ) -> [__m256i; 2] {
        unsafe {
            if VNNI {
                return Self::dot(Self::dot(sum, of[0], bytes), of[1], bytes);
            }
            halves_of!(i => _mm256_add_epi32(sum[i], _mm256_madd_epi16(of[0][i], bytes)))
        }
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
                let places = _mm256_set1_epi16(0x87f0_u16 as i16);
                let pair = _mm256_and_si256(_mm256_srai_epi16::<4>(top), places);
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
    unsafe fn halves(from: *const u8) -> [__m256; 2] {
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
    unsafe fn dot_pairs(_: [__m256; 2], _: [__m256i; 2], _: __m256i) -> [__m256; 2] {
        unreachable!("AVX2 has no dot products of bf16")
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

    unsafe fn byte_tile<const KIND: u8>(tokens: usize, t: &ByteTile) {
        unsafe {
            match (VNNI, tokens) {
                (true, _) if KIND >= kind::WIDE => nibbles::vnni::tile::<KIND>(tokens, t),
                (true, 1) => byte_tile_vnni::<KIND, 1>(t),
                (true, 2) => byte_tile_vnni::<KIND, 2>(t),
                (true, 3) => byte_tile_vnni::<KIND, 3>(t),
                (false, _) if KIND >= kind::WIDE => nibbles::tile::<KIND>(tokens, t),
                (false, 1) => pairs::tile::<KIND, 2, 1, 2>(t),
                (false, 2) => pairs::tile::<KIND, 1, 2, 4>(t),
                (false, 3) => pairs::tile::<KIND, 1, 3, 3>(t),
                (false, 4) => pairs::tile::<KIND, 1, 4, 4>(t),
                _ => unreachable!("a tile is at most 4 tokens, 3 with VNNI"),
            }
        }
    }
    unsafe fn residual_lines<const KIND: u8>(t: &ByteTile, groups: &[Group]) {
        unsafe { residual_lines::<KIND, VNNI>(t, groups) }
    }
    unsafe fn trellis_tile(tokens: usize, t: &TrellisTile) {
        unsafe {
            match (VNNI, tokens) {
                (false, 1) => trellis_tile::<1>(t),
                (false, 2) => trellis_tile::<2>(t),
                (false, 3) => trellis_tile::<3>(t),
                (false, 4) => trellis_tile::<4>(t),
                (true, 1) => trellis_tile_vnni::<1>(t),
                (true, 2) => trellis_tile_vnni::<2>(t),
                (true, 3) => trellis_tile_vnni::<3>(t),
                _ => unreachable!("a tile is at most 4 tokens, 3 with VNNI"),
            }
        }
    }
    unsafe fn widen<const KIND: u8>(panel: *const u8, blocks: usize, to: *mut u8) {
        unsafe {
            match VNNI {
                true => widen_vnni::<KIND>(panel, blocks, to),
                false => widen::<KIND>(panel, blocks, to),
            }
        }
    }
    unsafe fn float_tile<const KIND: u8>(panels: usize, tokens: usize, t: &FloatTile) {
        unsafe {
            match (panels, tokens) {
                (1, 1) => float_tile::<KIND, 1, 1>(t),
                (1, 2) => float_tile::<KIND, 1, 2>(t),
                (1, 3) => float_tile::<KIND, 1, 3>(t),
                (1, 4) => float_tile::<KIND, 1, 4>(t),
                (1, 5) => float_tile::<KIND, 1, 5>(t),
                (1, 6) => float_tile::<KIND, 1, 6>(t),
                (2, 1) => float_tile::<KIND, 2, 1>(t),
                (2, 2) if !kind::is_float_code(KIND) => float_tile::<KIND, 2, 2>(t),
                (2, 2..=6) => {
                    Self::float_tile::<KIND>(1, tokens, &t.first_panel());
                    Self::float_tile::<KIND>(1, tokens, &t.second_panel());
                }
                _ => unreachable!("a tile is at most 2 × 6"),
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

#[target_feature(enable = "avx2,avxvnni,fma,f16c")]
unsafe fn byte_tile_vnni<const KIND: u8, const C: usize>(t: &ByteTile) {
    // SAFETY: as above.
    unsafe { bytes::tile::<Avx2<true>, KIND, 1, C>(t) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn trellis_tile<const C: usize>(t: &TrellisTile) {
    // SAFETY: as above.
    unsafe { turned::tile::<Avx2<false>, C>(t) }
}

#[target_feature(enable = "avx2,avxvnni,fma,f16c")]
unsafe fn trellis_tile_vnni<const C: usize>(t: &TrellisTile) {
    // SAFETY: as above.
    unsafe { turned::tile::<Avx2<true>, C>(t) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn widen<const KIND: u8>(panel: *const u8, blocks: usize, to: *mut u8) {
    // SAFETY: as above.
    unsafe { bytes::widen::<Avx2<false>, KIND>(panel, blocks, to) }
}

#[target_feature(enable = "avx2,avxvnni,fma,f16c")]
unsafe fn widen_vnni<const KIND: u8>(panel: *const u8, blocks: usize, to: *mut u8) {
    // SAFETY: as above.
    unsafe { bytes::widen::<Avx2<true>, KIND>(panel, blocks, to) }
}

/// The features of all processors with these kernels: lines are copied in as few pieces as can be.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn residual_lines<const KIND: u8, const VNNI: bool>(t: &ByteTile, groups: &[Group]) {
    // SAFETY: as above.
    unsafe { bytes::residual_lines::<Avx2<VNNI>, KIND>(t, groups) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn float_tile<const KIND: u8, const W: usize, const C: usize>(t: &FloatTile) {
    // SAFETY: as above.
    unsafe { floats::tile::<Avx2<false>, KIND, W, C>(t) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn expand<const KIND: u8, const ROUND: bool>(
    panel: *const u8,
    first: usize,
    blocks: usize,
    to: *mut f32,
) {
    // SAFETY: as above.
    unsafe { floats::expand::<Avx2<false>, KIND, ROUND>(panel, first, blocks, to) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn expand_pairs(from: *const u8, pairs: usize, to: *mut f32) {
    // SAFETY: as above.
    unsafe { floats::expand_pairs::<Avx2<false>>(from, pairs, to) }
}
