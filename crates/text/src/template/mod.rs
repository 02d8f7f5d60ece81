//! Chat templates: messages to a prompt, as the model hubs render them.

mod clock;
mod guard;
mod limits;
mod python;

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use minijinja::{Environment, Error, ErrorKind, Value};
use serde_json::Value as Json;

use self::guard::Guard;
use self::limits::Budget;
pub use clock::DateTime;

/// Steps one rendering may take. A long chat takes some hundred thousand.
const FUEL: u64 = 5_000_000;
/// Longest prompt a template may write, in bytes.
const MAX_OUTPUT_BYTES: usize = 8 << 20;
/// Longest template source, in bytes.
const MAX_SOURCE_BYTES: usize = 1 << 20;

/// Names of the template's own variables, which extra variables may not replace.
const RESERVED: &[&str] = &[
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "bos_token",
    "eos_token",
    "chat_template",
    "tokenize",
    "raise_exception",
    "strftime_now",
];

/// The format most models without a template of their own were tuned on.
const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' \
    + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Why a template could not be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The source is not a template.
    #[error("the chat template is not valid: {reason}")]
    Syntax {
        /// What the parser found.
        reason: String,
    },
    /// The source is longer than a template may be.
    #[error("the chat template has {bytes} bytes, more than {MAX_SOURCE_BYTES}")]
    SourceTooLong {
        /// Length of the source.
        bytes: usize,
    },
    /// The model has no template and none can be told from its vocabulary.
    #[error("the model has no chat template; pass one, or use plain completion")]
    Missing,
    /// The template refused the messages with `raise_exception`.
    #[error("the chat template refused the messages: {message}")]
    Raised {
        /// The template's own words.
        message: String,
    },
    /// The template computed for too long, or built values too large.
    #[error("the chat template takes too much time or memory")]
    OutOfFuel,
    /// The template wrote too much.
    #[error("the chat template wrote more than {MAX_OUTPUT_BYTES} bytes")]
    OutputTooLong,
    /// The template failed on these messages.
    #[error("the chat template failed: {reason}")]
    Render {
        /// What the engine reports.
        reason: String,
    },
    /// An extra variable has the name of one of the template's own.
    #[error("a chat template variable may not be called {name:?}")]
    ReservedName {
        /// The name.
        name: String,
    },
    /// `continue_final` without a last message whose text the template writes.
    #[error("there is no final message text to continue")]
    NothingToContinue,
    /// A value is nested deeper than 128 levels.
    #[error("a value for the chat template is nested too deep")]
    TooDeep,
    /// The messages use every noncharacter from U+FDD0 to U+FDEF, one of which must stay free.
    #[error("the messages use all the code points that Unicode reserves for internal use")]
    NoGuardLeft,
    /// The control tokens are too many or too long to search for.
    #[error("the control tokens are too many or too long")]
    TooManySpecials,
}

/// What a template needs to know of the vocabulary.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TemplateTokens {
    /// Text of the token that starts a text; empty if there is none.
    pub bos: String,
    /// Text of the token that ends one; empty if there is none.
    pub eos: String,
    /// Texts of all control tokens: in the users' strings they stay text.
    pub control: Vec<String>,
}

/// What to render beside the messages.
#[derive(Debug, Clone, Copy, Default)]
pub struct RenderOptions<'a> {
    /// End with the beginning of the assistant's turn.
    pub add_generation_prompt: bool,
    /// End inside the last message, which the answer continues. Goes with
    /// `add_generation_prompt: false`.
    pub continue_final: bool,
    /// The tools on offer: an array of JSON schemas in the usual envelope.
    pub tools: Option<&'a Json>,
    /// Documents for models that take them.
    pub documents: Option<&'a Json>,
    /// What `strftime_now` prints.
    pub now: DateTime,
    /// Extra variables, such as `enable_thinking`.
    pub kwargs: Option<&'a serde_json::Map<String, Json>>,
}

/// A compiled chat template. Immutable, `Send + Sync`.
///
/// Steps, output, and the size and depth of assigned values are limited. A single expression made
/// for it can still build a string that exhausts memory (`x.replace('a', x)` with a long `x`):
/// compile what came with a model, never what came with a request.
pub struct ChatTemplate {
    environment: Environment<'static>,
    guard: Guard,
    tokens: TemplateTokens,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("tokens", &self.tokens).finish_non_exhaustive()
    }
}

/// A prompt in which the template's control tokens can be told from those users wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedPrompt {
    text: String,
    guard: char,
}

