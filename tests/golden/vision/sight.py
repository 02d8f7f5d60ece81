#!/usr/bin/env python3
"""Record tiny models that see from HF transformers: rows of images, logits of a prompt with two images
among its tokens, and what comes next greedily.

    pip install torch transformers safetensors torchvision pillow
    python tests/golden/vision/sight.py                # all
    python tests/golden/vision/sight.py qwen2_vl       # some
    python tests/golden/vision/sight.py --mmproj qwen2_vl   # as two GGUF files (needs numpy and gguf alone)

Weights and patches are integer hashes of their names (../README.md). Patches stand square after square
of those that become one row, as processors of Qwen give them; every tower gets the same numbers. A
folder has config.json (as hubs have it), config.v5.json (as transformers 5 writes it), tensors.json, golden.json (`ids`, `images`: rows and columns
of patches, `canvases`: of images that are cut, rows and columns of tiles, height and width, `image_token`, `greedy`), rows.f32 [rows of all images, columns] and logits.f32 [ids, vocabulary]; with
--mmproj, mmproj.json and twin.json: the encoder and the language model in GGUF files, without their numbers
(../twins.py). They are laid out here as llama.cpp's converter would; it did not make them.
"""

import argparse
import json
import math
import pathlib
import re
import sys
import tempfile

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import families  # noqa: E402
from hashed import Tensors, config, decoder, prompt_ids, values_of  # noqa: E402

STEPS = 32

# ------------------------------------------------------------------------------------ the families


def text(arch, model_type, vocab, **fields):
    """The dimensions of all language models."""
    base = dict(vocab_size=vocab, hidden_size=64, intermediate_size=120, num_hidden_layers=2,
                num_attention_heads=4, num_key_value_heads=2, rope_scaling=None)
    return config(arch, model_type, **(base | fields))


def renamed(rows, prefix, head):
    """Names of a language model inside another."""
    for row in rows:
        if row["name"] == "lm_head.weight":
            row["name"] = head
        else:
            row["name"] = prefix + row["name"].removeprefix("model.")
    return rows


def llama_layer(c, bias="", qk=None):
    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", c["hidden_size"])
        t.attention(f"{p}.self_attn", c, bias=bias)
        if qk:
            t.qk_norm(f"{p}.self_attn", qk, qk)
        t.norm(f"{p}.post_attention_layernorm", c["hidden_size"])
        t.gated(f"{p}.mlp", c["hidden_size"], c["intermediate_size"])
    return layer


def block(t, p, hidden, inner, names, bias=True, norm_bias=True):
    """A layer of a Qwen tower."""
    t.norm(f"{p}.norm1", hidden, bias=norm_bias)
    t.linear(f"{p}.attn.qkv", 3 * hidden, hidden, 1.7, bias)
    t.linear(f"{p}.attn.proj", hidden, hidden, 1.5, bias)
    t.norm(f"{p}.norm2", hidden, bias=norm_bias)
    *ups, down = names
    for name in ups:
        t.linear(f"{p}.mlp.{name}", inner, hidden, 1.3, bias)
    t.linear(f"{p}.mlp.{down}", hidden, inner, 1.6, bias)


def merger(t, p, hidden, out, names, norm_bias=True, after=False):
    norm, up, down = names
    t.norm(f"{p}.{norm}", 4 * hidden if after else hidden, bias=norm_bias)
    t.linear(f"{p}.{up}", 4 * hidden, 4 * hidden, 1.3, True)
    t.linear(f"{p}.{down}", out, 4 * hidden, 1.6, True)


def qwen2_vl():
    c = text("Qwen2VLForConditionalGeneration", "qwen2_vl", 157, rope_theta=1000000.0,
             tie_word_embeddings=False, use_sliding_window=False, sliding_window=32,
             max_window_layers=2, rope_scaling={"type": "mrope", "mrope_section": [2, 3, 3]},
             image_token_id=155, video_token_id=156, vision_start_token_id=153,
             vision_end_token_id=154, vision_token_id=152,
             vision_config={"depth": 2, "embed_dim": 32, "mlp_ratio": 3, "num_heads": 2,
                            "in_chans": 3, "hidden_size": 64, "patch_size": 4,
                            "spatial_merge_size": 2, "spatial_patch_size": 4,
                            "temporal_patch_size": 2})
    del c["attention_bias"]
    rows = decoder(c, llama_layer(c, "qkv"))
    t = Tensors()
    t.add("visual.patch_embed.proj.weight", [32, 3, 2, 4, 4], 0.3)
    for i in range(2):
        block(t, f"visual.blocks.{i}", 32, 96, ("fc1", "fc2"))
    merger(t, "visual.merger", 32, 64, ("ln_q", "mlp.0", "mlp.2"))
    return c, rows + t.rows, [(6, 8), (4, 2)]


def qwen2_5_vl():
    c, _, _ = qwen2_vl()
    c.update(architectures=["Qwen2_5_VLForConditionalGeneration"], model_type="qwen2_5_vl",
             vision_config={"depth": 3, "hidden_act": "silu", "hidden_size": 32,
                            "intermediate_size": 88, "num_heads": 2, "in_chans": 3,
                            "out_hidden_size": 64, "patch_size": 4, "spatial_merge_size": 2,
                            "spatial_patch_size": 4, "window_size": 16,
                            "fullatt_block_indexes": [1], "tokens_per_second": 2,
                            "temporal_patch_size": 2})
    rows = decoder(c, llama_layer(c, "qkv"))
    t = Tensors()
    t.add("visual.patch_embed.proj.weight", [32, 3, 2, 4, 4], 0.3)
    for i in range(3):
        block(t, f"visual.blocks.{i}", 32, 88, ("gate_proj", "up_proj", "down_proj"),
              norm_bias=False)
    merger(t, "visual.merger", 32, 64, ("ln_q", "mlp.0", "mlp.2"), norm_bias=False)
    return c, rows + t.rows, [(6, 10), (8, 4)]


def gemma3():
    inner = text("", "gemma3_text", 157, num_hidden_layers=6, num_key_value_heads=1, head_dim=24,
                 intermediate_size=56, hidden_activation="gelu_pytorch_tanh",
                 query_pre_attn_scalar=24, sliding_window=18, sliding_window_pattern=6,
                 rope_theta=1000000.0, rope_local_base_freq=10000.0,
                 rope_scaling={"factor": 8.0, "rope_type": "linear"}, bos_token_id=2,
                 eos_token_id=1, pad_token_id=0)
    for key in ("architectures", "hidden_act", "tie_word_embeddings", "attention_bias"):
        del inner[key]
    c = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
         "torch_dtype": "float32", "boi_token_index": 153, "eoi_token_index": 154,
         "image_token_index": 155, "mm_tokens_per_image": 16, "initializer_range": 0.02,
         "text_config": inner,
         "vision_config": {"hidden_size": 40, "image_size": 32, "intermediate_size": 72,
                           "model_type": "siglip_vision_model", "num_attention_heads": 2,
                           "num_hidden_layers": 2, "patch_size": 4, "vision_use_head": False}}

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 64, 0.0)
        t.attention(f"{p}.self_attn", inner)
        t.qk_norm(f"{p}.self_attn", 24, 24, 0.6)
        t.norm(f"{p}.post_attention_layernorm", 64, 0.2)
        t.norm(f"{p}.pre_feedforward_layernorm", 64, 0.0)
        t.norm(f"{p}.post_feedforward_layernorm", 64, 0.2)
        t.gated(f"{p}.mlp", 64, 56)
    rows = decoder(inner | {"tie_word_embeddings": True}, layer, norm_offset=0.0, embed_std=0.07)
    rows = renamed(rows, "language_model.model.", "")
    t = Tensors()
    siglip(t, "vision_tower.vision_model", 40, 72, 2, 64)
    t.norm("multi_modal_projector.mm_soft_emb_norm", 40, 0.0)
    t.add("multi_modal_projector.mm_input_projection_weight", [40, 64], 0.6)
    return c, rows + t.rows, [(8, 8), (8, 8)]


