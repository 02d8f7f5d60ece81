//! From a program to a step: nodes in order, where barriers stand, where buffers lie.
//!
//! A node is either divided among the workers in its own way, or by rows. With few rows
//! ([`NARROW`]) a node by rows is computed by every worker for itself, into memory of its own,
//! which saves the barrier after it; with more, each worker takes its share of the rows. Products
//! with weights are divided by columns of the result, so that a weight is read once; with so many
//! rows that every worker has work for long with each weight ([`WIDE_SHARE`]), by rows as well. What
//! a worker computes then stays in its own caches until attention looks at other tokens.

use tokenmill_ir::{Limits, Program, Rows as RowKind};

use crate::step::{Kernel, NARROW, Region, Width};

/// Cases a plan distinguishes: three widths of tokens, and whether outputs are few.
pub(crate) const CASES: usize = 6;

/// What a node reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    Region(usize),
    Cache(usize),
}

/// How workers divide a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Split {
    /// By rows of that kind, or by none where they are few.
    Rows(RowKind),
    /// As Rows, but rows of other workers are read.
    Gather(RowKind),
    /// By columns of the result, or by rows of that kind where steps are wide.
    Product(RowKind),
    /// In its own way.
    Own,
    /// By rows, and left out with many of them.
    Few(RowKind),
}

/// One piece of a step.
#[derive(Debug)]
pub(crate) struct Node {
    pub kernel: Box<dyn Kernel>,
    pub reads: Vec<Resource>,
    pub writes: Vec<Resource>,
    pub split: Split,
}

/// A program taken apart.
#[derive(Debug)]
pub(crate) struct Plan {
    pub nodes: Vec<Node>,
    pub regions: Vec<Region>,
    /// Per case and node: a barrier before it.
    pub barriers: [Vec<bool>; CASES],
    /// Bytes of the memory all share, and of each worker's own.
    pub shared_bytes: usize,
    pub own_bytes: usize,
}

/// Index of a case.
pub(crate) fn case_of(tokens: Width, outputs: usize) -> usize {
    2 * tokens as usize + usize::from(outputs <= NARROW)
}

fn few(case: usize, kind: RowKind) -> bool {
    match kind {
        RowKind::Tokens => case / 2 == Width::Narrow as usize,
        RowKind::Outputs => case % 2 == 1,
    }
}

/// A plan being made.
#[derive(Debug)]
pub(crate) struct Draft {
    pub nodes: Vec<Node>,
    pub regions: Vec<Region>,
    /// Regions, each with one that it may take the memory of: the node that writes its rows first has read the same rows of
    /// the other.
    successors: Vec<(usize, usize)>,
}

impl Draft {
    /// A draft with the program's buffers.
    pub fn new(program: &Program) -> Self {
        let mut draft = Self { nodes: Vec::new(), regions: Vec::new(), successors: Vec::new() };
        for b in &program.buffers {
            draft.region(b.rows, b.cols as usize);
        }
        draft
    }

    /// Adds a region of rows of `cols` f32, an odd number of cache lines each: with 4096 bytes from row to row a
    /// column of many rows has one set of a cache to itself.
    pub fn region(&mut self, rows: RowKind, cols: usize) -> usize {
        let stride = (cols.div_ceil(16) | 1) * 16;
        let (shared, own, flat) = (0, 0, None);
        self.regions.push(Region { rows, stride, copied: false, shared, own, flat });
        self.regions.len() - 1
    }

    /// Adds a region of `len` f32 in the shared memory.
    pub fn flat(&mut self, len: usize) -> usize {
        let at = self.region(RowKind::Tokens, 1);
        self.regions[at].flat = Some(len);
        at
    }

    /// Adds a node. Regions written by rows get copies with every worker.
    pub fn push(
        &mut self,
        kernel: impl Kernel + 'static,
        split: Split,
        reads: &[Resource],
        writes: &[Resource],
    ) {
        if !matches!(split, Split::Own | Split::Product(_)) {
            for write in writes {
                if let Resource::Region(p) = write {
                    self.regions[*p].copied = true;
                }
            }
        }
        let (reads, writes) = (reads.to_vec(), writes.to_vec());
        self.nodes.push(Node { kernel: Box::new(kernel), reads, writes, split });
    }

    /// Lets `region` have the memory of `before` if no other node needs both: rows are then written where they were read, to
    /// lines that are in the cache.
    pub fn succeed(&mut self, region: usize, before: usize) {
        self.successors.push((region, before));
    }

    /// The nodes that first and last use a region, if any does.
    fn uses(&self, region: usize) -> Option<(usize, usize)> {
        let uses = |n: &Node| {
            let it = Resource::Region(region);
            n.reads.contains(&it) || n.writes.contains(&it)
        };
        Some((self.nodes.iter().position(uses)?, self.nodes.iter().rposition(uses)?))
    }

