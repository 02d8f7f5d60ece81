#!/usr/bin/env python3
"""What does quantising activations cost? Teacher-forced KL divergence on a real model.

The weights of a GGUF file (llama architecture) are decoded to f32 and put into HF's Llama; then the
inputs of its linears, or its K and V, are quantised and decoded again ("fake quantisation") and the
next-token distribution is compared with the f32 run: KL(f32 || variant) in nats, in f64, over the
whole vocabulary, at every position of text/eval.txt in chunks of 512 tokens.

    pip install torch transformers gguf tokenizers
    python tests/golden/study_activations.py MODEL.gguf --stage roles   # each role alone
    python tests/golden/study_activations.py MODEL.gguf --stage all     # everything together
    python tests/golden/study_activations.py MODEL.gguf --stage ideas   # less usual schemes
    python tests/golden/study_activations.py MODEL.gguf --stage cache   # K and V
    python tests/golden/study_activations.py MODEL.gguf --stage final   # the candidates, all tokens
    python tests/golden/study_activations.py MODEL.gguf --stage shares  # how many blocks are outliers

Results and the decision: docs/decisions/0001-activation-scales.md.
"""

import argparse
import json
import pathlib
import sys
import time

import gguf
import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

HERE = pathlib.Path(__file__).resolve().parent
CHUNK = 512
SAMPLED_CHUNKS = (0, 5, 10, 15)  # what the per-role rows read: prose, notes, proofs, code

# ------------------------------------------------------------------------------------- the schemes


def quantise(x, block, steps=127):
    """Round to nearest even at scale amax/steps, per `block` values of a row (0: the whole row)."""
    width = x.shape[-1]
    out = torch.empty_like(x)
    for start in range(0, width, block or width):
        part = x[..., start:start + (block or width)]
        scale = part.abs().amax(-1, keepdim=True) / steps
        scale = torch.where(scale == 0, torch.ones_like(scale), scale)
        out[..., start:start + part.shape[-1]] = (part / scale).round() * scale
    return out


def two_terms(x):
    """Two s8 values for each input: per-row scale, then the same for what is left."""
    first = quantise(x, 0)
    return first + quantise(x - first, 0)


def offset(x, block):
    """u8 with a zero point: the range of each block is cut into 255 steps."""
    parts = x.reshape(*x.shape[:-1], -1, block)
    low = parts.amin(-1, keepdim=True).clamp(max=0)
    high = parts.amax(-1, keepdim=True).clamp(min=0)
    scale = ((high - low) / 255).clamp(min=1e-30)
    zero = (-low / scale).round()
    codes = ((parts / scale).round() + zero).clamp(0, 255)
    return ((codes - zero) * scale).reshape(x.shape)


def without_peaks(x, block):
    """The largest value of each block is kept as it is, the others are quantised without it."""
    parts = x.reshape(*x.shape[:-1], -1, block)
    at = parts.abs().argmax(-1, keepdim=True)
    peak = parts.gather(-1, at)
    rest = quantise(parts.scatter(-1, at, 0.0), 0)
    return rest.scatter(-1, at, peak).reshape(x.shape)


def fine(x, block):
    """Two s8 values for each input that share one scale: 254 q1 + q2, so amax is 32258 steps."""
    return quantise(x, block, 254 * 127)


def outlier_twice(x, block, ratio):
    """Two values only in blocks whose amax is above `ratio` times the median amax of the row."""
    outlier = x.reshape(*x.shape[:-1], -1, block).abs().amax(-1)
    return choose(x, block, outlier > ratio * outlier.median(-1, keepdim=True).values)


def far_twice(x, block, ratio):
    """As outlier_twice, against the mean magnitude of the row, which needs no sorting."""
    outlier = x.reshape(*x.shape[:-1], -1, block).abs().amax(-1)
    return choose(x, block, outlier > ratio * x.abs().mean(-1, keepdim=True))


def choose(x, block, marked):
    """Two values in the marked blocks, one in the others; marked [..., blocks]."""
    return torch.where(marked.repeat_interleave(block, -1), fine(x, block), quantise(x, block))


def rotated(x):
    """s8 per row after an orthonormal Hadamard transform of the row (of q too, so scores keep)."""
    width = x.shape[-1]
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < width:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)], 0)
    matrix = matrix / width ** 0.5
    return quantise(x @ matrix, 0) @ matrix.T


