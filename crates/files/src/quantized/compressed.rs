//! compressed-tensors: packed integers, signed bytes, FP8, NVFP4 and MXFP4, told apart by their
//! pieces.
//!
//! Packed: `.weight_packed` i32 `[rows, ⌈cols·bits/32⌉]`, codes raised by 2^(bits−1); scales
//! `[rows, groups]`; zero points, raised alike, packed down the rows `[⌈rows·bits/32⌉, groups]`;
//! `.weight_shape` i64 `[2]`; `.weight_g_idx` (act-order). w = s·(q − z).

use tokenmill_quant::FormatId;

use super::Assembled;
use super::affine::{Affine, Matrix, Order, Packed, Zeros};
use super::fp4::{self, Global};
use super::fp8;
use super::module::{Assembly, Module, bytes, scalar, word};
use crate::assemble::Mxfp4Pieces;
use crate::error::LoadError;

const SCALES: [FormatId; 3] = [FormatId::F16, FormatId::BF16, FormatId::F32];
const PACKED: [&str; 6] = [
    "weight_packed",
    "weight_scale",
    "weight_zero_point",
    "weight_shape",
    "weight_g_idx",
    "weight_global_scale",
];

pub(super) fn assemble(to: &mut Assembly<'_>) -> Result<(), LoadError> {
    to.drop_activation_scales();
    for module in to.take("weight_packed", &PACKED) {
        let scales = module.piece("weight_scale")?.format;
        match (module.piece("weight_packed")?.format, scales) {
            (FormatId::I32, _) => packed(&module, to)?,
            (_, FormatId::F8_E4M3) => {
                let global = Global::Over(scalar(to.files, module.piece("weight_global_scale")?)?);
                fp4::push(&module, ["weight_packed", "weight_scale"], global, to)?;
            }
            _ => mxfp4(&module, ["weight_packed", "weight_scale"], to)?,
        }
    }
    for module in to.take("weight_scale", &["weight", "weight_scale", "weight_zero_point"]) {
        match module.piece("weight")?.format {
            FormatId::I8 => signed_bytes(&module, to)?,
            _ => fp8::push(&module, module.piece("weight")?.clone(), "weight_scale", None, to)?,
        }
    }
    Ok(())
}

fn packed(module: &Module<'_>, to: &mut Assembly<'_>) -> Result<(), LoadError> {
    let (rows, words) = module.matrix("weight_packed", &[FormatId::I32])?;
    module.expect("weight_shape", &[2])?;
    let shape = module.piece("weight_shape")?;
    let cols = match shape.format {
        FormatId::I64 => u64::from(word(bytes(to.files, shape)?, 2)),
        FormatId::I32 => u64::from(word(bytes(to.files, shape)?, 1)),
        other => return Err(module.wrong(".weight_shape: i64", other)),
    };
    let (_, groups) = module.matrix("weight_scale", &SCALES)?;
    module.expect("weight_scale", &[rows, groups])?;
    let bits = (1..=8).find(|bits| (cols * bits).div_ceil(32) == words);
    let Some(bits) = bits.filter(|_| groups > 0 && cols > 0) else {
        let found = format!("{words} words for {cols} columns in {groups} groups");
        return Err(module.wrong("1 to 8 bits", found));
    };
    let group = cols.div_ceil(groups);
    let bits = bits as u32;
    let zeros = match module.opt("weight_zero_point") {
        None => Zeros::Constant(1 << (bits - 1)),
        Some(tensor) => {
            module.matrix("weight_zero_point", &[FormatId::I32])?;
            module.expect("weight_zero_point", &[(rows * u64::from(bits)).div_ceil(32), groups])?;
            let fields = Packed { tensor: tensor.clone(), bits, order: Order::Down };
            Zeros::Packed { fields, plus: 0 }
        }
    };
    let order = match module.opt("weight_g_idx") {
        None => None,
        Some(tensor) => {
            module.expect("weight_g_idx", &[cols])?;
            if tensor.format != FormatId::I32 {
                return Err(module.wrong(".weight_g_idx: i32", tensor.format));
            }
            let bytes = bytes(to.files, tensor)?;
            let all: Vec<u32> = (0..cols as usize).map(|k| word(bytes, k)).collect();
            if let Some(bad) = all.iter().find(|&&g| u64::from(g) >= groups) {
                let expected = format!("groups below {groups} in .weight_g_idx");
                return Err(module.wrong(&expected, bad));
            }
            let group_of = |k: usize| k as u64 / group;
            let sorted = all.iter().enumerate().all(|(k, &g)| u64::from(g) == group_of(k));
            (!sorted).then_some(all)
        }
    };
    let codes = module.piece("weight_packed")?.clone();
    push(
        module,
        Packed { tensor: codes, bits, order: Order::Across },
        (cols, group),
        zeros,
        order,
        to,
    )
}

/// `.weight` i8 `[rows, cols]`, scales `[rows, groups]`, zero points i8.
fn signed_bytes(module: &Module<'_>, to: &mut Assembly<'_>) -> Result<(), LoadError> {
    let (rows, cols) = module.matrix("weight", &[FormatId::I8])?;
    let (_, groups) = module.matrix("weight_scale", &SCALES)?;
    module.expect("weight_scale", &[rows, groups])?;
    if groups == 0 || !cols.is_multiple_of(groups) {
        return Err(module.wrong("whole groups", format!("{groups} of {cols} columns")));
    }
    let bytes = |end: &str| -> Result<Packed, LoadError> {
        Ok(Packed { tensor: module.piece(end)?.clone(), bits: 8, order: Order::Bytes })
    };
    let zeros = match module.opt("weight_zero_point") {
        None => Zeros::Constant(128),
        Some(_) => {
            module.matrix("weight_zero_point", &[FormatId::I8])?;
            module.expect("weight_zero_point", &[rows, groups])?;
            Zeros::Packed { fields: bytes("weight_zero_point")?, plus: 0 }
        }
    };
    push(module, bytes("weight")?, (cols, cols / groups), zeros, None, to)
}

fn push(
    module: &Module<'_>,
    codes: Packed,
    (cols, group): (u64, u64),
    zeros: Zeros,
    groups: Option<Vec<u32>>,
    to: &mut Assembly<'_>,
) -> Result<(), LoadError> {
    let (rows, scales) = (codes.tensor.rows(), module.piece("weight_scale")?.clone());
    let affine = Affine::new(Matrix {
        cols,
        group,
        codes,
        scales,
        scales_by_row: true,
        scale_over: 1.0,
        zeros,
        groups,
    });
    to.push(module, affine.format, [rows, cols], Assembled::Affine(affine))
}

/// Codes `[rows, cols/2]` bytes (or words of eight) and e8m0 scales `[rows, cols/32]`.
pub(super) fn mxfp4(
    module: &Module<'_>,
    [codes, scales]: [&str; 2],
    to: &mut Assembly<'_>,
) -> Result<(), LoadError> {
    let (rows, units) = module.matrix(codes, &[FormatId::U8, FormatId::I32])?;
    let codes = module.piece(codes)?;
    let cols = units * if codes.format == FormatId::U8 { 2 } else { 8 };
    module.matrix(scales, &[FormatId::U8])?;
    module.expect(scales, &[rows, cols / 32])?;
    let pieces = Mxfp4Pieces { codes: codes.extent, scales: module.piece(scales)?.extent };
    to.push(module, FormatId::MXFP4, [rows, cols], Assembled::Mxfp4(pieces))
}
