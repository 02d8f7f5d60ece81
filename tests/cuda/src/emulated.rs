//! The driver over host kernels: memory of this process between guards, launches that end before they return.

use std::alloc::Layout;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tokenmill_cuda::driver::{Args, Driver, DriverError, Lane, Launched, Shape};
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
    /// Bytes of a page.
    page: AtomicU64,
    /// Whether addresses can be had apart from memory.
    has_spaces: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// Address → bytes.
    memory: BTreeMap<u64, usize>,
    /// Addresses without memory: where they begin, bytes.
    reserved: BTreeMap<u64, usize>,
    /// Memory without addresses, by name: bytes.
    created: BTreeMap<u64, usize>,
    names: u64,
    /// Memory under such addresses.
    mapped: BTreeMap<u64, Mapped>,
    /// What the lane of uploads was told and nobody has waited for yet, and how much before that.
    uploads: VecDeque<Told>,
    uploaded: u64,
    /// Of each event, what of that lane it waits for.
    events: BTreeMap<u64, u64>,
    graphs: BTreeMap<u64, Vec<Launched>>,
    /// Kernels that ran, and graphs.
    ran: (u64, u64),
    opened: u32,
    lost: Option<String>,
    /// Calls that will fail.
    trouble: Vec<Trouble>,
}

/// Bytes on their way, or zeros.
#[derive(Debug)]
struct Upload {
    address: u64,
    len: usize,
    bytes: Option<Vec<u8>>,
}

/// A kernel on its way: its function, and what runs it.
#[derive(Debug)]
struct Waiting {
    entry: usize,
    launch: Launch,
    launched: Launched,
}

#[derive(Debug)]
enum Told {
    Put(Upload),
    Run(Box<Waiting>),
}

/// Memory that lies under reserved addresses.
#[derive(Debug, Clone, Copy)]
struct Mapped {
    bytes: usize,
    /// Its name; it is held under that, too, until it is released.
    name: u64,
    is_allowed: bool,
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
        for (address, bytes) in std::mem::take(&mut self.reserved) {
            unreserve(address, bytes);
        }
        self.created.clear();
        self.mapped.clear();
        self.uploads.clear();
        self.events.clear();
        self.graphs.clear();
    }

    /// Has so much of what the lane of uploads was ever told be done.
    fn upload(&mut self, until: u64) -> Result<(), DriverError> {
        while self.uploaded < until {
            let Some(upload) = self.uploads.pop_front() else { return Ok(()) };
            self.uploaded += 1;
            match upload {
                Told::Put(upload) => self.put(&upload)?,
                Told::Run(waiting) => waiting.run()?,
            }
        }
        Ok(())
    }

    fn upload_all(&mut self) -> Result<(), DriverError> {
        self.upload(u64::MAX)
    }

    fn put(&self, Upload { address, len, bytes }: &Upload) -> Result<(), DriverError> {
        self.check(*address, *len)?;
        let to = *address as *mut u8;
        // SAFETY: memory that is held, and nobody else uses it: who does holds the state.
        unsafe {
            match bytes {
                Some(bytes) => to.copy_from(bytes.as_ptr(), *len),
                None => to.write_bytes(0, *len),
            }
        }
        Ok(())
    }

    /// Does it now or when the lane is waited for.
    fn tell(&mut self, lane: Lane, upload: Upload) -> Result<(), DriverError> {
        self.check(upload.address, upload.len)?;
        match lane {
            Lane::Steps => self.put(&upload)?,
            Lane::Uploads => self.uploads.push_back(Told::Put(upload)),
        }
        Ok(())
    }

    /// In pages of so many bytes: memory is taken in whole ones.
    fn held(&self, page: usize) -> usize {
        let unreleased = |m: &&Mapped| !self.created.contains_key(&m.name);
        let mapped: usize = self.mapped.values().filter(unreleased).map(|m| m.bytes).sum();
        let plain: usize = self.memory.values().map(|bytes| bytes.next_multiple_of(page)).sum();
        mapped + plain + self.created.values().sum::<usize>()
    }
}

