//! From what a request asks for to what engines take: the defaults of the model and its packager,
//! templates, tokens, the room that is left. No dialect has rules of its own here.

use std::sync::Arc;

use tokenmill_engine::constraint::{Constraint, Held, Settings};
use tokenmill_engine::{NOBODY, Reading, Request, Sampling};
use tokenmill_ir::TokenId;
use tokenmill_text::{Encoder, Reach, Special, TemplateError, Tokenizer, TokenizerError};

use crate::ask::{Constrained, Generate, Head, Input, Part, Prompt};
use crate::conversation::{Calling, Conversation, Role, Tools};
use crate::error::ApiError;
use crate::holding;
use crate::keys::account_of;
use crate::rendered::Rendered;
use crate::shared::{Model, Shared, unix_seconds};
use crate::workshop::Wanted;

/// A request read, checked and tokenised.
pub struct Prepared {
    /// Who answers.
    pub model: Model,
    /// One for each prompt.
    pub requests: Vec<Request>,
    /// What is known of the answer.
    pub head: Head,
}

/// Tokenises what is to be continued, and cuts the answer to the context.
///
/// # Errors
/// 400 of the request.
pub fn generate(
    shared: &Shared,
    model: Model,
    ask: Generate,
    mut warnings: Vec<String>,
    wanted: Wanted<'_>,
) -> Result<Prepared, ApiError> {
    let Generate { input, manner, .. } = ask;
    let packager = &model.served.defaults.sampling;
    let mut sampling = Sampling::new(manner.sampling, packager, shared.ticket());
    sampling.params.logprobs = manner.logprobs;
    if let (Some(tokens), None) = (manner.default_tokens, packager.max_tokens) {
        sampling.default_tokens = tokens;
    }
    let encoder = model.served.tokenizer.within(reach(&model, wanted));
    let Asked { prompts, param, echo, parts, mut reading, reasons, tools } =
        asked(&model, input, manner.diagnose, &encoder)?;
    let held = match &manner.constrained {
        // What the text must hold stands above what calls hold.
        Some(constrained) => {
            let held = held(&model, constrained, &tools, (reading.as_ref(), reasons))?;
            uncalled(&mut reading, constrained, &mut warnings);
            Some(held)
        }
        // Who wants to go on behind the end wants no grammar, which has one.
        None if manner.ignore_eos && !tools.must_hold() => None,
        None => holding::held(&model, &tools, (reading.as_ref(), reasons), &mut warnings)?,
    };
    let prediction = encoder.encode(&manner.prediction, Special::Plain);
    let prediction = prediction.map_err(|e| not_encoded(e, &model, "prediction"))?;
    let mut head = Head {
        ticket: shared.ticket(),
        created: unix_seconds(),
        model: model.served.name().to_owned(),
        prompts: prompts.len(),
        prompt_tokens: prompts.iter().map(Vec::len).sum(),
        choices: manner.choices,
        logprobs: manner.logprobs.is_some(),
        warnings,
        echo,
        parts,
    };
    let common = Request {
        sampling: sampling.params,
        choices: manner.choices,
        stop: sampling.stop.clone(),
        ignore_eos: manner.ignore_eos,
        logit_bias: manner.logit_bias,
        held,
        reading,
        prediction,
        draft: manner.draft,
        account: account_of_user(manner.user.as_deref()).unwrap_or(NOBODY),
        priority: manner.priority,
        timeout: manner.timeout,
        diagnose: manner.diagnose,
        lease: manner.lease,
        ..Request::new(Vec::new())
    };
    let requests = within_context(&model, &sampling, common, prompts, param, &mut head.warnings)?;
    Ok(Prepared { model, requests, head })
}

