//! The ops of the device, one file a family.

pub(crate) mod attend;
pub(crate) mod delta;
pub(crate) mod elementwise;
pub(crate) mod embed;
pub(crate) mod experts;
pub(crate) mod heads;
pub(crate) mod latent;
pub(crate) mod linear;
pub(crate) mod norm;
pub(crate) mod recurrent;
pub(crate) mod rotate;
pub(crate) mod sample;
pub(crate) mod scan;
