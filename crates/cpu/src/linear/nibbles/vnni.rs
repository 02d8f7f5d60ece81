//! The same tiles where there is an instruction for dot products of bytes on 256 bits (AVX-VNNI): codes of any size,
//! a panel × up to six tokens. Compiled from Rust, three tokens already keep vectors on the stack.

use super::*;

/// Runs a tile of 1 to 6 tokens.
///
/// # Safety
/// The pointers of `t` cover a panel of kind `K`, one of those that this instruction set expands to, and the
/// tokens; AVX2, FMA, F16C and AVX-VNNI are available.
pub(in super::super) unsafe fn tile<K: OfKind>(tokens: usize, t: &ByteTile) {
    let of_kind: &[unsafe fn(&ByteTile)] = match (K::KIND, t.start) {
        (Kind::Wide, 11) => &FROM_11,
        (Kind::Wide, 12) => &FROM_12,
        (Kind::Wide, 13) => &FROM_13,
        (Kind::WideMin, _) => &WITH_MIN,
        (Kind::WideHalves, _) => &TWO_SCALES,
        _ => unreachable!("{:?} is not expanded with AVX-VNNI", K::KIND),
    };
    // SAFETY: passed on.
    unsafe { of_kind[tokens - 1](t) }
}

/// The integer sums start from word `$word`.
macro_rules! start_from {
    ($word:tt $([$i0:tt $i1:tt $base:tt $plus:tt $c:tt])+) => {
        concat!($(
            "vbroadcastss ymm", $i0, ", dword ptr [{", $base, "}", $plus, " + 4*", $word, "]\n",
            "vmovdqa ymm", $i1, ", ymm", $i0, "\n",
        )+)
    };
}

/// The integer sums start from B.
macro_rules! start_from_bias {
    ($([$i0:tt $i1:tt $base:tt $plus:tt $c:tt])+) => {
        concat!($(
            "vmovdqa ymm", $i0, ", [{k} + 32]\n",
            "vmovdqa ymm", $i1, ", [{k} + 32]\n",
        )+)
    };
}

/// Step `$i` of 4 columns after byte `$at` and word `$word`.
macro_rules! dots {
    ($at:tt $word:tt $i:tt $([$i0:tt $i1:tt $base:tt $plus:tt $c:tt])+) => {
        concat!(
            codes!($at $i),
            $(
                word!("ymm14" $base $plus $word $i),
                "{{vex}} vpdpbusd ymm", $i0, ", ymm12, ymm14\n",
                "{{vex}} vpdpbusd ymm", $i1, ", ymm13, ymm14\n",
            )+
        )
    };
}

/// [`Kind::Wide`], by the word for its zero point.
macro_rules! one_scale {
    ($word:tt $($token:tt)+) => {
        concat!(
            start_from!($word $($token)+),
            sixteen!(dots dots 64 0 $($token)+), sixteen!(dots dots 320 4 $($token)+),
            scale!(0 $($token)+), store!($($token)+),
        )
    };
}

macro_rules! from_11 {
    ($($token:tt)+) => { one_scale!(11 $($token)+) };
}
macro_rules! from_12 {
    ($($token:tt)+) => { one_scale!(12 $($token)+) };
}
macro_rules! from_13 {
    ($($token:tt)+) => { one_scale!(13 $($token)+) };
}

/// [`Kind::WideMin`].
macro_rules! with_min {
    ($($token:tt)+) => {
        concat!(
            start_from_bias!($($token)+),
            sixteen!(dots dots 128 0 $($token)+), sixteen!(dots dots 384 4 $($token)+),
            scale!(0 $($token)+), min!(64 $($token)+), store!($($token)+),
        )
    };
}

/// [`Kind::WideHalves`].
macro_rules! two_scales {
    ($($token:tt)+) => {
        concat!(
            start_from!(14 $($token)+), sixteen!(dots dots 128 0 $($token)+),
            scale!(0 $($token)+), store!($($token)+),
            start_from!(15 $($token)+), sixteen!(dots dots 384 4 $($token)+),
            scale!(64 $($token)+), store!($($token)+),
        )
    };
}

tiles!(FROM_11 Wide from_11);
tiles!(FROM_12 Wide from_12);
tiles!(FROM_13 Wide from_13);
tiles!(WITH_MIN WideMin with_min);
tiles!(TWO_SCALES WideHalves two_scales);
