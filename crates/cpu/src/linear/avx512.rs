//! The tiles of AVX-512 and its VNNI.

use super::kind::{self, Expands, Kind, OfKind};
use super::tiles::{Ahead, ByteTile, FloatTile, Group, Tiles};
use super::tiles::{Trellis, TrellisBlocks, TrellisTile};
use super::trellis::{self, of_trellis};
use super::{bytes, floats, transformed, wide};
use crate::simd::Avx512;
use tokenmill_quant::exl3::Codebook;

// SAFETY (every block below): the contract of `Tiles`: the instruction set is available and
// the pointers cover what is read or written.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const PAIRS: bool> Tiles for Avx512<PAIRS> {
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
    const PANELS_TO: usize = 6;
    const CHUNK_LINES: usize = 512;
    const CODED_TOKENS: usize = 6;
    const EXPAND_FROM: usize = 5;
    const EXPANDS: Expands = Expands::Bytes;

    unsafe fn byte_tile<K: OfKind>(tokens: usize, t: &ByteTile) {
        unsafe {
            match tokens {
                _ if K::KIND.is_wide() => wide::tile::<K>(tokens, t),
                1 => byte_tile::<K, 1>(t),
                2 => byte_tile::<K, 2>(t),
                3 => byte_tile::<K, 3>(t),
                4 => byte_tile::<K, 4>(t),
                _ => unreachable!("a tile is at most 4 tokens"),
            }
        }
    }
    unsafe fn residual_lines<K: OfKind>(t: &ByteTile, groups: &[Group]) {
        unsafe { wide::residual_lines::<K>(t, groups) }
    }
    unsafe fn trellis_codes(of: Trellis, blocks: &TrellisBlocks) {
        unsafe { of_trellis!(of, trellis_codes(blocks)) }
    }
    unsafe fn trellis_token(of: Trellis, t: &TrellisTile) {
        unsafe { of_trellis!(of, trellis_token(t)) }
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
    unsafe fn widen<K: OfKind>(panel: *const u8, blocks: usize, to: *mut u8) {
        unsafe { widen::<K>(panel, blocks, to) }
    }
    unsafe fn float_tile<K: OfKind>(panels: usize, tokens: usize, t: &FloatTile) {
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
            match matches!(K::KIND, Kind::Pairs) {
                true => tiles!(pair_tile),
                false => tiles!(float_tile, K),
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

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
unsafe fn byte_tile<K: OfKind, const C: usize>(t: &ByteTile) {
    // SAFETY: the features are enabled; the rest is the caller's.
    unsafe { bytes::tile::<Avx512, K, 2, C>(t) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
unsafe fn trellis_codes<const BOOK: u8, const BITS: usize>(blocks: &TrellisBlocks) {
    // SAFETY: as above.
    unsafe { trellis::codes::<Avx512, BOOK, BITS>(blocks) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
unsafe fn trellis_token<const BOOK: u8, const BITS: usize>(t: &TrellisTile) {
    // SAFETY: as above.
    unsafe { transformed::tile_of_one::<Avx512, BOOK, BITS>(t) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
unsafe fn trellis_tile<const C: usize>(t: &TrellisTile) {
    // SAFETY: as above.
    unsafe { transformed::tile::<Avx512, C>(t) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
unsafe fn widen<K: OfKind>(panel: *const u8, blocks: usize, to: *mut u8) {
    // SAFETY: as above.
    unsafe { bytes::widen::<Avx512, K>(panel, blocks, to) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")]
unsafe fn pair_tile<const W: usize, const C: usize>(t: &FloatTile) {
    // SAFETY: as above.
    unsafe { floats::tile::<Avx512<true>, kind::Pairs, W, C>(t) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
unsafe fn float_tile<K: OfKind, const W: usize, const C: usize>(t: &FloatTile) {
    // SAFETY: as above.
    unsafe { floats::tile::<Avx512, K, W, C>(t) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
unsafe fn expand<K: OfKind, const ROUND: bool>(
    panel: *const u8,
    first: usize,
    blocks: usize,
    to: *mut f32,
) {
    // SAFETY: as above.
    unsafe { floats::expand::<Avx512, K, ROUND>(panel, first, blocks, to) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
unsafe fn expand_pairs(from: *const u8, pairs: usize, to: *mut f32) {
    // SAFETY: as above.
    unsafe { floats::expand_pairs::<Avx512>(from, pairs, to) }
}
