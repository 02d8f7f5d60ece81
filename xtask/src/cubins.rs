//! `cargo xtask cubins`: compiles crates/cuda/kernels/*.cu for every target, and says what each
//! kernel takes. The crate embeds what lies in crates/cuda/cubins when it is built.
//!
//! `check` holds registers, spills and loops against crates/cuda/budgets.txt; `budgets` writes that
//! file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::{Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::nvcc::{Nvcc, PINNED, run};
use crate::sass;

/// What kernels are compiled for: A100, home GPUs of three generations, Hopper.
const TARGETS: &[&str] = &["80", "86", "89", "90a", "120a"];
/// The target whose loops are counted.
const COUNTED: &str = "90a";

/// Products and sums stay apart where the source has them apart, as on the host.
const FLAGS: &[&str] = &[
    "-cubin",
    "-O3",
    "-std=c++17",
    "-fmad=false",
    "-Xptxas=-v",
    "-Werror=all-warnings",
    // Words that a file does not use.
    "-diag-suppress=177",
];

const KERNELS: &str = "crates/cuda/kernels";
const CUBINS: &str = "crates/cuda/cubins";
const BUDGETS: &str = "crates/cuda/budgets.txt";

/// All that is embedded may take so many bytes.
const MOST_BYTES: u64 = 20 << 20;

/// What a kernel takes: the most over all targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cost {
    registers: u32,
    /// Bytes.
    spills: u32,
    /// Instructions of the longest innermost loop, on [`COUNTED`].
    longest_loop: u32,
    /// Instructions in loops that wait for the device or the stack.
    slow: u32,
}

impl Cost {
    /// The more of each.
    fn raise(&mut self, by: Cost) {
        self.registers = self.registers.max(by.registers);
        self.spills = self.spills.max(by.spills);
        self.longest_loop = self.longest_loop.max(by.longest_loop);
        self.slow = self.slow.max(by.slow);
    }

    /// As columns of budgets.txt.
    fn columns(&self) -> [(&'static str, u32); 4] {
        [
            ("registers", self.registers),
            ("bytes of spills", self.spills),
            ("instructions in a loop", self.longest_loop),
            ("slow instructions in loops", self.slow),
        ]
    }
}

/// Cost of each kernel, by file and name.
type Costs = BTreeMap<(String, String), Cost>;

/// One file for one target.
struct Job {
    source: PathBuf,
    target: &'static str,
    cubin: PathBuf,
    /// Below the key of what it was made from: what the compiler said, and of each kernel
    /// `loop NAME INSTRUCTIONS` and `slow NAME INSTRUCTION`.
    log: PathBuf,
}

/// Compiles what changed, prints the table; then what `args` say.
pub fn command(root: &Path, args: &[String]) -> Result<String, String> {
    let is_check = args.first().is_some_and(|arg| arg == "check");
    let nvcc = match Nvcc::find(root) {
        Ok(nvcc) => nvcc,
        Err(error) if is_check => {
            eprintln!("{error}");
            return Ok("NOT CHECKED: no nvcc, and it cannot be installed\n".to_owned());
        }
        Err(error) => return Err(error),
    };
    let jobs = jobs(root)?;
    let compiled = compile(root, &nvcc, &jobs)?;
    let (mut costs, mut slow) = (Costs::new(), Vec::new());
    for job in &jobs {
        let text = read(&job.log)?;
        for (name, cost) in resources(&text, job.target == COUNTED) {
            costs.entry((stem(&job.source), name)).or_default().raise(cost);
        }
        let lines = text.lines().filter_map(|line| line.strip_prefix("slow "));
        slow.extend(lines.map(|line| format!("sm_{}: {line}", job.target)));
    }
    let bytes = bundle(root, &nvcc, &jobs)?;
    let mut report = table(&costs, args.is_empty());
    let _ = writeln!(
        report,
        "{} kernels for {} targets by nvcc {}: {compiled} of {} files compiled, {:.2} MiB embedded",
        costs.len(),
        TARGETS.len(),
        nvcc.version,
        jobs.len(),
        bytes as f64 / f64::from(1 << 20),
    );
    if bytes > MOST_BYTES {
        return Err(format!("{report}{bytes} bytes of kernels, at most {MOST_BYTES}"));
    }
    match args.first().map(String::as_str) {
        Some("check") => check(root, &nvcc, &costs, &slow, report),
        Some("budgets") => {
            let path = root.join(BUDGETS);
            write(&path, budgets(&costs).as_bytes())?;
            Ok(format!("{report}written: {BUDGETS}\n"))
        }
        _ => Ok(report),
    }
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    std::fs::write(path, bytes).map_err(|e| format!("{}: {e}", path.display()))
}

/// Files of a folder with this ending, in order.
fn files(folder: &Path, ending: &str) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let paths = entries.filter_map(Result::ok).map(|entry| entry.path());
    let mut files: Vec<PathBuf> =
        paths.filter(|p| p.extension().is_some_and(|e| e == ending)).collect();
    files.sort();
    Ok(files)
}

