#!/usr/bin/env python3
"""Keeps docs/results.md and the figures behind it, docs/results/*.json, one file a table.

    tools/headlines.py                                    runs the headlines of the CPU again and prints them beside what is written:
                                                          a few minutes on 2 cores (quill-26m's search: 15 more)
    tools/headlines.py --device cuda --fidelio build-cuda/fidelio
    tools/headlines.py --only quill-1m                    those whose name begins so
    tools/headlines.py --only quill-1m --record           writes what was measured into docs/results/headlines.json and the page
    tools/headlines.py --model FOLDER                     the same figures of another model, beside nothing
    tools/headlines.py --show real-models-speed           prints a table with its command, machine, date and commit
    tools/headlines.py --write                            writes docs/results.md from the files
    tools/headlines.py --check                            says what is wrong with a file, and whether the page is what the files give

A file has the keys of KEYS; its rows are lists as long as its columns, written as one reads them ("0.989 [0.988, 0.990]").
A headline's row says by how much it may differ: other kernels, other phases of a machine's memory. Exit code 1 if a headline
differs by more, or a check fails. Standard library only."""
import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time

ROOT = os.path.relpath(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DATA = os.path.join(ROOT, "docs", "results")
PAGE = os.path.join(ROOT, "docs", "results.md")
HEADLINES = os.path.join(DATA, "headlines.json")
MOST_LINES = 200  # of the page

KEYS = {  # of a file
    "title": str, "section": str, "says": str, "command": str, "machine": str, "commit": str, "date": str, "columns": list, "rows": list}
OPTIONAL = {"shown": bool,  # the page has the whole table, and not a row of it alone
            "since": str}   # what has come since and moves the figures
SECTIONS = [
    "Headlines", "Real models", "Certificates", "Correctness, exports and sources", "Formats and quantisers", "Search and allocation (SLQ)",
    "Vector codes (SCVQ)", "Tuning", "Tasks", "Drafts and views (QSpec)", "Speed on a CPU", "Speed on a GPU", "Serving, mixtures, robustness, builds"]
LEAD = """# Results

`tools/headlines.py --write` writes this page from the files in [results/](results), one a table, and `./do lint` checks that it
is what they give. A file holds the command that makes its figures, the machine, the commit that wrote them (the program is no
newer) and the rows; `tools/headlines.py --show NAME` prints one. Speeds are ratios against a peer or a measured roofline of one
interleaved run: compare ratios, not absolute values. EAR is the overlap of next-token distributions, KL is in nats a token, and a
bracket behind a figure is its 95% interval. A † marks a table whose figures a later change moves; its file says which. "quill-1m"
and "quill-26m" are the bundled models, "a llama-3-8b shape" has that model's shapes and random weights. Bits are bits a parameter
of the whole file unless a column says otherwise.
"""


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def save(path, table):
    """Writes a table with a line for each row, so that a change of one figure is a change of one line."""
    text = json.dumps({key: value for key, value in table.items() if key not in ("columns", "rows")}, indent=1, ensure_ascii=False)[:-2]
    text += ',\n "columns": ' + json.dumps(table["columns"], ensure_ascii=False) + ',\n "rows": [\n'
    text += ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in table["rows"]) + "\n ]\n}\n"
    with open(path + ".tmp", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".tmp", path)


def tables():
    """All tables by name, in the order of sections and names."""
    names = sorted(name[:-5] for name in os.listdir(DATA) if name.endswith(".json"))
    found = {name: load(os.path.join(DATA, name + ".json")) for name in names}
    place = {section: at for at, section in enumerate(SECTIONS)}
    return dict(sorted(found.items(), key=lambda item: (place.get(item[1].get("section"), len(place)), item[0])))


def markdown(columns, rows):
    return ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)] + \
        ["| " + " | ".join(row) + " |" for row in rows]


def said(table):
    return table["says"] + (" †" if "since" in table else "")


