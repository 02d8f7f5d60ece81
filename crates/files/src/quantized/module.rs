//! The pieces of a quantised module, found by the ends of their names.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use tokenmill_ir::{Extent, TensorInfo};
use tokenmill_quant::FormatId;

use super::Assembled;
use crate::error::{LoadError, shorten};
use crate::mmap::MappedFile;
use crate::shape::stored_bytes;

/// A checkpoint being assembled.
pub(super) struct Assembly<'a> {
    pub path: &'a Path,
    pub files: &'a [MappedFile],
    pub tensors: Vec<TensorInfo>,
    pub assembled: Vec<Assembled>,
}

/// One module: `<stem>.<end of name>` → tensor.
pub(super) struct Module<'a> {
    path: &'a Path,
    pub stem: String,
    pieces: HashMap<&'static str, TensorInfo>,
}

impl<'a> Assembly<'a> {
    pub fn new(path: &'a Path, files: &'a [MappedFile], tensors: Vec<TensorInfo>) -> Self {
        Assembly { path, files, tensors, assembled: Vec::new() }
    }

    /// Takes the tensors `<stem>.<end>` of every stem that has one with the end `mark`.
    pub fn take(&mut self, mark: &str, ends: &[&'static str]) -> Vec<Module<'a>> {
        let split = |name: &'_ str, end: &str| -> Option<String> {
            Some(name.strip_suffix(end)?.strip_suffix('.')?.to_owned())
        };
        let marked: HashSet<String> =
            self.tensors.iter().filter_map(|t| split(&t.name, mark)).collect();
        let mut modules: Vec<Module<'a>> = Vec::new();
        let mut index: HashMap<String, usize> = HashMap::new();
        let mut rest = Vec::new();
        for tensor in std::mem::take(&mut self.tensors) {
            let found = ends.iter().find_map(|end| {
                let stem = split(&tensor.name, end)?;
                marked.contains(&stem).then_some((stem, *end))
            });
            let Some((stem, end)) = found else {
                rest.push(tensor);
                continue;
            };
            let at = *index.entry(stem.clone()).or_insert_with(|| {
                modules.push(Module { path: self.path, stem, pieces: HashMap::new() });
                modules.len() - 1
            });
            modules[at].pieces.insert(end, tensor);
        }
        self.tensors = rest;
        modules
    }

    /// Drops tensors that say how activations or caches were quantised elsewhere: both are
    /// encoded in ways of their own here.
    pub fn drop_activation_scales(&mut self) {
        // (Experts that are one tensor have `gate_up_proj_activation_scale`.)
        const ENDS: [&str; 9] = [
            "activation_scale",
            ".input_scale",
            "_proj_input_scale",
            ".output_scale",
            ".k_scale",
            ".v_scale",
            ".q_scale",
            ".prob_scale",
            ".input_global_scale",
        ];
        self.tensors.retain(|t| !ENDS.iter().any(|end| t.name.ends_with(end)));
    }

    /// Adds `<stem>.weight`, a matrix put together on reading.
    pub fn push(
        &mut self,
        module: &Module<'_>,
        format: FormatId,
        shape: [u64; 2],
        assembled: Assembled,
    ) -> Result<(), LoadError> {
        let name = format!("{}.weight", module.stem);
        let Some(len) = stored_bytes(format, &shape).filter(|_| shape[0] > 0 && shape[1] > 0)
        else {
            return Err(module.wrong("a matrix that fits", format!("{format} {shape:?}")));
        };
        let file = (self.files.len() + self.assembled.len()) as u32;
        let extent = Extent { file, offset: 0, len };
        let order = match &assembled {
            Assembled::Affine(affine) => affine.order.clone(),
            _ => None,
        };
        self.tensors.push(TensorInfo { name, format, shape: shape.to_vec(), extent, order });
        self.assembled.push(assembled);
        Ok(())
    }
}

impl Module<'_> {
    /// A piece that must be there.
    pub fn piece(&self, end: &str) -> Result<&TensorInfo, LoadError> {
        self.pieces.get(end).ok_or_else(|| self.wrong(&format!("a tensor .{end}"), "none"))
    }

