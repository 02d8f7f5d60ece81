//! The table of kernels: their names, and the files that have them.

use std::borrow::Cow;
use std::sync::OnceLock;

use tokenmill_ir::KvFormat;
use tokenmill_quant::{FORMATS, FormatId};

mod bundles {
    include!(concat!(env!("OUT_DIR"), "/bundles.rs"));
}

pub(crate) use bundles::BUNDLES;

/// A kernel of kernels/*.cu.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Products with rows of a format.
    Product(FormatId),
    /// Rows of a format looked up.
    Embed(FormatId),
    /// Rows of a format made atoms.
    Pack(FormatId),
    /// Rows of a format looked up in atoms.
    LookUp(FormatId),
    /// Products with atoms: up to 8 rows of x a block, or up to 16.
    Narrow(FormatId, bool),
    /// The same with experts' atoms, for the pairs of a token and a slot that each has.
    Picked(FormatId, bool),
    /// The same for many rows of x: 64 a block, or 32.
    Wide(FormatId),
    /// Two of them, a gate's function of one times the other: up to 8 rows of x a block.
    Gated(FormatId),
    /// Sums and norms.
    Norm,
    /// Gates and linear branches combined.
    Gate,
    /// Elementwise expressions.
    Map,
    /// Rows with an output.
    TakeRows,
    /// One vector a sequence.
    Pool,
    /// Head norms, rotation, storing of keys and values.
    RotateStore,
    /// Norm, rotation and storing of latents.
    StoreLatent,
    /// Attention over a cache of that format, or over keys of the step.
    Attend(Option<KvFormat>),
    /// The same by tensor cores, for heads of so many columns: of sequences with few tokens, up to
    /// so many rows a block.
    AttendFew(KvFormat, u32, u32),
    /// Of sequences with more.
    AttendMany(KvFormat, u32),
    /// Sums of splits of keys that were made side by side.
    AttendJoin,
    /// Attention over a latent cache of that format.
    AttendLatent(KvFormat),
    /// Causal convolution.
    Conv,
    /// What it keeps.
    ConvTail,
    /// Gated delta rule.
    DeltaRule,
    /// Selective scan.
    Scan,
    /// Experts chosen.
    Route,
    /// Tokens by expert.
    SortPairs,
    /// Weighted sums of experts' rows.
    Combine,
    /// Bias, penalties and masks on logits.
    SampleAdjust,
    /// What tokens weigh.
    SampleWeigh,
    /// Tokens chosen.
    SampleChoose,
    /// Copies of cache blocks.
    CopyBlocks,
}

impl Kernel {
    /// Its source file, without the ending.
    pub fn file(self) -> &'static str {
        match self {
            Self::Product(_) | Self::Embed(_) => "product",
            Self::Pack(_) | Self::LookUp(_) => "pack",
            Self::Narrow(..) | Self::Gated(_) => "narrow",
            Self::Picked(..) => "picked",
            Self::Wide(_) => "wide",
            Self::Norm | Self::Gate | Self::Map | Self::TakeRows | Self::Pool => "dense",
            Self::RotateStore | Self::StoreLatent | Self::Attend(_) | Self::AttendLatent(_) => {
                "attend"
            }
            Self::AttendFew(..) | Self::AttendMany(..) | Self::AttendJoin => "attend_tiles",
            Self::Conv | Self::ConvTail | Self::DeltaRule | Self::Scan => "recurrent",
            Self::Route | Self::SortPairs | Self::Combine => "experts",
            Self::SampleAdjust | Self::SampleWeigh | Self::SampleChoose => "sample",
            Self::CopyBlocks => "copy",
        }
    }

    /// Its name there.
    pub fn entry(self) -> Cow<'static, str> {
        let name = match self {
            Self::Product(format) => return format!("product_{format:?}").into(),
            Self::Embed(format) => return format!("embed_{format:?}").into(),
            Self::Pack(format) => return format!("pack_{format:?}").into(),
            Self::LookUp(format) => return format!("look_up_{format:?}").into(),
            Self::Narrow(format, false) => return format!("narrow_8_{format:?}").into(),
            Self::Narrow(format, true) => return format!("narrow_16_{format:?}").into(),
            Self::Picked(format, false) => return format!("picked_8_{format:?}").into(),
            Self::Picked(format, true) => return format!("picked_16_{format:?}").into(),
            Self::Wide(format) => return format!("wide_{format:?}").into(),
            Self::Gated(format) => return format!("gated_8_{format:?}").into(),
            Self::AttendFew(format, dim, rows) => {
                return format!("attend_few_{rows}_{}_{dim}", tiles_of(format)).into();
            }
            Self::AttendMany(format, dim) => {
                return format!("attend_many_{}_{dim}", tiles_of(format)).into();
            }
            Self::AttendJoin => "attend_join",
            Self::Norm => "norm_rows",
            Self::Gate => "gate",
            Self::Map => "map",
            Self::TakeRows => "take_rows",
            Self::Pool => "pool",
            Self::RotateStore => "rotate_store",
            Self::StoreLatent => "store_latent",
            Self::Attend(None) => "attend_fresh",
            Self::Attend(Some(KvFormat::F32)) => "attend_f32",
            Self::Attend(Some(KvFormat::Bf16)) => "attend_bf16",
            Self::Attend(Some(KvFormat::Int16)) => "attend_int16",
            Self::Attend(Some(KvFormat::Int8)) => "attend_int8",
            Self::Attend(Some(KvFormat::Int4)) => "attend_int4",
            Self::Attend(Some(KvFormat::K8V4)) => "attend_k8v4",
            Self::AttendLatent(KvFormat::F32) => "attend_latent_f32",
            Self::AttendLatent(KvFormat::Bf16) => "attend_latent_bf16",
            Self::AttendLatent(_) => "attend_latent_int8",
            Self::Conv => "conv",
            Self::ConvTail => "conv_tail",
            Self::DeltaRule => "delta_rule",
            Self::Scan => "scan",
            Self::Route => "route",
            Self::SortPairs => "sort_pairs",
            Self::Combine => "combine",
            Self::SampleAdjust => "sample_adjust",
            Self::SampleWeigh => "sample_weigh",
            Self::SampleChoose => "sample_choose",
            Self::CopyBlocks => "copy_blocks",
        };
        name.into()
    }
}

