//! A small decoder with random weights in several formats, and ways of running it.
#![allow(dead_code)] // each test uses a part of it

use std::ops::ControlFlow;

use tokenmill_backend::Device;
use tokenmill_device_tests::conformance::{Material, Pager};
use tokenmill_ir::sampling::splitmix;
use tokenmill_ir::{
    Act, AttendSource, Batch, CacheId, CacheKind, CacheSpec, GateAct, Limits, Mask, Mode, NormKind,
    Op, OutputKind, OutputRow, Program, Rope, RopeId, RopePairing, RowPart, RowSlices, Rows,
    StepOutput, Store, View, WeightId, WeightSpec, WeightUse, op,
};
use tokenmill_quant::FormatId;

const HIDDEN: u32 = 288;
const HEADS: u32 = 6;
const KV_HEADS: u32 = 2;
const DIM: u32 = 48;
/// Heads over latents, and the columns of these.
const LATENT_HEADS: u32 = 16;
const LATENT: u32 = 128;
const ROPE: u32 = 32;
const FFN: u32 = 352;
pub const VOCAB: u32 = 403;
/// Tokens of a sequence: more than a split of attention.
pub const LEN: u32 = 300;
/// Tokens in a block of the device.
const BLOCK: u32 = 32;

/// How a model is run.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Sequences side by side; the first one is looked at.
    pub sequences: u32,
    /// Tokens of a step of a sequence.
    pub chunk: u32,
    /// The other sequences are this much shorter, each than the one before.
    pub shift: u32,
}

/// Program, weights and limits.
pub struct Model {
    pub program: Program,
    pub material: Material,
    pub limits: Limits,
    /// Whether attention is over latents.
    latents: bool,
    rng: u64,
}

impl Model {
    pub fn new(kv: tokenmill_ir::KvFormat) -> Self {
        Self::of(kv, [FormatId::Q4_0, FormatId::Q8_0, FormatId::Q5_1, FormatId::F16])
    }

    /// The format of each layer.
    pub fn of(kv: tokenmill_ir::KvFormat, formats: [FormatId; 4]) -> Self {
        Self::with(kv, formats, false)
    }

    /// The same with latents in the place of keys and values.
    pub fn of_latents(kv: tokenmill_ir::KvFormat, formats: [FormatId; 4]) -> Self {
        Self::with(kv, formats, true)
    }

    fn with(kv: tokenmill_ir::KvFormat, formats: [FormatId; 4], latents: bool) -> Self {
        let limits = Limits {
            step_tokens: 8 * LEN,
            sequences: 8,
            outputs: 8 * LEN,
            context: 512,
            group_blocks: vec![8 * 512 / BLOCK; if latents { 1 } else { 2 }],
            top_logprobs: 8,
        };
        let mut model = Self {
            program: Program::default(),
            material: Material::default(),
            limits,
            latents,
            rng: 99,
        };
        model.build(kv, formats);
        model.program.check().expect("a consistent program");
        model
    }

    fn number(&mut self) -> f32 {
        self.rng = splitmix(self.rng);
        let sum: u64 = (0..4).map(|i| (self.rng >> (16 * i)) & 0xffff).sum();
        (sum as f32 / 65535.0 - 2.0) * 1.732
    }

    fn weight(&mut self, role: WeightUse, format: FormatId, rows: u32, cols: u32) -> WeightId {
        let scale = if role == WeightUse::Vector { 0.1 } else { 2.0 / (cols as f32).sqrt() };
        let offset = if role == WeightUse::Vector { 1.0 } else { 0.0 };
        let numbers: Vec<f32> = (0..rows * cols).map(|_| offset + self.number() * scale).collect();
        let info = format.info();
        let mut bytes = vec![0; numbers.len() / info.block_weights * info.block_bytes];
        info.encode.expect("a format that encodes")(&numbers, &mut bytes);
        let tensor = format!("t{}", self.program.weights.len());
        self.material.insert(&tensor, bytes.len() / rows as usize, bytes);
        let slices = RowSlices::range(0, rows.into());
        let part = RowPart { format, tensor, rows: slices, transposed: None, order: None };
        let name = format!("w{}", self.program.weights.len());
        let (parts, bias, scales) = (vec![part], Vec::new(), Vec::new());
        self.program.weight(WeightSpec { name, role, rows, cols, parts, bias, scales })
    }

