//! What options of a model choose from.

use clap::ValueEnum;

/// Arithmetic of matrix products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Activations as 8-bit integers.
    Int8,
    /// Weights and activations as bfloat16.
    Bf16,
    /// Everything in 32-bit floats.
    F32,
}

/// Storage format of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kv {
    /// 32-bit floats.
    F32,
    /// bfloat16.
    Bf16,
    /// Integers of 16 bits with a scale a token and head: nearer to f32 than bf16, and faster.
    Int16,
    /// Bytes with a scale a token and head.
    #[value(alias = "q8")]
    Int8,
    /// 4 bits, heads turned by a Hadamard transform, a scale for 32 columns.
    #[value(alias = "q4")]
    Int4,
    /// Keys as int8, values as int4.
    K8v4,
}

/// Memory that weights take; no answer depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Bits {
    /// As much as in the file.
    Own,
    /// As much as is fastest.
    Wide,
    /// The fastest while there is room.
    Auto,
}

/// Where guesses of the next tokens come from; no answer depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Draft {
    /// No guesses.
    None,
    /// The latest place where the last three tokens stood before.
    Ngram,
    /// The place with the longest text in common before it.
    Suffix,
    /// The draft model.
    Model,
}
