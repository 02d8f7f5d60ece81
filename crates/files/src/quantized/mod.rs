//! Quantised safetensors: matrices kept in several tensors, read in place.
//!
//! `config.json` says which family wrote a checkpoint ([`Quantization`]); which modules are
//! quantised, and how finely, is read from the tensors themselves, so exceptions and overrides
//! need no rules of their own. Each matrix becomes one tensor `<module>.weight` in a format that
//! holds it without loss; its rows are put together when a device asks for them.

mod affine;
mod awq;
mod bitsandbytes;
mod compressed;
mod config;
mod exl3;
mod fp4;
mod fp8;
mod gptq;
mod keys;
mod mlx;
mod modelopt;
mod module;

use std::ops::Range;
use std::path::Path;

use tokenmill_ir::{Meta, TensorInfo};

use crate::assemble::{Mxfp4Pieces, assemble_mxfp4};
use crate::error::LoadError;
use crate::mmap::MappedFile;
pub(crate) use config::Quantization;
use module::Assembly;

/// One assembled tensor.
#[derive(Debug)]
pub(crate) enum Assembled {
    Mxfp4(Mxfp4Pieces),
    Affine(affine::Affine),
    Fp8(fp8::Fp8),
    Fp4(fp4::Fp4),
    Lookup(bitsandbytes::Lookup),
    Exl3(exl3::Exl3),
}

impl Assembled {
    /// Writes stored rows of the assembled format to `out`, exactly as many as it has room for.
    pub fn read(
        &self,
        files: &[MappedFile],
        rows: Range<u64>,
        out: &mut [u8],
    ) -> Result<(), LoadError> {
        match self {
            Assembled::Mxfp4(_) => unreachable!("read by blocks"),
            Assembled::Affine(a) => a.read(files, rows, out),
            Assembled::Fp8(f) => f.read(files, rows, out),
            Assembled::Fp4(f) => f.read(files, rows, out),
            Assembled::Lookup(l) => l.read(files, rows, out),
            Assembled::Exl3(e) => e.read(files, rows, out),
        }
    }
}

/// Replaces the pieces of quantised matrices by assembled tensors, whose `extent.file` counts on
/// from the number of files.
///
/// # Errors
/// [`LoadError`] for pieces that are missing or do not fit each other.
pub(crate) fn assemble(
    path: &Path,
    quantization: &Quantization,
    meta: &Meta,
    tensors: Vec<TensorInfo>,
    files: &[MappedFile],
) -> Result<(Vec<TensorInfo>, Vec<Assembled>), LoadError> {
    let mut to = Assembly::new(path, files, tensors);
    match quantization {
        Quantization::None | Quantization::Mxfp4 => {
            let first = files.len() as u32;
            let (tensors, pieces) = assemble_mxfp4(path, to.tensors, first)?;
            return Ok((tensors, pieces.into_iter().map(Assembled::Mxfp4).collect()));
        }
        Quantization::Gptq(config) => gptq::assemble(config, &mut to)?,
        Quantization::Awq => awq::assemble(&mut to)?,
        Quantization::Fp8(block) => fp8::assemble(*block, &mut to)?,
        Quantization::CompressedTensors => compressed::assemble(&mut to)?,
        Quantization::Bitsandbytes => bitsandbytes::assemble(&mut to)?,
        Quantization::ModelOpt => modelopt::assemble(&mut to)?,
        Quantization::Exl3 => exl3::assemble(&mut to)?,
        Quantization::Mlx(config) => mlx::assemble(config, meta, &mut to)?,
    }
    Ok((to.tensors, to.assembled))
}
