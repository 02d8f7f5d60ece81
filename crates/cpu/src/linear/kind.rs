//! What a kernel is made for, as a number that a const parameter can carry.

use crate::panel::{Group, PanelLayout, PanelSpec};
use tokenmill_quant::FormatId;

pub const ZERO4: u8 = PanelLayout::Zero4 as u8;
pub const MIN4: u8 = PanelLayout::Min4 as u8;
pub const ZERO5: u8 = PanelLayout::Zero5 as u8;
pub const MIN5: u8 = PanelLayout::Min5 as u8;
pub const ZERO8: u8 = PanelLayout::Zero8 as u8;
pub const SUPER4: u8 = PanelLayout::Super4 as u8;
pub const SUPER5: u8 = PanelLayout::Super5 as u8;
pub const SUPER6: u8 = PanelLayout::Super6 as u8;
pub const TABLE4: u8 = PanelLayout::Table4 as u8;
pub const BF16: u8 = PanelLayout::Bf16 as u8;
pub const F16: u8 = PanelLayout::F16 as u8;
pub const F32: u8 = PanelLayout::F32 as u8;
/// Expanded to bytes: zero point, f32 scale per 32 columns.
pub const WIDE: u8 = 100;
/// Expanded to bytes: f32 scale and minimum per 32 columns.
pub const WIDE_MIN: u8 = 101;
/// Expanded to bytes: zero point, f32 scale per 16 columns.
pub const WIDE_HALVES: u8 = 102;
/// Expanded to bytes: f32 scale and minimum per 16 columns.
pub const WIDE_HALVES_MIN: u8 = 103;
/// Expanded to bytes: codes below 8 with a zero point of 4, f32 scale per 16 columns.
pub const WIDE_HALVES_4: u8 = 104;
/// Expanded to magnitudes and signs of bytes less 128: zero point 128, f32 scale per 32 columns.
pub const SIGNS: u8 = 105;
/// The same: f32 scale and minimum per 32 columns.
pub const SIGNS_MIN: u8 = 106;
/// The same: zero point 128, f32 scale per 16 columns.
pub const SIGNS_HALVES: u8 = 107;
/// Pairs of columns in bf16, as they are stored or what others are expanded to.
pub const PAIRS: u8 = 108;

/// Kinds from here on are expanded whatever the number of tokens, but for the flat ones.
pub const CODED: u8 = SUPER2;
pub const SUPER2: u8 = PanelLayout::Super2 as u8;
pub const SUPER3: u8 = PanelLayout::Super3 as u8;
pub const HALF_TABLE: u8 = PanelLayout::HalfTable as u8;
pub const FLOAT_TABLE16: u8 = PanelLayout::FloatTable16 as u8;
pub const FLAT4: u8 = PanelLayout::Flat4 as u8;
pub const FLAT4_64: u8 = PanelLayout::Flat4x64 as u8;
pub const FLAT4_128: u8 = PanelLayout::Flat4x128 as u8;
pub const FLAT8: u8 = PanelLayout::Flat8 as u8;
pub const FLAT8_64: u8 = PanelLayout::Flat8x64 as u8;
pub const FLAT8_128: u8 = PanelLayout::Flat8x128 as u8;
pub const FLOAT8: u8 = PanelLayout::Float8 as u8;
/// Lookups of floats, a kind for each table.
pub const LOOKUP_NF4: u8 = 47;
pub const LOOKUP_FP4: u8 = 48;
/// Super tables, a kind for each table.
pub const TABLE_IQ1: u8 = 40;
pub const TABLE_IQ2: u8 = 41;
pub const TABLE_IQ3_XXS: u8 = 42;
pub const TABLE_IQ3_S: u8 = 43;
pub const TABLE_IQ4: u8 = 44;
/// The same with scales of 16 columns.
pub const TABLE16_IQ1: u8 = 45;
pub const TABLE16_IQ2: u8 = 46;
/// Coded kinds with two scales in bytes, panel after panel: zero point 128, f32 scale per 16 columns.
pub const FULL_HALVES: u8 = 92;
/// f32 scale and minimum per 16 columns.
pub const FULL_HALVES_MIN: u8 = 93;

