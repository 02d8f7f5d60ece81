//! Grammars in Lark: a client's checked, and choices and structural tags written as one.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::bounds::{Bounds, Settings};
use crate::constraint::Tag;
use crate::refused::{Refused, within};
use crate::schema::{self, Strictness};
use crate::vocabulary::Vocabulary;

/// Options of llguidance that a client may set.
const OPTIONS: &[&str] = &["no_forcing", "allow_initial_skip", "ignore_once"];
/// How much a grammar may have of what is dear.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Most {
    /// Intersections: each multiplies.
    meetings: usize,
    /// Schemas.
    schemas: usize,
}

/// For a client's grammar.
pub(crate) const GUESTS: Most = Most { meetings: 16, schemas: 100 };
/// For this program's own: a schema for each tool or parameter, and two intersections for each mark.
pub(crate) const OWN: Most = Most { meetings: 64, schemas: 10_000 };
/// Attributes of rules that nothing here obeys.
const ATTRIBUTES: &[&str] = &["stop", "temperature"];

/// One of the choices.
pub(crate) fn choice(choices: &[String], bounds: &Bounds) -> Result<String, Refused> {
    within("choices", choices.len(), bounds.values)?;
    within("bytes of the choices", choices.iter().map(String::len).sum(), bounds.source_bytes)?;
    if choices.is_empty() {
        return Err(Refused::syntax("choice", "an empty list"));
    }
    let list = choices.iter().map(|c| quoted(c)).collect::<Vec<_>>().join(" | ");
    Ok(format!("start: CHOICE\nCHOICE: {list}\n"))
}

/// A text as a string of Lark.
pub(crate) fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\x7f', "\\u007f")
}

/// Free text and tags in it.
pub(crate) fn structural(
    triggers: &[String],
    tags: &[Tag],
    vocabulary: &Vocabulary,
    settings: &Settings,
) -> Result<String, Refused> {
    let bad = |why: String| Refused::syntax("structural tag", why);
    within("tags and triggers", triggers.len() + tags.len(), settings.bounds.depth)?;
    if triggers.is_empty() || tags.is_empty() {
        return Err(bad("no trigger, or no tag".to_owned()));
    }
    let is_token = |t: &str| vocabulary.special_at(t).is_some_and(|(_, len)| len == t.len());
    let texts: Vec<String> = triggers.iter().filter(|t| !is_token(t)).map(|t| quoted(t)).collect();
    let mut lark = String::from("%llguidance {}\nANY: /(?s:.*)/\nMORE: /(?s:.+)/\n");
    let is_plain = texts.is_empty();
    if is_plain {
        lark.push_str("TEXT: ANY\n");
    } else {
        lark.push_str(&format!("TRIGGER: {}\n", texts.join(" | ")));
        lark.push_str("TEXT: ANY & ~(ANY TRIGGER ANY)\n");
    }
    let mut heads = Vec::new();
    for (i, trigger) in triggers.iter().enumerate() {
        if trigger.is_empty() {
            return Err(bad("an empty trigger".to_owned()));
        }
        let own = tags.iter().filter(|tag| tag.begin.starts_with(trigger.as_str()));
        let rests = own.map(|tag| tag_rest(tag, trigger, vocabulary, settings));
        let rests = rests.collect::<Result<Vec<_>, _>>()?;
        if rests.is_empty() {
            return Err(bad(format!("no tag begins with the trigger {}", quoted(trigger))));
        }
        // Text up to its first trigger: nothing can follow that trigger in the same lexeme.
        let head = match vocabulary.special_at(trigger).filter(|_| is_token(trigger)) {
            Some((id, _)) => format!("TEXT <[{id}]>"),
            None => {
                let trigger = quoted(trigger);
                lark.push_str(&format!("HEAD_{i}: (ANY {trigger}) & ~(ANY TRIGGER MORE)\n"));
                format!("HEAD_{i}")
            }
        };
        lark.push_str(&format!("tag_{i}: {head} ({})\n", rests.join(" | ")));
        heads.push(format!("tag_{i}"));
    }
    if let Some(tag) = tags.iter().find(|tag| !triggers.iter().any(|t| tag.begin.starts_with(t))) {
        return Err(bad(format!("the tag {} begins with no trigger", quoted(&tag.begin))));
    }
    lark.push_str(&format!("start: ({})* TEXT\n", heads.join(" | ")));
    Ok(lark)
}

