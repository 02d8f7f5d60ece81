//! The driver of a real GPU: one context, one stream, the functions of the CUDA library that the
//! system has. All `unsafe` of this crate is here.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CString, c_int, c_void};
use std::sync::{Mutex, PoisonError, RwLock};

use cudarc::driver::{result, sys};
use thiserror::Error;

use crate::driver::{Args, Driver, DriverError, Shape};
use crate::kernels::{BUNDLES, Kernel};

/// Bytes of each pinned buffer through which copies go.
const STAGE: usize = 8 << 20;

/// Why no GPU can be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The library of the driver is not there.
    #[error("no NVIDIA driver is installed")]
    NoDriver,
    /// The driver has no such GPU.
    #[error("GPU {0} of {1}")]
    NoDevice(u32, u32),
    /// This program has no kernels for GPUs.
    #[error("this program was built without kernels for GPUs (cargo xtask cubins makes them)")]
    NoKernels,
    /// It has no code for this GPU, or none that the driver reads.
    #[error("kernels '{0}' do not load on this GPU: {1}")]
    Kernels(&'static str, String),
    /// The driver refuses.
    #[error("{0}")]
    Refused(String),
}

/// A pinned buffer, and what tells that the copy out of it is over.
struct Stage {
    memory: *mut u8,
    event: sys::CUevent,
}

/// Pinned buffers, and which one is next.
struct Stages {
    list: [Stage; 2],
    next: usize,
}

/// A GPU.
pub(crate) struct Cuda {
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    name: String,
    memory_bytes: u64,
    processors: u32,
    modules: HashMap<&'static str, sys::CUmodule>,
    functions: RwLock<HashMap<Kernel, sys::CUfunction>>,
    stages: Mutex<Stages>,
}

// SAFETY: handles of the driver may be used by any thread that has made the context current, which
// every method does; pinned memory is used under the lock.
unsafe impl Send for Cuda {}
// SAFETY: as above.
unsafe impl Sync for Cuda {}

/// Errors after which a context computes nothing any more.
fn is_lost(code: sys::CUresult) -> bool {
    use sys::CUresult as C;
    matches!(
        code,
        C::CUDA_ERROR_ILLEGAL_ADDRESS
            | C::CUDA_ERROR_LAUNCH_TIMEOUT
            | C::CUDA_ERROR_ASSERT
            | C::CUDA_ERROR_HARDWARE_STACK_ERROR
            | C::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | C::CUDA_ERROR_MISALIGNED_ADDRESS
            | C::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | C::CUDA_ERROR_INVALID_PC
            | C::CUDA_ERROR_LAUNCH_FAILED
            | C::CUDA_ERROR_ECC_UNCORRECTABLE
            | C::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | C::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | C::CUDA_ERROR_EXTERNAL_DEVICE
            | C::CUDA_ERROR_UNKNOWN
    )
}

impl From<result::DriverError> for OpenError {
    fn from(error: result::DriverError) -> Self {
        Self::Refused(text(error))
    }
}

/// What the driver calls an error.
fn text(error: result::DriverError) -> String {
    let named = error.error_name().ok().map(|name| name.to_string_lossy().into_owned());
    let described = error.error_string().ok().map(|text| text.to_string_lossy().into_owned());
    let parts: Vec<String> = named.into_iter().chain(described).collect();
    if parts.is_empty() { format!("CUDA error {}", error.0 as u32) } else { parts.join(": ") }
}

fn failed(error: result::DriverError) -> DriverError {
    if is_lost(error.0) {
        return DriverError::Lost(text(error));
    }
    DriverError::Failed(text(error))
}

impl Cuda {
    /// Opens GPU `ordinal`, and loads the kernels that were built for it.
    pub fn open(ordinal: u32) -> Result<Self, OpenError> {
        if BUNDLES.is_empty() {
            return Err(OpenError::NoKernels);
        }
        // SAFETY: looks for a library by name.
        if !unsafe { sys::is_culib_present() } {
            return Err(OpenError::NoDriver);
        }
        match result::init() {
            Err(e) if e.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE => {
                return Err(OpenError::NoDevice(ordinal, 0));
            }
            started => started?,
        }
        let count = u32::try_from(result::device::get_count()?).unwrap_or(0);
        if ordinal >= count {
            return Err(OpenError::NoDevice(ordinal, count));
        }
        let device = result::device::get(ordinal as c_int)?;
        Self::on(device)
    }

    fn on(device: sys::CUdevice) -> Result<Self, OpenError> {
        let processors = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        // SAFETY: a device that the driver has just named; the context is released on drop.
        let (context, processors) = unsafe {
            let context = result::primary_ctx::retain(device)?;
            result::ctx::set_current(context)?;
            (context, result::device::get_attribute(device, processors)?)
        };
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)?;
        let stage = || -> Result<Stage, result::DriverError> {
            // SAFETY: pinned memory of its own, given back on drop.
            let memory = unsafe { result::malloc_host(STAGE, 0)? }.cast();
            let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
            Ok(Stage { memory, event })
        };
        let list = [stage()?, stage()?];
        let (free, _) = result::mem_get_info()?;
        let mut modules = HashMap::new();
        for &(name, bundle) in BUNDLES {
            // SAFETY: a bundle that nvcc wrote, in this program's memory.
            let module = unsafe { result::module::load_data(bundle.as_ptr().cast()) };
            let module = module.map_err(|e| OpenError::Kernels(name, text(e)))?;
            modules.insert(name, module);
        }
        Ok(Self {
            device,
            context,
            stream,
            name: result::device::get_name(device)?,
            memory_bytes: free as u64,
            processors: u32::try_from(processors).unwrap_or(1),
            modules,
            functions: RwLock::default(),
            stages: Mutex::new(Stages { list, next: 0 }),
        })
    }

    /// Makes the context this thread's.
    fn here(&self) -> Result<(), DriverError> {
        // SAFETY: a context that is held until drop.
        unsafe { result::ctx::set_current(self.context) }.map_err(failed)
    }

    fn function(&self, kernel: Kernel) -> Result<sys::CUfunction, DriverError> {
        let known = self.functions.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = known.get(&kernel) {
            return Ok(*function);
        }
        drop(known);
        let missing = || DriverError::NoKernel(kernel.entry().into_owned());
        self.here()?;
        let module = *self.modules.get(kernel.file()).ok_or_else(missing)?;
        let name = CString::new(kernel.entry().as_bytes()).map_err(|_| missing())?;
        // SAFETY: a module that stays loaded as long as its context.
        let found = unsafe { result::module::get_function(module, name) };
        let function = found.map_err(|_| missing())?;
        let mut known = self.functions.write().unwrap_or_else(PoisonError::into_inner);
        known.insert(kernel, function);
        Ok(function)
    }

    fn wait(&self) -> Result<(), DriverError> {
        // SAFETY: the stream of this context.
        unsafe { result::stream::synchronize(self.stream) }.map_err(failed)
    }
}