fn jobs(root: &Path) -> Result<Vec<Job>, String> {
    let folder = root.join(CUBINS);
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let sources = files(&root.join(KERNELS), "cu")?;
    if sources.is_empty() {
        return Err(format!("no kernels in {KERNELS}"));
    }
    let of = |source: &PathBuf| {
        let (source, folder) = (source.clone(), folder.clone());
        TARGETS.iter().map(move |&target| {
            let name = format!("{}.{target}", stem(&source));
            let source = source.clone();
            let [cubin, log] = ["cubin", "log"].map(|e| folder.join(format!("{name}.{e}")));
            Job { source, target, cubin, log }
        })
    };
    Ok(sources.iter().flat_map(of).collect())
}

/// Compiles those jobs whose sources, flags or compiler changed, on all cores; their number. What
/// was bundled of them goes.
fn compile(root: &Path, nvcc: &Nvcc, jobs: &[Job]) -> Result<usize, String> {
    let folder = root.join(KERNELS);
    let mut shared = std::hash::DefaultHasher::new();
    (FLAGS, &nvcc.version).hash(&mut shared);
    for path in files(&folder, "cuh")?.iter().chain(&files(&folder, "h")?) {
        read(path)?.hash(&mut shared);
    }
    let mut stale = Vec::new();
    for job in jobs {
        let mut hasher = shared.clone();
        read(&job.source)?.hash(&mut hasher);
        let key = format!("{:016x}", hasher.finish());
        let log = std::fs::read_to_string(&job.log).unwrap_or_default();
        if log.lines().next() != Some(&key) || !job.cubin.exists() {
            stale.push((job, key));
        }
    }
    let next = AtomicUsize::new(0);
    let work = || -> Result<(), String> {
        while let Some((job, key)) = stale.get(next.fetch_add(1, Ordering::Relaxed)) {
            let target = format!("arch=compute_{0},code=sm_{0}", job.target);
            let mut command = nvcc.program("nvcc");
            command.args(FLAGS).arg("-gencode").arg(target);
            for old in [job.log.clone(), bundle_of(root, job)] {
                let _ = std::fs::remove_file(old);
            }
            let output = run(command.arg("-o").arg(&job.cubin).arg(&job.source))?;
            let mut log = format!("{key}\n{output}\n");
            let code = run(nvcc.program("cuobjdump").arg("-sass").arg(&job.cubin))?;
            for code in sass::read(&code) {
                let _ = writeln!(log, "loop {} {}", code.name, code.longest_loop);
                for slow in code.slow {
                    let _ = writeln!(log, "slow {} {slow}", code.name);
                }
            }
            write(&job.log, log.as_bytes())?;
        }
        Ok(())
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|t| t.join().unwrap_or(Err("a thread died".into())))
    })?;
    Ok(stale.len())
}

