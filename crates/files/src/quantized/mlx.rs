//! MLX: `.weight` u32 `[rows, cols·bits/32]`, a stream of bits along each row, `.scales` and
//! `.biases` `[rows, groups]`. w = s·q + bias. Embeddings may be stored so too.
//!
//! The modes mxfp4, nvfp4 and mxfp8 have scales in bytes and no biases.

use tokenmill_ir::{Meta, MetaValue};
use tokenmill_quant::FormatId;

use super::affine::{Affine, Matrix, Order, Packed, Zeros};
use super::config::{Mlx, MlxMode, mlx_of};
use super::fp4::{self, Global};
use super::module::{Assembly, Module};
use super::{Assembled, compressed, fp8};
use crate::error::LoadError;

const SCALES: [FormatId; 3] = [FormatId::F16, FormatId::BF16, FormatId::F32];

pub(super) fn assemble(config: &Mlx, meta: &Meta, to: &mut Assembly<'_>) -> Result<(), LoadError> {
    for module in to.take("scales", &["weight", "scales", "biases"]) {
        // What a module says for itself goes before what holds for all.
        let own = meta.get("quantization").and_then(|q| match q {
            MetaValue::Map(q) => match q.get(&module.stem) {
                Some(MetaValue::Map(own)) => Some(own),
                _ => None,
            },
            _ => None,
        });
        let config = match own {
            Some(own) => mlx_of(to.path, own, Some(config))?,
            None => *config,
        };
        match config.mode {
            MlxMode::Affine => affine(&module, &config, to)?,
            MlxMode::Mxfp4 => compressed::mxfp4(&module, ["weight", "scales"], to)?,
            MlxMode::Mxfp8 => {
                let (_, words) = module.matrix("weight", &[FormatId::I32])?;
                let mut codes = module.piece("weight")?.clone();
                (codes.format, codes.shape[1]) = (FormatId::F8_E4M3, 4 * words);
                fp8::push(&module, codes, "scales", Some([1, 32]), to)?;
            }
            MlxMode::Nvfp4 => fp4::push(&module, ["weight", "scales"], Global::Times(1.0), to)?,
        }
    }
    Ok(())
}

fn affine(module: &Module<'_>, config: &Mlx, to: &mut Assembly<'_>) -> Result<(), LoadError> {
    let (rows, words) = module.matrix("weight", &[FormatId::I32])?;
    let (_, groups) = module.matrix("scales", &SCALES)?;
    let cols = groups * config.group_size;
    module.expect("scales", &[rows, groups])?;
    module.matrix("biases", &SCALES)?;
    module.expect("biases", &[rows, groups])?;
    if words * 32 != cols * u64::from(config.bits) {
        let expected = format!("{} bits and groups of {}", config.bits, config.group_size);
        return Err(module.wrong(&expected, format!("{words} words for {groups} groups")));
    }
    let codes =
        Packed { tensor: module.piece("weight")?.clone(), bits: config.bits, order: Order::Across };
    let affine = Affine::new(Matrix {
        cols,
        group: config.group_size,
        codes,
        scales: module.piece("scales")?.clone(),
        scales_by_row: true,
        scale_over: 1.0,
        zeros: Zeros::Minima(module.piece("biases")?.clone()),
        groups: None,
    });
    to.push(module, affine.format, [rows, cols], Assembled::Affine(affine))
}
