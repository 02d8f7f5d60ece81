//! Recorded models that see, through the engine: loaded with their encoders, images as rows in
//! prompts, in chunks, out of the prefix cache, beside others.

use std::path::Path;
use std::sync::Arc;

use tokenmill_backend::Device;
use tokenmill_backend::reference::ReferenceDevice;
use tokenmill_cpu::{CpuDevice, CpuOptions};
use tokenmill_engine::load::{LoadOptions, WeightBits, load};
use tokenmill_engine::start::{DiskOptions, ServeOptions, Served};
use tokenmill_engine::{DraftMode, Embeddings, Event, Events, Eyes, Request, Tile, Tiles};
use tokenmill_golden_tests::{Forgetful, Golden, Image, Sight, Variant, worst_difference};
use tokenmill_ir::{FIRST_MEDIA, KvFormat, Mode, TokenId};
use tokenmill_media::Picture;
use tokenmill_models::vision;

/// What a template would write for an image, whatever the family: these models have no vocabulary.
const WRITTEN: TokenId = 1_000_000;

fn start(path: &Path, device: Arc<dyn Device>, step_tokens: u32) -> Served {
    start_with(path, device, (160, step_tokens), None)
}

fn options(context: u32, step_tokens: u32) -> LoadOptions {
    LoadOptions {
        mode: Mode::F32,
        kv: KvFormat::F32,
        context: Some(context),
        sequences: 4,
        step_tokens,
        memory_bytes: 1 << 32,
        images: true,
        weights: WeightBits::Auto,
    }
}

/// With a cache on disk in that folder.
fn start_with(
    path: &Path,
    device: Arc<dyn Device>,
    (context, step_tokens): (u32, u32),
    folder: Option<&Path>,
) -> Served {
    let options = options(context, step_tokens);
    let kv = options.kv;
    let loaded = load(path, device, &options, |_, _| {}).expect("loaded");
    let options = ServeOptions { queue: 64, step_s: 10.0, draft: DraftMode::Suffix };
    let disk = folder.map(|folder| {
        let (folder, model) = (folder.to_owned(), path.to_owned());
        DiskOptions { folder, cap_bytes: 1 << 30, model, kv }
    });
    let served = loaded.start_with(options, disk.as_ref()).expect("started");
    assert!(folder.is_none() || served.disk.is_ok(), "{:?}", served.disk);
    served
}

/// The prompt of a recording, of images multiplied by `scale`. What a processor writes around the rows is
/// in its text.
fn request(sight: &Sight, served: &Served, scale: f32) -> Request {
    request_between(sight, served, scale, [0, 0])
}

/// The same between so many other tokens.
fn request_between(sight: &Sight, served: &Served, scale: f32, others: [u32; 2]) -> Request {
    let how = served.sight.as_ref().expect("a model that sees");
    let seen = |image: &Image| {
        let tile = |(tile, number): (&vision::Tile, usize)| {
            let patches = sight.patches(number, tile.rows, how.vision.patch);
            let patches = patches.iter().map(|x| x * scale).collect();
            Tile { grid: [tile.rows.rows, tile.rows.cols], part: tile.part, patches }
        };
        let tiles = image.tiles.iter().zip(image.first..).map(tile).collect();
        Tiles { size: image.size, tiles }
    };
    let images: Vec<Tiles> = sight.images.iter().map(seen).collect();
    // Rows come where the recording has the token for each of them.
    let (mut rendered, mut left) = (Vec::new(), 0);
    let mut shapes = sight.images.iter();
    for &id in &sight.golden.ids {
        match (id == sight.image_token, left) {
            (false, _) => rendered.push(id),
            (true, 0) => {
                let pieces = shapes.next().expect("an image").pieces(&how.vision);
                rendered.push(WRITTEN);
                left = pieces.expect("taken").iter().map(|p| p.rows()).sum::<u32>() - 1;
            }
            (true, _) => left -= 1,
        }
    }
    let [before, behind] =
        others.map(|n| (0..n).map(|i| (i * i * 7 + n) % 101).collect::<Vec<_>>());
    let rendered = [before, rendered, behind].concat();
    let plain = |text: &str| match text == how.vision.script.written() {
        true => Ok(vec![WRITTEN]),
        false => Ok(Vec::new()),
    };
    let placed = how.prompt(&served.engine, &rendered, images, &plain, 0);
    let (prompt, inputs) = placed.expect("a prompt");
    let inputs = Some(Arc::new(inputs));
    Request { inputs, max_tokens: Some(32), ignore_eos: true, ..Request::new(prompt) }
}

