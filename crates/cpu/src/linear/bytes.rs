//! The int8 chain on vectors: lanes are rows, so each lane runs the scalar chain.
//!
//! A tile is W panels × C tokens: one dot product per panel, token and 4 columns, with the
//! token's 4 bytes the same in all lanes. Integer sums and f32 results both stay in
//! registers. With few tokens a tile reads the panels themselves; with many, the panels of a
//! tile are first expanded to bytes and f32 scales, once for all tokens.

#![allow(clippy::needless_range_loop)] // tiles are indexed by panel and token

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::mem::MaybeUninit;
use std::ops::Range;

use crate::panel::{BLOCK_COLS, PANEL_ROWS, PanelLayout};

use super::coded::{self, with_kind};
use super::encode::{BIAS, HALF_SUM, SCALE, SCALE_BIAS, SUM, start_word};
use super::kind::{self, Kind, OfKind};
use super::nibbles::SIGNS_TOKENS;
use super::residuals::{self, Residuals};
use super::tiles::{ByteTile, Group, TOGETHER, Tiles};
use super::walk::Walk;
use super::{Line, LinearJob, WIDE_LINES, chain_lines, groups, parts, run_of, tiles_at_once};

/// How far ahead of the codes a tile prefetches, in bytes.
pub(super) const PREFETCH: usize = 8192;

/// Computes a job of the int8 encoding.
///
/// # Safety
/// As [`super::linear`]; `job.check()` has passed and the instruction set is available.
pub(super) unsafe fn linear<V: Tiles>(job: &LinearJob<'_>, scratch: &mut [Line]) {
    // SAFETY: passed on.
    unsafe {
        match job.spec.layout() {
            PanelLayout::Zero4 => run::<V, kind::Zero4>(job, scratch),
            PanelLayout::Min4 => run::<V, kind::Min4>(job, scratch),
            PanelLayout::Zero5 => run::<V, kind::Zero5>(job, scratch),
            PanelLayout::Min5 => run::<V, kind::Min5>(job, scratch),
            PanelLayout::Zero8 => run::<V, kind::Zero8>(job, scratch),
            PanelLayout::Super4 => run::<V, kind::Super4>(job, scratch),
            PanelLayout::Super5 => run::<V, kind::Super5>(job, scratch),
            PanelLayout::Super6 => run::<V, kind::Super6>(job, scratch),
            PanelLayout::Table4 => run::<V, kind::Table4>(job, scratch),
            layout if !layout.is_integer() => {
                unreachable!("float layouts are not encoded as bytes")
            }
            _ => with_kind!(Kind::of(&job.spec), K => run::<V, K>(job, scratch)),
        }
    }
}

/// Goes over tokens by what fits the L2 cache, then panels by tiles.
unsafe fn run<V: Tiles, K: OfKind>(job: &LinearJob<'_>, scratch: &mut [Line]) {
    if job.tokens <= V::TWO_STREAMS {
        // SAFETY: passed on.
        return unsafe { run_few::<V, K>(job) };
    }
    let panels = V::BYTE_TILE.0;
    let expanded = job.tokens >= const { expand_from::<V>(K::KIND) };
    let wide = expanded && const { K::KIND.expanded(V::EXPANDS).is_wide() };
    let full = expanded && !wide;
    for tokens in parts(V::ISA, &job.spec, job.encoding, 0..job.tokens) {
        let tile = ByteTile::new(job, 0, None);
        let lines = if wide { residuals::scratch_lines(tokens.len(), tile.blocks) } else { 0 };
        let (scratch, residuals) = scratch.split_at_mut(scratch.len() - lines);
        let residuals = if wide {
            let input = &job.input[tokens.start * tile.lines..tokens.end * tile.lines];
            Residuals::list::<V, K>(&tile, input, residuals)
        } else {
            Residuals::NONE
        };
        let tiles = if wide { tiles_at_once(V::ISA, tile.blocks) } else { 1 };
        for p in job.panels.clone().step_by(panels * tiles) {
            // SAFETY: passed on.
            unsafe {
                let tile = ByteTile::at::<V>(job, p);
                if full {
                    run_full::<V, K>(job, tile, p, tokens.clone(), scratch);
                } else if wide {
                    let some = p..(p + panels * tiles).min(job.panels.end);
                    run_wide::<V, K>(job, some, tokens.clone(), &residuals, scratch);
                } else {
                    run_tokens::<V, K>(job, tile, p, tokens.clone(), V::BYTE_TILE.1);
                }
            }
        }
    }
}