    /// A piece, if it is there.
    pub fn opt(&self, end: &str) -> Option<&TensorInfo> {
        self.pieces.get(end)
    }

    /// A piece of one of these formats and a shape of two axes.
    pub fn matrix(&self, end: &str, formats: &[FormatId]) -> Result<(u64, u64), LoadError> {
        let piece = self.piece(end)?;
        match piece.shape.as_slice() {
            // Bounded, so that products of axes and bits cannot overflow.
            &[rows @ 1..=0xffff_ffff, cols @ 1..=0xffff_ffff]
                if formats.contains(&piece.format) =>
            {
                Ok((rows, cols))
            }
            _ => {
                let names: Vec<&str> = formats.iter().map(|f| f.name()).collect();
                let found = format!("{} {:?}", piece.format, piece.shape);
                Err(self.wrong(&format!(".{end}: {} of two axes", names.join(" or ")), found))
            }
        }
    }

    /// Checks a shape that follows from others.
    pub fn expect(&self, end: &str, shape: &[u64]) -> Result<(), LoadError> {
        let piece = self.piece(end)?;
        if piece.shape == shape {
            return Ok(());
        }
        Err(self.wrong(&format!(".{end} {shape:?}"), format!("{:?}", piece.shape)))
    }

    /// The pieces do not fit.
    pub fn wrong(&self, expected: &str, found: impl ToString) -> LoadError {
        let place = shorten(format!("module '{}'", self.stem));
        LoadError::invalid(self.path, place, expected, found)
    }
}

/// The bytes of a piece in its mapped file.
pub(super) fn bytes<'a>(files: &'a [MappedFile], t: &TensorInfo) -> Result<&'a [u8], LoadError> {
    let (start, len) = (t.extent.offset as usize, t.extent.len as usize);
    let file = files.get(t.extent.file as usize).map(MappedFile::bytes);
    let error = || LoadError::Rows { tensor: t.name.clone(), reason: "not in its file".into() };
    file.and_then(|bytes| bytes.get(start..start.checked_add(len)?)).ok_or_else(error)
}

/// Number `i` of a piece of plain floats.
pub(super) fn float(format: FormatId, bytes: &[u8], i: usize) -> f32 {
    let size = format.info().block_bytes;
    let mut value = [0.0];
    format.decode_row(&bytes[i * size..][..size], &mut value);
    value[0]
}

/// The one number of a piece.
pub(super) fn scalar(files: &[MappedFile], t: &TensorInfo) -> Result<f32, LoadError> {
    let bytes = bytes(files, t)?;
    if t.shape.iter().any(|&d| d != 1) || t.format.info().block_weights != 1 {
        let reason = format!("{} {:?} where one number is expected", t.format, t.shape);
        return Err(LoadError::Rows { tensor: t.name.clone(), reason });
    }
    Ok(float(t.format, bytes, 0))
}

/// Word `i` of a piece.
pub(super) fn word(bytes: &[u8], i: usize) -> u32 {
    let at = 4 * i;
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_of_activations_go_and_those_of_weights_stay() {
        let names = |all: &str| all.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let gone = names(
            "a.q_proj.activation_scale a.q_proj.input_scale a.q_proj.input_activation_scale
             experts.gate_up_proj_activation_scale experts.down_proj_activation_scale
             experts.down_proj_input_scale a.self_attn.k_scale a.q_proj.input_global_scale",
        );
        let stay = names(
            "a.q_proj.weight a.q_proj.weight_scale a.q_proj.weight_scale_inv router.scale
             experts.gate_up_proj_scale router.per_expert_scale a.weight_global_scale",
        );
        let tensor = |name: &String| TensorInfo {
            name: name.clone(),
            format: FormatId::F32,
            shape: vec![1],
            extent: Extent { file: 0, offset: 0, len: 4 },
            order: None,
        };
        let all = gone.iter().chain(&stay).map(tensor).collect();
        let mut to = Assembly::new(Path::new("m"), &[], all);
        to.drop_activation_scales();
        let left: Vec<String> = to.tensors.into_iter().map(|t| t.name).collect();
        assert_eq!(left, stay);
    }
}