/// The grammar of what an answer must hold.
fn held(
    model: &Model,
    constrained: &Constrained,
    tools: &Tools,
    (reading, reasons): (Option<&Reading>, bool),
) -> Result<Held, ApiError> {
    if tools.must_hold() {
        let param = if tools.calling == Calling::Required { "tool_choice" } else { "tools" };
        let message =
            format!("{} and calls that must hold: one of them at most", constrained.param);
        return Err(ApiError::bad(param, message));
    }
    let what = holding::behind_reasoning(model, constrained, (reading, reasons))?;
    let made = model.served.engine.grammar(&what, &Settings::default());
    made.map_err(|error| {
        let message = format!("{}: {error}", constrained.param);
        ApiError { code: Some("invalid_constraint"), ..ApiError::bad(constrained.param, message) }
    })
}

/// Where all of an answer is JSON, no tool is called. (A grammar of the client's may have calls in it.)
fn uncalled(reading: &mut Option<Reading>, constrained: &Constrained, warnings: &mut Vec<String>) {
    let is_json = matches!(constrained.what, Constraint::JsonSchema(_) | Constraint::JsonObject);
    let Some(reading) = reading.as_mut().filter(|reading| is_json && !reading.tools.is_empty())
    else {
        return;
    };
    reading.tools = Arc::default();
    warnings.push(format!("no tool is called: {} holds the whole answer", constrained.param));
}

/// A request for each prompt, with as many tokens of answer as the context leaves.
fn within_context(
    model: &Model,
    sampling: &Sampling,
    common: Request,
    prompts: Vec<Vec<TokenId>>,
    param: &str,
    warnings: &mut Vec<String>,
) -> Result<Vec<Request>, ApiError> {
    let context = model.context();
    let mut cut = None;
    let mut requests = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        let used = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        let Some(left) = context.checked_sub(used).filter(|left| *left > 0) else {
            return Err(ApiError::context_length(prompt.len(), context, param));
        };
        let wanted = sampling.tokens(left);
        if wanted > left {
            cut = Some(cut.map_or(left, |c: u32| c.min(left)));
        }
        let max_tokens = Some(wanted.min(left));
        requests.push(Request { prompt, max_tokens, ..common.clone() });
    }
    if let Some(left) = cut {
        warnings.push(format!("the context of {context} tokens leaves {left} for the answer"));
    }
    Ok(requests)
}

/// The tokens of a request's prompts.
///
/// # Errors
/// As [`generate`], but prompts that leave no room for an answer are counted too.
pub fn count(model: &Model, ask: Generate, wanted: Wanted<'_>) -> Result<usize, ApiError> {
    let encoder = model.served.tokenizer.within(reach(model, wanted));
    let asked = asked(model, ask.input, false, &encoder)?;
    Ok(asked.prompts.iter().map(Vec::len).sum())
}

/// What is to be continued, as it is asked of the engine.
#[derive(Default)]
struct Asked {
    prompts: Vec<Vec<TokenId>>,
    /// The member that has them.
    param: &'static str,
    /// Texts that answers begin with, where that is asked.
    echo: Vec<String>,
    /// Messages in the prompt, where that is asked.
    parts: Vec<Part>,
    /// How the answer is read; `None`: all of it is text.
    reading: Option<Reading>,
    /// The model may reason before it answers.
    reasons: bool,
    /// The tools it may call.
    tools: Tools,
}

fn asked(
    model: &Model,
    input: Input,
    diagnose: bool,
    encoder: &Encoder<'_>,
) -> Result<Asked, ApiError> {
    match input {
        Input::Conversation(talk) => {
            let talk = talk.instructed(model.served.defaults.system.as_deref());
            conversation(model, talk, diagnose, encoder)
        }
        Input::Prompts { prompts, echo } => {
            let tokenizer = &model.served.tokenizer;
            let echoed = prompts.iter().filter(|_| echo).map(|prompt| shown(prompt, tokenizer));
            let echo = echoed.collect();
            let tokens = |prompt| tokens(prompt, model, encoder);
            let prompts = prompts.into_iter().map(tokens).collect::<Result<_, _>>()?;
            Ok(Asked { prompts, param: "prompt", echo, ..Asked::default() })
        }
    }
}

