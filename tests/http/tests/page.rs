//! The page from outside: who gets it, what it may ask for, that its files are there and are those of its sources.

use std::path::{Path, PathBuf};

use serde_json::json;
use sha2::{Digest, Sha256};
use tokenmill_http_tests::{Reply, Setup, ShelfSite, Site};

const BROWSER: (&str, &str) = ("accept", "text/html,application/xhtml+xml,*/*;q=0.8");

fn page(site: &Site) -> Reply {
    site.client.send("GET", "/", &[BROWSER], b"")
}

/// Addresses of the files that a text names.
fn named(text: &str) -> Vec<String> {
    let parts = text.split(['"', '\'', '`', '(', ')', ' ']);
    parts.filter(|part| part.starts_with("/page/")).map(str::to_owned).collect()
}

#[test]
fn browsers_get_a_page_that_asks_nobody_else() {
    let site = Site::new();
    let reply = page(&site);
    assert_eq!((reply.status, reply.header("vary")), (200, Some("accept")));
    assert_eq!(reply.header("content-type"), Some("text/html; charset=utf-8"));
    let policy = reply.header("content-security-policy").expect("a policy");
    for part in [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    ] {
        assert!(policy.split("; ").any(|one| one == part), "{part} in {policy}");
    }
    assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
    assert!(!reply.body.contains("style=") && !reply.body.contains("://"), "{}", reply.body);
    let files = named(&reply.body);
    assert!(files.len() >= 3, "{files:?}");
    for path in files {
        let kind = match path.rsplit('.').next() {
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("svg") => "image/svg+xml",
            other => panic!("{path}: {other:?}"),
        };
        let file = site.client.get(&path);
        assert_eq!((file.status, file.header("content-type")), (200, Some(kind)), "{path}");
        assert_eq!(file.header("x-content-type-options"), Some("nosniff"));
        assert!(file.header("cache-control").is_some_and(|kept| kept.contains("immutable")));
        let head = site.client.open("HEAD", &path, &[], b"").reply;
        let length = file.body.len().to_string();
        assert_eq!((head.status, head.header("content-length")), (200, Some(length.as_str())));
    }
    let folder = named(&reply.body).pop().expect("a file");
    let folder = folder.rsplit_once('/').expect("a folder").0;
    for name in ["code.js", "formula.js", "licences.txt"] {
        assert_eq!(site.client.get(&format!("{folder}/{name}")).status, 200, "{name}");
    }
}

#[test]
fn programs_are_told_that_it_runs() {
    let site = Site::new();
    for headers in [&[][..], &[("accept", "*/*")], &[("accept", "application/json")]] {
        let reply = site.client.send("GET", "/", headers, b"");
        assert_eq!((reply.status, reply.body.as_str()), (200, "tokenmill is running\n"));
        assert_eq!(reply.header("vary"), Some("accept"));
        assert_eq!(site.client.open("HEAD", "/", headers, b"").reply.status, 200);
    }
    assert_eq!(site.client.open("HEAD", "/", &[BROWSER], b"").reply.status, 200);
}

#[test]
fn what_a_browser_has_is_not_sent_again() {
    let site = Site::new();
    let first = page(&site);
    assert_eq!(first.header("cache-control"), Some("no-cache"));
    let tag = first.header("etag").expect("a tag").to_owned();
    let weak = format!("\"other\", W/{tag}");
    for (given, status) in [(tag.as_str(), 304), (weak.as_str(), 304), ("\"other\"", 200)] {
        let reply = site.client.send("GET", "/", &[BROWSER, ("if-none-match", given)], b"");
        assert_eq!((reply.status, reply.body.is_empty()), (status, status == 304), "{given}");
        assert_eq!(reply.header("etag"), Some(tag.as_str()));
    }
}

