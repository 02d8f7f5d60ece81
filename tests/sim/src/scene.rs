//! What happens in one simulated run, drawn from its seed: the machine, the requests, the faults.

use std::sync::Arc;
use std::time::Duration;

use tokenmill_engine::constraint::{Constraint, Held, Settings, Vocabulary};
use tokenmill_engine::{DraftMode, Embeddings, Inputs, Lease, Media, Numbers, RepeatRule, Request};
use tokenmill_ir::sampling::{Chain, Dry, Mirostat, Rules, splitmix};
use tokenmill_ir::{GroupKind, Limits, SamplingParams, TokenId};
use tokenmill_sched::{Config, Scheduler, StepCost};

/// A stream of random numbers that depends on its seed only.
#[derive(Debug, Clone)]
pub struct Draw(u64);

impl Draw {
    /// The stream of that seed.
    pub fn new(seed: u64) -> Self {
        Self(splitmix(seed))
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        splitmix(self.0)
    }

    /// A number in `low..=high`.
    pub fn range(&mut self, low: u32, high: u32) -> u32 {
        low + (self.any() % u64::from(high - low + 1)) as u32
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: u32) -> bool {
        self.range(1, n) == 1
    }

    fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.range(0, items.len() as u32 - 1) as usize].clone()
    }
}

/// How a client behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Client {
    /// Takes everything.
    Patient,
    /// Goes away (its channel closes) after that many events.
    Leaves(u32),
    /// Cancels after that many turns.
    Cancels(u32),
    /// Its code panics at that event.
    Panics(u32),
    /// Takes an event every so many turns, and lets wait at most so many bytes.
    Slow {
        /// Turns from one event to the next.
        turns: u32,
        /// Bytes that may wait.
        limit_bytes: u32,
    },
}

/// What is asked.
#[derive(Debug, Clone, PartialEq)]
pub enum Ask {
    /// Text.
    Answer(Request),
    /// Numbers.
    Rows(Request),
}

/// One request.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrival {
    /// Before which turn it arrives.
    pub turn: u32,
    /// What it asks.
    pub ask: Ask,
    /// How its client behaves.
    pub client: Client,
}

impl Arrival {
    /// Answers of some end where they repeat themselves.
    fn repeats(&mut self, d: &mut Draw) {
        if let Ask::Answer(request) = &mut self.ask
            && d.once_in(4)
        {
            let longest = d.range(1, 4);
            request.repeats = Some(RepeatRule::copies((1, longest), d.range(2, 3)));
        }
    }
}

/// One run.
#[derive(Debug, Clone, PartialEq)]
pub struct Scene {
    /// Machine and limits.
    pub config: Config,
    /// End-of-sequence tokens.
    pub eos: Vec<TokenId>,
    /// Requests in order of arrival.
    pub arrivals: Vec<Arrival>,
    /// Steps that fail.
    pub failing: Vec<u64>,
    /// Steps that panic inside the device.
    pub panicking: Vec<u64>,
    /// Tokens whose rows are not numbers.
    pub nan: Vec<TokenId>,
    /// How many turns in ten offer drafts.
    pub drafts: u32,
    /// Cache groups of a draft model: the same ones make it the same model, others another.
    pub draft_model: Option<Vec<GroupKind>>,
    /// Steps of the draft model that fail.
    pub draft_failing: Option<u64>,
    /// Whether time goes as it is predicted; otherwise it is any.
    pub true_time: bool,
    /// How the device goes through a step.
    pub pace: Pace,
    /// Before which turns the caches get another size: blocks of each group.
    pub resizes: Vec<(u32, Vec<u32>)>,
}

/// How a device goes through a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// At once, when it is told to.
    AtOnce,
    /// In so many parts, between which requests come and go.
    InParts(u32),
    /// By itself, while its host tells what the step before brought.
    Alone,
}

