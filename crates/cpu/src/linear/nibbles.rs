//! The int8 chain on expanded panels with AVX2 and no instruction for dot products of bytes: a panel
//! × up to six tokens, of full bytes up to four.
//!
//! `vpmaddubsw` adds two products in 16 bits. Those of codes below 64 are added up in 16 bits for as
//! long as they cannot overflow, 2·127·code a time: eight times below 16, four below 32, two below
//! 64. Then `vpmaddwd` widens the sums; those of an earlier part of the block wait in memory, as
//! the f32 chains always do.
//!
//! Full bytes w, 128 taken off, are expanded to |w| and a mask m of all bits where w is negative. There
//! |w|·(a ⊕ m) = |w|·(−a − 1) = w·a − |w|, so sums start from Σ|w| over the negative w of their row and block. Two
//! products fit 16 bits, and every sum of two is widened: the four operations of a vector are two of the
//! multiplier and two that any port takes, and four tokens leave registers for all operands. (Two planes of
//! nibbles, which need as many operations for six tokens, and their sums set aside, take an eighth longer: bench/NOTES.md.)
//!
//! 12 sums, two vectors of codes and two at work are all 16 registers, and the order matters: two
//! multiplications, then two additions, take 61 cycles for 32 columns of 6 tokens on Zen 3, one and
//! one 64 (bench/NOTES.md). So a block is written out in assembly.

use std::arch::asm;
use std::arch::x86_64::__m256i;
use std::mem::MaybeUninit;

use super::Line;
use super::encode::{BIAS, HALF_SUM, SCALE, SCALE_BIAS, SUM, start_word};
use super::kind::{self, Kind, OfKind};
use super::tiles::ByteTile;
use crate::simd::{Avx2, Vector};

/// The instruction set of this file.
type V = Avx2<false>;

/// Most tokens of a tile.
pub(super) const TOKENS: usize = 6;
/// Most tokens of a tile of magnitudes and signs.
pub(super) const SIGNS_TOKENS: usize = 4;

/// Runs a tile of 1 to 6 tokens.
///
/// # Safety
/// The pointers of `t` cover a panel of kind `K`, one of those that this instruction set expands to, and the
/// tokens; AVX2, FMA and F16C are available.
pub(super) unsafe fn tile<K: OfKind>(tokens: usize, t: &ByteTile) {
    let of_kind: &[unsafe fn(&ByteTile)] = match (K::KIND, t.narrow) {
        (Kind::Wide, true) => &NARROW,
        (Kind::Wide, false) => &FIVE_BITS,
        (Kind::WideMin, true) => &NARROW_MIN,
        (Kind::WideMin, false) => &FIVE_BITS_MIN,
        (Kind::WideHalves, _) => &SIX_BITS,
        (Kind::WideHalvesMin, _) => &NARROW_HALVES_MIN,
        (Kind::WideHalves4, _) => &NARROW_HALVES,
        (Kind::Signs, _) => &SIGNS,
        (Kind::SignsMin, _) => &SIGNS_MIN,
        (Kind::SignsHalves, _) => &SIGNS_HALVES,
        _ => unreachable!("{:?} is not expanded with AVX2", K::KIND),
    };
    // SAFETY: passed on.
    unsafe { of_kind[tokens - 1](t) }
}

/// What the assembly loads besides: vectors of the same words.
#[repr(C, align(64))]
struct Constants([[i32; 8]; 3]);

/// From byte 0: 16-bit ones; 32: B; 64: −1/32.
static CONSTANTS: Constants =
    Constants([[0x0001_0001; 8], [BIAS; 8], [(-1.0_f32 / 32.0).to_bits() as i32; 8]]);

/// Sums of the parts of a block so far.
#[repr(C, align(64))]
struct Held([[__m256i; 2]; TOKENS]);

// The words of a token that are used below.
const _: () = {
    assert!(matches!(start_word(8), Some(11)) && matches!(start_word(16), Some(12)));
    assert!(matches!(start_word(128), Some(13)) && matches!(start_word(32), Some(14)));
    assert!(SCALE == 8 && SCALE_BIAS == 9 && SUM == 10 && HALF_SUM == 14);
};

// A token is a list in brackets: the registers of its two sums, its address as a base (`a` for tokens
// 0–2, `b` for 3–5) and what is added, and its number.

