#!/usr/bin/env python3
"""Teaches a small encoder to see for SmolLM2-135M-Instruct, and writes it as an mmproj file of the LLaVA 1.5 form.

    python3 train.py SmolLM2-135M-Instruct.gguf mmproj-shapes.gguf [--steps 6000] [--minutes 40]

No language model is in the loop: the sixteen rows of a picture are taught to be that model's own embeddings of the words "This
is a picture of a red circle." and seven line ends; what the language model then makes of the rows is its own. Two losses: the
squared distance to these embeddings, and the cross-entropy of the colour's and the shape's row among the embeddings of all
colours and shapes. Pictures come from pictures.py, seeds from a thousand million on; the test's are below. One thread; needs
torch, numpy, pillow and gguf."""

import argparse
import sys
import time

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from pictures import COLOURS, SHAPES, picture
from torch import nn

SIDE, PATCH, WIDTH, HEADS, LAYERS, WIDE, INNER, EPS = 64, 16, 128, 4, 4, 512, 256, 1e-5
ROWS = (SIDE // PATCH) ** 2
MEAN = STD = [0.5] * 3
FIRST_SEED = 1_000_000_000
COLOUR_AT, SHAPE_AT = 6, 7


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH, EPS), nn.LayerNorm(WIDTH, EPS)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, WIDE), nn.Linear(WIDE, WIDTH)

    def forward(self, x):
        y = self.ln1(x)
        split = lambda z: z.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        seen = F.scaled_dot_product_attention(split(self.q(y)), split(self.k(y)), split(self.v(y)))
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))


class Eye(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.places = nn.Parameter(torch.randn(ROWS, WIDTH) * 0.1)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.post = nn.LayerNorm(WIDTH, EPS)
        self.project = nn.ModuleList([nn.Linear(WIDTH, INNER), nn.Linear(INNER, hidden)])

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2) + self.places
        for layer in self.layers:
            x = layer(x)
        x = F.gelu(self.project[0](self.post(x)))
        return self.project[1](x)


