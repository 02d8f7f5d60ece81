//! Launches of recorded models, as texts under tests/cuda/plans: a change of any of them is seen in review.
//! `UPDATE_PLANS=1 cargo test --test plans` writes them again.

use std::path::Path;

use tokenmill_cuda_tests::{attention, device, products};
use tokenmill_golden_tests::{Golden, Variant};
use tokenmill_ir::{GroupKind, KvFormat, Limits, Mode};
use tokenmill_models::{lower, spec_of};

/// Dense, latent attention with experts, windows with sinks, recurrences, an encoder.
const MODELS: [&str; 5] = ["llama", "deepseek_v3", "gpt_oss", "qwen3_next", "bert"];

/// Products by tensor cores, with what is fused into them.
const PRODUCTS: [&str; 5] =
    ["gated linear q8_0", "gated linear q4_k", "q6_k", "a sum", "experts q8_0"];

#[test]
fn products_are_as_recorded() {
    let Some(device) = device(32) else { return };
    let mut listing = String::new();
    for case in products::cases(32).into_iter().chain(products::experts(32)) {
        if PRODUCTS.iter().any(|name| case.name.contains(name)) {
            let launches = device.listing(&case.program, &case.limits, Mode::Bf16);
            listing += &format!("{}\n{}", case.name, launches.expect("a plan"));
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("plans/products.txt");
    if std::env::var_os("UPDATE_PLANS").is_some() {
        std::fs::write(&path, &listing).expect("written");
    }
    assert_eq!(listing, std::fs::read_to_string(&path).unwrap_or_default());
}

#[test]
fn attention_is_as_recorded() {
    let Some(device) = device(32) else { return };
    let mut listing = String::new();
    for case in attention::short(32).iter().chain(&attention::long(32)) {
        let launches = device.listing(&case.program, &case.limits, Mode::Bf16).expect("a plan");
        let launches: Vec<&str> = launches.lines().filter(|l| l.starts_with("attend")).collect();
        listing += &format!("{}\n{}\n", case.name, launches.join("\n"));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("plans/attention.txt");
    if std::env::var_os("UPDATE_PLANS").is_some() {
        std::fs::write(&path, &listing).expect("written");
    }
    assert_eq!(listing, std::fs::read_to_string(&path).unwrap_or_default());
}

#[test]
fn launches_are_as_recorded() {
    let Some(device) = device(32) else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("plans");
    let mut changed = Vec::new();
    for arch in MODELS {
        let golden = Golden::read(arch);
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let model = golden.open(Variant::Config, scratch.path());
        let spec = spec_of(&model.checkpoint).expect("a spec");
        let program = lower(&spec, &model.checkpoint, KvFormat::Bf16).expect("lowers").program;
        let blocks = |kind: &GroupKind| if *kind == GroupKind::State { 4 } else { 16 };
        let limits = Limits {
            step_tokens: 64,
            sequences: 4,
            outputs: 8,
            context: 128,
            group_blocks: program.groups().iter().map(blocks).collect(),
            top_logprobs: 0,
        };
        let listing = device.listing(&program, &limits, Mode::F32).expect("a plan");
        let path = folder.join(format!("{arch}.txt"));
        if std::env::var_os("UPDATE_PLANS").is_some() {
            std::fs::write(&path, &listing).expect("written");
        }
        let recorded = std::fs::read_to_string(&path).unwrap_or_default();
        let lines = listing.lines().zip(recorded.lines());
        if listing != recorded {
            let first = lines.clone().find(|(a, b)| a != b);
            changed.push(format!("{}: {first:?}", path.display()));
        }
    }
    assert!(changed.is_empty(), "{}", changed.join("\n"));
}
