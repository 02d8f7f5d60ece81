//! Attention against plain f64 sums, and its bits across instruction sets, chunks and blocks.

use std::sync::Arc;

use tokenmill_ir::{BlockId, KvFormat, MAX_GROUPS, Mask, RopePairing, Span};
use tokenmill_quant::float::rounded_factor;

use super::mix::{MIX_MAX, mixed};
use super::rope::Rotation;
use super::*;
use crate::memory::Parts;

/// A sequence of random queries, keys and values, and how it is attended.
#[derive(Clone)]
struct Case {
    format: KvFormat,
    heads: usize,
    kv_heads: usize,
    k_dim: usize,
    v_dim: usize,
    tokens: usize,
    mask: Mask,
    /// Tokens that see each other.
    blocks: &'static [[u32; 2]],
    softcap: Option<f32>,
    sinks: bool,
    /// Multiplies queries: how peaked the softmax is.
    sharp: f32,
    /// Bias of keys: how large, and how its first columns rotate.
    bias: Option<(f32, Option<RopePairing>)>,
    /// Whether keys are latents and what is beside them, the same for all heads, and values the latents.
    latent: bool,
}

const CASE: Case = Case {
    format: KvFormat::F32,
    heads: 3,
    kv_heads: 1,
    k_dim: 64,
    v_dim: 64,
    tokens: 150,
    mask: Mask::Causal,
    blocks: &[],
    softcap: None,
    sinks: false,
    sharp: 1.0,
    bias: None,
    latent: false,
};

/// Everything that a case computes from.
struct Data {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    sinks: Vec<f32>,
    steady: Option<Steady>,
}

/// How a case is run; results must not depend on it.
#[derive(Clone, Copy)]
struct Way {
    isa: Isa,
    /// Tokens a step.
    chunk: usize,
    /// Multiplies block numbers modulo the number of blocks.
    spread: usize,
    /// What unwritten slots hold.
    stale: u8,
    /// Whether buffers of the step are attended instead of the cache.
    fresh: bool,
    /// Whether splits are computed apart, last to first.
    apart: bool,
}

const WAY: Way =
    Way { isa: Isa::Scalar, chunk: usize::MAX, spread: 1, stale: 0, fresh: false, apart: false };

/// Numbers like a normal distribution's.
fn random(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 16_777_216.0 - 0.5
    };
    (0..count).map(|_| (0..6).map(|_| next()).sum::<f32>() * 1.4).collect()
}

fn data(case: &Case) -> Data {
    let n = case.tokens;
    let mut q = random(n * case.heads * case.k_dim, 1);
    q.iter_mut().for_each(|q| *q *= case.sharp);
    let mut k = random(n * case.kv_heads * case.k_dim, 2);
    let steady = case.bias.map(|(size, pairing)| {
        let mut bias = random(case.kv_heads * case.k_dim, 9);
        let rotation = pairing.map(|pairing| rotation(case, pairing));
        let pairs = rotation.as_ref().map_or(0, |rotation| rotation.freq.len());
        for (i, b) in bias.iter_mut().enumerate() {
            // As in models, slow pairs have the largest.
            let slow = match (i % case.k_dim, pairing) {
                (column, _) if column >= 2 * pairs => 1.0,
                (column, Some(RopePairing::Half)) => (column % pairs) as f32 / pairs as f32,
                (column, _) => (column / 2) as f32 / pairs as f32,
            };
            *b *= size * slow.powi(4);
        }
        add_turned(&bias, rotation.as_ref(), case.k_dim, &mut k);
        let of_queries = random(case.heads * case.k_dim, 10);
        let middles = rotation.map(|rotation| Arc::new(Middles::new(&rotation, n)));
        Steady::new(bias, &of_queries, case.k_dim, middles)
    });
    let (mut v, sinks) = (random(n * case.kv_heads * case.v_dim, 3), random(case.heads, 4));
    if case.latent {
        let mut rows = random(n * case.k_dim, 2);
        let beside = |i: &usize| i % case.k_dim >= case.v_dim;
        (0..rows.len()).filter(beside).for_each(|i| rows[i] *= 3.0);
        let again = |row: &[f32]| vec![row; case.kv_heads].concat();
        k = rows.chunks_exact(case.k_dim).flat_map(again).collect();
        v = k.chunks_exact(case.k_dim).flat_map(|row| row[..case.v_dim].to_vec()).collect();
    }
    Data { q, k, v, sinks, steady }
}

