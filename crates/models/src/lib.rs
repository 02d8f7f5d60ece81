//! What each architecture is (data), and how it becomes a program.
//!
//! [`arch`] holds one small function per architecture that turns hyper-parameters into a
//! [`ModelSpec`]; [`lower()`] is the only place that knows how a layer computes; [`names`] the only
//! place that knows how files spell tensors. Pure.

pub mod arch;
mod classes;
mod error;
mod flags;
pub mod hyper;
pub mod limits;
pub mod lower;
pub mod names;
mod neutral;
mod params;
pub mod ranges;
pub mod rope;
mod rotary;
pub mod spec;
pub mod vision;

pub use arch::{ARCHS, Arch, spec_of};
pub use error::ModelError;
pub use hyper::Hyper;
pub use lower::{Lowered, lower, lower_vision, newline_of};
pub use spec::ModelSpec;
