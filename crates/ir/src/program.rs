//! A model as a flat list of ops over numbered buffers, weights and caches: plain data that can be
//! checked, printed, costed, and compiled by any device.

use std::fmt::Write as _;

use thiserror::Error;
use tokenmill_quant::fields::code_book;

use crate::batch::MAX_GROUPS;
use crate::cache::{CacheSpec, GroupKind};
use crate::op::{self, Op, Operand, Rope};
use crate::view::{BufferId, BufferSpec, Rows, View};
use crate::weight::{WeightId, WeightSpec};

/// A model, ready for a device.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Program {
    /// In order of execution.
    pub ops: Vec<Op>,
    /// Written once each, by one op.
    pub buffers: Vec<BufferSpec>,
    /// All weights.
    pub weights: Vec<WeightSpec>,
    /// All caches.
    pub caches: Vec<CacheSpec>,
    /// Distinct rotations.
    pub ropes: Vec<Rope>,
    /// Vocabulary size: columns of the logits (0 for pooled models).
    pub vocab: u32,
    /// Columns of the final hidden rows, all that [`Op::Sample`] gives.
    pub hidden: u32,
    /// Columns of the rows that may stand in the place of tokens; 0: none may.
    pub input_cols: u32,
    /// Whether spans must hold whole sequences (no cache, attention in both directions).
    pub whole_sequences: bool,
    /// Whether weights may take more memory than their own bits where a device computes them faster then. The numbers, and
    /// so the results, are the same.
    pub wide_weights: bool,
}

/// What is inconsistent in a program: a bug in lowering, or a model that contradicts itself.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("op {op} ({name}): {reason}")]
pub struct ProgramError {
    /// Index of the op; `ops.len()` for the program as a whole.
    pub op: usize,
    /// Its name.
    pub name: &'static str,
    /// What is wrong, with the numbers.
    pub reason: String,
}

impl Program {
    /// Adds a buffer and gives a view of all its columns.
    pub fn buffer(&mut self, rows: Rows, cols: u32) -> View {
        let buffer = BufferId(self.buffers.len() as u32);
        self.buffers.push(BufferSpec { rows, cols });
        View { buffer, start: 0, cols }
    }

    /// Adds a weight.
    pub fn weight(&mut self, spec: WeightSpec) -> WeightId {
        self.weights.push(spec);
        WeightId(self.weights.len() as u32 - 1)
    }

    /// Whether weights are entries of code books, which a device may write out: see [`Program::wide_weights`].
    pub fn has_code_books(&self) -> bool {
        let mut parts = self.weights.iter().flat_map(|weight| &weight.parts);
        parts.any(|part| !code_book(part.read_as().0).is_empty())
    }

    /// Token ids are below this: each has a row in every table of embeddings.
    pub fn ids(&self) -> u32 {
        let tables = self.ops.iter().filter_map(|op| match op {
            Op::Embed { table, .. } => self.weights.get(table.0 as usize),
            _ => None,
        });
        tables.map(|table| table.rows).min().unwrap_or(self.vocab)
    }

    /// The kind of each cache group, by group number.
    pub fn groups(&self) -> Vec<GroupKind> {
        let count = self.caches.iter().map(|c| c.group + 1).max().unwrap_or(0);
        (0..count)
            .filter_map(|g| self.caches.iter().find(|c| c.group == g))
            .map(CacheSpec::group_kind)
            .collect()
    }

    /// Bytes one block of `group` takes in all its caches (a slot for a state group).
    pub fn block_bytes(&self, group: u32, block_tokens: u32) -> u64 {
        let members = self.caches.iter().filter(|c| c.group == group);
        members
            .map(|c| match c.group_kind() {
                GroupKind::State => c.unit_bytes(),
                _ => c.unit_bytes() * u64::from(block_tokens),
            })
            .sum()
    }

