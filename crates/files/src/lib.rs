//! Model files: GGUF and Hugging Face folders, read as checked data, their weights mapped.
//!
//! [`open`] turns a path into an [`OpenModel`]: the [`Checkpoint`](tokenmill_ir::Checkpoint)
//! (hyper-parameters and the tensor index) and the [`ModelData`] that gives the tensors' bytes.
//! Everything in a file is outside data: each number is checked before it is used, nothing is
//! allocated from a declared count, and what is wrong is named with path, place, expectation
//! and finding ([`LoadError`]).

mod assemble;
mod budget;
mod bundle;
mod closed;
mod cursor;
mod data;
mod error;
pub mod gguf;
pub mod hf_config;
mod kind;
mod mmap;
mod open;
mod quantized;
pub mod safetensors;
mod shape;
mod shards;
pub mod write;

pub use bundle::Bundle;
pub use closed::{ClosedModel, FilesState};
pub use data::{ModelData, expert_rows};
pub use error::LoadError;
pub use mmap::MappedFile;
pub use open::{OpenModel, Sidecars, open};
