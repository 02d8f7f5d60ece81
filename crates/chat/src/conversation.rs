//! A conversation as every dialect's messages are read into it, and as templates get it.

use std::collections::HashMap;

use serde_json::{Map, Value, json};
use tokenmill_engine::constraint::Constraint;
use tokenmill_text::ChatTemplate;

use crate::image::Image;
use crate::strict_json::{self, JsonLimits};

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Instructions.
    System,
    /// Who asks.
    User,
    /// The model.
    Assistant,
    /// What a tool found.
    Tool,
}

impl Role {
    /// What templates call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// A part of what is said.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// A text.
    Text(String),
    /// An image.
    Image(Image),
}

impl Part {
    /// Its text; `None`: it has none.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Image(_) => None,
        }
    }

    /// Whether it is a text of no characters.
    pub fn is_empty(&self) -> bool {
        self.text().is_some_and(str::is_empty)
    }

    /// As templates want it.
    fn value(&self) -> Value {
        match self {
            Self::Text(text) => json!({ "type": "text", "text": text }),
            Self::Image(_) => json!({ "type": "image" }),
        }
    }
}

/// What is said: as one text or in parts, for templates tell them apart.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// One text.
    Text(String),
    /// Texts and images one after another.
    Parts(Vec<Part>),
}

impl Content {
    /// One text is a text: a prompt is the same whether it came as a string or as a part.
    pub fn of(mut parts: Vec<Part>) -> Self {
        match (parts.pop(), parts.is_empty()) {
            (None, _) => Self::Text(String::new()),
            (Some(Part::Text(text)), true) => Self::Text(text),
            (Some(last), _) => {
                parts.push(last);
                Self::Parts(parts)
            }
        }
    }

    /// Its parts, in order.
    pub fn into_parts(self) -> Vec<Part> {
        match self {
            Self::Text(text) => vec![Part::Text(text)],
            Self::Parts(parts) => parts,
        }
    }

    /// Its texts, in order.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        let (one, parts) = match self {
            Self::Text(text) => (Some(text.as_str()), &[][..]),
            Self::Parts(parts) => (None, &parts[..]),
        };
        one.into_iter().chain(parts.iter().filter_map(Part::text))
    }

    /// Its images, in order.
    pub fn images(&self) -> impl Iterator<Item = &Image> {
        let parts = match self {
            Self::Text(_) => &[][..],
            Self::Parts(parts) => &parts[..],
        };
        parts.iter().filter_map(|part| match part {
            Part::Image(image) => Some(image),
            Part::Text(_) => None,
        })
    }

    /// The same, to be changed.
    pub fn images_mut(&mut self) -> impl Iterator<Item = &mut Image> {
        let parts = match self {
            Self::Text(_) => &mut [][..],
            Self::Parts(parts) => &mut parts[..],
        };
        parts.iter_mut().filter_map(|part| match part {
            Part::Image(image) => Some(image),
            Part::Text(_) => None,
        })
    }
}

/// A call of a tool that an earlier answer made.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The client's name for it, which the message with its result repeats.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// What it was called with: an object.
    pub arguments: Value,
}

/// Member that holds arguments which are no object of JSON, or a very large one.
const UNREAD: &str = "INVALID_JSON";
/// Limits of arguments in a text, which no limit of the body counts.
const ARGUMENTS: JsonLimits = JsonLimits { depth: 64, values: 1 << 16 };

impl Call {
    /// A call whose arguments came as a text of JSON; nothing stands for none. What is no object
    /// (a call that was cut, sent back) becomes a member of one, for templates read objects.
    pub fn of_text(id: String, name: String, arguments: &str) -> Self {
        let arguments = match arguments.trim() {
            "" | "null" => json!({}),
            text => match strict_json::parse(text.as_bytes(), ARGUMENTS) {
                Ok(object @ Value::Object(_)) => object,
                _ => json!({ UNREAD: arguments }),
            },
        };
        Self { id, name, arguments }
    }
}

