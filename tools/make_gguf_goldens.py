#!/usr/bin/env python3
"""What other programs make of and in GGUF files.

Blocks of every type that is read, with the FP32 values that the gguf package decodes them to. Needs gguf and numpy.
  python tools/make_gguf_goldens.py > src/io/testdata/gguf_blocks.json

Mixtures of experts: what llama.cpp's own convert_hf_to_gguf.py makes of tests/models/. The data are the models' own in another
order, so what is kept of a file is its header and its SHA-256, from which tests make it again. Needs torch too, and a copy of
llama.cpp (made with that of llama-cpp-python 0.3.36).
  python tools/make_gguf_goldens.py LLAMA_CPP > src/io/testdata/gguf_experts.json

Models with delta nets, those of Gemma 4, and mixtures with other routers: the files that the same converter makes. Data of some are computed, so the
files are kept as they are.
  python tools/make_gguf_goldens.py LLAMA_CPP tests/golden/gguf"""
import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path

if len(sys.argv) > 1:  # its own gguf package, which knows what its converter does
    sys.path[:0] = [os.path.join(sys.argv[1], "gguf-py"), sys.argv[1]]

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as Type
from gguf.quants import dequantize

# Where FP16 numbers stand in a block: random bits there would be infinities now and then.
HALVES = {Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0], Type.Q2_K: [80, 82],
          Type.Q3_K: [108], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208], Type.MXFP4: [], Type.IQ4_NL: [0], Type.IQ4_XS: [0], Type.IQ2_XXS: [0],
          Type.IQ2_XS: [0], Type.IQ2_S: [0], Type.IQ3_XXS: [0], Type.IQ3_S: [0], Type.IQ1_S: [0], Type.IQ1_M: [],
          Type.TQ1_0: [52], Type.TQ2_0: [64], Type.NVFP4: []}
rng = np.random.default_rng(20)


def block_of(kind):
    _, size = GGML_QUANT_SIZES[kind]
    block = rng.integers(0, 256, size, dtype=np.uint8)
    for at in HALVES[kind]:
        block[at:at + 2] = np.float16(rng.normal() / 100).reshape(1).view(np.uint8)
    if kind == Type.MXFP4:
        block[0] = rng.integers(110, 130)
    if kind == Type.IQ1_M:  # a nibble of its FP16 number at the top of each word
        scale = np.float16(rng.normal() / 100).view(np.uint16)
        for i in range(4):
            block[49 + 2 * i] = block[49 + 2 * i] & 15 | (scale >> 4 * i & 15) << 4
    return block


def golden(kind, blocks, values):
    return {"type": int(kind), "name": kind.name, "blocks": blocks.tobytes().hex(),
            "values": np.ascontiguousarray(values, dtype=np.float32).tobytes().hex()}


KEPT_MODELS = ("qwen3_5", "qwen3_5_moe_image", "qwen3_next", "qwen2_moe", "glm4_moe", "minimax_m2", "gemma4", "gemma4_e", "gemma4_moe")
EXPERT_MODELS = ("mixtral", "olmoe", "qwen3_moe", "granitemoe")


def put_vocabulary(self):
    """The tiny models have no tokenizer: any that fits."""
    tokens = ["a", "b", "ab"] + [f"<{i}>" for i in range(3, self.hparams["vocab_size"])]
    self.gguf_writer.add_tokenizer_model("gpt2")
    self.gguf_writer.add_tokenizer_pre("gpt-2")
    self.gguf_writer.add_token_list(tokens)
    self.gguf_writer.add_token_types([1] * len(tokens))
    self.gguf_writer.add_token_merges(["a b"])
    self.gguf_writer.add_eos_token_id(2)


def add_further_layer(folder, config):
    """A layer that predicts further tokens: the model's last one once more."""
    from safetensors.torch import load_file, save_file

    config["mtp_num_hidden_layers"] = 1
    path = os.path.join(folder, "model.safetensors")
    tensors, last = load_file(path), f"model.layers.{config['num_hidden_layers'] - 1}."
    further = {key.replace(last, "mtp.layers.0."): value.clone() for key, value in tensors.items() if key.startswith(last)}
    final = tensors["model.norm.weight"]
    further["mtp.fc.weight"] = final.repeat(config["hidden_size"], 2)
    further.update({f"mtp.{norm}.weight": final.clone() for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")})
    save_file(tensors | further, path, metadata={"format": "pt"})


def fill_in_gemma4(folder, config):
    """What the converter expects in all of these folders: keys that have defaults, and a tokenizer, whose words it only counts."""
    config.setdefault("num_kv_shared_layers", 0)
    config.setdefault("rope_parameters", {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                                          "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}})
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump({"model": {"vocab": {f"<{i}>": i for i in range(config["vocab_size"])}}, "added_tokens": []}, file)


def convert(name, work):
    import torch
    from conversion import get_model_class

    folder, path = os.path.join(work, name), os.path.join(work, name + ".gguf")
    shutil.copytree(os.path.join("tests/models", name), folder)
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    if name not in GEMMA4_MODELS:
        config.pop("sliding_window", None)  # which llama.cpp would leave out without a word
    if name in GEMMA4_MODELS:
        fill_in_gemma4(folder, config)
    if name == "qwen3_5":
        add_further_layer(folder, config)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    config = config | config.get("text_config", {}) | {"architectures": config["architectures"]}
    made = get_model_class(config["architectures"][0])
    made.set_vocab = put_vocabulary
    made.no_mtp = "mtp_num_hidden_layers" not in config
    kinds = {"float32": gguf.LlamaFileType.ALL_F32, "float16": gguf.LlamaFileType.MOSTLY_F16, "bfloat16": gguf.LlamaFileType.MOSTLY_BF16}
    with torch.inference_mode():
        made(Path(folder), kinds[config["torch_dtype"]], Path(path)).write()
    return path


def header_of(path):
    with open(path, "rb") as file:
        data = file.read()
    begin = gguf.GGUFReader(path).data_offset
    return {"header": data[:begin].hex(), "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


if len(sys.argv) > 1:
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory() as work:
        if len(sys.argv) > 2:
            os.makedirs(sys.argv[2], exist_ok=True)
            for name in KEPT_MODELS:
                shutil.copy(convert(name, work), sys.argv[2])
        else:
            print(json.dumps({name: header_of(convert(name, work)) for name in EXPERT_MODELS}, indent=0))
    sys.exit(0)

goldens = []
some = rng.normal(size=8).astype(np.float32)
goldens.append(golden(Type.F32, some, some))
goldens.append(golden(Type.F16, some.astype(np.float16), some.astype(np.float16)))
bf16 = (some.view(np.uint32) >> 16).astype(np.uint16)
goldens.append(golden(Type.BF16, bf16, (bf16.astype(np.uint32) << 16).view(np.float32)))
for kind in HALVES:
    count = 1 if GGML_QUANT_SIZES[kind][0] == 256 else 2
    blocks = np.concatenate([block_of(kind) for _ in range(count)])
    goldens.append(golden(kind, blocks, dequantize(blocks, kind)))
print(json.dumps(goldens, indent=0))
