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
    let model = prop::sample::select(vec!["gpt2", "llama", "gemma4", "bert", "t5", "other", ""]);
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

/// A file of the library's code with this normalizer.
fn with_normalizer(normalizer: Json) -> Result<Tokenizer, String> {
    with(json!({ "normalizer": normalizer }))
}

/// A file of the library's code with these parts beside its model.
fn with(mut file: Json) -> Result<Tokenizer, String> {
    let pieces = json!([["<unk>", 0.0], ["a", -1.0], ["b", -2.0], ["\u{2581}", -3.0]]);
    file["model"] = json!({ "type": "Unigram", "unk_id": 0, "vocab": pieces });
    let bytes = serde_json::to_vec(&file).expect("JSON");
    Tokenizer::from_json(&bytes, &HfTokenizerConfig::default()).map_err(|error| error.to_string())
}

fn refused(normalizer: Json) -> String {
    let shown = normalizer.to_string();
    with_normalizer(normalizer).err().unwrap_or_else(|| panic!("{shown:.300} is taken"))
}

fn replace(kind: &str, pattern: &str, content: &str) -> Json {
    json!({ "type": "Replace", "pattern": { (kind): pattern }, "content": content })
}

fn sequence(steps: Vec<Json>) -> Json {
    json!({ "type": "Sequence", "normalizers": steps })
}

/// The library's limit is the memory there is.
#[test]
fn a_normalizer_may_not_blow_up_a_text() {
    let hundred = "a".repeat(100);
    for (normalizer, times) in [
        (sequence(vec![replace("String", "a", &hundred); 5]), "10000000000"),
        (sequence(vec![replace("Regex", ".", "ab"); 20]), "1048576"),
        (sequence(vec![sequence(vec![replace("Regex", "a", "aaa"); 2]); 2]), "81"),
        (json!({ "type": "Prepend", "prepend": "x".repeat(195) }), "65"),
        (sequence(vec![json!({ "type": "ByteLevel" }); 7]), "128"),
    ] {
        let error = refused(normalizer);
        let told = format!("the normalizer can make a text {times} times as long, at most 64");
        assert!(error.contains(&told), "{error}");
    }
    let steps = [("``", "\""), ("\u{bd}", " 1/2"), ("\u{2026}", "..."), ("\u{bc}", " 1/4")];
    let mut steps: Vec<Json> = steps.map(|(old, new)| replace("String", old, new)).into();
    steps.extend(('A'..='J').map(|c| replace("String", &format!("<{c}"), "four")));
    steps.extend([
        json!({ "type": "Prepend", "prepend": "\u{2581}" }),
        replace("String", " ", "\u{2581}"),
        replace("Regex", " {2,}", "\u{2581}"),
    ]);
    with_normalizer(sequence(steps)).expect("what real files have");
}

#[test]
fn a_normalizer_may_not_replace_nothing() {
    for pattern in ["a*", "(a)?", "^", "$", "\\b", "|", "", "(?<!a)(?<!b)", "\\G", "(?=q)"] {
        let error = refused(sequence(vec![replace("Regex", pattern, "b")]));
        let told = format!("replaces {pattern:?}, a pattern that matches nothing");
        assert!(error.contains(&told), "{error}");
    }
    let error = refused(replace("String", "", "b"));
    assert!(error.contains("replaces \"\", a pattern that matches nothing"), "{error}");
    with_normalizer(replace("Regex", "\\A | \\z", "")).expect("a pattern that takes a space");
}

fn t5(scores: Vec<f32>, charsmap: &[u8]) -> Result<Tokenizer, String> {
    let vocab = GgufVocab {
        model: "t5".to_owned(),
        tokens: ["<unk>", "a", "b"].map(str::to_owned).into(),
        scores,
        token_types: vec![2, 1, 1],
        charsmap: charsmap.to_vec(),
        ..GgufVocab::default()
    };
    Tokenizer::from_gguf(vocab).map_err(|error| error.to_string())
}

/// The library allocates what the first word says: 8 GB for the largest.
#[test]
fn a_compiled_map_is_as_long_as_it_says() {
    let fault = "its first word says that 4294967295 bytes follow, but 60 do";
    let error = t5(vec![0.0; 3], &[255; 64]).expect_err("refused");
    assert!(error.starts_with("tokenizer.ggml.precompiled_charsmap: "), "{error}");
    assert!(error.contains(fault), "{error}");
    let error = t5(vec![0.0; 3], &[0; 3]).expect_err("refused");
    assert!(error.contains("3 bytes, too few"), "{error}");
    // Without padding, which the library takes.
    refused(json!({ "type": "Precompiled", "precompiled_charsmap": "/".repeat(86) }));
    // 64 bytes of 255 in base64.
    let map = format!("{}w==", "/".repeat(85));
    let error = refused(json!({ "type": "Precompiled", "precompiled_charsmap": map }));
    assert!(error.contains(fault) && error.contains("tokenizer.json: the normalizer's"), "{error}");
}

/// The library divides by it, and by what an empty trie has.
#[test]
fn what_the_library_panics_on_is_refused_before() {
    let none = json!({ "type": "FixedLength", "length": 0 });
    let nested = json!({ "type": "Sequence", "pretokenizers": [none.clone()] });
    for pre_tokenizer in [none, nested, json!({ "length": 0 })] {
        let error = with(json!({ "pre_tokenizer": pre_tokenizer })).expect_err("refused");
        assert!(error.contains("words of length 0"), "{error}");
    }
    with(json!({ "pre_tokenizer": { "type": "FixedLength", "length": 1 } })).expect("a tokenizer");
    let error = refused(json!({ "type": "Precompiled", "precompiled_charsmap": "AAAAAA==" }));
    assert!(error.contains("precompiled_charsmap: its trie is empty"), "{error}");
}

#[test]
fn a_post_processor_has_an_end() {
    let text = json!({ "Sequence": { "id": "A", "type_id": 0 } });
    let token = json!({ "SpecialToken": { "id": "a", "type_id": 0 } });
    let processor = |tokens: usize| {
        let mut single = vec![token.clone(); tokens];
        single.push(text.clone());
        json!({ "post_processor": { "type": "TemplateProcessing", "single": single,
            "pair": [text, text],
            "special_tokens": { "a": { "id": "a", "ids": [1], "tokens": ["a"] } } } })
    };
    let tokenizer = with(processor(3)).expect("a tokenizer");
    assert_eq!(tokenizer.encode_prompt("b", Special::Plain).expect("encodes"), [1, 1, 1, 2]);
    let error = with(processor(100_000)).expect_err("refused");
    assert!(error.contains("the post-processor consists of"), "{error}");
    assert!(error.contains("at most 16384 are allowed"), "{error}");
}

#[test]
fn scores_are_numbers() {
    for score in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let error = t5(vec![0.0, -1.0, score], &[]).expect_err("refused");
        let told = format!("tokenizer.ggml.scores: the score of token 2 is {score}");
        assert!(error.starts_with(&told), "{error}");
    }
    t5(vec![0.0, -1.0, -2.0], &[]).expect("a tokenizer");
}
