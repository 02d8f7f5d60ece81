//! Attention over paged keys and values: the cache layout, storing, rotation, attending.
//!
//! # Use
//!
//! 1. [`KvLayout`] gives the bytes of a layer's cache (`Full` and `Window`), zeroed or not.
//! 2. A step first rotates ([`rope`]) and stores every token of the step ([`KvLayout::store`]),
//!    by any threads in any order; then a barrier.
//! 3. [`plan_items`] cuts the step's spans into [`Item`]s; any thread calls [`attend`] for any
//!    item, each item once, with a [`Scratch`] of its own. Items of a span are ordered by kv
//!    head, then by token; causal items of later tokens cost more, so deal them out in turn.
//!
//! Keys that nobody sees (stale slots, `BlockId::NONE` behind a window) are never read into a
//! result, whatever their bytes.
//!
//! Numerics: NUMERICS.md, "Attention". `scalar` is the definition in code; other paths equal it bit for bit.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod blocked;
#[cfg(target_arch = "x86_64")]
mod chunk;
mod codes;
mod latent;
#[cfg(target_arch = "x86_64")]
mod latent_tiles;
mod layout;
mod mix;
pub mod rope;
mod scalar;
mod scratch;
mod splits;
mod steady;
#[cfg(target_arch = "x86_64")]
mod sums;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tiles;
#[cfg(target_arch = "x86_64")]
mod weights;
#[cfg(target_arch = "x86_64")]
mod widen;

use std::ops::Range;

use tokenmill_ir::{BlockId, KvFormat, Mask, Span};

use crate::isa::Isa;
use crate::math::per_isa;
use crate::memory::{Parts, prefetch_to_write};
pub use latent::{LatentLayout, head_groups};
pub use layout::{BLOCK_TOKENS, KvLayout};
use layout::{GROUP, is_codes};
use mix::{transform_block, transform_blocks};
pub use scratch::Scratch;
pub use steady::{Middles, Steady};
#[cfg(target_arch = "x86_64")]
use {
    crate::simd::{Avx2, Avx512},
    tiles::Tiles,
};

/// Rows of queries and of results that are prefetched.
const ROWS_AHEAD: usize = 8;
/// Keys of a tile.
const TILE: usize = 64;
/// Keys of a split.
pub const SPLIT: usize = 256;
/// Tiles of a split.
const TILES: usize = SPLIT / TILE;
/// Rows (tokens × heads of a group) of an item, at least one token.
const ITEM_ROWS: usize = 96;
/// Rows that go over a tile's keys, and then over its values, together: their scores fit the first-level
/// cache beside either. Whole chunks of every instruction set, and whole vectors.
const BAND: usize = 48;
/// Columns of a key head of codes whose sums surely fit 32 bits.
const CODES_MAX_DIM: usize = 1024;
/// The largest code of a weight over bytes, or of a query of up to 512 columns: 512 · 32767 · 127 < 2³¹.
const CODE_MAX: f32 = 32767.0;
/// The largest code of a longer query over bytes: 1024 · 16383 · 127 < 2³¹.
const LONG_CODE_MAX: f32 = 16383.0;
/// The largest code of a key or value in int16.
const STORED_MAX: f32 = 4095.0;
/// The largest code of a weight over int16, or of a query of up to 64 columns: 64 · 8191 · 4095 < 2³¹.
const SHORT_CODE_MAX: f32 = 8191.0;

/// Rows of f32, `stride` apart: row r starts at element r · stride.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// The numbers, from the first column of the first row.
    pub data: &'a [f32],
    /// Elements from one row to the next.
    pub stride: usize,
}

impl<'a> Rows<'a> {
    /// Columns `range` of row `row`.
    fn get(&self, row: usize, range: Range<usize>) -> &'a [f32] {
        &self.data[row * self.stride..][range]
    }
}

