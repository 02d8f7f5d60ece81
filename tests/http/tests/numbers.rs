//! Embeddings and reranking over HTTP, by the recorded encoders of tests/golden on the reference
//! device.

use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tokenmill_backend::reference::ReferenceDevice;
use tokenmill_engine::load::{LoadOptions, WeightBits, load};
use tokenmill_engine::start::ServeOptions;
use tokenmill_engine::{Defaults, Engine, Eyes};
use tokenmill_golden_tests::{Golden, Variant, worst_difference};
use tokenmill_http_tests::{Client, Site, tokenizer};
use tokenmill_ir::{KvFormat, Mode};
use tokenmill_server::{Running, ServedModel, ServerConfig, spawn};

const EMBED: &str = "/v1/embeddings";
const RERANK: &str = "/v1/rerank";

/// A server over one recorded encoder; its vocabulary is the bytes.
struct Encoder {
    server: Option<Running>,
    engine: Engine,
    client: Client,
    golden: Golden,
}

impl Encoder {
    fn new(arch: &str) -> Self {
        let golden = Golden::read(arch);
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let path = golden.path(Variant::Config, scratch.path());
        let options = LoadOptions {
            mode: Mode::F32,
            kv: KvFormat::F32,
            context: None,
            sequences: 4,
            step_tokens: 96,
            memory_bytes: 1 << 32,
            images: true,
            weights: WeightBits::Auto,
        };
        let loaded = load(&path, Arc::new(ReferenceDevice::new(16)), &options, |_, _| {});
        let served = loaded.expect("loaded").start(ServeOptions {
            queue: 8,
            step_s: 10.0,
            draft: tokenmill_engine::DraftMode::None,
        });
        let served = served.expect("started");
        let eyes = served.sight.map(|sight| Eyes::new(sight).expect("its processor is built"));
        let engine = served.engine;
        let model = ServedModel {
            names: vec![arch.into()],
            engine: engine.clone(),
            tokenizer: Arc::new(tokenizer()),
            template: Err(tokenmill_text::TemplateError::Missing),
            context: engine.longest(),
            eyes: eyes.map(Arc::new),
            defaults: Defaults::default(),
            created: 1_700_000_000,
        };
        let mut config = ServerConfig::new(([127, 0, 0, 1], 0).into());
        config.strict = true;
        let server = spawn(config, vec![model]).expect("the server starts");
        let client = Client::new(server.address());
        Self { server: Some(server), engine, client, golden }
    }

    /// The vectors of an answer.
    fn embed(&self, body: Value) -> (Vec<Vec<f32>>, Value) {
        let reply = self.client.post(EMBED, &body);
        assert_eq!(reply.status, 200, "{reply:?}");
        let answer = reply.json();
        assert_eq!(answer["object"], "list");
        let data = answer["data"].as_array().expect("data").clone();
        for (i, item) in data.iter().enumerate() {
            assert_eq!((&item["object"], &item["index"]), (&json!("embedding"), &json!(i)));
        }
        let numbers = |item: &Value| -> Vec<f32> {
            serde_json::from_value(item["embedding"].clone()).expect("numbers")
        };
        let vectors = if data[0]["embedding"].is_array() {
            data.iter().map(numbers).collect()
        } else {
            Vec::new()
        };
        (vectors, answer)
    }
}

impl Drop for Encoder {
    fn drop(&mut self) {
        drop(self.server.take());
        self.engine.shut_down();
    }
}

#[test]
fn tokens_give_the_recorded_vector() {
    for arch in ["bert", "xlm_roberta", "nomic_bert", "modernbert", "qwen3_embedding"] {
        let encoder = Encoder::new(arch);
        let ids = &encoder.golden.ids;
        let (vectors, answer) = encoder.embed(json!({ "model": arch, "input": ids }));
        let (worst, _) = worst_difference(&vectors[0], &encoder.golden.floats("embedding.f32"));
        assert!(worst < 1e-4, "{arch}: {worst}");
        let usage = json!({ "prompt_tokens": ids.len(), "total_tokens": ids.len() });
        assert_eq!(answer["usage"], usage);
    }
}