impl Waiting {
    fn run(&self) -> Result<(), DriverError> {
        let Launched { kernel, shape, args } = &self.launched;
        let Shape { grid, threads, shared } = *shape;
        let entry = self.entry as *mut c_void;
        // SAFETY: a kernel of the library on addresses that this driver gave out, as the device's plan has them.
        let answer = unsafe { (self.launch)(entry, grid.as_ptr(), threads, shared, args) };
        let failed = |what: String| Err(DriverError::Failed(format!("{}: {what}", kernel.entry())));
        match answer {
            0 => Ok(()),
            1 => failed("threads wait for each other in vain".into()),
            _ => failed(format!("{shape:?}")),
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
        let room = AtomicU64::new(8 << 30);
        let (page, has_spaces) = (AtomicU64::new(4096), AtomicBool::new(true));
        let gpu = Gpu { state: Mutex::default(), room, page, has_spaces };
        Self { kernels, launch, gpu: Arc::new(gpu), opened: 0 }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.gpu.state.lock().expect("the state")
    }

    /// Leaves room for so many bytes.
    pub fn limit(&self, bytes: u64) {
        self.gpu.room.store(bytes, Ordering::Relaxed);
    }

    /// As a GPU whose addresses all have memory.
    pub fn without_spaces(&self) {
        self.gpu.has_spaces.store(false, Ordering::Relaxed);
    }

    /// Takes memory in pages of so many bytes, a multiple of 4096.
    pub fn pages_of(&self, bytes: u64) {
        self.gpu.page.store(bytes, Ordering::Relaxed);
    }

    /// Has a call of that name fail after so many more; with `lost` everything is lost then.
    pub fn fail(&self, call: &'static str, after: u32, lost: bool) {
        self.state().trouble.push(Trouble { call, after, lost });
    }

    /// Has no call fail any more.
    pub fn spare(&self) {
        self.state().trouble.clear();
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
        let page = self.page() as usize;
        self.state().held(page)
    }

    /// Pieces of memory that are held, each as it was asked for; a cache is one.
    pub fn pieces(&self) -> usize {
        let state = self.state();
        state.memory.len() + state.reserved.len()
    }

    /// Kernels that ran so far, those of graphs among them, and graphs that did.
    pub fn ran(&self) -> (u64, u64) {
        self.state().ran
    }

    /// Graphs and events that are held.
    pub fn names(&self) -> usize {
        let state = self.state();
        state.graphs.len() + state.events.len()
    }

    /// Whether the lane of uploads has something left to do.
    pub fn is_uploading(&self) -> bool {
        !self.state().uploads.is_empty()
    }

    /// Addresses that are held without being memory.
    pub fn reserved_bytes(&self) -> usize {
        self.state().reserved.values().sum()
    }

    fn has_room(&self, state: &State, bytes: u64) -> bool {
        let page = self.page();
        bytes.next_multiple_of(page) + state.held(page as usize) as u64 <= self.memory_bytes()
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
        if inside || bytes == 0 || self.is_mapped(address, bytes as u64) {
            return Ok(());
        }
        Err(DriverError::Failed(format!("{bytes} bytes at {address:#x}, which are not there")))
    }

    /// Whether all of those addresses have memory that may be used.
    fn is_mapped(&self, address: u64, bytes: u64) -> bool {
        let mut at = address;
        while at < address + bytes {
            let below = self.mapped.range(..=at).next_back();
            let end = below.filter(|(_, m)| m.is_allowed).map(|(start, m)| start + m.bytes as u64);
            match end.filter(|end| *end > at) {
                Some(end) => at = end,
                None => return false,
            }
        }
        true
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

/// A call of the system on pages of this process.
fn system(answer: i32, what: &str) {
    assert_eq!(answer, 0, "{what}: {}", std::io::Error::last_os_error());
}

fn unreserve(address: u64, bytes: usize) {
    // SAFETY: addresses that `reserve` gave.
    system(unsafe { libc::munmap(address as *mut c_void, bytes) }, "munmap");
}

/// An error of one who uses the calls on addresses wrongly.
fn misused(call: &str, address: u64, bytes: usize) -> DriverError {
    DriverError::Failed(format!("{call} of {bytes} bytes at {address:#x}"))
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

    fn page(&self) -> u64 {
        self.gpu.page.load(Ordering::Relaxed)
    }

    fn has_spaces(&self) -> bool {
        self.gpu.has_spaces.load(Ordering::Relaxed)
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
        if !self.has_room(&state, bytes) {
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
        state.upload_all().expect("memory that is there");
        if let Err(error) = state.guarded() {
            println!("{error}");
        }
        if let Some(bytes) = state.memory.remove(&address) {
            give_back(address, bytes);
        }
    }

    fn reserve(&self, bytes: u64) -> Result<u64, DriverError> {
        let mut state = self.call("reserve")?;
        let (len, flags) =
            (bytes as usize, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
        if !self.has_spaces() || bytes == 0 || !bytes.is_multiple_of(self.page()) {
            return Err(misused("reserve", 0, len));
        }
        // SAFETY: addresses that nobody has. What touches them ends the process, as it ends a context.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(address, libc::MAP_FAILED, "no room for {len} bytes of addresses");
        state.reserved.insert(address as u64, len);
        Ok(address as u64)
    }

    fn unreserve(&self, address: u64, bytes: u64) {
        let Ok(mut state) = self.call("unreserve") else { return };
        let inside = state.mapped.range(address..address + bytes).next();
        assert!(inside.is_none(), "addresses are given back that have memory");
        assert_eq!(state.reserved.remove(&address), Some(bytes as usize), "as they were reserved");
        unreserve(address, bytes as usize);
    }

    fn create(&self, bytes: u64) -> Result<u64, DriverError> {
        let mut state = self.call("create")?;
        if bytes == 0 || !bytes.is_multiple_of(self.page()) {
            return Err(misused("create", 0, bytes as usize));
        }
        if !self.has_room(&state, bytes) {
            return Err(DriverError::OutOfMemory(bytes));
        }
        state.names += 1;
        let name = state.names;
        state.created.insert(name, bytes as usize);
        Ok(name)
    }

    fn release(&self, memory: u64) -> Result<(), DriverError> {
        let mut state = self.call("release")?;
        state.created.remove(&memory).map(|_| ()).ok_or_else(|| misused("release", memory, 0))
    }

    fn map(&self, address: u64, bytes: u64, memory: u64) -> Result<(), DriverError> {
        let mut state = self.call("map")?;
        let (len, end) = (bytes as usize, address + bytes);
        let space = state.reserved.range(..=address).next_back();
        let is_reserved = space.is_some_and(|(start, len)| end <= start + *len as u64);
        let below = state.mapped.range(..end).next_back();
        let is_free = below.is_none_or(|(start, m)| start + m.bytes as u64 <= address);
        if !is_reserved || !is_free || state.created.get(&memory) != Some(&len) {
            return Err(misused("map", address, len));
        }
        state.mapped.insert(address, Mapped { bytes: len, name: memory, is_allowed: false });
        Ok(())
    }

    fn allow(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        let mut state = self.call("allow")?;
        let len = bytes as usize;
        state.mapped.range_mut(address..address + bytes).for_each(|(_, m)| m.is_allowed = true);
        if !state.is_mapped(address, bytes) {
            return Err(misused("allow", address, len));
        }
        let (at, access) = (address as *mut c_void, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: reserved addresses.
        system(unsafe { libc::mprotect(at, len, access) }, "mprotect");
        // SAFETY: which may be written since.
        unsafe { at.cast::<u8>().write_bytes(FRESH_BYTE, len) };
        Ok(())
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        let mut state = self.call("unmap")?;
        state.upload_all()?;
        let len = bytes as usize;
        // (A GPU takes away whole what was put there whole.)
        if state.mapped.get(&address).is_none_or(|m| m.bytes != len) {
            return Err(misused("unmap", address, len));
        }
        state.mapped.remove(&address);
        let at = address as *mut c_void;
        // SAFETY: reserved addresses whose memory nobody uses.
        unsafe {
            system(libc::madvise(at, len, libc::MADV_DONTNEED), "madvise");
            system(libc::mprotect(at, len, libc::PROT_NONE), "mprotect");
        }
        Ok(())
    }

    fn write(&self, lane: Lane, address: u64, bytes: &[u8]) -> Result<(), DriverError> {
        let (len, bytes) = (bytes.len(), Some(bytes.to_vec()));
        self.call("write")?.tell(lane, Upload { address, len, bytes })
    }

    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), DriverError> {
        let mut state = self.call("read")?;
        state.check(address, out.len())?;
        state.guarded()?;
        // SAFETY: memory that is held, and kernels do not run meanwhile: they hold the state.
        unsafe { out.as_mut_ptr().copy_from(address as *const u8, out.len()) };
        Ok(())
    }

    fn zero(&self, lane: Lane, address: u64, bytes: u64) -> Result<(), DriverError> {
        self.call("zero")?.tell(lane, Upload { address, len: bytes as usize, bytes: None })
    }

    fn copy(&self, from: u64, to: u64, bytes: u64) -> Result<(), DriverError> {
        let state = self.call("copy")?;
        state.check(from, bytes as usize)?;
        state.check(to, bytes as usize)?;
        // SAFETY: as above; the two do not overlap by contract.
        unsafe { (to as *mut u8).copy_from(from as *const u8, bytes as usize) };
        Ok(())
    }

    fn launch(
        &self,
        lane: Lane,
        kernel: Kernel,
        shape: Shape,
        args: &Args,
    ) -> Result<(), DriverError> {
        // (Nobody else uses the memory meanwhile.)
        let mut state = self.call("launch")?;
        state.ran.0 += 1;
        let name = kernel.entry();
        let found = self.kernels.symbol(&name);
        let entry = found.ok_or_else(|| DriverError::NoKernel(name.clone().into_owned()))?;
        let launched = Launched { kernel, shape, args: *args };
        let waiting = Waiting { entry: entry as usize, launch: self.launch, launched };
        match lane {
            Lane::Steps => waiting.run(),
            Lane::Uploads => {
                state.uploads.push_back(Told::Run(Box::new(waiting)));
                Ok(())
            }
        }
    }

    fn graph(&self, launches: &[Launched]) -> Result<u64, DriverError> {
        for launched in launches {
            self.check(launched.kernel)?;
        }
        let mut state = self.call("graph")?;
        state.names += 1;
        let name = state.names;
        state.graphs.insert(name, launches.to_vec());
        Ok(name)
    }

    fn replay(&self, graph: u64) -> Result<(), DriverError> {
        let mut state = self.call("replay")?;
        state.ran.1 += 1;
        let launches = state.graphs[&graph].clone();
        drop(state);
        launches.iter().try_for_each(|l| self.launch(Lane::Steps, l.kernel, l.shape, &l.args))
    }

    fn forget_graph(&self, graph: u64) {
        let Ok(mut state) = self.call("forget_graph") else { return };
        assert!(state.graphs.remove(&graph).is_some(), "a graph that is there");
    }

    fn event(&self) -> Result<u64, DriverError> {
        let mut state = self.call("event")?;
        state.names += 1;
        let name = state.names;
        state.events.insert(name, 0);
        Ok(name)
    }

    fn forget_event(&self, event: u64) {
        let Ok(mut state) = self.call("forget_event") else { return };
        assert!(state.events.remove(&event).is_some(), "an event that is there");
    }

    fn record(&self, event: u64, lane: Lane) -> Result<(), DriverError> {
        let mut state = self.call("record")?;
        let told = state.uploaded + state.uploads.len() as u64;
        // (Steps are done when they are told.)
        let position = if lane == Lane::Uploads { told } else { 0 };
        assert!(state.events.insert(event, position).is_some(), "an event that is there");
        Ok(())
    }

    fn follow(&self, lane: Lane, event: u64) -> Result<(), DriverError> {
        let mut state = self.call("follow")?;
        let position = state.events[&event];
        match lane {
            Lane::Steps => state.upload(position),
            Lane::Uploads => Ok(()),
        }
    }

    fn passed(&self, event: u64) -> Result<bool, DriverError> {
        let mut state = self.call("passed")?;
        state.guarded()?;
        Ok(state.events[&event] <= state.uploaded)
    }

    fn wait(&self, event: u64) -> Result<(), DriverError> {
        let mut state = self.call("wait")?;
        state.guarded()?;
        let position = state.events[&event];
        state.upload(position)
    }
}
