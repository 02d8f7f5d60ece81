#!/usr/bin/env python3
"""Record the probabilities with which tokens are to be drawn, by transformers' own processors in f64.

    python tests/golden/sampling.py           # writes sampling.json (needs torch, transformers)

The order is ours (docs/decisions/0007): logit bias, repetition penalty, presence and frequency
penalties, allowed tokens, temperature, top-k, top-p, min-p. Presence and frequency penalties, which
transformers does not have, are OpenAI's formula. At a tie on the border of top-k transformers keeps
all that are equal; we keep the lower ids, and so does what is written here (`exact_top_k`)."""

import itertools
import json
import pathlib

import numpy as np
import torch
from transformers.generation import logits_process as hf

from hashed import fnv1a64, raw

OUT = pathlib.Path(__file__).resolve().parent / "sampling.json"
NONE = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition": 1.0,
        "presence": 0.0, "frequency": 0.0, "bias": [], "allowed": None}
# The first three are the prompt; 5 was generated three times, 2 is in both.
HISTORY, PROMPT = [2, 7, 11, 5, 5, 2, 9, 5, 0], 3


def hashed_row(name, count, spread):
    """Logits from the hash of README.md, in steps that f32 holds."""
    x = (raw("sampling:" + name, count) >> np.uint64(44)).astype(np.float64) / (1 << 20) - 0.5
    return np.round(x * spread * 256) / 256


def rows():
    """name -> f64 logits, exact in f32."""
    plain = hashed_row("plain", 24, 7.0)
    steep = np.round(np.array([9.0 - 0.75 * i for i in range(16)]) * 256) / 256
    tied = np.array([1.0, 3.0, 3.0, -0.5, 3.0, 2.0, 2.0, 2.0, 0.0, 0.0, 1.0, 1.0])
    holes = hashed_row("holes", 20, 6.0)
    holes[[1, 4, 5, 19]] = -np.inf
    return {"plain": plain, "steep": steep[[7, 0, 12, 3, 15, 1, 9, 4, 11, 2, 14, 5, 8, 13, 6, 10]],
            "tied": tied, "holes": holes, "flat": np.zeros(12),
            "long": hashed_row("long", 4500, 14.0)}


def exact_top_k(scores, k):
    """The k best, the lower id first where they are equal."""
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    out = np.full(len(scores), -np.inf)
    out[order[:k]] = scores[order[:k]]
    return out


def near_border(scores, top_p):
    """Whether the sum of the best is so near top_p that rounding decides."""
    p = np.sort(np.exp(scores - scores.max()))[::-1]
    sums = np.cumsum(p) / p.sum()
    return bool((np.abs(sums - top_p) < 1e-5).any())


def tied_border(scores, k):
    """Whether the last kept and the first left out are equal."""
    order = np.sort(scores)[::-1]
    return k < len(order) and order[k - 1] == order[k]


def apply(processor, ids, scores):
    return processor(ids, torch.from_numpy(scores.copy())[None])[0].numpy()


def probabilities(logits, s):
    """f64 probabilities, or None where rounding or the order of equal ones would decide."""
    ids = torch.tensor([HISTORY])
    scores = logits.copy()
    if s["bias"]:
        bias = {(token,): float(add) for token, add in s["bias"]}
        processor = hf.SequenceBiasLogitsProcessor(bias)
        scores = apply(processor, ids, scores)
    if s["repetition"] != 1.0:
        scores = apply(hf.RepetitionPenaltyLogitsProcessor(s["repetition"]), ids, scores)
    for token in set(HISTORY[PROMPT:]):
        scores[token] -= s["presence"] + s["frequency"] * HISTORY[PROMPT:].count(token)
    if s["allowed"] is not None:
        others = [i for i in range(len(scores)) if i not in s["allowed"]]
        scores = apply(hf.SuppressTokensLogitsProcessor(others), ids, scores)
    scores = apply(hf.TemperatureLogitsWarper(s["temperature"]), ids, scores)
    if s["top_k"]:
        exact = exact_top_k(scores, s["top_k"])
        if not tied_border(scores, s["top_k"]):
            theirs = apply(hf.TopKLogitsWarper(s["top_k"]), ids, scores)
            assert (theirs == exact).all()
        scores = exact
    if s["top_p"] < 1.0:
        if near_border(scores, s["top_p"]):
            return None
        before = scores
        scores = apply(hf.TopPLogitsWarper(s["top_p"]), ids, scores)
        kept, left = scores[np.isfinite(scores)].min(), before[~np.isfinite(scores)]
        if (left == kept).any():
            return None
    if s["min_p"] > 0.0:
        p = np.exp(scores - scores.max())
        if (np.abs(p / s["min_p"] - 1) < 1e-5).any():
            return None
        scores = apply(hf.MinPLogitsWarper(s["min_p"]), ids, scores)
    p = np.exp(scores - scores.max())
    return p / p.sum()


