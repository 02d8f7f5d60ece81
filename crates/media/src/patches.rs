//! Rows of patches, as encoders take them.

use crate::error::MediaError;
use crate::picture::Picture;

/// A rectangle of patches, in which an encoder sees all at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tile {
    /// Rows and columns of patches.
    pub grid: [u32; 2],
    /// Row and column among the parts of the image; `None`: it is the whole image.
    pub part: Option<[u32; 2]>,
}

impl Tile {
    /// Patches of it.
    pub fn patches(&self) -> usize {
        self.grid[0] as usize * self.grid[1] as usize
    }
}

/// What an image becomes, known from its size alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Its tiles, in order.
    pub tiles: Vec<Tile>,
    /// Rows and columns of tiles that are parts; zeros where it is not cut.
    pub split: [u32; 2],
    /// Height and width of the image, turned upright, pixels.
    pub size: [u32; 2],
    /// Patches to a side of the square that becomes one row of the model: they are neighbours.
    pub merge: u32,
}

impl Layout {
    /// Patches of all tiles.
    pub fn patches(&self) -> usize {
        self.tiles.iter().map(Tile::patches).sum()
    }
}

/// An image as rows of patches, one tile behind another. Within a tile, patches of one square that is
/// merged stand together, row by row; so do the squares.
#[derive(Debug, Clone, PartialEq)]
pub struct Patches {
    /// Numbers of a row: channel, frame, row and column within the patch, the last fastest.
    pub columns: usize,
    /// `[patches, columns]`, scaled and shifted.
    pub data: Vec<f32>,
    /// Row and column of each patch within its tile.
    pub at: Vec<[u32; 2]>,
    /// What they are patches of.
    pub layout: Layout,
}

/// How pixels become numbers, and where they stand.
pub(crate) struct Cutter {
    /// Side of a patch, pixels.
    pub patch: u32,
    /// Patches to a side of a merged square.
    pub merge: u32,
    /// Times that a patch stands in its row: an image is so many equal frames.
    pub frames: u32,
    /// What each value of each channel becomes.
    pub values: [[f32; 256]; 3],
}

impl Cutter {
    /// Rows and columns of patches of a picture that is so large: what is left at the lower and the
    /// right edge is not looked at.
    ///
    /// # Errors
    /// No patch fits, or no whole number of merged squares.
    pub fn grid(&self, [height, width]: [u32; 2]) -> Result<[u32; 2], MediaError> {
        let grid = [height / self.patch, width / self.patch];
        match grid.iter().all(|side| *side > 0 && side.is_multiple_of(self.merge)) {
            true => Ok(grid),
            false => {
                let Self { patch, merge, .. } = self;
                let reason = format!(
                    "resized for the model, which takes squares of {merge} x {merge} patches of {patch} pixels"
                );
                Err(MediaError::Shape { width, height, reason })
            }
        }
    }

    /// Adds a picture's patches.
    pub fn cut(&self, picture: &Picture, [rows, columns]: [u32; 2], into: &mut Patches) {
        let merge = self.merge;
        for square_row in (0..rows).step_by(merge as usize) {
            for square_column in (0..columns).step_by(merge as usize) {
                for inner in 0..merge * merge {
                    let at = [square_row + inner / merge, square_column + inner % merge];
                    self.patch(picture, at, &mut into.data);
                    into.at.push(at);
                }
            }
        }
    }

    fn patch(&self, picture: &Picture, [row, column]: [u32; 2], data: &mut Vec<f32>) {
        let side = self.patch as usize;
        let line = picture.width() as usize * 3;
        let first = row as usize * side * line + column as usize * side * 3;
        for (channel, values) in self.values.iter().enumerate() {
            let begin = data.len();
            for y in 0..side {
                let pixels = &picture.rgb()[first + y * line..][..side * 3];
                data.extend(pixels.chunks_exact(3).map(|p| values[usize::from(p[channel])]));
            }
            for _ in 1..self.frames {
                data.extend_from_within(begin..begin + side * side);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_merges_stands_together() {
        let side = 8;
        let rgb = (0..side * side).flat_map(|i| [i as u8, 100, 200]).collect();
        let picture = Picture::new(side, side, rgb).expect("fits");
        let values = std::array::from_fn(|_| std::array::from_fn(|value| value as f32));
        let cutter = Cutter { patch: 2, merge: 2, frames: 2, values };
        let grid = cutter.grid([side, side]).expect("fits");
        assert_eq!(grid, [4, 4]);
        let layout = Layout { tiles: Vec::new(), split: [0, 0], size: [8, 8], merge: 2 };
        let mut patches = Patches { columns: 24, data: Vec::new(), at: Vec::new(), layout };
        cutter.cut(&picture, grid, &mut patches);
        assert_eq!(patches.at[..5], [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2]]);
        let second = &patches.data[24..48];
        assert_eq!(second[..8], [2.0, 3.0, 10.0, 11.0, 2.0, 3.0, 10.0, 11.0]);
        assert!(second[8..16].iter().all(|v| *v == 100.0), "then green");
        assert!(cutter.grid([6, 8]).is_err() && cutter.grid([1, 1]).is_err());
    }
}
