//! What is read of the encoders of images of widely used repositories (`hub/*.json`), and what is
//! refused.

use std::path::Path;

use tokenmill_files::hf_config;
use tokenmill_ir::{Checkpoint, Container, MetaValue};
use tokenmill_models::spec::{Body, Mixer};
use tokenmill_models::vision::{VisionSpec, vision_of};

fn checkpoint(name: &str) -> Checkpoint {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/hub/{name}.json"));
    let text = std::fs::read(&path).expect(name);
    let meta = hf_config::parse(&path, &text).expect("JSON");
    Checkpoint::new(Container::Hf, meta, Vec::new()).expect("no tensors")
}

fn told(v: &VisionSpec) -> String {
    let layer = v.tower.layers.first().expect("a layer");
    let heads = layer.branches.iter().find_map(|b| match &b.body {
        Body::Mix(mixers) => mixers.iter().find_map(|m| match m {
            Mixer::Attention(a) => Some(a.heads),
            _ => None,
        }),
        _ => None,
    });
    format!(
        "{}: {} layers of {} in {} heads, patches of {}, {} by {} to a row of {}",
        v.arch,
        v.tower.layers.len(),
        v.tower.hidden,
        heads.expect("attention"),
        v.patch.size,
        v.merge,
        v.merge,
        v.out
    )
}

#[test]
fn encoders_of_repositories_are_read_as_they_are_meant() {
    for (name, expect) in [
        (
            "google__gemma-3-4b-it",
            "gemma3: 27 layers of 1152 in 16 heads, patches of 14, 4 by 4 to a row of 2560",
        ),
        (
            "google__gemma-3-27b-it",
            "gemma3: 27 layers of 1152 in 16 heads, patches of 14, 4 by 4 to a row of 5376",
        ),
        (
            "mistralai__Mistral-Small-3.1-24B-Instruct-2503",
            "mistral3: 24 layers of 1024 in 16 heads, patches of 14, 2 by 2 to a row of 5120",
        ),
        (
            "Qwen__Qwen2.5-VL-3B-Instruct",
            "qwen2_5_vl: 32 layers of 1280 in 16 heads, patches of 14, 2 by 2 to a row of 2048",
        ),
        (
            "Qwen__Qwen3-VL-4B-Instruct",
            "qwen3_vl: 24 layers of 1024 in 16 heads, patches of 16, 2 by 2 to a row of 2560",
        ),
        (
            "llava-hf__llava-1.5-7b-hf",
            "llava: 23 layers of 1024 in 16 heads, patches of 14, 1 by 1 to a row of 4096",
        ),
        (
            "google__gemma-4-26B-A4B",
            "gemma4: 16 layers of 768 in 12 heads, patches of 16, 3 by 3 to a row of 2816",
        ),
    ] {
        let vision = vision_of(&checkpoint(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(told(&vision.expect(name)), expect);
    }
    assert_eq!(vision_of(&checkpoint("google__gemma-3-1b-it")).expect("no encoder"), None);
    let error = vision_of(&checkpoint("LiquidAI__LFM2.5-VL-1.6B")).expect_err("not known");
    assert_eq!(error.to_string(), "vision_config = of 'lfm2_vl' is not supported");
}

#[test]
fn what_is_not_known_of_an_encoder_is_refused_by_name() {
    for (key, value, expect) in [
        ("hidden_act", MetaValue::Str("mish".into()), "vision_config.hidden_act = mish"),
        ("patch_size", MetaValue::Int(0), "key 'vision_config.patch_size'"),
        ("num_attention_heads", MetaValue::Int(7), "vision_config.num_attention_heads = 7 heads"),
    ] {
        let mut file = checkpoint("google__gemma-3-4b-it");
        let Some(MetaValue::Map(vision)) = file.meta.get("vision_config").cloned() else {
            panic!("an encoder")
        };
        let mut vision = *vision;
        vision.insert(key.to_owned(), value);
        file.meta.insert("vision_config".to_owned(), MetaValue::Map(Box::new(vision)));
        let told = match vision_of(&file) {
            Err(error) => error.to_string(),
            Ok(_) => "read".to_owned(),
        };
        assert!(told.contains(expect), "{key}: {told}");
    }
}
