//! Toys: patches that each add one thing (an architecture, a format, a device, a dialect), so that the list of
//! files which ARCHITECTURE.md gives for it stays true. They are put into a copy of the sources,
//! touch nothing else, and the copy's tests hold for what they add.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::mutants::faults::hash;
use crate::mutants::{Twin, commit, target};

/// What is added, and what cargo must do then. Each has `tests/toys/NAME.patch` and a row in the page's
/// table. The format comes last: everything depends on formats.
const THINGS: &[(&str, &[&str])] = &[
    ("architecture", &["test --workspace --test architectures"]),
    ("dialect", &["test --workspace --test toy"]),
    ("device", &["test --package tokenmill-toy", "test --workspace --no-run --bin tokenmill"]),
    ("format", &["test --package tokenmill-quant", "check --package tokenmill-cpu"]),
];
/// The page, and what its table of files stands below.
const PAGE: &str = "ARCHITECTURE.md";
const HEADING: &str = "| adding | touches |";
/// What the toys are called where the table says NAME.
const NAME: &str = "toy";

/// Checks the patches against the page and puts them in one on top of the other, with what cargo must do
/// (of a sample: for one of them, which follows from the commit); what is wrong.
pub fn run(root: &Path, sample: bool) -> Result<(), String> {
    let one = match sample {
        true => Some(hash(&commit(root)?) as usize % THINGS.len()),
        false => None,
    };
    let page = std::fs::read_to_string(root.join(PAGE)).map_err(|e| format!("{PAGE}: {e}"))?;
    let copy = Twin::of(root, &target(root)?)?;
    copy.link()?;
    for (at, (thing, jobs)) in THINGS.iter().enumerate() {
        let patch = root.join(format!("tests/toys/{thing}.patch"));
        let text = std::fs::read(&patch).map_err(|e| format!("{}: {e}", patch.display()))?;
        let files = touched(&String::from_utf8_lossy(&text));
        let strange = strange(&files, &allowed(&page, thing)?);
        if files.is_empty() || !strange.is_empty() {
            let strange = strange.join(", ");
            return Err(format!("{PAGE} does not say that adding a {thing} touches {strange}"));
        }
        // (In the copy, which no repository holds, paths are those below it.)
        let done = Command::new("git")
            .args(["apply", "--whitespace=nowarn"])
            .arg(&patch)
            .env("GIT_CEILING_DIRECTORIES", copy.tree.parent().unwrap_or(root))
            .current_dir(&copy.tree)
            .output()
            .map_err(|e| format!("git apply: {e}"))?;
        if !done.status.success() {
            let why = String::from_utf8_lossy(&done.stderr);
            return Err(format!("{thing}.patch must follow the sources: {why}"));
        }
        println!("{thing}: {} files, as {PAGE} says", files.len());
        if one.is_none_or(|one| one == at) {
            jobs.iter().try_for_each(|words| cargo(&copy, words))?;
            println!("{thing}: cargo {}", jobs.join(", cargo "));
        }
    }
    cargo(&copy, "run --package xtask -- tidy")?;
    copy.remove();
    Ok(())
}

/// Runs cargo in the copy.
fn cargo(copy: &Twin, words: &str) -> Result<(), String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let status = Command::new(cargo)
        .args(["--offline", "--quiet"])
        .args(words.split(' '))
        .env("CARGO_TARGET_DIR", &copy.target)
        .env("GOLDEN", NAME)
        .current_dir(&copy.tree)
        .stdout(Stdio::null())
        .status();
    match status.map_err(|e| format!("cargo: {e}"))?.success() {
        true => Ok(()),
        false => Err(format!("with the toys, cargo {words} fails")),
    }
}

/// The files of a patch.
fn touched(patch: &str) -> Vec<String> {
    let heads = patch.lines().filter_map(|l| l.strip_prefix("diff --git a/"));
    heads.filter_map(|l| l.split_once(" b/")).map(|(name, _)| name.to_owned()).collect()
}

/// What the page's table says of a thing: files, and folders that end in `/`.
fn allowed(page: &str, thing: &str) -> Result<Vec<String>, String> {
    let row = page.split(HEADING).nth(1).and_then(|table| {
        table.lines().find(|l| l.starts_with(&format!("| {thing} |"))).map(str::to_owned)
    });
    let row = row.ok_or_else(|| format!("{PAGE}: no row of {thing} below '{HEADING}'"))?;
    Ok(row.split('`').skip(1).step_by(2).map(|name| name.replace("NAME", NAME)).collect())
}

/// Those of the files that the page does not name.
fn strange(files: &[String], allowed: &[String]) -> Vec<String> {
    let named = |file: &&String| {
        allowed.iter().any(|a| *file == a || (a.ends_with('/') && file.starts_with(a)))
    };
    files.iter().filter(|file| !named(file)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_the_page_does_not_name_are_strange() {
        let page = "| adding | touches |\n|---|---|\n| format | `q/NAME.rs`, `q/mod.rs`, `v/` |\n";
        let allowed = allowed(page, "format").unwrap();
        assert_eq!(allowed, ["q/toy.rs", "q/mod.rs", "v/"]);
        assert!(super::allowed(page, "device").is_err());
        let patch = "Words.\n\ndiff --git a/q/toy.rs b/q/toy.rs\n+x\ndiff --git a/v/a b/v/a\n";
        let files = touched(patch);
        assert_eq!(files, ["q/toy.rs", "v/a"]);
        assert!(strange(&files, &allowed).is_empty());
        assert_eq!(strange(&["w/a".into(), "q".into()], &allowed), ["w/a", "q"]);
    }
}
