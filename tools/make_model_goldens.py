#!/usr/bin/env python3
"""Writes tests/models/NAME/ (tiny random checkpoints) and tests/golden/NAME.json + NAME.logits (what transformers computes).

Needs torch, transformers, safetensors (made with transformers 5.23.0, dynamic_rope with 5.24, torch 2.15 on CPU). Run from the repository root:
    python tools/make_model_goldens.py [NAME...]
Every tiny model is written first and then loaded from its folder by transformers in FP32 with eager attention, so the golden
is transformers' reading of exactly the files the tests read. Per model:
    NAME.json    ids; greedy: 16 ids that follow, by generate() with its KV cache; gap: at each of those steps the distance of
                 the two largest logits; norm: Frobenius norm of the logits
    NAME.logits  FP32 little-endian (ids, columns): the logits of every position; `columns` of the json lists the vocabulary
                 columns kept, absent = all of them
The two bundled models (models/quill-*) get the same from prompts in words, 64 columns of the logits only, and `losses` of the
first three windows of docs-heldout.txt.
"""
import json
import math
import os
import shutil
import sys
import warnings

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

transformers.logging.set_verbosity_error()
warnings.filterwarnings("ignore")
torch.set_num_threads(1)

TOKENS, GREEDY, COLUMNS = 48, 16, 64
CLASSES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
           "smollm3": "SmolLM3ForCausalLM", "ministral": "MinistralForCausalLM", "ministral3": "Ministral3ForCausalLM",
           "phi3": "Phi3ForCausalLM", "granite": "GraniteForCausalLM", "olmo2": "Olmo2ForCausalLM", "olmo3": "Olmo3ForCausalLM",
           "gemma3_text": "Gemma3ForCausalLM", "mixtral": "MixtralForCausalLM", "olmoe": "OlmoeForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM",
           "granitemoe": "GraniteMoeForCausalLM", "qwen3_next": "Qwen3NextForCausalLM", "qwen3_5_text": "Qwen3_5ForCausalLM",
           "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM", "qwen2_moe": "Qwen2MoeForCausalLM", "glm4_moe": "Glm4MoeForCausalLM",
           "minimax_m2": "MiniMaxM2ForCausalLM", "gpt_oss": "GptOssForCausalLM", "gemma4_text": "Gemma4ForCausalLM"}

# name -> (dtype of the file, family, keys). Sizes are small and awkward on purpose: d = 48 and f = 80 are multiples of 16 but
# not of 32 or 64, so that every kernel meets its ragged end.
BASE = dict(vocab_size=128, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=96, rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False, hidden_act="silu",
            bos_token_id=1, eos_token_id=2)
