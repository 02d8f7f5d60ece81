//! Runs a plan: one parallel region a step, in which every worker walks all nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokenmill_backend::batch_check::BatchRules;
use tokenmill_backend::{BlockBytes, DeviceError, Executable};
use tokenmill_ir::sampling::SampleScratch;
use tokenmill_ir::{
    Batch, BlockId, Limits, Mode, OutputKind, Program, Sampled, StepOutput, TokenId, TokenSource,
};

use crate::attend::{self, Item, ItemSource, plan_items};
use crate::caches::{Cache, block_bytes};
use crate::isa::Isa;
use crate::linear::{Line, Prefetch};
use crate::memory::{Buffer, HUGE_PAGE, Parts};
use crate::plan::{Plan, Split, case_of};
use crate::pool::SharedPool;
use crate::step::{Cols, ExpertReads, Job, Needs, Scratch, Served, Step, Width};
use crate::{DEVICE, NUMERICS_VERSION};

/// A compiled program with its caches.
pub(crate) struct CpuExecutable {
    plan: Plan,
    rules: BatchRules,
    pool: Arc<SharedPool>,
    isa: Isa,
    mode: Mode,
    /// Cache groups.
    groups: usize,
    caches: Vec<Cache>,
    shared: Buffer,
    own: Buffer,
    scratch: Vec<Scratch>,
    counters: Vec<AtomicUsize>,
    experts: ExpertReads,
    ids: Vec<TokenId>,
    items: Vec<Vec<Item>>,
    item_kinds: Vec<(ItemSource, usize, usize)>,
    served: Vec<Served>,
    /// Buffers and columns of logits and final rows.
    outputs: Outputs,
    sampled: Vec<TokenId>,
    /// Tokens, outputs of the last step; what rows of it are wanted.
    last: (usize, usize),
    wanted: Vec<OutputKind>,
    batch: Batch,
    /// The next node of the step in flight.
    node: Option<usize>,
}

/// Where a step's results lie.
#[derive(Debug, Clone)]
pub(crate) struct Outputs {
    pub logits: Option<Cols>,
    /// Side by side.
    pub hidden: Vec<Cols>,
}

/// What an executable is made of.
pub(crate) struct Compiled {
    pub plan: Plan,
    pub needs: Needs,
    pub outputs: Outputs,
    pub isa: Isa,
    pub mode: Mode,
    pub pool: Arc<SharedPool>,
    pub caches: Vec<Cache>,
}

impl Compiled {
    /// Bytes that buffers, in whole large pages, and scratch memory take beside the caches.
    pub fn buffer_bytes(&self, program: &Program, workers: usize) -> usize {
        let (plan, needs, vocab) = (&self.plan, &self.needs, program.vocab as usize);
        let lines = (needs.lines + needs.encoded) * size_of::<Line>();
        let words = needs.row.max(vocab) + needs.block + needs.order;
        let attention = needs.attention.scratch().bytes();
        let worker = lines + 4 * words + SampleScratch::bytes(vocab) + attention;
        let pages = |bytes: usize| bytes.next_multiple_of(HUGE_PAGE);
        pages(plan.shared_bytes) + pages(plan.own_bytes * (workers - 1)) + worker * workers
    }
}

impl CpuExecutable {
    pub fn new(c: Compiled, program: &Program, limits: &Limits) -> Result<Self, DeviceError> {
        let workers = c.pool.workers();
        let vocab = program.vocab as usize;
        let oom = |e| crate::weight::out_of_memory(e, "buffers of a step");
        let scratch = (0..workers).map(|_| Scratch {
            lines: vec![Line::ZERO; c.needs.lines],
            prefetch: Prefetch::default(),
            attention: c.needs.attention.scratch(),
            sample: SampleScratch::new(vocab),
            row: vec![0.0; c.needs.row.max(vocab)],
            encoded: vec![Line::ZERO; c.needs.encoded],
            block: vec![0.0; c.needs.block],
            order: vec![0; c.needs.order],
        });
        let (tokens, outputs) = (limits.step_tokens as usize, limits.outputs as usize);
        let top = || Vec::with_capacity(limits.top_logprobs as usize);
        // No item has less than a token of a key head.
        let room =
            |(_, _, kv_heads): &(ItemSource, usize, usize)| Vec::with_capacity(kv_heads * tokens);
        let served = |_| Served { sampled: Sampled::default(), top: top() };
        Ok(Self {
            rules: BatchRules::new(program, limits, attend::BLOCK_TOKENS as u32),
            shared: Buffer::zeroed(c.plan.shared_bytes).map_err(oom)?,
            own: Buffer::zeroed(c.plan.own_bytes * (workers - 1)).map_err(oom)?,
            scratch: scratch.collect(),
            counters: (0..c.needs.counters).map(|_| AtomicUsize::new(0)).collect(),
            experts: ExpertReads::default(),
            ids: Vec::with_capacity(tokens),
            items: c.needs.items.iter().map(room).collect(),
            item_kinds: c.needs.items,
            served: (0..outputs).map(served).collect(),
            sampled: Vec::with_capacity(outputs),
            wanted: Vec::with_capacity(outputs),
            batch: Batch::with_limits(limits, attend::BLOCK_TOKENS as u32),
            last: (0, 0),
            node: None,
            plan: c.plan,
            outputs: c.outputs,
            isa: c.isa,
            mode: c.mode,
            groups: program.groups().len(),
            pool: c.pool,
            caches: c.caches,
        })
    }

