//! Load on any server of four dialects: a workload from a seed, driven in a closed or an open loop
//! over streaming requests, and what the clients saw.
//!
//! One thread drives all clients, so that the tool takes little of the machine it measures.

mod agent_drive;
mod agents;
mod client;
mod dialect;
mod drive;
mod profile;
mod random;
mod stream;
mod summary;
mod workload;

pub use agent_drive::run_agents;
pub use agents::{AgentSession, Agents, Compaction, History, Sequence, Step};
pub use client::{LoadError, Target};
pub use dialect::{Api, Call, Request, Said, Tool, ToolResult};
pub use drive::{Arrival, Kind, Outcome, Record, Run, run};
pub use profile::{PROFILES, Profile};
pub use summary::{Spread, Summary, TurnFigures, gaps, normalised};
pub use workload::{Lengths, Session, Turn, Workload};
