//! Blocks of a trellis made codes: the states of all columns, and what the code book makes of them.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

use crate::panel::trellis::{block, rest_bits};
use tokenmill_quant::exl3::{Codebook, MCG, MUL1, THREE_INST, THREE_INST_PLUS};

use super::tiles::{Tiles, TrellisBlocks};

/// Calls a function that is compiled for a code book and for bits.
macro_rules! of_trellis {
    ($of:expr, $name:ident($($arg:expr),*)) => {
        match $of {
            $crate::linear::tiles::Trellis { codebook: Codebook::ThreeInst, bits } => {
                of_trellis!(0, bits, $name($($arg),*))
            }
            $crate::linear::tiles::Trellis { codebook: Codebook::Mcg, bits } => {
                of_trellis!(1, bits, $name($($arg),*))
            }
            $crate::linear::tiles::Trellis { codebook: Codebook::Mul1, bits } => {
                of_trellis!(2, bits, $name($($arg),*))
            }
        }
    };
    ($book:literal, $bits:expr, $name:ident($($arg:expr),*)) => {
        match $bits {
            1 => $name::<$book, 1>($($arg),*),
            2 => $name::<$book, 2>($($arg),*),
            3 => $name::<$book, 3>($($arg),*),
            4 => $name::<$book, 4>($($arg),*),
            5 => $name::<$book, 5>($($arg),*),
            6 => $name::<$book, 6>($($arg),*),
            7 => $name::<$book, 7>($($arg),*),
            _ => $name::<$book, 8>($($arg),*),
        }
    };
}
pub(super) use of_trellis;

/// Vectors of codes of a block: that of symbol j of vector q is 4q + j.
pub(super) const VECTORS: usize = 16;
/// How far ahead of the blocks it reads the kernel prefetches, in bytes.
const PREFETCH: usize = 4096;

/// The body of [`Tiles::trellis_codes`].
///
/// # Safety
/// The pointers cover the blocks and their codes.
#[inline(always)]
pub(super) unsafe fn codes<V: Tiles, const BOOK: u8, const BITS: usize>(blocks: &TrellisBlocks) {
    // SAFETY: the caller's.
    unsafe {
        for b in 0..blocks.count {
            let to = blocks.to.add(VECTORS * b).cast::<u8>();
            let windows = Windows::<V, BITS>::of(blocks.from.add(b * block(BITS)));
            windows.store::<BOOK, 0>(to);
            windows.store::<BOOK, 1>(to);
            windows.store::<BOOK, 2>(to);
            windows.store::<BOOK, 3>(to);
        }
    }
}

/// What the states of a block are made from.
pub(super) struct Windows<V: Tiles, const BITS: usize> {
    /// The 16 bits that end with the last symbol of each group.
    ends: [V::Int; 4],
    /// Those of the groups that the ring has before them.
    before: [V::Int; 4],
    /// What of the groups is above 16 bits.
    above: [V::Int; 4],
}

impl<V: Tiles, const BITS: usize> Windows<V, BITS> {
    /// Of a block, with others prefetched.
    ///
    /// # Safety
    /// The block is there.
    #[inline(always)]
    pub unsafe fn of(from: *const u8) -> Self {
        // SAFETY: the caller's: a block has as many vectors as bits; prefetches may name any address.
        unsafe {
            for line in 0..BITS {
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(64 * line + PREFETCH).cast());
            }
            let (ends, above) = match BITS {
                0..4 => {
                    let rest = rest::<V>(BITS, from);
                    let twice = longer::<V>(rest, before::<V>(rest), 4 * BITS as u32);
                    let far = before::<V>(before::<V>(twice));
                    (if BITS == 1 { longer::<V>(twice, far, 8) } else { twice }, rest)
                }
                4 => (load::<V>(from), load::<V>(from)),
                _ => (load::<V>(from), rest::<V>(BITS, from.add(256))),
            };
            Self { ends, before: before::<V>(ends), above }
        }
    }

    /// `sum` + the products of the codes of vector Q with the words of a token.
    ///
    /// # Safety
    /// There are as many words as vectors of codes.
    #[inline(always)]
    pub unsafe fn dot<const BOOK: u8, const Q: usize>(
        &self,
        mut sum: V::Int,
        words: *const i32,
    ) -> V::Int {
        // SAFETY: the caller's.
        unsafe {
            for (j, state) in self.states::<Q>().into_iter().enumerate() {
                let word = V::int(V::same_at(words.add(4 * Q + j)));
                sum = V::dot_shorts(sum, code::<V, BOOK>(state), word);
            }
        }
        sum
    }

    /// Stores the codes of vector Q.
    #[inline(always)]
    unsafe fn store<const BOOK: u8, const Q: usize>(&self, to: *mut u8) {
        // SAFETY: the caller's.
        unsafe {
            for (j, state) in self.states::<Q>().into_iter().enumerate() {
                V::store(code::<V, BOOK>(state), to.add(64 * (4 * Q + j)));
            }
        }
    }

    /// The states of the four symbols of vector Q.
    #[inline(always)]
    unsafe fn states<const Q: usize>(&self) -> [V::Int; 4] {
        let (bits, end, before) = (BITS as u32, self.ends[Q], self.before[Q]);
        // SAFETY: the caller's.
        unsafe {
            if BITS <= 4 {
                let of = |left: u32| (left * bits, (4 - left) * bits);
                let [first, second, third] = [of(3), of(2), of(1)];
                return [
                    join::<V>(end, first.0, before, first.1),
                    join::<V>(end, second.0, before, second.1),
                    join::<V>(end, third.0, before, third.1),
                    end,
                ];
            }
            // The 16 bits that end with symbol 1.
            let above = V::left_by(self.above[Q], 16 - 2 * bits);
            let middle = V::with_bits(join::<V>(end, 2 * bits, before, 2 * bits), above, -1);
            let first = join::<V>(middle, bits, before, bits);
            [first, middle, join::<V>(end, bits, middle, bits), end]
        }
    }
}

