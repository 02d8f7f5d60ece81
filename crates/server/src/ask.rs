//! What a request asks for, in no dialect's words: dialects read into these and nothing else, and
//! what comes of them is written by the dialect's [`Writer`].

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
pub use tokenmill_chat::Constrained;
use tokenmill_engine::{
    Divergence, DraftMode, Lease, RepeatRule, SamplingValues, StopReason, TokenInfo, Usage,
};
use tokenmill_ir::TokenId;
use tokenmill_output::Piece;
use tokio::sync::Notify;

use crate::config::Limits;
use crate::conversation::Conversation;
use crate::error::ApiError;
use crate::fields::{Fields, Notes};
use crate::images::Image;
use crate::shared::Model;
use crate::workshop::Wanted;

/// A text or tokens as they were given.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// A text.
    Text(String),
    /// Its tokens.
    Tokens(Vec<TokenId>),
    /// Texts and tokens, one behind another.
    Mixed(Vec<Prompt>),
}

/// A text whose middle is missing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Infill {
    /// What is before it.
    pub before: String,
    /// What is behind it.
    pub behind: String,
    /// Other files, the nearest last: a name and a text each.
    pub files: Vec<(String, String)>,
}

/// What is to be continued.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// A conversation by the next message.
    Conversation(Conversation),
    /// Texts as they are.
    Prompts {
        /// The texts; not empty.
        prompts: Vec<Prompt>,
        /// Answers begin with their prompt.
        echo: bool,
        /// What follows the answer, which stands between each prompt and this.
        suffix: Option<String>,
    },
    /// A text by its middle.
    Infill(Infill),
    /// A text as it is, with a mark ([`MARK`](crate::llamacpp::MARK)) for each image.
    Shown {
        /// The text.
        text: String,
        /// As many as it has marks.
        images: Vec<Image>,
    },
}

/// How many tokens an answer may reason for, and the member that says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thinking {
    /// That many.
    pub tokens: u32,
    /// The member.
    pub param: &'static str,
}

/// How to answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Manner {
    /// What the request says of how to sample.
    pub sampling: SamplingValues,
    /// Tokens of an answer where neither it nor the packager names any.
    pub default_tokens: Option<u32>,
    /// Whether log-probabilities are told, and of how many alternatives.
    pub logprobs: Option<u32>,
    /// Parallel answers to each prompt.
    pub choices: u32,
    /// Do not stop at end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Tokens that end the answer, beside the model's own.
    pub also_end: Vec<TokenId>,
    /// Added to logits.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Added to logits of all tokens of a text.
    pub biased_texts: Vec<(String, f32)>,
    /// What the answer must hold.
    pub constrained: Option<Constrained>,
    /// Most tokens of prompt and answer together, where that is less than the model has.
    pub context: Option<u32>,
    /// How long it may reason; `None`: as the model sees fit.
    pub thinking: Option<Thinking>,
    /// When it is ended because it repeats itself; `None`: never.
    pub repeats: Option<RepeatRule>,
    /// Where drafts come from; `None`: the server's choice.
    pub draft: Option<DraftMode>,
    /// The text that the answer is expected to repeat.
    pub prediction: String,
    /// Among requests of one account: smaller comes first.
    pub priority: i32,
    /// How long it may take.
    pub timeout: Option<Duration>,
    /// Tell where the prompt leaves the nearest cached one.
    pub diagnose: bool,
    /// How long the prompt stays in the cache.
    pub lease: Option<Lease>,
    /// The prompts are told with the answer, as texts.
    pub tells_prompts: bool,
    /// The same as tokens.
    pub tells_ids: bool,
    /// The client's name for who asks.
    pub user: Option<String>,
}

