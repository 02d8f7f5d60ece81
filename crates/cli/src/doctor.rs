//! `doctor`: what this machine offers and what will be used.

use std::io::Write;
use std::path::Path;

use clap::Parser;
use tokenmill_kvlog::{Folder, SegmentFiles};

use crate::args::{Args, Command};
use crate::failure::{Failure, size};
use crate::{devices, memory};

/// Runs the command.
pub fn doctor(kv_dir: Option<&Path>) -> Result<(), Failure> {
    let machine = match Args::try_parse_from(["tokenmill", "run"]).map(|a| a.command) {
        Ok(Command::Run(run)) => run.machine,
        _ => return Err(Failure::new("cannot read the defaults", "a bug in this program")),
    };
    let device = devices::open(&machine)?;
    let threads = devices::threads(&machine);
    let read = devices::read_limit(threads, devices::Level::Dram);
    let int8 = devices::op_limit(threads, devices::Arithmetic::Int8);
    let caps = device.caps();
    let cores = devices::cores();
    let known = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), size);
    let lines = [
        ("tokenmill", env!("CARGO_PKG_VERSION").to_owned()),
        ("system", format!("{} {}", std::env::consts::OS, std::env::consts::ARCH)),
        ("cores", format!("{cores} usable")),
        ("memory", format!("{} in all", known(memory::total_bytes()))),
        ("available", known(Some(memory::available_bytes()).filter(|b| *b != u64::MAX))),
        ("in use here", known(memory::resident_bytes())),
        ("device", format!("{}, {} threads", caps.name, caps.workers)),
        ("GPU", devices::gpu()),
        ("instructions", devices::instruction_sets()),
        ("reads", read.map_or("unknown".to_owned(), |r| format!("{:.1} GB/s", r.rate.best / 1e9))),
        ("int8", format!("{:.2} Top/s ({})", int8.rate.best / 1e12, int8.instruction)),
        ("huge pages", huge_pages()),
    ];
    let mut out = std::io::stdout().lock();
    let kv = kv_dir.map(|folder| ("prompt cache", kv_state(folder)));
    for (name, value) in lines.into_iter().chain(kv) {
        writeln!(out, "{name:<13} {value}").map_err(Failure::output)?;
    }
    Ok(())
}

/// What the prompt cache in a folder holds; it may belong to any models.
fn kv_state(folder: &Path) -> String {
    if !folder.exists() {
        return format!("nothing in {} yet", folder.display());
    }
    let found = Folder::open(folder).map(|mut files| files.list());
    match found {
        Ok(Ok(segments)) => {
            let bytes = segments.iter().map(|s| s.bytes).sum();
            format!("{} in {} segments, {}", size(bytes), segments.len(), folder.display())
        }
        Ok(Err(error)) => format!("cannot list {}: {error}", folder.display()),
        Err(error) => error.to_string(),
    }
}

fn huge_pages() -> String {
    std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
        .map_or("unknown".to_owned(), |text| text.trim().to_owned())
}
