//! Thousands of model files with one thing wrong each: each is run or refused in one line, without a
//! panic, an abort, a hang, or more than 1 GiB. A sample by default, all of it (and a report of the
//! worst) with `TOKENMILL_TESTS=whole`.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokenmill_attack_tests::trial::{End, tried};
use tokenmill_attack_tests::{Draw, Mutant, gguf, json};
use tokenmill_golden_tests::{Golden, Sample, Variant};

/// Most bytes that a file may make us ask for.
const MOST_BYTES: i64 = 1 << 30;
/// After so long a trial counts as one that would never end.
const HANG: Duration = Duration::from_secs(60);

/// Memory is counted for the whole process: one trial at a time.
static TURN: Mutex<()> = Mutex::new(());

/// Counts the bytes that all threads hold.
struct Counting;

static HELD: AtomicI64 = AtomicI64::new(0);
static PEAK: AtomicI64 = AtomicI64::new(0);

fn count(bytes: i64) {
    let held = HELD.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(held, Ordering::Relaxed);
}

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What all trials were like.
#[derive(Default)]
struct Report {
    trials: usize,
    ran: usize,
    faults: Vec<String>,
    slowest: (Duration, String),
    largest: (i64, String),
}

/// The trial that is going on, for whoever watches and for who looks after an abort.
struct Watch {
    now: Arc<Mutex<Option<(Instant, String)>>>,
    note: PathBuf,
}

impl Watch {
    fn start(name: &str) -> Self {
        let now: Arc<Mutex<Option<(Instant, String)>>> = Arc::default();
        let seen = Arc::clone(&now);
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(Duration::from_millis(500));
                let now = seen.lock().map(|now| now.clone()).unwrap_or_default();
                if let Some((since, what)) = now.filter(|(since, _)| since.elapsed() > HANG) {
                    eprintln!("after {:?} not at its end: {what}", since.elapsed());
                    std::process::abort();
                }
            }
        });
        let note = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-trial.txt"));
        Self { now, note }
    }

    fn set(&self, what: Option<&str>) {
        if let Some(what) = what {
            let _ = std::fs::write(&self.note, what);
        }
        if let Ok(mut now) = self.now.lock() {
            *now = what.map(|what| (Instant::now(), what.to_owned()));
        }
    }
}

impl Report {
    /// Tries a mutant that stands in `file` of the model at `model`.
    fn add(&mut self, watch: &Watch, model: &Path, file: &Path, seed: &str, mutant: &Mutant) {
        let what = format!("{seed}: {}", mutant.what);
        let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // A file that is mapped must not shrink: a new one takes its place.
        let _ = std::fs::remove_file(file);
        std::fs::write(file, &mutant.bytes).expect("written");
        watch.set(Some(&what));
        let held = HELD.load(Ordering::Relaxed);
        PEAK.store(held, Ordering::Relaxed);
        let begin = Instant::now();
        let end = tried(model);
        let took = begin.elapsed();
        watch.set(None);
        let grew = PEAK.load(Ordering::Relaxed) - held;
        self.trials += 1;
        match end {
            End::Ran => self.ran += 1,
            End::Refused(_) => {}
            End::Fault(fault) => self.faults.push(format!("{what}\n    {fault}")),
        }
        if grew > MOST_BYTES {
            self.faults.push(format!("{what}\n    {grew} bytes"));
        }
        if took > self.slowest.0 {
            self.slowest = (took, what.clone());
        }
        if grew > self.largest.0 {
            self.largest = (grew, what);
        }
    }

    fn tell(&self, name: &str) {
        let Self { trials, ran, faults, slowest, largest } = self;
        println!("{name}: {trials} files, {ran} ran, {} faults", faults.len());
        println!("  slowest {:?}: {}", slowest.0, slowest.1);
        println!("  largest {} KiB: {}", largest.0 >> 10, largest.1);
        assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
        assert!(*trials > 0 && ran < trials, "{ran} of {trials} files ran");
    }
}

