//! What this machine can do at most, measured: memory reads, and multiply-adds in the arithmetic
//! of a mode. Every measured speed stands beside these.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use crate::isa::Isa;
use crate::linear::Mode;
use crate::memory::Buffer;

/// Bytes each thread reads, well beyond a core's share of the last cache of most machines.
const READ_BYTES: usize = 192 << 20;
/// Times a loop is run; the best counts.
const RUNS: usize = 5;
/// Instructions of one chain in a rate loop.
const STEPS: usize = 200_000;

/// Upper bounds of this machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MachineLimits {
    /// Sequential reads of all threads together, bytes a second.
    pub read_bytes_per_s: f64,
    /// Operations of all threads together a second, 2 a multiply-add; NaN where not known.
    pub ops_per_s: f64,
}

/// Measures with that many threads, for about half a second. `mode` chooses the instruction: int8
/// dot products, or f32 fused multiply-adds.
pub fn measure(threads: usize, mode: Mode) -> MachineLimits {
    let threads = threads.max(1);
    let barrier = Barrier::new(threads);
    let work = || {
        let data = Buffer::zeroed(READ_BYTES).ok();
        let words = data.as_ref().map_or(&[][..], |d| d.bytes().as_chunks::<256>().0);
        let read = best(&barrier, || read(words));
        let ops = best(&barrier, || rate_loop(mode));
        ((words.len() * 256) as f64 / read, ops_of(mode) / ops)
    };
    let rates: Vec<(f64, f64)> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut rates = vec![work()];
        rates.extend(others.into_iter().filter_map(|t| t.join().ok()));
        rates
    });
    MachineLimits {
        read_bytes_per_s: rates.iter().map(|r| r.0).sum(),
        ops_per_s: rates.iter().map(|r| r.1).sum(),
    }
}

/// Seconds of the fastest run; all threads start each run together.
fn best(barrier: &Barrier, mut body: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for run in 0..=RUNS {
        barrier.wait();
        let start = Instant::now();
        body();
        if run > 0 {
            best = best.min(start.elapsed().as_secs_f64());
        }
    }
    best
}

fn read(chunks: &[[u8; 256]]) {
    let mut sums = [0u64; 32];
    for chunk in chunks {
        for (sum, word) in sums.iter_mut().zip(chunk.as_chunks::<8>().0) {
            *sum ^= u64::from_ne_bytes(*word);
        }
    }
    black_box(sums);
}

/// Operations of one [`rate_loop`]; NaN where there is none.
fn ops_of(mode: Mode) -> f64 {
    let chains = 16.0 * STEPS as f64;
    match (mode, Isa::detect()) {
        // One tile product: 16 × 16 sums of 64 products, 8 tiles in place of 16 chains.
        (Mode::Int8, Isa::Amx) => STEPS as f64 * 6.0 * 16.0 * 16.0 * 64.0 * 2.0 / 8.0,
        (Mode::Int8, Isa::Avx512) => chains * 64.0 * 2.0,
        (_, Isa::Avx512 | Isa::Amx) => chains * 16.0 * 2.0,
        _ => f64::NAN,
    }
}

/// Independent chains of the mode's best instruction on registers.
fn rate_loop(mode: Mode) {
    #[cfg(target_arch = "x86_64")]
    match (mode, Isa::detect()) {
        // SAFETY: `detect` has found the features, here and below.
        (Mode::Int8, Isa::Amx) => unsafe { x86::tiles() },
        // SAFETY: as above.
        (Mode::Int8, Isa::Avx512) => unsafe { x86::vnni() },
        // SAFETY: as above.
        (_, Isa::Avx512 | Isa::Amx) => unsafe { x86::fma() },
        _ => {}
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = mode;
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;

    use super::STEPS;

    macro_rules! sixteen {
        ($op:literal) => {
            asm!(
                "vpxord zmm30, zmm30, zmm30", "vpxord zmm31, zmm31, zmm31",
                "2:",
                concat!($op, " zmm0, zmm30, zmm31"), concat!($op, " zmm1, zmm30, zmm31"),
                concat!($op, " zmm2, zmm30, zmm31"), concat!($op, " zmm3, zmm30, zmm31"),
                concat!($op, " zmm4, zmm30, zmm31"), concat!($op, " zmm5, zmm30, zmm31"),
                concat!($op, " zmm6, zmm30, zmm31"), concat!($op, " zmm7, zmm30, zmm31"),
                concat!($op, " zmm8, zmm30, zmm31"), concat!($op, " zmm9, zmm30, zmm31"),
                concat!($op, " zmm10, zmm30, zmm31"), concat!($op, " zmm11, zmm30, zmm31"),
                concat!($op, " zmm12, zmm30, zmm31"), concat!($op, " zmm13, zmm30, zmm31"),
                concat!($op, " zmm14, zmm30, zmm31"), concat!($op, " zmm15, zmm30, zmm31"),
                "dec {n}", "jnz 2b",
                n = inout(reg) STEPS => _,
                out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _,
                out("zmm4") _, out("zmm5") _, out("zmm6") _, out("zmm7") _,
                out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _,
                out("zmm12") _, out("zmm13") _, out("zmm14") _, out("zmm15") _,
                out("zmm30") _, out("zmm31") _,
                options(nomem, nostack)
            )
        };
    }

    /// 16 chains of byte dot products.
    #[target_feature(enable = "avx512f,avx512vnni")]
    pub unsafe fn vnni() {
        // SAFETY: touches only the registers named.
        unsafe { sixteen!("vpdpbusd") }
    }

    /// 16 chains of f32 fused multiply-adds on zeros.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn fma() {
        // SAFETY: touches only the registers named.
        unsafe { sixteen!("vfmadd231ps") }
    }

    /// 6 chains of tile products on zeros, an eighth as many steps.
    pub unsafe fn tiles() {
        // Palette 1; eight tiles of 16 rows and 64 bytes.
        let mut config = [0u8; 64];
        config[0] = 1;
        for tile in 0..8 {
            config[16 + 2 * tile] = 64;
            config[48 + tile] = 16;
        }
        // SAFETY: the caller has found AMX granted; the configuration is a legal one of 64 bytes;
        // the tiles are given back at the end.
        unsafe {
            asm!(
                "ldtilecfg [{config}]",
                "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                "tilezero tmm4", "tilezero tmm5", "tilezero tmm6", "tilezero tmm7",
                "2:",
                "tdpbusd tmm0, tmm6, tmm7", "tdpbusd tmm1, tmm6, tmm7",
                "tdpbusd tmm2, tmm6, tmm7", "tdpbusd tmm3, tmm6, tmm7",
                "tdpbusd tmm4, tmm6, tmm7", "tdpbusd tmm5, tmm6, tmm7",
                "dec {n}", "jnz 2b",
                "tilerelease",
                config = in(reg) config.as_ptr(),
                n = inout(reg) STEPS / 8 => _,
                options(nostack)
            );
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn limits_are_numbers() {
        let one = super::measure(1, crate::linear::Mode::F32);
        assert!(one.read_bytes_per_s > 1e8, "{one:?}");
        assert!(one.ops_per_s.is_nan() || one.ops_per_s > 1e9, "{one:?}");
    }
}