/// `low` without its `less` lowest bits, and `high` with room for `room` below it.
#[inline(always)]
unsafe fn join<V: Tiles>(low: V::Int, less: u32, high: V::Int, room: u32) -> V::Int {
    // SAFETY: the caller's.
    unsafe { V::with_bits(V::right_by(low, less), V::left_by(high, room), -1) }
}

/// Four vectors.
#[inline(always)]
unsafe fn load<V: Tiles>(from: *const u8) -> [V::Int; 4] {
    // SAFETY: the caller's.
    unsafe {
        [V::load(from), V::load(from.add(64)), V::load(from.add(128)), V::load(from.add(192))]
    }
}

/// Bits of groups that lie together.
#[inline(always)]
unsafe fn rest<V: Tiles>(bits: usize, from: *const u8) -> [V::Int; 4] {
    // SAFETY: the caller's.
    unsafe {
        match rest_bits(bits) {
            4 => {
                let all = V::load(from);
                let [a, b] = [V::left::<12>(all), V::left::<8>(all)];
                let c = V::left::<4>(all);
                [V::right::<12>(a), V::right::<12>(b), V::right::<12>(c), V::right::<12>(all)]
            }
            8 => {
                let (a, b) = (V::load(from), V::load(from.add(64)));
                let [low, lower] = [V::left::<8>(a), V::left::<8>(b)];
                [V::right::<8>(low), V::right::<8>(a), V::right::<8>(lower), V::right::<8>(b)]
            }
            12 => {
                let [a, b, c] = [V::load(from), V::load(from.add(64)), V::load(from.add(128))];
                let high = V::with_bits(V::right::<12>(a), V::right::<8>(b), 0xf0_u8 as i8);
                let high = V::with_bits(high, V::left::<8>(V::right::<12>(c)), -1);
                let [low, lower, lowest] = [V::left::<4>(a), V::left::<4>(b), V::left::<4>(c)];
                [V::right::<4>(low), V::right::<4>(lower), V::right::<4>(lowest), high]
            }
            _ => load::<V>(from),
        }
    }
}

/// Bits with those before them above.
#[inline(always)]
unsafe fn longer<V: Tiles>(bits: [V::Int; 4], before: [V::Int; 4], by: u32) -> [V::Int; 4] {
    let mut all = bits;
    for (bits, before) in all.iter_mut().zip(before) {
        // SAFETY: the caller's.
        *bits = unsafe { V::with_bits(*bits, V::left_by(before, by), -1) };
    }
    all
}

/// What the ring has before the groups of all vectors.
#[inline(always)]
unsafe fn before<V: Tiles>(of: [V::Int; 4]) -> [V::Int; 4] {
    // SAFETY: the caller's.
    unsafe {
        let [a, b, c, d] = of;
        [V::middle(V::rotate_high(d), a), V::middle(a, b), V::middle(b, c), V::middle(c, d)]
    }
}

/// `Codebook::code` of 32 states.
#[inline(always)]
unsafe fn code<V: Tiles, const BOOK: u8>(states: V::Int) -> V::Int {
    let book = const { Codebook::of(BOOK) };
    let (factor, plus) = match book {
        Codebook::ThreeInst => (THREE_INST, THREE_INST_PLUS),
        Codebook::Mcg => (MCG, 0),
        Codebook::Mul1 => (MUL1, 0),
    };
    // SAFETY: the caller's.
    unsafe {
        let low = V::times_low(states, twice::<V>(factor));
        let carried = V::times_high(states, twice::<V>(factor));
        let high = V::plus16(carried, V::times_low(states, twice::<V>(factor >> 16)));
        match book {
            Codebook::Mul1 => V::plus16(V::byte_sums(low), V::byte_sums(high)),
            Codebook::Mcg => V::plus16(V::short_halves(low), V::short_halves(high)),
            Codebook::ThreeInst => {
                let sum = V::plus16(low, V::int(twice::<V>(plus)));
                let carried = V::plus16(high, V::int(twice::<V>((plus >> 16) + 1)));
                let high = V::plus16(carried, V::not_below(sum, low));
                V::plus16(V::short_halves(sum), V::short_halves(high))
            }
        }
    }
}

/// The lower half of `bits` in all 16-bit parts.
#[inline(always)]
unsafe fn twice<V: Tiles>(bits: u32) -> V::Same {
    // SAFETY: the caller's.
    unsafe { V::same((bits << 16 | bits & 0xffff) as i32) }
}