    fn linear(&mut self, x: View, format: FormatId, rows: u32) -> View {
        let weight = self.weight(WeightUse::Matmul, format, rows, x.cols);
        let out = self.program.buffer(Rows::Tokens, rows);
        self.program.ops.push(Op::Linear { x, weight, out: out.buffer });
        out
    }

    fn norm(&mut self, x: View, adds: Vec<View>) -> (View, View) {
        let rows = self.program.buffers[x.buffer.0 as usize].rows;
        let weight = Some(self.weight(WeightUse::Vector, FormatId::F32, 1, x.cols));
        let (sum, out) = (self.program.buffer(rows, x.cols), self.program.buffer(rows, x.cols));
        self.program.ops.push(Op::Norm(op::Norm {
            x,
            adds,
            sum: Some(sum.buffer),
            kind: NormKind::Rms,
            weight,
            offset: 0.0,
            bias: None,
            groups: 1,
            gate: None,
            eps: 1e-5,
            root: None,
            out: out.buffer,
        }));
        (sum, out)
    }

    fn build(&mut self, kv: tokenmill_ir::KvFormat, formats: [FormatId; 4]) {
        let table = self.weight(WeightUse::RowsAndMatmul, FormatId::Q8_0, VOCAB, HIDDEN);
        let mut stream = self.program.buffer(Rows::Tokens, HIDDEN);
        let out = stream.buffer;
        let (positions, token_types) = (None, None);
        self.program.ops.push(Op::Embed { table, scale: 1.0, positions, token_types, out });
        let pairs = if self.latents { ROPE / 2 } else { DIM / 2 };
        let inv_freq = (0..pairs).map(|i| 1000f32.powf(-(i as f32) / 24.0)).collect();
        let pairing = RopePairing::Half;
        self.program.ropes =
            vec![Rope { pairing, inv_freq, factors: None, magnitude: 1.0, axes: Vec::new() }];
        let mut pending = Vec::new();
        for layer in 0..4u32 {
            let format = formats[layer as usize];
            let (sum, x) = self.norm(stream, std::mem::take(&mut pending));
            stream = sum;
            let y = match self.latents {
                true => self.latent_attention(x, layer, format, kv),
                false => self.attention(x, layer, format, kv),
            };
            let (sum, x) = self.norm(stream, vec![y]);
            stream = sum;
            let gate = self.weight(WeightUse::Matmul, format, FFN, HIDDEN);
            let up = self.weight(WeightUse::Matmul, format, FFN, HIDDEN);
            let inner = self.program.buffer(Rows::Tokens, FFN);
            let (act, out) = (GateAct::Plain(Act::Silu), inner.buffer);
            self.program.ops.push(Op::GatedLinear { x, gate, up, act, out });
            pending = vec![self.linear(inner, format, HIDDEN)];
        }
        let taken = [stream, pending[0]].map(|x| {
            let out = self.program.buffer(Rows::Outputs, HIDDEN);
            self.program.ops.push(Op::TakeRows { x, run: 1, out: out.buffer });
            out
        });
        let (_, hidden) = self.norm(taken[0], vec![taken[1]]);
        let logits = self.program.buffer(Rows::Outputs, VOCAB);
        let (scale, softcap, out) = (1.0, None, logits.buffer);
        self.program.ops.push(Op::Head { x: hidden, weight: table, scale, softcap, out });
        (self.program.vocab, self.program.hidden) = (VOCAB, HIDDEN);
        self.program.ops.push(Op::Sample { logits: Some(logits), hidden, more: Vec::new() });
    }

    /// Attention, over a window in odd layers.
    fn attention(
        &mut self,
        x: View,
        layer: u32,
        format: FormatId,
        kv: tokenmill_ir::KvFormat,
    ) -> View {
        let (q_cols, kv_cols) = (HEADS * DIM, KV_HEADS * DIM);
        let qkv = self.linear(x, format, q_cols + 2 * kv_cols);
        let part = |start, cols| View { buffer: qkv.buffer, start, cols };
        let (kv_heads, k_dim, v_dim) = (KV_HEADS, DIM, DIM);
        let (mask, kind) = match layer % 2 {
            0 => (Mask::Causal, CacheKind::Full { kv_heads, k_dim, v_dim }),
            _ => (Mask::Window(40), CacheKind::Window { tokens: 40, kv_heads, k_dim, v_dim }),
        };
        self.program.caches.push(CacheSpec { kind, format: kv, group: layer % 2 });
        let cache = CacheId(layer);
        let (k, v) = (part(q_cols, kv_cols), part(q_cols + kv_cols, kv_cols));
        let store = Some(Store { k, v, kv_heads, k_norm: None, cache });
        let q = self.program.buffer(Rows::Tokens, q_cols);
        self.program.ops.push(Op::RotateStore(op::RotateStore {
            q: part(0, q_cols),
            heads: HEADS,
            head_dim: DIM,
            q_norm: None,
            rope: Some(RopeId(0)),
            position_scale: None,
            store,
            out: q.buffer,
        }));
        let out = self.program.buffer(Rows::Tokens, q_cols);
        self.program.ops.push(Op::Attend(op::Attend {
            q,
            heads: HEADS,
            source: AttendSource::Cache(cache),
            kv_heads,
            v_dim,
            scale: 0.3,
            mask,
            blocks: false,
            softcap: None,
            sinks: None,
            out: out.buffer,
        }));
        self.linear(out, format, HIDDEN)
    }

