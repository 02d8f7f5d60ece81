"""Records what the original processors make of images, and what Pillow decodes of small files.

    python record.py            (transformers 5, torch, torchvision, numpy, pillow before 13)
    python record.py Llama4     (only processors whose name has that; others stay as they are)

Pillow 13 resizes some shapes along columns first, where all before it, with which models were trained,
began with rows.

Pictures are a formula that the test knows too, so only numbers are kept: of each image its tiles, the
SHA-256 of its rows as little-endian f32, and some of them. Rows stand in our order: tile by tile,
squares of merged patches, within them patches row by row; columns are channel, frame, row, column.
"""

import base64
import copy
import hashlib
import io
import json
import os
import pathlib
import sys

import numpy as np
import torchvision
import transformers
from PIL import Image, ImageOps

HERE = pathlib.Path(__file__).parent
CLIP = "CLIPImageProcessor"
SIZES = [(61, 47), (200, 120), (30, 190), (320, 240), (57, 56), (3, 320)]


def picture(width, height):
    y, x = np.mgrid[0:height, 0:width].astype(np.uint32)
    planes = [(x * (3 + c) + y * (5 - c) + (x * y // 8) + 40 * c) % 256 for c in range(3)]
    return Image.fromarray(np.stack(planes, -1).astype(np.uint8))


def rows(pixels, patch, merge):
    """[channels, height, width] as rows."""
    pixels = np.asarray(pixels, dtype=np.float32)
    channels, height, width = pixels.shape
    down, across = height // patch, width // patch
    pixels = pixels[:, : down * patch, : across * patch]
    shape = (channels, down // merge, merge, patch, across // merge, merge, patch)
    moved = pixels.reshape(shape).transpose(1, 4, 2, 5, 0, 3, 6)
    return moved.reshape(down * across, channels * patch * patch), [down, across]


def told(case, width, height, alone, data, grids, split):
    data = np.ascontiguousarray(data, dtype="<f4")
    flat = data.reshape(-1)
    some = np.linspace(0, flat.size - 1, 9).astype(int)
    return {
        "width": width,
        "height": height,
        "alone": alone,
        "grids": grids,
        "split": split,
        "rows": data.shape[0],
        "columns": data.shape[1],
        "sha256": hashlib.sha256(data.tobytes()).hexdigest(),
        "some": [float(flat[i]) for i in some],
        "mean": float(flat.astype(np.float64).mean()),
    }


def made(case):
    """The original of a case."""
    config = copy.deepcopy(case["config"])  # (Some write into it.)
    name = config.pop("image_processor_type")
    pillow = case["backend"] == "pillow"
    for key in ("use_fast", "processor_class"):
        config.pop(key, None)
    if case.get("cut"):
        config["crop_to_patches"] = True
    if name == "KimiVLImageProcessor":  # (Its makers' own: KIMI_VL names the folder of its code.)
        sys.path.insert(0, os.environ["KIMI_VL"])
        import image_processing_kimi_vl
        return image_processing_kimi_vl.KimiVLImageProcessor(**config)
    processor = getattr(transformers, name + ("Pil" if pillow else ""))(**config)
    assert processor.backend == ("pil" if pillow else "torchvision")
    return processor


def run(case, width, height, alone=True):
    name, pillow, processor = case["config"]["image_processor_type"], case["backend"] == "pillow", made(case)
    patch, merge = case["tower"]
    extra = {}
    if "Pixtral" in name:
        extra["patch_size"] = {"height": patch * merge, "width": patch * merge}
    if "Idefics3" in name or "SmolVLM" in name:
        extra["return_row_col_info"] = True
    image = picture(width, height)
    images = [image] if alone else [[image, image]]
    out = processor(images, return_tensors="np" if pillow else "pt", **extra)
    if "Gemma4" in name:
        count = int(np.asarray(out["num_soft_tokens_per_image"])[0]) * merge * merge
        at = np.asarray(out["image_position_ids"])[0][:count]
        across, down = (int(n) + 1 for n in at.max(axis=0))
        tile = np.asarray(out["pixel_values"])[0][:count].reshape(down, across, patch, patch, 3)
        tile = tile.transpose(4, 0, 2, 1, 3).reshape(3, down * patch, across * patch)
        data, grid = rows(tile, patch, merge)
        return told(case, width, height, alone, data, [grid], [0, 0])
    if "Llama4" in name:
        parts = [rows(tile.float(), patch, merge) for tile in out["pixel_values"]]
        split = [int(n) for n in out["aspect_ratios"][0]]
        split = split if split != [1, 1] else [0, 0]
        return told(case, width, height, alone, np.concatenate([m[0] for m in parts]), [m[1] for m in parts], split)
    if "Kimi" in name:
        _, down, across = (int(n) for n in np.asarray(out["image_grid_thw"])[0])
        tile = np.asarray(out["pixel_values"]).reshape(down, across, 3, patch, patch)
        tile = tile.transpose(2, 0, 3, 1, 4).reshape(3, down * patch, across * patch)
        data, grid = rows(tile, patch, merge)
        return told(case, width, height, alone, data, [grid], [0, 0])
    if "Qwen" in name or "Glm4v" in name:
        grid = [int(v) for v in np.asarray(out["image_grid_thw"])[0]]
        return told(case, width, height, alone, np.asarray(out["pixel_values"]), [grid[1:]], [0, 0])
    values = np.asarray(out["pixel_values"])
    split = None
    if "rows" in out:
        split = [int(np.ravel(out["rows"])[0]), int(np.ravel(out["cols"])[0])]
    if "image_sizes" in out and "Pixtral" in name:
        high, wide = (int(v) for v in np.asarray(out["image_sizes"])[0])
        values = values[:, :, :high, :wide]
    if values.ndim == 5:
        values = values[0]
    if not alone:  # (one tile each)
        values = values[:1]
    parts = [rows(tile, patch, merge) for tile in values]
    data = np.concatenate([row for row, _ in parts])
    return told(case, width, height, alone, data, [grid for _, grid in parts], split)


def cases():
    square = {"height": 56, "width": 56}
    qwen = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2,
            "size": {"shortest_edge": 3136, "longest_edge": 50176}}
    yield "Qwen2VLImageProcessor", qwen, (14, 2), "both"
    half = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    qwen3 = {**qwen, **half, "patch_size": 16, "size": {"shortest_edge": 4096, "longest_edge": 65536}}
    yield "Qwen2VLImageProcessor", qwen3, (16, 2), "torchvision"
    yield "SiglipImageProcessor", {"size": square}, (14, 1), "both"
    yield "SiglipImageProcessor", {"size": {"height": 60, "width": 60}}, (14, 1), "torchvision"
    gemma = {"size": square, "do_pan_and_scan": True, "pan_and_scan_min_crop_size": 20,
             "pan_and_scan_max_num_crops": 4, "pan_and_scan_min_ratio_to_activate": 1.2}
    yield "Gemma3ImageProcessor", gemma, (14, 4), "both"
    yield CLIP, {"size": {"shortest_edge": 56}, "crop_size": square}, (14, 1), "both"
    yield CLIP, {"size": {"shortest_edge": 64}, "crop_size": square, "resample": 2}, (14, 1), "both"
    yield "LlavaImageProcessor", {"size": {"shortest_edge": 56}, "crop_size": square, "do_pad": True}, (14, 1), "both"
    tiles = {"size": {"longest_edge": 224}, "max_image_size": {"longest_edge": 56}}
    yield "Idefics3ImageProcessor", tiles, (14, 2), "pillow"
    yield "SmolVLMImageProcessor", tiles, (14, 2), "pillow"
    yield "SmolVLMImageProcessor", {**tiles, "do_image_splitting": False}, (14, 2), "pillow"
    points = [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]]
    nexts = {"size": {"shortest_edge": 56}, "crop_size": square, "image_grid_pinpoints": points}
    yield "LlavaNextImageProcessor", nexts, (14, 1), "both"
    yield "LlavaOnevisionImageProcessor", {"size": square, "image_grid_pinpoints": points}, (14, 1), "both"
    yield "PixtralImageProcessor", {"size": {"longest_edge": 112}}, (14, 2), "both"
    ocr = {"size": square, "min_patches": 1, "max_patches": 6, "crop_to_patches": True}
    yield "GotOcr2ImageProcessor", ocr, (14, 2), "both"
    film = {**qwen, "size": {"shortest_edge": 12544, "longest_edge": 100352}}
    yield "Glm4vImageProcessor", film, (14, 2), "torchvision"
    yield "Gemma4ImageProcessor", {"patch_size": 4, "max_soft_tokens": 70, "pooling_kernel_size": 3}, (4, 3), "torchvision"
    kimi = {"patch_size": 14, "merge_size": 2, "max_patches": 128, "size": {"max_height": 16, "max_width": 16}}
    yield "Kimi_K25ImageProcessor", kimi, (14, 2), "torchvision"
    own = {"patch_size": 14, "pad_input": True, "in_token_limit": 60, "merge_kernel_size": [2, 2], **half}
    yield "KimiVLImageProcessor", own, (14, 2), "pillow"
    yield "Llama4ImageProcessor", {"size": square, "max_patches": 6}, (14, 2), "torchvision"
    yield "Llama4ImageProcessor", {"size": square, "max_patches": 6, "resize_to_max_canvas": True}, (14, 2), "torchvision"


def processors(only):
    for name, config, tower, backends in cases():
        if not any(part in name for part in only or [name]):
            continue
        for backend in ("pillow", "torchvision") if backends == "both" else (backends,):
            own = {"image_processor_type": name, **config}
            if backend == "pillow" and config.get("resample", 3) != 1:
                own["use_fast"] = False
            case = {"config": own, "tower": tower, "backend": backend}
            sizes = SIZES if "Siglip" in name or "SmolVLM" in name else SIZES[:-1]
            case["images"] = [run(case, *size) for size in sizes]
            if "Onevision" in name:
                case["images"] += [run(case, *size, alone=False) for size in SIZES[:3]]
            yield case


def files():
    """Small files of every format, and what Pillow has of them as RGB."""
    rgb = picture(23, 17)
    alpha = Image.fromarray((np.arange(23 * 17).reshape(17, 23) * 5 % 256).astype(np.uint8))
    clear = rgb.copy()
    clear.putalpha(alpha)
    grey = rgb.convert("L")
    palette = rgb.quantize(32)
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    turned = Image.Exif()
    turned[0x0112] = 6
    mirrored = Image.Exif()
    mirrored[0x0112] = 5
    second = ImageOps.invert(rgb)
    plans = [
        ("rgb.png", rgb, {}, 0),
        ("clear.png", clear, {}, 0),
        ("grey.png", grey, {}, 0),
        ("grey-clear.png", clear.convert("LA"), {}, 0),
        ("palette.png", palette, {}, 0),
        ("palette-clear.png", palette, {"transparency": 3}, 0),
        ("bits.png", grey.convert("1"), {}, 0),
        ("deep.png", deep, {}, None),
        ("turned.png", rgb, {"exif": turned}, 0),
        ("animated.png", rgb, {"save_all": True, "append_images": [second]}, 0),
        ("rgb.jpg", rgb, {"quality": 95, "subsampling": 0}, 3),
        ("half.jpg", rgb, {"quality": 90, "subsampling": 2}, None),
        ("progressive.jpg", rgb, {"quality": 95, "subsampling": 0, "progressive": True}, 3),
        ("grey.jpg", grey, {"quality": 95}, 3),
        ("inks.jpg", rgb.convert("CMYK"), {"quality": 95}, 8),
        ("turned.jpg", rgb, {"quality": 95, "subsampling": 0, "exif": turned}, 3),
        ("mirrored.jpg", rgb, {"quality": 95, "subsampling": 0, "exif": mirrored}, 3),
        ("lossless.webp", rgb, {"lossless": True}, 0),
        ("clear.webp", clear, {"lossless": True, "exact": True}, 0),
        ("lossy.webp", rgb, {"quality": 90}, 4),
        ("animated.webp", rgb, {"save_all": True, "append_images": [second], "lossless": True}, 0),
        ("palette.gif", palette, {}, 0),
        ("animated.gif", palette, {"save_all": True, "append_images": [second.quantize(32)]}, 0),
        ("rgb.bmp", rgb, {}, 0),
        ("palette.bmp", palette, {}, 0),
        ("grey.bmp", grey, {}, 0),
    ]
    for name, image, how, bound in plans:
        out = io.BytesIO()
        kind = {"jpg": "JPEG", "webp": "WEBP"}.get(name.split(".")[1], name.split(".")[1].upper())
        image.save(out, kind, **how)
        seen = ImageOps.exif_transpose(Image.open(io.BytesIO(out.getvalue()))).convert("RGB")
        if name == "deep.png":
            seen = grey.convert("RGB")
        yield {
            "name": name,
            "file": base64.b64encode(out.getvalue()).decode(),
            "width": seen.width,
            "height": seen.height,
            "rgb": base64.b64encode(np.asarray(seen).tobytes()).decode(),
            "bound": bound,
        }


def white():
    """What Idefics3 makes of pixels that are not opaque."""
    clear = picture(23, 17)
    clear.putalpha(Image.fromarray((np.arange(23 * 17).reshape(17, 23) * 5 % 256).astype(np.uint8)))
    ground = Image.new("RGBA", clear.size, (255, 255, 255))
    return base64.b64encode(np.asarray(Image.alpha_composite(ground, clear).convert("RGB")).tobytes()).decode()


def write(name, value):
    lists = [key for key in value if isinstance(value[key], list)]
    head = {key: value[key] for key in value if key not in lists}
    text = json.dumps(head)[:-1]
    for key in lists:
        items = ",\n".join(json.dumps(item) for item in value[key])
        text += f', "{key}": [\n{items}\n]'
    (HERE / name).write_text(text + "}\n")


def main():
    only = sys.argv[1:]
    kept = json.loads((HERE / "processors.json").read_text())["cases"] if only else []
    kept = [case for case in kept if not any(part in case["config"]["image_processor_type"] for part in only)]
    write("processors.json", {
        "made_with": f"transformers {transformers.__version__}, torchvision {torchvision.__version__}",
        "cases": kept + list(processors(only)),
    })
    if not only:
        write("files.json", {"made_with": f"pillow {Image.__version__}", "files": list(files()), "white": white()})


if __name__ == "__main__":
    main()