/// Tokens from which on expanding panels of a kind pays: entries of tables and code books are dear to take apart.
const fn expand_from<V: Tiles>(kind: Kind) -> usize {
    let dear = kind.is_book() || kind.is_value_book() || kind.is_table();
    if dear && V::EXPAND_FROM > 5 { 5 } else { V::EXPAND_FROM }
}

/// Few tokens on packed panels, each with one from the other half of them: a core reads two streams of memory
/// faster than one, or than two that end with every panel.
unsafe fn run_few<V: Tiles, K: OfKind>(job: &LinearJob<'_>) {
    let half = job.panels.len().div_ceil(2);
    for p in job.panels.clone().take(half) {
        let tile = ByteTile::new(job, p, Some(p + half).filter(|&p| p < job.panels.end));
        // SAFETY: passed on.
        unsafe { run_tokens::<V, K>(job, tile, p, 0..job.tokens, V::BYTE_TILE.1) }
    }
}

impl ByteTile {
    /// Of panel `p`, and of the next where a tile has two.
    fn at<V: Tiles>(job: &LinearJob<'_>, p: usize) -> ByteTile {
        ByteTile::new(job, p, Some(p + 1).filter(|&p| V::BYTE_TILE.0 == 2 && p < job.panels.end))
    }

    /// Of a panel and, where there is one, a second. Without it a tile of two reads the first again and
    /// stores nothing for the other: half the kernels to make.
    // (Inlined, so that what is the same for all panels of a job is computed once: a single token has few other instructions.)
    #[inline(always)]
    fn new(job: &LinearJob<'_>, p: usize, second: Option<usize>) -> ByteTile {
        let panel_bytes = job.spec.panel_bytes();
        let blocks = job.spec.cols() / BLOCK_COLS;
        let further = second.map_or(0, |second| second - p);
        let prefetch = job.prefetch.filter(|prefetch| prefetch.is_left());
        ByteTile {
            weights: job.weights[p * panel_bytes..].as_ptr(),
            panel_bytes: further * panel_bytes,
            blocks,
            first: 0,
            end: blocks,
            input: job.input.as_ptr(),
            lines: job.encoding.lines(job.spec.cols()),
            start: start_word(job.spec.layout().zero()).unwrap_or(0),
            out: job.out.start,
            stride: job.out.stride,
            apart: further * PANEL_ROWS,
            rows: [job.rows_of_panel(p), second.map_or(0, |second| job.rows_of_panel(second))],
            narrow: false,
            chains: std::ptr::null_mut(),
            residuals: std::ptr::null_mut(),
            residual_of: std::ptr::null(),
            ahead: std::ptr::null(),
            ahead_lines: 0,
            ahead_left: 0,
            prefetch: prefetch.map_or(std::ptr::null(), std::ptr::from_ref),
        }
    }
}

/// Runs the packed or expanded blocks of a tile's panels on some tokens, in groups of up to `most`.
unsafe fn run_tokens<V: Tiles, K: OfKind>(
    job: &LinearJob<'_>,
    mut tile: ByteTile,
    p: usize,
    tokens: Range<usize>,
    most: usize,
) {
    for of_group in groups(tokens, most) {
        let first = of_group.start;
        tile.input = job.input[first * tile.lines..].as_ptr();
        // SAFETY: `check` found every buffer as large as the shapes say, and a tile stores only
        // rows that exist.
        unsafe {
            tile.out = job.out.start.add(first * tile.stride + p * PANEL_ROWS);
            V::byte_tile::<K>(of_group.len(), &tile);
        }
        tile.prefetched(tile.end - tile.first);
        tile.chains = tile.chains.wrapping_add(2 * of_group.len());
        tile.residual_of = tile.residual_of.wrapping_add(of_group.len());
    }
}

/// Most tokens of a tile of panels expanded from `kind`.
const fn wide_tokens<V: Tiles>(kind: Kind) -> usize {
    if kind.expanded(V::EXPANDS).has_signs() { SIGNS_TOKENS } else { V::WIDE_TOKENS }
}

