#!/usr/bin/env python3
"""Blocks of every GGUF type that is read, with the FP32 values that the gguf package decodes them to:
src/io/testdata/gguf_blocks.json. Needs gguf and numpy.
  python tools/make_gguf_goldens.py > src/io/testdata/gguf_blocks.json"""
import json

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
