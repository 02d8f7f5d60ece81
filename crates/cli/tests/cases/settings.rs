//! Settings and keys, as a user changes them: files, the environment, a running server.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::program::{self, Server, text};

/// A home whose user has these settings.
fn home(settings: &str) -> tempfile::TempDir {
    let home = tempfile::tempdir().expect("a folder");
    write(home.path(), settings);
    home
}

fn write(home: &Path, settings: &str) {
    let folder = home.join("config/tokenmill");
    fs::create_dir_all(&folder).expect("made");
    fs::write(folder.join("config.toml"), settings).expect("written");
}

/// Runs a command in a home, and what it printed on both.
fn run(
    home: &Path,
    folder: &Path,
    args: &[&str],
    variables: &[(&str, &str)],
) -> (i32, String, String) {
    let mut command = program::command(home);
    let output = command.args(args).current_dir(folder).envs(variables.iter().copied()).output();
    let output = output.expect("the program starts");
    let status = output.status.code().expect("no signal");
    (status, text(&output.stdout), text(&output.stderr))
}

fn model() -> String {
    program::case("template-that-looks-for-a-control-token").to_str().expect("UTF-8").to_owned()
}

#[test]
fn what_holds_is_shown_with_its_place() {
    let home = home("queue = 7\n[serve]\nslots = 3\nport = 1111\n");
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("tokenmill.toml"), "[serve]\nslots = 5\n").expect("written");
    let variables = [("TOKENMILL_PORT", "2222"), ("TOKENMILL_CTX", "")];
    let args = ["config", "show", "serve", "--json"];
    let (status, out, err) = run(home.path(), folder.path(), &args, &variables);
    assert_eq!((status, err.as_str()), (0, ""));
    let row = |setting: &str| -> (String, String) {
        let rows = out.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let row = rows.into_iter().find(|row| row["setting"] == setting).expect("listed");
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (word(&row["values"][0]), word(&row["from"]))
    };
    assert_eq!(row("port"), ("2222".into(), "TOKENMILL_PORT in the environment".into()));
    assert_eq!(row("slots"), ("5".into(), "tokenmill.toml:2".into()));
    let (queue, place) = row("queue");
    assert!(queue == "7" && place.ends_with("config/tokenmill/config.toml:1"), "{queue} {place}");
    assert_eq!((row("ctx").1, row("mode")), ("default".into(), ("int8".into(), "default".into())));

    // A name that is none stops every command, before it does anything.
    write(home.path(), "[serve]\nprot = 1\n");
    let (status, _, err) = run(home.path(), folder.path(), &["serve", "nothing"], &[]);
    assert_eq!(status, 1);
    assert!(err.contains("config.toml:2: there is no setting \"prot\""), "{err}");
    assert!(err.contains("did you mean port?"), "{err}");
    let (status, ..) = run(home.path(), folder.path(), &["--help"], &[]);
    assert_eq!(status, 0);
    // Nor does a folder's file open the server.
    fs::write(folder.path().join("tokenmill.toml"), "host = \"0.0.0.0\"\n").expect("written");
    write(home.path(), "");
    let (status, _, err) = run(home.path(), folder.path(), &["serve", "nothing"], &[]);
    assert!(status == 1 && err.contains("tokenmill.toml:1: host cannot be set here"), "{err}");
}

/// The status of a request with a key, once it is the one expected: changes take effect soon.
fn status_of(server: &Server, key: &str, host: &str, expect: u16) -> u16 {
    let bearer = format!("Bearer {key}");
    let ask = || {
        let headers = [("authorization", bearer.as_str()), ("host", host)];
        server.client.open("GET", "/v1/models", &headers, b"").finish().status
    };
    for _ in 0..200 {
        if ask() == expect {
            return expect;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    ask()
}

#[cfg(unix)]
#[test]
fn keys_and_settings_change_while_it_serves() {
    let home = home("");
    let folder = home.path().to_path_buf();
    let key = |args: &[&str]| run(&folder, &folder, &[&["key"], args].concat(), &[]);
    let secret = |name: &str| key(&["add", name, "--per-minute", "100000"]).1.trim().to_owned();
    let ann = secret("ann");
    let server = Server::start_in(home, &[&model(), "--ctx", "64"]);
    let told = |key: &str, expect| status_of(&server, key, "localhost", expect);
    assert_eq!([told(&ann, 200), told("tm-guess", 401), told("", 401)], [200, 401, 401]);
    let bob = secret("bob");
    assert_eq!([told(&bob, 200), told(&ann, 200)], [200, 200]);
    assert_eq!(key(&["revoke", "ann"]).0, 0);
    assert_eq!([told(&ann, 401), told(&bob, 200)], [401, 200]);
    let (_, listed, _) = key(&["list"]);
    assert_eq!(listed, "bob  100000 a minute\n");
    // With none left nobody comes in, instead of everybody.
    assert_eq!(key(&["revoke", "bob"]).0, 0);
    assert_eq!([told(&bob, 401), told("", 401)], [401, 401]);
    let bob = secret("bob");
    assert_eq!(told(&bob, 200), 200);

    // Settings are read again on SIGHUP; what is wrong with them is told and changes nothing.
    assert_eq!(status_of(&server, &bob, "box.lan", 403), 403);
    write(&folder, "[serve]\nallow-host = \"box.lan\"\nallow_hots = 1\n");
    server.signal("HUP");
    let is_told = |words: &str| {
        (0..200).any(|_| {
            std::thread::sleep(Duration::from_millis(50));
            server.said().contains(words)
        })
    };
    assert!(is_told("config.toml:3: there is no setting"), "{}", server.said());
    assert_eq!(status_of(&server, &bob, "box.lan", 403), 403);
    write(&folder, "[serve]\nallow-host = \"box.lan\"\n");
    server.signal("HUP");
    assert_eq!(status_of(&server, &bob, "box.lan", 200), 200);
    assert!(!server.said().contains(&bob) && !server.said().contains(&ann), "keys in the log");
    assert!(server.said().contains("account=\"bob\"") || server.said().contains("bob"), "its name");
}

#[test]
fn an_audit_log_is_moved_away_while_the_server_runs() {
    let home = home("");
    let folder = home.path().to_owned();
    let (path, moved) = (folder.join("audit.jsonl"), folder.join("audit.1"));
    let audit = path.to_str().expect("UTF-8").to_owned();
    let server = Server::start_in(home, &[&model(), "--audit", &audit, "--quiet"]);
    assert_eq!(server.client.get("/v1/models").status, 200);
    let has_line = |path: &Path| {
        (0..200).any(|_| {
            std::thread::sleep(Duration::from_millis(25));
            fs::read_to_string(path).is_ok_and(|text| text.contains("\"route\":\"/v1/models\""))
        })
    };
    assert!(has_line(&path));
    fs::rename(&path, &moved).expect("moved");
    server.signal("HUP");
    let is_there = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(25));
        path.exists()
    });
    assert!(is_there, "{}", server.said());
    assert_eq!(server.client.get("/v1/models").status, 200);
    assert!(has_line(&path));
    assert_eq!(fs::read_to_string(&moved).expect("kept").lines().count(), 1);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "its owner's alone");
    }
}
