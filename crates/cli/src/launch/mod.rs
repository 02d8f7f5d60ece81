//! `launch`: a coding agent that asks the server here. Its settings are written, it is started, and
//! when it ends they are put back.

mod agents;
pub mod args;
mod json;
mod kept;
mod toml;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use serde_json::{Value, json as value};

use crate::failure::{Failure, tell};
use crate::remote::Remote;
use agents::{Folders, Form, Setup, Told, setup};
use args::Launch;
use kept::{Kept, State};

/// First prompts of agents take so many tokens, seen in runs of them.
const LEAST_CONTEXT: u64 = 32_000;

/// Runs the command.
pub fn launch(args: &Launch) -> Result<(), Failure> {
    let folders = folders()?;
    if args.restore {
        return restore(args, folders);
    }
    let remote = Remote::of(&args.running)?;
    let (model, context) = model(&remote, args.model.as_deref())?;
    if context < LEAST_CONTEXT {
        tell!(
            "note: {model} has a context of {context} tokens; first prompts of agents take up to \
             20 000 of them: tokenmill serve --ctx 32k"
        );
    }
    let Remote { url, key, .. } = remote;
    let setup = setup(args.agent, &Told { url, model, context, key, folders });
    if args.print {
        let text = printed(&setup, &args.args)?;
        return std::io::stdout().write_all(text.as_bytes()).map_err(Failure::output);
    }
    let Some((path, form)) = &setup.file else {
        if args.write {
            let detail = "it takes its settings from variables and arguments";
            return Err(Failure::new("there is no file to write", detail).fix("--print"));
        }
        return replaced(&setup, &args.args);
    };
    let place = setup.program.and_then(found);
    if let (Some(program), None, false) = (setup.program, &place, args.write) {
        return Err(absent(program).fix("install it; --write writes its settings all the same"));
    }
    written(path, form, setup.is_secret)?;
    let back = format!("tokenmill launch {} --restore", name(args));
    match (setup.program, place) {
        (Some(_), Some(place)) if !args.write => {
            let ended = ended(&setup, &place, &args.args);
            put_back(path, form)?;
            status(ended?)
        }
        (Some(program), None) => {
            tell!("{program} is not installed; they stay until {back}");
            Ok(())
        }
        _ => {
            let how = started(&setup, &args.args);
            tell!("they stay until {back}");
            if !how.is_empty() {
                tell!("start it so:\n{}", how.trim_end());
            }
            Ok(())
        }
    }
}

/// The settings as they were, when the agent has ended.
fn put_back(path: &Path, form: &Form) -> Result<(), Failure> {
    let kept = Kept::at(path);
    if matches!(form, Form::Own(_)) {
        return kept.remove();
    }
    match kept.state()? {
        State::Changed(now) => {
            if !take_out(&kept, form, now.as_deref())? {
                tell!("{}", kept.changed());
            }
            Ok(())
        }
        _ => kept.restore(),
    }
}

/// Of a file that was changed since: puts ours back as it was before, and keeps the rest; false
/// where that cannot be done. (Codex writes which folders are trusted into its own settings.)
fn take_out(kept: &Kept, form: &Form, now: Option<&[u8]>) -> Result<bool, Failure> {
    let (Form::Toml(members), Some(now)) = (form, now) else { return Ok(false) };
    let (own, written) = kept.both()?;
    let text = |bytes| std::str::from_utf8(bytes).ok();
    let texts = (text(now), text(own.as_deref().unwrap_or_default()), text(&written));
    let (Some(now), Some(own), Some(written)) = texts else { return Ok(false) };
    match toml::unset(now, own, written, members) {
        Some(new) => {
            kept.settle(new.as_bytes())?;
            tell!("what it holds of ours is taken out; what else was changed in it stays");
            Ok(true)
        }
        None => Ok(false),
    }
}

fn name(args: &Launch) -> String {
    use clap::ValueEnum;
    args.agent.to_possible_value().map_or(String::new(), |v| v.get_name().to_owned())
}

fn restore(args: &Launch, folders: Folders) -> Result<(), Failure> {
    // Where its file is does not depend on what it is told.
    let (url, model) = (String::new(), "none".to_owned());
    let setup = setup(args.agent, &Told { url, model, context: 0, key: None, folders });
    let Some((path, form)) = setup.file else {
        tell!("{} has no settings of ours in a file", name(args));
        return Ok(());
    };
    let kept = Kept::at(&path);
    if matches!(form, Form::Own(_)) {
        return kept.remove();
    }
    match kept.state()? {
        State::Own(_) => tell!("{} holds nothing of ours", path.display()),
        State::Changed(now) if take_out(&kept, &form, now.as_deref())? => {}
        State::Changed(_) => return Err(kept.changed()),
        State::Written => {
            kept.restore()?;
            tell!("{} is as it was", path.display());
        }
    }
    Ok(())
}

