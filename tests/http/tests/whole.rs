//! What clients of one kind or another count on: texts told with the log-probabilities of their prompts,
//! middles filled in, limits on reasoning, and an end for answers that repeat themselves.

use serde_json::{Map, Value, json};
use tokenmill_http_tests::{Setup, Site};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn merged(mut body: Value, extra: Value) -> Value {
    for (key, value) in extra.as_object().expect("an object") {
        body[key] = value.clone();
    }
    body
}

fn ask(site: &Site, path: &str, body: &Value) -> Value {
    let reply = site.client.post(path, body);
    assert_eq!(reply.status, 200, "{body}: {reply:?}");
    reply.json()
}

/// The chunks of a stream.
fn chunks(site: &Site, path: &str, body: &Value) -> Vec<Value> {
    let events = site.client.stream(path, body).finish().events();
    events.iter().filter_map(|event| serde_json::from_str(event).ok()).collect()
}

// ---- completions -------------------------------------------------------------------------------

fn numbers(list: &Value) -> Vec<Option<f64>> {
    list.as_array().expect("a list").iter().map(Value::as_f64).collect()
}

/// As lm-evaluation-harness reads an answer: the sum over what follows the context but for the token that
/// was generated, and whether all of it was the likeliest.
fn loglikelihood(choice: &Value, context: usize) -> (f64, bool) {
    let told = numbers(&choice["logprobs"]["token_logprobs"]);
    let top = choice["logprobs"]["top_logprobs"].as_array().expect("a list");
    let part = context..told.len() - 1;
    let best = |at: usize| {
        let top = top[at].as_object().expect("alternatives").values();
        top.filter_map(Value::as_f64).fold(f64::NEG_INFINITY, f64::max)
    };
    let sum = part.clone().map(|at| told[at].expect("a number")).sum();
    (sum, part.into_iter().all(|at| told[at] == Some(best(at))))
}

#[test]
fn prompts_are_told_with_their_log_probabilities() {
    let site = Site::new();
    let prompt = "Grüße, 世界";
    let ids: Vec<u32> = prompt.bytes().map(byte_id).collect();
    let body = json!({
        "prompt": ids, "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": true, "seed": 1234,
    });
    let answer = ask(&site, TEXT, &body);
    let choice = &answer["choices"][0];
    let told = &choice["logprobs"];
    let count = ids.len() + 1;
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(told[list].as_array().map(Vec::len), Some(count), "{list}: {told}");
    }
    assert_eq!(
        (&told["token_logprobs"][0], &told["top_logprobs"][0]),
        (&Value::Null, &Value::Null)
    );
    assert!(choice["text"].as_str().expect("a text").starts_with(prompt), "{choice}");
    // Bytes of a character are told as such, and begin where it does.
    assert_eq!(
        (&told["tokens"][2], &told["tokens"][3]),
        (&json!("bytes:\\xc3"), &json!("bytes:\\xbc"))
    );
    let offsets = numbers(&told["text_offset"]);
    assert_eq!(offsets[..5], [0.0, 1.0, 2.0, 3.0, 3.0].map(Some), "{told}");
    // The numbers are those of the model: greedy, each text goes on with its likeliest token.
    let scores = site.engine.score(ids.clone(), 1).expect("scores");
    let found = numbers(&told["token_logprobs"]);
    for (at, scored) in scores.iter().enumerate() {
        assert_eq!(found[at + 1].map(|x| x as f32), Some(scored.logprob), "token {at}");
    }
    let (sum, greedy) = loglikelihood(choice, 4);
    let expect: f64 = scores[3..].iter().map(|s| f64::from(s.logprob)).sum();
    assert!((sum - expect).abs() < 1e-4 && !greedy, "{sum} {expect}");
    assert_eq!(answer["usage"]["prompt_tokens"], json!(ids.len()));
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "{answer}");
    // What the model itself would say is greedy.
    let more = json!({ "prompt": ids, "max_tokens": 5, "temperature": 0, "logprobs": 0,
        "ignore_eos": true });
    let more = ask(&site, TEXT, &more)["choices"][0]["logprobs"]["tokens"].clone();
    let said: Vec<u32> = more.as_array().expect("tokens").iter().map(id_of_word).collect();
    let continued = [&ids[..], &said].concat();
    let whole = merged(body.clone(), json!({ "prompt": continued }));
    let answer = ask(&site, TEXT, &whole);
    assert!(loglikelihood(&answer["choices"][0], ids.len()).1, "{answer}");
    site.settle();
}

