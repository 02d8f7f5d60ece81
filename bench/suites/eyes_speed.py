#!/usr/bin/env python3
"""Encoders of images beside transformers and llama.cpp: patches a second through towers of real shapes with random weights.

    python3 bench/suites/eyes_speed.py target/release/tokenmill [--llama-server llama-server] [--rounds 5] [--threads 2]
    python3 bench/suites/eyes_speed.py … --tiny       # two layers of each tower, to try the script

`siglip`: SigLIP-so400m (27 layers of 1152, 378 pixels in patches of 14: 729), as LLaVA 1.5's form of mmproj; `qwen`: Qwen2.5-VL's tower
(32 layers of 1280, windows but in every eighth, 448 pixels: 1024 patches, 256 rows). Both as GGUF files beside a language model of one
small layer, the same files for tokenmill and llama.cpp. Their figure is a request over HTTP with an image that was never
seen, less the median of the same request about one that was seen just before: decoding, preprocessing and the encoder, and
what differs of the rows' prefill. transformers computes the tower alone, of pixels that are ready, in f32 and in bf16: the faster counts. By turns,
medians of the rounds. Needs numpy, pillow, gguf, torch and transformers."""

import argparse
import base64
import io
import json
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

import gguf
import numpy as np
from PIL import Image

WIDE = 256  # the language model's width
MARKS = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<image>"]
TEMPLATE = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'image' %}IMAGE{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
)


def siglip(tiny):
    layers = 2 if tiny else 27
    tensors = {"v.patch_embd.weight": (1152, 3, 14, 14), "v.patch_embd.bias": (1152,), "v.position_embd.weight": (729, 1152)}
    for i in range(layers):
        for name in ("ln1", "ln2"):
            tensors |= {f"v.blk.{i}.{name}.weight": (1152,), f"v.blk.{i}.{name}.bias": (1152,)}
        matrices = {f"attn_{part}": (1152, 1152) for part in ("q", "k", "v", "out")} | {"ffn_up": (4304, 1152), "ffn_down": (1152, 4304)}
        for name, shape in matrices.items():
            tensors |= {f"v.blk.{i}.{name}.weight": shape, f"v.blk.{i}.{name}.bias": shape[:1]}
    tensors |= {"v.post_ln.weight": (1152,), "v.post_ln.bias": (1152,)}
    tensors |= {"mm.0.weight": (WIDE, 1152), "mm.0.bias": (WIDE,), "mm.2.weight": (WIDE, WIDE), "mm.2.bias": (WIDE,)}
    numbers = {"image_size": 378, "patch_size": 14, "embedding_length": 1152, "feed_forward_length": 4304,
               "attention.head_count": 16, "block_count": layers, "projection_dim": WIDE}
    more = {"clip.projector_type": "mlp", "clip.use_gelu": True, "clip.has_llava_projector": True, "clip.vision.feature_layer": [layers]}
    return numbers, more, tensors, 378, 729


def qwen(tiny):
    layers = 2 if tiny else 32
    tensors = {"v.patch_embd.weight": (1280, 3, 14, 14), "v.patch_embd.weight.1": (1280, 3, 14, 14)}
    for i in range(layers):
        tensors |= {f"v.blk.{i}.ln1.weight": (1280,), f"v.blk.{i}.ln2.weight": (1280,)}
        matrices = {f"attn_{part}": (1280, 1280) for part in ("q", "k", "v", "out")}
        matrices |= {"ffn_gate": (3420, 1280), "ffn_up": (3420, 1280), "ffn_down": (1280, 3420)}
        for name, shape in matrices.items():
            tensors |= {f"v.blk.{i}.{name}.weight": shape, f"v.blk.{i}.{name}.bias": shape[:1]}
    tensors |= {"v.post_ln.weight": (1280,), "mm.0.weight": (5120, 5120), "mm.0.bias": (5120,)}
    tensors |= {"mm.2.weight": (WIDE, 5120), "mm.2.bias": (WIDE,)}
    numbers = {"image_size": 560, "patch_size": 14, "embedding_length": 1280, "feed_forward_length": 3420, "attention.head_count": 16,
               "block_count": layers, "projection_dim": WIDE, "n_wa_pattern": 2 if tiny else 8, "window_size": 112, "spatial_merge_size": 2}
    more = {"clip.projector_type": "qwen2.5vl_merger", "clip.use_silu": True}
    return numbers, more, tensors, 448, 1024