impl Scene {
    /// The scene of a seed.
    pub fn new(seed: u64) -> Scene {
        let mut d = Draw::new(seed);
        let config = machine(&mut d);
        let longest = Scheduler::new(config.clone()).longest();
        let vocab = config.vocab;
        let families: Vec<Vec<TokenId>> =
            (0..d.range(1, 3)).map(|_| words(&mut d, longest, vocab)).collect();
        let count = d.range(1, 12);
        let spread = d.pick(&[0, 3, 30]);
        let mut turn = 0;
        let mut arrivals = Vec::new();
        for _ in 0..count {
            turn += d.range(0, spread);
            let ask = ask(&mut d, &config, longest, &families);
            arrivals.push(Arrival { turn, ask, client: client(&mut d) });
        }
        let faulty = d.once_in(6);
        let mut steps = |n: u32, wanted: bool| -> Vec<u64> {
            let n = if wanted { d.range(0, n) } else { 0 };
            (0..n).map(|_| u64::from(d.range(0, 60))).collect()
        };
        let (failing, panicking) = (steps(3, faulty), steps(1, faulty));
        let least = d.pick(&[0, LETTERS]);
        let eos: Vec<TokenId> = (0..d.range(0, 2)).map(|_| d.range(least, vocab - 1)).collect();
        for arrival in &mut arrivals {
            let Ask::Answer(request) = &mut arrival.ask else { continue };
            if !request.ignore_eos && d.once_in(3) {
                request.held = held(&mut d, vocab, &eos);
            }
            let mut more = Draw::new(request.sampling.seed ^ 1);
            request.rules = rules(&mut more, request.held.is_some());
        }
        let nan = if d.once_in(8) { vec![d.range(0, vocab - 1)] } else { Vec::new() };
        let drafts = d.pick(&[0, 0, 4, 10]);
        let true_time = d.once_in(2);
        let (same, other) = (config.groups.clone(), vec![GroupKind::Window { tokens: 5 }, FULL]);
        let draft_model = if d.once_in(3) { Some(d.pick(&[same, other])) } else { None };
        let keeps = |g: &Vec<GroupKind>| !g.is_empty() && !g.contains(&STATE);
        let draft_model = draft_model.filter(|g| keeps(g) && !config.whole_sequences);
        let draft_failing = d.once_in(6).then(|| u64::from(d.range(0, 30)));
        let pace = match d.range(0, 5) {
            0 | 1 => Pace::InParts(d.range(1, 4)),
            2 => Pace::Alone,
            _ => Pace::AtOnce,
        };
        let resizes = if d.once_in(3) { d.range(1, 5) } else { 0 };
        let mut resize = |_| {
            let blocks = config.limits.group_blocks.iter().map(|&n| d.range(0, n)).collect();
            (d.range(0, 60), blocks)
        };
        let resizes = (0..resizes).map(&mut resize).collect();
        arrivals.iter_mut().for_each(|arrival| arrival.repeats(&mut d));
        let sights = Sights::new(&mut d, &config);
        arrivals.iter_mut().for_each(|arrival| sights.show(&mut d, &mut arrival.ask));
        let config = Config { longest_block: sights.longest_block(), ..config };
        Scene {
            config,
            eos,
            arrivals,
            failing,
            panicking,
            nan,
            drafts,
            draft_model,
            draft_failing,
            true_time,
            pace,
            resizes,
        }
    }
}

/// Images that prompts have in common, and how the model sees them.
struct Sights {
    images: Vec<Arc<Embeddings>>,
    /// Whether the tokens of an image see each other.
    blocks: bool,
    /// Whether an image has rows and columns.
    grid: bool,
    /// Output rows of a step, where the model takes whole sequences.
    outputs: Option<u32>,
}

impl Sights {
    fn new(d: &mut Draw, config: &Config) -> Sights {
        let room = Scheduler::new(Config { longest_block: 12, ..config.clone() }).longest_block();
        let blocks = !config.whole_sequences && room > 0 && d.once_in(2);
        let most = if blocks { room } else { 12 };
        let image = |d: &mut Draw| {
            let data: Vec<f32> = (0..d.range(1, most)).map(|_| d.range(0, 999) as f32).collect();
            Arc::new(Embeddings::new(1, data, d.any().into()))
        };
        let count = if d.once_in(2) { 0 } else { d.range(1, 3) };
        let images = (0..count).map(|_| image(d)).collect();
        let outputs = config.whole_sequences.then_some(config.limits.outputs);
        Sights { images, blocks, grid: d.once_in(2), outputs }
    }

    fn longest_block(&self) -> u32 {
        let longest = self.images.iter().map(|rows| rows.len() as u32).max().unwrap_or(0);
        if self.blocks { longest } else { 0 }
    }

    /// Puts images into a prompt, in the place of some of its tokens.
    fn show(&self, d: &mut Draw, ask: &mut Ask) {
        let (Ask::Answer(request) | Ask::Rows(request)) = ask;
        let plain =
            matches!(request.numbers, Some(Numbers::Scores { .. } | Numbers::Logits { .. }));
        if self.images.is_empty() || plain || d.once_in(3) {
            return;
        }
        // (Often with the same words before it.)
        let (mut inputs, mut at) = (Inputs::default(), d.pick(&[0, 0, 0, 2, 5]));
        for _ in 0..d.range(1, 2) {
            let rows = d.pick(&self.images);
            let end = at + rows.len() as u32;
            let Some(place) = request.prompt.get_mut(at as usize..end as usize) else { break };
            place.copy_from_slice(&rows.ids);
            inputs.media.push(Media { at, rows });
            at = end + d.range(0, 5);
        }
        if self.blocks {
            inputs.blocks =
                inputs.media.iter().map(|m| [m.at, m.at + m.rows.len() as u32]).collect();
        }
        if self.grid {
            for media in &inputs.media {
                // Each image is at one time, in rows of three; the text goes on behind its longer side.
                for _ in inputs.positions.len() as u32..media.at {
                    inputs.positions.push([inputs.next; 3]);
                    inputs.next += 1;
                }
                let (begin, rows) = (inputs.next, media.rows.len() as u32);
                inputs.positions.extend((0..rows).map(|i| [begin, begin + i / 3, begin + i % 3]));
                inputs.next += rows.div_ceil(3).max(3);
            }
        }
        if let Some(outputs) = self.outputs.filter(|_| d.once_in(2)) {
            let all = request.prompt.len() as u32;
            let run = all.div_ceil(outputs) + d.range(0, 2);
            inputs.outputs = (d.range(0, run.min(all) - 1)..all).step_by(run as usize).collect();
            request.numbers = Some(Numbers::Listed);
        }
        request.inputs = Some(Arc::new(inputs));
    }
}

