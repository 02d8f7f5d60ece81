//! Routing and the experts chosen.

use tokenmill_backend::DeviceError;
use tokenmill_ir::{Op, RouteScore, Rows as RowKind, WeightId, op};
use tokenmill_quant::FormatId;

use super::{Draft, Extent, NARROW, Pairs, Product, Ptr, STRIP, TILE};
use crate::kernels::Kernel;

impl Draft<'_> {
    pub(super) fn route(&mut self, op: &Op) -> Result<(), DeviceError> {
        let Op::Route { x, router, rule, out } = op else { return Ok(()) };
        let (x, out) = (self.view(*x), self.buffer(*out));
        let logits = self.scratch(RowKind::Tokens, 1, rule.experts);
        self.product(x, &[(*router, 0)], logits, Product::PLAIN)?;
        let (bias, gains) = (Self::numbers(rule.choice_bias), Self::numbers(rule.gains));
        let score = match rule.score {
            RouteScore::Softmax => 0,
            RouteScore::SoftmaxOfTop => 1,
            RouteScore::Sigmoid => 2,
        };
        let (groups, keep, best) = rule.groups.map_or((0, 0, 0), |g| (g.groups, g.keep, g.best));
        let p = vec![Ptr::Step, logits.ptr, bias, gains, out.ptr];
        let mut n = vec![rule.experts, rule.top, score, groups, keep, best];
        n.extend([u32::from(rule.normalise), logits.ld, out.ld]);
        let shared = (2 * rule.experts + groups + rule.top) * 4 + rule.experts + groups;
        let grid = [Extent::rows(RowKind::Tokens), Extent::ONE, Extent::ONE];
        self.launch(Kernel::Route, grid, (32, shared), (p, n, vec![rule.scale]))
    }

    pub(super) fn experts(&mut self, op: &op::Experts) -> Result<(), DeviceError> {
        let op::Experts { x, route, gate, up, down, experts, act, out } = op;
        let top = route.cols / 2;
        let weights = &self.program.weights;
        let (width, cols) = (weights[gate.0 as usize].rows, weights[down.0 as usize].rows);
        let (x, route, out) = (self.view(*x), self.view(*route), self.buffer(*out));
        let tokens = RowKind::Tokens;
        let starts = self.words(*experts + 1);
        let pairs = self.scratch(tokens, top, 1);
        let [gates, ups] = [(); 2].map(|()| self.scratch(tokens, top, width));
        let rows = self.scratch(tokens, top, cols);
        let chosen = self.words(*experts + 1);
        let p = vec![Ptr::Step, route.ptr, starts, pairs.ptr, chosen];
        let grid = [Extent::fixed((*experts).into()), Extent::ONE, Extent::ONE];
        let (n, shared) = (vec![*experts, top, route.ld], experts.div_ceil(32) * 4);
        self.launch(Kernel::SortPairs, grid, (32, shared), (p, n, Vec::new()))?;
        let (list, experts) = (pairs.ptr, *experts);
        let of = |of_row| {
            let pairs = Some(Pairs { starts, list, chosen, of_row, top, experts });
            Product { pairs, ..Product::PLAIN }
        };
        let all = |first: &WeightId| -> Vec<(WeightId, u32)> {
            (0..experts).map(|e| (WeightId(first.0 + e), e)).collect()
        };
        self.product(x, &all(gate), gates, of(top))?;
        self.product(x, &all(up), ups, of(top))?;
        self.gate((gates, ups, gates), (width, top), *act)?;
        self.product(gates, &all(down), rows, of(1))?;
        let p = vec![Ptr::Step, route.ptr, rows.ptr, out.ptr];
        let many = Extent::rows(tokens).times(cols.into()).per(128);
        let n = vec![cols, top, route.ld, rows.ld, out.ld];
        let grid = [many, Extent::ONE, Extent::ONE];
        self.launch(Kernel::Combine, grid, (128, 0), (p, n, Vec::new()))
    }

    /// Products with experts' parts in atoms, the longest of so many rows.
    pub(super) fn picked(
        &mut self,
        format: FormatId,
        rows: u32,
        (kind, of): (RowKind, Pairs),
        operands: (Vec<Ptr>, Vec<u32>, Vec<f32>),
    ) -> Result<(), DeviceError> {
        let strips = Extent::fixed(rows.div_ceil(STRIP).into());
        let pairs = Extent::rows(kind).times(of.top.into());
        // As many experts as may have pairs; of pairs as many blocks as each has on average.
        let experts = pairs.at_most(of.experts.into());
        let each = pairs.per(2 * TILE * u64::from(of.experts));
        self.launch(Kernel::Picked(format, true), [strips, each, experts], (NARROW, 0), operands)?;
        if let Some(launch) = self.launches.last_mut() {
            // (An expert has no more pairs than there are tokens.)
            let grid = [strips, Extent::rows(kind).per(TILE), experts];
            launch.few = Some((Kernel::Picked(format, false), grid));
        }
        Ok(())
    }
}
