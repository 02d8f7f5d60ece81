//! Images through an encoder beside a model, both on the simulated device.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use tokenmill_device_tests::sim::{SimControl, SimDevice, SimText, program};
use tokenmill_engine::{
    DraftMode, Embeddings, Engine, EngineParts, Event, Inputs, Look, Numbers, Patches, Refusal,
    Request, RequestError, RowsError, Usage, Viewer, Vision, system_clock,
};
use tokenmill_ir::{GroupKind, Limits, TokenId};
use tokenmill_sched::{Config, StepCost};

const VOCAB: u32 = 26;
const PLACE: TokenId = 25;

fn engine(groups: &[GroupKind], vocab: u32, control: &SimControl) -> Engine {
    let whole = groups.is_empty();
    let mut program = program(groups, vocab, 1);
    program.whole_sequences = whole;
    let limits = Limits {
        step_tokens: 32,
        sequences: 4,
        outputs: 8,
        context: 128,
        group_blocks: vec![64; groups.len()],
        top_logprobs: 5,
    };
    let backend = SimDevice::new(4, control.clone());
    let bounds = limits.clone();
    let build = move || backend.executable(&program, &bounds);
    Engine::start(EngineParts {
        device: build().unwrap(),
        rebuild: Box::new(move |_| build()),
        config: Config {
            groups: groups.to_vec(),
            block_tokens: 4,
            limits,
            whole_sequences: whole,
            vocab,
            hidden: 1,
            cost: StepCost::new(1e-3, 1e-5, 0.0),
            step_s: 1.0,
            checkpoint_slots: 0,
            longest_block: 8,
        },
        tokenizer: None,
        ids: vocab,
        input_cols: 1,
        eos: Vec::new(),
        draft: DraftMode::Suffix,
        queue: 8,
        clock: system_clock(),
        claim: None,
    })
    .unwrap()
}

/// A model that sees, the rows of so many images at most, and what its encoder does.
fn seeing(images: u64) -> (Engine, SimControl) {
    let encoding = SimControl::default();
    let model = engine(&[GroupKind::Full], VOCAB, &SimControl::default());
    let encoder = engine(&[], 0, &encoding);
    model.give_vision(Vision::new(encoder, "encoder".to_owned(), images * 5 * 4));
    (model, encoding)
}

/// An image that becomes five rows.
fn image(seed: u32) -> Patches {
    let data = (0..10).map(|i| (seed * 100 + i) as f32).collect();
    Patches { cols: 1, data, outputs: vec![0, 2, 4, 6, 8], ..Patches::default() }
}

