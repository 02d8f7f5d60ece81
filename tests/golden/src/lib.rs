//! Golden tests: tiny models of every architecture, weights from an integer hash, outputs recorded
//! from HF transformers. README.md defines the hash and the files.

mod change;
mod forgetful;
mod model;
mod packing;
mod recorded;
mod run;
mod sample;
mod sight;
mod tensors;
mod twin;

pub use change::with;
pub use forgetful::Forgetful;
pub use model::{Golden, Variant};
pub use packing::Packing;
pub use recorded::{Change, Sweep, differs};
pub use run::{Runner, worst_difference};
pub use sample::Sample;
pub use sight::{Image, Seen, Sight};
