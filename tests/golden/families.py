"""The families that record.py records beside its own: configuration as found on the hub, and tensor
table, of a tiny model each. eps is large on purpose: where it is added must show in the outputs."""

from hashed import ABSENT, Tensors, config, decoder, encoder, head_dim, short


def llama_layer(c, bias=(), qk=None, peak=1.7, out_norm=False):
    """Layers of the llama shape; `qk`: widths of the norms of queries and keys."""
    hidden, inner = c["hidden_size"], c["intermediate_size"]

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", hidden)
        t.attention(f"{p}.self_attn", c, peak, bias)
        if qk:
            t.qk_norm(f"{p}.self_attn", *qk)
        t.norm(f"{p}.post_attention_layernorm", hidden)
        t.gated(f"{p}.mlp", hidden, inner)
    return layer


def experts(t, p, count, hidden, inner, names=("gate_proj", "up_proj", "down_proj")):
    for e in range(count):
        t.gated(f"{p}.experts.{e}", hidden, inner, names)


def small(arch, model_type, vocab, **fields):
    """The dimensions most families share."""
    base = dict(vocab_size=vocab, hidden_size=64, intermediate_size=120, num_hidden_layers=2,
                num_attention_heads=4, num_key_value_heads=2, rope_scaling=None)
    return config(arch, model_type, **(base | fields))


# ---------------------------------------------------------------------------------- dense decoders


def smollm3():
    c = small("SmolLM3ForCausalLM", "smollm3", 191, rope_theta=5000000.0, mlp_bias=False,
              tie_word_embeddings=True, no_rope_layers=[1, 1, 1, 0], no_rope_layer_interval=4,
              num_hidden_layers=4,
              sliding_window=None, use_sliding_window=False, max_window_layers=2, pad_token_id=0)
    return c, decoder(c, llama_layer(c))


def gemma():
    c = small("GemmaForCausalLM", "gemma", 189, head_dim=24, hidden_act="gelu_pytorch_tanh",
              hidden_activation=ABSENT, num_key_value_heads=1, tie_word_embeddings=True,
              bos_token_id=2, eos_token_id=1, pad_token_id=0)

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 64, 0.0)
        t.attention(f"{p}.self_attn", c)
        t.norm(f"{p}.post_attention_layernorm", 64, 0.0)
        t.gated(f"{p}.mlp", 64, 120)
    return c, decoder(c, layer, norm_offset=1.0, embed_std=0.12)


def glm():
    c = small("GlmForCausalLM", "glm", 206, head_dim=16, attention_bias=True,
              partial_rotary_factor=0.5, pad_token_id=0)

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 64)
        t.attention(f"{p}.self_attn", c, bias="qkv")
        t.norm(f"{p}.post_attention_layernorm", 64)
        t.linear(f"{p}.mlp.gate_up_proj", 2 * 120, 64, 1.3)
        t.linear(f"{p}.mlp.down_proj", 64, 120, 1.6)
    return c, decoder(c, layer)


def glm4():
    c = small("Glm4ForCausalLM", "glm4", 208, head_dim=16, attention_bias=True,
              partial_rotary_factor=0.5, pad_token_id=0)

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 64)
        t.attention(f"{p}.self_attn", c, bias="qkv")
        t.norm(f"{p}.post_self_attn_layernorm", 64)
        t.norm(f"{p}.post_attention_layernorm", 64)
        t.linear(f"{p}.mlp.gate_up_proj", 2 * 120, 64, 1.3)
        t.linear(f"{p}.mlp.down_proj", 64, 120, 1.6)
        t.norm(f"{p}.post_mlp_layernorm", 64)
    return c, decoder(c, layer)


def olmo3():
    c = small("Olmo3ForCausalLM", "olmo3", 188, num_hidden_layers=3, rope_theta=500000.0,
              sliding_window=20,
              rope_scaling={"attention_factor": 1.2079441541679836, "beta_fast": 32.0,
                            "beta_slow": 1.0, "factor": 8.0, "rope_type": "yarn",
                            "original_max_position_embeddings": 64},
              layer_types=["sliding_attention", "sliding_attention", "full_attention"])

    def layer(t, i, p):
        t.attention(f"{p}.self_attn", c)
        t.qk_norm(f"{p}.self_attn", 64, 32)
        t.norm(f"{p}.post_attention_layernorm", 64)
        t.gated(f"{p}.mlp", 64, 120)
        t.norm(f"{p}.post_feedforward_layernorm", 64)
    return c, decoder(c, layer, embed_std=0.5)


def cohere():
    c = small("CohereForCausalLM", "cohere", 187, rms_norm_eps=ABSENT, layer_norm_eps=0.01,
              logit_scale=0.5, rope_theta=75000.0, tie_word_embeddings=True, use_qk_norm=True,
              bos_token_id=5, eos_token_id=3, pad_token_id=0)

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 64)
        t.attention(f"{p}.self_attn", c)
        for name, heads in (("q_norm", 4), ("k_norm", 2)):
            t.add(f"{p}.self_attn.{name}.weight", [heads, 16], 0.5, 1.6)
        t.gated(f"{p}.mlp", 64, 120)
    return c, decoder(c, layer)


def exaone4():
    c = small("Exaone4ForCausalLM", "exaone4", 186, num_hidden_layers=3, rope_theta=1000000.0,
              sliding_window=20, sliding_window_pattern="LLG", head_dim=24,
              rope_scaling={"factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                            "original_max_position_embeddings": 64, "rope_type": "llama3"},
              layer_types=["sliding_attention", "sliding_attention", "full_attention"])

    def layer(t, i, p):
        t.attention(f"{p}.self_attn", c)
        t.qk_norm(f"{p}.self_attn", 24, 24)
        t.norm(f"{p}.post_attention_layernorm", 64)
        t.gated(f"{p}.mlp", 64, 120)
        t.norm(f"{p}.post_feedforward_layernorm", 64)
    return c, decoder(c, layer, embed_std=0.5)


def starcoder2():
    c = small("Starcoder2ForCausalLM", "starcoder2", 185, hidden_act="gelu_pytorch_tanh",
              rms_norm_eps=ABSENT, attention_bias=ABSENT, norm_epsilon=0.01, norm_type="layer_norm",
              use_bias=True, sliding_window=24, rope_theta=100000.0, embedding_dropout=0.0,
              residual_dropout=0.0, mlp_type="default", tie_word_embeddings=True)

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 64, bias=True)
        t.attention(f"{p}.self_attn", c, bias="qkvo")
        t.norm(f"{p}.post_attention_layernorm", 64, bias=True)
        t.linear(f"{p}.mlp.c_fc", 120, 64, 1.6, bias=True)
        t.linear(f"{p}.mlp.c_proj", 64, 120, 2.5, bias=True)
    return c, decoder_biased(c, layer)


