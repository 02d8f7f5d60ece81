//! Steps told at once: the same bits as launches one by one, whatever the bucket; where graphs cannot be had, launches go on.

use std::ops::ControlFlow;
use std::sync::Arc;

use tokenmill_backend::{Device, DeviceError, Executable};
use tokenmill_cuda::CudaDevice;
use tokenmill_cuda_tests::{Emulated, Kernels, checks};
use tokenmill_device_tests::conformance::{Case, cases};
use tokenmill_ir::Mode;

fn set_up(case: &Case, block_tokens: u32) -> Option<(Arc<Emulated>, Box<dyn Executable>)> {
    let driver = Arc::new(Emulated::new(Kernels::plain()?));
    let device = CudaDevice::new(driver.clone(), block_tokens);
    let watch = &mut |_| ControlFlow::Continue(());
    let weights = device.upload(&case.program, &case.material, Mode::F32, watch);
    let weights = weights.expect("uploads");
    let executable = device.compile(&case.program, &weights, &case.limits).expect("compiles");
    Some((driver, executable))
}

#[test]
fn graphs_give_the_bits_of_launches() {
    for case in checks::of_kinds(5) {
        for has_spaces in [true, false] {
            let Some(kernels) = Kernels::plain() else { return };
            let driver = Arc::new(Emulated::new(kernels));
            if !has_spaces {
                driver.without_spaces();
            }
            checks::again(&CudaDevice::new(driver.clone(), 5), &case).unwrap();
            let (_, graphs) = driver.ran();
            // (Where caches move, graphs of before are of no use.)
            let least = if has_spaces { 2 * case.steps.len() } else { 0 };
            assert!(graphs >= least as u64, "{}: {graphs} graphs", case.name);
            assert_eq!((driver.names(), driver.held_bytes()), (0, 0), "{}", case.name);
        }
    }
}

#[test]
fn launches_go_on_without_graphs() {
    let case = cases(7).into_iter().find(|c| c.name.contains("sinks over F32")).expect("a case");
    let Some((driver, mut executable)) = set_up(&case, 7) else { return };
    let first = checks::steps_of(&mut *executable, &case).expect("runs");
    // The driver makes none.
    driver.fail("graph", 0, false);
    for _ in 0..3 {
        assert_eq!(checks::steps_of(&mut *executable, &case).as_ref(), Ok(&first));
    }
    assert_eq!((driver.ran().1, driver.troubles()), (0, 0));
    // One that fails fails its step; one that loses everything does.
    for lost in [false, true] {
        let Some((driver, mut executable)) = set_up(&case, 7) else { return };
        checks::steps_of(&mut *executable, &case).expect("runs");
        driver.fail("replay", 0, lost);
        let mut answers = (0..3).map(|_| checks::steps_of(&mut *executable, &case));
        let failed = answers.find_map(Result::err).expect("one of them fails");
        assert_eq!(matches!(failed, DeviceError::Lost { .. }), lost, "{failed}");
    }
}
