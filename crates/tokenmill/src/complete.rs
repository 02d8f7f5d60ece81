//! Texts that go on: no template, no roles.

use tokenmill_engine::{Event, Events, RequestError, StopReason, Usage};
use tokenmill_ir::SamplingValues;
use tokenmill_text::Special;

use crate::answer::Answer;
use crate::error::Error;
use crate::model::Model;

/// How a text goes on, as it comes. Dropped, nothing more of it is computed.
pub struct Completion {
    events: Events,
    said: String,
    reason: Option<StopReason>,
    usage: Option<Usage>,
    ended: bool,
    /// Lives as long as what it computes.
    model: Model,
}

impl Model {
    /// Goes on with a text; control tokens spelled out in it are such tokens.
    ///
    /// # Errors
    /// The text does not fit the context, or the sampling makes no sense.
    pub fn complete(&self, prompt: &str, sampling: &SamplingValues) -> Result<Completion, Error> {
        let tokens = self.encoder().prompt(prompt, Special::Parse)?;
        let events = self.submit(self.request(tokens, sampling)?)?;
        let (said, reason, usage, ended) = Default::default();
        Ok(Completion { events, said, reason, usage, ended, model: self.clone() })
    }
}

impl Completion {
    /// Tokens, once it is whole.
    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// The whole of it.
    ///
    /// # Errors
    /// As the pieces.
    pub fn finish(mut self) -> Result<Answer, Error> {
        for piece in &mut self {
            piece?;
        }
        let (Some(reason), Some(usage)) = (self.reason, self.usage) else {
            return Err(RequestError::ShutDown.into());
        };
        let (reasoning, called) = Default::default();
        Ok(Answer { text: self.said, reasoning, called, reason, usage })
    }
}

impl Iterator for Completion {
    type Item = Result<String, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            // (In a process made by fork nobody sends events.)
            if let Some(error) = self.model.engine().err() {
                self.ended = true;
                return Some(Err(error));
            }
            match self.events.recv() {
                Some(Event::Piece { piece, .. }) => {
                    let text = piece.text();
                    if !text.is_empty() {
                        self.said.push_str(text);
                        return Some(Ok(text.to_owned()));
                    }
                }
                Some(Event::Done { reason, .. }) => self.reason = Some(reason),
                Some(Event::Finished(usage)) => self.usage = Some(usage),
                Some(Event::Failed(error)) => {
                    self.ended = true;
                    return Some(Err(error.into()));
                }
                Some(Event::Prefix(_) | Event::Rows(_) | Event::Repeats { .. }) => {}
                None => self.ended = true,
            }
        }
        None
    }
}