    /// Has successors stand for the regions before them; returns which region each of them stands for.
    fn join(&mut self) -> Vec<usize> {
        let mut of: Vec<usize> = (0..self.regions.len()).collect();
        for (region, before) in std::mem::take(&mut self.successors) {
            let handed_over = match (self.uses(before), self.uses(region)) {
                (Some((_, last)), Some((first, _))) => last == first,
                _ => false,
            };
            let [a, b] = [region, before].map(|p| &self.regions[p]);
            let alike = (a.rows, a.stride, a.copied) == (b.rows, b.stride, b.copied);
            if handed_over && alike {
                of[region] = of[before];
            }
        }
        for node in &mut self.nodes {
            for resource in node.reads.iter_mut().chain(&mut node.writes) {
                if let Resource::Region(p) = resource {
                    *p = of[*p];
                }
            }
        }
        of
    }

    /// Decides on barriers and memory.
    pub fn finish(mut self, limits: &Limits) -> Plan {
        let of = self.join();
        let barriers: [Vec<bool>; CASES] = std::array::from_fn(|case| barriers(&self.nodes, case));
        let phases = barriers.each_ref().map(|barriers| {
            let count = |sum: &mut u32, &b: &bool| {
                *sum += u32::from(b);
                Some(*sum)
            };
            barriers.iter().scan(0, count).collect::<Vec<u32>>()
        });
        let (mut shared, mut own) = (Arena::default(), Arena::default());
        for p in 0..self.regions.len() {
            let Some((first, last)) = self.uses(p) else { continue };
            let phase = |n: usize| std::array::from_fn(|c| phases[c][n]);
            let life = Life { first: phase(first), last: phase(last) };
            let region = &mut self.regions[p];
            let rows = match region.rows {
                RowKind::Tokens => limits.step_tokens,
                RowKind::Outputs => limits.outputs,
            } as usize;
            let bytes = region.flat.unwrap_or(rows * region.stride) * 4;
            region.shared = shared.take(bytes, life);
            region.own = own.take(NARROW * region.stride * 4, life);
        }
        for (p, &of) in of.iter().enumerate() {
            let Region { shared, own, .. } = self.regions[of];
            self.regions[p] = Region { shared, own, ..self.regions[p] };
        }
        let (shared_bytes, own_bytes) = (shared.end, own.end.next_multiple_of(4096));
        Plan { nodes: self.nodes, regions: self.regions, barriers, shared_bytes, own_bytes }
    }
}

/// First and last phase in which a region is used, per case.
#[derive(Clone, Copy, Debug)]
struct Life {
    first: [u32; CASES],
    last: [u32; CASES],
}

#[derive(Debug)]
struct Slot {
    start: usize,
    bytes: usize,
    life: Life,
}

/// Memory whose parts are used again.
#[derive(Debug, Default)]
struct Arena {
    slots: Vec<Slot>,
    end: usize,
}

impl Arena {
    fn take(&mut self, bytes: usize, life: Life) -> usize {
        let bytes = bytes.next_multiple_of(64);
        let dead = |s: &&mut Slot| {
            let before = s.life.last.iter().zip(&life.first).all(|(last, first)| last < first);
            before && s.bytes >= bytes
        };
        if let Some(slot) = self.slots.iter_mut().filter(dead).min_by_key(|s| s.bytes) {
            slot.life = life;
            return slot.start;
        }
        let start = self.end;
        self.slots.push(Slot { start, bytes, life });
        self.end += bytes;
        start
    }
}

/// Before which nodes the workers must meet.
fn barriers(nodes: &[Node], case: usize) -> Vec<bool> {
    let mut since: Vec<&Node> = Vec::new();
    let mut found = Vec::with_capacity(nodes.len());
    for node in nodes {
        let skipped = matches!(node.split, Split::Few(kind) if !few(case, kind));
        let needed = !skipped && since.iter().any(|before| conflict(before, node, case));
        if needed {
            since.clear();
        }
        if !skipped {
            since.push(node);
        }
        found.push(needed);
    }
    found
}

