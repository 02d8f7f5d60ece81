//! Simulated schedules: the production scheduler and engine loop on the simulated device,
//! everything random drawn from one seed. See `tests/schedules.rs`.

mod mirror;
mod oracle;
mod scene;
mod service;
mod world;

pub use mirror::Mirror;
pub use scene::{Draw, Scene};
pub use service::{Service, Times};
pub use world::{Clients, run};
