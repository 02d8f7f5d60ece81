#!/usr/bin/env python3
"""Record the golden outputs of tiny models of every architecture from HF transformers.

Weights are never stored: every value is an integer hash of the tensor's name and index (see
README.md for the definition), so this script and the engine build the same model and only the
outputs of the HF model are kept.

    pip install torch transformers safetensors gguf
    python tests/golden/record.py                  # all families
    python tests/golden/record.py llama qwen3      # some
    python tests/golden/record.py --check llama    # recompute and compare with what is committed
    python tests/golden/record.py --vectors        # the hash test vectors of README.md
    python tests/golden/record.py --twins CONVERTER_DIR llama   # its GGUF twin, by llama.cpp

CONVERTER_DIR is a llama.cpp source folder (it holds convert_hf_to_gguf.py and conversion/).
"""

import argparse
import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np

import families
import twins
from hashed import (ABSENT, Tensors, config, decoder, encoder, fnv1a64, head_dim, prompt_ids, raw,
                    splitmix64, values_of)

HERE = pathlib.Path(__file__).resolve().parent
GREEDY_STEPS = 32

# ------------------------------------------------------------------------------------ the families
# Each returns (config as found on the hub, tensor table). eps is large on purpose: where it is
# added must show in the outputs.


def llama():
    c = config("LlamaForCausalLM", "llama", vocab_size=199, hidden_size=72,
               intermediate_size=152, num_hidden_layers=2, num_attention_heads=6,
               num_key_value_heads=2, head_dim=24, mlp_bias=False,
               rope_scaling={"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                             "original_max_position_embeddings": 64, "rope_type": "llama3"})

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 72)
        t.attention(f"{p}.self_attn", c)
        t.norm(f"{p}.post_attention_layernorm", 72)
        t.gated(f"{p}.mlp", 72, 152)
    return c, decoder(c, layer)


def qwen2():
    c = config("Qwen2ForCausalLM", "qwen2", vocab_size=211, hidden_size=64,
               intermediate_size=152, num_hidden_layers=2, num_attention_heads=4,
               num_key_value_heads=2, rope_theta=1000000.0, tie_word_embeddings=True,
               use_sliding_window=False, sliding_window=32, max_window_layers=2)

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 64)
        t.attention(f"{p}.self_attn", c, bias="qkv")
        t.norm(f"{p}.post_attention_layernorm", 64)
        t.gated(f"{p}.mlp", 64, 152)
    return c, decoder(c, layer)


def qwen3():
    c = config("Qwen3ForCausalLM", "qwen3", vocab_size=203, hidden_size=80,
               intermediate_size=144, num_hidden_layers=2, num_attention_heads=4,
               num_key_value_heads=2, head_dim=32, rope_theta=1000000.0,
               use_sliding_window=False, sliding_window=None, max_window_layers=2,
               rope_scaling=None)

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 80)
        t.attention(f"{p}.self_attn", c)
        t.qk_norm(f"{p}.self_attn", 32, 32)
        t.norm(f"{p}.post_attention_layernorm", 80)
        t.gated(f"{p}.mlp", 80, 144)
    return c, decoder(c, layer)


def gemma3():
    c = config("Gemma3ForCausalLM", "gemma3_text", vocab_size=209, hidden_size=64,
               intermediate_size=56, num_hidden_layers=6, num_attention_heads=4,
               num_key_value_heads=1, head_dim=24, hidden_act=ABSENT,
               hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=24,
               sliding_window=20, sliding_window_pattern=6, rope_theta=1000000.0,
               rope_local_base_freq=10000.0, rope_scaling={"factor": 8.0, "rope_type": "linear"},
               tie_word_embeddings=True, attn_logit_softcapping=None,
               final_logit_softcapping=None, bos_token_id=2, eos_token_id=1, pad_token_id=0)

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 64, 0.0)
        t.attention(f"{p}.self_attn", c)
        t.qk_norm(f"{p}.self_attn", 24, 24, 0.6)
        t.norm(f"{p}.post_attention_layernorm", 64, 0.2)
        t.norm(f"{p}.pre_feedforward_layernorm", 64, 0.0)
        t.norm(f"{p}.post_feedforward_layernorm", 64, 0.2)
        t.gated(f"{p}.mlp", 64, 56)
    # A small embedding, or each token would predict itself for ever.
    return c, decoder(c, layer, norm_offset=1.0, embed_std=0.12)


def gemma2(scale=16):
    c = config("Gemma2ForCausalLM", "gemma2", vocab_size=193, hidden_size=64,
               intermediate_size=104, num_hidden_layers=2, num_attention_heads=4,
               num_key_value_heads=2, head_dim=24, hidden_act="gelu_pytorch_tanh",
               hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=scale,
               sliding_window=20, tie_word_embeddings=True, attn_logit_softcapping=5.0,
               final_logit_softcapping=6.0, bos_token_id=2, eos_token_id=1, pad_token_id=0)

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 64, 0.0)
        t.attention(f"{p}.self_attn", c)
        t.norm(f"{p}.post_attention_layernorm", 64, 0.2)
        t.norm(f"{p}.pre_feedforward_layernorm", 64, 0.0)
        t.norm(f"{p}.post_feedforward_layernorm", 64, 0.2)
        t.gated(f"{p}.mlp", 64, 104)
    return c, decoder(c, layer, norm_offset=1.0, embed_std=0.12)