/// Expands runs of blocks that fit the L1 cache and runs them on some tokens, a run of all panels before the next.
unsafe fn run_wide<V: Tiles, K: OfKind>(
    job: &LinearJob<'_>,
    panels: Range<usize>,
    tokens: Range<usize>,
    residuals: &Residuals<'_>,
    scratch: &mut [Line],
) {
    let sizes = const { K::KIND.sizes() };
    let (wide, chains) = scratch.split_at_mut(2 * WIDE_LINES);
    let most = const { wide_tokens::<V>(K::KIND) };
    let groups = tokens.len().div_ceil(most);
    let blocks = job.spec.cols() / BLOCK_COLS;
    let run = run_of(blocks);
    let panel_bytes = job.spec.panel_bytes();
    // A run of the first panel of a tile.
    let packed = |p: usize, first: usize| {
        let panel = job.weights.as_ptr().wrapping_add(p * panel_bytes);
        panel.wrapping_add(first / sizes.blocks * sizes.group)
    };
    for first in (0..blocks).step_by(run) {
        let end = (first + run).min(blocks);
        let bytes = (end - first).div_ceil(sizes.blocks) * sizes.group;
        let tiles = panels.clone().step_by(V::BYTE_TILE.0);
        let each = chain_lines(tokens.len());
        assert!(chains.len() >= tiles.len() * each, "scratch");
        for (p, chains) in tiles.zip(chains.chunks_exact_mut(each)) {
            let narrow = const { K::KIND.is_narrow() };
            let (chains, of_residuals) = chains.split_at_mut(2 * tokens.len());
            let (weights, chains) = (packed(p, first), chains.as_mut_ptr());
            let mut tile =
                ByteTile { first, end, weights, chains, narrow, ..ByteTile::at::<V>(job, p) };
            residuals.begin::<V>(&mut tile, of_residuals);
            // What follows: this run of the next panels, the next run, or the first of other panels.
            let next = p + V::BYTE_TILE.0;
            tile.ahead = match (next < panels.end, end < blocks) {
                (true, _) => packed(next, first),
                (false, true) => packed(panels.start, end),
                (false, false) => packed(next, 0),
            };
            tile.ahead_left = bytes / 64;
            tile.ahead_lines =
                tile.ahead_left.div_ceil((end - first) * groups + residuals.tiles(first..end));
            // SAFETY: passed on; the blocks are in the panels, their expansion in the scratch.
            unsafe {
                widen_run::<V, K>(&tile, wide);
                tile.weights = wide.as_ptr().cast();
                let tokens = tokens.clone();
                macro_rules! run_kind {
                    ($($kind:ident)+) => {
                        match const { K::KIND.expanded(V::EXPANDS) } {
                            $(Kind::$kind => {
                                type Of = kind::$kind;
                                residuals.run::<V, Of>(&mut tile);
                                run_tokens::<V, Of>(job, tile, p, tokens, most);
                            })+
                            other => unreachable!("{other:?} is not expanded in runs"),
                        }
                    };
                }
                run_kind!(
                    Wide WideMin WideHalves WideHalvesMin WideHalves4 Signs SignsMin SignsHalves
                );
            }
        }
    }
}

/// Expands a tile's panels one after the other and runs them on some tokens.
unsafe fn run_full<V: Tiles, K: OfKind>(
    job: &LinearJob<'_>,
    mut tile: ByteTile,
    p: usize,
    tokens: Range<usize>,
    scratch: &mut [Line],
) {
    let bytes = const { K::KIND.full().sizes().group } * tile.blocks;
    assert!(scratch.len() * 64 >= V::BYTE_TILE.0 * bytes, "scratch");
    let to = scratch.as_mut_ptr().cast::<u8>();
    // SAFETY: passed on; the panels are in the weights, their expansion in the scratch.
    unsafe {
        for w in 0..if tile.panel_bytes == 0 { 1 } else { V::BYTE_TILE.0 } {
            let panel = tile.weights.add(w * tile.panel_bytes);
            V::widen::<K>(panel, tile.blocks, to.add(w * bytes));
        }
        tile.weights = to.cast_const();
        tile.panel_bytes = if tile.panel_bytes == 0 { 0 } else { bytes };
        let most = V::BYTE_TILE.1;
        match const { K::KIND.full() } {
            Kind::FullHalves => {
                run_tokens::<V, kind::FullHalves>(job, tile, p, tokens, most);
            }
            _ => run_tokens::<V, kind::FullHalvesMin>(job, tile, p, tokens, most),
        }
    }
}

