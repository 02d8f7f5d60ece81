//! The devices that a model can run on; beside the command line's, the only file that names a device crate.

use std::sync::Arc;

use thiserror::Error;
use tokenmill_backend::DeviceError;
use tokenmill_backend::reference::ReferenceDevice;
use tokenmill_cpu::isa::Isa;
use tokenmill_cpu::{CpuDevice, CpuOptions};
use tokenmill_cuda::CudaDevice;

use crate::memory;

/// Tokens in a cache block of the reference device.
const REFERENCE_BLOCK_TOKENS: u32 = 32;
/// The GPU that is meant by [`Device::Cuda`]: the first of those that CUDA_VISIBLE_DEVICES leaves.
pub const FIRST_GPU: u32 = 0;
/// Memory of a GPU that the driver keeps for itself as kernels run, bytes.
const GPU_SLACK: u64 = 512 << 20;

/// What a model runs on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Device {
    /// This machine's cores.
    #[default]
    Cpu,
    /// The first NVIDIA GPU that may be used; needs a build with kernels (`cargo xtask cubins`).
    Cuda,
    /// Plain loops: the truth by tolerance, and slow.
    Reference,
}

/// Why a device cannot be used.
#[derive(Debug, Error)]
pub enum NotOpened {
    /// `TOKENMILL_ISA` names no set of instructions.
    #[error("TOKENMILL_ISA={name} is unknown; known: {known}")]
    Isa {
        /// What it says.
        name: String,
        /// What it may say.
        known: String,
    },
    /// The processor.
    #[error("cannot open the CPU device: {0}")]
    Cpu(DeviceError),
    /// The GPU.
    #[error("cannot use a GPU: {0}")]
    Cuda(String),
}

impl Device {
    /// Opens it; of a CPU so many threads work.
    ///
    /// # Errors
    /// [`NotOpened`].
    pub fn open(self, threads: usize) -> Result<Arc<dyn tokenmill_backend::Device>, NotOpened> {
        match self {
            Self::Cpu => cpu(threads),
            Self::Cuda => {
                let cannot = |error| NotOpened::Cuda(format!("{error}"));
                Ok(Arc::new(CudaDevice::open(FIRST_GPU).map_err(cannot)?))
            }
            Self::Reference => Ok(Arc::new(ReferenceDevice::new(REFERENCE_BLOCK_TOKENS))),
        }
    }

    /// Memory that a model on it may take where nothing is asked for, bytes.
    pub fn available_bytes(self, opened: &dyn tokenmill_backend::Device) -> u64 {
        match self {
            Self::Cuda => opened.caps().memory_bytes.saturating_sub(GPU_SLACK),
            Self::Cpu | Self::Reference => memory::available_bytes(),
        }
    }
}

/// The processor with so many threads, by the instructions that `TOKENMILL_ISA` names or the best it has.
fn cpu(threads: usize) -> Result<Arc<dyn tokenmill_backend::Device>, NotOpened> {
    let device = CpuDevice::new(CpuOptions { isa: forced_isa()?, threads });
    Ok(Arc::new(device.map_err(NotOpened::Cpu)?))
}

/// `TOKENMILL_ISA`, if set.
fn forced_isa() -> Result<Option<Isa>, NotOpened> {
    let Ok(name) = std::env::var("TOKENMILL_ISA") else { return Ok(None) };
    let known: Vec<&str> = Isa::ALL.iter().map(|isa| isa.name()).collect();
    let isa = Isa::from_name(&name);
    isa.map(Some).ok_or_else(|| NotOpened::Isa { name, known: known.join(", ") })
}

/// Cores this process may use. Threads wait for each other in every operation, so that one without a
/// core holds up all.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}
