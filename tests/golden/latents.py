#!/usr/bin/env python3
"""Record latent attention whose up-projection is quantised, one recording for each family of safetensors.

    python tests/golden/latents.py          # all (needs torch, transformers, safetensors, compressed-tensors, mlx)
    python tests/golden/latents.py --check  # recompute, compare, write nothing

The model is record.py's DeepSeek-V3, dense, with the same hash for all weights but those of `kv_b_proj`. Their pieces are
packed as in crates/files/tests/fixtures/quantized (by the families' packages, or their formulas), and stand in
latents/FAMILY.safetensors; latents/FAMILY.json says so as a config.json does. latents/FAMILY.f32 is what HF transformers
computes with the f32 numbers of the family's formula: its logits at every position."""

import argparse
import json
import pathlib
import sys
import tempfile

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import record
from hashed import Tensors, fnv1a64, prompt_ids, values_of

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "latents"
sys.path.insert(0, str(HERE.parent.parent / "crates/files/tests/fixtures/quantized"))
import generate  # noqa: E402

HEADS, NOPE, VALUE, RANK, LAYERS, TOKENS = 2, 40, 24, 128, 2, 40
UP = "self_attn.kv_b_proj"


def model():
    """Heads that no group of rows or columns ends with; whole blocks of 128 for the family that has such."""
    c, _ = record.deepseek_v3()
    c |= {"num_attention_heads": HEADS, "num_key_value_heads": HEADS, "qk_nope_head_dim": NOPE, "v_head_dim": VALUE,
          "kv_lora_rank": RANK, "num_hidden_layers": LAYERS, "first_k_dense_replace": LAYERS, "vocab_size": 61}
    rope, q_rank = c["qk_rope_head_dim"], c["q_lora_rank"]

    def layer(t, i, p):
        a = f"{p}.self_attn"
        t.norm(f"{p}.input_layernorm", 64)
        t.linear(f"{a}.q_a_proj", q_rank, 64)
        t.norm(f"{a}.q_a_layernorm", q_rank)
        t.linear(f"{a}.q_b_proj", HEADS * (NOPE + rope), q_rank, 1.7)
        t.linear(f"{a}.kv_a_proj_with_mqa", RANK + rope, 64)
        t.norm(f"{a}.kv_a_layernorm", RANK)
        t.linear(f"{a}.o_proj", 64, HEADS * VALUE, 1.5)
        t.norm(f"{p}.post_attention_layernorm", 64)
        t.gated(f"{p}.mlp", 64, 112)
    return c, record.decoder(c, layer)


def numbers(layer):
    """The numbers that are then quantised. [rows, columns]"""
    t = Tensors()
    t.linear(f"model.layers.{layer}.{UP}", HEADS * (NOPE + VALUE), RANK, 1.5)
    return values_of(t.rows[0], "")


def awq(w):
    return generate.awq_pieces(w, 32)


def gptq(w):
    """Columns of a group lie anywhere."""
    return generate.gptq_pieces(w, 4, generate.RNG.permutation(np.arange(RANK) // 32), False, 1)


def mlx(w):
    return generate.mlx_pieces(4, 64, "affine", w)[:2]


def compressed(w):
    return generate.packed(w, 4, 32, False)[:2]


def fp8(w):
    """Blocks of 48 rows and 64 columns, which heads cut."""
    rows, cols = w.shape
    scale = torch.from_numpy(generate.RNG.uniform(0.5, 2, (-(-rows // 48), -(-cols // 64))) / 448).float()
    spread = np.repeat(np.repeat(scale.double().numpy(), 48, 0), 64, 1)[:rows, :cols]
    codes = generate.to_fp8(np.clip(w / spread, -440, 440), torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale_inv": scale}, (codes.double().numpy() * spread).astype(np.float32)


def exl3(w):
    """Words of a trellis are random, so these are other numbers, of about the same size."""
    return generate.trellis_pieces(*w.shape, 4, "mcg", False)[:2]


FAMILIES = {
    "awq": (awq, {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True,
                                          "version": "gemm"}}),
    "gptq": (gptq, {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True,
                                            "sym": False, "checkpoint_format": "gptq"}}),
    "mlx": (mlx, {"quantization": {"group_size": 64, "bits": 4}}),
    "compressed_tensors": (compressed, {"quantization_config": {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {},
        "quantization_status": "compressed", "ignore": [], "kv_cache_scheme": None}}),
    "fp8": (fp8, {"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic",
                                          "weight_block_size": [48, 64]}}),
    "exl3": (exl3, {"quantization_config": {"quant_method": "exl3", "version": "0.0.30", "bits": 4.0, "head_bits": 4,
                                            "calibration": {"rows": 128, "cols": 2048}, "out_scales": "auto"}}),
}


def logits(conf, rows, values, ids):
    """What transformers computes with these numbers. [tokens, vocabulary]"""
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch) / "latents"
        folder.mkdir()
        record.write_checkpoint(folder, conf, rows, "")
        state = load_file(folder / "model.safetensors")
        state |= {name: torch.from_numpy(v.copy()) for name, v in values.items()}
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        with torch.no_grad():
            out = record.load_model(folder, conf)(torch.tensor([ids]), use_cache=False)
    found = out.logits[0].numpy().astype(np.float32)
    assert found.std() > 1, found.std()
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    conf, rows = model()
    ids = prompt_ids("latents", TOKENS, conf["vocab_size"])
    OUT.mkdir(exist_ok=True)
    for family, (make, said) in FAMILIES.items():
        generate.RNG = np.random.default_rng(fnv1a64(family))
        pieces, values = {}, {}
        for i in range(LAYERS):
            stem = f"model.layers.{i}.{UP}"
            made, values[f"{stem}.weight"] = make(numbers(i))
            pieces |= {f"{stem}.{end}": piece.contiguous() for end, piece in made.items()}
        found = logits(conf, rows, values, ids)
        if check:
            kept = load_file(OUT / f"{family}.safetensors")
            assert kept.keys() == pieces.keys(), family
            assert all(torch.equal(kept[k].flatten().view(torch.uint8), v.flatten().view(torch.uint8)) for k, v in pieces.items()), family
            worst = np.abs(np.fromfile(OUT / f"{family}.f32", "<f4").reshape(found.shape) - found).max()
            assert worst < 1e-4, f"{family}: {worst}"
            print(f"{family}: {worst:.1e}")
            continue
        save_file(pieces, OUT / f"{family}.safetensors")
        record.dump(OUT / f"{family}.json", said)
        found.astype("<f4").tofile(OUT / f"{family}.f32")
    if not check:
        record.dump(OUT / "config.json", conf)
        record.write_tensors(OUT / "tensors.json", "", rows)
        (OUT / "latents.json").write_text(json.dumps({"ids": ids, "families": list(FAMILIES)}) + "\n")


if __name__ == "__main__":
    main()
