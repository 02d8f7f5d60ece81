#!/usr/bin/env python3
"""Prefill and decode speed of llama.cpp through llama-cpp-python, in the form of `llama-bench -o jsonl`.

usage: peer_llama_cpp.py MODEL.gguf [-p 512] [-n 128] [-r 5] [-t 2] [--batch 1,16] > peer.jsonl
       tokenmill bench MODEL.gguf -p 512 -n 128 --batch 1,16 --compare peer.jsonl

One member is not llama-bench's own: "n_seqs", sequences decoded at once.
needs: pip install llama-cpp-python built from source with native flags (CMAKE_ARGS="-DGGML_NATIVE=ON").

Decoding is greedy by argmax over the logits of each sequence; batched decoding uses one KV cache with
as many sequences, as llama-batched-bench does. One repetition is thrown away.
"""
import argparse
import ctypes
import json
import statistics
import time

import llama_cpp.llama_cpp as L
import numpy as np


def batch_of(b, rows):
    """rows: (token, position, sequence, wants logits)."""
    b.n_tokens = len(rows)
    for i, (token, pos, seq, logits) in enumerate(rows):
        b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = token, pos, 1, logits
        b.seq_id[i][0] = seq


def description(model):
    text = ctypes.create_string_buffer(128)
    L.llama_model_desc(model, text, 128)
    return text.value.decode()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("-p", type=int, default=512)
    p.add_argument("-n", type=int, default=128)
    p.add_argument("-r", type=int, default=5)
    p.add_argument("-t", type=int, default=2)
    p.add_argument("--batch", default="1")
    a = p.parse_args()
    batches = [int(x) for x in a.batch.split(",")]
    quiet = L.llama_log_callback(lambda *_: None)  # must outlive the library's use of it
    L.llama_log_set(quiet, ctypes.c_void_p(0))
    L.llama_backend_init()
    model = L.llama_model_load_from_file(a.model.encode(), L.llama_model_default_params())
    c = L.llama_context_default_params()
    c.n_ctx = max(a.p + 8, (a.n + 8) * max(batches))
    c.n_batch, c.n_ubatch, c.n_seq_max = 512, 512, max(batches)
    c.n_threads = c.n_threads_batch = a.t
    c.kv_unified = True
    ctx = L.llama_init_from_model(model, c)
    vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
    rng = np.random.default_rng(0)
    batch = L.llama_batch_init(512, 0, 1)

    def clear():
        L.llama_memory_clear(L.llama_get_memory(ctx), False)

    def decode(rows):
        batch_of(batch, rows)
        if L.llama_decode(ctx, batch) != 0:
            raise SystemExit("llama_decode failed")
        L.llama_synchronize(ctx)

    def report(n_prompt, n_gen, n_seqs, seconds):
        rates = [max(n_prompt, n_gen * n_seqs) / s for s in seconds]
        print(json.dumps({
            "model_filename": a.model, "model_type": description(model), "n_threads": a.t,
            "n_prompt": n_prompt, "n_gen": n_gen, "n_depth": 0, "n_seqs": n_seqs,
            "avg_ns": int(1e9 * statistics.mean(seconds)), "avg_ts": statistics.mean(rates),
            "stddev_ts": statistics.stdev(rates) if len(rates) > 1 else 0.0,
            "samples_ns": [int(1e9 * s) for s in seconds], "samples_ts": rates}), flush=True)

    if a.p:
        tokens, seconds = rng.integers(0, vocab, a.p), []
        for rep in range(a.r + 1):
            clear()
            start = time.perf_counter()
            for at in range(0, a.p, 512):
                part = tokens[at:at + 512]
                decode([(int(x), at + i, 0, at + i == a.p - 1) for i, x in enumerate(part)])
            if rep:
                seconds.append(time.perf_counter() - start)
        report(a.p, 0, 1, seconds)
    for b in batches if a.n else []:
        seconds = []
        for rep in range(a.r + 1):
            clear()
            next_tokens = [int(x) for x in rng.integers(0, vocab, b)]
            start = time.perf_counter()
            for i in range(a.n):
                decode([(t, i, s, True) for s, t in enumerate(next_tokens)])
                for s in range(b):
                    logits = L.llama_get_logits_ith(ctx, s)
                    row = np.ctypeslib.as_array(logits, shape=(vocab,))
                    next_tokens[s] = int(row.argmax())
            if rep:
                seconds.append(time.perf_counter() - start)
        report(0, a.n, b, seconds)


if __name__ == "__main__":
    main()
