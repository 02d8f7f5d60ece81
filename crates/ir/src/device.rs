//! What a device is and how large a step may be.

use crate::KvFormat;

/// What a device says about itself.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceCaps {
    /// Short name with the kernel class, such as `cpu avx512-vnni`.
    pub name: String,
    /// Memory it can use, bytes.
    pub memory_bytes: u64,
    /// Tokens in one cache block.
    pub block_tokens: u32,
    /// How keys and values are kept where nothing else is asked for: what its attention is made for.
    pub kv: KvFormat,
    /// Threads or multiprocessors it runs on.
    pub workers: u32,
    /// Measured or assumed memory read rate, bytes a second.
    pub read_bytes_per_s: f64,
    /// Measured or assumed multiply-add rate for prefill, operations (2 a multiply-add) a second.
    pub ops_per_s: f64,
}

/// Upper bounds of a step and of everything kept between steps. All hot-path memory is allocated
/// once from these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Tokens in one step, all sequences together.
    pub step_tokens: u32,
    /// Sequences in one step.
    pub sequences: u32,
    /// Output rows in one step.
    pub outputs: u32,
    /// Tokens one sequence may reach.
    pub context: u32,
    /// Blocks of each cache group (slots for a state group).
    pub group_blocks: Vec<u32>,
    /// Alternatives reported with a log-probability, at most.
    pub top_logprobs: u32,
}
