//! Recurrences in token order: causal convolution, gated delta rule, selective scan.

use tokenmill_ir::{Act, Batch, KeyHead, Span};

use super::attention::table;
use super::caches::Cache;
use super::dense::{act, sigmoid, softplus};
use super::matrix::Matrix;
use super::rows::Rows;

/// Runs `step(token row, state)` over the tokens of every span, reading the state of its read
/// slot and leaving the last one in its write slot.
fn over_spans(cache: &mut Cache, batch: &Batch, mut step: impl FnMut(usize, &mut [f32])) {
    for span in &batch.spans {
        let Span { first, len, .. } = *span;
        let slots = table(batch, span, cache);
        let (read, write) = (slots[0], slots[1]);
        let mut state = cache.state(read);
        for row in first..first + len {
            step(row as usize, &mut state);
        }
        cache.put_state(write, &state);
    }
}

/// Depthwise causal convolution. [tokens, channels]
pub(super) fn conv(
    x: Rows<'_>,
    weight: &Matrix,
    bias: Option<&Matrix>,
    kind: Option<Act>,
    cache: &mut Cache,
    batch: &Batch,
) -> Vec<f32> {
    let (channels, kernel) = (x.cols, weight.cols);
    let mut out = Vec::with_capacity(x.count() * channels);
    over_spans(cache, batch, |row, tail| {
        for (c, &now) in x.row(row).iter().enumerate() {
            let taps = weight.row(c);
            let mut sum = f64::from(bias.map_or(0.0, |b| b.data[c]));
            for (j, &tap) in taps[..kernel - 1].iter().enumerate() {
                sum += f64::from(tap) * f64::from(tail[j * channels + c]);
            }
            sum += f64::from(taps[kernel - 1]) * f64::from(now);
            out.push(kind.map_or(sum as f32, |kind| act(kind, sum as f32)));
        }
        if kernel > 1 {
            tail.copy_within(channels.., 0);
            let last = tail.len() - channels;
            tail[last..].copy_from_slice(x.row(row));
        }
    });
    out
}

/// Operands of the gated delta rule.
pub(super) struct Delta<'a> {
    pub q: Rows<'a>,
    pub k: Rows<'a>,
    pub v: Rows<'a>,
    pub a: Rows<'a>,
    pub b: Rows<'a>,
    pub a_log: &'a Matrix,
    pub dt_bias: &'a Matrix,
    pub k_heads: usize,
    pub v_heads: usize,
    pub key_head: KeyHead,
}

/// Gated delta rule. [tokens, v_heads × v_dim]
pub(super) fn delta_rule(d: &Delta<'_>, cache: &mut Cache, batch: &Batch) -> Vec<f32> {
    let (k_dim, v_dim) = (d.k.cols / d.k_heads, d.v.cols / d.v_heads);
    let mut out = Vec::with_capacity(d.v.count() * d.v.cols);
    over_spans(cache, batch, |row, states| {
        for (h, state) in states.chunks_exact_mut(k_dim * v_dim).enumerate() {
            let group = d.key_head.of(h, d.k_heads, d.v_heads);
            let q = unit(&d.q.row(row)[group * k_dim..][..k_dim]);
            let k = unit(&d.k.row(row)[group * k_dim..][..k_dim]);
            let v = &d.v.row(row)[h * v_dim..][..v_dim];
            let beta = sigmoid(f64::from(d.b.row(row)[h]));
            let step = softplus(f64::from(d.a.row(row)[h]) + f64::from(d.dt_bias.data[h]));
            let decay = (-f64::from(d.a_log.data[h]).exp() * step).exp();
            for (j, &value) in v.iter().enumerate() {
                let column = |i: usize| i * v_dim + j;
                let held: f64 =
                    (0..k_dim).map(|i| f64::from(state[column(i)]) * decay * k[i]).sum();
                let delta = beta * (f64::from(value) - held);
                let mut sum = 0.0;
                for i in 0..k_dim {
                    let s = f64::from(state[column(i)]) * decay + k[i] * delta;
                    state[column(i)] = s as f32;
                    sum += s * q[i];
                }
                out.push((sum / (k_dim as f64).sqrt()) as f32);
            }
        }
    });
    out
}

/// `x / sqrt(Σx² + 1e-6)`.
fn unit(x: &[f32]) -> Vec<f64> {
    let square: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    let length = (square + 1e-6).sqrt();
    x.iter().map(|&x| f64::from(x) / length).collect()
}

/// Operands of the selective scan.
pub(super) struct Scan<'a> {
    pub x: Rows<'a>,
    pub b: Rows<'a>,
    pub c: Rows<'a>,
    pub dt: Rows<'a>,
    pub a_log: &'a Matrix,
    pub skip: &'a Matrix,
    pub dt_bias: &'a Matrix,
    pub heads: usize,
    pub groups: usize,
    pub dt_limit: (f32, f32),
}

/// Selective scan of Mamba-2. [tokens, heads × head_dim]
pub(super) fn scan(s: &Scan<'_>, cache: &mut Cache, batch: &Batch) -> Vec<f32> {
    let (dim, state_dim) = (s.x.cols / s.heads, s.b.cols / s.groups);
    let mut out = Vec::with_capacity(s.x.count() * s.x.cols);
    over_spans(cache, batch, |row, states| {
        for (h, states) in states.chunks_exact_mut(dim * state_dim).enumerate() {
            let group = h / (s.heads / s.groups);
            let b = &s.b.row(row)[group * state_dim..][..state_dim];
            let c = &s.c.row(row)[group * state_dim..][..state_dim];
            let raw = f64::from(s.dt.row(row)[h]) + f64::from(s.dt_bias.data[h]);
            let (low, high) = (f64::from(s.dt_limit.0), f64::from(s.dt_limit.1));
            let step = softplus(raw).max(low).min(high);
            let decay = (-f64::from(s.a_log.data[h]).exp() * step).exp();
            for (i, state) in states.chunks_exact_mut(state_dim).enumerate() {
                let x = f64::from(s.x.row(row)[h * dim + i]);
                let mut sum = f64::from(s.skip.data[h]) * x;
                for ((state, &b), &c) in state.iter_mut().zip(b).zip(c) {
                    let next = f64::from(*state) * decay + step * x * f64::from(b);
                    *state = next as f32;
                    sum += next * f64::from(c);
                }
                out.push(sum as f32);
            }
        }
    });
    out
}
