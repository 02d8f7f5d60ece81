//! From the nodes of a Go template to Jinja.

use std::collections::BTreeMap;

use super::GoError;
use super::parse::{Base, Expr, Node};

/// What a value is, as far as members and printing want to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Text, a number, true or false.
    Plain,
    /// Printed as JSON.
    Json,
    Messages,
    Message,
    Tools,
    Tool,
    Calls,
    Call,
    Function,
    Root,
}

/// A value in Jinja.
struct Value {
    text: String,
    kind: Kind,
}

/// Before a template that walks over messages: their instructions as one text.
const SYSTEM: &str = "{% set go = namespace(system='') %}{% for m in messages %}\
    {% if m.role == 'system' %}{% if go.system %}{% set go.system = go.system + '\n\n' + m.content %}\
    {% else %}{% set go.system = m.content %}{% endif %}{% endif %}{% endfor %}\
    {% set go_system = go.system %}";

/// Behind the macro of a turn: turns as they come, and what the last one begins with.
const TURNS: &str = "{% set go = namespace(system='', prompt='', response='') %}\
    {% for m in messages %}\
    {% if m.role == 'system' %}{% if go.prompt or go.response %}\
    {{ go_turn(go.system, go.prompt, go.response) }}\
    {% set go.prompt = '' %}{% set go.response = '' %}{% endif %}{% set go.system = m.content %}\
    {% elif m.role == 'assistant' %}{% set go.response = m.content %}\
    {% elif m.role == 'user' %}{% if go.response %}\
    {{ go_turn(go.system, go.prompt, go.response) }}\
    {% set go.system = '' %}{% set go.response = '' %}{% endif %}{% set go.prompt = m.content %}\
    {% endif %}{% endfor %}\
    {% set go_system = go.system %}{% set go_prompt = go.prompt %}{% set go_response = go.response %}";

/// Writes a template.
///
/// # Errors
/// What of it has no counterpart.
pub fn jinja(nodes: &[Node]) -> Result<String, GoError> {
    if nodes_have(nodes, "Messages") {
        let mut writer = Writer::new(false);
        writer.nodes(nodes)?;
        return Ok(format!("{SYSTEM}{}", writer.out));
    }
    let mut nodes = nodes.to_vec();
    if !nodes_have(&nodes, "Response") {
        nodes.push(Node::Print(Expr::Path(Base::Dot, vec!["Response".to_owned()])));
    }
    let (mut turn, mut last) = (Writer::new(true), Writer::new(true));
    turn.nodes(&nodes)?;
    last.nodes(&cut(&nodes, &mut false))?;
    let (turn, last) = (turn.out, last.out);
    Ok(format!(
        "{{% macro go_turn(go_system, go_prompt, go_response) %}}{turn}{{% endmacro %}}{TURNS}{last}"
    ))
}

/// The nodes up to the answer, which is not there yet.
fn cut(nodes: &[Node], seen: &mut bool) -> Vec<Node> {
    let mut kept = Vec::new();
    for node in nodes {
        if *seen {
            break;
        }
        kept.push(match node {
            Node::If(arms, rest) => {
                let arm = |(condition, body): &(Expr, Vec<Node>), seen: &mut bool| {
                    *seen |= has(condition, "Response");
                    (condition.clone(), cut(body, seen))
                };
                let arms = arms.iter().map(|one| arm(one, seen)).collect();
                let rest = if *seen { Vec::new() } else { cut(rest, seen) };
                Node::If(arms, rest)
            }
            Node::Print(value) => {
                *seen |= has(value, "Response");
                node.clone()
            }
            other => other.clone(),
        });
    }
    kept
}

fn nodes_have(nodes: &[Node], member: &str) -> bool {
    nodes.iter().any(|node| match node {
        Node::Text(_) => false,
        Node::Print(value) | Node::Set { value, .. } => has(value, member),
        Node::If(arms, rest) => {
            let arm =
                |(value, body): &(Expr, Vec<Node>)| has(value, member) || nodes_have(body, member);
            arms.iter().any(arm) || nodes_have(rest, member)
        }
        Node::Range { over, body, .. } => has(over, member) || nodes_have(body, member),
    })
}

fn has(value: &Expr, member: &str) -> bool {
    match value {
        Expr::Path(base, path) => {
            let inside = matches!(base, Base::Value(value) if has(value, member));
            inside || path.iter().any(|name| name == member)
        }
        Expr::Call(_, given) => given.iter().any(|value| has(value, member)),
        Expr::Text(_) | Expr::Number(_) | Expr::Bool(_) => false,
    }
}

struct Writer {
    out: String,
    /// It is rendered for each turn.
    by_turns: bool,
    /// What the dot is, innermost last.
    dots: Vec<(String, Kind)>,
    /// Variables: their kind, and how deep in ranges they were made.
    variables: BTreeMap<String, (Kind, usize)>,
    /// Names used so far.
    names: usize,
}