/// A picture of 20 x 14 pixels as a bitmap, as sight.py paints it.
fn painted() -> String {
    let mut file = b"BM".to_vec();
    for number in [54 + 20 * 14 * 3, 0, 54, 40, 20, 14, 1 | 24 << 16, 0, 0, 0, 0, 0, 0u32] {
        file.extend(number.to_le_bytes());
    }
    // (Rows come from below, colours from blue.)
    for (y, x) in (0..14u32).rev().flat_map(|y| (0..20u32).map(move |x| (y, x))) {
        file.extend([x * y % 256, y * 17 % 256, x * 12 % 256].map(|value| value as u8));
    }
    BASE64_STANDARD.encode(file)
}

#[test]
fn images_have_vectors_beside_those_of_texts() {
    for name in ["vision/clip", "vision/siglip"] {
        let towers = Encoder::new(name);
        let golden = towers.golden.text("golden.json").expect("a recording");
        let golden: Value = serde_json::from_str(&golden).expect("JSON");
        let picture: Vec<f32> = serde_json::from_value(golden["painted"].clone()).expect("numbers");
        let (ids, data) = (&towers.golden.ids, painted());
        let url = format!("data:image/bmp;base64,{data}");
        let near = |found: &[f32], expected: &[f32]| {
            let (worst, _) = worst_difference(found, expected);
            assert!(worst < 1e-4, "{name}: {worst}");
        };
        let mixed = json!({ "input": [{ "image": url }, ids, { "image": data }] });
        let (all, answer) = towers.embed(mixed.clone());
        near(&all[0], &picture);
        near(&all[1], &towers.golden.floats("embedding.f32"));
        assert_eq!(all[2], all[0], "{name}: the same image");
        let tokens = 2 * 16 + ids.len();
        assert_eq!(answer["usage"]["prompt_tokens"], json!(tokens), "{name}");
        assert_eq!(towers.client.post(EMBED, &mixed).json(), answer, "{name}: the same again");
        let part = json!({ "type": "image_url", "image_url": { "url": url } });
        let messages = json!([{ "role": "user", "content": [part] }]);
        assert_eq!(towers.embed(json!({ "messages": messages })).0[0], all[0], "{name}");
        let listed = towers.client.get("/v1/models").json();
        assert_eq!(listed["data"][0]["input_modalities"], json!(["text", "image"]), "{name}");
        let broken = json!({ "input": [ids, { "image": BASE64_STANDARD.encode(b"GIF89a") }] });
        let reply = towers.client.post(EMBED, &broken);
        assert_eq!((reply.status, reply.error("param").as_str()), (400, "input[1]"), "{name}");
        assert_eq!(reply.error("code"), "invalid_image");
    }
    // Texts that lack what ends them, and models that see nothing.
    for (name, input) in [("vision/clip", json!("a")), ("bert", json!([{ "image": painted() }]))] {
        let reply = Encoder::new(name).client.post(EMBED, &json!({ "input": input }));
        assert!(reply.status == 400 && reply.error("param").starts_with("input"), "{reply:?}");
    }
}

#[test]
fn a_token_without_an_embedding_is_refused() {
    let encoder = Encoder::new("bert");
    let refused = (0..40_000).find(|id| {
        let reply = encoder.client.post(EMBED, &json!({ "input": [id] }));
        assert!([200, 400].contains(&reply.status), "{id}: {reply:?}");
        reply.status == 400
    });
    let first = refused.expect("a vocabulary ends");
    let reply = encoder.client.post(EMBED, &json!({ "input": [u32::MAX] }));
    assert!(reply.error("message").contains(&format!("vocabulary of {first}")), "{reply:?}");
}

#[test]
fn many_texts_in_one_request_are_as_alone() {
    let encoder = Encoder::new("bert");
    // More than the engine's queue holds.
    let texts: Vec<String> = (0..40).map(|i| "abc ".repeat(1 + i % 7) + &i.to_string()).collect();
    let (all, answer) = encoder.embed(json!({ "input": texts }));
    assert_eq!(all.len(), texts.len());
    let bytes: usize = texts.iter().map(String::len).sum();
    assert_eq!(answer["usage"]["prompt_tokens"], json!(bytes));
    for i in [0, 17, 39] {
        let (alone, _) = encoder.embed(json!({ "input": texts[i] }));
        assert_eq!(alone[0], all[i]);
    }
}

