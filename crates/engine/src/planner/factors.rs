//! Shares of a machine's ceilings that steps reach, and ceilings of machines nobody measured: data, each row with
//! where it is from. New figures of bench/README.md belong here too.

use serde::{Deserialize, Serialize};

/// Kernel classes, as the CPU device names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Instructions {
    /// Compiled loops: every processor that has no better row.
    Scalar,
    /// AVX2.
    Avx2,
    /// AVX2 with VNNI.
    AvxVnni,
    /// AVX-512 with VNNI.
    Avx512,
    /// The same with BF16.
    Avx512Bf16,
    /// Tiles.
    Amx,
}

/// The arithmetic most of a model's products use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arithmetic {
    /// Bytes.
    Int8,
    /// bfloat16.
    Bf16,
    /// 32-bit floats.
    F32,
}

impl Arithmetic {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Int8, Self::Bf16, Self::F32];

    /// As printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
        }
    }
}

/// Models whose steps are alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// A token reads at most [`SMALL_BYTES`]: much of it stays in caches, and steps are short.
    Small,
    /// Blocks of integers.
    Dense,
    /// A mixture of experts.
    Experts,
    /// Floats as they are.
    Floats,
}

/// See [`Class::Small`].
pub const SMALL_BYTES: f64 = 256e6;

/// Shares of the ceilings, 0 to 1 and above where caches help.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Factor {
    /// Of reads, by a step of one token.
    pub reads: f64,
    /// Of reads, where keys and values are read.
    pub cache: f64,
    /// Of operations, by a step of 512 tokens.
    pub prompt: f64,
    /// Of operations, by steps of up to 32 streams.
    pub batch: f64,
    /// Where it is from.
    pub source: String,
}

/// A row: instruction set, class, `reads`, `prompt`, `batch`, source. Keys and values are read at the same share
/// as weights ("Decoding one stream" at 16384 tokens: 80 to 99 %).
type Row = (Instructions, Class, f64, f64, f64, &'static str);

use Class::{Dense, Experts, Floats, Small};
use Instructions::{Amx, Avx2, Avx512, Avx512Bf16, AvxVnni, Scalar};

const ZEN3: &str = "bench/README.md: Zen 3, 22 to 27 November";
const ER: &str = "bench/README.md: Emerald Rapids, 26 and 27 November";
const ZEN4: &str = "bench/README.md: Zen 4, 23 and 25 November";
const GR: &str = "bench/README.md: Granite Rapids, 21 November, before later kernels";
const NONE: &str = "not measured: a guess";

#[rustfmt::skip]
const ROWS: &[Row] = &[
    (Avx2,       Small,   0.90, 0.60, 0.40, ZEN3), // 135M: reads 66–97 %, prompts 46–79 %, 466–757 tok/s of 32
    (Avx2,       Dense,   0.80, 0.83, 0.50, ZEN3), // 1B and 8B: 71–91 %, 81–99 %
    (Avx2,       Experts, 0.80, 0.83, 0.40, ZEN3), // 80–82 %, 83–84 %
    (Avx2,       Floats,  0.85, 0.70, 0.40, ZEN3),
    (AvxVnni,    Small,   0.90, 0.40, 0.25, ER),   // by TOKENMILL_ISA: prompts at 0.6 of AVX-512's rate
    (AvxVnni,    Dense,   0.85, 0.45, 0.30, ER),
    (AvxVnni,    Experts, 0.80, 0.40, 0.30, NONE),
    (AvxVnni,    Floats,  0.85, 0.70, 0.40, NONE),
    (Avx512,     Small,   1.30, 0.43, 0.24, ER),   // 129–135 % from L3, 41–44 %, 977–1254 tok/s of 32
    (Avx512,     Dense,   0.90, 0.50, 0.35, ER),   // 87–96 %, 48–53 %
    (Avx512,     Experts, 0.85, 0.42, 0.30, ER),
    (Avx512,     Floats,  0.94, 0.76, 0.50, ER),
    (Avx512Bf16, Small,   0.91, 0.48, 0.33, ZEN4), // 90–92 %, 45–54 %, 1051–1353 tok/s of 32
    (Avx512Bf16, Dense,   0.90, 0.57, 0.40, ZEN4), // 87–98 %, 45–66 %
    (Avx512Bf16, Experts, 0.90, 0.50, 0.40, ZEN4),
    (Avx512Bf16, Floats,  0.95, 0.78, 0.50, ZEN4),
    (Amx,        Small,   0.90, 0.04, 0.03, GR),   // 1987 tok/s of 13.5–15.1 Top/s
    (Amx,        Dense,   0.85, 0.05, 0.04, GR),   // 277, 315 tok/s
    (Amx,        Experts, 0.80, 0.05, 0.04, NONE),
    (Amx,        Floats,  0.90, 0.20, 0.15, NONE),
    (Scalar,     Small,   0.30, 0.50, 0.50, NONE),
    (Scalar,     Dense,   0.30, 0.50, 0.50, NONE),
    (Scalar,     Experts, 0.30, 0.50, 0.50, NONE),
    (Scalar,     Floats,  0.30, 0.50, 0.50, NONE),
];

/// The shares that are usual.
pub fn usual(instructions: Instructions, class: Class) -> Factor {
    let found = ROWS.iter().find(|row| (row.0, row.1) == (instructions, class));
    let &(_, _, reads, prompt, batch, source) = found.unwrap_or(&ROWS[ROWS.len() - 1]);
    Factor { reads, cache: reads.min(1.0), prompt, batch, source: source.to_owned() }
}

/// What a core does where nobody measured it.
#[derive(Debug, Clone, Copy)]
pub struct Assumed {
    /// Operations a second, by [`Arithmetic`].
    pub ops_a_core: [f64; 3],
}

/// Reads of main memory where nobody measured them, bytes a second: machines of bench/README.md have 24 to 50 GB/s.
pub const ASSUMED_READ: f64 = 25e9;

/// See [`Assumed`]: the table "Machines and limits" of bench/README.md, divided by its two cores.
pub fn assumed(instructions: Instructions) -> Assumed {
    let ops_a_core = match instructions {
        Scalar => [0.01e12, 0.01e12, 0.01e12], // a guess
        Avx2 => [0.20e12, 0.10e12, 0.10e12],
        AvxVnni => [0.40e12, 0.10e12, 0.10e12], // a guess: twice AVX2
        Avx512 => [0.70e12, 0.17e12, 0.17e12],
        Avx512Bf16 => [0.46e12, 0.23e12, 0.12e12],
        Amx => [6.7e12, 3.3e12, 0.17e12], // (bf16: a guess)
    };
    Assumed { ops_a_core }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_and_class_has_one_row() {
        for i in [Scalar, Avx2, AvxVnni, Avx512, Avx512Bf16, Amx] {
            for c in [Small, Dense, Experts, Floats] {
                let rows = ROWS.iter().filter(|row| (row.0, row.1) == (i, c));
                assert_eq!(rows.count(), 1, "{i:?} {c:?}");
                let f = usual(i, c);
                let shares = [f.reads, f.cache, f.prompt, f.batch];
                assert!(shares.iter().all(|s| (0.01..=1.5).contains(s)), "{i:?} {c:?} {f:?}");
            }
        }
    }
}
