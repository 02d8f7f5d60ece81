//! The table of routes as OpenAPI 3.1: what a client's generator, and a test that asks anything, need.
//! Members of requests are those of the tables in docs, which tests hold against the code; their kinds of
//! values are those that readers take.

use std::sync::OnceLock;

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use crate::routes::{Access, ROUTES, Route};

mod kinds;
mod reference;

use kinds::Asked;

const OPENAI: &str = include_str!("../../../docs/openai.md");
const RESPONSES: &str = include_str!("../../../docs/responses.md");
const ANTHROPIC: &str = include_str!("../../../docs/anthropic.md");
const OLLAMA: &str = include_str!("../../../docs/ollama.md");
const LLAMACPP: &str = include_str!("../../../docs/llamacpp.md");

/// Where the members of routes' requests are told: page and section.
const TABLES: [(&[&str], &str, &str); 22] = [
    (&["/v1/chat/completions", "/chat/completions"], OPENAI, "Chat completions"),
    (&["/v1/completions"], OPENAI, "Completions"),
    (&["/v1/embeddings"], OPENAI, "Embeddings"),
    (&["/v1/responses", "/v1/responses/input_tokens"], RESPONSES, "Members"),
    (&["/v1/messages", "/v1/messages/count_tokens"], ANTHROPIC, "Members of a request"),
    (&["/api/chat"], OLLAMA, "Chat"),
    (&["/api/generate"], OLLAMA, "Generate"),
    (&["/api/embed"], OLLAMA, "Embed"),
    (&["/api/embeddings"], OLLAMA, "Embeddings"),
    (&["/api/rerank"], OLLAMA, "Rerank"),
    (&["/api/show"], OLLAMA, "Show"),
    (&["/api/create"], OLLAMA, "Create"),
    (&["/api/copy"], OLLAMA, "Copy"),
    (&["/api/delete"], OLLAMA, "Delete"),
    (&["/api/pull"], OLLAMA, "Pull"),
    (&["/completion", "/completions", "/infill"], LLAMACPP, "Completion"),
    (&["/infill"], LLAMACPP, "Infill"),
    (&["/tokenize"], LLAMACPP, "Tokenize"),
    (&["/detokenize"], LLAMACPP, "Detokenize"),
    (&["/embedding", "/embeddings"], LLAMACPP, "Embedding"),
    (&["/v1/rerank", "/rerank", "/reranking", "/v1/reranking"], LLAMACPP, "Rerank"),
    (&["/v2/rerank"], LLAMACPP, "Rerank as Cohere has it"),
];

/// Routes whose answers are no JSON.
const TEXTS: [&str; 2] = ["/", "/metrics"];

/// `GET /openapi.json`.
pub async fn page() -> Response {
    static PAGE: OnceLock<Value> = OnceLock::new();
    Json(PAGE.get_or_init(told)).into_response()
}

/// All of it.
fn told() -> Value {
    let mut paths = Map::new();
    for route in ROUTES {
        let path = route.path.replace("{*", "{");
        let item = paths.entry(path.clone()).or_insert_with(|| json!({}));
        item[route.method.as_str().to_lowercase()] = operation(route, &path);
    }
    let schemes = json!({ "bearer": { "type": "http", "scheme": "bearer" } });
    json!({
        "openapi": "3.1.0",
        "info": { "title": "tokenmill", "version": env!("CARGO_PKG_VERSION") },
        "tags": reference::tags(),
        "paths": paths,
        "components": { "securitySchemes": schemes, "schemas": errors() },
    })
}

/// How errors are told, by dialect.
fn errors() -> Value {
    let text = json!({ "type": "string" });
    let nullable = json!({ "type": ["string", "null"] });
    json!({
        "Error": { "type": "object", "required": ["error"], "properties": { "error": {
            "type": "object", "required": ["message", "type", "param", "code"],
            "properties": {
                "message": text, "type": text, "param": nullable, "code": nullable,
            },
        } } },
        "AnthropicError": { "type": "object", "required": ["type", "error"], "properties": {
            "type": { "const": "error" },
            "error": { "type": "object", "required": ["type", "message"],
                "properties": { "type": text, "message": text } },
        } },
        "OllamaError": { "type": "object", "required": ["error"], "properties": { "error": text } },
    })
}

fn operation(route: &Route, path: &str) -> Value {
    let kind = match path {
        _ if path.starts_with("/v1/messages") => "AnthropicError",
        _ if path.starts_with("/api/") => "OllamaError",
        _ => "Error",
    };
    let reference = json!({ "$ref": format!("#/components/schemas/{kind}") });
    let error = json!({
        "description": "What was wrong.",
        "content": { "application/json": { "schema": reference } },
    });
    let is_text = TEXTS.contains(&path);
    let content = match is_text {
        true => json!({ "text/plain": { "schema": { "type": "string" } } }),
        false => json!({
            "application/json": { "schema": { "type": ["object", "array"] } },
            "text/event-stream": { "schema": { "type": "string" } },
            "application/x-ndjson": { "schema": { "type": "string" } },
        }),
    };
    let named = reference::about(&format!("{} {}", route.method, route.path));
    let (about, tag) = named.unwrap_or_default();
    let mut operation = json!({
        "operationId": format!("{} {path}", route.method),
        "summary": about,
        "tags": [tag],
        "responses": {
            "2XX": { "description": "The answer.", "content": content },
            "4XX": error.clone(),
            "5XX": error,
        },
        "security": if route.access == Access::Open { json!([]) } else { json!([{ "bearer": [] }]) },
    });
    let names = path.split(['{', '}']).skip(1).step_by(2);
    let parameter = |name: &str| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } });
    let parameters: Vec<Value> = names.map(parameter).collect();
    if !parameters.is_empty() {
        operation["parameters"] = json!(parameters);
    }
    if route.method == "POST" || path == "/api/delete" {
        let kind = if path.starts_with("/api/blobs") {
            "application/octet-stream"
        } else {
            "application/json"
        };
        operation["requestBody"] = json!({ "content": { kind: { "schema": body(route, path) } } });
    }
    operation
}

