//! Rotary frequencies from a [`RopeSpec`].

use std::f64::consts::PI;

use tokenmill_ir::{Rope, WeightId};

use crate::spec::{RopeScaling, RopeSpec};

/// Computes the angles per position; `factors` is the weight behind [`RopeScaling::Tensor`].
pub fn rope(spec: &RopeSpec, factors: Option<WeightId>) -> Rope {
    let pairs = spec.dims / 2;
    let dims = f64::from(spec.dims);
    let plain = |i: u32| 1.0 / spec.theta.powf(f64::from(2 * i) / dims);
    let mut magnitude = 1.0;
    let scaled = |i: u32| -> f64 {
        let f = plain(i);
        match &spec.scaling {
            RopeScaling::None | RopeScaling::Tensor { .. } => f,
            RopeScaling::Proportional { part } => {
                // (f64 of a small whole number: exact)
                if f64::from(i) < (f64::from(pairs) * part).floor() { f } else { 0.0 }
            }
            RopeScaling::Linear { factor } => f / factor,
            RopeScaling::Llama3 { factor, low, high, original } => {
                let wavelength = 2.0 * PI / f;
                if wavelength < original / high {
                    f
                } else if wavelength > original / low {
                    f / factor
                } else {
                    let smooth = (original / wavelength - low) / (high - low);
                    (1.0 - smooth) * f / factor + smooth * f
                }
            }
            RopeScaling::Yarn { factor, beta_fast, beta_slow, original, truncate, .. } => {
                // Column at which a frequency makes `turns` turns over the original context.
                let column = |turns: f64| {
                    dims * (original / (turns * 2.0 * PI)).ln() / (2.0 * spec.theta.ln())
                };
                let (mut low, mut high) = (column(*beta_fast), column(*beta_slow));
                if *truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                (low, high) = (low.max(0.0), high.min(dims - 1.0));
                let width = if high == low { 0.001 } else { high - low };
                let ramp = ((f64::from(i) - low) / width).clamp(0.0, 1.0);
                f / factor * ramp + f * (1.0 - ramp)
            }
            RopeScaling::Factors { factors, .. } => f / factors.get(i as usize).unwrap_or(&1.0),
        }
    };
    let inv_freq = (0..pairs).map(|i| scaled(i) as f32).collect();
    if let RopeScaling::Yarn { magnitude: m, .. }
    | RopeScaling::Factors { magnitude: m, .. }
    | RopeScaling::Tensor { magnitude: m } = &spec.scaling
    {
        magnitude = *m;
    }
    Rope { pairing: spec.pairing, inv_freq, factors, magnitude, axes: Vec::new() }
}
