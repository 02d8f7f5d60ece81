//! Against the originals: what transformers' processors make of images, bit by bit, and what Pillow
//! decodes of small files (`golden/record.py`).

use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokenmill_media::{
    Backend, Ceilings, MediaError, Picture, Processor, Tower, Transparency, decode, format,
};

fn recorded(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let text = std::fs::read_to_string(&path).expect("a recording");
    serde_json::from_str(&text).expect("JSON")
}

/// The formula that `record.py` has.
fn picture(width: u32, height: u32) -> Picture {
    let mut rgb = Vec::new();
    for y in 0..height {
        for x in 0..width {
            rgb.extend(
                [0, 1, 2].map(|c| ((x * (3 + c) + y * (5 - c) + x * y / 8 + 40 * c) % 256) as u8),
            );
        }
    }
    Picture::new(width, height, rgb).expect("fits")
}

fn number(value: &Value) -> u32 {
    value.as_u64().and_then(|n| u32::try_from(n).ok()).expect("a number")
}

#[test]
fn processors_are_those_that_models_were_trained_with() {
    let recorded = recorded("processors.json");
    let (mut seen, mut wrong) = (0, Vec::new());
    for case in recorded["cases"].as_array().expect("cases") {
        let tower = Tower { patch: number(&case["tower"][0]), merge: number(&case["tower"][1]) };
        let processor = Processor::read(&case["config"], tower).expect("it is built");
        let backend = match case["backend"].as_str() {
            Some("pillow") => Backend::Pillow,
            _ => Backend::Torchvision,
        };
        assert_eq!(processor.backend, backend, "{}", case["config"]);
        for image in case["images"].as_array().expect("images") {
            seen += 1;
            let found = differs(&processor, image);
            wrong.extend(found.map(|found| format!("{} {backend:?} {found}", case["config"])));
        }
    }
    assert!(seen > 100, "{seen} images");
    assert!(wrong.is_empty(), "{} of {seen}:\n{}", wrong.len(), wrong.join("\n"));
}

/// How an image's rows differ from those recorded.
fn differs(processor: &Processor, image: &Value) -> Option<String> {
    let (width, height) = (number(&image["width"]), number(&image["height"]));
    let alone = image["alone"] == true;
    let patches = processor.patches(picture(width, height), alone).expect("it is taken");
    let layout = processor.layout(width, height, alone).expect("it is taken");
    assert_eq!(patches.layout, layout);
    assert_eq!((patches.at.len(), layout.size), (layout.patches(), [height, width]));
    let grids: Vec<Value> = layout.tiles.iter().map(|t| t.grid.to_vec().into()).collect();
    let name = format!("{width} x {height} alone {alone}");
    if Value::from(grids) != image["grids"] {
        return Some(format!("{name}: {:?} instead of {}", layout.tiles, image["grids"]));
    }
    if image["split"].is_array() && image["split"] != Value::from(layout.split.to_vec()) {
        return Some(format!("{name}: split {:?}", layout.split));
    }
    if (patches.columns, patches.at.len())
        != (number(&image["columns"]) as usize, number(&image["rows"]) as usize)
    {
        return Some(format!("{name}: {} columns", patches.columns));
    }
    let bytes: Vec<u8> = patches.data.iter().flat_map(|value| value.to_le_bytes()).collect();
    let digest: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    if image["sha256"] == digest.as_str() {
        return None;
    }
    let mean = patches.data.iter().map(|v| f64::from(*v)).sum::<f64>() / patches.data.len() as f64;
    let last = patches.data.len() - 1;
    let some: Vec<f32> = (0..9).map(|i| patches.data[last * i / 8]).collect();
    Some(format!("{name}: mean {mean} of {}, {some:?} of {}", image["mean"], image["some"]))
}

#[test]
fn files_are_decoded_as_pillow_does() {
    let recorded = recorded("files.json");
    let ceilings = Ceilings::default();
    let mut wrong = Vec::new();
    for file in recorded["files"].as_array().expect("files") {
        let name = file["name"].as_str().expect("a name");
        let bytes = unpacked(&file["file"]);
        let found = decode(&bytes, &ceilings).unwrap_or_else(|error| panic!("{name}: {error}"));
        let found = found.opaque(Transparency::Dropped);
        let size = (number(&file["width"]), number(&file["height"]));
        assert_eq!((found.width(), found.height()), size, "{name}");
        let header = tokenmill_media::size(&bytes, &ceilings);
        assert_eq!(header, Ok([size.0, size.1]), "{name}: by its header");
        let expect = unpacked(&file["rgb"]);
        let most = found.rgb().iter().zip(&expect).map(|(a, b)| a.abs_diff(*b)).max();
        let most = u64::from(most.unwrap_or_default());
        // (No bound: the decoders' own choices differ, such as how halved colours are widened.)
        let bound = file["bound"].as_u64().unwrap_or(60);
        if most > bound {
            wrong.push(format!("{name}: {most} apart, {bound} allowed"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn clear_pixels_lie_on_white_where_the_model_saw_them_so() {
    let recorded = recorded("files.json");
    let files = recorded["files"].as_array().expect("files");
    let clear = files.iter().find(|file| file["name"] == "clear.png").expect("it is there");
    let picture = decode(&unpacked(&clear["file"]), &Ceilings::default()).expect("decodes");
    assert_eq!(picture.opaque(Transparency::White).rgb(), unpacked(&recorded["white"]));
}

#[test]
fn every_file_is_broken_off_anywhere_without_harm() {
    let recorded = recorded("files.json");
    let ceilings = Ceilings { pixels: 10_000, memory: 1 << 20, ..Ceilings::default() };
    for file in recorded["files"].as_array().expect("files") {
        let bytes = unpacked(&file["file"]);
        for end in (0..bytes.len()).step_by(7) {
            told(decode(&bytes[..end], &ceilings));
        }
        for at in (0..bytes.len()).step_by(3) {
            for flip in [0x01, 0x80, 0xff] {
                let mut other = bytes.clone();
                other[at] ^= flip;
                told(decode(&other, &ceilings));
            }
        }
        assert!(format(&bytes).is_some(), "{}", file["name"]);
    }
}

/// A picture or a sentence, within the ceilings.
fn told(found: Result<Picture, MediaError>) {
    match found {
        Ok(picture) => assert!(picture.rgb().len() <= 30_000),
        Err(error) => assert!((10..400).contains(&error.to_string().len()), "{error}"),
    }
}

fn unpacked(value: &Value) -> Vec<u8> {
    BASE64_STANDARD.decode(value.as_str().expect("a text")).expect("base64")
}
