//! `bench MODEL`: prefill and decode speed of a model, beside the machine's limits measured in the
//! same run.

use std::time::Instant;

use tokenmill_engine::direct::{Direct, Feed};
use tokenmill_engine::load::LoadedModel;
use tokenmill_ir::sampling::splitmix;
use tokenmill_ir::{Cost, Load, OutputKind, Program, SamplingParams, TokenId, key_reads};
use tokenmill_quant::FormatId;

use super::args::Bench;
use super::line::{Line, Work};
use crate::args::Mode;
use crate::devices::{self, Arithmetic, ReadProbe};
use crate::failure::Failure;
use crate::model;

/// One measured thing.
struct Test {
    name: String,
    /// Tokens a repetition handles.
    tokens: f64,
    /// Work of a repetition.
    cost: Cost,
    /// Every repetition.
    reps: Vec<Rep>,
    /// How often workers wait for each other in its largest step.
    barriers: Option<u32>,
}

/// What a repetition took.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rep {
    seconds: f64,
    /// Bytes a second that main memory gave meanwhile, the mean of some probes between steps.
    reads: Option<f64>,
}

/// Times the steps of a repetition, and probes main memory between them.
struct Clock<'a> {
    probe: Option<&'a ReadProbe>,
    seconds: f64,
    /// When the next probe is due, in those seconds.
    due: f64,
    reads: Vec<f64>,
}

/// Seconds of steps from one probe to the next.
const PROBE_EVERY: f64 = 0.2;

