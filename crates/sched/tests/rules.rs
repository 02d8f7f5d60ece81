//! The scheduling rule seen from outside: who gets tokens, in which order, at whose expense.

use tokenmill_ir::sampling::splitmix;
use tokenmill_ir::{
    Batch, BlockId, GroupKind, Limits, OutputKind, Sampled, SamplingParams, StepOutput, TokenId,
    TokenSource,
};
use tokenmill_sched::{
    Config, NewSequence, Numbers, Outcome, Progress, Refused, Scheduler, SeqId, Step, StepCost,
    Want,
};

const FULL: GroupKind = GroupKind::Full;

/// A scheduler and a device that answers every row with token 7.
struct Bench {
    sched: Scheduler,
    step: Step,
    batch: Batch,
    progress: Vec<Progress>,
}

fn config(groups: &[GroupKind], blocks: &[u32]) -> Config {
    let limits = Limits {
        step_tokens: 64,
        sequences: 16,
        outputs: 64,
        context: 256,
        group_blocks: blocks.to_vec(),
        top_logprobs: 0,
    };
    Config {
        groups: groups.to_vec(),
        block_tokens: 8,
        limits,
        whole_sequences: false,
        vocab: 100,
        hidden: 2,
        cost: StepCost::new(0.0, 1e-3, 0.0),
        step_s: 1.0,
        checkpoint_slots: 2,
        longest_block: 0,
    }
}

impl Bench {
    fn new(config: Config) -> Self {
        Self {
            sched: Scheduler::new(config),
            step: Step::default(),
            batch: Batch::default(),
            progress: Vec::new(),
        }
    }

    fn add(&mut self, tokens: Vec<TokenId>, generate: u32) -> SeqId {
        let max_len = tokens.len() as u32 + generate;
        let want = Want::tokens(SamplingParams::default());
        let new = NewSequence::new(tokens, max_len, want);
        self.sched.submit(new).unwrap()
    }

    fn plan(&mut self) -> Vec<(SeqId, u32, u32)> {
        self.sched.plan(&mut self.step);
        self.sched.fill(&self.step, &mut self.batch, &mut |_, _, _| false);
        self.step.grants.iter().map(|g| (g.seq, g.context, g.tokens)).collect()
    }

    fn commit(&mut self) {
        let sampled = Sampled { token: 7, valid: true, ..Sampled::default() };
        let out = StepOutput {
            sampled: vec![sampled; self.batch.outputs.len()],
            ..StepOutput::default()
        };
        self.sched.commit(&self.step, &out, &mut self.progress);
        self.sched.check();
    }

    fn turn(&mut self) -> Vec<(SeqId, u32, u32)> {
        let grants = self.plan();
        self.commit();
        grants
    }

    /// Tokens of the prefix cache that a new sequence starts with.
    fn hit(&mut self, tokens: Vec<TokenId>) -> u32 {
        let id = self.add(tokens, 1);
        self.plan();
        let context = self.step.grants.iter().find(|g| g.seq == id).unwrap().context;
        self.commit();
        while self.sched.tokens(id).is_some() {
            self.turn();
        }
        context
    }

    /// Many answers of that many tokens.
    fn expect_answers(&mut self, tokens: u32) {
        for i in 0..50 {
            self.add(vec![i], tokens);
            self.run();
        }
    }

    fn run(&mut self) {
        for _ in 0..10_000 {
            if self.turn().is_empty() {
                return;
            }
        }
        panic!("no end");
    }

    fn finished(&self) -> usize {
        self.progress.iter().filter(|p| p.outcome == Outcome::Finished).count()
    }
}

fn text(seed: u64, len: u32) -> Vec<TokenId> {
    (0..u64::from(len)).map(|i| (splitmix(seed << 20 | i) % 100) as TokenId).collect()
}

