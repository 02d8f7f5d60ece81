//! What this crate asks of a GPU: memory at addresses, and kernels that run one after another.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use crate::kernels::Kernel;

/// Kernels' one argument, as kernels/args.h has it.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Args {
    /// Addresses.
    pub p: [u64; 16],
    /// Whole numbers.
    pub n: [u32; 24],
    /// Floats.
    pub f: [f32; 8],
}

/// Blocks and threads of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Blocks along three axes.
    pub grid: [u32; 3],
    /// Threads of a block, whole warps.
    pub threads: u32,
    /// Bytes of memory that a block asks for.
    pub shared: u32,
}

/// A kernel as it is to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Launched {
    /// Which.
    pub kernel: Kernel,
    /// Its blocks and threads.
    pub shape: Shape,
    /// Its argument.
    pub args: Args,
}

/// What a driver answers instead.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DriverError {
    /// No room.
    #[error("no room for {0} bytes")]
    OutOfMemory(u64),
    /// A kernel that was not built for this GPU, or not at all.
    #[error("no kernel {0}")]
    NoKernel(String),
    /// This call failed; others may go on.
    #[error("{0}")]
    Failed(String),
    /// Nothing works any more until everything is made again.
    #[error("{0}")]
    Lost(String),
}

/// What happens in the order in which it was told. Two of them wait for each other where that is
/// asked for only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Steps, and what goes between them.
    Steps,
    /// What programs need before their first step.
    Uploads,
}

/// A GPU. Addresses are those that it gave, and nobody is told to read or write beyond what was
/// asked for. Calls that name no lane are of [`Lane::Steps`]. Once anything is lost, every call
/// fails alike, and what was given out is nobody's: only `reopen` mends that.
pub trait Driver: Send + Sync {
    /// Its name.
    fn name(&self) -> String;

    /// Memory it can use, bytes.
    fn memory_bytes(&self) -> u64;

    /// Its multiprocessors.
    fn processors(&self) -> u32;

    /// Bytes of a page: memory is taken in whole ones.
    fn page(&self) -> u64;

    /// Whether addresses can be had apart from memory, as the calls from `reserve` on do.
    fn has_spaces(&self) -> bool;

    /// Whether a kernel can run.
    ///
    /// # Errors
    /// `NoKernel`, or why it does not load.
    fn check(&self, kernel: Kernel) -> Result<(), DriverError>;

    /// Whether everything is lost.
    fn is_lost(&self) -> bool;

    /// The same GPU afresh, in place of this driver, of which nothing works or is held any more.
    ///
    /// # Errors
    /// Why it cannot be had; it may be asked for again.
    fn reopen(&self) -> Result<Arc<dyn Driver>, DriverError>;

    /// Memory whose address is a multiple of 256.
    ///
    /// # Errors
    /// `OutOfMemory` and others.
    fn alloc(&self, bytes: u64) -> Result<u64, DriverError>;

    /// Gives memory back once nothing that was told before uses it.
    fn free(&self, address: u64);

    /// Addresses without memory, whole pages.
    ///
    /// # Errors
    /// As `alloc`.
    fn reserve(&self, bytes: u64) -> Result<u64, DriverError>;

    /// Gives addresses back, under which there is no memory.
    fn unreserve(&self, address: u64, bytes: u64);

    /// Memory without an address, whole pages: its name.
    ///
    /// # Errors
    /// As `alloc`.
    fn create(&self, bytes: u64) -> Result<u64, DriverError>;

    /// Gives that memory back, or has it go with its addresses.
    ///
    /// # Errors
    /// Those of this call.
    fn release(&self, memory: u64) -> Result<(), DriverError>;

    /// Puts memory, whole, under addresses that have none.
    ///
    /// # Errors
    /// As `release`.
    fn map(&self, address: u64, bytes: u64, memory: u64) -> Result<(), DriverError>;

    /// Lets memory under addresses be used.
    ///
    /// # Errors
    /// As `release`.
    fn allow(&self, address: u64, bytes: u64) -> Result<(), DriverError>;

    /// Takes away memory as it was put there, once nothing that was told before uses it.
    ///
    /// # Errors
    /// As `release`.
    fn unmap(&self, address: u64, bytes: u64) -> Result<(), DriverError>;

