//! What sequences keep between steps: paged keys and values, latents, slots of states.

use std::ops::Range;

use tokenmill_backend::DeviceError;
use tokenmill_ir::{BlockId, CacheKind, CacheSpec, KvFormat, Limits};
use tokenmill_quant::float::{bf16_to_f32, f32_to_bf16};

use crate::DEVICE;
use crate::attend::{BLOCK_TOKENS, KvLayout};
use crate::isa::Isa;
use crate::memory::{Parts, forget};
use crate::weight::{Bytes, Slabs};

/// How the numbers of a cache lie in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Keys and values of 32 tokens.
    Paged(KvLayout),
    /// One row a token: the latent, then the rotated key, each with its scale for bytes.
    Latent(LatentRow),
    /// A slot of f32.
    State(usize),
}

/// A token of a latent cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LatentRow {
    format: KvFormat,
    pub latent: usize,
    pub rope: usize,
}

impl LatentRow {
    /// Bytes of a token: two scales (used for bytes only), then the numbers.
    fn bytes(&self) -> usize {
        let size = match self.format {
            KvFormat::F32 => 4,
            KvFormat::Bf16 => 2,
            _ => 1,
        };
        8 + ((self.latent + self.rope) * size).next_multiple_of(4)
    }
}

/// One cache of one layer.
#[derive(Debug)]
pub(crate) struct Cache {
    pub group: usize,
    pub shape: Shape,
    block_bytes: usize,
    blocks: usize,
    start: *mut u8,
    /// Owns the memory behind `start`.
    _bytes: Bytes,
}

// SAFETY: a cache owns its memory; workers write different tokens or slots of it, and read what
// was written before the last barrier.
unsafe impl Send for Cache {}
// SAFETY: as above.
unsafe impl Sync for Cache {}

/// Bytes of a block of a group, all its caches.
pub(crate) fn block_bytes(caches: &[Cache], group: usize) -> usize {
    caches.iter().filter(|c| c.group == group).map(Cache::block_bytes).sum()
}

impl Cache {
    /// Room for the blocks of its group, beside the other caches: layers that hold little share
    /// large pages. Untouched pages cost nothing.
    pub fn new(spec: &CacheSpec, limits: &Limits, slabs: &mut Slabs) -> Result<Self, DeviceError> {
        let n = |x: u32| x as usize;
        let shape = match spec.kind {
            CacheKind::Full { kv_heads, k_dim, v_dim }
            | CacheKind::Window { kv_heads, k_dim, v_dim, .. } => Shape::Paged(KvLayout {
                format: spec.format,
                kv_heads: n(kv_heads),
                k_dim: n(k_dim),
                v_dim: n(v_dim),
            }),
            CacheKind::Latent { .. } if spec.format.of_latents() != spec.format => {
                let what = format!("latents in {:?}", spec.format);
                return Err(DeviceError::Unsupported { device: DEVICE.into(), what });
            }
            CacheKind::Latent { latent, rope } => {
                Shape::Latent(LatentRow { format: spec.format, latent: n(latent), rope: n(rope) })
            }
            CacheKind::State { len } => Shape::State(n(len)),
        };
        let block_bytes = match shape {
            Shape::Paged(layout) => layout.block_bytes(),
            Shape::Latent(row) => row.bytes() * BLOCK_TOKENS,
            Shape::State(len) => len * 4,
        };
        let group = n(spec.group);
        let blocks = n(limits.group_blocks.get(group).copied().unwrap_or(0));
        let bytes = slabs.take(blocks.saturating_mul(block_bytes), "keys and values")?;
        // SAFETY: just taken.
        let start = unsafe { bytes.fill() }.as_mut_ptr();
        Ok(Self { group, shape, block_bytes, blocks, start, _bytes: bytes })
    }

