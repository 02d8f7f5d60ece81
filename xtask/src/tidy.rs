//! What keeps the code base in shape: arrows between crates and between files, purity, sizes, names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Which workspace crates each crate may name. Development dependencies are free.
const ARROWS: &[(&str, &[&str])] = &[
    ("quant", &[]),
    ("ir", &["quant"]),
    ("files", &["ir", "quant"]),
    ("media", &[]),
    ("models", &["ir", "media", "quant"]),
    ("sched", &["ir"]),
    ("text", &[]),
    ("backend", &["ir", "quant"]),
    ("grammar", &[]),
    ("output", &["grammar"]),
    ("kvlog", &[]),
    ("store", &["ir"]),
    ("cpu", &["backend", "ir", "quant"]),
    ("cuda", &["backend", "ir", "quant"]),
    (
        "engine",
        &[
            "backend", "files", "grammar", "ir", "kvlog", "media", "models", "output", "quant",
            "sched", "text",
        ],
    ),
    ("chat", &["engine", "ir", "output", "text"]),
    ("server", &["chat", "engine", "ir", "media", "output", "text"]),
    ("loadgen", &[]),
    (
        "tokenmill",
        &["backend", "chat", "cpu", "cuda", "engine", "ir", "media", "output", "store", "text"],
    ),
    ("capi", &["tokenmill"]),
    ("python", &["tokenmill"]),
    (
        "cli",
        &[
            "backend",
            "cpu",
            "cuda",
            "engine",
            "files",
            "ir",
            "kvlog",
            "loadgen",
            "media",
            "models",
            "output",
            "quant",
            "server",
            "store",
            "text",
            "tokenmill",
        ],
    ),
];

/// Files that name a device crate, outside of these crates and of tests.
const NAMES_DEVICES: &[&str] = &["crates/cli/src/devices.rs", "crates/tokenmill/src/device.rs"];

/// The device crates, as code names them.
const DEVICES: &[&str] = &["tokenmill_cpu::", "tokenmill_cuda::"];

/// Crates that touch no file, network, thread, clock or environment.
const PURE: &[&str] =
    &["quant", "ir", "media", "models", "sched", "text", "grammar", "output", "chat"];

/// What pure crates must not name.
const IMPURE: &[&str] =
    &["std::fs", "std::net", "std::thread", "std::time", "std::env", "std::process"];

/// Crates and files with `unsafe`.
const UNSAFE: &[&str] = &[
    "crates/capi/",
    "crates/quant/",
    "crates/cpu/",
    "crates/cuda/src/sys.rs",
    "crates/files/src/mmap.rs",
    "tests/cuda/",
];

/// Names that say nothing.
const VAGUE: &[&str] = &["utils", "util", "common", "helpers", "helper", "manager", "base"];

/// Longest file, lines, its tests among them. Files of tables are excepted.
const MAX_FILE: usize = 800;
/// Longest function, lines.
const MAX_FUNCTION: usize = 70;
/// Longest function of a test: the table of cases is often in it.
const MAX_TEST_FUNCTION: usize = 100;

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
    crate::book::check(root, &mut found);
    let named = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).ok()?;
        Some((path.strip_prefix(root).unwrap_or(&path).display().to_string(), text))
    };
    let files: Vec<(String, String)> = sources(root).into_iter().filter_map(named).collect();
    for (name, text) in &files {
        file(name, text, &mut found);
    }
    crate::circles::check(root, &files, &mut found);
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
        let name = name.strip_prefix("tokenmill-").unwrap_or(name);
        let Some((_, allowed)) = ARROWS.iter().find(|(n, _)| *n == name) else { continue };
        for dep in package["dependencies"].as_array().cloned().unwrap_or_default() {
            let to = dep["name"].as_str().unwrap_or_default();
            if !to.starts_with("tokenmill") {
                continue;
            }
            let to = to.strip_prefix("tokenmill-").unwrap_or(to);
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
    let lines: Vec<&str> = text.lines().collect();
    let mut of_test = test_items(&lines);
    if test_file || stem == "tests" || stem.ends_with("_tests") {
        of_test.fill(true);
    }
    if !TABLES.contains(&name) {
        if lines.len() > MAX_FILE {
            found.push(format!("{name}: {} lines, at most {MAX_FILE}", lines.len()));
        }
        long_functions(name, &lines, &of_test, found);
    }
    for (i, line) in lines.iter().enumerate() {
        let at = format!("{name}:{}", i + 1);
        words(&at, line, of_test[i], found);
        if names_tests(line) && !of_test[i] {
            found.push(format!("{at}: tests that are compiled into the crate (#[cfg(test)])"));
        }
    }
}

