//! What sequences keep between steps: paged keys and values, latents, slots of states.

use std::ops::Range;

use tokenmill_backend::DeviceError;
use tokenmill_ir::{BlockId, CacheKind, CacheSpec, Limits};

use crate::DEVICE;
use crate::attend::{KvLayout, LatentLayout};
use crate::memory::{Parts, forget};
use crate::weight::{Bytes, Slabs};

/// How the numbers of a cache lie in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Keys and values of 32 tokens.
    Paged(KvLayout),
    /// Rows of 32 tokens: the latent, then the rotated key.
    Latent(LatentLayout),
    /// A slot of f32.
    State(usize),
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
            CacheKind::Latent { latent, rope } => Shape::Latent(LatentLayout {
                format: spec.format,
                latent: n(latent),
                rope: n(rope),
            }),
            CacheKind::State { len } => Shape::State(n(len)),
        };
        let block_bytes = match shape {
            Shape::Paged(layout) => layout.block_bytes(),
            Shape::Latent(layout) => layout.block_bytes(),
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
}
