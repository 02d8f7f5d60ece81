//! The int8 chain on expanded panels with AVX-512: two panels × up to six tokens.
//!
//! 12 integer sums, 12 f32 chains, two lines of codes, a word of a token and the bias: 28 registers. The
//! compiler would spill some, so blocks are written out in assembly. For 32 columns a chain
//! costs 8 dot products and 2 other operations on the two ports that do both, so 80 % of the
//! dot-product rate is the most there is (3 operations with minima: 73 %; 4 with two scales: 67 %).

use std::arch::asm;
use std::arch::x86_64::*;

use crate::panel::PANEL_ROWS;

use super::encode::BIAS;
use super::kind::{Kind, OfKind};
use super::tiles::{ByteTile, Group};

/// Most tokens of a tile.
pub(super) const TOKENS: usize = 6;

/// Runs a tile of 1 to 6 tokens.
///
/// # Safety
/// The pointers of `t` cover two panels of kind `K`, one of the wide ones, and the tokens; AVX-512
/// with BW and VNNI is available.
pub(super) unsafe fn tile<K: OfKind>(tokens: usize, t: &ByteTile) {
    let of_kind = match K::KIND {
        Kind::Wide => ONE_SCALE,
        Kind::WideMin => WITH_MIN,
        _ => TWO_SCALES,
    };
    // SAFETY: passed on.
    unsafe { of_kind[tokens - 1](t) }
}

// A token is a list in brackets: its two f32 chains, the registers of its two integer sums, the name of its
// address and its number.

/// Step `$i` of 4 columns after word `$word` and byte `$at`: two lines of codes, dot products. Words are read by the
/// instructions that use them: a fifth fewer for the front end of a processor whose other thread is busy. (With an
/// index in the address Intel's cores take them apart again.)
macro_rules! dots {
    ($at:tt $word:tt $i:tt $([$x:ident $y:ident $i0:tt $i1:tt $a:ident $n:tt])+) => {
        concat!(
            "vmovdqa64 zmm24, [{w} + ", $at, " + 128*", $i, "]\n",
            "vmovdqa64 zmm25, [{w} + ", $at, " + 128*", $i, " + 64]\n",
            $(
                "vpdpbusd zmm", $i0, ", zmm24, ", word!($a $word $i), "\n",
                "vpdpbusd zmm", $i1, ", zmm25, ", word!($a $word $i), "\n",
            )+
        )
    };
}

/// The same with each word in a register, for residual lines: their loads take as long as their products, and these are a
/// third fewer.
macro_rules! dots_by_register {
    ($at:tt $word:tt $i:tt $([$x:ident $y:ident $i0:tt $i1:tt $a:ident $n:tt])+) => {
        concat!(
            "vmovdqa64 zmm24, [{w} + ", $at, " + 128*", $i, "]\n",
            "vmovdqa64 zmm25, [{w} + ", $at, " + 128*", $i, " + 64]\n",
            $(
                "vpbroadcastd zmm26, dword ptr [{", stringify!($a), "} + 4*", $word, " + 4*", $i, "]\n",
                "vpdpbusd zmm", $i0, ", zmm24, zmm26\n",
                "vpdpbusd zmm", $i1, ", zmm25, zmm26\n",
            )+
        )
    };
}

/// Word `$word` + `$i` of a token in all lanes.
macro_rules! word {
    ($a:ident $word:tt $i:tt) => {
        concat!("dword ptr [{", stringify!($a), "} + 4*", $word, " + 4*", $i, "]{{1to16}}")
    };
}

/// 16 columns by steps of `$dots`: words from `$word` on, codes from byte `$at` on.
macro_rules! half {
    ($dots:ident $at:tt $word:tt $($token:tt)+) => {
        concat!(
            $dots!($at $word 0 $($token)+),
            $dots!($at $word 1 $($token)+),
            $dots!($at $word 2 $($token)+),
            $dots!($at $word 3 $($token)+),
        )
    };
}

