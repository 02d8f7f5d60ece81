#!/usr/bin/env python3
"""The recording in architecture.patch: transformers' Llama with ReLU, under a name of its own.

    python tests/toys/architecture.py        # writes tests/golden/toy
"""

import json
import pathlib
import sys
import tempfile

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
sys.path.insert(0, str(GOLDEN))

import families
import record
from hashed import decoder


def toy():
    c = families.small("LlamaForCausalLM", "llama", 40, hidden_act="relu", mlp_bias=False)
    return c, decoder(c, families.llama_layer(c))


families.FAMILIES["toy"] = (toy, 16)
with tempfile.TemporaryDirectory() as scratch:
    record.write("toy", *record.record("toy", scratch))
path = GOLDEN / "toy" / "config.json"
record.dump(path, json.loads(path.read_text()) | {"model_type": "toy"})
for unused in ("config.v5.json", "trace.f32"):
    (GOLDEN / "toy" / unused).unlink()
