//! Rotation, storing, attention over caches and fresh keys, latent attention.

use tokenmill_ir::{
    AttendSource, Batch, CacheKind, Expr, HeadNorm, KvFormat, Mask, NormKind, Op, PositionScale,
    Rope, RopeId, RopePairing, Store, op,
};

use crate::conformance::lab::Lab;
use crate::conformance::{Case, Tolerance, pager};

/// One shape of attention.
struct Shape {
    name: &'static str,
    heads: u32,
    kv_heads: u32,
    dim: u32,
    v_dim: u32,
    mask: Mask,
    blocks: bool,
    softcap: Option<f32>,
    sinks: bool,
    norm: Option<NormKind>,
    /// Rotated columns; 0: none.
    rotated: u32,
    pairing: RopePairing,
    position_scale: Option<PositionScale>,
}

const PLAIN: Shape = Shape {
    name: "plain",
    heads: 4,
    kv_heads: 4,
    dim: 24,
    v_dim: 24,
    mask: Mask::Causal,
    blocks: false,
    softcap: None,
    sinks: false,
    norm: None,
    rotated: 24,
    pairing: RopePairing::Half,
    position_scale: None,
};

const SHAPES: [Shape; 14] = [
    PLAIN,
    Shape { name: "9 heads on 3", heads: 9, kv_heads: 3, dim: 64, v_dim: 64, rotated: 64, ..PLAIN },
    Shape {
        name: "14 heads on 2, interleaved",
        heads: 14,
        kv_heads: 2,
        dim: 64,
        v_dim: 64,
        rotated: 64,
        pairing: RopePairing::Interleaved,
        ..PLAIN
    },
    Shape { name: "window of 20", mask: Mask::Window(20), heads: 6, kv_heads: 2, ..PLAIN },
    Shape { name: "window of 1", mask: Mask::Window(1), ..PLAIN },
    Shape { name: "chunks of 20", mask: Mask::Chunk(20), heads: 6, kv_heads: 2, ..PLAIN },
    Shape { name: "9 heads on 3 and blocks", heads: 9, kv_heads: 3, blocks: true, ..PLAIN },
    Shape { name: "window of 20 and blocks", mask: Mask::Window(20), blocks: true, ..PLAIN },
    Shape { name: "chunks of 20 and blocks", mask: Mask::Chunk(20), blocks: true, ..PLAIN },
    Shape {
        name: "queries that grow, no rotation",
        position_scale: Some(PositionScale { beta: 0.5, every: 9, offset: 1 }),
        rotated: 0,
        ..PLAIN
    },
    Shape {
        name: "softcap, 8 heads on 1",
        heads: 8,
        kv_heads: 1,
        dim: 128,
        v_dim: 128,
        softcap: Some(3.0),
        rotated: 96,
        ..PLAIN
    },
    Shape { name: "sinks", sinks: true, dim: 80, v_dim: 80, rotated: 80, ..PLAIN },
    Shape { name: "narrow values", heads: 4, kv_heads: 2, v_dim: 20, ..PLAIN },
    Shape {
        name: "head norms, no rotation",
        norm: Some(NormKind::Rms),
        rotated: 0,
        heads: 6,
        kv_heads: 3,
        ..PLAIN
    },
];

/// Heads of 64 and 256 columns, which some devices have kernels of their own for.
const WIDE: [Shape; 4] = [
    Shape {
        name: "window of 20, heads of 64",
        mask: Mask::Window(20),
        heads: 8,
        kv_heads: 4,
        dim: 64,
        v_dim: 64,
        ..PLAIN
    },
    Shape { name: "chunks of 20, heads of 64", mask: Mask::Chunk(20), dim: 64, v_dim: 64, ..PLAIN },
    Shape {
        name: "sinks, 20 heads of 64 on 1",
        sinks: true,
        heads: 20,
        kv_heads: 1,
        dim: 64,
        v_dim: 64,
        ..PLAIN
    },
    Shape {
        name: "softcap, 6 heads of 256 on 2",
        softcap: Some(3.0),
        heads: 6,
        kv_heads: 2,
        dim: 256,
        v_dim: 256,
        ..PLAIN
    },
];