def siglip(t, p, hidden, inner, layers, positions):
    t.add(f"{p}.embeddings.patch_embedding.weight", [hidden, 3, 4, 4], 0.5)
    t.bias(f"{p}.embeddings.patch_embedding.bias", hidden)
    t.add(f"{p}.embeddings.position_embedding.weight", [positions, hidden], 1.6)
    for i in range(layers):
        q = f"{p}.encoder.layers.{i}"
        t.norm(f"{q}.layer_norm1", hidden, bias=True)
        for name, gain in (("q_proj", 1.7), ("k_proj", 1.7), ("v_proj", 1.2), ("out_proj", 1.5)):
            t.linear(f"{q}.self_attn.{name}", hidden, hidden, gain, True)
        t.norm(f"{q}.layer_norm2", hidden, bias=True)
        t.linear(f"{q}.mlp.fc1", inner, hidden, 1.6, True)
        t.linear(f"{q}.mlp.fc2", hidden, inner, 2.5, True)
    t.norm(f"{p}.post_layernorm", hidden, bias=True)


def qwen3_vl():
    inner = text("", "qwen3_vl_text", 157, head_dim=32, num_hidden_layers=3, rope_theta=1000.0,
                 rope_scaling={"mrope_interleaved": True, "mrope_section": [6, 5, 5],
                               "rope_type": "default"})
    for key in ("architectures", "tie_word_embeddings"):
        del inner[key]
    c = {"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl",
         "image_token_id": 155, "video_token_id": 156, "vision_start_token_id": 153,
         "vision_end_token_id": 154, "tie_word_embeddings": False, "text_config": inner,
         "vision_config": {"deepstack_visual_indexes": [0, 2], "depth": 3,
                           "hidden_act": "gelu_pytorch_tanh", "hidden_size": 32,
                           "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 88,
                           "model_type": "qwen3_vl", "num_heads": 2, "num_position_embeddings": 25,
                           "out_hidden_size": 64, "patch_size": 4, "spatial_merge_size": 2,
                           "temporal_patch_size": 2}}
    rows = renamed(decoder(inner, llama_layer(inner, qk=32)), "model.language_model.",
                   "lm_head.weight")
    t = Tensors()
    qwen3_tower(t, "model.visual", 2)
    return c, rows + t.rows, [(6, 8), (4, 10)]


def qwen3_tower(t, v, deep):
    t.add(f"{v}.patch_embed.proj.weight", [32, 3, 2, 4, 4], 0.3)
    t.bias(f"{v}.patch_embed.proj.bias", 32)
    t.add(f"{v}.pos_embed.weight", [25, 32], 1.6)
    for i in range(3):
        block(t, f"{v}.blocks.{i}", 32, 88, ("linear_fc1", "linear_fc2"))
    names = ("norm", "linear_fc1", "linear_fc2")
    merger(t, f"{v}.merger", 32, 64, names)
    for i in range(deep):
        merger(t, f"{v}.deepstack_merger_list.{i}", 32, 64, names, after=True)


def qwen3_vl_moe():
    c, rows, images = qwen3_vl()
    inner = c["text_config"]
    inner |= {"model_type": "qwen3_vl_moe_text", "decoder_sparse_step": 1, "mlp_only_layers": [],
              "moe_intermediate_size": 40, "norm_topk_prob": True, "num_experts": 6,
              "num_experts_per_tok": 2}
    c |= {"architectures": ["Qwen3VLMoeForConditionalGeneration"], "model_type": "qwen3_vl_moe"}
    c["vision_config"]["model_type"] = "qwen3_vl_moe"
    rows = [r for r in rows if ".mlp." not in r["name"] or "visual" in r["name"]]
    t = Tensors()
    for i in range(inner["num_hidden_layers"]):
        m = f"model.language_model.layers.{i}.mlp"
        t.linear(f"{m}.gate", 6, 64, 2.0)
        t.add(f"{m}.experts.gate_up_proj", [6, 64, 80], 0.55)
        t.add(f"{m}.experts.down_proj", [6, 40, 64], 0.8)
    return c, rows + t.rows, images


def qwen3_5():
    inner, rows = families.qwen3_5()
    inner["rope_parameters"] |= {"mrope_section": [2, 1, 1]}
    c, _, images = qwen3_vl()
    vision = c["vision_config"] | {"model_type": "qwen3_5"}
    del vision["deepstack_visual_indexes"]
    c |= {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
          "text_config": {k: v for k, v in inner.items()
                          if k not in ("architectures", "tie_word_embeddings")},
          "vision_config": vision}
    rows = renamed(rows, "model.language_model.", "lm_head.weight")
    t = Tensors()
    qwen3_tower(t, "model.visual", 0)
    return c, rows + t.rows, images


def inner_llama(model_type="llama", **fields):
    inner = text("", model_type, 157, head_dim=16, **fields)
    for key in ("architectures", "tie_word_embeddings"):
        del inner[key]
    return inner


def idefics3():
    inner = inner_llama()
    c = {"architectures": ["Idefics3ForConditionalGeneration"], "model_type": "idefics3",
         "torch_dtype": "float32", "image_token_id": 155, "scale_factor": 3,
         "tie_word_embeddings": False, "pad_token_id": 0, "use_cache": True,
         "text_config": inner,
         "vision_config": {"hidden_size": 40, "image_size": 24, "intermediate_size": 72,
                           "model_type": "idefics3", "num_attention_heads": 2,
                           "num_hidden_layers": 2, "patch_size": 4, "tie_word_embeddings": False,
                           "use_base_siglip": False}}
    rows = renamed(decoder(inner, llama_layer(inner)), "model.text_model.", "lm_head.weight")
    t = Tensors()
    siglip(t, "model.vision_model", 40, 72, 2, 36)
    t.linear("model.connector.modality_projection.proj", 64, 40 * 9, 1.6)
    return c, rows + t.rows, [(6, 6), (6, 6)]


def llava():
    inner = inner_llama()
    c = {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava",
         "torch_dtype": "float32", "ignore_index": -100, "image_token_index": 155,
         "projector_hidden_act": "gelu", "tie_word_embeddings": False, "text_config": inner,
         "vision_feature_layer": -2, "vision_feature_select_strategy": "default",
         "vision_config": {"hidden_size": 40, "image_size": 16, "intermediate_size": 72,
                           "model_type": "clip_vision_model", "num_attention_heads": 2,
                           "num_hidden_layers": 3, "patch_size": 4, "projection_dim": 24,
                           "vocab_size": 157}}
    rows = decoder(inner, llama_layer(inner))
    for row in rows:
        row["name"] = "language_model." + row["name"]
    t = Tensors()
    v = "vision_tower.vision_model"
    siglip(t, v, 40, 72, 3, 17)
    t.rows = [r for r in t.rows if not r["name"].endswith("patch_embedding.bias")]
    t.add(f"{v}.embeddings.class_embedding", [40], 1.6)
    t.norm(f"{v}.pre_layrnorm", 40, bias=True)
    t.linear("multi_modal_projector.linear_1", 64, 40, 1.6, True)
    t.linear("multi_modal_projector.linear_2", 64, 64, 2.0, True)
    return c, rows + t.rows, [(4, 4), (4, 4)]


def llava_next():
    c, rows, _ = llava()
    c |= {"architectures": ["LlavaNextForConditionalGeneration"], "model_type": "llava_next",
          "image_grid_pinpoints": [[16, 32], [32, 16]], "image_seq_length": 16}
    t = Tensors()
    t.add("image_newline", [64], 1.6)
    # (Bars above and below, then at both sides.)
    return c, rows + t.rows, [canvas((4, 4), (1, 2), (14, 40)), canvas((4, 4), (2, 1), (40, 26))]


def llava_onevision():
    inner = inner_llama("qwen2")
    c = {"architectures": ["LlavaOnevisionForConditionalGeneration"],
         "model_type": "llava_onevision", "torch_dtype": "float32", "image_token_index": 155,
         "video_token_index": 156, "projector_hidden_act": "gelu", "tie_word_embeddings": False,
         "text_config": inner, "vision_feature_layer": -1, "vision_feature_select_strategy": "full",
         "vision_aspect_ratio": "anyres_max_1", "image_grid_pinpoints": [[16, 32], [32, 16]],
         "vision_config": {"hidden_size": 40, "image_size": 16, "intermediate_size": 72,
                           "model_type": "siglip_vision_model", "num_attention_heads": 2,
                           "num_hidden_layers": 3, "patch_size": 4, "vision_use_head": False}}
    del inner["attention_bias"]
    rows = decoder(inner, llama_layer(inner, "qkv"))
    for row in rows:
        row["name"] = "language_model." + row["name"]
    t = Tensors()
    siglip(t, "vision_tower.vision_model", 40, 72, 3, 16)
    t.linear("multi_modal_projector.linear_1", 64, 40, 1.6, True)
    t.linear("multi_modal_projector.linear_2", 64, 64, 2.0, True)
    t.add("image_newline", [64], 1.6)
    # (An image that is cut, and two that are not, as where a prompt has several.)
    whole = canvas((4, 4), (0, 0), (20, 20))
    return c, rows + t.rows, [canvas((4, 4), (1, 2), (14, 30)), whole, whole]


