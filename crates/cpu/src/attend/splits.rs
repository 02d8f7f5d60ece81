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

per_isa! {
    /// Forgets all splits of the first `rows` rows.
    clear(scratch: &mut Scratch, rows: usize, v_dim: usize) = forget;
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
fn forget(scratch: &mut Scratch, rows: usize, v_dim: usize) {
    scratch.total_max[..rows].fill(f32::NEG_INFINITY);
    scratch.total_sum[..rows].fill(0.0);
    floats(&mut scratch.total_out)[..rows * v_dim.next_multiple_of(GROUP)].fill(0.0);
}

#[inline(always)]
fn merge_rows(scratch: &mut Scratch, rows: usize, v_dim: usize) {
    let v_cols = v_dim.next_multiple_of(GROUP);
    let out = floats(&mut scratch.out).chunks_exact(v_cols);
    let total_out = floats(&mut scratch.total_out).chunks_exact_mut(v_cols);
    for (row, (out, total_out)) in out.zip(total_out).take(rows).enumerate() {
        let total = (&mut scratch.total_max[row], &mut scratch.total_sum[row], total_out);
        join(total, (scratch.max[row], tree(scratch.sum[row].0), out));
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
    let total_out = floats(&mut scratch.total_out).chunks_exact_mut(v_cols);
    let part = part.chunks_exact(part_row(v_dim));
    for (row, (part, total_out)) in part.zip(total_out).enumerate() {
        let total = (&mut scratch.total_max[row], &mut scratch.total_sum[row], total_out);
        join(total, (part[0], part[1], &part[PART_HEAD..]));
    }
}

/// A split of a row (maximum, sum, output) joins its total.
#[inline(always)]
fn join(total: (&mut f32, &mut f32, &mut [f32]), split: (f32, f32, &[f32])) {
    let (total_max, total_sum, total_out) = total;
    let (max, sum, out) = split;
    if sum == 0.0 {
        return;
    }
    if *total_sum == 0.0 {
        (*total_max, *total_sum) = (max, sum);
        total_out.copy_from_slice(out);
        return;
    }
    let new = total_max.max(max);
    let (x, y) = (exp(*total_max - new), exp(max - new));
    *total_max = new;
    *total_sum = total_sum.mul_add(x, sum * y);
    for (o, part) in total_out.iter_mut().zip(out) {
        *o = o.mul_add(x, part * y);
    }
}

#[inline(always)]
fn finish_row(scratch: &mut Scratch, sinks: Sinks<'_>, v_dim: usize, row: usize, out: &mut [f32]) {
    let v_cols = v_dim.next_multiple_of(GROUP);
    let total = &floats(&mut scratch.total_out)[row * v_cols..][..v_dim];
    let (max, mut sum) = (scratch.total_max[row], scratch.total_sum[row]);
    let mut x = 1.0;
    if let Some(sinks) = sinks {
        let sink = sinks[row % sinks.len()];
        let new = max.max(sink);
        x = exp(max - new);
        sum = sum.mul_add(x, exp(sink - new));
    } else if sum == 0.0 {
        out.fill(0.0);
        return;
    }
    let inverse = 1.0 / sum;
    for (out, o) in out.iter_mut().zip(total) {
        *out = (o * x).mul_add(inverse, 0.0);
    }
}
