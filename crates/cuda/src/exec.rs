//! Runs a plan: a step's array goes up, launches follow each other, rows with an output come back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokenmill_backend::batch_check::BatchRules;
use tokenmill_backend::{BlockBytes, DeviceError, Executable};
use tokenmill_ir::sampling::{SampleScratch, sample};
use tokenmill_ir::{
    Batch, BlockId, Limits, Mode, Output, OutputKind, Program, Sampled, StepOutput, TokenId,
};

use crate::batch::{copy_runs, fill, on_host, usual_words};
use crate::driver::{Args, Driver, DriverError, Event, Lane, Launched, Memory, Shape};
use crate::failure;
use crate::graphs::Graphs;
use crate::kernels::Kernel;
use crate::layout::Held;
use crate::plan::{CacheLayout, Const, Extent, MOST_TILES, Plan, Ptr, Served, Sizes, When};
use crate::space::Space;

/// Version of what blocks hold.
const NUMERICS_VERSION: u32 = 3;

/// A launch with its addresses.
struct Bound {
    when: When,
    kernel: Kernel,
    grid: [Extent; 3],
    few: Option<(Kernel, [Extent; 3])>,
    many: Option<(Kernel, [Extent; 3])>,
    threads: u32,
    shared: u32,
    args: Args,
}

impl Bound {
    /// As it runs in a step of those sizes, where it does.
    fn launched(&self, sizes: Sizes) -> Option<Launched> {
        let few = self.few.filter(|(_, grid)| grid[1].blocks(sizes) <= 1);
        let many = self.many.filter(|_| self.grid[1].blocks(sizes) > MOST_TILES);
        let (kernel, grid) = few.or(many).unwrap_or((self.kernel, self.grid));
        let grid = grid.map(|extent| extent.blocks(sizes));
        let shape = Shape { grid, threads: self.threads, shared: self.shared };
        let launched = Launched { kernel, shape, args: self.args };
        (self.when.holds(sizes) && !grid.contains(&0)).then_some(launched)
    }
}

/// A compiled program with its caches.
pub(crate) struct CudaExecutable {
    driver: Arc<dyn Driver>,
    plan: Plan,
    held: Arc<Held>,
    rules: BatchRules,
    block_tokens: u32,
    /// Launches with addresses; none where they are to be given anew.
    bound: Vec<Bound>,
    graphs: Graphs,
    buffers: Memory,
    consts: Memory,
    /// Where each constant begins.
    const_at: Vec<u64>,
    step: Memory,
    caches: Vec<Space>,
    /// Blocks of each group that there are.
    blocks: Vec<u32>,
    words: Vec<u32>,
    bytes: Vec<u8>,
    sampled: Vec<TokenId>,
    /// Of tokens that the host chooses.
    scratch: Option<SampleScratch>,
    /// The step, and whether it is in flight.
    batch: Batch,
    in_flight: bool,
    /// Weights, caches and tables are there; absent once the steps go behind that.
    loaded: Option<Event>,
    /// The last step is over.
    ended: Event,
}

impl CudaExecutable {
    pub fn new(
        driver: &Arc<dyn Driver>,
        program: &Program,
        held: Arc<Held>,
        limits: &Limits,
        block_tokens: u32,
    ) -> Result<Self, DeviceError> {
        let plan = Plan::new(program, &held.shapes, limits, held.mode, block_tokens)?;
        let others = plan.launches.iter().flat_map(|l| l.few.iter().chain(&l.many));
        let all = plan.launches.iter().map(|l| l.kernel).chain(others.map(|(kernel, _)| *kernel));
        for kernel in all.chain([Kernel::CopyBlocks]) {
            driver.check(kernel).map_err(|e| failure::of(e, "a kernel"))?;
        }
        let (const_at, end) = const_places(&plan);
        let memory =
            |bytes: u64, what: &str| Memory::new(driver, bytes).map_err(|e| failure::of(e, what));
        let blocks = limits.group_blocks.clone();
        let cache = |c: &CacheLayout| {
            let count = blocks.get(c.group as usize).copied().unwrap_or(0);
            let bytes = u64::from(count).saturating_mul(c.block_bytes);
            let space = Space::new(driver, bytes).and_then(|mut space| {
                space.resize(bytes, Lane::Uploads)?;
                Ok(space)
            });
            space.map_err(|e| failure::of(e, "a cache"))
        };
        let batch = Batch::with_limits(limits, block_tokens);
        let step_bytes = step_words(&plan, &batch) * 4;
        let event = || Event::new(driver).map_err(|e| failure::of(e, "an event"));
        let mut executable = Self {
            caches: plan.caches.iter().map(cache).collect::<Result<_, DeviceError>>()?,
            buffers: memory(plan.buffer_bytes, "buffers of a step")?,
            consts: memory(end, "tables")?,
            step: memory(step_bytes, "the arrays of a step")?,
            driver: Arc::clone(driver),
            rules: BatchRules::new(program, limits, block_tokens),
            block_tokens,
            bound: Vec::new(),
            graphs: Graphs::default(),
            const_at,
            blocks,
            words: Vec::new(),
            bytes: Vec::new(),
            sampled: Vec::new(),
            scratch: None,
            batch,
            in_flight: false,
            loaded: Some(event()?),
            ended: event()?,
            plan,
            held,
        };
        executable.bind(Lane::Uploads)?;
        if let Some(loaded) = &executable.loaded {
            loaded.record(Lane::Uploads).map_err(|e| failure::of(e, "a program"))?;
        }
        Ok(executable)
    }

