//! Every key of every encoder's configuration, and of the model around it, with other values
//! (vision/sweep.py): the rows of images are what transformers makes of them, or the change is refused by
//! name. Nothing else is allowed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use tokenmill_backend::reference::ReferenceDevice;
use tokenmill_files::{OpenModel, hf_config};
use tokenmill_golden_tests::{Change, Golden, Sight, Sweep, Variant, differs, with};
use tokenmill_ir::Meta;
use tokenmill_models::vision::{VisionSpec, vision_of};
use tokenmill_models::{ModelError, lower_vision, spec_of};

/// Keys that no row depends on, where transformers wants other tensors or takes them from elsewhere: a head
/// behind the tower; canvases, which the processor's description says too.
const BESIDE: &[&str] = &["vision_use_head", "image_grid_pinpoints"];

/// What became of a change here.
enum Found {
    /// The error's words.
    Refused(String),
    /// Rows of the images.
    Rows(Vec<f32>),
}

struct Family {
    sight: Sight,
    model: OpenModel,
    vision: VisionSpec,
    rows: Vec<f32>,
    /// Encoders that have run, with their rows.
    ran: RefCell<Vec<(VisionSpec, Vec<f32>)>>,
}

impl Family {
    fn open(name: &str, scratch: &Path) -> Self {
        let sight = Sight::read(name);
        let model = sight.golden.open(Variant::Config, scratch);
        let vision = vision_of(&model.checkpoint).expect("an encoder").expect("one");
        let rows = sight.golden.floats("rows.f32");
        Self { sight, model, vision, rows, ran: RefCell::default() }
    }

    /// What the engine would do with a configuration.
    fn run(&self, meta: Meta) -> Result<Found, String> {
        let mut checkpoint = self.model.checkpoint.clone();
        checkpoint.meta = meta;
        let found = || -> Result<_, ModelError> {
            let Some(vision) = vision_of(&checkpoint)? else { return Ok(None) };
            let mut text = spec_of(&checkpoint)?;
            vision.see(&mut text)?;
            let tower = lower_vision(&vision, &checkpoint)?;
            for image in &self.sight.images {
                image.pieces(&vision)?;
            }
            Ok(Some((vision, tower)))
        };
        let (vision, tower) = match found() {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(Found::Refused("vision_config: none".to_owned())),
            Err(error) => return Ok(Found::Refused(error.to_string())),
        };
        if let Some(first) = tower.unused.first() {
            return Ok(Found::Refused(format!("tensor {first} is not used")));
        }
        if vision == self.vision {
            return Ok(Found::Rows(self.rows.clone()));
        }
        if let Some((_, rows)) = self.ran.borrow().iter().find(|ran| ran.0 == vision) {
            return Ok(Found::Rows(rows.clone()));
        }
        let device = ReferenceDevice::new(16);
        let rows = self.sight.encode(&vision, &tower.program, &device, &self.model);
        let rows = rows.map_err(|error| format!("device: {error}"))?;
        self.ran.borrow_mut().push((vision, rows.clone()));
        Ok(Found::Rows(rows))
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
        let mut keys = row.put.keys().chain(&row.drop).map(|key| key.rsplit('.').next());
        if keys.any(|key| key.is_some_and(|key| BESIDE.contains(&key))) {
            return Ok(None);
        }
        let same = matches!(&row.is, Value::String(word) if word == "same");
        if let (Value::String(word), false) = (&row.is, same) {
            return match found {
                Found::Refused(_) => Ok(None),
                Found::Rows(_) if word.starts_with("crash") => Ok(None),
                Found::Rows(_) => Err(format!("{word}; here computed")),
            };
        }
        let found = match found {
            Found::Refused(words) => return named(words, row).map(Some),
            Found::Rows(found) => found,
        };
        let cols = self.vision.row_cols() as usize;
        let expected = match same {
            true if found.len() != self.rows.len() => {
                return Err(format!("{} numbers, not {}", found.len(), self.rows.len()));
            }
            true => (0..found.len()).map(|i| (i / cols, i % cols, self.rows[i])).collect(),
            false => row.places(at),
        };
        let wrong = expected.iter().find_map(|&(r, c, x)| match found.get(r * cols + c) {
            Some(&got) if !differs(got, x) => None,
            got => Some(format!("at {r}, {c}: {x} in transformers, {got:?} here")),
        });
        wrong.map_or(Ok(None), Err)
    }
}

/// The words of a refusal, if they name what was changed.
fn named(words: String, row: &Change) -> Result<String, String> {
    let mut keys = row.put.keys().chain(&row.drop).flat_map(|key| key.split('.').next_back());
    // (A window may be too short for the rows of an image.)
    match keys.any(|key| words.contains(key)) || words.contains("beside images") {
        true => Ok(words),
        false => Err(format!("refused without its name: {words}")),
    }
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

/// Changes wrong in silence, how often keys are refused that transformers computes, and all changes.
type Verdict = (Vec<String>, BTreeMap<String, usize>, usize);

fn sweep(name: &str) -> Verdict {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let family = Family::open(name, scratch.path());
    let Some(sweep) = Sweep::read(&family.sight.golden) else {
        assert_eq!(name, "vision/kimi_vl", "(transformers has no code of its makers')");
        return Verdict::default();
    };
    let (mut silent, mut refused, mut count) = (Vec::new(), BTreeMap::new(), 0);
    for (file, rows) in [("config.json", &sweep.config), ("config.v5.json", &sweep.newer)] {
        let text = family.sight.golden.text(file).expect("a configuration");
        let base = hf_config::parse(Path::new(file), text.as_bytes()).expect("a map");
        for row in rows {
            count += 1;
            let put = serde_json::to_string(&row.put).expect("JSON");
            let what = format!("{name} {file}: put {put} drop {:?}", row.drop);
            match family.judge(changed(&base, row), row, &sweep.at) {
                Ok(None) => {}
                Ok(Some(words)) => {
                    println!("{what} refused: {words}");
                    let key = row.put.keys().chain(&row.drop).next().expect("a change");
                    *refused.entry(key.clone()).or_default() += 1;
                }
                Err(how) => silent.push(format!("{what}: {how}")),
            }
        }
    }
    (silent, refused, count)
}

#[test]
fn no_changed_key_of_an_encoder_is_wrong_in_silence() {
    let only = std::env::var("GOLDEN").ok();
    let names = Golden::all_seeing().into_iter();
    let names: Vec<String> = names.filter(|n| only.as_ref().is_none_or(|o| o == n)).collect();
    let next = AtomicUsize::new(0);
    let verdicts = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let verdict = sweep(name);
                    verdicts.lock().expect("no panic").insert(name.clone(), verdict);
                }
            });
        }
    });
    let (mut silent, mut refused) = (Vec::new(), String::new());
    for (name, (wrong, keys, count)) in verdicts.into_inner().expect("no panic") {
        println!("{name}: {count} changes, {} silent", wrong.len());
        silent.extend(wrong);
        let keys: Vec<String> = keys.iter().map(|(key, n)| format!("{key} {n}")).collect();
        refused += &format!("{name}: {}\n", keys.join(", "));
    }
    assert!(silent.is_empty(), "{} wrong in silence\n{}", silent.len(), silent.join("\n"));
    if only.is_none() {
        let expected = include_str!("../vision/refused.txt");
        assert!(refused == expected, "refusals changed; refused.txt would be\n{refused}");
    }
}