/// The kind of a weight in panels.
pub fn of(spec: &PanelSpec) -> u8 {
    match (spec.layout(), spec.format()) {
        (PanelLayout::SuperTable, FormatId::IQ1_S) => TABLE_IQ1,
        (PanelLayout::SuperTable, FormatId::IQ2_XXS) => TABLE_IQ2,
        (PanelLayout::SuperTable, FormatId::IQ3_XXS) => TABLE_IQ3_XXS,
        (PanelLayout::SuperTable, FormatId::IQ3_S) => TABLE_IQ3_S,
        (PanelLayout::SuperTable, _) => TABLE_IQ4,
        (PanelLayout::SuperTable16, FormatId::IQ1_M) => TABLE16_IQ1,
        (PanelLayout::SuperTable16, _) => TABLE16_IQ2,
        (PanelLayout::Lookup4, FormatId::NF4_64) => LOOKUP_NF4,
        (PanelLayout::Lookup4, _) => LOOKUP_FP4,
        (layout, _) => layout as u8,
    }
}

/// The values behind the codes of a kind with a table, raised by 128.
pub const fn table(kind: u8) -> &'static [u8; 16] {
    crate::panel::table(match kind {
        TABLE_IQ1 | TABLE16_IQ1 => FormatId::IQ1_S,
        TABLE_IQ3_XXS => FormatId::IQ3_XXS,
        TABLE_IQ3_S => FormatId::IQ3_S,
        TABLE_IQ4 | HALF_TABLE => FormatId::IQ4_XS,
        FLOAT_TABLE16 => FormatId::NVFP4,
        _ => FormatId::IQ2_XXS,
    })
}

/// The floats behind the codes of a lookup.
pub const fn float_table(kind: u8) -> &'static [f32; 16] {
    crate::panel::float_table(match kind {
        LOOKUP_NF4 => FormatId::NF4_64,
        _ => FormatId::FP4_64,
    })
}

/// Whether codes stand for floats, so that products are of floats.
pub const fn is_float_code(kind: u8) -> bool {
    matches!(kind, FLOAT8 | LOOKUP_NF4 | LOOKUP_FP4)
}

/// Whether a kind is expanded whatever the number of tokens.
pub const fn is_coded(kind: u8) -> bool {
    kind >= CODED && kind < FULL_HALVES && !is_flat(kind)
}

/// Whether codes are stored as they are, beside an f32 scale and minimum.
pub const fn is_flat(kind: u8) -> bool {
    matches!(kind, FLAT4 | FLAT4_64 | FLAT4_128 | FLAT8 | FLAT8_64 | FLAT8_128)
}

/// Whether codes are below 16.
pub const fn is_narrow(kind: u8) -> bool {
    matches!(kind, ZERO4 | MIN4 | SUPER4 | FLAT4 | FLAT4_64 | FLAT4_128)
}

/// The layout of a kind that is stored that way.
pub const fn layout(kind: u8) -> PanelLayout {
    match kind {
        SUPER2 => PanelLayout::Super2,
        SUPER3 => PanelLayout::Super3,
        HALF_TABLE => PanelLayout::HalfTable,
        FLOAT_TABLE16 => PanelLayout::FloatTable16,
        FLAT4 => PanelLayout::Flat4,
        FLAT4_64 => PanelLayout::Flat4x64,
        FLAT4_128 => PanelLayout::Flat4x128,
        FLAT8 => PanelLayout::Flat8,
        FLAT8_64 => PanelLayout::Flat8x64,
        FLAT8_128 => PanelLayout::Flat8x128,
        FLOAT8 => PanelLayout::Float8,
        LOOKUP_NF4 | LOOKUP_FP4 => PanelLayout::Lookup4,
        TABLE_IQ1 | TABLE_IQ2 | TABLE_IQ3_XXS | TABLE_IQ3_S | TABLE_IQ4 => PanelLayout::SuperTable,
        TABLE16_IQ1 | TABLE16_IQ2 => PanelLayout::SuperTable16,
        ZERO4 => PanelLayout::Zero4,
        MIN4 => PanelLayout::Min4,
        ZERO5 => PanelLayout::Zero5,
        MIN5 => PanelLayout::Min5,
        ZERO8 => PanelLayout::Zero8,
        SUPER4 => PanelLayout::Super4,
        SUPER5 => PanelLayout::Super5,
        SUPER6 => PanelLayout::Super6,
        TABLE4 => PanelLayout::Table4,
        BF16 | PAIRS => PanelLayout::Bf16,
        F16 => PanelLayout::F16,
        F32 => PanelLayout::F32,
        _ => panic!("expanded kinds are not stored"),
    }
}