/// The vector `$plus` bytes into step `$i` of 4 columns, `$step` bytes each, after byte `$at`.
macro_rules! code {
    ($to:tt $at:tt $step:tt $i:tt $plus:tt) => {
        concat!("vmovdqa ", $to, ", [{w} + ", $at, " + ", $step, "*", $i, " + ", $plus, "]\n")
    };
}

/// Two vectors of codes, of step `$i` after byte `$at`.
macro_rules! codes {
    ($at:tt $i:tt) => {
        concat!(code!("ymm12" $at 64 $i 0), code!("ymm13" $at 64 $i 32))
    };
}

/// Word `$word` of a token, and `$i` after it, in all lanes.
macro_rules! word {
    ($to:tt $base:tt $plus:tt $word:tt $i:tt) => {
        concat!(
            "vbroadcastss ",
            $to,
            ", dword ptr [{",
            $base,
            "}",
            $plus,
            " + 4*",
            $word,
            " + 4*",
            $i,
            "]\n",
        )
    };
}

/// Step `$i` after byte `$at` and word `$word`, the first of its sums.
macro_rules! first {
    ($at:tt $word:tt $i:tt $([$i0:tt $i1:tt $base:tt $plus:tt $c:tt])+) => {
        concat!(
            codes!($at $i),
            $(
                word!("ymm14" $base $plus $word $i),
                "vpmaddubsw ymm", $i0, ", ymm12, ymm14\n",
                "vpmaddubsw ymm", $i1, ", ymm13, ymm14\n",
            )+
        )
    };
}

/// Step `$i` after byte `$at` and word `$word`.
macro_rules! next {
    ($at:tt $word:tt $i:tt $([$i0:tt $i1:tt $base:tt $plus:tt $c:tt])+) => {
        concat!(
            codes!($at $i),
            $(
                word!("ymm14" $base $plus $word $i),
                "vpmaddubsw ymm15, ymm12, ymm14\n",
                "vpmaddubsw ymm14, ymm13, ymm14\n",
                "vpaddw ymm", $i0, ", ymm", $i0, ", ymm15\n",
                "vpaddw ymm", $i1, ", ymm", $i1, ", ymm14\n",
            )+
        )
    };
}

/// 8 columns from byte `$at` and word `$word` on.
macro_rules! eight {
    ($at:tt $word:tt $($token:tt)+) => {
        concat!(first!($at $word 0 $($token)+), next!($at $word 1 $($token)+))
    };
}

/// 16 columns from byte `$at` and word `$word` on, their first step and the next by these macros.
macro_rules! sixteen {
    ($first:ident $next:ident $at:tt $word:tt $($token:tt)+) => {
        concat!(
            $first!($at $word 0 $($token)+),
            $next!($at $word 1 $($token)+),
            $next!($at $word 2 $($token)+),
            $next!($at $word 3 $($token)+),
        )
    };
}

/// 32 columns from byte `$at` on.
macro_rules! block {
    ($first:ident $next:ident $at:tt $($token:tt)+) => {
        concat!(
            sixteen!($first $next $at 0 $($token)+),
            $next!($at 0 4 $($token)+),
            $next!($at 0 5 $($token)+),
            $next!($at 0 6 $($token)+),
            $next!($at 0 7 $($token)+),
        )
    };
}

/// Widens the sums.
macro_rules! widen {
    ($([$i0:tt $i1:tt $base:tt $plus:tt $c:tt])+) => {
        concat!(
            "vmovdqa ymm12, [{k}]\n",
            $(
                "vpmaddwd ymm", $i0, ", ymm", $i0, ", ymm12\n",
                "vpmaddwd ymm", $i1, ", ymm", $i1, ", ymm12\n",
            )+
        )
    };
}

/// Puts the sums aside.
macro_rules! hold {
    ($([$i0:tt $i1:tt $base:tt $plus:tt $c:tt])+) => {
        concat!($(
            "vmovdqa [{h} + 64*", $c, "], ymm", $i0, "\n",
            "vmovdqa [{h} + 64*", $c, " + 32], ymm", $i1, "\n",
        )+)
    };
}

