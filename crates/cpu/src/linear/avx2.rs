//! The tiles of AVX2. The int8 chain has some of its own, in `pairs` without VNNI and on expanded panels in `nibbles`.

use super::bytes::{self, PREFETCH};
use super::kind::{Expands, OfKind};
use super::tiles::{Ahead, ByteTile, FloatTile, Group, Tiles};
use super::tiles::{Trellis, TrellisBlocks, TrellisTile};
use super::trellis::{self, of_trellis};
use super::{CHUNK_LINES, floats, nibbles, pairs, transformed};
use crate::simd::Avx2;
use tokenmill_quant::exl3::Codebook;

// SAFETY (every block below): the contract of `Tiles`: the instruction set is available and
// the pointers cover what is read or written.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const VNNI: bool> Tiles for Avx2<VNNI> {
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
    const PANELS_TO: usize = 2;
    const CHUNK_LINES: usize = CHUNK_LINES;
    const CODED_TOKENS: usize = 5;
    const EXPAND_FROM: usize = 12;
    const EXPANDS: Expands = if VNNI { Expands::Bytes } else { Expands::Signs };

    unsafe fn byte_tile<K: OfKind>(tokens: usize, t: &ByteTile) {
        unsafe {
            match (VNNI, tokens) {
                (true, _) if K::KIND.is_wide() => nibbles::vnni::tile::<K>(tokens, t),
                (true, 1) => byte_tile_vnni::<K, 1>(t),
                (true, 2) => byte_tile_vnni::<K, 2>(t),
                (true, 3) => byte_tile_vnni::<K, 3>(t),
                (false, _) if K::KIND.is_wide() => nibbles::tile::<K>(tokens, t),
                (false, 1) => pairs::tile::<K, 2, 1, 2>(t),
                (false, 2) => pairs::tile::<K, 1, 2, 4>(t),
                (false, 3) => pairs::tile::<K, 1, 3, 3>(t),
                (false, 4) => pairs::tile::<K, 1, 4, 4>(t),
                _ => unreachable!("a tile is at most 4 tokens, 3 with VNNI"),
            }
        }
    }
    unsafe fn residual_lines<K: OfKind>(t: &ByteTile, groups: &[Group]) {
        unsafe { residual_lines::<K, VNNI>(t, groups) }
    }
    unsafe fn trellis_codes(of: Trellis, blocks: &TrellisBlocks) {
        unsafe { of_trellis!(of, trellis_codes(blocks)) }
    }
    unsafe fn trellis_token(of: Trellis, t: &TrellisTile) {
        unsafe { of_trellis!(of, trellis_token(t)) }
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
    unsafe fn widen<K: OfKind>(panel: *const u8, blocks: usize, to: *mut u8) {
        unsafe {
            match VNNI {
                true => widen_vnni::<K>(panel, blocks, to),
                false => widen::<K>(panel, blocks, to),
            }
        }
    }
    unsafe fn float_tile<K: OfKind>(panels: usize, tokens: usize, t: &FloatTile) {
        unsafe {
            match (panels, tokens) {
                (1, 1) => float_tile::<K, 1, 1>(t),
                (1, 2) => float_tile::<K, 1, 2>(t),
                (1, 3) => float_tile::<K, 1, 3>(t),
                (1, 4) => float_tile::<K, 1, 4>(t),
                (1, 5) => float_tile::<K, 1, 5>(t),
                (1, 6) => float_tile::<K, 1, 6>(t),
                (2, 1) => float_tile::<K, 2, 1>(t),
                (2, 2) if !K::KIND.is_float_code() => float_tile::<K, 2, 2>(t),
                (2, 2..=6) => {
                    Self::float_tile::<K>(1, tokens, &t.first_panel());
                    Self::float_tile::<K>(1, tokens, &t.second_panel());
                }
                _ => unreachable!("a tile is at most 2 × 6"),
            }
        }
    }
    unsafe fn expand_pairs(from: *const u8, pairs: usize, to: *mut f32) {
        unsafe { expand_pairs(from, pairs, to) }
    }
    unsafe fn expand<K: OfKind, const ROUND: bool>(
        panel: *const u8,
        first: usize,
        blocks: usize,
        to: *mut f32,
    ) {
        unsafe { expand::<K, ROUND>(panel, first, blocks, to) }
    }
}

#[target_feature(enable = "avx2,avxvnni,fma,f16c")]
unsafe fn byte_tile_vnni<K: OfKind, const C: usize>(t: &ByteTile) {
    // SAFETY: as above.
    unsafe { bytes::tile::<Avx2<true>, K, 1, C>(t) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn trellis_codes<const BOOK: u8, const BITS: usize>(blocks: &TrellisBlocks) {
    // SAFETY: as above.
    unsafe { trellis::codes::<Avx2<false>, BOOK, BITS>(blocks) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn trellis_token<const BOOK: u8, const BITS: usize>(t: &TrellisTile) {
    // SAFETY: as above.
    unsafe { transformed::tile_of_one::<Avx2<false>, BOOK, BITS>(t) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn trellis_tile<const C: usize>(t: &TrellisTile) {
    // SAFETY: as above.
    unsafe { transformed::tile::<Avx2<false>, C>(t) }
}

#[target_feature(enable = "avx2,avxvnni,fma,f16c")]
unsafe fn trellis_tile_vnni<const C: usize>(t: &TrellisTile) {
    // SAFETY: as above.
    unsafe { transformed::tile::<Avx2<true>, C>(t) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn widen<K: OfKind>(panel: *const u8, blocks: usize, to: *mut u8) {
    // SAFETY: as above.
    unsafe { bytes::widen::<Avx2<false>, K>(panel, blocks, to) }
}

#[target_feature(enable = "avx2,avxvnni,fma,f16c")]
unsafe fn widen_vnni<K: OfKind>(panel: *const u8, blocks: usize, to: *mut u8) {
    // SAFETY: as above.
    unsafe { bytes::widen::<Avx2<true>, K>(panel, blocks, to) }
}

/// The features of all processors with these kernels: lines are copied in as few pieces as can be.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn residual_lines<K: OfKind, const VNNI: bool>(t: &ByteTile, groups: &[Group]) {
    // SAFETY: as above.
    unsafe { bytes::residual_lines::<Avx2<VNNI>, K>(t, groups) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn float_tile<K: OfKind, const W: usize, const C: usize>(t: &FloatTile) {
    // SAFETY: as above.
    unsafe { floats::tile::<Avx2<false>, K, W, C>(t) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn expand<K: OfKind, const ROUND: bool>(
    panel: *const u8,
    first: usize,
    blocks: usize,
    to: *mut f32,
) {
    // SAFETY: as above.
    unsafe { floats::expand::<Avx2<false>, K, ROUND>(panel, first, blocks, to) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn expand_pairs(from: *const u8, pairs: usize, to: *mut f32) {
    // SAFETY: as above.
    unsafe { floats::expand_pairs::<Avx2<false>>(from, pairs, to) }
}
