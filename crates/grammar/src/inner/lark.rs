//! A client's Lark, read to rules of texts, expressions, names and signs; what else Lark or
//! llguidance's dialect of it has is refused by name.

use std::collections::BTreeSet;

use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir};
use regex_syntax::{Parser, ParserBuilder};

use crate::bounds::Bounds;
use crate::refused::{Refused, cut, within};

/// Terminals that `%import common.NAME` brings, as Lark's own library and llguidance have them.
const COMMON: &[(&str, &str)] = &[
    ("DIGIT", r"[0-9]"),
    ("HEXDIGIT", r"[a-fA-F0-9]"),
    ("INT", r"[0-9]+"),
    ("SIGNED_INT", r"(\+|-)?[0-9]+"),
    ("DECIMAL", r"([0-9]+\.[0-9]*)|(\.[0-9]+)"),
    ("_EXP", r"[eE](\+|-)?[0-9]+"),
    ("FLOAT", r"([0-9]+\.[0-9]*|\.[0-9]+)([eE](\+|-)?[0-9]+)?|[0-9]+[eE](\+|-)?[0-9]+"),
    (
        "SIGNED_FLOAT",
        r"(\+|-)?(([0-9]+\.[0-9]*|\.[0-9]+)([eE](\+|-)?[0-9]+)?|[0-9]+[eE](\+|-)?[0-9]+)",
    ),
    ("NUMBER", r"([0-9]+)|([0-9]+\.[0-9]*|\.[0-9]+)([eE](\+|-)?[0-9]+)?|[0-9]+[eE](\+|-)?[0-9]+"),
    (
        "SIGNED_NUMBER",
        r"(\+|-)?(([0-9]+)|([0-9]+\.[0-9]*|\.[0-9]+)([eE](\+|-)?[0-9]+)?|[0-9]+[eE](\+|-)?[0-9]+)",
    ),
    (ESCAPED_STRING, r#""([^"\\\n]|\\.)*""#),
    ("LCASE_LETTER", r"[a-z]"),
    ("UCASE_LETTER", r"[A-Z]"),
    ("LETTER", r"[A-Za-z]"),
    ("WORD", r"[A-Za-z]+"),
    ("CNAME", r"[_A-Za-z][_A-Za-z0-9]*"),
    ("WS_INLINE", r"[ \t]+"),
    ("WS", r"[ \t\f\r\n]+"),
    ("CR", r"\r"),
    ("LF", r"\n"),
    ("NEWLINE", r"(\r?\n)+"),
    ("SH_COMMENT", r"#[^\n]*"),
    ("CPP_COMMENT", r"//[^\n]*"),
    ("C_COMMENT", r"/\*[^*]*\*+(?:[^/*][^*]*\*+)*/"),
    ("SQL_COMMENT", r"--[^\n]*"),
];
/// The one of them that ends where its own last character says.
const ESCAPED_STRING: &str = "ESCAPED_STRING";

/// Whether a name is that of a terminal.
pub fn is_terminal(name: &str) -> bool {
    name.chars().find(char::is_ascii_alphabetic).is_some_and(|c| c.is_ascii_uppercase())
}

/// What a name is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Rule,
    Terminal,
}

/// A part of a rule's body.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    Name(String, Kind),
    Text(String),
    Regex(Hir),
    /// Brackets, operators and counts, which stand outside as they are.
    Sign(String),
}

/// A grammar, read.
#[derive(Debug, Default)]
pub struct Read {
    /// Rules and terminals, in order.
    pub rules: Vec<(String, Vec<Item>)>,
    /// What may stand between lexemes.
    pub ignored: Option<Vec<Item>>,
    /// Terminals that are quoted strings.
    quoted: BTreeSet<String>,
}

impl Read {
    /// Whether a terminal ends by its own last character, wherever it could go on.
    pub fn is_quoted(&self, name: &str) -> bool {
        self.quoted.contains(name)
    }
}

pub fn bad(why: &str) -> Refused {
    Refused::syntax("lark", why)
}

/// One expression as a grammar.
pub fn of_regex(regex: &str) -> Result<Read, Refused> {
    let body = vec![Item::Regex(parsed(regex, "")?)];
    Ok(Read { rules: vec![("start".to_owned(), body)], ..Read::default() })
}