const FULL: GroupKind = GroupKind::Full;
const STATE: GroupKind = GroupKind::State;

fn machine(d: &mut Draw) -> Config {
    let window = GroupKind::Window { tokens: d.range(1, 14) };
    let kinds: [&[GroupKind]; 11] = [
        &[FULL],
        &[FULL],
        &[FULL, window],
        &[window],
        &[STATE],
        &[FULL, STATE],
        &[FULL, window, STATE],
        &[FULL, FULL],
        &[window, STATE, FULL, STATE],
        &[],
        &[],
    ];
    let which = d.range(0, kinds.len() as u32 - 1) as usize;
    let groups = kinds[which].to_vec();
    let whole_sequences = which == kinds.len() - 1;
    let block_tokens = d.pick(&[1, 2, 4, 4, 8]);
    let context = d.range(12, 72);
    let plenty = d.pick(&[0, 0, 1, 3]);
    let sequences = d.range(1, 8);
    let blocks = |kind: &GroupKind, d: &mut Draw| match kind {
        GroupKind::State => d.range(1, 3) + plenty * 4,
        GroupKind::Full => context.div_ceil(block_tokens) * (1 + plenty) + d.range(0, 3),
        GroupKind::Window { tokens } => {
            tokens.div_ceil(block_tokens) + 1 + d.range(0, 4) + plenty * 8
        }
    };
    let group_blocks = groups.iter().map(|k| blocks(k, d)).collect();
    let limits = Limits {
        step_tokens: d.pick(&[1, 3, 8, 16, 64]).max(if whole_sequences { 16 } else { 1 }),
        sequences,
        outputs: d.pick(&[1, 4, 16]),
        context,
        group_blocks,
        top_logprobs: 4,
    };
    Config {
        groups,
        block_tokens,
        limits,
        whole_sequences,
        vocab: d.range(20, 40),
        hidden: 3,
        cost: StepCost {
            output_s: d.pick(&[0.0, 1e-4]),
            ..StepCost::new(1e-3, d.pick(&[0.0, 1e-4, 1e-3]), d.pick(&[0.0, 1e-6, 1e-5]))
        },
        step_s: d.pick(&[1e-9, 2e-3, 1.0]),
        checkpoint_slots: d.range(0, 4),
        longest_block: 0,
    }
}

fn words(d: &mut Draw, len: u32, vocab: u32) -> Vec<TokenId> {
    (0..len).map(|_| d.range(0, vocab - 1)).collect()
}

/// A text that often shares its beginning with others.
fn text(d: &mut Draw, most: u32, vocab: u32, families: &[Vec<TokenId>]) -> Vec<TokenId> {
    let len = if d.once_in(8) { most } else { d.range(1, most) };
    let family = d.pick(families);
    let shared = if d.once_in(4) { 0 } else { d.range(0, len) };
    let mut text = family[..shared as usize].to_vec();
    text.extend(words(d, len - shared, vocab));
    text
}

