//! The command line: every command, flag and default.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};

use tokenmill_engine::KeepAlive;

use crate::alias::Asked;

pub use crate::bench::args::Bench;
pub use crate::choices::{Bits, Draft, Kv, Mode};
pub use crate::launch::args::Launch;
use crate::numbers::{
    MOST_SEQUENCES, MOST_TOKENS, bytes, gibibytes, host, keep_alive, positive, real, seconds,
    time_to_live, tokens, whole,
};
pub use crate::plan::args::Plan;
pub use crate::samplers::MoreSampling;

/// As clap has it. A value may begin with a minus, so that its own range is told.
pub fn command() -> clap::Command {
    fn numbers(command: clap::Command) -> clap::Command {
        let command = command.mut_args(|arg| match arg.get_action().takes_values() {
            true => arg.allow_negative_numbers(true),
            false => arg,
        });
        command.mut_subcommands(numbers)
    }
    numbers(Args::command())
}

/// Told below the help.
const SETTINGS: &str = "Flags of run, serve, bench, plan, score and eval can also be set by TOKENMILL_FLAG \
    in the environment and in files: tokenmill config show";

/// Runs language models: any model file, on the hardware there is.
#[derive(Debug, Parser)]
#[command(name = "tokenmill", version, long_version = crate::about::version(), about,
    after_help = SETTINGS)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Say more on the standard error.
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// The file of settings, instead of the user's.
    #[arg(long, global = true, value_name = "FILE", env = "TOKENMILL_CONFIG")]
    pub config: Option<PathBuf>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// One answer, or a chat when on a terminal.
    Run(Run),
    /// OpenAI-style HTTP server.
    Serve(Box<Serve>),
    /// Models of a running server, and where they are in their life.
    Ps(Ps),
    /// Unload a model of a running server.
    Stop {
        /// Its name in the API.
        model: String,
        /// Which server.
        #[command(flatten)]
        running: Running,
    },
    /// One program with a model inside: it chats, serves and runs without any other file.
    Bundle(Bundle),
    /// Start a coding agent that asks a running server, its settings written and put back.
    Launch(Launch),
    /// What a running server does: tokens, queue, memory, caches.
    Top(Top),
    /// Where the time of a running server's request went, and its prompt's tokens came from.
    Explain(Explain),
    /// A receipt's request asked again: whether the same bytes come, or what is another thing now.
    Replay(Replay),
    /// Speed of a model beside the machine's limits; of the machine; of a server under load.
    Bench(Box<Bench>),
    /// Log-probabilities of given text or token ids.
    Score(Score),
    /// Perplexity of a text; KL divergence from a reference run.
    Eval(Eval),
    /// Which model to run here, in which role, with what memory and speed, and why.
    Plan(Plan),
    /// What a model file holds and what will be computed.
    Inspect(Inspect),
    /// A text that a model wrote, told apart: reasoning, text and calls of tools.
    Parse(Parse),
    /// Fetch a model.
    Pull {
        /// Name or alias.
        model: String,
    },
    /// Models on this machine.
    #[command(alias = "ls")]
    List {
        /// As JSON lines.
        #[arg(long)]
        json: bool,
    },
    /// Where a model lies and what it is made of.
    Show {
        /// Name or alias.
        model: String,
    },
    /// Remove a model.
    Rm {
        /// Name or alias.
        model: String,
    },
    /// Check stored files against their digests.
    Verify {
        /// Only this model.
        model: Option<String>,
    },
    /// What is wrong with a model's tokenizer and chat template.
    Lint {
        /// Name, alias or path.
        model: String,
        /// As JSON lines.
        #[arg(long)]
        json: bool,
    },
    /// The prompt that a request (JSON, from the standard input) becomes.
    Render {
        /// Name, alias or path.
        model: String,
        /// Whose words the request is in.
        #[arg(long, value_enum, default_value = "chat")]
        dialect: Dialect,
        /// The ids of its tokens, as a list.
        #[arg(long)]
        ids: bool,
    },
    /// What this machine offers and what will be used.
    Doctor {
        /// Look at the prompt cache in this folder, too.
        #[arg(long, value_name = "DIR")]
        kv_dir: Option<PathBuf>,
    },
    /// Keys that clients of `serve` show.
    #[command(subcommand)]
    Key(KeyCommand),
    /// Settings: what holds, and where it is set.
    #[command(subcommand)]
    Config(Config),
    /// The manual page of a command, as man reads it.
    Man {
        /// The command; default: the program itself.
        command: Option<String>,
        /// Write all pages into this folder instead.
        #[arg(long, value_name = "DIR", conflicts_with = "command")]
        dir: Option<PathBuf>,
    },
    /// Completion script for a shell.
    Completions {
        /// Shell.
        shell: clap_complete::Shell,
    },
}

