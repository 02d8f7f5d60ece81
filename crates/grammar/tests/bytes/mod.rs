//! A vocabulary of bytes, one of pairs of letters and words, and texts held against grammars.
#![allow(dead_code)] // each test file uses its part

use std::sync::Arc;

use tokenmill_grammar::{Constraint, Grammar, Refused, Settings, Vocabulary, compile};

/// The only end token of both vocabularies' first 257.
pub const END: u32 = 256;

/// 256 bytes and an end.
pub fn bytes() -> Arc<Vocabulary> {
    let tokens = (0..=255u8).map(|b| vec![b]).chain([b"<|end|>".to_vec()]);
    Arc::new(Vocabulary::new(tokens, &[END], &[END]).unwrap())
}

/// Bytes, an end, and `size` tokens like those of a BPE: runs of letters, of signs, with blanks.
pub fn pieces(size: usize) -> Arc<Vocabulary> {
    Arc::new(Vocabulary::new(piece_bytes(size), &[END], &[END]).unwrap())
}

/// The tokens of `pieces`.
pub fn piece_bytes(size: usize) -> Vec<Vec<u8>> {
    let mut tokens: Vec<Vec<u8>> = (0..=255u8).map(|b| vec![b]).collect();
    tokens.push(b"<|end|>".to_vec());
    let syllables =
        ["a", "be", "co", "di", "en", "fu", "ge", "ho", "in", "ju", "ka", "lo", "ma", "nu"];
    let signs = [
        "{\"", "\":", "\",\"", "\"}", "[{", "}]", "},{", "\":\"", "\":[", "],", "\\n", "\\\"",
        "00", "12", "-1", ".5", "true", "false", "null", "é", "日本", "  ", "\n", "://", "@",
    ];
    tokens.extend(signs.iter().map(|s| s.as_bytes().to_vec()));
    let mut draws = Draws(7);
    let mut seen: std::collections::BTreeSet<Vec<u8>> = tokens.iter().cloned().collect();
    while tokens.len() < size {
        let mut word = String::from(if draws.below(2) == 0 { " " } else { "" });
        for _ in 0..1 + draws.below(4) {
            word.push_str(syllables[draws.below(syllables.len())]);
            if draws.below(9) == 0 {
                word.push((b'0' + draws.below(10) as u8) as char);
            }
        }
        if seen.insert(word.clone().into_bytes()) {
            tokens.push(word.into_bytes());
        }
    }
    tokens
}

/// A seeded series of draws (xorshift).
pub struct Draws(pub u64);

impl Draws {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 33) as usize % limit.max(1)
    }
}

/// Compiles a constraint for bytes.
pub fn of_bytes(constraint: &Constraint) -> Result<Grammar, Refused> {
    compile(constraint, &bytes(), &Settings::default())
}

/// Whether a grammar over `bytes` takes a text whole.
pub fn holds(grammar: &Grammar, text: &str) -> bool {
    let mut matcher = grammar.start();
    text.bytes().all(|b| matcher.accept(u32::from(b)).is_ok()) && matcher.may_end()
}

/// How far a grammar over `bytes` takes a text.
pub fn reach(grammar: &Grammar, text: &str) -> usize {
    let mut matcher = grammar.start();
    text.bytes().take_while(|b| matcher.accept(u32::from(*b)).is_ok()).count()
}

/// The tokens of a mask.
pub fn allowed(bits: &[u32]) -> Vec<u32> {
    let of = |(i, word): (usize, &u32)| {
        let word = *word;
        (0..32).filter(move |b| word >> b & 1 == 1).map(move |b| i as u32 * 32 + b)
    };
    bits.iter().enumerate().flat_map(of).collect()
}
