#!/usr/bin/env python3
"""Keeps docs/papers.md: every table and figure of the three papers beside what this repository has measured.

    tools/papers.py --write              writes docs/papers.md from docs/papers.json and the files of docs/results
    tools/papers.py --check              says what is wrong with a row, and whether the page is what the files give
    tools/papers.py --texts FOLDER       checks the rows against the papers themselves (slq.txt, scvq.txt, qspec.txt): the tables and
                                         figures that they have, and that each figure which a row ascribes to a paper stands there

A row of docs/papers.json has the keys of KEYS. {FILE|ROW|COLUMN} in a text is a cell of docs/results/FILE.json: ROW names cells of
the row, joined by " & ", that no other row has, and COLUMN begins the name of its column; {FILE|ROW|COLUMN|2} is the second part of
a cell that holds several. A figure that is written out must stand in one of the row's files. A departure names the file that
departs, which must speak of the paper. Standard library only."""
import argparse
import glob
import json
import os
import re
import sys

import headlines

ROOT = headlines.ROOT
ROWS = os.path.join(ROOT, "docs", "papers.json")
PAGE = os.path.join(ROOT, "docs", "papers.md")
PAPERS = {"SLQ": (23, 8), "SCVQ": (16, 5), "QSpec": (11, 7)}  # tables and figures
VERDICTS = ["reproduced", "in part", "contradicted", "not applicable", "not measured"]
MEASURED = VERDICTS[:3]
KEYS = {  # of a row
    "is": str,         # "SLQ table 1"
    "shows": str,      # what the paper shows
    "files": list,     # names in docs/results that the row rests on or points to
    "by": str,         # a command, where no file is enough
    "tests": list,     # tests that hold it, as Suite.Name
    "figures": str,    # ours
    "verdict": str,
    "why": str}        # what the verdict leaves open, why there is none, or what it would take
DEPARTURE = ["paper", "writes", "ours", "why", "file"]  # keys of a departure: what the paper writes, what the program does, ..
CELL = re.compile(r"\{([^{}|]+)\|([^{}|]+)\|([^{}|]+)(?:\|(\d+))?\}")
NUMBER = re.compile(r"(?<![\w.,])[−-]?(?:\d[\d,]*\.?\d*|\.\d+)(?![\w])")
SPEAKS = {"SLQ": r"\b(?:SLQ|[Pp]aper)\b", "SCVQ": r"\b(?:SCVQ|paper)\b", "QSpec": r"\b(?:QSpec|Atom|QuaRot)\b"}  # words of a file that departs


def written():
    with open(ROWS, encoding="utf-8") as file:
        return json.load(file)


def cell(tables, found):
    """What a {FILE|ROW|COLUMN} stands for. Raises ValueError if that is not one cell."""
    name, row, column, part = found
    if name not in tables:
        raise ValueError(f"there is no docs/results/{name}.json")
    table = tables[name]
    wanted = row.split(" & ")
    rows = [cells for cells in table["rows"] if all(one in cells for one in wanted)]
    exact = [at for at, title in enumerate(table["columns"]) if title == column]
    columns = exact or [at for at, title in enumerate(table["columns"]) if title.startswith(column)]
    if len(rows) != 1 or len(columns) != 1:
        raise ValueError(f"{name}: {len(rows)} rows have \"{row}\" and {len(columns)} columns begin with \"{column}\"; one of each is wanted")
    text = rows[0][columns[0]]
    if part:
        parts = re.split(r" / |: |, (?![^\[]*\])", text)
        if int(part) not in range(1, len(parts) + 1):
            raise ValueError(f"{name}: \"{text}\" has no part {part}")
        text = parts[int(part) - 1]
    if not text:
        raise ValueError(f"{name}: the cell of \"{row}\" and \"{column}\" is empty")
    return text


def filled(tables, text):
    return CELL.sub(lambda found: cell(tables, found.groups()), text)


def counterpart(tables, row):
    links = [f"[{tables[name]['title']}](results/{name}.json)" + (" †" if "since" in tables[name] else "") for name in row.get("files", [])]
    return "; ".join(links + ([row["by"]] if "by" in row else []) + [f"`{test}`" for test in row.get("tests", [])])


