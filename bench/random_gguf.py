#!/usr/bin/env python3
"""Writes a GGUF file of a real model's shape with random weights in one format, to measure formats without a download.

    python3 bench/random_gguf.py OUT.gguf --format q8_0|q4_0|q4_k|… [--shape 1b|8b|moe|latents] [--layers N]

Shapes are those of random_safetensors.py and, of experts, Qwen3-30B-A3B's, of latents, DeepSeek V2's at a width of 1024, without a tokenizer (`bench` needs none). Bytes of blocks are random but their
scales; one layer is made and repeated. Needs numpy."""

import argparse, struct
import numpy as np

# GGUF's number, weights and bytes of a block, and its f16 scales: where, and what makes weights about 0.02.
FORMATS = {"q8_0": (8, 32, 34, {0: 0.02 / 74}), "q4_0": (2, 32, 18, {0: 0.02 / 4.6}), "q4_k": (12, 256, 144, {0: 1.4e-4, 2: 1e-3}),
           "q5_k": (13, 256, 176, {0: 7e-5, 2: 1e-3}), "q6_k": (14, 256, 210, {208: 1.5e-5}), "q2_k": (10, 256, 84, {80: 2e-3, 82: 2e-3}),
           "q3_k": (11, 256, 110, {108: 5e-4}), "iq2_xxs": (16, 256, 66, {0: 5e-4}), "iq3_s": (21, 256, 110, {0: 2e-4}),
           "iq1_s": (19, 256, 50, {0: 2e-3}), "iq2_xs": (17, 256, 74, {0: 5e-4}), "iq2_s": (22, 256, 82, {0: 5e-4}),
           "iq3_xxs": (18, 256, 98, {0: 2e-4}), "tq1_0": (34, 256, 54, {52: 0.02}), "tq2_0": (35, 256, 66, {64: 0.02}),
           "iq1_m": (29, 256, 56, {}), "iq4_nl": (20, 32, 18, {0: 0.02 / 64}), "iq4_xs": (23, 256, 136, {0: 2e-5})}
# Columns, those of the gate, tokens, columns of a head, heads, heads of keys, layers, experts and how many are chosen.
SHAPES = {"1b": (2048, 8192, 49152, 64, 32, 8, 16, 0, 0), "8b": (4096, 14336, 128256, 128, 32, 8, 32, 0, 0),
          "moe": (2048, 768, 151936, 128, 32, 4, 48, 128, 8), "latents": (1024, 4096, 32000, 128, 16, 1, 27, 0, 0)}
# Of latents: their columns, and those of a rotated key.
LATENT, ROTATED = 512, 64
F32, U32, FLOAT, STRING = 0, 4, 6, 8
rng = np.random.default_rng(0)