def gemma2_2b():
    """Scores scaled by the width of a head, which llama.cpp's files can say."""
    return gemma2(scale=24)


def gpt_oss():
    c = config("GptOssForCausalLM", "gpt_oss", torch_dtype="bfloat16", vocab_size=201,
               hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
               num_key_value_heads=2, head_dim=24, num_local_experts=8, num_experts_per_tok=3,
               experts_per_token=3, sliding_window=20, swiglu_limit=7.0, rope_theta=150000.0,
               attention_bias=True, layer_types=["sliding_attention", "full_attention"],
               initial_context_length=512, max_position_embeddings=16384,
               router_aux_loss_coef=0.9, output_router_logits=False,
               rope_scaling={"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
                             "original_max_position_embeddings": 512, "rope_type": "yarn",
                             "truncate": False},
               quantization_config={"modules_to_not_convert": [
                   "model.layers.*.self_attn", "model.layers.*.mlp.router",
                   "model.embed_tokens", "lm_head"], "quant_method": "mxfp4"})

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 64)
        t.attention(f"{p}.self_attn", c, peak=1.4, bias="qkvo")
        t.add(f"{p}.self_attn.sinks", [4], 4.0, 1.0)
        t.norm(f"{p}.post_attention_layernorm", 64)
        t.linear(f"{p}.mlp.router", 8, 64, 2.0, bias=True)
        e = f"{p}.mlp.experts"
        t.add(f"{e}.gate_up_proj_blocks", [8, 192, 2, 16], 256, 0, "U8")
        t.add(f"{e}.gate_up_proj_scales", [8, 192, 2], 6, 120, "U8")
        t.add(f"{e}.gate_up_proj_bias", [8, 192], 3.0)
        t.add(f"{e}.down_proj_blocks", [8, 64, 3, 16], 256, 0, "U8")
        t.add(f"{e}.down_proj_scales", [8, 64, 3], 6, 116, "U8")
        t.add(f"{e}.down_proj_bias", [8, 64], 1.0)
    return c, decoder(c, layer, dtype="BF16")


def deepseek_v3(mscale_all_dim=0.6):
    heads, nope, rope, vdim, q_rank, kv_rank = 4, 24, 16, 20, 48, 32
    c = config("DeepseekV3ForCausalLM", "deepseek_v3", vocab_size=197, hidden_size=64,
               intermediate_size=112, moe_intermediate_size=40, num_hidden_layers=3,
               num_attention_heads=heads, num_key_value_heads=heads, q_lora_rank=q_rank,
               kv_lora_rank=kv_rank, qk_nope_head_dim=nope, qk_rope_head_dim=rope,
               v_head_dim=vdim, n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=3,
               n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5,
               scoring_func="sigmoid", topk_method="noaux_tc", first_k_dense_replace=1,
               moe_layer_freq=1, num_nextn_predict_layers=0,
               rope_scaling={"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0,
                             "mscale_all_dim": mscale_all_dim, "original_max_position_embeddings": 660,
                             "type": "yarn"})

    def layer(t, i, p):
        a, m = f"{p}.self_attn", f"{p}.mlp"
        t.norm(f"{p}.input_layernorm", 64)
        t.linear(f"{a}.q_a_proj", q_rank, 64)
        t.norm(f"{a}.q_a_layernorm", q_rank)
        t.linear(f"{a}.q_b_proj", heads * (nope + rope), q_rank, 1.7)
        t.linear(f"{a}.kv_a_proj_with_mqa", kv_rank + rope, 64)
        t.norm(f"{a}.kv_a_layernorm", kv_rank)
        t.linear(f"{a}.kv_b_proj", heads * (nope + vdim), kv_rank, 1.5)
        t.linear(f"{a}.o_proj", 64, heads * vdim, 1.5)
        t.norm(f"{p}.post_attention_layernorm", 64)
        if i < 1:
            t.gated(m, 64, 112)
            return
        t.linear(f"{m}.gate", 8, 64, 2.0)
        t.add(f"{m}.gate.e_score_correction_bias", [8], 0.6, 0.1)
        for e in range(8):
            t.gated(f"{m}.experts.{e}", 64, 40)
        t.gated(f"{m}.shared_experts", 64, 80)
    return c, decoder(c, layer)


def deepseek_r1():
    """Both magnitudes of the rotation alike, as in R1 and in what llama.cpp's files can say."""
    return deepseek_v3(mscale_all_dim=1.0)


