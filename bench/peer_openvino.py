#!/usr/bin/env python3
"""Prefill and decode speed of OpenVINO GenAI on a GGUF file, in the form of `llama-bench -o jsonl`.

usage: peer_openvino.py MODEL.gguf [-p 512] [-n 128] [-r 5] [-t 2] > peer.jsonl
       tokenmill bench MODEL.gguf -p 512 -n 128 --compare OpenVINO=peer.jsonl
needs: pip install openvino-genai (it reads GGUF itself; run with Q4_0 and Q8_0).

Prompts are random tokens, each repetition's its own so that nothing is shared; the first token's time is
the prompt's, the mean time of the others is decode's. One repetition is thrown away.
"""
import argparse
import json
import os
import statistics

import numpy as np
import openvino as ov
import openvino_genai as genai


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("-p", type=int, default=512)
    p.add_argument("-n", type=int, default=128)
    p.add_argument("-r", type=int, default=5)
    p.add_argument("-t", type=int, default=2)
    p.add_argument("--vocab", type=int, default=40000, help="prompts are of tokens below this")
    a = p.parse_args()
    pipe = genai.LLMPipeline(a.model, "CPU", INFERENCE_NUM_THREADS=a.t)
    config = genai.GenerationConfig(max_new_tokens=a.n + 1, min_new_tokens=a.n + 1, ignore_eos=True, do_sample=False)
    rng = np.random.default_rng(0)
    prompt, decode = [], []
    for _ in range(a.r + 1):
        ids = ov.Tensor(rng.integers(10, a.vocab, (1, a.p), dtype=np.int64))
        perf = pipe.generate(ids, config).perf_metrics
        assert perf.get_num_generated_tokens() == a.n + 1, "answers of another length"
        prompt.append(1000 * a.p / perf.get_ttft().mean)
        decode.append(1000 / perf.get_tpot().mean)
    name = os.path.basename(a.model)
    for n_prompt, n_gen, rates in ((a.p, 0, prompt[1:]), (0, a.n, decode[1:])):
        print(json.dumps({"model_filename": name, "model_type": name, "n_prompt": n_prompt, "n_gen": n_gen,
                          "n_threads": a.t, "avg_ts": statistics.median(rates), "samples_ts": rates,
                          "build_commit": f"openvino-genai {genai.__version__}"}))


if __name__ == "__main__":
    main()
