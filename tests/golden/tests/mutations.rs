//! Each field of each architecture's spec, perturbed: the golden must notice, by ten times the
//! tolerance, or lowering must refuse. A field nobody notices is a field nobody tests.

#[path = "mutations/fields.rs"]
mod fields;

use tokenmill_backend::DeviceError;
use tokenmill_backend::reference::ReferenceDevice;
use tokenmill_files::OpenModel;
use tokenmill_golden_tests::{Golden, Runner, Variant, worst_difference};
use tokenmill_ir::{
    Act, GateAct, GateOrder, KeyHead, KvFormat, Mask, Mode, NormKind, RopePairing, RouteScore,
    TensorInfo,
};
use tokenmill_models::spec::*;
use tokenmill_models::{ModelSpec, lower, spec_of};

/// Ten times the tolerance of the golden test.
const NOTICED: f32 = 1e-3;

/// Bounds of frequencies: whether a few tokens show them depends on where the frequencies of a
/// model lie, so one architecture that notices is enough.
const FINE: &[&str] = &["rope.yarn.beta_fast", "rope.yarn.original"];

type Change = fn(&mut ModelSpec);

/// Doubles it; one that its family fixes too low to show in any recording becomes that of the others.
fn raise_eps(norm: &mut Norm) {
    norm.eps = (norm.eps * 2.0).max(0.01);
}

