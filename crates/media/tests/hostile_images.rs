//! Files made to harm: each is refused by what is wrong with it, before memory is taken for it.

use std::io::Cursor;

use image::{DynamicImage, ImageFormat, RgbImage};
use tokenmill_media::{Ceilings, MediaError, Picture, Processor, Tower, decode};

fn png(chunks: &[(&[u8; 4], Vec<u8>)]) -> Vec<u8> {
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    for (kind, data) in chunks {
        let begin = file.len() + 4;
        file.extend((data.len() as u32).to_be_bytes());
        file.extend(*kind);
        file.extend(data);
        let sum = crc(&file[begin..]);
        file.extend(sum.to_be_bytes());
    }
    file
}

fn crc(bytes: &[u8]) -> u32 {
    let step = |sum: u32, byte: &u8| {
        (0..8)
            .fold(sum ^ u32::from(*byte), |s, _| (s >> 1) ^ (0xedb8_8320 & (s & 1).wrapping_neg()))
    };
    !bytes.iter().fold(u32::MAX, step)
}

/// A header: eight bits of that colour type.
fn header(width: u32, height: u32, depth: u8, colour: u8) -> (&'static [u8; 4], Vec<u8>) {
    let size = [width.to_be_bytes(), height.to_be_bytes()].concat();
    (b"IHDR", [size, vec![depth, colour, 0, 0, 0]].concat())
}

fn encoded(width: u32, height: u32, format: ImageFormat) -> Vec<u8> {
    let mut file = Cursor::new(Vec::new());
    let image = RgbImage::from_fn(width, height, |x, y| image::Rgb([x as u8, y as u8, 7]));
    DynamicImage::ImageRgb8(image).write_to(&mut file, format).expect("encodes");
    file.into_inner()
}

const FORMATS: [ImageFormat; 5] =
    [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP, ImageFormat::Gif, ImageFormat::Bmp];

#[test]
fn headers_that_promise_too_much_are_refused() {
    let ceilings = Ceilings::default();
    let data = (b"IDAT", vec![0x78, 0x9c, 0x03, 0, 0, 0, 0, 1]);
    for (width, height) in [(100_000, 100_000), (1 << 30, 1), (65_535, 65_535)] {
        let file = png(&[header(width, height, 8, 2), data.clone(), (b"IEND", Vec::new())]);
        let error = decode(&file, &ceilings).expect_err("refused");
        assert!(matches!(error, MediaError::Pixels { .. } | MediaError::Broken { .. }), "{error}");
    }
    // The same in other formats, whose headers have no sums.
    let mut bmp = encoded(4, 4, ImageFormat::Bmp);
    bmp[18..26].copy_from_slice(&[0xff, 0xff, 0xff, 0x0f, 0xff, 0xff, 0xff, 0x0f]);
    let mut gif = encoded(4, 4, ImageFormat::Gif);
    gif[6..10].copy_from_slice(&[0xff; 4]);
    let mut jpeg = encoded(16, 16, ImageFormat::Jpeg);
    let frame = jpeg.windows(2).position(|pair| pair == [0xff, 0xc0]).expect("a frame");
    jpeg[frame + 5..frame + 9].copy_from_slice(&[0xff; 4]);
    for (name, file) in [("bmp", bmp), ("gif", gif), ("jpeg", jpeg)] {
        let error = decode(&file, &ceilings).expect_err(name);
        assert!(!error.to_string().is_empty());
        assert!(matches!(error, MediaError::Pixels { .. } | MediaError::Broken { .. }), "{error}");
    }
}

#[test]
fn ceilings_are_of_bytes_pixels_and_memory() {
    let small = Ceilings { bytes: 1 << 20, pixels: 63, memory: 1 << 20 };
    for format in FORMATS {
        let file = encoded(8, 8, format);
        let error = decode(&file, &small).expect_err("too many pixels");
        assert_eq!(error, MediaError::Pixels { width: 8, height: 8, most: 63 });
        let fits = Ceilings { pixels: 64, ..small };
        assert_eq!(decode(&file, &fits).map(|p| (p.width(), p.height())), Ok((8, 8)));
        let short = Ceilings { bytes: file.len() - 1, ..fits };
        let bytes = file.len();
        assert_eq!(decode(&file, &short), Err(MediaError::Bytes { bytes, most: bytes - 1 }));
    }
    // Sixteen bits of four channels take eight bytes a pixel.
    let file = png(&[header(1000, 1000, 16, 6), (b"IDAT", Vec::new())]);
    let tight = Ceilings { memory: 4_000_000, ..Ceilings::default() };
    let error = decode(&file, &tight).expect_err("too much memory");
    assert!(matches!(
        error,
        MediaError::Memory { bytes: 8_000_000, .. } | MediaError::Broken { .. }
    ));
}