    /// Learns the step's tokens and cuts its attention into items.
    fn prepare(&mut self) {
        let batch = &self.batch;
        self.ids.clear();
        for token in &batch.tokens {
            self.ids.push(match *token {
                TokenSource::Id(id) => id,
                TokenSource::Sampled(row) => self.sampled[row as usize],
                TokenSource::Embedding(_) => 0, // (nobody looks it up)
            });
        }
        for (items, &(source, heads, kv_heads)) in self.items.iter_mut().zip(&self.item_kinds) {
            items.clear();
            plan_items(&batch.spans, source, heads, kv_heads, items);
        }
        self.wanted.clear();
        self.wanted.extend(batch.outputs.iter().map(|o| o.kind));
        self.counters.iter().for_each(|c| c.store(0, Ordering::Relaxed));
        self.last = (batch.tokens.len(), batch.outputs.len());
        for copy in &batch.copies {
            for cache in self.caches.iter().filter(|c| c.group == copy.group as usize) {
                // SAFETY: no step is running.
                unsafe { cache.copy(copy.src, copy.dst) };
            }
        }
    }

    /// Runs the nodes from `first` on, until a moment has passed when the workers meet; the node
    /// to go on with. Where a part begins all workers meet as well, so parts change no result.
    fn run(&mut self, first: usize, until: Option<Instant>) -> Result<usize, DeviceError> {
        let mut pool = self.pool.for_step();
        let width = Width::of(self.last.0, pool.workers());
        let case = case_of(width, self.last.1);
        let step = Step {
            batch: &self.batch,
            ids: &self.ids,
            isa: self.isa,
            tokens: self.last.0,
            width,
            outputs: self.last.1,
            caches: &self.caches,
            counters: &self.counters,
            experts: &self.experts,
            items: &self.items,
            served: Parts::new(&mut self.served),
            regions: &self.plan.regions,
            shared: self.shared.bytes_mut().as_mut_ptr(),
            own: self.own.bytes_mut().as_mut_ptr(),
            own_bytes: self.plan.own_bytes,
            scratch: Parts::new(&mut self.scratch),
        };
        let (plan, step) = (&self.plan, &step);
        let few_tokens = width == Width::Narrow;
        // Set by one worker before it meets the others, read by all after that.
        let end = AtomicUsize::new(plan.nodes.len());
        let ran = pool.run(|worker| {
            let job = Job { step, worker };
            let nodes = plan.nodes.iter().zip(&plan.barriers[case]).enumerate().skip(first);
            for (index, (node, &barrier)) in nodes {
                if barrier && index > first {
                    if let Some(until) = until {
                        if worker.index() == 0 && Instant::now() >= until {
                            end.store(index, Ordering::Relaxed);
                        }
                        worker.barrier();
                        if end.load(Ordering::Relaxed) == index {
                            return;
                        }
                    } else {
                        worker.barrier();
                    }
                }
                if few_tokens || !matches!(node.split, Split::Few(_)) {
                    node.kernel.run(&job);
                }
            }
        });
        ran.map_err(|e| DeviceError::Failed { device: DEVICE.into(), reason: e.to_string() })?;
        Ok(end.into_inner())
    }

    /// A row of an output view of the last step.
    fn row(&self, v: Cols, row: usize) -> &[f32] {
        let p = &self.plan.regions[v.region];
        let start = p.shared + (row * p.stride + v.start) * 4;
        let bytes = &self.shared.bytes()[start..start + v.cols * 4];
        // SAFETY: f32 in memory aligned to 64 bytes; the step has ended.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), v.cols) }
    }
}