/// Perturbations; one that leaves a spec as it was does not apply to that architecture.
const CHANGES: &[(&str, Change)] = &[
    ("vocab", |m| m.vocab += 1),
    ("hidden", |m| m.hidden += 32),
    ("layers", |m| drop(m.layers.pop())),
    ("branch.dropped", |m| m.layers.iter_mut().for_each(|l| drop(l.branches.pop()))),
    ("embed.per_layer.width", |m| each(&mut m.embed.per_layer, |p| p.width += 1)),
    ("attention.heads", |m| attention(m, |a| a.heads *= 2)),
    ("attention.head_dim", |m| attention(m, |a| a.head_dim += 8)),
    ("latent.heads", |m| latent(m, |l| l.heads += 1)),
    ("latent.q_lora", |m| latent(m, |l| each(&mut l.q_lora, |n| *n += 1))),
    ("latent.kv_lora", |m| latent(m, |l| l.kv_lora += 1)),
    ("latent.nope", |m| latent(m, |l| l.nope += 1)),
    ("latent.rope_dim", |m| latent(m, |l| l.rope_dim += 2)),
    ("latent.v_dim", |m| latent(m, |l| l.v_dim += 1)),
    ("delta.k_heads", |m| delta(m, |d| d.k_heads *= 2)),
    ("delta.v_heads", |m| delta(m, |d| d.v_heads *= 2)),
    ("delta.k_dim", |m| delta(m, |d| d.k_dim += 1)),
    ("delta.v_dim", |m| delta(m, |d| d.v_dim += 1)),
    ("mamba.heads", |m| mamba(m, |x| x.heads *= 2)),
    ("mamba.head_dim", |m| mamba(m, |x| x.head_dim += 1)),
    ("mamba.groups", |m| mamba(m, |x| x.groups *= 2)),
    ("mamba.state_dim", |m| mamba(m, |x| x.state_dim += 1)),
    ("mamba.kernel", |m| mamba(m, |x| x.kernel -= 1)),
    ("ffn.width", |m| {
        m.ffn_mut().for_each(|(_, f)| {
            if let Ffn::Gated { width, .. } | Ffn::Plain { width, .. } | Ffn::Beside { width, .. } =
                f
            {
                *width += 1
            }
        })
    }),
    ("experts.count", |m| experts(m, |e| e.count += 1)),
    ("experts.width", |m| experts(m, |e| e.width += 1)),
    ("experts.shared.width", |m| experts(m, |e| each(&mut e.shared, |s| s.width += 1))),
    ("rope.linear.factor", |m| {
        scalings(m, |s| {
            if let RopeScaling::Linear { factor } = s {
                *factor *= 1.2
            }
        })
    }),
    ("rope.llama3.factor", |m| {
        scalings(m, |s| {
            if let RopeScaling::Llama3 { factor, .. } = s {
                *factor *= 1.2
            }
        })
    }),
    ("rope.llama3.low", |m| {
        scalings(m, |s| {
            if let RopeScaling::Llama3 { low, .. } = s {
                *low *= 1.5
            }
        })
    }),
    ("rope.llama3.high", |m| {
        scalings(m, |s| {
            if let RopeScaling::Llama3 { high, .. } = s {
                *high *= 1.5
            }
        })
    }),
    ("rope.llama3.original", |m| {
        scalings(m, |s| {
            if let RopeScaling::Llama3 { original, .. } = s {
                *original *= 1.5
            }
        })
    }),
    ("rope.yarn.factor", |m| {
        scalings(m, |s| {
            if let RopeScaling::Yarn { factor, .. } = s {
                *factor *= 1.2
            }
        })
    }),
    ("rope.yarn.beta_fast", |m| {
        scalings(m, |s| {
            if let RopeScaling::Yarn { beta_fast, .. } = s {
                *beta_fast *= 1.5
            }
        })
    }),
    ("rope.yarn.beta_slow", |m| {
        scalings(m, |s| {
            if let RopeScaling::Yarn { beta_slow, .. } = s {
                *beta_slow *= 3.0
            }
        })
    }),
    ("rope.yarn.original", |m| {
        scalings(m, |s| {
            if let RopeScaling::Yarn { original, .. } = s {
                *original *= 1.5
            }
        })
    }),
    ("rope.yarn.magnitude", |m| {
        scalings(m, |s| {
            if let RopeScaling::Yarn { magnitude, .. } = s {
                *magnitude *= 1.1
            }
        })
    }),
    ("rope.yarn.truncate", |m| {
        scalings(m, |s| {
            if let RopeScaling::Yarn { truncate, .. } = s {
                *truncate = !*truncate
            }
        })
    }),
    ("rope.factors", |m| {
        scalings(m, |s| {
            if let RopeScaling::Factors { factors, .. } = s {
                factors.iter_mut().for_each(|f| *f *= 1.2)
            }
        })
    }),
    ("rope.factors.magnitude", |m| {
        scalings(m, |s| {
            if let RopeScaling::Factors { magnitude, .. } = s {
                *magnitude *= 1.1
            }
        })
    }),
    ("embed.scale", |m| m.embed.scale *= 1.1),
    ("embed.positions", |m| m.embed.positions = None),
    ("embed.positions.first", |m| each(&mut m.embed.positions, |first| *first += 1)),
    ("embed.per_layer.norm.eps", |m| each(&mut m.embed.per_layer, |p| raise_eps(&mut p.norm))),
    ("embed.per_layer.scale", |m| each(&mut m.embed.per_layer, |p| p.scale *= 1.1)),
    ("embed.per_layer.projection_scale", |m| {
        each(&mut m.embed.per_layer, |p| p.projection_scale *= 1.3)
    }),
    ("embed.width", |m| m.embed.width = None),
    ("embed.norm.eps", |m| each(&mut m.embed.norm, raise_eps)),
    ("norm_in.eps", |m| branches(m, |b| each(&mut b.norm_in, raise_eps))),
    ("norm_in.kind", |m| branches(m, |b| each(&mut b.norm_in, flip_kind))),
    ("norm_in.offset", |m| branches(m, |b| each(&mut b.norm_in, |n| n.offset += 0.1))),
    ("norm_out.eps", |m| branches(m, |b| each(&mut b.norm_out, raise_eps))),
    ("norm_out.offset", |m| branches(m, |b| each(&mut b.norm_out, |n| n.offset += 0.1))),
    ("norm_sum.eps", |m| branches(m, |b| each(&mut b.norm_sum, raise_eps))),
    ("branch.scale", |m| branches(m, |b| b.scale *= 1.1)),
    ("join", |m| {
        m.layers.iter_mut().filter(|l| l.branches.len() > 1).for_each(|l| {
            l.join = match l.join {
                Join::Sequential => Join::Parallel,
                Join::Parallel => Join::Sequential,
            }
        })
    }),
    ("layer.scaled", |m| m.layers.iter_mut().for_each(|l| l.scaled = false)),
    ("layer_input.act", |m| {
        branches(m, |b| {
            if let Body::LayerInput(act) = &mut b.body {
                *act = Act::Silu
            }
        })
    }),
    ("final_norm.eps", |m| each(&mut m.final_norm, raise_eps)),
    ("final_norm.kind", |m| each(&mut m.final_norm, flip_kind)),
    ("output.scale", |m| {
        if let Output::Logits { scale, .. } = &mut m.output {
            *scale *= 1.1
        }
    }),
    ("output.softcap", |m| {
        if let Output::Logits { softcap: Some(cap), .. } = &mut m.output {
            *cap *= 1.1
        }
    }),
    ("output.pool", |m| {
        if let Output::Pooled { kind, .. } = &mut m.output {
            *kind = tokenmill_ir::PoolKind::First
        }
    }),
    ("output.normalise", |m| {
        if let Output::Pooled { normalise, .. } = &mut m.output {
            *normalise = false
        }
    }),
    ("output.projected.cols", |m| {
        if let Output::Projected { cols, .. } = &mut m.output {
            *cols += 1
        }
    }),
    ("output.score.kind", |m| {
        if let Output::Score { kind, .. } = &mut m.output {
            *kind = tokenmill_ir::PoolKind::Last
        }
    }),
    ("output.score.act", |m| {
        if let Output::Score { act, .. } = &mut m.output {
            each(act, |a| *a = tokenmill_ir::Unary::Sigmoid)
        }
    }),
    ("output.score.norm", |m| {
        if let Output::Score { norm, .. } = &mut m.output {
            each(norm, raise_eps)
        }
    }),
    ("attention.scale", |m| attention(m, |a| a.scale *= 1.1)),
    ("attention.kv_heads", |m| attention(m, |a| a.kv_heads = a.heads)),
    ("attention.rope", |m| attention(m, |a| a.rope = None)),
    ("attention.rope.theta", |m| attention(m, |a| each(&mut a.rope, |r| r.theta *= 2.0))),
    ("attention.rope.dims", |m| attention(m, |a| each(&mut a.rope, |r| r.dims -= 4))),
    ("attention.rope.pairing", |m| attention(m, |a| each(&mut a.rope, flip_pairing))),
    ("attention.rope.scaling", |m| attention(m, |a| each(&mut a.rope, flip_scaling))),
    ("attention.v_norm", |m| attention(m, |a| a.v_norm = None)),
    ("attention.v_norm.eps", |m| attention(m, |a| each(&mut a.v_norm, raise_eps))),
    ("attention.kv", |m| attention(m, |a| a.kv = KvSource::Own)),
    ("attention.rope.part", |m| {
        attention(m, |a| {
            each(&mut a.rope, |r| {
                if let RopeScaling::Proportional { part } = &mut r.scaling {
                    *part *= 2.0
                }
            })
        })
    }),
    ("attention.position_scale", |m| attention(m, |a| a.position_scale = None)),
    ("attention.position_scale.beta", |m| {
        attention(m, |a| each(&mut a.position_scale, |g| g.beta *= 1.1))
    }),
    ("attention.position_scale.every", |m| {
        attention(m, |a| each(&mut a.position_scale, |g| g.every += 1))
    }),
    ("attention.position_scale.offset", |m| {
        attention(m, |a| each(&mut a.position_scale, |g| g.offset += 1))
    }),
    ("attention.qk_norm", |m| attention(m, |a| a.qk_norm = QkNorm::None)),
    ("attention.qk_norm.eps", |m| {
        attention(m, |a| {
            if let QkNorm::Head(n) | QkNorm::Whole(n) | QkNorm::Unit(n) = &mut a.qk_norm {
                n.eps *= 2.0
            }
        })
    }),
    ("attention.mask", |m| {
        attention(m, |a| {
            a.mask = match a.mask {
                Mask::Causal => Mask::Window(16),
                Mask::Window(n) => Mask::Window(n + 1),
                Mask::Chunk(n) => Mask::Chunk(n.min(64) - 1),
                Mask::None | Mask::Block => a.mask,
                Mask::Around(n) => Mask::Around(n + 1),
            }
        })
    }),
    ("attention.mask.full", |m| {
        attention(m, |a| match a.mask {
            Mask::Window(_) => a.mask = Mask::Causal,
            // (longer ones than any prompt cannot be told from none)
            Mask::Chunk(n) if n < 64 => a.mask = Mask::Window(n),
            Mask::Around(_) => a.mask = Mask::None,
            _ => {}
        })
    }),
    ("attention.softcap", |m| attention(m, |a| each(&mut a.softcap, |c| *c *= 1.1))),
    ("attention.sinks", |m| attention(m, |a| a.sinks = false)),
    ("attention.gated", |m| attention(m, |a| a.gated = false)),
    ("attention.multipliers.input", |m| attention(m, |a| a.multipliers.input *= 1.1)),
    ("attention.multipliers.key", |m| attention(m, |a| a.multipliers.key *= 1.1)),
    ("attention.multipliers.output", |m| attention(m, |a| a.multipliers.output *= 1.1)),
    ("latent.scale", |m| latent(m, |l| l.scale *= 1.1)),
    ("latent.norm.eps", |m| latent(m, |l| l.norm.eps = 0.01)),
    ("latent.rope.theta", |m| latent(m, |l| l.rope.theta *= 2.0)),
    ("latent.rope.pairing", |m| latent(m, |l| flip_pairing(&mut l.rope))),
    ("latent.rope.scaling", |m| latent(m, |l| flip_scaling(&mut l.rope))),
    ("delta.norm.eps", |m| delta(m, |d| d.norm.eps *= 2.0)),
    ("delta.kernel", |m| delta(m, |d| d.kernel -= 1)),
    ("delta.key_head", |m| delta(m, |d| d.key_head = KeyHead::Tiled)),
    ("mamba.dt_limit", |m| mamba(m, |x| x.dt_limit = (0.2, 0.4))),
    ("mamba.norm", |m| mamba(m, |x| x.norm = None)),
    ("mamba.norm.eps", |m| mamba(m, |x| each(&mut x.norm, |n| n.0.eps *= 2.0))),
    ("mamba.norm.order", |m| mamba(m, |x| each(&mut x.norm, |n| n.1 = GateOrder::AfterNorm))),
    ("mamba.in_scale", |m| mamba(m, |x| x.in_scale *= 1.1)),
    ("mamba.out_scale", |m| mamba(m, |x| x.out_scale *= 1.1)),
    ("mamba.part_scales.z", |m| mamba(m, |x| x.part_scales[0] *= 1.1)),
    ("mamba.part_scales.x", |m| mamba(m, |x| x.part_scales[1] *= 1.1)),
    ("mamba.part_scales.b", |m| mamba(m, |x| x.part_scales[2] *= 1.1)),
    ("mamba.part_scales.c", |m| mamba(m, |x| x.part_scales[3] *= 1.1)),
    ("mamba.part_scales.dt", |m| mamba(m, |x| x.part_scales[4] *= 1.1)),
    ("short_conv.kernel", |m| {
        mixers(m, |x| {
            if let Mixer::ShortConv(c) = x {
                c.kernel -= 1
            }
        })
    }),
    ("ffn.act", |m| m.ffn_mut().for_each(|(_, f)| flip_act(f))),
    ("ffn.gate_scale", |m| gated(m, |gate, _| *gate *= 1.1)),
    ("ffn.out_scale", |m| gated(m, |_, out| *out *= 1.1)),
    ("ffn.cutoff", |m| {
        m.ffn_mut().for_each(|(_, f)| {
            if let Ffn::Gated { cutoff: Some(cutoff), .. } = f {
                *cutoff *= 1.1
            }
        })
    }),
    ("ffn.beside.norm.eps", |m| {
        m.ffn_mut().for_each(|(_, f)| {
            if let Ffn::Beside { norm, .. } = f {
                norm.eps *= 2.0
            }
        })
    }),
    ("streams", |m| m.streams = None),
    ("streams.count", |m| each(&mut m.streams, |s| s.count -= 1)),
    ("streams.norm.eps", |m| each(&mut m.streams, |s| s.norm.eps *= 2.0)),
    ("streams.rank", |m| each(&mut m.streams, |s| s.rank -= 1)),
    ("streams.scaled", |m| each(&mut m.streams, |s| s.scaled = false)),
    ("experts.top", |m| experts(m, |e| e.top -= 1)),
    ("experts.score", |m| {
        experts(m, |e| {
            e.score = match e.score {
                RouteScore::Sigmoid => RouteScore::Softmax,
                _ => RouteScore::Sigmoid,
            }
        })
    }),
    ("experts.groups", |m| experts(m, |e| e.groups = None)),
    ("experts.groups.keep", |m| experts(m, |e| each(&mut e.groups, |g| g.keep -= 1))),
    ("experts.normalise", |m| {
        experts(m, |e| {
            // The softmax of the chosen sums to 1 already.
            if e.score != RouteScore::SoftmaxOfTop {
                e.normalise = !e.normalise
            }
        })
    }),
    ("experts.scale", |m| experts(m, |e| e.scale *= 1.1)),
    ("experts.weigh", |m| experts(m, |e| e.weigh = Weigh::Output)),
    ("experts.fused", |m| {
        experts(m, |e| {
            // Only where one tensor holds both.
            e.fused = match e.fused {
                GateUp::Alternate => GateUp::Alternate,
                GateUp::Halves => GateUp::Alternate,
                GateUp::Turned => GateUp::Halves,
                GateUp::TurnedAlternate => GateUp::Turned,
            }
        })
    }),
    ("experts.shared", |m| experts(m, |e| e.shared = None)),
    ("experts.shared.gated", |m| experts(m, |e| each(&mut e.shared, |s| s.gated = false))),
];