/// What each kernel of a log takes; loops only if they are `counted`.
fn resources(log: &str, counted: bool) -> Vec<(String, Cost)> {
    let mut all: Vec<(String, Cost)> = Vec::new();
    for line in log.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        // The number `back` words before a word.
        let before = |word: &str, back: usize| -> u32 {
            let at = words.iter().position(|w| *w == word).and_then(|at| at.checked_sub(back));
            at.and_then(|at| words[at].parse().ok()).unwrap_or(0)
        };
        if line.contains("Compiling entry function") {
            let name = line.split('\'').nth(1).unwrap_or_default();
            all.push((name.to_owned(), Cost::default()));
            continue;
        }
        let named = |name: &str| all.iter().position(|(n, _)| n == name);
        let last = all.len().checked_sub(1);
        match (words.as_slice(), last) {
            (["loop", name, count], _) if counted => {
                if let Some(kernel) = named(name) {
                    all[kernel].1.longest_loop = count.parse().unwrap_or(0);
                }
            }
            (["slow", name, ..], _) => {
                if let Some(kernel) = named(name) {
                    all[kernel].1.slow += 1;
                }
            }
            // Of the kernel and of functions that it calls.
            (_, Some(kernel)) if line.contains("bytes spill stores") => {
                all[kernel].1.spills += before("spill", 2);
            }
            (["ptxas", .., _], Some(kernel)) if words.contains(&"registers,") => {
                all[kernel].1.registers = before("registers,", 1);
            }
            _ => {}
        }
    }
    all
}

fn bundle_of(root: &Path, job: &Job) -> PathBuf {
    root.join(CUBINS).join(format!("{}.fatbin", stem(&job.source)))
}

/// One file of all targets for each source, compressed: the driver takes what fits the card. Their
/// bytes together. Those that are there stay as they are: what embeds them is not built again.
fn bundle(root: &Path, nvcc: &Nvcc, jobs: &[Job]) -> Result<u64, String> {
    let mut bytes = 0;
    let mut bundles = Vec::new();
    for jobs in jobs.chunk_by(|a, b| a.source == b.source) {
        let Some(first) = jobs.first() else { continue };
        let path = bundle_of(root, first);
        let mut command = nvcc.program("fatbinary");
        command.args(["--compress-all", "--compress-mode=size"]);
        command.arg(format!("--create={}", path.display()));
        for job in jobs {
            let image = format!("kind=elf,sm={},file={}", job.target, job.cubin.display());
            command.arg(format!("--image3={image}"));
        }
        if !path.exists() {
            run(&mut command)?;
        }
        bytes += std::fs::metadata(&path).map_err(|e| format!("{}: {e}", path.display()))?.len();
        bundles.push(path);
    }
    // Of sources that are gone.
    for path in files(&root.join(CUBINS), "fatbin")?.iter().filter(|p| !bundles.contains(p)) {
        std::fs::remove_file(path).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(bytes)
}

/// Every kernel if `whole`, else the costliest of each file.
fn table(costs: &Costs, whole: bool) -> String {
    let mut text = String::from("registers spills   loop   slow  kernel\n");
    let mut rows: Vec<_> = costs.iter().collect();
    if !whole {
        let cost = |row: &(&(String, String), &Cost)| (row.1.spills, row.1.registers);
        rows.sort_by_key(|row| (row.0.0.clone(), std::cmp::Reverse(cost(row))));
        rows.dedup_by(|a, b| a.0.0 == b.0.0);
    }
    for ((file, name), cost) in rows {
        let [registers, spills, longest_loop, slow] = cost.columns().map(|(_, n)| n);
        let columns = format!("{registers:9} {spills:6} {longest_loop:6} {slow:6}");
        let _ = writeln!(text, "{columns}  {file}: {name}");
    }
    text
}

/// budgets.txt of these costs.
fn budgets(costs: &Costs) -> String {
    let mut text = format!(
        "# What kernels may take, written by `cargo xtask cubins budgets`: over all targets the most\n\
         # registers, bytes of spills, instructions of the longest innermost loop (on sm_{COUNTED}), and\n\
         # instructions in loops that wait for the device or the stack. Counted with nvcc {PINNED}.\n"
    );
    for ((file, name), cost) in costs {
        let [registers, spills, longest_loop, slow] = cost.columns().map(|(_, n)| n);
        let _ = writeln!(text, "{file} {name} {registers} {spills} {longest_loop} {slow}");
    }
    text
}

fn parse(text: &str) -> Result<Costs, String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let bad = || format!("{BUDGETS}: not a row: {line}");
            let [file, name, numbers @ ..] = words.as_slice() else { return Err(bad()) };
            let numbers: Result<Vec<u32>, _> = numbers.iter().map(|n| n.parse()).collect();
            match numbers.map_err(|_| bad())?.as_slice() {
                &[registers, spills, longest_loop, slow] => {
                    let cost = Cost { registers, spills, longest_loop, slow };
                    Ok((((*file).to_owned(), (*name).to_owned()), cost))
                }
                _ => Err(bad()),
            }
        })
        .collect()
}

