//! Project chores: `cargo xtask tidy` checks what the compiler cannot, `cargo xtask lines` prints
//! the size of every crate.

mod tidy;

use std::process::ExitCode;

fn main() -> ExitCode {
    let root = tidy::root();
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
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("usage: cargo xtask tidy | lines");
            ExitCode::FAILURE
        }
    }
}
