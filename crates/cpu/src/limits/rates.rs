//! Multiply-adds of all threads on registers, by the best instruction this machine has.

use std::hint::black_box;

use super::{RUNS, Rate, timed};

/// The arithmetic of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Bytes, summed as integers.
    Int8,
    /// bfloat16, summed as f32. A machine without it widens to f32.
    Bf16,
    /// 32-bit floats.
    F32,
}

impl Arithmetic {
    /// All of them, fastest first.
    pub const ALL: [Arithmetic; 3] = [Arithmetic::Int8, Arithmetic::Bf16, Arithmetic::F32];

    /// As printed.
    pub fn name(self) -> &'static str {
        match self {
            Arithmetic::Int8 => "int8",
            Arithmetic::Bf16 => "bf16",
            Arithmetic::F32 => "f32",
        }
    }
}

/// A measured rate of one arithmetic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OpLimit {
    /// The arithmetic.
    pub arithmetic: Arithmetic,
    /// The instruction that was fastest.
    pub instruction: &'static str,
    /// Operations a second, 2 a multiply-add.
    pub rate: Rate,
}

/// A loop over one instruction.
struct Candidate {
    name: &'static str,
    /// Operations of one run of the loop.
    ops: f64,
    /// The loop. May be called only where the candidate was listed.
    run: unsafe fn(),
}

/// Measures every instruction this machine has for an arithmetic, for some hundredths of a
/// second each; the fastest counts.
pub fn ops(threads: usize, arithmetic: Arithmetic) -> OpLimit {
    let mut best: Option<OpLimit> = None;
    for candidate in candidates(arithmetic) {
        // SAFETY: listed, so this machine has the instruction.
        let seconds: [f64; RUNS] = timed(threads.max(1), || (), |()| unsafe { (candidate.run)() });
        let rate = Rate::new(candidate.ops * threads.max(1) as f64, seconds);
        if best.is_none_or(|b| rate.best > b.rate.best) {
            best = Some(OpLimit { arithmetic, instruction: candidate.name, rate });
        }
    }
    best.expect("the plain loop is always there")
}

/// What this machine can run.
fn candidates(arithmetic: Arithmetic) -> Vec<Candidate> {
    let plain = match arithmetic {
        Arithmetic::Int8 => Candidate { name: "compiled loop", ops: PLAIN_OPS, run: plain_bytes },
        _ => Candidate { name: "compiled loop", ops: PLAIN_OPS, run: plain_floats },
    };
    #[allow(unused_mut)]
    let mut list = vec![plain];
    #[cfg(target_arch = "x86_64")]
    list.extend(x86::candidates(arithmetic));
    list
}

/// Elements of a plain loop's operands: they stay in the first cache.
const PLAIN_LEN: usize = 2048;
const PLAIN_PASSES: usize = 4000;
const PLAIN_OPS: f64 = 2.0 * (PLAIN_LEN * PLAIN_PASSES) as f64;

/// A dot product of bytes as the compiler makes it for the oldest machine of this target.
fn plain_bytes() {
    let (a, b) = ([1i8; PLAIN_LEN], [2i8; PLAIN_LEN]);
    for _ in 0..PLAIN_PASSES {
        let (a, b) = (black_box(&a), black_box(&b));
        let sum: i32 = a.iter().zip(b).map(|(&a, &b)| i32::from(i16::from(a) * i16::from(b))).sum();
        black_box(sum);
    }
}