def internvl():
    return intern("qwen2", False)


def internvl_norms():
    """With norms of queries and keys, and one behind the tower."""
    return intern("qwen3", True)


def intern(kind, norms):
    inner = inner_llama(kind)
    if kind == "qwen2":
        del inner["attention_bias"]
    c = {"architectures": ["InternVLForConditionalGeneration"], "model_type": "internvl",
         "torch_dtype": "float32", "downsample_ratio": 0.5, "image_seq_length": 9,
         "image_token_id": 155, "projector_hidden_act": "gelu", "text_config": inner,
         "tie_word_embeddings": False, "vision_feature_layer": -1,
         "vision_feature_select_strategy": "default",
         "vision_config": {"attention_bias": not norms, "attention_dropout": 0.0,
                           "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "hidden_size": 40,
                           "image_size": [24, 24], "initializer_range": 1e-10,
                           "intermediate_size": 72, "layer_norm_eps": 1e-06,
                           "layer_scale_init_value": 0.1, "model_type": "internvl_vision",
                           "norm_type": "rms_norm" if norms else "layer_norm",
                           "num_attention_heads": 2, "num_channels": 3, "num_hidden_layers": 2,
                           "patch_size": [4, 4], "projection_dropout": 0.0,
                           "use_absolute_position_embeddings": True, "use_mask_token": False,
                           "use_mean_pooling": not norms, "use_qk_norm": norms}}
    qkv = "" if norms else "qkv"
    rows = decoder(inner, llama_layer(inner, qkv, qk=16 if norms else None))
    for row in rows:
        row["name"] = "language_model." + row["name"]
    t, v = Tensors(), "vision_tower"
    t.add(f"{v}.embeddings.cls_token", [1, 1, 40], 1.6)
    t.add(f"{v}.embeddings.position_embeddings", [1, 37, 40], 1.6)
    t.add(f"{v}.embeddings.patch_embeddings.projection.weight", [40, 3, 4, 4], 0.5)
    t.bias(f"{v}.embeddings.patch_embeddings.projection.bias", 40)
    for i in range(2):
        p = f"{v}.encoder.layer.{i}"
        for name, gain in (("q_proj", 1.7), ("k_proj", 1.7), ("v_proj", 1.2)):
            t.linear(f"{p}.attention.{name}", 40, 40, gain, not norms)
        t.linear(f"{p}.attention.projection_layer", 40, 40, 1.5, True)
        if norms:
            t.qk_norm(f"{p}.attention", 40, 40)
        for name in ("layernorm_before", "layernorm_after"):
            t.norm(f"{p}.{name}", 40, bias=not norms)
        for name in ("lambda_1", "lambda_2"):
            t.add(f"{p}.{name}", [40], 0.8, 0.7)
        t.linear(f"{p}.mlp.fc1", 72, 40, 1.6, True)
        t.linear(f"{p}.mlp.fc2", 40, 72, 2.5, True)
    if norms:
        t.norm(f"{v}.layernorm", 40, bias=True)
    m = "multi_modal_projector"
    t.norm(f"{m}.layer_norm", 160, bias=True)
    t.linear(f"{m}.linear_1", 64, 160, 1.6, True)
    t.linear(f"{m}.linear_2", 64, 64, 2.0, True)
    return c, rows + t.rows, [(6, 6), (6, 6)]


def glm4v():
    inner = text("", "glm4v_text", 157, head_dim=16, partial_rotary_factor=0.5,
                 rope_scaling={"type": "default", "mrope_section": [1, 1, 2]})
    for key in ("architectures", "tie_word_embeddings", "attention_bias"):
        del inner[key]
    c = {"architectures": ["Glm4vForConditionalGeneration"], "model_type": "glm4v",
         "image_token_id": 155, "video_token_id": 156, "image_start_token_id": 153,
         "image_end_token_id": 154, "tie_word_embeddings": False, "text_config": inner,
         "vision_config": {"attention_bias": False, "depth": 2, "hidden_act": "silu",
                           "hidden_size": 32, "image_size": 20, "in_channels": 3,
                           "initializer_range": 0.02, "intermediate_size": 88,
                           "model_type": "glm4v", "num_heads": 2, "out_hidden_size": 64,
                           "patch_size": 4, "rms_norm_eps": 1e-05, "spatial_merge_size": 2,
                           "temporal_patch_size": 2}}

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 64)
        t.attention(f"{p}.self_attn", inner, bias="qkv")
        t.norm(f"{p}.post_self_attn_layernorm", 64)
        t.norm(f"{p}.post_attention_layernorm", 64)
        t.linear(f"{p}.mlp.gate_up_proj", 2 * 120, 64, 1.3)
        t.linear(f"{p}.mlp.down_proj", 64, 120, 1.6)
        t.norm(f"{p}.post_mlp_layernorm", 64)
    rows = renamed(decoder(inner, layer), "model.language_model.", "lm_head.weight")
    return c, rows + glm_tower(), [(6, 8), (4, 10)]


def glm_tower():
    t, v = Tensors(), "model.visual"
    t.add(f"{v}.patch_embed.proj.weight", [32, 3, 2, 4, 4], 0.3)
    t.bias(f"{v}.patch_embed.proj.bias", 32)
    t.norm(f"{v}.post_conv_layernorm", 32)
    t.add(f"{v}.embeddings.position_embedding.weight", [25, 32], 1.6)
    for i in range(2):
        block(t, f"{v}.blocks.{i}", 32, 64, ("gate_proj", "up_proj", "down_proj"), bias=False,
              norm_bias=False)
    t.norm(f"{v}.post_layernorm", 32)
    t.add(f"{v}.downsample.weight", [64, 32, 2, 2], 0.3)
    t.bias(f"{v}.downsample.bias", 64)
    t.linear(f"{v}.merger.proj", 64, 64, 1.3)
    t.norm(f"{v}.merger.post_projection_norm", 64, bias=True)
    t.gated(f"{v}.merger", 64, 88)
    return t.rows


def glm4v_moe():
    inner, rows = families.glm4_moe()
    rows = [r for r in rows if "_norm" not in r["name"] or "layernorm" in r["name"]]
    inner |= {"model_type": "glm4v_moe_text", "rope_scaling": {"mrope_section": [1, 1, 2]}}
    c, _, images = glm4v()
    c |= {"architectures": ["Glm4vMoeForConditionalGeneration"], "model_type": "glm4v_moe",
          "text_config": {k: v for k, v in inner.items()
                          if k not in ("architectures", "tie_word_embeddings", "use_qk_norm")}}
    c["vision_config"]["model_type"] = "glm4v_moe"
    return c, renamed(rows, "model.language_model.", "lm_head.weight") + glm_tower(), images


def llama4():
    inner, rows = families.llama4()
    c = {"architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4",
         "boi_token_index": 153, "eoi_token_index": 154, "image_token_index": 155,
         "tie_word_embeddings": False,
         "text_config": {k: v for k, v in inner.items()
                         if k not in ("architectures", "tie_word_embeddings")},
         "vision_config": {"attention_dropout": 0.0, "hidden_act": "gelu", "hidden_size": 32,
                           "image_size": 24, "initializer_range": 0.02, "intermediate_size": 128,
                           "model_type": "llama4_vision_model", "multi_modal_projector_bias": False,
                           "norm_eps": 1e-05, "num_attention_heads": 2, "num_channels": 3,
                           "num_hidden_layers": 2, "patch_size": 4, "pixel_shuffle_ratio": 0.5,
                           "projector_dropout": 0.0, "projector_input_dim": 56,
                           "projector_output_dim": 56, "rope_theta": 1000.0,
                           "vision_feature_select_strategy": "default", "vision_output_dim": 56}}
    for row in rows:
        row["name"] = "language_model." + row["name"]
    t, v = Tensors(), "vision_model"
    t.add(f"{v}.patch_embedding.linear.weight", [32, 48], 0.5)
    t.add(f"{v}.class_embedding", [32], 1.6)
    t.add(f"{v}.positional_embedding_vlm", [37, 32], 1.6)
    t.norm(f"{v}.layernorm_pre", 32, bias=True)
    t.norm(f"{v}.layernorm_post", 32, bias=True)
    for i in range(2):
        p = f"{v}.model.layers.{i}"
        t.norm(f"{p}.input_layernorm", 32, bias=True)
        for name, gain in (("q_proj", 1.7), ("k_proj", 1.7), ("v_proj", 1.2), ("o_proj", 1.5)):
            t.linear(f"{p}.self_attn.{name}", 32, 32, gain, True)
        t.norm(f"{p}.post_attention_layernorm", 32, bias=True)
        t.linear(f"{p}.mlp.fc1", 128, 32, 1.6, True)
        t.linear(f"{p}.mlp.fc2", 32, 128, 2.5, True)
    t.linear(f"{v}.vision_adapter.mlp.fc1", 56, 128, 1.6)
    t.linear(f"{v}.vision_adapter.mlp.fc2", 56, 56, 2.0)
    t.linear("multi_modal_projector.linear_1", 64, 56, 2.0)
    return c, rows + t.rows, [(6, 6), (6, 6)]


