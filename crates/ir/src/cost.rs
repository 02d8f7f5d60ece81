//! Bytes moved and operations done by a program at a given load: the planner, the step budget and
//! the roofline of `bench` read this.

use crate::cache::CacheKind;
use crate::op::{self, Op};
use crate::program::Program;
use crate::weight::{WeightId, WeightUse};

/// What a step does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Tokens in the step.
    pub tokens: u64,
    /// Output rows in the step.
    pub outputs: u64,
    /// Σ over tokens of the keys each attends to.
    pub key_reads: u64,
}

/// Keys that `tokens` tokens attend to in all, behind `context` that are in the cache.
pub fn key_reads(context: u64, tokens: u64) -> u64 {
    tokens * context + tokens * (tokens + 1) / 2
}

/// What it costs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// Weight bytes read, each matrix once a step.
    pub weight_bytes: f64,
    /// Cache bytes read.
    pub cache_bytes: f64,
    /// Operations, 2 a multiply-add.
    pub ops: f64,
}

impl Program {
    /// Cost of one step.
    pub fn cost(&self, load: &Load) -> Cost {
        let mut cost = Cost::default();
        for op in &self.ops {
            self.add_cost(op, load, &mut cost);
        }
        cost
    }

    fn add_cost(&self, op: &Op, load: &Load, cost: &mut Cost) {
        let tokens = load.tokens as f64;
        let mut matmul = |w: WeightId, rows: f64, reads: f64| {
            let w = &self.weights[w.0 as usize];
            cost.weight_bytes += w.stored_bytes() as f64 * reads;
            cost.ops += 2.0 * f64::from(w.rows) * f64::from(w.cols) * rows;
        };
        match *op {
            Op::Linear { weight, .. }
            | Op::HeadLinear { weight, .. }
            | Op::Route { router: weight, .. } => matmul(weight, tokens, 1.0),
            Op::GatedLinear { gate, up, .. } => {
                matmul(gate, tokens, 1.0);
                matmul(up, tokens, 1.0);
            }
            Op::Head { weight, .. } if load.outputs > 0 => {
                matmul(weight, load.outputs as f64, 1.0);
            }
            Op::Experts(op::Experts { route, gate, up, down, experts, .. }) => {
                let top = f64::from(route.cols / 2);
                let all = f64::from(experts);
                // Expected distinct experts when every token picks `top` of `all` at random.
                let touched = all * (1.0 - (1.0 - top / all).powf(tokens));
                for w in [gate, up, down] {
                    matmul(w, tokens * top, touched);
                }
            }
            Op::Attend(op::Attend { heads, v_dim, .. }) => {
                cost.ops += 4.0 * f64::from(heads * v_dim) * load.key_reads as f64;
            }
            Op::AttendLatent(op::AttendLatent { q_latent, q_rope, .. }) => {
                let dims = 2 * q_latent.cols + q_rope.cols;
                cost.ops += 2.0 * f64::from(dims) * load.key_reads as f64;
            }
            _ => {}
        }
        for operand in op.operands() {
            if let (crate::op::Operand::Cache(c), true) =
                (operand, matches!(op, Op::Attend(_) | Op::AttendLatent(_)))
            {
                let cache = &self.caches[c.0 as usize];
                if !matches!(cache.kind, CacheKind::State { .. }) {
                    cost.cache_bytes += cache.unit_bytes() as f64 * load.key_reads as f64;
                }
            }
        }
    }

    /// Bytes of all weights in the formats they are read as: nearly always those of the file.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.iter().map(|w| w.stored_bytes()).sum()
    }

    /// Bytes of the weights that one decode step reads when every expert is resident: everything
    /// but tables whose rows are looked up.
    pub fn resident_weight_bytes(&self) -> u64 {
        let rows_only = |w: &&crate::WeightSpec| w.role != WeightUse::Rows;
        self.weights.iter().filter(rows_only).map(|w| w.stored_bytes()).sum()
    }
}
