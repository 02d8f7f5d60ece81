//! Models whose numbers cannot be: every command refuses them, in a line that names the field and
//! the numbers.

use std::path::Path;

use super::program::{case, command, refusal, text};

/// Every command that reads a model, with its further arguments.
const COMMANDS: &[(&str, &[&str])] = &[
    ("inspect", &[]),
    ("lint", &[]),
    ("plan", &["--memory-only"]),
    ("score", &["--ids", "1,2,3"]),
    ("run", &["hello"]),
    ("serve", &["--port", "0"]),
];

fn refused(model: &Path, words: &[&str], commands: &[(&str, &[&str])]) {
    let model = model.to_str().expect("UTF-8");
    for (name, more) in commands {
        let told = refusal(&[&[*name, model], *more].concat());
        let lines: Vec<&str> = told.lines().collect();
        let detail = lines.get(1).copied().unwrap_or_default();
        assert_eq!(lines.len(), 2, "{name}: {told}");
        assert!(lines[0].starts_with("error: "), "{name}: {told}");
        assert!(words.iter().all(|word| detail.contains(word)), "{name}, {words:?}: {told}");
        assert!(!told.contains("panicked") && told.len() < 1000, "{name}: {told}");
    }
}

#[test]
fn gguf_more_heads_than_columns() {
    let model = case("gguf-more-heads-than-columns").join("model.gguf");
    refused(&model, &["llama.attention.head_count", "64", "32"], COMMANDS);
}

#[test]
fn gguf_rope_dimensions_over_the_head() {
    let model = case("gguf-rope-dimensions-over-the-head").join("model.gguf");
    refused(&model, &["llama.rope.dimension_count", "10", "8 columns"], COMMANDS);
}

#[test]
fn gguf_two_thousand_million_layers() {
    let model = case("gguf-two-thousand-million-layers").join("model.gguf");
    refused(&model, &["llama.block_count", "4096", "2147483648"], COMMANDS);
}

/// The refusal takes next to nothing: it comes also where memory is short.
#[cfg(target_os = "linux")]
#[test]
fn layers_are_refused_before_anything_is_made_for_them() {
    let home = tempfile::tempdir().expect("a folder");
    let model = case("gguf-two-thousand-million-layers").join("model.gguf");
    for layers in [1u32 << 31, 1_000_000, 4096, 13] {
        let file = home.path().join("model.gguf");
        std::fs::write(&file, with(&model, "llama.block_count", layers)).expect("written");
        let program = command(home.path()).get_program().to_owned();
        // (Data of the process, not its address space, which mapped files and stacks take too.)
        let script = "ulimit -d 131072; exec \"$0\" inspect \"$1\"";
        let mut shell = std::process::Command::new("sh");
        let output = shell.args(["-c", script]).arg(program).arg(&file).output().expect("it runs");
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{layers}: {told}");
        assert!(told.contains("llama.block_count"), "{layers}: {told}");
    }
}

/// A context that only the file asks for gives way to memory, also to limits of the process.
#[cfg(target_os = "linux")]
#[test]
fn a_context_gives_way_to_memory() {
    let home = tempfile::tempdir().expect("a folder");
    let from = case("template-that-looks-for-a-control-token");
    for name in ["model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(from.join(name), home.path().join(name)).expect("copied");
    }
    let config = std::fs::read_to_string(from.join("config.json")).expect("read");
    for context in [100_000_000, 1 << 30] {
        let longer = config.replace("embeddings\": 512", &format!("embeddings\": {context}"));
        assert_ne!(longer, config);
        std::fs::write(home.path().join("config.json"), longer).expect("written");
        let program = command(home.path()).get_program().to_owned();
        let script = "ulimit -v 4000000; exec \"$0\" run \"$1\" hello -n 2 --threads 2 < /dev/null";
        let mut shell = std::process::Command::new("sh");
        let shell = shell.args(["-c", script]).arg(program).arg(home.path());
        let output = shell.env("HOME", home.path()).output().expect("it runs");
        assert!(output.status.success(), "{context}: {}", text(&output.stderr));
    }
}

/// A GGUF file with another number in the place of a 32-bit one.
fn with(model: &Path, key: &str, number: u32) -> Vec<u8> {
    let mut bytes = std::fs::read(model).expect("read");
    let found = bytes.windows(key.len()).position(|w| w == key.as_bytes());
    let at = found.unwrap_or_else(|| panic!("{key} is not there")) + key.len() + 4;
    bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
    bytes
}

