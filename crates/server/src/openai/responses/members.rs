//! What becomes of each member of a Responses request: the page docs/responses.md tells the same.

use serde_json::json;

use crate::fields::{Ignored, Unsupported};
use crate::openai::parameters::is_empty_list;

/// Members that have their effect, and what that is.
#[cfg(test)]
pub const TAKEN: &[(&str, &str)] = &[
    (
        "include",
        "`reasoning.encrypted_content`, `message.output_text.logprobs`; others are warned of",
    ),
    ("input", "a text, or items (below)"),
    ("instructions", "the first system message"),
    ("max_output_tokens", "from 1; over the room left it is cut to that, with a warning"),
    ("metadata", "told back"),
    ("model", "a name of `/v1/models`; may be left out where one model is served"),
    ("parallel_tool_calls", "false: one call at most"),
    ("prompt_cache_key", "keeps the prompt for five minutes, under that name"),
    ("prompt_cache_retention", "keeps the prompt so long"),
    (
        "reasoning",
        "`effort` for templates that ask, `none` turns thinking off; `max_tokens` [ends the thinking](answers.md); \
         with `summary` (or `generate_summary`) what is thought is told as a summary, else as `reasoning_text`; \
         `context` and `mode` are warned of",
    ),
    ("stream", "events as they come"),
    ("stream_options", "`include_obfuscation` true is refused"),
    ("temperature", "0 to 2"),
    ("text", "`format`: `text`, `json_object`, `json_schema`; `verbosity` is warned of"),
    ("tool_choice", "`auto`, `none`, `required`, a function, a custom tool, `allowed_tools`"),
    ("tools", "of four types (below); others are warned of"),
    ("top_logprobs", "0 to 20"),
    ("top_p", "0 to 1"),
    ("user", "the account, where keys say none"),
];

/// Members without effect, of which a warning tells.
pub const IGNORED: &[Ignored] = &[
    Ignored { name: "access_programs", because: "this server has no programs of access" },
    Ignored { name: "client_metadata", because: "it is the client's own" },
    Ignored {
        name: "context_management",
        because: "nothing is left out of a conversation unasked: send a compaction_trigger",
    },
    Ignored { name: "max_tool_calls", because: "this server runs no tools itself" },
    Ignored { name: "personality", because: "models have none to choose" },
    Ignored {
        name: "prompt_cache_options",
        because: "prompts are cached anyway; prompt_cache_retention keeps them",
    },
    Ignored { name: "safety_identifier", because: "this server keeps no accounts of end users" },
    Ignored { name: "service_tier", because: "there is one tier" },
    Ignored { name: "store", because: "this server stores no answers" },
    Ignored { name: "truncation", because: "a prompt that does not fit is refused, never cut" },
];

/// Members that would change an answer and are not built, unless they ask for nothing.
pub const REFUSED: &[Unsupported] = &[
    Unsupported { name: "background", neutral: |v| *v == false },
    Unsupported { name: "background_options", neutral: |v| *v == json!({}) },
    Unsupported { name: "conversation", neutral: |_| false },
    Unsupported { name: "image", neutral: |v| *v == json!({}) },
    Unsupported { name: "moderation", neutral: |_| false },
    Unsupported { name: "modalities", neutral: |v| *v == json!(["text"]) },
    Unsupported { name: "previous_response_id", neutral: |_| false },
    Unsupported { name: "prompt", neutral: |_| false },
    Unsupported { name: "messages", neutral: is_empty_list },
];