fn each<T>(option: &mut Option<T>, change: impl FnOnce(&mut T)) {
    if let Some(value) = option {
        change(value);
    }
}

fn branches(m: &mut ModelSpec, change: impl FnMut(&mut Branch)) {
    m.branches_mut().for_each(change);
}

fn attention(m: &mut ModelSpec, mut change: impl FnMut(&mut Attention)) {
    m.attention_mut().for_each(|(_, a)| change(a));
}

fn mixers(m: &mut ModelSpec, mut change: impl FnMut(&mut Mixer)) {
    for branch in m.branches_mut() {
        if let Body::Mix(list) = &mut branch.body {
            list.iter_mut().for_each(&mut change);
        }
    }
}

fn latent(m: &mut ModelSpec, mut change: impl FnMut(&mut Latent)) {
    mixers(m, |x| {
        if let Mixer::Latent(l) = x {
            change(l);
        }
    });
}

fn scalings(m: &mut ModelSpec, mut change: impl FnMut(&mut RopeScaling)) {
    attention(m, |a| each(&mut a.rope, |r| change(&mut r.scaling)));
    latent(m, |l| change(&mut l.rope.scaling));
}

fn delta(m: &mut ModelSpec, mut change: impl FnMut(&mut DeltaNet)) {
    mixers(m, |x| {
        if let Mixer::DeltaNet(d) = x {
            change(d);
        }
    });
}

