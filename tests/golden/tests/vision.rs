//! Recorded models that see, on the reference device and on a CPU: rows of their images, logits of a
//! prompt with images whole and in chunks, greedy tokens; and each field of an encoder perturbed,
//! which must be noticed.

use tokenmill_backend::Device;
use tokenmill_backend::reference::ReferenceDevice;
use tokenmill_cpu::{CpuDevice, CpuOptions};
use tokenmill_files::OpenModel;
use tokenmill_golden_tests::{Golden, Image, Runner, Sight, Variant, worst_difference};
use tokenmill_ir::{Act, Checkpoint, Container, GateAct, KvFormat, Mask, Meta, MetaValue, Mode};
use tokenmill_models::spec::*;
use tokenmill_models::vision::{
    ClassToken, Deepstack, Gather, Learned, NormAt, Patch, Projector, Script, Stretch, Summary,
    TOWERS, VisionSpec, vision_of, vision_of_mmproj,
};
use tokenmill_models::{ModelSpec, lower, lower_vision, spec_of};

/// Largest difference allowed against transformers.
const TOLERANCE: f32 = 2e-4;
/// Least difference that a perturbation must make.
const NOTICED: f32 = 1e-3;

fn specs(model: &OpenModel) -> (VisionSpec, ModelSpec) {
    let vision = vision_of(&model.checkpoint).expect("an encoder").expect("one that is known");
    let text = spec_of(&model.checkpoint).expect("a language model");
    (vision, text)
}

fn check(name: &str, device: &dyn Device, chunks: &[usize]) {
    let sight = Sight::read(name);
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let model = sight.golden.open(Variant::Config, scratch.path());
    let (vision, mut text) = specs(&model);
    let newer = sight.golden.open(Variant::ConfigV5, scratch.path());
    assert_eq!(specs(&newer), (vision.clone(), text.clone()), "{name}");
    let rows = rows(&sight, &vision, device, &model);
    if vision.summary.is_some() {
        vision.see(&mut text).expect("both fit");
        return vector(&sight, &text, device, &model);
    }
    assert_eq!(vision.image_token, Some(sight.image_token), "{name}");
    if let Some(encoder) = sight.golden.open_mmproj(scratch.path()) {
        let found =
            vision_of_mmproj(&encoder.checkpoint, &beside(&vision)).expect("an mmproj file");
        self::rows(&sight, &found, device, &encoder);
        assert_eq!((found.axes, found.blocks), (vision.axes.clone(), vision.blocks), "{name}");
        assert_eq!((found.out, found.script), (vision.out, vision.script), "{name}");
    }
    vision.see(&mut text).expect("both fit");
    let lowered = lower(&text, &model.checkpoint, KvFormat::F32).expect("lowered");
    assert!(lowered.unused.is_empty(), "{name} unused: {:?}", lowered.unused);
    let prompt = sight.prompt(&vision, rows).expect("a prompt");
    let (ids, greedy) = (&sight.golden.ids, &sight.golden.greedy);
    let context = (ids.len() + greedy.len()) as u32 + 1;
    for &chunk in chunks {
        let run = Runner::new(device, Mode::F32, &lowered.program, &model, context);
        let mut run = run.expect("compiled");
        let logits = prompt.prefill(&mut run, chunk).expect("logits");
        let (worst, at) = worst_difference(&logits, &sight.golden.floats("logits.f32"));
        let row = at / lowered.program.vocab as usize;
        println!("{name} chunk {chunk}: max |Δ| {worst:.2e} at row {row}");
        assert!(worst <= TOLERANCE, "{name} chunk {chunk}: {worst} at row {row}");
        let last = &logits[logits.len() - lowered.program.vocab as usize..];
        let found = prompt.greedy(&mut run, last, greedy.len() as u32).expect("greedy");
        assert_eq!(found, *greedy, "{name} chunk {chunk}");
    }
}

