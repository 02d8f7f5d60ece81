//! The int8 chain on packed panels with AVX2 and no instruction for dot products of bytes, for a few
//! tokens.
//!
//! `vpmaddubsw` adds two products in 16 bits. Those of codes below 64 are added up in 16 bits for
//! as long as they cannot overflow, 2·127·code a time, and then widened at once by `vpmaddwd`: two
//! instructions for 32 products instead of three. Full bytes lose their zero point of 128 first; the
//! product is then |w|·(a with the sign of w), whose pairs just fit: 2·128·127. Entries of code books are magnitudes and
//! signs to begin with.

#![allow(clippy::needless_range_loop)] // tiles are indexed by token and half a panel

use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::atomic::{Ordering, compiler_fence};

use super::Line;
use super::bytes::{self, PREFETCH};
use super::encode::{BIAS, HALF_SUM, SCALE, SCALE_BIAS, SUM, residual_lines, start_word};
use super::kind::{Kind, OfKind};
use super::tiles::ByteTile;
use super::walk::Walk;
use super::{books, coded};
use crate::simd::{Avx2, Vector};

/// The instruction set of this file: what is packed is taken apart as there.
type V = Avx2<false>;

/// Products of 4 columns that a 16-bit sum can hold of codes of this kind.
const fn steps(kind: Kind) -> usize {
    use Kind::*;
    match kind {
        Iq2Xxs | Iq2Xs | Iq2S | Iq3Xxs => 2,
        _ if kind.is_narrow() || kind.is_of_bits() => 8,
        Zero5 | Min5 | Super5 | Table4 | Iq1S => 4,
        Super6 | Iq1M => 2,
        _ => 1,
    }
}

/// Whether bytes are raised by 128, as they are stored or out of a table.
const fn is_full(kind: Kind) -> bool {
    kind.is_full() || kind.is_table()
}

/// The magnitudes of a code book; of other kinds, whose tables are of something else, nothing.
const fn magnitudes(kind: Kind) -> [u8; 16] {
    let (table, mut magnitudes, mut i) = (kind.table(), [0; 16], 0);
    while i < 8 && kind.is_book() {
        magnitudes[i] = table[i] - 128;
        i += 1;
    }
    magnitudes
}

/// How far ahead a tile of so many panels prefetches codes of this kind, in bytes: measured on Zen 3
/// (bench/NOTES.md).
const fn ahead(kind: Kind, panels: usize) -> usize {
    match (panels, kind.sizes().codes) {
        (2, _) => 768,
        (_, ..=256) => 2048,
        _ => PREFETCH,
    }
}

/// W panels, block by block in turn, × C tokens over all columns. N = 2·C takes both lines of an outlier block at
/// once, so that its codes are unpacked once; N = C, where the registers hold no more, one after the other.
///
/// # Safety
/// As [`bytes::tile`]; AVX2, FMA and F16C are there.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn tile<K: OfKind, const W: usize, const C: usize, const N: usize>(t: &ByteTile) {
    let sizes = const { K::KIND.sizes() };
    // SAFETY: all pointers stay inside what the caller vouches for; prefetches may not.
    unsafe {
        let mut acc = [[[_mm256_setzero_ps(); 2]; C]; W];
        // Of residual lines. In memory, where few blocks need them, and not in registers that all need.
        let mut residuals = acc;
        let residuals = std::hint::black_box(&mut residuals);
        let mut walk = Walk::new::<C>(t);
        loop {
            let was_residual = walk.is_residual();
            let both = N > C && walk.is_outlier();
            for w in 0..W {
                let scales = walk.scales.add(w * t.panel_bytes);
                let codes = scales.add(sizes.scales + walk.b * sizes.codes);
                bytes::prefetch::<K>(codes, const { ahead(K::KIND, W) });
                let acc = [&mut acc[w], &mut residuals[w]];
                if both {
                    add_block::<K, C, N>(t, scales, walk.b, codes, walk.line, acc);
                } else {
                    add_block::<K, C, C>(t, scales, walk.b, codes, walk.line, acc);
                }
            }
            if both {
                walk.pass_residual();
            }
            if !walk.next::<K, 1, C>(t) {
                break;
            }
            if walk.is_residual() != was_residual {
                std::mem::swap(&mut acc, residuals);
            }
        }
        // Which chain is which does not matter to their sum.
        for w in 0..W {
            for c in 0..C {
                let y = V::add(V::add(acc[w][c], residuals[w][c]), V::float(V::same(0)));
                V::store_first(y, t.out.add(c * t.stride + w * t.apart), t.rows[w]);
            }
        }
    }
}