/// The id of a byte, in the order of byte-level vocabularies here: that of the byte itself.
fn byte_id(byte: u8) -> u32 {
    u32::from(byte)
}

fn id_of_word(word: &Value) -> u32 {
    let word = word.as_str().expect("a word");
    let byte = match word.strip_prefix("bytes:\\x") {
        Some(hex) => u8::from_str_radix(hex, 16).expect("a byte"),
        None => *word.as_bytes().first().expect("a byte"),
    };
    byte_id(byte)
}

#[test]
fn a_stream_tells_prompts_as_the_whole_answer_does() {
    let site = Site::new();
    let body = json!({
        "prompt": ["ab<|im_end|>c", "d"], "n": 2, "max_tokens": 3, "seed": 3, "logprobs": 2,
        "echo": true, "ignore_eos": true,
    });
    let whole = ask(&site, TEXT, &body);
    let chunks = chunks(&site, TEXT, &body);
    for choice in whole["choices"].as_array().expect("choices") {
        let parts = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().cloned());
        let parts: Vec<Value> = parts.flatten().filter(|c| c["index"] == choice["index"]).collect();
        let text: String = parts.iter().filter_map(|c| c["text"].as_str()).collect();
        assert_eq!(choice["text"], json!(text));
        for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            let told = parts.iter().filter_map(|c| c["logprobs"][list].as_array().cloned());
            assert_eq!(
                choice["logprobs"][list],
                json!(told.flatten().collect::<Vec<_>>()),
                "{list}"
            );
        }
    }
    let first = &whole["choices"][0];
    assert_eq!(first["logprobs"]["tokens"][2], "<|im_end|>", "{first}");
    assert!(
        first["text"].as_str().is_some_and(|text| text.starts_with("ab<|im_end|>c")),
        "{first}"
    );
    assert_eq!(first["logprobs"]["text_offset"][3], json!(12));
    site.settle();
}

/// The token that ends an answer is told where log-probabilities are: clients leave out the last one.
#[test]
fn the_end_is_a_token_too() {
    let site = Site::new();
    let body = json!({
        "prompt": "ab", "max_tokens": 1, "logprobs": 1, "echo": true, "logit_bias": { "259": 100 },
    });
    let answer = ask(&site, TEXT, &body);
    let choice = &answer["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("ab"), &json!("stop")));
    assert_eq!(choice["logprobs"]["token_logprobs"].as_array().map(Vec::len), Some(3), "{choice}");
    assert_eq!(answer["usage"]["completion_tokens"], 1);
}

#[test]
fn an_answer_of_no_tokens_tells_the_prompt_or_nothing() {
    let site = Site::new();
    let body = |extra| merged(json!({ "prompt": ["abc", "d"], "max_tokens": 0, "n": 2 }), extra);
    let plain = ask(&site, TEXT, &body(json!({})));
    let choices = plain["choices"].as_array().expect("choices");
    assert_eq!(choices.len(), 4);
    for choice in choices {
        assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(""), &json!("length")));
    }
    let usage = &plain["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(4), &json!(0)));
    let told = ask(&site, TEXT, &body(json!({ "echo": true, "logprobs": 0 })));
    let first = &told["choices"][1];
    assert_eq!(first["text"], "abc");
    assert_eq!(first["logprobs"]["tokens"], json!(["a", "b", "c"]));
    assert_eq!(told["choices"][2]["logprobs"]["token_logprobs"], json!([null]), "{told}");
    let streamed = chunks(&site, TEXT, &body(json!({ "echo": true })));
    let texts: Vec<&str> =
        streamed.iter().filter_map(|c| c["choices"][0]["text"].as_str()).collect();
    assert_eq!(texts, ["abc", "abc", "d", "d", "", "", "", ""]);
    // A prompt that fills the context has room for no token, and needs none.
    let full = json!({ "prompt": "x".repeat(512), "max_tokens": 0 });
    assert_eq!(site.client.post(TEXT, &full).status, 200);
    assert_eq!(site.client.post(TEXT, &merged(full, json!({ "max_tokens": 1 }))).status, 400);
    for (wrong, param) in [
        (json!({ "prompt": [9999], "max_tokens": 0 }), "prompt"),
        (json!({ "prompt": "a", "max_tokens": 0, "max_completion_tokens": 5 }), "max_completion"),
    ] {
        let reply = site.client.post(TEXT, &wrong);
        assert!(reply.status == 400, "{wrong}: {reply:?}");
        assert!(reply.error("param").starts_with(param) || param == "prompt", "{reply:?}");
    }
    let chat = json!({ "messages": [{ "role": "user", "content": "a" }], "max_tokens": 0 });
    assert_eq!(site.client.post(CHAT, &chat).error("param"), "max_tokens");
    site.settle();
}

