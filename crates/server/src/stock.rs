//! The models that a server can be asked for: those that are there, and where others come from.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokenmill_engine::residency::{Needs, Trouble};
use tokenmill_engine::{Defaults, KeepAlive};

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
    /// Its files, bytes; 0: nobody knows.
    pub bytes: u64,
    /// What tells its files from others, hexadecimal digits; empty: nobody knows.
    pub digest: String,
}

impl Listed {
    /// All its names, its own first.
    pub fn names(&self) -> Vec<String> {
        [&self.id].into_iter().chain(&self.aliases).cloned().collect()
    }
}

/// Names that mean the same model as that one, itself first: Ollama's `latest` may be left out, and so
/// may the place that a model is from.
pub(crate) fn spellings(name: &str) -> Vec<String> {
    let places = ["hf.co/", "huggingface.co/"];
    let bare = places.iter().find_map(|place| name.strip_prefix(place)).unwrap_or(name);
    let mut all = vec![name.to_owned(), bare.to_owned()];
    match bare.strip_suffix(":latest") {
        Some(untagged) => all.push(untagged.to_owned()),
        None if !bare.rsplit('/').next().unwrap_or(bare).contains(':') => {
            all.push(format!("{bare}:latest"));
        }
        None => {}
    }
    all.extend(all.clone().iter().map(|name| format!("ollama:{name}")));
    all
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
    /// It may reason before it answers.
    pub thinking: bool,
    /// It writes what stands between two texts.
    pub infill: bool,
    /// It sees images.
    pub sees: bool,
    /// Most tokens of prompt and answer together.
    pub context: u32,
    /// Its weights, as a measure of what it knows.
    pub bytes: u64,
}

/// What is told of a model's files.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Card {
    /// `gguf` or `safetensors`.
    pub format: String,
    /// Its architecture, such as `qwen2`.
    pub family: String,
    /// Numbers in its tensors.
    pub parameters: u64,
    /// How most of these are stored, such as `Q4_K_M`.
    pub quantization: String,
    /// Columns of a token's vector.
    pub width: u32,
    /// Its chat template.
    pub template: Option<String>,
    /// How its packager wants it to be run.
    pub defaults: Defaults,
}

/// A model made of another by other words: the same weights, run otherwise.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Recipe {
    /// What it is called, with a tag.
    pub name: String,
    /// The model that it is made of, by its own name.
    pub from: String,
    /// Ollama's parameters.
    pub parameters: Map<String, Value>,
    /// Its template in Go's language; none: that of the model that it is made of.
    pub template: Option<String>,
    /// Instructions of conversations that bring none.
    pub system: Option<String>,
    /// What conversations begin with: a role and a text each.
    pub messages: Vec<(String, String)>,
    /// Its licence, to be told.
    pub license: Vec<String>,
    /// When it was made, Unix seconds.
    pub created: u64,
}

/// How far a download is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fetching {
    /// In words.
    Words(String),
    /// Bytes of a file that are there.
    Bytes {
        /// Its name.
        file: String,
        /// So many.
        done: u64,
        /// Of so many.
        total: u64,
    },
}

/// Whether anybody still waits for a download.
pub type IsWanted = Arc<dyn Fn() -> bool + Send + Sync>;

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

    /// What a model holds now that its caches were made smaller, bytes.
    fn held_bytes(&self, _id: &str, model: &ServedModel) -> u64 {
        model.engine.stats().memory.sum()
    }

    /// What is told of a model's files, of one whose files can be read.
    fn card(&self, _id: &str) -> Option<Card> {
        None
    }

    /// Whether models can be pulled and deleted.
    ///
    /// # Errors
    /// Why not.
    fn changes(&self) -> Result<(), Trouble> {
        Err(Trouble { reason: FIXED.into(), of_files: true })
    }

    /// Fetches a model by a name as Ollama's clients have it, as long as it is wanted; `on` hears how
    /// far it is.
    ///
    /// # Errors
    /// Why it is not here then.
    fn pull(
        &self,
        _name: &str,
        _on: &mut dyn FnMut(Fetching),
        _wanted: IsWanted,
    ) -> Result<(), Trouble> {
        Err(Trouble { reason: FIXED.into(), of_files: true })
    }

    /// What is planned for models that can be pulled, or for the one of that name: whether it fits, how fast
    /// it would be, and why. Nothing is fetched for it.
    ///
    /// # Errors
    /// Why nothing can be planned.
    fn plan(&self, _name: Option<&str>) -> Result<Vec<Value>, Trouble> {
        Err(Trouble { reason: FIXED.into(), of_files: true })
    }

    /// Deletes the files of a model that is not in memory.
    ///
    /// # Errors
    /// Why they are still there.
    fn remove(&self, _id: &str) -> Result<(), Trouble> {
        Err(Trouble { reason: FIXED.into(), of_files: true })
    }

    /// Models that were made of others.
    fn recipes(&self) -> Vec<Recipe> {
        Vec::new()
    }

    /// From now on these are made of others, and none else.
    ///
    /// # Errors
    /// Why they are not kept.
    fn keep(&self, _recipes: &[Recipe]) -> Result<(), Trouble> {
        Err(Trouble { reason: FIXED.into(), of_files: true })
    }
}

/// Why models do not change.
const FIXED: &str = "this server serves the models that it was started with";

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
            Needs { bytes, floor_bytes: bytes, load_s: 0.0 }
        };
        let present = models.into_iter().map(|model| Present { needs: needs(&model), model });
        let (present, keep) = (present.collect(), KeepAlive::Forever);
        let (aliases, cap_bytes) = (Vec::new(), u64::MAX);
        Self { present, pinned, aliases, loader: None, cap_bytes, keep }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latest_and_a_models_place_may_be_left_out() {
        for (asked, meant) in [
            ("sim", "sim:latest"),
            ("sim:latest", "sim"),
            ("sim", "ollama:sim:latest"),
            ("hf.co/a/b:Q4_0", "a/b:Q4_0"),
            ("sim", "sim"),
        ] {
            assert!(spellings(asked).contains(&meant.to_owned()), "{asked}");
        }
        for (asked, other) in [("sim:q8", "sim"), ("sim", "sim:q8"), ("sim:q8", "sim:q8:latest")] {
            assert!(!spellings(asked).contains(&other.to_owned()), "{asked}");
        }
    }
}
