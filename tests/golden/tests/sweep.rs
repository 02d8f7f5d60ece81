//! Every key of every family's configuration with other values (sweep.py): what the changed model
//! computes is what transformers computes for it, or the change is refused by name. Nothing else is
//! allowed: a value that is ignored is a model that answers wrongly in silence.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use tokenmill_backend::reference::ReferenceDevice;
use tokenmill_files::{OpenModel, hf_config};
use tokenmill_golden_tests::{Change, Golden, Runner, Sweep, Variant, differs, with};
use tokenmill_ir::{KvFormat, Meta, MetaValue, Mode, Program};
use tokenmill_models::spec::Output;
use tokenmill_models::{ModelError, ModelSpec, lower, ranges, spec_of};

/// Keys that only repeat what the rows of a tensor say: where they contradict it, transformers cannot
/// load the file, and here the tensor counts.
const REPEATED: &[&str] =
    &["vocab_size", "vocab_size_per_layer_input", "type_vocab_size", "laurel_rank"];

/// A family as recorded.
struct Family {
    golden: Golden,
    model: OpenModel,
    program: Program,
    /// Outputs as recorded.
    outputs: Vec<f32>,
    /// Length of their rows.
    cols: usize,
    /// Programs that have run, with their outputs.
    ran: RefCell<Vec<(Program, Vec<f32>)>>,
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
    fn open(name: &str, scratch: &Path) -> Result<Self, ModelError> {
        let golden = Golden::read(name);
        let model = golden.open(Variant::Config, scratch);
        let spec = outputs_of(spec_of(&model.checkpoint)?);
        let program = lower(&spec, &model.checkpoint, KvFormat::F32)?.program;
        let file = match (golden.greedy.is_empty(), &spec.output) {
            (false, _) => "logits.f32",
            (true, Output::Score { .. }) => "embedding.f32",
            (true, _) => "hidden.f32",
        };
        let outputs = golden.floats(file);
        let rows = rows(&spec, &golden);
        let cols = outputs.len() / rows;
        Ok(Self { golden, model, program, outputs, cols, ran: RefCell::default() })
    }

    /// What the engine would do with a configuration.
    fn run(&self, meta: Meta) -> Result<Found, String> {
        let mut checkpoint = self.model.checkpoint.clone();
        checkpoint.meta = meta;
        let both = || -> Result<_, ModelError> {
            let whole = spec_of(&checkpoint)?;
            let unused = lower(&whole, &checkpoint, KvFormat::F32)?.unused;
            let spec = outputs_of(whole);
            Ok((unused, lower(&spec, &checkpoint, KvFormat::F32)?, spec))
        };
        let (unused, lowered, spec) = match both() {
            Ok(both) => both,
            Err(error) => return Ok(Found::Refused(error.to_string())),
        };
        if let Some(first) = unused.first() {
            return Ok(Found::Refused(format!("tensor {first} is not used")));
        }
        let len = self.golden.ids.len();
        if (spec.context as usize) < len {
            return Ok(Found::Refused(format!("context of {}", spec.context)));
        }
        if lowered.program == self.program {
            return Ok(Found::Same);
        }
        if let Some((_, found)) = self.ran.borrow().iter().find(|r| r.0 == lowered.program) {
            return Ok(Found::Outputs(found.clone()));
        }
        let device = ReferenceDevice::new(16);
        let mut run =
            Runner::new(&device, Mode::F32, &lowered.program, &self.model, len as u32 + 1)
                .map_err(|e| format!("device: {e}"))?;
        let found = run.feed(&self.golden.ids, rows(&spec, &self.golden));
        let found = found.map_err(|e| format!("device: {e}"))?;
        self.ran.borrow_mut().push((lowered.program, found.clone()));
        Ok(Found::Outputs(found))
    }

