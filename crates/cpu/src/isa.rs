//! Instruction sets the kernels are written for, and what this machine has.

use std::sync::OnceLock;

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
    /// The same with BF16, where its dot products are found to round as [`crate::linear`] asks.
    Avx512Bf16,
    /// AVX-512 with the int8 tiles of AMX, for many tokens.
    Amx,
}

impl Isa {
    /// All of them, slowest first.
    pub const ALL: [Isa; 6] =
        [Isa::Scalar, Isa::Avx2, Isa::AvxVnni, Isa::Avx512, Isa::Avx512Bf16, Isa::Amx];

    /// The best one this machine runs.
    pub fn detect() -> Isa {
        let best = |isa: &Isa| isa.is_available() && isa.pays();
        Isa::ALL.into_iter().rev().find(best).unwrap_or(Isa::Scalar)
    }

    /// Whether it is faster than those before it: Intel's cores compute dot products of bf16 at a quarter of
    /// the rate of fmas, which makes them half as fast (bench/NOTES.md).
    fn pays(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        if self == Isa::Avx512Bf16 {
            const GENU: u32 = u32::from_le_bytes(*b"Genu");
            return std::arch::x86_64::__cpuid(0).ebx != GENU;
        }
        true
    }

    /// Whether this machine runs it.
    #[inline]
    pub fn is_available(self) -> bool {
        static FOUND: OnceLock<[bool; Isa::ALL.len()]> = OnceLock::new();
        FOUND.get_or_init(|| Isa::ALL.map(Isa::find))[self as usize]
    }

    fn find(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let avx2 = has!("avx2") && has!("fma") && has!("f16c");
            match self {
                Isa::Scalar => true,
                Isa::Avx2 => avx2,
                Isa::AvxVnni => avx2 && has!("avxvnni"),
                Isa::Avx512 => avx2 && has_avx512(),
                Isa::Avx512Bf16 => avx2 && has_avx512() && has!("avx512bf16") && bf16::is_exact(),
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
            Isa::Avx512Bf16 => "avx512bf16",
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
mod bf16 {
    use std::arch::x86_64::*;

    /// Bits of 16 sums or pairs.
    type Words = [u32; 16];

    /// Whether `vdpbf16ps` is an fma of the high halves and then one of the low halves, as far as its
    /// inputs allow no subnormal: tried on some thousand sums, most of which round in both steps.
    pub(super) fn is_exact() -> bool {
        // SAFETY: reached only where the processor has it.
        check(|sum, a, b| unsafe { dot(sum, a, b) })
    }

    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn dot(sum: Words, a: Words, b: Words) -> Words {
        // SAFETY: all are 64 bytes of which any bits are legal.
        unsafe {
            let sum = _mm512_dpbf16_ps(
                std::mem::transmute::<Words, __m512>(sum),
                std::mem::transmute::<Words, __m512bh>(a),
                std::mem::transmute::<Words, __m512bh>(b),
            );
            std::mem::transmute::<__m512, Words>(sum)
        }
    }

    /// Whether `dot` is two fmas on sums of every size, from those that a product hardly moves to those
    /// it cancels.
    pub(super) fn check(dot: impl Fn(Words, Words, Words) -> Words) -> bool {
        let mut state = 1_u64;
        let mut word = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_041);
            (state >> 32) as u32
        };
        // Sign, 7 bits of significand, and an exponent near 1, or now and then as small as any is.
        let mut number = || {
            let bits = word();
            let exponent = if bits >> 28 == 0 { 127 - 56 } else { 120 + (bits >> 24 & 15) };
            bits & 0x807f | exponent << 7
        };
        let high = |pair: u32| f32::from_bits(pair & 0xffff_0000);
        let low = |pair: u32| f32::from_bits(pair << 16);
        (0..512).all(|_| {
            let [a, b, c] = [(); 3].map(|()| std::array::from_fn(|_| number() << 16 | number()));
            // Sums with all bits of a significand, some of them near minus a product.
            let sum: Words = std::array::from_fn(|i| match i % 2 {
                0 => c[i],
                _ => (-high(a[i])).mul_add(high(b[i]), high(c[i]) / 4096.0).to_bits(),
            });
            let expect: Words = std::array::from_fn(|i| {
                let first = high(a[i]).mul_add(high(b[i]), f32::from_bits(sum[i]));
                low(a[i]).mul_add(low(b[i]), first).to_bits()
            });
            dot(sum, a, b) == expect
        })
    }
}

#[cfg(target_arch = "x86_64")]
mod amx {
    /// Whether the processor has int8 tiles and the system lets this process use them.
    #[cfg(target_os = "linux")]
    pub(super) fn is_granted() -> bool {
        use std::arch::x86_64::__cpuid_count;
        /// `arch_prctl`: ask for a state component, for all threads of the process.
        const REQUEST_PERMISSION: libc::c_long = 0x1023;
        const TILE_DATA: libc::c_long = 18;
        // Bits 24 and 25 of EDX in leaf 7: tiles, int8.
        let has_tiles = __cpuid_count(7, 0).edx >> 24 & 3 == 3;
        // SAFETY: the call changes nothing but what the process may use.
        has_tiles
            && unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0 }
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
        let better = |isa: &Isa| *isa > best && isa.pays();
        assert!(!Isa::ALL.into_iter().filter(better).any(Isa::is_available));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn dot_products_in_another_order_or_rounded_otherwise_are_told_apart() {
        let [high, low] =
            [|pair: u32| f32::from_bits(pair & 0xffff_0000), |pair| f32::from_bits(pair << 16)];
        let with = |dot: fn([f32; 2], [f32; 2], f32) -> f32| {
            bf16::check(|sum, a, b| {
                std::array::from_fn(|i| {
                    let pairs = [a[i], b[i]].map(|pair| [high(pair), low(pair)]);
                    dot(pairs[0], pairs[1], f32::from_bits(sum[i])).to_bits()
                })
            })
        };
        assert!(with(|a, b, sum| a[1].mul_add(b[1], a[0].mul_add(b[0], sum))));
        assert!(!with(|a, b, sum| a[0].mul_add(b[0], a[1].mul_add(b[1], sum))));
        assert!(!with(|a, b, sum| sum + a[1].mul_add(b[1], a[0] * b[0])));
        // Rounded once at the end.
        assert!(!with(|a, b, sum| {
            let exact = |i: usize| f64::from(a[i]) * f64::from(b[i]);
            (f64::from(sum) + exact(0) + exact(1)) as f32
        }));
    }
}
