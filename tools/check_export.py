"""Opens the exports of small models with the programs they are made for, and compares logits with `fidelio logits`.

  python tools/check_export.py --fidelio build/fidelio --model models/quill-26m [--transformers PYTHON] [--llama PYTHON] [--keep FOLDER]

PYTHON: an interpreter with torch, transformers, compressed-tensors and safetensors (--transformers), or with llama-cpp-python,
gguf and numpy (--llama); this script calls itself there. Exit status 1 if anything differs by more than its tolerance.

Tolerances, where u = 2^-24 is FP32's rounding:
* compressed-tensors and gptq (unpacked here, independently of the packer) give the very weights that fidelio computes with, so
  what differs is the order of FP32 additions in two programs. Its size is not guessed: it is measured, as what the dense source
  model differs by between the same two programs; five times that is allowed.
* a folder of our own codes is refused by transformers with a sentence that names `fidelio export`.
* whatever was exported, fidelio reads it again: the same logits to the last bit where nothing was rounded; what rounding costs
  elsewhere is printed.
* gguf of a model in FP32, the same way: it checks names, row order, rotation and metadata. llama.cpp computes matmuls of coded
  weights with activations rounded to 8 bits in blocks of 32, fidelio's a8 mode likewise by its own grouping: for coded models
  the distance |llama.cpp - fidelio f32| (root mean square) is to be below twice |fidelio a8 - fidelio f32| plus, for minima
  rounded to FP16 (Q4_1, Q5_1), what the rounded weights do, which is measured by --exact: both exports have to pass.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

TOKENS = 96
TEXTS = ["def f(x):\n    return x + 1", "It's 42, isn't it? caf\u00e9 \u4f60\u597d", "<|im_start|>user\nHello  world\n\n<|im_end|>"]


def run(*command):
    subprocess.run([str(c) for c in command], check=True)


def fidelio_logits(args, model, ids, activations="f32"):
    import numpy
    out = args.work / "logits.npy"
    run(args.fidelio, "logits", model, "--ids", ids, "-o", out, "--activations", activations)
    return numpy.load(out)


def rms(x):
    return float((x.astype("f8") ** 2).mean() ** 0.5)


def read_safetensors(path):
    """({name: (dtype, shape, bytes)}, metadata)"""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + size])
    metadata = header.pop("__metadata__")
    data = raw[8 + size:]
    return {name: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for name, t in header.items()}, metadata


def write_safetensors(path, tensors, metadata):
    header, at = {"__metadata__": metadata}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in tensors.values()))


MODULES = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
           "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}


def mixed_checkpoint(args, name, formats):
    """A fidelio checkpoint that takes each role's linears from the uniform one of that format."""
    folder = args.work / name
    if folder.exists():
        return folder
    formats = {role: fitted(args, format) for role, format in formats.items()}
    uniform = {f: read_safetensors(quantized(args, f) / "model.safetensors") for f in set(formats.values())}
    first = quantized(args, formats["q"])
    source, metadata = uniform[formats["q"]]
    ours = json.loads(metadata["fidelio"])
    modules = {short: f"model.layers.{short.split('.')[1]}.{MODULES[short.split('.')[2]]}." for short in ours["formats"]}
    tensors = {k: v for k, v in source.items() if not k.startswith(tuple(modules.values()))}
    for short, module in modules.items():
        ours["formats"][short] = formats[short.split(".")[2]]
        tensors.update({k: v for k, v in uniform[ours["formats"][short]][0].items() if k.startswith(module)})
    folder.mkdir()
    for item in first.iterdir():
        if item.suffix != ".safetensors":
            (folder / item.name).write_bytes(item.read_bytes())
    write_safetensors(folder / "model.safetensors", tensors, {"format": "pt", "fidelio": json.dumps(ours)})
    return folder


def fitted(args, format):
    """The format with groups that divide this model's columns."""
    config = json.loads((args.model / "config.json").read_text())
    sizes = (config["hidden_size"], config["intermediate_size"])
    return re.sub(r"g(128|64)", lambda g: f"g{next(n for n in (128, 64, 32) if n <= int(g[1]) and not any(s % n for s in sizes))}", format)


