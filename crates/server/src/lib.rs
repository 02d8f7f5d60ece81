//! The HTTP server: dialects over the engine, health and metrics, and an orderly way down.
//!
//! All async code that serves is here. A request is read and checked, its text tokenised away from
//! the connections, handed to the engine, and answered whole or as a stream; a client that goes
//! away cancels its request.

mod access;
mod answering;
mod anthropic;
mod ask;
mod body;
mod coding;
mod config;
mod conversation;
mod error;
mod fields;
mod generation;
mod generic_tools;
mod guests;
mod health;
mod holding;
mod keys;
mod listen;
mod metrics;
mod model;
mod openai;
mod origin;
mod prepare;
mod rendered;
mod routes;
mod rows;
mod seal;
mod shared;
mod shares;
mod socket;
mod strict_json;
mod visit;
mod workshop;

pub use config::{Limits, ServeError, ServerConfig, Timeouts};
pub use listen::{Running, serve, spawn};
pub use model::ServedModel;
pub use rendered::{Words, prompt_of};
pub use routes::{Access, ROUTES, Route};
