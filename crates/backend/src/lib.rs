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
    Batch, BlockId, BufferSpec, DeviceCaps, Limits, Program, Rows, SourceError, StepOutput,
    WeightSource, WeightSpec,
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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Weights, in the device's layout, in the pages that this touches.
    pub weight_bytes: u64,
    /// A block (a slot for states) of each cache group, all its layers. [groups]
    pub block_bytes: Vec<u64>,
    /// Buffers of the largest step, and scratch memory.
    pub buffer_bytes: u64,
}

impl Footprint {
    /// The caches alone, numbers packed as their format says, and the buffers as plain f32.
    pub fn of_caches(program: &Program, limits: &Limits, block_tokens: u32) -> Self {
        let groups = 0..program.groups().len() as u32;
        let rows = |rows: Rows| match rows {
            Rows::Tokens => limits.step_tokens,
            Rows::Outputs => limits.outputs,
        };
        let buffer = |b: &BufferSpec| u64::from(rows(b.rows)) * u64::from(b.cols) * 4;
        Self {
            weight_bytes: 0,
            block_bytes: groups.map(|g| program.block_bytes(g, block_tokens)).collect(),
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

/// What cache blocks are as bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockBytes {
    /// Everything the bytes depend on besides the program, its weights and the tokens: device
    /// class, numerics version, mode, layout. Executables of equal names understand each other.
    pub layout: String,
    /// Bytes of a block of each cache group, all its layers together.
    pub groups: Vec<usize>,
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

    /// How often its workers wait for each other in a step of that many tokens and outputs;
    /// `None` where a device has no such thing.
    fn barriers(&self, tokens: u32, outputs: u32) -> Option<u32> {
        let _ = (tokens, outputs);
        None
    }
    /// What its cache blocks are as bytes.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`]: blocks cannot be read and written.
    fn blocks(&self) -> Result<BlockBytes, DeviceError> {
        Err(no_blocks())
    }

    /// Copies a block of a group out, all its layers. Not while a step is in flight.
    ///
    /// # Errors
    /// [`DeviceError::BadBatch`] for a group, block or length that is not; `Unsupported`.
    fn read_block(
        &mut self,
        group: usize,
        block: BlockId,
        out: &mut [u8],
    ) -> Result<(), DeviceError> {
        let _ = (group, block, out);
        Err(no_blocks())
    }

    /// Fills a block of a group with what [`read_block`](Self::read_block) gave, here or in an
    /// executable whose [`blocks`](Self::blocks) are equal. Not while a step is in flight.
    ///
    /// # Errors
    /// As `read_block`.
    fn write_block(
        &mut self,
        group: usize,
        block: BlockId,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        let _ = (group, block, bytes);
        Err(no_blocks())
    }
}

fn no_blocks() -> DeviceError {
    let (device, what) = ("this device".into(), "reading and writing cache blocks".into());
    DeviceError::Unsupported { device, what }
}
