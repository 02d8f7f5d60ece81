//! The driver of a real GPU: one context, and the functions of the CUDA library that the
//! system has. All `unsafe` of this crate is here.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use cudarc::driver::{result, sys};
use thiserror::Error;

use crate::driver::{Args, Driver, DriverError, Lane, Launched, Shape};
use crate::kernels::{BUNDLES, Kernel};

/// Bytes of each pinned buffer through which copies go.
const STAGE: usize = 8 << 20;

/// Bytes in which the driver takes memory at least.
const PAGE: u64 = 2 << 20;

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
#[derive(Clone, Copy)]
struct Stage {
    memory: *mut u8,
    event: sys::CUevent,
}

/// Pinned buffers, and which one is next.
#[derive(Default)]
struct Stages {
    list: Vec<Stage>,
    next: usize,
}

/// Addresses apart from memory, and memory under them: address → bytes. They are the process's, not
/// a context's, so that they stay when a context is lost.
#[derive(Default)]
struct Spaces {
    reserved: BTreeMap<u64, u64>,
    mapped: BTreeMap<u64, u64>,
}

/// What is lost together: a context and all that was made in it.
struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
    /// Of each lane.
    streams: [sys::CUstream; 2],
    stages: [Mutex<Stages>; 2],
    /// A stream that nothing runs in: graphs are written down there.
    paper: Mutex<sys::CUstream>,
    modules: HashMap<&'static str, sys::CUmodule>,
    /// Nothing of it may be asked for any more.
    is_lost: bool,
}

/// A GPU.
pub(crate) struct Cuda {
    device: sys::CUdevice,
    name: String,
    memory_bytes: u64,
    processors: u32,
    /// Absent once the GPU was opened again.
    context: RwLock<Option<Context>>,
    functions: RwLock<HashMap<Kernel, sys::CUfunction>>,
    /// Bytes of a page; whether there are addresses without memory.
    page: u64,
    has_spaces: bool,
    /// Whether a kernel may start while the one before it ends.
    overlaps: bool,
    spaces: Mutex<Spaces>,
    /// Why everything is lost.
    lost: OnceLock<String>,
}

// SAFETY: handles of the driver may be used by any thread that has made the context current, which
// every method does; pinned memory is used under the lock.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}
// SAFETY: a function is a handle as those of a context, and used with it.
unsafe impl Send for Cuda {}
// SAFETY: as above.
unsafe impl Sync for Cuda {}

