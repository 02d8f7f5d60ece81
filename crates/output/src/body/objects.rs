//! Calls as JSON objects with a name and arguments, one or a list of them.

use super::{Calls, Objects, Step};
use crate::json::{self, Json, Part};

/// Members that calls have; without a mark before it, an object with others first is none.
const KNOWN: &[&str] = &["arguments", "function", "id", "parameters", "tool_call_id", "type"];

/// Reads the objects.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    form: Objects,
    json: Json,
    /// How deep a call's members are; 0 before the first character.
    depth: usize,
    key: String,
    member: Member,
    /// The present member's value, where it is kept.
    value: String,
    call: Call,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Member {
    Name,
    /// Arguments that are an object: they go on as they come.
    Object,
    /// Arguments of another kind, or of one not known yet.
    Arguments,
    Other,
}

#[derive(Debug, Clone, Default)]
struct Call {
    name: Option<String>,
    is_started: bool,
    /// The member with arguments came.
    has_arguments: bool,
    /// Arguments before the name.
    kept: String,
}

impl Reader {
    pub fn new(form: Objects) -> Self {
        Self {
            form,
            json: Json::new(),
            depth: 0,
            key: String::new(),
            member: Member::Other,
            value: String::new(),
            call: Call::default(),
        }
    }

    pub fn feed(&mut self, c: char, calls: &mut Calls) -> Step {
        match self.take(c, calls) {
            None => Step::Fail,
            Some(()) if self.json.is_done() => Step::Done(0),
            Some(()) => Step::More,
        }
    }

    /// Between two objects of a list.
    pub fn is_between(&self) -> bool {
        self.depth == 2 && self.json.depth() == 1
    }

    /// The name so far.
    pub fn name(&self) -> Option<&str> {
        let begun = (self.member == Member::Name).then(|| self.value.trim_matches('"'));
        self.call.name.as_deref().or(begun)
    }

    fn take(&mut self, c: char, calls: &mut Calls) -> Option<()> {
        let in_text = self.json.in_text();
        let part = self.json.feed(c)?;
        let depth = self.json.depth();
        if self.depth == 0 {
            if part == Part::Between {
                return Some(());
            }
            let is_taken = if c == '{' { self.form.object } else { self.form.list };
            self.depth = if c == '{' { 1 } else { 2 };
            return (is_taken && part == Part::Open).then_some(());
        }
        let is_outside = depth < self.depth;
        match part {
            Part::Close if depth + 1 == self.depth && c == '}' => self.end(calls),
            // A list holds objects alone.
            _ if is_outside => matches!(part, Part::Between | Part::Close).then_some(()),
            Part::Open if depth == self.depth => (c == '{').then_some(()),
            Part::Key if depth == self.depth => {
                self.key.push(c);
                Some(())
            }
            Part::KeyEnd if depth == self.depth => {
                self.key.push(c);
                self.begin_member(calls)
            }
            Part::Between if depth == self.depth => match c {
                ',' => self.end_member(calls),
                _ => Some(()),
            },
            _ => self.value(c, in_text, calls),
        }
    }

    fn begin_member(&mut self, calls: &Calls) -> Option<()> {
        let key = json::unquoted(&std::mem::take(&mut self.key))?;
        self.value.clear();
        self.member = match key.as_str() {
            key if key == self.form.name && self.call.name.is_none() => Member::Name,
            "arguments" | "parameters" if !self.call.has_arguments => {
                self.call.has_arguments = true;
                Member::Arguments
            }
            _ => Member::Other,
        };
        let is_odd = self.member == Member::Other && !KNOWN.contains(&key.as_str());
        (!is_odd || !calls.only_offered || self.call.name.is_some()).then_some(())
    }

    fn value(&mut self, c: char, in_text: bool, calls: &mut Calls) -> Option<()> {
        match self.member {
            Member::Other => {}
            Member::Name => {
                json::push(&mut self.value, c, in_text);
                if self.value.starts_with('"') && !self.json.in_text() {
                    self.name_ended(calls)?;
                }
                self.value.starts_with('"').then_some(())?;
            }
            Member::Arguments => {
                if self.value.is_empty() && c == '{' {
                    self.member = Member::Object;
                    return self.value(c, in_text, calls);
                }
                json::push(&mut self.value, c, in_text);
                self.value.starts_with(['"', 'n']).then_some(())?;
            }
            Member::Object => {
                json::push(&mut self.call.kept, c, in_text);
                self.go_on(calls);
            }
        }
        Some(())
    }

    fn name_ended(&mut self, calls: &Calls) -> Option<()> {
        let name = json::unquoted(&self.value)?;
        calls.may_call(&name).then_some(())?;
        self.call.name = Some(name);
        self.member = Member::Other;
        Some(())
    }

    /// Gives out arguments, once there is a name.
    fn go_on(&mut self, calls: &mut Calls) {
        let (Some(name), false) = (&self.call.name, self.call.kept.is_empty()) else {
            return;
        };
        if !self.call.is_started {
            calls.start(name);
            self.call.is_started = true;
        }
        calls.arguments(&self.call.kept);
        self.call.kept.clear();
    }

    fn end_member(&mut self, calls: &mut Calls) -> Option<()> {
        if self.member == Member::Arguments {
            // White space, and null, are none.
            let text = match json::unquoted(&self.value) {
                Some(text) => text,
                None => self.value.replace("null", ""),
            };
            if !text.trim().is_empty() {
                self.call.kept = json::value(&text).filter(|text| text.starts_with('{'))?;
            }
        }
        self.member = Member::Other;
        self.go_on(calls);
        Some(())
    }

    fn end(&mut self, calls: &mut Calls) -> Option<()> {
        self.end_member(calls)?;
        let mut call = std::mem::take(&mut self.call);
        let name = call.name.take()?;
        if !call.is_started {
            calls.start(&name);
            calls.arguments("{}");
        }
        calls.end();
        Some(())
    }
}
