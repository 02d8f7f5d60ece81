//! What keeps the code base in shape: arrows between crates, purity, sizes, names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Which workspace crates each crate may name. Development dependencies are free.
const ARROWS: &[(&str, &[&str])] = &[
    ("quant", &[]),
    ("ir", &["quant"]),
    ("files", &["ir", "quant"]),
    ("models", &["ir", "quant"]),
    ("sched", &["ir"]),
    ("text", &[]),
    ("backend", &["ir", "quant"]),
    ("kvlog", &[]),
    ("store", &["ir"]),
    ("cpu", &["backend", "ir", "quant"]),
    ("engine", &["backend", "files", "ir", "kvlog", "models", "quant", "sched", "text"]),
    ("server", &["engine", "ir", "text"]),
    ("loadgen", &[]),
    (
        "cli",
        &[
            "backend", "cpu", "engine", "files", "ir", "kvlog", "loadgen", "models", "quant",
            "server", "store", "text",
        ],
    ),
];

/// Crates that touch no file, network, thread, clock or environment.
const PURE: &[&str] = &["quant", "ir", "models", "sched", "text"];

/// What pure crates must not name.
const IMPURE: &[&str] =
    &["std::fs", "std::net", "std::thread", "std::time", "std::env", "std::process"];

/// Crates and files with `unsafe`.
const UNSAFE: &[&str] = &["crates/quant/", "crates/cpu/", "crates/files/src/mmap.rs"];

/// Names that say nothing.
const VAGUE: &[&str] = &["utils", "util", "common", "helpers", "helper", "manager", "base"];

/// Longest file and function, lines. Files of tables and tests are excepted.
const MAX_FILE: usize = 800;
const MAX_FUNCTION: usize = 70;

/// Files that are one table, and functions that are one.
const TABLES: &[&str] = &["crates/ir/src/op.rs"];

/// The workspace folder.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// Everything found wrong.
pub fn check(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    arrows(root, &mut found);
    crate::rows::check(root, &mut found);
    for path in sources(root) {
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        file(&name, &text, &mut found);
    }
    found
}

/// Lines of code by crate.
pub fn lines(root: &Path) -> BTreeMap<String, usize> {
    let mut total = BTreeMap::new();
    for path in sources(root) {
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        let parts: Vec<&str> = name.split('/').take(2).collect();
        *total.entry(parts.join("/")).or_default() += text.lines().count();
    }
    total
}

fn arrows(root: &Path, found: &mut Vec<String>) {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root)
        .output();
    let parsed = output.ok().and_then(|o| serde_json::from_slice(&o.stdout).ok());
    let Some(metadata): Option<serde_json::Value> = parsed else {
        found.push("cargo metadata failed".into());
        return;
    };
    let packages = metadata["packages"].as_array().cloned().unwrap_or_default();
    for package in &packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(name) = name.strip_prefix("tokenmill-") else { continue };
        let Some((_, allowed)) = ARROWS.iter().find(|(n, _)| *n == name) else { continue };
        for dep in package["dependencies"].as_array().cloned().unwrap_or_default() {
            let to = dep["name"].as_str().unwrap_or_default();
            let Some(to) = to.strip_prefix("tokenmill-") else { continue };
            if dep["kind"].is_null() && !allowed.contains(&to) {
                found.push(format!("crates/{name}: may not depend on {to}"));
            }
        }
    }
}

