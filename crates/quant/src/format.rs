//! The table of formats and what is asked of it: sizes, names, ids, decoding a row.

use crate::{bf16, f16, mxfp4, plain, q4_0, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k, q8_0};

/// Every way a tensor may be stored. The discriminant is the row in [`FORMATS`].
#[allow(missing_docs, non_camel_case_types)] // the names are those of the formats
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FormatId {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4_K,
    Q5_K,
    Q6_K,
    MXFP4,
    U8,
    I8,
    I16,
    I32,
    I64,
    F64,
}

/// Bytes of whole blocks → their weights.
pub type Decode = fn(&[u8], &mut [f32]);

/// Weights of whole blocks → their bytes.
pub type Encode = fn(&[f32], &mut [u8]);

/// One stored format: its sizes, its id in GGUF, its definition.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Which format this row describes.
    pub id: FormatId,
    /// Lower-case name, as printed and as accepted on a command line.
    pub name: &'static str,
    /// Weights per block, along a row.
    pub block_weights: usize,
    /// Bytes per block.
    pub block_bytes: usize,
    /// Type id in a GGUF file, where it has one.
    pub ggml_type: Option<u32>,
    /// Decodes whole blocks: `[n · block_bytes]` → `[n · block_weights]`. This is the
    /// definition of the format; panics if the lengths do not match.
    pub decode: Decode,
    /// Encodes whole blocks: `[n · block_weights]` → `[n · block_bytes]`, where offered.
    /// Finite input only; panics if the lengths do not match.
    pub encode: Option<Encode>,
}

/// All formats, in the order of [`FormatId`].
pub const FORMATS: &[Format] = &[
    plain::F32,
    f16::FORMAT,
    bf16::FORMAT,
    q4_0::FORMAT,
    q4_1::FORMAT,
    q5_0::FORMAT,
    q5_1::FORMAT,
    q8_0::FORMAT,
    q4_k::FORMAT,
    q5_k::FORMAT,
    q6_k::FORMAT,
    mxfp4::FORMAT,
    plain::U8,
    plain::I8,
    plain::I16,
    plain::I32,
    plain::I64,
    plain::F64,
];

const _: () = {
    let mut row = 0;
    while row < FORMATS.len() {
        assert!(FORMATS[row].id as usize == row, "FORMATS is in the order of FormatId");
        row += 1;
    }
    assert!(FormatId::F64 as usize + 1 == FORMATS.len(), "every FormatId has a row");
};

/// GGUF type ids that exist or existed and have no row here: (id, name, still in use).
const OTHER_GGML_TYPES: &[(u32, &str, bool)] = &[
    (4, "Q4_2", false),
    (5, "Q4_3", false),
    (9, "Q8_1", true),
    (10, "Q2_K", true),
    (11, "Q3_K", true),
    (15, "Q8_K", true),
    (16, "IQ2_XXS", true),
    (17, "IQ2_XS", true),
    (18, "IQ3_XXS", true),
    (19, "IQ1_S", true),
    (20, "IQ4_NL", true),
    (21, "IQ3_S", true),
    (22, "IQ2_S", true),
    (23, "IQ4_XS", true),
    (29, "IQ1_M", true),
    (31, "Q4_0_4_4", false),
    (32, "Q4_0_4_8", false),
    (33, "Q4_0_8_8", false),
    (34, "TQ1_0", true),
    (35, "TQ2_0", true),
    (36, "IQ4_NL_4_4", false),
    (37, "IQ4_NL_4_8", false),
    (38, "IQ4_NL_8_8", false),
    (40, "NVFP4", true),
    (41, "Q1_0", true),
    (42, "Q2_0", true),
];

/// A GGUF type id that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownFormat {
    /// The format is in use elsewhere, but has no row here.
    #[error("tensor format {name} (GGUF type {id}) is not supported")]
    NotSupported {
        /// The id in the file.
        id: u32,
        /// Its name.
        name: &'static str,
    },
    /// The format was withdrawn from GGUF; the file must be made again.
    #[error("tensor format {name} (GGUF type {id}) was removed from GGUF")]
    Removed {
        /// The id in the file.
        id: u32,
        /// Its former name.
        name: &'static str,
    },
    /// Nothing is known under this id.
    #[error("GGUF type {id} is unknown")]
    Unknown {
        /// The id in the file.
        id: u32,
    },
}

