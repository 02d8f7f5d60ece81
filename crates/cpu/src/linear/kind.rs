//! What a kernel is made for, as a number that a const parameter can carry.

use tokenmill_quant::panel::{Group, PanelLayout};

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

/// The layout of a kind that is stored that way.
pub const fn layout(kind: u8) -> PanelLayout {
    match kind {
        ZERO4 => PanelLayout::Zero4,
        MIN4 => PanelLayout::Min4,
        ZERO5 => PanelLayout::Zero5,
        MIN5 => PanelLayout::Min5,
        ZERO8 => PanelLayout::Zero8,
        SUPER4 => PanelLayout::Super4,
        SUPER5 => PanelLayout::Super5,
        SUPER6 => PanelLayout::Super6,
        TABLE4 => PanelLayout::Table4,
        BF16 => PanelLayout::Bf16,
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

/// Sizes of an integer kind.
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

/// Geometry of an integer kind. Expanded: 8 lines of codes after their scales, one block.
const fn group(kind: u8) -> Group {
    let scale_bytes = match kind {
        WIDE => 64,
        WIDE_MIN | WIDE_HALVES => 128,
        _ => match layout(kind).group() {
            Some(group) => return group,
            None => panic!("float layouts have no groups"),
        },
    };
    Group { blocks: 1, scale_bytes, low_bytes: 512, high_bytes: 0 }
}

/// Whether blocks have a minimum (and then no zero point).
pub const fn has_min(kind: u8) -> bool {
    kind == WIDE_MIN || kind < WIDE && layout(kind).has_min()
}

/// Whether a block has two scales.
pub const fn has_halves(kind: u8) -> bool {
    matches!(kind, SUPER6 | WIDE_HALVES)
}

/// What a kind expands to.
pub const fn wide(kind: u8) -> u8 {
    match (has_min(kind), has_halves(kind)) {
        (true, _) => WIDE_MIN,
        (_, true) => WIDE_HALVES,
        _ => WIDE,
    }
}