impl Default for Manner {
    /// One answer, of which nothing is said.
    fn default() -> Self {
        Self {
            sampling: SamplingValues::default(),
            default_tokens: None,
            logprobs: None,
            choices: 1,
            ignore_eos: false,
            also_end: Vec::new(),
            logit_bias: Vec::new(),
            biased_texts: Vec::new(),
            constrained: None,
            context: None,
            thinking: None,
            repeats: None,
            draft: None,
            prediction: String::new(),
            priority: 0,
            timeout: None,
            diagnose: false,
            lease: None,
            tells_prompts: false,
            tells_ids: false,
            user: None,
        }
    }
}

/// Text to be made.
#[derive(Debug, Clone, PartialEq)]
pub struct Generate {
    /// The model's name; `None`: the only one.
    pub model: Option<String>,
    /// What is to be continued.
    pub input: Input,
    /// How.
    pub manner: Manner,
}

/// What becomes a vector.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// A text.
    Text(Prompt),
    /// An image, for models that have vectors of these too.
    Image(Image),
}

impl Item {
    fn image_mut(&mut self) -> Option<&mut Image> {
        match self {
            Self::Image(image) => Some(image),
            Self::Text(_) => None,
        }
    }
}

/// Texts that are answered by numbers.
#[derive(Debug, Clone, PartialEq)]
pub enum Measure {
    /// A vector of each.
    Embed {
        /// The texts and images; not empty.
        inputs: Vec<Item>,
        /// Columns kept; the rest is cut off and the length made 1 again.
        dimensions: Option<u32>,
    },
    /// How much each document has to do with a query.
    Rank {
        /// What is looked for.
        query: String,
        /// Where.
        documents: Vec<String>,
    },
}

/// Numbers to be computed.
#[derive(Debug, Clone, PartialEq)]
pub struct Numbers {
    /// The model's name; `None`: the only one.
    pub model: Option<String>,
    /// Of what.
    pub measure: Measure,
    /// The client's name for who asks.
    pub user: Option<String>,
    /// How long it may take.
    pub timeout: Option<Duration>,
}

/// A request that was read, and who writes its answer.
pub enum Ask {
    /// Text.
    Generate {
        /// What.
        ask: Box<Generate>,
        /// As it comes.
        stream: bool,
        /// Writes it.
        writer: MakeWriter,
    },
    /// The tokens that text would be made behind.
    Count {
        /// What.
        ask: Box<Generate>,
        /// Writes them.
        write: WriteCount,
    },
    /// Numbers.
    Numbers {
        /// What.
        ask: Numbers,
        /// Writes them.
        write: WriteNumbers,
    },
    /// What is known of a model without any step of it.
    Look {
        /// The model's name; `None`: the only one.
        model: Option<String>,
        /// Finds it out.
        look: Look,
    },
}

impl Ask {
    /// The name of the model that is asked; `None`: the only one.
    pub fn model(&self) -> Option<&str> {
        match self {
            Self::Generate { ask, .. } | Self::Count { ask, .. } => ask.model.as_deref(),
            Self::Numbers { ask, .. } => ask.model.as_deref(),
            Self::Look { model, .. } => model.as_deref(),
        }
    }

    /// Its images, in order, to be changed.
    pub fn images_mut(&mut self) -> Vec<&mut Image> {
        match self {
            Self::Generate { ask, .. } | Self::Count { ask, .. } => match &mut ask.input {
                Input::Conversation(talk) => talk.images_mut().collect(),
                Input::Shown { images, .. } => images.iter_mut().collect(),
                Input::Prompts { .. } | Input::Infill(_) => Vec::new(),
            },
            Self::Numbers { ask, .. } => match &mut ask.measure {
                Measure::Embed { inputs, .. } => {
                    inputs.iter_mut().filter_map(Item::image_mut).collect()
                }
                Measure::Rank { .. } => Vec::new(),
            },
            Self::Look { .. } => Vec::new(),
        }
    }
}

/// The writer of an answer with that head.
pub type MakeWriter = Box<dyn FnOnce(Head) -> Box<dyn Writer> + Send>;

/// The body of an answer that counts the tokens of a prompt, with what had no effect.
pub type WriteCount = Box<dyn FnOnce(usize, &[String]) -> Value + Send>;

