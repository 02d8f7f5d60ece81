//! The f32 and bf16 chains on vectors: one fma per row, token and column, columns in order.
//!
//! Panels of f32, f16 and, for few tokens, bf16 weights and codes of floats are read as they are; others are expanded to
//! f32. For many tokens that is a chunk of columns at a time, which stays in a cache for all of them; between
//! chunks the chains wait in the output. Where the processor multiplies pairs of bf16 numbers, rows in bf16 are pairs,
//! and so are weights: as they are stored, or what others are expanded to.

#![allow(clippy::needless_range_loop)] // tiles are indexed by panel and token

use crate::panel::{BLOCK_COLS, PANEL_ROWS, PanelLayout};

use super::coded::with_kind;
use super::kind::{self, Kind, OfKind};
use super::tiles::{FloatTile, Tiles};
use super::{Encoding, FLOAT_TOKENS, Line, LinearJob, bytes, row_cache};

/// Tokens from which on chunks of columns pay, and expanding bf16 weights first.
const CHUNKS_FROM: usize = 64;

/// Computes a job of a float encoding.
///
/// # Safety
/// As [`super::linear`]; `job.check()` has passed and the instruction set is available.
pub(super) unsafe fn linear<V: Tiles>(job: &LinearJob<'_>, scratch: &mut [Line]) {
    // SAFETY: passed on.
    unsafe {
        match job.spec.layout() {
            PanelLayout::Bf16 if V::PAIRS && job.tokens > V::FLOAT_TILE.1 => {
                run_stored::<V, kind::Pairs>(job)
            }
            PanelLayout::Bf16 if V::PAIRS => run_plain::<V, kind::Pairs>(job),
            PanelLayout::Bf16 if job.tokens >= CHUNKS_FROM => run_pairs::<V>(job, scratch),
            PanelLayout::Bf16 => run_plain::<V, kind::Bf16>(job),
            PanelLayout::F16 if job.tokens >= CHUNKS_FROM => run_stored::<V, kind::F16>(job),
            PanelLayout::F32 if job.tokens >= CHUNKS_FROM => run_stored::<V, kind::F32>(job),
            PanelLayout::F16 => run_plain::<V, kind::F16>(job),
            PanelLayout::F32 => run_plain::<V, kind::F32>(job),
            PanelLayout::Zero4 => run_integer::<V, kind::Zero4>(job, scratch),
            PanelLayout::Min4 => run_integer::<V, kind::Min4>(job, scratch),
            PanelLayout::Zero5 => run_integer::<V, kind::Zero5>(job, scratch),
            PanelLayout::Min5 => run_integer::<V, kind::Min5>(job, scratch),
            PanelLayout::Zero8 => run_integer::<V, kind::Zero8>(job, scratch),
            PanelLayout::Super4 => run_integer::<V, kind::Super4>(job, scratch),
            PanelLayout::Super5 => run_integer::<V, kind::Super5>(job, scratch),
            PanelLayout::Super6 => run_integer::<V, kind::Super6>(job, scratch),
            PanelLayout::Table4 => run_integer::<V, kind::Table4>(job, scratch),
            PanelLayout::Float8 => run_coded::<V, kind::Float8>(job, scratch),
            PanelLayout::Lookup4 if Kind::of(&job.spec) == Kind::LookupNf4 => {
                run_coded::<V, kind::LookupNf4>(job, scratch);
            }
            PanelLayout::Lookup4 => run_coded::<V, kind::LookupFp4>(job, scratch),
            _ => with_kind!(Kind::of(&job.spec), K => run_integer::<V, K>(job, scratch)),
        }
    }
}

