#!/usr/bin/env python3
"""Writes tests/golden/configs.json: config.json texts with what transformers makes of them.

Needs torch and transformers (made with transformers 5.23.0, torch on CPU). Run from the repository root:
    python tools/make_config_golden.py
Each case holds the config, the resolved values (read from the config object, biases from the modules of a one-layer
model built from it on the meta device) and the rotary embedding's inverse frequencies as FP32 bit patterns.
"""
import json
import warnings

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

transformers.logging.set_verbosity_error()
warnings.filterwarnings("ignore")

CLASSES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
SMALL = dict(hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=32, vocab_size=512)
LLAMA3 = dict(rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)


def cases():
    for family in CLASSES:
        yield family, {}
        kv = {} if family == "mistral" else dict(num_key_value_heads=None)  # transformers' Mistral refuses null
        yield family, dict(bos_token_id=None, eos_token_id=None, **kv)
        yield family, dict(num_key_value_heads=4, head_dim=64, tie_word_embeddings=True, attention_bias=True, mlp_bias=True,
                           rms_norm_eps=1e-5, eos_token_id=[7, 9], bos_token_id=3, max_position_embeddings=4096,
                           torch_dtype="bfloat16")
        for scaling in (dict(type="linear", factor=4.0), LLAMA3, dict(type="yarn", factor=4.0, original_max_position_embeddings=32768)):
            yield family, dict(head_dim=128, rope_theta=1000000.0, max_position_embeddings=131072, rope_scaling=scaling)
    llama = lambda **kw: ("llama", kw)
    yield llama(rope_parameters=dict(rope_theta=500000.0, **LLAMA3), head_dim=64, dtype="float16", max_position_embeddings=131072)
    yield llama(rope_parameters=dict(rope_theta=500000.0, rope_type="default"), rope_theta=1e4)
    yield llama(rope_parameters=dict(rope_theta=25000.0), rope_scaling=dict(type="linear", factor=2), rope_theta=77.0)
    yield llama(rope_scaling=dict(rope_type="llama3", factor=8, low_freq_factor=1, high_freq_factor=4), head_dim=96, rope_theta=5e5)
    yield llama(rope_scaling={}, rope_theta=100000, head_dim=80)
    for theta in (10000.0, 500000.0, 1e7):
        for e in (16, 64, 80, 96, 112, 256):
            yield llama(rope_theta=theta, head_dim=e)
    for extra in (dict(attention_factor=0.75), dict(mscale=1.0, mscale_all_dim=0.7), dict(mscale=0.7), dict(truncate=False),
                  dict(beta_fast=16, beta_slow=2), dict(factor=None), dict(factor=1.0), dict(beta_fast=0)):
        scaling = dict(dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=4096), **extra)
        yield llama(rope_parameters=dict(rope_theta=150000.0, **scaling), head_dim=64, max_position_embeddings=40960)
    yield llama(rope_scaling=dict(rope_type="yarn", factor=2.0), original_max_position_embeddings=1024, max_position_embeddings=2048)
    yield "mistral", dict(sliding_window=None)
    yield "mistral", dict(sliding_window=1024)
    yield "qwen2", dict(use_sliding_window=False, sliding_window=100, max_window_layers=0)
    yield "qwen2", dict(use_sliding_window=True, sliding_window=100, max_window_layers=0)
    yield "qwen3", dict(use_sliding_window=True, max_window_layers=2)
    yield "qwen3", dict(use_sliding_window=True, layer_types=["sliding_attention"] * 2)
    yield "qwen3", dict(use_sliding_window=False, layer_types=["full_attention"] * 2)


def resolve(family, keys):
    text = dict(architectures=[CLASSES[family]], model_type=family, **SMALL)
    text.update(keys)
    config = AutoConfig.for_model(**json.loads(json.dumps(text)))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    attention, mlp = model.model.layers[-1].self_attn, model.model.layers[-1].mlp
    rotary = type(model.model.rotary_emb)(config)  # again, with values
    window = getattr(attention, "sliding_window", None) or getattr(config, "sliding_window", None) if family == "mistral" else getattr(
        attention, "sliding_window", None)
    eos = config.eos_token_id
    return dict(
        config=text, hk=config.num_key_value_heads, e=attention.head_dim, rms_eps=config.rms_norm_eps,
        max_positions=config.max_position_embeddings, tie=config.tie_word_embeddings,
        qkv_bias=attention.q_proj.bias is not None, o_bias=attention.o_proj.bias is not None,
        mlp_bias=mlp.up_proj.bias is not None, qk_norm=hasattr(attention, "q_norm"), window=window or 0,
        bos=config.bos_token_id, eos=[] if eos is None else eos if isinstance(eos, list) else [eos],
        dtype=str(config.dtype).split(".")[-1] if config.dtype else None, theta=config.rope_parameters["rope_theta"],
        attention_factor=float(rotary.attention_scaling), bits=rotary.inv_freq.float().view(torch.int32).tolist(),
        tensors={n: list(p.shape) for n, p in model.named_parameters()})


rows = []
for case in cases():
    try:
        rows.append(resolve(*case))
    except Exception as error:
        raise SystemExit(f"{case}: {error}") from error
for row in rows[1:]:
    if row["config"].get("head_dim") or row["config"]["model_type"] == "llama":
        del row["tensors"]  # the first of each family is enough
with open("tests/golden/configs.json", "w") as out:
    out.write("[\n" + ",\n".join(json.dumps(r, separators=(",", ":")) for r in rows) + "\n]\n")
print(len(rows), "cases")
