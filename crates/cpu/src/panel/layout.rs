//! The panel layouts as data: group geometry, byte sizes, which format goes where.

use super::{BLOCK_COLS, PANEL_ROWS, trellis};
use tokenmill_quant::exl3::bits_of;
use tokenmill_quant::fields::code_values;
use tokenmill_quant::{FP4_VALUES, FormatId, NF4_VALUES};

/// How the weights of a panel lie in memory; the module documentation has the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PanelLayout {
    /// 4-bit codes, zero point 8, f16 scale per 32.
    Zero4,
    /// 4-bit codes, f16 scale and minimum per 32.
    Min4,
    /// 5-bit codes, zero point 16, f16 scale per 32.
    Zero5,
    /// 5-bit codes, f16 scale and minimum per 32.
    Min5,
    /// 8-bit codes, zero point 128, f16 scale per 32.
    Zero8,
    /// 4-bit codes, two-level scale and minimum per 32.
    Super4,
    /// 5-bit codes, two-level scale and minimum per 32.
    Super5,
    /// 6-bit codes, zero point 32, two-level scale per 16.
    Super6,
    /// 4-bit indices into the doubled e2m1 table, power-of-two scale per 32.
    Table4,
    /// 2-bit codes, two-level scale and minimum per 16.
    Super2,
    /// 3-bit codes, zero point 4 (codes are raised by 124), two-level scale per 16.
    Super3,
    /// 2-bit codes, zero point 1 (codes are raised by 7), f16 scale per 256.
    Ternary,
    /// Code book entries of eight magnitudes and 28 signs, two-level scale per 32: see `books`.
    Iq2Xxs,
    /// The same, two-level scale per 16.
    Iq2Xs,
    /// Code book entries of eight magnitudes and 32 signs, two-level scale per 16.
    Iq2S,
    /// Code book entries of four magnitudes and 28 signs, two-level scale per 32.
    Iq3Xxs,
    /// Code book entries of four magnitudes and 32 signs, two-level scale per 32.
    Iq3S,
    /// Code book entries of eight values, a δ and a two-level scale per 32: see `books`.
    Iq1S,
    /// Code book entries of eight values, each with a δ, two-level scale per 16.
    Iq1M,
    /// 4-bit indices into the format's table, two-level scale per 32; or entries of code books written out.
    SuperTable,
    /// Entries of code books written out as 4-bit indices into a table, two-level scale per 16.
    SuperTable16,
    /// 4-bit indices into the format's table, f16 scale per 32.
    HalfTable,
    /// 4-bit indices into the doubled e2m1 table, e4m3 scale per 16.
    Nvfp4,
    /// 4-bit indices into the doubled e2m1 table, f32 scale per 16.
    FloatTable16,
    /// 2-bit codes, f32 scale and minimum per 32.
    Flat2,
    /// 2-bit codes, f32 scale and minimum per 64.
    Flat2x64,
    /// 2-bit codes, f32 scale and minimum per 128.
    Flat2x128,
    /// 3-bit codes, f32 scale and minimum per 32.
    Flat3,
    /// 3-bit codes, f32 scale and minimum per 64.
    Flat3x64,
    /// 3-bit codes, f32 scale and minimum per 128.
    Flat3x128,
    /// 4-bit codes, f32 scale and minimum per 32.
    Flat4,
    /// 4-bit codes, f32 scale and minimum per 64.
    Flat4x64,
    /// 4-bit codes, f32 scale and minimum per 128.
    Flat4x128,
    /// 8-bit codes, f32 scale and minimum per 32.
    Flat8,
    /// 8-bit codes, f32 scale and minimum per 64.
    Flat8x64,
    /// 8-bit codes, f32 scale and minimum per 128.
    Flat8x128,
    /// e4m3 bytes, f32 scale per 32; computed as floats.
    Float8,
    /// 4-bit indices into the format's table of floats, f32 scale per 64; computed as floats.
    Lookup4,
    /// bf16 weights, columns in pairs.
    Bf16,
    /// f16 weights.
    F16,
    /// f32 weights.
    F32,
    /// EXL3 of so many bits, in bands of eight panels: see `trellis`.
    Trellis(u8),
}

/// Sizes of one integer layout, in bytes unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Blocks of 32 columns that share a run of scales.
    pub blocks: usize,
    /// Scales of the 16 rows, before the codes of the blocks.
    pub scale_bytes: usize,
    /// Low plane of a block.
    pub low_bytes: usize,
    /// High plane of a block, after its low plane.
    pub high_bytes: usize,
}

