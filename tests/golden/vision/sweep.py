#!/usr/bin/env python3
"""Record what transformers makes of images when one key of an encoder's configuration, or of the model
around it, has another value: sweep.json in the folders of sight.py, as ../sweep.py writes it for language
models (../README.md), of rows.f32.

    python tests/golden/vision/sweep.py [NAME…]     # needs torch, transformers 5.24
"""

import contextlib
import dataclasses
import io
import json
import math
import pathlib
import sys
import tempfile

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import changes  # noqa: E402
import sight  # noqa: E402
import sweep as texts  # noqa: E402
from classes import BASE  # noqa: E402

# Of the model around an encoder: what is no matter of images, with the reason.
OUTER_SKIPPED = {
    "text_config": "the language model: its own sweep", "vision_config": "below", "audio_config": "sound",
    "tie_word_embeddings": "the language model's head",
}
# Further values of keys that only encoders have.
changes.VALUES |= {
    "vision_feature_layer": [-1, -2, 1, 0, [-1, -2]], "fullatt_block_indexes": [[0], [], [0, 1, 2]],
    "vision_feature_select_strategy": ["default", "full", "cls"], "window_size": [8, 32],
    "deepstack_visual_indexes": [[0, 1], [2], []], "norm_type": ["layer_norm", "rms_norm"],
    "image_size": [8, 64, [16, 16]], "patch_size": [8, [4, 4]], "projector_hidden_act": changes.ACTIVATIONS,
    "downsample_ratio": [1.0, 0.25], "pixel_shuffle_ratio": [1.0, 0.25], "mm_tokens_per_image": [4, 64],
    "vision_aspect_ratio": ["anyres_max_9", "anyres", "square"], "merge_kernel_size": [[1, 1], [2, 1]],
    "spatial_merge_size": [1, 4], "temporal_patch_size": [1], "scale_factor": [1, 2],
    "pooling_kernel_size": [1, 2], "image_grid_pinpoints": [[[16, 16]]], "num_channels": [4], "in_channels": [1],
    "in_chans": [1], "projection_hidden_size": [80], "hidden_activation": changes.ACTIVATIONS,
    "image_seq_length": [4], "max_position_embeddings": [7], "use_clipped_linears": [True],
}


class Family(texts.Family):
    """A recorded model that sees."""

    def __init__(self, name, scratch):
        self.name, self.ids = name, []
        read = lambda file: json.loads((HERE / name / file).read_text())  # noqa: E731
        self.conf, self.newer, table, golden = map(read, ("config.json", "config.v5.json", "tensors.json",
                                                          "golden.json"))
        made = {f.__name__: f for f in sight.FAMILIES}[name]
        self.images = made()[2]
        self.folder = pathlib.Path(scratch) / name
        self.folder.mkdir(parents=True)
        sight.write_model(self.folder, self.conf, table["tensors"], table["salt"])
        model = sight.load(self.folder, name)
        self.kind, self.state, self.full = type(model), model.state_dict(), model.config.to_dict()
        self.fields = {f.name for f in dataclasses.fields(type(model.config))} - BASE
        self.half = 0
        self.base = self.outputs(model)
        kept = np.fromfile(HERE / name / "rows.f32", "<f4").reshape(self.base.shape)
        assert np.abs(kept - self.base).max() < 1e-5, name

    def outputs(self, model):
        import torch
        try:
            seen = sight.seen_by(self.name, model.config.to_dict(), self.images)
        except Exception as error:  # (No such image could be made.)
            raise RuntimeError("images") from error
        with torch.no_grad():
            if self.name in ("clip", "siglip"):
                found = model.get_image_features(**seen).pooler_output
                self.found = torch.nn.functional.normalize(found, dim=1).numpy()
            else:
                self.found = np.concatenate(sight.rows_of(model, self.name, seen))
        return self.found

    def changed_model(self, conf):
        """As there; of Kimi, whose loader makes tensors others by the number of heads, through that."""
        if self.name != "kimi_k25":
            return super().changed_model(conf)
        import transformers
        (self.folder / "config.json").write_text(json.dumps(conf))
        same = transformers.AutoConfig.from_pretrained(self.folder).to_dict() == self.full
        return None if same else self.loaded()

    def verdict(self, conf, place):
        """As for texts; of an image that becomes more or fewer rows its last number, then those at the first
        places that it has."""
        result, difference = super().verdict(conf, place)
        found = self.found
        if result != "crash NaN" or found.shape[1] != self.base.shape[1] or not np.isfinite(found).all():
            return result, difference
        r, c = found.shape[0] - 1, found.shape[1] - 1
        first = next((i for i, at in enumerate(place) if at[0] > r), len(place))
        numbers = [[r, c, round(float(found[r, c]), 4)]]
        return numbers + [round(float(found[a, b]), 4) for a, b in place[:first]], math.inf

    def keys(self, conf):
        """Keys of the encoder and of the model around it, those that are written first."""
        inner = [f"vision_config.{k}" for k in changes.keys_of(conf["vision_config"])]
        inner += [f"vision_config.{k}" for k in self.full["vision_config"]]
        outer = [k for k in conf if k in self.fields] + [k for k in self.full if k in self.fields]
        keys = dict.fromkeys(inner + [k for k in outer if k not in OUTER_SKIPPED])
        return [k for k in keys if k.rsplit(".", 1)[-1] not in changes.SKIPPED
                and k.rsplit(".", 1)[-1] not in BASE | {"initializer_range"}]


def of_keys(family, conf, older=None):
    """One key at a time, in `config.v5.json` only those that it says otherwise."""
    for key in family.keys(conf):
        now = changes.at(conf, key)
        if older is not None and changes.at(older, key) == now:
            continue
        if isinstance(now, dict):
            continue
        present = now if now is not None else changes.at(family.full, key)
        for value in changes.values_of_key(key, present, family.full):
            if value != now or type(value) is not type(now):
                yield {key: value}, []
        if now is not None:
            yield {}, [key]


def sweep(name, scratch):
    import transformers
    family = Family(name, scratch)
    place = texts.points(*family.base.shape)
    text = [f'{{"transformers": "{transformers.__version__}",', f' "at": {json.dumps(place)}']
    for file, conf, older in (("config.json", family.conf, None), ("config.v5.json", family.newer, family.conf)):
        made = of_keys(family, conf, older)
        lines = [json.dumps(row, separators=(",", ":")) for row in family.rows(conf, made, place)]
        text.append(f' ,"{file}": [\n' + ",\n".join(lines) + "\n]")
    return "\n".join(text) + "}\n"


def main():
    texts.quiet()
    wanted = sys.argv[1:]
    for name in sorted(p.parent.name for p in HERE.glob("*/golden.json")):
        if wanted and name not in wanted or name == "kimi_vl":  # (whose code is its makers' own)
            continue
        with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()):
            text = sweep(name, scratch)
        (HERE / name / "sweep.json").write_text(text)
        print(f"{name}: {text.count(chr(10)) - 6} changes, {len(text)} bytes", flush=True)


if __name__ == "__main__":
    main()
