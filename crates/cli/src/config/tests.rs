//! Settings from several places: which wins, and what is told of those that cannot be used.

use std::fs;

use super::*;
use crate::args::Command;

fn layer(text: &str, may_open: bool) -> Result<Layer, String> {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("config.toml");
    fs::write(&path, text).expect("written");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = if text.contains("readable by all") { 0o644 } else { 0o600 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
    }
    let read = file::read(&path, may_open).map_err(|failure| failure.to_string());
    read.map(|layer| layer.expect("it is there"))
}

fn variables(pairs: &[(&str, &str)]) -> Layer {
    environment(pairs.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))))
}

fn serve(line: &[&str], layers: Vec<Layer>) -> Result<Box<args::Serve>, String> {
    let line = ["tokenmill", "serve"].iter().chain(line).map(OsString::from).collect();
    match complete(line, |_| Ok(Layers(layers))) {
        Ok(Args { command: Command::Serve(serve), .. }) => Ok(serve),
        Ok(other) => Err(format!("{other:?}")),
        Err(Unread::Line(error)) => Err(error.to_string()),
        Err(Unread::Setting(failure)) => Err(failure.to_string()),
    }
}

#[test]
fn the_first_place_that_says_something_wins() {
    let environment = || variables(&[("TOKENMILL_PORT", "2"), ("TOKENMILL_QUEUE", "")]);
    let project = || layer("port = 3\n[serve]\nslots = 3\nquiet = false", false).expect("read");
    let user = || {
        let text = "slots = 4\nqueue = 4\nquiet = true\nthreads = 4\n[run]\nthreads = 5";
        layer(text, true).expect("read")
    };
    let all = || vec![environment(), project(), user()];
    let read = serve(&["m", "--port", "1"], all()).expect("read");
    assert_eq!((read.port, read.slots, read.queue, read.quiet), (1, 3, 4, false));
    assert_eq!(read.machine.threads, Some(4), "not that of run");
    assert_eq!(serve(&["m"], all()).expect("read").port, 2);
    assert_eq!(serve(&["m"], vec![project()]).expect("read").port, 3);
    assert_eq!(serve(&["m"], vec![]).expect("read").port, 8080);
}

#[test]
fn lists_and_switches() {
    let text =
        "[serve]\nmodels = [\"a\", \"b\"]\nallow_host = \"x.lan\"\nstrict = true\nmem = \"8G\"";
    let read = serve(&[], vec![layer(text, true).expect("read")]).expect("read");
    assert_eq!(read.models, ["a", "b"]);
    assert_eq!((read.allow_host, read.strict), (vec!["x.lan".to_owned()], true));
    assert_eq!(read.machine.mem, Some(8 << 30));
    let keys = variables(&[("TOKENMILL_API_KEY", "one, two"), ("TOKENMILL_STRICT", "1")]);
    let read = serve(&["c"], vec![keys, layer(text, true).expect("read")]).expect("read");
    assert_eq!(
        (read.api_key, read.models),
        (vec!["one".to_owned(), "two".to_owned()], vec!["c".to_owned()])
    );
}

#[test]
fn what_cannot_be_used_is_told_with_its_place() {
    let cases = [
        ("prot = 1", true, ":1: there is no setting \"prot\"", "did you mean port?"),
        ("\n[serve]\nprot = 1", true, ":3: there is no setting \"prot\" of serve", "port?"),
        ("[sevre]\nport = 1", true, ":1: there is no setting \"sevre\"", "did you mean serve?"),
        ("[serve]\nwindow = 1", true, ":2: there is no setting \"window\" of serve", "lists all"),
        ("port = ", true, "is not TOML", "line 1"),
        ("allow_host = [1979-05-27]", true, ":1: allow-host has no value", "a text, a number"),
        ("allow-host = 1\nallow_host = 2", true, ":2: allow_host is set twice", ""),
        ("host = \"0.0.0.0\"", false, ":1: host cannot be set here", "the user's file"),
        ("api-key = \"k\" # readable by all", true, ":1: api-key cannot be set", "chmod 600"),
    ];
    for (text, may_open, place, word) in cases {
        let why = layer(text, may_open).expect_err(text);
        assert!(why.contains(place) && why.contains(word), "{text}: {why}");
    }
    assert!(layer("api-key = \"k\"\nhost = \"0.0.0.0\"", true).is_ok());
    let cases = [
        ("strict = 3", ":1: strict is a switch"),
        ("slots = [1, 2]", ":1: slots is one value"),
        ("\nport = 70000", ":2: the setting port cannot be used\n  invalid value '70000'"),
        ("mode = \"int3\"", ":1: the setting mode cannot be used"),
    ];
    for (text, expect) in cases {
        let why = serve(&["m"], vec![layer(text, true).expect("read")]).expect_err(text);
        assert!(why.contains(expect), "{text}: {why}");
    }
    let why = serve(&["m", "--port", "x"], vec![layer("slots = 2", true).expect("read")]);
    assert!(why.expect_err("no port").starts_with("error: invalid value 'x'"));
}

#[test]
fn settings_of_a_command_do_not_reach_into_others() {
    let line = ["tokenmill", "bench", "serve", "http://x:1", "-n", "2"].map(OsString::from);
    let layers = || Ok(Layers(vec![layer("[bench]\nreps = 2", true).expect("read")]));
    assert!(complete(line.to_vec(), |_| layers()).is_ok());
    let line = ["tokenmill", "list"].map(OsString::from);
    assert!(complete(line.to_vec(), |_| layers()).is_ok());
    // What a flag excludes is not added beside it.
    let line = ["tokenmill", "run", "m", "p", "--raw"].map(OsString::from);
    let layers = || Ok(Layers(vec![layer("system = \"s\"", true).expect("read")]));
    let Ok(Args { command: Command::Run(run), .. }) = complete(line.to_vec(), |_| layers()) else {
        panic!("not read");
    };
    assert_eq!((run.raw, run.system), (true, None));
}

#[test]
fn a_line_that_is_none_has_a_tip() {
    let cases: [(&[&str], &str); 10] = [
        (&["rnu", "m"], "a similar subcommand exists: 'run'"),
        (&["smollm2"], "tip: if that is a model: tokenmill run smollm2"),
        (&["chat", "m"], "tip: a model answers, or chats, by: tokenmill run"),
        (&["run", "-m", "m"], "tip: a model stands without a flag: tokenmill run MODEL"),
        (&["serve", "--model", "m"], "tip: a model stands without a flag: tokenmill serve MODEL"),
        (&["run", "m", "Why", "is"], "tip: a question of several words stands in quotes"),
        (&["doctor", "-m", "m"], "unexpected argument '-m' found"),
        (&["launch", "pi", "-m", "m"], "unexpected argument '-m' found"),
        (&["key", "lsit"], "unrecognized subcommand 'lsit'"),
        (&["run", "--tmep", "1"], "a similar argument exists: '--temp'"),
    ];
    for (words, expect) in cases {
        let line = ["tokenmill"].iter().chain(words).map(OsString::from).collect();
        let told = match complete(line, |_| Ok(Layers::default())) {
            Err(Unread::Line(error)) => error.to_string(),
            other => format!("{other:?}"),
        };
        assert!(told.contains(expect), "{words:?}: {told}");
        assert!(told.matches("tip:").count() <= 1, "{words:?}: {told}");
    }
}
