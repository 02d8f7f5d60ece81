//! Template source to tokens, blanks around tags trimmed as the hubs set Jinja up
//! (`trim_blocks`, `lstrip_blocks`).

/// A piece of the source.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    /// Text outside tags.
    Data(String),
    /// `{{`, `}}`, `{%`, `%}`.
    Tag(&'static str),
    Name(String),
    Str(String),
    Int(i128),
    Float(f64),
    Op(&'static str),
}

/// Longer ones first.
const OPERATORS: &[&str] = &[
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
    ">", "<", "=", ".", ":", "|", ",",
];

/// What Python's `str.isspace` takes for a blank.
pub(super) fn is_blank(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// The tokens of a source, each with its line.
pub(super) fn tokens(source: &str) -> Result<Vec<(Token, usize)>, String> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = source.strip_suffix('\n').unwrap_or(&source);
    let mut lexer = Lexer { rest: source, line: 1, line_starting: true, out: Vec::new() };
    while lexer.tag()? {}
    Ok(lexer.out)
}

struct Lexer<'s> {
    rest: &'s str,
    line: usize,
    /// Whether the last tag ended a line, or the source begins here.
    line_starting: bool,
    out: Vec<(Token, usize)>,
}

impl<'s> Lexer<'s> {
    /// Takes the text before the next tag and the tag; false at the end.
    fn tag(&mut self) -> Result<bool, String> {
        let starts = self.rest.match_indices('{').map(|(at, _)| at);
        let opens =
            |at: &usize| matches!(self.rest.as_bytes().get(at + 1), Some(b'%' | b'{' | b'#'));
        let Some(start) = { starts }.find(opens) else {
            let rest = self.rest;
            self.data(rest);
            return Ok(false);
        };
        let text = self.take(start);
        let open = self.take(2);
        let sign = self.sign();
        let text = self.before(text, sign, open != "{{");
        self.data(text);
        match open {
            "{#" => self.comment()?,
            "{{" => self.code("{{", "}}")?,
            _ if self.raw()? => {}
            _ => self.code("{%", "%}")?,
        }
        Ok(true)
    }

    fn data(&mut self, text: &str) {
        if !text.is_empty() {
            self.out.push((Token::Data(text.to_owned()), self.line));
        }
    }

