//! What people type: commands, their limits and their words.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::program::{Server, answer, case, command, refusal, run, text};

/// A model that puts no token before a text; its context is 512 tokens.
fn model() -> String {
    path(case("score-and-eval-an-empty-text").join("model"))
}

fn path(path: PathBuf) -> String {
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn score_and_eval_an_empty_text() {
    let model = model();
    for name in ["empty.txt", "one.txt"] {
        let file = path(case("score-and-eval-an-empty-text").join(name));
        let told = refusal(&["score", &model, "-f", &file]);
        assert!(told.contains("nothing to score"), "{name}: {told}");
        let told = refusal(&["eval", &model, "-f", &file]);
        assert!(told.contains("nothing to evaluate"), "{name}: {told}");
    }
    let told = refusal(&["score", &model, "--ids", "5"]);
    assert!(told.contains("nothing to score"), "{told}");
    let told = refusal(&["score", &model, "--ids", "5,280"]);
    assert!(told.contains("token 280: token ids go from 0 to 279"), "{told}");
    let two = answer(&["score", &model, "--ids", "5,279"]);
    assert_eq!(two.lines().count(), 2);
}

/// The bytes of the only file of [`hub`], and their SHA-256.
const FILE: (&str, &str) =
    ("tiny\n", "36d25d3d80f8431614deece844a6def69fb24b92310156ce7847ba1d9595db57");

/// A hub with one repository that answers the requests of which `busy` says so with that text
/// instead; its address and the paths asked for.
fn hub(
    busy: impl Fn(usize) -> Option<String> + Send + 'static,
) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let log = Arc::clone(&asked);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let head = read_head(&mut stream);
            let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
            let before = {
                let mut log = log.lock().expect("no panic");
                log.push(path.clone());
                log.len() - 1
            };
            let reply = busy(before).unwrap_or_else(|| good(&path));
            let _ = stream.write_all(reply.as_bytes()); // the program may have ended
        }
    });
    (url, asked)
}

fn read_head(stream: &mut TcpStream) -> String {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n == 1) {
        head.push(byte[0]);
    }
    text(&head)
}

fn good(path: &str) -> String {
    let body = match path.starts_with("/api/models/user/repo/") {
        true => format!(
            r#"{{"sha":"{}","siblings":[{{"rfilename":"m-Q8_0.gguf","size":{n},
                "lfs":{{"sha256":"{}","size":{n}}}}}]}}"#,
            "0123456789".repeat(4),
            FILE.1,
            n = FILE.0.len(),
        ),
        false => FILE.0.to_owned(),
    };
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
}

fn pull(url: &str) -> Output {
    let home = tempfile::tempdir().expect("a folder");
    let mut command = command(home.path());
    command.env("HF_ENDPOINT", url).args(["pull", "user/repo:Q8_0"]);
    command.output().expect("the program starts")
}

#[test]
fn hub_says_when_to_come_back() {
    let file = case("hub-says-when-to-come-back").join("response.http");
    let busy = std::fs::read_to_string(file).expect("the case");
    let busy = busy.replace('\r', "").replace('\n', "\r\n");
    let with = |status: &str, after: &str| {
        let lines = busy.replace("429 Too Many Requests", status);
        lines.replace("Retry-After: 20", &format!("Retry-After: {after}"))
    };
    let date = httpdate(SystemTime::now() + Duration::from_secs(1));
    for reply in [
        with("429 Too Many Requests", "1"),
        with("503 Service Unavailable", "1"),
        with("429 Too Many Requests", &date),
    ] {
        // the list, and then the file, are refused once each
        let again = reply.clone();
        let (url, asked) = hub(move |n| [0, 2].contains(&n).then(|| again.clone()));
        let output = pull(&url);
        let told = text(&output.stderr);
        assert!(output.status.success(), "{reply}\n{told}");
        assert!(told.contains("says when to come back; trying again in"), "{told}");
        assert_eq!(asked.lock().expect("no panic").len(), 4, "asked as often as told");
    }
    let long = with("429 Too Many Requests", "7200");
    let (url, asked) = hub(move |_| Some(long.clone()));
    let output = pull(&url);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("come back in 2 h") && told.contains("10 min"), "{told}");
    assert_eq!(asked.lock().expect("no panic").len(), 1);
}

