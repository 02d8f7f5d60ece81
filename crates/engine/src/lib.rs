//! The engine: one thread that owns scheduler and device, and the handle through which requests
//! reach it. It speaks tokens and events; it knows no socket and no JSON protocol.

pub mod load;
pub mod request;
pub mod vocabulary;

pub use request::{Event, Refusal, Request, RequestError, StopReason, TokenInfo, TopToken, Usage};