/// Errors after which a context computes nothing any more, as the driver's header (cuda.h, enum
/// CUresult) describes them: "any further CUDA work will return the same error", or the context
/// or the driver itself is gone.
fn is_lost(code: sys::CUresult) -> bool {
    use sys::CUresult as C;
    matches!(
        code,
        C::CUDA_ERROR_DEINITIALIZED
            | C::CUDA_ERROR_DEVICE_UNAVAILABLE
            | C::CUDA_ERROR_INVALID_CONTEXT
            | C::CUDA_ERROR_ECC_UNCORRECTABLE
            | C::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | C::CUDA_ERROR_CONTAINED
            | C::CUDA_ERROR_ILLEGAL_ADDRESS
            | C::CUDA_ERROR_LAUNCH_TIMEOUT
            | C::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | C::CUDA_ERROR_ASSERT
            | C::CUDA_ERROR_HARDWARE_STACK_ERROR
            | C::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | C::CUDA_ERROR_MISALIGNED_ADDRESS
            | C::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | C::CUDA_ERROR_INVALID_PC
            | C::CUDA_ERROR_LAUNCH_FAILED
            | C::CUDA_ERROR_TENSOR_MEMORY_LEAK
            | C::CUDA_ERROR_MPS_RPC_FAILURE
            | C::CUDA_ERROR_MPS_CLIENT_TERMINATED
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

impl Context {
    /// The GPU's own context with everything kernels need. (What was made goes again where
    /// something fails.)
    fn open(device: sys::CUdevice) -> Result<Self, OpenError> {
        // SAFETY: a device that the driver named; released on drop.
        let context = unsafe { result::primary_ctx::retain(device)? };
        let (streams, modules) = ([std::ptr::null_mut(); 2], HashMap::new());
        let stages = Default::default();
        let paper = Mutex::new(std::ptr::null_mut());
        let mut all = Self { device, context, streams, stages, paper, modules, is_lost: false };
        // SAFETY: just retained.
        unsafe { result::ctx::set_current(context)? };
        for (stream, stages) in all.streams.iter_mut().zip(&mut all.stages) {
            *stream = result::stream::create(result::stream::StreamKind::NonBlocking)?;
            let stages = stages.get_mut().unwrap_or_else(PoisonError::into_inner);
            for _ in 0..2 {
                let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
                stages.list.push(Stage { memory: std::ptr::null_mut(), event });
            }
            for stage in &mut stages.list {
                // SAFETY: pinned memory of its own, given back on drop.
                stage.memory = unsafe { result::malloc_host(STAGE, 0)? }.cast();
            }
        }
        *all.paper.get_mut().unwrap_or_else(PoisonError::into_inner) =
            result::stream::create(result::stream::StreamKind::NonBlocking)?;
        for &(name, bundle) in BUNDLES {
            // SAFETY: a bundle that nvcc wrote, in this program's memory.
            let module = unsafe { result::module::load_data(bundle.as_ptr().cast()) };
            let module = module.map_err(|e| OpenError::Kernels(name, text(e)))?;
            all.modules.insert(name, module);
        }
        Ok(all)
    }

    /// Whether memory can be had, written and waited for.
    fn try_out(&self) -> Result<(), result::DriverError> {
        // SAFETY: memory of its own on a stream of its own.
        unsafe {
            let memory = result::malloc_sync(4)?;
            let steps = self.stream(Lane::Steps);
            let written = result::memset_d8_async(memory, 0, 4, steps)
                .and_then(|()| result::stream::synchronize(steps));
            written.and(result::free_sync(memory))
        }
    }

    fn stream(&self, lane: Lane) -> sys::CUstream {
        self.streams[lane as usize]
    }

    fn stages(&self, lane: Lane) -> MutexGuard<'_, Stages> {
        self.stages[lane as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: everything was made by `open`, nothing runs any more, and nobody can ask again.
        // What is lost goes with the context, whose last holder this is.
        unsafe {
            if !self.is_lost && result::ctx::set_current(self.context).is_ok() {
                let _ = result::ctx::synchronize();
                for stages in &mut self.stages {
                    let stages = stages.get_mut().unwrap_or_else(PoisonError::into_inner);
                    for stage in &stages.list {
                        let _ = result::event::destroy(stage.event);
                        if !stage.memory.is_null() {
                            let _ = result::free_host(stage.memory.cast());
                        }
                    }
                }
                for module in self.modules.values() {
                    let _ = result::module::unload(*module);
                }
                let paper = self.paper.get_mut().unwrap_or_else(PoisonError::into_inner);
                let streams = self.streams.iter().chain([&*paper]);
                for stream in streams.filter(|stream| !stream.is_null()) {
                    let _ = result::stream::destroy(*stream);
                }
            }
            let _ = result::primary_ctx::release(self.device);
        }
    }
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
        let context = Context::open(device)?;
        use sys::CUdevice_attribute as A;
        // SAFETY: a device that the driver named.
        let attribute = |a| unsafe { result::device::get_attribute(device, a) };
        let processors = attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let virtually = attribute(A::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED);
        let has_spaces = virtually.is_ok_and(|there| there != 0);
        let page = if has_spaces { granularity(device)? } else { PAGE };
        let (free, _) = result::mem_get_info()?;
        Ok(Self {
            device,
            name: result::device::get_name(device)?,
            memory_bytes: free as u64,
            processors: u32::try_from(processors).unwrap_or(1),
            context: RwLock::new(Some(context)),
            functions: RwLock::default(),
            page: page.max(PAGE),
            has_spaces,
            overlaps: attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? >= 9,
            spaces: Mutex::default(),
            lost: OnceLock::new(),
        })
    }

    /// Asks something of the context, which is this thread's then.
    fn with<T>(
        &self,
        ask: impl FnOnce(&Context) -> Result<T, result::DriverError>,
    ) -> Result<T, DriverError> {
        let context = self.context.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(reason) = self.lost.get() {
            return Err(DriverError::Lost(reason.clone()));
        }
        let Some(context) = &*context else {
            return Err(DriverError::Lost("the GPU was opened again".into()));
        };
        // SAFETY: a context that is held until the lock is given back.
        let current = unsafe { result::ctx::set_current(context.context) };
        current.and_then(|()| ask(context)).map_err(|e| self.failed(e))
    }

    fn failed(&self, error: result::DriverError) -> DriverError {
        if is_lost(error.0) {
            return DriverError::Lost(self.lost.get_or_init(|| text(error)).clone());
        }
        match error.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => DriverError::OutOfMemory(0),
            _ => DriverError::Failed(text(error)),
        }
    }

    fn function(&self, kernel: Kernel) -> Result<sys::CUfunction, DriverError> {
        let known = self.functions.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = known.get(&kernel) {
            return Ok(*function);
        }
        drop(known);
        let missing = || DriverError::NoKernel(kernel.entry().into_owned());
        let name = CString::new(kernel.entry().as_bytes()).map_err(|_| missing())?;
        let found = self.with(|context| {
            let Some(&module) = context.modules.get(kernel.file()) else { return Ok(None) };
            // SAFETY: a module that stays loaded as long as its context.
            match unsafe { result::module::get_function(module, name) } {
                Err(e) if e.0 == sys::CUresult::CUDA_ERROR_NOT_FOUND => Ok(None),
                found => found.map(Some),
            }
        });
        let function = found?.ok_or_else(missing)?;
        let mut known = self.functions.write().unwrap_or_else(PoisonError::into_inner);
        known.insert(kernel, function);
        Ok(function)
    }

    fn spaces(&self) -> MutexGuard<'_, Spaces> {
        self.spaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the context up, its memory with it: it waits for calls that others are in, which end
    /// with the same error.
    fn close(&self) {
        let mut context = self.context.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut old) = context.take() {
            old.is_lost = true;
        }
    }
}

