//! A request for a message, and for the tokens of its prompt.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::{Map, Value, json};
use tokenmill_engine::SamplingValues;
use tokenmill_engine::constraint::Constraint;

use super::answer::{Answer, Shape};
use super::blocks::Reader;
use super::tools;
use crate::answering;
use crate::ask::{self, Ask, Constrained, Generate, Input, Manner};
use crate::config::Limits;
use crate::conversation::{Conversation, Message, Role};
use crate::error::ApiError;
use crate::fields::{Fields, Ignored, Notes, Unsupported, shown, text};
use crate::openai::thinking::repeats;
use crate::openai::{constraint, leases, parameters};
use crate::shared::Shared;

/// Members that change no answer here.
const IGNORED: &[Ignored] = &[
    Ignored { name: "billing_policy", because: "this server bills nobody" },
    Ignored { name: "compaction", because: "this server compacts no conversation" },
    Ignored { name: "container", because: "this server runs no code" },
    Ignored { name: "context_management", because: "this server edits no conversation" },
    Ignored { name: "fallback_credit_token", because: "this server bills nobody" },
    Ignored { name: "fallbacks", because: "the model named answers" },
    Ignored { name: "inference_geo", because: "this server runs where it runs" },
    Ignored { name: "mcp_servers", because: "this server calls no others" },
    Ignored { name: "service_tier", because: "there is one tier" },
    Ignored { name: "speed", because: "there is one speed" },
    Ignored { name: "user_profile_id", because: "this server keeps no accounts of end users" },
    Ignored { name: "workspace_id", because: "this server has no workspaces" },
];

/// Members that ask for what is not built yet, unless they ask for nothing.
const UNSUPPORTED: &[Unsupported] = &[Unsupported { name: "thread", neutral: |_| false }];

/// How much a model should think, for those whose template asks.
const EFFORTS: &[&str] = &["low", "medium", "high", "xhigh", "max"];

/// POST /v1/messages
pub async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let read = match thinks_between_calls(request.headers()) {
        true => read_unbounded,
        false => read,
    };
    answering::respond(shared, request, read).await
}

/// Whether what a client thinks of budgets counts a whole turn of several answers, which may be more
/// than one of them has.
fn thinks_between_calls(headers: &HeaderMap) -> bool {
    let betas = headers.get_all("anthropic-beta").iter().filter_map(|value| value.to_str().ok());
    betas.flat_map(|list| list.split(',')).any(|b| b.trim().starts_with("interleaved-thinking"))
}

/// Reads a request whose budget for thinking is part of its answer.
///
/// # Errors
/// 400 of the request.
pub fn read(fields: Fields, limits: &Limits, notes: &mut Notes) -> Result<Ask, ApiError> {
    answered(fields, limits, notes, Budget::OfAnswer)
}

/// Reads a request whose budget for thinking may be more than its answer has.
fn read_unbounded(fields: Fields, limits: &Limits, notes: &mut Notes) -> Result<Ask, ApiError> {
    answered(fields, limits, notes, Budget::OfTurn)
}

/// Reads a request that is counted, not answered.
///
/// # Errors
/// 400 of the request.
pub fn count(mut fields: Fields, limits: &Limits, notes: &mut Notes) -> Result<Ask, ApiError> {
    let (ask, _) = generate(&mut fields, limits, notes, Budget::OfTurn)?;
    fields.flag("stream")?;
    finish(fields, notes)?;
    let write = |tokens: usize, warnings: &[String]| {
        let mut told = json!({ "input_tokens": tokens });
        if !warnings.is_empty() {
            told["warnings"] = json!(warnings);
        }
        told
    };
    Ok(Ask::Count { ask: Box::new(ask), write: Box::new(write) })
}

/// What a budget for thinking is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Budget {
    OfAnswer,
    OfTurn,
}

fn answered(
    mut fields: Fields,
    limits: &Limits,
    notes: &mut Notes,
    budget: Budget,
) -> Result<Ask, ApiError> {
    if !fields.has("max_tokens") {
        fields.require("max_tokens")?;
    }
    let (ask, shape) = generate(&mut fields, limits, notes, budget)?;
    let stream = fields.flag("stream")?.unwrap_or(false);
    finish(fields, notes)?;
    let writer = Box::new(move |head| Box::new(Answer::new(head, shape)) as _);
    Ok(Ask::Generate { ask: Box::new(ask), stream, writer })
}