def decoder_biased(c, layer):
    """As `decoder`, the last norm with a bias."""
    rows = decoder(c, layer)
    at = next(i for i, r in enumerate(rows) if r["name"] == "model.norm.weight")
    extra = Tensors()
    extra.bias("model.norm.bias", c["hidden_size"])
    return rows[:at + 1] + extra.rows + rows[at + 1:]


def nemotron():
    c = small("NemotronForCausalLM", "nemotron", 184, hidden_act="relu2", rms_norm_eps=ABSENT,
              norm_eps=0.01, partial_rotary_factor=0.5, head_dim=16, mlp_bias=False)

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 64, 0.0, bias=True)
        t.attention(f"{p}.self_attn", c)
        t.norm(f"{p}.post_attention_layernorm", 64, 0.0, bias=True)
        t.linear(f"{p}.mlp.up_proj", 120, 64, 1.0)
        t.linear(f"{p}.mlp.down_proj", 64, 120, 1.2)
    rows = decoder_biased(c, layer)
    next(r for r in rows if r["name"] == "model.norm.weight")["offset"] = 0.0
    return c, rows


def stablelm(parallel=False, qk_norm=False):
    c = small("StableLmForCausalLM", "stablelm", 183, rms_norm_eps=ABSENT, attention_bias=ABSENT,
              layer_norm_eps=0.01, partial_rotary_factor=0.25, use_qkv_bias=True,
              qk_layernorm=qk_norm, use_parallel_residual=parallel)

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 64, bias=True)
        t.attention(f"{p}.self_attn", c, bias="qkv")
        if not parallel:
            t.norm(f"{p}.post_attention_layernorm", 64, bias=True)
        t.gated(f"{p}.mlp", 64, 120)
    return c, decoder_biased(c, layer)


def stablelm_parallel():
    return stablelm(parallel=True)


def phi():
    # (llama.cpp's files leave the inner width out: it is four times the outer one.)
    c = small("PhiForCausalLM", "phi", 182, hidden_act="gelu_new", rms_norm_eps=ABSENT,
              intermediate_size=256,
              num_key_value_heads=4, layer_norm_eps=0.01, partial_rotary_factor=0.5,
              qk_layernorm=False, attention_bias=ABSENT, embd_pdrop=0.0, resid_pdrop=0.0)

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 64, bias=True)
        t.attention(f"{p}.self_attn", c, bias="qkvo", out="dense")
        t.linear(f"{p}.mlp.fc1", 256, 64, 1.6, bias=True)
        t.linear(f"{p}.mlp.fc2", 64, 256, 2.5, bias=True)
    rows = decoder_biased(c, layer)
    t = Tensors()
    t.bias("lm_head.bias", c["vocab_size"])
    rows = [r | {"name": r["name"].replace("model.norm.", "model.final_layernorm.")} for r in rows]
    return c, rows + t.rows


def gpt2():
    c = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 181,
         "n_embd": 64, "n_layer": 2, "n_head": 4, "n_inner": None, "n_positions": 128,
         "n_ctx": 128, "activation_function": "gelu_new", "layer_norm_epsilon": 0.01,
         "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1, "initializer_range": 0.02,
         "bos_token_id": 5, "eos_token_id": 5, "torch_dtype": "float32"}
    t = Tensors()
    t.embed("wte", 181, 64, 0.3)
    t.embed("wpe", 128, 64, 0.3)

    def transposed(name, rows, cols, gain):
        t.linear(name, rows, cols, gain, bias=True)
        t.rows[-2]["shape"] = [cols, rows]
    for i in range(2):
        p = f"h.{i}"
        t.norm(f"{p}.ln_1", 64, bias=True)
        transposed(f"{p}.attn.c_attn", 3 * 64, 64, 1.6)
        transposed(f"{p}.attn.c_proj", 64, 64, 1.5)
        t.norm(f"{p}.ln_2", 64, bias=True)
        transposed(f"{p}.mlp.c_fc", 256, 64, 1.6)
        transposed(f"{p}.mlp.c_proj", 64, 256, 2.5)
    t.norm("ln_f", 64, bias=True)
    return c, t.rows


def gpt_neox(parallel=True):
    c = small("GPTNeoXForCausalLM", "gpt_neox", 180, hidden_act="gelu", rms_norm_eps=ABSENT,
              num_key_value_heads=ABSENT, rope_theta=ABSENT, rope_scaling=ABSENT,
              layer_norm_eps=0.01, rotary_pct=0.25, rotary_emb_base=10000, attention_bias=True,
              use_parallel_residual=parallel)
    t = Tensors()
    t.embed("gpt_neox.embed_in", 180, 64)
    for i in range(2):
        p = f"gpt_neox.layers.{i}"
        t.norm(f"{p}.input_layernorm", 64, bias=True)
        t.linear(f"{p}.attention.query_key_value", 3 * 64, 64, 1.6, bias=True)
        t.linear(f"{p}.attention.dense", 64, 64, 1.5, bias=True)
        t.norm(f"{p}.post_attention_layernorm", 64, bias=True)
        t.linear(f"{p}.mlp.dense_h_to_4h", 120, 64, 1.6, bias=True)
        t.linear(f"{p}.mlp.dense_4h_to_h", 64, 120, 2.5, bias=True)
    t.norm("gpt_neox.final_layer_norm", 64, bias=True)
    t.linear("embed_out", 180, 64, 2.2)
    return c, t.rows


def ministral3():
    c = small("Ministral3ForCausalLM", "ministral3", 179, head_dim=24, sliding_window=None,
              attention_bias=ABSENT, rope_theta=ABSENT, rope_scaling=ABSENT,
              rope_parameters={"beta_fast": 32.0, "beta_slow": 1.0, "factor": 4.0,
                               "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0,
                               "original_max_position_embeddings": 40, "rope_theta": 1000000.0,
                               "rope_type": "yarn", "type": "yarn"})
    return c, decoder(c, llama_layer(c))


def seed_oss():
    c = small("SeedOssForCausalLM", "seed_oss", 178, head_dim=24, attention_bias=True,
              attention_out_bias=False, mlp_bias=False, residual_dropout=0.1, rope_theta=1e7)
    return c, decoder(c, llama_layer(c, bias="qkv"))


