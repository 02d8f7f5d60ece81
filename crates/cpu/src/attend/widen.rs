//! A tile of 64 keys and values as the kernels read it: f32, pairs of bf16, or 16-bit codes for int8; or
//! left as it is stored.

use std::ops::Range;

use tokenmill_ir::{BlockId, KvFormat};
use tokenmill_quant::float::f16_to_f32;

use super::layout::{BLOCK_TOKENS, GROUP, KvLayout, SCALED, is_codes};
use super::scratch::floats;
use super::sums::Sums;
use super::tiles::{TileSource, Tiles, fetch, see_pairs};
use super::{AttendJob, Item, Keys, Rows, Scratch, TILE, latent_tiles};
use crate::simd::Vector;

/// Makes the keys `seen` of the tile (relative to its first) and their values readable for the
/// kernels: widened into `scratch`, or where they lie if few rows read them. Keys beside them in
/// their groups are any numbers, values beside them (int8: any codes) are not read into results,
/// and their scales become 0.
///
/// # Safety
/// The instruction set of `V` is available.
#[inline(always)]
pub(super) unsafe fn tile<V: Tiles, K: Sums<V>, W: Sums<V>>(
    job: &AttendJob<'_>,
    item: &Item,
    tile: usize,
    seen: Range<usize>,
    scratch: &mut Scratch,
) -> TileSource {
    let mut source = widened(job, W::PER_STEP, scratch);
    match job.keys {
        Keys::Cache { layout, bytes, tables } => {
            let few = item.tokens as usize * job.group() <= FEW * V::ROWS;
            let (keys, values) = layout.formats();
            // int16 is read as it is.
            let stays = |format| format == KvFormat::Int16 || few && format != KvFormat::Int4;
            let here = Here {
                few,
                keys: stays(keys),
                values: stays(values) && layout.v_dim.is_multiple_of(GROUP),
            };
            stay(&layout, here, (K::TWO_ROWS, W::TWO_ROWS), &mut source);
            if !few {
                let chunks = job.rows(item).div_ceil(V::ROWS);
                source.next_part = layout.head_bytes().div_ceil(chunks).next_multiple_of(64);
            }
            for half in 0..TILE / BLOCK_TOKENS {
                let from = half * BLOCK_TOKENS;
                let slots = seen.start.clamp(from, from + 32) - from
                    ..seen.end.clamp(from, from + 32) - from;
                if slots.is_empty() {
                    continue;
                }
                let at = item.origin as usize + tile * (TILE / BLOCK_TOKENS) + half;
                let head_of = |at: usize, head: usize| {
                    let block = tables.get(at).filter(|&&block| block != BlockId::NONE)?;
                    bytes.get(layout.head_at(block.0 as usize, head)..)
                };
                let own = item.kv_head as usize;
                let head = head_of(at, own).expect("the block of a seen key");
                // Prefetched: the next tile, or the first of the item that follows.
                let next = if (tile + 1) * TILE + from < item.keys as usize {
                    head_of(at + TILE / BLOCK_TOKENS, own)
                } else {
                    scratch.then.and_then(|(at, of)| head_of(at + half, of))
                };
                let next = next.unwrap_or(head);
                source.next_k[half] = next.as_ptr();
                source.next_v[half] = next.as_ptr().wrapping_add(layout.key_bytes());
                if few {
                    layout.scale_lines(next).for_each(fetch);
                }
                // SAFETY: passed on.
                unsafe {
                    let to = (&mut *scratch, &mut source);
                    block::<V, K, W>(&layout, head, half, slots, here, to);
                }
            }
        }
        // SAFETY: passed on.
        Keys::Latents { .. } => unsafe {
            source = latent_tiles::tile::<V, K, W>(job, item, tile, seen, scratch);
        },
        Keys::Fresh { k, v } => {
            let (first, head) = (item.origin as usize + tile * TILE, item.kv_head as usize);
            fresh_keys(k, first, head * job.k_dim, job.k_dim, seen.clone(), scratch);
            fresh_values(v, first, head * job.v_dim, job.v_dim, seen, scratch);
        }
    }
    source
}

/// Up to so many times the rows of a kernel read keys where they lie: widening them once and
/// reading them back costs more than widening them as often.
const FEW: usize = 2;

/// What is read where it lies.
#[derive(Clone, Copy)]
struct Here {
    /// Whether few rows read it.
    few: bool,
    keys: bool,
    values: bool,
}