    /// The next `len` bytes.
    fn take(&mut self, len: usize) -> &'s str {
        let (taken, rest) = self.rest.split_at_checked(len).unwrap_or((self.rest, ""));
        self.rest = rest;
        self.line += taken.matches('\n').count();
        taken
    }

    fn sign(&mut self) -> Option<char> {
        let sign = self.rest.chars().next().filter(|c| matches!(c, '-' | '+'))?;
        self.take(1);
        Some(sign)
    }

    fn blanks(&mut self) -> &'s str {
        self.take(self.rest.len() - self.rest.trim_start_matches(is_blank).len())
    }

    /// The text before a tag without the blanks that the tag swallows.
    fn before(&self, text: &'s str, sign: Option<char>, block: bool) -> &'s str {
        if sign == Some('-') {
            return text.trim_end_matches(is_blank);
        }
        let line = text.rfind('\n').map_or(0, |at| at + 1);
        let (before, blank) = text.split_at_checked(line).unwrap_or((text, ""));
        let swallows = block && sign.is_none() && (line > 0 || self.line_starting);
        match swallows && blank.chars().all(is_blank) {
            true => before,
            false => text,
        }
    }

    /// Takes the end of a tag if it is here, with the blanks it swallows.
    fn close(&mut self, close: &str) -> bool {
        let start = self.rest;
        let block = close != "}}";
        let (sign, found) = match self.rest.strip_prefix(close) {
            Some(_) => (None, true),
            None => {
                let sign = self.rest.chars().next().filter(|c| *c == '-' || *c == '+' && block);
                (sign, sign.is_some() && self.rest.get(1..).is_some_and(|r| r.starts_with(close)))
            }
        };
        if !found {
            return false;
        }
        self.take(close.len() + usize::from(sign.is_some()));
        match sign {
            Some('-') => drop(self.blanks()),
            None if block && self.rest.starts_with('\n') => drop(self.take(1)),
            _ => {}
        }
        let taken = start.len() - self.rest.len();
        self.line_starting = start.get(..taken).is_some_and(|t| t.ends_with('\n'));
        true
    }

    fn comment(&mut self) -> Result<(), String> {
        let end = self.rest.find("#}").ok_or("a comment does not end")?;
        let signed = self.rest.get(..end).is_some_and(|text| text.ends_with(['-', '+']));
        self.take(end - usize::from(signed));
        self.close("#}");
        Ok(())
    }

    /// `{% raw %}` to `{% endraw %}`; false if the tag is another one.
    fn raw(&mut self) -> Result<bool, String> {
        let inside = self.rest.trim_start_matches(is_blank);
        let Some(after) = inside.strip_prefix("raw") else { return Ok(false) };
        let after = after.trim_start_matches(is_blank);
        if !after.starts_with("%}") && !after.starts_with("-%}") {
            return Ok(false);
        }
        self.take(self.rest.len() - after.len());
        let trims = self.rest.starts_with('-');
        self.take(if trims { 3 } else { 2 });
        if trims {
            self.blanks();
        }
        let mut from = 0;
        loop {
            let at = self.rest.get(from..).and_then(|rest| rest.find("{%"));
            let at = from + at.ok_or("raw text does not end")?;
            let end = self.rest.get(at + 2..).unwrap_or_default();
            let end = end.strip_prefix(['-', '+']).unwrap_or(end).trim_start_matches(is_blank);
            if !end.starts_with("endraw") {
                from = at + 2;
                continue;
            }
            let text = self.take(at);
            self.take(2);
            let sign = self.sign();
            let text = self.before(text, sign, true);
            self.data(text);
            self.blanks();
            self.take("endraw".len());
            self.blanks();
            return match self.close("%}") {
                true => Ok(true),
                false => Err("endraw takes nothing".to_owned()),
            };
        }
    }

    /// The inside of `{{ }}` or `{% %}`.
    fn code(&mut self, open: &'static str, close: &'static str) -> Result<(), String> {
        self.out.push((Token::Tag(open), self.line));
        let mut brackets = Vec::new();
        loop {
            self.blanks();
            if brackets.is_empty() && self.close(close) {
                self.out.push((Token::Tag(close), self.line));
                return Ok(());
            }
            let line = self.line;
            let token = self.token()?;
            match token {
                Token::Op(open @ ("(" | "[" | "{")) => brackets.push(open),
                Token::Op(end @ (")" | "]" | "}")) => {
                    let wanted = match end {
                        ")" => "(",
                        "]" => "[",
                        _ => "{",
                    };
                    if brackets.pop() != Some(wanted) {
                        return Err(format!("line {line}: unexpected {end:?}"));
                    }
                }
                _ => {}
            }
            self.out.push((token, line));
        }
    }

    fn token(&mut self) -> Result<Token, String> {
        let Some(first) = self.rest.chars().next() else {
            return Err(format!("line {}: a tag does not end", self.line));
        };
        if first == '_' || first.is_alphabetic() {
            let in_name = |c: char| c == '_' || c.is_alphanumeric();
            let len = self.rest.find(|c| !in_name(c)).unwrap_or(self.rest.len());
            return Ok(Token::Name(self.take(len).to_owned()));
        }
        if first.is_ascii_digit() {
            return self.number();
        }
        if matches!(first, '\'' | '"') {
            return self.string(first);
        }
        let found = OPERATORS.iter().find(|op| self.rest.starts_with(**op));
        let op = found.ok_or_else(|| format!("line {}: unexpected {first:?}", self.line))?;
        self.take(op.len());
        Ok(Token::Op(op))
    }

    fn number(&mut self) -> Result<Token, String> {
        let digits =
            |text: &str| text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
        let line = self.line;
        let bad = |text: &str| format!("line {line}: {text} is no number");
        for (prefix, radix) in [("0x", 16), ("0o", 8), ("0b", 2)] {
            let lower = self.rest.get(..2).unwrap_or_default().to_ascii_lowercase();
            if lower == prefix {
                let rest = self.rest.get(2..).unwrap_or_default();
                let len = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                let text = self.take(2 + len.unwrap_or(rest.len()));
                let value = text.get(2..).unwrap_or_default().replace('_', "");
                return i128::from_str_radix(&value, radix).map(Token::Int).map_err(|_| bad(text));
            }
        }
        let mut len = digits(self.rest);
        let after_point = matches!(self.out.last(), Some((Token::Op("."), _)));
        let tail = |from: usize| self.rest.get(from..).unwrap_or_default();
        let digit_at = |at: usize| tail(at).starts_with(|c: char| c.is_ascii_digit());
        let mut float = false;
        if !after_point && tail(len).starts_with('.') && digit_at(len + 1) {
            float = true;
            len += 1 + digits(tail(len + 1));
        }
        if !after_point && tail(len).starts_with(['e', 'E']) {
            let sign = usize::from(tail(len + 1).starts_with(['+', '-']));
            if digit_at(len + 1 + sign) {
                float = true;
                len += 1 + sign + digits(tail(len + 1 + sign));
            }
        }
        let text = self.take(len);
        let value = text.replace('_', "");
        match float {
            true => value.parse().map(Token::Float).map_err(|_| bad(text)),
            false => value.parse().map(Token::Int).map_err(|_| bad(text)),
        }
    }

    fn string(&mut self, quote: char) -> Result<Token, String> {
        let mut escaped = false;
        let mut chars = self.rest.char_indices().skip(1);
        let end = chars.find(|(_, c)| {
            let ends = !escaped && *c == quote;
            escaped = !escaped && *c == '\\';
            ends
        });
        let (end, _) = end.ok_or_else(|| format!("line {}: a string does not end", self.line))?;
        let text = self.take(end + 1);
        unescaped(text.get(1..end).unwrap_or_default()).map(Token::Str)
    }
}

