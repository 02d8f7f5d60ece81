//! What kernels decode (crates/cuda/kernels/formats.cuh, built for the host) is what crates/quant
//! decodes, bit for bit: every format, every column, its vectors and random bytes.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tokenmill_quant::{FORMATS, Format};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The C++ compiler, or `None`, which is told.
fn compiler() -> Option<String> {
    let named = std::env::var("CXX").ok();
    let found = named.into_iter().chain(["c++", "g++", "clang++"].map(String::from)).find(|name| {
        let version = Command::new(name).arg("--version").stdout(Stdio::null()).status();
        version.is_ok_and(|status| status.success())
    });
    if found.is_none() {
        let line = "did not run on this machine: decoding of kernels, without a C++ compiler";
        println!("{line}");
        if let Some(path) = std::env::var_os("CI_NOT_RUN") {
            let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
            writeln!(file.unwrap(), "{line}").unwrap();
        }
    }
    found
}

/// `formats.cpp`, built and running.
struct Kernels(Child);

impl Kernels {
    fn start() -> Option<Kernels> {
        let compiler = compiler()?;
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("formats");
        let built = Command::new(compiler)
            .args(["-std=c++17", "-O1", "-Wall", "-Werror", "-ffp-contract=off"])
            .arg("-DTOKENMILL_HOST")
            .arg("-I")
            .arg(root().join("crates/cuda/kernels"))
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats.cpp"))
            .arg("-o")
            .arg(&program)
            .status();
        assert!(built.unwrap().success(), "formats.cpp does not compile");
        let child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        Some(Kernels(child.unwrap()))
    }

    fn decode(&mut self, format: &Format, row: &[u8]) -> Vec<f32> {
        let blocks = row.len() / format.block_bytes;
        let stdin = self.0.stdin.as_mut().unwrap();
        for word in [format.id as u32, blocks as u32] {
            stdin.write_all(&word.to_le_bytes()).unwrap();
        }
        stdin.write_all(row).unwrap();
        stdin.flush().unwrap();
        let mut bytes = vec![0; 4 * blocks * format.block_weights];
        let read = self.0.stdout.as_mut().unwrap().read_exact(&mut bytes);
        assert!(read.is_ok(), "{}: the program ended: {:?}", format.name, self.0.wait());
        bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    fn check(&mut self, format: &Format, row: &[u8], what: &str) {
        let got = self.decode(format, row);
        let mut expect = vec![0.0; got.len()];
        format.id.decode_row(row, &mut expect);
        for (col, (a, b)) in got.iter().zip(&expect).enumerate() {
            let same = a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
            assert!(same, "{}, {what}, column {col}: {a:e} is not {b:e}", format.name);
        }
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// The blocks of a format's committed vectors.
fn vectors(format: &Format) -> Vec<u8> {
    let path = root().join(format!("crates/quant/tests/fixtures/{}.bin", format.name));
    let file = std::fs::read(path).unwrap();
    let blocks = u32::from_le_bytes(file[..4].try_into().unwrap()) as usize;
    file[4..4 + blocks * format.block_bytes].to_vec()
}

/// Bytes without a pattern.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

#[test]
fn kernels_decode_what_the_formats_say() {
    let Some(mut kernels) = Kernels::start() else { return };
    let mut checked = 0;
    for format in FORMATS.iter().filter(|f| f.id.band_rows() == 1) {
        kernels.check(format, &vectors(format), "vectors");
        let bytes = noise(259 * format.block_bytes, format.id as u64 + 1);
        kernels.check(format, &bytes, "random bytes");
        // A scale of 0 times a negative code is -0.
        kernels.check(format, &vec![0; 3 * format.block_bytes], "zeros");
        if format.block_weights == 1 && format.block_bytes <= 2 {
            let all = (0..=u16::MAX).flat_map(|bits| bits.to_le_bytes()).collect::<Vec<u8>>();
            kernels.check(format, &all, "all numbers");
        }
        checked += 1;
    }
    assert_eq!(checked, FORMATS.len() - 8, "all but EXL3, whose rows come by bands");
}