pub(super) fn finish(mut fields: Fields, notes: &mut Notes) -> Result<(), ApiError> {
    fields.refuse(UNSUPPORTED)?;
    fields.finish(IGNORED, notes)
}

/// What both calls ask, and how it is written.
pub(super) fn generate(
    fields: &mut Fields,
    limits: &Limits,
    notes: &mut Notes,
    budget: Budget,
) -> Result<(Generate, Shape), ApiError> {
    let model = fields.text("model")?;
    let mut reader = Reader { limits, notes, kept: None };
    let system = reader.system(fields)?;
    let mut messages = reader.messages(fields.require("messages")?)?;
    let tools = tools::read(fields, &mut reader)?;
    reader.mark(fields)?;
    let Reader { notes, kept, .. } = reader;
    let continues = continues(&mut messages, notes)?;
    messages.splice(0..0, system);
    let sampling = values(fields, limits)?;
    let thinking = thinking(fields, notes)?;
    thinking.within(sampling.max_tokens.filter(|_| budget == Budget::OfAnswer))?;
    let shape = Shape {
        stops: sampling.stop.clone().unwrap_or_default(),
        thinking_omitted: thinking.omitted,
    };
    let (effort, schema) = output(fields, notes)?;
    let constrained = held(schema, constraint::read(fields, limits, notes)?)?;
    let mut variables = Map::new();
    variables.extend(thinking.on.map(|on| ("enable_thinking".to_owned(), on.into())));
    variables.extend(effort.map(|effort| ("reasoning_effort".to_owned(), effort.into())));
    let variables = Some(variables).filter(|variables| !variables.is_empty());
    let manner = Manner {
        sampling,
        constrained,
        thinking: thinking.budget,
        repeats: repeats(fields, notes)?,
        draft: parameters::draft(fields)?,
        priority: parameters::priority(fields)?,
        timeout: parameters::timeout(fields)?,
        diagnose: diagnose(fields, notes)?,
        lease: leases::longer(None, kept),
        user: user(fields, notes)?,
        ..Manner::default()
    };
    let talk = Conversation { messages, tools, variables, continues };
    Ok((Generate { model, input: Input::Conversation(talk), manner }, shape))
}

/// Whether the answer goes on with the last message: the assistant's, where it says something.
fn continues(messages: &mut Vec<Message>, notes: &mut Notes) -> Result<bool, ApiError> {
    let Some(last) = messages.last().filter(|last| last.role == Role::Assistant) else {
        return Ok(false);
    };
    if !last.calls.is_empty() {
        let message = "messages: the last one calls tools, whose results must follow it";
        return Err(ApiError::bad("messages", message));
    }
    if last.content.texts().any(|text| !text.is_empty()) {
        return Ok(true);
    }
    messages.pop();
    notes.add("the last message was ignored: there is no text to go on with".to_owned());
    match messages.is_empty() {
        true => Err(ApiError::bad("messages", "messages: nobody says anything")),
        false => Ok(false),
    }
}

/// What the request says of how to sample: Anthropic's members, and two that local models have.
fn values(fields: &mut Fields, limits: &Limits) -> Result<SamplingValues, ApiError> {
    Ok(SamplingValues {
        temperature: fields.number("temperature", 0.0..=1.0)?,
        top_p: fields.number("top_p", 0.0..=1.0)?.map(|p| p.max(f32::MIN_POSITIVE)),
        top_k: parameters::top_k(fields)?,
        min_p: fields.number("min_p", 0.0..=1.0)?,
        seed: parameters::seed(fields)?,
        max_tokens: fields.count("max_tokens", 1..=u32::MAX)?,
        stop: parameters::stop(fields, "stop_sequences", limits)?,
        ..SamplingValues::default()
    })
}

/// What a request says of thinking.
#[derive(Debug, Default)]
struct Thinking {
    /// Whether the template asks the model to; `None`: as its packager has it.
    on: Option<bool>,
    /// How long it may think.
    budget: Option<ask::Thinking>,
    /// The client wants its place, not its text.
    omitted: bool,
}

impl Thinking {
    /// Refuses a budget that is more than an answer has.
    fn within(&self, max_tokens: Option<u32>) -> Result<(), ApiError> {
        match (self.budget, max_tokens) {
            (Some(budget), Some(most)) if budget.tokens > most => {
                let message = format!(
                    "thinking.budget_tokens is {}: max_tokens, which is {most}, must be no less",
                    budget.tokens
                );
                Err(ApiError::bad("thinking.budget_tokens", message))
            }
            _ => Ok(()),
        }
    }
}