fn check(
    root: &Path,
    nvcc: &Nvcc,
    costs: &Costs,
    slow: &[String],
    mut report: String,
) -> Result<String, String> {
    if nvcc.version != PINNED {
        let _ = writeln!(report, "NOT CHECKED: budgets are those of nvcc {PINNED}");
        return Ok(report);
    }
    let over = exceed(costs, &parse(&read(&root.join(BUDGETS))?)?);
    if over.is_empty() {
        return Ok(report);
    }
    let of_slow = |line: &&String| over.iter().any(|o| o.contains("slow") && is_of(line, o));
    for line in slow.iter().filter(of_slow) {
        let _ = writeln!(report, "in a loop, {line}");
    }
    Err(format!("{report}{}\nif that is meant: cargo xtask cubins budgets", over.join("\n")))
}

/// Whether a slow instruction's line and a breach name the same kernel.
fn is_of(line: &str, breach: &str) -> bool {
    line.split(' ').nth(1) == breach.split(' ').next()
}

/// Kernels that take more than they may, or have no row, and rows without a kernel.
fn exceed(costs: &Costs, budgets: &Costs) -> Vec<String> {
    let mut over = Vec::new();
    for ((file, name), cost) in costs {
        let Some(budget) = budgets.get(&(file.clone(), name.clone())) else {
            over.push(format!("{BUDGETS} has no row for {name} of {file}.cu"));
            continue;
        };
        for ((what, is), (_, most)) in cost.columns().into_iter().zip(budget.columns()) {
            if is > most {
                over.push(format!("{name} of {file}.cu: {is} {what}, at most {most}"));
            }
        }
    }
    let gone = budgets.keys().filter(|kernel| !costs.contains_key(*kernel));
    over.extend(gone.map(|(file, name)| format!("{BUDGETS}: no kernel {name} in {file}.cu")));
    over
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost([registers, spills, longest_loop, slow]: [u32; 4]) -> Cost {
        Cost { registers, spills, longest_loop, slow }
    }

    fn costs(rows: &[(&str, [u32; 4])]) -> Costs {
        rows.iter().map(|(name, n)| (("f".to_owned(), (*name).to_owned()), cost(*n))).collect()
    }

    #[test]
    fn logs_are_read() {
        let text = "0123\n\
            ptxas info    : 9440 bytes gmem\n\
            ptxas info    : Compiling entry function 'a' for 'sm_90a'\n\
            ptxas info    : Function properties for a\n    \
            64 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n\
            ptxas info    : Used 40 registers, used 1 barriers, 64 bytes cumulative stack size\n\
            ptxas info    : Compiling entry function 'b' for 'sm_90a'\n\
            ptxas info    : Function properties for b\n    \
            0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
            ptxas info    : Used 9 registers, used 0 barriers\n\
            loop a 120\n\
            slow a 0x0020 LDL R1, [R2]\n\
            loop b 0\n";
        let (a, b) = ("a".to_owned(), "b".to_owned());
        assert_eq!(
            resources(text, true),
            [(a.clone(), cost([40, 8, 120, 1])), (b.clone(), cost([9, 0, 0, 0]))]
        );
        assert_eq!(resources(text, false), [(a, cost([40, 8, 0, 1])), (b, cost([9, 0, 0, 0]))]);
    }

    #[test]
    fn budgets_hold() {
        let allowed = costs(&[("a", [32, 0, 100, 0]), ("b", [40, 8, 0, 2])]);
        assert_eq!(parse(&budgets(&allowed)), Ok(allowed.clone()));
        assert_eq!(exceed(&allowed, &allowed), [""; 0]);
        let fewer = costs(&[("a", [31, 0, 90, 0]), ("b", [40, 4, 0, 1])]);
        assert_eq!(exceed(&fewer, &allowed), [""; 0]);
        let other = costs(&[("a", [33, 1, 101, 1]), ("c", [1, 0, 0, 0])]);
        assert_eq!(exceed(&other, &allowed).len(), 6, "four numbers, one new, one gone");
        assert!(is_of("sm_80: a 0x0020 LDL R1", "a of f.cu: 1 slow instructions"));
        assert!(parse("a b 1 2\n").is_err());
    }
}
