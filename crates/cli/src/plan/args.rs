//! The command line of `plan`.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use tokenmill_engine::planner::Task;

use crate::args::Machine;
use crate::numbers::{MOST_SEQUENCES, whole};

/// What a model may be for, by the planner's words.
const TASKS: [(&str, &str); 13] = [
    ("chat", "Conversation"),
    ("code", "Coding agents: long prompts, tools"),
    ("batch", "Many texts, nobody waits"),
    ("long", "Questions on long documents"),
    ("summaries", "Short summaries"),
    ("extract", "Answers held to a schema"),
    ("app", "A model that goes with a program to its users"),
    ("embed", "Vectors of texts"),
    ("rerank", "Ranking of documents"),
    ("vision", "Images beside text (not in this version)"),
    ("speech", "Speech in or out (not in this version)"),
    ("train", "Training (not in this version)"),
    ("browser", "In a web page without a server (not in this version)"),
];

fn tasks() -> impl TypedValueParser<Value = Task> {
    let told = TASKS.map(|(name, help)| PossibleValue::new(name).help(help));
    PossibleValuesParser::new(told).try_map(|name| serde_json::from_value(name.into()))
}

/// `plan`.
#[derive(Debug, Clone, clap::Args)]
pub struct Plan {
    /// Names, aliases or paths; default: every model that `list` shows, and some that could be pulled.
    pub models: Vec<String>,
    /// What it is for; without a model: chat.
    #[arg(long = "for", value_name = "TASK", value_parser = tasks())]
    pub task: Option<Task>,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_is_called_as_the_planner_calls_it() {
        for (name, _) in TASKS {
            let task: Task = serde_json::from_value(name.into()).expect(name);
            assert_ne!(task, Task::Any);
        }
    }
}
