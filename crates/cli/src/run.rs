//! `run`: one answer, or a chat.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};
use tokenmill_engine::constraint::{self, Constraint, Settings};
use tokenmill_engine::{Defaults, Request};
use tokenmill_text::Special;

use crate::answer::{encode, generate, request, show, tokenizer};
use crate::args::Run;
use crate::failure::{Failure, tell};
use crate::{chat, image, input, interrupt, model};

/// Runs the command.
pub fn run(args: &Run) -> Result<(), Failure> {
    let prompt = prompt(args)?;
    let constraint = constraint(args)?;
    let pictures: Vec<_> =
        args.image.iter().map(|path| image::read(path)).collect::<Result<_, _>>()?;
    let (_, defaults) = model::find(&args.model)?;
    let args = &with_defaults(args.clone(), &defaults);
    let mut served = model::start(&args.model, &args.machine, 1, 16)?;
    model::settle(defaults, &mut served);
    model::tell_unused(&args.model, &served);
    let eyes = match pictures.is_empty() {
        true => None,
        false => Some(image::eyes(&served, &args.model)?),
    };
    let stop = interrupt::watch()?;
    let Some(prompt) = prompt else { return chat::chat(args, &served, &stop) };
    let started = Instant::now();
    let messages = conversation(args.system.as_deref(), (&prompt, pictures.len()));
    let tokens = match args.raw {
        true => {
            let tokenizer = tokenizer(&served)?;
            let encoded = tokenizer.encode_prompt(&prompt, Special::Parse);
            encoded.map_err(|e| Failure::new("cannot read the prompt", e))?
        }
        false => encode(&served, &messages)?,
    };
    let (tokens, inputs) = image::shown(&served, eyes.as_ref(), tokens, &pictures)?;
    let held = constraint.map(|(what, path)| {
        let made = served.engine.grammar(&what, &Settings::default());
        made.map_err(|e| Failure::new(format!("cannot hold an answer to {}", path.display()), e))
    });
    let request = request(&args.sampling, &served, tokens)?;
    let request = Request { held: held.transpose()?, inputs, ..request };
    let answer = generate(&served, request, &stop, |text| match args.json {
        true => Ok(()),
        false => show(text),
    })?;
    if args.json {
        let line = answer.json(&args.model, started);
        writeln!(std::io::stdout(), "{line}").map_err(Failure::output)?;
    } else {
        show("\n")?;
        tell!("{}", answer.speed_line(started));
    }
    if answer.is_stopped() { Err(Failure::Interrupted) } else { Ok(()) }
}

/// What the model is asked: the prompt, and what is piped in after it; `None` for a chat.
fn prompt(args: &Run) -> Result<Option<String>, Failure> {
    let model = &args.model;
    if args.prompt.is_none() && model.contains(char::is_whitespace) && !Path::new(model).exists() {
        return Err(Failure::new(format!("no model is called {model:?}"), "names have no spaces")
            .fix(format!("tokenmill run smollm2 {model:?}")));
    }
    let piped = input::piped()?;
    let prompt = input::joined(args.prompt.as_deref(), piped.as_deref());
    if prompt.is_some() {
        return Ok(prompt);
    }
    let fix = format!("tokenmill run {model} \"your question\"");
    if args.prompt.is_some() || piped.is_some() {
        return Err(Failure::new("there is no prompt", "what was given is empty").fix(fix));
    }
    let (schema, grammar) = (args.schema.is_some(), args.grammar.is_some());
    for (flag, name) in [
        (args.raw, "--raw"),
        (args.json, "--json"),
        (schema, "--schema"),
        (grammar, "--grammar"),
        (!args.image.is_empty(), "--image"),
    ] {
        if flag {
            return Err(Failure::new("there is no prompt", format!("{name} needs one")).fix(fix));
        }
    }
    Ok(None)
}

/// What the answer must hold, and the file that says so.
fn constraint(args: &Run) -> Result<Option<(Constraint, &Path)>, Failure> {
    let Some(path) = args.schema.as_deref().or(args.grammar.as_deref()) else { return Ok(None) };
    let failed =
        |e: &dyn std::fmt::Display| Failure::new(format!("cannot read {}", path.display()), e);
    let text = std::fs::read_to_string(path).map_err(|e| failed(&e))?;
    let what = match args.schema.is_some() {
        true => Constraint::JsonSchema(serde_json::from_str(&text).map_err(|e| failed(&e))?),
        false => constraint::grammar(text),
    };
    Ok(Some((what, path)))
}

/// The command line, and where it is silent what the model's packager says.
fn with_defaults(mut args: Run, defaults: &Defaults) -> Run {
    args.system = args.system.or_else(|| defaults.system.clone());
    args.machine.ctx = args.machine.ctx.or(defaults.context);
    args
}

/// A system message, if any, and one question about so many images.
fn conversation(system: Option<&str>, (prompt, images): (&str, usize)) -> Vec<Value> {
    let system = system.map(|text| json!({"role": "system", "content": text}));
    system.into_iter().chain([image::question(images, prompt)]).collect()
}