    /// All bytes, to read.
    ///
    /// # Safety
    /// What is read was written before the last barrier, and nobody writes it at the same time.
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the whole buffer; by contract.
        unsafe { std::slice::from_raw_parts(self.start, self.blocks * self.block_bytes) }
    }

    /// All bytes, for workers to write parts of.
    pub fn parts(&self) -> Parts<'_, u8> {
        // SAFETY: the whole buffer; using parts of it is the unsafe of `Parts`.
        Parts::new(unsafe {
            std::slice::from_raw_parts_mut(self.start, self.blocks * self.block_bytes)
        })
    }

    /// Some numbers of a state slot.
    ///
    /// # Safety
    /// Nobody else uses them at the same time.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn state(&self, slot: BlockId, range: Range<usize>) -> &mut [f32] {
        let start = slot.0 as usize * self.block_bytes + range.start * 4;
        // SAFETY: `part` checks the range, which is aligned as states are whole f32; alone by
        // contract.
        unsafe {
            let bytes = self.parts().part(start..start + range.len() * 4);
            std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), range.len())
        }
    }

    /// Gives the memory of the blocks from that one on back; they read as zeros.
    pub fn forget_from(&mut self, block: usize) {
        let start = block.min(self.blocks) * self.block_bytes;
        let len = self.blocks * self.block_bytes - start;
        // SAFETY: inside the buffer, which nobody else uses while it is borrowed alone.
        unsafe { forget(self.start.add(start), len) };
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Where a block lies.
    pub fn addresses(&self, block: BlockId) -> Range<*const u8> {
        let start = self.start.cast_const().wrapping_add(block.0 as usize * self.block_bytes);
        start..start.wrapping_add(self.block_bytes)
    }

    /// All of a block's bytes.
    ///
    /// # Safety
    /// Nobody else uses the block at the same time.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn block(&self, block: BlockId) -> &mut [u8] {
        let start = block.0 as usize * self.block_bytes;
        // SAFETY: `part` checks the range; alone by contract.
        unsafe { self.parts().part(start..start + self.block_bytes) }
    }

    /// Copies a block.
    ///
    /// # Safety
    /// Nobody else uses the cache at the same time.
    pub unsafe fn copy(&self, src: BlockId, dst: BlockId) {
        let (src, dst, len) = (src.0 as usize, dst.0 as usize, self.block_bytes);
        assert!(src < self.blocks && dst < self.blocks, "blocks of the cache");
        // SAFETY: both inside the buffer; `copy_to` allows them to be the same.
        unsafe { self.start.add(src * len).copy_to(self.start.add(dst * len), len) }
    }

    fn latent_row(&self, row: &LatentRow, block: BlockId, token: usize) -> Range<usize> {
        let start = block.0 as usize * self.block_bytes + token * row.bytes();
        start..start + row.bytes()
    }

    /// Stores a token of a latent cache.
    ///
    /// # Safety
    /// Nobody else uses the token at the same time.
    pub unsafe fn store_latent(&self, block: BlockId, token: usize, latent: &[f32], key: &[f32]) {
        let Shape::Latent(row) = &self.shape else { return };
        // SAFETY: by contract.
        let bytes = unsafe { self.parts().part(self.latent_row(row, block, token)) };
        let (scales, mut numbers) = bytes.split_at_mut(8);
        for (i, x) in [latent, key].into_iter().enumerate() {
            let top = x.iter().fold(0, |top, x| top.max(x.to_bits() & 0x7fff_ffff));
            let scale = f32::from_bits(top) / 127.0;
            scales[4 * i..4 * i + 4].copy_from_slice(&scale.to_le_bytes());
            for &x in x {
                let code = if scale == 0.0 { 0.0 } else { (x / scale).round_ties_even() };
                let (four, two) = (x.to_le_bytes(), f32_to_bf16(x).to_le_bytes());
                let one = [code as i8 as u8];
                let stored: &[u8] = match row.format {
                    KvFormat::F32 => &four,
                    KvFormat::Bf16 => &two,
                    _ => &one,
                };
                let (now, rest) = numbers.split_at_mut(stored.len());
                now.copy_from_slice(stored);
                numbers = rest;
            }
        }
    }

    /// Reads a token of a latent cache: its latent and its key. out [latent + rope]
    ///
    /// # Safety
    /// As [`Self::bytes`].
    pub unsafe fn load_latent(&self, isa: Isa, block: BlockId, token: usize, out: &mut [f32]) {
        let Shape::Latent(row) = &self.shape else { return };
        // SAFETY: by contract.
        let bytes = &unsafe { self.bytes() }[self.latent_row(row, block, token)];
        load_row(isa, row, bytes, out);
    }
}

crate::math::per_isa! {
    /// The numbers of a stored row.
    load_row(row: &LatentRow, bytes: &[u8], out: &mut [f32]) = load_row_lanes;
}

#[inline(always)]
fn load_row_lanes(row: &LatentRow, bytes: &[u8], out: &mut [f32]) {
    let (scales, numbers) = bytes.split_at(8);
    match row.format {
        KvFormat::F32 => {
            let numbers = numbers.as_chunks::<4>().0;
            out.iter_mut().zip(numbers).for_each(|(o, n)| *o = f32::from_le_bytes(*n));
        }
        KvFormat::Bf16 => {
            let numbers = numbers.as_chunks::<2>().0;
            let of = |n: &[u8; 2]| bf16_to_f32(u16::from_le_bytes(*n));
            out.iter_mut().zip(numbers).for_each(|(o, n)| *o = of(n));
        }
        _ => {
            let (latent, key) = out.split_at_mut(row.latent);
            let (of_latent, of_key) = numbers.split_at(row.latent);
            let scales = scales.as_chunks::<4>().0;
            for ((out, numbers), scale) in
                [(latent, of_latent), (key, of_key)].into_iter().zip(scales)
            {
                let scale = f32::from_le_bytes(*scale);
                out.iter_mut().zip(numbers).for_each(|(o, n)| *o = f32::from(*n as i8) * scale);
            }
        }
    }
}
