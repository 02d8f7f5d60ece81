//! The chat on a terminal: history, Ctrl-C stops the answer and not the program.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::{Value, json};
use tokenmill_engine::start::Served;

use crate::answer::{encode, generate, request, show};
use crate::args::Run;
use crate::failure::{Failure, tell};
use crate::image;
use crate::loader::named;

const HELP: &str = "/image FILE shows an image, /clear forgets the conversation, /quit (or Ctrl-D) leaves, \
     Ctrl-C stops an answer";

/// Talks until the user leaves.
pub fn chat(args: &Run, served: &Served, stop: &AtomicBool) -> Result<(), Failure> {
    let mut editor =
        DefaultEditor::new().map_err(|e| Failure::new("cannot use this terminal", e))?;
    let history = crate::store::history_file();
    if let Some(file) = &history {
        // A missing or unreadable history is an empty one.
        let _ = editor.load_history(file);
    }
    let name = named(&args.model, None).listed.id;
    tell!("{name} on {} · {HELP}", served.caps.name);
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
            "/help" | "/?" => tell!("{HELP}"),
            "/clear" => messages = beginning(args),
            command if shown(command).is_some() => {
                let file = Path::new(shown(command).unwrap_or_default());
                let seen = image::read(file).and_then(|_| image::seen_by(served, &args.model));
                seen.unwrap_or_else(|failure| tell!("{failure}"));
            }
            other if is_command(other) => tell!("unknown command {other}; {HELP}"),
            text => {
                let _ = editor.add_history_entry(text);
                messages.push(json!({"role": "user", "content": text}));
                if let Err(failure) = answer(args, served, &mut messages, stop) {
                    messages.pop();
                    match failure {
                        Failure::Closed => return Err(failure),
                        told => tell!("{told}"),
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

/// The file that is to be shown.
fn shown(line: &str) -> Option<&str> {
    let file = line.strip_prefix("/image")?;
    (file.is_empty() || file.starts_with(char::is_whitespace)).then(|| file.trim())
}

/// One word behind a slash; a path has more slashes.
fn is_command(line: &str) -> bool {
    line.strip_prefix('/').is_some_and(|word| word.chars().all(char::is_alphanumeric))
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
    stop.store(false, Ordering::Relaxed);
    let (tokens, kept) = fitting(args, served, messages)?;
    let longest = served.engine.longest();
    let left = longest.saturating_sub(tokens.len() as u32).max(1);
    let mut request = request(&args.sampling, served, tokens)?;
    request.max_tokens = request.max_tokens.map(|most| most.min(left));
    let answer = generate(served, request, stop, show);
    stop.store(false, Ordering::Relaxed);
    let answer = answer?;
    show("\n")?;
    tell!("{}", answer.speed_line(started));
    *messages = kept;
    match answer.text.is_empty() && answer.is_stopped() {
        // Ctrl-C before the first word: the question is taken back.
        true => drop(messages.pop()),
        // What was said before Ctrl-C was said.
        false => messages.push(json!({"role": "assistant", "content": answer.text})),
    }
    Ok(())
}

/// The conversation as tokens, without its oldest questions where all do not fit the context, and
/// what is left of it.
fn fitting(
    args: &Run,
    served: &Served,
    messages: &[Value],
) -> Result<(Vec<u32>, Vec<Value>), Failure> {
    let longest = served.engine.longest() as usize;
    // Room for an answer; where something must go, more of it, for the next ones.
    let wanted = args.sampling.max_tokens.map_or(longest / 8, |most| most as usize);
    let room = wanted.clamp(1, (longest / 4).max(1));
    let mut kept = messages.to_vec();
    let mut tokens = encode(served, &kept)?;
    if tokens.len() + room <= longest {
        return Ok((tokens, kept));
    }
    let mut dropped = 0;
    while tokens.len() + room.max(longest / 4) > longest && drop_oldest(&mut kept) {
        dropped += 1;
        tokens = encode(served, &kept)?;
    }
    if dropped > 0 && tokens.len() < longest {
        tell!(
            "note: the context of {longest} tokens is full, so the oldest questions and answers \
             are forgotten: {dropped} (/clear forgets all)"
        );
    }
    Ok((tokens, kept))
}

/// Drops the oldest question and what was answered; false if there is none but the last.
fn drop_oldest(messages: &mut Vec<Value>) -> bool {
    let role = |message: &Value, name: &str| message.get("role").is_some_and(|r| r == name);
    let mut questions =
        messages.iter().enumerate().filter(|(_, m)| role(m, "user")).map(|(at, _)| at);
    let (Some(first), Some(next)) = (questions.next(), questions.next()) else { return false };
    messages.drain(first..next);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_shown_by_its_name() {
        for (line, file) in [
            ("/image a b.png", Some("a b.png")),
            ("/image", Some("")),
            ("/images", None),
            ("image a", None),
        ] {
            assert_eq!(shown(line), file, "{line}");
        }
    }

    #[test]
    fn the_oldest_question_goes_with_its_answer() {
        let message = |(role, content): (&str, &str)| json!({"role": role, "content": content});
        let all = [("system", "s"), ("user", "1"), ("assistant", "a"), ("user", "2")];
        let mut messages: Vec<Value> = all.map(message).to_vec();
        assert!(drop_oldest(&mut messages));
        assert_eq!(messages, [("system", "s"), ("user", "2")].map(message));
        assert!(!drop_oldest(&mut messages), "the last question stays");
        assert_eq!(messages.len(), 2);
    }
}
