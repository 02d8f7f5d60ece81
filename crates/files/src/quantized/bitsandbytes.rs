//! bitsandbytes. 4 bits: `.weight` u8, the matrix as one run of nibbles, the even element in the
//! high one; `.weight.quant_map` f32 `[16]`; `.weight.absmax`, one for each block of elements,
//! itself in bytes where it is nested; `.weight.quant_state…`, JSON. w = map\[q\]·absmax.
//! Maps other than those of NF4 and FP4, and blocks that rows cut, are read as f32.
//!
//! LLM.int8: `.weight` i8 `[rows, cols]`, `.SCB` f32 `[rows]`. w = q·(SCB/127).

use std::ops::Range;

use tokenmill_ir::{MetaValue, TensorInfo};
use tokenmill_quant::{FP4_VALUES, FormatId, NF4_VALUES};

use super::Assembled;
use super::affine::{Affine, Matrix, Order, Packed, Zeros};
use super::module::{Assembly, Module, bytes, float};
use crate::error::LoadError;
use crate::hf_config;
use crate::mmap::MappedFile;

const NF4: &str = "weight.quant_state.bitsandbytes__nf4";
const FP4: &str = "weight.quant_state.bitsandbytes__fp4";

/// Codes and the values they stand for.
#[derive(Debug)]
pub(crate) struct Lookup {
    codes: TensorInfo,
    cols: u64,
    /// Elements under one scale.
    block: u64,
    scales: Scales,
    map: [f32; 16],
    pub format: FormatId,
}

#[derive(Debug)]
enum Scales {
    /// One for each block.
    Plain(TensorInfo),
    Nested(Box<Nested>),
}

/// Bytes that index `map`, times one of `absmax` for each `block`, plus `offset`.
#[derive(Debug)]
struct Nested {
    codes: TensorInfo,
    map: TensorInfo,
    absmax: TensorInfo,
    block: u64,
    offset: f32,
}

pub(super) fn assemble(to: &mut Assembly<'_>) -> Result<(), LoadError> {
    for state in [NF4, FP4] {
        let ends = [
            "weight",
            "weight.absmax",
            "weight.quant_map",
            "weight.nested_absmax",
            "weight.nested_quant_map",
            state,
        ];
        for module in to.take(state, &ends) {
            four_bits(&module, state, to)?;
        }
    }
    for module in to.take("SCB", &["weight", "SCB", "weight_format"]) {
        let (rows, cols) = module.matrix("weight", &[FormatId::I8])?;
        module.expect("SCB", &[rows])?;
        let tensor = module.piece("weight")?.clone();
        let affine = Affine::new(Matrix {
            cols,
            group: cols,
            codes: Packed { tensor, bits: 8, order: Order::Bytes },
            scales: floats(&module, "SCB")?,
            scales_by_row: false,
            scale_over: 127.0,
            zeros: Zeros::Constant(128),
            groups: None,
        });
        to.push(&module, affine.format, [rows, cols], Assembled::Affine(affine))?;
    }
    Ok(())
}

