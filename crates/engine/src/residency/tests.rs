//! Tables of single moments, and a small world that does what it is told late and in any order.

use super::*;

const MINUTE: KeepAlive = KeepAlive::Seconds(60.0);

fn needs(bytes: u64) -> Needs {
    Needs { bytes, floor_bytes: bytes, load_s: 1.0 }
}

/// A residency with models of these sizes, caches full and small, that are there and idle, each used a
/// second after the one before, the first at 0.
fn present(cap_bytes: u64, sizes: &[(u64, u64)]) -> (Residency, Vec<Known>) {
    let mut all = Residency::new(cap_bytes, KeepAlive::Forever);
    let one = |(at, &(bytes, floor_bytes)): (usize, &(u64, u64))| {
        all.present(Needs { bytes, floor_bytes, load_s: 1.0 }, at as f64)
    };
    let known = sizes.iter().enumerate().map(one).collect();
    (all, known)
}

/// Asks for one more model of that size, measured.
fn wanted(all: &mut Residency, bytes: u64, now_s: f64) -> (Known, Waiter, Vec<Action>) {
    let k = all.know();
    let (waiter, out) = all.want(k, None, 100.0, now_s);
    assert_eq!(out, [Action::Measure(k)]);
    let out = all.measured(k, needs(bytes), now_s);
    (k, waiter, out)
}

/// A residency with models of these sizes, measured, of which none is there.
fn measured(cap_bytes: u64, sizes: &[u64]) -> (Residency, Vec<Known>) {
    let mut all = Residency::new(cap_bytes, MINUTE);
    let known: Vec<Known> = sizes.iter().map(|_| all.know()).collect();
    for (k, bytes) in known.iter().zip(sizes) {
        let (waiter, out) = all.want(*k, None, 10.0, 0.0);
        assert_eq!(out, [Action::Measure(*k)]);
        assert_eq!(all.left(waiter, 0.0), []);
        assert_eq!(all.measured(*k, needs(*bytes), 0.0), []);
    }
    (all, known)
}

/// Asks for a model until it is there.
fn use_it(all: &mut Residency, k: Known, now_s: f64) {
    let (waiter, out) = all.want(k, None, 10.0, now_s);
    assert_eq!(out, [Action::Load(k)]);
    assert_eq!(all.loaded(k, now_s + 1.0), [Action::Grant(k, waiter)]);
}

#[test]
fn requests_for_a_model_that_loads_share_its_load() {
    let (mut all, k) = measured(100, &[60]);
    let (a, out) = all.want(k[0], None, 10.0, 0.0);
    assert_eq!(out, [Action::Load(k[0])]);
    let (b, out) = all.want(k[0], None, 10.0, 0.1);
    assert_eq!((out, all.status(k[0]).waiting), (vec![], 2));
    let granted = all.loaded(k[0], 1.0);
    assert_eq!(granted, [Action::Grant(k[0], a), Action::Grant(k[0], b)]);
    let (c, out) = all.want(k[0], None, 10.0, 2.0);
    assert_eq!((out, all.status(k[0]).in_use), (vec![Action::Grant(k[0], c)], 3));
}

#[test]
fn time_to_live_counts_from_the_end_of_the_last_answer() {
    let (mut all, k) = measured(100, &[60]);
    let (waiter, _) = all.want(k[0], Some(KeepAlive::Seconds(5.0)), 10.0, 0.0);
    assert_eq!(all.loaded(k[0], 1.0), [Action::Grant(k[0], waiter)]);
    assert_eq!(all.tick(100.0), [], "never under an answer");
    assert_eq!(all.ended(k[0], 100.0), []);
    assert_eq!((all.status(k[0]).expires_s, all.next_s(100.0)), (Some(105.0), Some(105.0)));
    assert_eq!(all.tick(104.9), []);
    assert_eq!(all.tick(105.0), [Action::Free(k[0])]);
    assert_eq!((all.held_bytes(), all.status(k[0]).stage), (60, Stage::Freeing));
    assert_eq!(all.gone(k[0], 105.1), []);
    assert_eq!((all.held_bytes(), all.counts().evictions), (0, 0));
    // Nothing, and for ever.
    use_it(&mut all, k[0], 200.0);
    let (_, out) = all.want(k[0], Some(KeepAlive::Forever), 1.0, 201.0);
    assert_eq!(out.len(), 1);
    assert_eq!((all.ended(k[0], 202.0), all.ended(k[0], 202.0)), (vec![], vec![]));
    assert_eq!((all.tick(1e9), all.next_s(1e9)), (vec![], None));
    let (_, out) = all.want(k[0], Some(KeepAlive::Seconds(0.0)), 1.0, 1e9);
    assert_eq!(out.len(), 1);
    assert_eq!(all.ended(k[0], 1e9 + 1.0), [Action::Free(k[0])]);
}