#[test]
fn a_middle_is_filled_in_between_marks() {
    let site = Site::with(Setup { infill: true, ..Setup::default() });
    let common = json!({ "max_tokens": 12, "temperature": 0, "logprobs": 0, "ignore_eos": true });
    let said = |extra| {
        let answer = ask(&site, TEXT, &merged(common.clone(), extra));
        (answer["choices"][0]["text"].clone(), answer["usage"]["prompt_tokens"].clone())
    };
    let raw = said(json!({ "prompt": "<|fim_prefix|>def f(<|fim_suffix|>):\n<|fim_middle|>" }));
    assert_eq!(said(json!({ "prompt": "def f(", "suffix": "):\n" })), raw);
    let ids: Vec<u32> = "def f(".bytes().map(byte_id).collect();
    assert_eq!(said(json!({ "prompt": ids, "suffix": "):\n" })), raw);
    // A file that has the marks as text has them as text.
    let (_, tokens) = said(json!({ "prompt": "<|fim_middle|>", "suffix": "x" }));
    assert_eq!(tokens, json!("<|fim_middle|>".len() + 1 + 3));
    // What ends a fill ends the answer, and only there.
    let ends = json!({ "max_tokens": 9, "logit_bias": { "263": 100 }, "ignore_eos": false });
    let ended = ask(
        &site,
        TEXT,
        &merged(
            merged(common.clone(), ends.clone()),
            json!({
                "prompt": "a", "suffix": "b",
            }),
        ),
    );
    assert_eq!(ended["choices"][0]["finish_reason"], "stop", "{ended}");
    assert_eq!(ended["usage"]["completion_tokens"], 1);
    let ended = ask(&site, TEXT, &merged(merged(common, ends), json!({ "prompt": "a" })));
    assert_eq!(ended["choices"][0]["finish_reason"], "length", "{ended}");
    let both = json!({ "prompt": "a", "suffix": "b", "echo": true });
    assert_eq!(site.client.post(TEXT, &both).error("param"), "echo");
    let without = Site::new();
    let reply = without.client.post(TEXT, &json!({ "prompt": "a", "suffix": "b" }));
    assert_eq!((reply.status, reply.error("param").as_str()), (400, "suffix"));
    assert!(reply.error("message").contains("infill is not supported"), "{reply:?}");
}

// ---- reasoning ---------------------------------------------------------------------------------

/// The template of a model that reasons, unless it is told not to.
const REASONS: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n\
    {% endfor %}<|im_start|>assistant\n<think>\n\
    {% if enable_thinking is defined and not enable_thinking %}\n</think>\n\n{% endif %}";

