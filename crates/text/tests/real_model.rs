//! Checks against a real vocabulary, that of the GGUF file which `TOKENMILL_TEST_MODEL` names: `.ci/real-model`
//! runs them.
//!
//! Next to the file are `<file>.inp`, texts apart by a line `__ggml_vocab_test__`, and `<file>.out`, the
//! ids that another tokenizer gives each text, one line each (`.ci/tokenise.py`).

mod gguf_metadata;

use std::path::PathBuf;

use tokenmill_text::{Special, Tokenizer};

fn model() -> (PathBuf, Tokenizer) {
    let path =
        std::env::var_os("TOKENMILL_TEST_MODEL").expect("TOKENMILL_TEST_MODEL names a model");
    let path = PathBuf::from(path);
    let file = std::fs::read(&path).expect("the model is readable");
    let vocab = gguf_metadata::vocab(&gguf_metadata::metadata(&file));
    (path, Tokenizer::from_gguf(vocab).expect("the vocabulary is supported"))
}

#[test]
#[ignore = "wants a real model: .ci/real-model"]
fn encodes_the_texts_beside_the_model() {
    let (path, tokenizer) = model();
    let beside = |end: &str| {
        let mut name = path.clone().into_os_string();
        name.push(end);
        std::fs::read_to_string(name).expect("texts and ids beside the model")
    };
    let (texts, ids) = (beside(".inp"), beside(".out"));
    let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
    assert_eq!(texts.len(), ids.lines().count(), "a line for each text");
    assert!(texts.len() > 100, "{} texts", texts.len());
    let mut wrong = 0;
    for (text, line) in texts.into_iter().zip(ids.lines()) {
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
#[ignore = "wants a real model: .ci/real-model"]
fn decodes_what_it_encodes() {
    let (_, tokenizer) = model();
    for text in ["Hello, world!", " a  b\n\nc\t", "naïve 日本語 🙂 👩‍👩‍👧 1234", "<|im_end|>"]
    {
        let ids = tokenizer.encode(text, Special::Plain).expect("encodes");
        assert_eq!(tokenizer.decode(&ids), text);
    }
}
