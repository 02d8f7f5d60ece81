//! Rotation and storing, attention, recurrences.

use tokenmill_backend::DeviceError;
use tokenmill_ir::{
    AttendSource, CacheId, HeadNorm, KeyHead, Mask, Mode, RopeId, RopePairing, Rows as RowKind, op,
};

use super::{CacheLayout, Const, Count, Draft, Extent, Ptr, Rows, When, latent_format, words};
use crate::batch::FEW_TOKENS;
use crate::failure::unsupported;
use crate::kernels::{Kernel, attend_rows};

/// Columns of a value head and of a scan's state at most, by the registers that kernels have.
const MOST_VALUES: u32 = 512;
const MOST_STATE: u32 = 256;
/// Warps of a block of attention.
const WARPS: u32 = 4;

/// Keys that lie in one block of a cache, for attention by tensor cores.
const GROUP: u32 = 32;
/// Blocks of it a sequence and head of keys.
const ITEMS: u64 = 16;

/// Which keys a query sees (kernels/seen.cuh), and how many.
fn mask_of(op: &op::Attend) -> Result<[u32; 2], DeviceError> {
    Ok(match op.mask {
        _ if op.blocks => return Err(unsupported("tokens that see all of their block")),
        Mask::Block => return Err(unsupported("attention within blocks")),
        Mask::Causal => [0, 0],
        Mask::Window(n) => [1, n.max(1)],
        Mask::Chunk(n) => [2, n.max(1)],
        Mask::None => [3, 0],
        Mask::Around(n) => [4, n],
    })
}

/// A number of bytes that kernels take as a word.
fn word(bytes: u64) -> Result<u32, DeviceError> {
    u32::try_from(bytes).map_err(|_| unsupported(format!("cache blocks of {bytes} bytes")))
}

/// A head norm: its weight, its kind, numbers from head to head, its two floats.
fn head_norm(norm: &Option<HeadNorm>, dim: u32, cols: impl Fn(u32) -> u32) -> HeadNormArgs {
    match norm {
        None => HeadNormArgs { weight: Ptr::Null, n: [0, 0], f: [0.0, 0.0] },
        Some(norm) => {
            let stride = if cols(norm.weight.0) == dim { 0 } else { dim };
            HeadNormArgs {
                weight: Ptr::Numbers(norm.weight),
                n: [words::norm(norm.kind), stride],
                f: [norm.offset, norm.eps],
            }
        }
    }
}

struct HeadNormArgs {
    weight: Ptr,
    n: [u32; 2],
    f: [f32; 2],
}

/// A rotation: frequencies, divisors, pairs, whether interleaved, magnitude.
struct RopeArgs {
    p: [Ptr; 2],
    n: [u32; 2],
    magnitude: f32,
}

