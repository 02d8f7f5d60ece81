//! The front door on a tiny random model: typed answers, tools, streams that are dropped, numbers, errors.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokenmill::{Error, Model, Options, Part, Piece, Progress, Sampling, StopReason};
use tokenmill_golden_tests::{Golden, Variant};

/// The folder of the tests' models, for as long as these run.
fn folder() -> PathBuf {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| tempfile::tempdir().unwrap()).path().to_owned()
}

fn options() -> Options {
    let (context, threads, memory_bytes) = (Some(4096), Some(1), Some(1 << 30));
    Options { context, threads, memory_bytes, parallel: 4, ..Options::default() }
}

/// One model for all tests that do not count what it does.
fn tiny() -> Model {
    static TINY: OnceLock<Model> = OnceLock::new();
    TINY.get_or_init(fresh).clone()
}

/// A model of its own.
fn fresh() -> Model {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let path = PATH.get_or_init(|| {
        let path = folder().join("tiny.gguf");
        tokenmill_tiny::write(&path).unwrap();
        path
    });
    Model::open_with(path.to_str().unwrap(), &options()).unwrap()
}

/// An encoder whose vocabulary is the letters.
fn encoder(name: &str) -> Model {
    let path = folder().join(name);
    std::fs::create_dir_all(&path).unwrap();
    Golden::read(name).path(Variant::Config, &path);
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"].map(str::to_owned);
    let letters = ('a'..='z').flat_map(|c| [c.to_string(), format!("##{c}")]);
    let all: Vec<String> = special.into_iter().chain(letters).collect();
    let vocab: serde_json::Map<String, Value> =
        all.iter().enumerate().map(|(id, token)| (token.clone(), id.into())).collect();
    let added = |id: usize| {
        json!({"id": id, "content": all[id], "special": true, "single_word": false,
        "lstrip": false, "rstrip": false, "normalized": false})
    };
    let piece = |name: &str, kind: u32| json!({"SpecialToken": {"id": name, "type_id": kind}});
    let text = |name: &str, kind: u32| json!({"Sequence": {"id": name, "type_id": kind}});
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": (0..5).map(added).collect::<Vec<_>>(),
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing",
            "single": [piece("[CLS]", 0), text("A", 0), piece("[SEP]", 0)],
            "pair": [piece("[CLS]", 0), text("A", 0), piece("[SEP]", 0), text("B", 1), piece("[SEP]", 1)],
            "special_tokens": {
                "[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
                "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}}},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab},
    });
    std::fs::write(path.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let options = Options { context: None, ..options() };
    Model::open_with(path.to_str().unwrap(), &options).unwrap()
}

fn sampled(seed: u64, max_tokens: u32) -> Sampling {
    Sampling {
        temperature: Some(1.0),
        top_p: Some(1.0),
        min_p: Some(0.0),
        seed: Some(seed),
        max_tokens: Some(max_tokens),
        ..Sampling::default()
    }
}

#[derive(Debug, Clone, PartialEq, JsonSchema, Serialize, Deserialize)]
struct Person {
    #[schemars(length(max = 12))]
    name: String,
    age: u8,
    height_m: Option<f32>,
}

#[derive(Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mood {
    Good,
    Bad,
    #[serde(rename = "so-so")]
    Middling,
}

#[derive(Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "kind", deny_unknown_fields)]
enum Shape {
    Circle {
        radius: u16,
    },
    Square {
        side: i16,
        #[serde(default)]
        filled: bool,
    },
    Point,
}

#[derive(Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
enum Step {
    Wait,
    Go(i32),
    Say {
        #[schemars(length(max = 8))]
        words: Vec<Mood>,
    },
}

#[derive(Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
struct Team {
    lead: Person,
    #[schemars(length(max = 2))]
    members: Vec<Person>,
    mood: Mood,
}

#[derive(Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
struct Tree {
    value: i8,
    children: (Option<Box<Tree>>, Option<Box<Tree>>),
}

#[derive(Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
struct Numbers {
    small: u8,
    signed: i64,
    whole: u64,
    real: f64,
    flag: bool,
    letter: char,
}

