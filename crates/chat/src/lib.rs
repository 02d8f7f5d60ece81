//! Conversations: as their model's template writes them, and how the answers are read and held to tools,
//! schemas and grammars. The server and programs that embed the engine share it; it knows no protocol.

pub mod conversation;
pub mod generic_tools;
pub mod holding;
mod image;
mod rendered;
pub mod strict_json;

pub use holding::{Constrained, Grammars, Holds, Unheld, Why};
pub use image::{Image, Source};
pub use rendered::Rendered;
pub use strict_json::shown;
