//! How keys and values of one layer lie in blocks of 32 tokens, and how a token is stored.
//!
//! A block holds its heads one after another; a head holds, for its 32 tokens in two groups of
//! 16 (D and V: columns of a key and of a value; D4 and V4: their groups of 32 columns):
//!
//! | part | f32 | bf16 | int16, int8 | int4 |
//! |---|---|---|---|---|
//! | keys | `[2][D][16]` f32 | `[2][D][16]` u16 | `[2][⌈D/2⌉][16][2]` i16 or i8, pairs of columns | `[2][D4][16][16]` u8, pairs of columns |
//! | values | `[32][V]` f32 | `[32][V]` u16 | `[16][V][2]` i16 or i8, tokens i and i + 16 | `[32][V4][16]` u8, columns i and i + 16 |
//! | key scales | | | `[32]` f32 | `[2][D4][16]` f16 |
//! | value scales | | | `[32]` f32 | `[32][V4]` f16 |

use tokenmill_ir::KvFormat;
use tokenmill_quant::float::{bf16_factor, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

use super::STORED_MAX;
use super::codes::{code_scale, short_code, top};
use super::mix::{MIX_MAX, mixed, transform_block, transform_blocks};
use crate::isa::Isa;
use crate::math::per_isa;
use crate::memory::Parts;

/// Tokens of a block.
pub const BLOCK_TOKENS: usize = 32;
/// Keys of a group: the lanes of a vector.
pub(super) const GROUP: usize = 16;
/// Columns that share a scale in int4.
pub(super) const SCALED: usize = 32;

/// Shape of one layer's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// How numbers are stored.
    pub format: KvFormat,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Columns of a key head.
    pub k_dim: usize,
    /// Columns of a value head.
    pub v_dim: usize,
}

impl KvLayout {
    /// Bytes of a block: block `b` of a cache starts at byte `b · block_bytes()`.
    #[inline]
    pub const fn block_bytes(&self) -> usize {
        self.kv_heads * self.head_bytes()
    }

    /// Bytes of a cache of `blocks` blocks.
    pub const fn bytes(&self, blocks: usize) -> usize {
        blocks * self.block_bytes()
    }

    /// Formats of keys and of values.
    #[inline]
    pub(super) const fn formats(&self) -> (KvFormat, KvFormat) {
        self.format.parts()
    }

    /// Bytes of a head in a block.
    #[inline]
    pub(super) const fn head_bytes(&self) -> usize {
        let (keys, values) = self.formats();
        let scales = scale_bytes(keys, self.k_dim) + scale_bytes(values, self.v_dim);
        self.key_bytes() + self.value_bytes() + scales
    }

    /// Bytes of the keys of a head, which come first.
    #[inline]
    pub(super) const fn key_bytes(&self) -> usize {
        BLOCK_TOKENS
            * match self.formats().0 {
                KvFormat::F32 => self.k_dim * 4,
                KvFormat::Bf16 => self.k_dim * 2,
                KvFormat::Int16 => self.k_dim.next_multiple_of(2) * 2,
                KvFormat::Int8 => self.k_dim.next_multiple_of(2),
                KvFormat::Int4 | KvFormat::K8V4 => self.k_dim.div_ceil(SCALED) * SCALED / 2,
            }
    }

    #[inline]
    const fn value_bytes(&self) -> usize {
        BLOCK_TOKENS
            * match self.formats().1 {
                KvFormat::F32 => self.v_dim * 4,
                KvFormat::Bf16 | KvFormat::Int16 => self.v_dim * 2,
                KvFormat::Int8 => self.v_dim,
                KvFormat::Int4 | KvFormat::K8V4 => self.v_dim.div_ceil(SCALED) * SCALED / 2,
            }
    }

    /// First byte of a head in a block.
    #[inline]
    pub(super) const fn head_at(&self, block: usize, head: usize) -> usize {
        block * self.block_bytes() + head * self.head_bytes()
    }

