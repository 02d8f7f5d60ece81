//! Files of images of any bytes: what a header says is what is decoded, and every family's processor takes it
//! or says why not. Seeds: images of a few pixels in every format.
#![no_main]

use std::sync::LazyLock;

use serde_json::json;
use tokenmill_media::{Ceilings, Processor, Tower, decode, size};

/// Small, so that a run tries many files and never takes much memory.
const CEILINGS: Ceilings = Ceilings { bytes: 64 << 10, pixels: 1 << 16, memory: 4 << 20 };

static PROCESSORS: LazyLock<Vec<Processor>> = LazyLock::new(|| {
    let square = json!({ "height": 56, "width": 56 });
    let named = |name: &str, mut rest: serde_json::Value| {
        rest["image_processor_type"] = name.into();
        Processor::read(&rest, Tower { patch: 14, merge: 2 }).expect(name)
    };
    vec![
        named("Qwen2VLImageProcessor", json!({ "min_pixels": 784, "max_pixels": 50_176 })),
        named("SiglipImageProcessor", json!({ "size": square })),
        named("Gemma3ImageProcessor", json!({ "size": square, "do_pan_and_scan": true,
            "pan_and_scan_min_crop_size": 16, "pan_and_scan_max_num_crops": 4,
            "pan_and_scan_min_ratio_to_activate": 1.2 })),
        named("CLIPImageProcessor", json!({ "size": { "shortest_edge": 56 }, "crop_size": square })),
        named("Idefics3ImageProcessor", json!({ "size": { "longest_edge": 224 },
            "max_image_size": { "longest_edge": 56 } })),
        named("PixtralImageProcessor", json!({ "size": { "longest_edge": 224 } })),
    ]
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let header = size(bytes, &CEILINGS);
    let Ok(picture) = decode(bytes, &CEILINGS) else { return };
    let dimensions = [picture.width(), picture.height()];
    assert_eq!(header, Ok(dimensions), "the header says otherwise");
    let pixels = u64::from(dimensions[0]) * u64::from(dimensions[1]);
    assert!(pixels > 0 && pixels <= CEILINGS.pixels);
    for processor in PROCESSORS.iter() {
        let Ok(layout) = processor.layout(dimensions[0], dimensions[1], true) else { continue };
        if layout.patches() > 4096 {
            continue; // (Thin images; who has a context does not take them.)
        }
        let patches = processor.patches(picture.clone(), true).expect("it has a layout");
        assert_eq!(patches.layout, layout);
        assert_eq!(patches.data.len(), layout.patches() * patches.columns);
        assert!(patches.data.iter().all(|x| x.is_finite()));
    }
});
