//! JSON, character by character: strict, but for control characters in strings, which are escaped.

/// Reads one JSON value.
#[derive(Debug, Clone)]
pub(crate) struct Json {
    /// What is open, outermost first: whether it is an object.
    open: Vec<bool>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// A value is next; in a list's beginning, its end may be, too.
    Value {
        may_close: bool,
    },
    /// A key is next; in an object's beginning, its end may be, too.
    Key {
        may_close: bool,
    },
    Colon,
    /// A comma or an end.
    Next,
    Text {
        is_key: bool,
        escape: Escape,
    },
    Number(Number),
    Word(&'static str),
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Escape {
    None,
    Begun,
    /// So many hexadecimal digits are to come.
    Hex(u8),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Number {
    Minus,
    Zero,
    Whole,
    Point,
    Fraction,
    E,
    Sign,
    Exponent,
}

/// What a character was.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Part {
    /// White space, a colon or a comma.
    Between,
    /// It opens an object or a list.
    Open,
    /// It closes one.
    Close,
    /// Of a key, its quotes included.
    Key,
    /// The quote that ends a key.
    KeyEnd,
    /// Of a string, its quotes included.
    Text,
    /// The quote that ends it.
    TextEnd,
    /// Of a number or word.
    Plain,
}

impl Json {
    pub fn new() -> Self {
        Self { open: Vec::new(), state: State::Value { may_close: false } }
    }

    /// Objects and lists that are open.
    pub fn depth(&self) -> usize {
        self.open.len()
    }

    /// The value has ended.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Inside a string or key.
    pub fn in_text(&self) -> bool {
        matches!(self.state, State::Text { .. })
    }

    /// Takes a character; `None` where JSON has none such.
    pub fn feed(&mut self, c: char) -> Option<Part> {
        match self.state {
            State::Text { is_key, escape } => self.text(c, is_key, escape),
            State::Number(number) => match number.then(c) {
                Some(next) => {
                    self.state = State::Number(next);
                    Some(Part::Plain)
                }
                None if number.may_end() => {
                    self.ended();
                    self.feed(c)
                }
                None => None,
            },
            State::Word(rest) => {
                let rest = rest.strip_prefix(c)?;
                self.state = State::Word(rest);
                if rest.is_empty() {
                    self.ended();
                }
                Some(Part::Plain)
            }
            _ if matches!(c, ' ' | '\n' | '\r' | '\t') => Some(Part::Between),
            State::Value { may_close } => self.value(c, may_close),
            State::Key { may_close: true } if c == '}' => self.close(true),
            State::Key { .. } if c == '"' => {
                self.state = State::Text { is_key: true, escape: Escape::None };
                Some(Part::Key)
            }
            State::Colon if c == ':' => {
                self.state = State::Value { may_close: false };
                Some(Part::Between)
            }
            State::Next => match (c, self.open.last()?) {
                (',', true) => {
                    self.state = State::Key { may_close: false };
                    Some(Part::Between)
                }
                (',', false) => {
                    self.state = State::Value { may_close: false };
                    Some(Part::Between)
                }
                ('}', true) | (']', false) => self.close(c == '}'),
                _ => None,
            },
            _ => None,
        }
    }

    fn value(&mut self, c: char, may_close: bool) -> Option<Part> {
        match c {
            '{' => {
                self.open.push(true);
                self.state = State::Key { may_close: true };
                return Some(Part::Open);
            }
            '[' => {
                self.open.push(false);
                self.state = State::Value { may_close: true };
                return Some(Part::Open);
            }
            ']' if may_close => return self.close(false),
            '"' => {
                self.state = State::Text { is_key: false, escape: Escape::None };
                return Some(Part::Text);
            }
            't' => self.state = State::Word("rue"),
            'f' => self.state = State::Word("alse"),
            'n' => self.state = State::Word("ull"),
            '-' => self.state = State::Number(Number::Minus),
            '0' => self.state = State::Number(Number::Zero),
            '1'..='9' => self.state = State::Number(Number::Whole),
            _ => return None,
        }
        Some(Part::Plain)
    }

    fn text(&mut self, c: char, is_key: bool, escape: Escape) -> Option<Part> {
        let next = match (escape, c) {
            (Escape::None, '"') if is_key => {
                self.state = State::Colon;
                return Some(Part::KeyEnd);
            }
            (Escape::None, '"') => {
                self.ended();
                return Some(Part::TextEnd);
            }
            (Escape::None, '\\') => Escape::Begun,
            (Escape::None, _) => Escape::None,
            (Escape::Begun, 'u') => Escape::Hex(4),
            (Escape::Begun, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') => Escape::None,
            (Escape::Hex(1), c) if c.is_ascii_hexdigit() => Escape::None,
            (Escape::Hex(n), c) if c.is_ascii_hexdigit() => Escape::Hex(n - 1),
            _ => return None,
        };
        self.state = State::Text { is_key, escape: next };
        Some(if is_key { Part::Key } else { Part::Text })
    }

    fn close(&mut self, is_object: bool) -> Option<Part> {
        if self.open.pop() != Some(is_object) {
            return None;
        }
        self.ended();
        Some(Part::Close)
    }

    fn ended(&mut self) {
        self.state = if self.open.is_empty() { State::Done } else { State::Next };
    }
}

impl Number {
    fn then(self, c: char) -> Option<Self> {
        Some(match (self, c) {
            (Self::Minus, '0') => Self::Zero,
            (Self::Minus, '1'..='9') | (Self::Whole, '0'..='9') => Self::Whole,
            (Self::Zero | Self::Whole, '.') => Self::Point,
            (Self::Point | Self::Fraction, '0'..='9') => Self::Fraction,
            (Self::Zero | Self::Whole | Self::Fraction, 'e' | 'E') => Self::E,
            (Self::E, '+' | '-') => Self::Sign,
            (Self::E | Self::Sign | Self::Exponent, '0'..='9') => Self::Exponent,
            _ => return None,
        })
    }

    fn may_end(self) -> bool {
        matches!(self, Self::Zero | Self::Whole | Self::Fraction | Self::Exponent)
    }
}

/// A text that is one JSON value, without the white space around it, control characters escaped.
pub(crate) fn value(text: &str) -> Option<String> {
    let (text, mut json) = (text.trim(), Json::new());
    let mut written = String::with_capacity(text.len());
    for c in text.chars() {
        let in_text = json.in_text();
        json.feed(c)?;
        push(&mut written, c, in_text);
    }
    let is_whole = json.is_done() || matches!(json.state, State::Number(n) if n.may_end());
    (is_whole && json.depth() == 0).then_some(written)
}

/// Appends a character of JSON, escaped if it is a control character inside a string.
pub(crate) fn push(text: &mut String, c: char, in_text: bool) {
    if in_text && c.is_control() && (c as u32) < 0x20 {
        escape(text, c);
    } else {
        text.push(c);
    }
}

/// Appends a character as one of a JSON string.
pub(crate) fn escape(text: &mut String, c: char) {
    match c {
        '"' => text.push_str("\\\""),
        '\\' => text.push_str("\\\\"),
        '\n' => text.push_str("\\n"),
        '\r' => text.push_str("\\r"),
        '\t' => text.push_str("\\t"),
        '\u{8}' => text.push_str("\\b"),
        '\u{c}' => text.push_str("\\f"),
        c if (c as u32) < 0x20 => text.push_str(&format!("\\u{:04x}", c as u32)),
        c => text.push(c),
    }
}

/// A text as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    let mut written = String::with_capacity(text.len() + 2);
    written.push('"');
    text.chars().for_each(|c| escape(&mut written, c));
    written.push('"');
    written
}

/// What a JSON string, quotes included, spells; a lone surrogate is U+FFFD.
pub(crate) fn unquoted(text: &str) -> Option<String> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    let (mut units, mut chars) = (Vec::with_capacity(inner.len()), inner.chars());
    while let Some(c) = chars.next() {
        let c = match c {
            '\\' => match chars.next()? {
                'u' => {
                    let digits: String = chars.by_ref().take(4).collect();
                    units.push(u16::from_str_radix(&digits, 16).ok()?);
                    continue;
                }
                'b' => '\u{8}',
                'f' => '\u{c}',
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                c => c,
            },
            c => c,
        };
        units.extend_from_slice(c.encode_utf16(&mut [0; 2]));
    }
    Some(String::from_utf16_lossy(&units))
}