    /// The parts of a head: keys, values, scales of keys, scales of values.
    #[inline]
    pub(super) fn split<'a>(&self, head: &'a [u8]) -> [&'a [u8]; 4] {
        let (keys, rest) = head[..self.head_bytes()].split_at(self.key_bytes());
        let (values, scales) = rest.split_at(self.value_bytes());
        let (of_keys, of_values) = scales.split_at(scale_bytes(self.formats().0, self.k_dim));
        [keys, values, of_keys, of_values]
    }

    /// The cache lines of a head's scales.
    #[inline(always)]
    pub(super) fn scale_lines(&self, head: &[u8]) -> impl Iterator<Item = *const u8> + use<> {
        let (first, end) = (self.scales_at().0, self.head_bytes());
        let head = head.as_ptr();
        (first..end).step_by(64).map(move |at| head.wrapping_add(at))
    }

    /// First byte of the scales of keys, and of values, in a head.
    fn scales_at(&self) -> (usize, usize) {
        let keys = self.key_bytes() + self.value_bytes();
        (keys, keys + scale_bytes(self.formats().0, self.k_dim))
    }

    /// Stores one token: `slot` (0–31) of `block`. k `[kv_heads × k_dim]` after norm and
    /// rotation, v `[kv_heads × v_dim]`.
    ///
    /// # Panics
    /// If a row has another length, the slot is not in the cache, or `isa` is not available.
    ///
    /// # Safety
    /// Nothing else may use the numbers of that token at the same time; other tokens of the block may
    /// be stored at the same time.
    pub unsafe fn store(
        &self,
        isa: Isa,
        cache: Parts<'_, u8>,
        block: usize,
        slot: usize,
        k: &[f32],
        v: &[f32],
    ) {
        assert_eq!(k.len(), self.kv_heads * self.k_dim, "key row");
        // SAFETY: passed on.
        unsafe { self.store_heads(isa, cache, (block, slot), 0, k, v) };
    }

    /// Stores heads `first ..` of a token at a block and a slot of it: as many as `k` and `v`
    /// hold.
    ///
    /// # Panics
    /// As [`KvLayout::store`].
    ///
    /// # Safety
    /// As [`KvLayout::store`], for these heads of the token.
    pub unsafe fn store_heads(
        &self,
        isa: Isa,
        cache: Parts<'_, u8>,
        (block, slot): (usize, usize),
        first: usize,
        k: &[f32],
        v: &[f32],
    ) {
        let count = k.len() / self.k_dim;
        assert_eq!(k.len(), count * self.k_dim, "key row");
        assert_eq!(v.len(), count * self.v_dim, "value row");
        assert!(first + count <= self.kv_heads, "heads of the cache");
        assert!(slot < BLOCK_TOKENS, "slot of the block");
        assert!(isa.is_available(), "{} is not available here", isa.name());
        assert!(cache.len() >= self.bytes(block + 1), "block of the cache");
        // Compiled for AVX-512 the steps become scatters, which are slower.
        let isa = isa.min(Isa::Avx2);
        let heads = k.chunks_exact(self.k_dim).zip(v.chunks_exact(self.v_dim));
        for (head, (k, v)) in (first..).zip(heads) {
            // SAFETY: inside the cache, as just asserted.
            let at = unsafe { cache.start().add(self.head_at(block, head)) };
            let to = Slot { layout: *self, at, slot };
            match self.format {
                KvFormat::F32 => store_f32(isa, to, k, v),
                KvFormat::Bf16 => store_bf16(isa, to, k, v),
                KvFormat::Int16 => store_int16(isa, to, k, v),
                KvFormat::Int8 => store_int8(isa, to, k, v),
                KvFormat::Int4 => store_int4(isa, to, k, v),
                KvFormat::K8V4 => store_k8v4(isa, to, k, v),
            }
        }
    }

    /// Key `slot` of a head (its bytes, all of them) as f32. For int16 and int8: codes without the
    /// scale, which is returned (1 for other formats).
    pub(super) fn key(&self, head: &[u8], slot: usize, out: &mut [f32]) -> f32 {
        let [keys, _, scales, _] = self.split(head);
        let (format, groups) = (self.formats().0, self.k_dim.div_ceil(SCALED));
        for (d, out) in out.iter_mut().enumerate() {
            *out = match format {
                KvFormat::Int4 => {
                    let block = slot / GROUP * groups + d / SCALED;
                    let byte = keys[(block * 16 + d % SCALED / 2) * GROUP + slot % GROUP];
                    number4(byte, d % 2 == 1, scales, block * GROUP + slot % GROUP)
                }
                _ => number(format, keys, self.key_index(slot, d)),
            };
        }
        if is_codes(format) { number(KvFormat::F32, scales, slot) } else { 1.0 }
    }

    /// Value `slot` of a head, as [`KvLayout::key`].
    pub(super) fn value(&self, head: &[u8], slot: usize, out: &mut [f32]) -> f32 {
        let [_, values, _, scales] = self.split(head);
        let (format, groups) = (self.formats().1, self.v_dim.div_ceil(SCALED));
        for (d, out) in out.iter_mut().enumerate() {
            *out = match format {
                KvFormat::Int4 => {
                    let group = slot * groups + d / SCALED;
                    let byte = values[group * 16 + d % 16];
                    number4(byte, d % SCALED >= 16, scales, group)
                }
                _ => number(format, values, self.value_index(slot, d)),
            };
        }
        if is_codes(format) { number(KvFormat::F32, scales, slot) } else { 1.0 }
    }

    /// Element of a key of whole bytes among the keys of a head.
    #[inline(always)]
    fn key_index(&self, slot: usize, d: usize) -> usize {
        let (group, lane) = (slot / GROUP, slot % GROUP);
        match self.formats().0 {
            KvFormat::Int16 | KvFormat::Int8 => {
                ((group * self.k_dim.div_ceil(2) + d / 2) * GROUP + lane) * 2 + d % 2
            }
            _ => (group * self.k_dim + d) * GROUP + lane,
        }
    }

    /// Element of a value of whole bytes among the values of a head.
    #[inline(always)]
    fn value_index(&self, slot: usize, d: usize) -> usize {
        match self.formats().1 {
            KvFormat::Int16 | KvFormat::Int8 => (slot % GROUP * self.v_dim + d) * 2 + slot / GROUP,
            _ => slot * self.v_dim + d,
        }
    }
}

