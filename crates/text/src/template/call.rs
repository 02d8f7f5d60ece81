//! Arguments of a call, evaluated, and how they get their places.

use std::collections::VecDeque;

use super::text::Text;
use super::value::{Result, Value, failed};

/// What a caller gives.
#[derive(Debug, Default)]
pub(super) struct Given {
    pub(super) positional: VecDeque<Value>,
    pub(super) named: Vec<(String, Value)>,
}

impl Given {
    /// The arguments by name; an error for those that have no place.
    pub(super) fn bind<const N: usize>(
        mut self,
        what: &str,
        names: [&str; N],
    ) -> Result<[Option<Value>; N]> {
        if self.positional.len() > N {
            return failed(format!("{what} takes at most {N} arguments"));
        }
        let mut bound = [const { None }; N];
        for (slot, name) in bound.iter_mut().zip(names) {
            let at = self.named.iter().position(|(given, _)| given == name);
            let named = at.map(|at| self.named.remove(at).1);
            *slot = self.positional.pop_front();
            if named.is_some() {
                if slot.is_some() {
                    return failed(format!("{what} has two values for {name:?}"));
                }
                *slot = named;
            }
        }
        match self.named.first() {
            Some((name, _)) => failed(format!("{what} takes no argument {name:?}")),
            None => Ok(bound),
        }
    }

    /// Nothing was given.
    pub(super) fn none(self, what: &str) -> Result<()> {
        self.bind::<0>(what, []).map(|_| ())
    }
}

/// An argument that must be a string.
pub(super) fn text(what: &str, value: Option<Value>) -> Result<Text> {
    match value {
        Some(Value::Str(text)) => Ok(text),
        Some(other) => failed(format!("{what} takes a string, not {}", other.kind())),
        None => failed(format!("{what} lacks an argument")),
    }
}

/// An argument that is a string, none or absent.
pub(super) fn optional_text(what: &str, value: Option<Value>) -> Result<Option<Text>> {
    match value {
        None | Some(Value::None) => Ok(None),
        some => text(what, some).map(Some),
    }
}

/// An argument that is a number without a fraction, none or absent.
pub(super) fn optional_int(what: &str, value: Option<Value>) -> Result<Option<i128>> {
    match value {
        None | Some(Value::None) => Ok(None),
        Some(value) => match value.as_int() {
            Some(value) => Ok(Some(value)),
            None => failed(format!("{what} takes a number, not {}", value.kind())),
        },
    }
}

/// A number as a length; what is negative is nothing.
pub(super) fn size(value: i128) -> usize {
    usize::try_from(value.max(0)).unwrap_or(usize::MAX)
}