def qwen3_next(dense=(2,)):
    k_heads, v_heads, k_dim, v_dim = 2, 4, 16, 24
    c = config("Qwen3NextForCausalLM", "qwen3_next", vocab_size=205, hidden_size=64,
               intermediate_size=104, num_hidden_layers=3, num_attention_heads=4,
               num_key_value_heads=2, head_dim=32, partial_rotary_factor=0.25,
               rope_theta=10000000.0, rope_scaling=None, full_attention_interval=2,
               linear_conv_kernel_dim=4, linear_key_head_dim=k_dim, linear_value_head_dim=v_dim,
               linear_num_key_heads=k_heads, linear_num_value_heads=v_heads,
               decoder_sparse_step=1, mlp_only_layers=list(dense), moe_intermediate_size=32,
               shared_expert_intermediate_size=40, num_experts=8, num_experts_per_tok=3,
               norm_topk_prob=True, output_router_logits=False, router_aux_loss_coef=0.001)
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
            t.linear(f"{a}.in_proj_qkvz", 2 * key + 2 * value, 64, 1.5)
            t.linear(f"{a}.in_proj_ba", 2 * v_heads, 64, 1.2)
            t.add(f"{a}.conv1d.weight", [2 * key + value, 1, 4], 1.6, 0.1)
            t.add(f"{a}.dt_bias", [v_heads], 2.0)
            t.add(f"{a}.A_log", [v_heads], 4.0, -2.0)
            t.norm(f"{a}.norm", v_dim)
            t.linear(f"{a}.out_proj", 64, value, 2.0)
        t.norm(f"{p}.post_attention_layernorm", 64, 0.0)
        m = f"{p}.mlp"
        if i in dense:
            t.gated(m, 64, 104)
            return
        t.linear(f"{m}.gate", 8, 64, 2.0)
        for e in range(8):
            t.gated(f"{m}.experts.{e}", 64, 32)
        t.gated(f"{m}.shared_expert", 64, 40)
        t.linear(f"{m}.shared_expert_gate", 1, 64, 1.5)
    return c, decoder(c, layer, norm_offset=0.0)


def qwen3_next_80b():
    """Experts in every layer, as in the published models and in what llama.cpp's files can say."""
    return qwen3_next(dense=())


def falcon_h1(gate_norm=False, step_limit=None):
    ssm, ssm_heads, groups, state = 96, 6, 2, 20
    c = config("FalconH1ForCausalLM", "falcon_h1", vocab_size=198, hidden_size=64,
               intermediate_size=120, num_hidden_layers=2, num_attention_heads=4,
               num_key_value_heads=2, head_dim=24, rope_theta=100000000000.0, rope_scaling=None,
               mamba_d_ssm=ssm, mamba_n_heads=ssm_heads, mamba_d_head=16, mamba_n_groups=groups,
               mamba_d_state=state, mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=32,
               mamba_conv_bias=True, mamba_proj_bias=False, mamba_norm_before_gate=False,
               mamba_rms_norm=gate_norm, projectors_bias=False, mlp_bias=False,
               num_logits_to_keep=1, embedding_multiplier=1.7, lm_head_multiplier=0.6,
               attention_in_multiplier=1.2, attention_out_multiplier=0.8, key_multiplier=0.7,
               mlp_multipliers=[0.9, 0.6], ssm_in_multiplier=1.25, ssm_out_multiplier=0.7,
               ssm_multipliers=[0.8, 1.1, 0.9, 1.2, 0.75])
    if step_limit:
        c["time_step_limit"] = step_limit
    conv = ssm + 2 * groups * state

    def layer(t, i, p):
        m = f"{p}.mamba"
        t.norm(f"{p}.input_layernorm", 64)
        t.linear(f"{m}.in_proj", ssm + conv + ssm_heads, 64, 1.3)
        t.add(f"{m}.conv1d.weight", [conv, 1, 4], 1.4, 0.1)
        t.bias(f"{m}.conv1d.bias", conv)
        t.add(f"{m}.dt_bias", [ssm_heads], 2.0, -1.0)
        t.add(f"{m}.A_log", [ssm_heads], 4.0, -1.0)
        t.add(f"{m}.D", [ssm_heads], 1.0, 1.0)
        if gate_norm:
            t.norm(f"{m}.norm", ssm)
        t.linear(f"{m}.out_proj", 64, ssm, 1.5)
        t.attention(f"{p}.self_attn", c, peak=1.8)
        t.norm(f"{p}.pre_ff_layernorm", 64)
        t.gated(f"{p}.feed_forward", 64, 120, down=2.0)
    return c, decoder(c, layer, norm="model.final_layernorm", embed_std=0.7)


def falcon_h1_norm():
    return falcon_h1(gate_norm=True, step_limit=[0.05, 1.5])


def falcon_h1_34b():
    """The norm without bounds of the step size, as llama.cpp's files can say."""
    return falcon_h1(gate_norm=True)


