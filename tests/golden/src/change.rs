//! Changed hyper-parameters.

use tokenmill_ir::{Meta, MetaValue};

/// A copy with one key at another value, or without it. A dotted key steps into maps, unless `meta`
/// has no map of that name.
pub fn with(meta: &Meta, key: &str, value: Option<&MetaValue>) -> Meta {
    let (head, tail) = match key.split_once('.') {
        Some((head, tail)) if matches!(meta.get(head), Some(MetaValue::Map(_))) => (head, tail),
        _ => (key, ""),
    };
    let mut out = Meta::new();
    for (k, old) in meta.iter().filter(|(k, _)| *k != head || !tail.is_empty()) {
        let new = match old {
            MetaValue::Map(inner) if k == head => {
                MetaValue::Map(Box::new(with(inner, tail, value)))
            }
            _ => old.clone(),
        };
        out.insert(k.to_owned(), new);
    }
    if let (Some(value), true) = (value, tail.is_empty()) {
        out.insert(head.to_owned(), value.clone());
    }
    out
}
