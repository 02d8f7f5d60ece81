//! Attention by tensor cores: cases of the suite whose heads it takes, short ones and sequences of several splits.

use tokenmill_backend::Device;
use tokenmill_backend::reference::ReferenceDevice;
use tokenmill_device_tests::conformance::{
    Case, Pager, Tolerance, cases as all_cases, difference, outputs, wide_heads,
};
use tokenmill_ir::{Batch, BlockId, Mode, OutputKind, OutputRow, Span};

use crate::checks::{bits, steps_of};

/// Shapes whose heads have 64, 128 or 256 columns.
const SHAPES: [&str; 7] = [
    "9 heads on 3",
    "14 heads on 2, interleaved",
    "softcap, 8 heads on 1",
    "window of 20, heads of 64",
    "chunks of 20, heads of 64",
    "sinks, 20 heads of 64 on 1",
    "softcap, 6 heads of 256 on 2",
];

/// Cases that have many tokens, too.
const LONG: [&str; 4] = [
    "9 heads on 3 over Int8",
    "softcap, 8 heads on 1 over Bf16",
    "window of 20, heads of 64 over Bf16",
    "sinks, 20 heads of 64 on 1 over Bf16",
];

/// Formats of caches that it reads.
const FORMATS: [&str; 2] = ["Bf16", "Int8"];

/// What these kernels promise: queries and probabilities are rounded to bf16.
pub const PROMISE: Tolerance = Tolerance { nmse: 2e-5, max: 1e-2 };

/// Tokens of two sequences in each step: short and long runs of them, which end in all of three splits.
const LENGTHS: [[u32; 2]; 6] = [[300, 410], [1, 300], [240, 1], [5, 3], [1, 330], [4, 1]];

/// Cases of a few dozen tokens.
pub fn short(block: u32) -> Vec<Case> {
    let names: Vec<String> = SHAPES
        .iter()
        .flat_map(|shape| FORMATS.map(|f| format!("attention {shape} over {f}")))
        .collect();
    let all = all_cases(block).into_iter().chain(wide_heads(block));
    let own: Vec<Case> = all.filter(|c| names.contains(&c.name)).collect();
    assert_eq!(own.len(), names.len(), "cases of those names");
    own
}

/// Every token of a batch's sequences from the `from`-th on as outputs.
fn with_outputs(mut batch: Batch, from: usize) -> Batch {
    let row = |row| OutputRow { row, kind: OutputKind::Hidden };
    batch.outputs = (from as u32..batch.tokens.len() as u32).map(row).collect();
    batch
}

/// The id at a position of a sequence.
fn id(sequence: usize, position: u32) -> u32 {
    (position * 31 + position / 7 + 5 * sequence as u32) % 97
}

/// The same over sequences of many tokens, fed in such runs.
fn over(mut case: Case, block: u32, lengths: &[[u32; 2]]) -> Case {
    let context: u32 = 1200;
    case.limits.step_tokens = 1600;
    case.limits.outputs = 1600;
    case.limits.sequences = 2;
    case.limits.context = context;
    case.limits.group_blocks.fill(2 * context.div_ceil(block) + 4);
    let mut pager = Pager::new(&case.program, &case.limits, block);
    let mut done = [0u32; 2];
    let step = |lengths: &[u32; 2]| {
        let mut batch = Batch::default();
        for (sequence, &len) in lengths.iter().enumerate().filter(|(_, len)| **len > 0) {
            let ids: Vec<u32> = (0..len).map(|i| id(sequence, done[sequence] + i)).collect();
            pager.feed(&mut batch, (sequence, done[sequence]), ids.into_iter());
            done[sequence] += len;
        }
        with_outputs(batch, 0)
    };
    case.steps = lengths.iter().map(step).collect();
    case
}

/// Cases of up to a thousand tokens.
pub fn long(block: u32) -> Vec<Case> {
    let some = short(block).into_iter().filter(|case| LONG.iter().any(|l| case.name.ends_with(l)));
    some.map(|case| over(case, block, &LENGTHS)).collect()
}

/// All cases whose names have a part in them, against the reference: how many.
///
/// # Errors
/// The first that is off.
pub fn check(device: &dyn Device, only: &str) -> Result<usize, String> {
    let block = device.caps().block_tokens;
    let all = short(block).into_iter().chain(long(block));
    let mut count = 0;
    for case in all.filter(|case| case.name.contains(only)) {
        let failed = |e: tokenmill_backend::DeviceError| format!("{}: {e}", case.name);
        let found = outputs(device, Mode::Bf16, &case).map_err(failed)?;
        let truth = outputs(&ReferenceDevice::new(block), Mode::F32, &case).map_err(failed)?;
        for (step, (found, truth)) in found.iter().zip(&truth).enumerate() {
            let error = difference(&found.rows, &truth.rows)?;
            if error.nmse > PROMISE.nmse || error.max > PROMISE.max || found.rows.is_empty() {
                return Err(format!("{}, step {step}: {error:?}", case.name));
            }
        }
        count += 1;
    }
    Ok(count)
}