/// Bytes of the scales of a head's keys or values.
#[inline]
const fn scale_bytes(format: KvFormat, dim: usize) -> usize {
    BLOCK_TOKENS
        * match format {
            KvFormat::F32 | KvFormat::Bf16 => 0,
            KvFormat::Int16 | KvFormat::Int8 => 4,
            KvFormat::Int4 | KvFormat::K8V4 => dim.div_ceil(SCALED) * 2,
        }
}

/// Whether numbers are codes with one scale a token and head.
pub(super) const fn is_codes(format: KvFormat) -> bool {
    matches!(format, KvFormat::Int16 | KvFormat::Int8)
}

/// Number `index` of an array in a format of whole bytes; a code for int16 and int8.
fn number(format: KvFormat, bytes: &[u8], index: usize) -> f32 {
    match format {
        KvFormat::F32 => f32::from_le_bytes(bytes.as_chunks::<4>().0[index]),
        KvFormat::Bf16 => bf16_to_f32(u16::from_le_bytes(bytes.as_chunks::<2>().0[index])),
        KvFormat::Int16 => f32::from(i16::from_le_bytes(bytes.as_chunks::<2>().0[index])),
        _ => f32::from(bytes[index] as i8),
    }
}

/// The number of one half of a byte, with scale `index`: exact.
fn number4(byte: u8, high: bool, scales: &[u8], index: usize) -> f32 {
    let q = if high { byte >> 4 } else { byte & 15 };
    f32::from(2 * q as i8 - 15) * f16_to_f32(u16::from_le_bytes(scales.as_chunks::<2>().0[index]))
}

