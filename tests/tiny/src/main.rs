//! `tiny-model FILE` writes the random model of these tests as a GGUF file.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: tiny-model FILE");
        return ExitCode::FAILURE;
    };
    match tokenmill_tiny::write(&path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}
