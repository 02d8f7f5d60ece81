//! Embedding, norms, products, elementwise maps, rows with an output, pooling.

use tokenmill_ir::{Act, Batch, Expr, GateAct, GateOrder, NormKind, PoolKind, TokenSource, Unary};

use super::matrix::Matrix;
use super::rows::Rows;

/// The row that stands in the place of the token in row `r` of a batch whose rows have `cols` columns, if one does.
fn given(batch: &Batch, r: usize, cols: usize) -> Option<&[f32]> {
    match batch.tokens[r] {
        TokenSource::Embedding(row) => Some(&batch.embeddings[row as usize * cols..][..cols]),
        _ => None,
    }
}

/// Columns of the rows that stand in the place of tokens.
pub(super) fn input(batch: &Batch, input_cols: usize, start: usize, cols: usize) -> Vec<f32> {
    let mut out = vec![0.0; batch.tokens.len() * cols];
    for (r, out) in out.chunks_exact_mut(cols).enumerate() {
        if let Some(row) = given(batch, r, input_cols) {
            out.copy_from_slice(&row[start..start + cols]);
        }
    }
    out
}

/// `Σ w[i] · table[id[i]]`.
pub(super) fn gather(x: Rows<'_>, table: &Matrix) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.count() * table.cols);
    for r in 0..x.count() {
        let (ids, weights) = x.row(r).split_at(x.cols / 2);
        for c in 0..table.cols {
            let of = |id: f32| f64::from(table.row((id as usize).min(table.rows - 1))[c]);
            let sum: f64 = ids.iter().zip(weights).map(|(&id, &w)| f64::from(w) * of(id)).sum();
            out.push(sum as f32);
        }
    }
    out
}

/// `scale · table[token] (+ positions[p]) (+ token_types[t])`, or a row in the place of a token.
pub(super) fn embed(
    table: &Matrix,
    scale: f32,
    positions: Option<&Matrix>,
    token_types: Option<&Matrix>,
    (tokens, input_cols): (&[u32], usize),
    batch: &Batch,
) -> Vec<f32> {
    let mut out = Vec::with_capacity(tokens.len() * table.cols);
    for (r, (&token, &position)) in tokens.iter().zip(&batch.positions).enumerate() {
        let given = given(batch, r, input_cols);
        for (c, &x) in table.row(token as usize).iter().enumerate() {
            let mut y = given.map_or(x * scale, |row| row[c]);
            y += positions.map_or(0.0, |p| p.row(position as usize)[c]);
            let kind = batch.token_type(r) as usize;
            y += token_types.map_or(0.0, |t| t.row(kind.min(t.rows - 1))[c]);
            out.push(y);
        }
    }
    out
}

/// Everything of a norm but its operands.
pub(super) struct Norm<'a> {
    pub kind: NormKind,
    pub weight: Option<&'a Matrix>,
    pub offset: f32,
    pub bias: Option<&'a Matrix>,
    pub groups: usize,
    pub eps: f32,
}

impl Norm<'_> {
    /// Normalises one row in place; returns the divisor of the last group.
    pub fn apply(&self, row: &mut [f32]) -> f32 {
        let len = row.len() / self.groups;
        let mut root = 1.0;
        for (g, group) in row.chunks_exact_mut(len).enumerate() {
            root = normalise(self.kind, self.eps, group);
            for (i, x) in group.iter_mut().enumerate() {
                let at = |m: &Matrix| m.data[if m.data.len() == len { i } else { g * len + i }];
                *x *= self.weight.map_or(1.0, |w| at(w) + self.offset);
                *x += self.bias.map_or(0.0, at);
            }
        }
        root
    }
}

/// What a norm gives, row by row.
#[derive(Default)]
pub(super) struct Normed {
    pub sums: Vec<f32>,
    pub roots: Vec<f32>,
    pub out: Vec<f32>,
}