/// A message.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: Content,
    /// Who that is, among several of a role.
    pub name: Option<String>,
    /// The call that a tool's message answers.
    pub call_id: Option<String>,
    /// What the model thought before it said this.
    pub reasoning: Option<String>,
    /// The calls it ends with.
    pub calls: Vec<Call>,
}

impl Message {
    /// A message of one text.
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        let (name, call_id, reasoning, calls) = (None, None, None, Vec::new());
        Self { role, content: Content::Text(text.into()), name, call_id, reasoning, calls }
    }

    /// Whether the next message can be a part of this one.
    fn may_join(&self, next: &Self) -> bool {
        let is_plain =
            |m: &Self| m.calls.is_empty() && m.call_id.is_none() && m.reasoning.is_none();
        self.role == next.role && self.name == next.name && is_plain(self) && is_plain(next)
    }

    fn join(&mut self, next: Self) {
        let own = std::mem::replace(&mut self.content, Content::Parts(Vec::new()));
        self.content = match (own, next.content) {
            (Content::Text(own), Content::Text(next)) => Content::Text(format!("{own}\n\n{next}")),
            (own, next) => Content::Parts([own.into_parts(), next.into_parts()].concat()),
        };
    }

    /// As templates want it; `ids` are what it calls calls.
    fn value(&self, ids: &mut Ids) -> Value {
        let content = match &self.content {
            // (Beside calls, templates tell no text from an empty one.)
            Content::Text(text) if text.is_empty() && !self.calls.is_empty() => Value::Null,
            Content::Text(text) => Value::from(text.as_str()),
            Content::Parts(parts) => parts.iter().map(Part::value).collect(),
        };
        let mut members = Map::new();
        members.insert("role".into(), self.role.name().into());
        members.insert("content".into(), content);
        let answers = self.call_id.as_ref().map(|id| ids.result(id));
        let (of, call_id) = answers.map_or((None, None), |(name, id)| (name, Some(id)));
        for (name, text) in [
            ("name", &self.name.clone().or(of)),
            ("tool_call_id", &call_id),
            ("reasoning_content", &self.reasoning),
        ] {
            if let Some(text) = text {
                members.insert(name.into(), text.as_str().into());
            }
        }
        if !self.calls.is_empty() {
            let call = |call: &Call| {
                let function = json!({ "name": call.name, "arguments": call.arguments });
                json!({ "id": ids.call(call), "type": "function", "function": function })
            };
            members.insert("tool_calls".into(), self.calls.iter().map(call).collect());
        }
        Value::Object(members)
    }
}

/// A tool on offer.
#[derive(Debug, Clone, PartialEq)]
pub struct Offered {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// The JSON Schema of its arguments.
    pub parameters: Value,
    /// All of the schema is enforced, or the request refused.
    pub strict: bool,
    /// What the text holds that it is called with, where it is called with one.
    pub input: Option<Constraint>,
    /// It stands where the conversation has it, not among those that are offered from the start.
    pub later: bool,
}

impl Offered {
    /// A function that is on offer from the start.
    pub fn new(name: String, description: Option<String>, parameters: Value, strict: bool) -> Self {
        Self { name, description, parameters, strict, input: None, later: false }
    }

    /// As templates want it.
    pub fn value(&self) -> Value {
        let mut function = Map::new();
        function.insert("name".into(), self.name.as_str().into());
        if let Some(description) = &self.description {
            function.insert("description".into(), description.as_str().into());
        }
        function.insert("parameters".into(), self.parameters.clone());
        json!({ "type": "function", "function": function })
    }
}

/// Whether an answer calls tools.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Calling {
    /// As the model sees fit.
    #[default]
    Auto,
    /// It does not: nothing is offered.
    None,
    /// At least one.
    Required,
}