    /// Why a change is wrong in silence, or the words with which it is refused, or nothing.
    fn judge(
        &self,
        meta: Meta,
        row: &Change,
        at: &[(usize, usize)],
    ) -> Result<Option<String>, String> {
        let found = catch_unwind(AssertUnwindSafe(|| self.run(meta)))
            .unwrap_or_else(|_| Err("panic".to_owned()))?;
        let expected = match &row.is {
            Value::String(word) if word == "same" => None,
            Value::String(word) if word.starts_with("crash") => return Ok(None),
            Value::String(word) => {
                return match found {
                    Found::Refused(_) => Ok(None),
                    Found::Same if word == "refuse" && repeated(row) => Ok(None),
                    Found::Same => Err(format!("{word}; here ignored")),
                    Found::Outputs(_) => Err(format!("{word}; here computed")),
                };
            }
            _ => Some(row.places(at)),
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
            differs(got, x).then(|| format!("at {r}, {c}: {x} in transformers, {got} here"))
        });
        wrong.map_or(Ok(None), Err)
    }

    /// The words of a refusal, if they name what was changed.
    fn named(&self, words: String, row: &Change) -> Result<String, String> {
        let keys = row.put.keys().chain(&row.drop).flat_map(|k| k.split('.'));
        let named = keys.into_iter().any(|k| words.contains(k)) || words.contains("context");
        if named { Ok(words) } else { Err(format!("refused without its name: {words}")) }
    }
}

fn repeated(row: &Change) -> bool {
    row.put.keys().chain(&row.drop).all(|k| REPEATED.contains(&k.as_str()))
}

/// Encoders are compared by their hidden states.
fn outputs_of(spec: ModelSpec) -> ModelSpec {
    match spec.output {
        Output::Pooled { .. } | Output::Projected { .. } => {
            ModelSpec { output: Output::Hidden, ..spec }
        }
        _ => spec,
    }
}

fn rows(spec: &ModelSpec, golden: &Golden) -> usize {
    if matches!(spec.output, Output::Score { .. }) { 1 } else { golden.ids.len() }
}

/// The configuration that a row describes.
fn changed(base: &Meta, row: &Change) -> Meta {
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
    let sweep = Sweep::read(&Golden::read(name))?;
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let mut verdict = Verdict::default();
    let family = match Family::open(name, scratch.path()) {
        Ok(family) => family,
        Err(error) => {
            verdict.silent.push(format!("{name} config.json as it is: {error}"));
            return Some(verdict);
        }
    };
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

/// Numbers of a configuration that are not counted, in maps and lists too: where they stand, what
/// they are called, how many there are.
fn numbers(map: &Meta, at: &str, found: &mut Vec<(String, String, usize)>) {
    for (key, value) in map.iter() {
        let path = if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") };
        match value {
            MetaValue::Map(map) => numbers(map, &path, found),
            MetaValue::List(list) if matches!(list.first(), Some(MetaValue::Float(_))) => {
                found.push((path, key.to_owned(), list.len()));
            }
            MetaValue::Float(_) => found.push((path, key.to_owned(), 0)),
            value if ranges::has(key) && value.as_f64().is_some() => {
                found.push((path, key.to_owned(), 0));
            }
            _ => {}
        }
    }
}

/// Whatever number within its bounds a file has, the model gives numbers.
#[test]
fn numbers_at_their_bounds_give_numbers() {
    let (mut tried, mut faults) = (0, Vec::new());
    for name in Golden::all() {
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let Ok(family) = Family::open(&name, scratch.path()) else { continue };
        let base = family.model.checkpoint.meta.clone();
        let mut all = Vec::new();
        numbers(&base, "", &mut all);
        for (path, key, len) in all {
            let (least, most) = ranges::bounds(&key);
            for bound in [least, most] {
                let value = match len {
                    0 => MetaValue::Float(bound),
                    n => MetaValue::List(vec![MetaValue::Float(bound); n]),
                };
                tried += 1;
                let fault = match family.run(with(&base, &path, Some(&value))) {
                    Ok(Found::Outputs(found)) if found.iter().any(|x| !x.is_finite()) => "NaN",
                    Ok(_) => continue,
                    Err(_) => "an error of the device",
                };
                faults.push(format!("{name}: {path} = {bound:e}: {fault}"));
            }
        }
    }
    assert!(tried > 100 && faults.is_empty(), "of {tried}:\n{}", faults.join("\n"));
}
