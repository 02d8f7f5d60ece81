#!/usr/bin/env python3
"""What int8 arithmetic costs beside what each stored type costs itself, on a small Llama-like model.

    pip install gguf torch
    python3 bench/fidelity.py tokenmill MODEL.gguf --ggml libggml-base.so [--types Q4_K,IQ1_S] [--every 1]

Every matrix but the embedding is decoded and packed anew in one type by llama.cpp's own quantiser (`ggml_quantize_chunk`
of its shared library), with an importance matrix from the paragraphs of the text that are not measured. Two divergences
over the others, full vocabulary, f64: of the type (f32 mode, packed file against its source), of the engine (int8
mode against f32 mode of the packed file). Bound: the larger of a third of the first and 0.001.

Types in blocks of 256 do not fit rows of 576. For them the model is widened to 768 with zeros: hidden channels and
heads that add nothing, norms rescaled; the same function. `wide` rows of 32-column types show what that alone does."""

import argparse, ctypes, json, math, os, subprocess, sys
from concurrent.futures import ThreadPoolExecutor

import gguf
import numpy as np
import torch

NARROW = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 IQ4_NL MXFP4 NVFP4".split()
WIDE = "Q2_K Q3_K Q4_K Q5_K Q6_K IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_XS TQ1_0 TQ2_0".split()
TYPE = gguf.GGMLQuantizationType


