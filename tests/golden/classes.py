"""Writes crates/models/src/classes.txt: what transformers' configuration class of every family knows
and what it takes where config.json is silent.

    python tests/golden/classes.py            # write
    python tests/golden/classes.py --check    # compare, write nothing

A section is a class: `[model_type other…]`, the others being models around it whose text part has
this class where they do not say its type. Lines of a section:

    key = value       a field and its default (JSON); null: there is none; `| null`: may be null too
    key -> field      another name of a field
    key ?             read where present, by the class or its model, without being a field
    rope.theta = x    default of the rotary base, for one kind of layer where that stands behind
    rope.default.key  what such a map has where the file has none, if that stretches the rotation
    rope.partial = x  default of the rotated part of a head, for models that know such a part

Sections behind these, `[model_type.vision]`, are of the encoders of images of such models.
"""

import argparse
import dataclasses
import inspect
import json
import math
import pathlib
import re
import sys

import transformers
from transformers import AutoConfig, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = ROOT / "crates/models/src/classes.txt"

# Families of crates/models/src/arch, as config.json spells them.
TYPES = """llama llama4_text mistral ministral ministral3 mixtral qwen2 qwen3 qwen3_moe qwen3_next
gemma gemma2 gemma3_text gemma3n_text gemma4_text gpt_oss deepseek_v2 deepseek_v3 falcon_h1 lfm2
cohere cohere2 phi phi3 olmo2 olmo3 olmoe granite granitemoe granitemoeshared granitemoehybrid
smollm3 glm glm4 glm4_moe exaone4 starcoder2 nemotron stablelm gpt2 gpt_neox seed_oss arcee ernie4_5
qwen2_moe mamba2 minimax_m2 qwen3_5_text qwen3_5_moe_text qwen2_vl_text qwen2_5_vl_text
qwen3_vl_text qwen3_vl_moe_text glm4v_text glm4v_moe_text bert xlm-roberta roberta camembert
distilbert electra nomic_bert modernbert clip_text_model siglip_text_model""".split()

# Models around a text part, whose own type such files give.
AROUND = """llama4 gemma3 gemma3n gemma4 qwen3_5 qwen3_5_moe mistral3 qwen2_vl qwen2_5_vl
qwen3_vl qwen3_vl_moe glm4v glm4v_moe clip siglip""".split()

# Models with an encoder of images (crates/models/src/vision); their sections are `[TYPE.vision]`.
SEEING = """qwen2_vl qwen2_5_vl gemma3 qwen3_vl qwen3_vl_moe qwen3_5 qwen3_5_moe idefics3 smolvlm llava
llava_next llava_onevision internvl glm4v
glm4v_moe llama4
gemma4 kimi_k25 mistral3 clip siglip""".split()

# Types whose class is another's: transformers has none, their configuration is that one's.
SAME = {"deepseek_v3": ["kimi_k2"]}

# How the models' own code calls fields of a class that came later.
OWN_NAMES = {"nomic_bert": {
    "n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers",
    "n_inner": "intermediate_size", "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps", "rotary_emb_base": "rope_theta"}}

# Classes that transformers has not, as their models' own code has them.
OWN_CLASSES = {"kimi_vl.vision": {
    "patch_size": 14, "init_pos_emb_height": 64, "init_pos_emb_width": 64, "num_attention_heads": 16,
    "num_hidden_layers": 27, "hidden_size": 1152, "intermediate_size": 4304, "merge_kernel_size": [2, 2]}}

# What may be null by its type, but stops the model.
NEVER_NULL = {"glm": ["head_dim"]}

# Not of a family's own: of every class, and of no consequence for numbers.
BASE = {f.name for f in dataclasses.fields(PreTrainedConfig)}

ROPE = ("rope_scaling", "rope_theta", "partial_rotary_factor",
        "original_max_position_embeddings")


def literal(value):
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(literal(v) for v in value) + "]"
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    return json.dumps(value)


def default(field):
    if field.default is not dataclasses.MISSING:
        return field.default
    return None if field.default_factory is dataclasses.MISSING else field.default_factory()


def read_where_present(cls):
    """Names that the class takes from what is no field, and that its model asks for by name."""
    names = set(re.findall(r'kwargs\.(?:pop|get|setdefault)\(\s*"(\w+)"', inspect.getsource(cls)))
    module = inspect.getmodule(cls).__file__
    model = pathlib.Path(module.replace("configuration_", "modeling_"))
    names |= set(re.findall(r'getattr\((?:self\.)?config, "(\w+)"', model.read_text()))
    return names, model.read_text()


