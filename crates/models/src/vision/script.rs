//! What stands in a prompt where a chat template has written that an image comes: text, and the rows
//! of its tiles. As the families' processors write it.

use super::Grid;
use super::canvas::{self, Tap};

/// How a family writes an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Script {
    /// The rows, where the template has that text (Qwen2-VL, LLaVA).
    Plain(&'static str),
    /// The rows of all tiles between two texts, where the template has that text (InternVL).
    Between(&'static str, [&'static str; 2]),
    /// The rows between two tokens and empty lines; tiles after a sentence (Gemma 3).
    Framed,
    /// Each tile behind a token with its row and column, the whole image last (Idefics3).
    Tiled,
    /// Tiles with a token between those of a line and one behind each line, the whole image last
    /// (Llama 4).
    Separated,
    /// A token behind each line of rows (Pixtral).
    Lines,
    /// The whole image, then the lines of a canvas of tiles, with a learned row behind each; a canvas has
    /// room for the rows of so many tiles, where that is bounded (LLaVA 1.6, OneVision).
    Canvas(Option<u32>),
}

/// A tile of an image, or all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tile {
    /// Its rows, as a grid ([`VisionSpec::merged`](super::VisionSpec::merged)).
    pub rows: Grid,
    /// Its place among the tiles; none: it is the whole image.
    pub part: Option<[u32; 2]>,
}

/// A piece of what stands for an image.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    /// Text, tokenised with special tokens.
    Text(String),
    /// So many rows of a tile.
    Rows {
        /// Which tile.
        tile: usize,
        /// The first of them.
        first: u32,
        /// How many rows.
        count: u32,
    },
    /// The learned row behind a line.
    Newline,
    /// A row between four rows of tiles.
    Mixed([Tap; 4]),
}

impl Piece {
    /// How many rows it has.
    pub fn rows(&self) -> u32 {
        match self {
            Piece::Text(_) => 0,
            Piece::Rows { count, .. } => *count,
            Piece::Newline | Piece::Mixed(_) => 1,
        }
    }

    /// Adds its rows, of `cols` numbers, to others; `tiles` has those of each tile.
    pub fn add(&self, tiles: &[&[f32]], newline: &[f32], cols: usize, rows: &mut Vec<f32>) {
        let row = |tile: usize, row: u32| &tiles[tile][row as usize * cols..][..cols];
        match self {
            Piece::Text(_) => {}
            Piece::Rows { tile, first, count } => {
                let len = *count as usize * cols;
                rows.extend_from_slice(&tiles[*tile][*first as usize * cols..][..len]);
            }
            Piece::Newline => rows.extend_from_slice(newline),
            Piece::Mixed(taps) => {
                let four = taps.map(|tap| (row(tap.tile, tap.row), tap.weight));
                let at = |i: usize| four.iter().map(|(row, weight)| row[i] * weight).sum::<f32>();
                rows.extend((0..cols).map(at));
            }
        }
    }
}

impl Script {
    /// What a chat template writes where an image comes.
    pub fn written(self) -> &'static str {
        match self {
            Script::Plain(text) | Script::Between(text, _) => text,
            Script::Framed => "<start_of_image>",
            Script::Tiled | Script::Canvas(_) => "<image>",
            Script::Separated => "<|image|>",
            Script::Lines => "[IMG]",
        }
    }

    /// What stands around an image where no template writes it, as llama.cpp's server has it.
    pub fn around(self) -> [&'static str; 2] {
        match self {
            Script::Plain("<|image_pad|>") => ["<|vision_start|>", "<|vision_end|>"],
            Script::Plain("<|image|>") => ["<|begin_of_image|>", "<|end_of_image|>"],
            Script::Plain("<|media_pad|>") => ["<|media_start|>", "<|media_end|>"],
            _ => ["", ""],
        }
    }

    /// The token whose place each row takes.
    pub fn token(self) -> &'static str {
        match self {
            Script::Framed => "<image_soft_token>",
            Script::Separated => "<|patch|>",
            other => other.written(),
        }
    }

    /// The pieces of an image of `size` pixels (height, width) that has these tiles, in the order they come
    /// from the processor.
    pub fn pieces(self, tiles: &[Tile], size: [u32; 2]) -> Vec<Piece> {
        let mut all = Pieces(Vec::new());
        match self {
            Script::Canvas(most) => all.0 = canvas::pieces(tiles, size, most),
            Script::Plain(_) => tiles.iter().enumerate().for_each(|(i, t)| all.whole(i, t)),
            Script::Between(_, [before, after]) => {
                all.text(before);
                tiles.iter().enumerate().for_each(|(i, t)| all.whole(i, t));
                all.text(after);
            }
            Script::Framed => {
                if tiles.len() > 1 {
                    all.text("Here is the original image ");
                }
                for (i, tile) in tiles.iter().enumerate() {
                    all.text(match i {
                        0 => "",
                        1 => " and here are some crops to help you see better ",
                        _ => " ",
                    });
                    all.text("\n\n<start_of_image>");
                    all.whole(i, tile);
                    all.text("<end_of_image>\n\n");
                }
            }
            Script::Tiled => {
                let mut line = 0;
                for (i, tile) in tiles.iter().enumerate() {
                    match tile.part {
                        Some([row, _]) if row != line => {
                            all.text("\n");
                            line = row;
                        }
                        None if i > 0 => all.text("\n\n"),
                        _ => {}
                    }
                    all.text("<fake_token_around_image>");
                    all.text(&match tile.part {
                        Some([row, col]) => format!("<row_{}_col_{}>", row + 1, col + 1),
                        None => "<global-img>".to_owned(),
                    });
                    all.whole(i, tile);
                }
                all.text("<fake_token_around_image>");
            }
            Script::Separated => all.separated(tiles),
            Script::Lines => {
                for (i, tile) in tiles.iter().enumerate() {
                    let Grid { rows, cols } = tile.rows;
                    for line in 0..rows {
                        all.0.push(Piece::Rows { tile: i, first: line * cols, count: cols });
                        all.text(if line + 1 < rows { "[IMG_BREAK]" } else { "[IMG_END]" });
                    }
                }
            }
        }
        all.0
    }
}

