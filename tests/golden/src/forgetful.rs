//! A device that is lost once, with all weights on it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokenmill_backend::reference::ReferenceDevice;
use tokenmill_backend::{Device, DeviceError, Executable, Footprint, Watch, Weights};
use tokenmill_ir::{Batch, DeviceCaps, Limits, Mode, Program, StepOutput, WeightSource};

/// Tokens of a block.
const BLOCK: u32 = 16;

/// The reference device, lost in one of its steps: what was on it is gone for all who had something there.
pub struct Forgetful {
    /// The device, and how often it had been lost before it was there.
    now: Mutex<(u32, Arc<ReferenceDevice>)>,
    fate: Arc<Fate>,
    caps: DeviceCaps,
}

struct Fate {
    /// The step that is its last.
    at: u32,
    steps: AtomicU32,
    losses: AtomicU32,
}

impl Forgetful {
    /// One that is lost in its step of that number, from 1 on.
    pub fn new(at: u32) -> Arc<Self> {
        let device = ReferenceDevice::new(BLOCK);
        let caps = device.caps().clone();
        let fate = Fate { at, steps: AtomicU32::new(0), losses: AtomicU32::new(0) };
        Arc::new(Self { now: Mutex::new((0, Arc::new(device))), fate: Arc::new(fate), caps })
    }

    /// Another one after it was lost, for which the old one's weights are nobody's.
    fn now(&self) -> (u32, Arc<ReferenceDevice>) {
        let mut now = self.now.lock().expect("no panic in here");
        let losses = self.fate.losses.load(Ordering::SeqCst);
        if now.0 != losses {
            *now = (losses, Arc::new(ReferenceDevice::new(BLOCK)));
        }
        now.clone()
    }
}

impl Device for Forgetful {
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
        self.now().1.upload(program, source, mode, watch)
    }

    fn footprint(&self, p: &Program, l: &Limits, m: Mode) -> Result<Footprint, DeviceError> {
        self.now().1.footprint(p, l, m)
    }

    fn compile(
        &self,
        program: &Program,
        weights: &Weights,
        limits: &Limits,
    ) -> Result<Box<dyn Executable>, DeviceError> {
        let (made, device) = self.now();
        let inner = device.compile(program, weights, limits)?;
        Ok(Box::new(Forgets { inner, made, fate: Arc::clone(&self.fate) }))
    }
}

struct Forgets {
    inner: Box<dyn Executable>,
    made: u32,
    fate: Arc<Fate>,
}

impl Executable for Forgets {
    fn submit(&mut self, batch: &mut Batch) -> Result<(), DeviceError> {
        let Fate { at, steps, losses } = &*self.fate;
        if steps.fetch_add(1, Ordering::SeqCst) + 1 == *at {
            losses.fetch_add(1, Ordering::SeqCst);
        }
        if losses.load(Ordering::SeqCst) != self.made {
            let (device, reason) = ("a device".into(), "it fell off the bus".into());
            return Err(DeviceError::Lost { device, reason });
        }
        self.inner.submit(batch)
    }

    fn advance(&mut self, at_most: Duration) -> Result<bool, DeviceError> {
        self.inner.advance(at_most)
    }

    fn wait(&mut self, out: &mut StepOutput) -> Result<(), DeviceError> {
        self.inner.wait(out)
    }

    fn resize(&mut self, blocks: &[u32]) -> Result<(), DeviceError> {
        self.inner.resize(blocks)
    }
}
