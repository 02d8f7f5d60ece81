//! A client's grammar as part of another, for a text that stands there as it is or as the content
//! of a JSON string.
//!
//! Where the rules of it use no rule in a circle they become one terminal. So no lexeme ends inside
//! its text: in JSON a lexeme that may go on with `\n` would take the backslash of `\t`, and the
//! lexer, which looks ahead one byte, would be lost. Rules in a circle are taken where that cannot
//! happen.

mod lark;
mod spell;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::bounds::Bounds;
use crate::constraint::Constraint;
use crate::refused::{Refused, within};
use crate::{lark as outer, pattern};
use lark::{Item, Kind, Read};

/// How the text is written that a grammar inside another holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Spelling<'a> {
    /// As the content of a JSON string, which has no `\uXXXX`.
    Json,
    /// As it is, without any of these texts.
    Plain(&'a [&'a str]),
}

/// A grammar inside another.
#[derive(Debug, Clone, PartialEq)]
pub struct Inner {
    /// Its rules in Lark, a line each.
    pub rules: String,
    /// The one that is all of the text: a terminal, but where JSON has rules in a circle.
    pub start: String,
}

/// The rules of a Lark grammar or a regular expression, by names that begin with `prefix` (small
/// letters and digits). Nothing of the client's stands in them as it was sent but names, numbers
/// and signs that Lark knows.
///
/// # Errors
/// What of it cannot stand inside another grammar.
pub fn inner(what: &Constraint, prefix: &str, spelling: Spelling<'_>) -> Result<Inner, Refused> {
    let bounds = Bounds::default();
    let mut read = match what {
        Constraint::Lark(text) => {
            within("bytes of the grammar", text.len(), bounds.source_bytes)?;
            lark::read(text)?
        }
        Constraint::Regex(text) => {
            within("bytes of the regex", text.len(), bounds.pattern_bytes)?;
            let anew = pattern::translate(text, bounds.repeat, false);
            let anew = anew.map_err(|why| Refused::syntax("regex", why))?;
            lark::of_regex(&anew)?
        }
        _ => return Err(Refused::syntax("grammar", "only Lark and expressions stand in another")),
    };
    let depth = read.depth("start")?;
    if let Some(depth) = depth {
        within("rules within rules of the grammar", depth, bounds.chain)?;
    }
    let names = Names { prefix, spelling, is_regular: depth.is_some() };
    if !names.is_regular {
        names.check(&read)?;
    }
    // What may stand before every lexeme, and at the end.
    if let Some(ignored) = read.ignored.take() {
        read.skip(ignored);
    }
    names.written(&read)
}

struct Names<'a> {
    prefix: &'a str,
    spelling: Spelling<'a>,
    /// All of it is one terminal.
    is_regular: bool,
}

