//! What the server needs of a model it serves.

use std::sync::Arc;

use serde_json::{Map, Value};
use tokenmill_engine::Engine;
use tokenmill_text::{ChatTemplate, Tokenizer};

/// A model behind the API. The server never stops the engine: whoever started it does.
#[derive(Clone)]
pub struct ServedModel {
    /// Names requests may call it by, the first one being its own.
    pub names: Vec<String>,
    /// Answers requests.
    pub engine: Engine,
    /// Turns text into tokens.
    pub tokenizer: Arc<Tokenizer>,
    /// Turns messages into a prompt; without one only plain completion works.
    pub template: Option<Arc<ChatTemplate>>,
    /// Most tokens of prompt and answer together.
    pub context: u32,
    /// What requests get where they say nothing.
    pub defaults: RequestDefaults,
    /// When the model was made or loaded, Unix seconds.
    pub created: u64,
}

/// What requests get where they say nothing, in the place of the dialect's own defaults.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RequestDefaults {
    /// Members of a request, such as `temperature`, with values the dialect takes.
    pub members: Map<String, Value>,
    /// Most tokens of an answer.
    pub max_tokens: Option<u32>,
    /// System message of chats without one.
    pub system: Option<String>,
}

impl ServedModel {
    /// Its own name.
    pub fn name(&self) -> &str {
        self.names.first().map_or("model", String::as_str)
    }
}
