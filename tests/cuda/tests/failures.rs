//! What a device answers when memory or a launch fails, and that all memory comes back.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokenmill_backend::{Device, DeviceError, Executable, Weights};
use tokenmill_cuda::CudaDevice;
use tokenmill_cuda_tests::{Emulated, Kernels, checks, products};
use tokenmill_device_tests::conformance::{Case, cases, outputs};
use tokenmill_ir::{BlockId, Mode, StepOutput};

fn set_up() -> Option<(Arc<Emulated>, CudaDevice)> {
    let driver = Arc::new(Emulated::new(Kernels::plain()?));
    let device = CudaDevice::new(driver.clone(), 32);
    Some((driver, device))
}

fn case(name: &str) -> Case {
    cases(32).into_iter().find(|c| c.name.contains(name)).expect("a case")
}

fn compiled(device: &CudaDevice, case: &Case) -> Result<Box<dyn Executable>, DeviceError> {
    compiled_in(Mode::F32, device, case)
}

fn compiled_in(
    mode: Mode,
    device: &CudaDevice,
    case: &Case,
) -> Result<Box<dyn Executable>, DeviceError> {
    let watch = &mut |_| ControlFlow::Continue(());
    let weights = device.upload(&case.program, &case.material, mode, watch)?;
    device.compile(&case.program, &weights, &case.limits)
}

#[test]
fn too_little_memory_is_said_and_nothing_is_held() {
    let Some((driver, device)) = set_up() else { return };
    let case = case("9 heads on 3 over F32");
    drop(compiled(&device, &case).expect("fits"));
    assert_eq!(driver.held_bytes(), 0, "all memory comes back");
    let needs = device.footprint(&case.program, &case.limits, Mode::F32).expect("a footprint");
    let caches: u64 =
        needs.block_bytes.iter().sum::<u64>() * u64::from(case.limits.group_blocks[0]);
    let caches = paged(caches as usize) as u64;
    for (room, what) in [
        (100, "weights"),
        (needs.weight_bytes + caches / 2, "cache"),
        (needs.weight_bytes + caches + 100, "buffers"),
        (needs.weight_bytes + caches + needs.buffer_bytes - 2 * 4096, "a step"),
    ] {
        driver.limit(room);
        match compiled(&device, &case).map(|_| ()) {
            Err(DeviceError::OutOfMemory { what: said, needed_bytes, .. }) => {
                assert!(said.contains(what) && needed_bytes > 0, "{said} of {needed_bytes}");
            }
            other => panic!("room for {room}: {other:?}"),
        }
        assert_eq!(driver.held_bytes(), 0, "nothing is held");
    }
    driver.limit(1 << 30);
    assert!(outputs(&device, Mode::F32, &case).is_ok());
}

/// A model that loads beside another neither holds up its steps nor has them seem to end later; it
/// computes with what was loaded.
#[test]
fn steps_go_on_beside_an_upload() {
    let Some((driver, device)) = set_up() else { return };
    let (served, loading) = (case("sinks over F32"), case("experts q8_0"));
    let expected = [&served, &loading].map(|c| outputs(&device, Mode::F32, c).expect("runs"));
    let mut executable = compiled(&device, &served).expect("compiles");
    let run = |executable: &mut Box<dyn Executable>, case: &Case| {
        let mut found = Vec::new();
        for step in &case.steps {
            let mut out = StepOutput::default();
            executable.submit(&mut step.clone()).expect("submitted");
            assert!(executable.advance(Duration::ZERO).expect("goes on"), "it is over");
            executable.wait(&mut out).expect("done");
            found.push(out);
        }
        found
    };
    assert_eq!(run(&mut executable, &served), expected[0]);
    let mut beside = 0;
    let watch = &mut |_| {
        let uploading = driver.is_uploading();
        assert_eq!(run(&mut executable, &served), expected[0]);
        assert_eq!(driver.is_uploading(), uploading, "steps waited for it");
        beside += u32::from(uploading);
        ControlFlow::Continue(())
    };
    let weights = device.upload(&loading.program, &loading.material, Mode::F32, watch);
    let weights = weights.expect("uploads");
    assert!(beside > 1, "{beside} weights were on their way");
    let mut other = device.compile(&loading.program, &weights, &loading.limits).expect("compiles");
    assert!(driver.is_uploading());
    assert_eq!(run(&mut executable, &served), expected[0]);
    assert!(driver.is_uploading(), "nobody waited for it yet");
    assert_eq!(run(&mut other, &loading), expected[1]);
    assert!(!driver.is_uploading());
}

