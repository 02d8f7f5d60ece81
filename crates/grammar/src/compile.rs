//! From a constraint to a grammar that matchers start from.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::Logger;
use llguidance::TokenParser;
use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::InferenceCapabilities;
use serde_json::{Value, json};

use crate::bounds::{Bounds, Settings};
use crate::constraint::Constraint;
use crate::matcher::{Dead, Matcher};
use crate::refused::{Refused, cut, first_words, within};
use crate::schema::{self, Strictness};
use crate::vocabulary::Vocabulary;
use crate::{gbnf, lark, pattern};

/// A constraint compiled for a vocabulary. Clones share it.
#[derive(Clone)]
pub struct Grammar {
    first: Arc<Mutex<Matcher>>,
    /// What an answer may begin with.
    mask: Arc<[u32]>,
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Grammar")
    }
}

impl Grammar {
    /// A matcher for a new answer. No matcher has part in another's states, so what an answer
    /// may take does not depend on the answers before it.
    pub fn start(&self) -> Matcher {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).apart()
    }

    /// The mask of an answer that begins: it was found out when the grammar was made.
    pub fn first_mask(&self) -> &[u32] {
        &self.mask
    }
}

/// Compiles a constraint, or says by name what of it is not enforced.
pub fn compile(
    constraint: &Constraint,
    vocabulary: &Arc<Vocabulary>,
    settings: &Settings,
) -> Result<Grammar, Refused> {
    let bounds = &settings.bounds;
    let grammar = match constraint {
        Constraint::JsonSchema(schema) => {
            let plain = schema::read(schema, settings, Strictness::Strict)?.plain;
            return of_schema(schema, plain, vocabulary, bounds);
        }
        Constraint::JsonObject => {
            let schema = json!({"type": "object"});
            let plain = schema::read(&schema, settings, Strictness::Strict)?.plain;
            TopLevelGrammar::from_json_schema(plain)
        }
        Constraint::Regex(text) => {
            within("bytes of the regex", text.len(), bounds.pattern_bytes)?;
            let regex = pattern::translate(text, bounds.repeat, false);
            TopLevelGrammar::from_regex(&regex.map_err(|e| Refused::syntax("regex", e))?)
        }
        Constraint::Choice(choices) => lark_grammar(lark::choice(choices, bounds)?),
        Constraint::Lark(text) => lark_grammar(lark::checked(text, settings, lark::GUESTS)?),
        Constraint::Written(text) => lark_grammar(lark::checked(text, settings, lark::OWN)?),
        Constraint::Gbnf(text) => lark_grammar(gbnf::to_lark(text, bounds)?),
        Constraint::Structural { triggers, tags } => {
            lark_grammar(lark::structural(triggers, tags, vocabulary, settings)?)
        }
    };
    let kind = match constraint {
        Constraint::JsonSchema(_) | Constraint::JsonObject => "json schema",
        Constraint::Regex(_) => "regex",
        Constraint::Lark(_) | Constraint::Written(_) => "lark",
        Constraint::Gbnf(_) => "grammar",
        Constraint::Choice(_) => "choice",
        Constraint::Structural { .. } => "structural tag",
    };
    build(grammar, vocabulary, bounds).map_err(|failed| failed.refused(kind))
}

/// Compiles a schema for a caller who rather has it enforced in part: what is not enforced is
/// left out and named. A schema past a limit, malformed as a whole, or that nothing satisfies
/// leaves any JSON object. Other constraints are compiled as ever.
pub fn lenient(
    constraint: &Constraint,
    vocabulary: &Arc<Vocabulary>,
    settings: &Settings,
) -> Result<(Grammar, Vec<String>), Refused> {
    let Constraint::JsonSchema(schema) = constraint else {
        return Ok((compile(constraint, vocabulary, settings)?, Vec::new()));
    };
    let mut dropped: BTreeSet<String> = BTreeSet::new();
    let refused = loop {
        let read = schema::read(schema, settings, Strictness::Lenient(&dropped));
        let tried = read.and_then(|read| {
            let grammar = of_schema(schema, read.plain, vocabulary, &settings.bounds)?;
            Ok((grammar, read.left_out))
        });
        match tried {
            Ok(done) => return Ok(done),
            Err(Refused::Keyword { keyword, .. }) if dropped.insert(keyword.clone()) => {}
            Err(refused) => break refused,
        }
    };
    let grammar = compile(&Constraint::JsonObject, vocabulary, settings)?;
    Ok((grammar, vec![format!("the schema as a whole: {refused}")]))
}

fn lark_grammar(text: String) -> TopLevelGrammar {
    TopLevelGrammar::from_lark(text)
}

fn of_schema(
    schema: &Value,
    plain: Value,
    vocabulary: &Arc<Vocabulary>,
    bounds: &Bounds,
) -> Result<Grammar, Refused> {
    let grammar = TopLevelGrammar::from_json_schema(plain);
    build(grammar, vocabulary, bounds).map_err(|failed| failed.of_schema(schema))
}

/// Why llguidance took no grammar.
enum Failed {
    Compiler(String),
    Empty,
    Limit(String),
}

