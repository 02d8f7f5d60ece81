"""Which other legal values sweep.py gives to the keys of a configuration."""

import copy

# A key that is given one changed value only to prove that nothing depends on it.
BOOKKEEPING = {
    "transformers_version": "4.40.0", "torch_dtype": "bfloat16", "dtype": "bfloat16",
    "pad_token_id": 3, "bos_token_id": 4, "eos_token_id": 5, "initializer_range": 0.5,
    "_name_or_path": "a/name", "cls_token_id": 3, "sep_token_id": 3, "mask_token_id": 3,
}

# Keys that are left as they are, with the reason.
SKIPPED = {
    "model_type": "another model",
    "architectures": "another head",
    "return_dict": "shape of what Python functions return",
    "output_hidden_states": "what Python functions return",
    "output_attentions": "what Python functions return",
    "output_router_logits": "what Python functions return",
    "is_encoder_decoder": "generation in Python",
    "id2label": "count of a classifier's labels: tested beside its reader",
    "label2id": "names of a classifier's labels",
    "num_labels": "count of a classifier's labels: tested beside its reader",
    "problem_type": "the loss of a classifier",
    "quantization_config": "how weights are stored: tests of the quantised families",
    "per_layer_config": "heterogeneous models: no family here has one",
    "chunk_size_feed_forward": "an order of computation that changes no result",
    "vision_config": "images", "audio_config": "sound", "text_config": "the file is the text part",
    "cross_attention_hidden_size": "needs another model's states",
    "model_args": "the original training program's own arguments",
    "transformers_version": "who wrote the file",
    "residual_in_fp32": "all is f32 here",
    "reorder_and_upcast_attn": "all is f32 here",
}

# Keys that are never taken out, with the reason.
KEPT = {
    "pad_token_id": "the default lies beyond these small vocabularies",
    "vocab_size": "the rows of the embedding say it too",
    "vocab_size_per_layer_input": "the rows of the embedding say it too",
}

# Of families, keys that are never taken out: other names in the file say the same, which the models'
# own code reads.
KEPT_OF = {
    "nomic_bert": ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"],
}

ACTIVATIONS = ["silu", "gelu", "gelu_pytorch_tanh", "gelu_new", "relu", "relu2", "sigmoid",
               "quick_gelu"]

