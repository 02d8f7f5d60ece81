//! A tile of 64 keys and values as the kernels read it: f32, or 16-bit codes for int8.

use std::ops::Range;

use tokenmill_ir::{BlockId, KvFormat};

use super::layout::{BLOCK_TOKENS, GROUP, KvLayout};
use super::scratch::floats;
use super::vector::Vector;
use super::{AttendJob, Item, Keys, Rows, Scratch, TILE};

/// Reads the keys `seen` of the tile (relative to its first) into `scratch`. Keys beside them
/// in their groups become any numbers, values beside them are left alone (int8: any codes), and
/// their scales become 0.
///
/// # Safety
/// The instruction set of `V` is available.
#[inline(always)]
pub(super) unsafe fn tile<V: Vector>(
    job: &AttendJob<'_>,
    item: &Item,
    tile: usize,
    seen: Range<usize>,
    scratch: &mut Scratch,
) {
    match job.keys {
        Keys::Cache { layout, bytes, tables } => {
            for half in 0..TILE / BLOCK_TOKENS {
                let from = half * BLOCK_TOKENS;
                let slots = seen.start.clamp(from, from + 32) - from
                    ..seen.end.clamp(from, from + 32) - from;
                if !slots.is_empty() {
                    let at = item.origin as usize + tile * (TILE / BLOCK_TOKENS) + half;
                    let head_of = |at: usize| {
                        let block = tables.get(at).filter(|&&block| block != BlockId::NONE)?;
                        bytes.get(layout.head_at(block.0 as usize, item.kv_head as usize)..)
                    };
                    let head = head_of(at).expect("the block of a seen key");
                    // With one token there is little to compute while the next tile comes.
                    let more = item.tokens == 1 && (tile + 1) * TILE + from < item.keys as usize;
                    if let Some(next) = head_of(at + TILE / BLOCK_TOKENS).filter(|_| more) {
                        // SAFETY: passed on.
                        unsafe { fetch::<V>(next, layout.head_bytes()) };
                    }
                    // SAFETY: passed on.
                    unsafe { block::<V>(&layout, head, half, slots, scratch) };
                }
            }
        }
        Keys::Fresh { k, v } => {
            let (first, head) = (item.origin as usize + tile * TILE, item.kv_head as usize);
            fresh_keys(k, first, head * job.k_dim, job.k_dim, seen.clone(), scratch);
            fresh_values(v, first, head * job.v_dim, job.v_dim, seen, scratch);
        }
    }
}

/// Asks for the first `len` bytes of a head that is read soon, if it is read at all.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
unsafe fn fetch<V: Vector>(head: &[u8], len: usize) {
    for at in (0..len).step_by(64) {
        // SAFETY: passed on; any address may be asked for.
        unsafe { V::fetch(head.as_ptr().wrapping_add(at)) };
    }
}

/// Half of a tile: the slots `slots` of one block.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
unsafe fn block<V: Vector>(
    layout: &KvLayout,
    head: &[u8],
    half: usize,
    slots: Range<usize>,
    scratch: &mut Scratch,
) {
    let (keys, values, scales) = layout.split(head);
    let v_cols = layout.v_dim.next_multiple_of(GROUP);
    let groups = slots.start / GROUP..slots.end.div_ceil(GROUP);
    let k = &mut scratch.k[half * BLOCK_TOKENS / GROUP..];
    let v = &mut scratch.v[half * BLOCK_TOKENS * v_cols / layout.per_word() / GROUP..];
    // SAFETY: passed on.
    unsafe {
        match layout.format {
            KvFormat::F32 => {
                keys_of_groups::<V, F32>(keys, groups, floats(k));
                rows_of_values::<V, F32>(values, layout.v_dim, v_cols, slots, floats(v));
            }
            KvFormat::Bf16 => {
                keys_of_groups::<V, BF16>(keys, groups, floats(k));
                rows_of_values::<V, BF16>(values, layout.v_dim, v_cols, slots, floats(v));
            }
            KvFormat::Int8 => {
                keys_of_groups::<V, INT8>(keys, groups, floats(k));
                let pairs = slots.start / 2..slots.end.div_ceil(2);
                rows_of_values::<V, INT8>(values, layout.v_dim, v_cols, pairs, floats(v));
                let to = floats(&mut scratch.scales);
                let (of_keys, of_values) = scales.split_at(scales.len() / 2);
                copy_scales(of_keys, slots.clone(), &mut to[half * BLOCK_TOKENS..]);
                copy_scales(of_values, slots, &mut to[TILE + half * BLOCK_TOKENS..]);
            }
        }
    }
}

/// Kinds of words: an f32, a bf16 that becomes one, two codes that become i16s.
const F32: u8 = 0;
const BF16: u8 = 1;
const INT8: u8 = 2;

/// Stored bytes of a word.
const fn stored(kind: u8) -> usize {
    if kind == F32 { 4 } else { 2 }
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
            F32 => V::store(V::load(from.cast()), to),
            BF16 => V::store(V::halves(from.cast()), to),
            _ => V::store_int(V::bytes(from.cast()), to.cast()),
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