impl Draft<'_> {
    fn rope(&mut self, rope: Option<RopeId>) -> Result<RopeArgs, DeviceError> {
        let Some(rope) = rope.and_then(|r| self.program.ropes.get(r.0 as usize)) else {
            return Ok(RopeArgs { p: [Ptr::Null; 2], n: [0, 0], magnitude: 1.0 });
        };
        if !rope.axes.is_empty() {
            return Err(unsupported("rotations by positions on several axes"));
        }
        let words = rope.inv_freq.iter().map(|f| f.to_bits()).collect();
        let (factors, magnitude) = (Self::numbers(rope.factors), rope.magnitude);
        let interleaved = u32::from(rope.pairing == RopePairing::Interleaved);
        let n = [rope.inv_freq.len() as u32, interleaved];
        Ok(RopeArgs { p: [self.constant(Const::Words(words)), factors], n, magnitude })
    }

    fn cache(&self, cache: CacheId) -> CacheLayout {
        self.caches[cache.0 as usize]
    }

    pub(super) fn rotate_store(&mut self, op: &op::RotateStore) -> Result<(), DeviceError> {
        let op::RotateStore { q, heads, head_dim, q_norm, rope, position_scale, store, out } = op;
        let (q, out, rope) = (self.view(*q), self.buffer(*out), self.rope(*rope)?);
        let cols = |w: u32| self.program.weights[w as usize].cols;
        let no_norm = None;
        let k_norm = store.as_ref().map_or(&no_norm, |s| &s.k_norm);
        let norms = [q_norm, k_norm].map(|norm| head_norm(norm, *head_dim, cols));
        let mut p = vec![Ptr::Step, q.ptr, Ptr::Null, Ptr::Null, norms[0].weight, norms[1].weight];
        p.extend(rope.p);
        p.extend([out.ptr, Ptr::Null]);
        let (every, offset, beta) =
            position_scale.map_or((0, 0, 0.0), |g| (g.every.max(1), g.offset, g.beta));
        let mut n = vec![*heads, 0, *head_dim, 0, q.ld, 0, 0, out.ld];
        n.extend(rope.n);
        n.extend(norms.iter().flat_map(|norm| norm.n));
        n.extend([every, offset]);
        let mut f: Vec<f32> = norms.iter().flat_map(|norm| norm.f).collect();
        f.extend([beta, rope.magnitude]);
        let (mut all_heads, mut longest) = (*heads, *head_dim);
        if let Some(s) = store {
            let (k, v, cache) = (self.view(s.k), self.view(s.v), self.cache(s.cache));
            let v_dim = s.v.cols / s.kv_heads.max(1);
            (p[2], p[3], p[9]) = (k.ptr, v.ptr, Ptr::Cache(s.cache));
            (n[1], n[3], n[5], n[6]) = (s.kv_heads, v_dim, k.ld, v.ld);
            let [(k_bytes, k_format), (v_bytes, v_format)] = cache.heads;
            n.extend([self.block_tokens, cache.group]);
            n.extend([word(cache.block_bytes)?, word(cache.second)?]);
            n.extend([k_format, v_format, k_bytes, v_bytes]);
            all_heads += 2 * s.kv_heads;
            longest = longest.max(v_dim);
        }
        let grid = [Extent::rows(RowKind::Tokens), Extent::fixed(all_heads.into()), Extent::ONE];
        self.launch(Kernel::RotateStore, grid, (32, longest * 4), (p, n, f))
    }

    pub(super) fn store_latent(&mut self, op: &op::StoreLatent) -> Result<(), DeviceError> {
        let op::StoreLatent { latent, norm, eps, key, rope, cache } = op;
        let (x, k, rope) = (self.view(*latent), self.view(*key), self.rope(Some(*rope))?);
        let layout = self.cache(*cache);
        let [(latent_bytes, format), (key_bytes, _)] = layout.heads;
        let p = vec![
            Ptr::Step,
            x.ptr,
            Ptr::Numbers(*norm),
            k.ptr,
            rope.p[0],
            rope.p[1],
            Ptr::Cache(*cache),
        ];
        let mut n = vec![latent.cols, key.cols, x.ld, k.ld];
        n.extend(rope.n);
        n.extend([self.block_tokens, layout.group, word(layout.block_bytes)?]);
        n.extend([word(layout.second)?, format, latent_bytes, key_bytes]);
        let grid = [Extent::rows(RowKind::Tokens), Extent::fixed(2), Extent::ONE];
        let shared = latent.cols.max(key.cols) * 4;
        self.launch(Kernel::StoreLatent, grid, (32, shared), (p, n, vec![*eps, rope.magnitude]))
    }

    pub(super) fn attend(&mut self, op: &op::Attend) -> Result<(), DeviceError> {
        let op::Attend { q, heads, source, kv_heads, v_dim, scale, softcap, sinks, out, .. } = op;
        let (dim, v_dim) = (q.cols / (*heads).max(1), *v_dim);
        if v_dim > MOST_VALUES {
            return Err(unsupported(format!("values of {v_dim} columns")));
        }
        let (q, out) = (self.view(*q), self.buffer(*out));
        let mask = mask_of(op)?;
        let f = vec![*scale, softcap.unwrap_or(0.0)];
        if let Some((cache, rows)) = self.by_tiles(op, dim) {
            return self.attend_tiles(op, (cache, rows), (q, out, mask), f);
        }
        let mut n = vec![*heads, *kv_heads, dim, v_dim, q.ld, out.ld, mask[0], mask[1]];
        let (kernel, keys, values) = match source {
            AttendSource::Fresh { k, v } => {
                let (k, v) = (self.view(*k), self.view(*v));
                n.extend([0, 0, 0, 0, dim * 4, v_dim * 4, k.ld, v.ld]);
                (Kernel::Attend(None), k.ptr, v.ptr)
            }
            AttendSource::Cache(id) => {
                n.extend(self.cached(*id)?);
                let format = self.program.caches[id.0 as usize].format;
                (Kernel::Attend(Some(format)), Ptr::Cache(*id), Ptr::Null)
            }
        };
        let p = vec![Ptr::Step, q.ptr, keys, values, Self::numbers(*sinks), out.ptr];
        let shared = (dim + v_dim + WARPS * (34 + v_dim)) * 4;
        let grid = [Extent::rows(RowKind::Tokens), Extent::fixed((*heads).into()), Extent::ONE];
        self.launch(kernel, grid, (32 * WARPS, shared), (p, n, f))
    }

    /// Where keys and values of a cache are: tokens of a block, group, bytes of a block, start of
    /// its values, bytes of a key head, of a value head.
    fn cached(&self, cache: CacheId) -> Result<[u32; 6], DeviceError> {
        let layout = self.cache(cache);
        let ([(k_bytes, _), (v_bytes, _)], group) = (layout.heads, layout.group);
        let (bytes, values) = (word(layout.block_bytes)?, word(layout.second)?);
        Ok([self.block_tokens, group, bytes, values, k_bytes, v_bytes])
    }

    /// The cache that tensor cores attend to, where they do, and rows of a block.
    fn by_tiles(&self, op: &op::Attend, dim: u32) -> Option<(CacheId, u32)> {
        let AttendSource::Cache(id) = op.source else { return None };
        let format = self.program.caches[id.0 as usize].format;
        let whole = self.block_tokens.is_multiple_of(GROUP) && dim == op.v_dim;
        let rows = attend_rows(format, dim).filter(|_| whole && self.mode != Mode::F32);
        rows.map(|rows| (id, rows))
    }

    fn attend_tiles(
        &mut self,
        op: &op::Attend,
        (cache, rows): (CacheId, u32),
        (q, out, mask): (Rows, Rows, [u32; 2]),
        f: Vec<f32>,
    ) -> Result<(), DeviceError> {
        let op::Attend { heads, kv_heads, v_dim: dim, sinks, .. } = op;
        let (sinks, count) = (Self::numbers(*sinks), Extent::of(Count::Spans));
        let together = heads / (*kv_heads).max(1);
        let sums = match self.slots {
            0 => Ptr::Null,
            slots => {
                let each = u64::from(FEW_TOKENS) * u64::from(*heads) * u64::from(dim + 2);
                let words = u32::try_from(u64::from(slots) * each);
                self.words(words.map_err(|_| unsupported(format!("sums of {slots} splits")))?)
            }
        };
        let p = vec![Ptr::Step, q.ptr, Ptr::Cache(cache), sinks, out.ptr, sums];
        let mut n = vec![*heads, *kv_heads, q.ld, out.ld];
        n.extend(mask);
        n.extend(self.cached(cache)?);
        let tokens = (rows / together).max(1);
        n.push(tokens);
        let format = self.program.caches[cache.0 as usize].format;
        let kv = Extent::fixed((*kv_heads).into());
        let threads = (32 * WARPS, 0);
        let few = Kernel::AttendFew(format, *dim, if together > 8 { 16 } else { 8 });
        let grid = [count.times(ITEMS), kv, Extent::ONE];
        self.launch(few, grid, threads, (p.clone(), n.clone(), f.clone()))?;
        let grid = [Extent::rows(RowKind::Tokens).per(tokens.into()), kv, Extent::ONE];
        let when = std::mem::replace(&mut self.when, When::Above(RowKind::Tokens, FEW_TOKENS));
        let many = Kernel::AttendMany(format, *dim);
        self.launch(many, grid, threads, (p, n, f))?;
        self.when = when;
        if self.slots == 0 {
            return Ok(());
        }
        let grid = [count.times(FEW_TOKENS.into()), Extent::fixed((*heads).into()), Extent::ONE];
        let (p, n) = (vec![Ptr::Step, sums, sinks, out.ptr], vec![*heads, *dim, out.ld]);
        self.launch(Kernel::AttendJoin, grid, threads, (p, n, Vec::new()))
    }

    pub(super) fn attend_latent(&mut self, op: &op::AttendLatent) -> Result<(), DeviceError> {
        let op::AttendLatent { q_latent, q_rope, heads, cache, scale, out } = op;
        let count = (*heads).max(1);
        let (latent, rope) = (q_latent.cols / count, q_rope.cols / count);
        if latent > MOST_VALUES {
            return Err(unsupported(format!("latents of {latent} columns")));
        }
        let (one, two, out) = (self.view(*q_latent), self.view(*q_rope), self.buffer(*out));
        let layout = self.cache(*cache);
        let [(latent_bytes, _), (key_bytes, _)] = layout.heads;
        let mut n = vec![latent, rope, one.ld, two.ld, out.ld, self.block_tokens, layout.group];
        n.extend([word(layout.block_bytes)?, word(layout.second)?, latent_bytes, key_bytes]);
        let p = vec![Ptr::Step, one.ptr, two.ptr, Ptr::Cache(*cache), out.ptr];
        let shared = (latent + rope + latent + WARPS * (34 + latent)) * 4;
        let grid = [Extent::rows(RowKind::Tokens), Extent::fixed(count.into()), Extent::ONE];
        let format = latent_format(self.program.caches[cache.0 as usize].format);
        let kernel = Kernel::AttendLatent(format);
        self.launch(kernel, grid, (32 * WARPS, shared), (p, n, vec![*scale]))
    }

    pub(super) fn conv(&mut self, op: &op::Conv) -> Result<(), DeviceError> {
        let op::Conv { x, weight, kernel, bias, act, state, out } = op;
        let (channels, x, out) = (x.cols, self.view(*x), self.buffer(*out));
        let group = self.cache(*state).group;
        let weight = Ptr::Numbers(*weight);
        let p = vec![Ptr::Step, x.ptr, weight, Self::numbers(*bias), Ptr::Cache(*state), out.ptr];
        let act = act.map_or(255, words::act);
        let n = vec![channels, *kernel, x.ld, out.ld, act, group];
        let many = Extent::fixed(u64::from(channels)).per(128);
        let grid = [Extent::rows(RowKind::Tokens), many, Extent::ONE];
        self.launch(Kernel::Conv, grid, (128, 0), (p.clone(), n.clone(), Vec::new()))?;
        let grid = [Extent::of(Count::Spans), many, Extent::ONE];
        self.launch(Kernel::ConvTail, grid, (128, 0), (p, n, Vec::new()))
    }

    pub(super) fn delta_rule(&mut self, op: &op::DeltaRule) -> Result<(), DeviceError> {
        let op::DeltaRule { q, k, v, a, b, a_log, dt_bias, k_heads, v_heads, key_head, state, out } =
            op;
        let (k_dim, v_dim) = (k.cols / (*k_heads).max(1), v.cols / (*v_heads).max(1));
        let [q, k, v, a, b] = [q, k, v, a, b].map(|view| self.view(*view));
        let out = self.buffer(*out);
        let mut p = vec![Ptr::Step, q.ptr, k.ptr, v.ptr, a.ptr, b.ptr];
        p.extend([Ptr::Numbers(*a_log), Ptr::Numbers(*dt_bias), Ptr::Cache(*state), out.ptr]);
        let mut n = vec![*k_heads, *v_heads, k_dim, v_dim, q.ld, k.ld, v.ld, a.ld, b.ld, out.ld];
        n.extend([self.cache(*state).group, u32::from(*key_head == KeyHead::Tiled)]);
        let grid = [Extent::of(Count::Spans), Extent::fixed((*v_heads).into()), Extent::ONE];
        self.launch(Kernel::DeltaRule, grid, (128, 2 * k_dim * 4), (p, n, Vec::new()))
    }

    pub(super) fn scan(&mut self, op: &op::Scan) -> Result<(), DeviceError> {
        let op::Scan { x, b, c, dt, a_log, skip, dt_bias, heads, groups, dt_limit, state, out } =
            op;
        let (columns, width) = (x.cols, b.cols / (*groups).max(1));
        if width > MOST_STATE {
            return Err(unsupported(format!("a state of {width} columns")));
        }
        let dim = columns / (*heads).max(1);
        let [x, b, c, dt] = [x, b, c, dt].map(|view| self.view(*view));
        let out = self.buffer(*out);
        let mut p = vec![Ptr::Step, x.ptr, b.ptr, c.ptr, dt.ptr];
        p.extend([a_log, skip, dt_bias].map(|w| Ptr::Numbers(*w)));
        p.extend([Ptr::Cache(*state), out.ptr]);
        let mut n = vec![*heads, *groups, dim, width, x.ld, b.ld, c.ld, dt.ld, out.ld];
        n.push(self.cache(*state).group);
        let many = Extent::fixed(columns.into()).per(WARPS.into());
        let grid = [Extent::of(Count::Spans), many, Extent::ONE];
        let f = vec![dt_limit.0, dt_limit.1];
        self.launch(Kernel::Scan, grid, (32 * WARPS, 0), (p, n, f))
    }
}