/// Folders with tokenizers, indexes, quantised weights.
const CASES: &[&str] = &[
    "tests/cases/text-parts-and-a-template-that-reads-parts",
    "tests/cases/byte-level-vocabulary-with-a-sentencepiece-decoder",
    "tests/cases/bert-reranker-with-a-classifier",
    "tests/cases/tensor-twice-in-shards-index-names-one",
    "tests/cases/fp8-static-activation-scale",
    "tests/cases/gptq-exported-by-autoround",
    "tests/cases/gpt-oss-16-bit-experts",
];
const QUANTISED: &[&str] = &[
    "crates/files/tests/fixtures/quantized/awq",
    "crates/files/tests/fixtures/quantized/bnb_4bit",
    "crates/files/tests/fixtures/quantized/bnb_int8",
    "crates/files/tests/fixtures/quantized/compressed_tensors",
    "crates/files/tests/fixtures/quantized/exl3",
    "crates/files/tests/fixtures/quantized/fp8",
    "crates/files/tests/fixtures/quantized/gptq_v1",
    "crates/files/tests/fixtures/quantized/gptq_v2",
    "crates/files/tests/fixtures/quantized/mlx",
    "crates/files/tests/fixtures/quantized/modelopt",
];

/// Which of a family's mutants are tried: a part of them all, another one for every name. 28 000 files
/// with `TOKENMILL_ATTACK=whole`, of which a whole test takes a quarter and any other a twentieth.
fn keeper(name: &str, of: u64) -> impl FnMut() -> bool + use<> {
    let sample = Sample::from_env();
    let all = std::env::var_os("TOKENMILL_ATTACK").is_some();
    let seed = name.bytes().fold(7u64, |n, b| n.wrapping_mul(31).wrapping_add(b.into()));
    let mut draw = Draw::new(seed);
    let mut index = seed << 20;
    move || {
        index += 1;
        let tried = all || index.is_multiple_of(4) && sample.has(index / 4, 5);
        draw.number().is_multiple_of(of) && tried
    }
}

#[test]
fn gguf_files_with_one_thing_wrong() {
    let (watch, mut report) = (Watch::start("gguf"), Report::default());
    tokenmill_engine::door::keep_quiet();
    for arch in Golden::all() {
        let golden = Golden::read(&arch);
        if !golden.has(Variant::Gguf) {
            continue;
        }
        let scratch = tempfile::tempdir().expect("a folder");
        let bytes = std::fs::read(golden.path(Variant::Gguf, scratch.path())).expect("read");
        let path = scratch.path().join("mutant.gguf");
        let file = gguf::File::parse(&bytes);
        for mutant in file.mutants(&mut Draw::new(1), keeper(&arch, 40)) {
            report.add(&watch, &path, &path, &arch, &mutant);
        }
    }
    // One with a vocabulary.
    let seed = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../cases/gguf-without-pre-tokenizer/model.gguf");
    let scratch = tempfile::tempdir().expect("a folder");
    let path = scratch.path().join("mutant.gguf");
    let file = gguf::File::parse(&std::fs::read(seed).expect("read"));
    for mutant in file.mutants(&mut Draw::new(2), keeper("vocabulary", 2)) {
        report.add(&watch, &path, &path, "vocabulary", &mutant);
    }
    report.tell("gguf");
}

/// Layers beyond what the file holds are refused before anything is made for each.
#[test]
fn layers_cost_nothing() {
    let seed = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../cases/gguf-two-thousand-million-layers/model.gguf");
    let whole = std::fs::read(seed).expect("read");
    let key = b"llama.block_count";
    let at = whole.windows(key.len()).position(|w| w == key).expect("there") + key.len() + 4;
    let scratch = tempfile::tempdir().expect("a folder");
    let path = scratch.path().join("mutant.gguf");
    for layers in [1u32 << 31, 1_000_000_000, 1_000_000, 4096, 13] {
        let mut bytes = whole.clone();
        bytes[at..at + 4].copy_from_slice(&layers.to_le_bytes());
        let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, &bytes).expect("written");
        let held = HELD.load(Ordering::Relaxed);
        PEAK.store(held, Ordering::Relaxed);
        let end = tried(&path);
        let grew = PEAK.load(Ordering::Relaxed) - held;
        assert!(matches!(&end, End::Refused(m) if m.contains("llama.block_count")), "{end:?}");
        assert!(grew < 64 << 20, "{grew} bytes for {layers} layers");
    }
}