def quantized(args, format):
    format = fitted(args, format)
    folder = args.work / format
    if not folder.exists():
        # F32 means all of it: llama.cpp multiplies a BF16 head by activations rounded to BF16.
        run(args.fidelio, "quantize", args.model, "--format", format, "--method", "rtn", "-o", folder, *(["--embedding", "f32"] if format == "f32" else ["--keep-embedding"]))
    return folder


def transformers_logits(folder, ids, **how):
    import torch
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **how)
    with torch.no_grad():
        return model(torch.tensor([json.loads(ids.read_text())])).logits[0].float().numpy()


def read_back(args, export, ours, ids, what, rounded):
    """fidelio's own reading of an export against the checkpoint it was made of."""
    again = fidelio_logits(args, export, ids)
    if rounded:
        print(f"{what + ', read back, rms':<58} {rms(again - ours):.3e} of logits of {rms(ours):.3e}", flush=True)
        return True
    return report(f"{what}, read back, max", float(abs(again - ours).max()), 0)


def report(what, measured, allowed):
    verdict = "ok" if measured <= allowed else "DIFFERS"
    print(f"{what:<58} {measured:.3e} allowed {allowed:.3e}  {verdict}", flush=True)
    return measured <= allowed


MIXED = {"q": "int3g64", "k": "int3g64", "v": "int3g64", "o": "int5g128", "gate": "int4g128z", "up": "int4g128z", "down": "int8g128z"}
MIXED_SYMMETRIC = {"q": "int3g64", "k": "int3g64", "v": "int3g64", "o": "int5g128", "gate": "int6g128", "up": "int6g128", "down": "int7c"}
MIXED_ANY = {"q": "int3g64z", "k": "int3g64z", "v": "int3g64z", "o": "int7c", "gate": "int6g128z", "up": "int6g128z", "down": "int5g32z"}
MIXED_GGUF = {"q": "int3g64z", "k": "int3g64z", "v": "int3g64z", "o": "int5g128", "gate": "int4g128z", "up": "int5g64z", "down": "int6g128zs8"}


