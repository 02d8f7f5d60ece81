//! An answer as it comes: the model's words, and tools that are called between its rounds.

use std::collections::VecDeque;
use std::fmt;
use std::ops::DerefMut;

use serde_json::Value;
use tokenmill_chat::conversation::{Call, Message, Role};
use tokenmill_engine::{Event, Events, RequestError, StopReason, Usage};
use tokenmill_output as output;

use crate::answer::{Answer, Called, Piece, sum};
use crate::chat::Chat;
use crate::error::Error;

/// An answer as it comes, with the conversation that it belongs to, borrowed or owned. Dropped, nothing more of
/// it is computed, and what was said so far stays in the conversation.
pub struct Stream<C: DerefMut<Target = Chat>> {
    chat: C,
    /// Messages before the question.
    before: usize,
    schema: Option<Value>,
    /// The answer that the model makes now.
    events: Option<Events>,
    /// What it has said, thought and called.
    text: String,
    reasoning: String,
    calls: Vec<Call>,
    /// A call that is not whole, and its arguments.
    open: Option<(String, String)>,
    /// Calls that are to be made, then the model hears what they found.
    due: VecDeque<Call>,
    called: Vec<Called>,
    rounds: u32,
    reason: Option<StopReason>,
    usage: Usage,
    ended: bool,
}

impl<C: DerefMut<Target = Chat>> fmt::Debug for Stream<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("text", &self.text).finish_non_exhaustive()
    }
}

impl<C: DerefMut<Target = Chat>> Stream<C> {
    /// Asks in a conversation, perhaps for a value of a schema; [`Chat::stream`] for who need not own it.
    ///
    /// # Errors
    /// The prompt is not taken.
    pub fn new(mut chat: C, question: &str, schema: Option<Value>) -> Result<Self, Error> {
        let before = chat.messages.len();
        let question = chat.question(question);
        chat.messages.push(question);
        let begun = chat.begin(schema.as_ref());
        if begun.is_err() {
            chat.messages.truncate(before);
        }
        let events = Some(begun?);
        let (text, reasoning, calls, open, due, called) = Default::default();
        let (rounds, reason, usage, ended) = (1, None, Usage::default(), false);
        Ok(Self {
            chat,
            before,
            schema,
            events,
            text,
            reasoning,
            calls,
            open,
            due,
            called,
            rounds,
            reason,
            usage,
            ended,
        })
    }

    /// The whole answer.
    ///
    /// # Errors
    /// As the pieces.
    pub fn finish(mut self) -> Result<Answer, Error> {
        for piece in &mut self {
            piece?;
        }
        let Some(reason) = self.reason.take() else { return Err(RequestError::ShutDown.into()) };
        Ok(Answer {
            text: std::mem::take(&mut self.text),
            reasoning: std::mem::take(&mut self.reasoning),
            called: std::mem::take(&mut self.called),
            reason,
            usage: self.usage,
        })
    }

    /// Why it ended, if it has, and its tokens so far, all rounds together.
    pub fn ending(&self) -> (Option<&StopReason>, Usage) {
        (self.reason.as_ref(), self.usage)
    }

    /// What the model has said since the last call of a tool.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Takes a part of what the model writes.
    fn take(&mut self, piece: output::Piece) -> Option<Piece> {
        match piece {
            output::Piece::Text(text) => {
                self.open = None; // (it was no call)
                self.text.push_str(&text);
                (!text.is_empty()).then_some(Piece::Text(text))
            }
            output::Piece::Reasoning(text) => {
                self.reasoning.push_str(&text);
                (!text.is_empty()).then_some(Piece::Reasoning(text))
            }
            output::Piece::CallStart { name } => {
                self.open = Some((name, String::new()));
                None
            }
            output::Piece::CallArguments(more) => {
                self.open.iter_mut().for_each(|(_, arguments)| arguments.push_str(&more));
                None
            }
            output::Piece::CallEnd => {
                let (name, arguments) = self.open.take()?;
                let id = format!("call-{}", self.called.len() + self.calls.len());
                let call = Call::of_text(id, name, &arguments);
                let (name, arguments) = (call.name.clone(), call.arguments.clone());
                self.calls.push(call);
                Some(Piece::Call { name, arguments })
            }
        }
    }

    /// The model's part has ended: what it said and called becomes a message.
    fn end_round(&mut self) {
        self.events = None;
        let calls = std::mem::take(&mut self.calls);
        let mut message = Message::text(Role::Assistant, self.text.clone());
        message.reasoning = Some(self.reasoning.clone()).filter(|thought| !thought.is_empty());
        message.calls.clone_from(&calls);
        self.chat.messages.push(message);
        self.due = calls.into();
        self.ended = self.due.is_empty();
    }

    /// Makes a call that is due.
    fn call(&mut self, call: Call) -> Piece {
        let Call { id, name, arguments } = call;
        let tool = self.chat.tools.iter_mut().find(|tool| tool.offered.name == name);
        let found = match tool {
            Some(tool) => tool.call(arguments.clone()),
            None => format!("error: there is no tool called {name}"),
        };
        let mut message = Message::text(Role::Tool, found.as_str());
        message.call_id = Some(id);
        self.chat.messages.push(message);
        let text = found.clone();
        self.called.push(Called { name: name.clone(), arguments, found });
        Piece::Found { name, text }
    }

    /// The model goes on behind what its calls found.
    fn next_round(&mut self) -> Result<(), Error> {
        if self.rounds >= self.chat.rounds {
            return Err(Error::Rounds { rounds: self.rounds });
        }
        self.rounds += 1;
        self.text.clear();
        self.reasoning.clear();
        self.events = Some(self.chat.begin(self.schema.as_ref())?);
        Ok(())
    }

    /// What failed does not become part of the conversation.
    fn fail(&mut self, error: Error) -> Option<Result<Piece, Error>> {
        self.ended = true;
        self.events = None;
        self.chat.messages.truncate(self.before);
        Some(Err(error))
    }
}

impl<C: DerefMut<Target = Chat>> Iterator for Stream<C> {
    type Item = Result<Piece, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            // (In a process made by fork nobody sends events.)
            if let Some(error) = self.chat.model().engine().err() {
                return self.fail(error);
            }
            let Some(events) = &self.events else {
                if let Some(call) = self.due.pop_front() {
                    return Some(Ok(self.call(call)));
                }
                if let Err(error) = self.next_round() {
                    return self.fail(error);
                }
                continue;
            };
            match events.recv() {
                Some(Event::Piece { piece, .. }) => {
                    if let Some(piece) = self.take(piece) {
                        return Some(Ok(piece));
                    }
                }
                Some(Event::Done { reason, .. }) => self.reason = Some(reason),
                Some(Event::Finished(usage)) => {
                    self.usage = sum(self.usage, usage);
                    self.end_round();
                }
                Some(Event::Failed(error)) => return self.fail(error.into()),
                Some(Event::Prefix(_) | Event::Rows(_) | Event::Repeats { .. }) => {}
                None => return self.fail(RequestError::ShutDown.into()),
            }
        }
        None
    }
}

impl<C: DerefMut<Target = Chat>> Drop for Stream<C> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        if self.events.is_some() && !self.text.is_empty() {
            // What was said before it was broken off was said.
            self.chat.messages.push(Message::text(Role::Assistant, self.text.as_str()));
        } else {
            self.chat.messages.truncate(self.before);
        }
    }
}
