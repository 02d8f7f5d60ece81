//! The table of cases, one file a family of ops.

mod attention;
mod dense;
mod experts;
mod media;
mod output;
mod recurrent;

use super::Case;
pub use attention::wide_heads;

/// Every case, for a device with blocks of `block` tokens.
pub fn all(block: u32) -> Vec<Case> {
    let families = [
        dense::cases(block),
        attention::cases(block),
        recurrent::cases(block),
        experts::cases(block),
        output::cases(block),
        media::cases(block),
    ];
    families.into_iter().flatten().collect()
}
