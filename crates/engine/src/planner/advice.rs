//! What is said beside a choice: commands, strategy, reasons, alternatives with their cost, warnings.

use super::choice::{Alternative, Choice, Plan, Refused, Role, Seen, Survey, Verdict, rank};
use super::estimate::{Pace, arithmetic, speed};
use super::factors::Instructions;
use super::model::{Ability, Model};
use super::need::{Need, Task, TaskRow};
use super::page::{rate, seconds, size};

/// Other models that are told of, and refused ones.
const OTHERS: usize = 2;
const REFUSED: usize = 4;
/// Context that is enough for most conversations.
const SHORT_TOKENS: u32 = 8192;
/// A larger model is worth a word when it has so many times the bytes.
const LARGER: f64 = 1.5;

/// A task of which this version does nothing.
pub fn nothing(need: &Need, missing: Option<&'static str>) -> Plan {
    let alternative = Alternative {
        what: "train elsewhere, merge, and serve the merged model".to_owned(),
        cost: "files of the merged model, GGUF or safetensors".to_owned(),
        why_not: "models with adapters are refused by name".to_owned(),
        command: Some("tokenmill serve MERGED_MODEL".to_owned()),
    };
    Plan {
        verdict: Verdict::No,
        need: need.clone(),
        missing,
        chosen: None,
        reasons: missing.into_iter().map(str::to_owned).collect(),
        alternatives: vec![alternative],
        warnings: Vec::new(),
        refused: Vec::new(),
    }
}

/// What to run, in order.
pub fn commands(model: &Model, need: &Need, row: &TaskRow, choice: &Choice) -> Vec<String> {
    let talks = matches!(row.task, Task::Any | Task::Chat | Task::Summaries | Task::App);
    let alone = talks && need.users == 1 && choice.role != Role::Embeddings;
    let name = &model.name;
    let mut line = match alone && need.task != Task::Browser {
        true => format!("tokenmill run {name}"),
        false => format!("tokenmill serve {name} --slots {}", need.users),
    };
    let shorter = row.context.is_some() && choice.context < model.context;
    if need.ctx.is_some() || shorter {
        line += &format!(" --ctx {}", choice.context);
    }
    if model.kv.first().is_some_and(|first| first.format != choice.kv) {
        line += &format!(" --kv {}", choice.kv);
    }
    if need.task == Task::Browser {
        line += " --allow-origin ORIGIN";
    }
    let pull = (!model.here).then(|| format!("tokenmill pull {name}"));
    pull.into_iter().chain([line]).collect()
}

/// How it is run.
pub fn strategy(model: &Model, need: &Need, choice: &Choice) -> Vec<String> {
    let mut lines = vec!["all weights in memory, every core on each step".to_owned()];
    match choice.role {
        Role::Embeddings => lines.push("texts of several requests share a step".to_owned()),
        Role::BatchServer => lines.push(format!(
            "continuous batching of {} streams; beginnings that prompts share are computed once",
            choice.streams
        )),
        Role::LongContext => lines.push(format!(
            "the prompt in steps of {}; a document that was read stays cached (--kv-dir: on disk)",
            model.step_tokens
        )),
        Role::LocalLatency => lines.push("guesses of next tokens (n-grams), where they pay".into()),
    }
    match need.task {
        Task::Code => lines.push("each turn computes only what is new of its prompt".to_owned()),
        Task::Extract => lines.push("answers held to the schema token by token".to_owned()),
        Task::App => {
            lines.push("the program and the model file beside it; no other service".to_owned());
        }
        Task::Browser => lines.push("the page asks a server over HTTP".to_owned()),
        _ => {}
    }
    lines
}

/// The plan with its words.
pub fn advise(
    survey: &Survey<'_>,
    verdict: Verdict,
    chosen: Option<Choice>,
    missing: Option<&'static str>,
) -> Plan {
    let mut reasons: Vec<String> = missing.into_iter().map(str::to_owned).collect();
    let mut warnings = Vec::new();
    if let Some(choice) = &chosen {
        reasons.extend(why(survey, verdict, choice));
        warnings.extend(care(survey, choice));
    } else {
        reasons.push("no model that is here, and none that is known to be had, does it".to_owned());
    }
    let refusal = |s: &Seen<'_>| {
        let why = s.found.as_ref().err()?.why.clone();
        s.model.here.then(|| Refused { model: s.model.name.clone(), why })
    };
    let mut refused: Vec<Refused> = survey.seen.iter().filter_map(refusal).collect();
    if refused.len() > REFUSED {
        let more = refused.split_off(REFUSED).len();
        refused.push(Refused { model: format!("{more} more"), why: "likewise".to_owned() });
    }
    Plan {
        verdict,
        need: survey.need.clone(),
        missing,
        reasons,
        alternatives: alternatives(survey, chosen.as_ref()),
        warnings,
        refused,
        chosen,
    }
}