impl<'a> Clock<'a> {
    fn new(probe: Option<&'a ReadProbe>) -> Clock<'a> {
        Clock { probe, seconds: 0.0, due: PROBE_EVERY, reads: Vec::new() }
    }

    fn time<T>(&mut self, step: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let done = step();
        self.add(start.elapsed().as_secs_f64());
        done
    }

    fn add(&mut self, seconds: f64) {
        self.seconds += seconds;
        if self.seconds >= self.due {
            self.reads.extend(self.probe.map(ReadProbe::bytes_per_s));
            self.due = self.seconds + PROBE_EVERY;
        }
    }

    /// The repetition, probed at least once.
    fn stop(mut self) -> Rep {
        if self.reads.is_empty() {
            self.reads.extend(self.probe.map(ReadProbe::bytes_per_s));
        }
        let mean = self.reads.iter().sum::<f64>() / self.reads.len() as f64;
        Rep { seconds: self.seconds, reads: Some(mean).filter(|mean| mean.is_finite()) }
    }
}

/// What helps where a test does not fit.
const SHORTER: &str = "less of -p, -n, --depth or --batch";

/// Runs every test that the command line asks for.
pub fn measure(name: &str, args: &Bench) -> Result<Vec<Line>, Failure> {
    model::without_drafts(&args.machine)?;
    let sequences = args.batch.iter().copied().max().unwrap_or(1).max(1);
    let mut machine = args.machine.clone();
    let longest_prompt = args.prompt.iter().copied().max().unwrap_or(0);
    let longest_answer = args.generate.iter().copied().max().unwrap_or(0) + args.depth.max(1);
    // What the tests need; a test that does not fit a shorter context is refused below.
    machine.ctx.get_or_insert(longest_prompt.max(longest_answer + 1).next_multiple_of(32));
    let loaded = model::open_quietly(name, &machine, sequences);
    let mut loaded = loaded.map_err(|failure| match args.machine.ctx {
        None => failure.instead("add --ctx", SHORTER),
        Some(_) => failure,
    })?;
    if let Some(asked) = args.machine.ctx {
        model::tell_of_context(asked, loaded.spec.context);
    }
    if loaded.program.vocab == 0 {
        return Err(Failure::new("cannot measure", "this model gives embeddings, not logits"));
    }
    model::check_cache(name, &machine, &mut loaded)?;
    let threads = devices::threads(&machine);
    let (format, arithmetic) = arithmetic_of(&loaded.program, machine.mode);
    let before = devices::op_limit(threads, arithmetic);
    let probe = devices::dram_probe(threads);
    let mut bench = Runner { args, loaded: &mut loaded, probe: probe.as_ref() };
    let mut tests = Vec::new();
    let prompts = || args.prompt.iter().copied().filter(|n| *n > 0);
    let answers = || args.generate.iter().copied().filter(|n| *n > 0);
    let batches = || answers().flat_map(|n| args.batch.iter().map(move |&b| (n, b)));
    if prompts().next().is_none() && answers().next().is_none() {
        return Err(Failure::new("nothing to measure", "-p 0 and -n 0").fix("add -p 512"));
    }
    // Those that do not fit first: they should not cost a run.
    prompts().try_for_each(|n| bench.check(n, 1).map(drop))?;
    batches().try_for_each(|(n, b)| bench.check(n + args.depth.max(1), b).map(drop))?;
    for n in prompts() {
        tests.push(bench.prefill(n)?);
    }
    for (n, b) in batches() {
        tests.push(bench.decode(n, b)?);
    }
    let ops = devices::op_limit(threads, arithmetic);
    // Other users of the cores come and go: the better of before and after is the limit.
    let limit_ops = ops.rate.best.max(before.rate.best);
    let line = |test: Test| {
        let Rep { seconds: s, reads } = median(&test.reps);
        let slowest = test.reps.iter().map(|rep| rep.seconds).fold(0.0, f64::max);
        let fastest = test.reps.iter().map(|rep| rep.seconds).fold(f64::INFINITY, f64::min);
        Line {
            engine: "tokenmill".to_owned(),
            model: name.to_owned(),
            format: format.to_owned(),
            threads: u64::from(loaded.device.caps().workers),
            test: test.name,
            tok_s: [s, slowest, fastest].map(|seconds| test.tokens / seconds),
            work: Some(Work {
                gb_s: (test.cost.weight_bytes + test.cost.cache_bytes) / s / 1e9,
                tops: test.cost.ops / s / 1e12,
                limit_gb_s: reads.map(|limit| limit / 1e9),
                limit_tops: limit_ops / 1e12,
                arithmetic: format!("{} ({})", arithmetic.name(), ops.instruction),
                barriers: test.barriers.map(u64::from),
            }),
        }
    };
    Ok(tests.into_iter().map(line).collect())
}

struct Runner<'a> {
    args: &'a Bench,
    loaded: &'a mut LoadedModel,
    /// None where there is no memory for it.
    probe: Option<&'a ReadProbe>,
}

