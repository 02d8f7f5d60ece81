//! The bytes of a model's tensors: mapped files, and tensors assembled from pieces of them.

use std::ops::Range;
use std::sync::Arc;

use tokenmill_ir::{Extent, SourceError, TensorInfo, WeightSource};

use crate::assemble::{BLOCK_BYTES, Mxfp4Pieces, PIECE_BLOCK_BYTES, interleave_mxfp4};
use crate::error::LoadError;
use crate::mmap::MappedFile;
use crate::open::OpenModel;
use crate::quantized::Assembled;

/// Blocks that are assembled at a time: two small buffers, whatever the tensor.
const ASSEMBLE_BLOCKS: u64 = 4096;

/// Where the bytes of a checkpoint's tensors come from. `extent.file` counts the mapped files
/// first, then the assembled tensors.
#[derive(Debug)]
pub struct ModelData {
    files: Vec<MappedFile>,
    assembled: Arc<Vec<Assembled>>,
}

impl ModelData {
    pub(crate) fn new(files: Vec<MappedFile>, assembled: Arc<Vec<Assembled>>) -> Self {
        ModelData { files, assembled }
    }

    pub(crate) fn assembled(&self) -> Arc<Vec<Assembled>> {
        Arc::clone(&self.assembled)
    }

    /// The mapped files, in the order that `extent.file` counts.
    pub fn files(&self) -> &[MappedFile] {
        &self.files
    }

    /// All bytes of a tensor as they lie in its file.
    ///
    /// # Errors
    /// [`LoadError::Rows`] if the tensor is assembled from pieces (read its rows instead) or is
    /// not of this checkpoint.
    pub fn tensor_bytes(&self, tensor: &TensorInfo) -> Result<&[u8], LoadError> {
        self.mapped(tensor.extent).ok_or_else(|| {
            rows_error(tensor, "not one run of bytes in a file; its rows can be read")
        })
    }

    /// Stored rows `rows` (outer axes flattened) without a copy; `None` if they are out of
    /// range or assembled from pieces.
    pub fn rows(&self, tensor: &TensorInfo, rows: Range<u64>) -> Option<&[u8]> {
        let bytes = self.mapped(tensor.extent)?;
        let range = row_range(tensor, &rows)?;
        bytes.get(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?)
    }

    /// Copies stored rows `rows` (outer axes flattened) to `out`, with ordinary reads: a file
    /// that has shrunk since it was opened is an error.
    ///
    /// # Errors
    /// [`LoadError::Rows`] if the rows are out of range or `out` has another length than they;
    /// [`LoadError::Io`] if reading fails.
    pub fn read_rows(
        &self,
        tensor: &TensorInfo,
        rows: Range<u64>,
        out: &mut [u8],
    ) -> Result<(), LoadError> {
        let range = row_range(tensor, &rows).ok_or_else(|| {
            rows_error(tensor, format!("rows {rows:?} asked of {}", tensor.rows()))
        })?;
        if range.end - range.start != out.len() as u64 {
            let reason = format!("{} bytes of room for {}", out.len(), range.end - range.start);
            return Err(rows_error(tensor, reason));
        }
        let index = tensor.extent.file as usize;
        if let Some(file) = self.files.get(index) {
            return file.read_at(tensor.extent.offset + range.start, out);
        }
        match self.assembled.get(index - self.files.len()) {
            None => Err(rows_error(tensor, "not of this checkpoint")),
            Some(Assembled::Mxfp4(pieces)) => {
                self.read_mxfp4(pieces, range.start / BLOCK_BYTES as u64, out)
            }
            Some(assembled) => assembled.read(&self.files, rows, out),
        }
    }

    /// Assembles `out.len()` bytes from block `first` on.
    fn read_mxfp4(
        &self,
        pieces: &Mxfp4Pieces,
        mut first: u64,
        out: &mut [u8],
    ) -> Result<(), LoadError> {
        let blocks = (out.len() / BLOCK_BYTES).min(ASSEMBLE_BLOCKS as usize);
        let mut codes = vec![0; blocks * PIECE_BLOCK_BYTES];
        let mut scales = vec![0; blocks];
        for out in out.chunks_mut(blocks.max(1) * BLOCK_BYTES) {
            let count = out.len() / BLOCK_BYTES;
            let (codes, scales) = (&mut codes[..count * PIECE_BLOCK_BYTES], &mut scales[..count]);
            self.read_piece(pieces.codes, first * PIECE_BLOCK_BYTES as u64, codes)?;
            self.read_piece(pieces.scales, first, scales)?;
            interleave_mxfp4(codes, scales, out);
            first += count as u64;
        }
        Ok(())
    }

    fn read_piece(&self, piece: Extent, at: u64, out: &mut [u8]) -> Result<(), LoadError> {
        assert!(at + out.len() as u64 <= piece.len, "a piece as long as its tensor");
        self.files[piece.file as usize].read_at(piece.offset + at, out)
    }

    fn mapped(&self, extent: Extent) -> Option<&[u8]> {
        let end = extent.offset.checked_add(extent.len)?;
        let bytes = self.files.get(extent.file as usize)?.bytes();
        bytes.get(usize::try_from(extent.offset).ok()?..usize::try_from(end).ok()?)
    }
}

/// The rows of one expert in a stacked tensor `[experts, out, cols]`, for
/// [`ModelData::read_rows`]; `None` if the tensor is not stacked or has no such expert.
pub fn expert_rows(tensor: &TensorInfo, expert: u64) -> Option<Range<u64>> {
    let &[experts, out, _] = tensor.shape.as_slice() else { return None };
    (expert < experts).then(|| expert * out..(expert + 1) * out)
}

/// Bytes of `rows` from the start of the tensor; `None` if out of range.
fn row_range(tensor: &TensorInfo, rows: &Range<u64>) -> Option<Range<u64>> {
    let row_bytes = tensor.format.row_bytes(tensor.cols())?;
    if rows.start > rows.end || rows.end > tensor.rows() {
        return None;
    }
    let range = rows.start.checked_mul(row_bytes)?..rows.end.checked_mul(row_bytes)?;
    (range.end <= tensor.extent.len).then_some(range)
}

fn rows_error(tensor: &TensorInfo, reason: impl Into<String>) -> LoadError {
    LoadError::Rows { tensor: tensor.name.clone(), reason: reason.into() }
}

impl WeightSource for OpenModel {
    fn read_rows(&self, tensor: &str, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        let error = |reason: String| SourceError { tensor: tensor.to_owned(), reason };
        let info = self.checkpoint.tensor(tensor).ok_or_else(|| error("no such tensor".into()))?;
        self.data.read_rows(info, rows, out).map_err(|e| match e {
            LoadError::Rows { reason, .. } => error(reason),
            other => error(other.to_string()),
        })
    }

    fn rows(&self, tensor: &str, rows: Range<u64>) -> Option<&[u8]> {
        self.data.rows(self.checkpoint.tensor(tensor)?, rows)
    }
}