def arcee():
    c = small("ArceeForCausalLM", "arcee", 177, hidden_act="relu2", mlp_bias=False)

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 64)
        t.attention(f"{p}.self_attn", c)
        t.norm(f"{p}.post_attention_layernorm", 64)
        t.linear(f"{p}.mlp.up_proj", 120, 64, 1.0)
        t.linear(f"{p}.mlp.down_proj", 64, 120, 1.2)
    return c, decoder(c, layer)


def ernie4_5():
    c = small("Ernie4_5ForCausalLM", "ernie4_5", 176, head_dim=24, use_bias=False,
              rope_theta=500000.0, tie_word_embeddings=True)
    return c, decoder(c, llama_layer(c))


def gemma4(small_model=False, routed=False):
    """The large dense models: full layers with wider heads, fewer of them, keys that are values
    too. `small_model`: the small ones, with inputs for each layer and late layers that read the
    keys and values of earlier ones. `routed`: with experts beside each dense part."""
    types = ["sliding_attention", "full_attention"] * 2
    c = small("Gemma4ForCausalLM", "gemma4_text", 165, head_dim=16, hidden_act=ABSENT,
              hidden_activation="gelu_pytorch_tanh", num_hidden_layers=len(types),
              rope_theta=ABSENT, rope_scaling=ABSENT, tie_word_embeddings=True,
              sliding_window=20, layer_types=types, global_head_dim=32,
              num_global_key_value_heads=None if small_model else 1, attention_k_eq_v=not small_model,
              num_kv_shared_layers=2 if small_model else 0,
              hidden_size_per_layer_input=24 if small_model else 0, vocab_size_per_layer_input=165,
              use_double_wide_mlp=small_model, enable_moe_block=routed,
              num_experts=8 if routed else None, top_k_experts=3 if routed else None,
              moe_intermediate_size=40 if routed else None, use_bidirectional_attention=None,
              final_logit_softcapping=6.0, bos_token_id=2, eos_token_id=1, pad_token_id=0,
              rope_parameters={
                  "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0,
                                     "rope_type": "proportional"},
                  "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}})
    width = 24 * len(types)

    def layer(t, i, p):
        full, shared = i % 2, small_model and i >= 2
        dim, kv = (32, 2 if small_model else 1) if full else (16, 2)
        a = f"{p}.self_attn"
        t.norm(f"{p}.input_layernorm", 64)
        t.linear(f"{a}.q_proj", 4 * dim, 64, 1.2)
        t.norm(f"{a}.q_norm", dim, 0.7)
        if not shared:
            t.linear(f"{a}.k_proj", kv * dim, 64, 1.2)
            t.norm(f"{a}.k_norm", dim, 0.7)
            if not full or small_model:
                t.linear(f"{a}.v_proj", kv * dim, 64, 1.2)
        t.linear(f"{a}.o_proj", 64, 4 * dim, 1.5)
        t.norm(f"{p}.post_attention_layernorm", 64, 1.2)
        t.norm(f"{p}.pre_feedforward_layernorm", 64)
        t.gated(f"{p}.mlp", 64, 240 if shared else 120)
        t.norm(f"{p}.post_feedforward_layernorm", 64, 1.2)
        if routed:
            t.norm(f"{p}.pre_feedforward_layernorm_2", 64)
            t.norm(f"{p}.post_feedforward_layernorm_1", 64)
            t.norm(f"{p}.post_feedforward_layernorm_2", 64)
            t.linear(f"{p}.router.proj", 8, 64, 16.0)
            t.add(f"{p}.router.scale", [64], 0.5, 1.0)
            t.add(f"{p}.router.per_expert_scale", [8], 0.5, 1.0)
            t.linear(f"{p}.experts.gate_up_proj", 1, 64, 1.3)
            t.rows[-1] |= {"name": f"{p}.experts.gate_up_proj", "shape": [8, 80, 64]}
            t.linear(f"{p}.experts.down_proj", 1, 40, 1.6)
            t.rows[-1] |= {"name": f"{p}.experts.down_proj", "shape": [8, 64, 40]}
        if small_model:
            t.linear(f"{p}.per_layer_input_gate", 24, 64, 1.2)
            t.linear(f"{p}.per_layer_projection", 64, 24, 1.5)
            t.norm(f"{p}.post_per_layer_input_norm", 64, 1.2)
        t.add(f"{p}.layer_scalar", [1], 0.2, 0.8)
    rows = decoder(c, layer, embed_std=0.16)
    t = Tensors()
    if small_model:
        t.embed("model.embed_tokens_per_layer", 165, width, 0.2)
        t.linear("model.per_layer_model_projection", width, 64, 3.0)
        t.norm("model.per_layer_projection_norm", 24)
    return c, rows + t.rows


def gemma4_small():
    return gemma4(small_model=True)


# -------------------------------------------------------------------------------- routed experts


def qwen2_moe():
    c = small("Qwen2MoeForCausalLM", "qwen2_moe", 190, moe_intermediate_size=40,
              shared_expert_intermediate_size=48, num_experts=8, num_experts_per_tok=3,
              norm_topk_prob=False, decoder_sparse_step=1, mlp_only_layers=[],
              rope_theta=1000000.0, use_sliding_window=False, sliding_window=32,
              max_window_layers=2, output_router_logits=False, router_aux_loss_coef=0.001)

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 64)
        t.attention(f"{p}.self_attn", c, bias="qkv")
        t.norm(f"{p}.post_attention_layernorm", 64)
        m = f"{p}.mlp"
        t.linear(f"{m}.gate", 8, 64, 2.0)
        experts(t, m, 8, 64, 40)
        t.gated(f"{m}.shared_expert", 64, 48)
        t.linear(f"{m}.shared_expert_gate", 1, 64, 1.5)
    return c, decoder(c, layer)


def glm4_moe():
    c = small("Glm4MoeForCausalLM", "glm4_moe", 175, head_dim=16, attention_bias=True,
              partial_rotary_factor=0.5, use_qk_norm=True, moe_intermediate_size=40,
              n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3, n_group=1,
              topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.5,
              first_k_dense_replace=1, num_nextn_predict_layers=1)

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 64)
        t.attention(f"{p}.self_attn", c, bias="qkv")
        t.qk_norm(f"{p}.self_attn", 16, 16)
        t.norm(f"{p}.post_attention_layernorm", 64)
        m = f"{p}.mlp"
        if i < 1:
            t.gated(m, 64, 120)
            return
        t.linear(f"{m}.gate", 8, 64, 2.0)
        t.add(f"{m}.gate.e_score_correction_bias", [8], 0.6, 0.1)
        experts(t, m, 8, 64, 40)
        t.gated(f"{m}.shared_experts", 64, 40)
    return c, decoder(c, layer)