def gemma4():
    inner, rows = families.gemma4()
    inner |= {"use_bidirectional_attention": "vision"}
    c = {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4",
         "audio_config": None, "audio_token_id": 157, "boa_token_id": 158, "eoa_token_id": 159,
         "boi_token_id": 153, "eoi_token_id": 154, "image_token_id": 155, "video_token_id": 156,
         "initializer_range": 0.02, "tie_word_embeddings": True,
         "text_config": {k: v for k, v in inner.items() if k != "architectures"},
         "vision_config": {"attention_bias": False, "attention_dropout": 0.0, "head_dim": 16,
                           "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 40,
                           "initializer_range": 0.02, "intermediate_size": 72,
                           "max_position_embeddings": 131072, "model_type": "gemma4_vision",
                           "num_attention_heads": 2, "num_hidden_layers": 2,
                           "num_key_value_heads": 1, "patch_size": 4, "pooling_kernel_size": 3,
                           "position_embedding_size": 24, "rms_norm_eps": 1e-06,
                           "rope_parameters": {"rope_theta": 100.0, "rope_type": "axial"},
                           "standardize": True, "use_clipped_linears": False}}
    rows = renamed(rows, "model.language_model.", "lm_head.weight")
    t, v = Tensors(), "model.vision_tower"
    t.add(f"{v}.patch_embedder.input_proj.weight", [40, 48], 0.5)
    t.add(f"{v}.patch_embedder.position_embedding_table", [2, 24, 40], 1.6)
    t.add(f"{v}.std_bias", [40], 3.0)
    t.add(f"{v}.std_scale", [40], 0.5, 1.0)
    for i in range(2):
        p = f"{v}.encoder.layers.{i}"
        for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            t.norm(f"{p}.{name}_layernorm", 40)
        for name, of, by in (("q", 32, 40), ("k", 16, 40), ("v", 16, 40), ("o", 40, 32)):
            t.linear(f"{p}.self_attn.{name}_proj.linear", of, by, 1.5)
        t.qk_norm(f"{p}.self_attn", 16, 16, 0.7)
        t.linear(f"{p}.mlp.gate_proj.linear", 72, 40, 1.3)
        t.linear(f"{p}.mlp.up_proj.linear", 72, 40, 1.2)
        t.linear(f"{p}.mlp.down_proj.linear", 40, 72, 1.6)
    t.linear("model.embed_vision.embedding_projection", 64, 40, 1.6)
    return c, rows + t.rows, [(6, 9), (6, 6)]


def kimi_k25():
    import record as text_models
    inner, rows = text_models.deepseek_v3()
    c = {"architectures": ["Kimi_K25ForConditionalGeneration"], "model_type": "kimi_k25",
         "image_token_id": 155, "video_token_id": 156, "vision_start_token_id": 153,
         "vision_end_token_id": 154, "projection_hidden_size": 40,
         "projection_layer_norm_eps": 1e-05, "tie_word_embeddings": False,
         "text_config": {k: v for k, v in inner.items() if k != "architectures"},
         "vision_config": {"hidden_act": "gelu_pytorch_tanh", "hidden_size": 40,
                           "intermediate_size": 72, "merge_kernel_size": [2, 2],
                           "model_type": "kimi_k25_vision", "num_attention_heads": 2,
                           "num_hidden_layers": 2, "patch_size": 4, "pos_emb_height": 5,
                           "pos_emb_time": 4, "pos_emb_width": 5,
                           "rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"}}}
    for row in rows:
        row["name"] = "language_model." + row["name"]
    t, v = Tensors(), "vision_tower"
    t.add(f"{v}.patch_embed.proj.weight", [40, 3, 4, 4], 0.5)
    t.bias(f"{v}.patch_embed.proj.bias", 40)
    t.add(f"{v}.patch_embed.pos_emb.weight", [5, 5, 40], 1.6)
    for i in range(2):
        p = f"{v}.encoder.blocks.{i}"
        t.norm(f"{p}.norm0", 40, bias=True)
        t.linear(f"{p}.wqkv", 120, 40, 1.7, True)
        t.linear(f"{p}.wo", 40, 40, 1.5, True)
        t.norm(f"{p}.norm1", 40, bias=True)
        t.linear(f"{p}.mlp.fc0", 72, 40, 1.6, True)
        t.linear(f"{p}.mlp.fc1", 40, 72, 2.5, True)
    t.norm(f"{v}.encoder.final_layernorm", 40, bias=True)
    t.norm("mm_projector.pre_norm", 40, bias=True)
    t.linear("mm_projector.proj.0", 160, 160, 1.6, True)
    t.linear("mm_projector.proj.2", 64, 160, 2.0, True)
    return c, rows + t.rows, [(6, 8), (4, 6)]


def kimi_vl():
    """Kimi-VL, whose code is its makers' own: KIMI_VL names a folder with their modeling_kimi_vl.py."""
    c, rows, images = kimi_k25()
    for key in ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id",
                "projection_hidden_size", "projection_layer_norm_eps"):
        del c[key]
    c |= {"architectures": ["KimiVLForConditionalGeneration"], "model_type": "kimi_vl", "ignore_index": -100,
          "media_placeholder_token_id": 155, "torch_dtype": "float32",
          "vision_config": {"hidden_size": 40, "init_pos_emb_height": 5, "init_pos_emb_width": 5,
                            "intermediate_size": 72, "merge_kernel_size": [2, 2], "model_type": "moonvit",
                            "num_attention_heads": 2, "num_hidden_layers": 2, "patch_size": 4}}
    for old, new in (("proj.0", "linear_1"), ("proj.2", "linear_2"), ("pre_norm", "pre_norm")):
        for row in rows:
            row["name"] = row["name"].replace(f"mm_projector.{old}.", f"multi_modal_projector.{new}.")
    return c, rows, images


class KimiVl:
    """The parts of Kimi-VL: its makers' tower and projector, and the language model that transformers has."""

    def __init__(self, folder):
        import importlib.util
        import os
        from types import SimpleNamespace

        import torch
        import transformers
        from safetensors.torch import load_file, save_file
        folder = pathlib.Path(folder)
        spec = importlib.util.spec_from_file_location("kimi", pathlib.Path(os.environ["KIMI_VL"]) / "modeling_kimi_vl.py")
        own = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(own)
        c = json.loads((folder / "config.json").read_text())
        state = load_file(folder / "model.safetensors")
        part = lambda p: {k.removeprefix(p): v for k, v in state.items() if k.startswith(p)}  # noqa: E731
        vision, inner = SimpleNamespace(**c["vision_config"]), SimpleNamespace(**c["text_config"])
        self.tower = own.MoonVitPretrainedModel(vision)
        self.tower.load_state_dict(part("vision_tower."))
        self.projector = own.KimiVLMultiModalProjector(SimpleNamespace(vision_config=vision, text_config=inner))
        self.projector.load_state_dict(part("multi_modal_projector."))
        with tempfile.TemporaryDirectory() as scratch:
            save_file(part("language_model."), pathlib.Path(scratch) / "model.safetensors", metadata={"format": "pt"})
            (pathlib.Path(scratch) / "config.json").write_text(json.dumps(c["text_config"]))
            self.text = transformers.AutoModelForCausalLM.from_pretrained(
                scratch, dtype=torch.float32, attn_implementation="eager").eval()
        self.image = c["media_placeholder_token_id"]

    def rows(self, pixel_values, image_grid_thw):
        return self.projector(self.tower(pixel_values, image_grid_thw[:, 1:]))

    def __call__(self, input_ids, pixel_values, image_grid_thw, **_):
        table = self.text.get_input_embeddings().weight[input_ids[0]].clone()
        table[input_ids[0] == self.image] = self.rows(pixel_values, image_grid_thw)
        return self.text(inputs_embeds=table[None], use_cache=False)