/// What a route takes: the members of its tables, each with what becomes of it and the kinds of values that
/// its reader takes.
fn body(route: &Route, path: &str) -> Value {
    let asked = route.reader().map(Asked::of);
    let tables = TABLES.iter().filter(|(paths, ..)| paths.contains(&path));
    let mut properties = Map::new();
    for [member, example, becomes, note] in tables.flat_map(|(_, page, of)| rows(page, of)) {
        if member.contains(['.', '[']) {
            continue;
        }
        let mut told = json!({ "description": format!("{becomes}: {note}") });
        if let Ok(example) = serde_json::from_str::<Value>(example) {
            told["examples"] = json!([example]);
        }
        if let Some(kinds) = asked.as_ref().and_then(|asked| asked.kinds(member)) {
            told["type"] = json!(kinds);
        }
        properties.insert(member.to_owned(), told);
    }
    if properties.is_empty() {
        return json!({});
    }
    let required: Vec<&String> = asked.iter().flat_map(Asked::required).collect();
    json!({ "type": "object", "properties": properties, "required": required })
}

/// Rows of a section's table: member, example, what becomes of it, and more.
fn rows<'a>(page: &'a str, section: &str) -> Vec<[&'a str; 4]> {
    let inside = page.split("\n## ").find(|part| part.lines().next() == Some(section));
    let lines = inside.unwrap_or_default().lines().filter(|line| line.starts_with("| `"));
    let cells = |line: &'a str| {
        let mut cells =
            line.trim_matches('|').split(" | ").map(|cell| cell.trim().trim_matches('`'));
        [cells.next(), cells.next(), cells.next(), cells.next()].map(Option::unwrap_or_default)
    };
    lines.map(cells).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_told_with_the_members_of_its_table() {
        let page = told();
        for route in ROUTES {
            let path = route.path.replace("{*", "{");
            let method = route.method.as_str().to_lowercase();
            assert!(page["paths"][&path][&method].is_object(), "{method} {path}");
        }
        for (paths, _, section) in TABLES {
            for path in paths {
                let method = if *path == "/api/delete" { "delete" } else { "post" };
                let members = members(&page, method, path);
                let has_model = members.contains_key("model") || *path == "/api/copy";
                assert!(has_model && members.len() > 1 || *path == "/api/delete", "{section}");
            }
        }
        let seed = &members(&page, "post", "/v1/chat/completions")["seed"];
        let described = seed["description"].as_str();
        assert!(described.is_some_and(|text| text.starts_with("effect")), "{seed}");
    }

    fn schema<'a>(page: &'a Value, method: &str, path: &str) -> &'a Value {
        let body = &page["paths"][path][method]["requestBody"]["content"];
        &body["application/json"]["schema"]
    }

    fn members<'a>(page: &'a Value, method: &str, path: &str) -> &'a Map<String, Value> {
        schema(page, method, path)["properties"].as_object().expect("members")
    }

    #[test]
    fn members_have_the_kinds_that_readers_take() {
        let page = told();
        for (path, required, kinds) in [
            (
                "/v1/chat/completions",
                json!(["messages"]),
                json!({
                    "messages": ["array"],
                    "model": ["string", "null"],
                    "n": ["integer", "null"],
                    "stop": ["string", "array", "null"],
                    "stream": ["boolean", "null"],
                    "temperature": ["number", "null"],
                }),
            ),
            ("/v1/embeddings", json!(["input"]), json!({ "input": ["string", "array"] })),
            ("/v1/responses", json!(["input"]), json!({ "instructions": ["string", "null"] })),
            (
                "/v1/messages",
                json!(["max_tokens", "messages"]),
                json!({ "max_tokens": ["integer"] }),
            ),
            ("/api/chat", json!([]), json!({ "stream": ["boolean", "null"] })),
            ("/v2/rerank", json!(["query", "documents"]), json!({ "query": ["string"] })),
            ("/completion", json!(["prompt"]), json!({ "n_predict": ["integer", "null"] })),
        ] {
            let schema = schema(&page, "post", path);
            let sorted = |value: &Value| {
                let mut names: Vec<String> = serde_json::from_value(value.clone()).expect("names");
                names.sort_unstable();
                names
            };
            assert_eq!(sorted(&schema["required"]), sorted(&required), "{path}");
            for (name, kinds) in kinds.as_object().expect("members") {
                assert_eq!(schema["properties"][name]["type"], *kinds, "{path} {name}");
            }
        }
    }
}
