//! The tiles of an instruction set: what blocked attention calls, and what each call is given.

use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
use std::ops::Range;

use super::layout::{BLOCK_TOKENS, GROUP};
use super::sums::Sums;
use super::{AttendJob, Item, Kind, Scratch, TILE};
use crate::simd::Vector;

/// The tiles of one instruction set, and how large they are.
///
/// # Safety of the functions
/// As those of [`Vector`].
pub(super) trait Tiles: Vector {
    /// Most rows of a tile kernel.
    const ROWS: usize;
    /// The tile, vectors and rows, whose sums leave registers for the factors of one vector only; zeros: none.
    const FULL: (usize, usize);

    /// Most vectors of a tile of that many rows, on factors as they are stored or not.
    fn vectors(rows: usize, stored: bool) -> usize;

    /// `blocked::scores` of that many vectors and rows.
    unsafe fn scores<S: Sums<Self>, const STORED: bool>(vectors: usize, rows: usize, t: &ScoreTile);
    /// `blocked::values` of that many vectors and rows.
    unsafe fn values<S: Sums<Self>, const STORED: bool>(vectors: usize, rows: usize, t: &ValueTile);
    /// `blocked::load_queries`.
    unsafe fn load_queries(job: &AttendJob<'_>, item: &Item, keys: Kind, scratch: &mut Scratch);
    /// `blocked::split`.
    unsafe fn split(
        job: &AttendJob<'_>,
        item: &Item,
        range: Range<usize>,
        kinds: (Kind, Kind),
        scratch: &mut Scratch,
    );
}

/// Prefetches the cache line at an address, which need not be mapped.
#[inline(always)]
pub(super) fn fetch(at: *const u8) {
    // SAFETY: a prefetch may name any address.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
}

/// Where the kernels find a tile's keys and values: widened in the scratch, or in the cache.
#[derive(Clone, Copy)]
pub(super) struct TileSource {
    /// Groups of keys; those with a seen key are there.
    pub k: [*const u8; TILE / GROUP],
    /// Bytes from step to step.
    pub k_step: usize,
    /// Whether kernels for few rows read the keys as they are stored.
    pub keys_stored: bool,
    /// Both halves of the values; those with a seen key are there.
    pub v: [*const u8; 2],
    /// Bytes from step to step.
    pub v_step: usize,
    /// As `keys_stored`.
    pub values_stored: bool,
    /// The bits of pairs of values as stored that are seen.
    pub seen_pairs: [u32; TILE / 2],
    /// Keys and values of the tile to come; anything where there is none.
    pub next_k: [*const u8; 2],
    pub next_v: [*const u8; 2],
    /// Bytes of either half of it that are prefetched after each chunk of rows; 0 where kernels prefetch as they go.
    pub next_part: usize,
}

impl TileSource {
    /// Prefetches part `part` of the tile to come.
    #[inline(always)]
    pub fn prefetch_part(&self, part: usize) {
        for half in self.next_k {
            for line in 0..self.next_part / 64 {
                fetch(half.wrapping_add(part * self.next_part + line * 64));
            }
        }
    }
}

/// One call of the score kernel: rows of queries by groups of keys of a tile.
#[derive(Clone, Copy)]
pub(super) struct ScoreTile {
    /// First query row: f32, or pairs of codes.
    pub q: *const f32,
    /// Words (f32, or pairs) from a row to the next, and those to sum.
    pub q_stride: usize,
    pub steps: usize,
    /// Passes over as many groups as the kernel takes at once.
    pub passes: usize,
    /// Where the groups of keys are, each `[steps][16]` words; of bf16 or of pairs of bytes where `STORED`.
    pub k: *const *const u8,
    /// Bytes from there to the first step, and from step to step.
    pub k_start: usize,
    pub k_step: usize,
    /// Keys of both halves of the tile to come, which are prefetched where `STORED`.
    pub next: [*const u8; 2],
    /// Scores of the first row from the first group on, and whether these are added to what stands there. [rows][64]
    pub s: *mut f32,
    pub adds: bool,
    /// int8: scales of the keys from the first group on.
    pub k_scale: *const f32,
    /// What the scores of each row are multiplied by.
    pub q_scale: *const f32,
}

/// One call of the value kernel: rows of weights by vectors of value columns.
#[derive(Clone, Copy)]
pub(super) struct ValueTile {
    /// Passes over as many vectors of columns as the kernel takes at once.
    pub passes: usize,
    /// Weights of the first row from the tile's first key on: f32, or pairs of codes.
    pub p: *const f32,
    /// Words from a row of weights to the next, and those of half a tile.
    pub p_stride: usize,
    pub p_half: usize,
    /// First column of the first key of both halves; bf16 or pairs of bytes where `STORED`.
    pub v: [*const u8; 2],
    /// Bytes from step to step: keys, or pairs of keys.
    pub v_step: usize,
    /// The bits of each stored pair of bf16s that are seen, those of a half after the other.
    pub seen: *const u32,
    /// As `v`, of the tile to come, prefetched where `STORED`.
    pub next: [*const u8; 2],
    /// First and end step of both halves.
    pub steps: [(usize, usize); 2],
    /// Words of a row of `out`.
    pub v_cols: usize,
    /// First column of the first row.
    pub out: *mut f32,
    /// The same before the tile, and the words of a row of it.
    pub before: *const f32,
    pub before_stride: usize,
    /// What each row's outputs are multiplied by first.
    pub decay: *const f32,
    /// int8: scale of each row's codes.
    pub p_scale: *const f32,
}

/// Calls `$run::<Self, S, STORED, N, R>($t)` for the shape at hand.
macro_rules! by_shape {
    ($vectors:expr, $rows:expr, $run:ident, $t:expr, [$($n:literal)*], $r:tt) => {
        match $vectors {
            $($n => super::tiles::by_shape!(@rows $rows, $run, $n, $t, $r),)*
            _ => unreachable!("vectors of a tile"),
        }
    };
    (@rows $rows:expr, $run:ident, $n:literal, $t:expr, [$($r:literal)*]) => {
        match $rows {
            $($r => $run::<Self, S, STORED, $n, $r>($t),)*
            _ => unreachable!("rows of a tile"),
        }
    };
}
pub(super) use by_shape;

/// The bits of each pair of slots that are among `slots`.
#[inline(always)]
pub(super) fn see_pairs(slots: &Range<usize>, pairs: &mut [u32]) {
    pairs.fill(u32::MAX);
    if slots.len() < BLOCK_TOKENS {
        for (pair, bits) in pairs.iter_mut().enumerate() {
            let seen = |slot: usize, bits: u32| if slots.contains(&slot) { bits } else { 0 };
            *bits = seen(2 * pair, 0xffff_0000) | seen(2 * pair + 1, 0xffff);
        }
    }
}