impl Group {
    /// Codes of one block.
    #[inline]
    pub const fn block_bytes(&self) -> usize {
        self.low_bytes + self.high_bytes
    }

    /// The whole group.
    #[inline]
    pub const fn bytes(&self) -> usize {
        self.scale_bytes + self.blocks * self.block_bytes()
    }
}

impl PanelLayout {
    /// The layout a format repacks into; `None` for plain tables and buffers.
    pub const fn of(format: FormatId) -> Option<PanelLayout> {
        Some(match format {
            FormatId::Q4_0 => PanelLayout::Zero4,
            FormatId::Q4_1 => PanelLayout::Min4,
            FormatId::Q5_0 => PanelLayout::Zero5,
            FormatId::Q5_1 => PanelLayout::Min5,
            FormatId::Q8_0 => PanelLayout::Zero8,
            FormatId::Q4_K => PanelLayout::Super4,
            FormatId::Q5_K => PanelLayout::Super5,
            FormatId::Q6_K => PanelLayout::Super6,
            FormatId::MXFP4 => PanelLayout::Table4,
            FormatId::Q2_K => PanelLayout::Super2,
            FormatId::Q3_K => PanelLayout::Super3,
            FormatId::IQ2_XXS => PanelLayout::Iq2Xxs,
            FormatId::IQ2_XS => PanelLayout::Iq2Xs,
            FormatId::IQ2_S => PanelLayout::Iq2S,
            FormatId::IQ3_XXS => PanelLayout::Iq3Xxs,
            FormatId::IQ3_S => PanelLayout::Iq3S,
            FormatId::IQ1_S => PanelLayout::Iq1S,
            FormatId::IQ1_M => PanelLayout::Iq1M,
            FormatId::IQ4_XS => PanelLayout::SuperTable,
            FormatId::IQ4_NL => PanelLayout::HalfTable,
            FormatId::NVFP4 => PanelLayout::Nvfp4,
            FormatId::FP4_F32 => PanelLayout::FloatTable16,
            FormatId::TQ1_0 | FormatId::TQ2_0 => PanelLayout::Ternary,
            FormatId::U2_32 => PanelLayout::Flat2,
            FormatId::U2_64 => PanelLayout::Flat2x64,
            FormatId::U2_128 => PanelLayout::Flat2x128,
            FormatId::U3_32 => PanelLayout::Flat3,
            FormatId::U3_64 => PanelLayout::Flat3x64,
            FormatId::U3_128 => PanelLayout::Flat3x128,
            FormatId::U4_32 => PanelLayout::Flat4,
            FormatId::U4_64 => PanelLayout::Flat4x64,
            FormatId::U4_128 => PanelLayout::Flat4x128,
            FormatId::U8_32 => PanelLayout::Flat8,
            FormatId::U8_64 => PanelLayout::Flat8x64,
            FormatId::U8_128 => PanelLayout::Flat8x128,
            FormatId::E4M3_32 => PanelLayout::Float8,
            FormatId::NF4_64 | FormatId::FP4_64 => PanelLayout::Lookup4,
            FormatId::BF16 => PanelLayout::Bf16,
            FormatId::F16 => PanelLayout::F16,
            FormatId::F32 => PanelLayout::F32,
            _ => match bits_of(format) {
                Some(bits) => PanelLayout::Trellis(bits as u8),
                None => return None,
            },
        })
    }

    /// The layout in which a format of code books is written out: wider, and computed faster by few tokens.
    pub const fn written_out(format: FormatId) -> Option<PanelLayout> {
        Some(match format {
            FormatId::IQ1_S | FormatId::IQ2_XXS | FormatId::IQ3_XXS | FormatId::IQ3_S => {
                PanelLayout::SuperTable
            }
            FormatId::IQ1_M | FormatId::IQ2_XS | FormatId::IQ2_S => PanelLayout::SuperTable16,
            _ => return None,
        })
    }