def rows(format, n, k, experts=()):
    number, weights, size, scales = FORMATS[format]
    blocks = rng.integers(0, 256, (n * k // weights, size), dtype=np.uint8)
    if experts:  # of which one is made
        blocks = np.tile(blocks, (*experts, 1))
    for at, scale in scales.items():
        blocks[:, at : at + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    if format == "iq1_m":  # a quarter of its scale lies in the high half of each of four bytes
        scale = int(np.float16(2e-3).view(np.uint16))
        for at in range(4):
            blocks[:, 49 + 2 * at] = blocks[:, 49 + 2 * at] & 15 | (scale >> 4 * at & 15) << 4
    return (k, n, *experts), number, blocks.tobytes()


def ones(n):
    return (n,), F32, np.ones(n, "<f4").tobytes()


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def latents(format, h, head, heads):
    """What a layer of latents has for other projections, and the keys that say so."""
    layer = {"attn_q": rows(format, heads * (head + ROTATED), h), "attn_kv_a_mqa": rows(format, LATENT + ROTATED, h),
             "attn_kv_a_norm": ones(LATENT), "attn_k_b": rows(format, LATENT, head, (heads,)), "attn_v_b": rows(format, head, LATENT, (heads,)),
             "attn_output": rows(format, h, heads * head)}
    numbers = {"rope.dimension_count": ROTATED, "attention.kv_lora_rank": LATENT, "attention.key_length": LATENT + ROTATED,
               "attention.value_length": LATENT, "attention.key_length_mla": head + ROTATED, "attention.value_length_mla": head}
    # (No layer has experts; their keys are asked for all the same.)
    numbers |= {"expert_count": 2, "expert_used_count": 1, "expert_feed_forward_length": 64, "expert_shared_count": 1, "expert_gating_func": 1}
    return layer, numbers


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("out")
    args.add_argument("--format", required=True, choices=list(FORMATS))
    args.add_argument("--shape", choices=list(SHAPES), default="1b")
    args.add_argument("--layers", type=int)
    args = args.parse_args()
    h, ff, vocab, head, heads, kv_heads, layers, experts, chosen = SHAPES[args.shape]
    layers = args.layers or layers
    is_latent = args.shape == "latents"
    kv, arch = kv_heads * head, "deepseek2" if is_latent else "qwen3moe" if experts else "llama"
    matrices = {"attn_q": (heads * head, h), "attn_k": (kv, h), "attn_v": (kv, h), "attn_output": (h, heads * head)}
    of, many = ("_exps", ((experts,),)) if experts else ("", ())
    if is_latent:
        matrices = {}
    matrices |= {f"ffn_gate{of}": (ff, h, *many), f"ffn_up{of}": (ff, h, *many), f"ffn_down{of}": (h, ff, *many)}
    layer = {name: rows(args.format, *shape) for name, shape in matrices.items()}
    layer |= {"attn_norm": ones(h), "ffn_norm": ones(h)}
    if experts:
        router = rng.standard_normal((experts, h), dtype="<f4") * 0.02
        layer |= {"attn_q_norm": ones(head), "attn_k_norm": ones(head), "ffn_gate_inp": ((h, experts), F32, router.tobytes())}
    tensors = {"token_embd.weight": rows(args.format, vocab, h), "output_norm.weight": ones(h)}
    if is_latent:
        own, of_latents = latents(args.format, h, head, heads)
        layer |= own
        tensors["output.weight"] = rows(args.format, vocab, h)
    for i in range(layers):
        tensors |= {f"blk.{i}.{name}.weight": tensor for name, tensor in layer.items()}
    numbers = {"block_count": layers, "context_length": 131072, "embedding_length": h, "feed_forward_length": ff,
               "attention.head_count": heads, "attention.head_count_kv": kv_heads, "vocab_size": vocab,
               "rope.dimension_count": head}
    if is_latent:
        numbers |= of_latents | {"leading_dense_block_count": layers}
    if experts:
        numbers |= {"expert_count": experts, "expert_used_count": chosen, "expert_feed_forward_length": ff,
                    "attention.key_length": head, "attention.value_length": head}
    floats = {"rope.freq_base": 500000.0, "attention.layer_norm_rms_epsilon": 1e-5} | ({"expert_weights_scale": 1.0} if is_latent else {})
    values = [text("general.architecture") + struct.pack("<I", STRING) + text(arch)]
    # (Other engines want to be told that there is no vocabulary.)
    values += [text("tokenizer.ggml.model") + struct.pack("<I", STRING) + text("none")]
    values += [text(f"{arch}.{key}") + struct.pack("<II", U32, value) for key, value in numbers.items()]
    values += [text(f"{arch}.{key}") + struct.pack("<If", FLOAT, value) for key, value in floats.items()]
    infos, at = [], 0
    for name, (dims, number, data) in tensors.items():
        infos.append(text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, number, at))
        at += -(-len(data) // 32) * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)) + b"".join(values) + b"".join(infos)
    with open(args.out, "wb") as f:
        f.write(head + b"\0" * (-len(head) % 32))
        for _, _, data in tensors.values():
            f.write(data + b"\0" * (-len(data) % 32))


main()