/// Greedy tokens of a prompt with images, and what was found in the cache.
fn answer(model: &Engine, images: Vec<Patches>, blocks: bool) -> (Vec<TokenId>, Usage) {
    let rows = model.see(images, 0).unwrap();
    let text: Vec<TokenId> = [1, 2, 3].into_iter().chain(rows.iter().map(|_| PLACE)).collect();
    let (prompt, mut inputs) = Inputs::place(&text, PLACE, &rows).unwrap();
    if blocks {
        inputs.blocks = inputs.media.iter().map(|m| [m.at, m.at + 5]).collect();
    }
    let inputs = Some(Arc::new(inputs));
    let request = Request { inputs, max_tokens: Some(6), ..Request::new(prompt) };
    let (mut tokens, mut usage) = (Vec::new(), Usage::default());
    for event in model.submit(request).unwrap() {
        match event {
            Event::Piece { tokens: more, .. } => tokens.extend(more.iter().map(|t| t.id)),
            Event::Finished(found) => usage = found,
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    (tokens, usage)
}

#[test]
fn answers_depend_on_images_and_find_them_in_the_cache() {
    let (model, _) = seeing(9);
    let (first, usage) = answer(&model, vec![image(1), image(2)], false);
    assert_eq!((first.len(), usage.prompt_tokens, usage.cached_tokens), (6, 13, 0));
    let (again, usage) = answer(&model, vec![image(1), image(2)], false);
    assert_eq!((&again, usage.cached_tokens), (&first, 12));
    let (other, usage) = answer(&model, vec![image(1), image(3)], false);
    assert_ne!(other, first);
    assert_eq!(usage.cached_tokens, 8, "three words and the first image");
    // The oracle: a row is what its number's bits are.
    let rows = model.see(vec![image(1), image(2)], 0).unwrap();
    let bits = rows.iter().flat_map(|rows| rows.data.iter().map(|x| x.to_bits()));
    let text: Vec<TokenId> = [1, 2, 3].into_iter().chain(bits).collect();
    assert_eq!(first, SimText::greedy(&[GroupKind::Full], &text, 6, VOCAB));
}

#[test]
fn rows_of_images_seen_lately_are_kept() {
    let (model, encoding) = seeing(2);
    let rows = model.see(vec![image(1), image(2), image(1)], 0).unwrap();
    assert!(Arc::ptr_eq(&rows[0], &rows[2]));
    assert_ne!(rows[0].ids, rows[1].ids);
    let tokens = encoding.done().tokens;
    assert_eq!(tokens, 20, "each once");
    let again = model.see(vec![image(2), image(1)], 0).unwrap();
    assert!(Arc::ptr_eq(&rows[0], &again[1]) && Arc::ptr_eq(&rows[1], &again[0]));
    assert_eq!(encoding.done().tokens, tokens);
    // A third one takes the place of the one looked at first.
    model.see(vec![image(3)], 0).unwrap();
    model.see(vec![image(1)], 0).unwrap();
    assert_eq!(encoding.done().tokens, tokens + 10);
    let anew = model.see(vec![image(2)], 0).unwrap();
    assert_eq!(encoding.done().tokens, tokens + 20);
    assert_eq!(anew[0], rows[1], "computed again they are the same");
}

#[test]
fn what_cannot_be_seen_is_refused() {
    let blind = engine(&[GroupKind::Full], VOCAB, &SimControl::default());
    let refused = |found| matches!(found, Err(RowsError::Refused(Refusal::BadParameter { .. })));
    assert!(refused(blind.see(vec![image(1)], 0)));
    let (model, _) = seeing(9);
    for patches in [0, 8, 40] {
        assert!(refused(model.see(vec![Patches { data: vec![0.5; patches], ..image(1) }], 0)));
    }
    for order in [vec![0, 1, 2, 3], vec![0, 1, 2, 3, 3]] {
        assert!(refused(model.see(vec![Patches { order, ..image(1) }], 0)));
    }
    assert!(refused(model.see(vec![Patches { outputs: Vec::new(), ..image(1) }], 0)));
    assert!(refused(model.see(vec![Patches { cols: 2, ..image(1) }], 0)), "other columns");
    let rows = model.see(vec![image(1)], 0).unwrap();
    let (prompt, inputs) = Inputs::place(&[1, PLACE, 2], PLACE, &rows).unwrap();
    let asked = |prompt: &[TokenId], inputs: &Inputs, numbers| {
        let inputs = Some(Arc::new(inputs.clone()));
        let request = Request { inputs, numbers, ..Request::new(prompt.to_vec()) };
        model.submit(request).err()
    };
    assert_eq!(asked(&prompt, &inputs, Some(Numbers::Hidden)), None);
    let bad = |found| matches!(found, Some(Refusal::BadParameter { .. }));
    assert!(bad(asked(&prompt, &inputs, Some(Numbers::Scores { top: 0 }))));
    assert!(bad(asked(&prompt, &Inputs::default(), None)), "ids without rows");
    assert!(bad(asked(&prompt[1..], &inputs, None)), "elsewhere");
    let id = *rows[0].ids.first().unwrap();
    let found = model.submit(Request::new(vec![1, id])).err();
    assert_eq!(found, Some(Refusal::BadToken { token: id, vocab: VOCAB }));
    let far = Inputs { blocks: vec![[0, 7]], ..inputs.clone() };
    assert_eq!(asked(&prompt, &far, None), None);
    model.shut_down();
    let closed = Err(RowsError::Refused(Refusal::ShuttingDown));
    assert_eq!(model.see(vec![image(1)], 0), closed);
}

#[test]
fn an_image_that_is_computed_whole_is_found_whole() {
    let (model, _) = seeing(9);
    let (first, _) = answer(&model, vec![image(1)], true);
    let (again, usage) = answer(&model, vec![image(1)], true);
    // (The last block of the cache ends with the prompt, whose last token is computed.)
    assert_eq!((again, usage.cached_tokens), (first, 0));
    let (_, usage) = answer(&model, vec![image(1), image(2)], true);
    assert_eq!(usage.cached_tokens, 8);
}

type Answer = Receiver<Result<Arc<Embeddings>, RowsError>>;

/// Somebody who waits for the rows of an image.
fn look(model: &Engine, seed: u32, viewer: Viewer) -> (Look, Answer) {
    let (sender, answer) = channel();
    let glance = model.glance(image(seed)).unwrap();
    let sink = Box::new(move |rows| drop(sender.send(rows)));
    (model.look(&glance, viewer, sink).unwrap(), answer)
}

fn rows(answer: &Answer) -> Result<Arc<Embeddings>, RowsError> {
    answer.recv_timeout(Duration::from_secs(20)).expect("an answer")
}

#[test]
fn an_image_that_several_want_is_computed_once() {
    // Nothing is kept: what comes without another step was shared.
    let (model, encoding) = seeing(0);
    encoding.delay(Duration::from_millis(200));
    let viewer = Viewer::default();
    let first = look(&model, 1, viewer);
    let second = look(&model, 1, viewer);
    let other = look(&model, 1, Viewer { salt: 7, ..viewer });
    let (a, b, c) = (rows(&first.1).unwrap(), rows(&second.1).unwrap(), rows(&other.1).unwrap());
    assert!(Arc::ptr_eq(&a, &b), "one of them waited for the other's");
    assert!(!Arc::ptr_eq(&a, &c) && a == c, "accounts that share nothing share no rows");
    assert_eq!(encoding.done().tokens, 20);
    // Who asked first leaves; the others get theirs.
    let (first, second) = (look(&model, 2, viewer), look(&model, 2, viewer));
    drop(first);
    assert!(rows(&second.1).is_ok());
    assert_eq!(encoding.done().tokens, 30);
}

#[test]
fn all_who_wait_hear_of_a_failure_and_the_next_asks_again() {
    let (model, encoding) = seeing(0);
    encoding.delay(Duration::from_millis(50));
    let viewer = Viewer::default();
    // (Once a device fails, a request starts over.)
    encoding.fail_at(0);
    encoding.fail_at(1);
    let both = [look(&model, 1, viewer), look(&model, 1, viewer)];
    for (_, answer) in &both {
        let failed = rows(answer);
        assert!(matches!(failed, Err(RowsError::Failed(RequestError::Device(_)))), "{failed:?}");
    }
    assert!(rows(&look(&model, 1, viewer).1).is_ok());
    let waiting = [look(&model, 2, viewer), look(&model, 2, viewer)];
    model.shut_down();
    for (_, answer) in &waiting {
        let ended = rows(answer);
        // (Whether the step in progress is waited for is the engine's.)
        let is_told = matches!(ended, Ok(_) | Err(RowsError::Failed(RequestError::ShutDown)));
        assert!(is_told, "{ended:?}");
    }
}

#[test]
fn work_ends_with_the_last_who_wants_it() {
    let (model, encoding) = seeing(0);
    encoding.delay(Duration::from_millis(100));
    let viewer = Viewer::default();
    // The first image takes a step, during which those behind it are given up.
    let first = look(&model, 1, viewer);
    let left: Vec<_> = (2..6).map(|seed| look(&model, seed, viewer)).collect();
    drop(left);
    assert!(rows(&first.1).is_ok());
    let last = look(&model, 9, viewer);
    assert!(rows(&last.1).is_ok());
    assert!(encoding.done().tokens <= 50, "{:?}: not all six", encoding.done());
    // A full queue is told to who asks, and nobody else waits in vain.
    let busy = Viewer { account: 1, ..viewer };
    let ask = |seed| model.look(&model.glance(image(seed)).unwrap(), busy, Box::new(|_| {}));
    let many: Vec<_> = (10..40).map(ask).collect();
    let refused = |look: &&Result<Look, Refusal>| matches!(look, Err(Refusal::QueueFull { .. }));
    assert!(many.iter().any(|look| look.is_ok()) && many.iter().filter(refused).count() > 0);
    // It is that account's part of it.
    let other = Viewer { account: 7, ..viewer };
    assert!(rows(&look(&model, 50, other).1).is_ok());
}