#[derive(Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
struct Meters(#[schemars(range(min = 0.0, max = 10.0))] f64);

/// Values of a type by some seeds: all of them whole, none of them twice the same way by chance alone.
fn values<T: JsonSchema + DeserializeOwned>(count: u64) {
    for seed in 0..count {
        let mut chat = tiny().chat();
        chat.sampling = sampled(seed, 3000);
        let value = chat.ask_for::<T>("One, please.");
        let name = std::any::type_name::<T>();
        assert!(value.is_ok(), "{name}, seed {seed}: {:?}", value.err());
    }
}

#[test]
fn answers_are_values_of_their_type() {
    let count = std::env::var("TOKENMILL_VALUES").map_or(2, |n| n.parse().unwrap());
    values::<Person>(count);
    values::<Mood>(count);
    values::<Shape>(count);
    values::<Step>(count);
    values::<Team>(count);
    values::<Tree>(count);
    values::<Numbers>(count);
    values::<Meters>(count);
    values::<(u32, bool)>(count);
    values::<Option<[i8; 3]>>(count);
}

/// One that takes a while to say.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
struct Tale {
    #[schemars(length(min = 600, max = 700))]
    told: String,
    age: u8,
}

#[test]
fn a_value_is_told_as_it_is_made() {
    let mut chat = tiny().chat();
    chat.sampling = sampled(7, 2000);
    let (mut parts, mut whole) = (Vec::new(), None);
    for part in chat.stream_for::<Tale>("Who?").unwrap() {
        match part.unwrap() {
            Part::Partial(value) => parts.push(value),
            Part::Whole(tale) => whole = Some(tale),
        }
    }
    let whole = serde_json::to_value(whole.unwrap()).unwrap();
    assert!(parts.len() > 1, "{parts:?}");
    for pair in parts.windows(2) {
        let members = |value: &Value| value.as_object().unwrap().len();
        assert!(members(&pair[0]) <= members(&pair[1]), "{pair:?}");
    }
    assert_eq!(parts.last().unwrap()["age"], whole["age"]);
    // Which question was asked, and that its answer belongs to the conversation, show in the next prompt.
    let before = chat.ask("And?").unwrap().usage.prompt_tokens;
    let mut short = tiny().chat();
    short.sampling = sampled(7, 10);
    assert!(before > short.ask("And?").unwrap().usage.prompt_tokens + 50);
}

#[test]
fn what_cannot_be_had_is_told_by_its_name() {
    let told = |error: Error| error.to_string();
    let missing = Model::open("/nowhere/model.gguf").unwrap_err();
    assert!(told(missing).contains("/nowhere/model.gguf"));
    let here = Options { fetch: false, ..options() };
    let absent = told(Model::open_with("hf.co/nobody/nothing:Q4_0", &here).unwrap_err());
    assert!(absent.contains("tokenmill pull hf.co/nobody/nothing"), "{absent}");
    let text = folder().join("text.gguf");
    std::fs::write(&text, "no model").unwrap();
    let broken = told(Model::open_with(text.to_str().unwrap(), &options()).unwrap_err());
    assert!(broken.contains("text.gguf"), "{broken}");
    let model = tiny();
    assert!(told(model.embed(["a"]).unwrap_err()).contains("gives no embeddings"));
    assert!(told(model.rerank("a", ["b"]).unwrap_err()).contains("ranks no documents"));
    let mut chat = model.chat();
    assert!(told(chat.show(b"png").err().unwrap()).contains("sees no images"));
    let long = told(chat.ask(&"long ".repeat(2000)).unwrap_err());
    assert!(long.contains("4096") || long.contains("8192"), "{long}");
    chat.sampling.top_p = Some(7.0);
    assert!(told(chat.ask("a").unwrap_err()).contains("top_p: 7"));
    // A type whose schema says more than is enforced, and an answer that is too long.
    chat.sampling = sampled(1, 5);
    let zero = told(chat.ask_for::<std::num::NonZeroI32>("a").unwrap_err());
    assert!(zero.contains("not"), "{zero}");
    let cut = chat.ask_for::<Team>("a").unwrap_err();
    assert!(matches!(cut, Error::Cut { tokens: 5 }), "{cut}");
    let tiny = folder().join("tiny.gguf");
    let mut seen = 0;
    let stopped = Model::open_watched(tiny.to_str().unwrap(), &options(), |progress| {
        seen += usize::from(matches!(progress, Progress::Loading { total, .. } if total > 5));
        ControlFlow::Break(())
    });
    assert!(matches!(stopped.unwrap_err(), Error::BrokenOff { .. }));
    assert!(seen > 0);
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_dropped_stream_gives_its_blocks_back_within_a_step() {
    let model = fresh();
    let mut chat = model.chat();
    chat.sampling = Sampling { stop: Some(Vec::new()), ..sampled(3, 3500) };
    // (Held to a text that does not end soon.)
    let schema = json!({"type": "string", "minLength": 3000});
    let mut stream = chat.stream_of_schema("Talk.", schema.clone()).unwrap();
    let first = stream.next().unwrap().unwrap();
    assert!(matches!(first, Piece::Text(_)), "{first:?}");
    drop(stream);
    wait_until("a dropped stream runs on", || {
        let stats = model.stats();
        (stats.running, stats.open_requests, stats.cancelled) == (0, 0, 1)
    });
    let stats = model.stats();
    assert_eq!(stats.finished, 0);
    let tokens = stats.generated_tokens;
    assert!(tokens < 3000, "{tokens} tokens were made of an answer that was dropped at its first");
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(model.stats().steps, stats.steps, "nothing is computed any more");
    // What was said stays; the same question again comes without it.
    let again = chat.stream_of_schema("Talk.", schema).unwrap();
    drop(again);
    assert_eq!(chat.ask("Short.").map(|a| a.usage.completion_tokens > 0).ok(), Some(true));
}

#[test]
fn streams_outlive_the_model_that_they_are_of() {
    let mut last = {
        let model = fresh();
        model.complete("abc", &sampled(5, 40)).unwrap()
    };
    assert!(last.next().unwrap().is_ok());
    let answer = last.finish().unwrap();
    assert!(answer.usage.completion_tokens > 0);
    let dropped = fresh().complete("abc", &sampled(5, 4000)).unwrap();
    drop(dropped);
}

#[derive(Debug, JsonSchema, Deserialize)]
struct Sum {
    a: i16,
    b: i16,
}

#[test]
fn tools_are_called_and_heard() {
    let heard: Arc<Mutex<Vec<(i16, i16)>>> = Arc::default();
    let notes = Arc::clone(&heard);
    let mut chat = tiny().chat();
    chat.sampling = sampled(11, 200);
    chat.must_call = true;
    chat.system("Add.").tool("add", "The sum of two numbers.", move |Sum { a, b }| {
        notes.lock().unwrap().push((a, b));
        Ok(i32::from(a) + i32::from(b))
    });
    let mut stream = chat.stream("What is 2 and 3?").unwrap();
    let mut pieces = Vec::new();
    for piece in &mut stream {
        pieces.push(piece.unwrap());
    }
    let answer = stream.finish().unwrap();
    let heard = heard.lock().unwrap();
    assert!(!heard.is_empty() && heard.len() == answer.called.len());
    for ((a, b), called) in heard.iter().zip(&answer.called) {
        assert_eq!(called.name, "add");
        assert_eq!(called.arguments, json!({"a": a, "b": b}));
        assert_eq!(called.found, (i32::from(*a) + i32::from(*b)).to_string());
    }
    let at = |found: fn(&Piece) -> bool| pieces.iter().position(found);
    let call = at(|piece| matches!(piece, Piece::Call { .. })).unwrap();
    let found = at(|piece| matches!(piece, Piece::Found { .. })).unwrap();
    assert!(call < found, "{pieces:?}");
    drop(heard);
    // A closure that fails, and one round: the model would hear it, but may not go on.
    let mut chat = tiny().chat();
    (chat.sampling, chat.must_call, chat.rounds) = (sampled(12, 200), true, 1);
    chat.tool("fail", "", |_: Sum| Err::<(), _>("no luck".into()));
    let mut told = Vec::new();
    let mut stream = chat.stream("Try.").unwrap();
    let error = loop {
        match stream.next().unwrap() {
            Ok(Piece::Found { text, .. }) => told.push(text),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(told.iter().all(|text| text == "error: no luck") && !told.is_empty(), "{told:?}");
    assert!(matches!(error, Error::Rounds { rounds: 1 }), "{error}");
    assert!(stream.next().is_none());
}

#[test]
fn the_same_question_has_the_same_answer_from_any_thread() {
    let model = tiny();
    let ask = |model: &Model| {
        let answer = model.complete("the same", &sampled(42, 60)).unwrap().finish().unwrap();
        (answer.text, answer.reason)
    };
    let alone = ask(&model);
    let together: Vec<(String, StopReason)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| ask(&model))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(together.iter().all(|one| *one == alone), "{alone:?} {together:?}");
    let pieces = model.complete("the same", &sampled(42, 60)).unwrap();
    let joined: String = pieces.map(Result::unwrap).collect();
    assert_eq!(joined, alone.0);
}

#[test]
fn texts_have_vectors_and_ranks() {
    let model = encoder("bert");
    let texts = ["sky", "blue", "sky"];
    let vectors = model.embed(texts).unwrap();
    assert_eq!((vectors.len(), vectors[0].len()), (3, model.width() as usize));
    assert_eq!(vectors[0], vectors[2]);
    assert_ne!(vectors[0], vectors[1]);
    let many: Vec<String> = (0..40).map(|i| "abcdefghij"[..1 + i % 10].to_owned()).collect();
    let all = model.embed(&many).unwrap();
    assert_eq!(all[3], model.embed(["abcd"]).unwrap()[0], "in order, alone or together");
    let ranks = model.rerank("sky", texts).unwrap();
    assert!(
        (ranks[0] - 1.0).abs() < 1e-5 && ranks[0] == ranks[2] && ranks[1] < ranks[0],
        "{ranks:?}"
    );
    assert!(matches!(model.chat().ask("hello").unwrap_err(), Error::Template(_)));
    let ranker = encoder("bert_score");
    let ranks = ranker.rerank("sky", ["blue", "green", "blue"]).unwrap();
    assert!(
        ranks.iter().all(|rank| (0.0..=1.0).contains(rank)) && ranks[0] == ranks[2],
        "{ranks:?}"
    );
    assert_ne!(ranks[0], ranks[1]);
    assert!(ranker.embed(["a"]).is_err());
}

/// What the docs show is what is compiled.
#[test]
fn the_docs_quote_the_examples() {
    let page = include_str!("../../../docs/embedding.md");
    for example in [include_str!("../examples/chat.rs"), include_str!("../examples/typed.rs")] {
        let (_, code) = example.split_once("\n\n").unwrap();
        assert!(page.contains(&format!("```rust\n{code}```\n")), "{code}");
    }
}