/// The tools that an answer may call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tools {
    /// All of them, in order.
    pub offered: Vec<Offered>,
    /// Whether one is called.
    pub calling: Calling,
    /// Only these of them may be called, by name.
    pub only: Option<Vec<String>>,
    /// One call at most.
    pub single: bool,
}

impl Tools {
    /// What the model is shown; `None`: nothing.
    pub fn shown(&self) -> Option<Value> {
        let first = || self.offered.iter().filter(|tool| !tool.later);
        let shown = self.calling != Calling::None && first().next().is_some();
        shown.then(|| first().map(Offered::value).collect())
    }

    /// Whether an answer must be held to them: a call is required, or one of them is strict.
    pub fn must_hold(&self) -> bool {
        self.calling == Calling::Required || self.callable().any(|tool| tool.strict)
    }

    /// What may be called.
    pub fn callable(&self) -> impl Iterator<Item = &Offered> {
        let may = |name: &str| self.only.as_ref().is_none_or(|only| only.iter().any(|o| o == name));
        let shown = self.calling != Calling::None;
        self.offered.iter().filter(move |tool| shown && may(&tool.name))
    }
}

/// Names of calls in a prompt. Clients make up ids as they like, and templates that show them want
/// their own form: nine letters and digits (Mistral's), or name and number (Kimi's).
#[derive(Debug, Default)]
struct Ids {
    /// Calls so far.
    count: usize,
    /// By the id that the client has for a call: the one here, and the tool's name.
    known: HashMap<String, (String, String)>,
    numbered: bool,
}

impl Ids {
    fn call(&mut self, call: &Call) -> String {
        let id = match self.numbered {
            true => format!("functions.{}:{}", call.name, self.count),
            false => nine(self.count),
        };
        self.count += 1;
        self.known.insert(call.id.clone(), (id.clone(), call.name.clone()));
        id
    }

    /// The tool and the id of the call that a result answers.
    fn result(&self, id: &str) -> (Option<String>, String) {
        match self.known.get(id) {
            Some((ours, name)) => (Some(name.clone()), ours.clone()),
            None => (None, nine(self.count)),
        }
    }
}

/// An id of nine letters and digits, by its place in the conversation: so the same conversation is the
/// same prompt whatever ids its client makes up.
fn nine(number: usize) -> String {
    format!("call{number:05}")
}

/// Messages in order, and what else its template hears.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    /// The messages; not empty.
    pub messages: Vec<Message>,
    /// The tools that the answer may call.
    pub tools: Tools,
    /// Extra variables of the template, such as `enable_thinking`.
    pub variables: Option<Map<String, Value>>,
    /// The answer goes on with the last message, which is the model's own.
    pub continues: bool,
}

impl Conversation {
    /// Begins with these instructions where it has none of its own.
    pub fn instructed(mut self, system: Option<&str>) -> Self {
        let own = self.messages.iter().any(|m| m.role == Role::System);
        if let (Some(system), false) = (system, own) {
            self.messages.insert(0, Message::text(Role::System, system));
        }
        self
    }

    /// Begins with these, behind its instructions.
    pub fn begun_by(mut self, begins: &[Message]) -> Self {
        let own = self.messages.iter().take_while(|m| m.role == Role::System).count();
        self.messages.splice(own..own, begins.iter().cloned());
        self
    }

    /// Tells its template how long the model may think, where that asks: by a number, or whether at all.
    pub fn thinking_for(mut self, tokens: u32, template: &ChatTemplate) -> Self {
        let mut variables = self.variables.unwrap_or_default();
        let off = ["enable_thinking", "thinking"].map(|name| (name, Value::Bool(false)));
        let off = off.into_iter().filter(|_| tokens == 0);
        for (name, value) in off.chain([("thinking_budget", tokens.into())]) {
            if template.uses(name) {
                variables.entry(name).or_insert(value);
            }
        }
        self.variables = Some(variables).filter(|variables| !variables.is_empty());
        self
    }

