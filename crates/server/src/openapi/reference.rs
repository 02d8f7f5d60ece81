//! What each route is for, by dialect; a test writes docs/api.md of it and of what `/openapi.json` tells.

use serde_json::{Value, json};

/// Routes of one dialect, each with what it is for.
struct Section {
    title: &'static str,
    /// Where the members are told in words.
    pages: &'static str,
    routes: &'static [(&'static str, &'static str)],
}

const SECTIONS: &[Section] = &[
    Section {
        title: "OpenAI",
        pages: "[openai.md](openai.md), [responses.md](responses.md), [state.md](state.md)",
        routes: &[
            ("POST /v1/chat/completions", "answers a conversation"),
            ("POST /v1/completions", "goes on with a text, or fills in its middle"),
            ("POST /v1/embeddings", "vectors of texts"),
            ("POST /v1/rerank", "how much documents have to do with a query"),
            ("POST /v2/rerank", "the same as Cohere has it"),
            ("GET /v1/models", "models, and the state of each"),
            ("GET /v1/models/{*id}", "one model"),
            ("POST /v1/responses", "answers a conversation, for agents"),
            ("GET /v1/responses", "the same over a WebSocket: answered 426"),
            ("POST /v1/responses/compact", "a conversation made short"),
            ("POST /v1/responses/input_tokens", "how many tokens a request has"),
            ("GET /v1/responses/{id}", "a stored answer"),
            ("DELETE /v1/responses/{id}", "deletes it"),
            ("POST /v1/responses/{id}/cancel", "ends one that is made in the background"),
            ("GET /v1/responses/{id}/input_items", "what it was asked"),
            ("POST /v1/conversations", "begins a stored conversation"),
            ("GET /v1/conversations/{id}", "one of them"),
            ("POST /v1/conversations/{id}", "gives it other metadata"),
            ("DELETE /v1/conversations/{id}", "deletes it"),
            ("GET /v1/conversations/{id}/items", "what was said in it"),
            ("POST /v1/conversations/{id}/items", "adds to it"),
            ("GET /v1/conversations/{id}/items/{item}", "one item"),
            ("DELETE /v1/conversations/{id}/items/{item}", "deletes the item"),
            ("POST /v1/files", "stores a file, which comes as a form"),
            ("GET /v1/files", "files"),
            ("GET /v1/files/{id}", "what is known of one"),
            ("GET /v1/files/{id}/content", "its bytes"),
            ("DELETE /v1/files/{id}", "deletes it"),
            ("POST /v1/batches", "answers the requests of a file in the background"),
            ("GET /v1/batches", "batches"),
            ("GET /v1/batches/{id}", "how far one is"),
            ("POST /v1/batches/{id}/cancel", "ends it"),
            ("POST /v1/cache/leases", "keeps a prompt in the cache for a time"),
            ("GET /v1/cache/leases", "such promises"),
            ("DELETE /v1/cache/leases", "gives one up"),
        ],
    },
    Section {
        title: "Anthropic",
        pages: "[anthropic.md](anthropic.md)",
        routes: &[
            ("POST /v1/messages", "answers a conversation"),
            ("POST /v1/messages/count_tokens", "how many tokens a request has"),
            ("POST /v1/messages/batches", "answers many requests in the background"),
            ("GET /v1/messages/batches", "batches"),
            ("GET /v1/messages/batches/{id}", "how far one is"),
            ("POST /v1/messages/batches/{id}/cancel", "ends it"),
            ("GET /v1/messages/batches/{id}/results", "its answers"),
            ("DELETE /v1/messages/batches/{id}", "deletes it"),
        ],
    },
    Section {
        title: "Ollama",
        pages: "[ollama.md](ollama.md)",
        routes: &[
            ("POST /api/chat", "answers a conversation"),
            ("POST /api/generate", "answers a prompt"),
            ("POST /api/embed", "vectors of texts"),
            ("POST /api/embeddings", "the vector of one"),
            ("POST /api/rerank", "how much documents have to do with a query"),
            ("GET /api/version", "the version"),
            ("GET /api/tags", "models that are here"),
            ("GET /api/ps", "models in memory"),
            ("POST /api/show", "what a model is"),
            ("POST /api/pull", "fetches a model"),
            ("POST /api/push", "refused by name"),
            ("POST /api/create", "a model of another, with its own parameters"),
            ("POST /api/copy", "another name for a model"),
            ("DELETE /api/delete", "deletes a model"),
            ("POST /api/blobs/{digest}", "uploads a file of a model"),
        ],
    },
    Section {
        title: "llama.cpp",
        pages: "[llamacpp.md](llamacpp.md)",
        routes: &[
            ("POST /completion", "goes on with a text"),
            ("POST /completions", "the same"),
            ("POST /infill", "fills in between two texts"),
            ("POST /chat/completions", "as `/v1/chat/completions`"),
            ("POST /tokenize", "the tokens of a text"),
            ("POST /detokenize", "the text of tokens"),
            ("POST /apply-template", "the prompt that a conversation becomes"),
            ("POST /embedding", "vectors of texts"),
            ("POST /embeddings", "the same"),
            ("POST /rerank", "how much documents have to do with a query"),
            ("POST /reranking", "the same"),
            ("POST /v1/reranking", "the same"),
            ("GET /models", "as `/v1/models`"),
            ("GET /props", "what the server and its model are"),
            ("POST /props", "refused by name"),
            ("GET /slots", "sequences that are computed"),
            ("POST /slots/{id}", "refused by name"),
            ("GET /lora-adapters", "adapters: none"),
            ("POST /lora-adapters", "refused by name"),
        ],
    },
    Section {
        title: "The server itself",
        pages: "[seeing.md](seeing.md), [metrics.md](metrics.md), [fleet.md](fleet.md), [page.md](page.md)",
        routes: &[
            ("GET /", "the page; for programs a word"),
            ("GET /page/{build}/{file}", "its files"),
            ("GET /health", "it answers"),
            ("GET /v1/health", "the same"),
            ("GET /livez", "the same"),
            ("GET /ping", "the same"),
            ("GET /readyz", "it takes requests"),
            ("GET /version", "the version"),
            ("GET /openapi.json", "this description, for programs"),
            ("GET /metrics", "metrics, as Prometheus reads them"),
            ("GET /load", "what runs and waits"),
            ("GET /requests", "requests that run, and the last ones"),
            ("GET /requests/{id}", "where one's time went"),
            ("GET /server_info", "what the server is, for routers"),
            ("GET /get_server_info", "the same"),
            ("GET /model_info", "what its model is"),
            ("GET /get_model_info", "the same"),
            ("POST /drain", "ends the process when what is open has ended"),
            ("POST /models/load", "loads a model"),
            ("POST /models/unload", "unloads it"),
            ("POST /models/pin", "keeps it in memory, or no longer"),
            ("GET /models/plan", "what is planned for models that can be pulled"),
        ],
    },
];

