//! The life of models on a host: loaded by name beside others that answer, given up half-way,
//! drained and ended, and whose memory is whose.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokenmill_backend::DeviceError;
use tokenmill_backend::reference::ReferenceDevice;
use tokenmill_engine::load::{LoadFailure, LoadOptions, WeightBits};
use tokenmill_engine::start::{ServeOptions, Served};
use tokenmill_engine::{DraftMode, Event, Host, Refusal, Request, State};
use tokenmill_golden_tests::{Golden, Variant};
use tokenmill_ir::{KvFormat, Mode};

const MEMORY_BYTES: u64 = 1 << 30;
const MINUTE: Duration = Duration::from_secs(60);

struct Stage {
    host: Host,
    scratch: tempfile::TempDir,
}

impl Stage {
    fn new(memory_bytes: u64) -> Self {
        let device = Arc::new(ReferenceDevice::new(16));
        let host = Host::start(device, memory_bytes).expect("a thread");
        Self { host, scratch: tempfile::tempdir().expect("a scratch folder") }
    }

    fn path(&self, golden: &Golden) -> PathBuf {
        let folder = self.scratch.path().join(&golden.arch);
        std::fs::create_dir_all(&folder).expect("a folder");
        golden.path(Variant::Config, &folder)
    }

    fn load(&self, golden: &Golden) -> Result<Served, LoadFailure> {
        self.load_watched(golden, |_, _| ControlFlow::Continue(()))
    }

    fn load_watched(
        &self,
        golden: &Golden,
        watch: impl FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Served, LoadFailure> {
        let path = self.path(golden);
        let loaded = self.host.load(&golden.arch, &path, &options(), watch)?;
        let serve = ServeOptions { queue: 8, step_s: 10.0, draft: DraftMode::None };
        Ok(loaded.start_on(&self.host, serve, None).expect("started"))
    }

    fn states(&self) -> Vec<(String, State)> {
        self.host.ledger().list().into_iter().map(|e| (e.name, e.state)).collect()
    }
}

fn options() -> LoadOptions {
    LoadOptions {
        mode: Mode::F32,
        kv: KvFormat::F32,
        context: Some(128),
        sequences: 2,
        step_tokens: 32,
        memory_bytes: u64::MAX,
        images: true,
        weights: WeightBits::Auto,
    }
}

fn asked(golden: &Golden) -> Request {
    Request {
        max_tokens: Some(golden.greedy.len() as u32),
        ignore_eos: true,
        ..Request::new(golden.ids.clone())
    }
}

fn tokens(events: impl Iterator<Item = Event>) -> Vec<u32> {
    let mut ids = Vec::new();
    for event in events {
        match event {
            Event::Piece { tokens, .. } => ids.extend(tokens.iter().map(|t| t.id)),
            Event::Failed(e) => panic!("{e}"),
            _ => {}
        }
    }
    ids
}

#[test]
fn models_come_and_go_beside_one_that_answers() {
    let stage = Stage::new(MEMORY_BYTES);
    let [llama, qwen, gemma] = ["llama", "qwen3", "gemma3"].map(Golden::read);
    let first = stage.load(&llama).expect("loaded");
    let held = stage.host.ledger().held_bytes();
    let stream = first.engine.submit(asked(&llama)).expect("accepted");
    // Half of one model, and it is given up.
    let mut seen = 0;
    let given_up = stage.load_watched(&qwen, |there, of| {
        assert_eq!(stage.states()[1], ("qwen3".to_owned(), State::Loading));
        seen = there;
        if there > of / 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let Err(LoadFailure::Device(DeviceError::Cancelled)) = given_up else {
        panic!("loaded all the same")
    };
    assert!(seen > 2);
    assert_eq!(stage.host.ledger().held_bytes(), held, "everything was given back");
    // Another, whole; its name is taken then.
    let second = stage.load(&gemma).expect("loaded");
    let both = stage.host.ledger().held_bytes();
    assert!(both > held);
    let Err(LoadFailure::Named { name }) = stage.load(&gemma) else { panic!("twice") };
    assert_eq!(name, "gemma3");
    assert_eq!(tokens(stream), llama.greedy, "the stream goes on");
    assert_eq!(tokens(second.engine.submit(asked(&gemma)).expect("accepted")), gemma.greedy);
    let memory = second.engine.stats().memory;
    assert_eq!(memory.sum(), both - held, "what it holds stands in its figures");
    // Draining ends what is open, and then the memory is free.
    let last = second.engine.submit(asked(&gemma)).expect("accepted");
    assert!(stage.host.unload("gemma3", MINUTE));
    assert_eq!(tokens(last), gemma.greedy, "what was taken is ended");
    assert!(matches!(second.engine.submit(asked(&gemma)), Err(Refusal::ShuttingDown)));
    assert_eq!(stage.host.ledger().held_bytes(), held, "handles hold none of its memory");
    assert!(!stage.host.unload("gemma3", MINUTE), "there is none");
    assert!(stage.host.engine("gemma3").is_none());
    // And it may come again.
    let again = stage.load(&gemma).expect("loaded");
    assert_eq!(tokens(again.engine.submit(asked(&gemma)).expect("accepted")), gemma.greedy);
    let ready = [("llama", State::Ready), ("gemma3", State::Ready)];
    assert_eq!(stage.states(), ready.map(|(n, s)| (n.to_owned(), s)));
}

#[test]
fn a_model_has_no_more_than_others_left() {
    let [llama, qwen] = ["llama", "qwen3"].map(Golden::read);
    let alone = Stage::new(MEMORY_BYTES);
    let served = alone.load(&llama).expect("loaded");
    let (all, own) = (served.fit.needed_bytes(), alone.host.ledger().held_bytes());
    assert_eq!(all, own, "the ledger and the plan say the same");
    // Room for one of them.
    let stage = Stage::new(all);
    stage.load(&llama).expect("loaded");
    let free_bytes = stage.host.ledger().free_bytes();
    match stage.load(&qwen) {
        Err(LoadFailure::DoesNotFit { available_bytes, needed_bytes, .. }) => {
            assert_eq!(available_bytes, free_bytes);
            assert!(needed_bytes > free_bytes, "{needed_bytes} of {free_bytes}");
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("two models in the room of one"),
    }
    assert_eq!(stage.states().len(), 1, "who failed is not there");
    assert!(stage.host.unload("llama", MINUTE));
    assert!(stage.load(&qwen).is_ok(), "there is room now");
    let nowhere =
        stage.host.load("x", Path::new("/nowhere"), &options(), |_, _| ControlFlow::Continue(()));
    assert!(matches!(nowhere, Err(LoadFailure::File(_))));
    assert_eq!(stage.states().len(), 1);
}

#[test]
fn caches_that_shrink_leave_room() {
    let stage = Stage::new(MEMORY_BYTES);
    let llama = Golden::read("llama");
    let served = stage.load(&llama).expect("loaded");
    let before = served.engine.stats().memory;
    served.engine.resize(vec![1], Box::new(()));
    // (An answer comes after what was told before it.)
    assert_eq!(tokens(served.engine.submit(asked(&llama)).expect("accepted")), llama.greedy);
    let after = served.engine.stats().memory;
    assert!(after.cache_bytes < before.cache_bytes, "{after:?} of {before:?}");
    assert_eq!(after.weight_bytes, before.weight_bytes);
    served.engine.resize(vec![u32::MAX], Box::new(()));
    assert_eq!(tokens(served.engine.submit(asked(&llama)).expect("accepted")), llama.greedy);
    assert_eq!(served.engine.stats().memory, before);
}