impl FloatTile {
    /// Token `t` on `panels` panels from `p` on, each `further` than the last, all columns.
    unsafe fn new(
        job: &LinearJob<'_>,
        t: usize,
        p: usize,
        panels: usize,
        further: usize,
    ) -> FloatTile {
        let lines = job.encoding.lines(job.spec.cols());
        // SAFETY: `check` found the output as large as the shapes say.
        let out = unsafe { job.out.start.add(t * job.out.stride + p * PANEL_ROWS) };
        FloatTile {
            weights: job.weights[p * job.spec.panel_bytes()..].as_ptr(),
            panel_bytes: further * job.spec.panel_bytes(),
            cols: job.spec.cols(),
            input: job.input[t * lines..].as_ptr().cast(),
            input_stride: lines * 16,
            out,
            stride: job.out.stride,
            apart: further * PANEL_ROWS,
            resume: false,
            last_rows: job.rows_of_panel(p + (panels - 1) * further),
        }
    }

    /// The first of two panels alone.
    pub fn first_panel(&self) -> FloatTile {
        FloatTile { last_rows: PANEL_ROWS, ..*self }
    }

    /// The second of two panels alone.
    pub fn second_panel(&self) -> FloatTile {
        let weights = self.weights.wrapping_add(self.panel_bytes);
        FloatTile { weights, out: self.out.wrapping_add(self.apart), ..*self }
    }
}

/// Calls `f(first token, tokens, first panel, panels, from each to the next)` for every tile: tokens by what fits
/// the L2 cache, then panels, then tokens by at most the widest tile. A tile of few tokens takes its panels from
/// different parts of them: a core reads long streams of memory faster than those that end with every panel.
fn tiles<V: Tiles>(job: &LinearJob<'_>, mut f: impl FnMut(usize, usize, usize, usize, usize)) {
    let (most_panels, most_tokens) = V::FLOAT_TILE;
    let lines = job.encoding.lines(job.spec.cols());
    let in_cache = (row_cache(V::ISA) / 64 / lines).max(most_tokens) / most_tokens * most_tokens;
    let (start, end) = (job.panels.start, job.panels.end);
    let whole = job.panels.len() / most_panels;
    let spread = job.tokens <= most_tokens;
    for first in (0..job.tokens).step_by(in_cache) {
        let tokens = in_cache.min(job.tokens - first);
        let groups = tokens.div_ceil(most_tokens);
        let mut run = |p: usize, panels: usize, further: usize| {
            for g in 0..groups {
                let (from, to) = (g * tokens / groups, (g + 1) * tokens / groups);
                f(first + from, to - from, p, panels, further);
            }
        };
        for i in 0..whole {
            match spread {
                true => run(start + i, most_panels, whole),
                false => run(start + i * most_panels, most_panels, 1),
            }
        }
        (start + whole * most_panels..end).for_each(|p| run(p, 1, 1));
    }
}

unsafe fn run_plain<V: Tiles, K: OfKind>(job: &LinearJob<'_>) {
    tiles::<V>(job, |t, tokens, p, panels, further| {
        // SAFETY: `check` found every buffer as large as the shapes say.
        unsafe {
            let tile = FloatTile::new(job, t, p, panels, further);
            V::float_tile::<K>(panels, tokens, &tile);
        }
    });
}

/// Tiles take codes of floats apart themselves for few tokens, where weights are not rounded.
unsafe fn run_coded<V: Tiles, K: OfKind>(job: &LinearJob<'_>, scratch: &mut [Line]) {
    // SAFETY: passed on.
    unsafe {
        match job.encoding == Encoding::F32 && job.tokens <= V::CODED_TOKENS {
            true => run_plain::<V, K>(job),
            false => run_integer::<V, K>(job, scratch),
        }
    }
}

