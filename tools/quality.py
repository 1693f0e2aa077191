#!/usr/bin/env python3
"""Quality table: quantises a model in several formats and measures KL and EAR on held-out text.

    tools/quality.py models/quill-26m --formats int4g128z,lut4g64 [--method gptq|rtn] [--steps none] [--activations f32|a16] [--windows 40] [--device cuda --jobs 4]
    tools/quality.py models/quill-1m --formats int6g64zs8 --view-bits 4 --view-weights 0,0.1,1

One markdown row a format: linears' true bits, KL, EAR, margin and perplexity ratio with 95% intervals, seconds. Embedding and head stay BF16.
With --view-bits a row a weight of the view's loss, and the KL and EAR of the view too."""
import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model")
parser.add_argument("--formats", required=True)
parser.add_argument("--method", default="gptq")
parser.add_argument("--steps", default="", help="of the quantiser, instead of its own")
parser.add_argument("--embedding", default="")
parser.add_argument("--activations", default="f32")
parser.add_argument("--windows", default="40")
parser.add_argument("--fidelio", default="build/fidelio")
parser.add_argument("--calibration", default="models/data/docs-calibration.txt")
parser.add_argument("--text", default="models/data/docs-heldout.txt")
parser.add_argument("--view-bits", default="")
parser.add_argument("--view-weights", default="0")
parser.add_argument("--device", default="cpu")
parser.add_argument("--jobs", type=int, default=1, help="formats side by side")
parser.add_argument("--json", default="", help="append one JSON line a format to this file")
args = parser.parse_args()


def run(*command):
    out = subprocess.run([args.fidelio, *command, "--json", "-"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if out.returncode != 0:
        raise SystemExit(out.stderr.strip())
    return json.loads(out.stdout)


def evaluate(folder, *options):
    report = run("eval", folder, "--reference", args.model, "--text", args.text, "--context", "512", "--windows", args.windows, "--activations", args.activations, "--device", args.device, *options)
    return {key: report[key] for key in ("kl", "ear", "margin", "perplexity_ratio")}


def cell(estimate, digits):
    return f"{estimate['value']:.{digits}f} [{estimate['ci95'][0]:.{digits}f}, {estimate['ci95'][1]:.{digits}f}]"


def row(spec, weight):
    folder = tempfile.mkdtemp()
    out = os.path.join(folder, "model")
    start = time.time()
    calibration = ["--calibration", args.calibration] if args.method == "gptq" else []
    steps = ["--steps", args.steps] if args.steps else []
    embedding = ["--embedding", args.embedding] if args.embedding else ["--keep-embedding"]
    view_options = ["--view-bits", args.view_bits, "--view-weight", weight] if args.view_bits else []
    run("quantize", args.model, "--format", spec, "--method", args.method, "--device", args.device, *calibration, *steps, *embedding, *view_options, "-o", out)
    seconds = time.time() - start
    size = run("inspect", out)
    found = evaluate(out)
    cells = f"{cell(found['kl'], 6)} | {cell(found['ear'], 5)} | {cell(found['margin'], 4)} | {cell(found['perplexity_ratio'], 4)}"
    line = f"| `{spec}` | {args.method} {args.steps} | {size['linear_bits_per_parameter']:.3f} | {size['file_bytes'] / 1e6:.2f} MB | {cells} | {seconds:.0f} |"
    if args.view_bits:
        view = evaluate(out, "--view", args.view_bits)
        line += f" {weight} | {cell(view['kl'], 6)} | {cell(view['ear'], 5)} |"
    shutil.rmtree(folder)
    return line, {"format": spec, "method": args.method, "steps": args.steps, "bits": size["linear_bits_per_parameter"], "bytes": size["file_bytes"], **found}


view_columns = " view's weight | view's KL | view's EAR |" if args.view_bits else ""
print(f"| format | method | linears' bits | file | KL [95%] | EAR [95%] | margin [95%] | perplexity ratio [95%] | seconds |{view_columns}\n" + "|---" * (12 if view_columns else 9) + "|", flush=True)
rows = [(spec, weight) for spec in args.formats.split(",") for weight in args.view_weights.split(",")]
with ThreadPoolExecutor(args.jobs) as pool:
    for line, result in pool.map(lambda r: row(*r), rows):
        print(line, flush=True)
        if args.json:
            with open(args.json, "a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