impl Names<'_> {
    /// What a rule or a terminal is called outside.
    fn outside(&self, name: &str) -> String {
        let (prefix, bare) = (self.prefix, name.trim_start_matches('_'));
        let kept = name.len() - bare.len();
        let (kind, tail) = match lark::is_terminal(name) {
            true => ("t", "_".repeat(kept)),
            false => ("r", "_".repeat(kept)),
        };
        let whole = format!("{prefix}_{kind}{tail}_{bare}");
        match self.is_regular || lark::is_terminal(name) {
            true => whole.to_ascii_uppercase(),
            false => whole,
        }
    }

    /// Whether rules in a circle can stand inside: see above.
    fn check(&self, read: &Read) -> Result<(), Refused> {
        if let Spelling::Plain(_) = self.spelling {
            let why = "rules use each other in a circle, which no text before a mark can hold";
            return Err(Refused::syntax("lark", why));
        }
        let lexemes = read.lexemes();
        let going = lexemes.iter().filter(|(_, lexeme)| lexeme.goes_on);
        for (name, _) in going {
            let after = lexemes.iter().find(|(other, lexeme)| *other != name && lexeme.begins);
            if let Some((other, _)) = after {
                let why = format!(
                    "rules use each other in a circle, {name} goes on with characters that JSON \
                     escapes, and {other} begins with one"
                );
                return Err(Refused::syntax("lark", why));
            }
        }
        Ok(())
    }

    fn written(&self, read: &Read) -> Result<Inner, Refused> {
        let mut rules = String::new();
        for (name, body) in &read.rules {
            let _ = write!(rules, "{}:", self.outside(name));
            for item in body {
                rules.push(' ');
                match item {
                    Item::Name(name, _) => rules.push_str(&self.outside(name)),
                    Item::Sign(sign) => rules.push_str(sign),
                    Item::Text(text) => rules.push_str(&self.text(text)?),
                    Item::Regex(hir) => {
                        let _ = write!(rules, "/{}/", self.regex(hir)?);
                    }
                }
            }
            rules.push('\n');
        }
        let mut start = self.outside("start");
        if let Spelling::Plain(stops) = self.spelling
            && !stops.is_empty()
        {
            let texts: Vec<String> = stops.iter().map(|text| outer::quoted(text)).collect();
            let (free, all) = (self.outside("0FREE"), self.outside("0ALL"));
            let any = "/(?s:.*)/";
            let _ = writeln!(rules, "{free}: ~({any} ({}) {any})", texts.join(" | "));
            let _ = writeln!(rules, "{all}: {start} & {free}");
            start = all;
        }
        Ok(Inner { rules, start })
    }

    fn text(&self, text: &str) -> Result<String, Refused> {
        match self.spelling {
            Spelling::Json => Ok(outer::quoted(&spell::text(text)?)),
            Spelling::Plain(_) => Ok(outer::quoted(text)),
        }
    }

    fn regex(&self, hir: &regex_syntax::hir::Hir) -> Result<String, Refused> {
        spell::regex(hir, self.spelling == Spelling::Json)
    }
}

/// What of a lexeme matters where a lexer looks one byte ahead.
#[derive(Debug, Clone, Copy)]
struct Lexeme {
    /// It may go on, where it could end, with a character that is escaped.
    goes_on: bool,
    /// It may begin with one.
    begins: bool,
}

impl Read {
    /// How deep rules use rules below this one; `None`: in a circle.
    ///
    /// # Errors
    /// A name that nothing has.
    fn depth(&self, root: &str) -> Result<Option<usize>, Refused> {
        let bodies: BTreeMap<&str, &[Item]> =
            self.rules.iter().map(|(name, body)| (name.as_str(), body.as_slice())).collect();
        let mut depths: BTreeMap<&str, Option<usize>> = BTreeMap::new();
        // Rules that are open: their names, how far they are read, and how deep they are so far.
        let mut open: Vec<(&str, usize, usize)> = vec![(root, 0, 1)];
        depths.insert(root, None);
        while let Some((name, at, deepest)) = open.pop() {
            let body = bodies.get(name).ok_or_else(|| lark::bad(&format!("no rule is {name}")))?;
            let next = body.iter().enumerate().skip(at).find_map(|(at, item)| match item {
                Item::Name(name, _) => Some((at, name.as_str())),
                _ => None,
            });
            let Some((at, used)) = next else {
                depths.insert(name, Some(deepest));
                if let Some((_, _, above)) = open.last_mut() {
                    *above = (*above).max(deepest + 1);
                }
                continue;
            };
            match depths.get(used) {
                // It is open itself.
                Some(None) => return self.complete().map(|()| None),
                Some(Some(depth)) => open.push((name, at + 1, deepest.max(depth + 1))),
                None => {
                    open.push((name, at + 1, deepest));
                    depths.insert(used, None);
                    open.push((used, 0, 1));
                }
            }
        }
        Ok(depths.get(root).copied().flatten())
    }

    /// Every name is that of a rule.
    fn complete(&self) -> Result<(), Refused> {
        for (_, body) in &self.rules {
            for item in body {
                if let Item::Name(name, _) = item
                    && !self.rules.iter().any(|(other, _)| other == name)
                {
                    return Err(lark::bad(&format!("no rule is {name}")));
                }
            }
        }
        Ok(())
    }

