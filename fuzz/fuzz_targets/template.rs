//! Chat templates of any text, rendered over a conversation. Seeds:
//! crates/text/tests/fixtures/templates/*.
#![no_main]

use serde_json::json;
use tokenmill_text::{ChatTemplate, RenderOptions, TemplateTokens};

libfuzzer_sys::fuzz_target!(|source: &str| {
    let tokens = TemplateTokens { bos: "<s>".into(), eos: "</s>".into(), ..Default::default() };
    let Ok(template) = ChatTemplate::new(source, tokens) else { return };
    let messages = [
        json!({"role": "system", "content": "Be brief."}),
        json!({"role": "user", "content": "What is 2 + 2?"}),
        json!({"role": "assistant", "content": "", "tool_calls": [
            {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2}}}]}),
        json!({"role": "tool", "content": "4"}),
    ];
    let tools = json!([{"type": "function", "function": {"name": "add", "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}}}]);
    for tools in [None, Some(&tools)] {
        let options = RenderOptions { add_generation_prompt: true, tools, ..Default::default() };
        let _ = template.render(&messages, &options);
    }
    let _ = template.uses("tools");
});