#[test]
fn other_builds_and_names_are_not_there() {
    let site = Site::new();
    let real = named(&page(&site).body).pop().expect("a file");
    let name = real.rsplit('/').next().expect("a name");
    let build = real.split('/').nth(2).expect("a build");
    for path in [
        format!("/page/0000000000000000/{name}"),
        format!("/page/{build}/nothing.js"),
        format!("/page/{build}/build.txt"),
        format!("/page/{build}/..%2f..%2fCargo.toml"),
    ] {
        let reply = site.client.get(&path);
        assert_eq!((reply.status, reply.error("code").as_str()), (404, "unknown_path"), "{path}");
    }
}

#[test]
fn the_page_is_open_and_what_it_shows_needs_the_key() {
    let mut setup = Setup::default();
    setup.server.api_keys = vec!["canary-91".into()];
    let site = Site::with(setup);
    let reply = page(&site);
    assert_eq!(reply.status, 200);
    for path in named(&reply.body) {
        let file = site.client.get(&path);
        assert!(file.status == 200 && !file.body.contains("canary-91"), "{path}");
    }
    for path in ["/v1/models", "/metrics", "/api/tags", "/models/plan"] {
        assert_eq!(site.client.get(path).status, 401, "{path}");
    }
    let other = site.client.send("GET", "/", &[BROWSER, ("origin", "https://evil.example")], b"");
    assert_eq!(other.status, 403);
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../page")
}

/// Names below a folder, from the root of all.
fn below(root: &Path, folder: &str, names: &mut Vec<String>) {
    for entry in std::fs::read_dir(root.join(folder)).expect("a folder") {
        let entry = entry.expect("an entry");
        let name = format!("{folder}/{}", entry.file_name().to_str().expect("UTF-8"));
        match entry.file_type().expect("a type").is_dir() {
            true => below(root, &name, names),
            false => names.push(name),
        }
    }
}

/// As page/sources.mjs has it.
#[test]
fn the_committed_build_is_of_the_committed_sources() {
    let root = sources();
    let alone = [
        "index.html",
        "package-lock.json",
        "package.json",
        "sources.mjs",
        "tsconfig.json",
        "vite.config.ts",
    ];
    let mut names = alone.map(str::to_owned).to_vec();
    below(&root, "src", &mut names);
    names.sort();
    let mut hash = Sha256::new();
    for name in names {
        let bytes = std::fs::read(root.join(&name)).expect("a source");
        hash.update(format!("{name}\n{}\n", bytes.len()));
        hash.update(bytes);
    }
    let digits: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let site = Site::new();
    let tag = page(&site).header("etag").expect("a tag").to_owned();
    let told = "cd page && npm ci && npm run build";
    assert_eq!(tag, format!("\"{}\"", &digits[..16]), "the page is not built anew: {told}");
}

#[test]
fn a_model_is_pinned_and_let_go_over_http() {
    let site = ShelfSite::new(Setup::default(), 100, &[("one", 60), ("two", 60)]);
    let pin = |model: &str, pinned: bool| {
        site.client.post("/models/pin", &json!({ "model": model, "pinned": pinned }))
    };
    let load = |model: &str| site.client.post("/models/load", &json!({ "model": model })).status;
    assert_eq!(load("one"), 200);
    let reply = pin("one", true);
    assert_eq!((reply.status, &reply.json()["status"]["pinned"]), (200, &json!(true)));
    // A pinned one makes no room.
    assert_eq!(load("two"), 503);
    assert_eq!(pin("one", false).status, 200);
    assert_eq!(load("two"), 200);
    assert_eq!(pin("three", true).status, 404);
    let fixed = Site::new().client.post("/models/pin", &json!({ "model": "sim" }));
    assert_eq!((fixed.status, fixed.error("param").as_str()), (400, "model"));
}

#[test]
fn a_server_that_fetches_nothing_plans_nothing() {
    let reply = Site::new().client.get("/models/plan");
    assert!(reply.status == 400 && reply.error("message").contains("started with"), "{reply:?}");
}