#[test]
fn who_is_cheap_to_have_back_and_long_idle_goes_first() {
    let (mut all, k) = measured(100, &[40, 30, 20, 50]);
    for (at, now_s) in [(0, 0.0), (1, 2.0), (2, 20.0)] {
        use_it(&mut all, k[at], now_s);
        all.ended(k[at], now_s + 2.0);
    }
    // 40/28, 30/26 and 20/8 bytes × s / s at 30 s: first those two, of which one is enough.
    let (waiter, out) = all.want(k[3], None, 10.0, 30.0);
    assert_eq!(out, [Action::Free(k[0])]);
    assert_eq!(all.gone(k[0], 30.5), [Action::Load(k[3])]);
    assert_eq!(all.loaded(k[3], 32.0), [Action::Grant(k[3], waiter)]);
    assert_eq!((all.held_bytes(), all.counts().evictions), (100, 1));
}

#[test]
fn pins_stay_and_what_does_not_fit_beside_them_is_told_at_once() {
    let (mut all, k) = measured(100, &[40, 70, 200]);
    use_it(&mut all, k[0], 0.0);
    assert_eq!(all.pin(k[0], true, 1.0), []);
    assert_eq!(all.ended(k[0], 2.0), []);
    let (waiter, out) = all.want(k[1], None, 10.0, 1e6);
    let refused = Refused::TooLarge { bytes: 70, cap_bytes: 100, pinned_bytes: 40 };
    assert_eq!(out, [Action::Refuse(waiter, refused)]);
    let (waiter, out) = all.want(k[2], None, 10.0, 1e6);
    let refused = Refused::TooLarge { bytes: 200, cap_bytes: 100, pinned_bytes: 40 };
    assert_eq!(out, [Action::Refuse(waiter, refused)]);
    assert_eq!(all.pin(k[0], false, 1e6), [Action::Free(k[0])], "it was idle for long");
}

#[test]
fn a_busy_model_drains_for_who_waits_and_newcomers_come_after_him() {
    let (mut all, k) = measured(100, &[60, 60]);
    use_it(&mut all, k[0], 0.0);
    let (b, out) = all.want(k[1], None, 100.0, 1.5);
    assert_eq!((out, all.next_s(1.5)), (vec![], Some(3.0)), "it serves as long as it took, twice");
    let (early, out) = all.want(k[0], None, 100.0, 2.0);
    assert_eq!(out, [Action::Grant(k[0], early)]);
    assert_eq!((all.tick(3.0), all.status(k[0]).stage), (vec![], Stage::Draining));
    let (late, out) = all.want(k[0], None, 100.0, 3.5);
    assert_eq!(out, []);
    assert_eq!(all.ended(k[0], 4.0), []);
    assert_eq!(all.ended(k[0], 5.0), [Action::Free(k[0])]);
    assert_eq!(all.gone(k[0], 5.1), [Action::Load(k[1])]);
    assert_eq!(all.loaded(k[1], 6.0), [Action::Grant(k[1], b)]);
    assert_eq!(all.ended(k[1], 7.0), [Action::Free(k[1])], "an idle one goes at once");
    assert_eq!(all.gone(k[1], 7.1), [Action::Load(k[0])]);
    assert_eq!(all.loaded(k[0], 8.0), [Action::Grant(k[0], late)]);
}

#[test]
fn who_drains_for_nobody_any_more_answers_again() {
    let (mut all, k) = measured(100, &[60, 60]);
    use_it(&mut all, k[0], 0.0);
    let (b, _) = all.want(k[1], None, 100.0, 4.0);
    assert_eq!(all.status(k[0]).stage, Stage::Draining);
    let (a, out) = all.want(k[0], None, 100.0, 4.5);
    assert_eq!(out, []);
    assert_eq!(all.left(b, 5.0), [Action::Grant(k[0], a)]);
    assert_eq!(all.status(k[0]).stage, Stage::Ready);
    let (b, _) = all.want(k[1], None, 100.0, 5.5);
    assert_eq!(all.status(k[0]).stage, Stage::Draining);
    assert_eq!((all.left(b, 6.0), all.status(k[0]).stage), (vec![], Stage::Ready));
}

