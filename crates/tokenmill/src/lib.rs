//! Language models inside a program: open one, talk, complete, embed, rank, and get answers as values of
//! your types. Everything runs in this process, on threads of the engine; calls block, streams are
//! iterators, and dropping one stops its work. No server and no async runtime is needed.
//!
//! ```no_run
//! let model = tokenmill::Model::open("smollm2")?;
//! let mut chat = model.chat();
//! for piece in chat.stream("Why is the sky blue?")? {
//!     print!("{}", piece?.text());
//! }
//! # Ok::<(), tokenmill::Error>(())
//! ```
//!
//! A model is what the command `tokenmill run` takes: a path, `user/repo[:quant]` on the Hugging Face hub, a name
//! of Ollama or LM Studio, or an alias. What is not here is fetched. With a seed, the same
//! question to the same model gives the same bytes, whatever else runs.

mod answer;
mod chat;
mod complete;
pub mod device;
mod error;
mod measure;
pub mod memory;
mod model;
mod partial;
mod said;
mod shared;
mod stream;
mod tool;
mod typed;

pub use answer::{Answer, Called, Piece};
pub use chat::Chat;
pub use complete::Completion;
pub use device::Device;
pub use error::Error;
pub use model::{Model, Options, Progress};
pub use partial::begun;
pub use said::{options_of, sampling_of};
pub use shared::{Lent, SharedChat};
pub use stream::Stream;
pub use tokenmill_engine::{StopReason, Usage};
pub use tokenmill_ir::{KvFormat, Mode, SamplingValues as Sampling};
pub use tool::ToolError;
pub use typed::{Part, TypedStream, schema_of, settled};
pub use {schemars, serde_json};
