//! A file of settings: TOML whose keys are flags, at its top for every command that has them, in a
//! table named like a command for that one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value as Json};
use toml_edit::{Document, Item, Key, Table, Value};

use crate::failure::Failure;

use super::keys::{COMMANDS, OPENING, SECRET, nearest, of_command};
use super::{Layer, Place, Setting};

/// The table with aliases.
const ALIAS: &str = "alias";
/// Longest file that is read, bytes.
const MOST_BYTES: u64 = 1 << 20;

/// What a file says; none where there is no such file. `may_open`: whether it may let others in.
///
/// # Errors
/// What cannot be read, with its line.
pub fn read(path: &Path, may_open: bool) -> Result<Option<Layer>, Failure> {
    let unread = |error: std::io::Error| {
        Failure::new(format!("cannot read the settings in {}", path.display()), error)
    };
    let about = match std::fs::metadata(path) {
        Ok(about) => about,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unread(error)),
    };
    if about.len() > MOST_BYTES {
        let what = format!("{} has {} bytes", path.display(), about.len());
        return Err(Failure::new(what, format!("files of settings have at most {MOST_BYTES}")));
    }
    let text = std::fs::read_to_string(path).map_err(unread)?;
    let read = Reader { path, text: &text, may_open, is_private: is_private(&about) };
    read.layer().map(Some)
}

/// Whether nobody else may read a file.
fn is_private(about: &std::fs::Metadata) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        about.permissions().mode() & 0o077 == 0
    }
    #[cfg(not(unix))]
    {
        let _ = about;
        true
    }
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    may_open: bool,
    is_private: bool,
}

