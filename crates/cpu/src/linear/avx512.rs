//! The int8 chain with AVX-512 VNNI: lanes are rows, so each lane runs the scalar chain.
//!
//! A tile is W panels × C tokens: one `vpdpbusd` per panel, token and 4 columns, with the
//! token's 4 bytes broadcast. Integer sums and f32 results both stay in registers, which
//! holds for 2 × 6. With few tokens a tile reads the panels themselves; with many, two
//! panels at a time are first expanded to bytes and f32 scales, once for all tokens.

use std::arch::x86_64::*;

use tokenmill_quant::panel::{BLOCK_COLS, Group, PANEL_ROWS, PanelLayout};

use super::encode::{BIAS, SCALE, SCALE_BIAS, SUM, start_word};
use super::{Encoding, Line, LinearJob};

/// Tokens in the widest tile.
const TOKENS: usize = 6;
/// From this many tokens on, expanding panels first pays.
const EXPAND_FROM: usize = 24;
/// Encoded tokens kept in the L2 cache while panels pass by, in bytes.
const L2_BYTES: usize = 1 << 20;
/// How far ahead of the codes a tile prefetches, in bytes.
const PREFETCH: usize = 4096;

/// What a kernel is made for: a layout as stored, or one of three expanded forms.
mod kind {
    use super::PanelLayout;
    pub const ZERO4: u8 = PanelLayout::Zero4 as u8;
    pub const MIN4: u8 = PanelLayout::Min4 as u8;
    pub const ZERO5: u8 = PanelLayout::Zero5 as u8;
    pub const MIN5: u8 = PanelLayout::Min5 as u8;
    pub const ZERO8: u8 = PanelLayout::Zero8 as u8;
    pub const SUPER4: u8 = PanelLayout::Super4 as u8;
    pub const SUPER5: u8 = PanelLayout::Super5 as u8;
    pub const SUPER6: u8 = PanelLayout::Super6 as u8;
    pub const TABLE4: u8 = PanelLayout::Table4 as u8;
    /// Bytes, zero point, f32 scale per 32.
    pub const WIDE: u8 = 100;
    /// Bytes, f32 scale and minimum per 32.
    pub const WIDE_MIN: u8 = 101;
    /// Bytes, zero point, f32 scale per 16.
    pub const WIDE_HALVES: u8 = 102;
}

/// Geometry of a kind. Expanded: 8 lines of codes after their scales, a block to a group.
const fn group_of(kind: u8) -> Group {
    const STORED: [PanelLayout; 9] = [
        PanelLayout::Zero4,
        PanelLayout::Min4,
        PanelLayout::Zero5,
        PanelLayout::Min5,
        PanelLayout::Zero8,
        PanelLayout::Super4,
        PanelLayout::Super5,
        PanelLayout::Super6,
        PanelLayout::Table4,
    ];
    let scale_bytes = match kind {
        kind::WIDE => 64,
        kind::WIDE_MIN | kind::WIDE_HALVES => 128,
        _ => match STORED[kind as usize].group() {
            Some(group) => return group,
            None => panic!("integer layouts only"),
        },
    };
    Group { blocks: 1, scale_bytes, low_bytes: 512, high_bytes: 0 }
}

const fn has_min(kind: u8) -> bool {
    use kind::{MIN4, MIN5, SUPER4, SUPER5, WIDE_MIN};
    matches!(kind, MIN4 | MIN5 | SUPER4 | SUPER5 | WIDE_MIN)
}

const fn has_halves(kind: u8) -> bool {
    matches!(kind, kind::SUPER6 | kind::WIDE_HALVES)
}

/// Computes a job of the int8 encoding.
///
/// # Safety
/// As [`super::linear`]; `job.check()` has passed and AVX-512 VNNI is available.
pub(super) unsafe fn linear(job: &LinearJob<'_>, scratch: &mut [Line]) {
    debug_assert!(job.encoding == Encoding::Int8);
    // SAFETY: passed on.
    unsafe {
        match job.spec.layout() {
            PanelLayout::Zero4 => run::<{ kind::ZERO4 }>(job, scratch),
            PanelLayout::Min4 => run::<{ kind::MIN4 }>(job, scratch),
            PanelLayout::Zero5 => run::<{ kind::ZERO5 }>(job, scratch),
            PanelLayout::Min5 => run::<{ kind::MIN5 }>(job, scratch),
            PanelLayout::Zero8 => run::<{ kind::ZERO8 }>(job, scratch),
            PanelLayout::Super4 => run::<{ kind::SUPER4 }>(job, scratch),
            PanelLayout::Super5 => run::<{ kind::SUPER5 }>(job, scratch),
            PanelLayout::Super6 => run::<{ kind::SUPER6 }>(job, scratch),
            PanelLayout::Table4 => run::<{ kind::TABLE4 }>(job, scratch),
            PanelLayout::Bf16 | PanelLayout::F16 | PanelLayout::F32 => {
                unreachable!("float layouts are not encoded as bytes")
            }
        }
    }
}

