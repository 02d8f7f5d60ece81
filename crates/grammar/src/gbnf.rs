//! llama.cpp's GBNF, read and written anew as Lark.
//!
//! A grammar no rule of which contains itself is one regular expression, and is taken exactly.
//! In others each character is a terminal of its own, which is exact too but slow, so that a
//! repetition becomes one terminal where nothing that may follow could go on with it. The matcher
//! takes the longest terminal at each place: a text that is in the grammar only by another way is
//! then turned away. None is taken that the grammar does not have.

mod read;
mod sets;
mod write;

use std::collections::{BTreeMap, BTreeSet};

use crate::bounds::Bounds;
use crate::lark::chain;
use crate::refused::{Refused, cut, within};

/// What a rule is made of.
#[derive(Debug)]
enum Part {
    Text(String),
    /// A class, as the `regex` crate writes it, and its characters.
    Class(String, Set),
    Rule(String),
    /// Alternatives of sequences.
    Group(Vec<Vec<Part>>),
    /// At least and at most so many.
    Repeat(Box<Part>, usize, Option<usize>),
}

/// Ranges of characters, first and last.
type Set = Vec<(u32, u32)>;

type Rules = BTreeMap<String, Vec<Vec<Part>>>;

/// The grammar as Lark, from its rule `root`.
pub(crate) fn to_lark(text: &str, bounds: &Bounds) -> Result<String, Refused> {
    within("bytes of the grammar", text.len(), bounds.source_bytes)?;
    let rules = read::rules(text, bounds)?;
    within("rules of the grammar", rules.len(), bounds.properties)?;
    if !rules.contains_key("root") {
        return Err(bad(0, "no rule `root`"));
    }
    let mut uses: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, alternatives) in &rules {
        used(alternatives, uses.entry(name).or_default());
    }
    if let Some(name) = uses.values().flatten().find(|name| !rules.contains_key(**name)) {
        return Err(bad(0, format!("the rule `{}` is used and not defined", cut(name))));
    }
    chain(&uses, "root", bounds.chain)?;
    let facts = sets::Facts::new(&rules);
    if let Some(name) = reached(&uses).into_iter().find(|name| !facts.ends(name)) {
        return Err(bad(0, format!("no text of the rule `{}` ever ends", cut(name))));
    }
    Ok(write::lark(&rules, &flat(&uses), &facts))
}

fn bad(line: usize, why: impl AsRef<str>) -> Refused {
    let at = if line > 0 { format!("line {line}: ") } else { String::new() };
    Refused::syntax("grammar", format!("{at}{}", why.as_ref()))
}

fn used<'a>(alternatives: &'a [Vec<Part>], names: &mut BTreeSet<&'a str>) {
    for mut part in alternatives.iter().flatten() {
        while let Part::Repeat(inner, ..) = part {
            part = inner;
        }
        match part {
            Part::Rule(name) => drop(names.insert(name)),
            Part::Group(inner) => used(inner, names),
            _ => {}
        }
    }
}

/// The rules that do not, by any way, contain themselves or a rule that does.
fn flat<'a>(uses: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let mut flat: BTreeSet<&str> = BTreeSet::new();
    loop {
        let all_flat = |used: &BTreeSet<&str>| used.iter().all(|n| flat.contains(n));
        let more = uses.iter().filter(|(name, used)| !flat.contains(*name) && all_flat(used));
        let more: Vec<&str> = more.map(|(name, _)| *name).collect();
        if more.is_empty() {
            return flat;
        }
        flat.extend(more);
    }
}

fn reached<'a>(uses: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let (mut open, mut seen) = (vec!["root"], BTreeSet::from(["root"]));
    while let Some(name) = open.pop() {
        for used in uses.get(name).into_iter().flatten() {
            if seen.insert(used) {
                open.push(used);
            }
        }
    }
    seen
}
