//! Files of a crate that import each other in a circle, parents and their children excepted: none can be read or moved
//! without the others.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Sources without circles.
const ROOTS: &[&str] = &[
    "crates/backend/src",
    "crates/cpu/src",
    "crates/ir/src",
    "crates/quant/src",
    "tests/device/src",
    "tests/golden/src",
    "xtask/src",
];

/// A module as its path within the crate.
type Module = Vec<String>;

/// Says of every root which files form circles.
pub fn check(root: &Path, files: &[(String, String)], found: &mut Vec<String>) {
    for folder in ROOTS.iter().filter(|folder| root.join(folder).is_dir()) {
        let own = files.iter().filter_map(|(name, text)| {
            let inner = name.strip_prefix(folder)?.strip_prefix('/')?.strip_suffix(".rs")?;
            Some((module(inner), text.as_str()))
        });
        if let Some(circle) = circle(&imports(&own.collect())) {
            let names: Vec<String> = circle.iter().map(|m| m.join("/")).collect();
            found.push(format!("{folder}: files import each other: {}", names.join(" → ")));
        }
    }
}

/// The module of a file.
fn module(inner: &str) -> Module {
    let mut parts: Module = inner.split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        parts.pop();
    }
    parts
}

/// Which modules each imports, but for those that it is inside or that are inside it. Tests may import all.
fn imports(modules: &BTreeMap<Module, &str>) -> BTreeMap<Module, BTreeSet<Module>> {
    let mut all = BTreeMap::new();
    for (own, text) in modules {
        let is_test = own.last().is_some_and(|last| last == "tests");
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
        let tokens = if is_test { Vec::new() } else { tokens(text) };
        let to = paths(&tokens).into_iter().filter_map(|path| resolve(modules, own, &path));
        let apart = to.filter(|m| !m.starts_with(own) && !own.starts_with(m));
        all.insert(own.clone(), apart.collect());
    }
    all
}

/// The module that a path leads into.
fn resolve(modules: &BTreeMap<Module, &str>, own: &Module, path: &[String]) -> Option<Module> {
    let mut at = match path.first()?.as_str() {
        "crate" => Module::new(),
        _ => own.clone(),
    };
    for part in path {
        match part.as_str() {
            "crate" | "self" => {}
            "super" => {
                at.pop()?;
            }
            _ => {
                at.push(part.clone());
                if !modules.contains_key(&at) {
                    at.pop();
                    break;
                }
            }
        }
    }
    Some(at)
}

/// Words and signs of a text without its comments; `::` is one.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    for line in text.lines().map(|line| line.split("//").next().unwrap_or(line)) {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let mut rest = line;
        while let Some(first) = rest.chars().next() {
            let len = match first {
                c if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
                ':' if rest.starts_with("::") => 2,
                c => c.len_utf8(),
            };
            let (token, after) = rest.split_at(len);
            tokens.extend((!token.trim().is_empty()).then_some(token));
            rest = after;
        }
    }
    tokens
}

/// Every path, those of lists each whole.
fn paths(tokens: &[&str]) -> Vec<Vec<String>> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        at = path(tokens, at, &[], &mut found).max(at + 1);
    }
    found
}

/// Reads the path at a token, behind `before`; where it ends.
fn path(tokens: &[&str], mut at: usize, before: &[String], found: &mut Vec<Vec<String>>) -> usize {
    let mut path = before.to_vec();
    loop {
        match tokens.get(at) {
            Some(&"{") if !path.is_empty() => {
                at += 1;
                while at < tokens.len() && tokens[at] != "}" {
                    at = self::path(tokens, at, &path, found).max(at + 1);
                }
                return at + 1;
            }
            Some(word) if word.starts_with(|c: char| c.is_alphabetic() || c == '_') => {
                path.push((*word).to_owned());
            }
            _ => {
                found.extend((path.len() > before.len()).then_some(path));
                return at;
            }
        }
        if tokens.get(at + 1) != Some(&"::") {
            found.push(path);
            return at + 1;
        }
        at += 2;
    }
}

/// A circle, its first module again at its end.
fn circle(imports: &BTreeMap<Module, BTreeSet<Module>>) -> Option<Vec<Module>> {
    let mut done = BTreeSet::new();
    imports.keys().find_map(|from| walk(imports, from, &mut Vec::new(), &mut done))
}

fn walk(
    imports: &BTreeMap<Module, BTreeSet<Module>>,
    at: &Module,
    way: &mut Vec<Module>,
    done: &mut BTreeSet<Module>,
) -> Option<Vec<Module>> {
    if let Some(start) = way.iter().position(|m| m == at) {
        return Some([&way[start..], std::slice::from_ref(at)].concat());
    }
    if done.contains(at) {
        return None;
    }
    way.push(at.clone());
    let found = imports.get(at).into_iter().flatten().find_map(|to| walk(imports, to, way, done));
    way.pop();
    done.insert(at.clone());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Option<String> {
        let modules = files.iter().map(|(name, text)| (module(name), *text)).collect();
        let names = |circle: Vec<Module>| circle.iter().map(|m| m.join("/")).collect::<Vec<_>>();
        circle(&imports(&modules)).map(|circle| names(circle).join(" "))
    }

    #[test]
    fn circles_are_seen() {
        let two =
            |b: &'static str| found(&[("lib", ""), ("a", "use super::b::{self, X};"), ("b", b)]);
        assert_eq!(two("struct X;"), None);
        for b in [
            "use crate::a::Y;",
            "use crate::{\n    a::{Y, Z},\n};",
            "fn f() { crate::a::f() }",
            "use super::a;",
        ] {
            assert_eq!(two(b).as_deref(), Some("a b a"), "{b}");
        }
        assert_eq!(two("// use crate::a::Y;\nuse std::a::b;"), None);
        assert_eq!(two("#[cfg(test)]\nmod tests {\n    use crate::a::Y;\n}\n"), None);
        let three = [("a/mod", "mod b; mod c;\nuse b::X;"), ("a/b", "use super::c;"), ("a/c", "")];
        assert_eq!(found(&three), None, "a parent and its children");
        let three = [("a/mod", ""), ("a/b", "use super::c::X;"), ("a/c", "use super::b::Y;")];
        assert_eq!(found(&three).as_deref(), Some("a/b a/c a/b"));
        let deep = [
            ("a", "use crate::b::c::X;"),
            ("b", "mod c;"),
            ("b/c", "use crate::d;"),
            ("d", "use crate::a;"),
        ];
        assert_eq!(found(&deep).as_deref(), Some("a b/c d a"));
    }
}
