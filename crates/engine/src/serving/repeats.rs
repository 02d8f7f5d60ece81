//! Answers that repeat themselves for ever: how long a tail of one period counts as that.

use tokenmill_ir::TokenId;

/// When an answer is taken to repeat itself for ever: its last tokens are one text again and again.
/// What comes out of habit (rulers, tables, lists of zeros, rows of one record) is shorter, or says
/// little in each copy and may be longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RepeatRule {
    /// Tokens of the text that is repeated, from and to.
    pub periods: (u32, u32),
    /// Copies of it, at least.
    pub copies: u32,
    /// Tokens of all copies together, at least.
    pub tokens: u32,
    /// The same where a copy has few different tokens.
    pub plain_tokens: u32,
    /// Fewer different tokens than that are few.
    pub few: u32,
}

impl RepeatRule {
    /// Longest text whose copies are looked for, tokens.
    pub const LONGEST: u32 = 1024;

    /// By which answers are ended where nobody says more.
    pub const USUAL: Self =
        Self { periods: (1, Self::LONGEST), copies: 4, tokens: 768, plain_tokens: 2048, few: 16 };

    /// Any so many copies of a text whose tokens are so many.
    pub fn copies(periods: (u32, u32), copies: u32) -> Self {
        Self { periods, copies, tokens: 0, plain_tokens: 0, few: 0 }
    }
}

/// An answer that was ended because it repeats itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repeated {
    /// Tokens of the text that is repeated.
    pub period: u32,
    /// Tokens of all its copies.
    pub tokens: u32,
    /// What holds the answer does not let it end there: it was cut.
    pub cut: bool,
}

/// Looks for repeats in one answer. Each token takes a step for each period; memory is bounded.
#[derive(Debug, Clone)]
pub(crate) struct Repeats {
    rule: RepeatRule,
    /// The last tokens, at most twice as many as the longest period.
    recent: Vec<TokenId>,
    /// For each period from 1: how many of the last tokens are those of a period before.
    runs: Vec<u32>,
}

impl Repeats {
    /// An answer that begins; it takes memory from its first token on.
    pub fn new(rule: RepeatRule) -> Self {
        let longest = rule.periods.1.clamp(1, RepeatRule::LONGEST);
        let rule = RepeatRule { periods: (rule.periods.0.max(1), longest), ..rule };
        Self { rule, recent: Vec::new(), runs: Vec::new() }
    }

    /// Takes the next token: the period and the tokens of what repeats itself, where that is enough.
    pub fn push(&mut self, token: TokenId) -> Option<(u32, u32)> {
        let longest = self.rule.periods.1 as usize;
        if self.recent.capacity() == 0 {
            self.recent.reserve_exact(2 * longest);
            self.runs = vec![0; longest];
        }
        if self.recent.len() == 2 * longest {
            self.recent.drain(..longest);
        }
        for (run, before) in self.runs.iter_mut().zip(self.recent.iter().rev()) {
            *run = if *before == token { *run + 1 } else { 0 };
        }
        self.recent.push(token);
        let (first, least) = (self.rule.periods.0, self.rule.tokens.max(2));
        let periods = (1u32..).zip(&self.runs).skip(first as usize - 1);
        let long = |&(period, run): &(u32, &u32)| {
            run + period >= least.max(self.rule.copies.saturating_mul(period)) && *run > 0
        };
        // (Of a period its multiples are some too; the shortest says what is repeated.)
        let (period, run) = { periods }.find(long)?;
        let tokens = run + period;
        (!self.is_plain(period) || tokens >= self.rule.plain_tokens).then_some((period, tokens))
    }

    /// Whether the last tokens are of few kinds.
    fn is_plain(&self, period: u32) -> bool {
        let from = self.recent.len().saturating_sub(period as usize);
        let mut kinds = self.recent.get(from..).unwrap_or_default().to_vec();
        kinds.sort_unstable();
        kinds.dedup();
        kinds.len() < self.rule.few as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how many tokens it is found, and what.
    fn found(rule: RepeatRule, tokens: &[TokenId]) -> Option<(usize, (u32, u32))> {
        let mut repeats = Repeats::new(rule);
        let found = tokens.iter().enumerate().find_map(|(i, t)| Some((i + 1, repeats.push(*t)?)));
        assert!(repeats.recent.capacity() <= 2 * RepeatRule::LONGEST as usize);
        found
    }

    /// `begin`, then `copies` of a text of `period` tokens of `kinds` kinds.
    fn text(begin: u32, period: u32, kinds: u32, copies: u32) -> Vec<TokenId> {
        let copy = (0..period).map(|i| 10_000 + i.min(kinds - 1));
        let copies = (0..copies).flat_map(|_| copy.clone());
        (0..begin).chain(copies).collect()
    }

    #[test]
    fn a_text_again_and_again_is_found_at_the_rule_and_not_before() {
        let rule = RepeatRule::USUAL;
        for (begin, period, kinds, least) in [
            (0, 20, 20, 768),
            (300, 20, 20, 768),
            (3000, 100, 50, 768),
            (77, 400, 400, 1600),
            (5, 1024, 500, 4096),
            // Little is said: only much of it is a loop.
            (0, 1, 1, 2048),
            (40, 3, 3, 2048),
            (9, 15, 15, 2048),
        ] {
            let tokens = text(begin, period, kinds, 4096 / period + 2);
            let (at, found) = found(rule, &tokens).expect("a loop");
            assert_eq!((at as u32, found), (begin + least, (period, least)), "{period} {kinds}");
        }
    }

    #[test]
    fn what_changes_is_no_loop() {
        let rule = RepeatRule::USUAL;
        // A number that counts up, a period over the longest, three copies of a long text.
        let counted: Vec<u32> = (0..400).flat_map(|n| [1, 2, 3, 100 + n, 5, 6, 7, 8]).collect();
        assert_eq!(found(rule, &counted), None);
        assert_eq!(found(rule, &text(0, 1025, 1025, 9)), None);
        assert_eq!(found(rule, &text(0, 900, 900, 3)), None);
        // One other token in the middle, and all begins again.
        let half = text(0, 30, 30, 24);
        assert_eq!(found(rule, &[&half[..], &[1], &half[..]].concat()), None);
    }

    #[test]
    fn a_rule_of_copies_counts_them_alone() {
        let rule = RepeatRule::copies((2, 5), 3);
        assert_eq!(found(rule, &[7, 8, 9, 7, 8, 9, 7, 8]), None);
        assert_eq!(found(rule, &[7, 8, 9, 7, 8, 9, 7, 8, 9]), Some((9, (3, 9))));
        // (One token is a text of two as well.)
        assert_eq!(found(rule, &[7, 7, 7, 7, 7, 7]), Some((6, (2, 6))));
        assert_eq!(found(rule, &text(0, 6, 6, 9)), None);
    }
}
