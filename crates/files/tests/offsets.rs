//! Offsets of tensors that are whole multiples of the alignment, and whose sum with where the data
//! starts, or with their length, is beyond 64 bits.

use tokenmill_files::write::{TensorHeader, write_gguf};
use tokenmill_files::{LoadError, open};
use tokenmill_ir::Meta;
use tokenmill_quant::FormatId;

const ALIGNMENT: u64 = 32;

#[test]
fn aligned_offsets_beyond_64_bits_are_refused() {
    let header = TensorHeader { name: "weight".into(), format: FormatId::F32, shape: vec![16] };
    let mut file = Vec::new();
    write_gguf(&mut file, &Meta::new(), &[header], |_, out| out.write_all(&[7; 64])).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let at = file.windows(6).position(|w| w == b"weight").unwrap() + 6 + 4 + 8 + 4;
    assert_eq!(file[at..at + 8], 0u64.to_le_bytes(), "the offset's place in the record");
    let data = file.len() as u64 - 64;
    let starts = [
        0u64.wrapping_sub(data),                  // the sum is the start of the file
        0u64.wrapping_sub(ALIGNMENT),             // just before the data
        0u64.wrapping_sub(data).wrapping_sub(64), // it ends where numbers do
        0u64.wrapping_sub(data + ALIGNMENT),      // its end is beyond
        (i64::MAX as u64 + 1).wrapping_sub(data), // beyond signed numbers
    ];
    for offset in starts {
        assert_eq!(offset % ALIGNMENT, 0, "else it is refused for that");
        file[at..at + 8].copy_from_slice(&offset.to_le_bytes());
        std::fs::remove_file(&path).ok();
        std::fs::write(&path, &file).unwrap();
        let error = open(&path).err().unwrap_or_else(|| panic!("{offset:#x} is read"));
        let place =
            matches!(&error, LoadError::Truncated { place, .. } if place.contains("weight"));
        assert!(place, "{offset:#x}: {error}");
    }
}