/// Memory on a device, and who may use it.
fn on_device(device: sys::CUdevice) -> (sys::CUmemAllocationProp, sys::CUmemAccessDesc) {
    let kind = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    let location = sys::CUmemLocation { type_: kind, id: device };
    // SAFETY: plain numbers and a pointer, all of which may be 0.
    let mut memory: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    memory.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    memory.location = location;
    let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    (memory, sys::CUmemAccessDesc { location, flags })
}

/// Bytes of which memory without addresses is a multiple.
fn granularity(device: sys::CUdevice) -> Result<u64, result::DriverError> {
    let wanted = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    let (memory, mut bytes) = (on_device(device).0, 0);
    // SAFETY: writes a number.
    unsafe { sys::cuMemGetAllocationGranularity(&raw mut bytes, &raw const memory, wanted) }
        .result()?;
    Ok(bytes as u64)
}

/// Launches a kernel in a stream; `overlaps`: it may start while the one before it ends, and waits
/// by itself until that is over (words.cuh, `follow_the_last`).
///
/// # Safety
/// As of the kernel.
unsafe fn write_down(
    stream: sys::CUstream,
    function: sys::CUfunction,
    launched: &Launched,
    overlaps: bool,
) -> Result<(), result::DriverError> {
    let Launched { shape, mut args, .. } = launched.clone();
    // SAFETY: numbers, all of which may be 0.
    let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
    attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 1;
    let [x, y, z] = shape.grid;
    let config = sys::CUlaunchConfig {
        gridDimX: x,
        gridDimY: y,
        gridDimZ: z,
        blockDimX: shape.threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: shape.shared,
        hStream: stream,
        attrs: &raw mut attribute,
        numAttrs: u32::from(overlaps),
    };
    let mut parameters = [std::ptr::from_mut(&mut args).cast::<c_void>()];
    let (config, none) = (&raw const config, std::ptr::null_mut());
    // SAFETY: the caller's; the argument is copied before this returns.
    unsafe { sys::cuLaunchKernelEx(config, function, parameters.as_mut_ptr(), none) }.result()
}

