//! Broken and malicious files: each is refused (or read) quickly, in little memory, without a
//! panic.
#![allow(unsafe_code)] // a counting allocator

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokenmill_files::{LoadError, OpenModel, open};

/// Counts the bytes this thread holds, and their peak.
struct Counting;

thread_local! {
    static HELD: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    // During thread teardown the counters are gone; nothing is measured then.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

// SAFETY: every call goes to the system allocator unchanged; the counters are thread-local
// cells without destructors, so counting neither allocates nor re-enters.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's contract is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller's contract is passed on.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // Old and new may exist together while the content moves.
        count(new_size as i64);
        count(-(layout.size() as i64));
        // SAFETY: the caller's contract is passed on.
        unsafe { System.realloc(block, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A folder with a file to be overwritten again and again.
struct Lab {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl Lab {
    fn gguf() -> Lab {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        Lab { _folder: folder, path }
    }

    fn safetensors() -> Lab {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), "{}").unwrap();
        let path = folder.path().join("model.safetensors");
        Lab { _folder: folder, path }
    }

    /// Opens a file of these bytes within the limits; reads every tensor if it opens.
    fn open(&self, bytes: &[u8], what: &str) -> Result<OpenModel, LoadError> {
        // Unlink first: a file that is still mapped must not shrink.
        let _ = std::fs::remove_file(&self.path);
        std::fs::write(&self.path, bytes).unwrap();
        let (start, held) = (Instant::now(), HELD.get());
        PEAK.set(held);
        let result = open(&self.path);
        let (took, grew) = (start.elapsed(), PEAK.get() - held);
        assert!(took < Duration::from_secs(1), "{what}: took {took:?}");
        let limit = (1 << 20) + 2 * bytes.len() as i64;
        assert!(grew <= limit, "{what}: {grew} bytes of memory for a file of {}", bytes.len());
        if let Ok(model) = &result {
            for tensor in &model.checkpoint.tensors {
                let mapped = model.data.tensor_bytes(tensor).unwrap();
                let mut copied = vec![0; mapped.len()];
                let rows = if mapped.is_empty() { 0..0 } else { 0..tensor.rows() };
                model.data.read_rows(tensor, rows, &mut copied).unwrap();
                assert_eq!(mapped, copied, "{what}");
            }
        }
        result
    }

    fn refused(&self, bytes: &[u8], what: &str) {
        let result = self.open(bytes, what);
        let message = match &result {
            Ok(model) => panic!("{what}: opened with {:?}", model.checkpoint.tensors),
            Err(e) => e.to_string(),
        };
        let name = self.path.file_name().unwrap().to_str().unwrap();
        assert!(message.contains(name), "{what}: the path is missing from: {message}");
        assert!(message.len() < 2000, "{what}: {} bytes of message", message.len());
    }
}

/// Numbers at the edges of what a header may declare.
const EDGES: [u64; 14] = [
    0,
    1,
    2,
    7,
    (1 << 31) - 1,
    1 << 31,
    (1 << 31) + 1,
    (1 << 32) - 1,
    1 << 32,
    (1 << 32) + 1,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

/// A GGUF file under construction, every number free to be wrong.
#[derive(Clone)]
struct Wrong {
    tensor_count: u64,
    pair_count: u64,
    key_len: Option<u64>,
    text_len: Option<u64>,
    array_type: u32,
    array_len: u64,
    value_type: u32,
    alignment: Option<u64>,
    name_len: Option<u64>,
    dim_count: u32,
    dims: Vec<u64>,
    format: u32,
    offset: u64,
}

/// A valid one: three pairs, one f32 tensor of 2 × 4.
fn valid() -> Wrong {
    Wrong {
        tensor_count: 1,
        pair_count: 3,
        key_len: None,
        text_len: None,
        array_type: 5,
        array_len: 2,
        value_type: 4,
        alignment: None,
        name_len: None,
        dim_count: 2,
        dims: vec![4, 2],
        format: 0,
        offset: 0,
    }
}

impl Wrong {
    fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        let text = |out: &mut Vec<u8>, text: &str, len: Option<u64>| {
            out.extend(len.unwrap_or(text.len() as u64).to_le_bytes());
            out.extend(text.as_bytes());
        };
        out.extend(self.tensor_count.to_le_bytes());
        let pairs = self.pair_count + u64::from(self.alignment.is_some());
        out.extend(pairs.to_le_bytes());
        text(&mut out, "name", self.key_len);
        out.extend(8_u32.to_le_bytes());
        text(&mut out, "value", self.text_len);
        text(&mut out, "list", None);
        out.extend(9_u32.to_le_bytes());
        out.extend(self.array_type.to_le_bytes());
        out.extend(self.array_len.to_le_bytes());
        out.extend([7_i32, 8].iter().flat_map(|i| i.to_le_bytes()));
        text(&mut out, "number", None);
        out.extend(self.value_type.to_le_bytes());
        out.extend(12_u32.to_le_bytes());
        if let Some(alignment) = self.alignment {
            text(&mut out, "general.alignment", None);
            out.extend(10_u32.to_le_bytes());
            out.extend(alignment.to_le_bytes());
        }
        text(&mut out, "weight", self.name_len);
        out.extend(self.dim_count.to_le_bytes());
        self.dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
        out.extend(self.format.to_le_bytes());
        out.extend(self.offset.to_le_bytes());
        let padded = out.len().next_multiple_of(32);
        out.resize(padded + 32, 1);
        out
    }
}

#[test]
fn the_valid_file_opens() {
    let model = Lab::gguf().open(&valid().bytes(), "valid").unwrap();
    assert_eq!(model.checkpoint.tensors[0].shape, [2, 4]);
    assert_eq!(model.checkpoint.meta.iter().count(), 3);
}

#[test]
fn wrong_numbers_in_gguf_are_refused() {
    let lab = Lab::gguf();
    for edge in EDGES {
        let small = edge as u32;
        let cases: [(&str, bool, Wrong); 12] = [
            ("tensor count", edge == 0 || edge == 1, Wrong { tensor_count: edge, ..valid() }),
            ("pair count", false, Wrong { pair_count: edge, ..valid() }),
            ("key length", false, Wrong { key_len: Some(edge), ..valid() }),
            ("text length", false, Wrong { text_len: Some(edge), ..valid() }),
            ("array length", edge == 2, Wrong { array_len: edge, ..valid() }),
            ("array type", false, Wrong { array_type: small.saturating_add(13), ..valid() }),
            ("value type", false, Wrong { value_type: small.saturating_add(13), ..valid() }),
            ("name length", false, Wrong { name_len: Some(edge), ..valid() }),
            ("dimension count", small == 2, Wrong { dim_count: small, ..valid() }),
            ("columns", edge == 1 || edge == 2, Wrong { dims: vec![edge, 2], ..valid() }),
            ("rows", edge == 1 || edge == 2, Wrong { dims: vec![4, edge], ..valid() }),
            ("offset", edge == 0, Wrong { offset: edge, ..valid() }),
        ];
        for (what, legal, file) in cases {
            let what = format!("{what} {edge}");
            if legal {
                lab.open(&file.bytes(), &what).unwrap_or_else(|e| panic!("{what}: {e}"));
            } else {
                lab.refused(&file.bytes(), &what);
            }
        }
        // Every combination of two extreme dimensions must stay inside 64 bits.
        for other in EDGES {
            let _ = lab.open(&Wrong { dims: vec![edge, other], ..valid() }.bytes(), "two dims");
            let four = Wrong { dims: vec![1, 1, edge, other], dim_count: 4, ..valid() };
            let _ = lab.open(&four.bytes(), "four dims");
        }
        let file = Wrong { alignment: Some(edge), ..valid() };
        match edge {
            1 | 2 => lab.open(&file.bytes(), "alignment").map(|_| ()).unwrap(),
            _ => lab.refused(&file.bytes(), &format!("alignment {edge}")),
        }
        if edge > 2 && !(edge <= u32::MAX.into() && edge.is_power_of_two()) {
            let told = lab.open(&file.bytes(), "alignment").unwrap_err().to_string();
            let told = told.split("model.gguf: ").last().unwrap_or_default().to_owned();
            let alignment = "general.alignment: expected a power of two, found";
            assert_eq!(told, format!("{alignment} {edge}"), "the cause, once");
        }
        if edge != 0 {
            let format = small.max(43);
            lab.refused(&Wrong { format, ..valid() }.bytes(), &format!("format {format}"));
        }
    }
}

/// Offsets that keep the alignment: just before 2^64, around the end of the file, and such that the
/// sum with the start of the data or the length of the tensor does not fit 64 bits.
#[test]
fn gguf_offsets_beyond_the_file_are_refused_whatever_their_sum() {
    let lab = Lab::gguf();
    let whole = valid().bytes();
    let file_bytes = whole.len() as u64;
    let data_start = file_bytes - 32;
    assert!(lab.open(&whole, "whole").is_ok(), "the data are the last 32 bytes");
    let mut offsets: Vec<u64> =
        (1..=file_bytes / 32 + 4).map(|n| 0u64.wrapping_sub(32 * n)).collect();
    offsets.extend((1..8).map(|n| 32 * n));
    offsets.extend([1u64 << 31, 1 << 32, 1 << 62, 1 << 63, (1 << 63) - data_start]);
    for offset in offsets {
        let what = format!("offset {offset:#x}");
        let bytes = Wrong { offset, ..valid() }.bytes();
        lab.refused(&bytes, &what);
        let error = lab.open(&bytes, &what).unwrap_err();
        assert!(matches!(error, LoadError::Truncated { .. }), "{what}: {error}");
    }
    // The longest tensors, whose end is beyond 2^64 where their start is not.
    for cols in [(1u64 << 61) - 8, 1 << 60, 1 << 59] {
        for offset in [0, 32, 1 << 62, 1 << 63, (1 << 63) + 64, 0u64.wrapping_sub(4 * cols) & !31] {
            for offset in [offset, offset.wrapping_sub(data_start)] {
                let file = Wrong { dims: vec![cols], dim_count: 1, offset, ..valid() };
                lab.refused(&file.bytes(), &format!("{cols} columns at {offset:#x}"));
            }
        }
    }
    // Without an alignment every offset is legal that lies in the file.
    for offset in EDGES.into_iter().chain([1, 31, 32, 33].map(|n| 0u64.wrapping_sub(n))) {
        let file = Wrong { alignment: Some(1), offset, ..valid() };
        // (Padding stands before the data here, and the tensor may begin in it.)
        let padding = file.bytes().len() as u64 - 32 - unpadded(&file);
        let what = format!("offset {offset:#x} with an alignment of 1");
        match offset <= padding {
            true => drop(lab.open(&file.bytes(), &what).unwrap_or_else(|e| panic!("{what}: {e}"))),
            false => lab.refused(&file.bytes(), &what),
        }
    }
}

/// Bytes of the header.
fn unpadded(file: &Wrong) -> u64 {
    let bytes = file.bytes();
    // The name, its axes, their number, the type and the offset end it.
    let name = bytes.windows(6).rposition(|w| w == b"weight").unwrap();
    (name + 6 + 4 + 8 * file.dims.len() + 4 + 8) as u64
}

/// Two tensors of which the second one's offset wraps into the header or onto the first.
#[test]
fn gguf_offsets_do_not_wrap_onto_other_bytes() {
    use tokenmill_files::write::{TensorHeader, write_gguf};
    use tokenmill_quant::FormatId;
    let header = |name: &str| {
        let (name, format, shape) = (name.to_owned(), FormatId::F32, vec![8]);
        TensorHeader { name, format, shape }
    };
    let (mut bytes, meta) = (Vec::new(), tokenmill_ir::Meta::new());
    let tensors = [header("aaaa"), header("bbbb")];
    write_gguf(&mut bytes, &meta, &tensors, |_, out| out.write_all(&[7; 32])).unwrap();
    let lab = Lab::gguf();
    assert!(lab.open(&bytes, "two tensors").is_ok());
    let at = bytes.windows(4).position(|w| w == b"bbbb").unwrap() + 4 + 4 + 8 + 4;
    for back in 1..=bytes.len() as u64 / 32 + 2 {
        let offset = 0u64.wrapping_sub(32 * back);
        bytes[at..at + 8].copy_from_slice(&offset.to_le_bytes());
        lab.refused(&bytes, &format!("the second at {offset:#x}"));
    }
}

#[test]
fn broken_text_and_repetition_in_gguf_are_refused() {
    let lab = Lab::gguf();
    let replace = |from: &str, to: &[u8]| {
        let mut bytes = valid().bytes();
        let at = bytes.windows(from.len()).position(|w| w == from.as_bytes()).unwrap();
        bytes[at..at + to.len()].copy_from_slice(to);
        bytes
    };
    lab.refused(&replace("value", b"\xff\xfe\xfd\xfc\xfb"), "text that is not UTF-8");
    lab.refused(&replace("list", b"name"), "a key twice");
    // Arrays in arrays, deeper than allowed, each with one element.
    let mut deep = b"GGUF\x03\0\0\0".to_vec();
    deep.extend([0_u64, 1, 1].iter().flat_map(|n| n.to_le_bytes()));
    deep.extend(b"k\x09\0\0\0");
    for _ in 0..100_000 {
        deep.extend(b"\x09\0\0\0\x01\0\0\0\0\0\0\0");
    }
    lab.refused(&deep, "deep arrays");
    // One byte of file for each value: far larger in memory than in the file.
    let mut wide = b"GGUF\x03\0\0\0".to_vec();
    wide.extend([0_u64, 1, 1].iter().flat_map(|n| n.to_le_bytes()));
    wide.extend(b"k\x09\0\0\0\0\0\0\0");
    wide.extend(1_000_000_u64.to_le_bytes());
    wide.resize(wide.len() + 1_000_000, 7);
    lab.refused(&wide, "a wide array");
}

#[test]
fn tensors_that_share_bytes_or_names_are_refused() {
    use tokenmill_files::write::{TensorHeader, write_gguf};
    use tokenmill_quant::FormatId;
    let header =
        |name: &str| TensorHeader { name: name.to_owned(), format: FormatId::F32, shape: vec![8] };
    let mut bytes = Vec::new();
    let tensors = [header("aaaa"), header("bbbb")];
    let meta = tokenmill_ir::Meta::new();
    write_gguf(&mut bytes, &meta, &tensors, |_, out| out.write_all(&[0; 32])).unwrap();
    let lab = Lab::gguf();
    assert!(lab.open(&bytes, "two tensors").is_ok());
    let at = bytes.windows(4).position(|w| w == b"bbbb").unwrap();
    let mut named = bytes.clone();
    named[at..at + 4].copy_from_slice(b"aaaa");
    lab.refused(&named, "one name twice");
    let offset = at + 4 + 4 + 8 + 4;
    assert_eq!(bytes[offset], 32);
    bytes[offset] = 0;
    lab.refused(&bytes, "one place twice");
}

/// A small valid file of each kind.
fn small_files() -> [(Lab, Vec<u8>); 3] {
    let fixture = |name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
        std::fs::read(path).unwrap()
    };
    [
        (Lab::gguf(), valid().bytes()),
        (Lab::gguf(), fixture("tiny.gguf")),
        (Lab::safetensors(), fixture("sharded/model-00002-of-00002.safetensors")),
    ]
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    for (lab, bytes) in small_files() {
        assert!(lab.open(&bytes, "whole").is_ok());
        for len in 0..bytes.len() {
            // Bytes after the last tensor of a GGUF file are padding and may be missing.
            let what = format!("cut to {len} of {}", bytes.len());
            match lab.open(&bytes[..len], &what) {
                Ok(_) => assert!(bytes.len() - len < 32 && bytes[len..].iter().all(|&b| b == 0)),
                Err(_) => lab.refused(&bytes[..len], &what),
            }
        }
    }
}

#[test]
fn any_byte_flipped_is_refused_or_read() {
    for (lab, bytes) in small_files() {
        let mut refused = 0;
        for at in 0..bytes.len() {
            for wrong in [0x00, 0xff, bytes[at] ^ 0x01, bytes[at] ^ 0x80] {
                let mut bytes = bytes.clone();
                bytes[at] = wrong;
                refused += u32::from(lab.open(&bytes, &format!("byte {at} = {wrong}")).is_err());
            }
        }
        assert!(refused > 100, "only {refused} of {} files refused", 4 * bytes.len());
    }
}

/// A safetensors file of this header and eight bytes of data.
fn with_header(header: &str) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend([0; 8]);
    bytes
}