/// Adds what was put aside.
macro_rules! held {
    ($([$i0:tt $i1:tt $base:tt $plus:tt $c:tt])+) => {
        concat!($(
            "vpaddd ymm", $i0, ", ymm", $i0, ", [{h} + 64*", $c, "]\n",
            "vpaddd ymm", $i1, ", ymm", $i1, ", [{h} + 64*", $c, " + 32]\n",
        )+)
    };
}

/// Adds word `$word` of each token.
macro_rules! start {
    ($word:tt $([$i0:tt $i1:tt $base:tt $plus:tt $c:tt])+) => {
        concat!($(
            word!("ymm13" $base $plus $word 0),
            "vpaddd ymm", $i0, ", ymm", $i0, ", ymm13\n",
            "vpaddd ymm", $i1, ", ymm", $i1, ", ymm13\n",
        )+)
    };
}

/// Adds B − 4·Σa, from word `$word` of each token, which is B − 32·Σa.
macro_rules! start_4 {
    ($word:tt $([$i0:tt $i1:tt $base:tt $plus:tt $c:tt])+) => {
        concat!(
            "vmovdqa ymm12, [{k} + 32]\n",
            $(
                word!("ymm13" $base $plus $word 0),
                "vpsubd ymm13, ymm13, ymm12\n",
                "vpsrad ymm13, ymm13, 3\n",
                "vpaddd ymm13, ymm13, ymm12\n",
                "vpaddd ymm", $i0, ", ymm", $i0, ", ymm13\n",
                "vpaddd ymm", $i1, ", ymm", $i1, ", ymm13\n",
            )+
        )
    };
}

/// Adds B.
macro_rules! plus {
    ($([$i0:tt $i1:tt $base:tt $plus:tt $c:tt])+) => {
        concat!(
            "vmovdqa ymm13, [{k} + 32]\n",
            $(
                "vpaddd ymm", $i0, ", ymm", $i0, ", ymm13\n",
                "vpaddd ymm", $i1, ", ymm", $i1, ", ymm13\n",
            )+
        )
    };
}

/// fma(fma(sum, s, −s·1.5·2²³), S, chain), with S from byte `$at` on.
macro_rules! scale {
    ($at:tt $([$i0:tt $i1:tt $base:tt $plus:tt $c:tt])+) => {
        concat!(
            "vmovaps ymm12, [{w} + ", $at, "]\n",
            "vmovaps ymm13, [{w} + ", $at, " + 32]\n",
            $(
                word!("ymm14" $base $plus 8 0),
                word!("ymm15" $base $plus 9 0),
                "vfmadd132ps ymm", $i0, ", ymm15, ymm14\n",
                "vfmadd132ps ymm", $i1, ", ymm15, ymm14\n",
                "vfmadd213ps ymm", $i0, ", ymm12, [{x} + 128*", $c, "]\n",
                "vfmadd213ps ymm", $i1, ", ymm13, [{x} + 128*", $c, " + 32]\n",
            )+
        )
    };
}

/// fma(s·Σa, m, chain), with m from byte `$at` on.
macro_rules! min {
    ($at:tt $([$i0:tt $i1:tt $base:tt $plus:tt $c:tt])+) => {
        concat!(
            "vmovaps ymm12, [{w} + ", $at, "]\n",
            "vmovaps ymm13, [{w} + ", $at, " + 32]\n",
            $(
                word!("ymm14" $base $plus 10 0),
                "vfmadd231ps ymm", $i0, ", ymm14, ymm12\n",
                "vfmadd231ps ymm", $i1, ", ymm14, ymm13\n",
            )+
        )
    };
}

/// fma(s·Σa, m, chain) of 16 columns, with s·Σa = −fma(B − 32·Σa, s, −s·1.5·2²³)/32 from word `$word`.
macro_rules! half_min {
    ($at:tt $word:tt $([$i0:tt $i1:tt $base:tt $plus:tt $c:tt])+) => {
        concat!(
            "vmovaps ymm13, [{k} + 64]\n",
            $(
                word!("ymm12" $base $plus $word 0),
                word!("ymm14" $base $plus 8 0),
                word!("ymm15" $base $plus 9 0),
                "vfmadd132ps ymm12, ymm15, ymm14\n",
                "vmulps ymm12, ymm12, ymm13\n",
                "vfmadd231ps ymm", $i0, ", ymm12, [{w} + ", $at, "]\n",
                "vfmadd231ps ymm", $i1, ", ymm12, [{w} + ", $at, " + 32]\n",
            )+
        )
    };
}

