"""Weights of tiny models as an integer hash (README.md has the definition), and the words in which
families describe their tensors."""

import math

import numpy as np

MASK = (1 << 64) - 1

# ---------------------------------------------------------------------------------------- the hash


def fnv1a64(text):
    """FNV-1a 64 of the UTF-8 bytes of `text`."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def splitmix64(values):
    """The standard splitmix64 step of each element of a uint64 array (increment, then mix)."""
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def raw(name, count):
    """uint64[count]: the hash of elements 0..count of the tensor called `name`."""
    with np.errstate(over="ignore"):
        return splitmix64(np.uint64(fnv1a64(name)) + np.arange(count, dtype=np.uint64))


def round_bf16(values):
    """f32 values rounded to bfloat16, to nearest with ties to even; returns f32."""
    bits = values.view(np.uint32)
    bits = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


def values_of(tensor, salt):
    """The tensor's values: f32 array (rounded to bf16 where its dtype says so) or uint8 array."""
    count = math.prod(tensor["shape"])
    x = raw(tensor["name"] + salt, count)
    if tensor["dtype"] == "U8":
        top = (x >> np.uint64(56)).astype(np.uint32)
        data = (tensor["offset"] + top % tensor["scale"]).astype(np.uint8)
        return data.reshape(tensor["shape"])
    v = (x >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24) - np.float32(0.5)
    data = np.float32(tensor["offset"]) + np.float32(tensor["scale"]) * v
    data = data.astype(np.float32)
    if tensor["dtype"] == "BF16":
        data = round_bf16(data)
    return data.reshape(tensor["shape"])


def prompt_ids(arch, count, vocab):
    """Prompt token ids: splitmix64 of the hash of "prompt:<arch>", modulo the vocabulary."""
    return [int(x % np.uint64(vocab)) for x in raw("prompt:" + arch, count)]


# --------------------------------------------------------------------------- describing the tensors


def short(value):
    """A scale kept to three digits, so that JSON holds it exactly as used."""
    return float(f"{value:.3g}")


class Tensors:
    """Collects the tensor table of one family, in checkpoint names."""

    def __init__(self, dtype="F32"):
        self.rows = []
        self.dtype = dtype

    def add(self, name, shape, scale, offset=0.0, dtype=None):
        self.rows.append({"name": name, "shape": list(shape), "dtype": dtype or self.dtype,
                          "scale": scale, "offset": offset})

    def linear(self, name, rows, cols, gain=1.0, bias=False):
        """`gain` is the standard deviation of the outputs for inputs of unit RMS."""
        self.add(name + ".weight", [rows, cols], short(2 * math.sqrt(3 / cols) * gain))
        if bias:
            self.bias(name + ".bias", rows)

    def bias(self, name, count, scale=0.5):
        self.add(name, [count], scale)

    def norm(self, name, count, offset=1.0, bias=False):
        self.add(name + ".weight", [count], 0.5, offset)
        if bias:
            self.bias(name + ".bias", count)

    def embed(self, name, vocab, hidden, std=1.0):
        self.add(name + ".weight", [vocab, hidden], short(math.sqrt(12) * std))

    def head(self, vocab, hidden, gain=2.2):
        self.linear("lm_head", vocab, hidden, gain)

    def gated(self, prefix, hidden, inner, names=("gate_proj", "up_proj", "down_proj"), down=1.6):
        self.linear(f"{prefix}.{names[0]}", inner, hidden, 1.3)
        self.linear(f"{prefix}.{names[1]}", inner, hidden, 1.2)
        self.linear(f"{prefix}.{names[2]}", hidden, inner, down)

    def attention(self, prefix, c, peak=1.7, bias=(), out="o_proj"):
        """q, k, v and output projections; `bias` names those that have one."""
        hidden, dim = c["hidden_size"], head_dim(c)
        q, kv = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
        self.linear(f"{prefix}.q_proj", q, hidden, peak, "q" in bias)
        self.linear(f"{prefix}.k_proj", kv, hidden, peak, "k" in bias)
        self.linear(f"{prefix}.v_proj", kv, hidden, 1.2, "v" in bias)
        self.linear(f"{prefix}.{out}", hidden, q, 1.5, "o" in bias)

    def qk_norm(self, prefix, q, k, offset=1.6, names=("q_norm", "k_norm")):
        self.norm(f"{prefix}.{names[0]}", q, offset)
        self.norm(f"{prefix}.{names[1]}", k, offset)


def head_dim(c):
    return c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]


def decoder(c, layer, norm_offset=1.0, embed_std=None, dtype="F32", norm="model.norm"):
    """The tensors around the layers: embedding, `layer(t, i, prefix)` for each, norm, head."""
    t = Tensors(dtype)
    tied = c.get("tie_word_embeddings", c.get("tie_embedding", False))
    std = embed_std or (0.3 if tied else 1.0)
    t.embed("model.embed_tokens", c["vocab_size"], c["hidden_size"], std)
    for i in range(c["num_hidden_layers"]):
        layer(t, i, f"model.layers.{i}")
    t.norm(norm, c["hidden_size"], norm_offset)
    if not tied:
        t.head(c["vocab_size"], c["hidden_size"])
    return t.rows


def encoder(c):
    """The tensors of a BERT."""
    t, h, inner = Tensors(), c["hidden_size"], c["intermediate_size"]
    for name, rows in (("word", c["vocab_size"]), ("position", c["max_position_embeddings"]),
                       ("token_type", c["type_vocab_size"])):
        t.embed(f"embeddings.{name}_embeddings", rows, h, 0.8)
    t.norm("embeddings.LayerNorm", h, bias=True)
    for i in range(c["num_hidden_layers"]):
        p = f"encoder.layer.{i}"
        t.linear(f"{p}.attention.self.query", h, h, 1.7, bias=True)
        t.linear(f"{p}.attention.self.key", h, h, 1.7, bias=True)
        t.linear(f"{p}.attention.self.value", h, h, 1.2, bias=True)
        t.linear(f"{p}.attention.output.dense", h, h, 1.5, bias=True)
        t.norm(f"{p}.attention.output.LayerNorm", h, bias=True)
        t.linear(f"{p}.intermediate.dense", inner, h, 1.6, bias=True)
        t.linear(f"{p}.output.dense", h, inner, 4.0, bias=True)
        t.norm(f"{p}.output.LayerNorm", h, bias=True)
    t.linear("pooler.dense", h, h, 1.0, bias=True)
    return t.rows


def config(arch, model_type, **fields):
    """Fields every hub config.json of a decoder has, in the layout files on the hub use."""
    base = {"architectures": [arch], "model_type": model_type, "torch_dtype": "float32",
            "hidden_act": "silu", "max_position_embeddings": 512, "rms_norm_eps": 0.01,
            "rope_theta": 10000.0, "tie_word_embeddings": False, "attention_bias": False,
            "attention_dropout": 0.0, "use_cache": True, "initializer_range": 0.02,
            "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
    base.update(fields)
    return {k: v for k, v in base.items() if v is not ABSENT}


ABSENT = object()
