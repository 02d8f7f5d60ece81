//! The dialect of llama.cpp's server from outside: what its clients ask, and what they read.

use serde_json::{Value, json};
use tokenmill_engine::Defaults;
use tokenmill_http_tests::{Client, Reply, Setup, ShelfSite, Site};

const TEXT: &str = "/completion";

fn with(mut body: Value, members: Value) -> Value {
    let members = members.as_object().expect("members").clone();
    body.as_object_mut().expect("a body").extend(members);
    body
}

fn ask(client: &Client, path: &str, body: &Value) -> Value {
    let reply = client.post(path, body);
    assert_eq!(reply.status, 200, "{path} {body}: {reply:?}");
    reply.json()
}

/// A request of which the answer is always the same.
fn greedy(members: Value) -> Value {
    with(json!({ "prompt": "Hello", "n_predict": 6, "temperature": 0 }), members)
}

fn events(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.header("content-type"), Some("text/event-stream; charset=utf-8"), "{reply:?}");
    let event =
        |data: &String| serde_json::from_str(data).unwrap_or_else(|e| panic!("{e}: {data}"));
    reply.events().iter().map(event).collect()
}

/// The tokens of a text.
fn tokens(client: &Client, body: Value) -> Vec<Value> {
    let answer = ask(client, "/tokenize", &body);
    answer["tokens"].as_array().unwrap_or_else(|| panic!("{answer}")).clone()
}

#[test]
fn a_stream_says_what_the_whole_answer_says() {
    let site = Site::new();
    for (path, members) in [
        (TEXT, json!({ "n_probs": 2 })),
        ("/completions", json!({ "grammar": "root ::= \"ab\\ncd\"", "n_predict": 30 })),
        (TEXT, json!({ "n_cmpl": 2, "seed": 3, "temperature": 1 })),
        (TEXT, json!({ "prompt": ["Hello", [5, 6, "a", 7]], "stop": "\u{1}" })),
    ] {
        let body = greedy(with(members, json!({ "return_tokens": true })));
        let stream =
            events(&site.client.post(path, &with(body.clone(), json!({ "stream": true }))));
        let whole = ask(&site.client, path, &body);
        let all = whole.as_array().cloned().unwrap_or_else(|| vec![whole]);
        for (index, whole) in all.iter().enumerate() {
            let own: Vec<&Value> = stream.iter().filter(|e| e["index"] == json!(index)).collect();
            let (last, rest) = own.split_last().expect("a last event");
            assert!(rest.iter().all(|event| event["stop"] == false) && last["stop"] == true);
            let text: String = own.iter().filter_map(|event| event["content"].as_str()).collect();
            assert_eq!(json!(text), whole["content"]);
            let joined = |name: &str| {
                let lists = own.iter().filter_map(|event| event[name].as_array());
                lists.flatten().cloned().collect::<Vec<Value>>()
            };
            assert_eq!(json!(joined("tokens")), whole["tokens"]);
            let told = joined("completion_probabilities");
            assert!(told.is_empty() || json!(told) == whole["completion_probabilities"]);
            for name in [
                "stop_type",
                "stopping_word",
                "tokens_predicted",
                "tokens_evaluated",
                "truncated",
                "has_new_line",
                "prompt",
                "model",
            ] {
                assert_eq!(last[name], whole[name], "{name}");
            }
            assert_eq!(whole["timings"]["predicted_n"], whole["tokens_predicted"]);
            let sum = |a: &str, b: &str| {
                whole["timings"][a].as_u64().zip(whole["timings"][b].as_u64()).map(|(a, b)| a + b)
            };
            assert_eq!(sum("cache_n", "prompt_n"), whole["tokens_evaluated"].as_u64());
        }
    }
}

