//! A conversation as its model's template writes it, and how the answer to it is read.

use tokenmill_engine::Reading;
use tokenmill_output::{Format, Tool};
use tokenmill_text::{ChatTemplate, DateTime, RenderOptions, RenderedPrompt, TemplateError};

use crate::conversation::{Conversation, Offered};
use crate::generic_tools;

/// See the module.
pub struct Rendered {
    /// The conversation as it was rendered.
    pub talk: Conversation,
    /// The prompt.
    pub prompt: RenderedPrompt,
    /// How the answer marks reasoning and calls.
    pub format: &'static Format,
    /// The model may reason before it answers.
    pub reasons: bool,
}

impl Rendered {
    /// Renders it at that time; tools that the template has no place for are written as text.
    ///
    /// # Errors
    /// The template refuses it.
    pub fn new(
        template: &ChatTemplate,
        format: &'static Format,
        talk: Conversation,
        now: DateTime,
    ) -> Result<Self, TemplateError> {
        if template.has_tools() {
            return Self::written(template, format, talk, now);
        }
        if talk.tools.shown().is_none() {
            return Self::written(template, format, generic_tools::written(talk, true), now);
        }
        let format = Format::named(generic_tools::FORMAT).unwrap_or(format);
        let first =
            Self::written(template, format, generic_tools::written(talk.clone(), true), now);
        first.or_else(|error| {
            let other = generic_tools::written(talk, false);
            Self::written(template, format, other, now).map_err(|_| error)
        })
    }

    fn written(
        template: &ChatTemplate,
        format: &'static Format,
        talk: Conversation,
        now: DateTime,
    ) -> Result<Self, TemplateError> {
        let tools = talk.tools.shown().filter(|_| template.has_tools());
        let options = RenderOptions {
            add_generation_prompt: !talk.continues,
            continue_final: talk.continues,
            tools: tools.as_ref(),
            now,
            kwargs: talk.variables.as_ref(),
            ..RenderOptions::default()
        };
        let written = |talk: &Conversation| {
            let messages = talk.values(format.numbers_calls());
            template.render_readable(&messages, &options)
        };
        let mut prompt = written(&talk);
        if let Err(error) = prompt {
            // Agents put instructions anywhere, and several messages of a role in a row.
            let in_turns = talk.in_turns().ok_or(error.clone());
            prompt = in_turns.and_then(|other| written(&other)).map_err(|_| error);
        }
        let prompt = prompt?;
        let reasons = format.may_reason(template.source(), &prompt.text());
        Ok(Self { talk, prompt, format, reasons })
    }

    /// Whether the answer goes on with a message that has begun the reasoning.
    fn goes_on(&self) -> bool {
        let last = self.talk.messages.last().filter(|_| self.talk.continues);
        let begun = last.map(|message| message.content.texts().collect::<String>());
        begun.is_some_and(|begun| self.format.reasons_after(&begun))
    }

    /// How the answer is read; `None`: all of it is text.
    pub fn reading(&self) -> Option<Reading> {
        let callable = self.talk.tools.callable();
        let tool = |t: &Offered| Tool {
            name: t.name.clone(),
            parameters: t.parameters.clone(),
            input: t.input.clone(),
        };
        let reasoning_begun = self.format.reasoning_begun(&self.prompt.text()) || self.goes_on();
        let tools = callable.map(tool).collect();
        let keeps_reasoning = self.talk.tools.must_hold() || self.talk.tools.single;
        let (format, calls_first) = (self.format, false);
        let reading = Reading { format, tools, reasoning_begun, keeps_reasoning, calls_first };
        Some(reading).filter(|reading| reading.format != Format::PLAIN)
    }
}
