//! The choice: which model, in which role, with what context and format of its cache.

use serde::Serialize;

use super::advice;
use super::estimate::{Pace, Speed, speed};
use super::machine::Machine;
use super::memory;
use super::model::{Ability, Kv, Model};
use super::need::{Need, Task, TaskRow};
use super::page::size;

/// Users at once from which a machine serves batches.
const BATCH_USERS: u32 = 4;
/// Context from which it is the context that decides.
const LONG_TOKENS: u32 = 32_768;

/// What becomes of a need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// A model that is here (of those named, where some are) does it.
    Yes,
    /// Those named do not fit or cannot; another that is here does it.
    Instead,
    /// Nothing that is here does it; one to pull does.
    Pull,
    /// Nothing does.
    No,
}

/// What a machine does with a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// One or a few streams, as fast as each can be.
    LocalLatency,
    /// Many streams that share each read of the weights.
    BatchServer,
    /// The cache decides.
    LongContext,
    /// Texts become vectors or ranks.
    Embeddings,
}

impl Role {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::LocalLatency => "local latency",
            Self::BatchServer => "batch server",
            Self::LongContext => "long context",
            Self::Embeddings => "vectors or ranks",
        }
    }
}

/// Memory by part, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Parts {
    /// Weights.
    pub weights: u64,
    /// Caches, every block in use.
    pub cache: u64,
    /// Buffers of the largest step.
    pub buffers: u64,
    /// The process and its tokenizer.
    pub process: u64,
    /// All of it.
    pub needed: u64,
    /// What models may take here.
    pub available: u64,
    /// Cache of one token, windows included.
    pub token: u64,
}

/// A model and how it is run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Choice {
    /// Its name.
    pub model: String,
    /// Whether it is here.
    pub here: bool,
    /// Its files, bytes.
    pub files: u64,
    /// The role.
    pub role: Role,
    /// Longest sequence, tokens.
    pub context: u32,
    /// Format of keys and values.
    pub kv: String,
    /// Sequences of full length that the cache holds.
    pub full_streams: u32,
    /// Sequences that run at once when they have usual lengths.
    pub streams: u32,
    /// Memory.
    pub memory: Parts,
    /// Speed.
    pub speed: Speed,
    /// Whether that is fast enough for the task.
    pub keeps_pace: bool,
    /// What to run, in order.
    pub commands: Vec<String>,
    /// How, in short sentences.
    pub strategy: Vec<String>,
}

/// What could be done as well.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Alternative {
    /// What.
    pub what: String,
    /// What it costs or brings.
    pub cost: String,
    /// Why it is not the choice.
    pub why_not: String,
    /// How to have it all the same; absent where this version cannot.
    pub command: Option<String>,
}

/// A model that does not do it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Refused {
    /// Its name.
    pub model: String,
    /// Why, with the numbers.
    pub why: String,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// In a word.
    pub verdict: Verdict,
    /// What was asked.
    pub need: Need,
    /// What of it this version cannot do.
    pub missing: Option<&'static str>,
    /// The choice.
    pub chosen: Option<Choice>,
    /// Why.
    pub reasons: Vec<String>,
    /// What else there is.
    pub alternatives: Vec<Alternative>,
    /// What to know.
    pub warnings: Vec<String>,
    /// Models that were looked at and do not do it.
    pub refused: Vec<Refused>,
}

/// A model that was looked at.
pub(super) struct Seen<'a> {
    pub model: &'a Model,
    pub found: Result<Choice, Unfit>,
}

/// Why a model does not do it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Unfit {
    pub why: String,
    /// Whether more memory would help.
    pub memory: bool,
}

/// Everything that the words are made of.
pub(super) struct Survey<'a> {
    pub machine: &'a Machine,
    pub need: &'a Need,
    /// The row of the task, or of the one that comes nearest.
    pub row: &'static TaskRow,
    pub seen: Vec<Seen<'a>>,
}

