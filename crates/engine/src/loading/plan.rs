//! Does a model fit, with what context and how many sequences, and how fast will it be: the numbers
//! that loading, admission and `plan` share.

use std::hint::black_box;
use std::ops::ControlFlow;
use std::time::Instant;

use tokenmill_backend::{Device, DeviceError, Footprint};
use tokenmill_ir::{
    Cost, GroupKind, Limits, Load, OutputKind, Program, SamplingParams, WeightUse, key_reads,
};
use tokenmill_models::{ModelSpec, lower};

use crate::direct::{Direct, Feed};
use crate::door;
use crate::ledger::Memory;
use crate::load::{LoadFailure, LoadOptions, Lowered, WeightBits};
use crate::planner::memory::{PROCESS_BYTES, blocks, full_streams, most_streams, process_bytes};

/// Where the memory goes, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fit {
    /// Weights in the device's layout.
    pub weight_bytes: u64,
    /// Whether that is wider than their own bits, to be faster: [`Program::wide_weights`].
    pub wide_weights: bool,
    /// Keys, values and states, when every block is in use.
    pub cache_bytes: u64,
    /// Buffers of the largest step, and scratch memory.
    pub scratch_bytes: u64,
    /// The process itself, and the tokenizer.
    pub process_bytes: u64,
    /// Its encoder of images: weights, buffers, and the rows that are kept.
    pub encoder: Memory,
    /// What this process may use.
    pub available_bytes: u64,
    /// Cache bytes of one token.
    pub token_bytes: u64,
    /// Longest context that this model and this memory allow.
    pub most_context: u32,
    /// Sequences of full length that the cache holds at once.
    pub streams: u32,
}

impl Fit {
    /// All of it.
    pub fn needed_bytes(&self) -> u64 {
        let parts = [self.weight_bytes, self.cache_bytes, self.scratch_bytes, self.process_bytes];
        parts.into_iter().fold(self.encoder.sum(), u64::saturating_add)
    }

    /// What of it is the model's own, and not of the process that all models share.
    pub fn memory(&self) -> Memory {
        let own = Memory {
            weight_bytes: self.weight_bytes,
            cache_bytes: self.cache_bytes,
            buffer_bytes: self.scratch_bytes,
            vocabulary_bytes: self.process_bytes.saturating_sub(PROCESS_BYTES),
        };
        own.and(self.encoder)
    }
}

/// Memory of a program on a device, before a context is chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Needs {
    footprint: Footprint,
    process_bytes: u64,
    groups: Vec<GroupKind>,
    block_tokens: u32,
    step_tokens: u32,
}

impl Needs {
    /// Asks the device.
    ///
    /// # Errors
    /// What the device does not support.
    pub fn of(
        spec: &ModelSpec,
        program: &Program,
        device: &dyn Device,
        options: &LoadOptions,
    ) -> Result<Self, DeviceError> {
        let groups = program.groups();
        let context = options.context.unwrap_or(spec.context).min(spec.context).max(1);
        let limits = limits(options, context, vec![0; groups.len()]);
        Ok(Self {
            footprint: device.footprint(program, &limits, options.mode)?,
            process_bytes: process_bytes(program.vocab),
            groups,
            block_tokens: device.caps().block_tokens,
            step_tokens: options.step_tokens.max(1),
        })
    }

    /// Weights in the device's layout.
    pub(crate) fn weight_bytes(&self) -> u64 {
        self.footprint.weight_bytes
    }

    /// Buffers of the largest step.
    pub(crate) fn buffer_bytes(&self) -> u64 {
        self.footprint.buffer_bytes
    }