MODELS = {
    # Multi-head attention, as Llama 2.
    "llama2": ("bfloat16", "llama", dict(num_key_value_heads=4)),
    # Tied head, rope stretched: position 48 is three times the original context, so all three bands of the ramp matter.
    "llama32": ("bfloat16", "llama", dict(tie_word_embeddings=True, head_dim=16, rope_theta=500000.0, rope_scaling=dict(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16))),
    # The window of 20 is left behind early and is no multiple of the cache's page.
    "mistral": ("float16", "mistral", dict(num_key_value_heads=1, sliding_window=20)),
    "qwen2": ("float32", "qwen2", dict(hidden_size=32, intermediate_size=72, rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=True)),
    # head_dim * heads = 64 > hidden_size; norms on q and k.
    "qwen3": ("bfloat16", "qwen3", dict(head_dim=16, rms_norm_eps=1e-6, rope_theta=1e6)),
    "linear_rope": ("bfloat16", "llama", dict(rope_scaling=dict(type="linear", factor=4.0), attention_bias=True, mlp_bias=True)),
    # The last of 48 + 16 positions is the last at which theta is still the model's own.
    "dynamic_rope": ("bfloat16", "llama", dict(num_hidden_layers=1, head_dim=8, max_position_embeddings=64, rope_scaling=dict(
        rope_type="dynamic", factor=4.0))),
    "yarn": ("bfloat16", "llama", dict(head_dim=24, rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=24))),
    # config.json as transformers 5 itself writes it: dtype, rope_parameters, layer_types.
    "keys5": ("bfloat16", "qwen3", dict(head_dim=16, tie_word_embeddings=True, num_hidden_layers=1, rope_parameters=dict(
        rope_type="llama3", rope_theta=250000.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=32))),
}
# The other families are smaller still: d = 40, f = 56, heads of 8, five for one of keys and values.
SMALL = dict(BASE, vocab_size=96, hidden_size=40, intermediate_size=56, num_attention_heads=5, num_key_value_heads=1, pad_token_id=None)
FAMILIES = {
    # Every fourth layer is not turned; the head is tied without a word.
    "smollm3": ("bfloat16", "smollm3", dict(num_hidden_layers=5, tie_word_embeddings=True)),
    # Windows where heads are not turned.
    "smollm3_window": ("float32", "smollm3", dict(num_hidden_layers=3, no_rope_layers=[1, 0, 1], use_sliding_window=True, sliding_window=20,
                                                 attention_bias=True, mlp_bias=True, num_attention_heads=6, num_key_value_heads=3, head_dim=16)),
    # Heads wider than d / h; a window in two layers of three.
    "ministral": ("float16", "ministral", dict(num_hidden_layers=3, head_dim=16, sliding_window=20, layer_types=[
        "sliding_attention", "full_attention", "sliding_attention"])),
    # Queries grow with their position: 48 + 16 positions are four steps of 16.
    "ministral3": ("bfloat16", "ministral3", dict(head_dim=24, num_attention_heads=4, num_key_value_heads=2, rope_parameters=dict(
        type="yarn", rope_theta=1e6, factor=4.0, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=1.0, beta_fast=32.0,
        beta_slow=1.0, llama_4_scaling_beta=0.3))),
    # The text model of a model that sees images.
    "mistral_small": ("bfloat16", "mistral", dict(head_dim=16, sliding_window=None, rope_theta=1e9)),
    # 64 positions are the short divisors' last; a part of each head is turned; a window.
    "phi3": ("bfloat16", "phi3", dict(original_max_position_embeddings=64, partial_rotary_factor=0.75, sliding_window=20, rope_scaling=dict(
        type="longrope", short_factor=[1.0, 1.1, 1.3], long_factor=[1.0, 2.5, 6.0]))),
    # Beyond 16 positions the long ones hold.
    "phi4": ("float32", "phi3", dict(hidden_size=48, num_attention_heads=3, num_key_value_heads=3, tie_word_embeddings=True,
                                     original_max_position_embeddings=16, partial_rotary_factor=0.5, rope_scaling=dict(
                                         type="longrope", short_factor=[1.0, 1.02, 1.1, 1.2], long_factor=[1.05, 1.5, 3.0, 9.0]))),
    "granite": ("bfloat16", "granite", dict(embedding_multiplier=12.0, attention_multiplier=0.125, residual_multiplier=0.22, logits_scaling=8.0)),
    "granite_bias": ("float16", "granite", dict(embedding_multiplier=0.7, attention_multiplier=0.3, residual_multiplier=1.7, logits_scaling=0.6,
                                                tie_word_embeddings=True, attention_bias=True, mlp_bias=True, num_attention_heads=6,
                                                num_key_value_heads=2, hidden_size=48)),
    "olmo2": ("bfloat16", "olmo2", dict()),
    "olmo2_bias": ("float32", "olmo2", dict(attention_bias=True, hidden_size=48, num_attention_heads=6, num_key_value_heads=2, rope_theta=5e5)),
    # Every fourth layer sees everything, by a stretched rope that the others do not have.
    "olmo3": ("bfloat16", "olmo3", dict(num_hidden_layers=5, sliding_window=20, rope_theta=5e5, rope_scaling=dict(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=24))),
    "olmo3_keys5": ("float32", "olmo3", dict(num_hidden_layers=2, sliding_window=9, num_key_value_heads=5, layer_types=[
        "full_attention", "sliding_attention"], rope_parameters=dict(full_attention=dict(rope_type="linear", factor=2.0, rope_theta=3e5),
                                                                      sliding_attention=dict(rope_type="default", rope_theta=2e4)))),
    # sqrt(40) is 6.3125 in BF16.
    "gemma3": ("bfloat16", "gemma3_text", dict(num_hidden_layers=3, head_dim=16, sliding_window=20, sliding_window_pattern=2, rope_theta=1e6,
                                              query_pre_attn_scalar=24, tie_word_embeddings=True, rope_scaling=dict(rope_type="linear", factor=8.0))),
    "gemma3_image": ("float32", "gemma3_text", dict(head_dim=8, sliding_window=11, num_hidden_layers=2, tie_word_embeddings=True, layer_types=[
        "full_attention", "sliding_attention"], rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=1e6),
                                                                      sliding_attention=dict(rope_type="default", rope_theta=1e4)))),
    "qwen3_vl": ("bfloat16", "qwen3", dict(head_dim=16, rope_theta=5e6, tie_word_embeddings=True)),
    # Mixtures of experts: of 4, 9, 7 and 5 each row passes 2, 3, 1 and 4.
    "mixtral": ("bfloat16", "mixtral", dict(num_local_experts=4, num_experts_per_tok=2, sliding_window=20)),
    "olmoe": ("float16", "olmoe", dict(num_experts=9, num_experts_per_tok=3, intermediate_size=24, norm_topk_prob=False)),
    "qwen3_moe": ("bfloat16", "qwen3_moe", dict(num_experts=7, num_experts_per_tok=1, moe_intermediate_size=40, head_dim=16, norm_topk_prob=True,
                                               tie_word_embeddings=True, attention_bias=True)),
    "granitemoe": ("float32", "granitemoe", dict(num_local_experts=5, num_experts_per_tok=4, intermediate_size=32, embedding_multiplier=12.0,
                                                 attention_multiplier=0.125, residual_multiplier=0.22, logits_scaling=8.0)),
}
# Models with delta nets are read over 150 tokens, two chunks of 64 and a part of one. transformers adds up what a chunk does
# in another order than row by row.
MIXED = dict(SMALL, vocab_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=24, max_position_embeddings=256, rms_norm_eps=1e-6,
             linear_conv_kernel_dim=4, linear_key_head_dim=8, linear_value_head_dim=12, linear_num_key_heads=2, linear_num_value_heads=6)