fn tag_rest(
    tag: &Tag,
    trigger: &str,
    vocabulary: &Vocabulary,
    settings: &Settings,
) -> Result<String, Refused> {
    let begin = pieces(tag.begin.get(trigger.len()..).unwrap_or_default(), vocabulary);
    let plain = schema::read(&tag.schema, settings, Strictness::Strict)?.plain;
    Ok(format!("{begin} %json {plain} {}", pieces(&tag.end, vocabulary)))
}

/// A text, with special tokens where it spells them.
fn pieces(text: &str, vocabulary: &Vocabulary) -> String {
    let (mut out, mut run, mut rest) = (String::new(), String::new(), text);
    while let Some(c) = rest.chars().next() {
        match vocabulary.special_at(rest) {
            Some((id, length)) => {
                if !run.is_empty() {
                    out.push_str(&quoted(&std::mem::take(&mut run)));
                }
                out.push_str(&format!(" <[{id}]> "));
                rest = rest.get(length..).unwrap_or_default();
            }
            None => {
                run.push(c);
                rest = rest.get(c.len_utf8()..).unwrap_or_default();
            }
        }
    }
    if !run.is_empty() {
        out.push_str(&quoted(&run));
    }
    out
}

/// A client's grammar: its schemas strict, nothing in it that is not obeyed, no chain of rules
/// too deep for the compiler's stack.
pub(crate) fn checked(text: &str, settings: &Settings, most: Most) -> Result<String, Refused> {
    within("bytes of the grammar", text.len(), settings.bounds.source_bytes)?;
    let mut scan = Scan::new(text, settings, most);
    scan.all()?;
    let Scan { out, uses, .. } = scan;
    chain(&uses, "start", settings.bounds.chain)?;
    Ok(out)
}

struct Scan<'a> {
    rest: &'a str,
    settings: &'a Settings,
    most: Most,
    out: String,
    depth: usize,
    meetings: usize,
    schemas: usize,
    /// The rule being read, and the first name of this line.
    rule: &'a str,
    first: Option<&'a str>,
    /// Names used by each rule.
    uses: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

impl<'a> Scan<'a> {
    fn new(text: &'a str, settings: &'a Settings, most: Most) -> Self {
        let (out, uses) = (String::with_capacity(text.len()), BTreeMap::new());
        Scan {
            rest: text,
            settings,
            most,
            out,
            depth: 0,
            meetings: 0,
            schemas: 0,
            rule: "",
            first: None,
            uses,
        }
    }

