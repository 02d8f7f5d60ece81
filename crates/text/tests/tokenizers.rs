//! Token-equal with the original libraries, over texts recorded by `fixtures/generate.py`.

use serde_json::{Value as Json, json};
use tokenmill_text::{GgufVocab, HfTokenizerConfig, Special, Tokenizer, TokenizerError};

fn parse(fixture: &str) -> Json {
    serde_json::from_str(fixture).expect("the fixture is JSON")
}

fn take<T: serde::de::DeserializeOwned>(value: &Json) -> T {
    serde_json::from_value(value.clone()).expect("the fixture has the expected shape")
}

/// Compares every text and shows all that differ.
fn check(name: &str, texts: &[String], expected: &Json, found: impl Fn(&str) -> Vec<u32>) {
    let expected: Vec<Vec<u32>> = take(expected);
    assert_eq!(texts.len(), expected.len(), "{name}");
    let mut wrong = Vec::new();
    for (text, expect) in texts.iter().zip(&expected) {
        let found = found(text);
        if found != *expect {
            wrong.push(format!("{text:?}\n expected {expect:?}\n found    {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{name}: {} texts differ:\n{}", wrong.len(), wrong.join("\n"));
}

fn plain(tokenizer: &Tokenizer) -> impl Fn(&str) -> Vec<u32> {
    |text| tokenizer.encode(text, Special::Plain).expect("encodes")
}

#[test]
fn pre_tokenizers_cut_as_the_originals_do() {
    let fixture = parse(include_str!("fixtures/pretokenizers.json"));
    let texts: Vec<String> = take(&fixture["texts"]);
    for (kind, expected) in fixture["expected"].as_object().expect("kinds") {
        let tokenizer = Tokenizer::from_gguf(GgufVocab {
            model: "gpt2".to_owned(),
            pre: Some(kind.clone()),
            tokens: take(&fixture["tokens"]),
            merges: take(&fixture["merges"]),
            ..GgufVocab::default()
        });
        let tokenizer = tokenizer.expect("a known kind");
        check(kind, &texts, expected, plain(&tokenizer));
        for text in &texts {
            let ids = tokenizer.encode(text, Special::Plain).expect("encodes");
            if !matches!(kind.as_str(), "qwen2" | "command-r") {
                assert_eq!(tokenizer.decode(&ids), *text, "{kind}");
            }
        }
    }
}

fn smollm2(fixture: &Json) -> Tokenizer {
    let tokens: Vec<String> = take(&fixture["tokens"]);
    let control: usize = take(&fixture["control"]);
    let vocab = GgufVocab {
        model: "gpt2".to_owned(),
        pre: Some("smollm".to_owned()),
        token_types: (0..tokens.len()).map(|id| if id < control { 3 } else { 1 }).collect(),
        tokens,
        merges: take(&fixture["merges"]),
        bos: Some(1),
        eos: Some(2),
        add_bos: Some(false),
        ..GgufVocab::default()
    };
    Tokenizer::from_gguf(vocab).expect("a known kind")
}

#[test]
fn smollm2_encodes_as_the_original() {
    let fixture = parse(include_str!("fixtures/smollm2.json"));
    let texts: Vec<String> = take(&fixture["texts"]);
    let tokenizer = smollm2(&fixture);
    let expected = &fixture["expected"];
    check("plain", &texts, &expected["plain"], plain(&tokenizer));
    check("parse", &texts, &expected["parse"], |text| {
        tokenizer.encode(text, Special::Parse).expect("encodes")
    });
    assert_eq!(tokenizer.eos_ids(), [0, 2], "<|endoftext|> and <|im_end|>");
    assert_eq!(tokenizer.id_of("<|im_start|>"), Some(1));
    assert!(tokenizer.is_special(2) && !tokenizer.is_special(40));
}

#[test]
fn sentencepiece_vocabularies_encode_as_the_original() {
    let fixtures = parse(include_str!("fixtures/sentencepiece.json"));
    for fixture in fixtures.as_array().expect("vocabularies") {
        let texts: Vec<String> = take(&fixture["texts"]);
        let tokenizer = Tokenizer::from_gguf(GgufVocab {
            model: "llama".to_owned(),
            tokens: take(&fixture["tokens"]),
            scores: take(&fixture["scores"]),
            token_types: take(&fixture["types"]),
            unk: Some(0),
            bos: Some(1),
            eos: Some(2),
            add_space_prefix: fixture["add_space_prefix"].as_bool(),
            ..GgufVocab::default()
        });
        let tokenizer = tokenizer.expect("a known kind");
        check("sentencepiece", &texts, &fixture["expected"], plain(&tokenizer));
        let decoded: Vec<String> = take(&fixture["decoded"]);
        for (text, decoded) in texts.iter().zip(decoded) {
            let ids = tokenizer.encode(text, Special::Plain).expect("encodes");
            assert_eq!(tokenizer.decode(&ids), decoded);
        }
        let framed = tokenizer.encode_prompt("Hello", Special::Plain).expect("encodes");
        assert_eq!(framed.first(), Some(&1), "such models want a BOS");
    }
}

#[test]
fn unigram_vocabularies_encode_as_the_original() {
    let fixture = parse(include_str!("fixtures/unigram.json"));
    let texts: Vec<String> = take(&fixture["texts"]);
    let vocab = GgufVocab {
        model: "t5".to_owned(),
        tokens: take(&fixture["tokens"]),
        scores: take(&fixture["scores"]),
        token_types: take(&fixture["types"]),
        charsmap: take(&fixture["charsmap"]),
        unk: Some(0),
        bos: Some(1),
        eos: Some(2),
        add_bos: Some(true),
        ..GgufVocab::default()
    };
    let tokenizer = Tokenizer::from_gguf(vocab).expect("a known kind");
    check("unigram", &texts, &fixture["expected"], plain(&tokenizer));
    let framed = tokenizer.encode_prompt("fox", Special::Plain).expect("encodes");
    let bare = tokenizer.encode("fox", Special::Plain).expect("encodes");
    assert_eq!(framed, [&[1], bare.as_slice(), &[2]].concat());
    let (pair, second) = tokenizer.encode_pair("fox", "fox").expect("encodes");
    assert_eq!(second, None);
    assert_eq!(pair, [&[1], bare.as_slice(), &[2, 2], bare.as_slice(), &[2]].concat());
}

#[test]
fn ranked_byte_strings_encode_as_the_original() {
    let fixture = parse(include_str!("fixtures/ranked.json"));
    let texts: Vec<String> = take(&fixture["texts"]);
    let file = serde_json::to_vec(&fixture["tekken"]).expect("JSON");
    let tekken = Tokenizer::from_tekken(&file).expect("a usable file");
    check("tekken", &texts, &fixture["tekken_expected"], plain(&tekken));
    let framed = tekken.encode_prompt("[INST]Hi[/INST]", Special::Parse).expect("encodes");
    assert_eq!((&framed[..2], framed.last()), (&[1, 3][..], Some(&4)));
    assert_eq!((tekken.eos_ids(), tekken.vocab_size()), (&[2][..], 900));
    assert_eq!(tekken.id_of("<SPECIAL_29>"), Some(29));

    let config = json!({
        "tokenizer_class": "TikTokenTokenizer",
        "bos_token": "[BOS]",
        "eos_token": {"content": "[EOS]"},
        "added_tokens_decoder": {
            "900": {"content": "[BOS]"}, "901": {"content": "[EOS]"},
            "902": {"content": "<|im_end|>"},
        },
    });
    let file = fixture["tiktoken"].as_str().expect("text").as_bytes();
    let kimi = Tokenizer::from_tiktoken(file, &config).expect("a usable file");
    check("tiktoken", &texts, &fixture["tiktoken_expected"], plain(&kimi));
    assert_eq!((kimi.bos_id(), kimi.eos_ids()), (Some(900), &[901, 902][..]));
    assert_eq!(kimi.id_of("<|reserved_token_1155|>"), Some(1155));
    for tokenizer in [&tekken, &kimi] {
        for text in &texts {
            let ids = tokenizer.encode(text, Special::Plain).expect("encodes");
            assert_eq!(tokenizer.decode(&ids), *text);
        }
    }
}

#[test]
fn crafted_ranked_files_are_errors() {
    let config = json!({"tokenizer_class": "TikTokenTokenizer"});
    let long = format!("{} 0\n", "AAAA".repeat(400));
    for file in ["", "AA==", "AA== 1\n", "A 0\n", "AA== 0\nAQ== 0\n", " 0\n", long.as_str()] {
        let error = Tokenizer::from_tiktoken(file.as_bytes(), &config);
        assert!(matches!(error, Err(TokenizerError::File { .. })), "{file:?}: {error:?}");
    }
    let error = Tokenizer::from_tiktoken(b"AA== 0\n", &json!({"tokenizer_class": "Other"}));
    assert!(error.is_err_and(|e| e.to_string().contains("Other")));
    let part = |size: u64, first: u64, pattern: &str, token: &str| {
        json!({
            "config": {
                "pattern": pattern, "default_vocab_size": size, "default_num_special_tokens": first,
            },
            "vocab": [{"rank": 0, "token_bytes": token}],
        })
    };
    let cases = [
        json!({}),
        part(9, 10, r"\s+", "AA=="),
        part(u64::MAX, 0, r"\s+", "AA=="),
        part(9, 2, r"(?<=a)b", "AA=="),
        part(9, 2, r"\s+", "?"),
        part(2, 2, r"\s+", "AA=="),
    ];
    for file in cases {
        let error = Tokenizer::from_tekken(&serde_json::to_vec(&file).expect("JSON"));
        assert!(matches!(error, Err(TokenizerError::File { .. })), "{file}: {error:?}");
    }
}

#[test]
fn tokenizer_files_encode_as_the_original() {
    let fixture = parse(include_str!("fixtures/tokenizer_files.json"));
    let texts: Vec<String> = take(&fixture["texts"]);
    for (name, case) in fixture["files"].as_object().expect("files") {
        let file = serde_json::to_vec(&case["file"]).expect("JSON");
        let config = HfTokenizerConfig::default();
        let tokenizer = Tokenizer::from_json(&file, &config).expect("a usable file");
        check(&format!("{name}, plain"), &texts, &case["plain"], plain(&tokenizer));
        let parsed = |text: &str| tokenizer.encode(text, Special::Parse).expect("encodes");
        check(&format!("{name}, parse"), &texts, &case["parse"], parsed);
        let framed: Vec<Vec<u32>> = take(&case["framed"]);
        let decoded: Vec<String> = take(&case["decoded"]);
        for ((text, framed), decoded) in texts.iter().zip(framed).zip(decoded) {
            // The original doubles what the text already has.
            if !text.starts_with("<s>") && !text.ends_with("</s>") && !text.starts_with("[CLS]") {
                let prompt = tokenizer.encode_prompt(text, Special::Parse).expect("encodes");
                assert_eq!(prompt, framed, "{name} {text:?}");
            }
            assert_eq!(tokenizer.decode(&parsed(text)), decoded, "{name} {text:?}");
        }
    }
}

/// The byte-level file with a post-processor that puts these around a text, or with none.
fn framed_file(single: Option<&[&str]>) -> Vec<u8> {
    let fixture = parse(include_str!("fixtures/tokenizer_files.json"));
    let mut file = fixture["files"]["byte_level"]["file"].clone();
    let step = |name: &&str| match *name {
        "A" => json!({"Sequence": {"id": "A", "type_id": 0}}),
        token => json!({"SpecialToken": {"id": token, "type_id": 0}}),
    };
    let token = |text: &str, id: u32| json!({"id": text, "ids": [id], "tokens": [text]});
    file["post_processor"] = single.map_or(Json::Null, |single| {
        json!({
            "type": "TemplateProcessing",
            "single": single.iter().map(step).collect::<Vec<Json>>(),
            "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                     {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": token("<s>", 1), "</s>": token("</s>", 2)},
        })
    });
    serde_json::to_vec(&file).expect("JSON")
}

#[test]
fn a_prompt_gets_its_bos_once() {
    let config = json!({"bos_token": {"content": "<s>"}, "eos_token": "</s>"});
    let config = HfTokenizerConfig::from_json(&config);
    let file = framed_file(Some(&["<s>", "A", "</s>"]));
    let tokenizer = Tokenizer::from_json(&file, &config).expect("a usable file");
    let without = tokenizer.encode_prompt("Hi", Special::Parse).expect("encodes");
    let with = tokenizer.encode_prompt("<s>Hi</s>", Special::Parse).expect("encodes");
    assert_eq!(with, without);
    assert_eq!((with.first(), with.last()), (Some(&1), Some(&2)));
    assert_eq!(tokenizer.eos_ids(), [2]);
    let plain = tokenizer.encode("<s>", Special::Plain).expect("encodes");
    assert!(!plain.contains(&1) && tokenizer.decode(&plain) == "<s>");
}

/// What transformers 5.24 does in every combination (but for CodeLlama's class, which always adds
/// `<s>`).
#[test]
fn a_folder_frames_texts_as_its_post_processor_does() {
    let frames: [Option<&[&str]>; 4] =
        [None, Some(&["<s>", "A"]), Some(&["A", "</s>"]), Some(&["<s>", "A", "</s>"])];
    for single in frames {
        let has = |name: &str| single.is_some_and(|single| single.contains(&name));
        for flags in [None, Some(false), Some(true)] {
            let mut config = json!({"bos_token": "<s>", "eos_token": "</s>"});
            if let Some(on) = flags {
                (config["add_bos_token"], config["add_eos_token"]) = (json!(on), json!(on));
            }
            let config = HfTokenizerConfig::from_json(&config);
            let tokenizer = Tokenizer::from_json(&framed_file(single), &config).expect("usable");
            let ids = tokenizer.encode_prompt("Hi", Special::Parse).expect("encodes");
            let found = (ids.first() == Some(&1), ids.last() == Some(&2));
            assert_eq!(found, (has("<s>"), has("</s>")), "{single:?} {flags:?}");
            let told: Vec<&str> = tokenizer.findings().iter().map(|f| f.code).collect();
            let otherwise = ["<s>", "</s>"].iter().filter(|name| flags == Some(!has(name)));
            assert_eq!(told, vec!["unfollowed_flag"; otherwise.count()], "{single:?} {flags:?}");
        }
    }
}

#[test]
fn control_tokens_beside_the_vocabulary_count_where_they_have_an_id() {
    let token = |text: &str| json!({"content": text, "special": true});
    let listed = json!({"<s>": 1, "<x>": 900, "<img>": 901});
    let cases = [
        (json!({"additional_special_tokens": ["<x>"]}), Json::Null, None, "<x>"),
        (json!({"extra_special_tokens": {"image_token": "<img>"}}), Json::Null, None, "<img>"),
        (json!({"pad_token": "[PAD]", "mask_token": "<m>"}), Json::Null, None, ""),
        (json!({"additional_special_tokens": ["<x>"]}), listed.clone(), Some(900), ""),
        (json!({"extra_special_tokens": ["<x>", "<y>"]}), listed.clone(), Some(900), "<y>"),
        (json!({"added_tokens_decoder": {"900": token("<x>")}}), Json::Null, Some(900), ""),
        (
            json!({"added_tokens_decoder": {"900": token("<x>")}, "extra_special_tokens": ["<y>"]}),
            listed,
            Some(900),
            "<y>",
        ),
    ];
    for (settings, added, id, told) in cases {
        let mut config = HfTokenizerConfig::from_json(&settings);
        config.add_added_tokens(&added);
        let tokenizer = Tokenizer::from_json(&framed_file(None), &config).expect("usable");
        let ids = tokenizer.encode("<x>", Special::Parse).expect("encodes");
        match id {
            Some(id) => assert!(ids == [id] && tokenizer.is_special(id), "{settings}: {ids:?}"),
            None => assert!(ids.len() > 1, "{settings}: {ids:?}"),
        }
        let found = tokenizer.findings().iter().find(|f| f.code == "tokens_without_id");
        let named = found.map_or("", |found| {
            let (_, names) = found.message.split_once("id: ").expect("names");
            names.split(';').next().unwrap_or_default()
        });
        assert_eq!(named, told, "{settings}");
    }
}

#[test]
fn what_is_missing_or_wrong_is_named() {
    let tiny = || GgufVocab {
        model: "gpt2".to_owned(),
        tokens: vec!["a".to_owned(), "b".to_owned(), "ab".to_owned()],
        merges: vec!["a b".to_owned()],
        ..GgufVocab::default()
    };
    let error = |vocab: GgufVocab| Tokenizer::from_gguf(vocab).expect_err("must be refused");
    let text = error(GgufVocab { pre: Some("klingon".to_owned()), ..tiny() }).to_string();
    assert!(text.contains("klingon") && text.contains("gpt-2"), "{text}");
    let cases = [
        (GgufVocab { model: "rwkv".to_owned(), ..tiny() }, "rwkv"),
        (GgufVocab { tokens: Vec::new(), ..tiny() }, "0 tokens"),
        (GgufVocab { merges: Vec::new(), ..tiny() }, "no merges"),
        (GgufVocab { merges: vec!["a c".to_owned()], ..tiny() }, "a c"),
        (GgufVocab { merges: vec!["ab".to_owned()], ..tiny() }, "merge 0"),
        (GgufVocab { token_types: vec![1], ..tiny() }, "token_type"),
        (GgufVocab { bos: Some(3), ..tiny() }, "id 3"),
        (GgufVocab { model: "llama".to_owned(), ..tiny() }, "scores"),
    ];
    for (vocab, expect) in cases {
        let text = error(vocab).to_string();
        assert!(text.contains(expect), "{text} should name {expect}");
    }
}

#[test]
fn crafted_files_are_errors() {
    let config = HfTokenizerConfig::default();
    let cases: &[&str] = &[
        "",
        "{}",
        "[]",
        r#"{"model": {"vocab": []}}"#,
        r#"{"model": {"vocab": {"a": -1}}}"#,
        r#"{"model": {"vocab": {"a": 99999999999}}}"#,
        r#"{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}"#,
        r#"{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [[1]]}}"#,
        r#"{"added_tokens": [{}], "model": {"vocab": {}}}"#,
        // A cut of length 0.
        r#"{"version":"1.0","added_tokens":[],"normalizer":null,
            "pre_tokenizer":{"type":"FixedLength","length":0},"decoder":null,
            "post_processor":null,"model":{"type":"WordPiece","vocab":{"[UNK]":0,"a":1},
            "unk_token":"[UNK]","continuing_subword_prefix":"","max_input_chars_per_word":1}}"#,
        // A merge shorter than the prefix it should drop.
        r#"{"version":"1.0","added_tokens":[],"normalizer":null,"pre_tokenizer":null,
            "decoder":null,"post_processor":null,"model":{"type":"BPE","dropout":null,
            "unk_token":null,"continuing_subword_prefix":"@@@@","end_of_word_suffix":null,
            "fuse_unk":false,"byte_fallback":false,"vocab":{"a":0,"é":1,"aé":2},
            "merges":["a é"]}}"#,
    ];
    for file in cases {
        let loaded = Tokenizer::from_json(file.as_bytes(), &config);
        let error = loaded.map(|t| t.encode("aaé a", Special::Plain));
        assert!(
            matches!(error, Err(TokenizerError::Json { .. } | TokenizerError::BadMerge { .. })),
            "{file}: {error:?}"
        );
    }
}

#[test]
fn tokenizers_and_templates_are_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Tokenizer>();
    shared::<tokenmill_text::ChatTemplate>();
}