/// A date as HTTP has it, from `date` of the system: this crate needs no calendar.
fn httpdate(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
    let mut date = std::process::Command::new("date");
    let output = date.env("LC_ALL", "C").args(["-u", "-d", &format!("@{seconds}")]);
    let output = output.arg("+%a, %d %b %Y %H:%M:%S GMT").output().expect("date");
    text(&output.stdout).trim().to_owned()
}

#[test]
fn without_a_network_one_message() {
    let home = tempfile::tempdir().expect("a folder");
    for (name, place) in [("user/repo", "127.0.0.1:9"), ("smollm2", "127.0.0.1:9")] {
        // No command for wheels either.
        let output = command(home.path()).env("PATH", "").args(["pull", name]).output();
        let output = output.expect("the program starts");
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(!told.contains("trying again") && !told.contains("9//"), "{told}");
        assert_eq!(told.matches(&format!("cannot reach {place}")).count(), 1, "{told}");
    }
}

#[test]
fn no_models_are_told() {
    let output = run(&["list"]);
    assert!(output.status.success() && output.stdout.is_empty());
    assert!(text(&output.stderr).contains("tokenmill pull smollm2"));
    assert!(answer(&["help", "run"]).contains("--temp"));
}

/// Runs it with that standard input.
fn piped(args: &[&str], input: &str) -> Output {
    let home = tempfile::tempdir().expect("a folder");
    let mut command = command(home.path());
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut stdin = child.stdin.take().expect("piped");
    let _ = stdin.write_all(input.as_bytes()); // it may have ended
    drop(stdin);
    child.wait_with_output().expect("it ends")
}

#[test]
fn what_is_piped_is_part_of_the_prompt() {
    let model = model();
    let tail = ["--json", "-n", "4", "--temp", "0"];
    let of = |output: Output| -> (Value, Value) {
        assert!(output.status.success(), "{}", text(&output.stderr));
        let line: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (line["text"].clone(), line["prompt_tokens"].clone())
    };
    let args = |prompt| [&["run", &model, prompt], &tail[..]].concat();
    let both = of(piped(&args("Sum up"), "a text\n"));
    assert_eq!(both, of(run(&args("Sum up\n\na text\n"))));
    assert_ne!(both.1, of(run(&args("Sum up"))).1, "the text counts");
    let alone = [&["run", &model], &tail[..]].concat();
    assert_eq!(of(piped(&alone, "a text\n")), of(run(&args("a text\n"))));
    let raw = [&args("Sum up")[..], &["--raw", "--system", "x"]].concat();
    let output = run(&raw);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--system"));
    let output = piped(&["run", &model], " \n");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("there is no prompt"));
}

#[test]
fn a_context_beyond_the_model_is_told_and_never_advised() {
    let model = model();
    let output = run(&["run", &model, "hi", "--ctx", "8k", "-n", "2"]);
    assert!(text(&output.stderr).contains("8192 tokens was asked for; this model's own, 512"));
    let output = run(&["run", &model, "hi", "--ctx", "512", "-n", "2"]);
    assert!(!text(&output.stderr).contains("note:"));
    let told = refusal(&["run", &model, "hi", "-n", "600"]);
    assert!(told.contains("context of 512") && !told.contains("--ctx"), "{told}");
    let told = refusal(&["run", &model, "hi", "-n", "100", "--ctx", "64"]);
    let advised = told.split_once("--ctx ").expect("advice").1.trim().to_owned();
    answer(&["run", &model, "hi", "-n", "100", "--ctx", &advised]);
}

