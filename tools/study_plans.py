#!/usr/bin/env python3
"""Tables of plans: one model compressed to many sizes and targets, by every way of measuring and allocating.

    tools/study_plans.py models/quill-26m --work DIR [--fidelio build/fidelio] [--jobs 8] [--device cuda] [--until SECONDS] [--only A,B]

Runs of the same formats share their quantised candidates, and those of the same method their measurements too: the first run of
each is stopped with kill -9 when its table stands, and its journal goes to the others. Every row: the certificate's fidelity on
text the search has not seen, and `eval` in FP32 on the first 40 windows of 512 tokens. One JSON line a row in DIR/rows.jsonl; what
is there already is not run again. Ends with markdown tables of all there is. Standard library only."""
import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model")
parser.add_argument("--work", required=True)
parser.add_argument("--fidelio", default="build/fidelio")
parser.add_argument("--calibration", default="models/data/docs-calibration.txt")
parser.add_argument("--text", default="models/data/docs-heldout.txt")
parser.add_argument("--jobs", type=int, default=8, help="runs side by side")
parser.add_argument("--threads", type=int, default=2, help="of each run")
parser.add_argument("--donor-threads", type=int, default=2, help="of a run whose journal the others get")
parser.add_argument("--device", default="cpu")
parser.add_argument("--search-tokens", default="", help="instead of compress' own")
parser.add_argument("--until", type=float, default=1e9, help="begin nothing after so many seconds")
parser.add_argument("--only", default="", help="rows whose name begins with one of these")
args = parser.parse_args()
started = time.time()
os.makedirs(args.work, exist_ok=True)
lock = threading.Lock()

WIDE = ["int%dg64zs8" % b for b in range(2, 9)]
FLOATS = ["fp4g16", "fp4g16z", "fp8"]
MIXED = ["lut2g64", "lut3g64", "lut4g64"] + WIDE[1:]
# Peers' total bits (tensor bytes of everything over parameters), to be met at equal size.
PEERS = {"Q3_K_M": 4.30, "Q4_K_M": 5.09, "Q5_K_M": 5.81, "Q6_K": 6.57, "Q8_0": 8.51, "IQ3_K": 3.66, "IQ4_K": 4.88, "IQ5_K": 5.68, "IQ6_K": 6.63}
# Their KL on quill-26m and the same 40 windows, as an independent oracle measured it.
PEERS_KL = {"Q3_K_M": 0.08744, "Q4_K_M": 0.02648, "Q5_K_M": 0.00752, "Q6_K": 0.00278, "Q8_0": 0.00028, "IQ3_K": 0.11655, "IQ4_K": 0.02426, "IQ5_K": 0.00756, "IQ6_K": 0.00215}
# name: (candidates, table or None for one of its own, options)
ROWS = {}
for ear in ("0.99", "0.98", "0.95"):
    ROWS["ear " + ear] = ("mixed", "single", ["--ear", ear], MIXED)
for peer, bits in PEERS.items():
    ROWS["size of " + peer] = ("mixed", "single", ["--bits", str(bits)], MIXED)
for method, permutations in (("linear", 0), ("single", 0), ("every", 0), ("shapley", 4), ("unified", 4), ("shapley", 32)):
    many = f" {permutations}" if permutations > 4 else ""
    for by in ("kl", "ear"):
        ROWS[f"{method}{many} by {by}"] = ("wide", method + many, ["--bits", "5.2", "--method", method, "--allocate-by", by, *(["--permutations", str(permutations)] if permutations else [])], WIDE)
ROWS["evolve"] = ("wide", None, ["--ear", "0.95", "--search", "ilp+evolve"], WIDE)
ROWS["evolve's start"] = ("wide", None, ["--ear", "0.95"], WIDE)
ROWS["widths 4,8"] = ("few", None, ["--bits", "5.2"], [WIDE[2], WIDE[6]])
ROWS["widths 4..8"] = ("some", None, ["--bits", "5.2"], WIDE[2:])
ROWS["floats"] = ("floats", None, ["--bits", "5.2"], FLOATS)
ROWS["floats and integers"] = ("both", None, ["--bits", "5.2"], FLOATS + WIDE)
ROWS["symmetric"] = ("symmetric", None, ["--bits", "5.2"], ["int%dg64s8" % b for b in range(2, 9)])
ROWS["fp16 scales"] = ("fp16", None, ["--bits", "5.2"], ["int%dg128z" % b for b in range(2, 9)])


def folder(name):
    return os.path.join(args.work, name.replace(" ", "-").replace("'", "").replace(",", "_"))


def command(name, options, formats, threads=args.threads):
    return [args.fidelio, "compress", args.model, *options, "--formats", *formats, "--calibration", args.calibration, "--text", args.text, "--device", args.device, "--threads", str(threads),
            *(["--search-tokens", args.search_tokens] if args.search_tokens else []), "--table", folder(name) + ".table.json", "-o", folder(name)]


