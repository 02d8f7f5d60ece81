//! What devices are tested with: the suite that every device passes, and a simulated device that
//! notices every mistake of whoever drives it.

pub mod conformance;
pub mod sim;