def canvas(tile, split, size):
    """An image of that size that is cut into tiles of so many patches, behind the whole as one."""
    return {"tile": tile, "split": split, "size": size}


def mistral3():
    inner = inner_llama("mistral", sliding_window=None)
    for key in ("attention_bias",):
        del inner[key]
    c = {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
         "torch_dtype": "float32", "image_token_index": 155, "multimodal_projector_bias": False,
         "projector_hidden_act": "gelu", "spatial_merge_size": 2, "vision_feature_layer": -1,
         "tie_word_embeddings": False, "text_config": inner,
         "vision_config": {"attention_dropout": 0.0, "head_dim": 16, "hidden_act": "silu",
                           "hidden_size": 32, "image_size": 64, "initializer_range": 0.02,
                           "intermediate_size": 88, "model_type": "pixtral",
                           "num_attention_heads": 2, "num_channels": 3, "num_hidden_layers": 2,
                           "patch_size": 4, "rope_theta": 1000.0}}
    rows = decoder(inner, llama_layer(inner))
    for row in rows:
        row["name"] = "language_model." + row["name"]
    t = Tensors()
    t.add("vision_tower.patch_conv.weight", [32, 3, 4, 4], 0.5)
    t.norm("vision_tower.ln_pre", 32)
    for i in range(2):
        p = f"vision_tower.transformer.layers.{i}"
        t.norm(f"{p}.attention_norm", 32)
        for name, gain in (("q_proj", 1.7), ("k_proj", 1.7), ("v_proj", 1.2), ("o_proj", 1.5)):
            t.linear(f"{p}.attention.{name}", 32, 32, gain)
        t.norm(f"{p}.ffn_norm", 32)
        t.gated(f"{p}.feed_forward", 32, 88)
    m = "multi_modal_projector"
    t.norm(f"{m}.norm", 32)
    t.linear(f"{m}.patch_merger.merging_layer", 32, 128, 1.3)
    t.linear(f"{m}.linear_1", 64, 32, 1.6)
    t.linear(f"{m}.linear_2", 64, 64, 2.0)
    return c, rows + t.rows, [(6, 8), (4, 6)]


def clip():
    """Two towers; that of texts is the one of ../families.py."""
    return towers("clip", "CLIPModel", 17, projection_dim=40)


def siglip_model():
    return towers("siglip", "SiglipModel", 16)


siglip_model.__name__ = "siglip"


def towers(kind, arch, positions, **outer):
    inner, rows = getattr(families, kind)()
    c = {"architectures": [arch], "model_type": kind, "torch_dtype": "float32", "initializer_factor": 1.0,
         "text_config": {k: v for k, v in inner.items() if k not in ("architectures", "torch_dtype")},
         "vision_config": {"attention_dropout": 0.0, "hidden_act": inner["hidden_act"], "hidden_size": 40,
                           "image_size": 16, "intermediate_size": 72, "layer_norm_eps": 0.05,
                           "model_type": f"{kind}_vision_model", "num_attention_heads": 2,
                           "num_channels": 3, "num_hidden_layers": 2, "patch_size": 4}} | outer
    t, v = Tensors(), "vision_model"
    siglip(t, v, 40, 72, 2, positions)
    if kind == "clip":
        t.rows = [r for r in t.rows if not r["name"].endswith("patch_embedding.bias")]
        t.add(f"{v}.embeddings.class_embedding", [40], 1.6)
        t.norm(f"{v}.pre_layrnorm", 40, bias=True)
        t.linear("visual_projection", 40, 40)
    else:
        h = f"{v}.head"
        t.add(f"{h}.probe", [1, 1, 40], 3.0)
        t.add(f"{h}.attention.in_proj_weight", [120, 40], 0.9)
        t.bias(f"{h}.attention.in_proj_bias", 120)
        t.linear(f"{h}.attention.out_proj", 40, 40, 1.5, True)
        t.norm(f"{h}.layernorm", 40, bias=True)
        t.linear(f"{h}.mlp.fc1", 72, 40, 1.6, True)
        t.linear(f"{h}.mlp.fc2", 40, 72, 2.5, True)
        t.add("logit_bias", [1], 1.0)
    t.add("logit_scale", [] if kind == "clip" else [1], 1.0)
    return c, rows + t.rows, [(4, 4), (4, 4)]


FAMILIES = (qwen2_vl, qwen2_5_vl, gemma3, qwen3_vl, qwen3_vl_moe, qwen3_5, idefics3, llava, mistral3,
            llava_next, llava_onevision, internvl, internvl_norms, glm4v, glm4v_moe, llama4, gemma4, kimi_k25, kimi_vl, clip,
            siglip_model)

# --------------------------------------------------------------------------------------- recording


def geometry(c):
    """Side of a patch, frames, patches along the side of what merges, the token of an image."""
    v = c["vision_config"]
    if "mm_tokens_per_image" in c:
        merge = v["image_size"] // v["patch_size"] // math.isqrt(c["mm_tokens_per_image"])
    elif "merge_kernel_size" in v:
        merge = v["merge_kernel_size"][0]
    elif "downsample_ratio" in c:
        merge = round(1 / c["downsample_ratio"])
    elif "pooling_kernel_size" in v:
        merge = v["pooling_kernel_size"]
    elif "pixel_shuffle_ratio" in v:
        merge = round(1 / v["pixel_shuffle_ratio"])
    else:
        merge = v.get("spatial_merge_size", c.get("spatial_merge_size", c.get("scale_factor", 1)))
    image = c.get("image_token_id", c.get("image_token_index", c.get("media_placeholder_token_id")))
    size = v["patch_size"]
    size = size[0] if isinstance(size, list) else size
    return size, v.get("temporal_patch_size", 1), merge, image


def patches(name, index, grid, size, frames):
    """[patches, channels × frames × size × size], all frames alike."""
    row = {"name": f"patches:{name}:{index}", "dtype": "F32", "scale": 3.0, "offset": 0.0,
           "shape": [grid[0] * grid[1], 3, size * size]}
    return np.repeat(values_of(row, ""), frames, axis=1).reshape(grid[0] * grid[1], -1)