#[test]
fn the_last_who_waits_takes_the_load_with_him_unless_one_was_told_to_come_back() {
    let (mut all, k) = measured(100, &[60]);
    let (a, _) = all.want(k[0], None, 10.0, 0.0);
    let (b, _) = all.want(k[0], None, 10.0, 0.0);
    assert_eq!(all.left(a, 0.5), []);
    assert_eq!(all.left(b, 0.6), [Action::Cancel(k[0])]);
    assert_eq!((all.held_bytes(), all.status(k[0]).stage), (60, Stage::Breaking));
    let (c, out) = all.want(k[0], None, 10.0, 0.7);
    assert_eq!(out, [], "not a second copy beside the first");
    assert_eq!(all.gone(k[0], 0.8), [Action::Load(k[0])]);
    let late = Refused::Late { loading: true, retry_after_s: 1 };
    assert_eq!(all.tick(10.7), [Action::Refuse(c, late)]);
    let (d, _) = all.want(k[0], None, 10.0, 11.0);
    assert_eq!(all.left(d, 11.5), []);
    assert_eq!((all.loaded(k[0], 12.0), all.status(k[0]).stage), (vec![], Stage::Ready));
    assert_eq!(all.status(k[0]).expires_s, Some(72.0));
}

#[test]
fn who_is_late_while_a_model_is_measured_is_not_told_of_memory() {
    let mut all = Residency::new(100, MINUTE);
    let k = all.know();
    let (a, out) = all.want(k, None, 1.0, 0.0);
    assert_eq!(out, [Action::Measure(k)]);
    let told = all.tick(1.5);
    let [Action::Refuse(who, Refused::Late { loading: true, .. })] = told[..] else {
        panic!("{told:?}");
    };
    assert_eq!(who, a);
    // Nobody wants it any more.
    assert_eq!(all.measured(k, needs(60), 2.0), []);
}

#[test]
fn a_load_that_was_broken_off_too_late_serves_who_came_meanwhile() {
    let (mut all, k) = measured(100, &[60]);
    for came in [true, false] {
        let (a, _) = all.want(k[0], None, 10.0, 0.0);
        assert_eq!(all.left(a, 0.5), [Action::Cancel(k[0])]);
        if came {
            let (b, out) = all.want(k[0], None, 10.0, 0.6);
            assert_eq!((out, all.loaded(k[0], 0.7)), (vec![], vec![Action::Grant(k[0], b)]));
            assert_eq!(all.unload(k[0], 0.8), [], "once its answer has ended");
            assert_eq!(all.ended(k[0], 0.9), [Action::Free(k[0])]);
        } else {
            assert_eq!(all.loaded(k[0], 0.7), [Action::Free(k[0])]);
        }
        assert_eq!(all.gone(k[0], 1.0), []);
    }
}

#[test]
fn a_failed_load_refuses_who_waits_and_can_be_tried_again() {
    let mut all = Residency::new(100, MINUTE);
    let k = all.know();
    let (a, out) = all.want(k, None, 10.0, 0.0);
    assert_eq!(out, [Action::Measure(k)]);
    let trouble = Trouble { reason: "cut off".into(), of_files: true };
    let refused = Action::Refuse(a, Refused::Failed(trouble.clone()));
    assert_eq!(all.failed(k, trouble.clone(), 1.0), [refused]);
    assert_eq!(all.status(k).failed, Some((trouble.clone(), 1.0)));
    let (b, out) = all.want(k, None, 10.0, 2.0);
    assert_eq!((out, all.status(k).failed), (vec![Action::Measure(k)], None));
    assert_eq!(all.measured(k, needs(60), 3.0), [Action::Load(k)]);
    let refused = Action::Refuse(b, Refused::Failed(trouble.clone()));
    assert_eq!(all.failed(k, trouble, 4.0), [refused]);
    assert_eq!((all.held_bytes(), all.counts().failures), (0, 2));
    let (_, out) = all.want(k, None, 10.0, 5.0);
    assert_eq!(out, [Action::Measure(k)], "the file may be another");
}