fn thinking(fields: &mut Fields, notes: &mut Notes) -> Result<Thinking, ApiError> {
    let Some(value) = fields.take("thinking") else { return Ok(Thinking::default()) };
    let mut fields = Fields::of(value, "thinking")?;
    let kind = text(fields.require("type")?, "thinking.type")?;
    let on = match kind.as_str() {
        "enabled" | "adaptive" | "between_tools" => true,
        "disabled" => false,
        other => {
            let other = shown(other);
            let message = format!(
                "thinking.type is {other:?}; it must be one of enabled, disabled, adaptive, \
                 between_tools"
            );
            return Err(ApiError::bad("thinking.type", message));
        }
    };
    if kind == "enabled" && !fields.has("budget_tokens") {
        fields.require("budget_tokens")?;
    }
    let budget = fields.count("budget_tokens", 1..=u32::MAX)?;
    let budget = budget.map(|tokens| ask::Thinking { tokens, param: "thinking.budget_tokens" });
    let omitted = match fields.text("display")?.as_deref() {
        None | Some("summarized" | "updates") => false,
        Some("omitted") => true,
        Some(other) => {
            let other = shown(other);
            let message =
                format!("thinking.display is {other:?}; it must be summarized, updates or omitted");
            return Err(ApiError::bad("thinking.display", message));
        }
    };
    let bound = Ignored { name: "block_binding", because: "thinking is bound to no model" };
    fields.finish(&[bound], notes)?;
    Ok(Thinking { on: Some(on), budget, omitted })
}

/// `output_config`, and `output_format` as it was called before: how much to think, and what the
/// answer must hold.
fn output(
    fields: &mut Fields,
    notes: &mut Notes,
) -> Result<(Option<String>, Option<Constrained>), ApiError> {
    let before = fields.take("output_format");
    let before = before.map(|value| format(value, "output_format", notes)).transpose()?;
    let Some(value) = fields.take("output_config") else { return Ok((None, before)) };
    let mut fields = Fields::of(value, "output_config")?;
    let effort = fields.text("effort")?;
    if effort.as_ref().is_some_and(|effort| !EFFORTS.contains(&effort.as_str())) {
        let message = format!("output_config.effort must be one of {}", EFFORTS.join(", "));
        return Err(ApiError::bad("output_config.effort", message));
    }
    let path = "output_config.format";
    let now = fields.take("format").map(|value| format(value, path, notes)).transpose()?;
    fields.finish(
        &[Ignored { name: "task_budget", because: "the model says when it is done" }],
        notes,
    )?;
    Ok((effort, held(now, before)?))
}

/// What an answer is held to: one thing at most.
fn held(
    one: Option<Constrained>,
    other: Option<Constrained>,
) -> Result<Option<Constrained>, ApiError> {
    if let (Some(one), Some(other)) = (&one, &other) {
        let (one, other) = (one.param, other.param);
        let message = format!("{one} and {other}: an answer is held to one of them at most");
        return Err(ApiError::bad(other, message));
    }
    Ok(one.or(other))
}

/// The schema of an answer.
fn format(value: Value, param: &'static str, notes: &mut Notes) -> Result<Constrained, ApiError> {
    let mut fields = Fields::of(value, param)?;
    let path = fields.path("type");
    let kind = text(fields.require("type")?, &path)?;
    if kind != "json_schema" {
        let message = format!("{path} is {:?}; it must be json_schema", shown(&kind));
        return Err(ApiError::bad(path, message));
    }
    let what = Constraint::JsonSchema(fields.require("schema")?);
    fields.finish(&[], notes)?;
    Ok(Constrained { what, param })
}

/// Whether it is told why the prompt was not cached. No answer is kept, so all prompts before count,
/// not only that of the message named.
fn diagnose(fields: &mut Fields, notes: &mut Notes) -> Result<bool, ApiError> {
    let Some(value) = fields.take("diagnostics") else { return Ok(false) };
    if let Some(on) = value.as_bool() {
        return Ok(on);
    }
    let mut fields = Fields::of(value, "diagnostics")?;
    fields.text("previous_message_id")?;
    fields.finish(&[], notes)?;
    Ok(true)
}

/// The client's name for who asks.
fn user(fields: &mut Fields, notes: &mut Notes) -> Result<Option<String>, ApiError> {
    let Some(value) = fields.take("metadata") else { return Ok(None) };
    let mut fields = Fields::of(value, "metadata")?;
    let user = fields.text("user_id")?;
    fields.finish(&[], notes)?;
    Ok(user)
}
