//! What is asked of a machine: a task, users at once, a context.

use serde::{Deserialize, Serialize};

use super::model::Ability;

/// What models are for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Task {
    /// Whatever the model can do.
    #[default]
    Any,
    /// Conversation.
    Chat,
    /// Coding agents: long prompts, tools.
    Code,
    /// Many texts, nobody waits.
    Batch,
    /// Questions on long documents.
    Long,
    /// Short summaries and classes.
    Summaries,
    /// Answers held to a schema.
    Extract,
    /// A model that goes with a program to its users.
    App,
    /// Vectors of texts.
    Embed,
    /// Ranking of documents.
    Rerank,
    /// Images beside text.
    Vision,
    /// Speech in or out.
    Speech,
    /// Training.
    Train,
    /// In a web page, without a server.
    Browser,
}

/// A row of [`TASKS`].
#[derive(Debug)]
pub struct TaskRow {
    /// The task.
    pub task: Task,
    /// In words.
    pub name: &'static str,
    /// What a model must be able to do.
    pub ability: Option<Ability>,
    /// Usual tokens of a prompt and of an answer.
    pub usual: (u32, u32),
    /// Context that is planned where none is asked for; absent: the model's, as `serve` does.
    pub context: Option<u32>,
    /// Fewest tokens a second of a stream that people can work with; 0: nobody waits.
    pub least_tok_s: f64,
    /// Longest wait for the first token of a usual prompt, seconds.
    pub most_first_s: f64,
    /// Set where this version cannot do it: what is missing, and the task that comes nearest.
    pub missing: Option<(&'static str, Option<Task>)>,
}

const fn row(
    task: Task,
    name: &'static str,
    ability: Option<Ability>,
    usual: (u32, u32),
    context: Option<u32>,
    pace: (f64, f64),
) -> TaskRow {
    let (least_tok_s, most_first_s) = pace;
    TaskRow { task, name, ability, usual, context, least_tok_s, most_first_s, missing: None }
}

const fn missing(
    task: Task,
    name: &'static str,
    what: &'static str,
    next: Option<Task>,
) -> TaskRow {
    let row = row(task, name, None, (512, 128), None, (8.0, 15.0));
    TaskRow { missing: Some((what, next)), ..row }
}

/// Every task. People read five to eight words a second; agents cache their prompts, so the first one may take
/// longer.
#[rustfmt::skip]
pub static TASKS: [TaskRow; 14] = [
    row(Task::Any,       "any task",             None,                  (512, 256),   None,        (8.0, 15.0)),
    row(Task::Chat,      "chat",                 Some(Ability::Chat),   (512, 256),   Some(8192),  (8.0, 15.0)),
    row(Task::Code,      "coding agents",        Some(Ability::Tools),  (8192, 512),  Some(32768), (8.0, 120.0)),
    row(Task::Batch,     "batch",                Some(Ability::Text),   (1024, 256),  Some(4096),  (0.5, 300.0)),
    row(Task::Long,      "long documents",       Some(Ability::Chat),   (24576, 512), Some(65536), (3.0, 600.0)),
    row(Task::Summaries, "summaries",            Some(Ability::Chat),   (2048, 128),  Some(8192),  (8.0, 20.0)),
    row(Task::Extract,   "structured answers",   Some(Ability::Chat),   (1024, 256),  Some(8192),  (8.0, 30.0)),
    row(Task::App,       "inside an application", Some(Ability::Chat),  (256, 128),   Some(4096),  (15.0, 1.0)),
    row(Task::Embed,     "embeddings",           Some(Ability::Embed),  (256, 0),     Some(2048),  (0.0, 1.0)),
    row(Task::Rerank,    "reranking",            Some(Ability::Rerank), (512, 0),     Some(2048),  (0.0, 1.0)),
    missing(Task::Vision,  "images",   "images as input are not in this version", Some(Task::Chat)),
    missing(Task::Speech,  "speech",   "speech, in or out, is not in this version", Some(Task::Chat)),
    missing(Task::Train,   "training", "training is not in this version, nor are adapters", None),
    missing(Task::Browser, "a web page", "models inside a browser are not in this version", Some(Task::Chat)),
];

impl Task {
    /// Its row.
    pub fn row(self) -> &'static TaskRow {
        TASKS.iter().find(|row| row.task == self).unwrap_or(&TASKS[0])
    }
}

/// A need.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Need {
    /// The task.
    #[serde(default, rename = "for")]
    pub task: Task,
    /// Sequences at once.
    #[serde(default = "one")]
    pub users: u32,
    /// Longest sequence, tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ctx: Option<u32>,
    /// Models that were named: only these are looked at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub named: Vec<String>,
}

fn one() -> u32 {
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_has_its_row() {
        for row in &TASKS {
            assert!(std::ptr::eq(row.task.row(), row), "{:?}", row.task);
            let next = row.missing.and_then(|(_, next)| next);
            assert!(next.is_none_or(|task| task.row().missing.is_none()), "{:?}", row.task);
        }
    }
}
