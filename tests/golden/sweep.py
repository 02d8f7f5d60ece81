"""Records what transformers computes when one key of a family's configuration has another value.

    python tests/golden/sweep.py                 # all families (needs torch and transformers)
    python tests/golden/sweep.py --check llama   # recompute, compare, write nothing

README.md has the format of `sweep.json`; changes.py has the values.
"""

import argparse
import contextlib
import io
import json
import math
import pathlib
import sys
import tempfile
import warnings

import numpy as np

import changes
from record import HERE, encodes, load_model, write_checkpoint

# Errors with which transformers refuses a configuration; others are its own faults at values that
# it does not mean to refuse (a null where a number is divided by, a shape that its code does not
# expect), of which nothing is demanded.
REFUSALS = ("StrictDataclassClassValidationError", "ValueError", "KeyError", "NotImplementedError",
            "UnboundLocalError", "IndexError")

# Outputs that differ by less are the same.
SAME = 1e-5
# A difference that the test cannot tell from rounding.
FAINT = 2e-3


def points(rows, cols):
    """Fixed places (row, column) of the outputs, early to late."""
    at = [2, 11, 26, rows // 2, rows - 9, rows - 1]
    return [[r, (r * 37 + 11 * i) % cols] for i, r in enumerate(at) if 0 <= r < rows]


class Family:
    """A recorded family: its weights on disk, the model as recorded, and its outputs."""

    def __init__(self, name, scratch):
        self.name = name
        self.conf = json.loads((HERE / name / "config.json").read_text())
        self.newer = json.loads((HERE / name / "config.v5.json").read_text())
        golden = json.loads((HERE / name / "golden.json").read_text())
        self.ids = golden["ids"]
        self.folder = pathlib.Path(scratch) / name
        self.folder.mkdir(parents=True)
        table = json.loads((HERE / name / "tensors.json").read_text())
        write_checkpoint(self.folder, self.conf, table["tensors"], table["salt"])
        model = load_model(self.folder, self.conf)
        self.kind = type(model)
        self.state = model.state_dict()
        self.full = model.config.to_dict()
        self.base = self.outputs(model)
        self.half = max((m.inv_freq.numel() for m in model.modules() if hasattr(m, "inv_freq")),
                        default=0)
        if not self.half and "rope_parameters" in self.full:
            self.half = next((b.numel() for n, b in model.named_buffers() if "inv_freq" in n), 0)

    def outputs(self, model):
        """Logits [seq, vocab], hidden states [seq, hidden] of encoders, or the score of a reranker."""
        import torch
        with torch.no_grad():
            if self.conf["architectures"][0].endswith("ForSequenceClassification"):
                out = model(torch.tensor([self.ids])).logits
                return out.numpy().astype(np.float32)
            if encodes(self.name, self.conf):
                out = model.base_model(torch.tensor([self.ids])).last_hidden_state
            else:
                out = model(torch.tensor([self.ids]), use_cache=False).logits
            return out[0].numpy().astype(np.float32)

    def changed_model(self, conf):
        """The model of a changed configuration, or why its tensors are not those of the file."""
        import torch
        import transformers
        from transformers.initialization import no_init_weights
        (self.folder / "config.json").write_text(json.dumps(conf))
        config = transformers.AutoConfig.from_pretrained(self.folder)
        if config.to_dict() == self.full:
            return None
        config._attn_implementation = "eager"
        config.dtype = torch.float32
        if "quantization_config" in conf:
            del config.quantization_config
        with torch.device("meta"):
            shapes = {k: v.shape for k, v in self.kind(config).state_dict().items()}
        there = {k: v.shape for k, v in self.state.items()}
        if shapes.items() < there.items():
            return self.loaded()
        absent = [k for k in shapes if k not in there and k.endswith("bias")]
        if {k: v for k, v in shapes.items() if k not in absent} != there:
            return "refuse"
        if bool(getattr(config, "tie_word_embeddings", False)) != bool(self.full.get("tie_word_embeddings")):
            return self.loaded()
        with no_init_weights():
            model = self.kind(config)
        # Biases that a file lacks are zero, as the loader leaves them.
        zeros = {k: torch.zeros(shapes[k]) for k in absent}
        model.load_state_dict(self.state | zeros)
        return model.float().eval()

    def loaded(self):
        """Through the whole loader, which knows tied tensors."""
        import torch
        model, info = self.kind.from_pretrained(
            self.folder, dtype=torch.float32, attn_implementation="eager",
            output_loading_info=True)
        return "refuse" if any(info.values()) else model.float().eval()

    def verdict(self, conf, place):
        """What transformers makes of a changed configuration, and by how much outputs differ."""
        try:
            model = self.changed_model(conf)
            if model is None:
                return "same", 0.0
            if isinstance(model, str):
                return model, math.inf
            found = self.outputs(model)
        except Exception as error:
            # (A class's own check may fail at a null too.)
            fault = error.__cause__ if isinstance(error.__cause__, TypeError) else error
            kind = type(fault).__name__
            return f"{'error' if kind in REFUSALS else 'crash'} {kind}", math.inf
        if found.shape != self.base.shape or not np.isfinite(found).all():
            return "crash NaN", math.inf
        differs = np.abs(found - self.base)
        if differs.max() <= SAME:
            return "same", 0.0
        worst = [int(i) for i in np.unravel_index(differs.argmax(), differs.shape)]
        rows = [[r, c, round(float(found[r, c]), 4)] for r, c in [worst]]
        return [rows[0]] + [round(float(found[r, c]), 4) for r, c in place], float(differs.max())

    def rows(self, conf, list_of_changes, place):
        seen = set()
        for put, drop in list_of_changes:
            if "pad_token_id" in put:
                # (One of the prompt would be passed over.)
                put = {"pad_token_id": next(i for i in range(3, 99) if i not in self.ids)}
            key = json.dumps([put, drop], sort_keys=True)
            if key in seen:
                continue
            seen.add(key)
            result, difference = self.verdict(changes.changed(conf, put, drop), place)
            if difference and difference < FAINT:
                print(f"{self.name}: {key} changes outputs by {difference:.1e}", file=sys.stderr)
            row = {}
            if put:
                row["put"] = put
            if drop:
                row["drop"] = drop
            yield row | {"is": result}


def sweep(name, scratch):
    """The text of sweep.json."""
    import transformers
    family = Family(name, scratch)
    rows, cols = family.base.shape
    place = points(rows, cols)
    lists = {
        "config.json": (family.conf, changes.of_file(family.conf, family.full, family.half, {})),
        "config.v5.json": (family.newer, changes.of_v5(family.newer, family.conf, family.full,
                                                       family.half)),
    }
    text = [f'{{"transformers": "{transformers.__version__}",', f' "at": {json.dumps(place)}']
    for file, (conf, made) in lists.items():
        lines = [json.dumps(row, separators=(",", ":")) for row in family.rows(conf, made, place)]
        text.append(f' ,"{file}": [\n' + ",\n".join(lines) + "\n]")
    return "\n".join(text) + "}\n"


def quiet():
    import torch
    from transformers.utils import logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", help="default: all")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    args = parser.parse_args()
    quiet()
    every = sorted(p.parent.name for p in HERE.glob("*/golden.json"))
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.families or every:
            with contextlib.redirect_stdout(io.StringIO()):
                text = sweep(name, scratch)
            out = HERE / name / "sweep.json"
            if args.check:
                assert out.read_text() == text, f"{name}: the recording differs"
                print(f"{name}: equal")
                continue
            out.write_text(text)
            print(f"{name}: {text.count(chr(10)) - 6} changes, {len(text)} bytes", flush=True)


if __name__ == "__main__":
    main()
