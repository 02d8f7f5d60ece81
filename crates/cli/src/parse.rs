//! `parse`: what a client gets of a text that a model wrote.

use std::io::Write;
use std::sync::Arc;

use serde_json::{Value, json};
use tokenmill_engine::load::{read, vocabulary_of};
use tokenmill_ir::KvFormat;
use tokenmill_output::{FORMATS, Format, Parser, Piece, Tool};

use crate::args::{Finish, Parse};
use crate::failure::Failure;
use crate::{input, model};

/// Runs the command.
pub fn parse(args: &Parse) -> Result<(), Failure> {
    let format = format(args)?;
    let tools = match &args.tools {
        Some(path) => {
            let told = path.display().to_string();
            offered(&input::file(path)?)
                .map_err(|why| Failure::new(format!("cannot use the tools in {told}"), why))?
        }
        None => Arc::default(),
    };
    let Some(text) = input::piped()? else {
        let detail = "it is read from the standard input: tokenmill parse ... < TEXT";
        return Err(Failure::new("no text to parse", detail));
    };
    let cut = args.finish == Finish::Length;
    let mut parser = Parser::new(format, tools, args.think_open);
    let mut pieces = Vec::new();
    for part in parts(&text, args.chunk.unwrap_or(usize::MAX)) {
        parser.push(part, &mut pieces);
    }
    parser.finish(cut, &mut pieces);
    let answer = answer(pieces, cut);
    writeln!(std::io::stdout(), "{answer}").map_err(Failure::output)
}

fn format(args: &Parse) -> Result<&'static Format, Failure> {
    let Some(name) = &args.format else {
        let name = args.model.as_deref().unwrap_or_default();
        return of_model(name);
    };
    Format::named(name).ok_or_else(|| {
        let rows: Vec<&str> = FORMATS.iter().map(|format| format.name).collect();
        let detail = format!("the rows are {}", rows.join(", "));
        Failure::new(format!("no row is called {name}"), detail)
    })
}

/// The row that the model's template means.
fn of_model(name: &str) -> Result<&'static Format, Failure> {
    let path = model::locate(name)?;
    let cannot = |e: &dyn std::fmt::Display| Failure::new(format!("no row for {name}"), e);
    let files = read(&path, KvFormat::Int16).map_err(|e| Failure::load(name, e))?.files;
    let found = vocabulary_of(&path, &files).map_err(|e| cannot(&e))?;
    let Some(found) = found else {
        return Err(cannot(&"its files have no tokenizer").fix("name one: --format ROW"));
    };
    let template = found.template.map_err(|e| cannot(&e).fix("name one: --format ROW"))?;
    Ok(Format::of_template(template.source()))
}

/// The tools of a list as requests have it.
fn offered(text: &str) -> Result<Arc<[Tool]>, String> {
    let list: Value = serde_json::from_str(text).map_err(|e| format!("it is no JSON: {e}"))?;
    let list = list.as_array().ok_or("it is no list of tools")?;
    let tool = |(at, tool): (usize, &Value)| {
        let function = tool.get("function").unwrap_or(tool);
        let name = function.get("name").and_then(Value::as_str);
        let name = name.ok_or_else(|| format!("tool {at} has no function.name"))?.to_owned();
        let parameters = function.get("parameters").cloned().unwrap_or_else(|| json!({}));
        Ok(Tool { name, parameters, input: None })
    };
    list.iter().enumerate().map(tool).collect()
}

/// The text as it comes in pieces of so many bytes; a character comes with its last byte.
fn parts(text: &str, bytes: usize) -> impl Iterator<Item = &str> {
    let (mut from, mut end) = (0, 0_usize);
    std::iter::from_fn(move || {
        if from == text.len() {
            return None;
        }
        let start = from;
        while from == start {
            end = end.saturating_add(bytes).min(text.len());
            from = (start..=end).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(start);
        }
        text.get(start..from)
    })
}

/// What a client has in the end.
fn answer(pieces: Vec<Piece>, cut: bool) -> Value {
    let (mut reasoning, mut content) = (String::new(), String::new());
    let (mut calls, mut call) = (Vec::new(), None);
    for piece in pieces {
        match piece {
            Piece::Text(text) => content.push_str(&text),
            Piece::Reasoning(text) => reasoning.push_str(&text),
            Piece::CallStart { name } => call = Some((name, String::new())),
            Piece::CallArguments(text) => {
                if let Some((_, arguments)) = &mut call {
                    arguments.push_str(&text);
                }
            }
            Piece::CallEnd => {
                let whole = call.take();
                calls.extend(
                    whole.map(|(name, arguments)| json!({ "name": name, "arguments": arguments })),
                );
            }
        }
    }
    let some = |text: String| if text.trim().is_empty() { Value::Null } else { Value::from(text) };
    let reason = match (cut, calls.is_empty()) {
        (true, _) => "length",
        (false, false) => "tool_calls",
        (false, true) => "stop",
    };
    json!({
        "reasoning": some(reasoning),
        "content": some(content),
        "tool_calls": calls,
        "finish_reason": reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_end_at_characters() {
        let text = "aé思🤔b";
        for bytes in [1, 2, 3, 5, 100, usize::MAX] {
            let parts: Vec<&str> = parts(text, bytes).collect();
            assert_eq!(parts.concat(), text, "{bytes}");
            assert!(parts.iter().all(|part| !part.is_empty()), "{bytes}: {parts:?}");
        }
        assert_eq!(parts(text, 1).count(), 5);
        assert_eq!(parts(text, 2).collect::<Vec<_>>(), ["a", "é", "思", "🤔", "b"]);
        assert_eq!(parts("", 3).count(), 0);
    }

    #[test]
    fn tools_are_read_or_refused() {
        let list = r#"[{"type": "function", "function": {"name": "f"}}, {"name": "g"}]"#;
        let tools = offered(list).unwrap();
        assert_eq!([&*tools[0].name, &*tools[1].name], ["f", "g"]);
        assert_eq!(offered("[{}]").unwrap_err(), "tool 0 has no function.name");
        assert_eq!(offered("{}").unwrap_err(), "it is no list of tools");
        assert!(offered("[").unwrap_err().starts_with("it is no JSON: "));
    }

    #[test]
    fn an_answer_is_one_object() {
        let pieces = vec![
            Piece::Text("a".to_owned()),
            Piece::CallStart { name: "f".to_owned() },
            Piece::CallArguments("{}".to_owned()),
            Piece::CallEnd,
            Piece::CallStart { name: "g".to_owned() },
        ];
        let calls = json!([{ "name": "f", "arguments": "{}" }]);
        let expect = json!({
            "reasoning": null, "content": "a", "tool_calls": calls, "finish_reason": "tool_calls"
        });
        assert_eq!(answer(pieces, false), expect);
        assert_eq!(answer(Vec::new(), true)["finish_reason"], "length");
        assert_eq!(answer(Vec::new(), false)["finish_reason"], "stop");
    }
}
