//! What the commands do with a model, in one process: `inspect` and `plan` read it, `lint` its
//! vocabulary, `score` and `serve` load it and run a step.

use std::path::Path;
use std::sync::Arc;

use tokenmill_cpu::{CpuDevice, CpuOptions};
use tokenmill_engine::direct::{Direct, Feed};
use tokenmill_engine::load::{LoadFailure, LoadOptions, WeightBits, load, read, vocabulary_of};
use tokenmill_engine::plan::{Needs, fit};
use tokenmill_engine::{door, packaged};
use tokenmill_ir::{KvFormat, Mode, OutputKind};

/// Memory that a model may take, bytes.
const MEMORY_BYTES: u64 = 256 << 20;
/// Longest message of a refusal, bytes.
const MESSAGE_BYTES: usize = 600;

/// How a trial ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// It ran.
    Ran,
    /// It was refused with this message.
    Refused(String),
    /// Neither: what is wrong.
    Fault(String),
}

/// Tries the model at a path.
pub fn tried(path: &Path) -> End {
    let outcome = run(path).and_then(|()| linted(path));
    match outcome {
        Ok(()) => End::Ran,
        Err(LoadFailure::Bug(bug)) => End::Fault(bug.to_string()),
        Err(failure) => {
            let message = failure.to_string();
            // (Its own path is as long as it is.)
            let message = message.replace(&path.display().to_string(), "PATH");
            match message.len() > MESSAGE_BYTES || message.contains('\n') {
                true => End::Fault(format!("a message of {} bytes: {message}", message.len())),
                false => End::Refused(message),
            }
        }
    }
}

fn options() -> LoadOptions {
    LoadOptions {
        mode: Mode::Int8,
        kv: KvFormat::Int16,
        context: None,
        sequences: 2,
        step_tokens: 64,
        memory_bytes: MEMORY_BYTES,
        images: true,
        weights: WeightBits::Auto,
    }
}

fn device() -> CpuDevice {
    let options = CpuOptions { threads: 1, ..CpuOptions::default() };
    CpuDevice::new(options).expect("a device")
}

/// What `inspect`, `plan` and `score` do.
fn run(path: &Path) -> Result<(), LoadFailure> {
    let model = read(path, KvFormat::Int16)?;
    door::through(path, || {
        let all = (model.program.dump().len(), format!("{:?}", model.spec).len());
        assert!(all.0 > 0 && all.1 > 0);
        let tokens: u64 = model.program.caches.iter().map(|c| c.unit_bytes()).sum();
        assert!(tokens < 1 << 40, "{tokens} bytes a token");
        let (device, options) = (device(), options());
        Needs::of(&model.spec, &model.program, &device, &options)?;
        fit(&model.spec, &model.program, &device, &options).map(drop)
    })?;
    drop(model);
    let mut loaded = load(path, Arc::new(device()), &options(), |_, _| {})?;
    loaded.limits.outputs = loaded.limits.outputs.max(4);
    packaged::packaged_at(path);
    door::through(path, || {
        let block_tokens = loaded.device.caps().block_tokens;
        let vocab = loaded.program.vocab;
        let executable = loaded.compile()?;
        let mut direct = Direct::new(executable, &loaded.program, &loaded.limits, block_tokens, 1);
        let ids: Vec<u32> = (1..4).map(|id| if vocab == 0 { 0 } else { id % vocab }).collect();
        let ids = &ids[..ids.len().min(loaded.limits.context as usize)];
        let kind = |i: usize| match vocab {
            0 => OutputKind::Hidden,
            _ => OutputKind::Score { target: ids[(i + 1) % ids.len()], top: 3.min(vocab) },
        };
        let last = ids.len() - 1;
        let rows = if vocab == 0 { last..last + 1 } else { 0..last + 1 };
        let outputs: Vec<_> = rows.map(|i| (i as u32, kind(i))).collect();
        let out = direct.step(&[Feed { sequence: 0, tokens: ids, outputs: &outputs }])?;
        for s in out.sampled.iter().filter(|s| s.valid) {
            assert!(!s.logprob.is_nan(), "a log-probability that is no number");
        }
        Ok(())
    })
}

/// What `lint` does.
fn linted(path: &Path) -> Result<(), LoadFailure> {
    let model = read(path, KvFormat::Int16)?;
    let Some(found) = vocabulary_of(path, &model.files)? else { return Ok(()) };
    door::through(path, || {
        let told = tokenmill_text::lint(&found.tokenizer, found.template.as_deref());
        for finding in &told {
            assert!(finding.message.len() < 4 * MESSAGE_BYTES, "{}", finding.message.len());
        }
        let special = tokenmill_text::Special::Plain;
        let text = "Hello, wörld! 12 \u{200b}\n\n x";
        if let Ok(ids) = found.tokenizer.encode_prompt(text, special) {
            assert!(ids.len() < 10_000, "{} tokens", ids.len());
        }
        Ok(())
    })
}