unsafe fn run_integer<V: Tiles, K: OfKind>(job: &LinearJob<'_>, scratch: &mut [Line]) {
    let expand = |panel: *const u8, first: usize, cols: usize, to: *mut f32| {
        let (block, blocks) = (first / BLOCK_COLS, cols / BLOCK_COLS);
        // SAFETY: as `run_expanded` asks.
        unsafe {
            match job.encoding {
                Encoding::Bf16 => V::expand::<K, true>(panel, block, blocks, to),
                _ => V::expand::<K, false>(panel, block, blocks, to),
            }
            if V::PAIRS {
                pair_up(to, cols);
            }
        }
    };
    // SAFETY: passed on.
    unsafe {
        match V::PAIRS {
            true => run_expanded::<V, kind::Pairs>(job, scratch, expand),
            false => run_expanded::<V, kind::F32>(job, scratch, expand),
        }
    }
}

/// Puts each two columns of f32s `[column][row]` that are bf16 numbers into one of pairs.
///
/// # Safety
/// `to` holds the columns, of which there are an even number.
unsafe fn pair_up(to: *mut f32, cols: usize) {
    let words = to.cast::<[u32; PANEL_ROWS]>();
    for i in 0..cols / 2 {
        // SAFETY: inside the columns.
        unsafe {
            let (first, second) = (*words.add(2 * i), *words.add(2 * i + 1));
            *words.add(i) = std::array::from_fn(|row| first[row] | second[row] >> 16);
        }
    }
}

unsafe fn run_pairs<V: Tiles>(job: &LinearJob<'_>, scratch: &mut [Line]) {
    let expand = |panel: *const u8, first: usize, cols: usize, to: *mut f32| {
        // SAFETY: as `run_expanded` asks; a chunk has room for a whole pair at its end.
        unsafe { V::expand_pairs(panel.add(first * 2 * PANEL_ROWS), cols.div_ceil(2), to) }
    };
    // SAFETY: passed on.
    unsafe { run_expanded::<V, kind::F32>(job, scratch, expand) }
}

/// Chunks of columns are expanded by `expand(panel, first column, columns, to)`, once for all tokens of a part.
unsafe fn run_expanded<V: Tiles, K: OfKind>(
    job: &LinearJob<'_>,
    scratch: &mut [Line],
    expand: impl Fn(*const u8, usize, usize, *mut f32),
) {
    let to = scratch.as_mut_ptr().cast::<f32>();
    let most = V::CHUNK_LINES / chunk_panels::<V>(job.tokens);
    assert!(scratch.len() >= V::CHUNK_LINES, "scratch");
    let chunk = |p: usize, panels: usize, first: usize, cols: usize| {
        for i in 0..panels {
            let panel = job.weights[(p + i) * job.spec.panel_bytes()..].as_ptr();
            expand(panel, first, cols, to.wrapping_add(i * most * PANEL_ROWS));
        }
        (to.cast_const().cast(), most * PANEL_ROWS * 4)
    };
    // SAFETY: passed on.
    unsafe { run_chunks::<V, K>(job, most, chunk) }
}

/// Bytes of a stored panel at a time: the panels of a tile stay in the second-level cache for all tokens of a part.
const STORED_CHUNK: usize = 64 << 10;

/// Panels are read where they are stored.
unsafe fn run_stored<V: Tiles, K: OfKind>(job: &LinearJob<'_>) {
    let column = if K::KIND == Kind::F32 { 4 * PANEL_ROWS } else { 2 * PANEL_ROWS };
    let panel_bytes = job.spec.panel_bytes();
    let chunk = |p: usize, _: usize, first: usize, _: usize| {
        (job.weights[p * panel_bytes + first * column..].as_ptr(), panel_bytes)
    };
    // SAFETY: passed on.
    unsafe { run_chunks::<V, K>(job, STORED_CHUNK / column, chunk) }
}

/// Panels of a chunk: those of a tile.
fn chunk_panels<V: Tiles>(tokens: usize) -> usize {
    if tokens > V::PANELS_TO { 1 } else { V::FLOAT_TILE.0 }
}