    /// Tokens of a block.
    pub(crate) fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// Each cache group, and the bytes of its blocks.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (GroupKind, u64)> {
        self.groups.iter().copied().zip(self.footprint.block_bytes.iter().copied())
    }

    /// Everything but the cache.
    pub fn fixed_bytes(&self) -> u64 {
        self.footprint.weight_bytes + self.footprint.buffer_bytes + self.process_bytes
    }

    /// Blocks of each group for that many sequences of that length, and their bytes.
    pub fn cache(&self, context: u32, sequences: u32) -> (Vec<u32>, u64) {
        let of = |kind: &GroupKind| {
            blocks(*kind, context, sequences, self.block_tokens, self.step_tokens)
        };
        let blocks: Vec<u32> = self.groups.iter().map(of).collect();
        let each = blocks.iter().zip(&self.footprint.block_bytes);
        let each = each.map(|(&n, b)| u64::from(n).saturating_mul(*b));
        let bytes = each.fold(0, u64::saturating_add);
        (blocks, bytes)
    }

    /// Longest context, up to that one, of which a sequence fits `memory_bytes`; 0 if none does.
    pub fn longest(&self, most: u32, memory_bytes: u64) -> u32 {
        let room = memory_bytes.checked_sub(self.fixed_bytes());
        let fits = |context| room.is_some_and(|room| self.cache(context, 1).1 <= room);
        if fits(most) {
            return most;
        }
        let (mut least, mut fails) = (0, most.div_ceil(self.block_tokens));
        while fails - least > 1 {
            let blocks = least + (fails - least) / 2;
            if fits(blocks * self.block_tokens) { least = blocks } else { fails = blocks }
        }
        least * self.block_tokens
    }

    /// Sequences of that length that fit `memory_bytes` at once.
    pub fn sequences(&self, context: u32, memory_bytes: u64) -> u32 {
        let room = memory_bytes.saturating_sub(self.fixed_bytes());
        most_streams(room, |n| self.cache(context, n).1)
    }
}

/// Drafts of a sequence in a step, and sequences that may have as many at once: each is a row of the
/// vocabulary, and beside more sequences drafts gain little.
const DRAFTS: (u32, u32) = (7, 4);

fn limits(options: &LoadOptions, context: u32, group_blocks: Vec<u32>) -> Limits {
    let (step_tokens, sequences) = (options.step_tokens.max(1), options.sequences.max(1));
    let outputs = sequences.saturating_add(DRAFTS.0 * sequences.min(DRAFTS.1));
    Limits {
        step_tokens,
        sequences,
        outputs: outputs.min(step_tokens.max(sequences)),
        context,
        group_blocks,
        top_logprobs: 20,
    }
}

/// Tokens of which keys and values alone take all memory: nobody need be asked about more.
fn holds(program: &Program, memory_bytes: u64) -> u32 {
    let full = program.caches.iter().filter(|c| c.group_kind() == GroupKind::Full);
    let token_bytes: u64 = full.map(|c| c.unit_bytes()).sum();
    u32::try_from(memory_bytes / token_bytes.max(1)).unwrap_or(u32::MAX)
}

/// The longest context up to `most`, or its half, or half of that, of which the device can hold the
/// buffers, and the needs then; the shortest where there is none.
fn held(
    spec: &ModelSpec,
    program: &Program,
    device: &dyn Device,
    options: &LoadOptions,
    most: u32,
) -> Result<(u32, Needs), DeviceError> {
    let mut context = most;
    loop {
        let of = LoadOptions { context: Some(context), ..options.clone() };
        let is_last = context <= device.caps().block_tokens;
        match Needs::of(spec, program, device, &of) {
            Err(DeviceError::OutOfMemory { .. }) if !is_last => {}
            Err(error) => return Err(error),
            Ok(needs) => {
                let others = needs.footprint.weight_bytes + needs.process_bytes;
                let room = options.memory_bytes.saturating_sub(others);
                // (Where not even the weights fit, no context helps.)
                if is_last || room == 0 || needs.footprint.buffer_bytes <= room {
                    return Ok((context, needs));
                }
            }
        }
        context /= 2;
    }
}

/// Chooses context and cache size within memory. A context that the user has not asked for gives
/// way to it.
///
/// # Errors
/// [`LoadFailure::DoesNotFit`] with the numbers; what the device does not support.
pub fn fit(
    spec: &ModelSpec,
    program: &Program,
    device: &dyn Device,
    options: &LoadOptions,
) -> Result<(Limits, Fit), LoadFailure> {
    if options.weights == WeightBits::Own || !program.has_code_books() {
        return fit_as_laid(spec, program, device, options);
    }
    let wide = Program { wide_weights: true, ..program.clone() };
    let wide = fit_as_laid(spec, &wide, device, options);
    if options.weights == WeightBits::Wide {
        return wide;
    }
    let own = fit_as_laid(spec, program, device, options)?;
    // Room that is wanted for nothing else.
    let of = |(limits, fit): &(Limits, Fit)| (limits.context, fit.streams, fit.cache_bytes);
    let is_room =
        |found: &(Limits, Fit)| of(found) == of(&own) && found.1.most_context == own.1.most_context;
    Ok(wide.ok().filter(is_room).unwrap_or(own))
}

