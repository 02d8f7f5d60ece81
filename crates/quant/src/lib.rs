//! Stored weight formats: what the bytes of a weight mean, one file per format.
//!
//! [`FORMATS`] is the one table; readers, planner, kernels and tests all go through it. A
//! format's `decode` *is* its definition: exact f32 operations in a stated order, so every
//! kernel and every other implementation can be held against it bit for bit.

mod blocks;
mod coded;
pub mod exl3;
pub mod fields;
pub mod float;
mod format;
mod grids;

mod bf16;
mod f16;
mod flat;
mod iq1_m;
mod iq1_s;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
mod iq4_nl;
mod iq4_xs;
mod mxfp4;
mod nvfp4;
mod plain;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod tq1_0;
mod tq2_0;

pub use flat::{FP4_VALUES, NF4_VALUES};
pub use format::{Decode, Encode, FORMATS, Format, FormatId, UnknownFormat};
pub use mxfp4::MXFP4_VALUES_DOUBLED;
pub use q4_k::scale_and_min;