def deepseek_v2():
    heads, nope, rope, vdim, kv_rank = 4, 24, 16, 20, 32
    c = small("DeepseekV2ForCausalLM", "deepseek_v2", 174, num_key_value_heads=heads,
              moe_intermediate_size=40, q_lora_rank=None, kv_lora_rank=kv_rank,
              qk_nope_head_dim=nope, qk_rope_head_dim=rope, v_head_dim=vdim, n_routed_experts=8,
              n_shared_experts=2, num_experts_per_tok=3, n_group=1, topk_group=1,
              norm_topk_prob=False, routed_scaling_factor=1.0, scoring_func="softmax",
              topk_method="greedy", first_k_dense_replace=1, moe_layer_freq=1,
              rope_scaling={"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707,
                            "mscale_all_dim": 0.707, "type": "yarn",
                            "original_max_position_embeddings": 660})

    def layer(t, i, p):
        a, m = f"{p}.self_attn", f"{p}.mlp"
        t.norm(f"{p}.input_layernorm", 64)
        t.linear(f"{a}.q_proj", heads * (nope + rope), 64, 1.7)
        t.linear(f"{a}.kv_a_proj_with_mqa", kv_rank + rope, 64)
        t.norm(f"{a}.kv_a_layernorm", kv_rank)
        t.linear(f"{a}.kv_b_proj", heads * (nope + vdim), kv_rank, 1.5)
        t.linear(f"{a}.o_proj", 64, heads * vdim, 1.5)
        t.norm(f"{p}.post_attention_layernorm", 64)
        if i < 1:
            t.gated(m, 64, 120)
            return
        t.linear(f"{m}.gate", 8, 64, 2.0)
        experts(t, m, 8, 64, 40)
        t.gated(f"{m}.shared_experts", 64, 80)
    return c, decoder(c, layer)


def gemma4_moe():
    c, rows = gemma4(routed=True)
    return c | {"vocab_size": 158}, [r | {"shape": [158, 64]} if "embed_tokens" in r["name"] else r
                                     for r in rows]


def gemma3n(table=157):
    """`table`: tokens that have inputs for each layer of their own."""
    types = ["sliding_attention", "full_attention"] * 2
    c = small("Gemma3nForCausalLM", "gemma3n_text", 157, head_dim=16, hidden_act=ABSENT,
              hidden_activation="gelu_pytorch_tanh", num_hidden_layers=4, rope_theta=1000000.0,
              rope_local_base_freq=10000.0, tie_word_embeddings=True, sliding_window=20,
              layer_types=types, num_kv_shared_layers=2, hidden_size_per_layer_input=24,
              vocab_size_per_layer_input=table, altup_active_idx=0, altup_coef_clip=120.0,
              altup_correct_scale=True, altup_num_inputs=4, laurel_rank=12,
              activation_sparsity_pattern=[0.7, 0.0, 0.8, 0.0], final_logit_softcapping=6.0,
              intermediate_size=[120] * 4, bos_token_id=2, eos_token_id=1, pad_token_id=0)

    def layer(t, i, p):
        a, u = f"{p}.self_attn", f"{p}.altup"
        t.norm(f"{p}.input_layernorm", 64)
        t.linear(f"{a}.q_proj", 64, 64, 1.2)
        t.norm(f"{a}.q_norm", 16, 0.7)
        if i < 2:
            t.linear(f"{a}.k_proj", 32, 64, 1.2)
            t.norm(f"{a}.k_norm", 16, 0.7)
            t.linear(f"{a}.v_proj", 32, 64, 1.2)
        t.linear(f"{a}.o_proj", 64, 64, 1.5)
        t.norm(f"{p}.post_attention_layernorm", 64, 1.2)
        t.norm(f"{p}.pre_feedforward_layernorm", 64)
        t.gated(f"{p}.mlp", 64, 120)
        t.norm(f"{p}.post_feedforward_layernorm", 64, 1.2)
        t.linear(f"{u}.modality_router", 4, 64, 40.0)
        t.norm(f"{u}.router_norm", 64)
        t.linear(f"{u}.prediction_coefs", 16, 4, 0.4)
        t.linear(f"{u}.correction_coefs", 4, 4, 0.4)
        t.add(f"{u}.correct_output_scale", [64], 0.5, 0.8)
        t.linear(f"{p}.laurel.linear_left", 12, 64, 1.2)
        t.linear(f"{p}.laurel.linear_right", 64, 12, 1.2)
        t.norm(f"{p}.laurel.post_laurel_norm", 64)
        t.linear(f"{p}.per_layer_input_gate", 24, 64, 1.2)
        t.linear(f"{p}.per_layer_projection", 64, 24, 1.5)
        t.norm(f"{p}.post_per_layer_input_norm", 64, 0.6)
    rows = decoder(c, layer, embed_std=0.15)
    t = Tensors()
    t.embed("model.embed_tokens_per_layer", table, 24 * 4, 0.15)
    t.linear("model.per_layer_model_projection", 24 * 4, 64, 8.0)
    t.norm("model.per_layer_projection_norm", 24)
    for i in range(3):
        t.linear(f"model.altup_projections.{i}", 64, 64)
        t.linear(f"model.altup_unembed_projections.{i}", 64, 64)
    return c, rows + t.rows


def gemma3n_short():
    return gemma3n(table=120)


def llama4(tiny=True):
    """Chunks, growing queries and experts as in Meta's models. Not `tiny`: chunks longer than the
    prompt, which llama.cpp's files can say, and every second layer dense."""
    c = small("Llama4ForCausalLM", "llama4_text", 160 if tiny else 159, head_dim=24,
              intermediate_size=40, intermediate_size_mlp=104, num_hidden_layers=4,
              rope_theta=500000.0, num_local_experts=8, num_experts_per_tok=1,
              interleave_moe_layer_step=1 if tiny else 2, use_qk_norm=True, no_rope_layers=[],
              no_rope_layer_interval=2 if tiny else 4, attention_chunk_size=20 if tiny else 8192,
              attn_temperature_tuning=tiny, floor_scale=10 if tiny else 8192, attn_scale=0.4,
              output_router_logits=False, router_aux_loss_coef=0.001, router_jitter_noise=0.0)

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 64)
        t.attention(f"{p}.self_attn", c)
        t.norm(f"{p}.post_attention_layernorm", 64)
        m = f"{p}.feed_forward"
        if not tiny and i % 2 == 0:
            t.gated(m, 64, 104)
            return
        t.linear(f"{m}.router", 8, 64, 1.0)
        t.linear(f"{m}.experts.gate_up_proj", 1, 64, 1.6)
        t.rows[-1] |= {"name": f"{m}.experts.gate_up_proj", "shape": [8, 64, 80]}
        t.linear(f"{m}.experts.down_proj", 1, 40, 1.6)
        t.rows[-1] |= {"name": f"{m}.experts.down_proj", "shape": [8, 40, 64]}
        t.gated(f"{m}.shared_expert", 64, 40)
    return c, decoder(c, layer)


