//! Every key of every family's configuration with other values (sweep.py): what the changed model
//! computes is what transformers computes for it, or the change is refused by name. Nothing else is
//! allowed: a value that is ignored is a model that answers wrongly in silence.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Deserialize;
use serde_json::Value;
use tokenmill_backend::reference::ReferenceDevice;
use tokenmill_files::{OpenModel, hf_config};
use tokenmill_golden_tests::{Golden, Runner, Variant};
use tokenmill_ir::{KvFormat, Meta, MetaValue, Program};
use tokenmill_models::spec::Output;
use tokenmill_models::{ModelSpec, lower, spec_of};

/// Largest difference of a logit or hidden number from the recording, and of logits above 1 in
/// proportion. Rounding of the recording is half of 1e-4.
const TOLERANCE: f32 = 3e-4;

/// One change of one file, and what transformers makes of it.
#[derive(Deserialize)]
struct Row {
    /// Keys (dotted in maps) that get a value.
    #[serde(default)]
    put: serde_json::Map<String, Value>,
    /// Keys that are taken out.
    #[serde(default)]
    drop: Vec<String>,
    /// `"same"`; `"refuse"` where tensors would be missing, left over or of other shapes;
    /// `"error …"`; or numbers: `[row, column, number]` where the outputs differ most from those of
    /// the file as it is, then one at each place of `at`.
    is: Value,
}

#[derive(Deserialize)]
struct Sweep {
    /// Rows and columns of the outputs that are kept.
    at: Vec<(usize, usize)>,
    #[serde(rename = "config.json")]
    config: Vec<Row>,
    #[serde(rename = "config.v5.json")]
    newer: Vec<Row>,
}

/// A family as recorded.
struct Family {
    golden: Golden,
    model: OpenModel,
    program: Program,
    /// Outputs as recorded.
    outputs: Vec<f32>,
    /// Length of their rows.
    cols: usize,
}

/// What became of a change here.
enum Found {
    /// The error's words.
    Refused(String),
    /// The same program.
    Same,
    /// Outputs of another program.
    Outputs(Vec<f32>),
}

impl Family {
    fn open(name: &str, scratch: &Path) -> Self {
        let golden = Golden::read(name);
        let model = golden.open(Variant::Config, scratch);
        let spec = outputs_of(spec_of(&model.checkpoint).expect("spec"));
        let program = lower(&spec, &model.checkpoint, KvFormat::F32).expect("lowered").program;
        let file = match (golden.greedy.is_empty(), &spec.output) {
            (false, _) => "logits.f32",
            (true, Output::Score { .. }) => "embedding.f32",
            (true, _) => "hidden.f32",
        };
        let outputs = golden.floats(file);
        let rows = rows(&spec, &golden);
        let cols = outputs.len() / rows;
        Self { golden, model, program, outputs, cols }
    }

    /// What the engine would do with a configuration.
    fn run(&self, meta: Meta) -> Result<Found, String> {
        let mut checkpoint = self.model.checkpoint.clone();
        checkpoint.meta = meta;
        let spec = match spec_of(&checkpoint) {
            Ok(spec) => outputs_of(spec),
            Err(error) => return Ok(Found::Refused(error.to_string())),
        };
        let lowered = match lower(&spec, &checkpoint, KvFormat::F32) {
            Ok(lowered) => lowered,
            Err(error) => return Ok(Found::Refused(error.to_string())),
        };
        if let Some(first) = lowered.unused.first() {
            return Ok(Found::Refused(format!("tensor {first} is not used")));
        }
        let len = self.golden.ids.len();
        if (spec.context as usize) < len {
            return Ok(Found::Refused(format!("context of {}", spec.context)));
        }
        if lowered.program == self.program {
            return Ok(Found::Same);
        }
        let mut device = ReferenceDevice::new(16);
        let mut run = Runner::new(&mut device, &lowered.program, &self.model, len as u32 + 1)
            .map_err(|e| format!("device: {e}"))?;
        let found = run.feed(&self.golden.ids, rows(&spec, &self.golden));
        found.map(Found::Outputs).map_err(|e| format!("device: {e}"))
    }

    /// Why a change is wrong in silence, or the words with which it is refused, or nothing.
    fn judge(&self, meta: Meta, row: &Row, at: &[(usize, usize)]) -> Result<Option<String>, String> {
        let found = catch_unwind(AssertUnwindSafe(|| self.run(meta)))
            .unwrap_or_else(|_| Err("panic".to_owned()))?;
        let expected = match &row.is {
            Value::String(word) if word == "same" => None,
            Value::String(word) => {
                return match found {
                    Found::Refused(_) => Ok(None),
                    Found::Same => Err(format!("{word}; here ignored")),
                    Found::Outputs(_) => Err(format!("{word}; here computed")),
                };
            }
            numbers => Some(places(numbers, at)),
        };
        let found = match found {
            Found::Refused(words) => return self.named(words, row).map(Some),
            Found::Same => &self.outputs,
            Found::Outputs(ref found) => found,
        };
        if found.len() != self.outputs.len() {
            return Err(format!("{} outputs", found.len()));
        }
        let cols = self.cols;
        let expected = expected.unwrap_or_else(|| {
            self.outputs.iter().enumerate().map(|(i, x)| (i / cols, i % cols, *x)).collect()
        });
        let wrong = expected.iter().find_map(|&(r, c, x)| {
            let got = found[r * cols + c];
            let differs = (got - x).abs() > TOLERANCE * x.abs().max(1.0) || !got.is_finite();
            differs.then(|| format!("at {r}, {c}: {x} in transformers, {got} here"))
        });
        wrong.map_or(Ok(None), Err)
    }