/// The same for weights as the program has them.
fn fit_as_laid(
    spec: &ModelSpec,
    program: &Program,
    device: &dyn Device,
    options: &LoadOptions,
) -> Result<(Limits, Fit), LoadFailure> {
    let most = spec.context.max(1);
    let wanted = options.context.unwrap_or(most).clamp(1, most);
    // One sequence at full length must fit; more sequences share what is left.
    let (mut context, in_memory) = (wanted, holds(program, options.memory_bytes));
    while context > in_memory && context > 1 {
        context /= 2;
    }
    let (tried, mut needs) = held(spec, program, device, options, context)?;
    context = tried;
    let room = |needs: &Needs| options.memory_bytes.saturating_sub(needs.fixed_bytes());
    while needs.cache(context, 1).1 > room(&needs) && context > needs.block_tokens {
        context = (context / 2).max(needs.block_tokens);
    }
    // By the needs of the longest context, so that what is advised fits.
    let (longest, of_longest) = match tried == most {
        true => (tried, needs.clone()),
        false => held(spec, program, device, options, most.min(in_memory).max(1))?,
    };
    let most_context = of_longest.longest(longest, options.memory_bytes);
    if context < tried {
        // Its buffers are smaller.
        needs = held(spec, program, device, options, context)?.1;
    }
    let (fixed, room) = (needs.fixed_bytes(), room(&needs));
    let fits = needs.cache(context, 1).1 <= room && fixed <= options.memory_bytes;
    let most_context = most_context.max(if fits { context } else { 0 });
    if !fits || (options.context.is_some() && context < wanted) {
        let of_wanted = LoadOptions { context: Some(wanted), ..options.clone() };
        if wanted <= in_memory {
            needs = Needs::of(spec, program, device, &of_wanted).unwrap_or(needs);
        }
        let fixed = needs.fixed_bytes();
        let cache_bytes = needs.cache(wanted, 1).1;
        return Err(LoadFailure::DoesNotFit {
            needed_bytes: fixed.saturating_add(cache_bytes),
            weight_bytes: needs.footprint.weight_bytes,
            cache_bytes,
            scratch_bytes: needs.footprint.buffer_bytes + needs.process_bytes,
            encoder_bytes: 0,
            available_bytes: options.memory_bytes,
            context: wanted,
            fitting_context: most_context,
        });
    }
    Ok(chosen(program, &needs, options, context, most_context))
}

/// As many sequences as share the room, and where the memory goes then.
fn chosen(
    program: &Program,
    needs: &Needs,
    options: &LoadOptions,
    context: u32,
    most_context: u32,
) -> (Limits, Fit) {
    let room = options.memory_bytes.saturating_sub(needs.fixed_bytes());
    let sequences = full_streams(options.sequences, room, |n| needs.cache(context, n).1);
    let (group_blocks, cache_bytes) = needs.cache(context, sequences);
    let per_token = program.caches.iter().filter(|c| c.group_kind() != GroupKind::State);
    let fit = Fit {
        weight_bytes: needs.footprint.weight_bytes,
        wide_weights: program.wide_weights,
        cache_bytes,
        scratch_bytes: needs.footprint.buffer_bytes,
        process_bytes: needs.process_bytes,
        encoder: Memory::default(),
        available_bytes: options.memory_bytes,
        token_bytes: per_token.map(|c| c.unit_bytes()).sum(),
        most_context,
        streams: sequences,
    };
    (limits(options, context, group_blocks), fit)
}

/// A kind of step whose time is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scene {
    /// Sequences in the step.
    pub sequences: u32,
    /// Tokens of each.
    pub tokens: u32,
    /// Tokens of each already in the cache.
    pub context: u32,
}

impl Scene {
    /// What it computes.
    pub fn load(&self) -> Load {
        let (n, t, c) = (self.sequences.into(), u64::from(self.tokens), u64::from(self.context));
        Load { tokens: n * t, outputs: n, key_reads: n * key_reads(c, t) }
    }
}

