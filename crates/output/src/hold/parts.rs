//! Parts of grammars: marks, free text, and the bodies of calls.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use tokenmill_grammar::{Constraint, Spelling};

use super::Ask;
use super::written::listed;
use crate::body::{Body, Header, Objects, Tags, Types, resolved};
use crate::format::Section;

/// What a schema has for people.
pub(super) const NOTES: &[&str] = &["description", "title", "default", "examples"];

/// Longest grammar, bytes.
const LONGEST: usize = 1 << 20;

/// Writes a grammar.
pub(super) struct Writer<'a> {
    pub ask: &'a Ask<'a>,
    pub text: String,
    numbers: usize,
    /// The grammar is too long, and no more is written.
    is_full: bool,
    /// Terminals of values that are written.
    values: BTreeSet<String>,
    /// Rules of schemas that are written.
    schemas: BTreeMap<String, String>,
}

/// What follows the mark of a section.
pub(super) struct Run {
    /// The first sign of the body.
    pub sign: &'static str,
    /// The rule of all behind it, to the end of the section.
    pub rest: String,
    /// It holds as many calls as there are.
    pub repeats: bool,
}

/// What begins calls in text.
pub(super) struct Trigger {
    pub mark: String,
    /// The first sign of the body, which must follow where the mark is no special token.
    pub sign: &'static str,
    /// The rule of what follows.
    pub run: String,
}

impl Trigger {
    fn text(&self, lark: &Writer<'_>) -> String {
        if self.sign.is_empty() || lark.is_special(&self.mark) {
            return quoted(&self.mark);
        }
        format!("({} /\\s*/ {})", quoted(&self.mark), quoted(self.sign))
    }
}

impl<'a> Writer<'a> {
    pub fn new(ask: &'a Ask<'a>) -> Self {
        let text = "%llguidance {}\nANY: /(?s:.*)/\nMORE: /(?s:.+)/\ngap: (/[ \\n]{1,2}/)?\n";
        let mut lark = Self {
            ask,
            text: text.to_owned(),
            numbers: 0,
            is_full: false,
            values: BTreeSet::new(),
            schemas: BTreeMap::new(),
        };
        for (at, tool) in ask.tools.iter().enumerate() {
            let schema = || format!("%json {}", object(tool.parameters.clone()));
            let arguments = lark.input_object(at).unwrap_or_else(schema);
            lark.rule(&format!("arguments_{at}"), &arguments);
        }
        lark
    }

    /// Rules that are whole lines.
    pub fn rules(&mut self, lines: &str) {
        self.is_full |= self.text.len() + lines.len() > LONGEST;
        if !self.is_full {
            self.text.push_str(lines);
        }
    }

    pub fn rule(&mut self, name: &str, body: &str) {
        self.is_full |= self.text.len() + name.len() + body.len() > LONGEST;
        if !self.is_full {
            self.text.push_str(&format!("{name}: {body}\n"));
        }
    }

    /// The grammar, where it is not too long.
    pub fn written(self) -> Option<Constraint> {
        // What a client wrote stands in it: with a client's limits.
        let has_guest = self.ask.tools.iter().any(|tool| tool.input.is_some());
        let made = if has_guest { Constraint::Lark } else { Constraint::Written };
        (!self.is_full).then(|| made(self.text))
    }

    /// A rule with a name of its own, which is given.
    pub fn numbered(&mut self, name: &str, body: &str) -> String {
        let name = format!("{name}_{}", self.number());
        self.rule(&name, body);
        name
    }

    pub fn number(&mut self) -> usize {
        self.numbers += 1;
        self.numbers
    }

    /// A text, special tokens as such.
    pub fn mark(&self, text: &str) -> String {
        let (mut parts, mut run, mut rest) = (Vec::new(), String::new(), text);
        while let Some(c) = rest.chars().next() {
            match self.special_at(rest) {
                Some((id, length)) => {
                    parts.extend((!run.is_empty()).then(|| quoted(&std::mem::take(&mut run))));
                    parts.push(format!("<[{id}]>"));
                    rest = rest.get(length..).unwrap_or_default();
                }
                None => {
                    run.push(c);
                    rest = rest.get(c.len_utf8()..).unwrap_or_default();
                }
            }
        }
        parts.extend((!run.is_empty()).then(|| quoted(&run)));
        parts.join(" ")
    }