#[test]
fn gguf_numbers_that_cannot_be() {
    let model = case("gguf-rope-dimensions-over-the-head").join("model.gguf");
    let folder = tempfile::tempdir().expect("a folder");
    let whole = folder.path().join("whole.gguf");
    std::fs::write(&whole, with(&model, "llama.rope.dimension_count", 8)).expect("written");
    let table: &[(&str, u32, &[&str])] = &[
        ("llama.rope.dimension_count", 9, &["9", "8 columns"]),
        ("llama.rope.dimension_count", 255, &["255", "8 columns"]),
        ("llama.rope.dimension_count", 0, &["1 to 4096", "found 0"]),
        ("llama.attention.head_count_kv", 3, &["3", "4 heads"]),
        ("llama.attention.head_count_kv", 0, &["1 to 16384", "found 0"]),
        ("llama.attention.head_count_kv", 1 << 31, &["16384", "2147483648"]),
        ("llama.attention.head_count", 0, &["1 to 16384", "found 0"]),
        ("llama.attention.head_count", 1 << 31, &["16384", "2147483648"]),
        ("llama.embedding_length", 0, &["1 to 262144", "found 0"]),
        ("llama.embedding_length", u32::MAX, &["262144", "4294967295"]),
        ("llama.feed_forward_length", 0, &["1 to 1048576", "found 0"]),
        ("llama.feed_forward_length", 1 << 31, &["1048576", "2147483648"]),
        ("llama.block_count", 0, &["1 to 4096", "found 0"]),
        ("llama.block_count", 13, &["13 layers", "12 tensors"]),
        ("llama.context_length", 0, &["1 to 1073741824", "found 0"]),
        ("llama.context_length", u32::MAX, &["1073741824", "4294967295"]),
        ("llama.vocab_size", 281, &["281", "280 rows"]),
        ("llama.vocab_size", 7, &["7", "280 rows"]),
        ("llama.attention.layer_norm_rms_epsilon", 0xbf80_0000, &["1e-30 to 1", "-1"]),
        ("llama.attention.layer_norm_rms_epsilon", 0x7fc0_0000, &["1e-30 to 1", "NaN"]),
        ("llama.rope.freq_base", 0x7f80_0000, &["1 to 1e15", "inf"]),
        ("llama.rope.freq_base", 1, &["1 to 1e15", "1.401"]),
    ];
    let file = folder.path().join("model.gguf");
    for (key, number, words) in table {
        std::fs::write(&file, with(&whole, key, *number)).expect("written");
        refused(&file, &[words, &[*key][..]].concat(), &COMMANDS[..1]);
    }
}

#[test]
fn config_numbers_that_cannot_be() {
    let from = case("rope-theta-inside-rope-scaling");
    let folder = tempfile::tempdir().expect("a folder");
    let weights = "model.safetensors";
    std::fs::copy(from.join(weights), folder.path().join(weights)).expect("copied");
    let config = std::fs::read_to_string(from.join("config.json")).expect("read");
    let table: &[(&str, &str, &str, &[&str])] = &[
        ("num_hidden_layers", "1", "0", &["1 to 4096", "found 0"]),
        ("num_hidden_layers", "1", "1000000000", &["4096", "1000000000"]),
        ("num_hidden_layers", "1", "-1", &["1 to 4096", "-1"]),
        ("num_hidden_layers", "1", "1.5", &["1 to 4096", "1.5"]),
        ("num_hidden_layers", "1", "NaN", &["1 to 4096", "NaN"]),
        ("num_hidden_layers", "1", "\"1\"", &["1 to 4096", "the text \"1\""]),
        ("num_hidden_layers", "1", "1e300", &["1 to 4096", "found 1"]),
        ("hidden_size", "32", "0", &["1 to 262144", "found 0"]),
        ("hidden_size", "32", "null", &["null"]),
        ("num_attention_heads", "4", "1000000000", &["16384", "1000000000"]),
        ("num_attention_heads", "4", "64", &["64 heads", "32"]),
        ("num_key_value_heads", "2", "2147483648", &["16384", "2147483648"]),
        ("num_key_value_heads", "2", "3", &["3", "4 heads"]),
        ("vocab_size", "280", "281", &["281", "280 rows"]),
        ("max_position_embeddings", "1024", "0", &["1 to 1073741824", "found 0"]),
        ("rms_norm_eps", "1e-05", "-0.1", &["0 to 1", "-0.1"]),
    ];
    for (key, old, new, words) in table {
        let was = format!("\"{key}\": {old}");
        assert!(config.contains(&was), "{was}");
        let changed = config.replace(&was, &format!("\"{key}\": {new}"));
        std::fs::write(folder.path().join("config.json"), changed).expect("written");
        refused(folder.path(), &[words, &[*key][..]].concat(), &COMMANDS[..1]);
    }
}