#[test]
fn decoding_goes_on_while_a_long_prompt_is_read() {
    let config = Config { step_s: 20e-3, ..config(&[FULL], &[200]) };
    let mut b = Bench::new(config);
    let decoding: Vec<SeqId> = (0..6).map(|i| b.add(text(i, 5), 200)).collect();
    for _ in 0..4 {
        b.turn();
    }
    let long = b.add(text(99, 240), 4);
    let mut read = 0;
    while read < 240 {
        let grants = b.turn();
        for id in &decoding {
            assert!(grants.contains(&(*id, b.sched.tokens(*id).unwrap().len() as u32 - 2, 1)));
        }
        let chunk = grants.iter().find(|g| g.0 == long).map_or(0, |g| g.2);
        // Six streams take 6 ms; what is left after 40 tokens is no more than ten steps of 20 ms.
        let expected = if read < 40 { 6..=6 } else { 8..=20 };
        assert!(expected.contains(&chunk) || read + chunk == 240, "{chunk} after {read}");
        read += chunk;
        assert!(b.step.predicted_s <= 20e-3 + 8e-3, "{}", b.step.predicted_s);
    }
}

#[test]
fn prefill_goes_on_however_much_is_decoded() {
    // Decoding alone takes more time than a step has.
    let mut b = Bench::new(Config { step_s: 1e-3, ..config(&[FULL], &[200]) });
    for i in 0..8 {
        b.add(text(i, 5), 100);
    }
    for _ in 0..20 {
        b.turn();
    }
    let long = b.add(text(99, 100), 4);
    for _ in 0..14 {
        let grants = b.turn();
        assert!(grants.iter().any(|g| g.0 == long), "{grants:?}");
        assert!(grants.iter().filter(|g| g.0 != long).all(|g| g.2 == 1));
        assert_eq!(grants.len(), 9);
    }
}

#[test]
fn the_end_of_a_prompt_is_read_a_block_at_a_time_however_much_is_decoded() {
    let mut b = Bench::new(Config { step_s: 1e-3, ..config(&[FULL], &[200]) });
    for i in 0..8 {
        b.add(text(i, 5), 100);
    }
    for _ in 0..20 {
        b.turn();
    }
    // Eight streams take 8 ms, and so may prompts: two of less than a block take two steps.
    let ends = [b.add(text(98, 7), 4), b.add(text(99, 8), 4)];
    b.turn();
    b.turn();
    let read = ends.map(|id| b.sched.computed(id));
    assert!(read[0] >= Some(7) && read[1] == Some(8), "{read:?}");
}

#[test]
fn prompts_of_light_accounts_pass_those_of_greedy_ones() {
    let mut b = Bench::new(Config { step_s: 20e-3, ..config(&[FULL], &[400]) });
    let ask = |b: &mut Bench, account, len, most| {
        let want = Want::tokens(SamplingParams::default());
        let tokens = text(account << 10 | u64::from(len), len);
        let (key, salt, priority, max_len) = (0, 0, 0, len + most);
        let new =
            NewSequence { key, salt, account, priority, ..NewSequence::new(tokens, max_len, want) };
        b.sched.submit(new).unwrap()
    };
    for i in 0..4 {
        ask(&mut b, 1, 5 + i, 100);
    }
    b.turn();
    // Some steps of all the time there is.
    let long = ask(&mut b, 1, 150, 4);
    b.turn();
    let light = ask(&mut b, 2, 15, 4);
    let grants = b.turn();
    assert!(grants.contains(&(light, 0, 15)), "{grants:?}");
    assert!(grants.iter().any(|g| g.0 == long && g.2 < 10), "what is left: {grants:?}");
}

#[test]
fn the_account_that_was_served_least_comes_first() {
    let mut config = config(&[FULL], &[200]);
    config.limits.sequences = 1;
    let mut b = Bench::new(config);
    let ask = |b: &mut Bench, account: u64, len: u32| {
        let want = Want::tokens(SamplingParams::default());
        let (key, tokens, max_len) = (account, text(account << 10 | u64::from(len), len), len + 1);
        let new = NewSequence { key, account, ..NewSequence::new(tokens, max_len, want) };
        b.sched.submit(new).unwrap();
    };
    (100..103).for_each(|len| ask(&mut b, 1, len));
    b.turn();
    (10..13).for_each(|len| ask(&mut b, 2, len));
    let mut ended = Vec::new();
    while !b.turn().is_empty() {
        let end = b.progress.iter().filter(|p| p.outcome == Outcome::Finished);
        ended.extend(end.map(|p| p.key));
    }
    assert_eq!(ended, [1, 2, 2, 2, 1, 1], "three short ones are less than one long one");
}