/// The integer sums start from word `$word` after that of the zero point.
macro_rules! start {
    ($word:tt $([$x:ident $y:ident $i0:tt $i1:tt $a:ident $n:tt])+) => {
        concat!($(
            "vpbroadcastd zmm", $i0, ", dword ptr [{", stringify!($a), "} + 4*{z} + 4*", $word, "]\n",
            "vmovdqa64 zmm", $i1, ", zmm", $i0, "\n",
        )+)
    };
}

/// The integer sums start from the bias.
macro_rules! start_even {
    ($([$x:ident $y:ident $i0:tt $i1:tt $a:ident $n:tt])+) => {
        concat!($(
            "vmovdqa64 zmm", $i0, ", {bias}\n",
            "vmovdqa64 zmm", $i1, ", {bias}\n",
        )+)
    };
}

/// chain = fma(fma(sum, s, −s·1.5·2²³), S, chain), with S from byte `$at` on.
macro_rules! scale {
    ($at:tt $([$x:ident $y:ident $i0:tt $i1:tt $a:ident $n:tt])+) => {
        concat!(
            "vmovaps zmm24, [{w} + ", $at, "]\n",
            "vmovaps zmm25, [{w} + ", $at, " + 64]\n",
            $(
                "vbroadcastss zmm26, dword ptr [{", stringify!($a), "} + 4*9]\n",
                "vfmadd132ps zmm", $i0, ", zmm26, ", word!($a 8 0), "\n",
                "vfmadd132ps zmm", $i1, ", zmm26, ", word!($a 8 0), "\n",
                "vfmadd231ps {", stringify!($x), "}, zmm", $i0, ", zmm24\n",
                "vfmadd231ps {", stringify!($y), "}, zmm", $i1, ", zmm25\n",
            )+
        )
    };
}

/// chain = fma(s·Σa, m, chain), with m from byte 128 on.
macro_rules! min {
    ($([$x:ident $y:ident $i0:tt $i1:tt $a:ident $n:tt])+) => {
        concat!(
            "vmovaps zmm24, [{w} + 128]\n",
            "vmovaps zmm25, [{w} + 192]\n",
            $(
                "vfmadd231ps {", stringify!($x), "}, zmm24, ", word!($a 10 0), "\n",
                "vfmadd231ps {", stringify!($y), "}, zmm25, ", word!($a 10 0), "\n",
            )+
        )
    };
}

/// A block of [`Kind::Wide`].
macro_rules! one_scale {
    ($dots:ident $($token:tt)+) => {
        concat!(
            start!(0 $($token)+),
            half!($dots 128 0 $($token)+),
            half!($dots 640 4 $($token)+),
            scale!(0 $($token)+),
            "/* {bias} */"
        )
    };
}

/// A block of [`Kind::WideMin`].
macro_rules! with_min {
    ($dots:ident $($token:tt)+) => {
        concat!(
            start_even!($($token)+),
            half!($dots 256 0 $($token)+),
            half!($dots 768 4 $($token)+),
            scale!(0 $($token)+),
            min!($($token)+),
            "/* {z} */"
        )
    };
}

/// A block of [`Kind::WideHalves`].
macro_rules! two_scales {
    ($dots:ident $($token:tt)+) => {
        concat!(
            start!(0 $($token)+),
            half!($dots 256 0 $($token)+),
            scale!(0 $($token)+),
            start!(1 $($token)+),
            half!($dots 768 4 $($token)+),
            scale!(128 $($token)+),
            "/* {bias} */"
        )
    };
}