    fn special_at(&self, text: &str) -> Option<(u32, usize)> {
        if !text.starts_with(['<', '[', 'f']) {
            return None;
        }
        let ends = text.char_indices().skip(1).map(|(at, _)| at).chain([text.len()]);
        let ends = ends.take(64).collect::<Vec<_>>();
        let found = |at: &usize| Some(((self.ask.special)(text.get(..*at)?)?, *at));
        ends.iter().rev().find_map(found)
    }

    fn is_special(&self, mark: &str) -> bool {
        (self.ask.special)(mark).is_some()
    }

    /// Text up to and with the first of the marks.
    pub fn until(&mut self, name: &str, marks: &[&str]) -> String {
        let texts: Vec<&str> =
            marks.iter().copied().filter(|mark| !self.is_special(mark)).collect();
        let mut ways = Vec::new();
        let free = self.without(&format!("{name}_TEXT"), &texts);
        for mark in marks.iter().filter(|mark| self.is_special(mark)) {
            ways.push(format!("{free} {}", self.mark(mark)));
        }
        if !texts.is_empty() {
            let ends = texts.iter().map(|mark| quoted(mark)).collect::<Vec<_>>().join(" | ");
            self.rule(&format!("{name}_END"), &ends);
            self.rule(name, &format!("(ANY {name}_END) & ~(ANY {name}_END MORE)"));
            ways.push(name.to_owned());
        }
        format!("({})", ways.join(" | "))
    }

    /// Text without these marks.
    pub fn without(&mut self, name: &str, marks: &[&str]) -> String {
        let texts: Vec<String> = marks.iter().map(|mark| quoted(mark)).collect();
        if texts.is_empty() {
            self.rule(name, "ANY");
        } else {
            self.rule(&format!("{name}_NOT"), &texts.join(" | "));
            self.rule(name, &format!("ANY & ~(ANY {name}_NOT ANY)"));
        }
        name.to_owned()
    }

