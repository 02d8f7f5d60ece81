//! The driver over host kernels: memory of this process between guards, launches that end before they return.

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tokenmill_cuda::driver::{Args, Driver, DriverError, Shape};
use tokenmill_cuda::kernels::Kernel;

use crate::build::Kernels;

/// Bytes before and behind each piece of memory that nobody may write.
const GUARD: usize = 256;
const GUARD_BYTE: u8 = 0xa5;
/// What fresh memory holds: no number.
const FRESH_BYTE: u8 = 0xff;

type Launch = unsafe extern "C" fn(*mut c_void, *const u32, u32, u32, *const Args) -> i32;

/// Kernels of this machine as a driver. As with a GPU's, a call that loses everything is the last
/// that works: all others fail with its error until the GPU is opened again, and what was held before
/// that is gone. What is asked of one of the drivers of a GPU (room, trouble) is asked of the GPU.
#[derive(Debug)]
pub struct Emulated {
    kernels: &'static Kernels,
    launch: Launch,
    gpu: Arc<Gpu>,
    /// How often the GPU had been opened when this driver was.
    opened: u32,
}

/// What outlives a loss.
#[derive(Debug)]
struct Gpu {
    state: Mutex<State>,
    /// Bytes that may be held.
    room: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Address → bytes.
    memory: BTreeMap<u64, usize>,
    opened: u32,
    lost: Option<String>,
    /// Calls that will fail.
    trouble: Vec<Trouble>,
}

/// A call that fails after so many of its kind.
#[derive(Debug)]
struct Trouble {
    call: &'static str,
    after: u32,
    lost: bool,
}

