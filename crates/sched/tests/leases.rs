//! Leases: what is kept stays, within a quota, and never at the cost of a sequence's place.

use tokenmill_ir::{GroupKind, Limits, Sampled, StepOutput, TokenId};
use tokenmill_sched::{Config, LeaseWish, NewSequence, Scheduler, Step, StepCost, Want};

const SIZE: u32 = 4;

fn scheduler(groups: &[GroupKind], blocks: u32) -> Scheduler {
    let limits = Limits {
        step_tokens: 32,
        sequences: 4,
        outputs: 16,
        context: SIZE * blocks,
        group_blocks: vec![blocks; groups.len()],
        top_logprobs: 0,
    };
    Scheduler::new(Config {
        groups: groups.to_vec(),
        block_tokens: SIZE,
        limits,
        whole_sequences: false,
        vocab: 100,
        hidden: 1,
        cost: StepCost::new(1e-3, 1e-4, 0.0),
        step_s: 1.0,
        checkpoint_slots: 8,
        longest_block: 0,
    })
}

fn text(seed: u32, len: u32) -> Vec<TokenId> {
    (0..len).map(|i| (i * 7 + seed * 13) % 100).collect()
}

fn submit(sched: &mut Scheduler, prompt: &[TokenId]) {
    let want = Want::tokens(Default::default());
    let (tokens, max_len) = (prompt.to_vec(), prompt.len() as u32 + 1);
    let new = NewSequence { salt: 1, ..NewSequence::new(tokens, max_len, want) };
    sched.submit(new).unwrap();
}

/// Computes everything; tokens computed.
fn run(sched: &mut Scheduler) -> u32 {
    let (mut step, mut progress, mut computed) = (Step::default(), Vec::new(), 0);
    for _ in 0..1000 {
        sched.plan(&mut step);
        if step.is_empty() {
            assert!(sched.is_idle(), "somebody waits for ever");
            return computed;
        }
        computed += step.tokens;
        let mut out = StepOutput::default();
        let sampled = Sampled { token: 3, valid: true, ..Sampled::default() };
        out.sampled.resize(step.outputs as usize, sampled);
        sched.commit(&step, &out, &mut progress);
        sched.check();
    }
    panic!("no end");
}

fn compute(sched: &mut Scheduler, prompt: &[TokenId]) -> u32 {
    submit(sched, prompt);
    run(sched)
}

fn lease(sched: &mut Scheduler, account: u64, name: u64, tokens: &[TokenId], until_s: f64) -> u32 {
    lease_within(sched, (account, 100), name, tokens, until_s)
}

/// The same for an account that may keep so many percent.
fn lease_within(
    sched: &mut Scheduler,
    (account, percent): (u64, u32),
    name: u64,
    tokens: &[TokenId],
    until_s: f64,
) -> u32 {
    let kept = sched.lease(&LeaseWish { account, salt: 1, name, tokens, until_s, percent });
    sched.check();
    kept
}

/// Fills the cache with other texts.
fn flood(sched: &mut Scheduler) {
    for seed in 50..60 {
        compute(sched, &text(seed, 33));
    }
}

#[test]
fn what_is_leased_stays_until_its_time_is_over() {
    let window = GroupKind::Window { tokens: 6 };
    for groups in
        [&[GroupKind::Full][..], &[GroupKind::Full, window], &[GroupKind::Full, GroupKind::State]]
    {
        let mut sched = scheduler(groups, 40);
        let (kept, other) = (text(1, 33), text(2, 33));
        compute(&mut sched, &kept);
        compute(&mut sched, &other);
        assert_eq!(lease(&mut sched, 1, 0, &kept, 10.0), 32, "{groups:?}: whole blocks");
        flood(&mut sched);
        assert_eq!(compute(&mut sched, &other), 33, "{groups:?}");
        assert_eq!(compute(&mut sched, &kept), 1, "{groups:?}");
        sched.end_leases(9.9);
        assert_eq!(sched.leases().count(), 1);
        sched.end_leases(10.0);
        assert_eq!(sched.leases().count(), 0);
        flood(&mut sched);
        assert_eq!(compute(&mut sched, &kept), 33, "{groups:?}: as any other");
    }
}

