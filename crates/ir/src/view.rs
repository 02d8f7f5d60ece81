//! What ops name: buffers and columns of them, caches, rotations.

/// Index into [`Program::buffers`](crate::Program::buffers).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// Index into [`Program::caches`](crate::Program::caches).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheId(pub u32);

/// Index into [`Program::ropes`](crate::Program::ropes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RopeId(pub u32);

/// How many rows a buffer has in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// One a token.
    Tokens,
    /// One an output row.
    Outputs,
}

/// A buffer of f32: `rows × cols`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferSpec {
    /// Rows.
    pub rows: Rows,
    /// Columns.
    pub cols: u32,
}

/// A column range of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// Buffer.
    pub buffer: BufferId,
    /// First column.
    pub start: u32,
    /// Columns.
    pub cols: u32,
}