/// Some columns of the rows of queries of the heads of tokens.
fn columns(case: &Case, q: &[f32], cols: Range<usize>) -> Vec<f32> {
    q.chunks_exact(case.k_dim).flat_map(|q| q[cols.clone()].to_vec()).collect()
}

/// A rotation of three quarters of a head.
fn rotation(case: &Case, pairing: RopePairing) -> Rotation {
    let pairs = case.k_dim * 3 / 8;
    let freq = (0..pairs).map(|i| 10_000_f32.powf(-(i as f32) / pairs as f32)).collect();
    Rotation { pairing, freq, magnitude: 1.25, axes: Vec::new() }
}

/// Adds a bias, rotated to their positions, to rows of keys.
fn add_turned(bias: &[f32], rotation: Option<&Rotation>, dim: usize, k: &mut [f32]) {
    for (position, k) in k.chunks_exact_mut(bias.len()).enumerate() {
        let mut rotated = bias.to_vec();
        if let Some(rotation) = rotation {
            let mut table = vec![0.0; rotation.table_len()];
            rotation.table(Isa::Scalar, [position as u32; 3], &mut table);
            rotation.apply(Isa::Scalar, &table, dim, &mut rotated);
        }
        k.iter_mut().zip(rotated).for_each(|(k, b)| *k += b);
    }
}

fn layout(case: &Case) -> KvLayout {
    let Case { format, kv_heads, k_dim, v_dim, .. } = *case;
    KvLayout { format, kv_heads, k_dim, v_dim }
}

fn latents(case: &Case) -> LatentLayout {
    let Case { format, k_dim, v_dim, .. } = *case;
    LatentLayout { format, latent: v_dim, rope: k_dim.saturating_sub(v_dim) }
}

/// Stores and attends chunk after chunk. [tokens, heads × v_dim]
fn run(case: &Case, data: &Data, way: Way) -> Vec<f32> {
    let (layout, latents) = (layout(case), latents(case));
    let q_rope = columns(case, &data.q, case.k_dim - latents.rope..case.k_dim);
    let blocks = 67; // a prime, so that every spread is a permutation
    assert!(case.tokens <= blocks * BLOCK_TOKENS);
    let tables: Vec<BlockId> =
        (0..blocks).map(|b| BlockId((b * way.spread % blocks) as u32)).collect();
    let of_block = if case.latent { latents.block_bytes() } else { layout.block_bytes() };
    let mut bytes = vec![way.stale; blocks * of_block];
    let mut out = vec![f32::NAN; case.tokens * case.heads * case.v_dim];
    let mut scratch = Scratch::new(case.heads, case.kv_heads, case.k_dim, case.v_dim);
    let chunk = way.chunk.min(case.tokens);
    let mut first = 0;
    while first < case.tokens {
        // No step ends inside a block.
        let end = (first + chunk).min(case.tokens);
        let around = case.blocks.iter().find(|b| (b[0] as usize) < end && end < b[1] as usize);
        let len = around.map_or(end, |b| b[1] as usize) - first;
        let cache = Parts::new(&mut bytes);
        for token in first..first + len {
            let k = &data.k[token * case.kv_heads * case.k_dim..][..case.kv_heads * case.k_dim];
            let v = &data.v[token * case.kv_heads * case.v_dim..][..case.kv_heads * case.v_dim];
            let block = tables[token / BLOCK_TOKENS].0 as usize;
            let (mut k, mut room) = (k.to_vec(), vec![f32::NAN; case.k_dim]);
            if let Some(steady) = &data.steady {
                steady.leave(way.isa, token, 0, &mut k, &mut room);
            }
            let slot = token % BLOCK_TOKENS;
            // SAFETY: one thread.
            unsafe {
                if case.latent {
                    let (latent, key) = k[..case.k_dim].split_at(case.v_dim);
                    latents.store(way.isa, cache, (block, slot), latent, key);
                } else {
                    layout.store(way.isa, cache, block, slot, &k, v);
                }
            }
        }
        let mut tables = tables.clone();
        if let Mask::Window(n) | Mask::Chunk(n) = case.mask {
            // Blocks behind the window of the first token are given back.
            let behind = (first + 1).saturating_sub(n as usize) / BLOCK_TOKENS;
            tables[..behind].fill(BlockId::NONE);
        }
        let keys = if way.fresh {
            Keys::Fresh {
                k: Rows { data: &data.k, stride: case.kv_heads * case.k_dim },
                v: Rows { data: &data.v, stride: case.kv_heads * case.v_dim },
            }
        } else if case.latent {
            let stride = case.heads * latents.rope;
            let q_rope = Rows { data: &q_rope[first * stride..], stride };
            Keys::Latents { layout: latents, bytes: &bytes, tables: &tables, q_rope }
        } else {
            Keys::Cache { layout, bytes: &bytes, tables: &tables }
        };
        step(case, data, way, keys, (first, len), &mut out, &mut scratch);
        first += len;
    }
    out
}