SCHEMES = {
    "rotated": rotated,
    "far 6": lambda x: far_twice(x, 32, 6.0),
    "far 8": lambda x: far_twice(x, 32, 8.0),
    "far 10": lambda x: far_twice(x, 32, 10.0),
    "16": lambda x: quantise(x, 16),
    "offset 32": lambda x: offset(x, 32),
    "peak 32": lambda x: without_peaks(x, 32),
    "outlier 1.5": lambda x: outlier_twice(x, 32, 1.5),
    "outlier 2": lambda x: outlier_twice(x, 32, 2.0),
    "outlier 3": lambda x: outlier_twice(x, 32, 3.0),
    "outlier 4": lambda x: outlier_twice(x, 32, 4.0),
    "row": lambda x: quantise(x, 0),
    "256": lambda x: quantise(x, 256),
    "128": lambda x: quantise(x, 128),
    "64": lambda x: quantise(x, 64),
    "32": lambda x: quantise(x, 32),
    "two": two_terms,
    "fine 32": lambda x: fine(x, 32),
    "bf16": lambda x: x.bfloat16().float(),
}
ROLES = ("qkv", "o", "gate_up", "down", "head")


def everywhere(scheme, **change):
    return {role: scheme for role in ROLES} | change


KV = {"k": "row", "v": "row"}  # one scale for each token and head

# name -> (scheme by role, scheme by "k" and "v", bf16 weights)
ROLE_VARIANTS = {f"{role} {scheme}": ({role: scheme}, {}, False)
                 for role in ROLES for scheme in ("row", "256", "64", "32", "two")}
ALL_VARIANTS = {
    "all row": (everywhere("row"), {}, False),
    "all 256": (everywhere("256"), {}, False),
    "all 128": (everywhere("128"), {}, False),
    "all 64": (everywhere("64"), {}, False),
    "all 32": (everywhere("32"), {}, False),
    "all two": (everywhere("two"), {}, False),
    "256, down 32": (everywhere("256", down="32"), {}, False),
    "256, down 64": (everywhere("256", down="64"), {}, False),
    "256, down 32, o 32": (everywhere("256", down="32", o="32"), {}, False),
    "64, down 32": (everywhere("64", down="32"), {}, False),
    "256, down two": (everywhere("256", down="two"), {}, False),
    "bf16 activations": (everywhere("bf16"), {}, False),
    "bf16 activations and weights": (everywhere("bf16"), {}, True),
    "int8 K": ({}, {"k": "row"}, False),
    "int8 V": ({}, {"v": "row"}, False),
    "int8 K and V": ({}, KV, False),
    "all 32, int8 K and V": (everywhere("32"), KV, False),
    "256, down 32, int8 K and V": (everywhere("256", down="32"), KV, False),
}

IDEAS = {
    "all 32": (everywhere("32"), {}, False),
    "all 16": (everywhere("16"), {}, False),
    "all offset 32": (everywhere("offset 32"), {}, False),
    "all peak 32": (everywhere("peak 32"), {}, False),
    "all outlier 1.5": (everywhere("outlier 1.5"), {}, False),
    "all outlier 2": (everywhere("outlier 2"), {}, False),
    "all outlier 3": (everywhere("outlier 3"), {}, False),
    "all outlier 4": (everywhere("outlier 4"), {}, False),
    "all far 6": (everywhere("far 6"), {}, False),
    "all far 8": (everywhere("far 8"), {}, False),
    "all far 10": (everywhere("far 10"), {}, False),
    "outlier 2, o 32, head fine": (everywhere("outlier 2", o="32", head="fine 32"), {}, False),
    "outlier 3, o 32, head fine": (everywhere("outlier 3", o="32", head="fine 32"), {}, False),
    "32, head fine": (everywhere("32", head="fine 32"), {}, False),
    "32, head and qkv two": (everywhere("32", head="two", qkv="two"), {}, False),
    "two, o and down 32": (everywhere("two", o="32", down="32"), {}, False),
    "two, o 32": (everywhere("two", o="32"), {}, False),
    "offset 32, head fine": (everywhere("offset 32", head="fine 32"), {}, False),
    "peak 32, head fine": (everywhere("peak 32", head="fine 32"), {}, False),
}
CACHE = {
    "K per head": ({}, {"k": "row"}, False),
    "K per 32": ({}, {"k": "32"}, False),
    "K per 16": ({}, {"k": "16"}, False),
    "K Hadamard": ({}, {"k": "rotated"}, False),
    "K offset 32": ({}, {"k": "offset 32"}, False),
    "K bf16": ({}, {"k": "bf16"}, False),
    "V per head": ({}, {"v": "row"}, False),
    "V per 32": ({}, {"v": "32"}, False),
    "K Hadamard, V per head": ({}, {"k": "rotated", "v": "row"}, False),
    "K and V bf16": ({}, {"k": "bf16", "v": "bf16"}, False),
}
FAR = everywhere("far 10", head="fine 32")
FINAL = {
    "32, head fine": (everywhere("32", head="fine 32"), {}, False),
    "far 10": (everywhere("far 10"), {}, False),
    "far 10, head fine": (FAR, {}, False),
    "far 8, head fine": (everywhere("far 8", head="fine 32"), {}, False),
    "fine 32": (everywhere("fine 32"), {}, False),
    "K per 32, V per head": ({}, {"k": "32", "v": "row"}, False),
    "K Hadamard, V per head": ({}, {"k": "rotated", "v": "row"}, False),
    "far 10, head fine, K per 32, V per head": (FAR, {"k": "32", "v": "row"}, False),
    "far 10, head fine, K Hadamard, V per head": (FAR, {"k": "rotated", "v": "row"}, False),
}
STAGES = {"roles": ROLE_VARIANTS, "all": ALL_VARIANTS, "ideas": IDEAS, "cache": CACHE,
          "final": FINAL}

