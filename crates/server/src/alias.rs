//! A model under another name, by the server's settings.

use tokenmill_engine::Defaults;

/// The same weights and cache with other defaults, perhaps another chat template.
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