/// The block of a token.
fn block(case: &Case, token: usize) -> [u32; 2] {
    let found = case.blocks.iter().find(|b| (b[0]..b[1]).contains(&(token as u32)));
    found.copied().unwrap_or_default()
}

/// Attends the tokens of one step.
fn step(
    case: &Case,
    data: &Data,
    way: Way,
    keys: Keys<'_>,
    (first, len): (usize, usize),
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let mut blocks: Vec<[u32; 2]> = (first..first + len).map(|token| block(case, token)).collect();
    if case.blocks.is_empty() {
        blocks.clear();
    }
    let q_cols = if case.latent { case.v_dim } else { case.k_dim };
    let q = columns(case, &data.q, 0..q_cols);
    let job = AttendJob {
        heads: case.heads,
        kv_heads: case.kv_heads,
        k_dim: case.k_dim,
        v_dim: case.v_dim,
        scale: 1.0 / (case.k_dim as f32).sqrt(),
        mask: case.mask,
        blocks: &blocks,
        softcap: case.softcap,
        sinks: case.sinks.then_some(&data.sinks[..]),
        q: Rows { data: &q[first * case.heads * q_cols..], stride: case.heads * q_cols },
        keys,
        steady: data.steady.as_ref(),
        out: Parts::new(&mut out[first * case.heads * case.v_dim..]),
        out_stride: case.heads * case.v_dim,
    };
    let span = Span { first: 0, len: len as u32, context: first as u32, tables: [0; MAX_GROUPS] };
    let source = if way.fresh { ItemSource::Fresh } else { ItemSource::Cache { group: 0 } };
    let mut items = Vec::new();
    plan_items(&[span], source, case.heads, case.kv_heads, &mut items);
    for (i, item) in items.iter().enumerate().rev() {
        if !way.apart {
            let then = i.checked_sub(1).map(|i| &items[i]);
            // SAFETY: one thread.
            unsafe { attend(way.isa, &job, item, then, scratch) };
            continue;
        }
        let (splits, len) = (job.splits(item), job.part_len(item));
        let mut parts = vec![f32::NAN; splits.len() * len];
        for (split, part) in splits.zip(parts.chunks_exact_mut(len)).rev() {
            attend_split(way.isa, &job, item, split, part, scratch);
        }
        // SAFETY: one thread.
        unsafe { join_splits(way.isa, &job, item, &parts, scratch) };
    }
}

/// Heads of keys (and their queries) or values as they are before they are rounded.
fn transformed(format: KvFormat, x: &[f32], dim: usize) -> Vec<f32> {
    let mut all = x.to_vec();
    for head in all.chunks_exact_mut(dim) {
        match format {
            KvFormat::Int8 => {
                let transformed = mixed(head, &mut [0.0; MIX_MAX]).to_vec();
                head.copy_from_slice(&transformed);
            }
            KvFormat::Int4 => transform_blocks(head, transform_block(dim)),
            _ => {}
        }
    }
    all
}