/// Its tokens, and how many were found in the cache.
fn answer(events: Events) -> (Vec<TokenId>, u32) {
    let (mut ids, mut cached) = (Vec::new(), 0);
    for event in events {
        match event {
            Event::Piece { tokens, .. } => ids.extend(tokens.iter().map(|t| t.id)),
            Event::Finished(usage) => cached = usage.cached_tokens,
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    (ids, cached)
}

/// `small`: blocks of the cache are smaller than prompts.
fn check(sight: &Sight, served: &Served, small: bool) {
    let name = &sight.golden.arch;
    if served.sight.as_ref().is_some_and(|how| how.vision.summary.is_some()) {
        return check_vectors(sight, served);
    }
    let ask = |request: &Request| served.engine.submit(request.clone()).expect("accepted");
    let seen = request(sight, served, 1.0);
    let rows: Vec<f32> = {
        let inputs = seen.inputs.as_ref().expect("rows");
        inputs.media.iter().flat_map(|m| m.rows.data.iter().copied()).collect()
    };
    let (worst, at) = worst_difference(&rows, &sight.golden.floats("rows.f32"));
    assert!(worst <= 2e-4, "{name}: rows {worst} at {at}");
    assert_eq!(answer(ask(&seen)).0, sight.golden.greedy, "{name} alone");
    let (again, cached) = answer(ask(&request(sight, served, 1.0)));
    assert_eq!(again, sight.golden.greedy, "{name} again");
    let first = seen.prompt.iter().position(|id| *id >= FIRST_MEDIA).expect("an image") as u32;
    // (Where an image is computed whole, blocks of the cache that end inside it are of no use.)
    let whole = served.sight.as_ref().is_some_and(|s| s.vision.blocks);
    assert!(!small || whole || cached > first, "{name}: {cached} tokens were found");
    // The same text with other images is another prompt.
    let other = request(sight, served, -1.0);
    assert_eq!(other.prompt.len(), seen.prompt.len());
    let (_, cached) = answer(ask(&other));
    assert!(cached <= first, "{name}: {cached} tokens of another image were found");
    let crowd = [&other, &seen, &other].map(ask).map(answer);
    assert_eq!(crowd[1].0, sight.golden.greedy, "{name} in a crowd");
    assert_eq!(crowd[0].0, crowd[2].0, "{name}");
}

/// A model whose images and texts become vectors: each alone, and all together.
fn check_vectors(sight: &Sight, served: &Served) {
    let name = &sight.golden.arch;
    let how = served.sight.as_ref().expect("a model that sees");
    let patches = |image: &Image, scale: f32| {
        let rows = image.tiles[0].rows;
        let patches = sight.patches(image.first, rows, how.vision.patch);
        let patches = patches.iter().map(|x| x * scale).collect();
        how.patches(&Tile { grid: [rows.rows, rows.cols], part: None, patches }).expect("taken")
    };
    let see = |images| served.engine.see(images, 0).expect("rows");
    let numbers = |rows: &[Arc<Embeddings>]| -> Vec<f32> {
        rows.iter().flat_map(|row| row.data.iter().copied()).collect()
    };
    let others = || sight.images.iter().map(|image| patches(image, -1.0));
    let together = see(sight.images.iter().map(|i| patches(i, 1.0)).chain(others()).collect());
    let alone: Vec<f32> = others().flat_map(|one| numbers(&see(vec![one]))).collect();
    let (own, rest) = together.split_at(sight.images.len());
    let (worst, _) = worst_difference(&numbers(own), &sight.golden.floats("rows.f32"));
    assert!(worst <= 2e-4, "{name}: images {worst}");
    assert_eq!(numbers(rest), alone, "{name}: an image is the same among others");
    let ids = &sight.golden.ids;
    let expected = sight.golden.floats("embedding.f32");
    let texts = [ids.clone(), ids[..9].to_vec(), ids.clone()];
    let found = texts.map(|ids| served.engine.embed(ids));
    let [whole, part, again] = found.map(Result::ok);
    assert_eq!(whole, again, "{name}");
    let (worst, _) = worst_difference(&whole.expect("a vector"), &expected);
    assert!(worst <= 2e-4, "{name}: text {worst}");
    // (Of CLIP's the first tokens have no end.)
    assert_eq!(part.is_none(), served.arch == "clip", "{name}");
    // What stands behind the end of a text counts for nothing; padding counts.
    let last = *ids.last().expect("an end");
    let (text, expected) = match served.arch {
        "clip" => ([&ids[..], &[3, last]].concat(), ids.clone()),
        _ => (vec![7, 9], [vec![7, 9], vec![1; 62]].concat()),
    };
    assert_eq!(served.engine.framed(text).ok(), Some(expected), "{name}");
}

fn check_all(device: &dyn Fn() -> Arc<dyn Device>, step_tokens: u32, small: bool) {
    for name in Golden::all_seeing() {
        let sight = Sight::read(&name);
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let path = sight.golden.path(Variant::Config, scratch.path());
        check(&sight, &start(&path, device(), step_tokens), small);
        let scratch = tempfile::tempdir().expect("a scratch folder");
        if sight.golden.has(Variant::Gguf) && sight.golden.open_mmproj(scratch.path()).is_some() {
            let path = sight.golden.path(Variant::Gguf, scratch.path());
            check(&sight, &start(&path, device(), step_tokens), small);
        }
    }
}

/// The rows of a picture by the processor that a file describes; where the description is another's, that one's.
fn rows_of(path: &Path, described: Option<&str>) -> (Vec<f32>, String) {
    let device = CpuDevice::new(CpuOptions { threads: 2, ..CpuOptions::default() });
    let served = start_with(path, Arc::new(device.expect("a CPU")), (2000, 64), None);
    let mut sight = served.sight.expect("a model that sees");
    // (No context of these models has room for so many of their small patches.)
    sight.preprocessor = sight.preprocessor.map(|text| text.replace(":65536", ":1024"));
    if let Some(described) = described {
        let frames = format!("\"temporal_patch_size\":{}", sight.vision.patch.frames);
        sight.preprocessor = Some(described.replace("\"temporal_patch_size\":1", &frames));
    }
    let described = sight.preprocessor.clone().unwrap_or_default();
    let plain = |text: &str| match text == sight.vision.script.written() {
        true => Ok(vec![WRITTEN]),
        false => Ok(Vec::new()),
    };
    let eyes = Eyes::new(sight.clone()).expect("its processor is built");
    let (high, wide) = (36, 52);
    let rgb = (0..high * wide * 3).map(|i| (i * i / 7 + i / 52) as u8).collect();
    let picture = Picture::new(wide, high, rgb).expect("fits");
    let prompt = eyes.prompt(&served.engine, &[1, WRITTEN, 2], &[picture], (&plain, 0));
    let (_, inputs) = prompt.expect("a prompt");
    (inputs.media.iter().flat_map(|m| m.rows.data.iter().copied()).collect(), described)
}

#[test]
fn a_pair_of_files_sees_a_picture_as_the_folder_does() {
    for name in Golden::all_seeing() {
        let sight = Sight::read(&name);
        let scratch = tempfile::tempdir().expect("a scratch folder");
        if !sight.golden.has(Variant::Gguf) || sight.golden.open_mmproj(scratch.path()).is_none() {
            continue;
        }
        let path = sight.golden.path(Variant::Gguf, scratch.path());
        let (found, described) = rows_of(&path, None);
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let path = sight.golden.path(Variant::Config, scratch.path());
        let (expected, _) = rows_of(&path, Some(&described));
        assert_eq!(found.len(), expected.len(), "{name}");
        let (worst, at) = worst_difference(&found, &expected);
        assert!(worst <= 2e-4, "{name}: {worst} at {at}");
    }
}

#[test]
fn rows_of_another_encoder_have_other_names() {
    // A cache on disk outlives the file of an encoder.
    let sight = Sight::read("vision/qwen2_vl");
    let scratch = tempfile::tempdir().expect("a scratch folder");
    drop(sight.golden.open_mmproj(scratch.path()).expect("an encoder's file"));
    let path = sight.golden.path(Variant::Gguf, scratch.path());
    let prompt = || {
        let served = start(&path, Arc::new(ReferenceDevice::new(4)), 7);
        let weights = served.engine.identity().and_then(|i| i.weights().map(str::to_owned));
        (request(&sight, &served, 1.0).prompt, weights.expect("files that are there"))
    };
    let (ids, weights) = prompt();
    assert_eq!(prompt(), (ids.clone(), weights.clone()));
    let mmproj = scratch.path().join("mmproj.gguf");
    let mut bytes = std::fs::read(&mmproj).expect("read");
    *bytes.last_mut().expect("numbers") ^= 1;
    std::fs::write(&mmproj, bytes).expect("written");
    let (others, now) = prompt();
    assert_ne!(others, ids);
    assert_ne!(now, weights, "receipts tell it too");
}

#[test]
fn without_images_nothing_is_loaded_to_see_them() {
    let sight = Sight::read("vision/qwen2_vl");
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let path = sight.golden.path(Variant::Config, scratch.path());
    let with = |images| {
        let options = LoadOptions { images, ..options(160, 7) };
        let device = Arc::new(ReferenceDevice::new(4));
        let loaded = load(&path, device, &options, |_, _| {}).expect("loaded");
        (loaded.encoder.is_some(), loaded.sight.is_some(), loaded.fit.encoder.sum() > 0)
    };
    assert_eq!((with(true), with(false)), ((true, true, true), (false, false, false)));
}

#[test]
fn every_recording_through_the_engine_on_the_reference_device() {
    check_all(&|| Arc::new(ReferenceDevice::new(4)), 7, true);
}

#[test]
fn every_recording_through_the_engine_on_the_cpu() {
    let options = || CpuOptions { threads: 2, ..CpuOptions::default() };
    check_all(&|| Arc::new(CpuDevice::new(options()).expect("a CPU")), 33, false);
}

#[test]
fn prompts_with_images_are_restored_from_disk() {
    for name in Golden::all_seeing() {
        let sight = Sight::read(&name);
        if sight.golden.greedy.is_empty() {
            continue; // (They have no cache.)
        }
        let (scratch, folder) =
            (tempfile::tempdir().expect("one"), tempfile::tempdir().expect("two"));
        let path = sight.golden.path(Variant::Config, scratch.path());
        let device = || -> Arc<dyn Device> {
            let options = CpuOptions { threads: 2, ..CpuOptions::default() };
            Arc::new(CpuDevice::new(options).expect("a CPU"))
        };
        // The recorded prompt in the first of the runs of 256 tokens that are written.
        let asked = |served: &Served, scale| {
            let request = request_between(&sight, served, scale, [100, 250]);
            answer(served.engine.submit(request).expect("accepted"))
        };
        let plain = start_with(&path, device(), (500, 64), None);
        let ((expected, _), (other, _)) = (asked(&plain, 1.0), asked(&plain, -1.0));
        let writes = start_with(&path, device(), (500, 64), Some(folder.path()));
        assert_eq!(asked(&writes, 1.0).0, expected, "{name} while writing");
        writes.engine.shut_down();
        let restored = start_with(&path, device(), (500, 64), Some(folder.path()));
        let (found, cached) = asked(&restored, 1.0);
        assert_eq!(found, expected, "{name}: restored");
        assert!(cached >= 256, "{name}: {cached} tokens were found");
        assert!(restored.engine.stats().disk_tokens >= 256, "{name}: on disk");
        let (found, cached) = asked(&restored, -1.0);
        assert_eq!(found, other, "{name}: another image");
        assert!(cached < 256, "{name}: {cached} tokens of another image were found");
        restored.engine.shut_down();
    }
}

#[test]
fn an_encoder_goes_on_after_its_device_was_lost() {
    // Lost in the encoder's step, and in the model's that follows.
    for lost in [1, 2] {
        let sight = Sight::read("vision/qwen2_vl");
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let path = sight.golden.path(Variant::Config, scratch.path());
        let served = start(&path, Forgetful::new(lost), 64);
        let asked = |scale| {
            let request = request(&sight, &served, scale);
            answer(served.engine.submit(request).expect("accepted")).0
        };
        assert_eq!(asked(1.0), sight.golden.greedy, "lost in step {lost}");
        assert_ne!(asked(-1.0), sight.golden.greedy);
        // With a file of its own the encoder reads that again.
        let scratch = tempfile::tempdir().expect("a scratch folder");
        drop(sight.golden.open_mmproj(scratch.path()).expect("an encoder's file"));
        let path = sight.golden.path(Variant::Gguf, scratch.path());
        let served = start(&path, Forgetful::new(lost), 64);
        let asked = request(&sight, &served, 1.0);
        let found = answer(served.engine.submit(asked).expect("accepted")).0;
        assert_eq!(found, sight.golden.greedy, "a pair, lost in step {lost}");
    }
}