    /// The same for templates that want roles to take turns: instructions first and once, later ones
    /// as the user's words, messages of a role in a row as one. `None`: it is so already.
    pub fn in_turns(&self) -> Option<Self> {
        let mut messages: Vec<Message> = Vec::with_capacity(self.messages.len());
        for message in &self.messages {
            let mut message = message.clone();
            let begun = messages.iter().any(|before| before.role != Role::System);
            if message.role == Role::System && begun {
                message.role = Role::User;
            }
            match messages.last_mut() {
                Some(last) if last.may_join(&message) => last.join(message),
                _ => messages.push(message),
            }
        }
        let changed = messages.len() != self.messages.len()
            || messages.iter().zip(&self.messages).any(|(one, other)| one.role != other.role);
        changed.then(|| Self { messages, ..self.clone() })
    }

    /// Its images, in the order in which its template comes upon them.
    pub fn images(&self) -> impl Iterator<Item = &Image> {
        self.messages.iter().flat_map(|message| message.content.images())
    }

    /// The same, to be changed.
    pub fn images_mut(&mut self) -> impl Iterator<Item = &mut Image> {
        self.messages.iter_mut().flat_map(|message| message.content.images_mut())
    }

    /// The messages as templates want them; calls are `numbered` where the template's own are.
    pub fn values(&self, numbered: bool) -> Vec<Value> {
        let mut ids = Ids { numbered, ..Ids::default() };
        self.messages.iter().map(|message| message.value(&mut ids)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_get_texts_as_they_came() {
        let mut answer = Message::text(Role::Assistant, "a");
        answer.reasoning = Some("r".into());
        answer.name = Some("n".into());
        let parts = ["b", "c"].map(|text| Part::Text(text.into()));
        let parts = Content::Parts(parts.into());
        let question = Message { content: parts, ..Message::text(Role::User, "") };
        let mut found = Message::text(Role::Tool, "4");
        found.call_id = Some("x".into());
        let messages = vec![answer, question, found];
        let talk = Conversation { messages, ..Conversation::default() };
        let expect = [
            json!({"role":"assistant","content":"a","name":"n","reasoning_content":"r"}),
            json!({"role":"user","content":[
                {"type":"text","text":"b"}, {"type":"text","text":"c"},
            ]}),
            json!({"role":"tool","content":"4","tool_call_id":"call00000"}),
        ];
        assert_eq!(talk.values(false), expect);
        assert_eq!(talk.messages[1].content.texts().collect::<Vec<_>>(), ["b", "c"]);
    }

    #[test]
    fn roles_take_turns() {
        let says = |role, text: &str| Message::text(role, text);
        let messages = vec![
            says(Role::System, "a"),
            says(Role::System, "b"),
            says(Role::User, "c"),
            says(Role::System, "d"),
            says(Role::Assistant, "e"),
            says(Role::User, "f"),
        ];
        let talk = Conversation { messages, ..Conversation::default() };
        let turns = talk.in_turns().expect("it changes");
        let told: Vec<_> = turns
            .messages
            .iter()
            .map(|m| (m.role, m.content.texts().collect::<String>()))
            .collect();
        let expect = [
            (Role::System, "a\n\nb".to_owned()),
            (Role::User, "c\n\nd".to_owned()),
            (Role::Assistant, "e".to_owned()),
            (Role::User, "f".to_owned()),
        ];
        assert_eq!(told, expect);
        assert!(turns.in_turns().is_none());
    }

    #[test]
    fn own_instructions_stand_above_the_packagers() {
        let ask = |role| Conversation {
            messages: vec![Message::text(role, "a")],
            ..Conversation::default()
        };
        assert_eq!(ask(Role::User).instructed(Some("s")).messages[0].role, Role::System);
        assert_eq!(ask(Role::System).instructed(Some("s")).messages.len(), 1);
        assert_eq!(ask(Role::User).instructed(None).messages.len(), 1);
    }
}