/// Stores the chains.
macro_rules! store {
    ($([$i0:tt $i1:tt $base:tt $plus:tt $c:tt])+) => {
        concat!($(
            "vmovaps [{x} + 128*", $c, "], ymm", $i0, "\n",
            "vmovaps [{x} + 128*", $c, " + 32], ymm", $i1, "\n",
        )+)
    };
}

// Blocks. Scales come first: those of 32 columns or of both halves, then minima; then 64 bytes of codes
// for each step of 4 columns, all of a plane together.

/// [`Kind::Wide`] below 16.
macro_rules! narrow {
    ($($token:tt)+) => {
        concat!(
            block!(first next 64 $($token)+),
            widen!($($token)+), start!(11 $($token)+), scale!(0 $($token)+), store!($($token)+),
        )
    };
}

/// [`Kind::Wide`] below 32.
macro_rules! five_bits {
    ($($token:tt)+) => {
        concat!(
            sixteen!(first next 64 0 $($token)+), widen!($($token)+), hold!($($token)+),
            sixteen!(first next 320 4 $($token)+), widen!($($token)+), start!(12 $($token)+),
            held!($($token)+), scale!(0 $($token)+), store!($($token)+),
        )
    };
}

/// [`Kind::WideMin`] below 16.
macro_rules! narrow_min {
    ($($token:tt)+) => {
        concat!(
            block!(first next 128 $($token)+), widen!($($token)+), plus!($($token)+),
            scale!(0 $($token)+), min!(64 $($token)+), store!($($token)+),
        )
    };
}

/// [`Kind::WideMin`] below 32.
macro_rules! five_bits_min {
    ($($token:tt)+) => {
        concat!(
            sixteen!(first next 128 0 $($token)+), widen!($($token)+), hold!($($token)+),
            sixteen!(first next 384 4 $($token)+), widen!($($token)+), plus!($($token)+),
            held!($($token)+), scale!(0 $($token)+), min!(64 $($token)+), store!($($token)+),
        )
    };
}

/// Adds the sums of the second list to those of the first.
macro_rules! join {
    ($([$i0:tt $i1:tt $base:tt $plus:tt $c:tt] $j0:tt $j1:tt)+) => {
        concat!($(
            "vpaddd ymm", $i0, ", ymm", $i0, ", ymm", $j0, "\n",
            "vpaddd ymm", $i1, ", ymm", $i1, ", ymm", $j1, "\n",
        )+)
    };
}

/// Half a block of [`Kind::WideHalves`] for up to three tokens, each with two more registers for the sums of
/// the other eight columns.
macro_rules! six_bits_half {
    ($scale:tt $at:tt $at8:tt $word:tt $word8:tt $start:tt
     $([$i0:tt $i1:tt $base:tt $plus:tt $c:tt] $j0:tt $j1:tt)+) => {
        concat!(
            eight!($at $word $([$i0 $i1 $base $plus $c])+),
            eight!($at8 $word8 $([$j0 $j1 $base $plus $c])+),
            widen!($([$i0 $i1 $base $plus $c])+ $([$j0 $j1 $base $plus $c])+),
            start!($start $([$i0 $i1 $base $plus $c])+),
            join!($([$i0 $i1 $base $plus $c] $j0 $j1)+),
            scale!($scale $([$i0 $i1 $base $plus $c])+),
            store!($([$i0 $i1 $base $plus $c])+),
        )
    };
}

/// Both halves.
macro_rules! six_bits_of {
    ($($token:tt)+) => {
        concat!(
            six_bits_half!(0 128 256 0 2 14 $($token)+),
            six_bits_half!(64 384 512 4 6 15 $($token)+),
        )
    };
}

