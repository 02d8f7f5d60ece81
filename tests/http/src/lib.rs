//! The server over the simulated device, and a client that can misbehave: what the HTTP tests stand
//! on. The engine and everything above it are the production ones.

mod client;
mod shelf;
mod site;

pub use client::{Client, Reply, Stream};
pub use shelf::{Shelf, ShelfSite};
pub use site::{Setup, Site, VOCAB, free_address, tokenizer};
