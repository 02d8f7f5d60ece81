//! Which row a chat template means: the fixtures at hand, and published templates by name.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use tokenmill_output::{FORMATS, Format};

/// Names of templates and their rows.
fn expected() -> BTreeMap<&'static str, &'static str> {
    let lines = include_str!("rows.txt").lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(' ')).collect()
}

#[test]
fn rows_have_names_of_their_own() {
    for (at, format) in FORMATS.iter().enumerate() {
        assert_eq!(Format::named(format.name), Some(format));
        assert!(FORMATS[..at].iter().all(|other| other.name != format.name), "{}", format.name);
    }
    let unknown = |row: &&str| Format::named(row).is_none();
    assert_eq!(expected().into_values().filter(unknown).count(), 0);
    assert_eq!(Format::named("none"), None);
}

#[test]
fn templates_at_hand_mean_their_rows() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/fixtures/templates");
    let expected = expected();
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let row = Format::of_template(&std::fs::read_to_string(&path).unwrap()).name;
        assert_eq!(expected.get(name.as_str()), Some(&row), "{name}");
        seen += 1;
    }
    assert!(seen >= 14, "{seen} templates");
}

/// A file as `.ci/templates` makes it: `templates` holds sources by name.
#[test]
fn published_templates_mean_their_rows() {
    let Ok(file) = std::env::var("TOKENMILL_TEST_TEMPLATES") else {
        return;
    };
    let file: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let (expected, mut wrong) = (expected(), Vec::new());
    let templates = file["templates"].as_object().unwrap();
    for (name, source) in templates {
        let row = Format::of_template(source.as_str().unwrap()).name;
        // (Templates that are newer than the list are not in it.)
        let listed = expected.get(name.trim_end_matches(".jinja"));
        if listed.is_some_and(|expected| *expected != row) {
            wrong.push(format!("{name} {row}"));
        }
    }
    println!("{} published templates", templates.len());
    assert!(wrong.is_empty(), "not as listed:\n{}", wrong.join("\n"));
}

/// What the families' templates write, in a line; those whose templates are not at hand too.
#[test]
fn marks_mean_their_rows() {
    for (source, row) in [
        ("{{ '[TOOL_CALLS]' + name + '[CALL_ID]' + id + '[ARGS]' + arguments }}", "mistral-v11"),
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>", "deepseek-v31"),
        ("<|tool_calls_section_begin|><|tool_call_begin|>", "kimi-k2"),
        ("{%- set toolcall_begin_token = '<minimax:tool_call>' -%}", "minimax-m2"),
        ("<start_function_call>call:", "gemma"),
        ("<|start_of_role|>assistant<|end_of_role|> <|tool_call|>", "granite"),
        ("<|start_of_role|> <tool_call>\n<function=x>\n<parameter=y>", "qwen3-coder"),
        ("'<|' + role + '|>' <|tool|>{{ tools }}<|/tool|> <|assistant|>", "phi4"),
        ("<TOOLCALL>[", "nemotron"),
        ("<|START_THINKING|>", "command"),
        ("<tool_call>\n{\"name\": <function-name>", "hermes"),
        ("content.split('</think>')[-1]", "think"),
        ("<|im_start|>assistant", "plain"),
        ("", "plain"),
    ] {
        assert_eq!(Format::of_template(source).name, row, "{source}");
    }
}