fn four_bits(
    module: &Module<'_>,
    state: &'static str,
    to: &mut Assembly<'_>,
) -> Result<(), LoadError> {
    let json = bytes(to.files, module.piece(state)?)?;
    let meta = hf_config::parse(to.path, json)?;
    let number = |key: &str| meta.opt_f64(key).ok().flatten();
    let whole = |key: &str| number(key).filter(|n| *n >= 1.0).map(|n| n as u64);
    let shape: Option<Vec<u64>> = meta
        .opt_list("shape")
        .ok()
        .flatten()
        .map(|list| list.iter().filter_map(MetaValue::as_u32).map(u64::from).collect());
    let (Some(&[rows, cols]), Some(block)) = (shape.as_deref(), whole("blocksize")) else {
        return Err(module.wrong("a quant_state with shape and blocksize", "another"));
    };
    let blocks = (rows * cols).div_ceil(block);
    let codes = module.piece("weight")?.clone();
    if codes.format != FormatId::U8 || codes.extent.len != (rows * cols).div_ceil(2) {
        let found = format!("{} {:?}", codes.format, codes.shape);
        return Err(module.wrong(&format!(".weight: u8 nibbles of [{rows}, {cols}]"), found));
    }
    module.expect("weight.quant_map", &[16])?;
    module.expect("weight.absmax", &[blocks])?;
    let absmax = module.piece("weight.absmax")?.clone();
    let scales = match absmax.format {
        FormatId::F32 => Scales::Plain(absmax),
        FormatId::U8 => {
            let (Some(of), Some(offset)) = (whole("nested_blocksize"), number("nested_offset"))
            else {
                return Err(module.wrong("nested_blocksize and nested_offset", "neither"));
            };
            module.expect("weight.nested_quant_map", &[256])?;
            module.expect("weight.nested_absmax", &[blocks.div_ceil(of)])?;
            Scales::Nested(Box::new(Nested {
                codes: absmax,
                map: floats(module, "weight.nested_quant_map")?,
                absmax: floats(module, "weight.nested_absmax")?,
                block: of,
                offset: offset as f32,
            }))
        }
        other => return Err(module.wrong(".weight.absmax: f32 or u8", other)),
    };
    let map = floats(module, "weight.quant_map")?;
    let values = bytes(to.files, &map)?;
    let map = std::array::from_fn(|i| float(FormatId::F32, values, i));
    let whole = cols.is_multiple_of(64) && block.is_multiple_of(64);
    let format = match map.map(f32::to_bits) {
        map if whole && map == NF4_VALUES.map(f32::to_bits) => FormatId::NF4_64,
        map if whole && map == FP4_VALUES.map(f32::to_bits) => FormatId::FP4_64,
        _ => FormatId::F32,
    };
    let lookup = Lookup { codes, cols, block, scales, map, format };
    to.push(module, format, [rows, cols], Assembled::Lookup(lookup))
}

fn floats(module: &Module<'_>, end: &str) -> Result<TensorInfo, LoadError> {
    let piece = module.piece(end)?;
    match piece.format {
        FormatId::F32 => Ok(piece.clone()),
        other => Err(module.wrong(&format!(".{end}: f32"), other)),
    }
}

impl Lookup {
    /// Writes `rows` to `out`.
    pub fn read(
        &self,
        files: &[MappedFile],
        rows: Range<u64>,
        out: &mut [u8],
    ) -> Result<(), LoadError> {
        let codes = bytes(files, &self.codes)?;
        let scale = self.scale(files)?;
        let scale = |element: usize| scale(element / self.block as usize);
        let first = (rows.start * self.cols) as usize;
        if self.format == FormatId::F32 {
            for (i, out) in (first..).zip(out.as_chunks_mut::<4>().0) {
                let code = codes[i / 2] >> (4 * (1 - i % 2)) & 15;
                *out = (self.map[usize::from(code)] * scale(i)).to_le_bytes();
            }
            return Ok(());
        }
        for (b, block) in out.as_chunks_mut::<36>().0.iter_mut().enumerate() {
            let i = first + 64 * b;
            block[..4].copy_from_slice(&scale(i).to_le_bytes());
            // The even element comes into the low nibble.
            for (to, pair) in block[4..].iter_mut().zip(&codes[i / 2..]) {
                *to = pair.rotate_left(4);
            }
        }
        Ok(())
    }

    /// The scale of a block of elements.
    fn scale<'a>(
        &self,
        files: &'a [MappedFile],
    ) -> Result<Box<dyn Fn(usize) -> f32 + 'a>, LoadError> {
        Ok(match &self.scales {
            Scales::Plain(t) => {
                let all = bytes(files, t)?;
                Box::new(move |b| float(FormatId::F32, all, b))
            }
            Scales::Nested(n) => {
                let (codes, map) = (bytes(files, &n.codes)?, bytes(files, &n.map)?);
                let (absmax, block, offset) =
                    (bytes(files, &n.absmax)?, n.block as usize, n.offset);
                Box::new(move |b| {
                    let value = float(FormatId::F32, map, usize::from(codes[b]));
                    value * float(FormatId::F32, absmax, b / block) + offset
                })
            }
        })
    }
}
