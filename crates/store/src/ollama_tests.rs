//! Ollama's store and LM Studio's folders read in place, and a registry on 127.0.0.1.

use crate::digest::hex;
use crate::env::{Limits, StoreEnv};
use crate::error::StoreError;
use crate::fixture::{Reply, Seen, Server, content};
use crate::local::{Owner, State};
use crate::own::LocalModel;
use crate::store::Store;
use sha2::Digest as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokenmill_ir::Defaults;

const KIND: &str = "application/vnd.ollama.image.";
const CONFIG: &str = r#"{"model_format":"gguf","model_family":"llama"}"#;
const PARAMS: &str = r#"{"temperature":0.6,"stop":["<|end|>"],"num_ctx":4096,"mirostat":1}"#;

fn digest(bytes: &[u8]) -> String {
    hex(&sha2::Sha256::digest(bytes))
}

/// A model as layers: kind and bytes, the config among them.
#[derive(Clone)]
struct Model {
    layers: Vec<(&'static str, Vec<u8>)>,
}

impl Model {
    fn new(bytes: usize, seed: u64) -> Self {
        let layers = vec![
            ("model", content(bytes, seed)),
            ("template", b"{{ .Prompt }}".to_vec()),
            ("system", b"Be brief.".to_vec()),
            ("params", PARAMS.into()),
            ("license", b"free".to_vec()),
            ("config", CONFIG.into()),
        ];
        Self { layers }
    }

    fn with(mut self, kind: &'static str, bytes: &[u8]) -> Self {
        self.layers.retain(|(k, _)| *k != kind);
        self.layers.push((kind, bytes.to_vec()));
        self
    }

    fn bytes(&self) -> u64 {
        self.layers.iter().map(|(_, b)| b.len() as u64).sum()
    }