    /// Rules of text in which each trigger begins a call: `said` is such text, `after` what may
    /// follow a call. `plain` are marks in text.
    pub fn text_with_calls(&mut self, triggers: &[Trigger], plain: &[&'static str]) {
        let texts: Vec<String> = triggers.iter().map(|trigger| trigger.text(self)).collect();
        self.rule("TRIGGER", &texts.join(" | "));
        self.rule("TEXT", "ANY & ~(ANY TRIGGER ANY)");
        let marks = plain.iter().filter(|mark| self.is_special(mark));
        let marks: Vec<String> = marks.map(|mark| format!("TEXT {}", self.mark(mark))).collect();
        let marks =
            if marks.is_empty() { String::new() } else { format!("({})*", marks.join(" | ")) };
        let heads = self.heads("", "", triggers, &texts);
        self.rule("plain", &format!("{marks} TEXT"));
        self.rule("called", &format!("{marks} ({heads})"));
        let times = if self.ask.parallel { "*" } else { "?" };
        self.rule("said", &format!("called{times} plain"));
        self.rule("after", if self.ask.parallel { "said" } else { "plain" });
    }

    /// The same at an answer's beginning, which is not `first`.
    pub fn first_text(
        &mut self,
        triggers: &[Trigger],
        plain: &[&'static str],
        first: &str,
    ) -> String {
        let texts: Vec<String> = triggers.iter().map(|trigger| trigger.text(self)).collect();
        let not = format!(" | ({first} ANY)");
        self.rule("FIRST_TEXT", &format!("ANY & ~((ANY TRIGGER ANY){not})"));
        let heads = self.heads("FIRST_", &not, triggers, &texts);
        let marks = plain.iter().filter(|mark| self.is_special(mark));
        let marks: Vec<String> =
            marks.map(|mark| format!("FIRST_TEXT {} said", self.mark(mark))).collect();
        let marks = marks.iter().map(|mark| format!(" | {mark}")).collect::<String>();
        format!("({heads}) after | FIRST_TEXT{marks}")
    }

    fn heads(&mut self, prefix: &str, not: &str, triggers: &[Trigger], texts: &[String]) -> String {
        let mut heads = Vec::new();
        for (at, (trigger, own)) in triggers.iter().zip(texts).enumerate() {
            let Trigger { mark, sign, run } = trigger;
            if self.is_special(mark) {
                let (mark, sign) = (self.mark(mark), self.mark(sign));
                heads.push(format!("{prefix}TEXT {mark} gap {sign} {run}"));
            } else {
                let name = format!("{prefix}HEAD_{at}");
                self.rule(&name, &format!("(ANY {own}) & ~((ANY TRIGGER MORE){not})"));
                heads.push(format!("{name} {run}"));
            }
        }
        heads.join(" | ")
    }

    /// What may follow the mark of a section.
    pub fn run(&mut self, section: &'static Section) -> Option<Run> {
        let close = section.closes.first().map(|mark| format!("gap {}", self.mark(mark)));
        let close = close.unwrap_or_default();
        let body = section.bodies.first()?;
        let sign = match body {
            _ if !section.items.is_empty() => section.items.first()?,
            Body::Objects(Objects { list: true, .. }) => "[",
            Body::Objects(_) => "{",
            Body::Pythonic => "[",
            Body::Gemma { .. } => "call:",
            _ => "",
        };
        let calls = self.calls(section, "")?;
        let call = format!("call_{}", self.number());
        self.rule(&call, &calls);
        // What each call of a list begins with.
        let of_list = match body {
            Body::Objects(Objects { list: true, .. }) => Some("\"{\""),
            Body::Pythonic => Some(""),
            _ => None,
        };
        let has_items = !section.items.is_empty() && !section.item_closes.is_empty();
        let parallel = self.ask.parallel;
        let rest = if let Some(first) = of_list {
            let more = if parallel { format!("(\", \" {first} {call})*") } else { String::new() };
            format!("{first} {call} {more} \"]\" {close}")
        } else if has_items {
            let (item, end) = (self.mark(sign), self.mark(section.item_closes.last()?));
            let more = if parallel { format!("(gap {item} {call} {end})*") } else { String::new() };
            format!("{call} {end} {more} {close}")
        } else {
            format!("{call} {close}")
        };
        Some(Run { sign, rest, repeats: of_list.is_some() || has_items })
    }

    /// Calls of all tools, behind the body's first sign or with it.
    pub fn calls(&mut self, section: &'static Section, sign: &str) -> Option<String> {
        let body = section.bodies.first()?;
        let calls = (0..self.ask.tools.len()).map(|at| self.call(body, at, sign));
        Some(calls.collect::<Option<Vec<_>>>()?.join(" | "))
    }

    fn call(&mut self, body: &Body, at: usize, sign: &str) -> Option<String> {
        let name = self.ask.tools.get(at)?.name.clone();
        let arguments = format!("arguments_{at}");
        match *body {
            Body::Objects(form) => {
                let first = match form.first.split_once('0') {
                    Some((a, b)) => format!("{} /[0-9]{{1,3}}/ {}", quoted(a), quoted(b)),
                    None => String::new(),
                };
                let (name, arguments_name) = (quoted(&name), form.arguments);
                let head = format!("{sign}\"{}\": {name}, \"{arguments_name}\": ", form.name);
                Some(format!("{first} {} {} \"}}\"", quoted(&head), arguments))
            }
            Body::Headed(header) => {
                let (before, behind) = match header {
                    Header::NameArgs => (format!("{name}[ARGS]"), ""),
                    Header::NameSep => (format!("{name}<｜tool▁sep｜>"), ""),
                    Header::TypeSepNameFence => {
                        (format!("function<｜tool▁sep｜>{name}\n```json\n"), "\n```")
                    }
                    Header::IdArgument => {
                        let id = quoted(&format!("functions.{name}:"));
                        let mark = self.mark("<|tool_call_argument_begin|>");
                        return Some(format!("{id} /[0-9]{{1,4}}/ {mark} {}", arguments));
                    }
                };
                Some(format!("{} {} {}", self.mark(&before), arguments, self.mark(behind)))
            }
            Body::Tagged(tags) => {
                let (head, rest) = self.tagged(tags, at)?;
                Some(format!("{} {rest}", self.mark(&head)))
            }
            Body::Pythonic => {
                let keywords = self.parameters(at, |lark, key, own, schema| {
                    let value = lark.input_string(at, key);
                    let value = value.unwrap_or_else(|| lark.json(own, schema));
                    Some(format!("{} {value}", quoted(&format!("{key}="))))
                })?;
                let all = self.sequence(keywords, ", ");
                Some(format!("{} {all} \")\"", quoted(&format!("{sign}{name}("))))
            }
            Body::Gemma { quote } => {
                let members = self.parameters(at, |lark, key, own, schema| {
                    let value = match lark.input(at, key, Spelling::Plain(&[quote])) {
                        Some(text) => {
                            format!("{} {}", lark.mark(quote), lark.held_ended(&text, "", quote))
                        }
                        None => lark.gemma_value(quote, key, own, schema)?,
                    };
                    Some(format!("{} {value}", quoted(&format!("{key}:"))))
                })?;
                let all = self.sequence(members, ",");
                Some(format!("{} {all} \"}}\"", quoted(&format!("{name}{{"))))
            }
            Body::Method => None,
        }
    }

    /// A tool's parameters, each as a rule and whether it must be there.
    fn parameters(
        &mut self,
        at: usize,
        write: impl Fn(&mut Self, &str, &Value, &Value) -> Option<String>,
    ) -> Option<Vec<(String, bool)>> {
        let root = &self.ask.tools.get(at)?.parameters;
        let schema = resolved(root);
        let list = |name: &str| schema.get(name).and_then(Value::as_array).into_iter().flatten();
        let required: Vec<&str> = list("required").filter_map(Value::as_str).collect();
        let mut all = Vec::new();
        for (key, own) in schema.get("properties").and_then(Value::as_object).into_iter().flatten()
        {
            all.push((write(self, key, own, root)?, required.contains(&key.as_str())));
        }
        let is_known =
            |key: &&str| schema.get("properties").is_some_and(|all| all.get(key).is_some());
        required.iter().all(is_known).then_some(all)
    }

    /// These in order, with separators between; those that are not required perhaps.
    fn sequence(&mut self, items: Vec<(String, bool)>, separator: &str) -> String {
        let (mut ways, mut tail) = (Vec::new(), String::new());
        let (separator, mut may_be_empty) = (quoted(separator), true);
        for (item, is_required) in items.into_iter().rev() {
            let number = self.number();
            self.rule(&format!("item_{number}"), &item);
            if is_required {
                ways.clear();
                may_be_empty = false;
            }
            ways.push(format!("item_{number} {tail}"));
            let more = format!("{separator} item_{number}");
            let more = if is_required { more } else { format!("({more})?") };
            self.rule(&format!("tail_{number}"), &format!("{more} {tail}"));
            tail = format!("tail_{number}");
        }
        match (ways.is_empty(), may_be_empty) {
            (true, _) => String::new(),
            (false, true) => format!("({})?", ways.join(" | ")),
            (false, false) => format!("({})", ways.join(" | ")),
        }
    }

    /// A value as JSON: a rule, the same for all parameters of a schema, as their number is limited.
    fn json(&mut self, own: &Value, schema: &Value) -> String {
        if self.is_full {
            return String::new();
        }
        let refers = own.to_string().contains("\"$ref\"");
        let mut own = own.clone();
        if let Some(map) = own.as_object_mut() {
            map.retain(|name, _| !NOTES.contains(&name.as_str()));
            for names in ["$defs", "definitions"] {
                if let Some(defs) = schema.get(names).filter(|_| refers) {
                    map.insert(names.to_owned(), defs.clone());
                }
            }
        }
        let (text, number) = (format!("%json {own}"), self.number());
        if let Some(rule) = self.schemas.get(&text) {
            return rule.clone();
        }
        let rule = format!("json_{number}");
        self.rule(&rule, &text);
        self.schemas.insert(text, rule.clone());
        rule
    }

    /// A value in Gemma's notation: strings between its quotes, all else as JSON.
    fn gemma_value(
        &mut self,
        quote: &'static str,
        key: &str,
        own: &Value,
        schema: &Value,
    ) -> Option<String> {
        let types = Types::of(Some(schema), key);
        if !types.is_text() {
            return Some(self.json(own, schema));
        }
        let mark = self.mark(quote);
        let listed: Vec<String> =
            listed(&types, &[quote])?.iter().map(|text| quoted(text)).collect();
        if !listed.is_empty() {
            return Some(format!("{mark} ({}) {mark}", listed.join(" | ")));
        }
        let name = if quote.contains('|') { "QUOTED" } else { "ESCAPED" };
        if self.values.insert(name.to_owned()) {
            self.without(name, &[quote]);
        }
        Some(format!("{mark} {}", self.ended(name, "", quote)))
    }

    /// A call in tags, its name and what follows: the schema's parameters in order.
    pub fn tagged(&mut self, tags: Tags, at: usize) -> Option<(String, String)> {
        let head = format!("{}{}", self.ask.tools.get(at)?.name, tags.name_end);
        let line = if tags.is_lined { "\n" } else { "" };
        let parameters = self.parameters(at, |lark, key, own, schema| {
            let open = format!("{line}{}{key}{}{}{line}", tags.parameter, tags.key_end, tags.value);
            let value = match lark.input(at, key, Spelling::Plain(&tags.stops())) {
                Some(text) => lark.held_ended(&text, line, tags.value_end),
                None => lark.tagged_value(tags, line, key, own, schema)?,
            };
            Some(format!("{} {value}", lark.mark(&open)))
        })?;
        let mut body = String::new();
        for (parameter, is_required) in parameters {
            let times = if is_required { "" } else { "?" };
            body.push_str(&format!("({parameter}){times} "));
        }
        body.push_str(&self.mark(&format!("{line}{}", tags.end)));
        Some((head, body))
    }

    /// A value and its closing tag.
    fn tagged_value(
        &mut self,
        tags: Tags,
        line: &str,
        key: &str,
        own: &Value,
        schema: &Value,
    ) -> Option<String> {
        let end = self.mark(&format!("{line}{}", tags.value_end));
        let types = Types::of(Some(schema), key);
        let stops = tags.stops();
        let listed: Vec<String> = listed(&types, &stops)?.iter().map(|text| quoted(text)).collect();
        if !listed.is_empty() {
            return Some(format!("({}) {end}", listed.join(" | ")));
        }
        if !types.takes_text() {
            return Some(format!("{} {end}", self.json(own, schema)));
        }
        if self.values.insert("VALUE".to_owned()) {
            self.without("VALUE", &stops);
        }
        Some(self.ended("VALUE", line, tags.value_end))
    }

    /// Text of that name that is held, up to and with its end: the line break before it is none of
    /// the text, and one terminal with it.
    fn held_ended(&mut self, name: &str, line: &str, end: &str) -> String {
        if !self.is_special(end) || line.is_empty() {
            return self.ended(name, line, end);
        }
        let lined = format!("{name}_LINED");
        self.rule(&lined, &format!("{name} {}", quoted(line)));
        format!("{lined} {}", self.mark(end))
    }

    /// Text of that name, up to and with its end. Where that is no special token both are one
    /// terminal, as text would else take the end's beginning as its own; where it is one, so is
    /// the line break before it of the text.
    fn ended(&mut self, name: &str, line: &str, end: &str) -> String {
        if self.is_special(end) {
            return format!("{name} {}", self.mark(end));
        }
        let ended = format!("{name}_ENDED");
        if self.values.insert(ended.clone()) {
            self.rule(&ended, &format!("{name} {}", quoted(&format!("{line}{end}"))));
        }
        ended
    }
}

/// A schema that only objects satisfy.
pub(super) fn object(mut schema: Value) -> Value {
    match schema.as_object_mut() {
        Some(map) if !map.contains_key("type") => {
            map.insert("type".to_owned(), json!("object"));
            schema
        }
        Some(_) => schema,
        None => json!({ "type": "object" }),
    }
}

/// A text as a string of Lark.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\x7f', "\\u007f")
}

/// A text as a regular expression.
pub(super) fn pattern(text: &str) -> String {
    let mut written = String::new();
    for c in text.chars() {
        if "\\.+*?()|[]{}^$#&-~/".contains(c) {
            written.push('\\');
        }
        written.push(c);
    }
    written
}