    /// Has steps, and what goes between them, wait for what this needs. (Not earlier: others' steps
    /// wait with them.)
    fn settle(&mut self) -> Result<(), DeviceError> {
        if let Some(loaded) = &self.loaded {
            loaded.before(Lane::Steps).map_err(|e| failure::of(e, "a program"))?;
        }
        self.loaded = None;
        Ok(())
    }

    /// Addresses are to be given anew.
    fn unbind(&mut self) {
        self.bound.clear();
        self.graphs.clear();
    }

    /// Gives launches and tables the addresses there are now.
    fn bind(&mut self, lane: Lane) -> Result<(), DeviceError> {
        self.unbind();
        let mut bytes = vec![0; self.consts.bytes() as usize];
        for (constant, &at) in self.plan.consts.iter().zip(&self.const_at) {
            let words = self.const_words(constant);
            let to = bytes[at as usize..].as_chunks_mut::<4>().0;
            to.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_le_bytes());
        }
        if !bytes.is_empty() {
            let written = self.driver.write(lane, self.consts.address(), &bytes);
            written.map_err(|e| failure::of(e, "tables"))?;
        }
        let bound = self.plan.launches.iter().map(|launch| {
            let mut args = Args::default();
            for (to, p) in args.p.iter_mut().zip(&launch.p) {
                *to = self.address(*p);
            }
            args.n.iter_mut().zip(&launch.n).for_each(|(to, n)| *to = *n);
            args.f.iter_mut().zip(&launch.f).for_each(|(to, f)| *to = *f);
            let (kernel, grid) = (launch.kernel, launch.grid);
            let (few, many) = (launch.few, launch.many);
            let (when, threads, shared) = (launch.when, launch.threads, launch.shared);
            Bound { when, kernel, grid, few, many, threads, shared, args }
        });
        self.bound = bound.collect();
        Ok(())
    }

    fn address(&self, p: Ptr) -> u64 {
        match p {
            Ptr::Null => 0,
            Ptr::Step => self.step.address(),
            Ptr::Place(place, column) => self.buffers.address() + self.plan.offset(place, column),
            Ptr::Numbers(w) => {
                let w = w.0 as usize;
                self.held.addresses[w] + self.held.shapes[w].numbers.unwrap_or(0)
            }
            Ptr::Const(c) => self.consts.address() + self.const_at[c],
            Ptr::Cache(c) => self.caches[c.0 as usize].address(),
        }
    }

    fn const_words(&self, constant: &Const) -> Vec<u32> {
        let mut words = Vec::new();
        let address = |words: &mut Vec<u32>, a: u64| words.extend([a as u32, (a >> 32) as u32]);
        match constant {
            Const::Words(list) => words.extend(list),
            Const::Parts(parts) => {
                for &(w, part, expert) in parts {
                    let base = self.held.addresses[w.0 as usize];
                    let part = &self.held.shapes[w.0 as usize].parts[part];
                    address(&mut words, base + part.rows);
                    for at in [part.order, part.bias, part.scales] {
                        address(&mut words, at.map_or(0, |at| base + at));
                    }
                    words.extend([part.first, part.count, part.stride, expert]);
                }
            }
            Const::Caches(group) => {
                for (layout, memory) in self.plan.caches.iter().zip(&self.caches) {
                    if layout.group == *group {
                        address(&mut words, memory.address());
                        address(&mut words, layout.block_bytes);
                    }
                }
            }
        }
        words
    }

    /// Copies blocks, then launches everything.
    fn launch(&mut self) -> Result<(), DeviceError> {
        self.settle()?;
        fill(&self.batch, &self.sampled, self.plan.slots, &mut self.words);
        self.bytes.clear();
        self.bytes.extend(self.words.iter().flat_map(|w| w.to_le_bytes()));
        if self.bytes.len() as u64 > self.step.bytes() {
            let room = (self.bytes.len() as u64).next_power_of_two();
            let step = Memory::new(&self.driver, room);
            self.step = step.map_err(|e| failure::of(e, "the arrays of a step"))?;
            self.unbind();
        }
        if self.bound.is_empty() {
            self.bind(Lane::Steps)?;
        }
        let failed = |e: DriverError| failure::of(e, "a step");
        self.driver.write(Lane::Steps, self.step.address(), &self.bytes).map_err(failed)?;
        for run in copy_runs(&self.batch) {
            let mut args = Args::default();
            let table = self.plan.groups.get(run.group).map_or(0, |&c| self.address(Ptr::Const(c)));
            (args.p[0], args.p[1], args.n[0]) = (self.step.address(), table, run.first);
            let own = |c: &&CacheLayout| c.group as usize == run.group;
            let caches = self.plan.caches.iter().filter(own).count() as u32;
            let shape = Shape { grid: [run.count, caches, 1], threads: 256, shared: 0 };
            self.driver.launch(Lane::Steps, Kernel::CopyBlocks, shape, &args).map_err(failed)?;
        }
        let sizes = Sizes {
            tokens: self.batch.tokens.len() as u32,
            outputs: self.batch.outputs.len() as u32,
            spans: self.batch.spans.len() as u32,
        };
        let bound = &self.bound;
        let all = |sizes| bound.iter().filter_map(|b| b.launched(sizes)).collect();
        if !self.graphs.run(&self.driver, sizes, all).map_err(failed)? {
            for Launched { kernel, shape, args } in bound.iter().filter_map(|b| b.launched(sizes)) {
                self.driver.launch(Lane::Steps, kernel, shape, &args).map_err(failed)?;
            }
        }
        self.ended.record(Lane::Steps).map_err(failed)
    }

    /// Numbers of `count` outputs as they lie, to the last of the last.
    fn words_of(
        &mut self,
        of: Served,
        first: usize,
        count: usize,
    ) -> Result<&[[u8; 4]], DeviceError> {
        let len = (count - 1) * of.ld as usize + of.cols as usize;
        self.bytes.resize(len * 4, 0);
        let at = self.buffers.address() + of.at + first as u64 * u64::from(of.ld) * 4;
        let read = self.driver.read(at, &mut self.bytes);
        read.map_err(|e| failure::of(e, "results of a step"))?;
        Ok(self.bytes.as_chunks::<4>().0)
    }

    /// Brings rows that are wanted whole: those of one kind that follow each other at once.
    fn rows(&mut self, out: &mut StepOutput) -> Result<(), DeviceError> {
        let outputs = std::mem::take(&mut self.batch.outputs);
        let mut first = 0;
        for run in outputs.chunk_by(|a, b| a.kind == b.kind) {
            let of = match run.first().map(|o| o.kind) {
                Some(OutputKind::Logits) => self.plan.logits,
                Some(OutputKind::Hidden) => self.plan.hidden,
                _ => None,
            };
            if let Some(of) = of {
                let words = self.words_of(of, first, run.len())?;
                for row in words.chunks(of.ld as usize) {
                    let numbers = row.iter().take(of.cols as usize);
                    out.rows.extend(numbers.map(|b| f32::from_le_bytes(*b)));
                }
            }
            first += run.len();
        }
        self.batch.outputs = outputs;
        Ok(())
    }

    /// Chooses the tokens of rows that need samplers which no kernel has.
    fn choose_on_host(&mut self, out: &mut StepOutput) -> Result<(), DeviceError> {
        let Some(of) = self.plan.logits else { return Ok(()) };
        let vocab = of.cols as usize;
        for i in 0..self.batch.outputs.len() {
            if !on_host(&self.batch.outputs[i].kind) {
                continue;
            }
            let words = self.words_of(of, i, 1)?;
            let mut row: Vec<f32> = words.iter().map(|b| f32::from_le_bytes(*b)).collect();
            let scratch = self.scratch.get_or_insert_with(|| SampleScratch::new(vocab));
            if let Output::Sample(how) = self.batch.output(i, vocab) {
                out.sampled[i] = sample(&mut row, &how, scratch, &mut out.top);
            }
        }
        Ok(())
    }

    /// Alternatives of all rows in the order of these.
    fn in_order(out: &mut StepOutput) {
        let all = std::mem::take(&mut out.top);
        for sampled in out.sampled.iter_mut().filter(|sampled| sampled.valid) {
            let (start, len) = sampled.top;
            let own = all.get(start as usize..(start + len) as usize).unwrap_or_default();
            sampled.top.0 = out.top.len() as u32;
            out.top.extend_from_slice(own);
        }
    }

    fn serve(&mut self, out: &mut StepOutput) -> Result<(), DeviceError> {
        self.rows(out)?;
        out.sampled.resize(self.batch.outputs.len(), Sampled::default());
        self.chosen(out)?;
        if self.batch.outputs.iter().any(|output| on_host(&output.kind)) {
            self.choose_on_host(out)?;
            Self::in_order(out);
        }
        Ok(())
    }

    /// Brings the tokens that the device chose.
    fn chosen(&mut self, out: &mut StepOutput) -> Result<(), DeviceError> {
        let count = self.batch.outputs.len();
        let whole = |kind: &OutputKind| {
            matches!(kind, OutputKind::Hidden | OutputKind::Logits) || on_host(kind)
        };
        let of = self.plan.chosen.filter(|_| !self.batch.outputs.iter().all(|o| whole(&o.kind)));
        let Some(of) = of else { return Ok(()) };
        let wanted: Vec<bool> = self.batch.outputs.iter().map(|o| !whole(&o.kind)).collect();
        let words = self.words_of(of, 0, count)?;
        let rows = words.chunks(of.ld as usize).zip(wanted).zip(&mut out.sampled);
        for ((row, _), sampled) in rows.filter(|((_, wanted), _)| *wanted) {
            let mut row = row.iter().map(|b| u32::from_le_bytes(*b));
            let mut next = || row.next().unwrap_or(0);
            let (token, logprob, tops, valid) = (next(), f32::from_bits(next()), next(), next());
            let start = out.top.len() as u32;
            out.top.extend((0..tops.min(of.cols / 2)).map(|_| (next(), f32::from_bits(next()))));
            if valid != 0 {
                let top = (start, tops);
                *sampled = Sampled { token, logprob, top, valid: true, ..Sampled::default() };
            }
        }
        Ok(())
    }

    fn block_bytes(&self, group: usize) -> usize {
        let own = self.plan.caches.iter().filter(|c| c.group as usize == group);
        own.map(|c| c.block_bytes as usize).sum()
    }

    /// Where a block lies in each cache of a group, and its bytes there.
    fn pieces(&self, group: usize, block: BlockId) -> Vec<(u64, usize)> {
        let all = self.plan.caches.iter().zip(&self.caches);
        all.filter(|(layout, _)| layout.group as usize == group)
            .map(|(layout, memory)| {
                let at = memory.address() + u64::from(block.0) * layout.block_bytes;
                (at, layout.block_bytes as usize)
            })
            .collect()
    }

    /// Gives the caches memory for so many blocks of each group: first those that become smaller,
    /// whose memory the others may need.
    fn resize_caches(&mut self, blocks: &[u32]) -> Result<(), DeviceError> {
        let bytes = |layout: &CacheLayout| {
            u64::from(blocks[layout.group as usize]).saturating_mul(layout.block_bytes)
        };
        for growing in [false, true] {
            for (layout, cache) in self.plan.caches.iter().zip(&mut self.caches) {
                let bytes = bytes(layout);
                if bytes != cache.bytes() && growing == (bytes > cache.bytes()) {
                    cache.resize(bytes, Lane::Steps).map_err(|e| failure::of(e, "a cache"))?;
                }
            }
        }
        Ok(())
    }

    /// Blocks of a group that all of its caches have memory for; none of them may need any.
    fn backed(&self, group: u32) -> Option<u32> {
        let all = self.plan.caches.iter().zip(&self.caches);
        let own = all.filter(|(layout, _)| layout.group == group && layout.block_bytes > 0);
        own.map(|(layout, cache)| (cache.bytes() / layout.block_bytes) as u32).min()
    }
}