#[test]
fn base64_holds_the_same_numbers() {
    let encoder = Encoder::new("bert");
    let (floats, _) = encoder.embed(json!({ "input": "hello", "encoding_format": "float" }));
    let (_, answer) = encoder.embed(json!({ "input": "hello", "encoding_format": "base64" }));
    let text = answer["data"][0]["embedding"].as_str().expect("text").to_owned();
    assert_eq!(from_base64(&text), floats[0]);
}

fn from_base64(text: &str) -> Vec<f32> {
    let digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut count, mut bytes) = (0u32, 0, Vec::new());
    for digit in text.chars().filter_map(|c| digits.find(c)) {
        bits = bits << 6 | digit as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect()
}

#[test]
fn dimensions_cut_and_normalise() {
    let encoder = Encoder::new("bert");
    let (whole, _) = encoder.embed(json!({ "input": "hello" }));
    let (cut, _) = encoder.embed(json!({ "input": "hello", "dimensions": 8 }));
    let length = whole[0][..8].iter().map(|x| x * x).sum::<f32>().sqrt();
    assert_eq!(cut[0].len(), 8);
    for (a, b) in cut[0].iter().zip(&whole[0]) {
        assert!((a - b / length).abs() < 1e-6);
    }
}

#[test]
fn what_is_wrong_is_named() {
    let encoder = Encoder::new("bert");
    let cases = [
        (EMBED, json!({}), "input"),
        (EMBED, json!({ "input": [] }), "input"),
        (EMBED, json!({ "input": "" }), "input"),
        (EMBED, json!({ "input": ["a", ""] }), "input[1]"),
        (EMBED, json!({ "input": "x".repeat(97) }), "input"),
        (EMBED, json!({ "input": "a", "dimensions": 65 }), "dimensions"),
        (EMBED, json!({ "input": "a", "encoding_format": "int8" }), "encoding_format"),
        (EMBED, json!({ "input": "a", "color": 1 }), "color"),
        (RERANK, json!({ "documents": ["a"] }), "query"),
        (RERANK, json!({ "query": "q" }), "documents"),
        (RERANK, json!({ "query": "q", "documents": [] }), "documents"),
        (RERANK, json!({ "query": "q", "documents": ["a"], "top_n": 0 }), "top_n"),
        ("/v1/completions", json!({ "prompt": "a" }), "model"),
    ];
    for (path, body, param) in cases {
        let reply = encoder.client.post(path, &body);
        assert_eq!((reply.status, reply.error("param").as_str()), (400, param), "{body}");
    }
    // A model of text gives no vectors.
    let site = Site::new();
    for (path, body) in
        [(EMBED, json!({ "input": "a" })), (RERANK, json!({ "query": "a", "documents": ["b"] }))]
    {
        let reply = site.client.post(path, &body);
        assert_eq!((reply.status, reply.error("code").as_str()), (400, "unsupported"), "{path}");
    }
}

#[test]
fn embedding_models_rank_by_cosine() {
    let encoder = Encoder::new("bert");
    let documents = ["apple pie", "a query", "zzz"];
    let body = json!({ "query": "a query", "documents": documents, "return_documents": true });
    let answer = encoder.client.post(RERANK, &body).json();
    let results = answer["results"].as_array().expect("results");
    assert_eq!(results.len(), 3);
    assert_eq!(results[0]["index"], json!(1), "the query itself is nearest: {answer}");
    assert!((results[0]["relevance_score"].as_f64().expect("a number") - 1.0).abs() < 1e-6);
    assert_eq!(results[0]["document"], json!({ "text": "a query" }));
    let scores: Vec<f64> =
        results.iter().map(|r| r["relevance_score"].as_f64().expect("a number")).collect();
    assert!(scores.is_sorted_by(|a, b| a >= b));
    let top = json!({ "query": "a query", "documents": [{ "text": "x" }, "y"], "top_n": 1 });
    let answer = encoder.client.post(RERANK, &top).json();
    assert_eq!(answer["results"].as_array().map(Vec::len), Some(1));
    assert!(answer["results"][0].get("document").is_none());
}

