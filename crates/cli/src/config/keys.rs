//! Which flags of which commands are settings, and what is near to a name that is none.

use std::collections::BTreeSet;

use clap::{Arg, ArgAction};

use crate::args;

use super::PREFIX;

/// Commands whose flags may be set.
pub const COMMANDS: [&str; 6] = ["bench", "eval", "plan", "run", "score", "serve"];
/// Flags that belong to one call.
const OF_A_CALL: [&str; 17] = [
    "compare", "config", "file", "for", "from", "grammar", "help", "ids", "image", "json",
    "kl-base", "machine", "measure", "plot", "raw", "schema", "version",
];
/// Let others in, or say who may come in: never set by a folder's file.
pub const OPENING: [&str; 21] = [
    "allow-host",
    "allow-origin",
    "api-key",
    "audit",
    "fetch-host",
    "fetch-images",
    "host",
    "keys",
    "kv-dir",
    "kv-events",
    "kv-events-replay",
    "kv-events-topic",
    "metrics-key",
    "ollama",
    "otlp",
    "receipts",
    "seal-key",
    "state",
    "state-ttl",
    "tls-cert",
    "tls-key",
];
/// Never shown.
pub const SECRET: [&str; 2] = ["api-key", "metrics-key"];

/// The name of a setting: its flag's, or that of what stands without a flag.
pub fn name(arg: &Arg) -> String {
    arg.get_long().map_or_else(|| arg.get_id().to_string(), str::to_owned)
}

/// Whether a flag of a command may be set elsewhere.
pub fn is_setting(command: &str, arg: &Arg) -> bool {
    // What is served stands without a flag.
    let is_named = arg.get_long().is_some() || (command == "serve" && arg.get_id() == "models");
    let action =
        matches!(arg.get_action(), ArgAction::Set | ArgAction::Append | ArgAction::SetTrue);
    let own = !arg.is_global_set();
    COMMANDS.contains(&command)
        && is_named
        && action
        && own
        && !OF_A_CALL.contains(&name(arg).as_str())
}

/// The settings of a command; with `""` those of all.
pub fn of_command(command: &str) -> BTreeSet<String> {
    let all = args::command();
    let commands = all.get_subcommands().filter(|c| command.is_empty() || c.get_name() == command);
    let flags = commands.flat_map(|c| {
        c.get_arguments().filter(|arg| is_setting(c.get_name(), arg)).map(name).collect::<Vec<_>>()
    });
    flags.collect()
}

/// The settings of all commands.
pub fn flags() -> BTreeSet<String> {
    of_command("")
}

/// The environment variable of a flag.
pub fn variable(flag: &str) -> String {
    format!("{PREFIX}{}", flag.to_ascii_uppercase().replace('-', "_"))
}

/// The name that was probably meant.
pub fn nearest<'a>(name: &str, names: &'a BTreeSet<String>) -> Option<&'a str> {
    let far = |other: &&String| strsim::osa_distance(name, other);
    let near = names.iter().min_by_key(far)?;
    (far(&near) <= 2 && near.len() > 2).then_some(near)
}