/// Where each constant begins, and where the last ends.
fn const_places(plan: &Plan) -> (Vec<u64>, u64) {
    let mut end = 0;
    let place = |constant| {
        let at = end;
        end += const_bytes(constant, plan).next_multiple_of(256);
        at
    };
    (plan.consts.iter().map(place).collect(), end)
}

/// Words of a step's arrays, as long as they are likely to be.
fn step_words(plan: &Plan, batch: &Batch) -> u64 {
    usual_words(batch, plan.slots, plan.logits.map_or(0, |of| of.cols)) as u64
}

/// Memory that a plan takes beside weights and the bytes of blocks, in whole pages.
pub(crate) fn overhead(plan: &Plan, limits: &Limits, block_tokens: u32, page: u64) -> u64 {
    let step = step_words(plan, &Batch::with_limits(limits, block_tokens)) * 4;
    let alone = [plan.buffer_bytes, const_places(plan).1, step];
    // (The last page of a cache may hold hardly more than nothing.)
    let caches = plan.caches.iter().filter(|c| c.block_bytes > 0).count() as u64;
    alone.map(|bytes| bytes.next_multiple_of(page)).iter().sum::<u64>() + caches * page
}

fn const_bytes(constant: &Const, plan: &Plan) -> u64 {
    let words = match constant {
        Const::Words(words) => words.len(),
        Const::Parts(parts) => parts.len() * 12,
        Const::Caches(group) => plan.caches.iter().filter(|c| c.group == *group).count() * 4,
    };
    words as u64 * 4
}

