#!/usr/bin/env python3
"""Checks what the compiler does not: the include rule between rooms (docs/design.md section 2), file sizes, leftovers,
that files named in pages and comments are there, that the map has all rooms, that links between pages lead somewhere and their lines are
short, and that docs/results.md and docs/papers.md are what their files give (tools/headlines.py, tools/papers.py).

Exits 1 and lists the places if a rule is broken."""
import os
import re
import sys

import headlines
import papers


def rooms_of_the_build():
    """Which rooms each room may include: its DEPS in the build files, and what those may include. app may include all but library, which may include all."""
    wanted = {}
    for path in ("CMakeLists.txt", "cmake/cuda.cmake"):
        for folders, deps in re.findall(r"^fidelio(?:_cuda)?_room\(\w+ FOLDERS ([\w/\s]+?)\s*DEPS ([^)]*)\)", open(path).read(), re.M):
            room = folders.split()[0].split("/")[0]
            wanted.setdefault(room, set()).update(re.findall(r"fidelio_([a-z]+)", deps))
            if "${backends}" in deps:
                wanted[room].add("kernels")
    may = {}

    def below(room):
        if room not in may:
            may[room] = set()
            for other in wanted[room] - {room}:
                may[room] |= {other} | below(other)
        return may[room]

    for room in wanted:
        below(room)
    return {**may, "app": set(may), "library": {*may, "app"}}


ROOMS = rooms_of_the_build()
MAX_LINES = {".h": 170, ".cuh": 280, ".cc": 520, ".cu": 520}
MAX_FILES = 24  # a folder
MAX_FUNCTION = 60
# Headers that are bodies: compiled once per instruction set, or templates over a backend or a training device.
BODIES = re.compile(r"_(body|impl|fixture)\.h$|^src/train/|_avx2\.h$")
# Longer, with the reason. Nothing else may be.
LONGER = {
    "src/kernels/backend.h": 190,  # the concept of a backend, operation by operation
    "src/runtime/execution/executor.h": 230, "src/step/op.h": 190,  # one function an operation; the operations
    "src/kernels/cuda/backend/cuda.h": 190, "src/kernels/cuda/backend/cuda_state.h": 325, "src/kernels/cuda/linear/layout/lowbit.h": 170,  # how to fuse kernels, and a layout
}
LONGER_FUNCTIONS = {
    "src/kernels/cuda/linear/decode/lowbit_stream.cuh", "src/kernels/cuda/linear/decode/lowbit_kernel.cuh",
    "src/kernels/cuda/attention/attention_prefill.cu",  # one kernel each: what it keeps in registers would have to be passed
}
OPENS = re.compile(r"^( {0,2})(?!namespace|struct|class|enum|union|extern|if\b|for\b|while\b|else|switch|do\b|try\b|\}|case|default|template)\S.*\{$")


def long_functions(path, lines):
    """Functions at namespace scope and in classes: from the first line of their signature to the brace that closes them."""
    for at, line in enumerate(lines):
        found = OPENS.match(line)
        if not found or (found[1] and ("(" not in line or line.lstrip().startswith("return"))) or "(" not in "".join(lines[max(0, at - 5):at + 1]):
            continue
        end = at + 1
        while end < len(lines) and not (lines[end].strip() and len(lines[end]) - len(lines[end].lstrip()) <= len(found[1])):
            end += 1
        first = at
        while first > 0 and lines[first - 1].strip() and not lines[first - 1].rstrip().endswith((";", "}", "{", ":")) \
                and not lines[first - 1].lstrip().startswith(("//", "#")):
            first -= 1
        if end - first + 1 > MAX_FUNCTION:
            yield f"{path}:{first + 1}: a function of {end - first + 1} lines, at most {MAX_FUNCTION}"


def check(path, text, room, name, extension):
    lines = text.split("\n")
    most = LONGER.get(path, MAX_LINES[".cc"] if BODIES.search(path) else MAX_LINES[extension])
    if len(lines) - 1 > most and "_test." not in name:
        yield f"{path}: {len(lines) - 1} lines, at most {most}"
    if "_test." not in name and "fixture" not in name and path not in LONGER_FUNCTIONS:
        yield from long_functions(path, lines)
    allowed = ROOMS.get(room)
    if allowed is not None and "_test." not in name:
        for other in re.findall(r'#include "([a-z_]+)/', text):
            if other in ROOMS and other != room and other not in allowed:
                yield f"{path}: room {room} must not include {other}/"
    if "cuda_runtime" in text and "/cuda/" not in path:
        yield f"{path}: CUDA header outside a folder cuda/"
    for mark in re.findall(r"\b(?:TODO|FIXME|XXX|HACK)\b", text):
        yield f"{path}: {mark}"


