//! Sessions of coding agents from a seed: the sizes are a profile's, the words and tools ours.

use std::rc::Rc;

use serde_json::{Map, Value, json};

use crate::dialect::{Call, Tool, function};
use crate::profile::{PROFILES, Profile};
use crate::random::{Random, Words};
use crate::workload::Lengths;

/// Words of the text that stands for an answer in a history, for each of its tokens: the rest of
/// them is the call.
const TEXT_PER_TOKEN: f64 = 0.5;
/// Spread of the pauses: the standard deviation of their logarithm.
const PAUSE_SIGMA: f64 = 1.0;
/// Sub-agents that run at once, and requests of each.
const SUBAGENTS: usize = 2;
const SUBAGENT_TURNS: u32 = 2;

const VERBS: [&str; 9] = ["read", "write", "find", "run", "list", "move", "check", "fetch", "plan"];
const NOUNS: [&str; 7] = ["file", "folder", "text", "command", "page", "task", "note"];
const PROPERTIES: [&str; 10] =
    ["path", "text", "from", "to", "limit", "pattern", "reason", "mode", "names", "deep"];
/// The tool whose calls are sub-agents.
const DELEGATE: &str = "delegate";

/// What agents ask of a server.
#[derive(Debug, Clone, PartialEq)]
pub struct Agents {
    /// The same seed makes the same sessions.
    pub seed: u64,
    /// Sessions.
    pub sessions: usize,
    /// Requests of the main sequence of each.
    pub turns: u32,
    /// Words of a tool's result.
    pub result: Lengths,
    /// Most tokens of an answer.
    pub answer: Lengths,
    /// Median of the time that tools run, seconds; 0: none.
    pub pause_s: f64,
    /// Which agents; sessions take them in turn. None: all.
    pub profiles: Vec<&'static Profile>,
    /// What goes into the history as the answer.
    pub history: History,
}

/// What goes into the history as the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum History {
    /// Text and calls from the seed: prompts are the same whatever a server answers, and answers
    /// are asked for in full length (`ignore_eos`) where the dialect can.
    Seeded,
    /// What the model answered; where it called nothing, the seeded call beside its text.
    Model,
}

/// One session.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentSession {
    /// Whose.
    pub profile: &'static Profile,
    /// Its work.
    pub main: Sequence,
    /// The request for a title that runs beside the first one.
    pub title: Option<Sequence>,
}

/// Requests of which each has the ones before in its prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Sequence {
    /// System prompt.
    pub system: String,
    /// What may be called.
    pub tools: Rc<Vec<Tool>>,
    /// User messages before the first answer.
    pub front: Vec<String>,
    /// Its requests.
    pub steps: Vec<Step>,
}

/// One request, and what goes on after it.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Most tokens of the answer.
    pub max_tokens: u32,
    /// What stands for the answer's text.
    pub text: String,
    /// Seeded calls; none in the last step.
    pub calls: Vec<Call>,
    /// What a call gives; where sub-agents run, what they say is.
    pub result: String,
    /// How long tools run, seconds.
    pub pause_s: f64,
    /// Before this request the history is replaced by its summary.
    pub compaction: Option<Compaction>,
    /// What the calls start.
    pub subagents: Vec<Sequence>,
}

/// A history becomes a summary.
#[derive(Debug, Clone, PartialEq)]
pub struct Compaction {
    /// What asks for it, behind the history and without tools.
    pub ask: String,
    /// What stands for it in a seeded history.
    pub summary: String,
    /// Most tokens of it.
    pub max_tokens: u32,
}

impl Agents {
    /// All sessions.
    pub fn sessions(&self) -> Vec<AgentSession> {
        let all: Vec<&Profile> = PROFILES.iter().collect();
        let profiles = if self.profiles.is_empty() { &all } else { &self.profiles };
        let words = Words::new();
        let fixed: Vec<Fixed> = profiles.iter().map(|p| Fixed::new(self.seed, p, &words)).collect();
        let session = |i: usize| {
            // Each has its own numbers: one more session changes no other.
            let random = Random::new(self.seed, 1 + i as u64);
            let of = i % profiles.len();
            Maker { agents: self, words: &words, random, fixed: &fixed[of] }.session(profiles[of])
        };
        (0..self.sessions).map(session).collect()
    }
}

/// What is the same in all sessions of an agent.
struct Fixed {
    system: String,
    title: Option<String>,
    tools: Rc<Vec<Tool>>,
    /// Of sub-agents: they start none themselves.
    fewer_tools: Rc<Vec<Tool>>,
}