fn thinks(extra: Value) -> Value {
    let body = json!({
        "messages": [{ "role": "user", "content": "q" }], "max_tokens": 60, "seed": 4,
        "temperature": 1.0, "ignore_eos": true, "logprobs": true,
    });
    merged(body, extra)
}

/// The bytes of each token that was generated; reasoning and text.
fn written(answer: &Value, choice: usize) -> (Vec<Vec<u8>>, String, String) {
    let choice = &answer["choices"][choice];
    let tokens = choice["logprobs"]["content"].as_array().expect("tokens");
    let bytes = |token: &Value| {
        let bytes = token["bytes"].as_array().expect("bytes").iter();
        bytes.map(|b| b.as_u64().expect("a byte") as u8).collect()
    };
    let text = |name: &str| choice["message"][name].as_str().unwrap_or_default().to_owned();
    (tokens.iter().map(bytes).collect(), text("reasoning_content"), text("content"))
}

/// Where the mark begins, a token a byte.
fn mark_in(tokens: &[Vec<u8>]) -> usize {
    let at = tokens.windows(8).position(|part| part.concat() == b"</think>");
    at.expect("the mark")
}

/// The id of a token that is a byte.
fn id_of_bytes(bytes: &[u8]) -> u32 {
    match *bytes {
        [byte] => byte_id(byte),
        _ => panic!("another seed: {bytes:?} is no byte"),
    }
}