/// One call of a tile kernel.
#[derive(Clone, Copy)]
struct Tile {
    /// First panel; the second, if any, follows at `panel_bytes`.
    weights: *const u8,
    panel_bytes: usize,
    /// Blocks of 32 columns.
    blocks: usize,
    /// First token, and lines from one to the next.
    input: *const Line,
    lines: usize,
    /// Word of a line that integer sums start from.
    start: usize,
    /// First result, and f32s from one token to the next.
    out: *mut f32,
    stride: usize,
    /// Rows of each panel that exist.
    masks: [u16; 2],
}

type Kernel = unsafe fn(&Tile);

/// The kernels of one kind by panels (1, 2) and tokens (1–6).
const fn kernels<const KIND: u8>() -> [[Kernel; TOKENS]; 2] {
    [
        [
            tile::<KIND, 1, 1>,
            tile::<KIND, 1, 2>,
            tile::<KIND, 1, 3>,
            tile::<KIND, 1, 4>,
            tile::<KIND, 1, 5>,
            tile::<KIND, 1, 6>,
        ],
        [
            tile::<KIND, 2, 1>,
            tile::<KIND, 2, 2>,
            tile::<KIND, 2, 3>,
            tile::<KIND, 2, 4>,
            tile::<KIND, 2, 5>,
            tile::<KIND, 2, 6>,
        ],
    ]
}

/// Goes over tokens by what fits the L2 cache, panels by two, tokens by at most six.
unsafe fn run<const KIND: u8>(job: &LinearJob<'_>, scratch: &mut [Line]) {
    let lines = job.encoding.lines(job.spec.cols());
    let in_cache = (L2_BYTES / 64 / lines).max(TOKENS) / TOKENS * TOKENS;
    let expand = job.tokens >= EXPAND_FROM && KIND != kind::ZERO8;
    let wide = match (has_min(KIND), has_halves(KIND)) {
        (true, _) => kind::WIDE_MIN,
        (_, true) => kind::WIDE_HALVES,
        _ => kind::WIDE,
    };
    let kernels = match (expand, wide) {
        (false, _) => const { kernels::<KIND>() },
        (_, kind::WIDE_MIN) => const { kernels::<{ kind::WIDE_MIN }>() },
        (_, kind::WIDE_HALVES) => const { kernels::<{ kind::WIDE_HALVES }>() },
        _ => const { kernels::<{ kind::WIDE }>() },
    };
    let blocks = job.spec.cols() / BLOCK_COLS;
    for first in (0..job.tokens).step_by(in_cache) {
        let tokens = in_cache.min(job.tokens - first);
        for p in job.panels.clone().step_by(2) {
            let panels = 2.min(job.panels.end - p);
            let mut masks = [0; 2];
            for (i, mask) in masks.iter_mut().enumerate().take(panels) {
                *mask = u16::MAX >> (PANEL_ROWS - job.rows_of_panel(p + i));
            }
            let mut weights = job.weights[p * job.spec.panel_bytes()..].as_ptr();
            let mut panel_bytes = job.spec.panel_bytes();
            if expand {
                let wide_bytes = group_of(wide).bytes() * blocks;
                assert!(scratch.len() * 64 >= panels * wide_bytes);
                let to = scratch.as_mut_ptr().cast::<u8>();
                for i in 0..panels {
                    // SAFETY: panel p + i is in the weights, its expansion in the scratch.
                    unsafe {
                        let from = weights.add(i * panel_bytes);
                        widen::<KIND>(from, blocks, to.add(i * wide_bytes));
                    }
                }
                (weights, panel_bytes) = (to.cast_const(), wide_bytes);
            }
            let groups = tokens.div_ceil(TOKENS);
            for g in 0..groups {
                // Groups as even as can be: 7 tokens are 4 + 3, not 6 + 1.
                let (from, to) = (g * tokens / groups, (g + 1) * tokens / groups);
                let t = first + from;
                let tile = Tile {
                    weights,
                    panel_bytes,
                    blocks,
                    input: job.input[t * lines..].as_ptr(),
                    lines,
                    start: start_word(job.spec.layout().zero()).unwrap_or(0),
                    // SAFETY: row t and panel p are inside the output.
                    out: unsafe { job.out.start.add(t * job.out.stride + p * PANEL_ROWS) },
                    stride: job.out.stride,
                    masks,
                };
                // SAFETY: `check` found the buffers as large as the shapes; the masks keep
                // stores inside the rows that exist.
                unsafe { kernels[panels - 1][to - from - 1](&tile) };
            }
        }
    }
}

