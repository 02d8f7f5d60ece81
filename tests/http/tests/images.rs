//! Images over HTTP, seen by a recorded model of tests/golden on the reference device: in every dialect
//! the same prompt, cached like text.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tokenmill_backend::reference::ReferenceDevice;
use tokenmill_backend::{Device, DeviceError, Executable, Footprint, Watch, Weights};
use tokenmill_engine::load::{LoadOptions, WeightBits, load};
use tokenmill_engine::start::ServeOptions;
use tokenmill_engine::{Defaults, DraftMode, Engine, Eyes};
use tokenmill_golden_tests::{Golden, Variant};
use tokenmill_http_tests::{Client, Reply};
use tokenmill_ir::{Batch, DeviceCaps, KvFormat, Limits, Mode, Program, StepOutput, WeightSource};
use tokenmill_server::{ImageHosts, Running, ServedModel, ServerConfig, spawn};
use tokenmill_text::{ChatTemplate, GgufVocab, Tokenizer};

const TEMPLATE: &str = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}\
    {% for p in m.content %}{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>\
    {% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>{% endfor %}";
/// Rows of a picture of 56 x 56 pixels: patches of 4, four of which merge.
const ROWS: u64 = 49;

/// ASCII, and the marks of a model with 157 tokens.
fn tokenizer() -> Tokenizer {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7e);
    let mut next = 0x100;
    let mut spell = |byte: u8| {
        let code = if printable(byte) { u32::from(byte) } else { next };
        next += u32::from(!printable(byte));
        char::from_u32(code).expect("a character").to_string()
    };
    let mut tokens: Vec<String> = (0..=127).map(&mut spell).collect();
    let pair = ["\u{100}", "\u{101}"];
    tokens.push(pair.concat());
    tokens.extend((129..152).map(|id| format!("word{id}")));
    let mut token_types = vec![1; tokens.len()];
    let marks = ["im_end", "vision_start", "vision_end", "image_pad", "video_pad"];
    tokens.extend(marks.map(|mark| format!("<|{mark}|>")));
    token_types.resize(tokens.len(), 3);
    let vocab = GgufVocab {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        tokens,
        token_types,
        merges: vec![pair.join(" ")],
        eos: Some(152),
        ..GgufVocab::default()
    };
    Tokenizer::from_gguf(vocab).expect("a tokenizer")
}

/// What an encoder does, and whether its steps may end.
#[derive(Clone, Default)]
struct Gate {
    closed: Arc<AtomicBool>,
    patches: Arc<AtomicU64>,
}

impl Gate {
    fn open(&self) {
        self.closed.store(false, Ordering::SeqCst);
    }

    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Patches of all steps so far.
    fn patches(&self) -> u64 {
        self.patches.load(Ordering::SeqCst)
    }
}

/// The reference device, whose encoders stop at a gate.
struct Gated(ReferenceDevice, Gate);

struct GatedEncoder(Box<dyn Executable>, Gate);

impl Device for Gated {
    fn caps(&self) -> &DeviceCaps {
        self.0.caps()
    }

    fn upload(
        &self,
        program: &Program,
        source: &dyn WeightSource,
        mode: Mode,
        watch: Watch<'_>,
    ) -> Result<Weights, DeviceError> {
        self.0.upload(program, source, mode, watch)
    }

    fn footprint(
        &self,
        program: &Program,
        limits: &Limits,
        mode: Mode,
    ) -> Result<Footprint, DeviceError> {
        self.0.footprint(program, limits, mode)
    }

    fn compile(
        &self,
        program: &Program,
        weights: &Weights,
        limits: &Limits,
    ) -> Result<Box<dyn Executable>, DeviceError> {
        let inner = self.0.compile(program, weights, limits)?;
        Ok(match program.whole_sequences {
            true => Box::new(GatedEncoder(inner, self.1.clone())),
            false => inner,
        })
    }
}

impl Executable for GatedEncoder {
    fn submit(&mut self, batch: &mut Batch) -> Result<(), DeviceError> {
        self.1.patches.fetch_add(batch.tokens.len() as u64, Ordering::SeqCst);
        self.0.submit(batch)
    }

    fn advance(&mut self, at_most: Duration) -> Result<bool, DeviceError> {
        match self.1.closed.load(Ordering::SeqCst) {
            true => Ok(false),
            false => self.0.advance(at_most),
        }
    }

    fn wait(&mut self, out: &mut StepOutput) -> Result<(), DeviceError> {
        self.0.wait(out)
    }

    fn resize(&mut self, blocks: &[u32]) -> Result<(), DeviceError> {
        self.0.resize(blocks)
    }
}

struct Seeing {
    server: Option<Running>,
    engine: Engine,
    client: Client,
    gate: Gate,
}

impl Seeing {
    fn new() -> Self {
        Self::preparing(None)
    }

    /// A site that prepares so many requests at once.
    fn preparing(places: Option<usize>) -> Self {
        let gate = Gate::default();
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let path = Golden::read("vision/qwen2_vl").path(Variant::Config, scratch.path());
        let options = LoadOptions {
            mode: Mode::F32,
            kv: KvFormat::F32,
            context: Some(320),
            sequences: 4,
            step_tokens: 64,
            memory_bytes: 1 << 32,
            images: true,
            weights: WeightBits::Auto,
        };
        let loaded = load(
            &path,
            Arc::new(Gated(ReferenceDevice::new(8), gate.clone())),
            &options,
            |_, _| {},
        );
        let options = ServeOptions { queue: 16, step_s: 10.0, draft: DraftMode::None };
        let served = loaded.expect("loaded").start(options).expect("started");
        let tokenizer = Arc::new(tokenizer());
        let template = ChatTemplate::new(TEMPLATE, tokenizer.template_tokens());
        let eyes = Eyes::new(served.sight.expect("it sees")).expect("its processor is built");
        let engine = served.engine;
        let model = ServedModel {
            names: vec!["eyes".into()],
            engine: engine.clone(),
            tokenizer,
            template: Ok(Arc::new(template.expect("a template"))),
            context: engine.longest(),
            eyes: Some(Arc::new(eyes)),
            defaults: Defaults::default(),
            created: 1_700_000_000,
        };
        let mut config = ServerConfig::new(([127, 0, 0, 1], 0).into());
        config.fetch_images = Some(ImageHosts { named: vec!["127.0.0.1".into()] });
        config.limits.preparing = places.unwrap_or(config.limits.preparing);
        let server = spawn(config, vec![model]).expect("the server starts");
        let client = Client::new(server.address());
        Self { server: Some(server), engine, client, gate }
    }

    /// Asks about an image on a thread of its own.
    fn asking(&self, url: &str) -> JoinHandle<Reply> {
        let (client, body) = (Client::new(self.client.address()), question(&[url]));
        std::thread::spawn(move || client.post("/v1/chat/completions", &body))
    }

    fn wait_until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            assert!(start.elapsed() < Duration::from_secs(20), "waited in vain: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Requests that are being answered.
    fn in_flight(&self) -> u64 {
        let page = self.client.get("/metrics").body;
        let line = page.lines().find_map(|l| l.strip_prefix("tokenmill_http_requests_in_flight "));
        line.and_then(|count| count.parse().ok()).expect("a number")
    }

    /// The answer of a chat about these images, and what it took.
    fn chat(&self, urls: &[&str]) -> Reply {
        self.client.post("/v1/chat/completions", &question(urls))
    }
}

/// A chat about images.
fn question(urls: &[&str]) -> Value {
    let image = |url: &&str| json!({ "type": "image_url", "image_url": { "url": url } });
    let mut parts: Vec<Value> = urls.iter().map(image).collect();
    parts.push(json!({ "type": "text", "text": "What is it?" }));
    let messages = json!([{ "role": "user", "content": parts }]);
    json!({ "messages": messages, "max_tokens": 6, "temperature": 0, "logprobs": true })
}

impl Drop for Seeing {
    fn drop(&mut self) {
        self.gate.open();
        drop(self.server.take());
        self.engine.shut_down();
    }
}

/// A picture of 56 x 56 pixels as a bitmap.
fn bitmap(colour: impl Fn(u32, u32) -> [u8; 3]) -> Vec<u8> {
    let mut file = b"BM".to_vec();
    for number in [54 + 56 * 56 * 3, 0, 54, 40, 56, 56, 1 | 24 << 16, 0, 0, 0, 0, 0, 0u32] {
        file.extend(number.to_le_bytes());
    }
    (0..56 * 56).for_each(|i| file.extend(colour(i % 56, i / 56)));
    file
}

fn url(file: &[u8]) -> String {
    format!("data:image/bmp;base64,{}", BASE64_STANDARD.encode(file))
}

/// The tokens of an answer with their log-probabilities, those of its prompt, and how many of these were found.
fn told(reply: &Reply) -> (Value, u64, u64) {
    assert_eq!(reply.status, 200, "{reply:?}");
    let body = reply.json();
    let usage = &body["usage"];
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or_default();
    let tokens = body["choices"][0]["logprobs"]["content"].clone();
    assert!(tokens.as_array().is_some_and(|tokens| !tokens.is_empty()), "{body}");
    (tokens, usage["prompt_tokens"].as_u64().expect("a count"), cached)
}

#[test]
fn images_are_part_of_the_prompt_and_cached_like_text() {
    let site = Seeing::new();
    let (red, blue) = (bitmap(|x, _| [0, 0, x as u8 * 4]), bitmap(|_, y| [y as u8 * 4, 9, 0]));
    let (answer, tokens, cached) = told(&site.chat(&[&url(&red)]));
    // Two marks, the words, the end of the turn.
    assert_eq!((tokens, cached), (ROWS + 2 + 11 + 1, 0));
    let (again, same, cached) = told(&site.chat(&[&url(&red)]));
    assert_eq!((&again, same), (&answer, tokens));
    assert!(cached > 30, "{cached} tokens of the same image were found");
    let (_, same, cached) = told(&site.chat(&[&url(&blue)]));
    assert!(same == tokens && cached < 16, "{cached} tokens of another image were found");
    let (_, two, _) = told(&site.chat(&[&url(&red), &url(&blue)]));
    assert_eq!(two, 2 * (ROWS + 2) + 12);
    // Other dialects, and an image that is fetched: the same prompt, found whole.
    let data = BASE64_STANDARD.encode(&red);
    let source = json!({ "type": "base64", "media_type": "image/bmp", "data": data });
    let parts =
        json!([{ "type": "image", "source": source }, { "type": "text", "text": "What is it?" }]);
    let messages = json!([{ "role": "user", "content": parts }]);
    let body = json!({ "model": "eyes", "max_tokens": 6, "temperature": 0, "messages": messages });
    let reply = site.client.post("/v1/messages", &body).json();
    let found = reply["usage"]["cache_read_input_tokens"].as_u64();
    assert!(found.is_some_and(|found| found > 30), "{reply}");
    let messages = json!([{ "role": "user", "content": "What is it?", "images": [data] }]);
    let options = json!({ "temperature": 0, "num_predict": 6 });
    let body =
        json!({ "model": "eyes", "messages": messages, "stream": false, "options": options });
    let reply = site.client.post("/api/chat", &body).json();
    assert_eq!(reply["prompt_eval_count"], tokens, "{reply}");
    let fetched = format!("http://127.0.0.1:{}/red.bmp", serving(red));
    let (same, _, cached) = told(&site.chat(&[&fetched]));
    assert!(same == answer && cached > 30, "{cached} tokens of the fetched image were found");
}

#[test]
fn a_text_has_images_where_it_has_marks() {
    let site = Seeing::new();
    let data = BASE64_STANDARD.encode(bitmap(|x, _| [0, 0, x as u8 * 4]));
    let complete = |text: &str, files: &[&str]| {
        let prompt = json!({ "prompt_string": text, "multimodal_data": files });
        let body = json!({ "prompt": prompt, "n_predict": 6, "temperature": 0 });
        site.client.post("/completion", &body)
    };
    let reply = complete("<__media__>What is it?<|im_end|>", &[&data]);
    assert_eq!(reply.status, 200, "{reply:?}");
    let whole = reply.json();
    // As the template writes it in a chat.
    let chat = site.chat(&[&format!("data:image/bmp;base64,{data}")]).json();
    assert_eq!(whole["tokens_evaluated"], chat["usage"]["prompt_tokens"], "{whole}");
    assert_eq!(whole["content"], chat["choices"][0]["message"]["content"], "{whole} {chat}");
    for (text, files, param) in [
        ("What?", vec![&*data], "prompt.prompt_string"),
        ("<__media__><__media__>", vec![&*data], "prompt.prompt_string"),
        ("<__media__>", vec!["#"], "prompt.multimodal_data[0]"),
        ("<__media__>", vec!["aGk="], "prompt.multimodal_data[0]"),
    ] {
        let reply = complete(text, &files);
        assert_eq!((reply.status, reply.error("param").as_str()), (400, param), "{text}");
    }
}

/// A site that gives one file once.
fn serving(file: Vec<u8>) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("somebody asks");
        let _ = stream.read(&mut [0; 4096]);
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", file.len());
        let _ = stream.write_all(&[head.into_bytes(), file].concat());
    });
    port
}

