//! A tile of 64 latents as the kernels read it: columns of keys by a transposition of rows, values in pairs of rows.

use std::ops::Range;

use tokenmill_ir::{BlockId, KvFormat};

use super::latent::{LatentLayout, SCALES, Segment, Segments, scales, value_stride};
use super::layout::{BLOCK_TOKENS, GROUP, is_codes};
use super::scratch::{Lanes, floats};
use super::sums::Sums;
use super::tiles::{TileSource, Tiles, see_pairs};
use super::{AttendJob, Item, Keys, Scratch, TILE};
use crate::simd::Vector;

/// How numbers become words: f32 as they are; bf16 as f32; pairs of bf16; pairs of bytes or of 16-bit codes.
const WORDS: u8 = 0;
const BF16: u8 = 1;
const PAIRS: u8 = 2;
const BYTES: u8 = 3;
const SHORTS: u8 = 4;

/// Bytes of the numbers of sixteen words of a key.
const fn key_bytes(kind: u8) -> usize {
    if kind == BF16 || kind == BYTES { 32 } else { 64 }
}

/// Bytes of sixteen numbers.
const fn value_bytes(kind: u8) -> usize {
    match kind {
        WORDS => 64,
        BYTES => 16,
        _ => 32,
    }
}

/// Makes the latents `seen` of the tile (relative to its first) readable for the kernels in the scratch: groups of keys, and
/// values. What stands beside them is as for other keys.
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
    let Keys::Latents { layout, bytes, tables, .. } = job.keys else {
        unreachable!("latents of a tile")
    };
    let blocks = &tables[item.origin as usize + tile * (TILE / BLOCK_TOKENS)..];
    let of_group = job.key_steps(K::PER_STEP) * GROUP;
    let of_half = BLOCK_TOKENS / W::PER_STEP * value_stride(layout.latent);
    let mut source = source_of(scratch, of_group, of_half, value_stride(layout.latent));
    for (half, block) in blocks.iter().enumerate().take(TILE / BLOCK_TOKENS) {
        let from = half * BLOCK_TOKENS;
        let slots = seen.start.clamp(from, from + BLOCK_TOKENS) - from
            ..seen.end.clamp(from, from + BLOCK_TOKENS) - from;
        if slots.is_empty() {
            continue;
        }
        assert!(*block != BlockId::NONE, "the block of a seen key");
        let rows = layout.rows(bytes, block.0 as usize, 0);
        if is_codes(layout.format) {
            copy_scales(&layout, rows, &slots, &mut floats(&mut scratch.scales)[from..]);
        }
        if W::TWO_ROWS {
            see_pairs(&slots, &mut source.seen_pairs[from / 2..][..BLOCK_TOKENS / 2]);
        }
        let keys = &mut floats(&mut scratch.k)[2 * half * of_group..];
        let values = &mut floats(&mut scratch.v)[half * of_half..];
        let segments = job.segments(K::PER_STEP);
        let half = Half { layout, rows, slots, seen: &source.seen_pairs[from / 2..], of_group };
        // SAFETY: passed on.
        unsafe {
            match layout.format {
                KvFormat::F32 => half.make::<V, W, WORDS>(segments, keys, values),
                KvFormat::Bf16 if K::TWO_ROWS => half.make::<V, W, PAIRS>(segments, keys, values),
                KvFormat::Bf16 => half.make::<V, W, BF16>(segments, keys, values),
                KvFormat::Int16 => half.make::<V, W, SHORTS>(segments, keys, values),
                _ => half.make::<V, W, BYTES>(segments, keys, values),
            }
        }
    }
    source
}

/// Where the tile will be: groups of keys one after the other, rows of values.
#[inline(always)]
fn source_of(scratch: &mut Scratch, of_group: usize, of_half: usize, v_step: usize) -> TileSource {
    let k: *const u8 = floats(&mut scratch.k).as_ptr().cast();
    let v: *const u8 = floats(&mut scratch.v).as_ptr().cast();
    TileSource {
        k: std::array::from_fn(|group| k.wrapping_add(group * of_group * 4)),
        k_step: GROUP * 4,
        keys_stored: false,
        v: [v, v.wrapping_add(of_half * 4)],
        v_step: v_step * 4,
        values_stored: false,
        seen_pairs: [0; TILE / 2],
        next_k: [k; 2],
        next_v: [v; 2],
        next_part: 0,
    }
}

