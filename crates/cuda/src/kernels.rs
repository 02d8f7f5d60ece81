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
    /// Copies of cache blocks.
    CopyBlocks,
}

impl Kernel {
    /// Its source file, without the ending.
    pub fn file(self) -> &'static str {
        match self {
            Self::Product(_) | Self::Embed(_) => "product",
            Self::Norm | Self::Gate | Self::Map | Self::TakeRows | Self::Pool => "dense",
            Self::RotateStore | Self::StoreLatent | Self::Attend(_) | Self::AttendLatent(_) => {
                "attend"
            }
            Self::Conv | Self::ConvTail | Self::DeltaRule | Self::Scan => "recurrent",
            Self::Route | Self::SortPairs | Self::Combine => "experts",
            Self::CopyBlocks => "copy",
        }
    }

    /// Its name there.
    pub fn entry(self) -> Cow<'static, str> {
        let name = match self {
            Self::Product(format) => return format!("product_{format:?}").into(),
            Self::Embed(format) => return format!("embed_{format:?}").into(),
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
            Self::CopyBlocks => "copy_blocks",
        };
        name.into()
    }
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

/// Whether this binary has kernels for GPUs: `cargo xtask cubins` compiles them before a build.
pub fn are_built() -> bool {
    !BUNDLES.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_of_single_rows_are_decoded_by_kernels() {
        assert!(is_decoded(FormatId::F32) && is_decoded(FormatId::Q4_K));
        assert!(!is_decoded(FormatId::EXL3_4));
        assert!(FORMATS.iter().filter(|f| is_decoded(f.id)).count() > 40);
    }
}