/// The bits of a row do not depend on how many tokens a step has, nor on which of them are computed side by side: rows of both
/// sequences fed in other runs.
///
/// # Errors
/// What differs.
pub fn runs(device: &dyn Device) -> Result<usize, String> {
    let block = device.caps().block_tokens;
    let mut count = 0;
    for case in long(block) {
        let name = case.name.clone();
        let failed = |e: tokenmill_backend::DeviceError| format!("{name}: {e}");
        // All at once; then the end of one token by token, of the other in small runs.
        let whole = over(case, block, &[[560, 1040]]);
        let rows = outputs(device, Mode::Bf16, &whole).map_err(failed)?;
        let per = rows[0].rows.len() / 1600;
        let (first, second) = rows[0].rows.split_at(560 * per);
        let mut lengths = vec![[500, 1001]];
        lengths.extend((0..10).map(|i| [if i < 9 { 1 } else { 51 }, i % 5 + 1]));
        lengths.push([0, 9]);
        let apart = over(whole, block, &lengths);
        let found = outputs(device, Mode::Bf16, &apart).map_err(failed)?;
        let (mut one, mut two) = (Vec::new(), Vec::new());
        for (lengths, out) in lengths.iter().zip(&found) {
            let (a, b) = out.rows.split_at(lengths[0] as usize * per);
            one.extend_from_slice(a);
            two.extend_from_slice(b);
        }
        for (now, before) in [(one, first), (two, second)] {
            let same = bits(&now).iter().zip(bits(before)).take_while(|(a, b)| **a == *b).count();
            if same != now.len() || now.len() != before.len() {
                return Err(format!("{name}: other bits from token {} on", same / per));
            }
        }
        count += 1;
    }
    Ok(count)
}

/// More sequences of several splits than there are places for: those without one have the bits of those with one.
///
/// # Errors
/// What differs.
pub fn crowd(device: &dyn Device) -> Result<(), String> {
    const SEQUENCES: u32 = 90;
    let block = device.caps().block_tokens;
    let case = short(block).into_iter().find(|case| case.name.contains("9 heads on 3 over Bf16"));
    let mut case = over(case.ok_or("no such case")?, block, &[[1100, 0]]);
    case.limits.sequences = SEQUENCES;
    case.limits.group_blocks.fill(200);
    // All have the same tokens: the prompt's blocks but the last, of which each has its own, filled by its own step.
    let begun = 1100 / block * block;
    let full = begun / block;
    let table = |sequence: u32| {
        let shared = case.steps[0].tables[..full as usize].to_vec();
        let free = (0..200).filter(|b| !case.steps[0].tables.contains(&BlockId(*b)));
        let own = free.skip(sequence as usize).take(1).map(BlockId);
        shared.into_iter().chain(own).collect::<Vec<_>>()
    };
    let mut steps = vec![with_outputs(case.steps[0].clone(), 0)];
    let mut batch = Batch::default();
    for sequence in 0..SEQUENCES {
        let tables = [batch.tables.len() as u32; 4];
        batch.tables.extend(table(sequence));
        batch.spans.push(Span { first: batch.tokens.len() as u32, len: 1, context: begun, tables });
        batch.tokens.push(tokenmill_ir::TokenSource::Id(id(0, begun)));
        batch.positions.push(begun);
    }
    steps.push(with_outputs(batch, 0));
    case.steps = steps;
    let name = case.name.clone();
    let failed = |e: tokenmill_backend::DeviceError| format!("{name}: {e}");
    let mut executable =
        tokenmill_device_tests::conformance::prepared(device, Mode::Bf16, &case).map_err(failed)?;
    let all = steps_of(&mut *executable, &case).map_err(failed)?;
    let (prompt, crowd) = (&all[0], &all[1]);
    let per = 9 * 64;
    let truth = &prompt[begun as usize * per..][..per];
    for (sequence, row) in crowd.chunks(per).take(SEQUENCES as usize).enumerate() {
        if row != truth {
            return Err(format!("{name}: sequence {sequence} has other bits"));
        }
    }
    Ok(())
}