impl Writer {
    fn new(by_turns: bool) -> Self {
        let dots = vec![("".to_owned(), Kind::Root)];
        Self { out: String::new(), by_turns, dots, variables: BTreeMap::new(), names: 0 }
    }

    fn nodes(&mut self, nodes: &[Node]) -> Result<(), GoError> {
        nodes.iter().try_for_each(|node| self.node(node))
    }

    fn node(&mut self, node: &Node) -> Result<(), GoError> {
        match node {
            Node::Text(text) => self.out.push_str(&format!("{{{{ {} }}}}", literal(text))),
            Node::Print(value) => {
                let Value { text, kind } = self.value(value)?;
                let filter = match kind {
                    Kind::Plain => "",
                    Kind::Message | Kind::Messages | Kind::Root => {
                        return Err(GoError::new("a message printed as a whole"));
                    }
                    _ => " | tojson",
                };
                self.out.push_str(&format!("{{{{ ({text}){filter} }}}}"));
            }
            Node::If(arms, rest) => {
                for (at, (condition, body)) in arms.iter().enumerate() {
                    let word = if at == 0 { "if" } else { "elif" };
                    let condition = self.value(condition)?.text;
                    self.out.push_str(&format!("{{% {word} {condition} %}}"));
                    self.nodes(body)?;
                }
                if !rest.is_empty() {
                    self.out.push_str("{% else %}");
                    self.nodes(rest)?;
                }
                self.out.push_str("{% endif %}");
            }
            Node::Set { name, value, is_new } => self.set(name, value, *is_new)?,
            Node::Range { index, item, over, body } => {
                self.range((index.as_deref(), item.as_deref()), over, body)?;
            }
        }
        Ok(())
    }

    fn set(&mut self, name: &str, value: &Expr, is_new: bool) -> Result<(), GoError> {
        let depth = self.dots.len();
        let Value { text, kind } = self.value(value)?;
        let made = match self.variables.get(name) {
            Some((_, made)) if !is_new => *made,
            _ => depth,
        };
        if made < depth {
            // (Jinja's loops keep what is set in them.)
            return Err(GoError::new(format!("${name} changed inside a range")));
        }
        self.variables.insert(name.to_owned(), (kind, depth));
        self.out.push_str(&format!("{{% set {} = {text} %}}", variable(name)));
        Ok(())
    }

    fn range(
        &mut self,
        (index, item): (Option<&str>, Option<&str>),
        over: &Expr,
        body: &[Node],
    ) -> Result<(), GoError> {
        let Value { text, kind } = self.value(over)?;
        let kind = match kind {
            Kind::Messages => Kind::Message,
            Kind::Tools => Kind::Tool,
            Kind::Calls => Kind::Call,
            _ => return Err(GoError::new("a range over what is no list")),
        };
        self.names += 1;
        let name = format!("go_{}", self.names);
        self.out.push_str(&format!("{{% for {name} in {text} %}}"));
        let before = self.variables.clone();
        self.dots.push((name.clone(), kind));
        let depth = self.dots.len();
        for (variable_name, value, kind) in
            [(index, "loop.index0", Kind::Plain), (item, &*name, kind)]
        {
            if let Some(variable_name) = variable_name {
                self.out.push_str(&format!("{{% set {} = {value} %}}", variable(variable_name)));
                self.variables.insert(variable_name.to_owned(), (kind, depth));
            }
        }
        self.nodes(body)?;
        self.dots.pop();
        self.variables = before;
        self.out.push_str("{% endfor %}");
        Ok(())
    }

    fn value(&self, value: &Expr) -> Result<Value, GoError> {
        let plain = |text: String| Ok(Value { text, kind: Kind::Plain });
        match value {
            Expr::Text(text) => plain(literal(text)),
            Expr::Number(number) => plain(number.to_string()),
            Expr::Bool(is) => plain(is.to_string()),
            Expr::Call(name, given) => self.call(name, given),
            Expr::Path(base, path) => {
                let base = match base {
                    Base::Dot => {
                        let (text, kind) =
                            self.dots.last().cloned().unwrap_or(("".into(), Kind::Root));
                        Value { text, kind }
                    }
                    Base::Root => Value { text: String::new(), kind: Kind::Root },
                    Base::Variable(name) => {
                        let found = self.variables.get(name);
                        let (kind, _) = found
                            .ok_or_else(|| GoError::new(format!("${name}, which is not set")))?;
                        Value { text: variable(name), kind: *kind }
                    }
                    Base::Value(value) => self.value(value)?,
                };
                path.iter().try_fold(base, |value, name| self.member(value, name))
            }
        }
    }

