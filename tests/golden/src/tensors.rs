//! Tensors whose numbers are made from their names: README.md defines the hash.

use std::io::Write;

use serde::Deserialize;
use tokenmill_ir::sampling::splitmix;
use tokenmill_quant::FormatId;

/// What `tensors.json` says.
#[derive(Deserialize)]
pub(crate) struct Tensors {
    pub salt: String,
    pub tensors: Vec<Tensor>,
}

/// A tensor whose numbers are made from its name.
#[derive(Deserialize)]
pub(crate) struct Tensor {
    pub name: String,
    pub shape: Vec<u64>,
    pub dtype: String,
    pub scale: f64,
    pub offset: f64,
}

impl Tensors {
    /// The numbers of tensor `at`, as stored.
    pub(crate) fn values(&self, at: usize) -> Vec<f32> {
        let tensor = &self.tensors[at];
        let format = match tensor.dtype.as_str() {
            "F32" => FormatId::F32,
            "BF16" => FormatId::BF16,
            other => panic!("dtype {other} in a twin"),
        };
        let mut bytes = Vec::new();
        fill(tensor, &self.salt, format, &mut bytes).expect("filled");
        let mut values = vec![0.0; bytes.len() / format.info().block_bytes];
        format.decode_row(&bytes, &mut values);
        values
    }
}

/// A hash of a name.
pub(crate) fn fnv1a(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// Writes the numbers of a tensor.
pub(crate) fn fill(
    tensor: &Tensor,
    salt: &str,
    format: FormatId,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let seed = fnv1a(tensor.name.bytes().chain(salt.bytes()));
    let count: u64 = tensor.shape.iter().product();
    for i in 0..count {
        let x = splitmix(seed.wrapping_add(i));
        if format == FormatId::U8 {
            out.write_all(&[(tensor.offset as u64 + (x >> 56) % tensor.scale as u64) as u8])?;
            continue;
        }
        let v = (x >> 40) as f32 / 16_777_216.0 - 0.5;
        let w = tensor.offset as f32 + tensor.scale as f32 * v;
        match format {
            FormatId::F32 => out.write_all(&w.to_le_bytes())?,
            _ => {
                let mut bytes = [0; 2];
                let encode = FormatId::BF16.info().encode.expect("bf16 has an encoder");
                encode(&[w], &mut bytes);
                out.write_all(&bytes)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_has_the_documented_values() {
        assert_eq!(fnv1a("".bytes()), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a("a".bytes()), 0xaf63_dc4c_8601_ec8c);
        let seed = fnv1a("model.embed_tokens.weight".bytes());
        assert_eq!(seed, 0xa88f_d795_d5c6_d156);
        assert_eq!(splitmix(seed), 0x5f0c_e479_8904_7d81);
    }
}