def llama4_dense():
    return llama4(tiny=False)


def olmoe():
    # llama.cpp's files have no other epsilon, so the stream and what is normed must be small.
    c = small("OlmoeForCausalLM", "olmoe", 173, intermediate_size=40, num_key_value_heads=4,
              rms_norm_eps=1e-5,
              num_experts=8, num_experts_per_tok=3, norm_topk_prob=False, clip_qkv=None,
              output_router_logits=False, router_aux_loss_coef=0.01)

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 64)
        t.attention(f"{p}.self_attn", c)
        t.qk_norm(f"{p}.self_attn", 64, 64)
        t.norm(f"{p}.post_attention_layernorm", 64)
        t.linear(f"{p}.mlp.gate", 8, 64, 2.0)
        experts(t, f"{p}.mlp", 8, 64, 40)
    rows = decoder(c, layer, embed_std=0.01)
    for row in rows:
        if row["name"].endswith(("q_proj.weight", "k_proj.weight", "o_proj.weight",
                                 "down_proj.weight")):
            row["scale"] = short(row["scale"] / 200)
    return c, rows


GRANITE = dict(embedding_multiplier=3.0, residual_multiplier=0.6, attention_multiplier=0.3,
               logits_scaling=1.5, num_local_experts=8, num_experts_per_tok=3,
               output_router_logits=False, router_aux_loss_coef=0.001)


def granite_experts(t, p):
    t.linear(f"{p}.router.layer", 8, 64, 2.0)
    t.linear(f"{p}.input_linear", 8 * 2 * 40, 64, 1.3)
    t.rows[-1]["shape"] = [8, 80, 64]
    t.linear(f"{p}.output_linear", 8 * 64, 40, 1.6)
    t.rows[-1]["shape"] = [8, 64, 40]


def granitemoe():
    c = small("GraniteMoeForCausalLM", "granitemoe", 172, intermediate_size=40,
              tie_word_embeddings=True, **GRANITE)

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 64)
        t.attention(f"{p}.self_attn", c)
        t.norm(f"{p}.post_attention_layernorm", 64)
        granite_experts(t, f"{p}.block_sparse_moe")
    return c, decoder(c, layer, embed_std=0.25)


def granitemoehybrid(dense=False):
    inner, heads, groups, state = 128, 8, 2, 20
    c = small("GraniteMoeHybridForCausalLM", "granitemoehybrid", 171, intermediate_size=40,
              tie_word_embeddings=True, shared_intermediate_size=48, num_hidden_layers=3,
              position_embedding_type="nope", layer_types=["mamba", "attention", "mamba"],
              mamba_n_heads=heads, mamba_n_groups=groups, mamba_d_state=state, mamba_d_head=16,
              mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=32, mamba_conv_bias=True,
              mamba_proj_bias=False, normalization_function="rmsnorm", init_method="mup",
              **GRANITE)
    if dense:
        c |= {"num_local_experts": 0, "num_experts_per_tok": 0}
    conv = inner + 2 * groups * state

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 64)
        if i == 1:
            t.attention(f"{p}.self_attn", c)
        else:
            mamba_mixer(t, f"{p}.mamba", 64, inner, heads, conv)
        t.norm(f"{p}.post_attention_layernorm", 64)
        if not dense:
            granite_experts(t, f"{p}.block_sparse_moe")
        t.linear(f"{p}.shared_mlp.input_linear", 2 * 48, 64, 1.3)
        t.linear(f"{p}.shared_mlp.output_linear", 64, 48, 1.6)
    return c, decoder(c, layer, embed_std=0.25)


def granite4_dense():
    return granitemoehybrid(dense=True)


def mamba_mixer(t, m, hidden, inner, heads, conv):
    t.linear(f"{m}.in_proj", inner + conv + heads, hidden, 1.3)
    t.add(f"{m}.conv1d.weight", [conv, 1, 4], 1.4, 0.1)
    t.bias(f"{m}.conv1d.bias", conv)
    t.add(f"{m}.dt_bias", [heads], 2.0, -1.0)
    t.add(f"{m}.A_log", [heads], 4.0, -1.0)
    t.add(f"{m}.D", [heads], 1.0, 1.0)
    t.norm(f"{m}.norm", inner)
    t.linear(f"{m}.out_proj", hidden, inner, 1.5)


def minimax_m2():
    c = small("MiniMaxM2ForCausalLM", "minimax_m2", 170, intermediate_size=40, head_dim=24,
              rotary_dim=12, num_local_experts=8, num_experts_per_tok=3, use_qk_norm=True,
              qk_norm_type="per_layer", scoring_func="sigmoid", use_routing_bias=True,
              use_mtp=False, router_aux_loss_coef=0.001, output_router_logits=False)

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 64)
        t.attention(f"{p}.self_attn", c)
        t.qk_norm(f"{p}.self_attn", 96, 48)
        t.norm(f"{p}.post_attention_layernorm", 64)
        m = f"{p}.block_sparse_moe"
        t.linear(f"{m}.gate", 8, 64, 2.0)
        t.add(f"{m}.e_score_correction_bias", [8], 0.6, 0.1)
        experts(t, m, 8, 64, 40, ("w1", "w3", "w2"))
    return c, decoder(c, layer)


# ------------------------------------------------------------------------------------ recurrences


