//! `cargo xtask dist`: what people install, made of one program for x86-64 Linux: an archive, a wheel, a Debian package, an
//! OCI image, with checksums and a bill of materials. Built twice of one commit, all have the same bytes.

mod archive;
mod packages;
mod sbom;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use archive::{Entry, gz, sha256};

/// What is packed.
pub struct Packed {
    /// The version of the workspace.
    pub version: String,
    /// The commit's time, Unix seconds: the time of every file.
    pub time: u64,
    /// The program, stripped.
    pub program: Vec<u8>,
    /// The newest glibc that it needs, `major.minor`; none where it is linked statically.
    pub glibc: Option<(u32, u32)>,
    /// Shared libraries it is linked with, by the paths where it looks for them.
    pub libraries: Vec<(String, Vec<u8>)>,
    /// Its manual pages and completions, by their places under `share`.
    pub share: Vec<Entry>,
    /// Files of the repository, by name.
    pub texts: BTreeMap<&'static str, Vec<u8>>,
}

/// Files of the repository that are packed.
const TEXTS: &[&str] = &[
    "README.md",
    "LICENSE-MIT",
    "LICENSE-APACHE",
    "packaging/tokenmill.service",
    "packaging/tokenmill.sysusers",
    "packaging/config.toml",
    "packaging/postinst",
    "packaging/prerm",
    "packaging/postrm",
];

/// The oldest glibc that is built for, where zig is here to do it.
const GLIBC: &str = "2.28";

/// Runs the command: `[--binary FILE] [--out FOLDER]`; what was made, a line a file.
pub fn command(root: &Path, args: &[String]) -> Result<String, String> {
    let value = |name: &str| {
        let at = args.iter().position(|arg| arg == name)?;
        args.get(at + 1).map(PathBuf::from)
    };
    let out = value("--out").unwrap_or_else(|| crate::target(root).join("dist"));
    let binary = match value("--binary") {
        Some(binary) => binary,
        None => build(root)?,
    };
    let packed = read(root, &binary, &out)?;
    let mut made = packages::all(&packed)?;
    made.push((format!("tokenmill-{}.cdx.json", packed.version), sbom::of(root, &packed)?));
    made.sort();
    let sums: String =
        made.iter().map(|(name, bytes)| format!("{}  {name}\n", sha256(bytes))).collect();
    made.push(("SHA256SUMS".to_owned(), sums.into_bytes()));
    let mut report = String::new();
    for (name, bytes) in &made {
        write(&out.join(name), bytes)?;
        report += &format!("{:>12} {}\n", bytes.len(), out.join(name).display());
    }
    Ok(report)
}

/// Builds the program: by zig for an old glibc where that is here, else for this machine's.
fn build(root: &Path) -> Result<PathBuf, String> {
    let target = crate::target(root);
    let has_zig = Command::new("cargo-zigbuild").arg("--version").output().is_ok();
    let triple = "x86_64-unknown-linux-gnu";
    let args: Vec<String> = match has_zig {
        true => ["zigbuild", "--release", "--locked", "--bin", "tokenmill", "--target"]
            .map(str::to_owned)
            .into_iter()
            .chain([format!("{triple}.{GLIBC}")])
            .collect(),
        false => {
            eprintln!("cargo-zigbuild is not here: the program needs this machine's glibc");
            ["build", "--release", "--locked", "--bin", "tokenmill", "--target", triple]
                .map(str::to_owned)
                .into()
        }
    };
    let status = Command::new("cargo")
        .args(&args)
        .env("CARGO_ENCODED_RUSTFLAGS", flags(root, &cargo_home()?))
        .env("SOURCE_DATE_EPOCH", time(root)?.to_string())
        .current_dir(root)
        .status();
    match status {
        Ok(status) if status.success() => Ok(target.join(triple).join("release/tokenmill")),
        Ok(status) => Err(format!("cargo {}: {status}", args.join(" "))),
        Err(error) => Err(format!("cargo: {error}")),
    }
}

/// Where cargo keeps the sources of dependencies.
fn cargo_home() -> Result<PathBuf, String> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let own = set("CARGO_HOME").or_else(|| Some(set("HOME")?.join(".cargo")));
    own.ok_or_else(|| "there is neither CARGO_HOME nor HOME".to_owned())
}