#[test]
fn rerankers_read_query_and_document_together() {
    for arch in ["xlm_roberta_score", "modernbert_score"] {
        let encoder = Encoder::new(arch);
        let documents = ["one", "two", "three"];
        let body = json!({ "query": "which", "documents": documents });
        let answer = encoder.client.post(RERANK, &body).json();
        for result in answer["results"].as_array().expect("results") {
            let document = documents[result["index"].as_u64().expect("an index") as usize];
            let (pair, _) = tokenizer().encode_pair("which", document).expect("tokens");
            let score = encoder.engine.embed(pair).expect("a score")[0];
            let expect = 1.0 / (1.0 + f64::from(-score).exp());
            let found = result["relevance_score"].as_f64().expect("a number");
            assert!((found - expect).abs() < 1e-6, "{arch}: {found} {expect}");
        }
        // Its score is no vector.
        assert_eq!(encoder.client.post(EMBED, &json!({ "input": "a" })).status, 400);
    }
}

/// A text that is asked for again after every odd one: it must not have changed.
fn same_as_ever(encoder: &Encoder, expected: &[f32]) {
    let (vectors, _) = encoder.embed(json!({ "input": "hello" }));
    assert_eq!(vectors[0], expected);
}

/// No number of an answer is anything but a number: JSON has no NaN, so one would be null.
fn all_finite(answer: &Value) -> bool {
    match answer {
        Value::Array(items) => items.iter().all(all_finite),
        Value::Null => false,
        Value::Number(n) => n.as_f64().is_some_and(f64::is_finite),
        _ => true,
    }
}

#[test]
fn odd_inputs_are_embedded_or_refused() {
    let encoder = Encoder::new("bert");
    let (hello, _) = encoder.embed(json!({ "input": "hello" }));
    let good = [
        json!(" "),
        json!("\n\r\t\u{0}"),
        json!("<|im_start|><|im_end|><|endoftext|>"),
        json!(["<|endoftext|>"]),
        json!("a".repeat(96)),
        json!([0]),
        json!([[0], [222, 222]]),
        json!(vec!["a"; 2048]),
    ];
    for input in good {
        let reply = encoder.client.post(EMBED, &json!({ "input": input }));
        assert_eq!(reply.status, 200, "{:.200} {:.300}", input.to_string(), reply.body);
        for item in reply.json()["data"].as_array().expect("data") {
            assert!(all_finite(&item["embedding"]), "{:.200}", input.to_string());
            let length: f64 = (item["embedding"].as_array().expect("numbers").iter())
                .map(|x| x.as_f64().expect("a number").powi(2))
                .sum();
            assert!((length - 1.0).abs() < 1e-5, "{:.200}: {length}", input.to_string());
        }
        same_as_ever(&encoder, &hello[0]);
    }
    let bad = [
        json!(null),
        json!(7),
        json!(true),
        json!({ "texts": "a" }),
        json!([["a"]]),
        json!(["a", 1]),
        json!([1, "a"]),
        json!([[]]),
        json!([1, -1]),
        json!([1.5]),
        json!([u64::MAX]),
        json!(["a", null]),
        json!(["a".repeat(97)]),
        json!(vec![0; 97]),
        json!(vec!["a"; 100_000]),
    ];
    for input in bad {
        let reply = encoder.client.post(EMBED, &json!({ "input": input }));
        let shown = format!("{:.100}: {:.300}", input.to_string(), reply.body);
        assert_eq!(reply.status, 400, "{shown}");
        assert!(reply.error("param").starts_with("input"), "{shown}");
        assert!(reply.body.len() < 2_000, "{shown}");
        same_as_ever(&encoder, &hello[0]);
    }
}

#[test]
fn text_that_is_no_text_is_refused() {
    let encoder = Encoder::new("bert");
    let bodies: [&[u8]; 6] = [
        br#"{"input":"\ud800"}"#,
        br#"{"input":"\udc00\ud800"}"#,
        b"{\"input\":\"\xff\xfe\"}",
        b"{\"input\":\"\xc3\"}",
        br#"{"input":NaN}"#,
        br#"{"input":"a"#,
    ];
    for path in [EMBED, RERANK] {
        for body in bodies {
            let json = ("content-type", "application/json");
            let reply = encoder.client.send("POST", path, &[json], body);
            assert_eq!(reply.status, 400, "{} {:.300}", String::from_utf8_lossy(body), reply.body);
            assert!(!reply.error("message").is_empty());
        }
    }
}

