//! `plan`: for this machine and for one in a file, of models that are here, named or to be had.

use serde_json::{Value, json};

use super::program::{answer, case, command, refusal, text};

/// A folder with a chat model.
fn model() -> String {
    let folder = case("template-that-looks-for-a-control-token");
    folder.to_str().expect("UTF-8").to_owned()
}

fn planned(args: &[&str]) -> Value {
    serde_json::from_str(&answer(&[&["plan", "--json"][..], args].concat())).expect("JSON")
}

/// A file with a machine.
fn machine(folder: &tempfile::TempDir, memory: &str) -> String {
    let path = folder.path().join("machine.json");
    let machine = json!({"name": "box", "cores": 4, "instructions": "avx2", "memory": memory});
    std::fs::write(&path, machine.to_string()).expect("written");
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn nothing_at_hand_says_what_to_pull() {
    let folder = tempfile::tempdir().expect("a folder");
    for (task, ability) in [("chat", "tok/s"), ("embed", "mbed")] {
        let file = machine(&folder, "16G");
        let args = ["--machine", &file, "--for", task];
        let plan = planned(&args);
        assert_eq!(plan["verdict"], "pull", "{plan:#}");
        let chosen = &plan["chosen"];
        let pull = chosen["commands"][0].as_str().expect("a command");
        assert!(pull.starts_with("tokenmill pull "), "{pull}");
        assert!(chosen["files"].as_u64().is_some_and(|b| b > 10 << 20), "{chosen:#}");
        let page = answer(&[&["plan"][..], &args].concat());
        assert!(page.contains("to fetch") && page.contains(ability), "{page}");
    }
}

#[test]
fn a_named_model_is_planned_for_this_machine_and_for_another() {
    let model = model();
    let plan = planned(&[&model, "--memory-only", "--users", "3", "--ctx", "64"]);
    assert_eq!(plan["verdict"], "yes", "{plan:#}");
    let memory = &plan["memory"];
    let part = |name: &str| memory[name].as_u64().expect("bytes");
    let parts = ["weight_bytes", "cache_bytes", "buffer_bytes", "process_bytes"].map(part);
    assert_eq!(parts.iter().sum::<u64>(), part("needed_bytes"), "{memory}");
    assert_eq!((&memory["context"], &memory["full_streams"]), (&json!(64), &json!(3)));
    assert_eq!(plan["chosen"]["role"], "local-latency");
    // The same memory by a machine in a file.
    let folder = tempfile::tempdir().expect("a folder");
    let file = machine(&folder, "8G");
    let other = planned(&[&model, "--machine", &file, "--users", "3", "--ctx", "64"]);
    assert_eq!(&other["memory"], memory);
    assert_eq!(other["machine"]["name"], "box");
    // Its steps are timed only here.
    assert_eq!(other["speed"], json!([]));
    let timed = planned(&[&model, "--users", "3"]);
    assert!(timed["speed"].as_array().is_some_and(|steps| steps.len() >= 3), "{timed:#}");
    let source = timed["chosen"]["speed"]["source"].as_str().expect("a source");
    assert!(source.contains("timed"), "{source}");
}

#[test]
fn what_does_not_fit_is_refused_and_something_else_named() {
    let model = model();
    for more in [&["--mem", "20M"][..], &["--for", "embed"], &["--ctx", "400", "--mem", "24M"]] {
        let told = refusal(&[&["plan", &model, "--memory-only"][..], more].concat());
        assert!(told.starts_with("error: "), "{more:?}: {told}");
        assert!(told.lines().count() >= 2 && !told.contains("panicked"), "{more:?}: {told}");
    }
}

#[test]
fn a_machine_that_cannot_be_read_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("machine.json");
    for (wrong, word) in [
        (r#"{"cores": 2}"#, "name"),
        (r#"{"name": "a", "cores": 2, "instructions": "avx9", "memory": 1}"#, "avx9"),
        (r#"{"name": "a", "cores": 2, "instructions": "avx2", "memory": "16 apples"}"#, "apples"),
        ("cores = 2", "expected"),
    ] {
        std::fs::write(&path, wrong).expect("written");
        let told = refusal(&["plan", "--machine", path.to_str().expect("UTF-8")]);
        assert!(told.contains(word) && told.contains("plan --json"), "{wrong}: {told}");
    }
}

#[test]
fn ceilings_are_measured_once_and_kept() {
    let home = tempfile::tempdir().expect("a folder");
    let run = || {
        let output = command(home.path()).args(["plan", "--json"]).output().expect("it runs");
        let plan: Value = serde_json::from_str(&text(&output.stdout)).expect("JSON");
        plan["machine"]["limits"].clone()
    };
    let first = run();
    assert!(first["int8_tops"].as_f64().is_some_and(|tops| tops > 0.0), "{first}");
    // (To the last digit: nobody measures the same twice.)
    assert_eq!(run(), first);
}

#[test]
fn a_server_plans_what_could_be_pulled_and_fetches_nothing() {
    let server = super::program::Server::start(&["--mem", "1G"]);
    let reply = server.client.get("/models/plan").json();
    let plans = reply["data"].as_array().expect("a list");
    let of = |name: &str| plans.iter().find(|plan| plan["model"] == name).expect("it is known");
    let small = of("smollm2");
    assert_eq!((&small["fits"], &small["here"]), (&json!(true), &json!(false)), "{small:#}");
    assert!(small["speed"]["decode_tok_s"].as_f64().is_some_and(|rate| rate > 0.0), "{small:#}");
    let needed = small["memory"]["needed"].as_u64().expect("bytes");
    assert!(small["available"].as_u64().is_some_and(|room| needed <= room), "{small:#}");
    let large = of("Qwen/Qwen3-32B-GGUF:Q4_K_M");
    assert_eq!((&large["fits"], &large["here"]), (&json!(false), &json!(false)), "{large:#}");
    assert_eq!(large["pull"], "hf.co/Qwen/Qwen3-32B-GGUF:Q4_K_M");
    assert!(large["why"].as_str().is_some_and(|why| why.contains("of weights")), "{large:#}");
    let ranks = of("sentence-transformers/all-MiniLM-L6-v2");
    assert_eq!(ranks["fits"], true, "{ranks:#}");
    let one = server.client.get("/models/plan?model=qwen3-0.6b").json();
    assert_eq!(one["data"].as_array().map(Vec::len), Some(1), "{one:#}");
    assert_eq!(server.client.get("/models/plan?model=nobody/knows").json()["data"], json!([]));
}