/// What is taken is at most what was said before, and hardly less.
#[test]
fn a_footprint_is_what_is_taken() {
    for page in [4096, 2 << 20] {
        let Some((driver, device)) = set_up() else { return };
        driver.pages_of(page);
        let plain = checks::of_kinds(32).into_iter().map(|case| (Mode::F32, case));
        let atoms = products::cases(32).into_iter().map(|case| (Mode::Bf16, case));
        for (mode, case) in plain.chain(atoms) {
            let executable = compiled_in(mode, &device, &case).expect("compiles");
            let said = device.footprint(&case.program, &case.limits, mode);
            let said = said.expect("a footprint");
            let blocks = said.block_bytes.iter().zip(&case.limits.group_blocks);
            let caches: u64 = blocks.map(|(bytes, n)| bytes * u64::from(*n)).sum();
            let said = said.weight_bytes + caches + said.buffer_bytes;
            let (taken, pieces) = (driver.held_bytes() as u64, driver.pieces() as u64);
            let name = &case.name;
            assert!(taken <= said, "{name}: {taken} bytes taken, {said} said");
            assert!(said <= taken + taken / 100 + pieces * page, "{name}: {said}, {taken} taken");
            drop(executable);
        }
    }
}

#[test]
fn a_cancelled_upload_holds_nothing() {
    let Some((driver, device)) = set_up() else { return };
    let case = case("experts q8_0");
    let watch = &mut |n| if n < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
    let answer = device.upload(&case.program, &case.material, Mode::F32, watch);
    assert!(matches!(answer, Err(DeviceError::Cancelled)), "{answer:?}");
    assert_eq!(driver.held_bytes(), 0);
}

#[test]
fn a_failed_launch_fails_its_step_alone() {
    let Some((driver, device)) = set_up() else { return };
    let case = case("sinks over F32");
    let expected = outputs(&device, Mode::F32, &case).expect("runs");
    let mut executable = compiled(&device, &case).expect("compiles");
    driver.fail("launch", 2, false);
    let answer = executable.submit(&mut case.steps[0].clone());
    assert!(matches!(answer, Err(DeviceError::Failed { .. })), "{answer:?}");
    let answer = executable.wait(&mut StepOutput::default());
    assert!(matches!(answer, Err(DeviceError::BadBatch(_))), "{answer:?}");
    // Weights are as they were.
    assert_eq!(outputs(&device, Mode::F32, &case).as_ref(), Ok(&expected));
    assert_eq!(driver.opened(), 0);
}

/// On a GPU a context that was lost answers every call with the same error for ever.
#[test]
fn what_is_lost_is_made_again_from_the_beginning() {
    let Some((driver, device)) = set_up() else { return };
    let case = case("sinks over F32");
    let expected = outputs(&device, Mode::F32, &case).expect("runs");
    let watch = &mut |_| ControlFlow::Continue(());
    let mut upload = || device.upload(&case.program, &case.material, Mode::F32, watch);
    let weights = upload().expect("uploads");
    let compile = |w: &Weights| device.compile(&case.program, w, &case.limits);
    let (mut executable, mut other) = (compile(&weights).unwrap(), compile(&weights).unwrap());
    driver.fail("launch", 1, true);
    let is_lost = |answer: Result<(), DeviceError>| match answer {
        Err(DeviceError::Lost { reason, .. }) => assert!(reason.contains("planted"), "{reason}"),
        other => panic!("{other:?}"),
    };
    is_lost(executable.submit(&mut case.steps[0].clone()));
    // Everything else there has lost what it had, too.
    is_lost(other.submit(&mut case.steps[0].clone()));
    is_lost(other.resize(&[2]));
    is_lost(other.read_block(0, BlockId(0), &mut vec![0; other.blocks().unwrap().groups[0]]));
    // Where the GPU cannot be had, that is said, and asked again.
    driver.fail("reopen", 0, true);
    is_lost(upload().map(|_| ()));
    let again = upload().expect("uploads");
    assert_eq!(driver.opened(), 1);
    // What was made before is of no use, nor does it hold anything.
    assert!(matches!(compile(&weights), Err(DeviceError::Lost { .. })));
    assert!(matches!(executable.submit(&mut case.steps[0].clone()), Err(DeviceError::Lost { .. })));
    let held = driver.held_bytes();
    drop((weights, executable, other));
    assert_eq!(driver.held_bytes(), held);
    drop((compile(&again).expect("compiles"), again));
    assert_eq!(driver.held_bytes(), 0);
    assert_eq!(outputs(&device, Mode::F32, &case), Ok(expected));
}

/// A model that loads while the GPU is lost is loaded again, once.
#[test]
fn a_load_that_loses_everything_begins_again() {
    for mode in [Mode::F32, Mode::Bf16] {
        let Some((driver, device)) = set_up() else { return };
        let case = case("tied head q8_0");
        let expected = outputs(&device, mode, &case).expect("runs");
        let calls = if mode == Mode::F32 { &["write", "alloc"][..] } else { &["write", "launch"] };
        for call in calls {
            let opened = driver.opened();
            driver.fail(call, 0, true);
            assert_eq!(outputs(&device, mode, &case).as_ref(), Ok(&expected), "{call}");
            assert_eq!((driver.troubles(), driver.opened()), (0, opened + 1), "{call}");
        }
        // Not for ever.
        driver.fail("write", 0, true);
        driver.fail("write", 0, true);
        assert!(matches!(outputs(&device, mode, &case), Err(DeviceError::Lost { .. })));
    }
}