/// `key`.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Make a key and show it, once; a running server takes it within a second.
    Add(AddKey),
    /// The keys and their limits.
    List {
        /// The file of keys; default: keys.toml beside the user's settings.
        #[arg(long, value_name = "FILE")]
        keys: Option<PathBuf>,
        /// As JSON lines.
        #[arg(long)]
        json: bool,
    },
    /// Let a key in no more; a running server knows within a second.
    Revoke {
        /// Its name.
        name: String,
        /// The file of keys; default: keys.toml beside the user's settings.
        #[arg(long, value_name = "FILE")]
        keys: Option<PathBuf>,
    },
}

/// `key add`.
#[derive(Debug, clap::Args)]
pub struct AddKey {
    /// Whose it is; stands in the log.
    pub name: String,
    /// Requests in any minute.
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=1_000_000))]
    pub per_minute: Option<u32>,
    /// Requests at once.
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=1_000_000))]
    pub at_once: Option<u32>,
    /// Longest prompt and answer together, tokens (suffix k allowed).
    #[arg(long, value_parser = tokens(1..=MOST_TOKENS))]
    pub ctx: Option<u32>,
    /// Most that prompts it asks to stay may take of the cache, percent [default: 25].
    #[arg(long, value_name = "PERCENT", value_parser = whole::<u32>(0..=25))]
    pub cache: Option<u32>,
    /// A model that it may use; default: all. May be repeated.
    #[arg(long)]
    pub model: Vec<String>,
    /// It may read /metrics, which tell of everybody.
    #[arg(long)]
    pub metrics: bool,
    /// The file of keys; default: keys.toml beside the user's settings.
    #[arg(long, value_name = "FILE")]
    pub keys: Option<PathBuf>,
}

/// `config`.
#[derive(Debug, Subcommand)]
pub enum Config {
    /// The settings of a command, each with the place it comes from.
    Show {
        /// The command.
        #[arg(default_value = "serve")]
        command: String,
        /// As JSON lines.
        #[arg(long)]
        json: bool,
    },
}

/// A client's API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Dialect {
    /// OpenAI's chat completions.
    Chat,
    /// OpenAI's Responses.
    Responses,
    /// Anthropic's Messages.
    Messages,
    /// Ollama's chat.
    Ollama,
}

/// Which device runs the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Device {
    /// Vector kernels on all cores.
    Cpu,
    /// The first NVIDIA GPU.
    Cuda,
    /// Plain loops on one core: slow, the truth by tolerance.
    Reference,
}

