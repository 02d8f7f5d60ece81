//! Checks against a real vocabulary: opt in by naming a GGUF file in `TOKENMILL_TEST_MODEL`.
//!
//! Next to the file there may be `<file>.inp`, texts apart by a line `__ggml_vocab_test__`, and
//! `<file>.out`, the ids expected for each text, one line each.

mod gguf_metadata;

use std::path::PathBuf;

use tokenmill_text::{Special, Tokenizer};

fn model() -> Option<(PathBuf, Tokenizer)> {
    let Some(path) = std::env::var_os("TOKENMILL_TEST_MODEL").map(PathBuf::from) else {
        println!("skipped: TOKENMILL_TEST_MODEL names no model");
        return None;
    };
    let file = std::fs::read(&path).expect("the model is readable");
    let vocab = gguf_metadata::vocab(&gguf_metadata::metadata(&file));
    Some((path, Tokenizer::from_gguf(vocab).expect("the vocabulary is supported")))
}

#[test]
fn encodes_the_texts_beside_the_model() {
    let Some((path, tokenizer)) = model() else { return };
    let beside = |end: &str| {
        let mut name = path.clone().into_os_string();
        name.push(end);
        std::fs::read_to_string(name).ok()
    };
    let (Some(texts), Some(ids)) = (beside(".inp"), beside(".out")) else {
        println!("skipped: no texts beside the model");
        return;
    };
    let mut wrong = 0;
    for (text, line) in texts.split("\n__ggml_vocab_test__\n").zip(ids.lines()) {
        let expect: Vec<u32> = line.split_whitespace().map(|id| id.parse().expect("id")).collect();
        let found = tokenizer.encode(text, Special::Plain).expect("encodes");
        if found != expect {
            wrong += 1;
            println!("{text:?}\n expected {expect:?}\n found    {found:?}");
        }
    }
    assert_eq!(wrong, 0);
}

#[test]
fn decodes_what_it_encodes() {
    let Some((_, tokenizer)) = model() else { return };
    for text in ["Hello, world!", " a  b\n\nc\t", "naïve 日本語 🙂 👩‍👩‍👧 1234", "<|im_end|>"]
    {
        let ids = tokenizer.encode(text, Special::Plain).expect("encodes");
        assert_eq!(tokenizer.decode(&ids), text);
    }
}