/// The vector of a text, which images' are compared with.
fn vector(sight: &Sight, text: &ModelSpec, device: &dyn Device, model: &OpenModel) {
    let (name, ids) = (&sight.golden.arch, &sight.golden.ids);
    let lowered = lower(text, &model.checkpoint, KvFormat::F32).expect("lowered");
    assert!(lowered.unused.is_empty(), "{name} unused: {:?}", lowered.unused);
    let context = ids.len() as u32;
    let run = Runner::new(device, Mode::F32, &lowered.program, model, context);
    let found = run.and_then(|mut run| run.feed(ids, 1)).expect("a vector");
    let (worst, _) = worst_difference(&found, &sight.golden.floats("embedding.f32"));
    println!("{name}: text max |Δ| {worst:.2e}");
    assert!(worst <= TOLERANCE, "{name}: text {worst}");
}

/// Rows of a recording's images, which must be those recorded.
fn rows(sight: &Sight, vision: &VisionSpec, device: &dyn Device, model: &OpenModel) -> Vec<f32> {
    let name = format!("{} {:?}", sight.golden.arch, model.checkpoint.container);
    let tower = lower_vision(vision, &model.checkpoint).expect("the encoder is lowered");
    assert!(tower.unused.is_empty(), "{name} unused: {:?}", tower.unused);
    let rows = sight.encode(vision, &tower.program, device, model).expect("rows");
    let (worst, at) = worst_difference(&rows, &sight.golden.floats("rows.f32"));
    println!("{name}: rows max |Δ| {worst:.2e}");
    assert!(worst <= TOLERANCE, "{name}: rows {worst}, number {at}");
    rows
}

/// What a GGUF file of the language model says of it.
fn beside(vision: &VisionSpec) -> Checkpoint {
    let mut meta = Meta::new();
    let mut put = |key: &str, value| meta.insert(key.to_owned(), value);
    put("general.architecture", MetaValue::Str("m".to_owned()));
    put("m.embedding_length", MetaValue::Int(vision.out.into()));
    if let Some((norm, _)) = vision.projector.norm {
        put("m.attention.layer_norm_rms_epsilon", MetaValue::Float(norm.eps.into()));
    }
    if let Axes::Sections(list) | Axes::Interleaved(list) = &vision.axes {
        let list = list.iter().chain([&0]).map(|n| MetaValue::Int((*n).into())).collect();
        put("m.rope.dimension_sections", MetaValue::List(list));
    }
    Checkpoint::new(Container::Gguf, meta, Vec::new()).expect("no tensors")
}

#[test]
fn every_encoder_has_a_recording_that_matches_on_the_reference_device() {
    let names = Golden::all_seeing();
    for tower in TOWERS {
        assert!(names.contains(&format!("vision/{}", tower.name)), "none of {}", tower.name);
    }
    names.iter().for_each(|name| check(name, &ReferenceDevice::new(16), &[512, 7]));
}

#[test]
fn they_match_on_a_cpu() {
    let cpu = CpuDevice::new(CpuOptions { threads: 2, ..CpuOptions::default() }).expect("a CPU");
    Golden::all_seeing().iter().for_each(|name| check(name, &cpu, &[512, 7]));
}

type Change = fn(&mut VisionSpec);

