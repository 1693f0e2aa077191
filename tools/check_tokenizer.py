"""Compares fidelio's tokenizer with Hugging Face `tokenizers`: encoding and decoding, over the bundled texts and fuzzed strings,
half of which have marks of many scripts in every place.

  python tools/check_tokenizer.py [--build build] [--strings 20000] [--seed 1] [--only NAME]...

Needs the packages tokenizers and transformers' dependencies for nothing else, a finished build and its compiler. Exit status 1
on any difference.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import threading

from tokenizers import Tokenizer

import tokenizer_families as families


def build_driver(build, folder):
    driver = pathlib.Path(folder) / "driver"
    source = pathlib.Path(__file__).with_name("check_tokenizer_driver.cc")
    subprocess.run(["c++", "-std=c++20", "-O1", f"-I{families.ROOT}/src", source, f"{build}/libfidelio_text.a", f"{build}/libfidelio_io.a",
                    f"{build}/libfidelio_core.a", "-lonig", "-lutf8proc", "-lfmt", "-lcrypto", "-lspdlog", "-o", driver], check=True)
    return driver


def ask(driver, requests):
    """Sends all requests, returns all answers."""
    process = subprocess.Popen([driver], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    lines = "".join(json.dumps(r) + "\n" for r in requests)
    threading.Thread(target=lambda: (process.stdin.write(lines), process.stdin.close()), daemon=True).start()
    answers = [json.loads(line) for line in process.stdout]
    process.wait()
    return answers


def check(driver, name, oracle, load, strings, seed):
    testbed = families.texts_of_testbed()
    fuzz = families.fuzz_texts(oracle, strings // 2, seed) + families.fuzz_texts(oracle, strings - strings // 2, seed, families.marked_text)
    texts = [(t, True) for t in testbed] + [(t, i % 4 != 3) for i, t in enumerate(fuzz)]
    encoded = [oracle.encode(t, add_special_tokens=s).ids for t, s in texts]
    sequences = encoded + families.fuzz_ids(oracle, strings, seed)
    decodes = [(ids, skip) for ids in sequences for skip in (True, False)]
    answers = ask(driver, [load] + [{"encode": t, "special": s} for t, s in texts]
                  + [{"decode": ids, "skip": skip} for ids, skip in decodes])[1:]
    if len(answers) != len(texts) + len(decodes):
        sys.exit(f"{name}: the driver stopped after {len(answers)} answers, at {(texts + decodes)[len(answers)]!r}")
    wrong = []
    for (text, special), want, got in zip(texts, encoded, answers):
        if want != got:
            wrong.append(f"encode {text[:200]!r} special={special}\n    want {want[:40]}\n    got  {got[:40]}")
    for (ids, skip), got in zip(decodes, answers[len(texts):]):
        want = oracle.decode(ids, skip_special_tokens=skip)
        if [want, want] != got:
            wrong.append(f"decode {ids[:40]} skip={skip}\n    want {want[:200]!r}\n    got  {got[0][:200]!r} streamed {got[1][:200]!r}")
    print(f"{name}: {len(testbed)} testbed texts, {strings} fuzzed strings, {sum(map(len, encoded))} ids, {len(decodes)} decodes: "
          f"{len(wrong)} different", flush=True)
    for line in wrong[:5]:
        print("  " + line)
    return len(wrong)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default=families.ROOT / "build")
    parser.add_argument("--strings", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append")
    arguments = parser.parse_args()
    subjects = {}
    asked = lambda name: not arguments.only or name in arguments.only
    for model in filter(asked, ("quill-26m", "quill-1m")):
        folder = families.ROOT / "models" / model
        subjects[model] = (Tokenizer.from_file(str(folder / "tokenizer.json")), {"load": str(folder)})
    for name in filter(asked, families.FAMILIES):
        oracle = families.FAMILIES[name](2000)
        subjects[name] = (oracle, {"from_json": oracle.to_str()})
    with tempfile.TemporaryDirectory() as folder:
        driver = build_driver(arguments.build, folder)
        wrong = sum(check(driver, name, oracle, load, arguments.strings, arguments.seed)
                    for name, (oracle, load) in subjects.items())
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
