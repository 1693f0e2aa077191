#!/usr/bin/env python3
"""The paper's permutation games beside tables that cost a hundredth: what their plans are worth at equal bytes.

    tools/study_games.py models/quill-26m --work DIR [--device cuda] [--jobs 6] [--until SECONDS] [--permutations 8,32] [--seeds 0,1,2]

Ways: `single`, `every`, `linear`, and for every number of permutations and seed `shapley` and `unified`; candidates int{4..8}g64zs8 and
int{2..8}g64zs8. Shapley plays one game a format, so its table of {4..8} is that of {2..8} without the columns of 2 and 3 bits; a walk of
`unified` mixes all formats and is played for each set. Each table is allocated to each of --bits (of the whole file), the plan built for
itself and measured on text that no table has seen (its certificate's).

Candidates are quantised once a set: the first run (`every`) is interrupted when its table stands, and all others begin with its
journal. Each table and each plan is a report in DIR; what is there is not run again, and nothing is begun after --until seconds.
Ends with Markdown: KL of the plans; what values differ by from seed to seed, and the errors they state, as shares of what a group costs
alone; and the games that are saturated: their groups alone lose more than there is to lose, the sum of their 1 - EAR passing 1.
Standard library only."""
import argparse
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

root = os.path.relpath(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
mine, passed = (sys.argv[1:], []) if "--" not in sys.argv else (sys.argv[1:sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1:])
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model")
parser.add_argument("--work", required=True)
parser.add_argument("--fidelio", default=os.path.join(root, "build", "fidelio"))
parser.add_argument("--bits", default="4.7,5.2", help="sizes of the plans")
parser.add_argument("--widths", default="4-8,2-8", help="sets of widths; one that begins lower holds those that begin higher")
parser.add_argument("--permutations", default="8,32")
parser.add_argument("--seeds", default="0,1,2")
parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
parser.add_argument("--threads", type=int, default=1, help="of each run")
parser.add_argument("--device", default="cpu")
parser.add_argument("--until", type=float, default=math.inf)
args = parser.parse_args(mine)
started = time.time()
os.makedirs(args.work, exist_ok=True)
budgets, permutations, seeds = args.bits.split(","), [int(p) for p in args.permutations.split(",")], [int(s) for s in args.seeds.split(",")]
sets = sorted(args.widths.split(","))  # the widest first


def formats(widths):
    low, high = map(int, widths.split("-"))
    return [f"int{b}g64zs8" for b in range(low, high + 1)]


def at(*parts):
    return os.path.join(args.work, *parts)


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def command(widths, out, *options):
    return [args.fidelio, "compress", args.model, *options, "--formats", *formats(widths), "--device", args.device, "--threads", str(args.threads), "--progress", "none", "-o", out, *passed]


def lend(widths, out):
    """The candidates' journal, as a run that was interrupted would have left it at `out`. Its files are replaced, never written into."""
    shutil.rmtree(out + ".journal", ignore_errors=True)
    os.mkdir(out + ".journal")
    for file in os.listdir(at("candidates-" + widths)):
        os.link(at("candidates-" + widths, file), os.path.join(out + ".journal", file))


def make_candidates(widths):
    """Candidates, every format everywhere, and the table of `every`; interrupted before its plan."""
    if os.path.exists(at("candidates-" + widths)):
        return
    table, out = at(f"{widths}.every.table.json"), at(f"{widths}.begun")
    with open(at(f"{widths}.log"), "w", encoding="utf-8") as log:
        process = subprocess.Popen(command(widths, out, "--bits", budgets[0], "--method", "every", "--table", table), stdout=log, stderr=log)
        while process.poll() is None and not os.path.exists(table):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.wait()
    if not os.path.exists(table):
        sys.exit(open(at(f"{widths}.log"), encoding="utf-8").read()[-1000:])
    os.rename(out + ".journal", at("candidates-" + widths))


def run(widths, name, *options):
    """The report of a run that begins with the candidates; none if it failed or is too late."""
    kept = at(f"{widths}.{name}.json")
    if not os.path.exists(kept):
        if time.time() - started > args.until:
            return None
        out, begin = at(f"{widths}.{name}"), time.time()
        shutil.rmtree(out, ignore_errors=True)
        lend(widths, out)
        done = subprocess.run(command(widths, out, *options, "--json", kept + ".part"), capture_output=True, text=True)
        shutil.rmtree(out, ignore_errors=True)
        if done.returncode != 0:
            print(f"{widths} {name}: {done.stderr.strip()[-300:]}", flush=True)
            return None
        os.rename(kept + ".part", kept)
        print(f"[{time.time() - started:.0f} s] {widths} {name}: {time.time() - begin:.0f} s", flush=True)
    return read(kept)


def ways():
    """(name, options), the ones that say most first."""
    yield from ((m, ["--method", m]) for m in ("single", "every", "linear"))
    for p in permutations:
        for s in seeds:
            for m in ("shapley", "unified"):
                yield f"{m}-{p}-{s}", ["--method", m, "--permutations", str(p), "--seed", str(s)]


def table_of(widths, name):
    return at(f"{widths}.{name}.table.json")


def narrowed(widths, name):
    """The table of a set out of that of a wider one, where games are played by format."""
    if not os.path.exists(table_of(sets[0], name)):
        return
    table = read(table_of(sets[0], name))
    for group in table["groups"]:
        group["options"] = [o for o in group["options"] if o["format"] in formats(widths) or not o["format"].startswith("int")]
    with open(table_of(widths, name), "w", encoding="utf-8") as file:
        json.dump(table, file)


def measure(job):
    widths, name, options = job
    if name.startswith("shapley") and widths != sets[0]:
        return
    run(widths, f"{name}@{budgets[0]}", "--bits", budgets[0], *options, "--table", table_of(widths, name))


def allocate(job):
    widths, name, bits = job
    if os.path.exists(table_of(widths, name)):
        run(widths, f"{name}@{bits}", "--bits", bits, "--from-table", table_of(widths, name))


def all_reports():
    """{(widths, way, bits): report} of what there is."""
    found = {}
    for widths in sets:
        for name, _ in ways():
            for bits in budgets:
                path = at(f"{widths}.{name}@{bits}.json")
                if os.path.exists(path):
                    found[widths, name, bits] = read(path)
    return found


def families():
    """Ways whose rows are one: (label, names)."""
    yield from ((m, [m]) for m in ("single", "every", "linear"))
    for m in ("shapley", "unified"):
        for p in permutations:
            yield f"{m}, {p} permutations", [f"{m}-{p}-{s}" for s in seeds]


def over_seeds(values, digits):
    if not values:
        return "–"
    mean = sum(values) / len(values)
    return f"{mean:.{digits}f}" + (f" [{min(values):.{digits}f}, {max(values):.{digits}f}]" if len(values) > 1 else "")


def plans_table(found):
    print("\n| candidates | way | measurements | seconds |" + "".join(f" KL at {b} bits | of single's at {b} |" for b in budgets) + "\n" + "|---" * (4 + 2 * len(budgets)) + "|")
    for widths in sets:
        for label, names in families():
            tables = [read(table_of(widths, n)) for n in names if os.path.exists(table_of(widths, n))]
            if not tables:
                continue
            taken = [found[widths, n, budgets[0]]["seconds"]["sensitivities"]["wall"] for n in names if (widths, n, budgets[0]) in found]
            borrowed = widths != sets[0] and label.startswith("shapley")
            cells = [widths.replace("-", ".."), label, str(tables[0]["provenance"]["passes"]), f"as {sets[0].replace('-', '..')}" if borrowed else over_seeds(taken, 1) if label != "every" else "–"]
            for bits in budgets:
                kls = [found[widths, n, bits]["certificate"]["kl"]["value"] for n in names if (widths, n, bits) in found]
                single = found.get((widths, "single", bits))
                cells += [over_seeds(kls, 5), over_seeds([k / single["certificate"]["kl"]["value"] for k in kls], 3) if single else "–"]
            print("| " + " | ".join(cells) + " |")


def values_of(table, wanted):
    """{group: (KL, its standard error)} in a format."""
    return {g["name"]: (o["kl"], o["kl_se"]) for g in table["groups"] for o in g["options"] if o["format"] == wanted}


def rms(values):
    return math.sqrt(sum(v * v for v in values) / len(values)) if values else math.nan


def spread_table():
    """How good the games' values are: what seeds differ by, and the errors they state."""
    print("\n| candidates | way |" + "".join(f" `{f}` |" for f in formats(sets[0])[:-1]) + "\n|---|---" + "|---" * (len(formats(sets[0])) - 1) + "|")
    for widths in sets:
        for label, names in families():
            tables = [read(table_of(widths, n)) for n in names if os.path.exists(table_of(widths, n))]
            if "permutations" not in label or len(tables) < 2 or (widths != sets[0] and label.startswith("shapley")):
                continue
            cells = [widths.replace("-", ".."), label]
            for name in formats(sets[0])[:-1]:
                alone, each = values_of(read(table_of(sets[0], "every")), name), [values_of(t, name) for t in tables]
                groups = [g for g in each[0] if alone[g][0] > 0]
                mean = {g: sum(e[g][0] for e in each) / len(each) for g in groups}
                seen = rms([(e[g][0] - mean[g]) / alone[g][0] for e in each for g in groups]) * math.sqrt(len(each) / (len(each) - 1))
                cells.append(f"{seen:.3f}, {rms([e[g][1] / alone[g][0] for e in each for g in groups]):.3f}" if groups else "–")
            print("| " + " | ".join(cells) + " |")


def saturated_table():
    """All groups in a format together, beside the sum of what each costs alone."""
    log = open(at(f"{sets[0]}.log"), encoding="utf-8").read()
    uniform = {m[1]: (float(m[2]), 1 - float(m[3])) for m in re.finditer(r"^uniform (\S+)\s+KL ([\d.]+)\s+EAR ([\d.]+)", log, re.M)}
    every = read(table_of(sets[0], "every"))
    games = [read(table_of(sets[0], n)) for n in (f"shapley-{permutations[-1]}-{s}" for s in seeds) if os.path.exists(table_of(sets[0], n))]
    print("\n| game | KL together | sum of alone | together / sum | 1 - EAR together | sum of alone | together / sum | saturated | Shapley value below half of alone |\n|---|---|---|---|---|---|---|---|---|")
    for name in formats(sets[0]):
        options = [o for g in every["groups"] for o in g["options"] if o["format"] == name]
        alone, each = values_of(every, name), [values_of(t, name) for t in games]
        kl, loss = sum(o["kl"] for o in options), sum(o["loss"] for o in options)
        ratio = sorted((sum(e[g][0] for e in each) / len(each) / alone[g][0], g) for g in alone if alone[g][0] > 0) if each else []
        low = ", ".join(f"`{g}` {r:.2f}" for r, g in ratio if r < 0.5) if name != formats(sets[0])[-1] else ""
        together = uniform[name]
        print(f"| `{name}` | {together[0]:.5f} | {kl:.5f} | {together[0] / kl:.2f} | {together[1]:.4f} | {loss:.4f} | {together[1] / loss:.2f} | {'yes' if loss > 1 else 'no'} | {low or '–'} |")


def main():
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(make_candidates, sets))
        for few in [["single", "every", "linear"], *([f"{m}-{p}-{s}" for s in seeds for m in ("shapley", "unified")] for p in permutations)]:
            list(pool.map(measure, [(w, name, options) for name, options in ways() if name in few for w in sets]))
            for name in few:
                for widths in sets[1:] if name.startswith("shapley") else []:
                    narrowed(widths, name)
            list(pool.map(allocate, [(w, name, bits) for name in few for w in sets for bits in budgets]))
    plans_table(all_reports())
    spread_table()
    saturated_table()


main()
