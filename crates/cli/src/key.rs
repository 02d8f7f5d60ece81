//! `key`: the keys that clients of `serve` show. A file holds their hashes, never the keys.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::json;
use tokenmill_server::{Key, KeyLimits, digest, new_secret};
use tokenmill_text::DateTime;
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table, value};

use crate::args::{AddKey, KeyCommand};
use crate::config;
use crate::failure::{Failure, printable};

/// Most keys in a file.
const MOST_KEYS: usize = 100_000;
/// Longest file, bytes.
const MOST_BYTES: u64 = 64 << 20;
/// Longest name of a key, bytes.
const MOST_NAME: usize = 64;
/// Most that anybody's leases may keep of the cache, percent.
const MOST_CACHE: u32 = 25;
/// What a new file says of itself.
const ABOUT: &str =
    "# Keys of tokenmill serve: their hashes. Limits may be edited; a running server sees them.\n";

/// Runs the command.
pub fn key(command: &KeyCommand) -> Result<(), Failure> {
    match command {
        KeyCommand::Add(add) => self::add(add),
        KeyCommand::List { keys, json } => list(&place(keys.as_deref())?, *json),
        KeyCommand::Revoke { name, keys } => revoke(&place(keys.as_deref())?, name),
    }
}

/// Where the keys are kept: the user's folder of settings, or the file named.
pub fn place(named: Option<&Path>) -> Result<PathBuf, Failure> {
    let own = || Some(config::folder()?.join("keys.toml"));
    named.map(Path::to_path_buf).or_else(own).ok_or_else(|| {
        Failure::new("there is no folder for keys", "neither HOME nor XDG_CONFIG_HOME is set")
            .fix("name a file: --keys FILE")
    })
}

/// The keys of a file; none where there is no such file.
///
/// # Errors
/// What of it cannot be used, with its place in the file.
pub fn read(path: &Path) -> Result<Option<Vec<Key>>, Failure> {
    let Some(document) = open(path)? else { return Ok(None) };
    let rows = document.get("key").and_then(Item::as_array_of_tables);
    rows.into_iter().flatten().map(|row| of_row(path, row)).collect::<Result<_, _>>().map(Some)
}

fn open(path: &Path) -> Result<Option<DocumentMut>, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(format!("cannot read the keys in {}", path.display()), error)
    };
    match fs::metadata(path) {
        Ok(about) if about.len() > MOST_BYTES => {
            return Err(failed(std::io::Error::other(format!("it has {} bytes", about.len()))));
        }
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    }
    let text = fs::read_to_string(path).map_err(failed)?;
    let document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| {
        Failure::new(format!("{} is not TOML", path.display()), error.to_string().trim_end())
    })?;
    if let Some((name, _)) =
        document.iter().find(|(name, item)| *name != "key" || !item.is_array_of_tables())
    {
        let what = format!("{}: {name:?} is no list of keys", path.display());
        return Err(Failure::new(what, "the file has tables [[key]] and nothing else"));
    }
    Ok(Some(document))
}

/// A table of the file.
fn of_row(path: &Path, row: &Table) -> Result<Key, Failure> {
    let name = row.get("name").and_then(Item::as_str).unwrap_or_default();
    let wrong = |what: &str| {
        let place = format!("{}: the key {name:?}", path.display());
        Failure::new(place, what)
    };
    let hash = row.get("sha256").and_then(Item::as_str).and_then(bytes_of_hex);
    let hash = hash.ok_or_else(|| wrong("sha256 must be 64 hexadecimal digits"))?;
    let (mut limits, mut models) = (KeyLimits::default(), Vec::new());
    let number = |item: &Item, field: &str| {
        let number = item.as_integer().and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
        number.map(Some).ok_or_else(|| wrong(&format!("{field} must be a number from 1")))
    };
    for (field, item) in row {
        match field {
            "name" | "sha256" | "created" => {}
            "per-minute" => limits.per_minute = number(item, field)?,
            "at-once" => limits.at_once = number(item, field)?,
            "ctx" => limits.context = number(item, field)?,
            "cache" => {
                let part = item.as_integer().and_then(|n| u32::try_from(n).ok());
                let part = part.filter(|n| *n <= MOST_CACHE);
                let told = || wrong(&format!("cache must be a number from 0 to {MOST_CACHE}"));
                limits.cache = Some(part.ok_or_else(told)?);
            }
            "metrics" => {
                let is = item.as_bool();
                limits.metrics = is.ok_or_else(|| wrong("metrics must be true or false"))?;
            }
            "models" => {
                let list = item.as_array().into_iter().flatten();
                models = list.filter_map(|one| Some(one.as_str()?.to_owned())).collect();
                if models.is_empty() {
                    return Err(wrong("models must be a list of names; left out, all are meant"));
                }
            }
            other => return Err(wrong(&format!("there is no field {other:?}"))),
        }
    }
    if name.is_empty() {
        return Err(wrong("it has no name"));
    }
    limits.models = models;
    Ok(Key { name: name.to_owned(), digest: hash, limits })
}