def write_mmproj(path, tower, weights, rng):
    numbers, more, tensors, _, _ = tower
    out = gguf.GGUFWriter(path, "clip")
    out.add_bool("clip.has_vision_encoder", True)
    for key, value in more.items():
        {bool: out.add_bool, str: out.add_string, list: out.add_array}[type(value)](key, value)
    for key, value in numbers.items():
        out.add_uint32(f"clip.vision.{key}", value)
    out.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    for key in ("image_mean", "image_std"):
        out.add_array(f"clip.vision.{key}", [0.5] * 3)
    for name, shape in tensors.items():
        if len(shape) == 1:
            data = np.full(shape, 1 if ".ln" in name or "_ln" in name else 0, np.float32)
            data = np.zeros(shape, np.float32) if name.endswith("bias") else data
        else:
            data = rng.normal(0, 0.02, shape).astype(np.float16)
        if weights != "f16" and len(shape) == 2:
            form = gguf.GGMLQuantizationType[weights.upper()]
            out.add_tensor(name, gguf.quants.quantize(data.astype(np.float32), form), raw_dtype=form)
        else:
            out.add_tensor(name, data)
    finish(out)


def finish(out):
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def write_text(path, arch, rng):
    """A language model of one layer over bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    spelled = [chr(b) if b in printable else chr(next(others)) for b in range(256)]
    out = gguf.GGUFWriter(path, arch)
    out.add_block_count(1)
    out.add_context_length(4096)
    out.add_embedding_length(WIDE)
    out.add_feed_forward_length(2 * WIDE)
    out.add_head_count(4)
    out.add_head_count_kv(4)
    out.add_rope_dimension_count(WIDE // 4)
    out.add_layer_norm_rms_eps(1e-6)
    if arch == "qwen2vl":
        out.add_array(f"{arch}.rope.dimension_sections", [8, 12, 12, 0])
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("qwen2")
    out.add_token_list(spelled + ["ab"] + MARKS)
    out.add_token_types([1] * 257 + [3] * len(MARKS))
    out.add_token_merges(["a b"])
    out.add_eos_token_id(258)
    image = "<|vision_start|><|image_pad|><|vision_end|>" if arch == "qwen2vl" else "<image>"
    out.add_chat_template(TEMPLATE.replace("IMAGE", image))
    vocab = 257 + len(MARKS)
    shapes = {"token_embd.weight": (vocab, WIDE), "output.weight": (vocab, WIDE), "output_norm.weight": (WIDE,)}
    shapes |= {f"blk.0.{name}.weight": (WIDE,) for name in ("attn_norm", "ffn_norm")}
    shapes |= {f"blk.0.attn_{part}.weight": (WIDE, WIDE) for part in ("q", "k", "v", "output")}
    shapes |= {f"blk.0.attn_{part}.bias": (WIDE,) for part in "qkv" if arch == "qwen2vl"}
    shapes |= {"blk.0.ffn_gate.weight": (2 * WIDE, WIDE), "blk.0.ffn_up.weight": (2 * WIDE, WIDE), "blk.0.ffn_down.weight": (WIDE, 2 * WIDE)}
    for name, shape in shapes.items():
        data = np.ones(shape, np.float32) if "norm" in name else rng.normal(0, 0.02, shape).astype(np.float32)
        out.add_tensor(name, data.astype(np.float16) if len(shape) == 2 else data)
    finish(out)


class Server:
    """tokenmill or llama.cpp behind HTTP."""

    def __init__(self, command, port, log):
        self.base = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(command, stdout=log, stderr=log)
        for _ in range(600):
            if self.process.poll() is not None:
                raise SystemExit(f"left at once: {' '.join(command)}; see {log.name}")
            try:
                if urllib.request.urlopen(f"{self.base}/health").status == 200:
                    return
            except OSError:
                time.sleep(0.2)
        raise SystemExit(f"does not answer: {' '.join(command)}")

    def ask(self, url):
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "?"}]
        body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 1, "temperature": 0}
        request = urllib.request.Request(f"{self.base}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
        began = time.perf_counter()
        usage = json.load(urllib.request.urlopen(request))["usage"]
        return time.perf_counter() - began, usage["prompt_tokens"]

    def image(self, side, seed):
        """Seconds for a new image, less those for the same once more."""
        pixels = np.random.default_rng(seed).integers(0, 256, (side // 14, side // 14, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).resize((side, side)).save(file, "PNG")
        url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
        new, tokens = self.ask(url)
        again, _ = self.ask(url)
        return new - again, tokens

    def stop(self):
        self.process.terminate()
        self.process.wait()


class Torch:
    """transformers' tower, of ready pixels."""

    def __init__(self, name, tiny, threads, dtype):
        import torch
        import transformers as t

        torch.set_num_threads(threads)
        torch.manual_seed(0)
        self.torch, dtype = torch, getattr(torch, dtype)
        if name == "siglip":
            config = t.SiglipVisionConfig(hidden_size=1152, intermediate_size=4304, num_hidden_layers=2 if tiny else 27,
                                          num_attention_heads=16, image_size=378, patch_size=14, vision_use_head=False)
            self.model = t.SiglipVisionModel(config).to(dtype).eval()
            self.inputs = {"pixel_values": torch.randn(1, 3, 378, 378, dtype=dtype)}
        else:
            from transformers.models.qwen2_5_vl import configuration_qwen2_5_vl as c
            from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as m

            config = c.Qwen2_5_VLVisionConfig(depth=2 if tiny else 32, hidden_size=1280, intermediate_size=3420, num_heads=16,
                                              out_hidden_size=WIDE, fullatt_block_indexes=[1] if tiny else [7, 15, 23, 31])
            self.model = m.Qwen2_5_VisionTransformerPretrainedModel._from_config(config, attn_implementation="sdpa").to(dtype).eval()
            patches = torch.randn(1024, 3 * 2 * 14 * 14, dtype=dtype)
            self.inputs = {"hidden_states": patches, "grid_thw": torch.tensor([[1, 32, 32]])}

    def image(self, *_):
        with self.torch.inference_mode():
            began = time.perf_counter()
            self.model(**self.inputs)
            return time.perf_counter() - began, 0

    def stop(self):
        del self.model


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def contestants(name, args, folder):
    text, mmproj = str(folder / "text.gguf"), str(folder / "mmproj.gguf")
    found, port = {}, free_port()
    log = open(folder / "tokenmill.log", "w")
    command = [args.binary, "serve", text, "--port", port, "--ctx", "4k", "--slots", "1", "--threads", str(args.threads)]
    found["tokenmill"] = Server(command, port, log)
    if args.llama_server:
        port, log = free_port(), open(folder / "llama.log", "w")
        command = [args.llama_server, "-m", text, "--mmproj", mmproj, "--port", port, "-c", "4096", "-np", "1"]
        command += ["-t", str(args.threads), "--poll", "0", "--jinja"]
        found["llama.cpp"] = Server(command, port, log)
    if not args.without_transformers:
        for dtype in args.dtypes.split(","):
            found[f"transformers {dtype}"] = Torch(name, args.tiny, args.threads, dtype)
    return found


