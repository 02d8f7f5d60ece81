//! Tips under an error of the command line, where clap has none or a wrong one: a word that is no
//! command, `-m MODEL` as other programs have it, a question without quotes.

use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::keys::nearest;

/// Commands of other programs of this kind that run a model.
const RUNS: [&str; 4] = ["chat", "generate", "complete", "ask"];

/// The error of a line with its tip.
pub fn with_tip(mut error: clap::Error, command: &clap::Command, line: &[OsString]) -> clap::Error {
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => word.clone(),
        _ => String::new(),
    };
    let first = line.get(1).and_then(|word| word.to_str()).unwrap_or_default();
    let tip = match error.kind() {
        // (Not that of a command's own commands.)
        ErrorKind::InvalidSubcommand if word(ContextKind::InvalidSubcommand) == first => {
            if error.get(ContextKind::SuggestedSubcommand).is_some() {
                return error;
            }
            no_command(command, first)
        }
        ErrorKind::UnknownArgument
            if ["-m", "--model"].contains(&word(ContextKind::InvalidArg).as_str()) =>
        {
            let of = command.find_subcommand(first);
            let by_place = of.and_then(|of| {
                of.get_positionals()
                    .find(|arg| ["model", "models"].contains(&arg.get_id().as_str()))
            });
            if by_place.is_none() {
                return error;
            }
            format!("a model stands without a flag: tokenmill {first} MODEL")
        }
        ErrorKind::UnknownArgument
            if first == "run" && !word(ContextKind::InvalidArg).starts_with('-') =>
        {
            "a question of several words stands in quotes: tokenmill run MODEL \"...\"".to_owned()
        }
        _ => return error,
    };
    error.remove(ContextKind::SuggestedArg);
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
    error
}

fn no_command(command: &clap::Command, word: &str) -> String {
    let names = command.get_subcommands().flat_map(|one| one.get_name_and_visible_aliases());
    let names = names.map(str::to_owned).collect();
    match nearest(word, &names) {
        Some(near) => format!("a similar subcommand exists: '{near}'"),
        None if RUNS.contains(&word) => "a model answers, or chats, by: tokenmill run".to_owned(),
        None => format!("if that is a model: tokenmill run {word}"),
    }
}
