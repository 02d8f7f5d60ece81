//! The paged caches: how keys, values and states lie in memory.
//!
//! A block of 32 tokens holds, head after head: keys as `[k_dim][32 tokens]`, so that a register
//! holds one column of sixteen keys; values as `[32 tokens][v_dim padded to 16]`; and for bytes
//! the f32 scales of the 32 keys and values.

use tokenmill_backend::DeviceError;
use tokenmill_ir::{BlockId, CacheKind, CacheSpec, KvFormat, Limits};
use tokenmill_quant::float::f32_to_bf16;

use crate::lanes::LANES;
use crate::memory::Buffer;
use crate::weight::out_of_memory;

/// Tokens in a block.
pub(crate) const BLOCK: usize = 32;

/// One cache of one layer.
#[derive(Debug)]
pub(crate) struct KvCache {
    pub format: KvFormat,
    pub group: usize,
    pub heads: usize,
    pub k_dim: usize,
    pub v_dim: usize,
    /// Columns from one value to the next.
    pub v_stride: usize,
    /// Bytes from the keys of a head to its values, to the scales of keys and of values.
    pub values_at: usize,
    pub k_scales_at: usize,
    pub v_scales_at: usize,
    pub head_bytes: usize,
    start: *mut u8,
    blocks: usize,
    _buffer: Buffer,
}

// SAFETY: a cache owns its memory; workers write different tokens and heads of it, and read what
// was written before the last barrier.
unsafe impl Send for KvCache {}
// SAFETY: as above.
unsafe impl Sync for KvCache {}

impl KvCache {
    /// Room for the blocks of its group; untouched pages cost nothing.
    pub fn new(spec: &CacheSpec, limits: &Limits) -> Result<Self, DeviceError> {
        let (heads, k_dim, v_dim) = match spec.kind {
            CacheKind::Full { kv_heads, k_dim, v_dim }
            | CacheKind::Window { kv_heads, k_dim, v_dim, .. } => (kv_heads, k_dim, v_dim),
            // One head whose values are the latents again, beside rotated keys after them.
            CacheKind::Latent { latent, rope } => (1, latent + rope, latent),
            CacheKind::State { len } => (0, len, 0),
        };
        let [heads, k_dim, v_dim] = [heads, k_dim, v_dim].map(|n| n as usize);
        let (size, scale) = match spec.format {
            KvFormat::F32 => (4, 0),
            KvFormat::Bf16 => (2, 0),
            KvFormat::Int8 => (1, 4 * BLOCK),
        };
        let v_stride = v_dim.next_multiple_of(LANES);
        let values_at = (k_dim * BLOCK * size).next_multiple_of(64);
        let k_scales_at = values_at + v_stride * BLOCK * size;
        let v_scales_at = k_scales_at + scale;
        let head_bytes = v_scales_at + scale;
        let group = spec.group as usize;
        let blocks = limits.group_blocks.get(group).copied().unwrap_or(0) as usize;
        let block_bytes = if heads == 0 { k_dim * 4 } else { heads * head_bytes };
        let bytes = blocks.checked_mul(block_bytes).unwrap_or(usize::MAX);
        let mut buffer = Buffer::zeroed(bytes).map_err(out_of_memory)?;
        Ok(Self {
            format: spec.format,
            group,
            heads,
            k_dim,
            v_dim,
            v_stride,
            values_at,
            k_scales_at,
            v_scales_at,
            head_bytes,
            start: buffer.bytes_mut().as_mut_ptr(),
            blocks,
            _buffer: buffer,
        })
    }

    /// Bytes of a block (of a slot for states).
    fn block_bytes(&self) -> usize {
        if self.heads == 0 { self.k_dim * 4 } else { self.heads * self.head_bytes }
    }

    /// The first byte of a head in a block.
    #[inline]
    pub fn head(&self, block: BlockId, head: usize) -> *mut u8 {
        let block = block.0 as usize;
        assert!(block < self.blocks && head < self.heads);
        // SAFETY: inside the buffer.
        unsafe { self.start.add(block * self.block_bytes() + head * self.head_bytes) }
    }