/// The same of floats, on 32 independent sums.
fn plain_floats() {
    let (a, b) = ([1f32; PLAIN_LEN], [2f32; PLAIN_LEN]);
    for _ in 0..PLAIN_PASSES {
        let (a, b) = (black_box(&a), black_box(&b));
        let mut sums = [0f32; 32];
        for (a, b) in a.as_chunks::<32>().0.iter().zip(b.as_chunks::<32>().0) {
            for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
                *sum += a * b;
            }
        }
        black_box(sums);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::is_x86_feature_detected as has;
    use std::arch::x86_64::__cpuid_count;

    use super::{Arithmetic, Candidate};
    use crate::isa::Isa;

    /// Rounds of a loop: a few milliseconds.
    const STEPS: usize = 1_000_000;
    /// Chains of vector instructions in a round: enough to hide the latency.
    const CHAINS: usize = 12;
    /// Chains of tiles, in an eighth of the rounds.
    const TILE_CHAINS: usize = 6;
    const TILE_STEPS: usize = STEPS / 8;

    /// The instructions of this machine.
    pub fn candidates(arithmetic: Arithmetic) -> Vec<Candidate> {
        let vectors = |lanes: usize| 2.0 * (STEPS * CHAINS * lanes) as f64;
        // One tile product: 16 × 16 sums of 16 dot products.
        let tiles = |dot: usize| 2.0 * (TILE_STEPS * TILE_CHAINS * 16 * 16 * 16 * dot) as f64;
        let fma = has!("avx2") && has!("fma");
        let bf16_tiles = Isa::Amx.is_available() && __cpuid_count(7, 0).edx >> 22 & 1 == 1;
        // Name, operations, loop, whether this machine has it.
        type Row = (&'static str, f64, unsafe fn(), bool);
        let int8: &[Row] = &[
            ("tdpbusd", tiles(4), tdpbusd, Isa::Amx.is_available()),
            ("vpdpbusd zmm", vectors(64), vpdpbusd_zmm, Isa::Avx512.is_available()),
            ("vpdpbusd ymm", vectors(32), vpdpbusd_ymm, Isa::AvxVnni.is_available()),
            ("vpmaddubsw ymm", vectors(32) / 2.0, vpmaddubsw_ymm, has!("avx2")),
        ];
        let bf16: &[Row] = &[
            ("tdpbf16ps", tiles(2), tdpbf16ps, bf16_tiles),
            ("vdpbf16ps zmm", vectors(32), vdpbf16ps_zmm, has!("avx512bf16")),
        ];
        let f32: &[Row] = &[
            ("vfmadd231ps zmm", vectors(16), vfmadd231ps_zmm, has!("avx512f")),
            ("vfmadd231ps ymm", vectors(8), vfmadd231ps_ymm, fma),
        ];
        let rows = match arithmetic {
            Arithmetic::Int8 => int8.to_vec(),
            Arithmetic::Bf16 => [bf16, f32].concat(),
            Arithmetic::F32 => f32.to_vec(),
        };
        let rows = rows.into_iter().filter(|row| row.3);
        rows.map(|(name, ops, run, _)| Candidate { name, ops, run }).collect()
    }

    /// A loop over twelve independent chains of an instruction on registers of one width.
    macro_rules! twelve {
        ($(#[$doc:meta])* $name:ident, $features:literal, $op:literal, $r:literal) => {
            $(#[$doc])*
            #[target_feature(enable = $features)]
            unsafe fn $name() {
                // SAFETY: touches only the registers named; the caller has the instruction.
                unsafe {
                    asm!(
                        "vpxor xmm14, xmm14, xmm14", "vpxor xmm15, xmm15, xmm15",
                        "2:",
                        concat!($op, " ", $r, "mm0, ", $r, "mm14, ", $r, "mm15"),
                        concat!($op, " ", $r, "mm1, ", $r, "mm14, ", $r, "mm15"),
                        concat!($op, " ", $r, "mm2, ", $r, "mm14, ", $r, "mm15"),
                        concat!($op, " ", $r, "mm3, ", $r, "mm14, ", $r, "mm15"),
                        concat!($op, " ", $r, "mm4, ", $r, "mm14, ", $r, "mm15"),
                        concat!($op, " ", $r, "mm5, ", $r, "mm14, ", $r, "mm15"),
                        concat!($op, " ", $r, "mm6, ", $r, "mm14, ", $r, "mm15"),
                        concat!($op, " ", $r, "mm7, ", $r, "mm14, ", $r, "mm15"),
                        concat!($op, " ", $r, "mm8, ", $r, "mm14, ", $r, "mm15"),
                        concat!($op, " ", $r, "mm9, ", $r, "mm14, ", $r, "mm15"),
                        concat!($op, " ", $r, "mm10, ", $r, "mm14, ", $r, "mm15"),
                        concat!($op, " ", $r, "mm11, ", $r, "mm14, ", $r, "mm15"),
                        "dec {n}", "jnz 2b",
                        n = inout(reg) STEPS => _,
                        out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                        out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                        out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                        out("xmm14") _, out("xmm15") _,
                        options(nomem, nostack)
                    );
                }
            }
        };
    }

    twelve!(vpdpbusd_zmm, "avx512f,avx512vnni", "vpdpbusd", "z");
    twelve!(vpdpbusd_ymm, "avx2", "{{vex}} vpdpbusd", "y");
    twelve!(vdpbf16ps_zmm, "avx512f,avx512bf16", "vdpbf16ps", "z");
    twelve!(vfmadd231ps_zmm, "avx512f", "vfmadd231ps", "z");
    twelve!(vfmadd231ps_ymm, "avx2,fma", "vfmadd231ps", "y");

    /// Six chains of byte products without VNNI: pairs, pairs of pairs, the sum.
    #[target_feature(enable = "avx2")]
    unsafe fn vpmaddubsw_ymm() {
        macro_rules! chain {
            ($sum:literal, $product:literal) => {
                concat!(
                    "vpmaddubsw ymm",
                    $product,
                    ", ymm14, ymm15\n",
                    "vpmaddwd ymm",
                    $product,
                    ", ymm",
                    $product,
                    ", ymm13\n",
                    "vpaddd ymm",
                    $sum,
                    ", ymm",
                    $sum,
                    ", ymm",
                    $product,
                )
            };
        }
        // SAFETY: touches only the registers named; the caller has the instruction.
        unsafe {
            asm!(
                "vpxor xmm13, xmm13, xmm13", "vpxor xmm14, xmm14, xmm14",
                "vpxor xmm15, xmm15, xmm15",
                "2:",
                chain!("0", "6"), chain!("1", "7"), chain!("2", "8"),
                chain!("3", "9"), chain!("4", "10"), chain!("5", "11"),
                "dec {n}", "jnz 2b",
                n = inout(reg) STEPS => _,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm13") _, out("xmm14") _, out("xmm15") _,
                options(nomem, nostack)
            );
        }
    }

    /// A loop over six independent chains of a tile instruction.
    macro_rules! tiles {
        ($name:ident, $op:literal) => {
            unsafe fn $name() {
                // Palette 1; eight tiles of 16 rows and 64 bytes.
                let mut config = [0u8; 64];
                config[0] = 1;
                for tile in 0..8 {
                    config[16 + 2 * tile] = 64;
                    config[48 + tile] = 16;
                }
                // SAFETY: the caller has found AMX granted; the configuration is a legal one of
                // 64 bytes; the tiles are given back at the end.
                unsafe {
                    asm!(
                        "ldtilecfg [{config}]",
                        "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                        "tilezero tmm4", "tilezero tmm5", "tilezero tmm6", "tilezero tmm7",
                        "2:",
                        concat!($op, " tmm0, tmm6, tmm7"), concat!($op, " tmm1, tmm6, tmm7"),
                        concat!($op, " tmm2, tmm6, tmm7"), concat!($op, " tmm3, tmm6, tmm7"),
                        concat!($op, " tmm4, tmm6, tmm7"), concat!($op, " tmm5, tmm6, tmm7"),
                        "dec {n}", "jnz 2b",
                        "tilerelease",
                        config = in(reg) config.as_ptr(),
                        n = inout(reg) TILE_STEPS => _,
                        options(nostack)
                    );
                }
            }
        };
    }

    tiles!(tdpbusd, "tdpbusd");
    tiles!(tdpbf16ps, "tdpbf16ps");
}
