//! What the next token's logit owes to the text before it, beside the penalties: repeated runs made
//! unlikely (DRY), words that may not come, an end that may not come yet.

use crate::TokenId;

/// Rules of one answer; the usual ones are empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rules {
    /// Repeated runs are made unlikely.
    pub dry: Option<Dry>,
    /// Runs of tokens that the answer may not hold. None is empty.
    pub bad_words: Vec<Vec<TokenId>>,
    /// Tokens before which the answer may not end.
    pub min_tokens: u32,
    /// What would end it.
    pub ends: Vec<TokenId>,
}

/// "Don't repeat yourself": a token that would go on with a run as it went on before loses
/// multiplier · base^(run − allowed). By its author's formula (text-generation-webui, pull request
/// 5677), but in time linear in the text.
#[derive(Debug, Clone, PartialEq)]
pub struct Dry {
    /// Of the penalty; over 0.
    pub multiplier: f32,
    /// Of the power; at least 1.
    pub base: f32,
    /// Longest run that may go on as it did for the multiplier alone.
    pub allowed_length: u32,
    /// How many of the last tokens are looked at; `u32::MAX`: all.
    pub last_n: u32,
    /// Tokens that end a run.
    pub breakers: Vec<TokenId>,
}

impl Rules {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.dry.is_none() && self.bad_words.is_empty() && self.min_tokens == 0
    }

    /// Appends what is added to logits of the token after `text`, of which all but the first
    /// `prompt` tokens are the answer's.
    pub fn add(&self, text: &[TokenId], prompt: usize, out: &mut Vec<(TokenId, f32)>) {
        let answer = text.get(prompt..).unwrap_or_default();
        if let Some(dry) = &self.dry {
            dry.add(text, out);
        }
        for word in &self.bad_words {
            let Some((&last, before)) = word.split_last() else { continue };
            if answer.ends_with(before) {
                out.push((last, f32::NEG_INFINITY));
            }
        }
        if (answer.len() as u64) < u64::from(self.min_tokens) {
            out.extend(self.ends.iter().map(|&end| (end, f32::NEG_INFINITY)));
        }
    }
}

impl Dry {
    fn add(&self, text: &[TokenId], out: &mut Vec<(TokenId, f32)>) {
        let text = &text[text.len().saturating_sub(self.last_n as usize)..];
        let is_breaker = |token: &TokenId| self.breakers.contains(token);
        // A run ends at the first breaker from behind.
        let longest = text.iter().rev().take_while(|t| !is_breaker(t)).count();
        if longest == 0 {
            return;
        }
        let mut found: Vec<(TokenId, u32)> = Vec::new();
        for (back, run) in (0..).zip(runs(text, longest)).skip(1) {
            // The run that ends `back` tokens before the last one went on with this:
            let next = text[text.len() - back];
            if run >= self.allowed_length.max(1) && !is_breaker(&next) {
                found.push((next, run));
            }
        }
        // The longest run of each.
        found.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        found.dedup_by_key(|f| f.0);
        let penalty = |run| {
            let power = power(f64::from(self.base), run - self.allowed_length);
            (f64::from(self.multiplier) * power).min(MOST) as f32
        };
        out.extend(found.iter().map(|&(token, run)| (token, -penalty(run))));
    }
}

/// Of a penalty: beyond that no token comes anyway, and sums stay finite.
const MOST: f64 = 1e30;

/// For each distance back from the end (0: none), how many tokens up to there are those up to the
/// end, at most `longest`: the Z-function of the text read backwards (Gusfield 1997).
fn runs(text: &[TokenId], longest: usize) -> Vec<u32> {
    let n = text.len();
    let at = |i: usize| text[n - 1 - i];
    let mut z = vec![0usize; n];
    let (mut left, mut right) = (0, 0);
    for i in 1..n {
        let mut run = if i < right { z[i - left].min(right - i) } else { 0 };
        while i + run < n && at(run) == at(i + run) {
            run += 1;
        }
        z[i] = run;
        if i + run > right {
            (left, right) = (i, i + run);
        }
    }
    z.into_iter().map(|run| run.min(longest) as u32).collect()
}

