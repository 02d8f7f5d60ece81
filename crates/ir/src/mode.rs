//! The arithmetic of a model's products.

/// Arithmetic of a whole model: part of the key under which results repeat (`NUMERICS.md`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Activations as bytes with a scale per 32 columns.
    #[default]
    Int8,
    /// Activations and weights rounded to bf16, sums in f32.
    Bf16,
    /// Everything in f32.
    F32,
}
