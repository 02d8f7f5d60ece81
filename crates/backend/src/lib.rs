//! The device seam: what a device must be able to do, the plain reference device, and the suite every
//! device passes.
//!
//! A device sees whole programs and whole steps; two virtual calls a step cost nothing. What it
//! lacks is a typed [`DeviceError::Unsupported`], never a wrong answer.

pub mod batch_check;
pub mod conformance;
pub mod reference;
pub mod sim;
pub mod stored;
pub mod trace;

use thiserror::Error;
use tokenmill_ir::{
    Batch, BufferSpec, DeviceCaps, Limits, Program, Rows, SourceError, StepOutput, WeightSource,
    WeightSpec,
};

/// A weight a device holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WeightHandle(pub u32);

/// What can go wrong on a device.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device has no kernel for this.
    #[error("{device} does not support {what}")]
    Unsupported {
        /// Device name.
        device: String,
        /// Op, format or shape.
        what: String,
    },
    /// Memory ran out.
    #[error("{device}: cannot allocate {needed_bytes} bytes for {what}")]
    OutOfMemory {
        /// Device name.
        device: String,
        /// What for.
        what: String,
        /// How much.
        needed_bytes: u64,
    },
    /// Bytes of a weight could not be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The batch does not fit the limits or the program it was compiled for.
    #[error("bad batch: {0}")]
    BadBatch(String),
    /// The device failed; its executable must be rebuilt.
    #[error("{device} failed: {reason}")]
    Failed {
        /// Device name.
        device: String,
        /// What happened.
        reason: String,
    },
}

/// Memory a program takes on a device, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Weights, in the device's layout.
    pub weight_bytes: u64,
    /// Caches, every block in use.
    pub cache_bytes: u64,
    /// Buffers of the largest step, and scratch memory.
    pub buffer_bytes: u64,
}

impl Footprint {
    /// The caches alone, numbers packed as their format says, and the buffers as plain f32.
    pub fn of_caches(program: &Program, limits: &Limits, block_tokens: u32) -> Self {
        let blocks = (0u32..).zip(&limits.group_blocks);
        let rows = |rows: Rows| match rows {
            Rows::Tokens => limits.step_tokens,
            Rows::Outputs => limits.outputs,
        };
        let buffer = |b: &BufferSpec| u64::from(rows(b.rows)) * u64::from(b.cols) * 4;
        Self {
            weight_bytes: 0,
            cache_bytes: blocks
                .map(|(g, &n)| program.block_bytes(g, block_tokens) * u64::from(n))
                .sum(),
            buffer_bytes: program.buffers.iter().map(buffer).sum(),
        }
    }
}

/// A device: memory and a compiler of programs.
pub trait Backend: Send {
    /// What the device is.
    fn caps(&self) -> &DeviceCaps;

    /// Brings a weight into the device's memory and layout, pulling rows from `source` on the
    /// device's own threads.
    fn upload(
        &mut self,
        spec: &WeightSpec,
        source: &dyn WeightSource,
    ) -> Result<WeightHandle, DeviceError>;

    /// Gives a weight's memory back.
    fn free(&mut self, weight: WeightHandle);

    /// What [`upload`](Self::upload) of all weights and [`compile`](Self::compile) will take, from
    /// the shapes alone.
    fn footprint(&self, program: &Program, limits: &Limits) -> Result<Footprint, DeviceError>;

    /// Prepares a program: `weights[i]` is the upload of `program.weights[i]`. Caches and scratch
    /// are allocated here, once, from `limits`.
    fn compile(
        &mut self,
        program: &Program,
        weights: &[WeightHandle],
        limits: &Limits,
    ) -> Result<Box<dyn Executable>, DeviceError>;
}

/// A compiled program with its caches.
pub trait Executable: Send {
    /// Hands a step over. At most one step is in flight.
    fn submit(&mut self, batch: &Batch) -> Result<(), DeviceError>;

    /// Completes the submitted step and fills `out` (cleared first).
    fn wait(&mut self, out: &mut StepOutput) -> Result<(), DeviceError>;

    /// Reads a buffer of the last step, row after row, for tracing; `None` where the device did
    /// not keep it.
    fn buffer(&self, buffer: tokenmill_ir::BufferId) -> Option<Vec<f32>> {
        let _ = buffer;
        None
    }
}