impl RenderedPrompt {
    /// The prompt as text.
    pub fn text(&self) -> Cow<'_, str> {
        match self.text.contains(self.guard) {
            true => Cow::Owned(self.text.replace(self.guard, "")),
            false => Cow::Borrowed(&self.text),
        }
    }

    /// The prompt with the guard after the first character of every control token that is text.
    pub(crate) fn guarded_text(&self) -> &str {
        &self.text
    }

    pub(crate) fn guard(&self) -> Option<char> {
        Some(self.guard)
    }
}

/// The message of `raise_exception`.
#[derive(Debug)]
struct Raised(String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`], [`TemplateError::SourceTooLong`],
    /// [`TemplateError::TooManySpecials`].
    pub fn new(source: &str, tokens: TemplateTokens) -> Result<ChatTemplate, TemplateError> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(TemplateError::SourceTooLong { bytes: source.len() });
        }
        let guard = Guard::new(&tokens.control).ok_or(TemplateError::TooManySpecials)?;
        let mut environment = Environment::new();
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_syntax(syntax()?);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(python::methods);
        environment.add_filter("tojson", python::tojson);
        environment.add_filter("string", python::string);
        environment.add_filter("indent", python::indent);
        environment.add_test("iterable", python::is_iterable);
        environment.add_test("sequence", python::is_sequence);
        environment.add_function("raise_exception", raise_exception);
        environment.remove_global("debug");
        environment
            .add_template_owned("chat", limits::prepare(source)?)
            .map_err(|error| TemplateError::Syntax { reason: describe(&error) })?;
        Ok(ChatTemplate { environment, guard, tokens })
    }

    /// The template for a model that brings none: ChatML if the vocabulary has its tokens.
    ///
    /// # Errors
    /// [`TemplateError::Missing`] if it does not.
    pub fn fallback(tokens: TemplateTokens) -> Result<ChatTemplate, TemplateError> {
        let has = |name: &str| tokens.control.iter().any(|token| token == name);
        match has("<|im_start|>") && has("<|im_end|>") {
            true => ChatTemplate::new(CHATML, tokens),
            false => Err(TemplateError::Missing),
        }
    }

    /// Whether the template reads a variable, such as `tools` or `enable_thinking`.
    pub fn uses(&self, variable: &str) -> bool {
        let template = self.environment.get_template("chat");
        template.is_ok_and(|template| template.undeclared_variables(false).contains(variable))
    }

    /// Renders messages, each a JSON object with `role` and `content` at least.
    ///
    /// # Errors
    /// See [`TemplateError`]; every failure is one of this request.
    pub fn render(
        &self,
        messages: &[Json],
        options: &RenderOptions<'_>,
    ) -> Result<RenderedPrompt, TemplateError> {
        let kwargs = options.kwargs.into_iter().flat_map(serde_json::Map::iter);
        if let Some((name, _)) = kwargs.clone().find(|(name, _)| RESERVED.contains(&name.as_str()))
        {
            return Err(TemplateError::ReservedName { name: name.clone() });
        }
        let outside = messages.iter().chain(options.tools).chain(options.documents);
        let outside = outside.chain(kwargs.clone().map(|(_, value)| value));
        let (guard, mark) = guard::free_characters(outside)?;
        let guarded = |value: &Json| self.guard.value(value, guard);
        let optional = |value: Option<&Json>| value.map_or(Ok(Value::from(())), guarded);

        let marked: Vec<Json>;
        let messages = match options.continue_final {
            true => {
                marked = with_mark(messages, mark)?;
                &marked
            }
            false => messages,
        };
        let messages = messages.iter().map(|message| guarded(&with_reasoning(message)));
        let messages = messages.collect::<Result<Vec<Value>, _>>()?;
        let now = options.now;
        let strftime_now = move |format: &str| now.strftime(format);
        let mut context = vec![
            ("messages".to_owned(), Value::from(messages)),
            ("tools".to_owned(), optional(options.tools)?),
            ("documents".to_owned(), optional(options.documents)?),
            ("add_generation_prompt".to_owned(), Value::from(options.add_generation_prompt)),
            ("strftime_now".to_owned(), Value::from_function(strftime_now)),
        ];
        let tokens = [("bos_token", &self.tokens.bos), ("eos_token", &self.tokens.eos)];
        for (name, text) in tokens.into_iter().filter(|(_, text)| !text.is_empty()) {
            context.push((name.to_owned(), Value::from(text.as_str())));
        }
        for (name, value) in kwargs {
            context.push((name.clone(), guarded(value)?));
        }
        let mut text = self.write(Value::from_pairs(context))?;
        if options.continue_final {
            cut_at_mark(&mut text, mark)?;
        }
        Ok(RenderedPrompt { text, guard })
    }

    fn write(&self, context: Value) -> Result<String, TemplateError> {
        let failed = |error: &Error| TemplateError::Render { reason: describe(error) };
        let mut environment = self.environment.clone();
        let budget = Arc::new(Budget::default());
        let (bounds, loops) = (Arc::clone(&budget), Arc::clone(&budget));
        environment.add_filter(limits::FILTER, move |value: Value| bounds.bounded(value));
        environment.add_filter(limits::EACH, move |value: Value| loops.each(value));
        environment.set_formatter(move |out, _, value| python::print(out, value, &budget));
        let template = environment.get_template("chat").map_err(|error| failed(&error))?;
        let mut out = Capped::default();
        // The engine can panic on slices of an empty list; nothing of it is looked at afterwards.
        let render = AssertUnwindSafe(|| template.render_captured_to(context, &mut out));
        let Ok(rendered) = catch_unwind(render) else {
            let reason = "the template engine gave up on an expression".to_owned();
            return Err(TemplateError::Render { reason });
        };
        match rendered {
            _ if out.overflowed => Err(TemplateError::OutputTooLong),
            Ok(_) => String::from_utf8(out.bytes)
                .map_err(|_| TemplateError::Render { reason: "output is not UTF-8".to_owned() }),
            Err(error) if error.kind() == ErrorKind::OutOfFuel => Err(TemplateError::OutOfFuel),
            Err(error) => Err(match raised(&error) {
                Some(message) => TemplateError::Raised { message },
                None => failed(&error),
            }),
        }
    }
}

/// A writer that stops at [`MAX_OUTPUT_BYTES`].
#[derive(Default)]
struct Capped {
    bytes: Vec<u8>,
    overflowed: bool,
}

impl std::io::Write for &mut Capped {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_OUTPUT_BYTES {
            self.overflowed = true;
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The hubs strip the line break after a block and the blanks before one.
fn syntax() -> Result<minijinja::syntax::SyntaxConfig, TemplateError> {
    minijinja::syntax::SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .map_err(|error| TemplateError::Syntax { reason: describe(&error) })
}

fn raise_exception(message: &str) -> Result<Value, Error> {
    let error = Error::new(ErrorKind::InvalidOperation, message.to_owned());
    Err(error.with_source(Raised(message.to_owned())))
}

/// The message of the `raise_exception` that caused an error, if one did.
fn raised(error: &Error) -> Option<String> {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        if let Some(Raised(message)) = error.downcast_ref() {
            return Some(message.clone());
        }
        cause = error.source();
    }
    None
}

fn describe(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// The messages with a mark behind the text of the last one.
fn with_mark(messages: &[Json], mark: char) -> Result<Vec<Json>, TemplateError> {
    let mut messages = messages.to_vec();
    let content = messages.last_mut().and_then(|message| message.get_mut("content"));
    let text = match content {
        Some(Json::Array(parts)) => parts.iter_mut().rev().find_map(|part| part.get_mut("text")),
        content => content,
    };
    let Some(Json::String(text)) = text else { return Err(TemplateError::NothingToContinue) };
    text.push(mark);
    // Where the template trims, the blank is gone afterwards.
    text.push(' ');
    Ok(messages)
}

/// Ends the text where the mark is.
fn cut_at_mark(text: &mut String, mark: char) -> Result<(), TemplateError> {
    let at = text.rfind(mark).ok_or(TemplateError::NothingToContinue)?;
    let trimmed = !text.get(at..).unwrap_or_default().trim_start_matches(mark).starts_with(' ');
    text.truncate(at);
    if trimmed {
        text.truncate(text.trim_end().len());
    }
    Ok(())
}

/// Older and newer names of a message's reasoning: templates read either.
fn with_reasoning(message: &Json) -> Cow<'_, Json> {
    const NAMES: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
    let Some(object) = message.as_object() else { return Cow::Borrowed(message) };
    let found = NAMES.iter().filter_map(|name| object.get(*name)).find(|value| !value.is_null());
    let Some(reasoning) = found else { return Cow::Borrowed(message) };
    let mut object = object.clone();
    if !object.contains_key("thinking") {
        object.insert("thinking".to_owned(), reasoning.clone());
    }
    object.insert("reasoning_content".to_owned(), reasoning.clone());
    Cow::Owned(Json::Object(object))
}
