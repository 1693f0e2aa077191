#!/usr/bin/env python3
"""Calibration of the certificate by simulation: how often its statements are wrong, of populations whose truth is known.

    tools/check_certificate.py coverage  [measured.json ...] [--documents 28] [--trial 14] [--repeats 1000]
    tools/check_certificate.py procedure [measured.json ...] [--target 0.98] [--step 0.05] [--repeats 1000]

`measured.json` is what `fidelio certify --json` wrote, or `fidelio eval --reference --json` over many texts, each a document whose
folder is its domain (`--text docs/1.txt --text prose/1.txt ...`); its documents are a population. A report of one text is cut into
passages of 12 windows, as `compress` cuts a text that stands alone, and passages are drawn as contiguous stretches. Without a file the
populations are made: documents with lognormal losses, all of one sort, or a few of them losing several times as much.

`coverage` draws the documents of a certificate, makes the program's own intervals (the driver beside
this file, built here against build/), and counts: the truth is worse than the promised end (2.5% is stated), or better than the other;
of the mean and of one document more; of some domain of all; of the worst domain. `before` is each domain's interval by its own documents.

`procedure` runs whole searches on a ladder of plans whose loss rises by 2 to the power of `--step` from one to the next, while each
document's own part in it changes from plan to plan as much as was measured between plans (`--noise`, `--kept`). The plan that is
foreseen to hold and smaller ones are tested at 2.25%, larger ones, where it fails, at .25%. It counts runs that certify a plan below the
target, and runs whose printed lower end is above the truth. `before` is up to four tests at falling levels.

A document's values do not depend on what else is measured (a law that is tested), so that a repeat is what certifying on those documents
would have given."""
import argparse
import json
import os
import random
import subprocess
import tempfile

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("mode", choices=("coverage", "procedure"))
parser.add_argument("measured", nargs="*", help="several are one population")
parser.add_argument("--documents", default="28", help="of a domain in the certificate; several numbers by commas")
parser.add_argument("--trial", type=int, default=14, help="of a domain where plans are tried")
parser.add_argument("--confidence", type=float, default=0.95)
parser.add_argument("--repeats", type=int, default=1000)
parser.add_argument("--target", type=float, default=0.98)
parser.add_argument("--step", type=float, default=0.05, help="bits between two plans of the ladder")
parser.add_argument("--plans", type=int, default=40)
parser.add_argument("--larger", default="1,0.25,0.1", help="bits by which the plans are larger that are tested where the one foreseen to hold fails")
parser.add_argument("--noise", type=float, default=0.025, help="deviation of a document's log loss under one plan from its own")
parser.add_argument("--kept", type=float, default=0.5, help="share of that which the next plan keeps")
parser.add_argument("--only", default="", help="populations whose name has this in it")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

WINDOWS_OF_PASSAGE = 12
rng = random.Random(args.seed)


def build_driver():
    driver = os.path.join(tempfile.mkdtemp(), "driver")
    here = os.path.dirname(os.path.abspath(__file__))
    sources = [f"{here}/../src/eval/statistics/{name}.cc" for name in ("clusters", "pool", "statistics")]
    subprocess.run(
        ["c++", "-std=c++20", "-O2", "-DFMT_SHARED", f"-I{here}/../src", f"{here}/check_certificate_driver.cc"]
        + sources
        + [f"{here}/../src/eval/fidelity/domains.cc", f"{here}/../build/libfidelio_core.a", "-lfmt", "-lcrypto", "-lspdlog", "-o", driver],
        check=True,
    )
    return driver


def member(tokens, kl, loss):
    return {"tokens": tokens, "kl": [kl], "loss": [loss]}


def passages_of(windows):
    blocks = [windows[i : i + WINDOWS_OF_PASSAGE] for i in range(0, len(windows), WINDOWS_OF_PASSAGE)]
    return [member(*(sum(w[key] for w in block) for key in ("tokens", "kl", "loss"))) for block in blocks if len(block) == WINDOWS_OF_PASSAGE]


def read_measured(paths):
    """The population of some measurements, and whether its members are passages in their order."""
    population = {}
    for path in paths:
        report = json.load(open(path))
        if "documents" in report:
            for d in report["documents"]:
                one = member(d["tokens"], d["kl"] * d["tokens"], (1 - d["ear"]) * d["tokens"])
                population.setdefault(d["domain"], []).append(one)
            continue
        windows = {}
        for w in report["windows"]:
            windows.setdefault(w["text"], []).append({"tokens": w["tokens"], "kl": w["kl"], "loss": w["tokens"] - w["ear"]})
        if len(windows) == 1:
            return {"passages": passages_of(windows[0])}, True
        for text, own in windows.items():
            domain = os.path.basename(os.path.dirname(report["texts"][text]["name"])) or "text"
            population.setdefault(domain, []).append(member(*(sum(w[key] for w in own) for key in ("tokens", "kl", "loss"))))
    return population, False