    /// Group sizes of a layout of codes and scales; `None` for plain floats.
    #[inline]
    pub const fn group(self) -> Option<Group> {
        let (blocks, scale_bytes, low_bytes, high_bytes) = match self {
            PanelLayout::Zero4 => (2, 64, 256, 0),
            PanelLayout::Min4 => (1, 64, 256, 0),
            PanelLayout::Zero5 => (2, 64, 256, 64),
            PanelLayout::Min5 => (1, 64, 256, 64),
            PanelLayout::Zero8 => (2, 64, 512, 0),
            PanelLayout::Super4 => (8, 320, 256, 0),
            PanelLayout::Super5 => (8, 320, 256, 64),
            PanelLayout::Super6 => (8, 320, 384, 0),
            PanelLayout::Table4 => (4, 64, 256, 0),
            PanelLayout::Super2 => (8, 320, 128, 0),
            PanelLayout::Super3 => (8, 224, 192, 0),
            PanelLayout::Ternary => (8, 32, 128, 0),
            PanelLayout::Iq2Xxs => (8, 32, 128, 0),
            PanelLayout::Iq2Xs => (8, 160, 128, 0),
            PanelLayout::Iq2S => (8, 160, 144, 0),
            PanelLayout::Iq3Xxs => (8, 32, 192, 0),
            PanelLayout::Iq3S => (8, 96, 208, 0),
            PanelLayout::Iq1S => (8, 32, 96, 0),
            PanelLayout::Iq1M => (8, 128, 96, 0),
            PanelLayout::SuperTable => (8, 192, 256, 0),
            PanelLayout::SuperTable16 => (8, 320, 256, 0),
            PanelLayout::HalfTable => (2, 64, 256, 0),
            PanelLayout::Nvfp4 => (1, 32, 256, 0),
            PanelLayout::FloatTable16 | PanelLayout::Flat4 => (1, 128, 256, 0),
            PanelLayout::Flat2 => (1, 128, 128, 0),
            PanelLayout::Flat2x64 => (2, 128, 128, 0),
            PanelLayout::Flat2x128 => (4, 128, 128, 0),
            PanelLayout::Flat3 => (1, 128, 192, 0),
            PanelLayout::Flat3x64 => (2, 128, 192, 0),
            PanelLayout::Flat3x128 => (4, 128, 192, 0),
            PanelLayout::Flat4x64 => (2, 128, 256, 0),
            PanelLayout::Flat4x128 => (4, 128, 256, 0),
            PanelLayout::Flat8 => (1, 128, 512, 0),
            PanelLayout::Flat8x64 => (2, 128, 512, 0),
            PanelLayout::Flat8x128 => (4, 128, 512, 0),
            PanelLayout::Float8 => (1, 64, 512, 0),
            PanelLayout::Lookup4 => (2, 64, 256, 0),
            PanelLayout::Bf16 | PanelLayout::F16 | PanelLayout::F32 | PanelLayout::Trellis(_) => {
                return None;
            }
        };
        Some(Group { blocks, scale_bytes, low_bytes, high_bytes })
    }

    /// The code that weighs nothing; 0 for layouts with minima.
    pub const fn zero(self) -> u8 {
        use PanelLayout::*;
        match self {
            Zero4 | Ternary => 8,
            Zero5 | Table4 | Iq1S => 16,
            Super6 | Iq1M => 32,
            Zero8 | Super3 | SuperTable | SuperTable16 | HalfTable | FloatTable16 => 128,
            Iq2Xxs | Iq2Xs | Iq2S | Iq3Xxs | Iq3S | Nvfp4 => 128,
            _ => 0,
        }
    }

    /// Whether blocks have a minimum.
    pub const fn has_min(self) -> bool {
        use PanelLayout::*;
        self.is_flat() || matches!(self, Min4 | Min5 | Super2 | Super4 | Super5)
    }

    /// Whether codes are stored as they are, beside an f32 scale and minimum.
    pub const fn is_flat(self) -> bool {
        use PanelLayout::*;
        matches!(
            self,
            Flat2
                | Flat2x64
                | Flat2x128
                | Flat3
                | Flat3x64
                | Flat3x128
                | Flat4
                | Flat4x64
                | Flat4x128
        ) || matches!(self, Flat8 | Flat8x64 | Flat8x128)
    }

    /// Columns under one scale: 32 or 16; 0 for plain floats.
    pub const fn scale_cols(self) -> usize {
        use PanelLayout::*;
        match self {
            Super2 | Super3 | Super6 | FloatTable16 | SuperTable16 => 16,
            Nvfp4 | Iq2Xs | Iq2S | Iq1M => 16,
            Bf16 | F16 | F32 | Trellis(_) => 0,
            _ => BLOCK_COLS,
        }
    }

