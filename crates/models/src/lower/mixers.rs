//! Token mixers: attention, latent attention, gated delta net, Mamba-2, short convolution.

use tokenmill_ir::{
    Act, AttendSource, CacheKind, Columns, Expr, GateOrder, HeadNorm, Mask, NormKind, Op,
    PositionScale, RopeId, RowSlices, Rows, Store, Unary, View, WeightId, WeightSpec, WeightUse,
    op,
};

use super::{Lower, slice};
use crate::error::ModelError;
use crate::names::Role;
use crate::spec::{
    Attention, Axes, DeltaNet, KvSource, Latent, Mamba, Mixer, Multipliers, Norm, QkNorm, ShortConv,
};

impl Lower<'_> {
    pub(super) fn mixer(&mut self, mixer: &Mixer, x: View) -> Result<View, ModelError> {
        match mixer {
            Mixer::Attention(a) => self.attention(a, x),
            Mixer::Latent(l) => self.latent(l, x),
            Mixer::DeltaNet(d) => self.delta_net(d, x),
            Mixer::Mamba(m) => self.mamba(m, x),
            Mixer::ShortConv(c) => self.short_conv(c, x),
        }
    }

    fn attention(&mut self, a: &Attention, x: View) -> Result<View, ModelError> {
        let hidden = self.spec.hidden;
        let q_cols = a.heads * a.head_dim;
        // Layers that read another's cache have queries only.
        let kv_cols = match a.kv {
            KvSource::Layer(_) => 0,
            _ => a.kv_heads * a.head_dim,
        };
        let qkv_weight = self.qkv(a, q_cols, kv_cols)?;
        let output = a.multipliers.output;
        let qkv = self.linear(x, qkv_weight);
        let mut q = slice(qkv, 0, q_cols);
        let mut k = slice(qkv, q_cols, kv_cols);
        let mut v = slice(qkv, q_cols + kv_cols, kv_cols);
        let gate = a.gated.then(|| slice(qkv, q_cols + 2 * kv_cols, q_cols));
        if let QkNorm::Whole(norm) = a.qk_norm {
            q = self.norm(q, norm, Role::QNorm)?;
            k = self.norm(k, norm, Role::KNorm)?;
        }
        if let QkNorm::Unit(norm) = a.qk_norm {
            q = self.unit_norm(q, norm, a.heads, Rows::Tokens);
            k = self.unit_norm(k, norm, a.kv_heads, Rows::Tokens);
        }
        if let (Some(norm), true) = (a.v_norm, kv_cols > 0) {
            v = self.unit_norm(v, norm, a.kv_heads, Rows::Tokens);
        }
        let (q, source) = self.keys_and_values(a, q, k, v)?;
        let out = self.program.buffer(Rows::Tokens, q_cols);
        let sinks = match a.sinks {
            true => Some(self.vector(Role::Sinks, a.heads)?),
            false => None,
        };
        self.program.ops.push(Op::Attend(op::Attend {
            q,
            heads: a.heads,
            source,
            kv_heads: a.kv_heads,
            v_dim: a.head_dim,
            scale: a.scale,
            mask: a.mask,
            softcap: a.softcap,
            sinks,
            blocks: a.blocks,
            out: out.buffer,
        }));
        let mut y = out;
        if let Some(gate) = gate {
            let sigmoid = Expr::Arg(1).apply(Unary::Sigmoid);
            y = self.map(Expr::Mul(Box::new(Expr::Arg(0)), Box::new(sigmoid)), vec![y, gate]);
        }
        let o = self.matrix(Role::O, hidden, q_cols)?;
        self.scale_rows(o, &[(hidden, output)]);
        Ok(self.linear(y, o))
    }

    /// Head norms and rotation. Keys and values go to the layer's cache, to none where every token
    /// sees all of its own step, and nowhere where another layer's cache is read.
    fn keys_and_values(
        &mut self,
        a: &Attention,
        q: View,
        k: View,
        v: View,
    ) -> Result<(View, AttendSource), ModelError> {
        let (mut q_norm, mut k_norm) = (None, None);
        if let QkNorm::Head(norm) = a.qk_norm {
            q_norm = Some(self.head_norm(norm, Role::QNorm, a.head_dim, q.cols)?);
            if k.cols > 0 {
                k_norm = Some(self.head_norm(norm, Role::KNorm, a.head_dim, k.cols)?);
            }
            if let Some(n) = apart(a) {
                let order = parted(1, n).flat_map(|rows| rows.start..rows.start + rows.count);
                let order: Vec<u32> = order.map(|column| column as u32).collect();
                for norm in [q_norm, k_norm].into_iter().flatten() {
                    for part in &mut self.program.weights[norm.weight.0 as usize].parts {
                        part.order = Some(order.clone().into());
                    }
                }
            }
        }
        let rope = match &a.rope {
            Some(r) => Some(self.rope_id(r)?),
            None => None,
        };
        if matches!(a.mask, Mask::None | Mask::Around(_) | Mask::Block) {
            let q = self.rotated(q, a.heads, q_norm, rope, a.position_scale);
            let k = self.rotated(k, a.kv_heads, k_norm, rope, None);
            return Ok((q, AttendSource::Fresh { k, v }));
        }
        if let KvSource::Layer(layer) = a.kv {
            let shared = self.kv_caches.iter().find(|(l, _)| *l == layer).map(|(_, c)| *c);
            let value = format!("the cache of layer {layer}");
            let cache = shared.ok_or_else(|| ModelError::unsupported("shared keys", value))?;
            let q = self.rotated(q, a.heads, q_norm, rope, a.position_scale);
            return Ok((q, AttendSource::Cache(cache)));
        }
        let (kv_heads, k_dim, v_dim) = (a.kv_heads, a.head_dim, a.head_dim);
        let cache = self.cache(match a.mask {
            Mask::Window(tokens) | Mask::Chunk(tokens) => {
                CacheKind::Window { tokens, kv_heads, k_dim, v_dim }
            }
            _ => CacheKind::Full { kv_heads, k_dim, v_dim },
        });
        self.kv_caches.push((self.layer, cache));
        let rotated = self.program.buffer(Rows::Tokens, q.cols);
        self.program.ops.push(Op::RotateStore(op::RotateStore {
            q,
            heads: a.heads,
            head_dim: a.head_dim,
            q_norm,
            rope,
            position_scale: a.position_scale,
            store: Some(Store { k, v, kv_heads, k_norm, cache }),
            out: rotated.buffer,
        }));
        Ok((rotated, AttendSource::Cache(cache)))
    }

    /// Heads normalised and rotated, kept nowhere.
    fn rotated(
        &mut self,
        x: View,
        heads: u32,
        norm: Option<HeadNorm>,
        rope: Option<RopeId>,
        position_scale: Option<PositionScale>,
    ) -> View {
        if norm.is_none() && rope.is_none() && position_scale.is_none() {
            return x;
        }
        let out = self.program.buffer(Rows::Tokens, x.cols);
        let (head_dim, id) = (x.cols / heads, out.buffer);
        let (q, q_norm) = (x, norm);
        self.program.ops.push(Op::RotateStore(op::RotateStore {
            q,
            heads,
            head_dim,
            q_norm,
            rope,
            position_scale,
            store: None,
            out: id,
        }));
        out
    }

    /// Queries, keys, values (and gates) as one matrix, scalar factors on its rows.
    fn qkv(&mut self, a: &Attention, q_cols: u32, kv_cols: u32) -> Result<WeightId, ModelError> {
        let weight = self.qkv_rows(a, q_cols, kv_cols)?;
        let Multipliers { input, key, .. } = a.multipliers;
        let gate = if a.gated { q_cols } else { 0 };
        let runs = [(q_cols, input), (kv_cols, input * key), (kv_cols, input), (gate, input)];
        self.scale_rows(weight, &runs[..if a.gated { 4 } else { 3 }]);
        Ok(weight)
    }

    fn qkv_rows(
        &mut self,
        a: &Attention,
        q_cols: u32,
        kv_cols: u32,
    ) -> Result<WeightId, ModelError> {
        let hidden = self.spec.hidden;
        if self.tensor_opt(Role::QkvByHead).is_some() {
            // Head after head, its query, key and value.
            let d = u64::from(a.head_dim);
            let rows = |i| {
                Some(RowSlices { start: i * d, count: d, stride: 3 * d, repeat: a.heads.into() })
            };
            let parts = [0, 1, 2].map(|i| (Role::QkvByHead, rows(i)));
            return self.stacked("attn.qkv", hidden, &parts);
        }
        if let Some(n) = apart(a) {
            let of = |role, heads| parted(heads, n).map(move |rows| (role, Some(rows)));
            let q = of(Role::Q, a.heads).chain(of(Role::K, a.kv_heads));
            let v = RowSlices::range(0, kv_cols.into());
            let parts: Vec<_> = q.chain([(Role::V, Some(v))]).collect();
            return self.stacked("attn.qkv", hidden, &parts);
        }
        if self.tensor_opt(Role::Qkv).is_some() {
            let all = RowSlices::range(0, u64::from(q_cols + 2 * kv_cols));
            return self.stacked("attn.qkv", hidden, &[(Role::Qkv, Some(all))]);
        }
        let kv = Some(RowSlices::range(0, kv_cols.into()));
        if !a.gated {
            let q = Some(RowSlices::range(0, q_cols.into()));
            let parts = match a.kv {
                KvSource::Own => vec![(Role::Q, q), (Role::K, kv), (Role::V, kv)],
                KvSource::KeysAreValues => vec![(Role::Q, q), (Role::K, kv), (Role::K, kv)],
                KvSource::Layer(_) => {
                    // Files may hold projections that such a layer does not use.
                    for role in [Role::K, Role::V, Role::KNorm] {
                        self.tensor_opt(role);
                    }
                    vec![(Role::Q, q)]
                }
            };
            return self.stacked("attn.qkv", hidden, &parts);
        }
        // The query projection holds, head after head, the query and its gate.
        let d = u64::from(a.head_dim);
        let of_heads =
            |start| Some(RowSlices { start, count: d, stride: 2 * d, repeat: a.heads.into() });
        let parts = [(Role::Q, of_heads(0)), (Role::K, kv), (Role::V, kv), (Role::Q, of_heads(d))];
        self.stacked("attn.qkvg", hidden, &parts)
    }

    fn head_norm(
        &mut self,
        norm: Norm,
        role: Role,
        head_dim: u32,
        all: u32,
    ) -> Result<HeadNorm, ModelError> {
        let weight = self.vector_any(role, [head_dim, all])?;
        Ok(HeadNorm { kind: norm.kind, weight, offset: norm.offset, eps: norm.eps })
    }

    fn latent(&mut self, l: &Latent, x: View) -> Result<View, ModelError> {
        debug_assert!(Self::is_rms(l.norm));
        let hidden = self.spec.hidden;
        let (heads, nope, rope_dim) = (l.heads, l.nope, l.rope_dim);
        let (q_role, q_cols, q_in) = match l.q_lora {
            Some(width) => {
                let down = self.matrix(Role::QLoraDown, width, hidden)?;
                let q = self.linear(x, down);
                (Role::QLoraUp, width, self.norm(q, l.norm, Role::QLoraNorm)?)
            }
            None => (Role::Q, hidden, x),
        };
        // Rows of the query projection: head after head, unrotated then rotated columns.
        let per_head = u64::from(nope + rope_dim);
        let rows = |start: u32, count: u32| {
            let (start, count) = (u64::from(start), u64::from(count));
            Some(RowSlices { start, count, stride: per_head, repeat: heads.into() })
        };
        let parts = [(q_role, rows(0, nope)), (q_role, rows(nope, rope_dim))];
        let weight = self.stacked("attn.q", q_cols, &parts)?;
        let q = self.linear(q_in, weight);
        let q_nope = slice(q, 0, heads * nope);
        let q_pe = slice(q, heads * nope, heads * rope_dim);

        let down = self.matrix(Role::KvLoraDown, l.kv_lora + rope_dim, hidden)?;
        let kv = self.linear(x, down);
        let norm = self.vector(Role::KvLoraNorm, l.kv_lora)?;
        let rope = self.rope_id(&l.rope)?;
        let cache = self.cache(CacheKind::Latent { latent: l.kv_lora, rope: rope_dim });
        self.program.ops.push(Op::StoreLatent(op::StoreLatent {
            latent: slice(kv, 0, l.kv_lora),
            norm,
            eps: l.norm.eps,
            key: slice(kv, l.kv_lora, rope_dim),
            rope,
            cache,
        }));
        let rotated = self.program.buffer(Rows::Tokens, heads * rope_dim);
        self.program.ops.push(Op::RotateStore(op::RotateStore {
            q: q_pe,
            heads,
            head_dim: rope_dim,
            q_norm: None,
            rope: Some(rope),
            position_scale: None,
            store: None,
            out: rotated.buffer,
        }));
        // Absorbed: queries are taken into the latent space, values out of it, a head at a time.
        let (key, value) = self.latent_matrices(l)?;
        let q_latent = self.head_linear(q_nope, heads, key);
        let out = self.program.buffer(Rows::Tokens, heads * l.kv_lora);
        self.program.ops.push(Op::AttendLatent(op::AttendLatent {
            q_latent,
            q_rope: rotated,
            heads,
            cache,
            scale: l.scale,
            out: out.buffer,
        }));
        let y = self.head_linear(out, heads, value);
        let o = self.matrix(Role::O, hidden, heads * l.v_dim)?;
        Ok(self.linear(y, o))
    }

    /// Key and value matrices of all heads from the one stored up-projection.
    fn latent_matrices(&mut self, l: &Latent) -> Result<(WeightId, WeightId), ModelError> {
        if self.tensor_opt(Role::KvLoraKeys).is_some() {
            // Stored apart, the keys' turned already.
            let key = self.matrix(Role::KvLoraKeys, l.heads * l.kv_lora, l.nope)?;
            return Ok((key, self.matrix(Role::KvLoraValues, l.heads * l.v_dim, l.kv_lora)?));
        }
        let t = self.tensor(Role::KvLoraUp)?;
        let stride = u64::from(l.nope + l.v_dim);
        let rows = |start: u32, count: u32| {
            let (start, count) = (u64::from(start), u64::from(count));
            Some(RowSlices { start, count, stride, repeat: l.heads.into() })
        };
        let mut key = self.part(t, rows(0, l.nope), l.kv_lora)?;
        key.transposed = Some(Columns::all(l.kv_lora.into()));
        let value = self.part(t, rows(l.nope, l.v_dim), l.kv_lora)?;
        let mut add = |name: &str, rows, cols, part| {
            self.program.weight(WeightSpec {
                name: format!("layers.{}.attn.{name}", self.layer),
                role: WeightUse::Matmul,
                rows,
                cols,
                parts: vec![part],
                bias: Vec::new(),
                scales: Vec::new(),
            })
        };
        let key = add("k_up", l.heads * l.kv_lora, l.nope, key);
        Ok((key, add("v_up", l.heads * l.v_dim, l.kv_lora, value)))
    }

    pub(super) fn head_linear(&mut self, x: View, heads: u32, weight: WeightId) -> View {
        let rows = self.program.weights[weight.0 as usize].rows;
        let out = self.program.buffer(Rows::Tokens, rows);
        self.program.ops.push(Op::HeadLinear { x, heads, weight, out: out.buffer });
        out
    }

    fn delta_net(&mut self, d: &DeltaNet, x: View) -> Result<View, ModelError> {
        let (qkv, z) = self.delta_qkvz(d)?;
        let ba = self.delta_rates(d)?;
        let [qkv, z, ba] = [qkv, z, ba].map(|w| self.linear(x, w));
        self.delta_rule(d, qkv, z, ba)
    }

    /// Queries, keys and values; gates.
    fn delta_qkvz(&mut self, d: &DeltaNet) -> Result<(WeightId, WeightId), ModelError> {
        let hidden = self.spec.hidden;
        let v_cols = d.v_heads * d.v_dim;
        if self.tensor_opt(Role::DeltaQkv).is_some() {
            let qkv = self.matrix(Role::DeltaQkv, 2 * d.k_heads * d.k_dim + v_cols, hidden)?;
            return Ok((qkv, self.matrix(Role::DeltaZ, v_cols, hidden)?));
        }
        // Rows of one tensor: key head after key head, its q, k, v and z.
        let (k, v) = (u64::from(d.k_dim), u64::from(v_cols / d.k_heads));
        let of = |start, count| {
            let repeat = d.k_heads.into();
            Some(RowSlices { start, count, stride: 2 * k + 2 * v, repeat })
        };
        let role = Role::DeltaIn;
        let parts = [(role, of(0, k)), (role, of(k, k)), (role, of(2 * k, v))];
        let qkv = self.stacked("delta.qkv", hidden, &parts)?;
        Ok((qkv, self.stacked("delta.z", hidden, &[(role, of(2 * k + v, v))])?))
    }

    /// β, then α, of each value head.
    fn delta_rates(&mut self, d: &DeltaNet) -> Result<WeightId, ModelError> {
        let hidden = self.spec.hidden;
        if self.tensor_opt(Role::DeltaBetaAlpha).is_none() {
            for role in [Role::DeltaBeta, Role::DeltaAlpha] {
                let t = self.tensor(role)?;
                let rows = self.part(t, None, hidden)?.weight_rows();
                self.expect_rows(t, rows, d.v_heads)?;
            }
            let parts = [(Role::DeltaBeta, None), (Role::DeltaAlpha, None)];
            return self.stacked("delta.ba", hidden, &parts);
        }
        // Rows of one tensor: key head after key head, the β and the α of its value heads.
        let r = u64::from(d.v_heads / d.k_heads);
        let of = |start| {
            let repeat = d.k_heads.into();
            Some(RowSlices { start, count: r, stride: 2 * r, repeat })
        };
        let role = Role::DeltaBetaAlpha;
        self.stacked("delta.ba", hidden, &[(role, of(0)), (role, of(r))])
    }

    /// From projections to the output; `ba` holds β, then α, of each value head.
    fn delta_rule(
        &mut self,
        d: &DeltaNet,
        qkv: View,
        z: View,
        ba: View,
    ) -> Result<View, ModelError> {
        let hidden = self.spec.hidden;
        let mixed = self.conv(qkv, Role::DeltaConv, d.kernel, Some(Act::Silu))?;
        let (k_cols, v_cols) = (d.k_heads * d.k_dim, d.v_heads * d.v_dim);
        let state = self.cache(CacheKind::State { len: d.v_heads * d.k_dim * d.v_dim });
        let a_log = self.decay(Role::DeltaALog, Role::DecayRates, d.v_heads)?;
        let dt_bias = self.vector(Role::DeltaDtBias, d.v_heads)?;
        let out = self.program.buffer(Rows::Tokens, v_cols);
        self.program.ops.push(Op::DeltaRule(op::DeltaRule {
            q: slice(mixed, 0, k_cols),
            k: slice(mixed, k_cols, k_cols),
            v: slice(mixed, 2 * k_cols, v_cols),
            a: slice(ba, d.v_heads, d.v_heads),
            b: slice(ba, 0, d.v_heads),
            a_log,
            dt_bias,
            k_heads: d.k_heads,
            v_heads: d.v_heads,
            key_head: d.key_head,
            state,
            out: out.buffer,
        }));
        let weight = self.vector(Role::DeltaNorm, d.v_dim)?;
        let gate = (z, GateOrder::AfterNorm);
        let y = self.gated_norm(out, d.norm, weight, d.v_heads, gate);
        let o = self.matrix(Role::DeltaOut, hidden, v_cols)?;
        Ok(self.linear(y, o))
    }

    /// Each of `groups` column groups normalised alone, without weights.
    pub(super) fn unit_norm(&mut self, x: View, norm: Norm, groups: u32, rows: Rows) -> View {
        let out = self.program.buffer(rows, x.cols);
        self.program.ops.push(Op::Norm(op::Norm {
            x,
            adds: Vec::new(),
            sum: None,
            kind: norm.kind,
            weight: None,
            offset: 0.0,
            bias: None,
            groups,
            gate: None,
            eps: norm.eps,
            root: None,
            out: out.buffer,
        }));
        out
    }

    /// A row without its size (and, by [`NormKind::Layer`], its mean), and the size: the root of
    /// the mean square.
    pub(super) fn sized(&mut self, x: View, kind: NormKind) -> (View, View) {
        let (out, root) =
            (self.program.buffer(Rows::Tokens, x.cols), self.program.buffer(Rows::Tokens, 1));
        self.program.ops.push(Op::Norm(op::Norm {
            x,
            adds: Vec::new(),
            sum: None,
            kind,
            weight: None,
            offset: 0.0,
            bias: None,
            groups: 1,
            gate: None,
            eps: 1e-30, // so that a row of zeros stays one
            root: Some(root.buffer),
            out: out.buffer,
        }));
        (out, root)
    }

    fn gated_norm(
        &mut self,
        x: View,
        norm: Norm,
        weight: WeightId,
        groups: u32,
        gate: (View, GateOrder),
    ) -> View {
        let out = self.program.buffer(Rows::Tokens, x.cols);
        self.program.ops.push(Op::Norm(op::Norm {
            x,
            adds: Vec::new(),
            sum: None,
            kind: norm.kind,
            weight: Some(weight),
            offset: norm.offset,
            bias: None,
            groups,
            gate: Some(gate),
            eps: norm.eps,
            root: None,
            out: out.buffer,
        }));
        out
    }

    fn conv(
        &mut self,
        x: View,
        role: Role,
        kernel: u32,
        act: Option<Act>,
    ) -> Result<View, ModelError> {
        let weight = self.taps(role, x.cols, kernel)?;
        let bias = self.bias_vector(role, x.cols)?;
        let state = self.cache(CacheKind::State { len: (kernel - 1) * x.cols });
        let out = self.program.buffer(Rows::Tokens, x.cols);
        let id = out.buffer;
        self.program.ops.push(Op::Conv(op::Conv { x, weight, kernel, bias, act, state, out: id }));
        Ok(out)
    }

    fn mamba(&mut self, m: &Mamba, x: View) -> Result<View, ModelError> {
        let hidden = self.spec.hidden;
        let (inner, bc) = (m.heads * m.head_dim, m.groups * m.state_dim);
        let weight = self.matrix(Role::MambaIn, 2 * inner + 2 * bc + m.heads, hidden)?;
        let rows = [inner, inner, bc, bc, m.heads];
        let runs = std::array::from_fn::<_, 5, _>(|i| (rows[i], m.in_scale * m.part_scales[i]));
        self.scale_rows(weight, &runs);
        let all = self.linear(x, weight);
        let z = slice(all, 0, inner);
        let xbc = slice(all, inner, inner + 2 * bc);
        let dt = slice(all, 2 * inner + 2 * bc, m.heads);
        let mixed = self.conv(xbc, Role::MambaConv, m.kernel, Some(Act::Silu))?;
        let state = self.cache(CacheKind::State { len: inner * m.state_dim });
        let out = self.program.buffer(Rows::Tokens, inner);
        let a_log = self.decay(Role::MambaALog, Role::DecayRates, m.heads)?;
        let skip = self.vector(Role::MambaSkip, m.heads)?;
        let dt_bias = self.vector(Role::MambaDtBias, m.heads)?;
        self.program.ops.push(Op::Scan(op::Scan {
            x: slice(mixed, 0, inner),
            b: slice(mixed, inner, bc),
            c: slice(mixed, inner + bc, bc),
            dt,
            a_log,
            skip,
            dt_bias,
            heads: m.heads,
            groups: m.groups,
            dt_limit: m.dt_limit,
            state,
            out: out.buffer,
        }));
        let y = match m.norm {
            Some((norm, order)) => {
                let weight = self.vector(Role::MambaNorm, inner)?;
                self.gated_norm(out, norm, weight, m.groups, (z, order))
            }
            None => {
                let gate = Expr::Arg(1).apply(Unary::Act(Act::Silu));
                self.map(Expr::Mul(Box::new(Expr::Arg(0)), Box::new(gate)), vec![out, z])
            }
        };
        let o = self.matrix(Role::MambaOut, hidden, inner)?;
        self.scale_rows(o, &[(hidden, m.out_scale)]);
        Ok(self.linear(y, o))
    }

    fn short_conv(&mut self, c: &ShortConv, x: View) -> Result<View, ModelError> {
        let hidden = self.spec.hidden;
        let weight = self.matrix(Role::ConvIn, 3 * hidden, hidden)?;
        let bcx = self.linear(x, weight);
        let part = |i: u32| slice(bcx, i * hidden, hidden);
        let bx = self.map(Expr::mul(0, 1), vec![part(0), part(2)]);
        let y = self.conv(bx, Role::ConvTaps, c.kernel, None)?;
        let y = self.map(Expr::mul(0, 1), vec![part(1), y]);
        let o = self.matrix(Role::ConvOut, hidden, hidden)?;
        Ok(self.linear(y, o))
    }
}

/// A quarter of a head whose halves have pairs of their own: its rows are taken in an order in which the
/// whole has them.
fn apart(a: &Attention) -> Option<u64> {
    let apart = a.rope.as_ref().is_some_and(|rope| rope.axes == Axes::Apart);
    apart.then_some(u64::from(a.head_dim / 4))
}

/// Rows of heads of four quarters of `n`: the first, the third, the second and the last.
fn parted(heads: u32, n: u64) -> impl Iterator<Item = RowSlices> {
    let quarters = (0..u64::from(heads)).flat_map(|head| [0, 2, 1, 3].map(|q| 4 * head + q));
    quarters.map(move |quarter| RowSlices::range(quarter * n, n))
}
