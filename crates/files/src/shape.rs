//! How many bytes a tensor of some shape takes, with every product checked.

use tokenmill_quant::FormatId;

/// Bytes of a tensor of this shape (outermost first). `None` if a row is not a whole number of
/// blocks, or if the bytes, or the product of the axes that are not zero, exceed i64: so
/// products over part of a checked shape cannot overflow.
pub(crate) fn stored_bytes(format: FormatId, shape: &[u64]) -> Option<u64> {
    let checked = |product: u64| i64::try_from(product).is_ok().then_some(product);
    let axes = shape.iter().filter(|&&d| d > 0);
    checked(axes.into_iter().try_fold(1_u64, |n, &d| n.checked_mul(d))?)?;
    let (cols, outer) = shape.split_last().unwrap_or((&1, &[]));
    let row_bytes = format.row_bytes(*cols)?;
    if shape.contains(&0) {
        return Some(0);
    }
    checked(outer.iter().try_fold(row_bytes, |n, &d| n.checked_mul(d))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_checked() {
        const HUGE: u64 = 1 << 62;
        for (format, shape, expect) in [
            (FormatId::F32, &[][..], Some(4)),
            (FormatId::F32, &[3, 5], Some(60)),
            (FormatId::Q4_0, &[2, 3, 64], Some(216)),
            (FormatId::Q4_0, &[64, 3], None),
            (FormatId::F32, &[3, 0], Some(0)),
            (FormatId::F32, &[0, 3], Some(0)),
            (FormatId::Q4_0, &[0, 3], None),
            (FormatId::F32, &[HUGE, HUGE, 0], None),
            (FormatId::F32, &[0, HUGE, HUGE], None),
            (FormatId::U8, &[HUGE, 1], Some(HUGE)),
            (FormatId::U8, &[HUGE, 2], None),
            (FormatId::F32, &[HUGE], None),
            (FormatId::F32, &[u64::MAX], None),
        ] {
            assert_eq!(stored_bytes(format, shape), expect, "{format} {shape:?}");
        }
    }
}