/// Expands a tile's blocks, a line of each panel in turn.
unsafe fn widen_run<V: Tiles, K: OfKind>(tile: &ByteTile, wide: &mut [Line]) {
    let blocks = tile.end - tile.first;
    let bytes = const { K::KIND.expanded(V::EXPANDS).sizes().group } * blocks;
    assert!(wide.len() * 64 >= V::BYTE_TILE.0 * bytes, "scratch");
    let to = wide.as_mut_ptr().cast::<u8>();
    for w in 0..V::BYTE_TILE.0 {
        // SAFETY: the blocks are in the weights, their expansion in the scratch.
        unsafe {
            let from = tile.weights.add(w * tile.panel_bytes);
            V::widen::<K>(from, blocks, to.add(64 * w));
        }
    }
}

impl ByteTile {
    /// Notes that weights were prefetched at `blocks` blocks.
    #[inline(always)]
    pub fn prefetched(&mut self, blocks: usize) {
        let lines = blocks * self.ahead_lines;
        self.ahead = self.ahead.wrapping_add(lines * 64);
        self.ahead_left = self.ahead_left.saturating_sub(lines);
        if self.ahead_left == 0 {
            self.ahead_lines = 0;
        }
    }

    /// Whether this run of blocks goes on with chains of the one before.
    #[inline(always)]
    pub fn resumes(&self) -> bool {
        self.first > 0
    }

    /// Whether another run of blocks follows.
    #[inline(always)]
    pub fn waits(&self) -> bool {
        self.end < self.blocks
    }

    /// Whether these are residual lines of one block, for chains that do not lie in a row.
    #[inline(always)]
    pub fn is_residual(&self) -> bool {
        self.chains.is_null()
    }

    /// The first token's line of a block.
    #[inline(always)]
    pub unsafe fn line(&self, block: usize) -> *const Line {
        // SAFETY: inside the row.
        unsafe { self.input.add(block) }
    }

    /// Where the chain of token `c` on panel `w` waits between runs.
    #[inline(always)]
    pub unsafe fn chain(&self, c: usize, w: usize) -> *mut f32 {
        // SAFETY: two lines a token.
        unsafe { self.chains.add(2 * c + w).cast() }
    }

    /// Where the chain of residual lines of token `c` on panel `w` is: zeros if none of its blocks is an outlier.
    #[inline(always)]
    pub unsafe fn residual(&self, c: usize, w: usize) -> *mut f32 {
        // SAFETY: there are residual lines, as the caller found.
        unsafe { self.residuals.byte_add(*self.residual_of.add(c) as usize).add(w).cast() }
    }

    /// Whether any token has residual lines.
    #[inline(always)]
    pub fn has_residuals(&self) -> bool {
        !self.residuals.is_null()
    }
}

