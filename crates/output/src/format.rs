//! The rows: how each family of models marks what it writes. Data alone, which the parser, its
//! readers and the grammars read.

use crate::body::{Body, Header, Objects, Tags};
use crate::harmony;

/// How a family of models marks reasoning and calls.
#[derive(Debug, PartialEq)]
pub struct Format {
    /// Its name.
    pub name: &'static str,
    pub(crate) form: Form,
}

/// The whole of an answer.
#[derive(Debug, PartialEq)]
pub(crate) enum Form {
    /// Text, with marks around all else.
    Marked(Marked),
    /// Messages with headers.
    Harmony,
}

/// Marks around what is no text.
#[derive(Debug, PartialEq)]
pub(crate) struct Marked {
    /// Texts that begin reasoning, and that end it; each list has spellings of one mark.
    pub think: (&'static [&'static str], &'static [&'static str]),
    /// Marks around the answer's text, in pairs.
    pub answer: &'static [(&'static str, &'static str)],
    /// Ways to write calls.
    pub sections: &'static [Section],
}

/// A way to write calls. Alternatives in a list are spellings of one mark.
#[derive(Debug, PartialEq)]
pub(crate) struct Section {
    /// What it begins with.
    pub opens: &'static [&'static str],
    /// What may end it.
    pub closes: &'static [&'static str],
    /// What each call begins with, where that is not `opens`.
    pub items: &'static [&'static str],
    /// What may end each of these.
    pub item_closes: &'static [&'static str],
    /// What may stand between two calls without marks.
    pub next: &'static [&'static str],
    /// What makes a call where `opens` is missing.
    pub bare: Bare,
    /// What stands inside; its first character says which.
    pub bodies: &'static [Body],
}

/// What makes a call where the mark in front of it is missing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bare {
    /// Nothing.
    Never,
    /// `items`, anywhere.
    Items,
    /// `items`, anywhere, if an offered tool is named.
    Offered,
    /// This first character of the answer, if an offered tool is named.
    Start(&'static str),
    /// The same of a list, once it is whole and all of its tools are offered.
    List(&'static str),
}

const NO_THINK: (&[&str], &[&str]) = (&[], &[]);
const THINK: (&[&str], &[&str]) = (&["<think>"], &["</think>"]);

const fn marked(
    name: &'static str,
    think: (&'static [&'static str], &'static [&'static str]),
    sections: &'static [Section],
) -> Format {
    Format { name, form: Form::Marked(Marked { think, answer: &[], sections }) }
}

/// A section whose mark each call has, or a list of calls.
const fn section(
    opens: &'static [&'static str],
    closes: &'static [&'static str],
    bodies: &'static [Body],
) -> Section {
    Section { opens, closes, items: &[], item_closes: &[], next: &[], bare: Bare::Never, bodies }
}

const NAME_FIRST: Objects =
    Objects { object: true, list: true, name: "name", first: "", arguments: "arguments" };
const OBJECT: Body = Body::Objects(Objects { list: false, ..NAME_FIRST });
const LIST: Body = Body::Objects(Objects { object: false, ..NAME_FIRST });
const EITHER: Body = Body::Objects(NAME_FIRST);
const PARAMETERS: Body =
    Body::Objects(Objects { list: false, arguments: "parameters", ..NAME_FIRST });
const ACTIONS: Body = Body::Objects(Objects {
    name: "tool_name",
    first: "\"tool_call_id\": \"0\", ",
    arguments: "parameters",
    ..NAME_FIRST
});

const HERMES: &[Section] = &[section(&["<tool_call>"], &["</tool_call>"], &[OBJECT])];
const QWEN3_CODER: &[Section] = &[Section {
    items: &["<function="],
    bare: Bare::Offered,
    ..section(
        &["<tool_call>"],
        &["</tool_call>"],
        &[Body::Tagged(Tags {
            name_end: ">",
            parameter: "<parameter=",
            key_end: ">",
            value: "",
            value_end: "</parameter>",
            end: "</function>",
            is_lined: true,
            may_reopen: true,
        })],
    )
}];
const LLAMA3: &[Section] = &[Section {
    next: &[";"],
    bare: Bare::Start("{"),
    ..section(&["<|python_tag|>"], &[], &[PARAMETERS, Body::Method])
}];
const LLAMA4: &[Section] = &[Section {
    bare: Bare::List("["),
    ..section(&["<|python_start|>"], &["<|python_end|>"], &[Body::Pythonic, PARAMETERS])
}];
const MISTRAL: &[Section] = &[section(&["[TOOL_CALLS]"], &[], &[LIST])];
const MISTRAL_V11: &[Section] =
    &[section(&["[TOOL_CALLS]"], &[], &[Body::Headed(Header::NameArgs)])];
