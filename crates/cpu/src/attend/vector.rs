//! What blocked attention asks of an instruction set: 16 lanes, one for each key of a group.

use std::ops::Range;

use super::layout::GROUP;
use super::sums::Sums;
use super::{AttendJob, Item, Kind, Scratch, TILE};

/// Why an instruction set lacks some functions.
const NO_PAIRS: &str = "no sums of pairs of bf16 with this instruction set";

/// Sixteen 32-bit lanes of one instruction set.
///
/// # Safety of the functions
/// The instruction set must be available, and pointers must cover what is read or written (64
/// bytes for 16 lanes of 32 bits, 32 for 16-bit ones). They are inlined into functions that
/// enable the features.
pub(super) trait Vector: Sized {
    /// 16 × f32.
    type Float: Copy;
    /// 16 × i32.
    type Int: Copy;

    /// Most rows of a tile kernel.
    const ROWS: usize;
    /// The tile, vectors and rows, whose sums leave registers for the factors of one vector only; zeros: none.
    const FULL: (usize, usize);

    /// Most vectors of a tile of that many rows, on factors as they are stored or not.
    fn vectors(rows: usize, stored: bool) -> usize;

    unsafe fn load(from: *const f32) -> Self::Float;
    unsafe fn store(v: Self::Float, to: *mut f32);
    unsafe fn splat(x: f32) -> Self::Float;
    unsafe fn add(a: Self::Float, b: Self::Float) -> Self::Float;
    unsafe fn sub(a: Self::Float, b: Self::Float) -> Self::Float;
    unsafe fn mul(a: Self::Float, b: Self::Float) -> Self::Float;
    /// `a·b + c` rounded once.
    unsafe fn fma(a: Self::Float, b: Self::Float, c: Self::Float) -> Self::Float;
    /// The greater; `b` where either is NaN.
    unsafe fn max(a: Self::Float, b: Self::Float) -> Self::Float;
    /// Lane r: the greatest of the 16 numbers of row r of 16; any of them or NaN if there is a NaN.
    unsafe fn greatest_of(rows: *const f32) -> Self::Float;
    /// Lane r: the sum of the 16 numbers of row r of 16, by the fixed tree.
    unsafe fn sum_of(rows: *const f32) -> Self::Float;
    /// `y·2ⁿ` rounded once, for y in \[0.5, 2\] and n in −151..=0, where `shifted` is
    /// n + 1.5·2²³.
    unsafe fn times_power(y: Self::Float, shifted: Self::Float) -> Self::Float;

    /// Asks for the cache line at an address, which need not be mapped.
    unsafe fn fetch(at: *const u8);
    /// 16 bf16s.
    unsafe fn halves(from: *const u16) -> Self::Float;
    /// 16 bf16s, in the order in which they are made most cheaply.
    unsafe fn halves_apart(from: *const u16) -> Self::Float;
    /// The lanes of `halves_apart` in order.
    unsafe fn in_order(v: Self::Float) -> Self::Float;
    /// y·2ⁿ, y from 0.7 to 1.5 or NaN, where `shifted` is n + 1.5·2²³; 0 where `x` is below `QUICK_LEAST`.
    unsafe fn quick_power(y: Self::Float, shifted: Self::Float, x: Self::Float) -> Self::Float;
    /// Rounded to bf16, ties up; p ≥ 0 or NaN.
    unsafe fn short(p: Self::Float) -> Self::Float;
    /// 16 f16s.
    unsafe fn short_floats(from: *const u16) -> Self::Float;
    /// 2q − 15 for the low and the high halves of 16 bytes.
    unsafe fn nibbles(from: *const u8) -> [Self::Float; 2];
    /// 32 signed bytes as 32 i16s.
    unsafe fn bytes(from: *const i8) -> Self::Int;
    /// Stores 64 bytes.
    unsafe fn store_int(v: Self::Int, to: *mut i16);
    /// Zeros.
    unsafe fn zero() -> Self::Int;
    /// 64 bytes.
    unsafe fn load_int(from: *const i16) -> Self::Int;
    /// The pair of i16 at `from` in all lanes.
    unsafe fn splat_pair(from: *const i16) -> Self::Int;
    /// `sum` + Σ of 2 products i16 × i16 in each lane.
    unsafe fn dot(sum: Self::Int, a: Self::Int, b: Self::Int) -> Self::Int;
    /// As floats, rounded to nearest, ties to even.
    unsafe fn to_float(v: Self::Int) -> Self::Float;
    /// Stores the low 16 bits of the lanes of both in turn: 32 codes, to which 1.5·2²³ was added.
    unsafe fn store_codes(codes: [Self::Float; 2], to: *mut i16);

