//! gpt-oss: messages with headers, which say for whom each is.

use crate::Piece;
use crate::body::{LONGEST_NAME, Offer};
use crate::json::{self, Json};
use crate::out::Out;

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const CONSTRAIN: &str = "<|constrain|>";
const MESSAGE: &str = "<|message|>";
const ENDS: &[&str] = &["<|end|>", "<|return|>", "<|call|>"];
/// All marks.
pub(crate) const MARKS: &[&str] =
    &[START, CHANNEL, CONSTRAIN, MESSAGE, "<|end|>", "<|return|>", "<|call|>"];
/// The end of a prompt that has begun the reasoning.
pub(crate) const ANALYSIS: &str = "<|channel|>analysis<|message|>";
/// What ends the reasoning and begins the answer.
pub(crate) const ANSWER: &str = "<|end|><|start|>assistant<|channel|>final<|message|>";
const FUNCTIONS: &str = "functions.";
/// Recipients that are no tools.
const PEOPLE: &[&str] = &["user", "assistant", "all"];
/// Longest header, bytes; what is longer is text.
const LONGEST: usize = 1024;

/// Reads one answer.
#[derive(Debug, Clone)]
pub(crate) struct Messages {
    offer: Offer,
    /// Calls in messages of reasoning are reasoning.
    pub reasons_apart: bool,
    /// There are no calls behind text.
    pub calls_first: bool,
    out: Out,
    place: Place,
    /// The header so far, or what may be the beginning of a mark.
    held: String,
    /// Its white space at the front, between messages, bytes.
    blank: usize,
    /// White space that goes out with what follows it.
    space: String,
    /// Text and reasoning that were given out, so that messages do not run together.
    has_text: bool,
    has_reasoning: bool,
    /// The present message has given out something.
    has_begun: bool,
}

#[derive(Debug, Clone)]
enum Place {
    /// A header, or text without one.
    Between,
    Header,
    Text,
    Reasoning,
    Call(Box<Call>),
}

#[derive(Debug, Clone)]
struct Call {
    name: String,
    /// What the message is if it is no call.
    is_reasoning: bool,
    json: Json,
    raw: String,
    is_started: bool,
}

impl Messages {
    pub fn new(offer: Offer, is_reasoning: bool) -> Self {
        Self {
            offer,
            reasons_apart: false,
            calls_first: false,
            out: Out::default(),
            place: if is_reasoning { Place::Reasoning } else { Place::Between },
            held: String::new(),
            blank: 0,
            space: String::new(),
            has_text: false,
            has_reasoning: false,
            has_begun: false,
        }
    }

    pub fn reasons(&self) -> bool {
        matches!(self.place, Place::Reasoning)
    }

    pub fn push(&mut self, text: &str, out: &mut Vec<Piece>) {
        text.chars().for_each(|c| self.read(c));
        self.out.take(out);
    }

    fn read(&mut self, c: char) {
        let is_blank = self.held.len() == self.blank && c.is_whitespace();
        self.held.push(c);
        if is_blank && matches!(self.place, Place::Between) {
            self.blank = self.held.len();
            return;
        }
        match &self.place {
            Place::Between => self.between(),
            Place::Header => self.header(),
            Place::Text | Place::Reasoning | Place::Call(_) => self.body(),
        }
    }

    /// A header begins with one of its marks or its recipient; anything else is text.
    fn between(&mut self) {
        let begun = self.held.get(self.blank..).unwrap_or_default();
        let marks = [START, CHANNEL, CONSTRAIN, MESSAGE, "to="];
        let ends = ENDS.iter().copied();
        if ends.clone().any(|end| end == begun) {
            self.held.clear();
            self.blank = 0;
        } else if marks.contains(&begun) {
            self.place = Place::Header;
            self.header();
        } else if !marks.into_iter().chain(ends).any(|mark| mark.starts_with(begun)) {
            self.is_text();
        }
    }

    /// What is held is text without a header.
    fn is_text(&mut self) {
        self.begin(Place::Text);
        let held = std::mem::take(&mut self.held);
        let has_any = self.has_text || self.has_reasoning;
        let held = if has_any { held.trim_start() } else { held.as_str() };
        held.chars().for_each(|c| self.read(c));
    }

    fn begin(&mut self, place: Place) {
        self.place = place;
        self.space.clear();
        (self.has_begun, self.blank) = (false, 0);
    }

    fn header(&mut self) {
        let Some(header) = self.held.strip_suffix(MESSAGE) else {
            if self.held.len() > LONGEST {
                self.is_text();
            }
            return;
        };
        let (mut channel, mut recipient) = ("", None);
        for (at, part) in header.split(CHANNEL).enumerate() {
            let words = || part.split("<|").flat_map(str::split_whitespace);
            if at > 0 {
                channel = words().next().unwrap_or_default();
            }
            recipient = words().find_map(|word| word.strip_prefix("to=")).or(recipient);
        }
        let is_reasoning = channel == "analysis";
        let recipient = recipient.map(|name| name.strip_prefix(FUNCTIONS).unwrap_or(name));
        let recipient = recipient.filter(|name| takes_name(name));
        let is_apart = is_reasoning && self.reasons_apart;
        let place = match recipient {
            Some(name) if !self.offer.is_empty() && !is_apart => Place::Call(Box::new(Call {
                name: name.to_owned(),
                is_reasoning,
                json: Json::new(),
                raw: String::new(),
                is_started: false,
            })),
            _ if is_reasoning => Place::Reasoning,
            _ => Place::Text,
        };
        self.held.clear();
        self.begin(place);
    }

