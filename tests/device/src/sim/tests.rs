//! Faults of a scheduler are seen; the oracle agrees with the device.

use super::*;
use tokenmill_ir::{OutputKind, OutputRow};

const KINDS: [GroupKind; 3] = [GroupKind::Full, GroupKind::Window { tokens: 3 }, GroupKind::State];

fn limits() -> Limits {
    Limits {
        step_tokens: 16,
        sequences: 4,
        outputs: 16,
        context: 64,
        group_blocks: vec![8, 8, 2],
        top_logprobs: 0,
    }
}

fn device() -> Box<dyn Executable> {
    let backend = SimDevice::new(4, SimControl::default());
    backend.executable(&program(&KINDS, 50, 4), &limits()).unwrap()
}

/// Tokens `context..` of a text, with blocks 0, 1, … of each group and slot 0.
fn batch(text: &[TokenId], context: u32) -> Batch {
    let len = text.len() as u32 - context;
    let mut batch = Batch::default();
    batch.tokens.extend(text[context as usize..].iter().map(|&t| TokenSource::Id(t)));
    batch.positions.extend(context..context + len);
    let slot = if context == 0 { BlockId::NONE } else { BlockId(0) };
    batch.tables.extend([0, 1, 2].map(BlockId));
    batch.tables.extend([slot, BlockId(0)]);
    batch.spans.push(Span { first: 0, len, context, tables: [0, 0, 3, 0] });
    batch.outputs.push(OutputRow { row: len - 1, kind: OutputKind::Logits });
    batch
}

fn step(device: &mut dyn Executable, batch: &Batch) -> Vec<f32> {
    let mut out = StepOutput::default();
    device.submit(&mut batch.clone()).unwrap();
    device.wait(&mut out).unwrap();
    out.rows
}

#[test]
fn chunks_give_what_the_oracle_gives() {
    let text = [5, 9, 2, 8, 1, 7, 3];
    let mut oracle = SimText::new(&KINDS);
    let digest = text.iter().map(|&t| oracle.push(t)).last().unwrap();
    let mut expect = vec![0.0; 50];
    SimText::row(digest, &mut expect);
    for cut in 1..text.len() {
        let mut device = device();
        step(device.as_mut(), &batch(&text[..cut], 0));
        assert_eq!(step(device.as_mut(), &batch(&text, cut as u32)), expect, "cut at {cut}");
    }
}

#[test]
fn a_changed_token_far_back_changes_the_row() {
    let row = |first| step(device().as_mut(), &batch(&[first, 9, 2, 8, 1, 7, 3], 0));
    assert_ne!(row(5), row(6));
}

#[test]
#[should_panic(expected = "wrong token")]
fn a_stale_block_is_noticed() {
    let mut device = device();
    step(device.as_mut(), &batch(&[5, 9, 2, 8, 1], 0));
    let mut next = batch(&[5, 9, 2, 8, 1, 7], 5);
    next.tables[0] = BlockId(2);
    step(device.as_mut(), &next);
}

#[test]
#[should_panic(expected = "two spans write")]
fn a_block_written_twice_is_noticed() {
    let mut twice = batch(&[5, 9], 0);
    twice.tokens.extend_from_within(..);
    twice.positions.extend_from_within(..);
    twice.spans.push(Span { first: 2, ..twice.spans[0] });
    step(device().as_mut(), &twice);
}

#[test]
fn told_faults_happen() {
    let control = SimControl::default();
    control.fail_at(1);
    control.nan_on(9);
    let backend = SimDevice::new(4, control.clone());
    let mut device = backend.executable(&program(&KINDS, 50, 4), &limits()).unwrap();
    assert!(step(device.as_mut(), &batch(&[5, 9], 0)).iter().all(|x| x.is_nan()));
    let failed = device.submit(&mut batch(&[5, 9, 2], 2));
    assert!(matches!(failed, Err(DeviceError::Failed { .. })));
    assert_eq!(control.steps(), 2);
}
