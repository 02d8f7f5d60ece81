//! What a prompt has beside its tokens: rows that stand in the place of some, positions on several
//! axes, blocks of tokens that see each other.

use std::sync::Arc;

use tokenmill_ir::sampling::splitmix;
use tokenmill_ir::{Batch, FIRST_MEDIA, TokenId, TokenSource};

/// Rows that stand in the place of tokens: what an encoder makes of an image, or what it reads of one.
#[derive(Debug, Clone, PartialEq)]
pub struct Embeddings {
    /// Numbers in a row: as many as the program reads of one.
    pub cols: u32,
    /// Row after row. [rows × cols]
    pub data: Vec<f32>,
    /// What stands for the rows in a text, each from [`FIRST_MEDIA`] on: equal ones where all that the
    /// rows are made of is equal. [rows]
    pub ids: Vec<TokenId>,
}

impl Embeddings {
    /// Rows that depend on nothing but what `content` is a hash of.
    pub fn new(cols: u32, data: Vec<f32>, content: u128) -> Self {
        let [low, high] = [content as u64, (content >> 64) as u64];
        let id = |row: u64| {
            let bits = splitmix(low ^ splitmix(high.wrapping_add(row)));
            FIRST_MEDIA | (bits >> 33) as TokenId
        };
        let ids = (0..(data.len() / cols.max(1) as usize) as u64).map(id).collect();
        Self { cols, data, ids }
    }

    /// Rows.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    fn row(&self, row: u32) -> &[f32] {
        let cols = self.cols as usize;
        self.data.get(row as usize * cols..).and_then(|d| d.get(..cols)).unwrap_or_default()
    }
}

/// Rows in a text.
#[derive(Debug, Clone, PartialEq)]
pub struct Media {
    /// Index of the first of them.
    pub at: u32,
    /// The rows.
    pub rows: Arc<Embeddings>,
}

impl Media {
    fn end(&self) -> u32 {
        self.at + self.rows.len() as u32
    }
}

/// What a prompt has beside its tokens; the usual one has nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Inputs {
    /// Rows in the place of tokens, in order; the prompt has their ids there.
    pub media: Vec<Media>,
    /// Tokens that see each other, before and after them: begin and end of each block, in order.
    /// Such a block is computed in one step.
    pub blocks: Vec<[u32; 2]>,
    /// Positions of the first tokens on three axes; those of others are their indices.
    pub positions: Vec<[u32; 3]>,
    /// Position of the token behind those of `positions`; later ones count on from it.
    pub next: u32,
    /// Tokens whose final rows are wanted, in order; see [`Numbers::Listed`](crate::Numbers::Listed).
    pub outputs: Vec<u32>,
}

impl Inputs {
    /// A prompt in which the rows of images stand where it has a `placeholder`, one for each.
    ///
    /// # Errors
    /// How many placeholders there are, and how many images.
    pub fn place(
        prompt: &[TokenId],
        placeholder: TokenId,
        images: &[Arc<Embeddings>],
    ) -> Result<(Vec<TokenId>, Inputs), (usize, usize)> {
        let places = prompt.iter().filter(|t| **t == placeholder).count();
        if places != images.len() {
            return Err((places, images.len()));
        }
        let (mut tokens, mut inputs) = (Vec::with_capacity(prompt.len()), Inputs::default());
        let mut images = images.iter();
        for &token in prompt {
            match images.as_slice().first().filter(|_| token == placeholder) {
                Some(rows) => {
                    images.next();
                    inputs.media.push(Media { at: tokens.len() as u32, rows: Arc::clone(rows) });
                    tokens.extend_from_slice(&rows.ids);
                }
                None => tokens.push(token),
            }
        }
        Ok((tokens, inputs))
    }

