//! Kinds whose codes are taken apart: tables of sixteen values, 2- and 3-bit codes, entries of code books; the scales of flat
//! ones, and of codes of floats.

use super::books;
use super::kind::{Kind, OfKind};
use crate::simd::Vector;

/// Runs `$run` with the kind of a coded weight as a constant.
macro_rules! with_kind {
    ($kind:expr, $name:ident => $run:expr) => {
        with_kind!($kind, $name => $run, [
            Super2 Super3 HalfTable Nvfp4 FloatTable16 Flat2 Flat2x64 Flat2x128 Flat3 Flat3x64 Flat3x128
            Flat4 Flat4x64 Flat4x128 Flat8 Flat8x64 Flat8x128
            TableIq4 TableIq12 Table16Iq12 TableIq3Xxs TableIq3S Ternary Iq1S Iq1M Iq2Xxs Iq2Xs Iq2S Iq3Xxs Iq3S
        ])
    };
    ($kind:expr, $name:ident => $run:expr, [$($of:ident)+]) => {
        match $kind {
            $(crate::linear::kind::Kind::$of => {
                type $name = crate::linear::kind::$of;
                $run
            })+
            other => unreachable!("{other:?} has a path of its own"),
        }
    };
}
pub(super) use with_kind;

/// Codes of columns 8·STEP .. +4 and +4 .. +8 of a block, as bytes.
///
/// # Safety
/// `codes` are those of a block of kind `K`.
#[inline(always)]
pub(super) unsafe fn unpack<V: Vector, K: OfKind, const STEP: usize>(
    codes: *const u8,
) -> [V::Int; 2] {
    /// Codes 0–7 raised by 124.
    const THREE_BITS: [u8; 16] = [124, 125, 126, 127, 128, 129, 130, 131, 0, 0, 0, 0, 0, 0, 0, 0];
    /// Codes 0–3 raised by 7.
    const TERNARY: [u8; 16] = [7, 8, 9, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: the block's planes are inside the panel.
    unsafe {
        match K::KIND {
            Kind::Super2 => two_bits::<V, STEP>(codes),
            Kind::Flat2 | Kind::Flat2x64 | Kind::Flat2x128 => two_bits::<V, STEP>(codes),
            Kind::Flat3 | Kind::Flat3x64 | Kind::Flat3x128 => three_bits::<V, STEP>(codes),
            Kind::Iq1S | Kind::Iq1M => books::entries_of_values::<V, K, STEP>(codes),
            Kind::Ternary => {
                let [low, high] = two_bits::<V, STEP>(codes);
                [V::look_up(low, &TERNARY), V::look_up(high, &TERNARY)]
            }
            _ if const { K::KIND.is_book() } => {
                books::values::<V, K, STEP>(codes, books::signs::<V, K>(codes))
            }
            Kind::Super3 => {
                let [low, high] = three_bits::<V, STEP>(codes);
                [V::look_up(low, &THREE_BITS), V::look_up(high, &THREE_BITS)]
            }
            _ if const { K::KIND.sizes().low == 512 } => {
                [V::load(codes.add(128 * STEP)), V::load(codes.add(128 * STEP + 64))]
            }
            _ => {
                let nibbles = V::load(codes.add(64 * STEP));
                let [low, high] = [V::mask(nibbles, 15), V::mask(V::right::<4>(nibbles), 15)];
                if const { K::KIND.has_min() } {
                    return [low, high];
                }
                let table = const { K::KIND.table() };
                [V::look_up(low, table), V::look_up(high, table)]
            }
        }
    }
}

/// Three bits of each of columns 8·STEP .. +8.
///
/// # Safety
/// As [`unpack`].
#[inline(always)]
pub(super) unsafe fn three_bits<V: Vector, const STEP: usize>(codes: *const u8) -> [V::Int; 2] {
    // SAFETY: the block's planes are inside the panel.
    unsafe {
        let vector = |i: usize| V::load(codes.add(64 * i));
        let top = |i: usize| V::mask(V::right::<6>(vector(i)), 3);
        match STEP {
            0 => [V::mask(vector(0), 7), V::mask(V::right::<3>(vector(0)), 7)],
            1 => [V::mask(vector(1), 7), V::with_bits(top(0), V::right::<4>(vector(2)), 4)],
            2 => [V::mask(V::right::<3>(vector(1)), 7), V::mask(vector(2), 7)],
            _ => {
                let last = V::with_bits(top(1), V::right::<5>(vector(2)), 4);
                [V::mask(V::right::<3>(vector(2)), 7), last]
            }
        }
    }
}

/// Two bits of each of columns 8·STEP .. +8.
///
/// # Safety
/// As [`unpack`].
#[inline(always)]
pub(super) unsafe fn two_bits<V: Vector, const STEP: usize>(codes: *const u8) -> [V::Int; 2] {
    // SAFETY: as the caller.
    unsafe {
        let plane = V::load(codes.add(64 * (STEP / 2)));
        match STEP % 2 {
            0 => [V::mask(plane, 3), V::mask(V::right::<2>(plane), 3)],
            _ => [V::mask(V::right::<4>(plane), 3), V::mask(V::right::<6>(plane), 3)],
        }
    }
}

/// Scale and minimum of half `HALF` of block `b` of a group, for 16 rows.
///
/// # Safety
/// `scales` are those of a group of kind `K`.
#[inline(always)]
pub(super) unsafe fn scale_and_min<V: Vector, K: OfKind, const HALF: usize>(
    scales: *const u8,
    b: usize,
) -> (V::Float, V::Float) {
    use Kind::*;
    // SAFETY: the group's scales are inside the panel.
    unsafe {
        let full = |at: usize| V::floats(scales.add(at).cast());
        let none = V::float(V::same(0));
        match K::KIND {
            Super2 => {
                let of_block = scales.add(64 + 32 * b + 8 * HALF);
                let scale = V::to_float(V::fours(of_block));
                let min = V::mul(V::f16s(scales.add(32)), V::to_float(V::fours(of_block.add(16))));
                let min = V::sub(V::float(V::same((-0.0_f32).to_bits() as i32)), min);
                (V::mul(V::f16s(scales), scale), min)
            }
            Super3 => {
                let of_block = scales.add(32 + 24 * b);
                let low = V::lanes(of_block);
                let six = match HALF {
                    0 => V::mask(low, 63),
                    _ => {
                        let high = V::left::<2>(V::fours(of_block.add(16)));
                        V::with_bits(V::right::<6>(low), high, 60)
                    }
                };
                let scale = V::to_float(V::plus32(six, V::int(V::same(-32))));
                (V::mul(V::f16s(scales), scale), none)
            }
            Ternary => (V::f16s(scales), none),
            Iq2Xxs | Iq2Xs | Iq2S | Iq3Xxs | Iq3S => (books::scale::<V, K, HALF>(scales, b), none),
            Iq1S | Iq1M => (books::scale_of_values::<V, K, HALF>(scales, b), none),
            TableIq4 | TableIq12 | TableIq3Xxs | TableIq3S => {
                (V::mul(full(0), V::signed(scales.add(64 + 16 * b))), none)
            }
            Table16Iq12 => (V::mul(full(0), V::signed(scales.add(64 + 32 * b + 16 * HALF))), none),
            HalfTable => (V::f16s(scales.add(32 * b)), none),
            Nvfp4 => {
                let half = V::float(V::same((0.5 * V::E4M3_UNIT).to_bits() as i32));
                (V::mul(V::e4m3(V::lanes(scales.add(16 * HALF)), 0), half), none)
            }
            FloatTable16 => (full(64 * HALF), none),
            Float8 => {
                let unit = V::float(V::same(V::E4M3_UNIT.to_bits() as i32));
                (V::mul(full(0), unit), none)
            }
            LookupNf4 | LookupFp4 => (full(0), none),
            FullHalves => (full(64 * HALF), none),
            FullHalvesMin => (full(64 * HALF), full(128 + 64 * HALF)),
            _ => (full(0), full(64)),
        }
    }
}
