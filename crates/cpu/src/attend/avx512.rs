//! The tiles of attention with AVX-512 and its VNNI, and with its BF16 for sums of pairs.

use std::ops::Range;

use super::sums::{Bytes, Numbers, Pairs, Shorts, Sums};
use super::tiles::{ScoreTile, Tiles, ValueTile, by_shape};
use super::{AttendJob, Item, Kind, Scratch, blocked};
use crate::simd::Avx512;

// SAFETY (every block below): the contract of `Tiles`.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Tiles for Avx512 {
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
    unsafe fn scores<S: Sums<Self>, const STORED: bool>(
        vectors: usize,
        rows: usize,
        t: &ScoreTile,
    ) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
        unsafe fn run<V: Tiles, S: Sums<V>, const STORED: bool, const N: usize, const R: usize>(
            t: &ScoreTile,
        ) {
            unsafe { blocked::scores::<V, S, STORED, N, R>(t) }
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,fma")]
        unsafe fn pairs<
            V: Tiles,
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
        unsafe fn run<V: Tiles, S: Sums<V>, const STORED: bool, const N: usize, const R: usize>(
            t: &ValueTile,
        ) {
            unsafe { blocked::values::<V, S, STORED, N, R>(t) }
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,fma")]
        unsafe fn pairs<
            V: Tiles,
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