/// A tile of as many tokens as are listed.
macro_rules! tile_of {
    ($name:ident $kind:ident $block:ident $([$x:ident $y:ident $i0:tt $i1:tt $a:ident $n:tt])+) => {
        #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
        unsafe fn $name(t: &ByteTile) {
            const C: usize = [$(stringify!($x)),+].len();
            // SAFETY: reads the tile's panels and tokens only, and writes its results.
            unsafe {
                let [$([mut $x, mut $y]),+] = load::<C>(t);
                t.prefetch_results::<2, C>();
                let bias = _mm512_set1_epi32(BIAS);
                let (mut weights, mut line, mut ahead) = (t.weights, t.line(t.first), t.ahead);
                let mut left = t.end - t.first;
                // One by one, where something is prefetched after each block.
                let step = if t.prefetches() { 1 } else { left };
                while left > 0 {
                    // After each block the requests of `ByteTile::prefetch_ahead`, in the loop so that they are spread.
                    asm!(
                        "2:",
                        $block!(dots $([$x $y $i0 $i1 $a $n])+),
                        $(concat!("add {", stringify!($a), "}, 64"),)+
                        "add {w}, {size}",
                        "mov {i}, {lines}",
                        "jmp 4f",
                        "3:",
                        "prefetcht1 [{ahead}]",
                        "prefetcht1 [{ahead} + {apart}]",
                        "add {ahead}, 64",
                        "4:",
                        "dec {i}",
                        "jns 3b",
                        "dec {blocks}",
                        "jnz 2b",
                        w = inout(reg) weights,
                        $($a = inout(reg) line.add($n * t.lines) => _,)+
                        z = in(reg) t.start,
                        bias = in(zmm_reg) bias,
                        size = const 2 * Kind::$kind.sizes().group,
                        blocks = inout(reg) step => _,
                        i = out(reg) _,
                        lines = in(reg) t.ahead_lines,
                        ahead = inout(reg) ahead,
                        apart = in(reg) t.panel_bytes,
                        $($x = inout(zmm_reg) $x, $y = inout(zmm_reg) $y,)+
                        out("zmm12") _, out("zmm13") _, out("zmm14") _, out("zmm15") _,
                        out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _,
                        out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
                        out("zmm24") _, out("zmm25") _, out("zmm26") _,
                        options(nostack, readonly)
                    );
                    t.prefetch_some();
                    line = line.wrapping_add(step);
                    left -= step;
                }
                store(t, [$([$x, $y]),+]);
            }
        }
    };
}

/// Residual lines in groups of as many as are listed.
macro_rules! residuals_of {
    ($name:ident $block:ident $([$x:ident $y:ident $i0:tt $i1:tt $a:ident $n:tt])+) => {
        #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
        unsafe fn $name(t: &ByteTile, groups: &[Group]) {
            let bias = _mm512_set1_epi32(BIAS);
            let mut ahead = t.ahead;
            for (i, group) in groups.iter().enumerate() {
                groups.get(i + 1).unwrap_or(group).prefetch();
                // SAFETY: reads blocks and lines only, and adds to their chains.
                unsafe {
                    let [$($a),+] = group.lines;
                    let chains = group.chains.map(|c| t.residuals.byte_add(c as usize).cast::<f32>());
                    let [$([mut $x, mut $y]),+] =
                        chains.map(|chain| [_mm512_load_ps(chain), _mm512_load_ps(chain.add(16))]);
                    asm!(
                        $block!(dots_by_register $([$x $y $i0 $i1 $a $n])+),
                        w = in(reg) t.weights.add(group.weights as usize),
                        $($a = in(reg) $a,)+
                        z = in(reg) t.start,
                        bias = in(zmm_reg) bias,
                        $($x = inout(zmm_reg) $x, $y = inout(zmm_reg) $y,)+
                        out("zmm12") _, out("zmm13") _, out("zmm14") _, out("zmm15") _,
                        out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _,
                        out("zmm24") _, out("zmm25") _, out("zmm26") _,
                        options(nostack, readonly, preserves_flags)
                    );
                    for (chain, [x, y]) in chains.into_iter().zip([$([$x, $y]),+]) {
                        _mm512_store_ps(chain, x);
                        _mm512_store_ps(chain.add(16), y);
                    }
                    ahead = t.prefetch_ahead::<2>(ahead);
                }
            }
        }
    };
}