def run_until(name, options, formats, stop_at, threads=args.threads):
    """Starts a run and kills it when its output has the words stop_at, or its journal has begun."""
    process = subprocess.Popen(command(name, options, formats, threads), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    if stop_at:
        for line in process.stdout:
            if stop_at in line:
                break
    else:
        while process.poll() is None and not os.path.exists(folder(name) + ".journal/job.json"):
            time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()


donors = {}


def donor(key, name, options, formats, base=None):
    """The journal that holds key = (candidates, table); made by the first who asks, from the journal `base` where there is one."""
    with lock:
        made = donors.setdefault(key, threading.Event())
        first = not hasattr(made, "owner")
        if first:
            made.owner = name
    path = os.path.join(args.work, "donor-" + "-".join(k or name.replace(" ", "_").replace("'", "") for k in key))
    if first:
        if not os.path.exists(path):
            if base:
                lend(base, name, options, formats, False)
            run_until(name, options, formats, "Pareto front" if key[1] else "every weight in ", args.donor_threads)
            os.rename(folder(name) + ".journal", path)
        made.set()
    made.wait()
    return path


def lend(path, name, options, formats, measurements):
    run_until(name, options, formats, None)
    if not os.path.exists(folder(name) + ".journal"):
        return  # refused: the run itself will say why
    for file in os.listdir(path):
        if file != "job.json" and (measurements or not file.startswith("measure-")):
            shutil.copy(os.path.join(path, file), folder(name) + ".journal/")


def row(name):
    candidates, table, options, formats = ROWS[name]
    begin = time.time()
    if candidates in ("wide", "mixed"):
        journal = donor((candidates, None), candidates, ["--bits", "5.2"], formats)
        sampled = table is not None and table.startswith(("shapley", "unified"))
        if sampled:  # one table, allocated by KL and by EAR
            journal = donor((candidates, table), table + " table", options, formats, journal)
        lend(journal, name, options, formats, sampled)
    out = subprocess.run(command(name, options, formats), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if out.returncode != 0:
        print(f"{name}: {out.stderr.strip()[-300:]}", flush=True)
        return
    seconds = time.time() - begin
    evaluated = json.loads(subprocess.run([args.fidelio, "eval", folder(name), "--reference", args.model, "--text", args.text, "--context", "512", "--windows", "40", "--activations", "f32",
                                           "--device", args.device, "--threads", str(args.threads), "--json", "-"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout)
    size = json.loads(subprocess.run([args.fidelio, "inspect", folder(name), "--json", "-"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout)
    with lock:
        with open(os.path.join(args.work, "rows.jsonl"), "a", encoding="utf-8") as file:
            file.write(json.dumps({"name": name, "seconds": seconds, "file_bytes": size["file_bytes"], "inspect": size, "eval": evaluated, "log": out.stdout[-2000:]}) + "\n")
    print(f"{name}: {seconds:.0f} s, KL {evaluated['kl']['value']:.6f} EAR {evaluated['ear']['value']:.5f}", flush=True)


def finished():
    rows = os.path.join(args.work, "rows.jsonl")
    return {row["name"]: row for row in map(json.loads, open(rows, encoding="utf-8"))} if os.path.exists(rows) else {}


def interval(estimate, digits):
    return f"{estimate['value']:.{digits}f} [{estimate['ci95'][0]:.{digits}f}, {estimate['ci95'][1]:.{digits}f}]"


def tables(rows):
    print("\n| peer | its bits | its KL | our file's bits | our KL [95%] | ratio |\n|---|---|---|---|---|---|")
    for peer, bits in PEERS.items():
        row = rows.get("size of " + peer)
        if row:
            kl = row["eval"]["kl"]
            print(f"| {peer} | {bits} | {PEERS_KL[peer]} | {row['inspect']['bits_per_parameter']:.3f} | {interval(kl, 6)} | {kl['value'] / PEERS_KL[peer]:.3f} |")
    print("\n| way | bits | KL [95%] | EAR [95%] | certified EAR [95%] | margin | perplexity ratio |\n|---|---|---|---|---|---|---|")
    for name in ROWS:
        if name in rows and not name.startswith("size of "):
            row, found = rows[name], rows[name]["eval"]
            certified = re.search(r"certified EAR ([\d.]+ \[[^]]+\])", row["log"])
            print(f"| {name} | {row['inspect']['bits_per_parameter']:.3f} | {interval(found['kl'], 6)} | {interval(found['ear'], 5)} | {certified.group(1) if certified else '-'} |"
                  f" {found['margin']['value']:.4f} | {found['perplexity_ratio']['value']:.4f} |")


def main():
    done = finished()
    wanted = [n for n in ROWS if n not in done and (not args.only or n.startswith(tuple(args.only.split(","))))]
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(lambda n: row(n) if time.time() - started < args.until else None, wanted))
    tables(finished())


main()