const DEEPSEEK_V3: &[Section] = &[deepseek(&[Body::Headed(Header::TypeSepNameFence)])];
const DEEPSEEK_V31: &[Section] = &[deepseek(&[Body::Headed(Header::NameSep)])];
const GLM45: &[Section] = &[section(
    &["<tool_call>"],
    &[],
    &[Body::Tagged(Tags {
        name_end: "",
        parameter: "<arg_key>",
        key_end: "</arg_key>",
        value: "<arg_value>",
        value_end: "</arg_value>",
        end: "</tool_call>",
        is_lined: false,
        may_reopen: false,
    })],
)];
const KIMI_K2: &[Section] = &[Section {
    items: &["<|tool_call_begin|>"],
    item_closes: &["<|tool_call_end|>"],
    ..section(
        &["<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"],
        &["<|tool_calls_section_end|>", "<|tool_call_section_end|>"],
        &[Body::Headed(Header::IdArgument)],
    )
}];
const MINIMAX_M2: &[Section] = &[Section {
    items: &["<invoke name=\""],
    ..section(
        &["<minimax:tool_call>"],
        &["</minimax:tool_call>"],
        &[Body::Tagged(Tags {
            name_end: "\">",
            parameter: "<parameter name=\"",
            key_end: "\">",
            value: "",
            value_end: "</parameter>",
            end: "</invoke>",
            is_lined: false,
            may_reopen: false,
        })],
    )
}];
const GEMMA: &[Section] = &[
    section(&["<|tool_call>"], &["<tool_call|>"], &[Body::Gemma { quote: "<|\"|>" }]),
    section(
        &["<start_function_call>"],
        &["<end_function_call>"],
        &[Body::Gemma { quote: "<escape>" }],
    ),
];
const GRANITE: &[Section] = &[
    section(&["<|tool_call|>"], &[], &[EITHER]),
    section(&["<tool_call>"], &["</tool_call>"], &[EITHER]),
];
const PHI4: &[Section] = &[
    section(&["functools"], &[], &[EITHER]),
    section(&["<|tool_call|>"], &["<|/tool_call|>"], &[EITHER]),
];
const COMMAND: &[Section] = &[section(&["<|START_ACTION|>"], &["<|END_ACTION|>"], &[ACTIONS])];
const LFM2: &[Section] =
    &[section(&["<|tool_call_start|>"], &["<|tool_call_end|>"], &[Body::Pythonic])];
const NEMOTRON: &[Section] = &[section(&["<TOOLCALL>"], &["</TOOLCALL>"], &[LIST])];

const fn deepseek(bodies: &'static [Body]) -> Section {
    Section {
        items: &["<｜tool▁call▁begin｜>"],
        item_closes: &["```", "<｜tool▁call▁end｜>"],
        bare: Bare::Items,
        ..section(&["<｜tool▁calls▁begin｜>"], &["<｜tool▁calls▁end｜>"], bodies)
    }
}

