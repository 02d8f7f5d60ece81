//! Buffers as ops read them.

/// A column range of a buffer, row by row.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub data: &'a [f32],
    pub stride: usize,
    pub start: usize,
    pub cols: usize,
}

impl<'a> Rows<'a> {
    /// Whole rows of `cols`.
    pub fn of(data: &'a [f32], cols: usize) -> Self {
        Self { data, stride: cols, start: 0, cols }
    }

    pub fn count(&self) -> usize {
        self.data.len() / self.stride
    }

    pub fn row(&self, r: usize) -> &'a [f32] {
        &self.data[r * self.stride + self.start..][..self.cols]
    }
}