def made(spread, share=0.0, times=1.0, domains=("a", "b", "c", "d"), documents=3000):
    population = {}
    for domain in domains:
        for _ in range(documents):
            tokens = rng.randrange(1000, 2000)
            loss = 0.02 * rng.lognormvariate(0, spread) * (times if rng.random() < share else 1)
            population.setdefault(domain, []).append(member(tokens, tokens * (2 * loss) ** 2, tokens * loss))
    return population


def populations():
    if args.measured:
        population, contiguous = read_measured(args.measured)
        return [("measured", population, contiguous)]
    all = [
        ("documents alike, deviation .1", made(0.1), False),
        ("documents alike, deviation .3", made(0.3), False),
        ("documents alike, deviation .6", made(0.6), False),
        ("5% lose 2 times", made(0.1, 0.05, 2), False),
        ("5% lose 3 times", made(0.1, 0.05, 3), False),
        ("2% lose 8 times", made(0.1, 0.02, 8), False),
        ("5% of one domain lose 3 times", {**made(0.1, domains=("b", "c", "d")), **made(0.1, 0.05, 3, ("a",))}, False),
        ("one domain, deviation .1", made(0.1, domains=("a",)), False),
        ("one domain, 5% lose 3 times", made(0.1, 0.05, 3, ("a",)), False),
        ("one domain, 2% lose 8 times", made(0.1, 0.02, 8, ("a",)), False),
    ]
    return [p for p in all if args.only in p[0]]


def ladder_of(population):
    """The same documents under every plan; the worst domain meets the target a little beyond the middle of the ladder."""
    loss = max(sum(m["loss"][0] for m in members) / sum(m["tokens"] for m in members) for members in population.values())
    scale = (1 - args.target) / loss * 2 ** (-args.step * (args.plans * 0.6 + rng.random()))
    ladder = {}
    for domain, members in population.items():
        for m in members:
            own, losses = rng.gauss(0, args.noise), []
            for plan in range(args.plans):
                losses.append(m["loss"][0] * scale * 2 ** (args.step * plan + own / 0.6931471805599453))
                own = args.kept * own + (1 - args.kept**2) ** 0.5 * rng.gauss(0, args.noise)
            ladder.setdefault(domain, []).append({"tokens": m["tokens"], "kl": [0] * args.plans, "loss": losses})
    return ladder


driver = build_driver()


def ask(population, contiguous, documents):
    request = {key: getattr(args, key) for key in ("mode", "trial", "repeats", "confidence", "target", "step", "plans", "seed")}
    request["larger"] = [round(float(bits) / args.step) for bits in args.larger.split(",")]
    request |= {"population": population, "contiguous": contiguous, "documents": documents}
    out = subprocess.run([driver], input=json.dumps(request), stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads(out)


def percent(share):
    return f"{100 * share:.1f}"


def print_coverage(name, documents, answer):
    for way, a in answer.items():
        for figure, title in (("ear", "1 - EAR"), ("kl", "KL")):
            for domain, f in a["domains"].items():
                mean, new = f[figure], f[f"document {figure}"]
                print(
                    f"| {name} | {domain} | {title} | {documents} | {way} | {percent(mean['promised'])}, {percent(mean['other'])} | "
                    f"{mean['width']:.3f} | {percent(new['promised'])}, {percent(new['other'])} | {new['width']:.3f} |"
                )
        print(f"| {name} | all | 1 - EAR | {documents} | {way} | some {percent(a['some mean'])}, the worst {percent(a['worst'])} | | some {percent(a['some document'])} | |", flush=True)


def print_procedure(name, documents, answer):
    for way, a in answer.items():
        print(
            f"| {name} | {documents} | {way} | {percent(a['certified'])} | {percent(a['below'])} | {percent(a['end wrong'])} | "
            f"{a['by']:.5f}, {a['by at most']:.5f} | {a['tests']:.1f} | {a['larger']:.3f} |",
            flush=True,
        )


if args.mode == "coverage":
    print("| population | domain | figure | documents | intervals | mean wrong: promised side, other (%) | width | new document wrong (%) | width |")
    print("|---|---|---|---|---|---|---|---|---|")
else:
    print("| population | documents | procedure | certified (%) | below target (%) | printed end wrong (%) | by: median, most | tests | bits above the best |")
    print("|---|---|---|---|---|---|---|---|---|")
for name, population, contiguous in populations():
    for documents in map(int, args.documents.split(",")):
        answer = ask(ladder_of(population) if args.mode == "procedure" else population, contiguous, documents)
        (print_coverage if args.mode == "coverage" else print_procedure)(name, documents, answer)