#[test]
fn prompts_alone_take_steps_that_are_worth_their_base_or_as_long_as_any() {
    let chunks = |base_s, step_s| {
        let cost = StepCost::new(base_s, 1e-3, 0.0);
        let mut b = Bench::new(Config { step_s, cost, ..config(&[FULL], &[200]) });
        b.add(text(1, 150), 2);
        (0..3).map(|_| b.turn()[0].2).collect::<Vec<_>>()
    };
    // Sixteen bases are more tokens than a step holds; 40; fewer than a block.
    assert_eq!(chunks(5e-3, 1e-3), [64, 64, 22]);
    assert_eq!(chunks(2.5e-3, 1e-3), [40, 40, 40]);
    assert_eq!(chunks(1e-4, 1e-3), [8, 8, 8]);
    assert_eq!(chunks(1e-4, 24.5e-3), [24, 24, 24]);
}

#[test]
fn who_comes_does_not_wait_for_full_steps_of_a_prompt_that_was_alone() {
    let cost = StepCost::new(1e-4, 1e-3, 0.0);
    let mut b = Bench::new(Config { step_s: 20e-3, cost, ..config(&[FULL], &[200]) });
    b.add(text(1, 250), 2);
    b.turn();
    assert!(b.step.predicted_s < 21e-3, "what is under way: {}", b.step.predicted_s);
    let late = b.add(text(2, 3), 2);
    let grants = b.turn();
    assert!(grants.iter().any(|g| g.0 == late && g.2 == 3), "{grants:?}");
    assert!(b.step.predicted_s < 21e-3, "its own: {}", b.step.predicted_s);
}

#[test]
fn what_a_failed_sequence_computed_is_not_offered_to_others() {
    let mut b = Bench::new(config(&[FULL, GroupKind::State], &[40, 6]));
    let good = text(1, 16);
    b.hit(good.clone());
    let bad = [&good[..], &text(2, 20)].concat();
    b.add(bad.clone(), 4);
    while b.plan().iter().all(|g| g.1 + g.2 < 36) {
        b.commit();
    }
    let out = StepOutput { sampled: vec![Sampled::default()], ..StepOutput::default() };
    b.sched.commit(&b.step, &out, &mut b.progress);
    b.sched.check();
    assert_eq!(b.progress.last().unwrap().outcome, Outcome::NotANumber { index: 0 });
    assert!(b.sched.is_idle());
    assert_eq!(b.hit(bad), 8, "only what the good one left, up to its checkpoint");
}

#[test]
fn sequences_are_let_in_by_arrival_and_none_passes_a_large_one() {
    // Eight blocks: the first takes three, the second needs six.
    let mut b = Bench::new(config(&[FULL], &[8]));
    let first = b.add(text(1, 20), 3);
    let large = b.add(text(2, 45), 3);
    let small = b.add(text(3, 5), 3);
    let mut order = Vec::new();
    while order.len() < 3 {
        for (id, context, _) in b.turn() {
            if context == 0 && !order.contains(&id) {
                order.push(id);
            }
        }
    }
    assert_eq!(order, [first, large, small]);
}

#[test]
fn the_youngest_gives_way_and_everyone_finishes() {
    let mut b = Bench::new(config(&[FULL], &[12]));
    let oldest = b.add(text(1, 10), 60);
    for i in 2..6 {
        b.add(text(i, 10), 60);
    }
    let mut expected = 0;
    let mut finished = 0;
    while finished < 5 {
        let grants = b.plan();
        if b.sched.tokens(oldest).is_some() {
            let (_, context, n) = grants.iter().find(|g| g.0 == oldest).unwrap();
            assert_eq!(*context, expected, "the oldest never loses anything");
            expected += n;
        }
        b.commit();
        finished += b.finished();
    }
    assert!(b.sched.counts().preemptions > 0);
}

