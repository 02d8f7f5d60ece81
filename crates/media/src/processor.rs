//! What a model's processor does to an image, as data, and doing it.

use crate::error::MediaError;
use crate::patches::{Cutter, Layout, Patches, Tile};
use crate::picture::{Picture, Transparency};
use crate::resample::{Backend, Filter, resize};
use crate::sizes::{self, PanAndScan};

/// How large an image is made, and into which tiles it is cut.
#[derive(Debug, Clone, PartialEq)]
pub enum Shape {
    /// Its own shape, sides multiples of a merged square, the area between two (Qwen2-VL, 2.5, 3).
    Native {
        /// Smallest area, pixels.
        least: u64,
        /// Largest area, pixels.
        most: u64,
        /// The areas are those of all its frames, and short sides grow to a square's first (GLM-4.1V).
        film: bool,
    },
    /// Its own shape, sides multiples of a merged square, as large as so many patches allow (Gemma 4).
    Budget {
        /// Most patches.
        patches: u32,
    },
    /// Its own shape and size, or as large as so many patches, and so many along a side, allow; filled up
    /// below and to the right to whole merged squares (Kimi).
    Capped {
        /// Most patches.
        patches: u32,
        /// Most along a side.
        side: u32,
    },
    /// Tiles of the canvas that suits it, where it lies in the upper left corner, then the image as one
    /// tile, if they are several (Llama 4).
    Chunks {
        /// A tile's side, pixels.
        tile: u32,
        /// Most tiles.
        most: u32,
        /// Whether it grows to fill the largest canvas.
        grow: bool,
    },
    /// One size, whatever its shape; parts of long images as well, where that is asked (SigLIP,
    /// Gemma 3).
    Fixed {
        /// Height and width, pixels.
        size: [u32; 2],
        /// Parts.
        parts: Option<PanAndScan>,
    },
    /// The shorter side becomes that long, and the middle is cut out (CLIP, LLaVA 1.5).
    Centre {
        /// The shorter side, pixels.
        edge: u32,
        /// Height and width of the middle, pixels.
        crop: [u32; 2],
        /// It is made square first by bars of the mean colour.
        square: bool,
    },
    /// The longer side becomes that long, the whole is cut into square tiles, and the image as one
    /// tile comes last (Idefics3, SmolVLM).
    Split {
        /// The longer side, pixels.
        edge: u32,
        /// A tile's side, pixels.
        tile: u32,
        /// Whether it is cut; else it is that one tile.
        cut: bool,
    },
    /// The image as one tile, then tiles of the canvas that suits it, where it lies in the middle
    /// (LLaVA 1.6, OneVision).
    Anyres {
        /// Heights and widths of canvases, pixels: multiples of a tile.
        canvases: Vec<[u32; 2]>,
        /// A tile's side, pixels.
        tile: u32,
        /// Where a prompt has several images, each is one tile, made square by bars of the mean
        /// colour.
        alone: bool,
    },
    /// Its own shape, no side longer than that, sides multiples of a merged square (Pixtral).
    Longest {
        /// The longest side, pixels.
        edge: u32,
    },
    /// Tiles in the grid nearest its shape, then the image as one tile, if they are several
    /// (InternVL).
    Tiles {
        /// Height and width of a tile, pixels.
        tile: [u32; 2],
        /// Fewest tiles.
        least: u32,
        /// Most tiles; 1: it is not cut.
        most: u32,
    },
}

/// A model's image processor.
#[derive(Debug, Clone, PartialEq)]
pub struct Processor {
    /// Sizes and tiles.
    pub shape: Shape,
    /// Side of a patch, pixels.
    pub patch: u32,
    /// Patches to a side of the square that becomes one row of the model.
    pub merge: u32,
    /// Equal frames that an image is taken for.
    pub frames: u32,
    /// How it is resized.
    pub filter: Filter,
    /// By whose arithmetic.
    pub backend: Backend,
    /// What values are multiplied by.
    pub rescale: f64,
    /// What is taken from each channel then.
    pub mean: [f32; 3],
    /// What the rest is divided by.
    pub std: [f32; 3],
    /// In which numbers.
    pub arithmetic: Arithmetic,
    /// What becomes of pixels that are not opaque.
    pub transparency: Transparency,
}

/// How a value is scaled and shifted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arithmetic {
    /// As the resize is done: Pillow's processors scale, then shift; torchvision's do both at once.
    Usual,
    /// It is scaled only.
    Scaled,
    /// Each step is rounded to bfloat16 (Llama 4).
    Bf16,
}

impl Arithmetic {
    /// What a value of a channel becomes.
    fn value(self, backend: Backend, value: f32, scale: f64, [mean, std]: [f32; 2]) -> f32 {
        let back = (1.0 / scale) as f32;
        match (self, backend) {
            (Arithmetic::Scaled, _) => value * scale as f32,
            (Arithmetic::Bf16, _) => {
                bf16(bf16(bf16(value * scale as f32) - bf16(mean)) / bf16(std))
            }
            (Arithmetic::Usual, Backend::Pillow) => {
                ((f64::from(value) * scale) as f32 - mean) / std
            }
            (Arithmetic::Usual, Backend::Torchvision) => (value - mean * back) / (std * back),
        }
    }
}