    /// Verifies indices, column counts, single assignment and cache groups.
    pub fn check(&self) -> Result<(), ProgramError> {
        let fail = |op: usize, reason: String| {
            let name = self.ops.get(op).map_or("program", Op::name);
            Err(ProgramError { op, name, reason })
        };
        let mut written = vec![false; self.buffers.len()];
        for (i, op) in self.ops.iter().enumerate() {
            for operand in op.operands() {
                if let Err(reason) = self.check_operand(operand, &written) {
                    return fail(i, reason);
                }
                if let Operand::Write(b) = operand {
                    written[b.0 as usize] = true;
                }
            }
            if let Err(reason) = self.check_shape(op) {
                return fail(i, reason);
            }
        }
        for (i, rope) in self.ropes.iter().enumerate() {
            let (axes, pairs) = (rope.axes.len(), rope.inv_freq.len());
            if (axes != 0 && axes != pairs) || rope.axes.iter().any(|&axis| axis > 2) {
                return fail(self.ops.len(), format!("rotation {i}: {axes} axes of {pairs} pairs"));
            }
        }
        let groups = self.groups();
        let count = self.caches.iter().map(|c| c.group + 1).max().unwrap_or(0);
        if groups.len() != count as usize || groups.len() > MAX_GROUPS {
            return fail(self.ops.len(), format!("{count} cache groups, at most {MAX_GROUPS}"));
        }
        for (i, c) in self.caches.iter().enumerate() {
            if groups[c.group as usize] != c.group_kind() {
                return fail(self.ops.len(), format!("cache {i} differs from its group"));
            }
        }
        Ok(())
    }

    fn check_operand(&self, operand: Operand, written: &[bool]) -> Result<(), String> {
        match operand {
            Operand::Read(v) => {
                let b = self.buffers.get(v.buffer.0 as usize).ok_or("buffer out of range")?;
                if v.start.checked_add(v.cols).is_none_or(|end| end > b.cols) || v.cols == 0 {
                    return Err(format!("columns {}+{} of {}", v.start, v.cols, b.cols));
                }
                if !written[v.buffer.0 as usize] {
                    return Err(format!("buffer {} read before it is written", v.buffer.0));
                }
            }
            Operand::Write(b) => match written.get(b.0 as usize) {
                None => return Err("buffer out of range".into()),
                Some(true) => return Err(format!("buffer {} written twice", b.0)),
                Some(false) => {}
            },
            Operand::Weight(w) if w.0 as usize >= self.weights.len() => {
                return Err(format!("weight {} of {}", w.0, self.weights.len()));
            }
            Operand::Cache(c) if c.0 as usize >= self.caches.len() => {
                return Err(format!("cache {} of {}", c.0, self.caches.len()));
            }
            _ => {}
        }
        Ok(())
    }

    fn check_shape(&self, op: &Op) -> Result<(), String> {
        let cols = |b: &BufferId| self.buffers[b.0 as usize].cols;
        let product = |x: &View, w: &WeightId, out: &BufferId| {
            let w = &self.weights[w.0 as usize];
            same(&format!("columns of '{}'", w.name), w.cols, x.cols)?;
            same(&format!("rows of '{}'", w.name), w.rows, cols(out))
        };
        match op {
            Op::Norm(op::Norm { x, adds, sum, out, gate, groups, root, .. }) => {
                for v in adds.iter().chain(gate.iter().map(|(v, _)| v)) {
                    same("columns added", v.cols, x.cols)?;
                }
                if let Some(s) = sum {
                    same("columns of the sum", cols(s), x.cols)?;
                }
                if let Some(r) = root {
                    same("columns of the divisor", cols(r), 1)?;
                    same("groups with a divisor kept", *groups, 1)?;
                }
                same("columns out", cols(out), x.cols)
            }
            Op::Linear { x, weight, out } | Op::Head { x, weight, out, .. } => {
                product(x, weight, out)
            }
            Op::GatedLinear { x, gate, up, out, .. } => {
                product(x, gate, out)?;
                product(x, up, out)
            }
            Op::HeadLinear { x, heads, weight, out } => {
                let w = &self.weights[weight.0 as usize];
                same("rows of the head matrices", w.rows, cols(out))?;
                same("columns of the head matrices", w.cols * heads, x.cols)
            }
            Op::RotateStore(op::RotateStore { q, heads, head_dim, out, .. }) => {
                same("query columns", q.cols, heads * head_dim)?;
                same("columns out", cols(out), q.cols)
            }
            Op::Attend(op::Attend { heads, v_dim, out, kv_heads, .. }) => {
                same("heads per key/value head", heads % kv_heads.max(&1), 0)?;
                same("columns out", cols(out), heads * v_dim)
            }
            Op::AttendLatent(op::AttendLatent { q_latent: x, out, .. })
            | Op::DeltaRule(op::DeltaRule { v: x, out, .. })
            | Op::Conv(op::Conv { x, out, .. })
            | Op::Scan(op::Scan { x, out, .. })
            | Op::Pool { x, out, .. } => same("columns out", cols(out), x.cols),
            Op::Route { rule, out, router, .. } => {
                same("experts", self.weights[router.0 as usize].rows, rule.experts)?;
                same("columns out", cols(out), 2 * rule.top)
            }
            Op::Experts(op::Experts { x, down, out, .. }) => {
                same("rows of down", self.weights[down.0 as usize].rows, cols(out))?;
                same("columns out", cols(out), x.cols)
            }
            Op::Map { args, out, .. } => {
                for v in args.iter().filter(|v| v.cols != 1) {
                    same("operand columns", v.cols, cols(out))?;
                }
                same("operands over four", u32::from(args.len() > 4), 0)
            }
            Op::StoreLatent(_) => Ok(()),
            _ => self.check_ends(op),
        }
    }