def picture(rows, grid, merge, size):
    """The image whose patches these are, for towers that cut it themselves."""
    (h, w), m = grid, merge
    x = rows.reshape(h // m, w // m, m, m, 3, size, size)
    return x.transpose(4, 0, 2, 5, 1, 3, 6).reshape(3, h * size, w * size)


def prompt(name, counts, image):
    text = prompt_ids("vision/" + name, 5 + 5 * len(counts), 150)
    ids = text[:5]
    for at, rows in enumerate(counts):
        ids += [image] * rows + text[5 + 5 * at:10 + 5 * at]
    return ids


def cut(name, images, size, merge):
    """What models with canvases want to see: the whole and the tiles of each image."""
    import torch
    seen, number = [], 0
    for one in images:
        tiles = []
        for _ in range(1 + one["split"][0] * one["split"][1]):
            p = patches(name, number, one["tile"], size, 1)
            tiles.append(picture(p, one["tile"], merge, size))
            number += 1
        seen.append(np.stack(tiles))
    most = max(len(tiles) for tiles in seen)
    padded = [np.pad(t, ((0, most - len(t)),) + ((0, 0),) * 3) for t in seen]
    return {"pixel_values": torch.from_numpy(np.stack(padded)),
            "image_sizes": torch.tensor([one["size"] for one in images])}


def placed(pixels, images, merge, size):
    """What Gemma 4 wants to see: patches with their columns and rows, the numbers of a pixel side by side."""
    import torch
    most = max(len(p) for p in pixels)
    values, places = np.zeros((len(images), most, 3 * size * size), np.float32), -np.ones((len(images), most, 2), int)
    for i, (p, (h, w)) in enumerate(zip(pixels, images)):
        values[i, :len(p)] = p.reshape(-1, 3, size * size).transpose(0, 2, 1).reshape(len(p), -1)
        at = np.stack(np.meshgrid(np.arange(w), np.arange(h)), -1)
        at = at.reshape(h // merge, merge, w // merge, merge, 2).transpose(0, 2, 1, 3, 4)
        places[i, :len(p)] = at.reshape(-1, 2)
    return {"pixel_values": torch.from_numpy(values), "image_position_ids": torch.from_numpy(places)}


def vectors(model, c, name, seen):
    """What two towers record: a text's tokens, and its vector and those of the images, of length 1."""
    import torch
    ids = prompt_ids("vision/" + name, c["text_config"]["max_position_embeddings"], c["text_config"]["vocab_size"])
    if name == "clip":  # (Its last token is the one that ends a text.)
        end = c["text_config"]["eos_token_id"]
        ids = [i % end for i in ids[:50]] + [end]
    unit = torch.nn.functional.normalize
    text = unit(model.get_text_features(input_ids=torch.tensor([ids])).pooler_output[0], dim=0)
    return ids, text.numpy(), unit(model.get_image_features(**seen).pooler_output, dim=1).numpy()


def painted(model, name, side):
    """A picture of 20 x 14 pixels, by the family's processor: its vector."""
    import torch
    import transformers
    square = {"height": side, "width": side}
    processor = {"clip": lambda: transformers.CLIPImageProcessor(size={"shortest_edge": side}, crop_size=square),
                 "siglip": lambda: transformers.SiglipImageProcessor(size=square)}[name]()
    y, x = np.mgrid[:14, :20]
    pixels = np.stack([x * 12 % 256, y * 17 % 256, x * y % 256], -1).astype(np.uint8)
    seen = processor(images=[torch.from_numpy(pixels).permute(2, 0, 1)], return_tensors="pt")
    out = model.get_image_features(pixel_values=seen["pixel_values"]).pooler_output[0]
    return [float(f"{v:.8g}") for v in torch.nn.functional.normalize(out, dim=0)]


def load(folder, name):
    """The HF model in f32 with eager attention; every checkpoint tensor must have been used."""
    import torch
    import transformers
    if name == "kimi_vl":
        return KimiVl(folder)
    auto = transformers.AutoModel if name in ("clip", "siglip") else transformers.AutoModelForImageTextToText
    model, info = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                       output_loading_info=True)
    for key, found in info.items():
        assert not found, f"{key}: {found}"
    return model.float().eval()


def write_model(folder, c, rows, salt):
    """The files of a model."""
    import torch
    from safetensors.torch import save_file
    state = {r["name"]: torch.from_numpy(values_of(r, salt).copy()) for r in rows}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(c))


def seen_by(name, c, images):
    """What a model is given of images: grids of patches, or canvases."""
    import torch
    size, frames, merge, _ = geometry(c)
    if images and isinstance(images[0], dict):
        seen = cut(name, images, size, merge)
        if name == "llava_onevision":
            seen["batch_num_images"] = torch.tensor([1, 2])
        return seen
    pixels = [patches(name, i, grid, size, frames) for i, grid in enumerate(images)]
    if name == "gemma4":
        return placed(pixels, images, merge, size)
    if name in ("kimi_k25", "kimi_vl"):
        whole = [picture(p, g, merge, size) for p, g in zip(pixels, images)]
        raster = [x.reshape(3, h, size, w, size).transpose(1, 3, 0, 2, 4).reshape(-1, 3, size, size)
                  for x, (h, w) in zip(whole, images)]
        return {"pixel_values": torch.from_numpy(np.concatenate(raster)),
                "image_grid_thw": torch.tensor([[1, h, w] for h, w in images])}
    if frames == 1:
        whole = [picture(p, g, merge, size) for p, g in zip(pixels, images)]
        height, width = (max(p.shape[axis] for p in whole) for axis in (1, 2))
        padded = [np.pad(p, ((0, 0), (0, height - p.shape[1]), (0, width - p.shape[2])))
                  for p in whole]
        seen = {"pixel_values": torch.from_numpy(np.stack(padded))}
        if name == "idefics3":
            seen["pixel_values"] = seen["pixel_values"][None]
        if name == "mistral3":
            seen["image_sizes"] = torch.tensor([p.shape[1:] for p in whole])
        return seen
    return {"pixel_values": torch.from_numpy(np.concatenate(pixels)),
            "image_grid_thw": torch.tensor([[1, h, w] for h, w in images])}


def record(family, salt):
    import torch
    import transformers
    torch.set_grad_enabled(False)
    c, rows, images = family()
    name = family.__name__
    size, frames, merge, image = geometry(c)
    canvases = [[*one["split"], *one["size"]] for one in images if isinstance(one, dict)]
    with tempfile.TemporaryDirectory() as scratch:
        write_model(pathlib.Path(scratch), c, rows, salt)
        model = load(scratch, name)
    seen = seen_by(name, c, images)
    images = [one["tile"] if canvases else one for one in images]
    if name in ("clip", "siglip"):
        ids, text_vector, taken = vectors(model, c, name, seen)
        write(name, c, (rows, salt), {"ids": ids, "greedy": None, "images": images, "image_token": 0,
                                      "painted": painted(model, name, c["vision_config"]["image_size"]),
                                      "meta": {"transformers": transformers.__version__}})
        taken.astype("<f4").tofile(HERE / name / "rows.f32")
        text_vector.astype("<f4").tofile(HERE / name / "embedding.f32")
        write_v5(name)
        return f"{name}: {len(ids)} ids, rows {taken.shape}, {taken[0] @ text_vector:.3f}"
    parts = rows_of(model, name, seen)
    taken = np.concatenate(parts)
    counts = [len(p) for p in parts]
    if len(parts) != len(images):
        counts = [h // merge * (w // merge) for h, w in images]
    assert sum(counts) == len(taken), (counts, taken.shape)
    ids = prompt(name, counts, image)

    def run(sequence):
        tokens = torch.tensor([sequence])
        if name == "llama4":  # (Its own forward asks the language model for what that does not have.)
            table = model.language_model.model.embed_tokens.weight[tokens[0]].clone()
            table[tokens[0] == image] = torch.from_numpy(taken)
            return model.language_model(inputs_embeds=table[None], use_cache=False).logits[0].numpy()
        kinds = (tokens == image).long()
        return model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False,
                     **seen, **{key: kinds for key in KINDS.get(name, [])}).logits[0].numpy()

    logits = run(ids)
    sequence, least = list(ids), math.inf
    for _ in range(STEPS):
        last = run(sequence)[-1]
        best = np.sort(last)[::-1]
        least = min(least, float(best[0] - best[1]))
        if last.argmax() == image:
            return None
        sequence.append(int(last.argmax()))
    greedy = sequence[len(ids):]
    if least < 1e-3 or len(set(greedy)) < 6:
        return None
    target = HERE / name
    golden = {"ids": ids, "greedy": greedy, "images": images, "image_token": image, "meta": {"greedy_margin": least,
              "transformers": transformers.__version__}}
    if canvases:
        golden["canvases"] = canvases
    write(name, c, (rows, salt), golden)
    taken.astype("<f4").tofile(target / "rows.f32")
    logits.astype("<f4").tofile(target / "logits.f32")
    write_v5(name)
    return f"{name}: {len(ids)} ids, rows {taken.shape}, margin {least:.4f}"


def write(name, c, tensors, golden):
    """All of a folder but its numbers."""
    target, (rows, salt) = HERE / name, tensors
    target.mkdir(exist_ok=True)
    (target / "config.json").write_text(json.dumps(c, indent=2) + "\n")
    (target / "tensors.json").write_text(
        '{"salt": ' + json.dumps(salt) + ', "tensors": [\n'
        + ",\n".join(json.dumps(r) for r in rows) + "\n]}\n")
    (target / "golden.json").write_text(json.dumps(golden) + "\n")


# What the models want to know of each token beside its id.
KINDS = {"qwen2_vl": ["mm_token_type_ids"], "qwen2_5_vl": ["mm_token_type_ids"],
         "qwen3_vl": ["mm_token_type_ids"], "qwen3_5": ["mm_token_type_ids"],
         "qwen3_vl_moe": ["mm_token_type_ids"], "glm4v": ["mm_token_type_ids"],
         "glm4v_moe": ["mm_token_type_ids"], "gemma3": ["token_type_ids"],
         "gemma4": ["mm_token_type_ids"]}


