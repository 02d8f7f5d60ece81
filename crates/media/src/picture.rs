//! A decoded image: rows of red, green and blue, and how opaque each pixel is.

use crate::error::MediaError;

/// What becomes of pixels that are not opaque.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transparency {
    /// Their colour is taken as it is: what a conversion to RGB does in Pillow.
    Dropped,
    /// They lie on white.
    White,
}

/// Eight-bit pixels, row by row from the top, red, green and blue side by side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    width: u32,
    height: u32,
    rgb: Vec<u8>,
    /// Of each pixel: 0 is clear, 255 opaque. `None`: all are opaque.
    alpha: Option<Vec<u8>>,
}

impl Picture {
    /// An opaque picture.
    ///
    /// # Errors
    /// Without pixels, or with another number of them than `rgb` has.
    pub fn new(width: u32, height: u32, rgb: Vec<u8>) -> Result<Self, MediaError> {
        Self::with_alpha(width, height, rgb, None)
    }

    /// A picture some of whose pixels may be clear.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_alpha(
        width: u32,
        height: u32,
        rgb: Vec<u8>,
        alpha: Option<Vec<u8>>,
    ) -> Result<Self, MediaError> {
        let pixels = width as usize * height as usize;
        if pixels == 0 {
            return Err(MediaError::Empty { width, height });
        }
        let fits = rgb.len() == pixels * 3 && alpha.as_ref().is_none_or(|a| a.len() == pixels);
        match fits {
            true => Ok(Self { width, height, rgb, alpha }),
            false => {
                let reason = format!("its pixels have {} bytes", rgb.len());
                Err(MediaError::Shape { width, height, reason })
            }
        }
    }

    /// Columns.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Rows.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// All pixels, 3 bytes each.
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }

    /// The same, opaque.
    pub fn opaque(mut self, how: Transparency) -> Self {
        if let (Some(alpha), Transparency::White) = (self.alpha.take(), how) {
            for (pixel, a) in self.rgb.chunks_exact_mut(3).zip(alpha) {
                for value in pixel {
                    *value = over_white(*value, a);
                }
            }
        }
        self
    }

    /// A part of it, opaque; what of it lies beyond the edge is left away.
    pub(crate) fn crop(&self, [top, left]: [u32; 2], [height, width]: [u32; 2]) -> Self {
        let height = height.min(self.height.saturating_sub(top));
        let width = width.min(self.width.saturating_sub(left));
        let mut rgb = Vec::with_capacity(height as usize * width as usize * 3);
        for y in top..top + height {
            let begin = (y as usize * self.width as usize + left as usize) * 3;
            rgb.extend_from_slice(&self.rgb[begin..begin + width as usize * 3]);
        }
        Self { width, height, rgb, alpha: None }
    }

    /// It in the midst of a larger one of one colour; the odd row or column is below or to the right.
    pub(crate) fn padded(&self, size: [u32; 2], colour: [u8; 3]) -> Self {
        let at = [(size[0] - self.height) / 2, (size[1] - self.width) / 2];
        self.placed(size, at, colour)
    }

    /// It in a larger one of one colour, below and to the right of a place.
    pub(crate) fn placed(&self, size: [u32; 2], at: [u32; 2], colour: [u8; 3]) -> Self {
        let ([height, width], [top, left]) = (size, at.map(|side| side as usize));
        let (row, own) = (width as usize * 3, self.width as usize * 3);
        let mut rgb: Vec<u8> = colour.repeat(width as usize * height as usize);
        for (y, line) in self.rgb.chunks_exact(own).enumerate() {
            let begin = (top + y) * row + left * 3;
            rgb[begin..begin + own].copy_from_slice(line);
        }
        Self { width, height, rgb, alpha: None }
    }

    /// An opaque picture of that many pixels.
    pub(crate) fn of(width: u32, height: u32, rgb: Vec<u8>) -> Self {
        debug_assert_eq!(rgb.len(), width as usize * height as usize * 3);
        Self { width, height, rgb, alpha: None }
    }
}

/// A value of a pixel that lies on white, as Pillow's `alpha_composite` has it on an opaque ground:
/// the weights in seven more bits, each division by 255 rounded.
fn over_white(value: u8, alpha: u8) -> u8 {
    let by_255 = |x: u32| ((x >> 8) + x) >> 8;
    let own = u32::from(alpha) * 255 * 128 / 255;
    let blended = u32::from(value) * own + 255 * (255 * 128 - own);
    (by_255(blended + (0x80 << 7)) >> 7) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clear_pixels_show_what_they_lie_on() {
        let rgb = vec![10, 20, 30, 10, 20, 30, 10, 20, 30];
        let of = || Picture::with_alpha(3, 1, rgb.clone(), Some(vec![0, 128, 255])).expect("fits");
        assert_eq!(of().opaque(Transparency::Dropped).rgb(), rgb);
        let white = of().opaque(Transparency::White);
        assert_eq!(white.rgb(), [255, 255, 255, 132, 137, 142, 10, 20, 30]);
    }

    #[test]
    fn parts_end_at_the_edge_and_pads_lie_around() {
        let picture = Picture::new(2, 2, (0..12).collect()).expect("fits");
        let part = picture.crop([1, 1], [5, 5]);
        assert_eq!((part.width(), part.height(), part.rgb()), (1, 1, &[9, 10, 11][..]));
        let padded = part.padded([2, 2], [1, 2, 3]);
        assert_eq!(padded.rgb(), [9, 10, 11, 1, 2, 3, 1, 2, 3, 1, 2, 3]);
        assert!(Picture::new(0, 7, Vec::new()).is_err());
        assert!(Picture::new(1, 1, vec![1, 2]).is_err());
    }
}
