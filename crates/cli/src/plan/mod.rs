//! `plan`: which model this machine (or a described one) should run for a need, in which role, with what memory and
//! speed, and why; of one model also the steps of its layers, timed.

pub mod args;
mod machine;
mod stock;

use std::io::Write as _;

use serde_json::{Value, json};
use tokenmill_backend::Device;
use tokenmill_engine::load::{LoadOptions, Lowered, fit_whole};
use tokenmill_engine::plan::{Fit, Scene, Timing, active_bytes, timings};
use tokenmill_engine::planner::choice::Choice;
use tokenmill_engine::planner::machine::Machine;
use tokenmill_engine::planner::model::{Ability, Kv, Model};
use tokenmill_engine::planner::page::page;
use tokenmill_engine::planner::{self, Need, Plan, Task, Verdict, estimate, memory};

use crate::failure::{Failure, size};
use crate::{devices, model};
use stock::Stock;

/// Contexts whose number of sequences is shown.
const CONTEXTS: [u32; 6] = [2048, 8192, 32_768, 65_536, 131_072, 262_144];

/// Runs the command. A named model that does not do it is a failure, after all is printed.
pub fn plan(args: &args::Plan) -> Result<(), Failure> {
    model::without_drafts(&args.machine)?;
    let device = devices::open(&args.machine)?;
    let machine = machine::machine(args, device.as_ref())?;
    let need = Need {
        task: task(args),
        users: args.slots,
        ctx: args.machine.ctx,
        named: args.models.clone(),
    };
    let mut stock = Stock::new(args, device.as_ref(), machine.room())?;
    let mut plan = planner::plan(&machine, &stock.models, &need);
    if plan.verdict != Verdict::Yes && !args.models.is_empty() {
        stock.add_all();
        plan = planner::plan(&machine, &stock.models, &need);
    }
    let chosen = plan.chosen.as_ref().map(|c| (c.model.clone(), c.context));
    if let Some((name, context)) = chosen {
        stock.describe_again(&name, context)?;
        plan = planner::plan(&machine, &stock.models, &need);
    }
    let one = One::of(args, &machine, device.as_ref(), &mut stock, &plan)?;
    if one.as_ref().is_some_and(|one| !one.timings.is_empty()) {
        plan = planner::plan(&machine, &stock.models, &need);
    }
    let text = match args.json {
        true => format!("{:#}\n", as_json(&machine, &plan, one.as_ref())),
        false => {
            let figures = one.as_ref().map(|one| one.figures(&plan)).unwrap_or_default();
            page(&machine, &plan, &figures)
        }
    };
    std::io::stdout().write_all(text.as_bytes()).map_err(Failure::output)?;
    refused(args, device.as_ref(), &stock, &plan)
}

fn task(args: &args::Plan) -> Task {
    match args.task {
        Some(task) => task,
        None if args.models.is_empty() => Task::Chat,
        None => Task::Any,
    }
}

/// A failure where models were named and none of them does it.
fn refused(
    args: &args::Plan,
    device: &dyn Device,
    stock: &Stock<'_>,
    plan: &Plan,
) -> Result<(), Failure> {
    let Some(name) = args.models.first().filter(|_| plan.verdict != Verdict::Yes) else {
        return Ok(());
    };
    if let Some(model) = stock.read(name)? {
        // As loading says it, with the command that helps.
        fit_whole(&model, device, &stock.options()).map_err(|e| Failure::load(name, e))?;
    }
    let why = plan.refused.iter().find(|r| r.model == *name).map(|r| r.why.clone());
    let why = why.unwrap_or_else(|| plan.reasons.first().cloned().unwrap_or_default());
    let failure = Failure::new(format!("{name} does not do it"), why);
    Err(match plan.chosen.as_ref().and_then(|c| c.commands.first()) {
        Some(command) => failure.fix(command.clone()),
        None => failure,
    })
}