/// Where a widened tile is.
#[inline(always)]
fn widened(job: &AttendJob<'_>, per_word: usize, scratch: &mut Scratch) -> TileSource {
    let v_step = job.v_dim.next_multiple_of(GROUP) * 4;
    let k: *const u8 = floats(&mut scratch.k).as_ptr().cast();
    let v: *const u8 = floats(&mut scratch.v).as_ptr().cast();
    TileSource {
        k: std::array::from_fn(|group| k.wrapping_add(group * GROUP * 4)),
        k_step: TILE * 4,
        keys_stored: false,
        v: [v, v.wrapping_add(BLOCK_TOKENS / per_word * v_step)],
        v_step,
        values_stored: false,
        seen_pairs: [0; TILE / 2],
        next_k: [k; 2],
        next_v: [v; 2],
        next_part: 0,
    }
}

/// Steps of what is read where it lies: of one row, or of two.
#[inline(always)]
fn stay(layout: &KvLayout, here: Here, two_rows: (bool, bool), source: &mut TileSource) {
    let (keys, values) = layout.formats();
    let word = |format| if matches!(format, KvFormat::F32 | KvFormat::Int16) { 4 } else { 2 };
    if here.keys {
        source.keys_stored = here.few && keys != KvFormat::F32;
        source.k_step = (GROUP * word(keys)) << u8::from(two_rows.0);
    }
    if here.values {
        source.values_stored = here.few && values != KvFormat::F32;
        source.v_step = (layout.v_dim * word(values)) << u8::from(two_rows.1);
    }
}

/// Half of a tile: the slots `slots` of one block.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
unsafe fn block<V: Vector, K: Sums<V>, W: Sums<V>>(
    layout: &KvLayout,
    head: &[u8],
    half: usize,
    slots: Range<usize>,
    here: Here,
    (scratch, source): (&mut Scratch, &mut TileSource),
) {
    let [keys, values, key_scales, value_scales] = layout.split(head);
    let (k_dim, v_dim) = (layout.k_dim, layout.v_dim);
    let v_cols = v_dim.next_multiple_of(GROUP);
    let groups = slots.start / GROUP..slots.end.div_ceil(GROUP);
    let k = floats(&mut scratch.k[half * BLOCK_TOKENS / GROUP..]);
    let v = floats(&mut scratch.v[half * BLOCK_TOKENS * v_cols / W::PER_STEP / GROUP..]);
    if W::TWO_ROWS {
        see_pairs(&slots, &mut source.seen_pairs[half * BLOCK_TOKENS / 2..][..BLOCK_TOKENS / 2]);
    }
    let (to_keys, to_values) = floats(&mut scratch.scales).split_at_mut(TILE);
    let (key_format, value_format) = layout.formats();
    if here.keys {
        let half_keys = keys.as_ptr();
        source.k[2 * half] = half_keys;
        source.k[2 * half + 1] = half_keys.wrapping_add(keys.len() / 2);
    }
    if here.values {
        source.v[half] = values.as_ptr();
    }
    if is_codes(key_format) {
        copy_scales(key_scales, slots.clone(), &mut to_keys[half * BLOCK_TOKENS..]);
    }
    if is_codes(value_format) {
        copy_scales(value_scales, slots.clone(), &mut to_values[half * BLOCK_TOKENS..]);
    }
    // SAFETY: passed on.
    unsafe {
        match key_format {
            _ if here.keys => {}
            KvFormat::F32 => keys_of_groups::<V, WORDS>(keys, groups, k),
            KvFormat::Bf16 if K::TWO_ROWS => keys_of_groups::<V, PAIRS>(keys, groups, k),
            KvFormat::Bf16 => keys_of_groups::<V, BF16>(keys, groups, k),
            KvFormat::Int16 => unreachable!("int16 keys stay where they are"),
            KvFormat::Int8 => keys_of_groups::<V, INT8>(keys, groups, k),
            KvFormat::Int4 | KvFormat::K8V4 => {
                nibbles_of_keys::<V>(keys, key_scales, k_dim, groups, k);
            }
        }
        let (start, end) = W::steps(slots.clone());
        let pairs = start..end;
        match value_format {
            _ if here.values => {}
            KvFormat::F32 => rows_of_values::<V, WORDS>(values, v_dim, v_cols, slots, v),
            KvFormat::Bf16 if W::TWO_ROWS => {
                let seen = &source.seen_pairs[half * BLOCK_TOKENS / 2..];
                pairs_of_values::<V>(values, v_dim, v_cols, slots, seen, v);
            }
            KvFormat::Bf16 => rows_of_values::<V, BF16>(values, v_dim, v_cols, slots, v),
            KvFormat::Int16 => rows_of_values::<V, WORDS>(values, v_dim, v_cols, pairs, v),
            KvFormat::Int8 => rows_of_values::<V, INT8>(values, v_dim, v_cols, pairs, v),
            KvFormat::Int4 | KvFormat::K8V4 => {
                nibbles_of_values::<V>(values, value_scales, v_cols, slots, v);
            }
        }
    }
}

