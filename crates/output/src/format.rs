//! The rows: how each family of models marks what it writes.

/// How a family of models marks reasoning and calls.
#[derive(Debug, PartialEq)]
pub struct Format {
    /// Its name.
    pub name: &'static str,
}

/// All rows.
pub const FORMATS: &[Format] = &[Format { name: "plain" }];

impl Format {
    /// Text alone.
    pub const PLAIN: &'static Self = &FORMATS[0];

    /// The row of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        FORMATS.iter().find(|format| format.name == name)
    }

    /// Texts that may be special tokens of a model, and must be seen.
    pub fn markers(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whether calls are named by their tool and number in a prompt (`functions.NAME:0`).
    pub fn numbers_calls(&self) -> bool {
        false
    }

    /// Whether a prompt that ends so has begun the reasoning.
    pub fn reasoning_begun(&self, _prompt: &str) -> bool {
        false
    }

    /// The row of a model, by its chat template; text alone where the template shows no other.
    pub fn of_template(_source: &str) -> &'static Self {
        &FORMATS[0]
    }
}
