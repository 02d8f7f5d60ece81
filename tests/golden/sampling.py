#!/usr/bin/env python3
"""Record the probabilities with which tokens are to be drawn, by transformers' own processors in f64.

    python tests/golden/sampling.py           # writes sampling.json (needs torch, transformers)

The order is ours (docs/decisions/0007): logit bias, repetition penalty, presence and frequency
penalties, allowed tokens, temperature, top-k, top-p, min-p. Presence and frequency penalties, which
transformers does not have, are OpenAI's formula. At a tie on the border of top-k transformers keeps
all that are equal; we keep the lower ids, and so does what is written here (`exact_top_k`).

Settings with an `order` are chains (docs/samplers.md). Of their stages transformers has typical
sampling, words that may not come and least lengths; top-n-sigma, XTC, dynamic temperature, Mirostat 2
and DRY are written down here from the papers and pull requests that docs/samplers.md names."""

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


USUAL = ["top_n_sigma", "temperature", "top_k", "top_p", "min_p", "typ_p", "xtc"]
LAST = ["top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]
CHAIN = {"order": None, "top_n_sigma": 0.0, "typical_p": 1.0, "xtc": None, "dynatemp": None,
         "mirostat": None, "dry": None, "bad_words": [], "min_tokens": 0}
# A token is an end; a text with a run that repeats.
END = 3
RUNS = [4, 1, 2, 6, 8, 1, 2, 6, 0, 7, 1, 2]


class Border(Exception):
    """Rounding or the order of equal ones would decide."""


def softmax(scores):
    p = np.exp(scores - scores.max())
    return p / p.sum()


def surprise(p):
    return -np.log2(np.where(p > 0, p, 1.0))


def away(values, border):
    """The values, none of which is near the border."""
    values = np.asarray(values)
    if (np.abs(values[np.isfinite(values)] - border) < 1e-5).any():
        raise Border
    return values


def temper(scores, s):
    t = s["temperature"]
    if s["dynatemp"]:
        reach, exponent = s["dynatemp"]
        p = softmax(scores)
        p = p[p > 0]
        if len(p) > 1:
            low, high = max(0.0, t - reach), t + reach
            entropy = -(p * np.log(p)).sum() / np.log(len(p))
            t = low + (high - low) * entropy ** exponent
    return scores / t


def stage(name, scores, ids, s, taken):
    kept = lambda keep: np.where(keep, scores, -np.inf)  # noqa: E731
    if name == "temperature":
        return temper(scores, s)
    if name == "top_k" and s["top_k"]:
        return exact_top_k(scores, s["top_k"])
    if name == "top_p" and s["top_p"] < 1.0:
        if near_border(scores, s["top_p"]):
            raise Border
        out = apply(hf.TopPLogitsWarper(s["top_p"]), ids, scores)
        if (scores[~np.isfinite(out)] == out[np.isfinite(out)].min()).any():
            raise Border
        return out
    if name == "min_p" and s["min_p"] > 0.0:
        away(np.exp(scores - scores.max()) / s["min_p"], 1)
        return apply(hf.MinPLogitsWarper(s["min_p"]), ids, scores)
    if name == "typ_p" and s["typical_p"] < 1.0:
        p = softmax(scores)
        far = np.abs(surprise(p) * np.log(2) - (p * surprise(p)).sum() * np.log(2))
        order = np.argsort(np.where(p > 0, far, np.inf), kind="stable")
        sums = away(np.cumsum(p[order]), s["typical_p"])
        last = int((sums < s["typical_p"]).sum())
        # (Of equal ones on the border transformers keeps all, we those of lower ids.)
        if last + 1 < len(order) and np.abs(far[order[last + 1]] - far[order[last]]) < 1e-9:
            raise Border
        return apply(hf.TypicalLogitsWarper(s["typical_p"]), ids, scores)
    if name == "top_n_sigma" and s["top_n_sigma"] > 0:
        some = scores[np.isfinite(scores)]
        least = some.max() - s["top_n_sigma"] * some.std()
        return kept(away(scores, least) >= least)
    if name == "xtc" and taken:
        p = softmax(scores)
        likely = np.flatnonzero(away(p, s["xtc"][1]) >= s["xtc"][1])
        if len(likely) >= 2:
            last = max(likely, key=lambda i: (-scores[i], i))
            out = scores.copy()
            out[[i for i in likely if i != last]] = -np.inf
            return out
    return scores


def dry(scores, text, multiplier, base, allowed, last_n, breakers):
    """The pull request's two loops."""
    text = text[-last_n:] if last_n else text
    longest = {}
    if text[-1] in breakers:
        return scores
    for i in [i for i, token in enumerate(text[:-1]) if token == text[-1]]:
        after = text[i + 1]
        if after in breakers:
            continue
        run = 1
        while i - run >= 0 and text[i - run] == text[-1 - run] and text[i - run] not in breakers:
            run += 1
        longest[after] = max(run, longest.get(after, 0))
    out = scores.copy()
    for token, run in longest.items():
        if run >= allowed:
            out[token] -= multiplier * base ** (run - allowed)
    return out


def chained(logits, s):
    """As `probabilities`, of a chain."""
    text = RUNS if s["dry"] or s["bad_words"] or s["min_tokens"] else HISTORY
    prompt = PROMPT
    ids = torch.tensor([text])
    scores = logits.copy()
    if s["dry"]:
        scores = dry(scores, text, *s["dry"])
    if s["bad_words"]:
        banned = hf.NoBadWordsLogitsProcessor(s["bad_words"], eos_token_id=torch.tensor([999]))
        scores = apply(banned, ids[:, prompt:], scores)
    if s["min_tokens"]:
        least = hf.MinNewTokensLengthLogitsProcessor(prompt, s["min_tokens"], torch.tensor([END]))
        scores = apply(least, ids, scores)
    if s["mirostat"] is not None:
        scores = temper(scores, s)
        bits = away(surprise(softmax(scores)), s["mirostat"])
        keep = bits <= s["mirostat"]
        keep[scores.argmax()] = True
        return softmax(np.where(keep, scores, -np.inf))
    both = []
    for taken in (False, True):
        now = scores
        for name in s["order"]:
            now = stage(name, now, ids, s, taken and s["xtc"])
        both.append(softmax(now))
    q = s["xtc"][0] if s["xtc"] else 0.0
    return (1 - q) * both[0] + q * both[1]


def chains(name):
    """Settings with an order."""
    if name == "long":
        for more in ({"typical_p": 0.9}, {"typical_p": 0.4, "temperature": 1.5},
                     {"top_n_sigma": 1.5, "temperature": 1.7}, {"xtc": [0.5, 0.05]},
                     {"mirostat": 6.0}, {"order": LAST, "top_k": 50, "temperature": 2.0}):
            yield {"order": USUAL, **more}
        return
    for order in (USUAL, LAST):
        hot = {"order": order, "temperature": 1.6}
        yield {**hot, "top_p": 0.8}
        yield {**hot, "top_k": 5, "min_p": 0.1}
        for typical in (0.95, 0.6, 0.2):
            yield {**hot, "typical_p": typical}
        for sigma in (0.5, 1.0, 2.0):
            yield {**hot, "top_n_sigma": sigma}
        for xtc in ([1.0, 0.1], [0.5, 0.1], [0.3, 0.05], [1.0, 0.4]):
            yield {**hot, "xtc": xtc}
        for dynatemp in ([0.5, 1.0], [1.5, 0.7], [2.0, 3.0]):
            yield {"order": order, "temperature": 1.2, "dynatemp": dynatemp}
        yield {**hot, "top_k": 9, "typical_p": 0.9, "top_p": 0.95, "min_p": 0.02, "xtc": [0.5, 0.1]}
    yield {"order": ["min_p", "temperature"], "temperature": 2.0, "min_p": 0.2, "top_k": 2}
    yield {"order": ["top_k"], "temperature": 2.0, "top_k": 4, "top_p": 0.5}
    for mu in (0.5, 1.7, 3.0, 10.0):
        yield {"order": USUAL, "temperature": 0.9, "mirostat": mu}
    for dry in ([0.8, 1.75, 2, 0, []], [2.0, 1.2, 1, 0, []], [1.5, 1.5, 2, 5, []], [0.8, 1.75, 2, 0, [1]]):
        yield {"order": USUAL, "dry": dry}
    yield {"order": USUAL, "bad_words": [[5], [1, 2, 0], [7, 2, 3], [2, 6]]}
    yield {"order": USUAL, "min_tokens": 10}
    yield {"order": USUAL, "min_tokens": 9}


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
        for changed in [*settings(name), *chains(name)]:
            full = NONE | CHAIN | changed
            key = (name, json.dumps(full, sort_keys=True))
            if key in seen:
                continue
            seen.add(key)
            try:
                p = chained(logits, full) if full["order"] else probabilities(logits, full)
            except Border:
                continue
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
    head = json.dumps({"history": HISTORY, "prompt": PROMPT, "runs": RUNS, "end": END, "rows": logits},
                      separators=(",", ":"))
    OUT.write_text(f'{head[:-1]},\n "settings": [\n{lines}\n ]}}\n')
    print(len(table), "settings", OUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