/// W panels × C tokens over all columns: the body of [`Tiles::byte_tile`].
///
/// # Safety
/// The pointers of `t` cover W panels and C tokens of `blocks` blocks.
#[inline(always)]
pub(super) unsafe fn tile<V: Tiles, K: OfKind, const W: usize, const C: usize>(t: &ByteTile) {
    let sizes = const { K::KIND.sizes() };
    // SAFETY: all pointers stay inside what the caller vouches for; prefetches may not.
    unsafe {
        let mut acc = [[V::float(V::same(0)); C]; W];
        // Of residual lines. In memory, where few blocks need them, and not in registers that all need.
        let mut residuals = acc;
        let residuals = std::hint::black_box(&mut residuals);
        // One loop over all steps: a nested one would not keep the sums in registers.
        let mut walk = Walk::new::<C>(t);
        loop {
            let was_residual = walk.is_residual();
            let codes = walk.scales.add(sizes.scales + walk.b * sizes.codes);
            // What was expanded is in the cache already.
            for w in 0..if !(K::KIND.is_wide() || K::KIND.is_expanded_whole()) { W } else { 0 } {
                let ahead = V::AHEAD[if C == 1 { 0 } else { 1 }];
                let scales = if ahead.scales && walk.b == 0 { sizes.scales } else { 0 };
                let from = codes.wrapping_add(w * t.panel_bytes).wrapping_sub(scales);
                for i in 0..(scales + sizes.codes) / 64 {
                    ahead.prefetch(from.wrapping_add(64 * i));
                }
            }
            add_block::<V, K, W, C>(t, walk.scales, walk.b, codes, walk.line, &mut acc);
            // Of two tokens, both at once are faster (bench/NOTES.md).
            let alone = if C > 2 { walk.alone::<C>(t) } else { 0 };
            if alone != 0 {
                let second = walk.residual_line(t);
                for c in (0..C).filter(|c| alone >> c & 1 == 1) {
                    let line = second.add(c * t.lines);
                    let mut one = residuals.map(|acc| [acc[c]]);
                    add_block::<V, K, W, 1>(t, walk.scales, walk.b, codes, line, &mut one);
                    for w in 0..W {
                        residuals[w][c] = one[w][0];
                    }
                }
                walk.pass_residual();
            }
            if !walk.next::<K, W, C>(t) {
                break;
            }
            if walk.is_residual() != was_residual {
                std::mem::swap(&mut acc, residuals);
            }
        }
        // Which chain is which does not matter to their sum.
        for c in 0..C {
            for w in 0..W {
                let to = t.out.add(c * t.stride + w * t.apart);
                let y = V::add(V::add(acc[w][c], residuals[w][c]), V::float(V::same(0)));
                V::store_first(y, to, t.rows[w]);
            }
        }
    }
}

/// Asks for the codes of a block `ahead` bytes further on.
#[inline(always)]
pub(super) fn prefetch<K: OfKind>(codes: *const u8, ahead: usize) {
    for i in 0..const { K::KIND.sizes().codes / 64 } {
        // SAFETY: a prefetch may name any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(codes.wrapping_add(64 * i + ahead).cast()) }
    }
}

/// Word `word` of token c's line, in all lanes.
#[inline(always)]
pub(super) unsafe fn word<V: Tiles>(
    t: &ByteTile,
    line: *const Line,
    c: usize,
    word: usize,
) -> V::Same {
    // SAFETY: the line is inside the input.
    unsafe { V::same_at(line.add(c * t.lines).cast::<i32>().add(word)) }
}

/// Adds one block to the chains of a tile.
#[inline(always)]
unsafe fn add_block<V: Tiles, K: OfKind, const W: usize, const C: usize>(
    t: &ByteTile,
    scales: *const u8,
    b: usize,
    codes: *const u8,
    line: *const Line,
    acc: &mut [[V::Float; C]; W],
) {
    // SAFETY: as the caller.
    unsafe {
        let mut sums = start::<V, K, W, C>(t, line, 0);
        add_step::<V, K, 0, W, C>(t, codes, line, &mut sums);
        add_step::<V, K, 1, W, C>(t, codes, line, &mut sums);
        if const { K::KIND.has_halves() } {
            scale_sums::<V, K, 0, W, C>(t, scales, b, line, &sums, acc);
            sums = start::<V, K, W, C>(t, line, 1);
        }
        add_step::<V, K, 2, W, C>(t, codes, line, &mut sums);
        add_step::<V, K, 3, W, C>(t, codes, line, &mut sums);
        scale_sums::<V, K, 1, W, C>(t, scales, b, line, &sums, acc);
    }
}

/// The integer sums at the start: the bits of 1.5·2²³, less what the zero point adds.
#[inline(always)]
unsafe fn start<V: Tiles, K: OfKind, const W: usize, const C: usize>(
    t: &ByteTile,
    line: *const Line,
    half: usize,
) -> [[V::Int; C]; W] {
    // SAFETY: as the caller.
    unsafe {
        let mut sums = [[V::int(V::same(BIAS)); C]; W];
        if !const { K::KIND.has_min() } {
            for c in 0..C {
                let from = match K::KIND {
                    Kind::FullHalves
                    | Kind::Super3
                    | Kind::Iq2Xs
                    | Kind::Iq2S
                    | Kind::Nvfp4
                    | Kind::FloatTable16
                    | Kind::Table16Iq12 => V::int(half_start::<V>(t, line, c, half)),
                    _ => V::int(word::<V>(t, line, c, t.start + half)),
                };
                for sums in &mut sums {
                    sums[c] = from;
                }
            }
        }
        sums
    }
}