/// Where keys and values are.
#[derive(Clone, Copy, Debug)]
pub enum Keys<'a> {
    /// In a cache that already holds this step's tokens.
    Cache {
        /// Its shape.
        layout: KvLayout,
        /// Its bytes.
        bytes: &'a [u8],
        /// The block tables of the batch, concatenated.
        tables: &'a [BlockId],
    },
    /// Latents in a cache that already holds this step's tokens: the keys and values of all heads. Columns of a query are
    /// those that meet the latent, in `q`, and those that meet the rotated key.
    Latents {
        /// Their shape.
        layout: LatentLayout,
        /// Their bytes.
        bytes: &'a [u8],
        /// As in `Cache`.
        tables: &'a [BlockId],
        /// Rotated queries. [tokens, heads × rope]
        q_rope: Rows<'a>,
    },
    /// In buffers of this step; a span is the whole sequence.
    Fresh {
        /// Keys. [tokens, kv_heads × k_dim]
        k: Rows<'a>,
        /// Values. [tokens, kv_heads × v_dim]
        v: Rows<'a>,
    },
}

/// The attention of one layer for one step.
#[derive(Clone, Copy, Debug)]
pub struct AttendJob<'a> {
    /// Query heads; heads / kv_heads of them share a key head.
    pub heads: usize,
    /// Key/value heads; of latents groups of query heads that are computed together ([`head_groups`]).
    pub kv_heads: usize,
    /// Columns of a query and key head; of latents both parts.
    pub k_dim: usize,
    /// Columns of a value head; of latents those of the latent.
    pub v_dim: usize,
    /// Multiplies q·k.
    pub scale: f32,
    /// Which keys are seen.
    pub mask: Mask,
    /// The block of each token, whose keys are seen as well; empty: no blocks. [tokens]
    pub blocks: &'a [[u32; 2]],
    /// Score cap.
    pub softcap: Option<f32>,
    /// One logit a query head. [heads]
    pub sinks: Option<&'a [f32]>,
    /// Rotated queries, those that meet latents. [tokens, heads × k_dim]
    pub q: Rows<'a>,
    /// Keys and values.
    pub keys: Keys<'a>,
    /// What the keys of the cache are without.
    pub steady: Option<&'a Steady>,
    /// Results. [tokens, heads × v_dim], rows `out_stride` apart
    pub out: Parts<'a, f32>,
    /// Elements from one row of `out` to the next.
    pub out_stride: usize,
}

/// A piece of work: the rows of some consecutive tokens of one span for one key/value head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// First token's row in `q` and `out`.
    pub row: u32,
    /// Tokens.
    pub tokens: u32,
    /// Index of the first token among the keys of its sequence.
    pub index: u32,
    /// Keys of the sequence, this step's included.
    pub keys: u32,
    /// Cache: where the block table starts in `tables`. Fresh: row of the sequence's first key.
    pub origin: u32,
    /// Key/value head.
    pub kv_head: u32,
}

/// Where [`plan_items`] finds the keys of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemSource {
    /// In a cache of this group.
    Cache {
        /// Cache group.
        group: usize,
    },
    /// In buffers of the step.
    Fresh,
}

/// Appends the items of a step to `items`: for `heads` query and `kv_heads` key heads.
///
/// Never more than Σ over spans of kv_heads · ⌈len / tokens of an item⌉ entries, where an item
/// has max(1, 96 · kv_heads / heads) tokens.
pub fn plan_items(
    spans: &[Span],
    source: ItemSource,
    heads: usize,
    kv_heads: usize,
    items: &mut Vec<Item>,
) {
    let most = item_tokens(heads, kv_heads);
    for span in spans {
        let (origin, context) = match source {
            ItemSource::Cache { group } => (span.tables[group], span.context),
            ItemSource::Fresh => (span.first, 0),
        };
        for kv_head in 0..kv_heads as u32 {
            for at in (0..span.len).step_by(most) {
                items.push(Item {
                    row: span.first + at,
                    tokens: (most as u32).min(span.len - at),
                    index: context + at,
                    keys: context + span.len,
                    origin,
                    kv_head,
                });
            }
        }
    }
}

