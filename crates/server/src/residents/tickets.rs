//! What is held as long as something is so, and whose end is an event for the residency.

use std::sync::Arc;

use tokenmill_engine::residency::{Known, Refused, Waiter};
use tokio::sync::oneshot;

use super::Residents;
use crate::made::Made;
use crate::model::ServedModel;
use crate::shared::Model;
use crate::stock::Loader;

/// Keeps a model where it is while it answers.
pub struct InUse {
    pub(super) residents: Arc<Residents>,
    pub(super) known: Known,
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.residents.act(|inner, now_s| inner.all.ended(self.known, now_s));
    }
}

/// Dropped when a model's caches are small, maybe on its device's thread.
pub(super) struct Shrunk {
    pub(super) residents: Arc<Residents>,
    pub(super) loader: Arc<dyn Loader>,
    pub(super) known: Known,
    pub(super) id: String,
    pub(super) served: ServedModel,
}

impl Drop for Shrunk {
    fn drop(&mut self) {
        let bytes = self.loader.held_bytes(&self.id, &self.served);
        tracing::info!(model = self.id, bytes, "its caches are small");
        self.residents.act(|inner, now_s| inner.all.shrunk(self.known, bytes, now_s));
    }
}

/// A model that was asked for; who drops it waits no more.
pub struct Pending {
    pub(super) residents: Arc<Residents>,
    pub(super) waiter: Waiter,
    /// Its own name.
    pub id: String,
    /// Why it is this one, where no name was asked for.
    pub why: Option<String>,
    /// The words that make it another.
    pub(super) made: Option<Arc<Made>>,
    pub(super) answer: oneshot::Receiver<Result<Model, Refused>>,
}

impl Pending {
    /// What is known at once.
    pub fn now(&mut self) -> Option<Result<Model, Refused>> {
        let found = self.answer.try_recv().ok()?;
        Some(found.map(|model| model.made(self.made.as_deref())))
    }

    /// The model, or why there is none. (The sender waits until it is used.)
    pub async fn wait(&mut self) -> Result<Model, Refused> {
        let found = (&mut self.answer).await.unwrap_or(Err(Refused::Unloaded));
        found.map(|model| model.made(self.made.as_deref()))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let waiter = self.waiter;
        self.residents.act(|inner, now_s| match inner.waiting.remove(&waiter) {
            Some(_) => inner.all.left(waiter, now_s),
            None => Vec::new(), // it was answered
        });
    }
}
