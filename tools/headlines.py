#!/usr/bin/env python3
"""Runs the headlines of docs/results.md again and prints what comes out beside what is written down.

    tools/headlines.py                                    those of the CPU, a few minutes on 2 cores (quill-26m's search: 15 more)
    tools/headlines.py --device cuda --fidelio build-cuda/fidelio
    tools/headlines.py --only quill-1m                    those whose name begins so
    tools/headlines.py --model FOLDER                     the same figures of another model, beside nothing

What is written, and by how much it may differ (other kernels, other phases of a machine's memory), is read from the table under
"Headlines" in docs/results.md, by name. Exit code 1 if a figure differs by more. Standard library only."""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time

root = os.path.relpath(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--fidelio", default=os.path.join(root, "build", "fidelio"))
parser.add_argument("--decode-bench", help="decode_cuda_bench (default: beside fidelio)")
parser.add_argument("--device", default="cpu")
parser.add_argument("--threads", type=int, default=0)
parser.add_argument("--only", default="", help="names that begin with one of these, comma-separated")
parser.add_argument("--models", default=os.path.join(root, "models"), help="folder of quill-1m, quill-26m and data")
parser.add_argument("--model", help="another model: its bits, EAR and speed at .98")
parser.add_argument("--results", default=os.path.join(root, "docs/results.md"))
parser.add_argument("--work", help="keeps the models that are made (default: a folder that is removed)")
args = parser.parse_args()
keep = tempfile.TemporaryDirectory() if not args.work else None
work = args.work or keep.name
os.makedirs(work, exist_ok=True)
threads = ["--threads", str(args.threads)] if args.threads else []
device = ["--device", args.device, *threads]
on_gpu = args.device != "cpu"
made = {}


def models(*parts):
    return os.path.join(args.models, *parts)


def fidelio(*argv):
    """What the verb writes with --json. The same command is run once."""
    if argv not in made:
        done = subprocess.run([args.fidelio, *argv, "--json", "-"], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip()[-400:])
        made[argv] = json.loads(done.stdout)
    return made[argv]


def compressed(model, ear, *more):
    """The report of a compression to an EAR, and its folder."""
    out = os.path.join(work, f"{os.path.basename(os.path.normpath(model))}-{ear}")
    report = out + ".json"
    if os.path.exists(out) and os.path.exists(report):  # of an earlier run with --work
        with open(report, encoding="utf-8") as file:
            return json.load(file), out
    found = fidelio("compress", model, "--ear", ear, "-o", out, *device, *more)
    with open(report, "w", encoding="utf-8") as file:
        json.dump(found, file)
    return found, out


def bits(model, ear, *more):
    return lambda: compressed(model, ear, *more)[0]["bits_per_parameter"]


def ear(model, target, *more):
    return lambda: compressed(model, target, *more)[0]["certificate"]["promised"]["ear"]["value"]


def over_bf16(model, target, *more):
    """Tokens a second of the plan over those of the model itself, in turns."""
    def run():
        out = compressed(model, target, *more)[1]
        rates = []
        for _ in range(3):
            rows = json.loads(subprocess.run([args.fidelio, "bench", "model", model, out, "--pp", "0", "--tg", "128", *device, "--json", "-"],
                                             capture_output=True, text=True, check=True).stdout)["rows"]
            rates.append(rows[1]["tokens_per_second"] / rows[0]["tokens_per_second"])
        return sorted(rates)[1]
    return run


def perplexity(model, context):
    return lambda: fidelio("eval", models(model), "--text", models("data/docs-heldout.txt"), "--context", context,
                           "--activations", "f32", *device)["perplexity"]["value"]


def kl_of(name):
    """Of quill-26m in one format, as served, on the 40 windows that tables of peers use."""
    def run():
        out = os.path.join(work, "quill-26m-" + name)
        if not os.path.exists(out):
            fidelio("quantize", models("quill-26m"), "--format", name, "--embedding", "int6g64zs8", "--calibration",
                    models("data/docs-calibration.txt"), "--calibration-tokens", "131072", "-o", out, *device)
        return fidelio("eval", out, "--reference", models("quill-26m"), "--text", models("data/docs-heldout.txt"), "--context", "512",
                       "--windows", "40", *device)["kl"]["value"]
    return run


def decode(name):
    """Tokens a second of a llama-3-8b shape of random weights, one sequence at 512 positions."""
    def run():
        bench = args.decode_bench or os.path.join(os.path.dirname(args.fidelio), "decode_cuda_bench")
        text = subprocess.run([bench, name, "1", "512"], capture_output=True, text=True, check=True).stdout
        return float(re.findall(r"([\d.]+) tokens/s, weights", text)[0])
    return run


small, large = models("quill-1m"), models("quill-26m")
portable = [] if on_gpu else ["--isa", "avx2"]  # the same bytes on every machine that has it
CPU = {
    "quill-1m, perplexity": perplexity("quill-1m", "512"),
    "quill-1m at EAR .98, bits": bits(small, "0.98", *portable),
    "quill-1m at EAR .98, EAR": ear(small, "0.98", *portable),
    "quill-1m at EAR .98, tokens/s over BF16": over_bf16(small, "0.98", *portable),
    "quill-26m, perplexity": perplexity("quill-26m", "1024"),
    "quill-26m in int4g64zs8, KL": kl_of("int4g64zs8"),
    "quill-26m at EAR .99, bits": bits(large, "0.99"),
    "quill-26m at EAR .99, EAR": ear(large, "0.99"),
    "quill-26m at EAR .99, tokens/s over BF16": over_bf16(large, "0.99"),
}
GPU = {name + ", GPU": run for name, run in CPU.items() if name.startswith("quill-26m") and "perplexity" not in name}
GPU |= {"llama-3-8b shape in int4g128z, tokens/s, GPU": decode("int4g128z"), "llama-3-8b shape in BF16, tokens/s, GPU": decode("bf16")}
rows = GPU if on_gpu else CPU
if args.model:
    rows = {"bits at EAR .98": bits(args.model, "0.98"), "EAR at EAR .98": ear(args.model, "0.98"),
            "tokens/s over BF16": over_bf16(args.model, "0.98")}

written = {}
with open(args.results, encoding="utf-8") as file:
    section = file.read().split("\n## Headlines", 1)[1].split("\n## ", 1)[0]
for line in section.splitlines():
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    if len(cells) >= 3 and re.fullmatch(r"[\d.,]+", cells[1]):
        written[cells[0]] = float(cells[1].replace(",", "")), float(cells[2])

print("| headline | written | measured | differs by | may by | |\n|---|---|---|---|---|---|", flush=True)
wrong = 0
for name, run in rows.items():
    if args.only and not name.startswith(tuple(args.only.split(","))):
        continue
    begin = time.time()
    try:
        value = run()
    except (RuntimeError, subprocess.CalledProcessError, OSError) as error:
        print(f"| {name} | | | | | not run: {str(error)[-200:]} |", flush=True)
        wrong += 1
        continue
    if args.model or name not in written:
        print(f"| {name} | – | {value:.6g} | | | {time.time() - begin:.0f} s |", flush=True)
        continue
    was, noise = written[name]
    differs = abs(value - was) > noise
    wrong += differs
    print(f"| {name} | {was:g} | {value:.6g} | {value - was:+.3g} | {noise:g} | {'DIFFERS' if differs else 'holds'}, {time.time() - begin:.0f} s |", flush=True)
if keep:
    keep.cleanup()
sys.exit(1 if wrong else 0)