class Model:
    """A GGUF file decoded to f32, and its metadata."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.fields = {k: f for k, f in reader.fields.items() if not k.startswith("GGUF.")}
        self.weights = {t.name: gguf.dequantize(t.data, t.tensor_type) for t in reader.tensors}
        self.changed = {}

    def number(self, key):
        return self.changed.get(f"llama.{key}", self.fields[f"llama.{key}"].contents())

    def widened(self, block):
        """The same function with hidden and attention widths that are multiples of `block`."""
        hidden, heads, shared = (self.number(k) for k in
                                 ("embedding_length", "attention.head_count", "attention.head_count_kv"))
        wide, width = -(-hidden // block) * block, hidden // heads
        assert wide % width == 0 and wide // width % (heads // shared) == 0, "no such shape"
        more = wide // width
        factor = math.sqrt(hidden / wide)
        self.changed = {"llama.embedding_length": wide, "llama.attention.head_count": more,
                        "llama.attention.head_count_kv": more * shared // heads,
                        "llama.attention.layer_norm_rms_epsilon": self.number("attention.layer_norm_rms_epsilon") * hidden / wide}
        keys = self.changed["llama.attention.head_count_kv"] * width
        rows = {"attn_q": wide, "attn_k": keys, "attn_v": keys, "attn_output": wide, "ffn_down": wide}
        for name, w in self.weights.items():
            if w.ndim == 1:
                self.weights[name] = np.pad(w * np.float32(factor), (0, wide - hidden))
                continue
            kind = name.split(".")[2] if name.startswith("blk.") else name
            out = rows.get(kind, w.shape[0])
            columns = w.shape[1] if kind == "ffn_down" else wide
            self.weights[name] = np.pad(w, ((0, out - w.shape[0]), (0, columns - w.shape[1])))
        return self

    def write(self, path, pack):
        writer = gguf.GGUFWriter(path, "llama")
        for key, field in self.fields.items():
            if key != "general.architecture":
                sub = field.types[1] if len(field.types) > 1 else None
                writer.add_key_value(key, self.changed.get(key, field.contents()), field.types[0], sub)
        for name, w in self.weights.items():
            data, kind = pack(name, w)
            writer.add_tensor(name, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def half(name, w):
    return (w, None) if w.ndim == 1 else (w.astype(np.float16), TYPE.F16)


def packer(library, kind, importance):
    """Matrices in `kind`, the embedding (also the head) in Q8_0, as llama.cpp keeps it for such a model."""
    f32 = ctypes.POINTER(ctypes.c_float)
    chunk = library.ggml_quantize_chunk
    chunk.restype = ctypes.c_size_t
    chunk.argtypes = [ctypes.c_int, f32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, f32]

    def pack(name, w):
        if w.ndim == 1:
            return w, None
        to = kind if name in importance else TYPE.Q8_0
        block, size = gguf.GGML_QUANT_SIZES[to]
        w = np.ascontiguousarray(w, np.float32)
        out = np.zeros((w.shape[0], w.shape[1] // block * size), np.uint8)
        weigh = importance[name].ctypes.data_as(f32) if name in importance and to != TYPE.Q8_0 else None
        library.ggml_quantize_init(int(to))
        part = -(-w.shape[0] // 16)

        def run(start):
            rows = min(part, w.shape[0] - start)
            chunk(int(to), w.ctypes.data_as(f32), out.ctypes.data, start * w.shape[1], rows, w.shape[1], weigh)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(run, range(0, w.shape[0], part)))
        return out, to

    return pack


@torch.no_grad()
def importance(model, ids, window=512):
    """Mean square of every input of every matrix, by a plain forward pass in f32."""
    heads, shared = model.number("attention.head_count"), model.number("attention.head_count_kv")
    width = model.number("embedding_length") // heads
    epsilon, base = model.number("attention.layer_norm_rms_epsilon"), model.number("rope.freq_base")
    w = {k: torch.from_numpy(np.array(v, np.float32)) for k, v in model.weights.items()}
    sums, seen = {}, 0

    def norm(x, name):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * w[name]

    def product(x, name):
        sums[name] = sums.get(name, 0) + x.double().square().sum(0)
        return x @ w[name].T

    def turned(x, n):
        angle = torch.arange(x.shape[0])[:, None] * base ** (-torch.arange(0, width, 2) / width)
        pairs = torch.view_as_complex(x.view(-1, n, width // 2, 2)) * torch.polar(torch.ones_like(angle), angle)[:, None]
        return torch.view_as_real(pairs).reshape(-1, n, width).transpose(0, 1)

    nll = 0.0
    for start in range(0, len(ids), window):
        piece = torch.tensor(ids[start:start + window])
        x = w["token_embd.weight"][piece]
        for i in range(model.number("block_count")):
            at = lambda kind: f"blk.{i}.{kind}.weight"
            y = norm(x, at("attn_norm"))
            q, k = turned(product(y, at("attn_q")), heads), turned(product(y, at("attn_k")), shared)
            v = product(y, at("attn_v")).view(-1, shared, width).transpose(0, 1)
            k, v = (t.repeat_interleave(heads // shared, 0) for t in (k, v))
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + product(y.transpose(0, 1).reshape(len(piece), -1), at("attn_output"))
            y = norm(x, at("ffn_norm"))
            y = torch.nn.functional.silu(product(y, at("ffn_gate"))) * product(y, at("ffn_up"))
            x = x + product(y, at("ffn_down"))
        logits = norm(x, "output_norm.weight")[:-1] @ w["token_embd.weight"].T
        nll += torch.nn.functional.cross_entropy(logits, piece[1:], reduction="sum").item()
        seen += len(piece)
    print(f"importance from {seen} tokens, perplexity {math.exp(nll / seen):.2f}", file=sys.stderr)
    return {name: (s / seen).float().numpy() for name, s in sums.items()}


def divergence(base, other, vocab):
    """Mean KL(base || other) of two reference files of `eval`, in nats."""
    a, b = (np.memmap(p, np.float32, "r", offset=24).reshape(-1, vocab) for p in (base, other))
    total = 0.0
    for i in range(len(a)):
        x, y = a[i].astype(np.float64), b[i].astype(np.float64)
        x -= x.max() + math.log(np.exp(x - x.max()).sum())
        y -= y.max() + math.log(np.exp(y - y.max()).sum())
        total += max(0.0, float((np.exp(x) * (x - y)).sum()))
    return total / len(a)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("binary")
    a.add_argument("model")
    a.add_argument("--ggml", required=True, help="llama.cpp's libggml-base.so")
    a.add_argument("--text", default=os.path.join(os.path.dirname(__file__), "../tests/golden/text/eval.txt"))
    a.add_argument("--every", type=int, default=12, help="measure every n-th paragraph")
    a.add_argument("--types", help="instead of all; :wide after a type widens it")
    a.add_argument("--work", default="target/fidelity")
    a = a.parse_args()
    os.makedirs(a.work, exist_ok=True)
    at = lambda name: os.path.join(a.work, name)
    paragraphs = open(a.text).read().split("\n\n")
    open(at("text"), "w").write("\n\n".join(paragraphs[::a.every]))
    others = [p for i, p in enumerate(paragraphs) if i % a.every or a.every == 1]
    open(at("others"), "w").write("\n\n".join(others)[:14000])

    def run(*rest):
        return subprocess.run([a.binary, *rest], check=True, capture_output=True, text=True).stdout

    def evaluate(path, mode, base, new):
        if new and os.path.exists(base):
            os.remove(base)
        out = run("eval", path, "-f", at("text"), "--mode", mode, "--kv", "bf16", "--kl-base", base, "--json")
        return json.loads(out.splitlines()[-1])

    ids = [json.loads(line)["id"] for line in run("score", a.model, "-f", at("others"), "--json").splitlines()]
    narrow = importance(Model(a.model), ids)
    library, sources = ctypes.CDLL(os.path.abspath(a.ggml)), {}
    wanted = a.types.split(",") if a.types else NARROW + [f"{t}:wide" for t in ("Q4_0", "Q4_1", "Q8_0")] + WIDE
    heads = "type", "shape", "perplexity", "KL of the type", "KL of int8", "p99", "same first choice", "bound", ""
    print("|", " | ".join(heads), "|\n|---|---|" + "---:|" * 6 + "---|")
    for item in wanted:
        name, wide = item.split(":")[0], item.endswith(":wide") or item in WIDE
        if wide not in sources:
            model = Model(a.model).widened(256) if wide else Model(a.model)
            source, base = at(f"source{wide:d}.gguf"), at(f"source{wide:d}.kl")
            model.write(source, half)
            for key, w in model.weights.items():
                model.weights[key] = w if w.ndim == 1 else w.astype(np.float16).astype(np.float32)
            print(f"source, wide {wide}:", evaluate(source, "f32", base, True), file=sys.stderr)
            sources[wide] = model, base
        model, source = sources[wide]
        columns = {n: w.shape[-1] for n, w in model.weights.items()}
        weigh = {n: np.pad(w, (0, columns[n] - len(w))) for n, w in narrow.items()}
        path, base = at("packed.gguf"), at("packed.kl")
        model.write(path, packer(library, TYPE[name], weigh))
        ppl = evaluate(path, "f32", base, True)["perplexity"]
        int8 = evaluate(path, "int8", base, False)
        own = divergence(source, base, int(model.weights["token_embd.weight"].shape[0]))
        bound = max(own / 3, 0.001)
        mean, verdict = int8["kl_mean"], "" if int8["kl_mean"] <= bound else "above"
        print(f"| {name} | {'wide' if wide else 'as it is'} | {ppl:.4g} | {own:.2e} | {mean:.2e} | {int8['kl_p99']:.1e} "
              f"| {100 * int8['same_top']:.2f} % | {bound:.2e} | {verdict} |", flush=True)


if __name__ == "__main__":
    main()
