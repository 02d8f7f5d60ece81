//! Settings: what the command line does not say is looked up in the environment (`TOKENMILL_PORT`
//! for `--port`), then in the project's file (`tokenmill.toml` in the folder where the command
//! starts), the user's (`tokenmill/config.toml` under `$XDG_CONFIG_HOME`) and the system's
//! (`/etc/tokenmill/config.toml`). The first that says something wins.

mod file;
mod keys;
mod show;
mod tips;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, FromArgMatches};

use crate::args::{self, Args};
use crate::bundle;
use crate::failure::{Failure, tell};
use keys::{is_setting, nearest, variable};
pub use show::show;

/// Begins the names of environment variables.
const PREFIX: &str = "TOKENMILL_";
/// The project's file, in the folder where a command starts.
const PROJECT: &str = "tokenmill.toml";

/// Where a value was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// An environment variable.
    Environment(String),
    /// A line of a file.
    File(PathBuf, usize),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Environment(name) => write!(f, "{name} in the environment"),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
        }
    }
}

/// What one place says of one flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// As on the command line, one or several; of a switch `true` or `false`.
    values: Vec<String>,
    place: Place,
}

/// What one place says: by command, or for all that have the flag (`""`); then by flag.
type Layer = BTreeMap<String, BTreeMap<String, Setting>>;

/// All places, the one that wins first.
#[derive(Debug, Default)]
pub struct Layers(Vec<Layer>);

impl Layers {
    /// Those of this process and machine; `user` instead of the user's file.
    fn read(user: Option<&Path>) -> Result<Self, Failure> {
        if let Some(missing) = user.filter(|path| !path.exists()) {
            return Err(Failure::new("there is no such file of settings", missing.display()));
        }
        let mut layers = vec![environment(std::env::vars_os())];
        for (path, may_open) in files(user) {
            layers.extend(file::read(&path, may_open)?);
        }
        Ok(Self(layers))
    }

    /// What holds for a flag of a command: a command's own table comes before what is for all.
    fn find(&self, command: &str, flag: &str) -> Option<&Setting> {
        let in_layer = |layer: &'_ Layer| {
            let found = [command, ""]
                .into_iter()
                .find(|name| layer.get(*name).is_some_and(|flags| flags.contains_key(flag)))?;
            Some(found.to_owned())
        };
        self.0.iter().find_map(|layer| layer.get(&in_layer(layer)?)?.get(flag))
    }
}

/// The files there may be, and whether what they say may let others in: a folder that came from
/// elsewhere must not.
fn files(user: Option<&Path>) -> Vec<(PathBuf, bool)> {
    let mut all = vec![(PathBuf::from(PROJECT), false)];
    let user = user.map(Path::to_path_buf).or_else(|| Some(folder()?.join("config.toml")));
    all.extend(user.map(|path| (path, true)));
    if cfg!(unix) {
        all.push((PathBuf::from("/etc/tokenmill/config.toml"), true));
    }
    all
}

/// The user's folder of settings.
pub fn folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = match cfg!(windows) {
        true => set("APPDATA"),
        false => set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config"))),
    };
    Some(base?.join("tokenmill"))
}

/// What the environment says; an empty variable is none. One that is nearly a setting is told.
fn environment(variables: impl Iterator<Item = (OsString, OsString)>) -> Layer {
    let names = keys::flags();
    let mut said = BTreeMap::new();
    for (name, value) in variables {
        let (Some(name), Some(value)) = (name.to_str(), value.to_str()) else { continue };
        let Some(rest) = name.strip_prefix(PREFIX).filter(|_| !value.is_empty()) else { continue };
        let flag = rest.to_ascii_lowercase().replace('_', "-");
        if names.contains(&flag) {
            let place = Place::Environment(name.to_owned());
            said.insert(flag, Setting { values: vec![value.to_owned()], place });
        } else if let Some(near) = nearest(&flag, &names) {
            tell!("{name} is no setting: {} is", variable(near));
        }
    }
    BTreeMap::from([(String::new(), said)])
}

/// Why a command line could not be read.
#[derive(Debug)]
pub enum Unread {
    /// By the command line itself; also help and version.
    Line(clap::Error),
    /// By a setting.
    Setting(Failure),
}

/// The command line of this process, with what it does not say.
///
/// # Errors
/// What is wrong with it, or with a setting and where that stands.
pub fn parse() -> Result<Args, Unread> {
    let line = std::env::args_os().collect();
    let line = match bundle::own().map_err(Unread::Setting)? {
        Some(own) => own.complete(line),
        None => line,
    };
    complete(line, Layers::read)
}

