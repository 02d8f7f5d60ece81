//! What is asked of a server that runs, over HTTPS too, and what the program tells of itself.

use std::fs;
use std::process::Output;

use serde_json::json;

use crate::program::{Server, answer, case, command, refusal, text};

const KEY: &str = "key-of-a-test";
const NAMES: [&str; 2] = [
    "template-that-looks-for-a-control-token",
    "byte-level-vocabulary-with-a-sentencepiece-decoder",
];

fn path(name: &str) -> String {
    case(name).to_str().expect("UTF-8").to_owned()
}

#[test]
fn a_server_is_asked_over_https() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: String| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    };
    let cert = file("cert.pem", made.cert.pem());
    let key = file("key.pem", made.signing_key.serialize_pem());
    let models = NAMES.map(path);
    let server = Server::start(&[
        &models[0],
        &models[1],
        "--keep-alive",
        "5m",
        "--tls-cert",
        &cert,
        "--tls-key",
        &key,
        "--api-key",
        KEY,
    ]);
    let url = format!("https://localhost:{}", server.client.address().port());
    let home = tempfile::tempdir().expect("a folder");
    let ask = |args: &[&str], trusted: &str| -> Output {
        let mut command = command(home.path());
        command.args(args).args(["--url", &url]).env("SSL_CERT_FILE", trusted);
        command.output().expect("it starts")
    };
    let good = |args: &[&str]| {
        let output = ask(args, &cert);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let listed = good(&["ps", "--api-key", KEY]);
    assert!(NAMES.iter().all(|name| listed.contains(name)), "{listed}");
    good(&["stop", NAMES[0], "--api-key", KEY]);
    let listed = good(&["ps", "--api-key", KEY]);
    assert!(!listed.contains(NAMES[0]) && listed.contains(NAMES[1]), "{listed}");
    assert!(
        good(&["top", "--once", "--every", "0", "--api-key", KEY])
            .contains("sentencepiece-decoder")
    );
    let without = ask(&["ps"], &cert);
    assert!(text(&without.stderr).contains("add --api-key KEY"), "{}", text(&without.stderr));
    // One that is not trusted is not told the key.
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
    let other = file("other.pem", other.cert.pem());
    let output = ask(&["ps", "--api-key", KEY], &other);
    assert!(!output.status.success(), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("certificate"), "{}", text(&output.stderr));
    for url in ["localhost:1", "ftp://a", "http://a/b"] {
        assert!(refusal(&["ps", "--url", url]).contains("is no address"), "{url}");
    }
}

#[test]
fn top_tells_of_models_and_aliases_have_their_defaults() {
    let home = tempfile::tempdir().expect("a folder");
    let settings = home.path().join("config/tokenmill");
    fs::create_dir_all(&settings).expect("made");
    let of = NAMES[0];
    let table =
        format!("[alias.brief]\nmodel = \"{of}\"\nmax-tokens = 2\ntemplate = \"t.jinja\"\n");
    fs::write(settings.join("config.toml"), &table).expect("written");
    fs::write(settings.join("t.jinja"), "{{ messages[0].content }}").expect("written");
    let server = Server::start_in(home, &[&path(of)]);
    let said = json!({ "model": "brief", "messages": [{ "role": "user", "content": "a b" }],
        "ignore_eos": true });
    let reply = server.client.post("/v1/chat/completions", &said);
    let answer_ = reply.json();
    assert_eq!(
        (&answer_["model"], &answer_["usage"]["completion_tokens"]),
        (&json!("brief"), &json!(2))
    );
    let list = server.client.get("/v1/models").json();
    let ids: Vec<&str> =
        list["data"].as_array().expect("a list").iter().filter_map(|m| m["id"].as_str()).collect();
    assert_eq!(ids, [of, "brief"]);
    let url = format!("http://{}", server.client.address());
    let frame = answer(&["top", "--once", "--every", "0.01", "--url", &url]);
    let row = frame.lines().find(|line| line.contains("control-token")).expect(&frame);
    assert!(row.contains("loaded") && row.contains("0/"), "{frame}");
    assert!(frame.contains("tokens/s generated") && frame.contains("KV BLOCKS"), "{frame}");
    drop(server);
    // The same on the command line, and what is wrong there.
    let server = Server::start(&[&path(of), "--alias", &format!("b={of},max_tokens=1,stop=x")]);
    let reply = server.client.post("/v1/completions", &json!({ "model": "b", "prompt": "a" }));
    assert_eq!(reply.json()["usage"]["completion_tokens"], 1, "{reply:?}");
    drop(server);
    let told = refusal(&["serve", &path(of), "--alias", "b=c"]);
    assert!(told.contains("the alias \"b\" is of \"c\""), "{told}");
}

#[test]
fn wrong_aliases_in_files_are_told_with_their_line() {
    let home = tempfile::tempdir().expect("a folder");
    let file = home.path().join("s.toml");
    for (text_, expect) in [
        ("port = 1\n[alias.a]\nmodel = \"m\"\nheat = 1\n", "s.toml:2: the alias a: "),
        ("[alias]\na = 1\n", "s.toml:2: the alias a: it is no table"),
        ("[serve]\nalias = [\"a=b\"]\n[alias.a]\nmodel = \"m\"\n", "alias is set twice"),
    ] {
        fs::write(&file, text_).expect("written");
        let told = refusal(&["config", "show", "serve", "--config", file.to_str().expect("UTF-8")]);
        assert!(told.contains(expect), "{told}");
    }
}

#[test]
fn the_program_tells_of_itself() {
    let version = answer(&["--version"]);
    for word in ["tokenmill ", "\ndevices ", "cuda", "\ninstructions ", "\nsystem "] {
        assert!(version.contains(word), "{word}: {version}");
    }
    assert_eq!(answer(&["-V"]).lines().count(), 1);
    let page = answer(&["man", "serve"]);
    assert!(page.contains(".TH tokenmill-serve") && page.contains("keep\\-alive"), "{page}");
    let home = tempfile::tempdir().expect("a folder");
    answer(&["man", "--dir", home.path().to_str().expect("UTF-8")]);
    let mut names: Vec<String> = fs::read_dir(home.path())
        .expect("a folder")
        .map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    for name in ["tokenmill.1", "tokenmill-serve.1", "tokenmill-key-add.1", "tokenmill-launch.1"] {
        assert!(names.iter().any(|n| n == name), "{name}: {names:?}");
    }
    assert!(answer(&["completions", "bash"]).contains("launch"));
}