impl Executable for CudaExecutable {
    fn submit(&mut self, batch: &mut Batch) -> Result<(), DeviceError> {
        if self.in_flight {
            return Err(DeviceError::BadBatch("a step is already in flight".into()));
        }
        self.rules.check(batch, self.sampled.len())?;
        std::mem::swap(&mut self.batch, batch);
        self.in_flight = true;
        self.launch().inspect_err(|_| self.in_flight = false)
    }

    fn runs_alone(&self) -> bool {
        true
    }

    fn advance(&mut self, at_most: Duration) -> Result<bool, DeviceError> {
        let start = Instant::now();
        while self.in_flight {
            let done = self.ended.passed().map_err(|e| failure::of(e, "a step"));
            if done.inspect_err(|_| self.in_flight = false)? {
                break;
            }
            if start.elapsed() >= at_most {
                return Ok(false);
            }
            std::thread::yield_now();
        }
        Ok(true)
    }

    fn wait(&mut self, out: &mut StepOutput) -> Result<(), DeviceError> {
        out.clear();
        if !std::mem::take(&mut self.in_flight) {
            return Err(DeviceError::BadBatch("no step was submitted".into()));
        }
        self.ended.wait().map_err(|e| failure::of(e, "a step"))?;
        if !self.batch.outputs.is_empty() {
            self.serve(out)?;
        }
        self.sampled.clear();
        self.sampled.extend(out.sampled.iter().map(|s| s.token));
        Ok(())
    }

