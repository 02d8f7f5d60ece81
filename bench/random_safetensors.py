#!/usr/bin/env python3
"""Writes a Hugging Face folder of a real model's shape with random quantised weights, to measure formats without a download.

    python3 bench/random_safetensors.py OUT --family bf16|fp8|gptq|gptq-act|awq|mlx|nf4|exl3 [--shape 1b|8b] [--layers N]

The shape is Llama 3.2 1B's with 49152 tokens or Llama 3.1 8B's, without a tokenizer (`bench` needs none). Weights have
deviation 0.02; one layer is made and repeated. Needs numpy."""

import argparse, json, pathlib, struct
import numpy as np

# Columns, those of the gate, tokens, columns of a head, layers, whether the head is the embedding.
SHAPES = {"1b": (2048, 8192, 49152, 64, 16, True), "8b": (4096, 14336, 128256, 128, 32, False)}
KV_HEADS = 8
CONFIG = {"fp8": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
          "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True},
          "gptq-act": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True},
          "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"},
          "mlx": {"group_size": 64, "bits": 4},
          "exl3": {"quant_method": "exl3", "version": "0.0.30", "bits": 4.0, "head_bits": 16, "codebook": "mul1"},
          "nf4": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}}
NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
                -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
                0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023,
                1.0], "<f4")
NAMES = {np.dtype("<i2"): "I16", np.dtype("<f4"): "F32", np.dtype("<f2"): "F16", np.dtype("<i4"): "I32", np.dtype("<u4"): "U32", np.dtype("u1"): "U8"}
rng = np.random.default_rng(0)


def bf16(x):
    return ((x.astype("<f4").view("<u4") + 0x8000) >> 16).astype("<u2")


def words(shape):
    return rng.integers(0, 1 << 32, shape, dtype=np.uint32)


def fp8(n, k):
    """e4m3 codes of normal numbers: rounded by a table of all positive values."""
    e, m = np.divmod(np.arange(127), 8)
    values = np.where(e == 0, m / 8 * 2.0**-6, (1 + m / 8) * 2.0 ** (e - 7.0))
    x = rng.standard_normal((n, k), dtype=np.float32) * 100
    codes = np.searchsorted((values[1:] + values[:-1]) / 2, np.abs(x).clip(max=448)).astype(np.uint8)
    scales = np.full((n // 128, k // 128), 0.02 / 100, "<f4")
    return {"weight": ("F8_E4M3", codes | (x < 0).astype(np.uint8) << 7), "weight_scale_inv": scales}


def quantised(family, n, k):
    if family == "bf16":
        return {"weight": ("BF16", bf16(rng.standard_normal((n, k), dtype=np.float32) * 0.02))}
    if family == "fp8":
        return fp8(n, k)
    if family in ("gptq", "gptq-act"):
        groups = np.arange(k) // 128
        if family == "gptq-act":  # the same for modules that read the same input
            groups = np.random.default_rng(k).permutation(groups)
        return {"qweight": words((k // 8, n)).view("<i4"), "qzeros": np.full((k // 128, n // 8), 0x77777777, "<i4"),
                "scales": np.full((k // 128, n), 0.02 / 4.6, "<f2"), "g_idx": groups.astype("<i4")}
    if family == "awq":
        return {"qweight": words((k, n // 8)).view("<i4"), "qzeros": words((k // 128, n // 8)).view("<i4"),
                "scales": np.full((k // 128, n), 0.02 / 6.5, "<f2")}
    if family == "mlx":
        return {"weight": words((n, k // 8)), "scales": np.full((n, k // 64), 0.02 / 4.6, "<f2"),
                "biases": np.full((n, k // 64), -0.02 / 4.6 * 7.5, "<f2")}
    if family == "exl3":
        signs = lambda n: rng.choice([-1.0, 1.0], n).astype("<f2")
        return {"trellis": words((k // 16, n // 16, 32)).view("<i2"), "suh": signs(k), "svh": signs(n) * np.float16(0.02),
                "mul1": np.array([0x83DCD12D], "<u4").view("<i4")}
    state = json.dumps({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [n, k]}).encode()
    return {"weight": words((n * k // 8,)).view("u1").reshape(-1, 1), "weight.absmax": np.full(n * k // 64, 0.045, "<f4"),
            "weight.quant_map": NF4, "weight.quant_state.bitsandbytes__nf4": np.frombuffer(state, "u1")}


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("out", type=pathlib.Path)
    args.add_argument("--family", required=True, choices=["bf16", *CONFIG])
    args.add_argument("--shape", choices=list(SHAPES), default="1b")
    args.add_argument("--layers", type=int)
    args = args.parse_args()
    h, ff, vocab, head, layers, tied = SHAPES[args.shape]
    layers = args.layers or layers
    kv = KV_HEADS * head
    modules = {"self_attn.q_proj": (h, h), "self_attn.k_proj": (kv, h), "self_attn.v_proj": (kv, h),
               "self_attn.o_proj": (h, h), "mlp.gate_proj": (ff, h), "mlp.up_proj": (ff, h), "mlp.down_proj": (h, ff)}
    tensors = {"model.embed_tokens.weight": ("BF16", bf16(rng.standard_normal((vocab, h), dtype=np.float32) * 0.02))}
    if not tied:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    norm = ("BF16", bf16(np.ones(h)))
    tensors["model.norm.weight"] = norm
    layer = {f"{m}.{end}": piece for m, (n, k) in modules.items() for end, piece in quantised(args.family, n, k).items()}
    layer |= {"input_layernorm.weight": norm, "post_attention_layernorm.weight": norm}
    for i in range(layers):
        tensors |= {f"model.layers.{i}.{name}": piece for name, piece in layer.items()}
    pieces = {name: t if isinstance(t, tuple) else (NAMES[t.dtype], t) for name, t in tensors.items()}
    header, at = {}, 0
    for name, (kind, data) in pieces.items():
        header[name] = {"dtype": kind, "shape": list(data.shape), "data_offsets": [at, at + data.nbytes]}
        at += data.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    args.out.mkdir(parents=True, exist_ok=True)
    with open(args.out / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, data in pieces.values():
            f.write(np.ascontiguousarray(data).tobytes())
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": h, "intermediate_size": ff,
              "num_hidden_layers": layers, "num_attention_heads": h // head, "num_key_value_heads": KV_HEADS,
              "head_dim": head, "vocab_size": vocab, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "max_position_embeddings": 131072,
              "tie_word_embeddings": tied}
    if args.family == "mlx":
        config["quantization"] = CONFIG["mlx"]
    elif args.family in CONFIG:
        config["quantization_config"] = CONFIG[args.family]
    (args.out / "config.json").write_text(json.dumps(config, indent=1))


main()