#[test]
fn reasoning_ends_where_its_budget_does() {
    let site = Site::with(Setup { template: Some(REASONS), ..Setup::default() });
    let free = ask(&site, CHAT, &thinks(json!({})));
    assert_eq!(written(&free, 0).2, "", "left alone, this model thinks for ever");
    for (name, budget) in [
        ("thinking_token_budget", 10),
        ("thinking_budget_tokens", 1),
        ("reasoning_budget", 25),
        ("thinking_budget", 10),
    ] {
        let body = thinks(json!({ name: budget }));
        let answer = ask(&site, CHAT, &body);
        let (bytes, reasoning, text) = written(&answer, 0);
        // Up to the budget the same as ever, at most three bytes more to end a character, the mark, and
        // then the model again.
        let at = mark_in(&bytes);
        assert!((budget..budget + 4).contains(&at), "{name}: {at}");
        assert_eq!(bytes[..budget], written(&free, 0).0[..budget]);
        assert!(!text.is_empty() && !text.contains("</think>") && !reasoning.contains("</think>"));
        assert_eq!(answer["usage"]["completion_tokens"], 60);
        let told = answer["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64();
        let told = told.expect("a number") as usize;
        // (White space and tokens without text right before the mark are no thought.)
        assert!((budget.saturating_sub(3)..=at + 8).contains(&told), "{name}: {told}");
        let whole = merged(body.clone(), json!({ "reasoning": { "max_tokens": budget } }));
        assert_eq!(written(&ask(&site, CHAT, &whole), 0), (bytes, reasoning, text));
    }
    // Behind the mark comes what the model would say there.
    let body = thinks(json!({ "thinking_budget": 10, "temperature": 0 }));
    let (bytes, _, _) = written(&ask(&site, CHAT, &body), 0);
    let at = mark_in(&bytes) + 8;
    let prompt = b"<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n";
    let control =
        |text: &str| json!({ "prompt": text, "max_tokens": 1, "logprobs": 0, "echo": true });
    let ids = ask(&site, TEXT, &control(std::str::from_utf8(prompt).expect("text")));
    let names = ids["choices"][0]["logprobs"]["tokens"].as_array().expect("tokens").clone();
    let id = |name: &Value| match name.as_str() {
        Some("<|im_start|>") => 257,
        Some("<|im_end|>") => 258,
        _ => id_of_word(name),
    };
    let mut ids: Vec<u32> = names[..names.len() - 1].iter().map(id).collect();
    ids.extend(bytes[..at].iter().map(|token| id_of_bytes(token)));
    let next = json!({ "prompt": ids, "max_tokens": 4, "temperature": 0, "logprobs": 0,
        "ignore_eos": true });
    let next = ask(&site, TEXT, &next)["choices"][0]["logprobs"]["tokens"].clone();
    let next: Vec<u32> = next.as_array().expect("tokens").iter().map(id).collect();
    assert_eq!(next, bytes[at..at + 4].iter().map(|token| id_of_bytes(token)).collect::<Vec<_>>());
    site.settle();
}

#[test]
fn a_budget_holds_the_same_bits_however_it_is_computed() {
    let site = Site::with(Setup { template: Some(REASONS), ..Setup::default() });
    // Of three letters, so that guesses are often right.
    let letters: Value =
        b"xyz".iter().map(|&b| (byte_id(b).to_string(), json!(100))).collect::<Map<_, _>>().into();
    let free = |extra| thinks(merged(json!({ "n": 3, "logit_bias": letters }), extra));
    let body = |extra| free(merged(json!({ "thinking_budget": 9 }), extra));
    let alone = ask(&site, CHAT, &body(json!({ "draft": "none" })));
    let told = |answer: &Value| (0..3).map(|i| written(answer, i)).collect::<Vec<_>>();
    assert_ne!(told(&alone)[0], told(&alone)[1], "choices differ");
    // What is said, and what would be said without a budget: right up to there, and beyond.
    let text = |answer: &Value| String::from_utf8(told(answer)[0].0.concat()).expect("letters");
    let longer = text(&ask(&site, CHAT, &free(json!({ "draft": "none" }))));
    assert!(text(&alone)[..9] == longer[..9] && !longer.contains('<'), "{longer}");
    let predicted = |text: &str| json!({ "prediction": { "type": "content", "content": text } });
    let others = [
        body(json!({ "draft": "suffix" })),
        body(predicted(&text(&alone))),
        body(predicted(&longer)),
        body(predicted("</think></think>")),
        body(json!({ "draft": "ngram" })),
    ];
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let asked: Vec<_> =
            others.iter().map(|body| scope.spawn(|| ask(&site, CHAT, body))).collect();
        asked.into_iter().map(|one| one.join().expect("an answer")).collect()
    });
    for (answer, body) in answers.iter().zip(&others) {
        assert_eq!(told(answer), told(&alone), "{body}");
    }
    let parts = chunks(&site, CHAT, &body(json!({})));
    let joined = |name: &str| -> String {
        let of_first = |c: &&Value| c["choices"][0]["index"] == 0;
        let texts = parts.iter().filter(of_first);
        texts.filter_map(|c| c["choices"][0]["delta"][name].as_str()).collect()
    };
    let (_, reasoning, text) = told(&alone).remove(0);
    assert_eq!((joined("reasoning_content"), joined("content")), (reasoning, text));
    site.settle();
}

#[test]
fn no_budget_at_all_turns_thinking_off() {
    let site = Site::with(Setup { template: Some(REASONS), ..Setup::default() });
    let off = ask(&site, CHAT, &thinks(json!({ "enable_thinking": false })));
    let none = ask(&site, CHAT, &thinks(json!({ "thinking_budget": 0 })));
    assert_eq!(written(&none, 0), written(&off, 0));
    assert_eq!(none["usage"]["prompt_tokens"], off["usage"]["prompt_tokens"]);
    // Where the template has no such switch, the reasoning ends as it begins.
    const ALWAYS: &str =
        "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n{# </think> #}";
    let site = Site::with(Setup { template: Some(ALWAYS), ..Setup::default() });
    let none = ask(&site, CHAT, &thinks(json!({ "thinking_budget": 0 })));
    let (bytes, reasoning, text) = written(&none, 0);
    assert!(
        bytes.concat().starts_with(b"</think>") && reasoning.is_empty() && !text.is_empty(),
        "{none}"
    );
    // A schema holds behind it all the same.
    let schema = json!({ "type": "object", "properties": { "kind": { "enum": ["a", "b"] } },
        "required": ["kind"], "additionalProperties": false });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": schema } });
    for budget in [0, 7] {
        let body = json!({ "thinking_budget": budget, "response_format": format,
            "ignore_eos": false, "max_tokens": 90 });
        let answer = ask(&site, CHAT, &thinks(body));
        let (_, _, text) = written(&answer, 0);
        assert!(text == "{\"kind\":\"a\"}" || text == "{\"kind\":\"b\"}", "{budget}: {answer}");
    }
    site.settle();
}

