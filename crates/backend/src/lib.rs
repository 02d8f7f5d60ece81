//! The device seam: what a device must be able to do, and the plain reference device.
//!
//! A device sees whole programs and whole steps; two virtual calls a step cost nothing. What it
//! lacks is a typed [`DeviceError::Unsupported`], never a wrong answer.

pub mod batch_check;
pub mod reference;
pub mod stored;
mod weights;

use std::ops::ControlFlow;
use std::time::Duration;

use thiserror::Error;
use tokenmill_ir::{
    Batch, BlockId, BufferSpec, DeviceCaps, Limits, Mode, Program, Rows, SourceError, StepOutput,
    WeightSource,
};
pub use weights::{Owner, Weights};

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
    /// An upload ended because whoever watched it ended it.
    #[error("cancelled")]
    Cancelled,
    /// The step failed; its executable must be compiled again. Weights are as they were.
    #[error("{device} failed: {reason}")]
    Failed {
        /// Device name.
        device: String,
        /// What happened.
        reason: String,
    },
    /// The device failed and forgot everything: executables and [`Weights`] are to be made again.
    #[error("{device} was lost: {reason}")]
    Lost {
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

/// Hears how many weights of a program are there, and ends the upload by `Break`.
pub type Watch<'a> = &'a mut dyn FnMut(usize) -> ControlFlow<()>;

/// A device: memory and a compiler of programs. All models on it share it.
pub trait Device: Send + Sync {
    /// What the device is.
    fn caps(&self) -> &DeviceCaps;

    /// Brings a program's weights into the device's memory and layout, pulling rows from `source`
    /// on the device's own threads. Steps of other programs go on in between.
    ///
    /// # Errors
    /// [`DeviceError::Cancelled`] where `watch` broke off: nothing is held then.
    fn upload(
        &self,
        program: &Program,
        source: &dyn WeightSource,
        mode: Mode,
        watch: Watch<'_>,
    ) -> Result<Weights, DeviceError>;

    /// What [`upload`](Self::upload) and [`compile`](Self::compile) will take, from the shapes
    /// alone.
    fn footprint(
        &self,
        program: &Program,
        limits: &Limits,
        mode: Mode,
    ) -> Result<Footprint, DeviceError>;

    /// Prepares a program with its uploaded weights, in their mode. Room for caches and scratch is
    /// taken here, once, from `limits`.
    fn compile(
        &self,
        program: &Program,
        weights: &Weights,
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
    /// Hands a step over: the content of `batch`, which holds anything afterwards. At most one step
    /// is in flight.
    ///
    /// # Errors
    /// [`DeviceError::BadBatch`], and `batch` and everything else is as before.
    fn submit(&mut self, batch: &mut Batch) -> Result<(), DeviceError>;

    /// Whether a submitted step runs by itself while its host does something else; where not, it
    /// runs on the thread that advances it or waits.
    fn runs_alone(&self) -> bool {
        false
    }

    /// Lets the step in flight go on for about that long (to the next point where its workers
    /// meet); true when nothing of it is left but [`wait`](Self::wait).
    ///
    /// # Errors
    /// What went wrong on the device.
    fn advance(&mut self, at_most: Duration) -> Result<bool, DeviceError>;

    /// Completes the submitted step and fills `out` (cleared first).
    ///
    /// # Errors
    /// What went wrong on the device; no step was submitted.
    fn wait(&mut self, out: &mut StepOutput) -> Result<(), DeviceError>;

    /// Backs the first so many blocks of each cache group by memory from now on, at most those of
    /// its limits; what lies above is forgotten, and its memory is the system's again. Not while a
    /// step is in flight.
    ///
    /// # Errors
    /// [`DeviceError::BadBatch`]: other groups, or more blocks; `Unsupported`, `OutOfMemory`.
    fn resize(&mut self, blocks: &[u32]) -> Result<(), DeviceError>;

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