# Values worth trying of keys by name (after the last dot); a key that is absent from this table gets
# values by the type of what it has. Values equal to the present one are dropped.
VALUES = {
    "sliding_window": [9, None], "attention_chunk_size": [9, None], "local_attention": [10],
    "sliding_window_pattern": [1, 2, 3, None], "global_attn_every_n_layers": [1, 3],
    "full_attention_interval": [1, 3], "no_rope_layer_interval": [1, 2, 3],
    "interleave_moe_layer_step": [1, 2], "decoder_sparse_step": [1, 2, 3],
    "moe_layer_freq": [1, 2], "max_window_layers": [0, 1],
    "attn_logit_softcapping": [3.0, None], "final_logit_softcapping": [3.0, None],
    "clip_qkv": [0.7, None], "query_pre_attn_scalar": [7], "head_dim": [8, None],
    "rope_type": ["default", "linear", "dynamic", "unheard-of"],
    "type": ["default", "linear", "dynamic", "unheard-of"],
    "topk_method": ["greedy", "group_limited_greedy", "noaux_tc"],
    "scoring_func": ["softmax", "sigmoid"], "n_group": [1, 2, 4, None], "topk_group": [1, 2, None],
    "position_embedding_type": ["absolute", "relative_key", "relative_key_query"],
    "classifier_pooling": ["cls", "mean"], "classifier_activation": ["gelu", "relu", "tanh"],
    "use_bidirectional_attention": [True, False, "all", "vision"],
    "num_kv_shared_layers": [0, 1, 2], "rope_interleave": [True, False],
    "partial_rotary_factor": [0.5, 0.75, 0.3, 1.0], "rotary_pct": [0.5, 0.3, 1.0],
    "rotary_dim": [4, 8], "rotary_emb_base": [700.0], "rotary_emb_fraction": [0.5],
    "rope_theta": [700.0, 1000000.0, None], "default_theta": [700.0],
    "rope_local_base_freq": [700.0], "global_rope_theta": [700.0], "local_rope_theta": [700.0],
    "time_step_limit": [[0.3, 0.6], [0.0, {"__float__": "Infinity"}]], "time_step_min": [0.2],
    "time_step_max": [0.3], "time_step_floor": [0.3], "time_step_rank": [3],
    "mlp_only_layers": [[], [0], [1]], "moe_layers": [[], [0]], "no_rope_layers": [[], [1, 1, 1, 1]],
    "full_attn_idxs": [[0]], "attn_scale": [0.9], "floor_scale": [3.0, 25],
    "max_position_embeddings": [1024], "n_positions": [256], "n_ctx": [64],
    "original_max_position_embeddings": [32, 96], "pretraining_tp": [2],
    "mamba_d_head": ["auto", 8], "mamba_chunk_size": [16], "chunk_size": [16],
    "activation_sparsity_pattern": [0.0, 0.9], "swiglu_limit": [0.5], "swiglu_alpha": [1.0],
    "summary_type": ["last"], "hidden_size_per_layer_input": [0, 8], "mscale": [0.2],
    "mscale_all_dim": [0.2, 0.0], "truncate": [True, False], "attention_factor": [0.8],
    "beta_fast": [4.0], "beta_slow": [0.1], "low_freq_factor": [2.0], "high_freq_factor": [8.0],
    "factor": [2.0, 6.0], "global_head_dim": [16], "first_k_dense_replace": [0, 1, 2],
    "tie_word_embeddings": [True, False], "qk_layernorm": [True, False],
    "num_logits_to_keep": [0], "attention_multiplier": [0.3], "embedding_multiplier": [2.1],
    "logit_scale": [0.7], "scale_emb": [2.0], "mrope_section": [[2, 1, 1]],
    "mrope_interleaved": [True, False],
}

# Keys that transformers reads of every configuration with rotary positions, wherever the class does
# not name them, and of some with getattr.
OF_ROPE = ["rope_theta", "rope_scaling", "partial_rotary_factor"]
BY_GETATTR = {
    "cohere2": ["sliding_window_pattern"], "gemma": ["use_bidirectional_attention"],
    "gemma2": ["use_bidirectional_attention"],
    "gemma3_text": ["rope_local_base_freq", "sliding_window_pattern",
                    "use_bidirectional_attention"],
    "gemma3n_text": ["rope_local_base_freq", "use_bidirectional_attention"],
    "gemma4_text": ["global_head_dim", "num_global_key_value_heads"],
    "gpt_neox": ["rotary_pct", "rotary_emb_base"], "lfm2": ["tie_embedding", "block_ff_dim"],
    "minimax_m2": ["rotary_dim"], "olmoe": ["sliding_window"],
    "modernbert": ["global_attn_every_n_layers", "global_rope_theta", "local_rope_theta"],
    "qwen3_next": ["full_attention_interval"], "qwen3_5_text": ["full_attention_interval"],
    "qwen3_5_moe_text": ["full_attention_interval"],
}

# Keys known from the hub that the class of some family does not have: transformers ignores them.
FOREIGN = {
    "auto_map": {"AutoModelForCausalLM": "modeling_x.X"}, "unsloth_version": "2025.1.1",
    "unsloth_fixed": True, "use_mrope": False, "pretraining_tp": 1,
}


def layer_kinds(full):
    """Other lists of layer types than the present one."""
    now = full.get("layer_types")
    if not isinstance(now, list) or len(now) < 2:
        return []
    kinds = [list(reversed(now)), now[1:] + now[:1], ["full_attention"] * len(now)]
    if not any(k in ("linear_attention", "conv", "mamba", "attention") for k in now):
        other = "chunked_attention" if "chunked_attention" in now else "sliding_attention"
        kinds.append([other] * len(now))
        kinds.append([other if i % 2 else "full_attention" for i in range(len(now))])
    kinds += [now[:-1], ["unheard_of"] * len(now)]
    return kinds