fn folders() -> Result<Folders, Failure> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = set(if cfg!(windows) { "USERPROFILE" } else { "HOME" });
    let home = home.ok_or_else(|| {
        Failure::new("there is no place for an agent's settings", "HOME is not set")
    })?;
    let config = set("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config"));
    let codex = set("CODEX_HOME").unwrap_or_else(|| home.join(".codex"));
    Ok(Folders { home, config, codex })
}

/// The model that is meant, by the name that it has in the API, and its context, tokens. It is
/// loaded if need be: the agent would ask for it next.
fn model(remote: &Remote, asked: Option<&str>) -> Result<(String, u64), Failure> {
    let listed = remote.get("/v1/models")?;
    let all = listed["data"].as_array().cloned().unwrap_or_default();
    let id = |one: &Value| one["id"].as_str().unwrap_or_default().to_owned();
    let is_called = |one: &&Value, name: &str| {
        let aliases = one["aliases"].as_array().into_iter().flatten();
        one["id"] == name || aliases.into_iter().any(|alias| alias == name)
    };
    let there: Vec<&Value> = all.iter().filter(|one| one["status"]["value"] == "loaded").collect();
    let found = match (asked, all.as_slice(), there.as_slice()) {
        (Some(name), ..) => all.iter().find(|one| is_called(one, name)),
        (None, [one], _) => Some(one),
        (None, _, [one]) => Some(*one),
        _ => None,
    };
    let Some(found) = found else {
        let names: Vec<String> = all.iter().map(id).collect();
        let what = asked.map_or("several models are served".to_owned(), |name| {
            format!("{} does not serve {name}", remote.url)
        });
        let served = format!("served: {}", names.join(", "));
        return Err(Failure::new(what, served).fix("--model NAME"));
    };
    let (name, mut found) = (asked.map_or_else(|| id(found), str::to_owned), found.clone());
    if found["max_model_len"].is_null() {
        tell!("loading {name}");
        remote.post("/models/load", &value!({ "model": name }))?;
        found = remote.get(&format!("/v1/models/{name}"))?;
    }
    match found["max_model_len"].as_u64() {
        Some(context) if !found["defaults"].is_null() => Ok((name, context)),
        Some(_) => Err(Failure::new(format!("{name} is for no agent"), "it writes no text")),
        None => Err(Failure::new(
            format!("{} does not say how long a context {name} has", remote.url),
            "max_model_len is missing from /v1/models",
        )),
    }
}

/// Writes the settings, unless they say what they are to say already.
fn written(path: &Path, form: &Form, is_secret: bool) -> Result<(), Failure> {
    let kept = Kept::at(path);
    if let Form::Own(text) = form {
        return kept.replace(text.as_bytes());
    }
    let edit = |own: Option<&[u8]>| edited(path, form, own.unwrap_or_default());
    let own = match kept.state()? {
        State::Own(own) => own,
        State::Changed(now) if edit(now.as_deref())? == now.clone().unwrap_or_default() => {
            tell!("{} says so already", path.display());
            return Ok(());
        }
        State::Changed(_) => return Err(kept.changed()),
        State::Written => {
            // Of a launch that still runs, that was broken off, or of --write.
            kept.restore()?;
            match kept.state()? {
                State::Own(own) => own,
                _ => return Err(kept.changed()),
            }
        }
    };
    let new = edit(own.as_deref())?;
    if own.as_deref() == Some(&new) {
        tell!("{} says so already", path.display());
        return Ok(());
    }
    kept.write(own.as_deref(), &new, is_secret)?;
    tell!("{} is written; what it was is kept beside it", path.display());
    Ok(())
}

/// The content of a settings file with ours set.
fn edited(path: &Path, form: &Form, own: &[u8]) -> Result<Vec<u8>, Failure> {
    let cannot = |why: &dyn std::fmt::Display| {
        Failure::new(format!("cannot edit {}", path.display()), why.to_string().trim_end())
            .fix("--print, and edit it by hand")
    };
    let text = std::str::from_utf8(own).map_err(|e| cannot(&e))?;
    let edited = match form {
        Form::Toml(members) => toml::set(text, members),
        Form::Json(members) => json::set(text, members),
        Form::Own(text) => Ok(text.clone()),
    };
    edited.map(String::into_bytes).map_err(|why| cannot(&why))
}