impl State {
    /// Frees everything.
    fn clear(&mut self) {
        for (address, bytes) in std::mem::take(&mut self.memory) {
            give_back(address, bytes);
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Emulated {
    /// Of a library.
    pub fn new(kernels: &'static Kernels) -> Self {
        let launch = kernels.symbol("tokenmill_launch").expect("tokenmill_launch");
        // SAFETY: the function has this type in kernels/host.cpp.
        let launch = unsafe { std::mem::transmute::<*mut c_void, Launch>(launch) };
        let gpu = Gpu { state: Mutex::default(), room: AtomicU64::new(8 << 30) };
        Self { kernels, launch, gpu: Arc::new(gpu), opened: 0 }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.gpu.state.lock().expect("the state")
    }

    /// Leaves room for so many bytes.
    pub fn limit(&self, bytes: u64) {
        self.gpu.room.store(bytes, Ordering::Relaxed);
    }

    /// Has a call of that name fail after so many more; with `lost` everything is lost then.
    pub fn fail(&self, call: &'static str, after: u32, lost: bool) {
        self.state().trouble.push(Trouble { call, after, lost });
    }

    /// Calls that are still to fail.
    pub fn troubles(&self) -> usize {
        self.state().trouble.len()
    }

    /// How often the GPU was opened again.
    pub fn opened(&self) -> u32 {
        self.state().opened
    }

    /// Bytes that are held.
    pub fn held_bytes(&self) -> usize {
        self.state().memory.values().sum()
    }

    /// Everything that this call uses, unless it fails.
    fn call(&self, name: &'static str) -> Result<MutexGuard<'_, State>, DriverError> {
        let mut state = self.state();
        if self.opened != state.opened {
            return Err(DriverError::Lost("opened again since".into()));
        }
        if let Some(reason) = &state.lost {
            return Err(DriverError::Lost(reason.clone()));
        }
        let Some(i) = state.trouble.iter().position(|t| t.call == name) else { return Ok(state) };
        if state.trouble[i].after > 0 {
            state.trouble[i].after -= 1;
            return Ok(state);
        }
        let reason = format!("planted in {name}");
        if state.trouble.remove(i).lost {
            state.lost = Some(reason.clone());
            return Err(DriverError::Lost(reason));
        }
        Err(DriverError::Failed(reason))
    }
}

impl State {
    /// Whether those bytes lie in one piece of memory.
    fn check(&self, address: u64, bytes: usize) -> Result<(), DriverError> {
        let piece = self.memory.range(..=address).next_back();
        let inside =
            piece.is_some_and(|(start, len)| address - start + bytes as u64 <= *len as u64);
        if inside || bytes == 0 {
            return Ok(());
        }
        Err(DriverError::Failed(format!("{bytes} bytes at {address:#x}, which are not there")))
    }

    /// Whether all guards are as they were; all is lost where not.
    fn guarded(&mut self) -> Result<(), DriverError> {
        for (&start, &len) in &self.memory {
            let start = start as usize;
            for guard in [start - GUARD, start + len] {
                // SAFETY: the guard of a piece of memory that is held.
                let guard = unsafe { std::slice::from_raw_parts(guard as *const u8, GUARD) };
                if guard.iter().any(|b| *b != GUARD_BYTE) {
                    let reason = format!("something was written beside {len} bytes of memory");
                    self.lost = Some(reason.clone());
                    return Err(DriverError::Lost(reason));
                }
            }
        }
        Ok(())
    }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes + 2 * GUARD, GUARD).expect("a layout")
}

fn give_back(address: u64, bytes: usize) {
    // SAFETY: allocated with this layout, and held until now.
    unsafe { std::alloc::dealloc((address as usize - GUARD) as *mut u8, layout(bytes)) };
}

impl Driver for Emulated {
    fn name(&self) -> String {
        "kernels of this machine".into()
    }

    fn memory_bytes(&self) -> u64 {
        self.gpu.room.load(Ordering::Relaxed)
    }

    fn processors(&self) -> u32 {
        1
    }

    fn check(&self, kernel: Kernel) -> Result<(), DriverError> {
        drop(self.call("check")?);
        let found = self.kernels.symbol(&kernel.entry());
        found.map(|_| ()).ok_or_else(|| DriverError::NoKernel(kernel.entry().into_owned()))
    }

    fn is_lost(&self) -> bool {
        let state = self.state();
        state.lost.is_some() || state.opened != self.opened
    }

    fn reopen(&self) -> Result<Arc<dyn Driver>, DriverError> {
        let mut state = self.state();
        state.clear();
        if let Some(i) = state.trouble.iter().position(|t| t.call == "reopen") {
            state.trouble.remove(i);
            return Err(DriverError::Lost("planted in reopen".into()));
        }
        (state.opened, state.lost) = (state.opened + 1, None);
        let (kernels, launch, opened) = (self.kernels, self.launch, state.opened);
        Ok(Arc::new(Self { kernels, launch, gpu: Arc::clone(&self.gpu), opened }))
    }

    fn alloc(&self, bytes: u64) -> Result<u64, DriverError> {
        let mut state = self.call("alloc")?;
        let held: usize = state.memory.values().sum();
        if bytes + held as u64 > self.memory_bytes() {
            return Err(DriverError::OutOfMemory(bytes));
        }
        let bytes = bytes as usize;
        // SAFETY: the layout is not empty.
        let start = unsafe { std::alloc::alloc(layout(bytes)) };
        assert!(!start.is_null(), "no room for {bytes} bytes");
        // SAFETY: just allocated, with guards on both sides.
        unsafe {
            start.write_bytes(GUARD_BYTE, bytes + 2 * GUARD);
            start.add(GUARD).write_bytes(FRESH_BYTE, bytes);
        }
        let address = start as u64 + GUARD as u64;
        state.memory.insert(address, bytes);
        Ok(address)
    }

    fn free(&self, address: u64) {
        let Ok(mut state) = self.call("free") else { return };
        if let Err(error) = state.guarded() {
            println!("{error}");
        }
        if let Some(bytes) = state.memory.remove(&address) {
            give_back(address, bytes);
        }
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), DriverError> {
        self.call("write")?.check(address, bytes.len())?;
        // SAFETY: memory that is held, and kernels do not run meanwhile: each driver has one user at a time.
        unsafe { (address as *mut u8).copy_from(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), DriverError> {
        let mut state = self.call("read")?;
        state.check(address, out.len())?;
        state.guarded()?;
        // SAFETY: as above.
        unsafe { out.as_mut_ptr().copy_from(address as *const u8, out.len()) };
        Ok(())
    }

    fn zero(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        self.call("zero")?.check(address, bytes as usize)?;
        // SAFETY: as above.
        unsafe { (address as *mut u8).write_bytes(0, bytes as usize) };
        Ok(())
    }

    fn copy(&self, from: u64, to: u64, bytes: u64) -> Result<(), DriverError> {
        let state = self.call("copy")?;
        state.check(from, bytes as usize)?;
        state.check(to, bytes as usize)?;
        // SAFETY: as above; the two do not overlap by contract.
        unsafe { (to as *mut u8).copy_from(from as *const u8, bytes as usize) };
        Ok(())
    }

    fn launch(&self, kernel: Kernel, shape: Shape, args: &Args) -> Result<(), DriverError> {
        // (Nobody else uses the memory meanwhile.)
        let _state = self.call("launch")?;
        let name = kernel.entry();
        let found = self.kernels.symbol(&name);
        let entry = found.ok_or_else(|| DriverError::NoKernel(name.clone().into_owned()))?;
        // SAFETY: a kernel of the library on addresses that this driver gave out, as the device's plan has them.
        let answer =
            unsafe { (self.launch)(entry, shape.grid.as_ptr(), shape.threads, shape.shared, args) };
        match answer {
            0 => Ok(()),
            1 => Err(DriverError::Failed(format!("{name}: threads wait for each other in vain"))),
            _ => Err(DriverError::Failed(format!("{name}: {shape:?}"))),
        }
    }

    fn done(&self) -> Result<bool, DriverError> {
        self.call("done")?.guarded()?;
        Ok(true)
    }
}