/// W panels × C tokens over all columns.
///
/// # Safety
/// The pointers of `t` cover W panels and C tokens of `blocks` blocks; AVX-512 VNNI is there.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
unsafe fn tile<const KIND: u8, const W: usize, const C: usize>(t: &Tile) {
    let group = const { group_of(KIND) };
    let mut acc = [[_mm512_setzero_ps(); C]; W];
    let mut block = 0;
    let mut scales = t.weights;
    // SAFETY: all pointers stay inside what the caller vouches for; prefetches may not.
    unsafe {
        while block < t.blocks {
            for b in 0..group.blocks.min(t.blocks - block) {
                let codes = scales.add(group.scale_bytes + b * group.block_bytes());
                let line = t.input.add(block + b);
                for w in 0..W {
                    for i in 0..group.block_bytes() / 64 {
                        let at = codes.wrapping_add(w * t.panel_bytes + 64 * i + PREFETCH);
                        _mm_prefetch::<_MM_HINT_T0>(at.cast());
                    }
                }
                add_block::<KIND, W, C>(t, scales, b, codes, line, &mut acc);
            }
            block += group.blocks;
            scales = scales.add(group.bytes());
        }
        for w in 0..W {
            for c in 0..C {
                let to = t.out.add(c * t.stride + w * PANEL_ROWS);
                _mm512_mask_storeu_ps(to, t.masks[w], acc[w][c]);
            }
        }
    }
}

/// Word `word` of token c's line, in all lanes.
#[inline(always)]
unsafe fn word(t: &Tile, line: *const Line, c: usize, word: usize) -> __m512i {
    // SAFETY: the line is inside the input.
    unsafe { _mm512_set1_epi32(*line.add(c * t.lines).cast::<i32>().add(word)) }
}

/// Adds one block to the chains of a tile.
#[inline(always)]
unsafe fn add_block<const KIND: u8, const W: usize, const C: usize>(
    t: &Tile,
    scales: *const u8,
    b: usize,
    codes: *const u8,
    line: *const Line,
    acc: &mut [[__m512; C]; W],
) {
    // SAFETY: as the caller.
    unsafe {
        let mut sums = [[_mm512_setzero_si512(); C]; W];
        start::<KIND, W, C>(t, line, 0, &mut sums);
        add_step::<KIND, 0, W, C>(t, codes, line, &mut sums);
        add_step::<KIND, 1, W, C>(t, codes, line, &mut sums);
        if has_halves(KIND) {
            scale_sums::<KIND, 0, W, C>(t, scales, b, line, &sums, acc);
            start::<KIND, W, C>(t, line, 1, &mut sums);
        }
        add_step::<KIND, 2, W, C>(t, codes, line, &mut sums);
        add_step::<KIND, 3, W, C>(t, codes, line, &mut sums);
        scale_sums::<KIND, 1, W, C>(t, scales, b, line, &sums, acc);
    }
}

/// Starts the integer sums: the bits of 1.5·2²³, less what the zero point adds.
#[inline(always)]
unsafe fn start<const KIND: u8, const W: usize, const C: usize>(
    t: &Tile,
    line: *const Line,
    half: usize,
    sums: &mut [[__m512i; C]; W],
) {
    for c in 0..C {
        // SAFETY: as the caller.
        let from = unsafe {
            match has_min(KIND) {
                true => _mm512_set1_epi32(BIAS),
                false => word(t, line, c, t.start + half),
            }
        };
        for sums in &mut *sums {
            sums[c] = from;
        }
    }
}

