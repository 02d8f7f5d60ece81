//! Tools of a chat request: those on offer, which of them may be called, and earlier calls.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::config::Limits;
use crate::conversation::{Call, Calling, Offered, Tools};
use crate::error::ApiError;
use crate::fields::{Fields, Notes, list, shown, text, wrong};

/// Longest name of a tool, bytes.
const NAME_BYTES: usize = 256;

/// Tools of a request that this server does not run, by their types and names.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct LeftOut(HashSet<String>);

impl LeftOut {
    /// Takes one of that type.
    pub(crate) fn add(&mut self, kind: &str, fields: &mut Fields) {
        self.0.insert(kind.to_owned());
        if let Some(Value::String(name)) = fields.take("name") {
            self.0.insert(name);
        }
    }
}

/// Reads them.
///
/// # Errors
/// 400 naming the first that is wrong.
pub fn read(fields: &mut Fields, limits: &Limits, notes: &mut Notes) -> Result<Tools, ApiError> {
    let items = fields.take("tools").map(|value| list(value, limits.tools, "tools")).transpose()?;
    let (mut offered, mut left_out) = (Vec::new(), LeftOut::default());
    for (i, item) in items.into_iter().flatten().enumerate() {
        let path = format!("tools[{i}]");
        let Some(tool) = tool(item, &path, &mut left_out, notes)? else { continue };
        offer(&mut offered, tool, &path)?;
    }
    let single = fields.flag("parallel_tool_calls")? == Some(false);
    let chosen = match fields.take("tool_choice") {
        None => (Calling::Auto, None),
        Some(value) => choice(value, limits, notes)?,
    };
    chosen_of(offered, &left_out, chosen, single)
}

/// One more tool.
///
/// # Errors
/// 400 for a second one of a name.
pub(crate) fn offer(offered: &mut Vec<Offered>, tool: Offered, path: &str) -> Result<(), ApiError> {
    if offered.iter().any(|other| other.name == tool.name) {
        let message = format!("{path}: there are two tools of the name {}", shown(&tool.name));
        return Err(ApiError::bad(path, message));
    }
    offered.push(tool);
    Ok(())
}

/// The tools, those of them that may be called, and whether one call is the most.
///
/// # Errors
/// 400 where the choice is not among them.
pub(crate) fn chosen_of(
    offered: Vec<Offered>,
    left_out: &LeftOut,
    (calling, only): (Calling, Option<Vec<String>>),
    single: bool,
) -> Result<Tools, ApiError> {
    let single =
        single || calling == Calling::Required && only.as_ref().is_some_and(|o| o.len() == 1);
    let missing =
        only.iter().flatten().find(|name| !offered.iter().any(|tool| tool.name == **name));
    if let Some(name) = missing {
        let shown = shown(name);
        let message = match left_out.0.contains(name) {
            true => format!("tool_choice: {shown} was left out: this server does not run it"),
            false => format!("tool_choice: there is no tool of the name {shown}"),
        };
        return Err(ApiError::bad("tool_choice", message));
    }
    if calling == Calling::Required && offered.is_empty() {
        let message = match left_out.0.is_empty() {
            true => "tool_choice wants a call, and tools is empty",
            false => {
                "tool_choice wants a call, and every tool was left out: this server does not run it"
            }
        };
        return Err(ApiError::bad("tool_choice", message));
    }
    Ok(Tools { offered, calling, only, single })
}

/// A tool; none for one that a hosting service would run, or the client by rules of its own.
fn tool(
    item: Value,
    path: &str,
    left_out: &mut LeftOut,
    notes: &mut Notes,
) -> Result<Option<Offered>, ApiError> {
    let mut fields = Fields::of(item, path)?;
    let kind = fields.text("type")?.unwrap_or_else(|| "function".to_owned());
    if !matches!(kind.as_str(), "function" | "custom") {
        left_out.add(&kind, &mut fields);
        let kind = shown(&kind);
        notes.add(format!("{path} was ignored: this server runs no {kind}"));
        return Ok(None);
    }
    if kind != "function" {
        let message = format!("{path} is of type {:?}; this server takes functions", shown(&kind));
        return Err(ApiError::unsupported(path, message));
    }
    let mut function = Fields::of(fields.require("function")?, &fields.path("function"))?;
    fields.finish(&[], notes)?;
    let tool = self::function(&mut function)?;
    function.finish(&[], notes)?;
    Ok(Some(tool))
}