/// What decides how a model runs.
#[derive(Debug, Clone, clap::Args)]
pub struct Machine {
    /// Device.
    #[arg(long, value_enum, default_value = "cpu")]
    pub device: Device,
    /// Threads; default, and most that work: the cores this process may use.
    #[arg(short, long, value_parser = whole::<usize>(1..=1024))]
    pub threads: Option<usize>,
    /// Arithmetic of matrix products.
    #[arg(long, value_enum, default_value = "int8")]
    pub mode: Mode,
    /// Storage format of keys and values; default: int16, on a GPU bf16.
    #[arg(long, value_enum)]
    pub kv: Option<Kv>,
    /// Use 4-bit keys and values (int4, k8v4) also where they change this model's predictions by more
    /// than they should, which is refused otherwise.
    #[arg(long)]
    pub kv_anyway: bool,
    /// Longest sequence, tokens (suffix k allowed), at most the model's; default: the model's, else
    /// what memory holds.
    #[arg(long, visible_alias = "max-model-len", value_parser = tokens(1..=MOST_TOKENS))]
    pub ctx: Option<u32>,
    /// Memory to stay within, such as 8G; default: what is free.
    #[arg(long, value_parser = bytes)]
    pub mem: Option<u64>,
    /// Memory that weights out of code books (IQ1 to IQ3) take: as much as their file (own), or more, which is faster (wide);
    /// changes speed, no answer. Default: auto, wide while contexts and streams lose nothing by it.
    #[arg(long, value_enum, default_value_t = Bits::Auto)]
    pub weights: Bits,
    /// Where guesses of the next tokens come from; changes speed, no answer. Default: ngram, or the
    /// draft model.
    #[arg(long, value_enum)]
    pub draft: Option<Draft>,
    /// A small model with the same vocabulary that guesses the next tokens (run and serve).
    #[arg(long, value_name = "MODEL")]
    pub draft_model: Option<String>,
    /// Read text alone: the encoder of a model that sees takes no memory, and images are refused.
    #[arg(long)]
    pub no_vision: bool,
}

/// How tokens are chosen.
#[derive(Debug, Clone, clap::Args)]
pub struct Sampling {
    /// 0: always the likeliest token [default: the model's, else 0.8].
    #[arg(long, value_parser = real(0.0..=100.0))]
    pub temp: Option<f32>,
    /// Only the k likeliest; 0: all [default: the model's, else 0].
    #[arg(long, value_parser = whole::<u32>(0..=u64::from(u32::MAX)))]
    pub top_k: Option<u32>,
    /// Only the likeliest with this much probability together [default: the model's, else 0.95].
    #[arg(long, value_parser = positive(1.0))]
    pub top_p: Option<f32>,
    /// Only tokens with this part of the best one's probability [default: the model's, else 0.05].
    #[arg(long, value_parser = real(0.0..=1.0))]
    pub min_p: Option<f32>,
    /// Divides the logits of tokens seen before [default: the model's, else 1].
    #[arg(long, value_parser = positive(100.0))]
    pub repeat_penalty: Option<f32>,
    /// Taken from the logits of tokens seen before [default: the model's, else 0].
    #[arg(long, value_parser = real(-100.0..=100.0))]
    pub presence_penalty: Option<f32>,
    /// The same, once for each time they were seen [default: the model's, else 0].
    #[arg(long, value_parser = real(-100.0..=100.0))]
    pub frequency_penalty: Option<f32>,
    /// The rest.
    #[command(flatten)]
    pub more: Box<MoreSampling>,
    /// Text that ends the answer; may be repeated [default: the model's].
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub stop: Vec<String>,
    /// Seed; default: from the clock, and printed with -v.
    #[arg(long, value_parser = whole::<u64>(0..=u64::MAX))]
    pub seed: Option<u64>,
    /// Most tokens to generate [default: the model's, else 4096; what the context holds].
    #[arg(short = 'n', long, value_parser = tokens(1..=MOST_TOKENS))]
    pub max_tokens: Option<u32>,
}

/// `run`.
#[derive(Debug, Clone, clap::Args)]
pub struct Run {
    /// Name, alias or path.
    #[arg(default_value = "smollm2")]
    pub model: String,
    /// What to say; a piped text follows it. Absent: a chat on a terminal, else the piped text.
    pub prompt: Option<String>,
    /// System message.
    #[arg(long)]
    pub system: Option<String>,
    /// Give the prompt as it is, without the chat template.
    #[arg(long, conflicts_with = "system")]
    pub raw: bool,
    /// The answer and its numbers as one JSON line.
    #[arg(long)]
    pub json: bool,
    /// The answer is JSON that holds the JSON Schema in FILE.
    #[arg(long, value_name = "FILE", conflicts_with = "grammar")]
    pub schema: Option<PathBuf>,
    /// The answer holds the grammar in FILE: GBNF (with `::=`) or Lark.
    #[arg(long, value_name = "FILE")]
    pub grammar: Option<PathBuf>,
    /// An image that the question is about, for models that see. May be repeated.
    #[arg(long, value_name = "FILE", conflicts_with = "raw")]
    pub image: Vec<PathBuf>,
    /// Sampling.
    #[command(flatten)]
    pub sampling: Sampling,
    /// Machine.
    #[command(flatten)]
    pub machine: Machine,
}