/// Scales of the slots, 0 for the others of the block: those of latents as keys and as values, those of keys. to [3][64]
#[inline(always)]
fn copy_scales(layout: &LatentLayout, rows: &[u8], slots: &Range<usize>, to: &mut [f32]) {
    for (slot, row) in rows.chunks_exact(layout.row_bytes()).enumerate() {
        let [latent, key] = if slots.contains(&slot) { scales(row) } else { [0.0; 2] };
        (to[slot], to[TILE + slot], to[2 * TILE + slot]) = (latent, latent, key);
    }
}

/// Half a tile: one block.
struct Half<'a> {
    layout: LatentLayout,
    rows: &'a [u8],
    /// Which of its latents are seen.
    slots: Range<usize>,
    /// Their bits in pairs.
    seen: &'a [u32],
    /// Words of a group of keys.
    of_group: usize,
}

impl Half<'_> {
    /// Makes its keys and values.
    ///
    /// # Safety
    /// As [`tile`].
    #[inline(always)]
    unsafe fn make<V: Vector, W: Sums<V>, const KIND: u8>(
        &self,
        segments: Segments,
        keys: &mut [f32],
        values: &mut [f32],
    ) {
        let groups = self.slots.start / GROUP..self.slots.end.div_ceil(GROUP);
        for group in groups {
            let to = &mut keys[group * self.of_group..][..self.of_group];
            for segment in segments.clone() {
                // SAFETY: passed on.
                unsafe { self.keys::<V, KIND>(group * GROUP, &segment, to) };
            }
        }
        let (start, end) = W::steps(self.slots.clone());
        for step in start..end {
            let to = &mut values[step * value_stride(self.layout.latent)..];
            // SAFETY: passed on.
            unsafe {
                self.values::<V, KIND>(step, &mut to[..self.layout.latent.next_multiple_of(GROUP)])
            };
        }
    }

    /// Bytes of numbers `from ..` of a row.
    #[inline(always)]
    fn numbers(&self, row: usize, from: usize, count: usize) -> &[u8] {
        let size = self.layout.number_bytes();
        let start = row * self.layout.row_bytes() + SCALES + from * size;
        &self.rows[start..start + count * size]
    }

    /// A segment of the 16 keys from row `first` on: `[steps][16]` words.
    ///
    /// # Safety
    /// As [`tile`].
    #[inline(always)]
    unsafe fn keys<V: Vector, const KIND: u8>(
        &self,
        first: usize,
        segment: &Segment,
        to: &mut [f32],
    ) {
        let (vector, row_bytes) = (key_bytes(KIND), self.layout.row_bytes());
        let (start, len) = (segment.cols.start, segment.cols.len());
        let whole = self.numbers(first, start, len).len() / vector;
        assert!(self.numbers(first + GROUP - 1, start, len).len() >= whole * vector, "16 rows");
        let from = self.numbers(first, start, len).as_ptr();
        let to = &mut to[segment.first * GROUP..][..segment.steps * GROUP];
        let (wholes, rest) = to.split_at_mut(whole * GROUP * GROUP);
        let mut words = [Lanes([0.0; GROUP]); GROUP];
        for (i, to) in wholes.as_chunks_mut::<{ GROUP * GROUP }>().0.iter_mut().enumerate() {
            // SAFETY: `whole` vectors of 16 rows, as asserted; 16 vectors of both buffers.
            unsafe {
                let from = from.add(i * vector);
                if KIND == WORDS || KIND == SHORTS {
                    V::transpose(from, row_bytes, to.as_mut_ptr().cast());
                    continue;
                }
                for (row, words) in words.iter_mut().enumerate() {
                    widen_key::<V, KIND>(from.add(row * row_bytes), words);
                }
                V::transpose(words.as_ptr().cast(), 64, to.as_mut_ptr().cast());
            }
        }
        if rest.is_empty() {
            return;
        }
        for (row, words) in words.iter_mut().enumerate() {
            let mut last = [0_u8; 64];
            let numbers = &self.numbers(first + row, start, len)[whole * vector..];
            last[..numbers.len()].copy_from_slice(numbers);
            // SAFETY: 64 bytes.
            unsafe { widen_key::<V, KIND>(last.as_ptr(), words) };
        }
        let mut all = [0.0; GROUP * GROUP];
        // SAFETY: 16 vectors of both.
        unsafe { V::transpose(words.as_ptr().cast(), 64, all.as_mut_ptr().cast()) };
        rest.copy_from_slice(&all[..rest.len()]);
    }

    /// The values of a step: of one row, or of two.
    ///
    /// # Safety
    /// As [`tile`].
    #[inline(always)]
    unsafe fn values<V: Vector, const KIND: u8>(&self, step: usize, to: &mut [f32]) {
        let rows = match KIND {
            WORDS | BF16 => [step; 2],
            PAIRS => [2 * step, 2 * step + 1],
            _ => [step, step + GROUP],
        };
        let from = rows.map(|row| self.numbers(row, 0, self.layout.latent));
        let seen = if KIND == PAIRS { self.seen[step] } else { 0 };
        let (wholes, rest) = to.split_at_mut(self.layout.latent / GROUP * GROUP);
        let mut at = from.map(<[u8]>::as_ptr);
        for to in wholes.as_chunks_mut::<GROUP>().0 {
            // SAFETY: 16 numbers of both rows.
            unsafe {
                widen_values::<V, KIND>(at, seen, to);
                at = at.map(|at| at.add(value_bytes(KIND)));
            }
        }
        if let Ok(rest) = <&mut [f32; GROUP]>::try_from(rest) {
            let done = wholes.len() * self.layout.number_bytes();
            let last = from.map(|from| {
                let mut last = [0_u8; 64];
                last[..from.len() - done].copy_from_slice(&from[done..]);
                last
            });
            // SAFETY: 64 bytes.
            unsafe {
                let at = [last[0].as_ptr(), last[1].as_ptr()];
                widen_values::<V, KIND>(at, seen, rest);
            }
        }
    }
}