/// Name, description, parameters and strictness of a function.
///
/// # Errors
/// 400 naming the member at fault.
pub(super) fn function(fields: &mut Fields) -> Result<Offered, ApiError> {
    let name = name(fields.require("name")?, &fields.path("name"))?;
    let description = fields.text("description")?;
    let strict = fields.flag("strict")?.unwrap_or(false);
    let path = fields.path("parameters");
    let parameters = match fields.take("parameters") {
        None => json!({ "type": "object", "properties": {} }),
        Some(schema) if schema.is_object() => schema,
        Some(other) => return Err(wrong(&path, "a schema", &other)),
    };
    Ok(Offered::new(name, description, parameters, strict))
}

/// The name of a tool.
///
/// # Errors
/// 400 for what is none.
pub(crate) fn name(value: Value, path: &str) -> Result<String, ApiError> {
    let name = text(value, path)?;
    let is_one = |c: char| !c.is_whitespace() && !c.is_control() && !"<>{}[]()\"'`|".contains(c);
    match !name.is_empty() && name.len() <= NAME_BYTES && name.chars().all(is_one) {
        true => Ok(name),
        false => {
            let name = shown(&name);
            let message = format!(
                "{path} is {name:?}: a name has 1 to {NAME_BYTES} bytes, no blanks, quotes or brackets"
            );
            Err(ApiError::bad(path, message))
        }
    }
}

/// Whether tools are called, and which.
fn choice(
    value: Value,
    limits: &Limits,
    notes: &mut Notes,
) -> Result<(Calling, Option<Vec<String>>), ApiError> {
    let path = "tool_choice";
    if let Some(calling) = word(&value) {
        return Ok((calling?, None));
    }
    let mut fields = Fields::of(value, path)?;
    let kind = text(fields.require("type")?, "tool_choice.type")?;
    let found = match kind.as_str() {
        "function" => (Calling::Required, Some(vec![named(&mut fields)?])),
        "allowed_tools" => {
            let mut allowed = match fields.take("allowed_tools") {
                Some(value) => Fields::of(value, "tool_choice.allowed_tools")?,
                None => std::mem::replace(&mut fields, Fields::of(json!({}), path)?),
            };
            let found = allowed_tools(&mut allowed, limits)?;
            allowed.finish(&[], notes)?;
            found
        }
        other => {
            let other = shown(other);
            let message = format!("tool_choice.type is {other:?}: a function or allowed_tools");
            return Err(ApiError::unsupported("tool_choice.type", message));
        }
    };
    fields.finish(&[], notes)?;
    Ok(found)
}

/// The name of a function, in an object of its own or beside its type.
fn named(fields: &mut Fields) -> Result<String, ApiError> {
    match fields.take("function") {
        Some(value) => {
            let path = fields.path("function");
            let mut function = Fields::of(value, &path)?;
            name(function.require("name")?, &function.path("name"))
        }
        None => name(fields.require("name")?, &fields.path("name")),
    }
}

fn allowed_tools(
    fields: &mut Fields,
    limits: &Limits,
) -> Result<(Calling, Option<Vec<String>>), ApiError> {
    let path = fields.path("mode");
    let calling = mode(&text(fields.require("mode")?, &path)?, &["auto", "required"], &path)?;
    let path = fields.path("tools");
    let tools = list(fields.require("tools")?, limits.tools, &path)?;
    let read = |(i, item)| named(&mut Fields::of(item, &format!("{path}[{i}]"))?);
    let only: Vec<String> = tools.into_iter().enumerate().map(read).collect::<Result<_, _>>()?;
    match only.is_empty() {
        true => Err(ApiError::bad(&path, format!("{path} is empty"))),
        false => Ok((calling, Some(only))),
    }
}

/// `tool_choice` where it is a word.
///
/// # Errors
/// 400 for another word.
pub(super) fn word(choice: &Value) -> Option<Result<Calling, ApiError>> {
    let word = choice.as_str()?;
    Some(mode(word, &["auto", "none", "required"], "tool_choice"))
}

/// A word for whether tools are called.
pub(super) fn mode(word: &str, known: &[&str], path: &str) -> Result<Calling, ApiError> {
    match (known.contains(&word), word) {
        (true, "auto") => Ok(Calling::Auto),
        (true, "none") => Ok(Calling::None),
        (true, _) => Ok(Calling::Required),
        (false, _) => {
            let message = format!("{path} must be one of {}", known.join(", "));
            Err(ApiError::bad(path, message))
        }
    }
}