fn model_of<'a>(survey: &Survey<'a>, choice: &Choice) -> Option<&'a Model> {
    survey.seen.iter().map(|s| s.model).find(|m| m.name == choice.model)
}

/// Why this choice.
fn why(survey: &Survey<'_>, verdict: Verdict, choice: &Choice) -> Vec<String> {
    let mut lines = Vec::new();
    let Survey { need, row, .. } = survey;
    for seen in survey.seen.iter().filter(|s| need.named.contains(&s.model.name)) {
        if let (Verdict::Instead | Verdict::Pull, Err(unfit)) = (verdict, &seen.found) {
            lines.push(format!("{}: no: {}", seen.model.name, unfit.why));
        }
    }
    let here = survey.seen.iter().filter(|s| s.model.here).count();
    match verdict {
        Verdict::Pull if here == 0 => lines.push("no model is here yet".to_owned()),
        Verdict::Pull if here == 1 => lines.push("the one model here does not do it".to_owned()),
        Verdict::Pull => lines.push(format!("none of the {here} models here does it")),
        _ => {}
    }
    let able = survey.seen.iter().filter(|s| s.model.here == choice.here && s.found.is_ok());
    let able = able.count();
    let place = if choice.here { "here" } else { "known to be had" };
    let pace = pace_of(row);
    if need.named != [choice.model.clone()] {
        lines.push(match (able, choice.keeps_pace) {
            (1, true) => format!("the only one {place} that can do it and fits; it keeps {pace}"),
            (1, false) => format!("the only one {place} that can do it and fits"),
            (_, true) => {
                format!("of {able} {place} that can do it and fit, the largest that keeps {pace}")
            }
            (_, false) => format!(
                "none of {able} {place} that can do it and fit keeps {pace}; this comes nearest"
            ),
        });
    }
    lines.push(of_role(survey, choice));
    lines.extend(of_speed(survey, choice));
    if let Some(model) = model_of(survey, choice)
        && let Some(first) = model.kv.first().filter(|first| first.format != choice.kv)
    {
        let cache = size(model.cache(first, choice.context, 1));
        lines.push(format!(
            "keys and values as {}: as {} they would take {cache}, which does not fit",
            choice.kv, first.format
        ));
    }
    lines
}

fn pace_of(row: &TaskRow) -> String {
    let first = format!("{} s to the first token", row.most_first_s);
    match row.least_tok_s > 0.0 {
        true => format!("{} tok/s a stream and {first}", row.least_tok_s),
        false => format!("{} s a text", row.most_first_s),
    }
}

/// Why this role.
fn of_role(survey: &Survey<'_>, choice: &Choice) -> String {
    let users = survey.need.users;
    let role = choice.role.name();
    match choice.role {
        Role::Embeddings => format!("{role}: texts are read once, nothing is generated"),
        Role::BatchServer => {
            let alone = decode_of(survey, choice, 1);
            let together = rate(choice.speed.all_tok_s.unwrap_or(0.0));
            format!(
                "{role}: {} streams share each read of the weights: {together} tok/s in all, one \
                 alone {}",
                choice.streams,
                rate(alone)
            )
        }
        Role::LongContext => format!(
            "{role}: {} tokens of context take {} beside {} of weights",
            choice.context,
            size(choice.memory.cache),
            size(choice.memory.weights)
        ),
        Role::LocalLatency if users == 1 => format!("{role}: one user, so a token's time counts"),
        Role::LocalLatency => format!("{role}: {users} users are too few to wait for each other"),
    }
}

fn decode_of(survey: &Survey<'_>, choice: &Choice, streams: u32) -> f64 {
    let Some(model) = model_of(survey, choice) else { return 0.0 };
    let Some(kv) = model.kv.iter().find(|kv| kv.format == choice.kv) else { return 0.0 };
    let pace = Pace::new(survey.machine, model, kv);
    let speed = speed(&pace, survey.row.usual, choice.context, streams);
    speed.decode_tok_s.unwrap_or(0.0)
}