/// What the sum of half a block starts from with a zero point of 128: B − 128·Σa, from the word
/// that is B − 32·Σa.
#[inline(always)]
unsafe fn half_start<V: Tiles>(t: &ByteTile, line: *const Line, c: usize, half: usize) -> V::Same {
    // SAFETY: the line is inside the input.
    unsafe {
        let word = *line.add(c * t.lines).cast::<i32>().add(HALF_SUM + half);
        V::same(word.wrapping_mul(4).wrapping_sub(BIAS.wrapping_mul(3)))
    }
}

/// s·f32(Σa) of half a block, from the word that is B − 32·Σa: 32 is a power of two.
#[inline(always)]
pub(super) unsafe fn half_sum<V: Tiles>(
    t: &ByteTile,
    line: *const Line,
    c: usize,
    half: usize,
) -> V::Float {
    // SAFETY: as the caller.
    unsafe {
        let sum = V::float(word::<V>(t, line, c, HALF_SUM + half));
        let bias = V::float(word::<V>(t, line, c, SCALE_BIAS));
        let sum = V::fma_same(sum, word::<V>(t, line, c, SCALE), bias);
        V::mul(sum, V::float(V::same((-1.0_f32 / 32.0).to_bits() as i32)))
    }
}

/// Adds 8 columns, `STEP` of the block, to the integer sums.
#[inline(always)]
unsafe fn add_step<V: Tiles, K: OfKind, const STEP: usize, const W: usize, const C: usize>(
    t: &ByteTile,
    codes: *const u8,
    line: *const Line,
    sums: &mut [[V::Int; C]; W],
) {
    // SAFETY: as the caller.
    unsafe {
        let mut q = [unpack::<V, K, STEP>(codes); W];
        for (w, q) in q.iter_mut().enumerate().skip(1) {
            *q = unpack::<V, K, STEP>(codes.add(w * t.panel_bytes));
        }
        for half in 0..2 {
            for c in 0..C {
                let a = word::<V>(t, line, c, 2 * STEP + half);
                for w in 0..W {
                    sums[w][c] = V::dot_bytes(sums[w][c], q[w][half], a);
                }
            }
        }
    }
}

/// Adds the scaled integer sums, and the minima, to the f32 chains.
#[inline(always)]
unsafe fn scale_sums<V: Tiles, K: OfKind, const HALF: usize, const W: usize, const C: usize>(
    t: &ByteTile,
    scales: *const u8,
    b: usize,
    line: *const Line,
    sums: &[[V::Int; C]; W],
    acc: &mut [[V::Float; C]; W],
) {
    // SAFETY: as the caller.
    unsafe {
        for w in 0..W {
            let scales = scales.add(w * t.panel_bytes);
            let (scale, min) = scale_and_min::<V, K, HALF>(scales, b);
            for c in 0..C {
                let biased = V::as_float(sums[w][c]);
                let bias = V::float(word::<V>(t, line, c, SCALE_BIAS));
                let product = V::fma_same(biased, word::<V>(t, line, c, SCALE), bias);
                acc[w][c] = V::fma(product, scale, acc[w][c]);
                if const { K::KIND.has_min() && K::KIND.has_halves() } {
                    acc[w][c] = V::fma(min, half_sum::<V>(t, line, c, HALF), acc[w][c]);
                } else if const { K::KIND.has_min() } {
                    acc[w][c] = V::fma_same(min, word::<V>(t, line, c, SUM), acc[w][c]);
                }
            }
        }
    }
}