# --------------------------------------------------------------------------------------- the model


def unpermute(rows, heads):
    """llama.cpp stores the rows of q and k pair by pair; HF wants the halves of a head apart."""
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, half, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def load(path):
    """(tokenizer, HF model in f32) from a GGUF file of the llama architecture."""
    reader = gguf.GGUFReader(path)

    def field(name):
        return reader.fields[name].contents()

    config = transformers.LlamaConfig(
        vocab_size=field("llama.vocab_size"), hidden_size=field("llama.embedding_length"),
        intermediate_size=field("llama.feed_forward_length"),
        num_hidden_layers=field("llama.block_count"),
        num_attention_heads=field("llama.attention.head_count"),
        num_key_value_heads=field("llama.attention.head_count_kv"),
        rms_norm_eps=field("llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": field("llama.rope.freq_base")},
        tie_word_embeddings=True, attn_implementation="study")
    names = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
             "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
             "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    state = {}
    for tensor in reader.tensors:
        data = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        parts = tensor.name.split(".")
        if parts[0] == "token_embd":
            name = "model.embed_tokens.weight"
        elif parts[0] == "output_norm":
            name = "model.norm.weight"
        else:
            name = f"model.layers.{parts[1]}.{names[parts[2]]}.weight"
        if parts[-2] == "attn_q":
            data = unpermute(data, config.num_attention_heads)
        if parts[-2] == "attn_k":
            data = unpermute(data, config.num_key_value_heads)
        state[name] = torch.from_numpy(data.copy())
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model = transformers.LlamaForCausalLM(config)
    model.load_state_dict(state)
    merges = [tuple(m.split(" ")) for m in field("tokenizer.ggml.merges")]
    tokens = field("tokenizer.ggml.tokens")
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True),
         pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return tokenizer, model.float().eval()


class Study:
    """The model with hooks that quantise what the current variant says."""

    def __init__(self, model):
        self.model = model
        self.roles = {}
        self.kv = {}
        for name, module in model.named_modules():
            role = role_of(name)
            if role:
                module.register_forward_pre_hook(self.hook(role))
        self.weights = {}

    def hook(self, role):
        def run(module, inputs):
            scheme = self.roles.get(role)
            return (SCHEMES[scheme](inputs[0]),) if scheme else None
        return run

    def attention(self, module, query, key, value, mask, **kwargs):
        if "k" in self.kv:
            key = SCHEMES[self.kv["k"]](key)
        if "v" in self.kv:
            value = SCHEMES[self.kv["v"]](value)
        eager = transformers.models.llama.modeling_llama.eager_attention_forward
        return eager(module, query, key, value, mask, **kwargs)

    def round_weights(self):
        """Round the weights of all linears to bf16; `restore` brings them back."""
        for name, module in self.model.named_modules():
            if role_of(name):
                self.weights[name] = module.weight.data
                module.weight.data = module.weight.data.bfloat16().float()

    def restore(self):
        for name, module in self.model.named_modules():
            if name in self.weights:
                module.weight.data = self.weights[name]
        self.weights = {}

    def logits(self, ids, variant):
        self.roles, self.kv, rounded = variant
        if rounded:
            self.round_weights()
        out = self.model(ids, use_cache=False).logits[0]
        if rounded:
            self.restore()
        return out


