//! A running server whose device is simulated and whose vocabulary is the 256 bytes.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokenmill_device_tests::sim::{SimControl, SimDevice, program};
use tokenmill_engine::{Defaults, DraftMode, Engine, EngineParts, SamplingValues, system_clock};
use tokenmill_ir::{GroupKind, Limits};
use tokenmill_sched::{Config, StepCost};
use tokenmill_server::{Running, ServedModel, ServerConfig, spawn};
use tokenmill_text::{ChatTemplate, GgufVocab, TemplateError, Tokenizer};

use crate::client::Client;

/// Tokens: all bytes, one pair, then the start and the end of a turn and the end of text.
pub const VOCAB: u32 = 260;

/// Control tokens, the last ones.
const CONTROL: [&str; 3] = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"];

/// Marks for filling in the middle: prefix, suffix, middle, and what ends a fill.
const MARKS: [&str; 4] = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>"];

/// How a site is made.
#[derive(Clone)]
pub struct Setup {
    /// The server; bound to a free loopback port.
    pub server: ServerConfig,
    /// Requests the engine lets wait.
    pub queue: u32,
    /// Sequences that run at once.
    pub sequences: u32,
    /// Longest sequence, tokens.
    pub context: u32,
    /// Cache blocks of the full-attention group, 16 tokens each.
    pub blocks: u32,
    /// Least duration of a step.
    pub step: Duration,
    /// Whether the model has a chat template.
    pub chat: bool,
    /// The template; `None`: ChatML.
    pub template: Option<&'static str>,
    /// Whether its vocabulary has marks for filling in the middle, behind all others.
    pub infill: bool,
    /// Columns of its vectors, where it gives these in the place of text; 1: it scores.
    pub columns: Option<u32>,
    /// How its packager wants it to be run.
    pub defaults: Defaults,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            server: ServerConfig::new(([127, 0, 0, 1], 0).into()),
            queue: 64,
            sequences: 8,
            context: 512,
            blocks: 300,
            step: Duration::ZERO,
            chat: true,
            template: None,
            infill: false,
            columns: None,
            // Drawn anew, its first token would end an answer once in a hundred.
            defaults: Defaults {
                sampling: SamplingValues { seed: Some(7), ..SamplingValues::default() },
                ..Defaults::default()
            },
        }
    }
}

impl Setup {
    /// The model, its engine started on a device of that control.
    pub fn model(&self, control: &SimControl) -> ServedModel {
        control.delay(self.step);
        let marks: &[&str] = if self.infill { &MARKS } else { &[] };
        let tokenizer = Arc::new(tokenizer_with(marks));
        let tokens = tokenizer.template_tokens();
        let template = match self.template {
            Some(source) => ChatTemplate::new(source, tokens),
            None => ChatTemplate::fallback(tokens),
        };
        let template = template.expect("a template");
        ServedModel {
            names: vec!["sim".into(), "user/sim:q8".into()],
            engine: engine(self, control, &tokenizer),
            tokenizer,
            template: self.chat.then(|| Arc::new(template)).ok_or(TemplateError::Missing),
            context: self.context,
            eyes: None,
            defaults: self.defaults.clone(),
            created: 1_700_000_000,
        }
    }
}

/// A server, its engine and its device.
pub struct Site {
    /// The server; `None` once it was taken.
    pub server: Option<Running>,
    /// The engine.
    pub engine: Engine,
    /// What goes wrong on the device.
    pub control: SimControl,
    /// Asks the server.
    pub client: Client,
}

impl Site {
    /// The default site.
    pub fn new() -> Self {
        Self::with(Setup::default())
    }

    /// A site of that set-up.
    pub fn with(setup: Setup) -> Self {
        let control = SimControl::default();
        let model = setup.model(&control);
        let engine = model.engine.clone();
        let server = spawn(setup.server, vec![model]).expect("the server starts");
        let client = Client::new(server.address());
        Self { server: Some(server), engine, control, client }
    }

    /// The value of a line of `/metrics`, by everything before the number.
    pub fn metric(&self, line: &str) -> f64 {
        self.find_metric(line).unwrap_or_else(|| panic!("no {line}"))
    }

    /// The same where the line may be missing.
    pub fn find_metric(&self, line: &str) -> Option<f64> {
        let page = self.client.get("/metrics");
        let prefix = format!("{line} ");
        let found = page.body.lines().find_map(|l| l.strip_prefix(&prefix));
        found.map(|value| value.parse().expect("a number"))
    }