def qwen3_5(experts_too=False):
    k_heads, v_heads, k_dim, v_dim = 2, 4, 16, 24
    c = small("Qwen3_5ForCausalLM", "qwen3_5_text", 163, num_hidden_layers=3, head_dim=32,
              rope_theta=ABSENT, rope_scaling=ABSENT, full_attention_interval=2,
              layer_types=["linear_attention", "full_attention", "linear_attention"],
              linear_conv_kernel_dim=4, linear_key_head_dim=k_dim, linear_value_head_dim=v_dim,
              linear_num_key_heads=k_heads, linear_num_value_heads=v_heads, attn_output_gate=True,
              mamba_ssm_dtype="float32", mtp_num_hidden_layers=0,
              rope_parameters={"mrope_interleaved": True, "mrope_section": [2, 1, 1],
                               "partial_rotary_factor": 0.25, "rope_theta": 10000000.0,
                               "rope_type": "default"})
    if experts_too:
        c |= {"architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text",
              "vocab_size": 162, "num_experts": 8, "num_experts_per_tok": 3,
              "moe_intermediate_size": 32, "shared_expert_intermediate_size": 40,
              "output_router_logits": False, "router_aux_loss_coef": 0.001}
        del c["intermediate_size"]
    key, value = k_heads * k_dim, v_heads * v_dim

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 64, 0.0)
        if i == 1:
            a = f"{p}.self_attn"
            t.linear(f"{a}.q_proj", 2 * 4 * 32, 64, 1.5)
            t.linear(f"{a}.k_proj", 2 * 32, 64, 1.5)
            t.linear(f"{a}.v_proj", 2 * 32, 64, 1.2)
            t.linear(f"{a}.o_proj", 64, 4 * 32, 2.5)
            t.qk_norm(a, 32, 32, 0.6)
        else:
            a = f"{p}.linear_attn"
            t.linear(f"{a}.in_proj_qkv", 2 * key + value, 64, 1.5)
            t.linear(f"{a}.in_proj_z", value, 64, 1.5)
            t.linear(f"{a}.in_proj_b", v_heads, 64, 1.2)
            t.linear(f"{a}.in_proj_a", v_heads, 64, 1.2)
            t.add(f"{a}.conv1d.weight", [2 * key + value, 1, 4], 1.6, 0.1)
            t.add(f"{a}.dt_bias", [v_heads], 2.0)
            t.add(f"{a}.A_log", [v_heads], 4.0, -2.0)
            t.norm(f"{a}.norm", v_dim)
            t.linear(f"{a}.out_proj", 64, value, 2.0)
        t.norm(f"{p}.post_attention_layernorm", 64, 0.0)
        m = f"{p}.mlp"
        if not experts_too:
            t.gated(m, 64, 120)
            return
        t.linear(f"{m}.gate", 8, 64, 2.0)
        t.linear(f"{m}.experts.gate_up_proj", 1, 64, 1.3)
        t.rows[-1] |= {"name": f"{m}.experts.gate_up_proj", "shape": [8, 64, 64]}
        t.linear(f"{m}.experts.down_proj", 1, 32, 1.6)
        t.rows[-1] |= {"name": f"{m}.experts.down_proj", "shape": [8, 64, 32]}
        t.gated(f"{m}.shared_expert", 64, 40)
        t.linear(f"{m}.shared_expert_gate", 1, 64, 1.5)
    return c, decoder(c, layer, norm_offset=0.0)


def qwen3_5_moe():
    return qwen3_5(experts_too=True)


def mamba2():
    inner, heads, groups, state = 128, 8, 2, 20
    c = {"architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "vocab_size": 169,
         "hidden_size": 64, "num_hidden_layers": 2, "num_heads": heads, "head_dim": 16,
         "n_groups": groups, "state_size": state, "expand": 2, "conv_kernel": 4,
         "chunk_size": 32, "use_bias": False, "use_conv_bias": True, "hidden_act": "silu",
         "layer_norm_epsilon": 0.01, "rms_norm": True, "residual_in_fp32": True,
         "norm_before_gate": False, "time_step_limit": [0.0, float("inf")],
         "tie_word_embeddings": False, "torch_dtype": "float32", "bos_token_id": 0,
         "eos_token_id": 0, "pad_token_id": 0}
    t = Tensors()
    t.embed("backbone.embeddings", 169, 64)
    for i in range(2):
        t.norm(f"backbone.layers.{i}.norm", 64)
        mamba_mixer(t, f"backbone.layers.{i}.mixer", 64, inner, heads,
                    inner + 2 * groups * state)
    t.norm("backbone.norm_f", 64)
    t.head(169, 64)
    return c, t.rows


# --------------------------------------------------------------------------------------- encoders


def xlm_roberta():
    c = {"architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta",
         "torch_dtype": "float32", "vocab_size": 168, "hidden_size": 64, "intermediate_size": 120,
         "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_act": "gelu",
         "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
         "initializer_range": 0.02, "layer_norm_eps": 0.05, "max_position_embeddings": 98,
         "type_vocab_size": 1, "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2,
         "position_embedding_type": "absolute", "use_cache": True, "output_past": True}
    return c, encoder(c)


def xlm_roberta_score():
    """A reranker: one number for a sequence."""
    c, rows = xlm_roberta()
    c |= {"architectures": ["XLMRobertaForSequenceClassification"], "id2label": {"0": "LABEL_0"},
          "label2id": {"LABEL_0": 0}}
    t = Tensors()
    t.linear("classifier.dense", 64, 64, 1.5, bias=True)
    t.linear("classifier.out_proj", 1, 64, 3.0, bias=True)
    rows = [r | {"name": "roberta." + r["name"]} for r in rows if "pooler" not in r["name"]]
    return c, rows + t.rows


def modernbert_score():
    c, rows = modernbert()
    c |= {"architectures": ["ModernBertForSequenceClassification"], "id2label": {"0": "LABEL_0"},
          "label2id": {"LABEL_0": 0}, "classifier_activation": "gelu", "classifier_bias": False,
          "classifier_dropout": 0.0}
    t = Tensors()
    t.linear("head.dense", 64, 64, 1.5)
    t.norm("head.norm", 64)
    t.linear("classifier", 1, 64, 3.0, bias=True)
    return c, [r | {"name": "model." + r["name"]} for r in rows] + t.rows


ONE_LABEL = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}


def scoring(c, rows, arch, prefix, *parts):
    """A classifier of one label: `parts` are (name, rows) of the head, with biases."""
    c = c | {"architectures": [arch]} | ONE_LABEL
    t = Tensors()
    for name, count in parts:
        t.linear(name, count, 64, 3.0 if count == 1 else 1.5, bias=True)
    rows = [r | {"name": prefix + r["name"]} for r in rows if "pooler" not in r["name"]]
    return c, rows + t.rows


def bert_score():
    c = {"architectures": ["BertModel"], "model_type": "bert", "torch_dtype": "float32",
         "vocab_size": 163, "hidden_size": 64, "intermediate_size": 120, "num_hidden_layers": 2,
         "num_attention_heads": 4, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
         "attention_probs_dropout_prob": 0.1, "layer_norm_eps": 0.05,
         "max_position_embeddings": 96, "type_vocab_size": 2, "pad_token_id": 0}
    return scoring(c, encoder(c), "BertForSequenceClassification", "bert.",
                   ("bert.pooler.dense", 64), ("classifier", 1))


