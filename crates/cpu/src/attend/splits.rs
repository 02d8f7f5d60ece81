//! Joining the splits of rows: what is common to every instruction set.

use super::layout::GROUP;
use super::scratch::floats;
use super::{AttendJob, Item, Scratch};
use crate::isa::Isa;
use crate::math::{exp, per_isa, tree};

/// f32s before the outputs of a row in a part: its maximum and its sum.
const PART_HEAD: usize = 16;

/// f32s of a row of a part.
pub(super) const fn part_row(v_dim: usize) -> usize {
    PART_HEAD + v_dim.next_multiple_of(GROUP)
}

/// Forgets all splits of the first `rows` rows.
pub(super) fn clear(scratch: &mut Scratch, rows: usize) {
    scratch.total_max[..rows].fill(f32::NEG_INFINITY);
    scratch.total_sum[..rows].fill(0.0);
}

per_isa! {
    /// The split in the scratch joins the totals.
    merge(scratch: &mut Scratch, rows: usize, v_dim: usize) = merge_rows;
    /// Copies the split in the scratch to a part.
    save(scratch: &mut Scratch, rows: usize, v_dim: usize, part: &mut [f32]) = save_rows;
    /// A saved part joins the totals.
    merge_part(scratch: &mut Scratch, v_dim: usize, part: &[f32]) = merge_saved;
    /// Sinks join the totals, and the sums become results.
    finish(scratch: &mut Scratch, sinks: Sinks<'_>, v_dim: usize, row: usize, out: &mut [f32])
        = finish_row;
}

/// The sinks of the rows, in their order: those of the group's heads again and again.
pub(super) type Sinks<'a> = Option<&'a [f32]>;

/// The sinks of an item's group.
pub(super) fn sinks_of<'a>(job: &AttendJob<'a>, item: &Item) -> Sinks<'a> {
    let (head, group) = (item.kv_head as usize, job.group());
    job.sinks.map(|s| &s[head * group..(head + 1) * group])
}

#[inline(always)]
fn merge_rows(scratch: &mut Scratch, rows: usize, v_dim: usize) {
    if scratch.total_sum[..rows].iter().all(|&sum| sum == 0.0) {
        // Nothing has joined yet: the split is the total.
        std::mem::swap(&mut scratch.out, &mut scratch.total_out);
        scratch.total_max[..rows].copy_from_slice(&scratch.max[..rows]);
        let sums = scratch.total_sum.iter_mut().zip(&scratch.sum);
        sums.take(rows).for_each(|(total, lanes)| *total = tree(lanes.0));
        return;
    }
    let v_cols = v_dim.next_multiple_of(GROUP);
    let out = floats(&mut scratch.out);
    let total_out = floats(&mut scratch.total_out);
    for first in (0..rows).step_by(GROUP) {
        let rows = first..rows.min(first + GROUP);
        let max = &scratch.max[rows.clone()];
        let weights = Weights::of(&scratch.total_max[rows.clone()], max.iter().copied());
        for (i, row) in rows.enumerate() {
            let cols = row * v_cols..(row + 1) * v_cols;
            let total = (&mut scratch.total_max[row], &mut scratch.total_sum[row]);
            let split = (scratch.max[row], tree(scratch.sum[row].0));
            weights.join(i, total, split, &mut total_out[cols.clone()], &out[cols]);
        }
    }
}

#[inline(always)]
fn save_rows(scratch: &mut Scratch, rows: usize, v_dim: usize, part: &mut [f32]) {
    let v_cols = v_dim.next_multiple_of(GROUP);
    let out = floats(&mut scratch.out).chunks_exact(v_cols);
    let to = part.chunks_exact_mut(part_row(v_dim));
    for (row, (out, to)) in out.zip(to).take(rows).enumerate() {
        (to[0], to[1]) = (scratch.max[row], tree(scratch.sum[row].0));
        to[PART_HEAD..].copy_from_slice(out);
    }
}

#[inline(always)]
fn merge_saved(scratch: &mut Scratch, v_dim: usize, part: &[f32]) {
    let v_cols = v_dim.next_multiple_of(GROUP);
    let total_out = floats(&mut scratch.total_out);
    let row_of = |row: usize| &part[row * part_row(v_dim)..][..part_row(v_dim)];
    let rows = part.len() / part_row(v_dim);
    for first in (0..rows).step_by(GROUP) {
        let rows = first..rows.min(first + GROUP);
        let max = rows.clone().map(|row| row_of(row)[0]);
        let weights = Weights::of(&scratch.total_max[rows.clone()], max);
        for (i, row) in rows.enumerate() {
            let split = row_of(row);
            let total = (&mut scratch.total_max[row], &mut scratch.total_sum[row]);
            let out = &mut total_out[row * v_cols..(row + 1) * v_cols];
            weights.join(i, total, (split[0], split[1]), out, &split[PART_HEAD..]);
        }
    }
}

/// What 16 rows' totals and splits are multiplied by where they join, and the greater maxima: of many rows at once, since
/// the powers of one take long.
struct Weights {
    max: [f32; GROUP],
    total: [f32; GROUP],
    split: [f32; GROUP],
}

impl Weights {
    /// From the maxima of the totals, and of the splits.
    #[inline(always)]
    fn of(total_max: &[f32], split_max: impl Iterator<Item = f32>) -> Weights {
        let (mut total, mut split) = ([0.0; GROUP], [0.0; GROUP]);
        total[..total_max.len()].copy_from_slice(total_max);
        split.iter_mut().zip(split_max).for_each(|(split, max)| *split = max);
        let mut max = [0.0; GROUP];
        for ((max, total), split) in max.iter_mut().zip(&mut total).zip(&mut split) {
            *max = total.max(*split);
            (*total, *split) = (exp(*total - *max), exp(*split - *max));
        }
        Weights { max, total, split }
    }

    /// A split (maximum, sum, output) joins the total of the same row, row `i` of those.
    #[inline(always)]
    fn join(
        &self,
        i: usize,
        (total_max, total_sum): (&mut f32, &mut f32),
        (max, sum): (f32, f32),
        total_out: &mut [f32],
        out: &[f32],
    ) {
        if sum == 0.0 {
            return;
        }
        if *total_sum == 0.0 {
            (*total_max, *total_sum) = (max, sum);
            total_out.copy_from_slice(out);
            return;
        }
        let (x, y) = (self.total[i], self.split[i]);
        *total_max = self.max[i];
        *total_sum = total_sum.mul_add(x, sum * y);
        for (o, part) in total_out.iter_mut().zip(out) {
            *o = o.mul_add(x, part * y);
        }
    }
}

#[inline(always)]
fn finish_row(scratch: &mut Scratch, sinks: Sinks<'_>, v_dim: usize, row: usize, out: &mut [f32]) {
    let v_cols = v_dim.next_multiple_of(GROUP);
    let total = &floats(&mut scratch.total_out)[row * v_cols..][..v_dim];
    let (max, mut sum) = (scratch.total_max[row], scratch.total_sum[row]);
    if sum == 0.0 {
        out.fill(0.0);
        return;
    }
    let mut x = 1.0;
    if let Some(sinks) = sinks {
        let sink = sinks[row % sinks.len()];
        let new = max.max(sink);
        x = exp(max - new);
        sum = sum.mul_add(x, exp(sink - new));
    }
    let inverse = 1.0 / sum;
    for (out, o) in out.iter_mut().zip(total) {
        *out = (o * x).mul_add(inverse, 0.0);
    }
}
