//! The CPU device: kernels, the thread pool that runs them, and the memory they read.
#![allow(unsafe_code)]

pub mod isa;
pub mod linear;
pub mod math;
pub mod memory;
pub mod pool;