/// The nearest number of eight bits' precision, of two the even one.
fn bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

/// Most pixels of a resized image: thin images grow without end where the shorter side is given.
const MOST_RESIZED: u64 = 1 << 26;

/// What is done to a picture: each is resized, and cut or filled up to become tiles.
struct Step {
    /// The part of the picture: place and size; `None`: all of it.
    of: Option<[[u32; 2]; 2]>,
    /// It is made square first.
    square: bool,
    /// Heights and widths that it is resized to, one after another.
    sizes: Vec<[u32; 2]>,
    /// The middle of that, or that in the middle of something larger.
    frame: [u32; 2],
    /// What is filled up stays in the upper left corner.
    corner: bool,
    /// Rows and columns that it is cut into.
    cut: [u32; 2],
    /// Of its tiles; `None`: it is the whole picture.
    part: Option<[u32; 2]>,
}

impl Step {
    /// The picture as one tile.
    fn whole(sizes: Vec<[u32; 2]>) -> Self {
        let frame = sizes.last().copied().unwrap_or_default();
        Self { of: None, square: false, sizes, frame, corner: false, cut: [1, 1], part: None }
    }
}

impl Processor {
    /// What an image of that size becomes; `alone`: it is the only one of its prompt.
    ///
    /// # Errors
    /// The processor takes no image of that shape.
    pub fn layout(&self, width: u32, height: u32, alone: bool) -> Result<Layout, MediaError> {
        let cutter = self.cutter();
        let steps = self.steps(width, height, alone)?;
        let (mut tiles, mut split) = (Vec::new(), [0, 0]);
        for step in &steps {
            let [rows, columns] = step.cut;
            let grid = cutter.grid([step.frame[0] / rows, step.frame[1] / columns])?;
            for i in 0..rows * columns {
                let part = step.part.map(|first| [first[0] + i / columns, first[1] + i % columns]);
                if let Some(part) = part {
                    split = [0, 1].map(|axis| split[axis].max(part[axis] + 1));
                }
                tiles.push(Tile { grid, part });
            }
        }
        Ok(Layout { tiles, split, size: [height, width], merge: self.merge })
    }

    /// The image as rows of patches; `alone`: it is the only one of its prompt.
    ///
    /// # Errors
    /// The processor takes no image of that shape.
    pub fn patches(&self, picture: Picture, alone: bool) -> Result<Patches, MediaError> {
        let picture = picture.opaque(self.transparency);
        let layout = self.layout(picture.width(), picture.height(), alone)?;
        let cutter = self.cutter();
        let columns = 3 * (self.frames * self.patch * self.patch) as usize;
        let data = Vec::with_capacity(layout.patches() * columns);
        let at = Vec::with_capacity(layout.patches());
        let grids: Vec<[u32; 2]> = layout.tiles.iter().map(|tile| tile.grid).collect();
        let mut patches = Patches { columns, data, at, layout };
        let mut grids = grids.into_iter();
        for step in self.steps(picture.width(), picture.height(), alone)? {
            let made = self.make(&picture, &step);
            let [rows, columns] = step.cut;
            let tile = [step.frame[0] / rows, step.frame[1] / columns];
            for (i, grid) in (0..rows * columns).zip(&mut grids) {
                let place = [i / columns * tile[0], i % columns * tile[1]];
                match step.cut {
                    [1, 1] => cutter.cut(&made, grid, &mut patches),
                    _ => cutter.cut(&made.crop(place, tile), grid, &mut patches),
                }
            }
        }
        Ok(patches)
    }

    /// A step's picture, before it is cut.
    fn make(&self, picture: &Picture, step: &Step) -> Picture {
        let mut made = match step.of {
            Some([place, size]) => picture.crop(place, size),
            None => picture.clone(),
        };
        if step.square {
            let side = made.width().max(made.height());
            made = made.padded([side; 2], self.mean_colour());
        }
        for [height, width] in &step.sizes {
            made = resize(&made, *height, *width, self.filter, self.backend);
        }
        let [height, width] = step.frame;
        if made.height() > height || made.width() > width {
            let place = [(made.height() - height) / 2, (made.width() - width) / 2];
            return made.crop(place, step.frame);
        }
        match [made.height(), made.width()] == step.frame {
            true => made,
            false if step.corner => made.placed(step.frame, [0; 2], [0; 3]),
            false => made.padded(step.frame, [0; 3]),
        }
    }

