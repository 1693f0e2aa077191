#!/usr/bin/env python3
"""Makes the bundled corpus: models/data/corpus-calibration.jsonl and corpus-heldout.jsonl, and corpus.json, which says where every document comes from.

    apt-get download postgresql-doc-15 apache2-doc dict-jargon libpython3.11-stdlib libpython3.11-minimal; for d in *.deb; do dpkg-deb -x $d packages; done
    (cd packages; unzip state_union.zip; git clone https://github.com/computationalstylistics/100_english_novels)   # state_union.zip: github.com/nltk/nltk_data
    tools/make_corpus.py --questions questions.jsonl        # writes what the conversations ask, and stops
    build/fidelio eval SMOLLM2 --tasks questions.jsonl --max-tokens 380 --recommended --cache answers.jsonl
    tools/make_corpus.py --packages packages --answers answers.jsonl

Documents are chosen by the order of their SHA-256, so nobody chose them; each is cut at a line's end to what some windows of 512 tokens
take. SMOLLM2 is SmolLM2-135M-Instruct (Apache-2.0); its answers are text as a small model writes it, mistakes too. Without --answers, and where
there are too few, conversations are made of this project's generated exercises.

Of prose, calibration has the Jargon File alone; two thirds of what is held out are speeches and novels, which nothing is calibrated on: a
certificate on one book's prose promised too much of other books."""
import argparse
import glob
import hashlib
import html.parser
import json
import os
import subprocess
import zlib

from corpus_prompts import prompts

LONGEST = 6500  # bytes of a document
SHORTEST = 3500
HELDOUT, CALIBRATION = 42, 30  # documents of a domain
LICENCES = {
    "postgresql-doc-15": "PostgreSQL licence; Portions Copyright (c) 1996-2022, PostgreSQL Global Development Group; Portions Copyright (c) 1994, The Regents of the University of California",
    "apache2-doc": "Apache-2.0; Copyright 2022 The Apache Software Foundation",
    "dict-jargon": "public domain; The Jargon File, version 4.4.7",
    "libpython3.11": "PSF-2; Copyright (c) 2001-2023 Python Software Foundation",
    "state_union": "public domain; addresses of presidents of the United States of America, 1945 to 2006, as NLTK's data has them",
    "100_english_novels": "public domain; novels printed before 1900",
    "fidelio": "Apache-2.0; this project",
    "SmolLM2-135M-Instruct": "Apache-2.0; answers of the model, questions of this project",
}


class Text(html.parser.HTMLParser):
    """The text of a page of a manual: what navigation, scripts and styles hold is left out."""

    blocks = {"p", "div", "h1", "h2", "h3", "h4", "h5", "li", "tr", "pre", "dt", "dd", "br", "table"}

    def __init__(self):
        super().__init__()
        self.parts, self.hidden, self.stack = [], 0, []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        kind = " ".join(str(attributes.get(key, "")) for key in ("class", "id"))
        hides = tag in ("script", "style", "head") or any(word in kind for word in ("nav", "toc", "quickview", "preamble", "langs", "footer", "header"))
        if tag not in ("br", "img", "meta", "link", "hr", "input", "col", "a"):
            self.stack.append((tag, hides))
            self.hidden += hides
        if tag in self.blocks:
            self.parts.append("\n")

    def handle_endtag(self, tag):
        while any(open_tag == tag for open_tag, _ in self.stack):
            last, hides = self.stack.pop()
            self.hidden -= hides
            if last == tag:
                break
        if tag in self.blocks:
            self.parts.append("\n")

    def handle_data(self, data):
        if not self.hidden:
            self.parts.append(data)


def text_of_page(path):
    parser = Text()
    parser.feed(open(path, encoding="utf-8", errors="replace").read())
    lines = [" ".join(line.split()) for line in "".join(parser.parts).split("\n")]
    text = "\n".join(lines)
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text.strip() + "\n"


def cut(text):
    data = text.encode()[:LONGEST]
    if len(text.encode()) > LONGEST:
        data = data[: data.rfind(b"\n") + 1]
    return data.decode(errors="ignore")


def manuals(packages):
    for package, pattern in (("postgresql-doc-15", "html/*.html"), ("apache2-doc", "manual/en/**/*.html")):
        for path in sorted(glob.glob(f"{packages}/usr/share/doc/{package}/{pattern}", recursive=True)):
            yield package, os.path.basename(path), text_of_page(path)


def entries(packages):
    """Neighbouring entries of the Jargon File, as many as make a document."""
    raw = zlib.decompressobj(31).decompress(open(f"{packages}/usr/share/dictd/jargon.dict.dz", "rb").read()).decode()
    entry, document = [], ""
    for line in raw.split("\n")[60:] + ["end"]:
        if line and not line[0].isspace() and entry and not entry[-1].strip():
            document += "\n".join(entry) + "\n"
            entry = []
            if len(document.encode()) > SHORTEST + 1500:
                yield "dict-jargon", document.split("\n")[0], document
                document = ""
        entry.append(line)


def speeches(packages):
    for path in sorted(glob.glob(f"{packages}/state_union/*.txt")):
        yield "state_union", os.path.basename(path), open(path, encoding="latin-1").read()


