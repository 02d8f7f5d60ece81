//! The GGUF header reader on any bytes. Seeds: crates/files/tests/fixtures/*.gguf.
#![no_main]

use std::path::Path;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let path = Path::new("fuzzed.gguf");
    let Ok(gguf) = tokenmill_files::gguf::parse(path, bytes, 0) else { return };
    let _ = gguf.split(path);
    for tensor in &gguf.tensors {
        let end = tensor.extent.offset.checked_add(tensor.extent.len);
        assert!(end.is_some_and(|end| end <= bytes.len() as u64), "{tensor:?} leaves the file");
        let rows =
            tensor.format.row_bytes(tensor.cols()).and_then(|b| b.checked_mul(tensor.rows()));
        assert_eq!(rows, Some(tensor.extent.len), "{tensor:?}");
    }
});
