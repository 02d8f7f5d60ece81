//! The safetensors header and index readers on any bytes. Seeds:
//! crates/files/tests/fixtures/sharded/*.
#![no_main]

use std::path::Path;

use tokenmill_files::safetensors::{parse, parse_index};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(tensors) = parse(Path::new("fuzzed.safetensors"), bytes, 0) {
        for tensor in &tensors {
            let end = tensor.extent.offset.checked_add(tensor.extent.len);
            assert!(end.is_some_and(|end| end <= bytes.len() as u64), "{tensor:?}");
        }
    }
    if let Ok(index) = parse_index(Path::new("fuzzed.index.json"), bytes) {
        for (tensor, file) in &index.tensors {
            assert!(*file < index.files.len(), "{tensor}");
        }
        for file in &index.files {
            assert_eq!(Path::new(file).components().count(), 1, "{file:?} leaves the folder");
        }
    }
});
