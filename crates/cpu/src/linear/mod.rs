//! The linear layer on weights in panels: y\[t\]\[n\] = Σₖ W\[n\]\[k\]·x\[t\]\[k\].
//!
//! Numerics: NUMERICS.md, "Modes". Every y\[t\]\[n\] depends on row n of the weight and on token t alone: not on the other
//! tokens, the tiles, the threads or the instruction set. `scalar` is the definition in code; other paths equal it bit for bit.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod books;
#[cfg(target_arch = "x86_64")]
mod bytes;
#[cfg(target_arch = "x86_64")]
mod coded;
mod encode;
#[cfg(target_arch = "x86_64")]
mod floats;
#[cfg(target_arch = "x86_64")]
mod kind;
#[cfg(target_arch = "x86_64")]
mod nibbles;
#[cfg(target_arch = "x86_64")]
mod pairs;
mod prefetch;
#[cfg(target_arch = "x86_64")]
mod residuals;
mod scalar;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod transformed;
#[cfg(target_arch = "x86_64")]
mod trellis;
#[cfg(target_arch = "x86_64")]
mod walk;
#[cfg(target_arch = "x86_64")]
mod wide;

use std::ops::Range;

use crate::panel::{PANEL_ROWS, PanelLayout, PanelSpec};

use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
pub use encode::{Encoding, Line};
pub use prefetch::Prefetch;
pub use tokenmill_ir::Mode;

/// Where results go: `[tokens][stride]` f32, shared by the threads that fill its columns.
#[derive(Clone, Copy, Debug)]
pub struct OutView<'a> {
    start: *mut f32,
    len: usize,
    stride: usize,
    _memory: std::marker::PhantomData<&'a mut [f32]>,
}

// SAFETY: an `OutView` is only an address; writing through it is the `unsafe` of `linear`, whose
// contract is that concurrent calls write different elements.
unsafe impl Send for OutView<'_> {}
// SAFETY: as above.
unsafe impl Sync for OutView<'_> {}

impl<'a> OutView<'a> {
    /// A view of `out` with `stride` f32 from token to token; results start at its first
    /// element.
    pub fn new(out: &'a mut [f32], stride: usize) -> OutView<'a> {
        OutView { start: out.as_mut_ptr(), len: out.len(), stride, _memory: Default::default() }
    }
}

/// One linear layer over a range of its panels, for any number of tokens.
#[derive(Clone, Debug)]
pub struct LinearJob<'a> {
    /// Shape and layout of the weight.
    pub spec: PanelSpec,
    /// The weight's panels: `spec.bytes()` bytes.
    pub weights: &'a [u8],
    /// Panels to compute: a thread's share.
    pub panels: Range<usize>,
    /// How the activations are encoded.
    pub encoding: Encoding,
    /// Encoded activations: `tokens` rows of `encoding.lines(cols)` lines.
    pub input: &'a [Line],
    /// Rows of `input`.
    pub tokens: usize,
    /// Where y\[t\]\[n\] goes: element t·stride + n.
    pub out: OutView<'a>,
    /// What is prefetched at the same time, if anything.
    pub prefetch: Option<&'a Prefetch>,
}

impl LinearJob<'_> {
    /// Panics unless every buffer is as large as the shapes say.
    fn check(&self) {
        assert_eq!(self.weights.len(), self.spec.bytes(), "bytes of the weight");
        assert!(self.panels.start <= self.panels.end && self.panels.end <= self.spec.panels());
        let lines = self.encoding.lines(self.spec.cols());
        assert!(self.input.len() >= self.tokens * lines, "encoded rows");
        let last = self.tokens.saturating_sub(1) * self.out.stride + self.spec.rows();
        assert!(self.tokens == 0 || self.out.len >= last, "room for the results");
        assert!(self.tokens <= 1 || self.out.stride >= self.spec.rows(), "rows do not overlap");
        let bytes = self.encoding.is_bytes();
        assert!(!bytes || self.spec.layout().is_integer(), "bytes need an integer layout");
        let trellis = matches!(self.spec.layout(), PanelLayout::Trellis(_));
        assert_eq!(
            self.encoding.is_transformed(),
            trellis,
            "inputs are transformed for weights that are"
        );
    }

    /// Rows of panel `p` that exist.
    fn rows_of_panel(&self, p: usize) -> usize {
        PANEL_ROWS.min(self.spec.rows() - p * PANEL_ROWS)
    }
}

