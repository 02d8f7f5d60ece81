//! What a request asks an answer to hold.

use serde_json::Value;

/// What an answer must hold.
#[derive(Debug, Clone, PartialEq)]
pub enum Constraint {
    /// One JSON document, valid under the schema.
    JsonSchema(Value),
    /// Any JSON object.
    JsonObject,
    /// A text that the regular expression (of ECMAScript) matches as a whole.
    Regex(String),
    /// A grammar in llguidance's dialect of Lark, from its rule `start`. Schemas in `%json` are
    /// read as strictly as others.
    Lark(String),
    /// The same, written by this program itself, over the schemas of many tools: with wider limits on
    /// how many schemas and intersections it has.
    Written(String),
    /// A grammar in llama.cpp's GBNF, from its rule `root`.
    Gbnf(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Free text, and after each trigger one of the tags that begin with it.
    Structural {
        /// Texts that end the free text. Each tag begins with one.
        triggers: Vec<String>,
        /// What may follow.
        tags: Vec<Tag>,
    },
}

/// A marked part of an answer, as xgrammar and vLLM define structural tags.
#[derive(Debug, Clone, PartialEq)]
pub struct Tag {
    /// The text it begins with, its trigger first.
    pub begin: String,
    /// What stands between the markers: one JSON document, valid under this schema.
    pub schema: Value,
    /// The text it ends with.
    pub end: String,
}