/// Memory of a cache that is kept in pages: whole ones.
fn paged(bytes: usize) -> usize {
    bytes.next_multiple_of(4096)
}

#[test]
fn caches_give_memory_back_and_keep_what_stays() {
    for has_spaces in [true, false] {
        let Some((driver, device)) = set_up() else { return };
        if !has_spaces {
            driver.without_spaces();
        }
        let size = |bytes: usize| if has_spaces { paged(bytes) } else { bytes };
        let case = case("plain over Bf16");
        let mut executable = compiled(&device, &case).expect("compiles");
        let (blocks, bytes) =
            (case.limits.group_blocks[0], executable.blocks().expect("blocks").groups[0]);
        let before = driver.held_bytes();
        let written: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
        for block in [1, blocks - 1] {
            executable.write_block(0, BlockId(block), &written).expect("written");
        }
        executable.resize(&[2]).expect("shrinks");
        let given = size(blocks as usize * bytes) - size(2 * bytes);
        assert_eq!(before - driver.held_bytes(), given);
        executable.resize(&[blocks]).expect("grows");
        assert_eq!(before, driver.held_bytes());
        let mut read = vec![1; bytes];
        executable.read_block(0, BlockId(1), &mut read).expect("read");
        assert_eq!(read, written, "what stayed");
        executable.read_block(0, BlockId(blocks - 1), &mut read).expect("read");
        assert!(read.iter().all(|b| *b == 0), "what was given back is forgotten");
        // Without room it stays as it is.
        executable.resize(&[2]).expect("shrinks");
        let held = driver.held_bytes();
        driver.limit(held as u64 + 10);
        let answer = executable.resize(&[blocks]);
        assert!(matches!(answer, Err(DeviceError::OutOfMemory { .. })), "{answer:?}");
        assert_eq!(driver.held_bytes(), held);
        executable.read_block(0, BlockId(1), &mut read).expect("read");
        assert_eq!(read, written, "what stayed");
        // (Where addresses stay, less needs no memory first.)
        assert_eq!(executable.resize(&[1]).is_ok(), has_spaces);
        drop(executable);
        assert_eq!((driver.held_bytes(), driver.reserved_bytes()), (0, 0));
    }
}

/// Whatever call fails while caches of several groups change, they are as they were, and steps go on.
#[test]
fn caches_are_as_before_where_a_change_fails() {
    let calls = ["create", "map", "release", "allow", "zero", "unmap"];
    let old_way = ["alloc", "copy", "zero"];
    let all = calls.map(|call| (true, call)).into_iter().chain(old_way.map(|call| (false, call)));
    let case = case("window of 20 over F32");
    for (has_spaces, call) in all {
        let Some((driver, device)) = set_up() else { return };
        if !has_spaces {
            driver.without_spaces();
        }
        let expected = outputs(&device, Mode::F32, &case).expect("runs");
        let mut executable = compiled(&device, &case).expect("compiles");
        let most = case.limits.group_blocks.clone();
        let few: Vec<u32> = most.iter().map(|n| n / 2).collect();
        let written = vec![7; executable.blocks().expect("blocks").groups[0]];
        executable.write_block(0, BlockId(0), &written).expect("written");
        let mut failed = 0;
        for after in 0..100 {
            for wanted in [&few, &most] {
                driver.fail(call, after, false);
                let before = driver.held_bytes();
                if let Err(error) = executable.resize(wanted) {
                    failed += 1;
                    assert!(matches!(error, DeviceError::Failed { .. }), "{error}");
                    assert_eq!(driver.held_bytes(), before, "{call} {after}");
                    assert_eq!(driver.troubles(), 0);
                    executable.resize(wanted).expect("the next time");
                } else {
                    driver.spare();
                }
                let mut read = vec![0; written.len()];
                executable.read_block(0, BlockId(0), &mut read).expect("read");
                assert_eq!(read, written, "{call} {after}");
            }
        }
        assert!(failed > 0, "{call} is never called");
        // What is bound is what is there.
        let mut found = Vec::new();
        for step in &case.steps {
            let mut out = StepOutput::default();
            executable.submit(&mut step.clone()).expect("submitted");
            executable.wait(&mut out).expect("done");
            found.push(out);
        }
        let rows = |all: &[StepOutput]| all.iter().map(|o| o.rows.clone()).collect::<Vec<_>>();
        assert_eq!(rows(&found), rows(&expected));
        drop(executable);
        assert_eq!((driver.held_bytes(), driver.reserved_bytes()), (0, 0), "{call}");
    }
}
