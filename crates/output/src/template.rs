//! Which row a chat template means, by the marks that the template itself writes.

use crate::Format;
use crate::format::FORMATS;

/// Tests in order: a row, and texts that must all stand in the template. The first that holds
/// decides, so marks that several families write come behind those of one.
const TESTS: &[(&str, &[&str])] = &[];

impl Format {
    /// The row of a model, by its chat template; text alone where the template shows no other.
    pub fn of_template(source: &str) -> &'static Self {
        let found = TESTS.iter().find(|(_, marks)| marks.iter().all(|mark| source.contains(mark)));
        found.and_then(|(name, _)| Self::named(name)).unwrap_or(&FORMATS[0])
    }
}
