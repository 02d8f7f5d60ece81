//! What a position does to queries and keys: rotations, and factors of queries.

use crate::weight::WeightId;

/// Which two columns form a rotated pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopePairing {
    /// `(i, i + dims/2)`: Hugging Face.
    Half,
    /// `(2i, 2i + 1)`: GGUF llama, DeepSeek.
    Interleaved,
}

/// Rotary position embedding of the first `2 × inv_freq.len()` columns of a head.
///
/// Pair `i` at position `p` rotates by `p · inv_freq[i] / factors[i]` and is scaled by `magnitude`
/// (RoFormer, arXiv 2104.09864; YaRN, arXiv 2309.00071). `p` is the position on the pair's axis
/// (Qwen2-VL, arXiv 2409.12191: time, row and column).
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Pairing of columns.
    pub pairing: RopePairing,
    /// Angle per position of each pair, radians.
    pub inv_freq: Vec<f32>,
    /// Divisors of the angles, when the file carries them as a tensor.
    pub factors: Option<WeightId>,
    /// Multiplies sine and cosine (YaRN's attention factor).
    pub magnitude: f32,
    /// The axis of each pair: 0, 1 or 2. Empty: all the first.
    pub axes: Vec<u8>,
}

impl Rope {
    /// The axis of pair `i`.
    pub fn axis(&self, i: usize) -> usize {
        self.axes.get(i).map_or(0, |&axis| usize::from(axis))
    }
}

/// Scale of queries by their position `p`, so that attention over many keys stays sharp:
/// `q · (1 + beta · ln(1 + ⌊(p + offset) / every⌋))` (arXiv 2501.19399).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PositionScale {
    /// Steepness.
    pub beta: f32,
    /// Tokens a step of the logarithm's argument; not 0.
    pub every: u32,
    /// Added to positions.
    pub offset: u32,
}

impl PositionScale {
    /// The factor at a position.
    pub fn factor(&self, position: u32) -> f32 {
        let steps = (u64::from(position) + u64::from(self.offset)) / u64::from(self.every.max(1));
        (f64::from(self.beta) * crate::math::ln((1 + steps) as f64) + 1.0) as f32
    }
}
