//! Where a request's time and its prompt's tokens went, noted while it runs: numbers of a fixed size,
//! without a word of what was asked or answered.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokenmill_sched::Miss;

use crate::request::{RequestError, StopReason};

/// Chunks of a prompt that are told one by one; later ones are added to the last.
pub const CHUNKS: usize = 16;

/// Where time goes. Every nanosecond from the hand-over to the end is in one part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// On its way to the device's thread, which was in a step.
    Inbox,
    /// Its prompt's beginning was read from disk.
    Disk,
    /// It waited for a place, or for time in a step.
    Queue,
    /// It waited for memory that others had.
    Blocks,
    /// Steps that computed its prompt.
    Prompt,
    /// Steps that computed its answer.
    Answer,
    /// Steps it was held back from for want of a mask.
    Mask,
    /// Steps in which it had given its blocks up to others.
    Memory,
    /// Steps that had no room for it.
    Room,
    /// Turns of other models on the device.
    Models,
    /// Between steps: plans, masks, drafts, texts and events.
    Host,
}

impl Part {
    /// All, in the order in which they are told.
    pub const ALL: [Part; 11] = [
        Self::Inbox,
        Self::Disk,
        Self::Queue,
        Self::Blocks,
        Self::Prompt,
        Self::Answer,
        Self::Mask,
        Self::Memory,
        Self::Room,
        Self::Models,
        Self::Host,
    ];

    /// What comes before a request's first step.
    pub const BEFORE: [Part; 4] = [Self::Inbox, Self::Disk, Self::Queue, Self::Blocks];

    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inbox => "inbox",
            Self::Disk => "disk",
            Self::Queue => "queue",
            Self::Blocks => "blocks",
            Self::Prompt => "prompt",
            Self::Answer => "answer",
            Self::Mask => "mask",
            Self::Memory => "memory",
            Self::Room => "room",
            Self::Models => "models",
            Self::Host => "host",
        }
    }
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// By itself: a token that ends texts, or all that it was held to.
    Stop,
    /// A stop text came.
    StopText,
    /// It calls tools.
    Calls,
    /// It was as long as it may be.
    Length,
    /// The numbers are there.
    Numbers,
    /// Nobody listened any more.
    Cancelled,
    /// Its time was over.
    TimedOut,
    /// It failed.
    Failed,
}

impl Ending {
    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::StopText => "stop_text",
            Self::Calls => "tool_calls",
            Self::Length => "length",
            Self::Numbers => "numbers",
            Self::Cancelled => "cancelled",
            Self::TimedOut => "timed_out",
            Self::Failed => "failed",
        }
    }

    pub(crate) fn of(reason: &StopReason) -> Self {
        match reason {
            StopReason::EndOfText => Self::Stop,
            StopReason::StopText(_) => Self::StopText,
            StopReason::Calls => Self::Calls,
            StopReason::Length => Self::Length,
        }
    }

    pub(crate) fn of_error(error: &RequestError) -> Self {
        match error {
            RequestError::TimedOut { .. } => Self::TimedOut,
            _ => Self::Failed,
        }
    }
}

/// Tokens of a prompt that a step computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Chunk {
    /// Number of the step, the model's first one being 0.
    pub step: u64,
    /// Tokens.
    pub tokens: u32,
    /// What the step took, nanoseconds.
    pub nanos: u64,
}

/// What is known of a request's course.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Of those, found in memory.
    pub memory_tokens: u32,
    /// Of those, read from disk for it.
    pub disk_tokens: u32,
    /// Why no more were found; none until it starts.
    pub miss: Option<Miss>,
    /// Nanoseconds by [`Part`].
    pub parts: [u64; Part::ALL.len()],
    /// The same when its first token came.
    pub to_first_token: Option<[u64; Part::ALL.len()]>,
    /// Steps that computed its prompt, the first [`CHUNKS`].
    pub chunks: [Chunk; CHUNKS],
    /// How many there were.
    pub chunk_count: u32,
    /// Number of its first step, and of its last; how many it had a part in.
    pub first_step: u64,
    /// See there.
    pub last_step: u64,
    /// See there.
    pub steps: u32,
    /// Times it was found without its blocks in a step.
    pub displaced: u32,
    /// Tokens generated, all choices.
    pub tokens: u32,
    /// Draft tokens that were verified.
    pub drafted: u32,
    /// Of those, right.
    pub accepted: u32,
    /// How it ended; none while it runs.
    pub ending: Option<Ending>,
    /// The engine's clock when it was taken, and until when its parts are counted, nanoseconds.
    pub taken: u64,
    /// See there.
    pub until: u64,
    is_displaced: bool,
}