/// An error of taking so many bytes.
fn sized(error: DriverError, bytes: u64) -> DriverError {
    match error {
        DriverError::OutOfMemory(_) => DriverError::OutOfMemory(bytes),
        other => other,
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

    fn page(&self) -> u64 {
        self.page
    }

    fn has_spaces(&self) -> bool {
        self.has_spaces
    }

    fn check(&self, kernel: Kernel) -> Result<(), DriverError> {
        self.function(kernel).map(|_| ())
    }

    fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// (cuda.h at CUDA_ERROR_ASSERT: "the context cannot be used anymore, and must be destroyed";
    /// at cuDevicePrimaryCtxRelease: "the context is automatically reset once the last reference to
    /// it is released". But at CUDA_ERROR_ILLEGAL_ADDRESS: "to continue using CUDA, the process
    /// must be terminated and relaunched". So the context is released, another is made and tried
    /// out; where that fails, a new process is all that is left, and the error says so.)
    fn reopen(&self) -> Result<Arc<dyn Driver>, DriverError> {
        self.close();
        let again = |e: String| {
            let reason = format!("{e}; no new context works in this process, start it again");
            DriverError::Lost(reason)
        };
        let opened = Self::on(self.device).map_err(|e| again(e.to_string()))?;
        // (Where they went with the context this answers that they are not there.)
        let old = std::mem::take(&mut *self.spaces());
        let gone = opened.with(|_| {
            // SAFETY: nobody uses these addresses, and none were given out since.
            unsafe {
                for (address, bytes) in old.mapped {
                    let _ = sys::cuMemUnmap(address, bytes as usize);
                }
                for (address, bytes) in old.reserved {
                    let _ = sys::cuMemAddressFree(address, bytes as usize);
                }
            }
            Ok(())
        });
        gone.map_err(|e| again(e.to_string()))?;
        opened.with(Context::try_out).map_err(|e| again(e.to_string()))?;
        Ok(Arc::new(opened))
    }

    fn alloc(&self, bytes: u64) -> Result<u64, DriverError> {
        // SAFETY: the memory is read only after it was written, or as numbers that may be any.
        let address = self.with(|_| unsafe { result::malloc_sync(bytes as usize) });
        address.map_err(|e| sized(e, bytes))
    }

    fn free(&self, address: u64) {
        // (What was lost needs not be given back.)
        let _ = self.with(|_| {
            let _ = result::ctx::synchronize();
            // SAFETY: the address came from `alloc`, and nothing runs any more that could use it.
            unsafe { result::free_sync(address) }
        });
    }

    fn reserve(&self, bytes: u64) -> Result<u64, DriverError> {
        let (len, mut address) = (bytes as usize, 0);
        // SAFETY: writes an address.
        let answer = self
            .with(|_| unsafe { sys::cuMemAddressReserve(&raw mut address, len, 0, 0, 0) }.result());
        answer.map_err(|e| sized(e, bytes))?;
        self.spaces().reserved.insert(address, bytes);
        Ok(address)
    }

    fn unreserve(&self, address: u64, bytes: u64) {
        // SAFETY: addresses that `reserve` gave, with nothing under them.
        let freed =
            self.with(|_| unsafe { sys::cuMemAddressFree(address, bytes as usize) }.result());
        if freed.is_ok() {
            self.spaces().reserved.remove(&address);
        }
    }

    fn create(&self, bytes: u64) -> Result<u64, DriverError> {
        let (memory, mut name) = (on_device(self.device).0, 0);
        let (len, properties) = (bytes as usize, &raw const memory);
        // SAFETY: writes a number.
        let answer =
            self.with(|_| unsafe { sys::cuMemCreate(&raw mut name, len, properties, 0) }.result());
        answer.map_err(|e| sized(e, bytes)).map(|()| name)
    }

    fn release(&self, memory: u64) -> Result<(), DriverError> {
        // SAFETY: memory that `create` made.
        self.with(|_| unsafe { sys::cuMemRelease(memory) }.result())
    }

    fn map(&self, address: u64, bytes: u64, memory: u64) -> Result<(), DriverError> {
        // SAFETY: reserved addresses with nothing under them.
        self.with(|_| unsafe { sys::cuMemMap(address, bytes as usize, 0, memory, 0) }.result())?;
        self.spaces().mapped.insert(address, bytes);
        Ok(())
    }

    fn allow(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        let (len, who) = (bytes as usize, on_device(self.device).1);
        // SAFETY: addresses with memory.
        self.with(|_| unsafe { sys::cuMemSetAccess(address, len, &raw const who, 1) }.result())
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        self.with(|_| {
            result::ctx::synchronize()?;
            // SAFETY: as they were mapped, and nothing runs any more that could use them.
            unsafe { sys::cuMemUnmap(address, bytes as usize) }.result()
        })?;
        self.spaces().mapped.remove(&address);
        Ok(())
    }

    fn write(&self, lane: Lane, address: u64, bytes: &[u8]) -> Result<(), DriverError> {
        self.with(|context| {
            let (stream, mut stages) = (context.stream(lane), context.stages(lane));
            for (at, piece) in (address..).step_by(STAGE).zip(bytes.chunks(STAGE)) {
                let Stage { memory, event } = stages.turn();
                // SAFETY: the stage is free once its event has passed, and as long as a piece; the
                // address has room for the bytes, which is the caller's promise.
                unsafe {
                    result::event::synchronize(event)?;
                    std::ptr::copy_nonoverlapping(piece.as_ptr(), memory, piece.len());
                    sys::cuMemcpyHtoDAsync_v2(at, memory.cast(), piece.len(), stream).result()?;
                    result::event::record(event, stream)?;
                }
            }
            Ok(())
        })
    }

    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), DriverError> {
        self.with(|context| {
            let (stream, mut stages) = (context.stream(Lane::Steps), context.stages(Lane::Steps));
            for (at, piece) in (address..).step_by(STAGE).zip(out.chunks_mut(STAGE)) {
                let Stage { memory, event } = stages.turn();
                // SAFETY: as in `write`; the copy is over when its event has passed.
                unsafe {
                    result::event::synchronize(event)?;
                    sys::cuMemcpyDtoHAsync_v2(memory.cast(), at, piece.len(), stream).result()?;
                    result::event::record(event, stream)?;
                    result::event::synchronize(event)?;
                    std::ptr::copy_nonoverlapping(memory, piece.as_mut_ptr(), piece.len());
                }
            }
            Ok(())
        })
    }

    fn zero(&self, lane: Lane, address: u64, bytes: u64) -> Result<(), DriverError> {
        self.with(|context| {
            let stream = context.stream(lane);
            // SAFETY: the address has room for the bytes, which is the caller's promise.
            unsafe { result::memset_d8_async(address, 0, bytes as usize, stream) }
        })
    }

    fn copy(&self, from: u64, to: u64, bytes: u64) -> Result<(), DriverError> {
        self.with(|context| {
            let stream = context.stream(Lane::Steps);
            // SAFETY: as above, of both.
            unsafe { result::memcpy_dtod_async(to, from, bytes as usize, stream) }
        })
    }

    fn launch(
        &self,
        lane: Lane,
        kernel: Kernel,
        shape: Shape,
        args: &Args,
    ) -> Result<(), DriverError> {
        let function = self.function(kernel)?;
        let [x, y, z] = shape.grid;
        let mut args = *args;
        let mut parameters = [std::ptr::from_mut(&mut args).cast::<c_void>()];
        let (grid, block) = ((x, y, z), (shape.threads, 1, 1));
        self.with(|context| {
            let stream = context.stream(lane);
            // SAFETY: every kernel takes one `Args`, which the driver copies before it returns;
            // what its addresses are read and written for is the plan's.
            unsafe {
                result::launch_kernel(function, grid, block, shape.shared, stream, &mut parameters)
            }
        })
    }

    fn graph(&self, launches: &[Launched]) -> Result<u64, DriverError> {
        let functions = launches.iter().map(|launched| self.function(launched.kernel));
        let functions = functions.collect::<Result<Vec<_>, _>>()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let graph = self.with(|context| {
            let paper = context.paper.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: a stream that is written down, on this thread; what is launched is as in
            // `launch`.
            unsafe {
                result::stream::begin_capture(*paper, mode)?;
                let mut all = launches.iter().zip(&functions);
                let told = all.try_for_each(|(l, f)| write_down(*paper, *f, l, self.overlaps));
                // (To be ended whatever was told.)
                let graph = result::stream::end_capture(*paper);
                told.and(graph)
            }
        })?;
        // SAFETY: just made; what is made of it does not need it.
        let made = self.with(|_| unsafe {
            let made = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
            let _ = result::graph::destroy(graph);
            made
        });
        made.map(|made| made as u64)
    }

    fn replay(&self, graph: u64) -> Result<(), DriverError> {
        self.with(|context| {
            let stream = context.stream(Lane::Steps);
            // SAFETY: a graph that `graph` made, whose addresses are its user's promise.
            unsafe { result::graph::launch(graph as sys::CUgraphExec, stream) }
        })
    }

    fn forget_graph(&self, graph: u64) {
        // SAFETY: as above; what runs of it goes when it is over.
        let _ = self.with(|_| unsafe { result::graph::exec_destroy(graph as sys::CUgraphExec) });
    }

    fn event(&self) -> Result<u64, DriverError> {
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        self.with(|_| result::event::create(flags)).map(|event| event as u64)
    }

    fn forget_event(&self, event: u64) {
        // SAFETY: an event that `event` made; it may go before it has passed.
        let _ = self.with(|_| unsafe { result::event::destroy(event as sys::CUevent) });
    }

    fn record(&self, event: u64, lane: Lane) -> Result<(), DriverError> {
        let event = event as sys::CUevent;
        // SAFETY: an event that `event` made, a stream of this context.
        self.with(|context| unsafe { result::event::record(event, context.stream(lane)) })
    }

    fn follow(&self, lane: Lane, event: u64) -> Result<(), DriverError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        self.with(|context| {
            let stream = context.stream(lane);
            // SAFETY: as above.
            unsafe { result::stream::wait_event(stream, event as sys::CUevent, flags) }
        })
    }

    fn passed(&self, event: u64) -> Result<bool, DriverError> {
        // SAFETY: as above.
        self.with(|_| match unsafe { result::event::query(event as sys::CUevent) } {
            Err(e) if e.0 == sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            answer => answer.map(|()| true),
        })
    }

    fn wait(&self, event: u64) -> Result<(), DriverError> {
        // SAFETY: as above.
        self.with(|_| unsafe { result::event::synchronize(event as sys::CUevent) })
    }
}

impl Stages {
    /// The next to be used.
    fn turn(&mut self) -> Stage {
        let stage = self.list[self.next];
        self.next = (self.next + 1) % self.list.len();
        stage
    }
}
