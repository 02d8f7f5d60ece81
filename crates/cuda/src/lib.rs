//! The CUDA device: plain kernels for every op and every stored format, on NVIDIA GPUs.
//!
//! All numbers between ops are f32, and sums have a fixed order, so that a row's results do not
//! depend on what else is in a step. In mode f32 all is as plain as that; in the others, products
//! with weights of many formats are made by tensor cores, which take rows of x as bf16 and weights
//! as they are. The GPU is reached through [`Driver`]; tests have one that runs the same kernels on
//! this machine.

mod batch;
pub mod driver;
mod exec;
mod failure;
mod few;
mod graphs;
pub mod kernels;
mod layout;
mod plan;
mod space;
mod sys;

use std::sync::{Arc, Mutex, PoisonError};

use tokenmill_backend::{Device, DeviceError, Executable, Footprint, Owner, Watch, Weights};
use tokenmill_ir::{DeviceCaps, KvFormat, Limits, Mode, Program, WeightSource};

use driver::Driver;
use layout::Held;
pub use sys::OpenError;

/// Tokens of a cache block where nothing else is asked for.
pub const BLOCK_TOKENS: u32 = 64;

/// A GPU as a device.
pub struct CudaDevice {
    driver: Mutex<Arc<dyn Driver>>,
    caps: DeviceCaps,
    owner: Owner,
}

impl CudaDevice {
    /// GPU `ordinal` of this machine.
    ///
    /// # Errors
    /// No driver, no such GPU, no kernels in this program.
    pub fn open(ordinal: u32) -> Result<Self, OpenError> {
        Ok(Self::new(Arc::new(sys::Cuda::open(ordinal)?), BLOCK_TOKENS))
    }

    /// A device with cache blocks of `block_tokens`.
    pub fn new(driver: Arc<dyn Driver>, block_tokens: u32) -> Self {
        let workers = driver.processors();
        let caps = DeviceCaps {
            name: format!("cuda {}", driver.name()),
            memory_bytes: driver.memory_bytes(),
            block_tokens: block_tokens.max(1),
            kv: KvFormat::Bf16,
            workers,
            read_bytes_per_s: 20e9 * f64::from(workers),
            ops_per_s: 30e9 * f64::from(workers),
        };
        Self { driver: Mutex::new(driver), caps, owner: Owner::default() }
    }

    fn page(&self) -> u64 {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner).page().max(1)
    }

    /// The driver; opened afresh where what it had is lost. Weights and executables of before hold
    /// the old one, which answers `Lost` to everything.
    fn driver(&self) -> Result<Arc<dyn Driver>, DeviceError> {
        let mut driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
        if driver.is_lost() {
            *driver = driver.reopen().map_err(|e| failure::of(e, "the GPU, opened again"))?;
        }
        Ok(Arc::clone(&driver))
    }

    /// Has a kernel read where nothing is, so that a real GPU loses everything. For checks there.
    ///
    /// # Errors
    /// `Lost`, where it is as it should be.
    pub fn lose(&self) -> Result<(), DeviceError> {
        let (driver, failed) = (self.driver()?, |e| failure::of(e, "a kernel that fails"));
        let shape = driver::Shape { grid: [1; 3], threads: 32, shared: 0 };
        let event = driver::Event::new(&driver).map_err(failed)?;
        let args = driver::Args::default();
        let steps = driver::Lane::Steps;
        driver.launch(steps, kernels::Kernel::TakeRows, shape, &args).map_err(failed)?;
        event.record(steps).and_then(|()| event.wait()).map_err(failed)
    }

    /// The launches of a program with weights for that mode, one a line.
    ///
    /// # Errors
    /// What there is no kernel for.
    pub fn listing(
        &self,
        program: &Program,
        limits: &Limits,
        mode: Mode,
    ) -> Result<String, DeviceError> {
        checked(program)?;
        let shapes = layout::shapes(program, mode)?;
        Ok(plan::Plan::new(program, &shapes, limits, mode, self.caps.block_tokens)?.dump())
    }
}

fn failed(reason: String) -> DeviceError {
    DeviceError::Failed { device: failure::DEVICE.into(), reason }
}

fn checked(program: &Program) -> Result<(), DeviceError> {
    program.check().map_err(|e| failed(e.to_string()))
}

impl Device for CudaDevice {
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
        let held = match Held::upload(&self.driver()?, program, source, mode, &mut *watch) {
            // What others did may have lost it meanwhile: once again from the beginning.
            Err(DeviceError::Lost { .. }) => {
                Held::upload(&self.driver()?, program, source, mode, watch)
            }
            told => told,
        };
        Ok(Weights::new(&self.owner, mode, held?))
    }

    fn footprint(
        &self,
        program: &Program,
        limits: &Limits,
        mode: Mode,
    ) -> Result<Footprint, DeviceError> {
        checked(program)?;
        let shapes = layout::shapes(program, mode)?;
        let plan = plan::Plan::new(program, &shapes, limits, mode, self.caps.block_tokens)?;
        let groups = 0..program.groups().len() as u32;
        let of_group = |g: u32| {
            plan.caches.iter().filter(|c| c.group == g).map(|c| c.block_bytes).sum::<u64>()
        };
        let page = self.page();
        Ok(Footprint {
            weight_bytes: layout::taken(&shapes, page),
            block_bytes: groups.map(of_group).collect(),
            buffer_bytes: exec::overhead(&plan, limits, self.caps.block_tokens, page),
        })
    }

    fn compile(
        &self,
        program: &Program,
        weights: &Weights,
        limits: &Limits,
    ) -> Result<Box<dyn Executable>, DeviceError> {
        checked(program)?;
        let held = weights.of::<Held>(&self.owner);
        let held = held.filter(|h| h.shapes.len() == program.weights.len());
        let held = held.ok_or_else(|| failed("not the weights of this program".into()))?;
        let (driver, block_tokens) = (self.driver()?, self.caps.block_tokens);
        if !held.is_of(&driver) {
            let (device, reason) = (failure::DEVICE.into(), "its weights went with it".into());
            return Err(DeviceError::Lost { device, reason });
        }
        let executable = exec::CudaExecutable::new(&driver, program, held, limits, block_tokens)?;
        Ok(Box::new(executable))
    }
}