/// Adds 8 columns, `STEP` of the block, to the integer sums.
#[inline(always)]
unsafe fn add_step<const KIND: u8, const STEP: usize, const W: usize, const C: usize>(
    t: &Tile,
    codes: *const u8,
    line: *const Line,
    sums: &mut [[__m512i; C]; W],
) {
    // SAFETY: as the caller.
    unsafe {
        let mut q = [[_mm512_setzero_si512(); 2]; W];
        for (w, q) in q.iter_mut().enumerate() {
            *q = unpack::<KIND, STEP>(codes.add(w * t.panel_bytes));
        }
        for half in 0..2 {
            for c in 0..C {
                let a = word(t, line, c, 2 * STEP + half);
                for w in 0..W {
                    sums[w][c] = _mm512_dpbusd_epi32(sums[w][c], q[w][half], a);
                }
            }
        }
    }
}

/// Adds the scaled integer sums, and the minima, to the f32 chains.
#[inline(always)]
unsafe fn scale_sums<const KIND: u8, const HALF: usize, const W: usize, const C: usize>(
    t: &Tile,
    scales: *const u8,
    b: usize,
    line: *const Line,
    sums: &[[__m512i; C]; W],
    acc: &mut [[__m512; C]; W],
) {
    // SAFETY: as the caller.
    unsafe {
        for w in 0..W {
            let (scale, min) = scale_and_min::<KIND, HALF>(scales.add(w * t.panel_bytes), b);
            for c in 0..C {
                let biased = _mm512_castsi512_ps(sums[w][c]);
                let s = _mm512_castsi512_ps(word(t, line, c, SCALE));
                let bias = _mm512_castsi512_ps(word(t, line, c, SCALE_BIAS));
                let product = _mm512_fmadd_ps(biased, s, bias);
                acc[w][c] = _mm512_fmadd_ps(product, scale, acc[w][c]);
                if has_min(KIND) {
                    let sum = _mm512_castsi512_ps(word(t, line, c, SUM));
                    acc[w][c] = _mm512_fmadd_ps(sum, min, acc[w][c]);
                }
            }
        }
    }
}

/// Codes of columns 8·STEP .. +4 and +4 .. +8 of a block, as bytes.
#[inline(always)]
unsafe fn unpack<const KIND: u8, const STEP: usize>(codes: *const u8) -> [__m512i; 2] {
    use kind::{MIN5, SUPER5, SUPER6, TABLE4, ZERO5};
    // SAFETY: the block's planes are inside the panel.
    unsafe {
        let load = |at: usize| _mm512_loadu_si512(codes.add(at).cast());
        if group_of(KIND).low_bytes == 512 {
            return [load(128 * STEP), load(128 * STEP + 64)];
        }
        let nibbles = load(64 * STEP);
        let m = _mm512_set1_epi8(15);
        let low = _mm512_and_si512(nibbles, m);
        let high = _mm512_and_si512(_mm512_srli_epi16::<4>(nibbles), m);
        match KIND {
            ZERO5 | MIN5 | SUPER5 => {
                let plane = load(256);
                let [a, b] = match STEP {
                    0 => [_mm512_slli_epi16::<4>(plane), _mm512_slli_epi16::<3>(plane)],
                    1 => [_mm512_slli_epi16::<2>(plane), _mm512_slli_epi16::<1>(plane)],
                    2 => [plane, _mm512_srli_epi16::<1>(plane)],
                    _ => [_mm512_srli_epi16::<2>(plane), _mm512_srli_epi16::<3>(plane)],
                };
                [with_bits(low, a, 0x10), with_bits(high, b, 0x10)]
            }
            SUPER6 => {
                let plane = load(256 + 64 * (STEP / 2));
                let [a, b] = match STEP % 2 {
                    0 => [_mm512_slli_epi16::<4>(plane), _mm512_slli_epi16::<2>(plane)],
                    _ => [plane, _mm512_srli_epi16::<2>(plane)],
                };
                [with_bits(low, a, 0x30), with_bits(high, b, 0x30)]
            }
            TABLE4 => {
                // The doubled e2m1 values, raised by 16.
                let table =
                    _mm_setr_epi8(16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4);
                let table = _mm512_broadcast_i32x4(table);
                [_mm512_shuffle_epi8(table, low), _mm512_shuffle_epi8(table, high)]
            }
            _ => [low, high],
        }
    }
}

