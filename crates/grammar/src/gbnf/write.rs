//! Writes the rules as Lark.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::sets::{Facts, add, meet};
use super::{Part, Rules};
use crate::lark::quoted;

/// The grammar. `flat`: rules that do not contain themselves.
pub(super) fn lark(rules: &Rules, flat: &BTreeSet<&str>, facts: &Facts<'_>) -> String {
    let numbers = rules.keys().enumerate().map(|(i, name)| (name.as_str(), i)).collect();
    let mut writer = Writer { numbers, flat, facts, terminals: Vec::new() };
    let mut out = String::from("%llguidance {}\n");
    let root = writer.numbers.get("root").copied().unwrap_or(0);
    if flat.contains("root") {
        let _ = writeln!(out, "start: {}", terminal(root));
    } else {
        let _ = writeln!(out, "start: r{root}");
        for (name, alternatives) in rules {
            let number = writer.numbers.get(name.as_str()).copied().unwrap_or(0);
            let body = writer.rule(alternatives, &facts.follow(name));
            let _ = writeln!(out, "r{number}: {body}");
        }
    }
    for (name, alternatives) in rules.iter().filter(|(name, _)| flat.contains(name.as_str())) {
        let number = writer.numbers.get(name.as_str()).copied().unwrap_or(0);
        let _ = writeln!(out, "{}: {}", terminal(number), writer.regular(alternatives));
    }
    writer.terminals.iter().for_each(|line| out.push_str(line));
    out
}

/// The name of a rule as a terminal: capital letters only.
fn terminal(number: usize) -> String {
    let letters = number.to_string().bytes().map(|b| (b - b'0' + b'A') as char).collect::<String>();
    format!("T{letters}")
}

struct Writer<'a> {
    numbers: BTreeMap<&'a str, usize>,
    flat: &'a BTreeSet<&'a str>,
    facts: &'a Facts<'a>,
    /// Definitions of repetitions that are one terminal.
    terminals: Vec<String>,
}

const NOTHING: &str = "\"\"";

fn joined(alternatives: &[Vec<Part>], mut one: impl FnMut(&[Part]) -> Vec<String>) -> String {
    let list = alternatives.iter().map(|sequence| {
        let parts = one(sequence);
        if parts.is_empty() { NOTHING.to_owned() } else { parts.join(" ") }
    });
    list.collect::<Vec<_>>().join(" | ")
}

fn repeated(inner: &str, least: usize, most: Option<usize>) -> String {
    match (least, most) {
        (_, Some(0)) => NOTHING.to_owned(),
        (0, None) => format!("({inner})*"),
        (1, None) => format!("({inner})+"),
        (0, Some(1)) => format!("({inner})?"),
        (least, None) => format!("({inner}){{{least},}}"),
        (least, Some(most)) => format!("({inner}){{{least},{most}}}"),
    }
}

impl Writer<'_> {
    /// As a regular expression: the rules in it are flat.
    fn regular(&self, alternatives: &[Vec<Part>]) -> String {
        joined(alternatives, |sequence| sequence.iter().map(|p| self.regular_part(p)).collect())
    }

    fn regular_part(&self, part: &Part) -> String {
        match part {
            Part::Text(text) => quoted(text),
            Part::Class(class, _) => format!("/{class}/"),
            Part::Rule(name) => terminal(self.numbers.get(name.as_str()).copied().unwrap_or(0)),
            Part::Group(inner) => format!("({})", self.regular(inner)),
            Part::Repeat(inner, least, most) => repeated(&self.regular_part(inner), *least, *most),
        }
    }

    /// As a rule, before what follows it.
    fn rule(&mut self, alternatives: &[Vec<Part>], follow: &[(u32, u32)]) -> String {
        joined(alternatives, |sequence| {
            let each = sequence.iter().enumerate().map(|(i, part)| {
                let rest = sequence.get(i + 1..).unwrap_or_default();
                let next = self.facts.after(rest, follow);
                self.part(part, &next)
            });
            each.collect()
        })
    }

    fn part(&mut self, part: &Part, next: &[(u32, u32)]) -> String {
        match part {
            Part::Text(text) if text.is_empty() => NOTHING.to_owned(),
            Part::Text(text) => {
                text.chars().map(|c| quoted(&c.to_string())).collect::<Vec<_>>().join(" ")
            }
            Part::Class(class, _) => format!("/{class}/"),
            Part::Rule(name) => {
                format!("r{}", self.numbers.get(name.as_str()).copied().unwrap_or(0))
            }
            Part::Group(inner) => format!("({})", self.rule(inner, next)),
            Part::Repeat(inner, least, most) => {
                let is_one = self.is_flat(inner)
                    && !self.facts.is_empty(inner)
                    && *most != Some(0)
                    && !meet(&self.facts.extends(part), next);
                if is_one {
                    let name = format!("X{}", terminal(self.terminals.len()));
                    let body = repeated(&self.regular_part(inner), (*least).max(1), *most);
                    self.terminals.push(format!("{name}: {body}\n"));
                    return if *least == 0 { format!("({name})?") } else { name };
                }
                let mut again = next.to_vec();
                add(&mut again, &self.facts.extends(part));
                let inner = self.part(inner, &again);
                repeated(&inner, *least, *most)
            }
        }
    }

    fn is_flat(&self, part: &Part) -> bool {
        match part {
            Part::Rule(name) => self.flat.contains(name.as_str()),
            Part::Group(inner) => inner.iter().flatten().all(|p| self.is_flat(p)),
            Part::Repeat(inner, ..) => self.is_flat(inner),
            Part::Text(_) | Part::Class(..) => true,
        }
    }
}
