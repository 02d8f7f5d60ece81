//! The flags of `bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use tokenmill_loadgen::{Lengths, PROFILES, Profile};

use crate::args::Machine;
use crate::numbers::{MOST_SEQUENCES, MOST_TOKENS, rate, seconds, tokens, whole};

/// `bench`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Bench {
    /// What else to measure.
    #[command(subcommand)]
    pub other: Option<Other>,
    /// Name, alias or path.
    #[arg(required_unless_present_any = ["limits", "from"])]
    pub model: Option<String>,
    /// Only the machine: reads of each level of memory, operations of each arithmetic.
    #[arg(long, conflicts_with = "model")]
    pub limits: bool,
    /// Prompt lengths to prefill.
    #[arg(short, long, default_value = "512", value_delimiter = ',',
        value_parser = tokens(0..=MOST_TOKENS))]
    pub prompt: Vec<u32>,
    /// Numbers of tokens to decode.
    #[arg(short = 'n', long = "gen", default_value = "128", value_delimiter = ',',
        value_parser = tokens(0..=MOST_TOKENS))]
    pub generate: Vec<u32>,
    /// Sequences decoded at once.
    #[arg(long, default_value = "1", value_delimiter = ',',
        value_parser = whole::<u32>(1..=MOST_SEQUENCES))]
    pub batch: Vec<u32>,
    /// Tokens in the cache before decoding.
    #[arg(long, default_value_t = 0, value_parser = tokens(0..=MOST_TOKENS))]
    pub depth: u32,
    /// Repetitions; medians are printed.
    #[arg(short, long, default_value_t = 5, value_parser = whole::<u32>(1..=1000))]
    pub reps: u32,
    /// A peer's figures of the same tests to stand beside: the JSON of llama-bench (-o json or
    /// jsonl) or of this command, as FILE or NAME=FILE. May be repeated.
    #[arg(long, value_name = "[NAME=]FILE")]
    pub compare: Vec<String>,
    /// Take our figures from an earlier --json run instead of running.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "limits"])]
    pub from: Option<PathBuf>,
    /// Draw all figures as parts of the limit: out.svg or out.html.
    #[arg(long, value_name = "FILE", conflicts_with = "limits")]
    pub plot: Option<PathBuf>,
    /// JSON lines.
    #[arg(long)]
    pub json: bool,
    /// Machine.
    #[command(flatten)]
    pub machine: Machine,
}

/// What `bench` measures beside a model's speed.
#[derive(Debug, Subcommand)]
pub enum Other {
    /// A server under load: any of four dialects.
    Serve(Serve),
}

/// `bench serve`.
#[derive(Debug, clap::Args)]
pub struct Serve {
    /// Address, such as http://127.0.0.1:8080.
    #[arg(required_unless_present = "spawn")]
    pub url: Option<String>,
    /// Start `tokenmill serve MODEL` for the test, with what follows `--` as its flags.
    #[arg(long, value_name = "MODEL", conflicts_with = "url")]
    pub spawn: Option<String>,
    /// Flags of the started server.
    #[arg(last = true, requires = "spawn")]
    pub flags: Vec<String>,
    /// Model in the API; default: the first that the server lists.
    #[arg(long)]
    pub model: Option<String>,
    /// What is asked.
    #[arg(long, value_enum, default_value = "words")]
    pub workload: Workload,
    /// Endpoint; default: completions, of agents chat.
    #[arg(long, value_enum)]
    pub api: Option<Endpoint>,
    /// Key to show.
    #[arg(long, env = "TOKENMILL_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Members of every request as a JSON object; null takes one of ours out, such as
    /// {"ignore_eos":null}.
    #[arg(long, default_value = "{}", value_name = "JSON")]
    pub extra: String,
    /// Sessions; default: 32, of agents 8.
    #[arg(short = 'n', long, value_parser = whole::<usize>(1..=1_000_000))]
    pub sessions: Option<usize>,
    /// Requests of a session, each with all before it in its prompt; default: 1, of agents 8.
    #[arg(long, value_parser = whole::<u32>(1..=10_000))]
    pub turns: Option<u32>,
    /// Words of a new message, of agents of a tool's result: 256, 64..512 or lognormal:256:0.8;
    /// default: 256, of agents lognormal:120:1.
    #[arg(short, long)]
    pub prompt: Option<Lengths>,
    /// Tokens of an answer, in the same forms.
    #[arg(short, long, visible_alias = "answer-tokens", default_value = "128")]
    pub output: Lengths,
    /// Words at the start that sessions share.
    #[arg(long, default_value_t = 0, value_parser = tokens(0..=1 << 20))]
    pub prefix: u32,
    /// Different such starts.
    #[arg(long, default_value_t = 1, value_parser = whole::<usize>(1..=1_000_000))]
    pub prefix_groups: usize,
    /// Of agents.
    #[command(flatten)]
    pub agents: AgentFlags,
    /// Closed loop: sessions at a time.
    #[arg(short, long, default_value_t = 8, conflicts_with = "rate",
        value_parser = whole::<usize>(1..=10_000))]
    pub concurrency: usize,
    /// Open loop: sessions a second, arriving independently (Poisson).
    #[arg(long, value_parser = rate)]
    pub rate: Option<f64>,
    /// The same seed makes the same sessions.
    #[arg(long, default_value_t = 0, value_parser = whole::<u64>(0..=u64::MAX))]
    pub seed: u64,
    /// Short requests before, which do not count.
    #[arg(long, default_value_t = 1, value_parser = whole::<u32>(0..=10_000))]
    pub warmup: u32,
    /// Seconds of silence after which a request has failed.
    #[arg(long, default_value_t = 600, value_parser = whole::<u64>(1..=86_400))]
    pub timeout: u64,
    /// One JSON object.
    #[arg(long)]
    pub json: bool,
    /// A report with plots.
    #[arg(long, visible_alias = "report", value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// What only `--workload agent` reads.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Of --workload agent")]
pub struct AgentFlags {
    /// Which agents, a comma between: pi, continue, cline, opencode, codex, kilo, qwen; sessions
    /// take them in turn. Default: all.
    #[arg(long = "agents", value_name = "NAME", value_delimiter = ',', value_parser = profile)]
    pub profiles: Vec<&'static Profile>,
    /// What goes into the history as the answer.
    #[arg(long, value_enum, default_value = "seeded")]
    pub history: History,
    /// Median of the time that tools run, seconds; 0: none.
    #[arg(long, default_value = "0.5", value_name = "SECONDS", value_parser = seconds)]
    pub pause: Duration,
    /// The model that is asked for titles and summaries; default: the same.
    #[arg(long, value_name = "NAME")]
    pub small_model: Option<String>,
}

/// What `bench serve` asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Conversations of words.
    Words,
    /// Sessions of coding agents.
    Agent,
}

/// What goes into an agent's history as the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum History {
    /// The seed's text and calls: every server is asked the same.
    Seeded,
    /// What the model answered.
    Model,
}

fn profile(name: &str) -> Result<&'static Profile, String> {
    Profile::named(name).ok_or_else(|| {
        let all: Vec<&str> = PROFILES.iter().map(|p| p.name).collect();
        format!("the agents are {}", all.join(", "))
    })
}

/// An endpoint that `bench serve` can drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Endpoint {
    /// /v1/completions.
    Completions,
    /// /v1/chat/completions.
    Chat,
    /// /v1/responses.
    Responses,
    /// /v1/messages.
    Messages,
    /// /api/chat.
    Ollama,
}
