//! Head norms and rotation, storing keys and values, attention over caches and fresh buffers.

use tokenmill_ir::{Batch, BlockId, HeadNorm, Mask, Rope, RopePairing, Span};

use super::caches::Cache;
use super::dense::{Norm, capped};
use super::matrix::{Matrix, dot};
use super::rows::Rows;

/// A rotation with its divisors.
#[derive(Clone, Copy)]
pub(super) struct Rotation<'a> {
    pub rope: &'a Rope,
    pub factors: Option<&'a Matrix>,
}

impl Rotation<'_> {
    /// Rotates the first columns of a head in place, by its position on each axis.
    pub fn apply(&self, head: &mut [f32], axes: [u32; 3]) {
        let n = self.rope.inv_freq.len();
        for (i, &freq) in self.rope.inv_freq.iter().enumerate() {
            let freq = self.factors.map_or(freq, |f| freq / f.data[i]);
            let position = axes[self.rope.axis(i)];
            let (sin, cos) = f64::from(position as f32 * freq).sin_cos();
            let magnitude = f64::from(self.rope.magnitude);
            let (sin, cos) = (sin * magnitude, cos * magnitude);
            let (a, b) = match self.rope.pairing {
                RopePairing::Half => (i, i + n),
                RopePairing::Interleaved => (2 * i, 2 * i + 1),
            };
            let (x, y) = (f64::from(head[a]), f64::from(head[b]));
            head[a] = (x * cos - y * sin) as f32;
            head[b] = (y * cos + x * sin) as f32;
        }
    }
}

/// Normalises and rotates the heads of every row. [rows, heads × dim]
pub(super) fn rotate(
    x: Rows<'_>,
    dim: usize,
    norm: Option<(&HeadNorm, &Matrix)>,
    rotation: Option<Rotation<'_>>,
    batch: &Batch,
) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.count() * x.cols);
    for r in 0..batch.tokens.len() {
        let mut row = x.row(r).to_vec();
        if let Some((n, weight)) = norm {
            let (kind, offset, eps) = (n.kind, n.offset, n.eps);
            let groups = row.len() / dim;
            Norm { kind, weight: Some(weight), offset, bias: None, groups, eps }.apply(&mut row);
        }
        if let Some(rotation) = rotation {
            let axes = batch.axes(r);
            row.chunks_exact_mut(dim).for_each(|head| rotation.apply(head, axes));
        }
        out.extend(row);
    }
    out
}

/// The block table of a span in a cache's group.
pub(super) fn table<'a>(batch: &'a Batch, span: &Span, cache: &Cache) -> &'a [BlockId] {
    &batch.tables[span.tables[cache.spec.group as usize] as usize..]
}

/// Stores rows of one kind of number for every token of the step.
pub(super) fn store(cache: &mut Cache, which: usize, x: Rows<'_>, batch: &Batch) {
    for span in &batch.spans {
        let table = table(batch, span, cache);
        for i in 0..span.len as usize {
            let row = x.row(span.first as usize + i);
            cache.store(which, table, span.context as usize + i, row);
        }
    }
}

/// Keys and values.
#[derive(Clone, Copy)]
pub(super) enum Keys<'a> {
    Cache(&'a Cache),
    Fresh { k: Rows<'a>, v: Rows<'a> },
}

/// Everything of an attention but its operands.
pub(super) struct Attention<'a> {
    pub heads: usize,
    pub kv_heads: usize,
    pub v_dim: usize,
    pub scale: f32,
    pub mask: Mask,
    pub blocks: bool,
    pub softcap: Option<f32>,
    pub sinks: Option<&'a Matrix>,
}

