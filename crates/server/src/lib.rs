//! The HTTP server: dialects over the engine, health and metrics, and an orderly way down.
//!
//! All async code that serves is here. A request is read and checked, its text tokenised away from
//! the connections, handed to the engine, and answered whole or as a stream; a client that goes
//! away cancels its request.

mod ability;
mod access;
mod alias;
mod answering;
mod anthropic;
mod ask;
mod audit;
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
mod llamacpp;
mod made;
mod metrics;
mod model;
mod models;
mod ollama;
mod openai;
mod origin;
mod prepare;
mod rendered;
mod residents;
mod routes;
mod rows;
mod seal;
mod shared;
mod shares;
mod socket;
mod stock;
mod strict_json;
mod tls;
mod uses;
mod visit;
mod workshop;

pub use alias::Alias;
pub use config::{Limits, ServeError, ServerConfig, Timeouts, TlsFiles};
pub use keys::{Key, KeyLimits, digest, new_secret};
pub use listen::{Control, Running, serve, spawn};
pub use model::ServedModel;
pub use rendered::{Words, prompt_of};
pub use routes::{Access, ROUTES, Route};
pub use seal::SealKey;
pub use stock::{Abilities, Card, Fetching, Listed, Loader, NotLoaded, Present, Recipe, Stock};
pub use tokenmill_engine::residency::{Needs, Trouble};
