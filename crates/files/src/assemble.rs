//! Tensors that a checkpoint keeps in several pieces, presented as one stored format.
//!
//! gpt-oss in safetensors keeps MXFP4 experts as `<name>_blocks` (u8 `[experts, out, cols/32,
//! 16]`, low nibble = even element) and `<name>_scales` (u8 `[experts, out, cols/32]`, e8m0).
//! The assembled tensor is `<name>`, mxfp4 `[experts, out, cols]`, in GGUF's block order: the
//! same nibbles and scale bytes, so nothing is lost.

use std::collections::HashMap;
use std::path::Path;

use tokenmill_ir::{Extent, TensorInfo};
use tokenmill_quant::FormatId;

use crate::error::{LoadError, shorten};
use crate::shape::stored_bytes;

/// Bytes of 32 codes in the `_blocks` piece.
pub(crate) const PIECE_BLOCK_BYTES: usize = 16;
/// Bytes of an mxfp4 block: scale and codes.
pub(crate) const BLOCK_BYTES: usize = 17;

/// Where the pieces of one assembled mxfp4 tensor lie.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mxfp4Pieces {
    /// 16 bytes per block.
    pub(crate) codes: Extent,
    /// One byte per block.
    pub(crate) scales: Extent,
}

/// Replaces every pair `<name>_blocks`, `<name>_scales` by an assembled tensor `<name>`, whose
/// `extent.file` is `first_index` and upwards, in the order of the returned pieces.
pub(crate) fn assemble_mxfp4(
    path: &Path,
    tensors: Vec<TensorInfo>,
    first_index: u32,
) -> Result<(Vec<TensorInfo>, Vec<Mxfp4Pieces>), LoadError> {
    let mut scales: HashMap<String, TensorInfo> = HashMap::new();
    let mut rest = Vec::with_capacity(tensors.len());
    let has_blocks: std::collections::HashSet<String> =
        tensors.iter().filter_map(|t| t.name.strip_suffix("_blocks")).map(str::to_owned).collect();
    for tensor in tensors {
        match tensor.name.strip_suffix("_scales") {
            Some(stem) if has_blocks.contains(stem) => {
                scales.insert(stem.to_owned(), tensor);
            }
            _ => rest.push(tensor),
        }
    }
    let mut pieces = Vec::new();
    for tensor in &mut rest {
        let Some(stem) = tensor.name.strip_suffix("_blocks") else { continue };
        let Some(scale) = scales.get(stem) else { continue };
        let shape = assembled_shape(path, tensor, scale)?;
        let Some(len) = stored_bytes(FormatId::MXFP4, &shape) else { continue };
        let name = stem.to_owned();
        let file = first_index + pieces.len() as u32;
        pieces.push(Mxfp4Pieces { codes: tensor.extent, scales: scale.extent });
        let extent = Extent { file, offset: 0, len };
        *tensor = TensorInfo { name, format: FormatId::MXFP4, shape, extent, order: None };
    }
    Ok((rest, pieces))
}

/// `[.., cols/32, 16]` and `[.., cols/32]` → `[.., cols]`.
fn assembled_shape(
    path: &Path,
    blocks: &TensorInfo,
    scales: &TensorInfo,
) -> Result<Vec<u64>, LoadError> {
    let place = || shorten(format!("tensor '{}'", blocks.name));
    let wrong = |expected: &str, found: &TensorInfo| {
        let found = format!("{} {:?} in '{}'", found.format, found.shape, found.name);
        Err(LoadError::invalid(path, place(), expected, found))
    };
    let Some((&16, outer)) = blocks.shape.split_last() else {
        return wrong("u8 blocks of 16 bytes", blocks);
    };
    if blocks.format != FormatId::U8 {
        return wrong("u8 blocks of 16 bytes", blocks);
    }
    if scales.format != FormatId::U8 || scales.shape != outer {
        return wrong("one u8 scale per block", scales);
    }
    let mut shape = outer.to_vec();
    let cols = shape.last_mut().and_then(|groups| {
        *groups = groups.checked_mul(32)?;
        Some(*groups)
    });
    match cols {
        Some(cols) if cols > 0 && shape.len() >= 2 => Ok(shape),
        _ => wrong("blocks of a matrix", blocks),
    }
}