def page(tables, all_rows):
    """The text of docs/papers.md."""
    counts = [[paper, *(str(sum(row["verdict"] == verdict and row["is"].split()[0] == paper for row in all_rows["rows"])) for verdict in VERDICTS)]
              for paper in PAPERS]
    lines = [*all_rows["lead"], "", *headlines.markdown(["paper", *VERDICTS], counts), ""]
    for paper in PAPERS:
        lines += [f"## {paper}", *headlines.markdown(
            ["", "what the paper shows", "our counterpart", "our figures", "verdict", "what it leaves open, why there is none, what it would take"],
            [[row["is"].partition(" ")[2], row["shows"], counterpart(tables, row), filled(tables, row.get("figures", "")), row["verdict"],
              filled(tables, row.get("why", ""))] for row in all_rows["rows"] if row["is"].split()[0] == paper]), ""]
    lines += ["## Departures", *all_rows["departures_lead"], "", *headlines.markdown(
        ["paper", "it writes", "the program does", "because", "told in"],
        [[d["paper"], d["writes"], d["ours"], d["why"], f"`{d['file']}`"] for d in all_rows["departures"]])]
    return "\n".join(lines) + "\n"


def tests_there():
    found = set()
    for path in [*glob.glob(os.path.join(ROOT, "src", "**", "*_test.cc"), recursive=True), *glob.glob(os.path.join(ROOT, "tests", "*_test.cc"))]:
        with open(path, encoding="utf-8") as file:
            found.update(".".join(names) for names in re.findall(r"^TEST(?:_F|_P)?\((\w+), *(\w+)\)", file.read(), re.M))
    return found


def unknown_figures(tables, row):
    """Figures of ours that are written out and stand in no file of the row. Whole numbers below 20 are words, and in a reason all are."""
    value = lambda number: float(number.replace(",", "").replace("−", "-").rstrip("."))
    stands = " ".join(json.dumps(tables[name], ensure_ascii=False) for name in row.get("files", []) if name in tables)
    known = {value(number) for number in NUMBER.findall(stands)}
    for key in ("figures", "why"):
        for number in NUMBER.findall(re.sub(r"`[^`]*`", "", CELL.sub("", row.get(key, "")))):
            whole = "." not in number.rstrip(".")
            if value(number) not in known and not (whole and (key == "why" or value(number) < 20)):
                yield number


def faults_of(tables, tests, row):
    for key, value in row.items():
        if key not in KEYS or not isinstance(value, KEYS[key]) or not value:
            yield f"nobody reads {key} of this kind"
    missing = [key for key in ("is", "shows", "verdict") if key not in row]
    if missing:
        yield f"it lacks {', '.join(missing)}"
        return
    if row["verdict"] not in VERDICTS:
        yield f"a verdict is one of {', '.join(VERDICTS)}, not \"{row['verdict']}\""
    elif row["verdict"] in MEASURED and not (CELL.search(row.get("figures", "")) or row.get("tests")):
        yield "a verdict from measurements wants a figure of a file or a test"
    elif row["verdict"] not in MEASURED and ("figures" in row or "why" not in row):
        yield "a row without a measurement has a reason and no figures"
    elif row["verdict"] != "reproduced" and "why" not in row:
        yield "only what is reproduced needs no reason"
    yield from (f"there is no docs/results/{name}.json" for name in row.get("files", []) if name not in tables)
    yield from (f"there is no test {name}" for name in row.get("tests", []) if name not in tests)
    for name, *rest in CELL.findall(row.get("figures", "") + row.get("why", "")):
        if name not in row.get("files", []):
            yield f"a figure is of {name}, which is not among its files"
        else:
            try:
                cell(tables, (name, *rest))
            except ValueError as error:
                yield str(error)
    yield from (f"{number} stands in none of its files" for number in unknown_figures(tables, row))
    yield from (f"| in {key}" for key, value in row.items() if isinstance(value, str) and "|" in CELL.sub("", value))


