//! Images as models want them: decoded under ceilings, resized and cut as the processors that the
//! models were trained with do it, and laid out as rows of patches.
//!
//! What a processor computes is data ([`Processor`]), read from `preprocessor_config.json`. Resizes
//! are exact: eight bits, two passes, the fixed point of [`Backend::Pillow`] or of
//! [`Backend::Torchvision`].

mod config;
mod decode;
mod error;
mod patches;
mod picture;
mod processor;
mod resample;
mod sizes;

pub use config::{Tower, grid};
pub use decode::{Ceilings, Format, decode, format, size};
pub use error::MediaError;
pub use patches::{Layout, Patches, Tile};
pub use picture::{Picture, Transparency};
pub use processor::{Arithmetic, Processor, Shape};
pub use resample::{Backend, Filter, resize};
pub use sizes::PanAndScan;
