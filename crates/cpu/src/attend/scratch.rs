//! Memory of one thread for attention, allocated once.

use std::ops::Range;

use super::latent::{most_segments, value_stride};
use super::layout::GROUP;
use super::{AttendJob, BAND, ITEM_ROWS, Item, TILE, TILES, item_tokens};

/// Sixteen f32, or as many bits of codes.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Lanes(pub [f32; 16]);

/// Memory that [`super::attend`] works in: one a thread, for every layer of these head sizes.
#[derive(Debug)]
pub struct Scratch {
    /// Rows of queries. [rows][k_dim] f32, or codes or bf16s of 16 bits in pairs
    pub(super) q: Vec<Lanes>,
    /// What the scores of a row are multiplied by, of each segment of its columns. [segments][rows]
    pub(super) q_scale: Vec<f32>,
    /// A tile of keys. [k_dim][64] f32, or [k_dim / 2][64][2] codes or bf16s; of latents four groups, one after the other
    pub(super) k: Vec<Lanes>,
    /// A tile of values. [64][v_cols] f32, or [32][v_cols][2] codes or bf16s, rows of latents farther apart
    pub(super) v: Vec<Lanes>,
    /// What the keys of the tiles of a split are without. [4][k_dim]
    pub(super) steady: Vec<Lanes>,
    /// What the scores of rows are without in them. [4][rows]
    pub(super) shifts: Vec<Lanes>,
    /// Scales of the tile's keys and values, and of the keys beside latents. [3][64]
    pub(super) scales: Vec<Lanes>,
    /// Scores, then weights, of a band of rows. [48][64]
    pub(super) s: Vec<Lanes>,
    /// The greatest scores of each row of a band on a tile, by lanes. [48][16]
    pub(super) tops: Vec<Lanes>,
    /// Weights in pairs: codes, or bf16s. [48][64] of 16 bits
    pub(super) p: Vec<Lanes>,
    /// Indices of the keys that each row sees. [rows]
    pub(super) seen: Vec<Range<usize>>,
    /// Running maximum of each row, and room for a vector from the last on. [rows + 16]
    pub(super) max: Vec<f32>,
    /// Running sums. [rows][16]
    pub(super) sum: Vec<Lanes>,
    /// Running outputs. [rows][v_cols]
    pub(super) out: Vec<Lanes>,
    /// Zeros: sums and outputs before the first tile. [v_cols]
    pub(super) zeros: Vec<Lanes>,
    /// Totals of the splits before: maximum [rows], sum [rows], output [rows][v_cols].
    pub(super) total_max: Vec<f32>,
    /// See `total_max`.
    pub(super) total_sum: Vec<f32>,
    /// See `total_max`.
    pub(super) total_out: Vec<Lanes>,
    /// Where the block table has the first block of the item that follows, and which of its heads.
    pub(super) then: Option<(usize, usize)>,
    pub(super) rows: usize,
    k_dim: usize,
    v_dim: usize,
}

impl Scratch {
    /// Room for items of up to `heads / kv_heads` query heads a key head (the largest of all
    /// layers), keys of up to `k_dim` and values of up to `v_dim` columns.
    pub fn new(heads: usize, kv_heads: usize, k_dim: usize, v_dim: usize) -> Scratch {
        let rows = ITEM_ROWS.max(heads.div_ceil(kv_heads.max(1)));
        let lanes = |count: usize| vec![Lanes([0.0; 16]); count.div_ceil(GROUP)];
        let v_cols = v_dim.next_multiple_of(GROUP);
        Scratch {
            q: lanes(rows * k_dim.next_multiple_of(2)),
            q_scale: vec![0.0; most_segments(k_dim) * rows],
            k: lanes((k_dim.next_multiple_of(2) * TILE).max(v_cols)),
            v: lanes(TILE * value_stride(v_dim)),
            steady: lanes(TILES * k_dim.next_multiple_of(GROUP)),
            shifts: lanes(TILES * rows.next_multiple_of(GROUP)),
            scales: lanes(3 * TILE),
            s: lanes(BAND * TILE),
            tops: lanes(BAND * GROUP),
            p: lanes(BAND * TILE / 2),
            seen: vec![0..0; rows],
            max: vec![0.0; rows + GROUP],
            sum: lanes(rows * GROUP),
            out: lanes(rows * v_cols),
            zeros: lanes(v_cols),
            total_max: vec![0.0; rows],
            total_sum: vec![0.0; rows],
            total_out: lanes(rows * v_cols),
            then: None,
            rows,
            k_dim,
            v_dim,
        }
    }

    /// Bytes of all of it.
    pub fn bytes(&self) -> usize {
        let lanes = [
            &self.q,
            &self.k,
            &self.v,
            &self.steady,
            &self.shifts,
            &self.scales,
            &self.s,
            &self.tops,
            &self.p,
            &self.sum,
            &self.out,
            &self.zeros,
            &self.total_out,
        ];
        let words = [&self.q_scale, &self.max, &self.total_max, &self.total_sum];
        lanes.iter().map(|l| size_of_val(l.as_slice())).sum::<usize>()
            + words.iter().map(|w| size_of_val(w.as_slice())).sum::<usize>()
            + size_of_val(self.seen.as_slice())
    }

    /// Panics unless there is room for the item.
    pub(super) fn check(&self, job: &AttendJob<'_>, item: &Item) {
        assert!(item.tokens as usize <= item_tokens(job.heads, job.kv_heads), "tokens of the item");
        assert!(item.tokens as usize * job.group() <= self.rows, "rows of the scratch");
        assert!(job.k_dim <= self.k_dim && job.v_dim <= self.v_dim, "columns of the scratch");
    }
}

/// The f32s of lanes.
pub(super) fn floats(lanes: &mut [Lanes]) -> &mut [f32] {
    // SAFETY: `Lanes` is 16 f32s without padding.
    unsafe { std::slice::from_raw_parts_mut(lanes.as_mut_ptr().cast(), lanes.len() * 16) }
}

/// Lanes as 16-bit integers.
pub(super) fn shorts(lanes: &mut [Lanes]) -> &mut [i16] {
    // SAFETY: `Lanes` is 64 bytes without padding; every bit pattern is an i16.
    unsafe { std::slice::from_raw_parts_mut(lanes.as_mut_ptr().cast(), lanes.len() * 32) }
}

/// Lanes as 32-bit integers.
pub(super) fn words(lanes: &mut [Lanes]) -> &mut [i32] {
    // SAFETY: `Lanes` is 64 bytes without padding; every bit pattern is an i32.
    unsafe { std::slice::from_raw_parts_mut(lanes.as_mut_ptr().cast(), lanes.len() * 16) }
}