    fn body(&mut self) {
        loop {
            let held = self.held.as_str();
            let is_data = match &self.place {
                // A mark in a string is data.
                Place::Call(call) => call.json.in_text(),
                Place::Text => self.calls_first,
                _ => false,
            };
            if is_data {
            } else if ENDS.contains(&held) {
                self.held.clear();
                return self.end(true);
            } else if held == START {
                self.end(true);
                self.place = Place::Header;
                return;
            } else if held.is_empty()
                || ENDS.iter().any(|end| end.starts_with(held))
                || START.starts_with(held)
            {
                return;
            }
            let Some(first) = self.held.chars().next() else {
                return;
            };
            self.held.drain(..first.len_utf8());
            self.write(first);
        }
    }

    fn write(&mut self, c: char) {
        match &mut self.place {
            Place::Call(call) => {
                if !call.read(c, &mut self.out) {
                    self.no_call();
                }
            }
            Place::Reasoning => self.emit(c, true),
            _ => self.emit(c, false),
        }
    }

    /// The message is no call: it is what its channel says.
    fn no_call(&mut self) {
        let place = std::mem::replace(&mut self.place, Place::Between);
        if let Place::Call(call) = place {
            self.begin(if call.is_reasoning { Place::Reasoning } else { Place::Text });
            call.raw.chars().for_each(|c| self.emit(c, call.is_reasoning));
        }
    }

    fn emit(&mut self, c: char, is_reasoning: bool) {
        if c.is_whitespace() {
            return self.space.push(c);
        }
        let has_any = if is_reasoning { &mut self.has_reasoning } else { &mut self.has_text };
        if !self.has_begun {
            let is_first_of_all = !*has_any;
            self.has_begun = true;
            self.space.clear();
            if !is_first_of_all {
                self.space.push('\n');
            }
        }
        *has_any = true;
        let mut text = std::mem::take(&mut self.space);
        text.push(c);
        if is_reasoning { self.out.reasoning(&text) } else { self.out.text(&text) }
    }

    /// The message has ended, by a mark or because the model stopped.
    fn end(&mut self, is_whole: bool) {
        let place = std::mem::replace(&mut self.place, Place::Between);
        if let Place::Call(mut call) = place {
            if is_whole && call.finish(&mut self.out) {
                // It is a call.
            } else if is_whole {
                self.place = Place::Call(call);
                self.no_call();
            }
        }
        self.begin(Place::Between);
    }

    pub fn finish(&mut self, cut: bool, out: &mut Vec<Piece>) {
        let held = std::mem::take(&mut self.held);
        match &self.place {
            // The beginning of a header is none of the answer.
            Place::Between | Place::Header => {
                let begun = held.trim_start();
                if matches!(self.place, Place::Between) && !begun.starts_with('<') && !cut {
                    held.trim().chars().for_each(|c| self.emit(c, false));
                }
            }
            // The beginning of a mark behind a call, or of one in it.
            Place::Call(_) if cut => self.end(false),
            _ => {
                held.chars().for_each(|c| self.write(c));
                self.end(!cut);
            }
        }
        self.out.take(out);
    }
}

/// Whether a tool of that name can be called.
pub(crate) fn takes_name(name: &str) -> bool {
    let is_odd = name.contains(char::is_whitespace) || name.contains("<|");
    let is_whole = !name.is_empty() && name.len() <= LONGEST_NAME;
    is_whole && !is_odd && !PEOPLE.contains(&name)
}

impl Call {
    /// Takes a character of the arguments; false where this is no call.
    fn read(&mut self, c: char, out: &mut Out) -> bool {
        let in_text = self.json.in_text();
        if self.json.is_done() && c.is_whitespace() {
            return true;
        }
        self.raw.push(c);
        if self.json.is_done() {
            return false;
        }
        let may_be = self.is_started || c == '{' || c.is_whitespace();
        if !may_be || self.json.feed(c).is_none() {
            return false;
        }
        if !self.is_started && c == '{' {
            out.piece(Piece::CallStart { name: self.name.clone() });
            self.is_started = true;
        }
        if self.is_started {
            let mut text = String::new();
            json::push(&mut text, c, in_text);
            out.piece(Piece::CallArguments(text));
        }
        if self.json.is_done() {
            out.piece(Piece::CallEnd);
            self.raw.clear();
        }
        true
    }

    /// The message has ended; whether it is a call.
    fn finish(&mut self, out: &mut Out) -> bool {
        if self.json.is_done() {
            return true;
        }
        if self.is_started || !self.raw.trim().is_empty() {
            return false;
        }
        out.piece(Piece::CallStart { name: self.name.clone() });
        out.piece(Piece::CallArguments("{}".to_owned()));
        out.piece(Piece::CallEnd);
        true
    }
}