/// Whether a line is a module whose file is taken for one of tests.
fn names_tests(line: &str) -> bool {
    let name = line.trim().strip_suffix(';').and_then(|l| l.rsplit_once("mod "));
    name.is_some_and(|(_, name)| name == "tests" || name.ends_with("_tests"))
}

/// What a line must not say.
fn words(at: &str, line: &str, of_test: bool, found: &mut Vec<String>) {
    let code = line.split("//").next().unwrap_or(line);
    for word in [concat!("todo", "!("), concat!("unimplemented", "!("), concat!("dbg", "!(")] {
        if code.contains(word) {
            found.push(format!("{at}: {word})"));
        }
    }
    if of_test || !at.contains("/src/") {
        return;
    }
    let crate_name = at.strip_prefix("crates/").and_then(|n| n.split('/').next());
    if crate_name.is_some_and(|c| PURE.contains(&c)) {
        // (A list could hide one of them on a line of its own.)
        for word in IMPURE.iter().chain(&["std::{"]).filter(|w| code.contains(*w)) {
            found.push(format!("{at}: {word} in a pure crate"));
        }
    }
    let is_device = |name: &str| ["cpu", "cuda"].contains(&name);
    let may_name = NAMES_DEVICES.iter().any(|file| at.starts_with(file));
    if !may_name && crate_name.is_some_and(|name| !is_device(name)) {
        for word in DEVICES.iter().filter(|word| code.contains(*word)) {
            found.push(format!("{at}: {word} outside the files that name devices"));
        }
    }
    let is_unsafe = [" {", " fn", " impl"].iter().any(|w| code.contains(&format!("unsafe{w}")));
    if is_unsafe && !UNSAFE.iter().any(|u| at.starts_with(u)) {
        found.push(format!("{at}: unsafe outside its crates"));
    }
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Which lines belong to an item under `#[cfg(test)]`, by the indentation of its end.
fn test_items(lines: &[&str]) -> Vec<bool> {
    let mut of_test = vec![false; lines.len()];
    let mut from = 0;
    while let Some(start) = (from..lines.len()).find(|&i| is_test_attribute(lines[i])) {
        let at = indent(lines[start]);
        let is_end = |line: &str| {
            let text = line.trim();
            let is_item = !text.is_empty() && !text.starts_with("#[") && !text.starts_with("//");
            indent(line) == at && is_item && text.ends_with(['}', ';', ','])
        };
        let end = (start + 1..lines.len()).find(|&i| is_end(lines[i])).unwrap_or(lines.len() - 1);
        of_test[start..=end].fill(true);
        from = end + 1;
    }
    of_test
}

fn is_test_attribute(line: &str) -> bool {
    line.trim_start().starts_with("#[cfg(test)]")
}

/// Functions over the limit, by the indentation of `fn` and its closing brace.
fn long_functions(name: &str, lines: &[&str], of_test: &[bool], found: &mut Vec<String>) {
    let mut open: Option<usize> = None;
    for (i, line) in lines.iter().enumerate() {
        let text = line.trim_start();
        let Some(start) = open else {
            let goes_on = !text.ends_with(';') && !text.ends_with('}');
            open = (is_function(text) && goes_on).then_some(i);
            continue;
        };
        if indent(line) != indent(lines[start]) {
            continue;
        }
        if text.starts_with('}') {
            let length = i - start + 1;
            let most = if of_test[start] { MAX_TEST_FUNCTION } else { MAX_FUNCTION };
            if length > most {
                let head: String = lines[start].trim_start().chars().take(60).collect();
                found.push(format!("{name}:{}: {length} lines, at most {most}: {head}", start + 1));
            }
            open = None;
        } else if text.ends_with(';') {
            open = None; // a declaration over several lines
        }
    }
}

/// Whether a line begins a function.
fn is_function(line: &str) -> bool {
    let before = ["const", "async", "unsafe", "extern", "default"];
    let is_before = |w: &&str| w.starts_with("pub") || w.starts_with('"') || before.contains(w);
    // `pub(in a::b)` is two words.
    let line = line.strip_prefix("pub(in ").and_then(|l| l.split_once(')')).map_or(line, |l| l.1);
    line.split_whitespace().find(|word| !is_before(word)) == Some("fn")
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
        let lines = |count: usize| "    let a = 1;\n".repeat(count);
        let long = format!("//! x\nfn f() {{\n{}}}\n", lines(70));
        assert_eq!(found("crates/ir/src/a.rs", "//! x\nfn f() {\n}\n"), 0);
        assert_eq!(found("crates/ir/src/a.rs", "fn f() {\n}\n"), 1);
        assert_eq!(found("crates/ir/src/utils.rs", "//! x\n"), 1);
        assert_eq!(found("crates/ir/src/a.rs", "//! x\nuse std::fs;\n"), 1);
        assert_eq!(found("crates/store/src/a.rs", "//! x\nuse std::fs;\n"), 0);
        assert_eq!(found("crates/store/src/a.rs", "//! x\nunsafe { }\n"), 1);
        let named = "//! x\nuse tokenmill_cpu::CpuDevice;\n";
        assert_eq!(found("crates/engine/src/a.rs", named), 1);
        assert_eq!(found("crates/tokenmill/src/device.rs", named), 0);
        assert_eq!(found("crates/store/src/a.rs", &long), 1);
        assert_eq!(found("crates/store/src/a.rs", &format!("//! x\n{}", "//\n".repeat(800))), 1);
        assert_eq!(found("crates/ir/src/a.rs", "//! x\nuse std::{\n    fs,\n};\n"), 1);
        assert_eq!(found("crates/store/src/a.rs", "//! x\nunsafe impl A for B {}\n"), 1);
        for before in ["pub const", "pub(crate) async", "unsafe", "extern \"C\"", "pub(in a::b)"] {
            let long = long.replace("\nfn", &format!("\n{before} fn"));
            assert_eq!(found("crates/cpu/src/a.rs", &long), 1, "{before}");
        }
    }

    #[test]
    fn tests_hide_nothing() {
        let found = |name: &str, text: &str| {
            let mut list = Vec::new();
            file(name, text, &mut list);
            list.len()
        };
        let of_lines = |count: usize| {
            format!("    #[test]\n    fn f() {{\n{}    }}\n", "        a();\n".repeat(count))
        };
        let with = |test: &str, after: &str| {
            format!("//! x\n#[cfg(test)]\nmod tests {{\n{test}}}\n{after}")
        };
        let after = "fn g() {\n    std::fs::read(a);\n    d\u{62}g!(a);\n}\n";
        let long = format!("fn g() {{\n{}}}\n", "    a();\n".repeat(70));
        let name = "crates/ir/src/a.rs";
        assert_eq!(found(name, &with(&of_lines(98), "")), 0);
        assert_eq!(found(name, &with(&of_lines(99), "")), 1, "a long test");
        assert_eq!(found(name, &with(&of_lines(97).repeat(8), "")), 1, "a file is counted whole");
        assert_eq!(found(name, &with("    use std::fs;\n", "")), 0);
        assert_eq!(found(name, &with("", after)), 2, "code behind tests");
        assert_eq!(found(name, &with("", &long)), 1, "a function behind tests");
        assert_eq!(found(name, &format!("//! x\n#[cfg(test)]\nmod tests;\n\n{after}")), 2);
        assert_eq!(found(name, &format!("//! x\n#[cfg(test)]\nuse std::fs;\n{long}")), 1);
        assert_eq!(found("crates/ir/src/tests.rs", &format!("//! x\n{after}")), 1, "of the two");
        for file in ["tests", "a_tests"] {
            assert_eq!(found(name, &format!("//! x\npub mod {file};\n")), 1, "no tests at all");
            assert_eq!(found(name, &format!("//! x\n#[cfg(test)]\nmod {file};\n")), 0);
        }
        assert_eq!(found("tests/sim/tests/a.rs", &of_lines(99)), 2, "no first line, a long test");
    }
}