/// Makes a key, keeps its hash and shows it once.
fn add(add: &AddKey) -> Result<(), Failure> {
    let path = place(add.keys.as_deref())?;
    let name = add.name.trim();
    if name.is_empty() || name.len() > MOST_NAME || name.chars().any(char::is_control) {
        let detail = format!("a name has 1 to {MOST_NAME} bytes and no control characters");
        return Err(Failure::new(format!("{:?} is no name of a key", add.name), detail));
    }
    let secret = new_secret()
        .ok_or_else(|| Failure::new("no key can be made", "the system gives no random numbers"))?;
    change(&path, |rows| {
        if rows.iter().any(|row| row.get("name").and_then(Item::as_str) == Some(name)) {
            let failure = Failure::new(format!("there is a key named {name}"), path.display());
            return Err(failure.fix(format!("tokenmill key revoke {name}, or another name")));
        }
        if rows.len() >= MOST_KEYS {
            return Err(Failure::new("no more keys", format!("the file has {MOST_KEYS}")));
        }
        rows.push(row(add, name, &secret));
        Ok(())
    })?;
    let shown = format!("{secret}\n");
    std::io::stdout().write_all(shown.as_bytes()).map_err(Failure::output)
}

fn row(add: &AddKey, name: &str, secret: &str) -> Table {
    let mut row = Table::new();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    row.insert("name", value(name));
    row.insert("sha256", value(hex(&digest(secret.as_bytes()))));
    row.insert("created", value(DateTime::from_unix_seconds(now).strftime("%Y-%m-%dT%H:%M:%SZ")));
    let limits = [
        ("per-minute", add.per_minute),
        ("at-once", add.at_once),
        ("ctx", add.ctx),
        ("cache", add.cache),
    ];
    for (field, limit) in limits {
        if let Some(limit) = limit {
            row.insert(field, value(i64::from(limit)));
        }
    }
    if !add.model.is_empty() {
        row.insert("models", value(add.model.iter().collect::<toml_edit::Array>()));
    }
    if add.metrics {
        row.insert("metrics", value(true));
    }
    row
}

fn revoke(path: &Path, name: &str) -> Result<(), Failure> {
    change(path, |rows| {
        let of_name = |row: &Table| row.get("name").and_then(Item::as_str) == Some(name);
        if !rows.iter().any(of_name) {
            let failure = Failure::new(format!("there is no key named {name}"), path.display());
            return Err(failure.fix("tokenmill key list shows all"));
        }
        rows.retain(|row| !of_name(row));
        Ok(())
    })
}

fn list(path: &Path, as_json: bool) -> Result<(), Failure> {
    let keys = read(path)?.unwrap_or_default();
    let mut out = Vec::new();
    for Key { name, limits, .. } in &keys {
        let KeyLimits { per_minute, at_once, context, models, cache, metrics } = limits;
        let line = match as_json {
            true => json!({
                "name": name, "per_minute": per_minute, "at_once": at_once, "ctx": context,
                "models": models, "cache": cache, "metrics": metrics,
            })
            .to_string(),
            false => {
                let number = |what: &str, limit: &Option<u32>| limit.map(|n| format!("{n} {what}"));
                let limits = [
                    number("a minute", per_minute),
                    number("at once", at_once),
                    number("tokens", context),
                    number("% of the cache", cache),
                    (!models.is_empty()).then(|| models.join(", ")),
                    metrics.then(|| "reads the metrics".to_owned()),
                ];
                let limits: Vec<String> = limits.into_iter().flatten().collect();
                printable(&format!("{name}  {}", limits.join(" · "))).trim_end().to_owned()
            }
        };
        out.extend(line.bytes().chain([b'\n']));
    }
    std::io::stdout().write_all(&out).map_err(Failure::output)
}

