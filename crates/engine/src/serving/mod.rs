//! Requests to events: the handle of a model, the host's thread that turns models, and what one of
//! them does in a step.

pub(crate) mod answer;
pub mod backlog;
pub mod constraint;
pub(crate) mod draft;
pub mod draft_model;
pub mod engine;
pub mod eyes;
pub(crate) mod feed;
pub(crate) mod guide;
pub mod handle;
pub mod host;
pub mod pictures;
pub(crate) mod queue;
pub mod repeats;
pub mod request;
pub(crate) mod rows;
pub mod sampling;
pub(crate) mod stats;
pub(crate) mod thought;
pub mod tier;
pub mod timeline;
pub mod vision;
