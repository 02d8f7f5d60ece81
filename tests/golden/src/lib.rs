//! Golden tests: tiny models of every architecture, weights from an integer hash, outputs recorded
//! from HF transformers. README.md defines the hash and the files.

mod model;
mod packing;
mod run;
mod sample;
mod twin;

pub use model::{Golden, Variant};
pub use packing::Packing;
pub use run::{Runner, worst_difference};
pub use sample::Sample;