/// Heads as a cache gives them back.
fn rounded(format: KvFormat, x: &[f32], dim: usize) -> Vec<f64> {
    use tokenmill_quant::float::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
    let top = |x: &[f32]| x.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
    let int4 = |group: &[f32]| -> Vec<f64> {
        let scale = f16_to_f32(f32_to_f16(top(group) / 15.0));
        let steps = |x: f32| f64::from((x / (2.0 * scale)).floor().clamp(-8.0, 7.0));
        group.iter().map(|x| (2.0 * steps(*x) + 1.0) * f64::from(scale)).collect()
    };
    let round = |head: &[f32]| -> Vec<f64> {
        let most = if format == KvFormat::Int16 { 4095.0 } else { 127.0 };
        let scale = top(head) / most;
        let through = |x: f32| match format {
            KvFormat::F32 => f64::from(x),
            KvFormat::Bf16 => f64::from(bf16_to_f32(f32_to_bf16(x))),
            _ => f64::from((x / scale).round_ties_even()) * f64::from(scale),
        };
        match format {
            KvFormat::Int4 => head.chunks(32).flat_map(int4).collect(),
            _ => head.iter().map(|x| through(*x)).collect(),
        }
    };
    x.chunks_exact(dim).flat_map(round).collect()
}

/// A latent and what is beside it as a cache gives them back.
fn rounded_latent(case: &Case, row: &[f32]) -> Vec<f64> {
    let (latent, key) = row.split_at(case.v_dim);
    let parts = [latent, key].map(|part| rounded(case.format, part, part.len()));
    parts.concat()
}

/// The Hadamard transform of a head in f64, by its definition: signs by the parity of i & j.
fn turn_back_exactly(head: &mut [f64]) {
    let block = transform_block(head.len());
    for part in head.chunks_exact_mut(block) {
        let sign = |i: usize, j: usize| 1.0 - 2.0 * f64::from((i & j).count_ones() % 2);
        let sum = |i| part.iter().enumerate().map(|(j, x)| sign(i, j) * x).sum::<f64>();
        let transformed: Vec<f64> = (0..block).map(|i| sum(i) / (block as f64).sqrt()).collect();
        part.copy_from_slice(&transformed);
    }
}

/// The same in f64, from the numbers as they are stored.
fn oracle(case: &Case, data: &Data) -> Vec<f64> {
    let group = case.heads / case.kv_heads;
    let mut out = Vec::new();
    let (of_keys, of_values) = case.format.parts();
    let (mut q, mut k) = (data.q.clone(), data.k.clone());
    if let Some(steady) = &data.steady {
        for (i, q) in q.chunks_exact_mut(case.k_dim).enumerate() {
            let factors = steady.of_queries(i % case.heads / group);
            q.iter_mut().zip(factors).for_each(|(q, factor)| *q *= factor);
        }
        for (token, k) in k.chunks_exact_mut(case.kv_heads * case.k_dim).enumerate() {
            steady.leave(Isa::Scalar, token, 0, k, &mut vec![0.0; case.k_dim]);
        }
    }
    let turned = |format, x: &[f32], dim| match case.latent {
        true => x.to_vec(),
        false => transformed(format, x, dim),
    };
    let mut q = turned(of_keys, &q, case.k_dim);
    if of_keys == KvFormat::Bf16 {
        q.iter_mut().for_each(|q| *q = rounded_factor(*q));
    }
    let k = turned(of_keys, &k, case.k_dim);
    let k = match case.latent {
        true => k.chunks(case.k_dim).flat_map(|row| rounded_latent(case, row)).collect(),
        false => rounded(of_keys, &k, case.k_dim),
    };
    let v = match of_values {
        KvFormat::Int4 => transformed(of_values, &data.v, case.v_dim),
        _ => data.v.clone(),
    };
    let v = rounded(of_values, &v, case.v_dim);
    for t in 0..case.tokens {
        let seen = match case.mask {
            Mask::Causal => 0..t + 1,
            Mask::Window(n) => (t + 1).saturating_sub(n as usize)..t + 1,
            Mask::Chunk(n) => t - t % n as usize..t + 1,
            Mask::None => 0..case.tokens,
            Mask::Around(n) => {
                let n = n as usize;
                t.saturating_sub(n)..case.tokens.min(t + n + 1)
            }
            Mask::Block => t..t + 1,
        };
        let [begin, end] = block(case, t).map(|key| key as usize);
        let seen: Vec<usize> =
            (0..case.tokens).filter(|j| seen.contains(j) || (begin..end).contains(j)).collect();
        for h in 0..case.heads {
            let given = &data.q[(t * case.heads + h) * case.k_dim..][..case.k_dim];
            let q = &q[(t * case.heads + h) * case.k_dim..][..case.k_dim];
            let shift = |tile: usize| {
                let Some(steady) = &data.steady else { return 0.0 };
                let mut taken = vec![0.0; case.k_dim];
                steady.in_tile(h / group, tile, &mut taken);
                let pairs = given.iter().zip(taken);
                pairs.map(|(q, k)| f64::from(*q) * f64::from(k)).sum::<f64>()
            };
            let score = |j: usize| {
                let k = &k[(j * case.kv_heads + h / group) * case.k_dim..][..case.k_dim];
                let s: f64 = q.iter().zip(k).map(|(q, k)| f64::from(*q) * k).sum();
                let s = (s + shift(j / TILE)) / (case.k_dim as f64).sqrt();
                case.softcap.map_or(s, |c| (s / f64::from(c)).tanh() * f64::from(c))
            };
            let scores: Vec<f64> = seen.iter().copied().map(score).collect();
            let sink = case.sinks.then(|| f64::from(data.sinks[h]));
            let max = scores.iter().copied().chain(sink).fold(f64::MIN, f64::max);
            let total: f64 = scores.iter().copied().chain(sink).map(|s| (s - max).exp()).sum();
            for e in 0..case.v_dim {
                let value = |j| v[(j * case.kv_heads + h / group) * case.v_dim + e];
                let pairs = scores.iter().zip(seen.iter().copied());
                out.push(pairs.map(|(s, j)| (s - max).exp() * value(j)).sum::<f64>() / total);
            }
            if of_values == KvFormat::Int4 {
                let from = out.len() - case.v_dim;
                turn_back_exactly(&mut out[from..]);
            }
        }
    }
    out
}