/// The compiler's words, and the keyword they are about. Read, not matched whole: a message that
/// is not known is shown as it is.
const SAYS: &[(&str, &str, &str)] = &[
    ("oneOf constraints", "oneOf", "its schemas are not provably disjoint"),
    ("patternProperty regexes", "patternProperties", "its patterns are not provably disjoint"),
    ("min/maxProperties", "minProperties", "enforced only where all of `properties` are required"),
    ("circular references", "$ref", "a circle of references with other keywords beside them"),
    ("multipleOf", "multipleOf", "it cannot be enforced here"),
    ("regex is empty", "pattern", "the regular expression is too complex"),
    ("regex", "pattern", "the regular expression is not supported"),
    ("anchor", "pattern", "`^` and `$` are supported only at the ends of an expression"),
];

const LIMITS: &[&str] =
    &["too large", "too big", "fuel", "limit", "too complex", "stack level", "exceed"];

impl Failed {
    fn refused(self, kind: &'static str) -> Refused {
        match self {
            Failed::Compiler(why) if LIMITS.iter().any(|l| why.contains(l)) => {
                Refused::Complex { why: cut(&why) }
            }
            Failed::Compiler(why) => Refused::syntax(kind, why),
            Failed::Empty => Refused::syntax(kind, "no text of the vocabulary fits it"),
            Failed::Limit(why) => Refused::Complex { why },
        }
    }

    fn of_schema(self, schema: &Value) -> Refused {
        let why = match self {
            Failed::Compiler(why) => why,
            Failed::Empty => "Unsatisfiable schema".to_owned(),
            Failed::Limit(why) => return Refused::Complex { why },
        };
        if why.contains("nsatisfiable") {
            return Refused::Unsatisfiable {
                pointer: String::new(),
                keywords: constraining(schema),
                why: cut(why.trim_start_matches("Unsatisfiable schema: ")),
            };
        }
        if LIMITS.iter().any(|l| why.contains(l)) {
            return Refused::Complex { why: cut(&why) };
        }
        let known = SAYS.iter().find(|row| why.contains(row.0));
        let Some((_, keyword, says)) = known else {
            return Refused::syntax("json schema", why);
        };
        // `minProperties` and `maxProperties` share a message.
        let other = if *keyword == "minProperties" { "maxProperties" } else { keyword };
        let found = place(schema, keyword, "").map(|f| (*keyword, f));
        let found = found.or_else(|| place(schema, other, "").map(|f| (other, f)));
        let Some((keyword, (pointer, value))) = found else {
            return Refused::Complex { why: cut(&why) };
        };
        Refused::keyword(keyword, &pointer, value, *says)
    }
}

/// The keywords of a schema that can exclude values.
fn constraining(schema: &Value) -> String {
    let mut names = BTreeSet::new();
    let mut open = vec![schema];
    while let Some(value) = open.pop() {
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(map) => {
                let known = map.keys().filter_map(|k| schema::keywords::keyword(k));
                let known =
                    known.filter(|k| k.treatment != schema::keywords::Treatment::Annotation);
                names.extend(known.map(|k| k.name));
                open.extend(map.values());
            }
            _ => {}
        }
    }
    let dull = ["$defs", "$id", "$ref", "$schema", "definitions", "properties", "type"];
    names.retain(|name| !dull.contains(name));
    names.into_iter().collect::<Vec<_>>().join(", ")
}

/// The first place of a keyword.
fn place<'a>(value: &'a Value, keyword: &str, at: &str) -> Option<(String, &'a Value)> {
    match value {
        Value::Array(items) => {
            items.iter().enumerate().find_map(|(i, v)| place(v, keyword, &format!("{at}/{i}")))
        }
        Value::Object(map) => match map.get(keyword) {
            Some(found) => Some((at.to_owned(), found)),
            None => map.iter().find_map(|(k, v)| place(v, keyword, &format!("{at}/{k}"))),
        },
        _ => None,
    }
}

fn build(
    grammar: TopLevelGrammar,
    vocabulary: &Arc<Vocabulary>,
    bounds: &Bounds,
) -> Result<Grammar, Failed> {
    let limits = ParserLimits {
        max_items_in_row: bounds.row_items,
        initial_lexer_fuel: bounds.compile_fuel,
        step_lexer_fuel: bounds.mask_fuel,
        step_max_items: bounds.mask_items,
        max_lexer_states: bounds.states,
        max_grammar_size: bounds.symbols,
        precompute_large_lexemes: false,
        verbose_errors: false,
    };
    let factory = &vocabulary.factory;
    let parser = catch_unwind(AssertUnwindSafe(|| {
        let (init, logger) = (GrammarInit::Serialized(grammar), Logger::new(0, 0));
        let caps = InferenceCapabilities::default();
        let mut parser: TokenParser =
            factory.create_parser_from_init_ext(init, logger, caps, limits)?;
        parser.start_without_prompt();
        // An empty language is done before it begins.
        parser.check_stop()?;
        Ok(parser)
    }));
    let parser = parser.map_err(|e| Failed::Compiler(first_words(&format!("{e:#}"))))?;
    let mut first = Matcher::new(parser, vocabulary.clone());
    let mut mask = vec![0; vocabulary.words()];
    match first.mask(&mut mask) {
        Ok(()) => Ok(Grammar { first: Arc::new(Mutex::new(first)), mask: mask.into() }),
        Err(Dead::NothingFits) => Err(Failed::Empty),
        Err(Dead::Limit(why)) => Err(Failed::Limit(why)),
        Err(dead) => Err(Failed::Limit(dead.to_string())),
    }
}
