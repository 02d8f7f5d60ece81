//! What the server needs of a model it serves.

use std::sync::Arc;

use tokenmill_engine::{Defaults, Engine, Eyes, Sampling, SamplingValues};
use tokenmill_text::{ChatTemplate, TemplateError, Tokenizer};

/// A model behind the API. The server never stops the engine: whoever started it does.
#[derive(Clone)]
pub struct ServedModel {
    /// Names requests may call it by, the first one being its own.
    pub names: Vec<String>,
    /// Answers requests.
    pub engine: Engine,
    /// Turns text into tokens.
    pub tokenizer: Arc<Tokenizer>,
    /// Turns messages into a prompt, or why it cannot; then only plain completion works.
    pub template: Result<Arc<ChatTemplate>, TemplateError>,
    /// Most tokens of prompt and answer together.
    pub context: u32,
    /// How it sees images, where it does.
    pub eyes: Option<Arc<Eyes>>,
    /// How its packager wants it to be run: what requests get where they say nothing.
    pub defaults: Defaults,
    /// When the model was made or loaded, Unix seconds.
    pub created: u64,
}

impl ServedModel {
    /// Its own name.
    pub fn name(&self) -> &str {
        self.names.first().map_or("model", String::as_str)
    }

    /// How requests are sampled that say nothing.
    pub fn default_sampling(&self) -> Sampling {
        Sampling::new(SamplingValues::default(), &self.defaults.sampling, 0)
    }
}