def faults_of_departure(tables, d):
    path = os.path.join(ROOT, d.get("file", ""))
    if sorted(d) != sorted(DEPARTURE) or not all(isinstance(value, str) and value and "|" not in value for value in d.values()):
        yield f"it wants {', '.join(DEPARTURE)}, as texts without |"
    elif not os.path.isfile(path):
        yield f"there is no {d['file']}"
    else:
        with open(path, encoding="utf-8") as file:
            if not re.search(SPEAKS.get(d["paper"], "$^"), file.read()):
                yield f"{d['file']} does not speak of the paper that it departs from"
        for name in re.findall(r"\bresults/([\w-]+)\.json", d["ours"] + d["why"]):
            if name not in tables:
                yield f"there is no docs/results/{name}.json"


def faults_of_rows(tables, all_rows):
    """What is wrong in docs/papers.json: nothing, or messages."""
    names, tests = [row.get("is") for row in all_rows["rows"]], tests_there()
    wanted = [f"{paper} {kind} {n}" for paper, counts in PAPERS.items() for kind, count in zip(("table", "figure"), counts) for n in range(1, count + 1)]
    found = [f"docs/papers.json: there is no row {name}" for name in wanted if name not in names]
    found += [f"docs/papers.json: {name} is no table or figure of a paper, or is there twice" for name in names if name not in wanted or names.count(name) > 1]
    if not found and names != wanted:
        found.append("docs/papers.json: rows go by paper, tables before figures, by number")
    found += [f"docs/papers.json, {row.get('is')}: {fault}" for row in all_rows["rows"] for fault in faults_of(tables, tests, row)]
    return found + [f"docs/papers.json, departure \"{d.get('writes')}\": {fault}" for d in all_rows["departures"] for fault in faults_of_departure(tables, d)]


def faults():
    """What is wrong with the rows and the page: nothing, or messages."""
    tables, all_rows = headlines.tables(), written()
    found = faults_of_rows(tables, all_rows)
    if not found:
        with open(PAGE, encoding="utf-8") as file:
            if file.read() != page(tables, all_rows):
                found.append("docs/papers.md: it is not what docs/papers.json and docs/results/*.json give: tools/papers.py --write")
    return found


def write_page():
    """Writes docs/papers.md, unless a row is wrong. Returns what is wrong."""
    tables, all_rows = headlines.tables(), written()
    found = faults_of_rows(tables, all_rows)
    if not found:
        with open(PAGE + ".tmp", "w", encoding="utf-8") as file:
            file.write(page(tables, all_rows))
        os.replace(PAGE + ".tmp", PAGE)
    return found


def faults_beside(folder):
    """What the papers' texts have and the rows have not, or the reverse."""
    all_rows = written()
    for paper, counts in PAPERS.items():
        with open(os.path.join(folder, paper.lower() + ".txt"), encoding="utf-8") as file:
            text = file.read()
        for kind, count in zip(("Table", "Figure"), counts):
            there = sorted({int(n) for n in re.findall(rf"^\s*{kind} (\d+):", text, re.M)})
            if there != list(range(1, count + 1)):
                yield f"{paper}: it has {kind.lower()}s {there}, and PAPERS says {count}"
        stands = set(NUMBER.findall(re.sub(r"[^\w.,−-]", " ", text)))
        rows = [(row["is"], row["shows"]) for row in all_rows["rows"]] + [("departure", d["writes"]) for d in all_rows["departures"] if d["paper"] == paper]
        for name, shows in rows:
            if name.split()[0] in (paper, "departure"):
                said = [n.rstrip(".,") for n in NUMBER.findall(re.sub(r"`[^`]*`", "", shows)) if "." in n.rstrip(".")]
                yield from (f"{name}: {n} stands nowhere in the paper" for n in said if n not in stands and "0" + n not in stands)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="writes docs/papers.md")
    parser.add_argument("--check", action="store_true", help="checks docs/papers.json and docs/papers.md")
    parser.add_argument("--texts", metavar="FOLDER", help="checks docs/papers.json against the papers' texts")
    args = parser.parse_args()
    if args.texts:
        found = list(faults_beside(args.texts))
        print("\n".join(found) if found else "the rows are those of the papers")
        return bool(found)
    if args.write or args.check:
        found = write_page() if args.write else faults()
        print("\n".join(found) if found else "docs/papers.md is what its files give")
        return bool(found)
    parser.error("say --write, --check or --texts FOLDER")


if __name__ == "__main__":
    sys.exit(main())
