//! What a router of many machines sees of a worker: events of the prompt cache over ZeroMQ, its load, its
//! words for itself, tokens in and out, and how it takes leave.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::time::Duration;

use serde_json::{Value, json};
use tokenmill_http_tests::{Setup, Site, free_address};
use tokenmill_server::{KvEvents, ServeError, spawn};
use tokio::runtime::Runtime;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

const TEXT: &str = "/v1/completions";
const TOPIC: &str = "kv@here@sim";

/// A server that tells what it caches, and where it sends again what was missed.
fn telling(setup: Setup) -> (Site, KvEvents) {
    let (bind, replay) = (free_address(), Some(free_address()));
    let events = KvEvents { bind, replay, topic: TOPIC.into() };
    let mut setup = setup;
    setup.server.kv_events = Some(events.clone());
    (Site::with(setup), events)
}

/// The events of a batch; it is for the whole of the model.
fn events(batch: &[u8]) -> Vec<Value> {
    let whole: Value = rmp_serde::from_slice(batch).expect("MessagePack");
    assert!(whole[0].as_f64().is_some_and(|time| time > 1e9), "{whole}");
    assert_eq!(whole[2], 0);
    whole[1].as_array().cloned().expect("events")
}

/// A copy of what is cached: each block's tokens, and the block before it.
#[derive(Debug, Default, PartialEq)]
struct Copy(BTreeMap<u64, (Option<u64>, Vec<u64>)>);

impl Copy {
    fn take(&mut self, batch: &[u8]) {
        let numbers = |list: &Value| -> Vec<u64> {
            list.as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
        };
        for event in events(batch) {
            match event[0].as_str() {
                Some("BlockStored") => {
                    let (tokens, size) = (numbers(&event[3]), event[4].as_u64().expect("a size"));
                    assert_eq!((size, &event[6]), (16, &json!("GPU")));
                    let mut parent = event[2].as_u64();
                    for (id, block) in numbers(&event[1]).into_iter().zip(tokens.chunks(16)) {
                        self.0.insert(id, (parent.replace(id), block.to_vec()));
                    }
                }
                Some("BlockRemoved") => {
                    numbers(&event[1]).iter().for_each(|id| drop(self.0.remove(id)));
                }
                Some("AllBlocksCleared") => self.0.clear(),
                _ => panic!("{event}"),
            }
        }
    }
}

type Batches = BTreeMap<u64, Vec<u8>>;

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("eight bytes"))
}

/// What is sent again from a number on.
async fn again(from: u64, events: &KvEvents) -> Batches {
    let mut socket = DealerSocket::new();
    let address = format!("tcp://{}", events.replay.expect("an address"));
    socket.connect(&address).await.expect("a connection");
    let mut ask = ZmqMessage::from(Vec::new());
    ask.push_back(from.to_be_bytes().to_vec().into());
    socket.send(ask).await.expect("it is asked");
    let mut all = Batches::new();
    loop {
        let parts = socket.recv().await.expect("an answer").into_vec();
        let [empty, n, batch] = &parts[..] else { panic!("{} parts", parts.len()) };
        assert!(empty.is_empty());
        if n[..] == [0xff; 8] {
            return all;
        }
        all.insert(number(n), batch.to_vec());
    }
}

/// What comes until nothing more does.
async fn heard(socket: &mut SubSocket) -> Batches {
    let mut all = Batches::new();
    while let Ok(message) = tokio::time::timeout(Duration::from_millis(300), socket.recv()).await {
        let parts = message.expect("a message").into_vec();
        let [topic, n, batch] = &parts[..] else { panic!("{} parts", parts.len()) };
        assert_eq!(topic[..], *TOPIC.as_bytes());
        all.insert(number(n), batch.to_vec());
    }
    all
}

fn ask(site: &Site, prompt: &str) {
    let reply = site.client.post(TEXT, &json!({ "prompt": prompt, "max_tokens": 2 }));
    assert_eq!(reply.status, 200, "{reply:?}");
}

fn copy_of(batches: &Batches) -> Copy {
    let mut copy = Copy::default();
    batches.values().for_each(|batch| copy.take(batch));
    copy
}