/// Codes of columns 8·STEP .. +4 and +4 .. +8 of a block, as bytes.
#[inline(always)]
pub(super) unsafe fn unpack<V: Tiles, K: OfKind, const STEP: usize>(
    codes: *const u8,
) -> [V::Int; 2] {
    use Kind::*;
    /// The doubled e2m1 values, raised by 16.
    const TABLE: [u8; 16] = [16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4];
    // SAFETY: the block's planes are inside the panel.
    unsafe {
        if const { K::KIND.is_coded() } {
            return coded::unpack::<V, K, STEP>(codes);
        }
        if const { K::KIND.sizes().low == 512 } {
            return [V::load(codes.add(128 * STEP)), V::load(codes.add(128 * STEP + 64))];
        }
        if K::KIND == Super6 {
            let vector = |i: usize| V::load(codes.add(192 * (STEP / 2) + 64 * i));
            if STEP.is_multiple_of(2) {
                return [V::mask(vector(0), 63), V::mask(vector(1), 63)];
            }
            // The upper two bits of all three are another code.
            const TOP: i8 = -64;
            let bits = V::right::<2>(V::mask(vector(0), TOP));
            let bits = V::right::<2>(V::with_bits(bits, vector(1), TOP));
            let bits = V::right::<2>(V::with_bits(bits, vector(2), TOP));
            return [V::mask(vector(2), 63), bits];
        }
        let nibbles = V::load(codes.add(64 * STEP));
        let low = V::mask(nibbles, 15);
        let high = V::mask(V::right::<4>(nibbles), 15);
        match K::KIND {
            Zero5 | Min5 | Super5 => {
                let plane = V::load(codes.add(256));
                let [a, b] = match STEP {
                    0 => [V::left::<4>(plane), V::left::<3>(plane)],
                    1 => [V::left::<2>(plane), V::left::<1>(plane)],
                    2 => [plane, V::right::<1>(plane)],
                    _ => [V::right::<2>(plane), V::right::<3>(plane)],
                };
                [V::with_bits(low, a, 0x10), V::with_bits(high, b, 0x10)]
            }
            Table4 => [V::look_up(low, &TABLE), V::look_up(high, &TABLE)],
            _ => [low, high],
        }
    }
}

/// Scale (of half `HALF`) and minimum of block `b` of a group, for 16 rows.
#[inline(always)]
pub(super) unsafe fn scale_and_min<V: Tiles, K: OfKind, const HALF: usize>(
    scales: *const u8,
    b: usize,
) -> (V::Float, V::Float) {
    use Kind::*;
    // SAFETY: the group's scales are inside the panel.
    unsafe {
        let expanded = const { K::KIND.is_expanded_whole() };
        if expanded || const { K::KIND.is_coded() } {
            return coded::scale_and_min::<V, K, HALF>(scales, b);
        }
        let none = V::float(V::same(0));
        let full = |at: usize| V::floats(scales.add(at).cast());
        match K::KIND {
            Min4 | Min5 => (V::f16s(scales), V::f16s(scales.add(32))),
            Super4 | Super5 => {
                let scale = V::unsigned(scales.add(64 + 16 * b));
                let min = V::unsigned(scales.add(192 + 16 * b));
                let min = V::mul(V::f16s(scales.add(32)), min);
                let min = V::sub(V::float(V::same((-0.0_f32).to_bits() as i32)), min);
                (V::mul(V::f16s(scales), scale), min)
            }
            Super6 => {
                let scale = V::signed(scales.add(64 + 32 * b + 16 * HALF));
                (V::mul(full(0), scale), none)
            }
            Table4 => (V::powers(scales.add(16 * b)), none),
            Wide => (full(0), none),
            WideMin => (full(0), full(64)),
            WideHalves => (full(64 * HALF), none),
            _ => (V::f16s(scales.add(32 * b)), none),
        }
    }
}

/// Adds residual lines by tiles of the tokens of a group: the body of [`Tiles::residual_lines`], where tiles need no more.
///
/// # Safety
/// As [`Tiles::residual_lines`].
#[inline(always)]
pub(super) unsafe fn residual_lines<V: Tiles, K: OfKind>(t: &ByteTile, groups: &[Group]) {
    let mut lines = MaybeUninit::<[Line; TOGETHER]>::uninit();
    let mut one = *t;
    (one.first, one.end, one.lines) = (0, 1, 1);
    (one.chains, one.prefetch) = (std::ptr::null_mut(), std::ptr::null());
    for (i, group) in groups.iter().enumerate() {
        groups.get(i + 1).unwrap_or(group).prefetch();
        // SAFETY: lines of the input; the rest is passed on.
        unsafe {
            for (at, line) in group.lines.into_iter().enumerate() {
                lines.as_mut_ptr().cast::<Line>().add(at).write(*line);
            }
            one.input = lines.as_ptr().cast();
            one.weights = t.weights.wrapping_add(group.weights as usize);
            one.residual_of = group.chains.as_ptr();
            V::byte_tile::<K>(group.len as usize, &one);
        }
        one.prefetched(1);
    }
}

