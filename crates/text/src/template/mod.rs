//! Chat templates: messages to a prompt, as the model hubs render them.

mod call;
mod calls;
mod clock;
mod filters;
mod forms;
mod images;
mod json;
mod lexer;
mod messages;
mod methods;
mod parser;
mod reads;
mod render;
mod syntax;
mod text;
mod value;

use std::borrow::Cow;
use std::ops::Range;

use serde_json::Value as Json;

pub use self::calls::spelled;
use self::calls::{Arguments, Tools};
use self::forms::Forms;
use self::messages::{cut_at_mark, normalised, with_mark};
use self::syntax::Stmt;
use self::text::Text;
use self::value::{Meter, Value};
use crate::shown::shown;
pub use clock::DateTime;

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
    #[error("the chat template is not valid: {}", shown(reason))]
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
    #[error("the chat template refused the messages: {}", shown(message))]
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
    #[error("the chat template failed: {}", shown(reason))]
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
    /// The last message uses every noncharacter from U+FDD0 to U+FDEF, one of which must stay free.
    #[error("the last message uses all the code points that Unicode reserves for internal use")]
    NoMarkLeft,
    /// There are several templates, and none is the one to take.
    #[error(
        "the model has several chat templates and no default one ({}); give the one to use as \
         chat_template.jinja in the model's folder", shown(&names.join(", "))
    )]
    NoDefault {
        /// What they are called.
        names: Vec<String>,
    },
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
    /// Further tokens that templates know by name, such as `pad_token`, with their texts.
    pub named: Vec<(String, String)>,
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

/// A parsed chat template. Immutable, `Send + Sync`.
///
/// Steps, depth, output and the work of every operation are limited, so a template can neither
/// hang nor exhaust memory.
pub struct ChatTemplate {
    body: Vec<Stmt>,
    /// The one for requests with tools, where the model has two.
    with_tools: Option<Vec<Stmt>>,
    forms: Forms,
    tools: Tools,
    tokens: TemplateTokens,
    is_guess: bool,
    /// What it was parsed from; the one for requests with tools last.
    source: String,
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
    /// What the template itself wrote, in order.
    own: Vec<Range<usize>>,
    /// Where in the text images come of which the template wrote nothing, ascending.
    images: Vec<usize>,
    is_guess: bool,
}

impl RenderedPrompt {
    /// The prompt as text.
    pub fn text(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.text)
    }

    /// The ranges of the text in which control tokens are tokens.
    pub(crate) fn own(&self) -> &[Range<usize>] {
        &self.own
    }

    /// Where in the text images come that no text stands for.
    pub(crate) fn images(&self) -> &[usize] {
        &self.images
    }

    /// Whether the template is not the model's own.
    pub(crate) fn is_guess(&self) -> bool {
        self.is_guess
    }
}

fn parsed(source: &str) -> Result<Vec<Stmt>, TemplateError> {
    if source.len() > MAX_SOURCE_BYTES {
        return Err(TemplateError::SourceTooLong { bytes: source.len() });
    }
    parser::parse(source).map_err(|reason| TemplateError::Syntax { reason })
}

