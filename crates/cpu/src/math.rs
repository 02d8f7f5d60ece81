//! Elementary functions and sums in f32 whose bits are the same on every instruction set.
//!
//! Each function is written once, branch-free, in exact IEEE operations (`mul_add` rounds
//! once everywhere), so compiling the same source for wider registers changes nothing. The
//! C library's functions are not used: their last bit differs from system to system.
//! Coefficients are minimax fits made for this file; the tests hold every function to f64.

use crate::isa::Isa;

/// Makes one function per instruction set out of an `#[inline(always)]` body, and one that
/// chooses among them by an `Isa` argument.
///
/// The body must be plain Rust: it is compiled with wider registers, never with other
/// operations.
macro_rules! per_isa {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? = $body:path;)*) => {$(
        $(#[$doc])*
        ///
        /// # Panics
        /// If `isa` is not available on this machine.
        pub fn $name(isa: Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            fn avx512($($arg: $ty),*) $(-> $ret)? { $body($($arg),*) }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2($($arg: $ty),*) $(-> $ret)? { $body($($arg),*) }
            assert!(isa.is_available(), "{} is not available here", isa.name());
            match isa {
                // SAFETY: the features are there.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => unsafe { avx512($($arg),*) },
                // SAFETY: the features are there.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 | Isa::AvxVnni => unsafe { avx2($($arg),*) },
                _ => $body($($arg),*),
            }
        }
    )*};
}
pub(crate) use per_isa;

per_isa! {
    /// eˣ of every element.
    exp_all(x: &mut [f32]) = exp_each;
    /// tanh of every element.
    tanh_all(x: &mut [f32]) = tanh_each;
    /// erf of every element.
    erf_all(x: &mut [f32]) = erf_each;
    /// x / (1 + e⁻ˣ) of every element.
    silu_all(x: &mut [f32]) = silu_each;
    /// Sine and cosine of every `angle` (radians), into slices of the same length.
    sin_cos_all(angle: &[f32], sin: &mut [f32], cos: &mut [f32]) = sin_cos_each;
    /// Σ x by 16 lanes and one tree: lane i adds x\[i\], x\[i + 16\], … in order; then lanes
    /// i and i + 8 are added, i and i + 4, i and i + 2, 0 and 1.
    sum(x: &[f32]) -> f32 = sum_lanes;
    /// Σ a·b by the same lanes (fma into each) and tree, over the shorter length.
    dot(a: &[f32], b: &[f32]) -> f32 = dot_lanes;
}

/// Scores this far below the greatest have no weight in bf16 and codes: all weights are above 2⁻⁵⁶.
pub(crate) const QUICK_LEAST: f32 = -38.0;

/// f32 1.5·2²³: adding and subtracting it rounds to an integer.
pub(crate) const ROUND: f32 = 12_582_912.0;

/// eˣ within 1 ulp; subnormal results, overflow to infinity and NaN as they should be.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let clamped = x.clamp(-104.0, 89.0);
    let shifted = clamped.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    // ln 2 in two parts; the first product is exact inside the fma.
    let r = n.mul_add(-std::f32::consts::LN_2, clamped);
    let r = n.mul_add(1.904_654_3e-9, r);
    let p = 1.979_032_2e-4_f32;
    let p = p.mul_add(r, 1.394_469e-3);
    let p = p.mul_add(r, 8.333_498e-3);
    let p = p.mul_add(r, 4.166_629_5e-2);
    let p = p.mul_add(r, 1.666_666_6e-1);
    let p = p.mul_add(r, 0.5);
    let y = (r * r).mul_add(p, r) + 1.0;
    // 2ⁿ in two factors, so that n may be −150; only the last product can round.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    let power = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
    let y = y * power(half) * power(n.wrapping_sub(half));
    if x.is_nan() { x } else { y }
}

/// tanh within 2 ulp.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let z = x * x;
    let p = 2.142_949e-3_f32;
    let p = p.mul_add(z, -8.177_385e-3);
    let p = p.mul_add(z, 2.170_069_7e-2);
    let p = p.mul_add(z, -5.394_676_3e-2);
    let p = p.mul_add(z, 1.333_320_6e-1);
    let p = p.mul_add(z, -3.333_333e-1);
    let near = (z * x).mul_add(p, x).copysign(x);
    // Beyond, 1 − 2/(e^2|x| + 1), which is 1 where the exponential is infinite.
    let far = (1.0 - 2.0 / (exp(2.0 * x.abs()) + 1.0)).copysign(x);
    let y = if x.abs() < 0.625 { near } else { far };
    if x.is_nan() { x } else { y }
}