/// Form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Plain,
    /// JSON lines.
    Json,
}

/// `serve`.
#[derive(Debug, Clone, clap::Args)]
pub struct Serve {
    /// Names, aliases or paths; clients ask for each by its name. Default: every model that `list`
    /// shows, loaded when it is asked for.
    pub models: Vec<String>,
    /// Address to listen on, or a name of it.
    #[arg(long, default_value = "127.0.0.1", value_parser = host)]
    pub host: IpAddr,
    /// Port.
    #[arg(short, long, default_value_t = 8080, value_parser = whole::<u16>(0..=65_535))]
    pub port: u16,
    /// Listen on port 11434 too, where Ollama's clients ask.
    #[arg(long)]
    pub ollama: bool,
    /// Keys that clients must show; needed for addresses others can reach. May be repeated. Others on
    /// this machine see it in the list of processes: TOKENMILL_API_KEY or `tokenmill key add` hide it.
    #[arg(long, value_delimiter = ',')]
    pub api_key: Vec<String>,
    /// The file of keys that `tokenmill key` writes; default: keys.toml beside the user's settings,
    /// where it is there.
    #[arg(long, value_name = "FILE")]
    pub keys: Option<PathBuf>,
    /// The key that may read /metrics, and nothing else [default: the first --api-key may].
    #[arg(long, value_name = "KEY")]
    pub metrics_key: Option<String>,
    /// A certificate in PEM form, with those up to the root: serves HTTPS.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The private key of --tls-cert, in PEM form.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// The file with the key that seals reasoning and summaries, which clients keep and send back;
    /// made where it is missing [default: tokenmill/seal.key in the data folder].
    #[arg(long, value_name = "FILE")]
    pub seal_key: Option<PathBuf>,
    /// Seal by a key that is forgotten with this run.
    #[arg(long)]
    pub no_seal_key: bool,
    /// An origin whose pages in a browser may ask, such as http://localhost:5173, app://obsidian.md
    /// or moz-extension://*; with an API key also *. May be repeated.
    #[arg(long, value_name = "ORIGIN")]
    pub allow_origin: Vec<String>,
    /// A name besides localhost that leads here, such as host.docker.internal. May be repeated.
    #[arg(long, value_name = "NAME")]
    pub allow_host: Vec<String>,
    /// Refuse members of requests that nobody knows, instead of naming them in warnings.
    #[arg(long)]
    pub strict: bool,
    /// No line on the standard error for each request.
    #[arg(long)]
    pub quiet: bool,
    /// Appends who asked what to this file, one line of JSON a request, without a word of prompts or
    /// answers; SIGHUP opens it again.
    #[arg(long, value_name = "FILE")]
    pub audit: Option<PathBuf>,
    /// Keep in this folder what clients leave here: answers of Responses, conversations, files,
    /// batches. It holds what they sent and what they were answered: off by default.
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// How long that stays which nobody uses, such as 12h or 30d [default: 30d].
    #[arg(long, value_name = "TIME", value_parser = time_to_live, requires = "state")]
    pub state_ttl: Option<Duration>,
    /// Stores a receipt of every answer in this folder: the request itself, what its bytes depend on and
    /// a digest of the answer. It holds what clients sent: off by default.
    #[arg(long, value_name = "DIR")]
    pub receipts: Option<PathBuf>,
    /// Most disk space of --receipts, GiB; then the oldest are deleted.
    #[arg(long, default_value_t = 1.0, value_name = "N", value_parser = gibibytes)]
    pub receipts_gb: f64,
    /// Sends a trace of every request to an OpenTelemetry collector: OTLP as JSON, POST URL/v1/traces.
    #[arg(long, value_name = "URL")]
    pub otlp: Option<String>,
    /// Fetch images that requests name by http or https, from public addresses: off by default.
    #[arg(long)]
    pub fetch_images: bool,
    /// A host that images are fetched from though its address is not public. May be repeated.
    #[arg(long, value_name = "NAME", requires = "fetch_images")]
    pub fetch_host: Vec<String>,
    /// Form of the log on the standard error.
    #[arg(long, value_enum, default_value = "plain")]
    pub log_format: LogFormat,
    /// Name in the API; default: the name given.
    #[arg(long)]
    pub served_model_name: Option<String>,
    /// Another name of a model, with what requests get that say nothing: NAME=MODEL[,key=value...], by
    /// the keys system, template (a file), temperature, top_k, top_p, min_p, repeat_penalty,
    /// presence_penalty, frequency_penalty, seed, max_tokens and stop. May be repeated.
    #[arg(long, value_name = "NAME=MODEL", value_parser = crate::alias::parse)]
    pub alias: Vec<Asked>,
    /// Sequences that run at once.
    #[arg(long, visible_alias = "max-num-seqs", default_value_t = 32,
        value_parser = whole::<u32>(1..=MOST_SEQUENCES))]
    pub slots: u32,
    /// Requests that may wait.
    #[arg(long, default_value_t = 1024, value_parser = whole::<u32>(1..=1_000_000))]
    pub queue: u32,
    /// Seconds a request may have to wait, by prediction; others are refused with 429. Default: as
    /// long as it takes.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub max_wait: Option<Duration>,
    /// Seconds that running answers get to finish after SIGTERM.
    #[arg(long, default_value_t = 30, value_parser = whole::<u64>(0..=86_400))]
    pub drain_timeout: u64,
    /// How long a model stays in memory after its last answer, such as 5m, 0 or -1 (for ever),
    /// unless the request says otherwise [default: 5m; models that are named here are loaded at the
    /// start and stay]. With it they take turns where memory is for some of them only.
    #[arg(long, value_name = "TIME", value_parser = keep_alive)]
    pub keep_alive: Option<KeepAlive>,
    /// A model that is loaded at the start and stays. May be repeated.
    #[arg(long, value_name = "NAME")]
    pub pin: Vec<String>,
    /// Seconds that requests wait for a model to load, and for memory for it; then they are told
    /// when to come back.
    #[arg(long, default_value_t = 300, value_name = "SECONDS",
        value_parser = whole::<u64>(1..=86_400))]
    pub load_timeout: u64,
    /// Keep the prompt cache in this folder, so that a restart finds it. It holds what clients
    /// sent: off by default.
    #[arg(long, value_name = "DIR")]
    pub kv_dir: Option<PathBuf>,
    /// Most disk space of the prompt cache, GiB; a GiB of the disk always stays free.
    #[arg(long, default_value_t = 10.0, value_name = "N", value_parser = gibibytes)]
    pub kv_disk_gb: f64,
    /// Tells routers what is in the prompt cache of the one model that is served, as vLLM does: a ZeroMQ
    /// publisher at this address, such as tcp://127.0.0.1:5557. Who reaches it reads the tokens of prompts
    /// that no key's holder has for himself.
    #[arg(long, value_name = "URL", value_parser = crate::numbers::tcp)]
    pub kv_events: Option<SocketAddr>,
    /// Sends events again to who missed some, at this address.
    #[arg(long, value_name = "URL", value_parser = crate::numbers::tcp, requires = "kv_events")]
    pub kv_events_replay: Option<SocketAddr>,
    /// The first part of every event's message.
    #[arg(long, value_name = "TEXT", default_value = "", requires = "kv_events")]
    pub kv_events_topic: String,
    /// Machine.
    #[command(flatten)]
    pub machine: Machine,
}

