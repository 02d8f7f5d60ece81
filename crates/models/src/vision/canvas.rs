//! Images cut into tiles of a canvas (LLaVA 1.6, OneVision): the rows of the whole image, then those of the
//! canvas line by line, without the bars above and below or at both sides, and a learned row behind
//! each line. Where a canvas has too many rows it is made smaller, between its nearest four
//! (transformers' `pack_image_features`).

use super::{Grid, Piece, Tile};

/// A row of a tile, and what it counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tap {
    /// Which tile.
    pub tile: usize,
    /// Which of its rows.
    pub row: u32,
    /// What it is multiplied by.
    pub weight: f32,
}

/// A canvas of tiles without its bars, in rows of the model.
struct Canvas {
    /// Of one tile.
    tile: Grid,
    /// Tiles beside each other.
    across: u32,
    /// Rows of the model below each other, and beside each other.
    size: [u32; 2],
    /// What is left out above, and at the left.
    bars: [u32; 2],
}

/// The pieces of an image of `size` pixels (height, width), whose first tile is the whole; a canvas has
/// room for the rows of `most` tiles.
pub(super) fn pieces(tiles: &[Tile], size: [u32; 2], most: Option<u32>) -> Vec<Piece> {
    let Some(whole) = tiles.first() else { return Vec::new() };
    let mut all = vec![Piece::Rows { tile: 0, first: 0, count: whole.rows.rows * whole.rows.cols }];
    let Some(canvas) = Canvas::of(&tiles[1..], size) else {
        all.push(Piece::Newline);
        return all;
    };
    let [rows, cols] = canvas.size;
    let part = whole.rows.rows * whole.rows.rows;
    let ratio = most.map_or(0.0, |n| {
        (f64::from(rows) * f64::from(cols) / (f64::from(n) * f64::from(part))).sqrt()
    });
    if ratio > 1.1 {
        canvas.smaller([rows, cols].map(|side| floor_div(side, ratio)), &mut all);
        return all;
    }
    for row in 0..rows {
        canvas.line(row, &mut all);
        all.push(Piece::Newline);
    }
    all
}

/// Python's `side // ratio` of floats.
fn floor_div(side: u32, ratio: f64) -> u32 {
    let side = f64::from(side);
    ((side - side % ratio) / ratio).round() as u32
}

impl Canvas {
    fn of(tiles: &[Tile], [height, width]: [u32; 2]) -> Option<Self> {
        let [last, across] = tiles.last()?.part.map(|part| part.map(|n| n + 1))?;
        let tile = tiles.first()?.rows;
        let (rows, cols) = (last * tile.rows, across * tile.cols);
        // (Which side has bars, and how wide they are, in f64 as transformers.)
        let sides = [height, width, rows, cols].map(f64::from);
        let inner = |scale: f64, side: f64| {
            (((side * scale) * 1e7).round_ties_even() / 1e7).floor().max(0.0) as u32
        };
        let bars = match sides[1] / sides[0] > sides[3] / sides[2] {
            true => [rows.saturating_sub(inner(sides[3] / sides[1], sides[0])) / 2, 0],
            false => [0, cols.saturating_sub(inner(sides[2] / sides[0], sides[1])) / 2],
        };
        let size = [rows - 2 * bars[0], cols - 2 * bars[1]];
        Some(Self { tile, across, size, bars })
    }

    /// The tile at a row and column, and which of its rows that is.
    fn at(&self, row: u32, col: u32) -> (usize, u32) {
        let (row, col) = (row + self.bars[0], col + self.bars[1]);
        let Grid { rows, cols } = self.tile;
        let at = row / rows * self.across + col / cols;
        (1 + at as usize, row % rows * cols + col % cols)
    }

    /// A line, in runs of a tile each.
    fn line(&self, row: u32, all: &mut Vec<Piece>) {
        for col in 0..self.size[1] {
            let (tile, at) = self.at(row, col);
            match all.last_mut() {
                Some(Piece::Rows { tile: before, first, count })
                    if *before == tile && *first + *count == at =>
                {
                    *count += 1;
                }
                _ => all.push(Piece::Rows { tile, first: at, count: 1 }),
            }
        }
    }

    /// Its lines at another size.
    fn smaller(&self, [rows, cols]: [u32; 2], all: &mut Vec<Piece>) {
        for row in 0..rows {
            let down = between(row, self.size[0], rows);
            for col in 0..cols {
                let across = between(col, self.size[1], cols);
                let tap = |i: usize| {
                    let ((row, y), (col, x)) = (down[i / 2], across[i % 2]);
                    let (tile, row) = self.at(row, col);
                    Tap { tile, row, weight: y * x }
                };
                all.push(Piece::Mixed(std::array::from_fn(tap)));
            }
            all.push(Piece::Newline);
        }
    }
}

/// The two nearest of `from` places along a side for place `at` of `to`, and their weights: pixels are
/// areas, so the first lies half a step inside (torch's `align_corners=False`).
fn between(at: u32, from: u32, to: u32) -> [(u32, f32); 2] {
    let scale = from as f32 / to as f32;
    let place = ((at as f32 + 0.5) * scale - 0.5).max(0.0);
    let low = (place as u32).min(from - 1);
    let part = place - low as f32;
    [(low, 1.0 - part), ((low + 1).min(from - 1), part)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(size: [u32; 2], split: [u32; 2], most: Option<u32>) -> String {
        let rows = Grid { rows: 4, cols: 4 };
        let mut tiles = vec![Tile { rows, part: None }];
        let parts = (0..split[0]).flat_map(|r| (0..split[1]).map(move |c| [r, c]));
        tiles.extend(parts.map(|part| Tile { rows, part: Some(part) }));
        let piece = |p: &Piece| match p {
            Piece::Rows { tile, first, count } => format!("{tile}:{first}+{count} "),
            Piece::Newline => "| ".to_owned(),
            Piece::Mixed(taps) => format!("{} ", taps[0].row),
            Piece::Text(text) => text.clone(),
        };
        pieces(&tiles, size, most).iter().map(piece).collect()
    }

    #[test]
    fn canvases_lose_their_bars() {
        // 4 × 8 rows for 30 × 100 pixels: 8 · 0.3 = 2 of them are the image's.
        assert_eq!(shown([30, 100], [1, 2], None), "0:0+16 1:4+4 2:4+4 | 1:8+4 2:8+4 | ");
        assert_eq!(
            shown([100, 30], [2, 1], None),
            "0:0+16 1:1+2 | 1:5+2 | 1:9+2 | 1:13+2 | 2:1+2 | 2:5+2 | 2:9+2 | 2:13+2 | "
        );
        assert_eq!(shown([50, 50], [0, 0], None), "0:0+16 | ");
        assert_eq!(floor_div(8, 2.0), 4);
        assert_eq!(floor_div(8, 2.1), 3);
    }

    #[test]
    fn large_canvases_are_made_smaller() {
        // √(32 / 16) = 1.41: 2 lines of 5.
        let told = shown([50, 100], [1, 2], Some(1));
        assert_eq!(told.matches('|').count(), 2);
        assert_eq!(told.split(' ').count(), 1 + 2 * 6 + 1);
        assert_eq!(between(0, 8, 5), [(0, 0.7), (1, 0.3)].map(|(i, w): (u32, f32)| (i, w)));
    }
}