/// The error function within 2 ulp.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    let z = x * x;
    let p = -9.641_478e-6_f32;
    let p = p.mul_add(z, 1.125_693_5e-4);
    let p = p.mul_add(z, -8.482_827e-4);
    let p = p.mul_add(z, 5.220_945_5e-3);
    let p = p.mul_add(z, -2.686_54e-2);
    let p = p.mul_add(z, 1.128_378_2e-1);
    let p = p.mul_add(z, -3.761_263_8e-1);
    let p = p.mul_add(z, 1.283_791_7e-1);
    let near = x.mul_add(p, x);
    // Beyond, 1 − e^−q with q = −ln erfc |x|; at 3.93 the result is 1.
    let t = x.abs().min(3.93);
    let q = 2.144_544_1e-5_f32;
    let q = q.mul_add(t, -4.385_285e-4);
    let q = q.mul_add(t, 4.190_848_7e-3);
    let q = q.mul_add(t, -2.517_179e-2);
    let q = q.mul_add(t, 1.083_615_3e-1);
    let q = q.mul_add(t, 6.332_724_7e-1);
    let q = q.mul_add(t, 1.129_552);
    let q = q.mul_add(t, -1.824_575_2e-4);
    let far = (1.0 - exp(-q)).copysign(x);
    let y = if x.abs() < 0.95 { near } else { far };
    if x.is_nan() { x } else { y }
}

/// The logistic function 1 / (1 + e⁻ˣ).
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// x / (1 + e⁻ˣ).
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// 1 / √x, each step correctly rounded.
#[inline(always)]
pub fn inverse_sqrt(x: f32) -> f32 {
    1.0 / x.sqrt()
}

/// Sine and cosine of an angle in radians, within 1 ulp for |x| up to 2²⁰.
///
/// Reduced and evaluated in f64, rounded once. NaN for infinities.
#[inline(always)]
pub fn sin_cos(x: f32) -> (f32, f32) {
    const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5·2⁵²
    let x = f64::from(x);
    let shifted = x.mul_add(std::f64::consts::FRAC_2_PI, ROUND);
    let n = shifted - ROUND;
    // π/2 in two parts.
    let r = n.mul_add(-std::f64::consts::FRAC_PI_2, x);
    let r = n.mul_add(-6.123_233_995_736_766e-17, r);
    let z = r * r;
    let p = 2.718_025_010_056_181_4e-6_f64;
    let p = p.mul_add(z, -1.983_930_217_013_422e-4);
    let p = p.mul_add(z, 8.333_329_273_564_493e-3);
    let p = p.mul_add(z, -0.166_666_666_405_283_7);
    let s = (z * r).mul_add(p, r);
    let p = -2.717_378_915_521_909e-7_f64;
    let p = p.mul_add(z, 2.479_894_691_909_816_5e-5);
    let p = p.mul_add(z, -1.388_888_059_421_364e-3);
    let p = p.mul_add(z, 4.166_666_655_222_581e-2);
    let p = p.mul_add(z, -0.499_999_999_994_825_8);
    let c = z.mul_add(p, 1.0);
    let quadrant = shifted.to_bits();
    let (sin, cos) = if quadrant & 1 == 0 { (s, c) } else { (c, s) };
    let sin = if quadrant & 2 == 0 { sin } else { -sin };
    let cos = if quadrant.wrapping_add(1) & 2 == 0 { cos } else { -cos };
    (sin as f32, cos as f32)
}

#[inline(always)]
fn each(x: &mut [f32], f: impl Fn(f32) -> f32) {
    let (vectors, rest) = x.as_chunks_mut::<16>();
    for vector in vectors {
        *vector = vector.map(&f);
    }
    for x in rest {
        *x = f(*x);
    }
}

#[inline(always)]
fn exp_each(x: &mut [f32]) {
    each(x, exp);
}

#[inline(always)]
fn tanh_each(x: &mut [f32]) {
    each(x, tanh);
}

