//! Answers drawn from the masks of a grammar alone.
#![allow(dead_code)] // each test file uses its part

use std::sync::Arc;

use serde_json::Value;
use tokenmill_grammar::{
    Constraint, Grammar, Matcher, Refused, Settings, Vocabulary, Whitespace, compile,
};
use tokenmill_output::{Ask, Calls, Format, Tool};

const END: u32 = 256;
/// Tokens after which an answer is led to its end, and given up.
const LONG: usize = 150;
const LONGEST: usize = 4000;

/// Rows with a grammar.
pub const HELD: &[&str] = &[
    "hermes",
    "qwen3-coder",
    "llama3",
    "llama4",
    "mistral",
    "mistral-v11",
    "deepseek-v3",
    "deepseek-r1",
    "deepseek-v31",
    "glm45",
    "kimi-k2",
    "minimax-m2",
    "harmony",
    "gemma",
    "granite",
    "phi4",
    "command",
    "lfm2",
    "nemotron",
];

/// A seeded series of draws (xorshift).
pub struct Draws(pub u64);

impl Draws {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % limit.max(1)
    }
}

/// Bytes, an end, and the row's marks as special tokens, or not.
pub struct Tokens {
    pub vocabulary: Arc<Vocabulary>,
    specials: Vec<&'static str>,
}

impl Tokens {
    pub fn new(format: &Format, are_special: bool) -> Self {
        let mut specials = format.markers();
        // What is written in letters is no special token.
        specials.retain(|mark| are_special && mark.ends_with(['>', ']']) && !mark.contains('/'));
        specials.retain(|mark| mark.contains('|') || mark.contains('｜') || mark.starts_with('['));
        let bytes = (0..=255u8).map(|b| vec![b]).chain([b"<|no|>".to_vec()]);
        let tokens: Vec<Vec<u8>> =
            bytes.chain(specials.iter().map(|mark| mark.as_bytes().to_vec())).collect();
        let ids: Vec<u32> = (END..tokens.len() as u32).collect();
        let vocabulary = Arc::new(Vocabulary::new(tokens, &ids, &[END]).unwrap());
        Self { vocabulary, specials }
    }

    pub fn id(&self, text: &str) -> Option<u32> {
        let at = self.specials.iter().position(|mark| *mark == text)?;
        Some(END + 1 + at as u32)
    }

    /// A text in tokens.
    pub fn ids(&self, text: &str) -> Vec<u32> {
        let (mut ids, mut rest) = (Vec::new(), text);
        while let Some(c) = rest.chars().next() {
            let mark = self.specials.iter().find(|mark| rest.starts_with(**mark));
            match mark.and_then(|mark| Some((self.id(mark)?, mark.len()))) {
                Some((id, length)) => {
                    ids.push(id);
                    rest = &rest[length..];
                }
                None => {
                    ids.extend(rest[..c.len_utf8()].bytes().map(u32::from));
                    rest = &rest[c.len_utf8()..];
                }
            }
        }
        ids
    }

    fn bytes(&self, ids: &[u32]) -> Vec<u8> {
        let of = |id: &u32| match id.checked_sub(END + 1) {
            Some(at) => self.specials[at as usize].as_bytes().to_vec(),
            None => vec![*id as u8],
        };
        ids.iter().flat_map(of).collect()
    }
}

pub fn grammar_of(
    tools: &[Tool],
    format: &Format,
    tokens: &Tokens,
    (calls, parallel, begun): (Calls, bool, bool),
) -> Result<Grammar, Refused> {
    let special = |text: &str| tokens.id(text);
    let (reasons, special) = (true, &special);
    let ask = Ask { tools, calls, parallel, reasons, reasoning_begun: begun, special };
    let constraint = format.hold(&ask).unwrap_or_else(|| panic!("{}: no grammar", format.name));
    compiled(&constraint, tokens)
}

/// With the separators of templates.
pub fn compiled(constraint: &Constraint, tokens: &Tokens) -> Result<Grammar, Refused> {
    let whitespace = Whitespace::Separators { item: ", ".to_owned(), key: ": ".to_owned() };
    let settings = Settings { whitespace, ..Settings::default() };
    compile(constraint, &tokens.vocabulary, &settings)
}

/// Takes all of the tokens, or none.
pub fn takes(matcher: &mut Matcher, ids: &[u32]) -> bool {
    let mut ahead = matcher.clone();
    let all = ids.iter().all(|id| ahead.accept(*id).is_ok());
    if all {
        *matcher = ahead;
    }
    all
}

/// An answer from masks alone, now and then led through a mark; `None` where it finds no end.
pub fn draw(
    grammar: &Grammar,
    tokens: &Tokens,
    leads: &[String],
    draws: &mut Draws,
) -> Option<String> {
    let mut matcher = grammar.start();
    let mut ids: Vec<u32> = Vec::new();
    let mut bits = vec![0u32; tokens.vocabulary.words()];
    while ids.len() < LONGEST {
        let is_long = ids.len() > LONG;
        if matcher.may_end() && (is_long || draws.below(12) == 0) || matcher.is_done() {
            return String::from_utf8(tokens.bytes(&ids)).ok();
        }
        let lead = &leads[draws.below(leads.len())];
        let lead = tokens.ids(lead);
        if draws.below(if is_long { 1 } else { 4 }) == 0 && takes(&mut matcher, &lead) {
            ids.extend(lead);
            continue;
        }
        matcher.mask(&mut bits).unwrap();
        let is_set = |id: &u32| bits[*id as usize / 32] >> (id % 32) & 1 == 1 && *id != END;
        let mut allowed: Vec<u32> = (0..tokens.vocabulary.len() as u32).filter(is_set).collect();
        let letters: Vec<u32> =
            allowed.iter().copied().filter(|id| (0x20..0x7f).contains(id)).collect();
        if !letters.is_empty() && draws.below(8) > 0 {
            allowed = letters;
        }
        let id = allowed[draws.below(allowed.len())];
        matcher.accept(id).unwrap();
        ids.push(id);
    }
    None
}

pub fn leads(format: &Format) -> Vec<String> {
    let mut leads: Vec<String> = format.markers().iter().map(|mark| (*mark).to_owned()).collect();
    let lined: Vec<String> = leads.iter().map(|mark| format!("\n{mark}")).collect();
    leads.extend(lined);
    let others = ["\"", "}", "]", "\"}", "\"]", "{", "functools[", "Here is my response:", "\n"];
    leads.extend(others.map(str::to_owned));
    leads.extend(["<tool_call>{", "<tool_call>get_time", "get_time"].map(str::to_owned));
    leads
}

pub fn is_valid(tools: &[Tool], name: &str, arguments: &str) -> bool {
    let tool = tools.iter().find(|tool| tool.name == name);
    let value: Option<Value> = serde_json::from_str(arguments).ok();
    match (tool, value) {
        (Some(tool), Some(value)) => jsonschema::is_valid(&tool.parameters, &value),
        _ => false,
    }
}
