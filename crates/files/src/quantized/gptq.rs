//! GPTQ: `.qweight` i32 `[cols·bits/32, rows]`, `.qzeros` i32 `[groups, rows·bits/32]`, `.scales`
//! `[groups, rows]`, `.g_idx` i32 `[cols]`: the group of each column (act-order).
//!
//! w = s·(q − z). Version 1 (`checkpoint_format: gptq`) stores z − 1, version 2 stores z.

use tokenmill_quant::FormatId;

use super::Assembled;
use super::affine::{Affine, Matrix, Order, Packed, Zeros};
use super::config::Gptq;
use super::module::{Assembly, Module, bytes, word};
use crate::error::LoadError;

const SCALES: [FormatId; 3] = [FormatId::F16, FormatId::BF16, FormatId::F32];

pub(super) fn assemble(config: &Gptq, to: &mut Assembly<'_>) -> Result<(), LoadError> {
    for module in to.take("qweight", &["qweight", "qzeros", "scales", "g_idx"]) {
        let (words, rows) = module.matrix("qweight", &[FormatId::I32])?;
        let (groups, _) = module.matrix("scales", &SCALES)?;
        module.expect("scales", &[groups, rows])?;
        let (_, zero_words) = module.matrix("qzeros", &[FormatId::I32])?;
        module.expect("qzeros", &[groups, zero_words])?;
        let bits = [2, 3, 4, 8].into_iter().find(|b| zero_words * 32 == rows * b);
        let Some(bits) = bits.filter(|b| (words * 32).is_multiple_of(*b) && groups > 0) else {
            let found = format!("{words} and {zero_words} words for {rows} rows");
            return Err(module.wrong("2, 3, 4 or 8 bits", found));
        };
        let cols = words * 32 / bits;
        let group = match config.group_size {
            Some(size) if cols.div_ceil(size) == groups => size,
            _ => cols.div_ceil(groups),
        };
        let groups = order(&module, to, cols, group, groups)?;
        let packed = |end: &str, order: Order| -> Result<Packed, LoadError> {
            Ok(Packed { tensor: module.piece(end)?.clone(), bits: bits as u32, order })
        };
        let affine = Affine::new(Matrix {
            cols,
            group,
            codes: packed("qweight", Order::Down)?,
            scales: module.piece("scales")?.clone(),
            scales_by_row: false,
            scale_over: 1.0,
            zeros: Zeros::Packed { fields: packed("qzeros", Order::Across)?, plus: config.plus },
            groups,
        });
        to.push(&module, affine.format, [rows, cols], Assembled::Affine(affine))?;
    }
    Ok(())
}

/// The groups of the columns, if they are not in order.
fn order(
    module: &Module<'_>,
    to: &Assembly<'_>,
    cols: u64,
    group: u64,
    groups: u64,
) -> Result<Option<Vec<u32>>, LoadError> {
    let Some(tensor) = module.opt("g_idx") else { return Ok(None) };
    module.expect("g_idx", &[cols])?;
    if tensor.format != FormatId::I32 {
        return Err(module.wrong(".g_idx: i32", tensor.format));
    }
    let bytes = bytes(to.files, tensor)?;
    let all: Vec<u32> = (0..cols as usize).map(|k| word(bytes, k)).collect();
    if let Some(bad) = all.iter().find(|&&g| u64::from(g) >= groups) {
        return Err(module.wrong(&format!("groups below {groups} in .g_idx"), bad));
    }
    let in_order = all.iter().enumerate().all(|(k, &g)| u64::from(g) == k as u64 / group);
    Ok((!in_order).then_some(all))
}
