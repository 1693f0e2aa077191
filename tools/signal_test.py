#!/usr/bin/env python3
"""Ends `fidelio quantize`, `export` and `compress` by signals at random moments and looks at what is left.

    tools/signal_test.py models/quill-1m [--moments 200] [--seed 1] [--fidelio build/fidelio] [--jobs quantize,export,gguf,compress]

Every moment is a run of one job in an empty folder that gets SIGINT, SIGTERM, SIGHUP or SIGKILL after a random part of the time it
takes in peace. Then the output must be absent or the very bytes of the undisturbed run, and nothing else may stand there: after
SIGKILL, which no process sees, temporary names (core/file.h), and those must be gone, and the output be whole, after
the next run. `compress` keeps its journal, whose own files are whole too. Exits 1 if anything is partial or left."""
import argparse
import collections
import filecmp
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model")
parser.add_argument("--moments", type=int, default=200)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--fidelio", default="build/fidelio")
parser.add_argument("--jobs", default="quantize,export,gguf,compress")
args = parser.parse_args()

# A shell starts what it puts in the background with SIGINT ignored, nohup with SIGHUP, and the jobs would inherit that.
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)

program, model = os.path.abspath(args.fidelio), os.path.abspath(args.model)
top = tempfile.mkdtemp(prefix="fidelio-signal-")
quantised = os.path.join(top, "quantised")
JOBS = {
    "quantize": ["quantize", model, "--method", "rtn", "--format", "int4g32", "-o", "out"],
    "export": ["export", quantised, "--to", "compressed-tensors", "-o", "out"],
    "gguf": ["export", quantised, "--to", "gguf", "-o", "out"],
    # Few windows: a moment is to meet the writing of journal and output, not the measuring between them.
    "compress": ["compress", model, "--bits", "9", "--formats", "int4g32,int8g32", "--method", "single", "--calibration-tokens", "1024",
                 "--search-tokens", "512", "--context", "128", "--certificate-windows", "4", "--max-trials", "1", "-o", "out"],
}


def start(job, folder):
    return subprocess.Popen([program, *JOBS[job]], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def same(a, b):
    if os.path.isfile(a):
        return os.path.isfile(b) and filecmp.cmp(a, b, shallow=False)
    names = sorted(os.listdir(a))
    return os.path.isdir(b) and names == sorted(os.listdir(b)) and not any(filecmp.cmpfiles(a, b, names, shallow=False)[1:])


def faults(folder, peace, killed):
    """What is wrong with what stands in the folder."""
    found = []
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if name == "out":
            if not same(os.path.join(peace, "out"), path):
                found.append("out is partial")
        elif name == "out.journal":
            found += [f"journal: {inner}" for inner in os.listdir(path) if inner.endswith(".tmp") and not killed]
        elif not (killed and re.fullmatch(r"out(\.journal\.removed)?\.\d+\.fidelio\.tmp", name)):
            found.append(name)
    return found


if subprocess.run([program, "quantize", model, "--method", "rtn", "--format", "int4g32", "-o", quantised], stdout=subprocess.DEVNULL,
                  stderr=subprocess.DEVNULL, check=False).returncode:
    sys.exit("quantize failed")
seconds = {}
for job in args.jobs.split(","):
    peace = os.path.join(top, "peace-" + job)
    os.mkdir(peace)
    begin = time.time()
    if start(job, peace).wait():
        sys.exit(f"the undisturbed {job} failed")
    seconds[job] = time.time() - begin
    print(f"{job}: {seconds[job]:.2f} s undisturbed", flush=True)

generator = random.Random(args.seed)
failed, counts = 0, collections.Counter()
for moment in range(args.moments):
    job = list(seconds)[moment % len(seconds)]
    number = generator.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
    folder, peace = os.path.join(top, f"moment-{moment}"), os.path.join(top, "peace-" + job)
    os.mkdir(folder)
    # The first half of these jobs reads and computes: two moments of three are in the second, which writes.
    part = generator.uniform(0.5, 1.05) if generator.random() < 0.67 else generator.uniform(0, 0.5)
    process = start(job, folder)
    try:
        process.wait(timeout=part * seconds[job])
        ended = "before the signal"
    except subprocess.TimeoutExpired:
        process.send_signal(number)
        try:
            process.wait(timeout=30)
            ended = number.name
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            ended = "hung"
    killed = ended == "SIGKILL"
    wanted = {"before the signal": (0,), "hung": ()}.get(ended, (-number, 0) if killed else (128 + number, 0, -number))
    wrong = faults(folder, peace, killed) + ([] if process.returncode in wanted else [f"exit code {process.returncode}"])
    left = [name for name in os.listdir(folder) if name.endswith(".tmp")]
    counts[ended] += 1
    counts["left by SIGKILL"] += len(left)
    if killed and not os.path.exists(os.path.join(folder, "out")):
        if start(job, folder).wait():
            wrong.append("the next run failed")
        wrong += faults(folder, peace, False)
        if sorted(os.listdir(folder)) != sorted(os.listdir(peace)):
            wrong.append("the next run leaves something else than an undisturbed one")
    if wrong:
        failed += 1
        print(f"moment {moment}: {job}, {ended} after {part:.0%}: {', '.join(wrong)}", flush=True)
    shutil.rmtree(folder)
shutil.rmtree(top)
print(f"{args.moments} moments: {dict(counts)}; wrong: {failed}")
sys.exit(1 if failed else 0)
