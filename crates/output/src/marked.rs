//! Answers with marks: text, reasoning and calls.

mod candidate;

use crate::Piece;
use crate::body::Offer;
use crate::format::{Bare, Marked, Section};
use crate::out::Out;

use candidate::{Candidate, End, Opened, Told};

/// What turned out to be text is read again for marks that stand in it, as long as all that is
/// read twice is at most so many times the answer: else a row of planted beginnings would cost its
/// square.
const AGAIN: usize = 8;
/// And so much more, characters.
const AGAIN_AT_LEAST: usize = 4096;

/// Reads one answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    marked: &'static Marked,
    offer: Offer,
    /// Calls in reasoning are reasoning.
    reasons_apart: bool,
    /// There are none behind text.
    calls_first: bool,
    out: Out,
    /// Characters to be read again, the last one first.
    again: Vec<char>,
    seen: usize,
    seen_again: usize,
    state: State,
    /// What the state listens for.
    marks: Vec<(&'static str, Mark)>,
    /// What may be the beginning of a mark.
    held: String,
    /// White space that goes out with what follows it.
    space: String,
    candidate: Option<Candidate>,
    fork: Option<Fork>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct State {
    is_reasoning: bool,
    /// Only white space came so far, and marks of reasoning.
    is_start: bool,
    /// A mark that opens the reasoning may come.
    may_open: bool,
    /// One that closes it may come.
    may_close: bool,
    /// The mark that ends the answer, if one began it.
    answer_end: Option<&'static str>,
    /// The section that had calls and was not closed.
    unclosed: Option<&'static Section>,
    /// Text was given out.
    has_text: bool,
    /// A mark came behind the last text.
    is_marked: bool,
}

/// What a mark means.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mark {
    Open,
    Close,
    /// With the mark that ends it.
    Answer(&'static str),
    AnswerEnd,
    /// Of a section that is over.
    Stray,
    Section(&'static Section),
    Item(&'static Section),
    /// The first character of the answer.
    Bare(&'static Section),
}

/// A call stands in reasoning that is not closed. Whether it is one is told by the end: if the
/// reasoning is closed yet, all of it was reasoning.
#[derive(Debug, Clone)]
struct Fork {
    /// What was given out before.
    before: Out,
    /// All since, as reasoning.
    raw: String,
    /// The state before.
    state: State,
}

impl Answer {
    pub fn new(marked: &'static Marked, offer: Offer, is_reasoning: bool) -> Self {
        let thinks = !marked.think.0.is_empty();
        let state = State {
            is_reasoning: is_reasoning && thinks,
            is_start: true,
            may_open: thinks,
            may_close: thinks,
            answer_end: None,
            unclosed: None,
            has_text: false,
            is_marked: false,
        };
        let mut answer = Self {
            marked,
            offer,
            reasons_apart: false,
            calls_first: false,
            out: Out::default(),
            again: Vec::new(),
            seen: 0,
            seen_again: 0,
            state,
            marks: Vec::new(),
            held: String::new(),
            space: String::new(),
            candidate: None,
            fork: None,
        };
        answer.listen();
        answer
    }

    /// Calls in reasoning stay reasoning, from the beginning on.
    pub fn keep_reasoning(&mut self) {
        self.reasons_apart = true;
        self.listen();
    }

    /// There are no calls behind text.
    pub fn calls_first(&mut self) {
        self.calls_first = true;
    }

    pub fn reasons(&self) -> bool {
        self.state.is_reasoning && self.candidate.is_none()
    }

    pub fn push(&mut self, text: &str, out: &mut Vec<Piece>) {
        for c in text.chars() {
            self.seen += 1;
            self.read(c);
        }
        self.give(out);
    }

    fn read(&mut self, c: char) {
        self.again.push(c);
        while let Some(c) = self.again.pop() {
            if let Some(fork) = &mut self.fork {
                fork.raw.push(c);
            }
            match self.candidate.take() {
                Some(candidate) => self.inside(candidate, c),
                None => self.outside(c),
            }
        }
    }

    fn give(&mut self, out: &mut Vec<Piece>) {
        match &mut self.fork {
            Some(fork) => fork.before.take(out),
            None => self.out.take(out),
        }
    }

    /// Changes the state, and what is listened for.
    fn set(&mut self, state: State) {
        self.state = state;
        self.listen();
    }

    fn listen(&mut self) {
        let (opens, closes) = self.marked.think;
        let State { is_reasoning, is_start, may_open, may_close, .. } = self.state;
        let mut marks = std::mem::take(&mut self.marks);
        marks.clear();
        if is_start && may_open {
            marks.extend(opens.iter().map(|mark| (*mark, Mark::Open)));
        }
        if (is_reasoning || is_start || self.fork.is_some()) && may_close {
            marks.extend(closes.iter().map(|mark| (*mark, Mark::Close)));
        }
        if !is_reasoning {
            match self.state.answer_end {
                Some(end) => marks.push((end, Mark::AnswerEnd)),
                None if self.state.is_marked || is_start => {
                    let pairs = self.marked.answer.iter();
                    marks.extend(pairs.map(|(begin, end)| (*begin, Mark::Answer(end))));
                }
                None => {}
            }
            if let Some(section) = self.state.unclosed {
                let ends = section.closes.iter().chain(section.item_closes);
                let ends = ends.filter(|mark| mark.starts_with(['<', '[']));
                marks.extend(ends.map(|mark| (*mark, Mark::Stray)));
            }
        }
        let is_apart = is_reasoning && self.reasons_apart;
        let is_late = self.calls_first && self.state.has_text;
        if !self.offer.is_empty() && !is_apart && !is_late {
            for section in self.marked.sections {
                marks.extend(section.opens.iter().map(|mark| (*mark, Mark::Section(section))));
                if matches!(section.bare, Bare::Items | Bare::Offered) {
                    marks.extend(section.items.iter().map(|mark| (*mark, Mark::Item(section))));
                }
                if let Bare::Start(mark) | Bare::List(mark) = section.bare
                    && is_start
                    && !is_reasoning
                {
                    marks.push((mark, Mark::Bare(section)));
                }
            }
        }
        self.marks = marks;
    }

    fn outside(&mut self, c: char) {
        if self.held.is_empty() && !self.marks.iter().any(|(mark, _)| mark.starts_with(c)) {
            return self.emit(c);
        }
        self.held.push(c);
        let held = self.held.as_str();
        let may_grow = |(mark, _): &(&str, Mark)| mark.len() > held.len() && mark.starts_with(held);
        if self.marks.iter().any(may_grow) {
            return;
        }
        match self.marks.iter().find(|(mark, _)| *mark == held) {
            Some((text, mark)) => {
                let (text, mark) = (*text, *mark);
                self.held.clear();
                self.marked(text, mark);
            }
            None => self.let_go(),
        }
    }

    /// What is held is no mark: its first character is text, the rest is read again.
    fn let_go(&mut self) {
        let held = std::mem::take(&mut self.held);
        let mut chars = held.chars();
        if let Some(first) = chars.next() {
            self.read_again(chars.as_str());
            self.emit(first);
        }
    }

    fn read_again(&mut self, text: &str) {
        self.again.extend(text.chars().rev());
        if let Some(fork) = &mut self.fork {
            fork.raw.truncate(fork.raw.len().saturating_sub(text.len()));
        }
    }

    /// Gives out a character of text or reasoning.
    fn emit(&mut self, c: char) {
        let State { is_reasoning, has_text, is_marked, .. } = self.state;
        let goes_at_once = self.marks.is_empty() && (has_text || !is_marked);
        if c.is_whitespace() && !goes_at_once {
            self.space.push(c);
            return;
        }
        let mut text = std::mem::take(&mut self.space);
        let is_first = if is_reasoning { self.state.is_start } else { is_marked && !has_text };
        if is_first {
            text.clear();
        }
        text.push(c);
        if is_reasoning {
            self.out.reasoning(&text);
        } else {
            self.out.text(&text);
        }
        text.clear();
        self.space = text;
        let has_text = has_text || !is_reasoning;
        let is_marked = is_marked && is_reasoning;
        let state = State { is_start: false, has_text, is_marked, ..self.state };
        if state != self.state {
            self.set(state);
        }
    }

    /// A mark came.
    fn marked(&mut self, text: &'static str, mark: Mark) {
        let mut state = self.state;
        match mark {
            Mark::Open => {
                (state.is_reasoning, state.may_open) = (true, false);
                self.space.clear();
            }
            Mark::Close => {
                if let Some(fork) = self.fork.take() {
                    state = self.was_reasoning(fork, text);
                }
                (state.is_reasoning, state.may_open, state.may_close) = (false, false, false);
                (state.is_start, state.is_marked) = (false, true);
                self.space.clear();
            }
            Mark::Answer(end) => (state.answer_end, state.is_marked) = (Some(end), true),
            Mark::AnswerEnd => (state.answer_end, state.is_marked) = (None, true),
            Mark::Stray => (state.unclosed, state.is_marked) = (None, true),
            Mark::Section(section) => {
                self.candidate = Some(self.candidate(section, text, Opened::Mark));
                return;
            }
            Mark::Item(section) => {
                self.candidate = Some(self.candidate(section, text, Opened::Item));
                return;
            }
            Mark::Bare(section) => {
                self.candidate = Some(self.candidate(section, text, Opened::Start));
                return;
            }
        }
        self.set(state);
    }

    fn candidate(&self, section: &'static Section, mark: &str, opened: Opened) -> Candidate {
        let is_reasoning = self.state.is_reasoning;
        Candidate::new(section, mark, opened, self.offer.clone(), is_reasoning)
    }

    /// Reasoning that a call seemed to end is closed now: all was reasoning.
    fn was_reasoning(&mut self, fork: Fork, close: &str) -> State {
        self.out = fork.before;
        let raw = fork.raw.strip_suffix(close).unwrap_or(&fork.raw).trim_end();
        self.out.reasoning(if fork.state.is_start { raw.trim_start() } else { raw });
        fork.state
    }

    /// Reads a character of what may be a call.
    fn inside(&mut self, mut candidate: Candidate, c: char) {
        match candidate.read(c) {
            Told::More => {
                self.deliver(&mut candidate);
                self.candidate = Some(candidate);
            }
            Told::Whole(back) => self.called(candidate, back),
            Told::No => self.no_call(candidate),
            Told::Closed => self.over(None),
            Told::Left => {
                self.over(Some(candidate.section));
                self.read_again(&candidate.raw);
            }
        }
    }

    /// Gives out what is known of a call.
    fn deliver(&mut self, candidate: &mut Candidate) {
        if candidate.holds || candidate.calls.pieces.is_empty() {
            return;
        }
        candidate.calls.pieces.drain(..).for_each(|piece| self.out.piece(piece));
        candidate.delivered();
        let state = State { is_start: false, is_marked: true, ..self.state };
        if state != self.state {
            self.set(state);
        }
    }

    /// Calls are whole; so many characters behind them are no part of them.
    fn called(&mut self, mut candidate: Candidate, back: usize) {
        let raw = std::mem::take(&mut candidate.raw);
        if self.state.is_reasoning {
            let before = std::mem::take(&mut self.out);
            let held = std::mem::take(&mut self.space) + &raw;
            self.fork = Some(Fork { before, raw: held, state: self.state });
            let has_text = false;
            self.set(State { is_reasoning: false, may_open: false, has_text, ..self.state });
        }
        candidate.told();
        self.deliver(&mut candidate);
        candidate.follow();
        self.candidate = Some(candidate);
        let from = raw.char_indices().rev().take(back).last().map_or(raw.len(), |(at, _)| at);
        self.read_again(raw.get(from..).unwrap_or_default());
    }

    /// What began like a call is text: its mark at once, the rest is read again.
    fn no_call(&mut self, candidate: Candidate) {
        if candidate.has_called {
            self.over(Some(candidate.section));
        }
        let (mark, rest) = candidate.raw.split_at(candidate.mark);
        let length = rest.chars().count();
        let limit = self.seen.saturating_mul(AGAIN).saturating_add(AGAIN_AT_LEAST);
        if self.seen_again.saturating_add(length) <= limit {
            self.seen_again += length;
            self.read_again(rest);
            mark.chars().for_each(|c| self.emit(c));
        } else {
            candidate.raw.chars().for_each(|c| self.emit(c));
        }
    }

    /// The calls are over, of a section that was not closed or of one that was.
    fn over(&mut self, unclosed: Option<&'static Section>) {
        self.set(State { unclosed, ..self.state });
    }

    pub fn finish(&mut self, cut: bool, out: &mut Vec<Piece>) {
        loop {
            if let Some(c) = self.again.pop() {
                self.read(c);
            } else if let Some(candidate) = self.candidate.take() {
                self.finish_candidate(candidate, cut);
            } else if !self.held.is_empty() {
                self.let_go();
            } else {
                break;
            }
        }
        if !self.state.is_reasoning && !self.state.is_marked {
            self.out.text(&std::mem::take(&mut self.space));
        }
        if let Some(mut fork) = self.fork.take() {
            fork.before.take(out);
        }
        self.give(out);
    }

    fn finish_candidate(&mut self, mut candidate: Candidate, cut: bool) {
        match candidate.finish(cut) {
            End::Whole => self.called(candidate, 0),
            End::Text => self.no_call(candidate),
            End::Dropped => self.set(State { is_marked: true, ..self.state }),
            End::Followed => {
                self.over(None);
                self.read_again(&candidate.raw);
            }
        }
    }
}
