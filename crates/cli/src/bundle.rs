//! `bundle`: a program with a model inside, which is this one with the model behind it; and what such a
//! program does with it.

use std::ffi::OsString;
use std::fs::File;
use std::hint::black_box;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use clap::error::ErrorKind as Unread;
use tokenmill_files::{Bundle, MappedFile, open};
use tokenmill_ir::Container;

use crate::args;
use crate::failure::{Failure, size, tell};
use crate::loader::named;
use crate::model;

/// Where a bundle's program has the length of its file, so that one that was cut off knows it: the
/// number behind these words, 0 in a program that is none.
#[repr(C)]
struct Slot {
    mark: [u8; 24],
    file_bytes: AtomicU64,
}

static SLOT: Slot = Slot { mark: *b"bytes of this bundle are", file_bytes: AtomicU64::new(0) };

/// Commands whose model is the one inside unless they name another.
const OF_A_MODEL: [&str; 10] =
    ["bench", "bundle", "eval", "inspect", "lint", "parse", "plan", "render", "score", "show"];

/// The model inside this program.
pub struct Own {
    /// This program.
    path: PathBuf,
}

/// What is inside this program.
///
/// # Errors
/// That a part of it is missing.
pub fn own() -> Result<Option<Own>, Failure> {
    let expected = black_box(&SLOT).file_bytes.load(Ordering::Relaxed);
    if expected == 0 {
        return Ok(None);
    }
    let unread = |e: &dyn std::fmt::Display| Failure::new("cannot read the model inside", e);
    let path = std::env::current_exe().map_err(|e| unread(&e))?;
    let found = std::fs::metadata(&path).map_err(|e| unread(&e))?.len();
    let bundle = Bundle::at(&path).map_err(|e| unread(&e))?;
    match bundle {
        Some(bundle) if bundle.len_bytes() == expected && found == expected => {
            Ok(Some(Own { path }))
        }
        _ => {
            let what = format!("{} is not whole", path.display());
            let detail = format!("it has {found} bytes of {expected}, its model among them");
            Err(Failure::new(what, detail).fix("copy it again"))
        }
    }
}

impl Own {
    /// A command line with the model inside where it names none; without a command it runs.
    pub fn complete(&self, mut line: Vec<OsString>) -> Vec<OsString> {
        let own = || self.path.clone().into_os_string();
        let first = line.get(1).and_then(|word| word.to_str());
        let is_flag = first.is_none_or(|word| word.starts_with('-'));
        let command = args::command();
        let names = |word: &OsString| word.to_str().and_then(|word| command.find_subcommand(word));
        let found = line.iter().enumerate().skip(1).find_map(|(at, word)| Some((at, names(word)?)));
        match found {
            None if is_flag && !matches!(first, Some("-h" | "--help" | "-V" | "--version")) => {
                line.splice(1..1, ["run".into(), own()]);
            }
            Some((at, of)) => {
                let name = of.get_name();
                let lacks = || {
                    let read = command.clone().try_get_matches_from(&line);
                    read.is_err_and(|e| e.kind() == Unread::MissingRequiredArgument)
                };
                let is_meant =
                    ["run", "serve"].contains(&name) || (OF_A_MODEL.contains(&name) && lacks());
                if is_meant {
                    line.insert(at + 1, own());
                }
            }
            None => {}
        }
        line
    }
}

/// What the model inside a file is called, where there is one.
pub fn name_inside(path: &Path) -> Option<String> {
    Some(Bundle::at(path).ok()??.name)
}