/// Goes over some hundred tokens, then panels, then chunks of `most_cols` columns, which `chunk(first panel, panels, first
/// column, columns)` has ready at an address, and from one panel to the next in so many bytes. The tokens need not
/// fit the L2 cache: a pass over one chunk of them computes long enough to have the next fetched.
unsafe fn run_chunks<V: Tiles, K: OfKind>(
    job: &LinearJob<'_>,
    most_cols: usize,
    chunk: impl Fn(usize, usize, usize, usize) -> (*const u8, usize),
) {
    let (most_panels, most_tokens) = (chunk_panels::<V>(job.tokens), V::FLOAT_TILE.1);
    let per_word = if K::KIND == Kind::Pairs { 2 } else { 1 };
    let parts = job.tokens.div_ceil(FLOAT_TOKENS);
    for part in 0..parts {
        let tokens = part * job.tokens / parts..(part + 1) * job.tokens / parts;
        let groups = tokens.len().div_ceil(most_tokens);
        let mut p = job.panels.start;
        while p < job.panels.end {
            let panels = if job.panels.end - p >= most_panels { most_panels } else { 1 };
            for first in (0..job.spec.cols()).step_by(most_cols) {
                let cols = most_cols.min(job.spec.cols() - first);
                let (weights, panel_bytes) = chunk(p, panels, first, cols);
                for g in 0..groups {
                    let at = |g: usize| tokens.start + g * tokens.len() / groups;
                    // SAFETY: `check` found every buffer as large as the shapes say.
                    unsafe {
                        let mut tile = FloatTile::new(job, at(g), p, panels, 1);
                        (tile.weights, tile.panel_bytes) = (weights, panel_bytes);
                        tile.cols = cols;
                        tile.input = tile.input.add(first / per_word);
                        tile.resume = first > 0;
                        V::float_tile::<K>(panels, at(g + 1) - at(g), &tile);
                    }
                }
            }
            p += panels;
        }
    }
}

/// W panels × C tokens over all columns: the body of [`Tiles::float_tile`].
///
/// # Safety
/// The pointers of `t` cover W panels and C tokens of `cols` columns.
#[inline(always)]
pub(super) unsafe fn tile<V: Tiles, K: OfKind, const W: usize, const C: usize>(t: &FloatTile) {
    // SAFETY: all pointers stay inside what the caller vouches for.
    unsafe {
        let mut acc = [[V::float(V::same(0)); C]; W];
        let rows = |w: usize| if w == W - 1 { t.last_rows } else { PANEL_ROWS };
        if t.resume {
            for w in 0..W {
                for c in 0..C {
                    let from = t.out.add(c * t.stride + w * t.apart);
                    acc[w][c] = V::first_floats(from, rows(w));
                }
            }
        }
        let coded = if const { K::KIND.is_float_code() } { t.cols } else { 0 };
        for k in (0..coded).step_by(BLOCK_COLS) {
            add_block::<V, K, W, C>(t, k, &mut acc);
        }
        for k in (coded..t.cols / 2 * 2).step_by(2) {
            // A line of a panel; f32s may be expanded ones, which are in the cache.
            for w in 0..if K::KIND == Kind::F32 { 0 } else { W } {
                let line = t.weights.wrapping_add(w * t.panel_bytes + k * 2 * PANEL_ROWS);
                V::FLOATS_AHEAD.prefetch(line);
            }
            if K::KIND == Kind::Pairs {
                add_pair::<V, W, C>(t, k, &mut acc);
            } else {
                add_column::<V, K, 0, W, C>(t, k, &mut acc);
                add_column::<V, K, 1, W, C>(t, k, &mut acc);
            }
        }
        if t.cols % 2 == 1 {
            match K::KIND {
                // Of the last the second columns are zero.
                Kind::Pairs => add_pair::<V, W, C>(t, t.cols - 1, &mut acc),
                _ => add_column::<V, K, 0, W, C>(t, t.cols - 1, &mut acc),
            }
        }
        for w in 0..W {
            for c in 0..C {
                V::store_first(acc[w][c], t.out.add(c * t.stride + w * t.apart), rows(w));
            }
        }
    }
}

