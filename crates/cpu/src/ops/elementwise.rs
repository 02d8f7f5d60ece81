//! Elementwise expressions, a stack machine over rows.

use tokenmill_ir::{Act, Expr, Unary};

use super::linear::{activate, sigmoid_all};
use crate::math::tanh_all;
use crate::step::{Cols, Job, Kernel};

/// One instruction on the stack of rows.
#[derive(Debug, Clone, Copy)]
enum Code {
    Arg(usize),
    Const(f32),
    Add,
    Mul,
    Act(Act),
    Sigmoid,
    Tanh,
}

/// `out = expr(args…)`.
#[derive(Debug)]
pub(crate) struct Map {
    codes: Vec<Code>,
    /// Rows the stack grows to.
    pub depth: usize,
    args: Vec<Cols>,
    out: Cols,
}

impl Map {
    pub fn new(expr: &Expr, args: Vec<Cols>, out: Cols) -> Self {
        let mut codes = Vec::new();
        let depth = flatten(expr, &mut codes);
        Self { codes, depth, args, out }
    }
}

/// Postfix form; returns the depth of stack it needs.
fn flatten(expr: &Expr, codes: &mut Vec<Code>) -> usize {
    match expr {
        Expr::Arg(i) => {
            codes.push(Code::Arg(usize::from(*i)));
            1
        }
        Expr::Const(c) => {
            codes.push(Code::Const(*c));
            1
        }
        Expr::Add(a, b) | Expr::Mul(a, b) => {
            let depth = flatten(a, codes).max(1 + flatten(b, codes));
            codes.push(if matches!(expr, Expr::Add(..)) { Code::Add } else { Code::Mul });
            depth
        }
        Expr::Unary(f, a) => {
            let depth = flatten(a, codes);
            codes.push(match f {
                Unary::Act(a) => Code::Act(*a),
                Unary::Sigmoid => Code::Sigmoid,
                Unary::Tanh => Code::Tanh,
            });
            depth
        }
    }
}

impl Kernel for Map {
    fn run(&self, job: &Job<'_>) {
        let isa = job.step.isa;
        for r in job.rows(job.kind(self.out.region)) {
            // SAFETY: scratch is used here only.
            let scratch = unsafe { job.scratch() };
            let stack = &mut scratch.row[..self.depth * self.out.cols];
            let mut top = 0;
            for code in &self.codes {
                let (below, above) = stack.split_at_mut(top * self.out.cols);
                match *code {
                    Code::Arg(i) => {
                        let (to, x) = (&mut above[..self.out.cols], self.args.get(i));
                        match x.map_or(&[][..], |x| job.read(*x, r)) {
                            [one] => to.fill(*one),
                            row if row.len() == to.len() => to.copy_from_slice(row),
                            _ => to.fill(0.0),
                        }
                        top += 1;
                    }
                    Code::Const(c) => {
                        above[..self.out.cols].fill(c);
                        top += 1;
                    }
                    Code::Add | Code::Mul => {
                        let (a, b) = below.split_at_mut((top - 1) * self.out.cols);
                        let a = &mut a[(top - 2) * self.out.cols..];
                        if matches!(code, Code::Add) {
                            a.iter_mut().zip(b).for_each(|(a, b)| *a += *b);
                        } else {
                            a.iter_mut().zip(b).for_each(|(a, b)| *a *= *b);
                        }
                        top -= 1;
                    }
                    Code::Act(f) => activate(isa, &mut below[(top - 1) * self.out.cols..], f),
                    Code::Sigmoid => sigmoid_all(isa, &mut below[(top - 1) * self.out.cols..]),
                    Code::Tanh => tanh_all(isa, &mut below[(top - 1) * self.out.cols..]),
                }
            }
            // SAFETY: by rows.
            unsafe { job.write(self.out, r) }.copy_from_slice(&stack[..self.out.cols]);
        }
    }
}
