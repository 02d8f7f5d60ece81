//! What sequences keep, as f32 already rounded through the cache's format.

use tokenmill_ir::{BlockCopy, BlockId, CacheKind, CacheSpec, GroupKind, KvFormat, Limits};
use tokenmill_quant::float::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

use crate::DeviceError;

/// One row a token (or one a state slot) of the first and second kind of number a cache keeps:
/// keys and values, latents and rotated keys; states have the first only.
#[derive(Debug)]
pub(super) struct Cache {
    pub spec: CacheSpec,
    /// Tokens in a block; 1 for states.
    pub block_tokens: usize,
    /// Columns and heads of each kind.
    shapes: [(usize, usize); 2],
    data: [Vec<f32>; 2],
}

impl Cache {
    pub fn new(spec: &CacheSpec, limits: &Limits, block_tokens: u32) -> Result<Self, DeviceError> {
        let latent = matches!(spec.kind, CacheKind::Latent { .. });
        if latent && spec.format.of_latents() != spec.format {
            let what = format!("latents in {:?}", spec.format);
            return Err(DeviceError::Unsupported { device: "reference".into(), what });
        }
        let state = spec.group_kind() == GroupKind::State;
        let block_tokens = if state { 1 } else { block_tokens as usize };
        let blocks = limits.group_blocks.get(spec.group as usize).copied().unwrap_or(0) as usize;
        let n = |x: u32| x as usize;
        let shapes = match spec.kind {
            CacheKind::Full { kv_heads, k_dim, v_dim }
            | CacheKind::Window { kv_heads, k_dim, v_dim, .. } => {
                [(n(kv_heads * k_dim), n(kv_heads)), (n(kv_heads * v_dim), n(kv_heads))]
            }
            CacheKind::Latent { latent, rope } => [(n(latent), 1), (n(rope), 1)],
            CacheKind::State { len } => [(n(len), 1), (0, 1)],
        };
        let mut data = [Vec::new(), Vec::new()];
        for (data, (cols, _)) in data.iter_mut().zip(shapes) {
            let len = blocks * block_tokens * cols;
            data.try_reserve_exact(len).map_err(|_| DeviceError::OutOfMemory {
                device: "reference".into(),
                what: "a cache".into(),
                needed_bytes: len as u64 * 4,
            })?;
            data.resize(len, 0.0);
        }
        Ok(Self { spec: *spec, block_tokens, shapes, data })
    }

    /// The cache with its numbers, leaving an empty one behind.
    pub fn take(&mut self) -> Self {
        let data = std::mem::take(&mut self.data);
        Self { data, ..*self }
    }

    /// Kind `which` of token `index` of the sequence with that block table. [cols]
    pub fn row(&self, which: usize, table: &[BlockId], index: usize) -> &[f32] {
        let (cols, at) = (self.shapes[which].0, self.at(table, index));
        &self.data[which][at * cols..][..cols]
    }

    /// Stores a row through the cache's format.
    pub fn store(&mut self, which: usize, table: &[BlockId], index: usize, row: &[f32]) {
        let ((cols, heads), at) = (self.shapes[which], self.at(table, index));
        let to = &mut self.data[which][at * cols..][..cols];
        to.copy_from_slice(row);
        let (keys, values) = self.spec.format.parts();
        match if which == 0 { keys } else { values } {
            KvFormat::F32 => {}
            KvFormat::Bf16 => to.iter_mut().for_each(|x| *x = bf16_to_f32(f32_to_bf16(*x))),
            KvFormat::Int16 => to.chunks_exact_mut(cols / heads).for_each(|x| round_to(4095.0, x)),
            KvFormat::Int8 => to.chunks_exact_mut(cols / heads).for_each(|x| round_to(127.0, x)),
            _ => to.chunks_exact_mut(cols / heads).for_each(round_to_int4),
        }
    }

    fn at(&self, table: &[BlockId], index: usize) -> usize {
        table[index / self.block_tokens].0 as usize * self.block_tokens + index % self.block_tokens
    }