/// All rows.
pub const FORMATS: &[Format] = &[
    marked("plain", NO_THINK, &[]),
    marked("think", THINK, &[]),
    marked("hermes", THINK, HERMES),
    marked("qwen3-coder", THINK, QWEN3_CODER),
    marked("llama3", NO_THINK, LLAMA3),
    marked("llama4", NO_THINK, LLAMA4),
    marked("mistral", NO_THINK, MISTRAL),
    marked("mistral-v11", (&["[THINK]"], &["[/THINK]"]), MISTRAL_V11),
    marked("deepseek-v3", THINK, DEEPSEEK_V3),
    marked("deepseek-r1", THINK, DEEPSEEK_V3),
    marked("deepseek-v31", THINK, DEEPSEEK_V31),
    marked("glm45", THINK, GLM45),
    marked("kimi-k2", THINK, KIMI_K2),
    marked("minimax-m2", THINK, MINIMAX_M2),
    Format { name: "harmony", form: Form::Harmony },
    marked("gemma", (&["<|channel>thought"], &["<channel|>"]), GEMMA),
    marked(
        "granite",
        (
            &["Here is my thought process:", "Here's my thought process:"],
            &["Here is my response:", "Here's my response:"],
        ),
        GRANITE,
    ),
    marked("phi4", THINK, PHI4),
    Format {
        name: "command",
        form: Form::Marked(Marked {
            think: (&["<|START_THINKING|>"], &["<|END_THINKING|>"]),
            answer: &[
                ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
                ("<|START_TEXT|>", "<|END_TEXT|>"),
            ],
            sections: COMMAND,
        }),
    },
    marked("lfm2", THINK, LFM2),
    marked("nemotron", THINK, NEMOTRON),
];

impl Format {
    /// Text alone.
    pub const PLAIN: &'static Self = &FORMATS[0];

    /// The row of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        FORMATS.iter().find(|format| format.name == name)
    }

    /// Texts that may be special tokens of a model, and must be seen.
    pub fn markers(&self) -> Vec<&'static str> {
        let mut marks: Vec<&'static str> = match &self.form {
            Form::Harmony => harmony::MARKS.to_vec(),
            Form::Marked(marked) => marked.marks(),
        };
        // A special token may have a word behind it.
        let tokens: Vec<_> =
            marks.iter().filter_map(|mark| mark.get(..mark.find('>')? + 1)).collect();
        marks.extend(tokens);
        marks.retain(|mark| mark.starts_with(['<', '[']));
        marks.sort_unstable();
        marks.dedup();
        marks
    }

    /// Whether calls are named by their tool and number in a prompt (`functions.NAME:0`).
    pub fn numbers_calls(&self) -> bool {
        let Form::Marked(marked) = &self.form else {
            return false;
        };
        let mut bodies = marked.sections.iter().flat_map(|section| section.bodies);
        bodies.any(|body| *body == Body::Headed(Header::IdArgument))
    }

    /// Whether a model may reason behind that prompt: its chat template writes the marks, and the
    /// prompt has not ended the reasoning.
    pub fn may_reason(&self, template: &str, prompt: &str) -> bool {
        match &self.form {
            Form::Harmony => true,
            Form::Marked(marked) => {
                let (opens, closes) = marked.think;
                let prompt = prompt.trim_end();
                opens.iter().any(|mark| template.contains(mark))
                    && !closes.iter().any(|mark| prompt.ends_with(mark))
            }
        }
    }

    /// What a model writes to end its reasoning; `None` where the row has no marks of it.
    pub fn end_of_reasoning(&self) -> Option<&'static str> {
        match &self.form {
            Form::Harmony => Some(harmony::ANSWER),
            Form::Marked(marked) => marked.think.1.first().copied(),
        }
    }

    /// Whether an answer that begins so has begun its reasoning and not ended it.
    pub fn reasons_after(&self, begun: &str) -> bool {
        match &self.form {
            Form::Harmony => false,
            Form::Marked(marked) => {
                let (opens, closes) = marked.think;
                let begun = begun.trim_start();
                opens.iter().any(|mark| begun.starts_with(mark))
                    && !closes.iter().any(|mark| begun.contains(mark))
            }
        }
    }

    /// Whether a prompt that ends so has begun the reasoning.
    pub fn reasoning_begun(&self, prompt: &str) -> bool {
        let prompt = prompt.trim_end();
        match &self.form {
            Form::Harmony => prompt.ends_with(harmony::ANALYSIS),
            Form::Marked(marked) => marked.think.0.iter().any(|mark| prompt.ends_with(mark)),
        }
    }
}

impl Marked {
    fn marks(&self) -> Vec<&'static str> {
        let mut marks: Vec<&'static str> = [self.think.0, self.think.1].concat();
        marks.extend(self.answer.iter().flat_map(|(begin, end)| [*begin, *end]));
        for section in self.sections {
            let lists = [section.opens, section.closes, section.items, section.item_closes];
            marks.extend(lists.concat());
            marks.extend(section.bodies.iter().flat_map(Body::marks));
        }
        marks
    }
}
