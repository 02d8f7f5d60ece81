//! Images on the command line: files that a question is about.

use std::path::Path;

use tokenmill_engine::start::Served;
use tokenmill_media::{Ceilings, Picture, decode};

use crate::failure::Failure;

/// The pixels of a file.
///
/// # Errors
/// It cannot be read, is too large, or no image of a format that is read.
pub fn read(path: &Path) -> Result<Picture, Failure> {
    let failed = |e: &dyn std::fmt::Display| {
        Failure::new(format!("cannot show the image {}", path.display()), e)
    };
    let ceilings = Ceilings::default();
    let length = std::fs::metadata(path).map_err(|e| failed(&e))?.len();
    if length > ceilings.bytes as u64 {
        let most = ceilings.bytes;
        return Err(failed(&format!("it has {length} bytes, more than the {most} allowed")));
    }
    let file = std::fs::read(path).map_err(|e| failed(&e))?;
    decode(&file, &ceilings).map_err(|e| failed(&e))
}

/// Whether a model sees images: no encoder is built yet.
///
/// # Errors
/// It does not.
pub fn seen_by(served: &Served, name: &str) -> Result<(), Failure> {
    let _ = served;
    Err(Failure::new(format!("{name} sees no images"), "the model reads text only")
        .fix(format!("tokenmill run {name} \"your question\"")))
}
