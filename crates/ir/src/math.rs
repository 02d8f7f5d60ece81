//! Elementary functions and sums with one definition everywhere: only IEEE additions,
//! multiplications, divisions and square roots in a stated order, never the platform's libm, so
//! that results are equal on every machine.

/// `e^x`, within 2 ulp; 0 below −87.34, +∞ above 88.73, NaN for NaN.
///
/// `x = n·ln2 + r`, `|r| ≤ ln2/2`, degree-6 Taylor-like polynomial of `e^r`, exponent added.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const LOG2E: f32 = std::f32::consts::LOG2_E;
    const LN2_HI: f32 = 0.693_359_4;
    const LN2_LO: f32 = -2.121_944_4e-4;
    const MAGIC: f32 = 12_582_912.0; // 1.5 · 2^23: adding it rounds to an integer
    let clamped = if x < -87.336_54 { -87.336_54 } else { x };
    let clamped = if clamped > 88.722_83 { 88.722_83 } else { clamped };
    let shifted = clamped * LOG2E + MAGIC;
    let n = shifted - MAGIC;
    let r = (clamped - n * LN2_HI) - n * LN2_LO;
    let mut p = 1.987_569_1e-4_f32;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let e = (p * (r * r) + r) + 1.0;
    // 2^n in two factors: n may be 128, which one float exponent cannot hold. (Its bits, where a conversion would saturate.)
    let n = (shifted.to_bits() as i32).wrapping_sub(MAGIC.to_bits() as i32);
    let half = n >> 1;
    let pow2 = |k: i32| f32::from_bits((k.wrapping_add(127) as u32) << 23);
    let value = e * pow2(half) * pow2(n.wrapping_sub(half));
    if x < -87.336_54 {
        0.0
    } else if x > 88.722_83 {
        f32::INFINITY
    } else if x.is_nan() {
        x
    } else {
        value
    }
}

/// Natural logarithm of a positive finite number in double precision.
///
/// `x = m·2^e`, `m ∈ [√½, √2)`, `ln m = 2 artanh((m−1)/(m+1))` by its odd series to degree 25.
pub fn ln(x: f64) -> f64 {
    if x <= 0.0 || !x.is_finite() {
        return if x == 0.0 {
            f64::NEG_INFINITY
        } else if x == f64::INFINITY {
            x
        } else {
            f64::NAN
        };
    }
    let (x, shift) =
        if x < f64::MIN_POSITIVE { (x * 18_014_398_509_481_984.0, -54) } else { (x, 0) };
    let bits = x.to_bits();
    let mut e = ((bits >> 52) as i64 - 1023) + shift;
    let mut m = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | 0x3ff0_0000_0000_0000);
    if m > std::f64::consts::SQRT_2 {
        m *= 0.5;
        e += 1;
    }
    let t = (m - 1.0) / (m + 1.0);
    let t2 = t * t;
    let mut s = 0.0;
    let mut k = 25;
    while k >= 1 {
        s = s * t2 + 1.0 / f64::from(k);
        k -= 2;
    }
    2.0 * t * s + e as f64 * std::f64::consts::LN_2
}

/// Lanes of every f32 sum.
pub const LANES: usize = 16;

/// Folds 16 lane sums by the fixed tree: 8+8, 4+4, 2+2, 1+1.
#[inline]
pub fn fold(lanes: [f32; LANES]) -> f32 {
    let mut lanes = lanes;
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// Sum of `f(x)` over a slice: element `i` goes to lane `i mod 16`, then [`fold`].
#[inline]
pub fn sum_by(values: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let mut chunks = values.chunks_exact(LANES);
    for chunk in &mut chunks {
        for (lane, &v) in lanes.iter_mut().zip(chunk) {
            *lane += f(v);
        }
    }
    for (lane, &v) in lanes.iter_mut().zip(chunks.remainder()) {
        *lane += f(v);
    }
    fold(lanes)
}

/// Columns of the vocabulary summed at a time; chunk sums are added in f64 in order.
pub const VOCAB_CHUNK: usize = 4096;

/// `ln Σ e^(x − max)` and `max` of a row of logits; `None` when a logit is NaN or none is finite.
pub fn log_sum_exp(logits: &[f32]) -> Option<(f32, f64)> {
    let mut max = f32::NEG_INFINITY;
    for &x in logits {
        if x.is_nan() {
            return None;
        }
        if x > max {
            max = x;
        }
    }
    if !max.is_finite() {
        return None;
    }
    let mut total = 0.0f64;
    for chunk in logits.chunks(VOCAB_CHUNK) {
        total += f64::from(sum_by(chunk, |x| exp(x - max)));
    }
    Some((max, ln(total)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_ulp() {
        let mut worst = 0.0f64;
        for i in -870_000..880_000 {
            let x = i as f32 * 1e-4;
            let truth = f64::from(x).exp();
            let ulp = f64::from(f32::EPSILON) * truth;
            worst = worst.max((f64::from(exp(x)) - truth).abs() / ulp);
        }
        assert!(worst <= 2.0, "{worst} ulp");
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-200.0), 0.0);
        assert_eq!(exp(200.0), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
    }

    #[test]
    fn ln_matches_the_library() {
        for i in 1..200_000u32 {
            let x = f64::from(i) * 0.01;
            assert!((ln(x) - x.ln()).abs() <= 4e-15 * x.ln().abs().max(1.0), "{x}");
        }
        assert!((ln(5e-310) - 5e-310f64.ln()).abs() < 1e-10);
        assert_eq!(ln(0.0), f64::NEG_INFINITY);
        assert!(ln(-1.0).is_nan());
    }

    #[test]
    fn log_sum_exp_refuses_nan_and_sums() {
        assert!(log_sum_exp(&[1.0, f32::NAN]).is_none());
        assert!(log_sum_exp(&[f32::NEG_INFINITY; 3]).is_none());
        let (max, lse) = log_sum_exp(&[2.0; 100]).unwrap();
        assert_eq!(max, 2.0);
        assert!((lse - 100f64.ln()).abs() < 1e-12);
    }
}
