//! Every case of the conformance suite through the kernels as plain C++.

use tokenmill_cuda_tests::device;
use tokenmill_device_tests::conformance::{Outcome, run};
use tokenmill_ir::Mode;

#[test]
fn every_case_passes() {
    let only = std::env::var("CASE").ok();
    let Some(device) = device(32) else { return };
    let (mut count, mut failed) = (0, Vec::new());
    let start = std::time::Instant::now();
    let promise = |_: &_| tokenmill_device_tests::conformance::Tolerance { nmse: 1.0, max: 1.0 };
    run(&device, Mode::F32, &promise, &mut |report| {
        count += 1;
        if only.as_ref().is_none_or(|o| report.name.contains(o)) {
            println!("{report} [{:.2?}]", start.elapsed());
        }
        if !matches!(report.outcome, Outcome::Passed(_)) {
            failed.push(report.to_string());
        }
    });
    assert!(failed.is_empty(), "{} of {count}:\n{}", failed.len(), failed.join("\n"));
    assert!(count > 300, "{count} cases");
}