/// Settings, variables and arguments as a user would type them.
fn printed(setup: &Setup, more: &[OsString]) -> Result<String, Failure> {
    let mut text = String::new();
    if let Some((path, form)) = &setup.file {
        let ours = edited(path, form, b"")?;
        let ours = String::from_utf8_lossy(&ours).into_owned();
        let _ = write!(text, "# {}\n{}\n", path.display(), ours.trim_end());
    }
    Ok(text + &started(setup, more))
}

/// Variables and command; nothing where there are none.
fn started(setup: &Setup, more: &[OsString]) -> String {
    let quoted = |word: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
        match !word.is_empty() && word.chars().all(is_plain) {
            true => word.to_owned(),
            false => format!("'{}'", word.replace('\'', "'\\''")),
        }
    };
    let mut text = String::new();
    for (name, what) in &setup.env {
        let _ = writeln!(text, "export {name}={}", quoted(what));
    }
    if let Some(program) = setup.program {
        let words = arguments(setup, more).into_iter();
        let words = words.map(|word| quoted(&word.to_string_lossy()));
        let line: Vec<String> = std::iter::once(program.to_owned()).chain(words).collect();
        let _ = writeln!(text, "{}", line.join(" "));
    }
    text
}

fn arguments(setup: &Setup, more: &[OsString]) -> Vec<OsString> {
    let own = setup.args.iter().map(OsString::from);
    let alone = setup.alone.iter().filter(|_| more.is_empty()).map(OsString::from);
    own.chain(alone).chain(more.iter().cloned()).collect()
}

/// A program of the user's path.
fn found(program: &str) -> Option<PathBuf> {
    let endings: &[&str] = if cfg!(windows) { &[".exe", ".cmd"] } else { &[""] };
    let path = std::env::var_os("PATH")?;
    let names = || endings.iter().map(|ending| format!("{program}{ending}"));
    let all = std::env::split_paths(&path).flat_map(|f| names().map(move |name| f.join(name)));
    all.into_iter().find(|place| is_program(place))
}

fn is_program(place: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let about = std::fs::metadata(place);
        about.is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
    }
    #[cfg(not(unix))]
    {
        place.is_file()
    }
}

fn command(setup: &Setup, program: &Path, more: &[OsString]) -> Command {
    let mut command = Command::new(program);
    let env: BTreeMap<&str, &String> = setup.env.iter().map(|(name, what)| (*name, what)).collect();
    command.args(arguments(setup, more)).envs(env);
    command
}

fn absent(program: &str) -> Failure {
    Failure::new(format!("there is no program {program}"), "PATH has none")
}

/// The agent in the place of this program: nothing is left to do when it ends.
fn replaced(setup: &Setup, more: &[OsString]) -> Result<(), Failure> {
    let program = setup.program.unwrap_or_default();
    let Some(place) = found(program) else {
        let fix = "install it; --print shows what it would be started with";
        return Err(absent(program).fix(fix));
    };
    let mut command = command(setup, &place, more);
    #[cfg(unix)]
    {
        let error = std::os::unix::process::CommandExt::exec(&mut command);
        Err(Failure::new(format!("cannot start {program}"), error))
    }
    #[cfg(not(unix))]
    {
        let ended = command.status();
        status(ended.map_err(|e| Failure::new(format!("cannot start {program}"), e))?)
    }
}

/// The agent until it ends. Signals of the terminal are for it alone.
fn ended(setup: &Setup, program: &Path, more: &[OsString]) -> Result<ExitStatus, Failure> {
    let cannot =
        |e: &dyn std::fmt::Display| Failure::new(format!("cannot start {}", program.display()), e);
    let mut command = command(setup, program, more);
    #[cfg(unix)]
    for signal in
        [signal_hook::consts::SIGINT, signal_hook::consts::SIGQUIT, signal_hook::consts::SIGHUP]
    {
        // (A program that is started has them as they were: only what is ignored is inherited.)
        signal_hook::flag::register(signal, Default::default()).map_err(|e| cannot(&e))?;
    }
    command.status().map_err(|e| cannot(&e))
}

fn status(status: ExitStatus) -> Result<(), Failure> {
    match status.code() {
        Some(0) => Ok(()),
        code => Err(Failure::Ended(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))),
    }
}