    /// The state in a slot, zeros for `NONE`. [len]
    pub fn state(&self, slot: BlockId) -> Vec<f32> {
        let len = self.shapes[0].0;
        match slot {
            BlockId::NONE => vec![0.0; len],
            BlockId(slot) => self.data[0][slot as usize * len..][..len].to_vec(),
        }
    }

    /// Writes a slot.
    pub fn put_state(&mut self, slot: BlockId, state: &[f32]) {
        self.data[0][slot.0 as usize * state.len()..][..state.len()].copy_from_slice(state);
    }

    /// Bytes of a block or slot.
    pub fn block_bytes(&self) -> usize {
        self.shapes.iter().map(|(cols, _)| self.block_tokens * cols * 4).sum()
    }

    /// A whole block or slot as bytes. [block_bytes]
    pub fn read_block(&self, block: BlockId, mut out: &mut [u8]) {
        for (data, (cols, _)) in self.data.iter().zip(self.shapes) {
            let len = self.block_tokens * cols;
            let (now, rest) = out.split_at_mut(len * 4);
            let numbers = &data[block.0 as usize * len..][..len];
            for (to, x) in now.as_chunks_mut::<4>().0.iter_mut().zip(numbers) {
                *to = x.to_le_bytes();
            }
            out = rest;
        }
    }

    /// Fills a block or slot with such bytes. [block_bytes]
    pub fn write_block(&mut self, block: BlockId, mut bytes: &[u8]) {
        for (data, (cols, _)) in self.data.iter_mut().zip(self.shapes) {
            let len = self.block_tokens * cols;
            let (now, rest) = bytes.split_at(len * 4);
            let numbers = &mut data[block.0 as usize * len..][..len];
            for (x, from) in numbers.iter_mut().zip(now.as_chunks::<4>().0) {
                *x = f32::from_le_bytes(*from);
            }
            bytes = rest;
        }
    }

    /// Forgets the blocks from that one on. (It keeps their memory: nobody serves with it.)
    pub fn forget_from(&mut self, block: u32) {
        for (data, (cols, _)) in self.data.iter_mut().zip(self.shapes) {
            data[block as usize * self.block_tokens * cols..].fill(0.0);
        }
    }

    /// Copies a whole block or slot.
    pub fn copy(&mut self, copy: &BlockCopy) {
        for (data, (cols, _)) in self.data.iter_mut().zip(self.shapes) {
            let len = self.block_tokens * cols;
            let start = copy.src.0 as usize * len;
            data.copy_within(start..start + len, copy.dst.0 as usize * len);
        }
    }
}

/// `x ≈ s·q`, `s = max|x| / most`.
fn round_to(most: f32, head: &mut [f32]) {
    let scale = head.iter().fold(0.0f32, |m, x| m.max(x.abs())) / most;
    for x in head {
        *x = if scale == 0.0 { 0.0 } else { (*x / scale).round_ties_even() * scale };
    }
}

/// There and back through a Hadamard transform over blocks of the largest power of two that
/// divides the head; between, `x ≈ s·(2q − 15)` with an f16 `s = max|x| / 15` for 32 columns.
fn round_to_int4(head: &mut [f32]) {
    let block = 1 << head.len().trailing_zeros().min(8);
    head.chunks_exact_mut(block).for_each(transform);
    for group in head.chunks_mut(32) {
        let top = group.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        let scale = f16_to_f32(f32_to_f16(top / 15.0));
        for x in group {
            let q = (*x / (2.0 * scale)).floor().clamp(-8.0, 7.0);
            *x = if scale == 0.0 { 0.0 } else { (2.0 * q + 1.0) * scale };
        }
    }
    head.chunks_exact_mut(block).for_each(transform);
}

/// The orthonormal Hadamard transform, its own inverse.
fn transform(block: &mut [f32]) {
    let mut distance = 1;
    while distance < block.len() {
        for i in (0..block.len()).filter(|i| i & distance == 0) {
            let (a, b) = (block[i], block[i + distance]);
            (block[i], block[i + distance]) = (a + b, a - b);
        }
        distance *= 2;
    }
    let scale = 1.0 / (block.len() as f32).sqrt();
    block.iter_mut().for_each(|x| *x *= scale);
}
