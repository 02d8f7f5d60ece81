//! Planted faults: each is put into a copy of the sources, one at a time, and the test that it names
//! must fail. A fault that no test sees is a promise that nobody holds anybody to.
//!
//! The tests are first built and run as they are, in the tree itself. Then the sources are copied
//! and what was built is linked beside the copy, so that a fault costs what depends on its crate.

mod copy;
pub mod faults;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

pub use copy::Twin;
use faults::Fault;

/// The list of faults.
const LIST: &str = "xtask/mutants.txt";
/// Longest build or test, seconds.
const PATIENCE_S: &str = "900";

const USAGE: &str = "usage: cargo xtask mutants [NAME...] | --sample N | --list";

/// What became of a fault.
enum End {
    /// The test failed.
    Seen,
    /// The test passed.
    Unseen,
    /// It shows nothing: what is wrong with it.
    Broken(String),
}

struct Tried<'a> {
    fault: &'a Fault,
    end: End,
    build_s: f64,
    test_s: f64,
}

/// Does what the arguments ask; whether every fault was seen.
pub fn run(root: &Path, args: &[String]) -> Result<bool, String> {
    let text = std::fs::read_to_string(root.join(LIST)).map_err(|e| format!("{LIST}: {e}"))?;
    let all = faults::parse(&text)?;
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let chosen = match words[..] {
        ["--list"] => {
            for fault in &all {
                let slow = if fault.slow { " (not in samples)" } else { "" };
                println!("{:<36} {}{slow}\n{:<36} {}", fault.name, fault.breaks, "", fault.test);
            }
            return faults::check(root, &all).map(|()| true);
        }
        ["--sample", n] => {
            let n = n.parse().map_err(|_| format!("{n} is no number; {USAGE}"))?;
            faults::sample(&all, &commit(root)?, n)
        }
        [] => all.iter().collect(),
        _ => words.iter().map(|w| named(&all, w)).collect::<Result<_, _>>()?,
    };
    faults::check(root, &all)?;
    let start = Instant::now();
    let sound = unmutated(root, &chosen)?;
    println!("{:6.1} s  the tests as they are", start.elapsed().as_secs_f64());
    let copy = Twin::of(root, &target(root)?)?;
    let mut tried = Vec::new();
    for fault in chosen {
        let one = match &sound[fault.test.as_str()] {
            Ok(()) => attempt(&copy, fault)?,
            Err(why) => Tried { fault, end: End::Broken(why.clone()), build_s: 0.0, test_s: 0.0 },
        };
        println!("{:6.1} s  {}", one.build_s + one.test_s, line(&one));
        tried.push(one);
    }
    copy.remove();
    Ok(table(&tried))
}

fn named<'a>(all: &'a [Fault], name: &str) -> Result<&'a Fault, String> {
    let found = all.iter().find(|f| f.name == name);
    found.ok_or_else(|| format!("no fault is called {name}; {USAGE}"))
}

/// The latest commit, so that each tries others.
pub fn commit(root: &Path) -> Result<String, String> {
    let out = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root).output();
    let out = out.map_err(|e| format!("git rev-parse: {e}"))?;
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// Where the tree's artefacts are.
pub fn target(root: &Path) -> Result<PathBuf, String> {
    let folder = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".into());
    std::path::absolute(root.join(folder)).map_err(|e| format!("the target folder: {e}"))
}

/// Builds the tests of the chosen faults in the tree, and runs them: which pass, or what is wrong.
fn unmutated<'a>(
    root: &Path,
    chosen: &[&'a Fault],
) -> Result<BTreeMap<&'a str, Result<(), String>>, String> {
    let mut sound = BTreeMap::new();
    for test in chosen.iter().map(|f| f.test.as_str()) {
        if sound.contains_key(test) {
            continue;
        }
        let built = cargo_test(root, None, &format!("{test} --no-run"))?;
        let end = match built.status.success() {
            false => Err(format!("{test} does not compile:\n{}", tail(&built))),
            true => match judge(&cargo_test(root, None, test)?) {
                End::Unseen => Ok(()),
                End::Seen => Err(format!("{test} fails without any fault")),
                End::Broken(why) => Err(why),
            },
        };
        sound.insert(test, end);
    }
    Ok(sound)
}

/// Puts the fault into the copy, runs its test, and takes it out again.
fn attempt<'a>(copy: &Twin, fault: &'a Fault) -> Result<Tried<'a>, String> {
    copy.link()?;
    copy.apply(fault)?;
    let start = Instant::now();
    let out = cargo_test(&copy.tree, Some(&copy.target), &format!("{} --no-run", fault.test))?;
    let build_s = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let end = if out.status.success() {
        judge(&cargo_test(&copy.tree, Some(&copy.target), &fault.test)?)
    } else {
        End::Broken(format!("it does not compile:\n{}", tail(&out)))
    };
    let test_s = start.elapsed().as_secs_f64();
    copy.undo(fault)?;
    Ok(Tried { fault, end, build_s, test_s })
}

/// What a run of the test says of the fault.
fn judge(out: &Output) -> End {
    match out.status.code() {
        Some(0) if count(out, " passed;") == 0 => End::Broken("it names no test".into()),
        Some(0) => End::Unseen,
        Some(124 | 137) => End::Broken(format!("the test did not end in {PATIENCE_S} s")),
        _ if count(out, " failed;") > 0 => End::Seen,
        _ => End::Broken(format!("the test neither passed nor failed:\n{}", tail(out))),
    }
}

/// `cargo test`, its words as one line: an argument never holds a space.
fn cargo_test(tree: &Path, target: Option<&Path>, words: &str) -> Result<Output, String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", PATIENCE_S, &cargo, "test", "--offline"]);
    if !words.starts_with("-p ") {
        command.arg("--workspace");
    }
    command.args(words.split(' ')).current_dir(tree);
    if let Some(target) = target {
        command.env("CARGO_TARGET_DIR", target);
    }
    command.output().map_err(|e| format!("timeout (of coreutils) {cargo}: {e}"))
}

/// Sum of the numbers before a word in the summaries of tests.
fn count(out: &Output, word: &str) -> u64 {
    let text = String::from_utf8_lossy(&out.stdout);
    let summaries = text.lines().filter(|l| l.starts_with("test result: "));
    let number = |l: &str| l.split(word).next()?.rsplit(' ').next()?.parse::<u64>().ok();
    summaries.filter_map(number).sum()
}

/// The last lines of an output.
fn tail(out: &Output) -> String {
    let text =
        format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

fn line(tried: &Tried<'_>) -> String {
    let Tried { fault, end, .. } = tried;
    match end {
        End::Seen => format!("{}: seen by {}", fault.name, fault.test),
        End::Unseen => format!("{}: NOT SEEN by {}", fault.name, fault.test),
        End::Broken(why) => format!("{}: {why}", fault.name),
    }
}

/// Prints what became of all; whether each was seen.
fn table(tried: &[Tried<'_>]) -> bool {
    println!("\n{:<36} {:<8} {:>7} {:>6}  test", "fault", "", "build s", "run s");
    for t in tried {
        let word = match t.end {
            End::Seen => "seen",
            End::Unseen => "NOT SEEN",
            End::Broken(_) => "BROKEN",
        };
        let Tried { fault, build_s, test_s, .. } = t;
        println!("{:<36} {word:<8} {build_s:7.1} {test_s:6.1}  {}", fault.name, fault.test);
    }
    let seen = tried.iter().filter(|t| matches!(t.end, End::Seen)).count();
    println!("{seen} of {} seen", tried.len());
    seen == tried.len()
}