fn sources(root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders: Vec<PathBuf> =
        ["crates", "xtask", "tests", "fuzz"].iter().map(|f| root.join(f)).collect();
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.filter_map(Result::ok) {
            let path = entry.path();
            if path.is_dir() && path.file_name().is_none_or(|n| n != "target") {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

fn file(name: &str, text: &str, found: &mut Vec<String>) {
    let test_file = name.contains("/tests/") || name.contains("/benches/");
    if !text.starts_with("//!") {
        found.push(format!("{name}: the first line does not say what the file is (//!)"));
    }
    let stem = name.rsplit('/').next().unwrap_or(name).trim_end_matches(".rs");
    if VAGUE.contains(&stem) {
        found.push(format!("{name}: a name that says nothing"));
    }
    let code_lines = text.split("#[cfg(test)]").next().unwrap_or(text).lines().count();
    if code_lines > MAX_FILE && !TABLES.contains(&name) {
        found.push(format!("{name}: {code_lines} lines, at most {MAX_FILE}"));
    }
    if !test_file && !TABLES.contains(&name) {
        long_functions(name, text, found);
    }
    let crate_name = name.strip_prefix("crates/").and_then(|n| n.split('/').next());
    let production = !test_file && name.contains("/src/");
    for (i, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("#[cfg(test)]") {
            break; // tests stand at the end of a file
        }
        let code = line.split("//").next().unwrap_or(line);
        let at = format!("{name}:{}", i + 1);
        if production && crate_name.is_some_and(|c| PURE.contains(&c)) {
            for word in IMPURE.iter().filter(|w| code.contains(*w)) {
                found.push(format!("{at}: {word} in a pure crate"));
            }
        }
        let is_unsafe =
            code.contains(concat!("unsafe", " {")) || code.contains(concat!("unsafe", " fn"));
        if is_unsafe && production && !UNSAFE.iter().any(|u| name.starts_with(u)) {
            found.push(format!("{at}: unsafe outside its crates"));
        }
        for word in [concat!("todo", "!("), concat!("unimplemented", "!("), "dbg!("] {
            if code.contains(word) && !name.starts_with("xtask/") {
                found.push(format!("{at}: {word})"));
            }
        }
    }
}

/// Functions over the limit, by the indentation of `fn` and its closing brace.
fn long_functions(name: &str, text: &str, found: &mut Vec<String>) {
    let mut open: Option<(usize, usize, String)> = None;
    for (i, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("#[cfg(test)]") {
            break;
        }
        let indent = line.len() - line.trim_start().len();
        let trimmed = line.trim_start();
        match &open {
            None => {
                let is_fn = trimmed.starts_with("fn ")
                    || trimmed.contains(" fn ") && trimmed.starts_with("pub")
                    || trimmed.starts_with(concat!("unsafe", " fn "));
                if is_fn && !trimmed.ends_with(';') && !trimmed.ends_with('}') {
                    open = Some((i, indent, trimmed.to_owned()));
                }
            }
            Some((start, at, head)) => {
                if indent == *at && trimmed.starts_with('}') {
                    let length = i - start + 1;
                    if length > MAX_FUNCTION {
                        let head: String = head.chars().take(60).collect();
                        found.push(format!("{name}:{}: {length} lines: {head}", start + 1));
                    }
                    open = None;
                } else if indent == *at && trimmed.ends_with(';') {
                    open = None; // a declaration over several lines
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_base_is_tidy() {
        let found = check(&root());
        assert!(found.is_empty(), "\n{}", found.join("\n"));
    }

    #[test]
    fn every_crate_has_its_arrows() {
        for folder in std::fs::read_dir(root().join("crates")).unwrap().filter_map(Result::ok) {
            let name = folder.file_name().into_string().unwrap();
            assert!(ARROWS.iter().any(|(n, _)| *n == name), "no row for crates/{name}");
        }
    }

    #[test]
    fn breaches_are_found() {
        let found = |name: &str, text: &str| {
            let mut list = Vec::new();
            file(name, text, &mut list);
            list.len()
        };
        let long = format!("//! x\nfn f() {{\n{}}}\n", "    let a = 1;\n".repeat(70));
        assert_eq!(found("crates/ir/src/a.rs", "//! x\nfn f() {\n}\n"), 0);
        assert_eq!(found("crates/ir/src/a.rs", "fn f() {\n}\n"), 1);
        assert_eq!(found("crates/ir/src/utils.rs", "//! x\n"), 1);
        assert_eq!(found("crates/ir/src/a.rs", "//! x\nuse std::fs;\n"), 1);
        assert_eq!(found("crates/store/src/a.rs", "//! x\nuse std::fs;\n"), 0);
        assert_eq!(found("crates/store/src/a.rs", "//! x\nunsafe { }\n"), 1);
        assert_eq!(found("crates/store/src/a.rs", &long), 1);
        assert_eq!(found("crates/store/src/a.rs", &format!("//! x\n{}", "//\n".repeat(800))), 1);
    }
}