impl Driver for Cuda {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    fn processors(&self) -> u32 {
        self.processors
    }

    fn has(&self, kernel: Kernel) -> bool {
        self.function(kernel).is_ok()
    }

    fn alloc(&self, bytes: u64) -> Result<u64, DriverError> {
        self.here()?;
        // SAFETY: the memory is read only after it was written, or as numbers that may be any.
        let address = unsafe { result::malloc_sync(bytes as usize) };
        address.map_err(|e| match e.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => DriverError::OutOfMemory(bytes),
            _ => failed(e),
        })
    }

    fn free(&self, address: u64) {
        if self.here().is_err() {
            return;
        }
        // (A lost context has no memory that could be given back.)
        let _ = self.wait();
        // SAFETY: the address came from `alloc`, and nothing runs any more that could use it.
        let _ = unsafe { result::free_sync(address) };
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), DriverError> {
        self.here()?;
        let mut stages = self.stages.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, piece) in (address..).step_by(STAGE).zip(bytes.chunks(STAGE)) {
            let next = stages.next;
            let Stage { memory, event } = stages.list[next];
            // SAFETY: the stage is free once its event has passed, and as long as a piece; the
            // address has room for the bytes, which is the caller's promise.
            unsafe {
                result::event::synchronize(event).map_err(failed)?;
                std::ptr::copy_nonoverlapping(piece.as_ptr(), memory, piece.len());
                sys::cuMemcpyHtoDAsync_v2(at, memory.cast(), piece.len(), self.stream)
                    .result()
                    .map_err(failed)?;
                result::event::record(event, self.stream).map_err(failed)?;
            }
            stages.next = (next + 1) % stages.list.len();
        }
        Ok(())
    }

    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), DriverError> {
        self.here()?;
        let mut stages = self.stages.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, piece) in (address..).step_by(STAGE).zip(out.chunks_mut(STAGE)) {
            let next = stages.next;
            let Stage { memory, event } = stages.list[next];
            // SAFETY: as in `write`; the copy is over when the stream is.
            unsafe {
                result::event::synchronize(event).map_err(failed)?;
                sys::cuMemcpyDtoHAsync_v2(memory.cast(), at, piece.len(), self.stream)
                    .result()
                    .map_err(failed)?;
                self.wait()?;
                std::ptr::copy_nonoverlapping(memory, piece.as_mut_ptr(), piece.len());
            }
            stages.next = (next + 1) % stages.list.len();
        }
        Ok(())
    }

    fn zero(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        self.here()?;
        // SAFETY: the address has room for the bytes, which is the caller's promise.
        unsafe { result::memset_d8_async(address, 0, bytes as usize, self.stream) }.map_err(failed)
    }

    fn copy(&self, from: u64, to: u64, bytes: u64) -> Result<(), DriverError> {
        self.here()?;
        // SAFETY: as above, of both.
        unsafe { result::memcpy_dtod_async(to, from, bytes as usize, self.stream) }.map_err(failed)
    }

    fn launch(&self, kernel: Kernel, shape: Shape, args: &Args) -> Result<(), DriverError> {
        let function = self.function(kernel)?;
        self.here()?;
        let [x, y, z] = shape.grid;
        let mut args = *args;
        let mut parameters = [std::ptr::from_mut(&mut args).cast::<c_void>()];
        // SAFETY: every kernel takes one `Args`, which the driver copies before it returns; what
        // its addresses are read and written for is the plan's.
        let launched = unsafe {
            result::launch_kernel(
                function,
                (x, y, z),
                (shape.threads, 1, 1),
                shape.shared,
                self.stream,
                &mut parameters,
            )
        };
        launched.map_err(failed)
    }

    fn done(&self) -> Result<bool, DriverError> {
        self.here()?;
        // SAFETY: the stream of this context.
        let answer = unsafe { sys::cuStreamQuery(self.stream) };
        match answer.result() {
            Ok(()) => Ok(true),
            Err(e) if e.0 == sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            Err(e) => Err(failed(e)),
        }
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        if self.here().is_err() {
            return;
        }
        let _ = self.wait();
        let stages = self.stages.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: everything was made by `on`, nothing runs any more, and nobody can ask again.
        unsafe {
            for stage in &stages.list {
                let _ = result::event::destroy(stage.event);
                let _ = result::free_host(stage.memory.cast());
            }
            for module in self.modules.values() {
                let _ = result::module::unload(*module);
            }
            let _ = result::stream::destroy(self.stream);
            let _ = result::primary_ctx::release(self.device);
        }
    }
}