    fn member(&self, of: Value, name: &str) -> Result<Value, GoError> {
        let Value { text, kind } = of;
        let or = |member: &str, other: &str| format!("({text}.{member} or {other})");
        let (text, kind) = match (kind, name) {
            (Kind::Root, "Messages") => ("messages".to_owned(), Kind::Messages),
            (Kind::Root, "System") => ("go_system".to_owned(), Kind::Plain),
            (Kind::Root, "Prompt" | "Response") if self.by_turns => {
                (format!("go_{}", name.to_lowercase()), Kind::Plain)
            }
            (Kind::Root, "Prompt" | "Response" | "Suffix") => ("''".to_owned(), Kind::Plain),
            (Kind::Root, "Tools") => ("(tools or [])".to_owned(), Kind::Tools),
            (Kind::Root, "Think") => ("(enable_thinking or false)".to_owned(), Kind::Plain),
            (Kind::Root, "IsThinkSet") => ("(enable_thinking is defined)".to_owned(), Kind::Plain),
            (Kind::Root, "ThinkLevel") => ("(reasoning_effort or '')".to_owned(), Kind::Plain),
            (Kind::Message, "Role") => (format!("{text}.role"), Kind::Plain),
            (Kind::Message, "Content") => (or("content", "''"), Kind::Plain),
            (Kind::Message, "Thinking") => (or("reasoning_content", "''"), Kind::Plain),
            (Kind::Message, "ToolName") => (or("name", "''"), Kind::Plain),
            (Kind::Message, "ToolCalls") => (or("tool_calls", "[]"), Kind::Calls),
            (Kind::Tool | Kind::Call, "Function") => (format!("{text}.function"), Kind::Function),
            (Kind::Function, "Name") => (format!("{text}.name"), Kind::Plain),
            (Kind::Function, "Description") => (or("description", "''"), Kind::Plain),
            (Kind::Function, "Arguments") => (format!("{text}.arguments"), Kind::Json),
            (Kind::Function, "Parameters") => (format!("{text}.parameters"), Kind::Json),
            _ => return Err(GoError::new(format!(".{name}"))),
        };
        Ok(Value { text, kind })
    }

    fn call(&self, name: &str, given: &[Expr]) -> Result<Value, GoError> {
        let values = given.iter().map(|value| self.value(value)).collect::<Result<Vec<_>, _>>()?;
        let kind = values.first().map_or(Kind::Plain, |value| value.kind);
        let texts: Vec<&str> = values.iter().map(|value| value.text.as_str()).collect();
        let compared = |sign: &str| match texts.as_slice() {
            [first, others @ ..] if !others.is_empty() => {
                let pairs: Vec<String> =
                    others.iter().map(|other| format!("{first} {sign} {other}")).collect();
                Ok(format!("({})", pairs.join(" or ")))
            }
            _ => Err(GoError::new(format!("{name} of too little"))),
        };
        let (text, kind) = match (name, texts.as_slice()) {
            ("eq", _) => (compared("==")?, Kind::Plain),
            ("ne", [_, _]) => (compared("!=")?, Kind::Plain),
            ("lt", [_, _]) => (compared("<")?, Kind::Plain),
            ("le", [_, _]) => (compared("<=")?, Kind::Plain),
            ("gt", [_, _]) => (compared(">")?, Kind::Plain),
            ("ge", [_, _]) => (compared(">=")?, Kind::Plain),
            ("and", [_, ..]) => (format!("({})", texts.join(" and ")), kind),
            ("or", [_, ..]) => (format!("({})", texts.join(" or ")), kind),
            ("not", [one]) => (format!("(not {one})"), Kind::Plain),
            ("len", [one]) => (format!("({one} | length)"), Kind::Plain),
            ("slice", [list, from]) => (format!("{list}[{from}:]"), kind),
            ("slice", [list, from, to]) => (format!("{list}[{from}:{to}]"), kind),
            ("index", [list, at]) => {
                let kind = match kind {
                    Kind::Messages => Kind::Message,
                    Kind::Tools => Kind::Tool,
                    Kind::Calls => Kind::Call,
                    _ => return Err(GoError::new("index of what is no list")),
                };
                (format!("{list}[{at}]"), kind)
            }
            ("json", [one]) => (format!("({one} | tojson)"), Kind::Plain),
            ("currentDate", []) => ("strftime_now('%Y-%m-%d')".to_owned(), Kind::Plain),
            _ => return Err(GoError::new(format!("the function {name}"))),
        };
        Ok(Value { text, kind })
    }
}

fn variable(name: &str) -> String {
    format!("go_v_{name}")
}

/// A text as Jinja writes it.
fn literal(text: &str) -> String {
    let mut out = String::from("'");
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\'' | '\\' => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out.push('\'');
    out
}