#[test]
fn how_it_ended_is_told() {
    let site = Site::new();
    let ended = |members: Value| {
        let answer = ask(&site.client, TEXT, &greedy(members));
        let text = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
        (text("stop_type"), text("stopping_word"), answer["truncated"] == true, answer)
    };
    let (kind, word, cut, answer) = ended(json!({}));
    assert_eq!((kind.as_str(), word.as_str(), cut), ("limit", "", false));
    assert_eq!(answer["generation_settings"]["n_predict"], 6);
    assert_eq!(answer["id_slot"], -1);
    let (kind, word, ..) =
        ended(json!({ "grammar": "root ::= \"one two\"", "n_predict": 20, "stop": ["xx", " "] }));
    assert_eq!((kind.as_str(), word.as_str()), ("word", " "));
    let (kind, _, _, answer) = ended(json!({ "grammar": "root ::= \"one\"", "n_predict": 20 }));
    assert_eq!((kind.as_str(), &answer["content"]), ("eos", &json!("one")));
    let (kind, _, cut, answer) = ended(json!({ "n_predict": -1, "ignore_eos": true }));
    assert_eq!((kind.as_str(), cut), ("limit", true));
    assert_eq!(answer["tokens_predicted"], 512 - 5);
    let (kind, _, cut, answer) = ended(json!({ "n_predict": 0, "prompt": "0123456789abcdefXYZ" }));
    assert_eq!((kind.as_str(), cut, &answer["content"]), ("limit", false, &json!("")));
    // It was computed: a longer one finds it in the cache.
    let (.., answer) = ended(json!({ "prompt": "0123456789abcdefXYZ and more" }));
    assert_eq!(answer["timings"]["cache_n"], 16);
    assert_eq!(answer["tokens_cached"], 16);
}

#[test]
fn what_was_asked_is_told_as_it_holds() {
    let site = Site::with(Setup { defaults: Defaults::default(), ..Setup::default() });
    let asked = json!({
        "top_k": 5, "min_p": 0.25, "seed": 9, "stop": ["", "z"], "samplers": "ekt", "n_predict": 2,
        "logit_bias": [[65, 1.5], ["b", false]], "repeat_penalty": 1.1,
    });
    let settings = ask(&site.client, TEXT, &greedy(asked))["generation_settings"].clone();
    for (name, value) in [
        ("top_k", json!(5)),
        ("min_p", json!(0.25)),
        ("seed", json!(9)),
        ("stop", json!(["z"])),
        ("temperature", json!(0.0)),
        ("repeat_last_n", json!(64)),
        ("samplers", json!(["penalties", "top_k", "temperature"])),
        ("stream", json!(false)),
        ("logit_bias", json!([{ "token": 65, "bias": 1.5 }, { "text": "b", "bias": null }])),
    ] {
        assert_eq!(settings[name], value, "{name}");
    }
    let seed = |body: &Value| ask(&site.client, TEXT, body)["generation_settings"]["seed"].as_u64();
    let fresh = greedy(json!({ "temperature": 1, "seed": -1 }));
    assert_ne!(seed(&fresh), seed(&fresh));
    // Who asks with the seed that was told gets the same.
    let first = ask(&site.client, TEXT, &fresh);
    let again = with(fresh, json!({ "seed": first["generation_settings"]["seed"] }));
    assert_eq!(ask(&site.client, TEXT, &again)["content"], first["content"]);
    let fields = json!({ "response_fields": ["content", "generation_settings/n_predict", "none"] });
    let picked = ask(&site.client, TEXT, &greedy(fields));
    assert_eq!(picked.as_object().map(|o| o.len()), Some(2), "{picked}");
    assert_eq!(picked["generation_settings/n_predict"], 6);
}

#[test]
fn biases_hold_for_texts_and_tokens() {
    let site = Site::new();
    let first = |members: Value| {
        let asked = json!({ "n_predict": 1, "n_probs": 1, "return_tokens": true });
        ask(&site.client, TEXT, &greedy(with(asked, members)))["tokens"][0].clone()
    };
    let letter = json!({ "grammar": "root ::= [a-z]+" });
    let plain = first(letter.clone());
    let id = plain.as_u64().expect("a token");
    let text = ask(&site.client, "/detokenize", &json!({ "tokens": [id] }))["content"].clone();
    for bias in [
        json!([[id, false]]),
        json!([[id, -100]]),
        json!([[text, false]]),
        json!({ id.to_string(): -100 }),
        json!({ text.as_str().expect("a text"): false }),
    ] {
        assert_ne!(first(with(letter.clone(), json!({ "logit_bias": bias }))), plain, "{bias}");
    }
    assert_eq!(first(letter), plain, "for those requests only");
}

