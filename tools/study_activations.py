#!/usr/bin/env python3
"""Weights alone against weights and activations, with tasks (SLQ, table 23): the smallest plans whose KL stays below a limit.

    tools/study_activations.py models/quill-26m --work DIR [--device cuda] [--limit N] [-- OPTIONS OF compress]

W: activations of 16 bits, as served by default; W+A: every linear's input has as many bits as its weight's codes (--activations
aw). `compress --kl K` for each, then `recovery` with the same activations, which weights that are no codes do not see. The paper
searches by evolution; here the knapsack does, which is faster and ends with fewer bits (docs/results/evolution.json). Prints a
markdown table; DIR keeps every report, and what is there is not run again. Standard library only."""
import argparse
import json
import os
import subprocess
import sys

root = os.path.relpath(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
mine, passed = (sys.argv[1:], []) if "--" not in sys.argv else (sys.argv[1:sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1:])
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model")
parser.add_argument("--work", required=True)
parser.add_argument("--fidelio", default=os.path.join(root, "build", "fidelio"))
parser.add_argument("--rows", default="a16:0.0125,aw:0.015,aw:0.01", help="activations:KL, as the paper's rows")
parser.add_argument("--tasks", default=os.path.join(root, "models/data/tasks.jsonl"))
parser.add_argument("--limit", type=int, default=0, help="questions of each task; 0 = all")
parser.add_argument("--seeds", type=int, default=0, help="runs of answers; 0 = one, greedy")
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--device", default="cpu")
parser.add_argument("--threads", type=int, default=0)
args = parser.parse_args(mine)
os.makedirs(args.work, exist_ok=True)
device = ["--device", args.device] + (["--threads", str(args.threads)] if args.threads else [])


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def run(argv):
    done = subprocess.run([args.fidelio, *argv], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"fidelio {' '.join(argv)}\n{done.stderr[-2000:]}")


def with_interval(e, digits):
    return f"{e['value']:.{digits}f} [{e['ci95'][0]:.{digits}f}, {e['ci95'][1]:.{digits}f}]"


rows = []
for row in args.rows.split(","):
    activations, kl = row.split(":")
    out = os.path.join(args.work, f"{activations}-{kl}")
    made, kept = out + ".json", out + "-recovery.json"
    if not os.path.exists(made):
        run(["compress", args.model, "--kl", kl, "--activations", activations, "-o", out, "--json", made, *device, *passed])
    if not os.path.exists(kept):
        how = ["--seeds", str(args.seeds)] if args.seeds else ["--greedy"]
        few = ["--limit", str(args.limit)] if args.limit else []
        run(["recovery", args.model, out, "--tasks", args.tasks, "--activations", activations, "--batch", str(args.batch), *few, *how,
             "--cache", os.path.join(args.work, "answers-" + activations), "--json", kept, *device])
    report, answers = read(made), read(kept)
    c = report["certificate"]
    if not rows:
        names = answers["tasks"]
        rows.append(["type", "KL allowed", "bits", "certified KL", "EAR", "perplexity ratio", "recovery [95%]", *names])
        of = answers["models"][0]["accuracy"]
        rows.append([os.path.basename(os.path.normpath(args.model)), "–", "16", "–", "–", "1", "1", *[f"{a['value']:.3f}" for a in of]])
    plan = answers["models"][1]
    rows.append([f"W ({activations})" if activations == "a16" else f"W+A ({activations})", kl, f"{report['bits_per_parameter']:.3f}",
                 with_interval(c["kl"], 5), f"{c['ear']['value']:.4f}", f"{c['perplexity_ratio']['value']:.4f}",
                 with_interval(plan["mean_recovery"], 3),
                 *[f"{a['value']:.3f} ({100 * r['value']:.1f}%)" for a, r in zip(plan["accuracy"], plan["recovery"])]])
print("\n".join("| " + " | ".join(cells) + " |" for cells in [rows[0], ["---"] * len(rows[0]), *rows[1:]]))