# A file's name, with folders or without; x_test.cc is any.
FILE = re.compile(r"(?<![\w./*{}$-])(?!x_)[\w-]+(?:/[\w.-]+)*\.(?:h|cc|cu|cuh|py|sh|md)\b")
PAGES = re.compile(r"\.md$|^docs/results/.+\.json$")  # and the tables of docs/results.md
SOURCES = re.compile(r"\.(?:h|cc|cu|cuh)$")
OTHERS_FILES = {"my.md", "README.md"}  # of examples, and of any folder
LONGEST_PROSE, LONGEST_COMMENT = 160, 120
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def paths():
    return [os.path.relpath(os.path.join(folder, name), ".") for top in ("cmake", "docs", "models", "src", "tests", "tools")
            for folder, _, names in os.walk(top) for name in names] + ["README.md", "CONTRIBUTING.md"]


def names_of_no_file():
    """Files that a page or a comment speaks of and that are not there, or are called otherwise."""
    there = paths()
    ends = {"/".join(path.split(os.sep)[-n:]) for path in there for n in range(1, path.count(os.sep) + 2)} | OTHERS_FILES
    for path in there:
        if not PAGES.search(path) and not SOURCES.search(path):
            continue
        with open(path, encoding="utf-8") as file:
            for at, line in enumerate(file):
                words = line if PAGES.search(path) else "" if "#include" in line else line.partition("//")[2]
                for name in FILE.findall(words):
                    if name not in ends:
                        yield f"{path}:{at + 1}: there is no {name}"


def anchors(text):
    """What GitHub calls the headings of a page."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in HEADING.findall(text)}


def pages():
    for path in paths():
        if path.endswith(".md"):
            with open(path, encoding="utf-8") as file:
                yield path, file.read()


def broken_pages():
    """Lines of prose that are too long, and links to no file or no heading. Tables and what is written by a tool as it is are left out."""
    for path, text in pages():
        code = False
        for at, line in enumerate(text.split("\n")):
            code ^= line.startswith("```")
            if len(line) > LONGEST_PROSE and not code and not line.startswith("|"):
                yield f"{path}:{at + 1}: a line of {len(line)} characters, at most {LONGEST_PROSE}"
        for target, heading in re.findall(r"\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]*))?\)", text):
            to = os.path.normpath(os.path.join(os.path.dirname(path), target)) if target else path
            if not os.path.exists(to):
                yield f"{path}: a link to {target}, which is not there"
            elif heading and to.endswith(".md"):
                with open(to, encoding="utf-8") as file:
                    if heading not in anchors(file.read()):
                        yield f"{path}: a link to {target}#{heading}, and there is no such heading"


def long_comments():
    """Lines of comments that are too long."""
    for path in paths():
        if SOURCES.search(path):
            with open(path, encoding="utf-8") as file:
                yield from (f"{path}:{at + 1}: a comment of {len(line) - 1} characters, at most {LONGEST_COMMENT}"
                            for at, line in enumerate(file) if len(line) - 1 > LONGEST_COMMENT and "//" in line)


def rooms_off_the_map():
    with open(os.path.join("docs", "pictures", "map.svg"), encoding="utf-8") as file:
        picture = file.read()
    return [f"docs/pictures/map.svg: lacks {room}: tools/make_map.py draws it" for room in ROOMS if f">{room}</text>" not in picture]


def main():
    broken = [*names_of_no_file(), *rooms_off_the_map(), *broken_pages(), *headlines.faults(), *papers.faults(), *long_comments()]
    for folder, _, files in os.walk("src"):
        if len(files) > MAX_FILES:
            broken.append(f"{folder}: {len(files)} files, at most {MAX_FILES}: divide it")
        for name in files:
            extension = os.path.splitext(name)[1]
            if extension in MAX_LINES:
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8") as file:
                    broken += check(path, file.read(), path.split(os.sep)[1], name, extension)
    print("\n".join(broken) if broken else "lint: the rooms are clean")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