/// What sums of scores or of values are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Numbers in f32.
    Numbers,
    /// Pairs of bf16 numbers, summed in f32.
    Pairs,
    /// Pairs of integer codes that are stored as bytes.
    Bytes,
    /// Pairs of integer codes of 16 bits.
    Shorts,
}

/// Most tokens of an item.
fn item_tokens(heads: usize, kv_heads: usize) -> usize {
    (ITEM_ROWS * kv_heads / heads).max(1)
}

impl<'a> AttendJob<'a> {
    /// The columns of a row's query: those in `q`, and the others.
    #[inline(always)]
    fn query(&self, item: &Item, row: usize) -> [&'a [f32]; 2] {
        let group = self.group();
        let token = item.row as usize + row / group;
        let head = item.kv_head as usize * group + row % group;
        let of = |rows: Rows<'a>, dim: usize| rows.get(token, head * dim..(head + 1) * dim);
        match self.keys {
            Keys::Latents { layout, q_rope, .. } => {
                [of(self.q, layout.latent), of(q_rope, layout.rope)]
            }
            _ => [of(self.q, self.k_dim), &[]],
        }
    }
}

impl AttendJob<'_> {
    /// Query heads of a key/value head.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// The largest code of a query of which so many columns are summed together.
    fn query_codes(&self, cols: usize) -> f32 {
        match self.formats().0 {
            // 2³¹ has room for products of all columns.
            KvFormat::Int16 => {
                let most = i32::MAX as usize / (STORED_MAX as usize * cols);
                SHORT_CODE_MAX.min(most as f32)
            }
            _ if cols <= 512 => CODE_MAX,
            _ => LONG_CODE_MAX,
        }
    }

    /// The largest code of a weight.
    fn weight_codes(&self) -> f32 {
        if self.formats().1 == KvFormat::Int16 { SHORT_CODE_MAX } else { CODE_MAX }
    }

    /// Formats of keys and values.
    fn formats(&self) -> (KvFormat, KvFormat) {
        match self.keys {
            Keys::Cache { layout, .. } => layout.formats(),
            Keys::Latents { layout, .. } => (layout.format, layout.format),
            Keys::Fresh { .. } => (KvFormat::F32, KvFormat::F32),
        }
    }

    /// What sums of scores and of values are made of with `isa`.
    fn kinds(&self, isa: Isa) -> (Kind, Kind) {
        match self.formats() {
            (KvFormat::Int16, _) => (Kind::Shorts, Kind::Shorts),
            (KvFormat::Int8, KvFormat::Int8) => (Kind::Bytes, Kind::Bytes),
            (KvFormat::Int8, _) => (Kind::Bytes, Kind::Numbers),
            (KvFormat::Bf16, _) if isa == Isa::Avx512Bf16 && self.k_dim.is_multiple_of(2) => {
                (Kind::Pairs, Kind::Pairs)
            }
            _ => (Kind::Numbers, Kind::Numbers),
        }
    }

    /// Indices of the keys that a token of an item sees. They begin and end in the order of tokens: blocks lie one after
    /// another.
    fn seen(&self, item: &Item, token: usize) -> Range<usize> {
        let block = self.blocks.get(item.row as usize + token).copied().unwrap_or([0; 2]);
        let (index, keys) = (item.index as usize + token, item.keys as usize);
        let seen = match self.mask {
            Mask::Causal => 0..index + 1,
            Mask::Window(n) => (index + 1).saturating_sub(n as usize)..index + 1,
            Mask::Chunk(n) => index / n as usize * n as usize..index + 1,
            Mask::None => 0..keys,
            Mask::Around(n) => index.saturating_sub(n as usize)..keys.min(index + n as usize + 1),
            Mask::Block => index..index + 1,
        };
        match block.map(|i| i as usize) {
            [_, 0] => seen,
            // (The token is in both, so this is one range.)
            [begin, end] => seen.start.min(begin)..seen.end.max(end),
        }
    }

    /// Rows of an item: its tokens by the heads of the group.
    fn rows(&self, item: &Item) -> usize {
        item.tokens as usize * self.group()
    }

    /// Indices of the keys that any of an item's rows sees.
    #[inline(always)]
    fn seen_by(&self, item: &Item, rows: Range<usize>) -> Range<usize> {
        let of = |row| self.seen(item, row / self.group());
        of(rows.start).start..of(rows.end - 1).end
    }

    /// The splits of 256 keys in which `item` sees a key. Where there are fewer items than
    /// threads, compute them apart by [`attend_split`] and then [`join_splits`].
    pub fn splits(&self, item: &Item) -> Range<usize> {
        let seen = self.seen_by(item, 0..self.rows(item));
        seen.start / SPLIT..seen.end.div_ceil(SPLIT)
    }

    /// Where the block table has the first block that a tile of `item` begins with.
    fn first_block(&self, item: &Item) -> usize {
        let tile = self.seen_by(item, 0..self.rows(item)).start / TILE;
        item.origin as usize + tile * (TILE / BLOCK_TOKENS)
    }

    /// f32s of a part: what a split of `item` comes to.
    pub fn part_len(&self, item: &Item) -> usize {
        self.rows(item) * splits::part_row(self.v_dim)
    }

    /// Panics unless the shapes agree and every key that `item` sees is there.
    fn check(&self, item: &Item) {
        assert!(self.kv_heads > 0 && self.heads.is_multiple_of(self.kv_heads), "heads");
        assert!(self.k_dim > 0 && self.v_dim > 0, "columns");
        assert!((item.kv_head as usize) < self.kv_heads, "kv head of the item");
        assert!(item.tokens > 0 && item.index + item.tokens <= item.keys, "keys of the item");
        assert!(self.sinks.is_none_or(|s| s.len() == self.heads), "a sink a head");
        match self.keys {
            Keys::Cache { layout, .. } => {
                let shape = (layout.kv_heads, layout.k_dim, layout.v_dim);
                assert_eq!(shape, (self.kv_heads, self.k_dim, self.v_dim), "shape of the cache");
                let codes = is_codes(layout.formats().0);
                assert!(!codes || self.k_dim <= CODES_MAX_DIM, "sums of codes");
            }
            Keys::Latents { layout, .. } => {
                let shape = (layout.latent + layout.rope, layout.latent);
                assert_eq!(shape, (self.k_dim, self.v_dim), "shape of the latents");
                assert!(self.steady.is_none(), "latents without a bias");
            }
            Keys::Fresh { .. } => {}
        }
    }
}