impl Fixed {
    fn new(seed: u64, profile: &Profile, words: &Words) -> Self {
        // A stream of its own, whichever agents run beside it.
        let name = profile.name.bytes().fold(0, |sum: u64, b| sum << 8 ^ sum >> 56 ^ u64::from(b));
        let random = &mut Random::new(seed, !name);
        let system = words.bytes(profile.system, random);
        let title = profile.title.map(|bytes| words.bytes(bytes, random));
        let tools = tools(profile, words, random);
        let fewer_tools = tools.iter().filter(|t| t.name != DELEGATE).cloned().collect();
        Fixed { system, title, tools: Rc::new(tools), fewer_tools: Rc::new(fewer_tools) }
    }
}

/// The tools of a profile: as many, of as many properties and bytes together.
fn tools(profile: &Profile, words: &Words, random: &mut Random) -> Vec<Tool> {
    let mut tools: Vec<Tool> = (0..profile.tools)
        .map(|i| {
            let name = match i {
                0 if profile.subagents => DELEGATE.to_owned(),
                i => format!("{}_{}", VERBS[i % VERBS.len()], NOUNS[i % NOUNS.len()]),
            };
            let parameters = json!({"type": "object", "properties": {}, "required": []});
            Tool { name, description: String::new(), parameters }
        })
        .collect();
    for i in 0..profile.properties {
        let tool = &mut tools[i % profile.tools];
        let known = i / profile.tools;
        let name = PROPERTIES[known % PROPERTIES.len()];
        let name =
            if known < PROPERTIES.len() { name.to_owned() } else { format!("{name}_{known}") };
        let required = tool.parameters["required"].as_array_mut().filter(|_| known < 2);
        required.into_iter().for_each(|required| required.push(json!(name)));
        tool.parameters["properties"][&name] = property(words, random);
    }
    // Descriptions take what is left, some much of it and most little.
    let size =
        |tools: &[Tool]| Value::Array(tools.iter().map(function).collect()).to_string().len();
    let mut left = profile.tools_bytes.saturating_sub(size(&tools));
    let mut shares: Vec<f64> = tools.iter().map(|_| random.normal().exp()).collect();
    for tool in &mut tools {
        let all: f64 = shares.iter().sum();
        let bytes = (left as f64 * shares.remove(0) / all).round() as usize;
        // A line's end is two bytes in JSON.
        let text = words.bytes(bytes, random).replace('\n', " ");
        left = left.saturating_sub(text.len());
        tool.description = text;
    }
    tools
}

/// The schema of one property.
fn property(words: &Words, random: &mut Random) -> Value {
    let length = 6 + random.below(18) as u32;
    let description = words.text(length, random).trim_start().to_owned();
    let mut schema = match random.below(8) {
        0 => json!({"type": "integer"}),
        1 => json!({"type": "boolean"}),
        2 => json!({"type": "array", "items": {"type": "string"}}),
        3 => json!({"type": "string", "enum": ["all", "some", "none"]}),
        _ => json!({"type": "string"}),
    };
    schema["description"] = json!(description);
    schema
}

/// Makes one session.
struct Maker<'a> {
    agents: &'a Agents,
    words: &'a Words,
    random: Random,
    fixed: &'a Fixed,
}

