//! Hashed weights in other formats than they were recorded in.

use tokenmill_quant::FormatId;

/// How matrices are written.
#[derive(Debug, Clone, Copy)]
pub struct Packing {
    /// Rounded to this format, where a matrix's rows are whole blocks of it.
    pub format: FormatId,
    /// Stored as the f32 numbers that the format decodes to.
    pub decoded: bool,
}

impl Packing {
    /// As they are.
    pub const PLAIN: Self = Self { format: FormatId::F32, decoded: false };

    /// Whether a tensor of that shape takes part.
    fn applies(self, shape: &[u64]) -> bool {
        let cols = shape.last().copied().unwrap_or(0);
        shape.len() >= 2 && cols.is_multiple_of(self.format.info().block_weights as u64)
    }

    /// The format of a tensor in the file.
    pub fn stored(self, shape: &[u64]) -> FormatId {
        if self.applies(shape) && !self.decoded { self.format } else { FormatId::F32 }
    }

    /// The bytes of a tensor in the file.
    pub fn bytes(self, shape: &[u64], numbers: &[f32]) -> Vec<u8> {
        let plain = |n: &[f32]| n.iter().flat_map(|x| x.to_le_bytes()).collect();
        if !self.applies(shape) {
            return plain(numbers);
        }
        let info = self.format.info();
        let encode = info.encode.expect("formats with an encoder only");
        let mut bytes = vec![0; numbers.len() / info.block_weights * info.block_bytes];
        encode(numbers, &mut bytes);
        if !self.decoded {
            return bytes;
        }
        let mut rounded = vec![0.0; numbers.len()];
        self.format.decode_row(&bytes, &mut rounded);
        plain(&rounded)
    }
}
