//! The ops of the device, one file a family.

pub(crate) mod attend;
pub(crate) mod elementwise;
pub(crate) mod embed;
pub(crate) mod linear;
pub(crate) mod norm;
pub(crate) mod rotate;
pub(crate) mod sample;
