//! Vocabularies and files nobody meant well with: an error, or a tokenizer that works; no panic.

use std::sync::LazyLock;

use proptest::prelude::*;
use tokenmill_text::{GgufVocab, HfTokenizerConfig, Special, Tokenizer};

const TEXT: &str = "Hello wörld 12\n\n日本 <s>🙂\u{301}\u{FDD0} </s>";

/// Uses a tokenizer in every way; ids it gives must be its own.
fn exercise(tokenizer: &Tokenizer) {
    for special in [Special::Plain, Special::Parse] {
        let Ok(ids) = tokenizer.encode_prompt(TEXT, special) else { continue };
        tokenizer.decode(&ids);
        for id in ids {
            tokenizer.token_bytes(id);
            tokenizer.is_special(id);
        }
    }
    tokenizer.decode(&[0, 1, u32::MAX]);
    tokenizer.template_tokens();
    tokenizer.id_of("<s>");
}

fn token() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-c▁ĠÄ<>]{0,3}",
        prop::sample::select(vec!["<0x41>", "<0x4g>", "<s>", "##a", "[UNK]", "a b", "\n", "▁"])
            .prop_map(str::to_owned),
    ]
}

fn vocab() -> impl Strategy<Value = GgufVocab> {
    let id = || prop::option::of(0u32..12);
    let model = prop::sample::select(vec!["gpt2", "llama", "gemma4", "bert", "other", ""]);
    let pre = prop::option::of(prop::sample::select(vec!["default", "llama3", "gemma4", "x"]));
    let lists = (
        prop::collection::vec(token(), 0..12),
        prop::collection::vec(prop_oneof![any::<f32>(), Just(f32::NAN), -9f32..0.0], 0..12),
        prop::collection::vec(-1i32..9, 0..12),
        prop::collection::vec("[a-c▁ĠÄ]{0,2} [a-c▁]{0,2}", 0..8),
    );
    (model, pre, lists, (id(), id(), id(), id()), any::<bool>()).prop_map(
        |(model, pre, (tokens, mut scores, mut token_types, merges), ids, same_length)| {
            if same_length {
                scores.resize(tokens.len(), -1.0);
                token_types.resize(tokens.len(), 1);
            }
            GgufVocab {
                model: model.to_owned(),
                pre: pre.map(str::to_owned),
                tokens,
                scores,
                token_types,
                merges,
                bos: ids.0,
                eos: ids.1,
                unk: ids.2,
                sep: ids.3,
                add_eos: Some(same_length),
                ..GgufVocab::default()
            }
        },
    )
}

static FILES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let fixture: serde_json::Value =
        serde_json::from_str(include_str!("fixtures/tokenizer_files.json")).expect("JSON");
    let files = fixture["files"].as_object().expect("files");
    files.values().map(|case| serde_json::to_vec(&case["file"]).expect("JSON")).collect()
});

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn metadata(vocab in vocab()) {
        if let Ok(tokenizer) = Tokenizer::from_gguf(vocab) {
            exercise(&tokenizer);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Files with a few bytes changed, mostly in the head, where the settings are.
    #[test]
    fn files(
        file in 0usize..5,
        edits in prop::collection::vec((0usize..2400, prop::sample::select(b"0179-\"{}[],:ae ".to_vec())), 1..4),
    ) {
        let mut file = FILES[file].clone();
        for (at, byte) in edits {
            let at = at % file.len();
            file[at] = byte;
        }
        if let Ok(tokenizer) = Tokenizer::from_json(&file, &HfTokenizerConfig::default()) {
            exercise(&tokenizer);
        }
    }
}
