//! A conversation: what was said, the tools on offer, and how answers are sampled.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokenmill_chat::conversation::{Calling, Content, Conversation, Message, Part, Role, Tools};
use tokenmill_chat::{Constrained, Image, Rendered, Source, holding};
use tokenmill_engine::{Events, EyesError, Inputs, NOBODY, RepeatRule, Request};
use tokenmill_ir::{SamplingValues, TokenId};
use tokenmill_media::{Ceilings, decode};
use tokenmill_text::{DateTime, Special};

use crate::answer::Answer;
use crate::error::Error;
use crate::model::Model;
use crate::stream::Stream;
use crate::tool::{Tool, ToolError};
use crate::typed::{TypedStream, plain_schema_of, schema_of};

/// Answers to one question, each with calls of tools but the last, at most.
const ROUNDS: u32 = 8;

/// A conversation with a model. Each question and its answer become part of it; what failed, or was
/// broken off before a word came, does not.
pub struct Chat {
    pub(crate) model: Model,
    pub(crate) messages: Vec<Message>,
    pub(crate) tools: Vec<Tool>,
    /// Images of the next question.
    shown: Vec<Arc<[u8]>>,
    /// How answers are sampled; what it leaves open is as the model's packager says.
    pub sampling: SamplingValues,
    /// Tokens that the model may think for before it answers; `None`: as it sees fit. 0 turns thinking off
    /// where its template can.
    pub thinking: Option<u32>,
    /// Answers to one question, each of which may call tools, at most.
    pub rounds: u32,
    /// The first answer to a question calls a tool, whatever else the model would say.
    pub must_call: bool,
}

impl Model {
    /// A new conversation.
    pub fn chat(&self) -> Chat {
        let (messages, tools, shown, sampling) = Default::default();
        let (model, thinking, rounds, must_call) = (self.clone(), None, ROUNDS, false);
        Chat { model, messages, tools, shown, sampling, thinking, rounds, must_call }
    }
}

impl Chat {
    /// Begins the conversation with these instructions, in the place of any before.
    pub fn system(&mut self, text: &str) -> &mut Self {
        self.messages.retain(|message| message.role != Role::System);
        self.messages.insert(0, Message::text(Role::System, text));
        self
    }

    /// Something that was said before: by the model, or by who asks.
    pub fn said(&mut self, by_model: bool, text: &str) -> &mut Self {
        let role = if by_model { Role::Assistant } else { Role::User };
        self.messages.push(Message::text(role, text));
        self
    }

    /// Offers a tool: the model may call it with arguments of the closure's type, and hears what it returns
    /// as JSON (a text as it is), or its error.
    pub fn tool<A, R>(
        &mut self,
        name: &str,
        about: &str,
        run: impl FnMut(A) -> Result<R, ToolError> + Send + 'static,
    ) -> &mut Self
    where
        A: JsonSchema + DeserializeOwned,
        R: Serialize,
    {
        self.offer(Tool::typed(name, about, run))
    }

    /// The same by the JSON Schema of its arguments, all of which is enforced.
    pub fn tool_of_schema(
        &mut self,
        name: &str,
        about: &str,
        schema: Value,
        run: impl FnMut(Value) -> Result<String, ToolError> + Send + 'static,
    ) -> &mut Self {
        self.offer(Tool::of_schema(name, about, schema, run))
    }

    /// Offers a tool in the place of any of its name.
    fn offer(&mut self, tool: Tool) -> &mut Self {
        self.tools.retain(|other| other.offered.name != tool.offered.name);
        self.tools.push(tool);
        self
    }

    /// Whom it is with.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Shows an image with the next question: a file's bytes.
    ///
    /// # Errors
    /// [`Error::Ability`] for a model that sees none.
    pub fn show(&mut self, file: &[u8]) -> Result<&mut Self, Error> {
        self.model.eyes()?;
        self.shown.push(file.into());
        Ok(self)
    }

    /// Asks, and waits for the whole answer.
    ///
    /// # Errors
    /// The prompt is not taken, or the answer fails.
    pub fn ask(&mut self, question: &str) -> Result<Answer, Error> {
        self.stream(question)?.finish()
    }

    /// Asks; the answer comes as it is made, tools are called on the way.
    ///
    /// # Errors
    /// The prompt is not taken.
    pub fn stream(&mut self, question: &str) -> Result<Stream<&mut Self>, Error> {
        Stream::new(self, question, None)
    }

    /// Asks for a value of a type; the answer cannot be anything else. The model reads the type's schema
    /// behind the question.
    ///
    /// # Errors
    /// As [`ask`](Self::ask); [`Error::Unheld`] for a type whose schema cannot be enforced; [`Error::Cut`]
    /// where the answer is longer than it may be.
    pub fn ask_for<T: JsonSchema + DeserializeOwned>(
        &mut self,
        question: &str,
    ) -> Result<T, Error> {
        self.stream_for(question)?.finish()
    }

