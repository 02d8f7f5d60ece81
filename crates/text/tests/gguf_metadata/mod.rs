//! Just enough of a GGUF reader to take the vocabulary out of a file, for tests.

use std::collections::HashMap;

use tokenmill_text::GgufVocab;

/// A metadata value of the kinds vocabularies use.
pub enum Entry {
    Int(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    List(Vec<Entry>),
}

struct Reader<'f> {
    rest: &'f [u8],
}

impl Reader<'_> {
    fn take(&mut self, count: usize) -> &[u8] {
        let (head, rest) = self.rest.split_at(count);
        self.rest = rest;
        head
    }

    fn int<const N: usize>(&mut self) -> i64 {
        let mut bytes = [0; 8];
        bytes[..N].copy_from_slice(self.take(N));
        i64::from_le_bytes(bytes)
    }

    fn text(&mut self) -> String {
        let len = self.int::<8>() as usize;
        String::from_utf8(self.take(len).to_vec()).expect("UTF-8")
    }

    fn entry(&mut self, kind: i64) -> Entry {
        match kind {
            0 => Entry::Int(self.int::<1>()),
            1 => Entry::Int(self.int::<1>() as i8 as i64),
            2 => Entry::Int(self.int::<2>()),
            3 => Entry::Int(self.int::<2>() as i16 as i64),
            4 => Entry::Int(self.int::<4>()),
            5 => Entry::Int(self.int::<4>() as i32 as i64),
            6 => Entry::Float(f32::from_bits(self.int::<4>() as u32) as f64),
            7 => Entry::Bool(self.int::<1>() != 0),
            8 => Entry::Text(self.text()),
            9 => {
                let kind = self.int::<4>();
                let count = self.int::<8>();
                Entry::List((0..count).map(|_| self.entry(kind)).collect())
            }
            10 | 11 => Entry::Int(self.int::<8>()),
            12 => Entry::Float(f64::from_bits(self.int::<8>() as u64)),
            other => panic!("metadata kind {other}"),
        }
    }
}

/// The metadata of a GGUF file.
pub fn metadata(file: &[u8]) -> HashMap<String, Entry> {
    let mut reader = Reader { rest: file };
    assert_eq!(reader.take(4), b"GGUF");
    let _version = reader.int::<4>();
    let _tensors = reader.int::<8>();
    let count = reader.int::<8>();
    let mut entries = HashMap::new();
    for _ in 0..count {
        let key = reader.text();
        let kind = reader.int::<4>();
        entries.insert(key, reader.entry(kind));
    }
    entries
}

/// The vocabulary among the metadata.
pub fn vocab(entries: &HashMap<String, Entry>) -> GgufVocab {
    let get = |key: &str| entries.get(&format!("tokenizer.ggml.{key}"));
    let text = |key: &str| match get(key) {
        Some(Entry::Text(text)) => Some(text.clone()),
        _ => None,
    };
    let id = |key: &str| match get(key) {
        Some(Entry::Int(id)) => Some(*id as u32),
        _ => None,
    };
    let flag = |key: &str| match get(key) {
        Some(Entry::Bool(flag)) => Some(*flag),
        _ => None,
    };
    let list = |key: &str| match get(key) {
        Some(Entry::List(items)) => items.as_slice(),
        _ => &[],
    };
    let texts = |key: &str| -> Vec<String> {
        let text = |item: &Entry| match item {
            Entry::Text(text) => Some(text.clone()),
            _ => None,
        };
        list(key).iter().filter_map(text).collect()
    };
    GgufVocab {
        model: text("model").expect("a vocabulary"),
        pre: text("pre"),
        tokens: texts("tokens"),
        scores: list("scores")
            .iter()
            .filter_map(
                |item| if let Entry::Float(score) = item { Some(*score as f32) } else { None },
            )
            .collect(),
        token_types: list("token_type")
            .iter()
            .filter_map(|item| if let Entry::Int(kind) = item { Some(*kind as i32) } else { None })
            .collect(),
        merges: texts("merges"),
        bos: id("bos_token_id"),
        eos: id("eos_token_id"),
        eot: id("eot_token_id"),
        eom: id("eom_token_id"),
        unk: id("unknown_token_id"),
        sep: id("seperator_token_id"),
        pad: id("padding_token_id"),
        add_bos: flag("add_bos_token"),
        add_eos: flag("add_eos_token"),
        add_space_prefix: flag("add_space_prefix"),
        remove_extra_whitespaces: flag("remove_extra_whitespaces"),
        charsmap: Vec::new(),
        ..GgufVocab::default()
    }
}