/// Plans. `models` are those at hand (`here`), and those that could be pulled.
pub fn plan(machine: &Machine, models: &[Model], need: &Need) -> Plan {
    let asked = need.task.row();
    let missing = asked.missing.map(|(what, _)| what);
    let next = asked.missing.map_or(Some(need.task), |(_, next)| next);
    let Some(next) = next.map(Task::row) else { return advice::nothing(need, missing) };
    let kind = kind(models, need, next);
    let is_long = need.ctx.is_some_and(|c| c >= LONG_TOKENS);
    let talks = matches!(next.task, Task::Any | Task::Chat);
    let row = if is_long && talks { Task::Long.row() } else { next };
    let found = |model| consider(machine, model, need, row, kind);
    let seen = models.iter().map(|model| Seen { model, found: found(model) }).collect();
    let survey = Survey { machine, need, row, seen };
    let is_named = |s: &Seen<'_>| need.named.is_empty() || need.named.contains(&s.model.name);
    let best = |which: &dyn Fn(&Seen<'_>) -> bool| {
        let found = survey.seen.iter().filter(|s| which(s));
        found.filter_map(|s| s.found.as_ref().ok()).max_by(|a, b| rank(a, row, b))
    };
    let (verdict, chosen) = [
        (Verdict::Yes, best(&|s| s.model.here && is_named(s))),
        (Verdict::Instead, best(&|s| s.model.here)),
        (Verdict::Pull, best(&|s| !s.model.here)),
    ]
    .into_iter()
    .find_map(|(verdict, found)| Some((verdict, Some(found?.clone()))))
    .unwrap_or((Verdict::No, None));
    advice::advise(&survey, verdict, chosen, missing)
}

/// What a model must be able to do: the task says it, else the first model that was named.
fn kind(models: &[Model], need: &Need, row: &TaskRow) -> Option<Ability> {
    let named = || models.iter().find(|m| need.named.contains(&m.name));
    let kinds = [Ability::Chat, Ability::Text, Ability::Embed, Ability::Rerank];
    row.ability.or_else(|| kinds.into_iter().find(|&kind| named().is_some_and(|m| m.can(kind))))
}

/// Whether a is worse than b: pace first, then what a model knows, by its bytes; without pace, who is nearer.
pub(super) fn rank(a: &Choice, row: &TaskRow, b: &Choice) -> std::cmp::Ordering {
    let key = |c: &Choice| match c.keeps_pace {
        true => (1.0f64, c.files as f64),
        false => (0.0, nearness(c, row)),
    };
    let ((pace_a, a), (pace_b, b)) = (key(a), key(b));
    pace_a.total_cmp(&pace_b).then(a.total_cmp(&b))
}

/// The part of the task's pace that it reaches, at most 1.
fn nearness(choice: &Choice, row: &TaskRow) -> f64 {
    let decode = choice.speed.decode_tok_s.filter(|_| row.least_tok_s > 0.0);
    let decode = decode.map_or(1.0, |rate| rate / row.least_tok_s);
    decode.min(row.most_first_s / choice.speed.first_s).min(1.0)
}

fn consider(
    machine: &Machine,
    model: &Model,
    need: &Need,
    row: &'static TaskRow,
    kind: Option<Ability>,
) -> Result<Choice, Unfit> {
    if let Some(ability) = kind.filter(|&a| !model.can(a)) {
        let why = match ability {
            Ability::Text => "it writes no text",
            Ability::Chat => "it has no chat template",
            Ability::Tools => "its chat template has no place for tools",
            Ability::Embed => "it gives no vectors",
            Ability::Rerank => "it ranks nothing",
        };
        return Err(Unfit { why: why.to_owned(), memory: false });
    }
    let room = machine.room();
    let Setting { kv, context } = settle(model, room, need, row)?;
    let left = room - model.fixed();
    let full_streams = memory::full_streams(need.users, left, |n| model.cache(kv, context, n));
    let cache = model.cache(kv, context, full_streams);
    let length = row.usual.0.saturating_add(row.usual.1).min(context).max(1);
    let most = memory::most_streams(cache, |n| model.cache(kv, length, n));
    let streams = if cache == 0 { need.users } else { need.users.min(most.max(full_streams)) };
    let process = memory::process_bytes(model.vocab);
    let speed = speed(&Pace::new(machine, model, kv), row.usual, context, streams);
    let mut choice = Choice {
        model: model.name.clone(),
        here: model.here,
        files: model.files,
        role: role(model, need, row),
        context,
        kv: kv.format.clone(),
        full_streams,
        streams,
        memory: Parts {
            weights: model.weights,
            cache,
            buffers: model.buffers,
            process,
            needed: model.fixed() + cache,
            available: room,
            token: kv.token + kv.windows.iter().map(|w| w.1).sum::<u64>(),
        },
        speed,
        keeps_pace: false,
        commands: Vec::new(),
        strategy: Vec::new(),
    };
    choice.keeps_pace = nearness(&choice, row) >= 1.0;
    choice.commands = advice::commands(model, need, row, &choice);
    choice.strategy = advice::strategy(model, need, &choice);
    Ok(choice)
}

