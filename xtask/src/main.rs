//! Project chores: `cargo xtask tidy` checks what the compiler cannot, `cargo xtask lines` prints
//! the size of every crate, architecture and format, `cargo xtask docs` writes docs/models.md and docs/api.md,
//! `cargo xtask instructions` counts those of hot kernels, `cargo xtask tables` writes the formats'
//! tables for GPUs and `cargo xtask cubins` compiles the kernels there, `cargo xtask mutants` plants
//! faults that tests must see, `cargo xtask dist` makes what people install, `cargo xtask toys` adds a toy of each kind
//! by the files ARCHITECTURE.md names, `cargo xtask sweep` measures a random model of each kind and stored type.

mod book;
mod circles;
mod cubins;
mod dist;
mod instructions;
mod mutants;
mod nvcc;
mod rows;
mod sass;
mod sweep;
mod tables;
mod tidy;
mod toys;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Cargo's folder of what is built.
fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into)
}

/// Prints what a command reports or what is wrong.
fn told(done: Result<String, String>) -> ExitCode {
    match done {
        Ok(report) => {
            print!("{report}");
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}

/// Writes the pages that are made of tables in code: models and formats here, the server's routes by its own test.
fn write_pages(root: &Path) -> Result<String, String> {
    let path = root.join(rows::PAGE);
    std::fs::write(&path, rows::page(root)).map_err(|error| format!("{}: {error}", rows::PAGE))?;
    let test = ["test", "--quiet", "--package", "tokenmill-server", "--lib", "openapi::reference"];
    let done = Command::new("cargo")
        .args(test)
        .env("TOKENMILL_WRITE_DOCS", "1")
        .current_dir(root)
        .output();
    match done {
        Ok(done) if done.status.success() => Ok(String::new()),
        Ok(done) => Err(format!("docs/api.md: {}", String::from_utf8_lossy(&done.stderr))),
        Err(error) => Err(format!("cargo: {error}")),
    }
}

fn main() -> ExitCode {
    let root = tidy::root();
    let args: Vec<String> = std::env::args().skip(2).collect();
    match std::env::args().nth(1).as_deref() {
        Some("tidy") => {
            let found = tidy::check(&root);
            for line in &found {
                eprintln!("{line}");
            }
            if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Some("lines") => {
            for (name, lines) in tidy::lines(&root) {
                println!("{lines:6} {name}");
            }
            print!("{}", rows::lines(&root));
            ExitCode::SUCCESS
        }
        Some("docs") => told(write_pages(&root)),
        Some("tables") => match std::fs::write(tables::path(&root), tables::text()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{}: {error}", tables::path(&root).display());
                ExitCode::FAILURE
            }
        },
        Some("instructions") => {
            let write = std::env::args().nth(2).as_deref() == Some("write");
            told(if write { instructions::write(&root) } else { instructions::check(&root) })
        }
        Some("sweep") => told(sweep::run(&root, &args)),
        Some("cubins") => told(cubins::command(&root, &args)),
        Some("dist") => told(dist::command(&root, &args)),
        Some("mutants") => match mutants::run(&root, &args) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(problem) => {
                eprintln!("{problem}");
                ExitCode::FAILURE
            }
        },
        Some("toys") => match toys::run(&root, std::env::args().any(|arg| arg == "--sample")) {
            Ok(()) => ExitCode::SUCCESS,
            Err(problem) => {
                eprintln!("{problem}");
                ExitCode::FAILURE
            }
        },
        _ => {
            eprintln!(
                "usage: cargo xtask toys [--sample] | tidy | lines | docs | instructions [write] | tables \
                 | cubins [check | budgets] | mutants | sweep [ROW…] \
                 | dist [--binary FILE] [--out FOLDER]"
            );
            ExitCode::FAILURE
        }
    }
}