fn mamba(m: &mut ModelSpec, mut change: impl FnMut(&mut Mamba)) {
    mixers(m, |x| {
        if let Mixer::Mamba(d) = x {
            change(d);
        }
    });
}

fn experts(m: &mut ModelSpec, mut change: impl FnMut(&mut Experts)) {
    m.ffn_mut().for_each(|(_, f)| {
        if let Ffn::Experts(e) | Ffn::Beside { experts: e, .. } = f {
            change(e);
        }
    });
}

fn gated(m: &mut ModelSpec, mut change: impl FnMut(&mut f32, &mut f32)) {
    m.ffn_mut().for_each(|(_, f)| {
        if let Ffn::Gated { gate_scale, out_scale, .. } = f {
            change(gate_scale, out_scale);
        }
    });
}

fn flip_kind(n: &mut Norm) {
    n.kind = match n.kind {
        NormKind::Rms => NormKind::Layer,
        NormKind::Layer => NormKind::Rms,
    };
}

fn flip_pairing(r: &mut RopeSpec) {
    r.pairing = match r.pairing {
        RopePairing::Half => RopePairing::Interleaved,
        RopePairing::Interleaved => RopePairing::Half,
    };
}

fn flip_scaling(r: &mut RopeSpec) {
    r.scaling = match r.scaling {
        RopeScaling::None => RopeScaling::Linear { factor: 2.0 },
        _ => RopeScaling::None,
    };
}