#[test]
fn tokens_go_there_and_back() {
    let site = Site::new();
    let client = &site.client;
    assert_eq!(tokens(client, json!({})), Vec::<Value>::new());
    assert_eq!(tokens(client, json!({ "content": "<|im_end|>" })).len(), 1);
    let plain = json!({ "content": "<|im_end|>", "parse_special": false });
    assert_eq!(tokens(client, plain).len(), "<|im_end|>".len());
    let mixed = tokens(client, json!({ "content": ["ab", 258, "c"] }));
    assert_eq!((mixed.len(), &mixed[2]), (4, &json!(258)));
    let text = "hé 世";
    let ids = tokens(client, json!({ "content": text, "add_special": true }));
    assert_eq!(ask(client, "/detokenize", &json!({ "tokens": ids }))["content"], text);
    let pieces = tokens(client, json!({ "content": "aé", "with_pieces": true }));
    assert_eq!((&pieces[0]["piece"], pieces.len()), (&json!("a"), 3));
    assert_eq!(pieces[1]["piece"], json!([0xc3]), "no text by itself");
    let control = ask(client, "/detokenize", &json!({ "tokens": [258] }));
    assert_eq!(control["content"], "<|im_end|>");
    for (path, body, word) in [
        ("/detokenize", json!({ "tokens": [9, 5000] }), "tokens[1]"),
        ("/detokenize", json!({ "tokens": "a" }), "tokens"),
        ("/tokenize", json!({ "content": 7 }), "content"),
        ("/tokenize", json!({ "content": ["a", {}] }), "content[1]"),
        ("/tokenize", json!({ "content": "a".repeat(5000) }), "content"),
    ] {
        let reply = client.post(path, &body);
        assert_eq!((reply.status, reply.error("param").as_str()), (400, word), "{path}");
    }
}

const PAGE: &str = include_str!("../../../docs/llamacpp.md");

#[test]
fn the_page_says_what_becomes_of_members_that_look_tokens_up() {
    let site = Site::new();
    for (section, path, base) in [
        ("Tokenize", "/tokenize", json!({ "content": "b<|im_end|>" })),
        ("Detokenize", "/detokenize", json!({ "tokens": [98] })),
    ] {
        let text = PAGE.split(&format!("\n## {section}\n")).nth(1).expect("a section");
        let text = text.split("\n## ").next().unwrap_or_default();
        for line in text.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
            let cell = |at: usize| cells[at].trim().trim_matches('`');
            let mut body = base.clone();
            body[cell(0)] = serde_json::from_str(cell(1)).expect("an example");
            let (plain, other) = (ask(&site.client, path, &base), ask(&site.client, path, &body));
            assert!(other.get("warnings").is_none() && cell(2) == "effect", "{line}: {other}");
            // (This vocabulary begins no prompt.)
            let is_same = ["model", "add_special"].contains(&cell(0));
            assert_eq!(plain == other, is_same, "{line}: {other}");
        }
    }
}

#[test]
fn a_template_that_is_applied_is_the_prompt_of_a_chat() {
    let site = Site::new();
    let talk = json!({
        "messages": [{ "role": "system", "content": "s" }, { "role": "user", "content": "Hi" }],
    });
    let prompt = ask(&site.client, "/apply-template", &talk)["prompt"].clone();
    assert!(prompt.as_str().is_some_and(|text| text.contains("<|im_start|>user\nHi")), "{prompt}");
    let count = tokens(&site.client, json!({ "content": prompt })).len();
    let chat = with(talk, json!({ "max_tokens": 1 }));
    for path in ["/v1/chat/completions", "/chat/completions"] {
        assert_eq!(ask(&site.client, path, &chat)["usage"]["prompt_tokens"], count);
    }
    let told = ask(&site.client, TEXT, &greedy(json!({ "prompt": prompt })));
    assert_eq!((&told["prompt"], &told["tokens_evaluated"]), (&prompt, &json!(count)));
    let without = Site::with(Setup { chat: false, ..Setup::default() });
    let reply = without.client.post("/apply-template", &chat);
    assert_eq!((reply.status, reply.error("param").as_str()), (400, "messages"));
}