    fn resize(&mut self, blocks: &[u32]) -> Result<(), DeviceError> {
        self.rules.clone().resize(blocks)?;
        self.settle()?;
        let before = self.blocks.clone();
        let resized = self.resize_caches(blocks);
        if resized.is_err() {
            // As it was, as far as that can be had; what was given up is 0 then.
            let _ = self.resize_caches(&before);
        }
        if self.caches.iter().any(Space::moves) {
            self.unbind();
        }
        let backed = (0..).zip(blocks).map(|(group, wanted)| self.backed(group).unwrap_or(*wanted));
        self.blocks = backed.collect();
        self.rules.resize(&self.blocks)?;
        resized
    }

    fn blocks(&self) -> Result<BlockBytes, DeviceError> {
        let block_tokens = self.block_tokens;
        let groups = (0..self.blocks.len()).map(|g| self.block_bytes(g)).collect();
        let products = if self.held.mode == Mode::F32 { "f32" } else { "bf16" };
        let of = format!("cuda, numerics {NUMERICS_VERSION}, {products}");
        let layout = format!("{of}, blocks 1 of {block_tokens}");
        Ok(BlockBytes { layout, groups })
    }

    fn read_block(
        &mut self,
        group: usize,
        block: BlockId,
        out: &mut [u8],
    ) -> Result<(), DeviceError> {
        self.rules.check_block((group, block), (out.len(), self.block_bytes(group)))?;
        self.settle()?;
        let mut out = out;
        for (at, bytes) in self.pieces(group, block) {
            let (now, rest) = out.split_at_mut(bytes);
            self.driver.read(at, now).map_err(|e| failure::of(e, "a cache block"))?;
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
        self.rules.check_block((group, block), (bytes.len(), self.block_bytes(group)))?;
        self.settle()?;
        let mut bytes = bytes;
        for (at, len) in self.pieces(group, block) {
            let (now, rest) = bytes.split_at(len);
            let written = self.driver.write(Lane::Steps, at, now);
            written.map_err(|e| failure::of(e, "a cache block"))?;
            bytes = rest;
        }
        Ok(())
    }
}