/// What the compiler is told so that the program is the same wherever sources and cargo's home lie (their paths stand in
/// what a panic says). Cargo leaves these flags out of the names that it gives to crates.
fn flags(root: &Path, cargo_home: &Path) -> String {
    let remap = |path: &Path, name| format!("--remap-path-prefix={}={name}", path.display());
    [remap(root, "/tokenmill"), remap(cargo_home, "/cargo")].join("\u{1f}")
}

/// The time of everything: `SOURCE_DATE_EPOCH`, else that of the last commit.
fn time(root: &Path) -> Result<u64, String> {
    let text = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text,
        Err(_) => {
            output(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(root))?
        }
    };
    text.trim().parse().map_err(|_| format!("no time: {text}"))
}

fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{name}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    let written = folder.and_then(|()| std::fs::write(path, bytes));
    written.map_err(|error| format!("{}: {error}", path.display()))
}

/// Strips the program, and asks it for its pages and completions.
fn read(root: &Path, binary: &Path, out: &Path) -> Result<Packed, String> {
    let stripped = out.join("work/tokenmill");
    write(&stripped, &read_file(binary)?)?;
    output(Command::new("strip").args(["--strip-all", "-R", ".comment"]).arg(&stripped))?;
    make_program(&stripped)?;
    let pages = out.join("work/man");
    output(Command::new(&stripped).args(["man", "--dir"]).arg(&pages))?;
    let mut share = Vec::new();
    for page in std::fs::read_dir(&pages).map_err(|e| e.to_string())?.filter_map(Result::ok) {
        let name = page.file_name().to_string_lossy().into_owned();
        share.push(Entry::new(format!("man/man1/{name}.gz"), gz(&read_file(&page.path())?)?));
    }
    for (shell, place) in [
        ("bash", "bash-completion/completions/tokenmill"),
        ("zsh", "zsh/site-functions/_tokenmill"),
        ("fish", "fish/vendor_completions.d/tokenmill.fish"),
    ] {
        share
            .push(Entry::new(place, output(Command::new(&stripped).args(["completions", shell]))?));
    }
    let program = read_file(&stripped)?;
    let libraries = libraries(&stripped)?;
    let texts = TEXTS.iter().map(|name| Ok((*name, read_file(&root.join(name))?)));
    let texts = texts.collect::<Result<_, String>>()?;
    std::fs::remove_dir_all(out.join("work")).map_err(|error| error.to_string())?;
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let glibc = newest_glibc(&program);
    Ok(Packed { version, time: time(root)?, program, glibc, libraries, share, texts })
}

fn make_program(path: &Path) -> Result<(), String> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(path, mode).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// The newest `GLIBC_x.y` that a program names.
fn newest_glibc(program: &[u8]) -> Option<(u32, u32)> {
    let mark = b"GLIBC_";
    let named = program.windows(mark.len() + 6).filter(|window| window.starts_with(mark));
    let version = |window: &[u8]| {
        let text =
            window[mark.len()..].split(|byte| !byte.is_ascii_digit() && *byte != b'.').next()?;
        let (major, minor) = std::str::from_utf8(text).ok()?.split_once('.')?;
        let minor = minor.split('.').next()?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    };
    named.filter_map(version).max()
}

/// What the program is linked with, as this machine has it.
fn libraries(program: &Path) -> Result<Vec<(String, Vec<u8>)>, String> {
    // (Of a static one it says that there are none, and fails.)
    let Ok(list) = output(Command::new("ldd").arg(program)) else { return Ok(Vec::new()) };
    let paths = list.lines().filter_map(|line| {
        let path = line.split_whitespace().find(|word| word.starts_with('/'))?;
        Some(path.to_owned())
    });
    paths.map(|path| Ok((path.clone(), read_file(Path::new(&path))?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_of_this_machine_is_compiled_in() {
        let flags = flags(Path::new("/a b"), Path::new("/home/c/.cargo"));
        let expect =
            ["--remap-path-prefix=/a b=/tokenmill", "--remap-path-prefix=/home/c/.cargo=/cargo"];
        assert_eq!(flags.split('\u{1f}').collect::<Vec<_>>(), expect);
    }

    #[test]
    fn what_a_program_needs_is_read_of_it() {
        assert_eq!(newest_glibc(b"..GLIBC_2.2.5\0GLIBC_2.28\0GLIBC_2.9\0......"), Some((2, 28)));
        assert_eq!(newest_glibc(b"nothing of that kind"), None);
    }
}
