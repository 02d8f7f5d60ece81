//! The simulated device with a thread of its own, as an accelerator has: a submitted step runs while
//! the host does something else.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokenmill_ir::{Batch, BlockId, StepOutput};

use super::{NAME, SimExecutable};
use tokenmill_backend::{BlockBytes, DeviceError, Executable};

/// An executable behind a thread, which ends with it.
pub(super) struct Alone {
    inner: Arc<Mutex<SimExecutable>>,
    steps: Sender<Batch>,
    done: Receiver<Result<(), DeviceError>>,
    /// What came of the step in flight, once it is known; `None`: no step is in flight.
    step: Option<Option<Result<(), DeviceError>>>,
}

impl Alone {
    pub fn start(executable: SimExecutable) -> Self {
        let (steps, received) = channel::<Batch>();
        let (told, done) = channel();
        let inner = Arc::new(Mutex::new(executable));
        let own = Arc::clone(&inner);
        // A panic in a step drops `told`, which the host takes for a failure.
        std::thread::spawn(move || {
            for mut batch in received {
                let ran = lock(&own).submit(&mut batch);
                if told.send(ran).is_err() {
                    break;
                }
            }
        });
        Self { inner, steps, done, step: None }
    }

    fn idle(&self) -> MutexGuard<'_, SimExecutable> {
        assert!(self.step.is_none(), "a step is in flight");
        lock(&self.inner)
    }
}

fn lock(inner: &Mutex<SimExecutable>) -> MutexGuard<'_, SimExecutable> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

fn gone() -> DeviceError {
    DeviceError::Failed { device: NAME.into(), reason: "its thread panicked".into() }
}

impl Executable for Alone {
    fn runs_alone(&self) -> bool {
        true
    }

    fn submit(&mut self, batch: &mut Batch) -> Result<(), DeviceError> {
        assert!(self.step.is_none(), "a step is in flight");
        self.steps.send(std::mem::take(batch)).map_err(|_| gone())?;
        self.step = Some(None);
        Ok(())
    }

    fn advance(&mut self, at_most: Duration) -> Result<bool, DeviceError> {
        let Some(step @ None) = &mut self.step else { return Ok(true) };
        match self.done.recv_timeout(at_most) {
            Ok(ran) => *step = Some(ran),
            Err(RecvTimeoutError::Timeout) => return Ok(false),
            Err(RecvTimeoutError::Disconnected) => *step = Some(Err(gone())),
        }
        Ok(true)
    }

    fn wait(&mut self, out: &mut StepOutput) -> Result<(), DeviceError> {
        match self.step.take() {
            Some(Some(ran)) => ran?,
            Some(None) => self.done.recv().unwrap_or_else(|_| Err(gone()))?,
            None => return Err(DeviceError::BadBatch("no step was submitted".into())),
        }
        lock(&self.inner).wait(out)
    }

    fn resize(&mut self, blocks: &[u32]) -> Result<(), DeviceError> {
        self.idle().resize(blocks)
    }

    fn blocks(&self) -> Result<BlockBytes, DeviceError> {
        self.idle().blocks()
    }

    fn read_block(&mut self, g: usize, block: BlockId, out: &mut [u8]) -> Result<(), DeviceError> {
        self.idle().read_block(g, block, out)
    }

    fn write_block(&mut self, g: usize, block: BlockId, bytes: &[u8]) -> Result<(), DeviceError> {
        self.idle().write_block(g, block, bytes)
    }
}