/// Adds one block of a panel to its chains, those of first and of residual lines: N ÷ C lines of each token.
#[inline(always)]
unsafe fn add_block<K: OfKind, const C: usize, const N: usize>(
    t: &ByteTile,
    scales: *const u8,
    b: usize,
    codes: *const u8,
    line: *const Line,
    acc: [&mut [[__m256; 2]; C]; 2],
) {
    // SAFETY: as the caller.
    unsafe {
        let halves = const { K::KIND.has_halves() };
        let lines = Lines { first: line, tokens: t.lines, second: residual_lines(t.blocks) };
        let signs = match const { K::KIND.is_book() } {
            true => books::signs::<V, K>(codes),
            false => V::int(V::same(0)),
        };
        let mut sums = Sums::<N>::NEW;
        sums.add::<K, 0, C>(codes, signs, &lines);
        sums.add::<K, 1, C>(codes, signs, &lines);
        let mut first = Sums::<N>::NEW;
        if halves {
            std::mem::swap(&mut first, &mut sums);
            if N == C {
                first.scale::<K, 0, C>(t, scales, b, &lines, 0, acc[0]);
            }
        }
        sums.add::<K, 2, C>(codes, signs, &lines);
        sums.add::<K, 3, C>(codes, signs, &lines);
        for second in 0..N / C {
            if halves && N > C {
                first.scale::<K, 0, C>(t, scales, b, &lines, second, acc[second]);
            }
            sums.scale::<K, 1, C>(t, scales, b, &lines, second, acc[second]);
        }
    }
}

/// Lines of a block: those of all tokens, then their second ones.
struct Lines {
    first: *const Line,
    /// From one token to the next.
    tokens: usize,
    /// From a token's line to its second.
    second: usize,
}

impl Lines {
    /// Word `word` of line `n`, in all lanes.
    #[inline(always)]
    unsafe fn word<const C: usize>(&self, n: usize, word: usize) -> __m256i {
        // SAFETY: the lines are inside the input.
        unsafe {
            let line = self.first.add(n % C * self.tokens + n / C * self.second);
            V::same_at(line.cast::<i32>().add(word))
        }
    }
}

/// Integer sums of a panel × N lines.
struct Sums<const N: usize> {
    /// Sums of 16 bits, and how many products are in them.
    pairs: [[__m256i; 2]; N],
    held: usize,
    /// Sums of 32 bits, once there are any.
    whole: [[__m256i; 2]; N],
    any: bool,
}

impl<const N: usize> Sums<N> {
    // SAFETY: zeros are vectors.
    const NEW: Self = unsafe { std::mem::zeroed() };

    /// Adds 8 columns, `STEP` of the block; `signs` are those of the block where there is a code book.
    #[inline(always)]
    unsafe fn add<K: OfKind, const STEP: usize, const C: usize>(
        &mut self,
        codes: *const u8,
        signs: [__m256i; 2],
        lines: &Lines,
    ) {
        // SAFETY: as the caller.
        unsafe {
            let bytes = const { K::KIND.sizes().low == 512 };
            compiler_fence(Ordering::SeqCst);
            let unpacked = match bytes {
                true => [V::int(V::same(0)); 2],
                // Codes below 8, with a zero point of 4.
                false if matches!(K::KIND, Kind::Super3) => coded::three_bits::<V, STEP>(codes),
                false if matches!(K::KIND, Kind::Ternary) => coded::two_bits::<V, STEP>(codes),
                false if const { K::KIND.is_book() } => books::magnitudes::<V, K, STEP>(codes),
                false => bytes::unpack::<V, K, STEP>(codes),
            };
            for half in 0..2 {
                // Nothing is loaded before its turn: the registers hold no more.
                compiler_fence(Ordering::SeqCst);
                let q = match bytes {
                    true => V::load(codes.add(128 * STEP + 64 * half)),
                    false if const { K::KIND.is_book() } => {
                        V::look_up(unpacked[half], const { &magnitudes(K::KIND) })
                    }
                    false => unpacked[half],
                };
                // Not zero, and negative where the weight is.
                let signs = match const { K::KIND.is_book() } {
                    true => {
                        let top = V::left_by(signs, (7 - STEP - 4 * half) as u32);
                        let one = _mm256_set1_epi8(1);
                        [_mm256_or_si256(top[0], one), _mm256_or_si256(top[1], one)]
                    }
                    false => signs,
                };
                for n in 0..N {
                    let a = lines.word::<C>(n, 2 * STEP + half);
                    for i in 0..2 {
                        let pairs = match const { is_full(K::KIND) } {
                            true => full_pairs(q[i], a),
                            false if const { K::KIND.is_book() } => {
                                _mm256_maddubs_epi16(q[i], _mm256_sign_epi8(a, signs[i]))
                            }
                            false => _mm256_maddubs_epi16(q[i], a),
                        };
                        self.pairs[n][i] = match self.held {
                            0 => pairs,
                            _ => _mm256_add_epi16(self.pairs[n][i], pairs),
                        };
                    }
                }
                self.held += 1;
                if self.held == const { steps(K::KIND) } {
                    self.widen();
                }
                if !bytes && N == 4 {
                    self.pairs.as_flattened_mut().iter_mut().for_each(|sum| pin(sum));
                }
                if const { steps(K::KIND) == 1 } {
                    self.whole.as_flattened_mut().iter_mut().for_each(|sum| pin(sum));
                }
            }
        }
    }