/// The calls that an assistant's message ends with.
///
/// # Errors
/// 400 naming the first that is wrong.
pub fn calls(
    fields: &mut Fields,
    limits: &Limits,
    notes: &mut Notes,
) -> Result<Vec<Call>, ApiError> {
    let path = fields.path("tool_calls");
    let Some(value) = fields.take("tool_calls") else { return Ok(Vec::new()) };
    let read = |(i, item)| {
        let mut call = Fields::of(item, &format!("{path}[{i}]"))?;
        let kind = call.text("type")?.unwrap_or_else(|| "function".to_owned());
        if kind != "function" {
            let message = format!("{path}[{i}] is of type {:?}: a function is known", shown(&kind));
            return Err(ApiError::unsupported(&path, message));
        }
        let id = call.text("id")?.unwrap_or_default();
        call.take("index");
        let mut function = Fields::of(call.require("function")?, &call.path("function"))?;
        call.finish(&[], notes)?;
        function.take("index");
        let name = text(function.require("name")?, &function.path("name"))?;
        let call = match function.take("arguments") {
            None => Call { id, name, arguments: json!({}) },
            Some(Value::String(text)) => Call::of_text(id, name, &text),
            Some(arguments @ Value::Object(_)) => Call { id, name, arguments },
            Some(other) => return Err(wrong(&function.path("arguments"), "a string", &other)),
        };
        function.finish(&[], notes)?;
        Ok(call)
    };
    list(value, limits.tools, &path)?.into_iter().enumerate().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(body: Value) -> Result<(Tools, Vec<String>), ApiError> {
        let (mut fields, mut notes) = (Fields::of(body, "")?, Notes::new(false));
        let tools = read(&mut fields, &Limits::default(), &mut notes)?;
        fields.finish(&[], &mut notes)?;
        Ok((tools, notes.into_list()))
    }

    fn function(name: &str) -> Value {
        json!({ "type": "function", "function": { "name": name, "description": "d" } })
    }

    #[test]
    fn a_choice_says_what_may_be_called() {
        let tools = json!([function("f"), function("g")]);
        let only = |names: &[&str]| Some(names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>());
        let allowed = json!([{ "type": "function", "function": { "name": "g" } }]);
        for (choice, calling, names, single) in [
            (Value::Null, Calling::Auto, None, false),
            (json!("none"), Calling::None, None, false),
            (json!("required"), Calling::Required, None, false),
            (
                json!({ "type": "function", "function": { "name": "f" } }),
                Calling::Required,
                only(&["f"]),
                true,
            ),
            (json!({ "type": "function", "name": "f" }), Calling::Required, only(&["f"]), true),
            (
                json!({ "type": "allowed_tools", "allowed_tools": {
                    "mode": "auto", "tools": allowed,
                } }),
                Calling::Auto,
                only(&["g"]),
                false,
            ),
            (
                json!({ "type": "allowed_tools", "mode": "required", "tools": [
                    { "type": "function", "name": "f" }, { "type": "function", "name": "g" },
                ] }),
                Calling::Required,
                only(&["f", "g"]),
                false,
            ),
        ] {
            let (found, notes) =
                found(json!({ "tools": tools, "tool_choice": choice })).expect("read");
            assert_eq!((found.calling, found.only, found.single), (calling, names, single));
            assert_eq!((found.offered.len(), notes), (2, vec![]), "{choice}");
        }
    }

    #[test]
    fn what_a_service_would_run_is_left_out_and_told() {
        for kind in ["web_search", "mcp", "computer_use_2031"] {
            let tools = json!([{ "type": kind, "name": "s" }, function("f")]);
            let (tools, notes) = found(json!({ "tools": tools })).expect("read");
            assert_eq!(tools.offered.len(), 1);
            assert_eq!(notes, [format!("tools[0] was ignored: this server runs no {kind}")]);
        }
    }

    #[test]
    fn a_choice_of_what_was_left_out_says_so() {
        let hosted = json!({ "type": "web_search", "name": "s" });
        let named = json!({ "type": "function", "name": "s" });
        for (tools, choice) in
            [(json!([hosted, function("f")]), named), (json!([hosted]), json!("required"))]
        {
            let error =
                found(json!({ "tools": tools, "tool_choice": choice })).expect_err("refused");
            assert_eq!(error.param.as_deref(), Some("tool_choice"));
            let words = "was left out: this server does not run it";
            assert!(error.message.ends_with(words), "{}", error.message);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let one = json!([function("f")]);
        for (body, param) in [
            (json!({ "tools": {} }), "tools"),
            (json!({ "tools": [function("a b")] }), "tools[0].function.name"),
            (json!({ "tools": [function("f"), function("f")] }), "tools[1]"),
            (json!({ "tools": [{ "type": "custom" }] }), "tools[0]"),
            (json!({ "tools": one, "tool_choice": "any" }), "tool_choice"),
            (json!({ "tool_choice": "required" }), "tool_choice"),
            (
                json!({ "tools": one, "tool_choice": { "type": "function", "name": "g" } }),
                "tool_choice",
            ),
        ] {
            let error = found(body.clone()).expect_err("refused");
            assert_eq!(error.param.as_deref(), Some(param), "{body}");
        }
    }
}