#[inline(always)]
fn erf_each(x: &mut [f32]) {
    each(x, erf);
}

#[inline(always)]
fn silu_each(x: &mut [f32]) {
    each(x, silu);
}

#[inline(always)]
fn sin_cos_each(angle: &[f32], sin: &mut [f32], cos: &mut [f32]) {
    for ((angle, sin), cos) in angle.iter().zip(sin).zip(cos) {
        (*sin, *cos) = sin_cos(*angle);
    }
}

/// The tree over 16 lanes that every f32 sum ends with.
#[inline(always)]
pub fn tree(lanes: [f32; 16]) -> f32 {
    // Steps of fixed widths: a loop over widths is compiled as one, with branches for each sum.
    let (mut eight, mut four) = ([0.0; 8], [0.0; 4]);
    for i in 0..8 {
        eight[i] = lanes[i] + lanes[i + 8];
    }
    for i in 0..4 {
        four[i] = eight[i] + eight[i + 4];
    }
    (four[0] + four[2]) + (four[1] + four[3])
}

#[inline(always)]
fn sum_lanes(x: &[f32]) -> f32 {
    let (vectors, rest) = x.as_chunks::<16>();
    let mut lanes = [0.0; 16];
    for vector in vectors {
        for (lane, x) in lanes.iter_mut().zip(vector) {
            *lane += x;
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += x;
    }
    tree(lanes)
}

#[inline(always)]
fn dot_lanes(a: &[f32], b: &[f32]) -> f32 {
    let len = a.len().min(b.len());
    let (a, a_rest) = a[..len].as_chunks::<16>();
    let (b, b_rest) = b[..len].as_chunks::<16>();
    let mut lanes = [0.0_f32; 16];
    for (a, b) in a.iter().zip(b) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane = a.mul_add(*b, *lane);
        }
    }
    for ((lane, a), b) in lanes.iter_mut().zip(a_rest).zip(b_rest) {
        *lane = a.mul_add(*b, *lane);
    }
    tree(lanes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance of `got` from `exact` in units of the last place of an f32 near `exact`.
    fn ulps(got: f32, exact: f64) -> f64 {
        let size = exact.abs().max(f64::from(f32::MIN_POSITIVE));
        let unit = 2f64.powi(size.log2().floor() as i32 - 23);
        (f64::from(got) - exact).abs() / unit
    }

    /// f32s spread over ±[low, high] evenly in their bit patterns, about `count` of them.
    fn spread(low: f32, high: f32, count: u32) -> Vec<f32> {
        let (low, high) = (low.to_bits(), high.to_bits());
        let step = ((high - low) / count).max(1);
        let positive = (low..high).step_by(step as usize).map(f32::from_bits);
        positive.flat_map(|x| [x, -x]).collect()
    }

    fn check(name: &str, f: fn(f32) -> f32, exact: fn(f64) -> f64, x: &[f32], bound: f64) {
        for &x in x {
            let error = ulps(f(x), exact(f64::from(x)));
            assert!(error <= bound, "{name}({x}) = {}, off by {error:.2} ulp", f(x));
        }
    }

    /// erf in f64 by its series, and near 1 by the continued fraction of erfc.
    fn erf_exact(x: f64) -> f64 {
        let t = x.abs();
        let y = if t < 3.0 {
            let mut term = t;
            let mut sum = t;
            for n in 1..200 {
                term *= -t * t / f64::from(n);
                sum += term / f64::from(2 * n + 1);
            }
            sum * std::f64::consts::FRAC_2_SQRT_PI
        } else {
            let fraction = (1..60).rev().fold(t, |f, n| t + f64::from(n) / 2.0 / f);
            1.0 - (-t * t).exp() / fraction / std::f64::consts::PI.sqrt()
        };
        y.copysign(x)
    }

    #[test]
    fn functions_are_near_f64() {
        check("exp", exp, f64::exp, &spread(1e-9, 88.7, 60_000), 1.0);
        check("tanh", tanh, f64::tanh, &spread(1e-9, 12.0, 60_000), 2.0);
        check("erf", erf, erf_exact, &spread(1e-9, 5.0, 20_000), 2.0);
        check("sin", |x| sin_cos(x).0, f64::sin, &spread(1e-9, 1_048_576.0, 60_000), 1.0);
        check("cos", |x| sin_cos(x).1, f64::cos, &spread(1e-9, 1_048_576.0, 60_000), 1.0);
        check("silu", silu, |x| x / (1.0 + (-x).exp()), &spread(1e-9, 80.0, 20_000), 3.0);
    }

    #[test]
    fn subnormal_exponentials_round_once() {
        for x in spread(87.0, 103.9, 5000).into_iter().filter(|x| *x < 0.0) {
            let exact = f64::from(x).exp();
            let unit = 2f64.powi(-149).max(2f64.powi(exact.log2().floor() as i32 - 23));
            let error = (f64::from(exp(x)) - exact).abs() / unit;
            assert!(error <= 1.0, "exp({x}) = {:e}, off by {error:.2}", exp(x));
        }
    }

    type Function = fn(f32) -> f32;

    #[test]
    fn ends_of_the_range() {
        let inf = f32::INFINITY;
        let cases: [(Function, f32, f32); 14] = [
            (exp, 0.0, 1.0),
            (exp, 88.8, inf),
            (exp, inf, inf),
            (exp, -104.0, 0.0),
            (exp, -inf, 0.0),
            (tanh, 0.0, 0.0),
            (tanh, -0.0, -0.0),
            (tanh, inf, 1.0),
            (tanh, -20.0, -1.0),
            (erf, -0.0, -0.0),
            (erf, inf, 1.0),
            (erf, -6.0, -1.0),
            (silu, -200.0, -0.0),
            (sigmoid, 200.0, 1.0),
        ];
        for (f, x, expect) in cases {
            assert_eq!(f(x).to_bits(), expect.to_bits(), "of {x}: {}", f(x));
        }
        for f in [exp as Function, tanh, erf, silu, sigmoid] {
            assert!(f(f32::NAN).is_nan());
        }
        assert!(sin_cos(inf).0.is_nan() && sin_cos(f32::NAN).1.is_nan());
        assert_eq!(sin_cos(0.0), (0.0, 1.0));
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let mut x = spread(1e-30, 1e30, 3001);
        x.extend([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE / 8.0]);
        type All = fn(Isa, &mut [f32]);
        let all: [(&str, All); 4] =
            [("exp", exp_all), ("tanh", tanh_all), ("erf", erf_all), ("silu", silu_all)];
        let bits = |x: &[f32]| -> Vec<u32> {
            x.iter().map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }).collect()
        };
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for (name, f) in all {
                let (mut expect, mut got) = (x.clone(), x.clone());
                f(Isa::Scalar, &mut expect);
                f(isa, &mut got);
                assert!(bits(&expect) == bits(&got), "{name} on {}", isa.name());
            }
            let pair = |isa: Isa| {
                let (mut sin, mut cos) = (vec![0.0; x.len()], vec![0.0; x.len()]);
                sin_cos_all(isa, &x, &mut sin, &mut cos);
                (bits(&sin), bits(&cos))
            };
            assert!(pair(Isa::Scalar) == pair(isa), "sin_cos on {}", isa.name());
            let finite: Vec<f32> = x.iter().copied().filter(|x| x.abs() < 1e15).collect();
            for len in [0, 1, 15, 16, 17, 100, finite.len()] {
                let (a, b) = (&finite[..len], &finite[finite.len() - len..]);
                assert_eq!(sum(isa, a).to_bits(), sum(Isa::Scalar, a).to_bits());
                assert_eq!(dot(isa, a, b).to_bits(), dot(Isa::Scalar, a, b).to_bits());
            }
        }
    }

    #[test]
    fn sums_follow_their_lanes_and_tree() {
        // 2²⁵ swallows a 1 added to it: the order of additions shows in the result.
        let mut x = vec![0.0; 33];
        (x[0], x[16], x[32]) = (33_554_432.0, 1.0, 1.0); // one lane, in order
        assert_eq!(sum(Isa::Scalar, &x), 33_554_432.0);
        (x[16], x[32], x[1], x[9]) = (0.0, 0.0, 2.0, 2.0); // lanes 1 and 9 meet first
        assert_eq!(sum(Isa::Scalar, &x), 33_554_436.0);
        assert_eq!(dot(Isa::Scalar, &[2.0, 3.0], &[5.0, 7.0]), 31.0);
        assert_eq!(inverse_sqrt(4.0), 0.5);
    }
}