/// Adds a block of codes of floats, from column `k` on, to the chains.
#[inline(always)]
unsafe fn add_block<V: Tiles, K: OfKind, const W: usize, const C: usize>(
    t: &FloatTile,
    k: usize,
    acc: &mut [[V::Float; C]; W],
) {
    let sizes = const { K::KIND.sizes() };
    let (group, b) = (k / BLOCK_COLS / sizes.blocks, k / BLOCK_COLS % sizes.blocks);
    // SAFETY: as the caller.
    unsafe {
        let scales = t.weights.add(group * sizes.group);
        let codes = scales.add(sizes.scales + b * sizes.codes);
        for w in 0..W {
            bytes::prefetch::<K>(codes.wrapping_add(w * t.panel_bytes), bytes::PREFETCH);
        }
        for step in 0..BLOCK_COLS / 8 {
            for w in 0..W {
                let scales = scales.add(w * t.panel_bytes);
                let (scale, _) = bytes::scale_and_min::<V, K, 0>(scales, b);
                let codes = codes.add(w * t.panel_bytes + step * (sizes.codes / 4));
                for i in 0..8 {
                    let weight = V::mul(value::<V, K>(codes, i), scale);
                    for c in 0..C {
                        let x = t.input.add(c * t.input_stride + k + 8 * step + i);
                        acc[w][c] = V::fma_same(weight, V::same_at(x.cast()), acc[w][c]);
                    }
                }
            }
        }
    }
}

/// Column `i` of the 8 at `codes`, before its scale.
#[inline(always)]
unsafe fn value<V: Tiles, K: OfKind>(codes: *const u8, i: usize) -> V::Float {
    // SAFETY: the codes are in the panel.
    unsafe {
        let (vector, byte) = (i / 4, i as u32 % 4);
        match K::KIND {
            Kind::Float8 => V::e4m3(V::load(codes.add(64 * vector)), byte),
            _ => {
                let from = 8 * byte + 4 * vector as u32;
                V::entries(V::load(codes), from, const { K::KIND.float_table() })
            }
        }
    }
}

/// Adds columns `k` and `k` + 1 (k even) of rows and weights in pairs to the chains.
#[inline(always)]
unsafe fn add_pair<V: Tiles, const W: usize, const C: usize>(
    t: &FloatTile,
    k: usize,
    acc: &mut [[V::Float; C]; W],
) {
    // SAFETY: as the caller.
    unsafe {
        let weights = |w: usize| V::load(t.weights.add(w * t.panel_bytes + k * 2 * PANEL_ROWS));
        let mut pairs = [weights(0); W];
        for (w, to) in pairs.iter_mut().enumerate().skip(1) {
            *to = weights(w);
        }
        for c in 0..C {
            let x = V::same_at(t.input.add(c * t.input_stride + k / 2).cast());
            for w in 0..W {
                acc[w][c] = V::add_pairs(acc[w][c], pairs[w], V::int(x));
            }
        }
    }
}

/// Adds column `k` + `ODD` (k even) to the chains.
#[inline(always)]
unsafe fn add_column<V: Tiles, K: OfKind, const ODD: usize, const W: usize, const C: usize>(
    t: &FloatTile,
    k: usize,
    acc: &mut [[V::Float; C]; W],
) {
    // SAFETY: as the caller.
    unsafe {
        let weight = |w: usize| {
            let panel = t.weights.add(w * t.panel_bytes);
            match K::KIND {
                Kind::Bf16 => V::bf16_pair(panel.add(k * 2 * PANEL_ROWS))[ODD],
                Kind::F16 => V::f16s(panel.add((k + ODD) * 2 * PANEL_ROWS)),
                _ => V::floats(panel.add((k + ODD) * 4 * PANEL_ROWS).cast()),
            }
        };
        let mut weights = [weight(0); W];
        for (w, to) in weights.iter_mut().enumerate().skip(1) {
            *to = weight(w);
        }
        for c in 0..C {
            let x = V::same_at(t.input.add(c * t.input_stride + k + ODD).cast());
            for w in 0..W {
                acc[w][c] = V::fma_same(weights[w], x, acc[w][c]);
            }
        }
    }
}