#[test]
fn a_middle_is_filled_in_beside_other_files() {
    let site = Site::with(Setup { infill: true, ..Setup::default() });
    let fill = |members: Value| {
        let body = json!({
            "input_prefix": "def f(", "input_suffix": "):\n", "n_predict": 4, "temperature": 0,
        });
        ask(&site.client, "/infill", &with(body, members))
    };
    let told = |answer: &Value| answer["prompt"].as_str().expect("a prompt").to_owned();
    let plain = fill(json!({}));
    assert_eq!(told(&plain), "<|fim_prefix|>def f(<|fim_suffix|>):\n<|fim_middle|>");
    let openai = json!({ "prompt": "def f(", "suffix": "):\n", "max_tokens": 4, "temperature": 0 });
    let openai = ask(&site.client, "/v1/completions", &openai);
    assert_eq!(openai["choices"][0]["text"], plain["content"]);
    assert!(told(&fill(json!({ "prompt": "self, " }))).contains("def f(self, <|fim_suffix|>"));
    let file = |name: &str, text: &str| json!({ "filename": name, "text": text });
    let extra = json!({ "input_extra": [file("a.py", "a = 1"), { "text": "b = 2" }] });
    let beside = told(&fill(extra));
    let at = |text: &str| beside.find(text).unwrap_or_else(|| panic!("no {text} in {beside}"));
    assert!(at("a = 1") < at("b = 2") && at("b = 2") < at("<|fim_prefix|>def f("));
    // The first that does not fit is left out with all before it.
    let long = json!({ "input_extra": [
        file("a", "near"), file("b", &"x".repeat(600)), file("c", "nearest"),
    ] });
    let cut = fill(long);
    assert!(told(&cut).contains("nearest") && !told(&cut).contains("xxx"), "{cut}");
    assert!(cut["warnings"].to_string().contains("2 of the files"), "{cut}");
    for (members, param) in [
        (json!({ "input_extra": [{ "filename": "a" }] }), "input_extra[0].text"),
        (json!({ "input_extra": [{ "filename": 1, "text": "b" }] }), "input_extra[0].filename"),
        (json!({ "input_prefix": null }), "input_prefix"),
        (json!({ "input_suffix": "x".repeat(600) }), "input_prefix"),
    ] {
        let body = with(json!({ "input_prefix": "a", "input_suffix": "b" }), members);
        let reply = site.client.post("/infill", &body);
        assert_eq!((reply.status, reply.error("param").as_str()), (400, param), "{reply:?}");
    }
    let without = Site::new();
    let reply =
        without.client.post("/infill", &json!({ "input_prefix": "a", "input_suffix": "b" }));
    assert_eq!((reply.status, reply.error("type").as_str()), (501, "not_supported_error"));
    assert!(reply.error("message").contains("infill is not supported"), "{reply:?}");
}

#[test]
fn what_cannot_be_done_is_refused_by_name() {
    let site = Site::new();
    for (members, param) in [
        (json!({ "lora": [{ "id": 0, "scale": 1.0 }] }), "lora"),
        (json!({ "image_data": [{ "data": "aGVsbG8=", "id": 1 }] }), "image_data"),
        (
            json!({ "prompt": { "prompt_string": "<__media__>", "multimodal_data": ["aGk="] } }),
            "prompt.multimodal_data[0]",
        ),
        (json!({ "n_probs": 1, "post_sampling_probs": true }), "post_sampling_probs"),
        (json!({ "mirostat": 1 }), "mirostat"),
        (json!({ "min_keep": 3 }), "min_keep"),
        (json!({ "grammar": "root ::= \"a\"", "json_schema": {} }), "grammar"),
        (json!({ "logit_bias": [[1, "x"]] }), "logit_bias[0]"),
        (json!({ "prompt": [] }), "prompt"),
        (json!({ "n_probs": 50 }), "n_probs"),
    ] {
        let reply = site.client.post(TEXT, &greedy(members.clone()));
        assert_eq!(
            (reply.status, reply.error("param").as_str()),
            (400, param),
            "{members}: {reply:?}"
        );
        assert_eq!(reply.json()["error"]["code"], 400);
    }
    let long = site.client.post(TEXT, &greedy(json!({ "prompt": "x".repeat(600) })));
    let error = &long.json()["error"];
    assert_eq!(
        (&error["type"], &error["n_ctx"]),
        (&json!("exceed_context_size_error"), &json!(512))
    );
    for (path, body) in [
        ("/lora-adapters", json!([{ "id": 0, "scale": 0.5 }])),
        ("/props", json!({})),
        ("/slots/0?action=save", json!({ "filename": "a" })),
    ] {
        let reply = site.client.post(path, &body);
        assert_eq!(
            (reply.status, reply.error("type").as_str()),
            (501, "not_supported_error"),
            "{path}"
        );
    }
    assert_eq!(site.client.get("/lora-adapters").json(), json!([]));
    let told =
        ask(&site.client, TEXT, &greedy(json!({ "cache_prompt": false, "id_slot": 3, "x": 1 })));
    assert_eq!(told["warnings"].as_array().map(Vec::len), Some(3), "{told}");
}