pub(super) fn cases(block: u32) -> Vec<Case> {
    let mut all = Vec::new();
    for shape in &SHAPES {
        for format in KvFormat::ALL {
            all.push(cached(shape, format, block));
        }
    }
    all.push(cached(&Shape { name: "every key", mask: Mask::None, ..PLAIN }, KvFormat::F32, block));
    all.extend([rotated_only(false, block), rotated_only(true, block)]);
    let masks = [Mask::None, Mask::Causal, Mask::Window(9), Mask::Around(5), Mask::Block];
    all.extend(masks.map(|mask| fresh(mask, false, block)));
    all.push(fresh(Mask::Window(3), true, block));
    let of_latents = KvFormat::ALL.into_iter().filter(|format| format.of_latents() == *format);
    all.extend(of_latents.map(|format| latent(format, block)));
    all
}

/// Heads of 64 and 256 columns over caches of 16 and 8 bits: beside the suite, for a device that promises something of them.
pub fn wide_heads(block: u32) -> Vec<Case> {
    let formats = [KvFormat::Bf16, KvFormat::Int8];
    WIDE.iter().flat_map(|shape| formats.map(|format| cached(shape, format, block))).collect()
}

/// How far results may be that went through a cache. A device may transform keys before it rounds them
/// to bytes (which scores do not see), so that its roundings are its own.
fn cached_tolerance(format: KvFormat) -> Tolerance {
    match format {
        KvFormat::F32 => Tolerance::F32,
        KvFormat::Bf16 | KvFormat::Int16 => Tolerance::CACHED,
        KvFormat::Int8 | KvFormat::Int4 | KvFormat::K8V4 => Tolerance::ENCODED,
    }
}

/// Adds a rotation of `dims` columns, with divisors for odd halves.
fn rope(lab: &mut Lab, dims: u32, pairing: RopePairing) -> RopeId {
    let half = dims / 2;
    let inv_freq: Vec<f32> = (0..half).map(|i| 500f32.powf(-(i as f32) / half as f32)).collect();
    let factors = half.is_multiple_of(16).then(|| lab.vector(half, 2.0, 0.3));
    let axes = Vec::new();
    lab.program.ropes.push(Rope { pairing, inv_freq, factors, magnitude: 1.1, axes });
    RopeId(lab.program.ropes.len() as u32 - 1)
}

fn cached(shape: &Shape, format: KvFormat, block: u32) -> Case {
    let mut lab = Lab::new(20 + u64::from(shape.heads));
    let &Shape { heads, kv_heads, dim, v_dim, mask, softcap, .. } = shape;
    let inputs = lab.inputs(&[heads * dim, kv_heads * dim, kv_heads * v_dim]);
    let kind = match mask {
        Mask::Window(tokens) | Mask::Chunk(tokens) => {
            CacheKind::Window { tokens, kv_heads, k_dim: dim, v_dim }
        }
        _ => CacheKind::Full { kv_heads, k_dim: dim, v_dim },
    };
    let cache = lab.cache(kind, format);
    let rope = (shape.rotated > 0).then(|| rope(&mut lab, shape.rotated, shape.pairing));
    let norm = |lab: &mut Lab, all: u32| {
        shape.norm.map(|kind| HeadNorm {
            kind,
            weight: lab.vector(all, 0.5, 0.3),
            offset: 1.0,
            eps: 1e-3,
        })
    };
    // Queries share one weight a column, keys have one a head.
    let (q_norm, k_norm) = (norm(&mut lab, dim), norm(&mut lab, kv_heads * dim));
    let (k, v) = (inputs[1], inputs[2]);
    let (rotated, out) = (lab.out(heads * dim), lab.out(heads * v_dim));
    lab.push(Op::RotateStore(op::RotateStore {
        q: inputs[0],
        heads,
        head_dim: dim,
        q_norm,
        rope,
        position_scale: shape.position_scale,
        store: Some(Store { k, v, kv_heads, k_norm, cache }),
        out: rotated.buffer,
    }));
    let sinks = shape.sinks.then(|| lab.vector(heads, 1.0, 1.0));
    lab.push(Op::Attend(op::Attend {
        q: rotated,
        heads,
        source: AttendSource::Cache(cache),
        kv_heads,
        v_dim,
        scale: 2.0 / (dim as f32).sqrt(),
        mask,
        blocks: shape.blocks,
        softcap,
        sinks,
        out: out.buffer,
    }));
    let name = format!("attention {} over {format:?}", shape.name);
    let tolerance = cached_tolerance(format);
    if mask == Mask::None {
        return lab.finish_with(name, out, tolerance, block, pager::whole);
    }
    if shape.blocks {
        return lab.finish_with(name, out, tolerance, block, |program, limits, block| {
            with_blocks(pager::steps(program, limits, block))
        });
    }
    lab.finish(name, out, tolerance, block)
}