impl Runner<'_> {
    fn direct(&mut self, sequences: u32) -> Result<Direct, Failure> {
        let executable = self.loaded.compile().map_err(|e| Failure::new("the device failed", e))?;
        let LoadedModel { program, limits, device, .. } = &*self.loaded;
        Ok(Direct::new(executable, program, limits, device.caps().block_tokens, sequences))
    }

    /// Refuses a test of that many sequences of that length where the caches do not hold them.
    fn check(&mut self, tokens: u32, sequences: u32) -> Result<(), Failure> {
        let longest = self.direct(sequences)?.longest();
        if tokens <= longest {
            return Ok(());
        }
        let what = match sequences {
            1 => format!("cannot measure {tokens} tokens"),
            n => format!("cannot measure {n} sequences of {tokens} tokens"),
        };
        let own = self.loaded.spec.context;
        let detail = match longest {
            most if most == own => format!("this model's context is {own} tokens"),
            most if sequences == 1 => format!("the context is {most} tokens, by --ctx or memory"),
            most => format!("memory holds {most} tokens of each"),
        };
        Err(Failure::new(what, detail).fix(SHORTER))
    }

    /// A prompt of `n` tokens in steps of the largest size; only the last token has an output.
    fn prefill(&mut self, n: u32) -> Result<Test, Failure> {
        let tokens = self.tokens(n, 0);
        let step = self.loaded.limits.step_tokens as usize;
        let mut direct = self.direct(1)?;
        let barriers = direct.barriers(n.min(step as u32), 1);
        let mut cost = Cost::default();
        let mut reps = Vec::new();
        for rep in 0..=self.args.reps {
            direct.restart(0);
            let mut clock = Clock::new(self.probe.filter(|_| rep > 0));
            for chunk in tokens.chunks(step) {
                let last = direct.computed(0) as usize + chunk.len() == tokens.len();
                let outputs = [(chunk.len() as u32 - 1, greedy())];
                if rep == 0 {
                    let context = u64::from(direct.computed(0));
                    cost = add(cost, self.cost(chunk.len() as u64, u64::from(last), context, 1));
                }
                let outputs = &outputs[..usize::from(last)];
                let feed = Feed { sequence: 0, tokens: chunk, outputs };
                clock.time(|| run(&mut direct, &[feed]))?;
            }
            if rep > 0 {
                reps.push(clock.stop());
            }
        }
        Ok(Test { name: format!("pp{n}"), tokens: f64::from(n), cost, reps, barriers })
    }

    /// `n` steps of one token for each of `b` sequences, greedily sampled.
    fn decode(&mut self, n: u32, b: u32) -> Result<Test, Failure> {
        let prompts: Vec<Vec<TokenId>> =
            (0..b).map(|s| self.tokens(self.args.depth.max(1), s)).collect();
        let step = self.loaded.limits.step_tokens as usize;
        let mut direct = self.direct(b)?;
        let barriers = direct.barriers(b, b);
        let mut cost = Cost::default();
        let mut reps = Vec::new();
        for rep in 0..=self.args.reps {
            let mut next = vec![0; b as usize];
            for (s, prompt) in prompts.iter().enumerate() {
                direct.restart(s);
                for chunk in prompt.chunks(step) {
                    let outputs = [(chunk.len() as u32 - 1, greedy())];
                    let feed = Feed { sequence: s, tokens: chunk, outputs: &outputs };
                    next[s] = run(&mut direct, &[feed])?[0];
                }
            }
            let outputs = [(0, greedy())];
            let mut clock = Clock::new(self.probe.filter(|_| rep > 0));
            for _ in 0..n {
                let feeds: Vec<Feed<'_>> = next
                    .chunks(1)
                    .enumerate()
                    .map(|(sequence, tokens)| Feed { sequence, tokens, outputs: &outputs })
                    .collect();
                let context = u64::from(direct.computed(0));
                if rep == 0 {
                    let b = u64::from(b);
                    cost = add(cost, self.cost(b, b, context, b));
                }
                next = clock.time(|| run(&mut direct, &feeds))?;
            }
            if rep > 0 {
                reps.push(clock.stop());
            }
        }
        let mut name = format!("tg{n}");
        if self.args.depth > 0 {
            name += &format!("@{}", self.args.depth);
        }
        if b > 1 {
            name += &format!(" x{b}");
        }
        Ok(Test { name, tokens: f64::from(n) * f64::from(b), cost, reps, barriers })
    }

    fn cost(&self, tokens: u64, outputs: u64, context: u64, sequences: u64) -> Cost {
        let each = tokens / sequences;
        let key_reads = sequences * key_reads(context, each);
        self.loaded.program.cost(&Load { tokens, outputs, key_reads })
    }

    /// Random tokens, the same in every run.
    fn tokens(&self, n: u32, salt: u32) -> Vec<TokenId> {
        let vocab = u64::from(self.loaded.program.vocab.max(1));
        let at = |i: u32| splitmix(u64::from(salt) << 32 | u64::from(i)) % vocab;
        (0..n).map(|i| at(i) as TokenId).collect()
    }
}

fn greedy() -> OutputKind {
    OutputKind::sample(SamplingParams::default())
}

