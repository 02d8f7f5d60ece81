//! The reversible map between bytes and printable characters used by byte-level vocabularies.

/// Maps one byte to the character that stands for it in a byte-level vocabulary: printable
/// Latin-1 bytes stand for themselves, the other 68 for U+0100 upwards in byte order.
pub(crate) fn char_of_byte(byte: u8) -> char {
    if is_printable(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|&b| !is_printable(b)).count() as u32;
    char::from_u32(0x100 + rank).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// Maps characters of a byte-level vocabulary back to bytes.
pub(crate) struct ByteDecoder {
    /// Byte for characters U+0000..U+0143; `None` where the character stands for no byte.
    byte_of: Vec<Option<u8>>,
}

impl ByteDecoder {
    pub(crate) fn new() -> ByteDecoder {
        let mut byte_of = vec![None; 0x100 + 68];
        for byte in 0..=255u8 {
            if let Some(slot) = byte_of.get_mut(char_of_byte(byte) as usize) {
                *slot = Some(byte);
            }
        }
        ByteDecoder { byte_of }
    }

    /// The bytes a token text stands for, or `None` if a character stands for no byte.
    pub(crate) fn decode(&self, text: &str) -> Option<Vec<u8>> {
        text.chars().map(|c| self.byte_of.get(c as usize).copied().flatten()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_returns() {
        let decoder = ByteDecoder::new();
        for byte in 0..=255u8 {
            let text = char_of_byte(byte).to_string();
            assert_eq!(decoder.decode(&text), Some(vec![byte]), "{byte}");
        }
        assert_eq!(char_of_byte(b' '), 'Ġ');
        assert_eq!(char_of_byte(b'\n'), 'Ċ');
        assert_eq!(decoder.decode("a b"), None);
        assert_eq!(decoder.decode("｜"), None);
    }
}