/// Runs the command.
pub fn bundle(args: &args::Bundle) -> Result<(), Failure> {
    if cfg!(target_os = "macos") {
        let detail = "programs are signed there, and one that is changed does not start";
        return Err(Failure::new("there are no bundles on macOS", detail));
    }
    let (path, defaults) = model::find(&args.model)?;
    let file = single(&args.model, &path)?;
    let unread =
        |e: &dyn std::fmt::Display| Failure::new(format!("cannot read {}", file.display()), e);
    let mapped = MappedFile::open(&file).map_err(|e| unread(&e))?;
    let name = args.name.clone().unwrap_or_else(|| named(&args.model, None).listed.id);
    let mut program = own_program()?;
    let bundle = Bundle::of(program.len() as u64, &mapped, &name).map_err(|e| unread(&e))?;
    mark(&mut program, bundle.len_bytes())?;
    let out = args.output.clone().unwrap_or_else(|| PathBuf::from(file_name(&name)));
    write(&out, |file| bundle.write(&program, &mapped, file)).map_err(|e| {
        let failure = Failure::new(format!("cannot write {}", out.display()), &e);
        match e.kind() {
            ErrorKind::AlreadyExists => failure.fix("-o FILE, or remove it"),
            _ => failure,
        }
    })?;
    let lines = defaults.lines();
    if !lines.is_empty() {
        tell!("note: not in the bundle, which has the model file alone: {}", lines.join(", "));
    }
    tell!("{}: {}, {name} inside", out.display(), size(bundle.len_bytes()));
    Ok(())
}

/// The one file that a model is.
fn single(name: &str, path: &Path) -> Result<PathBuf, Failure> {
    let model = open(path).map_err(|e| Failure::new(format!("cannot read {name}"), e))?;
    let files = model.data.files();
    let what = format!("{name} cannot be bundled");
    match (model.checkpoint.container, files) {
        (Container::Gguf, [one]) => Ok(one.path().to_owned()),
        (Container::Gguf, several) => {
            let detail = format!("a bundle holds one GGUF file, and these are {}", several.len());
            Err(Failure::new(what, detail).fix("merge them: llama-gguf-split --merge FIRST OUT"))
        }
        (Container::Hf, _) => {
            let detail = "a bundle holds a GGUF file, and this is a folder of safetensors";
            Err(Failure::new(what, detail).fix("convert it, or take a GGUF of the same model"))
        }
    }
}

/// This program without a model.
fn own_program() -> Result<Vec<u8>, Failure> {
    let unread = |e: &dyn std::fmt::Display| Failure::new("cannot read this program", e);
    let path = std::env::current_exe().map_err(|e| unread(&e))?;
    let bundle = Bundle::at(&path).map_err(|e| unread(&e))?;
    let most = bundle.map_or(u64::MAX, |bundle| bundle.program_bytes);
    let mut program = Vec::new();
    let file = File::open(&path).map_err(|e| unread(&e))?;
    file.take(most).read_to_end(&mut program).map_err(|e| unread(&e))?;
    Ok(program)
}

/// Writes the length of the file into a program.
fn mark(program: &mut [u8], file_bytes: u64) -> Result<(), Failure> {
    let mark = black_box(&SLOT).mark;
    // (The number behind it is aligned to 8 bytes, in memory and in files of programs.)
    let steps = (0..program.len()).step_by(8);
    let places: Vec<usize> =
        steps.filter(|at| program.get(*at..).is_some_and(|rest| rest.starts_with(&mark))).collect();
    let [place] = places[..] else {
        let detail = format!("{} places for the length of a bundle, not 1; packed?", places.len());
        return Err(Failure::new("this program cannot be bundled", detail));
    };
    let place = place + mark.len();
    if let Some(slot) = program.get_mut(place..place + 8) {
        slot.copy_from_slice(&file_bytes.to_ne_bytes());
    }
    Ok(())
}

/// The last part of a model's name as that of a program.
fn file_name(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    let odd = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let plain: String = last.chars().map(odd).collect();
    if cfg!(windows) { format!("{plain}.exe") } else { plain }
}

/// A program that is there when it is whole, and takes no file's place.
fn write(
    out: &Path,
    content: impl FnOnce(&mut File) -> std::io::Result<()>,
) -> std::io::Result<()> {
    if out.exists() {
        return Err(std::io::Error::new(ErrorKind::AlreadyExists, "it is there already"));
    }
    let mut name = out.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    let part = out.with_file_name(name);
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o777); // (less what the user's mask takes)
    }
    let mut file = options.open(&part)?;
    let written = content(&mut file).and_then(|()| file.sync_all());
    drop(file);
    let placed = written.and_then(|()| std::fs::rename(&part, out));
    if placed.is_err() {
        let _ = std::fs::remove_file(&part); // (the first error is told)
    }
    placed
}
