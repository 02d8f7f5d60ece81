//! Rotary frequencies from a [`RopeSpec`].

use std::f64::consts::PI;

use tokenmill_ir::{Rope, WeightId};

use crate::spec::{Axes, RopeScaling, RopeSpec};

/// Computes the angles per position; `factors` is the weight behind [`RopeScaling::Tensor`].
pub fn rope(spec: &RopeSpec, factors: Option<WeightId>) -> Rope {
    let pairs = spec.dims / 2;
    let dims = f64::from(spec.dims);
    // (Rows and columns each have frequencies of their own.)
    let half = (pairs / 2).max(1);
    let plain = |i: u32| {
        let at = match spec.axes {
            Axes::Halves | Axes::Columns | Axes::Apart => 2 * (i % half),
            Axes::Turns => 2 * (i / 2),
            Axes::Alternate => 2 * (i % half) + u32::from(i >= half),
            _ => i,
        };
        1.0 / spec.theta.powf(f64::from(2 * at) / dims)
    };
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
    Rope { pairing: spec.pairing, inv_freq, factors, magnitude, axes: axes(&spec.axes, pairs) }
}

/// The axis of each pair; empty where all have the first.
fn axes(axes: &Axes, pairs: u32) -> Vec<u8> {
    let axis = |i: u32| match axes {
        Axes::One => 0,
        Axes::Sections(sections) => {
            let mut end = 0u32;
            let ends = sections.iter().map(|n| {
                end = u32::saturating_add(end, *n);
                end
            });
            ends.take_while(|end| i >= *end).count().min(2) as u8
        }
        Axes::Interleaved(sections) => {
            let axis = i % 3;
            let own = sections.get(axis as usize).is_some_and(|n| i < n.saturating_mul(3));
            if own { axis as u8 } else { 0 }
        }
        Axes::Columns | Axes::Apart => 2 - u8::from(i >= pairs / 2),
        Axes::Turns => 2 - (i % 2) as u8,
        Axes::Halves | Axes::Alternate => 1 + u8::from(i >= pairs / 2),
    };
    match axes {
        Axes::One => Vec::new(),
        _ => (0..pairs).map(axis).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_have_the_axes_that_transformers_gives_them() {
        for (of, pairs, expect) in [
            (Axes::One, 4, ""),
            (Axes::Sections(vec![2, 3, 3]), 8, "00111222"),
            (Axes::Interleaved(vec![4, 2, 2]), 8, "01201200"),
            (Axes::Halves, 6, "111222"),
            (Axes::Columns, 6, "222111"),
            (Axes::Turns, 6, "212121"),
        ] {
            let found: String = axes(&of, pairs).iter().map(u8::to_string).collect();
            assert_eq!(found, expect, "{of:?}");
        }
    }
}
