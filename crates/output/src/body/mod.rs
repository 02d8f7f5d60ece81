//! What stands between the marks of a call: a closed set of bodies, each read character by
//! character, so that no reader can tell where the text was cut.

mod gemma;
mod headed;
mod objects;
mod pythonic;
mod schema;
mod tagged;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) use schema::{Types, resolved};

use crate::{Piece, Tool};

/// How calls are written inside their marks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Body {
    /// JSON objects with a name and arguments.
    Objects(Objects),
    /// A name behind the mark, then arguments as JSON.
    Headed(Header),
    /// A name, then parameters in tags.
    Tagged(Tags),
    /// A list of calls in Python's syntax.
    Pythonic,
    /// One call of a tool's method `call`.
    Method,
    /// Gemma's own notation.
    Gemma {
        /// What stands around strings.
        quote: &'static str,
    },
}

/// Calls as JSON objects.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Objects {
    /// One object is taken.
    pub object: bool,
    /// A list of them is taken.
    pub list: bool,
    /// The member that names the tool.
    pub name: &'static str,
    /// How models of the row begin an object, a number for `0`; nothing where with the name.
    pub first: &'static str,
    /// The member with the arguments, as models of the row write it.
    pub arguments: &'static str,
}

/// What stands before arguments in JSON.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Header {
    /// `NAME[CALL_ID]id[ARGS]`, all but the name optional.
    NameArgs,
    /// `functions.NAME:N<|tool_call_argument_begin|>`.
    IdArgument,
    /// `function<｜tool▁sep｜>NAME`, a line break and the opening of a code block.
    TypeSepNameFence,
    /// `NAME<｜tool▁sep｜>`.
    NameSep,
}

/// Calls in tags.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Tags {
    /// Ends the name; empty: white space, or the next tag.
    pub name_end: &'static str,
    /// Begins a parameter, its key first.
    pub parameter: &'static str,
    /// Ends the key.
    pub key_end: &'static str,
    /// Begins the value, behind white space; empty: it follows the key.
    pub value: &'static str,
    /// Ends it.
    pub value_end: &'static str,
    /// Ends the call.
    pub end: &'static str,
    /// A line break at both ends of a value belongs to the tags.
    pub is_lined: bool,
    /// The next parameter of the tool ends a value, too.
    pub may_reopen: bool,
}

impl Tags {
    /// What cannot stand in a value.
    pub fn stops(&self) -> Vec<&'static str> {
        let reopens = if self.may_reopen { Some(self.parameter) } else { None };
        std::iter::once(self.value_end).chain(reopens).collect()
    }
}

/// Types by a tool's place and a parameter's key.
type TypesOf = HashMap<(usize, String), Arc<Types>>;

/// The tools of a request.
#[derive(Debug, Clone)]
pub(crate) struct Offer {
    tools: Arc<[Tool]>,
    /// Those of parameters that came: each is worked out once.
    types: Arc<Mutex<TypesOf>>,
}

impl Offer {
    pub fn new(tools: Arc<[Tool]>) -> Self {
        Self { tools, types: Arc::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    pub fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// The types of a tool's parameter.
    pub fn types(&self, name: &str, key: &str) -> Arc<Types> {
        let Some(at) = self.tools.iter().position(|tool| tool.name == name) else {
            return Arc::default();
        };
        let mut all = self.types.lock().unwrap_or_else(PoisonError::into_inner);
        let types = || Arc::new(Types::of(self.tools.get(at).map(|tool| &tool.parameters), key));
        all.entry((at, key.to_owned())).or_insert_with(types).clone()
    }

    /// Whether a tool's name begins so.
    pub fn begins(&self, start: &str) -> bool {
        self.tools.iter().any(|tool| tool.name.starts_with(start))
    }
}

/// What readers write to.
#[derive(Debug, Clone)]
pub(crate) struct Calls {
    pub offer: Offer,
    /// Only offered tools make calls.
    pub only_offered: bool,
    /// What was read and not yet taken.
    pub pieces: Vec<Piece>,
    /// Calls that are whole.
    pub whole: usize,
}

impl Calls {
    pub fn may_call(&self, name: &str) -> bool {
        !name.is_empty() && (!self.only_offered || self.offer.tool(name).is_some())
    }

    pub fn start(&mut self, name: &str) {
        self.pieces.push(Piece::CallStart { name: name.to_owned() });
    }

    pub fn arguments(&mut self, text: &str) {
        match self.pieces.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::CallArguments(before)) => before.push_str(text),
            _ => self.pieces.push(Piece::CallArguments(text.to_owned())),
        }
    }

    pub fn end(&mut self) {
        self.pieces.push(Piece::CallEnd);
        self.whole += 1;
    }
}

/// What a reader says to a character.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Step {
    /// More may come.
    More,
    /// The body has ended; this many characters at its end are no part of it.
    Done(usize),
    /// This is no call.
    Fail,
}

