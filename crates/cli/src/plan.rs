//! `plan`: does a model fit, with what context and how many streams, how fast, and why.

use std::fmt::Write as _;
use std::io::Write as _;

use serde_json::{Value, json};
use tokenmill_backend::Device;
use tokenmill_engine::load::{LoadFailure, LoadOptions, Lowered, read};
use tokenmill_engine::plan::{Fit, Needs, Scene, Timing, active_bytes, fit, timings};
use tokenmill_ir::Limits;

use crate::args::Plan;
use crate::bench::arithmetic_of;
use crate::devices::{self, Level};
use crate::failure::{Failure, size};
use crate::model;

/// Contexts whose number of sequences is shown.
const CONTEXTS: [u32; 6] = [2048, 8192, 32_768, 65_536, 131_072, 262_144];

/// What the machine can do at most, measured now.
#[derive(Clone, Copy)]
struct Limit {
    /// Reads from memory; absent where it was not measured.
    bytes_per_s: Option<f64>,
    ops_per_s: f64,
}

/// Everything that is printed.
struct Report<'a> {
    args: &'a Plan,
    model: Lowered,
    needs: Needs,
    chosen: Result<(Limits, Fit), LoadFailure>,
    options: LoadOptions,
    device: String,
    limit: Option<Limit>,
    timings: Vec<Timing>,
}

/// Runs the command. A model that does not fit is a failure, after all is printed.
pub fn plan(args: &Plan) -> Result<(), Failure> {
    model::without_drafts(&args.machine)?;
    let path = model::locate(&args.model)?;
    let told = |e: LoadFailure| Failure::load(&args.model, e);
    let device = devices::open(&args.machine)?;
    let options = model::options(&args.machine, &*device, args.slots);
    let model = read(&path, options.kv).map_err(told)?;
    if let Some(asked) = args.machine.ctx {
        model::tell_of_context(asked, model.spec.context);
    }
    let chosen = fit(&model.spec, &model.program, device.as_ref(), &options);
    let context = chosen.as_ref().map_or(options.context, |(limits, _)| Some(limits.context));
    let of = LoadOptions { context, ..options.clone() };
    let needs = Needs::of(&model.spec, &model.program, device.as_ref(), &of);
    let needs = needs.map_err(|e| told(e.into()))?;
    let mut report = Report {
        args,
        model,
        needs,
        chosen,
        options,
        device: device.caps().name.clone(),
        limit: None,
        timings: Vec::new(),
    };
    report.measure(device.as_ref())?;
    let text = if args.json { format!("{:#}\n", report.json()) } else { report.text() };
    std::io::stdout().write_all(text.as_bytes()).map_err(Failure::output)?;
    report.chosen.map(drop).map_err(told)
}

