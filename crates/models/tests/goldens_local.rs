//! local
use serde_json::Value;
use tokenmill_ir::*;
use tokenmill_models::*;
fn conv(v: &Value) -> MetaValue {
    match v {
        Value::Null => MetaValue::Null,
        Value::Bool(b) => MetaValue::Bool(*b),
        Value::Number(n) => {
            n.as_i64().map(MetaValue::Int).unwrap_or(MetaValue::Float(n.as_f64().unwrap()))
        }
        Value::String(s) => MetaValue::Str(s.clone()),
        Value::Array(a) => MetaValue::List(a.iter().map(conv).collect()),
        Value::Object(o) => MetaValue::Map(Box::new(map(o))),
    }
}
fn map(o: &serde_json::Map<String, Value>) -> Meta {
    let mut m = Meta::new();
    for (k, v) in o {
        m.insert(k.clone(), conv(v));
    }
    m
}
#[test]
fn all() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden");
    let mut bad = 0;
    for e in std::fs::read_dir(root).unwrap() {
        let p = e.unwrap().path();
        let Ok(t) = std::fs::read_to_string(p.join("tensors.json")) else { continue };
        let t: Value = serde_json::from_str(&t).unwrap();
        let tensors: Vec<TensorInfo> = t["tensors"]
            .as_array()
            .unwrap()
            .iter()
            .map(|t| TensorInfo {
                name: t["name"].as_str().unwrap().into(),
                format: tokenmill_quant::FormatId::F32,
                shape: t["shape"].as_array().unwrap().iter().map(|x| x.as_u64().unwrap()).collect(),
                extent: Extent { file: 0, offset: 0, len: 0 },
                order: None,
            })
            .collect();
        let mut specs = vec![];
        for f in ["config.json", "config.v5.json"] {
            let Ok(c) = std::fs::read_to_string(p.join(f)) else { continue };
            let c: Value = serde_json::from_str(&c.replace("Infinity", "1e308")).unwrap();
            let ck = Checkpoint::new(Container::Hf, map(c.as_object().unwrap()), tensors.clone())
                .unwrap();
            match spec_of(&ck) {
                Ok(s) => {
                    specs.push(s);
                    println!(
                        "{} {f} passed over {:?}",
                        p.file_name().unwrap().to_str().unwrap(),
                        Hyper::new(&ck).unwrap().passed_over()
                    );
                }
                Err(e) => {
                    bad += 1;
                    println!("BAD {} {f}: {e}", p.file_name().unwrap().to_str().unwrap())
                }
            }
        }
        if specs.len() == 2 && specs[0] != specs[1] {
            bad += 1;
            println!("BAD {} differ", p.display());
        }
        let Ok(c) = std::fs::read_to_string(p.join("twin.json")) else { continue };
        let c: Value = serde_json::from_str(&c).unwrap();
        let pairs = c["meta"]
            .as_array()
            .map(|a| {
                a.iter()
                    .map(|x| {
                        (
                            x[0].as_str().unwrap().to_string(),
                            x[x.as_array().unwrap().len() - 1].clone(),
                        )
                    })
                    .collect::<Vec<_>>()
            })
            .or_else(|| {
                c["meta"]
                    .as_object()
                    .map(|o| o.iter().map(|(k, v)| (k.clone(), v.clone())).collect())
            })
            .or_else(|| {
                c["metadata"]
                    .as_object()
                    .map(|o| o.iter().map(|(k, v)| (k.clone(), v.clone())).collect())
            })
            .expect("meta");
        let mut m = Meta::new();
        for (k, v) in pairs {
            m.insert(k, conv(&v));
        }
        let names = c["tensors"].as_array().unwrap();
        let tensors: Vec<TensorInfo> = names
            .iter()
            .map(|t| TensorInfo {
                name: t["name"].as_str().unwrap().into(),
                format: tokenmill_quant::FormatId::F32,
                shape: t["shape"].as_array().unwrap().iter().map(|x| x.as_u64().unwrap()).collect(),
                extent: Extent { file: 0, offset: 0, len: 0 },
                order: None,
            })
            .collect();
        let ck = Checkpoint::new(Container::Gguf, m, tensors).unwrap();
        if let Err(e) = spec_of(&ck) {
            bad += 1;
            println!("BAD {} gguf: {e}", p.file_name().unwrap().to_str().unwrap())
        }
    }
    assert_eq!(bad, 0);
}
