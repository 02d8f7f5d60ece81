//! Tools for models whose template has no place for them: offered in the instructions, in the form
//! that most families know (Hermes'), with earlier calls and results as text in the same form.

use serde_json::{Value, json};
use tokenmill_text::spelled;

use crate::conversation::{Content, Conversation, Message, Part, Role};

/// The row of formats that reads such calls.
pub const FORMAT: &str = "hermes";

/// The conversation with its tools as text: offered in the instructions, or to templates that take
/// none before the first words of who asks.
pub fn written(mut talk: Conversation, takes_system: bool) -> Conversation {
    if let Some(Value::Array(tools)) = talk.tools.shown() {
        match takes_system {
            true => instruct(&mut talk.messages, &offer(&tools)),
            false => begin(&mut talk.messages, &offer(&tools)),
        }
    }
    let mut messages: Vec<Message> = Vec::with_capacity(talk.messages.len());
    let mut results = false;
    for message in talk.messages {
        let is_result = message.role == Role::Tool;
        let message = match is_result {
            true => result(&message),
            false => called(message),
        };
        match messages.last_mut() {
            // Results of one answer are one message, as roles take turns.
            Some(last) if is_result && results => append(last, &message),
            _ => messages.push(message),
        }
        results = is_result;
    }
    Conversation { messages, ..talk }
}

fn offer(tools: &[Value]) -> String {
    let lines: Vec<String> = tools.iter().map(spelled).collect();
    format!(
        "You can call tools. These are on offer:\n<tools>\n{}\n</tools>\nTo call one, write its name \
         and its arguments as JSON, like this:\n<tool_call>\n{{\"name\": NAME, \"arguments\": \
         {{...}}}}\n</tool_call>\nWhat it finds comes between <tool_response> and </tool_response>.",
        lines.join("\n")
    )
}

fn instruct(messages: &mut Vec<Message>, text: &str) {
    let system = messages.iter_mut().find(|message| message.role == Role::System);
    match system.map(|message| &mut message.content) {
        Some(Content::Text(own)) => own.push_str(&format!("\n\n{text}")),
        Some(Content::Parts(parts)) => parts.push(Part::Text(text.to_owned())),
        None => messages.insert(0, Message::text(Role::System, text)),
    }
}

fn begin(messages: &mut [Message], text: &str) {
    let first = messages.iter_mut().find(|message| message.role == Role::User);
    match first.map(|message| &mut message.content) {
        Some(Content::Text(own)) => own.insert_str(0, &format!("{text}\n\n")),
        Some(Content::Parts(parts)) => parts.insert(0, Part::Text(text.to_owned())),
        None => {}
    }
}

/// A message with its calls as text.
fn called(mut message: Message) -> Message {
    let calls = std::mem::take(&mut message.calls);
    if calls.is_empty() {
        return message;
    }
    // (A message that calls is the model's own: it has no images.)
    let mut texts: Vec<String> = message.content.texts().map(str::to_owned).collect();
    texts.retain(|text| !text.is_empty());
    texts.extend(calls.iter().map(|call| {
        let call = json!({ "name": call.name, "arguments": call.arguments });
        format!("<tool_call>\n{}\n</tool_call>", spelled(&call))
    }));
    message.content = Content::Text(texts.join("\n"));
    message
}

fn result(message: &Message) -> Message {
    let texts: Vec<&str> = message.content.texts().collect();
    let text = format!("<tool_response>\n{}\n</tool_response>", texts.join("\n"));
    let images = message.content.images().cloned().map(Part::Image);
    let content = Content::of([Part::Text(text)].into_iter().chain(images).collect());
    Message { content, ..Message::text(Role::User, "") }
}

fn append(last: &mut Message, more: &Message) {
    match (&mut last.content, more.content.clone()) {
        (Content::Text(text), Content::Text(more)) => text.push_str(&format!("\n{more}")),
        (own, more) => {
            let begun = std::mem::replace(own, Content::Parts(Vec::new()));
            *own = Content::Parts([begun.into_parts(), more.into_parts()].concat());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::{Call, Offered, Tools};

    #[test]
    fn tools_calls_and_results_are_text() {
        let call = |name: &str| Call::of_text("x".into(), name.into(), r#"{"a":1}"#);
        let answer =
            Message { calls: vec![call("f"), call("g")], ..Message::text(Role::Assistant, "ok") };
        let tool = Offered::new("f".into(), None, json!({ "type": "object" }), false);
        let talk = Conversation {
            messages: vec![
                Message::text(Role::User, "q"),
                answer,
                Message::text(Role::Tool, "1"),
                Message::text(Role::Tool, "2"),
            ],
            tools: Tools { offered: vec![tool], ..Tools::default() },
            ..Conversation::default()
        };
        let first = &written(talk.clone(), false).values(false)[0];
        assert!(
            first["role"] == "user"
                && first["content"].as_str().is_some_and(|t| t.ends_with("\n\nq"))
        );
        let values = written(talk, true).values(false);
        let roles: Vec<&Value> = values.iter().map(|value| &value["role"]).collect();
        assert_eq!(roles, ["system", "user", "assistant", "user"]);
        let offered =
            r#"{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}"#;
        assert!(values[0]["content"].as_str().is_some_and(|text| text.contains(offered)));
        let calls = "ok\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n\
                     <tool_call>\n{\"name\": \"g\", \"arguments\": {\"a\": 1}}\n</tool_call>";
        assert_eq!(values[2]["content"], calls);
        let results = "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>";
        assert_eq!(values[3]["content"], results);
    }
}
