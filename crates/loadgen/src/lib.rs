//! Load on any OpenAI-style server: a workload from a seed, driven in a closed or an open loop over
//! streaming requests, and what the clients saw.
//!
//! One thread drives all clients, so that the tool takes little of the machine it measures.

mod client;
mod drive;
mod summary;
mod workload;

pub use client::{Api, LoadError, Target};
pub use drive::{Arrival, Outcome, Record, Run, run};
pub use summary::{Spread, Summary, gaps};
pub use workload::{Lengths, Session, Turn, Workload};