/// That command line, completed.
fn complete(
    line: Vec<OsString>,
    read: impl FnOnce(Option<&Path>) -> Result<Layers, Failure>,
) -> Result<Args, Unread> {
    let mut command = args::command();
    command.build();
    let begun = command.clone().ignore_errors(true).try_get_matches_from(&line);
    let begun = begun.map_err(Unread::Line)?;
    let (line, added) = match begun.subcommand() {
        Some((name, matches)) if matches.subcommand_name().is_none() => {
            let named = begun.get_one::<PathBuf>("config").map(PathBuf::as_path);
            let layers = read(named).map_err(Unread::Setting)?;
            add(&command, name, matches, line, &layers).map_err(Unread::Setting)?
        }
        _ => (line, Vec::new()),
    };
    let matches = args::command().try_get_matches_from(&line);
    let args = matches.and_then(|matches| Args::from_arg_matches(&matches));
    args.map_err(|error| blame(tips::with_tip(error, &command, &line), &added))
}

/// What was added to a command line: flags, and where each was set.
type Added = Vec<(String, Place)>;

/// The line with the settings of its command behind the command's name.
fn add(
    command: &clap::Command,
    name: &str,
    matches: &ArgMatches,
    mut line: Vec<OsString>,
    layers: &Layers,
) -> Result<(Vec<OsString>, Added), Failure> {
    let Some(of) = command.find_subcommand(name) else { return Ok((line, Vec::new())) };
    let said =
        |arg: &Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let (mut words, mut added) = (Vec::new(), Vec::new());
    for arg in of.get_arguments().filter(|arg| is_setting(name, arg)) {
        let overruled = of.get_arg_conflicts_with(arg).into_iter().any(said)
            || of.get_arguments().filter(|other| said(other)).any(|other| {
                of.get_arg_conflicts_with(other).into_iter().any(|one| one.get_id() == arg.get_id())
            });
        let flag = keys::name(arg);
        let Some(setting) = layers.find(name, &flag).filter(|_| !said(arg) && !overruled) else {
            continue;
        };
        words.extend(spelled(arg, &flag, setting)?);
        added.push((flag, setting.place.clone()));
    }
    let is_name = |word: &OsString| {
        word.to_str().is_some_and(|word| of.get_name_and_visible_aliases().contains(&word))
    };
    let at = line.iter().skip(1).position(is_name).map_or(line.len(), |at| at + 2);
    line.splice(at..at, words.into_iter().map(OsString::from));
    Ok((line, added))
}

/// A setting as words of a command line.
fn spelled(arg: &Arg, flag: &str, setting: &Setting) -> Result<Vec<String>, Failure> {
    let word = |value: &String| match arg.get_long() {
        Some(long) => format!("--{long}={value}"),
        None => value.clone(),
    };
    match arg.get_action() {
        ArgAction::SetTrue => match setting.values.as_slice() {
            [one] if one == "true" || one == "1" => Ok(vec![format!("--{flag}")]),
            [one] if one == "false" || one == "0" => Ok(Vec::new()),
            other => Err(Failure::new(
                format!("{}: {flag} is a switch", setting.place),
                format!("it is true or false, not {}", other.join(", ")),
            )),
        },
        // The environment has one text for a list.
        ArgAction::Append => Ok(match setting.place {
            // (An alias has commas of its own.)
            Place::Environment(_) if flag != "alias" => {
                let parts = setting.values.iter().flat_map(|value| value.split(','));
                parts.map(|part| word(&part.trim().to_owned())).collect()
            }
            _ => setting.values.iter().map(word).collect(),
        }),
        _ if setting.values.len() > 1 => Err(Failure::new(
            format!("{}: {flag} is one value", setting.place),
            format!("{} are given", setting.values.len()),
        )),
        _ => Ok(setting.values.iter().map(word).collect()),
    }
}

/// An error of the command line, with the place of the setting that it is about.
fn blame(error: clap::Error, added: &[(String, Place)]) -> Unread {
    use clap::error::{ContextKind, ContextValue};
    let about = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(about)) => about.clone(),
        _ => return Unread::Line(error),
    };
    let flag = about.trim_start_matches("--").split([' ', '=']).next().unwrap_or_default();
    let Some((flag, place)) = added.iter().find(|(name, _)| name == flag) else {
        return Unread::Line(error);
    };
    let told = error.to_string();
    let why = told.lines().next().unwrap_or_default();
    let why = why.strip_prefix("error: ").unwrap_or(why);
    Unread::Setting(Failure::new(format!("{place}: the setting {flag} cannot be used"), why))
}

#[cfg(test)]
mod tests;