/// Attention. [tokens, heads × v_dim]
pub(super) fn attend(a: &Attention<'_>, q: Rows<'_>, keys: Keys<'_>, batch: &Batch) -> Vec<f32> {
    let mut out = Vec::with_capacity(q.count() * a.heads * a.v_dim);
    let dim = q.cols / a.heads;
    for span in &batch.spans {
        let (context, len) = (span.context as usize, span.len as usize);
        // Fresh keys are indexed from the first token of the span.
        let (start, total) = match keys {
            Keys::Cache(_) => (context, context + len),
            Keys::Fresh { .. } => (0, len),
        };
        for i in 0..len {
            let row = span.first as usize + i;
            let (from, to) = match a.mask {
                Mask::Causal => (0, start + i + 1),
                Mask::Window(n) => ((start + i + 1).saturating_sub(n as usize), start + i + 1),
                Mask::Chunk(n) => ((start + i) / n as usize * n as usize, start + i + 1),
                Mask::None => (0, total),
                Mask::Around(n) => {
                    let (at, n) = (start + i, n as usize);
                    (at.saturating_sub(n), total.min(at + n + 1))
                }
                Mask::Block => (start + i, start + i + 1),
            };
            let [begin, end] = batch.block(row).map(|key| key as usize);
            let of_block = |key: usize| a.blocks && (begin..end).contains(&key);
            let seen: Vec<usize> =
                (0..total).filter(|j| (from..to).contains(j) || of_block(*j)).collect();
            let row = q.row(row);
            for (h, query) in row.chunks_exact(dim).enumerate() {
                let group = h / (a.heads / a.kv_heads);
                let key = |j: usize, which: usize, dim: usize| match keys {
                    Keys::Cache(c) => &c.row(which, table(batch, span, c), j)[group * dim..][..dim],
                    Keys::Fresh { k, v } => {
                        let rows = if which == 0 { k } else { v };
                        &rows.row(span.first as usize + j)[group * dim..][..dim]
                    }
                };
                let score = |j| {
                    let s = dot(query, key(j, 0, dim)) * f64::from(a.scale);
                    a.softcap.map_or(s, |c| capped(s, f64::from(c)))
                };
                let scores: Vec<f64> = seen.iter().copied().map(score).collect();
                let sink = a.sinks.map(|s| f64::from(s.data[h]));
                let values = seen.iter().map(|&j| key(j, 1, a.v_dim));
                out.extend(softmax_sum(&scores, sink, values, a.v_dim));
            }
        }
    }
    out
}

/// `Σ softmax(scores) · values`; a sink joins the denominator only.
fn softmax_sum<'a>(
    scores: &[f64],
    sink: Option<f64>,
    values: impl Iterator<Item = &'a [f32]>,
    cols: usize,
) -> impl Iterator<Item = f32> {
    let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
    let mut total = sink.map_or(0.0, |s| (s - max).exp());
    let mut sum = vec![0.0f64; cols];
    for (score, value) in scores.iter().zip(values) {
        let p = (score - max).exp();
        total += p;
        sum.iter_mut().zip(value).for_each(|(s, &v)| *s += p * f64::from(v));
    }
    sum.into_iter().map(move |s| (s / total) as f32)
}

/// Absorbed latent attention. [tokens, heads × latent]
pub(super) fn attend_latent(
    q_latent: Rows<'_>,
    q_rope: Rows<'_>,
    heads: usize,
    cache: &Cache,
    scale: f32,
    batch: &Batch,
) -> Vec<f32> {
    let (latent, rope) = (q_latent.cols / heads, q_rope.cols / heads);
    let mut out = Vec::with_capacity(q_latent.count() * q_latent.cols);
    for span in &batch.spans {
        let table = table(batch, span, cache);
        for i in 0..span.len as usize {
            let (row, last) = (span.first as usize + i, span.context as usize + i);
            for h in 0..heads {
                let of_latent = &q_latent.row(row)[h * latent..][..latent];
                let of_rope = &q_rope.row(row)[h * rope..][..rope];
                let score = |j| {
                    let s = dot(of_latent, cache.row(0, table, j));
                    (s + dot(of_rope, cache.row(1, table, j))) * f64::from(scale)
                };
                let scores: Vec<f64> = (0..=last).map(score).collect();
                let values = (0..=last).map(|j| cache.row(0, table, j));
                out.extend(softmax_sum(&scores, None, values, latent));
            }
        }
    }
    out
}