def lfm2():
    inner = 112  # from block_ff_dim: int(2/3 * 150) = 100, rounded up to a multiple of 16
    c = config("Lfm2ForCausalLM", "lfm2", vocab_size=207, hidden_size=64,
               num_hidden_layers=3, num_attention_heads=4, num_heads=4, num_key_value_heads=2,
               hidden_act=ABSENT, rms_norm_eps=ABSENT, attention_bias=ABSENT,
               tie_word_embeddings=ABSENT, norm_eps=0.01, block_norm_eps=0.01, tie_embedding=True,
               block_auto_adjust_ff_dim=True, block_dim=64, block_ff_dim=150,
               block_ffn_dim_multiplier=1.0, block_multiple_of=16, block_mlp_init_scale=1.0,
               block_out_init_scale=1.0, block_use_swiglu=True, block_use_xavier_init=True,
               conv_L_cache=3, conv_bias=False, conv_dim=64, conv_dim_out=64,
               conv_use_xavier_init=True, full_attn_idxs=[1], rope_theta=1000000.0,
               use_pos_enc=True, pad_token_id=0)

    def layer(t, i, p):
        t.norm(f"{p}.operator_norm", 64)
        if i == 1:
            t.attention(f"{p}.self_attn", c, out="out_proj")
            t.qk_norm(f"{p}.self_attn", 16, 16, names=("q_layernorm", "k_layernorm"))
        else:
            t.linear(f"{p}.conv.in_proj", 3 * 64, 64, 1.2)
            t.add(f"{p}.conv.conv.weight", [64, 1, 3], 2.0, 0.1)
            t.linear(f"{p}.conv.out_proj", 64, 64, 1.0)
        t.norm(f"{p}.ffn_norm", 64)
        t.gated(f"{p}.feed_forward", 64, inner, ("w1", "w3", "w2"))
    return c, decoder(c, layer, norm="model.embedding_norm")


def cohere2():
    c = config("Cohere2ForCausalLM", "cohere2", vocab_size=200, hidden_size=64,
               intermediate_size=136, num_hidden_layers=4, num_attention_heads=4,
               num_key_value_heads=2, head_dim=16, rms_norm_eps=ABSENT, layer_norm_eps=0.01,
               logit_scale=0.5, rope_theta=50000.0, rope_scaling=None, sliding_window=20,
               sliding_window_pattern=4, tie_word_embeddings=True, use_embedding_sharing=True,
               order_of_interleaved_layers="local_attn_first", position_embedding_type="rope_gptj",
               rotary_pct=1.0, use_gated_activation=True, use_parallel_block=True,
               use_parallel_embedding=False, use_qk_norm=False, layer_switch=4,
               bos_token_id=5, eos_token_id=3, pad_token_id=0)

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 64)
        t.attention(f"{p}.self_attn", c)
        t.gated(f"{p}.mlp", 64, 136)
    return c, decoder(c, layer)


def bert():
    c = {"architectures": ["BertModel"], "model_type": "bert", "torch_dtype": "float32",
         "vocab_size": 223, "hidden_size": 64, "intermediate_size": 152, "num_hidden_layers": 2,
         "num_attention_heads": 4, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
         "attention_probs_dropout_prob": 0.1, "initializer_range": 0.02, "layer_norm_eps": 0.05,
         "max_position_embeddings": 96, "type_vocab_size": 2, "pad_token_id": 0,
         "position_embedding_type": "absolute", "use_cache": True}
    return c, encoder(c)


def mistral():
    c = config("MistralForCausalLM", "mistral", vocab_size=195, hidden_size=80,
               intermediate_size=136, num_hidden_layers=2, num_attention_heads=4,
               num_key_value_heads=2, head_dim=16, sliding_window=24, attention_bias=ABSENT)

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 80)
        t.attention(f"{p}.self_attn", c)
        t.norm(f"{p}.post_attention_layernorm", 80)
        t.gated(f"{p}.mlp", 80, 136)
    return c, decoder(c, layer)


def phi3():
    c = config("Phi3ForCausalLM", "phi3", vocab_size=202, hidden_size=64,
               intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
               num_key_value_heads=2, partial_rotary_factor=0.75, embd_pdrop=0.0,
               resid_pdrop=0.0, sliding_window=24, max_position_embeddings=2048,
               original_max_position_embeddings=256,
               rope_scaling={"type": "longrope", "long_factor": [1.5, 2.0, 4.0, 8.0, 16.0, 32.0],
                             "short_factor": [1.0, 1.1, 1.25, 1.5, 2.0, 3.0]},
               pad_token_id=0)

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 64)
        t.linear(f"{p}.self_attn.qkv_proj", 64 + 2 * 32, 64, 1.6)
        t.linear(f"{p}.self_attn.o_proj", 64, 64, 1.5)
        t.norm(f"{p}.post_attention_layernorm", 64)
        t.linear(f"{p}.mlp.gate_up_proj", 2 * 128, 64, 1.3)
        t.linear(f"{p}.mlp.down_proj", 64, 128, 1.6)
    return c, decoder(c, layer)


def olmo2():
    c = config("Olmo2ForCausalLM", "olmo2", vocab_size=194, hidden_size=64,
               intermediate_size=120, num_hidden_layers=2, num_attention_heads=4,
               num_key_value_heads=2, rope_theta=500000.0, rope_scaling=None)

    def layer(t, i, p):
        t.attention(f"{p}.self_attn", c)
        t.qk_norm(f"{p}.self_attn", 64, 32)
        t.norm(f"{p}.post_attention_layernorm", 64)
        t.gated(f"{p}.mlp", 64, 120)
        t.norm(f"{p}.post_feedforward_layernorm", 64)
    return c, decoder(c, layer, embed_std=0.5)


