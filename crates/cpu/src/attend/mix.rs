//! The transform that int8 keys and the queries that meet them go through, and int4 values: an
//! orthonormal Hadamard matrix over the columns of a head. It spreads outlier columns, so that one scale fits all, and
//! changes no product q·k (QuaRot, arXiv 2404.00456; decision 0001 has what it gains).
//!
//! Columns meet at distances 1, 2, 4, …: (a, b) becomes (a + b, a − b); at the end all are
//! multiplied by 1/√d. For int8, heads whose width is no power of two stay as they are; for int4 the
//! transform goes over blocks of the largest power of two, up to 256, that divides the width.

/// Widest head that is transformed.
pub(super) const MIX_MAX: usize = 256;

/// Whether heads of that width are transformed for int8.
#[inline(always)]
pub(super) const fn is_mixed(len: usize) -> bool {
    len.is_power_of_two() && len <= MIX_MAX
}

/// The head transformed, in `buffer`, or as it is.
#[inline(always)]
pub(super) fn mixed<'a>(x: &'a [f32], buffer: &'a mut [f32; MIX_MAX]) -> &'a [f32] {
    let len = x.len();
    if !is_mixed(len) {
        return x;
    }
    let head = &mut buffer[..len];
    head.copy_from_slice(x);
    transform(head);
    head
}

/// Columns of a block of a head in int4.
pub(super) const fn transform_block(dim: usize) -> usize {
    let power = 1 << dim.trailing_zeros();
    if power < MIX_MAX { power } else { MIX_MAX }
}

/// Transforms every block of a head; twice is not at all, but for rounding.
#[inline(always)]
pub(super) fn transform_blocks(head: &mut [f32], block: usize) {
    head.chunks_exact_mut(block).for_each(transform);
}

/// Transforms in place, a power of two wide.
#[inline(always)]
fn transform(head: &mut [f32]) {
    let len = head.len();
    let mut distance = 1;
    while distance < len {
        for pair in head.chunks_exact_mut(2 * distance) {
            let (low, high) = pair.split_at_mut(distance);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        distance *= 2;
    }
    let scale = 1.0 / (len as f32).sqrt();
    head.iter_mut().for_each(|x| *x *= scale);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_stay_and_outlier_columns_spread() {
        let row = |seed: usize| (0..64).map(move |i| ((i * 37 + seed) % 101) as f32 / 50.0 - 1.0);
        let (mut q, k): (Vec<f32>, Vec<f32>) = (row(3).collect(), row(40).collect());
        q[5] = 30.0;
        let (mut a, mut b) = ([0.0; MIX_MAX], [0.0; MIX_MAX]);
        let (mq, mk) = (mixed(&q, &mut a), mixed(&k, &mut b));
        let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f32>();
        assert!((dot(mq, mk) - dot(&q, &k)).abs() < 1e-4);
        assert!(mq.iter().fold(0.0f32, |m, x| m.max(x.abs())) < 10.0);
        let odd = [1.0; 24];
        assert_eq!(mixed(&odd, &mut [0.0; MIX_MAX]), odd);
    }
}