/// Perturbations of an encoder; one that leaves it as it was does not apply to that family.
const CHANGES: &[(&str, Change)] = &[
    ("tower.hidden", |v| v.tower.hidden += 8),
    ("tower.layers", |v| drop(v.tower.layers.pop())),
    ("tower.final_norm", |v| v.tower.final_norm = None),
    ("tower.norm", |v| v.tower.branches_mut().for_each(|b| each(&mut b.norm_in, raise_eps))),
    ("tower.norm.kind", |v| {
        v.tower.branches_mut().for_each(|b| each(&mut b.norm_in, |n| *n = Norm::rms(n.eps)))
    }),
    ("tower.heads", |v| attention(v, |a| (a.heads, a.kv_heads) = (a.heads * 2, a.kv_heads * 2))),
    ("tower.scale", |v| attention(v, |a| a.scale *= 1.1)),
    ("tower.qk_norm", |v| attention(v, |a| a.qk_norm = QkNorm::None)),
    ("tower.mask", |v| {
        attention(v, |a| a.mask = if a.mask == Mask::Block { Mask::None } else { a.mask })
    }),
    ("tower.mask.full", |v| {
        if v.window.is_some() {
            attention(v, |a| a.mask = Mask::Block)
        }
    }),
    ("tower.rope", |v| attention(v, |a| a.rope = None)),
    ("tower.rope.theta", |v| attention(v, |a| each(&mut a.rope, |r| r.theta *= 2.0))),
    ("tower.rope.axes", |v| attention(v, |a| each(&mut a.rope, |r| r.axes = Axes::One))),
    ("tower.ffn.act", |v| v.tower.ffn_mut().for_each(|(_, f)| flip_act(f))),
    ("tower.ffn.beta", |v| {
        v.tower.ffn_mut().for_each(|(_, f)| {
            if let Ffn::Swish { beta, .. } = f {
                *beta = 1.0
            }
        })
    }),
    ("patch.channels", |v| v.patch.channels += 1),
    ("patch.frames", |v| v.patch.frames += 1),
    ("patch.pixels", |v| v.patch.pixels = false),
    ("patch.size", |v| v.patch.size += 1),
    ("positions", |v| v.positions = None),
    ("positions.side", |v| each(&mut v.positions, |p| p.side += 1)),
    ("positions.stretch", |v| {
        each(&mut v.positions, |p| {
            p.stretch = match p.stretch {
                Stretch::None | Stretch::Sides => p.stretch,
                Stretch::Bilinear => Stretch::Bicubic,
                Stretch::Bicubic => Stretch::Bilinear,
            }
        })
    }),
    ("class_token", |v| v.class_token = ClassToken::None),
    ("class_token.at", |v| {
        v.class_token = match v.class_token {
            ClassToken::None => ClassToken::None,
            ClassToken::First => ClassToken::Last,
            ClassToken::Last => ClassToken::First,
        }
    }),
    ("positions.behind_norm", |v| {
        if v.tower.embed.norm.is_some() {
            each(&mut v.positions, |p| p.behind_norm = !p.behind_norm)
        }
    }),
    ("tower.embed.norm", |v| v.tower.embed.norm = None),
    ("tower.embed.norm.eps", |v| each(&mut v.tower.embed.norm, raise_eps)),
    ("merge", |v| v.merge = 1),
    ("window", |v| each(&mut v.window, |n| *n += 1)),
    ("projector.gather", |v| {
        v.projector.gather = match v.projector.gather {
            // (Of one row both are that.)
            Gather::Concat if v.merge > 1 => Gather::Mean,
            Gather::Concat => Gather::Concat,
            Gather::Mean => Gather::Concat,
        }
    }),
    ("projector.scale", |v| {
        if v.projector.scale != 1.0 {
            v.projector.scale = 1.0
        }
    }),
    ("projector.standard", |v| v.projector.standard = false),
    ("projector.norm", |v| v.projector.norm = None),
    ("projector.norm.eps", |v| {
        each(&mut v.projector.norm, |(n, at)| match at {
            NormAt::MergedUnit => n.eps = 10.0,
            _ => raise_eps(n),
        })
    }),
    ("projector.norm.offset", |v| {
        // (Without weights there is none.)
        each(&mut v.projector.norm, |(n, at)| {
            if *at != NormAt::MergedUnit {
                n.offset += 0.1
            }
        })
    }),
    ("projector.norm.at", |v| each(&mut v.projector.norm, |(_, at)| flip_at(at))),
    ("projector.merging", |v| v.projector.merging = None),
    ("projector.merging.width", |v| each(&mut v.projector.merging, |n| *n += 1)),
    ("projector.between", |v| v.projector.between = None),
    ("projector.between.eps", |v| each(&mut v.projector.between, |(n, _)| raise_eps(n))),
    ("projector.between.act", |v| each(&mut v.projector.between, |(_, act)| *act = Act::Silu)),
    ("projector.second", |v| v.projector.second = None),
    ("projector.second.act", |v| each(&mut v.projector.second, |(_, act)| *act = Act::Silu)),
    ("projector.second.width", |v| each(&mut v.projector.second, |(n, _)| *n += 1)),
    ("origin", |v| v.origin = if v.origin > 0 { 0 } else { v.origin }),
    ("projector.gated", |v| v.projector.gated = false),
    ("projector.inner", |v| v.projector.inner = None),
    ("projector.inner.width", |v| each(&mut v.projector.inner, |(n, _)| *n += 1)),
    ("projector.inner.act", |v| {
        each(&mut v.projector.inner, |(_, a)| {
            *a = if *a == Act::Silu { Act::Gelu } else { Act::Silu }
        })
    }),
    ("deepstack", |v| v.deepstack = None),
    ("deepstack.layers", |v| each(&mut v.deepstack, |d| d.layers.reverse())),
    ("deepstack.layers.other", |v| each(&mut v.deepstack, |d| d.layers[0] += 1)),
    ("deepstack.projector", |v| {
        each(&mut v.deepstack, |d| each(&mut d.projector.norm, |(n, _)| raise_eps(n)))
    }),
    ("out", |v| v.out += 1),
    ("axes", |v| {
        v.axes = match &v.axes {
            Axes::Sections(s) => Axes::Interleaved(s.clone()),
            Axes::Interleaved(s) => Axes::Sections(s.clone()),
            other => other.clone(),
        }
    }),
    ("axes.sections", |v| {
        if let Axes::Sections(s) | Axes::Interleaved(s) = &mut v.axes {
            let moved = s[1].min(2);
            (s[0], s[1]) = (s[0] + moved, s[1] - moved)
        }
    }),
    ("summary", |v| v.summary = None),
    ("summary.heads", |v| {
        if let Some(Summary::Attention { heads, .. }) = &mut v.summary {
            *heads *= 2
        }
    }),
    ("summary.norm", |v| {
        if let Some(Summary::Attention { norm, .. }) = &mut v.summary {
            raise_eps(norm)
        }
    }),
    ("summary.width", |v| {
        if let Some(Summary::Attention { width, .. }) = &mut v.summary {
            *width += 1
        }
    }),
    ("summary.act", |v| {
        if let Some(Summary::Attention { act, .. }) = &mut v.summary {
            *act = Act::Silu
        }
    }),
    // (Vectors stand in no text.)
    ("blocks", |v| v.blocks = v.summary.is_none() && !v.blocks),
    ("most_rows", |v| v.most_rows = v.most_rows.map(|_| 1)),
    ("full_causal", |v| v.full_causal = false),
    ("tower.v_norm", |v| attention(v, |a| a.v_norm = None)),
    ("tower.norm_out", |v| v.tower.branches_mut().for_each(|b| b.norm_out = None)),
    ("script.canvas", |v| {
        if let Script::Canvas(most) = &mut v.script {
            *most = if most.is_some() { None } else { Some(1) }
        }
    }),
];