#[test]
fn a_model_that_was_to_go_is_loaded_again_for_who_comes_then() {
    let (mut all, k) = measured(100, &[60]);
    use_it(&mut all, k[0], 0.0);
    assert_eq!(all.unload(k[0], 1.0), []);
    let (b, out) = all.want(k[0], None, 10.0, 1.5);
    assert_eq!(out, []);
    assert_eq!(all.ended(k[0], 2.0), [Action::Free(k[0])]);
    let (c, out) = all.want(k[0], None, 10.0, 2.1);
    assert_eq!(out, []);
    assert_eq!(all.gone(k[0], 2.2), [Action::Load(k[0])]);
    let granted = [Action::Grant(k[0], b), Action::Grant(k[0], c)];
    assert_eq!(all.loaded(k[0], 3.0), granted);
    assert_eq!(all.unload(k[0], 3.0), []);
}

#[test]
fn what_comes_free_for_the_first_is_promised_to_nobody_else() {
    let (mut all, k) = measured(100, &[60, 90, 30, 10]);
    use_it(&mut all, k[0], 0.0); // 40 are free
    let (large, out) = all.want(k[1], None, 100.0, 4.0);
    assert_eq!((out, all.status(k[0]).stage), (vec![], Stage::Draining));
    let (_, out) = all.want(k[2], None, 100.0, 5.0);
    assert_eq!(out, [], "30 of the 40 are needed by the one before");
    let (_, out) = all.want(k[3], None, 100.0, 5.0);
    assert_eq!(out, [], "and the one before it waits too");
    assert_eq!(all.ended(k[0], 6.0), [Action::Free(k[0])]);
    assert_eq!(all.gone(k[0], 6.1), [Action::Load(k[1])]);
    assert_eq!(all.loaded(k[1], 7.0), [Action::Grant(k[1], large)]);
}

#[test]
fn caches_of_idle_models_shrink_before_a_model_goes() {
    let (mut all, k) = present(100, &[(40, 10), (40, 25)]);
    let (c, waits, out) = wanted(&mut all, 50, 30.0);
    assert_eq!(out, [Action::Shrink(k[0])], "30 are lacking, and it is idle for longest");
    let (a, out) = all.want(k[0], None, 10.0, 30.1);
    assert_eq!(out, [Action::Grant(k[0], a)], "it answers meanwhile");
    assert_eq!((all.held_bytes(), all.tick(30.2)), (80, vec![]));
    assert_eq!(all.shrunk(k[0], 10, 30.3), [Action::Load(c)]);
    assert_eq!(all.loaded(c, 31.0), [Action::Grant(c, waits)]);
    assert_eq!((all.held_bytes(), all.counts().evictions), (100, 0));
}

#[test]
fn where_caches_are_not_enough_as_few_models_go_as_will_do() {
    let (mut all, k) = present(100, &[(40, 10), (40, 25)]);
    let (c, _, out) = wanted(&mut all, 90, 30.0);
    assert_eq!(out, [Action::Shrink(k[0]), Action::Free(k[1])], "30 + 40 of the 70");
    assert_eq!(all.gone(k[1], 30.1), []);
    assert_eq!(all.shrunk(k[0], 10, 30.2), [Action::Load(c)]);
    assert_eq!(all.held_bytes(), 100);
    // A pinned one keeps its caches, and one that could not give what was expected goes.
    let (mut all, k) = present(100, &[(40, 10), (40, 10)]);
    assert_eq!(all.pin(k[0], true, 2.0), []);
    let (c, _, out) = wanted(&mut all, 50, 30.0);
    assert_eq!(out, [Action::Shrink(k[1])]);
    assert_eq!(all.shrunk(k[1], 40, 30.1), [Action::Free(k[1])]);
    assert_eq!(all.gone(k[1], 30.2), [Action::Load(c)]);
}

#[test]
fn who_drains_for_another_stays_where_its_caches_are_enough() {
    let (mut all, k) = present(100, &[(60, 20)]);
    let (a, out) = all.want(k[0], None, 10.0, 30.0);
    assert_eq!(out, [Action::Grant(k[0], a)]);
    let (b, _, out) = wanted(&mut all, 70, 31.0);
    assert_eq!((out, all.status(k[0]).stage), (vec![], Stage::Draining));
    assert_eq!(all.ended(k[0], 32.0), [Action::Shrink(k[0])]);
    assert_eq!(all.shrunk(k[0], 20, 32.1), [Action::Load(b)]);
    assert_eq!((all.status(k[0]).stage, all.counts().evictions), (Stage::Ready, 0));
}

