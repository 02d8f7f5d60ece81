//! JSON texts with one thing wrong, and the headers of safetensors files.

use serde_json::{Map, Value, json};

use crate::{Draw, Mutant, damaged};

/// What stands for texts that no JSON value has; put in as they are.
const RAW: &[(&str, &str)] = &[
    ("@nan@", "NaN"),
    ("@minus infinity@", "-Infinity"),
    ("@infinity@", "Infinity"),
    ("@huge@", "1e400"),
    ("@long@", "123456789012345678901234567890"),
    ("@minus@", "-0"),
];

/// Every text with one value replaced, absent or twice that `keep` wants, and some damaged ones.
pub fn mutants(text: &str, draw: &mut Draw, mut keep: impl FnMut() -> bool) -> Vec<Mutant> {
    let quoted = |name: &str| format!("\"@{}@\"", name);
    let readable = text
        .replace("-Infinity", &quoted("minus infinity"))
        .replace(": Infinity", &format!(": {}", quoted("infinity")))
        .replace(" Infinity", &format!(" {}", quoted("infinity")));
    let root: Value = serde_json::from_str(&readable).expect("valid JSON");
    let mut places = Vec::new();
    walk(&root, &mut Vec::new(), &mut places);
    let mut all = Vec::new();
    for place in &places {
        let name = if place.is_empty() { "all of it".to_owned() } else { place.join(".") };
        let old = at(&root, place).cloned().unwrap_or(Value::Null);
        for other in others(&old) {
            if keep() {
                let what = format!("{name} = {}", shown(&other));
                all.push(Mutant { what, bytes: written(&replaced(&root, place, Some(&other))) });
            }
        }
        if !place.is_empty() && keep() {
            let bytes = written(&replaced(&root, place, None));
            all.push(Mutant { what: format!("{name} is absent"), bytes });
        }
        if let (Value::Object(map), true) = (&old, keep())
            && let Some((key, value)) = map.iter().next()
        {
            let twice = format!("{{{}:{value},{}:7,", json!(key), json!(key));
            let whole = old.to_string();
            let text = root.to_string().replacen(&whole, &(twice + &whole[1..]), 1);
            all.push(Mutant { what: format!("{name}: a key twice"), bytes: raw(text) });
        }
    }
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        if keep() {
            let deep = format!("{}1{}", open.repeat(20_000), close.repeat(20_000));
            let text = format!("{{\"deep\":{deep},{}", &root.to_string()[1..]);
            all.push(Mutant { what: format!("deep {open}"), bytes: raw(text) });
        }
    }
    all.extend(damaged(text.as_bytes(), (text.len(), 20), draw, keep));
    all
}

/// The same for the header of a safetensors file.
pub fn safetensors(file: &[u8], draw: &mut Draw, mut keep: impl FnMut() -> bool) -> Vec<Mutant> {
    let len = file.first_chunk().map_or(0, |n: &[u8; 8]| u64::from_le_bytes(*n)) as usize;
    let (header, data) = (&file[8..8 + len], &file[8 + len..]);
    let header = std::str::from_utf8(header).expect("text").trim_end();
    let mut all = mutants(header, draw, &mut keep);
    for mutant in &mut all {
        let mut bytes = (mutant.bytes.len() as u64).to_le_bytes().to_vec();
        bytes.append(&mut mutant.bytes);
        bytes.extend(data);
        mutant.bytes = bytes;
    }
    for n in [0, 1, 7, len as u64 + 1, 1 << 31, 1 << 63, u64::MAX] {
        if keep() {
            let mut bytes = file.to_vec();
            bytes[..8].copy_from_slice(&n.to_le_bytes());
            all.push(Mutant { what: format!("a header of {n} bytes"), bytes });
        }
    }
    all.extend(damaged(file, (8 + len, 20), draw, keep));
    all
}

/// Paths of all values. Of long lists and maps the first and the last ones.
fn walk(value: &Value, path: &mut Vec<String>, places: &mut Vec<Vec<String>>) {
    const MOST: usize = 40;
    places.push(path.clone());
    let inner: Vec<(String, &Value)> = match value {
        Value::Object(map) => map.iter().map(|(k, v)| (k.clone(), v)).collect(),
        Value::Array(list) => list.iter().enumerate().map(|(i, v)| (i.to_string(), v)).collect(),
        _ => return,
    };
    let len = inner.len();
    for (i, (key, value)) in inner.into_iter().enumerate() {
        if i < MOST || i + 3 > len {
            path.push(key);
            walk(value, path, places);
            path.pop();
        }
    }
}

fn at<'v>(root: &'v Value, path: &[String]) -> Option<&'v Value> {
    path.iter().try_fold(root, |value, key| match value {
        Value::Array(list) => list.get(key.parse::<usize>().ok()?),
        value => value.get(key),
    })
}

fn replaced(root: &Value, path: &[String], by: Option<&Value>) -> Value {
    let Some((key, rest)) = path.split_first() else { return by.cloned().unwrap_or(Value::Null) };
    match root {
        Value::Object(map) => {
            let mut out = Map::new();
            for (k, v) in map {
                match (k == key, rest.is_empty(), by) {
                    (true, true, None) => {}
                    (true, ..) => drop(out.insert(k.clone(), replaced(v, rest, by))),
                    _ => drop(out.insert(k.clone(), v.clone())),
                }
            }
            Value::Object(out)
        }
        Value::Array(list) => {
            let mut list = list.clone();
            let i: usize = key.parse().unwrap_or(0);
            match (rest.is_empty(), by) {
                (true, None) => drop(list.remove(i)),
                _ => list[i] = replaced(&list[i], rest, by),
            }
            Value::Array(list)
        }
        other => other.clone(),
    }
}

fn others(old: &Value) -> Vec<Value> {
    let mut all = vec![
        json!(null),
        json!(true),
        json!(false),
        json!(0),
        json!(1),
        json!(3),
        json!(-1),
        json!(0.5),
        json!(4096),
        json!(65_537),
        json!(2_147_483_647u64),
        json!(2_147_483_648u64),
        json!(1_000_000_000u64),
        json!(4_294_967_296u64),
        json!(u64::MAX),
        json!(1e300),
        json!(""),
        json!("x"),
        json!("\u{0}\u{7f}\u{200b}"),
        json!("ab ".repeat(30_000)),
        json!([]),
        json!({}),
        json!([old, old]),
        json!([[[[]]]]),
        json!({ "a": old }),
    ];
    all.extend(RAW.iter().map(|(name, _)| json!(name)));
    if let Some(n) = old.as_f64() {
        all.extend([n + 1.0, n - 1.0, 2.0 * n, n / 2.0, -n].map(|n| match n.fract() == 0.0 {
            true => json!(n as i64),
            false => json!(n),
        }));
    }
    if let Value::Array(list) = old {
        all.push(Value::Array(list.iter().chain(list).cloned().collect()));
        all.push(Value::Array(list.iter().skip(1).cloned().collect()));
    }
    all.retain(|other| other != old);
    all
}

fn written(value: &Value) -> Vec<u8> {
    raw(value.to_string())
}

fn raw(mut text: String) -> Vec<u8> {
    for (name, raw) in RAW {
        text = text.replace(&format!("\"{name}\""), raw);
    }
    text.into_bytes()
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