    /// The words of a refusal, if they name what was changed.
    fn named(&self, words: String, row: &Row) -> Result<String, String> {
        let keys = row.put.keys().chain(&row.drop).flat_map(|k| k.split('.'));
        let named = keys.into_iter().any(|k| words.contains(k)) || words.contains("context");
        if named { Ok(words) } else { Err(format!("refused without its name: {words}")) }
    }
}

/// Encoders are compared by their hidden states.
fn outputs_of(spec: ModelSpec) -> ModelSpec {
    match spec.output {
        Output::Pooled { .. } => ModelSpec { output: Output::Hidden, ..spec },
        _ => spec,
    }
}

fn rows(spec: &ModelSpec, golden: &Golden) -> usize {
    if matches!(spec.output, Output::Score { .. }) { 1 } else { golden.ids.len() }
}

/// The recorded numbers with their places.
fn places(numbers: &Value, at: &[(usize, usize)]) -> Vec<(usize, usize, f32)> {
    let list = numbers.as_array().expect("a list");
    let number = |v: &Value| v.as_f64().expect("a number") as f32;
    let worst = list[0].as_array().expect("a place");
    let index = |v: &Value| v.as_u64().expect("an index") as usize;
    let mut all = vec![(index(&worst[0]), index(&worst[1]), number(&worst[2]))];
    all.extend(at.iter().zip(&list[1..]).map(|(&(r, c), v)| (r, c, number(v))));
    all
}

/// A copy of `meta` with one key (dotted: in maps) at another value, or without it.
fn with(meta: &Meta, key: &str, value: Option<&MetaValue>) -> Meta {
    let (head, tail) = key.split_once('.').unwrap_or((key, ""));
    let mut out = Meta::new();
    for (k, old) in meta.iter().filter(|(k, _)| *k != head || !tail.is_empty()) {
        let new = match old {
            MetaValue::Map(inner) if k == head => MetaValue::Map(Box::new(with(inner, tail, value))),
            _ => old.clone(),
        };
        out.insert(k.to_owned(), new);
    }
    if let (Some(value), true) = (value, tail.is_empty()) {
        out.insert(head.to_owned(), value.clone());
    }
    out
}

/// The configuration that a row describes.
fn changed(base: &Meta, row: &Row) -> Meta {
    let put = serde_json::to_vec(&row.put).expect("JSON");
    let put = hf_config::parse(Path::new("sweep.json"), &put).expect("a map");
    let mut meta = base.clone();
    for key in &row.drop {
        meta = with(&meta, key, None);
    }
    for (key, value) in put.iter() {
        meta = with(&meta, key, Some(value));
    }
    meta
}

/// What a family's changes came to.
#[derive(Default)]
struct Verdict {
    changes: usize,
    /// Wrong in silence: the change and how.
    silent: Vec<String>,
    /// Refused where transformers computes: how often by key.
    refused: BTreeMap<String, usize>,
}

fn sweep(name: &str) -> Option<Verdict> {
    let text = Golden::read(name).text("sweep.json")?;
    let sweep: Sweep = serde_json::from_str(&text).expect("sweep.json");
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let family = Family::open(name, scratch.path());
    let mut verdict = Verdict::default();
    for (file, rows) in [("config.json", &sweep.config), ("config.v5.json", &sweep.newer)] {
        let text = family.golden.text(file).expect("a configuration");
        let mut base = hf_config::parse(Path::new(file), text.as_bytes()).expect("a map");
        if let Some(pooling) = family.model.checkpoint.meta.get("pooling") {
            base.insert("pooling".to_owned(), pooling.clone());
        }
        for row in rows {
            verdict.changes += 1;
            let what = || {
                let put = serde_json::to_string(&row.put).expect("JSON");
                format!("{name} {file}: put {put} drop {:?}", row.drop)
            };
            match family.judge(changed(&base, row), row, &sweep.at) {
                Ok(None) => {}
                Ok(Some(words)) => {
                    println!("{} refused: {words}", what());
                    let key = row.put.keys().chain(&row.drop).next().expect("a change");
                    let key = key.split('.').next().unwrap_or(key);
                    *verdict.refused.entry(key.to_owned()).or_default() += 1;
                }
                Err(how) => verdict.silent.push(format!("{}: {how}", what())),
            }
        }
    }
    Some(verdict)
}

#[test]
fn no_changed_key_is_wrong_in_silence() {
    let only = std::env::var("GOLDEN").ok();
    let names: Vec<String> =
        Golden::all().into_iter().filter(|n| only.as_ref().is_none_or(|o| o == n)).collect();
    let next = AtomicUsize::new(0);
    let verdicts = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Some(verdict) = sweep(name) {
                        verdicts.lock().expect("no panic").insert(name.clone(), verdict);
                    }
                }
            });
        }
    });
    let verdicts = verdicts.into_inner().expect("no panic");
    let mut silent = Vec::new();
    let mut refused = String::new();
    for (name, v) in &verdicts {
        let count: usize = v.refused.values().sum();
        println!("{name}: {} changes, {count} refused, {} silent", v.changes, v.silent.len());
        silent.extend(v.silent.iter().map(String::as_str));
        let keys: Vec<String> = v.refused.iter().map(|(k, n)| format!("{k} {n}")).collect();
        refused += &format!("{name}: {}\n", keys.join(", "));
    }
    assert!(silent.is_empty(), "{} wrong in silence\n{}", silent.len(), silent.join("\n"));
    if only.is_none() {
        let expected = include_str!("../refused.txt");
        assert!(refused == expected, "refusals changed; refused.txt would be\n{refused}");
    }
}
