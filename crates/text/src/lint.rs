//! What is wrong with a model's tokenizer and chat template, found by rendering a few
//! conversations.

use serde_json::{Value as Json, json};

use crate::shown::shown;
use crate::template::{ChatTemplate, RenderOptions, TemplateError};
use crate::tokenizer::{Special, Tokenizer};

/// Words that no template writes of itself.
const USER: &str = "Zebra question one";
const ANSWER: &str = "Quagga answer one";
const NEXT: &str = "Okapi question two";
const SYSTEM: &str = "Tapir instruction";
const TOOL: &str = "find_wombat_burrows";

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Something the template cannot do, or does at a cost.
    Note,
    /// A guess: answers may be worse.
    Warning,
    /// Answers will be worse, or will not end.
    Error,
}

/// Something found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad.
    pub severity: Severity,
    /// Stable word for programs.
    pub code: &'static str,
    /// What, with the texts.
    pub message: String,
}

/// What a user must be told before the first answer: what was guessed, and why a template that
/// there is cannot be used.
pub fn warnings(
    tokenizer: Option<&Tokenizer>,
    template: Result<&ChatTemplate, &TemplateError>,
) -> Vec<String> {
    let findings = tokenizer.map(Tokenizer::findings).unwrap_or_default();
    let told = findings.iter().filter(|finding| finding.severity >= Severity::Warning);
    let mut list: Vec<String> = told.map(|finding| shown(&finding.message)).collect();
    match template {
        Ok(template) if template.is_guess() => list.push(GUESSED.to_owned()),
        Ok(_) | Err(TemplateError::Missing) => {}
        Err(error) => list.push(format!("chats are refused: {error}")),
    }
    list
}

const GUESSED: &str = "the model has no chat template; ChatML is a guess, by the tokens of its \
                       vocabulary; put the right one into chat_template.jinja";

/// Everything found, worst first. A template that is missing is one finding.
pub fn lint(
    tokenizer: &Tokenizer,
    template: Result<&ChatTemplate, &TemplateError>,
) -> Vec<Finding> {
    let mut found = Findings { list: tokenizer.findings().to_vec() };
    if tokenizer.eos_ids().is_empty() {
        found.error("no_eos", "no token ends an answer: it goes on to the limit");
    }
    match template {
        Err(TemplateError::Missing) => {
            found.note("no_template", "there is no chat template: only plain completion works");
        }
        Err(error) => found.error("broken_template", error),
        Ok(template) => {
            if template.is_guess() {
                found.add(Severity::Warning, "guessed_template", GUESSED);
            }
            chats(tokenizer, template, &mut found);
        }
    }
    found.list.iter_mut().for_each(|finding| finding.message = shown(&finding.message));
    found.list.sort_by_key(|f| std::cmp::Reverse(f.severity));
    found.list
}

#[derive(Default)]
struct Findings {
    list: Vec<Finding>,
}

impl Findings {
    fn add(&mut self, severity: Severity, code: &'static str, message: impl ToString) {
        self.list.push(Finding { severity, code, message: message.to_string() });
    }

    fn note(&mut self, code: &'static str, message: impl ToString) {
        self.add(Severity::Note, code, message);
    }

    fn error(&mut self, code: &'static str, message: impl ToString) {
        self.add(Severity::Error, code, message);
    }
}

fn message(role: &str, content: &str) -> Json {
    json!({ "role": role, "content": content })
}

fn chats(tokenizer: &Tokenizer, template: &ChatTemplate, found: &mut Findings) {
    let open = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
    let closed = RenderOptions::default();
    let text = |messages: &[Json], options: &RenderOptions<'_>| {
        let messages = template.readable(messages);
        template.render(&messages, options).map(|p| p.text().into_owned())
    };
    let user = [message("user", USER)];
    let user = template.readable(&user).into_owned();
    let first = match text(&user, &open) {
        Ok(first) => first,
        Err(error) => return found.error("broken_template", error),
    };
    if !first.contains(USER) {
        found.error("lost_message", "the user's text is not in the prompt");
    }
    if text(&user, &closed).is_ok_and(|whole| whole == first) {
        found.error("no_generation_prompt", "the prompt does not open the assistant's turn");
    }
    bos(tokenizer, template, &user, found);
    let system = [message("system", SYSTEM), message("user", USER)];
    match text(&system, &open) {
        Ok(text) if text.contains(SYSTEM) => {}
        Ok(_) => found.error("lost_system", "the system's text is not in the prompt"),
        Err(error) => found.note("no_system", format!("system messages: {error}")),
    }
    tools(template, &user, &first, found);
    turns(tokenizer, template, &first, found);
}

