//! Embedding, norms, gated products, elementwise maps, rows taken and pooled.

use tokenmill_backend::DeviceError;
use tokenmill_ir::{GateOrder, Op, PoolKind, Rows as RowKind, WeightId, op};
use tokenmill_quant::FormatId;

use super::{Const, Draft, Extent, NARROW, Product, Ptr, STRIP, TILE, When, words};
use crate::failure::unsupported;
use crate::kernels::{Kernel, has_gated};

/// Words an expression may have waiting, operands of one, and rows that a norm may add.
const DEEPEST: usize = 8;
const MOST_ADDS: usize = 8;
/// Rows of x up to which two products are made by one kernel.
const MOST_GATED: u32 = 16;
/// Threads of blocks that compute a row or part of one.
const THREADS: u32 = 128;

fn outputs(kind: RowKind) -> u32 {
    u32::from(kind == RowKind::Outputs)
}

impl Draft<'_> {
    pub(super) fn embed(&mut self, op: &Op) -> Result<(), DeviceError> {
        let Op::Embed { table, scale, positions, token_types, out } = op else { return Ok(()) };
        if self.program.input_cols > 0 {
            return Err(unsupported("rows in the place of tokens"));
        }
        let weights = &self.program.weights;
        let cols = weights[table.0 as usize].cols;
        let types = token_types.map_or(0, |w| weights[w.0 as usize].rows);
        let out = self.buffer(*out);
        let look_up = |p: &crate::layout::PartShape| match p.is_atoms {
            true => Kernel::LookUp(p.format),
            false => Kernel::Embed(p.format),
        };
        let kernels: Vec<_> = self.shapes[table.0 as usize].parts.iter().map(look_up).collect();
        for (i, kernel) in kernels.into_iter().enumerate() {
            let part = self.constant(Const::Parts(vec![(*table, i, 0)]));
            let (positions, types_at) = (Self::numbers(*positions), Self::numbers(*token_types));
            let p = vec![Ptr::Step, part, positions, types_at, out.ptr];
            let grid = [Extent::rows(RowKind::Tokens), Extent::ONE, Extent::ONE];
            let n = vec![cols, out.ld, types];
            self.launch(kernel, grid, (THREADS, 0), (p, n, vec![*scale]))?;
        }
        Ok(())
    }

    pub(super) fn norm(&mut self, op: &op::Norm) -> Result<(), DeviceError> {
        let op::Norm { x, adds, sum, kind, weight, offset, bias, groups, gate, eps, root, out } =
            op;
        if adds.len() > MOST_ADDS {
            return Err(unsupported(format!("{} rows added", adds.len())));
        }
        let joined = self.joined.take();
        let (x, adds, sum) = match &joined {
            Some(view) => (view, &[][..], &None),
            None => (x, adds.as_slice(), sum),
        };
        let cols = x.cols;
        let all_columns = |w: &Option<tokenmill_ir::WeightId>| {
            w.is_some_and(|w| self.program.weights[w.0 as usize].cols == cols)
        };
        let (of_weight, of_bias) = (all_columns(weight), all_columns(bias));
        let (x, out) = (self.view(*x), self.buffer(*out));
        let optional = |b: &Option<tokenmill_ir::BufferId>| {
            b.map_or((Ptr::Null, 0), |b| (self.buffer(b).ptr, self.buffer(b).ld))
        };
        let ((sum, sum_ld), (root, root_ld)) = (optional(sum), optional(root));
        let (gate_at, gate_ld, order) = gate.map_or((Ptr::Null, 0, 0), |(v, order)| {
            let rows = self.view(v);
            (rows.ptr, rows.ld, if order == GateOrder::BeforeNorm { 1 } else { 2 })
        });
        let (weight, bias) = (Self::numbers(*weight), Self::numbers(*bias));
        let mut p = vec![Ptr::Step, x.ptr, sum, weight, bias, gate_at, root, out.ptr];
        let mut n = vec![cols, (*groups).max(1), outputs(x.kind), words::norm(*kind), order];
        n.extend([adds.len() as u32, x.ld, sum_ld, gate_ld, root_ld, out.ld]);
        n.extend([of_weight, of_bias].map(u32::from));
        for add in adds {
            let rows = self.view(*add);
            p.push(rows.ptr);
            n.push(rows.ld);
        }
        let grid = [Extent::rows(x.kind), Extent::fixed((*groups).max(1).into()), Extent::ONE];
        self.launch(Kernel::Norm, grid, (THREADS, 0), (p, n, vec![*offset, *eps]))
    }

    pub(super) fn gated_linear(&mut self, op: &Op) -> Result<(), DeviceError> {
        let Op::GatedLinear { x, gate, up, act, out } = op else { return Ok(()) };
        let width = self.program.weights[gate.0 as usize].rows;
        let (x, out) = (self.view(*x), self.buffer(*out));
        if let Some(format) = self.is_one_kernel(*gate, *up) {
            let parts = [gate, up].map(|w| self.constant(Const::Parts(vec![(*w, 0, 0)])));
            let (kind, f) = words::gate(*act);
            let p = vec![Ptr::Step, parts[0], x.ptr, out.ptr, parts[1]];
            let cols = self.program.weights[gate.0 as usize].cols;
            let n = vec![cols, x.ld, out.ld, outputs(x.kind), kind];
            let strips = Extent::fixed(width.div_ceil(STRIP).into());
            let grid = [strips, Extent::rows(x.kind).per(TILE), Extent::ONE];
            self.when = When::AtMost(x.kind, MOST_GATED);
            self.launch(Kernel::Gated(format), grid, (NARROW, 0), (p, n, f))?;
            // (Apart, with the same bits.)
            self.when = When::Above(x.kind, MOST_GATED);
        }
        let gates = self.scratch(x.kind, 1, width);
        let ups = self.scratch(x.kind, 1, width);
        self.product(x, &[(*gate, 0)], gates, Product::PLAIN)?;
        self.product(x, &[(*up, 0)], ups, Product::PLAIN)?;
        self.gate((gates, ups, out), (width, 1), *act)?;
        self.when = When::Always;
        Ok(())
    }

    /// The format of two weights whose products one kernel makes.
    fn is_one_kernel(&self, gate: WeightId, up: WeightId) -> Option<FormatId> {
        let parts = [gate, up].map(|w| self.shapes[w.0 as usize].parts.as_slice());
        let ([gate], [up]) = (parts[0], parts[1]) else { return None };
        let both = gate.is_atoms && up.is_atoms && gate.format == up.format;
        (both && has_gated(gate.format)).then_some(gate.format)
    }

    /// Combines rows of gates and linear branches, `times` a row of the step.
    pub(super) fn gate(
        &mut self,
        (gates, ups, out): (super::Rows, super::Rows, super::Rows),
        (width, times): (u32, u32),
        act: tokenmill_ir::GateAct,
    ) -> Result<(), DeviceError> {
        let (kind, f) = words::gate(act);
        let p = vec![Ptr::Step, gates.ptr, ups.ptr, out.ptr];
        let n = vec![width, outputs(gates.kind), times, kind, gates.ld, ups.ld, out.ld];
        let many = Extent::rows(gates.kind).times(u64::from(width) * u64::from(times));
        let grid = [many.per(THREADS.into()), Extent::ONE, Extent::ONE];
        self.launch(Kernel::Gate, grid, (THREADS, 0), (p, n, f))
    }

    pub(super) fn map(&mut self, op: &Op) -> Result<(), DeviceError> {
        let Op::Map { expr, args, out } = op else { return Ok(()) };
        let mut code = Vec::new();
        let depth = words::expression(expr, &mut code);
        if depth > DEEPEST {
            return Err(unsupported(format!("an expression {depth} deep")));
        }
        let count = code.len() as u32;
        let cols = self.program.buffers[out.0 as usize].cols;
        let (out, code) = (self.buffer(*out), self.constant(Const::Words(code)));
        let mut p = vec![Ptr::Step, code, out.ptr];
        let mut n = vec![cols, outputs(out.kind), count, out.ld];
        for arg in args {
            let rows = self.view(*arg);
            p.push(rows.ptr);
            n.extend([rows.ld, u32::from(arg.cols == 1)]);
        }
        let many = Extent::rows(out.kind).times(cols.into()).per(THREADS.into());
        let grid = [many, Extent::ONE, Extent::ONE];
        self.launch(Kernel::Map, grid, (THREADS, 0), (p, n, Vec::new()))
    }

    pub(super) fn take(&mut self, op: &Op) -> Result<(), DeviceError> {
        let (x, out, kernel, more) = match op {
            Op::TakeRows { run, .. } if *run != 1 => {
                return Err(unsupported("output rows of several tokens"));
            }
            Op::TakeRows { x, out, .. } => (x, out, Kernel::TakeRows, Vec::new()),
            Op::Pool { x, kind, normalise, out } => {
                let kind = match kind {
                    PoolKind::Mean => 0,
                    PoolKind::First => 1,
                    PoolKind::Last => 2,
                };
                (x, out, Kernel::Pool, vec![kind, u32::from(*normalise)])
            }
            _ => return Ok(()),
        };
        let (cols, x, out) = (x.cols, self.view(*x), self.buffer(*out));
        let mut n = vec![cols, x.ld, out.ld];
        n.extend(more);
        let grid = [Extent::rows(RowKind::Outputs), Extent::ONE, Extent::ONE];
        let p = vec![Ptr::Step, x.ptr, out.ptr];
        self.launch(kernel, grid, (THREADS, 0), (p, n, Vec::new()))
    }
}