/// Takes every struct apart whole, so that a field that is added does not compile until it has its
/// row above, or its reason here.
#[allow(dead_code)]
fn every_field_has_a_row(vision: VisionSpec) {
    // `arch`, `image_token` and most scripts are words; `side` refuses images of other sizes, `skipped` says which
    // tensors may be left.
    let VisionSpec {
        arch: _,
        tower: _,
        patch,
        positions,
        class_token: _,
        origin: _,
        skipped: _,
        merge: _,
        window: _,
        side: _,
        most_rows: _,
        projector,
        deepstack,
        summary,
        out: _,
        axes: _,
        blocks: _,
        full_causal: _,
        image_token: _,
        script: _,
    } = vision;
    let Patch { channels: _, frames: _, size: _, pixels: _ } = patch;
    if let Some(Learned { side: _, stretch: _, behind_norm: _ }) = positions {}
    let Projector {
        gather: _,
        scale: _,
        standard: _,
        norm: _,
        merging: _,
        between: _,
        inner: _,
        gated: _,
        second: _,
    } = projector;
    if let Some(Deepstack { layers: _, projector: _ }) = deepstack {}
    match summary {
        None | Some(Summary::ClassToken) => {}
        Some(Summary::Attention { heads: _, norm: _, width: _, act: _ }) => {}
    }
}

