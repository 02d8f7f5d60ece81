//! Constraints on answers: JSON Schema, regular expressions, Lark, GBNF, choices and structural
//! tags, compiled once and then asked, token by token, what may come next.
//!
//! ```
//! use std::sync::Arc;
//! use tokenmill_grammar::{Constraint, Settings, Vocabulary, compile};
//!
//! let bytes = (0..=255u8).map(|b| vec![b]).chain([b"<|end|>".to_vec()]);
//! let vocabulary = Arc::new(Vocabulary::new(bytes, &[256], &[256]).unwrap());
//! let constraint = Constraint::Choice(vec!["left".into(), "right".into()]);
//! let grammar = compile(&constraint, &vocabulary, &Settings::default()).unwrap();
//! let mut matcher = grammar.start();
//! let mut bits = vec![0u32; vocabulary.words()];
//! matcher.mask(&mut bits).unwrap();
//! assert!(bits[3] >> (b'l' - 96) & 1 == 1 && bits[3] >> (b'a' - 96) & 1 == 0);
//! matcher.accept(u32::from(b'l')).unwrap();
//! ```
//!
//! A JSON Schema never fails open: every keyword is enforced, or an annotation, or refused by
//! name ([`KEYWORDS`]). What is enforced is at times narrower than the standard:
//!
//! - The properties of an object come in the order of the schema; undeclared ones come last.
//! - No white space, or what [`Whitespace`] says.
//! - An `integer` has neither point nor exponent. A number with bounds or `multipleOf` has no
//!   exponent; one without may be greater than a double.
//! - Strings hold no `\uXXXX`: other characters stand for themselves, and control characters
//!   other than `\b \f \n \r \t` do not occur. The matcher compares spellings, and an escaped
//!   letter in a name would be a second spelling of a declared property.
//! - `format` is enforced; a format that is not is refused.
//! - What stands beside `$ref` is enforced in all drafts.
//! - `maxLength`, `maxItems` and `maxProperties` over [`Bounds::repeat`] are lowered to it.
//!
//! Nothing here reads a clock: limits are fuel, states, items and bytes ([`Bounds`]).

mod bounds;
mod compile;
mod constraint;
mod formats;
mod gbnf;
mod inner;
mod lark;
mod matcher;
mod pattern;
mod refused;
mod schema;
mod vocabulary;

pub use bounds::{Bounds, Settings, Whitespace};
pub use compile::{Grammar, compile, lenient};
pub use constraint::{Constraint, Tag};
pub use inner::{Inner, Spelling, inner};
pub use matcher::{Dead, Matcher};
pub use refused::Refused;
pub use schema::keywords::{KEYWORDS, Keyword, Treatment};
pub use vocabulary::{BadVocabulary, Tokenize, Vocabulary};
