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
mod error;
mod fetch;
mod fields;
mod fleet;
mod generation;
mod guests;
mod health;
mod images;
mod keys;
mod kv_events;
mod listen;
mod llamacpp;
mod made;
mod metrics;
mod model;
mod models;
mod ollama;
mod openai;
mod openapi;
mod origin;
mod page;
mod prepare;
mod receipts;
mod rendered;
mod requests;
mod residents;
mod routes;
mod rows;
mod seal;
mod seeing;
mod shared;
mod shares;
mod socket;
mod state;
mod stock;
mod tls;
mod traces;
mod uses;
mod visit;
mod workshop;

use tokenmill_chat::{conversation, holding, strict_json};

pub use alias::Alias;
pub use config::{Limits, ServeError, ServerConfig, Timeouts, TlsFiles};
pub use fetch::ImageHosts;
pub use keys::{Key, KeyLimits, digest, new_secret};
pub use kv_events::KvEvents;
pub use listen::{Control, Running, serve, spawn};
pub use model::ServedModel;
pub use receipts::{HEADER as RECEIPT_HEADER, SEED as SEED_HEADER, differences};
pub use rendered::{Words, prompt_of};
pub use routes::{Access, ROUTES, Route};
pub use seal::SealKey;
pub use state::{StateConfig, UnixClock};
pub use stock::{
    Abilities, Card, Fetching, IsWanted, Listed, Loader, NotLoaded, Present, Recipe, Stock,
};
pub use tokenmill_engine::residency::{Needs, Trouble};
pub use traces::Traces;