/// Changes the file as one step: nobody sees half of it, and two that change it do so in turn.
fn change(
    path: &Path,
    change: impl FnOnce(&mut ArrayOfTables) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(format!("cannot write the keys in {}", path.display()), error)
    };
    let folder = path.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(failed)?;
    let lock = File::create(path.with_extension("lock")).map_err(failed)?;
    lock.lock().map_err(failed)?;
    let mut document = match open(path)? {
        Some(document) => document,
        None => ABOUT.parse().unwrap_or_default(),
    };
    let rows = document.entry("key").or_insert(Item::ArrayOfTables(ArrayOfTables::new()));
    let rows = rows.as_array_of_tables_mut();
    change(rows.ok_or_else(|| failed(std::io::Error::other("key is no list")))?)?;
    let new = path.with_extension("new");
    let written = private(&new).and_then(|mut file| {
        file.write_all(document.to_string().as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        // The name lasts too; where folders cannot be synced it does without.
        File::open(folder).and_then(|folder| folder.sync_all()).or(Ok(()))
    });
    written.map_err(failed)
}

/// A new file that only its owner reads.
fn private(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
        // One that a broken change left may have been made by other rules.
        let _ = fs::remove_file(path);
    }
    options.open(path)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of_hex(text: &str) -> Option<[u8; 32]> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
    let bytes: Vec<u8> = digits?.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    if text.len() == 64 { bytes.try_into().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file whose text is changed so cannot be read.
    fn why(path: &Path, text: &str) -> String {
        fs::write(path, text).expect("written");
        read(path).expect_err(text).to_string()
    }

    fn add_key(path: &Path, name: &str) -> Result<(), Failure> {
        let model = vec!["small".to_owned()];
        add(&AddKey {
            name: name.into(),
            per_minute: Some(60),
            at_once: None,
            ctx: Some(4096),
            model,
            cache: Some(10),
            metrics: name == "ann",
            keys: Some(path.to_path_buf()),
        })
    }

    #[test]
    fn keys_are_added_read_and_revoked() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("deep").join("keys.toml");
        assert!(read(&path).expect("no file").is_none());
        add_key(&path, "ann").expect("added");
        add_key(&path, "bob").expect("added");
        assert!(add_key(&path, "bob").expect_err("twice").to_string().contains("key revoke bob"));
        assert!(add_key(&path, "a\nb").is_err() && add_key(&path, " ").is_err());
        let keys = read(&path).expect("read").expect("there");
        let names: Vec<&str> = keys.iter().map(|key| key.name.as_str()).collect();
        assert_eq!(names, ["ann", "bob"]);
        let limits = &keys[0].limits;
        assert_eq!(
            (limits.per_minute, limits.at_once, limits.context, limits.cache),
            (Some(60), None, Some(4096), Some(10))
        );
        assert!(limits.metrics && limits.models == ["small"] && !keys[1].limits.metrics);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = fs::metadata(&path).expect("there").permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        revoke(&path, "ann").expect("revoked");
        revoke(&path, "bob").expect("revoked");
        assert!(revoke(&path, "bob").is_err());
        assert_eq!(read(&path).expect("read").expect("still a file").len(), 0);
    }

    #[test]
    fn what_people_write_is_kept_or_told() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("keys.toml");
        add_key(&path, "ann").expect("added");
        let text = fs::read_to_string(&path).expect("text");
        fs::write(&path, format!("{text}at-once = 3 # slow\n")).expect("written");
        add_key(&path, "bob").expect("added");
        assert!(fs::read_to_string(&path).expect("text").contains("at-once = 3 # slow"));
        assert_eq!(read(&path).expect("read").expect("there")[0].limits.at_once, Some(3));
        for (line, word) in [
            ("at-onze = 3", "no field \"at-onze\""),
            ("at-once = 0", "at-once must be a number from 1"),
            ("[other]", "nothing else"),
            ("= 3", "is not TOML"),
        ] {
            let why = why(&path, &format!("{text}{line}\n"));
            assert!(why.contains(word), "{line}: {why}");
        }
        assert!(add_key(&path, "carl").is_err(), "a broken file is not written over");
        let none = text.replace("[\"small\"]", "[]");
        assert!(why(&path, &none).contains("a list of names"));
    }
}