fn parsed(regex: &str, flags: &str) -> Result<Hir, Refused> {
    within("bytes of a regex", regex.len(), Bounds::default().pattern_bytes)?;
    if flags.contains('l') {
        return Err(bad("the flag `l` of an expression is not supported"));
    }
    let mut parser: Parser = ParserBuilder::new().nest_limit(50).build();
    let whole = match flags {
        "" => regex.to_owned(),
        flags => format!("(?{flags}){regex}"),
    };
    parser.parse(&whole).map_err(|error| bad(&format!("`{}`: {}", cut(regex), first(&error))))
}

/// What is wrong with an expression, without its picture.
fn first(error: &regex_syntax::Error) -> String {
    let told = error.to_string();
    let last = told.lines().rfind(|line| line.starts_with("error: "));
    last.map_or(told.clone(), |line| line.trim_start_matches("error: ").to_owned())
}

/// Reads a grammar.
pub fn read(text: &str) -> Result<Read, Refused> {
    let mut reader = Reader { rest: text, depth: 0 };
    let mut read = Read::default();
    loop {
        reader.lines();
        let Some(c) = reader.peek() else { return Ok(read) };
        match c {
            '%' => reader.directive(&mut read)?,
            _ => {
                let rule = reader.rule()?;
                if read.rules.iter().any(|(name, _)| *name == rule.0) {
                    return Err(bad(&format!("there are two rules {}", cut(&rule.0))));
                }
                read.rules.push(rule);
            }
        }
        within("rules of the grammar", read.rules.len(), Bounds::default().properties)?;
    }
}