#[test]
fn a_budget_without_reasoning_has_no_effect_and_says_so() {
    let site = Site::new();
    let body = thinks(json!({ "thinking_budget": 7 }));
    let answer = ask(&site, CHAT, &body);
    let warned = "thinking_budget has no effect: answers of this model mark no reasoning";
    assert_eq!(answer["warnings"], json!([warned]));
    let plain = ask(&site, CHAT, &thinks(json!({})));
    assert_eq!(written(&answer, 0), written(&plain, 0));
    let differ = thinks(json!({ "thinking_budget": 7, "reasoning": { "max_tokens": 8 } }));
    assert_eq!(site.client.post(CHAT, &differ).error("param"), "reasoning.max_tokens");
    let messages = json!({
        "model": "sim", "max_tokens": 5, "messages": [{ "role": "user", "content": "q" }],
        "thinking": { "type": "enabled", "budget_tokens": 5 },
    });
    let answer = ask(&site, "/v1/messages", &messages);
    assert!(answer["warnings"].to_string().contains("thinking.budget_tokens has no effect"));
}

/// Messages of the model are gone on with where they end, reasoning that they begun too.
#[test]
fn an_answer_goes_on_with_the_models_own_message() {
    let site = Site::with(Setup { context: 2048, ..Setup::default() });
    let body = |said: &str, extra| {
        let body = json!({
            "messages": [
                { "role": "user", "content": "q" }, { "role": "assistant", "content": said },
            ],
            "continue_final_message": true, "add_generation_prompt": false,
            "tools": [{ "type": "function", "function": { "name": "f" } }],
            "structured_outputs": { "choice": ["two</think>three"] }, "max_tokens": 40,
        });
        merged(body, extra)
    };
    let message = |body: &Value| ask(&site, CHAT, body)["choices"][0]["message"].clone();
    let found = message(&body("One, ", json!({})));
    assert_eq!(found["content"], "two</think>three", "{found}");
    let thinks = json!({ "structured_outputs": { "choice": ["three"] }, "thinking_budget": 4 });
    let found = message(&body("<think>One, ", thinks));
    let thought = found["reasoning_content"].as_str().expect("a thought");
    assert!(!thought.is_empty() && !thought.contains("think"), "{found}");
    assert_eq!(found["content"], "three", "{found}");
    let whole = message(&body("<think>One</think>", json!({})));
    assert_eq!(whole["content"], "two</think>three", "{whole}");
    // Nothing stands between what was said and what comes.
    let plain = json!({ "structured_outputs": null, "tools": null, "temperature": 0 });
    let found = message(&body("One, ", plain));
    let raw = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nOne, ";
    let raw = json!({ "prompt": raw, "max_tokens": 40, "temperature": 0 });
    assert_eq!(found["content"], ask(&site, TEXT, &raw)["choices"][0]["text"]);
}

// ---- repeats -----------------------------------------------------------------------------------

fn site_of_long_answers() -> Site {
    Site::with(Setup { context: 4096, blocks: 1200, ..Setup::default() })
}

fn says(extra: Value) -> Value {
    let body =
        json!({ "messages": [{ "role": "user", "content": "q" }], "max_tokens": 3000, "seed": 1 });
    merged(body, extra)
}