#[test]
fn the_quota_is_a_quarter_for_one_and_half_for_all() {
    let mut sched = scheduler(&[GroupKind::Full], 64);
    let texts: Vec<_> = (0..8).map(|seed| text(seed, 25)).collect();
    for t in &texts {
        compute(&mut sched, t);
    }
    let kept = |sched: &Scheduler, account: u64| -> Vec<f64> {
        sched.leases().filter(|l| l.account == account).map(|l| l.until_s).collect()
    };
    // 16 blocks are one account's quota, and a text has 6.
    for (i, (text, until_s)) in texts.iter().zip([5.0, 3.0, 4.0]).enumerate() {
        assert_eq!(lease(&mut sched, 1, 0, text, until_s), 24, "text {i}");
    }
    assert_eq!(kept(&sched, 1), [5.0, 4.0], "the one that ends first gave way");
    assert_eq!(lease(&mut sched, 2, 0, &texts[3], 1.0), 24);
    assert_eq!(lease(&mut sched, 2, 0, &texts[4], 1.0), 24);
    assert_eq!(lease(&mut sched, 3, 0, &texts[5], 1.0), 24);
    assert_eq!(lease(&mut sched, 4, 0, &texts[6], 1.0), 0, "all have 30 of 32 blocks");
    assert_eq!(sched.leases().map(|l| l.tokens).sum::<u32>(), 5 * 24);
    assert_eq!(sched.give_up_leases(Some(2)), 2);
    assert_eq!(lease(&mut sched, 4, 0, &texts[6], 1.0), 24);
    // Longer than the quota: its beginning.
    assert_eq!(sched.give_up_leases(None), 4);
    let long = text(9, 120);
    compute(&mut sched, &long);
    assert_eq!(lease(&mut sched, 2, 0, &long, 1.0), 64);
}

#[test]
fn an_account_may_be_given_less_and_never_more() {
    let mut sched = scheduler(&[GroupKind::Full], 64);
    let texts: Vec<_> = (0..3).map(|seed| text(seed, 25)).collect();
    let long = text(9, 120);
    texts.iter().chain([&long]).for_each(|t| {
        compute(&mut sched, t);
    });
    // 10 % are 6 blocks: one text, of which the next takes the place.
    assert_eq!(lease_within(&mut sched, (1, 10), 0, &texts[0], 5.0), 24);
    assert_eq!(lease_within(&mut sched, (1, 10), 0, &texts[1], 6.0), 24);
    assert_eq!(sched.leases().count(), 1);
    assert_eq!(lease_within(&mut sched, (1, 5), 0, &texts[2], 5.0), 12, "3 blocks");
    assert_eq!(lease_within(&mut sched, (2, 0), 0, &texts[2], 5.0), 0);
    assert_eq!(sched.give_up_leases(None), 1);
    compute(&mut sched, &long);
    assert_eq!(lease_within(&mut sched, (1, 100), 0, &long, 1.0), 64, "a quarter all the same");
}

#[test]
fn a_conversation_that_grows_has_one_lease() {
    let mut sched = scheduler(&[GroupKind::Full], 100);
    let talk = text(1, 61);
    compute(&mut sched, &talk);
    assert_eq!(lease(&mut sched, 1, 0, &talk[..20], 5.0), 20);
    assert_eq!(lease(&mut sched, 1, 0, &talk[..40], 6.0), 40);
    assert_eq!(sched.leases().count(), 1, "the longer one covers it");
    assert_eq!(lease(&mut sched, 1, 0, &talk[..20], 5.0), 20);
    assert_eq!(sched.leases().count(), 1, "covered already");
    assert_eq!(lease(&mut sched, 1, 0, &talk[..20], 9.0), 20);
    assert_eq!(sched.leases().count(), 2, "the shorter one stays longer");
    assert_eq!(lease(&mut sched, 1, 7, &talk[..8], 1.0), 8);
    assert_eq!(lease(&mut sched, 1, 7, &talk[..12], 1.0), 12);
    assert_eq!(sched.leases().count(), 3, "one of a name");
    assert_eq!(lease(&mut sched, 2, 0, &text(3, 20), 1.0), 0, "nothing is cached");
    sched.device_lost();
    assert_eq!(sched.leases().count(), 0, "nothing is there any more");
    sched.check();
}

#[test]
fn a_sequence_alone_takes_leased_memory_and_none_is_stuck() {
    let mut sched = scheduler(&[GroupKind::Full], 40);
    for account in 0..2 {
        let kept = text(account, 37);
        compute(&mut sched, &kept);
        assert_eq!(lease(&mut sched, u64::from(account), 0, &kept, f64::from(account)), 36);
    }
    // 22 of 40 blocks are left: each waits for the others, and none needs a lease's.
    (10..14).for_each(|seed| submit(&mut sched, &text(seed, 60)));
    run(&mut sched);
    assert_eq!((sched.leases().count(), sched.counts().broken_leases), (2, 0));
    compute(&mut sched, &text(20, 100));
    assert_eq!((sched.leases().count(), sched.counts().broken_leases), (1, 1));
    assert_eq!(sched.leases().next().map(|l| l.account), Some(1), "the one that ends first went");
    compute(&mut sched, &text(21, 159));
    assert_eq!(sched.counts().broken_leases, 2, "one sequence always fits");
}