def section(kind, around):
    return section_of(CONFIG_MAPPING[kind], kind, around)


def encoder_of(kind):
    """The class of the encoder of a model that sees."""
    cls = CONFIG_MAPPING[kind].sub_configs["vision_config"]
    if cls is not AutoConfig:
        return cls
    return CONFIG_MAPPING[CONFIG_MAPPING[kind].sub_configs_defaults["vision_config"].model_type]


def section_of(cls, kind, around):
    fields = {f.name: default(f) for f in dataclasses.fields(cls) if f.name not in BASE}
    optional, model = read_where_present(cls)
    optional |= {"per_layer_config"} if "per_layer_config" in inspect.getsource(cls) else set()
    rotates = "rope_parameters" in fields
    if rotates:
        optional |= set(ROPE)
    lines = [f"[{' '.join([kind, *around])}]"]
    empty = {f.name for f in dataclasses.fields(cls) if "None" in str(f.type)}
    empty -= set(NEVER_NULL.get(kind, []))
    lines += [f"{k} = {literal(v)}" + " | null" * (k in empty and v is not None)
              for k, v in sorted(fields.items())]
    names = dict(spelling(pair, fields) for pair in cls.attribute_map.items())
    names = {k: v for k, v in names.items() if v in fields} | OWN_NAMES.get(kind, {})
    lines += [f"{k} -> {v}" for k, v in sorted(names.items())]
    lines += [f"{k} ?" for k in sorted(optional - set(fields) - set(names) - BASE)]
    if rotates:
        lines += rotation(cls, model)
    return lines


def spelling(pair, fields):
    """Another name and the field it stands for; some classes map a field to a name."""
    return pair if pair[1] in fields else pair[::-1]


def rotation(cls, model):
    """The rotary embedding of a configuration that says nothing of it."""
    found = cls().rope_parameters
    nested = {k: v for k, v in found.items() if isinstance(v, dict)} or {"": found}
    usual = cls.default_theta
    usual = {"full": usual["global"], "sliding": usual["local"]} if isinstance(usual, dict) else usual
    lines = []
    for kind, values in nested.items():
        at = f".{kind}" if kind else ""
        theta = float(usual[kind.split("_")[0]] if isinstance(usual, dict) else usual)
        lines.append(f"rope.theta{at} = {literal(theta)}")
        if values.get("rope_type", "default") != "default":
            rest = {k: v for k, v in values.items() if k != "type" and (k, v) != ("rope_theta", theta)}
            lines += [f"rope.default{at}.{k} = {literal(v)}" for k, v in sorted(rest.items())]
    inner = model[model.find("def compute_default_rope_parameters"):]
    inner = inner[:inner.find("return inv_freq")]
    if 'rope_parameters.get("partial_rotary_factor"' in inner or "partial_rotary" in inner:
        part = nested.get("", {}).get("partial_rotary_factor", 1.0)
        lines.append(f"rope.partial = {literal(float(part))}")
    return lines


def text_of(kind):
    """The type of the text part of a model around one, where the file does not say it."""
    spec = CONFIG_MAPPING[kind].sub_configs_defaults["text_config"]
    if spec.config_class is AutoConfig:
        return spec.model_type
    return spec.config_class.model_type


def written():
    around = {kind: list(others) for kind, others in SAME.items()}
    for kind in AROUND:
        around.setdefault(text_of(kind), []).append(kind)
    head = [f"# Written by tests/golden/classes.py from transformers {transformers.__version__}; the"
            " lines are explained there."]
    lines = head + [line for kind in TYPES for line in [""] + section(kind, around.get(kind, []))]
    lines += [line for kind in SEEING
              for line in [""] + section_of(encoder_of(kind), kind + ".vision", [])]
    for kind, fields in OWN_CLASSES.items():
        lines += ["", f"[{kind}]"] + [f"{k} = {literal(v)}" for k, v in sorted(fields.items())]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    text = written()
    if not parser.parse_args().check:
        TARGET.write_text(text)
    elif text != TARGET.read_text():
        sys.exit(f"{TARGET} differs from what transformers {transformers.__version__} says")


if __name__ == "__main__":
    main()
