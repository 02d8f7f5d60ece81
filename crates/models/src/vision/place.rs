//! Where the patches of an image go, as tokens of the tower: pure functions of its grid.

use super::{ClassToken, Learned, Stretch, VisionSpec};
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
        let squares = self.squares(grid)?;
        Ok(if self.summary.is_some() { Grid { rows: 1, cols: 1 } } else { squares })
    }

    /// An image's squares of patches that become one row.
    fn squares(&self, grid: Grid) -> Result<Grid, ModelError> {
        let sides = self.positions.filter(|p| p.stretch == Stretch::Sides);
        let most = sides.map_or(u32::MAX, |p| p.side);
        let whole = |n: u32| (1..=most).contains(&n) && n.is_multiple_of(self.merge);
        let rows = u64::from(grid.rows / self.merge) * u64::from(grid.cols / self.merge);
        if let Some(most) = self.most_rows.filter(|most| rows > (*most).into()) {
            let found = format!("{rows}, more than the {most} tokens of a window");
            return Err(ModelError::unsupported("rows of an image", found));
        }
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
        let merged = self.squares(grid)?;
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
        if self.class_token.is_there() {
            place.order.push(None);
            place.positions.push([0, 0, 0]);
            place.taps.extend(self.positions.iter().flat_map(|p| p.of_class(self.class_token)));
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
                        place.positions.push([0, row + self.origin, col + self.origin]);
                        if let Some(learned) = self.positions {
                            let first = u32::from(self.class_token == ClassToken::First);
                            place.taps.extend(learned.taps_of(grid, [row, col], first));
                        }
                        if self.class_token.is_there() {
                            place.taps.extend([0.0, 0.0]);
                        }
                    }
                }
                if self.window.is_some() {
                    place.blocks.push([begin, begin + inside]);
                }
            }
        }
        if self.summary.is_some() {
            (place.outputs, place.merged) = (vec![0], vec![0]);
        }
        Ok(place)
    }
}

/// `0..len` in runs of at most `of`.
fn runs(len: u32, of: u32) -> impl Iterator<Item = (u32, u32)> {
    (0..len.div_ceil(of)).map(move |i| (i * of, len.min((i + 1).saturating_mul(of))))
}

impl Learned {
    /// The row of the learned token, and its weight; zeros for the others.
    fn of_class(&self, class: ClassToken) -> Vec<f32> {
        let taps = self.taps() as usize;
        let row = if class == ClassToken::Last { self.places() } else { 0 };
        let mut all = vec![0.0; 2 * taps];
        (all[0], all[taps]) = (row as f32, 1.0);
        all
    }

    /// Rows of the table for a patch, then their weights; the table's patches begin at row `first`.
    fn taps_of(&self, grid: Grid, [row, col]: [u32; 2], first: u32) -> Vec<f32> {
        if self.stretch == Stretch::Sides {
            return [col, self.side + row]
                .map(|id| id as f32)
                .into_iter()
                .chain([1.0; 2])
                .collect();
        }
        let (down, across) = (self.along(row, grid.rows), self.along(col, grid.cols));
        let at = |&(r, _): &(u32, f32), &(c, _): &(u32, f32)| (first + r * self.side + c) as f32;
        let ids = down.iter().flat_map(|r| across.iter().map(move |c| at(r, c)));
        let weights = down.iter().flat_map(|r| across.iter().map(move |c| r.1 * c.1));
        ids.chain(weights).collect()
    }

    /// The places of the table along one side that count for one of `of` patches, and their weights.
    fn along(&self, at: u32, of: u32) -> Vec<(u32, f32)> {
        let last = self.side - 1;
        match self.stretch {
            Stretch::None | Stretch::Sides => vec![(at, 1.0)],
            Stretch::Bilinear => {
                // The first patch lies on the first place, the last on the last.
                let place = f64::from(last) * f64::from(at) / f64::from((of - 1).max(1));
                let low = (place as u32).min(last);
                let part = (place - f64::from(low)) as f32;
                vec![(low, 1.0 - part), ((low + 1).min(last), part)]
            }
            Stretch::Bicubic => {
                let place = (f64::from(at) + 0.5) * f64::from(self.side) / f64::from(of) - 0.5;
                let low = place.floor();
                let tap = |i: i32| {
                    let at = (low as i64 + i64::from(i)).clamp(0, last.into());
                    (at as u32, cubic((place - low - f64::from(i)).abs()) as f32)
                };
                (-1..3).map(tap).collect()
            }
        }
    }
}

/// Keys' kernel with a slope of -3/4, as torch has it.
fn cubic(x: f64) -> f64 {
    const A: f64 = -0.75;
    match x <= 1.0 {
        true => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
        false => ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_squares_of_a_window_are_neighbours() {
        let learned = Learned { side: 3, stretch: Stretch::Bilinear, behind_norm: false };
        assert_eq!(learned.along(0, 5), [(0, 1.0), (1, 0.0)]);
        assert_eq!(learned.along(1, 5), [(0, 0.5), (1, 0.5)]);
        assert_eq!(learned.along(4, 5), [(2, 1.0), (2, 0.0)]);
        assert_eq!(learned.along(0, 1), [(0, 1.0), (1, 0.0)]);
        let learned = Learned { stretch: Stretch::Bicubic, ..learned };
        assert_eq!(learned.along(0, 3)[1..2], [(0, 1.0)]);
        let sum: f32 = learned.along(2, 5).iter().map(|tap| tap.1).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        assert_eq!(runs(5, 2).collect::<Vec<_>>(), [(0, 2), (2, 4), (4, 5)]);
        assert_eq!(runs(5, u32::MAX).collect::<Vec<_>>(), [(0, 5)]);
    }
}