def nomic_bert_score():
    return scoring(*nomic_bert(), "NomicBertForSequenceClassification", "nomic_bert.",
                   ("nomic_bert.pooler.dense", 64), ("classifier", 1))


def electra(width=48):
    c = {"architectures": ["ElectraModel"], "model_type": "electra", "torch_dtype": "float32",
         "vocab_size": 164, "embedding_size": width, "hidden_size": 64, "intermediate_size": 120,
         "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_act": "gelu",
         "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "layer_norm_eps": 0.05,
         "max_position_embeddings": 96, "type_vocab_size": 2, "pad_token_id": 0,
         "summary_activation": "gelu", "summary_last_dropout": 0.1, "summary_type": "first",
         "summary_use_proj": True}
    rows = [r for r in encoder(c) if "pooler" not in r["name"]]
    if width != 64:
        for r in rows:
            if r["name"].startswith("embeddings."):
                r["shape"][-1] = width
        t = Tensors()
        t.linear("embeddings_project", 64, width, 1.5, bias=True)
        rows += t.rows
    return c, rows


def electra_score():
    return scoring(*electra(64), "ElectraForSequenceClassification", "electra.",
                   ("classifier.dense", 64), ("classifier.out_proj", 1))


def distilbert():
    c = {"architectures": ["DistilBertModel"], "model_type": "distilbert",
         "torch_dtype": "float32", "vocab_size": 165, "dim": 64, "hidden_dim": 120, "n_layers": 2,
         "n_heads": 4, "activation": "gelu", "attention_dropout": 0.1, "dropout": 0.1,
         "max_position_embeddings": 96, "sinusoidal_pos_embds": False, "tie_weights_": True,
         "pad_token_id": 0, "qa_dropout": 0.1, "seq_classif_dropout": 0.2}
    t = Tensors()
    for name, count in (("word", 165), ("position", 96)):
        t.embed(f"embeddings.{name}_embeddings", count, 64, 0.8)
    t.norm("embeddings.LayerNorm", 64, bias=True)
    for i in range(2):
        p = f"transformer.layer.{i}"
        for name, gain in (("q", 1.7), ("k", 1.7), ("v", 1.2), ("out", 1.5)):
            t.linear(f"{p}.attention.{name}_lin", 64, 64, gain, bias=True)
        t.norm(f"{p}.sa_layer_norm", 64, bias=True)
        t.linear(f"{p}.ffn.lin1", 120, 64, 1.6, bias=True)
        t.linear(f"{p}.ffn.lin2", 64, 120, 4.0, bias=True)
        t.norm(f"{p}.output_layer_norm", 64, bias=True)
    return c, t.rows


def distilbert_score():
    return scoring(*distilbert(), "DistilBertForSequenceClassification", "distilbert.",
                   ("pre_classifier", 64), ("classifier", 1))


def qwen3_score():
    """A decoder with a head of one label on its last token."""
    c = small("Qwen3ForSequenceClassification", "qwen3", 159, head_dim=32,
              use_sliding_window=False, sliding_window=None, max_window_layers=2,
              rope_theta=1000000.0, tie_word_embeddings=True) | ONE_LABEL
    t = Tensors()
    t.linear("score", 1, 64, 3.0)
    return c, decoder(c, llama_layer(c, qk=(32, 32))) + t.rows


def gpt_oss_plain():
    """gpt-oss without MXFP4: experts by columns. Hidden and inner size are equal."""
    c = small("GptOssForCausalLM", "gpt_oss", 158, intermediate_size=64, head_dim=24,
              num_local_experts=8, num_experts_per_tok=3, experts_per_token=3, sliding_window=20,
              swiglu_limit=7.0, rope_theta=150000.0, attention_bias=True,
              layer_types=["sliding_attention", "full_attention"],
              rope_scaling={"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
                            "original_max_position_embeddings": 512, "rope_type": "yarn",
                            "truncate": False}, max_position_embeddings=16384)

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 64)
        t.attention(f"{p}.self_attn", c, peak=1.4, bias="qkvo")
        t.add(f"{p}.self_attn.sinks", [4], 4.0, 1.0)
        t.norm(f"{p}.post_attention_layernorm", 64)
        t.linear(f"{p}.mlp.router", 8, 64, 2.0, bias=True)
        e = f"{p}.mlp.experts"
        t.add(f"{e}.gate_up_proj", [8, 64, 128], 0.6)
        t.add(f"{e}.gate_up_proj_bias", [8, 128], 3.0)
        t.add(f"{e}.down_proj", [8, 64, 64], 0.6)
        t.add(f"{e}.down_proj_bias", [8, 64], 1.0)
    return c, decoder(c, layer)


def qwen3_embedding():
    """Qwen3-Embedding: a decoder whose last row is the vector."""
    c = small("Qwen3ForCausalLM", "qwen3", 161, head_dim=32, use_sliding_window=False,
              sliding_window=None, max_window_layers=2, rope_theta=1000000.0,
              tie_word_embeddings=True)
    rows = [r | {"name": r["name"].removeprefix("model.")} for r in decoder(c, llama_layer(
        c, qk=(32, 32)))]
    return c, rows


def nomic_bert():
    c = {"architectures": ["NomicBertModel"], "model_type": "nomic_bert",
         "torch_dtype": "float32", "vocab_size": 167, "hidden_size": 64, "n_embd": 64,
         "intermediate_size": 120, "n_inner": 120, "num_hidden_layers": 2, "n_layer": 2,
         "num_attention_heads": 4, "n_head": 4, "hidden_act": "silu",
         "activation_function": "swiglu", "layer_norm_eps": 0.05, "max_position_embeddings": 8192,
         "n_positions": 8192, "causal": False, "qkv_proj_bias": False,
         "mlp_fc1_bias": False, "mlp_fc2_bias": False, "rotary_emb_fraction": 1.0,
         "rotary_emb_base": 1000, "rotary_emb_interleaved": False,
         "rotary_emb_scale_base": None, "prenorm": False, "rope_theta": 1000.0, "type_vocab_size": 2, "pad_token_id": 0}
    t = Tensors()
    t.embed("embeddings.word_embeddings", 167, 64, 0.8)
    t.embed("embeddings.token_type_embeddings", 2, 64, 0.8)
    t.norm("emb_ln", 64, bias=True)
    for i in range(2):
        p = f"encoder.layers.{i}"
        t.linear(f"{p}.attn.Wqkv", 3 * 64, 64, 1.6)
        t.linear(f"{p}.attn.out_proj", 64, 64, 1.5)
        t.norm(f"{p}.norm1", 64, bias=True)
        t.gated(f"{p}.mlp", 64, 120, ("fc12", "fc11", "fc2"), down=4.0)
        t.norm(f"{p}.norm2", 64, bias=True)
    return c, t.rows


