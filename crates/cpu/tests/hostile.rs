//! Batches that break the rules reach no kernel: they are refused, and the device goes on.

use tokenmill_cpu::{CpuDevice, CpuOptions};
use tokenmill_device_tests::conformance::{cases, endure};
use tokenmill_ir::Mode;

#[test]
fn bad_batches_are_refused() {
    let options = CpuOptions { threads: 2, ..CpuOptions::default() };
    let device = CpuDevice::new(options).expect("a device");
    for case in cases(32).iter().filter(|c| !c.name.starts_with("linear")) {
        let refused = endure(&device, Mode::Int8, case, 200);
        assert!(refused.as_ref().is_ok_and(|&n| n > 100), "{}: {refused:?}", case.name);
    }
}