/// Norm without weights; returns the divisor.
pub(super) fn normalise(kind: NormKind, eps: f32, x: &mut [f32]) -> f32 {
    let n = x.len() as f64;
    let mean = match kind {
        NormKind::Rms => 0.0,
        NormKind::Layer => x.iter().map(|&x| f64::from(x)).sum::<f64>() / n,
    };
    let square = |x: f32| (f64::from(x) - mean) * (f64::from(x) - mean);
    let variance = x.iter().map(|&x| square(x)).sum::<f64>() / n;
    let root = (variance + f64::from(eps)).sqrt();
    x.iter_mut().for_each(|x| *x = ((f64::from(*x) - mean) * (1.0 / root)) as f32);
    root as f32
}

/// The sum of `x` and `adds`, then its norm.
pub(super) fn norm(
    norm: &Norm<'_>,
    x: Rows<'_>,
    adds: &[Rows<'_>],
    gate: Option<(Rows<'_>, GateOrder)>,
) -> Normed {
    let mut all = Normed::default();
    for r in 0..x.count() {
        let mut sum = x.row(r).to_vec();
        for add in adds {
            sum.iter_mut().zip(add.row(r)).for_each(|(s, a)| *s += a);
        }
        all.sums.extend_from_slice(&sum);
        let scale = |row: &mut [f32], g: Rows<'_>| {
            row.iter_mut().zip(g.row(r)).for_each(|(x, &g)| *x *= act(Act::Silu, g));
        };
        if let Some((g, GateOrder::BeforeNorm)) = gate {
            scale(&mut sum, g);
        }
        all.roots.push(norm.apply(&mut sum));
        if let Some((g, GateOrder::AfterNorm)) = gate {
            scale(&mut sum, g);
        }
        all.out.append(&mut sum);
    }
    all
}

/// `x · weightᵀ`, biases and scales included. [rows, weight.rows]
pub(super) fn linear(x: Rows<'_>, weight: &Matrix) -> Vec<f32> {
    let mut out = vec![0.0; x.count() * weight.rows];
    for n in 0..weight.rows {
        for r in 0..x.count() {
            out[r * weight.rows + n] = weight.product(n, x.row(r));
        }
    }
    out
}

/// `act(x · gateᵀ, x · upᵀ)`.
pub(super) fn gated_linear(x: Rows<'_>, gate: &Matrix, up: &Matrix, act: GateAct) -> Vec<f32> {
    let gates = linear(x, gate);
    gates.into_iter().zip(linear(x, up)).map(|(g, u)| gated(act, g, u)).collect()
}

/// One product a head.
pub(super) fn head_linear(x: Rows<'_>, heads: usize, weight: &Matrix) -> Vec<f32> {
    let out_dim = weight.rows / heads;
    let mut out = Vec::with_capacity(x.count() * weight.rows);
    for r in 0..x.count() {
        for n in 0..weight.rows {
            let head = n / out_dim;
            out.push(weight.product(n, &x.row(r)[head * weight.cols..][..weight.cols]));
        }
    }
    out
}

/// Elementwise expression.
pub(super) fn map(expr: &Expr, args: &[Rows<'_>], rows: usize, cols: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(rows * cols);
    for r in 0..rows {
        for c in 0..cols {
            let arg = |i: usize| args.get(i).map_or(0.0, |a| a.row(r)[c.min(a.cols - 1)]);
            out.push(evaluate(expr, &arg));
        }
    }
    out
}

fn evaluate(expr: &Expr, arg: &dyn Fn(usize) -> f32) -> f32 {
    match expr {
        Expr::Arg(i) => arg(usize::from(*i)),
        Expr::Const(c) => *c,
        Expr::Add(a, b) => evaluate(a, arg) + evaluate(b, arg),
        Expr::Mul(a, b) => evaluate(a, arg) * evaluate(b, arg),
        Expr::Unary(f, a) => {
            let x = evaluate(a, arg);
            match f {
                Unary::Act(a) => act(*a, x),
                Unary::Sigmoid => sigmoid(f64::from(x)) as f32,
                Unary::Tanh => f64::from(x).tanh() as f32,
            }
        }
    }
}

/// `1 / (1 + e^−x)`.
pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `ln(1 + e^x)`.
pub(super) fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// An activation.
pub(super) fn act(act: Act, x: f32) -> f32 {
    let x = f64::from(x);
    let y = match act {
        Act::Silu => x * sigmoid(x),
        Act::Gelu => 0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)),
        Act::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Act::Relu => x.max(0.0),
        Act::ReluSquared => x.max(0.0) * x.max(0.0),
    };
    y as f32
}