/// The body of an answer that needs a model's vocabulary or template alone, with what had no effect.
pub type Look = Box<dyn FnOnce(&Model, &[String], Wanted<'_>) -> Result<Value, ApiError> + Send>;

/// The body of an answer of numbers, as JSON.
pub type WriteNumbers = Box<dyn FnOnce(&NumbersHead, Found) -> String + Send>;

/// Reads the body of a request.
///
/// # Errors
/// 400 naming the member at fault.
pub type Read = fn(Fields, &Limits, &mut Notes) -> Result<Ask, ApiError>;

/// How a client's API speaks, beside what its requests are read and answers written by.
pub struct Dialect {
    /// The body that tells an error.
    pub error: fn(&ApiError) -> Value,
}

/// A message as part of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// Tokens of the prompt up to its end.
    pub end: usize,
    /// Whether it instructs.
    pub is_system: bool,
    /// Its index.
    pub index: usize,
}

/// What is known of an answer before its first token.
#[derive(Debug, Clone, Default)]
pub struct Head {
    /// A number no other answer has.
    pub ticket: u64,
    /// Unix seconds.
    pub created: u64,
    /// The model's own name.
    pub model: String,
    /// Prompts.
    pub prompts: usize,
    /// Tokens of all of them.
    pub prompt_tokens: usize,
    /// Choices of each prompt.
    pub choices: u32,
    /// Whether log-probabilities are told.
    pub logprobs: bool,
    /// How it is sampled: what the request says, else the packager; with its seed and most tokens.
    pub sampling: SamplingValues,
    /// The prompts as texts, where they are told.
    pub told_prompts: Vec<String>,
    /// The prompts as tokens, where they are told.
    pub told_ids: Vec<Vec<TokenId>>,
    /// What of the request had no effect.
    pub warnings: Vec<String>,
    /// Text each prompt's answers begin with; empty: none.
    pub echo: Vec<String>,
    /// The tokens of these texts, where log-probabilities are told; the first has none.
    pub echoed: Vec<Vec<TokenInfo>>,
    /// Messages of the prompt, where it was asked how it differs from cached ones.
    pub parts: Vec<Part>,
}

impl Head {
    /// Choices of all prompts.
    pub fn all_choices(&self) -> usize {
        self.prompts * self.choices as usize
    }

    /// Index of a choice among those of all prompts.
    pub fn index(&self, prompt: usize, choice: u32) -> usize {
        prompt * self.choices as usize + choice as usize
    }
}

/// The same of an answer of numbers.
#[derive(Debug, Clone)]
pub struct NumbersHead {
    /// A number no other answer has.
    pub ticket: u64,
    /// The model's own name.
    pub model: String,
    /// What of the request had no effect.
    pub warnings: Vec<String>,
}

/// Numbers that were computed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Found {
    /// A vector of each text, or one number of each document: how relevant it is.
    pub rows: Vec<Vec<f32>>,
    /// Tokens of all texts.
    pub prompt_tokens: u64,
}

/// A call of a tool in an answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Called {
    /// The tool's name.
    pub name: String,
    /// A text of JSON; only a part of it where the answer was cut.
    pub arguments: String,
    /// Whether it came to its end.
    pub whole: bool,
}

/// A choice that has ended.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    /// What it says, in order.
    pub pieces: Vec<Piece>,
    /// Its tokens, where log-probabilities are told.
    pub tokens: Vec<TokenInfo>,
    /// How many of them there are up to the end of each piece.
    pub ends: Vec<usize>,
    /// How it ended.
    pub finish: Option<StopReason>,
}

impl Choice {
    /// Takes more of it.
    pub fn add(&mut self, piece: Piece) {
        let new = match self.pieces.last_mut() {
            Some(last) => last.join(piece),
            None => Some(piece),
        };
        self.pieces.extend(new);
    }

    /// Takes the tokens of the piece that was added last.
    pub fn tell(&mut self, tokens: Vec<TokenInfo>) {
        self.ends.resize(self.pieces.len(), self.tokens.len());
        self.tokens.extend(tokens);
        if let Some(end) = self.ends.last_mut() {
            *end = self.tokens.len();
        }
    }

