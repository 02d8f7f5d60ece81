//! The model store: turns a model name into files on this disk, fetching and checking them.
//!
//! [`Store::resolve`] looks at home first (own store, the Hugging Face cache, the stores of Ollama
//! and LM Studio, all in place) and fetches what is missing; [`Store::pull`] fetches and repairs. At any crash point a name resolves to a
//! complete, digest-checked set of files or to nothing, and a broken download resumes.

mod defaults;
mod digest;
mod disk;
mod download;
mod env;
mod error;
mod http;
mod hub;
mod hub_cache;
mod journal;
mod lm_studio;
mod local;
mod name;
mod ollama;
mod own;
mod patience;
mod pick;
mod progress;
mod registry;
mod store;
mod wheel;

#[cfg(test)]
mod download_tests;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod hub_tests;
#[cfg(test)]
mod ollama_tests;
#[cfg(test)]
mod wheel_tests;

pub use digest::Digest;
pub use env::{Limits, StoreEnv, Wanted, WheelCommand};
pub use error::StoreError;
pub use local::{Checked, Entry, Owner, Removed, State, Unusable};
pub use name::{ALIASES, Alias, HubName, Mirror, ModelName, OllamaName, PypiName};
pub use own::{LocalFile, LocalModel};
pub use progress::{OnProgress, Progress, in_words};
pub use store::Store;