impl ChatTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`], [`TemplateError::SourceTooLong`].
    pub fn new(source: &str, tokens: TemplateTokens) -> Result<ChatTemplate, TemplateError> {
        let (body, forms) = (parsed(source)?, Forms::STRINGS);
        let (with_tools, tools, source) = (None, Tools::default(), source.to_owned());
        let mut template =
            ChatTemplate { body, with_tools, forms, tools, tokens, is_guess: false, source };
        template.try_forms();
        Ok(template)
    }

    /// Parses the template to take of several with names: `default`, and for requests with tools
    /// `tool_use` where there is one.
    ///
    /// # Errors
    /// [`TemplateError::NoDefault`] without a default; as [`new`](Self::new).
    pub fn named(
        sources: &[(String, String)],
        tokens: TemplateTokens,
    ) -> Result<ChatTemplate, TemplateError> {
        let of_name = |wanted: &str| sources.iter().find(|(name, _)| name == wanted);
        let Some((_, source)) = of_name("default") else {
            let mut names: Vec<String> = sources.iter().map(|(name, _)| name.clone()).collect();
            names.sort_unstable();
            return Err(TemplateError::NoDefault { names });
        };
        let mut template = ChatTemplate::new(source, tokens)?;
        template.with_tools = of_name("tool_use").map(|(_, source)| parsed(source)).transpose()?;
        if template.with_tools.is_some() {
            template.source.extend(of_name("tool_use").map(|(_, source)| source.as_str()));
            template.try_forms();
        }
        Ok(template)
    }

    fn try_forms(&mut self) {
        self.forms = Forms::of(self);
        self.tools = calls::tried(self);
    }

    /// The template for a model that brings none: ChatML if the vocabulary has its tokens.
    ///
    /// # Errors
    /// [`TemplateError::Missing`] if it does not.
    pub fn fallback(tokens: TemplateTokens) -> Result<ChatTemplate, TemplateError> {
        let has = |name: &str| tokens.control.iter().any(|token| token == name);
        match has("<|im_start|>") && has("<|im_end|>") {
            true => {
                let template = ChatTemplate::new(CHATML, tokens)?;
                Ok(ChatTemplate { is_guess: true, ..template })
            }
            false => Err(TemplateError::Missing),
        }
    }

    /// What it was parsed from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether this is not the model's own template, but a guess by its vocabulary.
    pub fn is_guess(&self) -> bool {
        self.is_guess
    }

    /// Whether the template reads a variable, such as `tools` or `enable_thinking`.
    pub fn uses(&self, variable: &str) -> bool {
        let mut bodies = std::iter::once(&self.body).chain(&self.with_tools);
        bodies.any(|body| reads::variable(body, variable))
    }

    /// The messages with every content in a form that the template reads: as it was sent where it
    /// can be, else a string as one part, or text parts as one text with line breaks between.
    /// Likewise the arguments of calls: objects, or texts of JSON.
    pub fn readable<'m>(&self, messages: &'m [Json]) -> Cow<'m, [Json]> {
        let messages = self.readable_contents(messages);
        match self.tools.arguments {
            Some(Arguments::Text) => calls::as_texts(messages),
            Some(Arguments::Object) | None => messages,
        }
    }

    fn readable_contents<'m>(&self, messages: &'m [Json]) -> Cow<'m, [Json]> {
        self.forms.applied(messages)
    }

    /// Whether the template offers tools and writes earlier calls of them.
    pub fn has_tools(&self) -> bool {
        self.tools.offered && self.tools.arguments.is_some()
    }

    /// Renders messages in a form that the template reads; images of which it writes nothing stand where
    /// their parts stand.
    ///
    /// # Errors
    /// As [`render`](Self::render).
    pub fn render_readable(
        &self,
        messages: &[Json],
        options: &RenderOptions<'_>,
    ) -> Result<RenderedPrompt, TemplateError> {
        let marked = if self.forms.images { None } else { images::as_texts(messages)? };
        let Some((messages, mark)) = marked else {
            return self.render(&self.readable(messages), options);
        };
        let mut prompt = self.render(&self.readable(&messages), options)?;
        prompt.images = images::taken_out(&mut prompt.text, &mut prompt.own, mark);
        Ok(prompt)
    }

    /// Renders messages as they are, each a JSON object with `role` and `content` at least.
    ///
    /// # Errors
    /// See [`TemplateError`]; every failure is one of this request.
    pub fn render(
        &self,
        messages: &[Json],
        options: &RenderOptions<'_>,
    ) -> Result<RenderedPrompt, TemplateError> {
        self.render_within(value::ALLOWANCE, self.forms.keeps_null, messages, options)
    }

    /// Renders with so much to spend, contents that are null left as they are or left out.
    fn render_within(
        &self,
        allowance: u64,
        keeps_null: bool,
        messages: &[Json],
        options: &RenderOptions<'_>,
    ) -> Result<RenderedPrompt, TemplateError> {
        let kwargs = options.kwargs.into_iter().flat_map(serde_json::Map::iter);
        if let Some((name, _)) = kwargs.clone().find(|(name, _)| RESERVED.contains(&name.as_str()))
        {
            return Err(TemplateError::ReservedName { name: name.clone() });
        }
        let marked;
        let (messages, mark) = match options.continue_final {
            true => {
                let (with_mark, mark) = with_mark(messages)?;
                marked = with_mark;
                (marked.as_slice(), Some(mark))
            }
            false => (messages, None),
        };
        let outside = messages.iter().chain(options.tools).chain(options.documents);
        let outside = outside.chain(kwargs.clone().map(|(_, value)| value));
        let meter = Meter::new(allowance, outside.map(weight).sum());
        let message = |message: &Json| Value::from_json(&normalised(message, keeps_null));
        let messages = messages.iter().map(message).collect::<Result<Vec<Value>, _>>()?;
        let optional = |value: Option<&Json>| value.map_or(Ok(Value::None), Value::from_json);
        let mut variables = vec![
            ("messages".to_owned(), Value::list(messages, value::Kind::List)?),
            ("tools".to_owned(), optional(options.tools)?),
            ("documents".to_owned(), optional(options.documents)?),
            ("add_generation_prompt".to_owned(), Value::Bool(options.add_generation_prompt)),
        ];
        let tokens = self.tokens.named.iter().map(|(name, text)| (name.as_str(), text));
        let ends = [("bos_token", &self.tokens.bos), ("eos_token", &self.tokens.eos)];
        for (name, text) in tokens.chain(ends).filter(|(_, text)| !text.is_empty()) {
            variables.push((name.to_owned(), Value::Str(Text::own(text.as_str()))));
        }
        for (name, value) in kwargs {
            variables.push((name.clone(), Value::from_json(value)?));
        }
        let with_tools = self.with_tools.as_ref().filter(|_| options.tools.is_some());
        let body = with_tools.unwrap_or(&self.body);
        let (mut text, mut own) = render::render(body, variables, options.now, meter)?;
        if let Some(mark) = mark {
            cut_at_mark(&mut text, &mut own, mark)?;
        }
        Ok(RenderedPrompt { text, own, images: Vec::new(), is_guess: self.is_guess })
    }
}

/// Texts and values of what a request brings: its rendering may cost in proportion.
fn weight(value: &Json) -> usize {
    let (mut todo, mut weight) = (vec![value], 0);
    while let Some(value) = todo.pop() {
        weight += value::LOOK;
        match value {
            Json::String(text) => weight += text.len(),
            Json::Array(items) => todo.extend(items),
            Json::Object(map) => {
                weight += map.keys().map(String::len).sum::<usize>();
                todo.extend(map.values());
            }
            _ => {}
        }
    }
    weight
}