#[test]
fn wrong_headers_in_safetensors_are_refused() {
    let lab = Lab::safetensors();
    let good = r#"{"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    assert!(lab.open(&with_header(good), "good").is_ok());
    // As the format's own package does (0.8.0): what it does not know it passes over.
    let more = good.replace("[0,8]", "[0,8],\"more\":{\"than\":[1]}");
    lab.open(&with_header(&more), "more").expect("one more member");
    for edge in EDGES {
        let mut bytes = with_header(good);
        bytes[..8].copy_from_slice(&edge.to_le_bytes());
        lab.refused(&bytes, &format!("header length {edge}"));
        let n = edge.to_string();
        for (from, to) in [
            ("[2]", format!("[{n}]")),
            ("[2]", format!("[{n},{n}]")),
            ("[0,8]", format!("[0,{n}]")),
            ("[0,8]", format!("[{n},8]")),
        ] {
            let header = good.replace(from, &to);
            if header == good || (edge == 2 && to == "[2]") {
                continue;
            }
            let what = header.clone();
            lab.refused(&with_header(&header), &what);
        }
    }
    for header in [
        "{",
        "{}",
        "[]",
        "{\"t\":3}",
        r#"{"t":{}}"#,
        r#"{"t":{"dtype":"F32","shape":[2]}}"#,
        r#"{"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"shape":[2]}}"#,
        r#"{"t":{"dtype":"F6_E2M3","shape":[8],"data_offsets":[0,8]}}"#,
        r#"{"t":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}"#,
        r#"{"t":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}"#,
        r#"{"t":{"dtype":"F32","shape":2,"data_offsets":[0,8]}}"#,
        r#"{"t":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8]}}"#,
        r#"{"t":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#,
        r#"{"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
            "u":{"dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[8,8]}}"#,
        r#"{"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8,9]}}"#,
        r#"{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
        r#"{"t":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
        r#"{"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
            "u":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
        r#"{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
            "t":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
    ] {
        lab.refused(&with_header(header), header);
    }
}

#[test]
fn large_wrong_headers_in_safetensors_stay_small_in_memory() {
    let lab = Lab::safetensors();
    let deep = format!("{{\"t\":{}", "[".repeat(500_000));
    lab.refused(&with_header(&deep), "deep JSON");
    let metadata = format!("{{\"__metadata__\":{}", "{\"a\":".repeat(200_000));
    lab.refused(&with_header(&metadata), "deep metadata");
    let axes = format!("{{\"t\":{{\"shape\":[{}1]}}}}", "1,".repeat(500_000));
    lab.refused(&with_header(&axes), "a long shape");
    let name = format!("{{\"{}\":3}}", "n".repeat(1_000_000));
    lab.refused(&with_header(&name), "a long name");
    let record = r#""dtype":"U8","shape":[0],"data_offsets":[0,0]"#;
    let many: Vec<String> = (0..20_000).map(|i| format!("\"{i}\":{{{record}}}")).collect();
    lab.refused(&with_header(&format!("{{{}}}", many.join(","))), "many empty tensors");
}
