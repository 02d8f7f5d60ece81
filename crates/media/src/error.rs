//! What can be wrong with an image, or with the description of a processor.

use thiserror::Error;

/// Why an image is not taken.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum MediaError {
    /// The file is too long.
    #[error("the image has {bytes} bytes, more than the {most} allowed")]
    Bytes {
        /// Of the file.
        bytes: usize,
        /// The ceiling.
        most: usize,
    },
    /// Its header says that it is larger than is decoded.
    #[error(
        "the image is {width} x {height} pixels, more than the {most} allowed; send a smaller one"
    )]
    Pixels {
        /// Columns.
        width: u32,
        /// Rows.
        height: u32,
        /// The ceiling.
        most: u64,
    },
    /// Decoded, it would take too much memory.
    #[error(
        "the image takes {bytes} bytes decoded, more than the {most} allowed; send a smaller one"
    )]
    Memory {
        /// Decoded.
        bytes: u64,
        /// The ceiling.
        most: u64,
    },
    /// The first bytes are those of no format that is read.
    #[error("this is no image of a format that is read: PNG, JPEG, WebP, GIF and BMP are")]
    Unknown,
    /// The file contradicts itself or ends too early.
    #[error("the {format} image is broken: {reason}")]
    Broken {
        /// Its format.
        format: &'static str,
        /// What the decoder says.
        reason: String,
    },
    /// It has no pixels.
    #[error("the image is {width} x {height} pixels: there is nothing to see")]
    Empty {
        /// Columns.
        width: u32,
        /// Rows.
        height: u32,
    },
    /// The model's processor takes no image of that shape.
    #[error("the image is {width} x {height} pixels: {reason}")]
    Shape {
        /// Columns.
        width: u32,
        /// Rows.
        height: u32,
        /// Why not.
        reason: String,
    },
    /// A key of the processor's description has a value that makes no sense.
    #[error("the image processor's {key} is {value}: {reason}")]
    Config {
        /// The key.
        key: &'static str,
        /// What stands there.
        value: String,
        /// What should.
        reason: &'static str,
    },
    /// A processor, or a setting of one, that is not built.
    #[error("the image processor {what} is not supported; these are: {known}")]
    Unsupported {
        /// Which.
        what: String,
        /// Those that are.
        known: String,
    },
}
