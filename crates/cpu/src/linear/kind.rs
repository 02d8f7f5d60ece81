//! What a kernel is made for: the layout of packed panels, or what they are expanded to. Kernels are generic over kinds as
//! types ([`OfKind`]), so that each is compiled for its own.

use crate::panel::{Group, PanelLayout, PanelSpec};
use tokenmill_quant::FormatId;

/// Makes the kinds, and a type of each.
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident)+) => {
        /// A kind of panels.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind {
            $($(#[$doc])* $name,)+
        }

        $(
            #[doc = concat!("[`Kind::", stringify!($name), "`] as a type.")]
            pub struct $name;

            impl OfKind for $name {
                const KIND: Kind = Kind::$name;
            }
        )+
    };
}

/// A kind that code is compiled for.
pub trait OfKind {
    /// Which.
    const KIND: Kind;
}

kinds! {
    Zero4
    Min4
    Zero5
    Min5
    Zero8
    Super2
    Super3
    Super4
    Super5
    Super6
    Table4
    HalfTable
    Nvfp4
    FloatTable16
    Flat2
    Flat2x64
    Flat2x128
    Flat3
    Flat3x64
    Flat3x128
    Flat4
    Flat4x64
    Flat4x128
    Flat8
    Flat8x64
    Flat8x128
    Float8
    Bf16
    F16
    F32
    /// Lookups of floats, a kind for each table.
    LookupNf4
    LookupFp4
    Ternary
    Iq2Xxs
    Iq2Xs
    Iq2S
    Iq3Xxs
    Iq3S
    Iq1S
    Iq1M
    TableIq4
    /// Code books that are written out: of iq1_s and iq2_xxs.
    TableIq12
    /// Of iq1_m, iq2_xs and iq2_s.
    Table16Iq12
    TableIq3Xxs
    TableIq3S
    /// Coded kinds with two scales in bytes, panel after panel: zero point 128, f32 scale per 16 columns.
    FullHalves
    /// f32 scale and minimum per 16 columns.
    FullHalvesMin
    /// Expanded to bytes: zero point, f32 scale per 32 columns.
    Wide
    /// Expanded to bytes: f32 scale and minimum per 32 columns.
    WideMin
    /// Expanded to bytes: zero point, f32 scale per 16 columns.
    WideHalves
    /// Expanded to bytes: f32 scale and minimum per 16 columns.
    WideHalvesMin
    /// Expanded to bytes: codes below 8 with a zero point of 4, f32 scale per 16 columns.
    WideHalves4
    /// Expanded to magnitudes and signs of bytes less 128: zero point 128, f32 scale per 32 columns.
    Signs
    /// The same: f32 scale and minimum per 32 columns.
    SignsMin
    /// The same: zero point 128, f32 scale per 16 columns.
    SignsHalves
    /// Pairs of columns in bf16, as they are stored or what others are expanded to.
    Pairs
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

/// What an instruction set expands codes to that may be any byte.
#[derive(Clone, Copy)]
pub enum Expands {
    /// To bytes.
    Bytes,
    /// To magnitudes and signs, or bytes where codes are below 16.
    Signs,
}

impl Kind {
    /// Of a weight in panels.
    ///
    /// # Panics
    /// Where the product has no kinds (trellises).
    pub fn of(spec: &PanelSpec) -> Kind {
        match (spec.layout(), spec.format()) {
            (PanelLayout::SuperTable, FormatId::IQ4_XS) => Kind::TableIq4,
            (PanelLayout::SuperTable, FormatId::IQ3_XXS) => Kind::TableIq3Xxs,
            (PanelLayout::SuperTable, FormatId::IQ3_S) => Kind::TableIq3S,
            (PanelLayout::SuperTable, _) => Kind::TableIq12,
            (PanelLayout::SuperTable16, _) => Kind::Table16Iq12,
            (PanelLayout::Iq1S, _) => Kind::Iq1S,
            (PanelLayout::Iq1M, _) => Kind::Iq1M,
            (PanelLayout::Ternary, _) => Kind::Ternary,
            (PanelLayout::Iq2Xxs, _) => Kind::Iq2Xxs,
            (PanelLayout::Iq2Xs, _) => Kind::Iq2Xs,
            (PanelLayout::Iq2S, _) => Kind::Iq2S,
            (PanelLayout::Iq3Xxs, _) => Kind::Iq3Xxs,
            (PanelLayout::Iq3S, _) => Kind::Iq3S,
            (PanelLayout::Lookup4, FormatId::NF4_64) => Kind::LookupNf4,
            (PanelLayout::Lookup4, _) => Kind::LookupFp4,
            (PanelLayout::Zero4, _) => Kind::Zero4,
            (PanelLayout::Min4, _) => Kind::Min4,
            (PanelLayout::Zero5, _) => Kind::Zero5,
            (PanelLayout::Min5, _) => Kind::Min5,
            (PanelLayout::Zero8, _) => Kind::Zero8,
            (PanelLayout::Super2, _) => Kind::Super2,
            (PanelLayout::Super3, _) => Kind::Super3,
            (PanelLayout::Super4, _) => Kind::Super4,
            (PanelLayout::Super5, _) => Kind::Super5,
            (PanelLayout::Super6, _) => Kind::Super6,
            (PanelLayout::Table4, _) => Kind::Table4,
            (PanelLayout::HalfTable, _) => Kind::HalfTable,
            (PanelLayout::Nvfp4, _) => Kind::Nvfp4,
            (PanelLayout::FloatTable16, _) => Kind::FloatTable16,
            (PanelLayout::Flat2, _) => Kind::Flat2,
            (PanelLayout::Flat2x64, _) => Kind::Flat2x64,
            (PanelLayout::Flat2x128, _) => Kind::Flat2x128,
            (PanelLayout::Flat3, _) => Kind::Flat3,
            (PanelLayout::Flat3x64, _) => Kind::Flat3x64,
            (PanelLayout::Flat3x128, _) => Kind::Flat3x128,
            (PanelLayout::Flat4, _) => Kind::Flat4,
            (PanelLayout::Flat4x64, _) => Kind::Flat4x64,
            (PanelLayout::Flat4x128, _) => Kind::Flat4x128,
            (PanelLayout::Flat8, _) => Kind::Flat8,
            (PanelLayout::Flat8x64, _) => Kind::Flat8x64,
            (PanelLayout::Flat8x128, _) => Kind::Flat8x128,
            (PanelLayout::Float8, _) => Kind::Float8,
            (PanelLayout::Bf16, _) => Kind::Bf16,
            (PanelLayout::F16, _) => Kind::F16,
            (PanelLayout::F32, _) => Kind::F32,
            (PanelLayout::Trellis(_), _) => unreachable!("trellises have a path of their own"),
        }
    }

    /// The layout of a kind that is stored that way; of pairs, that of bf16.
    pub const fn layout(self) -> Option<PanelLayout> {
        Some(match self {
            Kind::Zero4 => PanelLayout::Zero4,
            Kind::Min4 => PanelLayout::Min4,
            Kind::Zero5 => PanelLayout::Zero5,
            Kind::Min5 => PanelLayout::Min5,
            Kind::Zero8 => PanelLayout::Zero8,
            Kind::Super2 => PanelLayout::Super2,
            Kind::Super3 => PanelLayout::Super3,
            Kind::Super4 => PanelLayout::Super4,
            Kind::Super5 => PanelLayout::Super5,
            Kind::Super6 => PanelLayout::Super6,
            Kind::Table4 => PanelLayout::Table4,
            Kind::HalfTable => PanelLayout::HalfTable,
            Kind::Nvfp4 => PanelLayout::Nvfp4,
            Kind::FloatTable16 => PanelLayout::FloatTable16,
            Kind::Flat2 => PanelLayout::Flat2,
            Kind::Flat2x64 => PanelLayout::Flat2x64,
            Kind::Flat2x128 => PanelLayout::Flat2x128,
            Kind::Flat3 => PanelLayout::Flat3,
            Kind::Flat3x64 => PanelLayout::Flat3x64,
            Kind::Flat3x128 => PanelLayout::Flat3x128,
            Kind::Flat4 => PanelLayout::Flat4,
            Kind::Flat4x64 => PanelLayout::Flat4x64,
            Kind::Flat4x128 => PanelLayout::Flat4x128,
            Kind::Flat8 => PanelLayout::Flat8,
            Kind::Flat8x64 => PanelLayout::Flat8x64,
            Kind::Flat8x128 => PanelLayout::Flat8x128,
            Kind::Float8 => PanelLayout::Float8,
            Kind::LookupNf4 | Kind::LookupFp4 => PanelLayout::Lookup4,
            Kind::Ternary => PanelLayout::Ternary,
            Kind::Iq2Xxs => PanelLayout::Iq2Xxs,
            Kind::Iq2Xs => PanelLayout::Iq2Xs,
            Kind::Iq2S => PanelLayout::Iq2S,
            Kind::Iq3Xxs => PanelLayout::Iq3Xxs,
            Kind::Iq3S => PanelLayout::Iq3S,
            Kind::Iq1S => PanelLayout::Iq1S,
            Kind::Iq1M => PanelLayout::Iq1M,
            Kind::TableIq4 | Kind::TableIq12 | Kind::TableIq3Xxs | Kind::TableIq3S => {
                PanelLayout::SuperTable
            }
            Kind::Table16Iq12 => PanelLayout::SuperTable16,
            Kind::Bf16 | Kind::Pairs => PanelLayout::Bf16,
            Kind::F16 => PanelLayout::F16,
            Kind::F32 => PanelLayout::F32,
            Kind::FullHalves
            | Kind::FullHalvesMin
            | Kind::Wide
            | Kind::WideMin
            | Kind::WideHalves
            | Kind::WideHalvesMin
            | Kind::WideHalves4
            | Kind::Signs
            | Kind::SignsMin
            | Kind::SignsHalves => return None,
        })
    }

    /// The zero point of the codes as they are stored.
    pub const fn zero(self) -> u8 {
        match self.layout() {
            Some(layout) => layout.zero(),
            None => panic!("expanded kinds are not stored"),
        }
    }

    /// The values behind the codes of a kind with a table, raised by 128.
    pub const fn table(self) -> &'static [u8; 16] {
        if matches!(self, Kind::TableIq12 | Kind::Table16Iq12) {
            return crate::panel::written_out_table(FormatId::IQ2_XXS);
        }
        crate::panel::table(match self {
            Kind::Iq1S => FormatId::IQ1_S,
            Kind::Iq1M => FormatId::IQ1_M,
            Kind::Iq3Xxs | Kind::TableIq3Xxs => FormatId::IQ3_XXS,
            Kind::Iq3S | Kind::TableIq3S => FormatId::IQ3_S,
            Kind::TableIq4 | Kind::HalfTable => FormatId::IQ4_XS,
            Kind::Nvfp4 | Kind::FloatTable16 => FormatId::NVFP4,
            _ => FormatId::IQ2_XXS,
        })
    }

    /// The floats behind the codes of a lookup.
    pub const fn float_table(self) -> &'static [f32; 16] {
        crate::panel::float_table(match self {
            Kind::LookupNf4 => FormatId::NF4_64,
            _ => FormatId::FP4_64,
        })
    }

    /// Whether codes stand for floats, so that products are of floats.
    pub const fn is_float_code(self) -> bool {
        matches!(self, Kind::Float8 | Kind::LookupNf4 | Kind::LookupFp4)
    }

    /// Whether codes have at most three bits, or are entries of a code book: tiles of few tokens take them apart.
    pub const fn is_of_bits(self) -> bool {
        matches!(self, Kind::Super2 | Kind::Super3 | Kind::Ternary) || self.is_book()
    }

    /// Whether codes are entries of a code book of magnitudes, beside signs.
    pub const fn is_book(self) -> bool {
        match self.layout() {
            Some(layout) => layout.is_book(),
            None => false,
        }
    }

    /// Whether codes are entries of a code book of values.
    pub const fn is_value_book(self) -> bool {
        matches!(self, Kind::Iq1S | Kind::Iq1M)
    }

    /// Whether codes of four bits are indices into a table of signed bytes, here raised by 128.
    pub const fn is_table(self) -> bool {
        let half = matches!(self, Kind::HalfTable | Kind::Nvfp4 | Kind::FloatTable16);
        half || matches!(self.layout(), Some(PanelLayout::SuperTable | PanelLayout::SuperTable16))
    }

    /// Whether `coded` takes codes apart, or knows their scales.
    pub const fn is_coded(self) -> bool {
        let codes = self.is_table() || self.is_of_bits() || self.is_value_book();
        codes || self.is_float_code() || self.is_flat()
    }

    /// Whether codes are stored as they are, beside an f32 scale and minimum.
    pub const fn is_flat(self) -> bool {
        match self.layout() {
            Some(layout) => layout.is_flat(),
            None => false,
        }
    }

    const fn is_flat8(self) -> bool {
        matches!(self, Kind::Flat8 | Kind::Flat8x64 | Kind::Flat8x128)
    }

    /// Whether codes are below 16.
    pub const fn is_narrow(self) -> bool {
        let flat = self.is_flat() && !self.is_flat8();
        flat || matches!(self, Kind::Zero4 | Kind::Ternary | Kind::Min4 | Kind::Super4)
    }

    /// Whether panels are expanded one after the other.
    pub const fn is_expanded_whole(self) -> bool {
        matches!(self, Kind::FullHalves | Kind::FullHalvesMin)
    }

    /// Whether panels of a tile are expanded line by line.
    pub const fn is_wide(self) -> bool {
        let bytes = matches!(
            self,
            Kind::Wide | Kind::WideMin | Kind::WideHalves | Kind::WideHalvesMin | Kind::WideHalves4
        );
        bytes || self.has_signs()
    }

    /// Whether codes may be any byte.
    pub const fn is_full(self) -> bool {
        matches!(self, Kind::Zero8) || self.is_flat8() || self.is_expanded_whole()
    }

    /// Whether codes are magnitudes and signs.
    pub const fn has_signs(self) -> bool {
        matches!(self, Kind::Signs | Kind::SignsMin | Kind::SignsHalves)
    }

    /// Whether blocks have a minimum (and then no zero point).
    pub const fn has_min(self) -> bool {
        match self.layout() {
            Some(layout) => layout.has_min(),
            None => matches!(
                self,
                Kind::WideMin | Kind::WideHalvesMin | Kind::SignsMin | Kind::FullHalvesMin
            ),
        }
    }

    /// Whether a block has two scales.
    pub const fn has_halves(self) -> bool {
        match self.layout() {
            Some(layout) => layout.scale_cols() == 16,
            None => !matches!(self, Kind::Wide | Kind::WideMin | Kind::Signs | Kind::SignsMin),
        }
    }

    /// Sizes of a kind of codes.
    pub const fn sizes(self) -> Sizes {
        let group = self.group();
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
    const fn group(self) -> Group {
        let scale_bytes = match self {
            Kind::Wide => 64,
            Kind::WideMin
            | Kind::WideHalves
            | Kind::FullHalves
            | Kind::WideHalves4
            | Kind::Signs => 128,
            Kind::SignsMin => 192,
            Kind::FullHalvesMin | Kind::WideHalvesMin | Kind::SignsHalves => 256,
            _ => {
                let none = Group { blocks: 1, scale_bytes: 0, low_bytes: 0, high_bytes: 0 };
                let Some(layout) = self.layout() else { return none };
                return match layout.group() {
                    Some(group) => group,
                    None => none,
                };
            }
        };
        let high_bytes = if self.has_signs() { 512 } else { 0 };
        Group { blocks: 1, scale_bytes, low_bytes: 512, high_bytes }
    }

    /// What a kind expands to, line by line of a tile's panels.
    pub const fn wide(self) -> Kind {
        match (self.has_min(), self.has_halves()) {
            (true, _) => Kind::WideMin,
            (_, true) => Kind::WideHalves,
            _ => Kind::Wide,
        }
    }

    /// What a coded kind with two scales expands to, panel by panel.
    pub const fn full(self) -> Kind {
        if self.has_min() { Kind::FullHalvesMin } else { Kind::FullHalves }
    }

    /// Magnitudes and signs, or bytes where codes are below 16.
    const fn signs(self) -> Kind {
        match (self.has_min(), self.has_halves()) {
            (true, true) => Kind::WideHalvesMin,
            _ if matches!(self, Kind::Super3) => Kind::WideHalves4,
            (true, false) => Kind::SignsMin,
            (_, true) => Kind::SignsHalves,
            _ => Kind::Signs,
        }
    }

    /// What a kind expands to.
    pub const fn expanded(self, how: Expands) -> Kind {
        let any_byte = self.is_table() || self.is_of_bits() && !self.is_narrow();
        match (any_byte, self.is_full(), how) {
            (true, _, Expands::Signs) | (_, true, Expands::Signs) => self.signs(),
            (true, _, Expands::Bytes) if self.has_halves() => self.full(),
            _ => self.wide(),
        }
    }
}