/// Where a token of a head goes: only [`KvLayout::store`] makes one, whose contract holds.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    layout: KvLayout,
    /// First byte of the head, all of which is inside the cache.
    at: *mut u8,
    slot: usize,
}

impl Slot {
    /// Writes `x` in steps of `stride` bytes from byte `at` of the head on.
    ///
    /// # Safety
    /// All of it are bytes of the head that belong to the token.
    #[inline(always)]
    unsafe fn write<T: Copy>(&self, at: usize, stride: usize, x: &[T]) {
        for (i, x) in x.iter().enumerate() {
            // SAFETY: by contract.
            unsafe { self.at.add(at + i * stride).cast::<T>().write_unaligned(*x) };
        }
    }
}

per_isa! {
    store_f32(to: Slot, k: &[f32], v: &[f32]) = floats;
    store_bf16(to: Slot, k: &[f32], v: &[f32]) = halves;
    store_int16(to: Slot, k: &[f32], v: &[f32]) = shorts;
    store_int8(to: Slot, k: &[f32], v: &[f32]) = bytes;
    store_int4(to: Slot, k: &[f32], v: &[f32]) = nibbles;
    store_k8v4(to: Slot, k: &[f32], v: &[f32]) = bytes_and_nibbles;
}

/// Stores numbers as they are.
#[inline(always)]
fn floats(to: Slot, k: &[f32], v: &[f32]) {
    numbers(to, k, v, |x| x.to_bits().to_le());
}

/// Stores numbers rounded to bf16, those below 2⁻⁵⁶ as 0.
#[inline(always)]
fn halves(to: Slot, k: &[f32], v: &[f32]) {
    numbers(to, k, v, |x| bf16_factor(f32_to_bf16(x)).to_le());
}

/// Calls `f(first column, numbers)` for every 16 columns or fewer, encoded.
#[inline(always)]
fn by_vectors<T: Copy + Default>(
    x: &[f32],
    encode: impl Fn(f32) -> T,
    mut f: impl FnMut(usize, &[T]),
) {
    let (vectors, rest) = x.as_chunks::<GROUP>();
    let mut words = [T::default(); GROUP];
    for (i, vector) in vectors.iter().enumerate() {
        for (word, x) in words.iter_mut().zip(vector) {
            *word = encode(*x);
        }
        f(i * GROUP, &words);
    }
    for (word, x) in words.iter_mut().zip(rest) {
        *word = encode(*x);
    }
    f(x.len() - rest.len(), &words[..rest.len()]);
}

#[inline(always)]
fn numbers<T: Copy + Default>(to: Slot, k: &[f32], v: &[f32], encode: impl Fn(f32) -> T) {
    let (layout, size) = (to.layout, size_of::<T>());
    let first = (to.slot / GROUP * layout.k_dim * GROUP + to.slot % GROUP) * size;
    by_vectors(k, &encode, |d, words| {
        // SAFETY: the keys' columns are 16 numbers apart.
        unsafe { to.write(first + d * GROUP * size, GROUP * size, words) };
    });
    let first = layout.key_bytes() + to.slot * layout.v_dim * size;
    by_vectors(v, &encode, |d, words| {
        // SAFETY: the value's columns lie together.
        unsafe { to.write(first + d * size, size, words) };
    });
}

/// Stores codes of 16 bits and their scales.
#[inline(always)]
fn shorts(to: Slot, k: &[f32], v: &[f32]) {
    let (inverse, scale) = code_scale(top(k), STORED_MAX);
    key_pairs(to, k, |x| short_code(x, inverse).to_le(), scale);
    let (inverse, scale) = code_scale(top(v), STORED_MAX);
    value_pairs(to, v, |x| short_code(x, inverse).to_le(), scale);
}

