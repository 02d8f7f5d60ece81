#!/usr/bin/env python3
"""Makes `model` from that of score-and-eval-an-empty-text: a Qwen2 whose keys have a bias of 400 in the pair that turns
by a radian a token, and whose queries look along another one; a head that is sure of what it says.

    pip install safetensors torch; make.py
"""
import json, math, os
import torch
from safetensors.torch import load_file, save_file

here = os.path.dirname(os.path.abspath(__file__))
source, out = os.path.join(here, "../score-and-eval-an-empty-text/model"), os.path.join(here, "model")
config = json.load(open(os.path.join(source, "config.json")))
config |= {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
w = load_file(os.path.join(source, "model.safetensors"))
torch.manual_seed(7)
dim = config["hidden_size"] // config["num_attention_heads"]
at = lambda name: f"model.layers.0.self_attn.{name}_proj"
for name in "qkv":
    rows = w[f"{at(name)}.weight"].shape[0]
    w[f"{at(name)}.weight"] = torch.randn(rows, config["hidden_size"]) * 0.4
    w[f"{at(name)}.bias"] = torch.zeros(rows)
bias = w[f"{at('k')}.bias"].view(-1, dim)
bias[:, 0] = bias[:, dim // 2] = 400.0
# Queries see nothing of that pair.
query = w[f"{at('q')}.weight"].view(-1, dim, config["hidden_size"])
query[:, 0] = query[:, dim // 2] = 0.0
w[f"{at('o')}.weight"] = torch.randn_like(w[f"{at('o')}.weight"]) * 2.0
w["lm_head.weight"] = torch.randn_like(w["lm_head.weight"]) * 0.5
w = {k: v.contiguous() for k, v in w.items()}
save_file(w, os.path.join(out, "model.safetensors"), {"format": "pt"})
json.dump(config, open(os.path.join(out, "config.json"), "w"), indent=1)
