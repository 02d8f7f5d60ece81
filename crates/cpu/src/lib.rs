//! The CPU device: kernels, the thread pool that runs them, and the memory they read.
#![allow(unsafe_code)]
// Some of it only vector kernels use, which x86-64 has.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]

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
pub mod panel;
mod plan;
pub mod pool;
#[cfg(target_arch = "x86_64")]
mod simd;
mod step;
mod weight;

use std::sync::Arc;

use tokenmill_backend::{Device, DeviceError, Executable, Footprint, Owner, Watch, Weights};
use tokenmill_ir::{DeviceCaps, KvFormat, Limits, Mode, Program, WeightSource, WeightSpec};

use isa::Isa;
use pool::{Affinity, Pool, SharedPool};
use weight::{Laid, Slabs, Weight};

/// The device's name in errors.
const DEVICE: &str = "cpu";

/// Version of `NUMERICS.md` that this device computes by.
pub const NUMERICS_VERSION: u32 = 9;

/// How a CPU device is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// Worker threads, the caller's among them.
    pub threads: usize,
    /// Instruction set; the best of this machine when absent.
    pub isa: Option<Isa>,
}

impl Default for CpuOptions {
    /// All cores this process may use.
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        Self { threads, isa: None }
    }
}

/// The CPU as a device.
#[derive(Debug)]
pub struct CpuDevice {
    caps: DeviceCaps,
    isa: Isa,
    owner: Owner,
    pool: Arc<SharedPool>,
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
            kv: KvFormat::Int16,
            workers,
            read_bytes_per_s: 12e9 * f64::from(workers),
            ops_per_s: 400e9 * f64::from(workers),
        };
        Ok(Self { caps, isa, owner: Owner::default(), pool: Arc::new(SharedPool::new(pool)) })
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
        mode: Mode,
    ) -> Result<exec::Compiled, DeviceError> {
        let mut slabs = Slabs::default();
        let caches = program.caches.iter().map(|c| caches::Cache::new(c, limits, &mut slabs));
        let caches = caches.collect::<Result<Vec<_>, _>>()?;
        let mut compiler = compile::Compiler::new(program, weights, &caches, limits, mode);
        compiler.compile()?;
        let (draft, needs, outputs) = (compiler.draft, compiler.needs, compiler.outputs);
        let plan = draft.finish(limits);
        let (isa, pool) = (self.isa, Arc::clone(&self.pool));
        Ok(exec::Compiled { plan, needs, outputs, isa, mode, pool, caches })
    }
}

impl Device for CpuDevice {
    fn caps(&self) -> &DeviceCaps {
        &self.caps
    }

    fn upload(
        &self,
        program: &Program,
        source: &dyn WeightSource,
        mode: Mode,
        watch: Watch<'_>,
    ) -> Result<Weights, DeviceError> {
        let mut slabs = Slabs::default();
        let laid = Laid { mode, written_out: program.wide_weights };
        let mut held: Vec<Arc<Weight>> = Vec::with_capacity(program.weights.len());
        for spec in &program.weights {
            if watch(held.len()).is_break() {
                return Err(DeviceError::Cancelled);
            }
            let weight = Weight::upload(spec, laid, source, &mut slabs, &self.pool)?;
            held.push(Arc::new(weight));
        }
        Ok(Weights::new(&self.owner, mode, held))
    }

    fn footprint(
        &self,
        program: &Program,
        limits: &Limits,
        mode: Mode,
    ) -> Result<Footprint, DeviceError> {
        // Assembled as ever, on weights whose memory is never touched.
        let mut slabs = Slabs::default();
        let laid = Laid { mode, written_out: program.wide_weights };
        let shape = |w: &WeightSpec| Ok(Arc::new(Weight::shape(w, laid, &mut slabs)?));
        let weights: Vec<Arc<Weight>> =
            program.weights.iter().map(shape).collect::<Result<_, DeviceError>>()?;
        let slack = slabs.slack_bytes();
        let limits = Limits { group_blocks: Vec::new(), ..limits.clone() };
        let assembled = self.assemble(program, &weights, &limits, mode)?;
        let workers = self.caps.workers as usize;
        let groups = 0..program.groups().len();
        Ok(Footprint {
            weight_bytes: (weights.iter().map(|w| w.bytes()).sum::<usize>() + slack) as u64,
            block_bytes: groups.map(|g| caches::block_bytes(&assembled.caches, g) as u64).collect(),
            buffer_bytes: assembled.buffer_bytes(program, workers) as u64,
        })
    }

    fn compile(
        &self,
        program: &Program,
        weights: &Weights,
        limits: &Limits,
    ) -> Result<Box<dyn Executable>, DeviceError> {
        let failed = |reason: String| DeviceError::Failed { device: DEVICE.into(), reason };
        program.check().map_err(|e| failed(e.to_string()))?;
        let held = weights.of::<Vec<Arc<Weight>>>(&self.owner);
        let held = held.filter(|h| h.len() == program.weights.len());
        let held = held.ok_or_else(|| failed("not the weights of this program".into()))?;
        let parts = self.assemble(program, &held, limits, weights.mode())?;
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