    /// The lexemes of rules in a circle, as they are told to people.
    fn lexemes(&self) -> BTreeMap<String, Lexeme> {
        let mut all = BTreeMap::new();
        let of_rules = self.rules.iter().filter(|(name, _)| !lark::is_terminal(name));
        for item in of_rules.flat_map(|(_, body)| body) {
            match item {
                Item::Text(text) => {
                    let begins = text.starts_with(spell::is_escaped);
                    all.insert(format!("{text:?}"), Lexeme { goes_on: false, begins });
                }
                Item::Regex(hir) => {
                    let (goes_on, begins) = (spell::goes_on(hir), spell::begins(hir));
                    all.insert(format!("/{hir}/"), Lexeme { goes_on, begins });
                }
                Item::Name(name, Kind::Terminal) => {
                    all.entry(name.clone()).or_insert_with(|| self.lexeme(name));
                }
                Item::Name(..) | Item::Sign(_) => {}
            }
        }
        if let Some(ignored) = &self.ignored {
            let lexeme = self.of_body(ignored, &mut Vec::new());
            all.insert("what is ignored".to_owned(), Lexeme { goes_on: lexeme.begins, ..lexeme });
        }
        all
    }

    /// A terminal: ended by its own last character, of one part, or of several.
    fn lexeme(&self, name: &str) -> Lexeme {
        if self.is_quoted(name) {
            return Lexeme { goes_on: false, begins: true };
        }
        let body = self.rules.iter().find(|(other, _)| other == name).map(|(_, body)| body);
        match body.map(Vec::as_slice).unwrap_or_default() {
            [Item::Text(text)] => {
                Lexeme { goes_on: false, begins: text.starts_with(spell::is_escaped) }
            }
            [Item::Regex(hir)] => {
                Lexeme { goes_on: spell::goes_on(hir), begins: spell::begins(hir) }
            }
            body => self.of_body(body, &mut vec![name.to_owned()]),
        }
    }

    /// Of several parts: each of them may begin it, or go on with it.
    fn of_body(&self, body: &[Item], seen: &mut Vec<String>) -> Lexeme {
        let mut has = false;
        for item in body {
            has |= match item {
                Item::Text(text) => text.contains(spell::is_escaped),
                Item::Regex(hir) => spell::has_escaped(hir),
                Item::Name(name, _) if !seen.contains(name) => {
                    seen.push(name.clone());
                    let body = self.rules.iter().find(|(other, _)| other == name);
                    body.is_some_and(|(_, body)| self.of_body(body, seen).begins)
                }
                Item::Name(..) | Item::Sign(_) => false,
            };
        }
        Lexeme { goes_on: has, begins: has }
    }

    /// Texts that may stand before each lexeme of the rules, and at the end.
    fn skip(&mut self, ignored: Vec<Item>) {
        // (A name that no client can have.)
        const SKIP: &str = "0SKIP";
        let sign = |sign: &str| Item::Sign(sign.to_owned());
        let skip = || [Item::Name(SKIP.to_owned(), Kind::Terminal), sign("?")];
        for (name, body) in &mut self.rules {
            if lark::is_terminal(name) {
                continue;
            }
            let mut anew = Vec::with_capacity(body.len());
            for item in body.drain(..) {
                let is_lexeme = !matches!(item, Item::Sign(_) | Item::Name(_, Kind::Rule));
                if is_lexeme {
                    anew.push(sign("("));
                    anew.extend(skip());
                    anew.push(item);
                    anew.push(sign(")"));
                } else {
                    anew.push(item);
                }
            }
            if name == "start" {
                anew.insert(0, sign("("));
                anew.push(sign(")"));
                anew.extend(skip());
            }
            *body = anew;
        }
        let mut body = vec![sign("(")];
        body.extend(ignored);
        body.extend([sign(")"), sign("+")]);
        self.rules.push((SKIP.to_owned(), body));
    }
}