def page(all_tables):
    """The text of docs/results.md."""
    lines = LEAD.split("\n")
    for section in SECTIONS:
        here = {name: table for name, table in all_tables.items() if table["section"] == section}
        lines += [f"## {section}"]
        for name, table in here.items():
            if table.get("shown"):
                lines += [f"[{table['title']}](results/{name}.json).", said(table), "", *markdown(table["columns"], table["rows"]), ""]
        rest = {name: table for name, table in here.items() if not table.get("shown")}
        if rest:
            lines += markdown(["table", "what it says"], [[f"[{table['title']}](results/{name}.json)", said(table)] for name, table in rest.items()]) + [""]
    return "\n".join(lines).rstrip("\n") + "\n"


def faults_of(name, table):
    for key, kind in KEYS.items():
        if not isinstance(table.get(key), kind) or not table[key]:
            yield f"docs/results/{name}.json: it wants {key}, a {kind.__name__} that is not empty"
            return
    for key in sorted(set(table) - set(KEYS)):
        if key not in OPTIONAL or not isinstance(table[key], OPTIONAL[key]):
            yield f"docs/results/{name}.json: nobody reads {key} of this kind"
    if table["section"] not in SECTIONS:
        yield f"docs/results/{name}.json: there is no section \"{table['section']}\" (SECTIONS in tools/headlines.py)"
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", table["date"]) or not re.fullmatch(r"[0-9a-f]{7,40}", table["commit"]):
        yield f"docs/results/{name}.json: date wants YYYY-MM-DD and commit a hash, not \"{table['date']}\" and \"{table['commit']}\""
    for row in table["rows"]:
        if len(row) != len(table["columns"]) or not all(isinstance(cell, str) and "|" not in cell for cell in row):
            yield f"docs/results/{name}.json: a row wants {len(table['columns'])} texts without |, not {row}"


def faults():
    """What is wrong with the data files and the page: nothing, or messages."""
    all_tables = tables()
    found = [fault for name, table in all_tables.items() for fault in faults_of(name, table)]
    if found:
        return found
    text = page(all_tables)
    with open(PAGE, encoding="utf-8") as file:
        if file.read() != text:
            found.append("docs/results.md: it is not what docs/results/*.json give: tools/headlines.py --write")
    measured = {name for device in ("cpu", "cuda") for name in Bench(argparse.Namespace(model=None, models="", device=device, threads=0), "").headlines()}
    found += [f"docs/results/headlines.json: nothing measures \"{row[0]}\" (Bench.headlines in tools/headlines.py)"
              for row in all_tables["headlines"]["rows"] if row[0] not in measured]
    if text.count("\n") > MOST_LINES:
        found.append(f"docs/results.md: {text.count(chr(10))} lines, at most {MOST_LINES}")
    return found


def write_page():
    with open(PAGE + ".tmp", "w", encoding="utf-8") as file:
        file.write(page(tables()))
    os.replace(PAGE + ".tmp", PAGE)


