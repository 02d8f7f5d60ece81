#!/usr/bin/env python3
"""The vectors in format.patch: the format of q8_0 with its codes backwards, by numpy.

    python tests/toys/format.py        # writes crates/quant/tests/fixtures/toy.bin
"""

import pathlib

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BLOCKS = 16

rng = np.random.default_rng(41)
weights = (rng.normal(size=(BLOCKS, 32)) * 2.0 ** rng.integers(-6, 6, (BLOCKS, 1))).astype("<f4")
weights[0] = 0.0
largest = np.abs(weights).max(1, keepdims=True) / np.float32(127)
with np.errstate(divide="ignore"):
    inverse = np.where(largest > 0, np.float32(1) / largest, np.float32(0)).astype("<f4")
scaled = weights * inverse
codes = (np.sign(scaled) * np.floor(np.abs(scaled) + np.float32(0.5))).astype(np.int8)
scales = largest.astype("<f2")
stored = np.concatenate([scales.view(np.uint8), codes[:, ::-1].view(np.uint8)], 1)
decoded = codes.astype("<f4") * scales.astype("<f4")
count = np.array([BLOCKS], "<u4")
parts = [count, stored, decoded.astype("<f4"), count, weights, stored]
out = ROOT / "crates/quant/tests/fixtures/toy.bin"
out.write_bytes(b"".join(p.tobytes() for p in parts))
