//! What is asked of the engine ([`Request`]) and what it answers ([`Event`]).

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokenmill_ir::sampling::Rules;
use tokenmill_ir::{SamplingParams, TokenId};
use tokenmill_output::{Format, Parser, Piece, Tool};
use tokenmill_sched::{Inputs, Numbers};
use tokenmill_text::Lead;

use crate::constraint::Held;
use crate::draft::DraftMode;
use crate::queue::NOBODY;
use crate::repeats::{RepeatRule, Repeated};
use crate::rows::Rows;
use crate::serving::timeline::Timekeeper;

/// One request. Numbers come as one [`Event::Rows`]; what is said of answers below is for text.
/// `choices` parallel answers share the prompt's cache.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Prompt tokens, BOS included where the model wants one. Not empty.
    pub prompt: Vec<TokenId>,
    /// What the prompt has beside its tokens, such as images; `None`: it is text. The ids of rows count
    /// as its tokens, and nothing that looks at the text before a token sees them.
    pub inputs: Option<Arc<Inputs>>,
    /// Numbers that are wanted of it instead of text.
    pub numbers: Option<Numbers>,
    /// How to sample; `choice` and `index` are set by the engine.
    pub sampling: SamplingParams,
    /// Parallel answers (`n`).
    pub choices: u32,
    /// Most tokens to generate a choice; `None`: until the context is full.
    pub max_tokens: Option<u32>,
    /// Texts that end a choice; not part of the answer. Not looked for in reasoning and calls.
    pub stop: Vec<String>,
    /// Do not stop at end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Added to logits.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// What the text before a token forbids and makes unlikely; which tokens would end the answer is
    /// set by the engine.
    pub rules: Rules,
    /// What the answer must hold, by [`Engine::grammar`](crate::Engine::grammar).
    pub held: Option<Held>,
    /// Show special tokens as text.
    pub show_special: bool,
    /// Tell the token that ends the answer too, which is no text.
    pub tell_end: bool,
    /// How reasoning and calls of tools are told from the answer's text; `None`: all is text.
    pub reading: Option<Reading>,
    /// Whether the answer is a text of its own (a chat) or continues the prompt's.
    pub lead: Lead,
    /// Cached prefixes are shared only among requests of the same salt.
    pub salt: u64,
    /// Tokens of reasoning after which its end is made to come; `None`: as the model sees fit. Needs a
    /// `reading` with marks of reasoning.
    pub reasoning_tokens: Option<u32>,
    /// When an answer that repeats itself is ended; `None`: never.
    pub repeats: Option<RepeatRule>,
    /// Tokens that end this answer, beside the model's own.
    pub also_end: Vec<TokenId>,
    /// Tokens the answer may repeat, wholly or in parts: it comes faster where it does.
    pub prediction: Vec<TokenId>,
    /// Where drafts come from; `None`: from the prediction, else the engine's choice.
    pub draft: Option<DraftMode>,
    /// Who asks: accounts with work to do get equal shares; [`NOBODY`](crate::NOBODY) is one too.
    pub account: u64,
    /// Among requests of one account: smaller comes first.
    pub priority: i32,
    /// How long it may take, waiting included; then it fails.
    pub timeout: Option<Duration>,
    /// Tell where the prompt leaves the nearest cached one.
    pub diagnose: bool,
    /// Keep the prompt in the cache, as far as the account's quota allows.
    pub lease: Option<Lease>,
    /// Most that the account may keep by leases, percent of the cache; never more than a quarter.
    pub lease_percent: u32,
    /// Notes where its time goes.
    pub timeline: Option<Arc<Timekeeper>>,
}

/// How reasoning and calls of tools are told from an answer's text. Special tokens that the format
/// marks them with are seen, whatever else is shown.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// How the model marks them.
    pub format: &'static Format,
    /// The tools that may be called.
    pub tools: Arc<[Tool]>,
    /// The prompt ends inside the reasoning.
    pub reasoning_begun: bool,
    /// Calls in reasoning, which no grammar holds, stay reasoning.
    pub keeps_reasoning: bool,
    /// Calls come before any text or not at all.
    pub calls_first: bool,
}

impl Reading {
    /// For one answer.
    pub fn parser(&self) -> Parser {
        let parser = Parser::new(self.format, Arc::clone(&self.tools), self.reasoning_begun);
        let parser = if self.keeps_reasoning { parser.keep_reasoning() } else { parser };
        if self.calls_first { parser.calls_first() } else { parser }
    }
}

/// How long a prompt stays in the cache, whatever else comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// From the moment the prompt is computed.
    pub ttl: Duration,
    /// A new lease takes the place of the account's lease of that name; 0: it has none.
    pub name: u64,
}

/// A lease that holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leased {
    /// Tokens kept.
    pub tokens: u32,
    /// For how long yet.
    pub left: Duration,
}

impl Request {
    /// A greedy request for that prompt.
    pub fn new(prompt: Vec<TokenId>) -> Self {
        Self {
            prompt,
            inputs: None,
            numbers: None,
            sampling: SamplingParams::default(),
            choices: 1,
            max_tokens: None,
            stop: Vec::new(),
            ignore_eos: false,
            logit_bias: Vec::new(),
            rules: Rules::default(),
            held: None,
            show_special: false,
            tell_end: false,
            reading: None,
            lead: Lead::Keep,
            salt: 0,
            reasoning_tokens: None,
            repeats: None,
            also_end: Vec::new(),
            prediction: Vec::new(),
            draft: None,
            account: NOBODY,
            priority: 0,
            timeout: None,
            diagnose: false,
            lease: None,
            lease_percent: 100,
            timeline: None,
        }
    }

