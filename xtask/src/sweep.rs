//! `cargo xtask sweep`: a random model of each kind at one size, and how much of this machine's limits it uses: no kind
//! may be slow in silence.
//!
//! A kind is a recording of tests/golden, whose tensors are made wider ([`kinds`]); their layers stay few, since
//! parts of the limit do not depend on how many there are. Its weights are bf16, and 4 bits with a scale and a bias for 64 columns
//! (MLX's). A stored type is the matrices of one Llama in each type that GGUF has ([`types`]).

mod kinds;
mod shapes;
mod types;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use kinds::{KINDS, Kind};
use serde_json::Value;

/// What is asked for.
struct Asked {
    /// Rows by name; none: all.
    rows: Vec<String>,
    /// The program that is measured.
    program: PathBuf,
    /// Lengths of prompts, as `bench -p` takes them.
    prompts: String,
    /// Tokens in the cache before the second decoding.
    depth: String,
}

/// How to call it.
const USAGE: &str = "cargo xtask sweep [ROW…] [--program PATH] [--prompts 512,2048,8192] [--depth 4096]\n\
                     rows: kinds, 'kinds', stored types such as q4_0, 'types'; none: all";

/// Runs the rows that are asked for, and prints them as they come.
pub fn run(root: &Path, args: &[String]) -> Result<String, String> {
    let asked = asked(root, args)?;
    let (of_kinds, of_types) = chosen(&asked.rows)?;
    let scratch = crate::target(root).join("sweep");
    let done = rows(root, &asked, &scratch, &of_kinds, &of_types);
    let _ = std::fs::remove_dir_all(&scratch);
    done
}

fn asked(root: &Path, args: &[String]) -> Result<Asked, String> {
    let program = crate::target(root).join("release/tokenmill");
    let (prompts, depth) = ("512,2048,8192".to_owned(), "4096".to_owned());
    let mut asked = Asked { rows: Vec::new(), program, prompts, depth };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().cloned().ok_or_else(|| format!("{arg}: no value\n{USAGE}"));
        match arg.as_str() {
            "--program" => asked.program = value()?.into(),
            "--prompts" => asked.prompts = value()?,
            "--depth" => asked.depth = value()?,
            row if !row.starts_with('-') => asked.rows.push(row.to_owned()),
            _ => return Err(USAGE.to_owned()),
        }
    }
    if !asked.program.exists() {
        let program = asked.program.display();
        return Err(format!("no {program}: cargo build --release, or add --program PATH"));
    }
    Ok(asked)
}

/// The kinds and stored types of those names.
fn chosen(
    names: &[String],
) -> Result<(Vec<&'static Kind>, Vec<tokenmill_quant::FormatId>), String> {
    let (mut of_kinds, mut of_types) = (Vec::new(), Vec::new());
    let all = ["kinds".to_owned(), "types".to_owned()];
    for name in if names.is_empty() { &all[..] } else { names } {
        match (name.as_str(), KINDS.iter().find(|kind| kind.golden == name)) {
            ("kinds", _) => of_kinds.extend(KINDS),
            ("types", _) => of_types.extend(types::all()),
            (_, Some(kind)) => of_kinds.push(kind),
            (name, None) => match types::all().find(|f| f.name() == name) {
                Some(format) => of_types.push(format),
                None => {
                    let known: Vec<&str> = KINDS.iter().map(|kind| kind.golden).collect();
                    return Err(format!("no row {name}; kinds: {}\n{USAGE}", known.join(", ")));
                }
            },
        }
    }
    Ok((of_kinds, of_types))
}

fn rows(
    root: &Path,
    asked: &Asked,
    scratch: &Path,
    of_kinds: &[&Kind],
    of_types: &[tokenmill_quant::FormatId],
) -> Result<String, String> {
    let prompts: Vec<&str> = asked.prompts.split(',').collect();
    let decodes = ["0", &asked.depth].map(|depth| format!("decode at {depth}"));
    let mut columns: Vec<String> = prompts.iter().map(|p| format!("prompt {p}")).collect();
    columns.extend(decodes);
    if !of_kinds.is_empty() {
        println!(
            "% of the limit of operations in prompts, of main memory's reads in decoding; tok/s beside it\n"
        );
        println!(
            "| kind | weights | {} |\n|{}",
            columns.join(" | "),
            "---|".repeat(2 + columns.len())
        );
    }
    for kind in of_kinds {
        for weights in ["bf16", "4 bits"] {
            let made = shapes::write(root, kind, weights == "4 bits", scratch);
            let cells = made.and_then(|()| cells(asked, scratch));
            let cells = match cells {
                Ok(cells) => cells.join(" | "),
                Err(problem) => problem.lines().next().unwrap_or_default().to_owned(),
            };
            println!("| {} | {weights} | {cells} |", kind.golden);
        }
    }
    if !of_types.is_empty() {
        let columns = columns.join(" | ");
        println!(
            "\n| stored type | file MB | own bits over file | {columns} |\n|{}",
            "---|".repeat(3 + prompts.len() + 2)
        );
    }
    for format in of_types {
        let path = scratch.join(format!("{}.gguf", format.name()));
        let row = types::write(*format, scratch, &path).and_then(|bytes| {
            let over = weight_bytes(&asked.program, &path)? as f64 / bytes as f64;
            let cells = cells(asked, &path)?;
            Ok(format!("{:.0} | {over:.2} | {}", bytes as f64 / 1e6, cells.join(" | ")))
        });
        let row =
            row.unwrap_or_else(|problem| problem.lines().next().unwrap_or_default().to_owned());
        println!("| {} | {row} |", format.name());
        let _ = std::fs::remove_file(&path);
    }
    Ok(String::new())
}