/// How kernels by tensor cores call a format of caches.
fn tiles_of(format: KvFormat) -> &'static str {
    if format == KvFormat::Int8 { "int8" } else { "bf16" }
}

/// Rows of a block of attention by tensor cores over a long run of tokens, where there is such a
/// kernel for heads of so many columns (attend_tiles.cu).
pub(crate) fn attend_rows(format: KvFormat, dim: u32) -> Option<u32> {
    let rows = match dim {
        64 | 128 => 48,
        256 => 24,
        _ => return None,
    };
    matches!(format, KvFormat::Bf16 | KvFormat::Int8).then_some(rows)
}

/// Formats that kernels have the tables of, and with them products.
const TABLES: &str = include_str!("../kernels/formats_tables.cuh");

/// Whether kernels decode rows of a format; of others weights are decoded when they are uploaded.
pub(crate) fn is_decoded(format: FormatId) -> bool {
    static DECODED: OnceLock<Vec<FormatId>> = OnceLock::new();
    let listed = |f: &FormatId| {
        let name = format!(", {f:?}, ");
        TABLES.lines().any(|line| line.starts_with("  X(") && line.contains(&name))
    };
    let all = || FORMATS.iter().map(|f| f.id).filter(listed).collect();
    DECODED.get_or_init(all).contains(&format)
}

/// Formats that have atoms.
const ATOMS: &str = include_str!("../kernels/atoms.cuh");

fn listed(list: &str, format: FormatId) -> bool {
    let names = ATOMS.lines().skip_while(|line| !line.contains(list)).nth(1).unwrap_or_default();
    names.contains(&format!("X({format:?})"))
}

/// Whether rows of a format can be atoms, which tensor cores multiply.
pub(crate) fn has_atoms(format: FormatId) -> bool {
    listed("define FOR_EACH_ATOM(", format)
}

/// Rows of x that a block for many of them multiplies, where there is one (wide.cu).
pub(crate) fn wide_rows(format: FormatId) -> Option<u64> {
    let rows = if matches!(format, FormatId::BF16 | FormatId::F8_E4M3) { 64 } else { 32 };
    listed("define FOR_EACH_WIDE(", format).then_some(rows)
}

/// Whether two products with atoms of it can be one kernel.
pub(crate) fn has_gated(format: FormatId) -> bool {
    listed("define FOR_EACH_GATED(", format)
}

/// Whether this binary has kernels for GPUs: `cargo xtask cubins` compiles them before a build.
pub fn are_built() -> bool {
    !BUNDLES.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_with_atoms_are_found() {
        assert_eq!(FORMATS.iter().filter(|f| has_atoms(f.id)).count(), 11);
        assert_eq!(FORMATS.iter().filter(|f| has_gated(f.id)).count(), 3);
        assert_eq!(FORMATS.iter().filter(|f| wide_rows(f.id).is_some()).count(), 10);
        assert!(has_atoms(FormatId::E4M3_32) && !has_atoms(FormatId::F32));
    }

    #[test]
    fn formats_of_single_rows_are_decoded_by_kernels() {
        assert!(is_decoded(FormatId::F32) && is_decoded(FormatId::Q4_K));
        assert!(!is_decoded(FormatId::EXL3_4));
        assert!(FORMATS.iter().filter(|f| is_decoded(f.id)).count() > 40);
    }
}