/// What bounds its speed.
fn of_speed(survey: &Survey<'_>, choice: &Choice) -> Option<String> {
    let model = model_of(survey, choice)?;
    let ceilings = survey.machine.ceilings();
    Some(match choice.speed.bound {
        "reads" if choice.speed.decode_tok_s.is_some() => {
            let bytes = model.weight_reads(f64::from(choice.streams));
            format!(
                "a step reads {} of weights; memory gives {:.0} GB/s",
                size(bytes as u64),
                ceilings.read / 1e9
            )
        }
        _ => format!(
            "operations bound a step; the machine does {:.2} Top/s ({})",
            ceilings.ops[model.arithmetic as usize] / 1e12,
            arithmetic(model)
        ),
    })
}

/// What to know.
fn care(survey: &Survey<'_>, choice: &Choice) -> Vec<String> {
    let mut lines = Vec::new();
    let Survey { machine, need, row, .. } = survey;
    if !choice.keeps_pace {
        let first = seconds(choice.speed.first_s);
        let pace = match choice.speed.decode_tok_s {
            Some(decode) => format!("{} tok/s a stream, {first} to the first token", rate(decode)),
            None => format!("{first} a text"),
        };
        lines.push(format!("slow: {pace}; {} is comfortable", pace_of(row)));
    }
    let model = model_of(survey, choice);
    if let Some(model) = model {
        lines.extend(residency(model));
        let wanted = need.ctx.unwrap_or(choice.context);
        if wanted > model.context {
            lines.push(format!("the model's context is {}, {wanted} was asked for", model.context));
        }
        let planned = need.ctx.or(row.context).unwrap_or(model.context).min(model.context);
        if choice.context < planned {
            let short = choice.context;
            lines.push(format!("context {short}: of {planned} the cache does not fit"));
        }
    }
    if choice.full_streams < need.users && choice.role != Role::Embeddings {
        let (users, full, usual) = (need.users, choice.full_streams, choice.streams);
        lines.push(match usual < users {
            true => format!(
                "the cache holds {full} of {users} streams at full length, {usual} of usual \
                 length; others wait their turn"
            ),
            false => format!(
                "the cache holds {full} of {users} streams at full length at once, all of \
                 usual length"
            ),
        });
    }
    if choice.memory.needed > choice.memory.available / 10 * 9 {
        lines.push("little memory is left for anything else".to_owned());
    }
    if choice.kv.contains('4') {
        lines.push("4-bit keys or values: what they cost is measured when it loads".to_owned());
    }
    if machine.instructions == Instructions::Scalar {
        lines.push("no kernels for this processor: compiled loops, far slower".to_owned());
    }
    if machine.ceilings().assumed {
        lines.push("speed of memory or arithmetic is assumed, not measured".to_owned());
    }
    lines
}

/// All experts stay in memory, whatever a token reads.
fn residency(model: &Model) -> Option<String> {
    let experts = model.experts?;
    let active = model.weight_reads(1.0) as u64;
    let idle = model.weights.saturating_sub(active);
    Some(format!(
        "all {} experts a layer stay in memory: {}, of which a token reads {}; {} could lie on disk, \
         which is not in this version",
        experts.count,
        size(model.weights),
        size(active),
        size(idle)
    ))
}

/// What else there is, the nearest first.
fn alternatives(survey: &Survey<'_>, chosen: Option<&Choice>) -> Vec<Alternative> {
    let mut all = Vec::new();
    if let Some(choice) = chosen {
        all.extend(others(survey, choice));
        all.extend(smaller_cache(survey, choice));
        all.extend(shorter(survey, choice));
        all.extend(draft_model(survey, choice));
        all.extend(larger(survey, choice));
    }
    all.extend(gpus(survey, chosen));
    all.extend(from_disk(survey));
    if survey.machine.peers > 0 {
        all.push(not_yet(
            "a model split over several machines",
            &format!("{} more, a hop of the network each token", survey.machine.peers),
            "tokenmill serve on each, a model apiece, needs no split",
        ));
    }
    all
}

fn not_yet(what: &str, cost: &str, next: &str) -> Alternative {
    Alternative {
        what: what.to_owned(),
        cost: cost.to_owned(),
        why_not: format!("not in this version; {next}"),
        command: None,
    }
}

