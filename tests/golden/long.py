#!/usr/bin/env python3
"""Record what changes with length: texts of 1 500 tokens through tiny models, by HF transformers.

    python tests/golden/long.py                 # all (needs torch, transformers)
    python tests/golden/long.py gemma3          # some
    python tests/golden/long.py --check gemma3  # recompute, compare, write nothing

Models are those of record.py and families.py with other lengths, thetas and biases; weights are the
same hash. Kept are the log-probability of every next token and a few whole rows (README.md)."""

import argparse
import json
import pathlib
import shutil
import tempfile

import numpy as np

import families
import record
from hashed import Tensors, prompt_ids

HERE = pathlib.Path(__file__).resolve().parent / "long"
TOKENS = 1500
ROWS = (70, 300, 1023, 1024, 1025, 1100, 1300, 1499)
# Smallest distance between the last chosen and the first rejected expert: well above f32's noise.
MARGIN = 1e-4


def qwen2():
    """Plain rotation with biases; those of keys are a hundred times their weights, as Qwen's are."""
    c, rows = record.qwen2()
    for row in rows:
        if row["name"].endswith("k_proj.bias"):
            row["scale"] = 6.0
    return c | {"rope_theta": 10000.0}, rows


def gemma3():
    """Windows longer than a tile and a split of keys; neither theta is a default one."""
    c, rows = record.gemma3()
    return c | {"sliding_window": 300, "rope_theta": 60000.0, "rope_local_base_freq": 3000.0,
                "rope_scaling": {"factor": 4.0, "rope_type": "linear"}}, rows


def gpt_oss():
    """YaRN beyond its original context, a window, sinks and experts of 4 bits."""
    c, rows = record.gpt_oss()
    scaling = c["rope_scaling"] | {"factor": 8.0, "original_max_position_embeddings": 256}
    return c | {"rope_scaling": scaling, "initial_context_length": 256, "sliding_window": 200,
                "max_position_embeddings": 2048}, rows


def deepseek_v3():
    """Latents with YaRN beyond its original context; dense, so that no near tie is chosen."""
    c, rows = record.deepseek_v3()
    scaling = c["rope_scaling"] | {"factor": 5, "original_max_position_embeddings": 400}
    t = Tensors()
    for i in (1, 2):
        t.gated(f"model.layers.{i}.mlp", 64, 112)
    dense = [r for r in rows if ".mlp." not in r["name"] or ".layers.0." in r["name"]] + t.rows
    return c | {"rope_scaling": scaling, "first_k_dense_replace": 3}, dense


def llama4():
    """Chunks of keys, and queries that grow with their position; dense."""
    c, rows = families.llama4()
    t = Tensors()
    for i in range(4):
        t.gated(f"model.layers.{i}.feed_forward", 64, 104)
    dense = [r for r in rows if ".feed_forward." not in r["name"]] + t.rows
    return c | {"interleave_moe_layer_step": 8, "attention_chunk_size": 400,
                "floor_scale": 256}, dense


def qwen3_next():
    """A delta net beside attention; dense."""
    return record.qwen3_next(dense=(0, 1, 2))


def gpt2():
    """Learned positions."""
    c, rows = families.gpt2()
    for row in rows:
        if row["name"] == "wpe.weight":
            row["shape"] = [2048, 64]
    return c | {"n_positions": 2048, "n_ctx": 2048}, rows


LONG = {"qwen2": qwen2, "gemma3": gemma3, "gpt_oss": gpt_oss, "deepseek_v3": deepseek_v3,
        "llama4": llama4, "falcon_h1": record.falcon_h1, "qwen3_next": qwen3_next, "gpt2": gpt2}


def compute(folder, conf, ids):
    """Log-probabilities f32 [TOKENS, vocab], smallest margin of a router."""
    import torch
    model = record.load_model(folder, conf)
    margins = record.router_margins(model)
    with torch.no_grad():
        logits = model(torch.tensor([ids]), use_cache=False).logits[0]
    return torch.log_softmax(logits.double(), -1).numpy(), min(margins, default=1.0)


def build(name, scratch):
    """Everything of one recording."""
    conf, rows = LONG[name]()
    if "max_position_embeddings" in conf:
        conf["max_position_embeddings"] = max(conf["max_position_embeddings"], 2048)
    ids = prompt_ids("long " + name, TOKENS, conf["vocab_size"])
    for attempt in range(40):
        salt = f"#{attempt}" if attempt else ""
        folder = pathlib.Path(scratch) / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        record.write_checkpoint(folder, conf, rows, salt)
        logprobs, margin = compute(folder, conf, ids)
        if margin >= MARGIN:
            return conf, rows, ids, salt, logprobs, margin
    raise SystemExit(f"{name}: no stable salt found")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help="default: all")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    args = parser.parse_args()
    import torch
    import transformers
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for name in args.models or LONG:
        with tempfile.TemporaryDirectory() as scratch:
            conf, rows, ids, salt, logprobs, margin = build(name, scratch)
        of_next = logprobs[np.arange(TOKENS - 1), ids[1:]].astype("<f4")
        whole = logprobs[list(ROWS)].astype("<f4")
        out = HERE / name
        if args.check:
            kept = [np.fromfile(out / f, "<f4") for f in ("next.f32", "rows.f32")]
            worst = max(np.abs(kept[0] - of_next).max(), np.abs(kept[1] - whole.ravel()).max())
            print(f"{name}: largest difference {worst:.3g}")
            continue
        out.mkdir(parents=True, exist_ok=True)
        record.dump(out / "config.json", conf)
        record.write_tensors(out / "tensors.json", salt, rows)
        # (not golden.json, by which other tests find their recordings)
        meta = {"ids": f"prompt:long {name}", "tokens": TOKENS, "vocab": conf["vocab_size"],
                "rows": ROWS, "sigma": round(float(logprobs.std()), 4),
                "router_margin": margin if margin < 1 else None,
                "transformers": transformers.__version__,
                "torch": torch.__version__.split("+")[0]}
        (out / "long.json").write_text(json.dumps(meta) + "\n")
        of_next.tofile(out / "next.f32")
        whole.tofile(out / "rows.f32")
        print(f"{name}: salt {salt!r} {json.dumps(meta)}")


if __name__ == "__main__":
    main()