class Bench:
    """Runs the program and remembers what it said: the same command is run once."""

    def __init__(self, args, work):
        self.args, self.work, self.made = args, work, {}
        self.device = ["--device", args.device, *(["--threads", str(args.threads)] if args.threads else [])]

    def models(self, *parts):
        return os.path.join(self.args.models, *parts)

    def fidelio(self, *argv):
        """What the verb writes with --json."""
        if argv not in self.made:
            done = subprocess.run([self.args.fidelio, *argv, "--json", "-"], capture_output=True, text=True)
            if done.returncode != 0:
                raise RuntimeError(done.stderr.strip()[-400:])
            self.made[argv] = json.loads(done.stdout)
        return self.made[argv]

    def compressed(self, model, ear, *more):
        """The report of a compression to an EAR, and its folder."""
        out = os.path.join(self.work, f"{os.path.basename(os.path.normpath(model))}-{ear}")
        report = out + ".json"
        if os.path.exists(out) and os.path.exists(report):  # of an earlier run with --work
            return load(report), out
        found = self.fidelio("compress", model, "--ear", ear, "-o", out, *self.device, *more)
        with open(report, "w", encoding="utf-8") as file:
            json.dump(found, file)
        return found, out

    def bits(self, model, ear, *more):
        return lambda: self.compressed(model, ear, *more)[0]["bits_per_parameter"]

    def ear(self, model, target, *more):
        return lambda: self.compressed(model, target, *more)[0]["certificate"]["promised"]["ear"]["value"]

    def over_bf16(self, model, target, *more):
        """Tokens a second of the plan over those of the model itself, in turns."""
        def run():
            out = self.compressed(model, target, *more)[1]
            rates = []
            for _ in range(3):
                bench = subprocess.run([self.args.fidelio, "bench", "model", model, out, "--pp", "0", "--tg", "128", *self.device, "--json", "-"],
                                       capture_output=True, text=True, check=True)
                rows = json.loads(bench.stdout)["rows"]
                rates.append(rows[1]["tokens_per_second"] / rows[0]["tokens_per_second"])
            return sorted(rates)[1]
        return run

    def perplexity(self, model, context):
        return lambda: self.fidelio("eval", self.models(model), "--text", self.models("data/docs-heldout.txt"), "--context", context,
                                    "--activations", "f32", *self.device)["perplexity"]["value"]

    def kl_of(self, name):
        """The KL of quill-26m in one format, as served, on the 40 windows that tables of peers use."""
        def run():
            out = os.path.join(self.work, "quill-26m-" + name)
            if not os.path.exists(out):
                self.fidelio("quantize", self.models("quill-26m"), "--format", name, "--embedding", "int6g64zs8", "--calibration",
                             self.models("data/docs-calibration.txt"), "--calibration-tokens", "131072", "-o", out, *self.device)
            return self.fidelio("eval", out, "--reference", self.models("quill-26m"), "--text", self.models("data/docs-heldout.txt"),
                                "--context", "512", "--windows", "40", *self.device)["kl"]["value"]
        return run

    def decode(self, name):
        """Tokens a second of a llama-3-8b shape of random weights, one sequence at 512 positions."""
        def run():
            bench = self.args.decode_bench or os.path.join(os.path.dirname(self.args.fidelio), "decode_cuda_bench")
            text = subprocess.run([bench, name, "1", "512"], capture_output=True, text=True, check=True).stdout
            return float(re.findall(r"([\d.]+) tokens/s, weights", text)[0])
        return run

    def headlines(self):
        """What measures each headline of the device, by its name in docs/results/headlines.json."""
        if self.args.model:
            return {"bits at EAR .98": self.bits(self.args.model, "0.98"), "EAR at EAR .98": self.ear(self.args.model, "0.98"),
                    "tokens/s over BF16": self.over_bf16(self.args.model, "0.98")}
        on_gpu = self.args.device != "cpu"
        small, large = self.models("quill-1m"), self.models("quill-26m")
        portable = [] if on_gpu else ["--isa", "avx2"]  # the same bytes on every machine that has it
        cpu = {
            "quill-1m, perplexity": self.perplexity("quill-1m", "512"),
            "quill-1m at EAR .98, bits": self.bits(small, "0.98", *portable),
            "quill-1m at EAR .98, EAR": self.ear(small, "0.98", *portable),
            "quill-1m at EAR .98, tokens/s over BF16": self.over_bf16(small, "0.98", *portable),
            "quill-26m, perplexity": self.perplexity("quill-26m", "1024"),
            "quill-26m in int4g64zs8, KL": self.kl_of("int4g64zs8"),
            "quill-26m at EAR .99, bits": self.bits(large, "0.99"),
            "quill-26m at EAR .99, EAR": self.ear(large, "0.99"),
            "quill-26m at EAR .99, tokens/s over BF16": self.over_bf16(large, "0.99"),
        }
        if not on_gpu:
            return cpu
        gpu = {name + ", GPU": run for name, run in cpu.items() if name.startswith("quill-26m") and "perplexity" not in name}
        return gpu | {"llama-3-8b shape in int4g128z, tokens/s, GPU": self.decode("int4g128z"),
                      "llama-3-8b shape in BF16, tokens/s, GPU": self.decode("bf16")}