/// The token that starts a text must stand there once.
fn bos(tokenizer: &Tokenizer, template: &ChatTemplate, user: &[Json], found: &mut Findings) {
    let open = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
    let Some(bos) = tokenizer.bos_id() else { return };
    let prompt = template.render(user, &open);
    let Some(ids) = prompt.ok().and_then(|p| tokenizer.encode_rendered(&p).ok()) else { return };
    let count = ids.iter().take_while(|id| **id == bos).count();
    if count > 1 {
        found.error("double_bos", format!("the prompt starts with token {bos} {count} times"));
    }
    let name = String::from_utf8_lossy(tokenizer.token_bytes(bos).unwrap_or_default());
    let writes = template.render(user, &open).is_ok_and(|p| p.text().starts_with(&*name));
    if !tokenizer.prefix().contains(&bos) || writes {
        return;
    }
    match count {
        0 => {
            let message = format!(
                "plain texts start with {name}; chats do not, for the template does not write it \
                 (as in transformers)"
            );
            found.note("bos_left_out", message);
        }
        _ => {
            let message = format!(
                "the template does not write {name}; it is put in front, as the file asks for \
                 (add_bos_token, as in llama.cpp)"
            );
            found.note("bos_added", message);
        }
    }
}

fn tools(template: &ChatTemplate, user: &[Json], without: &str, found: &mut Findings) {
    let offer = json!([{ "type": "function", "function": {
        "name": TOOL, "description": "Finds burrows.",
        "parameters": { "type": "object", "properties": { "area": { "type": "string" } } },
    }}]);
    let options = RenderOptions {
        add_generation_prompt: true,
        tools: Some(&offer),
        ..RenderOptions::default()
    };
    match template.render(user, &options) {
        Err(error) => found.error("broken_tools", format!("with tools: {error}")),
        Ok(prompt) if prompt.text().contains(TOOL) => {}
        Ok(prompt) if prompt.text() == without => {
            found.note("no_tools", "tools leave no trace in the prompt");
        }
        Ok(_) => found.error("lost_tools", "tools change the prompt but their names are lost"),
    }
}

