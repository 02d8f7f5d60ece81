//! From what a request asks for to what engines take: the defaults of the model and its packager,
//! templates, tokens, the room that is left. No dialect has rules of its own here.

use axum::http::StatusCode;
use tokenmill_chat::Rendered;
use tokenmill_engine::constraint::Held;
use tokenmill_engine::{NOBODY, Reading, Request, Sampling, SamplingValues};
use tokenmill_ir::TokenId;
use tokenmill_text::{
    Before, Beside, Encoder, IMAGE, Reach, Special, TemplateError, Tokenizer, TokenizerError,
};

use crate::ask::{Generate, Head, Infill, Input, Manner, Part, Prompt, Thinking};
use crate::config::Limits;
use crate::conversation::{Conversation, Role, Tools};
use crate::error::ApiError;
use crate::holding;
use crate::images::{self, Image};
use crate::keys::account_of;
use crate::llamacpp::MARK;
use crate::seeing::{self, Pictures};
use crate::shared::{Model, Shared, now, unix_seconds};
use crate::workshop::Wanted;

/// A request read, checked and tokenised.
pub struct Prepared {
    /// Who answers.
    pub model: Model,
    /// One for each prompt.
    pub requests: Vec<Request>,
    /// What is known of the answer.
    pub head: Head,
    /// The log-probabilities of the prompts are told.
    pub echoed: Option<Echoed>,
    /// What the prompts have places for, and is still to be seen.
    pub pictures: Option<Pictures>,
}

/// How prompts are told with their log-probabilities.
#[derive(Debug, Clone, PartialEq)]
pub struct Echoed {
    /// Alternatives at each token.
    pub top: u32,
    /// How many tokens at the front of each prompt are not of the client's text.
    pub unlisted: Vec<usize>,
}

/// Most log-probabilities that are told of prompts.
const MOST_ECHOED: usize = 1 << 18;

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
    let (Generate { input, manner, .. }, limits) = (ask, &shared.config.limits);
    let packager = &model.served.defaults.sampling;
    let mut sampling = Sampling::new(manner.sampling.clone(), packager, shared.ticket());
    sampling.params.logprobs = manner.logprobs;
    if let (Some(tokens), None) = (manner.default_tokens, packager.max_tokens) {
        sampling.default_tokens = tokens;
    }
    let encoder = model.served.tokenizer.within(reach(&model, wanted));
    let Asked {
        prompts,
        param,
        echo,
        parts,
        mut reading,
        reasons,
        tools,
        mut also_end,
        unlisted,
        pictures,
    } = asked(&model, input, (&manner, limits), &encoder, &mut warnings)?;
    also_end.extend(&manner.also_end);
    let is_raw = reading.is_none() && param == "prompt";
    let told = manner.logprobs.filter(|_| !echo.is_empty());
    let echoed = told.map(|top| echoed(&prompts, top, unlisted)).transpose()?;
    let reasoning_tokens = limited(manner.thinking, reading.as_ref(), &mut warnings);
    let held = grammar(&model, (&manner, &tools), (&mut reading, reasons), &mut warnings)?;
    let rules = sampling.rules(&encoder).map_err(|e| not_encoded(e, &model, "bad_words"))?;
    let prediction = encoder.encode(&manner.prediction, Special::Plain);
    let prediction = prediction.map_err(|e| not_encoded(e, &model, "prediction"))?;
    let logit_bias = biases(&manner, &model, &encoder)?;
    let head = head(shared, &model, &prompts, (&manner, &sampling));
    let mut head = Head { warnings, echo, parts, ..head };
    let common = Request {
        sampling: sampling.params,
        choices: manner.choices,
        stop: sampling.stop.clone(),
        ignore_eos: manner.ignore_eos,
        logit_bias,
        rules,
        held,
        reading,
        reasoning_tokens,
        // Who wants to go on behind the end measures, and is not held up.
        repeats: manner.repeats.filter(|_| !manner.ignore_eos),
        // (Measures of a text leave out its last token, which may be the end.)
        tell_end: is_raw && manner.logprobs.is_some(),
        also_end,
        prediction,
        draft: manner.draft,
        account: account_of_user(manner.user.as_deref()).unwrap_or(NOBODY),
        priority: manner.priority,
        timeout: manner.timeout,
        diagnose: manner.diagnose,
        lease: manner.lease,
        ..Request::new(Vec::new())
    };
    let within = Within::of(&model, manner.context, &mut head.warnings);
    let requests = within_context(within, &sampling, common, (prompts, param), &mut head.warnings)?;
    Ok(Prepared { model, requests, head, echoed, pictures })
}