/// What a server plans for.
#[derive(Debug, Clone, Copy)]
pub enum Asked<'a> {
    /// All models that can be pulled.
    All,
    /// One of these.
    Pulled(&'a str),
    /// One that is here.
    Here(&'a str),
}

/// What is planned for models, each alone, within so much memory. Nothing is fetched, measured or timed: speed is
/// by the ceilings that were kept, or assumed.
///
/// # Errors
/// [`Failure`] where a model that is here cannot be read.
pub fn beforehand(
    args: &args::Plan,
    device: &dyn Device,
    room_bytes: u64,
    asked: Asked<'_>,
) -> Result<Vec<Value>, Failure> {
    let mut machine = machine::machine(args, device)?;
    machine.available = Some(room_bytes);
    let mut models = planner::known();
    match asked {
        Asked::All => {}
        Asked::Pulled(name) => models.retain(|m| m.name == name || pulled_as(&m.name) == name),
        Asked::Here(name) => {
            let args = args::Plan { models: vec![name.to_owned()], ..args.clone() };
            models = Stock::new(&args, device, machine.room())?.models;
        }
    }
    let (users, ctx) = (args.slots, args.machine.ctx);
    let planned = models.iter().map(|model| {
        // What is to be had is planned as if it were here, for a chat if it can.
        let chats = !model.here && model.can(Ability::Chat);
        let task = if chats { Task::Chat } else { Task::Any };
        let need = Need { task, users, ctx, named: vec![model.name.clone()] };
        let plan = planner::plan(&machine, &[Model { here: true, ..model.clone() }], &need);
        let why = plan.refused.first().map(|refused| &refused.why);
        json!({
            "model": model.name,
            "pull": pulled_as(&model.name),
            "here": model.here,
            "files": model.files,
            "fits": plan.chosen.is_some(),
            "why": why,
            "context": plan.chosen.as_ref().map(|choice| choice.context),
            "kv": plan.chosen.as_ref().map(|choice| &choice.kv),
            "memory": plan.chosen.as_ref().map(|choice| choice.memory),
            "speed": plan.chosen.as_ref().map(|choice| &choice.speed),
            "keeps_pace": plan.chosen.as_ref().map(|choice| choice.keeps_pace),
            "reasons": plan.reasons,
            "warnings": plan.warnings,
            "available": room_bytes,
        })
    });
    Ok(planned.collect())
}

/// What a client of a server pulls such a model by.
fn pulled_as(name: &str) -> String {
    if name.contains('/') { format!("hf.co/{name}") } else { name.to_owned() }
}

fn as_json(machine: &Machine, plan: &Plan, one: Option<&One<'_>>) -> Value {
    let mut all = json!({"machine": machine});
    let parts = [json!(plan), one.map_or(json!({}), |one| one.json(machine, plan))];
    for part in parts {
        if let (Some(all), Value::Object(part)) = (all.as_object_mut(), part) {
            all.extend(part);
        }
    }
    all
}

/// What is told of a model that was named alone.
struct One<'a> {
    name: &'a str,
    device: String,
    lowered: Lowered,
    model: Model,
    timings: Vec<Timing>,
    /// How it would be loaded, where its weights are entries of code books and it fits.
    books: Option<Fit>,
}

impl<'a> One<'a> {
    /// Times its steps where it is for this machine and fits; the planner hears of it.
    fn of(
        args: &'a args::Plan,
        machine: &Machine,
        device: &dyn Device,
        stock: &mut Stock<'_>,
        plan: &Plan,
    ) -> Result<Option<Self>, Failure> {
        let [name] = &args.models[..] else { return Ok(None) };
        let Some(lowered) = stock.read(name)? else { return Ok(None) };
        let Some(at) = stock.models.iter().position(|m| m.name == *name) else { return Ok(None) };
        let chosen = plan.chosen.as_ref().filter(|c| c.model == *name);
        let mut timed = Vec::new();
        if let Some(choice) = chosen.filter(|_| !args.memory_only && args.described.is_none()) {
            let options = LoadOptions { context: Some(choice.context), ..stock.options() };
            let scenes = scenes(&lowered, choice, &options);
            let found = timings(&lowered, device, &options, &scenes);
            timed = found.map_err(|e| Failure::load(name, e))?;
            let times: Vec<(Scene, f64)> = timed.iter().map(|t| (t.scene, t.seconds)).collect();
            let model = &mut stock.models[at];
            if let Some(kv) = model.kv.iter().find(|kv| kv.format == choice.kv) {
                model.timed = Some(estimate::timed(machine, model, kv, &times));
            }
        }
        let model = stock.models[at].clone();
        let books = chosen.filter(|_| lowered.program.has_code_books()).and_then(|choice| {
            let options = LoadOptions { context: Some(choice.context), ..stock.options() };
            fit_whole(&lowered, device, &options).ok().map(|(_, fit)| fit)
        });
        let device = device.caps().name.clone();
        Ok(Some(Self { name, device, lowered, model, timings: timed, books }))
    }

    /// Streams that fit at lengths up to the model's.
    fn fitting(&self, plan: &Plan, room: u64) -> Vec<(u32, u32)> {
        let format = plan.chosen.as_ref().map(|c| c.kv.as_str());
        let kv = self.model.kv.iter().find(|kv| Some(kv.format.as_str()) == format);
        let Some(kv): Option<&Kv> = kv.or(self.model.kv.first()) else { return Vec::new() };
        let left = room.saturating_sub(self.model.fixed());
        let longest = self.model.context;
        let lengths = CONTEXTS.into_iter().filter(|c| *c < longest).chain([longest]);
        let most = |c| memory::most_streams(left, |n| self.model.cache(kv, c, n));
        lengths.map(|c| (c, most(c))).collect()
    }