    /// Moves what is in the 16-bit sums to those of 32 bits.
    #[inline(always)]
    unsafe fn widen(&mut self) {
        // SAFETY: as the caller.
        unsafe {
            let one = _mm256_set1_epi16(1);
            for n in 0..N {
                for i in 0..2 {
                    let sum = _mm256_madd_epi16(self.pairs[n][i], one);
                    self.whole[n][i] = match self.any {
                        true => _mm256_add_epi32(self.whole[n][i], sum),
                        false => sum,
                    };
                }
            }
            (self.held, self.any) = (0, true);
        }
    }

    /// Adds the scaled sums of the first or residual lines, and the minima, to the f32 chains.
    #[inline(always)]
    unsafe fn scale<K: OfKind, const HALF: usize, const C: usize>(
        &mut self,
        t: &ByteTile,
        scales: *const u8,
        b: usize,
        lines: &Lines,
        second: usize,
        acc: &mut [[__m256; 2]; C],
    ) {
        // SAFETY: as the caller.
        unsafe {
            if self.held > 0 {
                self.widen();
            }
            let (scale, min) = bytes::scale_and_min::<V, K, HALF>(scales, b);
            for c in 0..C {
                let (acc, n) = (&mut acc[c], second * C + c);
                let start = start::<K, HALF, C>(t, lines, n);
                let biased = V::as_float(V::plus32(self.whole[n], [start, start]));
                let bias = V::float(lines.word::<C>(n, SCALE_BIAS));
                let product = V::fma_same(biased, lines.word::<C>(n, SCALE), bias);
                *acc = V::fma(product, scale, *acc);
                if const { K::KIND.has_min() && K::KIND.has_halves() } {
                    let sum = half_sum::<HALF, C>(lines, n);
                    *acc = V::fma_same(min, _mm256_castps_si256(sum), *acc);
                } else if const { K::KIND.has_min() } {
                    *acc = V::fma_same(min, lines.word::<C>(n, SUM), *acc);
                }
            }
        }
    }
}

/// Has the compiler compute a sum here: it would go over all columns token by token, and keep the
/// weights, less 128 and without their signs, on the stack.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn pin(sum: &mut __m256i) {
    // SAFETY: no instruction at all.
    unsafe { asm!("/* {0} */", inout(ymm_reg) * sum, options(nomem, nostack, preserves_flags)) }
}

/// Sums of two products of full bytes less 128.
#[inline(always)]
unsafe fn full_pairs(codes: __m256i, a: __m256i) -> __m256i {
    // SAFETY: as the caller.
    unsafe {
        let w = _mm256_xor_si256(codes, _mm256_set1_epi8(-0x80));
        _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w))
    }
}

/// s·f32(Σa) of half `HALF` of a block, in all lanes: [`bytes::half_sum`].
#[inline(always)]
unsafe fn half_sum<const HALF: usize, const C: usize>(lines: &Lines, n: usize) -> __m256 {
    // SAFETY: as the caller.
    unsafe {
        let word = |word| _mm256_castsi256_ps(lines.word::<C>(n, word));
        let sum = _mm256_fmadd_ps(word(HALF_SUM + HALF), word(SCALE), word(SCALE_BIAS));
        _mm256_mul_ps(sum, _mm256_set1_ps(-1.0 / 32.0))
    }
}

/// What is added to the sums of a block, or of half `HALF` of it: the bits of 1.5·2²³, less what the
/// zero point adds. Full bytes have lost 128 already, with or without a zero point.
#[inline(always)]
unsafe fn start<K: OfKind, const HALF: usize, const C: usize>(
    t: &ByteTile,
    lines: &Lines,
    n: usize,
) -> __m256i {
    // SAFETY: as the caller.
    unsafe {
        if const { K::KIND.is_book() } {
            return V::same(BIAS);
        }
        if matches!(K::KIND, Kind::Ternary) {
            // B − Σa from B − 8·Σa.
            let sum = _mm256_sub_epi32(lines.word::<C>(n, t.start), V::same(BIAS));
            return _mm256_add_epi32(_mm256_srai_epi32::<3>(sum), V::same(BIAS));
        }
        if matches!(K::KIND, Kind::Super3) {
            // B − 4·Σa from B − 32·Σa.
            let sum = _mm256_sub_epi32(lines.word::<C>(n, HALF_SUM + HALF), V::same(BIAS));
            return _mm256_add_epi32(_mm256_srai_epi32::<3>(sum), V::same(BIAS));
        }
        match const { (is_full(K::KIND), K::KIND.has_min(), K::KIND.has_halves()) } {
            (false, true, _) | (true, false, _) => V::same(BIAS),
            (false, false, halves) => lines.word::<C>(n, t.start + if halves { HALF } else { 0 }),
            // B + 128·Σa from B − 128·Σa.
            (true, true, _) => {
                let from = lines.word::<C>(n, const { start_word(128).unwrap() });
                _mm256_sub_epi32(V::same(BIAS.wrapping_mul(2)), from)
            }
        }
    }
}