#[test]
fn what_cannot_be_seen_is_refused_by_its_place() {
    let site = Seeing::new();
    let whole = bitmap(|x, y| [x as u8, y as u8, 0]);
    let mut huge = whole.clone();
    huge[18..26].copy_from_slice(&[0xff, 0xff, 0xff, 0x0f, 0xff, 0xff, 0xff, 0x0f]);
    for (file, words) in [
        (&b"GIF89a"[..], "the GIF image is broken"),
        (b"<svg/>", "this is no image of a format"),
        (&whole[..40], "the BMP image is broken"),
        (&huge, "image"),
    ] {
        let reply = site.chat(&[&url(&whole), &url(file)]);
        assert_eq!(
            (reply.status, reply.error("code").as_str()),
            (400, "invalid_image"),
            "{reply:?}"
        );
        assert_eq!(reply.error("param"), "messages[0].content[1]");
        assert!(reply.error("message").contains(words), "{reply:?}");
    }
    for address in ["http://localhost:1/", "http://169.254.169.254/latest/", "http://[::1]:1/"] {
        let reply = site.chat(&[address]);
        assert_eq!((reply.status, reply.error("code").as_str()), (400, "image_not_fetched"));
        assert!(reply.error("message").contains("no public address"), "{reply:?}");
    }
    let many = vec![url(&whole); 7];
    let reply = site.chat(&many.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(reply.error("code"), "context_length_exceeded", "{reply:?}");
}

/// A PNG that says it is 60 000 x 60 000, and has no pixel.
const PROMISES: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAA6mAAAOpgCAIAAAAPsOIVAAAAAElEQVQ1rwYeAAAAAElFTkSuQmCC";

#[test]
fn what_is_no_image_disturbs_no_stream() {
    let site = Seeing::new();
    let whole = bitmap(|x, y| [x as u8, y as u8, 9]);
    let mut body = question(&[&url(&whole)]);
    (body["stream"], body["max_tokens"], body["ignore_eos"]) =
        (true.into(), 60.into(), true.into());
    let tokens = |reply: Reply| -> Vec<Value> {
        assert_eq!(reply.status, 200, "{reply:?}");
        assert_eq!(reply.events().last().map(String::as_str), Some("[DONE]"));
        let chunks = reply.events().into_iter().filter_map(|e| serde_json::from_str(&e).ok());
        let own = |c: Value| c["choices"][0]["logprobs"]["content"].as_array().cloned();
        chunks.filter_map(own).flatten().collect()
    };
    let alone = tokens(site.client.post("/v1/chat/completions", &body));
    assert_eq!(alone.len(), 60);
    let (client, again) = (Client::new(site.client.address()), body.clone());
    let stream = std::thread::spawn(move || client.post("/v1/chat/completions", &again));
    loop {
        // Promises and pieces; kinds that are no images; places that are none.
        for (what, words) in [
            (PROMISES, "60000 x 60000"),
            ("data:image/gif;base64,R0lGODlh//////8AAAAh", "image"),
            ("data:text/html;base64,PGI+", "is of type"),
            ("data:image/svg+xml;base64,PHN2Zy8+", "is of type"),
            ("data:image/png;base64,###", "not base64"),
            ("data:image/png,abc", "not in base64"),
            ("file:///etc/passwd", "its scheme is"),
            ("http://[::1]:1/", "no public address"),
        ] {
            let reply = site.chat(&[what]);
            assert_eq!(reply.status, 400, "{what}: {reply:?}");
            assert!(reply.error("message").contains(words), "{what}: {reply:?}");
        }
        if stream.is_finished() {
            break;
        }
    }
    assert_eq!(tokens(stream.join().expect("an answer")), alone);
}

/// Patches of a picture of 56 x 56 pixels.
const PATCHES: u64 = 4 * ROWS;

#[test]
fn who_waits_for_the_encoder_holds_up_nobody() {
    let site = Seeing::preparing(Some(1));
    let red = url(&bitmap(|_, _| [0, 0, 200]));
    site.gate.close();
    let waits = [site.asking(&red), site.asking(&red)];
    site.wait_until("the encoder works", |site| site.gate.patches() > 0);
    // The one place there is for requests that are prepared is free.
    let messages = json!([{ "role": "user", "content": "Hello" }]);
    let body = json!({ "messages": messages, "max_tokens": 2 });
    for _ in 0..3 {
        assert_eq!(site.client.post("/v1/chat/completions", &body).status, 200);
    }
    // Nor is it asked to count the same image, or another.
    let blue = json!({ "type": "base64", "media_type": "image/bmp",
        "data": BASE64_STANDARD.encode(bitmap(|_, _| [200, 0, 0])) });
    let parts = json!([{ "type": "image", "source": blue }, { "type": "text", "text": "Hello" }]);
    let body = json!({ "model": "eyes", "messages": [{ "role": "user", "content": parts }] });
    let counted = site.client.post("/v1/messages/count_tokens", &body).json();
    assert_eq!(counted["input_tokens"], ROWS + 2 + 5 + 1, "{counted}");
    assert!(waits.iter().all(|asked| !asked.is_finished()), "the images are not seen yet");
    site.gate.open();
    let replies = waits.map(|asked| told(&asked.join().expect("an answer")));
    assert_eq!(replies[0].0, replies[1].0);
    assert_eq!(site.gate.patches(), PATCHES, "one image, computed once");
}

#[test]
fn an_image_whose_client_has_gone_is_not_seen_to_the_end() {
    let site = Seeing::new();
    let picture = |n: u8| url(&bitmap(|_, _| [n, 0, 0]));
    site.gate.close();
    // (Nothing is answered before an image is seen, so nothing is read.)
    let sent = |body: &str| {
        let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json";
        let text = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let mut socket = site.client.connect();
        socket.write_all(text.as_bytes()).expect("sent");
        socket
    };
    let gone = sent(&question(&[&picture(1)]).to_string());
    site.wait_until("the encoder works", |site| site.gate.patches() > 0);
    // Another one behind it, which no step has begun with.
    let behind = sent(&question(&[&picture(2)]).to_string());
    site.wait_until("both are there", |site| site.in_flight() == 2);
    drop((gone, behind));
    site.wait_until("nobody is waited for", |site| site.in_flight() == 0);
    site.gate.open();
    let (_, _, cached) = told(&site.chat(&[&picture(3)]));
    assert!(cached < 16);
    assert_eq!(site.gate.patches(), 2 * PATCHES, "what nobody wants is not begun");
}

#[test]
fn lists_tell_who_sees() {
    let site = Seeing::new();
    let listed = site.client.get("/v1/models").json();
    assert_eq!(listed["data"][0]["input_modalities"], json!(["text", "image"]), "{listed}");
    let props = site.client.get("/props").json();
    assert_eq!(props["modalities"]["vision"], true, "{props}");
    let shown = site.client.post("/api/show", &json!({ "model": "eyes" })).json();
    let can = shown["capabilities"].as_array().expect("words");
    assert!(can.contains(&json!("vision")), "{can:?}");
    let red = url(&bitmap(|_, _| [0, 0, 200]));
    let mut body = question(&[&red]);
    body["model"] = "any:vision".into();
    assert_eq!(site.client.post("/v1/chat/completions", &body).status, 200);
}