def granite():
    c = config("GraniteForCausalLM", "granite", vocab_size=196, hidden_size=64,
               intermediate_size=120, num_hidden_layers=2, num_attention_heads=4,
               num_key_value_heads=2, embedding_multiplier=3.0, residual_multiplier=0.6,
               attention_multiplier=0.3, logits_scaling=1.5, mlp_bias=False, rope_scaling=None)

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 64)
        t.attention(f"{p}.self_attn", c)
        t.norm(f"{p}.post_attention_layernorm", 64)
        t.gated(f"{p}.mlp", 64, 120)
    return c, decoder(c, layer, embed_std=0.3)


def qwen3_moe(dense=(0,)):
    c = config("Qwen3MoeForCausalLM", "qwen3_moe", vocab_size=204, hidden_size=64,
               intermediate_size=112, moe_intermediate_size=40, num_hidden_layers=2,
               num_attention_heads=4, num_key_value_heads=2, head_dim=24, num_experts=8,
               num_experts_per_tok=3, norm_topk_prob=True, decoder_sparse_step=1,
               mlp_only_layers=list(dense), rope_theta=1000000.0, rope_scaling=None,
               use_sliding_window=False, sliding_window=None, max_window_layers=2,
               output_router_logits=False, router_aux_loss_coef=0.001)

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 64)
        t.attention(f"{p}.self_attn", c)
        t.qk_norm(f"{p}.self_attn", 24, 24)
        t.norm(f"{p}.post_attention_layernorm", 64)
        if i in dense:
            t.gated(f"{p}.mlp", 64, 112)
            return
        t.linear(f"{p}.mlp.gate", 8, 64, 2.0)
        for e in range(8):
            t.gated(f"{p}.mlp.experts.{e}", 64, 40)
    return c, decoder(c, layer)


def qwen3_30b():
    """Experts in every layer, as in the published models and in what llama.cpp's files can say."""
    return qwen3_moe(dense=())


def mixtral():
    c = config("MixtralForCausalLM", "mixtral", vocab_size=192, hidden_size=64,
               intermediate_size=72, num_hidden_layers=2, num_attention_heads=4,
               num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2,
               sliding_window=None, rope_theta=1000000.0, output_router_logits=False,
               router_aux_loss_coef=0.02, attention_bias=ABSENT)

    def layer(t, i, p):
        t.norm(f"{p}.input_layernorm", 64)
        t.attention(f"{p}.self_attn", c)
        t.norm(f"{p}.post_attention_layernorm", 64)
        m = f"{p}.block_sparse_moe"
        t.linear(f"{m}.gate", 4, 64, 2.0)
        for e in range(4):
            t.gated(f"{m}.experts.{e}", 64, 72, ("w1", "w3", "w2"))
    return c, decoder(c, layer)


# arch -> (builder, prompt length)
FAMILIES = {
    "llama": (llama, 76), "qwen2": (qwen2, 73), "qwen3": (qwen3, 75), "gemma3": (gemma3, 77),
    "gpt_oss": (gpt_oss, 76), "deepseek_v3": (deepseek_v3, 74), "qwen3_next": (qwen3_next, 78),
    "falcon_h1": (falcon_h1, 79), "falcon_h1_norm": (falcon_h1_norm, 71), "lfm2": (lfm2, 72),
    "cohere2": (cohere2, 78), "bert": (bert, 74), "mistral": (mistral, 77), "phi3": (phi3, 75),
    "olmo2": (olmo2, 72), "granite": (granite, 71), "qwen3_moe": (qwen3_moe, 74),
    "mixtral": (mixtral, 73), "gemma2": (gemma2, 70), "gemma2_2b": (gemma2_2b, 71),
    "deepseek_r1": (deepseek_r1, 75), "falcon_h1_34b": (falcon_h1_34b, 70),
    "qwen3_next_80b": (qwen3_next_80b, 71), "qwen3_30b": (qwen3_30b, 72),
}
ENCODERS = ("bert", "xlm-roberta", "nomic_bert", "modernbert", "distilbert", "electra", "clip_text_model",
            "siglip_text_model")
EMBEDDERS = ("qwen3_embedding", "qwen3_score")
TWINS = ("llama", "qwen2", "qwen3", "gemma3", "gpt_oss")
# The cached one-token path of transformers leaves out the dt clamp, and Mamba-2 has its own cache.
NO_CACHE_CHECK = ("falcon_h1_norm", "mamba2")

# --------------------------------------------------------------------------------------- recording


def write_checkpoint(folder, conf, rows, salt):
    """config.json and model.safetensors, as a user would have them on disk."""
    import torch
    from safetensors.torch import save_file
    state = {}
    for row in rows:
        data = torch.from_numpy(values_of(row, salt).copy())
        state[row["name"]] = data.to(torch.bfloat16) if row["dtype"] == "BF16" else data
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(conf, indent=2) + "\n")