/// `bundle`.
#[derive(Debug, clap::Args)]
pub struct Bundle {
    /// Name, alias or path of a model that is one GGUF file.
    pub model: String,
    /// The program that is written [default: the model's name].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// What the model is called in it [default: the name given].
    #[arg(long)]
    pub name: Option<String>,
}

/// A server that runs.
#[derive(Debug, clap::Args)]
pub struct Running {
    /// Where it listens.
    #[arg(long, default_value = "http://127.0.0.1:8080", value_name = "URL")]
    pub url: String,
    /// Its key.
    #[arg(long, env = "TOKENMILL_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
}

/// `ps`.
#[derive(Debug, clap::Args)]
pub struct Ps {
    /// Those that are not in memory, too.
    #[arg(short, long)]
    pub all: bool,
    /// As JSON lines.
    #[arg(long)]
    pub json: bool,
    /// Which server.
    #[command(flatten)]
    pub running: Running,
}

/// `top`.
#[derive(Debug, clap::Args)]
pub struct Top {
    /// One frame, then the end.
    #[arg(long)]
    pub once: bool,
    /// Seconds between two frames.
    #[arg(long, default_value = "1", value_name = "SECONDS", value_parser = seconds)]
    pub every: Duration,
    /// Which server.
    #[command(flatten)]
    pub running: Running,
}