/// Limits that nothing reaches cost nothing: a window longer than any text, a context without end.
#[test]
fn bounds_that_nothing_reaches_take_no_memory() {
    for (arch, key, number) in [
        ("mistral", "\"sliding_window\": ", "2147483647"),
        ("mamba2", "\"max_position_embeddings\": ", "1073741824"),
    ] {
        let scratch = tempfile::tempdir().expect("a folder");
        let folder = Golden::read(arch).path(Variant::Config, scratch.path());
        let file = folder.join("config.json");
        let config = std::fs::read_to_string(&file).expect("read");
        let config = match config.split_once(key) {
            Some((before, after)) => {
                let end = after.find([',', '\n']).expect("an end");
                format!("{before}{key}{number}{}", &after[end..])
            }
            None => config.replacen('{', &format!("{{{key}{number},"), 1),
        };
        std::fs::write(&file, config).expect("written");
        let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let held = HELD.load(Ordering::Relaxed);
        PEAK.store(held, Ordering::Relaxed);
        assert_eq!(tried(&folder), End::Ran, "{arch}");
        let grew = PEAK.load(Ordering::Relaxed) - held;
        assert!(grew < 64 << 20, "{arch}: {grew} bytes");
    }
}

#[test]
fn folders_with_one_thing_wrong() {
    let (watch, mut report) = (Watch::start("folders"), Report::default());
    tokenmill_engine::door::keep_quiet();
    for arch in Golden::all() {
        let golden = Golden::read(&arch);
        let scratch = tempfile::tempdir().expect("a folder");
        let folder = golden.path(Variant::Config, scratch.path());
        for (name, of) in [("config.json", 20), ("model.safetensors", 200)] {
            of_file(&mut report, &watch, &folder, name, (&arch, of));
        }
    }
    for &case in CASES.iter().chain(QUANTISED) {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(case);
        let scratch = tempfile::tempdir().expect("a folder");
        let mut names = Vec::new();
        for entry in std::fs::read_dir(from).expect("a case").flatten() {
            let name = entry.file_name().into_string().expect("a name");
            if name.ends_with(".json") || name.ends_with(".safetensors") {
                std::fs::copy(entry.path(), scratch.path().join(&name)).expect("copied");
                names.push(name);
            }
        }
        names.sort();
        let defaults = r#"{"eos_token_id": [1, 2], "temperature": 0.6, "do_sample": true}"#;
        std::fs::write(scratch.path().join("generation_config.json"), defaults).expect("written");
        names.push("generation_config.json".into());
        for name in names.iter().filter(|n| !["expect.json", "request.json"].contains(&n.as_str()))
        {
            let of = if name.starts_with("tokenizer") { 30 } else { 10 };
            of_file(&mut report, &watch, scratch.path(), name, (case, of));
        }
    }
    report.tell("folders");
}

/// Tries the mutants of one file of a folder.
fn of_file(report: &mut Report, watch: &Watch, folder: &Path, name: &str, (seed, of): (&str, u64)) {
    let file = folder.join(name);
    let whole = std::fs::read(&file).expect("read");
    let keep = keeper(&format!("{seed}/{name}"), of);
    let mut draw = Draw::new(3);
    let mutants = match name.ends_with(".safetensors") {
        true => json::safetensors(&whole, &mut draw, keep),
        false => json::mutants(std::str::from_utf8(&whole).expect("text"), &mut draw, keep),
    };
    for mutant in &mutants {
        report.add(watch, folder, &file, &format!("{seed}/{name}"), mutant);
    }
    let _ = std::fs::remove_file(&file);
    std::fs::write(&file, &whole).expect("written");
}
