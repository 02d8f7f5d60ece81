//! The simulated device: its cache slots remember which token at which position was stored, and its
//! "model" is a hash of everything it reads back through the block tables.
//!
//! Any mistake in paging, rollback, eviction or ordering becomes a panic that names the slot or a
//! wrong token; [`SimText`] computes the right ones without any cache. The device also stands in
//! for a real one where only the server around it is tested.

mod alone;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokenmill_ir::sampling::{SampleScratch, argmax, sample, score, splitmix};
use tokenmill_ir::{
    Batch, BlockId, CacheKind, CacheSpec, DeviceCaps, FIRST_MEDIA, GroupKind, KvFormat, Limits,
    Load, Mode, Output, Program, Sampled, Span, StepOutput, TokenId, TokenSource, WeightSource,
    key_reads,
};

use tokenmill_backend::{
    BlockBytes, Device, DeviceError, Executable, Footprint, Owner, Watch, Weights,
};

const NAME: &str = "sim";

/// A program without ops whose caches form these groups.
pub fn program(groups: &[GroupKind], vocab: u32, hidden: u32) -> Program {
    let cache = |(group, kind): (u32, &GroupKind)| {
        let kind = match *kind {
            GroupKind::Full => CacheKind::Full { kv_heads: 1, k_dim: 1, v_dim: 1 },
            GroupKind::Window { tokens } => {
                CacheKind::Window { tokens, kv_heads: 1, k_dim: 1, v_dim: 1 }
            }
            GroupKind::State => CacheKind::State { len: 1 },
        };
        CacheSpec { kind, format: KvFormat::F32, group }
    };
    let caches = (0..).zip(groups).map(cache).collect();
    Program { caches, vocab, hidden, input_cols: 1, ..Program::default() }
}

// ---- the model ---------------------------------------------------------------------------------