/// Python's escapes undone.
fn unescaped(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        let Some(c) = after.chars().next() else { break };
        rest = after.get(c.len_utf8()..).unwrap_or_default();
        let digits = match c {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        match c {
            'n' => out.push('\n'),
            't' => out.push('\t'),
            'r' => out.push('\r'),
            'a' => out.push('\x07'),
            'b' => out.push('\x08'),
            'f' => out.push('\x0c'),
            'v' => out.push('\x0b'),
            '\n' => {}
            '\\' | '\'' | '"' => out.push(c),
            '0'..='7' => {
                let len = rest.bytes().take(2).take_while(|b| (b'0'..=b'7').contains(b)).count();
                let code = format!("{c}{}", rest.get(..len).unwrap_or_default());
                out.push(character(&code, 8)?);
                rest = rest.get(len..).unwrap_or_default();
            }
            _ if digits > 0 => {
                out.push(character(rest.get(..digits).unwrap_or_default(), 16)?);
                rest = rest.get(digits..).unwrap_or_default();
            }
            _ => {
                out.push('\\');
                out.push(c);
            }
        }
    }
    out.push_str(rest);
    Ok(out)
}

fn character(code: &str, radix: u32) -> Result<char, String> {
    let found = u32::from_str_radix(code, radix).ok().and_then(char::from_u32);
    found.ok_or_else(|| format!("{code:?} is no character"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text as it is written, tags as their tokens in brackets.
    fn shown(source: &str) -> String {
        let show = |(token, _): (Token, usize)| match token {
            Token::Data(text) => text,
            Token::Tag("{{" | "{%") => "[".to_owned(),
            Token::Tag(_) => "]".to_owned(),
            Token::Name(name) => format!("{name} "),
            Token::Str(text) => format!("{text:?} "),
            Token::Int(value) => format!("{value} "),
            Token::Float(value) => format!("{value:?} "),
            Token::Op(op) => format!("{op} "),
        };
        tokens(source).map_or_else(|e| e, |tokens| tokens.into_iter().map(show).collect())
    }

    #[test]
    fn blanks_are_trimmed_as_set_up() {
        let cases = [
            ("a {{ b }} c\n", "a [b ] c"),
            ("a\n  {% if x %}\n b\n  {%+ y %}", "a\n[if x ] b\n  [y ]"),
            ("a  {% x %}\n\nb", "a  [x ]\nb"),
            ("  {% x %}  {% y %}", "[x ]  [y ]"),
            ("a \n {%- x -%} \n b", "a[x ]b"),
            ("a {{- x -}}\n b", "a[x ]b"),
            ("a\n  {{ x }}\n", "a\n  [x ]"),
            ("a\n  {# c #}\nb{#- d -#} e", "a\nbe"),
            ("{% x +%}\na", "[x ]\na"),
            ("a\r\nb\rc", "a\nb\nc"),
            ("{% raw %}\n{{ x }} {% y %}\n  {% endraw %}\nz", "\n{{ x }} {% y %}\nz"),
            ("{{ {'a': {'b': 1}} }}", "[{ \"a\" : { \"b\" : 1 } } ]"),
            ("{{ '}}' ~ \"%}\" }}", "[\"}}\" ~ \"%}\" ]"),
        ];
        for (source, expect) in cases {
            assert_eq!(shown(source), expect, "{source:?}");
        }
    }

    #[test]
    fn literals() {
        let cases = [
            ("{{ 1 2.5 1e3 0x1F 1_000 x.0.1 }}", "[1 2.5 1000.0 31 1000 x . 0 . 1 ]"),
            (r"{{ 'a\n\x41\u00e9\q\\' }}", "[\"a\\nAé\\\\q\\\\\" ]"),
            (r"{{ 'it\'s' }}", "[\"it's\" ]"),
            ("{{ a", "line 1: a tag does not end"),
            ("\n{{ 'a }}", "line 2: a string does not end"),
            ("{{ ) }}", "line 1: unexpected \")\""),
            ("{# a", "a comment does not end"),
        ];
        for (source, expect) in cases {
            assert_eq!(shown(source), expect, "{source:?}");
        }
    }
}
