"""Embeddings of 256 texts of 10 to 90 words, in one request, beside torch on the same model: tokens a second.

    python3 bench/suites/encoders.py PROGRAM MODEL... [--texts 256] [--rounds 6] [--no-f32]

Wants torch and transformers. MODEL is a folder that transformers reads (`--copy TO` writes it with weights in bf16, and
ends). Rows take turns; medians without the first round. Nobody else should compute meanwhile.
"""
import argparse
import json
import pathlib
import random
import shutil
import socket
import statistics
import subprocess
import time
import urllib.request

import torch
from transformers import AutoModel, AutoTokenizer

ROOT = pathlib.Path(__file__).parents[2]


def drawn(count):
    draw = random.Random(1)
    words = (ROOT / "tests/golden/text/eval.txt").read_text().split()
    starts = [draw.randrange(len(words) - 100) for _ in range(count)]
    return [" ".join(words[at : at + draw.randrange(10, 91)]) for at in starts]


def with_torch(folder, dtype, texts, compiled=False):
    """Sorted by length, 32 at a time, means over each text: as sentence-transformers does it."""
    model = AutoModel.from_pretrained(folder, dtype=dtype).eval()
    model = torch.compile(model, dynamic=True) if compiled else model
    tokenizer = AutoTokenizer.from_pretrained(folder)
    count = sum(len(ids) for ids in tokenizer(texts)["input_ids"])
    texts = sorted(texts, key=len)

    @torch.inference_mode()
    def run():
        begun = time.perf_counter()
        for at in range(0, len(texts), 32):
            batch = tokenizer(texts[at : at + 32], padding=True, return_tensors="pt")
            rows, mask = model(**batch).last_hidden_state, batch["attention_mask"][..., None]
            ((rows * mask).sum(1) / mask.sum(1)).float()
        return count / (time.perf_counter() - begun)

    return run


class Ours:
    def __init__(self, program, folder, mode, texts):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        port = self.url.rsplit(":", 1)[1]
        command = [program, "serve", folder, "--mode", mode, "--port", port]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        while True:
            try:
                name = json.load(urllib.request.urlopen(f"{self.url}/v1/models"))["data"][0]["id"]
                break
            except OSError:
                if self.process.poll() is not None:
                    raise SystemExit(f"{' '.join(command)}: ended")
                time.sleep(0.1)
        self.body = json.dumps({"model": name, "input": texts, "encoding_format": "base64"}).encode()

    def __call__(self):
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{self.url}/v1/embeddings", self.body, headers)
        begun = time.perf_counter()
        told = json.load(urllib.request.urlopen(request))
        return told["usage"]["prompt_tokens"] / (time.perf_counter() - begun)


def copied(folder, to):
    shutil.copytree(folder, to, dirs_exist_ok=True)
    AutoModel.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(to)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--no-f32", action="store_true")
    parser.add_argument("--copy")
    asked = parser.parse_args()
    if asked.copy:
        return copied(asked.models[0], asked.copy)
    torch.set_num_threads(2)
    texts = drawn(asked.texts)
    for folder in asked.models:
        rows = {
            "torch bf16": with_torch(folder, torch.bfloat16, texts),
            "torch bf16, compiled": with_torch(folder, torch.bfloat16, texts, compiled=True),
        }
        servers = {mode: Ours(asked.program, folder, mode, texts) for mode in ["int8", "bf16"]}
        if not asked.no_f32:
            rows["torch f32"] = with_torch(folder, torch.float32, texts)
            servers["f32"] = Ours(asked.program, folder, "f32", texts)
        rows |= {f"ours {mode}": server for mode, server in servers.items()}
        try:
            found = [[run() for run in rows.values()] for _ in range(asked.rounds)]
        finally:
            for server in servers.values():
                server.process.terminate()
                server.process.wait()
        for name, each in zip(rows, zip(*found)):
            print(f"{folder}: {name}: {statistics.median(each[1:]):.0f} tok/s of", [round(one) for one in each])


if __name__ == "__main__":
    main()