    /// Attention over latents, with queries in their space.
    fn latent_attention(
        &mut self,
        x: View,
        layer: u32,
        format: FormatId,
        kv: tokenmill_ir::KvFormat,
    ) -> View {
        let (heads, q_cols) = (LATENT_HEADS, LATENT_HEADS * LATENT);
        let q_latent = self.linear(x, format, q_cols);
        let q_rope = self.linear(x, format, heads * ROPE);
        let row = self.linear(x, format, LATENT + ROPE);
        let part = |start, cols| View { buffer: row.buffer, start, cols };
        let norm = self.weight(WeightUse::Vector, FormatId::F32, 1, LATENT);
        let kind = CacheKind::Latent { latent: LATENT, rope: ROPE };
        self.program.caches.push(CacheSpec { kind, format: kv.of_latents(), group: 0 });
        let cache = CacheId(layer);
        self.program.ops.push(Op::StoreLatent(op::StoreLatent {
            latent: part(0, LATENT),
            norm,
            eps: 1e-5,
            key: part(LATENT, ROPE),
            rope: RopeId(0),
            cache,
        }));
        let out = self.program.buffer(Rows::Tokens, q_cols);
        self.program.ops.push(Op::AttendLatent(op::AttendLatent {
            q_latent,
            q_rope,
            heads,
            cache,
            scale: 0.05,
            out: out.buffer,
        }));
        self.linear(out, format, HIDDEN)
    }

    /// Uploads the weights and compiles.
    pub fn compile(
        &self,
        device: &dyn Device,
        mode: Mode,
    ) -> Box<dyn tokenmill_backend::Executable> {
        let watch = &mut |_| ControlFlow::Continue(());
        let uploaded = device.upload(&self.program, &self.material, mode, watch);
        let weights = uploaded.expect("uploads");
        device.compile(&self.program, &weights, &self.limits).expect("compiles")
    }

    /// Blocks for sequences of it.
    pub fn pager(&self) -> Pager {
        Pager::new(&self.program, &self.limits, BLOCK)
    }

    /// The next step of a plan, after `done` tokens of every sequence; empty at the end.
    pub fn step(&self, pager: &mut Pager, plan: &Plan, done: u32) -> Batch {
        let mut batch = Batch::default();
        // Sequence 0 stands last, so that others come before it in the batch.
        for sequence in (0..plan.sequences).rev() {
            let len = LEN.saturating_sub(plan.shift * sequence);
            let count = plan.chunk.min(len.saturating_sub(done));
            if count == 0 {
                continue;
            }
            let id = |i: u32| (splitmix(u64::from(sequence * 1000 + i)) % u64::from(VOCAB)) as u32;
            let first = batch.tokens.len() as u32;
            pager.feed(&mut batch, (sequence as usize, done), (done..done + count).map(id));
            if sequence == 0 {
                let row = |row| OutputRow { row, kind: OutputKind::Logits };
                batch.outputs.extend((first..first + count).map(row));
            }
        }
        batch
    }

    /// Logits of all tokens of sequence 0, as bits.
    pub fn run(&self, device: &dyn Device, mode: Mode, plan: &Plan) -> Vec<u32> {
        let mut executable = self.compile(device, mode);
        let (mut out, mut all, mut done) = (StepOutput::default(), Vec::new(), 0);
        let mut pager = self.pager();
        while done < LEN {
            executable.submit(&mut self.step(&mut pager, plan, done)).expect("a good batch");
            executable.wait(&mut out).expect("a step");
            all.extend(out.rows.iter().map(|x| x.to_bits()));
            done += plan.chunk;
        }
        all
    }
}