def rows_of(model, name, seen):
    """What stands in the place of the images' tokens, columns of later layers behind the first."""
    if name == "kimi_vl":
        return [model.rows(**seen).numpy()]
    if name == "llama4":
        out = model.get_image_features(**seen).last_hidden_state
        return [p.numpy() for p in model.multi_modal_projector(out)]
    if "image_grid_thw" not in seen or name == "kimi_k25":
        out = model.model.get_image_features(**seen)
        out = getattr(out, "pooler_output", out)
        parts = out if isinstance(out, (list, tuple)) else [out]
        return [p.reshape(-1, p.shape[-1]).numpy() for p in parts]
    found = model.model.visual(seen["pixel_values"], grid_thw=seen["image_grid_thw"])
    if hasattr(found, "pooler_output"):
        deep = getattr(found, "deepstack_features", None) or []
        parts = [found.pooler_output, *deep]
    elif isinstance(found, tuple):
        parts = [found[0], *found[1]]
    else:
        parts = [found]
    return [np.concatenate([p.numpy() for p in parts], axis=1)]


def write_v5(name):
    """The same configuration as transformers 5 writes it (of Kimi-VL, which it has not, as it is)."""
    import transformers
    if name == "kimi_vl":
        return (HERE / name / "config.v5.json").write_text((HERE / name / "config.json").read_text())
    with tempfile.TemporaryDirectory() as scratch:
        text = (HERE / name / "config.json").read_text()
        (pathlib.Path(scratch) / "config.json").write_text(text)
        auto = transformers.AutoConfig.from_pretrained(scratch)
    found = json.loads(auto.to_json_string(use_diff=False))
    for key in ("transformers_version", "_name_or_path"):
        found.pop(key, None)
    (HERE / name / "config.v5.json").write_text(json.dumps(found, indent=1) + "\n")


# How the encoders' files of llama.cpp call tensors; `{l}` is the layer. (conversion/qwenvl.py,
# qwen3vl.py, gemma.py and smolvlm.py there say which, and what becomes of each.)
NAMES = [
    (r"embeddings\.patch_embeddings\.projection", "v.patch_embd"),
    (r"embeddings\.cls_token", "v.class_embd"),
    (r"embeddings\.position_embeddings", "v.position_embd.weight"),
    (r"encoder\.layer\.(\d+)\.attention\.([qkv])_proj", r"v.blk.\1.attn_\2"),
    (r"encoder\.layer\.(\d+)\.attention\.([qk])_norm", r"v.blk.\1.attn_\2_norm"),
    (r"encoder\.layer\.(\d+)\.attention\.projection_layer", r"v.blk.\1.attn_out"),
    (r"encoder\.layer\.(\d+)\.layernorm_before", r"v.blk.\1.ln1"),
    (r"encoder\.layer\.(\d+)\.layernorm_after", r"v.blk.\1.ln2"),
    (r"encoder\.layer\.(\d+)\.lambda_(\d)", r"v.blk.\1.ls\2.weight"),
    (r"encoder\.layer\.(\d+)\.mlp\.fc1", r"v.blk.\1.ffn_up"),
    (r"encoder\.layer\.(\d+)\.mlp\.fc2", r"v.blk.\1.ffn_down"),
    (r"layernorm", "v.post_ln"),
    (r"layer_norm", "mm.model.mlp.0"),
    (r"linear_1", "mm.model.mlp.1"),
    (r"linear_2", "mm.model.mlp.3"),
    (r"patch_embed\.proj|embeddings\.patch_embedding", "v.patch_embd"),
    (r"pos_embed|embeddings\.position_embedding", "v.position_embd"),
    (r"blocks\.(\d+)\.norm(\d)", r"v.blk.\1.ln\2"),
    (r"encoder\.layers\.(\d+)\.layer_norm(\d)", r"v.blk.\1.ln\2"),
    (r"blocks\.(\d+)\.attn\.qkv", r"v.blk.\1.attn_qkv"),
    (r"blocks\.(\d+)\.attn\.proj", r"v.blk.\1.attn_out"),
    (r"encoder\.layers\.(\d+)\.self_attn\.([qkv])_proj", r"v.blk.\1.attn_\2"),
    (r"encoder\.layers\.(\d+)\.self_attn\.out_proj", r"v.blk.\1.attn_out"),
    (r"(?:blocks|encoder\.layers)\.(\d+)\.mlp\.(?:linear_)?(?:fc1|up_proj)", r"v.blk.\1.ffn_up"),
    (r"(?:blocks|encoder\.layers)\.(\d+)\.mlp\.(?:linear_)?(?:fc2|down_proj)", r"v.blk.\1.ffn_down"),
    (r"blocks\.(\d+)\.mlp\.gate_proj", r"v.blk.\1.ffn_gate"),
    (r"merger\.ln_q|merger\.norm|post_layernorm", "v.post_ln"),
    (r"embeddings\.class_embedding", "v.class_embd"),
    (r"pre_layrnorm|ln_pre", "v.pre_ln"),
    (r"patch_conv", "v.patch_embd"),
    (r"transformer\.layers\.(\d+)\.attention_norm", r"v.blk.\1.ln1"),
    (r"transformer\.layers\.(\d+)\.ffn_norm", r"v.blk.\1.ln2"),
    (r"transformer\.layers\.(\d+)\.attention\.([qkv])_proj", r"v.blk.\1.attn_\2"),
    (r"transformer\.layers\.(\d+)\.attention\.o_proj", r"v.blk.\1.attn_out"),
    (r"transformer\.layers\.(\d+)\.feed_forward\.(gate|up|down)_proj", r"v.blk.\1.ffn_\2"),
    (r"patch_merger\.merging_layer", "mm.patch_merger"),
    (r"norm", "mm.input_norm"),
    (r"merger\.mlp\.0|merger\.linear_fc1|linear_1", "mm.0"),
    (r"merger\.mlp\.2|merger\.linear_fc2|linear_2", "mm.2"),
    (r"mm_soft_emb_norm", "mm.soft_emb_norm"),
    (r"mm_input_projection_weight", "mm.input_projection.weight"),
    (r"modality_projection\.proj", "mm.model.fc"),
    (r"deepstack_merger_list\.(\d+)\.(?:linear_)?(norm|fc1|fc2)", r"v.deepstack.\1.\2"),
]
PREFIXES = ("visual.", "model.visual.", "vision_tower.vision_model.", "vision_tower.", "multi_modal_projector.",
            "model.vision_model.", "model.connector.")
PROJECTORS = {"qwen2_vl": "qwen2vl_merger", "qwen2_5_vl": "qwen2.5vl_merger",
              "qwen3_vl": "qwen3vl_merger", "gemma3": "gemma3", "idefics3": "idefics3",
              "internvl": "internvl", "internvl_norms": "internvl", "llava": "mlp", "llava_next": "mlp",
              "mistral3": "pixtral"}


def encoder_name(name, deep):
    if name == "image_newline":
        return "model.image_newline"
    prefix = max((p for p in PREFIXES if name.startswith(p)), key=len, default=None)
    if prefix is None:
        return None
    stem = name[len(prefix):]
    for pattern, new in NAMES:
        found = re.match(pattern, stem)
        if found:
            new = found.expand(new)
            if new.startswith("v.deepstack."):
                parts = new.split(".")
                parts[2] = str(deep[int(parts[2])])
                new = ".".join(parts)
            return new + stem[found.end():]
    raise SystemExit(f"no name for {name}")