/// Other models at hand that do it.
fn others(survey: &Survey<'_>, choice: &Choice) -> Vec<Alternative> {
    let mut found: Vec<&Choice> = survey
        .seen
        .iter()
        .filter(|s| s.model.here && s.model.name != choice.model)
        .filter_map(|s| s.found.as_ref().ok())
        .collect();
    found.sort_by(|a, b| rank(b, survey.row, a));
    let told = found.into_iter().take(OTHERS).map(|other| Alternative {
        what: other.model.clone(),
        cost: cost(other),
        why_not: match (other.keeps_pace, other.files < choice.files) {
            (false, _) => format!("too slow for {}", survey.row.name),
            (true, true) => "smaller".to_owned(),
            (true, false) => "it was not named".to_owned(),
        },
        command: other.commands.last().cloned(),
    });
    told.collect()
}

/// Memory and speed in a few words.
fn cost(choice: &Choice) -> String {
    let Choice { memory, speed, .. } = choice;
    match speed.decode_tok_s {
        Some(decode) => format!("{}, {} tok/s a stream", size(memory.needed), rate(decode)),
        None => format!("{}, {} tok/s", size(memory.needed), rate(speed.prompt_tok_s)),
    }
}

/// The next format of keys and values, where the cache is what is short.
fn smaller_cache(survey: &Survey<'_>, choice: &Choice) -> Option<Alternative> {
    let short = choice.full_streams < survey.need.users || choice.role == Role::LongContext;
    let model = model_of(survey, choice).filter(|_| short)?;
    let mut formats = model.kv.iter().skip_while(|kv| kv.format != choice.kv);
    let (now, next) = (formats.next()?, formats.next()?);
    let of = |kv| size(model.cache(kv, choice.context, 1));
    let command = choice.commands.last()?.replace(&format!(" --kv {}", now.format), "");
    Some(Alternative {
        what: format!("--kv {}", next.format),
        cost: format!("a stream's cache takes {} instead of {}", of(next), of(now)),
        why_not: "it changes predictions a little; what 4 bits cost is measured at loading".into(),
        command: Some(format!("{command} --kv {}", next.format)),
    })
}

/// A shorter context, where nobody asked for the model's and most memory is for it.
fn shorter(survey: &Survey<'_>, choice: &Choice) -> Option<Alternative> {
    let wished = survey.need.ctx.or(survey.row.context).is_some();
    let short = choice.context.min(SHORT_TOKENS);
    if wished || choice.memory.cache <= choice.memory.weights || short == choice.context {
        return None;
    }
    let model = model_of(survey, choice)?;
    let kv = model.kv.iter().find(|kv| kv.format == choice.kv)?;
    let needed = model.fixed() + model.cache(kv, short, choice.full_streams);
    Some(Alternative {
        what: format!("--ctx {short}"),
        cost: format!("{} instead of {}", size(needed), size(choice.memory.needed)),
        why_not: "nobody asked for a shorter context than the model's".to_owned(),
        command: Some(format!("{} --ctx {short}", choice.commands.last()?)),
    })
}

/// A small model of the same vocabulary that could guess for it.
fn draft_model(survey: &Survey<'_>, choice: &Choice) -> Option<Alternative> {
    let model = model_of(survey, choice).filter(|_| choice.role == Role::LocalLatency)?;
    let small = |m: &&Model| {
        m.here
            && m.name != model.name
            && m.vocabulary.is_some()
            && m.vocabulary == model.vocabulary
            && m.can(Ability::Text)
            && m.weight_reads(1.0) * 5.0 <= model.weight_reads(1.0)
            && m.fixed() + choice.memory.needed <= choice.memory.available
    };
    let seen = survey.seen.iter().map(|s| s.model).filter(small);
    let draft = seen.max_by_key(|m| m.files)?;
    Some(Alternative {
        what: format!("--draft-model {}", draft.name),
        cost: format!("{} more; the same answers", size(draft.fixed())),
        why_not: "it pays only where its guesses are right: try it on your texts".to_owned(),
        command: Some(format!("{} --draft-model {}", choice.commands.last()?, draft.name)),
    })
}