#[test]
fn caches_grow_again_when_nobody_waits_and_memory_is_free() {
    let (mut all, k) = present(100, &[(60, 20)]);
    let (b, waits, out) = wanted(&mut all, 60, 30.0);
    assert_eq!(out, [Action::Shrink(k[0])]);
    assert_eq!(all.shrunk(k[0], 20, 30.0), [Action::Load(b)]);
    assert_eq!(all.left(waits, 30.5), [Action::Cancel(b)]);
    assert_eq!(all.gone(b, 30.6), [Action::Grow(k[0])]);
    assert_eq!((all.held_bytes(), all.tick(31.0)), (60, vec![]));
}

#[test]
fn caches_go_from_one_that_is_idle_for_long_to_one_that_answers() {
    let (mut all, k) = present(100, &[(60, 20)]);
    let b = all.know();
    all.want(b, None, 100.0, 30.0);
    let out = all.measured(b, Needs { bytes: 60, floor_bytes: 20, load_s: 1.0 }, 30.0);
    assert_eq!(out, [Action::Shrink(k[0])]);
    assert_eq!(all.shrunk(k[0], 20, 30.0), [Action::Load(b)]);
    assert_eq!(all.loaded(b, 31.0).len(), 1);
    assert_eq!(all.ended(b, 32.0), []);
    let (a, out) = all.want(k[0], None, 100.0, 41.0);
    assert_eq!(out, [Action::Grant(k[0], a)], "whose prompts may go on at once");
    assert_eq!(all.tick(42.0), [Action::Shrink(b)]);
    assert_eq!(all.shrunk(b, 20, 42.1), [Action::Grow(k[0])]);
    assert_eq!((all.held_bytes(), all.ended(k[0], 43.0)), (80, vec![]));
}

#[test]
fn a_model_whose_caches_shrink_goes_when_they_have() {
    let (mut all, k) = present(100, &[(60, 20)]);
    let (b, _, out) = wanted(&mut all, 70, 30.0);
    assert_eq!(out, [Action::Shrink(k[0])]);
    assert_eq!(all.unload(k[0], 30.1), []);
    assert_eq!(all.shrunk(k[0], 20, 30.2), [Action::Load(b), Action::Free(k[0])]);
    assert_eq!(all.gone(k[0], 30.3), []);
    assert_eq!(all.held_bytes(), 70);
}

/// Random numbers (SplitMix64).
struct Draw(u64);

impl Draw {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % most
    }
}

/// What the world has been told to do and has not done yet.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Job {
    Measure(Known),
    Load(Known),
    Shrink(Known),
    Free(Known),
    Answer(Known),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Waits,
    Granted,
    Refused,
    Left,
}