    /// Copies bytes there; they may change afterwards.
    ///
    /// # Errors
    /// Those of this call and of what was told before.
    fn write(&self, lane: Lane, address: u64, bytes: &[u8]) -> Result<(), DriverError>;

    /// Waits for what was told before, and copies bytes from there.
    ///
    /// # Errors
    /// As `write`.
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), DriverError>;

    /// Fills memory with zeros.
    ///
    /// # Errors
    /// As `write`.
    fn zero(&self, lane: Lane, address: u64, bytes: u64) -> Result<(), DriverError>;

    /// Copies memory to memory, which do not overlap.
    ///
    /// # Errors
    /// As `write`.
    fn copy(&self, from: u64, to: u64, bytes: u64) -> Result<(), DriverError>;

    /// Runs a kernel.
    ///
    /// # Errors
    /// As `write`.
    fn launch(
        &self,
        lane: Lane,
        kernel: Kernel,
        shape: Shape,
        args: &Args,
    ) -> Result<(), DriverError>;

    /// Kernels that will run one after another, told at once and as often as wanted: a name.
    ///
    /// # Errors
    /// Those of this call.
    fn graph(&self, launches: &[Launched]) -> Result<u64, DriverError>;

    /// Runs the kernels of a graph.
    ///
    /// # Errors
    /// As `write`.
    fn replay(&self, graph: u64) -> Result<(), DriverError>;

    /// The name is used no more; what runs ends first.
    fn forget_graph(&self, graph: u64);

    /// Something that passes, by a name.
    ///
    /// # Errors
    /// Those of this call.
    fn event(&self) -> Result<u64, DriverError>;

    /// The name is used no more.
    fn forget_event(&self, event: u64);

    /// Has an event pass when all is done that a lane was told before.
    ///
    /// # Errors
    /// Those of this call and of what was told before.
    fn record(&self, event: u64, lane: Lane) -> Result<(), DriverError>;

    /// Has a lane wait for an event before what it is told from now on.
    ///
    /// # Errors
    /// As `record`.
    fn follow(&self, lane: Lane, event: u64) -> Result<(), DriverError>;

    /// Whether an event has passed; one that was never recorded has.
    ///
    /// # Errors
    /// As `record`.
    fn passed(&self, event: u64) -> Result<bool, DriverError>;

    /// Waits until an event has passed.
    ///
    /// # Errors
    /// As `record`.
    fn wait(&self, event: u64) -> Result<(), DriverError>;
}

/// An event of a driver.
pub(crate) struct Event {
    driver: Arc<dyn Driver>,
    name: u64,
}

impl Event {
    pub fn new(driver: &Arc<dyn Driver>) -> Result<Self, DriverError> {
        Ok(Self { driver: Arc::clone(driver), name: driver.event()? })
    }

    /// Passes when all is done that a lane was told before.
    pub fn record(&self, lane: Lane) -> Result<(), DriverError> {
        self.driver.record(self.name, lane)
    }

    /// A lane waits for it.
    pub fn before(&self, lane: Lane) -> Result<(), DriverError> {
        self.driver.follow(lane, self.name)
    }

    pub fn passed(&self) -> Result<bool, DriverError> {
        self.driver.passed(self.name)
    }

    pub fn wait(&self) -> Result<(), DriverError> {
        self.driver.wait(self.name)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.driver.forget_event(self.name);
    }
}

/// Memory of a GPU, given back with this.
pub(crate) struct Memory {
    driver: Arc<dyn Driver>,
    address: u64,
    bytes: u64,
}

impl Memory {
    /// So many bytes; none has no address.
    pub fn new(driver: &Arc<dyn Driver>, bytes: u64) -> Result<Self, DriverError> {
        let address = if bytes == 0 { 0 } else { driver.alloc(bytes)? };
        Ok(Self { driver: Arc::clone(driver), address, bytes })
    }

    pub fn address(&self) -> u64 {
        self.address
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether that driver gave it.
    pub fn is_of(&self, driver: &Arc<dyn Driver>) -> bool {
        Arc::ptr_eq(&self.driver, driver)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.driver.free(self.address);
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x}", self.bytes, self.address)
    }
}
