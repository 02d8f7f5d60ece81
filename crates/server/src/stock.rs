//! The models that a server can be asked for: those that are there, and where others come from.

use std::sync::Arc;

use tokenmill_engine::KeepAlive;
use tokenmill_engine::residency::{Needs, Trouble};

use crate::alias::Alias;
use crate::model::ServedModel;

/// A model that can be asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// What it is called in answers.
    pub id: String,
    /// What else it may be asked for by.
    pub aliases: Vec<String>,
    /// When it was made or fetched, Unix seconds; 0: nobody knows.
    pub created: u64,
}

impl Listed {
    /// The same under another name alone.
    pub(crate) fn under(&self, name: &str) -> Self {
        Self { id: name.to_owned(), aliases: Vec::new(), created: self.created }
    }

    /// All its names, its own first.
    pub fn names(&self) -> Vec<String> {
        [&self.id].into_iter().chain(&self.aliases).cloned().collect()
    }
}

/// What a model can do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Abilities {
    /// It has a chat template.
    pub chat: bool,
    /// Its template has a place for tools.
    pub tools: bool,
    /// It gives vectors.
    pub embeddings: bool,
    /// It ranks documents.
    pub rerank: bool,
    /// Most tokens of prompt and answer together.
    pub context: u32,
    /// Its weights, as a measure of what it knows.
    pub bytes: u64,
}

/// Why there is no model.
#[derive(Debug, Clone, PartialEq)]
pub enum NotLoaded {
    /// Nobody wanted it any more.
    BrokenOff,
    /// It cannot be loaded.
    Failed(Trouble),
}

/// Loads models for a server, on threads of the server's.
pub trait Loader: Send + Sync {
    /// Every model that can be asked for.
    fn list(&self) -> Vec<Listed>;

    /// What a model takes, without taking it.
    ///
    /// # Errors
    /// Why it cannot be loaded.
    fn measure(&self, id: &str) -> Result<Needs, Trouble>;

    /// What a model can do, of one whose files can be read.
    fn abilities(&self, id: &str) -> Option<Abilities>;

    /// Loads a model that takes no more than was measured, as long as it is wanted.
    ///
    /// # Errors
    /// [`NotLoaded`]: nothing of it is in memory.
    fn load(&self, id: &str, wanted: &dyn Fn() -> bool) -> Result<ServedModel, NotLoaded>;

    /// Gives the memory of a model back of which nothing is open.
    fn free(&self, id: &str, model: ServedModel);
}

/// A model that is there when the server starts.
pub struct Present {
    /// The model.
    pub model: ServedModel,
    /// What it takes.
    pub needs: Needs,
}

/// See the module.
pub struct Stock {
    /// Models that are there; with a loader, of those that it lists.
    pub present: Vec<Present>,
    /// Models that stay, whoever else is asked for: their own names.
    pub pinned: Vec<String>,
    /// Other names of models, asked in other ways.
    pub aliases: Vec<Alias>,
    /// Where others come from.
    pub loader: Option<Arc<dyn Loader>>,
    /// What all models together may take, bytes.
    pub cap_bytes: u64,
    /// How long a model stays after its last answer unless the request says otherwise.
    pub keep: KeepAlive,
}

/// Models that are there, and no others: they stay.
impl From<Vec<ServedModel>> for Stock {
    fn from(models: Vec<ServedModel>) -> Self {
        let pinned = models.iter().map(|model| model.name().to_owned()).collect();
        let needs = |model: &ServedModel| {
            let bytes = model.engine.stats().memory.sum();
            Needs { bytes, load_s: 0.0 }
        };
        let present = models.into_iter().map(|model| Present { needs: needs(&model), model });
        let (present, keep) = (present.collect(), KeepAlive::Forever);
        let (aliases, cap_bytes) = (Vec::new(), u64::MAX);
        Self { present, pinned, aliases, loader: None, cap_bytes, keep }
    }
}
