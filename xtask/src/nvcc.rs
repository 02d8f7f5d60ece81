//! The compiler of kernels: `$CUDA_HOME`, the one on the PATH, or pinned packages in a folder under
//! target/. No driver and no GPU is needed for it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What is installed where no compiler is found: that of the oldest driver served, so that what it
/// makes needs no translation there; tools that read what it made.
const PACKAGES: &[&str] = &[
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
    "nvidia-cuda-cuobjdump==13.2.51",
    "nvidia-cuda-nvdisasm==13.2.51",
];

/// The version whose registers budgets.txt counts.
pub const PINNED: &str = "V13.0.88";

/// A compiler that runs.
pub struct Nvcc {
    /// Folder of `nvcc`, `fatbinary`, `cuobjdump`.
    bin: PathBuf,
    /// As it says: `V13.0.88`.
    pub version: String,
}

impl Nvcc {
    /// Finds the compiler, installs it if there is none; what is missing where that fails.
    pub fn find(root: &Path) -> Result<Nvcc, String> {
        if let Some(home) = std::env::var_os("CUDA_HOME") {
            let bin = PathBuf::from(home).join("bin");
            return at(&bin).ok_or(format!("CUDA_HOME has no nvcc that runs: {}", bin.display()));
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        if let Some(found) = std::env::split_paths(&path).find_map(|folder| at(&folder)) {
            return Ok(found);
        }
        let folder = crate::target(root).join("nvcc");
        match installed(&folder) {
            Some(found) => Ok(found),
            None => {
                install(&folder)?;
                installed(&folder).ok_or(format!("nvcc does not run from {}", folder.display()))
            }
        }
    }

    /// One of its programs, with its folder on the PATH: they call each other.
    pub fn program(&self, name: &str) -> Command {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(self.bin.clone()).chain(std::env::split_paths(&path));
        let mut command = Command::new(self.bin.join(name));
        if let Ok(path) = std::env::join_paths(folders) {
            command.env("PATH", path);
        }
        command
    }
}

/// The compiler in a folder, if it runs.
fn at(bin: &Path) -> Option<Nvcc> {
    let nvcc = bin.join("nvcc");
    if !nvcc.is_file() {
        return None;
    }
    let output = Command::new(nvcc).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split_whitespace().find(|word| word.starts_with('V'))?.to_owned();
    Some(Nvcc { bin: bin.to_owned(), version })
}

fn installed(folder: &Path) -> Option<Nvcc> {
    let mut libraries = std::fs::read_dir(folder.join("lib")).ok()?.filter_map(Result::ok);
    libraries.find_map(|python| at(&python.path().join("site-packages/nvidia/cu13/bin")))
}

fn install(folder: &Path) -> Result<(), String> {
    eprintln!("no nvcc on this machine: installing {} to {}", PACKAGES[0], folder.display());
    let mut venv = Command::new("python3");
    run(venv.args(["-m", "venv"]).arg(folder))?;
    let mut pip = Command::new(folder.join("bin/pip"));
    // Where packages cannot be had, that should be known soon.
    let patience = ["--retries=1", "--timeout=30"];
    run(pip.args(["install", "--quiet", "--no-deps"]).args(patience).args(PACKAGES))?;
    Ok(())
}

/// Runs a program to its end: what it printed on both, or what went wrong.
pub fn run(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| format!("{name}: {e}"))?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    if output.status.success() { Ok(text) } else { Err(format!("{name} failed\n{text}")) }
}
