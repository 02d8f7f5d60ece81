//! Which row a chat template means, by the marks that the template itself writes.

use crate::Format;

/// Tests in order: a row, and texts that must all stand in the template. The first that holds
/// decides, so marks that several families write come behind those that one has for itself.
const TESTS: &[(&str, &[&str])] = &[
    // Marks that one family has for itself.
    ("harmony", &["<|channel|>", "<|message|>"]),
    ("gemma", &["<|tool_call>"]),
    ("gemma", &["<start_function_call>"]),
    ("gemma", &["<|channel>"]),
    ("kimi-k2", &["<|tool_calls_section_begin|>"]),
    ("minimax-m2", &["<minimax:tool_call>"]),
    ("glm45", &["<arg_key>"]),
    ("command", &["<|START_ACTION|>"]),
    ("command", &["<|START_THINKING|>"]),
    ("lfm2", &["<|tool_call_start|>"]),
    ("lfm2", &["<|tool_list_start|>"]),
    ("nemotron", &["<TOOLCALL>"]),
    ("llama4", &["<|python_start|>"]),
    // One body or another between the same marks.
    ("deepseek-r1", &["<｜tool▁calls▁begin｜>", "```json", "<think>"]),
    ("deepseek-v3", &["<｜tool▁calls▁begin｜>", "```json"]),
    ("deepseek-v31", &["<｜tool▁calls▁begin｜>"]),
    ("mistral-v11", &["[TOOL_CALLS]", "[ARGS]"]),
    ("mistral-v11", &["[THINK]"]),
    ("mistral", &["[TOOL_CALLS]"]),
    // `<tool_call>` in its many forms.
    ("qwen3-coder", &["<function=", "<parameter="]),
    ("granite", &["<|start_of_role|>"]),
    ("phi4", &["<|tool_call|>"]),
    ("phi4", &["<|tool|>", "<|assistant|>"]),
    ("phi4", &["<|im_sep|>", "<think>"]),
    ("hermes", &["<tool_call>"]),
    // Calls without marks.
    ("llama3", &["<|python_tag|>"]),
    ("llama3", &["<|start_header_id|>", "ipython"]),
    ("think", &["</think>"]),
];

impl Format {
    /// The row of a model, by its chat template; text alone where the template shows no other.
    pub fn of_template(source: &str) -> &'static Self {
        let found = TESTS.iter().find(|(_, marks)| marks.iter().all(|mark| source.contains(mark)));
        found.and_then(|(name, _)| Self::named(name)).unwrap_or(Self::PLAIN)
    }
}