def modernbert():
    c = {"architectures": ["ModernBertModel"], "model_type": "modernbert",
         "torch_dtype": "float32", "vocab_size": 166, "hidden_size": 64, "intermediate_size": 96,
         "num_hidden_layers": 3, "num_attention_heads": 4, "hidden_activation": "gelu",
         "attention_bias": False, "attention_dropout": 0.0, "mlp_bias": False, "norm_bias": False,
         "norm_eps": 0.05, "layer_norm_eps": 0.05, "global_attn_every_n_layers": 2,
         "global_rope_theta": 160000.0, "local_attention": 24, "local_rope_theta": 10000.0,
         "max_position_embeddings": 128, "position_embedding_type": "absolute",
         "classifier_pooling": "mean", "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
         "cls_token_id": 1, "sep_token_id": 2, "deterministic_flash_attn": False,
         "embedding_dropout": 0.0, "mlp_dropout": 0.0}
    t = Tensors()
    t.embed("embeddings.tok_embeddings", 166, 64)
    t.norm("embeddings.norm", 64)
    for i in range(3):
        p = f"layers.{i}"
        if i:
            t.norm(f"{p}.attn_norm", 64)
        t.linear(f"{p}.attn.Wqkv", 3 * 64, 64, 1.6)
        t.linear(f"{p}.attn.Wo", 64, 64, 1.5)
        t.norm(f"{p}.mlp_norm", 64)
        t.linear(f"{p}.mlp.Wi", 2 * 96, 64, 1.3)
        t.linear(f"{p}.mlp.Wo", 64, 96, 2.0)
    t.norm("final_norm", 64)
    return c, t.rows


# arch -> (builder, prompt length)
def clip_text(prefix, hidden, inner, layers, vocab, positions):
    """The tensors of a tower of texts."""
    t, p = Tensors(), prefix
    t.embed(f"{p}.embeddings.token_embedding", vocab, hidden, 0.8)
    t.embed(f"{p}.embeddings.position_embedding", positions, hidden, 0.8)
    for i in range(layers):
        q = f"{p}.encoder.layers.{i}"
        t.norm(f"{q}.layer_norm1", hidden, bias=True)
        for name, gain in (("q_proj", 1.7), ("k_proj", 1.7), ("v_proj", 1.2), ("out_proj", 1.5)):
            t.linear(f"{q}.self_attn.{name}", hidden, hidden, gain, True)
        t.norm(f"{q}.layer_norm2", hidden, bias=True)
        t.linear(f"{q}.mlp.fc1", inner, hidden, 1.6, True)
        t.linear(f"{q}.mlp.fc2", hidden, inner, 2.5, True)
    t.norm(f"{p}.final_layer_norm", hidden, bias=True)
    return t


def clip():
    c = {"architectures": ["CLIPTextModelWithProjection"], "model_type": "clip_text_model",
         "torch_dtype": "float32", "vocab_size": 151, "hidden_size": 48, "intermediate_size": 88,
         "num_hidden_layers": 2, "num_attention_heads": 3, "max_position_embeddings": 77,
         "hidden_act": "quick_gelu", "layer_norm_eps": 0.05, "attention_dropout": 0.0,
         "projection_dim": 40, "initializer_factor": 1.0, "initializer_range": 0.02,
         "bos_token_id": 149, "eos_token_id": 150, "pad_token_id": 1}
    t = clip_text("text_model", 48, 88, 2, 151, 77)
    t.linear("text_projection", 40, 48)
    return c, t.rows


def siglip():
    c = {"architectures": ["SiglipTextModel"], "model_type": "siglip_text_model",
         "torch_dtype": "float32", "vocab_size": 151, "hidden_size": 48, "intermediate_size": 88,
         "num_hidden_layers": 2, "num_attention_heads": 3, "max_position_embeddings": 64,
         "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 0.05, "attention_dropout": 0.0,
         "projection_size": 40, "bos_token_id": 149, "eos_token_id": 150, "pad_token_id": 1}
    t = clip_text("text_model", 48, 88, 2, 151, 64)
    t.linear("text_model.head", 40, 48, bias=True)
    return c, t.rows


FAMILIES = {
    "smollm3": (smollm3, 71), "gemma": (gemma, 72), "glm": (glm, 73), "glm4": (glm4, 74),
    "olmo3": (olmo3, 75), "cohere": (cohere, 70), "exaone4": (exaone4, 76),
    "starcoder2": (starcoder2, 77), "nemotron": (nemotron, 71), "stablelm": (stablelm, 72),
    "stablelm_parallel": (stablelm_parallel, 70), "phi": (phi, 73), "gpt2": (gpt2, 74),
    "gpt_neox": (gpt_neox, 75), "ministral3": (ministral3, 76), "seed_oss": (seed_oss, 70),
    "arcee": (arcee, 71), "ernie4_5": (ernie4_5, 72), "qwen2_moe": (qwen2_moe, 70),
    "glm4_moe": (glm4_moe, 71), "deepseek_v2": (deepseek_v2, 72), "olmoe": (olmoe, 73),
    "granitemoe": (granitemoe, 74), "granitemoehybrid": (granitemoehybrid, 72),
    "granite4_dense": (granite4_dense, 71), "minimax_m2": (minimax_m2, 70),
    "gemma4": (gemma4, 71), "gemma4_small": (gemma4_small, 72),
    "gemma4_moe": (gemma4_moe, 73), "gemma3n": (gemma3n, 74),
    "gemma3n_short": (gemma3n_short, 70),
    "llama4": (llama4, 75), "llama4_dense": (llama4_dense, 70),
    "qwen3_5": (qwen3_5, 74), "qwen3_5_moe": (qwen3_5_moe, 75),
    "mamba2": (mamba2, 70), "xlm_roberta": (xlm_roberta, 71), "nomic_bert": (nomic_bert, 72),
    "xlm_roberta_score": (xlm_roberta_score, 70), "modernbert_score": (modernbert_score, 71),
    "qwen3_embedding": (qwen3_embedding, 73),
    "modernbert": (modernbert, 73),
    "bert_score": (bert_score, 72), "nomic_bert_score": (nomic_bert_score, 71),
    "electra": (electra, 70), "electra_score": (electra_score, 73),
    "clip": (clip, 71), "siglip": (siglip, 64),
    "distilbert": (distilbert, 71), "distilbert_score": (distilbert_score, 74),
    "qwen3_score": (qwen3_score, 72), "gpt_oss_plain": (gpt_oss_plain, 70),
}
