#!/usr/bin/env python3
"""Makes src/io/testdata/float_weights.json: linears in FP8, NVFP4, MXFP4 and NF4 as their writers store and decode them.

FP8 by blocks and ModelOpt's NVFP4 have the formulas of their owners: DeepSeek's kernel weight_dequant multiplies a block by its
scale_inv, and ModelOpt's NVFP4QTensor multiplies a code by weight_scale weight_scale_2. Needs torch, compressed-tensors and bitsandbytes.
"""
import json
import pathlib

import bitsandbytes
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize

OUT, IN = 32, 64
torch.manual_seed(3)


def stored(tensor):
    names = {torch.float8_e4m3fn: "F8_E4M3", torch.uint8: "U8", torch.float32: "F32", torch.bfloat16: "BF16"}
    data = tensor.contiguous()
    return {"dtype": names[data.dtype], "shape": list(data.shape), "bytes": data.reshape(-1).view(torch.uint8).numpy().tobytes().hex()}


def case(name, config, tensors, decoded, ulps):
    return {"name": name, "config": config, "tensors": {k: stored(v) for k, v in tensors.items()},
            "decoded": decoded.float().contiguous().view(torch.uint8).numpy().tobytes().hex(), "ulps": ulps}


def by_compressor(name, form, arguments, scales, ulps):
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**arguments))
    compressor = BaseCompressor.get_value_from_registry(form)
    compressed = compressor.compress({"weight": torch.randn(OUT, IN), **scales}, scheme)
    decoded = compressor.decompress(compressed, scheme)["weight"]
    if "weight_packed" in compressed and "weight_global_scale" in compressed:  # decompress() rounds scales to BF16 on the way
        codes = unpack_fp4_from_uint8(compressed["weight_packed"], OUT, IN, dtype=torch.float32)
        decoded = dequantize(x_q=codes, scale=compressed["weight_scale"].float(), args=scheme.weights,
                             global_scale=compressed["weight_global_scale"], dtype=torch.float32)
    group = {"targets": ["Linear"], "weights": json.loads(scheme.weights.model_dump_json()), "input_activations": None}
    config = {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}
    return case(name, config, compressed, decoded, ulps)


def codes_of(weight, scale):
    return (weight / scale).clamp(-448, 448).to(torch.float8_e4m3fn)


def main():
    fp8 = {"num_bits": 8, "type": "float", "symmetric": True}
    cases = [
        by_compressor("CompressedFp8OfARow", "float-quantized", {**fp8, "strategy": "channel"},
                      {"weight_scale": torch.rand(OUT, 1) / 100}, 0),
        by_compressor("CompressedFp8OfATensor", "float-quantized", {**fp8, "strategy": "tensor"},
                      {"weight_scale": torch.tensor([.007])}, 0),
        by_compressor("CompressedNvfp4", "nvfp4-pack-quantized",
                      {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16},
                      {"weight_scale": (torch.rand(OUT, IN // 16) * 400 + 40).to(torch.float8_e4m3fn).float(),
                       "weight_global_scale": torch.tensor([713.])}, 2),
        by_compressor("CompressedMxfp4", "mxfp4-pack-quantized",
                      {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32},
                      {"weight_scale": 2. ** torch.randint(-4, 2, (OUT, IN // 32))}, 0),
    ]
    blocks = torch.rand(2, 2) / 100  # of 16 x 32
    each = blocks.repeat_interleave(16, 0).repeat_interleave(32, 1)
    codes = codes_of(torch.randn(OUT, IN), each)
    cases.append(case("DeepSeekFp8OfBlocks", {"quant_method": "fp8", "weight_block_size": [16, 32], "activation_scheme": "dynamic"},
                      {"weight": codes, "weight_scale_inv": blocks}, codes.float() * each, 0))
    scale = torch.tensor(.0051)
    codes = codes_of(torch.randn(OUT, IN), scale)
    cases.append(case("ModelOptFp8", {"quant_method": "modelopt", "quant_algo": "FP8"}, {"weight": codes, "weight_scale": scale},
                      codes.float() * scale, 0))
    levels = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])
    nibbles = torch.randint(0, 16, (OUT, IN), dtype=torch.uint8)
    packed = nibbles[:, 0::2] | nibbles[:, 1::2] << 4
    scales = (torch.rand(OUT, IN // 16) * 400 + 40).to(torch.float8_e4m3fn)
    second = torch.tensor(.00137)
    values = levels[nibbles.long()] * (scales.float() * second).repeat_interleave(16, 1)
    cases.append(case("ModelOptNvfp4", {"quant_method": "modelopt", "quant_algo": "NVFP4"},
                      {"weight": packed, "weight_scale": scales, "weight_scale_2": second}, values, 2))
    for nested in (False, True):
        packed, state = bitsandbytes.functional.quantize_4bit(torch.randn(OUT, IN), blocksize=64, compress_statistics=nested, quant_type="nf4")
        values = bitsandbytes.functional.dequantize_4bit(packed, state)
        tensors = {"weight": packed, **{f"weight.{name}": value for name, value in state.as_dict(packed=True).items()}}
        cases.append(case("BitsAndBytesNested" if nested else "BitsAndBytes", {"quant_method": "bitsandbytes", "load_in_4bit": True},
                          tensors, values, 1))
    path = pathlib.Path(__file__).parent.parent / "src/io/testdata/float_weights.json"
    path.write_text(json.dumps(cases) + "\n")
    print(path, path.stat().st_size)


main()
