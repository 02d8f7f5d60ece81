//! Which characters begin, follow and extend the parts of a grammar.

use std::collections::BTreeMap;

use super::{Part, Rules, Set};

/// What is known of each rule.
pub(super) struct Facts<'a> {
    rules: BTreeMap<&'a str, Fact>,
}

#[derive(Default, Clone, PartialEq)]
struct Fact {
    is_empty: bool,
    ends: bool,
    first: Set,
    follow: Set,
}

/// Adds ranges, ordered and joined.
pub(super) fn add(to: &mut Set, more: &[(u32, u32)]) {
    to.extend(more);
    to.sort_unstable();
    let mut joined = Set::new();
    for &(from, last) in to.iter() {
        match joined.last_mut() {
            Some(before) if from <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => joined.push((from, last)),
        }
    }
    *to = joined;
}

pub(super) fn meet(a: &[(u32, u32)], b: &[(u32, u32)]) -> bool {
    a.iter().any(|x| b.iter().any(|y| x.0 <= y.1 && y.0 <= x.1))
}

impl<'a> Facts<'a> {
    pub fn new(rules: &'a Rules) -> Self {
        let rules_of = rules.keys().map(|name| (name.as_str(), Fact::default())).collect();
        let mut facts = Facts { rules: rules_of };
        let mut is_changed = true;
        while is_changed {
            is_changed = false;
            for (name, alternatives) in rules {
                let mut fact = facts.rules.get(name.as_str()).cloned().unwrap_or_default();
                let before = fact.clone();
                fact.is_empty = alternatives.iter().any(|s| s.iter().all(|p| facts.is_empty(p)));
                fact.ends = alternatives.iter().any(|s| s.iter().all(|p| facts.part_ends(p)));
                fact.first = facts.first_of(alternatives);
                is_changed |= fact != before;
                facts.rules.insert(name, fact);
            }
        }
        is_changed = true;
        while is_changed {
            is_changed = false;
            for (name, alternatives) in rules {
                let follow = facts.follow(name);
                alternatives.iter().for_each(|s| is_changed |= facts.spread(s, &follow));
            }
        }
        facts
    }

    /// Whether some text of a rule is finite.
    pub fn ends(&self, rule: &str) -> bool {
        self.rules.get(rule).is_some_and(|fact| fact.ends)
    }

    /// What may come after a rule.
    pub fn follow(&self, rule: &str) -> Set {
        self.rules.get(rule).map(|fact| fact.follow.clone()).unwrap_or_default()
    }

    fn part_ends(&self, part: &Part) -> bool {
        match part {
            Part::Rule(name) => self.ends(name),
            Part::Group(inner) => inner.iter().any(|s| s.iter().all(|p| self.part_ends(p))),
            Part::Repeat(inner, least, _) => *least == 0 || self.part_ends(inner),
            Part::Text(_) | Part::Class(..) => true,
        }
    }

    /// Whether a part may be nothing.
    pub fn is_empty(&self, part: &Part) -> bool {
        match part {
            Part::Text(text) => text.is_empty(),
            Part::Class(..) => false,
            Part::Rule(name) => self.rules.get(name.as_str()).is_some_and(|fact| fact.is_empty),
            Part::Group(inner) => inner.iter().any(|s| s.iter().all(|p| self.is_empty(p))),
            Part::Repeat(inner, least, most) => {
                *least == 0 || *most == Some(0) || self.is_empty(inner)
            }
        }
    }

    fn first(&self, part: &Part) -> Set {
        match part {
            Part::Text(text) => {
                text.chars().next().map(|c| (c as u32, c as u32)).into_iter().collect()
            }
            Part::Class(_, set) => set.clone(),
            Part::Rule(name) => {
                self.rules.get(name.as_str()).map(|fact| fact.first.clone()).unwrap_or_default()
            }
            Part::Group(inner) => self.first_of(inner),
            Part::Repeat(inner, ..) => self.first(inner),
        }
    }

    fn first_of(&self, alternatives: &[Vec<Part>]) -> Set {
        let mut set = Set::new();
        alternatives.iter().for_each(|sequence| add(&mut set, &self.after(sequence, &[])));
        set
    }

    /// What begins a sequence, or `follow` where it may be nothing.
    pub fn after(&self, sequence: &[Part], follow: &[(u32, u32)]) -> Set {
        let mut set = Set::new();
        for part in sequence {
            add(&mut set, &self.first(part));
            if !self.is_empty(part) {
                return set;
            }
        }
        add(&mut set, follow);
        set
    }

    /// What may go on with a text that is already whole. All characters, where it is not plain.
    pub fn extends(&self, part: &Part) -> Set {
        let anything = || vec![(0, char::MAX as u32)];
        match part {
            Part::Text(_) | Part::Class(..) => Set::new(),
            Part::Rule(_) => anything(),
            Part::Group(inner) => {
                let mut set = Set::new();
                for (i, sequence) in inner.iter().enumerate() {
                    let own = self.after(sequence, &[]);
                    let before = inner.get(..i).unwrap_or_default();
                    if before.iter().any(|s| meet(&own, &self.after(s, &[]))) {
                        return anything();
                    }
                    for part in sequence.iter().rev() {
                        add(&mut set, &self.extends(part));
                        if !self.is_empty(part) {
                            break;
                        }
                        add(&mut set, &self.first(part));
                    }
                }
                set
            }
            Part::Repeat(inner, ..) => {
                let mut set = self.extends(inner);
                add(&mut set, &self.first(inner));
                set
            }
        }
    }

    /// Tells the rules in a sequence what follows them; whether that was news.
    fn spread(&mut self, sequence: &[Part], follow: &[(u32, u32)]) -> bool {
        let mut is_news = false;
        for (i, part) in sequence.iter().enumerate() {
            let rest = sequence.get(i + 1..).unwrap_or_default();
            let next = self.after(rest, follow);
            is_news |= self.spread_part(part, &next);
        }
        is_news
    }

    fn spread_part(&mut self, part: &Part, next: &[(u32, u32)]) -> bool {
        match part {
            Part::Rule(name) => {
                let Some(fact) = self.rules.get_mut(name.as_str()) else { return false };
                let before = fact.follow.clone();
                add(&mut fact.follow, next);
                fact.follow != before
            }
            Part::Group(inner) => {
                let news: Vec<bool> = inner.iter().map(|s| self.spread(s, next)).collect();
                news.contains(&true)
            }
            Part::Repeat(inner, ..) => {
                let mut next = next.to_vec();
                add(&mut next, &self.first(inner));
                self.spread_part(inner, &next)
            }
            Part::Text(_) | Part::Class(..) => false,
        }
    }
}
