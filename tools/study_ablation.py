#!/usr/bin/env python3
"""Ablation of the quantiser: what every step beyond plain GPTQ is worth, alone and together.

    tools/study_ablation.py models/quill-26m --work DIR [--widths 3,4,6] [--jobs 2] [--threads 1] [--device cuda] [--only A,B] [--windows 40]

Rows: rounding; plain GPTQ (quantised layers' inputs, scales from each group's range); plain GPTQ and one step more; everything; everything
but one step; the program's defaults. `more text` is four times the calibration tokens of the others; `samples` has the model write three
quarters of as many. Formats int{width}g64zs8, embedding and head as they are; KL and EAR in FP32 against the original. One JSON line a row
and width in DIR/rows.jsonl; what is there already is not run again. Ends with a markdown table of all there is. Standard library only."""
import argparse
import json
import os
import shutil
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model")
parser.add_argument("--work", required=True)
parser.add_argument("--widths", default="3,4,6")
parser.add_argument("--fidelio", default="build/fidelio")
parser.add_argument("--calibration", default="models/data/docs-calibration.txt")
parser.add_argument("--text", default="models/data/docs-heldout.txt")
parser.add_argument("--tokens", type=int, default=32768, help="of calibration, where it is not `more text`")
parser.add_argument("--windows", type=int, default=40)
parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
parser.add_argument("--threads", type=int, default=1, help="of each run")
parser.add_argument("--device", default="cpu")
parser.add_argument("--only", default="", help="rows whose name begins with one of these")
args = parser.parse_args()
os.makedirs(args.work, exist_ok=True)
rows_path = os.path.join(args.work, "rows.jsonl")
lock = threading.Lock()

STEPS = ["act-order", "range-search", "descent", "refit", "feedback"]  # as `quantize --steps` names them
SINGLE = STEPS + ["descent,refit", "source-inputs", "more text", "samples"]


def options(steps, text="little"):
    """Of `quantize`: the steps, and where calibration comes from."""
    more = 4 * args.tokens
    calibration = {"little": [args.tokens, 0], "more text": [more, 0], "samples": [more, 3 * args.tokens]}[text]
    chosen = ["--steps", ",".join(steps) or "none"] if steps is not None else []
    return chosen + ["--calibration", args.calibration, "--calibration-tokens", str(calibration[0]), "--calibration-samples", str(calibration[1])]


def plain_and(step):
    return options([], step) if step in ("more text", "samples") else options(step.split(","))


ROWS = {"rounding": ["--method", "rtn"], "plain GPTQ": options([])}
for step in SINGLE:
    ROWS["plain + " + step] = plain_and(step)
ROWS["everything"] = options(STEPS, "more text")
ROWS["everything, samples for text"] = options(STEPS, "samples")
for step in STEPS:
    ROWS["everything but " + step] = options([s for s in STEPS if s != step], "more text")
ROWS["everything but more text"] = options(STEPS)
ROWS["default"] = options(None, "more text")


def run(*command):
    out = subprocess.run([args.fidelio, *command, "--device", args.device, "--threads", str(args.threads), "--json", "-"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if out.returncode != 0:
        raise RuntimeError(out.stderr.strip()[-300:])
    return json.loads(out.stdout)


def measure(job):
    name, width = job
    folder = os.path.join(args.work, f"{name}-{width}".replace(" ", "_").replace(",", ""))
    shutil.rmtree(folder, ignore_errors=True)
    begin = time.time()
    try:
        made = run("quantize", args.model, "--format", f"int{width}g64zs8", "--keep-embedding", *ROWS[name], "-o", folder)
        seconds = time.time() - begin
        found = run("eval", folder, "--reference", args.model, "--text", args.text, "--context", "512", "--windows", str(args.windows), "--activations", "f32")
    except RuntimeError as error:
        print(f"{name}, {width} bits: {error}", flush=True)
        return
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    row = {"name": name, "width": width, "options": ROWS[name], "seconds": seconds, "file_bytes": made["file_bytes"], "kl": found["kl"], "ear": found["ear"]}
    with lock, open(rows_path, "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    print(f"{name}, {width} bits: KL {row['kl']['value']:.6f} EAR {row['ear']['value']:.5f}, {seconds:.0f} s", flush=True)


def finished():
    if not os.path.exists(rows_path):
        return {}
    return {(row["name"], row["width"]): row for row in map(json.loads, open(rows_path, encoding="utf-8"))}


def interval(estimate, digits):
    return f"{estimate['value']:.{digits}f} [{estimate['ci95'][0]:.{digits}f}, {estimate['ci95'][1]:.{digits}f}]"


def table(widths):
    done = finished()
    print("\n| step |" + "".join(f" {w} bits: KL [95%] | of plain GPTQ's | EAR [95%] |" for w in widths) + "\n|---" + "|---" * (3 * len(widths)) + "|")
    for name in ROWS:
        line = f"| {name} |"
        for width in widths:
            row, plain = done.get((name, width)), done.get(("plain GPTQ", width))
            ratio = f"{row['kl']['value'] / plain['kl']['value']:.3f}" if row and plain else "-"
            line += f" {interval(row['kl'], 6)} | {ratio} | {interval(row['ear'], 5)} |" if row else " - | - | - |"
        print(line)


def main():
    widths = [int(w) for w in args.widths.split(",")]
    done = finished()
    wanted = [(n, w) for w in widths for n in ROWS if (n, w) not in done and (not args.only or n.startswith(tuple(args.only.split(","))))]
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(measure, wanted))
    table(widths)


main()
