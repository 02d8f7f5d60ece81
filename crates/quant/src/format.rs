//! The table of formats and what is asked of it: sizes, names, ids, decoding a row.

use crate::{
    bf16, exl3, f16, flat, iq1_m, iq1_s, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs, iq4_nl, iq4_xs,
    mxfp4, nvfp4, plain, q2_k, q3_k, q4_0, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k, q8_0, tq1_0, tq2_0,
};

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
    Q2_K,
    Q3_K,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    IQ4_NL,
    IQ4_XS,
    NVFP4,
    TQ1_0,
    TQ2_0,
    U4_32,
    U4_64,
    U4_128,
    U8_32,
    U8_64,
    U8_128,
    FP4_F32,
    E4M3_32,
    NF4_64,
    FP4_64,
    U2_32,
    U2_64,
    U2_128,
    U3_32,
    U3_64,
    U3_128,
    U8,
    I8,
    I16,
    I32,
    I64,
    F64,
    F8_E4M3,
    F8_E5M2,
    EXL3_1,
    EXL3_2,
    EXL3_3,
    EXL3_4,
    EXL3_5,
    EXL3_6,
    EXL3_7,
    EXL3_8,
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
    q2_k::FORMAT,
    q3_k::FORMAT,
    iq1_s::FORMAT,
    iq1_m::FORMAT,
    iq2_xxs::FORMAT,
    iq2_xs::FORMAT,
    iq2_s::FORMAT,
    iq3_xxs::FORMAT,
    iq3_s::FORMAT,
    iq4_nl::FORMAT,
    iq4_xs::FORMAT,
    nvfp4::FORMAT,
    tq1_0::FORMAT,
    tq2_0::FORMAT,
    flat::U4_32,
    flat::U4_64,
    flat::U4_128,
    flat::U8_32,
    flat::U8_64,
    flat::U8_128,
    flat::FP4_F32,
    flat::E4M3_32,
    flat::NF4_64,
    flat::FP4_64,
    flat::U2_32,
    flat::U2_64,
    flat::U2_128,
    flat::U3_32,
    flat::U3_64,
    flat::U3_128,
    plain::U8,
    plain::I8,
    plain::I16,
    plain::I32,
    plain::I64,
    plain::F64,
    plain::F8_E4M3,
    plain::F8_E5M2,
    exl3::EXL3_1,
    exl3::EXL3_2,
    exl3::EXL3_3,
    exl3::EXL3_4,
    exl3::EXL3_5,
    exl3::EXL3_6,
    exl3::EXL3_7,
    exl3::EXL3_8,
];

const _: () = {
    let mut row = 0;
    while row < FORMATS.len() {
        assert!(FORMATS[row].id as usize == row, "FORMATS is in the order of FormatId");
        row += 1;
    }
    assert!(FormatId::EXL3_8 as usize + 1 == FORMATS.len(), "every FormatId has a row");
};

/// GGUF type ids that exist or existed and have no row here: id, name, and for those withdrawn
/// the format to use instead.
const OTHER_GGML_TYPES: &[(u32, &str, Option<&str>)] = &[
    (4, "Q4_2", Some("Q4_0")),
    (5, "Q4_3", Some("Q4_1")),
    (9, "Q8_1", None),
    (15, "Q8_K", None),
    (31, "Q4_0_4_4", Some("Q4_0")),
    (32, "Q4_0_4_8", Some("Q4_0")),
    (33, "Q4_0_8_8", Some("Q4_0")),
    (36, "IQ4_NL_4_4", Some("IQ4_NL")),
    (37, "IQ4_NL_4_8", Some("IQ4_NL")),
    (38, "IQ4_NL_8_8", Some("IQ4_NL")),
    (41, "Q1_0", None),
    (42, "Q2_0", None),
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
    #[error(
        "tensor format {name} (GGUF type {id}) was removed from GGUF; get or make the file as \
         {instead}, which is laid out for this machine when it is loaded"
    )]
    Removed {
        /// The id in the file.
        id: u32,
        /// Its former name.
        name: &'static str,
        /// What holds the same weights today.
        instead: &'static str,
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
            Some(&(id, name, None)) => UnknownFormat::NotSupported { id, name },
            Some(&(id, name, Some(instead))) => UnknownFormat::Removed { id, name, instead },
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

    /// Rows that are stored, and must be read, together: 128 in `exl3_1` to `exl3_8`, whose blocks are
    /// 128 × 128, else 1. The blocks of such a band lie one after the other.
    pub const fn band_rows(self) -> usize {
        match exl3::bits_of(self) {
            Some(_) => exl3::WIDTH,
            None => 1,
        }
    }

    /// Decodes whole bands of rows of `cols` weights into `out`, row after row.
    ///
    /// # Panics
    /// If `rows` is not exactly the bytes of `out.len()` weights.
    pub fn decode_rows(self, cols: usize, rows: &[u8], out: &mut [f32]) {
        let (band, width) = (self.band_rows(), self.info().block_weights);
        if band == 1 {
            return self.decode_row(rows, out);
        }
        let bytes = band * self.info().block_bytes;
        let mut block = vec![0.0; band * width];
        let mut at = 0;
        for out in out.chunks_mut(band * cols) {
            for first in (0..cols).step_by(width) {
                self.decode_row(&rows[at..at + bytes], &mut block);
                for (row, from) in out.chunks_mut(cols).zip(block.chunks(width)) {
                    row[first..first + width].copy_from_slice(from);
                }
                at += bytes;
            }
        }
        assert_eq!(at, rows.len(), "bytes of the bands");
    }

    /// Whether rows of weights may be stored this way one by one (the rest are plain tables and
    /// buffers, and bands of rows).
    pub fn is_weight(self) -> bool {
        (self as usize) < FormatId::U8 as usize
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
            (4, "format Q4_2 (GGUF type 4) was removed from GGUF; get or make the file as Q4_0,"),
            (33, "tensor format Q4_0_8_8 (GGUF type 33) was removed from GGUF; get or make"),
            (
                38,
                "IQ4_NL_8_8 (GGUF type 38) was removed from GGUF; get or make the file as IQ4_NL,",
            ),
            (9, "tensor format Q8_1 (GGUF type 9) is not supported"),
            (43, "GGUF type 43 is unknown"),
            (u32::MAX, "GGUF type 4294967295 is unknown"),
        ] {
            let error = FormatId::from_ggml(id).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
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