#[test]
fn odd_documents_are_ranked_or_refused() {
    for arch in ["bert", "xlm_roberta_score"] {
        let encoder = Encoder::new(arch);
        let rank = |documents: Value| {
            let body = json!({ "query": "which", "documents": documents });
            encoder.client.post(RERANK, &body)
        };
        let score_of = |documents: Value, index: usize| {
            let answer = rank(documents).json();
            let results = answer["results"].as_array().expect("results").clone();
            let one = results.iter().find(|r| r["index"] == json!(index)).expect("the document");
            one["relevance_score"].as_f64().expect("a number").to_bits()
        };
        // Alone, among others, among many of the same: the same score, and ties in order.
        let alone = score_of(json!(["one"]), 0);
        let among = json!([" ", "<|endoftext|>", "one", { "text": "two" }, "\u{0}"]);
        assert_eq!(score_of(among, 2), alone, "{arch}");
        let many = rank(json!(vec!["one"; 1500])).json();
        let results = many["results"].as_array().expect("results");
        assert_eq!(results.len(), 1500);
        for (i, result) in results.iter().enumerate() {
            assert_eq!(result["index"], json!(i), "{arch}: ties keep their order");
            assert_eq!(result["relevance_score"].as_f64().map(f64::to_bits), Some(alone));
        }
        let bad = [
            json!("one"),
            json!(["one", null]),
            json!(["one", 1]),
            json!([{}]),
            json!([{ "text": null }]),
            json!([{ "text": ["one"] }]),
            json!([["one"]]),
            json!(["a".repeat(5000)]),
            json!(vec!["a"; 100_000]),
        ];
        for documents in bad {
            let shown = format!("{arch} {:.100}", documents.to_string());
            let reply = rank(documents);
            assert_eq!(reply.status, 400, "{shown}: {:.300}", reply.body);
            assert!(reply.error("param").starts_with("documents"), "{shown}: {:.300}", reply.body);
            assert!(reply.body.len() < 2_000, "{shown}");
            assert_eq!(score_of(json!(["one"]), 0), alone, "{shown}");
        }
    }
}

#[test]
fn ollamas_routes_give_the_same_numbers() {
    let encoder = Encoder::new("bert");
    let (vectors, _) = encoder.embed(json!({ "input": ["panda", "bear"] }));
    let post = |path: &str, body: Value| encoder.client.post(path, &body);
    let numbers =
        |value: &Value| -> Vec<f32> { serde_json::from_value(value.clone()).expect("numbers") };
    let both =
        post("/api/embed", json!({ "model": "bert:latest", "input": ["panda", "bear"] })).json();
    assert_eq!(both["model"], "bert");
    assert_eq!([&both["embeddings"][0], &both["embeddings"][1]].map(numbers), vectors[..]);
    let one = post("/api/embeddings", json!({ "model": "bert", "prompt": "panda" })).json();
    assert_eq!(numbers(&one["embedding"]), vectors[0]);
    let short = post("/api/embed", json!({ "input": "panda", "dimensions": 5 })).json();
    assert_eq!(numbers(&short["embeddings"][0]).len(), 5);
    for (path, body, empty) in [
        ("/api/embed", json!({ "input": [] }), json!({ "model": "", "embeddings": [] })),
        ("/api/embeddings", json!({ "model": "bert", "prompt": "" }), json!({ "embedding": [] })),
    ] {
        assert_eq!(post(path, body).json(), empty, "{path}");
    }
    let reply = post("/api/embeddings", json!({ "model": "nope", "prompt": "panda" }));
    assert_eq!(reply.status, 404);
    assert!(reply.json()["error"].as_str().is_some_and(|text| text.contains("nope")));
    // Best first, as the route of Cohere and Jina has it.
    let asked = json!({ "query": "panda", "documents": ["a bear", "panda", "x"], "top_n": 2 });
    let ours = post("/api/rerank", asked.clone()).json();
    let theirs = post(RERANK, asked).json();
    let order = |body: &Value, at: usize| body["results"][at]["index"].clone();
    assert_eq!(ours["results"].as_array().map(Vec::len), Some(2));
    assert_eq!([order(&ours, 0), order(&ours, 1)], [order(&theirs, 0), order(&theirs, 1)]);
    assert_eq!((&ours["results"][0]["document"], order(&ours, 0)), (&json!("panda"), json!(1)));
    let shown = post("/api/show", json!({ "model": "bert" })).json();
    assert_eq!(shown["capabilities"], json!(["embedding", "rerank"]));
}
