//! Templates of the forms that Ollama's library and people's Modelfiles have, by what they render.

use serde_json::{Value, json};

use super::from_go;
use crate::{ChatTemplate, RenderOptions, TemplateTokens};

fn rendered(go: &str, messages: &Value, tools: Option<&Value>) -> String {
    let jinja = from_go(go).unwrap_or_else(|e| panic!("{e}: {go}"));
    let template = ChatTemplate::new(&jinja, TemplateTokens::default());
    let template = template.unwrap_or_else(|e| panic!("{e}: {jinja}"));
    let options = RenderOptions { add_generation_prompt: true, tools, ..RenderOptions::default() };
    let messages = messages.as_array().expect("messages");
    let rendered = template.render(&template.readable(messages), &options);
    rendered.unwrap_or_else(|e| panic!("{e}: {jinja}")).text().into_owned()
}

fn talk() -> Value {
    json!([
        { "role": "system", "content": "S" },
        { "role": "user", "content": "a 'q'" },
        { "role": "assistant", "content": "b" },
        { "role": "user", "content": "c" },
    ])
}

#[test]
fn a_template_of_one_turn_is_rendered_turn_by_turn() {
    let chat_ml = "{{- if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}\
                   {{- if .Prompt }}<|im_start|>user\n{{ .Prompt }}<|im_end|>\n{{ end }}\
                   <|im_start|>assistant\n{{ .Response }}<|im_end|>\n";
    let expect = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na 'q'<|im_end|>\n\
                  <|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n\
                  <|im_start|>assistant\n";
    assert_eq!(rendered(chat_ml, &talk(), None), expect);
    // The answer's place may be left out.
    let without = chat_ml.replace("{{ .Response }}<|im_end|>\n", "");
    let told = rendered(&without, &json!([{ "role": "user", "content": "c" }]), None);
    assert_eq!(told, "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n");
    let inst =
        "[INST] {{ if .System }}{{ .System }}\n\n{{ end }}{{ .Prompt }} [/INST]{{ .Response }}</s>";
    let expect = "[INST] S\n\na 'q' [/INST]b</s>[INST] c [/INST]";
    assert_eq!(rendered(inst, &talk(), None), expect);
}

#[test]
fn a_template_that_walks_over_messages_is_rendered_so() {
    let llama = r#"{{- range $i, $_ := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 }}<|start_header_id|>{{ .Role }}<|end_header_id|>

{{ .Content }}
{{- if or (ne .Role "assistant") (not $last) }}<|eot_id|>{{ end }}
{{- if and (ne .Role "assistant") $last }}<|start_header_id|>assistant<|end_header_id|>

{{ end }}
{{- end }}"#;
    let turn = |role: &str, text: &str| {
        format!("<|start_header_id|>{role}<|end_header_id|>\n\n{text}<|eot_id|>")
    };
    let turns = [("system", "S"), ("user", "a 'q'"), ("assistant", "b"), ("user", "c")];
    let turns: String = turns.map(|(role, text)| turn(role, text)).concat();
    let expect = format!("{turns}<|start_header_id|>assistant<|end_header_id|>\n\n");
    assert_eq!(rendered(llama, &talk(), None), expect);
    let gemma = r#"{{ range $m := .Messages }}{{ if eq $m.Role "user" "system" }}<start_of_turn>user
{{ if and (eq .Role "system") true }}{{ "" }}{{ end }}{{ $m.Content }}<end_of_turn>
{{ else if eq $m.Role "assistant" }}<start_of_turn>model
{{ $m.Content }}<end_of_turn>
{{ end }}{{ end }}<start_of_turn>model
"#;
    let expect = "<start_of_turn>user\nS<end_of_turn>\n<start_of_turn>user\na 'q'<end_of_turn>\n\
                  <start_of_turn>model\nb<end_of_turn>\n<start_of_turn>user\nc<end_of_turn>\n\
                  <start_of_turn>model\n";
    assert_eq!(rendered(gemma, &talk(), None), expect);
}

#[test]
fn tools_and_calls_are_json() {
    let go = r#"{{- if or .System .Tools }}<|im_start|>system
{{ .System }}
{{- if .Tools }}
{{- range .Tools }}
{"type": "function", "function": {{ .Function }}}
{{- end }}
{{- end }}<|im_end|>
{{ end }}
{{- range .Messages }}
{{- if eq .Role "user" }}<|im_start|>user
{{ .Content }}<|im_end|>
{{ else if eq .Role "assistant" }}<|im_start|>assistant
{{ if .Content }}{{ .Content }}
{{- else if .ToolCalls }}<tool_call>
{{ range .ToolCalls }}{"name": "{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}}
{{ end }}</tool_call>
{{- end }}<|im_end|>
{{ else if eq .Role "tool" }}<|im_start|>user
<tool_response>
{{ .Content }}
</tool_response><|im_end|>
{{ end }}{{ end }}<|im_start|>assistant
"#;
    let call = json!({ "id": "x", "type": "function", "function": { "name": "f", "arguments": { "a": 1 } } });
    let messages = json!([
        { "role": "user", "content": "q" },
        { "role": "assistant", "content": null, "tool_calls": [call] },
        { "role": "tool", "content": "2", "tool_call_id": "x" },
    ]);
    let tools = json!([{ "type": "function", "function": { "name": "f", "parameters": {} } }]);
    let expect = "<|im_start|>system\n\n{\"type\": \"function\", \"function\": {\"name\": \"f\", \
                  \"parameters\": {}}}<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n\
                  <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call><|im_end|>\n\
                  <|im_start|>user\n<tool_response>\n2\n</tool_response><|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(rendered(go, &messages, Some(&tools)), expect);
}

#[test]
fn what_is_not_translated_is_named() {
    for (go, word) in [
        ("{{ template \"x\" }}", "template"),
        ("{{ with .System }}{{ . }}{{ end }}", "with"),
        ("{{ .Prompt | upper }}", "upper"),
        ("{{ printf \"%s\" .Prompt }}", "printf"),
        ("{{ .License }}", ".License"),
        ("{{ range .Messages }}{{ .Images }}{{ end }}", ".Images"),
        ("{{ if .Prompt }}", "if"),
        ("{{ end }}", "end"),
        ("{{ .Prompt", "without its end"),
        ("{{ $x }}{{ .Prompt }}", "$x"),
        ("{{ $x := 1 }}{{ range .Messages }}{{ $x = 2 }}{{ end }}", "changed inside"),
        ("{{ range .Messages }}{{ . }}{{ end }}", "printed as a whole"),
        ("{{ range .Prompt }}{{ end }}", "no list"),
        ("{{ (.Prompt }}", "bracket"),
        ("{{ \"a }}", "without its end"),
        ("{{ }}", "missing"),
    ] {
        let error = from_go(go).expect_err(go).to_string();
        assert!(error.contains(word), "{go}: {error}");
    }
    let deep = "{{ if .Prompt }}".repeat(1000) + &"{{ end }}".repeat(1000);
    assert!(from_go(&deep).is_err());
    let deep = format!("{{{{ {}1{} }}}}", "(".repeat(1000), ")".repeat(1000));
    assert!(from_go(&deep).is_err());
}

#[test]
fn texts_of_a_user_stay_texts() {
    let go = "{{ .Prompt }}{{/* a note */}}{{- \" \\\"x\\\" `\" -}} \n y";
    let told = rendered(go, &json!([{ "role": "user", "content": "{{ 1 }}'" }]), None);
    assert_eq!(told, "{{ 1 }}' \"x\" `y");
}
