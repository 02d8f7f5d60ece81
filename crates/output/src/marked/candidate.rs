//! What may be a call: from its mark until it is told.

use crate::body::{Calls, Offer, Reader, Step};
use crate::format::{Bare, Section};

/// What may be a call, or what follows one.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub section: &'static Section,
    stage: Stage,
    /// The text since the last whole call, its mark first.
    pub raw: String,
    /// The length of that mark, bytes.
    pub mark: usize,
    /// Where what may be a mark begins, behind white space.
    begun: usize,
    pub calls: Calls,
    /// Nothing is given out before the body has ended.
    pub holds: bool,
    /// No mark says that it is a call.
    is_bare: bool,
    /// The mark of the whole section came.
    is_section: bool,
    /// A call began to be given out.
    is_given: bool,
    /// A call was whole.
    pub has_called: bool,
}

#[derive(Debug, Clone)]
enum Stage {
    /// Between the section's mark and the call's.
    Before,
    Body(Box<Reader>),
    /// Behind a call.
    After,
}

/// Which mark began it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Opened {
    Mark,
    Item,
    /// None but the first character of the answer.
    Start,
}

/// What a character told.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Told {
    More,
    /// Calls are whole; so many characters are no part of them.
    Whole(usize),
    /// It is no call.
    No,
    /// The section is closed.
    Closed,
    /// Something else came behind a call.
    Left,
}

/// What it is when the answer ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum End {
    Whole,
    Text,
    /// A cut call.
    Dropped,
    /// What stands behind a call.
    Followed,
}

impl Candidate {
    pub fn new(
        section: &'static Section,
        mark: &str,
        opened: Opened,
        offer: Offer,
        is_reasoning: bool,
    ) -> Self {
        let is_bare = match section.bare {
            Bare::Offered => opened == Opened::Item,
            _ => opened == Opened::Start,
        };
        let only_offered = is_bare || is_reasoning;
        let is_list = matches!(section.bare, Bare::List(_)) && is_bare;
        let mut candidate = Self {
            section,
            stage: Stage::Before,
            raw: mark.to_owned(),
            mark: mark.len(),
            begun: mark.len(),
            calls: Calls { offer, only_offered, pieces: Vec::new(), whole: 0 },
            holds: is_reasoning || is_list,
            is_bare,
            is_section: opened == Opened::Mark,
            is_given: false,
            has_called: false,
        };
        if opened != Opened::Mark || section.items.is_empty() {
            candidate.begin();
        }
        if opened == Opened::Start {
            // The mark is the body's first character.
            candidate.raw.clear();
            for c in mark.chars() {
                candidate.read(c);
            }
        }
        candidate
    }

    /// The body comes next.
    fn begin(&mut self) {
        self.calls.whole = 0;
        self.is_given = false;
        self.stage = Stage::Body(Box::new(Reader::new(self.section.bodies, self.section.closes)));
    }

    /// What was read is given out.
    pub fn delivered(&mut self) {
        self.is_given = true;
        if self.calls.whole > 0 {
            self.has_called = true;
            self.calls.whole = 0;
            self.raw.clear();
            self.mark = 0;
        }
    }

    /// It is a call, for certain.
    pub fn told(&mut self) {
        self.holds = false;
        self.calls.only_offered = self.is_bare;
    }

    /// Calls are whole: their ends come next.
    pub fn follow(&mut self) {
        self.has_called = true;
        self.stage = Stage::After;
        self.raw.clear();
        (self.mark, self.begun) = (0, 0);
    }

    pub fn read(&mut self, c: char) -> Told {
        let is_blank = self.begun == self.raw.len() && c.is_whitespace();
        self.raw.push(c);
        if is_blank {
            self.begun = self.raw.len();
        }
        match &mut self.stage {
            Stage::Before => {
                let items = self.section.items;
                let begun = self.raw.get(self.begun..).unwrap_or_default();
                if items.contains(&begun) {
                    self.begin();
                    return Told::More;
                }
                let may_be = items.iter().any(|item| item.starts_with(begun));
                if may_be { Told::More } else { Told::No }
            }
            Stage::Body(reader) => match reader.feed(c, &mut self.calls) {
                Step::More => Told::More,
                Step::Done(back) if self.has_called || self.calls.whole > 0 => Told::Whole(back),
                Step::Done(_) | Step::Fail => Told::No,
            },
            Stage::After => self.after(),
        }
    }

    fn after(&mut self) -> Told {
        let section = self.section;
        let begun = self.raw.get(self.begun..).unwrap_or_default();
        let items: &[&str] = if self.is_section { section.items } else { &[] };
        if section.item_closes.contains(&begun) {
            self.raw.clear();
            self.begun = 0;
            return Told::More;
        }
        if section.closes.contains(&begun) {
            return Told::Closed;
        }
        if section.next.contains(&begun) || items.contains(&begun) {
            self.mark = self.raw.len();
            self.begin();
            return Told::More;
        }
        let mut marks =
            [section.item_closes, section.closes, section.next, items].into_iter().flatten();
        if marks.any(|mark| mark.starts_with(begun)) { Told::More } else { Told::Left }
    }

    pub fn finish(&mut self, cut: bool) -> End {
        let is_sure = self.is_sure();
        let Self { stage, calls, .. } = self;
        match stage {
            Stage::After if cut || self.raw.trim().is_empty() => End::Dropped,
            Stage::After => End::Followed,
            _ if cut && calls.whole > 0 => End::Whole,
            _ if cut => {
                if is_sure {
                    End::Dropped
                } else {
                    End::Text
                }
            }
            Stage::Before => End::Text,
            Stage::Body(reader) => {
                if reader.finish(calls) && (self.has_called || calls.whole > 0) {
                    End::Whole
                } else {
                    End::Text
                }
            }
        }
    }

    /// What was cut is a call, or would have been one.
    fn is_sure(&self) -> bool {
        let Stage::Body(reader) = &self.stage else {
            return !self.is_bare;
        };
        let name = reader.name().unwrap_or_default();
        !self.is_bare || self.is_given || (!name.is_empty() && self.calls.offer.begins(name))
    }
}
