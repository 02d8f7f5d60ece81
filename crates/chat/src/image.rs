//! An image of a message.

use std::sync::Arc;

/// An image of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The part of the request that it is, such as `messages[0].content[1]`.
    pub path: String,
    /// Where it comes from.
    pub source: Source,
}

/// Where an image comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The request itself: the file.
    File(Arc<[u8]>),
    /// An address, http or https.
    Address(String),
}

impl Image {
    /// Whether its file is still to be fetched.
    pub fn is_elsewhere(&self) -> bool {
        matches!(self.source, Source::Address(_))
    }
}