/// How long a step takes, and what it moves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// The step.
    pub scene: Scene,
    /// Seconds, predicted for the whole model.
    pub seconds: f64,
    /// Work of the whole model.
    pub cost: Cost,
}

/// Repetitions of a timed step, and seconds after which there are no more than the fewest; the
/// median counts.
const REPETITIONS: std::ops::RangeInclusive<usize> = 5..=41;
const SECONDS: f64 = 0.3;
/// Most bytes read between two timed steps, to push the slice out of caches as the rest of the
/// model would.
const PRESSURE_BYTES: u64 = 1 << 30;

/// Times the first layers of a model on the device and extends the result to all of them: once
/// with one period of its layer pattern, once with two; what the second adds, every further
/// period adds.
///
/// # Errors
/// [`LoadFailure`]: reading the layers, or what the device says.
pub fn timings(
    model: &Lowered,
    device: &dyn Device,
    options: &LoadOptions,
    scenes: &[Scene],
) -> Result<Vec<Timing>, LoadFailure> {
    let path = model.path.clone();
    door::through(&path, || timings_inside(model, device, options, scenes))
}

fn timings_inside(
    model: &Lowered,
    device: &dyn Device,
    options: &LoadOptions,
    scenes: &[Scene],
) -> Result<Vec<Timing>, LoadFailure> {
    let layers = model.spec.layers.len();
    let (lead, period) = pattern(&model.spec.layers);
    let short = (lead + period).min(layers);
    let long = (short + period).min(layers);
    let one = slice(model, device, options, scenes, short)?;
    let two = slice(model, device, options, scenes, long)?;
    let more = (layers - short) as f64 / (long - short).max(1) as f64;
    let timing = |((one, two), &scene): ((&f64, &f64), &Scene)| Timing {
        scene,
        seconds: one + (two - one).max(0.0) * more,
        cost: model.program.cost(&scene.load()),
    };
    Ok(one.iter().zip(&two).zip(scenes).map(timing).collect())
}

/// Fewest layers in a period, where there are as many: one layer alone is timed too roughly.
const PERIOD: usize = 3;

/// The first layers that are like no others, and the length of the pattern that the rest repeat.
fn pattern<T: PartialEq>(layers: &[T]) -> (usize, usize) {
    let n = layers.len();
    let lead =
        |p: usize| (0..n - p).rev().find(|&i| layers[i] != layers[i + p]).map_or(0, |i| i + 1);
    let all = (1..=n / 2).map(|p| (lead(p), p));
    let Some((lead, p)) = all.min_by_key(|(lead, p)| lead + 2 * p) else { return (0, n) };
    let times = PERIOD.div_ceil(p).min((n - lead) / (2 * p)).max(1);
    (lead, times * p)
}

/// Seconds of every scene with the first `layers` layers of the model alone.
fn slice(
    model: &Lowered,
    device: &dyn Device,
    options: &LoadOptions,
    scenes: &[Scene],
    layers: usize,
) -> Result<Vec<f64>, LoadFailure> {
    let spec = ModelSpec { layers: model.spec.layers[..layers].to_vec(), ..model.spec.clone() };
    let program = lower(&spec, &model.files.checkpoint, options.kv)?.program;
    let watch = &mut |_| ControlFlow::Continue(());
    let weights = device.upload(&program, &model.files, options.mode, watch)?;
    let rest = model.program.resident_weight_bytes() - program.resident_weight_bytes();
    let pressure = vec![1u64; (rest.min(PRESSURE_BYTES) / 8) as usize];
    let seconds = scenes.iter().map(|scene| {
        let needs = Needs::of(&spec, &program, device, options)?;
        let context = scene.context + scene.tokens;
        let blocks = needs.cache(context, scene.sequences).0;
        let limits = limits(options, context.max(1), blocks);
        let executable = device.compile(&program, &weights, &limits)?;
        let block_tokens = device.caps().block_tokens;
        let direct = Direct::new(executable, &program, &limits, block_tokens, scene.sequences);
        time(direct, *scene, &program, &pressure).map_err(LoadFailure::from)
    });
    seconds.collect()
}