/// Cases that between them meet every branch.
fn cases() -> Vec<Case> {
    let f32_cases = [
        CASE,
        Case { tokens: 1, ..CASE },
        Case { tokens: 65, heads: 4, kv_heads: 4, k_dim: 16, v_dim: 16, ..CASE },
        Case { heads: 8, kv_heads: 2, k_dim: 80, v_dim: 80, ..CASE },
        Case { heads: 8, k_dim: 24, v_dim: 40, mask: Mask::Window(37), ..CASE },
        Case { mask: Mask::Window(1), ..CASE },
        Case { mask: Mask::Chunk(37), ..CASE },
        Case { heads: 2, k_dim: 16, v_dim: 8, tokens: 700, mask: Mask::Chunk(300), ..CASE },
        Case { mask: Mask::Window(64), softcap: Some(5.0), sinks: true, sharp: 3.0, ..CASE },
        Case { mask: Mask::None, heads: 2, kv_heads: 2, k_dim: 32, v_dim: 32, ..CASE },
        Case { mask: Mask::Window(37), blocks: &[[3, 70], [70, 71], [90, 149]], ..CASE },
        Case {
            heads: 2,
            kv_heads: 2,
            k_dim: 16,
            v_dim: 8,
            tokens: 700,
            blocks: &[[40, 600]],
            ..CASE
        },
        Case { mask: Mask::Block, blocks: &[[0, 60], [62, 63], [65, 150]], ..CASE },
        Case { heads: 1, k_dim: 7, v_dim: 5, sinks: true, tokens: 90, ..CASE },
        Case { heads: 2, k_dim: 320, v_dim: 96, tokens: 40, ..CASE },
        Case { heads: 2, k_dim: 128, v_dim: 256, softcap: Some(30.0), tokens: 70, ..CASE },
        Case { heads: 1, k_dim: 16, v_dim: 8, tokens: 1100, sharp: 4.0, ..CASE },
        Case { heads: 2, k_dim: 16, v_dim: 8, tokens: 2100, mask: Mask::Window(500), ..CASE },
    ];
    let latent = |heads, kv_heads, (latent, rope), tokens| Case {
        heads,
        kv_heads,
        k_dim: latent + rope,
        v_dim: latent,
        tokens,
        latent: true,
        ..CASE
    };
    let latents = [
        latent(3, 1, (64, 16), 150),
        latent(6, 2, (160, 32), 70),
        latent(2, 1, (21, 7), 90),
        latent(1, 1, (520, 24), 40),
        Case { sharp: 4.0, ..latent(4, 2, (16, 8), 700) },
        latent(40, 2, (32, 64), 37),
    ];
    let half = Some(RopePairing::Half);
    let biased = |size, pairing, case: Case| Case { bias: Some((size, pairing)), ..case };
    let biased = [
        biased(12.0, half, Case { heads: 6, kv_heads: 2, tokens: 300, ..CASE }),
        biased(4.0, half, Case { k_dim: 80, v_dim: 40, mask: Mask::Window(70), ..CASE }),
        biased(4.0, Some(RopePairing::Interleaved), Case { k_dim: 24, tokens: 90, ..CASE }),
        biased(4.0, None, Case { k_dim: 7, v_dim: 5, sinks: true, sharp: 2.0, ..CASE }),
        biased(8.0, half, Case { heads: 2, k_dim: 16, v_dim: 8, tokens: 1100, ..CASE }),
        biased(4.0, half, Case { k_dim: 16, v_dim: 8, mask: Mask::Chunk(150), ..CASE }),
    ];
    let few_bits = [KvFormat::Int8, KvFormat::Int4, KvFormat::K8V4];
    let in_all = |c: &Case| KvFormat::ALL.map(|format| Case { format, ..c.clone() });
    let in_few = |c: &Case| few_bits.map(|format| Case { format, ..c.clone() });
    let of_latents = [KvFormat::F32, KvFormat::Bf16, KvFormat::Int16, KvFormat::Int8];
    let in_those = |c: &Case| of_latents.map(|format| Case { format, ..c.clone() });
    let ordinary = f32_cases.iter().flat_map(in_all).chain(biased.iter().flat_map(in_few));
    ordinary.chain(latents.iter().flat_map(in_those)).collect()
}