/// Folds one more value into a digest.
#[inline]
fn fold(digest: u64, value: u64) -> u64 {
    (digest.rotate_left(29) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// What a group stores of a token, given all that the token can see of the past.
#[inline]
fn stored(group: usize, token: TokenId, position: u32, seen: u64) -> u64 {
    splitmix(seen ^ (u64::from(token) << 32 | u64::from(position)) ^ (group as u64) << 61)
}

/// What the model takes a token at `index` for, by its positions and its block: of a row that stands in
/// its place, the bits of the number.
pub fn content(token: TokenId, index: u32, axes: [u32; 3], block: [u32; 2]) -> TokenId {
    if axes == [index; 3] && block == [0; 2] {
        return token;
    }
    let all = axes.into_iter().chain(block).fold(u64::from(token), |d, x| fold(d, x.into()));
    (splitmix(all) >> 32) as TokenId
}

/// First position a token of a window group sees.
fn first_seen(kind: GroupKind, position: u32) -> u32 {
    match kind {
        GroupKind::Window { tokens } => (position + 1).saturating_sub(tokens),
        _ => 0,
    }
}

fn fill_row(digest: u64, out: &mut [f32], nan: bool) {
    for (x, i) in out.iter_mut().zip(0u64..) {
        let bits = splitmix(digest ^ i.wrapping_mul(0x2545_f491_4f6c_dd1d)) >> 40;
        *x = if nan { f32::NAN } else { bits as f32 * (8.0 / (1u64 << 24) as f32) };
    }
}

/// The oracle: the same model without a cache. Push tokens; each gives the digest its logits are
/// made of.
#[derive(Debug, Clone)]
pub struct SimText {
    kinds: Vec<GroupKind>,
    /// Running fold per full or state group.
    chains: Vec<u64>,
    /// Stored values per group and position.
    values: Vec<Vec<u64>>,
    len: u32,
}

impl SimText {
    /// The empty text.
    pub fn new(kinds: &[GroupKind]) -> Self {
        let groups = kinds.len();
        Self {
            kinds: kinds.to_vec(),
            chains: vec![0; groups],
            values: vec![Vec::new(); groups],
            len: 0,
        }
    }

    /// Appends a token; the digest of its output row.
    pub fn push(&mut self, token: TokenId) -> u64 {
        let position = self.len;
        let mut seen = 0;
        for (g, kind) in self.kinds.iter().enumerate() {
            let read = match kind {
                GroupKind::Window { .. } => {
                    let first = first_seen(*kind, position) as usize;
                    self.values[g].iter().skip(first).fold(0, |d, &v| fold(d, v))
                }
                _ => self.chains[g],
            };
            seen = fold(seen, read);
        }
        let mut digest = fold(seen, u64::from(token));
        for g in 0..self.kinds.len() {
            let value = stored(g, token, position, seen);
            self.chains[g] = fold(self.chains[g], value);
            self.values[g].push(value);
            digest = fold(digest, value);
        }
        self.len += 1;
        digest
    }

    /// The greedy answer to a text, `count` tokens.
    ///
    /// # Panics
    /// If `vocab` is 0.
    pub fn greedy(kinds: &[GroupKind], text: &[TokenId], count: usize, vocab: u32) -> Vec<TokenId> {
        let mut all = Self::new(kinds);
        let mut digest = 0;
        text.iter().for_each(|&t| digest = all.push(t));
        let mut row = vec![0.0; vocab as usize];
        let next = |_| {
            Self::row(digest, &mut row);
            let token = argmax(&row).expect("numbers");
            digest = all.push(token);
            token
        };
        (0..count).map(next).collect()
    }

    /// Logits (or any other row) of a digest.
    pub fn row(digest: u64, out: &mut [f32]) {
        fill_row(digest, out, false);
    }
}

/// The digest of a whole sequence of a program with `whole_sequences`.
pub fn whole_digest(tokens: impl Iterator<Item = TokenId>) -> u64 {
    tokens.fold(1, |d, t| fold(d, u64::from(t)))
}

// ---- control -----------------------------------------------------------------------------------

#[derive(Debug, Default)]
struct Plan {
    steps: u64,
    done: Load,
    fail_at: BTreeSet<u64>,
    panic_at: BTreeSet<u64>,
    nan_on: BTreeSet<TokenId>,
    poison: Vec<(usize, BlockId)>,
    delay: Duration,
    parts: u32,
    time: Option<SimTime>,
}

impl Plan {
    /// What a step of that batch takes, seconds of simulated time.
    fn seconds(&self, batch: &Batch) -> f64 {
        let load = load(batch);
        self.time.as_ref().map_or(0.0, |time| (time.seconds)(&load))
    }

    fn count(&mut self, batch: &Batch) {
        let load = load(batch);
        self.done.tokens += load.tokens;
        self.done.outputs += load.outputs;
        self.done.key_reads += load.key_reads;
    }
}

/// What a step does.
fn load(batch: &Batch) -> Load {
    let keys = |span: &Span| key_reads(span.context.into(), span.len.into());
    Load {
        tokens: batch.tokens.len() as u64,
        outputs: batch.outputs.len() as u64,
        key_reads: batch.spans.iter().map(keys).sum(),
    }
}

/// Time that goes by only where a device works.
#[derive(Debug, Clone)]
pub struct SimTime {
    /// Nanoseconds since the start, of all devices that share it.
    pub nanos: Arc<AtomicU64>,
    /// What a step takes, seconds.
    pub seconds: fn(&Load) -> f64,
    /// Places where a step can be interrupted.
    pub meetings: u32,
}

impl SimTime {
    /// Seconds since the start.
    pub fn now(&self) -> f64 {
        self.nanos.load(Ordering::SeqCst) as f64 * 1e-9
    }

    fn pass(&self, seconds: f64) {
        self.nanos.fetch_add((seconds * 1e9).round() as u64, Ordering::SeqCst);
    }
}

/// What goes wrong, and what was done, shared with the devices made under it; survives their
/// rebuilding.
#[derive(Debug, Clone, Default)]
pub struct SimControl(Arc<Mutex<Plan>>);

impl SimControl {
    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What all steps so far computed.
    pub fn done(&self) -> Load {
        self.plan().done
    }

    /// Steps submitted so far.
    pub fn steps(&self) -> u64 {
        self.plan().steps
    }

    /// Step number `step` (from 0) fails with a device error.
    pub fn fail_at(&self, step: u64) {
        self.plan().fail_at.insert(step);
    }

    /// Step number `step` panics.
    pub fn panic_at(&self, step: u64) {
        self.plan().panic_at.insert(step);
    }

    /// Output rows of that token are not numbers.
    pub fn nan_on(&self, token: TokenId) {
        self.plan().nan_on.insert(token);
    }

    /// Forgets what a block holds: reading it before it is written again is an error.
    pub fn poison(&self, group: usize, block: BlockId) {
        self.plan().poison.push((group, block));
    }

    /// Steps take simulated time.
    pub fn time(&self, time: SimTime) {
        self.plan().time = Some(time);
    }

    /// Every step goes on in so many parts.
    pub fn parts(&self, parts: u32) {
        self.plan().parts = parts;
    }

    /// Every step takes at least that long.
    pub fn delay(&self, delay: Duration) {
        self.plan().delay = delay;
    }
}

// ---- the device --------------------------------------------------------------------------------

/// The simulated device.
#[derive(Debug, Clone)]
pub struct SimDevice {
    caps: DeviceCaps,
    owner: Owner,
    control: SimControl,
    alone: bool,
}

impl SimDevice {
    /// A device whose blocks hold `block_tokens` tokens.
    pub fn new(block_tokens: u32, control: SimControl) -> Self {
        let caps = DeviceCaps {
            name: NAME.to_string(),
            memory_bytes: 1 << 30,
            block_tokens,
            kv: KvFormat::Int16,
            workers: 1,
            read_bytes_per_s: 1e10,
            ops_per_s: 1e12,
        };
        Self { caps, owner: Owner::default(), control, alone: false }
    }

    /// The device with a thread of its own, on which steps run while their host does other things.
    #[must_use]
    pub fn alone(mut self) -> Self {
        self.alone = true;
        self
    }

    /// A program, which has no weights here, ready to run.
    ///
    /// # Errors
    /// As of [`Device::compile`].
    pub fn executable(
        &self,
        program: &Program,
        limits: &Limits,
    ) -> Result<Box<dyn Executable>, DeviceError> {
        self.compile(program, &Weights::new(&self.owner, Mode::F32, ()), limits)
    }
}

impl Device for SimDevice {
    fn caps(&self) -> &DeviceCaps {
        &self.caps
    }

    fn upload(
        &self,
        program: &Program,
        _: &dyn WeightSource,
        mode: Mode,
        watch: Watch<'_>,
    ) -> Result<Weights, DeviceError> {
        match (0..program.weights.len()).any(|i| watch(i).is_break()) {
            true => Err(DeviceError::Cancelled),
            false => Ok(Weights::new(&self.owner, mode, ())),
        }
    }

    fn footprint(
        &self,
        program: &Program,
        limits: &Limits,
        _: Mode,
    ) -> Result<Footprint, DeviceError> {
        Ok(Footprint::of_caches(program, limits, self.caps.block_tokens))
    }

    fn compile(
        &self,
        program: &Program,
        _: &Weights,
        limits: &Limits,
    ) -> Result<Box<dyn Executable>, DeviceError> {
        if let Some(op) = program.ops.first() {
            let (device, what) = (NAME.to_string(), op.name().to_string());
            return Err(DeviceError::Unsupported { device, what });
        }
        let control = self.control.clone();
        let executable = SimExecutable::new(program, limits, self.caps.block_tokens, control);
        match self.alone {
            true => Ok(Box::new(alone::Alone::start(executable))),
            false => Ok(Box::new(executable)),
        }
    }
}

/// One cached token (of a state: the sequence so far).
#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Tokens stored up to and including this one; [`UNWRITTEN`] before any.
    end: u32,
    value: u64,
}

/// An entry as bytes.
const ENTRY_BYTES: usize = 12;
const UNWRITTEN: u32 = u32::MAX;
const EMPTY: Entry = Entry { end: UNWRITTEN, value: 0 };

#[derive(Debug)]
struct SimExecutable {
    kinds: Vec<GroupKind>,
    whole: bool,
    vocab: usize,
    hidden: usize,
    limits: Limits,
    /// Blocks of each group that there are now.
    backed: Vec<u32>,
    size: usize,
    /// Entries per group, `block · size + offset`; one a slot for states.
    store: Vec<Vec<Entry>>,
    /// Which span of which step wrote a block last.
    writer: Vec<Vec<u64>>,
    clock: u64,
    out: StepOutput,
    scratch: SampleScratch,
    logits: Vec<f32>,
    broken: bool,
    /// Parts of the step in flight that are done.
    advanced: u32,
    /// Simulated time it takes, and what of that is left, seconds.
    step_s: f64,
    left_s: f64,
    control: SimControl,
}

impl SimExecutable {
    fn new(program: &Program, limits: &Limits, block_tokens: u32, control: SimControl) -> Self {
        let kinds = program.groups();
        let size = block_tokens as usize;
        let blocks = |g: usize| limits.group_blocks.get(g).copied().unwrap_or(0) as usize;
        let entries = |(g, k): (usize, &GroupKind)| match k {
            GroupKind::State => vec![EMPTY; blocks(g)],
            _ => vec![EMPTY; blocks(g) * size],
        };
        Self {
            store: kinds.iter().enumerate().map(entries).collect(),
            writer: (0..kinds.len()).map(|g| vec![0; blocks(g)]).collect(),
            whole: program.whole_sequences,
            vocab: program.vocab as usize,
            hidden: program.hidden as usize,
            backed: limits.group_blocks.clone(),
            limits: limits.clone(),
            size,
            clock: 0,
            out: StepOutput::default(),
            scratch: SampleScratch::new(program.vocab as usize),
            logits: vec![0.0; program.vocab as usize],
            broken: false,
            advanced: 0,
            step_s: 0.0,
            left_s: 0.0,
            control,
            kinds,
        }
    }

    /// Forgets what it was told to forget.
    fn poison(&mut self) {
        let poisoned = std::mem::take(&mut self.control.plan().poison);
        for (g, block) in poisoned.into_iter().filter(|(g, block)| block.0 < self.backed[*g]) {
            let extent = self.extent(g, block);
            self.store[g][extent].fill(EMPTY);
        }
    }

    /// Entries of one block.
    fn extent(&self, g: usize, block: BlockId) -> std::ops::Range<usize> {
        let size = if self.kinds[g] == GroupKind::State { 1 } else { self.size };
        let at = block.0 as usize * size;
        assert!(block.0 < self.backed[g], "group {g} has no block {}", block.0);
        at..at + size
    }

    fn check_batch(&self, batch: &Batch) {
        let l = &self.limits;
        let tokens = batch.tokens.len();
        assert!(tokens > 0, "an empty step");
        assert!(tokens <= l.step_tokens as usize, "{tokens} tokens in a step");
        assert!(batch.spans.len() <= l.sequences as usize, "{} sequences", batch.spans.len());
        assert!(batch.outputs.len() <= l.outputs as usize, "{} outputs", batch.outputs.len());
        assert_eq!(batch.positions.len(), tokens, "a position for each token");
        assert!([0, tokens].contains(&batch.grid.len()), "other positions of each token");
        assert!([0, tokens].contains(&batch.blocks.len()), "a block of each token");
        let mut at = 0;
        for span in &batch.spans {
            assert_eq!(span.first, at, "spans lie one after another");
            assert!(span.len > 0, "an empty span");
            assert!(span.context + span.len <= l.context, "a span beyond the context");
            for i in 0..span.len {
                let (row, index) = ((at + i) as usize, span.context + i);
                let is_index = batch.positions[row] == index || !batch.grid.is_empty();
                assert!(is_index, "positions follow the cache index");
                let [begin, end] = batch.block(row);
                let inside = span.context <= begin && end <= span.context + span.len;
                assert!(end == 0 || inside && (begin..end).contains(&index), "a block in parts");
            }
            at += span.len;
        }
        assert_eq!(at as usize, tokens, "spans cover the tokens");
        assert!(batch.outputs.is_sorted_by(|a, b| a.row < b.row), "outputs in order of rows");
        assert!(batch.outputs.iter().all(|o| (o.row as usize) < tokens), "rows exist");
    }

    /// Marks what each span writes: nobody else may write or read that in this step.
    fn claim(&mut self, batch: &Batch) {
        for (s, span) in (1u64..).zip(&batch.spans) {
            let mark = self.clock + s;
            for g in 0..self.kinds.len() {
                let table = &batch.tables[span.tables[g] as usize..];
                let blocks = if self.kinds[g] == GroupKind::State {
                    &table[1..2]
                } else {
                    let first = span.context as usize / self.size;
                    &table[first..(span.context + span.len).div_ceil(self.size as u32) as usize]
                };
                for &block in blocks {
                    let writer = &mut self.writer[g][block.0 as usize];
                    let other = *writer > self.clock && *writer != mark;
                    assert!(!other, "two spans write block {} of group {g}", block.0);
                    *writer = mark;
                }
            }
        }
    }

    fn assert_readable(&self, g: usize, block: BlockId, mark: u64) {
        let writer = self.writer[g][block.0 as usize];
        let other = writer > self.clock && writer != mark;
        assert!(!other, "block {} of group {g} is read while another span writes it", block.0);
    }

    /// Folds what group `g` holds for the token at `position`.
    fn read(&self, g: usize, table: &[BlockId], position: u32, mark: u64) -> u64 {
        let mut digest = 0;
        let mut index = first_seen(self.kinds[g], position) as usize;
        while index < position as usize {
            let block = table[index / self.size];
            assert_ne!(block, BlockId::NONE, "group {g}: no block for position {index}");
            self.assert_readable(g, block, mark);
            let extent = self.extent(g, block);
            let stop = (index / self.size * self.size + self.size).min(position as usize);
            let from = extent.start + index % self.size;
            for entry in &self.store[g][from..from + stop - index] {
                let found = entry.end;
                assert_eq!(found, index as u32 + 1, "group {g} block {}: wrong token", block.0);
                digest = fold(digest, entry.value);
                index += 1;
            }
        }
        digest
    }

    fn read_state(
        &self,
        g: usize,
        table: &[BlockId],
        span: &Span,
        position: u32,
        mark: u64,
    ) -> u64 {
        let slot = if position == span.context { table[0] } else { table[1] };
        if slot == BlockId::NONE {
            assert_eq!(position, 0, "group {g}: no state at {position}");
            return 0;
        }
        self.assert_readable(g, slot, mark);
        let entry = self.store[g][self.extent(g, slot).start];
        assert_eq!(entry.end, position, "group {g} slot {}: state of another length", slot.0);
        entry.value
    }

    /// Stores one token and gives the digest of its output row.
    fn step_token(
        &mut self,
        batch: &Batch,
        span: &Span,
        position: u32,
        token: TokenId,
        mark: u64,
    ) -> u64 {
        let table = |g: usize| &batch.tables[span.tables[g] as usize..];
        let mut reads = [0u64; tokenmill_ir::MAX_GROUPS];
        let mut seen = 0;
        for (g, read) in reads.iter_mut().enumerate().take(self.kinds.len()) {
            *read = match self.kinds[g] {
                GroupKind::State => self.read_state(g, table(g), span, position, mark),
                _ => self.read(g, table(g), position, mark),
            };
            seen = fold(seen, *read);
        }
        let mut digest = fold(seen, u64::from(token));
        for (g, &read) in reads.iter().enumerate().take(self.kinds.len()) {
            let value = stored(g, token, position, seen);
            let (block, offset, kept) = match self.kinds[g] {
                GroupKind::State => (table(g)[1], 0, fold(read, value)),
                _ => {
                    let (block, offset) =
                        (position as usize / self.size, position as usize % self.size);
                    (table(g)[block], offset, value)
                }
            };
            assert_ne!(block, BlockId::NONE, "group {g}: nowhere to store position {position}");
            let at = self.extent(g, block).start + offset;
            self.store[g][at] = Entry { end: position + 1, value: kept };
            digest = fold(digest, value);
        }
        digest
    }

    fn run(&mut self, batch: &Batch) {
        for copy in &batch.copies {
            let g = copy.group as usize;
            let (src, dst) = (self.extent(g, copy.src), self.extent(g, copy.dst));
            self.store[g].copy_within(src, dst.start);
        }
        self.claim(batch);
        let mut outputs = batch.outputs.iter().enumerate().peekable();
        for (s, span) in (1u64..).zip(&batch.spans) {
            let mark = self.clock + s;
            let rows = span.first as usize..(span.first + span.len) as usize;
            let known = |row: usize| {
                let (id, index) = (token_id(batch, row), span.context + row as u32 - span.first);
                let is_row = matches!(batch.tokens[row], TokenSource::Embedding(_));
                let is_known = is_row || self.vocab == 0 || (id as usize) < self.vocab;
                assert!(is_known, "token {id} outside the vocabulary");
                let id_or_row = if is_row { FIRST_MEDIA } else { id };
                (id_or_row, content(id, index, batch.axes(row), batch.block(row)))
            };
            let tokens: Vec<(TokenId, TokenId)> = rows.clone().map(known).collect();
            let whole = whole_digest(tokens.iter().map(|t| t.1));
            assert!(!self.whole || span.context == 0, "a whole sequence has no past");
            for ((row, (id, token)), position) in (span.first..).zip(tokens).zip(span.context..) {
                let mut digest = self.step_token(batch, span, position, token, mark);
                if self.whole {
                    digest = whole;
                }
                if let Some((index, _)) = outputs.next_if(|(_, o)| o.row == row) {
                    self.output(batch, index, id, digest);
                }
            }
        }
        self.clock += batch.spans.len() as u64;
    }

    fn output(&mut self, batch: &Batch, index: usize, token: TokenId, digest: u64) {
        let nan = self.control.plan().nan_on.contains(&token);
        let rows = &mut self.out.rows;
        let mut give = |width: usize| {
            let at = rows.len();
            rows.resize(at + width, 0.0);
            fill_row(digest, &mut rows[at..], nan);
            Sampled::default()
        };
        let (logits, scratch, top) = (&mut self.logits, &mut self.scratch, &mut self.out.top);
        let sampled = match batch.output(index, self.vocab) {
            Output::Hidden => give(self.hidden),
            Output::Logits => give(self.vocab),
            Output::Sample(how) => {
                fill_row(digest, logits, nan);
                sample(logits, &how, scratch, top)
            }
            Output::Score { target, top: n } => {
                fill_row(digest, logits, nan);
                score(logits, target, n as usize, scratch, top)
            }
        };
        self.out.sampled.push(sampled);
    }
}

/// A token, or the bits of the row that stands in its place.
fn token_id(batch: &Batch, row: usize) -> TokenId {
    match batch.tokens[row] {
        TokenSource::Id(id) => id,
        TokenSource::Embedding(row) => batch.embeddings[row as usize].to_bits(),
        TokenSource::Sampled(_) => panic!("the host knows every token of this device"),
    }
}

impl Executable for SimExecutable {
    fn submit(&mut self, batch: &mut Batch) -> Result<(), DeviceError> {
        assert!(!self.broken, "a failed device is used again");
        self.poison();
        self.advanced = 0;
        self.step_s = self.control.plan().seconds(batch);
        self.left_s = self.step_s;
        let (step, delay) = {
            let mut plan = self.control.plan();
            plan.steps += 1;
            (plan.steps - 1, plan.delay)
        };
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        if self.control.plan().fail_at.contains(&step) {
            self.broken = true;
            let (device, reason) = (NAME.to_string(), format!("step {step} was told to fail"));
            return Err(DeviceError::Failed { device, reason });
        }
        assert!(!self.control.plan().panic_at.contains(&step), "step {step} was told to panic");
        self.check_batch(batch);
        self.control.plan().count(batch);
        self.out.clear();
        self.run(batch);
        Ok(())
    }

    fn advance(&mut self, at_most: Duration) -> Result<bool, DeviceError> {
        self.advanced += 1;
        let time = self.control.plan().time.clone();
        let Some(time) = time else {
            return Ok(at_most == Duration::MAX || self.advanced > self.control.plan().parts);
        };
        // To the next place where it can be interrupted.
        let grain_s = self.step_s / f64::from(time.meetings);
        let grains = (at_most.as_secs_f64() / grain_s).ceil().max(1.0);
        let now_s = (grains * grain_s).min(self.left_s);
        self.left_s -= now_s;
        time.pass(now_s);
        Ok(self.left_s <= 1e-9)
    }

    fn barriers(&self, _: u32, _: u32) -> Option<u32> {
        self.control.plan().time.as_ref().map(|time| time.meetings)
    }

    fn wait(&mut self, out: &mut StepOutput) -> Result<(), DeviceError> {
        out.clear();
        if let Some(time) = &self.control.plan().time {
            time.pass(std::mem::take(&mut self.left_s));
        }
        std::mem::swap(out, &mut self.out);
        Ok(())
    }

    fn resize(&mut self, blocks: &[u32]) -> Result<(), DeviceError> {
        let most = &self.limits.group_blocks;
        assert!(blocks.len() == most.len() && blocks.iter().zip(most).all(|(n, most)| n <= most));
        for (g, &n) in blocks.iter().enumerate() {
            let size = if self.kinds[g] == GroupKind::State { 1 } else { self.size };
            self.store[g][n as usize * size..].fill(EMPTY);
        }
        self.backed.copy_from_slice(blocks);
        Ok(())
    }

    fn blocks(&self) -> Result<BlockBytes, DeviceError> {
        let bytes = |kind: &GroupKind| match kind {
            GroupKind::State => ENTRY_BYTES,
            _ => self.size * ENTRY_BYTES,
        };
        let groups = self.kinds.iter().map(bytes).collect();
        Ok(BlockBytes { layout: format!("sim, blocks of {}", self.size), groups })
    }

    fn read_block(
        &mut self,
        group: usize,
        block: BlockId,
        out: &mut [u8],
    ) -> Result<(), DeviceError> {
        self.poison();
        let extent = self.extent(group, block);
        assert_eq!(out.len(), extent.len() * ENTRY_BYTES, "bytes of a block");
        for (to, entry) in out.chunks_exact_mut(ENTRY_BYTES).zip(&self.store[group][extent]) {
            to[..4].copy_from_slice(&entry.end.to_le_bytes());
            to[4..].copy_from_slice(&entry.value.to_le_bytes());
        }
        Ok(())
    }

    fn write_block(
        &mut self,
        group: usize,
        block: BlockId,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        self.poison();
        let extent = self.extent(group, block);
        assert_eq!(bytes.len(), extent.len() * ENTRY_BYTES, "bytes of a block");
        let entries = bytes.as_chunks::<ENTRY_BYTES>().0;
        for (entry, from) in self.store[group][extent].iter_mut().zip(entries) {
            let &[a, b, c, d, ref value @ ..] = from;
            entry.end = u32::from_le_bytes([a, b, c, d]);
            entry.value = u64::from_le_bytes(*value);
        }
        Ok(())
    }
}