/// Lines of scratch memory that [`linear`] needs for a weight of this shape.
pub fn scratch_lines(spec: &PanelSpec) -> usize {
    if let PanelLayout::Trellis(_) = spec.layout() {
        return transformed::scratch_lines(spec.cols());
    }
    let blocks = spec.cols().div_ceil(32);
    // One panel expanded to bytes, or two where scales are of 16 columns: 8 lines of codes and at
    // most 4 of scales a block; a run of blocks of two panels and the chains of tokens; or a chunk
    // of four panels expanded to f32. Beside them residual lines are listed.
    let most = |isa| tokens_at_once(isa, spec, Encoding::Int8);
    let together = |isa| tiles_at_once(isa, blocks) * chain_lines(most(isa));
    let chains = together(Isa::Avx2).max(together(Isa::Avx512)).max(chain_lines(MOST_CHAINS));
    let runs = 2 * WIDE_LINES + chains;
    #[cfg(target_arch = "x86_64")]
    let residuals = residuals::scratch_lines(most(Isa::Avx2).max(most(Isa::Avx512)), blocks);
    #[cfg(not(target_arch = "x86_64"))]
    let residuals = 0;
    (2 * blocks * 12).max(runs).max(CHUNK_LINES) + residuals
}

/// Blocks expanded at a time, up to half as many more where that is all: two panels of them fit
/// the L1 cache beside the tokens. A whole number of groups in every layout.
const RUN: usize = 16;

/// Blocks of a run, of rows of `blocks`.
const fn run_of(blocks: usize) -> usize {
    if blocks <= RUN * 3 / 2 { blocks } else { RUN }
}

/// Tiles of expanded panels that go over a run of blocks together. Of the tokens then only these blocks need to
/// stay in the cache, and the chains: more tokens share an expansion than with whole rows.
const fn tiles_at_once(isa: Isa, blocks: usize) -> usize {
    match isa {
        Isa::Avx2 if blocks > run_of(blocks) => 16,
        Isa::Avx512 | Isa::Avx512Bf16 if blocks > run_of(blocks) => 4,
        // One after the other over all blocks.
        _ => 1,
    }
}

/// Lines of a run of blocks of one panel expanded to bytes: 24 blocks of 10.
const WIDE_LINES: usize = 240;
/// Lines of a tile's chains: two a token, as many of residual lines, and those of residual lines that are no token's.
const fn chain_lines(tokens: usize) -> usize {
    4 * tokens + 4
}

/// Tokens whose chains wait between runs of blocks at most.
const MOST_CHAINS: usize = 85 * TILE_TOKENS;
/// Tokens of a tile, or of a few, of most instruction sets.
const TILE_TOKENS: usize = 6;
/// Tokens that go by together however long their rows are: for fewer, expanding weights does not pay.
const FEWEST_AT_ONCE: usize = 12;
/// Bytes of encoded tokens kept in a core's second-level cache while panels pass by, beside the weights,
/// the results and what is fetched ahead in vain.
const fn row_cache(isa: Isa) -> usize {
    match isa {
        // Of 256 KiB (Intel before 2019) or 512 KiB (AMD up to Zen 3).
        Isa::Scalar | Isa::Avx2 => 160 << 10,
        // Of 1 to 2 MiB.
        Isa::AvxVnni | Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => 1 << 20,
    }
}

/// Groups of up to `most`, as even as can be: 5 are 3 + 2, not 4 + 1.
#[inline(always)]
fn groups(of: Range<usize>, most: usize) -> impl Iterator<Item = Range<usize>> {
    let count = of.len().div_ceil(most);
    let (each, larger) = (of.len() / count.max(1), of.len() % count.max(1));
    let mut start = of.start;
    (0..count).map(move |g| {
        let group = start..start + each + usize::from(g < larger);
        start = group.end;
        group
    })
}