#[test]
fn what_says_much_and_holds_little_is_broken() {
    // Within the ceilings, but the pixels are not there.
    let empty = png(&[header(3000, 3000, 8, 2), (b"IDAT", Vec::new()), (b"IEND", Vec::new())]);
    let bad = png(&[header(9, 9, 3, 5)]);
    let none = png(&[header(0, 9, 8, 2), (b"IDAT", Vec::new())]);
    for file in [empty, bad, none, b"\x89PNG\r\n\x1a\n".to_vec(), b"\xff\xd8\xff".to_vec()] {
        let error = decode(&file, &Ceilings::default()).expect_err("refused");
        assert!(matches!(error, MediaError::Broken { .. } | MediaError::Empty { .. }), "{error}");
    }
    for file in [&b""[..], b"GIF", b"<svg/>", b"%PDF-1.7", b"II*\0", b"\0\0\0\x1cftypavif"] {
        assert_eq!(decode(file, &Ceilings::default()), Err(MediaError::Unknown));
    }
}

#[test]
fn truncated_files_are_told_broken() {
    for format in FORMATS {
        let file = encoded(40, 30, format);
        for end in [file.len() / 4, file.len() / 2] {
            let found = decode(&file[..end], &Ceilings::default());
            // (A JPEG that breaks off shows what came; other readers do the same.)
            let lenient = format == ImageFormat::Jpeg;
            assert!(found.is_err() || lenient, "{format:?} {end} of {}", file.len());
        }
    }
}

#[test]
fn metadata_that_unpacks_to_much_is_not_unpacked() {
    // A profile of 64 MiB of zeros in 64 KiB: deflate's blocks of one long repeat.
    let mut data = b"x\0\0".to_vec();
    data.extend(zeros_deflated(1 << 26));
    let file = png(&[header(4, 4, 8, 2), (b"iCCP", data), (b"IDAT", Vec::new())]);
    let tight = Ceilings { memory: 1 << 20, ..Ceilings::default() };
    assert!(decode(&file, &tight).is_err());
}

/// So many zeros as zlib has them, by fixed codes: a zero, then repeats of 258.
fn zeros_deflated(count: usize) -> Vec<u8> {
    let (mut out, mut held, mut bits) = (vec![0x78, 0x9c], 0u32, 0);
    let mut put = |value: u32, count: u32| {
        held |= value << bits;
        bits += count;
        while bits >= 8 {
            out.push(held as u8);
            held >>= 8;
            bits -= 8;
        }
    };
    put(0b011, 3);
    put(0b0000_1100, 8);
    for _ in 0..count / 258 {
        // Length 258 is code 285, eight bits 11000101 as they are sent; distance 1 is code 0.
        put(0b1010_0011, 8);
        put(0, 5);
    }
    put(0, 7);
    put(0, 8);
    out
}

#[test]
fn thin_images_ask_for_no_endless_rows() {
    let thin = Picture::new(1, 39_000, vec![9; 117_000]).expect("fits");
    let tower = Tower { patch: 14, merge: 1 };
    let square = || serde_json::json!({ "height": 336, "width": 336 });
    let edge = |name: &str| serde_json::json!({ name: 336 });
    for (name, size) in [
        ("Qwen2VLImageProcessor", serde_json::Value::Null),
        ("SiglipImageProcessor", square()),
        ("Gemma3ImageProcessor", square()),
        ("CLIPImageProcessor", edge("shortest_edge")),
        ("Idefics3ImageProcessor", edge("longest_edge")),
        ("LlavaNextImageProcessor", edge("shortest_edge")),
        ("LlavaOnevisionImageProcessor", square()),
        ("PixtralImageProcessor", edge("longest_edge")),
        ("GotOcr2ImageProcessor", square()),
    ] {
        let mut config = serde_json::json!({
            "image_processor_type": name, "size": size, "crop_size": square(),
            "max_image_size": { "longest_edge": 336 }, "crop_to_patches": true,
            "do_pan_and_scan": true,
        });
        if name == "LlavaOnevisionImageProcessor" {
            // (Its usual ones are of tiles of 384.)
            config["image_grid_pinpoints"] = serde_json::json!([[336, 2016], [2016, 336]]);
        }
        let processor = Processor::read(&config, tower).unwrap_or_else(|e| panic!("{name}: {e}"));
        match processor.patches(thin.clone(), true) {
            Ok(patches) => assert!(patches.at.len() < 100_000, "{name}"),
            Err(MediaError::Shape { width: 1, height: 39_000, .. }) => {}
            Err(other) => panic!("{name}: {other}"),
        }
    }
}
