#!/usr/bin/env python3
"""A table of other programs' files beside ours at their bytes, untuned and tuned.

    tools/study_tuned.py models/quill-26m --peers peers.json --work DIR [--types IQ2_KT,IQ3_K] [--fidelio build/fidelio] [--device cuda] [--until SECONDS] [--tune "--steps 1000"]

peers.json: a list of {"type": "IQ3_K", "tensor_bytes": 11999232, "docs": {"kl": 0.116554}}, as tools/peers.py and an evaluation of its files give it; of several of one type the first counts.
For each: `compress --bytes` (all tensors and the header within the peer's tensor bytes), `tune`, and both measured by `eval` on the first 40 windows of 512 tokens of a text that neither has seen:
--text, which `compress` certifies with, so its search has seen half of the windows; --second, which nobody has seen. One JSON line a row in DIR/rows.jsonl; what is there already is not run again.
Ends with a markdown table of all there is. Standard library only."""
import argparse
import json
import os
import subprocess
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model")
parser.add_argument("--peers", required=True)
parser.add_argument("--work", required=True)
parser.add_argument("--types", default="", help="these alone, in this order; otherwise all, by size")
parser.add_argument("--fidelio", default="build/fidelio")
parser.add_argument("--calibration", default="models/data/docs-calibration.txt")
parser.add_argument("--text", default="models/data/docs-heldout.txt")
parser.add_argument("--second", default="", help="another text that nobody has tuned or searched on")
parser.add_argument("--device", default="cpu")
parser.add_argument("--formats", default="", help="instead of compress' own")
parser.add_argument("--compress", default="", help="options of `compress`, such as --from-table of the same texts")
parser.add_argument("--tune", default="", help="options of `tune`")
parser.add_argument("--samples-file", default="", help="where the source's own samples are kept (default: DIR/samples.json)")
parser.add_argument("--until", type=float, default=1e9, help="begin nothing after so many seconds")
args = parser.parse_args()
started = time.time()
os.makedirs(args.work, exist_ok=True)
rows_file = os.path.join(args.work, "rows.jsonl")


def run(*command):
    out = subprocess.run([args.fidelio, *command, "--device", args.device, "--json", "-"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if out.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:2])}: {out.stderr.strip()[-300:]}")
    return json.loads(out.stdout)


def evaluate(folder):
    found = {}
    for name, text in (("first", args.text), ("second", args.second)):
        if text:
            found[name] = run("eval", folder, "--reference", args.model, "--text", text, "--context", "512", "--windows", "40")
    return found


def row(peer):
    kind, begin = peer["type"], time.time()
    plan, tuned = os.path.join(args.work, "plan-" + kind), os.path.join(args.work, "tuned-" + kind)
    found = {"type": kind, "peer_bytes": peer["tensor_bytes"], "peer_kl": peer["docs"]["kl"]}
    if not os.path.exists(plan):
        run("compress", args.model, "--bytes", str(peer["tensor_bytes"]), "--calibration", args.calibration, "--text", args.text, *args.compress.split(), *(["--formats", args.formats] if args.formats else []), "-o", plan)
    found["compress_seconds"] = time.time() - begin
    begin = time.time()
    if not os.path.exists(tuned):
        found["tune"] = run("tune", plan, "--reference", args.model, "--calibration", args.calibration, "--samples-file", args.samples_file or os.path.join(args.work, "samples.json"), *args.tune.split(), "-o", tuned)
    found["tune_seconds"] = time.time() - begin
    found["untuned"], found["tuned"] = evaluate(plan), evaluate(tuned)
    found["file_bytes"] = sum(os.path.getsize(os.path.join(tuned, f)) for f in os.listdir(tuned) if f.endswith(".safetensors"))
    with open(rows_file, "a", encoding="utf-8") as file:
        file.write(json.dumps(found) + "\n")
    print(f"{kind}: KL {found['untuned']['first']['kl']['value']:.6f} -> {found['tuned']['first']['kl']['value']:.6f}, theirs {found['peer_kl']:.6f}, {time.time() - started:.0f} s", flush=True)


def interval(estimate):
    return f"{estimate['value']:.6f} [{estimate['ci95'][0]:.6f}, {estimate['ci95'][1]:.6f}]"


def table(rows):
    print("\n| type | its bytes | ours | its KL | ours [95%] | tuned [95%] | | of its KL: ours, tuned |" + (" second text: ours, tuned |" if args.second else ""))
    print("|---|---|---|---|---|---|---|---|" + ("---|" if args.second else ""))
    for r in sorted(rows, key=lambda r: r["peer_bytes"]):
        ours, tuned = r["untuned"]["first"]["kl"], r["tuned"]["first"]["kl"]
        second = f" {r['untuned']['second']['kl']['value']:.6f}, {r['tuned']['second']['kl']['value']:.6f} |" if args.second else ""
        print(f"| {r['type']} | {r['peer_bytes']} | {r['file_bytes']} | {r['peer_kl']:.6f} | {interval(ours)} | {interval(tuned)} | {100 * (tuned['value'] / ours['value'] - 1):+.0f}% |"
              f" {ours['value'] / r['peer_kl']:.2f}, {tuned['value'] / r['peer_kl']:.2f} |{second}")


def finished():
    return [json.loads(line) for line in open(rows_file, encoding="utf-8")] if os.path.exists(rows_file) else []


peers = {}
for entry in json.load(open(args.peers, encoding="utf-8")):
    peers.setdefault(entry["type"], entry)
wanted = args.types.split(",") if args.types else sorted(peers, key=lambda t: peers[t]["tensor_bytes"])
done = {r["type"] for r in finished()}
for name in wanted:
    if name in done or time.time() - started > args.until:
        continue
    try:
        row(peers[name])
    except RuntimeError as error:
        print(f"{name}: {error}", flush=True)
table(finished())