fn ask(d: &mut Draw, config: &Config, longest: u32, families: &[Vec<TokenId>]) -> Ask {
    let vocab = config.vocab;
    if config.whole_sequences {
        let tokens = text(d, longest, vocab, families);
        return Ask::Rows(Request { numbers: Some(Numbers::Hidden), ..Request::new(tokens) });
    }
    if longest >= 2 && d.once_in(6) {
        let mut tokens = text(d, longest - 1, vocab, families);
        tokens.push(d.range(0, vocab - 1));
        let from = d.range(0, tokens.len() as u32 - 1);
        let all = [Numbers::Scores { top: from % 4 }, Numbers::Logits { from }, Numbers::Hidden];
        return Ask::Rows(Request { numbers: Some(d.pick(&all)), ..Request::new(tokens) });
    }
    let most = (longest - 1).min(d.pick(&[4, 20, 80]));
    let mut request = Request::new(text(d, most, vocab, families));
    let room = longest - request.prompt.len() as u32;
    let wanted = room.min(d.pick(&[1, 8, 30, 80]));
    request.max_tokens = if d.once_in(10) { None } else { Some(d.range(1, wanted)) };
    request.choices = if d.once_in(4) { d.range(2, 4) } else { 1 };
    request.ignore_eos = d.once_in(3);
    request.salt = if d.once_in(8) { 5 } else { 0 };
    request.sampling = sampling(d);
    let drafts = [None, None, Some(DraftMode::None), Some(DraftMode::Ngram)];
    request.draft = d.pick(&drafts);
    request.account = d.pick(&[0, 0, 1, 2]);
    request.priority = d.pick(&[0, 0, -1, 5]);
    if d.once_in(8) {
        request.timeout = Some(Duration::from_millis(u64::from(d.range(0, 100))));
    }
    if d.once_in(3) {
        let ttl = Duration::from_millis(u64::from(d.range(1, 300)));
        request.lease = Some(Lease { ttl, name: u64::from(d.range(0, 2)) });
    }
    if d.once_in(6) {
        request.logit_bias = vec![(d.range(0, vocab - 1), 3.0)];
    }
    Ask::Answer(request)
}

/// Tokens that are the letters of grammars.
const LETTERS: u32 = 16;

/// A grammar over tokens that are letters, where something else ends an answer.
fn held(d: &mut Draw, vocab: u32, eos: &[TokenId]) -> Option<Held> {
    if eos.is_empty() || eos.iter().any(|id| *id < LETTERS) {
        return None;
    }
    let letters = (0..vocab).map(|id| vec![b'A' + id as u8]);
    let vocabulary = Vocabulary::new(letters, eos, eos).expect("a vocabulary");
    let cut = |text: &[u8]| text.iter().map(|letter| u32::from(letter - b'A')).collect();
    let vocabulary = Arc::new(vocabulary.tokenized_by(Arc::new(cut)));
    let patterns = [
        "[A-P]*",
        "[A-J]{3,9}",
        "([AB][CD]|[EFG][HIJ])+",
        "([A-D]([E-H]([I-L][M-P])*)*)*",
        "[AB][CD][EF][GH][IJ][KL][MN]",
        "[AB]DEADBEEF([CD]FADEDFACADE)*[A-C]",
    ];
    let constraint = match d.once_in(4) {
        true => Constraint::Choice(["BED", "BEE", "CAB", "DAD"].map(String::from).to_vec()),
        false => Constraint::Regex(d.pick(&patterns).to_owned()),
    };
    Some(Held::new(&constraint, &vocabulary, &Settings::default()).expect("a grammar"))
}

fn sampling(d: &mut Draw) -> SamplingParams {
    let mut p = SamplingParams { seed: d.any(), ..SamplingParams::default() };
    p.temperature = d.pick(&[0.0, 0.7, 1.5]);
    p.top_k = d.pick(&[0, 0, 5]);
    p.top_p = d.pick(&[1.0, 0.9]);
    p.repetition_penalty = d.pick(&[1.0, 1.0, 1.0, 1.4]);
    p.frequency_penalty = d.pick(&[0.0, 0.0, 0.0, 0.5]);
    p.logprobs = d.pick(&[None, None, Some(0), Some(2)]);
    let mut more = Draw::new(p.seed);
    (p.penalty_last_n, p.penalises_prompt) = (more.pick(&[u32::MAX, 4]), more.once_in(2));
    p.chain = more.once_in(4).then(|| Chain {
        typical_p: more.pick(&[1.0, 0.8]),
        xtc_probability: more.pick(&[0.0, 0.5]),
        mirostat: more.once_in(2).then(|| Mirostat::new(2.0, 0.3)),
        ..Chain::default()
    });
    p
}

/// What the text before a token forbids and makes unlikely, for one request in four. An end that
/// may not come yet is one more thing that a grammar may want: not beside one.
fn rules(d: &mut Draw, is_held: bool) -> Rules {
    if !d.once_in(4) {
        return Rules::default();
    }
    let breakers = vec![1, 2];
    let dry = Dry { multiplier: 2.0, base: 1.5, allowed_length: 1, last_n: 20, breakers };
    Rules {
        dry: d.once_in(2).then_some(dry),
        min_tokens: if is_held { 0 } else { d.range(0, 5) },
        ..Rules::default()
    }
}

fn client(d: &mut Draw) -> Client {
    match d.range(0, 11) {
        0 => Client::Leaves(d.range(0, 6)),
        1 => Client::Cancels(d.range(0, 20)),
        2 if d.once_in(4) => Client::Panics(d.range(0, 6)),
        3 | 4 => Client::Slow { turns: d.range(1, 20), limit_bytes: d.pick(&[0, 200, 2000, 9999]) },
        _ => Client::Patient,
    }
}
