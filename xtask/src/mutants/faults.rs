//! The list of planted faults, as text: what each breaks, where, and which test must see it.
//!
//! ```text
//! fault: name
//! breaks: what no longer holds, in a sentence
//! file: crates/x/src/y.rs
//! test: --test target name_of_the_test
//! - the old text, verbatim behind the first two characters of each line
//! + the new text
//! ```
//!
//! The old text stands exactly once in the file. A line `slow` keeps a fault out of samples. Empty
//! lines part faults; lines with `#` say something.

use std::path::Path;

/// One planted fault.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Fault {
    pub name: String,
    /// What no longer holds.
    pub breaks: String,
    /// The file, from the root on.
    pub file: String,
    /// Words for `cargo test --workspace`, or for one crate (`-p`, which builds some of what it
    /// depends on with other features); the last is the test's name.
    pub test: String,
    /// Too long for a sample.
    pub slow: bool,
    pub old: String,
    pub new: String,
}

/// The faults of a list.
///
/// # Errors
/// A fault that lacks something, or has the name of another.
pub fn parse(text: &str) -> Result<Vec<Fault>, String> {
    let mut faults: Vec<Fault> = Vec::new();
    for part in text.split("\n\n") {
        let mut fault = Fault::default();
        let lines = part.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty());
        let (mut old, mut new) = (Vec::new(), Vec::new());
        for line in lines {
            match line.split_once(' ') {
                Some(("-", rest)) => old.push(rest),
                Some(("+", rest)) => new.push(rest),
                Some(("fault:", rest)) => fault.name = rest.to_owned(),
                Some(("breaks:", rest)) => fault.breaks = rest.to_owned(),
                Some(("file:", rest)) => fault.file = rest.to_owned(),
                Some(("test:", rest)) => fault.test = rest.to_owned(),
                None if line == "slow" => fault.slow = true,
                None if line == "+" => new.push(""),
                _ => return Err(format!("{}: what is {line:?}?", fault.name)),
            }
        }
        (fault.old, fault.new) = (old.join("\n"), new.join("\n"));
        if fault == Fault::default() {
            continue;
        }
        let Fault { name, breaks, file, test, old, .. } = &fault;
        if [name, breaks, file, test, old].iter().any(|s| s.is_empty()) {
            return Err(format!("a fault lacks its name, sentence, file, test or text: {fault:?}"));
        }
        if faults.iter().any(|f| f.name == *name) {
            return Err(format!("two faults are called {name}"));
        }
        faults.push(fault);
    }
    Ok(faults)
}

/// What is wrong with faults whose text is not where it was, or whose test has gone.
pub fn check(root: &Path, faults: &[Fault]) -> Result<(), String> {
    let mut found = Vec::new();
    for fault in faults {
        let source = std::fs::read_to_string(root.join(&fault.file));
        match source {
            Err(error) => found.push(format!("{}: {}: {error}", fault.name, fault.file)),
            Ok(source) => {
                let count = source.matches(&fault.old).count();
                if count != 1 {
                    let Fault { name, file, old, .. } = fault;
                    found.push(format!(
                        "{name}: its text stands {count} times in {file}, not once:\n{old}\n\
                         the fault follows the code: change its text in {}",
                        super::LIST
                    ));
                }
            }
        }
    }
    if found.is_empty() { Ok(()) } else { Err(found.join("\n")) }
}

/// `n` faults that follow from the commit alone; none that is slow.
pub fn sample<'a>(faults: &'a [Fault], commit: &str, n: usize) -> Vec<&'a Fault> {
    let mut quick: Vec<&Fault> = faults.iter().filter(|f| !f.slow).collect();
    quick.sort_by_key(|f| hash(&format!("{commit} {}", f.name)));
    quick.truncate(n);
    quick
}

/// FNV-1a, its bits mixed once more (its last bytes hardly reach the high ones): the same with every
/// compiler.
pub fn hash(text: &str) -> u64 {
    let step = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    let mixed = (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 32
}

/// The file with the fault in it.
pub fn mutated(source: &str, fault: &Fault) -> String {
    source.replacen(&fault.old, &fault.new, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# words\n\nfault: one\nbreaks: a thing\nfile: a.rs\ntest: --test t f\n\
                        - if a {\n-     b\n+ if c {\n+     b\n\n\nfault: two\nbreaks: it\nslow\n\
                        file: b.rs\ntest: --test u g\n- x\n+\n";

    #[test]
    fn a_list_is_read() {
        let faults = parse(TEXT).unwrap();
        let names: Vec<_> = faults.iter().map(|f| (f.name.as_str(), f.slow)).collect();
        assert_eq!(names, [("one", false), ("two", true)]);
        assert_eq!(mutated("z\nif a {\n    b\n}", &faults[0]), "z\nif c {\n    b\n}");
        assert_eq!(mutated("axb", &faults[1]), "ab");
        assert!(parse("fault: one\nbreaks: it\n").is_err(), "no file");
        assert!(parse("fault: one\nbroken: it\n").is_err(), "an unknown word");
        assert!(parse(&format!("{TEXT}\n{TEXT}")).is_err(), "the same names");
    }

    #[test]
    fn samples_follow_from_the_commit() {
        let faults: Vec<Fault> = (0..20)
            .map(|i| Fault { name: i.to_string(), slow: i % 4 == 0, ..Fault::default() })
            .collect();
        let of = |commit: &str| sample(&faults, commit, 2);
        assert_eq!(of("a"), of("a"));
        assert_eq!(of("a").len(), 2);
        let tried: std::collections::HashSet<_> =
            (0..60).flat_map(|c: u32| of(&c.to_string())).map(|f| f.name.clone()).collect();
        assert_eq!(tried.len(), 15, "all that are quick, in time");
    }

    #[test]
    fn every_fault_has_its_place() {
        let root = crate::tidy::root();
        let faults = parse(&std::fs::read_to_string(root.join(crate::mutants::LIST)).unwrap());
        check(&root, &faults.unwrap()).unwrap();
    }
}
