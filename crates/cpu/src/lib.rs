//! The CPU device: kernels, the thread pool that runs them, and the memory they read.
#![allow(unsafe_code)]

pub mod attend;
mod caches;
mod compile;
mod exec;
pub mod isa;
pub mod limits;
pub mod linear;
pub mod math;
pub mod memory;
mod ops;
mod plan;
pub mod pool;
mod weight;

use std::sync::{Arc, Mutex, PoisonError};

use tokenmill_backend::{Backend, DeviceError, Executable, Footprint, WeightHandle};
use tokenmill_ir::{DeviceCaps, Limits, Program, WeightSource, WeightSpec};

use isa::Isa;
pub use linear::Mode;
pub use plan::Buffers;
use pool::{Affinity, Pool};
use weight::{Slabs, Weight};

/// The device's name in errors.
const DEVICE: &str = "cpu";

/// Version of `NUMERICS.md` that this device computes by.
pub const NUMERICS_VERSION: u32 = 7;

/// How a CPU device is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// Worker threads, the caller's among them.
    pub threads: usize,
    /// Instruction set; the best of this machine when absent.
    pub isa: Option<Isa>,
    /// Arithmetic of products.
    pub mode: Mode,
    /// What becomes of buffers within a step.
    pub buffers: Buffers,
}

impl Default for CpuOptions {
    /// All cores this process may use, bytes as activations.
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        Self { threads, isa: None, mode: Mode::Int8, buffers: Buffers::Reused }
    }
}

/// The CPU as a device.
#[derive(Debug)]
pub struct CpuDevice {
    caps: DeviceCaps,
    isa: Isa,
    mode: Mode,
    buffers: Buffers,
    pool: Arc<Mutex<Pool>>,
    slabs: Slabs,
    weights: Vec<Option<Arc<Weight>>>,
}

impl CpuDevice {
    /// Starts the threads of a device.
    ///
    /// # Errors
    /// An instruction set this machine lacks; threads the system refuses.
    pub fn new(options: CpuOptions) -> Result<Self, DeviceError> {
        let isa = options.isa.unwrap_or_else(Isa::detect);
        if !isa.is_available() {
            let what = format!("{} on this machine", isa.name());
            return Err(DeviceError::Unsupported { device: DEVICE.into(), what });
        }
        let pool = Pool::new(options.threads, Affinity::Free)
            .map_err(|e| DeviceError::Failed { device: DEVICE.into(), reason: e.to_string() })?;
        let workers = pool.workers() as u32;
        let caps = DeviceCaps {
            name: format!("cpu {}", isa.name()),
            memory_bytes: memory_bytes(),
            block_tokens: attend::BLOCK_TOKENS as u32,
            workers,
            read_bytes_per_s: 12e9 * f64::from(workers),
            ops_per_s: 400e9 * f64::from(workers),
        };
        let CpuOptions { mode, buffers, .. } = options;
        let pool = Arc::new(Mutex::new(pool));
        let (slabs, weights) = (Slabs::default(), Vec::new());
        Ok(Self { caps, isa, mode, buffers, pool, slabs, weights })
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// A program in nodes, with its caches.
    fn assemble(
        &self,
        program: &Program,
        weights: &[Arc<Weight>],
        limits: &Limits,
    ) -> Result<exec::Compiled, DeviceError> {
        let mut slabs = Slabs::default();
        let caches = program.caches.iter().map(|c| caches::Cache::new(c, limits, &mut slabs));
        let caches = caches.collect::<Result<Vec<_>, _>>()?;
        let mut compiler = compile::Compiler::new(program, weights, &caches, limits, self.mode);
        compiler.compile()?;
        let (draft, wants, outputs) = (compiler.draft, compiler.wants, compiler.outputs);
        let plan = draft.finish(limits, self.buffers);
        let (isa, mode, pool) = (self.isa, self.mode, Arc::clone(&self.pool));
        Ok(exec::Compiled { plan, wants, outputs, isa, mode, pool, caches })
    }
}

impl Backend for CpuDevice {
    fn caps(&self) -> &DeviceCaps {
        &self.caps
    }

    fn upload(
        &mut self,
        spec: &WeightSpec,
        source: &dyn WeightSource,
    ) -> Result<WeightHandle, DeviceError> {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        let weight =
            Some(Arc::new(Weight::upload(spec, self.mode, source, &mut self.slabs, &mut pool)?));
        let free = self.weights.iter().position(Option::is_none);
        match free {
            Some(at) => self.weights[at] = weight,
            None => self.weights.push(weight),
        }
        Ok(WeightHandle(free.unwrap_or(self.weights.len() - 1) as u32))
    }

    fn free(&mut self, weight: WeightHandle) {
        if let Some(held) = self.weights.get_mut(weight.0 as usize) {
            *held = None;
        }
    }

    fn footprint(&self, program: &Program, limits: &Limits) -> Result<Footprint, DeviceError> {
        // Assembled as ever, on weights whose memory is never touched.
        let mut slabs = Slabs::default();
        let shape = |w: &WeightSpec| Ok(Arc::new(Weight::shape(w, self.mode, &mut slabs)?));
        let weights: Vec<Arc<Weight>> =
            program.weights.iter().map(shape).collect::<Result<_, DeviceError>>()?;
        let slack = slabs.slack_bytes();
        let limits = Limits { group_blocks: Vec::new(), ..limits.clone() };
        let assembled = self.assemble(program, &weights, &limits)?;
        let workers = self.caps.workers as usize;
        let groups = 0..program.groups().len();
        Ok(Footprint {
            weight_bytes: (weights.iter().map(|w| w.bytes()).sum::<usize>() + slack) as u64,
            block_bytes: groups.map(|g| caches::block_bytes(&assembled.caches, g) as u64).collect(),
            buffer_bytes: assembled.buffer_bytes(program, workers) as u64,
        })
    }

    fn compile(
        &mut self,
        program: &Program,
        weights: &[WeightHandle],
        limits: &Limits,
    ) -> Result<Box<dyn Executable>, DeviceError> {
        let failed = |reason: String| DeviceError::Failed { device: DEVICE.into(), reason };
        program.check().map_err(|e| failed(e.to_string()))?;
        let held = |h: &WeightHandle| self.weights.get(h.0 as usize).cloned().flatten();
        let held: Option<Vec<Arc<Weight>>> = weights.iter().map(held).collect();
        let held = held.filter(|h| h.len() == program.weights.len());
        let held = held.ok_or_else(|| failed("not the weights of this program".into()))?;
        let parts = self.assemble(program, &held, limits)?;
        Ok(Box::new(exec::CpuExecutable::new(parts, program, limits)?))
    }
}

/// Physical memory of the machine; a guess where the system does not say.
fn memory_bytes() -> u64 {
    #[cfg(unix)]
    {
        // SAFETY: a query without arguments in memory.
        let (pages, size) =
            unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
        if pages > 0 && size > 0 {
            return (pages as u64).saturating_mul(size as u64);
        }
    }
    8 << 30
}
