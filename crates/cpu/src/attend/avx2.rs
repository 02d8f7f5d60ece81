//! The tiles of attention with AVX2.

use std::ops::Range;

use super::sums::{Bytes, Numbers, Shorts, Sums};
use super::tiles::{ScoreTile, Tiles, ValueTile, by_shape};
use super::{AttendJob, Item, Kind, Scratch, blocked};
use crate::simd::Avx2;

// SAFETY (every block below): the contract of `Tiles`.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const VNNI: bool> Tiles for Avx2<VNNI> {
    // 12 sums of the 16 registers, a key and a splat. Two vectors take four registers for keys, and
    // with three rows one sum goes through memory: its chain takes 12 cycles a step and not 6. Few
    // rows have too few chains otherwise.
    const ROWS: usize = 6;
    const FULL: (usize, usize) = (2, 3);

    #[inline(always)]
    fn vectors(rows: usize, stored: bool) -> usize {
        if rows <= 2 || rows == 3 && stored { 2 } else { 1 }
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
        unsafe fn run<V: Tiles, S: Sums<V>, const STORED: bool, const N: usize, const R: usize>(
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
        unsafe fn run<V: Tiles, S: Sums<V>, const STORED: bool, const N: usize, const R: usize>(
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
