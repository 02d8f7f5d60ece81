//! What stands in a prompt where a chat template has written that an image comes: text, and the rows
//! of its tiles. As the families' processors write it.

use super::Grid;

/// How a family writes an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Script {
    /// The rows, where the template has that text (Qwen2-VL, LLaVA).
    Plain(&'static str),
    /// The rows between two tokens and empty lines; tiles after a sentence (Gemma 3).
    Framed,
    /// Each tile behind a token with its row and column, the whole image last (Idefics3).
    Tiled,
    /// A token behind each line of rows (Pixtral).
    Lines,
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Text, tokenised with special tokens.
    Text(String),
    /// So many rows of a tile, which go on behind those before.
    Rows {
        /// Which tile.
        tile: usize,
        /// How many rows.
        count: u32,
    },
}

impl Script {
    /// What a chat template writes where an image comes.
    pub fn written(self) -> &'static str {
        match self {
            Script::Plain(text) => text,
            Script::Framed => "<start_of_image>",
            Script::Tiled => "<image>",
            Script::Lines => "[IMG]",
        }
    }

    /// The token whose place each row takes.
    pub fn token(self) -> &'static str {
        match self {
            Script::Framed => "<image_soft_token>",
            other => other.written(),
        }
    }

    /// The pieces of an image of these tiles, in the order they come from the processor.
    pub fn pieces(self, tiles: &[Tile]) -> Vec<Piece> {
        let mut all = Pieces(Vec::new());
        let whole = |tile: &Tile| tile.rows.rows * tile.rows.cols;
        match self {
            Script::Plain(_) => tiles.iter().enumerate().for_each(|(i, t)| all.rows(i, whole(t))),
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
                    all.rows(i, whole(tile));
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
                    all.rows(i, whole(tile));
                }
                all.text("<fake_token_around_image>");
            }
            Script::Lines => {
                for (i, tile) in tiles.iter().enumerate() {
                    for line in 1..=tile.rows.rows {
                        all.rows(i, tile.rows.cols);
                        all.text(if line < tile.rows.rows { "[IMG_BREAK]" } else { "[IMG_END]" });
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

    fn rows(&mut self, tile: usize, count: u32) {
        self.0.push(Piece::Rows { tile, count });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(script: Script, tiles: &[Tile]) -> String {
        let piece = |p: &Piece| match p {
            Piece::Text(text) => text.clone(),
            Piece::Rows { tile, count } => format!("[{count} of {tile}]"),
        };
        script.pieces(tiles).iter().map(piece).collect()
    }

    #[test]
    fn images_are_written_as_processors_write_them() {
        let of = |part| Tile { rows: Grid { rows: 2, cols: 3 }, part };
        let tiles =
            [of(Some([0, 0])), of(Some([0, 1])), of(Some([1, 0])), of(Some([1, 1])), of(None)];
        for (script, tiles, expect) in [
            (Script::Plain("<image>"), &tiles[4..], "[6 of 0]"),
            (Script::Framed, &tiles[4..], "\n\n<start_of_image>[6 of 0]<end_of_image>\n\n"),
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
        let crops = shown(Script::Framed, &[of(None), of(Some([0, 0])), of(Some([0, 1]))]);
        assert!(crops.starts_with("Here is the original image \n\n<start_of_image>[6 of 0]"));
        assert!(crops.contains("better \n\n<start_of_image>[6 of 1]<end_of_image>\n\n \n\n"));
    }
}
