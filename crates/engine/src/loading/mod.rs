//! From files to a model that runs: what they hold is read behind one door, planned for the memory
//! there is, uploaded, and started.

pub mod describe;
pub mod door;
pub mod encoder;
pub mod identity;
pub mod library;
pub mod load;
pub mod packaged;
pub mod plan;
pub mod sight;
pub mod start;
pub mod vocabulary;
