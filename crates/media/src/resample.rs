//! Resizes, exactly as those that models were trained with: along rows first, then along columns,
//! eight bits in and out of either pass, weights and sums in fixed point.
//!
//! Both backends widen the filter where an image shrinks, and have the same filters. They differ in
//! the fixed point: Pillow (`libImaging/Resample.c`, its 8-bit path) keeps weights in 22 bits behind
//! the point, torch (`UpSampleKernel.cpp`, antialiased, `uint8`, on processors with AVX2) in as many
//! as let the largest weight of the axis fit 16 bits.

use crate::picture::Picture;

/// How a pixel is made of those around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// A triangle, two pixels wide.
    Bilinear,
    /// Keys' cubic with a = -1/2, four pixels wide.
    Bicubic,
    /// A windowed sinc, six pixels wide.
    Lanczos,
}

/// Whose arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// Pillow's, and numpy's behind it: pixels are scaled, rounded to `f32`, then shifted.
    Pillow,
    /// torchvision's, antialiased; the scale is part of mean and deviation.
    Torchvision,
}

impl Filter {
    /// Half its width, pixels.
    fn support(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    /// Its height at that distance.
    fn at(self, x: f64) -> f64 {
        let x = x.abs();
        match self {
            Self::Bilinear => (1.0 - x).max(0.0),
            Self::Bicubic if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
            Self::Bicubic if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5,
            Self::Bicubic => 0.0,
            Self::Lanczos if x < 3.0 => sinc(x) * sinc(x / 3.0),
            Self::Lanczos => 0.0,
        }
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    let x = x * std::f64::consts::PI;
    x.sin() / x
}

/// Bits behind the point in Pillow's weights: 32, less 8 of a value and 2 for lobes below zero.
const PILLOW_BITS: u32 = 32 - 8 - 2;

/// What each pixel along an axis is made of.
struct Axis {
    /// Bits behind the point.
    bits: u32,
    /// Of each pixel: the first it is made of, and where its weights begin and end.
    spans: Vec<(usize, std::ops::Range<usize>)>,
    weights: Vec<i32>,
}

impl Axis {
    fn new(from: u32, to: u32, filter: Filter, backend: Backend) -> Self {
        let scale = f64::from(from) / f64::from(to);
        let stretch = scale.max(1.0);
        let (support, inverse) = (filter.support() * stretch, 1.0 / stretch);
        let mut exact: Vec<f64> = Vec::new();
        let mut spans = Vec::with_capacity(to as usize);
        for i in 0..to {
            let center = (f64::from(i) + 0.5) * scale;
            // (Casts to integers cut towards zero, as C's do; below zero they stop at it.)
            let first = (center - support + 0.5) as usize;
            let end = ((center + support + 0.5) as usize).min(from as usize);
            let begin = exact.len();
            exact.extend((first..end).map(|j| filter.at((j as f64 - center + 0.5) * inverse)));
            let own = &mut exact[begin..];
            let total: f64 = own.iter().sum();
            if total != 0.0 {
                own.iter_mut().for_each(|weight| *weight /= total);
            }
            spans.push((first, begin..exact.len()));
        }
        let bits = match backend {
            Backend::Pillow => PILLOW_BITS,
            Backend::Torchvision => bits_of(exact.iter().copied().fold(f64::MIN, f64::max)),
        };
        let one = f64::from(1u32 << bits);
        let fixed = |weight: &f64| (0.5f64.copysign(*weight) + weight * one) as i32;
        Self { bits, spans, weights: exact.iter().map(fixed).collect() }
    }

    /// A sum as a value.
    fn value(&self, sum: i32) -> u8 {
        (sum >> self.bits).clamp(0, 255) as u8
    }

    /// One half: what rounds.
    fn half(&self) -> i32 {
        1 << (self.bits - 1)
    }
}

/// Bits behind the point with which the largest weight stays below 2^15.
fn bits_of(largest: f64) -> u32 {
    let too_many = |bits: &u32| (0.5 + largest * f64::from(1u32 << (bits + 1))) as i64 >= 1 << 15;
    (0..22).find(too_many).unwrap_or(22)
}

/// A picture of another size.
pub fn resize(
    picture: &Picture,
    height: u32,
    width: u32,
    filter: Filter,
    backend: Backend,
) -> Picture {
    // Pillow begins with the columns where an image is more than a hundred times as high as wide.
    let thin = picture.height().div_ceil(100) > picture.width() && height < picture.height();
    if backend == Backend::Pillow && thin && width != picture.width() {
        let low = resize(picture, height, picture.width(), filter, backend);
        return resize(&low, height, width, filter, backend);
    }
    let mut wide = None;
    if width != picture.width() {
        let axis = Axis::new(picture.width(), width, filter, backend);
        wide = Some(along_rows(picture, &axis));
    }
    let wide = wide.as_ref().unwrap_or(picture);
    if height == wide.height() {
        return wide.clone();
    }
    along_columns(wide, &Axis::new(wide.height(), height, filter, backend))
}

fn along_rows(picture: &Picture, axis: &Axis) -> Picture {
    let width = axis.spans.len();
    let mut rgb = Vec::with_capacity(width * picture.height() as usize * 3);
    for row in picture.rgb().chunks_exact(picture.width() as usize * 3) {
        for (first, own) in &axis.spans {
            let mut sums = [axis.half(); 3];
            let pixels = row[first * 3..].chunks_exact(3);
            for (pixel, weight) in pixels.zip(&axis.weights[own.clone()]) {
                for (sum, value) in sums.iter_mut().zip(pixel) {
                    *sum += i32::from(*value) * weight;
                }
            }
            rgb.extend(sums.map(|sum| axis.value(sum)));
        }
    }
    Picture::of(width as u32, picture.height(), rgb)
}

fn along_columns(picture: &Picture, axis: &Axis) -> Picture {
    let row = picture.width() as usize * 3;
    let mut rgb = Vec::with_capacity(axis.spans.len() * row);
    let mut sums = vec![0; row];
    for (first, own) in &axis.spans {
        sums.fill(axis.half());
        let rows = picture.rgb()[first * row..].chunks_exact(row);
        for (values, weight) in rows.zip(&axis.weights[own.clone()]) {
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum += i32::from(*value) * weight;
            }
        }
        rgb.extend(sums.iter().map(|sum| axis.value(*sum)));
    }
    Picture::of(picture.width(), axis.spans.len() as u32, rgb)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILTERS: [Filter; 3] = [Filter::Bilinear, Filter::Bicubic, Filter::Lanczos];

    #[test]
    fn one_colour_stays_that_colour_at_every_size() {
        let picture = Picture::new(7, 5, [3, 200, 255].repeat(35)).expect("fits");
        for filter in FILTERS {
            for backend in [Backend::Pillow, Backend::Torchvision] {
                for (height, width) in [(1, 1), (5, 9), (3, 7), (40, 2)] {
                    let resized = resize(&picture, height, width, filter, backend);
                    assert_eq!((resized.height(), resized.width()), (height, width));
                    let same = resized.rgb().chunks_exact(3).all(|p| p == [3, 200, 255]);
                    assert!(same, "{filter:?} {backend:?} {height} {width}");
                }
            }
        }
    }

    #[test]
    fn sums_stay_within_32_bits() {
        // White beside black: lobes above and below, at the largest stretch.
        let mut rgb = vec![255; 300];
        rgb.extend([0; 300]);
        let picture = Picture::new(200, 1, rgb).expect("fits");
        for filter in FILTERS {
            for width in [1, 3, 199, 201, 3000] {
                resize(&picture, 1, width, filter, Backend::Pillow);
            }
        }
    }

    #[test]
    fn weights_of_torch_use_the_bits_that_sixteen_leave() {
        // A weight of 1 has 14 bits behind the point; a hundredth of it seven more.
        assert_eq!(bits_of(1.0), 14);
        assert_eq!(bits_of(0.01), 21);
        assert_eq!(bits_of(1e-6), 22);
    }
}
