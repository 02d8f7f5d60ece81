//! A driver that runs the kernels of crates/cuda on this machine: built as plain C++ (kernels/host.h), loaded, and launched on
//! memory of this process.
#![allow(unsafe_code)]

pub mod attention;
mod build;
pub mod checks;
mod emulated;
pub mod products;
pub mod sampled;

pub use build::{Fault, Kernels};
pub use emulated::Emulated;

use std::sync::Arc;

use tokenmill_cuda::CudaDevice;

/// A device of the kernels as they are; `None`, which is said, where there is no C++ compiler.
pub fn device(block_tokens: u32) -> Option<CudaDevice> {
    Some(CudaDevice::new(Arc::new(Emulated::new(Kernels::plain()?)), block_tokens))
}