EXPERTS = dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=32)
ROPE = dict(rope_parameters=dict(rope_type="default", rope_theta=1e5, partial_rotary_factor=0.25, mrope_interleaved=True, mrope_section=[1, 1, 1]))
DELTA = {
    # Three layers of four have a delta net, as no list says otherwise; a quarter of each head is turned, as no key says otherwise.
    "qwen3_5": ("bfloat16", "qwen3_5_text", dict(num_hidden_layers=4, tie_word_embeddings=True)),
    # No layer has attention; keys are wider than values, and the gate is a sigmoid.
    "qwen3_5_linear": ("float32", "qwen3_5_text", dict(full_attention_interval=9, linear_conv_kernel_dim=3, linear_key_head_dim=20,
                                                      linear_num_key_heads=3, linear_num_value_heads=3, output_gate_type="sigmoid")),
    "qwen3_5_moe": ("bfloat16", "qwen3_5_moe_text", dict(full_attention_interval=3, num_hidden_layers=3, **EXPERTS, **ROPE)),
    # There is no shared expert, and every expert has tensors of its own.
    "qwen3_5_moe_plain": ("float16", "qwen3_5_moe_text", dict(EXPERTS, layer_types=["full_attention", "linear_attention"], linear_num_key_heads=1,
                                                             linear_num_value_heads=4, shared_expert_intermediate_size=0,
                                                             tie_word_embeddings=True, attention_bias=True)),
    "qwen3_next": ("bfloat16", "qwen3_next", dict(full_attention_interval=3, num_hidden_layers=3, **EXPERTS)),
    # Every layer has attention, and one of them experts, whose shares do not sum to 1.
    "qwen3_next_full": ("bfloat16", "qwen3_next", dict(EXPERTS, full_attention_interval=1, num_hidden_layers=4, decoder_sparse_step=2,
                                                      mlp_only_layers=[3], norm_topk_prob=False, attention_bias=True, partial_rotary_factor=0.5, num_key_value_heads=1)),
    "qwen3_5_image": ("bfloat16", "qwen3_5_text", dict(layer_types=["linear_attention", "full_attention"], linear_num_key_heads=1,
                                                      linear_num_value_heads=3, **ROPE)),
    "qwen3_5_image_tied": ("float32", "qwen3_5_text", dict(full_attention_interval=2, linear_num_key_heads=2, linear_num_value_heads=2,
                                                          tie_word_embeddings=True, linear_conv_kernel_dim=2, **ROPE)),
    "qwen3_5_moe_image": ("bfloat16", "qwen3_5_moe_text", dict(full_attention_interval=2, tie_word_embeddings=True, **EXPERTS, **ROPE)),
    "qwen3_5_moe_image_each": ("float16", "qwen3_5_moe_text", dict(EXPERTS, full_attention_interval=3, num_hidden_layers=3, num_experts=3,
                                                                  num_experts_per_tok=3, linear_value_head_dim=8, **ROPE)),
}
# Attention with sinks and experts with clamped gates. Windows of 20 are left behind early.
STRETCHED = dict(rope_type="yarn", factor=4.0, beta_fast=8.0, beta_slow=1.0, truncate=False, original_max_position_embeddings=128)
GPT_OSS = {
    # Every second layer has a window, from the first on, as no list says otherwise.
    "gpt_oss": ("bfloat16", "gpt_oss", dict(num_hidden_layers=3, num_local_experts=5, num_experts_per_tok=2, rope_scaling=STRETCHED)),
    # All keys as transformers 5 writes them; no bias in attention, another clamp, the head is the embedding.
    "gpt_oss_keys5": ("float32", "gpt_oss", dict(num_hidden_layers=2, num_local_experts=3, num_experts_per_tok=3, hidden_size=36, intermediate_size=20,
                                                num_attention_heads=6, num_key_value_heads=3, head_dim=10, attention_bias=False,
                                                tie_word_embeddings=True, swiglu_alpha=1.3, swiglu_limit=2.5, layer_types=[
                                                    "full_attention", "sliding_attention"], rope_parameters=dict(STRETCHED, rope_theta=1.5e5))),
    # The experts are in MXFP4.
    "gpt_oss_mxfp4": ("bfloat16", "gpt_oss", dict(num_hidden_layers=2, num_local_experts=5, num_experts_per_tok=4, hidden_size=96, intermediate_size=32,
                                                 quantization_config=dict(quant_method="mxfp4", modules_to_not_convert=[
                                                     "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]))),
}
WINDOWED = dict(SMALL, vocab_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=24, max_position_embeddings=256, sliding_window=20)
# Gemma 4 is read over 150 tokens too, with windows of 20. Its embeddings for each layer are left out unless a model says how wide
# they are.
GEMMA = dict(SMALL, vocab_size=48, num_attention_heads=6, num_key_value_heads=3, head_dim=8, max_position_embeddings=256, rms_norm_eps=1e-6,
             tie_word_embeddings=True, hidden_size_per_layer_input=0, sliding_window=20, final_logit_softcapping=4.0,
             pad_token_id=0)
E_KIND = dict(vocab_size_per_layer_input=48, hidden_activation="gelu_pytorch_tanh")
MOE = dict(enable_moe_block=True, num_experts=5, top_k_experts=2, moe_intermediate_size=24)
WINDOW, WHOLE = "sliding_attention", "full_attention"
GEMMA4 = {
    # Values are keys where attention is full, whose heads are wider and fewer; a quarter of their pairs is turned.
    "gemma4": ("bfloat16", "gemma4_text", dict(num_hidden_layers=4, layer_types=[WINDOW, WHOLE, WINDOW, WHOLE], global_head_dim=24,
                                              num_global_key_value_heads=2, attention_k_eq_v=True)),
    # Every sixth layer is full, as no list says otherwise; heads are given layer by layer; projections have biases.
    "gemma4_unified": ("float32", "gemma4_text", dict(num_hidden_layers=6, attention_bias=True, final_logit_softcapping=None, hidden_size=48,
                                                     per_layer_config={"5": dict(head_dim=12, num_key_value_heads=2)}, rope_parameters={
                                                         WINDOW: dict(rope_type="default", rope_theta=5e3),
                                                         WHOLE: dict(rope_type="proportional", rope_theta=2e5, partial_rotary_factor=0.5)})),
    # Three layers read the keys and values of two others, and have a wider MLP. sqrt(12) is 3.46875 in BF16.
    "gemma4_e": ("bfloat16", "gemma4_text", dict(E_KIND, num_hidden_layers=7, layer_types=[WINDOW, WHOLE, WINDOW, WHOLE, WINDOW, WINDOW, WHOLE],
                                                global_head_dim=16, num_kv_shared_layers=3, use_double_wide_mlp=True, hidden_size_per_layer_input=12)),
    # Heads are as wide everywhere. The file holds keys of layers that have none.
    "gemma4_e_image": ("float16", "gemma4_text", dict(E_KIND, num_hidden_layers=5, layer_types=[WHOLE, WINDOW, WINDOW, WINDOW, WHOLE],
                                                     global_head_dim=8, num_kv_shared_layers=2, hidden_size_per_layer_input=20)),
    "gemma4_moe": ("bfloat16", "gemma4_text", dict(MOE, num_hidden_layers=3, layer_types=[WINDOW, WINDOW, WHOLE], global_head_dim=16,
                                                  num_global_key_value_heads=1, attention_k_eq_v=True)),
    "gemma4_moe_image": ("float32", "gemma4_text", dict(MOE, num_experts=4, top_k_experts=3, layer_types=[WINDOW, WHOLE], global_head_dim=12)),
}
# The norm of a delta net's output divides by its size, which is near zero where q and k happen to be orthogonal: the first rows of
# such a model say little about anybody's arithmetic. These have other random numbers, in which no row is so. So has qwen2_moe_step,
# in one of whose rows transformers is off by 1.3e-5 of its own logits in FP64. (Scores of Gemma 4 are not
# divided by anything: of most random models some row's logits move by more than 1e-5 if transformers computes them in FP64.)
SEEDS = {"qwen3_next": 3, "qwen3_5_moe": 2, "qwen2_moe_step": 1, "gemma4_unified": 4}
# Mixtures whose experts are chosen by other laws than the largest of a softmax, read over 150 tokens too.
LONG = dict(SMALL, max_position_embeddings=256)
ROUTED = {
    # The shares of a row's experts do not sum to 1, as no key says otherwise, and q, k and v have biases.
    "qwen2_moe": ("bfloat16", "qwen2_moe", dict(num_experts=5, num_experts_per_tok=3, moe_intermediate_size=24, shared_expert_intermediate_size=32)),
    # Every second layer has experts, and not the last of these; the first and the third have a window.
    "qwen2_moe_step": ("float32", "qwen2_moe", dict(num_hidden_layers=4, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=40,
                                                    shared_expert_intermediate_size=24, decoder_sparse_step=2, mlp_only_layers=[3], norm_topk_prob=True,
                                                    qkv_bias=False, use_sliding_window=True, sliding_window=20, max_window_layers=3,
                                                    tie_word_embeddings=True, num_key_value_heads=5)),
    # Half of each head is turned, as no key says otherwise. A block that predicts a token more is behind the last layer.
    "glm4_moe": ("bfloat16", "glm4_moe", dict(num_hidden_layers=3, head_dim=16, n_routed_experts=6, num_experts_per_tok=3, moe_intermediate_size=24,
                                              n_shared_experts=1, routed_scaling_factor=2.5, use_qk_norm=True, attention_bias=True)),
    "glm4_moe_groups": ("float32", "glm4_moe", dict(num_hidden_layers=4, head_dim=16, n_routed_experts=9, num_experts_per_tok=4, n_group=3, topk_group=2,
                                                    moe_intermediate_size=12, n_shared_experts=2, norm_topk_prob=False, first_k_dense_replace=2,
                                                    tie_word_embeddings=True, partial_rotary_factor=0.25, num_key_value_heads=5)),
    # Half of each head is turned, which a key of the family's own says.
    "minimax_m2": ("bfloat16", "minimax_m2", dict(num_local_experts=7, num_experts_per_tok=2, intermediate_size=24, head_dim=16, rotary_dim=8)),
    "minimax_m2_whole": ("float16", "minimax_m2", dict(num_hidden_layers=3, num_local_experts=4, num_experts_per_tok=4, intermediate_size=40, head_dim=8,
                                                       num_attention_heads=6, num_key_value_heads=3, tie_word_embeddings=True)),
}
MODELS.update(FAMILIES)
MODELS.update(DELTA)
MODELS.update(ROUTED)
MODELS.update(GPT_OSS)
MODELS.update(GEMMA4)
# These files hold a tensor for each matrix of each expert; the others hold those of a layer together.
EACH_EXPERT = ("qwen3_next", "qwen3_next_full", "qwen3_5_moe_plain", "qwen3_5_moe_image_each")
# Text models within models that see images: how their config and their tensors are called there.
WITHIN = {"mistral_small": ("mistral3", "Mistral3ForConditionalGeneration", lambda key: "language_model." + key),
          "gemma3_image": ("gemma3", "Gemma3ForConditionalGeneration", lambda key: key.replace("model.", "model.language_model.", 1)),
          "qwen3_vl": ("qwen3_vl", "Qwen3VLForConditionalGeneration", lambda key: key.replace("model.", "model.language_model.", 1))}
for NAME in DELTA:
    if "image" in NAME:
        kind, class_name = ("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration") if "moe" in NAME else ("qwen3_5", "Qwen3_5ForConditionalGeneration")
        WITHIN[NAME] = (kind, class_name, WITHIN["qwen3_vl"][2])
WITHIN.update({"gemma4_unified": ("gemma4_unified", "Gemma4UnifiedForConditionalGeneration", WITHIN["qwen3_vl"][2]),
               "gemma4_e_image": ("gemma4", "Gemma4ForConditionalGeneration", WITHIN["qwen3_vl"][2]),
               "gemma4_moe_image": ("gemma4", "Gemma4ForConditionalGeneration", WITHIN["qwen3_vl"][2])})
# What the text model is called there, and its rope, which has rows and columns of pictures too.
PICTURES = {"gemma4_unified": dict(model_type="gemma4_unified_text"), "qwen3_vl": dict(model_type="qwen3_vl_text", rope_scaling=dict(mrope_interleaved=True, mrope_section=[4, 2, 2], rope_type="default"))}
ZERO_CENTRED = ("gemma3_text", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")  # their files hold w - 1 for a norm's w
WITH_EXPERTS = ("mixtral", "olmoe", "qwen3_moe", "granitemoe", "qwen2_moe", "glm4_moe", "minimax_m2")
PROMPTS = {
    "quill-26m": ["The quick brown fox", "In 1998, the city of", "#include <stdio.h>\n", "A list of the rivers of", "12 + 30 =", "The", None,
                  "To install the package, run", "Für Élise — naïve café", "She said: \""],
    "quill-1m": ["The quick brown fox", "In 1998, the city of", "The river is", "def main():", "The name of the file", "When the option is",
                 "It is", "To install the package", "one two three", "naïve café"],
}
QUESTION = "What is 348 + 5127?"  # in place of None: through the chat template


def base_of(name):
    return (GEMMA if name in GEMMA4 else SMALL if name in FAMILIES else MIXED if name in DELTA else LONG if name in ROUTED else WINDOWED if name in GPT_OSS else BASE)


def value_of(key, shape, family):
    """A random value for a tensor. Linears keep their input's size; norms and biases are away from 1 and 0, so that leaving one out shows."""
    # Rates of decay are such that some heads remember hundreds of positions and some a few. With larger ones transformers' own
    # rounding shows: over a chunk of 64 rows it sums the logarithms of decays, whose differences it needs.
    if key.endswith("A_log"):
        return torch.empty(shape).uniform_(math.log(0.01), math.log(0.5))
    if key.endswith("linear_attn.norm.weight"):
        return 1 + 0.3 * torch.randn(shape)
    if key.endswith("layer_scalar"):
        return torch.empty(shape).uniform_(0.5, 1.3)
    if key.endswith("per_expert_scale"):
        return torch.empty(shape).uniform_(0.5, 1.5)
    if key.endswith("norm.weight") or "layernorm_" in key or key.endswith("router.scale"):
        return (family not in ZERO_CENTRED) + 0.3 * torch.randn(shape)
    if key.endswith("bias"):
        return 0.3 * torch.randn(shape)
    if key.endswith("sinks"):
        return 1.5 * torch.randn(shape)
    if family == "gpt_oss" and key.endswith(("q_proj.weight", "k_proj.weight")):  # yarn multiplies scores by the square of its factor
        return torch.randn(shape) * 0.8 / shape[-1] ** 0.5
    if family == "gpt_oss" and ".experts." in key:  # these matrices lie by columns, and some gates and ups reach the clamp
        return torch.randn(shape) * (2.5 if "gate_up" in key else 1.5) / shape[-2] ** 0.5
    return torch.randn(shape) * 1.5 / shape[-1] ** 0.5


def expert_by_expert(tensors):
    files = {}
    for key, value in tensors.items():
        if ".mlp.experts." not in key:
            files[key] = value
            continue
        module, name = key.rsplit(".", 1)
        for expert, rows in enumerate(value):
            parts = zip(("gate_proj", "up_proj"), rows.chunk(2)) if name == "gate_up_proj" else [(name, rows)]
            files.update({f"{module}.{expert}.{part}.weight": matrix.clone() for part, matrix in parts})
    return files


def in_mxfp4(tensors):
    """Experts of random codes and scales in place of the values, as the release has them: rows, blocks of 32, 16 bytes of two codes."""
    files = {}
    for key, value in tensors.items():
        if not key.endswith(("experts.gate_up_proj", "experts.down_proj")):
            files[key] = value
            continue
        experts, columns, rows = value.shape
        files[key + "_blocks"] = torch.randint(0, 256, (experts, rows, columns // 32, 16), dtype=torch.uint8)
        scale = 127 + round(math.log2(value.float().std() / 2.93))  # 2.93 is the root of the mean square of all codes' values
        scales = torch.randint(scale - 1, scale + 2, (experts, rows, columns // 32), dtype=torch.uint8)
        scales[torch.rand(scales.shape) < 0.02] = 0
        files[key + "_scales"] = scales
    return files


def write_tiny(folder, name, dtype, family, keys):
    torch.manual_seed(sum(map(ord, name)) + SEEDS.get(name, 0))
    text = dict(architectures=[CLASSES[family]], model_type=family, torch_dtype=dtype, **base_of(name))
    text.update(keys)
    if "rope_parameters" in text or name in GEMMA4:
        text.pop("rope_theta")
    if family in ("gemma3_text", "gemma4_text"):
        text["hidden_activation"] = "gelu_pytorch_tanh"
        text.pop("hidden_act")
    config = AutoConfig.for_model(**json.loads(json.dumps(text)))
    model = AutoModelForCausalLM.from_config(config).float()
    tensors = {}
    for key, value in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        without = text.get("shared_expert_intermediate_size") == 0 and "shared_expert" in key  # transformers has empty matrices
        if not without:
            tensors[key] = value_of(key, value.shape, family).to(getattr(torch, dtype)).contiguous()
    if "quantization_config" in text:
        tensors = in_mxfp4(tensors)
    if name in EACH_EXPERT:
        tensors = expert_by_expert(tensors)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    if family in WITH_EXPERTS:  # transformers keeps them otherwise than files do
        model.load_state_dict(tensors, strict=False)
        model.to(getattr(torch, dtype)).save_pretrained(folder)
        for other in os.listdir(folder):
            if other != "model.safetensors":
                os.remove(os.path.join(folder, other))
    else:
        save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    if name == "keys5":
        config.architectures, config.dtype = [CLASSES[family]], getattr(torch, dtype)
        config.save_pretrained(folder)
    else:
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(text, file, indent=1)
            file.write("\n")


def load(folder):
    more = {}
    if json.load(open(os.path.join(folder, "config.json"), encoding="utf-8")).get("quantization_config"):
        more["quantization_config"] = transformers.Mxfp4Config(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **more).eval().float()
    for table in model.modules():
        if hasattr(table, "embed_scale"):  # of the dtype that the model is served in, also where all else is FP32
            dtype = json.load(open(os.path.join(folder, "config.json"), encoding="utf-8"))["torch_dtype"]
            table.embed_scale = table.embed_scale.to(getattr(torch, dtype)).float()
    if getattr(model.config, "output_gate_type", None) == "sigmoid":  # transformers reads this key in later families alone
        for layer in model.model.layers:
            layer.linear_attn.norm.activation = "sigmoid"
    return model


def put_within(folder, name):
    """The same text model as a part of a model that sees images, whose other parts are left out."""
    model_type, class_name, rename = WITHIN[name]
    path = os.path.join(folder, "model.safetensors")
    tensors = {rename(key): value.clone() for key, value in load_file(path).items()}
    if name == "gemma4_e_image":  # transformers and fidelio leave these out
        for layer in (3, 4):
            tensors[f"model.language_model.layers.{layer}.self_attn.k_proj.weight"] = torch.ones(24, 40)
    if name in DELTA:  # a part of what such files hold besides
        tensors.update({"model.visual.patch_embed.proj.weight": torch.ones(4, 3), "mtp.norm.weight": torch.ones(8)})
    save_file(tensors, path, metadata={"format": "pt"})
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        text = json.load(file)
    outer = dict(architectures=[class_name], model_type=model_type, torch_dtype=text.pop("torch_dtype"), eos_token_id=text.pop("eos_token_id"),
                 text_config={key: value for key, value in text.items() if key != "architectures" and not (
                     name == "gemma4_unified" and "per_layer_input" in key)} | PICTURES.get(name, {}),
                 vision_config={})
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(outer, file, indent=1)
        file.write("\n")


def put_predictor(folder, layer):
    """A part of what files of GLM-4.5 hold of a block that predicts a token more, and which transformers does not read."""
    path = os.path.join(folder, "model.safetensors")
    parts = {f"model.layers.{layer}.{key}": torch.ones(8) for key in ("enorm.weight", "mlp.gate.e_score_correction_bias")}
    save_file(dict(load_file(path), **parts), path, metadata={"format": "pt"})


@torch.no_grad()
def continuation(model, ids, tokens, stop):
    options = dict(eos_token_id=stop) if stop else dict(eos_token_id=None)
    if set(getattr(model.config, "layer_types", None) or []) == {"linear_attention"}:
        options["use_cache"] = False  # transformers' cache has no length where no layer has attention
    prompt = torch.tensor([ids])
    out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, do_sample=False, temperature=None, top_p=None,
                         top_k=None, pad_token_id=0, output_logits=True, return_dict_in_generate=True, **options)
    gaps = []
    for logits in out.logits:
        best = logits[0].topk(2).values
        gaps.append(round(float(best[0] - best[1]), 6))
    return out.sequences[0, len(ids):].tolist(), gaps


@torch.no_grad()
def logits_of(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0].float()


@torch.no_grad()
def losses_of(model, ids, context):
    """Summed negative log-likelihood of windows of `context` tokens side by side, the first token of each not scored."""
    sums = []
    for begin in range(0, len(ids), context):
        window = torch.tensor(ids[begin:begin + context])
        log_p = model(window[None], use_cache=False).logits[0, :-1].double().log_softmax(-1)
        sums.append(-float(log_p.gather(1, window[1:, None]).sum()))
    return sums


def write_golden(name, golden, logits):
    golden = dict(golden, norm=float(logits.double().norm()))
    columns = golden.get("columns")
    kept = logits if columns is None else logits[:, columns]
    kept.contiguous().numpy().astype("<f4").tofile(f"tests/golden/{name}.logits")
    with open(f"tests/golden/{name}.json", "w", encoding="utf-8") as file:
        json.dump(golden, file, separators=(",", ":"))
        file.write("\n")


def tiny(name):
    folder = f"tests/models/{name}"
    write_tiny(folder, name, *MODELS[name])
    model = load(folder)
    tokens, continued = (150, 40) if name in DELTA or name in ROUTED or name in GPT_OSS or name in GEMMA4 else (TOKENS, GREEDY)
    ids = torch.randint(3, base_of(name)["vocab_size"], (tokens,), generator=torch.Generator().manual_seed(1)).tolist()
    logits = logits_of(model, ids)
    greedy, gaps = continuation(model, ids, continued, None)
    write_golden(name, dict(ids=ids, greedy=greedy, gap=gaps), logits)
    if name == "glm4_moe":
        put_predictor(folder, model.config.num_hidden_layers)
    if name in WITHIN:
        put_within(folder, name)
        if name in DELTA or name in GEMMA4:  # transformers reads the text model from within
            assert torch.equal(logits_of(load(folder), ids), logits), name
    print(f"{name}: {os.path.getsize(folder + '/model.safetensors')} bytes, logits sd {logits.std():.2f}, smallest gap {min(gaps)}")


def bundled(name):
    folder = f"models/{name}"
    model, tokenizer = load(folder), AutoTokenizer.from_pretrained(folder)
    stop = model.generation_config.eos_token_id
    stop = stop if isinstance(stop, list) else [stop]
    runs = []
    for prompt in PROMPTS[name]:
        if prompt is None:
            text = tokenizer.apply_chat_template([dict(role="user", content=QUESTION)], tokenize=False, add_generation_prompt=True)
            run = dict(chat=QUESTION, ids=tokenizer.encode(text, add_special_tokens=False))
        else:
            run = dict(prompt=prompt, ids=tokenizer.encode(prompt))
        run["greedy"], run["gap"] = continuation(model, run["ids"], 32, stop)
        runs.append(run)
    with open("models/data/docs-heldout.txt", encoding="utf-8") as file:
        text = tokenizer.encode(file.read(), add_special_tokens=False)
    ids, context = text[1000:1024], model.config.max_position_embeddings
    losses = losses_of(model, text[:3 * context], context)
    columns = sorted(torch.randperm(model.config.vocab_size, generator=torch.Generator().manual_seed(2))[:COLUMNS].tolist())
    write_golden(name, dict(ids=ids, columns=columns, runs=runs, losses=losses), logits_of(model, ids))
    print(f"{name}: smallest gap {min(min(r['gap']) for r in runs)}")


if __name__ == "__main__":
    names = sys.argv[1:]
    os.makedirs("tests/golden", exist_ok=True)
    for name in names or [*MODELS, *PROMPTS]:
        tiny(name) if name in MODELS else bundled(name)