/// [`Kind::WideHalves`]: three tokens at a time, which leaves registers for what would have to be held otherwise.
macro_rules! six_bits {
    ($a:tt) => { six_bits_of!($a "6" "7") };
    ($a:tt $b:tt) => { six_bits_of!($a "6" "7" $b "8" "9") };
    ($a:tt $b:tt $c:tt) => { six_bits_of!($a "6" "7" $b "8" "9" $c "10" "11") };
    ($a:tt $b:tt $c:tt $d:tt) => {
        concat!(six_bits!($a $b $c), six_bits_of!($d "0" "1"))
    };
    ($a:tt $b:tt $c:tt $d:tt $e:tt) => {
        concat!(six_bits!($a $b $c), six_bits_of!($d "0" "1" $e "2" "3"))
    };
    ($a:tt $b:tt $c:tt $d:tt $e:tt $f:tt) => {
        concat!(six_bits!($a $b $c), six_bits_of!($d "0" "1" $e "2" "3" $f "4" "5"))
    };
}

/// Half a block of [`Kind::WideHalves4`].
macro_rules! narrow_half {
    ($scale:tt $at:tt $word:tt $sum:tt $($token:tt)+) => {
        concat!(
            sixteen!(first next $at $word $($token)+), widen!($($token)+), start_4!($sum $($token)+),
            scale!($scale $($token)+), store!($($token)+),
        )
    };
}

/// [`Kind::WideHalves4`].
macro_rules! narrow_halves {
    ($($token:tt)+) => {
        concat!(
            narrow_half!(0 128 0 14 $($token)+),
            narrow_half!(64 384 4 15 $($token)+),
        )
    };
}

/// Half a block of [`Kind::WideHalvesMin`].
macro_rules! narrow_half_min {
    ($scale:tt $min:tt $at:tt $word:tt $sum:tt $($token:tt)+) => {
        concat!(
            sixteen!(first next $at $word $($token)+), widen!($($token)+), plus!($($token)+),
            scale!($scale $($token)+), half_min!($min $sum $($token)+), store!($($token)+),
        )
    };
}

/// [`Kind::WideHalvesMin`].
macro_rules! narrow_halves_min {
    ($($token:tt)+) => {
        concat!(
            narrow_half_min!(0 128 256 0 14 $($token)+),
            narrow_half_min!(64 192 512 4 15 $($token)+),
        )
    };
}

/// Magnitudes and signs of step `$i` after byte `$at`.
macro_rules! signed_codes {
    ($at:tt $i:tt) => {
        concat!(
            code!("ymm8" $at 128 $i 0),
            code!("ymm9" $at 128 $i 32),
            code!("ymm10" $at 128 $i 64),
            code!("ymm11" $at 128 $i 96),
        )
    };
}

/// Sums of two products of a token each.
macro_rules! signed_products {
    ($base:tt $plus:tt $word:tt $i:tt) => {
        concat!(
            word!("ymm14" $base $plus $word $i),
            "vpxor ymm15, ymm11, ymm14\n",
            "vpxor ymm14, ymm10, ymm14\n",
            "vpmaddubsw ymm14, ymm8, ymm14\n",
            "vpmaddubsw ymm15, ymm9, ymm15\n",
        )
    };
}

/// Step `$i` after byte `$at` and word `$word`, the first of its sums.
macro_rules! signed_first {
    ($at:tt $word:tt $i:tt $([$i0:tt $i1:tt $base:tt $plus:tt $c:tt])+) => {
        concat!(
            "vmovdqa ymm12, [{k}]\n",
            signed_codes!($at $i),
            $(
                signed_products!($base $plus $word $i),
                "vpmaddwd ymm", $i0, ", ymm14, ymm12\n",
                "vpmaddwd ymm", $i1, ", ymm15, ymm12\n",
            )+
        )
    };
}

/// Step `$i` after byte `$at` and word `$word`.
macro_rules! signed_next {
    ($at:tt $word:tt $i:tt $([$i0:tt $i1:tt $base:tt $plus:tt $c:tt])+) => {
        concat!(
            signed_codes!($at $i),
            $(
                signed_products!($base $plus $word $i),
                "vpmaddwd ymm14, ymm14, ymm12\n",
                "vpmaddwd ymm15, ymm15, ymm12\n",
                "vpaddd ymm", $i0, ", ymm", $i0, ", ymm14\n",
                "vpaddd ymm", $i1, ", ymm", $i1, ", ymm15\n",
            )+
        )
    };
}