#[test]
fn what_repeats_itself_for_ever_is_ended_and_told() {
    let site = site_of_long_answers();
    // One letter again and again says little: two thousand of them are a loop.
    let letters = json!({ "logit_bias": { "65": 100 } });
    let answer = ask(&site, CHAT, &says(letters.clone()));
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(choice["message"]["content"], "A".repeat(2048));
    assert_eq!(answer["usage"]["completion_tokens"], 2048);
    let told = "the answer was ended: its last 2048 tokens are copies of 1 \
                (\"repetition_detection\": false lets it go on)";
    assert_eq!(answer["warnings"], json!([told]));
    let last = chunks(&site, CHAT, &says(letters.clone()));
    let last = last.iter().find(|c| c["choices"][0]["finish_reason"] == "stop").expect("an end");
    assert_eq!(last["warnings"], json!([told]));
    let messages =
        merged(says(json!({ "model": "sim", "structured_outputs": { "regex": "A*" } })), json!({}));
    let first = ask(&site, "/v1/messages", &messages);
    let whole = first["content"][0]["text"].as_str().map_or(0, str::len);
    assert!(whole < 2048 || first["warnings"] == json!([told]), "{first}");
    // Whoever asks for it may have it all.
    for extra in [json!({ "repetition_detection": false }), json!({ "ignore_eos": true })] {
        let answer = ask(&site, CHAT, &says(merged(letters.clone(), extra)));
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        assert_eq!(answer["usage"]["completion_tokens"], 3000);
    }
    // Texts that are gone on with are not ended, unless that is asked.
    let text = merged(says(letters), json!({ "prompt": "q", "messages": null }));
    assert_eq!(ask(&site, TEXT, &text)["usage"]["completion_tokens"], 3000);
    let rule = json!({ "max_pattern_size": 4, "min_pattern_size": 2, "min_count": 10 });
    let asked = ask(&site, TEXT, &merged(text, json!({ "repetition_detection": rule })));
    assert_eq!(asked["usage"]["completion_tokens"], 20, "{asked}");
    site.settle();
}

/// Where a grammar lets no answer end, one that repeats itself is cut, not ended.
#[test]
fn what_is_held_is_cut_where_it_may_not_end() {
    let site = site_of_long_answers();
    let held = |copies: u32| {
        let regex = format!("(abcdefghijklmnopqrst){{{copies}}}");
        says(json!({ "structured_outputs": { "regex": regex } }))
    };
    let short = ask(&site, CHAT, &held(38));
    assert_eq!(short["choices"][0]["finish_reason"], "stop");
    assert!(short.get("warnings").is_none(), "760 tokens are no loop yet: {short}");
    let cut = ask(&site, CHAT, &held(60));
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    assert_eq!(cut["usage"]["completion_tokens"], 768);
    assert!(cut["warnings"].to_string().contains("was cut: its last 768 tokens are copies of 20"));
    // The same with drafts, which a grammar foresees, and without.
    let none = ask(&site, CHAT, &merged(held(60), json!({ "draft": "none" })));
    assert_eq!(none["choices"], cut["choices"]);
    site.settle();
}

/// Things that repeat, as people ask for them.
#[test]
fn tables_rulers_and_rows_are_left_alone() {
    let rows = "2024-01-01,0.00,0.00,N/A,false\n".repeat(20);
    let table = "| 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 |\n".repeat(40);
    let zeros =
        format!("static const float w[256] = {{\n{}}};\n", "    0.0f, 0.0f, 0.0f,\n".repeat(60));
    let art = format!("+{}+\n{}", "-".repeat(120), "|          |          |\n".repeat(40));
    let lines = "I will not talk in class.\n".repeat(25);
    let spaces = " ".repeat(1500);
    let site = site_of_long_answers();
    for text in [rows, table, zeros, art, lines, spaces] {
        let answer = ask(&site, CHAT, &says(json!({ "structured_outputs": { "choice": [text] } })));
        assert_eq!(answer["choices"][0]["message"]["content"], json!(text));
        assert!(answer.get("warnings").is_none(), "{answer}");
    }
}