    /// Its lines of the page.
    fn figures(&self, plan: &Plan) -> Vec<(String, String)> {
        let mut lines = Vec::new();
        if let Some(choice) = &plan.chosen {
            let fitting = self.fitting(plan, choice.memory.available);
            let shown: Vec<String> = fitting.iter().map(|(c, n)| format!("{n} x {c}")).collect();
            lines.push(("streams".to_owned(), shown.join(", ")));
        }
        if let Some(fit) = &self.books {
            let laid = if fit.wide_weights { "written out" } else { "as in the file" };
            let text = format!("{laid}, {} of weights (--weights)", size(fit.weight_bytes));
            lines.push(("code books".to_owned(), text));
        }
        for t in &self.timings {
            let ((gb, tops), rate) = (achieved(t), rate(t));
            let text = format!("{rate:.1} tok/s ({gb:.1} GB/s, {tops:.2} Top/s)");
            lines.push((step(t.scene), text));
        }
        lines
    }

    fn json(&self, machine: &Machine, plan: &Plan) -> Value {
        let ceilings = machine.ceilings();
        let limit_tops = ceilings.ops[self.model.arithmetic as usize] / 1e12;
        let timing = |t: &Timing| {
            let (gb_s, tops) = achieved(t);
            json!({
                "test": step(t.scene),
                "sequences": t.scene.sequences,
                "tokens": t.scene.tokens,
                "context": t.scene.context,
                "tok_s": rate(t),
                "gb_s": gb_s,
                "tops": tops,
                "limit_gb_s": ceilings.read / 1e9,
                "limit_tops": limit_tops,
            })
        };
        let (active, resident) = active_bytes(&self.lowered.program);
        let chosen = plan.chosen.as_ref().filter(|_| plan.verdict == Verdict::Yes);
        let memory = chosen.map(|c| {
            json!({
                "context": c.context,
                "slots": plan.need.users,
                "full_streams": c.full_streams,
                "weight_bytes": c.memory.weights,
                "cache_bytes": c.memory.cache,
                "buffer_bytes": c.memory.buffers,
                "process_bytes": c.memory.process,
                "needed_bytes": c.memory.needed,
                "token_bytes": c.memory.token,
            })
        });
        let streams = |&(context, n): &(u32, u32)| json!({"context": context, "streams": n});
        let fitting = self.fitting(plan, machine.room());
        json!({
            "model": self.name,
            "arch": self.lowered.spec.arch,
            "layers": self.lowered.spec.layers.len(),
            "device": self.device,
            "fits": memory.is_some(),
            "available_bytes": machine.room(),
            "fixed_bytes": self.model.fixed(),
            "memory": memory,
            "streams": fitting.iter().map(streams).collect::<Vec<_>>(),
            "active_bytes_per_token": active,
            "resident_weight_bytes": resident,
            "code_books": self.books.as_ref().map(|fit| {
                json!({"written_out": fit.wide_weights, "weight_bytes": fit.weight_bytes})
            }),
            "speed": self.timings.iter().map(timing).collect::<Vec<_>>(),
        })
    }
}

/// The steps that are of interest.
fn scenes(lowered: &Lowered, choice: &Choice, options: &LoadOptions) -> Vec<Scene> {
    let decode = |sequences, context| Scene { sequences, tokens: 1, context };
    let context = choice.context;
    let prompt = options.step_tokens.min(context);
    let mut scenes = vec![Scene { sequences: 1, tokens: prompt, context: 0 }];
    if lowered.program.vocab > 0 {
        scenes.push(decode(1, context.min(128) - 1));
        if choice.streams > 1 {
            scenes.push(decode(choice.streams, context.min(128) - 1));
        }
        if context > 1024 {
            scenes.push(decode(1, context - 1));
        }
    }
    scenes
}

/// Tokens a second.
fn rate(t: &Timing) -> f64 {
    f64::from(t.scene.sequences * t.scene.tokens) / t.seconds
}

/// GB/s and 10¹² operations a second.
fn achieved(t: &Timing) -> (f64, f64) {
    let bytes = t.cost.weight_bytes + t.cost.cache_bytes;
    (bytes / t.seconds / 1e9, t.cost.ops / t.seconds / 1e12)
}

/// Such as `pp512`, `tg x8`, `tg @4095`.
fn step(scene: Scene) -> String {
    match scene {
        Scene { sequences: 1, context: 0, tokens } => format!("pp{tokens}"),
        Scene { sequences: 1, context, .. } => format!("tg @{context}"),
        Scene { sequences, context, .. } => format!("tg @{context} x{sequences}"),
    }
}