/// `[2][D4][16][16]` bytes of two columns to columns of `[D][64]`.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
unsafe fn nibbles_of_keys<V: Vector>(
    keys: &[u8],
    scales: &[u8],
    dim: usize,
    groups: Range<usize>,
    to: &mut [f32],
) {
    let blocks = dim.div_ceil(SCALED);
    assert!(keys.len() == 2 * blocks * 256 && scales.len() == 2 * blocks * 32, "a block of keys");
    assert!(groups.end <= 2 && to.len() >= (dim - 1) * TILE + BLOCK_TOKENS, "a tile of keys");
    for (group, block) in groups.flat_map(|g| (0..blocks).map(move |b| (g, b))) {
        let at = group * blocks + block;
        // SAFETY: inside `keys` and `scales` by their lengths, and `to` as asserted.
        unsafe {
            let scale = V::f16s(scales.as_ptr().add(at * 32).cast());
            let from = keys.as_ptr().add(at * 256);
            let to = to.as_mut_ptr().add(group * GROUP);
            for pair in 0..16.min((dim - block * SCALED).div_ceil(2)) {
                let [low, high] = V::nibbles(from.add(pair * GROUP));
                let col = block * SCALED + 2 * pair;
                V::store_floats(V::mul(low, scale), to.add(col * TILE));
                if col + 1 < dim {
                    V::store_floats(V::mul(high, scale), to.add((col + 1) * TILE));
                }
            }
        }
    }
}

/// `[32][V4][16]` bytes of two columns to rows of `cols` f32.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
unsafe fn nibbles_of_values<V: Vector>(
    values: &[u8],
    scales: &[u8],
    cols: usize,
    rows: Range<usize>,
    to: &mut [f32],
) {
    let groups = cols.div_ceil(SCALED);
    assert!(values.len() == BLOCK_TOKENS * groups * 16, "a block of values");
    let scales = scales.as_chunks::<2>().0;
    for row in rows {
        let to = &mut to[row * cols..][..cols];
        for group in 0..groups {
            let at = row * groups + group;
            let scale = f16_to_f32(u16::from_le_bytes(scales[at]));
            // SAFETY: 16 bytes of `values` by its length; 16 or 32 columns of `to`.
            unsafe {
                let [low, high] = V::nibbles(values.as_ptr().add(at * 16));
                let to = to.as_mut_ptr().add(group * SCALED);
                V::store_floats(V::mul(low, V::splat(scale)), to);
                if group * SCALED + GROUP < cols {
                    V::store_floats(V::mul(high, V::splat(scale)), to.add(GROUP));
                }
            }
        }
    }
}

/// Kinds of words: an f32 or anything of its size, a bf16 that becomes one, two codes that become i16s, a bf16 here and one in the
/// next row of 16.
const WORDS: u8 = 0;
const BF16: u8 = 1;
const INT8: u8 = 2;
const PAIRS: u8 = 3;

/// Stored bytes of a word.
const fn stored(kind: u8) -> usize {
    if kind == WORDS || kind == PAIRS { 4 } else { 2 }
}

/// Widens 16 words.
///
/// # Safety
/// As [`tile`]; `from` covers them, `to` 64 bytes.
#[inline(always)]
unsafe fn widen<V: Vector, const KIND: u8>(from: *const u8, to: *mut f32) {
    // SAFETY: passed on.
    unsafe {
        match KIND {
            WORDS => V::store(V::load(from.cast()), to.cast()),
            BF16 => V::store_floats(V::bf16s(from.cast()), to),
            PAIRS => V::store(V::pairs(from.cast(), from.add(2 * GROUP).cast()), to.cast()),
            _ => V::store(V::bytes(from.cast()), to.cast()),
        }
    }
}