    // The rest of the numbers' functions are asked for by `Kind::Pairs` only.

    /// 16 pairs of bf16s, those of `high` in the high halves.
    unsafe fn pairs(_high: *const u16, _low: *const u16) -> Self::Int {
        unreachable!("{NO_PAIRS}")
    }
    /// `sum` + the product of the high halves of two pairs of bf16s, then + that of the low halves, each
    /// rounded once, where no factor but 0 is below 2⁻⁵⁶.
    unsafe fn add_pairs(_sum: Self::Float, _a: Self::Int, _b: Self::Int) -> Self::Float {
        unreachable!("{NO_PAIRS}")
    }
    /// The bits of both.
    unsafe fn and(_a: Self::Int, _b: Self::Int) -> Self::Int {
        unreachable!("{NO_PAIRS}")
    }
    /// Stores what `short` gives as 8 pairs, the first of each in the high half.
    unsafe fn store_pairs(_p: Self::Float, _to: *mut i16) {
        unreachable!("{NO_PAIRS}")
    }

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

/// Where the kernels find a tile's keys and values: widened in the scratch, or in the cache.
#[derive(Clone, Copy)]
pub(super) struct TilePlace {
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
    /// Bytes of either half of it that are asked for after each chunk of rows; 0 where kernels ask as they go.
    pub next_part: usize,
}

impl TilePlace {
    /// Asks for part `part` of the tile to come.
    ///
    /// # Safety
    /// As [`Vector`].
    #[inline(always)]
    pub unsafe fn ask_for_part<V: Vector>(&self, part: usize) {
        for half in self.next_k {
            for line in 0..self.next_part / 64 {
                // SAFETY: any address.
                unsafe { V::fetch(half.wrapping_add(part * self.next_part + line * 64)) };
            }
        }
    }
}

/// One call of the score kernel: rows of queries by groups of keys of a tile.
#[derive(Clone, Copy)]
pub(super) struct ScoreTile {
    /// First query row: f32, or pairs of codes.
    pub q: *const f32,
    /// Words (f32, or pairs) of a row.
    pub steps: usize,
    /// Turns of as many groups as the kernel takes at once.
    pub turns: usize,
    /// Where the groups of keys are, each `[steps][16]` words; of bf16 or of pairs of bytes where `STORED`.
    pub k: *const *const u8,
    /// Bytes from step to step.
    pub k_step: usize,
    /// Keys of both halves of the tile to come, which are asked for where `STORED`.
    pub next: [*const u8; 2],
    /// Scores of the first row from the first group on. [rows][64]
    pub s: *mut f32,
    /// int8: scales of the keys from the first group on.
    pub k_scale: *const f32,
    /// What the scores of each row are multiplied by.
    pub q_scale: *const f32,
}

/// One call of the value kernel: rows of weights by vectors of value columns.
#[derive(Clone, Copy)]
pub(super) struct ValueTile {
    /// Turns of as many vectors of columns as the kernel takes at once.
    pub turns: usize,
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
    /// As `v`, of the tile to come, asked for where `STORED`.
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
            $($n => super::vector::by_shape!(@rows $rows, $run, $n, $t, $r),)*
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
