//! Vocabularies and files nobody meant well with: an error, or a tokenizer that works; no panic.

use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::{Value as Json, json};
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

static FILES: LazyLock<Vec<Json>> = LazyLock::new(|| {
    let fixture: Json =
        serde_json::from_str(include_str!("fixtures/tokenizer_files.json")).expect("JSON");
    let files = fixture["files"].as_object().expect("files");
    files.values().map(|case| case["file"].clone()).collect()
});

/// Paths of everything but the vocabulary's entries.
fn paths(value: &Json, path: &str, out: &mut Vec<String>) {
    let children: Vec<(String, &Json)> = match value {
        Json::Object(map) if map.len() < 50 => map.iter().map(|(k, v)| (k.clone(), v)).collect(),
        Json::Array(list) if list.len() < 50 => {
            list.iter().enumerate().map(|(i, v)| (i.to_string(), v)).collect()
        }
        _ => Vec::new(),
    };
    for (key, child) in children {
        let path = format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"));
        paths(child, &path, out);
        out.push(path);
    }
}

fn replacement() -> impl Strategy<Value = Json> {
    prop::sample::select(vec![
        json!(null),
        json!(true),
        json!(false),
        json!(0),
        json!(1),
        json!(-1),
        json!(4_000_000),
        json!(1e300),
        json!(""),
        json!("a"),
        json!("▁"),
        json!("(?<=a)b|(a*)*c"),
        json!("["),
        json!([]),
        json!({}),
        json!([["a", 0]]),
        json!({"a": 0}),
        json!({"type": "ByteLevel"}),
        json!({"type": "Strip", "content": "a", "start": 9, "stop": 9}),
        json!({"type": "FixedLength", "length": 0}),
        json!({"type": "Split", "pattern": {"Regex": "a?+"}, "behavior": "Isolated", "invert": true}),
        json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        json!({"type": "Prepend", "prepend": ""}),
        json!({"type": "Metaspace", "replacement": "a", "prepend_scheme": "first", "split": true}),
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn metadata(vocab in vocab()) {
        if let Ok(tokenizer) = Tokenizer::from_gguf(vocab) {
            exercise(&tokenizer);
        }
    }

    #[test]
    fn files(
        file in 0usize..5,
        edits in prop::collection::vec((any::<prop::sample::Index>(), replacement()), 1..4),
    ) {
        let mut file = FILES[file].clone();
        let mut all = Vec::new();
        paths(&file, "", &mut all);
        for (at, value) in edits {
            if let Some(place) = file.pointer_mut(at.get::<String>(&all)) {
                *place = value;
            }
        }
        let bytes = serde_json::to_vec(&file).expect("JSON");
        if let Ok(tokenizer) = Tokenizer::from_json(&bytes, &HfTokenizerConfig::default()) {
            exercise(&tokenizer);
        }
    }
}
