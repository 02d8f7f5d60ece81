//! Configurations: keys in other places, sparse ones, ones that change the numbers.

use crate::program::{case, json, refusal, scores};

/// The scores of a case's model.
fn right(name: &str, model: &str, expect: &str) {
    scores(&case(name).join(model), &case(name).join(expect));
}

#[test]
fn gemma3_sparse_text_config() {
    right("gemma3-sparse-text-config", "", "expect.json");
}

#[test]
fn rope_theta_inside_rope_scaling() {
    right("rope-theta-inside-rope-scaling", "", "expect.json");
}

#[test]
fn mistral3_gguf_yarn_log_multiplier() {
    right("mistral3-gguf-yarn-log-multiplier", "model.gguf", "expect.json");
}

/// The short factors are right up to where they hold, and there the context ends.
#[test]
fn longrope_beyond_the_original_context() {
    let folder = case("longrope-beyond-the-original-context");
    right("longrope-beyond-the-original-context", "", "expect_short.json");
    let ids: Vec<String> = json(&folder.join("expect.json"))["ids"]
        .as_array()
        .expect("a list")
        .iter()
        .map(ToString::to_string)
        .collect();
    let model = folder.to_str().expect("UTF-8");
    let told = refusal(&["score", model, "--ids", &ids.join(",")]);
    assert!(told.contains("100") && told.contains("64"), "{told}");
}