def measure(name, make, args):
    tower = make(args.tiny)
    _, _, _, side, patches = tower
    with tempfile.TemporaryDirectory() as scratch:
        folder, rng = pathlib.Path(scratch), np.random.default_rng(0)
        write_text(folder / "text.gguf", "qwen2vl" if name == "qwen" else "llama", rng)
        write_mmproj(folder / "mmproj.gguf", tower, args.weights, rng)
        all_of = contestants(name, args, folder)
        try:
            times = {who: [] for who in all_of}
            for turn in range(args.rounds + 1):
                for who, engine in all_of.items():
                    seconds, tokens = engine.image(side, turn)
                    if turn > 0:
                        times[who].append(seconds)
                    elif tokens:
                        print(f"{name}: {who} has {tokens} tokens of prompt", file=sys.stderr)
        finally:
            for engine in all_of.values():
                engine.stop()
    medians = {who: statistics.median(found) for who, found in times.items()}
    own = medians["tokenmill"]
    for who, median in medians.items():
        rounds = ", ".join(f"{s:.3f}" for s in times[who])
        print(f"{name}: {who}: {patches / median:.0f} patches/s ({median:.3f} s; rounds {rounds}); tokenmill {median / own:.2f} ×", flush=True)


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("binary")
    args.add_argument("--llama-server")
    args.add_argument("--without-transformers", action="store_true")
    args.add_argument("--dtypes", default="float32,bfloat16", help="of transformers; where bf16 is computed in f32 it takes five times as long")
    args.add_argument("--rounds", type=int, default=5)
    args.add_argument("--threads", type=int, default=2)
    args.add_argument("--weights", choices=["f16", "bf16", "f32"], default="f16", help="of the files; transformers has f32 and bf16")
    args.add_argument("--tiny", action="store_true")
    args.add_argument("--tower", choices=["siglip", "qwen"])
    args = args.parse_args()
    for name, make in {"siglip": siglip, "qwen": qwen}.items():
        if args.tower in (None, name):
            measure(name, make, args)


main()