/// The prompt of a conversation.
fn conversation(
    model: &Model,
    talk: Conversation,
    diagnose: bool,
    encoder: &Encoder<'_>,
) -> Result<Asked, ApiError> {
    let template = model.served.template.as_ref().map_err(|why| {
        let message = match why {
            TemplateError::Missing => "the model has no chat template".to_owned(),
            other => other.to_string(),
        };
        let message = format!("{message}; use /v1/completions");
        ApiError { code: Some("no_chat_template"), ..ApiError::bad("messages", message) }
    })?;
    let rendered = Rendered::new(template, model.format, talk)?;
    let tokens = encoder.rendered(&rendered.prompt);
    let tokens = tokens.map_err(|e| not_encoded(e, model, "messages"))?;
    let text = rendered.prompt.text();
    let parts = match diagnose {
        true => parts(&rendered.talk, &text, &tokens, &model.served.tokenizer),
        false => Vec::new(),
    };
    let (reading, reasons) = (rendered.reading(), rendered.reasons);
    let (prompts, param, tools) = (vec![tokens], "messages", rendered.talk.tools);
    Ok(Asked { prompts, param, parts, reading, reasons, tools, echo: Vec::new() })
}

/// Where each message ends in the prompt, in tokens.
fn parts(talk: &Conversation, text: &str, tokens: &[TokenId], tokenizer: &Tokenizer) -> Vec<Part> {
    let (mut at, mut token, mut bytes) = (0, 0, 0);
    let mut parts = Vec::with_capacity(talk.messages.len());
    for (index, message) in talk.messages.iter().enumerate() {
        for content in message.content.texts() {
            let found = text.get(at..).and_then(|rest| rest.find(content));
            at = found.map_or(at, |from| at + from + content.len());
        }
        while bytes < at && token < tokens.len() {
            bytes += tokenizer.token_bytes(tokens[token]).map_or(0, <[u8]>::len);
            token += 1;
        }
        parts.push(Part { end: token, is_system: message.role == Role::System, index });
    }
    parts
}

/// A text prompt is the caller's own from end to end: control tokens spelled out are such tokens.
fn tokens(prompt: Prompt, model: &Model, encoder: &Encoder<'_>) -> Result<Vec<TokenId>, ApiError> {
    match prompt {
        Prompt::Tokens(ids) => Ok(ids),
        Prompt::Text(text) => {
            let ids = encoder.prompt(&text, Special::Parse);
            ids.map_err(|e| not_encoded(e, model, "prompt"))
        }
    }
}

fn shown(prompt: &Prompt, tokenizer: &Tokenizer) -> String {
    match prompt {
        Prompt::Text(text) => text.clone(),
        Prompt::Tokens(ids) => tokenizer.decode(ids),
    }
}

/// The account of a client's own word for who asks; an API key, where several are set, stands above.
pub fn account_of_user(user: Option<&str>) -> Option<u64> {
    user.map(|user| account_of(user.as_bytes()))
}

/// How far a prompt is tokenised: twice what fits, so that one which is a little too long is told its
/// length, and only for a client that waits.
pub fn reach<'a>(model: &Model, wanted: Wanted<'a>) -> Reach<'a> {
    Reach { tokens: model.most_tokens().saturating_mul(2), wanted }
}

/// What is wrong with a text that could not be tokenised.
pub fn not_encoded(error: TokenizerError, model: &Model, param: &str) -> ApiError {
    match error {
        TokenizerError::TooManyTokens { at_least, .. } => {
            let most = model.most_tokens();
            let message = format!(
                "this model's maximum context length is {most} tokens; {param} has at least {at_least} tokens"
            );
            let overflow = Some((at_least, most));
            ApiError { overflow, ..ApiError::too_long(param, message) }
        }
        other => ApiError::bad(param, other.to_string()),
    }
}