    fn manifest(&self) -> String {
        let layer = |(kind, bytes): &(&str, Vec<u8>)| {
            let (digest, size) = (digest(bytes), bytes.len());
            format!(r#"{{"mediaType":"{KIND}{kind}","digest":"sha256:{digest}","size":{size}}}"#)
        };
        let config = self.layers.iter().filter(|l| l.0 == "config").map(layer).next();
        let others = self.layers.iter().filter(|l| l.0 != "config").map(layer);
        let (config, layers) = (config.unwrap_or_default(), others.collect::<Vec<_>>().join(","));
        format!(r#"{{"schemaVersion":2,"config":{config},"layers":[{layers}]}}"#)
    }

    /// Puts it where Ollama would.
    fn install(&self, root: &Path, name: &str) {
        for (_, bytes) in &self.layers {
            write(&root.join("blobs").join(format!("sha256-{}", digest(bytes))), bytes);
        }
        write(&root.join("manifests").join(name), self.manifest().as_bytes());
    }

    /// What a registry says to `seen`; `tag` is the one it knows.
    fn answer(&self, seen: &Seen, name: &str, tag: &str) -> Reply {
        if seen.path == format!("/v2/{name}/manifests/{tag}") {
            return Reply::new(200, self.manifest());
        }
        let hex = seen.path.strip_prefix(&format!("/v2/{name}/blobs/sha256:")).unwrap_or_default();
        match self.layers.iter().find(|(_, bytes)| digest(bytes) == hex) {
            Some((_, bytes)) => Reply::file(seen, bytes, "\"blob\""),
            None => Reply::new(404, "{\"errors\":[]}"),
        }
    }
}

fn write(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

struct Bench {
    dir: tempfile::TempDir,
    server: Server,
    store: Store,
}

impl Bench {
    fn new(script: impl Fn(&Seen, usize) -> Reply + Send + Sync + 'static) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(script);
        let env = StoreEnv {
            home: Some(dir.path().join("home")),
            data_home: Some(dir.path().join("data")),
            hf_home: Some(dir.path().join("hf")),
            hf_token: Some("hf_secret".into()),
            ollama_models: Some(dir.path().join("ollama")),
            ollama_registry: Some(server.url.clone()),
            ..StoreEnv::default()
        };
        let pause = Duration::from_millis(1);
        let limits = Limits { attempts: 2, pause, segment_bytes: 500_000, ..Limits::default() };
        let store = Store::with_limits(env, limits);
        Self { dir, server, store }
    }

    fn without_registry() -> Self {
        Self::new(|_, _| Reply::new(500, ""))
    }

    fn theirs(&self) -> PathBuf {
        self.dir.path().join("ollama")
    }

    fn own(&self) -> PathBuf {
        self.dir.path().join("data/tokenmill/models/ollama")
    }

    fn studio(&self) -> PathBuf {
        self.dir.path().join("home/.lmstudio/models")
    }

    fn find(&self, name: &str) -> Result<Option<LocalModel>, StoreError> {
        self.store.find(&self.store.name(name)?)
    }

    fn pull(&self, name: &str) -> Result<LocalModel, StoreError> {
        self.store.pull(&self.store.name(name)?, &mut |_| {})
    }

    fn list(&self) -> Vec<(String, Owner)> {
        self.store.list().into_iter().map(|e| (e.model.name, e.owner)).collect()
    }
}

/// Files below a folder, the locks left out.
fn files(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_none_or(|e| e != "lock") {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[test]
fn ollamas_store_is_read_in_place() {
    let bench = Bench::without_registry();
    let model = Model::new(3000, 1);
    model.install(&bench.theirs(), "registry.ollama.ai/library/tiny/1b");
    model.install(&bench.theirs(), "hf.co/u/r/Q4_K_M");
    let before = files(bench.dir.path());
    let found = bench.find("ollama:tiny:1b").unwrap().unwrap();
    assert_eq!(fs::read(&found.path).unwrap(), model.layers[0].1);
    assert_eq!((found.files.len(), found.bytes()), (6, model.bytes()));
    let defaults = &found.defaults;
    assert_eq!((defaults.sampling.temperature, defaults.context), (Some(0.6), Some(4096)));
    assert_eq!(defaults.sampling.stop.as_deref(), Some(&["<|end|>".to_string()][..]));
    assert_eq!(defaults.system.as_deref(), Some("Be brief."));
    assert!(defaults.unused[0].contains("mirostat 1"), "{:?}", defaults.unused);
    assert_eq!(defaults.template_bytes, Some(13));
    assert!(bench.find("ollama:hf.co/u/r:Q4_K_M").unwrap().is_some());
    assert!(bench.find("ollama:tiny").unwrap().is_none(), "there is no latest");
    let theirs = Owner::Ollama;
    let names = ["ollama:hf.co/u/r:Q4_K_M", "ollama:tiny:1b"].map(|n| (n.to_string(), theirs));
    assert_eq!(bench.list(), names);
    assert_eq!(files(bench.dir.path()), before, "looking changes nothing");
    assert!(bench.server.seen().is_empty());
    // not whole: not there, and told by its name
    for (lost, why) in [(false, "has 10 bytes, 3000 are right"), (true, "is missing, 3000")] {
        match lost {
            true => fs::remove_file(&found.path).unwrap(),
            false => fs::write(&found.path, "too short!").unwrap(),
        }
        assert!(bench.find("ollama:tiny:1b").unwrap().is_none());
        let told: Vec<_> =
            bench.store.unusable().into_iter().map(|u| u.error.to_string()).collect();
        let begin = format!("ollama:tiny:1b is damaged: its model {why}");
        assert!(told.iter().any(|told| told.starts_with(&begin)), "{told:?}");
        assert_eq!(bench.store.name("tiny:1b").unwrap().to_string(), "ollama:tiny:1b");
    }
}

#[test]
fn other_programs_files_stay() {
    let bench = Bench::without_registry();
    Model::new(3000, 1).install(&bench.theirs(), "registry.ollama.ai/library/tiny/latest");
    write(&bench.studio().join("u/r/m-Q8_0.gguf"), b"x");
    let before = files(bench.dir.path());
    for (name, hint) in [("ollama:tiny", "ollama rm tiny:latest"), ("lmstudio:u/r", "LM Studio")] {
        let error = bench.store.rm(&bench.store.name(name).unwrap()).unwrap_err();
        assert!(matches!(error, StoreError::NotOwned { .. }), "{error}");
        assert!(error.to_string().contains(hint), "{error}");
    }
    for name in ["u/r:Q8_0", "u/r"] {
        let error = bench.store.rm(&bench.store.name(name).unwrap()).unwrap_err();
        assert!(matches!(error, StoreError::NotLocal { .. }), "{error}");
    }
    assert_eq!(files(bench.dir.path()), before);
}

#[test]
fn what_cannot_be_run_is_refused_by_name() {
    let bench = Bench::without_registry();
    let base = || Model::new(100, 1);
    let table = [
        ("lora", base().with("adapter", b"x"), "adapter"),
        ("llava", base().with("projector", b"x"), "projector"),
        ("other", base().with("config", br#"{"model_format":"safetensors"}"#), "safetensors"),
        ("odd", base().with("params", br#"{"temperature":"hot"}"#), "temperature"),
    ];
    for (name, model, expect) in table {
        model.install(&bench.theirs(), &format!("registry.ollama.ai/library/{name}/latest"));
        let error = bench.find(&format!("ollama:{name}")).unwrap_err().to_string();
        assert!(error.contains(expect) && error.lines().count() <= 3, "{error}");
    }
    assert!(bench.list().is_empty());
    let names: Vec<String> = bench.store.unusable().into_iter().map(|u| u.name).collect();
    let expect = ["llava", "lora", "odd", "other"].map(|n| format!("ollama:{n}:latest"));
    assert_eq!(names, expect);
}

#[test]
fn lm_studios_folders_are_read_in_place() {
    let bench = Bench::without_registry();
    write(&bench.studio().join("u/r-GGUF/m-Q8_0.gguf"), b"eight");
    write(&bench.studio().join("u/r-GGUF/m-Q4_K_M.gguf"), b"four");
    write(&bench.studio().join("u/r-GGUF/mmproj-m-F16.gguf"), b"no model");
    write(&bench.studio().join("mlx-community/m-4bit/config.json"), b"{}");
    write(&bench.studio().join("mlx-community/m-4bit/model.safetensors"), b"mlx");
    let elsewhere = bench.dir.path().join("big disk");
    write(&elsewhere.join("v/w/odd name.gguf"), b"odd");
    let settings = serde_json::json!({ "downloadsFolder": elsewhere }).to_string();
    write(&bench.dir.path().join("home/.lmstudio/settings.json"), settings.as_bytes());
    let odd = elsewhere.join("v/w/odd name.gguf").display().to_string();
    let names = [
        odd.as_str(),
        "lmstudio:mlx-community/m-4bit",
        "lmstudio:u/r-GGUF:Q4_K_M",
        "lmstudio:u/r-GGUF:Q8_0",
    ];
    assert_eq!(bench.list(), names.map(|n| (n.to_string(), Owner::LmStudio)));
    let path_of = |name: &str| bench.find(name).unwrap().unwrap().path;
    for name in names {
        assert!(path_of(name).exists(), "{name}");
    }
    assert_eq!(
        path_of("lmstudio:mlx-community/m-4bit"),
        bench.studio().join("mlx-community/m-4bit")
    );
    assert!(path_of("lmstudio:u/r-GGUF").ends_with("m-Q4_K_M.gguf"));
    // the repository's own name finds the copy, no revision of it
    assert!(path_of("u/r-GGUF:q8_0").ends_with("m-Q8_0.gguf"));
    assert!(bench.find("u/r-GGUF:q8_0@main").unwrap().is_none());
    let error = bench.pull("lmstudio:u/r-GGUF:Q2_K").unwrap_err().to_string();
    assert!(error.contains("tokenmill pull u/r-GGUF:Q2_K"), "{error}");
}

#[test]
fn short_names() {
    let bench = Bench::without_registry();
    for (name, seed) in [("tiny/1b", 1), ("tiny/3b", 2), ("solo/7b", 3), ("both/latest", 4)] {
        let name = format!("registry.ollama.ai/library/{name}");
        Model::new(100, seed).install(&bench.theirs(), &name);
    }
    Model::new(100, 5).install(&bench.theirs(), "registry.ollama.ai/me/duo/latest");
    Model::new(100, 6).install(&bench.theirs(), "registry.ollama.ai/me/duo/q8");
    write(&bench.studio().join("u/both-GGUF/m-Q8_0.gguf"), b"x");
    write(&bench.studio().join("u/alone-GGUF/m-Q8_0.gguf"), b"x");
    let table: &[(&str, Result<&str, &str>)] = &[
        ("tiny:1b", Ok("ollama:tiny:1b")),
        ("TINY:3B", Ok("ollama:tiny:3b")),
        ("solo", Ok("ollama:solo:7b")),
        ("duo", Ok("ollama:me/duo:latest")),
        ("alone", Ok("lmstudio:u/alone-GGUF:Q8_0")),
        ("alone-gguf:q8_0", Ok("lmstudio:u/alone-GGUF:Q8_0")),
        ("smollm2", Ok("smollm2")),
        ("tiny", Err("ollama:tiny:1b, ollama:tiny:3b")),
        ("both", Err("ollama:both:latest, lmstudio:u/both-GGUF:Q8_0")),
        ("none", Err("no model is called none")),
        ("tiny:9b", Err("tokenmill pull ollama:tiny:9b")),
    ];
    for (word, expect) in table {
        let found = bench.store.name(word).map(|n| n.to_string()).map_err(|e| e.to_string());
        match (&found, expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found, expect, "{word}"),
            (Err(found), Err(expect)) => assert!(found.contains(expect), "{word}: {found}"),
            _ => panic!("{word}: {found:?}"),
        }
    }
    assert!(matches!(bench.store.name("tiny"), Err(StoreError::Ambiguous { .. })));
}

#[test]
fn a_pulled_model_lies_in_the_own_store() {
    let model = Model::new(2_000_000, 1);
    let serve = model.clone();
    let bench = Bench::new(move |seen, _| serve.answer(seen, "library/tiny", "1b"));
    let found = bench.pull("ollama:tiny:1b").unwrap();
    assert_eq!(fs::read(&found.path).unwrap(), model.layers[0].1);
    assert!(found.path.starts_with(bench.own()) && found.defaults != Defaults::default());
    assert_eq!(bench.list(), [("ollama:tiny:1b".to_string(), Owner::Own)]);
    assert!(bench.server.seen().iter().all(|s| s.token.is_none()), "the hub's token");
    // again: the manifest alone is asked for; a damaged file is fetched anew
    bench.server.forget();
    bench.pull("ollama:tiny:1b").unwrap();
    assert_eq!(bench.server.seen().len(), 1);
    fs::write(&found.path, content(2_000_000, 2)).unwrap();
    let name = bench.store.name("ollama:tiny:1b").unwrap();
    let corrupt = |c: &crate::local::Checked| matches!(c.state, State::Corrupt { .. });
    assert!(bench.store.verify(Some(&name), &mut |_| {}).unwrap().iter().any(corrupt));
    bench.pull("ollama:tiny:1b").unwrap();
    assert!(!bench.store.verify(Some(&name), &mut |_| {}).unwrap().iter().any(corrupt));
    let removed = bench.store.rm(&name).unwrap();
    assert_eq!((removed.files, removed.bytes), (7, model.bytes()));
    assert!(files(&bench.own()).is_empty());
}

#[test]
fn rm_keeps_shared_blobs() {
    let (one, two) = (Model::new(500, 1), Model::new(500, 2));
    let (first, second) = (one.clone(), two.clone());
    let bench = Bench::new(move |seen, _| match first.answer(seen, "library/x", "1") {
        reply if reply.status == 404 => second.answer(seen, "library/x", "2"),
        reply => reply,
    });
    bench.pull("ollama:x:1").unwrap();
    bench.pull("ollama:x:2").unwrap();
    let removed = bench.store.rm(&bench.store.name("ollama:x:1").unwrap()).unwrap();
    assert_eq!((removed.files, removed.bytes), (2, 500), "the model and the manifest");
    assert!(bench.find("ollama:x:2").unwrap().is_some());
}

#[test]
fn blobs_that_ollama_has_are_not_fetched_again() {
    let model = Model::new(2_000_000, 1);
    for is_damaged in [false, true] {
        let serve = model.clone();
        let bench = Bench::new(move |seen, _| serve.answer(seen, "library/tiny", "latest"));
        model.install(&bench.theirs(), "registry.ollama.ai/library/tiny/latest");
        let theirs = bench.find("ollama:tiny").unwrap().unwrap().path;
        if is_damaged {
            fs::write(&theirs, content(2_000_000, 9)).unwrap();
        }
        let found = bench.pull("ollama:tiny").unwrap();
        assert_eq!(found.path == theirs, !is_damaged);
        assert_eq!(fs::read(&found.path).unwrap(), model.layers[0].1);
        assert_eq!(bench.server.seen().len() > 1, is_damaged);
        assert_eq!(bench.find("ollama:tiny").unwrap().unwrap().path, found.path);
        assert_eq!(files(&bench.theirs()).len(), 7, "nothing added, nothing removed");
    }
}

#[test]
fn a_broken_pull_resumes() {
    let model = Model::new(2_000_000, 1);
    let serve = model.clone();
    let bench = Bench::new(move |seen, n| match n {
        0..12 => Reply { cut: Some(100_000), ..serve.answer(seen, "library/tiny", "latest") },
        12..18 => Reply::new(503, ""),
        _ => serve.answer(seen, "library/tiny", "latest"),
    });
    let mut tries = 0;
    while bench.pull("ollama:tiny").is_err() {
        assert_eq!(bench.find("ollama:tiny").unwrap(), None, "no half model");
        tries += 1;
        assert!(tries < 20, "it never recovers");
    }
    let found = bench.find("ollama:tiny").unwrap().unwrap();
    assert_eq!(fs::read(&found.path).unwrap(), model.layers[0].1);
    assert!(tries > 0);
}

/// A case, what the registry answers to a request (of a model of 2 MB), a part of the message.
type Evil = (&'static str, Script, &'static str);
type Script = Box<dyn Fn(&Seen, &Model) -> Reply + Send + Sync>;

fn is_manifest(seen: &Seen) -> bool {
    seen.path.contains("/manifests/")
}

/// The manifest with one text in the place of another.
fn edited(from: &'static str, to: &'static str) -> Script {
    Box::new(move |seen, model| match is_manifest(seen) {
        true => Reply::new(200, model.manifest().replacen(from, to, 1)),
        false => model.answer(seen, "library/tiny", "latest"),
    })
}

/// The good manifest, and for each blob what `reply` makes of the good answer.
fn blobs(reply: impl Fn(&Seen, Reply) -> Reply + Send + Sync + 'static) -> Script {
    Box::new(move |seen, model| {
        let good = model.answer(seen, "library/tiny", "latest");
        if is_manifest(seen) { good } else { reply(seen, good) }
    })
}

fn evil_registries() -> Vec<Evil> {
    let mut cases: Vec<Evil> = vec![
        ("traversal", edited("sha256:", "sha256:../../../../evil/"), "names the blob"),
        ("absolute digest", edited("sha256:", "/etc/passwd"), "names the blob"),
        ("digest with NUL", edited("sha256:", "sha256:\\u0000"), "names the blob"),
        ("digest with newline", edited("sha256:", "sha256:\\n"), "names the blob"),
        ("wrong size", edited("\"size\":2000000", "\"size\":1999999"), "wrong length"),
        (
            "far too large",
            edited("\"size\":2000000", "\"size\":18446744073709551615"),
            "wrong length",
        ),
        ("large template", edited("\"size\":13", "\"size\":1300000000"), "template layer has"),
        ("negative size", edited("\"size\":13", "\"size\":-1"), "wrong answer"),
        ("kind with NUL", edited("image.template", "image.\\u0000\\n"), "a layer of the kind"),
        ("adapter", edited("image.template", "image.adapter"), "adapter"),
    ];
    let manifest = |make: fn() -> Reply| -> Script { Box::new(move |_, _| make()) };
    let packed = |_: &Seen, r: Reply| r.with("Content-Encoding", "gzip");
    let endless = |_: &Seen, r: Reply| Reply {
        endless: true,
        ..Reply::new(200, r.body).with("ETag", "\"blob\"")
    };
    cases.extend([
        ("no manifest", manifest(|| Reply::new(404, "")), "check model and tag"),
        ("private", manifest(|| Reply::new(401, "")), "ollama pull tiny:latest"),
        ("manifest is no JSON", manifest(|| Reply::new(200, "<html>")), "wrong answer"),
        ("deep manifest", manifest(|| Reply::new(200, "[".repeat(500_000))), "wrong answer"),
        (
            "endless manifest",
            manifest(|| Reply { endless: true, ..Reply::new(200, "{") }),
            "more than 1048576 bytes",
        ),
        (
            "packed manifest",
            manifest(|| Reply::new(200, "x").with("Content-Encoding", "gzip")),
            "packed (gzip)",
        ),
        (
            "redirect loop",
            manifest(|| Reply::new(307, "").with("Location", "/v2/again")),
            "more than 8 redirects",
        ),
        (
            "redirect to a file",
            manifest(|| Reply::new(307, "").with("Location", "file:///etc/passwd")),
            "redirect from http to file",
        ),
        ("packed blobs", blobs(packed), "packed (gzip)"),
        ("endless blobs", blobs(endless), "wrong length"),
        ("other bytes", blobs(|_, r| Reply { body: vec![7; r.body.len()], ..r }), "wrong digest"),
        ("short blobs", blobs(|_, r| Reply { body: r.body[1..].to_vec(), ..r }), ""),
    ]);
    cases
}

#[test]
fn evil_registries_leave_no_model() {
    let model = Model::new(2_000_000, 1);
    for (case, script, expect) in evil_registries() {
        let serve = model.clone();
        let bench = Bench::new(move |seen, _| script(seen, &serve));
        let error = bench.pull("ollama:tiny").unwrap_err();
        let text = error.to_string();
        assert!(text.contains(expect) && text.lines().count() <= 4, "{case}: {text}");
        assert!(!text.contains('\0'), "{case}: {text:?}");
        assert_eq!(bench.list(), [], "{case}");
        assert!(bench.find("ollama:tiny").unwrap().is_none(), "{case}");
        // nothing outside the own store, and what has its final name there has its bytes
        for path in files(bench.dir.path()) {
            assert!(path.starts_with(bench.own().join("blobs")), "{case}: {}", path.display());
            let name = path.file_name().unwrap().to_str().unwrap();
            if !name.contains(".partial") {
                let expect = format!("sha256-{}", digest(&fs::read(&path).unwrap()));
                assert_eq!(name, expect, "{case}");
            }
        }
    }
}
