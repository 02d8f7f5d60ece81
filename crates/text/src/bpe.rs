//! Merging symbols into tokens, with a heap over a linked list: n log n in the length of a word.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use rustc_hash::FxBuildHasher;
use unicode_normalization::UnicodeNormalization;

use crate::byte_level::char_of_byte;
use crate::encoder::{Ids, Pace};
use crate::pretokenize::PreTokenizer;
use crate::tokenizer::TokenizerError;

/// A map with a hasher that is fast on short keys. The keys are the model's, not a client's.
pub(crate) type FastMap<K, V> = HashMap<K, V, FxBuildHasher>;

/// No neighbour, or no token.
const NONE: u32 = u32::MAX;

/// A run of bytes of the word being merged.
#[derive(Clone, Copy)]
pub(crate) struct Symbol {
    /// Byte offset in the word.
    start: u32,
    /// Length in bytes; 0 once merged into the symbol on its left.
    len: u32,
    /// Token id, or `NONE` for a character that is no token.
    id: u32,
    left: u32,
    right: u32,
}

/// A possible merge; the heap yields the lowest rank first, then the leftmost.
#[derive(PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
struct Candidate {
    rank: u32,
    left: u32,
    right: u32,
    /// Bytes of both sides when the merge was proposed; another length means it is stale.
    len: u32,
    id: u32,
}

/// Scratch memory for merging, kept between words.
#[derive(Default)]
pub(crate) struct Merger {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Reverse<Candidate>>,
}

impl Merger {
    /// Starts a new word.
    fn clear(&mut self) {
        self.symbols.clear();
        self.heap.clear();
    }

    /// Appends a symbol of `len` bytes.
    fn push(&mut self, len: usize, id: u32) {
        let index = self.symbols.len() as u32;
        let start = self.symbols.last().map_or(0, |s| s.start + s.len);
        if let Some(last) = self.symbols.last_mut() {
            last.right = index;
        }
        let left = index.checked_sub(1).unwrap_or(NONE);
        self.symbols.push(Symbol { start, len: len as u32, id, left, right: NONE });
    }

    /// Merges until no pair has a rank. `rank` gives (rank, merged id) of two neighbours.
    fn run(
        &mut self,
        pace: &mut Pace<'_>,
        rank: impl Fn(&Symbol, &Symbol) -> Option<(u32, u32)>,
    ) -> Result<(), TokenizerError> {
        for left in 1..self.symbols.len() as u32 {
            pace.step()?;
            self.propose(left - 1, left, &rank);
        }
        while let Some(Reverse(next)) = self.heap.pop() {
            pace.step()?;
            if self.apply(&next) {
                let Some(merged) = self.symbols.get(next.left as usize).copied() else { continue };
                self.propose(merged.left, next.left, &rank);
                self.propose(next.left, merged.right, &rank);
            }
        }
        Ok(())
    }

    fn propose(
        &mut self,
        left: u32,
        right: u32,
        rank: &impl Fn(&Symbol, &Symbol) -> Option<(u32, u32)>,
    ) {
        let (Some(a), Some(b)) =
            (self.symbols.get(left as usize), self.symbols.get(right as usize))
        else {
            return;
        };
        if let Some((rank, id)) = rank(a, b) {
            self.heap.push(Reverse(Candidate { rank, left, right, len: a.len + b.len, id }));
        }
    }

    /// Carries a merge out; false if it is stale.
    fn apply(&mut self, merge: &Candidate) -> bool {
        let (Some(&a), Some(&b)) =
            (self.symbols.get(merge.left as usize), self.symbols.get(merge.right as usize))
        else {
            return false;
        };
        if a.len == 0 || b.len == 0 || a.right != merge.right || a.len + b.len != merge.len {
            return false;
        }
        if let Some(a) = self.symbols.get_mut(merge.left as usize) {
            (a.len, a.id, a.right) = (merge.len, merge.id, b.right);
        }
        if let Some(b) = self.symbols.get_mut(merge.right as usize) {
            b.len = 0;
        }
        if let Some(c) = self.symbols.get_mut(b.right as usize) {
            c.left = merge.left;
        }
        true
    }

    /// The symbols that are left, in order.
    fn merged(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols.iter().filter(|s| s.len > 0)
    }
}

/// Merge rules between token ids: (left, right) → (rank, merged id).
pub(crate) type MergeTable = FastMap<(u32, u32), (u32, u32)>;

/// Byte-level BPE: every byte is a symbol, words come from the pre-tokenizer.
pub(crate) struct ByteBpe {
    pub(crate) pre: PreTokenizer,
    pub(crate) merges: MergeTable,
    /// Token of each byte, where the vocabulary has one.
    pub(crate) byte_ids: Vec<Option<u32>>,
    /// Raw bytes of a word → its token; filled only where words are taken whole.
    pub(crate) whole_words: FastMap<Box<[u8]>, u32>,
    pub(crate) unknown: Option<u32>,
}

impl ByteBpe {
    /// Byte → token table out of a vocabulary in byte-level spelling.
    pub(crate) fn byte_ids(id_of: impl Fn(&str) -> Option<u32>) -> Vec<Option<u32>> {
        (0..=255u8).map(|byte| id_of(char_of_byte(byte).encode_utf8(&mut [0; 4]))).collect()
    }

