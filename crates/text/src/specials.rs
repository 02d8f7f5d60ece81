//! Finding control and user-defined tokens in text.

use std::ops::Range;

use aho_corasick::{AhoCorasick, Input, MatchKind};

/// A token that is matched as a whole string instead of being merged from pieces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SpecialToken {
    pub(crate) id: u32,
    pub(crate) text: String,
    /// Swallows the white space on its left.
    pub(crate) strips_left: bool,
    /// Swallows the white space on its right.
    pub(crate) strips_right: bool,
    /// Matches only where no letter, digit or underscore touches it.
    pub(crate) single_word: bool,
}

/// Longest text of one. Building the search structure takes the square of it where it repeats.
const MAX_TOKEN_BYTES: usize = 1 << 10;

/// A set of such tokens, searched together: the leftmost match wins, then the longest.
pub(crate) struct SpecialSet {
    tokens: Vec<SpecialToken>,
    /// `None` when there is no token.
    finder: Option<AhoCorasick>,
}

/// A part of a text: a matched token or what lies between two.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part<'t> {
    Text(&'t str),
    Token(u32),
}

impl SpecialSet {
    /// `None` if the set is too large for the search structure.
    pub(crate) fn new(mut tokens: Vec<SpecialToken>) -> Option<SpecialSet> {
        tokens.retain(|token| !token.text.is_empty());
        if tokens.iter().any(|token| token.text.len() > MAX_TOKEN_BYTES) {
            return None;
        }
        let finder = match tokens.is_empty() {
            true => None,
            false => Some(
                AhoCorasick::builder()
                    .match_kind(MatchKind::LeftmostLongest)
                    .build(tokens.iter().map(|token| &token.text))
                    .ok()?,
            ),
        };
        Some(SpecialSet { tokens, finder })
    }

    pub(crate) fn texts(&self) -> impl Iterator<Item = &str> {
        self.tokens.iter().map(|token| token.text.as_str())
    }

    /// Whether one of them swallows white space beside it.
    pub(crate) fn strips(&self) -> bool {
        self.tokens.iter().any(|token| token.strips_left || token.strips_right)
    }

    /// Cuts `text` at the tokens of the set.
    pub(crate) fn split_all<'t>(&self, text: &'t str) -> Vec<Part<'t>> {
        self.split(text, std::slice::from_ref(&(0..text.len())))
    }

    /// Cuts `text` at the tokens of the set that lie wholly within one of the ranges, which are in
    /// order: all else is text.
    pub(crate) fn split<'t>(&self, text: &'t str, within: &[Range<usize>]) -> Vec<Part<'t>> {
        let mut parts = Vec::new();
        let mut done = 0;
        let Some(finder) = &self.finder else { return whole(text) };
        for range in within {
            let mut from = done.max(range.start);
            while from < range.end {
                let input = Input::new(text).range(from..range.end);
                let Some(found) = finder.find(input) else { break };
                from = found.end();
                let token = self.tokens.get(found.pattern().as_usize());
                let sides = text.get(done..found.start()).zip(text.get(found.end()..));
                let (Some(token), Some((before, after))) = (token, sides) else { continue };
                if token.single_word && touches_word(text, found.start(), found.end()) {
                    continue;
                }
                let before = if token.strips_left { before.trim_end() } else { before };
                if !before.is_empty() {
                    parts.push(Part::Text(before));
                }
                parts.push(Part::Token(token.id));
                done = found.end();
                if token.strips_right {
                    done += after.len() - after.trim_start().len();
                }
                from = done;
            }
        }
        parts.extend(text.get(done..).into_iter().flat_map(whole));
        parts
    }
}

/// One part, unless it is empty.
fn whole(text: &str) -> Vec<Part<'_>> {
    if text.is_empty() { Vec::new() } else { vec![Part::Text(text)] }
}

/// Whether a letter, digit or underscore stands right before or behind.
fn touches_word(text: &str, start: usize, end: usize) -> bool {
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    let before = text.get(..start).and_then(|before| before.chars().next_back());
    let after = text.get(end..).and_then(|after| after.chars().next());
    before.is_some_and(in_word) || after.is_some_and(in_word)
}

#[cfg(test)]
mod tests {
    use super::Part::{Text, Token};
    use super::*;

    fn token(id: u32, text: &str) -> SpecialToken {
        SpecialToken { id, text: text.to_owned(), ..SpecialToken::default() }
    }

    #[test]
    fn splits() {
        let right = SpecialToken { strips_right: true, ..token(3, "<r>") };
        let left = SpecialToken { strips_left: true, ..token(4, "<l>") };
        let word = SpecialToken { single_word: true, ..token(5, "end") };
        let tokens = vec![token(0, "<a>"), token(1, "<a><a>"), token(2, "§"), right, left, word];
        let set = SpecialSet::new(tokens).expect("small set");
        let cases: &[(&str, &[Part])] = &[
            ("", &[]),
            ("x<a>y", &[Text("x"), Token(0), Text("y")]),
            ("<a><a><a>", &[Token(1), Token(0)]),
            ("x <r> \n y <l>z", &[Text("x "), Token(3), Text("y"), Token(4), Text("z")]),
            ("bend end", &[Text("bend "), Token(5)]),
        ];
        for (text, expect) in cases {
            assert_eq!(set.split_all(text), *expect, "{text:?}");
        }
    }

    #[test]
    fn only_what_lies_within_a_range_is_a_token() {
        let right = SpecialToken { strips_right: true, ..token(1, "<r>") };
        let set = SpecialSet::new(vec![token(0, "<a>"), right]).expect("small set");
        let check = |text: &str, within: &[(usize, usize)], expect: &[Part]| {
            let ranges: Vec<Range<usize>> = within.iter().map(|(a, b)| *a..*b).collect();
            assert_eq!(set.split(text, &ranges), expect, "{text:?} {within:?}");
        };
        check("<a><a>", &[(3, 6)], &[Text("<a>"), Token(0)]);
        check("<a><a>", &[(0, 2), (3, 6)], &[Text("<a>"), Token(0)]);
        check("<a>", &[(0, 1), (1, 3)], &[Text("<a>")]);
        check("<<a>", &[(1, 4)], &[Text("<"), Token(0)]);
        check("<r>  <a>", &[(0, 4), (5, 8)], &[Token(1), Token(0)]);
        check("<a>", &[], &[Text("<a>")]);
    }
}
