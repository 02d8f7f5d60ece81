//! The command line of `launch`.

use std::ffi::OsString;

use clap::ValueEnum;

use crate::args::Running;

/// A coding agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Agent {
    /// OpenAI's Codex.
    Codex,
    /// Claude Code.
    Claude,
    /// OpenCode.
    Opencode,
    /// Qwen Code.
    Qwen,
    /// Pi.
    Pi,
    /// Cline on the command line.
    Cline,
    /// Kilo Code on the command line.
    Kilo,
    /// Continue on the command line.
    Continue,
    /// Aider.
    Aider,
    /// Goose.
    Goose,
    /// The Zed editor: its settings, which it reads when it starts.
    Zed,
}

/// `launch`.
#[derive(Debug, clap::Args)]
pub struct Launch {
    /// The agent.
    #[arg(value_enum)]
    pub agent: Agent,
    /// The model's name in the API; default: the only one of the server, or the only one in memory.
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Print the settings and what would be started; write and start nothing.
    #[arg(long, conflicts_with_all = ["write", "restore"])]
    pub print: bool,
    /// Write the settings and start nothing; they stay until --restore.
    #[arg(long, conflicts_with = "restore")]
    pub write: bool,
    /// Put the agent's settings back as they were.
    #[arg(long)]
    pub restore: bool,
    /// Which server.
    #[command(flatten)]
    pub running: Running,
    /// For the agent, behind `--`.
    #[arg(last = true, value_name = "ARGS")]
    pub args: Vec<OsString>,
}