    /// The numbers of a state slot.
    ///
    /// # Safety
    /// Nobody else uses the slot's numbers in `range` meanwhile.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slot(&self, slot: BlockId, range: std::ops::Range<usize>) -> &mut [f32] {
        let at = slot.0 as usize;
        assert!(self.heads == 0 && at < self.blocks && range.end <= self.k_dim);
        // SAFETY: inside the buffer, which is aligned to large pages; alone by contract.
        unsafe {
            let first = self.start.cast::<f32>().add(at * self.k_dim + range.start);
            std::slice::from_raw_parts_mut(first, range.len())
        }
    }

    /// Copies a block.
    ///
    /// # Safety
    /// Nobody else uses the cache meanwhile.
    pub unsafe fn copy(&self, src: BlockId, dst: BlockId) {
        let (src, dst, len) = (src.0 as usize, dst.0 as usize, self.block_bytes());
        assert!(src < self.blocks && dst < self.blocks);
        // SAFETY: both inside the buffer; `copy` allows them to be the same.
        unsafe { self.start.add(src * len).copy_to(self.start.add(dst * len), len) }
    }

    /// Stores one key of a head. [k_dim]
    ///
    /// # Safety
    /// Nobody else writes this token of this head, or reads it before the next barrier.
    pub unsafe fn store_key(&self, block: BlockId, head: usize, token: usize, key: &[f32]) {
        assert!(token < BLOCK && key.len() == self.k_dim);
        let at = self.head(block, head);
        // SAFETY: keys lie `BLOCK` elements apart from the start of the head.
        unsafe { self.store(at, BLOCK, token, self.k_scales_at, token, key) }
    }

    /// Stores one value of a head. [v_dim]
    ///
    /// # Safety
    /// As [`Self::store_key`].
    pub unsafe fn store_value(&self, block: BlockId, head: usize, token: usize, value: &[f32]) {
        assert!(token < BLOCK && value.len() == self.v_dim);
        let at = self.head(block, head);
        // SAFETY: values lie one after another from `values_at`, `v_stride` apart.
        unsafe {
            let scales = self.v_scales_at.wrapping_sub(self.values_at);
            self.store(at.add(self.values_at), 1, token * self.v_stride, scales, token, value);
        }
    }

    /// Writes `x[i]` to element `first + i·step` from `at`, and for bytes the scale of `token`
    /// `scales` bytes after `at`.
    unsafe fn store(
        &self,
        at: *mut u8,
        step: usize,
        first: usize,
        scales: usize,
        token: usize,
        x: &[f32],
    ) {
        // SAFETY: the callers give places inside the head's run, aligned for the format.
        unsafe {
            match self.format {
                KvFormat::F32 => {
                    let at = at.cast::<f32>().add(first);
                    x.iter().enumerate().for_each(|(i, &x)| at.add(i * step).write(x));
                }
                KvFormat::Bf16 => {
                    let at = at.cast::<u16>().add(first);
                    let put = |(i, &x): (usize, &f32)| at.add(i * step).write(f32_to_bf16(x));
                    x.iter().enumerate().for_each(put);
                }
                KvFormat::Int8 => {
                    // As integers, so that a NaN is the largest of all and shows in the scale.
                    let top = x.iter().fold(0, |top, x| top.max(x.to_bits() & 0x7fff_ffff));
                    let scale = f32::from_bits(top) / 127.0;
                    let code = |x: f32| if scale == 0.0 { 0.0 } else { x / scale };
                    at.add(scales).cast::<f32>().add(token).write(scale);
                    let at = at.cast::<i8>().add(first);
                    for (i, &x) in x.iter().enumerate() {
                        at.add(i * step).write(code(x).round_ties_even() as i8);
                    }
                }
            }
        }
    }
}
