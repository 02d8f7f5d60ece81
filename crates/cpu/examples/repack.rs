//! Measures what loading does to weights, beside what a file of repacked weights would cost instead.
//!
//! `cargo run --release -p tokenmill-cpu --example repack [-- format …]`, on all threads, for each format:
//! stored bytes that are warm in memory become panels in fresh memory, as in a load; the same panels are read
//! back from a file in the working folder into fresh memory, once from the page cache and once from the disk.
//! Times are of one matrix; the best of three.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use tokenmill_cpu::memory::Buffer;
use tokenmill_cpu::panel::{PANEL_ROWS, PanelSpec};
use tokenmill_quant::{FORMATS, FormatId};

/// Stored bytes of a matrix: more than caches hold.
const STORED_BYTES: usize = 256 << 20;
const COLS: usize = 4096;
/// What a thread reads from a file at a time, bytes.
const READ_BYTES: usize = 4 << 20;
const ROUNDS: usize = 3;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    println!("{threads} threads; seconds for 1 GB of stored weights");
    println!("format   panels/stored  repack  from page cache  from disk  disk GB/s");
    for format in FORMATS.iter().filter(|f| f.id.is_weight() && f.id.band_rows() == 1) {
        if wanted.is_empty() || wanted.iter().any(|w| w == format.name) {
            measure(format.id, threads);
        }
    }
}

/// Prints one line.
fn measure(format: FormatId, threads: usize) {
    let Ok(one) = PanelSpec::new(format, PANEL_ROWS, COLS) else { return };
    let rows = STORED_BYTES / one.stored_row_bytes() / PANEL_ROWS * PANEL_ROWS;
    let spec = PanelSpec::new(format, rows, COLS).expect("more of the same rows");
    let stored = vec![0x11u8; rows * spec.stored_row_bytes()];
    let path = Path::new("repack.panels");
    let (mut pack, mut warm, mut cold) = (f64::MAX, f64::MAX, f64::MAX);
    for round in 0..ROUNDS {
        pack = pack.min(timed(spec.bytes(), |out| repack(&spec, &stored, out, threads)));
        if round == 0 {
            std::fs::write(path, vec![0x11u8; spec.bytes()]).expect("room for a file");
        }
        let file = File::open(path).expect("the file just written");
        file.sync_all().expect("a disk");
        warm = warm.min(timed(spec.bytes(), |out| read(&file, out, threads)));
        // SAFETY: advice on a file that is open.
        let gone =
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        assert_eq!(gone, 0, "pages leave the cache");
        cold = cold.min(timed(spec.bytes(), |out| read(&file, out, threads)));
    }
    let _ = std::fs::remove_file(path);
    let gb = stored.len() as f64 / 1e9;
    let ratio = spec.bytes() as f64 / stored.len() as f64;
    let rate = spec.bytes() as f64 / 1e9 / cold;
    println!(
        "{:<8} {ratio:13.3} {:7.3} {:16.3} {:10.3} {rate:10.2}",
        format.name(),
        pack / gb,
        warm / gb,
        cold / gb
    );
}

/// Seconds of `fill` on fresh memory.
fn timed(bytes: usize, fill: impl FnOnce(&mut [u8])) -> f64 {
    let start = Instant::now();
    let mut buffer = Buffer::zeroed(bytes).expect("memory for panels");
    fill(buffer.bytes_mut());
    start.elapsed().as_secs_f64()
}

/// As a load does it: rows of a panel are copied, then brought into their layout.
fn repack(spec: &PanelSpec, stored: &[u8], out: &mut [u8], threads: usize) {
    let (row, panel) = (spec.stored_row_bytes(), spec.panel_bytes());
    let share = spec.panels().div_ceil(threads);
    std::thread::scope(|scope| {
        for (i, out) in out.chunks_mut(share * panel).enumerate() {
            scope.spawn(move || {
                let mut rows = vec![0; PANEL_ROWS * row];
                for (k, out) in out.chunks_exact_mut(panel).enumerate() {
                    let first = i * share + k;
                    rows.copy_from_slice(&stored[first * PANEL_ROWS * row..][..PANEL_ROWS * row]);
                    spec.repack(first, &rows, out);
                }
            });
        }
    });
}

fn read(file: &File, out: &mut [u8], threads: usize) {
    let share = out.len().div_ceil(threads);
    std::thread::scope(|scope| {
        for (i, out) in out.chunks_mut(share).enumerate() {
            scope.spawn(move || {
                for (k, out) in out.chunks_mut(READ_BYTES).enumerate() {
                    let at = (i * share + k * READ_BYTES) as u64;
                    file.read_exact_at(out, at).expect("all of the file");
                }
            });
        }
    });
}