#[test]
fn sequences_are_let_in_as_long_as_answers_like_those_before_will_fit() {
    // Twelve blocks; each sequence would take nine if its answer were as long as it may be.
    let mut b = Bench::new(config(&[FULL], &[12]));
    b.expect_answers(60);
    for i in 0..3 {
        b.add(text(i, 10), 60);
    }
    b.turn();
    assert_eq!((b.sched.counts().running, b.sched.counts().waiting), (1, 2));
    b.run();
    assert_eq!(b.sched.counts().preemptions, 0);
    b.expect_answers(1);
    for i in 0..3 {
        b.add(text(10 + i, 10), 60);
    }
    b.turn();
    assert_eq!(b.sched.counts().running, 3);
    b.run();
}

#[test]
fn an_account_with_fewer_places_gets_one_and_urgent_sequences_pass_their_own() {
    let mut b = Bench::new(config(&[FULL], &[200]));
    let ask = |b: &mut Bench, account, priority| {
        let tokens = text(b.sched.counts().waiting.into(), 9);
        let want = Want::tokens(SamplingParams::default());
        let new = NewSequence { account, priority, ..NewSequence::new(tokens, 99, want) };
        b.sched.submit(new).unwrap()
    };
    let greedy: Vec<SeqId> = (0..20).map(|_| ask(&mut b, 1, 0)).collect();
    // Nine tokens each, 64 a step.
    for _ in 0..3 {
        b.turn();
    }
    assert_eq!(b.sched.running().collect::<Vec<_>>(), greedy[..16]);
    let light = ask(&mut b, 2, 0);
    b.turn();
    assert!(b.sched.running().any(|s| s == light));
    assert!(b.sched.running().all(|s| s != greedy[15]), "the last one gave way");
    // Neither account takes places from the other once the shares are even.
    let more: Vec<SeqId> = (0..10).map(|_| ask(&mut b, 2, 0)).collect();
    b.turn();
    b.turn();
    let theirs = |b: &Bench| b.sched.running().filter(|s| more.contains(s) || *s == light).count();
    assert_eq!(theirs(&b), 8);
    let urgent = ask(&mut b, 1, -1);
    b.turn();
    assert!(b.sched.running().any(|s| s == urgent));
    assert_eq!(theirs(&b), 8, "at the expense of its own account");
}

#[test]
fn urgent_sequences_do_not_pass_an_older_one_for_ever() {
    let mut b = Bench::new(config(&[FULL], &[200]));
    let ask = |b: &mut Bench, priority| {
        let tokens = text(b.sched.counts().waiting.into(), 60);
        let want = Want::tokens(SamplingParams::default());
        let new = NewSequence { account: 1, priority, ..NewSequence::new(tokens, 61, want) };
        b.sched.submit(new).unwrap()
    };
    // More than a step can read, and most urgent, comes in every step.
    for _ in 0..3 {
        ask(&mut b, i32::MIN + 1);
    }
    let old = ask(&mut b, 0);
    let older = |b: &Bench| b.sched.computed(old).is_none_or(|computed| computed > 0);
    let mut turns = 0;
    while !older(&b) {
        ask(&mut b, i32::MIN + 1);
        ask(&mut b, i32::MIN + 1);
        b.turn();
        turns += 1;
        assert!(turns < 30, "the old one never starts");
    }
    assert!(turns >= 4, "urgent ones come first: {turns}");
}

#[test]
fn a_short_prompt_does_not_wait_for_a_long_one_to_end() {
    for (account, len, most) in [(2, 5, 1), (1, 5, 1), (2, 60, 3)] {
        let mut b = Bench::new(config(&[FULL], &[200]));
        let ask = |b: &mut Bench, account, len| {
            let want = Want::tokens(SamplingParams::default());
            let tokens = text(u64::from(len), len);
            let (key, max_len) = (0, len + 1);
            let new = NewSequence { key, account, ..NewSequence::new(tokens, max_len, want) };
            b.sched.submit(new).unwrap()
        };
        // Four steps of 64.
        let long = ask(&mut b, 1, 250);
        b.turn();
        let short = ask(&mut b, account, len);
        let (mut turns, mut read) = (0, 0);
        while b.sched.tokens(short).is_some() {
            turns += 1;
            let grants = b.turn();
            read += grants.iter().filter(|g| g.0 == long).map(|g| g.2).sum::<u32>();
        }
        assert!(turns <= most, "{len} tokens of account {account} took {turns} steps");
        assert!(read >= 32 * turns, "the long one goes on: {read} in {turns} steps");
    }
}