def role_of(name):
    """The role of the linear called `name`, or None if it is none."""
    last = name.split(".")[-1]
    return {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "o_proj": "o",
            "gate_proj": "gate_up", "up_proj": "gate_up", "down_proj": "down",
            "lm_head": "head"}.get(last)


def divergence(base, other):
    """(KL per position [tokens] in nats, share of equal best tokens), rows in f64."""
    kl = np.empty(base.shape[0])
    for i in range(0, base.shape[0], 64):
        p = base[i:i + 64].double().log_softmax(-1)
        q = other[i:i + 64].double().log_softmax(-1)
        kl[i:i + 64] = (p.exp() * (p - q)).sum(-1).numpy()
    return kl, (base.argmax(-1) == other.argmax(-1)).numpy()


def shares(study, chunks):
    """Print how many blocks of 32 are outlierss by role, for one token and for six neighbours."""
    found = {}

    def look(role):
        def hook(module, inputs):
            blocks = inputs[0][0].reshape(inputs[0].shape[1], -1, 32).abs()
            peak, mean = blocks.amax(-1), blocks.mean((-2, -1))[:, None]
            middle = peak.median(-1, keepdim=True).values
            for name, level in (("2 median", 2 * middle), ("3 median", 3 * middle),
                                ("6 mean", 6 * mean), ("8 mean", 8 * mean),
                                ("10 mean", 10 * mean)):
                outlier = peak > level
                six = outlier[:len(outlier) // 6 * 6].reshape(-1, 6, outlier.shape[-1]).any(1)
                found.setdefault((role, name), []).append(
                    (outlier.float().mean().item(), six.float().mean().item()))
        return hook

    for name, module in study.model.named_modules():
        # One of the linears that read the same input is enough.
        if role_of(name) and name.split(".")[-1] not in ("k_proj", "v_proj", "up_proj"):
            module.register_forward_pre_hook(look(role_of(name)))
    for number in SAMPLED_CHUNKS:
        study.logits(torch.tensor([chunks[number]]), ({}, {}, False))
    print("| inputs of | outlier above | blocks | union of six tokens |\n|---|---|---:|---:|")
    for (role, name), counts in found.items():
        one, six = 100 * np.mean(counts, 0)
        print(f"| {role} | {name} | {one:.1f} % | {six:.1f} % |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--stage", choices=(*STAGES, "shares"), required=True)
    parser.add_argument("--only", default="", help="variants whose name holds this text")
    parser.add_argument("--json", help="write the results to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)

    study = None
    transformers.AttentionInterface.register(
        "study", lambda *a, **kw: study.attention(*a, **kw))
    transformers.AttentionMaskInterface.register(
        "study", transformers.masking_utils.eager_mask)
    tokenizer, model = load(args.model)
    study = Study(model)
    ids = tokenizer.encode((HERE / "text" / "eval.txt").read_text()).ids
    chunks = [ids[i:i + CHUNK] for i in range(0, len(ids), CHUNK)]
    if args.stage == "shares":
        return shares(study, chunks)
    variants = {k: v for k, v in STAGES[args.stage].items() if args.only in k}
    chosen = range(len(chunks)) if args.stage in ("all", "final") else SAMPLED_CHUNKS
    found = {name: ([], []) for name in variants}
    nll = []
    for number in chosen:
        began = time.time()
        tokens = torch.tensor([chunks[number]])
        base = study.logits(tokens, ({}, {}, False))
        nll.append(torch.nn.functional.cross_entropy(base[:-1], tokens[0, 1:], reduction="none"))
        for name, variant in variants.items():
            kl, same = divergence(base, study.logits(tokens, variant))
            found[name][0].append(kl)
            found[name][1].append(same)
        print(f"chunk {number}: {time.time() - began:.0f} s", file=sys.stderr, flush=True)
    print(f"{len(ids)} tokens, {sum(len(c) for c in map(chunks.__getitem__, chosen))} scored, "
          f"perplexity in f32 {torch.cat(nll).mean().exp():.3f}")
    print("| variant | mean KL | p99 KL | max KL | same best token |\n|---|---:|---:|---:|---:|")
    rows = {}
    for name, (kls, sames) in found.items():
        kl, same = np.concatenate(kls), np.concatenate(sames)
        rows[name] = {"mean": kl.mean(), "p99": np.quantile(kl, 0.99), "max": kl.max(),
                      "same": same.mean(), "tokens": len(kl)}
        print(f"| {name} | {kl.mean():.6f} | {np.quantile(kl, 0.99):.5f} | {kl.max():.4f} "
              f"| {100 * same.mean():.2f} % |")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