/// A second turn: its prompt should go on from the first one and the answer, and the answer should
/// end with a token that ends answers.
fn turns(tokenizer: &Tokenizer, template: &ChatTemplate, first: &str, found: &mut Findings) {
    let open = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
    let turns = [message("user", USER), message("assistant", ANSWER), message("user", NEXT)];
    let second = match template.render(&template.readable(&turns), &open) {
        Ok(prompt) => prompt.text().into_owned(),
        Err(error) => return found.error("broken_turns", format!("a second turn: {error}")),
    };
    let Some((_, after)) = second.split_once(ANSWER) else {
        return found.error("lost_answer", "the assistant's answer is not in the next prompt");
    };
    if !second.starts_with(first) {
        let message = "the next prompt rewrites the one before it: the prefix cache has less of it";
        found.note("unstable_prefix", message);
    } else if !second[first.len()..].trim_start().starts_with(ANSWER) {
        let between = second[first.len()..].split(ANSWER).next().unwrap_or_default();
        let message = format!("before the answer the next prompt has {between:?}");
        found.note("unstable_prefix", message);
    }
    let ends = tokenizer.encode(after.split(NEXT).next().unwrap_or_default(), Special::Parse);
    let end = ends.ok().and_then(|ids| ids.into_iter().find(|id| tokenizer.is_special(*id)));
    if let Some(end) = end.filter(|id| !tokenizer.eos_ids().contains(id)) {
        let name = String::from_utf8_lossy(tokenizer.token_bytes(end).unwrap_or_default());
        let message = format!("answers end with {name}, which does not end them here");
        found.note("unlisted_eos", message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf_vocab::GgufVocab;
    use crate::template::TemplateTokens;

    const CONTROL: [&str; 4] = ["<s>", "</s>", "<|turn|>", "<|done|>"];

    /// Every byte a token, one merge, then the control tokens.
    fn tokenizer(eos: Option<u32>) -> Tokenizer {
        let printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let mut next = 0x100;
        let mut spell = |byte: u8| {
            let code = if printable(byte) { u32::from(byte) } else { next };
            next += u32::from(!printable(byte));
            char::from_u32(code).expect("a character").to_string()
        };
        let mut tokens: Vec<String> = (0..=255).map(&mut spell).collect();
        tokens.push("\u{101}\u{102}".into());
        tokens.extend(CONTROL.map(str::to_owned));
        let mut token_types = vec![1; 257];
        token_types.extend([3; 4]);
        let vocab = GgufVocab {
            model: "gpt2".into(),
            pre: Some("gpt-2".into()),
            tokens,
            token_types,
            merges: vec!["\u{101} \u{102}".into()],
            bos: Some(257),
            eos: eos.map(|i| 257 + i),
            add_bos: Some(true),
            ..GgufVocab::default()
        };
        Tokenizer::from_gguf(vocab).expect("a vocabulary")
    }

    fn codes(source: &str, eos: Option<u32>) -> Vec<&'static str> {
        let tokenizer = tokenizer(eos);
        let tokens = TemplateTokens {
            bos: "<s>".into(),
            eos: "</s>".into(),
            control: CONTROL.map(str::to_owned).to_vec(),
            ..TemplateTokens::default()
        };
        let template = ChatTemplate::new(source, tokens).expect("a template");
        lint(&tokenizer, Ok(&template)).into_iter().map(|f| f.code).collect()
    }

    #[test]
    fn each_fault_has_its_code() {
        let turns = "{% for m in messages %}<|turn|>{{ m.role }} {{ m.content }}</s>{% endfor %}";
        let open = "{% if add_generation_prompt %}<|turn|>assistant {% endif %}";
        let tools = "{% if tools %}{{ tools | tojson }}{% endif %}";
        let good = format!("{{{{ bos_token }}}}{tools}{turns}{open}");
        let cases: &[(String, Option<u32>, &[&str])] = &[
            (good.clone(), Some(1), &[]),
            (good.clone(), None, &["no_eos", "unlisted_eos"]),
            (good.replace("</s>", "<|done|>"), Some(1), &["unlisted_eos"]),
            (format!("{{{{ bos_token }}}}{good}"), Some(1), &["double_bos"]),
            (good.replace(tools, ""), Some(1), &["no_tools"]),
            (good.replace("tools | tojson", "tools | length"), Some(1), &["lost_tools"]),
            (good.replace(open, ""), Some(1), &["no_generation_prompt", "unstable_prefix"]),
            (good.replace("{{ m.role }} {{", "{{ m.role }} x{{"), Some(1), &["unstable_prefix"]),
            (
                good.replace("{{ bos_token }}", "{{ bos_token }}{{ messages | length }}"),
                Some(1),
                &["unstable_prefix"],
            ),
            (
                good.replace("in messages %}", "in messages if m.role != 'system' %}"),
                Some(1),
                &["lost_system"],
            ),
            ("{{ raise_exception('no') }}".into(), Some(1), &["broken_template"]),
            (good.replace("{{ bos_token }}", ""), Some(1), &["bos_added"]),
        ];
        for (source, eos, expect) in cases {
            assert_eq!(codes(source, *eos), *expect, "{source}");
        }
    }

    #[test]
    fn a_missing_template_is_one_note() {
        let found = lint(&tokenizer(Some(1)), Err(&TemplateError::Missing));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].severity, found[0].code), (Severity::Note, "no_template"));
    }
}