    /// Whether it belongs to a prompt of a program that reads rows of `cols` numbers.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self, prompt: &[TokenId], cols: u32) -> Result<(), String> {
        let mut end = 0;
        for (i, media) in self.media.iter().enumerate() {
            let (rows, at) = (&media.rows, media.at as usize);
            if rows.cols != cols || rows.data.len() != rows.len() * cols as usize {
                let (found, numbers) = (rows.cols, rows.data.len());
                return Err(format!("rows {i}: {numbers} numbers in rows of {found}, not {cols}"));
            }
            let there = prompt.get(at..).and_then(|rest| rest.get(..rows.len()));
            if at < end || rows.is_empty() || there != Some(rows.ids.as_slice()) {
                return Err(format!("rows {i}: {} from {at} are not the prompt's", rows.len()));
            }
            end = at + rows.len();
        }
        let mut end = 0;
        for &[begin, after] in &self.blocks {
            if begin < end || after <= begin || after as usize > prompt.len() {
                let tokens = prompt.len();
                return Err(format!("a block from {begin} to {after} of {tokens} tokens"));
            }
            end = after;
        }
        let (positions, tokens) = (self.positions.len(), prompt.len());
        if positions > tokens {
            return Err(format!("{positions} positions of {tokens} tokens"));
        }
        let last = self.outputs.last().is_none_or(|&row| (row as usize) < tokens);
        match last && self.outputs.is_sorted_by(|a, b| a < b) {
            true => Ok(()),
            false => Err(format!("rows {:?} of {tokens} tokens", self.outputs)),
        }
    }

    /// Rows in all.
    pub fn rows(&self) -> u32 {
        self.media.iter().map(|m| m.rows.len() as u32).sum()
    }

    /// Tokens of the longest block.
    pub fn longest_block(&self) -> u32 {
        self.blocks.iter().map(|[begin, end]| end - begin).max().unwrap_or(0)
    }

    /// The block of a token.
    fn block_of(&self, index: u32) -> Option<[u32; 2]> {
        let after = self.blocks.partition_point(|b| b[0] <= index);
        let block = *self.blocks.get(after.checked_sub(1)?)?;
        (index < block[1]).then_some(block)
    }

    /// The block that begins before a token and does not end before it.
    pub(crate) fn block_around(&self, index: u32) -> Option<[u32; 2]> {
        self.block_of(index).filter(|b| b[0] < index)
    }

    /// Tokens of the block that begins with a token.
    pub(crate) fn block_from(&self, index: u32) -> u32 {
        self.block_of(index).filter(|b| b[0] == index).map_or(0, |[begin, end]| end - begin)
    }

    /// The positions of a token on all axes.
    fn position(&self, index: u32) -> [u32; 3] {
        let known = self.positions.len() as u32;
        let later = || [if known == 0 { index } else { self.next + (index - known) }; 3];
        self.positions.get(index as usize).copied().unwrap_or_else(later)
    }

    /// Adds tokens `from..to` of a text to a step.
    pub(crate) fn fill(&self, text: &[TokenId], (from, to): (u32, u32), batch: &mut Batch) {
        let (several, blocks) = (!self.positions.is_empty(), !self.blocks.is_empty());
        level(batch, several, blocks);
        let mut media = self.media.iter().skip_while(|m| m.end() <= from).peekable();
        for index in from..to {
            while media.next_if(|m| m.end() <= index).is_some() {}
            let row = media.peek().filter(|m| m.at <= index);
            batch.tokens.push(match row {
                Some(m) => {
                    let row = batch.embeddings.len() / m.rows.cols as usize;
                    batch.embeddings.extend_from_slice(m.rows.row(index - m.at));
                    TokenSource::Embedding(row as u32)
                }
                None => TokenSource::Id(text[index as usize]),
            });
            let [first, second, third] = self.position(index);
            batch.positions.push(first);
            if several {
                batch.grid.push([second, third]);
            }
            if blocks {
                batch.blocks.push(self.block_of(index).unwrap_or_default());
            }
        }
        level(batch, false, false);
    }
}

/// Gives the tokens of a step so far what others have, or the next one will have: positions on further
/// axes, those of the first, and no blocks.
pub(crate) fn level(batch: &mut Batch, several: bool, blocks: bool) {
    if several || !batch.grid.is_empty() {
        let later = batch.positions[batch.grid.len()..].iter().map(|&p| [p; 2]);
        batch.grid.extend(later);
    }
    if blocks || !batch.blocks.is_empty() {
        batch.blocks.resize(batch.tokens.len(), [0; 2]);
    }
}