#[test]
fn a_copy_made_of_events_is_what_is_cached_also_when_some_were_missed() {
    // (So few blocks that old prompts go.)
    let (site, events) = telling(Setup { blocks: 40, ..Setup::default() });
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let mut socket = SubSocket::new();
        socket.connect(&format!("tcp://{}", events.bind)).await.expect("a connection");
        socket.subscribe(TOPIC).await.expect("a subscription");
        let mut told = Batches::new();
        // Who subscribes hears all that there is, and what comes later.
        for _ in 0..40 {
            told.extend(heard(&mut socket).await);
            if !told.is_empty() {
                break;
            }
        }
        assert!(!told.is_empty(), "nothing is told");
        ask(&site, "words that everybody begins with, and then the first");
        for n in 0..12 {
            ask(&site, &format!("{n}{}", " is a number".repeat(15)));
        }
        told.extend(heard(&mut socket).await);
        let whole = again(0, &events).await;
        assert!(whole.keys().copied().eq(0..whole.len() as u64), "all of them, in order");
        assert!(told.iter().all(|(n, batch)| whole.get(n) == Some(batch)), "the same ones");
        let copy = copy_of(&whole);
        assert!(!copy.0.is_empty() && copy.0.len() <= 40, "{}", copy.0.len());
        let gone = whole.values().flat_map(|b| self::events(b)).any(|e| e[0] == "BlockRemoved");
        assert!(gone, "old prompts went");
        let tokens: Vec<u64> =
            format!("11{}", " is a number".repeat(2)).bytes().map(u64::from).collect();
        assert!(copy.0.values().any(|(parent, text)| parent.is_none() && *text == tokens[..16]));
        // One in three is lost on its way, and asked for again.
        let mut broken: Batches = whole.clone();
        broken.retain(|n, _| n % 3 != 1);
        let first_missed = (0..).find(|n| !broken.contains_key(n)).expect("one is missed");
        broken.extend(again(first_missed, &events).await);
        assert_eq!(copy_of(&broken), copy);
        // One who knows less than is kept, or nothing, is told all anew by the publisher.
        assert_eq!(again(whole.len() as u64, &events).await, Batches::new());
    });
}

#[test]
fn who_subscribes_late_hears_what_is_cached_already() {
    let (site, events) = telling(Setup::default());
    ask(&site, "words that were asked about before anybody listened");
    Runtime::new().expect("a runtime").block_on(async {
        let cached = copy_of(&again(0, &events).await);
        assert!(!cached.0.is_empty());
        let mut socket = SubSocket::new();
        socket.connect(&format!("tcp://{}", events.bind)).await.expect("a connection");
        socket.subscribe(TOPIC).await.expect("a subscription");
        let mut told = Batches::new();
        for _ in 0..40 {
            told.extend(heard(&mut socket).await);
            if copy_of(&told) == cached {
                return;
            }
        }
        panic!("{} of {} blocks were told", copy_of(&told).0.len(), cached.0.len());
    });
}

