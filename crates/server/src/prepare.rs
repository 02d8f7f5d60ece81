//! From what a request asks for to what engines take: the defaults of the model and its packager,
//! templates, tokens, the room that is left. No dialect has rules of its own here.

use tokenmill_engine::constraint::{Held, Settings};
use tokenmill_engine::{NOBODY, Reading, Request, Sampling};
use tokenmill_ir::TokenId;
use tokenmill_text::{Encoder, Reach, Special, TemplateError, Tokenizer, TokenizerError};

use crate::ask::{Constrained, Generate, Head, Input, Part, Prompt};
use crate::conversation::{Conversation, Role};
use crate::error::ApiError;
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
/// 400 and 404 of the request.
pub fn generate(
    shared: &Shared,
    ask: Generate,
    warnings: Vec<String>,
    wanted: Wanted<'_>,
) -> Result<Prepared, ApiError> {
    let model = shared.model(ask.model.as_deref())?.clone();
    let Generate { input, manner, .. } = ask;
    let packager = &model.served.defaults.sampling;
    let mut sampling = Sampling::new(manner.sampling, packager, shared.ticket());
    sampling.params.logprobs = manner.logprobs;
    if let (Some(tokens), None) = (manner.default_tokens, packager.max_tokens) {
        sampling.default_tokens = tokens;
    }
    let encoder = model.served.tokenizer.within(reach(&model, wanted));
    let (mut echo, mut parts, mut reading) = (Vec::new(), Vec::new(), None);
    let (prompts, param) = match input {
        Input::Conversation(talk) => {
            let talk = talk.instructed(model.served.defaults.system.as_deref());
            let asked = conversation(&model, talk, manner.diagnose, &encoder)?;
            (parts, reading) = (asked.parts, asked.reading);
            (vec![asked.tokens], "messages")
        }
        Input::Prompts { prompts, echo: echoed } => {
            if echoed {
                let tokenizer = &model.served.tokenizer;
                echo = prompts.iter().map(|prompt| shown(prompt, tokenizer)).collect();
            }
            let tokens = |prompt| tokens(prompt, &model, &encoder);
            (prompts.into_iter().map(tokens).collect::<Result<_, _>>()?, "prompt")
        }
    };
    let held = manner.constrained.map(|c| held(&model, &c)).transpose()?;
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
fn held(model: &Model, constrained: &Constrained) -> Result<Held, ApiError> {
    let made = model.served.engine.grammar(&constrained.what, &Settings::default());
    made.map_err(|error| {
        let message = format!("{}: {error}", constrained.param);
        ApiError { code: Some("invalid_constraint"), ..ApiError::bad(constrained.param, message) }
    })
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

/// A conversation as it is asked of the engine.
struct Asked {
    tokens: Vec<TokenId>,
    /// Its messages in the prompt, where that is asked.
    parts: Vec<Part>,
    /// How the answer is read; `None`: all of it is text.
    reading: Option<Reading>,
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
    Ok(Asked { tokens, parts, reading: rendered.reading() })
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
                "{param} has at least {at_least} tokens; the maximum context length is {most} tokens"
            );
            let overflow = Some((at_least, most));
            ApiError { overflow, ..ApiError::too_long(param, message) }
        }
        other => ApiError::bad(param, other.to_string()),
    }
}
