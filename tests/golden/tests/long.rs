//! Texts of 1 500 tokens against transformers: what changes with length (rotations far out,
//! windows, stretched contexts, chunks, recurrences, learned positions), in every mode,
//! whole and in chunks.

use std::collections::BTreeSet;
use std::ops::Range;

use tokenmill_cpu::{CpuDevice, CpuOptions};
use tokenmill_files::OpenModel;
use tokenmill_golden_tests::{Golden, Runner, Variant};
use tokenmill_ir::{KvFormat, Mode, Program, SourceError, WeightSource, WeightUse};
use tokenmill_models::{lower, spec_of};
use tokenmill_quant::FormatId;

/// A model some of whose matrices are rounded to another format when they are read.
struct Rounded<'a> {
    files: &'a OpenModel,
    format: FormatId,
    tensors: BTreeSet<String>,
}

impl WeightSource for Rounded<'_> {
    fn read_rows(&self, tensor: &str, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        if !self.tensors.contains(tensor) {
            return self.files.read_rows(tensor, rows, out);
        }
        let info = self.files.checkpoint.tensor(tensor).expect("a tensor of the model");
        let cols = info.cols();
        let count = rows.end - rows.start;
        let mut stored = vec![0; (count * info.format.row_bytes(cols).expect("rows")) as usize];
        self.files.read_rows(tensor, rows, &mut stored)?;
        let mut values = vec![0.0; (count * cols) as usize];
        info.format.decode_rows(cols as usize, &stored, &mut values);
        self.format.info().encode.expect("an encoder")(&values, out);
        Ok(())
    }

    fn rows(&self, tensor: &str, rows: Range<u64>) -> Option<&[u8]> {
        match self.tensors.contains(tensor) {
            true => None,
            false => self.files.rows(tensor, rows),
        }
    }
}

/// The program with its matrices of floats in that format, where their rows are whole blocks of it.
fn rounded<'a>(
    program: &Program,
    files: &'a OpenModel,
    format: FormatId,
) -> (Program, Rounded<'a>) {
    let parts = program.weights.iter().flat_map(|w| &w.parts);
    let transposed: BTreeSet<&str> =
        parts.filter(|p| p.transposed.is_some()).map(|p| p.tensor.as_str()).collect();
    let mut rounded = program.clone();
    let mut tensors = BTreeSet::new();
    for weight in &mut rounded.weights {
        let whole = (weight.cols as usize).is_multiple_of(format.info().block_weights);
        if !whole || matches!(weight.role, WeightUse::Vector | WeightUse::LogVector) {
            continue;
        }
        for part in weight.parts.iter_mut().filter(|p| !transposed.contains(p.tensor.as_str())) {
            if part.format != format && [FormatId::F32, FormatId::BF16].contains(&part.format) {
                part.format = format;
                tensors.insert(part.tensor.clone());
            }
        }
    }
    (rounded, Rounded { files, format, tensors })
}

/// A mode, the format of keys and values, what matrices are rounded to, and what is allowed.
struct Way {
    mode: Mode,
    kv: KvFormat,
    format: FormatId,
    /// Nine of ten log-probabilities of the next token are as near to the truth, in nats. (In one
    /// of a thousand rows of gpt_oss rounding chooses another expert, so the worst says nothing.)
    of_most: f64,
    /// As near are all of them.
    of_all: f64,
    /// Median Kullback-Leibler divergence of the rows that were kept whole, in nats.
    of_rows: f64,
}

/// The first is the truth's own noise; the others are about twice what the worst of the models has.
const WAYS: [Way; 4] = [
    Way {
        mode: Mode::F32,
        kv: KvFormat::F32,
        format: FormatId::F32,
        of_most: 1e-4,
        of_all: 5e-4,
        of_rows: 1e-6,
    },
    Way {
        mode: Mode::F32,
        kv: KvFormat::Int16,
        format: FormatId::F32,
        of_most: 0.04,
        of_all: 1.7,
        of_rows: 1.2e-4,
    },
    Way {
        mode: Mode::Bf16,
        kv: KvFormat::Int16,
        format: FormatId::BF16,
        of_most: 0.2,
        of_all: 2.0,
        of_rows: 5e-3,
    },
    Way {
        mode: Mode::Int8,
        kv: KvFormat::Int16,
        format: FormatId::Q8_0,
        of_most: 0.4,
        of_all: 3.0,
        of_rows: 1.5e-2,
    },
];

fn log_softmax(row: &[f32]) -> Vec<f64> {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|&x| f64::from(x - max).exp()).sum();
    row.iter().map(|&x| f64::from(x - max) - sum.ln()).collect()
}

fn divergence(truth: &[f32], found: &[f64]) -> f64 {
    truth.iter().zip(found).map(|(&p, q)| f64::from(p).exp() * (f64::from(p) - q)).sum()
}

#[test]
fn long_texts_are_computed_as_transformers_does() {
    let only = std::env::var("GOLDEN").ok();
    let names = Golden::all_long();
    assert!(names.len() >= 8, "{names:?}");
    for name in names.iter().filter(|n| only.as_ref().is_none_or(|o| o == *n)) {
        let (golden, kept) = Golden::long(name);
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let model = golden.open(Variant::Config, scratch.path());
        let spec = spec_of(&model.checkpoint).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(spec.context as usize >= golden.ids.len(), "{name}: a context of {}", spec.context);
        for way in WAYS {
            let lowered = lower(&spec, &model.checkpoint, way.kv).expect("lowered");
            let (program, source) = rounded(&lowered.program, &model, way.format);
            for chunk in [1500, 301] {
                let options = CpuOptions { threads: 2, ..CpuOptions::default() };
                let device = CpuDevice::new(options).expect("a device");
                let tokens = golden.ids.len() as u32;
                let mut run =
                    Runner::new(&device, way.mode, &program, &source, tokens).expect("compiled");
                let rows = run.prefill(&golden.ids, chunk).expect("ran");
                check(&golden, &kept, &way, &rows, chunk);
            }
        }
    }
}

fn check(golden: &Golden, kept: &[usize], way: &Way, rows: &[f32], chunk: usize) {
    let vocab = rows.len() / golden.ids.len();
    let found = |row: usize| log_softmax(&rows[row * vocab..][..vocab]);
    let next = golden.floats("next.f32");
    let mut off: Vec<f64> = (next.iter().zip(&golden.ids[1..]).enumerate())
        .map(|(row, (&truth, &id))| (found(row)[id as usize] - f64::from(truth)).abs())
        .collect();
    off.sort_by(f64::total_cmp);
    let (most, all) = (off[off.len() * 9 / 10], off[off.len() - 1]);
    let whole = golden.floats("rows.f32");
    let mut rows: Vec<f64> = (kept.iter().zip(whole.chunks_exact(vocab)))
        .map(|(&row, truth)| divergence(truth, &found(row)))
        .collect();
    rows.sort_by(f64::total_cmp);
    let row = rows[rows.len() / 2];
    let what = format!("{} {:?} {:?} {} chunk {chunk}", golden.arch, way.mode, way.kv, way.format);
    println!("{what}: most {most:.1e} all {all:.1e} rows {row:.1e}");
    assert!(
        most <= way.of_most && all <= way.of_all && row <= way.of_rows,
        "{what}: most {most:e} of {}, all {all:e} of {}, rows {row:e} of {}",
        way.of_most,
        way.of_all,
        way.of_rows
    );
}
