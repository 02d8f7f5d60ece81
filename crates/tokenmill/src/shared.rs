//! A conversation that several hold, as bindings for other languages do: whoever asks has it until the answer is
//! whole or dropped.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::chat::{Chat, with_schema};
use crate::error::Error;
use crate::stream::Stream;

/// See the module. A clone is the same conversation.
#[derive(Clone)]
pub struct SharedChat {
    home: Arc<Mutex<Option<Chat>>>,
}

/// The conversation while an answer is made: it goes home when this is dropped.
pub struct Lent {
    chat: Chat,
    home: SharedChat,
}

impl SharedChat {
    /// Shares a conversation.
    pub fn new(chat: Chat) -> Self {
        Self { home: Arc::new(Mutex::new(Some(chat))) }
    }

    fn locked(&self) -> MutexGuard<'_, Option<Chat>> {
        self.home.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the conversation.
    ///
    /// # Errors
    /// [`Error::Busy`] while an answer is made.
    pub fn with<T>(&self, work: impl FnOnce(&mut Chat) -> T) -> Result<T, Error> {
        self.locked().as_mut().map(work).ok_or(Error::Busy)
    }

    /// Asks, perhaps for a value of a schema.
    ///
    /// # Errors
    /// [`Error::Busy`] while an answer is made; as [`Chat::stream`].
    pub fn stream(&self, question: &str, schema: Option<Value>) -> Result<Stream<Lent>, Error> {
        let chat = self.locked().take().ok_or(Error::Busy)?;
        let lent = Lent { chat, home: self.clone() };
        let question = match &schema {
            Some(schema) => with_schema(question, schema),
            None => question.to_owned(),
        };
        Stream::new(lent, &question, schema)
    }
}

impl Deref for Lent {
    type Target = Chat;

    fn deref(&self) -> &Chat {
        &self.chat
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut Chat {
        &mut self.chat
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let empty = self.chat.model().chat();
        let chat = std::mem::replace(&mut self.chat, empty);
        *self.home.locked() = Some(chat);
    }
}