/// 32 columns from byte `$at` on, and the sums' start at `$start`.
macro_rules! signed_block {
    ($at:tt $start:tt $($token:tt)+) => {
        concat!(
            block!(signed_first signed_next $at $($token)+),
            signed_start!($start $($token)+),
        )
    };
}

/// Adds the sums' start at `$at`, one for each row.
macro_rules! signed_start {
    ($at:tt $([$i0:tt $i1:tt $base:tt $plus:tt $c:tt])+) => {
        concat!(
            "vmovdqa ymm12, [{w} + ", $at, "]\n",
            "vmovdqa ymm13, [{w} + ", $at, " + 32]\n",
            $(
                "vpaddd ymm", $i0, ", ymm", $i0, ", ymm12\n",
                "vpaddd ymm", $i1, ", ymm", $i1, ", ymm13\n",
            )+
        )
    };
}

/// Adds 128·Σa − B: word 13 of each token is B − 128·Σa.
macro_rules! plus_128 {
    ($([$i0:tt $i1:tt $base:tt $plus:tt $c:tt])+) => {
        concat!($(
            word!("ymm13" $base $plus 13 0),
            "vpsubd ymm", $i0, ", ymm", $i0, ", ymm13\n",
            "vpsubd ymm", $i1, ", ymm", $i1, ", ymm13\n",
        )+)
    };
}

/// [`Kind::Signs`].
macro_rules! signs {
    ($($token:tt)+) => {
        concat!(signed_block!(128 64 $($token)+), scale!(0 $($token)+), store!($($token)+))
    };
}

/// [`Kind::SignsMin`].
macro_rules! signs_min {
    ($($token:tt)+) => {
        concat!(
            signed_block!(192 128 $($token)+), plus_128!($($token)+),
            scale!(0 $($token)+), min!(64 $($token)+), store!($($token)+),
        )
    };
}

/// Half a block of [`Kind::SignsHalves`].
macro_rules! signs_half {
    ($scale:tt $start:tt $at:tt $word:tt $($token:tt)+) => {
        concat!(
            sixteen!(signed_first signed_next $at $word $($token)+), signed_start!($start $($token)+),
            scale!($scale $($token)+), store!($($token)+),
        )
    };
}

/// [`Kind::SignsHalves`].
macro_rules! signs_halves {
    ($($token:tt)+) => {
        concat!(
            signs_half!(0 128 256 0 $($token)+),
            signs_half!(64 192 768 4 $($token)+),
        )
    };
}

/// Adds a block to the chains of as many tokens as are listed.
macro_rules! block_of {
    ($name:ident $block:ident $($token:tt)+) => {
        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn $name(w: *const u8, line: *const Line, lines: usize, chains: *mut f32) {
            let mut held = MaybeUninit::<Held>::uninit();
            // SAFETY: reads the panel's block and the tokens' lines only, and writes their chains.
            unsafe {
                asm!(
                    $block!($($token)+),
                    "/* {a} {b} {s} {h} {k} */",
                    w = in(reg) w,
                    a = in(reg) line,
                    b = in(reg) line.wrapping_add(3 * lines),
                    s = in(reg) 64 * lines,
                    x = in(reg) chains,
                    h = in(reg) held.as_mut_ptr(),
                    k = in(reg) &CONSTANTS,
                    out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
                    out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _,
                    out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
                    out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
                    options(nostack, preserves_flags)
                );
            }
        }
    };
}

/// Blocks and tiles of the first token of a list, of the first two, and so on.
macro_rules! tiles_of {
    ($kind:ident $block:ident [$($before:tt)*]) => {};
    ($kind:ident $block:ident [$($before:tt)*]
     $name:ident $add:ident $token:tt $($rest:tt)*) => {
        block_of!($add $block $($before)* $token);
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn $name(t: &ByteTile) {
            // SAFETY: passed on.
            unsafe { run::<kind::$kind, { count!($($before)* $token) }>(t, $add) }
        }
        tiles_of!($kind $block [$($before)* $token] $($rest)*);
    };
}

/// How many tokens are listed.
macro_rules! count {
    ($([$i0:tt $i1:tt $base:tt $plus:tt $c:tt])+) => { [$($c),+].len() };
}