/// By squaring, so that every machine has the same bits; stops growing where it is no number more.
fn power(base: f64, mut exponent: u32) -> f64 {
    let (mut square, mut result) = (base, 1.0f64);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= square;
        }
        square *= square;
        exponent >>= 1;
    }
    if result.is_finite() { result } else { f64::MAX }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::splitmix;

    fn dry() -> Dry {
        Dry { multiplier: 0.8, base: 1.75, allowed_length: 2, last_n: u32::MAX, breakers: vec![9] }
    }

    fn added(rules: &Rules, text: &[TokenId], prompt: usize) -> Vec<(TokenId, f32)> {
        let mut out = Vec::new();
        rules.add(text, prompt, &mut out);
        out
    }

    /// The formula as its author wrote it down, run by run.
    fn by_hand(dry: &Dry, text: &[TokenId]) -> Vec<(TokenId, f32)> {
        let text = &text[text.len().saturating_sub(dry.last_n as usize)..];
        let mut runs = std::collections::BTreeMap::new();
        let n = text.len();
        for end in 0..n.saturating_sub(1) {
            let mut run = 0;
            while run <= end
                && text[end - run] == text[n - 1 - run]
                && !dry.breakers.contains(&text[end - run])
            {
                run += 1;
            }
            if run >= 1 && !dry.breakers.contains(&text[end + 1]) {
                let longest = runs.entry(text[end + 1]).or_insert(0);
                *longest = run.max(*longest);
            }
        }
        let penalty = |run: usize| {
            let power = f64::from(dry.base).powi(run as i32 - dry.allowed_length as i32);
            -(f64::from(dry.multiplier) * power) as f32
        };
        let long = runs.into_iter().filter(|(_, run)| *run >= dry.allowed_length as usize);
        long.map(|(token, run)| (token, penalty(run))).collect()
    }

    #[test]
    fn runs_that_repeat_are_made_unlikely() {
        let rules = Rules { dry: Some(dry()), ..Rules::default() };
        assert_eq!(added(&rules, &[1, 2, 3, 1, 2], 0), [(3, -0.8)]);
        assert_eq!(added(&rules, &[4, 1, 2, 3, 4, 1, 2], 0), [(3, -0.8 * 1.75)]);
        assert_eq!(
            added(&rules, &[4, 9, 1, 2, 3, 4, 9, 1, 2], 0),
            [(3, -0.8)],
            "a breaker ends it"
        );
        assert_eq!(added(&rules, &[1, 2, 9, 1, 2], 0), [], "what goes on with a breaker");
        assert_eq!(added(&rules, &[2, 3, 2], 0), [], "too short");
        assert_eq!(added(&rules, &[], 0), []);
        let mut state = 1;
        for len in 1..400 {
            state = splitmix(state);
            let letters = 2 + state % 4;
            let text: Vec<TokenId> =
                (0..len % 60 + 1).map(|i| (splitmix(state ^ i) % letters) as TokenId + 7).collect();
            for last_n in [u32::MAX, 20] {
                let dry = Dry { last_n, ..dry() };
                let rules = Rules { dry: Some(dry.clone()), ..Rules::default() };
                assert_eq!(added(&rules, &text, 3), by_hand(&dry, &text), "{text:?}");
            }
        }
    }

    #[test]
    fn long_runs_take_no_longer_and_stay_finite() {
        let rules = Rules { dry: Some(Dry { last_n: u32::MAX, ..dry() }), ..Rules::default() };
        let found = added(&rules, &vec![5; 200_000], 0);
        assert_eq!(found, [(5, -1e30)]);
    }

    #[test]
    fn words_and_ends_are_held_back() {
        let rules = Rules {
            bad_words: vec![vec![4], vec![1, 2], vec![1, 1, 3]],
            min_tokens: 2,
            ends: vec![0, 8],
            ..Rules::default()
        };
        let never =
            |tokens: &[TokenId]| tokens.iter().map(|&t| (t, f32::NEG_INFINITY)).collect::<Vec<_>>();
        assert_eq!(added(&rules, &[1, 1], 2), never(&[4, 0, 8]), "the prompt is no answer");
        assert_eq!(added(&rules, &[7, 1], 1), never(&[4, 2, 0, 8]));
        assert_eq!(added(&rules, &[7, 1, 1], 1), never(&[4, 2, 3]));
        assert!(!rules.is_empty() && Rules::default().is_empty());
    }
}
