//! Runs of blocks that leave the prefix tree as text and come back into it from outside.

use tokenmill_ir::{BlockId, GroupKind, Limits, MAX_GROUPS, Sampled, StepOutput, TokenId};
use tokenmill_sched::{Adoption, Config, NewSequence, Scheduler, Step, StepCost, Want};

const SIZE: u32 = 4;
const RUN: u32 = 2;

fn config(groups: &[GroupKind], blocks: u32) -> Config {
    let limits = Limits {
        step_tokens: 16,
        sequences: 4,
        outputs: 16,
        context: 64,
        group_blocks: vec![blocks; groups.len()],
        top_logprobs: 0,
    };
    Config {
        groups: groups.to_vec(),
        block_tokens: SIZE,
        limits,
        whole_sequences: false,
        vocab: 100,
        hidden: 1,
        cost: StepCost::new(1e-3, 1e-4, 0.0),
        step_s: 1.0,
        checkpoint_slots: 2,
        longest_block: 0,
    }
}

fn scheduler(groups: &[GroupKind], blocks: u32) -> Scheduler {
    let mut sched = Scheduler::new(config(groups, blocks));
    sched.note_runs(RUN);
    sched
}

fn text(len: u32) -> Vec<TokenId> {
    (0..len).map(|i| i * 7 % 100).collect()
}

/// Computes a prompt and one token.
fn compute(sched: &mut Scheduler, prompt: &[TokenId]) -> u32 {
    let want = Want::tokens(Default::default());
    let (tokens, max_len) = (prompt.to_vec(), prompt.len() as u32 + 1);
    sched.submit(NewSequence { salt: 1, ..NewSequence::new(tokens, max_len, want) }).unwrap();
    let (mut step, mut progress, mut computed) = (Step::default(), Vec::new(), 0);
    loop {
        sched.plan(&mut step);
        if step.is_empty() {
            return computed;
        }
        computed += step.tokens;
        let mut out = StepOutput::default();
        let sampled = Sampled { token: 3, valid: true, ..Sampled::default() };
        out.sampled.resize(step.outputs as usize, sampled);
        sched.commit(&step, &out, &mut progress);
        sched.check();
    }
}

/// Offers blocks of the text from `first` on; the tokens that are there then, and what was filled.
fn adopt(sched: &mut Scheduler, text: &[TokenId], first: u32, mask: u32) -> (u32, usize) {
    let mut filled = 0;
    let new = Adoption { salt: 1, tokens: text, first, present: [mask; MAX_GROUPS], state: false };
    let reached = sched.adopt(&new, &mut |_, _, _| {
        filled += 1;
        true
    });
    sched.check();
    (reached, filled)
}

#[test]
fn a_sound_answer_names_its_text() {
    let mut sched = scheduler(&[GroupKind::Full, GroupKind::Window { tokens: 5 }], 12);
    assert_eq!(sched.noted_text(), None);
    compute(&mut sched, &text(21));
    let noted = sched.noted_text().expect("five blocks, two runs");
    assert_eq!((noted.salt, &noted.tokens[..]), (1, &text(16)[..]));
    assert_eq!(noted.blocks.len(), 4);
    assert!(noted.blocks.iter().all(|b| b[0] != BlockId::NONE), "{noted:?}");
    sched.forget_noted();
    assert_eq!(sched.noted_text(), None);
    compute(&mut sched, &text(7));
    assert_eq!(sched.noted_text(), None, "no whole run");
}

#[test]
fn adopted_blocks_are_found_like_computed_ones() {
    for groups in [&[GroupKind::Full][..], &[GroupKind::Full, GroupKind::Window { tokens: 9 }]] {
        let mut sched = scheduler(groups, 20);
        let prompt = text(21);
        assert_eq!(sched.cached_tokens(1, &prompt), 0);
        assert_eq!(adopt(&mut sched, &prompt[..8], 0, 0b11), (8, 2 * groups.len()));
        assert_eq!(adopt(&mut sched, &prompt[..16], 2, 0b11), (16, 2 * groups.len()));
        assert_eq!(sched.cached_tokens(1, &prompt), 16);
        assert_eq!(sched.cached_tokens(2, &prompt), 0, "another salt");
        assert_eq!(compute(&mut sched, &prompt), 5, "{groups:?}");
    }
}

#[test]
fn what_is_there_is_not_filled_again() {
    let mut sched = scheduler(&[GroupKind::Full], 20);
    compute(&mut sched, &text(13));
    assert_eq!(adopt(&mut sched, &text(20), 0, 0b11111), (20, 2));
    assert_eq!(adopt(&mut sched, &text(28), 6, 0b1), (20, 0), "a gap is not bridged");
}

#[test]
fn window_blocks_may_be_missing_and_come_back() {
    let mut sched = scheduler(&[GroupKind::Full, GroupKind::Window { tokens: 5 }], 20);
    let prompt = text(17);
    let mut present = [0b1111; MAX_GROUPS];
    present[1] = 0;
    let without = Adoption { salt: 1, tokens: &prompt[..16], first: 0, present, state: false };
    assert_eq!(sched.adopt(&without, &mut |_, _, _| true), 16);
    sched.check();
    assert_eq!(sched.cached_tokens(1, &prompt), 0, "no window, no hit");
    present[1] = 0b1110;
    let with = Adoption { present, ..without };
    let mut filled = Vec::new();
    let mut fill = |group, i, _| {
        filled.push((group, i));
        true
    };
    assert_eq!(sched.adopt(&with, &mut fill), 16);
    sched.check();
    assert_eq!(filled, [(1, 1), (1, 2), (1, 3)]);
    assert_eq!(compute(&mut sched, &prompt), 1);
}

