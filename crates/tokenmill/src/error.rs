//! What goes wrong, in words that say what failed, with the numbers.

use thiserror::Error;
use tokenmill_chat::Unheld;
use tokenmill_engine::load::LoadFailure;
use tokenmill_engine::start::StartError;
use tokenmill_engine::{EyesError, Refusal, RequestError, RowsError};
use tokenmill_media::MediaError;
use tokenmill_store::StoreError;
use tokenmill_text::{TemplateError, TokenizerError};

use crate::device::NotOpened;

/// Why there is no model, or no answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The model is not found, or cannot be fetched.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It is not on this disk, and nothing may be fetched.
    #[error("{name} is not here, and fetching is off: tokenmill pull {name}")]
    NotHere {
        /// As it was asked for.
        name: String,
    },
    /// The device.
    #[error(transparent)]
    Device(#[from] NotOpened),
    /// An option that there is not, or of a value that makes no sense.
    #[error("{what}: {reason}")]
    Option {
        /// Which options.
        what: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// Its files cannot be loaded.
    #[error("cannot load {name}: {failure}")]
    Load {
        /// As it was asked for.
        name: String,
        /// Why not.
        failure: LoadFailure,
    },
    /// Loading it was broken off by who watched.
    #[error("loading {name} was broken off")]
    BrokenOff {
        /// As it was asked for.
        name: String,
    },
    /// Its engine does not start.
    #[error("cannot start {name}: {error}")]
    Start {
        /// As it was asked for.
        name: String,
        /// Why not.
        error: StartError,
    },
    /// It cannot do what is asked of it.
    #[error("the model {name} {what}")]
    Ability {
        /// The model.
        name: String,
        /// What it cannot.
        what: &'static str,
    },
    /// This process was made of the one that opened the model, whose threads are not in it.
    #[error(
        "{name} was opened in process {opened}, this is process {here}: a model does not survive fork; \
         open it again here"
    )]
    Forked {
        /// The model.
        name: String,
        /// Where it was opened.
        opened: u32,
        /// The process that asks.
        here: u32,
    },
    /// The chat template, or that there is none.
    #[error("cannot write the conversation as the model's prompt: {0}")]
    Template(#[from] TemplateError),
    /// The text cannot be tokenised.
    #[error("cannot read the text: {0}")]
    Text(#[from] TokenizerError),
    /// What the answer is to hold cannot be held.
    #[error(transparent)]
    Unheld(#[from] Unheld),
    /// An image that is none, or of a kind that is not read.
    #[error("cannot show the image: {0}")]
    Image(#[from] MediaError),
    /// An image that the model does not take.
    #[error("cannot show the images: {0}")]
    Eyes(#[from] EyesError),
    /// The request was not taken.
    #[error("the request was refused: {0}")]
    Refused(#[from] Refusal),
    /// It was taken, and failed.
    #[error("the answer failed: {0}")]
    Failed(#[from] RequestError),
    /// The answer was cut before the value in it was whole.
    #[error(
        "the answer was cut after {tokens} tokens, before its value was whole: raise max_tokens or the context"
    )]
    Cut {
        /// Generated tokens.
        tokens: u32,
    },
    /// The answer holds its schema, and is no value of the type all the same.
    #[error("the answer is not a value of the type: {error}; it is {text}")]
    Type {
        /// The answer.
        text: String,
        /// What the type says of it.
        error: serde_json::Error,
    },
    /// A shared conversation whose last question is not answered yet.
    #[error("an answer of this chat is being made: read it to its end or drop it")]
    Busy,
    /// The model calls tools again and again.
    #[error(
        "the model still calls tools after {rounds} answers: raise Chat::rounds, or offer fewer"
    )]
    Rounds {
        /// Answers so far.
        rounds: u32,
    },
}

impl From<RowsError> for Error {
    fn from(error: RowsError) -> Self {
        match error {
            RowsError::Refused(refusal) => Self::Refused(refusal),
            RowsError::Failed(error) => Self::Failed(error),
        }
    }
}
