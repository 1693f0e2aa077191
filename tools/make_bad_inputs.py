#!/usr/bin/env python3
"""Writes docs/bad-inputs.md: what the program says to bad inputs, from the real output of tests/bad_inputs_test.cc.

Run from the repository root after building laws_test:
    python3 tools/make_bad_inputs.py [build/laws_test]
"""
import json
import subprocess
import sys
import tempfile

HEAD = """# Bad inputs

Every message below is what the program really prints on standard error, with its exit code: 2 if the command line itself is
wrong, 1 for everything else. In none of these cases does it leave a file or folder behind. `model` is models/quill-1m, `large`
is models/quill-26m, `bad` a damaged copy. tests/bad_inputs_test.cc runs them all and fails if this page is out of date;
`python3 tools/make_bad_inputs.py` writes it.

| input | command | exit | message |
|---|---|---|---|
"""

program = sys.argv[1] if len(sys.argv) > 1 else "build/laws_test"
with tempfile.NamedTemporaryFile(suffix=".json") as file:
    # The tests fail as long as the page is old: their rows are wanted all the same.
    subprocess.run([program, "--gtest_filter=*BadInputs*", f"--gtest_output=json:{file.name}"], stdout=subprocess.DEVNULL, check=False)
    report = json.load(open(file.name, encoding="utf-8"))
rows = [case["row"] for suite in report["testsuites"] for case in suite["testsuite"] if "row" in case]
with open("docs/bad-inputs.md", "w", encoding="utf-8") as page:
    page.write(HEAD + "".join(row + "\n" for row in rows))
print(f"docs/bad-inputs.md: {len(rows)} inputs")
