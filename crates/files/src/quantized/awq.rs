//! AWQ (GEMM): `.qweight` i32 `[cols, rows/8]`, `.qzeros` i32 `[groups, rows/8]`, `.scales`
//! `[groups, rows]`. 4 bits, eight rows to a word in the order 0, 2, 4, 6, 1, 3, 5, 7.
//!
//! w = s·(q − z).

use tokenmill_quant::FormatId;

use super::Assembled;
use super::affine::{Affine, Matrix, Order, Packed, Zeros};
use super::module::Assembly;
use crate::error::LoadError;

pub(super) fn assemble(to: &mut Assembly<'_>) -> Result<(), LoadError> {
    for module in to.take("qweight", &["qweight", "qzeros", "scales"]) {
        let (cols, words) = module.matrix("qweight", &[FormatId::I32])?;
        let (groups, rows) = module.matrix("scales", &[FormatId::F16, FormatId::BF16])?;
        module.expect("qweight", &[cols, rows.div_ceil(8)])?;
        if !rows.is_multiple_of(8) || groups == 0 || !cols.is_multiple_of(groups) {
            let found = format!("{rows} rows and {groups} groups of {cols} columns");
            return Err(module.wrong("whole words and groups", found));
        }
        let packed = |end: &str| -> Result<Packed, LoadError> {
            Ok(Packed { tensor: module.piece(end)?.clone(), bits: 4, order: Order::Awq })
        };
        let zeros = match module.opt("qzeros") {
            None => Zeros::Constant(8),
            Some(_) => {
                module.matrix("qzeros", &[FormatId::I32])?;
                module.expect("qzeros", &[groups, words])?;
                Zeros::Packed { fields: packed("qzeros")?, plus: 0 }
            }
        };
        let affine = Affine::new(Matrix {
            cols,
            group: cols / groups,
            codes: packed("qweight")?,
            scales: module.piece("scales")?.clone(),
            scales_by_row: false,
            scale_over: 1.0,
            zeros,
            groups: None,
        });
        to.push(&module, affine.format, [rows, cols], Assembled::Affine(affine))?;
    }
    Ok(())
}