#[test]
fn keys_too_loud_for_four_bits() {
    let model = path(case("keys-too-loud-for-four-bits").join("model"));
    let commands: [&[&str]; 4] = [
        &["run", &model, "hi", "--temp", "0", "-n", "2"],
        &["score", &model, "--ids", "5,6,7"],
        &["bench", &model, "-p", "16", "-n", "2", "-r", "1"],
        &["serve", &model, "--port", "0"],
    ];
    for command in commands {
        let told = refusal(&[command, &["--kv", "int4"]].concat());
        let figure = told.split("predictions by ").nth(1).and_then(|rest| rest.split(' ').next());
        let figure: f64 = figure.and_then(|f| f.parse().ok()).expect("the figure");
        assert!(figure > 0.05, "{told}");
        assert!(told.contains("at most 0.05") && told.contains("--kv-anyway"), "{told}");
        assert!(told.contains("--kv k8v4"), "the format that would do: {told}");
    }
    for command in &commands[..3] {
        let output = run(&[command, &["--kv", "int4", "--kv-anyway"][..]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains("warning: 4-bit keys"), "{}", text(&output.stderr));
    }
    drop(Server::start(&[&model, "--kv", "int4", "--kv-anyway"]));
    // The format that was named, and those that are never asked.
    for kv in ["k8v4", "int8", "int16"] {
        let output = run(&["score", &model, "--ids", "5,6,7", "--kv", kv]);
        assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    }
}

#[test]
fn images_are_shown_to_models_that_see() {
    let (model, home) = (model(), tempfile::tempdir().expect("a folder"));
    // One red pixel.
    let mut bitmap =
        b"BM\x3a\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\x18\0".to_vec();
    bitmap.resize(54, 0);
    bitmap.extend([0, 0, 255, 0]);
    for (name, file, words) in [
        ("none.png", None, "cannot show the image"),
        ("text.png", Some(&b"hello"[..]), "PNG, JPEG, WebP, GIF and BMP are"),
        ("broken.bmp", Some(&bitmap[..40]), "the BMP image is broken"),
        ("red.bmp", Some(&bitmap[..]), "sees no images"),
    ] {
        let at = home.path().join(name);
        if let Some(file) = file {
            std::fs::write(&at, file).expect("it is written");
        }
        let told = refusal(&["run", &model, "--image", &path(at), "What is it?"]);
        assert!(told.contains(words), "{name}: {told}");
    }
}

#[test]
fn bench_refuses_what_does_not_fit() {
    let model = model();
    for args in [["-p", "100000"], ["--depth", "20000"], ["-n", "1000"]] {
        let told = refusal(&[&["bench", &model], &args[..]].concat());
        assert!(told.contains("this model's context is 512 tokens"), "{args:?}: {told}");
    }
    let told = refusal(&["bench", &model, "-p", "0", "-n", "0"]);
    assert!(told.contains("nothing to measure"), "{told}");
    let told = refusal(&["bench", &model, "--draft", "ngram"]);
    assert!(told.contains("--draft"), "{told}");
    for args in [["--batch", "100000"], ["-r", "0"], ["--threads", "0"]] {
        let output = run(&[&["bench", &model], &args[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output.stderr));
    }
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let model = model();
    for args in [
        vec!["completions", "bash"],
        vec!["inspect", &model, "--tensors"],
        vec!["lint", &model],
        vec!["score", &model, "--ids", "1,2,3"],
        vec!["run", &model, "hi", "-n", "300"],
        vec!["help"],
    ] {
        let home = tempfile::tempdir().expect("a folder");
        let mut command = command(home.path());
        command.args(&args).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("it ends");
        let told = text(&output.stderr);
        assert!(output.status.success() && !told.contains("panicked"), "{args:?}: {told}");
    }
}

#[test]
fn references_of_other_windows_do_not_compare() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| path(folder.path().join(name));
    std::fs::write(file("text"), "hello world ".repeat(20)).expect("a file");
    std::fs::write(file("empty"), "").expect("a file");
    let (model, text, base, empty) = (model(), file("text"), file("base"), file("empty"));
    let args = |base, window| {
        vec!["eval", &model, "-f", &text, "--kl-base", base, "--window", window, "--json"]
    };
    answer(&args(&base, "32"));
    let same: Value = serde_json::from_str(&answer(&args(&base, "32"))).expect("JSON");
    assert_eq!(same["kl_max"], 0.0);
    assert!(refusal(&args(&base, "64")).contains("--window"));
    assert!(refusal(&args(&empty, "32")).contains("too short"));
}

#[test]
fn nothing_is_fetched_to_where_the_program_was_started() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["user/repo", "smollm2", "pypi:x", "ollama:x"] {
        let mut command = command(folder.path());
        for name in ["HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "USERPROFILE", "LOCALAPPDATA"] {
            command.env_remove(name);
        }
        let output = command.current_dir(folder.path()).args(["pull", name]).output();
        let output = output.expect("the program starts");
        let told = text(&output.stderr);
        assert!(output.status.code() == Some(1) && told.contains("has no HOME"), "{told}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 0);
}

#[test]
fn localhost_is_an_address() {
    let server = Server::start(&[&model(), "--host", "localhost"]);
    assert_eq!(server.client.get("/health").status, 200);
}