def ropes(half, theta):
    """Maps of rotary positions for a family that rotates `half` pairs; `theta` joins each of them."""
    short = [round(1.0 + 0.1 * i, 2) for i in range(half)]
    longer = [round(1.5 + 0.3 * i, 2) for i in range(half)]
    kinds = [
        {"rope_type": "default"}, {"type": "linear", "factor": 4.0},
        {"rope_type": "linear", "factor": 4.0}, {"rope_type": "dynamic", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        {"type": "yarn", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128,
         "beta_fast": 6.0, "beta_slow": 0.5, "truncate": False},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128,
         "attention_factor": 0.7},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128,
         "mscale": 1.0, "mscale_all_dim": 0.5},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 64},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        {"rope_type": "longrope", "short_factor": short, "long_factor": longer,
         "original_max_position_embeddings": 256},
        {"type": "longrope", "short_factor": short, "long_factor": longer, "factor": 4.0,
         "original_max_position_embeddings": 256},
        {"type": "longrope", "short_factor": short, "long_factor": longer,
         "attention_factor": 1.3, "original_max_position_embeddings": 256},
        {"rope_type": "longrope", "short_factor": short, "long_factor": longer,
         "original_max_position_embeddings": 32},
        {"rope_type": "longrope", "short_factor": short, "long_factor": longer},
        {"rope_type": "unheard-of", "factor": 4.0},
    ]
    inside = [{"rope_type": "default", "rope_theta": 700.0},
              {"rope_type": "linear", "factor": 4.0, "rope_theta": 700.0},
              {"rope_type": "default", "partial_rotary_factor": 0.5},
              {"rope_type": "default", "mrope_section": [1, 1, 1]}]
    return [theta | k for k in kinds] + inside