#[test]
fn what_holders_of_keys_have_for_themselves_is_not_told() {
    let mut setup = Setup::default();
    setup.server.api_keys = vec!["one".into(), "two".into()];
    let (site, events) = telling(setup);
    let body = json!({ "prompt": "words that are mine, and long enough", "max_tokens": 2 });
    for key in ["one", "two"] {
        let headers = [("x-api-key", key), ("content-type", "application/json")];
        let reply = site.client.send("POST", TEXT, &headers, body.to_string().as_bytes());
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    let runtime = Runtime::new().expect("a runtime");
    let whole = runtime.block_on(again(0, &events));
    assert_eq!(copy_of(&whole), Copy::default());
}

#[test]
fn events_are_of_one_model_and_ports_are_bound_before_anything_is_answered() {
    let setup = Setup::default();
    let control = Default::default();
    let model = setup.model(&control);
    let mut other = setup.model(&control);
    other.names = vec!["other".into()];
    let mut server = setup.server.clone();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let bind = taken.local_addr().expect("its address");
    server.kv_events = Some(KvEvents { bind, replay: None, topic: String::new() });
    let refused = spawn(server.clone(), vec![model.clone(), other]).err();
    assert!(matches!(refused, Some(ServeError::SeveralCaches { models: 2 })));
    let refused = spawn(server, vec![model]).err();
    assert!(matches!(refused, Some(ServeError::Bind { .. })), "{refused:?}");
}

#[test]
fn a_router_is_told_what_is_served_and_how_busy_it_is() {
    let (site, events) = telling(Setup::default());
    assert_eq!(site.client.get("/ping").status, 200);
    ask(&site, "hi");
    site.settle();
    let load = site.client.get("/load").json();
    assert_eq!((&load["server_load"], &load["models"]["sim"]["running"]), (&json!(0), &json!(0)));
    for path in ["/server_info", "/get_server_info", "/server_info?model=sim"] {
        let info = site.client.get(path).json();
        assert_eq!(info["served_model_name"], "sim");
        assert_eq!((&info["block_size"], &info["num_blocks"]), (&json!(16), &json!(300)));
        assert_eq!((&info["max_running_requests"], &info["status"]), (&json!(8), &json!("ready")));
        let told = &info["kv_events"];
        assert_eq!(told["endpoint"], format!("tcp://{}", events.bind));
        assert_eq!(told["topic"], TOPIC);
    }
    for path in ["/model_info", "/get_model_info"] {
        let info = site.client.get(path).json();
        assert_eq!((&info["model_path"], &info["is_generation"]), (&json!("sim"), &json!(true)));
        assert_eq!(
            (&info["max_context_length"], &info["eos_token_ids"][0]),
            (&json!(512), &json!(258))
        );
    }
    assert_eq!(site.client.get("/model_info?model=none").status, 404);
    let size = r#"vllm:cache_config_info{model_name="sim",block_size="16",num_gpu_blocks="300"}"#;
    assert_eq!(site.metric(size), 1.0);
}

#[test]
fn tokens_go_in_and_come_out() {
    let site = Site::new();
    let prompt: Vec<u32> = "tokens in".bytes().map(u32::from).collect();
    let body = |stream: bool| {
        json!({
            "prompt": prompt, "max_tokens": 5, "temperature": 0, "return_token_ids": true,
            "stream": stream, "ignore_eos": true,
        })
    };
    let whole = site.client.post(TEXT, &body(false)).json();
    let choice = &whole["choices"][0];
    assert_eq!(choice["prompt_token_ids"], json!(prompt));
    let ids = choice["token_ids"].as_array().cloned().expect("ids");
    assert_eq!(ids.len(), 5, "{whole}");
    assert!(choice["logprobs"].is_null());
    // The ids are those of the answer: what they go on to is the same.
    let more: Vec<Value> =
        prompt.iter().map(|id| json!(id)).chain(ids[..3].iter().cloned()).collect();
    let next = json!({ "prompt": more, "max_tokens": 2, "temperature": 0,
        "return_token_ids": true, "ignore_eos": true });
    let next = site.client.post(TEXT, &next).json();
    assert_eq!(next["choices"][0]["token_ids"], json!(ids[3..]));
    let events = site.client.post(TEXT, &body(true)).events();
    let chunks = events.iter().filter_map(|event| serde_json::from_str::<Value>(event).ok());
    let choices: Vec<Value> = chunks.map(|chunk| chunk["choices"][0].clone()).collect();
    assert_eq!(choices[0]["prompt_token_ids"], json!(prompt));
    let streamed: Vec<Value> = choices
        .iter()
        .flat_map(|choice| choice["token_ids"].as_array().cloned().unwrap_or_default())
        .collect();
    assert_eq!(streamed, ids);
    let say = json!({
        "messages": [{ "role": "user", "content": "a" }], "max_tokens": 3, "return_token_ids": true,
    });
    let chat = site.client.post("/v1/chat/completions", &say).json();
    assert!(chat["prompt_token_ids"].as_array().is_some_and(|ids| ids.len() > 3), "{chat}");
    assert!(chat["choices"][0]["token_ids"].is_array(), "{chat}");
}

#[test]
fn a_priority_may_come_as_a_header() {
    let site = Site::new();
    let body = json!({ "prompt": "a", "max_tokens": 1 }).to_string();
    for (value, status) in [("-5", 200), (" 7", 200), ("urgent", 400), ("99999999999", 400)] {
        let headers = [("x-request-priority", value), ("content-type", "application/json")];
        let reply = site.client.send("POST", TEXT, &headers, body.as_bytes());
        assert_eq!(reply.status, status, "{value}: {reply:?}");
    }
}

#[test]
fn who_may_drains_a_server_and_no_answer_is_lost() {
    let mut setup = Setup { step: Duration::from_millis(20), ..Setup::default() };
    setup.server.api_keys = vec!["first".into(), "second".into()];
    let mut site = Site::with(setup);
    let send = |path: &str, key: &str, body: &Value| {
        let headers = [("x-api-key", key), ("content-type", "application/json")];
        site.client.send("POST", path, &headers, body.to_string().as_bytes())
    };
    let drain = json!({ "drain": true });
    assert_eq!(send("/drain", "second", &drain).status, 403);
    let reply = send("/drain", "first", &json!({}));
    assert_eq!((reply.status, reply.error("param")), (400, "drain".to_owned()));
    let client = site.client;
    let answer = std::thread::spawn(move || {
        let body = json!({ "prompt": "a", "max_tokens": 400, "ignore_eos": true });
        let headers = [("x-api-key", "second"), ("content-type", "application/json")];
        client.send("POST", TEXT, &headers, body.to_string().as_bytes())
    });
    let load = || site.client.send("GET", "/load", &[("x-api-key", "first")], b"").json();
    while load()["server_load"] == 0 {
        assert!(!answer.is_finished(), "it was never seen");
        std::thread::sleep(Duration::from_millis(1));
    }
    let reply = send("/drain", "first", &drain);
    assert_eq!((reply.status, &reply.json()["open"]), (202, &json!(1)), "{reply:?}");
    assert_eq!(send(TEXT, "second", &json!({ "prompt": "b" })).status, 503);
    site.control.delay(Duration::ZERO);
    let answer = answer.join().expect("an answer");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["usage"]["completion_tokens"], 400);
    let server = site.server.take().expect("it runs");
    server.wait().expect("it ends by itself");
}
