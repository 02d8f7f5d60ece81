//! The rule of memory that loading and planning share: how many blocks a cache has, and how many sequences.

use tokenmill_ir::GroupKind;

/// Blocks of a cache group for that many sequences of `context` tokens, where a step holds `step_tokens` and a
/// block `block_tokens`.
pub fn blocks(
    kind: GroupKind,
    context: u32,
    sequences: u32,
    block_tokens: u32,
    step_tokens: u32,
) -> u32 {
    let full = context.div_ceil(block_tokens) + 1;
    match kind {
        GroupKind::Full => full.saturating_mul(sequences),
        GroupKind::Window { tokens } => {
            let held = tokens.saturating_add(step_tokens).div_ceil(block_tokens) + 2;
            held.min(full).saturating_mul(sequences)
        }
        GroupKind::State => sequences.saturating_mul(2).saturating_add(8),
    }
}

/// Most sequences, up to `wanted`, whose caches of full length take at most half of `room` bytes; at least one.
/// `cache` gives the bytes for a number of sequences. More sequences share these blocks.
pub fn full_streams(wanted: u32, room: u64, cache: impl Fn(u32) -> u64) -> u32 {
    let mut sequences = wanted.max(1);
    while sequences > 1 && cache(sequences) > room / 2 {
        sequences -= sequences.div_ceil(8);
    }
    sequences
}

/// Most sequences whose caches take at most `room` bytes.
pub fn most_streams(room: u64, cache: impl Fn(u32) -> u64) -> u32 {
    let (mut fits, mut fails) = (0, 1 << 16);
    while fails - fits > 1 {
        let n = fits + (fails - fits) / 2;
        if cache(n) <= room { fits = n } else { fails = n }
    }
    fits
}

/// What a process takes beside its models: code, threads, queues. Bytes.
pub const PROCESS_BYTES: u64 = 45 << 19;

/// What a tokenizer takes, about: 160 bytes a token of the vocabulary.
pub fn vocabulary_bytes(vocab: u32) -> u64 {
    u64::from(vocab) * 160
}

/// What a process takes beside weights, caches and buffers: [`PROCESS_BYTES`] and [`vocabulary_bytes`].
pub fn process_bytes(vocab: u32) -> u64 {
    PROCESS_BYTES + vocabulary_bytes(vocab)
}
