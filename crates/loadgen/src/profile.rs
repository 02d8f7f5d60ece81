//! The sizes of what coding agents send before any work is done: a table. The words are ours.

/// An agent's sizes, in bytes of UTF-8 (of tools: of the list as `/v1/chat/completions` takes it,
/// without white space).
///
/// Sizes, numbers and orders are those of requests recorded in November 2026 from the versions
/// named, with a prompt of one line. A recording ends after three scripted turns: how many turns
/// a session has, how long results are and how long tools run is not in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// The agent's, in lower case.
    pub name: &'static str,
    /// What was recorded.
    pub version: &'static str,
    /// The system prompt.
    pub system: usize,
    /// User messages before the first answer.
    pub front: &'static [usize],
    /// Whether the working folder and the date stand in the first user message; else at the end of
    /// the system prompt. What stands before them is the same in all sessions.
    pub place_in_front: bool,
    /// Functions.
    pub tools: usize,
    /// All of them.
    pub tools_bytes: usize,
    /// Properties in all their schemas.
    pub properties: usize,
    /// The system prompt of a request for a title that runs beside the first one.
    pub title: Option<usize>,
    /// The message that asks for a summary of the history, and the one that takes its place.
    pub compaction: Option<(usize, usize)>,
    /// Whether one of the tools is an agent: two run at once in the middle of a session.
    pub subagents: bool,
}

/// All agents, from the smallest prompt to the largest.
pub const PROFILES: [Profile; 7] = [
    Profile {
        name: "pi",
        version: "0.73.1",
        system: 2040,
        front: &[36],
        place_in_front: false,
        tools: 4,
        tools_bytes: 3080,
        properties: 11,
        title: None,
        compaction: None,
        subagents: false,
    },
    Profile {
        name: "continue",
        version: "1.5.47",
        system: 1193,
        front: &[36],
        place_in_front: false,
        tools: 11,
        tools_bytes: 6234,
        properties: 17,
        title: None,
        compaction: None,
        subagents: false,
    },
    Profile {
        name: "cline",
        version: "3.0.65",
        system: 4427,
        front: &[36],
        place_in_front: false,
        tools: 25,
        tools_bytes: 17_275,
        properties: 63,
        title: None,
        compaction: None,
        subagents: true,
    },
    Profile {
        name: "opencode",
        version: "1.18.33",
        system: 9796,
        front: &[38],
        place_in_front: false,
        tools: 10,
        tools_bytes: 22_093,
        properties: 30,
        title: Some(2275),
        compaction: None,
        subagents: true,
    },
    // Its system prompt is two developer messages; of its tools five stand in a namespace.
    Profile {
        name: "codex",
        version: "0.171.0",
        system: 19_953,
        front: &[110, 36],
        place_in_front: true,
        tools: 12,
        tools_bytes: 18_045,
        properties: 50,
        title: None,
        compaction: Some((427, 471)),
        subagents: true,
    },
    Profile {
        name: "kilo",
        version: "7.7.9",
        system: 13_782,
        front: &[155],
        place_in_front: true,
        tools: 21,
        tools_bytes: 45_649,
        properties: 73,
        title: None,
        compaction: None,
        subagents: true,
    },
    Profile {
        name: "qwen",
        version: "0.24.4",
        system: 28_139,
        front: &[8312],
        place_in_front: true,
        tools: 14,
        tools_bytes: 38_573,
        properties: 45,
        title: None,
        compaction: None,
        subagents: true,
    },
];

impl Profile {
    /// One of the table.
    pub fn named(name: &str) -> Option<&'static Profile> {
        PROFILES.iter().find(|p| p.name == name)
    }
}
