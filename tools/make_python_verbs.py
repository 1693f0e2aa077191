#!/usr/bin/env python3
"""Writes python/fidelio/_verbs.py, the typed functions of the package for Python, from what the program says about its
verbs: one table of options, that of the program.

    tools/make_python_verbs.py build/fidelio          # prints the file
    tools/make_python_verbs.py build/fidelio --write  # writes it

tests/python_test.py compares the file with what this prints."""
import os
import re
import subprocess
import sys
import textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = os.path.join(ROOT, "python", "fidelio", "_verbs.py")
FUNCTIONS = {"certify": "certify", "compress": "compress", "eval": "evaluate", "export": "export", "inspect": "inspect",
             "quantize": "quantize"}
LEFT_OUT = {"help", "help-all", "json", "progress", "program"}  # The last one prints text in place of a report.
KEYWORDS = {"for"}
OPTION = re.compile(r"^  (?:-\w,)?--(?P<name>[\w-]+)(?: (?P<kind>TEXT|NUMBER|N|\{[^}]*\})(?P<range> in \[[^\]]*\])?"
                    r"(?P<several> \.\.\.)?(?P<required> \(required\))?)?(?:\s+(?P<words>\S.*))?$")
TYPES = {"TEXT": "str", "NUMBER": "float", "N": "int", None: "bool"}

HEAD = '''"""The verbs of the program as functions. tools/make_python_verbs.py writes this file from the program's own help."""
from typing import Any, Optional, Sequence, Union

from ._options import PathLike
from ._program import run_verb
from ._report import Report
'''


class Option:
    def __init__(self, match):
        self.word, self.kind = match["name"], match["kind"]
        self.name = self.word.replace("-", "_") + ("_" if self.word in KEYWORDS else "")
        self.required, self.several = bool(match["required"]), bool(match["several"])
        self.words = (match["words"] or "").strip()
        self.range = match["range"] or ""

    def type(self):
        base = TYPES.get(self.kind, "str")
        if base == "str":
            base = "PathLike"
        return f"Union[{base}, Sequence[{base}]]" if self.several else base

    def parameter(self):
        if self.required:
            return f"{self.name}: {self.type()}"
        if self.kind is None:
            return f"{self.name}: bool = False"
        return f"{self.name}: Optional[{self.type()}] = None"


def options_of(program, verb):
    """The first sentence about a verb, and its options."""
    help_text = subprocess.run([program, verb, "--help-all"], check=True, capture_output=True, text=True).stdout
    lines = help_text.split("\nExample")[0].split("\n")
    found = []
    for line in lines:
        match = OPTION.match(line)
        if match:
            found.append(Option(match))
        elif found and line.startswith(" " * 30) and not found[-1].words:
            found[-1].words = line.strip()
    return lines[0], found


def wrapped(parts, head):
    """The parts behind the head, in lines of at most 120 characters, of which none divides a part."""
    text = textwrap.fill(", ".join(part.replace(" ", "\0") for part in parts), 120, initial_indent=head,
                         subsequent_indent=" " * len(head), break_long_words=False, break_on_hyphens=False)
    return text.replace("\0", " ")


def function(program, verb, name):
    about, every = options_of(program, verb)
    shows_progress = any(option.word == "progress" for option in every)
    options = [option for option in every if option.word not in LEFT_OUT]
    required = sorted((o for o in options if o.required), key=lambda o: o.word != "output")
    more = [o for o in options if not o.required]
    parameters = ["model: PathLike", *(o.parameter() for o in required), "*", *(o.parameter() for o in more)]
    if shows_progress:
        parameters.append("progress: Optional[bool] = None")
    parameters.append("**options: Any")
    head = f"def {name}("
    signature = wrapped(parameters, head)
    doc = [f'    """{about}.', "", f"    The options are those of `fidelio {verb} --help-all`:", ""]
    for option in [*required, *more]:
        words = (option.words + (f" ({option.range.strip()})" if option.range else "")).replace("\\", "\\\\")
        doc += textwrap.wrap(f"{option.name}: {words}", 116, initial_indent="    ", subsequent_indent="        ",
                             break_on_hyphens=False)
    if shows_progress:
        doc += ["    progress: a bar of tqdm: True, False, or None, which shows one where tqdm is installed"]
    doc += ["", f"    Returns the report, by the keys that docs/json.md lists for `{verb}`. Raises Error with the program's",
            "    message, also for options that the program does not have.", '    """']
    given = [f'"{o.name}": {o.name}' for o in [*required, *more]]
    body = wrapped([*given, "**options}"], "    given = {")
    call = f'    return run_verb("{verb}", model, given, {"progress" if shows_progress else "None"}, {shows_progress})'
    return "\n".join([signature + ") -> Report:", *doc, body, call])


def text_of(program):
    return HEAD + "".join("\n\n" + function(program, verb, name) + "\n" for verb, name in FUNCTIONS.items())


def main():
    text = text_of(sys.argv[1])
    if "--write" in sys.argv:
        with open(TARGET, "w", encoding="utf-8") as file:
            file.write(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
