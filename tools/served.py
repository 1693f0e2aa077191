#!/usr/bin/env python3
"""Fidelity as served: our checkpoints in every activation mode, beside llama.cpp running its own files of the same model.

    PYTHON tools/served.py models/quill-26m --ours DIR1,DIR2 --types Q8_0,Q6_K,Q4_K_M --work FOLDER [--windows 40]

PYTHON has llama-cpp-python, gguf and numpy. DIR are checkpoints made from the model by `fidelio quantize` or `compress`. llama.cpp's
files are made by its own quantiser from our dense GGUF export and run as it runs them (8-bit activations, FP16 cache); its logits of
every position of the windows are compared with ours of the dense model with FP32 activations, in double. Bytes are of weight tensors.
The last table moves our KL to the peer's bytes along the line of a factor 4 a bit a parameter."""
import argparse
import ctypes
import json
import os
import subprocess

import numpy

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model")
parser.add_argument("--ours", default="")
parser.add_argument("--types", default="Q8_0,Q6_K,Q4_K_M")
parser.add_argument("--work", required=True)
parser.add_argument("--text", default="models/data/docs-heldout.txt")
parser.add_argument("--windows", type=int, default=40)
parser.add_argument("--context", type=int, default=512)
parser.add_argument("--threads", default="2")
parser.add_argument("--fidelio", default="build/fidelio")
args = parser.parse_args()
os.makedirs(args.work, exist_ok=True)


def fidelio(*command):
    return subprocess.run([args.fidelio, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout


def evaluate(folder, reference, mode, reference_mode="f32"):
    report = json.loads(fidelio("eval", folder, "--reference", reference, "--reference-activations", reference_mode, "--activations", mode, "--text", args.text,
                                "--context", str(args.context), "--windows", str(args.windows), "--threads", args.threads, "--json", "-"))
    return report["kl"]["value"], report["ear"]["value"]


def in_work(name, make):
    """A file of the work folder, made once."""
    path = os.path.join(args.work, name)
    if not os.path.exists(path):
        make(path + ".tmp")
        os.rename(path + ".tmp", path)
    return path


def windows():
    ids = json.loads(fidelio("tokenize", args.model, "--file", args.text, "--no-special"))
    return [ids[i * args.context:(i + 1) * args.context] for i in range(args.windows)]


def reference_logits(index, ids):
    def make(path):
        ids_file = os.path.join(args.work, "ids.json")
        with open(ids_file, "w", encoding="utf-8") as file:
            json.dump(ids, file)
        fidelio("logits", args.model, "--ids", ids_file, "-o", path, "--activations", "f32", "--threads", args.threads)
    return numpy.load(in_work(f"reference-{index}.npy", make), mmap_mode="r")


def log_softmax(x):
    x = x.astype(numpy.float64)
    x -= x.max(axis=1, keepdims=True)
    return x - numpy.log(numpy.exp(x).sum(axis=1, keepdims=True))


def quantise_gguf(kind, dense):
    import llama_cpp
    def make(path):
        how = llama_cpp.llama_model_quantize_default_params()
        how.nthread = int(args.threads)
        how.ftype = getattr(llama_cpp, "LLAMA_FTYPE_MOSTLY_" + kind)
        if llama_cpp.llama_model_quantize(dense.encode(), path.encode(), ctypes.byref(how)):
            raise SystemExit(f"llama.cpp cannot quantise to {kind}")
    return in_work(f"peer-{kind}.gguf", make)


def peer(path, texts):
    import gguf
    from llama_cpp import Llama
    tensors = gguf.GGUFReader(path).tensors
    model = Llama(path, n_ctx=args.context, n_batch=args.context, logits_all=True, n_threads=int(args.threads), n_threads_batch=int(args.threads), verbose=False)
    kl = ear = rows = 0
    for i, ids in enumerate(texts):
        model.reset()
        model.eval(ids)
        p, q = log_softmax(reference_logits(i, ids)[:-1]), log_softmax(numpy.array(model.scores[:len(ids) - 1]))
        kl += (numpy.exp(p) * (p - q)).sum()
        ear += numpy.minimum(numpy.exp(p), numpy.exp(q)).sum()
        rows += len(ids) - 1
    model.close()
    return kl / rows, ear / rows, sum(int(t.n_bytes) for t in tensors)


def main():
    ours = {}
    print("| ours | bytes | activations | KL from the dense model, FP32 | EAR | KL from its own weights, FP32 | KL from its own A16 |\n|---|---|---|---|---|---|---|")
    for folder in [f for f in args.ours.split(",") if f]:
        report = json.loads(fidelio("inspect", folder, "--json", "-"))
        formats = {t["format"] for t in report["tensors"]}
        name, size = "+".join(sorted(formats)), sum(t["bytes"] for t in report["tensors"])
        for mode in ("f32", "a16", "a8"):
            kl, ear = evaluate(folder, args.model, mode)
            own, _ = evaluate(folder, folder, mode)
            served = f"{evaluate(folder, folder, mode, 'a16')[0]:.2e}" if mode == "a8" else "-"
            ours[name, mode] = kl, ear, size, report["parameters"]
            print(f"| {name} | {size / 1e6:.2f} MB | {mode} | {kl:.6f} | {ear:.5f} | {own:.2e} | {served} |", flush=True)
    dense = in_work("dense.gguf", lambda path: fidelio("export", args.model, "--to", "gguf", "-o", path))
    texts = windows()
    print("\n| llama.cpp | bytes | KL as it runs | EAR | ours nearest in size, A16 | our KL at equal bytes | ratio |\n|---|---|---|---|---|---|---|")
    for kind in ["BF16"] + args.types.split(","):
        kl, ear, size = peer(dense if kind == "BF16" else quantise_gguf(kind, dense), texts)
        near = min(((abs(o[2] - size), n) for (n, m), o in ours.items() if m == "a16"), default=None)
        cells = "- | - | -"
        if near and kind != "BF16":
            our_kl, _, our_size, parameters = ours[near[1], "a16"]
            moved = our_kl * 4 ** (8 * (our_size - size) / parameters)
            cells = f"{near[1]} | {moved:.6f} | {moved / kl:.2f}"
        print(f"| {kind} | {size / 1e6:.2f} MB | {kl:.6f} | {ear:.5f} | {cells} |", flush=True)


main()