struct Pieces(Vec<Piece>);

impl Pieces {
    fn text(&mut self, more: &str) {
        match self.0.last_mut() {
            _ if more.is_empty() => {}
            Some(Piece::Text(text)) => text.push_str(more),
            _ => self.0.push(Piece::Text(more.to_owned())),
        }
    }

    /// Tiles with a token between those of a line and one behind each line.
    fn separated(&mut self, tiles: &[Tile]) {
        self.text("<|image_start|>");
        for (i, tile) in tiles.iter().enumerate() {
            let line = |tile: &Tile| tile.part.map(|part| part[0]);
            let next = tiles.get(i + 1).and_then(line);
            if tile.part.is_none() {
                self.text("<|image|>");
            }
            self.whole(i, tile);
            self.text(match line(tile) {
                None => "<|image_end|>",
                line if line == next => "<|tile_x_separator|>",
                Some(_) => "<|tile_y_separator|>",
            });
        }
    }

    fn whole(&mut self, tile: usize, of: &Tile) {
        let count = of.rows.rows * of.rows.cols;
        self.0.push(Piece::Rows { tile, first: 0, count });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(script: Script, tiles: &[Tile]) -> String {
        let piece = |p: &Piece| match p {
            Piece::Text(text) => text.clone(),
            Piece::Rows { tile, count, .. } => format!("[{count} of {tile}]"),
            other => format!("{other:?}"),
        };
        script.pieces(tiles, [100, 100]).iter().map(piece).collect()
    }

    #[test]
    fn images_are_written_as_processors_write_them() {
        let of = |part| Tile { rows: Grid { rows: 2, cols: 3 }, part };
        let tiles =
            [of(Some([0, 0])), of(Some([0, 1])), of(Some([1, 0])), of(Some([1, 1])), of(None)];
        for (script, tiles, expect) in [
            (Script::Plain("<image>"), &tiles[4..], "[6 of 0]"),
            (Script::Framed, &tiles[4..], "\n\n<start_of_image>[6 of 0]<end_of_image>\n\n"),
            (Script::Between("i", ["<img>", "</img>"]), &tiles[3..], "<img>[6 of 0][6 of 1]</img>"),
            (Script::Lines, &tiles[4..], "[3 of 0][IMG_BREAK][3 of 0][IMG_END]"),
            (
                Script::Tiled,
                &tiles[4..],
                "<fake_token_around_image><global-img>[6 of 0]<fake_token_around_image>",
            ),
            (
                Script::Tiled,
                &tiles,
                "<fake_token_around_image><row_1_col_1>[6 of 0]\
                 <fake_token_around_image><row_1_col_2>[6 of 1]\n\
                 <fake_token_around_image><row_2_col_1>[6 of 2]\
                 <fake_token_around_image><row_2_col_2>[6 of 3]\n\n\
                 <fake_token_around_image><global-img>[6 of 4]<fake_token_around_image>",
            ),
        ] {
            assert_eq!(shown(script, tiles), expect);
        }
        let told = shown(Script::Separated, &tiles);
        let expect = "<|image_start|>[6 of 0]<|tile_x_separator|>[6 of 1]<|tile_y_separator|>\
                      [6 of 2]<|tile_x_separator|>[6 of 3]<|tile_y_separator|>\
                      <|image|>[6 of 4]<|image_end|>";
        assert_eq!(told, expect);
        let crops = shown(Script::Framed, &[of(None), of(Some([0, 0])), of(Some([0, 1]))]);
        assert!(crops.starts_with("Here is the original image \n\n<start_of_image>[6 of 0]"));
        assert!(crops.contains("better \n\n<start_of_image>[6 of 1]<end_of_image>\n\n \n\n"));
    }
}