    /// Whether weights are integers times scales, so that the int8 arithmetic can use them.
    pub const fn is_integer(self) -> bool {
        self.group().is_some() && !matches!(self, PanelLayout::Float8 | PanelLayout::Lookup4)
    }

    /// Whether codes are entries of a code book of magnitudes, beside signs.
    pub const fn is_book(self) -> bool {
        use PanelLayout::*;
        matches!(self, Iq2Xxs | Iq2Xs | Iq2S | Iq3Xxs | Iq3S)
    }

    /// Whether codes are entries of a code book of values, each with a δ.
    pub const fn is_value_book(self) -> bool {
        matches!(self, PanelLayout::Iq1S | PanelLayout::Iq1M)
    }

    /// Bytes of one panel of `cols` columns.
    #[inline]
    pub const fn panel_bytes(self, cols: usize) -> usize {
        match self {
            PanelLayout::Bf16 => cols.div_ceil(2) * 4 * PANEL_ROWS,
            PanelLayout::F16 => cols.div_ceil(2) * 4 * PANEL_ROWS,
            PanelLayout::F32 => cols * 4 * PANEL_ROWS,
            PanelLayout::Trellis(bits) => trellis::panel_bytes(bits as usize, cols),
            _ => match self.group() {
                Some(group) => {
                    let groups = cols.div_ceil(BLOCK_COLS * group.blocks);
                    (groups * group.bytes()).next_multiple_of(64)
                }
                None => 0,
            },
        }
    }
}

/// What the codes of a format stand for where they are indices: each value raised by the zero
/// point of the layout.
pub const fn table(format: FormatId) -> &'static [u8; 16] {
    macro_rules! raised {
        ($id:ident, $zero:literal) => {
            const { &raised(code_values(FormatId::$id), $zero) }
        };
    }
    match format {
        FormatId::IQ4_NL | FormatId::IQ4_XS => raised!(IQ4_NL, 128),
        FormatId::IQ3_XXS => raised!(IQ3_XXS, 128),
        FormatId::IQ3_S => raised!(IQ3_S, 128),
        FormatId::IQ1_S => raised!(IQ1_S, 16),
        FormatId::IQ1_M => raised!(IQ1_S, 32),
        FormatId::NVFP4 | FormatId::FP4_F32 => raised!(NVFP4, 128),
        FormatId::MXFP4 => raised!(MXFP4, 16),
        _ => raised!(IQ2_XXS, 128),
    }
}

/// The same of a format whose code book is written out, raised by 128: eight magnitudes, then what they are negative. Those of
/// iq2 are followed by those of iq1, so that one table does for both.
pub const fn written_out_table(format: FormatId) -> &'static [u8; 16] {
    const IQ1_AND_IQ2: [u8; 16] = {
        let iq2 = code_values(FormatId::IQ2_XXS);
        let magnitudes = [iq2[0], iq2[1], iq2[2], iq2[3], 7, 1, 9, 0];
        let (mut values, mut i) = ([0; 16], 0);
        while i < 8 {
            (values[i], values[i + 8]) = (magnitudes[i], -magnitudes[i]);
            i += 1;
        }
        raised(&values, 128)
    };
    match format {
        FormatId::IQ3_XXS | FormatId::IQ3_S => table(format),
        _ => &IQ1_AND_IQ2,
    }
}

/// The code there of entry `entry` of iq1's code book (0–2) with a δ.
pub(super) const fn written_out_iq1(entry: u8, minus: bool) -> u8 {
    match (entry, minus) {
        (0, false) => 4 | 8,
        (1, false) => 5,
        (_, false) => 6,
        (0, true) => 6 | 8,
        (1, true) => 5 | 8,
        (_, true) => 4,
    }
}

/// The floats that the codes of a format in `Lookup4` stand for.
pub const fn float_table(format: FormatId) -> &'static [f32; 16] {
    match format {
        FormatId::NF4_64 => &NF4_VALUES,
        _ => &FP4_VALUES,
    }
}

/// A table of values as unsigned codes.
const fn raised(values: &[i8; 16], zero: i16) -> [u8; 16] {
    let mut table = [0; 16];
    let mut i = 0;
    while i < 16 {
        table[i] = (values[i] as i16 + zero) as u8;
        i += 1;
    }
    table
}

