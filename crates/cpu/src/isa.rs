//! Instruction sets the kernels are written for, and what this machine has.

/// An instruction set with kernels of its own. All give the same bits; later ones are faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust: the definition of every result.
    Scalar,
    /// AVX2, FMA and F16C (x86-64-v3).
    Avx2,
    /// AVX2 with the 256-bit VNNI instructions.
    AvxVnni,
    /// AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
    /// The same with the int8 tiles of AMX, for many tokens.
    Amx,
}

impl Isa {
    /// All of them, slowest first.
    pub const ALL: [Isa; 5] = [Isa::Scalar, Isa::Avx2, Isa::AvxVnni, Isa::Avx512, Isa::Amx];

    /// The best one this machine runs.
    pub fn detect() -> Isa {
        Isa::ALL.into_iter().rev().find(|isa| isa.is_available()).unwrap_or(Isa::Scalar)
    }

    /// Whether this machine runs it.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let avx2 = has!("avx2") && has!("fma") && has!("f16c");
            match self {
                Isa::Scalar => true,
                Isa::Avx2 => avx2,
                Isa::AvxVnni => avx2 && has!("avxvnni"),
                Isa::Avx512 => avx2 && has_avx512(),
                Isa::Amx => avx2 && has_avx512() && amx::is_granted(),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Isa::Scalar
        }
    }

    /// Lower-case name, as printed and as accepted on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::AvxVnni => "avxvnni",
            Isa::Avx512 => "avx512",
            Isa::Amx => "amx",
        }
    }

    /// The instruction set of this name.
    pub fn from_name(name: &str) -> Option<Isa> {
        Isa::ALL.into_iter().find(|isa| isa.name() == name)
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    use std::arch::is_x86_feature_detected as has;
    has!("avx512f")
        && has!("avx512bw")
        && has!("avx512dq")
        && has!("avx512vl")
        && has!("avx512vnni")
}

#[cfg(target_arch = "x86_64")]
mod amx {
    /// Whether the processor has int8 tiles and the system lets this process use them.
    #[cfg(target_os = "linux")]
    pub(super) fn is_granted() -> bool {
        use std::arch::x86_64::__cpuid_count;
        static GRANTED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        /// `arch_prctl`: ask for a state component, for all threads of the process.
        const REQUEST_PERMISSION: libc::c_long = 0x1023;
        const TILE_DATA: libc::c_long = 18;
        *GRANTED.get_or_init(|| {
            // Bits 24 and 25 of EDX in leaf 7: tiles, int8.
            let has_tiles = __cpuid_count(7, 0).edx >> 24 & 3 == 3;
            // SAFETY: the call changes nothing but what the process may use.
            has_tiles
                && unsafe {
                    libc::syscall(libc::SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0
                }
        })
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn is_granted() -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_the_best_is_available() {
        for isa in Isa::ALL {
            assert_eq!(Isa::from_name(isa.name()), Some(isa));
        }
        assert_eq!(Isa::from_name("sse9"), None);
        let best = Isa::detect();
        assert!(best.is_available());
        assert!(Isa::ALL.into_iter().all(|isa| isa <= best || !isa.is_available()));
    }
}