/// `explain`.
#[derive(Debug, clap::Args)]
pub struct Explain {
    /// Its id: `x-request-id`, or the one of its answer; default: those that are known are listed.
    pub id: Option<String>,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
    /// Which server.
    #[command(flatten)]
    pub running: Running,
}

/// `replay`.
#[derive(Debug, clap::Args)]
pub struct Replay {
    /// The file of a receipt.
    pub receipt: PathBuf,
    /// The body that was sent, where the receipt does not have it.
    #[arg(long, value_name = "FILE")]
    pub request: Option<PathBuf>,
    /// Another name for the model.
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
    /// Which server.
    #[command(flatten)]
    pub running: Running,
}

/// `score`.
#[derive(Debug, clap::Args)]
pub struct Score {
    /// Name, alias or path.
    pub model: String,
    /// Token ids, comma-separated.
    #[arg(long, value_delimiter = ',', conflicts_with = "file",
        value_parser = whole::<u32>(0..=u64::from(u32::MAX)))]
    pub ids: Vec<u32>,
    /// A text file.
    #[arg(short, long)]
    pub file: Option<PathBuf>,
    /// Alternatives to print at each position.
    #[arg(long, default_value_t = 0, value_parser = whole::<u32>(0..=20))]
    pub top: u32,
    /// JSON lines.
    #[arg(long)]
    pub json: bool,
    /// Machine.
    #[command(flatten)]
    pub machine: Machine,
}

/// `eval`.
#[derive(Debug, clap::Args)]
pub struct Eval {
    /// Name, alias or path.
    pub model: String,
    /// The text.
    #[arg(short, long)]
    pub file: PathBuf,
    /// Tokens that see each other: the text is cut into pieces of this length.
    #[arg(long, default_value_t = 512, value_parser = tokens(2..=MOST_TOKENS))]
    pub window: u32,
    /// Stop after this many tokens.
    #[arg(long, value_parser = tokens(2..=MOST_TOKENS))]
    pub tokens: Option<u32>,
    /// Reference log-probabilities: written if the file is absent, else compared.
    #[arg(long)]
    pub kl_base: Option<PathBuf>,
    /// JSON.
    #[arg(long)]
    pub json: bool,
    /// Machine.
    #[command(flatten)]
    pub machine: Machine,
}

