//! Every recorded architecture through the kernels as plain C++: logits of the prompt whole and in chunks, greedy tokens.

use tokenmill_cuda_tests::{checks, device};
use tokenmill_golden_tests::Golden;

/// Of all recordings those whose number is `part` of two: tests run side by side.
fn check_part(part: usize) {
    let Some(device) = device(16) else { return };
    let only = std::env::var("GOLDEN").ok();
    for arch in Golden::all().iter().skip(part).step_by(2) {
        if only.as_ref().is_none_or(|o| o == arch) {
            let start = std::time::Instant::now();
            checks::recording(arch, &device).unwrap();
            println!("{arch} {:.2?}", start.elapsed());
        }
    }
}

#[test]
fn recordings_match_even() {
    check_part(0);
}

#[test]
fn recordings_match_odd() {
    check_part(1);
}

#[test]
fn up_projections_in_blocks_are_their_numbers() {
    let Some(device) = device(16) else { return };
    checks::latents(&device).unwrap();
}