/// Expands one panel to f32 scales and bytes, or magnitudes and signs, `[block]` of the group of the kind it expands to:
/// to every line of as many as a tile has panels, or for full kinds to one line after the other: the body
/// of [`Tiles::widen`].
///
/// # Safety
/// `panel` holds `blocks` blocks of kind `K`, `to` has room for their expansion.
#[inline(always)]
pub(super) unsafe fn widen<V: Tiles, K: OfKind>(panel: *const u8, blocks: usize, to: *mut u8) {
    let sizes = const { K::KIND.sizes() };
    let to_kind = const { K::KIND.expanded(V::EXPANDS) };
    let wide = const { K::KIND.expanded(V::EXPANDS).sizes() };
    let alone = !to_kind.is_wide();
    let step = if alone { 1 } else { V::BYTE_TILE.0 };
    // SAFETY: all pointers stay inside what the caller vouches for; prefetches may not.
    unsafe {
        for block in 0..blocks {
            let scales = panel.add(block / sizes.blocks * sizes.group);
            let b = block % sizes.blocks;
            let codes = scales.add(sizes.scales + b * sizes.codes);
            for i in 0..if alone { sizes.codes / 64 } else { 0 } {
                _mm_prefetch::<_MM_HINT_T0>(codes.wrapping_add(64 * i + PREFETCH).cast());
            }
            let line = |at: usize| to.add((block * wide.group + at) * step);
            let (first, min) = scale_and_min::<V, K, 0>(scales, b);
            V::store_floats(first, line(0).cast());
            let mut mins = 64;
            if const { K::KIND.has_halves() } {
                let (second, min) = scale_and_min::<V, K, 1>(scales, b);
                V::store_floats(second, line(64).cast());
                if const { K::KIND.has_min() } {
                    V::store_floats(min, line(192).cast());
                }
                mins = 128;
            }
            if const { K::KIND.has_min() } {
                V::store_floats(min, line(mins).cast());
            }
            let steps = if to_kind == Kind::WideHalves4 {
                [
                    coded::three_bits::<V, 0>(codes),
                    coded::three_bits::<V, 1>(codes),
                    coded::three_bits::<V, 2>(codes),
                    coded::three_bits::<V, 3>(codes),
                ]
            } else {
                [
                    unpack::<V, K, 0>(codes),
                    unpack::<V, K, 1>(codes),
                    unpack::<V, K, 2>(codes),
                    unpack::<V, K, 3>(codes),
                ]
            };
            if const { K::KIND.expanded(V::EXPANDS).has_signs() } {
                store_signs::<V, K>(steps, line(wide.scales));
                continue;
            }
            for (i, vector) in steps.as_flattened().iter().enumerate() {
                V::store(*vector, line(wide.scales + 64 * i));
            }
        }
    }
}

/// Stores the bytes of a block as magnitudes and signs, and before them what integer sums start from.
///
/// # Safety
/// As [`widen`], where a tile has one panel: the lines around `to` are the block's.
#[inline(always)]
unsafe fn store_signs<V: Tiles, K: OfKind>(steps: [[V::Int; 2]; 4], to: *mut u8) {
    // SAFETY: passed on.
    unsafe {
        let mut sums = [V::int(V::same(0)); 2];
        for (i, vector) in steps.as_flattened().iter().enumerate() {
            let [magnitudes, signs, negative] = V::taken_apart(*vector);
            V::store(magnitudes, to.add(128 * i));
            V::store(signs, to.add(128 * i + 64));
            sums[i / 4] = V::plus16(sums[i / 4], negative);
        }
        let halves = const { K::KIND.has_halves() };
        let starts = if halves { &sums[..] } else { &[V::plus16(sums[0], sums[1])] };
        // With a minimum there is no zero point, and 128 times the sum of the inputs is added: word 13 is B less that.
        let bias = if const { K::KIND.has_min() } { BIAS.wrapping_mul(2) } else { BIAS };
        for (&sums, i) in starts.iter().rev().zip(1..) {
            let start = V::dot_shorts(V::int(V::same(bias)), sums, V::int(V::same(-1)));
            V::store(start, to.sub(64 * i));
        }
    }
}
