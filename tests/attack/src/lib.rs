//! Model files with one thing wrong, and what every command does with a file: it is read, described,
//! loaded and scores three tokens, or is refused in one line. Whatever else happens is a fault.

pub mod gguf;
pub mod json;
pub mod trial;

use tokenmill_ir::sampling::splitmix;

/// Numbers drawn from a seed.
#[derive(Debug, Clone)]
pub struct Draw(u64);

impl Draw {
    /// A sequence of its own for every seed.
    pub fn new(seed: u64) -> Self {
        Self(splitmix(seed))
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = splitmix(self.0.wrapping_add(1));
        self.0
    }

    /// The next number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.number() % n.max(1) as u64) as usize
    }
}

/// One file of a model with something wrong.
#[derive(Debug, Clone)]
pub struct Mutant {
    /// What is wrong.
    pub what: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Bytes cut at a place and bytes changed at others: `count` files of each kind, most of them within
/// the first `head` bytes; of them those that `keep` wants, each asked for once.
pub fn damaged(
    bytes: &[u8],
    (head, count): (usize, usize),
    draw: &mut Draw,
    mut keep: impl FnMut() -> bool,
) -> Vec<Mutant> {
    let mut all = Vec::new();
    let head = head.clamp(1, bytes.len().max(1));
    for _ in 0..count {
        let at = if draw.below(4) == 0 { draw.below(bytes.len()) } else { draw.below(head) };
        if keep() {
            all.push(Mutant { what: format!("cut at {at}"), bytes: bytes[..at].to_vec() });
        }
        let at = draw.below(head);
        let Some(&byte) = bytes.get(at) else { continue };
        let other = match draw.below(4) {
            0 => 0,
            1 => 255,
            2 => byte ^ (1 << draw.below(8)),
            _ => draw.number() as u8,
        };
        if keep() {
            let mut changed = bytes.to_vec();
            changed[at] = other;
            all.push(Mutant { what: format!("byte {at} = {other}"), bytes: changed });
        }
    }
    all
}
