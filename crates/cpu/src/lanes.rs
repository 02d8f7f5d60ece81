//! Sixteen f32 lanes on each instruction set: what the attention kernels are written in.
//!
//! Every operation is one exact IEEE operation a lane, so a kernel gives the same bits whichever
//! lanes it is compiled for.

use tokenmill_quant::float::bf16_to_f32;

/// Lanes of one register (or of as many as it takes).
pub(crate) const LANES: usize = 16;

/// Sixteen f32.
///
/// # Safety
/// All functions: the instruction set of the implementation is available, and pointers are valid
/// for sixteen elements (`splat`: none).
pub(crate) trait Lanes: Copy {
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn load_bf16(from: *const u16) -> Self;
    unsafe fn load_i8(from: *const i8) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// `self · b + c`, rounded once.
    unsafe fn fma(self, b: Self, c: Self) -> Self;
}

/// Plain arrays: the definition.
impl Lanes for [f32; LANES] {
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        [x; LANES]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: sixteen elements, by contract; alignment is not assumed.
        unsafe { from.cast::<Self>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: as above.
        unsafe { from.cast::<[u16; LANES]>().read_unaligned() }.map(bf16_to_f32)
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: as above.
        unsafe { from.cast::<[i8; LANES]>().read_unaligned() }.map(f32::from)
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as above.
        unsafe { to.cast::<Self>().write_unaligned(self) };
    }

    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        std::array::from_fn(|i| self[i].mul_add(b[i], c[i]))
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    //! The registers of x86-64.

    use std::arch::x86_64::*;

    use super::Lanes;

    /// One 512-bit register.
    #[derive(Clone, Copy)]
    pub(crate) struct Zmm(__m512);

    impl Lanes for Zmm {
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: AVX-512 F is available, by contract.
            unsafe { Zmm(_mm512_set1_ps(x)) }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: as above; sixteen elements.
            unsafe { Zmm(_mm512_loadu_ps(from)) }
        }

        #[inline(always)]
        unsafe fn load_bf16(from: *const u16) -> Self {
            // SAFETY: as above.
            unsafe {
                let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
                Zmm(_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)))
            }
        }

        #[inline(always)]
        unsafe fn load_i8(from: *const i8) -> Self {
            // SAFETY: as above.
            unsafe {
                let wide = _mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()));
                Zmm(_mm512_cvtepi32_ps(wide))
            }
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(to, self.0) }
        }

        #[inline(always)]
        unsafe fn fma(self, b: Self, c: Self) -> Self {
            // SAFETY: AVX-512 F is available, by contract.
            unsafe { Zmm(_mm512_fmadd_ps(self.0, b.0, c.0)) }
        }
    }

    /// Two 256-bit registers.
    #[derive(Clone, Copy)]
    pub(crate) struct Ymm2(__m256, __m256);

    impl Lanes for Ymm2 {
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: AVX2 is available, by contract.
            let x = unsafe { _mm256_set1_ps(x) };
            Ymm2(x, x)
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: as above; sixteen elements.
            unsafe { Ymm2(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
        }

        #[inline(always)]
        unsafe fn load_bf16(from: *const u16) -> Self {
            // SAFETY: as above.
            unsafe {
                let half = |at: usize| {
                    let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(at).cast()));
                    _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16))
                };
                Ymm2(half(0), half(8))
            }
        }

        #[inline(always)]
        unsafe fn load_i8(from: *const i8) -> Self {
            // SAFETY: as above.
            unsafe {
                let half = |at: usize| {
                    let bytes = _mm_loadl_epi64(from.add(at).cast());
                    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))
                };
                Ymm2(half(0), half(8))
            }
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: as above.
            unsafe {
                _mm256_storeu_ps(to, self.0);
                _mm256_storeu_ps(to.add(8), self.1);
            }
        }

        #[inline(always)]
        unsafe fn fma(self, b: Self, c: Self) -> Self {
            // SAFETY: FMA is available, by contract.
            unsafe { Ymm2(_mm256_fmadd_ps(self.0, b.0, c.0), _mm256_fmadd_ps(self.1, b.1, c.1)) }
        }
    }
}
