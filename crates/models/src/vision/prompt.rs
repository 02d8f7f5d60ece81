//! The three positions of a prompt's tokens where images stand among them (Qwen2-VL's rule, which all
//! of its line have): text counts all three on; the rows of an image have their row and column as the
//! second and third, and what follows goes on behind the greatest.

use super::Grid;

/// A part of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// So many tokens of text.
    Text(u32),
    /// An image of so many rows and columns of tokens.
    Image(Grid),
}

/// Positions of a prompt's tokens.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Positions {
    /// On three axes. [tokens]
    pub axes: Vec<[u32; 3]>,
    /// The position of the token that follows, on all axes.
    pub next: u32,
}

impl Positions {
    /// Those of a prompt of these parts.
    pub fn of(parts: &[Part]) -> Self {
        let mut all = Self::default();
        for part in parts {
            let start = all.next;
            match *part {
                Part::Text(len) => {
                    all.axes.extend((start..start + len).map(|p| [p; 3]));
                    all.next += len;
                }
                Part::Image(Grid { rows, cols }) => {
                    let places = (0..rows).flat_map(|r| (0..cols).map(move |c| (r, c)));
                    all.axes.extend(places.map(|(r, c)| [start, start + r, start + c]));
                    all.next += rows.max(cols);
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_goes_on_behind_the_greatest_position_of_an_image() {
        let image = Part::Image(Grid { rows: 2, cols: 3 });
        let found = Positions::of(&[Part::Text(2), image, Part::Text(1)]);
        let expect: [&[[u32; 3]]; 3] = [
            &[[0, 0, 0], [1, 1, 1]],
            &[[2, 2, 2], [2, 2, 3], [2, 2, 4], [2, 3, 2], [2, 3, 3], [2, 3, 4]],
            &[[5, 5, 5]],
        ];
        assert_eq!(found.axes, expect.concat());
        assert_eq!(found.next, 6);
    }
}