fn flip_act(f: &mut Ffn) {
    let other = |a: Act| if a == Act::Silu { Act::GeluTanh } else { Act::Silu };
    match f {
        Ffn::Gated { act: GateAct::Plain(a), .. } | Ffn::Plain { act: a, .. } => *a = other(*a),
        Ffn::Gated { act: GateAct::Clamped { alpha, .. }, .. } => *alpha *= 1.1,
        Ffn::Beside { act: a, .. } => *a = other(*a),
        Ffn::Swish { beta, .. } => *beta = 1.0,
        Ffn::Experts(e) => match &mut e.act {
            GateAct::Plain(a) => *a = other(*a),
            GateAct::Clamped { alpha, .. } => *alpha *= 1.1,
        },
    }
}

/// What a changed spec makes of the recorded prompt.
enum Made {
    /// Lowering refuses it, or leaves tensors unused.
    Refused,
    /// The device does not take the program.
    Device(DeviceError),
    /// The largest difference from the recording; infinite where there are other numbers of rows.
    Differs(f32),
}

fn make(golden: &Golden, model: &OpenModel, spec: &ModelSpec, expected: &str) -> Made {
    let Ok(lowered) = lower(spec, &model.checkpoint, KvFormat::F32) else { return Made::Refused };
    if !lowered.unused.is_empty() {
        return Made::Refused;
    }
    let expected = golden.floats(expected);
    let len = golden.ids.len();
    let rows = match spec.output {
        Output::Pooled { .. } | Output::Projected { .. } | Output::Score { .. } => 1,
        _ => len,
    };
    let device = ReferenceDevice::new(16);
    let run = Runner::new(&device, Mode::F32, &lowered.program, model, len as u32 + 1);
    match run.and_then(|mut run| run.feed(&golden.ids, rows)) {
        Ok(found) if found.len() == expected.len() => {
            Made::Differs(worst_difference(&found, &expected).0)
        }
        Ok(_) => Made::Differs(f32::INFINITY),
        Err(error) => Made::Device(error),
    }
}

