#!/usr/bin/env python3
"""Checks what the compiler does not: the include rule between rooms (docs/design.md section 2), file sizes, leftovers.

Exits 1 and lists the places if a rule is broken."""
import os
import re
import sys

RUNTIME = ["core", "formats", "text", "arch", "io", "kernels", "runtime"]
ROOMS = {  # room -> rooms it may include
    "core": [],
    "formats": ["core"],
    "text": ["core"],
    "arch": ["core"],
    "io": ["core", "formats", "text", "arch"],
    "kernels": ["core", "formats"],
    "alloc": ["core", "formats"],
    "runtime": ["core", "formats", "text", "arch", "io", "kernels"],
    "engine": RUNTIME,
    "train": RUNTIME,
    "quant": RUNTIME,
    "eval": [*RUNTIME, "engine"],
    "grammar": [*RUNTIME, "engine"],
    "serve": [*RUNTIME, "engine", "grammar"],
    "sensitivity": [*RUNTIME, "engine", "train", "eval", "quant", "alloc"],
    "compress": [*RUNTIME, "engine", "eval", "quant", "alloc", "sensitivity"],
    "app": None,
}
MAX_LINES = {".h": 250, ".cuh": 300, ".cc": 700, ".cu": 700}

MAX_FILES = 24  # a folder

broken = []
for folder, _, files in os.walk("src"):
    if len(files) > MAX_FILES:
        broken.append(f"{folder}: {len(files)} files, at most {MAX_FILES}: divide it")
    for name in files:
        extension = os.path.splitext(name)[1]
        if extension not in MAX_LINES:
            continue
        path = os.path.join(folder, name)
        room = path.split(os.sep)[1]
        with open(path, encoding="utf-8") as file:
            text = file.read()
        lines = text.count("\n")
        # A kernel body is a source that is compiled once per instruction set.
        most = MAX_LINES[".cc"] if name.endswith("_body.h") else MAX_LINES[extension]
        if lines > most:
            broken.append(f"{path}: {lines} lines, at most {most}")
        allowed = ROOMS.get(room)
        if allowed is not None and "_test." not in name:
            for other in re.findall(r'#include "([a-z_]+)/', text):
                if other in ROOMS and other != room and other not in allowed:
                    broken.append(f"{path}: room {room} must not include {other}/")
        if "cuda_runtime" in text and "/cuda/" not in path:
            broken.append(f"{path}: CUDA header outside kernels/cuda")
        for mark in re.findall(r"\b(?:TODO|FIXME|XXX|HACK)\b", text):
            broken.append(f"{path}: {mark}")
print("\n".join(broken) if broken else "lint: the rooms are clean")
sys.exit(1 if broken else 0)
