//! GGUF headers of any bytes, as far as a model's program. Seeds: crates/files/tests/fixtures/*.gguf,
//! tests/golden/*/twin.gguf (their headers).
#![no_main]

use std::path::Path;

use tokenmill_ir::{Checkpoint, Container, KvFormat};

/// Zeros behind what is fuzzed: the tensors' data.
const DATA_BYTES: usize = 256 << 10;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut file = bytes.to_vec();
    file.resize(bytes.len() + DATA_BYTES, 0);
    let Ok(gguf) = tokenmill_files::gguf::parse(Path::new("fuzzed.gguf"), &file, 0) else { return };
    let Ok(checkpoint) = Checkpoint::new(Container::Gguf, gguf.meta, gguf.tensors) else { return };
    let Ok(spec) = tokenmill_models::spec_of(&checkpoint) else { return };
    let _ = tokenmill_models::lower(&spec, &checkpoint, KvFormat::Int16);
});