/// A reader of some body.
#[derive(Debug, Clone)]
pub(crate) enum Reader {
    /// The first character that is no white space says which.
    Undecided(&'static [Body], &'static [&'static str]),
    Objects(objects::Reader),
    Headed(headed::Reader),
    Tagged(tagged::Reader),
    Pythonic(pythonic::Reader),
    Gemma(gemma::Reader),
}

impl Reader {
    /// For one of these bodies; `ends` are marks that may follow a call.
    pub fn new(bodies: &'static [Body], ends: &'static [&'static str]) -> Self {
        match bodies {
            [body] => body.reader(ends),
            _ => Self::Undecided(bodies, ends),
        }
    }

    pub fn feed(&mut self, c: char, calls: &mut Calls) -> Step {
        if let Self::Undecided(bodies, ends) = self {
            if c.is_whitespace() {
                return Step::More;
            }
            let Some(body) = bodies.iter().find(|body| body.begins(c)) else {
                return Step::Fail;
            };
            *self = body.reader(ends);
        }
        match self {
            Self::Undecided(..) => Step::Fail,
            Self::Objects(reader) => reader.feed(c, calls),
            Self::Headed(reader) => reader.feed(c, calls),
            Self::Tagged(reader) => reader.feed(c, calls),
            Self::Pythonic(reader) => reader.feed(c, calls),
            Self::Gemma(reader) => reader.feed(c, calls),
        }
    }

    /// The model stopped here: whether all that came makes calls.
    pub fn finish(&mut self, calls: &mut Calls) -> bool {
        match self {
            Self::Undecided(..) | Self::Gemma(_) => false,
            Self::Objects(reader) => reader.is_between(),
            Self::Headed(reader) => reader.finish(calls),
            Self::Tagged(reader) => reader.finish(calls),
            Self::Pythonic(reader) => reader.is_between(),
        }
    }

    /// The name so far, where nothing else can be told of the call.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Undecided(..) | Self::Headed(_) | Self::Gemma(_) => None,
            Self::Objects(reader) => reader.name(),
            Self::Tagged(reader) => reader.name(),
            Self::Pythonic(reader) => reader.name(),
        }
    }
}

impl Body {
    /// Marks inside, which may be special tokens.
    pub fn marks(&self) -> Vec<&'static str> {
        match *self {
            Self::Headed(_) => headed::MARKS.to_vec(),
            Self::Tagged(tags) => {
                vec![tags.parameter, tags.key_end, tags.value, tags.value_end, tags.end]
            }
            Self::Gemma { quote } => vec![quote],
            Self::Objects(_) | Self::Pythonic | Self::Method => Vec::new(),
        }
    }

    /// Whether a tool of that name can be called.
    pub fn takes_name(&self, name: &str) -> bool {
        match self {
            Self::Objects(_) => !name.is_empty(),
            Self::Headed(_) | Self::Tagged(_) | Self::Gemma { .. } => is_name(name),
            Self::Pythonic | Self::Method => pythonic::is_name(name),
        }
    }

    /// Arguments stand one by one behind their keys, and are no JSON as a whole.
    pub fn has_keys(&self) -> bool {
        match self {
            Self::Objects(_) | Self::Headed(_) => false,
            Self::Tagged(_) | Self::Pythonic | Self::Method | Self::Gemma { .. } => true,
        }
    }

    /// Whether an argument can have that key.
    pub fn takes_key(&self, key: &str) -> bool {
        match self {
            Self::Objects(_) | Self::Headed(_) => true,
            Self::Tagged(tags) => tagged::is_key(tags, key),
            Self::Pythonic | Self::Method => pythonic::is_key(key),
            Self::Gemma { .. } => gemma::is_key(key),
        }
    }

    fn begins(&self, c: char) -> bool {
        match self {
            Self::Objects(form) => (form.object && c == '{') || (form.list && c == '['),
            Self::Pythonic => c == '[',
            Self::Method => c.is_alphabetic() || c == '_',
            Self::Headed(_) | Self::Tagged(_) | Self::Gemma { .. } => true,
        }
    }

    fn reader(&self, ends: &'static [&'static str]) -> Reader {
        match *self {
            Self::Objects(form) => Reader::Objects(objects::Reader::new(form)),
            Self::Headed(header) => Reader::Headed(headed::Reader::new(header)),
            Self::Tagged(tags) => Reader::Tagged(tagged::Reader::new(tags, ends)),
            Self::Pythonic => Reader::Pythonic(pythonic::Reader::list()),
            Self::Method => Reader::Pythonic(pythonic::Reader::method()),
            Self::Gemma { quote } => Reader::Gemma(gemma::Reader::new(quote)),
        }
    }
}

/// Longest name where no quotes stand around it, bytes.
pub(crate) const LONGEST_NAME: usize = 256;

/// Whether a text may be a tool's name, where no quotes stand around it.
pub(crate) fn is_name(text: &str) -> bool {
    let odd = |c: char| c.is_whitespace() || c.is_control() || "<>[]{}()\"'`=,;|".contains(c);
    !text.is_empty() && text.len() <= LONGEST_NAME && !text.contains(odd)
}