#[test]
fn who_runs_goes_on_where_a_step_has_a_token_for_each_alone() {
    let mut c = config(&[FULL], &[200]);
    (c.limits.step_tokens, c.limits.outputs) = (2, 2);
    let mut b = Bench::new(c);
    let all: Vec<SeqId> = (0..5).map(|i| b.add(text(i, 3), 20)).collect();
    b.run();
    assert!(all.iter().all(|id| b.sched.tokens(*id).is_none()), "all came to their end");
}

#[test]
fn guesses_leave_a_row_for_who_waits() {
    let mut b = Bench::new(config(&[FULL], &[200]));
    let ask = |b: &mut Bench, account, tokens| {
        let want = Want::tokens(SamplingParams::default());
        let new = NewSequence { account, ..NewSequence::new(tokens, 200, want) };
        b.sched.submit(new).unwrap()
    };
    // Sixteen streams with three guesses each: all 64 rows of a step.
    let streams: Vec<SeqId> = (0..16).map(|i| ask(&mut b, 1, text(i, 3))).collect();
    for _ in 0..4 {
        b.turn();
    }
    let one = ask(&mut b, 2, vec![1]);
    for id in streams {
        assert_eq!(b.sched.offer_draft(id, &[7, 7, 7]), 3);
    }
    let grants = b.turn();
    assert!(grants.iter().any(|grant| grant.0 == one), "{grants:?}");
}

#[test]
fn an_accounts_priorities_mean_nothing_to_others() {
    // Two sequences that do not fit together: one account says that its own are the most urgent.
    let mut b = Bench::new(config(&[FULL], &[7]));
    let ask = |b: &mut Bench, account, priority| {
        let want = Want::tokens(SamplingParams::default());
        let tokens = text(account, 9);
        let new =
            NewSequence { salt: account, account, priority, ..NewSequence::new(tokens, 50, want) };
        b.sched.submit(new).unwrap()
    };
    let first = ask(&mut b, 2, 0);
    b.turn();
    let loud = ask(&mut b, 1, i32::MIN);
    let both = |b: &Bench| b.sched.tokens(first).is_some() && b.sched.tokens(loud).is_some();
    while both(&b) {
        b.turn();
        if b.sched.counts().preemptions > 0 {
            assert!(b.sched.running().any(|s| s == first), "who came first goes on");
            return;
        }
    }
    panic!("memory never ran out");
}

#[test]
fn drafts_are_as_long_as_pays() {
    use tokenmill_sched::Odds;
    let cost = StepCost { output_s: 1e-4, ..StepCost::new(4e-3, 9e-4, 0.0) };
    let mut b = Bench::new(Config { cost, ..config(&[FULL], &[60]) });
    let id = b.add(text(1, 5), 100);
    while b.sched.tokens(id).unwrap().len() < 8 {
        b.turn();
    }
    let pays =
        |b: &Bench, p| b.sched.draft_that_pays(id, Odds { first: p, later: p, guess_s: 0.0 }, 31);
    // A row takes a fifth of a step: less than that chance is a loss.
    assert_eq!([0.0, 0.1, 0.2].map(|p| pays(&b, p)), [0, 0, 0]);
    assert!((1..=2).contains(&pays(&b, 0.4)), "{}", pays(&b, 0.4));
    assert_eq!(pays(&b, 1.0), 7, "up to a block");
    let half = Odds { first: 0.9, later: 0.0, guess_s: 0.0 };
    assert_eq!(b.sched.draft_that_pays(id, half, 31), 1);
    // Beside many others a row is as dear as a token of theirs.
    for i in 2..16 {
        b.add(text(i, 5), 100);
    }
    b.turn();
    assert!(pays(&b, 0.6) == 0 && pays(&b, 1.0) > 0);
}

