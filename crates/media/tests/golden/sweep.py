"""Records what the original processors make of two images when one key of their description has another
value: sweep.json.

    python sweep.py             (as record.py)

Of each class one description; `put` or `drop` is a change of it, and `is` what comes of it: "same", the
beginnings of both images' digests, "error X" where the class refuses it, "crash X" where its code fails.
"""

import json
import pathlib
import traceback

import transformers

import record

HERE = pathlib.Path(__file__).parent
SIZES = [(61, 47), (200, 120)]
# What is said of calls in Python, not of images, with the reason.
SKIPPED = {
    "image_processor_type": "another class", "return_tensors": "what Python functions return",
    "data_format": "what Python functions return", "input_data_format": "what Python functions are given",
    "device": "where it runs", "do_convert_rgb": "pictures are RGB here", "disable_grouping": "an order of work",
    "processor_class": "who wrote the file", "auto_map": "who wrote the file", "use_fast": "whose arithmetic: record.py", "return_metadata": "of films",
    "return_row_col_info": "text, which the model's script writes", "pad_token": "text", "default_to_square":
    "how sizes are read that are one number: tried below", "images_kwargs": "of calls", "backend": "use_fast",
    "model_input_names": "what Python functions return", "image_seq_length": "text",
}
SQUARE = {"height": 84, "width": 84}
# Further values by name.
VALUES = {
    "resample": [0, 1, 2, 3, 4, 5], "rescale_factor": [1 / 128], "image_mean": [[0.1, 0.2, 0.3], 0.25],
    "image_std": [[0.4, 0.5, 0.6], 0.5], "patch_size": [7, 28], "temporal_patch_size": [1, 3],
    "crop_size": [SQUARE, 28, {"height": 28, "width": 42}], "min_pixels": [28 * 28 * 40], "max_pixels": [28 * 28 * 6],
    "size": [SQUARE, 84, {"shortest_edge": 84}, {"longest_edge": 84}, {"height": 28, "width": 84},
             {"shortest_edge": 4096, "longest_edge": 8192}, {"max_height": 84, "max_width": 84},
             {"max_height": 8, "max_width": 8}],
    "max_image_size": [{"longest_edge": 112}, 112], "pad_size": [{"height": 196, "width": 196}],
    "image_grid_pinpoints": [[[112, 112]], []], "max_soft_tokens": [140, 3], "pooling_kernel_size": [2],
    "max_patches": [2, 1, 40], "min_patches": [2], "merge_size": [1, 4], "vision_aspect_ratio": ["anyres_max_4"],
    "default_to_square": [True, False], "use_thumbnail": [False], "fill_color": [0.5, 255],
    "background_color": [[9, 9, 9]], "size_divisor": [28],
}


def others(key, now):
    """Other values of a key."""
    if key in VALUES:
        return VALUES[key]
    if isinstance(now, bool):
        return [not now]
    if isinstance(now, int):
        return [now + 1, now * 2]
    if isinstance(now, float):
        return [now * 1.5]
    return []


def verdict(case):
    try:
        return [record.run(case, *size)["sha256"][:16] for size in SIZES]
    except Exception as error:
        kind = type(error).__name__
        # (What fails here, not there, is no refusal.)
        own = any("transformers" in frame.filename for frame in traceback.extract_tb(error.__traceback__))
        refused = own and kind in ("ValueError", "KeyError", "NotImplementedError")
        return f"{'error' if refused else 'crash'} {kind}"


def sweep(name, config, tower, backend):
    own = {"image_processor_type": name, **config}
    if backend == "pillow":
        own["use_fast"] = False
    case = {"config": own, "tower": tower, "backend": backend}
    base = verdict(case)
    assert isinstance(base, list), (name, base)
    said = record.made(case).to_dict()
    changes = []
    for key in dict.fromkeys([*own, *said, *VALUES]):
        if key in SKIPPED and key not in VALUES:
            continue
        if key == "merge_size" and "Kimi_K25" in name:
            continue  # (record.py orders rows by the tower's.)
        for value in others(key, said.get(key, own.get(key))):
            if value != own.get(key):
                changes.append(({"put": {key: value}}, own | {key: value}))
        if key in own:
            changes.append(({"drop": key}, {k: v for k, v in own.items() if k != key}))
    rows = []
    for change, changed in changes:
        found = verdict(case | {"config": changed})
        rows.append(change | {"is": "same" if found == base else found})
    return {"config": own, "tower": tower, "base": base, "rows": rows}


def main():
    seen, told = set(), []
    for name, config, tower, backends in record.cases():
        if name not in seen:
            seen.add(name)
            told.append(sweep(name, config, tower, "pillow" if backends == "pillow" else "torchvision"))
            print(name, len(told[-1]["rows"]), flush=True)
    lines = []
    for one in told:
        rows = ",\n".join("  " + json.dumps(row, separators=(",", ":")) for row in one.pop("rows"))
        lines.append(json.dumps(one)[:-1] + f', "rows": [\n{rows}\n]}}')
    text = f'{{"made_with": "transformers {transformers.__version__}", "classes": [\n' + ",\n".join(lines) + "\n]}\n"
    (HERE / "sweep.json").write_text(text)


if __name__ == "__main__":
    main()
