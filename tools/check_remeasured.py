#!/usr/bin/env python3
"""Honest measurements of certified models by every kind of kernel and number of threads: none may be refused.

    tools/check_remeasured.py REFERENCE MODEL ... [--isa portable,avx2,avx512,amx] [--threads 1,2,3,4] [--devices cpu,cuda]

Each MODEL is what `compress` made of REFERENCE. Printed are the number of honest measurements and of those that `certify` refused, and
by how much a loss (1 - EAR, KL and the promised ends of both) moves from what the certificate says, as a share of itself. Exit status 1
if any is refused."""
import argparse
import json
import os
import subprocess
import tempfile

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("reference")
parser.add_argument("models", nargs="+")
parser.add_argument("--program", default="build/fidelio")
parser.add_argument("--isa", default="portable,avx2,avx512,amx", help="of the CPU; those that it lacks are left out by name")
parser.add_argument("--threads", default="1,2,3,4")
parser.add_argument("--devices", default="cpu")
args = parser.parse_args()


def ways():
    for device in args.devices.split(","):
        if device != "cpu":
            yield (device, ["--device", device])
            continue
        for isa in args.isa.split(","):
            for threads in args.threads.split(","):
                yield (isa, ["--isa", isa, "--threads", threads])


def certify(model, options):
    """The report of one measurement, and why it was refused ('' where it was not)."""
    report = os.path.join(tempfile.mkdtemp(), "report.json")
    done = subprocess.run([args.program, "certify", model, "--reference", args.reference, "--json", report, *options], capture_output=True, text=True)
    return (json.load(open(report)) if os.path.exists(report) else None), ("" if done.returncode == 0 else done.stderr.strip())


def losses(certificate):
    """The mean losses over all text, and the ends that are promised: of 1 - EAR and KL the upper ones."""
    promised = certificate["promised"]
    return {
        "1 - EAR": 1 - certificate["ear"]["value"],
        "KL": certificate["kl"]["value"],
        "end of 1 - EAR": 1 - promised["ear"]["ci95"][0],
        "end of KL": promised["kl"]["ci95"][1],
    }


measured, refused, moved = 0, [], {}
for model in args.models:
    for name, options in ways():
        report, why = certify(model, options)
        if report is None:
            print(f"{model} {' '.join(options)}: not measured: {why}")
            continue
        measured += 1
        if why:
            refused.append(f"{model} {' '.join(options)}: {why}")
        claimed, found = losses(report["claimed"]), losses(report["measured"])
        for figure, value in found.items():
            share = abs(value - claimed[figure]) / claimed[figure]
            row = moved.setdefault(name, {})
            row[figure] = max(row.get(figure, 0), share)
print(f"{measured} honest measurements of {len(args.models)} certificates, {len(refused)} refused")
figures = ["1 - EAR", "KL", "end of 1 - EAR", "end of KL"]
print("| kernels | " + " | ".join(f"{f} moved by at most" for f in figures) + " |\n|---" * 1 + "|---" * len(figures) + "|")
for name, row in moved.items():
    print(f"| {name} | " + " | ".join(f"{row[f]:.1e}" for f in figures) + " |")
for line in refused:
    print(line)
raise SystemExit(1 if refused or not measured else 0)