/// Blocks of many lengths in every span, some tokens between them in none.
fn with_blocks(mut steps: Vec<Batch>) -> Vec<Batch> {
    for batch in &mut steps {
        batch.blocks = vec![[0; 2]; batch.tokens.len()];
        for span in &batch.spans {
            let mut at = span.first % 3;
            for len in [5, 1, 17, 2, 11].into_iter().cycle().skip(span.first as usize % 5) {
                let len = len.min(span.len.saturating_sub(at));
                let rows = &mut batch.blocks[(span.first + at.min(span.len)) as usize..];
                rows[..len as usize].fill([span.context + at, span.context + at + len]);
                at += len + at % 2;
                if at >= span.len {
                    break;
                }
            }
        }
    }
    steps
}

fn rotated_only(several: bool, block: u32) -> Case {
    let mut lab = Lab::new(30);
    let q = lab.inputs(&[4, 5 * 48])[1];
    let rope = Some(rope(&mut lab, 32, RopePairing::Interleaved));
    if several {
        lab.program.ropes[0].axes = (0..16).map(|i| [0, 1, 2, 1][i % 4]).collect();
    }
    let weight = lab.vector(5 * 48, 1.0, 0.2);
    let q_norm = Some(HeadNorm { kind: NormKind::Layer, weight, offset: 0.0, eps: 1e-5 });
    let out = lab.out(5 * 48);
    let (heads, head_dim) = (5, 48);
    let id = out.buffer;
    let position_scale = Some(PositionScale { beta: 0.1, every: 5, offset: 0 });
    lab.push(Op::RotateStore(op::RotateStore {
        q,
        heads,
        head_dim,
        q_norm,
        rope,
        position_scale,
        store: None,
        out: id,
    }));
    if !several {
        return lab.finish("rotation of queries alone".into(), out, Tolerance::F32, block);
    }
    let name = "rotation by positions on three axes".into();
    lab.finish_with(name, out, Tolerance::F32, block, |program, limits, block| {
        let mut steps = pager::steps(program, limits, block);
        // The first step has one position a token.
        for batch in &mut steps[1..] {
            batch.grid = batch.positions.iter().map(|p| [p * 3 % 50, p / 2 + 7]).collect();
        }
        steps
    })
}

fn fresh(mask: Mask, blocks: bool, block: u32) -> Case {
    let mut lab = Lab::new(31);
    let (heads, kv_heads, dim, v_dim) = (6, 3, 40, 24);
    let inputs = lab.inputs(&[heads * dim, kv_heads * dim, kv_heads * v_dim]);
    let out = lab.out(heads * v_dim);
    lab.program.whole_sequences = true;
    lab.push(Op::Attend(op::Attend {
        q: inputs[0],
        heads,
        source: AttendSource::Fresh { k: inputs[1], v: inputs[2] },
        kv_heads,
        v_dim,
        scale: 0.3,
        mask,
        blocks,
        softcap: None,
        sinks: None,
        out: out.buffer,
    }));
    let name =
        format!("attention over fresh keys, {mask:?}{}", if blocks { " and blocks" } else { "" });
    lab.finish_with(name, out, Tolerance::F32, block, |program, limits, block| {
        let steps = pager::whole(program, limits, block);
        if blocks || mask == Mask::Block { with_blocks(steps) } else { steps }
    })
}

fn latent(format: KvFormat, block: u32) -> Case {
    let mut lab = Lab::new(32);
    let (heads, latent, dims) = (5, 48, 16);
    let inputs = lab.inputs(&[heads * latent, heads * dims, latent, dims]);
    let rope = rope(&mut lab, dims, RopePairing::Interleaved);
    let cache = lab.cache(CacheKind::Latent { latent, rope: dims }, format);
    let norm = lab.vector(latent, 1.0, 0.3);
    let (latents, key) = (inputs[2], inputs[3]);
    lab.push(Op::StoreLatent(op::StoreLatent {
        latent: latents,
        norm,
        eps: 1e-6,
        key,
        rope,
        cache,
    }));
    let out = lab.out(heads * latent);
    lab.push(Op::AttendLatent(op::AttendLatent {
        q_latent: inputs[0],
        q_rope: inputs[1],
        heads,
        cache,
        scale: 0.25,
        out: out.buffer,
    }));
    let doubled = lab.out(heads * latent);
    let id = doubled.buffer;
    lab.push(Op::Map { expr: Expr::add(0, 0), args: vec![out], out: id });
    let tolerance = cached_tolerance(format);
    lab.finish(format!("latent attention over {format:?}"), doubled, tolerance, block)
}
