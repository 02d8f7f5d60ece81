//! A program's weights in the memory of a device.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use tokenmill_ir::Mode;

/// Tells a device's own weights from those of others.
#[derive(Debug, Clone, Default)]
pub struct Owner(Arc<()>);

/// The weights of a program on a device. Clones share them; the memory is given back with the last
/// one, executables included.
#[derive(Clone)]
pub struct Weights {
    owner: Owner,
    mode: Mode,
    held: Arc<dyn Any + Send + Sync>,
}

impl Weights {
    /// What a device keeps of a program's weights, for itself.
    pub fn new<T: Any + Send + Sync>(owner: &Owner, mode: Mode, held: T) -> Self {
        Self { owner: owner.clone(), mode, held: Arc::new(held) }
    }

    /// What that device kept; `None` if another one did.
    pub fn of<T: Any + Send + Sync>(&self, owner: &Owner) -> Option<Arc<T>> {
        let own = Arc::ptr_eq(&self.owner.0, &owner.0);
        own.then(|| Arc::clone(&self.held).downcast().ok()).flatten()
    }

    /// The arithmetic they were laid out for.
    pub fn mode(&self) -> Mode {
        self.mode
    }
}

impl fmt::Debug for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Weights").field("mode", &self.mode).finish_non_exhaustive()
    }
}