def record(measured):
    """Puts measured figures in the place of the written ones, with as many digits."""
    table = load(HEADLINES)
    for row in table["rows"]:
        if row[0] in measured:
            row[1] = f"{measured[row[0]]:.{len(row[1].partition('.')[2])}f}"
    table["date"] = datetime.date.today().isoformat()
    table["commit"] = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()
    save(HEADLINES, table)
    write_page()


def run_again(args, work):
    """Measures and compares; the number of headlines that differ or could not be run."""
    written = {row[0]: (float(row[1].replace(",", "")), float(row[2])) for row in load(HEADLINES)["rows"]}
    print("| headline | written | measured | differs by | may by | |\n|---|---|---|---|---|---|", flush=True)
    wrong, measured = 0, {}
    for name, run in Bench(args, work).headlines().items():
        if args.only and not name.startswith(tuple(args.only.split(","))):
            continue
        begin = time.time()
        try:
            value = measured[name] = run()
        except (RuntimeError, subprocess.CalledProcessError, OSError) as error:
            print(f"| {name} | | | | | not run: {str(error)[-200:]} |", flush=True)
            wrong += 1
            continue
        if args.model or name not in written:
            print(f"| {name} | – | {value:.6g} | | | {time.time() - begin:.0f} s |", flush=True)
            continue
        was, noise = written[name]
        differs = abs(value - was) > noise
        wrong += differs
        print(f"| {name} | {was:g} | {value:.6g} | {value - was:+.3g} | {noise:g} | {'DIFFERS' if differs else 'holds'}, {time.time() - begin:.0f} s |", flush=True)
    if args.record:
        record(measured)
    return wrong


def show(name):
    """Prints one table with what made it."""
    path = os.path.join(DATA, name + ".json")
    if not os.path.exists(path):
        print(f"there is no table {name}; there are: {', '.join(tables())}", file=sys.stderr)
        return 1
    table = load(path)
    print("\n".join([f"{table['title']}: {table['says']}", f"by: {table['command']}", f"on: {table['machine']}, {table['date']}, commit {table['commit']}",
                     *([f"since then: {table['since']}"] if "since" in table else []), "",
                     *markdown(table["columns"], table["rows"])]))
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fidelio", default=os.path.join(ROOT, "build", "fidelio"))
    parser.add_argument("--decode-bench", help="decode_cuda_bench (default: beside fidelio)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--only", default="", help="names that begin with one of these, comma-separated")
    parser.add_argument("--models", default=os.path.join(ROOT, "models"), help="folder of quill-1m, quill-26m and data")
    parser.add_argument("--model", help="another model: its bits, EAR and speed at .98")
    parser.add_argument("--work", help="keeps the models that are made (default: a folder that is removed)")
    parser.add_argument("--record", action="store_true", help="writes what was measured into docs/results/headlines.json and the page")
    parser.add_argument("--show", metavar="NAME", help="prints the table docs/results/NAME.json")
    parser.add_argument("--write", action="store_true", help="writes docs/results.md")
    parser.add_argument("--check", action="store_true", help="checks docs/results.md and its files")
    args = parser.parse_args()
    if args.record and args.model:
        parser.error("--record wants the bundled models, not --model")
    if args.show:
        return show(args.show)
    if args.write:
        write_page()
    if args.write or args.check:
        found = faults()
        print("\n".join(found) if found else "docs/results.md is what docs/results/*.json give")
        return bool(found)
    if args.work:
        os.makedirs(args.work, exist_ok=True)
        return bool(run_again(args, args.work))
    with tempfile.TemporaryDirectory() as work:
        return bool(run_again(args, work))


if __name__ == "__main__":
    sys.exit(main())
