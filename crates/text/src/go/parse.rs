//! From the text of a template to its nodes.

use super::GoError;

/// Deepest nesting.
const DEPTH: usize = 32;

/// A part of a template.
#[derive(Debug, Clone, PartialEq)]
pub enum Node {
    /// Text as it is.
    Text(String),
    /// A value.
    Print(Expr),
    /// Conditions with what they guard, and what is left.
    If(Vec<(Expr, Vec<Node>)>, Vec<Node>),
    /// Over a list: names of the index and the element.
    Range { index: Option<String>, item: Option<String>, over: Expr, body: Vec<Node> },
    /// A variable, new or not.
    Set { name: String, value: Expr, is_new: bool },
}

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub enum Expr {
    Text(String),
    Number(i64),
    Bool(bool),
    /// Members of what stands before: the dot, the root (`$`) or a variable.
    Path(Base, Vec<String>),
    Call(String, Vec<Expr>),
}

/// Where a path begins.
#[derive(Debug, Clone, PartialEq)]
pub enum Base {
    Dot,
    Root,
    Variable(String),
    Value(Box<Expr>),
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Word(String),
    Text(String),
    Number(i64),
    Sign(&'static str),
}

/// The nodes of a template.
///
/// # Errors
/// What of it is not Go's, or not read here.
pub fn parse(source: &str) -> Result<Vec<Node>, GoError> {
    let mut parts = parts(source)?.into_iter();
    let (nodes, end) = block(&mut parts, 0)?;
    match end {
        None => Ok(nodes),
        Some(word) => Err(GoError::new(format!("{{{{ {} }}}} without its beginning", word.word))),
    }
}

enum Part {
    Text(String),
    Action(Vec<Token>),
}

/// Texts and actions; blanks that actions trim are gone, and so are comments.
fn parts(source: &str) -> Result<Vec<Part>, GoError> {
    let (mut parts, mut rest, mut trims) = (Vec::new(), source, false);
    while let Some(at) = rest.find("{{") {
        let (text, after) = rest.split_at(at);
        let mut after = &after[2..];
        let mut text = if trims { text.trim_start() } else { text };
        if let Some(trimmed) =
            after.strip_prefix('-').filter(|a| a.starts_with(char::is_whitespace))
        {
            (text, after) = (text.trim_end(), trimmed);
        }
        if !text.is_empty() {
            parts.push(Part::Text(text.to_owned()));
        }
        let end = end_of(after).ok_or_else(|| GoError::new("an action without its end"))?;
        let (action, next) = (&after[..end], &after[end + 2..]);
        trims =
            action.ends_with('-') && action.trim_end_matches('-').ends_with(char::is_whitespace);
        let action = if trims { &action[..action.len() - 1] } else { action };
        let action = action.trim();
        if !(action.starts_with("/*") && action.ends_with("*/")) {
            parts.push(Part::Action(tokens(action)?));
        }
        rest = next;
    }
    let text = if trims { rest.trim_start() } else { rest };
    if !text.is_empty() {
        parts.push(Part::Text(text.to_owned()));
    }
    Ok(parts)
}

/// Where an action ends, texts in it passed over.
fn end_of(action: &str) -> Option<usize> {
    let (mut quote, mut escaped) = (None, false);
    for (at, c) in action.char_indices() {
        match (quote, c) {
            (Some('"'), '\\') if !escaped => {
                escaped = true;
                continue;
            }
            (Some(open), c) if c == open && !escaped => quote = None,
            (None, '"' | '`') => quote = Some(c),
            (None, '}') if action[at..].starts_with("}}") => return Some(at),
            _ => {}
        }
        escaped = false;
    }
    None
}

fn tokens(action: &str) -> Result<Vec<Token>, GoError> {
    let (mut tokens, mut rest) = (Vec::new(), action);
    while let Some(c) = rest.chars().next() {
        if c.is_whitespace() {
            rest = rest.trim_start();
            continue;
        }
        let sign = [":=", "=", "(", ")", ",", "|"].into_iter().find(|sign| rest.starts_with(sign));
        if let Some(sign) = sign {
            tokens.push(Token::Sign(sign));
            rest = &rest[sign.len()..];
            continue;
        }
        if c == '"' || c == '`' {
            let (text, after) = quoted(rest, c)?;
            tokens.push(Token::Text(text));
            rest = after;
            continue;
        }
        let end = rest.find(|c: char| c.is_whitespace() || "()|,:=\"`".contains(c));
        let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
        if word.is_empty() {
            return Err(GoError::new(format!("the sign {c:?}")));
        }
        tokens.push(word.parse().map_or_else(|_| Token::Word(word.to_owned()), Token::Number));
        rest = after;
    }
    Ok(tokens)
}

/// A text in quotes, and what is behind it.
fn quoted(text: &str, quote: char) -> Result<(String, &str), GoError> {
    let (mut found, mut chars) = (String::new(), text.char_indices().skip(1));
    while let Some((at, c)) = chars.next() {
        match c {
            c if c == quote => return Ok((found, &text[at + 1..])),
            '\\' if quote == '"' => match chars.next().map(|(_, c)| c) {
                Some('n') => found.push('\n'),
                Some('t') => found.push('\t'),
                Some('r') => found.push('\r'),
                Some(c @ ('"' | '\\' | '\'')) => found.push(c),
                other => return Err(GoError::new(format!("the escape {other:?} in a text"))),
            },
            c => found.push(c),
        }
    }
    Err(GoError::new("a text without its end"))
}

/// What ended a block, and its own words behind that.
struct End {
    word: &'static str,
    rest: Vec<Token>,
}

/// Nodes up to an `end` or `else`.
fn block(
    parts: &mut std::vec::IntoIter<Part>,
    depth: usize,
) -> Result<(Vec<Node>, Option<End>), GoError> {
    if depth > DEPTH {
        return Err(GoError::new(format!("more than {DEPTH} blocks in each other")));
    }
    let mut nodes = Vec::new();
    while let Some(part) = parts.next() {
        let tokens = match part {
            Part::Text(text) => {
                nodes.push(Node::Text(text));
                continue;
            }
            Part::Action(tokens) => tokens,
        };
        let word = match tokens.first() {
            Some(Token::Word(word)) => word.as_str(),
            _ => "",
        };
        match word {
            "end" => return Ok((nodes, Some(End { word: "end", rest: Vec::new() }))),
            "else" => {
                return Ok((nodes, Some(End { word: "else", rest: tokens[1..].to_vec() })));
            }
            "if" => nodes.push(conditions(&tokens[1..], parts, depth)?),
            "range" => nodes.push(range(&tokens[1..], parts, depth)?),
            "block" | "break" | "continue" | "define" | "template" | "with" => {
                return Err(GoError::new(format!("{{{{ {word} }}}}")));
            }
            _ => nodes.push(statement(&tokens)?),
        }
    }
    Ok((nodes, None))
}

fn conditions(
    condition: &[Token],
    parts: &mut std::vec::IntoIter<Part>,
    depth: usize,
) -> Result<Node, GoError> {
    let mut arms = Vec::new();
    let mut condition = whole(condition)?;
    loop {
        let (body, end) = block(parts, depth + 1)?;
        arms.push((condition, body));
        match end {
            Some(End { word: "end", .. }) => return Ok(Node::If(arms, Vec::new())),
            Some(End { rest, .. }) if rest.is_empty() => {
                let (body, end) = block(parts, depth + 1)?;
                return match end {
                    Some(End { word: "end", .. }) => Ok(Node::If(arms, body)),
                    _ => Err(GoError::new("{{ else }} without its {{ end }}")),
                };
            }
            Some(End { rest, .. }) => match rest.split_first() {
                Some((Token::Word(word), rest)) if word == "if" => condition = whole(rest)?,
                _ => return Err(GoError::new("an {{ else }} with something behind it")),
            },
            None => return Err(GoError::new("{{ if }} without its {{ end }}")),
        }
    }
}

fn range(
    tokens: &[Token],
    parts: &mut std::vec::IntoIter<Part>,
    depth: usize,
) -> Result<Node, GoError> {
    let variable = |token: &Token| match token {
        Token::Word(word) => word.strip_prefix('$').filter(|name| is_name(name)).map(str::to_owned),
        _ => None,
    };
    let (index, item, over) = match tokens {
        [one, Token::Sign(","), other, Token::Sign(":="), over @ ..] => {
            (variable(one), variable(other), over)
        }
        [one, Token::Sign(":="), over @ ..] => (None, variable(one), over),
        over => (None, None, over),
    };
    let over = whole(over)?;
    match block(parts, depth + 1)? {
        (body, Some(End { word: "end", .. })) => Ok(Node::Range { index, item, over, body }),
        _ => Err(GoError::new("{{ range }} without its {{ end }}, or with an {{ else }}")),
    }
}

fn statement(tokens: &[Token]) -> Result<Node, GoError> {
    if let [Token::Word(name), Token::Sign(sign @ (":=" | "=")), value @ ..] = tokens
        && let Some(name) = name.strip_prefix('$').filter(|name| is_name(name))
    {
        let (name, value) = (name.to_owned(), whole(value)?);
        return Ok(Node::Set { name, value, is_new: *sign == ":=" });
    }
    whole(tokens).map(Node::Print)
}

/// A value that is all there is.
fn whole(tokens: &[Token]) -> Result<Expr, GoError> {
    let mut rest = tokens;
    let value = pipeline(&mut rest, 0)?;
    match rest {
        [] => Ok(value),
        _ => Err(GoError::new("a value with something behind it")),
    }
}

/// Values handed on from left to right.
fn pipeline(rest: &mut &[Token], depth: usize) -> Result<Expr, GoError> {
    if depth > DEPTH {
        return Err(GoError::new(format!("more than {DEPTH} values in each other")));
    }
    let mut value = command(rest, depth)?;
    while let [Token::Sign("|"), after @ ..] = *rest {
        *rest = after;
        value = match command(rest, depth)? {
            Expr::Call(name, mut given) => {
                given.push(value);
                Expr::Call(name, given)
            }
            _ => return Err(GoError::new("a value handed on to what is no function")),
        };
    }
    Ok(value)
}

fn command(rest: &mut &[Token], depth: usize) -> Result<Expr, GoError> {
    let first = operand(rest, depth)?;
    let Expr::Call(name, mut given) = first else { return Ok(first) };
    while !matches!(*rest, [] | [Token::Sign(")" | "|"), ..]) {
        given.push(operand(rest, depth)?);
    }
    Ok(Expr::Call(name, given))
}

fn operand(rest: &mut &[Token], depth: usize) -> Result<Expr, GoError> {
    let Some((first, after)) = rest.split_first() else {
        return Err(GoError::new("a value that is missing"));
    };
    *rest = after;
    match first {
        Token::Text(text) => Ok(Expr::Text(text.clone())),
        Token::Number(number) => Ok(Expr::Number(*number)),
        Token::Word(word) => Ok(named(word)),
        Token::Sign("(") => {
            let value = pipeline(rest, depth + 1)?;
            let [Token::Sign(")"), after @ ..] = *rest else {
                return Err(GoError::new("a bracket without its end"));
            };
            *rest = after;
            // Members may follow at once: (index .Messages 0).Role
            match *rest {
                [Token::Word(word), after @ ..] if word.len() > 1 && word.starts_with('.') => {
                    *rest = after;
                    Ok(Expr::Path(Base::Value(Box::new(value)), members(&word[1..])))
                }
                _ => Ok(value),
            }
        }
        Token::Sign(sign) => {
            Err(GoError::new(format!("the sign {sign:?} in the place of a value")))
        }
    }
}

fn members(path: &str) -> Vec<String> {
    path.split('.').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn named(word: &str) -> Expr {
    let variable = word.strip_prefix('$').map(|rest| rest.split_once('.').unwrap_or((rest, "")));
    if let Some((name, path)) = variable.filter(|(name, _)| name.is_empty() || is_name(name)) {
        let base = if name.is_empty() { Base::Root } else { Base::Variable(name.to_owned()) };
        return Expr::Path(base, members(path));
    }
    match word.strip_prefix('.') {
        Some(path) => Expr::Path(Base::Dot, members(path)),
        None if word == "true" || word == "false" => Expr::Bool(word == "true"),
        None => Expr::Call(word.to_owned(), Vec::new()),
    }
}
