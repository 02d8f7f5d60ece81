//! The filter `tojson` as the hubs define it: Python's `json.dumps`, without escaping HTML.

use super::call::Given;
use super::text::{Text, Writer};
use super::value::{Kind, LOOK, Meter, Result, Value, failed, float, sort};

/// How it writes.
struct Style {
    /// Text between two items.
    item: Text,
    /// Text between a key and its value.
    key: Text,
    /// Text of one level of indentation; `None` writes one line.
    indent: Option<Text>,
    ascii: bool,
    sorted: bool,
}

/// `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(value: &Value, given: Given, meter: &Meter) -> Result<Value> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let [ascii, indent, separators, sorted] = given.bind("tojson", names)?;
    let indent = match indent {
        None | Some(Value::None | Value::Undefined) => None,
        Some(Value::Str(text)) => Some(text),
        Some(width) => {
            let width = width.as_int().and_then(|n| usize::try_from(n.max(0)).ok());
            match width {
                Some(width) => Some(Text::foreign(" ".repeat(width.min(64)))),
                None => return failed("tojson: indent is a number or a string"),
            }
        }
    };
    let item = if indent.is_some() { "," } else { ", " };
    let (mut item, mut key) = (Text::foreign(item), Text::foreign(": "));
    if let Some(separators) = separators.filter(|v| !matches!(v, Value::None)) {
        match separators.items(meter)?.as_slice() {
            [Value::Str(between), Value::Str(after)] => {
                (item, key) = (between.clone(), after.clone());
            }
            _ => return failed("tojson: separators are two strings"),
        }
    }
    let is_on = |flag: Option<Value>| flag.is_some_and(|flag| flag.is_true());
    let style = Style { item, key, indent, ascii: is_on(ascii), sorted: is_on(sorted) };
    let mut out = Json { style: &style, meter, out: Writer::default() };
    out.value(value, 0)?;
    Ok(Value::Str(out.out.finish()))
}

struct Json<'a> {
    style: &'a Style,
    meter: &'a Meter,
    out: Writer,
}

impl Json<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<()> {
        self.meter.spend(LOOK)?;
        match value {
            Value::None => self.out.push("null", true),
            Value::Bool(value) => self.out.push(if *value { "true" } else { "false" }, true),
            Value::Int(value) => self.out.push(&value.to_string(), true),
            Value::Float(value) => self.out.push(&number(*value), true),
            Value::Str(text) => self.string(text)?,
            Value::List(list) if list.kind != Kind::Lazy => {
                let items = list.items.iter();
                self.items('[', ']', items, depth, |out, item| out.value(item, depth + 1))?;
            }
            Value::Map(map) => {
                let mut entries: Vec<&(Value, Value)> = map.entries.iter().collect();
                if self.style.sorted {
                    entries = sort(entries, &|(key, _)| key, self.meter)?;
                }
                self.items('{', '}', entries.into_iter(), depth, |out, (key, value)| {
                    out.key(key)?;
                    let between = out.style.key.clone();
                    out.meter.spend(between.cost())?;
                    out.out.push_text(&between);
                    out.value(value, depth + 1)
                })?;
            }
            other => return failed(format!("tojson: {} is not JSON", other.kind())),
        }
        Ok(())
    }

    fn items<T>(
        &mut self,
        open: char,
        close: char,
        items: impl Iterator<Item = T>,
        depth: usize,
        mut write: impl FnMut(&mut Self, T) -> Result<()>,
    ) -> Result<()> {
        let mut utf8 = [0; 4];
        self.out.push(open.encode_utf8(&mut utf8), false);
        let mut some = false;
        for item in items {
            if some {
                let between = self.style.item.clone();
                self.meter.spend(between.cost())?;
                self.out.push_text(&between);
            }
            some = true;
            self.new_line(depth + 1)?;
            write(self, item)?;
        }
        if some {
            self.new_line(depth)?;
        }
        self.out.push(close.encode_utf8(&mut utf8), false);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) -> Result<()> {
        let Some(indent) = self.style.indent.clone() else { return Ok(()) };
        self.meter.spend(LOOK + indent.cost().saturating_mul(depth))?;
        self.out.push("\n", false);
        (0..depth).for_each(|_| self.out.push_text(&indent));
        Ok(())
    }

    /// Keys are strings in JSON: Python spells the other kinds the JSON way.
    fn key(&mut self, key: &Value) -> Result<()> {
        let text = match key {
            Value::Str(text) => text.clone(),
            Value::None => Text::own("null"),
            Value::Bool(value) => Text::own(if *value { "true" } else { "false" }),
            Value::Int(value) => Text::own(value.to_string()),
            Value::Float(value) => Text::own(number(*value)),
            other => return failed(format!("tojson: {} cannot be a key", other.kind())),
        };
        self.string(&text)
    }

    fn string(&mut self, text: &Text) -> Result<()> {
        let grows = |c: &char| *c < ' ' || (self.style.ascii && *c > '~');
        let grown = text.as_str().chars().filter(grows).count();
        self.meter.spend(2 * text.cost() + 24 * grown)?;
        self.out.push("\"", false);
        for (run, own) in text.runs() {
            let escaped = escaped(run, self.style.ascii);
            self.out.push(&escaped, own);
        }
        self.out.push("\"", false);
        Ok(())
    }
}

fn number(value: f64) -> String {
    match value {
        value if value.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        value => float(value),
    }
}

fn escaped(text: &str, ascii: bool) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{C}' => out.push_str("\\f"),
            c if c < ' ' || (ascii && c > '~') => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out
}
