//! The scheduler: which tokens of which sequences run in the next step, and where their cache lies.
//!
//! Pure: no clock, thread, device, file or environment; time arrives as a number. Everything a step
//! touches is allocated when a sequence is submitted, so steady decoding allocates nothing.

mod accounts;
mod block_pool;
mod cache;
mod changes;
mod commit;
mod fill;
mod invariants;
mod leases;
mod media;
mod miss;
mod plan;
mod prefix;
mod resize;
mod runs;
mod scheduler;
mod sequence;
mod step;

pub use changes::{Change, Changes, TextPlace};
pub use leases::{LeaseInfo, LeaseWish};
pub use media::{Embeddings, Inputs, Media};
pub use miss::{Miss, Wait};
pub use runs::{Adoption, CachedText};
pub use scheduler::{Config, Counts, GroupCounts, Refused, Scheduler};
pub use sequence::{NewSequence, Numbers, SeqId, Want};
pub use step::{Grant, Odds, Outcome, Progress, Step, StepCost};