/// Whether `node` must not begin on one worker before `before` has ended on all.
fn conflict(before: &Node, node: &Node, case: usize) -> bool {
    let touches = |list: &[Resource], r: &Resource| list.contains(r);
    let depends = node.reads.iter().chain(&node.writes).any(|r| touches(&before.writes, r))
        || node.writes.iter().any(|r| touches(&before.reads, r));
    let wide = case / 2 == Width::Wide as usize;
    let by_rows = |split: Split| match split {
        Split::Rows(kind) | Split::Gather(kind) | Split::Few(kind) => Some(kind),
        Split::Product(RowKind::Tokens) if wide => Some(RowKind::Tokens),
        Split::Product(_) | Split::Own => None,
    };
    let aligned = match (by_rows(before.split), by_rows(node.split)) {
        // Each worker has all rows for itself.
        (Some(kind), _) if few(case, kind) => true,
        // Each worker has made the rows it reads.
        (Some(a), Some(b)) => a == b && !matches!(node.split, Split::Gather(_)),
        _ => false,
    };
    depends && !aligned
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::Job;

    #[derive(Debug)]
    struct Nothing;

    impl Kernel for Nothing {
        fn run(&self, _: &Job<'_>) {}
    }

    /// Tokens, then outputs of some steps.
    const STEPS: [(usize, usize); 5] = [(1, 1), (64, 1), (64, 64), (2, 2), (128, 1)];

    /// A chain like that of a layer: norm, encode, product, rows taken, norm, head.
    fn chain() -> Draft {
        let mut draft = Draft::new(&Program::default());
        let p: Vec<usize> = [RowKind::Tokens; 4]
            .into_iter()
            .chain([RowKind::Outputs; 3])
            .map(|kind| draft.region(kind, 40))
            .collect();
        let at = Resource::Region;
        let (tokens, outputs) = (RowKind::Tokens, RowKind::Outputs);
        for (split, read, write) in [
            (Split::Rows(tokens), None, p[0]),
            (Split::Rows(tokens), Some(p[0]), p[1]),
            (Split::Product(tokens), Some(p[1]), p[2]),
            (Split::Rows(tokens), Some(p[2]), p[3]),
            (Split::Gather(outputs), Some(p[3]), p[4]),
            (Split::Rows(outputs), Some(p[4]), p[5]),
            (Split::Product(outputs), Some(p[5]), p[6]),
        ] {
            let reads: Vec<_> = read.map(at).into_iter().collect();
            draft.push(Nothing, split, &reads, &[at(write)]);
        }
        draft
    }

    fn limits() -> Limits {
        Limits {
            step_tokens: 128,
            sequences: 4,
            outputs: 64,
            context: 64,
            group_blocks: Vec::new(),
            top_logprobs: 0,
        }
    }

    #[test]
    fn barriers_stand_where_other_workers_results_are_read() {
        let plan = chain().finish(&limits());
        let at = |(tokens, outputs): (usize, usize)| -> Vec<usize> {
            let case = case_of(Width::of(tokens, 2), outputs);
            let all = plan.barriers[case].iter().enumerate();
            all.filter(|b| *b.1).map(|b| b.0).collect()
        };
        // Few rows: only after what workers divide in their own way.
        assert_eq!(at(STEPS[0]), [3]);
        assert_eq!(at(STEPS[3]), [3]);
        // Many tokens: before the product, after it, and before rows of others are taken.
        assert_eq!(at(STEPS[1]), [2, 3, 4]);
        // Many outputs as well: also before the head.
        assert_eq!(at(STEPS[2]), [2, 3, 4, 6]);
        // Wide: only before rows of others are taken.
        assert_eq!(at(STEPS[4]), [4]);
    }

    #[test]
    fn a_sum_lies_where_the_rows_before_it_did_unless_they_are_read_again() {
        let (at, tokens) = (Resource::Region, Split::Rows(RowKind::Tokens));
        for again in [false, true] {
            let mut draft = Draft::new(&Program::default());
            let [x, added, sum, out] = std::array::from_fn(|_| draft.region(RowKind::Tokens, 40));
            draft.push(Nothing, tokens, &[], &[at(x)]);
            draft.push(Nothing, Split::Product(RowKind::Tokens), &[at(x)], &[at(added)]);
            draft.succeed(sum, x);
            draft.push(Nothing, tokens, &[at(x), at(added)], &[at(sum)]);
            let last = if again { vec![at(x), at(sum)] } else { vec![at(sum)] };
            draft.push(Nothing, tokens, &last, &[at(out)]);
            let plan = draft.finish(&limits());
            let [x, sum] = [x, sum].map(|p| &plan.regions[p]);
            assert_eq!((x.shared == sum.shared, x.own == sum.own), (!again, !again), "{again}");
        }
    }

    #[test]
    fn memory_is_used_again_only_behind_a_barrier_in_every_case() {
        let plan = chain().finish(&limits());
        let uses = |region: usize| {
            let it = Resource::Region(region);
            let used = |n: &Node| n.reads.contains(&it) || n.writes.contains(&it);
            let first = plan.nodes.iter().position(used).unwrap();
            (first, plan.nodes.iter().rposition(used).unwrap())
        };
        let rows = |p: &Region| if p.rows == RowKind::Tokens { 128 } else { 64 };
        let size = |p: &Region| rows(p) * p.stride * 4;
        let mut shared = 0;
        for (a, b) in (0..plan.regions.len()).flat_map(|b| (0..b).map(move |a| (a, b))) {
            let (pa, pb) = (&plan.regions[a], &plan.regions[b]);
            if pa.shared >= pb.shared + size(pb) || pb.shared >= pa.shared + size(pa) {
                continue;
            }
            shared += 1;
            let (_, last) = uses(a);
            let (first, _) = uses(b);
            for case in 0..CASES {
                let between = &plan.barriers[case][last + 1..=first];
                assert!(between.contains(&true), "regions {a} and {b} in case {case}");
            }
        }
        assert!(shared > 0, "some regions share memory");
    }
}
