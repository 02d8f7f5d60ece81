//! Numbers that stand for words of kernels/numbers.cuh and dense.cu.

use tokenmill_ir::{Act, Expr, GateAct, NormKind, Unary};

/// An activation.
pub(super) fn act(act: Act) -> u32 {
    match act {
        Act::Silu => 0,
        Act::Gelu => 1,
        Act::GeluTanh => 2,
        Act::Relu => 3,
        Act::ReluSquared => 4,
    }
}

/// How a gate acts, and its two numbers.
pub(super) fn gate(gate: GateAct) -> (u32, Vec<f32>) {
    match gate {
        GateAct::Plain(a) => (act(a), vec![0.0, 0.0]),
        GateAct::Clamped { alpha, limit } => (5, vec![alpha, limit]),
    }
}

/// A kind of norm; 0 is none.
pub(super) fn norm(kind: NormKind) -> u32 {
    match kind {
        NormKind::Rms => 1,
        NormKind::Layer => 2,
    }
}

/// An expression, operands before what takes them. Returns how many wait at most.
pub(super) fn expression(expr: &Expr, words: &mut Vec<u32>) -> usize {
    match expr {
        Expr::Arg(i) => {
            words.push(u32::from(*i));
            1
        }
        Expr::Const(c) => {
            words.extend([0x100, c.to_bits()]);
            1
        }
        Expr::Add(a, b) | Expr::Mul(a, b) => {
            let left = expression(a, words);
            let right = expression(b, words);
            words.push(if matches!(expr, Expr::Add(..)) { 0x200 } else { 0x201 });
            left.max(right + 1)
        }
        Expr::Unary(f, a) => {
            let depth = expression(a, words);
            let code = match f {
                Unary::Act(a) => act(*a),
                Unary::Sigmoid => 5,
                Unary::Tanh => 6,
            };
            words.push(0x300 + code);
            depth
        }
    }
}