    /// The shapes of what a program begins and ends with.
    fn check_ends(&self, op: &Op) -> Result<(), String> {
        let cols = |b: &BufferId| self.buffers[b.0 as usize].cols;
        match op {
            Op::Embed { table, out, .. } => {
                let of_table = self.weights[table.0 as usize].cols;
                same("columns of the embedding", of_table, cols(out))?;
                self.check_input(of_table * u32::from(self.input_cols > 0))
            }
            Op::Input { start, out } => self.check_input(start.saturating_add(cols(out))),
            Op::Gather { x, table, out } => {
                same("columns of the table", self.weights[table.0 as usize].cols, cols(out))?;
                same("columns of ids and weights, odd", x.cols % 2, 0)
            }
            Op::TakeRows { x, run, out } => {
                same("runs of no rows", u32::from(*run == 0), 0)?;
                same("columns out", cols(out), run.saturating_mul(x.cols))
            }
            Op::Sample { hidden, more, .. } => {
                let all = more.iter().fold(hidden.cols, |sum, v| sum.saturating_add(v.cols));
                same("columns of final rows", self.hidden, all)
            }
            _ => Ok(()),
        }
    }

    /// Whether rows that stand in the place of tokens have so many columns.
    fn check_input(&self, cols: u32) -> Result<(), String> {
        match cols <= self.input_cols {
            true => Ok(()),
            false => Err(format!("{cols} columns of input rows, which have {}", self.input_cols)),
        }
    }

    /// A readable listing, one op a line.
    pub fn dump(&self) -> String {
        let mut text = String::new();
        for (i, op) in self.ops.iter().enumerate() {
            let _ = write!(text, "{i:4} {:<12}", op.name());
            let mut experts = 0;
            for operand in op.operands() {
                let _ = match operand {
                    Operand::Read(v) if v.start == 0 && v.cols == self.cols(v.buffer) => {
                        write!(text, " b{}[{}]", v.buffer.0, v.cols)
                    }
                    Operand::Read(v) => {
                        write!(text, " b{}[{}..{}]", v.buffer.0, v.start, v.start + v.cols)
                    }
                    Operand::Write(b) => write!(text, " -> b{}[{}]", b.0, self.cols(b)),
                    Operand::Weight(_) if matches!(op, Op::Experts(_)) => {
                        experts += 1;
                        Ok(())
                    }
                    Operand::Weight(w) => write!(text, " {}", self.weight_text(w)),
                    Operand::Cache(c) => write!(text, " cache{}", c.0),
                };
            }
            if experts > 0 {
                let _ = write!(text, " ({experts} expert matrices)");
            }
            text.push('\n');
        }
        text
    }

    fn cols(&self, b: BufferId) -> u32 {
        self.buffers.get(b.0 as usize).map_or(0, |b| b.cols)
    }

    fn weight_text(&self, w: WeightId) -> String {
        let Some(spec) = self.weights.get(w.0 as usize) else { return format!("w{}?", w.0) };
        let mut formats: Vec<&str> = spec.parts.iter().map(|p| p.read_as().0.name()).collect();
        formats.dedup();
        let bias = if spec.bias.is_empty() { "" } else { "+bias" };
        format!("{}{{{}x{} {}{bias}}}", spec.name, spec.rows, spec.cols, formats.join("+"))
    }
}
fn same(what: &str, found: u32, expected: u32) -> Result<(), String> {
    match found == expected {
        true => Ok(()),
        false => Err(format!("{what}: expected {expected}, found {found}")),
    }
}