/// Stores bytes and their scales.
#[inline(always)]
fn bytes(to: Slot, k: &[f32], v: &[f32]) {
    key_bytes(to, k);
    let scale = int8_scale(v);
    value_pairs(to, v, |x| int8_code(x, scale), scale);
}

/// Stores a key as bytes and their scale.
#[inline(always)]
fn key_bytes(to: Slot, k: &[f32]) {
    let mut buffer = [0.0; MIX_MAX];
    let k = mixed(k, &mut buffer);
    let scale = int8_scale(k);
    key_pairs(to, k, |x| int8_code(x, scale), scale);
}

/// Stores the codes of a key and their scale.
#[inline(always)]
fn key_pairs<T: Copy + Default>(to: Slot, k: &[f32], encode: impl Fn(f32) -> T, scale: f32) {
    let (layout, size) = (to.layout, size_of::<T>() * 2);
    let pairs = layout.k_dim.div_ceil(2);
    let first = (to.slot / GROUP * pairs * GROUP + to.slot % GROUP) * size;
    by_vectors(k, encode, |d, codes| {
        for (i, pair) in codes.chunks(2).enumerate() {
            let pair = [pair[0], pair.get(1).copied().unwrap_or_default()];
            // SAFETY: pairs of the key's columns are 16 pairs apart; `d` is even.
            unsafe { to.write(first + (d / 2 + i) * GROUP * size, 0, &[pair]) };
        }
    });
    // SAFETY: one number a token.
    unsafe { to.write(layout.scales_at().0 + to.slot * 4, 0, &[scale.to_bits().to_le()]) };
}

/// Stores the codes of a value and their scale.
#[inline(always)]
fn value_pairs<T: Copy + Default>(to: Slot, v: &[f32], encode: impl Fn(f32) -> T, scale: f32) {
    let (layout, size) = (to.layout, size_of::<T>());
    let pair = to.slot % GROUP * layout.v_dim * 2;
    let first = layout.key_bytes() + (pair + to.slot / GROUP) * size;
    by_vectors(v, encode, |d, codes| {
        // SAFETY: the value's columns are in pairs with another token's.
        unsafe { to.write(first + d * 2 * size, 2 * size, codes) };
    });
    // SAFETY: one number a token.
    unsafe { to.write(layout.scales_at().1 + to.slot * 4, 0, &[scale.to_bits().to_le()]) };
}

/// Stores a key as int8 and a value as int4.
#[inline(always)]
fn bytes_and_nibbles(to: Slot, k: &[f32], v: &[f32]) {
    key_bytes(to, k);
    value_nibbles(to, v);
}

/// Stores 4-bit codes and their scales.
#[inline(always)]
fn nibbles(to: Slot, k: &[f32], v: &[f32]) {
    let (layout, lane) = (to.layout, to.slot % GROUP);
    let groups = layout.k_dim.div_ceil(SCALED);
    by_scales(k, |g, codes, scale| {
        let block = to.slot / GROUP * groups + g;
        let pairs: [u8; 16] = std::array::from_fn(|i| codes[2 * i] | codes[2 * i + 1] << 4);
        // SAFETY: pairs of the key's columns are 16 bytes apart; one scale a token and group.
        unsafe {
            to.write(block * 16 * GROUP + lane, GROUP, &pairs);
            to.write(layout.scales_at().0 + (block * GROUP + lane) * 2, 0, &[scale]);
        }
    });
    value_nibbles(to, v);
}

/// Stores the 4-bit codes of a value and their scales.
#[inline(always)]
fn value_nibbles(to: Slot, v: &[f32]) {
    let layout = to.layout;
    let groups = layout.v_dim.div_ceil(SCALED);
    by_scales(v, |g, codes, scale| {
        let group = to.slot * groups + g;
        let pairs: [u8; 16] = std::array::from_fn(|i| codes[i] | codes[i + 16] << 4);
        // SAFETY: the bytes of a value lie together; one scale a token and group.
        unsafe {
            to.write(layout.key_bytes() + group * 16, 1, &pairs);
            to.write(layout.scales_at().1 + group * 2, 0, &[scale]);
        }
    });
}