fn name(case: &Case) -> String {
    let Case { format, heads, kv_heads, k_dim, v_dim, tokens, mask, bias, latent, .. } = case;
    let of = if *latent { "latents" } else { "keys" };
    format!(
        "{of} {format:?} heads {heads}/{kv_heads} dims {k_dim}/{v_dim} tokens {tokens} {mask:?} {bias:?}"
    )
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn vector_isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available())
}

#[test]
fn results_are_near_f64() {
    for case in cases() {
        let data = data(&case);
        let got = run(&case, &data, WAY);
        for (i, (got, exact)) in got.iter().zip(oracle(&case, &data)).enumerate() {
            let error = (f64::from(*got) - exact).abs();
            let bound = match case.format {
                KvFormat::K8V4 => 1e-4,
                // Weights are exact to 7.5e-5.
                KvFormat::Int8 => 3e-4,
                // Weights have eight bits, and their sum the same: 2⁻⁸ of how far values of about 1 are apart.
                KvFormat::Bf16 => 4e-3,
                // Codes of queries and weights have 13 bits, of long queries fewer.
                KvFormat::Int16 => 1.5e-3,
                _ => 2e-6,
            };
            // Sums with a bias are as much larger.
            let size = case.sharp * (1.0 + case.bias.map_or(0.0, |(size, _)| size));
            // As what is beside latents.
            let size = if case.latent { 3.0 * size } else { size };
            assert!(error < bound * f64::from(size), "{}: {i} {got} {exact}", name(&case));
        }
    }
}

#[test]
fn every_instruction_set_and_chunking_gives_the_same_bits() {
    for case in cases() {
        let data = data(&case);
        let expect = bits(&run(&case, &data, WAY));
        for isa in vector_isas() {
            for (chunk, spread, stale) in [(usize::MAX, 5, 0xff), (64, 1, 0x7f), (7, 31, 0xff)] {
                if case.mask == Mask::None && chunk < case.tokens {
                    continue;
                }
                let way = Way { isa, chunk, spread, stale, ..WAY };
                let got = bits(&run(&case, &data, way));
                assert!(got == expect, "{} on {} by {chunk}", name(&case), isa.name());
            }
        }
    }
}

#[test]
fn one_token_at_a_time_gives_the_same_bits() {
    for case in cases() {
        if case.mask == Mask::None {
            continue;
        }
        let data = data(&case);
        let isa = Isa::detect();
        let expect = run(&case, &data, Way { isa, ..WAY });
        let got = run(&case, &data, Way { isa, chunk: 1, spread: 12, stale: 0xff, ..WAY });
        assert!(bits(&got) == bits(&expect), "{}", name(&case));
    }
}