/// What an answer is held to, if anything.
fn grammar(
    model: &Model,
    (manner, tools): (&Manner, &Tools),
    (reading, reasons): (&mut Option<Reading>, bool),
    warnings: &mut Vec<String>,
) -> Result<Option<Held>, ApiError> {
    let model = model.grammars();
    let held = match &manner.constrained {
        // What the text must hold stands above what calls hold.
        Some(constrained) => {
            holding::form(model, (constrained, tools), (reading, reasons), warnings).map(Some)
        }
        // Who wants to go on behind the end wants no grammar, which has one.
        None if manner.ignore_eos && !tools.must_hold() => Ok(None),
        None => holding::held(model, tools, (reading.as_ref(), reasons), warnings),
    };
    Ok(held?)
}

/// What is known of an answer by its prompts, and by how it is made.
fn head(
    shared: &Shared,
    model: &Model,
    prompts: &[Vec<TokenId>],
    (manner, sampling): (&Manner, &Sampling),
) -> Head {
    let told = |prompt: &Vec<TokenId>| text_of(prompt, &model.served.tokenizer);
    Head {
        ticket: shared.ticket(),
        created: unix_seconds(),
        model: model.served.name().to_owned(),
        prompts: prompts.len(),
        prompt_tokens: prompts.iter().map(Vec::len).sum(),
        choices: manner.choices,
        logprobs: manner.logprobs.is_some(),
        sampling: SamplingValues {
            seed: Some(sampling.params.seed),
            max_tokens: Some(sampling.max_tokens.unwrap_or(sampling.default_tokens)),
            ..manner.sampling.clone().or(model.served.defaults.sampling.clone())
        },
        told_prompts: prompts.iter().filter(|_| manner.tells_prompts).map(told).collect(),
        ..Head::default()
    }
}

/// What is added to logits, of tokens and of all tokens of texts.
fn biases(
    manner: &Manner,
    model: &Model,
    encoder: &Encoder<'_>,
) -> Result<Vec<(TokenId, f32)>, ApiError> {
    let mut all = manner.logit_bias.clone();
    for (text, bias) in &manner.biased_texts {
        let ids = encoder.encode(text, Special::Plain);
        let ids = ids.map_err(|e| not_encoded(e, model, "logit_bias"))?;
        all.extend(ids.into_iter().map(|id| (id, *bias)));
    }
    Ok(all)
}

/// How long the reasoning may be, where an answer has any.
fn limited(
    thinking: Option<Thinking>,
    reading: Option<&Reading>,
    warnings: &mut Vec<String>,
) -> Option<u32> {
    let Thinking { tokens, param } = thinking?;
    if reading.is_none_or(|reading| reading.format.end_of_reasoning().is_none()) {
        warnings.push(format!("{param} has no effect: answers of this model mark no reasoning"));
        return None;
    }
    Some(tokens)
}

/// Prompts whose log-probabilities are told.
///
/// # Errors
/// 400 for more than are told in one answer.
fn echoed(prompts: &[Vec<TokenId>], top: u32, unlisted: Vec<usize>) -> Result<Echoed, ApiError> {
    let tokens: usize = prompts.iter().map(Vec::len).sum();
    if tokens.saturating_mul(top as usize + 1) > MOST_ECHOED {
        let message = format!(
            "echo with logprobs: {tokens} tokens of prompts with {top} alternatives each; at most \
             {MOST_ECHOED} log-probabilities are told in one answer: send fewer prompts in each request"
        );
        return Err(ApiError::bad("echo", message));
    }
    Ok(Echoed { top, unlisted })
}

/// How long prompt and answer may be together.
#[derive(Debug, Clone, Copy)]
struct Within {
    context: u32,
    /// The request wants no more.
    is_asked: bool,
}

impl Within {
    /// The model's context, or less where that is asked for; more there is not.
    fn of(model: &Model, asked: Option<u32>, warnings: &mut Vec<String>) -> Self {
        let context = model.context();
        match asked {
            Some(asked) if asked < context => Self { context: asked, is_asked: true },
            asked => {
                if let Some(more) = asked.filter(|asked| *asked > context) {
                    warnings.push(format!(
                        "a context of {more} tokens was asked for: this model has {context} here"
                    ));
                }
                Self { context, is_asked: false }
            }
        }
    }

