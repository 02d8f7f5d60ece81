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
    Batch, DeviceCaps, Limits, Program, SourceError, StepOutput, WeightSource, WeightSpec,
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

    /// How often its workers wait for each other in a step of that many tokens and outputs;
    /// `None` where a device has no such thing.
    fn barriers(&self, tokens: u32, outputs: u32) -> Option<u32> {
        let _ = (tokens, outputs);
        None
    }
}