    /// Passes on `bytes` bytes.
    fn pass(&mut self, bytes: usize) -> &'a str {
        let (now, rest) = self.rest.split_at_checked(bytes).unwrap_or((self.rest, ""));
        self.out.push_str(now);
        self.rest = rest;
        now
    }

    fn all(&mut self) -> Result<(), Refused> {
        while let Some(c) = self.rest.chars().next() {
            match c {
                '"' => self.until('"')?,
                '/' if self.rest.starts_with("//") => self.line()?,
                '/' => self.until('/')?,
                '#' => self.line()?,
                // A special token, which may have any sign in it.
                '<' => {
                    let length = self.rest.find('>').map_or(1, |end| end + 1);
                    self.hides_nothing(length)?;
                    self.pass(length);
                }
                '%' => self.directive()?,
                '\n' => {
                    self.first = self.first.filter(|_| self.depth > 0);
                    self.pass(1);
                }
                '(' | '[' | '{' => {
                    self.depth += 1;
                    let most = self.settings.bounds.depth;
                    within("brackets within brackets of the grammar", self.depth, most)?;
                    self.pass(1);
                }
                ')' | ']' | '}' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.pass(1);
                }
                ':' if self.rest.starts_with("::") => drop(self.pass(2)),
                ':' => {
                    self.rule = self.first.unwrap_or_default();
                    self.uses.entry(self.rule).or_default();
                    self.pass(1);
                }
                '~' => {
                    let same = self.rest.bytes().take_while(|b| *b == b'~').count();
                    within("`~` in a row", same, self.settings.bounds.depth)?;
                    self.pass(same);
                }
                '&' => {
                    self.meetings += 1;
                    within("`&` in the grammar", self.meetings, self.most.meetings)?;
                    self.pass(1);
                }
                c if c.is_ascii_alphabetic() || c == '_' => self.name()?,
                c => drop(self.pass(c.len_utf8())),
            }
        }
        Ok(())
    }

    fn line(&mut self) -> Result<(), Refused> {
        let length = self.rest.find('\n').unwrap_or(self.rest.len());
        self.hides_nothing(length)?;
        self.pass(length);
        Ok(())
    }

    /// Refuses a schema in what is read over here: should the compiler read it otherwise, it
    /// would be one that nobody checked.
    fn hides_nothing(&self, length: usize) -> Result<(), Refused> {
        match self.rest.get(..length) {
            Some(text) if !text.contains("%json") => Ok(()),
            _ => Err(Refused::syntax("lark", "`%json` in a text, an expression or a comment")),
        }
    }

    /// A string or a regular expression.
    fn until(&mut self, end: char) -> Result<(), Refused> {
        let mut is_escaped = false;
        let close = self.rest.char_indices().skip(1).find(|(_, c)| {
            // An expression may go on over lines.
            let is_end = !is_escaped && (*c == end || (*c == '\n' && end == '"'));
            is_escaped = *c == '\\' && !is_escaped;
            is_end
        });
        let length = close.map_or(self.rest.len(), |(at, c)| at + c.len_utf8());
        if end == '/' {
            within("bytes of a regex", length, self.settings.bounds.pattern_bytes)?;
        }
        self.hides_nothing(length)?;
        self.pass(length);
        Ok(())
    }

    fn name(&mut self) -> Result<(), Refused> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let length = self.rest.find(|c| !is_name(c)).unwrap_or(self.rest.len());
        let name = self.pass(length);
        if self.first.is_none() {
            self.first = Some(name);
        } else {
            self.uses.entry(self.rule).or_default().insert(name);
        }
        if ATTRIBUTES.contains(&name) && self.rest.trim_start().starts_with('=') {
            let why = format!("the attribute `{name}` is not obeyed; `suffix` and `lazy` are");
            return Err(Refused::syntax("lark", why));
        }
        Ok(())
    }

    fn directive(&mut self) -> Result<(), Refused> {
        let word =
            ["%json", "%llguidance", "%regex"].into_iter().find(|w| self.rest.starts_with(w));
        let Some(word) = word else {
            self.pass(1);
            return Ok(());
        };
        self.pass(word.len());
        let mut values = serde_json::Deserializer::from_str(self.rest).into_iter::<Value>();
        let bad = |why: String| Refused::syntax("lark", format!("after {word}: {why}"));
        let value = match values.next() {
            Some(Ok(value)) => value,
            Some(Err(e)) => return Err(bad(e.to_string())),
            None => return Err(bad("nothing".to_owned())),
        };
        let length = values.byte_offset();
        match word {
            "%json" => {
                self.schemas += 1;
                within("schemas in the grammar", self.schemas, self.most.schemas)?;
                let plain = schema::read(&value, self.settings, Strictness::Strict)?.plain;
                self.rest = self.rest.get(length..).unwrap_or_default();
                self.out.push_str(&format!(" {plain}"));
            }
            "%llguidance" => {
                let names = value.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
                if let Some(name) = names.into_iter().find(|n| !OPTIONS.contains(n)) {
                    return Err(bad(format!("the option `{}`", crate::refused::cut(name))));
                }
                self.pass(length);
            }
            _ => drop(self.pass(length)),
        }
        Ok(())
    }
}

/// Refuses rules that use rules, and so on, deeper than `limit`: the compiler goes into a rule at
/// its first use.
pub(crate) fn chain(
    uses: &BTreeMap<&str, BTreeSet<&str>>,
    root: &str,
    limit: usize,
) -> Result<(), Refused> {
    fn descend<'a>(
        uses: &BTreeMap<&'a str, BTreeSet<&'a str>>,
        rule: &'a str,
        seen: &mut BTreeSet<&'a str>,
        level: usize,
        limit: usize,
    ) -> Result<(), Refused> {
        within("rules within rules of the grammar", level, limit)?;
        if !seen.insert(rule) {
            return Ok(());
        }
        let used = uses.get(rule).into_iter().flatten();
        used.into_iter().try_for_each(|next| descend(uses, next, seen, level + 1, limit))
    }
    descend(uses, root, &mut BTreeSet::new(), 0, limit)
}
