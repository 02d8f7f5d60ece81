//! The body of a Responses request.

use std::io;

use serde_json::{Map, Value, json};

use super::catalogue::{Catalogue, Known, Source};
use super::members::{IGNORED, REFUSED};
use super::{items, kept};
use crate::ask::{Constrained, Generate, Input, Manner};
use crate::config::Limits;
use crate::conversation::{Conversation, Message, Role};
use crate::error::ApiError;
use crate::fields::{Fields, Ignored, Notes, list, shown, text, wrong};
use crate::openai::parameters::{self, Delivery};
use crate::openai::thinking::{Said, effort_variable, either, kwargs, most};
use crate::seal::Seal;
use crate::state::Keep;
use tokenmill_engine::constraint::Constraint;

/// What may be in `include`, and whether it has an effect.
const INCLUDABLE: &[(&str, bool)] = &[
    ("reasoning.encrypted_content", true),
    ("message.output_text.logprobs", true),
    ("file_search_call.results", false),
    ("web_search_call.results", false),
    ("web_search_call.action.sources", false),
    ("message.input_image.image_url", false),
    ("computer_call_output.output.image_url", false),
    ("code_interpreter_call.outputs", false),
];

/// Members of `reasoning` without effect.
const REASONING_IGNORED: &[Ignored] = &[
    Ignored { name: "context", because: "the model's template says what of it is shown" },
    Ignored { name: "mode", because: "there is one mode" },
];

/// Members of `text` without effect.
const TEXT_IGNORED: &[Ignored] =
    &[Ignored { name: "verbosity", because: "models are not told how much to say" }];

/// Most bytes of a member that an answer repeats: they are kept until it ends, when the memory of
/// the body has long been given back.
const SHORT_BYTES: usize = 4 << 10;
/// The same of those that may be long.
const LONG_BYTES: usize = 64 << 10;
/// Those.
const LONG: &[&str] = &["instructions", "text.format", "tool_choice", "tools"];

/// Most pairs of `metadata`, characters of a key, and of a value.
const METADATA_PAIRS: usize = 16;
const METADATA_KEY: usize = 64;
const METADATA_VALUE: usize = 512;

/// How an answer is written.
#[derive(Debug, Clone, Default)]
pub struct Style {
    /// Members of the request that the answer repeats.
    pub echo: Map<String, Value>,
    /// The tools, by what the model calls them.
    pub tools: Vec<Known>,
    /// What is thought is told as a summary.
    pub summary: bool,
    /// What is thought goes with the answer sealed.
    pub sealed: bool,
    /// The answer is one item with the summary of the conversation.
    pub compacts: bool,
    /// It is asked for by its own path, and told in its form.
    pub alone: bool,
    /// What seals.
    pub seal: Seal,
    /// Where it is kept, if it is.
    pub keep: Option<Keep>,
}

/// A request that was read.
pub struct Asked {
    /// What is to be made.
    pub ask: Generate,
    /// How it is delivered.
    pub delivery: Delivery,
    /// How it is written.
    pub style: Style,
}

impl Asked {
    /// The same for a summary of the conversation.
    fn summed_up(mut self) -> Self {
        self.style.compacts = true;
        self.ask.manner.constrained = None;
        if let Input::Conversation(talk) = &mut self.ask.input {
            talk.messages.push(items::sum_up());
            // They stay in the prompt, which is cached so; none may be called.
            (talk.tools.calling, talk.tools.only) = (Default::default(), Some(Vec::new()));
        }
        self
    }

    /// The same as a request that asks for a summary and nothing else.
    pub fn compacted(mut self) -> Self {
        (self.style.alone, self.delivery.stream, self.style.keep) = (true, false, None);
        if self.style.compacts { self } else { self.summed_up() }
    }
}

/// Reads a request.
///
/// # Errors
/// 400 naming the first member that is wrong.
pub fn read(mut fields: Fields, limits: &Limits, notes: &mut Notes) -> Result<Asked, ApiError> {
    let model = fields.text("model")?;
    let (before, keep) = kept::read(&mut fields, limits, notes)?;
    fields.refuse(REFUSED)?;
    let mut style = Style { seal: notes.seal().clone(), ..Style::default() };
    style.echo = echo(&fields, notes)?;
    kept::echo(&mut style.echo, keep.as_ref());
    style.keep = keep;
    let mut catalogue = Catalogue::default();
    if let Some(tools) = fields.take("tools") {
        catalogue.add(tools, ("tools", Source::Request), limits, notes)?;
    }
    let input = (before, fields.require("input")?);
    let input = items::read(input, &mut catalogue, limits, notes)?;
    let instructions = fields.text("instructions")?;
    let (tools, known) = catalogue.chosen(&mut fields, limits, notes)?;
    (style.tools, style.compacts) = (known, input.compacts);
    let (variables, limit) = thinking(&mut fields, &mut style, notes)?;
    let held = form(&mut fields, notes)?;
    let logprobs = included(&mut fields, limits, &mut style, notes)?;
    let mut manner = manner(&mut fields, limits, held, notes)?;
    manner.logprobs = logprobs;
    manner.thinking = either(manner.thinking, limit)?;
    let delivery = parameters::delivery(&mut fields, notes)?;
    silent(&mut fields)?;
    fields.refuse(parameters::UNBUILT)?;
    fields.finish(IGNORED, notes)?;
    let mut messages: Vec<Message> =
        instructions.map(|text| Message::text(Role::System, text)).into_iter().collect();
    messages.extend(input.messages);
    if messages.is_empty() && !input.compacts {
        return Err(ApiError::bad("input", "input is empty"));
    }
    let talk = Conversation { messages, tools, variables, continues: false };
    let ask = Generate { model, input: Input::Conversation(talk), manner };
    let asked = Asked { ask, delivery, style };
    Ok(if input.compacts { asked.summed_up() } else { asked })
}