/// Why a change went unnoticed, if it did.
fn unnoticed(
    golden: &Golden,
    model: &OpenModel,
    spec: &ModelSpec,
    was: &ModelSpec,
) -> Option<String> {
    let files = match golden.greedy.is_empty() {
        false => vec![(spec.output, "logits.f32")],
        true if spec.output == was.output => {
            vec![(spec.output, "embedding.f32"), (Output::Hidden, "hidden.f32")]
        }
        true => vec![(spec.output, "embedding.f32")],
    };
    let mut worst = 0f32;
    for (output, file) in files {
        let spec = ModelSpec { output, ..spec.clone() };
        match make(golden, model, &spec, file) {
            Made::Refused => return None,
            Made::Device(error) => return Some(format!("is a device error: {error}")),
            Made::Differs(found) => worst = worst.max(found),
        }
    }
    (worst <= NOTICED).then(|| format!("changes outputs by {worst:.1e} only"))
}

#[test]
fn every_perturbed_field_is_noticed() {
    let only = std::env::var("GOLDEN").ok();
    let mut missed = Vec::new();
    let mut noticed = vec![false; CHANGES.len()];
    for arch in Golden::all() {
        if only.as_ref().is_some_and(|o| *o != arch) {
            continue;
        }
        let golden = Golden::read(&arch);
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let model = golden.open(Variant::Config, scratch.path());
        let spec = spec_of(&model.checkpoint).expect("spec");
        for (i, (name, change)) in CHANGES.iter().enumerate() {
            let mut changed = spec.clone();
            change(&mut changed);
            if changed == spec {
                continue;
            }
            let both = |t: &TensorInfo| {
                t.name.contains("experts.gate_up") || t.name.contains("sparse_moe.input")
            };
            let is_full = spec.context as usize == golden.ids.len();
            if *name == "embed.positions.first" && is_full {
                continue; // the last token would have no position
            }
            if *name == "experts.fused" && !model.checkpoint.tensors.iter().any(both) {
                continue; // gates and ups are tensors of their own
            }
            match unnoticed(&golden, &model, &changed, &spec) {
                None => noticed[i] = true,
                Some(why) if FINE.contains(name) => println!("{arch}: {name} {why}"),
                Some(why) => missed.push(format!("{arch}: {name} {why}")),
            }
        }
    }
    assert!(missed.is_empty(), "\n{}", missed.join("\n"));
    if only.is_none() {
        let never: Vec<&str> =
            CHANGES.iter().zip(&noticed).filter(|(_, n)| !**n).map(|(c, _)| c.0).collect();
        assert!(never.is_empty(), "perturbations that no architecture notices: {never:?}");
    }
}

#[test]
fn every_field_of_a_spec_has_a_row() {
    let fields = fields::all();
    let mut listed: Vec<&str> = fields.iter().flat_map(|f| f.1).copied().collect();
    for (field, rows) in fields {
        assert!(!rows.is_empty(), "{field}: no row and no reason");
        for row in rows.iter().filter(|r| !r.starts_with("! ")) {
            assert!(CHANGES.iter().any(|c| c.0 == *row), "{field}: no row {row}");
        }
    }
    listed.sort_unstable();
    let known = |c: &&(&str, Change)| listed.binary_search(&c.0).is_err();
    let rows: Vec<&str> = CHANGES.iter().filter(known).map(|c| c.0).collect();
    assert!(rows.is_empty(), "rows of no field: {rows:?}");
}
