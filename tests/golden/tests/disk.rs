//! The bitwise matrix over a restart: a cache that comes back from disk gives the bits that computing
//! gives, for every architecture whose cache can be kept, and is found by nothing else.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokenmill_backend::Device;
use tokenmill_backend::reference::ReferenceDevice;
use tokenmill_cpu::{CpuDevice, CpuOptions, NUMERICS_VERSION};
use tokenmill_engine::load::{LoadOptions, WeightBits, load, read};
use tokenmill_engine::start::{DiskOptions, ServeOptions, Served};
use tokenmill_engine::tier::TierError;
use tokenmill_engine::{Event, Request, Usage};
use tokenmill_golden_tests::{Golden, Variant};
use tokenmill_ir::sampling::splitmix;
use tokenmill_ir::{GroupKind, KvFormat, Mode, SamplingParams};
use tokenmill_kvlog::KvError;

/// Tokens and the bits of their log-probabilities.
type Answer = Vec<(u32, u32)>;

type On = (Arc<dyn Device>, Mode);

fn cpu(mode: Mode) -> On {
    let options = CpuOptions { threads: 2, ..CpuOptions::default() };
    (Arc::new(CpuDevice::new(options).expect("a device")), mode)
}

fn start((device, mode): On, model: &Path, kv: KvFormat, folder: Option<&Path>) -> Served {
    let options = LoadOptions {
        mode,
        kv,
        context: None,
        sequences: 4,
        step_tokens: 128,
        memory_bytes: 1 << 32,
        images: true,
        weights: WeightBits::Auto,
    };
    let loaded = load(model, device, &options, |_, _| {}).expect("loaded");
    let disk = folder.map(|folder| DiskOptions {
        folder: folder.to_owned(),
        cap_bytes: 1 << 30,
        model: model.to_owned(),
        kv,
    });
    let options =
        ServeOptions { queue: 8, step_s: 10.0, draft: tokenmill_engine::DraftMode::Suffix };
    loaded.start_with(options, disk.as_ref()).expect("started")
}

/// The answer to a prompt of the longest length that leaves room, and its accounts.
fn ask(served: &Served, vocab: u32) -> (Answer, Usage) {
    let len = (served.engine.longest() - 12).min(1000);
    answer(served, numbers(0, len, vocab))
}

/// Tokens that look random.
fn numbers(text: u64, len: u32, vocab: u32) -> Vec<u32> {
    let token = |i| (splitmix(text << 32 | i) % u64::from(vocab)) as u32;
    (0..u64::from(len)).map(token).collect()
}

