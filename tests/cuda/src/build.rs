//! Kernels as a shared library of this machine.

use std::collections::hash_map::DefaultHasher;
use std::ffi::{CString, c_void};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Everything that goes into the library.
const FILES: [&str; 13] = [
    "product",
    "pack",
    "narrow",
    "picked",
    "wide",
    "attend",
    "attend_tiles",
    "dense",
    "recurrent",
    "experts",
    "copy",
    "sample",
    "host",
];

/// A mistake planted in a kernel: what stands in one of `FILES` or a header, once, and what stands there instead.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// The file.
    pub file: &'static str,
    /// What is replaced.
    pub from: &'static str,
    /// By what.
    pub to: &'static str,
}

/// The loaded library.
#[derive(Debug)]
pub struct Kernels {
    handle: *mut c_void,
}

// SAFETY: a handle of the dynamic linker, which any thread may use.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// The kernels as they are.
    pub fn plain() -> Option<&'static Self> {
        static KERNELS: OnceLock<Option<Kernels>> = OnceLock::new();
        KERNELS.get_or_init(|| Self::build(None)).as_ref()
    }

    /// The kernels with a mistake.
    pub fn with(fault: Fault) -> Option<&'static Self> {
        Self::build(Some(fault)).map(|kernels| &*Box::leak(Box::new(kernels)))
    }

    /// A function of the library.
    pub fn symbol(&self, name: &str) -> Option<*mut c_void> {
        let name = CString::new(name).ok()?;
        // SAFETY: a loaded library and a string that ends.
        let found = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }

    fn build(fault: Option<Fault>) -> Option<Self> {
        let Some(compiler) = compiler() else {
            println!("NOT RUN: there is no C++ compiler (looked for $CXX, c++, g++ and clang++)");
            return None;
        };
        let sources = sources(fault);
        let path = library(&compiler, &sources);
        let name = CString::new(path.as_os_str().as_encoded_bytes()).expect("a path");
        // SAFETY: the library was built from our sources; its start-up code only makes room for threads' variables.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{} cannot be loaded", path.display());
        Some(Self { handle })
    }
}

fn compiler() -> Option<String> {
    let named = std::env::var("CXX").ok();
    let known = ["c++", "g++", "clang++"].map(str::to_owned);
    let works = |c: &String| {
        Command::new(c).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    named.into_iter().chain(known).find(works)
}

/// Names and texts of all sources.
fn sources(fault: Option<Fault>) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/cuda/kernels");
    let entries = std::fs::read_dir(folder).expect("crates/cuda/kernels");
    let mut all: Vec<(String, String)> = entries
        .filter_map(Result::ok)
        .map(|entry| {
            let text = std::fs::read_to_string(entry.path()).expect("a source");
            (entry.file_name().to_string_lossy().into_owned(), text)
        })
        .collect();
    all.sort();
    if let Some(fault) = fault {
        let (_, text) = all.iter_mut().find(|(name, _)| *name == fault.file).expect("the file");
        assert_eq!(text.matches(fault.from).count(), 1, "{fault:?}");
        *text = text.replace(fault.from, fault.to);
    }
    all
}

/// How kernels are built: sums and products as written, fused where the sources say so.
fn flags() -> Vec<&'static str> {
    let mut flags = vec!["-std=c++17", "-O2", "-fPIC", "-ffp-contract=off", "-fno-math-errno"];
    flags.extend(["-fvisibility=hidden", "-DTOKENMILL_HOST", "-Wall", "-Wno-unused-function"]);
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
        flags.push("-march=x86-64-v3");
    }
    flags
}

/// Builds what is not built yet, each file by itself, and links it.
fn library(compiler: &str, sources: &[(String, String)]) -> PathBuf {
    let key = |of: &[&(String, String)]| {
        let mut hasher = DefaultHasher::new();
        (compiler, flags(), of).hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    };
    let root = target().join("host-kernels");
    let whole = root.join(format!("{}.so", key(&sources.iter().collect::<Vec<_>>())));
    if whole.exists() {
        return whole;
    }
    std::fs::create_dir_all(&root).expect("a folder for kernels");
    let scratch = tempfile::tempdir_in(&root).expect("a scratch folder");
    for (name, text) in sources {
        std::fs::write(scratch.path().join(name), text).expect("written");
    }
    let objects: Vec<PathBuf> = std::thread::scope(|scope| {
        let built = sources.iter().filter(|(name, _)| is_built(name)).map(|source| {
            let object = root.join(format!("{}-{}.o", source.0, key(&included(source, sources))));
            let folder = scratch.path();
            scope.spawn(move || {
                if !object.exists() {
                    compile(compiler, &folder.join(&source.0), &object);
                }
                object
            })
        });
        let running: Vec<_> = built.collect();
        running.into_iter().map(|thread| thread.join().expect("compiled")).collect()
    });
    let linked = scratch.path().join("kernels.so");
    let mut link = Command::new(compiler);
    run(link.arg("-shared").args(&objects).arg("-o").arg(&linked));
    std::fs::rename(&linked, &whole).expect("renamed");
    whole
}

/// A file and all that it includes.
fn included<'a>(
    source: &'a (String, String),
    all: &'a [(String, String)],
) -> Vec<&'a (String, String)> {
    let mut found = vec![source];
    let mut next = 0;
    while let Some((_, text)) = found.get(next) {
        let names = text.lines().filter_map(|line| line.strip_prefix("#include \""));
        let names = names.filter_map(|line| line.split('"').next());
        let files = names.filter_map(|name| all.iter().find(|(n, _)| n == name));
        let new: Vec<_> = files.filter(|file| !found.contains(file)).collect();
        found.extend(new);
        next += 1;
    }
    found
}

/// Whether a file is compiled by itself.
fn is_built(name: &str) -> bool {
    let (stem, ending) = name.split_once('.').unwrap_or((name, ""));
    FILES.contains(&stem) && matches!(ending, "cu" | "cpp")
}

fn compile(compiler: &str, source: &Path, object: &Path) {
    let now = source.with_extension("o");
    run(Command::new(compiler)
        .args(flags())
        .args(["-x", "c++", "-c"])
        .arg(source)
        .arg("-o")
        .arg(&now));
    std::fs::rename(now, object).expect("renamed");
}

fn run(command: &mut Command) {
    let output = command.output().expect("the compiler starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    assert!(said.is_empty(), "{command:?}: {said}");
}

fn target() -> PathBuf {
    let named = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    named.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"))
}
