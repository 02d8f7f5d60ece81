//! Instructions of hot kernels, counted by valgrind: a figure that repeats on any machine, noisy or
//! not, so that a slower kernel is seen before it is timed.
//!
//! The counter knows nothing beyond AVX2, so that path stands for all: what changes in the
//! templates they share shows there. It also tells the program that it runs on one fixed processor,
//! so the C library takes the same paths everywhere.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// Counts of the last accepted state.
const BASELINE: &str = "bench/instructions.txt";
/// A count may be this part above its baseline: counts repeat to a ten-thousandth, but a change elsewhere
/// in a crate can move what the compiler inlines.
const TOLERANCE: f64 = 0.02;

/// Counts and compares; the report, or what is wrong.
pub fn check(root: &Path) -> Result<String, String> {
    if !has_avx2() {
        return Ok("NOT CHECKED: this machine has no AVX2\n".to_owned());
    }
    if !runs("valgrind") {
        return Ok("NOT CHECKED: valgrind is not installed\n".to_owned());
    }
    let Ok(baseline) = std::fs::read_to_string(root.join(BASELINE)) else {
        return Ok(format!(
            "NOT CHECKED: no {BASELINE}; write it: cargo xtask instructions write\n"
        ));
    };
    let (compiler, expected) = parse(&baseline)?;
    let found = count(root)?;
    let report = compare(&expected, &found);
    let compiler_now = rustc()?;
    if compiler != compiler_now {
        // Another compiler makes other code: nothing to hold against anybody.
        let (text, _) = report;
        return Ok(format!("{text}NOT CHECKED: counted with {compiler}, this is {compiler_now}\n"));
    }
    match report {
        (text, true) => Ok(text),
        (text, false) => Err(format!(
            "{text}more instructions than {BASELINE} allows; if that is meant: \
             cargo xtask instructions write"
        )),
    }
}

/// Counts and makes that the baseline.
pub fn write(root: &Path) -> Result<String, String> {
    let mut text = format!("{}\n", rustc()?);
    for (name, count) in count(root)? {
        let _ = writeln!(text, "{count:>12} {name}");
    }
    std::fs::write(root.join(BASELINE), &text).map_err(|e| format!("{BASELINE}: {e}"))?;
    Ok(text)
}

type Counts = Vec<(String, u64)>;

fn count(root: &Path) -> Result<Counts, String> {
    let target = crate::target(root);
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let build = ["build", "--release", "-p", "tokenmill-cpu", "--example", "instructions"];
    run(Command::new(cargo).args(build).current_dir(root))?;
    let folder = target.join("instructions");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
    let names = run(Command::new("valgrind")
        .args(["-q", "--tool=callgrind", "--toggle-collect=instructions::measured"])
        .arg("--dump-after=instructions::measured")
        .arg(format!("--callgrind-out-file={}", folder.join("out").display()))
        .arg(target.join("release/examples/instructions")))?;
    let count_of = |(i, name): (usize, &str)| {
        // One file a call, numbered from 1.
        let file = folder.join(format!("out.{}", i + 1));
        let text =
            std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        let total = text.lines().find_map(|l| l.strip_prefix("summary: "));
        let total = total.and_then(|t| t.trim().parse().ok());
        Ok((name.to_owned(), total.ok_or_else(|| format!("{}: no total", file.display()))?))
    };
    names.lines().enumerate().map(count_of).collect()
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

fn runs(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success())
}

/// What a command prints, or why it failed.
fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn rustc() -> Result<String, String> {
    Ok(run(Command::new("rustc").arg("--version"))?.trim().to_owned())
}

/// The compiler, then a count and a name a line.
fn parse(text: &str) -> Result<(String, Counts), String> {
    let mut lines = text.lines();
    let compiler = lines.next().unwrap_or_default().to_owned();
    let counts = lines.map(|line| {
        let (count, name) = line.trim().split_once(' ')?;
        Some((name.to_owned(), count.parse().ok()?))
    });
    let counts: Option<Counts> = counts.collect();
    Ok((compiler, counts.ok_or(format!("{BASELINE}: not a count and a name a line"))?))
}

/// A line a case, and whether all are within the tolerance. A case on one side alone is not.
fn compare(expected: &Counts, found: &Counts) -> (String, bool) {
    let (mut text, mut good) = (String::new(), true);
    for (name, count) in found {
        let before = expected.iter().find(|e| e.0 == *name).map(|e| e.1);
        let within = before.is_some_and(|b| *count as f64 <= b as f64 * (1.0 + TOLERANCE));
        let change = before.map(|b| *count as f64 / b as f64 - 1.0);
        good &= within;
        let change = change.map_or("new".to_owned(), |c| format!("{:+.2} %", 100.0 * c));
        let lower = before.is_some_and(|b| (*count as f64) < b as f64 * (1.0 - TOLERANCE));
        let mark = match (within, lower) {
            (false, _) => "  <-- above",
            (_, true) => "  lower: write a new baseline",
            _ => "",
        };
        let _ = writeln!(text, "{count:>12} {change:>9} {name}{mark}");
    }
    for (name, _) in expected.iter().filter(|e| !found.iter().any(|f| f.0 == e.0)) {
        let _ = writeln!(text, "{:>12} {:>9} {name}", "gone", "");
        good = false;
    }
    (text, good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_held_to_their_baseline() {
        let (compiler, expected) = parse("rustc 1\n   1000 a b\n  2000 c\n").expect("a baseline");
        assert_eq!((compiler.as_str(), expected.len()), ("rustc 1", 2));
        let of = |a: u64, c: u64| vec![("a b".to_owned(), a), ("c".to_owned(), c)];
        for (found, good) in [
            (of(1000, 2000), true),
            (of(1020, 1500), true),
            (of(1021, 2000), false),
            (of(1200, 2000), false),
            (of(500, 2400), false),
            (of(1000, 2000)[..1].to_vec(), false),
            ([of(1000, 2000), vec![("d".to_owned(), 1)]].concat(), false),
        ] {
            assert_eq!(compare(&expected, &found).1, good, "{found:?}");
        }
        assert!(parse("rustc 1\nx y\n").is_err());
    }
}
