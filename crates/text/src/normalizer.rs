//! What the normalizer and pre-tokenizer of a `tokenizer.json` may do to a text. The `tokenizers`
//! library has no bounds of its own: it takes all memory, or panics, on what is refused here.

use std::panic::{AssertUnwindSafe, catch_unwind};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value as Json;
use tokenizers::utils::SysRegex;

use crate::charsmap;
use crate::hf_json::bad;
use crate::shown::quoted;
use crate::tokenizer::TokenizerError;

/// How many times longer a text may become. Files in use reach 33.
const MOST_GROWTH: usize = 64;

/// Refuses files that make too much of a text, or that the library panics on.
pub(crate) fn check(file: &Json) -> Result<(), TokenizerError> {
    for (part, what) in [("normalizer", "normalizer"), ("pre_tokenizer", "pre-tokenizer")] {
        let Some(step) = file.get(part) else { continue };
        let mut growth = Growth { times: 1, untouched: true, written: String::new() };
        growth.of(step)?;
        if growth.times > MOST_GROWTH {
            return Err(bad(format!(
                "the {what} can make a text {} times as long, at most {MOST_GROWTH} times is \
                 allowed: shorten what its steps put in",
                growth.times
            )));
        }
    }
    Ok(())
}

/// How long a text can become in the steps so far.
struct Growth {
    times: usize,
    /// Nothing but `written` was put in.
    untouched: bool,
    /// What was put in for fixed texts.
    written: String,
}

impl Growth {
    /// Goes on with a step. The library tells steps by their members where they have no type.
    fn of(&mut self, step: &Json) -> Result<(), TokenizerError> {
        let inside = ["normalizers", "pretokenizers"].into_iter().filter_map(|key| step.get(key));
        for step in inside.filter_map(Json::as_array).flatten() {
            self.of(step)?;
        }
        let text = |key: &str| step.get(key).and_then(Json::as_str);
        if let (Some(pattern), Some(content)) = (step.get("pattern"), text("content")) {
            self.replacing(pattern, content)?;
        }
        if let Some(prepended) = text("prepend") {
            // Once a text, not once a byte: the mark of a space is nothing.
            self.by(prepended.len() / 3);
        }
        if let Some(map) = text("precompiled_charsmap") {
            // The library's decoder takes more than this one: that would pass the check by.
            let fault =
                |reason: String| bad(format!("the normalizer's precompiled_charsmap: {reason}"));
            let map = BASE64_STANDARD.decode(map).map_err(|error| fault(error.to_string()))?;
            let longest = charsmap::longest(&map).map_err(fault)?;
            // The longest that NFKC has: 33 bytes for a character of 3.
            self.by(longest / 3);
        }
        match text("type") {
            // A byte becomes a letter of two, a Chinese character gets spaces around it.
            Some("ByteLevel" | "BertNormalizer") => self.by(2),
            Some("Metaspace") => self.by(3),
            Some("FixedLength") | None if step.get("length").is_some_and(|n| *n == 0) => {
                return Err(bad("the pre-tokenizer cuts a text into words of length 0"));
            }
            _ => {}
        }
        Ok(())
    }

    fn by(&mut self, times: usize) {
        if times > 1 {
            self.times = self.times.saturating_mul(times);
            self.untouched = false;
        }
    }

    fn replacing(&mut self, pattern: &Json, content: &str) -> Result<(), TokenizerError> {
        let (shown, found) = match (pattern.get("String"), pattern.get("Regex")) {
            (Some(Json::String(text)), _) => (text, !text.is_empty()),
            (_, Some(Json::String(regex))) => (regex, !finds_nothing(regex)),
            _ => return Ok(()),
        };
        if !found {
            return Err(bad(format!(
                "the normalizer replaces {}, a pattern that matches nothing: the tokenizer \
                 library has no place for what it puts there",
                quoted(shown)
            )));
        }
        let Some(Json::String(text)) = pattern.get("String") else {
            self.by(content.len());
            return Ok(());
        };
        let times = content.len().div_ceil(text.len());
        // What earlier steps wrote is out of this one's reach if they share no character.
        if self.untouched && !text.contains(|c| self.written.contains(c)) {
            self.times = self.times.max(times);
        } else {
            self.times = self.times.saturating_mul(times.max(1));
        }
        self.written.push_str(content);
        Ok(())
    }
}

/// Whether a pattern finds an empty place in a text. What does not compile, the library refuses.
fn finds_nothing(regex: &str) -> bool {
    let ascii: String = (' '..='~').flat_map(|c| [c, c]).collect();
    let texts = ["", "ba", "a 1\u{e9}\n\u{65e5}  b\t\r\n", &ascii];
    let search = || {
        let regex = SysRegex::new(regex).ok()?;
        texts.iter().find_map(|text| regex.find_iter(text).find(|(start, end)| start == end))
    };
    catch_unwind(AssertUnwindSafe(search)).is_ok_and(|found| found.is_some())
}