/// What a route is for, and its dialect.
pub fn about(route: &str) -> Option<(&'static str, &'static str)> {
    SECTIONS.iter().find_map(|section| {
        let (_, about) = section.routes.iter().find(|(name, _)| *name == route)?;
        Some((*about, section.title))
    })
}

/// The dialects, as tags of the description.
pub fn tags() -> Vec<Value> {
    let tag = |section: &Section| json!({ "name": section.title, "description": format!("docs: {}", section.pages) });
    SECTIONS.iter().map(tag).collect()
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;
    use crate::routes::{Access, ROUTES};

    const HEAD: &str = "\
# API reference

<!-- Written by `cargo xtask docs` from the server's table of routes: not to be edited. -->

Every route there is. `GET /openapi.json` tells the same to programs (OpenAPI 3.1: also what each member becomes, and how errors look). *open*: for everybody;
*key*: for holders of a key, where keys are set; *operator*: for the first `--api-key`, keys that may, and `--metrics-key`. Members in bold must be there; those of
nested objects are told on the pages that are named.
";

    /// The page, of the description.
    fn page(told: &Value) -> String {
        let mut text = HEAD.to_owned();
        for Section { title, pages, routes } in SECTIONS {
            let _ = write!(
                text,
                "\n## {title}\n\nIn words: {pages}.\n\n| route | for | |\n|---|---|---|\n"
            );
            for (name, about) in *routes {
                let _ = writeln!(
                    text,
                    "| `{}` | {} | {about} |",
                    name.replace("{*", "{"),
                    access(name)
                );
            }
            for (name, _) in *routes {
                let members = members(told, name);
                if !members.is_empty() {
                    let _ = write!(text, "\n`{name}`: {}\n", members.join(", "));
                }
            }
        }
        text
    }

    fn access(name: &str) -> &'static str {
        let route = ROUTES.iter().find(|route| format!("{} {}", route.method, route.path) == name);
        match route.map(|route| route.access) {
            Some(Access::Open) => "open",
            Some(Access::Keyed) => "key",
            Some(Access::Operator) => "operator",
            None => "nobody",
        }
    }

    /// Members of a route's body: name, and the kinds of its values where they are known.
    fn members(told: &Value, name: &str) -> Vec<String> {
        let (method, path) = name.split_once(' ').unwrap_or_default();
        let operation = &told["paths"][path.replace("{*", "{")][method.to_lowercase()];
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        let required = |name: &str| {
            schema["required"].as_array().is_some_and(|all| all.iter().any(|one| one == name))
        };
        let member = |(name, told): (&String, &Value)| {
            let kinds = told["type"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let kinds = kinds.filter(|kind| *kind != "null").collect::<Vec<_>>().join(" or ");
            let mark = if required(name) { "**" } else { "" };
            format!("{mark}`{name}`{mark} {kinds}").trim_end().to_owned()
        };
        schema["properties"].as_object().into_iter().flatten().map(member).collect()
    }

    #[test]
    fn the_reference_has_every_route_and_is_written_down() {
        let mut told: Vec<&str> =
            SECTIONS.iter().flat_map(|s| s.routes).map(|(name, _)| *name).collect();
        let mut there: Vec<String> =
            ROUTES.iter().map(|r| format!("{} {}", r.method, r.path)).collect();
        told.sort_unstable();
        there.sort_unstable();
        assert_eq!(told, there, "SECTIONS tells every route, once");
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/api.md");
        let page = page(&crate::openapi::told());
        if std::env::var_os("TOKENMILL_WRITE_DOCS").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert!(written == page, "docs/api.md: run `cargo xtask docs`");
    }
}
