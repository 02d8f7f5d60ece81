//! Encoding within bounds: at most so many tokens, and only as long as somebody waits for them.

use std::ops::Range;

use crate::specials::Part;
use crate::template::RenderedPrompt;
use crate::tokenizer::{Core, MAX_TEXT_BYTES, Parts, Special, Tokenizer, TokenizerError};

/// How far a text is encoded.
#[derive(Clone, Copy)]
pub struct Reach<'a> {
    /// Tokens that are of use; a text of more is given up.
    pub tokens: usize,
    /// Whether somebody still waits for them; asked every few thousand units of work.
    pub wanted: &'a dyn Fn() -> bool,
}

impl Reach<'_> {
    /// To its end.
    pub const ALL: Reach<'static> = Reach { tokens: usize::MAX, wanted: &|| true };
}

/// Stands among the ids of a rendered prompt where an image comes of which the template wrote nothing; no
/// vocabulary has so many tokens.
pub const IMAGE: u32 = u32::MAX;

/// Units of work between two looks at whether it is still wanted.
const PACE: u32 = 4096;

/// Asks now and then whether work is still wanted.
pub(crate) struct Pace<'a> {
    wanted: &'a dyn Fn() -> bool,
    left: u32,
}

impl Pace<'_> {
    /// One unit of work: a symbol, a merge, a word.
    pub(crate) fn step(&mut self) -> Result<(), TokenizerError> {
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return Ok(());
        }
        self.look()
    }

    /// A good deal of work.
    fn look(&mut self) -> Result<(), TokenizerError> {
        self.left = PACE;
        if (self.wanted)() { Ok(()) } else { Err(TokenizerError::Unwanted) }
    }
}

/// Token ids as they come.
pub(crate) struct Ids<'a> {
    pub(crate) list: Vec<u32>,
    most: usize,
    pub(crate) pace: Pace<'a>,
}

impl<'a> Ids<'a> {
    pub(crate) fn new(reach: Reach<'a>) -> Self {
        let pace = Pace { wanted: reach.wanted, left: PACE };
        Self { list: Vec::new(), most: reach.tokens, pace }
    }

    /// A unit of work is done: gives up where there are too many ids, or nobody waits.
    pub(crate) fn step(&mut self) -> Result<(), TokenizerError> {
        self.check().and_then(|()| self.pace.step())
    }

    /// As [`step`](Self::step), for more work than a unit.
    pub(crate) fn look(&mut self) -> Result<(), TokenizerError> {
        self.check().and_then(|()| self.pace.look())
    }

    fn check(&self) -> Result<(), TokenizerError> {
        match self.list.len() {
            at_least if at_least > self.most => {
                Err(TokenizerError::TooManyTokens { at_least, most: self.most })
            }
            _ => Ok(()),
        }
    }
}

/// A tokenizer that goes no further than it should; see [`Tokenizer::within`].
#[derive(Clone, Copy)]
pub struct Encoder<'a> {
    tokenizer: &'a Tokenizer,
    reach: Reach<'a>,
}