impl Reader<'_> {
    fn layer(&self) -> Result<Layer, Failure> {
        let document: Document<&str> = Document::parse(self.text).map_err(|error| {
            let told = error.to_string();
            Failure::new(format!("{} is not TOML", self.path.display()), told.trim_end())
        })?;
        let mut layer = Layer::new();
        layer.insert(String::new(), self.flags(document.as_table(), "")?);
        for (name, item) in document.as_table() {
            let Some(table) = item.as_table() else { continue };
            if name == ALIAS {
                let line = self.line(document.as_table().key(name), item);
                if document.get("serve").is_some_and(|serve| serve.get(ALIAS).is_some()) {
                    return Err(self.at(line, "alias is set twice", "in [serve] too"));
                }
                let (of, setting) = ("serve".to_owned(), self.aliases(table, line)?);
                layer.entry(of).or_default().insert(ALIAS.to_owned(), setting);
                continue;
            }
            layer.entry(name.to_owned()).or_default().extend(self.flags(table, name)?);
        }
        Ok(layer)
    }

    /// The settings of a table; at the top (`""`) what is a table is a command's.
    fn flags(&self, table: &Table, command: &str) -> Result<BTreeMap<String, Setting>, Failure> {
        let names = of_command(command);
        let mut said = BTreeMap::new();
        for (name, item) in table {
            let line = self.line(table.key(name), item);
            let is_table = item.is_table() && (COMMANDS.contains(&name) || name == ALIAS);
            if command.is_empty() && is_table {
                continue;
            }
            let flag = name.replace('_', "-");
            if !names.contains(&flag) {
                return Err(self.unknown(name, command, line, &names));
            }
            self.may_set(&flag, line)?;
            let values = self.values(item, &flag, line)?;
            let place = Place::File(self.path.to_path_buf(), line);
            if said.insert(flag, Setting { values, place }).is_some() {
                return Err(self.at(line, &format!("{name} is set twice"), ""));
            }
        }
        Ok(said)
    }

    /// The tables `[alias.NAME]`, each as `serve --alias` has it.
    fn aliases(&self, table: &Table, line: usize) -> Result<Setting, Failure> {
        let folder = self.path.parent().unwrap_or(Path::new(""));
        let mut values = Vec::new();
        for (name, item) in table {
            let line = self.line(table.key(name), item);
            let wrong = |what: &str| {
                let detail =
                    "its keys are model, system, template, temperature and others of requests";
                self.at(line, &format!("the alias {name}: {what}"), detail)
            };
            let of = item.as_table().ok_or_else(|| wrong("it is no table"))?;
            let mut members = Map::new();
            for (key, item) in of {
                let value = item.as_value().and_then(json);
                let value = value.ok_or_else(|| wrong(&format!("{key} has no value")))?;
                let value = match (key, value.as_str()) {
                    // Where it lies does not depend on where the command starts.
                    ("template", Some(path)) => folder.join(path).to_string_lossy().into(),
                    _ => value,
                };
                members.insert(key.to_owned(), value);
            }
            let value = format!("{name}={}", Json::Object(members));
            crate::alias::parse(&value).map_err(|why| wrong(&why))?;
            values.push(value);
        }
        let place = Place::File(self.path.to_path_buf(), line);
        Ok(Setting { values, place })
    }

    /// Secrets are for files that nobody else reads, and who may come in is not for a folder to say.
    fn may_set(&self, flag: &str, line: usize) -> Result<(), Failure> {
        if !self.may_open && OPENING.contains(&flag) {
            let detail = "a folder's file says neither who may ask nor where the server listens";
            let failure = self.at(line, &format!("{flag} cannot be set here"), detail);
            return Err(failure.fix("set it in the user's file; tokenmill config show names it"));
        }
        if SECRET.contains(&flag) && !self.is_private {
            let detail = "others may read this file, which holds a key";
            let failure = self.at(line, &format!("{flag} cannot be set here"), detail);
            return Err(failure.fix(format!("chmod 600 {}", self.path.display())));
        }
        Ok(())
    }

    fn unknown(&self, name: &str, command: &str, line: usize, names: &BTreeSet<String>) -> Failure {
        let of = match command {
            "" => String::new(),
            command => format!(" of {command}"),
        };
        let flag = name.replace('_', "-");
        let tables = COMMANDS.iter().map(|c| (*c).to_owned()).collect();
        let near = nearest(&flag, names).or_else(|| match command {
            "" => nearest(&flag, &tables),
            _ => None,
        });
        let detail = match near {
            Some(near) => format!("did you mean {near}?"),
            None => "tokenmill config show lists all".to_owned(),
        };
        self.at(line, &format!("there is no setting {name:?}{of}"), &detail)
    }

    fn values(&self, item: &Item, flag: &str, line: usize) -> Result<Vec<String>, Failure> {
        let wrong = || {
            let detail = "a value is a text, a number, true or false, or a list of these";
            self.at(line, &format!("{flag} has no value that can be used"), detail)
        };
        let value = item.as_value().ok_or_else(wrong)?;
        match value {
            Value::Array(list) => {
                let all: Option<Vec<String>> = list.iter().map(plain).collect();
                all.ok_or_else(wrong)
            }
            one => Ok(vec![plain(one).ok_or_else(wrong)?]),
        }
    }

    /// The line of a key, counted from 1.
    fn line(&self, key: Option<&Key>, item: &Item) -> usize {
        let at = key.and_then(Key::span).or_else(|| item.span()).map_or(0, |span| span.start);
        let before = self.text.get(..at).unwrap_or_default();
        before.bytes().filter(|b| *b == b'\n').count() + 1
    }

    fn at(&self, line: usize, what: &str, detail: &str) -> Failure {
        Failure::new(format!("{}:{line}: {what}", self.path.display()), detail)
    }
}

/// A value as JSON; dates are none.
fn json(value: &Value) -> Option<Json> {
    Some(match value {
        Value::String(text) => text.value().as_str().into(),
        Value::Integer(number) => (*number.value()).into(),
        Value::Float(number) => (*number.value()).into(),
        Value::Boolean(is) => (*is.value()).into(),
        Value::Array(list) => Json::Array(list.iter().map(json).collect::<Option<_>>()?),
        _ => return None,
    })
}

/// A value as on the command line.
fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.value().clone()),
        Value::Integer(number) => Some(number.value().to_string()),
        Value::Float(number) => Some(number.value().to_string()),
        Value::Boolean(is) => Some(is.value().to_string()),
        _ => None,
    }
}