impl Timeline {
    /// Nanoseconds from the hand-over on: the sum of its parts.
    pub fn nanos(&self) -> u64 {
        self.parts.iter().sum()
    }

    fn add(&mut self, part: Part, nanos: u64) {
        self.parts[part as usize] += nanos;
    }

    /// Counts the time until `at` as that part.
    fn charge(&mut self, part: Part, at: u64) {
        let at = at.max(self.until); // (a clock may go backwards)
        self.add(part, at - self.until);
        self.until = at;
    }

    fn step(&mut self, step: &StepTimes, had: Had, waited: Option<Part>) {
        if let Some(part) = waited {
            self.charge(part, step.begin);
            self.first_step = step.number;
        } else {
            let away = step.away.min(step.begin.saturating_sub(self.until));
            self.charge(Part::Models, self.until + away);
            self.charge(Part::Host, step.begin);
        }
        let span = step.end.saturating_sub(self.until);
        let own = step.taken.min(span);
        self.charge(had.part, self.until + own);
        self.charge(if step.in_turns { Part::Models } else { Part::Host }, step.end);
        let is_displaced = had.part == Part::Memory;
        self.displaced += u32::from(is_displaced && !self.is_displaced);
        self.is_displaced = is_displaced;
        if !matches!(had.part, Part::Prompt | Part::Answer) {
            return;
        }
        (self.steps, self.last_step) = (self.steps + 1, step.number);
        if had.part == Part::Prompt {
            let at = (self.chunk_count as usize).min(CHUNKS - 1);
            let chunk = &mut self.chunks[at];
            let tokens = chunk.tokens + had.tokens;
            *chunk = Chunk { step: step.number, tokens, nanos: chunk.nanos + own };
            self.chunk_count += 1;
        }
    }
}

/// A step as all requests had it, nanoseconds of the engine's clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepTimes {
    pub number: u64,
    pub begin: u64,
    pub end: u64,
    /// For how long the device worked on it.
    pub taken: u64,
    /// For how long other models had their turn before it.
    pub away: u64,
    /// Whether other models may have had turns between its parts.
    pub in_turns: bool,
}

/// What a request had of a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Had {
    pub part: Part,
    /// Tokens of its prompt.
    pub tokens: u32,
}

/// Keeps the timeline of a request: the engine writes, anybody may read.
#[derive(Debug)]
pub struct Timekeeper {
    /// What the request is called where it is spoken of.
    name: Arc<str>,
    handed: Instant,
    timeline: Mutex<Timeline>,
}

impl PartialEq for Timekeeper {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Timekeeper {
    /// That of a request of this name, which is handed to the engine now.
    pub fn named(name: Arc<str>) -> Self {
        Self { name, handed: Instant::now(), timeline: Mutex::default() }
    }

    /// What the request is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is known so far.
    pub fn read(&self) -> Timeline {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Timeline> {
        self.timeline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device's thread has it.
    pub(crate) fn arrived(&self) {
        let nanos = u64::try_from(self.handed.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.lock().add(Part::Inbox, nanos);
    }

    /// Its model has it.
    pub(crate) fn taken(&self, now: u64, prompt_tokens: u32) {
        let mut timeline = self.lock();
        (timeline.taken, timeline.until) = (now, now);
        timeline.prompt_tokens = prompt_tokens;
    }

    /// Until now it was in that part.
    pub(crate) fn charge(&self, part: Part, now: u64) {
        self.lock().charge(part, now);
    }

    /// What it had of a step, and where it was until then, if it was its first one.
    pub(crate) fn step(&self, step: &StepTimes, had: Had, waited: Option<Part>) {
        self.lock().step(step, had, waited);
    }

    pub(crate) fn started(&self, cached: u32, disk: u32, miss: Miss) {
        let mut timeline = self.lock();
        (timeline.memory_tokens, timeline.disk_tokens) = (cached - disk, disk);
        timeline.miss = Some(miss);
    }

    pub(crate) fn token(&self) {
        let mut timeline = self.lock();
        timeline.tokens += 1;
        let parts = timeline.parts;
        timeline.to_first_token.get_or_insert(parts);
    }

    pub(crate) fn drafted(&self, tokens: u32, right: u32) {
        let mut timeline = self.lock();
        timeline.drafted += tokens;
        timeline.accepted += right;
    }

    /// It ended, and was in that part until then.
    pub(crate) fn ended(&self, part: Part, now: u64, ending: Ending) {
        let mut timeline = self.lock();
        timeline.charge(part, now);
        timeline.ending = Some(ending);
    }
}
