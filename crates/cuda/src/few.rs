//! Codes of two and three bits as codes of four: tensor cores have atoms of these, and memory of GPUs fits them.

use tokenmill_quant::FormatId;

/// Bytes before the codes of a block: a scale and a minimum.
const FLOATS: usize = 8;

/// The format of four bits that holds what `format` does; `None` for those of other bits.
pub(crate) fn in_four_bits(format: FormatId) -> Option<FormatId> {
    Some(match format {
        FormatId::U2_32 | FormatId::U3_32 => FormatId::U4_32,
        FormatId::U2_64 | FormatId::U3_64 => FormatId::U4_64,
        FormatId::U2_128 | FormatId::U3_128 => FormatId::U4_128,
        _ => return None,
    })
}

/// Whole blocks of `format` as blocks of its [`in_four_bits`].
pub(crate) fn to_four_bits(format: FormatId, rows: &[u8]) -> Vec<u8> {
    let info = format.info();
    let (columns, has_third) =
        (info.block_weights, info.block_bytes > FLOATS + info.block_weights / 4);
    let mut out = Vec::with_capacity(rows.len() / info.block_bytes * (FLOATS + columns / 2));
    for block in rows.chunks_exact(info.block_bytes) {
        let (floats, codes) = block.split_at(FLOATS);
        let (low, third) = codes.split_at(columns / 4);
        let code = |c: usize| {
            let high = if has_third { third[c / 8] >> (c % 8) & 1 } else { 0 };
            low[c / 4] >> (2 * (c % 4)) & 3 | high << 2
        };
        out.extend_from_slice(floats);
        out.extend((0..columns).step_by(2).map(|c| code(c) | code(c + 1) << 4));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_what_they_are() {
        use FormatId::{U2_32, U2_64, U2_128, U3_32, U3_64, U3_128};
        for format in [U2_32, U2_64, U2_128, U3_32, U3_64, U3_128] {
            let info = format.info();
            let mut rows: Vec<u8> =
                (0..3 * info.block_bytes).map(|i| (i * i % 251) as u8).collect();
            for block in rows.chunks_exact_mut(info.block_bytes) {
                block[..4].copy_from_slice(&0.25_f32.to_le_bytes());
                block[4..8].copy_from_slice(&(-3.5_f32).to_le_bytes());
            }
            let four = in_four_bits(format).expect("four bits");
            let mut values = [vec![0.0; 3 * info.block_weights], vec![1.0; 3 * info.block_weights]];
            format.decode_row(&rows, &mut values[0]);
            four.decode_row(&to_four_bits(format, &rows), &mut values[1]);
            assert_eq!(values[0], values[1], "{format}");
        }
        assert_eq!(in_four_bits(FormatId::U8_32), None);
    }
}