class Words:
    """The language model's embeddings, and which a picture's rows are to be."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        table = next(t for t in reader.tensors if t.name == "token_embd.weight")
        table = gguf.quants.dequantize(table.data, table.tensor_type).astype(np.float32)
        texts = reader.fields["tokenizer.ggml.tokens"].contents()
        ids = {text.replace("Ġ", " ").replace("Ċ", "\n"): i for i, text in enumerate(texts)}
        of = lambda words: torch.tensor(table[[ids[word] for word in words]])
        self.hidden = table.shape[1]
        self.colours, self.shapes = of([" " + c for c in COLOURS]), of([" " + s for s in SHAPES])
        words = ["This", " is", " a", " picture", " of", " a", " red", " circle", "."]
        self.rows = of(words + ["\n"] * (ROWS - len(words)))

    def targets(self, colours, shapes):
        rows = self.rows.repeat(len(colours), 1, 1)
        rows[:, COLOUR_AT], rows[:, SHAPE_AT] = self.colours[colours], self.shapes[shapes]
        return rows


def batch(seeds, side=None):
    pixels, colours, shapes = [], [], []
    for seed in seeds:
        image, colour, shape = picture(seed, side)
        pixels.append(np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BICUBIC), dtype=np.float32))
        colours.append(list(COLOURS).index(colour))
        shapes.append(SHAPES.index(shape))
    x = torch.tensor(np.stack(pixels)).permute(0, 3, 1, 2) / 255
    return (x - 0.5) / 0.5, torch.tensor(colours), torch.tensor(shapes)


def nearness(rows, table):
    return -torch.cdist(rows, table) ** 2


def accuracy(eye, words, seeds):
    with torch.no_grad():
        x, colours, shapes = batch(seeds)
        rows = eye(x)
    named = lambda at, table, truth: nearness(rows[:, at], table).argmax(1) == truth
    both = named(COLOUR_AT, words.colours, colours) & named(SHAPE_AT, words.shapes, shapes)
    worst = (rows - words.targets(colours, shapes)).norm(dim=-1).mean().item()
    return both.float().mean().item(), worst


def teach(eye, words, args):
    rates = dict(lr=args.rate, betas=(0.9, 0.98), weight_decay=0.02)
    optimiser = torch.optim.AdamW(eye.parameters(), **rates)
    began, count, steps = time.time(), 64, args.steps
    for step in range(steps):
        spent = max(step / steps, (time.time() - began) / (60 * args.minutes))
        if spent >= 1:
            break
        warm = min(1, (step + 1) / 100)
        optimiser.param_groups[0]["lr"] = rates["lr"] * warm * (0.02 + 0.98 * 0.5 * (1 + np.cos(np.pi * spent)))
        first = FIRST_SEED * (2 if args.resume else 1) + step * count
        x, colours, shapes = batch(range(first, first + count), 64 + step % 5 * 8)
        rows = eye(x)
        apart = ((rows - words.targets(colours, shapes)) ** 2).sum(-1).mean()
        named = F.cross_entropy(nearness(rows[:, COLOUR_AT], words.colours), colours)
        named = named + F.cross_entropy(nearness(rows[:, SHAPE_AT], words.shapes), shapes)
        optimiser.zero_grad()
        (apart + named).backward()
        nn.utils.clip_grad_norm_(eye.parameters(), 1.0)
        optimiser.step()
        if step % 100 == 99:
            right, far = accuracy(eye, words, range(FIRST_SEED - 200, FIRST_SEED))
            losses = f"{step + 1}: distance {apart:.3f}, names {named:.3f}"
            print(f"{losses}; unseen: {right:.1%} named, rows {far:.3f} off, {time.time() - began:.0f} s", flush=True)


NAMES = dict(ln1="ln1", ln2="ln2", q="attn_q", k="attn_k", v="attn_v", out="attn_out", up="ffn_up", down="ffn_down")


def modules(eye):
    """Each with its name in the file."""
    yield "v.patch_embd", eye.patch
    for i, layer in enumerate(eye.layers):
        for ours, theirs in NAMES.items():
            yield f"v.blk.{i}.{theirs}", getattr(layer, ours)
    yield "v.post_ln", eye.post
    for i, linear in zip((0, 2), eye.project):
        yield f"mm.{i}", linear


def resume(eye, path):
    """Takes up the weights of an earlier file."""
    tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32) for t in gguf.GGUFReader(path).tensors}
    with torch.no_grad():
        eye.places.copy_(torch.tensor(tensors["v.position_embd.weight"]))
        for name, module in modules(eye):
            module.weight.copy_(torch.tensor(tensors[f"{name}.weight"]).view_as(module.weight))
            module.bias.copy_(torch.tensor(tensors[f"{name}.bias"]))


def write(eye, words, path):
    out = gguf.GGUFWriter(path, "clip")
    out.add_string("general.type", "mmproj")
    out.add_string("general.name", "shapes and colours for SmolLM2-135M-Instruct, self-trained")
    out.add_bool("clip.has_vision_encoder", True)
    out.add_bool("clip.has_llava_projector", True)
    out.add_string("clip.projector_type", "mlp")
    out.add_bool("clip.use_gelu", True)
    numbers = dict(image_size=SIDE, patch_size=PATCH, embedding_length=WIDTH, feed_forward_length=WIDE, block_count=LAYERS)
    for key, value in {**numbers, "projection_dim": words.hidden, "attention.head_count": HEADS}.items():
        out.add_uint32(f"clip.vision.{key}", value)
    out.add_float32("clip.vision.attention.layer_norm_epsilon", EPS)
    out.add_array("clip.vision.feature_layer", [LAYERS])
    out.add_array("clip.vision.image_mean", MEAN)
    out.add_array("clip.vision.image_std", STD)
    q8 = gguf.GGMLQuantizationType.Q8_0

    def add(name, tensor, form=None):
        data = np.ascontiguousarray(tensor.detach().numpy().astype(form or np.float32))
        if form is None and data.ndim == 2:
            out.add_tensor(name, gguf.quants.quantize(data, q8), raw_dtype=q8)
        else:
            out.add_tensor(name, data)

    add("v.position_embd.weight", eye.places, np.float16)
    for name, module in modules(eye):
        add(f"{name}.weight", module.weight, np.float16 if module.weight.ndim == 4 else None)
        add(f"{name}.bias", module.bias)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("model")
    args.add_argument("out")
    args.add_argument("--steps", type=int, default=6000)
    args.add_argument("--minutes", type=float, default=40)
    args.add_argument("--rate", type=float, default=1e-3)
    args.add_argument("--resume", metavar="MMPROJ", help="an earlier file to go on from, with pictures of other seeds")
    args = args.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    words = Words(args.model)
    eye = Eye(words.hidden)
    print(f"{sum(p.numel() for p in eye.parameters())} weights", flush=True)
    if args.resume:
        resume(eye, args.resume)
    teach(eye, words, args)
    write(eye, words, args.out)
    right, far = accuracy(eye, words, range(10_000, 11_000))
    print(f"1000 fresh pictures: {right:.1%} named, rows {far:.3f} off")
    return 0 if right >= 0.97 else 1


if __name__ == "__main__":
    sys.exit(main())
