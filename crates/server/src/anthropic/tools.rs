//! Tools of a request for a message, and which of them may be called.

use serde_json::Value;

use super::blocks::Reader;
use crate::conversation::{Calling, Offered, Tools};
use crate::error::ApiError;
use crate::fields::{Fields, Ignored, list, shown, text, wrong};
use crate::openai::tools::{LeftOut, chosen_of, name, offer};

/// Whether tools are called, and only which.
type Choice = (Calling, Option<Vec<String>>);

/// Members of tools that change no answer here.
const IGNORED: &[Ignored] = &[
    Ignored { name: "allowed_callers", because: "this server runs no code that could call it" },
    Ignored { name: "input_examples", because: "templates have no place for it" },
];

/// Reads them.
///
/// # Errors
/// 400 naming the first that is wrong.
pub fn read(fields: &mut Fields, reader: &mut Reader<'_>) -> Result<Tools, ApiError> {
    let most = reader.limits.tools;
    let items = fields.take("tools").map(|value| list(value, most, "tools")).transpose()?;
    let (mut offered, mut left_out) = (Vec::new(), LeftOut::default());
    for (i, item) in items.into_iter().flatten().enumerate() {
        let path = format!("tools[{i}]");
        let Some(tool) = tool(item, &path, &mut left_out, reader)? else { continue };
        offer(&mut offered, tool, &path)?;
    }
    let (chosen, single) = match fields.take("tool_choice") {
        None => ((Calling::Auto, None), false),
        Some(value) => choice(value, reader)?,
    };
    chosen_of(offered, &left_out, chosen, single)
}

/// A tool; none for one that a server would run, or the client by rules that only a model trained
/// on them knows: such have no schema.
fn tool(
    item: Value,
    path: &str,
    left_out: &mut LeftOut,
    reader: &mut Reader<'_>,
) -> Result<Option<Offered>, ApiError> {
    let mut fields = Fields::of(item, path)?;
    let kind = fields.text("type")?.unwrap_or_else(|| "custom".to_owned());
    if kind != "custom" {
        left_out.add(&kind, &mut fields);
        let kind = shown(&kind);
        reader.notes.add(format!("{path} was ignored: this server has no tool {kind}"));
        return Ok(None);
    }
    let name = name(fields.require("name")?, &fields.path("name"))?;
    let description = fields.text("description")?;
    let strict = fields.flag("strict")?.unwrap_or(false);
    let parameters = fields.require("input_schema")?;
    if !parameters.is_object() {
        return Err(wrong(&fields.path("input_schema"), "a schema", &parameters));
    }
    // Arguments always come as they are made.
    fields.flag("eager_input_streaming")?;
    if fields.flag("defer_loading")? == Some(true) {
        let path = fields.path("defer_loading");
        reader.notes.add(format!("{path} was ignored: every tool is on offer from the start"));
    }
    reader.mark(&mut fields)?;
    fields.finish(IGNORED, reader.notes)?;
    Ok(Some(Offered::new(name, description, parameters, strict)))
}

/// Whether tools are called and which, and whether one call is the most.
fn choice(value: Value, reader: &mut Reader<'_>) -> Result<(Choice, bool), ApiError> {
    let mut fields = Fields::of(value, "tool_choice")?;
    let kind = text(fields.require("type")?, "tool_choice.type")?;
    let chosen = match kind.as_str() {
        "auto" => (Calling::Auto, None),
        "any" => (Calling::Required, None),
        "none" => (Calling::None, None),
        "tool" => {
            let name = name(fields.require("name")?, &fields.path("name"))?;
            (Calling::Required, Some(vec![name]))
        }
        other => {
            let other = shown(other);
            let message =
                format!("tool_choice.type is {other:?}; it must be one of auto, any, tool, none");
            return Err(ApiError::bad("tool_choice.type", message));
        }
    };
    let single = fields.flag("disable_parallel_tool_use")? == Some(true);
    fields.finish(&[], reader.notes)?;
    Ok((chosen, single))
}
