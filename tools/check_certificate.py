#!/usr/bin/env python3
"""Calibration of the certificate: how often its 95% intervals cover what they speak of.

    build/fidelio certify COMPRESSED --reference SOURCE --text TEXT --json measured.json
    tools/check_certificate.py measured.json [--documents 10,25,40] [--repeats 200]

The documents of one measurement are the population: its means are known. A repeat draws documents from it with replacement, makes the
interval for the domain's mean and the one for a new document with the program's own code (tools/check_certificate_driver.cc, built here
against build/), and asks whether they cover the population's mean and one document more, drawn like the others. One markdown row a
domain, figure and number of documents. A document's values do not depend on what else is measured (a law that is tested), so that such
a repeat is what certifying on those documents would have given."""
import argparse
import json
import os
import random
import subprocess
import tempfile

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("measured", nargs="+", help="what `certify --json` wrote; several are one population")
parser.add_argument("--documents", default="10,25,40")
parser.add_argument("--repeats", type=int, default=200)
parser.add_argument("--new", type=int, default=20, help="new documents drawn in each repeat")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

driver = os.path.join(tempfile.mkdtemp(), "driver")
here = os.path.dirname(os.path.abspath(__file__))
subprocess.run(
    ["c++", "-std=c++20", "-O2", "-DFMT_SHARED", f"-I{here}/../src", f"{here}/check_certificate_driver.cc"]
    + [f"{here}/../src/eval/statistics/{name}.cc" for name in ("clusters", "proportions", "statistics")]
    + [f"{here}/../build/libfidelio_core.a", "-lfmt", "-lcrypto", "-lspdlog", "-o", driver],
    check=True,
)

domains = {}
for path in args.measured:
    for document in json.load(open(path))["documents"]:
        domains.setdefault(document["domain"], []).append(document)

rng = random.Random(args.seed)
print("| domain (documents there are) | figure | documents | repeats | mean covered | below it, above it | a new document covered |\n|---|---|---|---|---|---|---|")
for domain, population in sorted(domains.items()):
    for figure in ("KL", "1 − EAR"):
        values = [(d["kl"] if figure == "KL" else 1 - d["ear"]) * d["tokens"] for d in population]
        counts = [d["tokens"] for d in population]
        truth = sum(values) / sum(counts)
        for number in map(int, args.documents.split(",")):
            samples = [[rng.randrange(len(population)) for _ in range(number)] for _ in range(args.repeats)]
            text = "".join(" ".join(f"{values[i]!r} {counts[i]}" for i in sample) + "\n" for sample in samples)
            out = subprocess.run([driver], input=text, stdout=subprocess.PIPE, text=True, check=True).stdout
            intervals = [list(map(float, line.split())) for line in out.splitlines()]
            below = sum(high < truth for _, high, _, _ in intervals)
            above = sum(low > truth for low, _, _, _ in intervals)
            new = [(rng.randrange(len(population)), low, high) for _, _, low, high in intervals for _ in range(args.new)]
            covered = sum(low <= values[i] / counts[i] <= high for i, low, high in new)
            print(f"| {domain} ({len(population)}) | {figure} | {number} | {args.repeats} | {100 * (1 - (below + above) / args.repeats):.1f}% | {100 * below / args.repeats:.1f}%, {100 * above / args.repeats:.1f}% | {100 * covered / len(new):.1f}% |", flush=True)