/// Expands `blocks` blocks from block `first` on to f32 `[column][row]`, as the format
/// decodes them, rounded to bf16 if asked: the body of [`Tiles::expand`].
///
/// # Safety
/// `panel` holds the blocks, `to` has room for 32 × 16 f32s of each.
#[inline(always)]
pub(super) unsafe fn expand<V: Tiles, K: OfKind, const ROUND: bool>(
    panel: *const u8,
    first: usize,
    blocks: usize,
    to: *mut f32,
) {
    let sizes = const { K::KIND.sizes() };
    // SAFETY: all pointers stay inside what the caller vouches for.
    unsafe {
        for i in 0..blocks {
            let block = first + i;
            let scales = panel.add(block / sizes.blocks * sizes.group);
            let b = block % sizes.blocks;
            let codes = scales.add(sizes.scales + b * sizes.codes);
            let to = to.add(i * BLOCK_COLS * PANEL_ROWS);
            let scale = bytes::scale_and_min::<V, K, 0>(scales, b);
            expand_step::<V, K, ROUND, 0>(codes, scale, to);
            expand_step::<V, K, ROUND, 1>(codes, scale, to);
            let scale = bytes::scale_and_min::<V, K, 1>(scales, b);
            expand_step::<V, K, ROUND, 2>(codes, scale, to);
            expand_step::<V, K, ROUND, 3>(codes, scale, to);
        }
    }
}

/// Expands pairs of bf16 columns to f32 `[column][row]`: the body of [`Tiles::expand_pairs`].
///
/// # Safety
/// `from` holds the pairs, `to` has room for 2 × 16 f32s of each.
#[inline(always)]
pub(super) unsafe fn expand_pairs<V: Tiles>(from: *const u8, pairs: usize, to: *mut f32) {
    // SAFETY: all pointers stay inside what the caller vouches for.
    unsafe {
        for i in 0..pairs {
            let [even, odd] = V::bf16_pair(from.add(i * 4 * PANEL_ROWS));
            V::store_floats(even, to.add(2 * i * PANEL_ROWS));
            V::store_floats(odd, to.add((2 * i + 1) * PANEL_ROWS));
        }
    }
}

/// Expands columns 8·STEP .. +8 of a block that starts at `to`.
#[inline(always)]
unsafe fn expand_step<V: Tiles, K: OfKind, const ROUND: bool, const STEP: usize>(
    codes: *const u8,
    scale: (V::Float, V::Float),
    to: *mut f32,
) {
    // SAFETY: as the caller.
    unsafe {
        let put = |column: usize, code: V::Float| {
            // Rounded once.
            let weight = match const { K::KIND.has_min() } {
                true => V::fma(code, scale.0, scale.1),
                false => V::mul(code, scale.0),
            };
            let weight = if ROUND { V::to_bf16(weight) } else { weight };
            V::store_floats(weight, to.add((8 * STEP + column) * PANEL_ROWS));
        };
        if const { K::KIND.is_float_code() } {
            let codes = codes.add(STEP * const { K::KIND.sizes().codes / 4 });
            for i in 0..8 {
                put(i, value::<V, K>(codes, i));
            }
            return;
        }
        let zero = f32::from(const { K::KIND.zero() });
        let zero = V::float(V::same(zero.to_bits() as i32));
        for (half, q) in bytes::unpack::<V, K, STEP>(codes).into_iter().enumerate() {
            let columns = [V::byte::<0>(q), V::byte::<1>(q), V::byte::<2>(q), V::byte::<3>(q)];
            for (j, code) in columns.into_iter().enumerate() {
                put(4 * half + j, V::sub(code, zero));
            }
        }
    }
}