/// Median seconds of a step.
fn time(
    mut direct: Direct,
    scene: Scene,
    program: &Program,
    pressure: &[u64],
) -> Result<f64, DeviceError> {
    let tokens: Vec<u32> = (0..scene.tokens).map(|i| 1 + i % program.vocab.max(2) / 2).collect();
    let kind = match program.vocab {
        0 => OutputKind::Hidden,
        _ => OutputKind::sample(SamplingParams::default()),
    };
    let outputs = [(scene.tokens - 1, kind)];
    let feed = |sequence| Feed { sequence, tokens: &tokens, outputs: &outputs };
    let feeds: Vec<Feed<'_>> = (0..scene.sequences as usize).map(feed).collect();
    let mut seconds = Vec::with_capacity(*REPETITIONS.end());
    let begin = Instant::now();
    while seconds.len() < *REPETITIONS.start()
        || (seconds.len() < *REPETITIONS.end() && begin.elapsed().as_secs_f64() < SECONDS)
    {
        (0..scene.sequences as usize).for_each(|s| direct.resume(s, scene.context));
        black_box(pressure.iter().fold(0, |sum, x| sum ^ x));
        let start = Instant::now();
        direct.step(&feeds)?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    // The first one touches memory for the first time.
    seconds.remove(0);
    seconds.sort_unstable_by(f64::total_cmp);
    Ok(seconds[seconds.len() / 2])
}

/// Weight bytes that a decode step of one sequence reads, and all that must be resident for it:
/// far apart for mixtures of experts.
pub fn active_bytes(program: &Program) -> (u64, u64) {
    let one = Load { tokens: 1, outputs: 1, key_reads: 0 };
    let tables = program.weights.iter().filter(|w| w.role == WeightUse::Rows);
    let resident = program.weight_bytes() - tables.map(|w| w.stored_bytes()).sum::<u64>();
    (program.cost(&one).weight_bytes as u64, resident)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(groups: Vec<GroupKind>) -> Needs {
        let block_bytes = vec![10; groups.len()];
        let footprint = Footprint { weight_bytes: 1000, block_bytes, buffer_bytes: 100 };
        Needs { footprint, process_bytes: 50, groups, block_tokens: 32, step_tokens: 64 }
    }

    #[test]
    fn caches_of_every_kind_are_counted() {
        for (kind, context, sequences, blocks) in [
            (GroupKind::Full, 320, 1, 11),
            (GroupKind::Full, 320, 3, 33),
            (GroupKind::Window { tokens: 64 }, 3200, 2, 12),
            (GroupKind::Window { tokens: 64 }, 32, 2, 4),
            (GroupKind::State, 3200, 2, 12),
        ] {
            let (found, bytes) = needs(vec![kind]).cache(context, sequences);
            assert_eq!((found, bytes), (vec![blocks], u64::from(blocks) * 10), "{kind:?}");
        }
    }

    #[test]
    fn patterns_of_layers() {
        for (layers, expected) in [
            ("a", (0, 1)),
            ("aa", (0, 1)),
            ("aaaaaaaaaa", (0, 3)),
            ("baaaaaaaaa", (1, 3)),
            ("lllglllglllg", (0, 4)),
            ("dlllglllglllg", (1, 4)),
            ("abcd", (3, 1)),
        ] {
            let layers: Vec<char> = layers.chars().collect();
            assert_eq!(pattern(&layers), expected, "{layers:?}");
        }
    }

    #[test]
    fn the_longest_context_fits_and_no_longer_one() {
        let needs = needs(vec![GroupKind::Full]);
        for memory in [0, 1149, 1150, 1170, 1259, 1260, 1480, 5000] {
            let longest = needs.longest(3200, memory);
            let fits = |context| needs.fixed_bytes() + needs.cache(context, 1).1 <= memory;
            assert!(longest == 0 || fits(longest), "{longest} at {memory}");
            assert!(longest == 3200 || !fits(longest + 32), "{longest} at {memory}");
        }
        assert_eq!((needs.longest(100, 5000), needs.longest(1, 5000)), (100, 1));
    }

    #[test]
    fn sequences_are_as_many_as_fit() {
        let needs = needs(vec![GroupKind::Full]);
        for memory in [0, 1150, 1259, 1260, 1480, 5000] {
            let n = needs.sequences(320, memory);
            let room = memory.saturating_sub(needs.fixed_bytes());
            assert!(needs.cache(320, n).1 <= room || n == 0, "{n} at {memory}");
            assert!(needs.cache(320, n + 1).1 > room, "{n} at {memory}");
        }
    }
}
