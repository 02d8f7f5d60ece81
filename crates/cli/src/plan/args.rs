//! The command line of `plan`.

use std::path::PathBuf;

use clap::ValueEnum;
use tokenmill_engine::planner::Task;

use crate::args::Machine;
use crate::numbers::{MOST_SEQUENCES, whole};

/// What a model is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum For {
    /// Conversation.
    Chat,
    /// Coding agents: long prompts, tools.
    Code,
    /// Many texts, nobody waits.
    Batch,
    /// Questions on long documents.
    Long,
    /// Short summaries.
    Summaries,
    /// Answers held to a schema.
    Extract,
    /// A model that goes with a program to its users.
    App,
    /// Vectors of texts.
    Embed,
    /// Ranking of documents.
    Rerank,
    /// Images beside text (not in this version).
    Vision,
    /// Speech in or out (not in this version).
    Speech,
    /// Training (not in this version).
    Train,
    /// In a web page without a server (not in this version).
    Browser,
}

impl From<For> for Task {
    fn from(task: For) -> Self {
        match task {
            For::Chat => Task::Chat,
            For::Code => Task::Code,
            For::Batch => Task::Batch,
            For::Long => Task::Long,
            For::Summaries => Task::Summaries,
            For::Extract => Task::Extract,
            For::App => Task::App,
            For::Embed => Task::Embed,
            For::Rerank => Task::Rerank,
            For::Vision => Task::Vision,
            For::Speech => Task::Speech,
            For::Train => Task::Train,
            For::Browser => Task::Browser,
        }
    }
}

/// `plan`.
#[derive(Debug, Clone, clap::Args)]
pub struct Plan {
    /// Names, aliases or paths; default: every model that `list` shows, and some that could be pulled.
    pub models: Vec<String>,
    /// What it is for; without a model: chat.
    #[arg(long = "for", value_enum, value_name = "TASK")]
    pub task: Option<For>,
    /// Sequences that run at once.
    #[arg(long, visible_aliases = ["users", "max-num-seqs"], default_value_t = 1,
        value_parser = whole::<u32>(1..=MOST_SEQUENCES))]
    pub slots: u32,
    /// Plan for the machine of this file (JSON, as `machine` of --json), not for this one.
    #[arg(long = "machine", value_name = "FILE")]
    pub described: Option<PathBuf>,
    /// Measure this machine's ceilings again; else those kept are used.
    #[arg(long, conflicts_with = "memory_only")]
    pub measure: bool,
    /// Memory only: do not measure or time anything.
    #[arg(long)]
    pub memory_only: bool,
    /// One JSON object.
    #[arg(long)]
    pub json: bool,
    /// Machine.
    #[command(flatten)]
    pub machine: Machine,
}

impl Plan {
    /// That of a server: nothing is measured or timed while it answers.
    pub fn of_server(machine: &Machine, slots: u32) -> Self {
        Self {
            models: Vec::new(),
            task: None,
            slots,
            described: None,
            measure: false,
            memory_only: true,
            json: true,
            machine: machine.clone(),
        }
    }
}