/// `[2][steps][16]` words to columns of `[steps][64]`.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
unsafe fn keys_of_groups<V: Vector, const KIND: u8>(
    keys: &[u8],
    groups: Range<usize>,
    to: &mut [f32],
) {
    let steps = keys.len() / (BLOCK_TOKENS * stored(KIND));
    assert!(groups.end <= 2 && to.len() >= (steps - 1) * TILE + BLOCK_TOKENS, "a tile of keys");
    for group in groups {
        for step in 0..steps {
            // SAFETY: inside `keys` by its length and `to` as asserted.
            unsafe {
                let from = keys.as_ptr().add((group * steps + step) * GROUP * stored(KIND));
                widen::<V, KIND>(from, to.as_mut_ptr().add(step * TILE + group * GROUP));
            }
        }
    }
}

/// Rows of `dim` words to rows of `cols` words.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
unsafe fn rows_of_values<V: Vector, const KIND: u8>(
    values: &[u8],
    dim: usize,
    cols: usize,
    rows: Range<usize>,
    to: &mut [f32],
) {
    for row in rows {
        let from = &values[row * dim * stored(KIND)..][..dim * stored(KIND)];
        let to = &mut to[row * cols..][..cols];
        for col in (0..dim / GROUP * GROUP).step_by(GROUP) {
            // SAFETY: 16 words of both.
            unsafe {
                let from = from.as_ptr().add(col * stored(KIND));
                widen::<V, KIND>(from, to.as_mut_ptr().add(col));
            }
        }
        let rest = dim % GROUP;
        if rest > 0 {
            let mut last = [0; 4 * GROUP];
            last[..rest * stored(KIND)].copy_from_slice(&from[(dim - rest) * stored(KIND)..]);
            // SAFETY: 16 words of both: `cols` is a multiple of 16.
            unsafe { widen::<V, KIND>(last.as_ptr(), to.as_mut_ptr().add(dim - rest)) };
        }
    }
}

/// Rows of `dim` bf16s to rows of `cols` pairs of two of them, the bits `seen` of each pair.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
unsafe fn pairs_of_values<V: Vector>(
    values: &[u8],
    dim: usize,
    cols: usize,
    slots: Range<usize>,
    seen: &[u32],
    to: &mut [f32],
) {
    for pair in slots.start / 2..slots.end.div_ceil(2) {
        let (high, low) = values[pair * dim * 4..][..dim * 4].split_at(dim * 2);
        let to = &mut to[pair * cols..][..cols];
        for col in (0..dim).step_by(GROUP) {
            // The end of a row is not read beyond.
            let mut last = [[0; 2 * GROUP]; 2];
            let mut from = [high[2 * col..].as_ptr(), low[2 * col..].as_ptr()];
            if dim - col < GROUP {
                last[0][..2 * (dim - col)].copy_from_slice(&high[2 * col..]);
                last[1][..2 * (dim - col)].copy_from_slice(&low[2 * col..]);
                from = [last[0].as_ptr(), last[1].as_ptr()];
            }
            // SAFETY: 16 bf16s of both, 16 words of `to`: `cols` is a multiple of 16.
            unsafe {
                let seen = V::int(V::same_at(seen[pair..].as_ptr().cast()));
                let both = V::and(V::pairs(from[0].cast(), from[1].cast()), seen);
                V::store(both, to[col..][..GROUP].as_mut_ptr().cast());
            }
        }
    }
}

/// Scales of the slots, 0 for the others of the block.
#[inline(always)]
fn copy_scales(scales: &[u8], slots: Range<usize>, to: &mut [f32]) {
    let (scales, to) = (scales.as_chunks::<4>().0, &mut to[..BLOCK_TOKENS]);
    for (slot, (to, from)) in to.iter_mut().zip(scales).enumerate() {
        *to = if slots.contains(&slot) { f32::from_le_bytes(*from) } else { 0.0 };
    }
}

/// Rows of fresh keys to columns of `[D][64]`.
#[inline(always)]
fn fresh_keys(
    k: Rows<'_>,
    first: usize,
    col: usize,
    dim: usize,
    seen: Range<usize>,
    scratch: &mut Scratch,
) {
    let to = &mut floats(&mut scratch.k)[..dim * TILE];
    for key in seen {
        let from = k.get(first + key, col..col + dim);
        for (to, x) in to[key..].iter_mut().step_by(TILE).zip(from) {
            *to = *x;
        }
    }
}

/// Rows of fresh values.
#[inline(always)]
fn fresh_values(
    v: Rows<'_>,
    first: usize,
    col: usize,
    dim: usize,
    seen: Range<usize>,
    scratch: &mut Scratch,
) {
    let cols = dim.next_multiple_of(GROUP);
    let to = floats(&mut scratch.v);
    for key in seen {
        to[key * cols..][..dim].copy_from_slice(v.get(first + key, col..col + dim));
    }
}