/// Computes one item. The caller's next item is `then`: its first keys and values are prefetched.
///
/// # Panics
/// If a buffer is smaller than its shape, a seen key's block is not in the cache, `scratch` was
/// made for another shape, or `isa` is not available on this machine.
///
/// # Safety
/// Nothing else may use the item's columns of its rows in `job.out` at the same time.
pub unsafe fn attend(
    isa: Isa,
    job: &AttendJob<'_>,
    item: &Item,
    then: Option<&Item>,
    scratch: &mut Scratch,
) {
    job.check(item);
    scratch.check(job, item);
    scratch.then = then.map(|then| (job.first_block(then), then.kv_head as usize));
    let rows = job.rows(item);
    splits::clear(scratch, rows);
    load_queries(isa, job, item, scratch);
    for split in job.splits(item) {
        run_split(isa, job, item, split, scratch);
        splits::merge(isa, scratch, rows, job.v_dim);
    }
    // SAFETY: passed on.
    unsafe { finish(isa, job, item, scratch) };
}

/// Computes one split of an item into `part`, `job.part_len(item)` long.
///
/// # Panics
/// As [`attend`], or if the part has another length.
pub fn attend_split(
    isa: Isa,
    job: &AttendJob<'_>,
    item: &Item,
    split: usize,
    part: &mut [f32],
    scratch: &mut Scratch,
) {
    job.check(item);
    scratch.check(job, item);
    assert_eq!(part.len(), job.part_len(item), "length of a part");
    scratch.then = None;
    load_queries(isa, job, item, scratch);
    run_split(isa, job, item, split, scratch);
    splits::save(isa, scratch, job.rows(item), job.v_dim, part);
}