#[test]
fn cached_prefixes_are_used_but_for_the_last_token() {
    let mut b = Bench::new(config(&[FULL], &[20]));
    let prompt = text(1, 24);
    assert_eq!(b.hit(prompt.clone()), 0);
    assert_eq!(b.hit(prompt.clone()), 16, "one token is left to compute");
    assert_eq!(b.hit([prompt.clone(), text(2, 5)].concat()), 24);
    assert_eq!(b.hit([&prompt[..12], &text(3, 20)].concat()), 8, "full blocks only");
    // Unrelated texts push the oldest leaves out first.
    for i in 10..14 {
        b.hit(text(i, 40));
    }
    assert_eq!(b.hit(prompt), 0);
}

#[test]
fn another_salt_shares_nothing() {
    let mut b = Bench::new(config(&[FULL], &[20]));
    let want = Want::tokens(SamplingParams::default());
    for (salt, cached) in [(1, 0), (2, 0), (1, 16), (2, 16), (3, 0)] {
        let tokens = text(1, 20);
        let new = NewSequence { salt, ..NewSequence::new(tokens, 21, want.clone()) };
        b.sched.submit(new).unwrap();
        assert_eq!(b.turn()[0].1, cached, "salt {salt}");
        assert_eq!(b.finished(), 1);
    }
}

#[test]
fn requests_with_one_beginning_that_arrive_together_compute_it_once() {
    let mut b = Bench::new(config(&[FULL], &[60]));
    let prefix = text(1, 48);
    for i in 0..6 {
        b.add([prefix.clone(), text(50 + i, 6)].concat(), 2);
    }
    let mut computed = 0;
    loop {
        let grants = b.turn();
        if grants.is_empty() {
            break;
        }
        computed += grants.iter().map(|g| g.2).sum::<u32>();
    }
    assert_eq!(computed, 48 + 6 * 6 + 6, "the prefix, each rest, and one token each");
}

#[test]
fn blocks_behind_a_window_are_given_back() {
    let window = GroupKind::Window { tokens: 10 };
    let mut b = Bench::new(config(&[window], &[4]));
    let id = b.add(text(1, 9), 100);
    while b.sched.tokens(id).is_some() {
        b.turn();
        let n = b.sched.group_counts(0);
        assert!(n.total - n.free - n.cached <= 3);
    }
    // A hit needs only the blocks inside the window.
    let mut b = Bench::new(config(&[FULL, window], &[20, 6]));
    let prompt = text(2, 70);
    b.hit(prompt.clone());
    assert_eq!(b.hit([prompt, text(3, 9)].concat()), 64);
    let tables = &b.batch.tables[b.batch.spans[0].tables[1] as usize..][..8];
    assert_eq!(tables[..6], [BlockId::NONE; 6]);
    assert!(tables[7] != BlockId::NONE);
}

#[test]
fn states_are_found_again_at_the_prompts_end() {
    let mut b = Bench::new(config(&[FULL, GroupKind::State], &[20, 4]));
    let prompt = text(1, 29);
    assert_eq!(b.hit(prompt.clone()), 0);
    assert_eq!(b.hit([&prompt[..], &text(2, 9)].concat()), 24, "where the checkpoint is");
    assert_eq!(b.hit([&prompt[..17], &text(3, 9)].concat()), 0, "no checkpoint there");
}

#[test]
fn right_drafts_are_kept_and_the_rest_is_rolled_back() {
    for groups in [&[FULL][..], &[FULL, GroupKind::State]] {
        let mut b = Bench::new(config(groups, &[20, 4]));
        let id = b.add(text(1, 9), 40);
        while b.sched.tokens(id).unwrap().len() < 12 {
            b.turn();
        }
        assert_eq!(b.sched.offer_draft(id, &[7, 7, 8, 7]), 4);
        assert_eq!(b.sched.offer_draft(id, &[7]), 0, "one draft at a time");
        let grants = b.turn();
        assert_eq!(grants, [(id, 11, 5)]);
        let tokens = b.sched.tokens(id).unwrap();
        assert_eq!(tokens[9..], [7; 6], "three sampled before, two right drafts, one more");
        // A state cannot be rolled back: the accepted tokens are computed again.
        let next = if groups.len() == 1 { (id, 14, 1) } else { (id, 11, 4) };
        assert_eq!(b.turn(), [next]);
        let counts = b.sched.counts();
        assert_eq!((counts.drafted, counts.accepted), (4, 2));
    }
}