    /// Whether every byte of a text is part of some token.
    pub(crate) fn keeps_all(&self) -> bool {
        self.unknown.is_some() || self.byte_ids.iter().all(Option::is_some)
    }

    pub(crate) fn encode(&self, text: &str, out: &mut Ids<'_>) -> Result<(), TokenizerError> {
        let mut merger = Merger::default();
        let composed: String;
        let text = match self.pre.composes && !unicode_normalization::is_nfc(text) {
            true => {
                composed = text.nfc().collect();
                &composed
            }
            false => text,
        };
        self.pre.split(text, &mut |word| self.encode_word(word.as_bytes(), &mut merger, out))
    }

    fn encode_word(
        &self,
        word: &[u8],
        merger: &mut Merger,
        out: &mut Ids<'_>,
    ) -> Result<(), TokenizerError> {
        if let Some(&id) = self.whole_words.get(word) {
            out.list.push(id);
            return out.step();
        }
        merger.clear();
        for &byte in word {
            let id = self.byte_ids.get(usize::from(byte)).copied().flatten();
            if let Some(id) = id.or(self.unknown) {
                merger.push(1, id);
            }
        }
        merger.run(&mut out.pace, |a, b| self.merges.get(&(a.id, b.id)).copied())?;
        out.list.extend(merger.merged().map(|s| s.id));
        out.step()
    }
}

/// How a vocabulary spells a space.
pub(crate) const SPACE_MARK: &str = "▁";

/// BPE over characters with byte fallback, spaces spelled `▁`: SentencePiece vocabularies.
pub(crate) struct CharBpe {
    pub(crate) rule: CharRule,
    /// Token text → id, for the tokens that merging may produce.
    pub(crate) ids: FastMap<Box<str>, u32>,
    /// Tokens `<0x00>`..`<0xFF>`.
    pub(crate) byte_ids: Vec<Option<u32>>,
    pub(crate) unknown: Option<u32>,
    /// Longest token text in bytes: no longer pair is looked up.
    pub(crate) longest_bytes: usize,
    /// A space goes in front of text that starts the input or follows a special token.
    pub(crate) space_prefix: bool,
}

/// Which merge comes first.
pub(crate) enum CharRule {
    /// The text of the merged pair is a token; rank per token id, from its score.
    Score(Vec<u32>),
    /// Listed merges; the text is cut at runs of newlines first.
    Listed(MergeTable),
}

impl CharBpe {
    /// Whether every character of a text is part of some token.
    pub(crate) fn keeps_all(&self) -> bool {
        self.unknown.is_some() || self.byte_ids.iter().all(Option::is_some)
    }

    pub(crate) fn encode(&self, text: &str, out: &mut Ids<'_>) -> Result<(), TokenizerError> {
        let mut spelled = String::with_capacity(text.len() + SPACE_MARK.len());
        if self.space_prefix {
            spelled.push_str(SPACE_MARK);
        }
        for c in text.chars() {
            match c {
                ' ' => spelled.push_str(SPACE_MARK),
                c => spelled.push(c),
            }
        }
        let mut merger = Merger::default();
        match &self.rule {
            CharRule::Score(ranks) => {
                self.fill(&spelled, &mut merger);
                merger.run(&mut out.pace, |a, b| self.rank_by_score(&spelled, ranks, a, b))?;
                self.emit(&spelled, &merger, &mut out.list);
            }
            CharRule::Listed(merges) => {
                for run in newline_runs(&spelled) {
                    self.fill(run, &mut merger);
                    merger.run(&mut out.pace, |a, b| merges.get(&(a.id, b.id)).copied())?;
                    self.emit(run, &merger, &mut out.list);
                    out.step()?;
                }
            }
        }
        Ok(())
    }

    /// One symbol per character.
    fn fill(&self, text: &str, merger: &mut Merger) {
        merger.clear();
        let mut utf8 = [0; 4];
        for c in text.chars() {
            let id = self.ids.get(&*c.encode_utf8(&mut utf8)).copied().unwrap_or(NONE);
            merger.push(c.len_utf8(), id);
        }
    }

    fn rank_by_score(
        &self,
        text: &str,
        ranks: &[u32],
        a: &Symbol,
        b: &Symbol,
    ) -> Option<(u32, u32)> {
        let len = (a.len + b.len) as usize;
        if len > self.longest_bytes {
            return None;
        }
        let start = a.start as usize;
        let id = *self.ids.get(text.get(start..start + len)?)?;
        Some((*ranks.get(id as usize)?, id))
    }

    fn emit(&self, text: &str, merger: &Merger, out: &mut Vec<u32>) {
        for symbol in merger.merged() {
            if symbol.id != NONE {
                out.push(symbol.id);
                continue;
            }
            let start = symbol.start as usize;
            let bytes = text.as_bytes().get(start..start + symbol.len as usize).unwrap_or(&[]);
            let ids: Option<Vec<u32>> =
                bytes.iter().map(|&b| *self.byte_ids.get(usize::from(b))?).collect();
            match ids {
                Some(ids) => out.extend(ids),
                None => out.extend(self.unknown),
            }
        }
    }
}

/// Cuts text where newlines begin and end: runs of newlines and the text between them.
fn newline_runs(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let breaks = rest.starts_with('\n');
        let end = rest.find(|c| (c == '\n') != breaks).unwrap_or(rest.len());
        let (run, after) = rest.split_at(end);
        rest = after;
        (!run.is_empty()).then_some(run)
    })
}
