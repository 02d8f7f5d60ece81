//! Simulated schedules of the production engine; see `tests/schedules.rs`.