/// Geometry of a kind, to be taken in a `const` block: kernels must not compute it.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// Blocks of a group.
    pub blocks: usize,
    /// Bytes of its scales.
    pub scales: usize,
    /// Bytes of the codes of one block.
    pub codes: usize,
    /// Bytes of the low plane of a block.
    pub low: usize,
    /// Bytes of the whole group.
    pub group: usize,
}

/// Sizes of a kind of codes.
pub const fn sizes(kind: u8) -> Sizes {
    let group = group(kind);
    Sizes {
        blocks: group.blocks,
        scales: group.scale_bytes,
        codes: group.block_bytes(),
        low: group.low_bytes,
        group: group.bytes(),
    }
}

/// Geometry of a kind of codes. Expanded: 8 lines of codes after their scales, or 8 of magnitudes and 8 of signs after
/// scales, minima and what integer sums start from, one block. Plain floats have nothing.
const fn group(kind: u8) -> Group {
    let scale_bytes = match kind {
        WIDE => 64,
        WIDE_MIN | WIDE_HALVES | FULL_HALVES | WIDE_HALVES_4 | SIGNS => 128,
        SIGNS_MIN => 192,
        FULL_HALVES_MIN | WIDE_HALVES_MIN | SIGNS_HALVES => 256,
        _ => match layout(kind).group() {
            Some(group) => return group,
            None => return Group { blocks: 1, scale_bytes: 0, low_bytes: 0, high_bytes: 0 },
        },
    };
    Group {
        blocks: 1,
        scale_bytes,
        low_bytes: 512,
        high_bytes: if has_signs(kind) { 512 } else { 0 },
    }
}

/// Whether blocks have a minimum (and then no zero point).
pub const fn has_min(kind: u8) -> bool {
    match kind {
        WIDE_MIN | WIDE_HALVES_MIN | SIGNS_MIN | FULL_HALVES_MIN => true,
        _ => kind < FULL_HALVES && layout(kind).has_min(),
    }
}

/// Whether a block has two scales.
pub const fn has_halves(kind: u8) -> bool {
    match kind {
        WIDE_HALVES | WIDE_HALVES_MIN | WIDE_HALVES_4 | SIGNS_HALVES | FULL_HALVES
        | FULL_HALVES_MIN => true,
        _ => kind < FULL_HALVES && layout(kind).scale_cols() == 16,
    }
}

/// Whether codes may be any byte.
pub const fn is_full(kind: u8) -> bool {
    matches!(kind, ZERO8 | FLAT8 | FLAT8_64 | FLAT8_128) || kind >= FULL_HALVES && kind < WIDE
}

/// What a kind expands to, line by line of a tile's panels.
pub const fn wide(kind: u8) -> u8 {
    match (has_min(kind), has_halves(kind)) {
        (true, _) => WIDE_MIN,
        (_, true) => WIDE_HALVES,
        _ => WIDE,
    }
}

/// What a coded kind with two scales expands to, panel by panel.
pub const fn full(kind: u8) -> u8 {
    if has_min(kind) { FULL_HALVES_MIN } else { FULL_HALVES }
}

/// Magnitudes and signs, or bytes where codes are below 16.
const fn signs(kind: u8) -> u8 {
    match (has_min(kind), has_halves(kind)) {
        (true, true) => WIDE_HALVES_MIN,
        _ if kind == SUPER3 => WIDE_HALVES_4,
        (true, false) => SIGNS_MIN,
        (_, true) => SIGNS_HALVES,
        _ => SIGNS,
    }
}

/// Whether codes are magnitudes and signs.
pub const fn has_signs(kind: u8) -> bool {
    matches!(kind, SIGNS | SIGNS_MIN | SIGNS_HALVES)
}

/// What an instruction set expands codes to that may be any byte.
#[derive(Clone, Copy)]
pub enum Expands {
    /// To bytes.
    Bytes,
    /// To magnitudes and signs, or bytes where codes are below 16.
    Signs,
}

/// What a kind expands to.
pub const fn expanded(kind: u8, how: Expands) -> u8 {
    match (is_coded(kind), is_full(kind), how) {
        (true, _, Expands::Signs) | (_, true, Expands::Signs) => signs(kind),
        (true, _, Expands::Bytes) if has_halves(kind) => full(kind),
        _ => wide(kind),
    }
}