    /// The tokens of a piece.
    pub fn tokens_of(&self, piece: usize) -> &[TokenInfo] {
        let end = |piece: Option<usize>| piece.and_then(|i| self.ends.get(i)).copied();
        let begin = end(piece.checked_sub(1)).unwrap_or(0);
        self.tokens.get(begin..end(Some(piece)).unwrap_or(begin)).unwrap_or_default()
    }

    /// Its text.
    pub fn text(&self) -> String {
        let is_text = |piece: &&Piece| matches!(piece, Piece::Text(_));
        self.pieces.iter().filter(is_text).map(Piece::text).collect()
    }

    /// What the model thought before.
    pub fn reasoning(&self) -> String {
        let is_thought = |piece: &&Piece| matches!(piece, Piece::Reasoning(_));
        self.pieces.iter().filter(is_thought).map(Piece::text).collect()
    }

    /// Its calls, in order.
    pub fn calls(&self) -> Vec<Called> {
        let mut calls: Vec<Called> = Vec::new();
        for piece in &self.pieces {
            match (piece, calls.last_mut()) {
                (Piece::CallStart { name }, _) => {
                    calls.push(Called { name: name.clone(), ..Called::default() });
                }
                (Piece::CallArguments(text), Some(call)) => call.arguments.push_str(text),
                (Piece::CallEnd, Some(call)) => call.whole = true,
                _ => {}
            }
        }
        calls
    }
}

/// How long an answer took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Took {
    /// From the request's last byte to the engine: its model, template and tokens.
    pub waited: Duration,
    /// From there to the first token.
    pub prompt: Duration,
    /// From the first token to the end.
    pub answer: Duration,
}

/// An answer that is made while its client does other things.
pub struct Left {
    /// What the client is told at once.
    pub told: Value,
    /// Told where the answer is to end before it is whole.
    pub end: Arc<Notify>,
}

/// Writes an answer in a dialect, whole or as a stream of events.
pub trait Writer: Send {
    /// Where the client does not wait for the answer: what it is told, once the answer is begun.
    ///
    /// # Errors
    /// The answer cannot be kept, so it is not made.
    fn leave(&mut self) -> Result<Option<Left>, ApiError> {
        Ok(None)
    }
    /// What is known of the answer.
    fn head(&self) -> &Head;
    /// What a stream begins with.
    fn open(&mut self, out: &mut String);
    /// More of a choice, and the tokens since the piece before, some of them perhaps without text
    /// yet.
    fn piece(&mut self, choice: usize, piece: &Piece, tokens: &[TokenInfo], out: &mut String);
    /// Something of a choice that is to be told with its end.
    fn warn(&mut self, choice: usize, warning: String);
    /// The end of a choice.
    fn done(&mut self, choice: usize, finish: &StopReason, out: &mut String);
    /// Where a prompt leaves the nearest cached one.
    fn prefix(&mut self, prompt: usize, found: Option<&Divergence>, out: &mut String);
    /// What a stream ends with that was answered in full.
    fn close(&mut self, usage: Usage, out: &mut String);
    /// What a stream ends with that failed.
    fn fail(&mut self, error: &ApiError, out: &mut String);
    /// How long it took, before the end is written.
    fn took(&mut self, _: Took) {}
    /// The tokens of a prompt all of whose choices have ended.
    fn counted(&mut self, _prompt: usize, _: Usage, _out: &mut String) {}
    /// Whether tokens are told of a whole answer.
    fn wants_tokens(&self) -> bool {
        self.head().logprobs
    }
    /// The media type of a stream.
    fn media(&self) -> &'static str {
        "text/event-stream; charset=utf-8"
    }
    /// What keeps a connection open.
    fn ping(&self) -> &'static str {
        ": ping\n\n"
    }
    /// The answer in one piece.
    fn whole(&mut self, choices: &[Choice], usage: Usage) -> Value;
}
