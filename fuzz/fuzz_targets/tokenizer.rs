//! The tokenizer.json reader on any bytes, and a text through what it made. Seeds:
//! tests/cases/*/tokenizer*.json.
#![no_main]

use tokenmill_text::{HfTokenizerConfig, Special, Tokenizer};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let config = HfTokenizerConfig::from_json(&serde_json::Value::Null);
    let Ok(tokenizer) = Tokenizer::from_json(bytes, &config) else { return };
    let text = "Hello, wörld! 12 <s>\n\n x";
    for special in [Special::Plain, Special::Parse] {
        let Ok(ids) = tokenizer.encode(text, special) else { continue };
        let _ = tokenizer.decode(&ids);
    }
    let _ = tokenmill_text::lint(&tokenizer, Err(&tokenmill_text::TemplateError::Missing));
});