/// The chains of each token so far.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load<const C: usize>(t: &ByteTile) -> [[__m512; 2]; C] {
    let mut chains = [[_mm512_setzero_ps(); 2]; C];
    for (c, chains) in chains.iter_mut().enumerate() {
        for (w, chain) in chains.iter_mut().enumerate() {
            // SAFETY: chains of the run before.
            unsafe {
                if t.resumes() {
                    *chain = _mm512_load_ps(t.chain(c, w));
                }
            }
        }
    }
    chains
}

/// Stores the chains of each token: to wait, or as results, the rows that exist.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store<const C: usize>(t: &ByteTile, chains: [[__m512; 2]; C]) {
    for (c, chains) in chains.into_iter().enumerate() {
        for (w, chain) in chains.into_iter().enumerate() {
            // SAFETY: where the next run looks for them; inside the results, as the caller vouches.
            unsafe {
                if t.waits() {
                    _mm512_store_ps(t.chain(c, w), chain);
                    continue;
                }
                let mut y = chain;
                if t.has_residuals() {
                    y = _mm512_add_ps(y, _mm512_load_ps(t.residual(c, w)));
                }
                let rows = (0xffff_u32 >> (PANEL_ROWS - t.rows[w])) as u16;
                let to = t.out.add(c * t.stride + w * PANEL_ROWS);
                _mm512_mask_storeu_ps(to, rows, _mm512_add_ps(y, _mm512_setzero_ps()));
            }
        }
    }
}

/// [`super::tiles::Tiles::residual_lines`].
///
/// # Safety
/// As [`tile`].
pub(super) unsafe fn residual_lines<K: OfKind>(t: &ByteTile, groups: &[Group]) {
    // SAFETY: passed on.
    unsafe {
        match K::KIND {
            Kind::Wide => scale_residuals(t, groups),
            Kind::WideMin => min_residuals(t, groups),
            _ => halves_residuals(t, groups),
        }
    }
}

/// A tile of the first token of a list, of the first two, and so on.
macro_rules! tiles_of {
    ($kind:ident $block:ident [$($before:tt)*]) => {};
    ($kind:ident $block:ident [$($before:tt)*] $name:ident $token:tt $($rest:tt)*) => {
        tile_of!($name $kind $block $($before)* $token);
        tiles_of!($kind $block [$($before)* $token] $($rest)*);
    };
}

/// The tiles of 1 to 6 tokens of a kind.
macro_rules! tiles {
    ($all:ident $kind:ident $block:ident $one:ident $two:ident $three:ident $four:ident $five:ident
     $six:ident $residuals:ident) => {
        const $all: [unsafe fn(&ByteTile); TOKENS] = [$one, $two, $three, $four, $five, $six];
        tiles_of! {
            $kind $block []
            $one [x0 y0 "12" "13" a 0]
            $two [x1 y1 "14" "15" b 1]
            $three [x2 y2 "16" "17" c 2]
            $four [x3 y3 "18" "19" d 3]
            $five [x4 y4 "20" "21" e 4]
            $six [x5 y5 "22" "23" f 5]
        }
        residuals_of! {
            $residuals $block
            [x0 y0 "12" "13" a 0] [x1 y1 "14" "15" b 1] [x2 y2 "16" "17" c 2] [x3 y3 "18" "19" d 3]
        }
    };
}

tiles!(ONE_SCALE Wide one_scale scale_1 scale_2 scale_3 scale_4 scale_5 scale_6 scale_residuals);
tiles!(WITH_MIN WideMin with_min min_1 min_2 min_3 min_4 min_5 min_6 min_residuals);
tiles!(TWO_SCALES WideHalves two_scales halves_1 halves_2 halves_3 halves_4 halves_5 halves_6 halves_residuals);