def novels(packages):
    """A passage from a third on of one novel of each author, in plain ASCII: some files have letters of no encoding."""
    authors = set()
    for path in sorted(glob.glob(f"{packages}/100_english_novels/corpus/*_18*.txt")):
        author, text = os.path.basename(path).split("_")[0], open(path, encoding="latin-1").read()
        text = cut(text[text.find("\n", len(text) // 3) + 1 :])
        if author not in authors and text.isascii():
            authors.add(author)
            yield "100_english_novels", os.path.basename(path), text


def sources(packages):
    for path in subprocess.run(["git", "ls-files", "src/*.cc", "src/*.h"], capture_output=True, text=True, check=True).stdout.split():
        yield "fidelio", path, open(path).read()
    for path in sorted(glob.glob(f"{packages}/usr/lib/python3.11/**/*.py", recursive=True)):
        if "/test" not in path and "/encodings/" not in path:
            yield "libpython3.11", os.path.relpath(path, f"{packages}/usr/lib"), open(path, errors="replace").read()


def conversations(answers):
    asked = dict(prompts())
    for line in open(answers):
        record = json.loads(line)
        if record.get("id") in asked and len(record["text"]) > 200:
            yield {"messages": [{"role": "user", "content": asked[record["id"]]}, {"role": "assistant", "content": record["text"].strip()}]}, record["id"]


def exercises(path):
    """Conversations of generated exercises: a person asks some in turn, and gets the answers with how they were found."""
    turns = []
    for line in open(path):
        question, answer = json.loads(line)["text"].split("<|im_end|>\n<|im_start|>assistant\n")
        answer = answer.replace("<|im_end|>", "").replace("<think>\n", "").replace("</think>\n\n", "\n").strip()
        turns.append([{"role": "user", "content": question.split("<|im_start|>user\n")[1]}, {"role": "assistant", "content": answer}])
    each = 8
    for number in range(len(turns) // each):
        # Of every kind of exercise some: they come in no order that would bring like ones together.
        yield {"messages": [message for turn in turns[number * each : (number + 1) * each] for message in turn]}, f"exercises-{number}"


def chosen(documents, number=HELDOUT + CALIBRATION):
    """Documents long enough, in the order of their hashes, of every source alike."""
    by_source = {}
    for source, name, text in documents:
        text = cut(text)
        if len(text.encode()) >= SHORTEST:
            by_source.setdefault(source, []).append((hashlib.sha256(text.encode()).hexdigest(), source, name, text))
    queues = [sorted(own) for own in by_source.values()]
    found = []
    while any(queues):
        for queue in queues:
            if queue:
                found.append(queue.pop(0))
    return found[:number]


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--packages")
parser.add_argument("--answers")
parser.add_argument("--questions")
parser.add_argument("--out", default="models/data")
args = parser.parse_args()
if args.questions:
    with open(args.questions, "w") as file:
        for name, prompt in prompts():
            file.write(json.dumps({"id": name, "task": "chat", "question": prompt, "answer": "-"}) + "\n")
    raise SystemExit

records = []  # (domain, source, name, record)
for domain, documents in (("docs", manuals(args.packages)), ("prose", entries(args.packages)), ("code", sources(args.packages))):
    for _, source, name, text in chosen(documents):
        records.append((domain, source, name, {"text": text}))
for source, talks in (("SmolLM2-135M-Instruct", conversations(args.answers) if args.answers else ()), ("fidelio", exercises("models/data/tasks-calibration.jsonl"))):
    ordered = sorted(talks, key=lambda talk: hashlib.sha256(json.dumps(talk[0]).encode()).hexdigest())
    there = sum(domain == "chat" for domain, *_ in records)
    records += [("chat", source, name, record) for record, name in ordered[: HELDOUT + CALIBRATION - there]]

index = {"licences": LICENCES, "files": {}, "documents": []}
texts = {"corpus-heldout.jsonl": "", "corpus-calibration.jsonl": ""}
count = {}


def add(file, domain, source, name, record):
    texts[file] += json.dumps({"id": f"{domain}/{name}", "domain": domain, **record}, ensure_ascii=False) + "\n"
    index["documents"].append({"file": file, "id": f"{domain}/{name}", "source": source})


for domain, source, name, record in records:
    # Sources alternate; of every twelve documents seven are held out.
    position = count[domain] = count.get(domain, -1) + 1
    heldout = position * HELDOUT // (HELDOUT + CALIBRATION) != (position + 1) * HELDOUT // (HELDOUT + CALIBRATION)
    if domain == "prose" and heldout and position * 3 >= HELDOUT + CALIBRATION:
        continue  # their places are of speeches and novels
    add("corpus-heldout.jsonl" if heldout else "corpus-calibration.jsonl", domain, source, name, record)
for documents in (speeches(args.packages), novels(args.packages)):
    for _, source, name, text in chosen(documents, HELDOUT // 3):
        add("corpus-heldout.jsonl", "prose", source, name, {"text": text})
for file, text in texts.items():
    with open(os.path.join(args.out, file), "w") as out:
        out.write(text)
    index["files"][file] = hashlib.sha256(text.encode()).hexdigest()
with open(os.path.join(args.out, "corpus.json"), "w") as out:
    out.write(json.dumps(index, indent=0, ensure_ascii=False) + "\n")
for file, text in texts.items():
    lines = [json.loads(line) for line in text.splitlines()]
    print(file, len(text.encode()), {domain: sum(line["domain"] == domain for line in lines) for domain in count})