/// The tiles of 1 to 6 tokens of a kind of block, or with signs of 1 to 4.
macro_rules! tiles {
    ($all:ident $kind:ident $block:ident) => {
        tiles!(
            $all $kind $block TOKENS [tile_1 tile_2 tile_3 tile_4 tile_5 tile_6]
            tile_5 add_5 ["8" "9" "b" " + {s}" 4]
            tile_6 add_6 ["10" "11" "b" " + 2*{s}" 5]
        );
    };
    ($all:ident $kind:ident $block:ident of signs) => {
        tiles!($all $kind $block SIGNS_TOKENS [tile_1 tile_2 tile_3 tile_4]);
    };
    ($all:ident $kind:ident $block:ident $count:ident [$($tile:ident)+] $($more:tt)*) => {
        static $all: [unsafe fn(&ByteTile); $count] = {
            tiles_of! {
                $kind $block []
                tile_1 add_1 ["0" "1" "a" "" 0]
                tile_2 add_2 ["2" "3" "a" " + {s}" 1]
                tile_3 add_3 ["4" "5" "a" " + 2*{s}" 2]
                tile_4 add_4 ["6" "7" "b" "" 3]
                $($more)*
            }
            [$($tile),+]
        };
    };
}

tiles!(NARROW Wide narrow);
tiles!(FIVE_BITS Wide five_bits);
tiles!(NARROW_MIN WideMin narrow_min);
tiles!(FIVE_BITS_MIN WideMin five_bits_min);
tiles!(SIX_BITS WideHalves six_bits);
tiles!(NARROW_HALVES_MIN WideHalvesMin narrow_halves_min);
tiles!(NARROW_HALVES WideHalves4 narrow_halves);
tiles!(SIGNS Signs signs of signs);
tiles!(SIGNS_MIN SignsMin signs_min of signs);
tiles!(SIGNS_HALVES SignsHalves signs_halves of signs);

pub(super) mod vnni;

/// Adds a block: its panel's scales and codes, the first token's line, lines from one token to the next,
/// the first chain.
type Add = unsafe fn(*const u8, *const Line, usize, *mut f32);

/// Runs the blocks of a tile of C tokens.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run<K: OfKind, const C: usize>(t: &ByteTile, add: Add) {
    // SAFETY: all pointers stay inside what the caller vouches for; prefetches may not.
    unsafe {
        if t.is_residual() {
            return residual::<C>(t, add);
        }
        begin::<C>(t);
        t.prefetch_results::<1, C>();
        let mut ahead = t.ahead;
        let mut weights = t.weights;
        for block in t.first..t.end {
            add(weights, t.line(block), t.lines, t.chain(0, 0));
            ahead = t.prefetch_ahead::<1>(ahead);
            weights = weights.wrapping_add(const { K::KIND.sizes().group });
        }
        end::<C>(t);
    }
}

/// Runs one block on residual lines of C tokens, whose chains lie apart.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn residual<const C: usize>(t: &ByteTile, add: Add) {
    let mut chains = MaybeUninit::<[[Line; 2]; C]>::uninit();
    // SAFETY: as the caller.
    unsafe {
        let at: *mut [Line; 2] = chains.as_mut_ptr().cast();
        for c in 0..C {
            V::store_floats(V::floats(t.residual(c, 0)), at.add(c).cast());
        }
        add(t.weights, t.line(t.first), t.lines, at.cast());
        for c in 0..C {
            V::store_floats(V::floats(at.add(c).cast()), t.residual(c, 0));
        }
        t.prefetch_ahead::<1>(t.ahead);
    }
}

/// Chains start from zero.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn begin<const C: usize>(t: &ByteTile) {
    if !t.resumes() {
        for c in 0..C {
            // SAFETY: where the block looks for them.
            unsafe { V::store_floats(V::float(V::same(0)), t.chain(c, 0)) };
        }
    }
}

/// Stores the chains as results, the rows that exist.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn end<const C: usize>(t: &ByteTile) {
    if !t.waits() {
        for c in 0..C {
            // SAFETY: inside the results, as the caller vouches.
            unsafe {
                let mut y = V::floats(t.chain(c, 0));
                if t.has_residuals() {
                    y = V::add(y, V::floats(t.residual(c, 0)));
                }
                let y = V::add(y, V::float(V::same(0)));
                V::store_first(y, t.out.add(c * t.stride), t.rows[0]);
            }
        }
    }
}
