//! Lists the compiled kernels in cubins/, as `BUNDLES`, for src/kernels.rs to embed: none where
//! `cargo xtask cubins` has not run, which is no error.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=cubins");
    let entries = std::fs::read_dir("cubins").into_iter().flatten().filter_map(Result::ok);
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "fatbin"));
    files.sort();
    // The driver reads words.
    let mut text = String::from(
        "#[allow(dead_code)]\n#[repr(align(16))]\nstruct Aligned<B>(B);\n\n\
         /// Kernels of a source file for all targets: its name, and what the driver takes.\n\
         pub(crate) static BUNDLES: &[(&str, &[u8])] = &[\n",
    );
    for path in files {
        let Ok(whole) = path.canonicalize() else { continue };
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let _ = writeln!(text, "    ({name:?}, &Aligned(*include_bytes!({whole:?})).0),");
    }
    text.push_str("];\n");
    let folder = std::env::var_os("OUT_DIR").unwrap_or_default();
    let path = Path::new(&folder).join("bundles.rs");
    assert!(std::fs::write(&path, text).is_ok(), "{} cannot be written", path.display());
}
