//! The planner: which of the models at hand, in which role, how, what it costs and what else there is.
//!
//! `plan(machine, models, others, need)` is a pure function of data. A [`Machine`] is cores, instruction set,
//! memory, ceilings (measured, or assumed by instruction set), disk, GPUs; a [`Model`] is what its files and its
//! program say (bytes that stay in memory, bytes that a token reads, cache bytes of a token, experts, operations,
//! abilities); a [`Need`] is a task, users at once, a context. Out comes a [`Plan`]: a choice with its command
//! line, memory by part and speed, reasons, alternatives with their cost, warnings. Nothing here reads a file,
//! a clock or a device: `cli` gathers machine and models, and files describe machines that are not there.
//!
//! It stands in this crate because loading and the planner share one rule of memory ([`memory`]): what is planned
//! is what [`crate::plan::fit`] takes. A crate of its own would need that rule, or repeat it.
//!
//! **Memory** is the device's own footprint of weights and buffers, the blocks that [`memory::blocks`] counts for
//! the caches, and what the process takes. **Speed** is a step's work over what the machine can do at most:
//! `max(bytes ÷ (reads · f), operations ÷ (rate · g))`, where f and g are shares of these ceilings that
//! were measured ([`factors`]: data, each row with its source), or timed on this machine just now.
//!
//! **The choice**: of the models that can do the task and fit, the largest in bytes that keeps the task's pace
//! ([`need::TASKS`]); where none keeps it, the one that comes nearest. What this version does not do (streaming
//! weights from disk, splitting a model between GPU and CPU or between machines) is said with the next best.

mod advice;
pub mod choice;
pub mod estimate;
pub mod factors;
pub mod machine;
pub mod memory;
pub mod model;
pub mod need;
pub mod page;

pub use choice::{Alternative, Choice, Plan, Role, Verdict, plan};
pub use estimate::Speed;
pub use machine::Machine;
pub use model::Model;
pub use need::{Need, Task};

/// Models that can be pulled, as data: computed from their public configurations and the sizes of their files, so
/// about right; once they are here, what their files say counts.
pub fn known() -> Vec<Model> {
    // (A test reads it.)
    serde_json::from_str(include_str!("known.json")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #[test]
    fn known_models_are_read() {
        let known = super::known();
        assert!(known.len() > 10 && known.iter().all(|m| !m.here));
    }
}