def write_mmproj(name):
    """The encoder of a recording as a file of its own, as llama.cpp's converter lays it out."""
    import gguf
    import twins
    target = HERE / name
    c = json.loads((target / "config.json").read_text())
    v = c["vision_config"]
    listed = json.loads((target / "tensors.json").read_text())
    flats = [values_of(r, listed["salt"]) for r in listed["tensors"]]
    side = v.get("image_size") or math.isqrt(v.get("num_position_embeddings", 0)) * v["patch_size"]
    hidden = v.get("embed_dim", v["hidden_size"])
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / "mmproj.gguf"
        w = gguf.GGUFWriter(path, "clip")
        w.add_bool("clip.has_vision_encoder", True)
        w.add_string("clip.projector_type", PROJECTORS[name])
        numbers = {"embedding_length": hidden, "block_count": v.get("depth", v.get("num_hidden_layers")),
                   "attention.head_count": v.get("num_heads", v.get("num_attention_heads")),
                   "feed_forward_length": v.get("intermediate_size", int(hidden * v.get("mlp_ratio", 0))),
                   "patch_size": v["patch_size"], "image_size": side or 560,
                   "projection_dim": c.get("text_config", c)["hidden_size"]}
        if "spatial_merge_size" in v:
            numbers["spatial_merge_size"] = v["spatial_merge_size"]
        if name == "gemma3":
            numbers["projector.scale_factor"] = 2
        if name == "idefics3":
            numbers["projector.scale_factor"] = c["scale_factor"]
        if name.startswith("internvl"):
            numbers["projector.scale_factor"] = round(1 / c["downsample_ratio"])
            numbers |= {"patch_size": v["patch_size"][0], "image_size": side[0]}
        if name == "qwen2_5_vl":
            numbers |= {"n_wa_pattern": v["fullatt_block_indexes"][0] + 1,
                        "window_size": v["window_size"]}
            w.add_bool("clip.use_silu", True)
        elif name == "mistral3":
            w.add_bool("clip.use_silu", True)
            # (The converter writes it for files in Mistral's own format; they have another base.)
            w.add_float32("clip.rope.freq_base", v["rope_theta"])
            numbers["spatial_merge_size"] = c["spatial_merge_size"]
        elif name not in ("qwen2_vl", "llava", "llava_next"):
            w.add_bool("clip.use_gelu", True)
        if name == "llava_next":
            w.add_array("clip.vision.image_grid_pinpoints", sum(c["image_grid_pinpoints"], []))
            w.add_string("clip.vision.mm_patch_merge_type", "spatial_unpad")
        if name.startswith("llava"):
            # (Layers behind the one that is taken are not written.)
            numbers["block_count"] += c["vision_feature_layer"] + 1
            w.add_array("clip.vision.feature_layer", [numbers["block_count"]])
        for key, value in numbers.items():
            w.add_uint32(f"clip.vision.{key}", value)
        w.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5 if name.startswith(("llava", "mistral3")) else 1e-6)
        for key in ("image_mean", "image_std"):
            w.add_array(f"clip.vision.{key}", [0.5, 0.5, 0.5])
        deep = v.get("deepstack_visual_indexes", [])
        if name == "qwen3_vl":
            w.add_array("clip.vision.is_deepstack_layers", [i in deep for i in range(v["depth"])])
        for row, data in zip(listed["tensors"], flats):
            new = encoder_name(row["name"], deep)
            if new is None:
                continue
            if name in ("llava", "llava_next", "mistral3"):
                # (linear_1 and linear_2, as they are called or as layers of a list.)
                new = new.replace("mm.model.mlp.1", "mm.1" if name == "mistral3" else "mm.0")
                new = new.replace("mm.model.mlp.3", "mm.2")
            if name == "mistral3" and re.search(r"attn_[qk]\.weight", new):
                heads = v["num_attention_heads"]
                data = data.reshape(heads, 2, -1, data.shape[1]).swapaxes(1, 2).reshape(data.shape)
            if name.startswith("llava"):
                layer = re.match(r"v\.blk\.(\d+)\.", new)
                if new.startswith("v.post_ln") or layer and int(layer[1]) >= numbers["block_count"]:
                    continue
                # (The converter of this form has the two the other way round.)
                swap = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
                new = re.sub("ffn_up|ffn_down", lambda m: swap[m[0]], new)
            if data.ndim == 5:
                w.add_tensor(new, data[:, :, 0].copy())
                w.add_tensor(new + ".1", data[:, :, 1].copy())
            elif ".attn_qkv." in new and not name.startswith("qwen3"):
                for part, third in zip("qkv", np.split(data, 3)):
                    w.add_tensor(new.replace("attn_qkv", f"attn_{part}"), third.copy())
            elif new in ("v.class_embd", "v.position_embd.weight"):
                w.add_tensor(new, data.reshape(-1, data.shape[-1]).squeeze())
            else:
                # (Norms around one are stored as they count.)
                w.add_tensor(new, data + np.float32(1) if "soft_emb_norm" in new else data)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()
        (target / "mmproj.json").write_text(twins.describe(path, [f.ravel() for f in flats]))
    return f"{name}: mmproj.json"


TEXTS = {"qwen2_vl": "qwen2vl", "qwen2_5_vl": "qwen2vl", "qwen3_vl": "qwen3vl", "llava": "llama", "llava_next": "llama",
         "idefics3": "llama", "mistral3": "llama", "internvl": "qwen2", "internvl_norms": "qwen3", "gemma3": "gemma3"}
TEXT_NAMES = {"embed_tokens": "token_embd", "norm": "output_norm", "input_layernorm": "attn_norm",
              "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
              "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
              "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm",
              "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
# Gemma's norms are on both sides of a part, and stored as what is added to one.
GEMMA_NAMES = TEXT_NAMES | {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
                            "post_feedforward_layernorm": "post_ffw_norm"}


def text_name(name, names):
    """The name in GGUF of a tensor of a language model; none for others."""
    if name.endswith("lm_head.weight"):
        return "output.weight"
    found = re.match(r"(?:model\.|language_model\.|text_model\.)*(?:layers\.(\d+)\.)?(.*)\.(weight|bias)$", name)
    if not found or found[2] not in names or "visual" in name:
        return None
    layer = "" if found[1] is None else f"blk.{found[1]}."
    return f"{layer}{names[found[2]]}.{found[3]}"


def write_text(name):
    """The language model of a recording as a GGUF file, to stand beside its mmproj file."""
    import gguf
    import twins
    target = HERE / name
    c = json.loads((target / "config.json").read_text())
    t = c.get("text_config", c)
    listed = json.loads((target / "tensors.json").read_text())
    flats = [values_of(r, listed["salt"]) for r in listed["tensors"]]
    with tempfile.TemporaryDirectory() as scratch:
        path, arch = pathlib.Path(scratch) / "text.gguf", TEXTS[name]
        w = gguf.GGUFWriter(path, arch)
        w.add_block_count(t["num_hidden_layers"])
        w.add_context_length(t["max_position_embeddings"])
        w.add_embedding_length(t["hidden_size"])
        w.add_feed_forward_length(t["intermediate_size"])
        w.add_head_count(t["num_attention_heads"])
        w.add_head_count_kv(t["num_key_value_heads"])
        w.add_layer_norm_rms_eps(t["rms_norm_eps"])
        w.add_vocab_size(t["vocab_size"])
        w.add_string("tokenizer.ggml.model", "none")
        rope = t.get("rope_scaling") or t.get("rope_parameters") or {}
        w.add_rope_freq_base(t.get("rope_theta") or rope.get("rope_theta", 10000.0))
        if "mrope_section" in rope:
            w.add_array(f"{arch}.rope.dimension_sections", [*rope["mrope_section"], 0])
        if arch == "gemma3":
            w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            w.add_rope_scaling_factor(rope["factor"])
            w.add_float32("gemma3.rope.freq_base_swa", t["rope_local_base_freq"])
            w.add_sliding_window(t["sliding_window"])
        if "head_dim" in t:
            w.add_key_length(t["head_dim"])
            w.add_value_length(t["head_dim"])
        if deep := c["vision_config"].get("deepstack_visual_indexes"):
            w.add_uint32(f"{arch}.n_deepstack_layers", len(deep))
        for row, data in zip(listed["tensors"], flats):
            new = text_name(row["name"], GEMMA_NAMES if arch == "gemma3" else TEXT_NAMES)
            if new and arch == "llama" and (found := re.search(r"attn_([qk])\.weight", new)):
                # (Pairs that turn lie beside each other.)
                heads = t["num_attention_heads" if found[1] == "q" else "num_key_value_heads"]
                data = data.reshape(heads, 2, -1, data.shape[1]).swapaxes(1, 2).reshape(data.shape)
            if new:
                w.add_tensor(new, data + np.float32(1) if arch == "gemma3" and "norm" in new else data)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()
        (target / "twin.json").write_text(twins.describe(path, [f.ravel() for f in flats]))
    return f"{name}: twin.json"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--mmproj", action="store_true", help="only the GGUF files")
    args = parser.parse_args()
    wanted = args.names
    for family in FAMILIES:
        if wanted and family.__name__ not in wanted:
            continue
        if args.mmproj:
            if family.__name__ in PROJECTORS:
                print(write_mmproj(family.__name__))
            if family.__name__ in TEXTS:
                print(write_text(family.__name__))
            continue
        for salt in ["", *(f"#{i}" for i in range(1, 20))]:
            told = record(family, salt)
            if told:
                print(told, f"salt {salt!r}")
                break
        else:
            sys.exit(f"{family.__name__}: no salt will do")


if __name__ == "__main__":
    main()
