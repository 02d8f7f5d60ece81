//! A model under another name: the same weights and cache, other defaults, perhaps another chat
//! template.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokenmill_engine::Defaults;
use tokenmill_output::Format;
use tokenmill_text::{ChatTemplate, TemplateError};

use crate::holding::Holds;
use crate::residents::There;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Alias {
    /// What it is called in requests, lists and answers.
    pub name: String,
    /// Its model, by any of that one's names.
    pub model: String,
    /// What requests get where they say nothing, before what the model's packager says.
    pub defaults: Defaults,
    /// The chat template's source, in the place of the model's.
    pub template: Option<String>,
}

/// What a template makes of a model that is in memory: made once for each load of it.
#[derive(Clone)]
struct View {
    template: Result<Arc<ChatTemplate>, TemplateError>,
    format: &'static Format,
    holds: Arc<Holds>,
}

/// The views of a model by the names of their aliases.
#[derive(Default)]
pub struct Views(Mutex<HashMap<String, View>>);

impl Alias {
    /// A model as requests of this name have it.
    pub fn of(&self, there: &There) -> There {
        let mut there = there.clone();
        there.served.names = vec![self.name.clone()];
        let packager = std::mem::take(&mut there.served.defaults);
        there.served.defaults = self.defaults.clone().or(packager);
        if let Some(source) = &self.template {
            let mut views = there.views.0.lock().unwrap_or_else(PoisonError::into_inner);
            let made = || View::new(source, &there);
            let view = views.entry(self.name.clone()).or_insert_with(made).clone();
            drop(views);
            (there.served.template, there.format, there.holds) =
                (view.template, view.format, view.holds);
        }
        there
    }
}

impl View {
    fn new(source: &str, there: &There) -> Self {
        let template = ChatTemplate::new(source, there.served.tokenizer.template_tokens());
        let format = Format::of_template(source);
        Self { template: template.map(Arc::new), format, holds: Arc::default() }
    }
}