/// Parts of `tokens` whose encoded rows, or the run of blocks of them that panels pass over together, stay in a core's
/// cache: whole tiles but for the last.
pub fn parts(
    isa: Isa,
    spec: &PanelSpec,
    encoding: Encoding,
    tokens: Range<usize>,
) -> impl Iterator<Item = Range<usize>> {
    let tiles = tokens.len().div_ceil(TILE_TOKENS);
    groups(0..tiles, tokens_at_once(isa, spec, encoding) / TILE_TOKENS).map(move |tiles| {
        let at = |tile: usize| tokens.end.min(tokens.start + tile * TILE_TOKENS);
        at(tiles.start)..at(tiles.end)
    })
}

/// Most tokens of a part: whole tiles.
fn tokens_at_once(isa: Isa, spec: &PanelSpec, encoding: Encoding) -> usize {
    // With AVX2 floats go by chunks of columns, which most tokens share.
    let floats = matches!(encoding, Encoding::F32 | Encoding::Bf16);
    if floats && matches!(isa, Isa::Avx2 | Isa::AvxVnni) {
        return FLOAT_TOKENS.next_multiple_of(TILE_TOKENS);
    }
    let blocks = spec.cols().div_ceil(32);
    let tiles = tiles_at_once(isa, blocks);
    let lines = match encoding {
        // Of the residual lines few are read.
        Encoding::Int8 | Encoding::Int8Coarse if tiles > 1 => RUN * 5 / 4 + tiles,
        Encoding::Int8 | Encoding::Int8Coarse => blocks * 5 / 4,
        _ => blocks * 2,
    };
    let fit = row_cache(isa) / 64 / lines.max(1);
    fit.clamp(FEWEST_AT_ONCE, MOST_CHAINS).next_multiple_of(TILE_TOKENS)
}

/// Lines that the f32 kernels expand at a time at most.
const CHUNK_LINES: usize = 1024;
/// Tokens that pass over a chunk of columns of floats at most.
const FLOAT_TOKENS: usize = 256;

/// Computes the panels of `job` for all its tokens.
///
/// `scratch` is this thread's own, at least [`scratch_lines`] long.
///
/// # Panics
/// If a buffer is smaller than its shape, or `isa` is not available on this machine.
///
/// # Safety
/// Nothing else may read or write the columns of `job.panels` in `job.out` at the same time: give
/// concurrent calls on one output ranges that do not overlap.
pub unsafe fn linear(isa: Isa, job: &LinearJob<'_>, scratch: &mut [Line]) {
    job.check();
    assert!(isa.is_available(), "{} is not available here", isa.name());
    assert!(scratch.len() >= scratch_lines(&job.spec), "scratch");
    // SAFETY: the features are there, the buffers are as large as `check` found, and the
    // caller keeps others away from the outputs.
    unsafe {
        match isa {
            _ if job.encoding.is_transformed() => transformed::linear(isa, job, scratch),
            Isa::Scalar => scalar::linear(job),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => vectors::<Avx2<false>>(job, scratch),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => vectors::<Avx2<true>>(job, scratch),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 if job.encoding == Encoding::Bf16 => {
                floats::linear::<Avx512<true>>(job, scratch)
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 => vectors::<Avx512>(job, scratch),
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Isa::Amx if amx::is_worth(job) => amx::linear(job, scratch),
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Isa::Amx => vectors::<Avx512>(job, scratch),
            #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
            _ => unreachable!("not available, as asserted"),
        }
    }
}

/// The chain of the job's encoding on vectors.
#[cfg(target_arch = "x86_64")]
unsafe fn vectors<V: tiles::Tiles>(job: &LinearJob<'_>, scratch: &mut [Line]) {
    // SAFETY: passed on.
    unsafe {
        match job.encoding {
            encoding if encoding.is_bytes() => bytes::linear::<V>(job, scratch),
            _ => floats::linear::<V>(job, scratch),
        }
    }
}
