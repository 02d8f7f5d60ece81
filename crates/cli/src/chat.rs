//! The chat on a terminal: history, Ctrl-C stops the answer and not the program.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::{Value, json};
use tokenmill_engine::start::Served;
use tokenmill_engine::{Eyes, Inputs};
use tokenmill_media::Picture;

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
    let eyes = image::eyes(served, &args.model).ok();
    let (mut messages, mut pictures) = (beginning(args), Vec::new());
    loop {
        let line = match editor.readline("> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => break,
            Err(ReadlineError::Io(e)) if e.kind() == std::io::ErrorKind::InvalidData => {
                tell!("that line is not UTF-8; nothing was asked");
                continue;
            }
            Err(e) => return Err(Failure::new("cannot read the line", e)),
        };
        match line.trim() {
            "" => continue,
            "/quit" | "/exit" | "/bye" => break,
            "/help" | "/?" => tell!("{HELP}"),
            "/clear" => (messages, pictures) = (beginning(args), Vec::new()),
            command if shown(command).is_some() => {
                let file = Path::new(shown(command).unwrap_or_default());
                let seen = image::eyes(served, &args.model).and_then(|_| image::read(file));
                match seen {
                    Ok(picture) => pictures.push(picture),
                    Err(failure) => tell!("{failure}"),
                }
            }
            other if is_command(other) => tell!("unknown command {other}; {HELP}"),
            text => {
                let _ = editor.add_history_entry(text);
                let new = pictures.len() - messages.iter().map(images_of).sum::<usize>();
                messages.push(image::question(new, text));
                let talk = (&mut messages, &mut pictures);
                if let Err(failure) = answer(args, (served, eyes.as_ref()), talk, stop) {
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

/// Images that a message shows.
fn images_of(message: &Value) -> usize {
    let parts = message.get("content").and_then(Value::as_array).into_iter().flatten();
    parts.filter(|part| part.get("type").is_some_and(|kind| kind == "image")).count()
}

fn answer(
    args: &Run,
    (served, eyes): (&Served, Option<&Eyes>),
    (messages, pictures): (&mut Vec<Value>, &mut Vec<Picture>),
    stop: &AtomicBool,
) -> Result<(), Failure> {
    let started = Instant::now();
    stop.store(false, Ordering::Relaxed);
    let shown = |messages: &[Value]| {
        // (What goes first was said first: the images left are the last ones.)
        let images = messages.iter().map(images_of).sum::<usize>();
        let pictures = &pictures[pictures.len().saturating_sub(images)..];
        image::shown(served, eyes, encode(served, messages)?, pictures)
    };
    let ((tokens, inputs), kept) = fitting(args, served, messages, &shown)?;
    let longest = served.engine.longest();
    let left = longest.saturating_sub(tokens.len() as u32).max(1);
    let mut request = request(&args.sampling, served, tokens)?;
    request.inputs = inputs;
    request.max_tokens = request.max_tokens.map(|most| most.min(left));
    let answer = generate(served, request, stop, show);
    stop.store(false, Ordering::Relaxed);
    let answer = answer?;
    show("\n")?;
    tell!("{}", answer.speed_line(started));
    *messages = kept;
    let images = messages.iter().map(images_of).sum::<usize>();
    pictures.drain(..pictures.len().saturating_sub(images));
    match answer.text.is_empty() && answer.is_stopped() {
        // Ctrl-C before the first word: the question is taken back.
        true => drop(messages.pop()),
        // What was said before Ctrl-C was said.
        false => messages.push(json!({"role": "assistant", "content": answer.text})),
    }
    Ok(())
}

/// A prompt, and what it has beside its tokens.
type Prompt = (Vec<u32>, Option<Arc<Inputs>>);

/// The conversation as tokens, without its oldest questions where all do not fit the context, and
/// what is left of it.
fn fitting(
    args: &Run,
    served: &Served,
    messages: &[Value],
    shown: &dyn Fn(&[Value]) -> Result<Prompt, Failure>,
) -> Result<(Prompt, Vec<Value>), Failure> {
    let longest = served.engine.longest() as usize;
    // Room for an answer; where something must go, more of it, for the next ones.
    let wanted = args.sampling.max_tokens.map_or(longest / 8, |most| most as usize);
    let room = wanted.clamp(1, (longest / 4).max(1));
    let mut kept = messages.to_vec();
    let mut prompt = shown(&kept)?;
    if prompt.0.len() + room <= longest {
        return Ok((prompt, kept));
    }
    let mut dropped = 0;
    while prompt.0.len() + room.max(longest / 4) > longest && drop_oldest(&mut kept) {
        dropped += 1;
        prompt = shown(&kept)?;
    }
    if dropped > 0 && prompt.0.len() < longest {
        tell!(
            "note: the context of {longest} tokens is full, so the oldest questions and answers \
             are forgotten: {dropped} (/clear forgets all)"
        );
    }
    Ok((prompt, kept))
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
