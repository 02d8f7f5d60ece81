//! A conversation with tools, and how each dialect writes it.

use serde_json::{Map, Value, json};

/// Which endpoint is driven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// `/v1/completions`: the whole conversation as one text, without tools.
    Completions,
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/responses`.
    Responses,
    /// `/v1/messages`.
    Messages,
    /// `/api/chat`.
    Ollama,
}

/// What a model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// JSON Schema of its arguments.
    pub parameters: Value,
}

/// A call.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Call {
    /// Ties the result to it.
    pub id: String,
    /// Of the tool.
    pub name: String,
    /// A JSON object.
    pub arguments: String,
}

impl Call {
    /// The arguments, if they are whole.
    pub(crate) fn object(&self) -> Option<Map<String, Value>> {
        serde_json::from_str(&self.arguments).ok()
    }
}

/// What a call gave.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolResult {
    /// Of the call.
    pub id: String,
    /// Of the tool.
    pub name: String,
    /// Text.
    pub content: String,
}

/// A piece of a conversation's past.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    /// What was asked.
    User(String),
    /// What was answered.
    Assistant {
        /// Text; may be empty.
        text: String,
        /// Calls.
        calls: Vec<Call>,
    },
    /// What the calls of the answer before gave.
    Results(Vec<ToolResult>),
}

impl Said {
    /// An answer without calls.
    pub fn answer(text: String) -> Said {
        Said::Assistant { text, calls: Vec::new() }
    }
}

/// What is asked.
#[derive(Debug, Clone, Copy, Default)]
pub struct Request<'a> {
    /// System prompt; may be empty.
    pub system: &'a str,
    /// What may be called.
    pub tools: &'a [Tool],
    /// The conversation so far.
    pub said: &'a [Said],
    /// Most tokens of the answer.
    pub max_tokens: u32,
    /// Asks for all of them, where the dialect can: in Completions and Chat.
    pub ignore_eos: bool,
    /// Whether the small model is asked.
    pub small: bool,
    /// The name of the conversation's cached prompt, where the dialect has one: in Responses.
    pub cache_key: &'a str,
}

impl Api {
    /// Where it is.
    pub fn path(self) -> &'static str {
        match self {
            Api::Completions => "/v1/completions",
            Api::Chat => "/v1/chat/completions",
            Api::Responses => "/v1/responses",
            Api::Messages => "/v1/messages",
            Api::Ollama => "/api/chat",
        }
    }

    /// The request as a body.
    pub fn body(self, model: &str, request: &Request<'_>) -> Value {
        match self {
            Api::Completions => completions(model, request),
            Api::Chat => chat(model, request),
            Api::Responses => responses(model, request),
            Api::Messages => messages(model, request),
            Api::Ollama => ollama(model, request),
        }
    }
}

fn completions(model: &str, request: &Request<'_>) -> Value {
    let mut prompt = request.system.to_owned();
    for said in request.said {
        match said {
            Said::User(text) | Said::Assistant { text, .. } => prompt += text,
            Said::Results(results) => results.iter().for_each(|r| prompt += &r.content),
        }
    }
    let mut body = json!({"model": model, "prompt": prompt});
    openai(&mut body, request);
    body
}

fn chat(model: &str, request: &Request<'_>) -> Value {
    let mut body = json!({"model": model, "messages": turns(request, false)});
    offer(&mut body, request.tools, function);
    openai(&mut body, request);
    body
}

/// What Completions and Chat have in common.
fn openai(body: &mut Value, request: &Request<'_>) {
    body["max_tokens"] = json!(request.max_tokens);
    body["temperature"] = json!(0);
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    if request.ignore_eos {
        body["ignore_eos"] = json!(true);
    }
}

/// Adds tools, if there are any.
fn offer(body: &mut Value, tools: &[Tool], as_json: fn(&Tool) -> Value) {
    if !tools.is_empty() {
        body["tools"] = tools.iter().map(as_json).collect();
    }
}

/// A tool as Chat and Ollama have it.
pub(crate) fn function(tool: &Tool) -> Value {
    let Tool { name, description, parameters } = tool;
    let function = json!({"name": name, "description": description, "parameters": parameters});
    json!({"type": "function", "function": function})
}

/// Messages as Chat has them; Ollama's have arguments as objects and results with their tool's name.
fn turns(request: &Request<'_>, ollama: bool) -> Vec<Value> {
    let mut turns = Vec::new();
    if !request.system.is_empty() {
        turns.push(json!({"role": "system", "content": request.system}));
    }
    for said in request.said {
        match said {
            Said::User(text) => turns.push(json!({"role": "user", "content": text})),
            Said::Assistant { text, calls } => {
                let mut turn = json!({"role": "assistant", "content": text});
                if !calls.is_empty() {
                    turn["tool_calls"] = calls.iter().map(|c| tool_call(c, ollama)).collect();
                }
                turns.push(turn);
            }
            Said::Results(results) => turns.extend(results.iter().map(|r| {
                let mut turn = json!({"role": "tool", "tool_call_id": r.id, "content": r.content});
                if ollama {
                    turn["tool_name"] = json!(r.name);
                }
                turn
            })),
        }
    }
    turns
}

fn tool_call(call: &Call, ollama: bool) -> Value {
    let arguments = match ollama {
        true => json!(call.object().unwrap_or_default()),
        false => json!(call.arguments),
    };
    let function = json!({"name": call.name, "arguments": arguments});
    json!({"id": call.id, "type": "function", "function": function})
}

fn responses(model: &str, request: &Request<'_>) -> Value {
    let mut input = Vec::new();
    let message = |role: &str, kind: &str, text: &str| json!({"type": "message", "role": role, "content": [{"type": kind, "text": text}]});
    for said in request.said {
        match said {
            Said::User(text) => input.push(message("user", "input_text", text)),
            Said::Assistant { text, calls } => {
                if !text.is_empty() {
                    input.push(message("assistant", "output_text", text));
                }
                input.extend(calls.iter().map(|Call { id, name, arguments }| {
                    json!({"type": "function_call", "call_id": id, "name": name, "arguments": arguments})
                }));
            }
            Said::Results(results) => input.extend(results.iter().map(
                |r| json!({"type": "function_call_output", "call_id": r.id, "output": r.content}),
            )),
        }
    }
    let mut body = json!({"model": model});
    if !request.system.is_empty() {
        body["instructions"] = json!(request.system);
    }
    body["input"] = json!(input);
    offer(&mut body, request.tools, |tool| {
        let Tool { name, description, parameters } = tool;
        json!({"type": "function", "name": name, "description": description,
            "parameters": parameters, "strict": false})
    });
    body["max_output_tokens"] = json!(request.max_tokens);
    body["temperature"] = json!(0);
    body["store"] = json!(false);
    if !request.cache_key.is_empty() {
        body["prompt_cache_key"] = json!(request.cache_key);
    }
    body["stream"] = json!(true);
    body
}

fn messages(model: &str, request: &Request<'_>) -> Value {
    let mut turns: Vec<Value> = Vec::new();
    for said in request.said {
        let (role, blocks) = blocks(said);
        // Roles alternate, and no message is empty.
        match turns.last_mut().filter(|turn| turn["role"] == role) {
            Some(turn) => {
                if let Some(content) = turn["content"].as_array_mut() {
                    content.extend(blocks);
                }
            }
            None if blocks.is_empty() => {}
            None => turns.push(json!({"role": role, "content": blocks})),
        }
    }
    let keep = json!({"type": "ephemeral"});
    // Agents mark the last two messages, as far as the cached prompt of the next request goes.
    for turn in turns.iter_mut().rev().take(2) {
        if let Some(block) = turn["content"].as_array_mut().and_then(|blocks| blocks.last_mut()) {
            block["cache_control"] = keep.clone();
        }
    }
    let mut body = json!({"model": model});
    if !request.system.is_empty() {
        body["system"] = json!([{"type": "text", "text": request.system, "cache_control": keep}]);
    }
    body["messages"] = json!(turns);
    offer(&mut body, request.tools, |tool| {
        let Tool { name, description, parameters } = tool;
        json!({"name": name, "description": description, "input_schema": parameters})
    });
    body["max_tokens"] = json!(request.max_tokens);
    body["temperature"] = json!(0);
    body["stream"] = json!(true);
    body
}

/// Whose message it stands in, and its blocks there.
fn blocks(said: &Said) -> (&'static str, Vec<Value>) {
    match said {
        Said::User(text) => ("user", vec![json!({"type": "text", "text": text})]),
        Said::Assistant { text, calls } => {
            let text = (!text.trim().is_empty()).then(|| json!({"type": "text", "text": text}));
            let calls = calls.iter().map(|call| {
                let input = json!(call.object().unwrap_or_default());
                json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input})
            });
            ("assistant", text.into_iter().chain(calls).collect())
        }
        Said::Results(results) => {
            let result = |r: &ToolResult| json!({"type": "tool_result", "tool_use_id": r.id, "content": r.content});
            ("user", results.iter().map(result).collect())
        }
    }
}

fn ollama(model: &str, request: &Request<'_>) -> Value {
    let mut body = json!({"model": model, "messages": turns(request, true)});
    offer(&mut body, request.tools, function);
    body["options"] = json!({"num_predict": request.max_tokens, "temperature": 0});
    body["stream"] = json!(true);
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str) -> Call {
        Call { id: id.into(), name: "look".into(), arguments: "{\"at\":1}".into() }
    }

    fn result(id: &str, content: &str) -> ToolResult {
        ToolResult { id: id.into(), name: "look".into(), content: content.into() }
    }

    fn body(api: Api, said: &[Said]) -> Value {
        let tools = [Tool {
            name: "look".into(),
            description: "d".into(),
            parameters: json!({"type": "object"}),
        }];
        let asked =
            Request { system: "s", tools: &tools, said, max_tokens: 9, ..Default::default() };
        api.body("m", &asked)
    }

    fn history() -> Vec<Said> {
        vec![
            Said::User("where".into()),
            Said::User("do it".into()),
            Said::Assistant { text: String::new(), calls: vec![call("a"), call("b")] },
            Said::Results(vec![result("a", "one"), result("b", "two")]),
            Said::answer("done".into()),
            Said::User("more".into()),
        ]
    }

    #[test]
    fn results_follow_their_calls_in_chat_and_ollama() {
        let chat = body(Api::Chat, &history());
        let turns = chat["messages"].as_array().expect("messages");
        let roles: Vec<&str> = turns.iter().filter_map(|t| t["role"].as_str()).collect();
        let expect = ["system", "user", "user", "assistant", "tool", "tool", "assistant", "user"];
        assert_eq!(roles, expect);
        assert_eq!(turns[3]["tool_calls"][1]["id"], turns[5]["tool_call_id"]);
        assert_eq!(turns[3]["tool_calls"][0]["function"]["arguments"], json!("{\"at\":1}"));
        assert!(turns[6].get("tool_calls").is_none() && turns[4].get("tool_name").is_none());
        assert_eq!(chat["tools"][0]["function"]["name"], "look");
        assert_eq!((&chat["max_tokens"], chat.get("ignore_eos")), (&json!(9), None));
        let ollama = body(Api::Ollama, &history());
        assert_eq!(ollama["messages"][3]["tool_calls"][0]["function"]["arguments"]["at"], 1);
        assert_eq!(ollama["messages"][5]["tool_name"], "look");
        assert_eq!(ollama["options"]["num_predict"], 9);
    }

    #[test]
    fn roles_alternate_in_messages() {
        let asked = body(Api::Messages, &history());
        let turns = asked["messages"].as_array().expect("messages");
        let kinds = |turn: &Value| -> Vec<String> {
            let blocks = turn["content"].as_array().expect("blocks");
            blocks.iter().map(|b| b["type"].as_str().unwrap_or_default().to_owned()).collect()
        };
        let expect = [
            ("user", vec!["text", "text"]),
            ("assistant", vec!["tool_use", "tool_use"]),
            ("user", vec!["tool_result", "tool_result"]),
            ("assistant", vec!["text"]),
            ("user", vec!["text"]),
        ];
        assert_eq!(turns.len(), expect.len(), "{turns:?}");
        for (turn, (role, blocks)) in turns.iter().zip(expect) {
            assert_eq!(
                (turn["role"].as_str(), kinds(turn)),
                (Some(role), blocks.iter().map(|b| b.to_string()).collect())
            );
        }
        assert_eq!(turns[1]["content"][0]["id"], turns[2]["content"][0]["tool_use_id"]);
        let marked = |i: usize| turns[i].to_string().matches("cache_control").count();
        assert_eq!((0..5).map(marked).collect::<Vec<_>>(), [0, 0, 0, 1, 1]);
        // An answer of nothing leaves no empty message, and its neighbours become one.
        let silent = [Said::User("a".into()), Said::answer(" ".into()), Said::User("b".into())];
        let turns = body(Api::Messages, &silent)["messages"].clone();
        assert_eq!(turns.as_array().map(Vec::len), Some(1), "{turns}");
    }

    #[test]
    fn items_of_responses_are_flat() {
        let asked = body(Api::Responses, &history());
        let items = asked["input"].as_array().expect("items");
        let kinds: Vec<&str> = items.iter().filter_map(|i| i["type"].as_str()).collect();
        let (call, output) = ("function_call", "function_call_output");
        assert_eq!(kinds, ["message", "message", call, call, output, output, "message", "message"]);
        assert_eq!(items[2]["call_id"], items[4]["call_id"]);
        assert_eq!(items[6]["content"][0]["type"], "output_text");
        assert_eq!(
            (&asked["instructions"], &asked["tools"][0]["name"]),
            (&json!("s"), &json!("look"))
        );
        assert_eq!(asked["max_output_tokens"], 9);
    }
}
