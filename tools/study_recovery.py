#!/usr/bin/env python3
"""Whether a target of tasks keeps its promise (SLQ's Algorithm 2): predicted and measured recovery for several drops.

    tools/study_recovery.py models/quill-26m --work DIR [--drops 0.01,0.02,0.05] [--device cuda] [--limit N] [-- OPTIONS OF compress]

For every drop `compress --tasks --accuracy-drop` on questions of calibration, which it divides into those that say what a nat
costs and those that check the plan; then `recovery` on other questions that neither has seen. The first run writes the table of
sensitivities, the others read it. Prints a markdown table; DIR keeps every report. What is there already is not run again.
Standard library only."""
import argparse
import json
import os
import subprocess
import sys
import time

root = os.path.relpath(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
mine, passed = (sys.argv[1:], []) if "--" not in sys.argv else (sys.argv[1:sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1:])
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model")
parser.add_argument("--work", required=True)
parser.add_argument("--fidelio", default=os.path.join(root, "build", "fidelio"))
parser.add_argument("--drops", default="0.01,0.02,0.05")
parser.add_argument("--texts", default=os.path.join(root, "models/data/tasks-calibration.jsonl"),
                    help='conversations {"text"} whose questions calibrate and check')
parser.add_argument("--held-out", default=os.path.join(root, "models/data/tasks.jsonl"), help="questions of the last column")
parser.add_argument("--limit", type=int, default=0, help="questions of calibration and check, and of each task held out a tenth of it; 0 = all")
parser.add_argument("--seeds", type=int, default=3, help="runs of answers; 0 = one, greedy")
parser.add_argument("--calibration-bits", type=float, default=3)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--device", default="cpu")
parser.add_argument("--threads", type=int, default=0)
args = parser.parse_args(mine)
os.makedirs(args.work, exist_ok=True)
device = ["--device", args.device] + (["--threads", str(args.threads)] if args.threads else [])


def path(*parts):
    return os.path.join(args.work, *parts)


def conversations():
    user, assistant = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
    with open(args.texts, encoding="utf-8") as file:
        for number, line in enumerate(file):
            question, answer = json.loads(line)["text"][len(user):].split(assistant)
            yield {"id": str(number), "task": "calibration", "question": question,
                   "answer": answer.split("<|im_end|>")[0].split("</think>")[-1].strip()}


def run(argv):
    begin = time.time()
    done = subprocess.run([args.fidelio, *argv], capture_output=True, text=True)
    return done, time.time() - begin


def with_interval(e, digits):
    if not e or e["value"] is None:
        return "–"
    low, high = e["ci95"]
    return f"{e['value']:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


asked = path("questions.jsonl")
with open(asked, "w", encoding="utf-8") as file:
    file.writelines(json.dumps(q) + "\n" for q in conversations())

rows = ["| drop | calibration: recovery at KL | loss a nat | KL allowed | plan, bits | its KL | predicted | check | held out | met | seconds |",
        "|---|---|---|---|---|---|---|---|---|---|---|"]
table = path("table.json")
for drop in args.drops.split(","):
    out, report, held = path("drop-" + drop), path(f"drop-{drop}.json"), path(f"held-{drop}.json")
    if not os.path.exists(report):
        done, seconds = run(["compress", args.model, "--tasks", asked, "--accuracy-drop", drop, "--seeds", str(args.seeds),
                             "--calibration-bits", str(args.calibration_bits), "--batch", str(args.batch), "-o", out, "--json", report,
                             *(["--limit", str(args.limit)] if args.limit else []),
                             *(["--from-table", table] if os.path.exists(table) else ["--table", table]), *device, *passed])
        with open(path(f"drop-{drop}.txt"), "w", encoding="utf-8") as file:
            file.write(done.stdout + done.stderr)
        if done.returncode != 0:
            last = [l for l in done.stderr.strip().splitlines() if l.startswith("fidelio")] or done.stderr.strip().splitlines()[-1:]
            rows.append(f"| {drop} | | | | | | | | | refused: {' '.join(last).removeprefix('fidelio: ')} | {seconds:.0f} |")
            print(rows[-1], flush=True)
            continue
        with open(report, encoding="utf-8") as file:
            kept = json.load(file)
        kept["study_seconds"] = seconds
        with open(report, "w", encoding="utf-8") as file:
            json.dump(kept, file)
    with open(report, encoding="utf-8") as file:
        made = json.load(file)
    if not os.path.exists(held):
        few = ["--limit", str(max(1, args.limit // 10))] if args.limit else []
        how = ["--seeds", str(args.seeds)] if args.seeds else ["--greedy"]
        done, _ = run(["recovery", args.model, out, "--tasks", args.held_out, "--batch", str(args.batch), *few, *how, "--cache",
                       path("answers"), "--json", held, *device])
        if done.returncode != 0:
            sys.exit(done.stderr)
    with open(held, encoding="utf-8") as file:
        measured = json.load(file)["models"][1]["mean_recovery"]
    of = made["certificate"]["tasks"]
    point = of["calibration"]
    met = "yes" if measured["ci95"][0] >= 1 - float(drop) else "not shown" if measured["ci95"][1] >= 1 - float(drop) else "NO"
    rows.append(f"| {drop} | {with_interval(point['recovery'], 3)} at {with_interval(point['kl'], 4)} | {with_interval(point['alpha'], 2)} | "
                f"{of['kl_allowed']:.5f} | {made['bits_per_parameter']:.3f} | {with_interval(of['kl'], 5)} | "
                f"{with_interval(of['predicted_recovery'], 4)} | {with_interval(of['recovery'], 4)}, look {of['looks']} | "
                f"{with_interval(measured, 4)} | {met} | {made.get('study_seconds', 0):.0f} |")
    print(rows[-1], flush=True)
print("\n" + "\n".join(rows))