#[test]
fn splits_computed_apart_give_the_same_bits() {
    for case in cases().into_iter().filter(|c| c.tokens > 256) {
        let data = data(&case);
        let expect = run(&case, &data, WAY);
        for isa in vector_isas() {
            let got = run(&case, &data, Way { isa, chunk: 600, apart: true, ..WAY });
            assert!(bits(&got) == bits(&expect), "{} on {}", name(&case), isa.name());
        }
    }
}

/// The mean distance of results from those of exact keys and values.
fn distance(case: &Case, given: &Data) -> f64 {
    let exact = Data { steady: None, ..data(case) };
    let exact = oracle(&Case { format: KvFormat::F32, ..case.clone() }, &exact);
    let got = run(case, given, Way { isa: Isa::detect(), ..WAY });
    let pairs = got.iter().zip(&exact);
    pairs.map(|(got, exact)| (f64::from(*got) - exact).abs()).sum::<f64>() / exact.len() as f64
}

#[test]
fn a_bias_costs_few_bits_little() {
    let half = Some(RopePairing::Half);
    for format in [KvFormat::Int8, KvFormat::Int4, KvFormat::K8V4] {
        let plain = Case { format, tokens: 300, ..CASE };
        let biased = Case { bias: Some((50.0, half)), ..plain.clone() };
        let without = distance(&plain, &data(&plain));
        let apart = distance(&biased, &data(&biased));
        let among = distance(&biased, &Data { steady: None, ..data(&biased) });
        println!(
            "{format:?}: no bias {without:.2e}, kept apart {apart:.2e}, among codes {among:.2e}"
        );
        assert!(apart < 1.5 * without, "{format:?}: {apart} and {without}");
        assert!(among > 1.5 * apart, "{format:?}: {among} and {apart}");
    }
}

#[test]
fn fresh_keys_equal_an_f32_cache() {
    for case in cases().into_iter().filter(|c| c.format == KvFormat::F32 && !c.latent) {
        let data = data(&case);
        let expect = run(&case, &data, WAY);
        for isa in vector_isas() {
            let got = run(&case, &data, Way { isa, fresh: true, ..WAY });
            assert!(bits(&got) == bits(&expect), "{} on {}", name(&case), isa.name());
        }
    }
}

#[test]
fn the_last_of_128k_tokens_sees_them_all() {
    let (tokens, dim) = (131_072_usize, 16);
    let layout = KvLayout { format: KvFormat::Bf16, kv_heads: 1, k_dim: dim, v_dim: dim };
    let mut bytes = vec![0; layout.bytes(tokens / BLOCK_TOKENS)];
    let (k, v) = (random(tokens + dim, 5), random(tokens + dim, 6));
    let cache = Parts::new(&mut bytes);
    for t in 0..tokens {
        let (block, slot, k, v) = (t / 32, t % 32, &k[t..t + dim], &v[t..t + dim]);
        // SAFETY: one thread.
        unsafe { layout.store(Isa::detect(), cache, block, slot, k, v) };
    }
    let tables: Vec<BlockId> = (0..tokens as u32 / 32).map(BlockId).collect();
    let (q, mut out) = (random(2 * dim, 7), vec![0.0; 2 * dim]);
    let job = AttendJob {
        heads: 2,
        kv_heads: 1,
        k_dim: dim,
        v_dim: dim,
        scale: 1.0,
        mask: Mask::Causal,
        blocks: &[],
        softcap: None,
        sinks: None,
        q: Rows { data: &q, stride: 2 * dim },
        keys: Keys::Cache { layout, bytes: &bytes, tables: &tables },
        steady: None,
        out: Parts::new(&mut out),
        out_stride: 2 * dim,
    };
    let (row, context) = (0, tokens as u32 - 1);
    let item = Item { row, tokens: 1, index: context, keys: tokens as u32, origin: 0, kv_head: 0 };
    let mut scratch = Scratch::new(2, 1, dim, dim);
    let (mut parts, len) = (Vec::new(), job.part_len(&item));
    for split in job.splits(&item) {
        parts.resize(parts.len() + len, 0.0);
        let at = parts.len() - len;
        attend_split(Isa::detect(), &job, &item, split, &mut parts[at..], &mut scratch);
    }
    // SAFETY: one thread.
    unsafe { join_splits(Isa::detect(), &job, &item, &parts, &mut scratch) };
    let stored = |x: &[f32]| rounded(KvFormat::Bf16, x, x.len());
    let (k, v) = (stored(&k), stored(&v));
    for h in 0..2 {
        let query = q[h * dim..][..dim].iter().map(|q| f64::from(rounded_factor(*q)));
        let query: Vec<f64> = query.collect();
        let score = |t: usize| query.iter().zip(&k[t..]).map(|(q, k)| q * k).sum::<f64>();
        let weights: Vec<f64> = (0..tokens).map(|t| score(t).exp()).collect();
        let total: f64 = weights.iter().sum();
        for e in 0..dim {
            let exact = weights.iter().enumerate().map(|(t, w)| w * v[t + e]).sum::<f64>() / total;
            let got = f64::from(out[h * dim + e]);
            assert!((got - exact).abs() < 2e-4, "{got} {exact}");
        }
    }
}