def settings(name):
    """Each value alone, pairs of truncations, and mixtures."""
    t = [0.3, 0.7, 1.0, 1.4, 2.5]
    k = [0, 1, 2, 3, 5, 8]
    p = [1.0, 0.95, 0.8, 0.5, 0.2]
    m = [0.0, 0.02, 0.1, 0.4]
    if name == "long":
        for temperature, top_k, top_p, min_p in [
                (1.0, 0, 1.0, 0.0), (0.8, 0, 0.9, 0.0), (1.5, 0, 0.6, 0.0), (1.0, 0, 0.97, 0.01),
                (0.8, 40, 0.95, 0.05), (1.3, 300, 1.0, 0.0), (1.3, 300, 0.9, 0.0),
                (2.0, 4499, 1.0, 0.0), (1.0, 0, 1.0, 0.05), (0.5, 0, 1.0, 0.0)]:
            yield {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        return
    if name in ("plain", "steep"):
        for temperature, top_k, top_p, min_p in itertools.product(t[1:4], k[::2], p[::2], m[::2]):
            yield {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    for key, values in (("temperature", t), ("top_k", k), ("top_p", p), ("min_p", m),
                        ("repetition", [1.3, 2.0, 0.7]), ("presence", [0.5, 1.5, -1.0]),
                        ("frequency", [0.3, 0.8, -0.4])):
        for value in values:
            yield {key: value}
            if key not in ("temperature", "top_k"):
                yield {key: value, "temperature": 1.6, "top_k": 6}
    bias = [[2, 1.5], [5, -2.0], [8, 0.75]]
    yield {"bias": bias}
    yield {"bias": bias, "repetition": 1.5, "presence": 0.4, "frequency": 0.2}
    yield {"bias": [[3, -100.0], [4, 2.0]], "top_p": 0.9, "temperature": 0.8}
    yield {"allowed": [0, 2, 3, 6, 9, 10]}
    yield {"allowed": [2, 5, 9, 11], "repetition": 1.8, "top_k": 3, "temperature": 1.2}
    yield {"repetition": 1.2, "presence": 0.3, "frequency": 0.25, "top_k": 7, "top_p": 0.85,
           "min_p": 0.03, "temperature": 0.9, "bias": bias}


def main():
    table, seen = [], set()
    for name, logits in rows().items():
        for changed in settings(name):
            key = (name, json.dumps(NONE | changed, sort_keys=True))
            if key in seen:
                continue
            seen.add(key)
            p = probabilities(logits, NONE | changed)
            if p is None:
                continue
            entry = {"row": name, **changed}
            if name == "long":
                # Sums over ids that are equal modulo 32, and which tokens can be drawn at all.
                entry["cells"] = [float(f"{p[i::32].sum():.5g}") for i in range(32)]
                bits = "".join("1" if x > 0 else "0" for x in p)
                entry["drawn"] = f"{int(bits[::-1], 2):x}"
            else:
                entry["cells"] = [float(f"{x:.5g}") for x in p]
            table.append(entry)
    logits = {name: [None if np.isinf(x) else float(x) for x in row]
              for name, row in rows().items() if name != "long"}
    logits["long"] = {"seed": fnv1a64("sampling:long"), "count": 4500, "spread": 14.0}
    lines = ",\n".join("  " + json.dumps(entry, separators=(",", ":")) for entry in table)
    head = json.dumps({"history": HISTORY, "prompt": PROMPT, "rows": logits},
                      separators=(",", ":"))
    OUT.write_text(f'{head[:-1]},\n "settings": [\n{lines}\n ]}}\n')
    print(len(table), "settings", OUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