/// Calls `f(group, codes, scale as f16)` for every 32 columns or fewer of a head, transformed.
#[inline(always)]
fn by_scales(head: &[f32], mut f: impl FnMut(usize, &[u8; SCALED], u16)) {
    let block = transform_block(head.len());
    let mut buffer = [0.0; MIX_MAX];
    // Pieces of whole blocks and groups.
    for (piece, x) in head.chunks(MIX_MAX).enumerate() {
        let transformed = &mut buffer[..x.len()];
        transformed.copy_from_slice(x);
        transform_blocks(transformed, block);
        for (g, group) in transformed.chunks(SCALED).enumerate() {
            let mut codes = [0; SCALED];
            let stored = int4_scale(group);
            let width = 2.0 * f16_to_f32(stored);
            for (code, x) in codes.iter_mut().zip(group) {
                *code = int4_code(*x, width);
            }
            f(piece * (MIX_MAX / SCALED) + g, &codes, stored.to_le());
        }
    }
}

/// max|x| / 15 as f16; NaN where there is a NaN.
#[inline(always)]
fn int4_scale(x: &[f32]) -> u16 {
    let top = x.iter().fold(0, |top, x| top.max(x.to_bits() & 0x7fff_ffff));
    f32_to_f16(f32::from_bits(top) / 15.0)
}

/// Which of 16 steps of `width`, eight of them below 0, `x` falls into.
#[inline(always)]
fn int4_code(x: f32, width: f32) -> u8 {
    ((x / width).floor().clamp(-8.0, 7.0) + 8.0) as u8
}

/// max|x| / 127; NaN where there is a NaN.
#[inline(always)]
pub(super) fn int8_scale(x: &[f32]) -> f32 {
    top(x) / 127.0
}