# Several keys at once, tried on each family whose class has the first of them: some are read only
# together.
TOGETHER = [
    {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0},
    {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    {"use_sliding_window": True, "sliding_window": None},
    {"use_sliding_window": True, "sliding_window": 9, "layer_types": "mixed"},
    {"use_sliding_window": False, "sliding_window": 9, "layer_types": "mixed"},
    {"layer_types": "mixed", "sliding_window": 9},
    {"n_group": 4, "topk_group": 2}, {"n_group": 2, "topk_group": 1},
    {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
    {"topk_method": "noaux_tc", "n_group": 4, "topk_group": 2},
    {"norm_topk_prob": True, "routed_scaling_factor": 1.7},
    {"norm_topk_prob": False, "routed_scaling_factor": 1.7},
    {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False},
    {"max_position_embeddings": 32},
    {"attn_temperature_tuning": True, "floor_scale": 10, "attn_scale": 0.3},
]
WITH_ROPE = [
    {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}, "max_position_embeddings": 32},
    {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
     "max_position_embeddings": 128},
    {"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "partial_rotary_factor": 0.5},
    {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
     "partial_rotary_factor": 0.5},
    {"rope_scaling": {"rope_theta": 700.0}},
]


def values_of_key(key, now, full):
    """Other values of one key that has the value `now`."""
    last = key.rsplit(".", 1)[-1]
    if last in BOOKKEEPING:
        return [BOOKKEEPING[last]]
    if last == "layer_types":
        return layer_kinds(full)
    if "activation" in last and isinstance(now, str) or last.endswith("hidden_act"):
        return ACTIVATIONS
    if last in VALUES:
        return VALUES[last]
    if isinstance(now, bool):
        return [not now]
    if "eps" in last:
        return [now * 8 if now >= 0.01 else 0.02]
    if isinstance(now, int):
        return [now + 1, now - 1] if 1 < now <= 8 else [now * 2] if now > 8 else [now + 1]
    if isinstance(now, float):
        return [now * 1.4 if now else 0.3]
    if isinstance(now, list) and now:
        return [now[::-1], now[:-1]] if len(now) > 1 else [now * 2]
    return []


def at(conf, key):
    """The value at a dotted key, or None."""
    for part in key.split("."):
        if not isinstance(conf, dict) or part not in conf:
            return None
        conf = conf[part]
    return conf


def keys_of(conf, prefix=""):
    """All keys of a configuration, those of maps in maps with dots."""
    for key, value in conf.items():
        if isinstance(value, dict) and key not in SKIPPED:
            yield from keys_of(value, f"{prefix}{key}.")
        yield prefix + key


def changed(conf, put, drop):
    """A configuration with keys put and dropped."""
    conf = copy.deepcopy(conf)
    for key in drop:
        *path, last = key.split(".")
        inner = at(conf, ".".join(path)) if path else conf
        inner.pop(last, None)
    for key, value in put.items():
        *path, last = key.split(".")
        inner = at(conf, ".".join(path)) if path else conf
        inner[last] = value
    return conf


def mixed(full):
    """A list of layer types with and without a window."""
    count = full.get("num_hidden_layers") or 2
    return ["full_attention" if i % 2 else "sliding_attention" for i in range(count)]


def of_keys(conf, keys, full, every):
    """One key at a time: other values, and (of `every` key in the file) its absence."""
    present_keys = set(keys_of(conf))
    for key in keys:
        if key.split(".")[0] in SKIPPED:
            continue
        now = at(conf, key)
        if now is None and key.split(".")[0] in conf and "." in key:
            continue
        present = now if now is not None else at(full, key)
        if key == "num_hidden_layers" and conf.get("num_nextn_predict_layers"):
            continue  # the layer behind the last would only draft
        if not isinstance(now, dict):
            for value in values_of_key(key, present, full):
                if value != now or type(value) is not type(now):
                    yield {key: value}, []
        kept = key in KEPT or key in KEPT_OF.get(conf["model_type"], [])
        if every and key in present_keys and not kept:
            yield {}, [key]


def of_file(conf, full, half, theta):
    """Changes of `config.json`; `full` is what transformers makes of it, defaults included, `half`
    the number of rotated pairs (0: no rotary positions)."""
    keys = list(keys_of(conf))
    keys += [k for k in full if k not in conf and k not in keys]
    keys += [k for k in BY_GETATTR.get(conf["model_type"], []) if k not in keys]
    if half:
        keys += [k for k in OF_ROPE if k not in keys]
    yield from of_keys(conf, keys, full, every=True)
    known = set(keys)
    for put in TOGETHER:
        if all(k in known for k in put):
            put = {k: mixed(full) if v == "mixed" else v for k, v in put.items()}
            yield put, []
    if half and "rope_parameters" in conf:
        yield from of_parameters(conf["rope_parameters"], half)
    elif half:
        for rope in ropes(half, {}):
            yield {"rope_scaling": rope}, []
        for put in WITH_ROPE:
            yield put, []
    for key, value in FOREIGN.items():
        if key not in known:
            yield {key: value}, []


def of_v5(conf, older, full, half):
    """Changes of `config.v5.json` that its older spelling does not have."""
    keys = [k for k in keys_of(conf) if at(older, k) != at(conf, k)]
    yield from of_keys(conf, keys, full, every=True)
    rope = conf.get("rope_parameters")
    if not half or not isinstance(rope, dict):
        return
    yield {"rope_theta": 700.0}, []
    yield from of_parameters(rope, half)


def of_parameters(rope, half):
    """Other maps than the `rope_parameters` of a file, one or one for each kind of layer."""
    if any(isinstance(v, dict) for v in rope.values()):
        for kind in rope:
            for other in ropes(half, {"rope_theta": 9000.0})[1:6]:
                yield {f"rope_parameters.{kind}": other}, []
        yield {"rope_parameters": {"rope_type": "default", "rope_theta": 700.0}}, []
        return
    # (a key of ministral3 alone)
    own = {k: v for k, v in rope.items() if k == "llama_4_scaling_beta"}
    for other in ropes(half, {"rope_theta": 9000.0} | own)[1:12:2]:
        yield {"rope_parameters": other}, []
    yield {"rope_parameters": {"rope_type": "default"}}, []
