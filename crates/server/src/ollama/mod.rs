//! Ollama's dialect: chat and generate, embeddings, rerank, and models as they come and go. docs/ollama.md
//! says of every member what becomes of it.
//!
//! * **Asking.** `chat`, `generate`, `embed` and `rerank` read into an `Ask` like every dialect. A
//!   request without messages or prompt counts the tokens of nothing (`Ask::Count`), which has its
//!   model loaded; with `keep_alive` 0 the model is let go (`Step::LetGo` of `answering`).
//! * **Answers** are objects, a line each ([`answer`]): no line is empty, for clients parse each; what
//!   keeps a connection open is a blank before the next one. Durations are nanoseconds that add up. All lines
//!   of an answer have one `created_at`, so that the same request gives the same lines.
//! * **Errors** are `{"error": "…"}`, as the body or as the last line.
//! * **Names.** `x` and `x:latest` are one model, `ollama:` and `hf.co/` may be left out:
//!   `stock::spellings`, for every dialect. Told is the model's own name, without `ollama:` here.
//! * **Models.** `tags`, `ps` and `show` tell what `Residents` knows and the loader's `Card`. `pull`,
//!   `delete`, `create` and `copy` cross the seam of `stock::Loader` (`pull`, `remove`, `recipes`,
//!   `keep`): the server has no network and no files. A model that is created or copied is a [`Recipe`]:
//!   the model it is made of, parameters, system and messages, kept by the loader as a list. It shares
//!   the weights and the prompt cache of what it is made of: its words are put over that model's
//!   defaults when it is granted (`shared::Model::made`).
//! * **Capabilities.** `completion` for models that write, `tools` for those with a chat template
//!   (where that has no place for tools they are offered in its instructions), `thinking` where the
//!   template writes marks of reasoning, `insert` where the vocabulary has marks for infill,
//!   `embedding`, and `rerank` in a word of our own.
//! * **Options** are one table ([`options`]): used, none of an answer's business, or not built and
//!   refused by name unless they ask for nothing.
//!
//! [`Recipe`]: crate::stock::Recipe

mod answer;
pub mod chat;
pub mod embed;
pub mod generate;
mod manner;
mod messages;
pub mod models;
pub mod options;
#[cfg(test)]
mod page;
pub mod store;

use serde_json::{Value, json};

use crate::ask::Dialect;
use crate::error::ApiError;

/// What its clients look for in errors.
pub const DIALECT: Dialect = Dialect { error: error_body };

/// The version of Ollama whose API this is: clients refuse older ones.
pub const VERSION: &str = "0.13.5";

/// The object that tells an error.
fn error_body(error: &ApiError) -> Value {
    json!({ "error": error.told() })
}

/// A model's own name as clients are told it.
fn told_name(id: &str) -> &str {
    id.strip_prefix("ollama:").unwrap_or(id)
}