/// A model to pull that would do better.
fn larger(survey: &Survey<'_>, choice: &Choice) -> Option<Alternative> {
    if !survey.need.named.is_empty() && choice.keeps_pace {
        return None;
    }
    let known = survey.seen.iter().filter(|s| !s.model.here && s.model.name != choice.model);
    let found = known.filter_map(|s| s.found.as_ref().ok()).filter(|c| c.keeps_pace);
    let best = found.max_by_key(|c| c.files)?;
    let larger = best.files as f64 >= LARGER * choice.files as f64;
    (!choice.keeps_pace || larger).then(|| Alternative {
        what: format!("{}, {} to fetch", best.model, size(best.files)),
        cost: cost(best),
        why_not: "it is not here".to_owned(),
        command: best.commands.first().cloned(),
    })
}

/// What its GPUs could do.
fn gpus(survey: &Survey<'_>, chosen: Option<&Choice>) -> Vec<Alternative> {
    let Some(gpu) = survey.machine.gpus.iter().max_by_key(|g| g.memory) else { return Vec::new() };
    let mut all = Vec::new();
    // The largest that fits whole, of those that can do the task.
    let whole = |s: &&Seen<'_>| {
        let cache = s.model.kv.first().map_or(0, |kv| {
            let context =
                survey.need.ctx.or(survey.row.context).unwrap_or(8192).min(s.model.context);
            s.model.cache(kv, context, 1)
        });
        let named = survey.need.named.is_empty() || survey.need.named.contains(&s.model.name);
        let able = s.found.as_ref().err().is_none_or(|unfit| unfit.memory);
        named && able && s.model.here && s.model.weights + s.model.buffers + cache <= gpu.room()
    };
    let fits = survey.seen.iter().filter(whole).map(|s| s.model).max_by_key(|m| m.files);
    if let Some(model) = fits {
        all.push(Alternative {
            what: format!("{} on the {}", model.name, gpu.name),
            cost: format!("{} of weights in {}", size(model.weights), size(gpu.memory)),
            why_not: "its kernels are new and no speed of theirs was measured: compare answers \
                      with the CPU's first"
                .to_owned(),
            command: Some(format!("tokenmill run {} --device cuda", model.name)),
        });
    }
    let larger = |s: &&Seen<'_>| {
        let named = survey.need.named.is_empty() || survey.need.named.contains(&s.model.name);
        named && s.model.here && s.model.weights > gpu.room()
    };
    let chosen = chosen.map(|c| c.model.as_str());
    let parted = survey.seen.iter().filter(larger).map(|s| s.model);
    if let Some(model) = parted.max_by_key(|m| (Some(m.name.as_str()) == chosen, m.files)) {
        let (weights, memory) = (size(model.weights), size(gpu.memory));
        all.push(not_yet(
            &format!("{} split between GPU and CPU", model.name),
            &format!("{weights} of weights, {memory} on the GPU"),
            "a GPU holds a model whole or not at all",
        ));
    }
    if survey.machine.gpus.len() > 1 {
        all.push(not_yet(
            &format!("a model split over {} GPUs", survey.machine.gpus.len()),
            "exchange between them in every layer",
            "one GPU is used: CUDA_VISIBLE_DEVICES says which",
        ));
    }
    all
}

/// Weights read from disk for every token, where something did not fit.
fn from_disk(survey: &Survey<'_>) -> Option<Alternative> {
    let named =
        |s: &&Seen<'_>| survey.need.named.is_empty() || survey.need.named.contains(&s.model.name);
    let unfit = |s: &&Seen<'_>| s.found.as_ref().err().is_some_and(|unfit| unfit.memory);
    let larger = survey.seen.iter().filter(|s| s.model.here).filter(named).filter(unfit);
    let model = larger.map(|s| s.model).max_by_key(|m| m.weights)?;
    if model.weights <= survey.machine.room() {
        return None;
    }
    let over = model.weights.saturating_sub(survey.machine.room()) as f64;
    let reads = model.weight_reads(1.0).min(over).max(1.0);
    let time = survey.machine.disk.as_ref().and_then(|disk| disk.read_gb_s);
    let time = time.map_or("a disk's speed bounds each token".to_owned(), |gb| {
        format!("about {} a token at {gb} GB/s of the disk", seconds(reads / (gb * 1e9)))
    });
    Some(not_yet(
        &format!("{} streamed from disk", model.name),
        &time,
        "a smaller model or fewer bits fit memory",
    ))
}