struct Reader<'a> {
    rest: &'a str,
    depth: usize,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn pass(&mut self, bytes: usize) -> &'a str {
        let (now, rest) = self.rest.split_at_checked(bytes).unwrap_or((self.rest, ""));
        self.rest = rest;
        now
    }

    fn take(&mut self, sign: &str) -> bool {
        match self.rest.strip_prefix(sign) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// Passes blanks, and comments to the end of their line.
    fn blanks(&mut self) {
        loop {
            self.rest = self.rest.trim_start_matches([' ', '\t', '\r']);
            let is_comment = self.rest.starts_with('#') || self.rest.starts_with("//");
            if !is_comment {
                return;
            }
            self.pass(self.rest.find('\n').unwrap_or(self.rest.len()));
        }
    }

    /// Passes ends of lines too.
    fn lines(&mut self) {
        self.blanks();
        while self.take("\n") {
            self.blanks();
        }
    }

    fn name(&mut self) -> Option<&'a str> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let begins = |c: char| c.is_ascii_alphabetic() || c == '_';
        self.peek().filter(|c| begins(*c))?;
        // (`->` follows a name without a blank.)
        let length = self.rest.find(|c| !is_name(c)).unwrap_or(self.rest.len());
        let name = self.rest.get(..length).unwrap_or_default();
        let length = if name.ends_with('-') { name.trim_end_matches('-').len() } else { length };
        let name = self.pass(length);
        let bare = name.trim_start_matches('_');
        let is_one = bare.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.len() - bare.len() < 2
            && (!bare.contains(|c: char| c.is_ascii_lowercase())
                || !bare.contains(|c: char| c.is_ascii_uppercase()));
        is_one.then_some(name)
    }

    fn named(&mut self) -> Result<&'a str, Refused> {
        let shown = cut(self.rest.lines().next().unwrap_or_default());
        self.name().ok_or_else(|| bad(&format!("no name of a rule or a terminal: {shown}")))
    }

    fn rule(&mut self) -> Result<(String, Vec<Item>), Refused> {
        // How a tree is made of it changes no text.
        while self.take("!") || self.take("?") {}
        let name = self.named()?;
        self.blanks();
        match self.peek() {
            Some(':') => drop(self.pass(1)),
            Some('.') => return Err(bad(&format!("{name}: priorities are not supported"))),
            Some('{') => return Err(bad(&format!("{name}: templates are not supported"))),
            Some('[') => return Err(bad(&format!("{name}: attributes cannot stand inside"))),
            _ => return Err(bad(&format!("no `:` behind {name}"))),
        }
        let body = self.body()?;
        if self.depth > 0 {
            return Err(bad(&format!("{name}: a bracket that is not closed")));
        }
        Ok((name.to_owned(), body))
    }

    /// All up to the end of the line, and lines that go on with `|`.
    fn body(&mut self) -> Result<Vec<Item>, Refused> {
        let mut items = Vec::new();
        loop {
            self.blanks();
            let Some(c) = self.peek() else { return Ok(items) };
            if c == '\n' {
                let before = self.rest;
                self.lines();
                if self.depth == 0 && self.peek() != Some('|') {
                    self.rest = before;
                    return Ok(items);
                }
                continue;
            }
            self.item(c, &mut items)?;
            within("parts of a rule", items.len(), Bounds::default().values)?;
        }
    }

    fn item(&mut self, c: char, items: &mut Vec<Item>) -> Result<(), Refused> {
        match c {
            '"' => items.push(self.text()?),
            '/' => items.push(self.regex()?),
            '-' if self.take("->") => {
                self.blanks();
                self.named()?;
            }
            '~' => {
                self.pass(1);
                self.blanks();
                self.counts(items)?;
            }
            '{' => {
                self.pass(1);
                self.counts(items)?;
                self.blanks();
                if !self.take("}") {
                    return Err(bad("templates are not supported"));
                }
            }
            '(' | '[' => {
                self.depth += 1;
                let most = Bounds::default().depth;
                within("brackets within brackets of the grammar", self.depth, most)?;
                items.push(Item::Sign(c.into()));
                self.pass(1);
            }
            ')' | ']' => {
                let why = || bad("a bracket that closes nothing");
                self.depth = self.depth.checked_sub(1).ok_or_else(why)?;
                items.push(Item::Sign(c.into()));
                self.pass(1);
            }
            '|' | '&' | '*' | '+' | '?' => {
                items.push(Item::Sign(c.into()));
                self.pass(1);
            }
            '%' | '<' | '@' => {
                let word: String = self.rest.chars().take_while(|c| !c.is_whitespace()).collect();
                return Err(bad(&format!("{} cannot stand inside another grammar", cut(&word))));
            }
            _ => {
                let name = self.named()?;
                if self.rest.starts_with("::") {
                    return Err(bad(&format!("{name}: parameters cannot stand inside")));
                }
                let kind = if is_terminal(name) { Kind::Terminal } else { Kind::Rule };
                items.push(Item::Name(name.to_owned(), kind));
            }
        }
        Ok(())
    }

    /// `2`, `2..4` or `2,4` as repetitions of the part before.
    fn counts(&mut self, items: &mut Vec<Item>) -> Result<(), Refused> {
        let most = Bounds::default().repeat;
        let number = |reader: &mut Self| -> Result<Option<usize>, Refused> {
            reader.blanks();
            let end = |c: char| !c.is_ascii_digit();
            let digits = reader.pass(reader.rest.find(end).unwrap_or(reader.rest.len()));
            if digits.is_empty() {
                return Ok(None);
            }
            let count = digits.parse().unwrap_or(usize::MAX);
            within("repetitions", count, most)?;
            Ok(Some(count))
        };
        let least = number(self)?;
        let (mut upper, mut is_open) = (least, false);
        self.blanks();
        if self.take("..") || self.take(",") {
            upper = number(self)?;
            is_open = upper.is_none();
        }
        if least.is_none() && (is_open || upper.is_none()) {
            return Err(bad("`~` and `{…}` stand with numbers: there is no complement inside"));
        }
        let (least, upper) = (least.unwrap_or(0), upper);
        if upper.is_some_and(|upper| upper < least || upper == 0) {
            return Err(bad("counts that nothing fits"));
        }
        let upper = upper.map_or_else(String::new, |upper| upper.to_string());
        items.push(Item::Sign(format!("{{{least},{upper}}}")));
        Ok(())
    }

    fn text(&mut self) -> Result<Item, Refused> {
        let (text, flag) = self.string()?;
        if !self.rest.starts_with("..") {
            return match flag {
                true => parsed(&regex_syntax::escape(&text), "i").map(Item::Regex),
                false => Ok(Item::Text(text)),
            };
        }
        self.pass(2);
        let (other, _) = self.string()?;
        let one = |text: &str| {
            let mut chars = text.chars();
            chars.next().filter(|_| chars.next().is_none())
        };
        match (one(&text), one(&other)) {
            (Some(from), Some(to)) if from <= to => {
                let range = ClassUnicodeRange::new(from, to);
                Ok(Item::Regex(Hir::class(Class::Unicode(ClassUnicode::new([range])))))
            }
            _ => Err(bad("a range `..` that is not from one character to a later one")),
        }
    }

    /// A string, and whether case is nothing to it.
    fn string(&mut self) -> Result<(String, bool), Refused> {
        let mut is_escaped = false;
        let close = self.rest.char_indices().skip(1).find(|(_, c)| {
            let is_end = !is_escaped && *c == '"';
            is_escaped = *c == '\\' && !is_escaped;
            is_end
        });
        let Some((at, _)) = close.filter(|_| self.rest.starts_with('"')) else {
            return Err(bad("a text that is not closed"));
        };
        let spelled = self.pass(at + 1);
        // JSON's escapes, and Python's of two digits.
        let mut json = String::with_capacity(spelled.len());
        let mut chars = spelled.chars();
        while let Some(c) = chars.next() {
            json.push(c);
            if c == '\\' {
                match chars.next() {
                    Some('x') => json.push_str("u00"),
                    other => json.extend(other),
                }
            }
        }
        let text = serde_json::from_str(&json);
        let text = text.map_err(|e| bad(&format!("{}: {e}", cut(spelled))))?;
        let flag = self.rest.starts_with('i')
            && !self.rest.get(1..).unwrap_or_default().starts_with(|c: char| c.is_alphanumeric());
        if flag {
            self.pass(1);
        }
        Ok((text, flag))
    }

    fn regex(&mut self) -> Result<Item, Refused> {
        let mut is_escaped = false;
        let close = self.rest.char_indices().skip(1).find(|(_, c)| {
            let is_end = !is_escaped && *c == '/';
            is_escaped = *c == '\\' && !is_escaped;
            is_end
        });
        let Some((at, _)) = close else { return Err(bad("an expression that is not closed")) };
        let whole = self.pass(at + 1);
        let regex = whole.get(1..at).unwrap_or_default();
        let is_flag = |c: char| "imslux".contains(c);
        let flags = self.pass(self.rest.find(|c| !is_flag(c)).unwrap_or(self.rest.len()));
        parsed(regex, flags).map(Item::Regex)
    }

    fn directive(&mut self, read: &mut Read) -> Result<(), Refused> {
        if self.take("%ignore") {
            let body = self.body()?;
            let ignored = read.ignored.get_or_insert_default();
            ignored.extend((!ignored.is_empty()).then(|| Item::Sign("|".to_owned())));
            ignored.extend(body);
            return Ok(());
        }
        if !self.take("%import") {
            let word: String = self.rest.chars().take_while(|c| !c.is_whitespace()).collect();
            return Err(bad(&format!("{} cannot stand inside another grammar", cut(&word))));
        }
        self.blanks();
        if !self.take("common") {
            return Err(bad("only terminals of `common` can be imported"));
        }
        let mut names = Vec::new();
        self.blanks();
        if self.take(".") {
            let name = self.named()?;
            self.blanks();
            let called = if self.take("->") {
                self.blanks();
                self.named()?
            } else {
                name
            };
            names.push((name, called));
        } else if self.take("(") {
            while !self.take(")") {
                self.blanks();
                let name = self.named()?;
                names.push((name, name));
                self.blanks();
                self.take(",");
                self.blanks();
            }
        }
        for (name, called) in names {
            let found = COMMON.iter().find(|(common, _)| *common == name);
            let (_, regex) = found.ok_or_else(|| bad(&format!("common.{name} is not known")))?;
            if !is_terminal(called) {
                return Err(bad(&format!("{called}: what is imported is a terminal")));
            }
            read.quoted.extend((name == ESCAPED_STRING).then(|| called.to_owned()));
            read.rules.push((called.to_owned(), vec![Item::Regex(parsed(regex, "")?)]));
        }
        Ok(())
    }
}