#[test]
fn tokens_that_must_follow_take_no_rows() {
    for groups in [&[FULL][..], &[FULL, GroupKind::State]] {
        let mut b = Bench::new(config(groups, &[20, 4]));
        let id = b.add(text(1, 9), 40);
        while b.sched.tokens(id).unwrap().len() < 12 {
            b.turn();
        }
        assert_eq!(b.sched.append(id, &[4, 5, 6]), 3);
        assert_eq!(b.sched.append(id, &[7]) + b.sched.offer_draft(id, &[7]), 0, "one at a time");
        let tokens = b.turn().iter().map(|g| g.2).sum::<u32>();
        assert_eq!((tokens, b.batch.outputs.len()), (4, 1));
        let came = b.progress.iter().filter_map(|p| match p.outcome {
            Outcome::Token { index, token, output } => Some((index, token, output == 0)),
            _ => None,
        });
        let expected = [(3, 4, false), (4, 5, false), (5, 6, false), (6, 7, true)];
        assert_eq!(came.collect::<Vec<_>>(), expected);
        assert_eq!(b.turn(), [(id, 15, 1)]);
    }
}

/// What was found out behind a draft never fails a sequence: it is computed again, and fails by itself.
#[test]
fn a_row_behind_a_right_draft_that_is_no_number_is_computed_again() {
    for groups in [&[FULL][..], &[FULL, GroupKind::State]] {
        let mut b = Bench::new(config(groups, &[20, 4]));
        let id = b.add(text(1, 9), 40);
        while b.sched.tokens(id).unwrap().len() < 12 {
            b.turn();
        }
        assert_eq!(b.sched.offer_draft(id, &[7, 7, 7]), 3);
        b.plan();
        let row = |valid| Sampled { token: 7, valid, ..Sampled::default() };
        let sampled = [true, true, false, true].map(row).to_vec();
        let out = StepOutput { sampled, ..StepOutput::default() };
        b.sched.commit(&b.step, &out, &mut b.progress);
        b.sched.check();
        assert_eq!(b.sched.tokens(id).unwrap()[9..], [7; 5], "two more");
        let rows = b.plan().iter().map(|g| g.1 + g.2).sum::<u32>();
        assert_eq!(rows, 14, "the row that was no number, by itself");
        let out = StepOutput { sampled: vec![Sampled::default()], ..StepOutput::default() };
        b.sched.commit(&b.step, &out, &mut b.progress);
        assert_eq!(b.progress.last().unwrap().outcome, Outcome::NotANumber { index: 5 });
    }
}

#[test]
fn who_is_held_back_is_passed_by_and_goes_on_later() {
    let mut b = Bench::new(config(&[FULL], &[40]));
    let [one, two] = [b.add(text(1, 5), 20), b.add(text(2, 9), 20)];
    b.turn();
    let waits = b.add(text(3, 4), 20);
    [one, waits].into_iter().for_each(|id| b.sched.hold_back(id, true));
    for len in [10, 11] {
        assert_eq!(b.turn(), [(two, len - 1, 1)]);
    }
    b.sched.hold_back(two, true);
    assert_eq!(b.turn(), []);
    [one, two, waits].into_iter().for_each(|id| b.sched.hold_back(id, false));
    let grants: Vec<SeqId> = b.turn().iter().map(|g| g.0).collect();
    assert_eq!(grants, [one, two, waits]);
}

