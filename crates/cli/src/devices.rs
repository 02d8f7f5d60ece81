//! The devices this binary was built with: beside `tokenmill::device`, the only file that names a device crate.

use std::sync::Arc;

use tokenmill::device::{self, FIRST_GPU, NotOpened};
use tokenmill_backend::Device;
use tokenmill_cpu::isa::Isa;
use tokenmill_cpu::limits;
pub use tokenmill_cpu::limits::{Arithmetic, Level, ReadLimit, ReadProbe, caches, ops as op_limit};
use tokenmill_cuda::CudaDevice;

use crate::args::{self, Machine};
use crate::failure::{Failure, tell};
use crate::memory;

/// Opens the device the command line asks for.
pub fn open(machine: &Machine) -> Result<Arc<dyn Device>, Failure> {
    let cores = threads(machine);
    let too_many = |asked: &usize| *asked > cores && matches!(machine.device, args::Device::Cpu);
    if let Some(asked) = machine.threads.filter(too_many) {
        tell!(
            "note: --threads {asked}: this process may use {cores} cores, so {cores} threads work"
        );
    }
    let opened = match machine.device {
        args::Device::Cpu => tokenmill::Device::Cpu.open(cores),
        args::Device::Reference => tokenmill::Device::Reference.open(cores),
        args::Device::Cuda => tokenmill::Device::Cuda.open(cores),
    };
    opened.map_err(|error| match error {
        NotOpened::Isa { name, known } => {
            Failure::new(format!("TOKENMILL_ISA={name} is unknown"), format!("known: {known}"))
        }
        NotOpened::Cpu(error) => {
            Failure::new("cannot open the CPU device", error).fix("unset TOKENMILL_ISA")
        }
        NotOpened::Cuda(error) => Failure::new("cannot use a GPU", error).fix("leave --device out"),
    })
}

/// Memory that a model on a device may take where nothing is asked for.
pub fn available_bytes(machine: &Machine, device: &dyn Device) -> u64 {
    match machine.device {
        args::Device::Cuda => tokenmill::Device::Cuda.available_bytes(device),
        _ => memory::available_bytes(),
    }
}

/// What there is for `--device cuda`.
pub fn gpu() -> String {
    match CudaDevice::open(FIRST_GPU) {
        Ok(device) => {
            let caps = device.caps();
            let (name, free) = (&caps.name, caps.memory_bytes >> 20);
            format!("{name}, {} multiprocessors, {free} MiB free", caps.workers)
        }
        Err(e) => format!("none: {e}"),
    }
}

/// The GPUs that may be used: names, and free memory in bytes.
pub fn gpus() -> Vec<(String, u64)> {
    let first = CudaDevice::open(FIRST_GPU).ok();
    first
        .map(|device| (device.caps().name.clone(), device.caps().memory_bytes))
        .into_iter()
        .collect()
}

/// The devices of this binary.
pub fn built() -> &'static str {
    match tokenmill_cuda::kernels::are_built() {
        true => "cpu, cuda, reference",
        false => "cpu, cuda (without kernels: cargo xtask cubins), reference",
    }
}

/// The kernel classes of this machine, best last.
pub fn instruction_sets() -> String {
    let names: Vec<&str> = Isa::ALL.iter().filter(|i| i.is_available()).map(|i| i.name()).collect();
    names.join(", ")
}

/// The threads the command line asks for, and no more than there are cores: threads wait for each
/// other in every operation, so that one without a core holds up all.
pub fn threads(machine: &Machine) -> usize {
    machine.threads.unwrap_or(usize::MAX).min(cores())
}

/// Cores this process may use.
pub fn cores() -> usize {
    device::cores()
}

/// Measures reads from a level of memory; `None` where memory or the caches do not allow it.
pub fn read_limit(threads: usize, level: Level) -> Option<ReadLimit> {
    limits::read(threads, level, half_of_memory())
}

/// Has main memory ready to be read now and then; `None` as of [`read_limit`].
pub fn dram_probe(threads: usize) -> Option<ReadProbe> {
    ReadProbe::new(threads, Level::Dram, half_of_memory())
}

fn half_of_memory() -> usize {
    usize::try_from(memory::available_bytes() / 2).unwrap_or(usize::MAX)
}
