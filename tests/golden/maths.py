#!/usr/bin/env python3
"""The formulas of README.md in numpy and f64, checked against the recorded outputs.

Written from README.md alone and sharing nothing with HF transformers but the weights, so that both
the text and the recordings are tested by it. Needs only numpy:

    python tests/golden/maths.py            # all families; exits with 1 if one is off
    python tests/golden/maths.py llama
"""

import json
import math
import sys

import numpy as np

import record

TOLERANCE = 1e-4
HALVES, PAIRS = "half-split", "interleaved"

# ------------------------------------------------------------------------------- shared definitions


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def softplus(x):
    return np.logaddexp(0, x)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rms_norm(x, w, eps):
    return w * (x / np.sqrt((x * x).mean(-1, keepdims=True) + eps))


def layer_norm(x, w, b, eps):
    x = x - x.mean(-1, keepdims=True)
    return w * x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) + b


def frequencies(theta, dim):
    return theta ** (-2 * np.arange(dim // 2) / dim)


def llama3(f, s):
    """Llama 3.1 scaling of frequencies f."""
    length = 2 * np.pi / f
    low = s["original_max_position_embeddings"] / s["low_freq_factor"]
    high = s["original_max_position_embeddings"] / s["high_freq_factor"]
    mix = ((s["original_max_position_embeddings"] / length - s["low_freq_factor"])
           / (s["high_freq_factor"] - s["low_freq_factor"]))
    between = (1 - mix) * f / s["factor"] + mix * f
    return np.where(length < high, f, np.where(length > low, f / s["factor"], between))


def yarn(theta, dim, s):
    """YaRN frequencies for `dim` rotary dimensions."""
    def turns(r):
        orig = s["original_max_position_embeddings"]
        return dim * math.log(orig / (2 * math.pi * r)) / (2 * math.log(theta))
    low, high = turns(s["beta_fast"]), turns(s["beta_slow"])
    if s.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / ((high - low) or 0.001), 0, 1)
    f = frequencies(theta, dim)
    return f / s["factor"] * ramp + f * (1 - ramp)


def yarn_scale(factor, k):
    return 1.0 if factor <= 1 else 0.1 * k * math.log(factor) + 1


def rotate(x, f, pairing=HALVES, magnitude=1.0):
    """x [tokens, heads, dim]; the first 2 len(f) dims are rotated by position times f."""
    n = len(f)
    angle = np.arange(x.shape[0])[:, None, None] * f
    cos, sin = np.cos(angle) * magnitude, np.sin(angle) * magnitude
    a, b = ((slice(0, n), slice(n, 2 * n)) if pairing == HALVES
            else (slice(0, 2 * n, 2), slice(1, 2 * n, 2)))
    y = x.copy()
    y[..., a] = x[..., a] * cos - x[..., b] * sin
    y[..., b] = x[..., b] * cos + x[..., a] * sin
    return y


def attend(q, k, v, scale, window=None, sinks=None, cap=None, causal=True):
    """q [tokens, H, d], k [tokens, G, d], v [tokens, G, dv]; result [tokens, H * dv]."""
    tokens, heads = q.shape[:2]
    i = np.arange(tokens)
    mask = (i[None] <= i[:, None]) if causal else np.ones((tokens, tokens), bool)
    if window:
        mask = mask & (i[None] > i[:, None] - window)
    out = np.zeros((tokens, heads, v.shape[2]))
    for h in range(heads):
        g = h // (heads // k.shape[1])
        s = q[:, h] @ k[:, g].T * scale
        if cap:
            s = cap * np.tanh(s / cap)
        s = np.where(mask, s, -np.inf)
        if sinks is not None:
            s = np.concatenate([s, np.full((tokens, 1), sinks[h])], 1)
        out[:, h] = softmax(s)[:, :tokens] @ v[:, g]
    return out.reshape(tokens, -1)


def causal_conv(u, w, bias=0.0):
    """Depthwise: u [tokens, channels], w [channels, 1, kernel]; zeros before the start."""
    kernel = w.shape[-1]
    padded = np.concatenate([np.zeros((kernel - 1, u.shape[1])), u])
    return sum(padded[j:j + len(u)] * w[:, 0, j] for j in range(kernel)) + bias


def split(x, *sizes):
    return np.split(x, np.cumsum(sizes)[:-1], -1)


def best(values, k):
    """Indices of the k largest, ties to the lower index."""
    return np.argsort(-values, kind="stable")[:k]


# ---------------------------------------------------------------------------------------- the model


class Model:
    """Config, hashed weights and recorded outputs of one family."""

    def __init__(self, arch):
        folder = record.HERE / arch
        self.c = json.loads((folder / "config.json").read_text())
        self.golden = json.loads((folder / "golden.json").read_text())
        table = json.loads((folder / "tensors.json").read_text())
        self.w = {}
        for row in table["tensors"]:
            data = record.values_of(row, table["salt"])
            self.w[row["name"]] = data if row["dtype"] == "U8" else data.astype(np.float64)
        self.dim = record.head_dim(self.c)
        self.eps = self.c.get("rms_norm_eps", self.c.get("norm_eps", self.c.get("layer_norm_eps")))
        self.offset = 0.0  # what the norms add to their weight

    def __getitem__(self, name):
        return self.w[name]

    def linear(self, name, x):
        y = x @ self.w[name + ".weight"].T
        return y + self.w[name + ".bias"] if name + ".bias" in self.w else y

    def heads(self, name, x, dim=None):
        return self.linear(name, x).reshape(len(x), -1, dim or self.dim)

    def qkv(self, prefix, x):
        return [self.heads(f"{prefix}.{n}_proj", x) for n in "qkv"]

    def norm(self, name, x):
        return rms_norm(x, self.w[name + ".weight"] + self.offset, self.eps)

    def layer_norm(self, name, x):
        return layer_norm(x, self[name + ".weight"], self.w.get(name + ".bias", 0.0), self.eps)

    def mlp(self, prefix, x, act=silu, names=("gate_proj", "up_proj", "down_proj")):
        gate, up, down = (f"{prefix}.{n}" for n in names)
        return self.linear(down, act(self.linear(gate, x)) * self.linear(up, x))

    def softmax_experts(self, prefix, x, names=("gate_proj", "up_proj", "down_proj")):
        """Softmax over all experts, the best k, renormalised; their weighted sum."""
        p = softmax(self.linear(f"{prefix}.gate", x))
        out = np.zeros_like(x)
        for t in range(len(x)):
            chosen = best(p[t], self.c["num_experts_per_tok"])
            weight = p[t][chosen]
            if self.c.get("norm_topk_prob", True):
                weight = weight / weight.sum()
            for e, a in zip(chosen, weight):
                out[t] += a * self.mlp(f"{prefix}.experts.{e}", x[t:t + 1], names=names)[0]
        return out


# ------------------------------------------------------------------------- layers: x -> x by family


def llama_layer(m, i, p, x):
    """llama, mistral, qwen2, qwen3, phi3, granite, mixtral, qwen3_moe."""
    c, kind, a = m.c, m.c["model_type"], f"{p}.self_attn"
    h = m.norm(f"{p}.input_layernorm", x)
    f, magnitude = frequencies(c["rope_theta"], m.dim), 1.0
    if kind == "phi3":
        q, k, v = (y.reshape(len(x), -1, m.dim) for y in split(
            m.linear(f"{a}.qkv_proj", h), c["num_attention_heads"] * m.dim,
            c["num_key_value_heads"] * m.dim, c["num_key_value_heads"] * m.dim))
        f = frequencies(c["rope_theta"], int(m.dim * c["partial_rotary_factor"]))
        f = f / np.array(c["rope_scaling"]["short_factor"])
        orig = c["original_max_position_embeddings"]
        magnitude = math.sqrt(1 + math.log(c["max_position_embeddings"] / orig) / math.log(orig))
    else:
        q, k, v = m.qkv(a, h)
    if kind in ("qwen3", "qwen3_moe"):
        q, k = m.norm(f"{a}.q_norm", q), m.norm(f"{a}.k_norm", k)
    if kind == "llama":
        f = llama3(f, c["rope_scaling"])
    window = c["sliding_window"] if kind in ("mistral", "phi3") else None
    branch = c.get("residual_multiplier", 1.0)
    o = attend(rotate(q, f, magnitude=magnitude), rotate(k, f, magnitude=magnitude), v,
               c.get("attention_multiplier", m.dim**-0.5), window)
    x = x + branch * m.linear(f"{a}.o_proj", o)
    h = m.norm(f"{p}.post_attention_layernorm", x)
    if kind == "phi3":
        gate, up = np.split(m.linear(f"{p}.mlp.gate_up_proj", h), 2, -1)
        y = m.linear(f"{p}.mlp.down_proj", silu(gate) * up)
    elif kind == "mixtral":
        y = m.softmax_experts(f"{p}.block_sparse_moe", h, ("w1", "w3", "w2"))
    elif kind == "qwen3_moe" and i not in c["mlp_only_layers"]:
        y = m.softmax_experts(f"{p}.mlp", h)
    else:
        y = m.mlp(f"{p}.mlp", h)
    return x + branch * y


def olmo2_layer(m, i, p, x):
    a = f"{p}.self_attn"
    f = frequencies(m.c["rope_theta"], m.dim)
    q = m.norm(f"{a}.q_norm", m.linear(f"{a}.q_proj", x)).reshape(len(x), -1, m.dim)
    k = m.norm(f"{a}.k_norm", m.linear(f"{a}.k_proj", x)).reshape(len(x), -1, m.dim)
    o = attend(rotate(q, f), rotate(k, f), m.heads(f"{a}.v_proj", x), m.dim**-0.5)
    x = x + m.norm(f"{p}.post_attention_layernorm", m.linear(f"{a}.o_proj", o))
    return x + m.norm(f"{p}.post_feedforward_layernorm", m.mlp(f"{p}.mlp", x))


def gemma_layer(m, i, p, x):
    c, a = m.c, f"{p}.self_attn"
    q, k, v = m.qkv(a, m.norm(f"{p}.input_layernorm", x))
    f = frequencies(c["rope_theta"], m.dim)
    if c["model_type"] == "gemma2":
        local = i % 2 == 0
    else:
        local = (i + 1) % c["sliding_window_pattern"] != 0
        q, k = m.norm(f"{a}.q_norm", q), m.norm(f"{a}.k_norm", k)
        f = (frequencies(c["rope_local_base_freq"], m.dim) if local
             else f / c["rope_scaling"]["factor"])
    o = attend(rotate(q, f), rotate(k, f), v, c["query_pre_attn_scalar"]**-0.5,
               c["sliding_window"] if local else None, cap=c["attn_logit_softcapping"])
    x = x + m.norm(f"{p}.post_attention_layernorm", m.linear(f"{a}.o_proj", o))
    h = m.mlp(f"{p}.mlp", m.norm(f"{p}.pre_feedforward_layernorm", x), gelu_tanh)
    return x + m.norm(f"{p}.post_feedforward_layernorm", h)


def mxfp4(blocks, scales):
    """[…, groups, 16] bytes and […, groups] scales to […, groups * 32] values."""
    magnitude = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(*scales.shape, 32)
    values = np.where(codes >> 3, -1, 1) * magnitude[codes & 7]
    values = values * 2.0 ** (scales[..., None].astype(int) - 127)
    return values.reshape(*scales.shape[:-1], -1)


def gpt_oss_layer(m, i, p, x):
    c, a, e = m.c, f"{p}.self_attn", f"{p}.mlp.experts"
    f = yarn(c["rope_theta"], m.dim, c["rope_scaling"])
    magnitude = yarn_scale(c["rope_scaling"]["factor"], 1)
    q, k, v = m.qkv(a, m.norm(f"{p}.input_layernorm", x))
    window = c["sliding_window"] if c["layer_types"][i] == "sliding_attention" else None
    o = attend(rotate(q, f, magnitude=magnitude), rotate(k, f, magnitude=magnitude), v,
               m.dim**-0.5, window, m[f"{a}.sinks"])
    x = x + m.linear(f"{a}.o_proj", o)
    h = m.norm(f"{p}.post_attention_layernorm", x)
    gate_up, down = (mxfp4(m[f"{e}.{n}_proj_blocks"], m[f"{e}.{n}_proj_scales"])
                     for n in ("gate_up", "down"))
    logits, limit = m.linear(f"{p}.mlp.router", h), c["swiglu_limit"]
    x = x.copy()
    for t in range(len(x)):
        chosen = best(logits[t], c["num_experts_per_tok"])
        for n, weight in zip(chosen, softmax(logits[t][chosen])):
            y = gate_up[n] @ h[t] + m[f"{e}.gate_up_proj_bias"][n]
            gate, up = np.minimum(y[0::2], limit), np.clip(y[1::2], -limit, limit)
            y = (up + 1) * gate * sigmoid(1.702 * gate)
            x[t] += weight * (down[n] @ y + m[f"{e}.down_proj_bias"][n])
    return x


def deepseek_experts(m, p, x):
    c, experts = m.c, m.c["n_routed_experts"]
    group_of = np.arange(experts) // (experts // c["n_group"])
    scores = sigmoid(m.linear(f"{p}.gate", x))
    biased = scores + m[f"{p}.gate.e_score_correction_bias"]
    out = m.mlp(f"{p}.shared_experts", x)
    for t in range(len(x)):
        group = np.sort(biased[t].reshape(c["n_group"], -1), -1)[:, -2:].sum(-1)
        allowed = np.isin(group_of, best(group, c["topk_group"]))
        chosen = best(np.where(allowed, biased[t], -np.inf), c["num_experts_per_tok"])
        weight = scores[t][chosen]
        weight = weight / (weight.sum() + 1e-20) * c["routed_scaling_factor"]
        for e, a in zip(chosen, weight):
            out[t] += a * m.mlp(f"{p}.experts.{e}", x[t:t + 1])[0]
    return out


def deepseek_layer(m, i, p, x):
    c, s, a = m.c, m.c["rope_scaling"], f"{p}.self_attn"
    nope, rope, width = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    f = yarn(c["rope_theta"], rope, s)
    all_dim = yarn_scale(s["factor"], s["mscale_all_dim"])
    magnitude = yarn_scale(s["factor"], s["mscale"]) / all_dim
    h = m.norm(f"{p}.input_layernorm", x)
    low = rms_norm(m.linear(f"{a}.q_a_proj", h), m[f"{a}.q_a_layernorm.weight"], 1e-6)
    q = m.heads(f"{a}.q_b_proj", low, nope + rope)
    q = np.concatenate([q[..., :nope], rotate(q[..., nope:], f, PAIRS, magnitude)], -1)
    latent, k_rope = split(m.linear(f"{a}.kv_a_proj_with_mqa", h), c["kv_lora_rank"], rope)
    k_rope = rotate(k_rope[:, None], f, PAIRS, magnitude)
    latent = rms_norm(latent, m[f"{a}.kv_a_layernorm.weight"], 1e-6)
    kv = m.heads(f"{a}.kv_b_proj", latent, nope + width)
    k = np.concatenate([kv[..., :nope], np.repeat(k_rope, q.shape[1], 1)], -1)
    o = attend(q, k, kv[..., nope:], (nope + rope)**-0.5 * all_dim**2)
    x = x + m.linear(f"{a}.o_proj", o)
    h = m.norm(f"{p}.post_attention_layernorm", x)
    dense = i < c["first_k_dense_replace"]
    return x + (m.mlp if dense else lambda n, y: deepseek_experts(m, n, y))(f"{p}.mlp", h)


def delta_net(m, p, x):
    """qwen3_next's linear attention."""
    c, tokens = m.c, len(x)
    k_heads, v_heads = c["linear_num_key_heads"], c["linear_num_value_heads"]
    dk, dv = c["linear_key_head_dim"], c["linear_value_head_dim"]
    r = v_heads // k_heads
    mixed = m.linear(f"{p}.in_proj_qkvz", x).reshape(tokens, k_heads, -1)
    q, k, v, z = (y.reshape(tokens, -1) for y in split(mixed, dk, dk, r * dv, r * dv))
    b, a = (y.reshape(tokens, v_heads) for y in split(
        m.linear(f"{p}.in_proj_ba", x).reshape(tokens, k_heads, -1), r, r))
    mixed = silu(causal_conv(np.concatenate([q, k, v], -1), m[f"{p}.conv1d.weight"]))
    q, k, v = split(mixed, k_heads * dk, k_heads * dk, v_heads * dv)
    q, k = (y.reshape(tokens, k_heads, dk) for y in (q, k))
    q, k = (y / np.sqrt((y * y).sum(-1, keepdims=True) + 1e-6) for y in (q, k))
    q, v = q * dk**-0.5, v.reshape(tokens, v_heads, dv)
    beta, decay = sigmoid(b), -np.exp(m[f"{p}.A_log"]) * softplus(a + m[f"{p}.dt_bias"])
    out = np.zeros((tokens, v_heads, dv))
    for h in range(v_heads):
        state = np.zeros((dk, dv))
        for t in range(tokens):
            state *= np.exp(decay[t, h])
            delta = beta[t, h] * (v[t, h] - state.T @ k[t, h // r])
            state += np.outer(k[t, h // r], delta)
            out[t, h] = state.T @ q[t, h // r]
    out = rms_norm(out, m[f"{p}.norm.weight"], m.eps) * silu(z.reshape(out.shape))
    return m.linear(f"{p}.out_proj", out.reshape(tokens, -1))


def qwen3_next_layer(m, i, p, x):
    c, a, d = m.c, f"{p}.self_attn", m.dim
    h = m.norm(f"{p}.input_layernorm", x)
    if (i + 1) % c["full_attention_interval"] == 0:
        f = frequencies(c["rope_theta"], int(d * c["partial_rotary_factor"]))
        q, gate = split(m.heads(f"{a}.q_proj", h, 2 * d), d, d)
        q = rotate(m.norm(f"{a}.q_norm", q), f)
        k = rotate(m.norm(f"{a}.k_norm", m.heads(f"{a}.k_proj", h)), f)
        o = attend(q, k, m.heads(f"{a}.v_proj", h), d**-0.5)
        x = x + m.linear(f"{a}.o_proj", o * sigmoid(gate.reshape(o.shape)))
    else:
        x = x + delta_net(m, f"{p}.linear_attn", h)
    h, p = m.norm(f"{p}.post_attention_layernorm", x), f"{p}.mlp"
    if i in c["mlp_only_layers"]:
        return x + m.mlp(p, h)
    shared = sigmoid(m.linear(f"{p}.shared_expert_gate", h)) * m.mlp(f"{p}.shared_expert", h)
    return x + m.softmax_experts(p, h) + shared


def mamba2(m, p, x):
    """falcon_h1's state space mixer."""
    c, tokens = m.c, len(x)
    width, groups, n = c["mamba_d_ssm"], c["mamba_n_groups"], c["mamba_d_state"]
    heads, dim = c["mamba_n_heads"], c["mamba_d_head"]
    parts = split(m.linear(f"{p}.in_proj", x * c["ssm_in_multiplier"]),
                  width, width, groups * n, groups * n, heads)
    z, u, b, cc, dt = (part * by for part, by in zip(parts, c["ssm_multipliers"]))
    mixed = silu(causal_conv(np.concatenate([u, b, cc], -1), m[f"{p}.conv1d.weight"],
                             m[f"{p}.conv1d.bias"]))
    u, b, cc = split(mixed, width, groups * n, groups * n)
    u = u.reshape(tokens, heads, dim)
    b, cc = (y.reshape(tokens, groups, n).repeat(heads // groups, 1) for y in (b, cc))
    dt = np.clip(softplus(dt + m[f"{p}.dt_bias"]), *c.get("time_step_limit", (0, np.inf)))
    decay = np.exp(-np.exp(m[f"{p}.A_log"]) * dt)
    out, state = np.zeros((tokens, heads, dim)), np.zeros((heads, dim, n))
    for t in range(tokens):
        state = (decay[t][:, None, None] * state
                 + (dt[t][:, None] * u[t])[:, :, None] * b[t][:, None])
        out[t] = (state * cc[t][:, None]).sum(-1) + m[f"{p}.D"][:, None] * u[t]
    out = out.reshape(tokens, width) * silu(z)
    if c["mamba_rms_norm"]:
        grouped = rms_norm(out.reshape(tokens, groups, -1), 1.0, m.eps)
        out = grouped.reshape(tokens, width) * m[f"{p}.norm.weight"]
    return m.linear(f"{p}.out_proj", out)


def falcon_h1_layer(m, i, p, x):
    c, a, ff = m.c, f"{p}.self_attn", f"{p}.feed_forward"
    f = frequencies(c["rope_theta"], m.dim)
    h = m.norm(f"{p}.input_layernorm", x)
    q, k, v = m.qkv(a, h * c["attention_in_multiplier"])
    o = attend(rotate(q, f), rotate(k * c["key_multiplier"], f), v, m.dim**-0.5)
    x = (x + mamba2(m, f"{p}.mamba", h) * c["ssm_out_multiplier"]
         + m.linear(f"{a}.o_proj", o) * c["attention_out_multiplier"])
    h = m.norm(f"{p}.pre_ff_layernorm", x)
    gate = silu(m.linear(f"{ff}.gate_proj", h) * c["mlp_multipliers"][0])
    down = m.linear(f"{ff}.down_proj", m.linear(f"{ff}.up_proj", h) * gate)
    return x + down * c["mlp_multipliers"][1]


def lfm2_layer(m, i, p, x):
    c, a = m.c, f"{p}.self_attn"
    h = m.norm(f"{p}.operator_norm", x)
    if i in c["full_attn_idxs"]:
        f = frequencies(c["rope_theta"], m.dim)
        q, k, v = m.qkv(a, h)
        q, k = (rotate(m.norm(f"{a}.{n}_layernorm", y), f) for n, y in (("q", q), ("k", k)))
        x = x + m.linear(f"{a}.out_proj", attend(q, k, v, m.dim**-0.5))
    else:
        b, gate, u = np.split(m.linear(f"{p}.conv.in_proj", h), 3, -1)
        y = gate * causal_conv(b * u, m[f"{p}.conv.conv.weight"])
        x = x + m.linear(f"{p}.conv.out_proj", y)
    return x + m.mlp(f"{p}.feed_forward", m.norm(f"{p}.ffn_norm", x), names=("w1", "w3", "w2"))


def cohere2_layer(m, i, p, x):
    c, a = m.c, f"{p}.self_attn"
    h = m.layer_norm(f"{p}.input_layernorm", x)
    q, k, v = m.qkv(a, h)
    local = (i + 1) % c["sliding_window_pattern"] != 0
    if local:
        f = frequencies(c["rope_theta"], m.dim)
        q, k = rotate(q, f, PAIRS), rotate(k, f, PAIRS)
    o = attend(q, k, v, m.dim**-0.5, c["sliding_window"] if local else None)
    return x + m.linear(f"{a}.o_proj", o) + m.mlp(f"{p}.mlp", h)


def bert_layer(m, i, p, x):
    a = f"{p}.attention"
    q, k, v = (m.heads(f"{a}.self.{n}", x) for n in ("query", "key", "value"))
    o = attend(q, k, v, m.dim**-0.5, causal=False)
    x = m.layer_norm(f"{a}.output.LayerNorm", x + m.linear(f"{a}.output.dense", o))
    h = m.linear(f"{p}.output.dense", gelu(m.linear(f"{p}.intermediate.dense", x)))
    return m.layer_norm(f"{p}.output.LayerNorm", x + h)


LAYERS = {"olmo2": olmo2_layer, "gemma2": gemma_layer, "gemma3_text": gemma_layer,
          "gpt_oss": gpt_oss_layer, "deepseek_v3": deepseek_layer,
          "qwen3_next": qwen3_next_layer, "falcon_h1": falcon_h1_layer, "lfm2": lfm2_layer,
          "cohere2": cohere2_layer, "bert": bert_layer}

# --------------------------------------------------------------------------------------- the whole


def run(m):
    """(residual stream after the embedding and each layer, final output) of the prompt."""
    c, kind, ids = m.c, m.c["model_type"], m.golden["ids"]
    gemma = kind in ("gemma2", "gemma3_text")
    m.offset = 1.0 if gemma or kind == "qwen3_next" else 0.0
    if kind == "bert":
        e = "embeddings"
        x = (m[f"{e}.word_embeddings.weight"][ids] + m[f"{e}.token_type_embeddings.weight"][0]
             + m[f"{e}.position_embeddings.weight"][:len(ids)])
        x = m.layer_norm(f"{e}.LayerNorm", x)
    else:
        x = m["model.embed_tokens.weight"][ids] * c.get("embedding_multiplier", 1.0)
        x = x * (math.sqrt(c["hidden_size"]) if gemma else 1.0)
    prefix = "encoder.layer" if kind == "bert" else "model.layers"
    stream = [x]
    for i in range(c["num_hidden_layers"]):
        x = LAYERS.get(kind, llama_layer)(m, i, f"{prefix}.{i}", x)
        stream.append(x)
    if kind == "bert":
        return stream, x
    last = {"falcon_h1": "final_layernorm", "lfm2": "embedding_norm"}.get(kind, "norm")
    x = (m.layer_norm if kind == "cohere2" else m.norm)(f"model.{last}", x)
    head = m.w.get("lm_head.weight", m["model.embed_tokens.weight"])
    logits = x @ head.T * c.get("logit_scale", c.get("lm_head_multiplier", 1.0))
    logits = logits / c.get("logits_scaling", 1.0)
    cap = c.get("final_logit_softcapping")
    return stream, cap * np.tanh(logits / cap) if cap else logits


def compare(arch):
    """Largest difference to each recorded file of one family."""
    m = Model(arch)
    stream, out = run(m)
    found = {"trace": np.stack([x[[0, -1]] for x in stream])}
    if m.c["model_type"] == "bert":
        mean = out.mean(0)
        found |= {"hidden": out, "embedding": mean / np.linalg.norm(mean)}
    else:
        found["logits"] = out
    return {name: float(np.abs(value - np.fromfile(record.HERE / arch / f"{name}.f32", "<f4")
                               .reshape(value.shape)).max()) for name, value in found.items()}


def main():
    failed = False
    for arch in sys.argv[1:] or record.FAMILIES:
        found = compare(arch)
        failed |= not all(value < TOLERANCE for value in found.values())
        print(arch, " ".join(f"{name} {value:.1e}" for name, value in found.items()))
    sys.exit(failed)


if __name__ == "__main__":
    main()