/// A member as the answer repeats it, where it is small enough to be kept so long.
fn repeated(value: Option<&Value>, default: Value, path: &str, notes: &mut Notes) -> Value {
    let most = if LONG.contains(&path) { LONG_BYTES } else { SHORT_BYTES };
    match value {
        None => default,
        Some(value) if serde_json::to_writer(&mut Room(most), value).is_ok() => value.clone(),
        Some(_) => {
            notes.add(format!("{path} is not repeated in the answer: it has over {most} bytes"));
            if path == "tools" { json!([]) } else { Value::Null }
        }
    }
}

/// Takes so many bytes and no more.
struct Room(usize);

impl io::Write for Room {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What the answer repeats, as it was sent.
///
/// # Errors
/// 400 for metadata beyond OpenAI's limits.
fn echo(fields: &Fields, notes: &mut Notes) -> Result<Map<String, Value>, ApiError> {
    let metadata = metadata(fields)?;
    let mut or = |path: &str, default: Value| {
        let (of, name) = path.split_once('.').unwrap_or(("", path));
        let value = match of {
            "" => fields.get(name),
            of => fields.get(of).and_then(|of| of.get(name)),
        };
        let value = value.filter(|value| path != "text.format" || value.is_object());
        repeated(value, default, path, notes)
    };
    let members = [
        ("instructions", or("instructions", Value::Null)),
        ("max_output_tokens", or("max_output_tokens", Value::Null)),
        ("max_tool_calls", or("max_tool_calls", Value::Null)),
        ("metadata", metadata),
        ("parallel_tool_calls", or("parallel_tool_calls", true.into())),
        ("previous_response_id", Value::Null),
        ("prompt_cache_key", or("prompt_cache_key", Value::Null)),
        (
            "reasoning",
            json!({
                "effort": or("reasoning.effort", Value::Null),
                "summary": or("reasoning.summary", Value::Null),
            }),
        ),
        ("safety_identifier", or("safety_identifier", Value::Null)),
        ("service_tier", "default".into()),
        ("store", false.into()),
        ("temperature", or("temperature", Value::Null)),
        (
            "text",
            json!({
                "format": or("text.format", json!({ "type": "text" })),
                "verbosity": or("text.verbosity", "medium".into()),
            }),
        ),
        ("tool_choice", or("tool_choice", "auto".into())),
        ("tools", or("tools", json!([]))),
        ("top_logprobs", or("top_logprobs", 0.into())),
        ("top_p", or("top_p", Value::Null)),
        ("truncation", "disabled".into()),
        ("user", or("user", Value::Null)),
    ];
    Ok(members.map(|(name, value)| (name.to_owned(), value)).into_iter().collect())
}

/// `metadata`, within OpenAI's limits.
pub fn metadata(fields: &Fields) -> Result<Value, ApiError> {
    let Some(value) = fields.get("metadata") else { return Ok(json!({})) };
    let Value::Object(pairs) = value else { return Err(wrong("metadata", "an object", value)) };
    let refused = |path: &str, what: &str, found: usize, most: usize| {
        let message = format!("{path} has {found} {what}, the limit is {most}");
        Err(ApiError::bad(path, message))
    };
    if pairs.len() > METADATA_PAIRS {
        return refused("metadata", "pairs", pairs.len(), METADATA_PAIRS);
    }
    for (key, value) in pairs {
        let length = key.chars().count();
        if length > METADATA_KEY {
            return refused("metadata", "characters in a key", length, METADATA_KEY);
        }
        let path = format!("metadata.{}", shown(key));
        let Value::String(text) = value else { return Err(wrong(&path, "a string", value)) };
        let length = text.chars().count();
        if length > METADATA_VALUE {
            return refused(&path, "characters", length, METADATA_VALUE);
        }
    }
    Ok(value.clone())
}

/// How much to think, for templates, and how long; whether it is told as a summary.
fn thinking(fields: &mut Fields, style: &mut Style, notes: &mut Notes) -> Result<Said, ApiError> {
    let (mut variables, mut limit) = (kwargs(fields)?, None);
    if let Some(value) = fields.take("reasoning") {
        let mut fields = Fields::of(value, "reasoning")?;
        let effort = fields.text("effort")?;
        limit = most(&mut fields)?;
        if let Some((name, value)) = effort_variable(effort.as_deref(), "reasoning.effort")? {
            variables.entry(name).or_insert(value);
        }
        for name in ["summary", "generate_summary"] {
            let word = fields.text(name)?;
            match word.as_deref() {
                None | Some("none") => {}
                Some("auto" | "concise" | "detailed") => style.summary = true,
                Some(_) => {
                    let path = fields.path(name);
                    let message = format!("{path} must be one of auto, concise, detailed");
                    return Err(ApiError::bad(path, message));
                }
            }
        }
        fields.finish(REASONING_IGNORED, notes)?;
    }
    Ok((Some(variables).filter(|variables| !variables.is_empty()), limit))
}

/// `text`: what the answer must hold.
fn form(fields: &mut Fields, notes: &mut Notes) -> Result<Option<Constrained>, ApiError> {
    let Some(value) = fields.take("text") else { return Ok(None) };
    let mut fields = Fields::of(value, "text")?;
    let format = fields.take("format");
    fields.finish(TEXT_IGNORED, notes)?;
    let Some(format) = format else { return Ok(None) };
    let mut fields = Fields::of(format, "text.format")?;
    let path = fields.path("type");
    let kind = text(fields.require("type")?, &path)?;
    let what = match kind.as_str() {
        "text" => None,
        "json_object" => Some(Constraint::JsonObject),
        "json_schema" => {
            for described in ["name", "description"] {
                fields.text(described)?;
            }
            // What is not enforced is refused, whether it is asked or not.
            fields.flag("strict")?;
            Some(Constraint::JsonSchema(fields.require("schema")?))
        }
        other => {
            let other = shown(other);
            let message =
                format!("{path} is {other:?}; it must be one of text, json_object, json_schema");
            return Err(ApiError::bad(path, message));
        }
    };
    fields.finish(&[], notes)?;
    Ok(what.map(|what| Constrained { what, param: "text.format" }))
}

/// `include` and `top_logprobs`: log-probabilities to be told, and whether reasoning is sealed.
fn included(
    fields: &mut Fields,
    limits: &Limits,
    style: &mut Style,
    notes: &mut Notes,
) -> Result<Option<u32>, ApiError> {
    let top = fields.count("top_logprobs", 0..=limits.top_logprobs)?;
    let mut told = top.is_some_and(|top| top > 0);
    let items = fields.take("include").map(|value| list(value, 64, "include")).transpose()?;
    for (i, item) in items.into_iter().flatten().enumerate() {
        let path = format!("include[{i}]");
        let word = text(item, &path)?;
        match (word.as_str(), INCLUDABLE.iter().find(|(name, _)| *name == word)) {
            ("reasoning.encrypted_content", _) => style.sealed = true,
            ("message.output_text.logprobs", _) => told = true,
            (word, found) => {
                let why = match found {
                    Some(_) => "no answer of this server has any",
                    None => "it is not known",
                };
                notes.add(format!("{path} was ignored: {}: {why}", shown(word)));
            }
        }
    }
    Ok(told.then(|| top.unwrap_or(0)))
}

/// How to sample, by the names of this API and by those that other calls have for the same.
fn manner(
    fields: &mut Fields,
    limits: &Limits,
    held: Option<Constrained>,
    notes: &mut Notes,
) -> Result<Manner, ApiError> {
    let most = fields.count("max_output_tokens", 1..=u32::MAX)?;
    let mut manner = parameters::read(fields, limits, notes)?;
    if manner.choices > 1 {
        return Err(ApiError::unsupported("n", "n: a response is one answer"));
    }
    match (most, manner.sampling.max_tokens) {
        (Some(a), Some(b)) if a != b => {
            let message = format!("max_output_tokens is {a} and max_tokens is {b}");
            return Err(ApiError::bad("max_output_tokens", message));
        }
        _ => manner.sampling.max_tokens = most.or(manner.sampling.max_tokens),
    }
    match (&manner.constrained, held) {
        (Some(other), Some(_)) => {
            let other = other.param;
            let message = format!("text.format and {other}: an answer is held to one of them");
            Err(ApiError::bad(other, message))
        }
        (None, held @ Some(_)) => Ok(Manner { constrained: held, ..manner }),
        (_, None) => Ok(manner),
    }
}

/// Members that say what holds anyway, or are told back.
fn silent(fields: &mut Fields) -> Result<(), ApiError> {
    // It was read where it is repeated.
    fields.take("metadata");
    if fields.flag("store")? == Some(true) {
        fields.put("store", true.into());
    }
    match fields.text("truncation")?.as_deref() {
        None | Some("disabled") => Ok(()),
        Some("auto") => {
            fields.put("truncation", "auto".into());
            Ok(())
        }
        Some(_) => Err(ApiError::bad("truncation", "truncation must be auto or disabled")),
    }
}
