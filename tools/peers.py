#!/usr/bin/env python3
"""Speed beside llama.cpp on the same machine and shape: rounds of A/B/A/B, medians of the ratios.

    tools/peers.py --ours DIR --pairs int4g64zs8=Q4_0+Q4_K_M,int8g64zs8=Q8_0,bf16=BF16 --peer "PYTHON peer_speed.py --dir CACHE" [--rounds 5]

DIR holds folders tl-FORMAT made by `fidelio synth tinyllama-1.1b [--format FORMAT]`. The peer command is called with
--types T --threads N --rounds 1 [--batched 4,8] and prints one JSON line with pp, tg and tg_x4, tg_x8 (tokens/s), bytes_per_token.
Keep the machine otherwise idle: llama.cpp's spinning threads collapse when anything else runs."""
import argparse
import json
import statistics
import subprocess

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--ours", required=True)
parser.add_argument("--pairs", required=True)
parser.add_argument("--peer", required=True)
parser.add_argument("--fidelio", default="build/fidelio")
parser.add_argument("--threads", default="2")
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--batched", default="")
parser.add_argument("--modes", default="a16,a8")
parser.add_argument("--raw", default="", help="append every measurement as a JSON line to this file")
args = parser.parse_args()
batches = [b for b in args.batched.split(",") if b]


def ours(spec, mode):
    command = [args.fidelio, "bench", "model", f"{args.ours}/tl-{spec}", "--pp", "512", "--tg", "128", "--batch", ",".join(["1", *batches]), "-r", "1",
               "--threads", args.threads, "--activations", mode, "--json", "-"]
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout)
    rows = {r["test"]: r["tokens_per_second"] for r in report["rows"]}
    out = {"pp": rows["pp512"], "tg": rows["tg128"], "probe": report["read_bandwidth_gbs"], "gbs": [r["gbs"] for r in report["rows"] if r["test"] == "tg128"][0]}
    for b in batches:
        out[f"tg_x{b}"] = rows[f"tg128 x{b}"]
    return out


def peer(kind):
    command = [*args.peer.split(), "--types", kind, "--threads", args.threads, "--rounds", "1"] + (["--batched", args.batched] if batches else [])
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout.splitlines()[-1])


def record(kind, name, values):
    if args.raw:
        with open(args.raw, "a", encoding="utf-8") as file:
            file.write(json.dumps({"who": kind, "name": name, **values}) + "\n")
    return values


tests = ["pp", "tg"] + [f"tg_x{b}" for b in batches]
print("| ours | peer | " + " | ".join(f"{t} ours / peer t/s | ratio" for t in tests) + " | GB/s ours (of probe) | GB/s peer |")
print("|---" * (4 + 2 * len(tests)) + "|")
for pair in args.pairs.split(","):
    spec, kinds = pair.split("=")
    modes = ["a16"] if spec == "bf16" else args.modes.split(",")
    rounds = []
    for _ in range(args.rounds):
        entry = {f"peer:{k}": record("peer", k, peer(k)) for k in kinds.split("+")}
        entry.update({f"ours:{m}": record("ours", f"{spec} {m}", ours(spec, m)) for m in modes})
        rounds.append(entry)
    for m in modes:
        for k in kinds.split("+"):
            cells = []
            for t in tests:
                a = [r[f"ours:{m}"][t] for r in rounds]
                b = [r[f"peer:{k}"][t] for r in rounds]
                cells.append(f"{statistics.median(a):.1f} / {statistics.median(b):.1f} | {statistics.median(x / y for x, y in zip(a, b)):.2f}")
            gbs = statistics.median(r[f"ours:{m}"]["gbs"] for r in rounds)
            share = statistics.median(r[f"ours:{m}"]["gbs"] / r[f"ours:{m}"]["probe"] for r in rounds)
            other = statistics.median(r[f"peer:{k}"]["gb_per_s"] for r in rounds)
            print(f"| {spec} {m} | {k} | " + " | ".join(cells) + f" | {gbs:.1f} ({100 * share:.0f}%) | {other:.1f} |", flush=True)