/// Error function: its Maclaurin series near zero, a continued fraction of `erfc` beyond
/// (Abramowitz & Stegun 7.1.6 and 7.1.14).
fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a.is_nan() {
        return x;
    }
    if a < 3.0 {
        let (mut term, mut sum, mut n) = (a, a, 0.0);
        while term > sum * 1e-18 {
            n += 1.0;
            term *= 2.0 * a * a / (2.0 * n + 1.0);
            sum += term;
        }
        return x.signum() * sum * (-a * a).exp() * 2.0 / std::f64::consts::PI.sqrt();
    }
    if a > 6.5 {
        return x.signum();
    }
    let mut fraction = a;
    for k in (1..60).rev() {
        fraction = a + f64::from(k) / 2.0 / fraction;
    }
    x.signum() * (1.0 - (-a * a).exp() / (fraction * std::f64::consts::PI.sqrt()))
}

/// A gate and a linear branch.
pub(super) fn gated(kind: GateAct, gate: f32, up: f32) -> f32 {
    match kind {
        GateAct::Plain(a) => act(a, gate) * up,
        GateAct::Clamped { alpha, limit } => {
            let (g, u) = (gate.min(limit), up.clamp(-limit, limit));
            ((f64::from(u) + 1.0) * f64::from(g) * sigmoid(f64::from(alpha) * f64::from(g))) as f32
        }
    }
}

/// Token rows that have an output, with those after them in runs of `run`.
pub(super) fn take_rows(x: Rows<'_>, run: u32, batch: &Batch) -> Vec<f32> {
    let rows = batch.outputs.iter().flat_map(|o| o.row..o.row + run);
    rows.flat_map(|row| x.row(row as usize)).copied().collect()
}

/// One vector an output row: that of the span around it.
pub(super) fn pool(x: Rows<'_>, kind: PoolKind, normalise: bool, batch: &Batch) -> Vec<f32> {
    let mut out = Vec::with_capacity(batch.outputs.len() * x.cols);
    for output in &batch.outputs {
        let around = |s: &&tokenmill_ir::Span| (s.first..s.first + s.len).contains(&output.row);
        let Some(span) = batch.spans.iter().find(around) else { continue };
        let (first, len) = (span.first as usize, span.len as usize);
        let mut row: Vec<f64> = (0..x.cols)
            .map(|c| match kind {
                PoolKind::First => f64::from(x.row(first)[c]),
                PoolKind::Last => f64::from(x.row(first + len - 1)[c]),
                PoolKind::Mean => {
                    let sum: f64 = (first..first + len).map(|r| f64::from(x.row(r)[c])).sum();
                    sum / len as f64
                }
            })
            .collect();
        if normalise {
            let length = row.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-12);
            row.iter_mut().for_each(|x| *x /= length);
        }
        out.extend(row.into_iter().map(|x| x as f32));
    }
    out
}

/// Logits.
pub(super) fn head(x: Rows<'_>, weight: &Matrix, scale: f32, softcap: Option<f32>) -> Vec<f32> {
    let mut out = linear(x, weight);
    for l in &mut out {
        *l *= scale;
        if let Some(c) = softcap {
            *l = capped(f64::from(*l), f64::from(c)) as f32;
        }
    }
    out
}

/// `c · tanh(x / c)`.
pub(super) fn capped(x: f64, c: f64) -> f64 {
    c * (x / c).tanh()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_at_known_points() {
        for (x, expect) in [
            (0.0, 0.0),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (-2.5, -0.999_593_047_982_555),
            (3.2, 0.999_993_974_238_848_3),
            (9.0, 1.0),
        ] {
            assert!((erf(x) - expect).abs() < 1e-14, "erf({x}) = {}", erf(x));
        }
    }

    #[test]
    fn softplus_does_not_overflow() {
        assert_eq!(softplus(800.0), 800.0);
        assert!((softplus(0.0) - 2f64.ln()).abs() < 1e-15);
        assert!(softplus(-800.0) >= 0.0);
    }
}