#[test]
fn a_server_tells_what_it_serves_and_how_busy_it_is() {
    let site = Site::new();
    let props = site.client.get("/props").json();
    assert_eq!((&props["model_path"], &props["total_slots"]), (&json!("sim"), &json!(8)));
    let defaults = &props["default_generation_settings"];
    assert_eq!(
        (&defaults["n_ctx"], &defaults["params"]["temperature"]),
        (&json!(512), &json!(0.8))
    );
    assert!(
        props["chat_template"].as_str().is_some_and(|text| text.contains("messages")),
        "{props}"
    );
    assert_eq!(site.client.get("/v1/health").json(), json!({ "status": "ok" }));
    assert_eq!(site.client.get("/models").json()["data"][0]["id"], "sim");
    let busy = |client: &Client| {
        let slots = client.get("/slots").json();
        let slots = slots.as_array().expect("slots").clone();
        assert_eq!((slots.len(), &slots[7]["id"], &slots[0]["n_ctx"]), (8, &json!(7), &json!(512)));
        slots.iter().filter(|slot| slot["is_processing"] == true).count()
    };
    assert_eq!(busy(&site.client), 0);
    site.control.delay(std::time::Duration::from_millis(5));
    let body = greedy(json!({ "n_predict": 400, "ignore_eos": true }));
    let mut streams: Vec<_> = (0..2).map(|_| site.client.stream(TEXT, &body)).collect();
    streams.iter_mut().for_each(|stream| assert!(stream.event().is_some()));
    site.wait_until("two places are taken", |site| busy(&site.client) == 2);
    assert_eq!(site.client.get("/slots?fail_on_no_slot=1").status, 200);
    drop(streams);
    site.settle();
    assert_eq!(busy(&site.client), 0);
    let several = ShelfSite::new(Setup::default(), 1000, &[("small", 100), ("big", 300)]);
    assert_eq!(several.client.get("/props").json()["role"], "router");
    let one = several.client.get("/props?model=big").json();
    assert_eq!((&one["model_alias"], &one["is_sleeping"]), (&json!("big"), &json!(true)));
    assert_eq!(several.client.get("/props?model=none").status, 404);
    assert_eq!(several.client.get("/slots").json(), json!([]));
}

#[test]
fn vectors_and_scores_come_in_each_form() {
    let site = Site::with(Setup { columns: Some(32), ..Setup::default() });
    let numbers =
        |value: &Value| serde_json::from_value::<Vec<f64>>(value.clone()).expect("numbers");
    let openai = ask(&site.client, "/v1/embeddings", &json!({ "input": ["ab", "c"] }));
    for (path, body) in [
        ("/embedding", json!({ "content": ["ab", "c"] })),
        ("/embeddings", json!({ "input": [{ "prompt_string": "ab" }, "c"], "embd_normalize": 2 })),
    ] {
        let own = ask(&site.client, path, &body);
        for index in 0..2 {
            let vector = &openai["data"][index]["embedding"];
            assert_eq!(own[index], json!({ "index": index, "embedding": [vector] }));
        }
    }
    let taxi = json!({ "content": "ab", "embd_normalize": 1 });
    let taxi = numbers(&ask(&site.client, "/embedding", &taxi)[0]["embedding"][0]);
    assert!((taxi.iter().map(|x| x.abs()).sum::<f64>() - 1.0).abs() < 1e-5, "{taxi:?}");
    let reply = site.client.post("/embedding", &json!({ "content": "a", "embd_normalize": -1 }));
    assert_eq!((reply.status, reply.error("param").as_str()), (400, "embd_normalize"));
    let ranked = json!({ "query": "ab", "documents": ["c", "ab", "d"] });
    let jina = ask(&site.client, "/v1/rerank", &ranked);
    let results = jina["results"].as_array().expect("results").clone();
    assert_eq!((results.len(), &results[0]["index"]), (3, &json!(1)), "{jina}");
    assert_eq!(ask(&site.client, "/rerank", &ranked)["results"], jina["results"]);
    let tei = json!({ "query": "ab", "texts": ["c", "ab", "d"], "return_text": true, "top_n": 2 });
    let tei = ask(&site.client, "/reranking", &tei);
    let best = json!({ "index": 1, "score": results[0]["relevance_score"], "text": "ab" });
    assert_eq!((tei.as_array().map(Vec::len), &tei[0]), (Some(2), &best));
    let cohere = ask(&site.client, "/v2/rerank", &with(ranked, json!({ "top_n": 1, "x": 1 })));
    assert_eq!(cohere["results"], json!([results[0]]));
    assert_eq!(cohere["meta"]["api_version"]["version"], "2");
    assert_eq!(cohere["meta"]["warnings"].as_array().map(Vec::len), Some(1));
    assert!(cohere.get("object").is_none() && cohere["id"].is_string(), "{cohere}");
    let cut = json!({ "query": "a", "documents": ["b"], "max_tokens_per_doc": 9 });
    for path in ["/v1/rerank", "/v2/rerank"] {
        let reply = site.client.post(path, &cut);
        assert_eq!((reply.status, reply.error("param").as_str()), (400, "max_tokens_per_doc"));
    }
}