def check_refused(folder):
    """transformers does not open a folder of our codes: it says what reads it. Its tokenizer and config are opened."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    AutoConfig.from_pretrained(folder)
    assert AutoTokenizer.from_pretrained(folder)("a text").input_ids
    try:
        AutoModelForCausalLM.from_pretrained(folder)
    except ValueError as error:
        print(f"transformers refuses {folder.name}: {error}")
        return "only fidelio reads" in str(error) and "fidelio export" in str(error)
    print(f"transformers OPENED {folder.name}, which it cannot read")
    return False


def check_transformers(args):
    ids = args.work / "ids.json"
    ours = fidelio_logits(args, args.model, ids)
    noise = abs(transformers_logits(args.model, ids) - ours).max()
    print(f"dense source, max |transformers - fidelio| = {noise:.3e}, logits up to {abs(ours).max():.1f}", flush=True)
    ok = check_refused(quantized(args, "int4g128z"))
    from transformers import CompressedTensorsConfig
    cases = [("int4g128z", quantized(args, "int4g128z"), "vllm", {"quantization_config": CompressedTensorsConfig(dequantize=True)}),
             ("mixed symmetric", mixed_checkpoint(args, "symmetric", MIXED_SYMMETRIC), "vllm", {}),
             ("mixed, vllm profile", mixed_checkpoint(args, "mixed", MIXED), "vllm", None),
             ("mixed, any", mixed_checkpoint(args, "any", MIXED_ANY), None, None)]
    for name, model, profile, how in cases:
        ours = fidelio_logits(args, model, ids)
        out = args.work / (model.name + "-ct")
        run(args.fidelio, "export", model, "--to", "compressed-tensors", "-o", out, *(["--profile", profile] if profile else []))
        ok &= read_back(args, out, ours, ids, f"compressed-tensors {name}", False)
        if how:  # dequantize=True multiplies in FP16, the scales' type: the logits of weights rounded to FP16, from our gptq export
            rounded = args.work / (model.name + "-rounded")
            run(args.fidelio, "export", model, "--to", "gptq", "-o", rounded)
            make_dense(rounded, {k: v.half().float() if k.endswith("_proj.weight") else v for k, v in gptq_weights(rounded).items()})
            theirs = transformers_logits(out, ids, **how)
            ok &= report(f"compressed-tensors {name} (transformers, FP16 weights), max", float(abs(theirs - transformers_logits(rounded, ids)).max()), 5 * noise)
        if how != {}:
            make_dense(out, compressed_tensors_weights(out))
        by = "transformers" if how == {} else "compressed-tensors' decompressor"
        ok &= report(f"compressed-tensors {name} ({by}), max", float(abs(transformers_logits(out, ids) - ours).max()), 5 * noise)
        out = args.work / (model.name + "-gptq")
        run(args.fidelio, "export", model, "--to", "gptq", "-o", out)
        ok &= read_back(args, out, ours, ids, f"gptq {name}", False)
        make_dense(out, gptq_weights(out))
        ok &= report(f"gptq {name} (unpacked by this script), max", float(abs(transformers_logits(out, ids) - ours).max()), 5 * noise)
    return ok


def make_dense(folder, state):
    """Turns a folder into a dense FP32 one of these weights."""
    from safetensors.torch import save_file
    for file in folder.glob("*.safetensors"):
        file.unlink()
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))


def compressed_tensors_weights(folder):
    """Dense FP32 weights by the package's own decompressor. transformers cannot be asked: it (5.23, with compressed-tensors 0.20)
    makes room for unpacked zero points when it keeps weights packed, and uses the first config group for all when it does not."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig
    config = QuantizationConfig.model_validate(json.loads((folder / "config.json").read_text())["quantization_config"])
    compressor = BaseCompressor.get_value_from_registry(config.format)
    tensors = load_tensors(folder)
    dense = {k: v for k, v in tensors.items() if k.split(".")[-1] in ("weight", "bias")}
    for scheme in config.config_groups.values():
        for module in scheme.targets:
            state = {k: tensors[f"{module}.{k}"] for k in ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point") if f"{module}.{k}" in tensors}
            state["weight_scale"] = state["weight_scale"].float()
            dense[module + ".weight"] = compressor.decompress(state, scheme)["weight"].contiguous()
    return dense


def load_tensors(folder):
    from safetensors import safe_open
    tensors = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as f:
            tensors.update({k: f.get_tensor(k) for k in f.keys()})
    return tensors


def gptq_weights(folder):
    """Dense FP32 weights from a gptq folder, from the definition of the layout."""
    import re
    import torch
    config = json.loads((folder / "quantize_config.json").read_text())
    planar = config["checkpoint_format"] == "gptq_p"
    widths = {2: [2], 3: [2, 1], 4: [4], 5: [4, 1], 6: [4, 2], 7: [4, 2, 1], 8: [8]}

    def fields(words, b):  # words (n, m): every row is a string of bits
        bits = (words.to(torch.int64)[:, :, None] >> torch.arange(32)) & 1
        bits = bits.reshape(words.shape[0], -1)
        if not planar:
            return (bits.reshape(words.shape[0], -1, b) << torch.arange(b)).sum(-1)
        blocks = bits.reshape(words.shape[0], -1, 32 * b)
        value, begin, low = 0, 0, 0
        for w in widths[b]:
            plane = blocks[:, :, begin:begin + 32 * w].reshape(words.shape[0], -1, 32, w)
            value = value + ((plane << torch.arange(w)).sum(-1) << low)
            begin, low = begin + 32 * w, low + w
        return value.reshape(words.shape[0], -1)

    def bits_of(module):
        for rule, override in config.get("dynamic", {}).items():
            if re.match(rule.split(":", 1)[1], module):
                return override["bits"]
        return config["bits"]

    tensors = load_tensors(folder)
    dense = {k: v for k, v in tensors.items() if k.split(".")[-1] in ("weight", "bias")}
    for name in tensors:
        if name.endswith(".qweight"):
            module = name[:-len(".qweight")]
            b = bits_of(module)
            q = fields(tensors[name].T.contiguous(), b)                # (out, in)
            z = fields(tensors[module + ".qzeros"], b).T               # (out, groups)
            s = tensors[module + ".scales"].float().T
            g = tensors[module + ".g_idx"].long()
            dense[module + ".weight"] = ((q - z[:, g]).float() * s[:, g]).contiguous()
    return dense


def check_llama(args):
    import gguf
    import numpy
    from llama_cpp import Llama
    ids = args.work / "ids.json"
    tokens = json.loads(ids.read_text())

    def logits(file):
        model = Llama(str(file), n_ctx=256, n_batch=256, logits_all=True, type_k=0, type_v=0, flash_attn=False, n_threads=2, verbose=False)
        model.eval(tokens)
        return numpy.array(model.scores[:len(tokens)]), model

    def export(model, *options):
        out = args.work / (model.name + "".join(options) + ".gguf")
        run(args.fidelio, "export", model, "--to", "gguf", "-o", out, *options)
        return out

    ok = True
    plain = quantized(args, "f32")
    theirs, model = logits(export(plain))
    ours = fidelio_logits(args, plain, ids)
    # FP32 in another order: a dot product of K terms is off by about u sqrt(K) of its size, 7 matmuls in each of L layers by a
    # random walk: 1.6e-5 for K = 1280 and L = 8.
    config = json.loads((args.model / "config.json").read_text())
    walk = 2 ** -24 * (config["intermediate_size"] * 7 * config["num_hidden_layers"]) ** 0.5
    ok &= report("gguf f32, rms relative to the logits'", rms(theirs - ours) / rms(ours), walk)
    for text in TEXTS:
        mine = subprocess.run([args.fidelio, "tokenize", args.model, "--text", text], check=True, capture_output=True, text=True).stdout
        mine = json.loads(mine)
        ok &= report(f"gguf tokenizer, {text[:20]!r}: ids differ", float(model.tokenize(text.encode(), add_bos=False, special=True) != mine), 0)
    cases = [quantized(args, "int4g128z"), quantized(args, "int4g128"), mixed_checkpoint(args, "gguf-mixed", MIXED_GGUF)]
    for model in cases:
        ours = fidelio_logits(args, model, ids)
        int8 = rms(fidelio_logits(args, model, ids, "a8") - ours)
        for options in ((), ("--exact",)):
            file = export(model, *options)
            # Other blocks than ours (Q8_0 has groups of 32): sums in another order even where every weight is the same.
            read_back(args, file, ours, ids, f"gguf {model.name} {' '.join(options)}", True)
            types = sorted({t.tensor_type.name for t in gguf.GGUFReader(file).tensors})
            theirs, _ = logits(file)
            ok &= report(f"gguf {model.name} {' '.join(options)} {','.join(types)}, rms", rms(theirs - ours), 2 * int8)
            agree = float((theirs.argmax(-1) == ours.argmax(-1)).mean())
            print(f"    same first token at {100 * agree:.1f} % of positions")
    return ok


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fidelio", required=True, type=pathlib.Path)
    parser.add_argument("--model", required=True, type=pathlib.Path)
    parser.add_argument("--transformers")
    parser.add_argument("--llama")
    parser.add_argument("--keep", type=pathlib.Path, help="work in this folder and leave it")
    parser.add_argument("--part", choices=["transformers", "llama"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.fidelio, args.model = args.fidelio.resolve(), args.model.resolve()
    if args.part:
        args.work = args.keep
        return 0 if {"transformers": check_transformers, "llama": check_llama}[args.part](args) else 1
    with tempfile.TemporaryDirectory() as temporary:
        work = (args.keep or pathlib.Path(temporary)).resolve()
        work.mkdir(exist_ok=True)
        (work / "ids.json").write_text(json.dumps([(i * 7919 + 13) % 8000 + 5 for i in range(TOKENS)]))
        status = 0
        for part in ("transformers", "llama"):
            python = getattr(args, part)
            if python:
                status |= subprocess.run([python, __file__, "--fidelio", args.fidelio, "--model", args.model, "--keep", work, "--part", part]).returncode
        return status


if __name__ == "__main__":
    sys.exit(main())
