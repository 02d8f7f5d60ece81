//! What is written of a text with states, in which order, and what is found again.

use std::time::Duration;

use tokenmill_disk_tests::SimDisk;
use tokenmill_ir::{Batch, StepOutput};

use super::*;

const BLOCK_TOKENS: u32 = 4;
const SALT: u64 = 7;
const FULL_AND_STATE: [GroupKind; 2] = [GroupKind::Full, GroupKind::State];

/// A device whose blocks can be told apart.
struct Blocks;

impl Executable for Blocks {
    fn submit(&mut self, _: &mut Batch) -> Result<(), DeviceError> {
        Ok(())
    }

    fn advance(&mut self, _: Duration) -> Result<bool, DeviceError> {
        Ok(true)
    }

    fn resize(&mut self, _: &[u32]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn wait(&mut self, _: &mut StepOutput) -> Result<(), DeviceError> {
        Ok(())
    }

    fn read_block(&mut self, g: usize, b: BlockId, out: &mut [u8]) -> Result<(), DeviceError> {
        out.fill(pattern(g, b));
        Ok(())
    }
}

fn pattern(group: usize, block: BlockId) -> u8 {
    (100 * group as u32 + block.0) as u8
}

fn tier(disk: &SimDisk, kinds: &[GroupKind], state_bytes: usize) -> (Tier, TierWorker) {
    let key = Key::of([b"model".as_slice()]);
    let options = LogOptions { cap_bytes: 1 << 30, floor_bytes: 0, segment_bytes: 1 << 28 };
    let log = Log::open(Box::new(disk.files()), key, options).unwrap();
    let bytes = |kind: &GroupKind| if *kind == GroupKind::State { state_bytes } else { 16 };
    let groups = kinds.iter().map(bytes).collect();
    let blocks = BlockBytes { layout: "bytes".into(), groups };
    Tier::new(log, key, blocks, kinds, BLOCK_TOKENS).unwrap()
}

/// A text of that many blocks with states at its end, and in the middle, where nobody needs them.
fn text(kinds: &[GroupKind], first: TokenId, blocks: u32) -> CachedText {
    let block = |i: u32| {
        let mut all = [BlockId::NONE; MAX_GROUPS];
        for (g, kind) in kinds.iter().enumerate() {
            if *kind != GroupKind::State || i + 1 == blocks || i == 9 {
                all[g] = BlockId(i);
            }
        }
        all
    };
    let tokens = (first..).take((blocks * BLOCK_TOKENS) as usize).collect();
    CachedText { salt: SALT, tokens, blocks: (0..blocks).map(block).collect() }
}

/// A prompt that begins with a text.
fn prompt(text: &CachedText) -> Vec<TokenId> {
    [&text.tokens[..], &[0, 0]].concat()
}

#[test]
fn states_are_written_first_and_read_last() {
    let disk = SimDisk::new(1);
    let (mut tier_a, mut worker) = tier(&disk, &FULL_AND_STATE, 24);
    let kept = text(&FULL_AND_STATE, 1, 18);
    let prompt = prompt(&kept);
    for _ in 0..3 {
        assert_eq!(tier_a.offer(&kept, &mut Blocks), Offer::Queued);
    }
    assert_eq!(tier_a.offer(&kept, &mut Blocks), Offer::Settled);
    for written in 0..3 {
        assert_eq!(tier_a.begin(SALT, &prompt, 0), None, "{written} of 3 records are there");
        assert!(worker.step());
    }
    assert!(!worker.step(), "the states in the middle are no record");
    drop((tier_a, worker));

    let (mut tier, mut worker) = tier(&disk, &FULL_AND_STATE, 24);
    assert_eq!(tier.offer(&kept, &mut Blocks), Offer::Settled, "all of it is there");
    assert_eq!(tier.begin(SALT + 1, &prompt, 0), None, "another salt");
    assert_eq!(tier.begin(SALT, &prompt[..72], 0), None, "its last token is computed");
    assert_eq!(tier.begin(SALT, &prompt, 72), None, "memory has it");
    let mut other = prompt.clone();
    other[70] += 1;
    assert_eq!(tier.begin(SALT, &other, 0), None, "another text");
    assert_eq!(tier.begin(SALT, &prompt, 40).map(|j| j.tokens), Some(72));
    assert_eq!(tier.begin(SALT, &prompt, 0).map(|j| (j.number, j.tokens)), Some((2, 72)));
    let mut seen = 0;
    while worker.step() {
        while let Some(part) = tier.take_done().filter(|p| p.job == 2) {
            let payload = part.payload.expect("a whole record");
            let blocks = part.first / BLOCK_TOKENS..(part.first + part.tokens) / BLOCK_TOKENS;
            for (i, block) in (0..).zip(blocks) {
                let state = part.state && block == 17;
                let bytes = |g, n| Some([pattern(g, BlockId(block))].repeat(n));
                assert_eq!(tier.block(&payload, 0, i).map(<[u8]>::to_vec), bytes(0, 16));
                let found = tier.block(&payload, 1, i).map(<[u8]>::to_vec);
                assert_eq!(found, if state { bytes(1, 24) } else { None });
            }
            assert_eq!((part.first, part.state), (32 * seen, seen == 2));
            seen += 1;
        }
    }
    assert_eq!(seen, 3);
}

#[test]
fn an_end_at_a_runs_end_is_not_that_run() {
    let disk = SimDisk::new(1);
    let (mut tier, mut worker) = tier(&disk, &FULL_AND_STATE, 24);
    let (short, long) = (text(&FULL_AND_STATE, 1, 16), text(&FULL_AND_STATE, 1, 17));
    for kept in [&short, &long] {
        while tier.offer(kept, &mut Blocks) == Offer::Queued {}
    }
    while worker.step() {}
    assert_eq!(worker.log.stats().records, 4, "two ends, two runs");
    assert_eq!(tier.begin(SALT, &prompt(&long), 0).map(|j| j.tokens), Some(68));
    assert_eq!(tier.begin(SALT, &prompt(&short), 0).map(|j| j.tokens), Some(64));
}

#[test]
fn states_alone_have_no_runs() {
    let disk = SimDisk::new(1);
    let kinds = [GroupKind::State, GroupKind::State];
    let (mut tier, mut worker) = tier(&disk, &kinds, 24);
    let kept = text(&kinds, 1, 18);
    assert_eq!(tier.offer(&kept, &mut Blocks), Offer::Queued);
    assert_eq!(tier.offer(&kept, &mut Blocks), Offer::Settled);
    while worker.step() {}
    assert_eq!(tier.begin(SALT, &prompt(&kept), 0).map(|j| j.tokens), Some(72));
    while worker.step() {}
    let part = tier.take_done().expect("a part");
    assert_eq!((part.first, part.tokens, part.state), (64, 8, true));
}

#[test]
fn a_text_whose_states_are_gone_is_not_kept() {
    let (tier, mut worker) = tier(&SimDisk::new(1), &FULL_AND_STATE, 24);
    let mut kept = text(&FULL_AND_STATE, 1, 18);
    kept.blocks[17][1] = BlockId::NONE;
    assert_eq!(tier.offer(&kept, &mut Blocks), Offer::Settled);
    assert!(!worker.step());
}

#[test]
fn large_states_wait_for_the_queue() {
    for state_bytes in [QUEUE_BYTES * 5 / 8, QUEUE_BYTES + 1] {
        let (tier, mut worker) = tier(&SimDisk::new(1), &[GroupKind::State], state_bytes);
        let [a, b] = [1, 2].map(|first| text(&[GroupKind::State], first, 8));
        assert_eq!(tier.offer(&a, &mut Blocks), Offer::Queued, "however large");
        assert_eq!(tier.offer(&b, &mut Blocks), Offer::Full);
        assert!(worker.step());
        assert_eq!(tier.offer(&b, &mut Blocks), Offer::Queued);
        assert_eq!(tier.shared.lock().spare.len(), 0, "nor is the memory of one kept");
    }
}