impl Report<'_> {
    /// Times the steps that are of interest.
    fn measure(&mut self, device: &dyn Device) -> Result<(), Failure> {
        let Ok((limits, _)) = &self.chosen else { return Ok(()) };
        if self.args.memory_only {
            return Ok(());
        }
        let prompt = self.options.step_tokens.min(limits.context);
        let decode = |sequences, context| Scene { sequences, tokens: 1, context };
        let mut scenes = vec![Scene { sequences: 1, tokens: prompt, context: 0 }];
        if self.model.program.vocab > 0 {
            scenes.push(decode(1, limits.context.min(128) - 1));
            // As many as memory holds at that length.
            let fitting = self.needs.sequences(limits.context.min(128), self.options.memory_bytes);
            if self.args.slots.min(fitting) > 1 {
                scenes.push(decode(self.args.slots.min(fitting), limits.context.min(128) - 1));
            }
            if limits.context > 1024 {
                scenes.push(decode(1, limits.context - 1));
            }
        }
        let machine = &self.args.machine;
        let threads = devices::threads(machine);
        let read = devices::read_limit(threads, Level::Dram);
        let (_, arithmetic) = arithmetic_of(&self.model.program, machine.mode);
        self.limit = Some(Limit {
            bytes_per_s: read.map(|r| r.rate.best),
            ops_per_s: devices::op_limit(threads, arithmetic).rate.best,
        });
        let timed = timings(&self.model, device, &self.options, &scenes);
        self.timings = timed.map_err(|e| Failure::load(&self.args.model, e))?;
        Ok(())
    }

    fn text(&self) -> String {
        let mut out = String::new();
        let spec = &self.model.spec;
        let _ = writeln!(out, "{} · {} layers · {}", spec.arch, spec.layers.len(), self.device);
        let mut line = |name: &str, value: String| {
            let _ = writeln!(out, "{name:<13} {value}");
        };
        if let Ok((limits, fit)) = &self.chosen {
            line("weights", size(fit.weight_bytes));
            let per = fit.token_bytes;
            let (context, cache) = (limits.context, size(fit.cache_bytes));
            line("cache", format!("{cache}: {context} tokens a stream, {} a token", size(per)));
            if fit.streams < self.args.slots {
                let (slots, streams) = (self.args.slots, fit.streams);
                line(
                    "slots",
                    format!("{slots} share it: room for {streams} of that length at once"),
                );
            }
            line("buffers", size(fit.scratch_bytes));
            line("process", size(fit.process_bytes));
            let (needed, available) = (size(fit.needed_bytes()), size(fit.available_bytes));
            line("in all", format!("{needed} of {available}: it fits"));
        }
        let fitting = self.fitting();
        let shown = fitting.iter().map(|(context, n)| format!("{n} x {context}"));
        line("streams", shown.collect::<Vec<_>>().join(", "));
        let (active, resident) = active_bytes(&self.model.program);
        if active * 2 < resident {
            let (active, resident) = (size(active), size(resident));
            line(
                "experts",
                format!("a token reads {active} of {resident}; all must stay in memory"),
            );
        }
        for t in &self.timings {
            line(&name(t.scene), self.speed(t));
        }
        out
    }

    /// Tokens a second, and the limit that is nearest.
    fn speed(&self, t: &Timing) -> String {
        let rate = f64::from(t.scene.sequences * t.scene.tokens) / t.seconds;
        let Some(limit) = self.limit else { return format!("{rate:.1} tok/s") };
        let bytes = (t.cost.weight_bytes + t.cost.cache_bytes) / t.seconds;
        let ops = t.cost.ops / t.seconds;
        let memory = limit.bytes_per_s.map_or(0.0, |most| bytes / most);
        let arithmetic = ops / limit.ops_per_s;
        let why = if memory > arithmetic {
            format!("{:.1} GB/s, {:.0} % of what memory gives", bytes / 1e9, 100.0 * memory)
        } else {
            format!("{:.2} Top/s, {:.0} % of the arithmetic", ops / 1e12, 100.0 * arithmetic)
        };
        format!("{rate:.1} tok/s ({why})")
    }

    /// Streams that fit at lengths up to the model's.
    fn fitting(&self) -> Vec<(u32, u32)> {
        let longest = self.model.spec.context;
        let lengths = CONTEXTS.into_iter().filter(|c| *c < longest).chain([longest]);
        lengths.map(|c| (c, self.needs.sequences(c, self.options.memory_bytes))).collect()
    }

    fn json(&self) -> Value {
        let timing = |t: &Timing| {
            let rate = f64::from(t.scene.sequences * t.scene.tokens) / t.seconds;
            json!({
                "test": name(t.scene),
                "sequences": t.scene.sequences,
                "tokens": t.scene.tokens,
                "context": t.scene.context,
                "tok_s": rate,
                "gb_s": (t.cost.weight_bytes + t.cost.cache_bytes) / t.seconds / 1e9,
                "tops": t.cost.ops / t.seconds / 1e12,
                "limit_gb_s": self.limit.and_then(|l| l.bytes_per_s).map(|b| b / 1e9),
                "limit_tops": self.limit.map(|l| l.ops_per_s / 1e12),
            })
        };
        let (active, resident) = active_bytes(&self.model.program);
        let memory = self.chosen.as_ref().ok().map(|(limits, fit)| {
            json!({
                "context": limits.context,
                "slots": self.args.slots,
                "full_streams": fit.streams,
                "weight_bytes": fit.weight_bytes,
                "cache_bytes": fit.cache_bytes,
                "buffer_bytes": fit.scratch_bytes,
                "process_bytes": fit.process_bytes,
                "needed_bytes": fit.needed_bytes(),
                "token_bytes": fit.token_bytes,
            })
        });
        let streams = |&(context, n): &(u32, u32)| json!({"context": context, "streams": n});
        json!({
            "model": self.args.model,
            "arch": self.model.spec.arch,
            "layers": self.model.spec.layers.len(),
            "device": self.device,
            "fits": self.chosen.is_ok(),
            "available_bytes": self.options.memory_bytes,
            "fixed_bytes": self.needs.fixed_bytes(),
            "memory": memory,
            "streams": self.fitting().iter().map(streams).collect::<Vec<_>>(),
            "active_bytes_per_token": active,
            "resident_weight_bytes": resident,
            "speed": self.timings.iter().map(timing).collect::<Vec<_>>(),
        })
    }
}

/// Such as `pp512`, `tg x8`, `tg @4095`.
fn name(scene: Scene) -> String {
    match scene {
        Scene { sequences: 1, context: 0, tokens } => format!("pp{tokens}"),
        Scene { sequences: 1, context, .. } => format!("tg @{context}"),
        Scene { sequences, context, .. } => format!("tg @{context} x{sequences}"),
    }
}