/// The figures of a model, in the order of the columns.
fn cells(asked: &Asked, model: &Path) -> Result<Vec<String>, String> {
    let deepest = asked.prompts.split(',').chain([asked.depth.as_str()]);
    let context = deepest.filter_map(|n| n.parse::<u32>().ok()).max().unwrap_or(0) + 64;
    let context = context.next_multiple_of(32).to_string();
    let bench = |more: &[&str]| {
        let common = ["--json", "-r", "2", "--ctx", &context];
        let words: Vec<&OsStr> = common.iter().chain(more).map(OsStr::new).collect();
        let args = [&[OsStr::new("bench"), model.as_os_str()][..], &words].concat();
        printed(&asked.program, &args)
    };
    let mut found = HashMap::new();
    let first = bench(&["-p", &asked.prompts, "-n", "32"])?;
    let deep = bench(&["-p", "0", "-n", "32", "--depth", &asked.depth])?;
    for line in first.lines().chain(deep.lines()) {
        let line: Value = serde_json::from_str(line).map_err(|e| format!("bench --json: {e}"))?;
        if let Some(test) = line["test"].as_str() {
            found.insert(test.to_owned(), line.clone());
        }
    }
    let names = asked.prompts.split(',').map(|p| format!("pp{p}"));
    let names = names.chain(["tg32".to_owned(), format!("tg32@{}", asked.depth)]);
    let cells =
        names.map(|name| found.get(&name).map_or("–".to_owned(), |line| cell(&name, line)));
    Ok(cells.collect())
}

/// The part of the limit and the speed of a test.
fn cell(name: &str, line: &Value) -> String {
    let number = |key: &str| line[key].as_f64();
    let (done, limit) = match name.starts_with("pp") {
        true => (number("tops"), number("limit_tops")),
        false => (number("gb_s"), number("limit_gb_s")),
    };
    let mut cell = match (done, limit) {
        (Some(done), Some(limit)) if limit > 0.0 => format!("{:.0} %", 100.0 * done / limit),
        _ => "–".to_owned(),
    };
    if let Some(speed) = line["tok_s"]["median"].as_f64() {
        let _ = write!(cell, " ({speed:.0})");
    }
    cell
}

/// What the program prints.
fn printed(program: &Path, args: &[&OsStr]) -> Result<String, String> {
    let output = Command::new(program).args(args).output();
    let output = output.map_err(|e| format!("{}: {e}", program.display()))?;
    if !output.status.success() {
        let problem = String::from_utf8_lossy(&output.stderr).into_owned();
        let last = problem.lines().find(|line| line.contains("error")).or(problem.lines().last());
        return Err(last.unwrap_or("it failed").to_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Bytes that the weights of a model take in their own bits.
fn weight_bytes(program: &Path, model: &Path) -> Result<u64, String> {
    let words = ["--memory-only", "--json", "--weights", "own", "--ctx", "64"].map(OsStr::new);
    let args = [&[OsStr::new("plan"), model.as_os_str()][..], &words].concat();
    let plan: Value =
        serde_json::from_str(&printed(program, &args)?).map_err(|e| format!("plan --json: {e}"))?;
    plan["memory"]["weight_bytes"].as_u64().ok_or_else(|| "plan told no weights".to_owned())
}

/// A pattern of pseudo-random words, from a seed.
pub(crate) fn words(seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_by_name() {
        let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let (kinds, types) = chosen(&names(&["deepseek_v3", "q4_0"])).expect("rows");
        assert_eq!((kinds[0].golden, types.len()), ("deepseek_v3", 1));
        let (kinds, types) = chosen(&[]).expect("all");
        assert!(kinds.len() == KINDS.len() && types.len() > 20, "{} types", types.len());
        assert!(chosen(&names(&["nothing"])).is_err());
    }

    #[test]
    fn every_kind_is_made_wide_and_read_back() {
        let root = crate::tidy::root();
        for kind in KINDS {
            let wide = shapes::find(&root, kind).unwrap_or_else(|e| panic!("{}: {e}", kind.golden));
            let numbers = |t: &shapes::Wide| t.shape.iter().product::<u64>();
            let all: u64 = wide.iter().map(numbers).sum();
            assert!(all > 30_000_000, "{}: {all} numbers", kind.golden);
        }
    }

    #[test]
    fn blocks_of_every_type_decode_to_numbers_of_one_size() {
        for format in types::all() {
            let blocks = types::blocks(format).unwrap_or_else(|e| panic!("{}: {e}", format.name()));
            assert!(!blocks.is_empty());
        }
    }
}