impl Maker<'_> {
    fn session(mut self, profile: &'static Profile) -> AgentSession {
        let place = format!(
            "Folder: /home/{}/{}. Day: {}.",
            self.words.one(&mut self.random),
            self.random.below(1_000_000),
            self.random.below(365),
        );
        let mut system = self.fixed.system.clone();
        let mut front: Vec<String> =
            profile.front.iter().map(|b| self.words.bytes(*b, &mut self.random)).collect();
        match front.first_mut().filter(|_| profile.place_in_front) {
            Some(first) => first.replace_range(..place.len().min(first.len()), &place),
            None => {
                let at = system.len() - place.len().min(system.len());
                system.replace_range(at.., &place);
            }
        }
        let title = self.fixed.title.clone().map(|system| Sequence {
            system,
            tools: Rc::default(),
            // What is asked for stands before what it is about.
            front: vec![self.words.bytes(39, &mut self.random), front[front.len() - 1].clone()],
            steps: vec![self.last()],
        });
        let fixed = self.fixed;
        let mut steps = self.steps(self.agents.turns, &fixed.tools);
        let (middle, late) = (steps.len() / 2, steps.len() * 3 / 4);
        // In the last step nothing is called.
        if profile.subagents && middle + 1 < steps.len() {
            steps[middle] = self.delegation(&system);
        }
        if let Some((ask, summary)) = profile.compaction.filter(|_| late > 0) {
            steps[late].compaction = Some(Compaction {
                ask: self.words.bytes(ask, &mut self.random),
                summary: self.words.bytes(summary, &mut self.random),
                max_tokens: self.agents.answer.draw(&mut self.random),
            });
        }
        let main = Sequence { system, tools: Rc::clone(&fixed.tools), front, steps };
        AgentSession { profile, main, title }
    }

    /// Steps that call something, and a last one that does not.
    fn steps(&mut self, turns: u32, tools: &[Tool]) -> Vec<Step> {
        let mut steps: Vec<Step> = (1..turns.max(1)).map(|_| self.step(tools)).collect();
        steps.push(self.last());
        steps
    }

    /// A step without a call.
    fn last(&mut self) -> Step {
        let max_tokens = self.agents.answer.draw(&mut self.random);
        let length = (f64::from(max_tokens) * TEXT_PER_TOKEN).ceil() as u32;
        Step {
            max_tokens,
            text: self.words.lines(length, &mut self.random),
            calls: Vec::new(),
            result: String::new(),
            pause_s: 0.0,
            compaction: None,
            subagents: Vec::new(),
        }
    }

    fn step(&mut self, tools: &[Tool]) -> Step {
        let mut step = self.last();
        let able: Vec<&Tool> = tools.iter().filter(|t| t.name != DELEGATE).collect();
        if let Some(last) = able.len().checked_sub(1) {
            let tool = able[self.random.below(last + 1)];
            step.calls.push(self.call(tool));
        }
        let length = self.agents.result.draw(&mut self.random);
        step.result = self.words.lines(length, &mut self.random);
        if self.agents.pause_s > 0.0 {
            let factor = (PAUSE_SIGMA * self.random.normal()).exp();
            // Ten medians at most, as lengths are.
            step.pause_s = (self.agents.pause_s * factor).min(10.0 * self.agents.pause_s);
        }
        step
    }

    /// A step whose calls are agents.
    fn delegation(&mut self, system: &str) -> Step {
        let mut step = self.last();
        let fixed = self.fixed;
        for _ in 0..SUBAGENTS {
            step.calls.extend(fixed.tools.first().map(|tool| self.call(tool)));
            // Half of the system prompt, from its middle: it has its own front.
            let own = system.get(system.len() / 2..).unwrap_or_default().to_owned();
            step.subagents.push(Sequence {
                system: own,
                tools: Rc::clone(&fixed.fewer_tools),
                front: vec![self.words.bytes(400, &mut self.random)],
                steps: self.steps(SUBAGENT_TURNS, &fixed.fewer_tools),
            });
        }
        step
    }

    fn call(&mut self, tool: &Tool) -> Call {
        let mut arguments = Map::new();
        let required = tool.parameters["required"].as_array().into_iter().flatten();
        for name in required.filter_map(Value::as_str) {
            let schema = &tool.parameters["properties"][name];
            let value = match schema["type"].as_str() {
                Some("integer") => json!(self.random.below(1000)),
                Some("boolean") => json!(self.random.below(2) == 0),
                Some("array") => json!([self.words.one(&mut self.random)]),
                _ if schema["enum"].is_array() => schema["enum"][self.random.below(3)].clone(),
                _ => {
                    let length = 3 + self.random.below(12) as u32;
                    json!(self.words.lines(length, &mut self.random))
                }
            };
            arguments.insert(name.to_owned(), value);
        }
        let id = format!("call_{:012x}", self.random.next() >> 16);
        Call { id, name: tool.name.clone(), arguments: json!(arguments).to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::{Api, Request, Said};

    fn agents() -> Agents {
        Agents {
            seed: 3,
            sessions: 14,
            turns: 6,
            result: Lengths::Uniform(10, 50),
            answer: Lengths::Uniform(8, 16),
            pause_s: 0.5,
            profiles: Vec::new(),
            history: History::Seeded,
        }
    }

    /// The first request of a sequence.
    fn first(api: Api, sequence: &Sequence) -> String {
        let said: Vec<Said> = sequence.front.iter().cloned().map(Said::User).collect();
        let asked = Request {
            system: &sequence.system,
            tools: &sequence.tools,
            said: &said,
            max_tokens: 4096,
            ..Request::default()
        };
        api.body("m", &asked).to_string()
    }

    #[test]
    fn a_seed_is_the_same_bytes() {
        let bytes = |agents: &Agents| format!("{:?}", agents.sessions());
        assert_eq!(bytes(&agents()), bytes(&agents()));
        assert_ne!(bytes(&agents()), bytes(&Agents { seed: 4, ..agents() }));
        let all = agents().sessions();
        let fewer = Agents { sessions: 9, ..agents() }.sessions();
        assert_eq!(all[..9], fewer[..], "sessions do not depend on how many there are");
        // Alone or beside others, an agent says the same before its first message.
        let codex = Profile::named("codex").expect("a profile");
        let alone = Agents { profiles: vec![codex], sessions: 1, ..agents() }.sessions();
        assert_eq!(
            (&alone[0].main.system, &alone[0].main.tools),
            (&all[4].main.system, &all[4].main.tools)
        );
    }

    #[test]
    fn sizes_are_the_profiles() {
        // Bytes of the first request to /v1/chat/completions as it was recorded, without white
        // space; Codex speaks Responses alone. A recorded request has members that ours lacks.
        let recorded = [5402, 7656, 21_944, 32_230, 40_450, 59_972, 75_824];
        for seed in 0..8 {
            let sessions = Agents { seed, ..agents() }.sessions();
            for (session, recorded) in sessions.iter().zip(recorded) {
                let (profile, main) = (session.profile, &session.main);
                assert_eq!(main.system.len(), profile.system, "{}", profile.name);
                let front: Vec<usize> = main.front.iter().map(String::len).collect();
                assert_eq!(front, profile.front, "{}", profile.name);
                let tools = Value::Array(main.tools.iter().map(function).collect());
                let bytes = tools.to_string().len();
                assert_eq!((main.tools.len(), bytes), (profile.tools, profile.tools_bytes));
                let properties: usize = main
                    .tools
                    .iter()
                    .filter_map(|t| t.parameters["properties"].as_object().map(Map::len))
                    .sum();
                assert_eq!(properties, profile.properties);
                let api = if profile.name == "codex" { Api::Responses } else { Api::Chat };
                let ours = first(api, main).len() as f64 / f64::from(recorded);
                assert!((0.94..1.06).contains(&ours), "{}: {ours}", profile.name);
            }
        }
    }

    #[test]
    fn sessions_are_in_the_recorded_order() {
        let sessions = agents().sessions();
        for (i, session) in sessions.iter().enumerate() {
            let AgentSession { profile, main, title } = session;
            assert_eq!(*profile, &PROFILES[i % 7]);
            assert_eq!(title.as_ref().map(|t| t.system.len()), profile.title);
            assert_eq!(main.steps.len(), 6);
            let (last, before) = main.steps.split_last().expect("steps");
            assert!(last.calls.is_empty() && before.iter().all(|s| !s.calls.is_empty()));
            let names: Vec<&str> = main.tools.iter().map(|t| t.name.as_str()).collect();
            for step in before {
                assert!(step.calls.iter().all(|c| names.contains(&c.name.as_str())));
                assert!(step.calls.iter().all(|c| c.object().is_some()));
                assert!((0.0..=5.0).contains(&step.pause_s) && (8..=16).contains(&step.max_tokens));
                let words = step.result.split_whitespace().count();
                assert!(!step.subagents.is_empty() || (10..=50).contains(&words), "{words}");
            }
            let delegated: Vec<usize> = main.steps.iter().map(|s| s.subagents.len()).collect();
            let expect = if profile.subagents { [0, 0, 0, 2, 0, 0] } else { [0; 6] };
            assert_eq!(delegated, expect, "{}", profile.name);
            let compacted = main.steps.iter().position(|s| s.compaction.is_some());
            assert_eq!(compacted, profile.compaction.map(|_| 4));
            // Names are unique, and sub-agents start none themselves.
            let mut unique = names.clone();
            unique.sort_unstable();
            unique.dedup();
            assert_eq!(unique.len(), names.len(), "{names:?}");
            let below = main.steps.iter().flat_map(|s| &s.subagents);
            assert!(below.flat_map(|s| s.tools.iter()).all(|t| t.name != DELEGATE));
        }
        // Two sessions of one agent share what stands before their place.
        let [one, other] = [&sessions[4].main, &sessions[11].main];
        assert!(one.system == other.system && one.front != other.front);
        let [one, other] = [&sessions[0].main.system, &sessions[7].main.system];
        assert!(one != other && one[..1900] == other[..1900]);
        let all: Vec<&Sequence> = sessions.iter().map(|s| &s.main).collect();
        assert!(all.iter().all(|s| first(Api::Chat, s).is_ascii()));
    }
}