/// `inspect`.
#[derive(Debug, clap::Args)]
pub struct Inspect {
    /// Name, alias or path.
    pub model: String,
    /// The program, one op a line.
    #[arg(long, group = "part")]
    pub program: bool,
    /// The layer vocabulary's description.
    #[arg(long, group = "part")]
    pub spec: bool,
    /// All tensors.
    #[arg(long, group = "part")]
    pub tensors: bool,
    /// All metadata.
    #[arg(long, group = "part")]
    pub meta: bool,
}

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Finish {
    /// The model ended it.
    Stop,
    /// The limit of tokens cut it.
    Length,
}

/// `parse`.
#[derive(Debug, clap::Args)]
pub struct Parse {
    /// Name, alias or path: its chat template says which row is meant.
    #[arg(required_unless_present = "format", conflicts_with = "format")]
    pub model: Option<String>,
    /// The row of formats.
    #[arg(long, value_name = "ROW")]
    pub format: Option<String>,
    /// The tools of the request, a list as the OpenAI API has it; default: none.
    #[arg(long, value_name = "FILE")]
    pub tools: Option<PathBuf>,
    /// The prompt began the reasoning.
    #[arg(long)]
    pub think_open: bool,
    /// How the answer ended.
    #[arg(long, value_enum, default_value = "stop")]
    pub finish: Finish,
    /// Take the text in pieces of so many bytes; the same comes out.
    #[arg(long, value_name = "BYTES", value_parser = whole::<usize>(1..=1 << 30))]
    pub chunk: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }

    #[test]
    fn values_may_be_negative_and_are_told_their_range() {
        use clap::FromArgMatches;
        let parse = |args: &[&str]| {
            let matches = command().try_get_matches_from(args)?;
            Args::from_arg_matches(&matches)
        };
        for (args, expect) in [
            (["tokenmill", "run", "m", "--temp", "-1"], "the range is 0 to 100"),
            (["tokenmill", "run", "m", "--top-p", "2"], "more than 0, at most 1"),
            (["tokenmill", "run", "m", "--max-tokens", "0"], "the range is 1 to 16777216"),
            (["tokenmill", "run", "m", "--threads", "0"], "the range is 1 to 1024"),
            (["tokenmill", "run", "m", "--mem", "8"], "did you mean 8G?"),
            (["tokenmill", "run", "m", "--seed", "-1"], "the range is 0 to 18446744073709551615"),
            (["tokenmill", "serve", "m", "--slots", "0"], "the range is 1 to 1024"),
            (["tokenmill", "serve", "m", "--port", "70000"], "the range is 0 to 65535"),
            (["tokenmill", "plan", "m", "--slots", "100000"], "the range is 1 to 1024"),
            (["tokenmill", "eval", "m", "--window", "1"], "the range is 2 to 16777216"),
            (["tokenmill", "score", "m", "--ids", "1,-2"], "the range is 0 to 4294967295"),
            (["tokenmill", "bench", "m", "--reps", "0"], "the range is 1 to 1000"),
            (["tokenmill", "bench", "m", "--batch", "100000"], "the range is 1 to 1024"),
            (["tokenmill", "bench", "m", "--depth", "99999999"], "the range is 0 to 16777216"),
            (["tokenmill", "bench", "serve", "--concurrency", "0"], "the range is 1 to 10000"),
        ] {
            let error = parse(&args).unwrap_err().to_string();
            assert!(error.contains(expect) && error.contains(args[3]), "{args:?}: {error}");
        }
        let two = parse(&["tokenmill", "inspect", "m", "--spec", "--meta"]).unwrap_err();
        assert_eq!(two.kind(), clap::error::ErrorKind::ArgumentConflict);
        let both = parse(&["tokenmill", "run", "m", "--raw", "--system", "x"]).unwrap_err();
        assert_eq!(both.kind(), clap::error::ErrorKind::ArgumentConflict);
        let Ok(Command::Run(run)) =
            parse(&["tokenmill", "run", "m", "-5", "--presence-penalty", "-0.5"])
                .map(|a| a.command)
        else {
            panic!("not read");
        };
        assert_eq!(
            (run.prompt.as_deref(), run.sampling.presence_penalty),
            (Some("-5"), Some(-0.5))
        );
    }
}
