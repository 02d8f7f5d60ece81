//! `config show`: what holds for a command, and where it is set.

use std::io::Write;
use std::path::Path;

use serde_json::json;

use crate::args;
use crate::failure::Failure;

use super::keys::{SECRET, is_setting, name};
use super::{Layers, files};

/// Prints the settings of a command; `user` instead of the user's file.
///
/// # Errors
/// What is wrong with a file.
pub fn show(command: &str, user: Option<&Path>, as_json: bool) -> Result<(), Failure> {
    let layers = Layers::read(user)?;
    let mut all = args::command();
    all.build();
    let of = all.find_subcommand(command);
    let of = of.ok_or_else(|| Failure::new("no such command", command))?;
    let mut rows = Vec::new();
    for arg in of.get_arguments().filter(|arg| is_setting(command, arg)) {
        let flag = name(arg);
        let (values, place) = match layers.find(command, &flag) {
            Some(setting) => (setting.values.clone(), setting.place.to_string()),
            None => {
                let values = arg.get_default_values().iter();
                (values.map(|v| v.to_string_lossy().into_owned()).collect(), "default".into())
            }
        };
        let is_secret = SECRET.contains(&flag.as_str()) && !values.is_empty();
        let shown = if is_secret { vec!["(hidden)".to_owned()] } else { values };
        rows.push((flag, shown, place));
    }
    let mut out = Vec::new();
    let written = match as_json {
        true => rows.iter().try_for_each(|(flag, values, place)| {
            writeln!(out, "{}", json!({"setting": flag, "values": values, "from": place}))
        }),
        false => table(&mut out, &rows, user),
    };
    written.and_then(|()| std::io::stdout().write_all(&out)).map_err(Failure::output)
}

fn table(
    out: &mut Vec<u8>,
    rows: &[(String, Vec<String>, String)],
    user: Option<&Path>,
) -> std::io::Result<()> {
    for (path, _) in files(user) {
        let there = if path.exists() { "" } else { " (not there)" };
        writeln!(out, "# {}{there}", path.display())?;
    }
    let line = |(flag, values, _): &(String, Vec<String>, String)| match values.as_slice() {
        [] => format!("# {flag}"),
        [one] => format!("{flag} = {}", quoted(one)),
        several => {
            let all: Vec<String> = several.iter().map(|v| quoted(v)).collect();
            format!("{flag} = [{}]", all.join(", "))
        }
    };
    let width = rows.iter().map(|row| line(row).chars().count()).max().unwrap_or(0).min(40);
    rows.iter().try_for_each(|row| writeln!(out, "{:width$}  # {}", line(row), row.2))
}

/// As TOML has it.
fn quoted(value: &str) -> String {
    let is_plain = value.parse::<i64>().is_ok() || matches!(value, "true" | "false");
    if is_plain { value.to_owned() } else { toml_edit::Value::from(value).to_string() }
}