#[test]
fn what_can_never_run_is_refused() {
    let b = Bench::new(config(&[FULL, GroupKind::Window { tokens: 10 }], &[4, 2]));
    // Four blocks hold 32 tokens; the last one sampled needs no place.
    assert_eq!(b.sched.longest(), 17, "two window blocks are too few to slide");
    let mut b = Bench::new(config(&[FULL, GroupKind::Window { tokens: 8 }], &[4, 2]));
    assert_eq!(b.sched.longest(), 33);
    let want = Want::tokens(SamplingParams::default());
    let new = |len, max_len| NewSequence::new(text(1, len), max_len, want.clone());
    let refused = Err(Refused::TooLong { len: 34, limit: 33 });
    assert_eq!(b.sched.submit(new(30, 34)), refused);
    assert_eq!(b.sched.submit(new(0, 4)), Err(Refused::Empty));
    assert_eq!(b.sched.submit(new(4, 4)), Err(Refused::Empty));
    b.sched.submit(new(30, 33)).unwrap();
    b.run();
    b.sched.check();
}

#[test]
fn whole_sequences_are_never_cut() {
    let mut b = Bench::new(Config { whole_sequences: true, ..config(&[], &[]) });
    let add = |b: &mut Bench, len| {
        let tokens = text(u64::from(len), len);
        let want = Want::Numbers(Numbers::Hidden);
        b.sched.submit(NewSequence::new(tokens, len, want))
    };
    assert_eq!(add(&mut b, 65), Err(Refused::TooLong { len: 65, limit: 64 }));
    let [x, y, z] = [40, 30, 20].map(|len| add(&mut b, len).unwrap());
    assert_eq!(b.plan(), [(x, 0, 40)], "the second does not fit, the third may not pass it");
    let answer = |b: &mut Bench| {
        let rows = b.batch.outputs.len();
        let out = StepOutput {
            sampled: vec![Sampled::default(); rows],
            rows: vec![1.0; 2 * rows],
            ..StepOutput::default()
        };
        b.sched.commit(&b.step, &out, &mut b.progress);
    };
    answer(&mut b);
    assert_eq!(b.plan(), [(y, 0, 30), (z, 0, 20)]);
    answer(&mut b);
    let rows = b.progress.iter().filter(|p| matches!(p.outcome, Outcome::Row { len: 2, .. }));
    assert_eq!(rows.count(), 2);
    assert!(b.sched.is_idle());
    let want = Want::tokens(SamplingParams::default());
    let new = NewSequence::new(text(1, 3), 5, want);
    assert_eq!(b.sched.submit(new), Err(Refused::KeepsNothing));
}

#[test]
fn the_index_of_a_draw_survives_preemption_and_penalties_see_everything() {
    let sampling = SamplingParams { repetition_penalty: 1.1, seed: 3, ..Default::default() };
    let mut b = Bench::new(config(&[FULL], &[8]));
    let new = |seed| NewSequence {
        key: seed,
        tokens: text(seed, 10),
        inputs: None,
        max_len: 50,
        want: Want::Tokens { sampling, bias: vec![(5, 1.0)], rules: Box::default() },
        salt: 0,
        account: 0,
        priority: 0,
    };
    let older = b.sched.submit(new(1)).unwrap();
    let younger = b.sched.submit(new(2)).unwrap();
    let (mut next, mut recomputed) = (0, false);
    while b.sched.tokens(younger).is_some() {
        b.plan();
        for (grant, span) in b.step.grants.iter().zip(&b.batch.spans) {
            recomputed |= grant.seq == younger && grant.tokens > 1 && next > 0;
            let row = span.first + span.len - 1;
            let output = b.batch.outputs.iter().find(|o| o.row == row);
            let Some(OutputKind::Sample { params, history, prompt, bias, .. }) =
                output.map(|o| o.kind)
            else {
                continue;
            };
            assert_eq!((history.1, prompt, bias.1), (10 + params.index, 10, 1));
            if grant.seq == younger {
                assert_eq!(params.index, next);
                next += 1;
                let seen = &b.batch.history[history.0 as usize..][..history.1 as usize];
                assert_eq!(seen, b.sched.tokens(younger).unwrap());
                let last = b.batch.tokens[row as usize];
                assert_eq!(last, TokenSource::Id(seen[seen.len() - 1]));
            }
        }
        b.commit();
    }
    assert!(recomputed && next == 40 && b.sched.tokens(older).is_none());
}