fn each<T>(option: &mut Option<T>, change: impl FnOnce(&mut T)) {
    if let Some(value) = option {
        change(value);
    }
}

/// To a value that shows, whatever the family's code has.
fn raise_eps(norm: &mut Norm) {
    norm.eps = (norm.eps * 2.0).max(0.05);
}

fn flip_at(at: &mut NormAt) {
    *at = match at {
        NormAt::Patch => NormAt::Merged,
        NormAt::Merged => NormAt::Patch,
        NormAt::MergedUnit => NormAt::Merged,
    };
}

fn flip_act(f: &mut Ffn) {
    let other = |a: Act| if a == Act::Silu { Act::Gelu } else { Act::Silu };
    match f {
        Ffn::Gated { act: GateAct::Plain(a), .. } | Ffn::Plain { act: a, .. } => *a = other(*a),
        Ffn::Swish { width, .. } => *f = Ffn::Plain { width: *width, act: Act::Silu },
        _ => {}
    }
}

fn attention(v: &mut VisionSpec, change: impl Fn(&mut Attention)) {
    v.tower.attention_mut().for_each(|(_, a)| change(a));
}

/// Whether an encoder does not take an image.
fn refused(vision: &VisionSpec, image: &Image) -> bool {
    image.tiles.iter().any(|tile| vision.place(tile.rows).is_err())
}

/// Why a change went unnoticed, if it did.
fn unnoticed(sight: &Sight, model: &OpenModel, changed: &VisionSpec) -> Option<String> {
    let device = ReferenceDevice::new(16);
    let tower = lower_vision(changed, &model.checkpoint).ok()?;
    if !tower.unused.is_empty() || sight.images.iter().any(|i| refused(changed, i)) {
        return None;
    }
    let mut text = spec_of(&model.checkpoint).expect("a language model");
    changed.see(&mut text).ok()?;
    let rows = match sight.encode(changed, &tower.program, &device, model) {
        Ok(rows) => rows,
        Err(error) => return Some(format!("is a device error: {error}")),
    };
    let recorded = sight.golden.floats("rows.f32");
    if rows.len() != recorded.len() || worst_difference(&rows, &recorded).0 > NOTICED {
        return None;
    }
    if changed.summary.is_some() {
        return Some("changes no vector".to_owned());
    }
    let lowered = lower(&text, &model.checkpoint, KvFormat::F32).ok()?;
    let prompt = sight.prompt(changed, rows).ok()?;
    let len = sight.golden.ids.len();
    let mut run =
        Runner::new(&device, Mode::F32, &lowered.program, model, len as u32 + 1).expect("compiled");
    let logits = prompt.prefill(&mut run, len).expect("logits");
    let (worst, _) = worst_difference(&logits, &sight.golden.floats("logits.f32"));
    (worst <= NOTICED).then(|| format!("changes logits by {worst:.1e} only"))
}

#[test]
fn every_perturbed_field_of_an_encoder_is_noticed() {
    let (mut missed, mut noticed) = (Vec::new(), vec![false; CHANGES.len()]);
    for name in Golden::all_seeing() {
        let sight = Sight::read(&name);
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let model = sight.golden.open(Variant::Config, scratch.path());
        let vision = specs(&model).0;
        for (i, (change, make)) in CHANGES.iter().enumerate() {
            let mut changed = vision.clone();
            make(&mut changed);
            if changed == vision {
                continue;
            }
            match unnoticed(&sight, &model, &changed) {
                None => noticed[i] = true,
                Some(why) => missed.push(format!("{name}: {change} {why}")),
            }
        }
    }
    assert!(missed.is_empty(), "\n{}", missed.join("\n"));
    let never = CHANGES.iter().zip(&noticed).filter(|(_, n)| !**n).map(|(c, _)| c.0);
    let never: Vec<&str> = never.collect();
    assert!(never.is_empty(), "perturbations that no encoder notices: {never:?}");
}