fn role(model: &Model, need: &Need, row: &TaskRow) -> Role {
    match () {
        () if !model.can(Ability::Text) => Role::Embeddings,
        () if row.task == Task::Batch || need.users >= BATCH_USERS => Role::BatchServer,
        () if row.task == Task::Long || need.ctx.is_some_and(|c| c >= LONG_TOKENS) => {
            Role::LongContext
        }
        () => Role::LocalLatency,
    }
}

/// A context and a format of the cache.
struct Setting<'a> {
    kv: &'a Kv,
    context: u32,
}

/// The first format of which the wanted context fits. A context that nobody asked for gives way, by halves as in
/// loading, down to a usual prompt and answer.
fn settle<'a>(
    model: &'a Model,
    room: u64,
    need: &Need,
    row: &TaskRow,
) -> Result<Setting<'a>, Unfit> {
    let unfit = |why| Err(Unfit { why, memory: true });
    let fixed = model.fixed();
    let Some(left) = room.checked_sub(fixed) else {
        let (weights, room) = (size(model.weights), size(room));
        let active = size(model.weight_reads(1.0) as u64);
        let experts = model.experts.map(|_| format!(", all experts; a token reads {active}"));
        let experts = experts.unwrap_or_default();
        return unfit(format!(
            "it needs {} ({weights} of weights{experts}) of {room}",
            size(fixed)
        ));
    };
    let most = model.context.min(model.buffers_for.unwrap_or(u32::MAX));
    let want = need.ctx.or(row.context).unwrap_or(most).min(most).max(1);
    let fits = |kv: &Kv, context| model.cache(kv, context, 1) <= left;
    // (What 4 bits cost a model is known when it is loaded: nobody has them unasked.)
    let coarse = |kv: &Kv| kv.format.contains('4');
    let mut plain = model.kv.iter().enumerate().filter(|(at, kv)| *at == 0 || !coarse(kv));
    if let Some((_, kv)) = plain.find(|(_, kv)| fits(kv, want)) {
        return Ok(Setting { kv, context: want });
    }
    let Some(kv) = model.kv.first() else { return unfit("it keeps nothing".to_owned()) };
    let cache = model.cache(kv, want, 1);
    let least = match row.task {
        Task::Any => model.block_tokens,
        _ => (row.usual.0 + row.usual.1).min(want),
    };
    let mut context = want;
    while !fits(kv, context) && context > least {
        context = (context / 2).max(least);
    }
    if need.ctx.is_some() || !fits(kv, context) {
        let needed = size(fixed.saturating_add(cache));
        let (longest, cache, room) = (longest(model, kv, left), size(cache), size(room));
        let coarse = model.kv.iter().find(|kv| coarse(kv) && fits(kv, want));
        let coarse = coarse.map(|kv| format!("; --kv {} would fit", kv.format)).unwrap_or_default();
        return unfit(format!(
            "a context of {want} needs {needed} ({cache} of cache) of {room}; {longest} tokens \
             fit{coarse}"
        ));
    }
    Ok(Setting { kv, context })
}

/// Longest context of one sequence whose cache fits.
fn longest(model: &Model, kv: &Kv, left: u64) -> u32 {
    let (mut least, mut fails) = (0, model.context.div_ceil(model.block_tokens) + 1);
    while fails - least > 1 {
        let blocks = least + (fails - least) / 2;
        let fits = model.cache(kv, blocks * model.block_tokens, 1) <= left;
        if fits { least = blocks } else { fails = blocks }
    }
    (least * model.block_tokens).min(model.context)
}
