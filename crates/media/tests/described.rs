//! Every key of every processor's description with other values (`golden/sweep.py`): images become what the
//! original makes of them, or the change is refused by name. Nothing else is allowed.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use serde_json::Value;
use sha2::{Digest, Sha256};
use tokenmill_media::{Picture, Processor, Tower};

/// Of the two recorded images.
const SIZES: [[u32; 2]; 2] = [[61, 47], [200, 120]];

fn recorded() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/sweep.json");
    serde_json::from_str(&std::fs::read_to_string(path).expect("a recording")).expect("JSON")
}

/// The formula that `record.py` has.
fn picture([width, height]: [u32; 2]) -> Picture {
    let all = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
    let value =
        |x: u32, y: u32, c: u32| ((x * (3 + c) + y * (5 - c) + x * y / 8 + 40 * c) % 256) as u8;
    let rgb = all.flat_map(|(x, y)| [0, 1, 2].map(|c| value(x, y, c)));
    Picture::new(width, height, rgb.collect()).expect("fits")
}

/// The beginnings of both images' digests, or the words of a refusal.
fn digests(config: &Value, tower: Tower) -> Result<Vec<String>, String> {
    let processor = Processor::read(config, tower).map_err(|error| error.to_string())?;
    let one = |size| {
        let made = processor.patches(picture(size), true).map_err(|error| error.to_string())?;
        let bytes: Vec<u8> = made.data.iter().flat_map(|value| value.to_le_bytes()).collect();
        let digest = Sha256::digest(&bytes);
        Ok(digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect())
    };
    SIZES.into_iter().map(one).collect()
}

/// A change, and the key that it is of.
fn changed(config: &Value, row: &Value) -> (Value, String) {
    let mut config = config.clone();
    let keys = config.as_object_mut().expect("an object");
    if let Some(key) = row["drop"].as_str() {
        keys.remove(key);
        return (config, key.to_owned());
    }
    let (key, value) = row["put"].as_object().and_then(|put| put.iter().next()).expect("a change");
    keys.insert(key.clone(), value.clone());
    (config, key.clone())
}

/// Why a change is wrong in silence, or that it is refused although the original takes it, or nothing.
fn judge(class: &Value, row: &Value, tower: Tower) -> Result<Option<String>, String> {
    let (config, key) = changed(&class["config"], row);
    let found = catch_unwind(AssertUnwindSafe(|| digests(&config, tower)));
    let found = found.map_err(|_| "panic".to_owned())?;
    let expected = match &row["is"] {
        Value::String(word) if word == "same" => class["base"].clone(),
        Value::String(word) => match found {
            Ok(_) if word.starts_with("error") => return Err(format!("{word}; here computed")),
            _ => return Ok(None),
        },
        digests => digests.clone(),
    };
    match found {
        Ok(found) => match Value::from(found) == expected {
            true => Ok(None),
            false => Err("other numbers than the original's".to_owned()),
        },
        Err(words) if words.contains(&key) || key == "image_processor_type" => Ok(Some(key)),
        Err(words) => Err(format!("refused without its name: {words}")),
    }
}

#[test]
fn no_changed_key_is_wrong_in_silence() {
    let recorded = recorded();
    let (mut silent, mut refused, mut count) = (Vec::new(), String::new(), 0);
    for class in recorded["classes"].as_array().expect("classes") {
        let number = |i: usize| class["tower"][i].as_u64().expect("a number") as u32;
        let tower = Tower { patch: number(0), merge: number(1) };
        let name = class["config"]["image_processor_type"].as_str().expect("a name");
        let mut keys = BTreeMap::<String, usize>::new();
        for row in class["rows"].as_array().expect("rows") {
            count += 1;
            match judge(class, row, tower) {
                Ok(None) => {}
                Ok(Some(key)) => *keys.entry(key).or_default() += 1,
                Err(how) => silent.push(format!("{name}: {row}: {how}")),
            }
        }
        let keys: Vec<String> = keys.iter().map(|(key, n)| format!("{key} {n}")).collect();
        refused += &format!("{name}: {}\n", keys.join(", "));
    }
    assert!(count > 500, "{count} changes");
    assert!(
        silent.is_empty(),
        "{} of {count} wrong in silence\n{}",
        silent.len(),
        silent.join("\n")
    );
    let expected = include_str!("golden/refused.txt");
    assert!(refused == expected, "refusals changed; refused.txt would be\n{refused}");
}
