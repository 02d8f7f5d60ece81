//! An engine with its cache on a real disk is killed again and again, while it answers, writes and
//! restores: every token it ever said is right, and it always starts. `TOKENMILL_KILLS=n` kills it
//! that often.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokenmill_cpu::{CpuDevice, CpuOptions};
use tokenmill_engine::load::{LoadOptions, WeightBits, load};
use tokenmill_engine::start::{DiskOptions, ServeOptions, Served};
use tokenmill_engine::{Event, Request};
use tokenmill_golden_tests::{Golden, Variant};
use tokenmill_ir::sampling::splitmix;
use tokenmill_ir::{KvFormat, Mode};

/// Set in the process that is to be killed: model, folder and seed.
const CHILD: [&str; 3] = ["TOKENMILL_TEST_MODEL", "TOKENMILL_TEST_KV", "TOKENMILL_TEST_SEED"];
/// Prompts there are; every third begins as the one before.
const PROMPTS: u64 = 12;
const ANSWER: u32 = 12;

fn start(model: &Path, folder: Option<&Path>) -> Served {
    let options = CpuOptions { threads: 2, ..CpuOptions::default() };
    let device = CpuDevice::new(options).expect("a device");
    let options = LoadOptions {
        mode: Mode::Int8,
        kv: KvFormat::Int16,
        context: Some(2048),
        sequences: 4,
        step_tokens: 256,
        memory_bytes: 1 << 32,
        images: true,
        weights: WeightBits::Auto,
    };
    let loaded = load(model, Arc::new(device), &options, |_, _| {}).expect("it loads");
    let disk = folder.map(|folder| DiskOptions {
        folder: folder.to_owned(),
        // Less than all prompts need: segments are deleted, too.
        cap_bytes: 4 << 20,
        model: model.to_owned(),
        kv: KvFormat::Int16,
    });
    let served = loaded.start_with(
        ServeOptions { queue: 64, step_s: 0.1, draft: tokenmill_engine::DraftMode::Suffix },
        disk.as_ref(),
    );
    served.expect("it starts")
}

fn prompt(number: u64, vocab: u32, longest: u32) -> Vec<u32> {
    let len = (300 + splitmix(number) % 1200).min(u64::from(longest - ANSWER));
    let family = number / 3;
    let shared = 256 * (1 + number % 3);
    let token = |i: u64| {
        let of = if i < shared { family } else { 100 + number };
        (splitmix(of << 32 | i) % u64::from(vocab)) as u32
    };
    (0..len).map(token).collect()
}

/// Submits a prompt; what it gives: its tokens and how many came from disk.
fn ask(served: &Served, number: u64) -> impl FnOnce() -> (Vec<u32>, u32) {
    let request = Request {
        max_tokens: Some(ANSWER),
        ignore_eos: true,
        ..Request::new(prompt(number, served.engine.vocab(), served.engine.longest()))
    };
    let events = served.engine.submit(request).expect("accepted");
    move || {
        let (mut answer, mut disk) = (Vec::new(), 0);
        for event in events {
            match event {
                Event::Piece { tokens, .. } => answer.extend(tokens.iter().map(|t| t.id)),
                Event::Finished(usage) => disk = usage.disk_tokens,
                Event::Failed(error) => panic!("{error}"),
                _ => {}
            }
        }
        (answer, disk)
    }
}

/// Answers three prompts at a time until it is killed.
fn child(model: &str, folder: &str, seed: &str) {
    let served = start(Path::new(model), Some(Path::new(folder)));
    assert!(served.disk.is_ok(), "{:?}", served.disk);
    let mut state: u64 = seed.parse().expect("a seed");
    let say = |line: String| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{line}").and_then(|()| out.flush()).expect("the parent listens");
    };
    say("\nready".into());
    loop {
        let three = [(); 3].map(|()| {
            state = splitmix(state);
            (state % PROMPTS, ask(&served, state % PROMPTS))
        });
        for (number, answer) in three {
            let (tokens, disk) = answer();
            say(format!("answer {number} {disk} {tokens:?}"));
        }
    }
}

#[test]
fn killed_at_any_moment() {
    if let [Ok(model), Ok(folder), Ok(seed)] = CHILD.map(std::env::var) {
        return child(&model, &folder, &seed);
    }
    // Windows, then states.
    ["gpt_oss", "falcon_h1"].into_iter().for_each(kill_again_and_again);
}

fn kill_again_and_again(arch: &str) {
    let kills = std::env::var("TOKENMILL_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(25);
    let (files, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let model = Golden::read(arch).path(Variant::Config, files.path());
    let expected: Vec<String> = {
        let served = start(&model, None);
        (0..PROMPTS).map(|n| format!("{:?}", ask(&served, n)().0)).collect()
    };
    let (mut answers, mut restored) = (0, 0);
    for kill in 0..kills {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed_at_any_moment", "--nocapture"])
            .envs([(CHILD[0], model.as_os_str()), (CHILD[1], folder.path().as_os_str())])
            .env(CHILD[2], kill.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let ready = lines.by_ref().map_while(Result::ok).any(|l| l == "ready");
        assert!(ready, "it does not start after {kill} kills");
        let killer = thread::spawn(move || {
            thread::sleep(Duration::from_millis(splitmix(kill) % 400));
            process.kill().unwrap();
            let status = process.wait().unwrap();
            assert!(status.code().is_none(), "it ended by itself: {status}");
        });
        for line in lines.map_while(Result::ok) {
            let Some(said) = line.strip_prefix("answer ") else { continue };
            let mut words = said.splitn(3, ' ');
            let mut word = || words.next().unwrap_or_default();
            let (number, disk, tokens) = (word(), word(), word());
            let number: usize = number.parse().unwrap();
            if tokens.ends_with(']') {
                assert_eq!(tokens, expected[number], "prompt {number} after {kill} kills");
                answers += 1;
                restored += u64::from(disk != "0");
            }
        }
        killer.join().unwrap();
    }
    println!("{arch}: {kills} kills, {answers} answers, {restored} of them restored from disk");
    assert!(answers > kills && restored > kills / 5, "{answers} answers, {restored} restored");
}
