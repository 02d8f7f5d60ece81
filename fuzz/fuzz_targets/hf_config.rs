//! The config.json reader on any bytes. Seeds: crates/files/tests/fixtures/sharded/*.json.
#![no_main]

use std::path::Path;

use tokenmill_files::hf_config::{check_quantization, parse};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let path = Path::new("config.json");
    let Ok(meta) = parse(path, bytes) else { return };
    let _ = check_quantization(path, &meta);
    for (key, _) in meta.iter() {
        let _ = (meta.opt_u32(key), meta.opt_f64(key), meta.opt_str(key), meta.opt_list(key));
    }
});