/// Makes the results of an item from the parts of all `job.splits(item)`, in order, one after
/// another in `parts`: the same bits as [`attend`].
///
/// # Panics
/// As [`attend`], or if the parts have another length.
///
/// # Safety
/// As [`attend`].
pub unsafe fn join_splits(
    isa: Isa,
    job: &AttendJob<'_>,
    item: &Item,
    parts: &[f32],
    scratch: &mut Scratch,
) {
    job.check(item);
    scratch.check(job, item);
    let len = job.part_len(item);
    assert_eq!(parts.len(), len * job.splits(item).len(), "length of the parts");
    splits::clear(scratch, job.rows(item));
    for part in parts.chunks_exact(len) {
        splits::merge_part(isa, scratch, job.v_dim, part);
    }
    // SAFETY: passed on.
    unsafe { finish(isa, job, item, scratch) };
}

/// Puts the queries of an item into the scratch.
fn load_queries(isa: Isa, job: &AttendJob<'_>, item: &Item, scratch: &mut Scratch) {
    assert!(isa.is_available(), "{} is not available here", isa.name());
    // SAFETY: the features are there.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        match isa {
            Isa::Scalar => {}
            Isa::Avx2 | Isa::AvxVnni => {
                Avx2::<false>::load_queries(job, item, job.kinds(isa).0, scratch);
            }
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => {
                Avx512::<false>::load_queries(job, item, job.kinds(isa).0, scratch);
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (job, item, scratch);
}

/// Computes a split of an item whose queries are loaded, into the scratch.
fn run_split(isa: Isa, job: &AttendJob<'_>, item: &Item, split: usize, scratch: &mut Scratch) {
    let seen = job.seen_by(item, 0..job.rows(item));
    let range = seen.start.max(split * SPLIT)..seen.end.min((split + 1) * SPLIT);
    assert!(!range.is_empty(), "a split with a seen key");
    // SAFETY: the features are there: `load_queries` asserts it.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        match isa {
            Isa::Scalar => scalar::split(job, item, range, scratch),
            Isa::Avx2 => Avx2::<false>::split(job, item, range, job.kinds(isa), scratch),
            Isa::AvxVnni => Avx2::<true>::split(job, item, range, job.kinds(isa), scratch),
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => {
                Avx512::<false>::split(job, item, range, job.kinds(isa), scratch);
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = isa;
        scalar::split(job, item, range, scratch);
    }
}

per_isa! {
    /// Makes a result of transformed values one of values.
    turn_back(out: &mut [f32]) = turn_head;
}

#[inline(always)]
fn turn_head(head: &mut [f32]) {
    transform_blocks(head, transform_block(head.len()));
}

/// Writes the results of an item whose splits have joined.
///
/// # Safety
/// As [`attend`].
unsafe fn finish(isa: Isa, job: &AttendJob<'_>, item: &Item, scratch: &mut Scratch) {
    let (group, sinks) = (job.group(), splits::sinks_of(job, item));
    let start_of = |row: usize| {
        let head = item.kv_head as usize * group + row % group;
        (item.row as usize + row / group) * job.out_stride + head * job.v_dim
    };
    let rows = job.rows(item);
    for row in 0..rows {
        if row + ROWS_AHEAD < rows {
            let ahead = job.out.start().wrapping_add(start_of(row + ROWS_AHEAD));
            (0..job.v_dim)
                .step_by(GROUP)
                .for_each(|col| prefetch_to_write(ahead.wrapping_add(col)));
        }
        let at = start_of(row);
        // SAFETY: the item's own columns.
        let out = unsafe { job.out.part(at..at + job.v_dim) };
        splits::finish(isa, scratch, sinks, job.v_dim, row, out);
        if job.formats().1 == KvFormat::Int4 {
            turn_back(isa, out);
        }
    }
}
