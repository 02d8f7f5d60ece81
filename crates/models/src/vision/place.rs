//! Where the patches of an image go, as tokens of the tower: pure functions of its grid.

use super::{Learned, Stretch, VisionSpec};
use crate::error::ModelError;

/// The patches of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Below each other.
    pub rows: u32,
    /// Beside each other.
    pub cols: u32,
}

/// Patches of an image as tokens of its tower. They come square after square of those that become one
/// row, along the image's rows, and within a square row by row; here the squares of a window are
/// neighbours too.
#[derive(Debug, Clone, PartialEq)]
pub struct Place {
    /// Which patch each token is, counted as they come; none for a token that is no patch. [tokens]
    pub order: Vec<Option<u32>>,
    /// Its positions on the axes of rotations: 0, its row, its column. [tokens]
    pub positions: Vec<[u32; 3]>,
    /// Rows of the table of positions, then the weight of each; the same of the token that is no
    /// patch, where there is one. [tokens, 2 × taps]
    pub taps: Vec<f32>,
    /// The first token of each window and the one behind its last, ascending; empty where there are none.
    pub blocks: Vec<[u32; 2]>,
    /// The first token of each row that comes out. [rows]
    pub outputs: Vec<u32>,
    /// Which row that is, counted along the image's. [rows]
    pub merged: Vec<u32>,
}

impl Place {
    /// The tokens' inputs from an image's patches.
    pub fn inputs(&self, patches: &[f32]) -> Vec<f32> {
        let cols = patches.len() / self.order.iter().flatten().count().max(1);
        let taps = self.taps.len() / self.order.len().max(1);
        let mut inputs = Vec::with_capacity(self.order.len() * (cols + taps));
        for (token, patch) in self.order.iter().enumerate() {
            match *patch {
                Some(patch) => {
                    inputs.extend_from_slice(&patches[patch as usize * cols..][..cols]);
                }
                None => inputs.resize(inputs.len() + cols, 0.0),
            }
            inputs.extend_from_slice(&self.taps[token * taps..][..taps]);
        }
        inputs
    }
}

/// What came out of a tower, along the image's rows: `merged` says where each row goes ([`Place::merged`]);
/// empty: they are there already.
pub fn arranged(rows: Vec<f32>, merged: &[u32]) -> Vec<f32> {
    if merged.is_empty() {
        return rows;
    }
    let cols = rows.len() / merged.len();
    let mut arranged = vec![0.0; rows.len()];
    for (row, &at) in rows.chunks_exact(cols.max(1)).zip(merged) {
        arranged[at as usize * cols..][..cols].copy_from_slice(row);
    }
    arranged
}

impl VisionSpec {
    /// The rows that an image of that grid becomes, as a grid of their own.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] for grids that the tower cannot take.
    pub fn merged(&self, grid: Grid) -> Result<Grid, ModelError> {
        let whole = |n: u32| n > 0 && n.is_multiple_of(self.merge);
        let fixed = self.side.is_none_or(|side| grid.rows == side && grid.cols == side);
        if whole(grid.rows) && whole(grid.cols) && fixed {
            return Ok(Grid { rows: grid.rows / self.merge, cols: grid.cols / self.merge });
        }
        let what = match self.side {
            Some(side) => format!("an image, for a tower of {side} × {side} patches,"),
            None => format!("an image, for a tower that merges {0} × {0} patches,", self.merge),
        };
        Err(ModelError::unsupported(&what, format!("{} × {} patches", grid.rows, grid.cols)))
    }

    /// The tokens of an image.
    ///
    /// # Errors
    /// Those of [`Self::merged`].
    pub fn place(&self, grid: Grid) -> Result<Place, ModelError> {
        let merged = self.merged(grid)?;
        let (merge, window) = (self.merge, self.window.unwrap_or(u32::MAX));
        let run = merge * merge;
        let mut place = Place {
            order: Vec::new(),
            positions: Vec::new(),
            taps: Vec::new(),
            blocks: Vec::new(),
            outputs: Vec::new(),
            merged: Vec::new(),
        };
        if self.class_token {
            place.order.push(None);
            place.positions.push([0, 0, 0]);
            place.taps.extend(self.positions.iter().flat_map(|_| [0.0, 1.0]));
            place.taps.extend([0.0, 1.0]);
        }
        for (top, bottom) in runs(merged.rows, window) {
            for (left, right) in runs(merged.cols, window) {
                let begin = place.order.len() as u32;
                let inside = (bottom - top) * (right - left) * run;
                for (r, c) in (top..bottom).flat_map(|r| (left..right).map(move |c| (r, c))) {
                    let square = r * merged.cols + c;
                    place.outputs.push(place.order.len() as u32);
                    place.merged.push(square);
                    for i in 0..run {
                        let (row, col) = (r * merge + i / merge, c * merge + i % merge);
                        place.order.push(Some(square * run + i));
                        place.positions.push([0, row, col]);
                        if let Some(learned) = self.positions {
                            let first = u32::from(self.class_token);
                            place.taps.extend(learned.taps_of(grid, [row, col], first));
                        }
                        if self.class_token {
                            place.taps.extend([0.0, 0.0]);
                        }
                    }
                }
                if self.window.is_some() {
                    place.blocks.push([begin, begin + inside]);
                }
            }
        }
        Ok(place)
    }
}

/// `0..len` in runs of at most `of`.
fn runs(len: u32, of: u32) -> impl Iterator<Item = (u32, u32)> {
    (0..len.div_ceil(of)).map(move |i| (i * of, len.min((i + 1).saturating_mul(of))))
}

impl Learned {
    /// Rows of the table for a patch, then their weights; the table's patches begin at row `first`.
    fn taps_of(&self, grid: Grid, [row, col]: [u32; 2], first: u32) -> Vec<f32> {
        let at = |(r, c): (u32, u32)| (first + r * self.side + c) as f32;
        match self.stretch {
            Stretch::None => vec![at((row, col)), 1.0],
            Stretch::Bilinear => {
                let (row, col) = (self.between(row, grid.rows), self.between(col, grid.cols));
                let corners = [(0, 0), (0, 1), (1, 0), (1, 1)];
                let ids = corners.map(|(r, c)| at((row.0[r], col.0[c])));
                let weights = corners.map(|(r, c)| row.1[r] * col.1[c]);
                ids.into_iter().chain(weights).collect()
            }
        }
    }

    /// The two nearest places of the table along one side, and their weights: the first of `of`
    /// patches lies on the first, the last on the last.
    fn between(&self, at: u32, of: u32) -> ([u32; 2], [f32; 2]) {
        let last = self.side - 1;
        let place = f64::from(last) * f64::from(at) / f64::from((of - 1).max(1));
        let low = (place as u32).min(last);
        let part = (place - f64::from(low)) as f32;
        ([low, (low + 1).min(last)], [1.0 - part, part])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_squares_of_a_window_are_neighbours() {
        let learned = Learned { side: 3, stretch: Stretch::Bilinear };
        assert_eq!(learned.between(0, 5), ([0, 1], [1.0, 0.0]));
        assert_eq!(learned.between(1, 5), ([0, 1], [0.5, 0.5]));
        assert_eq!(learned.between(4, 5), ([2, 2], [1.0, 0.0]));
        assert_eq!(learned.between(0, 1), ([0, 1], [1.0, 0.0]));
        assert_eq!(runs(5, 2).collect::<Vec<_>>(), [(0, 2), (2, 4), (4, 5)]);
        assert_eq!(runs(5, u32::MAX).collect::<Vec<_>>(), [(0, 5)]);
    }
}