/// It does what it is told late and in any order, and asserts what must never be.
struct World {
    all: Residency,
    draw: Draw,
    now_s: f64,
    sizes: Vec<u64>,
    /// With small caches.
    floors: Vec<u64>,
    /// Bytes that each model has in memory, and its answers.
    memory: Vec<u64>,
    answers: Vec<u32>,
    cancelled: Vec<bool>,
    jobs: Vec<(Job, f64)>,
    waiters: Vec<(Waiter, Known, f64, End)>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut draw = Draw(seed);
        let cap = 100;
        let count = 2 + draw.below(4) as usize;
        let sizes: Vec<u64> = (0..count).map(|_| 5 + draw.below(100)).collect();
        let floors = sizes.iter().map(|bytes| bytes - draw.below(*bytes)).collect();
        let keep = KeepAlive::Seconds(draw.below(20) as f64);
        let mut all = Residency::new(cap, keep);
        for _ in &sizes {
            all.know();
        }
        let (memory, answers) = (vec![0; count], vec![0; count]);
        let cancelled = vec![false; count];
        let (jobs, waiters) = (Vec::new(), Vec::new());
        Self { all, draw, now_s: 0.0, sizes, floors, memory, answers, cancelled, jobs, waiters }
    }

    fn later(&mut self, job: Job) {
        let seconds = match job {
            Job::Measure(_) | Job::Shrink(_) | Job::Free(_) => self.draw.below(10) as f64 * 0.01,
            Job::Load(_) => 0.1 + self.draw.below(20) as f64 * 0.1,
            Job::Answer(_) => self.draw.below(40) as f64 * 0.1,
        };
        self.jobs.push((job, self.now_s + seconds));
    }

    fn end(&mut self, waiter: Waiter, end: End) {
        let one = self.waiters.iter_mut().find(|w| w.0 == waiter).expect("somebody");
        assert_eq!(one.3, End::Waits, "{waiter:?} ends twice");
        one.3 = end;
    }

    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Measure(k) => self.later(Job::Measure(k)),
                Action::Load(k) => {
                    assert_eq!(self.memory[k.0], 0, "a second copy");
                    self.memory[k.0] = self.sizes[k.0];
                    self.cancelled[k.0] = false;
                    self.later(Job::Load(k));
                }
                Action::Cancel(k) => self.cancelled[k.0] = true,
                Action::Shrink(k) => {
                    assert_eq!(self.answers[k.0], 0, "its caches shrink under an answer");
                    assert_eq!(self.memory[k.0], self.sizes[k.0]);
                    self.later(Job::Shrink(k));
                }
                Action::Grow(k) => {
                    assert!(self.memory[k.0] > 0, "it grows without being there");
                    self.memory[k.0] = self.sizes[k.0];
                }
                Action::Free(k) => {
                    assert_eq!(self.answers[k.0], 0, "sent away under an answer");
                    self.later(Job::Free(k));
                }
                Action::Grant(k, waiter) => {
                    assert!(self.memory[k.0] > 0, "granted without being there");
                    self.answers[k.0] += 1;
                    self.end(waiter, End::Granted);
                    self.later(Job::Answer(k));
                }
                Action::Refuse(waiter, _) => self.end(waiter, End::Refused),
            }
        }
        let held: u64 = self.memory.iter().sum();
        assert!(held <= self.all.cap_bytes(), "{held} in memory");
        assert_eq!(held, self.all.held_bytes());
    }

    fn finish(&mut self, job: Job) {
        let now_s = self.now_s;
        let trouble = Trouble { reason: "a fault".into(), of_files: false };
        let fails = self.draw.below(12) == 0;
        let actions = match job {
            Job::Measure(k) if fails => self.all.failed(k, trouble, now_s),
            Job::Measure(k) => {
                let (bytes, floor_bytes) = (self.sizes[k.0], self.floors[k.0]);
                self.all.measured(k, Needs { bytes, floor_bytes, load_s: 1.0 }, now_s)
            }
            Job::Load(k) if fails => {
                self.memory[k.0] = 0;
                self.all.failed(k, trouble, now_s)
            }
            Job::Load(k) if self.cancelled[k.0] && self.draw.below(3) > 0 => {
                self.memory[k.0] = 0;
                self.all.gone(k, now_s)
            }
            Job::Load(k) => self.all.loaded(k, now_s),
            Job::Shrink(k) if fails => self.all.shrunk(k, self.sizes[k.0], now_s),
            Job::Shrink(k) => {
                assert!(self.memory[k.0] > 0, "sent away while its caches shrink");
                self.memory[k.0] = self.floors[k.0];
                self.all.shrunk(k, self.floors[k.0], now_s)
            }
            Job::Free(k) => {
                self.memory[k.0] = 0;
                self.all.gone(k, now_s)
            }
            Job::Answer(k) => {
                self.answers[k.0] -= 1;
                self.all.ended(k, now_s)
            }
        };
        self.act(actions);
    }

    /// Goes on to the next job, or what the residency waits for; false where there is neither.
    fn step(&mut self) -> bool {
        let due = self.jobs.iter().map(|j| j.1).fold(f64::INFINITY, f64::min);
        let tick = self.all.next_s(self.now_s).unwrap_or(f64::INFINITY);
        if due.min(tick).is_infinite() {
            return false;
        }
        self.now_s = self.now_s.max(due.min(tick));
        match self.jobs.iter().position(|j| j.1 <= self.now_s) {
            Some(at) => {
                let (job, _) = self.jobs.remove(at);
                self.finish(job);
            }
            None => {
                let actions = self.all.tick(self.now_s);
                self.act(actions);
            }
        }
        true
    }

    fn ask(&mut self, within_s: f64) {
        let k = Known(self.draw.below(self.sizes.len() as u64) as usize);
        let keep = match self.draw.below(6) {
            0 => Some(KeepAlive::Seconds(0.0)),
            1 => Some(KeepAlive::Forever),
            _ => None,
        };
        let (waiter, actions) = self.all.want(k, keep, within_s, self.now_s);
        self.waiters.push((waiter, k, self.now_s, End::Waits));
        self.act(actions);
    }

    fn disturb(&mut self) {
        let k = Known(self.draw.below(self.sizes.len() as u64) as usize);
        let actions = match self.draw.below(4) {
            0 => self.all.unload(k, self.now_s),
            1 => {
                let waits = self.waiters.iter().filter(|w| w.3 == End::Waits).map(|w| w.0);
                let waits: Vec<Waiter> = waits.collect();
                if waits.is_empty() {
                    return;
                }
                let waiter = waits[self.draw.below(waits.len() as u64) as usize];
                self.end(waiter, End::Left);
                self.all.left(waiter, self.now_s)
            }
            2 => self.all.pin(k, self.sizes[k.0] < 30, self.now_s),
            _ => self.all.pin(k, false, self.now_s),
        };
        self.act(actions);
    }

    fn waits(&self) -> usize {
        self.waiters.iter().filter(|w| w.3 == End::Waits).count()
    }
}

