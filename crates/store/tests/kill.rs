//! A download killed again and again, each time long before it could be whole: it must resume,
//! and the name must answer with nothing or with all of it.

#[allow(dead_code)]
#[path = "../src/fixture.rs"]
mod fixture;

use fixture::{Reply, Server, content};
use sha2::Digest as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;
use tokenmill_store::{Limits, ModelName, Store, StoreEnv};

const TOTAL: usize = 8 << 20;
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// Set in the process that is to be killed: the folder and the address.
const CHILD: [&str; 2] = ["TOKENMILL_TEST_KILL_DIR", "TOKENMILL_TEST_KILL_URL"];

fn store(dir: &Path, url: &str) -> (Store, ModelName) {
    let env = StoreEnv {
        data_home: Some(dir.join("data")),
        hf_home: Some(dir.to_path_buf()),
        hf_endpoint: Some(url.to_string()),
        ..StoreEnv::default()
    };
    let limits =
        Limits { segment_bytes: 512 << 10, checkpoint_bytes: 64 << 10, ..Limits::default() };
    let store = Store::with_limits(env, limits);
    let name = store.name("u/r:Q8_0").unwrap();
    (store, name)
}

#[test]
fn killed_at_any_moment() {
    if let [Ok(dir), Ok(url)] = CHILD.map(std::env::var) {
        let (store, name) = store(Path::new(&dir), &url);
        store.resolve(&name, &mut |_| {}).unwrap();
        return;
    }
    let data = content(TOTAL, 1);
    let digest: String = sha2::Sha256::digest(&data).iter().map(|b| format!("{b:02x}")).collect();
    let serve = data.clone();
    let server = Server::start(move |seen, _| {
        if seen.path.starts_with("/api/") {
            let file = format!(
                r#"{{"rfilename":"m-Q8_0.gguf","lfs":{{"sha256":"{digest}","size":{TOTAL}}}}}"#
            );
            return Reply::new(200, format!(r#"{{"sha":"{COMMIT}","siblings":[{file}]}}"#));
        }
        // Four such connections need at least 256 ms for all of it.
        Reply { pause: Duration::from_millis(2), ..Reply::file(seen, &serve, "\"a\"") }
    });
    let dir = tempfile::tempdir().unwrap();
    let (store, name) = store(dir.path(), &server.url);
    let mut kills = 0;
    while store.find(&name).unwrap().is_none() {
        assert!(kills < 200, "it does not resume: a run never gets further than the one before");
        server.forget();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed_at_any_moment"])
            .env(CHILD[0], dir.path())
            .env(CHILD[1], &server.url)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The list, the probe and a range: now it is at work.
        while server.seen().len() < 3 && child.try_wait().unwrap().is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(10 + (kills * 37) % 60));
        let _ = child.kill();
        child.wait().unwrap();
        kills += 1;
    }
    assert!(kills >= 3, "it was whole after {kills} kills");
    let model = store.resolve(&name, &mut |_| {}).unwrap();
    assert!(std::fs::read(&model.path).unwrap() == data);
}