    /// A prompt that is longer.
    fn overflow(self, tokens: usize, param: &str) -> ApiError {
        let error = ApiError::context_length(tokens, self.context, param);
        match self.is_asked {
            false => error,
            true => {
                let message = format!(
                    "the context asked for is {} tokens, of which at least one must be left for \
                     the answer; the prompt has {tokens} tokens",
                    self.context
                );
                ApiError { message, ..error }
            }
        }
    }
}

/// A request for each prompt, with as many tokens of answer as the context leaves.
fn within_context(
    within: Within,
    sampling: &Sampling,
    common: Request,
    (prompts, param): (Vec<Vec<TokenId>>, &str),
    warnings: &mut Vec<String>,
) -> Result<Vec<Request>, ApiError> {
    let context = within.context;
    let mut cut = None;
    let mut requests = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        let used = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        let least = u32::from(sampling.max_tokens != Some(0));
        let Some(left) = context.checked_sub(used).filter(|left| *left >= least) else {
            return Err(within.overflow(prompt.len(), param));
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
pub fn count(
    model: &Model,
    ask: Generate,
    limits: &Limits,
    wanted: Wanted<'_>,
) -> Result<usize, ApiError> {
    let encoder = model.served.tokenizer.within(reach(model, wanted));
    let manner = Manner { diagnose: false, ..ask.manner };
    let asked = asked(model, ask.input, (&manner, limits), &encoder, &mut Vec::new())?;
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
    /// What the prompt has places for.
    pictures: Option<Pictures>,
    /// How the answer is read; `None`: all of it is text.
    reading: Option<Reading>,
    /// The model may reason before it answers.
    reasons: bool,
    /// The tools it may call.
    tools: Tools,
    /// Tokens that end the answer, beside those that end every one.
    also_end: Vec<TokenId>,
    /// Tokens at the front of each prompt that its text did not have.
    unlisted: Vec<usize>,
}

fn asked(
    model: &Model,
    input: Input,
    (manner, limits): (&Manner, &Limits),
    encoder: &Encoder<'_>,
    warnings: &mut Vec<String>,
) -> Result<Asked, ApiError> {
    match input {
        Input::Conversation(talk) => conversation(model, talk, (manner, limits), encoder),
        Input::Infill(infill) => between(model, &infill, manner, encoder, warnings),
        Input::Shown { text, images } => marked(model, (&text, &images), limits, encoder),
        Input::Prompts { prompts, suffix: Some(suffix), .. } => {
            infill(model, &prompts, &suffix, encoder)
        }
        Input::Prompts { prompts, echo, suffix: None } => {
            let tokenizer = &model.served.tokenizer;
            let echoed = prompts.iter().filter(|_| echo).map(|prompt| shown(prompt, tokenizer));
            let echo = echoed.collect();
            let is_text: Vec<bool> = prompts.iter().map(begins_with_text).collect();
            let tokens = |prompt| {
                let ids = tokens(prompt, encoder, Special::Parse);
                ids.map_err(|e| not_encoded(e, model, "prompt"))
            };
            let prompts: Vec<Vec<TokenId>> =
                prompts.into_iter().map(tokens).collect::<Result<_, _>>()?;
            let bos = |(prompt, is_text): (&Vec<TokenId>, bool)| {
                usize::from(is_text && prompt.first().copied() == tokenizer.bos_id())
            };
            let unlisted = prompts.iter().zip(is_text).map(bos).collect();
            Ok(Asked { prompts, param: "prompt", echo, unlisted, ..Asked::default() })
        }
    }
}

/// Prompts behind which a model writes what stands between them and a suffix.
fn infill(
    model: &Model,
    prompts: &[Prompt],
    suffix: &str,
    encoder: &Encoder<'_>,
) -> Result<Asked, ApiError> {
    let mut asked = Asked { param: "prompt", ..Asked::default() };
    for prompt in prompts {
        let mixed;
        let before = match prompt {
            Prompt::Text(text) => Before::Text(text),
            Prompt::Tokens(ids) => Before::Tokens(ids),
            Prompt::Mixed(_) => {
                let ids = tokens(prompt.clone(), encoder, Special::Plain);
                mixed = ids.map_err(|e| not_encoded(e, model, "prompt"))?;
                Before::Tokens(&mixed)
            }
        };
        let ids = encoder.infill(before, suffix).map_err(|e| not_encoded(e, model, "prompt"))?;
        asked.prompts.push(ids.ok_or_else(|| unmarked(model, "suffix"))?);
    }
    asked.also_end = model.served.tokenizer.infill_ends().unwrap_or_default().to_vec();
    Ok(asked)
}

/// A model whose vocabulary has no marks for infill; `member` asked for it.
fn unmarked(model: &Model, member: &str) -> ApiError {
    let message = format!(
        "{member}: infill is not supported by the model {:?}: its vocabulary has no marks for \
         filling in the middle",
        model.served.name()
    );
    ApiError::unsupported(member, message)
}

/// The prompt behind which a model writes the middle of a text, with as many of the other files as the
/// context holds.
fn between(
    model: &Model,
    infill: &Infill,
    manner: &Manner,
    encoder: &Encoder<'_>,
    warnings: &mut Vec<String>,
) -> Result<Asked, ApiError> {
    let (param, member) = ("input_prefix", "input_extra");
    let own = encoder.infill(Before::Text(&infill.before), &infill.behind);
    let own = own.map_err(|e| not_encoded(e, model, param))?;
    let mut ids = own.ok_or_else(|| ApiError {
        status: StatusCode::NOT_IMPLEMENTED,
        ..unmarked(model, param)
    })?;
    if !infill.files.is_empty() {
        let Beside { head, files, own } =
            encoder.beside(&infill.files).map_err(|e| not_encoded(e, model, member))?;
        let context = model.most_tokens();
        let answer = manner.sampling.max_tokens.map_or(context, |most| most as usize);
        let taken = ids.len() + head.len() + own.len() + answer.min(context / 4);
        let mut room = context.saturating_sub(taken);
        let fits = |file: &&Vec<TokenId>| {
            let left = room.checked_sub(file.len());
            room = left.unwrap_or(0);
            left.is_some()
        };
        let fitting = files.iter().rev().take_while(fits).count();
        let left_out = files.len() - fitting;
        if left_out > 0 {
            warnings.push(format!("{left_out} of the files of {member} do not fit the context"));
        }
        let files = files[left_out..].concat();
        let at = model.served.tokenizer.prefix().len();
        ids.splice(at..at, [head, files, own].concat());
    }
    let also_end = model.served.tokenizer.infill_ends().unwrap_or_default().to_vec();
    Ok(Asked { prompts: vec![ids], param, also_end, ..Asked::default() })
}

/// A conversation as the model's template writes it.
///
/// # Errors
/// 400 where the model has none, or it refuses the conversation, and for images that it does not see.
pub fn rendered(model: &Model, talk: Conversation, manner: &Manner) -> Result<Rendered, ApiError> {
    if let Some(image) = talk.images().next().filter(|_| !model.sees()) {
        return Err(images::unseen(image, model.served.name()));
    }
    let talk = talk.instructed(model.served.defaults.system.as_deref());
    let talk = talk.begun_by(&model.begins);
    let template = model.served.template.as_ref().map_err(|why| {
        let message = match why {
            TemplateError::Missing => "the model has no chat template".to_owned(),
            other => other.to_string(),
        };
        let message =
            format!("{message}; use /v1/completions, or /api/generate with \"raw\": true");
        ApiError { code: Some("no_chat_template"), ..ApiError::bad("messages", message) }
    })?;
    let talk = match manner.thinking {
        Some(limit) => talk.thinking_for(limit.tokens, template),
        None => talk,
    };
    let rendered = Rendered::new(template, model.format, talk, now());
    rendered.map_err(|e| ApiError::bad("messages", e.to_string()))
}

/// The prompt of a conversation.
fn conversation(
    model: &Model,
    talk: Conversation,
    (manner, limits): (&Manner, &Limits),
    encoder: &Encoder<'_>,
) -> Result<Asked, ApiError> {
    let rendered = rendered(model, talk, manner)?;
    let tokens = encoder.rendered(&rendered.prompt);
    let tokens = tokens.map_err(|e| not_encoded(e, model, "messages"))?;
    let most = model.most_tokens().saturating_mul(2);
    let images: Vec<&Image> = rendered.talk.images().collect();
    let (tokens, pictures) = seeing::sketched(model, &images, tokens, (encoder, limits, most))?;
    let text = rendered.prompt.text();
    let parts = match manner.diagnose && pictures.is_none() {
        true => parts(&rendered.talk, &text, &tokens, &model.served.tokenizer),
        false => Vec::new(),
    };
    let (reading, reasons) = (rendered.reading(), rendered.reasons);
    let (prompts, param, tools) = (vec![tokens], "messages", rendered.talk.tools);
    Ok(Asked { prompts, param, parts, pictures, reading, reasons, tools, ..Asked::default() })
}

/// A text that has a mark for each image: what its model wants around one comes beside.
fn marked(
    model: &Model,
    (text, images): (&str, &[Image]),
    limits: &Limits,
    encoder: &Encoder<'_>,
) -> Result<Asked, ApiError> {
    let Some(eyes) = &model.served.eyes else {
        let unseen = images.first().map(|image| images::unseen(image, model.served.name()));
        return Err(unseen.unwrap_or_else(ApiError::internal));
    };
    let [before, behind] = eyes.around();
    let (mut ids, last) = (Vec::new(), images.len());
    for (i, piece) in text.split(MARK).enumerate() {
        ids.extend((i > 0).then_some(IMAGE));
        let behind = if i > 0 { behind } else { "" };
        let before = if i < last { before } else { "" };
        let piece = encoder.encode(&format!("{behind}{piece}{before}"), Special::Parse);
        ids.extend(piece.map_err(|e| not_encoded(e, model, "prompt"))?);
    }
    let images: Vec<&Image> = images.iter().collect();
    let most = model.most_tokens().saturating_mul(2);
    let tokens = encoder.framed(ids, true, true);
    let (tokens, pictures) = seeing::sketched(model, &images, tokens, (encoder, limits, most))?;
    Ok(Asked { prompts: vec![tokens], param: "prompt", pictures, ..Asked::default() })
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

/// The tokens of a prompt. One that is a text is the caller's own from end to end: where control
/// tokens are looked for, those spelled out are such tokens.
///
/// # Errors
/// Those of the tokenizer.
pub fn tokens(
    prompt: Prompt,
    encoder: &Encoder<'_>,
    special: Special,
) -> Result<Vec<TokenId>, TokenizerError> {
    let begins = begins_with_text(&prompt);
    let parts = match prompt {
        Prompt::Tokens(ids) => return Ok(ids),
        Prompt::Text(text) => return encoder.prompt(&text, special),
        Prompt::Mixed(parts) => parts,
    };
    let ends = matches!(parts.last(), Some(Prompt::Text(_)));
    Ok(encoder.framed(plain_tokens(&parts, encoder, special)?, begins, ends))
}

/// The tokens of texts and tokens one behind another, with nothing before or behind them.
///
/// # Errors
/// Those of the tokenizer.
pub fn plain_tokens(
    parts: &[Prompt],
    encoder: &Encoder<'_>,
    special: Special,
) -> Result<Vec<TokenId>, TokenizerError> {
    let mut ids = Vec::new();
    for part in parts {
        match part {
            Prompt::Tokens(more) => ids.extend(more),
            Prompt::Text(text) => ids.extend(encoder.encode(text, special)?),
            Prompt::Mixed(parts) => ids.extend(plain_tokens(parts, encoder, special)?),
        }
    }
    Ok(ids)
}

/// Whether a prompt gets what the vocabulary wants before texts.
fn begins_with_text(prompt: &Prompt) -> bool {
    match prompt {
        Prompt::Text(_) => true,
        Prompt::Tokens(_) => false,
        Prompt::Mixed(parts) => parts.first().is_some_and(begins_with_text),
    }
}

fn shown(prompt: &Prompt, tokenizer: &Tokenizer) -> String {
    match prompt {
        Prompt::Text(text) => text.clone(),
        Prompt::Tokens(ids) => text_of(ids, tokenizer),
        Prompt::Mixed(parts) => parts.iter().map(|part| shown(part, tokenizer)).collect(),
    }
}

/// The text of tokens, control tokens by their names as in a prompt that is a text.
pub fn text_of(ids: &[TokenId], tokenizer: &Tokenizer) -> String {
    if !ids.iter().any(|id| tokenizer.is_special(*id)) {
        return tokenizer.decode(ids);
    }
    let bytes = ids.iter().filter_map(|id| tokenizer.token_bytes(*id));
    String::from_utf8_lossy(&bytes.collect::<Vec<_>>().concat()).into_owned()
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
            // (Conversations have other members in other dialects.)
            let what = if param == "messages" { "the prompt" } else { param };
            let message = format!(
                "this model's maximum context length is {most} tokens; {what} has at least {at_least} tokens"
            );
            let overflow = Some((at_least, most));
            ApiError { overflow, ..ApiError::too_long(param, message) }
        }
        other => ApiError::bad(param, other.to_string()),
    }
}