/// Why a weight has no panels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PanelError {
    /// The format holds no weights.
    #[error("format {0} has no panel layout")]
    NotWeights(FormatId),
    /// A row is not a whole number of blocks.
    #[error("{cols} columns are not a whole number of {format} blocks")]
    PartBlock {
        /// The stored format.
        format: FormatId,
        /// Columns requested.
        cols: usize,
    },
    /// Rows that are stored together are cut.
    #[error("{rows} rows are not a whole number of bands of {}, as {format} has them", format.band_rows())]
    PartBand {
        /// The stored format.
        format: FormatId,
        /// Rows requested.
        rows: usize,
    },
    /// No rows, no columns, or more bytes than an address can hold.
    #[error("a matrix of {rows} × {cols} cannot be laid out")]
    Size {
        /// Rows requested.
        rows: usize,
        /// Columns requested.
        cols: usize,
    },
}

/// The shape of one matrix in panels: `[rows, cols]` of one stored format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PanelSpec {
    format: FormatId,
    layout: PanelLayout,
    rows: usize,
    cols: usize,
}

impl PanelSpec {
    /// Lays out `rows` × `cols` weights stored as `format`.
    ///
    /// # Errors
    /// [`PanelError`] if the format holds no weights or the shape does not fit it.
    pub fn new(format: FormatId, rows: usize, cols: usize) -> Result<PanelSpec, PanelError> {
        let layout = PanelLayout::of(format).ok_or(PanelError::NotWeights(format))?;
        if !cols.is_multiple_of(format.info().block_weights) {
            return Err(PanelError::PartBlock { format, cols });
        }
        if !rows.is_multiple_of(format.band_rows()) {
            return Err(PanelError::PartBand { format, rows });
        }
        // 64 bytes a column bounds every layout's panel; the padding is less than a group.
        let bound = cols.checked_add(256).and_then(|c| c.checked_mul(64));
        let total = bound.and_then(|panel| panel.checked_mul(rows.div_ceil(PANEL_ROWS)));
        if rows == 0 || cols == 0 || total.is_none_or(|t| t > isize::MAX as usize) {
            return Err(PanelError::Size { rows, cols });
        }
        Ok(PanelSpec { format, layout, rows, cols })
    }

    /// The same with code books written out, where the format has one.
    pub fn written_out(self) -> PanelSpec {
        match PanelLayout::written_out(self.format) {
            Some(layout) => PanelSpec { layout, ..self },
            None => self,
        }
    }

    /// A matrix of so many rows that are laid out alike.
    pub(crate) fn of_rows(self, rows: usize) -> PanelSpec {
        PanelSpec { rows, ..self }
    }

    /// The stored format the rows come in.
    #[inline]
    pub const fn format(&self) -> FormatId {
        self.format
    }

    /// The layout they are repacked into.
    #[inline]
    pub const fn layout(&self) -> PanelLayout {
        self.layout
    }

    /// Output rows, without padding.
    #[inline]
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Columns: weights in a row.
    #[inline]
    pub const fn cols(&self) -> usize {
        self.cols
    }

    /// Number of panels of 16 rows; the last may be part padding.
    #[inline]
    pub const fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL_ROWS)
    }

    /// Bytes of one panel: a multiple of 64.
    #[inline]
    pub const fn panel_bytes(&self) -> usize {
        self.layout.panel_bytes(self.cols)
    }

    /// Bytes of the whole matrix.
    #[inline]
    pub const fn bytes(&self) -> usize {
        self.panel_bytes() * self.panels()
    }

    /// The matrix of some of the panels alone.
    ///
    /// # Panics
    /// If they are none, or not of this matrix.
    pub fn part(&self, panels: std::ops::Range<usize>) -> PanelSpec {
        let first = panels.start * PANEL_ROWS;
        let end = (panels.end * PANEL_ROWS).min(self.rows);
        assert!(panels.start < panels.end && first < end, "panels {panels:?} of {self:?}");
        PanelSpec { rows: end - first, ..*self }
    }

    /// Panels that are laid out together: 1, or those of a band.
    pub const fn band_panels(&self) -> usize {
        self.format.band_rows().div_ceil(PANEL_ROWS)
    }

    /// Bytes of one row as stored.
    pub fn stored_row_bytes(&self) -> usize {
        let format = self.format.info();
        self.cols / format.block_weights * format.block_bytes
    }
}
