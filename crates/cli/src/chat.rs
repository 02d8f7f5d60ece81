//! The chat on a terminal: history, Ctrl-C stops the answer and not the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::{Value, json};
use tokenmill_engine::start::Served;

use crate::args::Run;
use crate::failure::Failure;
use crate::run;

const HELP: &str =
    "/clear forgets the conversation, /quit (or Ctrl-D) leaves, Ctrl-C stops an answer";

/// Talks until the user leaves.
pub fn chat(args: &Run, served: &Served) -> Result<(), Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed))
        .map_err(|e| Failure::new("cannot watch for Ctrl-C", e))?;
    let mut editor =
        DefaultEditor::new().map_err(|e| Failure::new("cannot use this terminal", e))?;
    let history = crate::store::history_file();
    if let Some(file) = &history {
        // A missing or unreadable history is an empty one.
        let _ = editor.load_history(file);
    }
    eprintln!("{} on {} · {HELP}", args.model, served.caps.name);
    let mut messages = beginning(args);
    loop {
        let line = match editor.readline("> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => break,
            Err(e) => return Err(Failure::new("cannot read the line", e)),
        };
        match line.trim() {
            "" => continue,
            "/quit" | "/exit" | "/bye" => break,
            "/help" | "/?" => eprintln!("{HELP}"),
            "/clear" => messages = beginning(args),
            text => {
                let _ = editor.add_history_entry(text);
                messages.push(json!({"role": "user", "content": text}));
                if let Err(failure) = answer(args, served, &mut messages, &stop) {
                    messages.pop();
                    match failure {
                        Failure::Closed => return Err(failure),
                        told => eprintln!("{told}"),
                    }
                }
            }
        }
    }
    if let Some(file) = &history {
        let _ = editor.save_history(file);
    }
    Ok(())
}

fn beginning(args: &Run) -> Vec<Value> {
    args.system.iter().map(|text| json!({"role": "system", "content": text})).collect()
}

fn answer(
    args: &Run,
    served: &Served,
    messages: &mut Vec<Value>,
    stop: &AtomicBool,
) -> Result<(), Failure> {
    let started = Instant::now();
    let tokens = run::encode(served, messages)?;
    stop.store(false, Ordering::Relaxed);
    let request = run::request(&args.sampling, tokens);
    let answer = run::generate(served, request, stop, run::show)?;
    run::show("\n")?;
    eprintln!("{}", answer.speed_line(started));
    // What was said before Ctrl-C was said.
    messages.push(json!({"role": "assistant", "content": answer.text}));
    Ok(())
}
