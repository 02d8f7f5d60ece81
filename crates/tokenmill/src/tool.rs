//! Tools: closures that a model may call while it answers.

use std::error;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokenmill_chat::conversation::Offered;

use crate::typed::{schema_of, value_of};

/// Why a tool found nothing; the model is told its text.
pub type ToolError = Box<dyn error::Error + Send + Sync>;

type Run = Box<dyn FnMut(Value) -> Result<String, ToolError> + Send>;

/// A closure on offer.
pub(crate) struct Tool {
    pub offered: Offered,
    run: Run,
}

impl Tool {
    /// Of a type of arguments.
    pub fn typed<A, R>(
        name: &str,
        about: &str,
        mut run: impl FnMut(A) -> Result<R, ToolError> + Send + 'static,
    ) -> Self
    where
        A: JsonSchema + DeserializeOwned,
        R: Serialize,
    {
        let run = move |arguments: Value| {
            let found = serde_json::to_value(run(value_of(arguments)?)?)?;
            Ok(match found {
                Value::String(text) => text,
                other => other.to_string(),
            })
        };
        Self::of_schema(name, about, schema_of::<A>(), run)
    }

    /// By the JSON Schema of its arguments.
    pub fn of_schema(
        name: &str,
        about: &str,
        schema: Value,
        run: impl FnMut(Value) -> Result<String, ToolError> + Send + 'static,
    ) -> Self {
        let about = Some(about.to_owned()).filter(|about| !about.is_empty());
        let offered = Offered::new(name.to_owned(), about, schema, true);
        Self { offered, run: Box::new(run) }
    }

    /// What the model is told of a call.
    pub fn call(&mut self, arguments: Value) -> String {
        (self.run)(arguments).unwrap_or_else(|error| format!("error: {error}"))
    }
}