    /// The same, as it is made.
    ///
    /// # Errors
    /// The prompt is not taken, or the type's schema cannot be enforced.
    pub fn stream_for<T: JsonSchema + DeserializeOwned>(
        &mut self,
        question: &str,
    ) -> Result<TypedStream<'_, T>, Error> {
        let asked = with_schema(question, &plain_schema_of::<T>());
        Ok(TypedStream::new(Stream::new(self, &asked, Some(schema_of::<T>()))?))
    }

    /// Asks for a value of a JSON Schema, of which all is enforced: the answer's text is the value as JSON.
    ///
    /// # Errors
    /// As [`stream_for`](Self::stream_for).
    pub fn stream_of_schema(
        &mut self,
        question: &str,
        schema: Value,
    ) -> Result<Stream<&mut Self>, Error> {
        let asked = with_schema(question, &schema);
        Stream::new(self, &asked, Some(schema))
    }

    /// The next question as a message.
    pub(crate) fn question(&mut self, text: &str) -> Message {
        let image = |file| {
            let path = "image".to_owned();
            Part::Image(Image { path, source: Source::File(file) })
        };
        let images = std::mem::take(&mut self.shown).into_iter().map(image);
        let parts = images.chain([Part::Text(text.to_owned())]).collect();
        Message { content: Content::of(parts), ..Message::text(Role::User, "") }
    }

    /// Begins the answer to what was said, which holds a schema or not.
    pub(crate) fn begin(&self, schema: Option<&Value>) -> Result<Events, Error> {
        self.model.submit(self.request(schema)?)
    }

    fn request(&self, schema: Option<&Value>) -> Result<Request, Error> {
        let model = &self.model;
        let template = model.template()?;
        let offered = self.tools.iter().map(|tool| tool.offered.clone()).collect();
        let is_first = self.messages.last().is_some_and(|message| message.role == Role::User);
        let calling = if self.must_call && is_first { Calling::Required } else { Calling::Auto };
        let tools = Tools { offered, calling, only: None, single: false };
        let messages = self.messages.clone();
        let talk = Conversation { messages, tools, variables: None, continues: false };
        let talk = talk.instructed(model.system());
        let talk = match self.thinking {
            Some(tokens) => talk.thinking_for(tokens, template),
            None => talk,
        };
        let rendered = Rendered::new(template, model.format(), talk, now())?;
        let tokens = model.encoder().rendered(&rendered.prompt)?;
        let (tokens, inputs) = self.seen(tokens)?;
        let (mut reading, reasons) = (rendered.reading(), rendered.reasons);
        let tools = &rendered.talk.tools;
        // (Schemas of typed tools are enforced whole, so nothing is left to be told.)
        let (grammars, warnings) = (model.grammars(), &mut Vec::new());
        let held = match schema {
            Some(schema) => {
                let what = tokenmill_engine::constraint::Constraint::JsonSchema(schema.clone());
                let constrained = Constrained { what, param: "schema" };
                let asked = (&constrained, tools);
                Some(holding::form(grammars, asked, (&mut reading, reasons), warnings)?)
            }
            None => holding::held(grammars, tools, (reading.as_ref(), reasons), warnings)?,
        };
        let marks = reading.as_ref().and_then(|reading| reading.format.end_of_reasoning());
        let reasoning_tokens = self.thinking.filter(|_| marks.is_some());
        let request = model.request(tokens, &self.sampling)?;
        let repeats = Some(RepeatRule::USUAL);
        Ok(Request { reading, held, inputs, reasoning_tokens, repeats, ..request })
    }

    /// A prompt with the images of its conversation.
    fn seen(&self, tokens: Vec<TokenId>) -> Result<(Vec<TokenId>, Option<Arc<Inputs>>), Error> {
        let images = self.messages.iter().flat_map(|message| message.content.images());
        let files: Vec<&Arc<[u8]>> = images
            .filter_map(|image| match &image.source {
                Source::File(file) => Some(file),
                Source::Address(_) => None,
            })
            .collect();
        if files.is_empty() {
            return Ok((tokens, None));
        }
        let (encoder, eyes) = (self.model.encoder(), self.model.eyes()?);
        let encode = |text: &str| encoder.encode(text, Special::Parse).map_err(|e| e.to_string());
        let picture = |(index, file): (usize, &&Arc<[u8]>)| {
            decode(file, &Ceilings::default()).map_err(|error| EyesError::Picture { index, error })
        };
        let pictures = files.iter().enumerate().map(picture).collect::<Result<Vec<_>, _>>()?;
        let found = eyes.prompt(self.model.engine()?, &tokens, &pictures, (&encode, NOBODY));
        let (tokens, inputs) = found?;
        Ok((tokens, Some(Arc::new(inputs))))
    }
}

/// A question to be answered in JSON of a schema, as models are asked it.
pub(crate) fn with_schema(question: &str, schema: &Value) -> String {
    format!("{question}\n\nAnswer in JSON of this schema:\n{schema}")
}

/// The time for templates that print a date.
fn now() -> DateTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    DateTime::from_unix_seconds(since.map_or(0, |d| d.as_secs()))
}