/// Interleaves `codes` (16 bytes a block) and `scales` (1 byte a block) to `out` (17 bytes a
/// block), re-ordering the nibbles from even/odd neighbours to halves of 16.
pub(crate) fn interleave_mxfp4(codes: &[u8], scales: &[u8], out: &mut [u8]) {
    let (codes, _) = codes.as_chunks::<PIECE_BLOCK_BYTES>();
    let (blocks, _) = out.as_chunks_mut::<BLOCK_BYTES>();
    assert!(codes.len() == scales.len() && blocks.len() == scales.len(), "block count");
    for ((block, codes), &scale) in blocks.iter_mut().zip(codes).zip(scales) {
        let code = |i: usize| (codes[i / 2] >> (4 * (i % 2))) & 15;
        block[0] = scale;
        for j in 0..16 {
            block[1 + j] = code(j) | (code(j + 16) << 4);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, format: FormatId, shape: &[u64]) -> TensorInfo {
        let len = stored_bytes(format, shape).unwrap();
        let extent = Extent { file: 0, offset: 0, len };
        TensorInfo { name: name.to_owned(), format, shape: shape.to_vec(), extent, order: None }
    }

    #[test]
    fn interleaving_keeps_every_value() {
        // The definition of the pieces: element 2i is the low nibble of byte i, 2i + 1 the high.
        const VALUES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let codes: Vec<u8> = (0..48).map(|i: u32| (i * 37 + 11) as u8).collect();
        let scales = [127, 120, 130];
        let mut expect = Vec::new();
        for (block, &scale) in codes.chunks(16).zip(&scales) {
            for &byte in block {
                for code in [byte & 15, byte >> 4] {
                    let sign = if code & 8 != 0 { -1.0 } else { 1.0 };
                    expect.push(
                        sign * VALUES[usize::from(code & 7)] * 2f32.powi(i32::from(scale) - 127),
                    );
                }
            }
        }
        let mut out = [0; 51];
        interleave_mxfp4(&codes, &scales, &mut out);
        let mut got = [0.0; 96];
        FormatId::MXFP4.decode_row(&out, &mut got);
        assert_eq!(got.as_slice(), expect);
    }

    #[test]
    fn pairs_become_one_tensor_and_the_rest_stays() {
        let tensors = vec![
            tensor("a.gate_up_proj_scales", FormatId::U8, &[4, 6, 3]),
            tensor("a.gate_up_proj_blocks", FormatId::U8, &[4, 6, 3, 16]),
            tensor("a.gate_up_proj_bias", FormatId::BF16, &[4, 6]),
            tensor("b_scales", FormatId::F32, &[7]),
        ];
        let (tensors, pieces) = assemble_mxfp4(Path::new("m"), tensors, 5).unwrap();
        let names: Vec<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["a.gate_up_proj", "a.gate_up_proj_bias", "b_scales"]);
        assert_eq!(tensors[0].shape, [4, 6, 96]);
        assert_eq!(tensors[0].extent, Extent { file: 5, offset: 0, len: 4 * 6 * 3 * 17 });
        assert_eq!((pieces[0].codes.len, pieces[0].scales.len), (4 * 6 * 3 * 16, 4 * 6 * 3));
    }

    #[test]
    fn pieces_that_do_not_fit_are_refused() {
        for (blocks, scales) in [
            (
                tensor("x_blocks", FormatId::U8, &[4, 3, 8]),
                tensor("x_scales", FormatId::U8, &[4, 3]),
            ),
            (
                tensor("x_blocks", FormatId::I8, &[4, 3, 16]),
                tensor("x_scales", FormatId::U8, &[4, 3]),
            ),
            (
                tensor("x_blocks", FormatId::U8, &[4, 3, 16]),
                tensor("x_scales", FormatId::U8, &[4, 2]),
            ),
            (
                tensor("x_blocks", FormatId::U8, &[4, 3, 16]),
                tensor("x_scales", FormatId::F32, &[4, 3]),
            ),
            (tensor("x_blocks", FormatId::U8, &[3, 16]), tensor("x_scales", FormatId::U8, &[3])),
            (
                tensor("x_blocks", FormatId::U8, &[4, 0, 16]),
                tensor("x_scales", FormatId::U8, &[4, 0]),
            ),
        ] {
            let shapes = format!("{blocks:?} {scales:?}");
            let result = assemble_mxfp4(Path::new("m"), vec![blocks, scales], 1);
            assert!(matches!(result, Err(LoadError::Invalid { .. })), "{shapes}");
        }
    }
}