impl<'a> Encoder<'a> {
    /// Of what vocabulary it is.
    pub fn tokenizer(&self) -> &'a Tokenizer {
        self.tokenizer
    }

    /// As [`Tokenizer::encode`].
    ///
    /// # Errors
    /// As there, and [`TokenizerError::TooManyTokens`] and [`TokenizerError::Unwanted`].
    pub fn encode(&self, text: &str, special: Special) -> Result<Vec<u32>, TokenizerError> {
        let all = 0..text.len();
        let within = match special {
            Special::Plain => &[][..],
            Special::Parse => std::slice::from_ref(&all),
        };
        let mut ids = self.start(text)?;
        self.parts_of(text, within, &mut ids)?;
        Ok(ids.list)
    }

    /// As [`Tokenizer::encode_prompt`].
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn prompt(&self, text: &str, special: Special) -> Result<Vec<u32>, TokenizerError> {
        Ok(self.framed(self.encode(text, special)?, true, true))
    }

    /// Tokens with what a prompt begins and ends with, at that end, unless it is there.
    pub fn framed(&self, mut ids: Vec<u32>, begins: bool, ends: bool) -> Vec<u32> {
        let Parts { prefix, suffix, .. } = &self.tokenizer.parts;
        if begins && !ids.starts_with(prefix) {
            ids.splice(0..0, prefix.iter().copied());
        }
        if ends && !ids.ends_with(suffix) {
            ids.extend(suffix);
        }
        ids
    }

    /// As [`Tokenizer::encode_pair`].
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn pair(
        &self,
        first: &str,
        second: &str,
    ) -> Result<(Vec<u32>, Option<u32>), TokenizerError> {
        let Parts { prefix, suffix, between, typed, .. } = &self.tokenizer.parts;
        let mut ids = prefix.clone();
        ids.extend(self.encode(first, Special::Plain)?);
        ids.extend(suffix);
        let at = typed.then(|| u32::try_from(ids.len()).unwrap_or(u32::MAX));
        ids.extend(between);
        ids.extend(self.encode(second, Special::Plain)?);
        ids.extend(suffix);
        Ok((ids, at))
    }

    /// As [`Tokenizer::encode_rendered`].
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn rendered(&self, prompt: &RenderedPrompt) -> Result<Vec<u32>, TokenizerError> {
        let text = prompt.text();
        let mut ids = self.start(&text)?;
        let mut from = 0;
        for at in prompt.images().iter().copied() {
            self.slice_of(&text, from..at, prompt.own(), &mut ids)?;
            ids.list.push(IMAGE);
            from = at;
        }
        self.slice_of(&text, from..text.len(), prompt.own(), &mut ids)?;
        let completes = self.tokenizer.parts.completes_chats || prompt.is_guess();
        let mut list = ids.list;
        if completes && !list.starts_with(&self.tokenizer.parts.prefix) {
            list.splice(0..0, self.tokenizer.parts.prefix.iter().copied());
        }
        Ok(list)
    }

    /// No ids yet, unless the text is too long whatever it says.
    fn start(&self, text: &str) -> Result<Ids<'a>, TokenizerError> {
        let bytes = text.len();
        if bytes > MAX_TEXT_BYTES {
            return Err(TokenizerError::TextTooLong { bytes });
        }
        let (at_least, most) = (bytes / self.tokenizer.most_bytes, self.reach.tokens);
        if at_least > most {
            return Err(TokenizerError::TooManyTokens { at_least, most });
        }
        Ok(Ids::new(self.reach))
    }

    /// A part of a text, as [`parts_of`](Self::parts_of) the whole.
    fn slice_of(
        &self,
        text: &str,
        slice: Range<usize>,
        within: &[Range<usize>],
        ids: &mut Ids<'_>,
    ) -> Result<(), TokenizerError> {
        let inside = |own: &Range<usize>| {
            let (start, end) = (own.start.max(slice.start), own.end.min(slice.end));
            (start < end).then(|| start - slice.start..end - slice.start)
        };
        let within: Vec<Range<usize>> = within.iter().filter_map(inside).collect();
        self.parts_of(text.get(slice.clone()).unwrap_or_default(), &within, ids)
    }

    /// Cuts at the control tokens in these ranges; what lies between is plain.
    fn parts_of(
        &self,
        text: &str,
        within: &[Range<usize>],
        ids: &mut Ids<'_>,
    ) -> Result<(), TokenizerError> {
        for part in self.tokenizer.parts.control.split(text, within) {
            match part {
                Part::Token(id) => ids.list.push(id),
                Part::Text(text) => self.plain(text, ids.list.is_empty(), ids)?,
            }
            ids.step()?;
        }
        Ok(())
    }

    fn plain(
        &self,
        text: &str,
        starts_text: bool,
        ids: &mut Ids<'_>,
    ) -> Result<(), TokenizerError> {
        for (index, part) in
            self.tokenizer.parts.user_defined.split_all(text).into_iter().enumerate()
        {
            match (part, &self.tokenizer.parts.core) {
                (Part::Token(id), _) => ids.list.push(id),
                (Part::Text(text), Core::Bytes(core)) => core.encode(text, ids)?,
                (Part::Text(text), Core::Chars(core)) => core.encode(text, ids)?,
                (Part::Text(text), Core::Library(core)) => {
                    core.encode(text, starts_text && index == 0, ids)?;
                }
            }
            ids.step()?;
        }
        Ok(())
    }
}

/// Bytes a token stands for in text where nothing better is known: words that are no tokens, and
/// white space that is dropped, may be longer; texts made of them are not held to be prose.
const LOOSE_BYTES: usize = 256;
/// Composing makes text at most so many times shorter (Unicode Standard Annex 15, NFC).
const COMPOSES_BY: usize = 3;

impl Tokenizer {
    /// Encodes no further than that.
    pub fn within<'a>(&'a self, reach: Reach<'a>) -> Encoder<'a> {
        Encoder { tokenizer: self, reach }
    }
}

impl Parts {
    /// Most bytes of text that one token can stand for.
    pub(crate) fn bytes_of_a_token(&self) -> usize {
        let longest = self.table.longest().max(1);
        let strips = self.control.strips() || self.user_defined.strips();
        let exact = match &self.core {
            Core::Bytes(core) => core.keeps_all(),
            Core::Chars(core) => core.keeps_all(),
            Core::Library(_) => false,
        };
        let composes = matches!(&self.core, Core::Bytes(core) if core.pre.composes);
        let bytes = if exact && !strips { longest } else { longest.max(LOOSE_BYTES) };
        if composes { bytes * COMPOSES_BY } else { bytes }
    }
}