impl FormatId {
    /// This format's row of the table.
    #[inline]
    pub fn info(self) -> &'static Format {
        &FORMATS[self as usize]
    }

    /// Lower-case name.
    pub fn name(self) -> &'static str {
        self.info().name
    }

    /// The format with this lower-case name.
    pub fn from_name(name: &str) -> Option<FormatId> {
        FORMATS.iter().find(|f| f.name == name).map(|f| f.id)
    }

    /// The format with this GGUF type id.
    ///
    /// # Errors
    /// [`UnknownFormat`] for ids that are withdrawn, not supported or not known.
    pub fn from_ggml(id: u32) -> Result<FormatId, UnknownFormat> {
        if let Some(format) = FORMATS.iter().find(|f| f.ggml_type == Some(id)) {
            return Ok(format.id);
        }
        Err(match OTHER_GGML_TYPES.iter().find(|(other, ..)| *other == id) {
            Some(&(id, name, true)) => UnknownFormat::NotSupported { id, name },
            Some(&(id, name, false)) => UnknownFormat::Removed { id, name },
            None => UnknownFormat::Unknown { id },
        })
    }

    /// Bytes of a row of `cols` weights; `None` if `cols` is not a whole number of blocks or
    /// the product overflows.
    #[inline]
    pub fn row_bytes(self, cols: u64) -> Option<u64> {
        let Format { block_weights, block_bytes, .. } = *self.info();
        let blocks = cols / block_weights as u64;
        cols.is_multiple_of(block_weights as u64).then(|| blocks.checked_mul(block_bytes as u64))?
    }

    /// Decodes one row (or any run of whole blocks) into `out`.
    ///
    /// # Panics
    /// If `row` is not exactly the bytes of `out.len()` weights.
    #[inline]
    pub fn decode_row(self, row: &[u8], out: &mut [f32]) {
        (self.info().decode)(row, out);
    }

    /// Whether weights may be stored this way (the rest are plain tables and buffers).
    pub fn is_weight(self) -> bool {
        (self as usize) <= FormatId::MXFP4 as usize
    }
}

impl std::fmt::Display for FormatId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_names_find_their_rows() {
        for format in FORMATS {
            assert_eq!(FormatId::from_name(format.name), Some(format.id));
            assert_eq!(format.id.to_string(), format.name);
            if let Some(id) = format.ggml_type {
                assert_eq!(FormatId::from_ggml(id), Ok(format.id));
                assert!(OTHER_GGML_TYPES.iter().all(|(other, ..)| *other != id), "{id} twice");
            }
        }
        assert_eq!(FormatId::from_name("q4_9"), None);
    }

    #[test]
    fn other_ids_are_refused_by_number_and_name() {
        for (id, expect) in [
            (4, "tensor format Q4_2 (GGUF type 4) was removed from GGUF"),
            (33, "tensor format Q4_0_8_8 (GGUF type 33) was removed from GGUF"),
            (10, "tensor format Q2_K (GGUF type 10) is not supported"),
            (40, "tensor format NVFP4 (GGUF type 40) is not supported"),
            (43, "GGUF type 43 is unknown"),
            (u32::MAX, "GGUF type 4294967295 is unknown"),
        ] {
            assert_eq!(FormatId::from_ggml(id).unwrap_err().to_string(), expect);
        }
    }

    #[test]
    fn row_bytes_are_checked() {
        for (format, cols, expect) in [
            (FormatId::F32, 3, Some(12)),
            (FormatId::Q4_0, 64, Some(36)),
            (FormatId::Q4_0, 65, None),
            (FormatId::Q4_0, 31, None),
            (FormatId::Q6_K, 256, Some(210)),
            (FormatId::Q6_K, 128, None),
            (FormatId::MXFP4, 2880, Some(1530)),
            (FormatId::F16, 0, Some(0)),
            (FormatId::F32, u64::MAX, None),
            (FormatId::Q8_0, u64::MAX - 31, None),
        ] {
            assert_eq!(format.row_bytes(cols), expect, "{format} {cols}");
        }
    }
}
