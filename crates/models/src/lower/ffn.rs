//! Feed-forward parts: gated, plain, routed experts.

use tokenmill_ir::{
    Act, Expr, GateAct, NormKind, Op, RouteRule, RouteScore, RowSlices, Rows, Unary, View,
    WeightId, op,
};

use super::weights::ExpertKind;
use super::{Lower, slice};
use crate::error::ModelError;
use crate::names::Role;
use crate::spec::{Experts, Ffn, Weigh};

const GATE: ExpertKind = ExpertKind {
    name: "gate",
    single: Role::ExpertGate,
    stacked: Role::ExpertsGate,
    fused: Some((Role::ExpertsGateUp, 0)),
};
const UP: ExpertKind = ExpertKind {
    name: "up",
    single: Role::ExpertUp,
    stacked: Role::ExpertsUp,
    fused: Some((Role::ExpertsGateUp, 1)),
};
const DOWN: ExpertKind =
    ExpertKind { name: "down", single: Role::ExpertDown, stacked: Role::ExpertsDown, fused: None };

impl Lower<'_> {
    /// `x` is the norm of `stream`.
    pub(super) fn ffn(&mut self, ffn: &Ffn, x: View, stream: View) -> Result<View, ModelError> {
        let hidden = self.spec.hidden;
        match *ffn {
            Ffn::Gated { width, act, gate_scale, out_scale, cutoff } => {
                let (gate, up) = self.gate_and_up(width)?;
                self.scale_rows(gate, &[(width, gate_scale)]);
                let y = match cutoff {
                    None => self.gated(x, gate, up, width, act),
                    Some(cutoff) => self.sparse(x, gate, up, act, cutoff)?,
                };
                let down = self.matrix(Role::Down, hidden, width)?;
                self.scale_rows(down, &[(hidden, out_scale)]);
                Ok(self.linear(y, down))
            }
            Ffn::Plain { width, act } => {
                let up = self.matrix(Role::Up, width, hidden)?;
                let y = self.linear(x, up);
                let y = self.map(Expr::Arg(0).apply(Unary::Act(act)), vec![y]);
                let down = self.matrix(Role::Down, hidden, width)?;
                Ok(self.linear(y, down))
            }
            Ffn::Swish { width, beta } => {
                let up = self.matrix(Role::Up, width, hidden)?;
                let y = self.linear(x, up);
                let gate = Expr::Arg(0).scaled(beta).apply(Unary::Sigmoid);
                let y = self.map(Expr::Mul(Box::new(Expr::Arg(0)), Box::new(gate)), vec![y]);
                let down = self.matrix(Role::Down, hidden, width)?;
                Ok(self.linear(y, down))
            }
            Ffn::Experts(ref experts) => self.experts(experts, x),
            Ffn::Beside { width, act, norm, ref experts } => {
                let y = self.ffn(&Ffn::gated(width, act), x, stream)?;
                let y = self.norm(y, norm, Role::DensePostNorm)?;
                let routed = self.norm(stream, norm, Role::RouterNorm)?;
                let (router, _, route) = self.route(experts, routed)?;
                self.scale_rows(router, &[(experts.count, 1.0 / (hidden as f32).sqrt())]);
                let x = self.norm(stream, norm, Role::ExpertsNorm)?;
                let more = self.chosen(experts, x, route)?;
                let more = self.norm(more, norm, Role::ExpertsPostNorm)?;
                Ok(self.map(Expr::add(0, 1), vec![y, more]))
            }
        }
    }

    /// Two matrices, whether stored apart or one above the other.
    fn gate_and_up(&mut self, width: u32) -> Result<(WeightId, WeightId), ModelError> {
        let hidden = self.spec.hidden;
        if self.tensor_opt(Role::Gate).is_some() {
            let gate = self.matrix(Role::Gate, width, hidden)?;
            return Ok((gate, self.matrix(Role::Up, width, hidden)?));
        }
        self.halves("mlp", Role::GateUp, width)
    }

    /// The upper and the lower half of a tensor.
    fn halves(
        &mut self,
        name: &str,
        role: Role,
        width: u32,
    ) -> Result<(WeightId, WeightId), ModelError> {
        let hidden = self.spec.hidden;
        let half = |start| Some(RowSlices::range(start, width.into()));
        let gate = self.stacked(&format!("{name}.gate"), hidden, &[(role, half(0))])?;
        let up = self.stacked(&format!("{name}.up"), hidden, &[(role, half(width.into()))])?;
        Ok((gate, up))
    }

    fn gated(&mut self, x: View, gate: WeightId, up: WeightId, width: u32, act: GateAct) -> View {
        let out = self.program.buffer(Rows::Tokens, width);
        self.program.ops.push(Op::GatedLinear { x, gate, up, act, out: out.buffer });
        out
    }

    /// As [`Self::gated`], where the gate is far above its mean.
    fn sparse(
        &mut self,
        x: View,
        gate: WeightId,
        up: WeightId,
        act: GateAct,
        cutoff: f32,
    ) -> Result<View, ModelError> {
        let GateAct::Plain(act) = act else {
            return Err(ModelError::unsupported("activation sparsity", format!("{act:?}")));
        };
        let (gate, up) = (self.linear(x, gate), self.linear(x, up));
        let (unit, deviation) = self.sized(gate, NormKind::Layer);
        let above = Expr::Add(Box::new(Expr::Arg(0)), Box::new(Expr::Const(-cutoff)));
        let above = above.apply(Unary::Act(Act::Relu));
        let gate = Expr::Mul(Box::new(above), Box::new(Expr::Arg(1))).apply(Unary::Act(act));
        let expr = Expr::Mul(Box::new(gate), Box::new(Expr::Arg(2)));
        Ok(self.map(expr, vec![unit, deviation, up]))
    }

    fn experts(&mut self, e: &Experts, x: View) -> Result<View, ModelError> {
        let hidden = self.spec.hidden;
        let (router, rule, route) = self.route(e, x)?;
        let out = match e.weigh {
            Weigh::Output => self.chosen(e, x, route)?,
            Weigh::Input => {
                let (x, route) = self.weighed_input(x, router, rule, route)?;
                self.chosen(e, x, route)?
            }
        };
        let Some(shared) = e.shared else { return Ok(out) };
        let (gate, up) = match self.tensor_opt(Role::SharedGateUp) {
            Some(_) => self.halves("shared", Role::SharedGateUp, shared.width)?,
            None => (
                self.matrix(Role::SharedGate, shared.width, hidden)?,
                self.matrix(Role::SharedUp, shared.width, hidden)?,
            ),
        };
        let y = self.gated(x, gate, up, shared.width, e.act);
        let down = self.matrix(Role::SharedDown, hidden, shared.width)?;
        let mut y = self.linear(y, down);
        if shared.gated {
            let gate = self.matrix(Role::SharedRouter, 1, hidden)?;
            let g = self.linear(x, gate);
            let sigmoid = Expr::Arg(1).apply(Unary::Sigmoid);
            y = self.map(Expr::Mul(Box::new(Expr::Arg(0)), Box::new(sigmoid)), vec![y, g]);
        }
        Ok(self.map(Expr::add(0, 1), vec![out, y]))
    }

    /// The router, its rule, and what it chooses for `x`.
    fn route(&mut self, e: &Experts, x: View) -> Result<(WeightId, RouteRule, View), ModelError> {
        let router = self.matrix(Role::Router, e.count, self.spec.hidden)?;
        let mut of_experts = |role| match self.tensor_opt(role) {
            Some(_) => self.vector(role, e.count).map(Some),
            None => Ok(None),
        };
        let choice_bias = of_experts(Role::RouterChoiceBias)?;
        let gains = of_experts(Role::ExpertGains)?;
        let rule = RouteRule {
            experts: e.count,
            top: e.top,
            score: e.score,
            choice_bias,
            groups: e.groups,
            normalise: e.normalise,
            scale: e.scale,
            gains,
        };
        let route = self.program.buffer(Rows::Tokens, 2 * e.top);
        self.program.ops.push(Op::Route { x, router, rule, out: route.buffer });
        Ok((router, rule, route))
    }

    /// The sum of the experts that `route` chose.
    fn chosen(&mut self, e: &Experts, x: View, route: View) -> Result<View, ModelError> {
        let hidden = self.spec.hidden;
        let gate = self.expert_matrices(&GATE, e, e.width, hidden)?;
        let up = self.expert_matrices(&UP, e, e.width, hidden)?;
        let down = self.expert_matrices(&DOWN, e, hidden, e.width)?;
        let out = self.program.buffer(Rows::Tokens, hidden);
        let (experts, act) = (e.count, e.act);
        let id = out.buffer;
        self.program.ops.push(Op::Experts(op::Experts {
            x,
            route,
            gate,
            up,
            down,
            experts,
            act,
            out: id,
        }));
        Ok(out)
    }

    /// The input times the weight of its one expert, and the same choice with a weight of 1.
    fn weighed_input(
        &mut self,
        x: View,
        router: WeightId,
        rule: RouteRule,
        route: View,
    ) -> Result<(View, View), ModelError> {
        if rule.top != 1 || rule.choice_bias.is_some() {
            return Err(ModelError::unsupported("experts a token (weighed inputs)", rule.top));
        }
        let weighed = self.map(Expr::mul(0, 1), vec![x, slice(route, 1, 1)]);
        let rule = RouteRule { score: RouteScore::SoftmaxOfTop, scale: 1.0, ..rule };
        let whole = self.program.buffer(Rows::Tokens, 2);
        self.program.ops.push(Op::Route { x, router, rule, out: whole.buffer });
        Ok((weighed, whole))
    }
}