/// `code | (plane & bits)` byte by byte.
#[inline(always)]
unsafe fn with_bits(code: __m512i, plane: __m512i, bits: i8) -> __m512i {
    // SAFETY: AVX-512 F is available.
    unsafe { _mm512_ternarylogic_epi32::<0xf8>(code, plane, _mm512_set1_epi8(bits)) }
}

/// Scale (of half `HALF`) and minimum of block `b` of a group, for 16 rows.
#[inline(always)]
unsafe fn scale_and_min<const KIND: u8, const HALF: usize>(
    scales: *const u8,
    b: usize,
) -> (__m512, __m512) {
    use kind::{MIN4, MIN5, SUPER4, SUPER5, SUPER6, TABLE4, WIDE, WIDE_HALVES, WIDE_MIN};
    // SAFETY: the group's scales are inside the panel.
    unsafe {
        let none = _mm512_setzero_ps();
        let half = |at: usize| _mm512_cvtph_ps(_mm256_loadu_si256(scales.add(at).cast()));
        let full = |at: usize| _mm512_loadu_ps(scales.add(at).cast());
        let bytes = |at: usize| _mm_loadu_si128(scales.add(at).cast());
        match KIND {
            MIN4 | MIN5 => (half(0), half(32)),
            SUPER4 | SUPER5 => {
                let scale = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes(64 + 16 * b)));
                let min = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes(192 + 16 * b)));
                let min = _mm512_mul_ps(half(32), min);
                (_mm512_mul_ps(half(0), scale), _mm512_xor_ps(min, _mm512_set1_ps(-0.0)))
            }
            SUPER6 => {
                let scale = _mm512_cvtepi8_epi32(bytes(64 + 32 * b + 16 * HALF));
                (_mm512_mul_ps(half(0), _mm512_cvtepi32_ps(scale)), none)
            }
            TABLE4 => (power_of_two(_mm512_cvtepu8_epi32(bytes(16 * b))), none),
            WIDE => (full(0), none),
            WIDE_MIN => (full(0), full(64)),
            WIDE_HALVES => (full(64 * HALF), none),
            _ => (half(32 * b), none),
        }
    }
}

/// 2^(e − 128), subnormal for e < 2.
#[inline(always)]
unsafe fn power_of_two(e: __m512i) -> __m512 {
    // SAFETY: AVX-512 F is available.
    unsafe {
        let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(e, _mm512_set1_epi32(1)));
        let small = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), e);
        let is_small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
        _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_small, small))
    }
}

/// Expands one panel to bytes and f32 scales: `[block]` of the matching wide kind's group.
///
/// # Safety
/// `panel` holds `blocks` blocks of `KIND`, `to` room for their expansion; AVX-512 is there.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c,fma")]
unsafe fn widen<const KIND: u8>(panel: *const u8, blocks: usize, to: *mut u8) {
    let group = const { group_of(KIND) };
    let scale_bytes = if has_min(KIND) || has_halves(KIND) { 128 } else { 64 };
    // SAFETY: all pointers stay inside what the caller vouches for.
    unsafe {
        for block in 0..blocks {
            let scales = panel.add(block / group.blocks * group.bytes());
            let b = block % group.blocks;
            let codes = scales.add(group.scale_bytes + b * group.block_bytes());
            let to = to.add(block * (scale_bytes + 512));
            let (first, min) = scale_and_min::<KIND, 0>(scales, b);
            _mm512_storeu_ps(to.cast(), first);
            if has_min(KIND) {
                _mm512_storeu_ps(to.add(64).cast(), min);
            }
            if has_halves(KIND) {
                _mm512_storeu_ps(to.add(64).cast(), scale_and_min::<KIND, 1>(scales, b).0);
            }
            let steps = [
                unpack::<KIND, 0>(codes),
                unpack::<KIND, 1>(codes),
                unpack::<KIND, 2>(codes),
                unpack::<KIND, 3>(codes),
            ];
            for (i, vector) in steps.as_flattened().iter().enumerate() {
                _mm512_storeu_si512(to.add(scale_bytes + 64 * i).cast(), *vector);
            }
        }
    }
}