/// One life: how many were granted, refused, and broken off.
fn live(seed: u64) -> [usize; 3] {
    let mut world = World::new(seed);
    let within_s = if seed.is_multiple_of(3) { 3.0 } else { 1e6 };
    for _ in 0..40 + world.draw.below(120) {
        match world.draw.below(8) {
            0..=2 => world.ask(within_s),
            3 => world.disturb(),
            4 => world.now_s += world.draw.below(10) as f64 * 0.1,
            _ => {
                world.step();
            }
        }
    }
    (0..world.sizes.len()).for_each(|k| {
        let actions = world.all.pin(Known(k), false, world.now_s);
        world.act(actions);
    });
    let mut steps = 0;
    while world.waits() > 0 || !world.jobs.is_empty() {
        assert!(world.step(), "somebody waits for ever: {:?}", world.all);
        steps += 1;
        assert!(steps < 10_000, "no end: {:?}", world.all);
    }
    let count = |end| world.waiters.iter().filter(|w| w.3 == end).count();
    assert_eq!(count(End::Waits), 0);
    [count(End::Granted), count(End::Refused), count(End::Left)]
}

#[test]
fn any_order_of_events_keeps_memory_models_and_who_waits() {
    let mut sums = [0; 3];
    for seed in 0..3000 {
        let one = std::panic::catch_unwind(|| live(seed));
        let one = one.unwrap_or_else(|_| panic!("seed {seed}"));
        sums.iter_mut().zip(one).for_each(|(sum, n)| *sum += n);
    }
    assert!(sums[0] > 50_000 && sums[1] > 5000 && sums[2] > 1000, "{sums:?}");
}

/// A model that is asked for all the time does not keep another from its turn.
#[test]
fn a_hot_model_starves_nobody() {
    for seed in 0..50 {
        let mut world = World::new(seed);
        (world.sizes, world.floors) = (vec![60, 60, 60], vec![45, 60, 50]);
        world.all = Residency::new(100, MINUTE);
        for _ in 0..3 {
            world.all.know();
        }
        (world.memory, world.answers, world.cancelled) = (vec![0; 3], vec![0; 3], vec![false; 3]);
        let mut longest_s = [0.0f64; 3];
        for i in 0..4000u32 {
            let k = Known(if i % 500 == 250 { 1 + (i as usize / 500) % 2 } else { 0 });
            if i % 5 == 0 {
                let (waiter, actions) = world.all.want(k, None, 1e9, world.now_s);
                world.waiters.push((waiter, k, world.now_s, End::Waits));
                world.act(actions);
            }
            world.step();
            for (_, k, came_s, end) in &world.waiters {
                if *end == End::Waits {
                    longest_s[k.0] = longest_s[k.0].max(world.now_s - came_s);
                }
            }
        }
        // Holds, answers of 4 s, loads of 2 s, some of which fail, and two in the queue before it.
        assert!(longest_s.iter().all(|s| *s < 30.0), "seed {seed}: {longest_s:?}");
        assert!(world.waiters.iter().any(|w| w.1 == Known(2) && w.3 == End::Granted));
    }
}