fn run(direct: &mut Direct, feeds: &[Feed<'_>]) -> Result<Vec<TokenId>, Failure> {
    let out = direct.step(feeds).map_err(|e| Failure::new("the device failed", e))?;
    if out.sampled.iter().any(|s| !s.valid) {
        return Err(Failure::new("the model gave no numbers", "a row of logits is not finite"));
    }
    Ok(out.sampled.iter().map(|s| s.token).collect())
}

fn add(a: Cost, b: Cost) -> Cost {
    Cost {
        weight_bytes: a.weight_bytes + b.weight_bytes,
        cache_bytes: a.cache_bytes + b.cache_bytes,
        ops: a.ops + b.ops,
    }
}

/// The repetition in the middle; of an even number the mean of the two there.
fn median(reps: &[Rep]) -> Rep {
    let mut sorted = reps.to_vec();
    sorted.sort_unstable_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let none = Rep { seconds: f64::NAN, reads: None };
    let at = |i: usize| sorted.get(i / 2).copied().unwrap_or(none);
    let (a, b) = (at(sorted.len().saturating_sub(1)), at(sorted.len()));
    let reads = a.reads.zip(b.reads).map(|(a, b)| (a + b) / 2.0);
    Rep { seconds: (a.seconds + b.seconds) / 2.0, reads }
}

/// The format that most weight bytes are stored in, and the arithmetic its products can use at
/// best: stored floats as they are, blocks of integers as the mode says.
pub fn arithmetic_of(program: &Program, mode: Mode) -> (&'static str, Arithmetic) {
    let mut by_format: Vec<(FormatId, u64)> = Vec::new();
    for w in &program.weights {
        for p in &w.parts {
            let (format, _) = p.read_as();
            let bytes = format.row_bytes(w.cols.into()).unwrap_or(0) * p.weight_rows();
            match by_format.iter_mut().find(|f| f.0 == format) {
                Some(f) => f.1 += bytes,
                None => by_format.push((format, bytes)),
            }
        }
    }
    let most = by_format.iter().max_by_key(|f| f.1).map(|f| f.0);
    let arithmetic = match (most, mode) {
        (Some(FormatId::F32 | FormatId::F16), _) | (_, Mode::F32) => Arithmetic::F32,
        (Some(FormatId::BF16), _) | (_, Mode::Bf16) => Arithmetic::Bf16,
        (_, Mode::Int8) => Arithmetic::Int8,
    };
    (most.map_or("none", |f| f.name()), arithmetic)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reps(seconds: &[f64]) -> Vec<Rep> {
        seconds.iter().map(|&s| Rep { seconds: s, reads: Some(100.0 / s) }).collect()
    }

    #[test]
    fn the_median_repetition_brings_its_own_reads() {
        assert_eq!(median(&reps(&[5.0, 1.0, 2.0])), Rep { seconds: 2.0, reads: Some(50.0) });
        assert_eq!(median(&reps(&[4.0, 2.0])), Rep { seconds: 3.0, reads: Some(37.5) });
        assert_eq!(median(&reps(&[4.0])), Rep { seconds: 4.0, reads: Some(25.0) });
        assert!(median(&[]).seconds.is_nan());
        let unknown = [Rep { seconds: 1.0, reads: None }; 2];
        assert_eq!(median(&unknown), unknown[0]);
    }

    #[test]
    fn a_clock_counts_steps_alone_and_probes_between_them() {
        let probe = ReadProbe::new(1, devices::Level::L2, usize::MAX).expect("a small set");
        let mut clock = Clock::new(Some(&probe));
        for probes in [0, 1, 1, 2] {
            clock.add(0.15);
            assert_eq!(clock.reads.len(), probes);
        }
        let rep = clock.stop();
        assert!((rep.seconds - 0.6).abs() < 1e-9 && rep.reads > Some(1e6), "{rep:?}");
        // Too short for a probe between steps: there is one at the end.
        assert!(Clock::new(Some(&probe)).stop().reads > Some(1e6));
        assert_eq!(Clock::new(None).stop(), Rep { seconds: 0.0, reads: None });
    }
}
