//! Inputs of megabytes, of the worst kinds: time stays near linear and nothing recurses.

use std::time::Instant;

use tokenmill_text::{GgufVocab, HfTokenizerConfig, Reach, Special, Tokenizer, TokenizerError};

/// The inputs of about `bytes` each: name, text.
fn inputs(bytes: usize) -> Vec<(&'static str, String)> {
    let repeated = |unit: &str| unit.repeat(bytes / unit.len());
    // A linear congruential generator: any fixed stream of code points will do.
    let mut state = 1u64;
    let random = std::iter::repeat_with(move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        // A vocabulary that spells spaces as U+2581 cannot tell the two apart.
        let code = (state >> 33) as u32 % 0x11_0000;
        char::from_u32(code).filter(|c| *c != '▁').unwrap_or('x')
    });
    vec![
        ("one character", repeated("a")),
        ("spaces", repeated(" ")),
        ("newlines", repeated("\n")),
        ("digits", repeated("7")),
        ("spaces, then a letter", repeated(" ") + "a"),
        ("single letters", repeated("a ")),
        ("one long word", repeated("lorem").chars().take(bytes / 4).collect()),
        ("random Unicode", random.take(bytes / 4).collect()),
        ("emoji joined", repeated("👩\u{200d}")),
        ("apostrophes", repeated("'")),
        ("control tokens", repeated("<|im_end|>")),
    ]
}

fn check(name: &str, tokenizer: &Tokenizer, bytes: usize) {
    for (input, text) in inputs(bytes) {
        let start = Instant::now();
        let ids = tokenizer.encode(&text, Special::Plain).expect("encodes");
        let seconds = start.elapsed().as_secs_f64();
        println!("{name}, {input}: {} tokens, {seconds:.2} s", ids.len());
        assert_eq!(tokenizer.decode(&ids), text, "{name}, {input}");
        within(name, input, tokenizer, &text, &ids);
        // Far above what linear code takes even unoptimised on a busy machine; quadratic code
        // would take hours.
        assert!(seconds < 300.0, "{name}, {input}: {seconds} s");
    }
}

/// A text is given up where it goes too far, and where nobody waits.
fn within(name: &str, input: &str, tokenizer: &Tokenizer, text: &str, ids: &[u32]) {
    let all = Reach { tokens: ids.len(), ..Reach::ALL };
    let found = tokenizer.within(all).encode(text, Special::Plain);
    assert_eq!(found.as_deref(), Ok(ids), "{name}, {input}");
    let most = ids.len() / 2;
    let half = Reach { tokens: most, ..Reach::ALL };
    match tokenizer.within(half).encode(text, Special::Plain) {
        Err(TokenizerError::TooManyTokens { at_least, most: told }) => {
            assert!(told == most && at_least > most && at_least <= ids.len(), "{name}, {input}");
        }
        other => panic!("{name}, {input}: {} tokens", other.map_or(0, |ids| ids.len())),
    }
    let asked = std::cell::Cell::new(0);
    let wanted = || asked.replace(asked.get() + 1) < 3;
    let gone = tokenizer.within(Reach { wanted: &wanted, ..Reach::ALL });
    assert_eq!(gone.encode(text, Special::Plain), Err(TokenizerError::Unwanted), "{name}, {input}");
    assert_eq!(asked.get(), 4, "{name}, {input}");
}

fn texts(value: &serde_json::Value) -> Vec<String> {
    serde_json::from_value(value.clone()).expect("texts")
}

#[test]
fn byte_level() {
    let fixture: serde_json::Value =
        serde_json::from_str(include_str!("fixtures/pretokenizers.json")).expect("JSON");
    for (kind, bytes) in [("smollm", 4 << 20), ("gpt-4o", 1 << 20), ("deepseek-v3", 1 << 20)] {
        let tokenizer = Tokenizer::from_gguf(GgufVocab {
            model: "gpt2".to_owned(),
            pre: Some(kind.to_owned()),
            tokens: texts(&fixture["tokens"]),
            merges: texts(&fixture["merges"]),
            ..GgufVocab::default()
        });
        check(kind, &tokenizer.expect("a known kind"), bytes);
    }
}

#[test]
fn sentencepiece() {
    let fixtures: serde_json::Value =
        serde_json::from_str(include_str!("fixtures/sentencepiece.json")).expect("JSON");
    let fixture = &fixtures[0];
    let tokenizer = Tokenizer::from_gguf(GgufVocab {
        model: "llama".to_owned(),
        tokens: texts(&fixture["tokens"]),
        scores: serde_json::from_value(fixture["scores"].clone()).expect("scores"),
        token_types: serde_json::from_value(fixture["types"].clone()).expect("types"),
        ..GgufVocab::default()
    });
    check("sentencepiece", &tokenizer.expect("a known kind"), 4 << 20);
}

#[test]
fn tokenizer_file() {
    let fixture: serde_json::Value =
        serde_json::from_str(include_str!("fixtures/tokenizer_files.json")).expect("JSON");
    for name in ["byte_level", "legacy"] {
        let file = serde_json::to_vec(&fixture["files"][name]["file"]).expect("JSON");
        let tokenizer = Tokenizer::from_json(&file, &HfTokenizerConfig::default());
        let tokenizer = tokenizer.expect("a usable file");
        for (input, text) in inputs(1 << 20) {
            let start = Instant::now();
            let ids = tokenizer.encode(&text, Special::Plain).expect("encodes");
            let seconds = start.elapsed().as_secs_f64();
            println!("{name}, {input}: {} tokens, {seconds:.2} s", ids.len());
            assert!(seconds < 300.0, "{name}, {input}: {seconds} s");
        }
    }
}