    /// Its rules, with the tokens that would end it: those of the model and its own.
    pub fn rules_with(&self, eos: &[TokenId]) -> Rules {
        let mut rules = self.rules.clone();
        if rules.min_tokens > 0 && !self.ignore_eos {
            rules.ends = [eos, &self.also_end].concat();
        }
        rules
    }
}

/// An alternative at a position.
#[derive(Debug, Clone, PartialEq)]
pub struct TopToken {
    /// Token.
    pub id: TokenId,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// ln p.
    pub logprob: f32,
}

/// A generated token.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenInfo {
    /// Token.
    pub id: TokenId,
    /// Its bytes (empty for a hidden special token).
    pub bytes: Vec<u8>,
    /// ln p, when log-probabilities were asked for.
    pub logprob: Option<f32>,
    /// Alternatives, best first.
    pub top: Vec<TopToken>,
}

/// Why a choice ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// End-of-sequence token.
    EndOfText,
    /// That stop text was met.
    StopText(String),
    /// It ended by itself behind a whole call of a tool.
    Calls,
    /// `max_tokens`, or the context is full; or it repeats itself where it may not end.
    Length,
}

/// Tokens accounted for one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Of those, read from the prefix cache.
    pub cached_tokens: u32,
    /// Of those, read from disk for this request.
    pub disk_tokens: u32,
    /// Of the prompt, kept in the cache by the lease that was asked for.
    pub leased_tokens: u32,
    /// Generated tokens, all choices.
    pub completion_tokens: u32,
    /// Of those, what the model thought before it answered.
    pub reasoning_tokens: u32,
    /// Draft tokens that became part of the answer.
    pub accepted_drafts: u32,
    /// Draft tokens computed in vain.
    pub rejected_drafts: u32,
}

/// Where a prompt leaves the nearest cached text of its salt, found when the request is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divergence {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens from the start that the cached text has too.
    pub common_tokens: u32,
    /// How the cached text goes on there, a few tokens; `None` where it ends.
    pub cached: Option<String>,
    /// How the prompt goes on there.
    pub prompt: String,
}

/// What happens to a request, in order. After `Done` for every choice comes `Finished`; `Failed`
/// is the last event too.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Asked for by [`Request::diagnose`], and first; `None` when nothing is cached.
    Prefix(Option<Divergence>),
    /// More of a choice: text, which may be empty while characters are held back, or what the
    /// request's [`Reading`] tells from it.
    Piece {
        /// Choice.
        choice: u32,
        /// What.
        piece: Piece,
        /// The tokens since the last event of this choice.
        tokens: Vec<TokenInfo>,
    },
    /// A choice repeats itself, and ends with that: [`StopReason::Length`] where it is not whole.
    Repeats {
        /// Choice.
        choice: u32,
        /// What.
        repeated: Repeated,
    },
    /// A choice ended.
    Done {
        /// Choice.
        choice: u32,
        /// Why.
        reason: StopReason,
    },
    /// The numbers that were wanted.
    Rows(Rows),
    /// All choices ended, or the numbers are there.
    Finished(Usage),
    /// The request failed.
    Failed(RequestError),
}

/// Why a request is not taken (4xx, 429 or 503).
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Nothing to compute.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// A token outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    BadToken {
        /// The token.
        token: TokenId,
        /// Vocabulary size.
        vocab: u32,
    },
    /// Prompt and wanted answer do not fit.
    #[error(
        "{prompt_tokens} prompt tokens + {max_tokens} to generate exceed the context of {limit}"
    )]
    ContextLength {
        /// Prompt.
        prompt_tokens: u32,
        /// Wanted.
        max_tokens: u32,
        /// Context limit.
        limit: u32,
    },
    /// A parameter is out of range.
    #[error("{name}: {reason}")]
    BadParameter {
        /// Which.
        name: &'static str,
        /// Why, with the numbers.
        reason: String,
    },
    /// The queue is full, or this account's part of it; try again later.
    #[error("{waiting} requests are waiting, the limit is {limit}")]
    QueueFull {
        /// In the queue, of all or of this account.
        waiting: u32,
        /// Its limit.
        limit: u32,
    },
    /// It would wait longer than the server lets anybody wait.
    #[error(
        "a request that comes now would wait about {:.1} s, the limit is {:.1} s",
        .wait.as_secs_f64(),
        .limit.as_secs_f64()
    )]
    LongWait {
        /// Predicted.
        wait: Duration,
        /// Limit.
        limit: Duration,
    },
    /// A step does not end: the device hangs.
    #[error("the device has not answered for {seconds} s")]
    Stuck {
        /// Since when, seconds.
        seconds: u64,
    },
    /// The engine is draining or has stopped.
    #[error("the server is shutting down")]
    ShuttingDown,
}

/// Why an accepted request failed (5xx).
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The model produced a row that is not a number.
    #[error("the model's output was not a number at token {index}")]
    NotANumber {
        /// Index of the generated token.
        index: u32,
    },
    /// No token fits what the answer is held to, or finding out passes a limit.
    #[error("at token {index}: {reason}")]
    Constraint {
        /// Index of the token.
        index: u32,
        /// Which.
        reason: String,
    },
    /// Its own time limit has passed.
    #[error("the request's timeout of {limit_s} s passed before the answer was complete")]
    TimedOut {
        /// The limit, seconds.
        limit_s: f64,
    },
    /// The device failed twice on this request.
    #[error("the device failed: {0}")]
    Device(String),
    /// Its reader left too much of the answer unread.
    #[error("the reader left more than {limit_bytes} bytes of the answer unread")]
    Unread {
        /// The limit, bytes of text and tokens.
        limit_bytes: usize,
    },
    /// A bug in tokenmill, confined to this request.
    #[error("internal error: {0}")]
    Internal(String),
    /// The engine stopped before the answer was complete.
    #[error("the server shut down before the answer was complete")]
    ShutDown,
}
