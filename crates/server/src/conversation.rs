//! A conversation as every dialect's messages are read into it, and as templates get it.

use serde_json::{Map, Value, json};

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

/// What is said: as one text or in parts, for templates tell them apart.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// One text.
    Text(String),
    /// Texts one after another.
    Parts(Vec<String>),
}

impl Content {
    /// Its texts, in order.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        let (one, parts) = match self {
            Self::Text(text) => (Some(text.as_str()), &[][..]),
            Self::Parts(parts) => (None, &parts[..]),
        };
        one.into_iter().chain(parts.iter().map(String::as_str))
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
}

impl Message {
    /// A message of one text.
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        let (name, call_id, reasoning) = (None, None, None);
        Self { role, content: Content::Text(text.into()), name, call_id, reasoning }
    }

    /// As templates want it.
    fn value(&self) -> Value {
        let content = match &self.content {
            Content::Text(text) => Value::from(text.as_str()),
            Content::Parts(parts) => {
                parts.iter().map(|text| json!({ "type": "text", "text": text })).collect()
            }
        };
        let mut members = Map::new();
        members.insert("role".into(), self.role.name().into());
        members.insert("content".into(), content);
        for (name, text) in [
            ("name", &self.name),
            ("tool_call_id", &self.call_id),
            ("reasoning_content", &self.reasoning),
        ] {
            if let Some(text) = text {
                members.insert(name.into(), text.as_str().into());
            }
        }
        Value::Object(members)
    }
}

/// Messages in order, and what else its template hears.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    /// The messages; not empty.
    pub messages: Vec<Message>,
    /// Extra variables of the template, such as `enable_thinking`.
    pub variables: Option<Map<String, Value>>,
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

    /// The messages as templates want them.
    pub fn values(&self) -> Vec<Value> {
        self.messages.iter().map(Message::value).collect()
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
        let parts = Content::Parts(vec!["b".into(), "c".into()]);
        let question = Message { content: parts, ..Message::text(Role::User, "") };
        let mut found = Message::text(Role::Tool, "4");
        found.call_id = Some("x".into());
        let talk = Conversation { messages: vec![answer, question, found], variables: None };
        let expect = [
            json!({"role":"assistant","content":"a","name":"n","reasoning_content":"r"}),
            json!({"role":"user","content":[
                {"type":"text","text":"b"}, {"type":"text","text":"c"},
            ]}),
            json!({"role":"tool","content":"4","tool_call_id":"x"}),
        ];
        assert_eq!(talk.values(), expect);
        assert_eq!(talk.messages[1].content.texts().collect::<Vec<_>>(), ["b", "c"]);
    }

    #[test]
    fn own_instructions_stand_above_the_packagers() {
        let ask = |role| Conversation { messages: vec![Message::text(role, "a")], variables: None };
        assert_eq!(ask(Role::User).instructed(Some("s")).messages[0].role, Role::System);
        assert_eq!(ask(Role::System).instructed(Some("s")).messages.len(), 1);
        assert_eq!(ask(Role::User).instructed(None).messages.len(), 1);
    }
}
