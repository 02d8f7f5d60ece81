//! A tile of 64 keys and values as the kernels read it: f32, or 16-bit codes for int8.
//!
//! Plain Rust, inlined into functions compiled for wider registers.

use std::ops::Range;

use tokenmill_ir::{BlockId, KvFormat};
use tokenmill_quant::float::bf16_to_f32;

use super::layout::{BLOCK_TOKENS, GROUP, KvLayout};
use super::scratch::{floats, shorts};
use super::{AttendJob, Item, Keys, Rows, Scratch, TILE};

/// Reads the keys `seen` of the tile (relative to its first) into `scratch`. Keys beside them
/// in their groups become any numbers, values beside them are left alone (int8: any codes), and
/// their scales become 0.
#[inline(always)]
pub(super) fn tile(
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
                    let head = head(&layout, bytes, tables[at], item.kv_head as usize);
                    block(&layout, head, half, slots, scratch);
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

/// The bytes of a head of a block.
#[inline(always)]
fn head<'a>(layout: &KvLayout, bytes: &'a [u8], block: BlockId, head: usize) -> &'a [u8] {
    &bytes[layout.head_at(block.0 as usize, head)..]
}

/// Half of a tile: the slots `slots` of one block.
#[inline(always)]
fn block(layout: &KvLayout, head: &[u8], half: usize, slots: Range<usize>, scratch: &mut Scratch) {
    let (keys, values, scales) = layout.split(head);
    let v_cols = layout.v_dim.next_multiple_of(GROUP);
    let groups = slots.start / GROUP..slots.end.div_ceil(GROUP);
    match layout.format {
        KvFormat::F32 => {
            keys_by_groups(keys, half, groups, floats(&mut scratch.k), f32::from_le_bytes);
            let v = &mut floats(&mut scratch.v)[half * BLOCK_TOKENS * v_cols..];
            values_by_rows(values, layout.v_dim, v_cols, slots, v, f32::from_le_bytes);
        }
        KvFormat::Bf16 => {
            let widen = |x| bf16_to_f32(u16::from_le_bytes(x));
            keys_by_groups(keys, half, groups, floats(&mut scratch.k), widen);
            let v = &mut floats(&mut scratch.v)[half * BLOCK_TOKENS * v_cols..];
            values_by_rows(values, layout.v_dim, v_cols, slots, v, widen);
        }
        KvFormat::Int8 => {
            codes_of_keys(keys, half, groups, shorts(&mut scratch.k));
            let v = &mut shorts(&mut scratch.v)[half * BLOCK_TOKENS * v_cols..];
            codes_of_values(values, layout.v_dim, v_cols, slots.clone(), v);
            let to = floats(&mut scratch.scales);
            let (of_keys, of_values) = scales.split_at(scales.len() / 2);
            copy_scales(of_keys, slots.clone(), &mut to[half * BLOCK_TOKENS..]);
            copy_scales(of_values, slots, &mut to[TILE + half * BLOCK_TOKENS..]);
        }
    }
}

/// `[2][D][16]` numbers to columns of `[D][64]`.
#[inline(always)]
fn keys_by_groups<const N: usize>(
    keys: &[u8],
    half: usize,
    groups: Range<usize>,
    to: &mut [f32],
    number: impl Fn([u8; N]) -> f32,
) {
    let (keys, to) = (keys.as_chunks::<N>().0.as_chunks::<GROUP>().0, to.as_chunks_mut::<TILE>().0);
    let dim = keys.len() / 2;
    for group in groups {
        let lane = half * BLOCK_TOKENS + group * GROUP;
        for (from, to) in keys[group * dim..][..dim].iter().zip(&mut *to) {
            if let Some(to) = to[lane..].first_chunk_mut::<GROUP>() {
                *to = from.map(&number);
            }
        }
    }
}

/// Rows of `dim` numbers to rows of `cols` f32.
#[inline(always)]
fn values_by_rows<const N: usize>(
    values: &[u8],
    dim: usize,
    cols: usize,
    slots: Range<usize>,
    to: &mut [f32],
    number: impl Fn([u8; N]) -> f32,
) {
    let values = values.as_chunks::<N>().0;
    for slot in slots {
        let (from, to) = (&values[slot * dim..][..dim], &mut to[slot * cols..][..dim]);
        let (vectors, rest) = from.as_chunks::<GROUP>();
        let (to_vectors, to_rest) = to.as_chunks_mut::<GROUP>();
        for (to, from) in to_vectors.iter_mut().zip(vectors) {
            *to = from.map(&number);
        }
        for (to, from) in to_rest.iter_mut().zip(rest) {
            *to = number(*from);
        }
    }
}

/// `[2][pairs][16][2]` codes to columns of `[pairs][64][2]` i16.
#[inline(always)]
fn codes_of_keys(keys: &[u8], half: usize, groups: Range<usize>, to: &mut [i16]) {
    const PAIRS: usize = 2 * GROUP;
    let (keys, to) = (keys.as_chunks::<PAIRS>().0, to.as_chunks_mut::<{ 2 * TILE }>().0);
    let dim = keys.len() / 2;
    for group in groups {
        let lane = 2 * (half * BLOCK_TOKENS + group * GROUP);
        for (from, to) in keys[group * dim..][..dim].iter().zip(&mut *to) {
            if let Some(to) = to[lane..].first_chunk_mut::<PAIRS>() {
                *to = from.map(|code| i16::from(code as i8));
            }
        }
    }
}

/// `[16][dim][2]` codes to rows of `cols` pairs of i16.
#[inline(always)]
fn codes_of_values(values: &[u8], dim: usize, cols: usize, slots: Range<usize>, to: &mut [i16]) {
    const PAIRS: usize = 2 * GROUP;
    for pair in slots.start / 2..slots.end.div_ceil(2) {
        let from = &values[pair * dim * 2..][..dim * 2];
        let to = &mut to[pair * cols * 2..][..dim * 2];
        let (vectors, rest) = from.as_chunks::<PAIRS>();
        let (to_vectors, to_rest) = to.as_chunks_mut::<PAIRS>();
        for (to, from) in to_vectors.iter_mut().zip(vectors) {
            *to = from.map(|code| i16::from(code as i8));
        }
        for (to, from) in to_rest.iter_mut().zip(rest) {
            *to = i16::from(*from as i8);
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
