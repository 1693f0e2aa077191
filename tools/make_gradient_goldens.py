#!/usr/bin/env python3
"""Writes tests/golden/NAME.gradients.json: the gradients that torch computes for tiny models of tests/models.

Needs torch, transformers and safetensors (made with transformers 5.24, torch on CPU). Run from the repository root:
    python tools/make_gradient_goldens.py
The loss is the mean of -ln p of the next token over the ids of tests/golden/NAME.json. The model runs in FP64: what
transformers rounds to FP32 on its way is left in FP64, except for the frequencies of rotary embeddings. Of every gradient
the file keeps the Frobenius norm and 24 values, value i being that at index i * size // 24:
    gradients  of the loss, for every tensor of the model by its name in the file
    inputs     of the loss, for the input of every layer (ids, d)
"""
import json

import torch
import transformers
from make_model_goldens import load

NAMES = ("qwen3_5", "qwen3_5_linear")
VALUES = 24


def kept(gradient):
    values = gradient.flatten()
    return dict(norm=float(values.norm()), values=[float(values[i * values.numel() // VALUES]) for i in range(VALUES)])


def stay_in_fp64():
    """Makes the casts to FP32 in transformers' forward passes do nothing."""
    torch.Tensor.float = lambda self: self
    torch.float32 = torch.float64


def write(name, models):
    model = models[name]
    with open(f"tests/golden/{name}.json", encoding="utf-8") as file:
        ids = torch.tensor(json.load(file)["ids"])
    inputs = []

    def keep_input(_, arguments, options):
        inputs.append(arguments[0] if arguments else options["hidden_states"])
        inputs[-1].retain_grad()

    for layer in model.model.layers:
        layer.register_forward_pre_hook(keep_input, with_kwargs=True)
    logits = model(ids[None], use_cache=False).logits[0, :-1]
    loss = torch.nn.functional.cross_entropy(logits, ids[1:])
    assert loss.dtype == torch.double
    loss.backward()
    golden = dict(loss=float(loss), gradients={key: kept(value.grad) for key, value in model.named_parameters()},
                  inputs=[kept(value.grad) for value in inputs])
    with open(f"tests/golden/{name}.gradients.json", "w", encoding="utf-8") as file:
        json.dump(golden, file, separators=(",", ":"))
        file.write("\n")
    print(f"{name}: loss {float(loss):.6f}, {len(golden['gradients'])} tensors, transformers {transformers.__version__}")


if __name__ == "__main__":
    MODELS = {name: load(f"tests/models/{name}").double() for name in NAMES}
    stay_in_fp64()
    for NAME in NAMES:
        write(NAME, MODELS)