/// Sixteen words of a key.
///
/// # Safety
/// As [`tile`]; `from` covers them.
#[inline(always)]
unsafe fn widen_key<V: Vector, const KIND: u8>(from: *const u8, to: &mut Lanes) {
    let to = to.0.as_mut_ptr();
    // SAFETY: passed on.
    unsafe {
        match KIND {
            BF16 => V::store_floats(V::bf16s(from.cast()), to),
            PAIRS => V::store(V::swap_halves(V::load(from)), to.cast()),
            BYTES => V::store(V::bytes(from.cast()), to.cast()),
            _ => V::store(V::load(from), to.cast()),
        }
    }
}

/// Sixteen words of values: of the first row, or pairs of both.
///
/// # Safety
/// As [`tile`]; both pointers cover them.
#[inline(always)]
unsafe fn widen_values<V: Vector, const KIND: u8>(
    [a, b]: [*const u8; 2],
    seen: u32,
    to: &mut [f32; GROUP],
) {
    let to = to.as_mut_ptr();
    // SAFETY: passed on.
    unsafe {
        match KIND {
            BF16 => V::store_floats(V::bf16s(a.cast()), to),
            PAIRS => {
                let seen = V::int(V::same(seen as i32));
                V::store(V::and(V::pairs(a.cast(), b.cast()), seen), to.cast());
            }
            BYTES => V::store(V::byte_pairs(b.cast(), a.cast()), to.cast()),
            SHORTS => V::store(V::pairs(b.cast(), a.cast()), to.cast()),
            _ => V::store(V::load(a), to.cast()),
        }
    }
}
