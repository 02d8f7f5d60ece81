//! Weights as f32, and the one product everything else is built of.

use tokenmill_ir::{SourceError, WeightSource, WeightSpec, WeightUse};

use crate::stored;

/// A weight, decoded.
#[derive(Debug, Clone, PartialEq)]
pub struct Matrix {
    /// Output features; 1 for a vector.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// Row after row. [rows × cols]
    pub data: Vec<f32>,
    /// Added to products: one a row, or empty.
    pub bias: Vec<f32>,
    /// Multiplies products, bias included: one a row, or empty.
    pub scales: Vec<f32>,
}

impl Matrix {
    /// Reads and decodes a weight.
    ///
    /// # Errors
    /// Those of its parts and of the source.
    pub fn read(spec: &WeightSpec, source: &dyn WeightSource) -> Result<Self, SourceError> {
        let data = match spec.role {
            WeightUse::Vector | WeightUse::LogVector => stored::vector(spec, source)?,
            _ => stored::decode(spec, source)?,
        };
        let (rows, cols) = (spec.rows as usize, spec.cols as usize);
        let bias = stored::bias(spec, source)?;
        Ok(Self { rows, cols, data, bias, scales: stored::scales(spec) })
    }

    /// One stored row. [cols]
    pub fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.cols..][..self.cols]
    }

    /// `scale[row] · (x · row + bias[row])`. x [cols]
    pub fn product(&self, row: usize, x: &[f32]) -> f32 {
        let sum = dot(x, self.row(row)) + f64::from(self.bias.get(row).copied().unwrap_or(0.0));
        (sum * f64::from(self.scales.get(row).copied().unwrap_or(1.0))) as f32
    }
}

/// `Σ a·b` in f64.
pub fn dot(a: &[f32], b: &[f32]) -> f64 {
    // Sixteen running sums only so that the compiler may use vector registers.
    let mut lanes = [0.0f64; 16];
    let (a, a_rest) = a.as_chunks::<16>();
    let (b, b_rest) = b.as_chunks::<16>();
    for (a, b) in a.iter().zip(b) {
        for (lane, (a, b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane += f64::from(*a) * f64::from(*b);
        }
    }
    let rest = a_rest.iter().zip(b_rest).map(|(a, b)| f64::from(*a) * f64::from(*b));
    lanes.iter().sum::<f64>() + rest.sum::<f64>()
}
