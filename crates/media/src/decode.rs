//! Files of images as pictures, under ceilings: what a header declares is looked at before anything
//! is allocated for it.

use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};

use crate::error::MediaError;
use crate::picture::Picture;

/// How large images may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ceilings {
    /// The file, bytes.
    pub bytes: usize,
    /// Pixels of the image.
    pub pixels: u64,
    /// Its memory once decoded, bytes.
    pub memory: u64,
}

impl Default for Ceilings {
    fn default() -> Self {
        Self { bytes: 20 << 20, pixels: 40_000_000, memory: 256 << 20 }
    }
}

/// A format that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Portable Network Graphics; of an animation the image that all readers show.
    Png,
    /// JPEG, progressive ones and those of four inks as well.
    Jpeg,
    /// WebP; of an animation the first frame.
    WebP,
    /// GIF: the first frame.
    Gif,
    /// Windows' bitmaps.
    Bmp,
}

impl Format {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Png => "PNG",
            Self::Jpeg => "JPEG",
            Self::WebP => "WebP",
            Self::Gif => "GIF",
            Self::Bmp => "BMP",
        }
    }

    /// Its media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg => "image/jpeg",
            Self::WebP => "image/webp",
            Self::Gif => "image/gif",
            Self::Bmp => "image/bmp",
        }
    }

    fn decoder(self) -> ImageFormat {
        match self {
            Self::Png => ImageFormat::Png,
            Self::Jpeg => ImageFormat::Jpeg,
            Self::WebP => ImageFormat::WebP,
            Self::Gif => ImageFormat::Gif,
            Self::Bmp => ImageFormat::Bmp,
        }
    }
}

/// How the files of each format begin.
const MAGIC: &[(&[u8], Format)] = &[
    (b"\x89PNG\r\n\x1a\n", Format::Png),
    (b"\xff\xd8\xff", Format::Jpeg),
    (b"GIF87a", Format::Gif),
    (b"GIF89a", Format::Gif),
    (b"BM", Format::Bmp),
];

/// What a file is by its first bytes; nothing else is asked.
pub fn format(bytes: &[u8]) -> Option<Format> {
    if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
        return Some(Format::WebP);
    }
    MAGIC.iter().find(|(magic, _)| bytes.starts_with(magic)).map(|(_, format)| *format)
}

/// Decodes an image and turns it upright as its camera says (EXIF).
///
/// # Errors
/// It is too large, broken, empty, or of no format that is read.
pub fn decode(bytes: &[u8], ceilings: &Ceilings) -> Result<Picture, MediaError> {
    guarded(bytes, ceilings, |format| {
        let (decoder, turned) = opened(bytes, format, ceilings)?;
        let decoded = DynamicImage::from_decoder(decoder);
        let mut image = decoded.map_err(|error| broken(format, &error))?;
        image.apply_orientation(turned);
        picture(image)
    })
}

/// Width and height of an image that [`decode`] would give, by its header alone.
///
/// # Errors
/// As [`decode`]; what is wrong behind the header is not found.
pub fn size(bytes: &[u8], ceilings: &Ceilings) -> Result<[u32; 2], MediaError> {
    guarded(bytes, ceilings, |format| {
        let (decoder, turned) = opened(bytes, format, ceilings)?;
        let (width, height) = decoder.dimensions();
        Ok(match turned {
            Orientation::Rotate90
            | Orientation::Rotate270
            | Orientation::Rotate90FlipH
            | Orientation::Rotate270FlipH => [height, width],
            _ => [width, height],
        })
    })
}

fn guarded<T>(
    bytes: &[u8],
    ceilings: &Ceilings,
    work: impl FnOnce(Format) -> Result<T, MediaError>,
) -> Result<T, MediaError> {
    if bytes.len() > ceilings.bytes {
        return Err(MediaError::Bytes { bytes: bytes.len(), most: ceilings.bytes });
    }
    let format = format(bytes).ok_or(MediaError::Unknown)?;
    // A decoder that fails an assertion has met a broken file.
    let worked = catch_unwind(AssertUnwindSafe(|| work(format)));
    worked.unwrap_or_else(|_| {
        let reason = "its decoder gave up".to_owned();
        Err(MediaError::Broken { format: format.name(), reason })
    })
}

fn broken(format: Format, error: &image::ImageError) -> MediaError {
    let reason = error.to_string().chars().take(200).collect();
    MediaError::Broken { format: format.name(), reason }
}

/// A decoder whose header was looked at, and how its image is to be turned.
fn opened<'a>(
    bytes: &'a [u8],
    format: Format,
    ceilings: &Ceilings,
) -> Result<(impl ImageDecoder + use<'a>, Orientation), MediaError> {
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format.decoder());
    let mut limits = Limits::default();
    limits.max_alloc = Some(ceilings.memory);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(|error| broken(format, &error))?;
    let (width, height) = decoder.dimensions();
    if width == 0 || height == 0 {
        return Err(MediaError::Empty { width, height });
    }
    if u64::from(width) * u64::from(height) > ceilings.pixels {
        return Err(MediaError::Pixels { width, height, most: ceilings.pixels });
    }
    if decoder.total_bytes() > ceilings.memory {
        let (bytes, most) = (decoder.total_bytes(), ceilings.memory);
        return Err(MediaError::Memory { bytes, most });
    }
    let turned = decoder.orientation().map_err(|error| broken(format, &error))?;
    Ok((decoder, turned))
}

/// Eight bits of each value: of sixteen the upper ones.
fn picture(image: DynamicImage) -> Result<Picture, MediaError> {
    let (width, height) = (image.width(), image.height());
    let high = |value: &u16| (value >> 8) as u8;
    let (rgb, alpha) = match image {
        DynamicImage::ImageRgb8(image) => (image.into_raw(), None),
        DynamicImage::ImageRgba8(image) => apart(image.as_raw(), 4),
        DynamicImage::ImageLuma8(image) => apart(image.as_raw(), 1),
        DynamicImage::ImageLumaA8(image) => apart(image.as_raw(), 2),
        DynamicImage::ImageRgb16(image) => (image.as_raw().iter().map(high).collect(), None),
        DynamicImage::ImageRgba16(image) => apart(&eight(image.as_raw()), 4),
        DynamicImage::ImageLuma16(image) => apart(&eight(image.as_raw()), 1),
        DynamicImage::ImageLumaA16(image) => apart(&eight(image.as_raw()), 2),
        other => apart(other.to_rgba8().as_raw(), 4),
    };
    Picture::with_alpha(width, height, rgb, alpha)
}

fn eight(values: &[u16]) -> Vec<u8> {
    values.iter().map(|value| (value >> 8) as u8).collect()
}

/// Colours, and what is not opaque where anything is.
fn apart(values: &[u8], channels: usize) -> (Vec<u8>, Option<Vec<u8>>) {
    let pixels = values.chunks_exact(channels);
    let rgb = match channels {
        4 => pixels.clone().flat_map(|p| [p[0], p[1], p[2]]).collect(),
        _ => pixels.clone().flat_map(|p| [p[0]; 3]).collect(),
    };
    let clear = channels.is_multiple_of(2) && pixels.clone().any(|p| p[channels - 1] < 255);
    (rgb, clear.then(|| pixels.map(|p| p[channels - 1]).collect()))
}