def load_model(folder, conf):
    """The HF model in f32 with eager attention; every checkpoint tensor must have been used."""
    import torch
    import transformers
    kind = (transformers.AutoModel if conf["model_type"] in ENCODERS or folder.name in EMBEDDERS
            else transformers.AutoModelForCausalLM)
    if conf["architectures"][0].endswith("ForSequenceClassification"):
        kind = transformers.AutoModelForSequenceClassification
    if conf["model_type"] == "clip_text_model":
        kind = transformers.CLIPTextModelWithProjection
    if conf["model_type"] == "siglip_text_model":
        kind = transformers.SiglipTextModel
    extra = {}
    if "quantization_config" in conf:
        extra["quantization_config"] = transformers.Mxfp4Config(dequantize=True)
    model, info = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                       output_loading_info=True, **extra)
    for key, found in info.items():
        assert not found, f"{key}: {found}"
    model = model.float().eval()
    return model


def router_margins(model):
    """Hooks every router; returns a list that fills with its smallest choice margins."""
    import torch
    margins = []

    def hook(module, inputs, output):
        k = getattr(module, "top_k", None)
        if type(module).__name__ == "Gemma4TextRouter":
            k, output = module.config.top_k_experts, [output[0].log()]
        if k is None:
            return
        # Llama 4's gives the weights first.
        logits = output[1] if type(module).__name__ == "Llama4Router" else output[0]
        logits = logits.detach().reshape(-1, logits.shape[-1])
        bias = getattr(module, "e_score_correction_bias", None)
        if bias is not None:
            logits = scores = logits.sigmoid() + bias
        if bias is not None and getattr(module, "num_group", 1) > 1:
            groups = scores.view(-1, module.num_group, scores.shape[1] // module.num_group)
            group = groups.topk(2, dim=-1)[0].sum(-1)
            order = group.sort(dim=-1, descending=True)
            margins.append((order[0][:, module.topk_group - 1]
                            - order[0][:, module.topk_group]).min().item())
            keep = torch.zeros_like(group).scatter_(1, order[1][:, :module.topk_group], 1)
            logits = groups.masked_fill(keep.unsqueeze(-1) == 0, -1e9).reshape(scores.shape)
        order = logits.sort(dim=-1, descending=True)[0]
        margins.append((order[:, k - 1] - order[:, k]).min().item())

    for module in model.modules():
        if "Router" in type(module).__name__:
            module.register_forward_hook(hook)
    return margins


def layer_trace(model, run):
    """f32 [1 + layers, 2, hidden]: embedding and layer outputs at the first and last position."""
    inner = model.base_model if model.base_model is not model else getattr(model, "model", model)
    inner = getattr(inner, "encoder", getattr(inner, "transformer", inner))
    layers = next(getattr(inner, name) for name in ("layers", "layer", "h") if hasattr(inner, name))
    rows = []

    def first(value):
        return value[0] if isinstance(value, tuple) else value

    def keep(value):
        value = first(value).detach()
        if value.dim() == 4:  # several streams
            value = value[0]
        rows.append(value[0, [0, -1]].numpy().copy())

    hooks = [layers[0].register_forward_pre_hook(
        lambda m, args, kwargs: keep(args[0] if args else kwargs["hidden_states"]),
        with_kwargs=True)]
    hooks += [layer.register_forward_hook(lambda m, i, o: keep(o)) for layer in layers]
    result = run()
    for hook in hooks:
        hook.remove()
    return np.stack(rows).astype(np.float32), result


def greedy(model, ids):
    """32 greedy steps, the whole sequence recomputed each time; ids and smallest margin."""
    import torch
    seq, least = list(ids), math.inf
    for _ in range(GREEDY_STEPS):
        out = model(torch.tensor([seq]), use_cache=False).logits[0, -1]
        top = out.topk(2)
        least = min(least, (top.values[0] - top.values[1]).item())
        seq.append(int(top.indices[0]))
    return seq[len(ids):], least


def cached_difference(model, ids, logits):
    """Largest difference to the same logits computed token by token through the KV cache."""
    import torch
    past, worst = None, 0.0
    for i, token in enumerate(ids):
        out = model(torch.tensor([[token]]), past_key_values=past, use_cache=True)
        past = out.past_key_values
        worst = max(worst, float(np.abs(out.logits[0, -1].numpy() - logits[i]).max()))
    return worst


def run_decoder(arch, conf, model, ids):
    """The recorded data of a decoder, or a reason why this salt will not do."""
    import torch
    margins = router_margins(model)
    tokens = torch.tensor([ids])
    trace, out = layer_trace(
        model, lambda: model(tokens, use_cache=False, output_attentions=True))
    logits = out.logits[0].numpy().astype(np.float32)
    sigma = float(logits.std())
    if sigma < 1.0:
        return None, f"sigma {sigma:.3f}"
    if margins and min(margins) < 1e-3:
        return None, f"router margin {min(margins):.2e}"
    peaks = [float(a.max(-1).values.mean()) for a in (getattr(out, "attentions", None) or []) if a is not None]
    chosen, least = greedy(model, ids)
    if least < 2e-3 * sigma:
        return None, f"greedy margin {least:.2e}"
    if len(set(chosen)) < 8:
        return None, f"greedy visits only {len(set(chosen))} ids"
    if margins and min(margins) < 1e-3:
        return None, f"router margin while decoding {min(margins):.2e}"
    meta = {"sigma": round(sigma, 4), "greedy_margin": round(least, 5),
            "router_margin": round(min(margins), 5) if margins else None,
            "attention_peak": [round(p, 3) for p in peaks]}
    if arch not in NO_CACHE_CHECK:
        meta["cached_difference"] = cached_difference(model, ids, logits)
        assert meta["cached_difference"] < 1e-3 * sigma, meta
    return {"logits": logits, "trace": trace, "greedy": chosen, "meta": meta}, None


def encodes(arch, conf):
    return conf["model_type"] in ENCODERS or arch in EMBEDDERS


def run_encoder(arch, conf, model, ids):
    """The recorded data of an encoder: last hidden state, and its normalised mean (of EMBEDDERS the
    last row, of rerankers the score)."""
    import torch
    tokens = torch.tensor([ids])
    scores = conf["architectures"][0].endswith("ForSequenceClassification")
    whole, model = model, model.base_model
    trace, out = layer_trace(model, lambda: model(tokens, output_attentions=True))
    hidden = out.last_hidden_state[0].numpy().astype(np.float32)
    rows = out.last_hidden_state[0]
    row = rows[-1] if arch in EMBEDDERS else rows.mean(0)
    mean = torch.nn.functional.normalize(row, dim=0)
    if scores:
        mean = whole(tokens).logits[0]
    if conf["model_type"] in ("clip_text_model", "siglip_text_model"):
        out_of = whole(tokens)
        row = out_of.text_embeds if hasattr(out_of, "text_embeds") else out_of.pooler_output
        mean = torch.nn.functional.normalize(row[0], dim=0)
    meta = {"sigma": round(float(hidden.std()), 4),
            "attention_peak": [round(float(a.max(-1).values.mean()), 3) for a in out.attentions]}
    return {"hidden": hidden, "embedding": mean.numpy().astype(np.float32), "trace": trace,
            "greedy": None, "meta": meta}, None


def record(arch, scratch):
    """Find a salt whose choices are stable and return everything to be written."""
    import torch
    builder, length = (FAMILIES | families.FAMILIES)[arch]
    conf, rows = builder()
    ids = prompt_ids(arch, length, conf["vocab_size"])
    if conf["model_type"] == "clip_text_model":  # (Its last token is the one that ends a text.)
        ids = [i % conf["eos_token_id"] for i in ids[:-1]] + [conf["eos_token_id"]]
    run = run_encoder if encodes(arch, conf) else run_decoder
    for attempt in range(400):
        salt = f"#{attempt}" if attempt else ""
        folder = pathlib.Path(scratch) / arch
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_checkpoint(folder, conf, rows, salt)
        with torch.no_grad():
            data, why = run(arch, conf, load_model(folder, conf), ids)
        if data is not None:
            return conf, rows, ids, salt, data, folder
        if attempt % 20 == 0:
            print(f"{arch}: salt {salt!r}: {why}", file=sys.stderr)
    raise SystemExit(f"{arch}: no stable salt found")


def v5_config(folder):
    """The same configuration as transformers 5 writes it (rope_parameters, layer_types)."""
    import transformers
    auto = transformers.AutoConfig.from_pretrained(folder)
    text = json.loads(auto.to_json_string(use_diff=False))
    for key in ("transformers_version", "_name_or_path"):
        text.pop(key, None)
    return text


def golden_json(arch, ids, conf, data):
    import torch
    import transformers
    vocab = conf["vocab_size"]
    return {"arch": arch, "seq": len(ids), "vocab": vocab, "ids": ids,
            "greedy": data["greedy"],
            "meta": data["meta"] | {"transformers": transformers.__version__,
                                    "torch": torch.__version__.split("+")[0]}}


def dump(path, value):
    """JSON with one row a line for lists of rows."""
    path.write_text(json.dumps(value, indent=1) + "\n")


def write_tensors(path, salt, rows):
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    path.write_text(f'{{\n "salt": {json.dumps(salt)},\n "tensors": [\n{lines}\n ]\n}}\n')


def write(arch, conf, rows, ids, salt, data, folder):
    out = HERE / arch
    out.mkdir(exist_ok=True)
    dump(out / "config.json", conf)
    dump(out / "config.v5.json", v5_config(folder))
    write_tensors(out / "tensors.json", salt, rows)
    text = json.dumps(golden_json(arch, ids, conf, data), indent=None)
    (out / "golden.json").write_text(text.replace(', "', ',\n "') + "\n")
    for name in ("logits", "hidden", "embedding", "trace"):
        if name in data:
            data[name].astype("<f4").tofile(out / f"{name}.f32")


def check(arch, data):
    """Compare a fresh run with the committed files; returns the largest difference."""
    name = "hidden" if "hidden" in data else "logits"
    kept = np.fromfile(HERE / arch / f"{name}.f32", "<f4").reshape(data[name].shape)
    golden = json.loads((HERE / arch / "golden.json").read_text())
    assert golden["greedy"] == data["greedy"], f"{arch}: greedy ids differ"
    return float(np.abs(kept - data[name]).max())


# Runs llama.cpp's converter without a tokenizer: token ids are all these files are asked about.
CONVERT = """
import json
import pathlib
import sys
sys.path.insert(0, sys.argv[1])
sys.path.insert(1, sys.argv[1] + "/gguf-py")
import convert_hf_to_gguf as tool
get = tool.get_model_class
def only_size(model):
    model._set_vocab_none()
    model.gguf_writer.add_vocab_size(model.hparams["vocab_size"])
def get_without_vocab(*args, **kwargs):
    found = get(*args, **kwargs)
    found.set_vocab = only_size
    return found
tool.get_model_class = get_without_vocab
if sys.argv[4] == "golden gpt_neox":
    # The file as it is: transformers moves a key that the converter wants.
    tool.ModelBase.load_hparams = staticmethod(
        lambda folder, *rest: json.loads((pathlib.Path(folder) / "config.json").read_text()))
sys.argv = ["convert", sys.argv[2], "--outtype", "f32", "--outfile", sys.argv[3],
            "--model-name", sys.argv[4], *sys.argv[5:]]
tool.main()
"""


def convert(arch, folder, converter, out):
    """Runs the converter on a folder."""
    vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
    # The converter reads this file only to count the rows of the embedding.
    (folder / "tokenizer.json").write_text(json.dumps(
        {"added_tokens": [], "model": {"type": "WordPiece", "vocab": {f"t{i}": i for i in range(vocab)}}}))
    # Layers that draft tokens are expected otherwise.
    flags = ["--no-mtp"] if arch.startswith(("qwen3_5", "qwen3_next")) else []
    subprocess.run([sys.executable, "-c", CONVERT, str(converter), str(folder), str(out),
                    f"golden {arch}", *flags], check=True,
                   env={"NO_LOCAL_GGUF": "1", "PATH": "/usr/bin"})


def factors(conf):
    """The factors that the converter multiplies rows by, in order (Falcon-H1)."""
    if "ssm_multipliers" not in conf:
        return []
    alone = [v for k, v in conf.items() if k.endswith("_multiplier")] + conf["mlp_multipliers"]
    return ([[f] for f in alone] + [[conf["key_multiplier"], conf["attention_in_multiplier"]]]
            + [[conf["ssm_in_multiplier"], f] for f in conf["ssm_multipliers"]])


def twin(arch, folder, converter):
    """The converted file itself for TWINS, else where each of its numbers comes from."""
    out = HERE / arch / "twin.gguf"
    if arch in TWINS:
        convert(arch, folder, converter, out)
        print(f"{arch}: twin.gguf {out.stat().st_size} bytes")
        return
    convert(arch, folder, converter, folder / "twin.gguf")
    table = json.loads((HERE / arch / "tensors.json").read_text())
    sources = [values_of(row, table["salt"]).ravel() for row in table["tensors"]]
    conf = json.loads((folder / "config.json").read_text())
    text = twins.describe(folder / "twin.gguf", sources, factors(conf))
    (HERE / arch / "twin.json").write_text(text)
    print(f"{arch}: twin.json {len(text)} bytes")


def only_twin(arch, scratch, converter):
    """The twin of what is committed already."""
    folder = pathlib.Path(scratch) / arch
    folder.mkdir(parents=True)
    table = json.loads((HERE / arch / "tensors.json").read_text())
    conf = json.loads((HERE / arch / "config.json").read_text())
    write_checkpoint(folder, conf, table["tensors"], table["salt"])
    twin(arch, folder, converter)


def vectors():
    """Print the test vectors of README.md."""
    for text in ("", "a", "model.embed_tokens.weight"):
        print(f"fnv1a64({text!r}) = {fnv1a64(text):#018x}")
    print("splitmix64(0) =", hex(int(splitmix64(np.zeros(1, np.uint64))[0])))
    name = "model.embed_tokens.weight"
    print("raw:", [hex(int(x)) for x in raw(name, 4)])
    row = {"name": name, "shape": [4], "dtype": "F32", "scale": 3.46, "offset": 0.0}
    for change in ({}, {"scale": 0.5, "offset": 1.0}, {"dtype": "BF16"},
                   {"dtype": "U8", "scale": 256, "offset": 0},
                   {"dtype": "U8", "scale": 6, "offset": 118}):
        got = values_of(row | change, "")
        bits = got.view(np.uint32) if got.dtype == np.float32 else got
        print({k: (row | change)[k] for k in ("dtype", "scale", "offset")},
              [float(x) for x in got], [hex(int(b)) for b in bits])
    print("salted raw:", [hex(int(x)) for x in raw(name + "#1", 2)])
    print("prompt llama:", prompt_ids("llama", 8, 199))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", help="default: all")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--vectors", action="store_true", help="print the hash test vectors")
    parser.add_argument("--twins", metavar="DIR", help="llama.cpp folder: only the GGUF twins")
    args = parser.parse_args()
    if args.vectors:
        return vectors()
    import torch
    from transformers.utils import logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        for arch in args.families or FAMILIES | families.FAMILIES:
            if args.twins:
                only_twin(arch, scratch, args.twins)
                continue
            conf, rows, ids, salt, data, folder = record(arch, scratch)
            if args.check:
                print(f"{arch}: largest difference {check(arch, data):.3g}")
                continue
            write(arch, conf, rows, ids, salt, data, folder)
            print(f"{arch}: salt {salt!r} {json.dumps(data['meta'])}")


if __name__ == "__main__":
    main()