/// The answer to a prompt, and its accounts.
fn answer(served: &Served, prompt: Vec<u32>) -> (Answer, Usage) {
    let sampling = SamplingParams {
        temperature: 0.8,
        seed: 3,
        logprobs: Some(0),
        ..SamplingParams::default()
    };
    let request =
        Request { sampling, max_tokens: Some(10), ignore_eos: true, ..Request::new(prompt) };
    let (mut answer, mut accounts) = (Vec::new(), Usage::default());
    for event in served.engine.submit(request).expect("accepted") {
        match event {
            Event::Piece { tokens, .. } => {
                let bits = |p: Option<f32>| p.unwrap_or(f32::NAN).to_bits();
                answer.extend(tokens.iter().map(|t| (t.id, bits(t.logprob))));
            }
            Event::Finished(usage) => accounts = usage,
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    (answer, accounts)
}

#[test]
fn a_restored_cache_gives_the_same_bits() {
    let (mut kept, mut with_states) = (0, 0);
    for arch in Golden::all() {
        let (files, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let model = Golden::read(&arch).path(Variant::Config, files.path());
        let program = read(&model, KvFormat::Int16).expect("read").program;
        let groups = program.groups();
        if program.whole_sequences || groups.is_empty() {
            continue;
        }
        // Without states whole runs come back; with them, all up to the prompt's checkpoint.
        let states = groups.contains(&GroupKind::State);
        let unit = if states { 32 } else { 256 };
        kept += 1;
        with_states += u32::from(states);
        let all = |device: &dyn Fn() -> On, kv| {
            let plain = start(device(), &model, kv, None);
            let vocab = plain.engine.vocab();
            let (expected, _) = ask(&plain, vocab);
            let first = start(device(), &model, kv, Some(folder.path()));
            assert!(first.disk.is_ok(), "{arch}: {:?}", first.disk);
            let (answer, usage) = ask(&first, vocab);
            assert_eq!(answer, expected, "{arch} {kv:?}: while writing");
            assert_eq!(usage.disk_tokens, 0, "{arch} {kv:?}: another's cache was used");
            first.engine.shut_down();
            let second = start(device(), &model, kv, Some(folder.path()));
            let (answer, usage) = ask(&second, vocab);
            assert_eq!(answer, expected, "{arch} {kv:?}: restored");
            let whole = (usage.prompt_tokens - 1) / unit * unit;
            assert_eq!(usage.disk_tokens, whole, "{arch} {kv:?}: read from disk");
            assert_eq!(usage.cached_tokens, whole);
            let (answer, usage) = ask(&second, vocab);
            assert_eq!(answer, expected, "{arch} {kv:?}: from memory");
            assert_eq!(usage.disk_tokens, 0, "memory comes first");
            second.engine.shut_down();
        };
        all(&|| cpu(Mode::Int8), KvFormat::Int16);
        // Whole caches, windows, latents, states.
        if ["llama", "gemma3", "deepseek_v3", "falcon_h1"].contains(&arch.as_str()) {
            all(&|| cpu(Mode::Int8), KvFormat::Int8);
            all(&|| cpu(Mode::Int8), KvFormat::F32);
            all(&|| cpu(Mode::F32), KvFormat::Int16);
            all(&|| (Arc::new(ReferenceDevice::new(32)), Mode::F32), KvFormat::Int16);
        }
    }
    assert!(kept > 40, "{kept} architectures have a cache");
    assert!(with_states > 6, "{with_states} have recurrent states");
}

/// Each turn of a conversation of a model with states goes on, in a life of its own, where the prompt
/// before ended, and gives the bits that computing gives.
#[test]
fn a_conversation_goes_on_after_restarts() {
    for (arch, states_alone) in [("lfm2", false), ("qwen3_next", false), ("mamba2", true)] {
        let (files, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let model = Golden::read(arch).path(Variant::Config, files.path());
        let plain = start(cpu(Mode::Int8), &model, KvFormat::Int16, None);
        let restart = || start(cpu(Mode::Int8), &model, KvFormat::Int16, Some(folder.path()));
        let vocab = plain.engine.vocab();
        let (mut prompt, mut before) = (numbers(1, 300, vocab), 0);
        for turn in 0..4 {
            let served = restart();
            let (expected, _) = answer(&plain, prompt.clone());
            let (found, usage) = answer(&served, prompt.clone());
            assert_eq!(found, expected, "{arch}, turn {turn}");
            let from_disk = (usage.disk_tokens, usage.cached_tokens);
            assert_eq!(from_disk, (before, before), "{arch}, turn {turn}");
            assert_eq!(served.engine.stats().disk_tokens, u64::from(before));
            served.engine.shut_down();
            before = (prompt.len() as u32 - 1) / 32 * 32;
            prompt.extend(found.iter().map(|(token, _)| *token));
            prompt.extend(numbers(2 + turn, 30, vocab));
        }
        let served = restart();
        let log = served.engine.stats().disk.expect("a disk").log;
        // Each turn's states, and the run that all turns share.
        assert_eq!(log.records, 4 + u64::from(!states_alone), "{arch}");
        // Texts that end or part before, at and behind the first prompt's checkpoint; memory comes
        // first, and has the block before it by then.
        for (len, other, cached, from_disk) in
            [(288, 0, 0, 0), (289, 0, 288, 32), (310, 70, 288, 0)]
        {
            let text = [&prompt[..len], &numbers(50, other, vocab)].concat();
            let (expected, _) = answer(&plain, text.clone());
            let (found, usage) = answer(&served, text);
            assert_eq!(found, expected, "{arch}, {len} tokens");
            let found = (usage.cached_tokens, usage.disk_tokens);
            assert_eq!(found, (cached, from_disk), "{arch}, {len} tokens");
        }
        served.engine.shut_down();
    }
}

#[test]
fn other_weights_find_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut expect_none = false;
    for change in [0u8, 1] {
        let files = tempfile::tempdir().unwrap();
        let model = Golden::read("llama").path(Variant::Config, files.path());
        let weights = model.join("model.safetensors");
        let mut bytes = std::fs::read(&weights).unwrap();
        // The last byte of the last tensor: a small change of one number.
        *bytes.last_mut().unwrap() ^= change;
        std::fs::write(&weights, bytes).unwrap();
        let served = start(cpu(Mode::Int8), &model, KvFormat::Int16, Some(folder.path()));
        let (_, usage) = ask(&served, served.engine.vocab());
        assert_eq!(usage.disk_tokens, 0);
        served.engine.shut_down();
        if !expect_none {
            let again = start(cpu(Mode::Int8), &model, KvFormat::Int16, Some(folder.path()));
            assert_eq!(ask(&again, again.engine.vocab()).1.disk_tokens, 256);
            again.engine.shut_down();
        }
        expect_none = true;
    }
}

#[test]
fn a_cache_is_named_by_its_numerics() {
    let files = tempfile::tempdir().unwrap();
    let model = Golden::read("llama").path(Variant::Config, files.path());
    let options = |mode| LoadOptions {
        mode,
        kv: KvFormat::Int16,
        context: Some(64),
        sequences: 1,
        step_tokens: 32,
        memory_bytes: 1 << 32,
        images: true,
        weights: WeightBits::Auto,
    };
    let name = |(device, mode): On| {
        let loaded = load(&model, device, &options(mode), |_, _| {}).expect("loaded");
        loaded.compile().expect("compiled").blocks().expect("blocks").layout
    };
    let (int8, f32) = (name(cpu(Mode::Int8)), name(cpu(Mode::F32)));
    for name in [&int8, &f32] {
        // Else blocks of an older version are taken for those of this one.
        assert!(name.contains(&format!("numerics {NUMERICS_VERSION},")), "{name}");
    }
    assert_ne!(int8, f32, "modes");
    assert_ne!(name((Arc::new(ReferenceDevice::new(16)), Mode::F32)), int8, "devices");
}

#[test]
fn a_second_process_goes_without() {
    let (files, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let model = Golden::read("llama").path(Variant::Config, files.path());
    let first = start(cpu(Mode::Int8), &model, KvFormat::Int16, Some(folder.path()));
    let second = start(cpu(Mode::Int8), &model, KvFormat::Int16, Some(folder.path()));
    assert!(matches!(second.disk, Err(TierError::Disk(KvError::InUse { .. }))));
    let vocab = first.engine.vocab();
    assert_eq!(ask(&first, vocab), ask(&second, vocab));
    first.engine.shut_down();
    let third = start(cpu(Mode::Int8), &model, KvFormat::Int16, Some(folder.path()));
    assert!(third.disk.is_ok(), "{:?}", third.disk);
}

/// The segments of a folder, in order.
fn segments(folder: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|e| e == "kv")).collect();
    found.sort();
    found
}

fn edit(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

type Damage = (&'static str, fn(&Path));

/// What may have become of a folder.
const DAMAGE: &[Damage] = &[
    ("cut to its half", |f| segments(f).iter().for_each(|s| edit(s, |b| b.truncate(b.len() / 2)))),
    ("cut by a byte", |f| segments(f).iter().for_each(|s| edit(s, |b| b.truncate(b.len() - 1)))),
    ("cut within the head", |f| segments(f).iter().for_each(|s| edit(s, |b| b.truncate(5)))),
    ("empty", |f| segments(f).iter().for_each(|s| edit(s, Vec::clear))),
    ("a bit of the first byte", |f| segments(f).iter().for_each(|s| edit(s, |b| b[0] ^= 1))),
    ("a bit in the middle", |f| segments(f).iter().for_each(|s| edit(s, |b| b[40_000] ^= 16))),
    ("a bit of the last byte", |f| {
        segments(f).iter().for_each(|s| edit(s, |b| *b.last_mut().unwrap() ^= 128))
    }),
    ("bytes doubled", |f| {
        segments(f).iter().for_each(|s| edit(s, |b| b.extend_from_within(..)));
    }),
    ("the halves swapped", |f| {
        segments(f)
            .iter()
            .for_each(|s| edit(s, |b| *b = [&b[b.len() / 2..], &b[..b.len() / 2]].concat()))
    }),
    ("under another's name", |f| {
        for s in segments(f) {
            std::fs::rename(&s, f.join("00000000000000ff.kv")).unwrap();
        }
    }),
    ("one file under two names", |f| {
        for s in segments(f) {
            std::fs::copy(&s, f.join("00000000000000ff.kv")).unwrap();
        }
    }),
    ("a foreign file", |f| {
        std::fs::write(f.join("00000000000000fe.kv"), b"GGUF, or whatever".repeat(999)).unwrap();
        std::fs::write(f.join("notes.txt"), "not ours").unwrap();
    }),
    ("a folder in its place", |f| {
        for s in segments(f) {
            std::fs::remove_file(&s).unwrap();
            std::fs::create_dir(&s).unwrap();
        }
        std::fs::create_dir(f.join("ffffffffffffffff.kv")).unwrap();
    }),
    ("a link to nowhere", |f| {
        for s in segments(f) {
            std::fs::remove_file(&s).unwrap();
            std::os::unix::fs::symlink("/nowhere/at/all", &s).unwrap();
        }
    }),
    ("not to be read", |f| {
        segments(f).iter().for_each(|s| allow(s, 0o000));
    }),
    ("not to be written to", |f| {
        segments(f).iter().for_each(|s| allow(s, 0o400));
        allow(f, 0o500);
    }),
    ("the lock a folder", |f| {
        std::fs::remove_file(f.join("lock")).unwrap();
        std::fs::create_dir(f.join("lock")).unwrap();
    }),
    ("a file in the folder's place", |f| {
        std::fs::remove_dir_all(f).unwrap();
        std::fs::write(f, "a file").unwrap();
    }),
];

/// (What root may do is not bounded by these.)
fn allow(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn damage_of_the_folder_changes_no_answer() {
    let files = tempfile::tempdir().unwrap();
    let model = Golden::read("llama").path(Variant::Config, files.path());
    let plain = start(cpu(Mode::Int8), &model, KvFormat::Int16, None);
    let vocab = plain.engine.vocab();
    let (expected, _) = ask(&plain, vocab);
    let whole = tempfile::tempdir().unwrap();
    let start_in = |folder: &Path| start(cpu(Mode::Int8), &model, KvFormat::Int16, Some(folder));
    let first = start_in(whole.path());
    ask(&first, vocab);
    first.engine.shut_down();
    assert!(!segments(whole.path()).is_empty(), "nothing was written");
    let mut used = 0;
    for (what, damage) in DAMAGE {
        for while_open in [false, true] {
            let scratch = tempfile::tempdir().unwrap();
            let folder = scratch.path().join("kv");
            std::fs::create_dir(&folder).unwrap();
            for file in segments(whole.path()) {
                std::fs::copy(&file, folder.join(file.file_name().unwrap())).unwrap();
            }
            std::fs::write(folder.join("lock"), "").unwrap();
            let before = while_open.then(|| start_in(&folder));
            damage(&folder);
            // With the damage, after it was seen, and by the next process.
            let served = before.unwrap_or_else(|| start_in(&folder));
            for round in 0..2 {
                let (found, usage) = ask(&served, vocab);
                assert_eq!(found, expected, "{what}, open {while_open}, round {round}");
                used += u32::from(usage.disk_tokens > 0);
            }
            served.engine.shut_down();
            let next = start_in(&folder);
            assert_eq!(ask(&next, vocab).0, expected, "{what}, open {while_open}, the next");
            next.engine.shut_down();
            if folder.is_dir() {
                allow(&folder, 0o700);
            }
        }
    }
    assert!(used > 0, "no kind of damage left anything to be used");
}
