//! Codes of two and three bits as codes of four: tensor cores have atoms of these, and memory of GPUs fits them.

use tokenmill_quant::FormatId;
use tokenmill_quant::fields::Fields;

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
    let bytes = FLOATS + info.block_weights / 2;
    let mut out = Vec::with_capacity(rows.len() / info.block_bytes * bytes);
    let mut fields = Fields::ZERO;
    for block in rows.chunks_exact(info.block_bytes) {
        fields.read(format, block);
        let codes = fields.codes[..info.block_weights / 32].as_flattened();
        out.extend_from_slice(&block[..FLOATS]);
        out.extend(codes.iter().flat_map(|word| {
            let [a, b, c, d] = word.to_le_bytes();
            [a | b << 4, c | d << 4]
        }));
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
