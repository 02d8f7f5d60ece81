//! The driver over host kernels: memory of this process between guards, launches that end before they return.

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tokenmill_cuda::driver::{Args, Driver, DriverError, Shape};
use tokenmill_cuda::kernels::Kernel;

use crate::build::Kernels;

/// Bytes before and behind each piece of memory that nobody may write.
const GUARD: usize = 256;
const GUARD_BYTE: u8 = 0xa5;
/// What fresh memory holds: no number.
const FRESH_BYTE: u8 = 0xff;

type Launch = unsafe extern "C" fn(*mut c_void, *const u32, u32, u32, *const Args) -> i32;

/// Kernels of this machine as a driver.
#[derive(Debug)]
pub struct Emulated {
    kernels: &'static Kernels,
    launch: Launch,
    /// Address → bytes.
    memory: Mutex<BTreeMap<u64, usize>>,
    /// Bytes that may be held.
    room: AtomicU64,
    /// Launches until one fails, and whether everything is lost with it.
    trouble: Mutex<Option<(u32, bool)>>,
}

impl Emulated {
    /// Of a library.
    pub fn new(kernels: &'static Kernels) -> Self {
        let launch = kernels.symbol("tokenmill_launch").expect("tokenmill_launch");
        // SAFETY: the function has this type in kernels/host.cpp.
        let launch = unsafe { std::mem::transmute::<*mut c_void, Launch>(launch) };
        let (memory, trouble) = (Mutex::default(), Mutex::default());
        Self { kernels, launch, memory, room: AtomicU64::new(8 << 30), trouble }
    }

    /// Leaves room for so many bytes.
    pub fn limit(&self, bytes: u64) {
        self.room.store(bytes, Ordering::Relaxed);
    }

    /// Has one launch fail after so many more; `lost`: all calls after it too.
    pub fn fail_after(&self, launches: u32, lost: bool) {
        *self.trouble.lock().expect("trouble") = Some((launches, lost));
    }

    /// Whether this launch fails.
    fn in_trouble(&self) -> Result<(), DriverError> {
        let mut trouble = self.trouble.lock().expect("trouble");
        let Some((launches, lost)) = trouble.as_mut() else { return Ok(()) };
        if *launches > 0 {
            *launches -= 1;
            return Ok(());
        }
        if *lost {
            return Err(DriverError::Lost("planted".into()));
        }
        *trouble = None;
        Err(DriverError::Failed("planted".into()))
    }

    /// Bytes that are held.
    pub fn held_bytes(&self) -> usize {
        self.memory.lock().expect("memory").values().sum()
    }

    /// Whether those bytes lie in one piece of memory.
    fn check(&self, address: u64, bytes: usize) -> Result<(), DriverError> {
        let memory = self.memory.lock().expect("memory");
        let piece = memory.range(..=address).next_back();
        let inside =
            piece.is_some_and(|(start, len)| address - start + bytes as u64 <= *len as u64);
        if inside || bytes == 0 {
            return Ok(());
        }
        Err(DriverError::Failed(format!("{bytes} bytes at {address:#x}, which are not there")))
    }

    /// Whether all guards are as they were.
    fn guarded(&self) -> Result<(), DriverError> {
        let memory = self.memory.lock().expect("memory");
        for (&start, &len) in memory.iter() {
            let start = start as usize;
            for guard in [start - GUARD, start + len] {
                // SAFETY: the guard of a piece of memory that is held.
                let guard = unsafe { std::slice::from_raw_parts(guard as *const u8, GUARD) };
                if guard.iter().any(|b| *b != GUARD_BYTE) {
                    let reason = format!("something was written beside {len} bytes of memory");
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

impl Driver for Emulated {
    fn name(&self) -> String {
        "kernels of this machine".into()
    }

    fn memory_bytes(&self) -> u64 {
        self.room.load(Ordering::Relaxed)
    }

    fn processors(&self) -> u32 {
        1
    }

    fn has(&self, kernel: Kernel) -> bool {
        self.kernels.symbol(&kernel.entry()).is_some()
    }

    fn alloc(&self, bytes: u64) -> Result<u64, DriverError> {
        if bytes + self.held_bytes() as u64 > self.memory_bytes() {
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
        self.memory.lock().expect("memory").insert(address, bytes);
        Ok(address)
    }

    fn free(&self, address: u64) {
        if let Err(error) = self.guarded() {
            println!("{error}");
        }
        let bytes = self.memory.lock().expect("memory").remove(&address);
        if let Some(bytes) = bytes {
            // SAFETY: allocated with this layout, and held until now.
            unsafe { std::alloc::dealloc((address as usize - GUARD) as *mut u8, layout(bytes)) };
        }
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), DriverError> {
        self.check(address, bytes.len())?;
        // SAFETY: memory that is held, and kernels do not run meanwhile: each driver has one user at a time.
        unsafe { (address as *mut u8).copy_from(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), DriverError> {
        self.check(address, out.len())?;
        self.guarded()?;
        // SAFETY: as above.
        unsafe { out.as_mut_ptr().copy_from(address as *const u8, out.len()) };
        Ok(())
    }

    fn zero(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        self.check(address, bytes as usize)?;
        // SAFETY: as above.
        unsafe { (address as *mut u8).write_bytes(0, bytes as usize) };
        Ok(())
    }

    fn copy(&self, from: u64, to: u64, bytes: u64) -> Result<(), DriverError> {
        self.check(from, bytes as usize)?;
        self.check(to, bytes as usize)?;
        // SAFETY: as above; the two do not overlap by contract.
        unsafe { (to as *mut u8).copy_from(from as *const u8, bytes as usize) };
        Ok(())
    }

    fn launch(&self, kernel: Kernel, shape: Shape, args: &Args) -> Result<(), DriverError> {
        self.in_trouble()?;
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
        self.guarded()?;
        Ok(true)
    }
}
