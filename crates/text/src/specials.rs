//! Finding control and user-defined tokens in text.

use aho_corasick::{AhoCorasick, MatchKind};

/// A token that is matched as a whole string instead of being merged from pieces.
#[derive(Debug, Clone, Default)]
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

    /// Cuts `text` at the tokens of the set. A token of one character that `guard` follows is
    /// text (longer ones carry the guard inside and do not match at all).
    pub(crate) fn split<'t>(&self, text: &'t str, guard: Option<char>) -> Vec<Part<'t>> {
        let mut parts = Vec::new();
        let mut done = 0;
        for found in self.finder.iter().flat_map(|finder| finder.find_iter(text)) {
            let Some(token) = self.tokens.get(found.pattern().as_usize()) else { continue };
            let (Some(before), Some(after)) =
                (text.get(done..found.start()), text.get(found.end()..))
            else {
                continue;
            };
            if !allowed(token, before, after, guard) {
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
        }
        match text.get(done..) {
            Some(rest) if !rest.is_empty() => parts.push(Part::Text(rest)),
            _ => {}
        }
        parts
    }
}

fn allowed(token: &SpecialToken, before: &str, after: &str, guard: Option<char>) -> bool {
    let next = after.chars().next();
    if guard.is_some() && next == guard && token.text.chars().nth(1).is_none() {
        return false;
    }
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    !(token.single_word
        && (next.is_some_and(in_word) || before.chars().next_back().is_some_and(in_word)))
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
            ("<\u{FDD0}a>§\u{FDD0}§", &[Text("<\u{FDD0}a>§\u{FDD0}"), Token(2)]),
        ];
        for (text, expect) in cases {
            assert_eq!(set.split(text, Some('\u{FDD0}')), *expect, "{text:?}");
        }
    }
}
