//! What drivers answer, as errors of a device.

use tokenmill_backend::DeviceError;

use crate::driver::DriverError;

/// The device's name in errors.
pub(crate) const DEVICE: &str = "cuda";

/// A driver's error on the way to `what`.
pub(crate) fn of(error: DriverError, what: &str) -> DeviceError {
    let device = DEVICE.to_owned();
    match error {
        DriverError::OutOfMemory(needed_bytes) => {
            DeviceError::OutOfMemory { device, what: what.to_owned(), needed_bytes }
        }
        DriverError::NoKernel(name) => {
            DeviceError::Unsupported { device, what: format!("{name}: no kernel was built for it") }
        }
        DriverError::Failed(reason) => {
            DeviceError::Failed { device, reason: format!("{what}: {reason}") }
        }
        DriverError::Lost(reason) => {
            DeviceError::Lost { device, reason: format!("{what}: {reason}") }
        }
    }
}

/// What there is no kernel for.
pub(crate) fn unsupported(what: impl Into<String>) -> DeviceError {
    DeviceError::Unsupported { device: DEVICE.into(), what: what.into() }
}