    /// Blocks in use by sequences, all groups; none are told of before the engine's first step.
    pub fn used_blocks(&self) -> f64 {
        let used = |g: u32| {
            let labels = format!("model_name=\"sim\",group=\"{g}\",state=\"used\"");
            self.find_metric(&format!("tokenmill_kv_blocks{{{labels}}}")).unwrap_or(0.0)
        };
        used(0) + used(1)
    }

    /// Waits until a condition holds; panics after some seconds.
    pub fn wait_until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            assert!(start.elapsed() < Duration::from_secs(10), "waited in vain: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until nothing is open; then every block must be free, cached or leased.
    pub fn settle(&self) {
        let open = "tokenmill_requests_open{model_name=\"sim\"}";
        self.wait_until("no request is open", |site| site.metric(open) == 0.0);
        let leased = "tokenmill_leased_tokens{model_name=\"sim\"}";
        self.wait_until("no block is in use", |site| match site.find_metric(leased) {
            // A group with a window leases fewer blocks than there are tokens, never more.
            Some(tokens) if tokens > 0.0 => site.used_blocks() <= 2.0 * tokens / 16.0,
            _ => site.used_blocks() == 0.0,
        });
        let in_flight = "tokenmill_http_requests_in_flight";
        self.wait_until("no answer is being written", |site| site.metric(in_flight) == 0.0);
    }
}

impl Default for Site {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        drop(self.server.take());
        self.engine.shut_down();
    }
}

fn engine(setup: &Setup, control: &SimControl, tokenizer: &Arc<Tokenizer>) -> Engine {
    let groups = vec![GroupKind::Full, GroupKind::Window { tokens: 40 }];
    let limits = Limits {
        step_tokens: 64,
        sequences: setup.sequences,
        outputs: 64,
        context: setup.context,
        group_blocks: vec![setup.blocks, setup.blocks],
        top_logprobs: 20,
    };
    let ids = tokenizer.vocab_size() as u32;
    let (vocab, hidden) = setup.columns.map_or((ids, 8), |columns| (0, columns));
    let program = program(&groups, vocab, hidden);
    let backend = SimDevice::new(16, control.clone());
    let compiled = limits.clone();
    let build = move || backend.executable(&program, &compiled);
    let parts = EngineParts {
        device: build().expect("the simulated device compiles"),
        rebuild: Box::new(move |_| build()),
        config: Config {
            groups,
            block_tokens: 16,
            limits,
            whole_sequences: false,
            vocab,
            hidden,
            cost: StepCost::new(1e-4, 1e-6, 0.0),
            step_s: 0.05,
            checkpoint_slots: 0,
            longest_block: 0,
        },
        ids,
        input_cols: 0,
        eos: tokenizer.eos_ids().to_vec(),
        tokenizer: Some(Arc::clone(tokenizer)),
        draft: DraftMode::Suffix,
        queue: setup.queue,
        clock: system_clock(),
        claim: None,
    };
    Engine::start(parts).expect("the engine starts")
}

/// An address of this machine at which nobody listens. Its port is below those that systems give to whoever
/// asks for any: nobody takes it in between.
pub fn free_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let own = std::process::id() % 500 * 20;
    let ports = (0..).map(|_| 20_000 + (own + NEXT.fetch_add(1, Ordering::Relaxed)) % 10_000);
    let mut addresses =
        ports.take(1000).map(|port| SocketAddr::from(([127, 0, 0, 1], port as u16)));
    addresses.find(|address| TcpListener::bind(address).is_ok()).expect("a free port")
}

/// Every byte a token, spelled as byte-level vocabularies do.
pub fn tokenizer() -> Tokenizer {
    tokenizer_with(&[])
}

fn tokenizer_with(marks: &[&str]) -> Tokenizer {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 0x100;
    let mut spell = |byte: u8| {
        let code = if printable(byte) { u32::from(byte) } else { next };
        next += u32::from(!printable(byte));
        char::from_u32(code).expect("a character").to_string()
    };
    let mut tokens: Vec<String> = (0..=255).map(&mut spell).collect();
    // A byte-level vocabulary has merges: here one, of two bytes nobody writes.
    let pair = ["\u{101}", "\u{102}"];
    tokens.push(pair.concat());
    tokens.extend(CONTROL.iter().chain(marks).map(|name| (*name).to_owned()));
    let mut token_types = vec![1; 257];
    token_types.resize(tokens.len(), 3);
    let vocab = GgufVocab {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        tokens,
        token_types,
        merges: vec![pair.join(" ")],
        eos: Some(259),
        eot: Some(258),
        ..GgufVocab::default()
    };
    Tokenizer::from_gguf(vocab).expect("the vocabulary is well formed")
}