    fn steps(&self, width: u32, height: u32, alone: bool) -> Result<Vec<Step>, MediaError> {
        let size = [height, width];
        let square = self.patch * self.merge;
        let steps = match &self.shape {
            Shape::Native { least, most, film } => {
                let frames = if *film { self.frames } else { 1 };
                let areas = [*least, *most].map(|area| area as f64 / f64::from(frames));
                let grown = if *film { sizes::at_least(size, square) } else { size };
                vec![Step::whole(vec![sizes::smart(grown, square, areas)?])]
            }
            Shape::Budget { patches } => {
                vec![Step::whole(vec![sizes::budget(size, [self.patch, self.merge], *patches)?])]
            }
            Shape::Capped { patches, side } => {
                let inner = sizes::capped(size, self.patch, *patches, *side);
                let frame = inner.map(|side| side.next_multiple_of(square));
                vec![Step { frame, corner: true, ..Step::whole(vec![inner]) }]
            }
            Shape::Chunks { tile, most, grow } => chunks(size, *tile, *most, *grow),
            Shape::Longest { edge } => {
                vec![Step::whole(vec![sizes::at_most(size, *edge, square)])]
            }
            Shape::Fixed { size: to, parts } => fixed(size, *to, parts.as_ref()),
            Shape::Centre { edge, crop, square } => {
                let from = if *square { [height.max(width); 2] } else { size };
                let sizes = vec![sizes::shortest(from, *edge)];
                vec![Step { square: *square, frame: *crop, ..Step::whole(sizes) }]
            }
            Shape::Split { edge, tile, cut } => split(size, *edge, *tile, *cut),
            Shape::Anyres { canvases, tile, alone: only } => {
                anyres(size, canvases, *tile, *only && !alone)
            }
            Shape::Tiles { tile, least, most } => tiles(size, *tile, [*least, *most]),
        };
        for [h, w] in steps.iter().flat_map(|step| &step.sizes) {
            if *h == 0 || *w == 0 || u64::from(*h) * u64::from(*w) > MOST_RESIZED {
                let reason = format!("resized for the model it would be {w} x {h}");
                return Err(MediaError::Shape { width, height, reason });
            }
        }
        Ok(steps)
    }

    fn cutter(&self) -> Cutter {
        let values = [0, 1, 2].map(|c| {
            let shift = [self.mean[c], self.std[c]];
            let of = |v: usize| self.arithmetic.value(self.backend, v as f32, self.rescale, shift);
            std::array::from_fn(of)
        });
        Cutter { patch: self.patch, merge: self.merge, frames: self.frames, values }
    }

    fn mean_colour(&self) -> [u8; 3] {
        self.mean.map(|mean| (f64::from(mean) * 255.0) as u8)
    }
}

fn fixed(size: [u32; 2], to: [u32; 2], pan: Option<&PanAndScan>) -> Vec<Step> {
    let mut steps = vec![Step::whole(vec![to])];
    let Some(pan) = pan else { return steps };
    let (places, part) = sizes::parts(size, pan);
    for (i, place) in (0..).zip(places) {
        let at = if place[0] > 0 { [i, 0] } else { [0, i] };
        let of = Some([place, part]);
        steps.push(Step { of, part: Some(at), ..Step::whole(vec![to]) });
    }
    steps
}

fn split(size: [u32; 2], edge: u32, tile: u32, cut: bool) -> Vec<Step> {
    let first = sizes::longest(size, edge);
    if !cut {
        return vec![Step::whole(vec![first, [tile; 2]])];
    }
    let second = sizes::whole_tiles(first, tile);
    if second == [tile; 2] {
        return vec![Step::whole(vec![first, second])];
    }
    let cut = second.map(|side| side / tile);
    let parts = Step { cut, part: Some([0, 0]), ..Step::whole(vec![first, second]) };
    vec![parts, Step::whole(vec![first, second, [tile; 2]])]
}

fn anyres(size: [u32; 2], canvases: &[[u32; 2]], tile: u32, several: bool) -> Vec<Step> {
    let whole = Step::whole(vec![[tile; 2]]);
    if several {
        return vec![Step { square: true, ..whole }];
    }
    let canvas = sizes::best_canvas(size, canvases);
    let inner = sizes::within(size, canvas);
    let cut = canvas.map(|side| side / tile);
    let parts = Step { frame: canvas, cut, part: Some([0, 0]), ..Step::whole(vec![inner]) };
    vec![whole, parts]
}

fn chunks(size: [u32; 2], tile: u32, most: u32, grow: bool) -> Vec<Step> {
    let canvas = sizes::least_scaled(size, tile, most, grow);
    let inner = match grow {
        true => canvas,
        false => [0, 1].map(|i| size[i].max(tile).min(canvas[i])),
    };
    let inner = sizes::undistorted(size, inner);
    let cut = canvas.map(|side| side / tile);
    let several = cut != [1, 1];
    let part = several.then_some([0, 0]);
    let mut steps =
        vec![Step { frame: canvas, corner: true, cut, part, ..Step::whole(vec![inner]) }];
    if several {
        steps.push(Step::whole(vec![[tile; 2]]));
    }
    steps
}

fn tiles(size: [u32; 2], tile: [u32; 2], bounds: [u32; 2]) -> Vec<Step> {
    let grid = if bounds[1] > 1 { sizes::tiling(size, tile, bounds) } else { [1, 1] };
    if grid == [1, 1] {
        return vec![Step::whole(vec![tile])];
    }
    let whole = [tile[0] * grid[0], tile[1] * grid[1]];
    let parts = Step { cut: grid, part: Some([0, 0]), ..Step::whole(vec![whole]) };
    vec![parts, Step::whole(vec![tile])]
}