/// The mode as part of what blocks depend on. The layout of blocks (`attend::layout`, latent rows)
/// has a version of its own: a change of it alone changes no result.
fn block_layout(mode: Mode) -> String {
    format!("cpu, numerics {NUMERICS_VERSION}, {mode:?}, blocks 1")
}

impl Executable for CpuExecutable {
    fn submit(&mut self, batch: &mut Batch) -> Result<(), DeviceError> {
        if self.node.is_some() {
            return Err(DeviceError::BadBatch("a step is already in flight".into()));
        }
        self.rules.check(batch, self.sampled.len())?;
        std::mem::swap(&mut self.batch, batch);
        self.prepare();
        self.node = Some(0);
        Ok(())
    }

    fn advance(&mut self, at_most: Duration) -> Result<bool, DeviceError> {
        let Some(node) = self.node.filter(|&node| node < self.plan.nodes.len()) else {
            return Ok(true);
        };
        // (Beyond the clock is never.)
        let node = self.run(node, Instant::now().checked_add(at_most))?;
        self.node = Some(node);
        Ok(node == self.plan.nodes.len())
    }

    fn wait(&mut self, out: &mut StepOutput) -> Result<(), DeviceError> {
        out.clear();
        match self.node.take() {
            None => return Err(DeviceError::BadBatch("no step was submitted".into())),
            Some(node) if node < self.plan.nodes.len() => self.run(node, None)?,
            Some(node) => node,
        };
        out.expert_reads = std::mem::take(self.experts.experts.get_mut());
        out.expert_bytes = std::mem::take(self.experts.bytes.get_mut());
        self.sampled.clear();
        for (row, (kind, served)) in self.wanted.iter().zip(&self.served).enumerate() {
            let mut sampled = Sampled::default();
            let wanted: &[Cols] = match kind {
                OutputKind::Logits => self.outputs.logits.as_slice(),
                OutputKind::Hidden => &self.outputs.hidden,
                _ => {
                    sampled = served.sampled;
                    sampled.top.0 = out.top.len() as u32;
                    out.top.extend_from_slice(&served.top);
                    &[]
                }
            };
            wanted.iter().for_each(|&v| out.rows.extend_from_slice(self.row(v, row)));
            self.sampled.push(sampled.token);
            out.sampled.push(sampled);
        }
        Ok(())
    }

    fn resize(&mut self, blocks: &[u32]) -> Result<(), DeviceError> {
        self.rules.resize(blocks)?;
        for cache in &mut self.caches {
            cache.forget_from(blocks[cache.group] as usize);
        }
        Ok(())
    }

    fn barriers(&self, tokens: u32, outputs: u32) -> Option<u32> {
        let case = case_of(Width::of(tokens as usize, self.pool.workers()), outputs as usize);
        let barriers = &self.plan.barriers[case];
        Some(barriers.iter().filter(|b| **b).count() as u32)
    }

    fn blocks(&self) -> Result<BlockBytes, DeviceError> {
        let groups = 0..self.groups;
        let groups = groups.map(|g| block_bytes(&self.caches, g)).collect();
        Ok(BlockBytes { layout: block_layout(self.mode), groups })
    }

    fn read_block(
        &mut self,
        group: usize,
        block: BlockId,
        out: &mut [u8],
    ) -> Result<(), DeviceError> {
        self.rules.check_block((group, block), (out.len(), block_bytes(&self.caches, group)))?;
        let mut out = out;
        for cache in self.caches.iter().filter(|c| c.group == group) {
            let (now, rest) = out.split_at_mut(cache.block_bytes());
            // SAFETY: no step is running while the executable is borrowed.
            now.copy_from_slice(unsafe { cache.block(block) });
            out = rest;
        }
        Ok(())
    }

    fn write_block(
        &mut self,
        group: usize,
        block: BlockId,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        self.rules.check_block((group, block), (bytes.len(), block_bytes(&self.caches, group)))?;
        let mut bytes = bytes;
        for cache in self.caches.iter().filter(|c| c.group == group) {
            let (now, rest) = bytes.split_at(cache.block_bytes());
            // SAFETY: as above.
            unsafe { cache.block(block) }.copy_from_slice(now);
            bytes = rest;
        }
        Ok(())
    }
}