#[test]
fn without_room_or_bytes_nothing_is_lost() {
    let mut sched = scheduler(&[GroupKind::Full], 4);
    let (reached, filled) = adopt(&mut sched, &text(24), 0, 0b11_1111);
    assert_eq!((reached, filled), (16, 4), "its own blocks are not evicted for the next ones");
    let other: Vec<TokenId> = text(12).iter().map(|t| t + 1).collect();
    assert_eq!(adopt(&mut sched, &other, 0, 0b111), (12, 3), "older ones are");
    let new =
        Adoption { salt: 9, tokens: &text(8), first: 0, present: [0b11; MAX_GROUPS], state: false };
    let mut calls = 0;
    let reached = sched.adopt(&new, &mut |_, i, _| {
        calls += 1;
        i == 0
    });
    sched.check();
    assert_eq!((reached, calls), (4, 2), "the second could not be filled");
    assert_eq!(adopt(&mut sched, &text(8), 0, 0b01).0, 4, "a full group needs its block");
}

#[test]
fn texts_of_models_with_states_are_noted_up_to_their_checkpoint() {
    for groups in [&[GroupKind::Full, GroupKind::State][..], &[GroupKind::State]] {
        let mut sched = scheduler(groups, 20);
        let state = groups.len() - 1;
        compute(&mut sched, &text(22));
        let noted = sched.noted_text().expect("five blocks of the prompt");
        assert_eq!(noted.tokens, text(20), "no whole run");
        let has_state = |b: &[BlockId; MAX_GROUPS]| b[state] != BlockId::NONE;
        let states: Vec<bool> = noted.blocks.iter().map(has_state).collect();
        assert_eq!(states, [false, false, false, false, true]);
        sched.forget_noted();
        compute(&mut sched, &text(8));
        assert_eq!(sched.noted_text(), None, "its checkpoint is before a run's end");
        compute(&mut sched, &text(9));
        assert_eq!(sched.noted_text().map(|t| t.tokens), Some(text(8)));
    }
}

/// Offers the end of a text with its states; the tokens that are there then.
fn adopt_end(sched: &mut Scheduler, text: &[TokenId], first: u32, well: bool) -> u32 {
    let present = [u32::MAX; MAX_GROUPS];
    let new = Adoption { salt: 1, tokens: text, first, present, state: true };
    let last = text.len() as u32 / SIZE - first - 1;
    let reached = sched.adopt(&new, &mut |group, i, _| {
        assert!(group == 0 || i == last, "states are those of the end");
        group == 0 || well
    });
    sched.check();
    reached
}

#[test]
fn adopted_states_are_found_where_they_are() {
    let mut sched = scheduler(&[GroupKind::Full, GroupKind::State, GroupKind::State], 20);
    let prompt = text(21);
    assert_eq!(adopt(&mut sched, &prompt[..16], 0, 0b1111), (16, 4), "blocks alone");
    assert_eq!(sched.cached_tokens(1, &prompt), 0, "no state, no hit");
    assert_eq!(adopt_end(&mut sched, &prompt[..20], 4, false), 0, "a state is missing");
    assert_eq!(sched.cached_tokens(1, &prompt), 0);
    assert_eq!(adopt_end(&mut sched, &prompt[..20], 4, true), 20);
    assert_eq!(sched.cached_tokens(1, &prompt), 20);
    assert_eq!(sched.cached_tokens(1, &prompt[..20]), 0, "it ends before");
    assert_eq!(adopt_end(&mut sched, &prompt[..20], 4, false), 20, "they are there");
    assert_eq!(compute(&mut sched, &prompt), 1);
    assert_eq!(adopt_end(&mut sched, &text(36), 6, true), 0, "a gap is not bridged");
}

#[test]
fn a_model_with_states_alone_needs_no_text_before() {
    let mut sched = scheduler(&[GroupKind::State], 20);
    let mut fill = |_, i, _| i == 1;
    let text = text(25);
    let present = [0; MAX_GROUPS];
    let new = Adoption { salt: 1, tokens: &text[..24], first: 4, present, state: true };
    assert_eq!(sched.adopt(&new, &mut fill), 24);
    sched.check();
    assert_eq!(sched.cached_tokens(1, &text), 24);
    assert_eq!(sched.adopt(&Adoption { salt: 2, first: 3, ..new }, &mut fill), 0);
    sched.check();
    assert_eq!(compute(&mut sched, &text), 1);
}

#[test]
fn adopted_states_keep_to_the_checkpoints_there_may_be() {
    let mut sched = scheduler(&[GroupKind::Full, GroupKind::State], 20);
    let texts: Vec<Vec<TokenId>> = (0..3).map(|n| (0..9).map(|i| n * 10 + i).collect()).collect();
    for text in &texts {
        assert_eq!(adopt_end(&mut sched, &text[..8], 0, true), 8);
    }
    let found: Vec<u32> = texts.iter().map(|t| sched.cached_tokens(1, t)).collect();
    assert_eq!(found, [0, 8, 8], "the oldest gave way to the third");
    let mut none = Scheduler::new(Config { checkpoint_slots: 0, ..config(&[GroupKind::State], 4) });
    assert_eq!(adopt_end(&mut none, &texts[0][..8], 0, true), 0);
}
