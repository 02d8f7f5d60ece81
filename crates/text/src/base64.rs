//! Base64 (RFC 4648, padded).

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let at = |i: usize| u32::from(three.get(i).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..4 {
            let code = (bits >> (18 - 6 * digit) & 63) as usize;
            text.push(if digit <= three.len() { char::from(DIGITS[code]) } else { '=' });
        }
    }
    text
}

/// `None` for what is no base64.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    if !text.len().is_multiple_of(4) || text.len() - digits.len() > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for four in digits.as_bytes().chunks(4) {
        let mut bits = 0;
        for &digit in four {
            bits = bits << 6 | DIGITS.iter().position(|&d| d == digit)? as u32;
        }
        let whole = bits << (6 * (4 - four.len()));
        bytes.extend(whole.to_be_bytes().get(1..four.len())?);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let cases: &[(&[u8], &str)] =
            &[(b"", ""), (b"f", "Zg=="), (b"fo", "Zm8="), (b"foo", "Zm9v"), (b"\xff\xfe", "//4=")];
        for (bytes, text) in cases {
            assert_eq!(encode(bytes), *text);
            assert_eq!(decode(text).as_deref(), Some(*bytes), "{text}");
        }
        for wrong in ["Z", "Zg=", "====", "Zm9v*g==", "Z===", "é==="] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }
}
