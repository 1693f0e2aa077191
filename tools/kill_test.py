#!/usr/bin/env python3
"""Kills `fidelio compress`, `tune` or `draft` at random moments and checks that going on gives the same bytes as a run that was left alone.

    tools/kill_test.py models/quill-1m --kills 10 [--seed 1] [--fidelio build/fidelio] -- --bits 5 --formats int3g64z,int5g64z
    tools/kill_test.py QUANTISED --verb tune --kills 10 -- --reference models/quill-1m --calibration FILE --save-seconds 0 ...
    tools/kill_test.py QUANTISED --verb draft --kills 10 -- --kinds int4g64 --by-bytes --tune --tune-steps 4 ...

What stands after -- goes to the verb. First the whole job is done in peace; then again and again it is started, killed
(SIGKILL, or SIGTERM with --signal TERM) after a random part of that time, and started anew until it ends. Files of a user that
stand beside what is written, and within it, must stay. `draft` works on a copy of the model's folder, and its times differ
from run to run: of draft.json what was chosen is compared. Exits 1 if any file differs or anything is left over."""
import argparse
import filecmp
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model")
parser.add_argument("--verb", choices=["compress", "tune", "draft"], default="compress")
parser.add_argument("--kills", type=int, default=10)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--signal", choices=["KILL", "TERM"], default="KILL")
parser.add_argument("--fidelio", default="build/fidelio")
cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
args, options = parser.parse_args(sys.argv[1:cut]), sys.argv[cut + 1:]

folder = tempfile.mkdtemp(prefix="fidelio-kill-")
peace, killed = os.path.join(folder, "peace"), os.path.join(folder, "killed")


if args.verb == "draft":
    for name in (peace, killed):
        shutil.copytree(args.model, name)
# What a user keeps there: near the output, and within what the program makes and removes.
mine = [killed + ".notes", killed + ".4711.tmp"] + ([os.path.join(killed, "draft.notes")] if args.verb == "draft" else [])
for name in mine:
    with open(name, "w", encoding="utf-8") as file:
        file.write("dear to somebody")


def start(out):
    command = [args.fidelio, args.verb, *([out] if args.verb == "draft" else [args.model, "-o", out]), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def done_so_far():
    journal, state = killed + ".journal", killed + ".tuning"
    if args.verb == "compress":
        return f"{len(os.listdir(journal)) if os.path.isdir(journal) else 0} files in the journal"
    if args.verb == "draft":
        return f"{[name for name in os.listdir(killed) if name.startswith('draft')]} in the model's folder"
    if not os.path.exists(state):
        return "no state"
    with open(state, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    about = json.loads(header["__metadata__"]["tuner"])
    return f"{about['layers_done']} layers and {about['step']} steps of the whole in the state"


begin = time.time()
if start(peace).wait() != 0:
    sys.exit("the undisturbed run failed")
whole = time.time() - begin
print(f"undisturbed: {whole:.1f} s", flush=True)

generator = random.Random(args.seed)
deaths = 0
while True:
    process = start(killed)
    # Early and late moments alike, and less of the whole the more kills there are: some must come before the end.
    wait = generator.uniform(0.02, 1.0) * whole * 2 / max(args.kills, 2) if deaths < args.kills else None
    try:
        out, _ = process.communicate(timeout=wait)
        if process.returncode != 0:
            sys.exit(f"the resumed run failed with {process.returncode}: {out}")
        print(f"finished after {deaths} kills", flush=True)
        break
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL if args.signal == "KILL" else signal.SIGTERM)
        process.communicate()
        deaths += 1
        print(f"kill {deaths} after {wait:.1f} s: {done_so_far()}", flush=True)
        if os.path.isdir(killed) and args.verb != "draft":
            break

for name in mine:
    with open(name, encoding="utf-8") as file:
        if file.read() != "dear to somebody":
            sys.exit(f"{name} is not what it was")
    os.remove(name)
if args.verb == "draft":
    chosen = []
    for name in (peace, killed):
        with open(os.path.join(name, "draft.json"), encoding="utf-8") as file:
            choice = json.load(file)
        chosen.append({key: choice.get(key) for key in ("draft", "kind", "weights_sha256", "copy_weights_sha256")})
        os.remove(os.path.join(name, "draft.json"))
    if chosen[0] != chosen[1]:
        sys.exit(f"chosen: {chosen[0]} in peace, {chosen[1]} after kills")
compared = filecmp.dircmp(peace, killed)
_, different, errors = filecmp.cmpfiles(peace, killed, compared.common_files, shallow=False)
alone = compared.left_only + compared.right_only
for name in compared.common_dirs:
    inner = filecmp.dircmp(os.path.join(peace, name), os.path.join(killed, name))
    alone += inner.left_only + inner.right_only
    different += inner.diff_files
if deaths and process.returncode != 0:  # killed between the output's arrival and the end of what it was made from
    shutil.rmtree(killed + ".journal", ignore_errors=True)
    if os.path.exists(killed + ".tuning"):
        os.remove(killed + ".tuning")
left = [name for name in os.listdir(folder) if name not in ("peace", "killed")]
print(f"{len(compared.common_files)} files, different: {different + errors}, in one only: {alone}, left over: {left}")
shutil.rmtree(folder)
sys.exit(1 if different or errors or alone or left else 0)