#[test]
fn spans_of_a_batch_do_not_meet() {
    // Two sequences in one step, one of them in the middle of its life.
    let case = Case { heads: 4, kv_heads: 2, tokens: 100, ..CASE };
    let (data, layout) = (data(&case), layout(&case));
    let alone = run(&case, &data, WAY);
    let (mut bytes, heads) = (vec![0xff; layout.bytes(8)], case.heads);
    let tables: Vec<BlockId> = [6, 1, 4, 3, 0, 5, 2, 7].map(BlockId).to_vec();
    let cache = Parts::new(&mut bytes);
    for (table, tokens) in [(0, 100), (4, 60)] {
        for t in 0..tokens {
            let (k, v) = (&data.k[t * 128..][..128], &data.v[t * 128..][..128]);
            let block = tables[table + t / 32].0 as usize;
            // SAFETY: one thread.
            unsafe { layout.store(Isa::detect(), cache, block, t % 32, k, v) };
        }
    }
    // Rows: tokens 90..100 of the first sequence, then all 60 of the second.
    let q = [&data.q[90 * heads * 64..], &data.q[..60 * heads * 64]].concat();
    let mut out = vec![0.0; 70 * heads * 64];
    let job = AttendJob {
        heads,
        kv_heads: 2,
        k_dim: 64,
        v_dim: 64,
        scale: 0.125,
        mask: Mask::Causal,
        blocks: &[],
        softcap: None,
        sinks: None,
        q: Rows { data: &q, stride: heads * 64 },
        keys: Keys::Cache { layout, bytes: &bytes, tables: &tables },
        steady: None,
        out: Parts::new(&mut out),
        out_stride: heads * 64,
    };
    let spans = [
        Span { first: 0, len: 10, context: 90, tables: [0; MAX_GROUPS] },
        Span { first: 10, len: 60, context: 0, tables: [4; MAX_GROUPS] },
    ];
    let mut items = Vec::new();
    plan_items(&spans, ItemSource::Cache { group: 1 }, heads, 2, &mut items);
    let mut scratch = Scratch::new(heads, 2, 64, 64);
    for item in &items {
        // SAFETY: one thread.
        unsafe { attend(Isa::detect(), &job, item, None, &mut scratch) };
    }
    let expect = [&alone[90 * heads * 64..], &alone[..60 * heads * 64]].concat();
    assert!(bits(&out) == bits(&expect));
}

#[test]
fn what_is_not_a_number_stays_in_its_rows() {
    for format in KvFormat::ALL {
        let case = Case { format, tokens: 80, ..CASE };
        let clean = data(&case);
        for (poison, value) in [(0, f32::NAN), (1, f32::NAN), (2, f32::NAN), (1, f32::INFINITY)] {
            let mut data = data(&case);
            let row = [&mut data.q, &mut data.k, &mut data.v];
            let width = [3 * 64, 64, 64][poison];
            row[poison][70 * width + 5] = value;
            for isa in vector_isas() {
                // One token a step: rows of one chunk may share a fate, others not.
                let way = Way { isa, chunk: 1, ..WAY };
                let (got, expect) = (run(&case, &data, way), run(&case, &clean, way));
                assert!(bits(&got[..70 * 192]) == bits(&expect[..70 * 192]));
                assert!(got[70 * 192..][..64].iter().any(|x| x.is_nan()), "{format:?} {poison}");
            }
        }
    }
}