/// x / scale rounded, ties to even; 0 where that is not a number.
#[inline(always)]
pub(super) fn int8_code(x: f32, scale: f32) -> i8 {
    (x / scale).round_ties_even() as i8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(format: KvFormat, k_dim: usize, v_dim: usize) -> KvLayout {
        KvLayout { format, kv_heads: 2, k_dim, v_dim }
    }

    fn row(len: usize, seed: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 37 + seed * 101) % 211) as f32 / 17.0 - 6.0).collect()
    }

    /// What a number becomes in a format, beside others of its head.
    fn through(format: KvFormat, x: f32, head: &[f32]) -> f32 {
        let most = if format == KvFormat::Int16 { 4095.0 } else { 127.0 };
        let top = head.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
        let scale = top / most;
        match format {
            KvFormat::F32 => x,
            KvFormat::Bf16 => bf16_to_f32(f32_to_bf16(x)),
            KvFormat::Int16 => {
                (f64::from(x) * f64::from(most / top)).round_ties_even() as f32 * scale
            }
            _ => (x / scale).round_ties_even() * scale,
        }
    }

    #[test]
    fn every_token_is_read_back_through_its_format() {
        for format in [KvFormat::F32, KvFormat::Bf16, KvFormat::Int16, KvFormat::Int8] {
            for (k_dim, v_dim) in [(64, 64), (24, 40), (7, 5), (80, 16)] {
                let layout = layout(format, k_dim, v_dim);
                let mut bytes = vec![0xff; layout.bytes(3)];
                let cache = Parts::new(&mut bytes);
                for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                    for token in 0..96 {
                        let (k, v) = (row(2 * k_dim, token), row(2 * v_dim, token + 7));
                        // SAFETY: one thread.
                        unsafe { layout.store(isa, cache, token / 32, token % 32, &k, &v) };
                    }
                    check(&layout, cache);
                }
            }
        }
    }

    fn check(layout: &KvLayout, cache: Parts<'_, u8>) {
        // SAFETY: one thread.
        let bytes = unsafe { cache.part(0..cache.len()) };
        for token in 0..96 {
            for head in 0..2 {
                let part = &bytes[layout.head_at(token / 32, head)..];
                let mut got = vec![0.0; layout.k_dim];
                let scale = layout.key(part, token % 32, &mut got);
                let all = row(2 * layout.k_dim, token);
                let mut head_row = &all[head * layout.k_dim..][..layout.k_dim];
                let mut buffer = [0.0; MIX_MAX];
                if layout.format == KvFormat::Int8 {
                    head_row = mixed(head_row, &mut buffer);
                }
                for (got, x) in got.iter().zip(head_row) {
                    assert_eq!(got * scale, through(layout.format, *x, head_row));
                }
                let mut got = vec![0.0; layout.v_dim];
                let scale = layout.value(part, token % 32, &mut got);
                let all = row(2 * layout.v_dim, token + 7);
                let head_row = &all[head * layout.v_dim..][..layout.v_dim];
                for (got, x) in got.iter().zip(head_row) {
                    assert_eq!(got * scale, through(layout.format, *x, head_row));
                }
            }
        }
    }

    #[test]
    fn int4_keeps_within_half_a_step_of_the_turned_head() {
        for (k_dim, v_dim) in [(64, 64), (24, 40), (7, 5), (80, 16), (320, 300)] {
            let layout = layout(KvFormat::Int4, k_dim, v_dim);
            let mut bytes = vec![0xff; layout.bytes(2)];
            for token in 0..64 {
                let (k, v) = (row(2 * k_dim, token), row(2 * v_dim, token + 7));
                let (block, slot) = (token / 32, token % 32);
                // SAFETY: one thread.
                unsafe {
                    layout.store(Isa::detect(), Parts::new(&mut bytes), block, slot, &k, &v);
                }
                for head in 0..2 {
                    let part = &bytes[layout.head_at(block, head)..];
                    let (mut key, mut value) = (vec![0.0; k_dim], vec![0.0; v_dim]);
                    let scales =
                        [layout.key(part, slot, &mut key), layout.value(part, slot, &mut value)];
                    assert_eq!(scales, [1.0; 2]);
                    near_turned(&key, &k[head * k_dim..][..k_dim]);
                    near_turned(&value, &v[head * v_dim..][..v_dim]);
                }
            }
        }
    }

    fn near_turned(got: &[f32], head: &[f32]) {
        let mut exact = head.to_vec();
        transform_blocks(&mut exact, transform_block(head.len()));
        for (got, exact) in got.chunks(32).zip(exact.chunks(32)) {
            let top = exact.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
            for (got, exact) in got.iter().zip(exact) {
                assert!((got - exact).abs() <= top / 15.0 * 1.001, "{got} {exact} of {top}");
            }
        }
    }

    #[test]
    fn int8_of_extreme_rows() {
        assert_eq!((int8_scale(&[0.0; 4]), int8_code(0.0, 0.0)), (0.0, 0));
        assert!(int8_scale(&[1.0, f32::NAN]).is_nan());
        assert_eq!(int8_code(1.0, f32::NAN), 0);
        assert_eq!(int8_scale(&[1.0, f32::NEG_INFINITY]), f32::INFINITY);
        assert_eq!(int8_code(-127.0, 1.0), -127);
        assert_eq!([int8_code(0.5, 1.0), int8_code(1.5, 1.0)], [0, 2]);
    }

    #[test]
    fn sizes_are_those_of_the_cache_spec() {
        use tokenmill_ir::{CacheKind, CacheSpec};
        for format in KvFormat::ALL {
            let kind = CacheKind::Full { kv_heads: 2, k_dim: 64, v_dim: 40 };
            let unit = CacheSpec { kind, format, group: 0 }.unit_bytes() as usize;
            assert_eq!(layout(format, 64, 40).block_bytes(), unit * BLOCK_TOKENS);
        }
    }
}
