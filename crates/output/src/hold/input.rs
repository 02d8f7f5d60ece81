//! Texts that tools are called with, held to a grammar of the client's.

use tokenmill_grammar::{Spelling, inner};

use super::parts::{Writer, quoted};
use crate::body::Body;
use crate::format::Form;
use crate::{Format, INPUT, Tool};

impl Format {
    /// Whether the text that a tool is called with is held to its grammar in this row.
    ///
    /// # Errors
    /// Why it is not.
    pub fn holds_input(&self, tool: &Tool) -> Result<(), String> {
        let Some(what) = &tool.input else { return Ok(()) };
        let sections = match &self.form {
            Form::Harmony => &[],
            Form::Marked(marked) => marked.sections,
        };
        let bodies = sections.iter().filter_map(|section| section.bodies.first());
        let json = matches!(self.form, Form::Harmony).then_some(Spelling::Json);
        let stops: Vec<Option<Vec<&str>>> = bodies.map(stops).collect();
        let spellings = stops.iter().map(|stops| match stops {
            Some(stops) => Spelling::Plain(stops),
            None => Spelling::Json,
        });
        for spelling in json.into_iter().chain(spellings) {
            inner(what, "g", spelling).map_err(|refused| refused.to_string())?;
        }
        Ok(())
    }
}

/// What a text cannot have in it where it stands as it is; `None`: it is a JSON string.
fn stops(body: &Body) -> Option<Vec<&'static str>> {
    match body {
        Body::Tagged(tags) => Some(tags.stops()),
        Body::Gemma { quote } => Some(vec![*quote]),
        Body::Objects(_) | Body::Headed(_) | Body::Pythonic | Body::Method => None,
    }
}

impl Writer<'_> {
    /// The rule of the text that a tool is called with, where it has a grammar for its parameter of
    /// that name.
    pub fn input(&mut self, at: usize, key: &str, spelling: Spelling<'_>) -> Option<String> {
        let what = self.ask.tools.get(at)?.input.as_ref().filter(|_| key == INPUT)?;
        let found = inner(what, &format!("g{}", self.number()), spelling).ok()?;
        self.rules(&found.rules);
        Some(found.start)
    }

    /// The same as a JSON string.
    pub fn input_string(&mut self, at: usize, key: &str) -> Option<String> {
        let text = self.input(at, key, Spelling::Json)?;
        let sign = quoted("\"");
        Some(format!("{sign} {text} {sign}"))
    }

    /// The arguments of a tool that is called with such a text, as an object.
    pub fn input_object(&mut self, at: usize) -> Option<String> {
        let text = self.input(at, INPUT, Spelling::Json)?;
        Some(format!("{} {text} {}", quoted(&format!("{{\"{INPUT}\": \"")), quoted("\"}")))
    }
}
