#!/usr/bin/env python3
"""Writes tests/models/NAME_mtp and tests/golden/NAME_mtp.{json,logits}: models with a block that predicts a token more.

Usage: make_predictor_goldens.py   (from the project's root, with torch, transformers and safetensors)

Transformers leaves such blocks (mtp.*) out, so the block is put together here from its own classes. With h(t) what the model's final norm gives at
position t, and the token x(t): its input at position t is mtp.fc of the normed embedding of x(t) beside the normed h(t - 1) (zeros where t is 0), one
layer of full attention follows, mtp.norm, and the model's head. The golden holds its logits at every position, which guess at token t + 1.
"""
import json
import os
import shutil

import torch
from safetensors.torch import load_file, save_file

from make_model_goldens import load, value_of

BASES = ("qwen3_5", "qwen3_5_moe")


def norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (1 + weight)


def made(base):
    """Copies a tiny model and gives it a predictor of random values."""
    folder = f"tests/models/{base}_mtp"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(f"tests/models/{base}", folder)
    torch.manual_seed(7)
    path = os.path.join(folder, "model.safetensors")
    tensors = load_file(path)
    model = load(f"tests/models/{base}")
    config, d = model.config, model.config.hidden_size
    full = config.layer_types.index("full_attention")
    of_layer = f"model.layers.{full}."
    dtype = tensors["model.embed_tokens.weight"].dtype
    more = {"mtp.layers.0." + key[len(of_layer):]: value for key, value in tensors.items() if key.startswith(of_layer)}
    more = {key: value_of(key, value.shape, config.model_type) for key, value in more.items()}
    more["mtp.fc.weight"] = torch.randn(d, 2 * d) / (2 * d) ** 0.5
    for key in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        more[f"mtp.{key}.weight"] = value_of("norm.weight", (d,), config.model_type)
    tensors.update({key: value.to(dtype) for key, value in more.items()})
    save_file(tensors, path, metadata={"format": "pt"})
    return folder, model, full, {key: value.to(dtype).float() for key, value in more.items()}


@torch.no_grad()
def golden(base):
    folder, model, full, mtp = made(base)
    config = model.config
    ids = json.load(open(f"tests/golden/{base}.json", encoding="utf-8"))["ids"][:100]
    tokens = torch.tensor([ids])
    h = model.model(tokens, use_cache=False).last_hidden_state
    before = torch.cat([torch.zeros_like(h[:, :1]), h[:, :-1]], 1)
    embedded = model.get_input_embeddings()(tokens)
    eps = config.rms_norm_eps
    x = torch.cat([norm(embedded, mtp["mtp.pre_fc_norm_embedding.weight"], eps), norm(before, mtp["mtp.pre_fc_norm_hidden.weight"], eps)], -1)
    x = x @ mtp["mtp.fc.weight"].T
    layer_class = type(model.model.layers[full])
    layer = layer_class(config, full).eval()
    state = {key[len("mtp.layers.0."):]: value for key, value in mtp.items() if key.startswith("mtp.layers.0.")}
    missing, unexpected = layer.load_state_dict(state, strict=False)
    assert not missing and not unexpected, (missing, unexpected)
    positions = torch.arange(len(ids))[None]
    mask = torch.full((len(ids), len(ids)), torch.finfo(torch.float32).min).triu(1)[None, None]
    out = layer(x, position_embeddings=model.model.rotary_emb(x, positions), attention_mask=mask, position_ids=positions)
    x = out[0] if isinstance(out, tuple) else out
    logits = model.lm_head(norm(x, mtp["mtp.norm.weight"], eps))[0].float()
    logits.contiguous().numpy().astype("<f4").tofile(f"tests/golden/{base}_mtp.logits")
    with open(f"tests/golden/{base}_mtp.json", "w", encoding="utf-8") as file:
        json.dump(dict(ids=ids), file, separators=(",", ":"))
        file.write("\n")
    print(f"{base}_mtp: logits sd {logits.std():.2f}")


for base in BASES:
    golden(base)
